/* qkv_check.c: is the description of a call right? One table says what every tensor must look like; one function checks
 * a tensor against its row. Arithmetic only, so that it can stand on the launch path. */
#include <stdlib.h>
#include <string.h>

#include "form.h"
#include "mask.h"

/* What chooses among the forms of a tensor. */
typedef enum chooser { BY_NOTHING, BY_Q, BY_KV, BY_TABLE } chooser;
enum { DENSE = QKV_DENSE, PADDED = QKV_PADDED, RAGGED = QKV_RAGGED, NHD = QKV_PAGED, HND, FORMS }; /* BY_Q, BY_KV */
enum { NO_TABLE, ROWS, CSR };                                                                      /* BY_TABLE */

#define KEYS(DIM)                                                                                                      \
  {                                                                                                                    \
    [DENSE] = {4, {BATCH, LEN_K, HEADS_KV, DIM}, {"batch", "token", "head", "dim"}, 1},                                \
    [PADDED] = {4, {BATCH, CAPACITY, HEADS_KV, DIM}, {"batch", "token", "head", "dim"}, 1},                            \
    [RAGGED] = {3, {TOKENS_K, HEADS_KV, DIM}, {"token", "head", "dim"}, 0},                                            \
    [NHD] = {4, {PAGES, PAGE, HEADS_KV, DIM}, {"page", "token", "head", "dim"}, 1},                                    \
    [HND] = {4, {PAGES, HEADS_KV, PAGE, DIM}, {"page", "head", "token", "dim"}, 2},                                    \
  }
#define QUERIES(DIM)                                                                                                   \
  {                                                                                                                    \
    [DENSE] = {4, {BATCH, LEN_Q, HEADS_Q, DIM}, {"batch", "token", "head", "dim"}, 1},                                 \
    [RAGGED] = {3, {TOKENS_Q, HEADS_Q, DIM}, {"token", "head", "dim"}, 0},                                             \
  }
#define LSE                                                                                                            \
  {                                                                                                                    \
    [DENSE] = {3, {BATCH, HEADS_Q, LEN_Q}, {"batch", "head", "token"}, 2},                                             \
    [RAGGED] = {2, {HEADS_Q, TOKENS_Q}, {"head", "token"}, 1},                                                         \
  }
#define AT(member) offsetof(qkv_attention_args, member)
#define ARRAY(EXTENT, AXIS) {1, {EXTENT}, {AXIS}, 0}

static const struct rule {
  const char *name;
  size_t offset; /* in qkv_attention_args */
  role role;
  chooser by;
  form forms[FORMS];
} rules[TENSOR_PARAM] = {
    [TENSOR_Q] = {"q", AT(q), INPUT, BY_Q, QUERIES(DIM_QK)},
    [TENSOR_K] = {"k", AT(k), INPUT, BY_KV, KEYS(DIM_QK)},
    [TENSOR_V] = {"v", AT(v), INPUT, BY_KV, KEYS(DIM_V)},
    [TENSOR_O] = {"o", AT(o), OUTPUT, BY_Q, QUERIES(DIM_V)},
    [TENSOR_LSE] = {"lse", AT(lse), OUTPUT, BY_Q, LSE},
    [TENSOR_LSE_WITH_SINK] = {"lse_with_sink", AT(lse_with_sink), OUTPUT, BY_Q, LSE},
    [TENSOR_SINK] = {"sink", AT(sink), INPUT, BY_NOTHING, {ARRAY(HEADS_Q, "head")}},
    [TENSOR_K_SCALE] = {"k_scale", AT(k_scale), INPUT, BY_NOTHING, {ARRAY(HEADS_KV, "head")}},
    [TENSOR_V_SCALE] = {"v_scale", AT(v_scale), INPUT, BY_NOTHING, {ARRAY(HEADS_KV, "head")}},
    [TENSOR_CU_SEQLENS_Q] =
        {"cu_seqlens_q", AT(cu_seqlens_q), INDEX, BY_Q, {[RAGGED] = ARRAY(STARTS, "batch")}},
    [TENSOR_CU_SEQLENS_K] =
        {"cu_seqlens_k", AT(cu_seqlens_k), INDEX, BY_KV, {[RAGGED] = ARRAY(STARTS, "batch")}},
    [TENSOR_SEQLENS_K] = {"seqlens_k", AT(seqlens_k), INDEX, BY_KV, {[PADDED] = ARRAY(BATCH, "batch"),
                                                                    [NHD] = ARRAY(BATCH, "batch"),
                                                                    [HND] = ARRAY(BATCH, "batch")}},
    [TENSOR_PAGE_TABLE] = {"page_table", AT(page_table), INDEX, BY_TABLE,
                           {[ROWS] = {2, {BATCH, COLUMNS}, {"batch", "column"}, 0}, [CSR] = ARRAY(ENTRIES, "entry")}},
    [TENSOR_PAGE_INDPTR] = {"page_indptr", AT(page_indptr), INDEX, BY_TABLE, {[CSR] = ARRAY(STARTS, "batch")}},
};
#undef KEYS
#undef QUERIES
#undef LSE
#undef AT
#undef ARRAY

static const form *form_of(const spec *s, int tensor) {
  const bool paged = s->layout_kv == LAYOUT_PAGED, hnd = paged && s->page_order == PAGE_HND;
  const sequence_layout l = spec_sequence_layout(s);
  const int index[] = {[BY_NOTHING] = 0,
                       [BY_Q] = (int)l.q,
                       [BY_KV] = hnd ? HND : (int)l.kv,
                       [BY_TABLE] = !paged ? NO_TABLE : l.page_table == QKV_PAGE_TABLE_CSR ? CSR : ROWS};
  return &rules[tensor].forms[index[rules[tensor].by]];
}

const char *call_dtype_name(qkv_dtype t) {
  static const char *const names[] = {"f16", "bf16", "f32", "e4m3", "e5m2", "i32", "bool", "i64"};
  return (size_t)t < sizeof names / sizeof *names ? names[t] : "unknown";
}

const char *call_tensor_name(const spec *s, int tensor) {
  return tensor < TENSOR_PARAM ? rules[tensor].name : s->params[tensor - TENSOR_PARAM].name;
}

int call_tensor_find(const spec *s, const char *name, size_t length) {
  for (int t = 0; t < TENSOR_PARAM; t++)
    if (strlen(rules[t].name) == length && !strncmp(rules[t].name, name, length))
      return t;
  if (length < 6 || strncmp(name, "param.", 6))
    return -1;
  for (int n = 0; n < s->nparams; n++)
    if (strlen(s->params[n].name) == length - 6 && !strncmp(s->params[n].name, name + 6, length - 6))
      return TENSOR_PARAM + n;
  return -1;
}

int call_axis_find(const spec *s, int tensor, const char *name) {
  if (tensor >= TENSOR_PARAM)
    return name[0] >= '0' && name[0] < '0' + EXPR_MAX_RANK && !name[1] ? name[0] - '0' : -1;
  return form_axis(form_of(s, tensor), name);
}

int call_token_axis(const spec *s, int tensor) {
  return form_of(s, tensor)->token;
}

int call_uses(const spec *s, int tensor) {
  switch (tensor) {
  case TENSOR_LSE:
    return (s->outputs & OUTPUT_LSE) != 0;
  case TENSOR_LSE_WITH_SINK:
    return (s->outputs & OUTPUT_LSE_WITH_SINK) != 0;
  case TENSOR_SINK:
    return s->sink != SINK_NONE;
  case TENSOR_K_SCALE:
  case TENSOR_V_SCALE:
    return s->kv_scale != KV_SCALE_NONE;
  default:
    return form_of(s, tensor)->rank > 0;
  }
}

int call_is_float(qkv_dtype t) {
  return t == QKV_F16 || t == QKV_BF16 || t == QKV_F32 || t == QKV_E4M3 || t == QKV_E5M2;
}

static qkv_dtype dtype_wanted(const spec *s, int tensor) {
  switch (tensor) {
  case TENSOR_Q:
    return dtype_of_spec(s->dtype_q);
  case TENSOR_K:
  case TENSOR_V:
    return dtype_of_spec(s->dtype_kv);
  case TENSOR_O:
    return dtype_of_spec(s->dtype_out);
  default:
    return rules[tensor].role == INDEX ? QKV_I32 : QKV_F32;
  }
}

qkv_status call_check_memory(const char *name, const qkv_tensor *t, role r) {
  int64_t reach = dtype_size(t->dtype);
  for (int d = 0; d < t->rank; d++) {
    int64_t step;
    if (r == OUTPUT && t->shape[d] > 1 && t->stride[d] == 0)
      return error_set(QKV_INVALID_ARGUMENT, "%s: dimension %d has stride 0: an output must not overlap itself", name,
                       d);
    if (r == INDEX && d == t->rank - 1 && t->shape[d] > 1 && t->stride[d] != 1)
      return error_set(QKV_INVALID_ARGUMENT, "%s: dimension %d has stride %lld, must be contiguous", name, d,
                       (long long)t->stride[d]);
    if (__builtin_mul_overflow(t->stride[d], t->shape[d] - 1, &step) || step == INT64_MIN ||
        __builtin_mul_overflow(step < 0 ? -step : step, (int64_t)dtype_size(t->dtype), &step) ||
        __builtin_add_overflow(reach, step, &reach))
      return error_set(QKV_INVALID_ARGUMENT, "%s: dimension %d, stride %lld, reaches beyond 2^63 bytes", name, d,
                       (long long)t->stride[d]);
  }
  if (!t->data)
    return error_set(QKV_INVALID_ARGUMENT, "%s: data is NULL", name);
  if ((uintptr_t)t->data % (uintptr_t)dtype_size(t->dtype)) /* a fault on the device, which ends its context */
    return error_set(QKV_INVALID_ARGUMENT, "%s: address %p is not a multiple of the %d-byte element", name, t->data,
                     dtype_size(t->dtype));
  return QKV_OK;
}

static const qkv_tensor *tensor_of(const qkv_attention_args *args, int tensor) {
  return (const qkv_tensor *)(const void *)((const char *)args + rules[tensor].offset);
}

static qkv_status not_given(int tensor) {
  return error_set(QKV_INVALID_ARGUMENT, "%s: is not given; the spec's layout needs it", rules[tensor].name);
}

static qkv_status check_tensor(const spec *s, int tensor, const qkv_tensor *t, const int64_t sizes[EXTENTS], int host) {
  const struct rule *r = &rules[tensor];
  qkv_dtype want = dtype_wanted(s, tensor);
  if (r->role == INDEX && t->rank == 0)
    return not_given(tensor);
  if (t->dtype != want && !(host && call_is_float(t->dtype) && call_is_float(want)))
    return error_set(QKV_INVALID_ARGUMENT, "%s: is %s, %s %s", r->name, call_dtype_name(t->dtype),
                     r->role == INDEX ? "must be" : "the spec says", call_dtype_name(want));
  return form_check(r->name, t, form_of(s, tensor), sizes, r->role);
}

static qkv_status check_scalar(const expr_param *p, double value) {
  int whole = value >= -(double)MASK_POSITION_LIMIT && value <= MASK_POSITION_LIMIT && value == (double)(int64_t)value;
  if (p->type == PARAM_I32 && !whole)
    return error_set(QKV_INVALID_ARGUMENT, "parameter %s: the value must be an integer of -%d to %d", p->name,
                     MASK_POSITION_LIMIT, MASK_POSITION_LIMIT);
  if (p->type == PARAM_BOOL && value != 0 && value != 1)
    return error_set(QKV_INVALID_ARGUMENT, "parameter %s: the value is neither 0 nor 1", p->name);
  return QKV_OK;
}

static qkv_status check_params(const spec *s, const qkv_attention_args *args, const int64_t sizes[EXTENTS],
                               call_view *out) {
  if (args->nparams != s->nparams || (s->nparams > 0 && !args->params))
    return error_set(QKV_INVALID_ARGUMENT, "params: %d given, '%s' declares %d%s%s", args->params ? args->nparams : 0,
                     s->name, s->nparams, s->nparams ? ", first " : "", s->nparams ? s->params[0].name : "");
  for (int n = 0; n < s->nparams; n++) {
    const expr_param *p = &s->params[n];
    const qkv_param_value *v = &args->params[n];
    qkv_status status;
    if (p->rank == 0) {
      status = check_scalar(p, v->value);
    } else {
      int64_t shape[EXPR_MAX_RANK];
      spec_extents(s, n, sizes[BATCH], sizes[LEN_Q], sizes[LEN_K], shape);
      if (v->tensor.dtype != dtype_of_param(p->type))
        return error_set(QKV_INVALID_ARGUMENT, "%s: is %s, the spec says %s", p->name, call_dtype_name(v->tensor.dtype),
                         call_dtype_name(dtype_of_param(p->type)));
      status = form_check_shape(p->name, &v->tensor, p->rank, shape, NULL, INPUT);
    }
    if (status != QKV_OK)
      return status;
    out->tensors[TENSOR_PARAM + n] = &v->tensor;
    out->values[n] = v->value;
  }
  return QKV_OK;
}

/* ---- Sizes ---- */

/* What a call's sizes are taken from, in this order; everything else must agree with them. A tensor that has no such
 * extent in a layout gives none. */
static const giver givers[] = {
    {TENSOR_CU_SEQLENS_Q, STARTS, 1, MASK_POSITION_LIMIT}, {TENSOR_Q, BATCH, 0, MASK_POSITION_LIMIT},
    {TENSOR_Q, LEN_Q, 0, MASK_POSITION_LIMIT},             {TENSOR_Q, TOKENS_Q, 0, INT32_MAX},
    {TENSOR_K, BATCH, 0, MASK_POSITION_LIMIT},             {TENSOR_K, LEN_K, 0, MASK_POSITION_LIMIT},
    {TENSOR_K, CAPACITY, 0, MASK_POSITION_LIMIT},          {TENSOR_K, TOKENS_K, 0, INT32_MAX},
    {TENSOR_K, PAGES, 0, INT32_MAX},                       {TENSOR_PAGE_TABLE, COLUMNS, 0, INT32_MAX},
    {TENSOR_PAGE_TABLE, ENTRIES, 0, INT32_MAX},
};
enum { GIVERS = sizeof givers / sizeof *givers };

static qkv_status take_size(const spec *s, const qkv_attention_args *args, const giver *g, int64_t sizes[EXTENTS]) {
  const form *f = form_of(s, g->tensor);
  const qkv_tensor *t = tensor_of(args, g->tensor);
  if (f->rank > 0 && rules[g->tensor].role == INDEX && t->rank == 0)
    return not_given(g->tensor);
  if (f->rank > 0 && t->rank != f->rank)
    return error_set(QKV_INVALID_ARGUMENT, "%s: has rank %d, must have %d", rules[g->tensor].name, t->rank,
                     f->rank);
  return form_take_size(rules[g->tensor].name, t, f, g, sizes);
}

/* How long sequences may be. `reach`: what the tensors have room for. A dense tensor says it; whole: one of a batch
 * entry's own, so that more would be a mistake, while packed tokens and pages are shared. */
typedef struct reach {
  const char *name, *tensor;
  int64_t tokens;
  bool dense, whole;
} reach;

static qkv_status take_maximum(const reach *r, int64_t given, int64_t limit, int64_t *out) {
  const int64_t most = r->tokens < MASK_POSITION_LIMIT ? r->tokens : MASK_POSITION_LIMIT;
  if (given < 0 || given > MASK_POSITION_LIMIT)
    return error_set(QKV_INVALID_ARGUMENT, "max_%s: is %lld; it must be 0 to %d", r->name, (long long)given,
                     MASK_POSITION_LIMIT);
  if (r->dense ? given && given != most : r->whole && given > most)
    return error_set(QKV_INVALID_ARGUMENT, "max_%s: is %lld; %s has room for %lld tokens a sequence", r->name,
                     (long long)given, r->tensor, (long long)most);
  if (!given && !limit && !r->whole && most > 0)
    return error_set(QKV_INVALID_ARGUMENT,
                     "max_%s: is 0, and neither tensors nor limits.%s of the op say how long a sequence may be",
                     r->name, r->name);
  *out = given ? given : r->whole && (!limit || r->dense || limit > most) ? most : limit;
  return QKV_OK;
}

static qkv_status take_maxima(const spec *s, const call_limits *limits, const qkv_attention_args *args,
                              int64_t sizes[EXTENTS]) {
  const bool dense_q = s->layout_q == LAYOUT_DENSE, rows = s->page_table == PAGE_TABLE_ROWS;
  const int64_t per_page = sizes[PAGES] > 0 ? s->page_size : 0;
  const reach keys[] = {
      [LAYOUT_DENSE] = {"len_k", "k", sizes[LEN_K], true, true},
      [LAYOUT_PADDED] = {"len_k", "k", sizes[CAPACITY], false, true},
      [LAYOUT_RAGGED] = {"len_k", "k", sizes[TOKENS_K], false, false},
      [LAYOUT_PAGED] = {"len_k", "page_table", per_page * (rows ? sizes[COLUMNS] : sizes[ENTRIES]), false, rows}};
  const reach queries = {"len_q", "q", dense_q ? sizes[LEN_Q] : sizes[TOKENS_Q], dense_q, dense_q};
  qkv_status status = take_maximum(&queries, args->max_len_q, limits ? limits->len_q : 0, &sizes[LEN_Q]);
  if (status != QKV_OK)
    return status;
  return take_maximum(&keys[s->layout_kv], args->max_len_k, limits ? limits->len_k : 0, &sizes[LEN_K]);
}

static qkv_status read_sizes(const spec *s, const call_limits *limits, const qkv_attention_args *args,
                             int64_t sizes[EXTENTS]) {
  if (args->size < sizeof *args)
    return error_set(QKV_INVALID_ARGUMENT, "args.size is not set; start from QKV_ATTENTION_ARGS_INIT");
  form_begin_sizes(sizes);
  for (int n = 0; n < GIVERS; n++) {
    qkv_status status = take_size(s, args, &givers[n], sizes);
    if (status != QKV_OK)
      return status;
  }
  form_end_sizes(s, sizes);
  return take_maxima(s, limits, args, sizes);
}

/* ---- Calls ---- */

/* Arrays of lengths and pages. */
static qkv_status check_arrays(const spec *s, const qkv_attention_args *args, const int64_t sizes[EXTENTS]) {
  for (int t = TENSOR_CU_SEQLENS_Q; t < TENSOR_PARAM; t++) {
    qkv_status status = call_uses(s, t) ? check_tensor(s, t, tensor_of(args, t), sizes, 0) : QKV_OK;
    if (status != QKV_OK)
      return status;
  }
  return QKV_OK;
}

static qkv_status check_args(const spec *s, const call_limits *limits, const qkv_attention_args *args,
                             int64_t sizes[EXTENTS], qkv_attention_args *out) {
  qkv_status status = read_sizes(s, limits, args, sizes);
  if (status == QKV_OK)
    status = check_arrays(s, args, sizes);
  if (status != QKV_OK)
    return status;
  *out = *args;
  out->max_len_q = sizes[LEN_Q];
  out->max_len_k = sizes[LEN_K];
  return QKV_OK;
}

qkv_status call_check_params(const spec *s, const qkv_attention_args *args, qkv_attention_args *out) {
  int64_t sizes[EXTENTS];
  call_view unused = {0};
  qkv_status status = check_args(s, NULL, args, sizes, out);
  return status == QKV_OK ? check_params(s, args, sizes, &unused) : status;
}

qkv_status call_check_arrays(const spec *s, const qkv_attention_args *args, qkv_attention_args *out) {
  static const call_limits none = {MASK_POSITION_LIMIT, MASK_POSITION_LIMIT, MASK_POSITION_LIMIT};
  int64_t sizes[EXTENTS];
  return check_args(s, &none, args, sizes, out);
}

/* ---- Merges ---- */

/* The extents of o, which everything else must agree with. */
static qkv_status merge_sizes(const spec *s, const qkv_tensor *o, int64_t sizes[EXTENTS]) {
  const form *f = form_of(s, TENSOR_O);
  if (o->rank != f->rank)
    return error_set(QKV_INVALID_ARGUMENT, "o: has rank %d, must have %d", o->rank, f->rank);
  for (int d = 0; d < f->rank; d++) {
    if (o->shape[d] < 0 || o->shape[d] > INT32_MAX)
      return error_set(QKV_INVALID_ARGUMENT, "o: dimension %d, %s, is %lld; it must be 0 to %d", d,
                       extent_name(f->extents[d]), (long long)o->shape[d], INT32_MAX);
    sizes[f->extents[d]] = o->shape[d];
  }
  sizes[HEADS_Q] = s->heads_q;
  sizes[DIM_V] = s->dim_v;
  return QKV_OK;
}

/* A tensor as attention has it, of any of the formats that an o may have where `any`. */
static qkv_status check_state_tensor(const spec *s, int tensor, const qkv_tensor *t, const int64_t sizes[EXTENTS],
                                     role r, bool any) {
  const qkv_dtype want = dtype_wanted(s, tensor);
  if (any ? t->dtype != QKV_F16 && t->dtype != QKV_BF16 && t->dtype != QKV_F32 : t->dtype != want)
    return error_set(QKV_INVALID_ARGUMENT, "%s: is %s, must be %s", rules[tensor].name, call_dtype_name(t->dtype),
                     any ? "f16, bf16 or f32" : call_dtype_name(want));
  return form_check(rules[tensor].name, t, form_of(s, tensor), sizes, r);
}

/* Fills what the kernel takes of a state; lse may be missing in the merged one. */
static qkv_status take_state(const spec *s, const qkv_tensor *o, const qkv_tensor *lse, manifest_state *out) {
  const form *of_o = form_of(s, TENSOR_O), *of_lse = form_of(s, TENSOR_LSE);
  const int size = dtype_size(o->dtype), dim = of_o->rank - 1, dense = of_o->rank == 4;
  bool wide = o->stride[dim] == 1 && (uintptr_t)o->data % 16 == 0;
  if (o->stride[dim] < INT32_MIN || o->stride[dim] > INT32_MAX)
    return error_set(QKV_INVALID_ARGUMENT,
                     "o: the stride of its dimension %d is %lld, which the kernel holds in 32 bits", dim,
                     (long long)o->stride[dim]);
  *out = (manifest_state){.o = o->data, .lse = lse ? lse->data : NULL, .o_stride_dim = (int32_t)o->stride[dim],
                          .dtype = (uint16_t)o->dtype};
  for (int d = 0; d < dim; d++) {
    out->o_stride[d + !dense] = o->stride[d]; /* batch, token, head */
    wide &= o->shape[d] <= 1 || (o->stride[d] % 16) * size % 16 == 0;
  }
  static const char *const axes[] = {"batch", "token", "head"};
  for (int d = 0; lse && d < of_lse->rank; d++)
    for (int n = 0; n < 3; n++)
      if (!strcmp(of_lse->axes[d], axes[n]))
        out->lse_stride[n] = lse->stride[d];
  out->wide = wide;
  return QKV_OK;
}

qkv_status call_check_merge(const spec *s, const qkv_merge_args *args, call_view *out, manifest_states *states) {
  int64_t sizes[EXTENTS];
  const bool ragged = s->layout_q == LAYOUT_RAGGED, wants_lse = args->lse.rank > 0 || args->lse.data;
  if (args->size < sizeof *args)
    return error_set(QKV_INVALID_ARGUMENT, "args.size is not set; start from QKV_MERGE_ARGS_INIT");
  if (args->count < 1 || args->count > MANIFEST_STATES || !args->states)
    return error_set(QKV_INVALID_ARGUMENT, "states: %d given, must be 1 to %d", args->states ? args->count : 0,
                     MANIFEST_STATES);
  qkv_status status = merge_sizes(s, &args->o, sizes);
  if (status == QKV_OK)
    status = check_state_tensor(s, TENSOR_O, &args->o, sizes, OUTPUT, false);
  if (status == QKV_OK && wants_lse)
    status = check_state_tensor(s, TENSOR_LSE, &args->lse, sizes, OUTPUT, false);
  if (status == QKV_OK)
    status = take_state(s, &args->o, wants_lse ? &args->lse : NULL, &states->out);
  for (int n = 0; n < args->count && status == QKV_OK; n++) {
    const qkv_state *state = &args->states[n];
    status = check_state_tensor(s, TENSOR_O, &state->o, sizes, INPUT, true);
    if (status == QKV_OK)
      status = check_state_tensor(s, TENSOR_LSE, &state->lse, sizes, INPUT, false);
    if (status == QKV_OK)
      status = take_state(s, &state->o, &state->lse, &states->in[n]);
    if (status != QKV_OK)
      return error_context(status, "states[%d].", n);
  }
  states->count = args->count;
  out->states = states;
  out->sizes[SIZE_BATCH] = ragged ? 0 : sizes[BATCH];
  out->sizes[SIZE_LEN_Q] = ragged ? 0 : sizes[LEN_Q];
  out->sizes[SIZE_TOKENS_Q] = ragged ? sizes[TOKENS_Q] : sizes[BATCH] * sizes[LEN_Q];
  out->sizes[SIZE_HEADS_Q] = s->heads_q;
  out->sizes[SIZE_DIM_V] = s->dim_v;
  out->empty = out->sizes[SIZE_TOKENS_Q] == 0;
  return status;
}

/* ---- Calls of attention ---- */

static void give_sizes(const int64_t sizes[EXTENTS], bool ragged_q, int64_t out[SIZE_COUNT]) {
  out[SIZE_ONE] = 1;
  out[SIZE_BATCH] = sizes[BATCH];
  out[SIZE_LEN_Q] = sizes[LEN_Q];
  out[SIZE_LEN_K] = sizes[LEN_K];
  out[SIZE_TOKENS_Q] = ragged_q ? sizes[TOKENS_Q] : sizes[BATCH] * sizes[LEN_Q]; /* at most 2^60 */
  out[SIZE_HEADS_Q] = sizes[HEADS_Q];
  out[SIZE_HEADS_KV] = sizes[HEADS_KV];
  out[SIZE_DIM_QK] = sizes[DIM_QK];
  out[SIZE_DIM_V] = sizes[DIM_V];
  out[SIZE_SM_COUNT] = 1;
}

qkv_status call_check(const spec *s, const call_limits *limits, const qkv_attention_args *args, int host,
                      call_view *out) {
  int64_t sizes[EXTENTS];
  qkv_status status = read_sizes(s, limits, args, sizes);
  if (status != QKV_OK)
    return status;
  for (int t = 0; t < TENSOR_PARAM; t++) {
    out->tensors[t] = tensor_of(args, t);
    if (call_uses(s, t) && (status = check_tensor(s, t, out->tensors[t], sizes, host)) != QKV_OK)
      return status;
  }
  give_sizes(sizes, s->layout_q == LAYOUT_RAGGED, out->sizes);
  out->empty = out->sizes[SIZE_TOKENS_Q] == 0 || sizes[BATCH] == 0 || sizes[LEN_Q] == 0 || sizes[HEADS_Q] == 0;
  return check_params(s, args, sizes, out);
}
