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
