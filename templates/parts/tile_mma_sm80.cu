//%% The two matrix products of the sm_80 forward, from shared memory through ldmatrix into mma.
//% local mma = "mma_m16n8k16_" .. variant.dtype_q
//% local pack = "pack_" .. variant.dtype_q .. "x2"
//% local resident = kernel.layout.q_resident
//% local query = resident and "unsigned (&query)[ROW_TILES][QK_STEPS][4]" or "unsigned shared_q"
// Row and first column that this lane addresses when four 8x8 matrices are loaded as a 16x16 block: matrices 0 and 1
// below each other, 2 and 3 to their right (Q and V); or 0 and 1 beside each other, 2 and 3 below (K).
static __device__ __forceinline__ int block_row(int lane) { return lane % 16; }
static __device__ __forceinline__ int block_column(int lane) { return lane / 16 * 8; }
static __device__ __forceinline__ int key_block_row(int lane) { return lane % 8 + lane / 16 * 8; }
static __device__ __forceinline__ int key_block_column(int lane) { return lane / 8 % 2 * 8; }

//% if resident and kernel.layout.pitch_q then
// The warp's rows of Q as mma operands, kept in registers over all tiles.
static __device__ __forceinline__ void load_query_fragments(
    unsigned (&fragments)[ROW_TILES][QK_STEPS][4], unsigned shared_q, int lane) {
  const unsigned address = shared_q + (block_row(lane) * PITCH_Q + block_column(lane)) * 2;
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int step = 0; step < QK_STEPS; ++step)
      ldmatrix_x4(fragments[r][step], address + (r * 16 * PITCH_Q + step * 16) * 2);
}

//% end
// scores = Q K^T for the warp's rows and the tile's keys.
static __device__ __forceinline__ void multiply_query_key(
    float (&scores)[ROW_TILES][N_TILES][4], $(query), unsigned shared_k, int lane) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[r][n][e] = 0.0f;
  //% if not resident then
  const unsigned query_address = shared_q + (block_row(lane) * PITCH_Q + block_column(lane)) * 2;
  //% end
  const unsigned key_address = shared_k + (key_block_row(lane) * PITCH_K + key_block_column(lane)) * 2;
#pragma unroll
  for (int step = 0; step < QK_STEPS; ++step) {
    //% if not resident then
    unsigned query[ROW_TILES][4];
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) ldmatrix_x4(query[r], query_address + (r * 16 * PITCH_Q + step * 16) * 2);
    //% end
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
      unsigned key[4]; // two 8-key columns
      ldmatrix_x4(key, key_address + (n * 8 * PITCH_K + step * 16) * 2);
#pragma unroll
      for (int r = 0; r < ROW_TILES; ++r) {
        $(mma)(scores[r][n], query[r]$(resident and "[step]" or ""), key[0], key[1]);
        $(mma)(scores[r][n + 1], query[r]$(resident and "[step]" or ""), key[2], key[3]);
      }
    }
  }
}

// output += P V. The scores' fragments, rounded to 16 bits, are P's operands as they stand.
static __device__ __forceinline__ void multiply_probability_value(
    float (&output)[ROW_TILES][V_TILES][4], float (&probabilities)[ROW_TILES][N_TILES][4], unsigned shared_v,
    int lane) {
  const unsigned value_address = shared_v + (block_row(lane) * PITCH_V + block_column(lane)) * 2;
#pragma unroll
  for (int step = 0; step < TILE_N / 16; ++step) {
    unsigned rows[ROW_TILES][4];
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
      float(&left)[4] = probabilities[r][2 * step];
      float(&right)[4] = probabilities[r][2 * step + 1];
      rows[r][0] = $(pack)(left[0], left[1]);
      rows[r][1] = $(pack)(left[2], left[3]);
      rows[r][2] = $(pack)(right[0], right[1]);
      rows[r][3] = $(pack)(right[2], right[3]);
    }
#pragma unroll
    for (int n = 0; n + 1 < V_TILES; n += 2) {
      unsigned value[4]; // two 8-wide columns
      ldmatrix_x4_trans(value, value_address + (step * 16 * PITCH_V + n * 8) * 2);
#pragma unroll
      for (int r = 0; r < ROW_TILES; ++r) {
        $(mma)(output[r][n], rows[r], value[0], value[1]);
        $(mma)(output[r][n + 1], rows[r], value[2], value[3]);
      }
    }
    //% if variant.dim_v // 8 % 2 == 1 then
    unsigned value[2]; // the last, single column
    ldmatrix_x2_trans(value, shared_v + ((step * 16 + block_row(lane)) * PITCH_V + (V_TILES - 1) * 8) * 2);
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) $(mma)(output[r][V_TILES - 1], rows[r], value[0], value[1]);
    //% end
  }
}
