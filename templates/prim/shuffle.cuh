//%% Exchange between the lanes of a warp.
//% piece("shuffle_xor_f32", function()
// shfl.sync.bfly: the value of lane (lane ^ lane_mask). | whole warp | sm_80
static __device__ __forceinline__ float shuffle_xor_f32(float value, int lane_mask) {
  float result;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(result) : "f"(value), "r"(lane_mask));
  return result;
}
//% end)
//% piece("shuffle_f32", function()
// shfl.sync.idx: the value of one lane. | whole warp | sm_80
static __device__ __forceinline__ float shuffle_f32(float value, int lane) {
  float result;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(result) : "f"(value), "r"(lane));
  return result;
}
//% end)
//% piece("shuffle_i32", function()
// shfl.sync.idx: the value of one lane, taken modulo 32. | whole warp | sm_80
static __device__ __forceinline__ int shuffle_i32(int value, int lane) {
  int result;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(result) : "r"(value), "r"(lane));
  return result;
}
//% end)
//% piece("warp_uniform", function()
// shfl.sync.idx of lane 0: a value that is the same in all lanes, known to be so by the compiler. | whole warp | sm_80
static __device__ __forceinline__ int warp_uniform(int value) {
  int result;
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 0x1f, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
}
//% end)
