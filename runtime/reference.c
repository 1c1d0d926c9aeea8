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

/* The element `offset` elements behind the first. */
static char *element(const qkv_tensor *t, int64_t offset) {
  return (char *)t->data + offset * dtype_size(t->dtype);
}

/* One stored number. The codes of e4m3 that mean NaN stand for what they would be among its numbers, +-480, as in
 * kernels that do not convert by hardware. */
static double load(const qkv_tensor *t, int64_t offset) {
  const double value = tensor_load(element(t, offset), t->dtype);
  return t->dtype == QKV_E4M3 && isnan(value) ? copysign(480, value) : value;
}

/* Copies a row of head elements from element `offset` on. */
static void load_row(double *to, const qkv_tensor *t, int64_t offset) {
  const int dim = t->rank - 1;
  for (int64_t d = 0; d < t->shape[dim]; d++)
    to[d] = load(t, offset + d * t->stride[dim]);
}

/* Copies KV head `head` of a sequence, of k or v, which `scale` is of. */
static void load_keys(double *to, const reference_problem *p, const sequence *q, const qkv_tensor *t,
                      const qkv_tensor *scale, int64_t head) {
  const int64_t dim = t->shape[t->rank - 1];
  const double factor = p->has_kv_scale ? load(scale, head * scale->stride[0]) : 1;
  for (int64_t k = 0; k < q->len_k; k++, to += dim) {
    load_row(to, t, sequence_key(&p->layout, q, p->args, t, k, head));
    for (int64_t d = 0; d < dim; d++)
      to[d] *= factor;
  }
}

/* Where query row i of head h stands; k is filled in by the caller. */
static reference_position row_position(const reference_problem *p, const sequence *q, int64_t h, int64_t i) {
  return (reference_position){.q = p->bottom_right ? i + q->len_k - q->len_q : i,
                              .i = i,
                              .h = h,
                              .hk = h / (p->heads_q / p->heads_kv),
                              .b = q->b,
                              .len_q = q->len_q,
                              .len_k = q->len_k};
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
  int64_t dim = p->args->q.shape[p->args->q.rank - 1];
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

static void finish_row(const reference_problem *p, const sequence *q, const reference_position *at, const row *r,
                       const buffers *m) {
  const qkv_attention_args *args = p->args;
  const int axis = args->o.rank - 1;
  const int64_t dim = args->o.shape[axis], to = sequence_query(&p->layout, q, &args->o, at->i, at->h);
  double lse = r->sum == 0 ? -INFINITY : r->maximum + log(r->sum);
  double lse_with_sink = lse, denominator = r->sum; /* the denominator relative to the maximum, as the sum is: lse alone
                                                       would swallow log(sum) when the scores are huge */
  if (p->has_sink) {
    double sink = tensor_load(element(&args->sink, at->h * args->sink.stride[0]), args->sink.dtype);
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
    tensor_store(element(&args->o, to + d * args->o.stride[axis]), args->o.dtype, m->output[d]);

  const struct {
    const qkv_tensor *tensor;
    double value;
  } sums[] = {{&args->lse, lse}, {&args->lse_with_sink, lse_with_sink}};
  for (int n = 0; n < 2; n++) {
    const qkv_tensor *t = sums[n].tensor;
    if (t->data)
      tensor_store(element(t, sequence_lse(&p->layout, q, t, at->i, at->h)), t->dtype, sums[n].value);
  }
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

/* All heads of one sequence. */
static void run_sequence(const reference_problem *p, const sequence *q, const buffers *m) {
  const qkv_attention_args *args = p->args;
  const int64_t group = p->heads_q / p->heads_kv;
  if (q->len_q == 0)
    return;
  for (int64_t hk = 0; hk < p->heads_kv; hk++) {
    load_keys(m->keys, p, q, &args->k, &args->k_scale, hk);
    load_keys(m->values, p, q, &args->v, &args->v_scale, hk);
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
      for (int64_t i = 0; i < q->len_q; i++) {
        load_row(m->query, &args->q, sequence_query(&p->layout, q, &args->q, i, h));
        reference_position at = row_position(p, q, h, i);
        row r = row_scores(p, at, m);
        finish_row(p, q, &at, &r, m);
      }
  }
}

qkv_status reference_attention(const reference_problem *p) {
  const qkv_attention_args *args = p->args;
  const int64_t batch = sequence_count(&p->layout, args), dim_qk = args->q.shape[args->q.rank - 1],
                dim_v = args->v.shape[args->v.rank - 1];
  int64_t longest = 0;
  for (int64_t b = 0; b < batch; b++) {
    const int64_t len_k = sequence_find(&p->layout, args, b).len_k;
    longest = len_k > longest ? len_k : longest;
  }
  buffers m = {doubles(1, dim_qk), doubles(longest, dim_qk), doubles(longest, dim_v), doubles(1, longest),
               doubles(1, dim_v)};
  if (!m.query || !m.keys || !m.values || !m.scores || !m.output) {
    buffers_free(&m);
    return error_set(QKV_OUT_OF_MEMORY, "the reference needs more memory than there is for %lld keys",
                     (long long)longest);
  }
  for (int64_t b = 0; b < batch; b++) {
    const sequence q = sequence_find(&p->layout, args, b);
    run_sequence(p, &q, &m);
  }
  buffers_free(&m);
  return QKV_OK;
}

double reference_visible(const reference_problem *p) {
  double visible = 0;
  for (int64_t b = 0; b < sequence_count(&p->layout, p->args); b++) {
    const sequence q = sequence_find(&p->layout, p->args, b);
    for (int64_t h = 0; h < p->heads_q; h++)
      for (int64_t i = 0; i < q.len_q; i++) {
        reference_position at = row_position(p, &q, h, i);
        for (at.k = 0; at.k < at.len_k; at.k++)
          visible += !p->mask || p->mask(p->user, &at);
      }
  }
  return visible;
}
