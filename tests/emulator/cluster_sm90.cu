// Clusters of x[0] = 1, 2 or 4 blocks: a ring whose tiles each block fetches a share of, for all blocks. Which tile
// comes next block 0 of the cluster asks of a global counter, and tells the others. p.n tiles of 32 x 64 elements;
// out[0]: the counter; out[1 + t]: what all threads t saw. p.mode plants one fault; 0: none; 21: none,
// and out[1 + block] is how many tiles its threads saw. Launch: 128 threads.
enum {
  STAGES = 2, ROWS = 32, TILE = ROWS * 128, CONSUMERS = 3, // warps
  FULL = STAGES * TILE, EMPTY = FULL + 8 * STAGES, TICKET_FULL = EMPTY + 8 * STAGES,
  TICKET_EMPTY = TICKET_FULL + 8 * STAGES, TICKET = TICKET_EMPTY + 8 * STAGES
};

static __device__ __forceinline__ void wait_cluster(const qkv_params &p, unsigned mbar, int parity) {
  if (p.mode == 10) mbar_wait(mbar, parity);
  else mbar_wait_cluster(mbar, parity);
}

// The i-th tile. Block 0's producer gives it to all blocks, the others' producers take it as the consumers do.
static __device__ __forceinline__ unsigned hand_out(const qkv_params &p, unsigned shared, int i) {
  unsigned full = shared + TICKET_FULL + 8 * (i % STAGES), empty = shared + TICKET_EMPTY + 8 * (i % STAGES);
  int place = TICKET + 4 * (i % STAGES), parity = i / STAGES % 2;
  if (cluster_rank() == 0) {
    unsigned number = atomic_add_i32((int *)p.out, 1);
    mbar_wait_cluster(empty, parity ^ 1);
    for (int cta = 0; cta < p.x[0]; cta++) {
      if (p.mode == 12) mbar_arrive_remote(full, cta);
      store_remote_u32(shared + place, number, cta);
      if (p.mode != 12) mbar_arrive_remote(full, cta);
    }
    return number;
  }
  wait_cluster(p, full, parity);
  unsigned number = *(unsigned *)(shared_arena() + place);
  if (p.mode != 14) mbar_arrive_remote(empty, 0);
  return number;
}

static __device__ __forceinline__ void produce(const qkv_params &p, unsigned shared) {
  int size = p.x[0], rank = cluster_rank(), all = (1 << size) - 1;
  for (int i = 0;; i++) {
    unsigned number = hand_out(p, shared, i), full = shared + FULL + 8 * (i % STAGES);
    if (number >= p.n) break;
    if (p.mode != 11) mbar_wait_cluster(shared + EMPTY + 8 * (i % STAGES), i / STAGES % 2 ^ 1);
    mbar_arrive_expect_tx(full, p.mode == 5 ? TILE / size : p.mode == 19 ? 2 * TILE : TILE);
    int mask = p.mode == 4 ? 1 << rank : p.mode == 8 ? 2 * all + 1 : p.mode == 13 ? all ^ 1 << rank : all;
    unsigned to = shared + i % STAGES * TILE + (p.mode == 20 ? 0 : rank) * TILE / size;
    if (i % 2) tma_load_4d_multicast(to, &p.map[0], full, 0, number * ROWS + rank * ROWS / size, 0, 0, mask);
    else tma_load_4d_multicast_evict_last(to, &p.map[0], full, 0, number * ROWS + rank * ROWS / size, 0, 0, mask);
  }
}

static __device__ __forceinline__ unsigned consume(const qkv_params &p, unsigned shared) {
  int size = p.x[0], lane = threadIdx.x % 32, t = threadIdx.x - 32;
  unsigned sum = 0;
  for (int i = 0;; i++) {
    wait_cluster(p, shared + TICKET_FULL + 8 * (i % STAGES), i / STAGES % 2);
    unsigned number = *(unsigned *)(shared_arena() + TICKET + 4 * (i % STAGES));
    warp_sync();
    if (lane == 0) mbar_arrive_remote(shared + TICKET_EMPTY + 8 * (i % STAGES), p.mode == 15 ? size : 0);
    if (number >= p.n) return p.mode == 21 ? i : sum;
    mbar_wait(shared + FULL + 8 * (i % STAGES), i / STAGES % 2);
    for (int at = t; at < TILE / 4; at += 32 * CONSUMERS)
      sum += (at + 1) * ((const unsigned *)(shared_arena() + i % STAGES * TILE))[at];
    warp_sync();
    if (lane < size) mbar_arrive_remote(shared + EMPTY + 8 * (i % STAGES), p.mode == 3 ? cluster_rank() : lane);
  }
}

extern "C" __global__ void __launch_bounds__(128) cluster(const __grid_constant__ qkv_params p) {
  unsigned shared = smem_addr(shared_arena()), sum = 0;
  int size = p.x[0];
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbar_init(shared + FULL + 8 * i, 1);
      mbar_init(shared + EMPTY + 8 * i, p.mode == 6 ? CONSUMERS : CONSUMERS * size);
      mbar_init(shared + TICKET_FULL + 8 * i, 1);
      mbar_init(shared + TICKET_EMPTY + 8 * i, p.mode == 18 ? CONSUMERS : CONSUMERS * size + size - 1);
    }
    if (p.mode != 9) fence_mbar_init();
  }
  if (p.mode == 1) block_sync();
  else cluster_arrive();
  if (p.mode == 17) cluster_arrive();
  if (p.mode != 1 && p.mode != 7) cluster_wait();
  if (threadIdx.x == 0) produce(p, shared);
  else if (threadIdx.x >= 32) sum = consume(p, shared);
  warp_sync();
  if (p.mode == 7) cluster_wait();
  if (p.mode != 2) {
    cluster_arrive();
    if (p.mode != 16) cluster_wait();
  }
  atomic_add_i32((int *)p.out + 1 + (p.mode == 21 ? blockIdx.x : threadIdx.x), (int)sum);
}
QKV_EMU_ENTRY(cluster)

// Clusters of x[0] blocks that read each other's shared memory: in each of p.n rounds every block leaves six floats a
// thread, and adds up what all left at the place of another thread. out[block][thread]: six sums. p.mode plants one
// fault; 0: none. Launch: 64 threads.
enum { PAIRS = 64 * 16, EXCHANGE_BYTES = PAIRS + 64 * 8 };

static __device__ __forceinline__ void meet(bool arrives, bool waits) {
  if (arrives) cluster_arrive();
  if (waits) cluster_wait();
}

extern "C" __global__ void __launch_bounds__(64) exchange(const __grid_constant__ qkv_params p) {
  const unsigned shared = smem_addr(shared_arena());
  const int size = p.x[0], t = threadIdx.x, other = t ^ 33;
  float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float2 two = make_float2(0.0f, 0.0f);
  for (int round = 0; round < p.n; ++round) {
    const float *from = (const float *)p.in + (((long long)round * gridDim.x + blockIdx.x) * 64 + t) * 6;
    ((float4 *)shared_arena())[t] = make_float4(from[0], from[1], from[2], from[3]);
    ((float2 *)(shared_arena() + PAIRS))[t] = make_float2(from[4], from[5]);
    if (p.mode == 1) block_sync();
    else meet(true, p.mode != 2);
    for (int cta = 0; cta < (p.mode == 3 ? size + 1 : size); ++cta) {
      const float4 a = load_remote_f32x4(shared + 16 * (p.mode == 4 ? 64 + t : other), cta);
      const float2 b = load_remote_f32x2(shared + PAIRS + 8 * other + (p.mode == 5 ? 4 : 0), cta);
      four.x += a.x, four.y += a.y, four.z += a.z, four.w += a.w;
      two.x += b.x, two.y += b.y;
    }
    if (p.mode == 2) cluster_wait();
    const bool ends = round == p.n - 1;
    if (p.mode == 6 && !ends) block_sync(); // the next round's floats may come before a peer has read this one's
    else if (p.mode != 7 || !ends) meet(true, p.mode != 8 || !ends);
  }
  float *to = (float *)p.out + ((long long)blockIdx.x * 64 + t) * 6;
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w, to[4] = two.x, to[5] = two.y;
}
QKV_EMU_ENTRY(exchange)
