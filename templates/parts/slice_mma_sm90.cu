//%% The two products of a slice by wgmma: keys, then dimensions of V are the rows, rows of the problem the columns.
//% local wgmma = library("wgmma")
//% local dtype, tile_m = variant.dtype_q, schedule.tile_m
//% local pack = "pack_" .. dtype .. "x2"
//% local products = wgmma.products(ceil_div(variant.dim_qk, 16), 4)
// A matrix in panels, K-major: its rows are keys, or rows of the problem.
static __device__ __forceinline__ unsigned long long k_major(unsigned address) {
  return matrix_descriptor(address, 16, 8 * 128, $(wgmma.swizzle[128]));
}

// V^T as it lies, MN-major: 64 dimensions, one panel; the keys are its rows in shared memory.
static __device__ __forceinline__ unsigned long long value_descriptor(unsigned address) {
  return matrix_descriptor(address, V_PANEL, 8 * 128, $(wgmma.swizzle[128]));
}

// scores = K Q^T of the slice. To be committed and waited for.
static __device__ __forceinline__ void multiply_key_query(
    float (&scores)[KEY_TILES][ROW_TILES][4], unsigned keys, unsigned queries) {
  const unsigned long long query = k_major(queries);
#pragma unroll
  for (int m = 0; m < KEY_TILES; ++m) {
    float *d = &scores[m][0][0];
    const unsigned long long key = k_major(keys + m * 64 * 128);
    //% for _, product in ipairs(products) do
    //%   local a = wgmma.at("key", "K_PANEL", product.panel, product.column)
    //%   local b = wgmma.at("query", "Q_PANEL", product.panel, product.column)
    $(wgmma.name(tile_m, product.steps, dtype, "ss"))(d, $(a), $(b), $(product.first > 0 and 1 or 0));
    //% end
  }
}

// output += V^T P^T. To be committed and waited for.
static __device__ __forceinline__ void multiply_value_probability(
    float (&output)[DIM_TILES][ROW_TILES][4], unsigned values, unsigned probabilities) {
  constexpr int STEP = 16 * 128; // from 16 keys of V to the next
#pragma unroll
  for (int m = 0; m < DIM_TILES; ++m)
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n)
      $(wgmma.name(tile_m, 4, dtype, "ss_at"))(&output[m][0][0], value_descriptor(values + m * V_PANEL + n * 64 * 128),
                                   k_major(probabilities + n * P_PANEL), 1, STEP);
}

// The scores, rounded to 16 bits, become P: rows of the problem, K-major. A warp has 16 keys, two chunks of a row.
static __device__ __forceinline__ void round_probabilities(
    unsigned probabilities, const float (&scores)[KEY_TILES][ROW_TILES][4]) {
  const int lane = threadIdx.x % 32, chunk = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
  // The row of an 8x8 matrix that the lane addresses: of two chunks, then of the next 8 rows' two.
  const unsigned to = probabilities + (lane % 8 + lane / 16 * 8) * 128 + ((chunk ^ lane % 8) << 4);
#pragma unroll
  for (int m = 0; m < KEY_TILES; ++m) {
#pragma unroll
    for (int n = 0; n + 1 < ROW_TILES; n += 2) {
      const float(&s)[4] = scores[m][n];
      const float(&next)[4] = scores[m][n + 1];
      stmatrix_x4_trans(to + m * P_PANEL + n * 8 * 128, $(pack)(s[0], s[1]), $(pack)(s[2], s[3]),
                        $(pack)(next[0], next[1]), $(pack)(next[2], next[3]));
    }
    //% if tile_m // 8 % 2 == 1 then
    const float(&s)[4] = scores[m][ROW_TILES - 1];
    stmatrix_x2_trans(to + m * P_PANEL + (ROW_TILES - 1) * 8 * 128, $(pack)(s[0], s[1]), $(pack)(s[2], s[3]));
    //% end
  }
  fence_proxy_async();
}

// Accumulators may be touched from here on: the compiler moves no access across.
template <int TILES> static __device__ __forceinline__ void keep(float (&accumulators)[TILES][ROW_TILES][4]) {
#pragma unroll
  for (int m = 0; m < TILES; ++m)
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) keep_f32(accumulators[m][n][e]);
}
