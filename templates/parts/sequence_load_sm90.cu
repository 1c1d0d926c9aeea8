//%% Tiles of Q, K and V of sequences into shared memory, ring by ring. All lanes of a producer's warp call; a lane
//%% fetches one box of a tile of keys, which may lie in several pages; several warps may share its boxes. With rows K
//%% and V come otherwise (row_load_sm90.cu).
//% local ragged_q, kv, packed = variant.layout_q == "ragged", variant.layout_kv, kernel.layout.packed
//% local paged, boxes = kv == "paged", kernel.layout.boxes
//% local query_bytes = packed and "QK_PANELS * TILE_ROWS * QK_ROW_BYTES" or "QK_PANELS * Q_PANEL"
//% local queries = packed and "TILE_QUERIES" or "TILE_M"
//% local token, outer = "k + rows", ", view.b"
//% if kv == "ragged" then token, outer = "view.first_k + k + rows", ""
//% elseif paged then token, outer = "k % PAGE + rows", ", page" end
//% local rows_of_query = ragged_q and queries .. " - rows, view.first_q + row_begin + rows, head" or
//%   "row_begin, head, view.b"
//% local several = schedule.loaders > 2
//% local copy = packed and "tma_load_5d" or "tma_load_4d"
// Boxes end where a sequence does. Their maps know a token as (row of the box, token): fetched at row ROWS - n and at
// token t + n, a box of ROWS rows begins with token t, and its rows from n on lie outside of the map and become zero.
// No box lies outside as a whole: for such a one the hardware looks at the map's base, which is before the tensor. So a
// tile is loaded only where it has a key, and its boxes behind the last key hold keys that have weights of zero there.

// The rows of a tile of Q into its ring, once the place is free.
static __device__ __forceinline__ void load_query(
    const qkv_params &p, unsigned shared, ring<Q_BUFFERS> &ring, int row_begin, int head, const sequence_view &view,
    int lane) {
  const unsigned full = shared + Q_FULL + 8 * ring.stage(), to = shared + ring.stage() * Q_BYTES;
  if (lane == 0) {
    //% if ragged_q then
    const int rows = clamp_length(view.len_q - row_begin, $(queries));
    //% end
    mbar_wait(shared + Q_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);
    mbar_arrive_expect_tx(full, $(query_bytes));
#pragma unroll
    for (int panel = 0; panel < QK_PANELS; ++panel)
      $(copy)(to + panel * Q_PANEL, &p.q_map, full,
                  panel * QK_WIDTH, $(packed and "0, " or "")$(rows_of_query));
  }
  ring.advance();
}

//% local loads = {{name = "key", letter = "K", tensor = "k", dim = "QK"},
//%                {name = "value", letter = "V", tensor = "v", dim = "V"}}
//% local map_rank = kv == "ragged" and "4d" or "5d"
//% if kernel.layout.rows then loads = {} end
//% for _, load in ipairs(loads) do
//%   local letter, dim = load.letter, load.dim
//%   if boxes > 1 then
// A tile of $(letter) into its ring, once the place is free: each thread its box.
//%   else
// A tile of $(letter) into its ring, once the place is free.
//%   end
static __device__ __forceinline__ void load_$(load.name)(
    const qkv_params &p, unsigned shared, ring<STAGES> &ring, int tile, int head, const sequence_view &view, int box) {
  const unsigned full = shared + $(letter)_FULL + 8 * ring.stage();
  //% if boxes > 1 then
  const unsigned to = shared + $(letter)_OFFSET + ring.stage() * $(letter)_BYTES + box * BOX_ROWS * $(dim)_ROW_BYTES;
  const int first = tile * TILE_N, own = first + box * BOX_ROWS;
  const int k = box < BOXES && own < view.len_k ? own : first; // behind the last key: the tile's first box again
  const int rows = min(view.len_k - k, BOX_ROWS);
  //% else
  const unsigned to = shared + $(letter)_OFFSET + ring.stage() * $(letter)_BYTES;
  const int k = tile * TILE_N, rows = min(view.len_k - k, BOX_ROWS);
  //% end
  //% if paged then
  const int page = key_page(view, k); // the answer arrives while the place is waited for
  //% end
  //% if boxes > 1 then
  mbar_wait(shared + $(letter)_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);
  //%   if several then
  // Boxes of other warps may land before: the phase lasts until this arrival.
  //%   end
  if (box == 0) mbar_arrive_expect_tx(full, $(letter)_BYTES); // what a box fills with zeros counts, too
  warp_sync();
  if (box < BOXES) {
  //% else
  if (box == 0) {
    mbar_wait(shared + $(letter)_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);
    mbar_arrive_expect_tx(full, $(letter)_BYTES); // what a box fills with zeros counts, too
  //% end
#pragma unroll
    for (int panel = 0; panel < $(dim)_PANELS; ++panel)
      tma_load_$(map_rank)_evict_last(to + panel * $(letter)_PANEL, &p.$(load.tensor)_map, full,
                             panel * $(dim)_WIDTH, BOX_ROWS - rows, $(token), head$(outer));
  }
  ring.advance();
}

//% end
