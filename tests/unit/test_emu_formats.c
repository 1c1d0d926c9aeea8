/* The 16-bit float formats: every value there and back, and rounding against the two neighbours in exact arithmetic. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "emu/formats.h"

typedef struct format {
  const char *name;
  float (*from)(uint16_t);
  uint16_t (*to)(float);
  int exponent_bits;
} format;

static float from_bf16(uint16_t x) {
  return format_from_bf16(x);
}
static uint16_t to_bf16(float x) {
  return format_to_bf16(x);
}
static float from_f16(uint16_t x) {
  return format_from_f16(x);
}
static uint16_t to_f16(float x) {
  return format_to_f16(x);
}

static const format formats[] = {{"bf16", from_bf16, to_bf16, 8}, {"f16", from_f16, to_f16, 5}};

/* The value of a bit pattern by definition. */
static double value_of(const format *f, uint16_t bits) {
  int fraction_bits = 15 - f->exponent_bits, bias = (1 << (f->exponent_bits - 1)) - 1;
  int exponent = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
  double magnitude = exponent ? ldexp(1 + ldexp(fraction, -fraction_bits), exponent - bias)
                              : ldexp(fraction, 1 - bias - fraction_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

static uint16_t infinity_of(const format *f) {
  return (uint16_t)(0x7fff & ~((1 << (15 - f->exponent_bits)) - 1));
}

static void test_every_value_round_trips(void **state) {
  (void)state;
  for (const format *f = formats; f < formats + 2; f++)
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
      float x = f->from((uint16_t)bits);
      if ((bits & 0x7fff) > infinity_of(f)) {
        if (!isnan(x) || f->to(x) != 0x7fff)
          fail_msg("%s 0x%04x: NaN is lost", f->name, (unsigned)bits);
      } else if (f->to(x) != bits || ((bits & 0x7fff) < infinity_of(f) && (double)x != value_of(f, (uint16_t)bits))) {
        fail_msg("%s 0x%04x: %a, back 0x%04x", f->name, (unsigned)bits, (double)x, (unsigned)f->to(x));
      }
    }
}

/* Nearest, ties to even, overflow to infinity at half a unit past the largest. */
static void test_rounding(void **state) {
  (void)state;
  for (const format *f = formats; f < formats + 2; f++)
    for (uint32_t low = 0; low < infinity_of(f); low++) {
      double a = value_of(f, (uint16_t)low), b = value_of(f, (uint16_t)(low + 1)), middle = a + (b - a) / 2;
      float tie = (float)middle;
      if ((double)tie != middle)
        continue; /* between the smallest bf16 subnormals: no float there */
      uint32_t even = low + (low & 1);
      uint32_t below = f->to(nextafterf(tie, 0.0f)), at = f->to(tie), above = f->to(nextafterf(tie, INFINITY));
      if (below != low || at != even || above != low + 1)
        fail_msg("%s between 0x%04x and the next: below 0x%04x, tie 0x%04x, above 0x%04x", f->name, (unsigned)low,
                 (unsigned)below, (unsigned)at, (unsigned)above);
      assert_int_equal(f->to(-tie), even | 0x8000);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_value_round_trips),
      cmocka_unit_test(test_rounding),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
