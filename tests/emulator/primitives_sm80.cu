// Small kernels around the primitives of sm_80; test_emu_primitives.c says what each must do.

extern "C" __global__ void warp_values(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, at = (blockIdx.x * blockDim.x + t);
  unsigned value = ((const unsigned *)p.in)[at];
  unsigned *out = (unsigned *)p.out + 8ll * at;
  out[0] = value;
  out[1] = __float_as_uint(shuffle_xor_f32(__uint_as_float(value), p.mode));
  out[2] = __float_as_uint(shuffle_f32(__uint_as_float(value), (t * 7 + 3) & 31));
  out[3] = vote_any(value == (unsigned)p.n);
  out[4] = gridDim.x; out[5] = blockDim.x; out[6] = min(t, 5) + max(7u, 3u) + (unsigned)max(1.0f, 2.0f);
  warp_sync();
  out[7] = smem_addr(shared_arena() + 16) - smem_addr(shared_arena());
}

extern "C" __global__ void __launch_bounds__(32) matrix_load(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x;
  const int *rows = (const int *)p.in;
  unsigned short *shared = (unsigned short *)shared_arena();
  for (int i = t; i < 256; i += 32) shared[i] = (unsigned short)(i * 3 + 1);
  block_sync();
  unsigned r[4] = {0, 0, 0, 0}, address = smem_addr(shared + 8 * rows[t]);
  if (p.mode == 1) ldmatrix_x1(r, address);
  if (p.mode == 2) ldmatrix_x2(r, address);
  if (p.mode == 4) ldmatrix_x4(r, address);
  if (p.mode == 5) ldmatrix_x1_trans(r, address);
  if (p.mode == 6) ldmatrix_x2_trans(r, address);
  if (p.mode == 8) ldmatrix_x4_trans(r, address);
  *((uint4 *)p.out + t) = make_uint4(r[0], r[1], r[2], r[3]);
}

// A 16x16, B 16x8 row by row, then C 16x8 as floats; mode 1: bf16
extern "C" __global__ void product(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x;
  unsigned char *shared = shared_arena();
  for (int i = t; i < 48; i += 32) cp_async_16(smem_addr(shared + 16 * i), (const char *)p.in + 16 * i);
  cp_async_commit();
  cp_async_wait_0();
  block_sync();
  unsigned a[4], b[2];
  ldmatrix_x4(a, smem_addr(shared + 32 * (t % 16) + 16 * (t / 16)));
  ldmatrix_x2_trans(b, smem_addr(shared + 512 + 16 * (t % 16)));
  const float *c = (const float *)((const char *)p.in + 768);
  float *out = (float *)p.out;
  int at[4], row = t / 4, column = 2 * (t % 4);
  at[0] = row * 8 + column; at[1] = at[0] + 1; at[2] = at[0] + 64; at[3] = at[1] + 64;
  float d[4] = {c[at[0]], c[at[1]], c[at[2]], c[at[3]]};
  if (p.mode) mma_m16n8k16_bf16(d, a, b[0], b[1]);
  else mma_m16n8k16_f16(d, a, b[0], b[1]);
  for (int i = 0; i < 4; i++) out[at[i]] = d[i];
}

// mode 1: straight into registers, of two lanes in three; the others' addresses are of nothing
extern "C" __global__ void zero_fill(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x;
  if (p.mode) {
    const bool reads = t % 3 != 0;
    *((uint4 *)p.out + t) = load_16_zfill(reads ? (const char *)p.in + 16 * t : (const char *)0, reads);
    return;
  }
  unsigned char *shared = shared_arena();
  cp_async_16_zfill(smem_addr(shared + 16 * t), (const char *)p.in + 16 * t, t % 17);
  cp_async_commit();
  cp_async_wait_0();
  block_sync();
  for (int i = 0; i < 16; i++) ((unsigned char *)p.out)[16 * t + i] = shared[16 * t + i];
}

extern "C" __global__ void functions(const __grid_constant__ qkv_params p) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  float x = ((const float *)p.in)[t];
  float *out = (float *)p.out + 8 * t;
  out[0] = exp2_approx(x); out[1] = log2_approx(x); out[2] = rcp_approx(x);
  out[3] = f16_to_f32((unsigned short)(__float_as_uint(x) >> 12)); // of any bits
  out[4] = __uint_as_float(pack_bf16x2(x, -x)); out[5] = __uint_as_float(pack_f16x2(x, -x));
  out[6] = bf16_to_f32(f32_to_bf16(x)); out[7] = f16_to_f32(f32_to_f16(x));
}

// Of four e4m3 bytes: the first as f32, also as an e5m2; pairs of both formats; and the product of two pairs.
extern "C" __global__ void bytes(const __grid_constant__ qkv_params p) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned four = ((const unsigned *)p.in)[t], *out = (unsigned *)p.out + 8 * t;
  out[0] = __float_as_uint(e4m3_to_f32((unsigned char)four));
  out[1] = __float_as_uint(e5m2_to_f32((unsigned char)four));
  out[2] = e4m3x4_even_to_bf16x2(four), out[3] = e4m3x4_odd_to_bf16x2(four);
  out[4] = e4m3x4_even_to_f16x2(four), out[5] = e4m3x4_odd_to_f16x2(four);
  out[6] = mul_bf16x2(out[2], out[3]), out[7] = mul_f16x2(out[4], out[5]);
}

// Bytes of a number and its complement, in orders that the number tells.
extern "C" __global__ void byte_orders(const __grid_constant__ qkv_params p) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned four = ((const unsigned *)p.in)[t], *out = (unsigned *)p.out + 2 * t;
  out[0] = permute_bytes(four, ~four, four & 0x7777u), out[1] = permute_bytes(four, ~four, four >> 16 & 0x7777u);
}

extern "C" __global__ void tangents(const __grid_constant__ qkv_params p) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  ((float *)p.out)[t] = tanh_approx(((const float *)p.in)[t]);
}

extern "C" __global__ void turns(const __grid_constant__ qkv_params p) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  ((float *)p.out)[2 * t] = sin_approx(((const float *)p.in)[t]);
  ((float *)p.out)[2 * t + 1] = cos_approx(((const float *)p.in)[t]);
}

#ifdef QKV_EMU // twins that the emulator has ahead of their primitive
extern "C" __global__ void ahead(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x;
  ((unsigned *)p.out)[t] = shuffle_xor_b32(((const unsigned *)p.in)[t], p.mode);
}
QKV_EMU_ENTRY(ahead)
#endif

// Two warps hand a tile to the two others through named barriers, over and over.
extern "C" __global__ void relay(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x;
  int *tile = (int *)shared_arena(), *out = (int *)p.out;
  int sum = 0;
  for (int i = 0; i < p.n; i++) {
    if (t < 64) tile[t] = i * 64 + t;
    bar_sync(1, 128);
    if (t >= 64) sum += tile[127 - t];
    bar_sync(2, 128);
    if (t < 64) { tile[t] = 0; bar_sync(3, 64); sum += tile[t ^ 33]; bar_sync(3, 64); }
  }
  out[t] = sum;
}

// Column sums of n tiles of 32 x 16 bytes, double-buffered; three stages, two groups in flight.
extern "C" __global__ void pipeline(const __grid_constant__ qkv_params p) {
  int t = threadIdx.x, sum = 0;
  unsigned char *shared = shared_arena();
  const char *in = (const char *)p.in + 512ll * p.n * blockIdx.x;
  for (int i = 0; i < 2; i++) {
    if (t < 32 && i < p.n) cp_async_16(smem_addr(shared + 512 * i + 16 * t), in + 512 * i + 16 * t);
    cp_async_commit();
  }
  for (int i = 0; i < p.n; i++) {
    cp_async_wait_1();
    block_sync();
    int next = i + 2;
    if (t < 32 && next < p.n) cp_async_16(smem_addr(shared + 512 * (next % 3) + 16 * t), in + 512 * next + 16 * t);
    cp_async_commit();
    for (int row = 0; row < 32; row++) sum += shared[512 * (i % 3) + 16 * row + t % 16] * (t / 16 + 1);
  }
  ((int *)p.out)[blockIdx.x * blockDim.x + t] = sum;
}
QKV_EMU_ENTRY(warp_values)
QKV_EMU_ENTRY(matrix_load)
QKV_EMU_ENTRY(product)
QKV_EMU_ENTRY(zero_fill)
QKV_EMU_ENTRY(functions)
QKV_EMU_ENTRY(bytes)
QKV_EMU_ENTRY(byte_orders)
QKV_EMU_ENTRY(tangents)
QKV_EMU_ENTRY(turns)
QKV_EMU_ENTRY(relay)
QKV_EMU_ENTRY(pipeline)
