//%% The block's dynamic shared memory: one arena, addressed by 32-bit shared addresses.
//% piece("shared_arena", function()
// Start of the block's dynamic shared memory. | any thread | sm_80
static __device__ __forceinline__ unsigned char *shared_arena() {
  extern __shared__ __align__(1024) unsigned char arena[];
  return arena;
}
//% end)
//% piece("smem_addr", function()
// cvta.to.shared: the 32-bit shared address of a pointer into shared memory. | any thread | sm_80
static __device__ __forceinline__ unsigned smem_addr(const void *pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}
//% end)
