// Blocks of one launch that hand results to each other. p.mode plants one fault; small numbers: none. `out` holds the
// sums of p.x[0] tiles, then p.n partial sums a tile, then a counter a tile; 32-bit words, a row has one a thread.

static __device__ __forceinline__ int *row_of(const qkv_params &p, int row) {
  return (int *)p.out + row * (int)blockDim.x;
}
static __device__ __forceinline__ int *counter_of(const qkv_params &p, int tile) {
  return row_of(p, p.x[0] + p.x[0] * p.n) + tile;
}

// Takes a number of the tile's counter. 0: relaxed, between fences; 1: acquire and release.
static __device__ __forceinline__ int take(const qkv_params &p, int *counter) {
  if (p.mode == 1) return atomic_add_i32_acq_rel(counter, 1);
  if (p.mode == 15) return (*counter)++;
  if (p.mode != 10 && p.mode != 17) fence_acq_rel_gpu();
  int seen = p.mode == 16 ? *counter : 0, number = atomic_add_i32(counter, 1);
  if (p.mode != 11) fence_acq_rel_gpu();
  return p.mode == 16 ? seen : number;
}

// Last block done: every block sums a part, the last one of a tile sums the parts.
extern "C" __global__ void split(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, tile = blockIdx.x / p.n, part = blockIdx.x % p.n, *ticket = (int *)shared_arena();
  int *partial = row_of(p, p.x[0] + tile * p.n), *counter = counter_of(p, tile);
  int value = ((const int *)p.in)[blockIdx.x * blockDim.x + t] * (tile + 1);
  if (p.mode == 17 && t == 0) fence_acq_rel_gpu();
  partial[part * blockDim.x + t] = value;
  if (p.mode == 18 && t == 0) partial[(part + 1) % p.n * blockDim.x] = value;
  if (p.mode != 12) block_sync();
  if (t == 0) *ticket = take(p, counter);
  block_sync();
  int last = p.mode == 13 ? *ticket == 0 : p.mode == 14 ? 1 : *ticket == p.n - 1;
  if (p.mode == 19 && t == 0) *counter = last ? 0 : *ticket + 1;
  if (!last) return;
  int sum = 0;
  for (int i = 0; i < p.n; i++) sum += partial[i * blockDim.x + t];
  if (p.mode == 20) sum += row_of(p, p.x[0] + (tile + 1) % p.x[0] * p.n)[t];
  row_of(p, tile)[t] = sum;
  if (t == 0) *counter = 0; // for the next launch
}

// The same by single warps, whose lanes learn from lane 0. 10: through a shuffle only, which orders no memory.
extern "C" __global__ void split_warp(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, *partial = row_of(p, p.x[0]);
  partial[blockIdx.x * 32 + t] = ((const int *)p.in)[blockIdx.x * 32 + t];
  warp_sync();
  float number = 0.0f;
  if (t == 0) number = (float)atomic_add_i32_acq_rel(counter_of(p, 0), 1);
  number = shuffle_f32(number, 0);
  if (p.mode != 10) warp_sync();
  if (number != (float)(p.n - 1)) return;
  int sum = 0;
  for (int i = 0; i < p.n; i++) sum += partial[i * 32 + t];
  row_of(p, 0)[t] = sum;
}

// Blocks number themselves as they come; rows of an odd number of 16-bit words, so that neighbours share 32 bits.
// 1: by a counter that the last block leaves as it was found.
// 10: a plain counter; 11: two blocks take the same row; 12: a row is one too long; 13: reads a row not its own.
extern "C" __global__ void ticket(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, *counter = row_of(p, 8), *number = (int *)shared_arena(), length = blockDim.x - 1;
  if (t == 0) *number = p.mode == 10 ? (*counter)++ : p.mode == 1 ? (int)atomic_wrap_u32((unsigned *)counter, gridDim.x - 1)
                                                : atomic_add_i32(counter, 1);
  block_sync();
  int row = p.mode == 11 ? *number / 2 : *number;
  unsigned short *out = (unsigned short *)p.out + row * length;
  if (t < length + (p.mode == 12)) out[t] = (unsigned short)(row * 1000 + t);
  if (p.mode == 13 && t == 0) row_of(p, 8)[8 + row] = out[length];
}

// Parts leave by tensor stores. 10: only their reads are waited for; 11: two blocks store the same row; 12: no fence
// before the atomic.
extern "C" __global__ void split_store(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, *ticket = (int *)(shared_arena() + 1024), *tile = (int *)shared_arena();
  tile[t] = ((const int *)p.in)[blockIdx.x * blockDim.x + t];
  fence_proxy_async();
  block_sync();
  if (t == 0) {
    tma_store_2d(&p.map[0], smem_addr(tile), 0, p.mode == 11 ? blockIdx.x / 2 : blockIdx.x);
    bulk_commit();
    if (p.mode == 10) bulk_wait_read_0();
    else bulk_wait_0();
    if (p.mode != 12) fence_acq_rel_gpu();
    *ticket = atomic_add_i32(counter_of(p, 0), 1);
    fence_acq_rel_gpu();
  }
  block_sync();
  if (*ticket != p.n - 1) return;
  int sum = 0;
  for (int i = 0; i < p.n; i++) sum += row_of(p, p.x[0] + i)[t];
  row_of(p, 0)[t] = sum;
}

// Three blocks that wait for each other by relaxed atomics, which order nothing: the first writes by two threads,
// each of which releases to a counter of its own; the second one takes from the first counter and gives to the third;
// the third one knows both writes, from the second and third counter. 10: the second block gives before it takes;
// 11: it takes relaxed; 12: the third block leaves out the second counter; 13: a thread writes behind its release.
extern "C" __global__ void chain(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, *out = row_of(p, 0), *counter = row_of(p, 2), *role = (int *)shared_arena();
  if (t == 0) {
    *role = atomic_add_i32(counter + 8, 1);
    while (atomic_add_i32(counter + 9, 0) < *role) {}
  }
  block_sync();
  if (*role == 0 && t % 32 == 0) {
    out[t] = t + 1;
    atomic_add_i32_acq_rel(counter + t / 32, 1);
    if (p.mode == 13) out[t] = t + 1;
  }
  if (*role == 1 && t == 0) {
    if (p.mode == 10) atomic_add_i32_acq_rel(counter + 2, 1);
    if (p.mode == 11) atomic_add_i32(counter, 1);
    else atomic_add_i32_acq_rel(counter, 1);
    if (p.mode != 10) atomic_add_i32_acq_rel(counter + 2, 1);
  }
  if (*role != 2) {
    block_sync();
    if (t == 0) atomic_add_i32(counter + 9, 1);
    return;
  }
  if (t == 0) {
    if (p.mode != 12) atomic_add_i32_acq_rel(counter + 1, 1);
    atomic_add_i32_acq_rel(counter + 2, 1);
  }
  block_sync();
  row_of(p, 1)[t] = out[0] + out[32];
}
QKV_EMU_ENTRY(chain)
QKV_EMU_ENTRY(split)
QKV_EMU_ENTRY(split_warp)
QKV_EMU_ENTRY(ticket)
QKV_EMU_ENTRY(split_store)
