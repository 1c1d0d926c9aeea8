/* inputs.c: the values of a case's inputs.
 *
 * Every value is a hash of the case's seed and its own position, so that a part of a case (one batch entry, one head)
 * can be made again, and is rounded to its dtype, so that device and reference start from the same numbers. Dimensions
 * that a layout shares (stride 0) have one value for all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

void *must_alloc(size_t bytes) {
  void *memory = calloc(bytes > 0 ? bytes : 1, 1);
  if (memory == NULL) {
    fprintf(stderr, "conformance: out of memory (%zu bytes)\n", bytes);
    exit(2);
  }
  return memory;
}

uint64_t hash_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

double hash_uniform(uint64_t key) {
  return (double)(hash_mix(key) >> 11) * 0x1p-53;
}

/* The sum of four uniform numbers: unit variance, no tail beyond 3.5. */
double hash_normal(uint64_t key) {
  uint64_t h = hash_mix(key);
  double sum = (double)((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
  return (sum * 0x1p-16 - 2 + 0x1p-15) * 1.7320508075688772;
}

int64_t inputs_q_at(const inputs *in, int64_t b, int64_t t, int64_t h) {
  return ((b * in->lq + t) * in->hq + h) * in->dim;
}
int64_t inputs_k_at(const inputs *in, int64_t b, int64_t t, int64_t h) {
  return ((b * in->lk + t) * in->hk + h) * in->dim;
}
int64_t inputs_v_at(const inputs *in, int64_t b, int64_t t, int64_t h) {
  return ((b * in->lk + t) * in->hk + h) * in->dimv;
}

typedef enum which { TENSOR_Q, TENSOR_K, TENSOR_V } which;

static double scale_of(const test_case *c) {
  return 1 / sqrt((double)c->dim);
}

/* The value of one element before rounding. `half` says that the dtype is f16, whose range is small. */
static double element(const test_case *c, which tensor, uint64_t row, int64_t t, int64_t h, int64_t d, bool half) {
  double normal = hash_normal(row ^ (uint64_t)d << 20);
  double scale = scale_of(c);
  switch ((value_kind)c->values) {
  case VALUES_NORMAL:
    return normal;
  case VALUES_STRONG:
    return tensor == TENSOR_V ? normal : 2.5 * normal;
  case VALUES_SPIKES:
    if (tensor == TENSOR_Q)
      return 8 * normal;
    return tensor == TENSOR_K && hash_mix(row) % 11 == 0 ? 1500 * normal : normal;
  case VALUES_ONES:
    return tensor == TENSOR_V ? 1 : normal;
  case VALUES_ONE_HOT:
    if (tensor == TENSOR_Q)
      return 0;
    return tensor == TENSOR_V ? t % case_dim_v(c) == d : normal;
  case VALUES_HEAD:
    return tensor == TENSOR_V ? (double)h : normal;
  case VALUES_HUGE:
    return half ? 60000 : 133120;
  case VALUES_MINUS_6E4:
    if (tensor == TENSOR_Q)
      return 64;
    if (tensor == TENSOR_V)
      return normal;
    return -6.5e4 / (64 * scale * (double)c->dim) + (d == 0 ? (double)(t % 5) / 64 : 0);
  case VALUES_MINUS_HUGE:
    if (tensor == TENSOR_V)
      return normal;
    return tensor == TENSOR_Q ? (half ? 6e4 : 1e15) : (half ? -6e4 : -1e15);
  case VALUES_RISING:
    /* log2(e) / 5 * 0.99 a key: an 8-bit threshold for rescaling is met just after every 28th key or so. */
    if (tensor == TENSOR_V)
      return normal;
    if (tensor == TENSOR_Q)
      return d == 0 ? 0.198 / scale : 0.125 * normal;
    return d == 0 ? (double)t : 0.125 * normal;
  }
  return 0;
}

static float *make_tensor(const test_case *c, which tensor, int layout, int64_t length, int64_t heads, int64_t dim,
                          qkv_dtype dtype) {
  float *data = must_alloc((size_t)(c->b * length * heads * dim) * sizeof(float));
  bool one_b = layout_shares(layout, 'b'), one_t = layout_shares(layout, 't'), one_h = layout_shares(layout, 'h');
  bool one_d = layout_shares(layout, 'd');
  float *at = data;
  for (int64_t b = 0; b < c->b; b++)
    for (int64_t t = 0; t < length; t++)
      for (int64_t h = 0; h < heads; h++) {
        uint64_t row = hash_mix((uint64_t)c->seed * 4 + (uint64_t)tensor);
        row = hash_mix(row ^ (uint64_t)(one_b ? 0 : b));
        row = hash_mix(row ^ (uint64_t)(one_t ? 0 : t));
        row = hash_mix(row ^ (uint64_t)(one_h ? 0 : h));
        for (int64_t d = 0; d < dim; d++)
          *at++ = round_to(
              dtype, (float)element(c, tensor, row, one_t ? 0 : t, one_h ? 0 : h, one_d ? 0 : d, dtype == QKV_F16));
      }
  return data;
}

static float *make_sink(const test_case *c) {
  if (c->sink == SINK_ABSENT)
    return NULL;
  float *sink = must_alloc((size_t)c->hq * sizeof(float));
  for (int64_t h = 0; h < c->hq; h++) {
    float normal = (float)hash_normal(hash_mix((uint64_t)c->seed * 4 + 3) ^ (uint64_t)h);
    float mixed[] = {-INFINITY, 4, -4, normal};
    float by_kind[] = {0, normal, -INFINITY, 4, -4, mixed[h % 4]};
    sink[h] = by_kind[c->sink];
  }
  return sink;
}

/* Positive factors around 1. */
static float *make_scales(const test_case *c, uint64_t salt) {
  if (c->kv_scale == SCALES_ABSENT)
    return NULL;
  float *scales = must_alloc((size_t)c->hk * sizeof(float));
  for (int64_t h = 0; h < c->hk; h++) {
    int64_t one = c->kv_scale == SCALES_PER_TENSOR ? 0 : h;
    scales[h] = (float)exp2(hash_normal(hash_mix((uint64_t)c->seed * 4 + salt) ^ (uint64_t)one));
  }
  return scales;
}

static void make_param(const test_case *c, const param_rule *rule, input_param *out) {
  *out = (input_param){.rule = rule, .shape = {1, 1, 1, 1}, .count = 1};
  rule->extents(c, out->shape);
  for (int n = 0; n < 4; n++)
    out->count *= out->shape[n];
  out->data = must_alloc((size_t)out->count * sizeof(float));
  for (int64_t n = 0; n < out->count; n++) {
    int64_t index[4], rest = n;
    for (int d = 3; d >= 0; d--) {
      index[d] = rest % out->shape[d];
      rest /= out->shape[d];
    }
    out->data[n] = round_to(rule->dtype, (float)rule->value(c, index));
  }
}

void inputs_make(const test_case *c, inputs *out) {
  *out = (inputs){.b = c->b, .lq = c->lq, .lk = c->lk, .hq = c->hq, .hk = c->hk, .dim = c->dim, .dimv = case_dim_v(c)};
  sequences_lengths(c, out);
  qkv_dtype kv = case_dtype_kv(c);
  out->q = make_tensor(c, TENSOR_Q, c->layout_q, c->lq, c->hq, c->dim, (qkv_dtype)c->dtype);
  out->k = make_tensor(c, TENSOR_K, c->layout_k, c->lk, c->hk, c->dim, kv);
  out->v = make_tensor(c, TENSOR_V, c->layout_v, c->lk, c->hk, out->dimv, kv);
  out->sink = make_sink(c);
  out->k_scale = make_scales(c, 5);
  out->v_scale = make_scales(c, 6);
  const param_rule *rules[MAX_PARAMS];
  out->nparams = spec_params(c, rules);
  for (int n = 0; n < out->nparams; n++)
    make_param(c, rules[n], &out->params[n]);
}

void inputs_free(inputs *in) {
  free(in->q);
  free(in->k);
  free(in->v);
  free(in->sink);
  free(in->k_scale);
  free(in->v_scale);
  for (int n = 0; n < in->nparams; n++)
    free(in->params[n].data);
  *in = (inputs){0};
}

static float *copy_floats(const float *from, int64_t count) {
  float *to = must_alloc((size_t)count * sizeof(float));
  if (count > 0)
    memcpy(to, from, (size_t)count * sizeof(float));
  return to;
}

void inputs_copy(const inputs *in, inputs *out) {
  *out = *in;
  out->q = copy_floats(in->q, in->b * in->lq * in->hq * in->dim);
  out->k = copy_floats(in->k, in->b * in->lk * in->hk * in->dim);
  out->v = copy_floats(in->v, in->b * in->lk * in->hk * in->dimv);
  if (in->sink != NULL)
    out->sink = copy_floats(in->sink, in->hq);
  if (in->k_scale != NULL) {
    out->k_scale = copy_floats(in->k_scale, in->hk);
    out->v_scale = copy_floats(in->v_scale, in->hk);
  }
  for (int n = 0; n < in->nparams; n++)
    out->params[n].data = copy_floats(in->params[n].data, in->params[n].count);
}
