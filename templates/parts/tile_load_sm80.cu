//%% Global to shared memory for the sm_80 forward: whole 16-byte chunks by cp.async, or element by element for tensors
//%% without 16-byte alignment. Rows past the end become zero, so that what lies there never reaches a result.
//% local loads = {
//%   {name = "load_query", tensor = "q", rows = "TILE_M", dim = "DIM_QK", pitch = "PITCH_Q"},
//%   {name = "load_key", tensor = "k", rows = "TILE_N", dim = "DIM_QK", pitch = "PITCH_K"},
//%   {name = "load_value", tensor = "v", rows = "TILE_N", dim = "DIM_V", pitch = "PITCH_V"},
//% }
//% local view = library("attention").view(mask, variant)
//% local pointer = request.unaligned and "unsigned char *" or "unsigned "
//% local paged = variant.layout_kv == "paged"
//% for _, load in ipairs(loads) do
//%   if not paged or load.tensor == "q" then
//%   local stride = view.stride("p." .. load.tensor .. "_stride_token")
// $(load.rows) rows of $(load.tensor) to byte `to` of shared memory, zeros from row `valid` on. A thread keeps to one
// column of 16-byte chunks.
static __device__ __forceinline__ void $(load.name)(
    const qkv_params &p, $(pointer)to, const unsigned short *from, int valid) {
  constexpr int CHUNKS = $(load.dim) / 8;            // of 16 bytes in a row
  constexpr int ROWS_AT_ONCE = THREADS / CHUNKS;
  const int column = threadIdx.x % CHUNKS * 8, first = threadIdx.x / CHUNKS;
  if (THREADS % CHUNKS != 0 && first >= ROWS_AT_ONCE) return;
  to += (first * $(load.pitch) + column) * 2;
  //% if request.unaligned then
  from += first * $(stride) + column * p.$(load.tensor)_stride_dim;
  //% else
  from += first * $(stride) + column;
  //% end
#pragma unroll
  for (int row = 0; row < $(load.rows); row += ROWS_AT_ONCE) {
    if (row + ROWS_AT_ONCE > $(load.rows) && first + row >= $(load.rows)) break;
    //% if request.unaligned then
    unsigned packed[4] = {0, 0, 0, 0};
    if (first + row < valid)
#pragma unroll
      for (int e = 0; e < 8; ++e) packed[e / 2] |= (unsigned)from[e * p.$(load.tensor)_stride_dim] << 16 * (e % 2);
    *(uint4 *)(to + row * $(load.pitch) * 2) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    //% else
    cp_async_16_zfill(to + row * $(load.pitch) * 2, from, first + row < valid ? 16 : 0);
    //% end
    from += ROWS_AT_ONCE * $(stride);
  }
}

//%   else
//%     local tensor, row = load.tensor, load.tensor == "k" and "key_row_of_page" or "value_row_of_page"
// TILE_N rows of $(tensor) from key key_begin on, page by page, to byte `to` of shared memory; `from` is where the KV
// head begins in page 0. A thread keeps to one column of 16-byte chunks. Rows behind the sequence's end are zero, and
// nothing there is looked at, of the page table neither.
static __device__ __forceinline__ void $(load.name)(
    const qkv_params &p, $(pointer)to, const unsigned short *from, int key_begin, const sequence_view &view) {
  constexpr int CHUNKS = $(load.dim) / 8;            // of 16 bytes in a row
  constexpr int ROWS_AT_ONCE = THREADS / CHUNKS;
  // From these rows on the next so many lie in one page: whole tiles, whole pages of a tile, or just one.
  constexpr bool WHOLE_PAGES = TILE_N % PAGE == 0 && PAGE % ROWS_AT_ONCE == 0;
  constexpr int ROWS_OF_PAGE = PAGE % TILE_N == 0 ? TILE_N : WHOLE_PAGES ? PAGE : 1;
  const int column = threadIdx.x % CHUNKS * 8, first = threadIdx.x / CHUNKS;
  if (THREADS % CHUNKS != 0 && first >= ROWS_AT_ONCE) return;
  to += (first * $(load.pitch) + column) * 2;
  //% if request.unaligned then
  from += column * p.$(tensor)_stride_dim;
  //% else
  from += column;
  //% end
  int page = 0;
#pragma unroll
  for (int row = 0; row < TILE_N; row += ROWS_AT_ONCE) {
    if (row + ROWS_AT_ONCE > TILE_N && first + row >= TILE_N) break;
    const int k = key_begin + first + row;
    const bool exists = k < view.len_k;
    if (exists && row % ROWS_OF_PAGE == 0) page = key_page(view, k);
    const unsigned short *element = exists ? from + $(row)(p, page, k, 0) : from;
    //% if request.unaligned then
    unsigned packed[4] = {0, 0, 0, 0};
    if (exists)
#pragma unroll
      for (int e = 0; e < 8; ++e) packed[e / 2] |= (unsigned)element[e * p.$(tensor)_stride_dim] << 16 * (e % 2);
    *(uint4 *)(to + row * $(load.pitch) * 2) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    //% else
    cp_async_16_zfill(to + row * $(load.pitch) * 2, element, exists ? 16 : 0);
    //% end
  }
}

//%   end
//% end
//% for _, load in ipairs{{"key", "k"}, {"value", "v"}} do
//%   local name, letter, bytes = load[1], load[2], load[2]:upper()
// One tile of $(bytes) into one stage of its ring.
static __device__ __forceinline__ void load_$(name)_tile(
    const qkv_params &p, $(pointer)shared, const unsigned short *$(name), int tile, int stage$(view.also)) {
  //% local stride = view.stride("p." .. letter .. "_stride_token")
  const int key_begin = tile * TILE_N;
  //% if paged then
  load_$(name)(p, shared + $(bytes)_OFFSET + stage * $(bytes)_BYTES, $(name), key_begin, view);
  //% else
  load_$(name)(p, shared + $(bytes)_OFFSET + stage * $(bytes)_BYTES, $(name) + key_begin * $(stride),
               $(view.len_k) - key_begin);
  //% end
}

//% end
//% if kernel.layout.dim_qk > variant.dim_qk then
// Q K^T multiplies 16 dimensions at a time; the 8 past DIM_QK are zero in Q and in every stage of K, once and for all.
static __device__ __forceinline__ void zero_padding(unsigned char *arena) {
  for (int row = threadIdx.x; row < TILE_M; row += THREADS)
    *(uint4 *)(arena + (row * PITCH_Q + DIM_QK) * 2) = make_uint4(0, 0, 0, 0);
  for (int row = threadIdx.x; row < STAGES * TILE_N; row += THREADS)
    *(uint4 *)(arena + K_OFFSET + (row * PITCH_K + DIM_QK) * 2) = make_uint4(0, 0, 0, 0);
}
//% end
