/* kernel_math.h: twins of the primitives of templates/prim that compute: bits, approximate functions, conversions. */
#ifndef RUNTIME_EMU_KERNEL_MATH_H
#define RUNTIME_EMU_KERNEL_MATH_H

#include "kernel_cuda.h"

/* Not __builtin_popcount, which may be a call into libgcc, and images link nothing. */
EMU_PURE int population_count(unsigned x) {
  int count = 0;
  for (; x; x &= x - 1)
    count++;
  return count;
}
EMU_PURE int leading_zeros(unsigned x) {
  return x ? __builtin_clz(x) : 32;
}

EMU_PURE unsigned permute_bytes(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long eight = low | (unsigned long long)high << 32;
  unsigned bytes = 0;
  for (int n = 0; n < 4; n++)
    bytes |= (unsigned)(eight >> 8 * (selector >> 4 * n & 7u) & 0xffu) << 8 * n;
  return bytes;
}

/* ex2.approx.ftz: subnormal operands and results are zero of the same sign. The others keep subnormals. */
EMU_PURE float emu_flush(float x) {
  return (format_bits(x) & 0x7f800000u) == 0 ? format_float(format_bits(x) & 0x80000000u) : x;
}
EMU_PURE float exp2_approx(float x) {
  return emu_flush(exp2f(emu_flush(x)));
}
EMU_PURE float log2_approx(float x) {
  return log2f(x);
}
EMU_PURE float rcp_approx(float x) {
  return 1.0f / x;
}
/* tanh.approx is off by up to 2^-11 of its value, which is 30 and more times what the others are. So that what is
 * tested with this twin holds on a GPU, it is as far off: its results have 10 bits behind the leading one. */
EMU_PURE float tanh_approx(float x) {
  unsigned bits = format_bits(tanhf(x));
  return (bits & 0x7f800000u) == 0 ? x : format_float((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
}

EMU_PURE float sin_approx(float x) {
  return sinf(x);
}
EMU_PURE float cos_approx(float x) {
  return cosf(x);
}

EMU_PURE float bf16_to_f32(unsigned short bits) {
  return format_from_bf16(bits);
}
EMU_PURE float f16_to_f32(unsigned short bits) {
  return format_from_f16(bits);
}
EMU_PURE unsigned short f32_to_bf16(float value) {
  return format_to_bf16(value);
}
EMU_PURE unsigned short f32_to_f16(float value) {
  return format_to_f16(value);
}
EMU_PURE unsigned pack_bf16x2(float low, float high) {
  return (unsigned)format_to_bf16(low) | (unsigned)format_to_bf16(high) << 16;
}
EMU_PURE unsigned pack_f16x2(float low, float high) {
  return (unsigned)format_to_f16(low) | (unsigned)format_to_f16(high) << 16;
}
/* f32 holds the products of two 16-bit numbers, but for those of bf16 that are below its normal ones. */
EMU_PURE unsigned mul_bf16x2(unsigned a, unsigned b) {
  return pack_bf16x2(bf16_to_f32(a & 0xffffu) * bf16_to_f32(b & 0xffffu), bf16_to_f32(a >> 16) * bf16_to_f32(b >> 16));
}
EMU_PURE unsigned mul_f16x2(unsigned a, unsigned b) {
  return pack_f16x2(f16_to_f32(a & 0xffffu) * f16_to_f32(b & 0xffffu), f16_to_f32(a >> 16) * f16_to_f32(b >> 16));
}
EMU_PURE unsigned e4m3x4_low_to_f16x2(unsigned bytes) {
  return pack_f16x2(format_from_e4m3(bytes & 0xffu), format_from_e4m3(bytes >> 8 & 0xffu));
}
EMU_PURE unsigned e4m3x4_high_to_f16x2(unsigned bytes) {
  return e4m3x4_low_to_f16x2(bytes >> 16);
}
EMU_PURE unsigned short pack_e4m3x2(float low, float high) {
  return (unsigned short)(format_to_e4m3(low) | (unsigned)format_to_e4m3(high) << 8);
}

#endif
