//%% The two matrix products of the sm_90 forward, by wgmma.
//% local layout = kernel.layout
//% local pack = "pack_" .. variant.dtype_q .. "x2"
//% local qk = "wgmma_m64n" .. schedule.tile_n .. "k16_" .. variant.dtype_q .. "_ss"
//% local pv = "wgmma_m64n" .. variant.dim_v .. "k16_" .. variant.dtype_q .. "_rs_t"
//% local swizzle = {[128] = 1, [64] = 2, [32] = 3}
// K-major operands: 16 columns on are 32 bytes on in the panel's rows.
static __device__ __forceinline__ unsigned long long query_descriptor(unsigned shared, int stage, int warpgroup) {
  const unsigned rows = shared + stage * Q_BYTES + warpgroup * 64 * QK_ROW_BYTES;
  return matrix_descriptor(rows, 16, 8 * QK_ROW_BYTES, $(swizzle[layout.qk.swizzle]));
}

static __device__ __forceinline__ unsigned long long key_descriptor(unsigned shared, int stage) {
  return matrix_descriptor(shared + K_OFFSET + stage * K_BYTES, 16, 8 * QK_ROW_BYTES, $(swizzle[layout.qk.swizzle]));
}

// MN-major: 16 keys on are 16 rows on, and a panel follows another.
static __device__ __forceinline__ unsigned long long value_descriptor(unsigned shared, int stage) {
  return matrix_descriptor(shared + V_OFFSET + stage * V_BYTES, V_PANEL, 8 * V_ROW_BYTES, $(swizzle[layout.v.swizzle]));
}

// scores = Q K^T for the warpgroup's rows and the tile's keys. To be committed and waited for.
static __device__ __forceinline__ void multiply_query_key(
    float (&scores)[ROW_TILES][N_TILES][4], unsigned long long query, unsigned long long key) {
  constexpr int PANEL_STEPS = QK_WIDTH / 16;
#pragma unroll
  for (int step = 0; step < QK_STEPS; ++step) {
    const int panel = step / PANEL_STEPS, column = step % PANEL_STEPS * 32;
    $(qk)(&scores[0][0][0], descriptor_advance(query, panel * Q_PANEL + column),
          descriptor_advance(key, panel * K_PANEL + column), step != 0);
  }
}

// output += P V. To be committed and waited for.
static __device__ __forceinline__ void multiply_probability_value(
    float (&output)[ROW_TILES][V_TILES][4], const unsigned (&probabilities)[PV_STEPS][4], unsigned long long value) {
#pragma unroll
  for (int step = 0; step < PV_STEPS; ++step)
    $(pv)(&output[0][0][0], probabilities[step],
    $((" "):rep(#pv)) descriptor_advance(value, step * 16 * V_ROW_BYTES), 1);
}

// The scores' fragments, rounded to 16 bits, are P's operands as they stand.
static __device__ __forceinline__ void round_probabilities(
    unsigned (&probabilities)[PV_STEPS][4], const float (&scores)[ROW_TILES][N_TILES][4]) {
#pragma unroll
  for (int step = 0; step < PV_STEPS; ++step) {
    const float(&left)[4] = scores[0][2 * step];
    const float(&right)[4] = scores[0][2 * step + 1];
    probabilities[step][0] = $(pack)(left[0], left[1]);
    probabilities[step][1] = $(pack)(left[2], left[3]);
    probabilities[step][2] = $(pack)(right[0], right[1]);
    probabilities[step][3] = $(pack)(right[2], right[3]);
  }
}

// Accumulators may be touched from here on: the compiler moves no access across.
template <int TILES> static __device__ __forceinline__ void keep(float (&accumulators)[ROW_TILES][TILES][4]) {
#pragma unroll
  for (int n = 0; n < TILES; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) keep_f32(accumulators[0][n][e]);
}
