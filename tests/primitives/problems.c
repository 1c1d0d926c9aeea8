/* problems.c: what each kernel is given, and how exact its results are.
 *
 * Tolerances: the approximate functions are documented to 2^-22 (ex2, relative; lg2, absolute near 1) and 1 ulp (rcp),
 * doubled here since the emulator rounds too. A tensor core adds products of a step in fixed point, cut off some bits
 * below the greatest: 16 products of values up to 1 are off by at most 16 2^-22, four such steps by four times that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/formats.h"
#include "emulator/emu_inputs.h"
#include "primitives.h"

#define ALL(kind, tolerance)                                                                                           \
  (word_rule) {                                                                                                        \
    {kind, kind, kind, kind, kind, kind, kind, kind}, {                                                                \
      tolerance, tolerance, tolerance, tolerance, tolerance, tolerance, tolerance, tolerance                           \
    }                                                                                                                  \
  }
static const double MMA = 0x1p-18, WGMMA = 0x1p-16, RING = 0x1p-7, RING_SUM = 0x1p-4;

/* A zeroed buffer. */
static unsigned char *add_buffer(problem *p, size_t size, word_rule rule) {
  buffer *b = &p->buffer[p->buffers++];
  *b = (buffer){calloc(1, size), size, rule};
  if (!b->bytes)
    abort();
  return b->bytes;
}

void problem_free(problem *p) {
  for (int i = 0; i < p->buffers; i++)
    free(p->buffer[i].bytes);
}

static void fill_bits(unsigned char *bytes, size_t size, uint64_t *random) {
  for (size_t i = 0; i < size; i++)
    bytes[i] = (unsigned char)(fixture_random(random) >> 3);
}

static void fill_floats(unsigned char *bytes, size_t count, uint64_t *random) {
  for (size_t i = 0; i < count; i++) {
    float x = fixture_uniform(random);
    memcpy(bytes + 4 * i, &x, 4);
  }
}

static void fill_halves(unsigned char *bytes, size_t count, bool bf16, uint64_t *random) {
  for (size_t i = 0; i < count; i++) {
    float x = fixture_uniform(random);
    uint16_t bits = bf16 ? format_to_bf16(x) : format_to_f16(x);
    memcpy(bytes + 2 * i, &bits, 2);
  }
}

static void set_launch(problem *p, const char *entry, int64_t grid, int block, int shared_bytes) {
  p->entry = entry;
  p->grid = grid;
  p->block = block;
  p->shared_bytes = shared_bytes;
}

/* ---- sm_80 ---- */

static void make_warp_values(problem *p, int number, uint64_t *random) {
  set_launch(p, "warp_values", 3, 64, 16);
  fill_bits(add_buffer(p, 192 * 4, ALL(EXACT, 0)), 192 * 4, random);
  add_buffer(p, 192 * 32, ALL(EXACT, 0));
  p->mode = number;
  memcpy(&p->n, p->buffer[IN].bytes + 4 * 40, 4);
}

static void make_matrix_load(problem *p, int number, uint64_t *random) {
  static const int modes[] = {1, 2, 4, 5, 6, 8};
  set_launch(p, "matrix_load", 1, 32, 512);
  unsigned char *rows = add_buffer(p, 32 * 4, ALL(EXACT, 0));
  for (int i = 0; i < 32; i++)
    memcpy(rows + 4 * i, &(int){(int)(fixture_random(random) % 32)}, 4);
  add_buffer(p, 32 * 16, ALL(EXACT, 0));
  p->mode = modes[number % 6];
}

static void make_product(problem *p, int number, uint64_t *random) {
  set_launch(p, "product", 1, 32, 768);
  p->mode = number % 2;
  unsigned char *in = add_buffer(p, 768 + 512, ALL(EXACT, 0));
  fill_halves(in, 384, p->mode, random);
  fill_floats(in + 768, 128, random);
  add_buffer(p, 512, ALL(ABSOLUTE, MMA));
}

static void make_zero_fill(problem *p, int number, uint64_t *random) {
  set_launch(p, "zero_fill", 1, 64, 1024);
  p->mode = number;
  fill_bits(add_buffer(p, 1024, ALL(EXACT, 0)), 1024, random);
  add_buffer(p, 1024, ALL(EXACT, 0));
}

/* Number 0: numbers of everyday size; 1: any bits; 2: special values; from 3 on, all f16 patterns in 16 parts. */
static void fill_arguments(unsigned char *in, int count, int number, uint64_t *random) {
  static const uint32_t special[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001,
                                     0x7f800001, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x3f800000,
                                     0xbf800000, 0x42fc0000, 0xc2fc0000, 0xc3160000, 0x477fefff, 0x477ff000,
                                     0x477fe000, 0x7f7fffff, 0x33000000, 0x33000001, 0x387fffff, 0x3f808000,
                                     0x3f818000, 0x7f7f8000, 0x00008000, 0x00018000};
  enum { SPECIAL = sizeof special / sizeof *special };
  fill_bits(in, 4 * (size_t)count, random);
  for (uint32_t i = 0; i < (uint32_t)count; i++) {
    float x = 30.0f * fixture_uniform(random);
    uint32_t bits = number == 0 ? format_bits(x) : special[i % SPECIAL];
    if (number >= 3)
      bits = ((uint32_t)(number - 3) * (uint32_t)count + i) << 12;
    if (number != 1)
      memcpy(in + 4 * i, &bits, 4);
  }
}

enum { ARGUMENTS = 4096 };

static void make_functions(problem *p, int number, uint64_t *random) {
  set_launch(p, "functions", ARGUMENTS / 128, 128, 0);
  fill_arguments(add_buffer(p, 4 * ARGUMENTS, ALL(EXACT, 0)), ARGUMENTS, number, random);
  add_buffer(p, 32 * ARGUMENTS,
             (word_rule){{RELATIVE, ABSOLUTE, RELATIVE, NUMBER, EXACT, EXACT, NUMBER, NUMBER},
                         {0x1p-21, 0x1p-21, 0x1p-22, 0, 0, 0, 0, 0}});
}

/* All codes of a byte, each in all four places. */
static void make_bytes(problem *p, int number, uint64_t *random) {
  (void)number;
  set_launch(p, "bytes", 8, 128, 0);
  unsigned char *in = add_buffer(p, 4096, ALL(EXACT, 0));
  fill_bits(in, 4096, random);
  for (int i = 0; i < 1024; i++)
    in[4 * i + i / 256] = (unsigned char)i;
  add_buffer(p, 8 * 4096, (word_rule){{NUMBER, NUMBER, EXACT, EXACT, EXACT, EXACT, EXACT, EXACT}, {0}});
}

static void make_byte_orders(problem *p, int number, uint64_t *random) {
  (void)number;
  set_launch(p, "byte_orders", 8, 128, 0);
  fill_bits(add_buffer(p, 4096, ALL(EXACT, 0)), 4096, random);
  add_buffer(p, 2 * 4096, ALL(EXACT, 0));
}

/* Either side may be off by 2^-11. */
static void make_tangents(problem *p, int number, uint64_t *random) {
  set_launch(p, "tangents", ARGUMENTS / 128, 128, 0);
  fill_arguments(add_buffer(p, 4 * ARGUMENTS, ALL(EXACT, 0)), ARGUMENTS, number, random);
  add_buffer(p, 4 * ARGUMENTS, ALL(RELATIVE, 0x1.01p-10));
}

/* Radians from -pi to pi; either side may be off by 2^-20. */
static void make_turns(problem *p, int number, uint64_t *random) {
  (void)number, (void)random;
  set_launch(p, "turns", ARGUMENTS / 128, 128, 0);
  unsigned char *in = add_buffer(p, 4 * ARGUMENTS, ALL(EXACT, 0));
  for (int i = 0; i < ARGUMENTS; i++) {
    const float x = 3.14159265f * ((float)i / (ARGUMENTS / 2) - 1);
    memcpy(in + 4 * i, &x, 4);
  }
  add_buffer(p, 8 * ARGUMENTS, ALL(ABSOLUTE, 0x1p-19));
}

static void make_bytes_out(problem *p, int number, uint64_t *random) {
  set_launch(p, "bytes_out", ARGUMENTS / 128, 128, 0);
  fill_arguments(add_buffer(p, 4 * ARGUMENTS, ALL(EXACT, 0)), ARGUMENTS, number, random);
  add_buffer(p, 4 * ARGUMENTS, ALL(EXACT, 0));
}

/* All pairs of codes. */
static void make_bytes_in(problem *p, int number, uint64_t *random) {
  (void)number, (void)random;
  set_launch(p, "bytes_in", 256, 128, 0);
  unsigned char *in = add_buffer(p, 2 * 65536, ALL(EXACT, 0));
  for (int i = 0; i < 65536; i++)
    in[2 * i] = (unsigned char)i, in[2 * i + 1] = (unsigned char)(i >> 8);
  add_buffer(p, 4 * 65536, ALL(EXACT, 0));
}

static void make_relay(problem *p, int number, uint64_t *random) {
  (void)number, (void)random;
  set_launch(p, "relay", 1, 128, 256);
  p->n = 50;
  add_buffer(p, 4, ALL(EXACT, 0));
  add_buffer(p, 512, ALL(EXACT, 0));
}

static void make_pipeline(problem *p, int number, uint64_t *random) {
  set_launch(p, "pipeline", 5, 64, 3 * 512);
  p->n = 1 + 3 * number;
  size_t size = (size_t)(p->grid * p->n) * 512;
  fill_bits(add_buffer(p, size, ALL(EXACT, 0)), size, random);
  add_buffer(p, (size_t)p->grid * 256, ALL(EXACT, 0));
}

/* ---- sm_90 ---- */

static void add_map(problem *p, device_tensor_map map, int of_buffer) {
  p->map[p->maps] = map;
  p->map_buffer[p->maps++] = of_buffer;
}

static void make_box(problem *p, const char *entry, bool stored, bool multicast, uint64_t *random) {
  box_case c;
  do
    c = draw_case(random);
  while (c.elements * c.element_bytes > 256 * 1024 || c.bytes > 64 * 1024 || (multicast && c.rank != 4));
  if (stored)
    make_storable(&c);
  set_launch(p, entry, 1, 64, 96 * 1024);
  p->mode = multicast ? 6 : c.rank;
  p->n = c.bytes;
  memcpy(p->x, c.start, sizeof c.start);
  p->x[5] = c.to;
  fill_bits(add_buffer(p, (size_t)c.bytes, ALL(EXACT, 0)), (size_t)c.bytes, random);
  add_buffer(p, (size_t)c.bytes, ALL(EXACT, 0));
  size_t size = (size_t)(c.elements * c.element_bytes);
  fill_bits(add_buffer(p, size, ALL(EXACT, 0)), size, random);
  add_map(p, box_map(&c, NULL), 2);
}

static void make_box_in(problem *p, int number, uint64_t *random) {
  make_box(p, "box_in", false, number % 8 == 7, random);
}

static void make_box_out(problem *p, int number, uint64_t *random) {
  (void)number;
  make_box(p, "box_out", true, false, random);
}

/* A box that ends where a sequence does: 1 to 16 rows of 16, from a token on, of a tensor of two heads. The map knows a
 * token as (row, token), and begins 16 tokens before the tensor; none at all would make the hardware look there. */
static void make_clipped(problem *p, const char *entry, int number, uint64_t *random) {
  enum { TOKENS = 40, ROWS = 16, ROW_BYTES = 128, TO = 1024 };
  const int rows = 1 + number % ROWS, token = (int)(fixture_random(random) % (uint32_t)(TOKENS - rows + 1));
  const size_t size = 2 * TOKENS * ROW_BYTES;
  set_launch(p, entry, 1, 64, 96 * 1024);
  p->mode = 4;
  p->n = ROWS * ROW_BYTES;
  memcpy(p->x, (int[]){0, ROWS - rows, token + rows, number / ROWS % 2, 0, TO}, 6 * sizeof(int));
  fill_bits(add_buffer(p, (size_t)p->n, ALL(EXACT, 0)), (size_t)p->n, random);
  add_buffer(p, (size_t)p->n, ALL(EXACT, 0));
  fill_bits(add_buffer(p, size, ALL(EXACT, 0)), size, random);
  p->map_offset[p->maps] = -ROWS * ROW_BYTES;
  device_tensor_map map = sm90_map(NULL, 4, (int64_t[]){64, ROWS, TOKENS + 1, 2}, (int[]){64, ROWS, 1, 1}, 128);
  memcpy(map.stride_bytes, (int64_t[]){ROW_BYTES, ROW_BYTES, TOKENS * ROW_BYTES}, 3 * sizeof(int64_t));
  add_map(p, map, 2);
}

static void make_clipped_in(problem *p, int number, uint64_t *random) {
  make_clipped(p, "box_in", number, random);
}

static void make_clipped_out(problem *p, int number, uint64_t *random) {
  make_clipped(p, "box_out", number, random);
}

static void make_matrix_store(problem *p, int number, uint64_t *random) {
  (void)random;
  set_launch(p, "matrix_store", 1, 32, 512);
  p->mode = number % 4;
  unsigned char *rows = add_buffer(p, 128, ALL(EXACT, 0));
  for (int i = 0; i < 32; i++)
    memcpy(rows + 4 * i, &(int){(i * 5 + number) % 32}, 4);
  add_buffer(p, 512, ALL(EXACT, 0));
}

static void make_hand_over(problem *p, int number, uint64_t *random) {
  (void)random;
  set_launch(p, "hand_over", 1, 64, 128);
  p->n = 1 + 20 * number;
  add_buffer(p, 4, ALL(EXACT, 0));
  add_buffer(p, 256, ALL(EXACT, 0));
}

static void make_agree(problem *p, int number, uint64_t *random) {
  (void)random;
  set_launch(p, "agree", 1, 64, 7 * 256);
  p->n = 1 + 3 * number;
  unsigned char *who = add_buffer(p, 28, ALL(EXACT, 0));
  for (int i = 0; i < 7; i++)
    memcpy(who + 4 * i, &(int){(number + i) % 3 == 0 ? -1 : (number * 7 + i * 29) % 64}, 4);
  add_buffer(p, 256, ALL(EXACT, 0));
}

static void make_odds(problem *p, int number, uint64_t *random) {
  (void)number;
  set_launch(p, "odds", 1, 96, 4096);
  fill_bits(add_buffer(p, 384, ALL(EXACT, 0)), 384, random);
  add_buffer(p, 388, ALL(EXACT, 0));
}

static const int product_shapes[][2] = {{8, 0}, {8, 1}, {24, 1}, {64, 1}, {80, 0}, {128, 1}, {176, 1}, {256, 0}};
enum { PRODUCT_SHAPES = sizeof product_shapes / sizeof *product_shapes, PRODUCT_WIDTHS = 4, PRODUCT_MODES = 20, K = 64 };

/* By shape, then the width of the swizzle, then form and start. */
static void make_wgmma(problem *p, int number, uint64_t *random) {
  static const int codes[] = {0, 0, 3, 0, 2, 0, 0, 0, 1}; /* by width / 16 */
  const int *shape = product_shapes[number / (PRODUCT_WIDTHS * PRODUCT_MODES)];
  int n = shape[0], width = 16 << number / PRODUCT_MODES % PRODUCT_WIDTHS, columns = width / 2;
  p->mode = number % PRODUCT_MODES;
  if (p->mode >= 16)
    p->mode = 16 + 4 * (p->mode - 16); /* A MN-major, with the four starts and sizes of a statement */
  bool transposed = p->mode % 2;
  snprintf(p->entry_text, sizeof p->entry_text, "product_%d_%s", n, shape[1] ? "bf16" : "f16");
  set_launch(p, p->entry_text, 1, 128, 8192 + 65536 + 128);
  int rows = transposed ? K : n, inner = transposed ? n : K, panels = (inner + columns - 1) / columns;
  memcpy(p->x, (int[]){codes[width / 16], width, rows, panels}, 4 * sizeof(int));
  fill_halves(add_buffer(p, 64 * K * 2, ALL(EXACT, 0)), 64 * K, shape[1], random);
  fill_floats(add_buffer(p, 64 * (size_t)n * 4, ALL(ABSOLUTE, WGMMA)), 64 * (size_t)n, random);
  fill_halves(add_buffer(p, (size_t)n * K * 2, ALL(EXACT, 0)), (size_t)n * K, shape[1], random);
  int swizzle = width == 16 ? 0 : width;
  add_map(p, sm90_map(NULL, 2, (int64_t[]){K, 64}, (int[]){columns, 64}, swizzle), 0);
  add_map(p, sm90_map(NULL, 2, (int64_t[]){inner, rows}, (int[]){columns, rows}, swizzle), 2);
}

static void make_two_groups(problem *p, int number, uint64_t *random) {
  (void)number;
  set_launch(p, "two_groups", 1, 128, 3 * 8192);
  fill_halves(add_buffer(p, 8192, ALL(EXACT, 0)), 4096, true, random);
  add_buffer(p, 2 * 4096 * 4, ALL(ABSOLUTE, WGMMA));
  fill_halves(add_buffer(p, 8192, ALL(EXACT, 0)), 4096, true, random);
  add_map(p, sm90_map(NULL, 2, (int64_t[]){64, 64}, (int[]){64, 64}, 128), 0);
  add_map(p, sm90_map(NULL, 2, (int64_t[]){64, 64}, (int[]){64, 64}, 128), 2);
}

/* Scores leave as bf16, which two sums may round to neighbours; the second product adds up such differences. */
static void make_ring(problem *p, int number, uint64_t *random) {
  enum { GRID = 2, SHARED = 2 * 16384 + 2 * 16384 + 2 * 8192 + 128 };
  int tiles = 3 + 4 * number;
  set_launch(p, "ring", GRID, 384, SHARED);
  p->n = tiles;
  size_t rows = 128 * GRID, columns = 64 * (size_t)tiles;
  fill_halves(add_buffer(p, rows * 256, ALL(EXACT, 0)), rows * 128, true, random);
  add_buffer(p, rows * 128 * 4, ALL(ABSOLUTE, RING_SUM));
  fill_halves(add_buffer(p, columns * 256, ALL(EXACT, 0)), columns * 128, true, random);
  add_buffer(p, rows * columns * 2, ALL(BF16_PAIR, RING));
  add_map(p, sm90_map(NULL, 2, (int64_t[]){128, (int64_t)rows}, (int[]){64, 128}, 128), 0);
  add_map(p, sm90_map(NULL, 2, (int64_t[]){128, (int64_t)columns}, (int[]){64, 64}, 128), 2);
  add_map(p, sm90_map(NULL, 2, (int64_t[]){(int64_t)columns, (int64_t)rows}, (int[]){64, 64}, 128), 3);
}

/* Which block is the last one differs; what it finds does not. */
static void make_split_kernel(problem *p, const char *entry, int tiles, int parts, int block, uint64_t *random) {
  set_launch(p, entry, tiles * parts, block, 2048);
  p->n = parts;
  p->x[0] = tiles;
  size_t in_size = (size_t)(tiles * parts * block) * 4, rows = (size_t)(tiles + tiles * parts + 1);
  fill_bits(add_buffer(p, in_size, ALL(EXACT, 0)), in_size, random);
  add_buffer(p, rows * (size_t)block * 4, ALL(EXACT, 0));
}

static void make_split_warp(problem *p, int number, uint64_t *random) {
  make_split_kernel(p, "split_warp", 1, 2 + number, 32, random);
}

static void make_ticket(problem *p, int number, uint64_t *random) {
  make_split_kernel(p, "ticket", 1, 8, 64, random);
  p->mode = number;
}

static void make_split_store(problem *p, int number, uint64_t *random) {
  make_split_kernel(p, "split_store", 1, 2 + number, 64, random);
  add_map(
      p,
      (device_tensor_map){.element_bytes = 4, .rank = 2, .extent = {64, p->n}, .stride_bytes = {256}, .box = {64, 1}},
      OUT);
  p->map_offset[0] = 256;
}

static void make_split(problem *p, int number, uint64_t *random) {
  make_split_kernel(p, "split", 16, 2 + number, 128, random);
  p->mode = number % 2;
}

/* Which cluster takes which tile differs; the sums over all of them do not. Clusters of 1, 2 and 4. */
static void make_cluster(problem *p, int number, uint64_t *random) {
  int size = 1 << number % 3, tiles = 5 + 7 * number;
  set_launch(p, "cluster", 3 * size, 128, 2 * 4096 + 72);
  p->cluster = size;
  p->n = tiles;
  p->x[0] = size;
  add_buffer(p, 4, ALL(EXACT, 0));
  add_buffer(p, 129 * 4, ALL(EXACT, 0));
  size_t bytes = (size_t)tiles * 4096;
  fill_bits(add_buffer(p, bytes, ALL(EXACT, 0)), bytes, random);
  add_map(p, sm90_map(NULL, 4, (int64_t[]){64, 32 * tiles, 1, 1}, (int[]){64, 32 / size, 1, 1}, 128), 2);
}

/* Clusters of 1 to 8. */
static void make_exchange(problem *p, int number, uint64_t *random) {
  const int size = 1 << number % 4, rounds = 1 + number;
  const size_t floats = 64 * 6 * 3 * (size_t)size;
  set_launch(p, "exchange", 3 * size, 64, 64 * 24);
  p->cluster = size;
  p->n = rounds;
  p->x[0] = size;
  fill_floats(add_buffer(p, 4 * floats * (size_t)rounds, ALL(EXACT, 0)), floats * (size_t)rounds, random);
  add_buffer(p, 4 * floats, ALL(EXACT, 0));
}

const problem_family families[] = {
    {"warp_values", SOURCE_SM80, 32, make_warp_values},
    {"matrix_load", SOURCE_SM80, 24, make_matrix_load},
    {"product", SOURCE_SM80, 40, make_product},
    {"zero_fill", SOURCE_SM80, 2, make_zero_fill},
    {"functions", SOURCE_SM80, 3 + 16, make_functions},
    {"bytes", SOURCE_SM80, 4, make_bytes},
    {"byte_orders", SOURCE_SM80, 4, make_byte_orders},
    {"tangents", SOURCE_SM80, 3, make_tangents},
    {"turns", SOURCE_SM80, 1, make_turns},
    {"relay", SOURCE_SM80, 1, make_relay},
    {"pipeline", SOURCE_SM80, 4, make_pipeline},
    {"box_in", SOURCE_SM90, 160, make_box_in},
    {"box_out", SOURCE_SM90, 160, make_box_out},
    {"clipped_in", SOURCE_SM90, 32, make_clipped_in},
    {"clipped_out", SOURCE_SM90, 32, make_clipped_out},
    {"matrix_store", SOURCE_SM90, 8, make_matrix_store},
    {"hand_over", SOURCE_SM90, 3, make_hand_over},
    {"bytes_out", SOURCE_SM90, 3 + 16, make_bytes_out},
    {"bytes_in", SOURCE_SM90, 1, make_bytes_in},
    {"agree", SOURCE_SM90, 3, make_agree},
    {"odds", SOURCE_SM90, 1, make_odds},
    {"wgmma", SOURCE_SM90, PRODUCT_SHAPES *PRODUCT_WIDTHS *PRODUCT_MODES, make_wgmma},
    {"two_groups", SOURCE_SM90, 1, make_two_groups},
    {"ring", SOURCE_RING, 2, make_ring},
    {"split", SOURCE_SPLIT, 16, make_split},
    {"split_warp", SOURCE_SPLIT, 8, make_split_warp},
    {"ticket", SOURCE_SPLIT, 2, make_ticket},
    {"split_store", SOURCE_SPLIT, 8, make_split_store},
    {"cluster", SOURCE_CLUSTER, 6, make_cluster},
    {"exchange", SOURCE_CLUSTER, 8, make_exchange},
};
const int family_count = sizeof families / sizeof *families;
