//%% Attention of few queries, keys split over all blocks; see attention_decode_sm80.lua for the schedule.
//% local attention = library("attention")
//% local split = library("split")
//% local layout = kernel.layout
//% local shift = score.shifts and " shift," or "" -- of argument lists
//% local tile = split.place("work", "slice")
//% local free_slices = split.free_slices()
//% local bounded = mask.form == "rows"
//% local several = schedule.row_warps > 1
//% local group, thread = several and "group" or "warp", several and "thread" or "lane" -- of those who share a slice
//% local view = attention.view(mask, variant)
//% local by_head = variant.mask_symbols.h or variant.mask_symbols.hk -- heads see different keys
//% local scaled = variant.kv_scale == "per_head"
//% local unscale = layout.bytes and variant.dtype_q == "bf16" -- queries in bf16 that become f16
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
constexpr int WARPS = $(schedule.warps);
constexpr int KEY_WARPS = $(schedule.warps // schedule.row_warps); // slices that a block works on at a time
constexpr int THREADS = 32 * WARPS;
constexpr int BLOCKS_PER_SM = $(schedule.blocks);
//% include "parts/split_constants.cu"
//% if several then
constexpr int ROW_WARPS = WARPS / KEY_WARPS; // that share a slice, each with rows of its own
constexpr int GROUP_THREADS = 32 * ROW_WARPS;
constexpr int ROW_TILES = TILE_M / (16 * ROW_WARPS); // 16-row tiles of a warp
//% else
constexpr int ROW_TILES = TILE_M / 16;   // 16-row tiles
//% end

constexpr int QK_STEPS = $(layout.dim_qk // 16); // steps of 16 along the head dimension in Q K^T
constexpr int N_TILES = TILE_N / 8;      // 8-key columns of the scores
constexpr int V_TILES = DIM_V / 8;       // 8-wide columns of the output

// Shared memory: KEY_WARPS rings of slices of K and V, then where the warps' results meet.
constexpr int PITCH_K = $(layout.pitch_k); // elements between rows in shared memory
constexpr int PITCH_V = $(layout.pitch_v);
//% if layout.bytes then
constexpr int K_BYTES = TILE_N * PITCH_K, V_BYTES = TILE_N * PITCH_V; // of a slice
//% else
constexpr int K_BYTES = TILE_N * PITCH_K * 2, V_BYTES = TILE_N * PITCH_V * 2; // of a slice
//% end
constexpr int SLICE_BYTES = K_BYTES + V_BYTES, RING_BYTES = STAGES * SLICE_BYTES;
constexpr int STATES_OFFSET = KEY_WARPS * RING_BYTES; // of 8 rows of every warp
constexpr int PANEL_OFFSET = STATES_OFFSET + WARPS * 8 * 8;
constexpr int PANEL_PITCH = $(layout.panel_pitch); // floats
constexpr int STAGED_ROWS = 8$(several and " * ROW_WARPS" or ""); // of the warps that share a slice, at a time

//% primitives()

//% pieces()

//% include "parts/packed_row.cu"

//% include(split.ranges())

//% include "parts/split_work.cu"

//% include "parts/slice_load_sm80.cu"

//% if unscale then
//% include "parts/query_f16_sm80.cu"

//% end
//% include(layout.bytes and "parts/slice_mma_bytes_sm80.cu" or "parts/tile_mma_sm80.cu")

//% include "parts/tile_softmax.cu"

//% include "parts/split_merge.cu"

//% include "parts/split_merge_sm80.cu"
//% if scaled or unscale then

//%   if unscale then
// The products of Q as it was scaled$(scaled and " and K as it is stored" or "") become those of Q and K.
static __device__ __forceinline__ void scale_products(
    float (&scores)[ROW_TILES][N_TILES][4], const float (&unscale)[ROW_TILES][2]) {
//%   else
// The products of K as it is stored become those of K.
static __device__ __forceinline__ void scale_products(float (&scores)[ROW_TILES][N_TILES][4], float k_scale) {
//%   end
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[r][n][e] *= $(unscale and "unscale[r][e / 2]" or "k_scale");
}
//% end

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) qkv_kernel(const __grid_constant__ qkv_params p) {
  const int warp = warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  //% if several then
  const int group = warp / ROW_WARPS, thread = threadIdx.x % GROUP_THREADS;
  //% end
//% include "parts/early.cu"
  const block_share share = share_of_block(p, lane);
  if (share.begin >= share.end) return;

  const unsigned ring = smem_addr(shared_arena()) + $(group) * RING_BYTES;
  //% if layout.dim_qk > variant.dim_qk then
  zero_padding(ring, $(thread));
  //% end
  work_segment segment = first_segment(p, share, lane);
  slice_walk ahead = start_slices(p, segment, share, $(group), lane); // what is loaded is ahead
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    load_slice(p, ahead, ring + stage * SLICE_BYTES, lane$(several and ", thread" or ""));
    next_slice(p, ahead, share, $(group), KEY_WARPS, lane);
    cp_async_commit();
  }

  int stage = 0;
  for (;;) { // segments
    const work_item &work = segment.work;
    const int h = work.hk * GROUP;
    const sequence_view &view = work.view;
    //% if not view.sequences then
    [[maybe_unused]] const int position = view.position;
    //% end
    //% if several then
    const packed_row first_row = {0, (unsigned)(work.row_begin + warp % ROW_WARPS * (16 * ROW_TILES))};
    //% else
    const packed_row first_row = {0, (unsigned)work.row_begin};
    //% end
    unsigned query[ROW_TILES][QK_STEPS][4];
    load_query_fragments(p, query, work, first_row, lane);
    float output[ROW_TILES][V_TILES][4];
    row_state rows;
    clear_output(output);
    start_rows(rows);
    //% if scaled then
    const float k_scale = p.k_scale[work.hk * p.k_scale_stride_head];
    //% end
    //% if unscale then
    float unscale[ROW_TILES][2];
    scale_queries(query, unscale$(scaled and ", k_scale" or ""));
    //% end

    for (int slice = segment.begin + $(group); slice < segment.end; slice += KEY_WARPS) {
      cp_async_wait_$(schedule.stages - 2)(); // this thread's part of the slice has landed
      //% if several then
      bar_sync(1 + group, GROUP_THREADS); // and the others'; all are done with the stage that is loaded next
      //% else
      warp_sync(); // and the other lanes'; all are done with the stage that is loaded next
      //% end
      const unsigned key = ring + stage * SLICE_BYTES, value = key + K_BYTES;
      const int next_stage = stage == 0 ? STAGES - 1 : stage - 1;
      load_slice(p, ahead, ring + next_stage * SLICE_BYTES, lane$(several and ", thread" or ""));
      next_slice(p, ahead, share, $(group), KEY_WARPS, lane);
      cp_async_commit();

      float scores[ROW_TILES][N_TILES][4];
      multiply_query_key(scores, query, key, lane);
      //% if scaled or unscale then
      scale_products(scores, $(unscale and "unscale" or "k_scale"));
      //% end
      //% if score.shifts then
      float shift[ROW_TILES][2];
      //% end
      //% if score.shifts or not score.is_product then
      transform_scores(scores,$(shift) p, $(tile), first_row, $(view.argument), h, work.hk, work.b, lane);
      //% end
      //% if free_slices then
      if ($(bounded and "slice < work.tiles.free_begin || " or "")slice >= work.tiles.free_end)
        mask_scores(scores, p, $(tile), first_row, $(view.argument), h, work.hk, work.b, lane);
      //% else
      mask_scores(scores, p, $(tile), first_row, $(view.argument), h, work.hk, work.b, lane);
      //% end
      float rescale[ROW_TILES][2];
      if (move_references(scores,$(shift) rows, rescale)) rescale_output(output, rescale);
      exponentiate(scores,$(shift) rows);
      multiply_probability_value(output, scores, value, lane);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    merge(p, segment, share, output, rows, warp, lane);
    if (is_last(segment, share)) break;
    segment = next_segment(p, segment, share);
  }
  cp_async_wait_0(); // nothing may land after the block
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
