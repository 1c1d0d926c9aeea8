/* bench_measure.c: one workload from a spec to a time: kernel, inputs, samples. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli_kernel.h"
#include "qkv_tune.h"
#include "tune_inputs.h"
#include "tune_stats.h"

/* ---- The device ---- */

double bench_peak(const qkv_device_info *device) {
  /* FLOPs a clock and SM of dense products of f16 or bf16 with sums in f32: NVIDIA's data sheets, rate over SMs and
   * boost clock. Compute capabilities 8.6 and 8.9: of the data-centre boards; GeForce ones have half of it. */
  static const struct {
    int major, minor;
    double flops;
  } table[] = {{8, 0, 2048}, {8, 6, 1024}, {8, 9, 1024}, {9, 0, 4096}, {10, 0, 8192}, {10, 3, 8192}, {12, 0, 1024}};
  for (size_t n = 0; n < sizeof table / sizeof *table; n++)
    if (table[n].major == device->compute_major && table[n].minor == device->compute_minor)
      return table[n].flops * device->sm_count * device->clock_hz;
  return NAN;
}

static void describe(bench_row *row, const problem *p, const bench_case *what) {
  const qkv_spec_info *s = &p->info;
  const bool mixed = s->dtype_kv != s->dtype_q;
  row->what = *what;
  snprintf(row->spec, sizeof row->spec, "%s", s->name);
  snprintf(row->dtype, sizeof row->dtype, "%s%s%s", dtype_word(s->dtype_q), mixed ? "/" : "",
           mixed ? dtype_word(s->dtype_kv) : "");
  snprintf(row->gpu, sizeof row->gpu, "%s", p->device.name);
  row->heads_q = s->heads_q;
  row->heads_kv = s->heads_kv;
  row->dim_qk = s->dim_qk;
  row->dim_v = s->dim_v;
  row->peak = p->emulated ? NAN : bench_peak(&p->device);
  row->bandwidth = p->emulated || p->device.memory_bandwidth <= 0 ? NAN : p->device.memory_bandwidth;
}

/* ---- Measuring ---- */

/* Whether the schedule is one of the tables'. A table that cannot be read is none; the library has warned. */
static bool is_tuned(const problem *p, const qkv_build_options *options) {
  qkv_tuned_entry entry = {.size = sizeof entry};
  int found = 0;
  return !options->schedule && qkv_tuned_find(p->engine, p->spec, options, &entry, &found, NULL) == QKV_OK && found;
}

static qkv_status build(const problem *p, const char *phase, bench_row *row) {
  qkv_build_options options = cli_kernel_build_options(NULL);
  qkv_build_report built = {.size = sizeof built};
  options.phase = phase;
  options.batch = p->batch;
  options.len_q = p->len_q;
  options.len_k = p->len_k;
  const qkv_status status = qkv_build(p->engine, p->spec, &options, &built);
  if (status)
    return status;
  snprintf(row->family, sizeof row->family, "%s", built.family);
  snprintf(row->schedule, sizeof row->schedule, "%s", built.schedule);
  snprintf(row->arch, sizeof row->arch, "%s", built.arch);
  snprintf(row->source, sizeof row->source, "%s",
           options.schedule        ? "given"
           : is_tuned(p, &options) ? "tuned"
                                   : "default");
  qkv_string_free(built.notes);
  qkv_string_free(built.advisories);
  return QKV_OK;
}

static qkv_status take_samples(const tune_inputs *in, const qkv_op *op, int samples, bench_row *row) {
  double *seconds = calloc((size_t)samples, sizeof *seconds);
  qkv_contestant one = {.size = sizeof one, .op = op, .args = in->args, .nargs = in->copies, .seconds = seconds};
  qkv_measure_options options = QKV_MEASURE_OPTIONS_INIT;
  options.samples = samples;
  options.cold_l2 = in->cold;
  qkv_status status = seconds ? qkv_measure(&one, 1, NULL, &options) : QKV_OUT_OF_MEMORY;
  if (!status) {
    stats_sort(seconds, one.samples);
    row->median = stats_quantile_sorted(seconds, one.samples, 0.5);
    row->p10 = stats_quantile_sorted(seconds, one.samples, 0.1);
    row->p90 = stats_quantile_sorted(seconds, one.samples, 0.9);
    row->samples = one.samples;
    snprintf(row->method, sizeof row->method, "%s",
             in->p.emulated ? "emulation"
             : in->cold     ? "graph, cold L2"
                            : "graph, warm L2");
  }
  free(seconds);
  return status;
}

/* FLOPs and bytes, from shapes and the host's copies of lengths and parameters. */
static qkv_status count_work(tune_inputs *in, bench_row *row) {
  qkv_attention_args args = problem_args(&in->p, false);
  args.q = in->args->q;
  args.k = in->args->k;
  args.v = in->args->v;
  args.o = in->args->o;
  return qkv_work(in->p.spec, &args, &row->flops, &row->bytes);
}

/* All calls of a stream share the workspace: one follows the other. */
static qkv_status run(tune_inputs *in, const char *phase, int samples, bench_row *row) {
  qkv_op *op = NULL;
  void *workspace = NULL;
  qkv_limits limits = tune_limits(&in->p, phase, cli_kernel.family, cli_kernel.schedule);
  qkv_status status = build(&in->p, phase, row);
  if (!status)
    status = qkv_prepare(in->p.engine, in->p.spec, &limits, &op);
  const size_t bytes = status ? 0 : qkv_workspace_size(op);
  if (bytes)
    status = qkv_alloc(in->p.engine, bytes, &workspace);
  for (int n = 0; n < in->copies && !status; n++) {
    in->args[n].workspace = workspace;
    in->args[n].workspace_bytes = bytes;
  }
  if (!status)
    status = take_samples(in, op, samples, row);
  if (!status)
    status = count_work(in, row);
  if (workspace)
    qkv_free(in->p.engine, workspace);
  qkv_op_free(op);
  return status;
}

static void note_failure(bench_row *row, const char *status) {
  const char *message = qkv_last_error(NULL);
  row->median = row->p10 = row->p90 = row->flops = row->bytes = NAN;
  snprintf(row->status, sizeof row->status, "%s", status);
  snprintf(row->note, sizeof row->note, "%.*s", (int)strcspn(message, "\r\n"), message);
}

int bench_measure(qkv_engine *engine, qkv_spec *spec, const bench_case *what, const bench_request *request,
                  bench_row *row) {
  tune_inputs in;
  *row = (bench_row){.status = "ok"};
  const char *family = cli_kernel.family, *usual = what->len_q <= 16 ? "decode" : "prefill";
  const char *phase = cli_kernel.phase ? cli_kernel.phase : family ? NULL : usual; /* a family says it itself */
  if (family)
    usual = strstr(family, "_decode_") ? "decode" : "prefill";
  snprintf(row->phase, sizeof row->phase, "%s", phase ? phase : usual);
  cli_progress("%s: inputs", what->name);
  int code = tune_inputs_open(engine, spec, row->phase, what->batch, what->len_q, what->len_k, &request->params, &in);
  describe(row, &in.p, what);
  if (code) {
    note_failure(row, "inputs");
  } else {
    cli_progress("%s: compiling and measuring", what->name);
    const int samples = request->samples >= 0 ? (int)request->samples : in.p.emulated ? 3 : 20;
    const qkv_status status = run(&in, phase, samples, row);
    if (status) {
      char name[BENCH_NAME + 80];
      note_failure(row, qkv_status_name(status));
      snprintf(name, sizeof name, "%s, %s", row->spec, what->name);
      code = cli_fail(name, status);
    }
  }
  cli_progress_end();
  tune_inputs_close(&in);
  return code;
}
