//%% The two matrix products of a slice of e4m3 keys and values: bytes from shared memory through ldmatrix, which moves
//%% pairs of them, become f16 operands on the way. Every lane splits what it receives, and nothing moves between lanes:
//%%
//%% K: of 16 dimensions of key g, lane (g, t) has 4 t ... 4 t + 3. The order of dimensions in a product is free: the
//%% operand's places 2 t, 2 t + 1, 2 t + 8, 2 t + 9 hold these four in the order that is made with the least effort,
//%% and those of Q, too (parts/slice_load_sm80.cu).
//%% V: of 16 dimensions of keys 2 t and 2 t + 1, lane (g, t) has 2 g and 2 g + 1. Column g of the output's tile of 8 is
//%% dimension 2 g, of the next tile 2 g + 1: after the products a lane holds dimensions 4 t ... 4 t + 3 of its rows.
//%%
//%% Operands are f16 whatever the queries are, since hardware makes that of e4m3, and not bf16. P is at most 2^15, and
//%% 2^7 or more for some key of every row (parts/tile_softmax.cu). f16 keeps 11 bits of it down to 2^-14 and multiples
//%% of 2^-24 below: a weight is off by 2^-12 of itself or by 2^-32 of the row's greatest, where bf16's is by 2^-9 of
//%% itself.
//% local hardware = arch.number >= 89 -- converts neighbours
//% local first = hardware and "e4m3x4_low_to_f16x2" or "e4m3x4_even_to_f16x2"
//% local second = hardware and "e4m3x4_high_to_f16x2" or "e4m3x4_odd_to_f16x2"
// Row and first byte that this lane addresses when four matrices of 8 rows by 16 bytes are loaded: two below each
// other, then two to their right (V); or two beside each other, then two below (K).
static __device__ __forceinline__ int block_row(int lane) { return lane % 16; }
static __device__ __forceinline__ int block_byte(int lane) { return lane / 16 * 16; }
static __device__ __forceinline__ int key_block_row(int lane) { return lane % 8 + lane / 16 * 8; }
static __device__ __forceinline__ int key_block_byte(int lane) { return lane / 8 % 2 * 16; }

// scores += Q K^T of 8 keys and 16 dimensions, whose bytes this lane has.
static __device__ __forceinline__ void multiply_query_bytes(
    float (&scores)[ROW_TILES][N_TILES][4], const unsigned (&query)[ROW_TILES][QK_STEPS][4], unsigned key, int n,
    int step) {
  const unsigned low = $(first)(key), high = $(second)(key);
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r) mma_m16n8k16_f16(scores[r][n], query[r][step], low, high);
}

// scores = Q K^T for the warp's rows and the slice's keys.
static __device__ __forceinline__ void multiply_query_key(
    float (&scores)[ROW_TILES][N_TILES][4], const unsigned (&query)[ROW_TILES][QK_STEPS][4], unsigned shared_k,
    int lane) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[r][n][e] = 0.0f;
  const unsigned key_address = shared_k + key_block_row(lane) * PITCH_K + key_block_byte(lane);
#pragma unroll
  for (int step = 0; step + 1 < QK_STEPS; step += 2)
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
      unsigned key[4]; // of two 8-key columns, two steps each
      ldmatrix_x4(key, key_address + n * 8 * PITCH_K + step * 16);
      multiply_query_bytes(scores, query, key[0], n, step);
      multiply_query_bytes(scores, query, key[2], n + 1, step);
      multiply_query_bytes(scores, query, key[1], n, step + 1);
      multiply_query_bytes(scores, query, key[3], n + 1, step + 1);
    }
  //% if variant.dim_qk // 16 % 2 == 1 then
#pragma unroll
  for (int n = 0; n < N_TILES; n += 2) {
    unsigned key[2]; // the last, single step
    ldmatrix_x2(key, shared_k + (n * 8 + block_row(lane)) * PITCH_K + (QK_STEPS - 1) * 16);
    multiply_query_bytes(scores, query, key[0], n, QK_STEPS - 1);
    multiply_query_bytes(scores, query, key[1], n + 1, QK_STEPS - 1);
  }
  //% end
}

// output += P V of 16 keys and 16 dimensions: bytes of the upper and the lower 8 keys.
static __device__ __forceinline__ void multiply_probability_bytes(
    float (&output)[ROW_TILES][V_TILES][4], const unsigned (&rows)[ROW_TILES][4], unsigned upper, unsigned lower,
    int n) {
  //% if hardware then
  upper = permute_bytes(upper, 0, 0x3120), lower = permute_bytes(lower, 0, 0x3120); // even ones first
  //% end
  const unsigned even[2] = {$(first)(upper), $(first)(lower)};
  const unsigned odd[2] = {$(second)(upper), $(second)(lower)};
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r) {
    mma_m16n8k16_f16(output[r][n], rows[r], even[0], even[1]);
    mma_m16n8k16_f16(output[r][n + 1], rows[r], odd[0], odd[1]);
  }
}

// output += P V. The scores' fragments, rounded to f16, are P's operands as they stand.
static __device__ __forceinline__ void multiply_probability_value(
    float (&output)[ROW_TILES][V_TILES][4], const float (&probabilities)[ROW_TILES][N_TILES][4], unsigned shared_v,
    int lane) {
  const unsigned value_address = shared_v + block_row(lane) * PITCH_V + block_byte(lane);
#pragma unroll
  for (int step = 0; step < TILE_N / 16; ++step) {
    unsigned rows[ROW_TILES][4];
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
      const float(&left)[4] = probabilities[r][2 * step];
      const float(&right)[4] = probabilities[r][2 * step + 1];
      rows[r][0] = pack_f16x2(left[0], left[1]);
      rows[r][1] = pack_f16x2(left[2], left[3]);
      rows[r][2] = pack_f16x2(right[0], right[1]);
      rows[r][3] = pack_f16x2(right[2], right[3]);
    }
#pragma unroll
    for (int n = 0; n + 3 < V_TILES; n += 4) { // 32 dimensions
      unsigned value[4];
      ldmatrix_x4_trans(value, value_address + step * 16 * PITCH_V + n * 8);
      multiply_probability_bytes(output, rows, value[0], value[1], n);
      multiply_probability_bytes(output, rows, value[2], value[3], n + 2);
    }
    //% if variant.dim_v // 16 % 2 == 1 then
    unsigned value[2]; // the last 16
    ldmatrix_x2_trans(value, shared_v + (step * 16 + block_row(lane)) * PITCH_V + (V_TILES - 2) * 8);
    multiply_probability_bytes(output, rows, value[0], value[1], V_TILES - 2);
    //% end
  }
}
