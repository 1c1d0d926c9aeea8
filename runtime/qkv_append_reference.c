/* qkv_append_reference.c: an append in f64 on the CPU, token by token: the definition of right. */
#include <math.h>
#include <stdlib.h>

#include "append.h"

/* Where a token's keys and values go. */
typedef struct place {
  int64_t position; /* for rope */
  bool exists, kept;
  int64_t key, value; /* elements from the cache's first to KV head 0 */
} place;

/* All that the rows of a call share. */
typedef struct problem {
  const spec *spec;
  const call_view *call;
  qkv_attention_args sequences; /* of the cache, as sequence_find wants them */
  sequence_layout layout;
  float frequencies[SPEC_MAX_PAIRS];
  double *row;
} problem;

static char *element(const qkv_tensor *t, int64_t offset) {
  return (char *)t->data + offset * dtype_size(t->dtype);
}

static int64_t index_at(const qkv_tensor *t, int64_t n) {
  return t->dtype == QKV_I64 ? ((const int64_t *)t->data)[n] : ((const int32_t *)t->data)[n];
}

/* ---- Places ---- */

/* Of slot number `slot` in a cache. */
static int64_t slot_offset(const problem *p, const qkv_tensor *t, int64_t slot) {
  const spec *s = p->spec;
  if (s->layout_kv == LAYOUT_RAGGED)
    return slot * t->stride[0];
  const int token = s->layout_kv == LAYOUT_PAGED && s->page_order == PAGE_HND ? 2 : 1;
  return slot / t->shape[token] * t->stride[0] + slot % t->shape[token] * t->stride[token];
}

static place mapped_place(const problem *p, int64_t token) {
  const call_view *c = p->call;
  const int64_t slot = index_at(c->tensors[APPEND_SLOTS], token);
  place at = {.exists = true, .kept = slot >= 0 && slot < (int64_t)c->values[APPEND_SLOT_COUNT]};
  if (p->spec->rope.given)
    at.position = index_at(c->tensors[APPEND_POSITIONS], token);
  if (at.kept) {
    at.key = slot_offset(p, c->tensors[APPEND_K], slot);
    at.value = slot_offset(p, c->tensors[APPEND_V], slot);
  }
  return at;
}

/* The sequence that has the row; false: none. */
static bool find_sequence(const problem *p, int64_t token, sequence *out, int64_t *i) {
  for (int64_t b = 0; b < sequence_count(&p->layout, &p->sequences); b++) {
    *out = sequence_find(&p->layout, &p->sequences, b);
    *i = token - (p->layout.q == QKV_RAGGED ? out->first_q : b * out->len_q);
    if (*i >= 0 && *i < out->len_q)
      return true;
  }
  return false;
}

static place sequence_place(const problem *p, int64_t token) {
  const call_view *c = p->call;
  place at = {0};
  sequence q;
  int64_t i;
  if (!find_sequence(p, token, &q, &i))
    return at;
  at.exists = true;
  at.position = p->spec->append.slots == SLOTS_LENGTHS ? q.len_k - q.len_q + i
                                                       : index_at(c->tensors[APPEND_POSITIONS], token);
  at.kept = at.position >= 0 && at.position < q.len_k;
  if (at.kept) {
    at.key = sequence_key(&p->layout, &q, &p->sequences, c->tensors[APPEND_K], at.position, 0);
    at.value = sequence_key(&p->layout, &q, &p->sequences, c->tensors[APPEND_V], at.position, 0);
  }
  return at;
}

/* ---- Rows ---- */

static void normalise(const problem *p, double *row, const qkv_tensor *weights) {
  const int dim = p->spec->dim_qk;
  double squares = 0;
  for (int d = 0; d < dim; d++)
    squares += row[d] * row[d];
  const double scale = 1 / sqrt(squares / dim + (double)(float)p->spec->append.epsilon);
  for (int d = 0; d < dim; d++)
    row[d] *= scale * tensor_load(element(weights, d), weights->dtype);
}

/* Cosine and sine of pair d, with the factor. */
static void rotation(const problem *p, int64_t position, int d, double *cosine, double *sine) {
  const qkv_tensor *table = p->call->tensors[APPEND_COS_SIN];
  if (p->spec->rope.table) {
    const int64_t last = table->shape[0] - 1, row = position < 0 ? 0 : position < last ? position : last;
    *cosine = tensor_load(element(table, row * table->stride[0] + d), table->dtype);
    *sine = tensor_load(element(table, row * table->stride[0] + p->spec->rope.dims / 2 + d), table->dtype);
    return;
  }
  const double factor = (double)(float)p->call->values[APPEND_ROPE_FACTOR];
  const double angle = (double)position * (double)p->frequencies[d];
  *cosine = factor * cos(angle);
  *sine = factor * sin(angle);
}

static void turn(const problem *p, double *row, int64_t position) {
  const spec_rope *r = &p->spec->rope;
  for (int d = 0; d < r->dims / 2; d++) {
    double cosine, sine, *first = row + (r->interleaved ? 2 * d : d),
                         *second = r->interleaved ? first + 1 : first + r->dims / 2;
    rotation(p, position, d, &cosine, &sine);
    const double x = *first, y = *second;
    *first = x * cosine - y * sine;
    *second = y * cosine + x * sine;
  }
}

static void load(const problem *p, const qkv_tensor *from, int64_t token, int64_t head) {
  for (int64_t d = 0; d < from->shape[2]; d++)
    p->row[d] = tensor_load(
        element(from, token * from->stride[0] + head * from->stride[1] + d * from->stride[2]), from->dtype);
}

/* To element `offset` and on, divided by the head's scale. A cache of e4m3 saturates. */
static void store(const problem *p, const qkv_tensor *to, int64_t offset, int64_t head, const qkv_tensor *scales) {
  const int64_t dim = to->shape[to->rank - 1];
  const bool scaled = scales && scales->rank > 0;
  const double scale = scaled ? tensor_load(element(scales, head * scales->stride[0]), scales->dtype) : 1;
  for (int64_t d = 0; d < dim; d++) {
    double x = p->row[d] / scale;
    if (to->dtype == QKV_E4M3)
      x = x > 448 ? 448 : x < -448 ? -448 : x;
    tensor_store(element(to, offset + d * to->stride[to->rank - 1]), to->dtype, x);
  }
}

static void append_keys(const problem *p, int64_t token, const place *at) {
  const spec *s = p->spec;
  const call_view *c = p->call;
  const qkv_tensor *k = c->tensors[APPEND_K], *v = c->tensors[APPEND_V];
  const int axis = s->layout_kv == LAYOUT_PAGED && s->page_order == PAGE_HND ? 1 : k->rank - 2;
  for (int64_t h = 0; h < s->heads_kv; h++) {
    load(p, c->tensors[APPEND_NEW_K], token, h);
    if (s->append.norm)
      normalise(p, p->row, c->tensors[APPEND_K_NORM]);
    if (s->rope.given)
      turn(p, p->row, at->position);
    store(p, k, at->key + h * k->stride[axis], h, c->tensors[APPEND_K_SCALE]);
    load(p, c->tensors[APPEND_NEW_V], token, h);
    store(p, v, at->value + h * v->stride[axis], h, c->tensors[APPEND_V_SCALE]);
  }
}

static void turn_queries(const problem *p, int64_t token, const place *at) {
  const spec *s = p->spec;
  const qkv_tensor *to = p->call->tensors[APPEND_Q_OUT];
  for (int64_t h = 0; h < s->heads_q; h++) {
    load(p, p->call->tensors[APPEND_Q], token, h);
    if (s->append.norm)
      normalise(p, p->row, p->call->tensors[APPEND_Q_NORM]);
    if (s->rope.given)
      turn(p, p->row, at->position);
    store(p, to, token * to->stride[0] + h * to->stride[1], h, NULL);
  }
}

/* The arrays of an append as those of a call over the cache. */
static void describe_sequences(problem *p, const qkv_append_args *args) {
  const int64_t *sizes = p->call->sizes;
  p->layout = spec_sequence_layout(p->spec);
  p->sequences = (qkv_attention_args)QKV_ATTENTION_ARGS_INIT;
  p->sequences.q = (qkv_tensor){.shape = {sizes[SIZE_BATCH], sizes[SIZE_LEN_Q]}};
  if (p->layout.q == QKV_RAGGED)
    p->sequences.q.shape[0] = sizes[SIZE_TOKENS_Q];
  p->sequences.k = args->k_cache;
  p->sequences.cu_seqlens_q = args->cu_seqlens_q;
  p->sequences.cu_seqlens_k = args->cu_seqlens_k;
  p->sequences.seqlens_k = args->seqlens_k;
  p->sequences.page_table = args->page_table;
  p->sequences.page_indptr = args->page_indptr;
  p->sequences.max_len_q = sizes[SIZE_LEN_Q];
  p->sequences.max_len_k = sizes[SIZE_LEN_K];
}

qkv_status qkv_append_reference(const qkv_spec *handle, const qkv_append_args *args) {
  append_call call = {0};
  if (!handle || !args)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", handle ? "args" : "spec");
  const spec *s = handle->parsed;
  qkv_status status = append_check(s, args, 1, &call);
  if (status != QKV_OK || call.view.empty)
    return status;
  const qkv_tensor *given = call.view.tensors[APPEND_FREQUENCIES];
  problem p = {.spec = s, .call = &call.view};
  p.row = malloc((size_t)(s->dim_qk > s->dim_v ? s->dim_qk : s->dim_v) * sizeof *p.row);
  if (!p.row)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  describe_sequences(&p, &call.args);
  if (s->rope.given && !s->rope.table)
    rope_frequencies(&s->rope, p.frequencies);
  for (int d = 0; given->rank > 0 && d < s->rope.dims / 2; d++)
    p.frequencies[d] = ((const float *)given->data)[d];
  for (int64_t token = 0; token < call.view.sizes[SIZE_TOKENS_Q]; token++) {
    const place at = s->append.slots == SLOTS_MAPPING ? mapped_place(&p, token) : sequence_place(&p, token);
    if (at.exists && s->append.query)
      turn_queries(&p, token, &at);
    if (at.kept)
      append_keys(&p, token, &at);
  }
  free(p.row);
  return QKV_OK;
}
