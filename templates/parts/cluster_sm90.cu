//%% What the blocks of a cluster agree on: they walk through the same tiles of keys.
//% local queries = kernel.layout.packed and "TILE_QUERIES" or "TILE_M"
//% local view = library("attention").view(mask, variant)
//% if mask.form == "rows" then
// Tiles that the rows of some block of the cluster see. Free of the mask are those of this block's rows.
static __device__ __forceinline__ tile_range cluster_tiles(
    const qkv_params &p, int row_begin, $(view.parameter), int h, int hk, int b) {
  tile_range tiles = visible_tiles(p, row_begin, $(view.argument), h, hk, b);
  const int first = row_begin - cluster_rank() * $(queries);
  int begin = 0, end = 0;
  for (int rank = 0; rank < CLUSTER; ++rank) {
    const int rows = first + rank * $(queries);
    if (rows >= $(view.len_q)) break;
    const tile_range seen = visible_tiles(p, rows, $(view.argument), h, hk, b);
    if (seen.begin >= seen.end) continue;
    begin = end == 0 ? seen.begin : min(begin, seen.begin);
    end = max(end, seen.end);
  }
  tiles.begin = begin, tiles.end = end;
  return tiles;
}
//% else
// All rows see the same tiles.
static __device__ __forceinline__ tile_range cluster_tiles(
    const qkv_params &p, int row_begin, $(view.parameter), int h, int hk, int b) {
  return visible_tiles(p, row_begin, $(view.argument), h, hk, b);
}
//% end
