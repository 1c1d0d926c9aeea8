/* cli_run.c: qkvc run: one attention call from a spec to numbers: inputs, kernel, check against the reference, time.
 * A failed run ends with one line on standard error that repeats it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_json.h"
#include "cli_kernel.h"
#include "cli_problem.h"
#include "cli_table.h"
#include "qkv_tune.h"

static problem_request request = {.batch = -1, .len_q = -1, .len_k = -1};
static const char *out_file, *lse_file;
static int as_json, no_check;
static int64_t repeats = -1;
static double tolerance = NAN; /* not given */

static const cli_option options[] = {
    {"workload", 'w', CLI_TEXT, &request.workload, "NAME", "sizes of this workload of the spec"},
    {"batch", 'b', CLI_COUNT, &request.batch, "N", "batch entries; default 1, or as in the files"},
    {"q", 0, CLI_COUNT, &request.len_q, "N", "queries per entry; default as many as keys"},
    {"kv", 0, CLI_COUNT, &request.len_k, "N", "keys per entry; default as many as queries"},
    {"lengths", 0, CLI_TEXT, &request.lengths, "KIND", "of ragged, padded, paged sequences: mixed (default) or full"},
    {"seed", 's', CLI_SEED, &request.seed, "N", "of the random inputs; default 0"},
    {"q-file", 0, CLI_TEXT, &request.q_file, "F.npy", "[batch, q, heads, dim] or [q, heads, dim]"},
    {"k-file", 0, CLI_TEXT, &request.k_file, "F.npy", "[batch, kv, kv_heads, dim], batch may be missing"},
    {"v-file", 0, CLI_TEXT, &request.v_file, "F.npy", "likewise"},
    {"sink-file", 0, CLI_TEXT, &request.sink_file, "F.npy", "[heads]"},
    {"k-scale-file", 0, CLI_TEXT, &request.k_scale_file, "F.npy", "[kv_heads]"},
    {"v-scale-file", 0, CLI_TEXT, &request.v_scale_file, "F.npy", "[kv_heads]"},
    {"param", 'p', CLI_LIST, &request.params, "NAME=X", "a number, or a .npy file for a parameter with a shape"},
    {"bf16-bits", 0, CLI_FLAG, &request.bits16, NULL, ".npy files of type u2 hold bf16 bits, read and written"},
    {"out", 'o', CLI_TEXT, &out_file, "F.npy", "write O"},
    {"lse-out", 0, CLI_TEXT, &lse_file, "F.npy", "write the log-sum-exp; the spec must have lse among its outputs"},
    {"no-check", 0, CLI_FLAG, &no_check, NULL, "do not compute the reference"},
    {"tolerance", 0, CLI_REAL, &tolerance, "X", "relative L2 error of O that is fine; default by dtype"},
    {"repeats", 'r', CLI_COUNT, &repeats, "N", "timed calls; 0: none; default 50 on a GPU, none on the emulator"},
    {"emu-seed", 0, CLI_SEED, &cli_global.emu_seed, "N", "order of asynchronous work on the emulator"},
    CLI_KERNEL_OPTIONS,
    {"json", 0, CLI_FLAG, &as_json, NULL, "one JSON object"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

/* What a run yields. Seconds are negative when not measured. */
typedef struct outcome {
  qkv_build_report build;
  verdict judged;
  double tolerance;
  double call_seconds; /* the checked call, from launch to completion: on the emulator the only time there is */
  double median, fastest, slowest, flops, bytes;
} outcome;

/* ---- The run ---- */

/* Renders and compiles (the report has registers and schedule), then loads. */
static int prepare(problem *p, outcome *result, qkv_op **op) {
  qkv_build_options build = cli_kernel_build_options(NULL); /* the engine's: the very kernel that is loaded below */
  qkv_limits limits = QKV_LIMITS_INIT;
  build.batch = p->batch;
  build.len_q = p->len_q;
  build.len_k = p->len_k;
  limits.batch = p->batch;
  limits.len_q = p->len_q;
  limits.len_k = p->len_k;
  limits.family = build.family;
  limits.phase = build.phase; /* else of this call's shape: no kernel is compiled for others */
  if (!build.phase && !build.family && !build.schedule && p->len_q > 16)
    limits.phase = build.phase = "prefill";
  limits.schedule = build.schedule;
  int q_row = p->info.dim_qk * dtype_bytes(p->info.dtype_q), k_row = p->info.dim_qk * dtype_bytes(p->info.dtype_kv),
      v_row = p->info.dim_v * dtype_bytes(p->info.dtype_kv), o_row = p->info.dim_v * dtype_bytes(p->info.dtype_out);
  limits.aligned_only = !cli_kernel.unaligned && (q_row | k_row | v_row | o_row) % 16 == 0;
  cli_progress("compiling %s", p->info.name);
  result->build.size = sizeof result->build;
  qkv_status status = qkv_build(p->engine, p->spec, &build, &result->build);
  if (!status || status == QKV_NOT_PREPARED) /* which then names all that is missing */
    status = qkv_prepare(p->engine, p->spec, &limits, op);
  cli_progress_end();
  return status ? cli_fail(p->info.name, status) : EXIT_OK;
}

static int launch(problem *p, const qkv_op *op, const qkv_attention_args *args, outcome *result) {
  cli_progress("running on %s", p->device.name);
  double start = cli_seconds();
  qkv_status status = qkv_attention(op, args, NULL);
  if (!status)
    status = qkv_synchronize(p->engine);
  result->call_seconds = cli_seconds() - start;
  cli_progress_end();
  return status ? cli_fail(p->info.name, status) : EXIT_OK;
}

static int measure(problem *p, const qkv_op *op, const qkv_attention_args *args, outcome *result) {
  int64_t count = repeats >= 0 ? repeats : p->emulated ? 0 : 50;
  result->median = -1;
  if (!count || !p->batch || !p->len_q)
    return EXIT_OK;
  if (count > 1000000) {
    cli_error("--repeats is at most 1000000");
    return EXIT_USAGE;
  }
  cli_progress("timing %lld calls", (long long)count);
  qkv_status status = qkv_time(op, args, NULL, (int)count, &result->median, &result->fastest, &result->slowest);
  if (!status) {
    qkv_attention_args host = problem_args(p, false); /* counting visible pairs may read parameters */
    status = qkv_work(p->spec, &host, &result->flops, &result->bytes);
  }
  cli_progress_end();
  return status ? cli_fail("timing", status) : EXIT_OK;
}

static int write_output(problem *p, int slot, const char *path) {
  char error[NPY_ERROR_SIZE];
  if (!path || tensor_to_npy(&p->slots[slot].host, request.bits16 != 0, path, error))
    return EXIT_OK;
  cli_error("%s: %s", path, error);
  return EXIT_FAILED;
}

/* From filled host tensors to a verdict. */
static int execute(problem *p, outcome *result) {
  qkv_op *op = NULL;
  int code = prepare(p, result, &op);
  if (!code)
    code = problem_upload(p, cli_kernel.unaligned != 0);
  qkv_attention_args args = problem_args(p, true);
  if (!code) {
    args.workspace_bytes = qkv_workspace_size(op);
    qkv_status status = args.workspace_bytes ? qkv_alloc(p->engine, args.workspace_bytes, &args.workspace) : QKV_OK;
    code = status ? cli_fail("workspace", status) : EXIT_OK;
  }
  if (!code)
    code = launch(p, op, &args, result);
  if (!code)
    code = problem_download(p);
  if (!code)
    code = measure(p, op, &args, result);
  if (!code)
    code = write_output(p, SLOT_O, out_file);
  if (!code)
    code = write_output(p, SLOT_LSE, lse_file);
  if (args.workspace)
    qkv_free(p->engine, args.workspace);
  qkv_op_free(op);
  result->tolerance = isnan(tolerance) ? verdict_tolerance(p) : tolerance;
  snprintf(result->judged.against, sizeof result->judged.against, "--no-check");
  if (!code && !no_check) {
    cli_progress("checking against the reference");
    code = problem_verify(p, result->tolerance, &result->judged);
    cli_progress_end();
  }
  return code;
}

/* ---- Report ---- */

static void print_error(const char *name, const tensor_error *e, bool present) {
  if (present)
    printf("  %-14s max abs error %.3g, relative L2 error %.3g\n", name, e->max_absolute, e->relative_l2);
}

static void print_text(problem *p, const outcome *r) {
  const qkv_spec_info *s = &p->info;
  char a[32], b[32], c[32];
  const bool own = s->dtype_kv != s->dtype_q;
  printf("%s: %s for %s on %s\n", s->name, r->build.family, r->build.arch, p->device.name);
  printf("  %-14s batch %lld, q %lld, kv %lld, heads %d:%d, dim %d:%d, %s%s%s\n", "shape", (long long)p->batch,
         (long long)p->len_q, (long long)p->len_k, s->heads_q, s->heads_kv, s->dim_qk, s->dim_v,
         dtype_word(s->dtype_q), own ? ", k and v " : "", own ? dtype_word(s->dtype_kv) : "");
  printf("  %-14s %s\n", "schedule", r->build.schedule[0] ? r->build.schedule : "none");
  printf("  %-14s %s in %s\n", "kernel", r->build.from_cache ? "from the cache" : "compiled",
         format_seconds(a, r->build.render_seconds + r->build.compile_seconds + r->build.load_seconds));
  if (r->judged.checked) {
    print_error("o", &r->judged.o, true);
    print_error("lse", &r->judged.lse, s->wants_lse);
    print_error("lse_with_sink", &r->judged.lse_with_sink, s->wants_lse_with_sink);
  }
  if (r->median >= 0)
    printf("  %-14s %s median, %s to %s\n", "time", format_seconds(a, r->median), format_seconds(b, r->fastest),
           format_seconds(c, r->slowest));
  if (r->median > 0 && !p->emulated)
    printf("  %-14s %.1f TFLOP/s, %.0f GB/s\n", "speed", 1e-12 * r->flops / r->median, 1e-9 * r->bytes / r->median);
  if (p->emulated)
    printf("  %-14s %s of emulation, which says nothing of a GPU\n", "time", format_seconds(a, r->call_seconds));
  if (r->judged.checked)
    printf("  %-14s %s, relative L2 tolerance %g: %s\n", "checked", r->judged.against, r->tolerance,
           r->judged.ok ? "ok" : "FAILED");
  else
    printf("  %-14s no: %s\n", "checked", r->judged.against);
}

static void json_error(cli_json *j, const char *name, const tensor_error *e, bool present) {
  if (!present)
    return;
  json_open(j, name, '{');
  json_real(j, "max_abs_error", e->max_absolute);
  json_real(j, "relative_l2_error", e->relative_l2);
  json_integer(j, "bad_elements", e->bad);
  json_close(j, '}');
}

static void print_json(problem *p, const outcome *r, const char *again) {
  cli_json j = {.stream = stdout};
  json_open(&j, NULL, '{');
  json_string(&j, "spec", p->info.name);
  json_string(&j, "device", p->device.kind);
  json_string(&j, "device_name", p->device.name);
  json_string(&j, "family", r->build.family);
  json_string(&j, "arch", r->build.arch);
  json_string(&j, "schedule", r->build.schedule);
  json_integer(&j, "batch", p->batch);
  json_integer(&j, "q", p->len_q);
  json_integer(&j, "kv", p->len_k);
  json_boolean(&j, "from_cache", r->build.from_cache != 0);
  json_real(&j, "build_seconds", r->build.render_seconds + r->build.compile_seconds + r->build.load_seconds);
  json_boolean(&j, "checked", r->judged.checked);
  json_string(&j, "against", r->judged.against);
  if (r->judged.checked) {
    json_boolean(&j, "ok", r->judged.ok);
    json_real(&j, "tolerance", r->tolerance);
    json_error(&j, "o", &r->judged.o, true);
    json_error(&j, "lse", &r->judged.lse, p->info.wants_lse);
    json_error(&j, "lse_with_sink", &r->judged.lse_with_sink, p->info.wants_lse_with_sink);
    json_string(&j, "fault", r->judged.fault[0] ? r->judged.fault : NULL);
  }
  if (p->emulated)
    json_real(&j, "emulation_seconds", r->call_seconds);
  if (r->median >= 0) {
    json_real(&j, "median_seconds", r->median);
    json_real(&j, "fastest_seconds", r->fastest);
    json_real(&j, "slowest_seconds", r->slowest);
    json_real(&j, "flops", r->flops);
    json_real(&j, "bytes", r->bytes);
  }
  json_string(&j, "reproduce", again);
  json_close(&j, '}');
}

/* ---- Reproducer ---- */

/* Appends a word, quoted for a shell when it needs it. */
static void append(FILE *out, const char *option, const char *word) {
  if (!word)
    return;
  fprintf(out, *option ? " --%s " : " ", option);
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  if (*word && strspn(word, plain) == strlen(word)) {
    fputs(word, out);
    return;
  }
  fputc('\'', out);
  for (const char *s = word; *s; s++)
    fprintf(out, *s == '\'' ? "'\\''" : "%c", *s);
  fputc('\'', out);
}

/* The command line that repeats this run; freed by the caller. */
static char *reproducer(const problem *p, const char *spec) {
  char *text = NULL, number[40];
  size_t size;
  FILE *out = open_memstream(&text, &size);
  if (!out)
    return NULL;
  fprintf(out, "qkvc run");
  append(out, "", spec);
  snprintf(number, sizeof number, "cuda:%d", p->device.ordinal);
  append(out, "device", p->emulated ? "emu" : number);
  append(out, "arch", p->device.arch);
  fprintf(out, " --batch %lld --q %lld --kv %lld --seed %llu", (long long)p->batch, (long long)p->len_q,
          (long long)p->len_k, (unsigned long long)request.seed);
  if (cli_global.emu_seed)
    fprintf(out, " --emu-seed %llu", (unsigned long long)cli_global.emu_seed);
  append(out, "family", cli_kernel.family);
  append(out, "phase", cli_kernel.phase);
  append(out, "schedule", cli_kernel.schedule);
  append(out, "lengths", request.lengths);
  append(out, "q-file", request.q_file);
  append(out, "k-file", request.k_file);
  append(out, "v-file", request.v_file);
  append(out, "sink-file", request.sink_file);
  append(out, "k-scale-file", request.k_scale_file);
  append(out, "v-scale-file", request.v_scale_file);
  for (int n = 0; n < request.params.count; n++)
    append(out, "param", request.params.items[n]);
  append(out, "template-path", cli_global.template_path);
  append(out, "tuned-dir", cli_global.tuned_dir);
  if (!isnan(tolerance))
    fprintf(out, " --tolerance %.9g", tolerance);
  fprintf(out, "%s%s", request.bits16 ? " --bf16-bits" : "", cli_kernel.unaligned ? " --unaligned" : "");
  if (fclose(out) == 0)
    return text;
  free(text);
  return NULL;
}

/* ---- Command ---- */

static int open_problem(problem *p, const char *path) {
  qkv_status status = cli_open("auto", &p->engine);
  if (status)
    return cli_fail(NULL, status);
  p->device.size = sizeof p->device;
  status = qkv_device_get_info(p->engine, &p->device);
  if (status)
    return cli_fail(NULL, status);
  p->emulated = strcmp(p->device.kind, "cuda") != 0;
  if (!strcmp(p->device.kind, "none")) {
    cli_error("device none compiles but runs nothing; choose cuda or emu");
    return EXIT_USAGE;
  }
  if ((status = qkv_spec_load(p->engine, path, &p->spec)) != QKV_OK)
    return cli_fail_spec(path, status);
  p->info.size = sizeof p->info;
  qkv_spec_get_info(p->spec, &p->info);
  if (lse_file && !p->info.wants_lse) {
    cli_error("--lse-out: %s does not ask for lse; write outputs: [o, lse]", path);
    return EXIT_USAGE;
  }
  return EXIT_OK;
}

static int run(int count, char **arguments) {
  (void)count;
  problem p = {0};
  outcome result = {.median = -1};
  if (tolerance < 0) {
    cli_error("--tolerance takes a number from 0 up");
    return EXIT_USAGE;
  }
  int code = open_problem(&p, arguments[0]);
  if (!code)
    code = problem_size(&p, &request);
  if (!code)
    code = problem_fill(&p, &request);
  if (!code) { /* from here on everything that can be repeated is known */
    char *again = reproducer(&p, arguments[0]);
    code = execute(&p, &result);
    if (!code && as_json)
      print_json(&p, &result, again);
    else if (!code)
      print_text(&p, &result);
    if (!code && result.judged.checked && !result.judged.ok) {
      code = EXIT_FAILED;
      cli_error("%s: %s", p.info.name, result.judged.fault);
    }
    if (code) {
      fflush(stdout);
      fprintf(stderr, "reproduce: %s\n", again ? again : "");
    }
    free(again);
  }
  qkv_string_free(result.build.notes);
  qkv_string_free(result.build.advisories);
  problem_free(&p);
  return code;
}

const cli_command cli_run_command = {
    "run",
    "SPEC",
    "run a kernel once, check it against the reference, time it",
    "Runs on the GPU when there is one, else on the emulator; --device decides. Sizes come from --workload, from "
    "--batch\n"
    "--q --kv, or from the files; without any of them from the spec's first workload, made small on the emulator.\n\n"
    "Inputs without a file are random: about normal, mean 0, variance 1, the same for the same seed on every machine.\n"
    "i32 parameters with a shape become four ascending blocks 0..3, bool ones a fair coin; scalar ones kv/2 and true.\n"
    "Sequences of lengths of their own: --q and --kv are the greatest, lengths are random with 0, 1 and the greatest\n"
    "among them; pages lie in a random order; what no sequence owns holds NaN, ends of page tables wild numbers.\n"
    "Outputs are full of NaN before the call. O must be within a relative L2 error ||o - ref|| / ||ref|| of 2e-3 for\n"
    "f16, 1e-2 for bf16, 1e-3 for f32; the reference works in f64 on the CPU. Problems too large for it are checked "
    "in\n"
    "their first batch entries, or on a GPU against attention_naive.\n\n"
    ".npy files: f2 f4 f8, i4 i8 b1 u1 for parameters; C order, little-endian; values are converted to the spec's\n"
    "dtypes. A failed run ends with a line on standard error that repeats it.",
    options,
    1,
    1,
    run,
    NULL};
