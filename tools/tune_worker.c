/* tune_worker.c: qkvc tune-worker: the process that touches the device for a tuner, which may kill it at any time.
 *
 * A question is a line on standard input, a JSON object with "ask"; the answer one on standard output, with "status",
 * after lines of a list where there is one:
 *
 *   hello       at the start, unasked: the device
 *   candidates  for declared maxima, by what the model expects of a workload, "sizes": a list
 *   find        the entry of the tables for a workload
 *   build       a candidate's kernels, into the cache: "key", "registers", "spills"; "compile": it does not compile,
 *               "rejected": the compiler says that speed is lost
 *   check       is a candidate right?
 *   time        candidates ("FAMILY SCHEDULE;...") on a workload, in turns, "samples" of each:
 *               "seconds", all of the first, then of the next; "cold": 0 or 1
 *   entry       one of a table that a later "write" writes
 *   write       writes the table, if all of its "entries" are here
 *   writable    could "write" write?
 *
 * status: ok; wrong: the candidate's results are; error: it cannot be prepared or launched; fault: the device failed,
 * after which the worker ends, for no later answer of the process could be trusted; failed: nobody's fault but the
 * question's. "reason" says more. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "tune.h"
#include "tune_clock.h"
#include "tune_inputs.h"
#include "tune_record.h"

static cli_list params;
static const cli_option options[] = {
    {"param", 'p', CLI_LIST, &params, "NAME=X", "of the specs"},
    {"emu-seed", 0, CLI_SEED, &cli_global.emu_seed, "N", "order of asynchronous work on the emulator"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

enum { ENTRIES = 256, CONTESTANTS = 256 };

/* One tuned entry with strings of its own. */
typedef struct pending {
  qkv_tuned_entry entry;
  char *texts[5];
} pending;

typedef struct worker {
  qkv_engine *engine;
  char *path; /* of the spec at hand */
  qkv_spec *spec;
  char *checked; /* what the checks at hand are of: "phase queries" */
  tune_check checks[TUNE_CHECKS];
  int nchecks;
  char *timed; /* what the inputs at hand are of */
  tune_inputs inputs;
  pending entries[ENTRIES];
  int nentries;
  bool clock_sought;
  tune_clock *clock; /* NULL: nobody tells */
  bool lost;         /* the device failed */
} worker;

/* ---- Answers ---- */

static void answer(record_writer *w, const char *status, const char *reason) {
  record_put(w, "status", status);
  if (reason)
    record_put(w, "reason", reason);
}

/* What a failed call means for the candidate. */
static void answer_status(worker *me, record_writer *w, qkv_status status) {
  me->lost |= status == QKV_DEVICE_ERROR;
  answer(w,
         status == QKV_OK             ? "ok"
         : status == QKV_DEVICE_ERROR ? "fault"
                                      : "error",
         status == QKV_OK ? NULL : qkv_last_error(NULL));
}

static void say_hello(worker *w, qkv_status status) {
  qkv_device_info d = {.size = sizeof d};
  if (!status)
    status = qkv_device_get_info(w->engine, &d);
  record_writer out = record_open(stdout);
  answer(&out, status ? "failed" : "ok", status ? qkv_last_error(NULL) : NULL);
  record_put_number(&out, "code", cli_exit_code(status));
  record_put(&out, "kind", d.kind);
  record_put(&out, "name", d.name);
  record_put(&out, "arch", d.arch);
  record_put(&out, "compiler", d.compiler);
  record_put_number(&out, "sm_count", d.sm_count);
  record_put_number(&out, "driver", d.driver_version);
  record_put_number(&out, "clock_hz", d.clock_hz);
  record_put_number(&out, "l2_bytes", (double)d.l2_bytes);
  record_close(&out);
  fflush(stdout);
}

/* ---- State ---- */

static void forget_inputs(worker *w) {
  if (w->timed)
    tune_inputs_close(&w->inputs);
  free(w->timed);
  w->timed = NULL;
}

static void forget_checks(worker *w) {
  tune_checks_close(w->checks, w->nchecks);
  free(w->checked);
  w->nchecks = 0;
  w->checked = NULL;
}

static qkv_status load_spec(worker *w, const record *question) {
  const char *path = record_text(question, "spec");
  if (w->path && path && !strcmp(path, w->path))
    return QKV_OK;
  forget_inputs(w);
  forget_checks(w);
  free(w->path);
  w->path = NULL;
  qkv_spec_free(w->spec);
  w->spec = NULL;
  qkv_status status = qkv_spec_load(w->engine, path ? path : "", &w->spec);
  if (!status)
    w->path = strdup(path);
  return status;
}

static int64_t whole(const record *question, const char *key) {
  return (int64_t)record_number(question, key, 0);
}

static qkv_build_options build_options(const record *question) {
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  o.phase = record_text(question, "phase");
  o.family = record_text(question, "family");
  o.batch = whole(question, "batch");
  o.len_q = whole(question, "q");
  o.len_k = whole(question, "kv");
  return o;
}

/* ---- Questions ---- */

static int list_candidate(const qkv_candidate *c, void *user) {
  int *left = user;
  record_writer w = record_open(stdout);
  record_put(&w, "family", c->family);
  record_put(&w, "schedule", c->schedule);
  record_put_number(&w, "default", c->is_default);
  record_put_number(&w, "seconds", c->seconds);
  record_close(&w);
  return --*left <= 0;
}

static void do_candidates(worker *w, const record *question, record_writer *out) {
  qkv_build_options o = build_options(question);
  o.family = "all"; /* that can do the spec in this phase */
  double sizes[3] = {0};
  record_numbers(question, "sizes", sizes, 3);
  const qkv_workload workload = {sizeof workload, "", (int64_t)sizes[0], (int64_t)sizes[1], (int64_t)sizes[2]};
  int left = (int)record_number(question, "most", 1);
  qkv_status status =
      qkv_candidates(w->engine, w->spec, &o, &workload,
                     (qkv_effort)record_number(question, "effort", QKV_EFFORT_DEFAULT), list_candidate, &left);
  *out = record_open(stdout);
  answer_status(w, out, status);
}

static void do_find(worker *w, const record *question, record_writer *out) {
  const qkv_build_options o = build_options(question);
  qkv_tuned_entry entry = {.size = sizeof entry};
  int found = 0;
  char *reason = NULL;
  qkv_status status = qkv_tuned_find(w->engine, w->spec, &o, &entry, &found, &reason);
  *out = record_open(stdout);
  answer_status(w, out, status);
  record_put_number(out, "found", found);
  if (found && !status) {
    record_put(out, "family", entry.family);
    record_put(out, "schedule", entry.schedule);
  }
  qkv_string_free(reason);
}

static qkv_status build_kernel(worker *w, const qkv_build_options *o, qkv_build_report *report) {
  *report = (qkv_build_report){.size = sizeof *report};
  qkv_status status = qkv_build(w->engine, w->spec, o, report);
  qkv_string_free(report->notes);
  qkv_string_free(report->advisories);
  return status;
}

/* What the compiler says of a candidate. Lost speed that no other schedule has to suffer is not measured at all. */
static void answer_build(record_writer *out, const qkv_build_report *r) {
  char reason[160] = "";
  int registers = 0, spills = 0;
  for (int n = 0; n < r->nentries; n++) {
    const qkv_build_entry *e = &r->entries[n];
    registers = e->registers > registers ? e->registers : registers;
    if (e->registers >= 0)
      spills += e->spill_stores + e->spill_loads;
    if (e->serialised_wgmma || e->ignored_setmaxnreg)
      snprintf(reason, sizeof reason, "the compiler %s in %s",
               e->serialised_wgmma ? "serialises wgmma" : "ignores setmaxnreg", e->name);
  }
  answer(out, *reason ? "rejected" : "ok", *reason ? reason : NULL);
  record_put(out, "key", r->key);
  record_put_number(out, "registers", registers);
  record_put_number(out, "spills", spills);
}

static void do_build(worker *w, const record *question, record_writer *out) {
  qkv_build_options o = build_options(question);
  qkv_build_report aligned, other;
  o.schedule = record_text(question, "schedule");
  qkv_status status = build_kernel(w, &o, &aligned);
  o.unaligned = 1;
  if (!status && whole(question, "unaligned"))
    status = build_kernel(w, &o, &other);
  *out = record_open(stdout);
  if (!status) {
    answer_build(out, &aligned);
    return;
  }
  char line[512];
  snprintf(line, sizeof line, "%s", qkv_last_error(NULL));
  line[strcspn(line, "\n")] = 0;
  answer(out, "compile", line);
}

/* The checks of a phase, made once. */
static int need_checks(worker *w, const char *phase, int64_t len_q) {
  char name[96];
  snprintf(name, sizeof name, "%s %lld", phase, (long long)len_q);
  if (w->checked && !strcmp(w->checked, name))
    return EXIT_OK;
  forget_checks(w);
  int code = tune_checks_open(w->engine, w->spec, phase, len_q, &params, w->checks, &w->nchecks);
  if (!code)
    w->checked = strdup(name);
  return code;
}

static void do_check(worker *w, const record *question, record_writer *out) {
  qkv_limits choice = QKV_LIMITS_INIT;
  choice.phase = record_text(question, "phase");
  choice.family = record_text(question, "family");
  choice.schedule = record_text(question, "schedule");
  const int code = need_checks(w, choice.phase, whole(question, "q"));
  qkv_status status = QKV_OK;
  verdict judged = {.ok = true};
  int n = 0;
  for (; n < w->nchecks && !code && !status && judged.ok; n++)
    tune_check_run(&w->checks[n], &choice, &status, &judged);
  *out = record_open(stdout);
  if (code) {
    answer(out, "failed", qkv_last_error(NULL));
  } else if (status) {
    answer_status(w, out, status);
  } else if (!judged.ok) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s; against %s", judged.fault, w->checks[n - 1].against);
    answer(out, "wrong", reason);
  } else {
    answer(out, "ok", NULL);
    record_put_number(out, "error", judged.o.relative_l2);
  }
}

static int need_inputs(worker *w, const record *question) {
  char name[160];
  const char *phase = record_text(question, "phase");
  const int64_t batch = whole(question, "batch"), len_q = whole(question, "q"), len_k = whole(question, "kv");
  snprintf(name, sizeof name, "%s %lld %lld %lld", phase, (long long)batch, (long long)len_q, (long long)len_k);
  if (w->timed && !strcmp(w->timed, name))
    return EXIT_OK;
  forget_inputs(w);
  int code = tune_inputs_open(w->engine, w->spec, phase, batch, len_q, len_k, &params, &w->inputs);
  if (code)
    tune_inputs_close(&w->inputs);
  else
    w->timed = strdup(name);
  return code;
}

/* The device's clocks, looked for by the first question that times: other workers never need them. */
static void need_clock(worker *w) {
  qkv_device_info d = {.size = sizeof d};
  if (!w->clock_sought && !qkv_device_get_info(w->engine, &d))
    w->clock = clock_open(&d);
  w->clock_sought = true;
}

/* What is measured in turns. */
typedef struct contest {
  int count;
  qkv_contestant who[CONTESTANTS];
  qkv_op *ops[CONTESTANTS];
  void *workspace;
  size_t workspace_bytes;
} contest;

/* Prepares "FAMILY SCHEDULE;FAMILY SCHEDULE". The text is taken apart. */
static qkv_status prepare_contest(worker *w, const char *phase, char *list, contest *c) {
  qkv_status status = QKV_OK;
  for (char *rest = list, *one; !status && (one = strsep(&rest, ";")) != NULL && c->count < CONTESTANTS;) {
    char *schedule = strchr(one, ' ');
    if (schedule)
      *schedule++ = 0;
    const qkv_limits limits = tune_limits(&w->inputs.p, phase, one, schedule);
    status = qkv_prepare(w->engine, w->spec, &limits, &c->ops[c->count]);
    if (status)
      break;
    const size_t bytes = qkv_workspace_size(c->ops[c->count++]);
    c->workspace_bytes = bytes > c->workspace_bytes ? bytes : c->workspace_bytes;
  }
  return status || !c->workspace_bytes ? status : qkv_alloc(w->engine, c->workspace_bytes, &c->workspace);
}

static qkv_status run_contest(worker *w, const record *question, contest *c, double *seconds) {
  const int samples = (int)whole(question, "samples");
  qkv_measure_options o = QKV_MEASURE_OPTIONS_INIT;
  o.samples = samples;
  o.sample_seconds = record_number(question, "sample_seconds", 0);
  o.warm_up_seconds = record_number(question, "warm_up", 0);
  o.cold_l2 = w->inputs.cold;
  for (int n = 0; n < w->inputs.copies; n++) {
    w->inputs.args[n].workspace = c->workspace;
    w->inputs.args[n].workspace_bytes = c->workspace_bytes;
  }
  for (int n = 0; n < c->count; n++)
    c->who[n] =
        (qkv_contestant){sizeof *c->who, c->ops[n], w->inputs.args, w->inputs.copies, seconds + n * samples, 0, 0};
  return qkv_measure(c->who, c->count, NULL, &o);
}

static void do_time(worker *w, const record *question, record_writer *out) {
  const char *phase = record_text(question, "phase"), *list = record_text(question, "candidates");
  const int samples = (int)whole(question, "samples"), code = need_inputs(w, question);
  char *copy = list ? strdup(list) : NULL;
  contest *c = calloc(1, sizeof *c);
  double *seconds = calloc((size_t)CONTESTANTS * (size_t)(samples > 0 ? samples : 1), sizeof *seconds);
  qkv_status status = copy && c && seconds && samples > 0 ? QKV_OK : QKV_OUT_OF_MEMORY;
  tune_clocks clocks = {0};
  if (!code && !status)
    status = prepare_contest(w, phase, copy, c);
  if (!code && !status) {
    need_clock(w);
    clock_start(w->clock);
    status = run_contest(w, question, c, seconds);
    clock_stop(w->clock, &clocks);
  }
  *out = record_open(stdout);
  if (code)
    answer(out, "failed", qkv_last_error(NULL));
  else
    answer_status(w, out, status);
  if (!code && !status) {
    record_put_number(out, "cold", w->inputs.cold);
    record_put_number(out, "calls", c->who[0].calls);
    clocks_put(out, &clocks);
    record_put_numbers(out, "seconds", seconds, c->count * samples);
  }
  if (c && c->workspace && !w->lost)
    qkv_free(w->engine, c->workspace);
  for (int n = 0; c && n < c->count; n++)
    qkv_op_free(c->ops[n]);
  free(c);
  free(copy);
  free(seconds);
}

static void do_entry(worker *w, const record *question, record_writer *out) {
  static const char *const keys[] = {"phase", "family", "schedule", "workload", "default_schedule"};
  *out = record_open(stdout);
  if (w->nentries == ENTRIES) {
    answer(out, "failed", "too many entries");
    return;
  }
  pending *p = &w->entries[w->nentries++];
  memset(p, 0, sizeof *p);
  for (int n = 0; n < 5; n++) {
    const char *text = record_text(question, keys[n]);
    p->texts[n] = text ? strdup(text) : NULL;
  }
  p->entry = (qkv_tuned_entry){sizeof p->entry,
                               p->texts[0],
                               p->texts[1],
                               p->texts[2],
                               p->texts[3],
                               whole(question, "batch"),
                               whole(question, "q"),
                               whole(question, "kv"),
                               record_number(question, "seconds", 0),
                               record_number(question, "low", 0),
                               record_number(question, "high", 0),
                               p->texts[4],
                               record_number(question, "default_seconds", 0)};
  answer(out, "ok", NULL);
}

/* "write" with the entries at hand, "writable" with none. */
static void write_table(worker *w, const record *question, record_writer *out, int count) {
  qkv_tuned_entry entries[ENTRIES] = {{0}};
  for (int n = 0; n < count; n++)
    entries[n] = w->entries[n].entry;
  qkv_status status =
      qkv_tuned_write(w->engine, w->spec, NULL, entries, count, count ? record_text(question, "notes") : NULL);
  *out = record_open(stdout);
  answer_status(w, out, status);
}

static void forget_entries(worker *w) {
  for (int n = 0; n < w->nentries; n++)
    for (int t = 0; t < 5; t++)
      free(w->entries[n].texts[t]);
  w->nentries = 0;
}

/* Entries are lost with the worker that they were told to: then nothing is written. */
static void do_write(worker *w, const record *question, record_writer *out) {
  const int count = (int)whole(question, "entries");
  if (count != w->nentries) {
    char reason[96];
    snprintf(reason, sizeof reason, "the worker has %d of %d entries of the table", w->nentries, count);
    forget_entries(w);
    *out = record_open(stdout);
    answer(out, "failed", reason);
    return;
  }
  write_table(w, question, out, count);
  forget_entries(w);
}

static void do_writable(worker *w, const record *question, record_writer *out) {
  write_table(w, question, out, 0);
}

/* ---- The process ---- */

static const struct {
  const char *name;
  void (*run)(worker *w, const record *question, record_writer *out);
} questions[] = {{"candidates", do_candidates}, {"find", do_find},        {"build", do_build},
                 {"check", do_check},           {"time", do_time},        {"entry", do_entry},
                 {"write", do_write},           {"writable", do_writable}};

static void answer_question(worker *w, const record *question) {
  const char *name = record_text(question, "ask");
  record_writer out;
  qkv_status status = load_spec(w, question);
  if (status) {
    out = record_open(stdout);
    answer(&out, "failed", qkv_last_error(NULL));
    record_close(&out);
    return;
  }
  for (size_t n = 0; n < sizeof questions / sizeof *questions; n++)
    if (name && !strcmp(name, questions[n].name)) {
      questions[n].run(w, question, &out);
      record_close(&out);
      return;
    }
  out = record_open(stdout);
  answer(&out, "failed", "no such question");
  record_close(&out);
}

static int run(int count, char **arguments) {
  (void)count, (void)arguments;
  static worker w;
  record question = {0};
  char *line = NULL;
  size_t size = 0;
  qkv_status status = cli_open("cuda", &w.engine);
  say_hello(&w, status);
  while (!status && !w.lost && getline(&line, &size, stdin) > 0) {
    if (!record_parse(&question, line))
      break;
    answer_question(&w, &question);
    fflush(stdout);
  }
  free(line);
  record_free(&question);
  if (w.lost) /* nothing can be freed on a device that failed */
    _exit(EXIT_FAILED);
  clock_close(w.clock);
  forget_inputs(&w);
  forget_checks(&w);
  free(w.path);
  qkv_spec_free(w.spec);
  qkv_close(w.engine);
  return status ? cli_exit_code(status) : EXIT_OK;
}

const cli_command tune_worker_command = {
    "tune-worker", "", "answers the questions of qkvc tune on standard input", NULL, options, 0, 0, run, NULL};
