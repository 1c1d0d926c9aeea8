/* qkv_append.c: new keys and values into the cache: the launch path, which like attention's only fills a struct. */
#include "append.h"

/* The kernel for the tensors; *out NULL after an error. */
static qkv_status choose_kernel(const qkv_op *op, const call_view *call, const op_kernel **out) {
  static const char *const names[] = {"q", "k", "v", "q_out", "k_cache", "v_cache"}; /* by number */
  *out = op->primary;
  for (int t = APPEND_Q; t <= APPEND_V; t++) {
    if (call->tensors[t]->rank == 0 || call_is_aligned(call->tensors[t], -1, 0)) /* rank 0: not part of the call */
      continue;
    *out = op->other;
    if (!op->other)
      return error_set(QKV_INVALID_ARGUMENT,
                       "%s: address and rows must be 16-byte aligned and the innermost stride 1, because the op was "
                       "prepared with limits.aligned_only",
                       names[t]);
    return QKV_OK;
  }
  return QKV_OK;
}

qkv_status qkv_append(const qkv_op *op, const qkv_append_args *args, qkv_stream stream) {
  append_call call = {0};
  const op_kernel *k;
  if (!op || !args)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", op ? "args" : "op");
  if (!op->appends)
    return error_set(QKV_INVALID_ARGUMENT,
                     "the op runs attention; qkv_append needs one prepared with limits.phase \"append\"");
  qkv_status status = append_check(op->spec->parsed, args, 0, &call);
  if (status != QKV_OK || call.view.empty)
    return status;
  const qkv_tensor own = {.data = op->frequencies};
  if (call.view.tensors[APPEND_FREQUENCIES]->rank == 0)
    call.view.tensors[APPEND_FREQUENCIES] = &own;
  status = choose_kernel(op, &call.view, &k);
  return status == QKV_OK ? call_launch(op, k, &call.view, NULL, NULL, false, stream) : status;
}
