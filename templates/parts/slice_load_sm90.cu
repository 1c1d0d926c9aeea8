//%% Slices of K and V into the ring's swizzled panels by cp.async, by the producer's four warps; the queries by the
//%% consumers.
//% local place = library("split").place("work", "walk.slice")
//% local paged = variant.layout_kv == "paged"
//% local one_page = paged and variant.page_size % schedule.tile_n == 0 -- holds all keys of a slice
//% local loads = {
//%   {what = "keys", tensor = "k", row = "key_row", dim = "DIM_QK", panel = "K_PANEL"},
//%   {what = "values", tensor = "v", row = "value_row", dim = "DIM_V", panel = "V_PANEL"},
//% }
//% local k_padding, v_padding = variant.dim_qk % 16 > 0, variant.dim_v % 64 > 0
// Byte of 16-byte chunk `chunk` of a row in panels of so many bytes.
static __device__ __forceinline__ int chunk_at(int panel_bytes, int row, int chunk) {
  return chunk / 8 * panel_bytes + row * 128 + ((chunk % 8 ^ row % 8) << 4);
}

//% for _, load in ipairs(loads) do
// The warp's own $(load.what) of the slice `walk` is at, to shared memory at `to`. Past the end they are zero.
static __device__ __forceinline__ void load_$(load.what)(
    const qkv_params &p, const slice_walk &walk, unsigned to, int warp, int lane) {
  constexpr int CHUNKS = $(load.dim) / 8; // of 16 bytes in a row
  const work_item &work = walk.segment.work;
  const int key_begin = $(place) * TILE_N + warp * OWN_KEYS, valid = work.view.len_k - key_begin;
  //% if one_page then
  const unsigned short *from = p.$(load.tensor) + $(load.row)_of_page(p, walk.page, key_begin, work.hk);
  //% elseif not paged then
  const unsigned short *from = p.$(load.tensor) + $(load.row)(p, work.view, key_begin, work.hk);
  //% else
  // Every lane finds where a key's row begins, once, and the others ask it.
  const long long own = $(load.row)_of_page(p, walk.page, key_begin + min(lane, OWN_KEYS - 1), work.hk);
  const int own_low = (int)own, own_high = (int)(own >> 32);
  //% end
#pragma unroll
  for (int n = 0; n < (OWN_KEYS * CHUNKS + 31) / 32; ++n) {
    const int item = 32 * n + lane, row = item / CHUNKS, chunk = item % CHUNKS;
    //% if paged and not one_page then
    const long long start = (long long)shuffle_i32(own_high, row) << 32 | (unsigned)shuffle_i32(own_low, row);
    const unsigned short *from = p.$(load.tensor) + start;
    //% end
    if (OWN_KEYS * CHUNKS % 32 != 0 && row >= OWN_KEYS) break;
    //% local step = paged and not one_page and "" or "row * p." .. load.tensor .. "_stride_token + "
    cp_async_16_zfill(to + chunk_at($(load.panel), warp * OWN_KEYS + row, chunk), from + $(step)chunk * 8,
                      row < valid ? 16 : 0);
  }
}

//% end
// The producer's warps tell that the oldest untold copy has landed in its place.
static __device__ __forceinline__ void tell(unsigned shared, ring<PLACES> &landing, int &untold, int lane) {
  fence_proxy_async(); // wgmma reads what cp.async wrote
  warp_sync();
  if (lane == 0) mbar_arrive(shared + FULL + 8 * landing.stage());
  landing.advance();
  --untold;
}

//% if k_padding or v_padding then
// What products read beside the dimensions is zero in every place of the ring, once and for all: no copy goes there.
static __device__ __forceinline__ void zero_padding() {
  unsigned char *ring = shared_arena();
  for (int n = threadIdx.x % 128; n < STAGES * TILE_N; n += 128) {
    unsigned char *slice = ring + n / TILE_N * SLICE_BYTES;
    const int row = n % TILE_N;
    //% if k_padding then
    *(uint4 *)(slice + chunk_at(K_PANEL, row, DIM_QK / 8)) = make_uint4(0, 0, 0, 0);
    //% end
    //% if v_padding then
    for (int chunk = DIM_V / 8; chunk < 8 * DIM_TILES; ++chunk)
      *(uint4 *)(slice + K_BYTES + chunk_at(V_PANEL, row, chunk)) = make_uint4(0, 0, 0, 0);
    //% end
  }
}

//% end
// The rows' queries, by all consumers. What rows and dimensions the products read beyond is zero.
static __device__ __forceinline__ void load_queries(const qkv_params &p, const work_item &work) {
  constexpr int CHUNKS = (DIM_QK + 15) / 16 * 2;
  for (int item = threadIdx.x; item < TILE_M * CHUNKS; item += CONSUMERS) {
    const int tile_row = item / CHUNKS, chunk = item % CHUNKS;
    const packed_row row = {0, (unsigned)(work.row_begin + tile_row)};
    const bool exists = row.query() < work.view.len_q$(k_padding and " && chunk < DIM_QK / 8" or "");
    const unsigned short *from = p.q + query_row(p, work.view, row.query(), work.hk * GROUP + row.head()) + chunk * 8;
    *(uint4 *)(shared_arena() + Q_OFFSET + chunk_at(Q_PANEL, tile_row, chunk)) =
        exists ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async();
  bar_sync(ALL_CONSUMERS, CONSUMERS);
}
