/* Every primitive's twin against plain loops over the same numbers, and a fused kernel that uses them together. */
#include "emu_fixture.h"

#include <math.h>

#include "emu/formats.h"
#include "reference.h"

static int setup(void **state) {
  (void)state;
  text source = {0};
  text_puts(&source, FIXTURE_PARAMS);
  fixture_append(&source, "templates/parts/e4m3.cuh");
  fixture_append(&source, "tests/emulator/primitives_sm80.cu");
  int failed = fixture_compile(source.bytes);
  text_free(&source);
  return failed;
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
        assert_int_equal(out[i][0], in[i]);
        assert_int_equal(out[i][1], in[warp + ((t % 32) ^ mask)]);
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
    memset(out, 0xee, sizeof out);
    run((uint64_t)seed, "zero_fill", 1, N, 0, 1, 0, in, sizeof in, out, sizeof out);
    for (int i = 0; i < N; i++)
      for (int k = 0; k < 16; k++)
        assert_int_equal(out[i][k], i % 3 != 0 ? in[i][k] : 0);
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
    if (!near(out[i][0], (float)power, 1e-6) || !near(out[i][1], log2(x), 1e-5) || !near(out[i][2], 1 / (float)x, 1e-6))
      fail_msg("x = %a: exp2 %a, log2 %a, rcp %a", in[i], out[i][0], out[i][1], out[i][2]);
    uint32_t bits;
    memcpy(&bits, &in[i], sizeof bits);
    float half = format_from_f16((uint16_t)(bits >> 12));
    assert_memory_equal(&out[i][3], &half, sizeof half);
    uint32_t pair[2];
    memcpy(pair, &out[i][4], sizeof pair);
    assert_int_equal(pair[0], format_to_bf16(in[i]) | (uint32_t)format_to_bf16(-in[i]) << 16);
    assert_int_equal(pair[1], format_to_f16(in[i]) | (uint32_t)format_to_f16(-in[i]) << 16);
    assert_true(near(out[i][6], in[i], 0x1p-8) || fabsf(in[i]) < 0x1p-126f);
    assert_true(near(out[i][7], in[i], 0x1p-10) || fabsf(in[i]) < 0x1p-14f || fabsf(in[i]) > 65519.0f);
  }
  assert_true(out[3][0] == 0.0f && isinf(out[0][1]) && isinf(out[12][7]) && out[11][7] == 65504.0f);
}

/* Every code in every place, against the definition of the formats; the code of NaN is 480. */
static void test_bytes(void **state) {
  (void)state;
  enum { N = 1024 };
  static unsigned char in[N][4];
  static uint32_t out[N][8];
  uint64_t random = 7;
  for (int i = 0; i < N; i++)
    for (int place = 0; place < 4; place++)
      in[i][place] = (unsigned char)(place == i / 256 ? (uint64_t)i : fixture_random(&random) >> 5);
  run(0, "bytes", 8, 128, 0, 0, 0, in, sizeof in, out, sizeof out);
  for (int i = 0; i < N; i++) {
    float value[4], same = (float)tensor_load(&in[i][0], QKV_E5M2), got;
    for (int place = 0; place < 4; place++) {
      double code = tensor_load(&in[i][place], QKV_E4M3);
      value[place] = (float)(isnan(code) ? copysign(480, code) : code);
    }
    memcpy(&got, &out[i][1], sizeof got);
    const uint32_t expected[6] = {format_bits(value[0]),
                                  isnan(same) && isnan(got) ? out[i][1] : format_bits(same),
                                  format_to_bf16(value[0]) | (uint32_t)format_to_bf16(value[2]) << 16,
                                  format_to_bf16(value[1]) | (uint32_t)format_to_bf16(value[3]) << 16,
                                  format_to_f16(value[0]) | (uint32_t)format_to_f16(value[2]) << 16,
                                  format_to_f16(value[1]) | (uint32_t)format_to_f16(value[3]) << 16};
    if (memcmp(out[i], expected, sizeof expected) != 0)
      fail_msg("bytes %02x %02x %02x %02x", in[i][0], in[i][1], in[i][2], in[i][3]);
    const uint32_t product[2] = {format_to_bf16(value[0] * value[1]) | (uint32_t)format_to_bf16(value[2] * value[3]) << 16,
                                 format_to_f16(value[0] * value[1]) | (uint32_t)format_to_f16(value[2] * value[3]) << 16};
    assert_memory_equal(&out[i][6], product, sizeof product);
  }
}

/* Number n of an order is bits 4 n to 4 n + 2 of what is ordered. */
static void test_byte_orders(void **state) {
  (void)state;
  enum { N = 1024 };
  static uint32_t in[N], out[N][2];
  uint64_t random = 8;
  for (int i = 0; i < N; i++)
    in[i] = (uint32_t)(fixture_random(&random) >> 3);
  run(0, "byte_orders", 8, 128, 0, 0, 0, in, sizeof in, out, sizeof out);
  for (int i = 0; i < N; i++)
    for (int n = 0; n < 8; n++) {
      const uint32_t from = in[i] >> 4 * n & 7, bytes = from < 4 ? in[i] : ~in[i];
      if ((out[i][n / 4] >> n % 4 * 8 & 0xff) != (bytes >> from % 4 * 8 & 0xff))
        fail_msg("bytes of %08x in its own order: %08x", (unsigned)in[i], (unsigned)out[i][n / 4]);
    }
}

/* Off by as much as the instruction may be, and not by more. */
static void test_tangents(void **state) {
  (void)state;
  enum { N = 1024 };
  static float in[N], out[N];
  uint64_t random = 5;
  double worst = 0;
  const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 0x1p-140f, -0x1p-130f, 0x1p-126f, 20.0f, -20.0f};
  for (size_t i = 0; i < N; i++)
    in[i] = i < sizeof special / sizeof *special ? special[i] : 4.0f * fixture_uniform(&random);
  run(0, "tangents", 8, 128, 0, 0, 0, in, sizeof in, out, sizeof out);
  for (int i = 0; i < N; i++) {
    double wanted = tanh(in[i]), off = fabs(out[i] - wanted) / fabs(wanted);
    if (!near(out[i], wanted, 0x1.001p-11) || (!isnan(in[i]) && !signbit(out[i]) != !signbit(in[i])))
      fail_msg("tanh(%a) is %a", in[i], out[i]);
    worst = off > worst ? off : worst;
  }
  assert_true(worst > 0x1p-12);
}

/* shuffle_xor_b32, which no template uses yet. */
static void test_twins_ahead(void **state) {
  (void)state;
  for (int mask = 0; mask < 32; mask++) {
    float in[32], out[32];
    uint64_t random = (uint64_t)mask;
    for (int i = 0; i < 32; i++)
      in[i] = 4 * fixture_uniform(&random);
    run((uint64_t)mask, "ahead", 1, 32, 0, mask, 0, in, sizeof in, out, sizeof out);
    for (int i = 0; i < 32; i++)
      assert_memory_equal(&out[i], &in[i ^ mask], sizeof(float));
  }
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
      cmocka_unit_test(test_bytes), cmocka_unit_test(test_byte_orders),
      cmocka_unit_test(test_tangents),
      cmocka_unit_test(test_twins_ahead),
      cmocka_unit_test(test_named_barriers),
      cmocka_unit_test(test_pipeline_is_clean),
  };
  int failures = cmocka_run_group_tests(tests, setup, NULL);
  image_free(&fixture_image);
  return failures;
}
