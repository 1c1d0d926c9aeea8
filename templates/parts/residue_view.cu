//%% The tokens of one residue, numbered for themselves: a mask with `(q - k) % dilation == 0` lets only those see each
//%% other, so a tile holds tokens of one residue, and the rest of the mask is a mask of their numbers.
//% local view = library("attention").view(mask, variant)
//% local position = variant.align == "bottom_right" and "p.len_k - p.len_q" or "0"
// The queries and keys of one residue. Key n is token residue + n * $(view.dilation), query n is row first_row +
// n * $(view.dilation).
struct residue_view {
  int residue, first_row;
  int position; // the number, among the residue's positions, of query 0
  int len_q, len_k;
};

// Of the queries from row first_row on.
static __device__ __forceinline__ residue_view view_residue(const qkv_params &p, int first_row) {
  residue_view view;
  const int at = first_row + $(position); // the row's position in the KV sequence
  view.position = floor_div_i32(at, $(view.dilation));
  view.residue = floor_mod_i32(at, $(view.dilation));
  view.first_row = first_row;
  view.len_q = (p.len_q - first_row - 1) / $(view.dilation) + 1;
  view.len_k = p.len_k > view.residue ? (p.len_k - view.residue - 1) / $(view.dilation) + 1 : 0;
  return view;
}

// Tiles of `rows` queries of one residue, and how many residues have a query.
static __device__ __forceinline__ unsigned residue_tiles(const qkv_params &p, unsigned rows) {
  return ((unsigned)(p.len_q - 1) / $(view.dilation) + rows) / rows;
}
static __device__ __forceinline__ unsigned residue_count(const qkv_params &p) {
  return min($(view.dilation), p.len_q);
}
