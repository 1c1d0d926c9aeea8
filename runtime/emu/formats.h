/* formats.h: narrow floats to f32 and back, round to nearest even. Shared by the emulator (C) and the kernels it runs
 * (C++), so that both mean the same by a bit pattern. NaN becomes the hardware's canonical NaN. */
#ifndef RUNTIME_EMU_FORMATS_H
#define RUNTIME_EMU_FORMATS_H

#include <stdint.h>

static inline float format_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t format_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float format_from_bf16(uint16_t bits) {
  return format_float((uint32_t)bits << 16);
}

static inline uint16_t format_to_bf16(float value) {
  uint32_t bits = format_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return 0x7fff;
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16); /* carries into the exponent, up to infinity */
}

static inline float format_from_f16(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, fraction = bits & 0x3ffu;
  if (exponent == 31u)
    return format_float(sign | 0x7f800000u | fraction << 13);
  if (exponent)
    return format_float(sign | (exponent + 112u) << 23 | fraction << 13);
  float magnitude = (float)fraction * 0x1p-24f; /* subnormal or zero: exact */
  return sign ? -magnitude : magnitude;
}

static inline uint16_t format_to_f16(float value) {
  uint32_t bits = format_bits(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return 0x7fff;
  if (magnitude >= 0x47800000u) /* 2^16 and above */
    return (uint16_t)(sign | 0x7c00u);
  if (magnitude < 0x38800000u) { /* below 2^-14: the sum's last place is 2^-24, so the adder rounds to a subnormal */
    uint32_t sum = format_bits(format_float(magnitude) + 0.5f);
    return (uint16_t)(sign | (sum - 0x3f000000u));
  }
  uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u); /* may carry up to infinity */
  return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static inline float format_from_e4m3(uint8_t bits) {
  uint32_t magnitude = bits & 0x7fu, sign = (bits & 0x80u) << 24;
  if (magnitude == 0x7fu)
    return format_float(sign | 0x7fc00000u);
  return format_float(sign | magnitude << 20) * 0x1p+120f; /* the exponents' biases differ by 120 */
}

/* Saturates at 448, infinities too; there are none in this format. */
static inline uint8_t format_to_e4m3(float value) {
  uint32_t bits = format_bits(value), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return 0x7f;
  if (magnitude >= 0x43e00000u) /* 448 and above */
    return (uint8_t)(sign | 0x7eu);
  if (magnitude < 0x3c800000u) { /* below 2^-6: the sum's last place is 2^-9, so the adder rounds to a subnormal */
    uint32_t sum = format_bits(format_float(magnitude) + 16384.0f);
    return (uint8_t)(sign | (sum - 0x46800000u));
  }
  uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return (uint8_t)(sign | ((rounded - 0x3c000000u) >> 20));
}

#endif
