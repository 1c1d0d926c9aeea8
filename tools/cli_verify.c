/* cli_verify.c: judges the outputs of a run.
 *
 * The f64 reference is the definition of right but slow, so it sees as many of the first batch entries as it can do in
 * seconds: leaving out later entries changes nothing for the earlier ones, which leaving out rows or heads would. When
 * one entry is too much already, the textbook kernels of attention_naive on the same GPU stand in for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_problem.h"
#include "cli_sequences.h"

/* FLOPs of the reference that take a few seconds. */
#define REFERENCE_FLOPS 4e9

double verdict_tolerance(const problem *p) {
  static const double tolerances[] = {
      [QKV_F16] = 2e-3, [QKV_BF16] = 1e-2, [QKV_F32] = 1e-3, [QKV_E4M3] = 8e-2, [QKV_E5M2] = 0.15};
  /* Bytes of K and V are exact as they are; the weights are rounded as the queries. */
  const bool bytes = dtype_bytes(p->info.dtype_kv) == 1;
  double q = tolerances[p->info.dtype_q], kv = bytes ? 0 : tolerances[p->info.dtype_kv];
  return fmax(q, fmax(kv, tolerances[p->info.dtype_out]));
}

/* The first `batch` entries of a dense tensor. */
static qkv_tensor first_entries(qkv_tensor t, int64_t batch) {
  if (t.data)
    t.shape[0] = batch;
  return t;
}

/* Names the element at a flat index: "o[0, 5, 2, 7]". */
static void element_name(char out[96], const char *name, const qkv_tensor *t, int64_t flat) {
  int64_t index[5] = {0};
  for (int d = t->rank - 1; d >= 0; d--) {
    index[d] = flat % t->shape[d];
    flat /= t->shape[d];
  }
  size_t length = (size_t)snprintf(out, 96, "%.20s[", name);
  for (int d = 0; d < t->rank; d++)
    length += (size_t)snprintf(out + length, 96 - length, "%s%lld", d ? ", " : "", (long long)index[d]);
  snprintf(out + length, 96 - length, "]");
}

/* Judges one output against what is expected of it; the first fault of all outputs is kept. */
static void judge(verdict *v, const problem_tensor *t, const qkv_tensor *expected, double tolerance, bool scaled,
                  tensor_error *error) {
  if (!expected->data)
    return;
  *error = tensor_compare(&t->host, expected);
  double measured = scaled ? error->max_scaled : error->relative_l2;
  if (v->fault[0] || (!error->bad && measured <= tolerance))
    return;
  v->ok = false;
  char where[96];
  int64_t at = error->bad ? error->bad_at : error->max_at;
  element_name(where, t->name, expected, at);
  double got = element_get(t->host.data, t->host.dtype, at), want = element_get(expected->data, expected->dtype, at);
  if (error->bad)
    snprintf(v->fault, sizeof v->fault, "%s is %g, not %g (%lld such)", where, got, want, (long long)error->bad);
  else
    snprintf(v->fault, sizeof v->fault, "%s error %.3g is above %.3g; worst %s: %g, not %g",
             scaled ? "scaled" : "relative L2", measured, tolerance, where, got, want);
}

static void judge_all(problem *p, double tolerance, const qkv_tensor expected[SLOT_PARAMS], verdict *v) {
  v->checked = true;
  judge(v, &p->slots[SLOT_O], &expected[SLOT_O], tolerance, false, &v->o);
  judge(v, &p->slots[SLOT_LSE], &expected[SLOT_LSE], VERDICT_LSE_TOLERANCE, true, &v->lse);
  judge(v, &p->slots[SLOT_LSE_WITH_SINK], &expected[SLOT_LSE_WITH_SINK], VERDICT_LSE_TOLERANCE, true,
        &v->lse_with_sink);
}

/* Takes what the first `batch` sequences do not own out of the comparison: 0 on both sides. What nobody owns must not
 * have been written. */
static void clear_rest(problem *p, int64_t batch, qkv_tensor expected[SLOT_PARAMS], verdict *v) {
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK && sequences_any(p); slot++) {
    problem_tensor *t = &p->slots[slot];
    if (!t->host.data)
      continue;
    if (!sequences_clear(p, (problem_slot)slot, &t->host, batch)) {
      v->ok = false;
      snprintf(v->fault, sizeof v->fault, "%.20s: a row of no sequence was written", t->name);
    }
    sequences_clear(p, (problem_slot)slot, &expected[slot], batch);
  }
}

/* The call reduced to its first `batch` entries; outputs in `expected`, which has all entries of sequences. */
static int first_entries_of_call(problem *p, int64_t batch, qkv_tensor expected[SLOT_PARAMS],
                                 qkv_attention_args *args) {
  int code = EXIT_OK;
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK; slot++) {
    qkv_tensor t = sequences_any(p) ? p->slots[slot].host : first_entries(p->slots[slot].host, batch);
    if (!t.data)
      continue;
    expected[slot] = tensor_allocate(QKV_F32, t.rank, t.shape);
    code = expected[slot].data ? code : EXIT_FAILED;
  }
  args->o = expected[SLOT_O];
  args->lse = expected[SLOT_LSE];
  args->lse_with_sink = expected[SLOT_LSE_WITH_SINK];
  if (sequences_any(p))
    sequences_first(p, args, batch);
  else {
    args->q = first_entries(args->q, batch);
    args->k = first_entries(args->k, batch);
    args->v = first_entries(args->v, batch);
  }
  for (int n = 0; n < p->info.nparams && !code; n++)
    if (p->values[0][n].tensor.data)
      code = cli_exit_code(qkv_spec_param_shape(p->spec, n, batch, p->len_q, p->len_k, p->values[0][n].tensor.shape));
  return code;
}

static int expect_entries(problem *p, int64_t batch, qkv_tensor expected[SLOT_PARAMS]) {
  qkv_attention_args args = problem_args(p, false);
  int code = first_entries_of_call(p, batch, expected, &args);
  qkv_status status = code ? QKV_OUT_OF_MEMORY : qkv_reference(p->spec, &args);
  return status ? cli_fail("reference", status) : EXIT_OK;
}

static void judge_entries(problem *p, int64_t batch, double tolerance, qkv_tensor expected[SLOT_PARAMS], verdict *v) {
  v->ok = true;
  clear_rest(p, batch, expected, v);
  judge_all(p, tolerance, expected, v);
}

int problem_expect(problem *p, qkv_tensor expected[SLOT_PARAMS]) {
  return expect_entries(p, p->batch, expected);
}

void problem_judge(problem *p, double tolerance, qkv_tensor expected[SLOT_PARAMS], verdict *out) {
  memset(out, 0, sizeof *out);
  judge_entries(p, p->batch, tolerance, expected, out);
}

/* Against the f64 reference for the first `batch` entries. */
static int verify_reference(problem *p, int64_t batch, double tolerance, verdict *v) {
  qkv_tensor expected[SLOT_PARAMS] = {{0}};
  int code = expect_entries(p, batch, expected);
  if (!code)
    judge_entries(p, batch, tolerance, expected, v);
  if (batch == p->batch)
    snprintf(v->against, sizeof v->against, "f64 reference");
  else
    snprintf(v->against, sizeof v->against, "f64 reference of the first %lld of %lld batch entries", (long long)batch,
             (long long)p->batch);
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK; slot++)
    free(expected[slot].data);
  return code;
}

/* One call of attention_naive on the device, its outputs into p's slots. */
static qkv_status run_naive(problem *p) {
  qkv_limits limits = QKV_LIMITS_INIT;
  limits.batch = p->batch;
  limits.len_q = p->len_q;
  limits.len_k = p->len_k;
  limits.family = "attention_naive";
  qkv_op *op = NULL;
  qkv_attention_args args = problem_args(p, true);
  qkv_status status = qkv_prepare(p->engine, p->spec, &limits, &op);
  if (!status) {
    args.workspace_bytes = qkv_workspace_size(op);
    status = qkv_alloc(p->engine, args.workspace_bytes + 256, &args.workspace);
  }
  if (!status)
    status = qkv_attention(op, &args, NULL);
  if (!status)
    status = qkv_synchronize(p->engine);
  if (args.workspace)
    qkv_free(p->engine, args.workspace);
  qkv_op_free(op);
  return status;
}

/* Against attention_naive: keeps the outputs at hand aside, runs it into the same buffers, compares, puts them back. */
static int verify_naive(problem *p, double tolerance, verdict *v) {
  void *kept[SLOT_PARAMS] = {NULL};
  qkv_tensor expected[SLOT_PARAMS] = {{0}};
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK; slot++) {
    qkv_tensor *host = &p->slots[slot].host;
    if (!host->data)
      continue;
    expected[slot] = tensor_allocate(host->dtype, host->rank, host->shape);
    if (!expected[slot].data) {
      snprintf(v->against, sizeof v->against, "out of memory");
      return EXIT_OK;
    }
    kept[slot] = host->data;
    host->data = expected[slot].data; /* poison and results go here */
  }
  int code = problem_poison(p);
  qkv_status status = code ? QKV_OK : run_naive(p);
  if (!code && !status)
    code = problem_download(p);
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK; slot++)
    if (kept[slot])
      p->slots[slot].host.data = kept[slot];
  if (status)
    snprintf(v->against, sizeof v->against, "too large for the f64 reference, and attention_naive: %.60s",
             qkv_last_error(NULL));
  else if (!code) {
    judge_entries(p, p->batch, tolerance, expected, v);
    snprintf(v->against, sizeof v->against, "attention_naive on the device");
  }
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK; slot++)
    free(expected[slot].data);
  return code;
}

int problem_verify(problem *p, double tolerance, verdict *out) {
  memset(out, 0, sizeof *out);
  double one = p->batch ? problem_dense_flops(p) / (double)p->batch : 0;
  double entries = one > 0 ? REFERENCE_FLOPS / one : (double)p->batch;
  int64_t batch = entries >= (double)p->batch ? p->batch : (int64_t)entries;
  if (batch > 0 || !p->batch)
    return verify_reference(p, batch, tolerance, out);
  if (!p->emulated)
    return verify_naive(p, tolerance, out);
  snprintf(out->against, sizeof out->against, "too large for the f64 reference; choose smaller sizes");
  return EXIT_OK;
}
