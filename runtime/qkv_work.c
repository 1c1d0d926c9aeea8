/* qkv_work.c: how much work a call is: visible pairs, floating-point operations, bytes.
 *
 * Counts rows by their derived intervals where the mask is exactly one, perhaps among the tokens of one residue, and
 * elements only in what is left; heads and batch entries that the mask cannot tell apart are counted once. */
#include <math.h>

#include "mask_residue.h"
#include "qkv_internal.h"

typedef struct counter {
  problem_eval eval;
  mask_rows rows;   /* of what rows see of their residue, or of everything */
  int64_t dilation; /* 1: none */
} counter;

/* [*low, *high) holds every key that the row sees. */
static void row_interval(const counter *c, const reference_position *at, int64_t *low, int64_t *high) {
  *low = 0;
  *high = at->len_k;
  if (c->rows.form != MASK_ROWS)
    return;
  for (int n = 0; n < c->rows.nlow; n++) {
    int64_t bound = (int64_t)problem_value(&c->eval, c->rows.low[n].value, at, 0);
    *low = bound > *low ? bound : *low;
  }
  for (int n = 0; n < c->rows.nhigh; n++) {
    int64_t bound = (int64_t)problem_value(&c->eval, c->rows.high[n].value, at, 0);
    *high = bound < *high ? bound : *high;
  }
}

/* How often the mask is evaluated to count these. */
static double evaluations(const counter *c, int64_t heads, int64_t len_q, int64_t len_k) {
  int exact = c->rows.form == MASK_ROWS && c->rows.exact;
  return (double)heads * (double)len_q * (exact ? 1 : (double)len_k);
}

/* Of query row i. Rows of one residue are counted only when they are exact. */
static double count_row(const counter *c, int64_t b, int64_t h, int64_t i) {
  const spec *s = c->eval.spec;
  int64_t low, high, count = 0;
  reference_position at = c->dilation > 1
                              ? call_residue_position(s, c->eval.args, b, h, i % c->dilation, i / c->dilation, c->dilation)
                              : call_position(s, c->eval.args, b, h, i);
  row_interval(c, &at, &low, &high);
  if (c->rows.form == MASK_ROWS && c->rows.exact)
    return high > low ? (double)(high - low) : 0;
  for (at.k = low; at.k < high; at.k++)
    count += problem_value(&c->eval, c->eval.spec->mask, &at, 0) != 0;
  return (double)count;
}

/* Where rows are no intervals of all keys: perhaps they are among those of their residue. */
static void count_by_residue(arena *memory, counter *c) {
  const spec *s = c->eval.spec;
  mask_residue residue;
  if (c->rows.exact || !mask_find_residue(memory, s->mask, s->align == ALIGN_BOTTOM_RIGHT, &residue))
    return;
  mask_rows rows = mask_analyse(memory, residue.within, false);
  int64_t dilation = call_dilation(&c->eval, residue.modulus);
  if (!rows.exact || dilation == 1)
    return;
  if (rows.form == MASK_ALL) /* all of the residue: an interval without bounds */
    rows.form = MASK_ROWS;
  c->rows = rows;
  c->dilation = dilation;
}

/* Pairs of entry b; -1 when counting them takes more than what is left of `most`. */
static double count_entry(const counter *c, int64_t b, double *most) {
  const spec *s = c->eval.spec;
  const sequence q = call_sequence(s, c->eval.args, b);
  const int by_head = (expr_symbols(s->mask) & (EXPR_BIT(EXPR_H) | EXPR_BIT(EXPR_HK))) != 0;
  const int64_t heads = by_head ? s->heads_q : 1;
  double pairs = 0;
  *most -= evaluations(c, heads, q.len_q, q.len_k);
  if (*most < 0)
    return -1;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < q.len_q; i++)
      pairs += count_row(c, b, h, i);
  return pairs * (by_head ? 1 : (double)s->heads_q);
}

/* -1 when that takes more than `most` evaluations of the mask. */
static double count_all(const counter *c, double most, int64_t batch) {
  const spec *s = c->eval.spec;
  const int by_batch = (expr_symbols(s->mask) & EXPR_BIT(EXPR_B)) != 0 || !spec_is_dense(s);
  const int64_t entries = by_batch ? batch : batch > 0;
  double pairs = 0;
  for (int64_t b = 0; b < entries; b++) {
    const double more = count_entry(c, b, &most);
    if (more < 0)
      return -1;
    pairs += more;
  }
  return pairs * (by_batch ? 1 : (double)batch);
}

/* The mask's parameters must be there to be read. */
static qkv_status check_mask_params(const spec *s, const qkv_attention_args *args) {
  uint32_t used = expr_params(s->mask);
  for (int n = 0; n < s->nparams; n++) {
    if (!(used >> n & 1))
      continue;
    if (n >= args->nparams || !args->params || (s->params[n].rank > 0 && !args->params[n].tensor.data))
      return error_set(QKV_INVALID_ARGUMENT,
                       "parameter %s: the mask reads it, so counting the visible pairs needs its value "
                       "(in host memory)",
                       s->params[n].name);
    if (args->params[n].tensor.rank != s->params[n].rank)
      return error_set(QKV_INVALID_ARGUMENT, "parameter %s: has rank %d, must have %d", s->params[n].name,
                       args->params[n].tensor.rank, s->params[n].rank);
  }
  return QKV_OK;
}

/* Tokens and pairs of all sequences. */
typedef struct totals {
  double tokens_q, tokens_k, pairs;
} totals;

static totals count_tokens(const spec *s, const qkv_attention_args *args) {
  totals sum = {0};
  for (int64_t b = 0; b < call_batch(s, args); b++) {
    const sequence q = call_sequence(s, args, b);
    sum.tokens_q += (double)q.len_q;
    sum.tokens_k += (double)q.len_k;
    sum.pairs += (double)q.len_q * (double)q.len_k;
  }
  return sum;
}

qkv_status work_visible(const spec *s, const qkv_attention_args *args, double most, double *pairs) {
  double all = count_tokens(s, args).pairs * s->heads_q;
  qkv_status status = check_mask_params(s, args);
  if (status != QKV_OK)
    return status;
  arena *memory = arena_new();
  if (!memory)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (!ARENA_TRY(memory)) {
    arena_free(memory);
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  counter c = {{s, args}, mask_analyse(memory, s->mask, s->align == ALIGN_BOTTOM_RIGHT), 1};
  count_by_residue(memory, &c);
  *pairs = c.rows.form == MASK_ALL ? all : c.rows.form == MASK_NONE ? 0 : count_all(&c, most, call_batch(s, args));
  arena_free(memory);
  return QKV_OK;
}

qkv_status qkv_work(const qkv_spec *handle, const qkv_attention_args *given, double *flops, double *bytes) {
  qkv_attention_args args;
  double pairs = 0;
  if (!handle || !given)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", handle ? "args" : "spec");
  const spec *s = handle->parsed;
  qkv_status status = call_check_arrays(s, given, &args);
  if (status == QKV_OK && flops)
    status = work_visible(s, &args, INFINITY, &pairs);
  if (status != QKV_OK)
    return status;
  const totals sum = count_tokens(s, &args);
  if (flops)
    *flops = 2.0 * (s->dim_qk + s->dim_v) * pairs;
  if (bytes)
    *bytes = sum.tokens_q * s->heads_q *
                 (s->dim_qk * spec_dtype_size(s->dtype_q) + s->dim_v * spec_dtype_size(s->dtype_out)) +
             sum.tokens_k * s->heads_kv * (s->dim_qk + s->dim_v) * spec_dtype_size(s->dtype_kv);
  return QKV_OK;
}
