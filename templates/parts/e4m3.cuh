//%% e4m3 to wider formats, without a table or a conversion instruction (sm_80 has none; those of later ones are
//%% primitives).
//%%
//%% The exponent and fraction of an e4m3, placed below the sign of a wider format where its own begin, are there the
//%% same number, but for the difference of the biases, a power of 2: one product is exact, subnormals included. The
//%% code of NaN, all ones, gives what it would be among the numbers: 480.
//% piece("e4m3_to_f32", function()
// Exact; 0x7f, by the format NaN, gives 480, and 0xff -480.
static __device__ __forceinline__ float e4m3_to_f32(unsigned char bits) {
  return __uint_as_float((bits & 0x80u) << 24 | (bits & 0x7fu) << 20) * 0x1p+120f;
}
//% end)
//% piece("e5m2_to_f32", function()
// An e5m2 is the upper half of an f16.
static __device__ __forceinline__ float e5m2_to_f32(unsigned char bits) {
  return f16_to_f32((unsigned short)(bits << 8));
}
//% end)
//% piece("e4m3x4_even_to_bf16x2", function()
// Bytes 0 and 2 of four e4m3. Exact; NaN gives 480.
static __device__ __forceinline__ unsigned e4m3x4_even_to_bf16x2(unsigned bytes) {
  return mul_bf16x2((bytes << 4 & 0x07f007f0u) | (bytes << 8 & 0x80008000u), 0x7b807b80u); // 2^120
}
//% end)
//% piece("e4m3x4_odd_to_bf16x2", function()
// Bytes 1 and 3 of four e4m3. Exact; NaN gives 480.
static __device__ __forceinline__ unsigned e4m3x4_odd_to_bf16x2(unsigned bytes) {
  return mul_bf16x2((bytes >> 4 & 0x07f007f0u) | (bytes & 0x80008000u), 0x7b807b80u); // 2^120
}
//% end)
//% piece("e4m3x4_even_to_f16x2", function()
// Bytes 0 and 2 of four e4m3. Exact; NaN gives 480.
static __device__ __forceinline__ unsigned e4m3x4_even_to_f16x2(unsigned bytes) {
  return mul_f16x2((bytes << 7 & 0x3f803f80u) | (bytes << 8 & 0x80008000u), 0x5c005c00u); // 2^8
}
//% end)
//% piece("e4m3x4_odd_to_f16x2", function()
// Bytes 1 and 3 of four e4m3. Exact; NaN gives 480.
static __device__ __forceinline__ unsigned e4m3x4_odd_to_f16x2(unsigned bytes) {
  return mul_f16x2((bytes >> 1 & 0x3f803f80u) | (bytes & 0x80008000u), 0x5c005c00u); // 2^8
}
//% end)
