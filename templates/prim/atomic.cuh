//%% Atomic operations on global memory.
//% piece("atomic_add_i32", function()
// atom.relaxed.gpu.add: returns the old value; orders nothing. | one thread | sm_80
static __device__ __forceinline__ int atomic_add_i32(int *p, int v) {
  int old;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
//% end)
