//%% One instruction each: approximate functions of the special-function unit, of bits, and products of
//%% pairs of 16-bit numbers.
//% piece("exp2_approx", function()
// ex2.approx.ftz.f32: 2^x, relative error about 2^-22; -inf gives 0. | one thread | sm_80
static __device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
//% end)
//% piece("log2_approx", function()
// lg2.approx.f32: 0 gives -inf. | one thread | sm_80
static __device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
//% end)
//% piece("rcp_approx", function()
// rcp.approx.f32: relative error about 2^-23; infinity gives 0. | one thread | sm_80
static __device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
//% end)
//% piece("tanh_approx", function()
// tanh.approx.f32: relative error 2^-11. | one thread | sm_80
static __device__ __forceinline__ float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
//% end)
//% for _, name in ipairs{"sin", "cos"} do
//%   piece(name .. "_approx", function()
// $(name).approx.f32 of radians: absolute error 2^-20 from -pi to pi. | one thread | sm_80
static __device__ __forceinline__ float $(name)_approx(float x) {
  float y;
  asm("$(name).approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
//%   end)
//% end
//% piece("permute_bytes", function()
// prmt.b32: byte n of the result is number selector >> 4 n & 7 of low's, then high's. | one thread | sm_80
static __device__ __forceinline__ unsigned permute_bytes(unsigned low, unsigned high, unsigned selector) {
  unsigned bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}
//% end)
//% piece("population_count", function()
// popc.b32: the number of set bits. | one thread | sm_80
static __device__ __forceinline__ int population_count(unsigned x) {
  int count;
  asm("popc.b32 %0, %1;" : "=r"(count) : "r"(x));
  return count;
}
//% end)
//% piece("leading_zeros", function()
// clz.b32: the number of zero bits above the highest set one; 32 for 0. | one thread | sm_80
static __device__ __forceinline__ int leading_zeros(unsigned x) {
  int count;
  asm("clz.b32 %0, %1;" : "=r"(count) : "r"(x));
  return count;
}
//% end)
//% for _, format in ipairs{"bf16", "f16"} do
//%   piece("mul_" .. format .. "x2", function()
// fma.rn.$(format)x2 with -0, the addend that changes nothing: two products, subnormals included. | one thread | sm_80
static __device__ __forceinline__ unsigned mul_$(format)x2(unsigned a, unsigned b) {
  unsigned product;
  asm("fma.rn.$(format)x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}
//%   end)
//% end
