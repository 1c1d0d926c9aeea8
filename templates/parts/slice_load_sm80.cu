//%% A slice of K and V into its ring by cp.async, by the warps that share it; a warp's queries from global memory into
//%% registers.
//% local bytes = kernel.layout.bytes -- of which K and V consist
//% local ctype, chunk = bytes and "unsigned char" or "unsigned short", bytes and 16 or 8 -- elements of a copy
//% local neighbours = arch.number >= 89 -- K's bytes become operands by pairs of neighbours, else even and odd ones
//% local paged = variant.layout_kv == "paged"
//% local one_page = paged and variant.page_size % schedule.tile_n == 0 -- holds all keys of a slice
//% local several = schedule.row_warps > 1
//% local thread, threads = several and "thread" or "lane", several and "GROUP_THREADS" or "32"
//% local share = 32 * schedule.row_warps -- threads of a slice
//% local also = several and ", int thread" or ""
//% local loads = {
//%   {what = "keys", tensor = "k", row = "key_row", dim = "DIM_QK", pitch = "PITCH_K", offset = ""},
//%   {what = "values", tensor = "v", row = "value_row", dim = "DIM_V", pitch = "PITCH_V", offset = " + K_BYTES"},
//% }
// The slice `walk` is at, to shared memory from byte `to` on. Keys past the end become zero, so that what lies there
// never reaches a result.
static __device__ __forceinline__ void load_slice(
    const qkv_params &p, const slice_walk &walk, unsigned to, int lane$(also)) {
  if (!walk.more) return;
  const work_item &work = walk.segment.work;
  const int key_begin = $(library("split").place("work", "walk.slice")) * TILE_N, valid = work.view.len_k - key_begin;
  //% for _, load in ipairs(loads) do
  //%   local chunks = variant[load.dim:lower()] // chunk
  //%   local rows = share % chunks == 0 and share // chunks or 0 -- that a copy of all threads takes; 0: parts of them
  { // $(load.what)
    constexpr int CHUNKS = $(load.dim) / $(chunk); // of 16 bytes in a row
    //% if one_page then
    const $(ctype) *from = p.$(load.tensor) + $(load.row)_of_page(p, walk.page, key_begin, work.hk);
    //% elseif not paged then
    const $(ctype) *from = p.$(load.tensor) + $(load.row)(p, work.view, key_begin, work.hk);
    //% end
    //% if rows > 0 and schedule.tile_n % rows == 0 then
    constexpr int ROWS = $(threads) / CHUNKS; // that a copy of all $(several and "threads" or "lanes") takes
    const int row = $(thread) / CHUNKS, column = $(thread) % CHUNKS * $(chunk);
    //%   local place = "row * " .. load.pitch .. " + column"
    const unsigned place = to$(load.offset) + $(bytes and place or "(" .. place .. ") * 2");
    //%   if one_page or not paged then
    from += row * p.$(load.tensor)_stride_token + column;
    //%   end
#pragma unroll
    for (int n = 0; n < TILE_N / ROWS; ++n) {
      //%   if paged and not one_page then
      const int page = shuffle_i32(walk.page, row + n * ROWS);
      const $(ctype) *from =
          p.$(load.tensor) + $(load.row)_of_page(p, page, key_begin + row + n * ROWS, work.hk) + column;
      //%   end
      //%   local pitch = load.pitch .. (bytes and "" or " * 2")
      cp_async_16_zfill(place + n * (ROWS * $(pitch)), from, row + n * ROWS < valid ? 16 : 0);
      //%   if one_page or not paged then
      from += ROWS * p.$(load.tensor)_stride_token;
      //%   end
    }
    //% else
#pragma unroll
    for (int n = 0; n < (TILE_N * CHUNKS + $(threads) - 1) / $(threads); ++n) {
      const int chunk = $(threads) * n + $(thread), row = chunk / CHUNKS, column = chunk % CHUNKS * $(chunk);
      //% if paged and not one_page then
      const int page = shuffle_i32(walk.page, row);
      const $(ctype) *from = p.$(load.tensor) + $(load.row)_of_page(p, page, key_begin + row, work.hk);
      //% end
      if (TILE_N * CHUNKS % $(threads) != 0 && row >= TILE_N) break;
      //% local step = paged and not one_page and "" or "row * p." .. load.tensor .. "_stride_token + "
      //% local place = "row * " .. load.pitch .. " + column"
      cp_async_16_zfill(to$(load.offset) + $(bytes and place or "(" .. place .. ") * 2"), from + $(step)column,
                        row < valid ? 16 : 0);
    }
    //% end
  }
  //% end
}

//% if bytes then
//%   local order = neighbours and "4 t, 4 t + 1, then 4 t + 2, 4 t + 3" or "4 t, 4 t + 2, then 4 t + 1, 4 t + 3"
// The rows' queries as mma operands: of row g and g + 8, columns $(order) of every 16,
// which is the order that K's have.
//% else
// The rows' queries as mma operands: of row g and g + 8, in columns 2 t and 2 t + 8 of every 16.
//% end
static __device__ __forceinline__ void load_query_fragments(
    const qkv_params &p, unsigned (&fragments)[ROW_TILES][QK_STEPS][4], const work_item &work, packed_row first_row,
    int lane) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const packed_row row = first_row + (16 * r + lane / 4 + 8 * half);
      const bool exists = row.query() < work.view.len_q;
      const unsigned short *from =
          p.q + query_row(p, work.view, row.query(), work.hk * GROUP + row.head()) + lane % 4 * $(bytes and 4 or 2);
      //% if bytes then
#pragma unroll
      for (int step = 0; step < QK_STEPS; ++step) {
        const uint2 four = exists ? *(const uint2 *)(from + 16 * step) : make_uint2(0, 0);
        //% if neighbours then
        fragments[r][step][half] = four.x, fragments[r][step][half + 2] = four.y;
        //% else
        fragments[r][step][half] = (four.x & 0xffffu) | four.y << 16;
        fragments[r][step][half + 2] = four.x >> 16 | (four.y & 0xffff0000u);
        //% end
      }
      //% else
#pragma unroll
      for (int step = 0; step < QK_STEPS; ++step)
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          const bool inside = exists && (DIM_QK % 16 == 0 || 16 * step + 8 * right < DIM_QK);
          fragments[r][step][half + 2 * right] = inside ? *(const unsigned *)(from + 16 * step + 8 * right) : 0u;
        }
      //% end
    }
}
//% if kernel.layout.dim_qk > variant.dim_qk then

// Q K^T multiplies 16 dimensions at a time; the 8 past DIM_QK are zero in every slice of K, once and for all.
static __device__ __forceinline__ void zero_padding(unsigned ring, int $(thread)) {
  unsigned char *to = shared_arena() + (ring - smem_addr(shared_arena()));
  for (int row = $(thread); row < STAGES * TILE_N; row += $(threads))
    *(uint4 *)(to + row / TILE_N * SLICE_BYTES + (row % TILE_N * PITCH_K + DIM_QK) * 2) = make_uint4(0, 0, 0, 0);
}
//% end
