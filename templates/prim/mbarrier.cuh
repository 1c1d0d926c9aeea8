//%% mbarrier: 8-byte counters in shared memory. A phase completes when all arrivals and all expected bytes are there; a
//%% phase's parity is its number modulo 2, and waiting for a parity waits until the latest phase of that parity is
//%% complete.
//% piece("mbar_init", function()
// mbarrier.init: count arrivals complete a phase; others may use it after fence_mbar_init and a barrier. |
// one thread | sm_90
static __device__ __forceinline__ void mbar_init(unsigned mbar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbar), "r"(count) : "memory");
}
//% end)
//% piece("fence_mbar_init", function()
// fence.mbarrier_init: the thread's mbar_inits become visible to the asynchronous proxy and the cluster. |
// one thread | sm_90
static __device__ __forceinline__ void fence_mbar_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
//% end)
//% piece("mbar_arrive", function()
// mbarrier.arrive: releases what the thread did before to those who wait for the phase. | one thread | sm_90
static __device__ __forceinline__ void mbar_arrive(unsigned mbar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbar) : "memory");
}
//% end)
//% piece("mbar_arrive_expect_tx", function()
// mbarrier.arrive.expect_tx: arrives, and the phase also waits for so many bytes of bulk copies. | one thread | sm_90
static __device__ __forceinline__ void mbar_arrive_expect_tx(unsigned mbar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbar), "r"(bytes) : "memory");
}
//% end)
//% piece("mbar_arrive_remote", function()
// mapa, mbarrier.arrive.release.cluster: arrives at the same mbarrier of another block of the cluster. |
// one thread | sm_90
static __device__ __forceinline__ void mbar_arrive_remote(unsigned mbar, int cta) {
  asm volatile("{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
               " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(mbar), "r"(cta)
               : "memory");
}
//% end)
//% piece("mbar_wait", function()
// mbarrier.try_wait.parity in a loop: until the phase of this parity is complete; acquires what its arrivals released.
// | one thread | sm_90
static __device__ __forceinline__ void mbar_wait(unsigned mbar, int parity) {
  asm volatile("{\n .reg .pred done;\nWAIT:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
               " @done bra DONE;\n bra WAIT;\nDONE:\n}" ::"r"(mbar), "r"(parity)
               : "memory");
}
//% end)
//% piece("mbar_wait_cluster", function()
// mbar_wait that also acquires what other blocks of the cluster released by mbar_arrive_remote. | one thread | sm_90
static __device__ __forceinline__ void mbar_wait_cluster(unsigned mbar, int parity) {
  asm volatile("{\n .reg .pred done;\nWAIT:\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, "
               "0x989680;\n @done bra DONE;\n bra WAIT;\nDONE:\n}" ::"r"(mbar), "r"(parity)
               : "memory");
}
//% end)
