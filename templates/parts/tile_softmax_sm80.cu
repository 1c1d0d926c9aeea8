//%% Scores to probabilities for fragments of mma: score and mask expressions, online softmax, the last division.
//%%
//%% With g = lane / 4 and t = lane % 4, element e of column tile n and row tile r is row 16 r + g + 8 (e / 2) of the warp and
//%% key 8 n + 2 t + e % 2 of the tile.
//% local raw_scores = variant.score_is_identity and variant.softcap == 0 and variant.scale > 0
//% local names = {q = "q", k = "k", i = "i", h = "h", hk = "hk", b = "b", len_q = "p.len_q", len_k = "p.len_k"}
//% local function loops(symbols)
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        //% if symbols.i or symbols.q then
        const int i = warp_row + 16 * r + lane / 4 + e / 2 * 8;
        //% end
        //% if symbols.q then
        const int q = i + position;
        //% end
        //% if symbols.k then
        const int k = tile * TILE_N + 8 * n + lane % 4 * 2 + e % 2;
        //% end
//% end
//% if not raw_scores then
// Products to exponents of 2: scale, softcap, score expression, in this order.
static __device__ __forceinline__ void transform_scores(float (&scores)[ROW_TILES][N_TILES][4], const qkv_params &p, int tile, int warp_row, int position, int h, int hk, int b, int lane) {
  //% loops(variant.score_symbols)
        //% if variant.softcap > 0 then
        float s = SOFTCAP * tanh_f32(scores[r][n][e] * SCALE);
        //% else
        float s = scores[r][n][e] * SCALE;
        //% end
        //% if not variant.score_is_identity then
        //%   names.s = "s"
        s = $(cuda_score(names));
        //%   names.s = nil
        //% end
        scores[r][n][e] = s * LOG2E;
      }
}

//% end
// Hides what a row may not see, and keys past the end.
static __device__ __forceinline__ void mask_scores(float (&scores)[ROW_TILES][N_TILES][4], const qkv_params &p, int tile, int warp_row, int position, int h, int hk, int b, int lane) {
  //% loops({k = true, q = variant.mask_symbols.q, i = variant.mask_symbols.i})
        //% if mask.form == "all" then
        if (k >= p.len_k) scores[r][n][e] = minus_infinity();
        //% else
        if (!(k < p.len_k && ($(cuda_mask(names))))) scores[r][n][e] = minus_infinity();
        //% end
      }
}

//% if raw_scores then
//%   -- x scale - reference in one rounding; where the product is so large that the rounded reference would be off by
//%   -- more than a factor of 2, the difference comes first.
constexpr float EXACT_LIMIT = 0x1p+24f;

//% end
// One tile of the online softmax: scores become probabilities relative to the row's new maximum, and the output and the sum
// so far move to that maximum.
static __device__ __forceinline__ void softmax_tile(float (&scores)[ROW_TILES][N_TILES][4], float (&output)[ROW_TILES][V_TILES][4], float (&row_max)[ROW_TILES][2], float (&row_sum)[ROW_TILES][2]) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) { // rows g and g + 8
      float maximum = row_max[r][half];
#pragma unroll
      for (int n = 0; n < N_TILES; ++n) maximum = fmaxf(maximum, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
      maximum = fmaxf(maximum, shuffle_xor_f32(maximum, 1)); // the four lanes of a row
      maximum = fmaxf(maximum, shuffle_xor_f32(maximum, 2));

      // A row that has seen nothing yet keeps -inf as its maximum and takes 0 as the reference.
      const float stand_in = maximum == minus_infinity() ? 0.0f : maximum;
      //% if raw_scores then
      const float reference = stand_in * EXP2_SCALE;
      const bool exact = fabsf(reference) < EXACT_LIMIT;
      const float rescale = exp2_approx(exact ? row_max[r][half] * EXP2_SCALE - reference : (row_max[r][half] - stand_in) * EXP2_SCALE);
      //% else
      const float rescale = exp2_approx(row_max[r][half] - stand_in);
      //% end
      row_max[r][half] = maximum;

      float sum = row_sum[r][half] * rescale;
      //% if raw_scores then
      if (exact) {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) scores[r][n][e] = exp2_approx(fmaf(scores[r][n][e], EXP2_SCALE, -reference));
      } else {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) scores[r][n][e] = exp2_approx((scores[r][n][e] - stand_in) * EXP2_SCALE);
      }
#pragma unroll
      for (int n = 0; n < N_TILES; ++n) sum += scores[r][n][2 * half] + scores[r][n][2 * half + 1];
      //% else
#pragma unroll
      for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[r][n][e] = exp2_approx(scores[r][n][e] - stand_in);
          sum += scores[r][n][e];
        }
      //% end
      row_sum[r][half] = sum;

#pragma unroll
      for (int n = 0; n < V_TILES; ++n) {
        output[r][n][2 * half] *= rescale;
        output[r][n][2 * half + 1] *= rescale;
      }
    }
  }
}

// Divides by the denominator (the sink joins it here, once) and writes LSE.
static __device__ __forceinline__ void finish_rows(const qkv_params &p, float (&output)[ROW_TILES][V_TILES][4], float (&row_max)[ROW_TILES][2], float (&row_sum)[ROW_TILES][2], int warp_row, int h, int b, int lane) {
  //% if variant.sink == "per_head" then
  const float sink = p.sink[h * p.sink_stride_head];
  //% end
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = row_sum[r][half];
      sum += shuffle_xor_f32(sum, 1);
      sum += shuffle_xor_f32(sum, 2);
      const bool empty = row_max[r][half] == minus_infinity();
      //% local exponent = raw_scores and "row_max[r][half] * EXP2_SCALE" or "row_max[r][half]"
      //% if variant.sink == "per_head" then
      const float denominator = sum + exp2_approx(sink * LOG2E - $(exponent));
      //% else
      const float denominator = sum;
      //% end
      const float inverse = empty ? 0.0f : rcp_approx(denominator);
#pragma unroll
      for (int n = 0; n < V_TILES; ++n) {
        output[r][n][2 * half] *= inverse;
        output[r][n][2 * half + 1] *= inverse;
      }
      //% if variant.outputs.lse or variant.outputs.lse_with_sink then
      const int i = warp_row + 16 * r + lane / 4 + 8 * half;
      if (lane % 4 == 0 && i < p.len_q) {
        const float lse = empty ? minus_infinity() : ($(exponent) + log2_approx(sum)) * LN2;
        //% if variant.outputs.lse then
        p.lse[b * p.lse_stride_batch + h * p.lse_stride_head + i * p.lse_stride_token] = lse;
        //% end
        //% if variant.outputs.lse_with_sink then
        p.lse_with_sink[b * p.lse_with_sink_stride_batch + h * p.lse_with_sink_stride_head + i * p.lse_with_sink_stride_token] = log_add(lse, sink);
        //% end
      }
      //% end
    }
  }
}
