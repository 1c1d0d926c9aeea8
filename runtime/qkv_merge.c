/* qkv_merge.c: attention over all keys from states over disjoint ones: the launch, and the same in f64 on the CPU. */
#include <math.h>

#include "qkv_internal.h"

_Static_assert((int)QKV_MERGE_STATES == (int)MANIFEST_STATES, "qkv.h and the kernel take as many states");
_Static_assert((int)QKV_F16 == 0 && (int)QKV_BF16 == 1 && (int)QKV_F32 == 2, "the numbers in manifest_state");

qkv_status qkv_merge(const qkv_op *op, const qkv_merge_args *args, qkv_stream stream) {
  call_view call = {0};
  manifest_states states = {0};
  if (!op || !args)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", op ? "args" : "op");
  if (!op->primary->merges)
    return error_set(QKV_INVALID_ARGUMENT,
                     "the op runs attention; qkv_merge needs one prepared with limits.phase \"merge\"");
  qkv_status status = call_check_merge(op->spec->parsed, args, &call, &states);
  if (status == QKV_OK)
    status = call_check_maxima(op, &call);
  if (status != QKV_OK || call.empty)
    return status;
  if (op->engine->debug_checks && (status = debug_check_merge(op, args, stream)) != QKV_OK)
    return status;
  call.sizes[SIZE_SM_COUNT] = op->engine->info.sm_count;
  return call_launch(op, op->primary, &call, NULL, NULL, false, stream);
}

/* ---- The reference ---- */

/* A row of a state: the number of its batch entry (dense), token and head. */
typedef struct row_of {
  int64_t b, i, h;
} row_of;

static const char *row_of_o(const manifest_state *s, const row_of *r) {
  const int64_t at = r->b * s->o_stride[0] + r->i * s->o_stride[1] + r->h * s->o_stride[2];
  return (const char *)s->o + at * dtype_size((qkv_dtype)s->dtype);
}

static float *lse_of(const manifest_state *s, const row_of *r) {
  return (float *)s->lse + r->b * s->lse_stride[0] + r->i * s->lse_stride[1] + r->h * s->lse_stride[2];
}

/* The factor of each state, the LSE of all. */
static double weigh(const manifest_states *s, const row_of *r, double weights[MANIFEST_STATES]) {
  double greatest = -INFINITY, sum = 0;
  for (int64_t n = 0; n < s->count; n++)
    greatest = fmax(greatest, *lse_of(&s->in[n], r));
  for (int64_t n = 0; n < s->count; n++) {
    const double lse = *lse_of(&s->in[n], r);
    weights[n] = lse == -INFINITY ? 0 : exp(lse - greatest);
    sum += weights[n];
  }
  for (int64_t n = 0; n < s->count; n++)
    weights[n] = sum == 0 ? 0 : weights[n] / sum;
  return sum == 0 ? -INFINITY : greatest + log(sum);
}

static void merge_row(const manifest_states *s, const row_of *r, int dim) {
  double weights[MANIFEST_STATES];
  const double lse = weigh(s, r, weights);
  const int size = dtype_size((qkv_dtype)s->out.dtype);
  for (int64_t d = 0; d < dim; d++) {
    double value = 0;
    for (int64_t n = 0; n < s->count; n++) {
      const manifest_state *in = &s->in[n];
      const int64_t at = d * in->o_stride_dim * dtype_size((qkv_dtype)in->dtype);
      if (weights[n] != 0)
        value += weights[n] * tensor_load(row_of_o(in, r) + at, (qkv_dtype)in->dtype);
    }
    tensor_store((char *)(uintptr_t)row_of_o(&s->out, r) + d * s->out.o_stride_dim * size, (qkv_dtype)s->out.dtype,
                 value);
  }
  if (s->out.lse)
    *lse_of(&s->out, r) = (float)lse;
}

qkv_status qkv_merge_reference(const qkv_spec *handle, const qkv_merge_args *args) {
  call_view call = {0};
  manifest_states states = {0};
  if (!handle || !args)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", handle ? "args" : "spec");
  const spec *s = handle->parsed;
  qkv_status status = call_check_merge(s, args, &call, &states);
  if (status != QKV_OK)
    return status;
  const int64_t len = s->layout_q == LAYOUT_RAGGED ? call.sizes[SIZE_TOKENS_Q] : call.sizes[SIZE_LEN_Q];
  for (int64_t t = 0; t < call.sizes[SIZE_TOKENS_Q]; t++)
    for (int64_t h = 0; h < s->heads_q; h++)
      merge_row(&states, &(row_of){t / len, t % len, h}, s->dim_v);
  return QKV_OK;
}
