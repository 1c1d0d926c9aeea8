//%% Which tiles of keys the rows of a tile see, where those are several ranges (mask.walk "intervals"): numbered
//%% without the gaps between them, for parts/split_work.cu, which shares numbers out.
//% local attention = library("attention")
//% local view = attention.view(mask, variant)
//% local by_head = variant.mask_symbols.h -- the heads of a tile see different keys
//% local edge = attention.names(view, {first = "first", last = "last", h = by_head and "head" or "h", hk = "hk",
//%   b = "b", len_q = view.len_q, len_k = view.len_k})
//% local row_names = attention.names(view, {q = "row", h = edge.h, hk = "hk", b = "b", len_q = view.len_q,
//%   len_k = view.len_k})
//% local sides = {{name = "low", edge = "visit_begin", of = "min", start = view.len_k},
//%                {name = "high", edge = "visit_end", of = "max", start = "0"}}
constexpr int RANGES = $(mask.intervals);

// The tiles that hold every visible key, by numbers from begin up to end. They are of RANGES ranges, which ascend and
// have no tile in common; the last ones may be empty.
struct tile_range {
  int begin, end;
  int first[RANGES]; // the number of each range's first tile; begin of the first range
  int shift[RANGES]; // what makes a number of the range the tile's place among the keys
};

// The place of a tile among the sequence's.
static __device__ __forceinline__ int tile_place(const tile_range &tiles, int number) {
  int shift = tiles.shift[0];
#pragma unroll
  for (int n = 1; n < RANGES; ++n)
    if (number >= tiles.first[n]) shift = tiles.shift[n];
  return number + shift;
}

//% if view.sequences then
// Of the sequence's rows row_begin on.
//% else
// Of rows row_begin on; `position` is that of query row 0 in the KV sequence.
//% end
static __device__ __forceinline__ tile_range visible_tiles(
    const qkv_params &p, int row_begin, $(view.parameter), int h, int hk, int b) {
  const int first = row_begin + $(view.position);
  const int last = min(row_begin + TILE_QUERIES, $(view.len_q)) - 1 + $(view.position);
  int begin[RANGES], end[RANGES]; // of tiles that some row sees by each of the mask's intervals, which may overlap
  //% local indent = "  "
  //% if by_head then
#pragma unroll
  for (int n = 0; n < RANGES; ++n) begin[n] = $(view.len_k), end[n] = 0;
  for (int head = h; head < h + GROUP; ++head) {
  //%   indent = "    "
  //% end
  //% for n = 1, mask.intervals do
  //%   for _, side in ipairs(sides) do
  //%     local bound = side.edge .. "_" .. n
  //%     if mask.by_row[n][side.name] then
$(indent)int $(bound) = $(side.start);
$(indent)for (int row = first; row <= last; ++row)
$(indent)  $(bound) = $(side.of)($(bound), $(cuda_interval_side(n, side.name, row_names)));
  //%     else
$(indent)const int $(bound) = $(cuda_interval_edge(n, side.edge, edge));
  //%     end
  //%   end
  //%   if by_head then
    if (visit_end_$(n) > visit_begin_$(n))
      begin[$(n - 1)] = min(begin[$(n - 1)], visit_begin_$(n)), end[$(n - 1)] = max(end[$(n - 1)], visit_end_$(n));
  //%   else
  begin[$(n - 1)] = visit_begin_$(n), end[$(n - 1)] = visit_end_$(n);
  //%   end
  //% end
  //% if by_head then
  }
  //% end
#pragma unroll
  for (int n = 0; n < RANGES; ++n) {
    const bool empty = end[n] <= begin[n];
    begin[n] = empty ? 0 : begin[n] / TILE_N;
    end[n] = empty ? 0 : (end[n] + TILE_N - 1) / TILE_N;
  }
  tile_range tiles = {0, 0, {}, {}};
  int done = 0; // tiles before it are numbered
#pragma unroll
  for (int n = 0; n < RANGES; ++n) { // each time the next tile that is visited, and those up to the next gap, or less
    int from = 0x7fffffff, to = done;
#pragma unroll
    for (int m = 0; m < RANGES; ++m)
      if (end[m] > done) from = min(from, max(begin[m], done));
#pragma unroll
    for (int m = 0; m < RANGES; ++m)
      if (begin[m] <= from) to = max(to, end[m]);
    const int count = to > done ? to - from : 0; // 0 only behind the last range
    tiles.first[n] = tiles.end;
    tiles.shift[n] = count > 0 ? from - tiles.end : 0;
    tiles.end += count, done = to;
  }
  return tiles;
}
