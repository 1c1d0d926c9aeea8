/* tune_inputs.c: see tune_inputs.h. */
#include "tune_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_sequences.h"

/* FLOPs of a checked problem: of the f64 reference, of attention_naive on a GPU, of the emulator. */
#define REFERENCE_FLOPS 6e8
#define NAIVE_FLOPS 3e10
#define EMULATED_FLOPS 5e6

static int start_problem(problem *p, qkv_engine *engine, qkv_spec *spec) {
  memset(p, 0, sizeof *p);
  p->engine = engine;
  p->spec = spec;
  p->info.size = sizeof p->info;
  p->device.size = sizeof p->device;
  qkv_spec_get_info(spec, &p->info);
  qkv_status status = qkv_device_get_info(engine, &p->device);
  p->emulated = strcmp(p->device.kind, "cuda") != 0;
  return status ? cli_fail(NULL, status) : EXIT_OK;
}

bool tune_rows_aligned(const qkv_spec_info *s) {
  const int q = s->dim_qk * dtype_bytes(s->dtype_q), k = s->dim_qk * dtype_bytes(s->dtype_kv),
            v = s->dim_v * dtype_bytes(s->dtype_kv), o = s->dim_v * dtype_bytes(s->dtype_out);
  return (q | k | v | o) % 16 == 0;
}

qkv_limits tune_limits(const problem *p, const char *phase, const char *family, const char *schedule) {
  qkv_limits limits = QKV_LIMITS_INIT;
  limits.batch = p->batch;
  limits.len_q = p->len_q;
  limits.len_k = p->len_k;
  limits.phase = phase;
  limits.family = family;
  limits.schedule = schedule;
  limits.aligned_only = tune_rows_aligned(&p->info);
  return limits;
}

/* ---- Checks ---- */

/* Odd lengths that make about so many FLOPs. Prefill: more keys than queries; decode: the queries it has. */
static void choose_lengths(const problem *p, const char *phase, double flops, problem_request *r) {
  const bool decode = !strcmp(phase, "decode");
  const double pairs = flops / (2.0 * p->info.heads_q * (p->info.dim_qk + p->info.dim_v));
  r->batch = sequences_any(p) ? 5 : decode ? 3 : 1;
  if (decode) {
    const double keys = pairs / ((double)r->batch * (double)r->len_q);
    r->len_k = keys > 1117 ? 1117 : keys < 133 ? 133 : (int64_t)keys | 1;
    return;
  }
  const double queries = sqrt(pairs / 1.4 / (r->batch > 1 ? 2 : 1)); /* of mixed lengths few are full */
  r->len_q = queries > 651 ? 651 : queries < 35 ? 35 : (int64_t)queries | 1;
  r->len_k = (int64_t)(1.4 * (double)r->len_q) | 1;
}

/* One call into poisoned outputs, copied back. */
static qkv_status call_once(problem *p, const qkv_limits *limits) {
  qkv_op *op = NULL;
  qkv_attention_args args = problem_args(p, true);
  qkv_status status = qkv_prepare(p->engine, p->spec, limits, &op);
  if (!status && problem_poison(p))
    status = QKV_DEVICE_ERROR;
  if (!status && (args.workspace_bytes = qkv_workspace_size(op)) > 0)
    status = qkv_alloc(p->engine, args.workspace_bytes, &args.workspace);
  if (!status)
    status = qkv_attention(op, &args, NULL);
  if (!status)
    status = qkv_synchronize(p->engine);
  if (!status && problem_download(p))
    status = QKV_DEVICE_ERROR;
  if (args.workspace && status != QKV_DEVICE_ERROR)
    qkv_free(p->engine, args.workspace);
  qkv_op_free(op);
  return status;
}

/* attention_naive's answer as what is expected. False when it cannot be had. */
static bool expect_naive(tune_check *c) {
  problem *p = &c->p;
  const qkv_limits limits = tune_limits(p, NULL, "attention_naive", NULL);
  if (call_once(p, &limits) != QKV_OK)
    return false;
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK; slot++) {
    const qkv_tensor *host = &p->slots[slot].host;
    if (!host->data)
      continue;
    c->expected[slot] = tensor_allocate(host->dtype, host->rank, host->shape);
    if (!c->expected[slot].data)
      return false;
    memcpy(c->expected[slot].data, host->data, (size_t)tensor_count(host) * (size_t)dtype_bytes(host->dtype));
  }
  snprintf(c->against, sizeof c->against, "attention_naive at batch %lld, q %lld, kv %lld", (long long)p->batch,
           (long long)p->len_q, (long long)p->len_k);
  return true;
}

static int open_check(tune_check *c, qkv_engine *engine, qkv_spec *spec, const char *phase, int64_t len_q,
                      const cli_list *params, double flops) {
  memset(c, 0, sizeof *c);
  int code = start_problem(&c->p, engine, spec);
  problem_request request = {.batch = 1, .len_q = len_q, .len_k = 1, .seed = 7};
  request.params = *params;
  choose_lengths(&c->p, phase, flops, &request);
  if (!code)
    code = problem_size(&c->p, &request);
  if (!code)
    code = problem_fill(&c->p, &request);
  return code ? code : problem_upload(&c->p, false);
}

int tune_checks_open(qkv_engine *engine, qkv_spec *spec, const char *phase, int64_t len_q, const cli_list *params,
                     tune_check checks[TUNE_CHECKS], int *count) {
  qkv_device_info device = {.size = sizeof device};
  qkv_status status = qkv_device_get_info(engine, &device);
  const bool emulated = status || strcmp(device.kind, "cuda") != 0;
  *count = 1;
  int code = open_check(&checks[0], engine, spec, phase, len_q, params, emulated ? EMULATED_FLOPS : REFERENCE_FLOPS);
  problem *p = &checks[0].p;
  snprintf(checks[0].against, sizeof checks[0].against, "f64 reference at batch %lld, q %lld, kv %lld",
           (long long)p->batch, (long long)p->len_q, (long long)p->len_k);
  if (!code)
    code = problem_expect(p, checks[0].expected);
  if (code || emulated || !strcmp(phase, "decode"))
    return code;
  *count = 2;
  if (open_check(&checks[1], engine, spec, phase, len_q, params, NAIVE_FLOPS) || !expect_naive(&checks[1])) {
    tune_checks_close(&checks[1], 1);
    *count = 1;
  }
  return EXIT_OK;
}

void tune_checks_close(tune_check *checks, int count) {
  for (int n = 0; n < count; n++) {
    for (int slot = 0; slot < SLOT_PARAMS; slot++)
      free(checks[n].expected[slot].data);
    problem_clear(&checks[n].p);
    memset(&checks[n], 0, sizeof checks[n]);
  }
}

void tune_check_run(tune_check *c, const qkv_limits *choice, qkv_status *status, verdict *judged) {
  const qkv_limits limits = tune_limits(&c->p, choice->phase, choice->family, choice->schedule);
  memset(judged, 0, sizeof *judged);
  *status = call_once(&c->p, &limits);
  if (*status == QKV_OK)
    problem_judge(&c->p, verdict_tolerance(&c->p), c->expected, judged);
}

/* ---- Workloads ---- */

enum { MOST_COPIES = 128, BLOCK = 500009 };
#define LARGE 8 /* times the L2 cache: of such a copy nothing is left in it when the next call begins */

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

/* A tensor on the device that no table lists: memory of its own, filled again and again with a block of numbers. */
static qkv_status add_tensor(tune_inputs *in, problem_slot slot, qkv_dtype dtype, const void *block, qkv_tensor *out) {
  int64_t shape[4];
  const int rank = problem_shape(&in->p, slot, shape);
  void *memory = NULL;
  *out = qkv_tensor_dense(NULL, dtype, rank, shape);
  const size_t bytes = (size_t)tensor_count(out) * (size_t)dtype_bytes(dtype),
               block_bytes = (size_t)BLOCK * (size_t)dtype_bytes(dtype);
  qkv_status status = qkv_alloc(in->p.engine, bytes + 16, &memory);
  if (status)
    return status;
  in->memory[in->pieces++] = memory;
  out->data = memory;
  size_t filled = block ? least(bytes, block_bytes) : bytes;
  if (block)
    status = qkv_copy_to_device(in->p.engine, memory, block, filled);
  for (; filled < bytes && !status; filled += least(filled, bytes - filled)) /* doubled on the device, not by its bus */
    status = qkv_copy_on_device(in->p.engine, (char *)memory + filled, memory, least(filled, bytes - filled));
  return status;
}

static qkv_status add_copy(tune_inputs *in, const void *queries, const void *keys, qkv_attention_args *args) {
  const qkv_spec_info *s = &in->p.info;
  *args = problem_args(&in->p, true);
  qkv_status status = add_tensor(in, SLOT_Q, s->dtype_q, queries, &args->q);
  if (!status)
    status = add_tensor(in, SLOT_K, s->dtype_kv, keys, &args->k);
  if (!status)
    status = add_tensor(in, SLOT_V, s->dtype_kv, keys, &args->v);
  if (!status)
    status = add_tensor(in, SLOT_O, s->dtype_out, NULL, &args->o);
  if (!status && s->wants_lse)
    status = add_tensor(in, SLOT_LSE, QKV_F32, NULL, &args->lse);
  if (!status && s->wants_lse_with_sink)
    status = add_tensor(in, SLOT_LSE_WITH_SINK, QKV_F32, NULL, &args->lse_with_sink);
  return status;
}

static double slot_bytes(const problem *p, problem_slot slot, qkv_dtype dtype) {
  int64_t shape[4];
  const int rank = problem_shape(p, slot, shape);
  double bytes = dtype_bytes(dtype);
  for (int d = 0; d < rank; d++)
    bytes *= (double)shape[d];
  return bytes;
}

/* Whether the cache is to be cold, and how many copies make it so. */
static void choose_copies(tune_inputs *in, const char *phase) {
  const qkv_spec_info *s = &in->p.info;
  const double inputs = slot_bytes(&in->p, SLOT_Q, s->dtype_q) + slot_bytes(&in->p, SLOT_K, s->dtype_kv) +
                        slot_bytes(&in->p, SLOT_V, s->dtype_kv),
               copy = inputs + slot_bytes(&in->p, SLOT_O, s->dtype_out), l2 = (double)in->p.device.l2_bytes,
               memory = (double)in->p.device.memory_bytes;
  in->cold = !strcmp(phase, "decode") || inputs > l2 / 2;
  in->copies = copy < LARGE * l2 ? 2 : 1;
  if (in->p.emulated) /* wall time of the emulation knows no cache */
    in->cold = false;
  else if (in->cold && 2 * copy < 2 * l2)
    in->copies = (int)ceil(2 * l2 / copy);
  if (in->copies > MOST_COPIES)
    in->copies = MOST_COPIES;
  while (in->copies > 1 && in->copies * copy > memory / 3)
    in->copies--;
}

static void *random_block(qkv_dtype dtype, uint64_t seed) {
  qkv_tensor block = tensor_allocate(dtype, 1, (int64_t[]){BLOCK});
  if (block.data)
    tensor_fill_random(&block, seed);
  return block.data;
}

int tune_inputs_open(qkv_engine *engine, qkv_spec *spec, const char *phase, int64_t batch, int64_t len_q, int64_t len_k,
                     const cli_list *params, tune_inputs *in) {
  enum { PIECES = 6 };
  memset(in, 0, sizeof *in);
  int code = start_problem(&in->p, engine, spec);
  problem_request request = {.batch = batch, .len_q = len_q, .len_k = len_k, .seed = 11, .no_tokens = 1};
  request.params = *params;
  request.lengths = sequences_any(&in->p) ? "full" : NULL;
  if (!code)
    code = problem_size(&in->p, &request);
  if (!code)
    code = problem_fill(&in->p, &request);
  if (!code)
    code = problem_upload(&in->p, false);
  if (code)
    return code;
  choose_copies(in, phase);
  void *queries = random_block(in->p.info.dtype_q, 1), *keys = random_block(in->p.info.dtype_kv, 2);
  in->args = calloc((size_t)in->copies, sizeof *in->args);
  in->memory = calloc((size_t)in->copies * PIECES, sizeof *in->memory);
  qkv_status status = queries && keys && in->args && in->memory ? QKV_OK : QKV_OUT_OF_MEMORY;
  for (int n = 0; n < in->copies && !status; n++)
    status = add_copy(in, queries, keys, &in->args[n]);
  free(queries);
  free(keys);
  return status ? cli_fail("inputs", status) : EXIT_OK;
}

void tune_inputs_close(tune_inputs *in) {
  for (int n = 0; n < in->pieces; n++)
    qkv_free(in->p.engine, in->memory[n]);
  free(in->memory);
  free(in->args);
  problem_clear(&in->p);
  memset(in, 0, sizeof *in);
}
