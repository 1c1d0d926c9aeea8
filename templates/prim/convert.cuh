//%% Conversions between f32 and the narrow formats, round to nearest even. Narrow values travel as their bits.
//% for _, format in ipairs{"bf16", "f16"} do
//%   local register = format == "bf16" and "b16" or "f16"
//%   piece("pack_" .. format .. "x2", function()
// cvt.rn.$(format)x2.f32: low in the lower half. | one thread | sm_80
static __device__ __forceinline__ unsigned pack_$(format)x2(float low, float high) {
  unsigned packed;
  asm("cvt.rn.$(format)x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
//%   end)
//%   piece("f32_to_" .. format, function()
// cvt.rn.$(format).f32. | one thread | sm_80
static __device__ __forceinline__ unsigned short f32_to_$(format)(float value) {
  unsigned short bits;
  asm("cvt.rn.$(format).f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
//%   end)
//% end
//% piece("bf16_to_f32", function()
// A bf16 is the upper half of an f32. | one thread | sm_80
static __device__ __forceinline__ float bf16_to_f32(unsigned short bits) {
  return __uint_as_float((unsigned)bits << 16);
}
//% end)
//% piece("f16_to_f32", function()
// cvt.f32.f16. | one thread | sm_80
static __device__ __forceinline__ float f16_to_f32(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
//% end)
//% for part, halves in pairs{low = "half, _", high = "_, half"} do
//%   piece("e4m3x4_" .. part .. "_to_f16x2", function()
//%     local which = part == "low" and "lower" or "upper"
// cvt.rn.f16x2.e4m3x2 of the $(which) two bytes: exact; NaN stays NaN. | one thread | sm_89
static __device__ __forceinline__ unsigned e4m3x4_$(part)_to_f16x2(unsigned bytes) {
  unsigned pair;
  asm("{.reg .b16 half; mov.b32 {$(halves)}, %1; cvt.rn.f16x2.e4m3x2 %0, half;}" : "=r"(pair) : "r"(bytes));
  return pair;
}
//%   end)
//% end
//% piece("pack_e4m3x2", function()
// cvt.rn.satfinite.e4m3x2.f32: low in the lower byte; what is beyond 448 becomes 448. | one thread | sm_89
static __device__ __forceinline__ unsigned short pack_e4m3x2(float low, float high) {
  unsigned short packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
//% end)
