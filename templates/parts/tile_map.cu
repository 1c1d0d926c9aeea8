//%% The map of tiles for masks that data decide: which tiles of keys a tile of rows must visit, and in which of them
//%% every row sees every key. Two words for every 32 tiles of keys. A warp of a block asks the box program about one
//%% tile of a word; what the program wants to know of tensors, its lanes look up together (summary.cuh).
//% local packed = kernel.layout.packed
//% local queries = packed and "TILE_QUERIES" or "TILE_M"
//% local symbols = variant.mask_symbols
//% local by_query_head = symbols.h and not packed
//% local heads = by_query_head and "HEADS_Q" or "HEADS_KV"
//% local by_head = symbols.h or symbols.hk
//% local position = variant.align == "bottom_right" and "p.len_k - p.len_q" or "0"
// Where the two words of 32 tiles of keys are, of a tile of rows.
static __device__ __forceinline__ long long map_index(const qkv_params &p, int row_tile, int word, int head, int b) {
  const int rows = (p.len_q + $(queries) - 1) / $(queries), words = (p.len_k + 32 * TILE_N - 1) / (32 * TILE_N);
  //% if by_head then
  const int outer = $(symbols.b and "b * " .. heads .. " + head" or "head");
  //% else
  const int outer = $(symbols.b and "b" or "0");
  //% end
  return ((long long)outer * rows + row_tile) * words + word;
}

extern "C" __global__ void __launch_bounds__(1024) qkv_plan_map(const __grid_constant__ qkv_params p) {
  const int warp = warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int rows = (p.len_q + $(queries) - 1) / $(queries), words = (p.len_k + 32 * TILE_N - 1) / (32 * TILE_N);
  const int word = blockIdx.x % words, row_tile = blockIdx.x / words % rows;
  [[maybe_unused]] const int outer = blockIdx.x / words / rows;
  //% if by_head then
  const int head = outer % $(heads);
  //%   if symbols.b then
  const int b = outer / $(heads);
  //%   end
  //%   if by_query_head then
  [[maybe_unused]] const int h = head, hk = head / GROUP;
  //%   else
  [[maybe_unused]] const int h = head * GROUP, hk = head;
  //%   end
  //% elseif symbols.b then
  const int b = outer;
  //% end
  const int position = $(position); // of query row 0 among the keys
  const int first = row_tile * $(queries) + position, last = min((row_tile + 1) * $(queries), p.len_q) - 1 + position;
  const int first_key = (32 * word + warp) * TILE_N, end_key = first_key + TILE_N;
  [[maybe_unused]] const int last_key = min(end_key, p.len_k) - 1;
  int found = 0; // 1: visited, 2: whole
  //% if not mask.has_box then
  // Nothing is known of tiles: all pairs are looked at until both answers are clear.
  bool some = false, all = end_key <= p.len_k;
  for (int q = first; q <= last && first_key < p.len_k; ++q) {
    [[maybe_unused]] const int i = q - position;
    //%   local indent = packed and symbols.h and "  " or ""
    //%   if packed and symbols.h then
    for (int one = h; one < h + GROUP; ++one)
    //%   end
    $(indent)for (int k = first_key + lane; k <= last_key; k += 32) {
      //% local names = {q = "q", k = "k", i = "i", h = packed and "one" or "h", hk = "hk", b = "b", len_q = "p.len_q",
      //%   len_k = "p.len_k"}
      $(indent)const bool sees = $(cuda_mask(names));
      $(indent)some |= sees, all &= sees;
    $(indent)}
    if (vote_any(some) && vote_any(!all)) break;
  }
  found = (vote_any(some) ? 1 : 0) | (vote_any(!all) ? 0 : 2);
  //% else
  if (first_key < p.len_k) {
    //% local box = cuda_box{q_first = "first", q_last = "last", k_first = "first_key", k_last = "last_key",
    //%   h_first = "h", h_last = packed and symbols.h and "h + GROUP - 1" or "h", hk = "hk", b = "b",
    //%   len_q = "p.len_q", len_k = "p.len_k"}
    //% for _, line in ipairs(box.lines) do
    $(line)
    //% end
    found = ($(box.may_be_true) ? 1 : 0) | (end_key <= p.len_k && !($(box.may_be_false)) ? 2 : 0);
  }
  //% end
  unsigned char *tiles = shared_arena();
  if (lane == 0) tiles[warp] = (unsigned char)found;
  block_sync();
  if (warp > 0) return;
  found = tiles[lane];
  const unsigned visited = vote_ballot(found & 1), whole = vote_ballot(found & 2);
  if (lane == 0) {
    const long long index = map_index(p, row_tile, word, $(by_head and "head" or "0"), $(symbols.b and "b" or "0"));
    unsigned *entry = p.map + 2 * index;
    entry[0] = visited, entry[1] = whole;
  }
}
