/* emu_inputs.h: what the kernels of tests/emulator are given: parameter structs, as kernels and as hosts declare them,
 * random numbers, tensor maps and boxes. Shared with tests/primitives. */
#ifndef TESTS_EMU_INPUTS_H
#define TESTS_EMU_INPUTS_H

#include <stdint.h>

#include "device.h"

/* Two buffers and two numbers. */
#define FIXTURE_PARAMS "struct qkv_params { const void *in; void *out; int mode, n; };\n"
typedef struct fixture_params {
  const void *in;
  void *out;
  int mode, n;
} fixture_params;

/* The same with four tensor maps and more numbers. */
#define SM90_PARAMS "struct qkv_params { tensor_map map[4]; const void *in; void *out; int mode, n, x[6]; };\n"
typedef struct sm90_params {
  _Alignas(64) unsigned char map[4][DEVICE_TENSOR_MAP_BYTES];
  const void *in;
  void *out;
  int mode, n, x[6];
} sm90_params;

static inline uint32_t fixture_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

/* Uniform in [-1, 1). */
static inline float fixture_uniform(uint64_t *state) {
  return (float)((int)(fixture_random(state) & 0xffff) - 0x8000) / 32768;
}

/* A dense tensor of 16-bit elements, rows padded to 16 bytes. */
static inline device_tensor_map sm90_map(void *base, int rank, const int64_t *extent, const int *box, int swizzle) {
  device_tensor_map map = {.base = base, .element_bytes = 2, .rank = rank, .swizzle = swizzle};
  int64_t stride = 2;
  for (int d = 0; d < rank; d++) {
    map.extent[d] = extent[d];
    map.box[d] = box[d];
    stride = d == 0 ? (extent[0] * 2 + 15) / 16 * 16 : stride * extent[d];
    if (d < rank - 1)
      map.stride_bytes[d] = stride;
  }
  return map;
}

/* A box of a dense tensor, and where in shared memory it lies. */
typedef struct box_case {
  int rank, swizzle, element_bytes;
  int64_t extent[5];
  int box[5], start[5];
  int to; /* offset in the arena */
  int bytes;
  int64_t elements;
} box_case;

static inline box_case draw_case(uint64_t *random) {
  static const int swizzles[] = {0, 32, 64, 128};
  box_case c = {.rank = 2 + (int)(fixture_random(random) % 4), .element_bytes = fixture_random(random) % 2 ? 2 : 4};
  c.swizzle = swizzles[fixture_random(random) % 4];
  int width = c.swizzle ? c.swizzle : 16 * (1 + (int)(fixture_random(random) % 9));
  c.box[0] = width / c.element_bytes;
  c.bytes = width;
  c.elements = 1;
  for (int d = 0; d < c.rank; d++) {
    if (d > 0)
      c.box[d] = 1 + (int)(fixture_random(random) % (d == 1 ? 20u : 3u));
    if (d > 0)
      c.bytes *= c.box[d];
    c.extent[d] = d == 0 ? 8 * (1 + (int64_t)(fixture_random(random) % 12)) : 1 + (int64_t)(fixture_random(random) % 8);
    int64_t room = c.extent[d] + c.box[d] + 2; /* from wholly before to wholly behind */
    c.start[d] = (int)(fixture_random(random) % (uint32_t)room) - c.box[d];
    if (fixture_random(random) % 3 == 0)
      c.start[d] = 0;
    if (d == 0) /* the hardware takes whole chunks of 16 bytes */
      c.start[0] -= c.start[0] % (16 / c.element_bytes);
    c.elements *= c.extent[d];
  }
  c.to = 128 * (1 + (int)(fixture_random(random) % 16));
  return c;
}

/* The box as it may be stored: not from before the tensor on. */
static inline void make_storable(box_case *c) {
  for (int d = 0; d < c->rank; d++)
    if (c->start[d] < 0)
      c->start[d] = -c->start[d];
}

static inline device_tensor_map box_map(const box_case *c, void *base) {
  device_tensor_map map = {.base = base, .element_bytes = c->element_bytes, .rank = c->rank, .swizzle = c->swizzle};
  int64_t stride = c->element_bytes;
  for (int d = 0; d < c->rank; d++) {
    map.extent[d] = c->extent[d];
    map.box[d] = c->box[d];
    stride *= c->extent[d];
    if (d + 1 < c->rank)
      map.stride_bytes[d] = stride;
  }
  return map;
}

#endif
