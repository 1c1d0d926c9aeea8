//%% Which tiles of keys the rows of a tile see, and in which of them every row sees every key.
//% local bounded = mask.form == "rows"
//% local attention = library("attention")
//% local free_tiles = attention.free_tiles(mask)
//% local packed = kernel.layout.packed
//% local queries = packed and "TILE_QUERIES" or "TILE_M"
//% local by_head = packed and variant.mask_symbols.h -- the heads of a tile see different keys
//% local view = attention.view(mask, variant)
//% local edge = attention.names(view, {first = "first", last = "last", h = by_head and "head" or "h", hk = "hk",
//%   b = "b", len_q = view.len_q, len_k = view.len_k})
//% local last_row = ("min(row_begin + %s, %s) - 1 + %s"):format(queries, view.len_q, view.position)
// Tiles from begin up to end hold every visible key.
//% if free_tiles then
// In tiles from free_begin up to free_end (which may lie before) every row sees every key.
//% end
struct tile_range {
  int begin, end;
  //% if free_tiles then
  int free_begin, free_end;
  //% end
};

//% if view.sequences then
// Of the sequence's rows row_begin on.
//% elseif not mask.dilation then
// Of rows row_begin on; `position` is that of query row 0 in the KV sequence.
//% else
// Of the residue's rows row_begin on.
//% end
static __device__ __forceinline__ tile_range visible_tiles(
    const qkv_params &p, int row_begin, $(view.parameter), int h, int hk, int b) {
  tile_range tiles;
  int key_begin = 0, key_end = $(view.len_k);
  //% if bounded then
  [[maybe_unused]] const int first = row_begin + $(view.position), last = $(last_row);
  //%   if by_head then
  // Visited is what some head sees, free of the mask what all of them see.
  key_begin = $(view.len_k), key_end = 0;
  //%     if mask.exact then
  int full_begin = 0, full_end = $(view.len_k);
  //%     end
  for (int head = h; head < h + GROUP; ++head) {
    key_begin = min(key_begin, max($(cuda_edge("visit_begin", edge)), 0));
    key_end = max(key_end, min($(cuda_edge("visit_end", edge)), $(view.len_k)));
    //%   if mask.exact then
    full_begin = max(full_begin, $(cuda_edge("full_begin", edge)));
    full_end = min(full_end, $(cuda_edge("full_end", edge)));
    //%   end
  }
  //%   else
  key_begin = max($(cuda_edge("visit_begin", edge)), 0);
  key_end = min($(cuda_edge("visit_end", edge)), $(view.len_k));
  //%   end
  //% elseif mask.form == "none" then
  key_end = 0;
  //% end
  tiles.begin = key_begin / TILE_N;
  tiles.end = key_end > key_begin ? (key_end + TILE_N - 1) / TILE_N : tiles.begin;
  //% if bounded and mask.exact and by_head then
  tiles.free_begin = (full_begin + TILE_N - 1) / TILE_N;
  tiles.free_end = max(full_end, 0) / TILE_N;
  //% elseif bounded and mask.exact then
  tiles.free_begin = (max($(cuda_edge("full_begin", edge)), 0) + TILE_N - 1) / TILE_N;
  tiles.free_end = max(min($(cuda_edge("full_end", edge)), $(view.len_k)), 0) / TILE_N;
  //% elseif free_tiles then
  tiles.free_begin = 0;
  tiles.free_end = $(view.len_k) / TILE_N;
  //% end
  return tiles;
}
