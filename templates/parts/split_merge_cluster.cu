//%% The blocks of a cluster add up what they found of the same rows: each leaves its part in its own shared memory,
//%% rows a round at a time, and all divide the columns of the rows among themselves. Only threads that merge take
//%% part, so rounds are kept apart by mbarriers: a block's producer is ahead of them, at other work.
//% local layout = kernel.layout -- threads, meet: the constant that counts who merge, and how they wait for each other
// The cluster's blocks meet by these two, which count them: all have left their parts; all have read this block's.
static __device__ __forceinline__ unsigned parts_left() { return smem_addr(shared_arena() + PARTS_BARRIERS); }
static __device__ __forceinline__ unsigned part_read() { return parts_left() + 8; }

static __device__ __forceinline__ void init_part_barriers() {
  mbar_init(parts_left(), CLUSTER);
  mbar_init(part_read(), CLUSTER);
  fence_mbar_init();
}

// Before a block leaves its part in round `round`: its peers have started, and have read that of the round before. All
// threads that merge.
static __device__ __forceinline__ void await_peers(unsigned round) {
  if (round == 0) cluster_wait();
  mbar_wait_cluster(part_read(), round % 2 ^ 1);
}

// Before a block that had `rounds` rounds ends, and its shared memory with it. All threads that merge.
static __device__ __forceinline__ void release_peers(unsigned rounds) {
  mbar_wait_cluster(part_read(), rounds % 2 ^ 1);
}

// Adds up what the blocks left of the staged rows, from first_row of the tile on, in the order of the keys: an equal
// share of the columns. All threads that merge, which have waited for each other's writes.
static __device__ __forceinline__ void merge_peers(
    const qkv_params &p, const work_item &work, int first_row, unsigned round) {
  if (threadIdx.x < CLUSTER) mbar_arrive_remote(parts_left(), threadIdx.x);
  mbar_wait_cluster(parts_left(), round % 2);
  const unsigned states = smem_addr(shared_arena() + PARTS_OFFSET), panel = smem_addr(shared_arena() + PANEL_OFFSET);
  const int rows = min(STAGED_ROWS, work.view.len_q * GROUP - (work.row_begin + first_row));
  const int items = rows * (DIM_V / 4), share = (items + CLUSTER - 1) / CLUSTER, begin = cluster_rank() * share;
  for (int item = begin + threadIdx.x; item < min(begin + share, items); item += $(layout.threads)) {
    const int row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4;
    row_part all = {minus_infinity(), 0.0f};
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int first = 0; first < CLUSTER; first += PARTS_AT_ONCE) {
      row_part part[PARTS_AT_ONCE];
      float4 value[PARTS_AT_ONCE];
#pragma unroll
      for (int n = 0; n < PARTS_AT_ONCE; ++n) {
        const float2 state = load_remote_f32x2(states + row * 8, first + n);
        part[n] = {state.x, state.y};
        value[n] = load_remote_f32x4(panel + (row * PANEL_PITCH + column) * 4, first + n);
      }
      add_parts(all, sum, part, value, PARTS_AT_ONCE);
    }
    finish_row(p, work, first_row + row, column, sum, all);
  }
  $(layout.meet); // all have read
  if (threadIdx.x < CLUSTER) mbar_arrive_remote(part_read(), threadIdx.x);
}
