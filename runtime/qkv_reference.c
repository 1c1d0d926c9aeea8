/* qkv_reference.c: the CPU's answer for a spec: binds the expression evaluator to reference.c. */
#include "qkv_internal.h"

double problem_read(void *user, int param, const int64_t *index) {
  const problem_eval *p = user;
  const expr_param *declared = &p->spec->params[param];
  const qkv_param_value *value = &p->args->params[param];
  if (declared->rank == 0)
    return declared->type == PARAM_I32 || declared->type == PARAM_BOOL ? value->value : (double)(float)value->value;
  const qkv_tensor *t = &value->tensor;
  int64_t offset = 0;
  for (int d = 0; d < declared->rank; d++) {
    int64_t at = index[d] >= t->shape[d] ? t->shape[d] - 1 : index[d];
    if (at < 0)
      at = 0;
    if (t->shape[d] == 0) /* nothing to read */
      return 0;
    offset += at * t->stride[d];
  }
  return tensor_load((const char *)t->data + offset * dtype_size(t->dtype), t->dtype);
}

double problem_value(const problem_eval *p, const expr *e, const reference_position *at, double s) {
  const expr_env env = {.symbol = {[EXPR_Q] = at->q,
                                   [EXPR_K] = at->k,
                                   [EXPR_I] = at->i,
                                   [EXPR_H] = at->h,
                                   [EXPR_HK] = at->hk,
                                   [EXPR_B] = at->b,
                                   [EXPR_LEN_Q] = at->len_q,
                                   [EXPR_LEN_K] = at->len_k,
                                   [EXPR_RESIDUE] = at->residue,
                                   [EXPR_DILATION] = at->dilation,
                                   [EXPR_ALL_Q] = at->all_q,
                                   [EXPR_ALL_K] = at->all_k},
                        .s = s,
                        .read = problem_read,
                        .user = (void *)(uintptr_t)p};
  return expr_eval(e, &env);
}

static double score(void *user, const reference_position *at, double s) {
  const problem_eval *p = user;
  return problem_value(p, p->spec->score, at, s);
}

static int mask(void *user, const reference_position *at) {
  const problem_eval *p = user;
  return problem_value(p, p->spec->mask, at, 0) != 0;
}

qkv_status qkv_reference(const qkv_spec *handle, const qkv_attention_args *args) {
  call_view call = {0};
  if (!handle || !args)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", handle ? "args" : "spec");
  const spec *s = handle->parsed;
  qkv_status status = call_check(s, NULL, args, 1, &call);
  if (status != QKV_OK || call.empty)
    return status;
  qkv_attention_args wanted = *args; /* outputs the spec does not name are ignored */
  if (!(s->outputs & OUTPUT_LSE))
    wanted.lse.data = NULL;
  if (!(s->outputs & OUTPUT_LSE_WITH_SINK))
    wanted.lse_with_sink.data = NULL;
  wanted.max_len_q = call.sizes[SIZE_LEN_Q];
  wanted.max_len_k = call.sizes[SIZE_LEN_K];
  problem_eval eval = {s, args};
  const reference_problem problem = {.args = &wanted,
                                     .layout = spec_sequence_layout(s),
                                     .heads_q = s->heads_q,
                                     .heads_kv = s->heads_kv,
                                     .scale = s->scale,
                                     .softcap = s->softcap,
                                     .bottom_right = s->align == ALIGN_BOTTOM_RIGHT,
                                     .has_sink = s->sink != SINK_NONE,
                                     .has_kv_scale = s->kv_scale != KV_SCALE_NONE,
                                     .score = s->score->op == EXPR_SYMBOL && s->score->symbol == EXPR_S ? NULL : score,
                                     .mask = s->mask->op == EXPR_CONST && s->mask->integer ? NULL : mask,
                                     .user = &eval};
  return reference_attention(&problem);
}
