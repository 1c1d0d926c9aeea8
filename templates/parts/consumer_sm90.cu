//%% One warpgroup's part in a tile: issuing the two products, softmax in between, giving stages back.
//% local attention = library("attention")
//% local taking_turns = schedule.order == 1 and schedule.warpgroups > 1
//% local overlap = schedule.overlap
//% local turns_at_products = overlap == 1
//% local softmax_waits = overlap == 2 and " Softmax waits for both." or ""
//% local carry = schedule.carry == 1
//% local hidden_rescale = schedule.rescale == 1
//% local layout = kernel.layout
//% local p_shared = schedule.p_shared == 1
//% local rounded = p_shared and "c.shared, warp_row(c), c.scores, c.lane" or "c.probabilities, c.scores"
//% local query_in_registers = schedule.q_registers == 1
//% local query_parameter = query_in_registers and "const query_fragments &query" or "unsigned long long query"
//% local packed = layout.packed
//% local shift = score.shifts and " shift," or "" -- of argument lists
//% local cluster = schedule.cluster > 1
//% local tiles_of = cluster and "cluster_tiles" or "visible_tiles"
//% local view = attention.view(mask, variant)
//% local place = "work." .. view.argument
//% local tile_parameter = mask.walk and "" or ", int tile, bool masked" -- else the producer tells
//% local tile_argument = mask.walk and "c.tile.number(), c.tile.masked()" or "tile, masked"
//% local also = view.also_argument ~= "" and ", work.view" or ""
//% local arrive, at = cluster and "mbar_arrive_remote" or "mbar_arrive", cluster and ", c.lane" or ""
// A tile of rows as its consumers see it.
struct row_work {
  //% if mask.dilation then
  int h, hk, b;
  residue_view view;
  //% elseif view.sequences then
  int h, hk, b;
  sequence_view view;
  //% else
  int h, hk, b, position; // position: of query row 0 in the KV sequence
  //% end
  $(packed and "packed_row warp_row;" or "int warp_row;          ") // the warp's first row
  //% if not mask.walk then
  tile_range tiles;
  //% end
};

// What a consumer warpgroup holds in registers.
struct consumer {
  unsigned shared;
  int warpgroup, lane;
  //% if cluster then
  bool leader; // the warpgroup's threads that give stages back, one to each block of the cluster
  //% else
  bool leader; // the warpgroup's thread that gives stages back
  //% end
  ring<Q_BUFFERS> queries;
  ring<STAGES> keys, values;
  //% if mask.walk then
  told_tile tile; // whose scores these are
  //% end

  float scores[ROW_TILES][N_TILES][4];
  //% if not p_shared then
  unsigned probabilities[PV_STEPS][4]; // of the tile before
  //% end
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
  //% if mask.dilation then
  work.view = view_residue(p, item.first_row);
  //% elseif view.sequences then
  work.view = view_sequence(p, item.b);
  //% elseif variant.align == "bottom_right" then
  work.position = p.len_k - p.len_q;
  //% else
  work.position = 0;
  //% end
  //% if packed then
  work.warp_row = {item.row_begin, (unsigned)warp_row(c)};
  //% else
  work.warp_row = item.row_begin + warp_row(c);
  //% end
  //% if not mask.walk then
  work.tiles = $(tiles_of)(p, item.row_begin, $(place), work.h, work.hk, work.b);
  //% end
  return work;
}

//% if taking_turns and not turns_at_products then
// Warpgroups take turns at their exponentials, so that one multiplies while another is at them.
//% elseif taking_turns then
// Warpgroups issue products in turn, so that one multiplies while another is at its softmax. Only the first waits for
// the copies: those who come later learn from the turn that they have landed.
//% end
static __device__ __forceinline__ void take_turn(const consumer &c) {
  //% if taking_turns then
  bar_sync(TURN + c.warpgroup, 256);
  //% end
}
//% if taking_turns and not turns_at_products then
// A sum of exponentials is never negative, which the compiler does not know. It would move exponentials behind an
// arrival that does not depend on them.
//% end
static __device__ __forceinline__ void pass_turn(const consumer &c) {
  //% if taking_turns and not turns_at_products then
  const int never = vote_any(c.rows.sum[0][0] < 0.0f || c.rows.sum[0][1] < 0.0f);
  bar_arrive(TURN + (c.warpgroup + 1) % WARPGROUPS + never, 256);
  //% elseif taking_turns then
  bar_arrive(TURN + (c.warpgroup + 1) % WARPGROUPS, 256);
  //% end
}
static __device__ __forceinline__ void wait_for(const consumer &c, int full, const ring<STAGES> &ring) {
  //% if taking_turns and turns_at_products then
  if (c.warpgroup > 0) return;
  //% end
  mbar_wait(c.shared + full + 8 * ring.stage(), ring.parity());
}

// Q K^T starts.
static __device__ __forceinline__ void issue_scores(consumer &c, $(query_parameter)) {
  wait_for(c, K_FULL, c.keys);
  //% if turns_at_products then
  take_turn(c);
  //% end
  //% if mask.walk then
  c.tile.word = hear(KEYS_TOLD, c.keys);
  //% end
  wgmma_fence();
  multiply_query_key(c.scores, query, key_descriptor(c.shared, c.keys.stage()));
  wgmma_commit();
}

// P V of the tile before starts.
static __device__ __forceinline__ void issue_output(consumer &c) {
  wgmma_fence();
  //% if p_shared then
  const unsigned long long probability = probability_descriptor(c.shared, c.warpgroup);
  multiply_probability_value(c.output, probability, value_descriptor(c.shared, c.values.stage()));
  //% else
  multiply_probability_value(c.output, c.probabilities, value_descriptor(c.shared, c.values.stage()));
  //% end
  wgmma_commit();
}

// The products have been waited for: their results may be touched, their stages filled again.
static __device__ __forceinline__ void take_scores(consumer &c) {
  keep(c.scores);
  //% if mask.walk and layout.parts == 0 then
  warp_sync(); // every lane knows what was told of the tile
  if (c.lane == 0) mbar_arrive(c.shared + K_EMPTY + 8 * c.keys.stage());
  c.keys.advance();
  //% elseif layout.parts == 0 then
  if (c.leader) $(arrive)(c.shared + K_EMPTY + 8 * c.keys.stage()$(at));
  c.keys.advance();
  //% end
}
static __device__ __forceinline__ void take_output(consumer &c) {
  keep(c.output);
  if (c.leader) $(arrive)(c.shared + V_EMPTY + 8 * c.values.stage()$(at));
  c.values.advance();
}

// A work's rows are done: the last division, LSE, and the output leaves.
static __device__ __forceinline__ void leave(
    consumer &c, const qkv_params &p, const row_work &work, const row_state &rows) {
  finish_rows(p, c.output, rows, work.warp_row, work.h, work.b, c.lane$(also));
  //% if layout.store then
  store_output(p, c.output, c.shared + $(layout.alias and "c.queries.stage() * Q_BYTES" or "O_OFFSET"), warp_row(c),
               work.warp_row, work.h, work.b, c.lane$(also));
  //% else
  store_output(p, c.output, work.warp_row, work.h, work.b, c.lane$(also));
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

//% if mask.walk then
// The tile of Q is there: whether its rows see any tile of keys.
static __device__ __forceinline__ bool await_rows(const consumer &c) {
  mbar_wait(c.shared + Q_FULL + 8 * c.queries.stage(), c.queries.parity());
  return hear(ROWS_TOLD, c.queries) != 0;
}

//% end
//% if query_in_registers then
// The warp's rows of Q move to its registers$(layout.alias and "" or ": the next tile's may take their place").
static __device__ __forceinline__ void take_query(consumer &c, query_fragments &query) {
  mbar_wait(c.shared + Q_FULL + 8 * c.queries.stage(), c.queries.parity());
  fetch_query(query, c.shared, c.queries.stage(), warp_row(c), c.lane);
  //% if not layout.alias then
  release_query(c);
  //% end
}

//% end
// Products to probabilities.
static __device__ __forceinline__ void softmax(
    consumer &c, const qkv_params &p, const row_work &work, int tile, bool masked) {
  //% if score.shifts then
  float shift[ROW_TILES][2];
  //% end
  //% if score.shifts or not score.is_product then
  transform_scores(c.scores,$(shift) p, tile, work.warp_row, $(place), work.h, work.hk, work.b, c.lane);
  //% end
  //% if layout.parts > 0 then
  const unsigned char *parts = shared_arena() + PARTS_OFFSET + c.keys.stage() * KEY_PARTS * TILE_N * 4;
  if (masked) mask_scores(c.scores, p, parts, tile, work.warp_row, $(place), work.h, work.hk, work.b, c.lane);
  warp_sync(); // K has been multiplied; what the mask read beside it is no longer needed either
  if (c.lane == 0) mbar_arrive(c.shared + K_EMPTY + 8 * c.keys.stage());
  c.keys.advance();
  //% else
  if (masked) mask_scores(c.scores, p, tile, work.warp_row, $(place), work.h, work.hk, work.b, c.lane);
  //% end
  c.moved = move_references(c.scores,$(shift) c.rows, c.rescale);
  //% if turns_at_products then
  exponentiate(c.scores,$(shift) c.rows);
  //% else
  take_turn(c);
  exponentiate(c.scores,$(shift) c.rows);
  pass_turn(c);
  //% end
}

//% if overlap == 0 then
// A tile: Q K^T, softmax and P V one after the other.
static __device__ __forceinline__ void step(
    consumer &c, const qkv_params &p, const row_work &work, $(query_parameter)$(tile_parameter)) {
  issue_scores(c, query);
  wgmma_wait_0();
  take_scores(c);
  softmax(c, p, work, $(tile_argument));
  round_probabilities($(rounded));
  if (c.moved) rescale_output(c.output, c.rescale);
  wait_for(c, V_FULL, c.values);
  issue_output(c);
  wgmma_wait_0();
  take_output(c);
}

// The first tile of a work.
static __device__ __forceinline__ void first_step(
    consumer &c, const qkv_params &p, const row_work &work, $(query_parameter)$(tile_parameter)) {
  clear_output(c.output);
  start_rows(c.rows);
  step(c, p, work, query$(mask.walk and "" or ", tile, masked"));
}
//% else
// The first tile of a work: no P V runs beside it.
static __device__ __forceinline__ void first_step(
    consumer &c, const qkv_params &p, const row_work &work, $(query_parameter)$(tile_parameter)) {
  clear_output(c.output);
  start_rows(c.rows);
  issue_scores(c, query);
  //% if turns_at_products then
  pass_turn(c);
  //% end
  wgmma_wait_0();
  take_scores(c);
  softmax(c, p, work, $(tile_argument));
  round_probabilities($(rounded));
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
// the work before (only where MAY_CROSS).$(softmax_waits)
template <bool MAY_CROSS> static __device__ __forceinline__ void step(
//% else
// Any other tile: its scores are multiplied while P V of the tile before is still running.$(softmax_waits)
static __device__ __forceinline__ void step(
//% end
    consumer &c, const qkv_params &p, const row_work &work, $(query_parameter)$(tile_parameter)) {
  issue_scores(c, query);
  //% if hidden_rescale then
  if (c.moved) rescale_output(c.output, c.rescale);
  //% end
  wait_for(c, V_FULL, c.values);
  issue_output(c);
  //% if overlap == 2 then
  wgmma_wait_0();
  take_scores(c);
  take_output(c);
  //% else
  pass_turn(c);
  wgmma_wait_1();
  take_scores(c);
  //% end
  //% if carry then
  const row_state done_rows = c.rows;
  if (MAY_CROSS && c.crossing) start_rows(c.rows);
  //% end
  softmax(c, p, work, $(tile_argument));
  //% if overlap == 1 then
  wgmma_wait_0();
  take_output(c);
  //% end
  //% if carry then
  if (MAY_CROSS && c.crossing) finish_crossing(c, p, done_rows);
  //% end
  round_probabilities($(rounded));
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
  issue_output(c);
  wgmma_wait_0();
  take_output(c);
}
//% end
