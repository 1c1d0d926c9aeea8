//%% The two matrix products of the sm_90 forward, by wgmma.
//% local layout = kernel.layout
//% local pack = "pack_" .. variant.dtype_q .. "x2"
//% local query_in_registers = schedule.q_registers == 1
//% local query_parameter = query_in_registers and "const query_fragments &query" or "unsigned long long query"
//% local p_shared = schedule.p_shared == 1
//% local wgmma = library("wgmma")
//% local dtype, swizzle = variant.dtype_q, wgmma.swizzle
//% local function lane_swizzle(panels) -- of the row that the lane addresses in ldmatrix and stmatrix
//%   return ({[128] = "lane % 8", [64] = "lane % 8 >> 1", [32] = "lane % 8 >> 2"})[panels.swizzle]
//% end
//% if query_in_registers then
// A warp's rows of Q as operands: of each step of 16 columns four 8x8 matrices, the lower rows' behind the upper rows'.
struct query_fragments {
  unsigned step[QK_STEPS][4];
};

static __device__ __forceinline__ void fetch_query(
    query_fragments &query, unsigned shared, int stage, int row, int lane) {
  constexpr int PANEL_STEPS = QK_WIDTH / 16;
  const unsigned rows = shared + stage * Q_BYTES + (row + lane % 16) * QK_ROW_BYTES;
  const int swizzle = $(lane_swizzle(layout.qk)); // of the row that the lane addresses
#pragma unroll
  for (int step = 0; step < QK_STEPS; ++step) {
    const int panel = step / PANEL_STEPS, chunk = step % PANEL_STEPS * 2 + lane / 16;
    ldmatrix_x4(query.step[step], rows + panel * Q_PANEL + ((chunk ^ swizzle) << 4));
  }
}

// K-major: 16 columns on are 32 bytes on in the panel's rows.
//% else
// K-major operands: 16 columns on are 32 bytes on in the panel's rows.
static __device__ __forceinline__ unsigned long long query_descriptor(unsigned shared, int stage, int warpgroup) {
  const unsigned rows = shared + stage * Q_BYTES + warpgroup * 64 * QK_ROW_BYTES;
  return matrix_descriptor(rows, 16, 8 * QK_ROW_BYTES, $(swizzle[layout.qk.swizzle]));
}

//% end
static __device__ __forceinline__ unsigned long long key_descriptor(unsigned shared, int stage) {
  return matrix_descriptor(shared + K_OFFSET + stage * K_BYTES, 16, 8 * QK_ROW_BYTES, $(swizzle[layout.qk.swizzle]));
}

// MN-major: 16 keys on are 16 rows on, and a panel follows another.
static __device__ __forceinline__ unsigned long long value_descriptor(unsigned shared, int stage) {
  return matrix_descriptor(shared + V_OFFSET + stage * V_BYTES, V_PANEL, 8 * V_ROW_BYTES, $(swizzle[layout.v.swizzle]));
}

// scores = Q K^T for the warpgroup's rows and the tile's keys. To be committed and waited for.
static __device__ __forceinline__ void multiply_query_key(
    float (&scores)[ROW_TILES][N_TILES][4], $(query_parameter), unsigned long long key) {
  float *d = &scores[0][0][0];
  //% local function at(name, panel, product) return wgmma.at(name, panel, product.panel, product.column) end
  //% for _, product in ipairs(wgmma.products(ceil_div(variant.dim_qk, 16), layout.qk.width // 16)) do
  //%   local a = query_in_registers and "query.step[" .. product.first .. "]" or at("query", "Q_PANEL", product)
  //%   local name = wgmma.name(schedule.tile_n, product.steps, dtype, query_in_registers and "rs" or "ss")
  $(name)(d, $(a), $(at("key", "K_PANEL", product)), $(product.first > 0 and 1 or 0));
  //% end
}

//% if p_shared then
static __device__ __forceinline__ unsigned long long probability_descriptor(unsigned shared, int warpgroup) {
  const unsigned rows = shared + P_OFFSET + warpgroup * 64 * P_ROW_BYTES;
  return matrix_descriptor(rows, 16, 8 * P_ROW_BYTES, $(swizzle[layout.p.swizzle]));
}

// output += P V. To be committed and waited for.
static __device__ __forceinline__ void multiply_probability_value(
    float (&output)[ROW_TILES][V_TILES][4], unsigned long long probability, unsigned long long value) {
  float *d = &output[0][0][0];
  //% if schedule.tile_n > 16 then
  constexpr int STEP = 16 * V_ROW_BYTES;
  //% end
  //% for _, product in ipairs(wgmma.products(schedule.tile_n // 16, layout.p.width // 16)) do
  //%   local v = product.first > 0 and ("descriptor_advance(value, %d * STEP)"):format(product.first) or "value"
  //%   local name = wgmma.name(variant.dim_v, product.steps, dtype, "ss_t")
  $(name)(d, $(at("probability", "P_PANEL", product)), $(v), 1$(product.steps > 1 and ", STEP" or ""));
  //% end
}

// The scores, rounded to 16 bits, become the warp's rows of P. No other warp's products read them.
static __device__ __forceinline__ void round_probabilities(
    unsigned shared, int row, const float (&scores)[ROW_TILES][N_TILES][4], int lane) {
  const unsigned rows = shared + P_OFFSET + (row + lane % 16) * P_ROW_BYTES;
  const int swizzle = $(lane_swizzle(layout.p)); // of the row that the lane addresses
#pragma unroll
  for (int step = 0; step < PV_STEPS; ++step) { // four 8x8 matrices, the lower rows' behind the upper rows'
    const int panel = step * 16 / P_WIDTH, chunk = step % (P_WIDTH / 16) * 2 + lane / 16;
    const float(&left)[4] = scores[0][2 * step];
    const float(&right)[4] = scores[0][2 * step + 1];
    stmatrix_x4(rows + panel * P_PANEL + ((chunk ^ swizzle) << 4), $(pack)(left[0], left[1]),
                $(pack)(left[2], left[3]), $(pack)(right[0], right[1]), $(pack)(right[2], right[3]));
  }
  fence_proxy_async();
  warp_sync();
}
//% else
// output += P V. To be committed and waited for.
static __device__ __forceinline__ void multiply_probability_value(
    float (&output)[ROW_TILES][V_TILES][4], const unsigned (&probabilities)[PV_STEPS][4], unsigned long long value) {
  float *d = &output[0][0][0];
  //% if schedule.tile_n > 16 then
  constexpr int STEP = 16 * V_ROW_BYTES;
  //% end
  //% for _, product in ipairs(wgmma.products(schedule.tile_n // 16, 8)) do
  //%   local v = product.first > 0 and ("descriptor_advance(value, %d * STEP)"):format(product.first) or "value"
  //%   local name = wgmma.name(variant.dim_v, product.steps, dtype, "rs_t")
  $(name)(d, probabilities[$(product.first)], $(v), 1$(product.steps > 1 and ", STEP" or ""));
  //% end
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
//% end

// Accumulators may be touched from here on: the compiler moves no access across.
template <int TILES> static __device__ __forceinline__ void keep(float (&accumulators)[ROW_TILES][TILES][4]) {
#pragma unroll
  for (int n = 0; n < TILES; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) keep_f32(accumulators[0][n][e]);
}
