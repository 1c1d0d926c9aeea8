/* kernel_cuda.h: what kernels use of CUDA itself, for g++: keywords, indices, vector types, built-in functions. Anything
 * of CUDA that is not here does not compile, on purpose: a kernel reaches barriers, shuffles and asynchronous copies
 * through primitives only. */
#ifndef RUNTIME_EMU_KERNEL_CUDA_H
#define RUNTIME_EMU_KERNEL_CUDA_H

#include "kernel_base.h"

/* ---- Keywords ---- */

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static_assert(false, "shared memory is reached through shared_arena()");

struct emu_dim3 {
  unsigned x, y, z;
};
EMU_PURE emu_dim3 emu_thread_index() {
  return {(unsigned)emu->thread_index(), 0u, 0u};
}
EMU_PURE emu_dim3 emu_block_index() {
  return {(unsigned)emu->block_index(), 0u, 0u};
}
EMU_PURE emu_dim3 emu_block_size() {
  return {(unsigned)emu->block_size(), 1u, 1u};
}
EMU_PURE emu_dim3 emu_grid_size() {
  return {(unsigned)emu->grid_size(), 1u, 1u};
}
#define threadIdx emu_thread_index()
#define blockIdx emu_block_index()
#define blockDim emu_block_size()
#define gridDim emu_grid_size()

/* The entry as the device calls it, and the size of its parameter struct, to be compared with the manifest's. */
#define QKV_EMU_ENTRY(entry)                                                                                           \
  EMU_EXPORT void emu_entry_##entry(const void *params) {                                                              \
    entry(*(const qkv_params *)params);                                                                                \
  }                                                                                                                    \
  EMU_EXPORT unsigned long emu_params_size_##entry() {                                                                 \
    return sizeof(qkv_params);                                                                                         \
  }

/* ---- Vector types: moved as one access of their whole size, which the compiler would split ---- */

#define EMU_VECTOR_COMMON(name)                                                                                        \
  name() = default;                                                                                                    \
  EMU_PLAIN __attribute__((noinline)) name(const name &other) {                                                        \
    EMU_CALL(access)(&other, sizeof *this, 0);                                                                         \
    set(other);                                                                                                        \
  }                                                                                                                    \
  EMU_PLAIN __attribute__((noinline)) name &operator=(const name &other) {                                             \
    EMU_CALL(access)(&other, sizeof *this, 0);                                                                         \
    EMU_CALL(access)(this, sizeof *this, 1);                                                                           \
    set(other);                                                                                                        \
    return *this;                                                                                                      \
  }
#define EMU_VECTOR2(name, type)                                                                                        \
  struct __attribute__((aligned(2 * sizeof(type)))) name {                                                             \
    type x, y;                                                                                                         \
    name(type x_, type y_) : x(x_), y(y_) {}                                                                           \
    EMU_PLAIN void set(const name &o) { x = o.x, y = o.y; }                                                            \
    EMU_VECTOR_COMMON(name)                                                                                            \
  };                                                                                                                   \
  static inline name make_##name(type x, type y) {                                                                     \
    return name(x, y);                                                                                                 \
  }
#define EMU_VECTOR4(name, type)                                                                                        \
  struct __attribute__((aligned(4 * sizeof(type)))) name {                                                             \
    type x, y, z, w;                                                                                                   \
    name(type x_, type y_, type z_, type w_) : x(x_), y(y_), z(z_), w(w_) {}                                           \
    EMU_PLAIN void set(const name &o) { x = o.x, y = o.y, z = o.z, w = o.w; }                                          \
    EMU_VECTOR_COMMON(name)                                                                                            \
  };                                                                                                                   \
  static inline name make_##name(type x, type y, type z, type w) {                                                     \
    return name(x, y, z, w);                                                                                           \
  }
EMU_VECTOR2(int2, int)
EMU_VECTOR2(uint2, unsigned)
EMU_VECTOR2(float2, float)
EMU_VECTOR4(int4, int)
EMU_VECTOR4(uint4, unsigned)
EMU_VECTOR4(float4, float)

/* ---- Built-in functions of CUDA ---- */

EMU_PURE float __int_as_float(int bits) {
  return format_float((uint32_t)bits);
}
EMU_PURE float __uint_as_float(unsigned bits) {
  return format_float(bits);
}
EMU_PURE int __float_as_int(float value) {
  return (int)format_bits(value);
}
EMU_PURE unsigned __float_as_uint(float value) {
  return format_bits(value);
}

#define EMU_MIN_MAX(result, first, second)                                                                             \
  EMU_PURE result min(first a, second b) {                                                                             \
    return (result)a < (result)b ? (result)a : (result)b;                                                              \
  }                                                                                                                    \
  EMU_PURE result max(first a, second b) {                                                                             \
    return (result)a > (result)b ? (result)a : (result)b;                                                              \
  }
EMU_MIN_MAX(int, int, int)
EMU_MIN_MAX(unsigned, unsigned, unsigned)
EMU_MIN_MAX(unsigned, int, unsigned)
EMU_MIN_MAX(unsigned, unsigned, int)
EMU_MIN_MAX(long, long, long)
EMU_MIN_MAX(unsigned long, unsigned long, unsigned long)
EMU_MIN_MAX(long long, long long, long long)
EMU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef EMU_MIN_MAX
EMU_PURE float min(float a, float b) {
  return __builtin_fminf(a, b);
}
EMU_PURE float max(float a, float b) {
  return __builtin_fmaxf(a, b);
}

/* The C library's. */
#define EMU_MATH1(name) extern "C" float name(float) noexcept;
#define EMU_MATH2(name) extern "C" float name(float, float) noexcept;
EMU_MATH1(fabsf)
EMU_MATH1(sqrtf)
EMU_MATH1(floorf)
EMU_MATH1(ceilf)
EMU_MATH1(truncf)
EMU_MATH1(expf)
EMU_MATH1(exp2f)
EMU_MATH1(logf)
EMU_MATH1(log2f)
EMU_MATH1(tanhf)
EMU_MATH1(sinf)
EMU_MATH1(cosf)
EMU_MATH2(fmaxf)
EMU_MATH2(fminf)
EMU_MATH2(powf)
EMU_MATH2(fmodf)
extern "C" float fmaf(float, float, float) noexcept;
extern "C" int abs(int) noexcept;
#undef EMU_MATH1
#undef EMU_MATH2
EMU_PURE float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
/* Of pi x. */
extern "C" double sin(double) noexcept;
extern "C" double cos(double) noexcept;
EMU_PURE float sinpif(float x) {
  return (float)sin(3.14159265358979323846 * (double)x);
}
EMU_PURE float cospif(float x) {
  return (float)cos(3.14159265358979323846 * (double)x);
}

#endif
