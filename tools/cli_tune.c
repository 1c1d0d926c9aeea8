/* cli_tune.c: qkvc tune: finds the fastest schedules of specs on the device at hand and writes them to tables.
 * tune_plan.c says what is tried, tune_search.c how; a worker process touches the device (tune_worker.c). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "tune.h"

static int quick, full, as_json, dry_run, resume;
static const char *budget_text, *phase, *shard_text, *directory, *journal_file, *csv_file;
static cli_list workloads, params;
static double time_limit, compile_limit;
static int64_t jobs;

static const cli_option options[] = {
    {"quick", 0, CLI_FLAG, &quick, NULL, "the 8 best schedules of the model for each workload"},
    {"full", 0, CLI_FLAG, &full, NULL, "the 64 best, and more samples; default: 24"},
    {"budget", 0, CLI_TEXT, &budget_text, "TIME", "of the whole run, such as 90s, 10m, 8h; the best so far is written"},
    {"workload", 'w', CLI_LIST, &workloads, "NAME", "of the specs, or sizes BATCHxQUERIESxKEYS; may be repeated"},
    {"phase", 0, CLI_TEXT, &phase, "NAME", "prefill or decode; default both"},
    {"output", 'o', CLI_TEXT, &directory, "DIR", "where tables go; default the user's tables ($QKV_TUNED_DIR)"},
    {"journal", 0, CLI_TEXT, &journal_file, "FILE", "of all measurements; default journal.jsonl beside the tables"},
    {"resume", 0, CLI_FLAG, &resume, NULL, "continue what the journal has"},
    {"shard", 0, CLI_TEXT, &shard_text, "I/N", "the I-th of N parts of the work; tables go to DIR/shard-I-of-N"},
    {"csv", 0, CLI_TEXT, &csv_file, "FILE", "every candidate's times"},
    {"time-limit", 0, CLI_REAL, &time_limit, "S", "for one answer of the worker; default 30, on the emulator 120"},
    {"compile-limit", 0, CLI_REAL, &compile_limit, "S", "for the compiling of one candidate; default 120"},
    {"jobs", 'j', CLI_COUNT, &jobs, "N", "compile N kernels at once; default: the number of cores"},
    {"param", 'p', CLI_LIST, &params, "NAME=X", "value of a scalar parameter of the specs"},
    {"emu-seed", 0, CLI_SEED, &cli_global.emu_seed, "N", "order of asynchronous work on the emulator"},
    {"dry-run", 0, CLI_FLAG, &dry_run, NULL, "list what would be tuned, with an estimate of the time"},
    {"json", 0, CLI_FLAG, &as_json, NULL, "one JSON object at the end"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

/* By qkv_effort. On the emulator times are those of the emulation and say nothing: few samples do. */
static const tune_amount amounts[] = {
    {"quick", 8, 3, 4, 9, 0.5e-3}, {"default", 24, 3, 4, 15, 1e-3}, {"full", 64, 5, 4, 31, 2e-3}};
enum { EMULATED_FIRST = 1, EMULATED_FINAL = 5 };
enum { SPARE_CORES = 2 }; /* for the worker and its driver, while others compile */

/* What a run holds. */
typedef struct session {
  tune_settings settings;
  tune_plan plan;
  tune_client *client;
  tune_builders *builders;
  qkv_engine *engine; /* loads specs; never the device of the worker */
  tune_journal *journal;
  FILE *csv;
  char *tables; /* directory of the tables, NULL: the user's */
  double started;
  double least; /* seconds that a group took at least; 0: none yet */
  /* The group whose kernels are compiled, of which index it is, and the exit code of its planning. */
  tune_compile *compile;
  int begun, code;
} session;

/* ---- Settings ---- */

/* "90", "90s", "10m", "8h": seconds; negative: none of these. */
static double parse_duration(const char *text) {
  char *unit;
  const double value = strtod(text, &unit);
  if (unit == text || !(value > 0) || !isfinite(value) || (*unit && unit[1]))
    return -1;
  switch (*unit) {
  case 0:
  case 's':
    return value;
  case 'm':
    return 60 * value;
  case 'h':
    return 3600 * value;
  default:
    return -1;
  }
}

static int usage(const char *message, const char *word) {
  cli_error(message, word);
  return EXIT_USAGE;
}

static int parse_shard(tune_settings *s) {
  int end = 0;
  s->shards = 1;
  if (!shard_text)
    return EXIT_OK;
  if (sscanf(shard_text, "%d/%d%n", &s->shard, &s->shards, &end) != 2 || shard_text[end] || s->shard < 1 ||
      s->shard > s->shards || s->shards > 4096) {
    cli_error("--shard takes I/N, the I-th of N parts, not '%s'", shard_text);
    return EXIT_USAGE;
  }
  s->shard--;
  if (directory || dry_run)
    return EXIT_OK;
  cli_error("--shard needs -o DIR: each part writes tables of its own, for qkvc tuned merge");
  return EXIT_USAGE;
}

static int read_settings(tune_settings *s) {
  const double budget = budget_text ? parse_duration(budget_text) : 0;
  if (quick && full)
    return usage("--quick does not go with %s", "--full");
  if (budget < 0)
    return usage("--budget takes a time such as 90s, 10m or 8h, not '%s'", budget_text);
  if (phase && strcmp(phase, "prefill") != 0 && strcmp(phase, "decode") != 0)
    return usage("--phase takes prefill or decode, not '%s'", phase);
  if (time_limit < 0)
    return usage("--time-limit takes seconds, from 0 up%s", "");
  if (compile_limit < 0)
    return usage("--compile-limit takes seconds, from 0 up%s", "");
  s->compile_limit = compile_limit > 0 ? compile_limit : 120;
  s->effort = quick ? QKV_EFFORT_QUICK : full ? QKV_EFFORT_FULL : QKV_EFFORT_DEFAULT;
  s->amount = amounts[s->effort];
  s->params = params;
  s->workloads = workloads;
  s->phase = phase;
  s->deadline = budget > 0 ? cli_seconds() + budget : 0;
  const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
  s->jobs = (int)(jobs > 0 ? (jobs < 64 ? jobs : 64) : cores > 0 ? (cores < 64 ? cores : 64) : 1);
  return parse_shard(s);
}

/* What depends on the device. */
static void adapt_settings(tune_settings *s, const tune_device *device) {
  s->emulated = !strcmp(device->kind, "emu");
  s->limit = time_limit > 0 ? time_limit : s->emulated ? 120 : 30;
  if (!s->emulated)
    return;
  s->amount.first_samples = EMULATED_FIRST;
  s->amount.final_samples = EMULATED_FINAL;
  s->amount.sample_seconds = 0;
}

/* ---- Places ---- */

static char *join(const char *folder, const char *name) {
  char *path = malloc(strlen(folder) + strlen(name) + 2);
  if (path)
    sprintf(path, "%s/%s", folder, name);
  return path;
}

/* Makes a folder and those above it. */
static bool make_folders(const char *path) {
  char *copy = strdup(path);
  for (char *at = copy ? strchr(copy + 1, '/') : NULL; at; at = strchr(at + 1, '/')) {
    *at = 0;
    mkdir(copy, 0777);
    *at = '/';
  }
  const bool ok = copy && (mkdir(copy, 0777) == 0 || errno == EEXIST);
  free(copy);
  return ok;
}

static int choose_tables(session *s) {
  char name[48];
  snprintf(name, sizeof name, "shard-%d-of-%d", s->settings.shard + 1, s->settings.shards);
  if (directory)
    s->tables = s->settings.shards > 1 ? join(directory, name) : strdup(directory);
  return !directory || s->tables ? EXIT_OK : EXIT_FAILED;
}

/* Asks a question that only has a spec. Returns an exit code. */
static int ask_plain(const session *s, const char *ask, const char *path, const char *notes, int entries) {
  record answer = {0};
  record_line l;
  if (!record_begin(&l))
    return EXIT_FAILED;
  record_put(&l.to, "ask", ask);
  record_put(&l.to, "spec", path);
  record_put(&l.to, "notes", notes);
  record_put_number(&l.to, "entries", entries);
  char *line = record_end(&l);
  client_ask(s->client, line ? line : "", s->settings.limit, &answer, NULL, NULL);
  free(line);
  const bool ok = answer_is(&answer, "ok");
  const char *reason = record_text(&answer, "reason");
  if (!ok)
    cli_error("%s", reason ? reason : "the table cannot be written");
  record_free(&answer);
  return ok ? EXIT_OK : EXIT_FAILED;
}

/* Before anything takes time: can the results be kept? */
static int check_places(session *s) {
  for (int n = 0; n < s->plan.count; n++) {
    const int code = n && s->plan.groups[n].path == s->plan.groups[n - 1].path
                         ? EXIT_OK
                         : ask_plain(s, "writable", s->plan.groups[n].path, NULL, 0);
    if (code)
      return code;
  }
  const char *folder = s->tables ? s->tables : qkv_tuned_path(s->engine);
  char *path = journal_file ? strdup(journal_file) : *folder ? join(folder, "journal.jsonl") : NULL;
  if (!path || (!journal_file && !make_folders(folder))) {
    cli_error("there is no place for the journal: %s", *folder ? strerror(errno) : "give -o DIR or --journal FILE");
    free(path);
    return EXIT_FAILED;
  }
  s->journal = journal_open(path, resume != 0);
  if (s->journal && resume)
    cli_note("%s has %d answers", path, journal_count(s->journal));
  free(path);
  if (!s->journal)
    return EXIT_FAILED;
  s->csv = csv_file ? fopen(csv_file, "w") : NULL;
  if (csv_file && !s->csv) {
    cli_error("%s: %s", csv_file, strerror(errno));
    return EXIT_FAILED;
  }
  if (s->csv)
    report_csv(s->csv, NULL);
  return EXIT_OK;
}

/* All that a measurement depends on and its question does not say. */
static void use_journal(session *s) {
  char *context = NULL;
  size_t size = 0;
  const tune_device *d = client_device(s->client);
  FILE *out = open_memstream(&context, &size);
  if (!out)
    return;
  fprintf(out, "qkvc %s; %s %s %s; %d SMs; driver %d; %s; %s", qkv_version(), d->kind, d->name, d->arch, d->sm_count,
          d->driver, d->compiler, s->settings.amount.name);
  for (int n = 0; n < params.count; n++)
    fprintf(out, "; %s", params.items[n]);
  fclose(out);
  client_use_journal(s->client, s->journal, context);
  free(context);
}

/* ---- Tables ---- */

static void send_entry(const session *s, const tune_group *g, int w) {
  const tune_choice *c = &g->choices[w];
  record answer = {0};
  record_line l;
  const tune_workload none = {{0}, {0}, 0, 0, 0}, *workload = w < g->nworkloads ? &g->workloads[w] : &none;
  if (!record_begin(&l))
    return;
  record_put(&l.to, "ask", "entry");
  record_put(&l.to, "spec", g->path);
  record_put(&l.to, "phase", g->phase);
  record_put(&l.to, "family", g->candidates[c->winner].family);
  record_put(&l.to, "schedule", g->candidates[c->winner].schedule);
  if (w < g->nworkloads)
    record_put(&l.to, "workload", workload->name);
  record_put_number(&l.to, "batch", (double)workload->batch);
  record_put_number(&l.to, "q", (double)workload->len_q);
  record_put_number(&l.to, "kv", (double)workload->len_k);
  record_put_number(&l.to, "seconds", c->seconds);
  record_put_number(&l.to, "low", c->low);
  record_put_number(&l.to, "high", c->high);
  record_put(&l.to, "default_schedule", g->candidates[c->default_candidate].schedule);
  record_put_number(&l.to, "default_seconds", c->default_seconds);
  char *line = record_end(&l);
  client_ask(s->client, line ? line : "", s->settings.limit, &answer, NULL, NULL);
  record_free(&answer);
  free(line);
}

static int write_group(const session *s, const tune_group *g) {
  const tune_device *d = client_device(s->client);
  const char *path = strstr(d->compiler, " (/"); /* of the library: of this machine */
  char notes[1024];
  snprintf(notes, sizeof notes, "effort: %s\nsamples: %d\nclock: %.0f MHz\ndriver: %d\ncompiler: %.*s\n",
           s->settings.amount.name, s->settings.amount.final_samples, 1e-6 * d->clock_hz, d->driver,
           path ? (int)(path - d->compiler) : 200, d->compiler);
  clock_notes(g, notes + strlen(notes), sizeof notes - strlen(notes));
  int entries = 0;
  for (int w = 0; w <= g->nworkloads; w++)
    if (g->choices[w].winner >= 0) {
      send_entry(s, g, w);
      entries++;
    }
  return ask_plain(s, "write", g->path, notes, entries);
}

/* ---- The run ---- */

/* When a group has to be done: after an equal part of the time that is left, or before now. 0: whenever it is. */
static double group_deadline(const session *s, int group) {
  const double now = cli_seconds(), left = s->settings.deadline - now;
  if (s->settings.deadline <= 0)
    return 0;
  return left > 0 ? now + left / (s->plan.count - group) : s->settings.deadline;
}

/* Answers that nobody gave say nothing of the group. */
static int device_gone(tune_group *g) {
  g->tuned = false;
  snprintf(g->outcome, sizeof g->outcome, "the device is gone");
  cli_error("%s %s: the device cannot be opened any more; --resume goes on from here", g->name, g->phase);
  return EXIT_FAILED;
}

/* Begins to compile a group, if that was not done: its candidates are asked for first. */
static void begin_group(session *s, int n, int most) {
  if (n == s->begun)
    return;
  tune_group *g = &s->plan.groups[n];
  s->begun = n;
  s->code = plan_candidates(g, s->client, &s->settings);
  if (!s->code)
    s->compile = compile_begin(s->builders, s->client, g, &s->settings, most);
}

/* Ends the compiling of the group that was begun: at `deadline` at the latest, if not 0. */
static void end_compiling(session *s, double deadline) {
  compile_end(s->compile, deadline);
  s->compile = NULL;
}

static void step(void *user) {
  const session *s = user;
  if (s->compile)
    compile_step(s->compile);
}

/* While the worker is at a group, kernels of the next one are compiled on the cores that it leaves. */
static void begin_next(session *s, int n) {
  const int most = s->settings.jobs - SPARE_CORES;
  if (n + 1 < s->plan.count && most > 0)
    begin_group(s, n + 1, most);
}

static int tune_group_of(session *s, int n) {
  tune_group *g = &s->plan.groups[n];
  const double start = cli_seconds(), deadline = group_deadline(s, n);
  tune_now.group = n;
  /* A group has parts that nothing shortens; one that is begun must come to something. */
  if (deadline > 0 && (deadline <= start || s->settings.deadline - start < 0.5 * s->least)) {
    snprintf(g->outcome, sizeof g->outcome, "no time was left");
    end_compiling(s, start);
    if (!as_json)
      report_group(g);
    return EXIT_OK;
  }
  begin_group(s, n, s->settings.jobs);
  int code = s->code;
  if (client_lost(s->client))
    return device_gone(g);
  if (code) {
    snprintf(g->outcome, sizeof g->outcome, "no candidates");
    return code;
  }
  end_compiling(s, deadline);
  begin_next(s, n);
  search_group(g, s->client, &s->settings, deadline);
  g->seconds = cli_seconds() - start;
  s->least = s->least > 0 ? fmin(s->least, g->seconds) : g->seconds;
  cli_progress_end();
  if (client_lost(s->client))
    return device_gone(g);
  if (s->csv)
    report_csv(s->csv, g);
  if (g->tuned)
    code = write_group(s, g);
  else if (!code) {
    cli_error("%s %s: %s", g->name, g->phase, g->outcome);
    code = EXIT_FAILED;
  }
  if (!as_json)
    report_group(g);
  return code;
}

static int run_all(session *s) {
  int code = EXIT_OK;
  tune_now = (tune_progress){s->started, s->settings.deadline, 0, s->plan.count};
  client_meanwhile(s->client, step, s);
  for (int n = 0; n < s->plan.count && !client_lost(s->client); n++) {
    const int one = tune_group_of(s, n);
    code = code ? code : one;
  }
  end_compiling(s, cli_seconds());
  const double seconds = cli_seconds() - s->started;
  if (as_json)
    report_json(&s->plan, client_device(s->client), seconds, client_restarts(s->client));
  else
    printf("%d group%s in %.1f s, %d worker%s started anew; tables in %s\n", s->plan.count,
           s->plan.count == 1 ? "" : "s", seconds, client_restarts(s->client),
           client_restarts(s->client) == 1 ? "" : "s", s->tables ? s->tables : qkv_tuned_path(s->engine));
  return code;
}

static int run_dry(session *s) {
  int code = EXIT_OK;
  for (int n = 0; n < s->plan.count && !code; n++)
    code = plan_candidates(&s->plan.groups[n], s->client, &s->settings);
  if (!code)
    (as_json ? report_plan_json : report_plan)(&s->plan, &s->settings);
  return code;
}

/* What compiles for the worker's device without touching it. */
static int open_compilers(session *s) {
  const tune_device *d = client_device(s->client);
  const char *device = !strcmp(d->kind, "emu") ? "emu" : "none";
  if (!strcmp(d->kind, "none") && !dry_run)
    return usage("device none compiles but runs nothing; choose cuda or emu, or --dry-run%s", "");
  cli_global.arch = d->arch;
  qkv_options o = cli_engine_options(device);
  qkv_status status = qkv_open(&o, &s->engine);
  if (status)
    return cli_fail(NULL, status);
  s->builders = builders_open(s->settings.jobs, device, &params);
  return s->builders ? EXIT_OK : EXIT_FAILED;
}

/* The exit code, with what became of the CSV file. */
static int close_csv(session *s, int code) {
  const bool failed = s->csv && ferror(s->csv); /* of a row; the rest may have been written since */
  if (!s->csv || (!fclose(s->csv) && !failed))
    return code;
  cli_error("%s: %s", csv_file, failed ? "not all rows could be written" : strerror(errno));
  return code ? code : EXIT_FAILED;
}

static int run(int count, char **arguments) {
  session s = {.started = cli_seconds(), .begun = -1};
  int code = read_settings(&s.settings);
  if (!code)
    code = choose_tables(&s);
  if (!code)
    code = client_open(s.tables, &params, &s.client);
  if (!code) {
    adapt_settings(&s.settings, client_device(s.client));
    code = open_compilers(&s);
  }
  if (!code)
    code = plan_make(s.engine, arguments, count, &s.settings, &s.plan);
  if (!code && dry_run)
    code = run_dry(&s);
  else if (!code && (code = check_places(&s)) == EXIT_OK) {
    use_journal(&s);
    code = run_all(&s);
  }
  builders_close(s.builders);
  client_close(s.client);
  plan_free(&s.plan);
  qkv_close(s.engine);
  journal_close(s.journal);
  code = close_csv(&s, code);
  free(s.tables);
  return code;
}

const cli_command cli_tune_command = {
    "tune",
    "SPEC...",
    "find the fastest schedules on this device and write them to tables",
    "For each phase of each spec: the schedules that a model of the device expects most of are compiled in parallel,\n"
    "checked against the reference, and timed on the spec's workloads, in turns, by a worker process. A candidate\n"
    "that does not compile, breaks the compiler, is wrong, crashes or hangs costs itself and a line in the journal.\n"
    "The schedule in use stays unless another one is faster by more than the noise, or it is slower than the default.\n"
    "qkv_prepare takes what the tables have (docs/tuning.md).\n"
    "A run that was killed goes on with --resume. Several GPUs: --shard 1/4 and so on, then qkvc tuned merge.",
    options,
    1,
    -1,
    run,
    NULL};
