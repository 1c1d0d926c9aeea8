/* cli_tensor.c: number formats, random values, .npy conversion and comparison of host tensors. */
#include "cli_tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Number formats ---- */

/* exponent and mantissa: bits of a small float format, 0 for the others; infinite: it has infinities (e4m3 has none:
 * its largest pattern is NaN, the one below is 448). */
static const struct {
  const char *word;
  int bytes, exponent, mantissa;
  bool infinite;
} formats[] = {
    [QKV_F16] = {"f16", 2, 5, 10, true},   [QKV_BF16] = {"bf16", 2, 8, 7, true}, [QKV_F32] = {"f32", 4, 0, 0, true},
    [QKV_E4M3] = {"e4m3", 1, 4, 3, false}, [QKV_E5M2] = {"e5m2", 1, 5, 2, true}, [QKV_I32] = {"i32", 4, 0, 0, false},
    [QKV_BOOL] = {"bool", 1, 0, 0, false}};

int dtype_bytes(qkv_dtype dtype) {
  return formats[dtype].bytes;
}
const char *dtype_word(qkv_dtype dtype) {
  return formats[dtype].word;
}

static double decode(unsigned bits, qkv_dtype dtype) {
  int m = formats[dtype].mantissa, e = formats[dtype].exponent, bias = (1 << (e - 1)) - 1;
  double sign = bits >> (e + m) & 1 ? -1.0 : 1.0;
  unsigned fraction = bits & ((1u << m) - 1), field = bits >> m & ((1u << e) - 1);
  if (field == (1u << e) - 1 && (formats[dtype].infinite || fraction == (1u << m) - 1))
    return fraction ? (double)NAN : sign * (double)INFINITY;
  if (field == 0)
    return sign * ldexp(fraction, 1 - bias - m);
  return sign * ldexp(fraction + (1u << m), (int)field - bias - m);
}

static unsigned encode(double value, qkv_dtype dtype) {
  int m = formats[dtype].mantissa, e = formats[dtype].exponent, bias = (1 << (e - 1)) - 1;
  uint64_t bits;
  memcpy(&bits, &value, 8);
  unsigned sign = (unsigned)(bits >> 63) << (e + m), top = ((1u << e) - 1) << m; /* top: infinity where there is one */
  unsigned largest = formats[dtype].infinite ? top : top + (1u << m) - 2;
  int exponent = (int)(bits >> 52 & 0x7FF) - 1023;
  uint64_t significand = (bits & 0xFFFFFFFFFFFFFu) | (exponent == -1023 ? 0 : (uint64_t)1 << 52);
  if (exponent == 1024)
    return sign | (bits << 12 ? top + (1u << m) - 1 : largest);
  /* Units of the last place: the mantissa keeps m bits, fewer below the smallest normal exponent. */
  int least = 1 - bias, field = exponent < least ? 0 : exponent - least;
  int drop = 52 - m + (exponent < least ? least - exponent : 0);
  if (drop > 63)
    return sign;
  uint64_t kept = significand >> drop, rest = significand & (((uint64_t)1 << drop) - 1),
           half = (uint64_t)1 << (drop - 1);
  kept += rest > half || (rest == half && (kept & 1));
  uint64_t magnitude = ((uint64_t)field << m) + kept; /* a carry out of the mantissa lands in the exponent */
  return sign | (magnitude > largest ? largest : (unsigned)magnitude);
}

double element_get(const void *data, qkv_dtype dtype, int64_t n) {
  switch (dtype) {
  case QKV_F32:
    return (double)((const float *)data)[n];
  case QKV_I32:
    return ((const int32_t *)data)[n];
  case QKV_BOOL:
    return ((const uint8_t *)data)[n] != 0;
  default:
    return decode(formats[dtype].bytes == 2 ? ((const uint16_t *)data)[n] : ((const uint8_t *)data)[n], dtype);
  }
}

void element_set(void *data, qkv_dtype dtype, int64_t n, double value) {
  switch (dtype) {
  case QKV_F32:
    ((float *)data)[n] = (float)value;
    break;
  case QKV_I32:
    ((int32_t *)data)[n] = (int32_t)value;
    break;
  case QKV_BOOL:
    ((uint8_t *)data)[n] = value != 0;
    break;
  default:
    if (formats[dtype].bytes == 2)
      ((uint16_t *)data)[n] = (uint16_t)encode(value, dtype);
    else
      ((uint8_t *)data)[n] = (uint8_t)encode(value, dtype);
  }
}

/* ---- Tensors ---- */

int64_t tensor_count(const qkv_tensor *t) {
  int64_t count = 1;
  for (int d = 0; d < t->rank; d++)
    count *= t->shape[d];
  return count;
}

qkv_tensor tensor_allocate(qkv_dtype dtype, int rank, const int64_t *shape) {
  qkv_tensor t = qkv_tensor_dense(NULL, dtype, rank, shape);
  size_t count = (size_t)tensor_count(&t);
  t.data = calloc(count ? count : 1, (size_t)dtype_bytes(dtype));
  return t;
}

static uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

double random_normal(uint64_t seed, uint64_t n) {
  uint64_t stream = splitmix64(seed), sum = 0;
  for (uint64_t part = 0; part < 2; part++)
    for (uint64_t word = splitmix64(stream + 2 * n + part), left = 4; left; left--, word >>= 16)
      sum += word & 0xFFFF;
  /* Mean 8 * 65535 / 2; the variance of one uniform is (65536^2 - 1) / 12. */
  return ((double)sum - 262140.0) * (1.2247448713915890 / 65536.0);
}

void tensor_fill_random(qkv_tensor *t, uint64_t seed) {
  int64_t count = tensor_count(t), row = t->rank ? t->shape[t->rank - 1] : 1;
  for (int64_t n = 0; n < count; n++) {
    double value = t->dtype == QKV_I32    ? (double)(4 * (n % row) / row)
                   : t->dtype == QKV_BOOL ? random_normal(seed, (uint64_t)n) > 0
                                          : random_normal(seed, (uint64_t)n);
    element_set(t->data, t->dtype, n, value);
  }
}

/* ---- .npy files ---- */

static double npy_get(const npy_array *a, bool bits16, int64_t n) {
  switch (a->type) {
  case NPY_F16:
    return element_get(a->data, QKV_F16, n);
  case NPY_F32:
    return (double)((const float *)a->data)[n];
  case NPY_F64:
    return ((const double *)a->data)[n];
  case NPY_I32:
    return ((const int32_t *)a->data)[n];
  case NPY_I64:
    return (double)((const int64_t *)a->data)[n];
  case NPY_U16:
    return bits16 ? element_get(a->data, QKV_BF16, n) : ((const uint16_t *)a->data)[n];
  default:
    return ((const uint8_t *)a->data)[n];
  }
}

/* "[2, 3]" */
static void shape_text(char out[160], int rank, const int64_t *shape) {
  size_t length = (size_t)snprintf(out, 160, "[");
  for (int d = 0; d < rank; d++)
    length += (size_t)snprintf(out + length, 160 - length, "%s%lld", d ? ", " : "", (long long)shape[d]);
  snprintf(out + length, 160 - length, "]");
}

bool tensor_from_npy(const npy_array *array, bool bits16, qkv_tensor *t, char error[NPY_ERROR_SIZE]) {
  int skip = t->rank == array->rank + 1 && t->shape[0] == 1;
  bool fits = array->rank + skip == t->rank;
  for (int d = skip; fits && d < t->rank; d++)
    fits = array->shape[d - skip] == t->shape[d];
  if (!fits) {
    char have[160], want[160];
    shape_text(have, array->rank, array->shape);
    shape_text(want, t->rank, t->shape);
    snprintf(error, NPY_ERROR_SIZE, "shape %.100s, where %.100s is needed", have, want);
    return false;
  }
  bool integers = array->type != NPY_F16 && array->type != NPY_F32 && array->type != NPY_F64;
  bool floats = t->dtype != QKV_I32 && t->dtype != QKV_BOOL;
  if (array->type == NPY_U16 && floats && !bits16) {
    snprintf(error, NPY_ERROR_SIZE, "element type u2, where floats are needed; if it holds bf16 bits, say --bf16-bits");
    return false;
  }
  if (integers == floats && !(array->type == NPY_U16 && bits16 && floats)) {
    snprintf(error, NPY_ERROR_SIZE, "element type %s, where %s is needed", npy_type_name(array->type),
             dtype_word(t->dtype));
    return false;
  }
  for (int64_t n = 0; n < array->count; n++) {
    double value = npy_get(array, bits16, n);
    if (t->dtype == QKV_I32 && (value < INT32_MIN || value > INT32_MAX)) {
      snprintf(error, NPY_ERROR_SIZE, "element %lld is out of the range of i32", (long long)n);
      return false;
    }
    element_set(t->data, t->dtype, n, value);
  }
  return true;
}

bool tensor_to_npy(const qkv_tensor *t, bool bits16, const char *path, char error[NPY_ERROR_SIZE]) {
  npy_array array = {.rank = t->rank, .count = tensor_count(t)};
  memcpy(array.shape, t->shape, (size_t)t->rank * sizeof *t->shape);
  bool as_is = t->dtype == QKV_F16 || t->dtype == QKV_F32 || t->dtype == QKV_I32 || (t->dtype == QKV_BF16 && bits16);
  array.type = t->dtype == QKV_F16             ? NPY_F16
               : t->dtype == QKV_I32           ? NPY_I32
               : as_is && t->dtype == QKV_BF16 ? NPY_U16
                                               : NPY_F32;
  if (as_is) {
    array.data = t->data;
    return npy_write(path, &array, error);
  }
  float *values = malloc((size_t)array.count * sizeof *values + 1);
  if (!values) {
    snprintf(error, NPY_ERROR_SIZE, "out of memory");
    return false;
  }
  for (int64_t n = 0; n < array.count; n++)
    values[n] = (float)element_get(t->data, t->dtype, n);
  array.data = values;
  bool ok = npy_write(path, &array, error);
  free(values);
  return ok;
}

/* ---- Comparison ---- */

tensor_error tensor_compare(const qkv_tensor *got, const qkv_tensor *want) {
  tensor_error result = {.bad_at = -1};
  double difference2 = 0, norm2 = 0;
  int64_t count = tensor_count(want);
  for (int64_t n = 0; n < count; n++) {
    double g = element_get(got->data, got->dtype, n), w = element_get(want->data, want->dtype, n);
    if (isfinite(g) && isfinite(w)) {
      double difference = fabs(g - w), scaled = difference / fmax(1.0, fabs(w));
      if (difference > result.max_absolute) {
        result.max_absolute = difference;
        result.max_at = n;
      }
      result.max_scaled = fmax(result.max_scaled, scaled);
      difference2 += difference * difference;
      norm2 += w * w;
    } else if (!(g == w)) { /* equal infinities are right; NaN never is */
      if (!result.bad++)
        result.bad_at = n;
    }
  }
  result.relative_l2 = norm2 > 0 ? sqrt(difference2 / norm2) : difference2 > 0 ? (double)INFINITY : 0.0;
  return result;
}
