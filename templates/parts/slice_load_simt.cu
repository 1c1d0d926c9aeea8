//%% A warp's slice of K and V, and its queries, from global memory into registers: a lane has the same chunks of 16
//%% bytes of every row, which are neighbours in memory among the lanes of a group.
//% local ctypes = {f16 = "unsigned short", bf16 = "unsigned short", f32 = "float", e4m3 = "unsigned char",
//%   e5m2 = "unsigned char"}
//% local ctype, ctype_q = ctypes[variant.dtype_kv], ctypes[variant.dtype_q]
//% local paged = variant.layout_kv == "paged"
//% local one_page = paged and variant.page_size % kernel.layout.tile_n == 0 -- holds all keys of a slice
//% local in_piece = variant.dtype_q == "f32" and 4 or 8 -- queries' elements in 16 bytes
//% local pieces = kernel.layout.chunk // in_piece -- of a lane's chunk of a row
//% local scaled = variant.kv_scale == "per_head"
//% local loads = {
//%   {name = "keys", what = "key", tensor = "k", row = "key_row", steps = "K_STEPS", chunks = "K_CHUNKS"},
//%   {name = "values", what = "value", tensor = "v", row = "value_row", steps = "V_STEPS", chunks = "V_CHUNKS"},
//% }
//% for _, load in ipairs(loads) do
//%   local stride = "p." .. load.tensor .. "_stride_token"
// The lane's part of the $(load.name) of the slice that `walk` is at. Past the end they are zero, so that what lies
// there never reaches a result.
static __device__ __forceinline__ void load_$(load.name)(
    const qkv_params &p, uint4 (&$(load.what))[KEYS][$(load.steps)], const slice_walk &walk, int lane) {
  if (!walk.more) return;
  const work_item &work = walk.segment.work;
  const int first_key = $(library("split").place("work", "walk.slice")) * TILE_N + lane / LANES;
  const int valid = work.view.len_k - first_key, chunk = lane % LANES;
  //% if one_page then
  const $(ctype) *from = p.$(load.tensor) + $(load.row)_of_page(p, walk.page, first_key, work.hk) + chunk * CHUNK;
  //% elseif not paged then
  const $(ctype) *from = p.$(load.tensor) + $(load.row)(p, work.view, first_key, work.hk) + chunk * CHUNK;
  //% end
#pragma unroll
  for (int n = 0; n < KEYS; ++n) {
    const int ahead = n * LANE_GROUPS; // of first_key
    //% if paged and not one_page then
    const int page = shuffle_i32(walk.page, ahead + lane / LANES);
    const $(ctype) *row =
        p.$(load.tensor) + $(load.row)_of_page(p, page, first_key + ahead, work.hk) + chunk * CHUNK;
    //% else
    const $(ctype) *row = from + ahead * $(stride);
    //% end
#pragma unroll
    for (int step = 0; step < $(load.steps); ++step)
      $(load.what)[n][step] =
          load_16_zfill(row + step * LANES * CHUNK, ahead < valid && step * LANES + chunk < $(load.chunks));
  }
}

//% end
//% if scaled then
// The lane's part of the rows' queries, times K's scale; zero for rows that the sequence does not have.
//% else
// The lane's part of the rows' queries; zero for rows that the sequence does not have.
//% end
static __device__ __forceinline__ void load_queries(
    const qkv_params &p, float (&query)[TILE_M][K_STEPS][CHUNK], const work_item &work, int lane) {
  constexpr int PIECE = $(in_piece); // elements in 16 bytes
  //% if scaled then
  const float k_scale = p.k_scale[work.hk * p.k_scale_stride_head];
  //% end
#pragma unroll
  for (int r = 0; r < TILE_M; ++r) {
    const packed_row row = {0, (unsigned)(work.row_begin + r)};
    const $(ctype_q) *from = p.q + query_row(p, work.view, row.query(), work.hk * GROUP + row.head());
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
      const int chunk = step * LANES + lane % LANES;
      const bool exists = row.query() < work.view.len_q && chunk < K_CHUNKS;
#pragma unroll
      for (int first = 0; first < CHUNK; first += PIECE) {
        const uint4 bits = exists ? *(const uint4 *)(from + chunk * CHUNK + first) : make_uint4(0, 0, 0, 0);
        float piece[PIECE];
        widen_$(variant.dtype_q)(piece, bits);
#pragma unroll
        for (int e = 0; e < PIECE; ++e) query[r][step][first + e] = piece[e]$(scaled and " * k_scale" or "");
      }
    }
  }
}
