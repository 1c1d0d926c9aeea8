//%% The order in which tiles of rows are handed out where bounds of the mask give none (scheduler = 3). Two launches
//%% plan it, a warp for each tile of rows of each class of heads and batch entries that the mask tells apart:
//%% qkv_plan_counts asks which tiles of keys it visits, qkv_plan_order how many tiles of rows come before it.
//%%
//%% Among the tiles of rows that share L2 those with the most tiles of keys come first. They share it when K and V of
//%% all that they reach fit: from the first key that one of them visits to the last. Not less, such as what the blocks
//%% in flight visit: neighbours in this order are neighbours in length, not in place, so a key comes again only after
//%% all tiles of rows of a length between. A head that reaches further is cut into stretches of rows, the last rows
//%% first; of heads that reach less, several go together.
//% local attention = library("attention")
//% local packed = kernel.layout.packed
//% local rows = packed and "TILE_QUERIES" or "TILE_M"
//% local symbols, view = variant.mask_symbols, attention.view(mask, variant)
//% local by_query_head = symbols.h and not packed
//% local by_head = symbols.h or symbols.hk
//% local heads = by_query_head and "HEADS_Q" or "HEADS_KV"
// What a tile of rows visits: so many tiles of keys, all from begin up to end.
struct tile_visits {
  int count, begin, end;
};

static __device__ __forceinline__ unsigned row_tiles(const qkv_params &p) {
  //% if mask.dilation then
  return residue_count(p) * residue_tiles(p, $(rows));
  //% else
  return (unsigned)(p.len_q + $(rows) - 1) / $(rows);
  //% end
}

extern "C" __global__ void __launch_bounds__(32) qkv_plan_counts(const __grid_constant__ qkv_params p) {
  const unsigned tiles = row_tiles(p), tile = blockIdx.x % tiles;
  //% if by_head or symbols.b then
  const int outer = (int)(blockIdx.x / tiles);
  //% end
  //% if by_head then
  const int head = outer % $(heads), b = $(symbols.b and "outer / " .. heads or "0");
  //%   if by_query_head then
  const int h = head, hk = head / GROUP;
  //%   else
  const int h = head * GROUP, hk = head;
  //%   end
  //% else
  const int h = 0, hk = 0, b = $(symbols.b and "outer" or "0"); // all heads see the same
  //% end
  //% if mask.dilation then
  const residue_view view = view_residue(p, (int)(tile % residue_count(p)));
  const int row_begin = (int)(tile / residue_count(p)) * $(rows);
  //% else
  const int position = $(variant.align == "bottom_right" and "p.len_k - p.len_q" or "0");
  const int row_begin = (int)tile * $(rows);
  //% end
  //% if mask.walk then
  const int lane = threadIdx.x;
  tile_visits visits = {0, 0x7fffffff, 0};
  tile_walk walk = start_walk(p, row_begin, $(view.argument), h, hk, b, lane);
  for (;;) { // a word, from the last to the first
    find_tiles(p, walk, row_begin, $(view.argument), h, hk, b, lane);
    if (!walk.more()) break;
    visits.count += population_count(walk.visited);
    visits.begin = 32 * walk.word + 31 - leading_zeros(walk.visited & -walk.visited);
    visits.end = max(visits.end, walk.tile() + 1);
    walk.visited = 0;
  }
  //% else
  const tile_range range = visible_tiles(p, row_begin, $(view.argument), h, hk, b);
  tile_visits visits = {range.end - range.begin, range.begin, range.end};
  if (visits.count == 0) visits.begin = 0x7fffffff, visits.end = 0;
  //% end
  if (threadIdx.x == 0) ((tile_visits *)p.tile_visits)[blockIdx.x] = visits;
}

// Keys from the first to the last that one of these tiles of rows visits, at least 1. All lanes.
static __device__ __forceinline__ long long reach_of(
    const qkv_params &p, const tile_visits *visits, unsigned tiles, unsigned lane) {
  int begin = 0x7fffffff, end = 0;
  for (unsigned n = lane; n < tiles; n += 32) begin = min(begin, visits[n].begin), end = max(end, visits[n].end);
  begin = warp_min_i32(begin), end = warp_max_i32(end);
  //% if mask.dilation then
  return end > begin ? (long long)(end - begin) * TILE_N * residue_count(p) : 1; // every residue has them
  //% else
  return end > begin ? (long long)(end - begin) * TILE_N : 1;
  //% end
}

// Tiles of rows of a class stand in the order of their stretches, from the last rows on. Those of a stretch begin with
// the one that visits the most tiles of keys, and of equals with the last.
extern "C" __global__ void __launch_bounds__(32) qkv_plan_order(const __grid_constant__ qkv_params p) {
  const unsigned lane = threadIdx.x, tiles = row_tiles(p), tile = blockIdx.x % tiles, before = blockIdx.x - tile;
  const tile_visits *all = (const tile_visits *)p.tile_visits, *visits = all + before;
  const unsigned stretches = (unsigned)((reach_of(p, visits, tiles, lane) + KEYS_IN_L2 - 1) / KEYS_IN_L2);
  const unsigned length = (tiles + stretches - 1) / stretches, from_end = (tiles - 1 - tile) / length * length;
  const unsigned end = tiles - from_end, begin = end > length ? end - length : 0;
  const int own = visits[tile].count;
  unsigned place = 0; // of the stretch
  for (unsigned n = begin; n < end; n += 32) {
    const unsigned other = n + lane;
    const int count = other < end ? visits[other].count : -1;
    place += population_count(vote_ballot(count > own || (count == own && other > tile)));
  }
  if (lane == 0) p.tile_order[before + from_end + place] = (int)tile;
  if (blockIdx.x > 0) return;
  const unsigned fit = max((unsigned)(KEYS_IN_L2 / reach_of(p, all, gridDim.x, lane)), 1u); // KV heads whose keys fit
  if (lane == 0) *p.heads_together = min($(packed and "fit, HEADS_KV" or "GROUP * fit, HEADS_Q") * (unsigned)p.batch);
}
