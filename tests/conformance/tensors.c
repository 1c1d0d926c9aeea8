/* tensors.c: the memory of a case: number formats, layouts, guards.
 *
 * Each tensor lives in one buffer: guard, elements with whatever gaps its layout has, guard. Inputs have the guard's
 * value in every byte that is no element, outputs have NaN there and in every element, so that reading a gap, writing a
 * gap and not writing an element all show. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

/* Elements before and after; keeps 16-byte alignment for every dtype. */
enum { GUARD_ELEMENTS = 64, POISON_BYTE = 0xff };

// clang-format off
#define LAYOUTS(X)                                                                                                     \
  X("bthd", "bthd", 0, 0, 1, 1, 0, false, "", 0)       /* contiguous */                                               \
  X("bhtd", "bhtd", 0, 0, 1, 1, 0, false, "", 0)       /* heads outside */                                            \
  X("tbhd", "tbhd", 0, 0, 1, 1, 0, false, "", 0)       /* positions outside */                                        \
  X("padded", "bthd", 8, 0, 1, 1, 0, false, "", 0)     /* rows longer than dim, still aligned */                      \
  X("cache", "bhtd", 0, 37, 1, 1, 0, false, "", 0)     /* room for more positions */                                  \
  X("rows2", "bthd", 0, 0, 2, 1, 0, false, "", 0)      /* every second row of a larger buffer */                      \
  X("reversed", "bthd", 0, 0, 1, 1, 0, true, "", 0)    /* negative stride */                                          \
  X("heads0", "bthd", 0, 0, 1, 1, 0, false, "h", 0)    /* one head for all */                                         \
  X("shared0", "bthd", 0, 0, 1, 1, 0, false, "bh", 0)  /* one head of one batch entry for all */                      \
  X("far", "bthd", 0, 0, 1, 1, 0, false, "", (INT64_C(1) << 31) + 64) /* batch entries over 2^31 elements apart */    \
  X("base1", "bthd", 0, 0, 1, 1, 1, false, "", 0)      /* starts at an odd element */                                 \
  X("pitch1", "bthd", 1, 0, 1, 1, 0, false, "", 0)     /* odd row pitch */                                            \
  X("inner2", "bthd", 0, 0, 1, 2, 0, false, "", 0)     /* innermost stride 2 */                                       \
  X("bhdt", "bhdt", 0, 0, 1, 1, 0, false, "", 0)       /* transposed: positions innermost */                          \
  X("mixed", "htbd", 3, 5, 2, 3, 5, true, "", 0)       /* everything at once */                                       \
  X("all0", "bthd", 0, 0, 1, 1, 0, false, "bthd", 0)   /* one element for all */

// clang-format on
#define RULE(name, order, pitch_pad, rows_pad, row_step, inner_step, base, reversed, shared, batch)                   \
  {name, order, pitch_pad, rows_pad, row_step, inner_step, base, reversed, shared, batch},
#define NAME(name, ...) name,
const layout_rule layouts[] = {LAYOUTS(RULE)};
const char *const layout_names[] = {LAYOUTS(NAME) NULL};

bool layout_shares(int layout, char dimension) {
  return strchr(layouts[layout].shared, dimension) != NULL;
}

/* ---- Number formats ---- */

int dtype_bytes(qkv_dtype dtype) {
  switch (dtype) {
  case QKV_F16:
  case QKV_BF16:
    return 2;
  case QKV_F32:
  case QKV_I32:
    return 4;
  default:
    return 1;
  }
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint16_t bf16_bits(float x) {
  uint32_t bits = bits_of(x);
  if (isnan(x))
    return 0x7fff;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounds to nearest even by letting f32 addition do it: the sum with a power of two has f16's last place. */
static uint16_t f16_bits(float x) {
  uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
  float a = fabsf(x);
  if (isnan(x))
    return 0x7fff;
  if (a >= 65520)
    return sign | 0x7c00;
  if (a < 0x1p-14f)
    return sign | (uint16_t)(bits_of(a + 0.5f) - bits_of(0.5f));
  uint32_t bits = bits_of(a);
  bits += 0xfff + (bits >> 13 & 1);
  return sign | (uint16_t)((bits - 0x38000000u) >> 13);
}

static float f16_value(uint16_t h) {
  int exponent = h >> 10 & 31;
  float magnitude = exponent == 31  ? ((h & 1023) != 0 ? NAN : INFINITY)
                    : exponent == 0 ? (float)(h & 1023) * 0x1p-24f
                                    : ldexpf((float)(1024 + (h & 1023)), exponent - 25);
  return h & 0x8000 ? -magnitude : magnitude;
}

/* The number of a positive code of e4m3 or e5m2. */
static float byte_value(qkv_dtype dtype, int code) {
  const int mantissa = dtype == QKV_E4M3 ? 3 : 2, bias = dtype == QKV_E4M3 ? 7 : 15;
  const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
  return exponent ? ldexpf((float)((1 << mantissa) + fraction), exponent - bias - mantissa)
                  : ldexpf((float)fraction, 1 - bias - mantissa);
}

/* The nearest of the finite numbers, which their codes order; of two as near the one with an even code. */
static uint8_t byte_bits(qkv_dtype dtype, float x) {
  const int top = dtype == QKV_E4M3 ? 0x7e : 0x7b;
  int low = 0, high = top; /* the greatest code that is not above lies within */
  if (isnan(x))
    return 0x7f;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (byte_value(dtype, middle) <= fabsf(x))
      low = middle;
    else
      high = middle - 1;
  }
  const float half = low < top ? (byte_value(dtype, low) + byte_value(dtype, low + 1)) / 2 : INFINITY;
  low += low < top && (fabsf(x) > half || (fabsf(x) == half && (low & 1)));
  return (uint8_t)(low | (signbit(x) ? 0x80 : 0));
}

static bool is_byte_float(qkv_dtype dtype) {
  return dtype == QKV_E4M3 || dtype == QKV_E5M2;
}

static void store_element(unsigned char *to, qkv_dtype dtype, float x) {
  uint16_t half = dtype == QKV_BF16 ? bf16_bits(x) : f16_bits(x);
  int32_t integer = dtype == QKV_I32 ? (int32_t)x : 0;
  switch (dtype) {
  case QKV_F16:
  case QKV_BF16:
    memcpy(to, &half, 2);
    break;
  case QKV_F32:
    memcpy(to, &x, 4);
    break;
  case QKV_I32:
    memcpy(to, &integer, 4);
    break;
  case QKV_E4M3:
  case QKV_E5M2:
    *to = byte_bits(dtype, x);
    break;
  default:
    *to = x != 0;
    break;
  }
}

static float load_element(const unsigned char *from, qkv_dtype dtype) {
  uint16_t half;
  float x;
  memcpy(&half, from, 2);
  if (dtype == QKV_BF16)
    return float_of((uint32_t)half << 16);
  if (dtype == QKV_F16)
    return f16_value(half);
  memcpy(&x, from, 4);
  return x;
}

float round_to(qkv_dtype dtype, float x) {
  if (dtype == QKV_BF16)
    return float_of((uint32_t)bf16_bits(x) << 16);
  if (dtype == QKV_F16)
    return f16_value(f16_bits(x));
  if (is_byte_float(dtype))
    return copysignf(byte_value(dtype, byte_bits(dtype, x) & 0x7f), x);
  return x;
}

/* ---- Buffers ---- */

/* Fills memory with the guard's value. Integers and booleans get all ones, which no index or flag can be. */
static void fill_guard(unsigned char *to, size_t bytes, qkv_dtype dtype, int kind) {
  bool is_float = dtype == QKV_F16 || dtype == QKV_BF16 || dtype == QKV_F32;
  if (kind == GUARD_ZERO || !is_float || kind == GUARD_NAN || kind == GUARD_NONE) {
    memset(to, kind == GUARD_ZERO ? 0 : POISON_BYTE, bytes);
    return;
  }
  size_t size = (size_t)dtype_bytes(dtype);
  for (size_t n = 0; n + size <= bytes; n += size)
    store_element(to + n, dtype, kind == GUARD_INF ? INFINITY : dtype == QKV_F16 ? 6e4f : 1e30f);
}

/* Allocates and fills once view.shape and view.stride are set. Moves element 0 so that the lowest element comes first.
 */
static void finish(guarded *m, int guard, int base, int64_t least_elements) {
  qkv_tensor *t = &m->view;
  int64_t low = 0, high = 0;
  bool empty = false;
  for (int n = 0; n < t->rank; n++) {
    int64_t reach = (t->shape[n] - 1) * t->stride[n];
    empty |= t->shape[n] == 0;
    *(reach < 0 ? &low : &high) += reach;
  }
  if (empty)
    low = 0, high = -1;
  int64_t elements = high - low + 1;
  if (elements < least_elements)
    elements = least_elements;
  int64_t margin = guard == GUARD_NONE ? 0 : GUARD_ELEMENTS;
  m->first = margin + base - low;
  m->bytes = (size_t)((elements + base + 2 * margin) * dtype_bytes(t->dtype));
  m->before = must_alloc(m->bytes);
  if (m->output)
    memset(m->before, POISON_BYTE, m->bytes);
  else
    fill_guard(m->before, m->bytes, t->dtype, guard);
}

void guarded_make(guarded *m, const char *name, qkv_dtype dtype, int layout, int guard, bool output, int64_t b,
                  int64_t t, int64_t h, int64_t d) {
  const layout_rule *rule = &layouts[layout];
  *m = (guarded){.name = name, .output = output};
  m->view = (qkv_tensor){.dtype = dtype, .rank = 4, .shape = {b, t, h, d}};
  int64_t running = 1;
  for (int n = 3; n >= 0; n--) {
    char dimension = rule->order[n];
    int index = (int)(strchr("bthd", dimension) - "bthd");
    if (dimension == 'd')
      running *= rule->inner_step;
    if (dimension == 't')
      running *= rule->row_step;
    if (dimension == 'b' && running < rule->batch_least)
      running = rule->batch_least;
    m->view.stride[index] = strchr(rule->shared, dimension) != NULL ? 0 : running;
    running *= m->view.shape[index] + (dimension == 't' ? rule->rows_pad : 0);
    if (dimension == 'd')
      running += rule->pitch_pad;
  }
  if (rule->reversed)
    m->view.stride[1] = -m->view.stride[1];
  /* A guard of NONE still leaves the cache layout its unused positions: they are the case's point. */
  finish(m, guard, rule->base, rule->rows_pad > 0 && b * h * d > 0 ? b * h * (t + rule->rows_pad) * d : 0);
}

void guarded_make_plain(guarded *m, const char *name, qkv_dtype dtype, int guard, bool output, int rank,
                        const int64_t *shape, int spread) {
  *m = (guarded){.name = name, .output = output};
  m->view = qkv_tensor_dense(NULL, dtype, rank, shape);
  for (int n = 0; n < rank; n++)
    m->view.stride[n] *= spread;
  finish(m, guard, 0, 0);
}

/* Calls for every element, in canonical order. */
typedef void (*visitor)(unsigned char *element, qkv_dtype dtype, float *canonical, int64_t *count);

static void visit(const guarded *m, unsigned char *memory, float *canonical, visitor call, int64_t *count) {
  const qkv_tensor *t = &m->view;
  int64_t shape[4] = {1, 1, 1, 1}, stride[4] = {0}, size = dtype_bytes(t->dtype);
  for (int n = 0; n < t->rank; n++) {
    shape[4 - t->rank + n] = t->shape[n];
    stride[4 - t->rank + n] = t->stride[n];
  }
  for (int64_t a = 0; a < shape[0]; a++)
    for (int64_t b = 0; b < shape[1]; b++)
      for (int64_t c = 0; c < shape[2]; c++)
        for (int64_t d = 0; d < shape[3]; d++) {
          int64_t at = m->first + a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
          call(memory + at * size, t->dtype, canonical, count);
          if (canonical != NULL)
            canonical++;
        }
}

static void visit_store(unsigned char *element, qkv_dtype dtype, float *canonical, int64_t *count) {
  (void)count;
  store_element(element, dtype, *canonical);
}

static void visit_load(unsigned char *element, qkv_dtype dtype, float *canonical, int64_t *count) {
  bool poison = true;
  for (int n = 0; n < dtype_bytes(dtype); n++)
    poison &= element[n] == POISON_BYTE;
  *count += poison;
  *canonical = load_element(element, dtype);
}

static void visit_poison(unsigned char *element, qkv_dtype dtype, float *canonical, int64_t *count) {
  (void)canonical, (void)count;
  memset(element, POISON_BYTE, (size_t)dtype_bytes(dtype));
}

void guarded_store(guarded *m, const float *canonical) {
  visit(m, m->before, (float *)(uintptr_t)canonical, visit_store, NULL);
}

int64_t guarded_load(const guarded *m, float *canonical) {
  int64_t poisoned = 0;
  visit(m, m->after, canonical, visit_load, &poisoned);
  return poisoned;
}

qkv_tensor guarded_view(const guarded *m, void *memory) {
  qkv_tensor t = m->view;
  t.data = (unsigned char *)memory + m->first * dtype_bytes(t.dtype);
  return t;
}

bool guarded_aligned(const guarded *m) {
  int64_t size = dtype_bytes(m->view.dtype);
  bool aligned = m->first * size % 16 == 0 && m->view.stride[m->view.rank - 1] == 1;
  for (int n = 0; n + 1 < m->view.rank; n++)
    aligned &= m->view.stride[n] >= 0 && m->view.stride[n] * size % 16 == 0;
  return aligned;
}

bool guarded_intact(const guarded *m, char *message) {
  if (m->output)
    visit(m, m->after, NULL, visit_poison, NULL);
  if (memcmp(m->before, m->after, m->bytes) == 0)
    return true;
  size_t n = 0;
  while (m->before[n] == m->after[n])
    n++;
  snprintf(message, MESSAGE_SIZE, "%s: byte %zu of %zu was overwritten (element 0 is at byte %" PRId64 ")", m->name, n,
           m->bytes, m->first * dtype_bytes(m->view.dtype));
  return false;
}

void guarded_free(guarded *m) {
  free(m->before);
  free(m->after);
  *m = (guarded){0};
}
