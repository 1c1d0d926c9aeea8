/* qkv_dispatch.c: which kernels an op holds for calls of many and of few queries, and which of them a call takes.
 *
 * A call takes one by its shape alone: the greatest number of queries that it declares, so that nothing on the host
 * depends on lengths and a captured graph replays what it captured. docs/design/0008-dispatch.md has the reasons. */
#include <stdio.h>
#include <string.h>

#include "qkv_tuned_internal.h"
#include "tensor_map.h"

enum {
  FEW_ROWS = 64 /* queries times heads of a KV head: the most that one tile of decode's default schedules has */
};

int64_t dispatch_few(const spec *s) {
  const int64_t queries = FEW_ROWS / (s->heads_q / s->heads_kv);
  return queries < 1 ? 1 : queries < GEN_DECODE_LEN_Q ? queries : GEN_DECODE_LEN_Q;
}

/* The declared workload with the most queries that are still few; NULL: none. */
static const spec_workload *few_workload(const spec *s) {
  const spec_workload *found = NULL;
  for (int n = 0; n < s->nworkloads; n++) {
    const spec_workload *w = &s->workloads[n];
    if (w->len_q >= 1 && w->len_q <= dispatch_few(s) && (!found || w->len_q > found->len_q))
      found = w;
  }
  return found;
}

/* Whether calls of few queries are to be expected of an op, and why. */
static bool expects_few(const spec *s, const gen_request *request, char reason[DISPATCH_REASON]) {
  const spec_workload *w = few_workload(s);
  const long long few = (long long)dispatch_few(s);
  const bool grows = s->layout_kv == LAYOUT_PADDED || s->layout_kv == LAYOUT_PAGED;
  const char *asked = request->phase      ? "a phase"
                      : request->family   ? "a family"
                      : request->schedule ? "a schedule"
                                          : NULL;
  if (asked)
    return snprintf(reason, DISPATCH_REASON, "%s was asked for: its kernels take all calls", asked), false;
  if (gen_is_decode(request))
    return snprintf(reason, DISPATCH_REASON, "at most %lld queries were declared", (long long)request->len_q), false;
  if (s->deterministic == DETERMINISTIC_BATCH)
    return snprintf(reason, DISPATCH_REASON, "deterministic: batch: which kernel runs must not depend on how many "
                                             "queries others of the batch have"), false;
  if (w)
    return snprintf(reason, DISPATCH_REASON, "workload %s has %lld quer%s", w->name, (long long)w->len_q,
                    w->len_q == 1 ? "y" : "ies"), true;
  if (s->nworkloads)
    return snprintf(reason, DISPATCH_REASON, "no workload has 1 to %lld queries", few), false;
  if (grows)
    return snprintf(reason, DISPATCH_REASON, "layout.kv: %s: keys are kept, and queries come one by one",
                    spec_layout_name(s->layout_kv)), true;
  return snprintf(reason, DISPATCH_REASON, "layout.kv: %s, and no workload says that calls have 1 to %lld queries",
                  spec_layout_name(s->layout_kv), few), false;
}

bool dispatch_few_request(const spec *s, const gen_request *request, gen_request *few, char reason[DISPATCH_REASON]) {
  if (!expects_few(s, request, reason))
    return false;
  const spec_workload *w = few_workload(s);
  *few = *request;
  few->phase = "decode";
  few->dedicated = true;
  few->len_q = w ? w->len_q : 1; /* the spec's, not the request's */
  few->unaligned = false;
  few->reads = NULL;
  return true;
}

qkv_status dispatch_render_decode(qkv_engine *e, const spec *s, const gen_request *request, bool for_device,
                                  gen_kernel **out, char reason[DISPATCH_REASON], tuned_choice *choice) {
  gen_request few;
  *out = NULL;
  if (!dispatch_few_request(s, request, &few, reason))
    return QKV_OK;
  qkv_status status = tuned_render(e, s, &few, for_device, out, choice);
  if (status == QKV_UNSUPPORTED) {
    snprintf(reason, DISPATCH_REASON, "%s", error_message());
    return QKV_OK;
  }
  return status;
}

qkv_status dispatch_render_unaligned(qkv_engine *e, const spec *s, const gen_request *request,
                                     const gen_kernel *aligned, gen_kernel **out) {
  gen_request other = *request;
  other.unaligned = true;
  other.family = aligned->manifest.family;
  qkv_status status = render_kernel(e, s, &other, out);
  if (status != QKV_UNSUPPORTED)
    return status;
  other.family = other.schedule = NULL; /* the family takes aligned tensors only: the next one serves the others */
  return render_kernel(e, s, &other, out);
}

void dispatch_describe(const spec *s, text *out) {
  const spec_workload *w = few_workload(s);
  text_printf(out, "workloads %d few %lld\n", s->nworkloads > 0, w ? (long long)w->len_q : 0LL);
}

int call_is_aligned(const qkv_tensor *t, int token_axis, int has_maps) {
  const int size = dtype_size(t->dtype), dim = t->rank - 1;
  if ((uintptr_t)t->data % 16 || (t->stride[dim] != 1 && t->shape[dim] > 1))
    return 0;
  for (int d = 0; d < dim; d++)
    if (t->shape[d] > 1 || d == token_axis) {
      if ((t->stride[d] % 16) * size % 16)
        return 0;
      if (has_maps && (t->stride[d] < 0 || t->stride[d] >= TENSOR_MAP_STRIDE_LIMIT / size))
        return 0;
    }
  return 1;
}

/* The first of q k v o that the kernel cannot take; -1: none. */
static int misaligned(const qkv_op *op, const op_kernel *k, const call_view *call) {
  for (int t = TENSOR_Q; k->manifest.aligned16 && t <= TENSOR_O; t++)
    if (!call_is_aligned(call->tensors[t], call_token_axis(op->spec->parsed, t), k->has_maps))
      return t;
  return -1;
}

qkv_status dispatch_choose(const qkv_op *op, const call_view *call, const op_kernel **out) {
  const spec *s = op->spec->parsed;
  if (op->few && call->sizes[SIZE_LEN_Q] <= dispatch_few(s) && misaligned(op, op->few, call) < 0) {
    *out = op->few;
    return QKV_OK;
  }
  const int tensor = misaligned(op, op->primary, call);
  *out = tensor < 0 ? op->primary : op->other;
  return *out ? QKV_OK
              : error_set(QKV_INVALID_ARGUMENT,
                          "%s: address and rows must be 16-byte aligned and the innermost stride 1, because the op was "
                          "prepared with limits.aligned_only",
                          call_tensor_name(s, tensor));
}
