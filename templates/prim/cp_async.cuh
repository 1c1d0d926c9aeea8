//%% cp.async: 16 bytes from global to shared memory without registers, completed by groups of the issuing thread.
//% piece("cp_async_16", function()
// cp.async.cg.shared.global 16: both addresses 16-byte aligned. | one thread | lands by its group's wait | sm_80
static __device__ __forceinline__ void cp_async_16(unsigned to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
//% end)
//% piece("cp_async_16_zfill", function()
// The same, but only the first source_bytes are read; the rest of the 16 bytes becomes zero. | one thread | sm_80
static __device__ __forceinline__ void cp_async_16_zfill(unsigned to, const void *from, int source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(source_bytes) : "memory");
}
//% end)
//% piece("cp_async_commit", function()
// cp.async.commit_group: closes the thread's group of copies. | one thread | sm_80
static __device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
//% end)
//% for groups = 0, 7 do
//%   piece("cp_async_wait_" .. groups, function()
// cp.async.wait_group: all but the newest $(groups) groups have landed. |
// one thread; others need a barrier | sm_80
static __device__ __forceinline__ void cp_async_wait_$(groups)() {
  asm volatile("cp.async.wait_group $(groups);" ::: "memory");
}
//%   end)
//% end
