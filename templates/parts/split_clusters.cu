//%% Shares of blocks that are clusters: a cluster takes one work at a time, of which each block has an equal share.
// What a cluster works on: every step-th work from number `begin` on.
struct block_share {
  unsigned begin, end, step;
};

// The first work from `number` on, of the cluster's, that has a slice; the end of all work if none has.
static __device__ __forceinline__ unsigned find_work(
    const qkv_params &p, unsigned number, unsigned end, unsigned step) {
  while (number < end && work_of(p, number).slices == 0) number += step;
  return min(number, end);
}

static __device__ __forceinline__ block_share share_of_block(const qkv_params &p, [[maybe_unused]] int lane) {
  block_share share;
  share.step = gridDim.x / CLUSTER;
  share.end = work_count(p);
  share.begin = find_work(p, blockIdx.x / CLUSTER, share.end, share.step);
  return share;
}

// The block's share of work `number`, which may be empty: not every work has a slice for each block.
static __device__ __forceinline__ work_segment segment_of(
    const qkv_params &p, unsigned number, const block_share &share) {
  work_segment segment;
  segment.work = work_of(p, number);
  const work_item &work = segment.work;
  const unsigned long long slices = work.slices, rank = cluster_rank();
  segment.begin = work.tiles.begin + (int)(slices * rank / CLUSTER);
  segment.end = work.tiles.begin + (int)(slices * (rank + 1) / CLUSTER);
  segment.next = find_work(p, number + share.step, share.end, share.step);
  return segment;
}

static __device__ __forceinline__ work_segment first_segment(
    const qkv_params &p, const block_share &share, [[maybe_unused]] int lane) {
  return segment_of(p, share.begin, share);
}
static __device__ __forceinline__ bool is_last(const work_segment &segment, const block_share &share) {
  return segment.next >= share.end;
}
static __device__ __forceinline__ work_segment next_segment(
    const qkv_params &p, const work_segment &segment, const block_share &share) {
  return segment_of(p, segment.next, share);
}
