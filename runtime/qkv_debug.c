/* qkv_debug.c: what a launch cannot look at, looked at: what arrays of lengths and pages hold, and whether addresses
 * are memory that the device can reach. For engines with debug_checks: it waits for the device, allocates and asks the
 * driver. */
#include <stdlib.h>

#include "qkv_internal.h"

/* The elements before and behind data that a tensor reaches. */
static void span_of(const qkv_tensor *t, int64_t *first, int64_t *last) {
  *first = *last = 0;
  for (int d = 0; d < t->rank; d++) {
    const int64_t way = (t->shape[d] - 1) * t->stride[d];
    *(way < 0 ? first : last) += way;
  }
}

static bool is_empty(const qkv_tensor *t) {
  bool empty = false;
  for (int d = 0; d < t->rank; d++)
    empty |= t->shape[d] == 0;
  return empty;
}

static qkv_status check_tensor(const qkv_engine *e, const char *name, const qkv_tensor *t) {
  const int size = dtype_size(t->dtype);
  int64_t first, last;
  if (is_empty(t))
    return QKV_OK;
  span_of(t, &first, &last);
  qkv_status status = e->ops->reaches(e->device, (char *)t->data + first * size, (size_t)((last - first + 1) * size));
  return status == QKV_OK ? status : error_context(status, "debug checks: %s: ", name);
}

/* ---- Arrays of lengths and pages ---- */

/* Rows of a page table lie apart; what lies between them may be nobody's. */
static qkv_status copy_rows(const qkv_engine *e, const qkv_tensor *from, int32_t *to) {
  const int64_t rows = from->rank == 2 ? from->shape[0] : 1, columns = from->shape[from->rank - 1];
  qkv_status status = QKV_OK;
  for (int64_t n = 0; n < rows && status == QKV_OK; n++)
    status = e->ops->copy_to_host(e->device, to + n * columns, (int32_t *)from->data + n * from->stride[0],
                                  (size_t)columns * sizeof *to);
  return status;
}

/* A contiguous copy in host memory. */
static qkv_status fetch(const qkv_engine *e, const qkv_tensor *from, qkv_tensor *copy) {
  int64_t count = 1;
  for (int d = 0; d < from->rank; d++)
    count *= from->shape[d];
  int32_t *host = malloc((size_t)(count ? count : 1) * sizeof *host);
  if (!host)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  *copy = qkv_tensor_dense(host, QKV_I32, from->rank, from->shape);
  return count ? copy_rows(e, from, host) : QKV_OK;
}

/* The keys of a sequence: its pages, or its first and last token. Others need no memory: a pool may have unmapped it. */
static qkv_status check_keys(const qkv_op *op, const qkv_attention_args *host, int64_t b) {
  const spec *s = op->spec->parsed;
  const sequence_layout l = spec_sequence_layout(s);
  const sequence q = sequence_find(&l, host, b);
  const int64_t step = l.kv == QKV_PAGED ? l.page_size : q.len_k > 1 ? q.len_k - 1 : 1;
  for (int64_t k = 0; k < q.len_k; k += step)
    for (int t = 0; t < 2; t++) {
      const qkv_tensor *tensor = t ? &host->v : &host->k;
      const int64_t at = sequence_key(&l, &q, host, tensor, k, 0);
      const qkv_engine *e = op->engine;
      qkv_status status = e->ops->reaches(e->device, (char *)tensor->data + at * dtype_size(tensor->dtype), 1);
      if (status != QKV_OK)
        return error_context(status, "debug checks: %s: token %lld of sequence %lld: ", t ? "v" : "k", (long long)k,
                             (long long)b);
    }
  return QKV_OK;
}

static qkv_status check_contents(const qkv_op *op, const qkv_attention_args *host) {
  qkv_status status = qkv_check_sequences(op->spec, host);
  if (status != QKV_OK)
    return error_context(status, "debug checks: ");
  for (int64_t b = 0; b < call_batch(op->spec->parsed, host) && status == QKV_OK; b++)
    status = check_keys(op, host, b);
  return status;
}

/* `host` is args with its arrays in host memory. */
static qkv_status check_sequences(const qkv_op *op, const qkv_attention_args *args, const call_view *call) {
  const spec *s = op->spec->parsed;
  qkv_attention_args host = *args;
  qkv_tensor *const arrays[] = {&host.cu_seqlens_q, &host.cu_seqlens_k, &host.seqlens_k, &host.page_table,
                                &host.page_indptr};
  qkv_tensor copies[TENSOR_PARAM - TENSOR_CU_SEQLENS_Q] = {{0}};
  qkv_status status = QKV_OK;
  host.max_len_q = call->sizes[SIZE_LEN_Q];
  host.max_len_k = call->sizes[SIZE_LEN_K];
  for (int t = TENSOR_CU_SEQLENS_Q; t < TENSOR_PARAM && status == QKV_OK; t++)
    if (call_uses(s, t)) {
      const int n = t - TENSOR_CU_SEQLENS_Q;
      status = fetch(op->engine, call->tensors[t], &copies[n]);
      *arrays[n] = copies[n];
    }
  if (status == QKV_OK)
    status = check_contents(op, &host);
  for (size_t n = 0; n < sizeof copies / sizeof *copies; n++)
    free(copies[n].data);
  return status;
}

/* ---- Calls ---- */

static qkv_status wait_for(const qkv_engine *e, qkv_stream stream) {
  if (e->ops->capturing(e->device, stream))
    return error_set(QKV_CAPTURING, "debug checks copy arrays to the host, which a capture forbids; capture with an "
                                    "engine that has no debug_checks (QKV_DEBUG_CHECKS)");
  return e->ops->synchronize(e->device);
}

qkv_status debug_check_attention(const qkv_op *op, const qkv_attention_args *args, const call_view *call,
                                 qkv_stream stream) {
  const qkv_engine *e = op->engine;
  const spec *s = op->spec->parsed;
  qkv_status status = wait_for(e, stream);
  for (int t = 0; t < TENSOR_PARAM && status == QKV_OK; t++)
    if (call_uses(s, t) && t != TENSOR_K && t != TENSOR_V)
      status = check_tensor(e, call_tensor_name(s, t), call->tensors[t]);
  for (int n = 0; n < s->nparams && status == QKV_OK; n++)
    if (s->params[n].rank > 0)
      status = check_tensor(e, s->params[n].name, call->tensors[TENSOR_PARAM + n]);
  if (status == QKV_OK && args->workspace && args->workspace_bytes) {
    status = e->ops->reaches(e->device, args->workspace, args->workspace_bytes);
    if (status != QKV_OK)
      return error_context(status, "debug checks: workspace: ");
  }
  return status == QKV_OK ? check_sequences(op, args, call) : status;
}

qkv_status debug_check_merge(const qkv_op *op, const qkv_merge_args *args, qkv_stream stream) {
  const qkv_engine *e = op->engine;
  qkv_status status = wait_for(e, stream);
  if (status == QKV_OK)
    status = check_tensor(e, "o", &args->o);
  if (status == QKV_OK && args->lse.data)
    status = check_tensor(e, "lse", &args->lse);
  for (int n = 0; n < args->count && status == QKV_OK; n++) {
    status = check_tensor(e, "o", &args->states[n].o);
    if (status == QKV_OK)
      status = check_tensor(e, "lse", &args->states[n].lse);
    if (status != QKV_OK)
      return error_context(status, "states[%d]: ", n);
  }
  return status;
}
