/* test_number_format.c: every pattern of the 8- and 16-bit formats, against a definition written here: the nearest of
 * all finite values, ties to the even pattern. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

static const struct format {
  const char *name;
  qkv_dtype dtype;
  int bits, exponent, mantissa;
  double largest;
} formats[] = {{"f16", QKV_F16, 16, 5, 10, 65504},
               {"bf16", QKV_BF16, 16, 8, 7, 0x1.FEp127},
               {"e4m3", QKV_E4M3, 8, 4, 3, 448},
               {"e5m2", QKV_E5M2, 8, 5, 2, 57344}};
enum { FORMATS = sizeof formats / sizeof *formats };

static double value_of(const struct format *f, unsigned bits) {
  uint8_t byte = (uint8_t)bits;
  uint16_t half = (uint16_t)bits;
  return tensor_load(f->bits == 8 ? (void *)&byte : (void *)&half, f->dtype);
}

static unsigned bits_of(const struct format *f, double value) {
  uint8_t byte = 0;
  uint16_t half = 0;
  tensor_store(f->bits == 8 ? (void *)&byte : (void *)&half, f->dtype, value);
  return f->bits == 8 ? byte : half;
}

/* Reading then writing gives the same pattern; values rise with positive patterns; the largest is the documented one.
 */
static void test_patterns(void **state) {
  (void)state;
  for (int n = 0; n < FORMATS; n++) {
    const struct format *f = &formats[n];
    unsigned half = 1u << (f->bits - 1);
    double before = -1, largest = 0;
    for (unsigned bits = 0; bits < half; bits++) {
      double v = value_of(f, bits), minus = value_of(f, bits | half);
      if (isnan(v)) {
        assert_true(isnan(minus) && isnan(value_of(f, bits_of(f, v))));
        continue;
      }
      if (!(v > before) || minus != -v || signbit(minus) == 0)
        fail_msg("%s pattern %#x reads as %a after %a", f->name, bits, v, before);
      if (bits_of(f, v) != bits || bits_of(f, -v) != (bits | half))
        fail_msg("%s pattern %#x (%a) writes as %#x", f->name, bits, v, bits_of(f, v));
      before = v;
      largest = isinf(v) ? largest : v;
    }
    assert_true(largest == f->largest);
  }
}

/* Between each two neighbours: the middle goes to the even pattern, anything nearer to the nearer one. */
static void test_rounding(void **state) {
  (void)state;
  for (int n = 0; n < FORMATS; n++) {
    const struct format *f = &formats[n];
    for (unsigned bits = 0; value_of(f, bits) < f->largest; bits++) {
      double low = value_of(f, bits), high = value_of(f, bits + 1), middle = low + (high - low) / 2;
      unsigned even = bits & 1 ? bits + 1 : bits;
      if (bits_of(f, middle) != even || bits_of(f, nextafter(middle, 0)) != bits ||
          bits_of(f, nextafter(middle, INFINITY)) != bits + 1)
        fail_msg("%s between patterns %#x and %#x: the middle %a goes to %#x", f->name, bits, bits + 1, middle,
                 bits_of(f, middle));
    }
    /* Half a step beyond the largest is the first value that overflows (ties go to the even pattern, the infinity). */
    double step = f->largest - value_of(f, bits_of(f, f->largest) - 1), edge = f->largest + step / 2;
    assert_true(value_of(f, bits_of(f, nextafter(edge, 0))) == f->largest);
    assert_true(!isfinite(value_of(f, bits_of(f, nextafter(edge, INFINITY)))));
    assert_true(!isfinite(value_of(f, bits_of(f, INFINITY))));
    assert_true(isnan(value_of(f, bits_of(f, NAN))));
    assert_true(bits_of(f, -0.0) == 1u << (f->bits - 1));
  }
}

/* f32 input: the same as clearing the low half of the bits after adding half a step. */
static void test_bf16_of_floats(void **state) {
  (void)state;
  uint32_t x = 12345;
  for (int n = 0; n < 200000; n++) {
    x = x * 1664525u + 1013904223u;
    float f;
    memcpy(&f, &x, 4);
    if (isnan(f))
      continue;
    uint32_t want = (x + 0x7FFF + (x >> 16 & 1)) >> 16;
    if (float_to_bf16(f) != want)
      fail_msg("bf16 of %a is %#x, expected %#x", (double)f, float_to_bf16(f), want);
  }
}

static void test_integers(void **state) {
  (void)state;
  static const struct {
    double in;
    int32_t out;
  } rows[] = {{0, 0}, {-1, -1}, {2147483647, INT32_MAX}, {1e300, INT32_MAX}, {-1e300, INT32_MIN}, {NAN, 0}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    int32_t got;
    tensor_store(&got, QKV_I32, rows[n].in);
    assert_int_equal(got, rows[n].out);
  }
  uint8_t byte = 7;
  assert_true(tensor_load(&byte, QKV_BOOL) == 1);
  tensor_store(&byte, QKV_BOOL, 0);
  assert_int_equal(byte, 0);
  static const double wide[] = {0, -1, 0x1p52, -0x1p52, 1e300, -1e300, (double)NAN};
  static const int64_t as_i64[] = {0, -1, 1LL << 52, -(1LL << 52), INT64_MAX, INT64_MIN, 0};
  for (size_t n = 0; n < sizeof wide / sizeof *wide; n++) {
    int64_t got;
    tensor_store(&got, QKV_I64, wide[n]);
    assert_true(got == as_i64[n] && tensor_load(&got, QKV_I64) == (double)got);
  }
  assert_int_equal(dtype_size(QKV_I64), 8);
  for (int t = QKV_F16; t <= QKV_BOOL; t++)
    assert_true(dtype_size((qkv_dtype)t) >= 1 && dtype_size((qkv_dtype)t) <= 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_patterns), cmocka_unit_test(test_rounding),
                                     cmocka_unit_test(test_bf16_of_floats), cmocka_unit_test(test_integers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
