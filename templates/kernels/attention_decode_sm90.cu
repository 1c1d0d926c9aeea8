//%% Attention of few queries, keys split over all blocks, by wgmma; see attention_decode_sm90.lua for the schedule.
//% local attention = library("attention")
//% local split = library("split")
//% local cluster = split.cluster(schedule)
//% local layout, budget = kernel.layout, kernel.layout.budget
//% local shift = score.shifts and " shift," or "" -- of argument lists
//% local tile, free_slices = split.place("work", "slice"), split.free_slices()
//% local bounded = mask.form == "rows"
//% local view = attention.view(mask, variant)
//% local scaled = variant.kv_scale == "per_head"
//% local at = view.also ~= "" and "work.view" or "position" -- an argument
//% local also = scaled and ", k_scale" or ""
//% local padded = variant.dim_qk % 16 > 0 or variant.dim_v % 64 > 0
//% header()

constexpr int HEADS_KV = $(variant.heads_kv);
constexpr int GROUP = $(variant.group); // query heads per KV head
constexpr int DIM_QK = $(variant.dim_qk);
constexpr int DIM_V = $(variant.dim_v);
//% include "parts/score_scale.cu"

constexpr int TILE_M = $(schedule.tile_m); // rows of a tile: queries times heads, heads innermost
//% if bounded or mask.walk == "intervals" then
constexpr int TILE_QUERIES = (TILE_M - 1) / GROUP + 2; // that a tile's rows may belong to
//% end
constexpr int TILE_N = $(schedule.tile_n); // keys of a slice
//% if variant.layout_kv == "paged" then
constexpr int PAGE = $(variant.page_size); // keys of a page
//% end
//% if schedule.split > 0 then
constexpr int PART = $(schedule.split // schedule.tile_n); // slices of a part: $(schedule.split) keys
//% end
constexpr int STAGES = $(schedule.stages);
constexpr int WARPGROUPS = $(schedule.warpgroups); // consumers, which take slices in turn
constexpr int KEY_WARPS = WARPGROUPS;  // who take slices in turn
constexpr int CONSUMERS = 128 * WARPGROUPS, THREADS = CONSUMERS + 128;
constexpr int OWN_KEYS = TILE_N / 4; // of a slice, those that a warp of the producer copies
constexpr int IN_FLIGHT = $(layout.in_flight); // copies of K or V behind the one that is waited for
//% include "parts/split_constants.cu"

constexpr int KEY_TILES = TILE_N / 64; // 64-key rows of S^T
constexpr int ROW_TILES = TILE_M / 8;  // 8-row columns of S^T and O^T
constexpr int DIM_TILES = $(layout.v_panels);  // 64-wide rows of O^T

// Shared memory: a ring of slices of K and V, Q, every warpgroup's P, then where warps and warpgroups meet. A matrix
// lies in panels of 64 columns, one below the other; a row of a panel has 128 bytes, which the swizzle mixes.
constexpr int K_PANEL = TILE_N * 128, V_PANEL = TILE_N * 128, Q_PANEL = TILE_M * 128, P_PANEL = TILE_M * 128; // bytes
constexpr int K_BYTES = $(layout.qk_panels) * K_PANEL, V_BYTES = DIM_TILES * V_PANEL; // of a slice
constexpr int SLICE_BYTES = K_BYTES + V_BYTES;
constexpr int Q_OFFSET = STAGES * SLICE_BYTES;
constexpr int P_OFFSET = $(layout.p_offset), P_BYTES = KEY_TILES * P_PANEL; // of a warpgroup
constexpr int COLUMNS_OFFSET = P_OFFSET + WARPGROUPS * P_BYTES;  // a number for every warp and row
constexpr int REFERENCES_OFFSET = COLUMNS_OFFSET + CONSUMERS / 32 * TILE_M * 4; // of every warpgroup and row
constexpr int STATES_OFFSET = REFERENCES_OFFSET + WARPGROUPS * TILE_M * 4; // of 8 rows of every warpgroup
constexpr int PANEL_OFFSET = STATES_OFFSET + WARPGROUPS * 8 * 8;
constexpr int PANEL_PITCH = $(layout.panel_pitch); // floats
constexpr int STAGED_ROWS = 8; // of a warpgroup, at a time

// mbarriers of the ring's places, K's and V's of the slices in turn: a full one counts the producer's warps, an empty
// one the warpgroup that took the slice.
constexpr int PLACES = 2 * STAGES;
constexpr int FULL = $(layout.barriers), EMPTY = FULL + 8 * PLACES;
//% if cluster then
constexpr int PARTS_BARRIERS = EMPTY + 8 * PLACES; // two of the cluster
constexpr int PARTS_OFFSET = PARTS_BARRIERS + 2 * 8; // states of the block's part
//% end

// Named barriers.
constexpr int ALL_CONSUMERS = 1, OWN_WARPGROUP = 2; // and those behind it

//% primitives()

//% pieces()

//% include "parts/packed_row.cu"

//% include(split.ranges())

//% include "parts/split_work.cu"

//% include "parts/ring_sm90.cu"

//% include "parts/slice_load_sm90.cu"

//% include "parts/slice_mma_sm90.cu"

//% include "parts/column_scores_sm90.cu"

//% include "parts/column_softmax_sm90.cu"

//% include "parts/split_merge.cu"

//% include "parts/split_merge_sm90.cu"

// Copies the slices of the block's work into the ring, K and V apart, and tells when they have landed. A place is
// filled again when its warpgroup has multiplied what it held.
static __device__ __forceinline__ void produce(const qkv_params &p, const block_share &share, unsigned shared) {
  const int warp = warp_uniform(threadIdx.x % 128 / 32), lane = threadIdx.x % 32;
  //% if padded then
  zero_padding();
  //% end
  const work_segment first = first_segment(p, share, lane);
  slice_walk ahead = start_slices(p, first, share, 0, lane);
  ring<PLACES> filling, landing;
  int untold = 0; // copies that have been issued, and nobody told of
  while (ahead.more) {
    const unsigned slice = shared + filling.stage() / 2 * SLICE_BYTES;
    //% for _, what in ipairs{"keys", "values"} do
    mbar_wait(shared + EMPTY + 8 * filling.stage(), filling.parity() ^ 1);
    load_$(what)(p, ahead, slice$(what == "values" and " + K_BYTES" or ""), warp, lane);
    cp_async_commit();
    filling.advance();
    if (++untold > IN_FLIGHT) {
      cp_async_wait_$(layout.in_flight)();
      tell(shared, landing, untold, lane);
    }
    //% end
    next_slice(p, ahead, share, 0, 1, lane);
  }
  //% for left = layout.in_flight - 1, 0, -1 do
  if (untold > $(left)) {
    cp_async_wait_$(left)();
    tell(shared, landing, untold, lane);
  }
  //% end
  //% if cluster then
  cluster_wait(); // whoever arrives waits
  //% end
}

// One slice: S^T, softmax, O^T. It is the block's slice number `number`.
static __device__ __forceinline__ void take_slice(
    const qkv_params &p, unsigned shared, const work_item &work, int slice, unsigned number,
    float (&output)[DIM_TILES][ROW_TILES][4], row_state &rows$(scaled and ", float k_scale" or ""), int warpgroup) {
  const int h = work.hk * GROUP, stage = number % STAGES, parity = number / STAGES % 2;
  const packed_row first_row = {0, (unsigned)work.row_begin};
  const unsigned key = shared + stage * SLICE_BYTES, value = key + K_BYTES;
  const unsigned full = shared + FULL + 16 * stage, empty = shared + EMPTY + 16 * stage; // K's, then V's
  const unsigned probability = shared + P_OFFSET + warpgroup * P_BYTES;
  //% if not view.sequences then
  [[maybe_unused]] const int position = work.view.position;
  //% end

  float scores[KEY_TILES][ROW_TILES][4];
  mbar_wait(full, parity);
  wgmma_fence();
  multiply_key_query(scores, key, shared + Q_OFFSET);
  wgmma_commit();
  wgmma_wait_0();
  keep(scores);
  if (threadIdx.x % 128 == 0) mbar_arrive(empty);

  //% if scaled then
  scale_products(scores, k_scale);
  //% end
  //% if score.shifts then
  float shift[ROW_TILES][2];
  //% end
  //% if score.shifts or not score.is_product then
  transform_scores(scores,$(shift) p, $(tile), first_row, $(at), h, work.hk, work.b);
  //% end
  //% if free_slices then
  if ($(bounded and "slice < work.tiles.free_begin || " or "")slice >= work.tiles.free_end)
    mask_scores(scores, p, $(tile), first_row, $(at), h, work.hk, work.b);
  //% else
  mask_scores(scores, p, $(tile), first_row, $(at), h, work.hk, work.b);
  //% end
  float rescale[ROW_TILES][2];
  if (move_references(scores,$(shift) rows, rescale, warpgroup)) rescale_output(output, rescale);
  exponentiate(scores,$(shift) rows, warpgroup);
  round_probabilities(probability, scores);
  bar_sync(OWN_WARPGROUP + warpgroup, 128); // all of P is there

  mbar_wait(full + 8, parity);
  wgmma_fence();
  multiply_value_probability(output, value, probability);
  wgmma_commit();
  wgmma_wait_0();
  keep(output);
  if (threadIdx.x % 128 == 0) mbar_arrive(empty + 8);
}

// A warpgroup's slices of the block's work, and its part in the merges.
static __device__ __forceinline__ void consume(
    const qkv_params &p, const block_share &share, unsigned shared, int warpgroup) {
  const int lane = threadIdx.x % 32;
  work_segment segment = first_segment(p, share, lane);
  unsigned before = 0; // the block's slices before the segment
  //% if cluster then
  unsigned round = 0; // of parts that the blocks of the cluster add up
  //% end
  for (;;) {
    const work_item &work = segment.work;
    float output[DIM_TILES][ROW_TILES][4];
    row_state rows;
    clear_output(output);
    start_rows(rows, warpgroup);
    load_queries(p, work);
    //% if scaled then
    const float k_scale = p.k_scale[work.hk * p.k_scale_stride_head];
    //% end
    for (int slice = segment.begin + warpgroup; slice < segment.end; slice += WARPGROUPS)
      take_slice(p, shared, work, slice, before + (slice - segment.begin), output, rows$(also), warpgroup);
    merge(p, segment, $(cluster and "round" or "share"), output, rows, warpgroup, lane);
    if (is_last(segment, share)) break;
    before += segment.end - segment.begin;
    segment = next_segment(p, segment, share);
  }
  //% if cluster then
  release_peers(round);
  //% end
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_kernel(const __grid_constant__ qkv_params p) {
  const int warpgroup = warp_uniform(threadIdx.x / 128), lane = threadIdx.x % 32; // the last one produces
//% include "parts/early.cu"
  const block_share share = share_of_block(p, lane);
  if (share.begin >= share.end) return;
  const unsigned shared = smem_addr(shared_arena());
  if (threadIdx.x == 0)
    for (int place = 0; place < PLACES; ++place) {
      mbar_init(shared + FULL + 8 * place, 4);
      mbar_init(shared + EMPTY + 8 * place, 1);
    }
  //% if cluster then
  if (threadIdx.x == 0) init_part_barriers();
  cluster_arrive(); // waited for before the first merge
  //% end
  block_sync();
  if (warpgroup == WARPGROUPS) {
    //% if budget.moves then
    registers_decrease_$(budget.producer)();
    //% end
    produce(p, share, shared);
  } else {
    //% if budget.moves then
    registers_increase_$(budget.consumer)();
    //% end
    consume(p, share, shared, warpgroup);
  }
}
//% if schedule.merge == 1 then

//% include "parts/split_combine.cu"
//% end

#ifdef QKV_EMU
QKV_EMU_ENTRY(qkv_kernel)
//% if schedule.merge == 1 then
QKV_EMU_ENTRY(qkv_combine)
//% end
#endif
