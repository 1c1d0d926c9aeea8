//%% Fused attention forward for sm_80 and later; see attention_forward_sm80.lua for the schedule and the layout.
//% local attention = library("attention")
//% local layout = kernel.layout
//% local tile_memory = request.unaligned and "arena" or "shared" -- what the loads write through
//%
//% local shift = score.shifts and " shift," or "" -- of argument lists
//% local masked = mask.form ~= "all"
//% local bounded = mask.form == "rows"
//% local free_tiles = attention.free_tiles(mask)
//% local more = mask.walk and "more" or "next < tiles.end"
//% local view = attention.view(mask, variant)
//% local place = "row_begin, " .. view.argument .. ", h, hk, b"
//% header()

constexpr int HEADS_Q = $(variant.heads_q);
//% if mask.walk == "map" and not variant.mask_symbols.h and variant.mask_symbols.hk then
constexpr int HEADS_KV = $(variant.heads_kv);
//% end
constexpr int GROUP = $(variant.group); // query heads per KV head
constexpr int DIM_QK = $(variant.dim_qk);
constexpr int DIM_V = $(variant.dim_v);
//% if variant.layout_kv == "paged" then
constexpr int PAGE = $(variant.page_size); // tokens of a page
//% end
//% include "parts/score_scale.cu"

//% if tonumber(mask.dilation) then
constexpr int DILATION = $(mask.dilation); // tiles hold tokens of one residue modulo it
//% end
constexpr int TILE_M = $(schedule.tile_m); // query rows of the block
constexpr int TILE_N = $(schedule.tile_n); // keys of a tile
constexpr int STAGES = $(schedule.stages);
constexpr int WARPS = $(schedule.warps);
constexpr int THREADS = 32 * WARPS;
constexpr int BLOCKS_PER_SM = $(schedule.blocks);
constexpr int ROW_TILES = TILE_M / (16 * WARPS); // 16-row tiles of a warp

constexpr int QK_STEPS = $(layout.dim_qk // 16); // steps of 16 along the head dimension in Q K^T
constexpr int N_TILES = TILE_N / 8;      // 8-key columns of the scores
constexpr int V_TILES = DIM_V / 8;       // 8-wide columns of the output
constexpr int PITCH_Q = $(layout.pitch_q); // elements between rows in shared memory
constexpr int PITCH_K = $(layout.pitch_k);
constexpr int PITCH_V = $(layout.pitch_v);
constexpr int K_OFFSET = $(layout.k_offset);
constexpr int V_OFFSET = $(layout.v_offset);
constexpr int K_BYTES = TILE_N * PITCH_K * 2; // one stage
constexpr int V_BYTES = TILE_N * PITCH_V * 2;

//% primitives()

//% pieces()

//% if mask.dilation then
//%   include "parts/residue_view.cu"

//% end
//% if mask.walk then
//%   if mask.walk == "map" then
//%     include "parts/tile_map.cu"

//%   end
//%   include "parts/tile_walk.cu"
//% else
//%   include "parts/tile_range.cu"
//% end

//% include "parts/tile_load_sm80.cu"

//% include "parts/tile_mma_sm80.cu"

//% include "parts/tile_softmax.cu"

//% include "parts/tile_store_sm80.cu"

//% local bottom_right = variant.align == "bottom_right"
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) qkv_kernel(const __grid_constant__ qkv_params p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  //% if mask.dilation then
  // Which tile: rows of one head and residue are neighbours, so that they share K and V in L2.
  const int tiles_of_residue = residue_tiles(p, TILE_M), row_blocks = tiles_of_residue * residue_count(p);
  //% else
  // Which tile: rows of one head are neighbours, so that they share K and V in L2.
  const int row_blocks = (p.len_q + TILE_M - 1) / TILE_M;
  //% end
  //% if bounded and mask.high_count > 0 then
  const int row_block = row_blocks - 1 - blockIdx.x % row_blocks; // late rows see more keys: longest first
  //% else
  const int row_block = blockIdx.x % row_blocks;
  //% end
  const int h = blockIdx.x / row_blocks % HEADS_Q;
  const int b = blockIdx.x / row_blocks / HEADS_Q;
  const int hk = h / GROUP;
  //% if mask.dilation then
  const residue_view view = view_residue(p, row_block / tiles_of_residue);
  const int row_begin = row_block % tiles_of_residue * TILE_M;
  if (row_begin >= view.len_q) return; // other residues have a query more
  //% elseif view.sequences then
  const sequence_view view = view_sequence(p, b);
  const int row_begin = row_block * TILE_M;
  if (row_begin >= view.len_q) return; // other sequences are longer
  //% else
  const int row_begin = row_block * TILE_M;
  //% end
  //% if not view.sequences then

  //%   if bottom_right and not mask.dilation then
  const int position = p.len_k - p.len_q; // of query row 0 in the KV sequence
  //%   elseif not mask.dilation then
  const int position = 0; // of query row 0 in the KV sequence
  //%   end
  //% end

  //% if mask.walk then
  tile_walk walk = start_walk(p, $(place), lane), ahead = walk; // what is loaded is ahead
  //% else
  const tile_range tiles = visible_tiles(p, $(place));
  //% end

  unsigned char *arena = shared_arena();
  const unsigned shared = smem_addr(arena);
  const int warp_row = warp * 16 * ROW_TILES; // the warp's first row in the tile
  const int q_offset = warp_row * PITCH_Q * 2;
  //% if mask.dilation then
  const int first_row = view.first_row + row_begin * $(view.dilation);
  const unsigned short *query = p.q + b * p.q_stride_batch + h * p.q_stride_head + first_row * p.q_stride_token;
  const unsigned short *key = p.k + b * p.k_stride_batch + hk * p.k_stride_head + view.residue * p.k_stride_token;
  const unsigned short *value = p.v + b * p.v_stride_batch + hk * p.v_stride_head + view.residue * p.v_stride_token;
  //% elseif view.sequences then
  const unsigned short *query = p.q + query_row(p, view, row_begin, h);
  //%   if variant.layout_kv == "paged" then
  const unsigned short *key = p.k + hk * p.k_stride_head; // in page 0
  const unsigned short *value = p.v + hk * p.v_stride_head;
  //%   else
  const unsigned short *key = p.k + key_row(p, view, 0, hk);
  const unsigned short *value = p.v + value_row(p, view, 0, hk);
  //%   end
  //% else
  const unsigned short *query = p.q + b * p.q_stride_batch + h * p.q_stride_head + row_begin * p.q_stride_token;
  const unsigned short *key = p.k + b * p.k_stride_batch + hk * p.k_stride_head;
  const unsigned short *value = p.v + b * p.v_stride_batch + hk * p.v_stride_head;
  //% end

  //% if layout.dim_qk > variant.dim_qk then
  zero_padding(arena);
  //% end
  load_query(p, $(tile_memory), query, $(view.len_q) - row_begin);
  //% if mask.walk then
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (ahead.more()) {
      load_key_tile(p, $(tile_memory), key, ahead.tile(), stage$(view.also_argument));
      load_value_tile(p, $(tile_memory), value, ahead.tile(), stage$(view.also_argument));
      next_tile(p, ahead, $(place), lane);
    }
    cp_async_commit();
  }
  //% else
  for (int tile = tiles.begin; tile < tiles.begin + STAGES - 1; ++tile) {
    if (tile < tiles.end) {
      load_key_tile(p, $(tile_memory), key, tile, tile - tiles.begin$(view.also_argument));
      load_value_tile(p, $(tile_memory), value, tile, tile - tiles.begin$(view.also_argument));
    }
    cp_async_commit();
  }
  //% end

  float output[ROW_TILES][V_TILES][4];
  row_state rows;
  clear_output(output);
  start_rows(rows);
  //% if schedule.q_registers == 1 then
  unsigned query_fragments[ROW_TILES][QK_STEPS][4];
  //% end

  int stage = 0;
  //% if mask.walk then
  const bool empty = !walk.more();
  [[maybe_unused]] bool first_tile = true;
  for (; walk.more(); next_tile(p, walk, $(place), lane)) {
    const int tile = walk.tile();
  //% else
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
  //% end
    cp_async_wait_$(schedule.stages - 2)(); // this tile's copies, and Q's, have landed
    block_sync(); // for every thread; and everyone is done with the stage that is loaded next

    float scores[ROW_TILES][N_TILES][4];
    //% if schedule.q_registers == 1 then
    //%   if mask.walk then
    if (first_tile) load_query_fragments(query_fragments, shared + q_offset, lane);
    first_tile = false;
    //%   else
    if (tile == tiles.begin) load_query_fragments(query_fragments, shared + q_offset, lane);
    //%   end
    multiply_query_key(scores, query_fragments, shared + K_OFFSET + stage * K_BYTES, lane);
    //% else
    multiply_query_key(scores, shared + q_offset, shared + K_OFFSET + stage * K_BYTES, lane);
    //% end

    //% if mask.walk then
    const bool more = ahead.more();
    const int next = ahead.tile(), next_stage = stage == 0 ? STAGES - 1 : stage - 1;
    if (more) next_tile(p, ahead, $(place), lane);
    //% else
    const int next = tile + STAGES - 1, next_stage = stage == 0 ? STAGES - 1 : stage - 1;
    //% end
    if ($(more)) load_key_tile(p, $(tile_memory), key, next, next_stage$(view.also_argument));
    //% if schedule.split_loads == 0 then
    if ($(more)) load_value_tile(p, $(tile_memory), value, next, next_stage$(view.also_argument));
    cp_async_commit();
    //% end

    //% if score.shifts then
    float shift[ROW_TILES][2];
    //% end
    //% if score.shifts or not score.is_product then
    transform_scores(scores,$(shift) p, tile, row_begin + warp_row, $(view.argument), h, hk, b, lane);
    //% end
    //% if mask.walk then
    if (walk.masked()) mask_scores(scores, p, tile, row_begin + warp_row, $(view.argument), h, hk, b, lane);
    //% elseif free_tiles then
    if ($(bounded and "tile < tiles.free_begin || " or "")tile >= tiles.free_end)
      mask_scores(scores, p, tile, row_begin + warp_row, $(view.argument), h, hk, b, lane);
    //% else
    mask_scores(scores, p, tile, row_begin + warp_row, $(view.argument), h, hk, b, lane);
    //% end
    float rescale[ROW_TILES][2];
    if (move_references(scores,$(shift) rows, rescale)) rescale_output(output, rescale);
    exponentiate(scores,$(shift) rows);
    //% if schedule.split_loads == 1 then
    if ($(more)) load_value_tile(p, $(tile_memory), value, next, next_stage$(view.also_argument));
    cp_async_commit();
    //% end
    multiply_probability_value(output, scores, shared + V_OFFSET + stage * V_BYTES, lane);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }

  // Where nothing was waited for, Q must have landed before O takes its place.
  if ($(mask.walk and "empty" or "tiles.begin >= tiles.end")) {
    cp_async_wait_0();
    block_sync();
  }
  finish_rows(p, output, rows, row_begin + warp_row, h, b, lane$(view.also_argument));
  store_output(p, output, arena + q_offset, row_begin + warp_row, h, b, lane$(view.also_argument));
}

#ifdef QKV_EMU
//% if mask.walk == "map" then
QKV_EMU_ENTRY(qkv_plan_map)
//% end
QKV_EMU_ENTRY(qkv_kernel)
#endif
