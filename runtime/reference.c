/* reference.c: attention in f64 on the CPU, one row at a time, two passes a row. Written to be read, not to be fast.
 *
 * Inputs: host tensors with any strides, scores and masks as callbacks. Outputs: o, lse, lse_with_sink.
 * Invariants: a key that the mask hides is never used, whatever its K and V hold; a score of -inf counts as hidden. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>

#include "error.h"

/* Keys and values of one (batch entry, KV head) as dense f64 rows, and the scores of one query row. */
typedef struct buffers {
  double *query;  /* [dim_qk] */
  double *keys;   /* [len_k, dim_qk] */
  double *values; /* [len_k, dim_v] */
  double *scores; /* [len_k] */
  double *output; /* [dim_v] */
} buffers;

/* The statistics of one row of scores. */
typedef struct row {
  double maximum; /* of the visible scores; -inf: none is visible */
  double sum;     /* of exp(score - maximum); 0: none is visible */
} row;

static char *element(const qkv_tensor *t, const int64_t *index) {
  int64_t offset = 0;
  for (int d = 0; d < t->rank; d++)
    offset += index[d] * t->stride[d];
  return (char *)t->data + offset * dtype_size(t->dtype);
}

/* Copies the head `head` of batch entry `b` of a [batch, length, heads, dim] tensor, rows [first, first + length). */
static void load_rows(double *to, const qkv_tensor *t, int64_t b, int64_t first, int64_t length, int64_t head) {
  for (int64_t n = 0; n < length; n++)
    for (int64_t d = 0; d < t->shape[3]; d++)
      *to++ = tensor_load(element(t, (int64_t[]){b, first + n, head, d}), t->dtype);
}

/* Where query row i of head h stands; k is filled in by the caller. */
static reference_position row_position(const reference_problem *p, int64_t b, int64_t h, int64_t i) {
  int64_t len_q = p->args->q.shape[1], len_k = p->args->k.shape[1];
  return (reference_position){.q = p->bottom_right ? i + len_k - len_q : i,
                              .i = i,
                              .h = h,
                              .hk = h / (p->heads_q / p->heads_kv),
                              .b = b,
                              .len_q = len_q,
                              .len_k = len_k};
}

static double score_of(const reference_problem *p, const reference_position *at, const double *query, const double *key,
                       int64_t dim) {
  if (p->mask && !p->mask(p->user, at))
    return -INFINITY;
  double dot = 0;
  for (int64_t d = 0; d < dim; d++)
    dot += query[d] * key[d];
  double s = p->scale * dot;
  if (p->softcap != 0)
    s = p->softcap * tanh(s / p->softcap);
  return p->score ? p->score(p->user, at, s) : s;
}

static row row_scores(const reference_problem *p, reference_position at, const buffers *m) {
  int64_t dim = p->args->q.shape[3];
  row r = {-INFINITY, 0};
  for (at.k = 0; at.k < at.len_k; at.k++) {
    double s = m->scores[at.k] = score_of(p, &at, m->query, m->keys + at.k * dim, dim);
    if (s > r.maximum)
      r.maximum = s;
  }
  for (int64_t k = 0; k < at.len_k; k++)
    if (m->scores[k] != -INFINITY) /* NaN passes and stays visible in the result */
      r.sum += exp(m->scores[k] - r.maximum);
  return r;
}

/* log(exp(a) + exp(b)); either may be -inf. */
static double log_add(double a, double b) {
  double top = a > b ? a : b, low = a > b ? b : a;
  return low == -INFINITY ? top : top + log1p(exp(low - top));
}

static void finish_row(const reference_problem *p, const reference_position *at, const row *r, const buffers *m) {
  const qkv_attention_args *args = p->args;
  int64_t dim = args->o.shape[3];
  double lse = r->sum == 0 ? -INFINITY : r->maximum + log(r->sum);
  double lse_with_sink = lse, denominator = r->sum; /* the denominator relative to the maximum, as the sum is: lse alone
                                                       would swallow log(sum) when the scores are huge */
  if (p->has_sink) {
    double sink = tensor_load(element(&args->sink, &at->h), args->sink.dtype);
    lse_with_sink = log_add(lse, sink);
    denominator += exp(sink - r->maximum);
  }

  for (int64_t d = 0; d < dim; d++)
    m->output[d] = 0;
  for (int64_t k = 0; k < at->len_k; k++) {
    if (m->scores[k] == -INFINITY)
      continue;
    double weight = exp(m->scores[k] - r->maximum) / denominator;
    for (int64_t d = 0; d < dim; d++)
      m->output[d] += weight * m->values[k * dim + d];
  }
  for (int64_t d = 0; d < dim; d++)
    tensor_store(element(&args->o, (int64_t[]){at->b, at->i, at->h, d}), args->o.dtype, m->output[d]);

  const int64_t lse_index[] = {at->b, at->h, at->i};
  if (args->lse.data)
    tensor_store(element(&args->lse, lse_index), args->lse.dtype, lse);
  if (args->lse_with_sink.data)
    tensor_store(element(&args->lse_with_sink, lse_index), args->lse_with_sink.dtype, lse_with_sink);
}

/* Room for n doubles, at least one; NULL when out of memory or n overflows. */
static double *doubles(int64_t rows, int64_t columns) {
  int64_t count, bytes;
  if (__builtin_mul_overflow(rows, columns, &count) || __builtin_mul_overflow(count, (int64_t)sizeof(double), &bytes))
    return NULL;
  return malloc(bytes > 0 ? (size_t)bytes : 1);
}

static void buffers_free(buffers *m) {
  free(m->query);
  free(m->keys);
  free(m->values);
  free(m->scores);
  free(m->output);
}

qkv_status reference_attention(const reference_problem *p) {
  const qkv_attention_args *args = p->args;
  int64_t batch = args->q.shape[0], len_q = args->q.shape[1], len_k = args->k.shape[1];
  int64_t dim_qk = args->q.shape[3], dim_v = args->v.shape[3], group = p->heads_q / p->heads_kv;
  buffers m = {doubles(1, dim_qk), doubles(len_k, dim_qk), doubles(len_k, dim_v), doubles(1, len_k), doubles(1, dim_v)};
  if (!m.query || !m.keys || !m.values || !m.scores || !m.output) {
    buffers_free(&m);
    return error_set(QKV_OUT_OF_MEMORY, "the reference needs more memory than there is for %lld keys",
                     (long long)len_k);
  }
  for (int64_t b = 0; b < batch; b++)
    for (int64_t hk = 0; hk < p->heads_kv; hk++) {
      load_rows(m.keys, &args->k, b, 0, len_k, hk);
      load_rows(m.values, &args->v, b, 0, len_k, hk);
      for (int64_t h = hk * group; h < (hk + 1) * group; h++)
        for (int64_t i = 0; i < len_q; i++) {
          load_rows(m.query, &args->q, b, i, 1, h);
          reference_position at = row_position(p, b, h, i);
          row r = row_scores(p, at, &m);
          finish_row(p, &at, &r, &m);
        }
    }
  buffers_free(&m);
  return QKV_OK;
}

double reference_visible(const reference_problem *p) {
  double visible = 0;
  for (int64_t b = 0; b < p->args->q.shape[0]; b++)
    for (int64_t h = 0; h < p->heads_q; h++)
      for (int64_t i = 0; i < p->args->q.shape[1]; i++) {
        reference_position at = row_position(p, b, h, i);
        for (at.k = 0; at.k < at.len_k; at.k++)
          visible += !p->mask || p->mask(p->user, &at);
      }
  return visible;
}
