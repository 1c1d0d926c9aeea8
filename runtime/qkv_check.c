/* qkv_check.c: is the description of a call right? One table says what every tensor must look like; one function checks
 * a tensor against its row. Arithmetic only, so that it can stand on the launch path. */
#include <stdlib.h>
#include <string.h>

#include "mask.h"
#include "qkv_internal.h"

/* What an extent must be. */
typedef enum extent { BATCH, LEN_Q, LEN_K, HEADS_Q, HEADS_KV, DIM_QK, DIM_V, EXTENTS } extent;
static const char *const extent_names[EXTENTS] = {"batch", "len_q", "len_k", "heads_q", "heads_kv", "dim_qk", "dim_v"};

typedef enum role { INPUT, OUTPUT } role;

static const struct rule {
  const char *name;
  size_t offset; /* in qkv_attention_args */
  role role;
  int rank;
  extent extents[4];
  const char *axes[4]; /* their names in manifests */
} rules[TENSOR_PARAM] = {
#define AT(member) offsetof(qkv_attention_args, member)
    [TENSOR_Q] = {"q", AT(q), INPUT, 4, {BATCH, LEN_Q, HEADS_Q, DIM_QK}, {"batch", "token", "head", "dim"}},
    [TENSOR_K] = {"k", AT(k), INPUT, 4, {BATCH, LEN_K, HEADS_KV, DIM_QK}, {"batch", "token", "head", "dim"}},
    [TENSOR_V] = {"v", AT(v), INPUT, 4, {BATCH, LEN_K, HEADS_KV, DIM_V}, {"batch", "token", "head", "dim"}},
    [TENSOR_O] = {"o", AT(o), OUTPUT, 4, {BATCH, LEN_Q, HEADS_Q, DIM_V}, {"batch", "token", "head", "dim"}},
    [TENSOR_LSE] = {"lse", AT(lse), OUTPUT, 3, {BATCH, HEADS_Q, LEN_Q}, {"batch", "head", "token"}},
    [TENSOR_LSE_WITH_SINK] =
        {"lse_with_sink", AT(lse_with_sink), OUTPUT, 3, {BATCH, HEADS_Q, LEN_Q}, {"batch", "head", "token"}},
    [TENSOR_SINK] = {"sink", AT(sink), INPUT, 1, {HEADS_Q}, {"head"}},
#undef AT
};

static const char *dtype_name(qkv_dtype t) {
  static const char *const names[] = {"f16", "bf16", "f32", "e4m3", "e5m2", "i32", "bool"};
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

int call_axis_find(int tensor, const char *name) {
  if (tensor >= TENSOR_PARAM)
    return name[0] >= '0' && name[0] < '0' + EXPR_MAX_RANK && !name[1] ? name[0] - '0' : -1;
  for (int d = 0; d < rules[tensor].rank; d++)
    if (!strcmp(rules[tensor].axes[d], name))
      return d;
  return -1;
}

/* Is the tensor part of a call of this spec? */
static int is_used(const spec *s, int tensor) {
  switch (tensor) {
  case TENSOR_LSE:
    return (s->outputs & OUTPUT_LSE) != 0;
  case TENSOR_LSE_WITH_SINK:
    return (s->outputs & OUTPUT_LSE_WITH_SINK) != 0;
  case TENSOR_SINK:
    return s->sink != SINK_NONE;
  default:
    return 1;
  }
}

static int is_float(qkv_dtype t) {
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
    return QKV_F32;
  }
}

/* Strides and address of a tensor with at least one element. */
static qkv_status check_memory(const char *name, const qkv_tensor *t, role r) {
  int64_t reach = dtype_size(t->dtype);
  for (int d = 0; d < t->rank; d++) {
    int64_t step;
    if (r == OUTPUT && t->shape[d] > 1 && t->stride[d] == 0)
      return error_set(QKV_INVALID_ARGUMENT, "%s: dimension %d has stride 0: an output must not overlap itself", name,
                       d);
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

/* Rank and extents of any tensor, and its memory unless it is empty. */
static qkv_status check_shape(const char *name, const qkv_tensor *t, int rank, const int64_t *want, role r,
                              const extent *extents) {
  int empty = 0;
  if (t->rank != rank)
    return error_set(QKV_INVALID_ARGUMENT, "%s: has rank %d, must have %d", name, t->rank, rank);
  for (int d = 0; d < rank; d++) {
    if (t->shape[d] != want[d])
      return error_set(QKV_INVALID_ARGUMENT, "%s: dimension %d%s%s is %lld, must be %lld", name, d, extents ? ", " : "",
                       extents ? extent_names[extents[d]] : "", (long long)t->shape[d], (long long)want[d]);
    empty |= t->shape[d] <= 0;
  }
  return empty ? QKV_OK : check_memory(name, t, r);
}

static qkv_status check_tensor(const spec *s, int tensor, const qkv_tensor *t, const int64_t sizes[EXTENTS], int host) {
  const struct rule *r = &rules[tensor];
  qkv_dtype want = dtype_wanted(s, tensor);
  int64_t shape[4];
  if (t->dtype != want && !(host && is_float(t->dtype)))
    return error_set(QKV_INVALID_ARGUMENT, "%s: is %s, the spec says %s", r->name, dtype_name(t->dtype),
                     dtype_name(want));
  for (int d = 0; d < r->rank; d++)
    shape[d] = sizes[r->extents[d]];
  return check_shape(r->name, t, r->rank, shape, r->role, r->extents);
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
        return error_set(QKV_INVALID_ARGUMENT, "%s: is %s, the spec says %s", p->name, dtype_name(v->tensor.dtype),
                         dtype_name(dtype_of_param(p->type)));
      status = check_shape(p->name, &v->tensor, p->rank, shape, INPUT, NULL);
    }
    if (status != QKV_OK)
      return status;
    out->tensors[TENSOR_PARAM + n] = &v->tensor;
    out->values[n] = v->value;
  }
  return QKV_OK;
}

/* The sizes of the call come from q and k; everything else must agree with them. */
static qkv_status read_sizes(const spec *s, const qkv_attention_args *args, int64_t sizes[EXTENTS]) {
  const struct {
    const char *name;
    const qkv_tensor *tensor;
  } givers[] = {{"q", &args->q}, {"k", &args->k}};
  for (int n = 0; n < 2; n++) {
    const qkv_tensor *t = givers[n].tensor;
    if (t->rank != 4)
      return error_set(QKV_INVALID_ARGUMENT, "%s: has rank %d, must have 4", givers[n].name, t->rank);
    for (int d = 0; d < 2; d++)
      if (t->shape[d] < 0 || t->shape[d] > MASK_POSITION_LIMIT)
        return error_set(QKV_INVALID_ARGUMENT, "%s: dimension %d, %s, is %lld; it must be 0 to %d", givers[n].name, d,
                         d == 0   ? "batch"
                         : n == 0 ? "len_q"
                                  : "len_k",
                         (long long)t->shape[d], MASK_POSITION_LIMIT);
  }
  sizes[BATCH] = args->q.shape[0];
  sizes[LEN_Q] = args->q.shape[1];
  sizes[LEN_K] = args->k.shape[1];
  sizes[HEADS_Q] = s->heads_q;
  sizes[HEADS_KV] = s->heads_kv;
  sizes[DIM_QK] = s->dim_qk;
  sizes[DIM_V] = s->dim_v;
  return QKV_OK;
}

qkv_status call_check_params(const spec *s, const qkv_attention_args *args) {
  int64_t sizes[EXTENTS];
  call_view unused = {0};
  if (args->size < sizeof *args)
    return error_set(QKV_INVALID_ARGUMENT, "args.size is not set; start from QKV_ATTENTION_ARGS_INIT");
  qkv_status status = read_sizes(s, args, sizes);
  return status == QKV_OK ? check_params(s, args, sizes, &unused) : status;
}

qkv_status call_check(const spec *s, const qkv_attention_args *args, int host, call_view *out) {
  int64_t sizes[EXTENTS];
  if (args->size < sizeof *args)
    return error_set(QKV_INVALID_ARGUMENT, "args.size is not set; start from QKV_ATTENTION_ARGS_INIT");
  qkv_status status = read_sizes(s, args, sizes);
  if (status != QKV_OK)
    return status;
  for (int t = 0; t < TENSOR_PARAM; t++) {
    out->tensors[t] = (const qkv_tensor *)(const void *)((const char *)args + rules[t].offset);
    if (is_used(s, t) && (status = check_tensor(s, t, out->tensors[t], sizes, host)) != QKV_OK)
      return status;
  }
  out->sizes[SIZE_ONE] = 1;
  out->sizes[SIZE_BATCH] = sizes[BATCH];
  out->sizes[SIZE_LEN_Q] = sizes[LEN_Q];
  out->sizes[SIZE_LEN_K] = sizes[LEN_K];
  out->sizes[SIZE_HEADS_Q] = sizes[HEADS_Q];
  out->sizes[SIZE_HEADS_KV] = sizes[HEADS_KV];
  out->sizes[SIZE_DIM_QK] = sizes[DIM_QK];
  out->sizes[SIZE_DIM_V] = sizes[DIM_V];
  out->sizes[SIZE_SM_COUNT] = 1;
  out->empty = sizes[BATCH] == 0 || sizes[LEN_Q] == 0 || sizes[HEADS_Q] == 0;
  return check_params(s, args, sizes, out);
}
