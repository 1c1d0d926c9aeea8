/* Host tensors of qkvc: number formats against brute force, the random generator, conversion, comparison. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../tools/cli_npy.c"
#include "../../tools/cli_tensor.c"

static const qkv_dtype small_floats[] = {QKV_F16, QKV_BF16, QKV_E4M3, QKV_E5M2};

/* Every pattern survives decoding and encoding; NaN stays NaN. */
static void patterns_round_trip(void **state) {
  (void)state;
  for (size_t n = 0; n < 4; n++) {
    qkv_dtype dtype = small_floats[n];
    for (unsigned bits = 0; bits < (dtype_bytes(dtype) == 2 ? 0x10000u : 0x100u); bits++) {
      double value = decode(bits, dtype);
      unsigned back = encode(value, dtype);
      if (isnan(value) ? !isnan(decode(back, dtype)) : back != bits)
        fail_msg("%s: %#x is %.9g, encoded as %#x", dtype_word(dtype), bits, value, back);
    }
  }
}

/* Between two neighbours the nearer wins, and at the middle the even one. */
static void rounding(void **state) {
  (void)state;
  for (size_t n = 0; n < 4; n++) {
    qkv_dtype dtype = small_floats[n];
    for (unsigned bits = 0;; bits++) {
      double low = decode(bits, dtype), high = decode(bits + 1, dtype), middle = 0.5 * (low + high);
      if (!isfinite(high))
        break;
      unsigned even = bits & 1 ? bits + 1 : bits;
      if (encode(middle, dtype) != even || encode(nextafter(middle, low), dtype) != bits ||
          encode(nextafter(middle, high), dtype) != bits + 1)
        fail_msg("%s: between %#x and %#x", dtype_word(dtype), bits, bits + 1);
    }
  }
  assert_int_equal(encode(1e9, QKV_E4M3), 0x7E);   /* 448: saturates */
  assert_int_equal(encode(-1e9, QKV_F16), 0xFC00); /* overflows to infinity */
  assert_int_equal(encode(65519.99, QKV_F16), 0x7BFF);
  assert_int_equal(encode(65520, QKV_F16), 0x7C00);
  assert_int_equal(encode(1e-300, QKV_F16), 0);
}

static void generator(void **state) {
  (void)state;
  double sum = 0, sum2 = 0, sum4 = 0, product = 0, last = 0;
  const int count = 200000;
  for (int n = 0; n < count; n++) {
    double x = random_normal(7, (uint64_t)n);
    sum += x, sum2 += x * x, sum4 += x * x * x * x, product += x * last;
    last = x;
  }
  assert_true(fabs(sum / count) < 0.01);
  assert_true(fabs(sum2 / count - 1) < 0.02);
  assert_true(fabs(sum4 / count - 2.85) < 0.1); /* 3 for a normal distribution; 3 - 6 / (5 * 8) for this one */
  assert_true(fabs(product / count) < 0.01);
  assert_true(random_normal(1, 5) != random_normal(2, 5));
  /* Fixed for all time: a reproducer must mean the same on every machine and in every version. */
  assert_true(random_normal(0, 0) == 0x1.4368c0d8aaacap+0 && random_normal(0, 1) == -0x1.6d2cc6aa1ea1fp+0);
}

static void conversion(void **state) {
  (void)state;
  float floats[] = {1, 2, -3.5f, 0.1f};
  uint16_t words[] = {0x3F80, 0xC000, 0, 0x7F80};
  int64_t longs[] = {0, -1, 5, 3000000000};
  char error[NPY_ERROR_SIZE];
  const int64_t shape[] = {1, 2, 2};
  qkv_tensor t = tensor_allocate(QKV_BF16, 3, shape), i = tensor_allocate(QKV_I32, 3, shape);
  npy_array f = {.type = NPY_F32, .rank = 3, .shape = {1, 2, 2}, .count = 4, .data = floats};
  npy_array w = {
      .type = NPY_U16, .rank = 2, .shape = {2, 2}, .count = 4, .data = words}; /* the leading 1 may be missing */
  npy_array l = {.type = NPY_I64, .rank = 3, .shape = {1, 2, 2}, .count = 4, .data = longs};
  assert_true(tensor_from_npy(&f, false, &t, error));
  assert_true(element_get(t.data, QKV_BF16, 2) == -3.5);
  assert_true(fabs(element_get(t.data, QKV_BF16, 3) - 0.1) < 1e-3);
  assert_false(tensor_from_npy(&w, false, &t, error));
  assert_non_null(strstr(error, "--bf16-bits"));
  assert_true(tensor_from_npy(&w, true, &t, error));
  assert_true(element_get(t.data, QKV_BF16, 1) == -2);
  assert_false(tensor_from_npy(&f, false, &i, error));
  assert_non_null(strstr(error, "i32 is needed"));
  assert_false(tensor_from_npy(&l, false, &t, error));
  assert_false(tensor_from_npy(&l, false, &i, error));
  assert_non_null(strstr(error, "element 3"));
  longs[3] = INT32_MAX;
  assert_true(tensor_from_npy(&l, false, &i, error));
  f.shape[1] = 4, f.shape[2] = 1;
  assert_false(tensor_from_npy(&f, false, &t, error));
  assert_string_equal(error, "shape [1, 4, 1], where [1, 2, 2] is needed");
  free(t.data);
  free(i.data);
}

static void comparison(void **state) {
  (void)state;
  float want[] = {3, 4, -INFINITY, 0}, got[] = {3, 4.5f, -INFINITY, 0};
  const int64_t shape[] = {4};
  qkv_tensor w = qkv_tensor_dense(want, QKV_F32, 1, shape), g = qkv_tensor_dense(got, QKV_F32, 1, shape);
  tensor_error e = tensor_compare(&g, &w);
  assert_true(e.max_absolute == 0.5 && e.max_at == 1 && fabs(e.relative_l2 - 0.1) < 1e-12 && e.max_scaled == 0.125);
  assert_int_equal(e.bad, 0);
  got[2] = -1e30f, got[3] = NAN;
  e = tensor_compare(&g, &w);
  assert_true(e.bad == 2 && e.bad_at == 2);
  want[3] = NAN; /* NaN is never right */
  assert_int_equal(tensor_compare(&g, &w).bad, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(patterns_round_trip), cmocka_unit_test(rounding),
                                     cmocka_unit_test(generator), cmocka_unit_test(conversion),
                                     cmocka_unit_test(comparison)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
