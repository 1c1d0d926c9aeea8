//%% Named barriers: ids 1 to 15 (0 is block_sync's), for so many threads of whole warps.
//% piece("bar_sync", function()
// barrier.sync: arrives and waits for all; orders their shared-memory accesses. | whole warps | sm_80
static __device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
//% end)
//% piece("bar_arrive", function()
// barrier.arrive: arrives without waiting; what came before is visible to those who wait. | whole warps | sm_80
static __device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
//% end)
