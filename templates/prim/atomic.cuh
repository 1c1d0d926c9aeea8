//%% Atomic operations on global memory, and the fence that orders blocks through them: what a thread did before the
//%% fence, or has learnt of by then, comes before what follows the fence of a thread whose atomic comes later at the
//%% same address.
//% piece("atomic_add_i32", function()
// atom.relaxed.gpu.add: returns the old value; orders nothing. | one thread | sm_80
static __device__ __forceinline__ int atomic_add_i32(int *p, int v) {
  int old;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
//% end)
//% piece("atomic_add_i32_acq_rel", function()
// atom.acq_rel.gpu.add: releases what came before, acquires what earlier ones at the address released. |
// one thread | sm_80
static __device__ __forceinline__ int atomic_add_i32_acq_rel(int *p, int v) {
  int old;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
//% end)
//% piece("atomic_wrap_u32", function()
// atom.relaxed.gpu.inc: counts up to `last` and then from 0 again; returns the old value; orders nothing. |
// one thread | sm_80
static __device__ __forceinline__ unsigned atomic_wrap_u32(unsigned *p, unsigned last) {
  unsigned old;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(last) : "memory");
  return old;
}
//% end)
//% piece("fence_acq_rel_gpu", function()
// fence.acq_rel.gpu: the thread's relaxed atomics before it acquire, those after it release. | one thread | sm_80
static __device__ __forceinline__ void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
//% end)
