//%% Barriers of a block and of a warp.
//% piece("block_sync", function()
// barrier.sync 0: all threads of the block; orders their shared-memory accesses. | whole block | sm_80
static __device__ __forceinline__ void block_sync() { asm volatile("barrier.sync 0;" ::: "memory"); }
//% end)
//% piece("warp_sync", function()
// bar.warp.sync: all lanes of the warp; orders their memory accesses. | whole warp | sm_80
static __device__ __forceinline__ void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
//% end)
