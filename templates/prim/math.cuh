//%% Approximate functions of the special-function unit, one instruction each.
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
