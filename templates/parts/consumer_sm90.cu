//%% One warpgroup's part in a tile: issuing the two products, softmax in between, giving stages back.
//% local raw_scores = variant.score_is_identity and variant.softcap == 0 and variant.scale > 0
//% local taking_turns = schedule.order == 1 and schedule.warpgroups > 1
//% local carry = schedule.carry == 1
//% local hidden_rescale = schedule.rescale == 1
//% local layout = kernel.layout
//% local packed = layout.packed
// A tile of rows as its consumers see it.
struct row_work {
  int h, hk, b, position; // position: of query row 0 in the KV sequence
  $(packed and "packed_row warp_row;" or "int warp_row;          ") // the warp's first row
  tile_range tiles;
};

// What a consumer warpgroup holds in registers.
struct consumer {
  unsigned shared;
  int warpgroup, lane;
  bool leader; // the warpgroup's thread that gives stages back
  ring<Q_BUFFERS> queries;
  ring<STAGES> keys, values;

  float scores[ROW_TILES][N_TILES][4];
  unsigned probabilities[PV_STEPS][4]; // of the tile before
  float output[ROW_TILES][V_TILES][4];
  row_state rows;
  float rescale[ROW_TILES][2];
  bool moved; // the output waits for its rescaling
  //% if carry then

  bool crossing; // the output is still that of `done`
  row_work done;
  //% end
};

// The warp's first row in a tile of rows.
static __device__ __forceinline__ int warp_row(const consumer &c) {
  return 64 * c.warpgroup + threadIdx.x / 32 % 4 * 16;
}

static __device__ __forceinline__ row_work work_rows(const qkv_params &p, const consumer &c, const work_item &item) {
  row_work work;
  work.h = item.h, work.hk = item.h / GROUP, work.b = item.b;
  //% if variant.align == "bottom_right" then
  work.position = p.len_k - p.len_q;
  //% else
  work.position = 0;
  //% end
  //% if packed then
  work.warp_row = {item.row_begin, (unsigned)warp_row(c)};
  //% else
  work.warp_row = item.row_begin + warp_row(c);
  //% end
  work.tiles = visible_tiles(p, item.row_begin, work.position, work.h, work.hk, work.b);
  return work;
}

//% if taking_turns then
// Warpgroups issue products in turn, so that one multiplies while another is at its softmax. Only the first waits for
// the copies: those who come later learn from the turn that they have landed.
//% end
static __device__ __forceinline__ void take_turn(const consumer &c) {
  //% if taking_turns then
  bar_sync(TURN + c.warpgroup, 256);
  //% end
}
static __device__ __forceinline__ void pass_turn(const consumer &c) {
  //% if taking_turns then
  bar_arrive(TURN + (c.warpgroup + 1) % WARPGROUPS, 256);
  //% end
}
static __device__ __forceinline__ void wait_for(const consumer &c, int full, const ring<STAGES> &ring) {
  //% if taking_turns then
  if (c.warpgroup > 0) return;
  //% end
  mbar_wait(c.shared + full + 8 * ring.stage(), ring.parity());
}

// Q K^T starts.
static __device__ __forceinline__ void issue_scores(consumer &c, unsigned long long query) {
  wait_for(c, K_FULL, c.keys);
  take_turn(c);
  wgmma_fence();
  multiply_query_key(c.scores, query, key_descriptor(c.shared, c.keys.stage()));
  wgmma_commit();
}

// P V of the tile before starts.
static __device__ __forceinline__ void issue_output(consumer &c) {
  multiply_probability_value(c.output, c.probabilities, value_descriptor(c.shared, c.values.stage()));
  wgmma_commit();
}

// The products have been waited for: their results may be touched, their stages filled again.
static __device__ __forceinline__ void take_scores(consumer &c) {
  keep(c.scores);
  if (c.leader) mbar_arrive(c.shared + K_EMPTY + 8 * c.keys.stage());
  c.keys.advance();
}
static __device__ __forceinline__ void take_output(consumer &c) {
  keep(c.output);
  if (c.leader) mbar_arrive(c.shared + V_EMPTY + 8 * c.values.stage());
  c.values.advance();
}

// A work's rows are done: the last division, LSE, and the output leaves.
static __device__ __forceinline__ void leave(
    consumer &c, const qkv_params &p, const row_work &work, const row_state &rows) {
  finish_rows(p, c.output, rows, work.warp_row, work.h, work.b, c.lane);
  //% if layout.store then
  store_output(p, c.output, c.shared + $(layout.alias and "c.queries.stage() * Q_BYTES" or "O_OFFSET"), warp_row(c),
               work.warp_row, work.h, work.b, c.lane);
  //% else
  store_output(p, c.output, work.warp_row, work.h, work.b, c.lane);
  //% end
}

// The warp no longer reads its rows of Q; when all say so, the next tile's take their place.
static __device__ __forceinline__ void release_query(consumer &c) {
  //% if layout.alias then
  if (c.lane == 0) bulk_wait_read_0(); // nor does O leave from there
  //% else
  warp_sync();
  //% end
  if (c.lane == 0) mbar_arrive(c.shared + Q_EMPTY + 8 * c.queries.stage());
  c.queries.advance();
}

// Products to probabilities.
static __device__ __forceinline__ void softmax(
    consumer &c, const qkv_params &p, const row_work &work, int tile, bool masked) {
  //% if not raw_scores then
  transform_scores(c.scores, p, tile, work.warp_row, work.position, work.h, work.hk, work.b, c.lane);
  //% end
  if (masked) mask_scores(c.scores, p, tile, work.warp_row, work.position, work.h, work.hk, work.b, c.lane);
  c.moved = move_references(c.scores, c.rows, c.rescale);
  exponentiate(c.scores, c.rows);
}

// The first tile of a work: no P V runs beside it.
static __device__ __forceinline__ void first_step(
    consumer &c, const qkv_params &p, const row_work &work, unsigned long long query, int tile, bool masked) {
  clear_output(c.output);
  start_rows(c.rows);
  issue_scores(c, query);
  pass_turn(c);
  wgmma_wait_0();
  take_scores(c);
  softmax(c, p, work, tile, masked);
  round_probabilities(c.probabilities, c.scores);
  c.moved = false; // there is no output yet
}

//% if carry then
// The output is that of the work before: it leaves, and the new work's begins.
static __device__ __forceinline__ void finish_crossing(consumer &c, const qkv_params &p, const row_state &done_rows) {
  leave(c, p, c.done, done_rows);
  clear_output(c.output);
  c.crossing = c.moved = false;
}

// Any other tile: its scores are multiplied while P V of the tile before is still running. That may be the last tile of
// the work before (only where MAY_CROSS).
template <bool MAY_CROSS> static __device__ __forceinline__ void step(
//% else
// Any other tile: its scores are multiplied while P V of the tile before is still running.
static __device__ __forceinline__ void step(
//% end
    consumer &c, const qkv_params &p, const row_work &work, unsigned long long query, int tile, bool masked) {
  issue_scores(c, query);
  //% if hidden_rescale then
  if (c.moved) rescale_output(c.output, c.rescale);
  //% end
  wait_for(c, V_FULL, c.values);
  //% if hidden_rescale then
  wgmma_fence();
  //% end
  issue_output(c);
  pass_turn(c);
  wgmma_wait_1();
  take_scores(c);
  //% if carry then
  const row_state done_rows = c.rows;
  if (MAY_CROSS && c.crossing) start_rows(c.rows);
  //% end
  softmax(c, p, work, tile, masked);
  wgmma_wait_0();
  take_output(c);
  //% if carry then
  if (MAY_CROSS && c.crossing) finish_crossing(c, p, done_rows);
  //% end
  round_probabilities(c.probabilities, c.scores);
  //% if not hidden_rescale then
  if (c.moved) rescale_output(c.output, c.rescale);
  //% end
}

// P V of a work's last tile.
static __device__ __forceinline__ void last_output(consumer &c) {
  //% if hidden_rescale then
  if (c.moved) rescale_output(c.output, c.rescale);
  //% end
  mbar_wait(c.shared + V_FULL + 8 * c.values.stage(), c.values.parity());
  wgmma_fence();
  issue_output(c);
  wgmma_wait_0();
  take_output(c);
}
