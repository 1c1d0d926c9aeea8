/* solve.c: computes a case, on the engine's device or by the f64 reference.
 *
 * In: a case and the values of its inputs. Out: the outputs in canonical order, or the step that failed. Without an
 * engine the reference stands in for the device, with the case's real layouts and dtypes: that tests the runner itself.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

/* All memory of one call. */
typedef struct memory {
  guarded q, k, v, o, lse, lse_with_sink, sink, k_scale, v_scale, params[MAX_PARAMS];
  sequence_arrays arrays;
  guarded *all[14 + MAX_PARAMS];
  int count;
} memory;

static void memory_add(memory *m, guarded *i) {
  m->all[m->count++] = i;
}

/* One scale for all heads has a stride of 0. */
static void add_scales(memory *m, guarded *to, const char *name, const test_case *c, const inputs *in,
                       const float *scales, int guard, bool plain) {
  const int64_t count = c->kv_scale == SCALES_PER_TENSOR ? 1 : in->hk;
  if (scales == NULL)
    return;
  guarded_make_plain(to, name, QKV_F32, guard, false, 1, &count, !plain && c->layout_k != 0 ? 2 : 1);
  guarded_store(to, scales);
  if (c->kv_scale == SCALES_PER_TENSOR)
    to->view.shape[0] = in->hk, to->view.stride[0] = 0;
  memory_add(m, to);
}

/* `plain`: contiguous and o in f32, as the reference wants them. */
static void memory_make(memory *m, const test_case *c, const inputs *in, bool plain) {
  *m = (memory){.count = 0};
  int none = plain ? GUARD_NONE : c->guard;
  qkv_dtype kv = case_dtype_kv(c);
  const int q = plain ? 0 : c->layout_q, k = plain ? 0 : c->layout_k, v = plain ? 0 : c->layout_v,
            o = plain ? 0 : c->layout_o;
  sequences_make_q(&m->q, "q", (qkv_dtype)c->dtype, q, c, in, none, false, in->dim, in->q);
  sequences_make_k(&m->k, "k", kv, k, c, in, none, in->dim, in->k);
  sequences_make_k(&m->v, "v", kv, v, c, in, none, in->dimv, in->v);
  sequences_make_q(&m->o, "o", plain ? QKV_F32 : case_dtype_out(c), o, c, in, none, true, in->dimv, NULL);
  memory_add(m, &m->q), memory_add(m, &m->k), memory_add(m, &m->v), memory_add(m, &m->o);
  /* The small tensors are spread out when the large ones are not contiguous, so that their strides matter too. */
  int spread = !plain && c->layout_o != 0 ? 3 : 1;
  if (c->outputs != OUTPUTS_O) {
    sequences_make_lse(&m->lse, "lse", c, in, none, spread);
    memory_add(m, &m->lse);
  }
  if (c->outputs == OUTPUTS_ALL && c->sink != SINK_ABSENT) {
    sequences_make_lse(&m->lse_with_sink, "lse_with_sink", c, in, none, spread);
    memory_add(m, &m->lse_with_sink);
  }
  sequences_make_arrays(&m->arrays, c, in, none);
  guarded *const arrays[] = {&m->arrays.cu_q, &m->arrays.cu_k, &m->arrays.lengths, &m->arrays.table, &m->arrays.indptr};
  for (int n = 0; n < 5; n++)
    if (arrays[n]->before != NULL)
      memory_add(m, arrays[n]);
  if (in->sink != NULL) {
    guarded_make_plain(&m->sink, "sink", QKV_F32, none, false, 1, &in->hq, !plain && c->layout_q != 0 ? 2 : 1);
    guarded_store(&m->sink, in->sink);
    memory_add(m, &m->sink);
  }
  add_scales(m, &m->k_scale, "k_scale", c, in, in->k_scale, none, plain);
  add_scales(m, &m->v_scale, "v_scale", c, in, in->v_scale, none, plain);
  for (int n = 0; n < in->nparams; n++) {
    const input_param *p = &in->params[n];
    if (p->rule->rank == 0)
      continue;
    guarded_make_plain(&m->params[n], p->rule->name, p->rule->dtype, none, false, p->rule->rank, p->shape,
                       !plain && c->layout_k != 0 ? 2 : 1);
    guarded_store(&m->params[n], p->data);
    memory_add(m, &m->params[n]);
  }
}

static void memory_free(memory *m) {
  for (int n = 0; n < m->count; n++)
    guarded_free(m->all[n]);
}

/* The view of a tensor where it is: on the device, or on the host in `after`. */
static qkv_tensor where(const guarded *m) {
  if (m->bytes == 0 && m->before == NULL)
    return (qkv_tensor){0};
  return guarded_view(m, m->device != NULL ? m->device : m->after);
}

static qkv_attention_args make_args(const memory *m, const test_case *c, const inputs *in,
                                    qkv_param_value values[MAX_PARAMS]) {
  qkv_attention_args args = QKV_ATTENTION_ARGS_INIT;
  args.q = where(&m->q), args.k = where(&m->k), args.v = where(&m->v), args.o = where(&m->o);
  args.lse = where(&m->lse), args.lse_with_sink = where(&m->lse_with_sink), args.sink = where(&m->sink);
  args.k_scale = where(&m->k_scale), args.v_scale = where(&m->v_scale);
  for (int n = 0; n < in->nparams; n++)
    values[n] = in->params[n].rule->rank == 0 ? (qkv_param_value){.value = (double)in->params[n].data[0]}
                                              : (qkv_param_value){.tensor = where(&m->params[n])};
  args.params = in->nparams > 0 ? values : NULL;
  args.nparams = in->nparams;
  args.cu_seqlens_q = where(&m->arrays.cu_q), args.cu_seqlens_k = where(&m->arrays.cu_k);
  args.seqlens_k = where(&m->arrays.lengths);
  args.page_table = where(&m->arrays.table), args.page_indptr = where(&m->arrays.indptr);
  sequences_set_maxima(&args, c, in);
  return args;
}

static bool failed(result *r, const char *stage, qkv_status status, const qkv_engine *engine) {
  if (status == QKV_OK)
    return false;
  r->status = status;
  r->stage = stage;
  snprintf(r->message, MESSAGE_SIZE, "%s: %s: %s", stage, qkv_status_name(status), qkv_last_error(engine));
  return true;
}

/* ---- Results ---- */

/* dim 0: an lse. */
static float *load_output(guarded *m, const test_case *c, const inputs *in, int64_t dim, int64_t count, result *out) {
  if (m->before == NULL)
    return NULL;
  float *values = must_alloc((size_t)count * sizeof(float));
  int64_t unwritten = dim ? sequences_load(m, c, in, dim, values) : sequences_load_lse(m, c, in, values);
  if (unwritten < 0 && out->message[0] == '\0')
    snprintf(out->message, MESSAGE_SIZE, "%s: a row of no sequence was written", m->name);
  else if (unwritten > 0 && out->message[0] == '\0')
    snprintf(out->message, MESSAGE_SIZE, "%s: %" PRId64 " of %" PRId64 " elements were not written", m->name, unwritten,
             count);
  return values;
}

/* Reads the outputs and checks what surrounds them. */
static bool collect(memory *m, const test_case *c, const inputs *in, result *out) {
  out->o_count = in->b * in->lq * in->hq * in->dimv;
  out->lse_count = in->b * in->hq * in->lq;
  out->o = load_output(&m->o, c, in, in->dimv, out->o_count, out);
  out->lse = load_output(&m->lse, c, in, 0, out->lse_count, out);
  out->lse_with_sink = load_output(&m->lse_with_sink, c, in, 0, out->lse_count, out);
  for (int n = 0; n < m->count && out->message[0] == '\0'; n++)
    guarded_intact(m->all[n], out->message);
  return out->message[0] == '\0';
}

void result_free(result *r) {
  free(r->o);
  free(r->lse);
  free(r->lse_with_sink);
  *r = (result){0};
}

/* ---- The reference ---- */

/* Changes a case so that the result is wrong in one way. */
static void plant(test_case *c) {
  char text[TEXT_FIELD];
  const char *mask = c->mask[0] ? c->mask : "true", *score = c->score[0] ? c->score : "s";
  switch ((fault_kind)c->fault) {
  case FAULT_LAST_KEY:
    snprintf(text, sizeof text, "(%.100s) and k < len_k - 1", mask);
    strcpy(c->mask, text);
    break;
  case FAULT_MASK:
    snprintf(text, sizeof text, "(%.100s) or k == q + 1", mask);
    strcpy(c->mask, text);
    break;
  case FAULT_SCORE:
    snprintf(text, sizeof text, "(%.100s) + where(k %% 7 == 0, 0.02, 0)", score);
    strcpy(c->score, text);
    break;
  case FAULT_SOFTCAP:
    snprintf(c->softcap, TEXT_FIELD, "5.25");
    break;
  case FAULT_ALIGN:
    c->top_left = !c->top_left;
    break;
  case FAULT_SINK:
    c->sink = SINK_ABSENT;
    break;
  case FAULT_SCALES:
    c->kv_scale = SCALES_ABSENT;
    break;
  default:
    break;
  }
}

static void swap_rows(float *a, float *b, int64_t count) {
  for (int64_t n = 0; n < count; n++) {
    float x = a[n];
    a[n] = b[n];
    b[n] = x;
  }
}

static void plant_in_values(const test_case *c, inputs *in) {
  for (int64_t b = 0; b < in->b; b++) {
    if (c->fault == FAULT_VALUE_ROWS && in->lk > 1)
      swap_rows(in->v + inputs_v_at(in, b, in->lk - 1, 0), in->v + inputs_v_at(in, b, in->lk - 2, 0),
                in->hk * in->dimv);
    for (int64_t t = 0; t < in->lk && c->fault == FAULT_HEADS && in->hk > 1; t++)
      swap_rows(in->v + inputs_v_at(in, b, t, 0), in->v + inputs_v_at(in, b, t, 1), in->dimv);
  }
}

static bool run_reference(const test_case *c, const inputs *in, bool plain, result *out) {
  char text[SPEC_TEXT];
  qkv_spec *spec = NULL;
  *out = (result){0};
  spec_build(c, text);
  if (failed(out, "spec", qkv_spec_check(text, 0, &spec), NULL))
    return false;
  memory m;
  memory_make(&m, c, in, plain);
  out->aligned = guarded_aligned(&m.q) && guarded_aligned(&m.k) && guarded_aligned(&m.v) && guarded_aligned(&m.o);
  for (int n = 0; n < m.count; n++) {
    m.all[n]->after = must_alloc(m.all[n]->bytes);
    memcpy(m.all[n]->after, m.all[n]->before, m.all[n]->bytes);
  }
  qkv_param_value values[MAX_PARAMS];
  qkv_attention_args args = make_args(&m, c, in, values);
  bool ok = !failed(out, "reference", qkv_reference(spec, &args), NULL);
  if (ok && !plain && c->fault == FAULT_UNWRITTEN)
    memset(guarded_view(&m.o, m.o.after).data, 0xff, 2);
  if (ok && !plain && c->fault == FAULT_GUARD)
    m.o.after[m.o.bytes - 1] = 0;
  ok = ok && collect(&m, c, in, out);
  memory_free(&m);
  qkv_spec_free(spec);
  return ok;
}

bool solve_reference(const test_case *c, const inputs *in, result *out) {
  return run_reference(c, in, true, out);
}

static bool solve_stand_in(const test_case *c, const inputs *in, result *out) {
  test_case wrong = *c;
  inputs values;
  plant(&wrong);
  inputs_copy(in, &values);
  plant_in_values(c, &values);
  bool ok = run_reference(&wrong, &values, false, out);
  inputs_free(&values);
  return ok;
}

/* ---- The device ---- */

static void drop_op(cached_op *e) {
  qkv_op_free(e->op);
  qkv_spec_free(e->spec);
  free(e->key);
  *e = (cached_op){0};
}

void session_close(session *s) {
  for (int n = 0; n < OP_CACHE; n++)
    if (s->ops[n].key != NULL)
      drop_op(&s->ops[n]);
}

/* The loaded kernels of a case, from this worker's cache or new. NULL after a failure. */
static const qkv_op *find_op(session *s, const test_case *c, bool aligned, result *out) {
  char text[SPEC_TEXT], key[SPEC_TEXT + 1024];
  const char *family = c->family[0] ? c->family : s->family;
  spec_build(c, text);
  qkv_limits limits = QKV_LIMITS_INIT;
  limits.aligned_only = aligned;
  limits.family = family;
  limits.schedule = c->sched[0] ? c->sched : NULL;
  if (c->dtype == QKV_F32 || (family != NULL && strstr(family, "naive") != NULL)) { /* scores in a workspace */
    limits.batch = c->b > 0 ? c->b : 1, limits.len_q = c->lq > 0 ? c->lq : 1, limits.len_k = c->lk > 0 ? c->lk : 1;
  } else if (c->mask[0]) { /* perhaps a map of tiles; the same limits for most cases, to compile less */
    limits.batch = c->b < 8 ? 8 : c->b;
    limits.len_q = c->lq < 2048 ? 2048 : c->lq;
    limits.len_k = c->lk < 2048 ? 2048 : c->lk;
  }
  snprintf(key, sizeof key, "%s|%s|%s|%d|%" PRId64 " %" PRId64 " %" PRId64, text, family ? family : "", c->sched,
           aligned, limits.batch, limits.len_q, limits.len_k);
  for (int n = 0; n < OP_CACHE; n++)
    if (s->ops[n].key != NULL && strcmp(s->ops[n].key, key) == 0)
      return s->ops[n].op;

  cached_op *e = &s->ops[s->next_op];
  s->next_op = (s->next_op + 1) % OP_CACHE;
  if (e->key != NULL)
    drop_op(e);
  qkv_spec *spec = NULL;
  qkv_op *op = NULL;
  if (failed(out, "spec", qkv_spec_load(s->engine, text, &spec), s->engine))
    return NULL;
  if (failed(out, "prepare", qkv_prepare(s->engine, spec, &limits, &op), s->engine)) {
    qkv_spec_free(spec);
    return NULL;
  }
  *e = (cached_op){.key = strdup(key), .spec = spec, .op = op};
  return op;
}

/* Checks that the library gives a parameter the extents that the rule has. */
static bool params_agree(const session *s, const test_case *c, const inputs *in, const qkv_op *op, result *out) {
  const qkv_spec *spec = NULL;
  for (int n = 0; n < OP_CACHE; n++)
    if (s->ops[n].op == op)
      spec = s->ops[n].spec;
  for (int n = 0; n < in->nparams; n++) {
    int64_t shape[4] = {0};
    if (failed(out, "parameter shape", qkv_spec_param_shape(spec, n, c->b, c->lq, c->lk, shape), s->engine))
      return false;
    for (int d = 0; d < in->params[n].rule->rank; d++)
      if (shape[d] != in->params[n].shape[d]) {
        snprintf(out->message, MESSAGE_SIZE, "parameter %s: extent %d is %" PRId64 ", not %" PRId64,
                 in->params[n].rule->name, d, shape[d], in->params[n].shape[d]);
        return false;
      }
  }
  return true;
}

/* Fills the device's copies of all tensors, outputs with poison. */
static bool upload(session *s, memory *m, result *out) {
  for (int n = 0; n < m->count; n++)
    if (failed(out, "copy", qkv_copy_to_device(s->engine, m->all[n]->device, m->all[n]->before, m->all[n]->bytes),
               s->engine))
      return false;
  return true;
}

/* A call that plans; and another one that reuses the plan, if that is what counts. */
static bool call(session *s, const qkv_op *op, memory *m, qkv_attention_args *args, result *out) {
  for (args->reuse_plan = 0; args->reuse_plan <= s->reuses; args->reuse_plan++)
    if (!upload(s, m, out) || failed(out, "launch", qkv_attention(op, args, NULL), s->engine) ||
        failed(out, "run", qkv_synchronize(s->engine), s->engine))
      return false;
  return true;
}

/* Copies in, launches, waits, copies back. */
static bool launch(session *s, const test_case *c, const qkv_op *op, memory *m, const inputs *in, result *out) {
  for (int n = 0; n < m->count; n++) {
    guarded *i = m->all[n];
    if (failed(out, "allocation", qkv_alloc(s->engine, i->bytes > 0 ? i->bytes : 1, &i->device), s->engine))
      return false;
  }
  qkv_param_value values[MAX_PARAMS];
  qkv_attention_args args = make_args(m, c, in, values);
  args.workspace_bytes = qkv_workspace_size(op);
  if (args.workspace_bytes > 0) {
    if (failed(out, "allocation", qkv_alloc(s->engine, args.workspace_bytes, &args.workspace), s->engine))
      return false;
    void *poison = must_alloc(args.workspace_bytes);
    memset(poison, 0xff, args.workspace_bytes);
    qkv_status status = qkv_copy_to_device(s->engine, args.workspace, poison, args.workspace_bytes);
    free(poison);
    if (failed(out, "copy", status, s->engine))
      return false;
  }
  bool ok = call(s, op, m, &args, out);
  for (int n = 0; n < m->count && ok; n++) {
    guarded *i = m->all[n];
    i->after = must_alloc(i->bytes);
    ok = !failed(out, "copy", qkv_copy_to_host(s->engine, i->after, i->device, i->bytes), s->engine);
  }
  if (args.workspace != NULL)
    qkv_free(s->engine, args.workspace);
  return ok;
}

bool solve(session *s, const test_case *c, const inputs *in, result *out) {
  *out = (result){0};
  if (s->engine == NULL)
    return solve_stand_in(c, in, out);
  memory m;
  memory_make(&m, c, in, false);
  bool aligned = guarded_aligned(&m.q) && guarded_aligned(&m.k) && guarded_aligned(&m.v) && guarded_aligned(&m.o);
  const qkv_op *op = find_op(s, c, aligned, out);
  bool ok = op != NULL && params_agree(s, c, in, op, out);
  if (ok) {
    pthread_mutex_lock(s->device_lock);
    ok = launch(s, c, op, &m, in, out);
    for (int n = 0; n < m.count; n++)
      if (m.all[n]->device != NULL)
        qkv_free(s->engine, m.all[n]->device);
    pthread_mutex_unlock(s->device_lock);
  }
  ok = ok && collect(&m, c, in, out);
  out->aligned = aligned;
  memory_free(&m);
  return ok;
}
