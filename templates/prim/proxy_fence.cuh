//%% Between the generic proxy (plain loads and stores) and the asynchronous one (bulk copies, wgmma operands in shared
//%% memory).
//% piece("fence_proxy_async", function()
// fence.proxy.async.shared::cta: the thread's writes to shared memory become visible to the asynchronous proxy of those
// it then releases them to. | one thread | sm_90
static __device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
//% end)
