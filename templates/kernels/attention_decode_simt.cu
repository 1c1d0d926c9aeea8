//%% Attention of one or two rows, keys split over all blocks; see attention_decode_simt.lua for the schedule.
//% local attention = library("attention")
//% local split = library("split")
//% local cluster = split.cluster(schedule)
//% local layout = kernel.layout
//% local shift = score.shifts and " shift," or "" -- of argument lists
//% local free_slices = split.free_slices()
//% local bounded = mask.form == "rows"
//% local view = attention.view(mask, variant)
//% header()

constexpr int HEADS_KV = $(variant.heads_kv);
constexpr int GROUP = $(variant.group); // query heads per KV head
constexpr int DIM_QK = $(variant.dim_qk);
constexpr int DIM_V = $(variant.dim_v);
//% include "parts/score_scale.cu"

constexpr int TILE_M = $(schedule.tile_m); // rows of a tile: queries times heads, heads innermost
//% if bounded or mask.walk == "intervals" then
//%   local group, tile_m = variant.group, schedule.tile_m
//%   local queries = "(TILE_M - 1) / GROUP + 2"
//%   if group % tile_m == 0 then queries = "1" elseif tile_m % group == 0 then queries = "TILE_M / GROUP" end
constexpr int TILE_QUERIES = $(queries); // that a tile's rows may belong to
//% end
constexpr int LANES = $(schedule.lanes); // of a group, which share a key's row
constexpr int LANE_GROUPS = 32 / LANES; // of a warp
constexpr int KEYS = $(schedule.keys); // of a slice that a lane group has: every LANE_GROUPS-th
constexpr int TILE_N = LANE_GROUPS * KEYS; // keys of a slice
//% if variant.layout_kv == "paged" then
constexpr int PAGE = $(variant.page_size); // keys of a page
//% end
//% if schedule.split > 0 then
constexpr int PART = $(schedule.split // layout.tile_n); // slices of a part: $(schedule.split) keys
//% end
constexpr int WARPS = $(schedule.warps);
constexpr int KEY_WARPS = WARPS; // slices that a block works on at a time
constexpr int THREADS = 32 * WARPS;
constexpr int BLOCKS_PER_SM = $(schedule.blocks);
//% include "parts/split_constants.cu"

constexpr int CHUNK = $(layout.chunk); // elements of K and V in 16 bytes, which a lane has at a time
constexpr int K_CHUNKS = DIM_QK / CHUNK, V_CHUNKS = DIM_V / CHUNK; // of a row
constexpr int K_STEPS = (K_CHUNKS + LANES - 1) / LANES; // those of a lane: every LANES-th
constexpr int V_STEPS = (V_CHUNKS + LANES - 1) / LANES;

// Shared memory: where the warps' results meet.
constexpr int STAGED_ROWS = TILE_M; // of a warp
constexpr int STATES_OFFSET = 0;
constexpr int PANEL_OFFSET = $(layout.panel);
constexpr int PANEL_PITCH = DIM_V; // floats
//% if cluster then
constexpr int PARTS_BARRIERS = PANEL_OFFSET + WARPS * STAGED_ROWS * PANEL_PITCH * 4; // two of the cluster
constexpr int PARTS_OFFSET = PARTS_BARRIERS + 2 * 8; // states of the block's part
//% end

//% primitives()

//% pieces()

//% include "parts/packed_row.cu"

//% include(split.ranges())

//% include "parts/split_work.cu"

//% include "parts/slice_load_simt.cu"

//% include "parts/slice_products_simt.cu"

//% include "parts/slice_softmax_simt.cu"

//% include "parts/split_merge.cu"

//% include "parts/split_merge_simt.cu"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) qkv_kernel(const __grid_constant__ qkv_params p) {
//% include "parts/early.cu"
  const int warp = warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const block_share share = share_of_block(p, lane);
  if (share.begin >= share.end) return;
  //% if cluster then
  if (threadIdx.x == 0) init_part_barriers();
  cluster_arrive(); // waited for before the first merge
  unsigned round = 0; // of parts that the blocks of the cluster add up
  //% end

  work_segment segment = first_segment(p, share, lane);
  slice_walk ahead = start_slices(p, segment, share, warp, lane); // keys are loaded a slice ahead of their values
  uint4 key[KEYS][K_STEPS], value[KEYS][V_STEPS];
  load_keys(p, key, ahead, lane);

  for (;;) { // segments
    const work_item &work = segment.work;
    [[maybe_unused]] const int h = work.hk * GROUP;
    const sequence_view &view = work.view;
    //% if not view.sequences then
    [[maybe_unused]] const int position = view.position;
    //% end
    [[maybe_unused]] const packed_row first_row = {0, (unsigned)work.row_begin};
    float query[TILE_M][K_STEPS][CHUNK];
    load_queries(p, query, work, lane);
    float output[TILE_M][V_STEPS][CHUNK];
    row_state rows;
    clear_output(output);
    start_rows(rows);

    for (int slice = segment.begin + warp; slice < segment.end; slice += KEY_WARPS) {
      load_values(p, value, ahead, lane);
      next_slice(p, ahead, share, warp, KEY_WARPS, lane);
      float scores[TILE_M][KEYS];
      multiply_query_key(scores, query, key);
      load_keys(p, key, ahead, lane);

      const int first_key = $(split.place("work", "slice")) * TILE_N + lane / LANES; // of those the lane group has
      //% if score.shifts then
      float shift[TILE_M];
      //% end
      //% if score.shifts or not score.is_product then
      transform_scores(scores,$(shift) p, first_key, first_row, $(view.argument), h, work.hk, work.b);
      //% end
      //% if free_slices then
      if ($(bounded and "slice < work.tiles.free_begin || " or "")slice >= work.tiles.free_end)
        mask_scores(scores, p, first_key, first_row, $(view.argument), h, work.hk, work.b);
      //% else
      mask_scores(scores, p, first_key, first_row, $(view.argument), h, work.hk, work.b);
      //% end
      float rescale[TILE_M];
      if (move_references(scores,$(shift) rows, rescale)) rescale_output(output, rescale);
      exponentiate(scores,$(shift) rows);
      multiply_probability_value(output, scores, value);
    }
    merge(p, segment, $(cluster and "round" or "share"), output, rows, warp, lane);
    if (is_last(segment, share)) break;
    segment = next_segment(p, segment, share);
  }
  //% if cluster then
  release_peers(round);
  //% end
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
