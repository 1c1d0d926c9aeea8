/* number_format.c: the storage formats of tensors as bits, rounded to nearest even as the hardware does.
 *
 * Inputs are doubles or floats, outputs bit patterns, and back; every pattern of every format is handled, subnormals,
 * infinities and NaN included. E4M3 is the variant without infinities (OCP FP8): values beyond 448 become NaN here, as
 * conversion without saturation does; E5M2 has infinities. The narrow formats are rounded from double in one step, so
 * that no double rounding can occur. */
#include <math.h>
#include <string.h>

#include "reference.h"

/* A small binary float format: sign, `exponent` bits, `mantissa` bits. */
typedef struct format {
  int exponent, mantissa;
  int infinity; /* 0: the top exponent holds numbers, only all-ones is NaN (E4M3) */
} format;

static const format f16 = {5, 10, 1}, bf16 = {8, 7, 1}, e4m3 = {4, 3, 0}, e5m2 = {5, 2, 1};

/* Rounds to an integer, ties to even, independent of the floating-point environment's rounding mode. */
static double round_even(double x) {
  double down = floor(x), rest = x - down;
  if (rest < 0.5 || (rest == 0.5 && fmod(down, 2) == 0))
    return down;
  return down + 1;
}

static uint32_t encode(double value, const format *f) {
  int bias = (1 << (f->exponent - 1)) - 1, top = (1 << f->exponent) - 1;
  uint32_t sign = (uint32_t)(signbit(value) != 0) << (f->exponent + f->mantissa);
  uint32_t ones = (1u << f->mantissa) - 1;
  uint32_t nan_bits = ((uint32_t)top << f->mantissa) | (f->infinity ? 1u << (f->mantissa - 1) : ones);
  uint32_t overflow = f->infinity ? (uint32_t)top << f->mantissa : nan_bits;
  if (isnan(value))
    return sign | nan_bits;
  if (isinf(value))
    return sign | overflow;
  double size = fabs(value);
  if (size == 0)
    return sign;
  int e = ilogb(size);
  if (e < 1 - bias)
    e = 1 - bias; /* subnormal: the exponent stops falling */
  /* In units of the last place. A mantissa that rounds up to the next power of two carries into the exponent by itself.
   */
  double units = round_even(ldexp(size, f->mantissa - e));
  if (units >= ldexp(1, f->mantissa + 1)) {
    units /= 2;
    e++;
  }
  uint32_t steps = (uint32_t)units; /* with the implicit bit when normal */
  uint32_t bits = steps >> f->mantissa ? (((uint32_t)(e + bias)) << f->mantissa) + (steps & ones) : steps;
  uint32_t limit = f->infinity ? (uint32_t)top << f->mantissa : nan_bits;
  if (e + bias > top || bits >= limit)
    return sign | overflow;
  return sign | bits;
}

static double decode(uint32_t bits, const format *f) {
  int bias = (1 << (f->exponent - 1)) - 1, top = (1 << f->exponent) - 1;
  uint32_t ones = (1u << f->mantissa) - 1, steps = bits & ones;
  int e = (int)(bits >> f->mantissa) & top;
  double sign = bits >> (f->exponent + f->mantissa) & 1 ? -1 : 1;
  if (e == top && f->infinity)
    return steps ? copysign(NAN, sign) : sign * INFINITY;
  if (e == top && steps == ones)
    return copysign(NAN, sign);
  if (e == 0)
    return sign * ldexp(steps, 1 - bias - f->mantissa);
  return sign * ldexp(steps | (1u << f->mantissa), e - bias - f->mantissa);
}

uint16_t float_to_bf16(float f) {
  return (uint16_t)encode((double)f, &bf16);
}
float bf16_to_float(uint16_t h) {
  return (float)decode(h, &bf16);
}
uint16_t float_to_f16(float f) {
  return (uint16_t)encode((double)f, &f16);
}
float f16_to_float(uint16_t h) {
  return (float)decode(h, &f16);
}

int dtype_size(qkv_dtype dtype) {
  switch (dtype) {
  case QKV_F16:
  case QKV_BF16:
    return 2;
  case QKV_F32:
  case QKV_I32:
    return 4;
  case QKV_E4M3:
  case QKV_E5M2:
  case QKV_BOOL:
    return 1;
  case QKV_I64:
    return 8;
  }
  return 0;
}

double tensor_load(const void *p, qkv_dtype dtype) {
  uint8_t byte;
  uint16_t half;
  int32_t integer;
  int64_t wide;
  float real;
  switch (dtype) {
  case QKV_F16:
    return memcpy(&half, p, 2), decode(half, &f16);
  case QKV_BF16:
    return memcpy(&half, p, 2), decode(half, &bf16);
  case QKV_F32:
    return memcpy(&real, p, 4), (double)real;
  case QKV_I32:
    return memcpy(&integer, p, 4), (double)integer;
  case QKV_E4M3:
    return memcpy(&byte, p, 1), decode(byte, &e4m3);
  case QKV_E5M2:
    return memcpy(&byte, p, 1), decode(byte, &e5m2);
  case QKV_BOOL:
    return memcpy(&byte, p, 1), byte != 0;
  case QKV_I64:
    return memcpy(&wide, p, 8), (double)wide;
  }
  return NAN;
}

void tensor_store(void *p, qkv_dtype dtype, double value) {
  uint8_t byte;
  uint16_t half;
  int32_t integer;
  int64_t wide;
  float real;
  switch (dtype) {
  case QKV_F16:
  case QKV_BF16:
    half = (uint16_t)encode(value, dtype == QKV_F16 ? &f16 : &bf16);
    memcpy(p, &half, 2);
    return;
  case QKV_F32:
    real = (float)value;
    memcpy(p, &real, 4);
    return;
  case QKV_I32: /* saturating; NaN is 0 */
    integer = value >= 2147483647.0    ? INT32_MAX
              : value <= -2147483648.0 ? INT32_MIN
              : value == value         ? (int32_t)value
                                       : 0;
    memcpy(p, &integer, 4);
    return;
  case QKV_E4M3:
  case QKV_E5M2:
    byte = (uint8_t)encode(value, dtype == QKV_E4M3 ? &e4m3 : &e5m2);
    memcpy(p, &byte, 1);
    return;
  case QKV_BOOL:
    byte = value != 0;
    memcpy(p, &byte, 1);
    return;
  case QKV_I64: /* the same */
    wide = value >= 0x1p63 ? INT64_MAX : value <= -0x1p63 ? INT64_MIN : value == value ? (int64_t)value : 0;
    memcpy(p, &wide, 8);
    return;
  }
}
