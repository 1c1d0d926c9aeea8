/* Every primitive's twin against plain loops over the same numbers, and a fused kernel that uses them together. */
#include "emu_fixture.h"

#include <math.h>

#include "emu/formats.h"

static const char source[] = FIXTURE_PARAMS
    "extern \"C\" __global__ void warp_values(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x, at = (blockIdx.x * blockDim.x + t);\n"
    "  unsigned value = ((const unsigned *)p.in)[at];\n"
    "  unsigned *out = (unsigned *)p.out + 8ll * at;\n"
    "  out[0] = shuffle_xor_b32(value, p.mode);\n"
    "  out[1] = __float_as_uint(shuffle_xor_f32(__uint_as_float(value), p.mode));\n"
    "  out[2] = __float_as_uint(shuffle_f32(__uint_as_float(value), (t * 7 + 3) & 31));\n"
    "  out[3] = vote_any(value == (unsigned)p.n);\n"
    "  out[4] = gridDim.x; out[5] = blockDim.x; out[6] = min(t, 5) + max(7u, 3u) + (unsigned)max(1.0f, 2.0f);\n"
    "  warp_sync();\n"
    "  out[7] = smem_addr(shared_arena() + 16) - smem_addr(shared_arena());\n"
    "}\n"
    "\n"
    "extern \"C\" __global__ void __launch_bounds__(32) matrix_load(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x;\n"
    "  const int *rows = (const int *)p.in;\n"
    "  unsigned short *shared = (unsigned short *)shared_arena();\n"
    "  for (int i = t; i < 256; i += 32) shared[i] = (unsigned short)(i * 3 + 1);\n"
    "  block_sync();\n"
    "  unsigned r[4] = {0, 0, 0, 0}, address = smem_addr(shared + 8 * rows[t]);\n"
    "  if (p.mode == 1) ldmatrix_x1(r, address);\n"
    "  if (p.mode == 2) ldmatrix_x2(r, address);\n"
    "  if (p.mode == 4) ldmatrix_x4(r, address);\n"
    "  if (p.mode == 5) ldmatrix_x1_trans(r, address);\n"
    "  if (p.mode == 6) ldmatrix_x2_trans(r, address);\n"
    "  if (p.mode == 8) ldmatrix_x4_trans(r, address);\n"
    "  *((uint4 *)p.out + t) = make_uint4(r[0], r[1], r[2], r[3]);\n"
    "}\n"
    "\n"
    "// A 16x16, B 16x8 row by row, then C 16x8 as floats; mode 1: bf16\n"
    "extern \"C\" __global__ void product(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x;\n"
    "  unsigned char *shared = shared_arena();\n"
    "  for (int i = t; i < 48; i += 32) cp_async_16(smem_addr(shared + 16 * i), (const char *)p.in + 16 * i);\n"
    "  cp_async_commit();\n"
    "  cp_async_wait_0();\n"
    "  block_sync();\n"
    "  unsigned a[4], b[2];\n"
    "  ldmatrix_x4(a, smem_addr(shared + 32 * (t % 16) + 16 * (t / 16)));\n"
    "  ldmatrix_x2_trans(b, smem_addr(shared + 512 + 16 * (t % 16)));\n"
    "  const float *c = (const float *)((const char *)p.in + 768);\n"
    "  float *out = (float *)p.out;\n"
    "  int at[4], row = t / 4, column = 2 * (t % 4);\n"
    "  at[0] = row * 8 + column; at[1] = at[0] + 1; at[2] = at[0] + 64; at[3] = at[1] + 64;\n"
    "  float d[4] = {c[at[0]], c[at[1]], c[at[2]], c[at[3]]};\n"
    "  if (p.mode) mma_m16n8k16_bf16(d, a, b[0], b[1]);\n"
    "  else mma_m16n8k16_f16(d, a, b[0], b[1]);\n"
    "  for (int i = 0; i < 4; i++) out[at[i]] = d[i];\n"
    "}\n"
    "\n"
    "extern \"C\" __global__ void zero_fill(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x;\n"
    "  unsigned char *shared = shared_arena();\n"
    "  cp_async_16_zfill(smem_addr(shared + 16 * t), (const char *)p.in + 16 * t, t % 17);\n"
    "  cp_async_commit();\n"
    "  cp_async_wait_0();\n"
    "  block_sync();\n"
    "  for (int i = 0; i < 16; i++) ((unsigned char *)p.out)[16 * t + i] = shared[16 * t + i];\n"
    "}\n"
    "\n"
    "extern \"C\" __global__ void functions(const __grid_constant__ qkv_params p) {\n"
    "  int t = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  float x = ((const float *)p.in)[t];\n"
    "  float *out = (float *)p.out + 8 * t;\n"
    "  out[0] = exp2_approx(x); out[1] = log2_approx(x); out[2] = rcp_approx(x); out[3] = tanh_approx(x);\n"
    "  out[4] = __uint_as_float(pack_bf16x2(x, -x)); out[5] = __uint_as_float(pack_f16x2(x, -x));\n"
    "  out[6] = bf16_to_f32(f32_to_bf16(x)); out[7] = f16_to_f32(f32_to_f16(x));\n"
    "}\n"
    "\n"
    "// Two warps hand a tile to the two others through named barriers, over and over.\n"
    "extern \"C\" __global__ void relay(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x;\n"
    "  int *tile = (int *)shared_arena(), *out = (int *)p.out;\n"
    "  int sum = 0;\n"
    "  for (int i = 0; i < p.n; i++) {\n"
    "    if (t < 64) tile[t] = i * 64 + t;\n"
    "    bar_sync(1, 128);\n"
    "    if (t >= 64) sum += tile[127 - t];\n"
    "    bar_sync(2, 128);\n"
    "    if (t < 64) { tile[t] = 0; bar_sync(3, 64); sum += tile[t ^ 33]; bar_sync(3, 64); }\n"
    "  }\n"
    "  out[t] = sum;\n"
    "}\n"
    "\n"
    "// Column sums of n tiles of 32 x 16 bytes, double-buffered; three stages, two groups in flight.\n"
    "extern \"C\" __global__ void pipeline(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x, sum = 0;\n"
    "  unsigned char *shared = shared_arena();\n"
    "  const char *in = (const char *)p.in + 512ll * p.n * blockIdx.x;\n"
    "  for (int i = 0; i < 2; i++) {\n"
    "    if (t < 32 && i < p.n) cp_async_16(smem_addr(shared + 512 * i + 16 * t), in + 512 * i + 16 * t);\n"
    "    cp_async_commit();\n"
    "  }\n"
    "  for (int i = 0; i < p.n; i++) {\n"
    "    cp_async_wait_1();\n"
    "    block_sync();\n"
    "    int next = i + 2;\n"
    "    if (t < 32 && next < p.n) cp_async_16(smem_addr(shared + 512 * (next % 3) + 16 * t), in + 512 * next + 16 * "
    "t);\n"
    "    cp_async_commit();\n"
    "    for (int row = 0; row < 32; row++) sum += shared[512 * (i % 3) + 16 * row + t % 16] * (t / 16 + 1);\n"
    "  }\n"
    "  ((int *)p.out)[blockIdx.x * blockDim.x + t] = sum;\n"
    "}\n"
    "QKV_EMU_ENTRY(warp_values)\nQKV_EMU_ENTRY(matrix_load)\nQKV_EMU_ENTRY(product)\nQKV_EMU_ENTRY(zero_fill)\n"
    "QKV_EMU_ENTRY(functions)\nQKV_EMU_ENTRY(relay)\nQKV_EMU_ENTRY(pipeline)\n";

static int setup(void **state) {
  (void)state;
  return fixture_compile(source);
}

static void run(uint64_t seed, const char *entry, int64_t grid, int block, int shared, int mode, int n, const void *in,
                size_t in_size, void *out, size_t out_size) {
  if (fixture_run(seed, entry, grid, block, shared, mode, n, in, in_size, out, out_size))
    fail_msg("%s, seed %d, mode %d, n %d: %s", entry, (int)seed, mode, n, error_message());
}

static void test_shuffles_and_votes(void **state) {
  (void)state;
  enum { GRID = 3, BLOCK = 64, N = GRID * BLOCK };
  for (int seed = 0; seed < 4; seed++)
    for (int mask = 0; mask < 32; mask++) {
      uint32_t in[N], out[N][8];
      for (uint32_t i = 0; i < N; i++)
        in[i] = i * 0x01000193u + (uint32_t)mask;
      int wanted = (int)in[40];
      run((uint64_t)seed, "warp_values", GRID, BLOCK, 16, mask, wanted, in, sizeof in, out, sizeof out);
      for (int i = 0; i < N; i++) {
        int t = i % BLOCK, warp = i / 32 * 32;
        assert_int_equal(out[i][0], in[warp + ((t % 32) ^ mask)]);
        assert_int_equal(out[i][1], out[i][0]);
        assert_int_equal(out[i][2], in[warp + ((t * 7 + 3) & 31)]);
        assert_int_equal(out[i][3], warp == 32);
        assert_int_equal(out[i][4], GRID);
        assert_int_equal(out[i][5], BLOCK);
        assert_int_equal(out[i][6], (t < 5 ? t : 5) + 9);
        assert_int_equal(out[i][7], 16);
      }
    }
}

static void test_ldmatrix(void **state) {
  (void)state;
  uint64_t random = 1;
  for (int seed = 0; seed < 8; seed++)
    for (int variant = 0; variant < 6; variant++) {
      int count = 1 << variant % 3, transposed = variant / 3, rows[32];
      for (int i = 0; i < 32; i++)
        rows[i] = (int)(fixture_random(&random) % 32);
      uint32_t out[32][4];
      run((uint64_t)seed, "matrix_load", 1, 32, 512, count + 4 * transposed, 0, rows, sizeof rows, out, sizeof out);
      for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++)
          for (int half = 0; half < 2; half++) {
            int major = lane / 4, minor = 2 * (lane % 4) + half;
            int row = transposed ? minor : major, column = transposed ? major : minor;
            int expected = m < count ? (uint16_t)((8 * rows[8 * m + row] + column) * 3 + 1) : 0;
            assert_int_equal(out[lane][m] >> 16 * half & 0xffff, expected);
          }
    }
}

static void test_mma(void **state) {
  (void)state;
  uint64_t random = 2;
  for (int trial = 0; trial < 40; trial++) {
    int bf16 = trial % 2;
    struct {
      uint16_t a[16][16], b[16][8];
      float c[16][8];
    } in;
    float out[16][8];
    double a[16][16], b[16][8];
    for (int i = 0; i < 16; i++) {
      for (int k = 0; k < 16; k++) {
        float x = fixture_uniform(&random);
        in.a[i][k] = bf16 ? format_to_bf16(x) : format_to_f16(x);
        a[i][k] = bf16 ? format_from_bf16(in.a[i][k]) : format_from_f16(in.a[i][k]);
      }
      for (int j = 0; j < 8; j++) {
        float x = fixture_uniform(&random);
        in.b[i][j] = bf16 ? format_to_bf16(x) : format_to_f16(x);
        b[i][j] = bf16 ? format_from_bf16(in.b[i][j]) : format_from_f16(in.b[i][j]);
        in.c[i][j] = fixture_uniform(&random);
      }
    }
    run((uint64_t)trial, "product", 1, 32, 768, bf16, 0, &in, sizeof in, out, sizeof out);
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 8; j++) {
        double sum = in.c[i][j];
        for (int k = 0; k < 16; k++)
          sum += a[i][k] * b[k][j];
        if (fabs(sum - out[i][j]) > 16 * 0x1p-23)
          fail_msg("trial %d: d[%d][%d] is %a, should be %a", trial, i, j, out[i][j], sum);
      }
  }
}

static void test_zero_fill(void **state) {
  (void)state;
  enum { N = 64 };
  unsigned char in[N][16], out[N][16];
  for (int i = 0; i < N; i++)
    for (int k = 0; k < 16; k++)
      in[i][k] = (unsigned char)(i + 7 * k + 1);
  for (int seed = 0; seed < 20; seed++) {
    memset(out, 0xee, sizeof out);
    run((uint64_t)seed, "zero_fill", 1, N, 16 * N, 0, 0, in, sizeof in, out, sizeof out);
    for (int i = 0; i < N; i++)
      for (int k = 0; k < 16; k++)
        assert_int_equal(out[i][k], k < i % 17 ? in[i][k] : 0);
  }
}

static int near(double x, double y, double relative) {
  return x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= relative * fabs(y);
}

static void test_functions(void **state) {
  (void)state;
  enum { N = 1024 };
  static float in[N], out[N][8];
  uint64_t random = 3;
  const float special[] = {0.0f,      -0.0f,  INFINITY, -INFINITY, NAN,      1.0f,    -1.0f,
                           0x1p-140f, 128.0f, -127.0f,  -150.0f,   65519.0f, 65520.0f};
  for (size_t i = 0; i < N; i++)
    in[i] = i < sizeof special / sizeof *special ? special[i] : 30.0f * fixture_uniform(&random);
  run(0, "functions", 8, 128, 0, 0, 0, in, sizeof in, out, sizeof out);
  for (int i = 0; i < N; i++) {
    double x = in[i], power = exp2(x) < 0x1p-126 ? 0 : exp2(x);
    if (!near(out[i][0], (float)power, 1e-6) || !near(out[i][1], log2(x), 1e-5) ||
        !near(out[i][2], 1 / (float)x, 1e-6) || !near(out[i][3], tanh(x), 1e-5))
      fail_msg("x = %a: exp2 %a, log2 %a, rcp %a, tanh %a", in[i], out[i][0], out[i][1], out[i][2], out[i][3]);
    uint32_t pair[2];
    memcpy(pair, &out[i][4], sizeof pair);
    assert_int_equal(pair[0], format_to_bf16(in[i]) | (uint32_t)format_to_bf16(-in[i]) << 16);
    assert_int_equal(pair[1], format_to_f16(in[i]) | (uint32_t)format_to_f16(-in[i]) << 16);
    assert_true(near(out[i][6], in[i], 0x1p-8) || fabsf(in[i]) < 0x1p-126f);
    assert_true(near(out[i][7], in[i], 0x1p-10) || fabsf(in[i]) < 0x1p-14f || fabsf(in[i]) > 65519.0f);
  }
  assert_true(out[3][0] == 0.0f && isinf(out[0][1]) && isinf(out[12][7]) && out[11][7] == 65504.0f);
}

static void test_named_barriers(void **state) {
  (void)state;
  enum { ROUNDS = 5 };
  for (int seed = 0; seed < 50; seed++) {
    int out[128], in = 0;
    run((uint64_t)seed, "relay", 1, 128, 256, 0, ROUNDS, &in, sizeof in, out, sizeof out);
    for (int t = 0; t < 128; t++) {
      int expected = 0;
      for (int i = 0; i < ROUNDS && t >= 64; i++)
        expected += i * 64 + 127 - t;
      assert_int_equal(out[t], expected);
    }
  }
}

static void test_pipeline_is_clean(void **state) {
  (void)state;
  enum { GRID = 2, BLOCK = 64, TILES = 7 };
  static unsigned char in[GRID][TILES][32][16];
  uint64_t random = 4;
  for (size_t i = 0; i < sizeof in; i++)
    ((unsigned char *)in)[i] = (unsigned char)fixture_random(&random);
  for (int seed = 0; seed < 200; seed++) {
    int out[GRID][BLOCK];
    run((uint64_t)seed, "pipeline", GRID, BLOCK, 3 * 512, 0, TILES, in, sizeof in, out, sizeof out);
    for (int b = 0; b < GRID; b++)
      for (int t = 0; t < BLOCK; t++) {
        int sum = 0;
        for (int i = 0; i < TILES; i++)
          for (int row = 0; row < 32; row++)
            sum += in[b][i][row][t % 16] * (t / 16 + 1);
        if (out[b][t] != sum)
          fail_msg("pipeline, seed %d: block %d, thread %d: %d, should be %d", seed, b, t, out[b][t], sum);
      }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shuffles_and_votes),
      cmocka_unit_test(test_ldmatrix),
      cmocka_unit_test(test_mma),
      cmocka_unit_test(test_zero_fill),
      cmocka_unit_test(test_functions),
      cmocka_unit_test(test_named_barriers),
      cmocka_unit_test(test_pipeline_is_clean),
  };
  int failures = cmocka_run_group_tests(tests, setup, NULL);
  image_free(&fixture_image);
  return failures;
}
