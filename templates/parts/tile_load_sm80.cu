//%% Global to shared memory for the sm_80 forward: whole 16-byte chunks by cp.async, or element by element for tensors
//%% without 16-byte alignment. Rows past the end become zero, so that what lies there never reaches a result.
//% local loads = {
//%   {name = "load_query", tensor = "q", rows = "TILE_M", dim = "DIM_QK", pitch = "PITCH_Q"},
//%   {name = "load_key", tensor = "k", rows = "TILE_N", dim = "DIM_QK", pitch = "PITCH_K"},
//%   {name = "load_value", tensor = "v", rows = "TILE_N", dim = "DIM_V", pitch = "PITCH_V"},
//% }
//% for _, load in ipairs(loads) do
// $(load.rows) rows of $(load.tensor) to shared address `to`; only the first `valid` rows exist.
static __device__ __forceinline__ void $(load.name)(const qkv_params &p, unsigned to, const unsigned short *from, int valid) {
  constexpr int CHUNKS = $(load.dim) / 8; // of 16 bytes in a row
#pragma unroll
  for (int i = 0; i < ($(load.rows) * CHUNKS + THREADS - 1) / THREADS; ++i) {
    const int chunk = threadIdx.x + i * THREADS;
    if ($(load.rows) * CHUNKS % THREADS != 0 && chunk >= $(load.rows) * CHUNKS) break;
    const int row = chunk / CHUNKS, column = chunk % CHUNKS * 8;
    //% if request.unaligned then
    unsigned short elements[8] = {};
    if (row < valid)
      for (int e = 0; e < 8; ++e)
        elements[e] = from[row * p.$(load.tensor)_stride_token + (column + e) * p.$(load.tensor)_stride_dim];
    uint4 packed;
    packed.x = elements[0] | (unsigned)elements[1] << 16;
    packed.y = elements[2] | (unsigned)elements[3] << 16;
    packed.z = elements[4] | (unsigned)elements[5] << 16;
    packed.w = elements[6] | (unsigned)elements[7] << 16;
    *(uint4 *)(shared_arena() + (to - smem_addr(shared_arena())) + (row * $(load.pitch) + column) * 2) = packed;
    //% else
    const bool exists = row < valid;
    cp_async_16_zfill(to + (row * $(load.pitch) + column) * 2, exists ? from + row * p.$(load.tensor)_stride_token + column : from, exists ? 16 : 0);
    //% end
  }
}

//% end
// K and V of one tile into one stage of the ring.
static __device__ __forceinline__ void load_key_value(const qkv_params &p, unsigned shared, const unsigned short *key,
                                                      const unsigned short *value, int tile, int stage) {
  const int key_begin = tile * TILE_N;
  load_key(p, shared + K_OFFSET + stage * K_BYTES, key + key_begin * p.k_stride_token, p.len_k - key_begin);
  load_value(p, shared + V_OFFSET + stage * V_BYTES, value + key_begin * p.v_stride_token, p.len_k - key_begin);
}
//% if kernel.layout.dim_qk > variant.dim_qk then

// Q K^T multiplies 16 dimensions at a time; the 8 past DIM_QK are zero in Q and in every stage of K, once and for all.
static __device__ __forceinline__ void zero_padding(unsigned char *arena) {
  for (int row = threadIdx.x; row < TILE_M; row += THREADS)
    *(uint4 *)(arena + (row * PITCH_Q + DIM_QK) * 2) = make_uint4(0, 0, 0, 0);
  for (int row = threadIdx.x; row < STAGES * TILE_N; row += THREADS)
    *(uint4 *)(arena + K_OFFSET + (row * PITCH_K + DIM_QK) * 2) = make_uint4(0, 0, 0, 0);
}
//% end
