// The warp-specialised ring that sm_90 attention is made of: one thread copies tiles of K, two warpgroups multiply. Each
// block of 128 rows: S = Q K^T leaves through shared memory and a tensor store; Y += S K stays in registers. p.mode plants one
// fault; 0: none. Launch: 384 threads. D = 128, tiles of 64 rows of K, two stages, p.n tiles.
#define UNROLL _Pragma("unroll") // arrays of registers
enum {
  STAGES = 2, ROWS = 64, PANEL = ROWS * 128, TILE = 2 * PANEL, // of K: two panels of 64 columns
  Q_PANEL = 128 * 128, Q = 0, K = 2 * Q_PANEL, S = K + STAGES * TILE, BARS = S + 2 * PANEL
};

static __device__ __forceinline__ void produce(const qkv_params &p, unsigned shared) {
  unsigned full = shared + BARS, empty = full + 8 * STAGES, q_full = empty + 8 * STAGES;
  tma_prefetch(&p.map[0]);
  mbar_arrive_expect_tx(q_full, 2 * Q_PANEL);
  for (int j = 0; j < 2; j++)
    tma_load_2d(shared + Q + j * Q_PANEL, &p.map[0], q_full, 64 * j, 128 * blockIdx.x);
  for (int i = 0; i < p.n; i++) {
    int stage = i % STAGES, parity = i / STAGES & 1;
    if (p.mode != 1) mbar_wait(empty + 8 * stage, parity ^ 1);
    mbar_arrive_expect_tx(full + 8 * stage, p.mode == 7 ? PANEL : p.mode == 8 ? 2 * TILE : TILE);
    for (int j = 0; j < 2; j++) {
      unsigned to = shared + K + stage * TILE + j * PANEL;
      if (p.mode == 36) tma_load_3d(to, &p.map[1], full + 8 * stage, 64 * j, ROWS * i, 0);
      else tma_load_2d(p.mode == 31 ? to + 64 : to, &p.map[1], full + 8 * stage, 64 * j + (p.mode == 40 ? 4 : 0), ROWS * i);
    }
  }
}

// Rows of this warpgroup's S into its slab, 128B-swizzled, by pairs.
static __device__ __forceinline__ void write_scores(const qkv_params &p, const float *s, unsigned slab, int t) {
  unsigned char *shared = shared_arena();
  unsigned base = slab - smem_addr(shared);
  int row = t / 32 * 16 + t % 32 / 4;
  UNROLL for (int j = 0; j < 8; j++)
    UNROLL for (int h = 0; h < 2; h++) {
      int r = row + 8 * h;
      *(unsigned *)(shared + base + r * 128 + ((j ^ (r & 7)) << 4) + 4 * (t & 3)) = pack_bf16x2(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]);
    }
}

static __device__ __forceinline__ void consume(const qkv_params &p, unsigned shared, int c) {
  unsigned full = shared + BARS, empty = full + 8 * STAGES, q_full = empty + 8 * STAGES;
  int t = threadIdx.x & 127, lane = t & 31;
  unsigned slab = p.mode == 14 ? shared + K + TILE + PANEL * c : shared + S + PANEL * c;
  unsigned q = shared + Q + c * 64 * 128;
  float s[32], y[64], sum = 0.0f;
  UNROLL for (int i = 0; i < 64; i++) y[i] = 0.0f;
  mbar_wait(q_full, 0);
  for (int i = 0; i < p.n; i++) {
    int stage = i % STAGES, parity = i / STAGES & 1;
    unsigned k = shared + K + stage * TILE;
    if (p.mode == 30) mbar_wait(full + 64, parity);
    else if (p.mode != 2) mbar_wait(full + 8 * stage, p.mode == 4 ? parity ^ 1 : parity);
    wgmma_fence();
    UNROLL for (int step = 0; step < 8; step++) {
      int offset = step % 4 * 32 + (p.mode == 16 ? 16 : 0);
      int stride = p.mode == 15 ? 512 : p.mode == 18 ? 2048 : 1024;
      unsigned at = k + step / 4 * PANEL + offset;
      if (p.mode == 29 && t / 32 == 3 && step == 5) at -= 32;
      wgmma_m64n64k16_bf16_ss(s, matrix_descriptor(q + step / 4 * Q_PANEL + step % 4 * 32, 16, 1024, 1),
                              matrix_descriptor(at, 16, stride, p.mode == 19 ? 2 : 1), step != 0);
    }
    if (p.mode != 21) wgmma_commit();
    if (p.mode != 20) wgmma_wait_0();
    unsigned a[16];
    UNROLL for (int j = 0; j < 16; j++) a[j] = pack_bf16x2(s[2 * j], s[2 * j + 1]);

    if (t == 0 && p.mode != 11) bulk_wait_read_0();
    if (p.mode != 12) bar_sync(1 + c, p.mode == 25 ? 256 : 128);
    if (p.mode == 38) fence_proxy_async();
    write_scores(p, s, slab, t);
    if (p.mode != 9 && p.mode != 38) fence_proxy_async();
    if (p.mode != 10) bar_sync(1 + c, 128);
    if (t == 0) {
      tma_store_2d(&p.map[2], slab, ROWS * i, 128 * blockIdx.x + 64 * c - (p.mode == 41 ? 1 : 0));
      if (p.mode != 37) bulk_commit();
    }

    if (p.mode == 3 && lane == 0) mbar_arrive(empty + 8 * stage);
    if (p.mode != 22) wgmma_fence();
    UNROLL for (int step = 0; step < 4; step++)
      wgmma_m64n128k16_bf16_rs_t(y, a + 4 * step, matrix_descriptor(k + step * 2048, p.mode == 17 ? 0 : PANEL, 1024, 1), 1);
    wgmma_commit();
    if (p.mode == 33) a[3] = 0;
    wgmma_wait_0();
    sum += bf16_to_f32(*(const unsigned short *)(shared_arena() + (k - smem_addr(shared_arena())) + 2 * t));
    if (p.mode == 32) *(int *)(shared_arena() + BARS) = 0;
    if (p.mode != 13) warp_sync();
    if (p.mode == 27 || (p.mode != 3 && lane == 0)) mbar_arrive(empty + 8 * stage);
  }
  if (t == 0 && p.mode != 26) bulk_wait_read_0();
  float *out = (float *)p.out + (128ll * blockIdx.x + 64 * c) * 128;
  int row = t / 32 * 16 + lane / 4;
  UNROLL for (int i = 0; i < 64; i++) out[(row + 8 * (i / 2 % 2)) * 128 + 8 * (i / 4) + 2 * (lane & 3) + i % 2] = y[i];
  if (p.mode == 39) out[0] = sum;
}

extern "C" __global__ void __launch_bounds__(384, 1) ring(const __grid_constant__ qkv_params p) {
  unsigned shared = smem_addr(shared_arena());
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbar_init(shared + BARS + 8 * i, 1);
      mbar_init(shared + BARS + 8 * STAGES + 8 * i, p.mode == 5 ? 9 : p.mode == 6 ? 4 : 8);
    }
    mbar_init(shared + BARS + 16 * STAGES, 1);
    if (p.mode == 34) mbar_init(shared + BARS, 1);
    if (p.mode != 24) fence_mbar_init();
  }
  if (p.mode != 23) block_sync();
  if (threadIdx.x < 128) {
    registers_decrease_40();
    if (threadIdx.x == 0) produce(p, shared);
  } else {
    if (p.mode == 28) registers_increase_240();
    else registers_increase_232();
    consume(p, shared, threadIdx.x / 128 - 1);
  }
}
QKV_EMU_ENTRY(ring)
