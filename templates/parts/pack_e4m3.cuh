//%% f32 to e4m3 on every architecture.
//% piece("pack_e4m3", function()
//% if arch.number >= 89 then
static __device__ __forceinline__ unsigned pack_e4m3(float low, float high) { return pack_e4m3x2(low, high); }
//% else
// Two as e4m3, low in the lower byte; what is beyond 448 becomes 448.
static __device__ __forceinline__ unsigned pack_e4m3(float low, float high) {
  return f32_to_e4m3(low) | f32_to_e4m3(high) << 8;
}
//% end
//% end)
//% piece("f32_to_e4m3", function()
// The nearest e4m3, of two the even one, as an integer addition that carries into the exponent; a number below 2^-6 is
// rounded by adding 2^14, whose last place is 2^-9.
static __device__ __forceinline__ unsigned f32_to_e4m3(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fu;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;
  if (magnitude < 0x3c800000u) return sign | (__float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000u);
  return sign | (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - 0x3c000000u) >> 20;
}
//% end)
