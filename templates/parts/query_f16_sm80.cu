//%% Queries in bf16 as f16 operands of mma, row by row times a power of 2.
//%%
//%% f16 has more bits than bf16, but fewer powers of 2. A power that brings a row's greatest magnitude between 2^14 and
//%% 2^15 leaves every element down to 2^-31 of that exact; those below are off by at most 2^-39 of it, which is 2^-15
//%% of what the f32 sums of the products are rounded by. A row of zeros stays one; so do infinities and NaN.
//% local scaled = variant.kv_scale == "per_head"
//% local also = scaled and ", float k_scale" or ""
//% if scaled then
// Rows of bf16 become f16, each times a power of 2; its inverse times k_scale, `unscale`, takes their products with K
// as it is stored to those of Q and K.
//% else
// Rows of bf16 become f16, each times a power of 2; its inverse, `unscale`, takes their products back.
//% end
static __device__ __forceinline__ void scale_queries(
    unsigned (&fragments)[ROW_TILES][QK_STEPS][4], float (&unscale)[ROW_TILES][2]$(also)) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float greatest = 0.0f; // only its exponent counts: the upper of a pair may keep the lower's bits
#pragma unroll
      for (int step = 0; step < QK_STEPS; ++step)
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          const unsigned pair = fragments[r][step][half + 2 * right];
          greatest = fmaxf(greatest, fabsf(__uint_as_float(pair)));
          greatest = fmaxf(greatest, fabsf(__uint_as_float(pair << 16)));
        }
      greatest = fmaxf(greatest, shuffle_xor_f32(greatest, 1)); // the four lanes of a row
      greatest = fmaxf(greatest, shuffle_xor_f32(greatest, 2));
      // Of 2^14 over the greatest's power of 2; at most 253, so that the inverse is a normal number, too.
      const unsigned exponent = min(127 + 14 + 127 - (__float_as_uint(greatest) >> 23), 253u);
      const float scale = __uint_as_float(exponent << 23);
      unscale[r][half] = __uint_as_float((254 - exponent) << 23)$(scaled and " * k_scale" or "");
#pragma unroll
      for (int step = 0; step < QK_STEPS; ++step)
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          unsigned &pair = fragments[r][step][half + 2 * right];
          pair = pack_f16x2(__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xffff0000u) * scale);
        }
    }
}
