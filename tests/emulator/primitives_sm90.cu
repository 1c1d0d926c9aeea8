// Small kernels around the primitives of sm_90; test_emu_sm90.c says what each must do. x holds coordinates or strides.

static __device__ __forceinline__ void load(const qkv_params &p, unsigned to, unsigned mbar) {
  const tensor_map *map = &p.map[0];
  const int *c = p.x;
  if (p.mode == 2) tma_load_2d(to, map, mbar, c[0], c[1]);
  if (p.mode == 3) tma_load_3d(to, map, mbar, c[0], c[1], c[2]);
  if (p.mode == 4) tma_load_4d(to, map, mbar, c[0], c[1], c[2], c[3]);
  if (p.mode == 5) tma_load_5d(to, map, mbar, c[0], c[1], c[2], c[3], c[4]);
  if (p.mode == 6) tma_load_4d_multicast(to, map, mbar, c[0], c[1], c[2], c[3], 1);
}

// One box of p.n bytes to x[5]; shared memory as it is then goes to `out`.
extern "C" __global__ void box_in(const __grid_constant__ qkv_params p) {
  unsigned char *shared = shared_arena();
  unsigned mbar = smem_addr(shared);
  if (threadIdx.x == 0) {
    mbar_init(mbar, 1);
    fence_mbar_init();
    mbar_arrive_expect_tx(mbar, p.n);
    load(p, smem_addr(shared + p.x[5]), mbar);
  }
  block_sync();
  mbar_wait(mbar, 0);
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) ((unsigned char *)p.out)[i] = shared[p.x[5] + i];
}

// The inverse: p.n bytes of `in` become shared memory, which a box takes away.
extern "C" __global__ void box_out(const __grid_constant__ qkv_params p) {
  unsigned char *shared = shared_arena();
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) shared[p.x[5] + i] = ((const unsigned char *)p.in)[i];
  fence_proxy_async();
  block_sync();
  if (threadIdx.x > 0) return;
  unsigned from = smem_addr(shared + p.x[5]);
  const tensor_map *map = &p.map[0];
  const int *c = p.x;
  if (p.mode == 2) tma_store_2d(map, from, c[0], c[1]);
  if (p.mode == 3) tma_store_3d(map, from, c[0], c[1], c[2]);
  if (p.mode == 4) tma_store_4d(map, from, c[0], c[1], c[2], c[3]);
  if (p.mode == 5) tma_store_5d(map, from, c[0], c[1], c[2], c[3], c[4]);
  bulk_commit();
  if (threadIdx.x == 0) bulk_wait_0();
}

// stmatrix of what each lane's place says, and the shared memory that results.
extern "C" __global__ void matrix_store(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x;
  unsigned r[4];
  for (int m = 0; m < 4; m++) r[m] = 2 * (32 * m + t) | (2 * (32 * m + t) + 1) << 16;
  unsigned address = smem_addr(shared_arena() + 16 * ((const int *)p.in)[t]);
  unsigned behind = smem_addr(shared_arena() + 16 * ((const int *)p.in)[t ^ 16]);
  if (p.mode == 0) stmatrix_x4(address, r[0], r[1], r[2], r[3]);
  if (p.mode == 1) stmatrix_x4_trans(address, r[0], r[1], r[2], r[3]);
  if (p.mode == 2) stmatrix_x2(address, r[0], r[1]), stmatrix_x2(behind, r[2], r[3]);
  if (p.mode == 3) stmatrix_x2_trans(address, r[0], r[1]), stmatrix_x2_trans(behind, r[2], r[3]);
  warp_sync();
  for (int i = t; i < 256; i += 32) ((unsigned short *)p.out)[i] = ((const unsigned short *)shared_arena())[i];
}

// Warp 0 hands numbers to warp 1 without waiting for it: barrier 1 full, barrier 2 empty.
extern "C" __global__ void hand_over(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, lane = t & 31, *slots = (int *)shared_arena(), sum = 0;
  if (t >= 32) bar_arrive(2, 64);
  for (int i = 0; i < p.n; i++) {
    if (t < 32) {
      if (p.mode != 1) bar_sync(2, 64);
      slots[lane] = i * 32 + lane;
      bar_arrive(1, 64);
    } else {
      bar_sync(1, 64);
      sum += slots[lane ^ 7];
      if (i + 1 < p.n) bar_arrive(2, 64);
    }
  }
  ((int *)p.out)[t] = sum;
}

// All threads agree on whether one of them is in[i], round by round, and see what the others wrote before. 1: some come to
// the barrier by bar_sync.
extern "C" __global__ void agree(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, *slots = (int *)shared_arena(), sum = 0;
  for (int i = 0; i < p.n; i++) {
    slots[64 * i + t] = 3 * i + t;
    int any = 0;
    if (p.mode == 1 && t >= 32) bar_sync(1 + i % 2, 64);
    else any = bar_or(1 + i % 2, 64, t == ((const int *)p.in)[i]);
    sum = 2 * sum + any + slots[64 * i + (t ^ 37)];
  }
  ((int *)p.out)[t] = sum;
}

// A plain bulk copy, a remote arrival at the own block, a barrier of the cluster, a global counter.
// Of sm_89, which has no file of its own.
extern "C" __global__ void bytes_out(const __grid_constant__ qkv_params p) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  float x = ((const float *)p.in)[t];
  ((unsigned *)p.out)[t] = pack_e4m3x2(x, -0.5f * x);
}

extern "C" __global__ void bytes_in(const __grid_constant__ qkv_params p) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned four = ((const unsigned *)p.in)[t], *out = (unsigned *)p.out + 2 * t;
  out[0] = e4m3x4_low_to_f16x2(four), out[1] = e4m3x4_high_to_f16x2(four);
}

extern "C" __global__ void odds(const __grid_constant__ qkv_params p) {
  unsigned char *shared = shared_arena();
  unsigned mbar = smem_addr(shared), gate = mbar + 8;
  int t = threadIdx.x, *out = (int *)p.out;
  if (t == 0) {
    mbar_init(mbar, 1);
    mbar_init(gate, blockDim.x);
    fence_mbar_init();
  }
  cluster_arrive();
  if (p.mode != 1) cluster_wait();
  if (t == 0) {
    mbar_arrive_expect_tx(mbar, 4 * blockDim.x);
    bulk_load(smem_addr(shared + 128), p.in, 4 * blockDim.x, mbar);
  }
  mbar_wait(mbar, 0);
  int value = ((const int *)(shared + 128))[t];
  if (p.mode != 2) mbar_arrive_remote(gate, cluster_rank());
  mbar_wait(gate, p.mode == 2);
  ((int *)(shared + 128))[t ^ 1] = value + atomic_add_i32(out, 1) * 0;
  block_sync();
  out[1 + t] = ((const int *)(shared + 128))[t];
}

// Tiles of an operand, panels of x[..] bytes: from a tensor map, one box a panel.
static __device__ __forceinline__ void load_panels(unsigned to, const tensor_map *map, unsigned mbar, int panels, int columns, int bytes) {
  for (int j = 0; j < panels; j++) tma_load_2d(to + j * bytes, map, mbar, j * columns, 0);
}

// D (64 x N) += A (64 x 64) B (64 x N). mode: 0 ss, 1 ss_t, 2 rs, 3 rs_t, 16 ss_at; + 4: D starts from `out`; + 8: as many
// steps of K in one statement as lie in a panel. x: swizzle code of both, its width in bytes, rows of B's panels, panels of B.
#define UNROLL _Pragma("unroll") // arrays of registers
#define PRODUCT(n, format)                                                                                             \
  extern "C" __global__ void product_##n##_##format(const __grid_constant__ qkv_params p) {                            \
    unsigned char *shared = shared_arena();                                                                            \
    unsigned a = smem_addr(shared), b = a + 8192, mbar = b + 65536;                                                    \
    int t = threadIdx.x, width = p.x[1], rows = p.x[2], panels = p.x[3], keep = p.mode & 4;                            \
    int form = p.mode & 16 ? 4 : p.mode & 3, joined = p.mode & 8;                                                      \
    if (t == 0) {                                                                                                      \
      mbar_init(mbar, 1);                                                                                              \
      fence_mbar_init();                                                                                               \
      mbar_arrive_expect_tx(mbar, 8192 + panels * rows * width);                                                       \
      load_panels(a, &p.map[0], mbar, 128 / width, width / 2, 64 * width);                                             \
      load_panels(b, &p.map[1], mbar, panels, width / 2, rows * width);                                                \
    }                                                                                                                  \
    block_sync();                                                                                                      \
    mbar_wait(mbar, 0);                                                                                                \
    float d[n / 2], *out = (float *)p.out;                                                                             \
    int row = t / 32 * 16 + t % 32 / 4, column = 2 * (t % 4);                                                          \
    UNROLL for (int i = 0; i < n / 2; i++)                                                                             \
      d[i] = keep ? out[(row + 8 * (i / 2 % 2)) * n + 8 * (i / 4) + column + i % 2] : 7;                               \
    unsigned fragment[16];                                                                                             \
    const unsigned *in = (const unsigned *)p.in; /* A by pairs */                                                      \
    UNROLL for (int i = 0; i < 16; i++) fragment[i] = in[(row + 8 * (i % 2)) * 32 + column / 2 + 4 * (i / 2)];         \
    wgmma_fence();                                                                                                     \
    UNROLL for (int k = 0; k < 4; k++) {                                                                               \
      int in_a = width == 16 ? 2 * k * 64 * 16 : 32 * k / width * 64 * width + 32 * k % width;                         \
      int in_b = width == 16 ? 2 * k * rows * 16 : 32 * k / width * rows * width + 32 * k % width;                     \
      int step = width == 16 ? 256 : 16 * width;                                                                       \
      unsigned long long da = matrix_descriptor(a + in_a, 64 * width, 8 * width, p.x[0]);                              \
      unsigned long long db = matrix_descriptor(b + in_b, rows * width, 8 * width, p.x[0]);                            \
      unsigned long long dt = width == 16 ? matrix_descriptor(b + step * k, 128, rows * 16, 0)                         \
                                          : matrix_descriptor(b + step * k, rows * width, 8 * width, p.x[0]);          \
      int step_a = 16 * width;                                                                                         \
      unsigned long long ta = width == 16 ? matrix_descriptor(a + step_a * k, 128, 64 * 16, 0)                         \
                                          : matrix_descriptor(a + step_a * k, 64 * width, 8 * width, p.x[0]);          \
      unsigned *f = fragment + 4 * k;                                                                                  \
      int four = joined && (width == 128 || form == 3), two = joined && width == 64;                                   \
      if (four && k > 0) continue;                                                                                     \
      if (!four && two && k % 2) continue;                                                                             \
      if (form == 0 && four) wgmma_m64n##n##k64_##format##_ss(d, da, db, keep);                                        \
      else if (form == 0 && two) wgmma_m64n##n##k32_##format##_ss(d, da, db, keep || k);                               \
      else if (form == 0) wgmma_m64n##n##k16_##format##_ss(d, da, db, keep || k);                                      \
      if (form == 1 && four) wgmma_m64n##n##k64_##format##_ss_t(d, da, dt, keep, step);                                \
      else if (form == 1 && two) wgmma_m64n##n##k32_##format##_ss_t(d, da, dt, keep || k, step);                       \
      else if (form == 1) wgmma_m64n##n##k16_##format##_ss_t(d, da, dt, keep || k);                                    \
      if (form == 2 && four) wgmma_m64n##n##k64_##format##_rs(d, f, db, keep);                                         \
      else if (form == 2 && two) wgmma_m64n##n##k32_##format##_rs(d, f, db, keep || k);                                \
      else if (form == 2) wgmma_m64n##n##k16_##format##_rs(d, f, db, keep || k);                                       \
      if (form == 3 && four) wgmma_m64n##n##k64_##format##_rs_t(d, f, dt, keep, step);                                 \
      else if (form == 3) wgmma_m64n##n##k16_##format##_rs_t(d, f, dt, keep || k);                                     \
      if (form == 4 && four) wgmma_m64n##n##k64_##format##_ss_at(d, ta, db, keep, step_a);                             \
      else if (form == 4 && two) wgmma_m64n##n##k32_##format##_ss_at(d, ta, db, keep || k, step_a);                    \
      else if (form == 4) wgmma_m64n##n##k16_##format##_ss_at(d, ta, db, keep || k);                                   \
    }                                                                                                                  \
    wgmma_commit();                                                                                                    \
    wgmma_wait_0();                                                                                                    \
    UNROLL for (int i = 0; i < n / 2; i++)                                                                             \
      out[(row + 8 * (i / 2 % 2)) * n + 8 * (i / 4) + column + i % 2] = d[i];                                          \
  }                                                                                                                    \
  QKV_EMU_ENTRY(product_##n##_##format)
PRODUCT(8, f16)
PRODUCT(8, bf16)
PRODUCT(24, bf16)
PRODUCT(64, bf16)
PRODUCT(80, f16)
PRODUCT(128, bf16)
PRODUCT(176, bf16)
PRODUCT(256, f16)

// Two groups in flight over one A and one B (64 x 64 each, 128B-swizzled): e = A B^T, f = A B. 1: f is read too early;
// 2: e is read too early; 3: a product of the second group goes to e.
extern "C" __global__ void two_groups(const __grid_constant__ qkv_params p) {
  unsigned char *shared = shared_arena();
  unsigned a = smem_addr(shared), b = a + 8192, mbar = b + 8192;
  int t = threadIdx.x;
  if (t == 0) {
    mbar_init(mbar, 1);
    fence_mbar_init();
    mbar_arrive_expect_tx(mbar, 16384);
    tma_load_2d(a, &p.map[0], mbar, 0, 0);
    tma_load_2d(b, &p.map[1], mbar, 0, 0);
  }
  block_sync();
  mbar_wait(mbar, 0);
  float e[32], f[32], *out = (float *)p.out;
  wgmma_fence();
  UNROLL for (int k = 0; k < 4; k++)
    wgmma_m64n64k16_bf16_ss(e, matrix_descriptor(a + 32 * k, 16, 1024, 1), matrix_descriptor(b + 32 * k, 16, 1024, 1), k);
  wgmma_commit();
  UNROLL for (int k = 0; k < 4; k++)
    wgmma_m64n64k16_bf16_ss_t(p.mode == 3 ? e : f, matrix_descriptor(a + 32 * k, 16, 1024, 1),
                              matrix_descriptor(b + 2048 * k, 8192, 1024, 1), k);
  wgmma_commit();
  if (p.mode == 2) wgmma_wait_2();
  else wgmma_wait_1();
  int row = t / 32 * 16 + t % 32 / 4, column = 2 * (t % 4);
  UNROLL for (int i = 0; i < 32; i++) out[(row + 8 * (i / 2 % 2)) * 64 + 8 * (i / 4) + column + i % 2] = p.mode == 1 ? f[i] : e[i];
  wgmma_wait_0();
  UNROLL for (int i = 0; i < 32; i++) out[4096 + (row + 8 * (i / 2 % 2)) * 64 + 8 * (i / 4) + column + i % 2] = f[i];
}
QKV_EMU_ENTRY(box_in)
QKV_EMU_ENTRY(box_out)
QKV_EMU_ENTRY(matrix_store)
QKV_EMU_ENTRY(hand_over)
QKV_EMU_ENTRY(agree)
QKV_EMU_ENTRY(bytes_out)
QKV_EMU_ENTRY(bytes_in)
QKV_EMU_ENTRY(odds)
QKV_EMU_ENTRY(two_groups)
