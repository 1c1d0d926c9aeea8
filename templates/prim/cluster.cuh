//%% Blocks of a cluster.
//% piece("cluster_rank", function()
// %cluster_ctarank: this block's number in its cluster. | any thread | sm_90
static __device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
//% end)
//% piece("cluster_arrive", function()
// barrier.cluster.arrive.release: first half of a barrier of the cluster. | all threads of the cluster | sm_90
static __device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
//% end)
//% piece("cluster_wait", function()
// barrier.cluster.wait.acquire: second half. | all threads of the cluster | sm_90
static __device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
//% end)
//% piece("load_remote_f32x2", function()
// mapa, ld.shared::cluster: two floats at this shared address of a block of the cluster. | one thread | of what the
// block wrote before mbar_arrive_remote and mbar_wait_cluster, or a barrier of the cluster | sm_90
static __device__ __forceinline__ float2 load_remote_f32x2(unsigned address, int cta) {
  float2 value;
  asm volatile("{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %2, %3;\n"
               " ld.shared::cluster.v2.f32 {%0, %1}, [remote];\n}"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address), "r"(cta)
               : "memory");
  return value;
}
//% end)
//% piece("load_remote_f32x4", function()
// load_remote_f32x2 of four floats. | one thread | sm_90
static __device__ __forceinline__ float4 load_remote_f32x4(unsigned address, int cta) {
  float4 value;
  asm volatile("{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %4, %5;\n"
               " ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address), "r"(cta)
               : "memory");
  return value;
}
//% end)
//% piece("store_remote_u32", function()
// mapa, st.shared::cluster: writes to this shared address of another block of the cluster. | one thread |
// seen after mbar_arrive_remote and mbar_wait_cluster, or a barrier of the cluster | sm_90
static __device__ __forceinline__ void store_remote_u32(unsigned address, unsigned value, int cta) {
  asm volatile("{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %2;\n"
               " st.shared::cluster.u32 [remote], %1;\n}" ::"r"(address), "r"(value), "r"(cta)
               : "memory");
}
//% end)
