/* The twins of sm_90's primitives against plain loops: boxes of every rank, swizzle and side out of bounds; wgmma in
 * all forms and layouts; stmatrix, named barriers without waiting, and the rest. Kernels: primitives_sm90.cu. */
#include "emu_sm90.h"

#include <math.h>

#include "emu/formats.h"
#include "reference.h"

static int setup(void **state) {
  (void)state;
  text source = {0};
  text_puts(&source, SM90_PARAMS);
  fixture_append(&source, "templates/parts/matrix_descriptor.cuh");
  fixture_append(&source, "tests/emulator/primitives_sm90.cu");
  int failed = fixture_compile(source.bytes);
  text_free(&source);
  return failed;
}

/* ---- Boxes ---- */

/* The element of the tensor at a place of the box; -1: outside. */
static int64_t element_at(const box_case *c, int place) {
  int64_t index = 0, stride = 1;
  for (int d = 0; d < c->rank; d++) {
    int64_t at = c->start[d] + place % c->box[d];
    place /= c->box[d];
    if (at < 0 || at >= c->extent[d])
      return -1;
    index += at * stride;
    stride *= c->extent[d];
  }
  return index;
}

/* Where a byte of the box lies in shared memory, from the box's start: rows of the swizzle's width, whose 16-byte
 * chunks change places by the row's number (in lines of 128 bytes, counted from an address that is a multiple of 1024).
 */
static int swizzled(const box_case *c, int at) {
  if (!c->swizzle)
    return at;
  int row = at / c->swizzle, chunk = at % c->swizzle / 16;
  int line = (c->to + row * c->swizzle) / 128;
  return row * c->swizzle + 16 * (chunk ^ (line % (c->swizzle / 16))) + at % 16;
}

static qkv_status run_box(int seed, const char *entry, const box_case *c, void *tensor, const void *in, void *out) {
  fixture f = fixture_open((uint64_t)seed);
  size_t tensor_bytes = (size_t)c->elements * (size_t)c->element_bytes, bytes = (size_t)c->bytes;
  void *memory = fixture_upload(&f, tensor, tensor_bytes);
  sm90_params p = {.mode = c->rank == 4 && seed % 2 && strcmp(entry, "box_in") == 0 ? 6 : c->rank, .n = c->bytes};
  p.in = fixture_upload(&f, in, bytes);
  p.out = fixture_upload(&f, NULL, bytes);
  memcpy(p.x, c->start, sizeof c->start);
  p.x[5] = c->to;
  device_tensor_map map = box_map(c, memory);
  if (device_emu.tensor_map(f.d, &map, p.map[0]))
    fail_msg("%s", error_message());
  qkv_status status = sm90_launch(&f, entry, 1, 64, 96 * 1024, &p);
  assert_int_equal(device_emu.copy_to_host(f.d, tensor, memory, tensor_bytes), QKV_OK);
  if (out)
    assert_int_equal(device_emu.copy_to_host(f.d, out, p.out, bytes), QKV_OK);
  device_emu.free(f.d, memory), device_emu.free(f.d, (void *)(uintptr_t)p.in), device_emu.free(f.d, p.out);
  fixture_close(&f);
  return status;
}

static void fill_bytes(unsigned char *bytes, size_t count, uint64_t *random) {
  for (size_t i = 0; i < count; i++)
    bytes[i] = (unsigned char)fixture_random(random);
}

static void test_boxes(void **state) {
  (void)state;
  enum { CASES = 400 };
  static unsigned char tensor[512 * 1024], before[512 * 1024], shared[128 * 1024];
  uint64_t random = 5;
  int inside = 0, outside = 0;
  for (int seed = 0; seed < CASES; seed++) {
    box_case c = draw_case(&random);
    size_t size = (size_t)c.element_bytes, tensor_bytes = (size_t)c.elements * size;
    if (tensor_bytes > sizeof tensor || c.bytes > 64 * 1024)
      continue;
    fill_bytes(tensor, tensor_bytes, &random);
    memcpy(before, tensor, tensor_bytes);
    if (run_box(seed, "box_in", &c, tensor, shared, shared))
      fail_msg("box_in, seed %d: %s", seed, error_message());
    for (int i = 0; i < c.bytes / c.element_bytes; i++) {
      static const unsigned char zero[4];
      int64_t at = element_at(&c, i);
      const unsigned char *expected = at < 0 ? zero : tensor + (size_t)at * size;
      if (memcmp(shared + swizzled(&c, i * c.element_bytes), expected, size) != 0)
        fail_msg("box_in, seed %d (rank %d, swizzle %d): element %d of the box is wrong", seed, c.rank, c.swizzle, i);
      inside += at >= 0;
      outside += at < 0;
    }
    fill_bytes(shared, (size_t)c.bytes, &random);
    make_storable(&c);
    if (run_box(seed, "box_out", &c, tensor, shared, NULL))
      fail_msg("box_out, seed %d: %s", seed, error_message());
    for (int i = 0; i < c.bytes / c.element_bytes; i++) {
      int64_t at = element_at(&c, i);
      if (at >= 0)
        memcpy(before + (size_t)at * size, shared + swizzled(&c, i * c.element_bytes), size);
    }
    if (memcmp(tensor, before, tensor_bytes) != 0)
      fail_msg("box_out, seed %d (rank %d, swizzle %d): the tensor is wrong", seed, c.rank, c.swizzle);
  }
  assert_true(inside > 20000 && outside > 20000);
}

static void test_map_limits(void **state) {
  (void)state;
  fixture f = fixture_open(0);
  static const struct {
    int field, index;
    int64_t value;
    const char *says;
  } cases[] = {{0, 0, 8, "base"},        {1, 0, 3, "elements of 3"}, {2, 0, 6, "rank 6"},         {2, 0, 0, "rank 0"},
               {3, 1, 0, "extent[1]"},   {4, 0, 24, "stride_bytes"}, {4, 0, -16, "stride_bytes"}, {5, 1, 257, "box[1]"},
               {5, 0, 32, "box[0] has"}, {6, 0, 16, "swizzle of 16"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    unsigned char encoded[DEVICE_TENSOR_MAP_BYTES];
    device_tensor_map map = sm90_map((void *)4096, 2, (int64_t[]){64, 64}, (int[]){64, 64}, 128);
    assert_int_equal(device_emu.tensor_map(f.d, &map, encoded), QKV_OK);
    if (cases[i].field == 0)
      map.base = (void *)(uintptr_t)cases[i].value;
    else if (cases[i].field == 1)
      map.element_bytes = (int)cases[i].value;
    else if (cases[i].field == 2)
      map.rank = (int)cases[i].value;
    else if (cases[i].field == 3)
      map.extent[cases[i].index] = cases[i].value;
    else if (cases[i].field == 4)
      map.stride_bytes[cases[i].index] = cases[i].value;
    else if (cases[i].field == 5)
      map.box[cases[i].index] = (int)cases[i].value;
    else
      map.swizzle = (int)cases[i].value;
    if (device_emu.tensor_map(f.d, &map, encoded) != QKV_INVALID_ARGUMENT || !strstr(error_message(), cases[i].says))
      fail_msg("case %zu: \"%s\" should name %s", i, error_message(), cases[i].says);
  }
  fixture_close(&f);
}

/* ---- wgmma ---- */

enum { K = 64, MAX_N = 256, FORMS = 5, A_TRANSPOSED = 4 /* of the forms: A, as large as B is high, is MN-major */ };

typedef struct product_case {
  int n, bf16, form, keep, width; /* width: bytes of the swizzle, 16: none */
} product_case;

static uint16_t a_bits[64][K], b_bits[MAX_N * K];
static double a_values[64][K], b_values[K][MAX_N];
static float d_values[64 * MAX_N], d_before[64 * MAX_N];

static void draw_operands(const product_case *c, uint64_t *random) {
  for (int i = 0; i < 64; i++)
    for (int k = 0; k < K; k++) {
      float x = fixture_uniform(random);
      uint16_t bits = c->bf16 ? format_to_bf16(x) : format_to_f16(x);
      *(c->form == A_TRANSPOSED ? &a_bits[k][i] : &a_bits[i][k]) = bits;
      a_values[i][k] = c->bf16 ? format_from_bf16(bits) : format_from_f16(bits);
    }
  for (int k = 0; k < K; k++)
    for (int n = 0; n < c->n; n++) {
      float x = fixture_uniform(random);
      uint16_t bits = c->bf16 ? format_to_bf16(x) : format_to_f16(x);
      b_bits[c->form % 2 ? k * c->n + n : n * K + k] = bits;
      b_values[k][n] = c->bf16 ? format_from_bf16(bits) : format_from_f16(bits);
    }
  for (int i = 0; i < 64 * c->n; i++)
    d_before[i] = d_values[i] = fixture_uniform(random);
}

static void run_product(const product_case *c, uint64_t seed) {
  static const int codes[] = {0, 0, 3, 0, 2, 0, 0, 0, 1}; /* by width / 16 */
  fixture f = fixture_open(seed);
  int transposed = c->form % 2, columns = c->width / 2, b_rows = transposed ? K : c->n;
  int panels = ((transposed ? c->n : K) + columns - 1) / columns;
  sm90_params p = {.mode = (c->form == A_TRANSPOSED ? 16 : c->form) + 4 * c->keep, .x = {codes[c->width / 16], c->width, b_rows, panels}};
  void *a = fixture_upload(&f, a_bits, sizeof a_bits), *b = fixture_upload(&f, b_bits, (size_t)c->n * K * 2);
  size_t d_bytes = 64 * (size_t)c->n * sizeof(float);
  p.in = a;
  p.out = fixture_upload(&f, d_values, d_bytes);
  int swizzle = c->width == 16 ? 0 : c->width;
  device_tensor_map maps[2] = {
      sm90_map(a, 2, (int64_t[]){K, 64}, (int[]){columns, 64}, swizzle),
      sm90_map(b, 2, (int64_t[]){transposed ? c->n : K, b_rows}, (int[]){columns, b_rows}, swizzle),
  };
  for (int i = 0; i < 2; i++)
    if (device_emu.tensor_map(f.d, &maps[i], p.map[i]))
      fail_msg("%s", error_message());
  char entry[64];
  snprintf(entry, sizeof entry, "product_%d_%s", c->n, c->bf16 ? "bf16" : "f16");
  if (sm90_launch(&f, entry, 1, 128, 8192 + 65536 + 128, &p))
    fail_msg("%s, form %d, width %d, seed %d: %s", entry, c->form, c->width, (int)seed, error_message());
  assert_int_equal(device_emu.copy_to_host(f.d, d_values, p.out, d_bytes), QKV_OK);
  device_emu.free(f.d, a), device_emu.free(f.d, b), device_emu.free(f.d, p.out);
  fixture_close(&f);
}

static void test_wgmma(void **state) {
  (void)state;
  static const int shapes[][2] = {{8, 0}, {8, 1}, {24, 1}, {64, 1}, {80, 0}, {128, 1}, {176, 1}, {256, 0}};
  static const int widths[] = {16, 32, 64, 128};
  uint64_t random = 6;
  for (int trial = 0; trial < 8 * 4 * FORMS; trial++) {
    product_case c = {shapes[trial / (4 * FORMS)][0], shapes[trial / (4 * FORMS)][1], trial % FORMS, (int)(fixture_random(&random) % 2),
                      widths[trial / FORMS % 4]};
    draw_operands(&c, &random);
    run_product(&c, (uint64_t)trial);
    for (int i = 0; i < 64; i++)
      for (int j = 0; j < c.n; j++) {
        double sum = c.keep ? d_before[i * c.n + j] : 0;
        for (int k = 0; k < K; k++)
          sum += a_values[i][k] * b_values[k][j];
        if (!(fabs(sum - d_values[i * c.n + j]) <= 1e-5))
          fail_msg("n %d, bf16 %d, form %d, width %d, trial %d: d[%d][%d] is %a, should be %a", c.n, c.bf16, c.form,
                   c.width, trial, i, j, d_values[i * c.n + j], sum);
      }
  }
}

static qkv_status run_two_groups(uint64_t seed, int mode, float *out) {
  fixture f = fixture_open(seed);
  sm90_params p = {.mode = mode};
  void *a = fixture_upload(&f, a_bits, sizeof a_bits), *b = fixture_upload(&f, b_bits, 64 * K * 2);
  p.out = fixture_upload(&f, NULL, 2 * 4096 * sizeof(float));
  for (int i = 0; i < 2; i++) {
    device_tensor_map map = sm90_map(i ? b : a, 2, (int64_t[]){64, 64}, (int[]){64, 64}, 128);
    assert_int_equal(device_emu.tensor_map(f.d, &map, p.map[i]), QKV_OK);
  }
  qkv_status status = sm90_launch(&f, "two_groups", 1, 128, 3 * 8192, &p);
  assert_int_equal(device_emu.copy_to_host(f.d, out, p.out, 2 * 4096 * sizeof(float)), QKV_OK);
  device_emu.free(f.d, a), device_emu.free(f.d, b), device_emu.free(f.d, p.out);
  fixture_close(&f);
  return status;
}

static void test_two_groups(void **state) {
  (void)state;
  static float out[2][64][64];
  product_case c = {64, 1, 0, 0, 128};
  uint64_t random = 7;
  draw_operands(&c, &random); /* B as stored: row n, column k */
  for (int seed = 0; seed < 30; seed++) {
    if (run_two_groups((uint64_t)seed, 0, out[0][0]))
      fail_msg("two_groups, seed %d: %s", seed, error_message());
    for (int i = 0; i < 64; i++)
      for (int j = 0; j < 64; j++) {
        double e = 0, f = 0;
        for (int k = 0; k < K; k++) {
          e += a_values[i][k] * b_values[k][j];
          f += a_values[i][k] * b_values[j][k];
        }
        if (!(fabs(e - out[0][i][j]) <= 1e-5 && fabs(f - out[1][i][j]) <= 1e-5))
          fail_msg("two_groups, seed %d: row %d, column %d: %a and %a, should be %a and %a", seed, i, j, out[0][i][j],
                   out[1][i][j], e, f);
      }
    for (int mode = 1; mode < 4; mode++)
      if (run_two_groups((uint64_t)seed, mode, out[0][0]) != QKV_DEVICE_ERROR ||
          !strstr(error_message(), "emu: accumulator in flight: "))
        fail_msg("two_groups, mode %d, seed %d: \"%s\" should say accumulator in flight", mode, seed, error_message());
  }
}

/* ---- The rest ---- */

static qkv_status run_simple(uint64_t seed, const char *entry, int block, int mode, int n, const void *in,
                             size_t in_size, void *out, size_t out_size) {
  fixture f = fixture_open(seed);
  sm90_params p = {
      .mode = mode, .n = n, .in = fixture_upload(&f, in, in_size), .out = fixture_upload(&f, out, out_size)};
  qkv_status status = sm90_launch(&f, entry, 1, block, 4096, &p);
  assert_int_equal(device_emu.copy_to_host(f.d, out, p.out, out_size), QKV_OK);
  device_emu.free(f.d, (void *)(uintptr_t)p.in), device_emu.free(f.d, p.out);
  fixture_close(&f);
  return status;
}

static void test_stmatrix(void **state) {
  (void)state;
  for (int trial = 0; trial < 20; trial++) {
    int rows[32], transposed = trial % 2; /* mode % 4 / 2: two matrices at a time */
    uint16_t out[32][8];
    for (int i = 0; i < 32; i++)
      rows[i] = (i * 5 + trial) % 32;
    if (run_simple((uint64_t)trial, "matrix_store", 32, trial % 4, 0, rows, sizeof rows, out, sizeof out))
      fail_msg("matrix_store, trial %d: %s", trial, error_message());
    for (int m = 0; m < 4; m++)
      for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++) {
          int major = transposed ? c : r, minor = transposed ? r : c;
          assert_int_equal(out[rows[8 * m + r]][c], 2 * (32 * m + 4 * major + minor / 2) + minor % 2);
        }
  }
}

static void test_bar_arrive(void **state) {
  (void)state;
  enum { ROUNDS = 6 };
  for (int seed = 0; seed < 60; seed++) {
    int out[64] = {0}, in = 0;
    if (run_simple((uint64_t)seed, "hand_over", 64, 0, ROUNDS, &in, sizeof in, out, sizeof out))
      fail_msg("hand_over, seed %d: %s", seed, error_message());
    for (int t = 0; t < 64; t++) {
      int expected = 0;
      for (int i = 0; i < ROUNDS && t >= 32; i++)
        expected += i * 32 + (t % 32 ^ 7);
      assert_int_equal(out[t], expected);
    }
    if (run_simple((uint64_t)seed, "hand_over", 64, 1, ROUNDS, &in, sizeof in, out, sizeof out) != QKV_DEVICE_ERROR ||
        !(strstr(error_message(), "emu: race: ") || strstr(error_message(), "emu: bad barrier: ") ||
          strstr(error_message(), "emu: deadlock: ")))
      fail_msg("hand_over without the wait, seed %d: \"%s\"", seed, error_message());
  }
}

static void test_bar_or(void **state) {
  (void)state;
  enum { ROUNDS = 7 };
  for (int seed = 0; seed < 30; seed++) {
    int in[ROUNDS], out[64] = {0};
    for (int i = 0; i < ROUNDS; i++) /* nobody, or any one */
      in[i] = (seed + i) % 3 == 0 ? -1 : (seed * 7 + i * 29) % 64;
    if (run_simple((uint64_t)seed, "agree", 64, 0, ROUNDS, in, sizeof in, out, sizeof out))
      fail_msg("agree, seed %d: %s", seed, error_message());
    for (int t = 0; t < 64; t++) {
      int expected = 0;
      for (int i = 0; i < ROUNDS; i++)
        expected = 2 * expected + (in[i] >= 0) + 3 * i + (t ^ 37);
      assert_int_equal(out[t], expected);
    }
    if (run_simple((uint64_t)seed, "agree", 64, 1, ROUNDS, in, sizeof in, out, sizeof out) != QKV_DEVICE_ERROR ||
        !strstr(error_message(), "emu: bad barrier: "))
      fail_msg("agree by bar_or and bar_sync, seed %d: \"%s\"", seed, error_message());
  }
}

static void test_odds(void **state) {
  (void)state;
  for (int seed = 0; seed < 60; seed++) {
    int in[96], out[97] = {0};
    for (int t = 0; t < 96; t++)
      in[t] = 1000 * t + seed;
    if (run_simple((uint64_t)seed, "odds", 96, 0, 0, in, sizeof in, out, sizeof out))
      fail_msg("odds, seed %d: %s", seed, error_message());
    assert_int_equal(out[0], 96);
    for (int t = 0; t < 96; t++)
      assert_int_equal(out[1 + t], in[t ^ 1]);
    for (int mode = 1; mode < 3; mode++)
      if (run_simple((uint64_t)seed, "odds", 96, mode, 0, in, sizeof in, out, sizeof out) != QKV_DEVICE_ERROR ||
          !(strstr(error_message(), "emu: race: ") || strstr(error_message(), "emu: bad mbarrier: ")))
        fail_msg("odds, mode %d, seed %d: \"%s\"", mode, seed, error_message());
  }
}

/* Every pair of codes of e4m3, against the definition of the format. */
static void test_bytes_in(void **state) {
  (void)state;
  static unsigned char in[65536][2];
  static uint16_t out[65536][2];
  fixture f = fixture_open(0);
  for (int i = 0; i < 65536; i++)
    in[i][0] = (unsigned char)i, in[i][1] = (unsigned char)(i >> 8);
  sm90_params p = {.in = fixture_upload(&f, in, sizeof in), .out = fixture_upload(&f, NULL, sizeof out)};
  if (sm90_launch(&f, "bytes_in", 256, 128, 0, &p))
    fail_msg("%s", error_message());
  assert_int_equal(device_emu.copy_to_host(f.d, out, p.out, sizeof out), QKV_OK);
  for (int i = 0; i < 65536; i++)
    for (int n = 0; n < 2; n++) {
      const double value = tensor_load(&in[i][n], QKV_E4M3);
      const uint16_t expected = isnan(value) ? 0x7fff : format_to_f16((float)value);
      if (out[i][n] != expected)
        fail_msg("byte %02x is %04x", in[i][n], (unsigned)out[i][n]);
    }
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_boxes),      cmocka_unit_test(test_map_limits), cmocka_unit_test(test_wgmma),
      cmocka_unit_test(test_two_groups), cmocka_unit_test(test_stmatrix),   cmocka_unit_test(test_bar_arrive),
      cmocka_unit_test(test_bar_or),     cmocka_unit_test(test_odds),       cmocka_unit_test(test_bytes_in),
  };
  int failures = cmocka_run_group_tests(tests, setup, NULL);
  image_free(&fixture_image);
  return failures;
}
