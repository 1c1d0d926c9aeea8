/* qkv_append_check.c: is the description of an append right? One table says what each tensor must look like, for every
 * layout of the cache. Arithmetic only, so that it can stand on the launch path. */
#include <string.h>

#include "append.h"
#include "form.h"
#include "mask.h"

/* What a tensor holds. */
typedef enum content { NEW, CACHE, NUMBERS, ARRAY, WIDE_ARRAY } content; /* dtype.q, dtype.kv, f32, i32, i32 or i64 */

#define AT(member) offsetof(qkv_append_args, member)
#define ROWS(HEADS, DIM) {3, {TOKENS, HEADS, DIM}, {"token", "head", "dim"}, 0}
#define LINE(EXTENT, AXIS) {1, {EXTENT}, {AXIS}, 0}
#define KEYS(DIM)                                                                                                      \
  {                                                                                                                    \
    [LAYOUT_DENSE] = {4, {BATCH, CAPACITY, HEADS_KV, DIM}, {"batch", "token", "head", "dim"}, 1},                      \
    [LAYOUT_PADDED] = {4, {BATCH, CAPACITY, HEADS_KV, DIM}, {"batch", "token", "head", "dim"}, 1},                     \
    [LAYOUT_RAGGED] = {3, {TOKENS_K, HEADS_KV, DIM}, {"token", "head", "dim"}, 0},                                     \
    [LAYOUT_PAGED] = {4, {PAGES, PAGE, HEADS_KV, DIM}, {"page", "token", "head", "dim"}, 1},                           \
    [HND] = {4, {PAGES, HEADS_KV, PAGE, DIM}, {"page", "head", "token", "dim"}, 2},                                    \
  }
enum { HND = LAYOUT_PAGED + 1, FORMS };

/* forms[0] alone: the same for all layouts. */
static const struct rule {
  const char *name, *source; /* the user's and the manifest's */
  size_t offset;
  role role;
  content content;
  form forms[FORMS];
} rules[APPEND_TENSORS] = {
    [APPEND_Q] = {"q", "q", AT(q), INPUT, NEW, {ROWS(HEADS_Q, DIM_QK)}},
    [APPEND_NEW_K] = {"k", "new_k", AT(k), INPUT, NEW, {ROWS(HEADS_KV, DIM_QK)}},
    [APPEND_NEW_V] = {"v", "new_v", AT(v), INPUT, NEW, {ROWS(HEADS_KV, DIM_V)}},
    [APPEND_Q_OUT] = {"q_out", "q_out", AT(q_out), OUTPUT, NEW, {ROWS(HEADS_Q, DIM_QK)}},
    [APPEND_K] = {"k_cache", "k", AT(k_cache), OUTPUT, CACHE, KEYS(DIM_QK)},
    [APPEND_V] = {"v_cache", "v", AT(v_cache), OUTPUT, CACHE, KEYS(DIM_V)},
    [APPEND_SLOTS] = {"slots", "slots", AT(slots), INDEX, WIDE_ARRAY, {LINE(TOKENS, "token")}},
    [APPEND_POSITIONS] = {"positions", "positions", AT(positions), INDEX, WIDE_ARRAY, {LINE(TOKENS, "token")}},
    [APPEND_Q_NORM] = {"q_norm", "q_norm", AT(q_norm), INDEX, NUMBERS, {LINE(DIM_QK, "dim")}},
    [APPEND_K_NORM] = {"k_norm", "k_norm", AT(k_norm), INDEX, NUMBERS, {LINE(DIM_QK, "dim")}},
    [APPEND_COS_SIN] =
        {"cos_sin", "cos_sin", AT(cos_sin), INDEX, NUMBERS, {{2, {POSITIONS, DIMS}, {"position", "dim"}, 0}}},
    [APPEND_FREQUENCIES] = {"frequencies", "frequencies", AT(frequencies), INDEX, NUMBERS, {LINE(PAIRS, "pair")}},
    [APPEND_K_SCALE] = {"k_scale", "k_scale", AT(k_scale), INPUT, NUMBERS, {LINE(HEADS_KV, "head")}},
    [APPEND_V_SCALE] = {"v_scale", "v_scale", AT(v_scale), INPUT, NUMBERS, {LINE(HEADS_KV, "head")}},
    [APPEND_CU_SEQLENS_Q] =
        {"cu_seqlens_q", "cu_seqlens_q", AT(cu_seqlens_q), INDEX, ARRAY, {LINE(STARTS, "batch")}},
    [APPEND_CU_SEQLENS_K] =
        {"cu_seqlens_k", "cu_seqlens_k", AT(cu_seqlens_k), INDEX, ARRAY, {LINE(STARTS, "batch")}},
    [APPEND_SEQLENS_K] = {"seqlens_k", "seqlens_k", AT(seqlens_k), INDEX, ARRAY, {LINE(BATCH, "batch")}},
    [APPEND_PAGE_TABLE] = {"page_table", "page_table", AT(page_table), INDEX, ARRAY,
                           {[PAGE_TABLE_ROWS] = {2, {BATCH, COLUMNS}, {"batch", "column"}, 0},
                            [PAGE_TABLE_CSR] = LINE(ENTRIES, "entry")}},
    [APPEND_PAGE_INDPTR] = {"page_indptr", "page_indptr", AT(page_indptr), INDEX, ARRAY, {LINE(STARTS, "batch")}},
};

static const form *form_of(const spec *s, int tensor) {
  const bool hnd = s->layout_kv == LAYOUT_PAGED && s->page_order == PAGE_HND;
  if (tensor == APPEND_K || tensor == APPEND_V)
    return &rules[tensor].forms[hnd ? HND : (int)s->layout_kv];
  return &rules[tensor].forms[tensor == APPEND_PAGE_TABLE ? (int)s->page_table : 0];
}

/* Is the tensor part of such a call? */
static bool is_used(const spec *s, int tensor) {
  const bool mapped = s->append.slots == SLOTS_MAPPING, paged = s->layout_kv == LAYOUT_PAGED;
  switch (tensor) {
  case APPEND_Q:
  case APPEND_Q_OUT:
    return s->append.query;
  case APPEND_SLOTS:
    return mapped;
  case APPEND_POSITIONS:
    return s->append.slots == SLOTS_POSITIONS || (mapped && s->rope.given);
  case APPEND_Q_NORM:
    return s->append.norm && s->append.query;
  case APPEND_K_NORM:
    return s->append.norm;
  case APPEND_COS_SIN:
    return s->rope.given && s->rope.table;
  case APPEND_FREQUENCIES:
    return s->rope.given && !s->rope.table;
  case APPEND_K_SCALE:
  case APPEND_V_SCALE:
    return s->kv_scale != KV_SCALE_NONE;
  case APPEND_CU_SEQLENS_Q:
    return !mapped && s->layout_q == LAYOUT_RAGGED;
  case APPEND_CU_SEQLENS_K:
    return !mapped && s->layout_kv == LAYOUT_RAGGED;
  case APPEND_SEQLENS_K:
    return !mapped && (paged || s->layout_kv == LAYOUT_PADDED);
  case APPEND_PAGE_TABLE:
    return !mapped && paged;
  case APPEND_PAGE_INDPTR:
    return !mapped && paged && s->page_table == PAGE_TABLE_CSR;
  default:
    return true;
  }
}

static const qkv_tensor *tensor_of(const qkv_append_args *args, int tensor) {
  return (const qkv_tensor *)(const void *)((const char *)args + rules[tensor].offset);
}

/* ---- Tensors ---- */

static bool dtype_fits(const spec *s, content c, qkv_dtype t, int host) {
  switch (c) {
  case ARRAY:
    return t == QKV_I32;
  case WIDE_ARRAY:
    return t == QKV_I32 || t == QKV_I64;
  case NUMBERS:
    return t == QKV_F32;
  default:
    return t == dtype_of_spec(c == NEW ? s->dtype_q : s->dtype_kv) || (host && call_is_float(t));
  }
}

static qkv_status wrong_dtype(const spec *s, int tensor, qkv_dtype t) {
  const content c = rules[tensor].content;
  if (c == NEW || c == CACHE)
    return error_set(QKV_INVALID_ARGUMENT, "%s: is %s, the spec says %s", rules[tensor].name, call_dtype_name(t),
                     call_dtype_name(dtype_of_spec(c == NEW ? s->dtype_q : s->dtype_kv)));
  return error_set(QKV_INVALID_ARGUMENT, "%s: is %s, must be %s", rules[tensor].name, call_dtype_name(t),
                   c == NUMBERS ? "f32" : c == ARRAY ? "i32" : "i32 or i64");
}

static qkv_status check_tensor(const spec *s, int tensor, const qkv_tensor *t, const int64_t sizes[EXTENTS], int host) {
  const struct rule *r = &rules[tensor];
  if (t->rank == 0)
    return error_set(QKV_INVALID_ARGUMENT, "%s: is not given; the spec's %s needs it", r->name,
                     tensor == APPEND_COS_SIN                                      ? "rope.table"
                     : tensor == APPEND_K_SCALE || tensor == APPEND_V_SCALE ? "kv_scale"
                     : tensor >= APPEND_CU_SEQLENS_Q ? "layout" : "append");
  if (!dtype_fits(s, r->content, t->dtype, host))
    return wrong_dtype(s, tensor, t->dtype);
  return form_check(r->name, t, form_of(s, tensor), sizes, r->role);
}

/* ---- A fused projection ---- */

/* The part of each row of qkv from element `first` on, as heads. */
static qkv_tensor part_of(const qkv_tensor *qkv, int64_t first, int64_t heads, int64_t dim) {
  return (qkv_tensor){.data = (char *)qkv->data + first * qkv->stride[1] * dtype_size(qkv->dtype),
                      .dtype = qkv->dtype,
                      .rank = 3,
                      .shape = {qkv->shape[0], heads, dim},
                      .stride = {qkv->stride[0], dim * qkv->stride[1], qkv->stride[1]}};
}

static qkv_status split(const spec *s, qkv_append_args *args) {
  const qkv_tensor *t = &args->qkv;
  const int64_t q = (int64_t)s->heads_q * s->dim_qk, k = (int64_t)s->heads_kv * s->dim_qk,
                row = q + k + (int64_t)s->heads_kv * s->dim_v;
  if (t->rank == 0)
    return QKV_OK;
  if (args->q.rank || args->k.rank || args->v.rank)
    return error_set(QKV_INVALID_ARGUMENT, "qkv: holds q, k and v, so these must not be given as well");
  if (t->rank != 2)
    return error_set(QKV_INVALID_ARGUMENT, "qkv: has rank %d, must have 2", t->rank);
  if (t->shape[1] != row)
    return error_set(QKV_INVALID_ARGUMENT, "qkv: dimension 1, %s is %lld, must be %lld", extent_name(FUSED),
                     (long long)t->shape[1], (long long)row);
  args->q = part_of(t, 0, s->heads_q, s->dim_qk);
  args->k = part_of(t, q, s->heads_kv, s->dim_qk);
  args->v = part_of(t, q + k, s->heads_kv, s->dim_v);
  return QKV_OK;
}

/* ---- Sizes ---- */

/* What sizes are taken from, in this order; everything else must agree with them. */
static const giver givers[] = {
    {APPEND_NEW_K, TOKENS, 0, INT32_MAX},       {APPEND_CU_SEQLENS_Q, STARTS, 1, MASK_POSITION_LIMIT},
    {APPEND_K, BATCH, 0, MASK_POSITION_LIMIT},  {APPEND_K, CAPACITY, 0, MASK_POSITION_LIMIT},
    {APPEND_K, TOKENS_K, 0, INT32_MAX},         {APPEND_K, PAGES, 0, INT32_MAX},
    {APPEND_PAGE_TABLE, COLUMNS, 0, INT32_MAX}, {APPEND_PAGE_TABLE, ENTRIES, 0, INT32_MAX},
    {APPEND_COS_SIN, POSITIONS, 1, INT32_MAX},  {APPEND_SEQLENS_K, BATCH, 0, MASK_POSITION_LIMIT},
};
enum { GIVERS = sizeof givers / sizeof *givers };

static qkv_status read_sizes(const spec *s, const qkv_append_args *args, int64_t sizes[EXTENTS]) {
  form_begin_sizes(sizes);
  for (int n = 0; n < GIVERS; n++) {
    const int tensor = givers[n].tensor;
    const form *f = form_of(s, tensor);
    const qkv_tensor *t = tensor_of(args, tensor);
    if (!is_used(s, tensor) || t->rank != f->rank) /* check_tensor says it */
      continue;
    qkv_status status = form_take_size(rules[tensor].name, t, f, &givers[n], sizes);
    if (status != QKV_OK)
      return status;
  }
  form_end_sizes(s, sizes);
  return QKV_OK;
}

static int64_t slot_count(const spec *s, const int64_t sizes[EXTENTS]) {
  switch (s->layout_kv) {
  case LAYOUT_PAGED:
    return sizes[PAGES] * s->page_size;
  case LAYOUT_RAGGED:
    return sizes[TOKENS_K];
  default:
    return sizes[BATCH] * sizes[CAPACITY]; /* at most 2^60 */
  }
}

/* The tokens that a sequence of the cache can have at most. */
static int64_t greatest_length(const spec *s, const int64_t sizes[EXTENTS]) {
  const int64_t per_page = sizes[PAGES] > 0 ? s->page_size : 0;
  int64_t most = s->layout_kv == LAYOUT_RAGGED ? sizes[TOKENS_K]
                 : s->layout_kv != LAYOUT_PAGED ? sizes[CAPACITY]
                                                : per_page * sizes[s->page_table == PAGE_TABLE_CSR ? ENTRIES : COLUMNS];
  return most < MASK_POSITION_LIMIT ? most : MASK_POSITION_LIMIT;
}

static qkv_status give_sizes(const spec *s, const int64_t sizes[EXTENTS], int64_t out[SIZE_COUNT]) {
  const bool sequences = s->append.slots != SLOTS_MAPPING;
  out[SIZE_ONE] = out[SIZE_SM_COUNT] = 1;
  out[SIZE_TOKENS_Q] = out[SIZE_LEN_Q] = sizes[TOKENS];
  out[SIZE_BATCH] = sequences ? sizes[BATCH] : 0;
  out[SIZE_LEN_K] = sequences ? greatest_length(s, sizes) : 0;
  out[SIZE_HEADS_Q] = s->heads_q;
  out[SIZE_HEADS_KV] = s->heads_kv;
  out[SIZE_DIM_QK] = s->dim_qk;
  out[SIZE_DIM_V] = s->dim_v;
  if (!sequences || s->layout_q != LAYOUT_DENSE)
    return QKV_OK;
  if (sizes[BATCH] ? sizes[TOKENS] % sizes[BATCH] != 0 : sizes[TOKENS] > 0)
    return error_set(QKV_INVALID_ARGUMENT,
                     "k: dimension 0, tokens, is %lld; layout.q is dense, so it must be a multiple of the batch, %lld",
                     (long long)sizes[TOKENS], (long long)sizes[BATCH]);
  out[SIZE_LEN_Q] = sizes[BATCH] ? sizes[TOKENS] / sizes[BATCH] : 0;
  return QKV_OK;
}

/* ---- Calls ---- */

qkv_status append_check(const spec *s, const qkv_append_args *args, int host, append_call *out) {
  static const qkv_tensor none;
  int64_t sizes[EXTENTS];
  if (!s->append.given)
    return error_set(QKV_INVALID_ARGUMENT, "spec '%s' has no section append", s->name);
  out->args = (qkv_append_args)QKV_APPEND_ARGS_INIT;
  qkv_status status = struct_take(&out->args, sizeof out->args, args, "args");
  if (status == QKV_OK)
    status = split(s, &out->args);
  if (status == QKV_OK)
    status = read_sizes(s, &out->args, sizes);
  for (int t = 0; t < APPEND_TENSORS && status == QKV_OK; t++) {
    const qkv_tensor *tensor = tensor_of(&out->args, t);
    const bool used = is_used(s, t) && !(t == APPEND_FREQUENCIES && tensor->rank == 0); /* those of the op */
    out->view.tensors[t] = used ? tensor : &none;
    status = used ? check_tensor(s, t, tensor, sizes, host) : QKV_OK;
  }
  if (status == QKV_OK)
    status = give_sizes(s, sizes, out->view.sizes);
  if (status != QKV_OK)
    return status;
  out->view.empty = sizes[TOKENS] == 0;
  out->view.values[APPEND_EPSILON] = s->append.epsilon;
  out->view.values[APPEND_ROPE_FACTOR] = out->args.rope_factor != 0 ? out->args.rope_factor : rope_factor(&s->rope);
  out->view.values[APPEND_SLOT_COUNT] = (double)slot_count(s, sizes);
  out->view.values[APPEND_SLOTS_WORDS] = out->args.slots.dtype == QKV_I64 ? 2 : 1;
  out->view.values[APPEND_POSITIONS_WORDS] = out->args.positions.dtype == QKV_I64 ? 2 : 1;
  return QKV_OK;
}

/* ---- Members of a kernel's parameter struct ---- */

int append_bind(const spec *s, const char *source, field_slot *slot) {
  static const char *const values[APPEND_VALUES] = {"epsilon", "rope_factor", "slot_count", "slots.words",
                                                    "positions.words"};
  for (int n = 0; n < APPEND_VALUES; n++)
    if (!strcmp(values[n], source)) {
      slot->kind = SLOT_VALUE;
      slot->index = n;
      return 1;
    }
  for (int t = 0; t < APPEND_TENSORS; t++) {
    const size_t length = strlen(rules[t].source);
    const char *rest = source + length;
    if (strncmp(source, rules[t].source, length) != 0 || (*rest && *rest != '.'))
      continue;
    slot->tensor = t;
    slot->kind = !*rest ? SLOT_DATA : !strncmp(rest, ".stride.", 8) ? SLOT_STRIDE : SLOT_EXTENT;
    if (!*rest)
      return 1;
    if (slot->kind == SLOT_EXTENT && strncmp(rest, ".extent.", 8) != 0)
      return 0;
    slot->index = form_axis(form_of(s, t), rest + 8);
    return slot->index >= 0;
  }
  return 0;
}
