//%% Fused attention forward for Hopper; see attention_forward_sm90.lua for the schedule and the layout.
//% local attention = library("attention")
//% local layout, budget = kernel.layout, kernel.layout.budget
//%
//%% Scores stay raw products when the only thing between them and the exponent is a positive factor; the factor then
//%% rides in the exponent's multiplication. Otherwise they are turned into exponents of 2 first.
//% local raw_scores = variant.score_is_identity and variant.softcap == 0 and variant.scale > 0
//% local bounded = mask.form == "rows"
//% local free_tiles = mask.form == "all" or (bounded and mask.exact)
//% local taking_turns = schedule.order == 1 and schedule.warpgroups > 1
//% local position = variant.align == "bottom_right" and "p.len_k - p.len_q" or "0"
//% local hidden_rescale = schedule.rescale == 1
//% -- Whose turn comes later is told by the turn that the copies have landed.
//% local first_waits = taking_turns and "if (warpgroup == 0) " or ""
//% local carry = schedule.carry == 1
//% local slab = "" -- where the warps' rows of O leave from
//% if layout.store then
//%   slab = "shared + " .. (layout.alias and "query_ring.stage() * Q_BYTES" or "O_OFFSET") .. ", tile_row, "
//% end
//% header()

constexpr int HEADS_Q = $(variant.heads_q);
constexpr int GROUP = $(variant.group); // query heads per KV head
constexpr int DIM_QK = $(variant.dim_qk);
constexpr int DIM_V = $(variant.dim_v);
//% if variant.softcap > 0 then
constexpr float SOFTCAP = $(f32(variant.softcap));
constexpr float SCALE = $(f32(variant.scale / variant.softcap)); // scale / softcap
//% elseif raw_scores then
constexpr float EXP2_SCALE = $(f32(variant.scale * attention.log2e)); // scale log2(e)
//% else
constexpr float SCALE = $(f32(variant.scale));
//% end

constexpr int WARPGROUPS = $(schedule.warpgroups); // consumers; each owns 64 query rows
constexpr int TILE_M = 64 * WARPGROUPS;
constexpr int TILE_N = $(schedule.tile_n); // keys of a tile
constexpr int STAGES = $(schedule.stages);
constexpr int Q_BUFFERS = $(schedule.q_buffers);
constexpr int THREADS = 128 * (WARPGROUPS + 1);

constexpr int ROW_TILES = 1;             // 16-row tiles of a warp
constexpr int N_TILES = TILE_N / 8;      // 8-key columns of the scores
constexpr int V_TILES = DIM_V / 8;       // 8-wide columns of the output
constexpr int QK_STEPS = $(ceil_div(variant.dim_qk, 16)); // steps of 16 along the head dimension in Q K^T
constexpr int PV_STEPS = TILE_N / 16;    // steps of 16 keys in P V

// Shared memory. A matrix lies in panels of columns, one below the other; a row of a panel is as long as the swizzle.
constexpr int QK_WIDTH = $(layout.qk.width), QK_PANELS = $(layout.qk.count), QK_ROW_BYTES = $(layout.qk.bytes);
constexpr int V_WIDTH = $(layout.v.width), V_PANELS = $(layout.v.count), V_ROW_BYTES = $(layout.v.bytes);
constexpr int Q_PANEL = TILE_M * QK_ROW_BYTES, K_PANEL = TILE_N * QK_ROW_BYTES; // bytes
constexpr int V_PANEL = TILE_N * V_ROW_BYTES;
constexpr int Q_BYTES = $(layout.q_bytes);
constexpr int K_BYTES = QK_PANELS * K_PANEL, V_BYTES = V_PANELS * V_PANEL; // of a stage
constexpr int K_OFFSET = Q_BUFFERS * Q_BYTES;
constexpr int V_OFFSET = K_OFFSET + STAGES * K_BYTES;
//% if layout.store then
constexpr int O_PANEL = TILE_M * V_ROW_BYTES;
//% if not layout.alias then
constexpr int O_OFFSET = $(layout.o_offset);
//% end
//% end

// mbarriers: a full one counts the producer and its bytes, an empty one those who are done.
constexpr int Q_FULL = $(layout.barriers), Q_EMPTY = Q_FULL + 8 * Q_BUFFERS;
constexpr int K_FULL = Q_EMPTY + 8 * Q_BUFFERS, K_EMPTY = K_FULL + 8 * STAGES;
constexpr int V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES;
//% if layout.tickets > 0 then
constexpr int TICKETS = $(layout.tickets); // work numbers on their way from the producer to the consumers
constexpr int TICKET_FULL = V_EMPTY + 8 * STAGES, TICKET_EMPTY = TICKET_FULL + 8 * TICKETS;
constexpr int TICKET_OFFSET = $(layout.ticket_offset);
//% end

//% if taking_turns or layout.alias then
// Named barriers, one for each consumer warpgroup.
//%   if taking_turns then
constexpr int TURN = 1;
//%   end
//%   if layout.alias then
constexpr int ROWS_DONE = 4;
//%   end
//% end

//% primitives()

//% pieces()

//% include "parts/tile_range.cu"

//% include "parts/ring_sm90.cu"

//% include "parts/tile_order_sm90.cu"

//% include "parts/tile_load_sm90.cu"

//% include "parts/tile_mma_sm90.cu"

//% include "parts/tile_softmax.cu"

//% include "parts/tile_store_sm90.cu"

// One thread fetches the tiles of Q, K and V that the consumers will ask for, in their order.
static __device__ __forceinline__ void produce(const qkv_params &p, unsigned shared) {
  ring<Q_BUFFERS> query_ring;
  ring<STAGES> key_ring, value_ring;
  work_queue queue;
  for (unsigned number; (number = hand_out_work(p, shared, queue)) < work_count(p);) {
    const work_item work = work_of(p, number);
    const int hk = work.h / GROUP;
    const tile_range tiles = visible_tiles(p, work.row_begin, $(position), work.h, hk, work.b);
    const bool any = tiles.begin < tiles.end;
    if (any) load_key(p, shared, key_ring, tiles.end - 1, hk, work.b);
    load_query(p, shared, query_ring, work.row_begin, work.h, work.b);
    for (int tile = tiles.end - 2; tile >= tiles.begin; --tile) {
      load_key(p, shared, key_ring, tile, hk, work.b);
      load_value(p, shared, value_ring, tile + 1, hk, work.b);
    }
    ask_for_work(p, queue);
    if (any) load_value(p, shared, value_ring, tiles.begin, hk, work.b);
  }
}

//%% Scores of `tile`, still raw products, to what the softmax takes. masked: a Lua condition, or the text of one in CUDA.
//% local function prepare_scores(masked)
      //% if not raw_scores then
      transform_scores(scores, p, tile, warp_row, position, work.h, hk, work.b, lane);
      //% end
      //% if type(masked) == "string" then
      if ($(masked))
        mask_scores(scores, p, tile, warp_row, position, work.h, hk, work.b, lane);
      //% elseif masked then
      mask_scores(scores, p, tile, warp_row, position, work.h, hk, work.b, lane);
      //% end
//% end
//%% One step of a consumer: the scores of `tile` are multiplied while P V of the tile before it is still running. With
//%% `may_cross`, that tile may be the last one of the work before.
//% local function step(masked, may_cross)
      $(first_waits)mbar_wait(shared + K_FULL + 8 * key_ring.stage(), key_ring.parity());
      //% if taking_turns then
      bar_sync(TURN + warpgroup, 256);
      //% end
      wgmma_fence();
      multiply_query_key(scores, query, key_descriptor(shared, key_ring.stage()));
      wgmma_commit();
      //% if hidden_rescale then
      if (moved) rescale_output(output, rescale);
      //% end
      $(first_waits)mbar_wait(shared + V_FULL + 8 * value_ring.stage(), value_ring.parity());
      //% if hidden_rescale then
      wgmma_fence();
      //% end
      multiply_probability_value(output, probabilities, value_descriptor(shared, value_ring.stage()));
      wgmma_commit();
      //% if taking_turns then
      bar_arrive(TURN + (warpgroup + 1) % WARPGROUPS, 256);
      //% end
      wgmma_wait_1();
      keep(scores);
      if (leader) mbar_arrive(shared + K_EMPTY + 8 * key_ring.stage());
      key_ring.advance();
      //% if may_cross then
      const row_state done_rows = rows;
      if (crossing) start_rows(rows);
      //% end
      //% prepare_scores(masked)
      moved = move_references(scores, rows, rescale);
      exponentiate(scores, rows);
      wgmma_wait_0();
      keep(output);
      if (leader) mbar_arrive(shared + V_EMPTY + 8 * value_ring.stage());
      value_ring.advance();
      //% if may_cross then
      if (crossing) { // the output is that of the work before
        finish_rows(p, output, done_rows, done_row, done.h, done.b, lane);
        store_output(p, output, $(slab)done_row, done.h, done.b, lane);
        clear_output(output);
        crossing = moved = false;
      }
      //% end
      round_probabilities(probabilities, scores);
      //% if not hidden_rescale then
      if (moved) rescale_output(output, rescale);
      //% end
//% end
//%
//% local edge = "tile >= tiles.free_end"
//% if bounded and mask.low_count > 0 then edge = "tile < tiles.free_begin || " .. edge end
//% local first_masked = not free_tiles or edge
// A warpgroup's 64 rows of every tile.
static __device__ __forceinline__ void consume(const qkv_params &p, unsigned shared, int warpgroup) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool leader = threadIdx.x % 128 == 0; // the warpgroup's thread that returns stages
  const int tile_row = 64 * warpgroup + 16 * warp; // the warp's first row in a tile of rows
  const int position = $(position); // of query row 0 in the KV sequence
  ring<Q_BUFFERS> query_ring;
  ring<STAGES> key_ring, value_ring;
  work_queue queue;
  //% if taking_turns then
  if (warpgroup == WARPGROUPS - 1) bar_arrive(TURN, 256); // the first turn is warpgroup 0's
  //% end

  unsigned number = take_work(p, shared, queue, lane);
  while (number < work_count(p)) {
    work_item work = work_of(p, number);
    int hk = work.h / GROUP, warp_row = work.row_begin + tile_row;
    tile_range tiles = visible_tiles(p, work.row_begin, position, work.h, hk, work.b);

    float scores[ROW_TILES][N_TILES][4];
    float output[ROW_TILES][V_TILES][4];
    row_state rows;
    unsigned probabilities[PV_STEPS][4];
    clear_output(output);
    start_rows(rows);

    mbar_wait(shared + Q_FULL + 8 * query_ring.stage(), query_ring.parity());
    if (tiles.begin < tiles.end) {
      unsigned long long query = query_descriptor(shared, query_ring.stage(), warpgroup);
      bool moved;
      float rescale[ROW_TILES][2];
      int tile = tiles.end - 1;

      // The last tile's scores, with no P V beside them yet.
      $(first_waits)mbar_wait(shared + K_FULL + 8 * key_ring.stage(), key_ring.parity());
      //% if taking_turns then
      bar_sync(TURN + warpgroup, 256);
      //% end
      wgmma_fence();
      multiply_query_key(scores, query, key_descriptor(shared, key_ring.stage()));
      wgmma_commit();
      //% if taking_turns then
      bar_arrive(TURN + (warpgroup + 1) % WARPGROUPS, 256);
      //% end
      wgmma_wait_0();
      keep(scores);
      if (leader) mbar_arrive(shared + K_EMPTY + 8 * key_ring.stage());
      key_ring.advance();
      //% prepare_scores(first_masked)
      moved = move_references(scores, rows, rescale);
      exponentiate(scores, rows);
      round_probabilities(probabilities, scores);
      moved = false; // there is no output yet
      --tile;

      //% if carry then
      bool crossing = false; // into the next work: its first scores beside the last P V of this one
      work_item done = work;
      int done_row = warp_row;
      for (;;) {
      //% end
      //% if free_tiles then
      //% local edges = bounded and mask.low_count > 0 and "edges" or "upper"
      //% if edges == "edges" then
      for (bool upper = true;; upper = false) {
      //% end
      //% if mask.form ~= "all" or carry then
      for (; $(carry and "crossing || " or "")tile >= $(edges == "edges" and "(upper ? max(tiles.begin, tiles.free_end) : tiles.begin)" or "max(tiles.begin, tiles.free_end)"); --tile) { // an edge
        //% step(carry and first_masked or true, carry)
      }
      //% end
      //% if edges == "edges" then
      if (!upper) break;
      //% end
      for (; tile >= $(bounded and "max(tiles.begin, tiles.free_begin)" or "tiles.begin"); --tile) { // every row sees every key
        //% step(false)
      }
      //% if edges == "edges" then
      }
      //% end
      //% else
      for (; $(carry and "crossing || " or "")tile >= tiles.begin; --tile) {
        //% step(true, carry)
      }
      //% end

      //% if not layout.alias then
      warp_sync();
      if (lane == 0) mbar_arrive(shared + Q_EMPTY + 8 * query_ring.stage());
      query_ring.advance();
      number = take_work(p, shared, queue, lane);
      //% end
      //% if carry then
      if (number >= work_count(p)) break;
      const work_item next = work_of(p, number);
      const tile_range next_tiles = visible_tiles(p, next.row_begin, position, next.h, next.h / GROUP, next.b);
      if (next_tiles.begin >= next_tiles.end) break;
      done = work, done_row = warp_row, crossing = true;
      work = next, hk = work.h / GROUP, warp_row = work.row_begin + tile_row;
      tiles = next_tiles, tile = tiles.end - 1;
      query = query_descriptor(shared, query_ring.stage(), warpgroup);
      mbar_wait(shared + Q_FULL + 8 * query_ring.stage(), query_ring.parity());
      }
      //% end

      // P V of the first tile.
      //% if hidden_rescale then
      if (moved) rescale_output(output, rescale);
      //% end
      mbar_wait(shared + V_FULL + 8 * value_ring.stage(), value_ring.parity());
      wgmma_fence();
      multiply_probability_value(output, probabilities, value_descriptor(shared, value_ring.stage()));
      wgmma_commit();
      wgmma_wait_0();
      keep(output);
      if (leader) mbar_arrive(shared + V_EMPTY + 8 * value_ring.stage());
      value_ring.advance();
    }
    //% if not layout.alias then
    else {
      if (lane == 0) mbar_arrive(shared + Q_EMPTY + 8 * query_ring.stage());
      query_ring.advance();
      number = take_work(p, shared, queue, lane);
    }
    //% end

    finish_rows(p, output, rows, warp_row, work.h, work.b, lane);
    //% if layout.alias then
    bar_sync(ROWS_DONE + warpgroup, 128); // the warpgroup no longer reads its rows of Q
    store_output(p, output, $(slab)warp_row, work.h, work.b, lane);
    if (lane == 0) {
      bulk_wait_read_0();
      mbar_arrive(shared + Q_EMPTY + 8 * query_ring.stage());
    }
    query_ring.advance();
    number = take_work(p, shared, queue, lane);
    //% else
    store_output(p, output, $(slab)warp_row, work.h, work.b, lane);
    //% end
  }
  //% if layout.store and not layout.alias then
  if (lane == 0) bulk_wait_read_0();
  //% end
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_kernel(const __grid_constant__ qkv_params p) {
  const unsigned shared = smem_addr(shared_arena());
  const int warpgroup = warp_uniform(threadIdx.x / 128); // 0 produces
  if (threadIdx.x == 0) {
    for (int n = 0; n < Q_BUFFERS; ++n) {
      mbar_init(shared + Q_FULL + 8 * n, 1);
      mbar_init(shared + Q_EMPTY + 8 * n, 4 * WARPGROUPS); // warps
    }
    for (int n = 0; n < STAGES; ++n) {
      mbar_init(shared + K_FULL + 8 * n, 1);
      mbar_init(shared + K_EMPTY + 8 * n, WARPGROUPS);
      mbar_init(shared + V_FULL + 8 * n, 1);
      mbar_init(shared + V_EMPTY + 8 * n, WARPGROUPS);
    }
    //% if layout.tickets > 0 then
    for (int n = 0; n < TICKETS; ++n) {
      mbar_init(shared + TICKET_FULL + 8 * n, 1);
      mbar_init(shared + TICKET_EMPTY + 8 * n, 4 * WARPGROUPS); // warps
    }
    //% end
    fence_mbar_init();
  }
  block_sync();
  if (warpgroup == 0) {
    registers_decrease_$(budget.producer)();
    if (threadIdx.x == 0) produce(p, shared);
  } else {
    registers_increase_$(budget.consumer)();
    consume(p, shared, warpgroup - 1);
  }
}

#ifdef QKV_EMU
QKV_EMU_ENTRY(qkv_kernel)
#endif
