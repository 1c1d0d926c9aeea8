//%% Named barriers: ids 1 to 15 (0 is block_sync's), for so many threads of whole warps.
//% piece("bar_sync", function()
// barrier.sync: arrives and waits for all; orders their shared-memory accesses. | whole warps | sm_80
static __device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
//% end)
//% piece("bar_or", function()
// barrier.red.or: bar_sync that returns whether the predicate holds in one of the threads. | whole warps | sm_80
static __device__ __forceinline__ int bar_or(int id, int threads, int predicate) {
  int result;
  asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %3, 0; barrier.red.or.pred q, %1, %2, p; selp.b32 %0, 1, 0, q; }"
               : "=r"(result)
               : "r"(id), "r"(threads), "r"(predicate)
               : "memory");
  return result;
}
//% end)
//% piece("bar_arrive", function()
// barrier.arrive: arrives without waiting; what came before is visible to those who wait. | whole warps | sm_80
static __device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
//% end)
