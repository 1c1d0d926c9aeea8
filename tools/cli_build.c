/* cli_build.c: qkvc build: compiles specs for architectures, in parallel, and prints what each kernel needs.
 * One job is one (spec, architecture); jobs run on all cores in any order and are reported in the order given. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_json.h"
#include "cli_kernel.h"
#include "cli_table.h"

static int as_json;
static int64_t jobs_limit;

static const cli_option options[] = {
    CLI_KERNEL_OPTIONS,
    {"jobs", 'j', CLI_COUNT, &jobs_limit, "N", "compile N kernels at once; default: the number of cores"},
    {"json", 0, CLI_FLAG, &as_json, NULL, "one JSON object"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

typedef struct job {
  const char *path;
  const char *arch; /* NULL: the engine's */
  qkv_status status;
  bool spec_failed; /* the spec could not be loaded: its message stands as it is */
  char *message;
  char name[64];
  qkv_build_report report;
  double seconds;
} job;

typedef struct work {
  qkv_engine *engine;
  job *jobs;
  int count;
} work;

static char *copy_message(void) {
  const char *message = qkv_last_error(NULL);
  size_t length = strlen(message);
  while (length && message[length - 1] == '\n')
    length--;
  return strndup(message, length);
}

static void run_job(void *user, int n) {
  qkv_engine *engine = ((work *)user)->engine;
  job *j = &((work *)user)->jobs[n];
  double start = cli_seconds();
  qkv_spec *spec = NULL;
  qkv_build_options build = cli_kernel_build_options(j->arch);
  j->report.size = sizeof j->report;
  j->status = qkv_spec_load(engine, j->path, &spec);
  j->spec_failed = j->status != QKV_OK;
  if (!j->status) {
    qkv_spec_info info = {.size = sizeof info};
    qkv_spec_get_info(spec, &info);
    snprintf(j->name, sizeof j->name, "%s", info.name);
    j->status = qkv_build(engine, spec, &build, &j->report);
  }
  if (j->status)
    j->message = copy_message();
  qkv_spec_free(spec);
  j->seconds = cli_seconds() - start;
}

static void show_step(void *user, int n, int done) {
  const work *w = user;
  cli_progress("building %d/%d: %s %s", done, w->count, w->jobs[n].path, w->jobs[n].arch ? w->jobs[n].arch : "");
}

/* ---- Report ---- */

static double build_seconds(const qkv_build_report *r) {
  return r->render_seconds + r->compile_seconds + r->load_seconds;
}

/* What the compiler says of a kernel's speed, how often; added fences cost nothing worth a word. */
static int advisories(const qkv_build_entry *entry) {
  return entry->serialised_wgmma + entry->ignored_setmaxnreg + entry->added_waits + entry->warnings;
}

static void count_cell(cli_table *t, int value) {
  if (value < 0)
    table_cell(t, "-");
  else
    table_cell(t, "%d", value);
}

static void print_table(const job *jobs, int count) {
  static const char *const heads[] = {"spec",    "arch",     "kernel", ">registers", ">spills", ">advisories",
                                      ">shared", ">threads", ">cubin", ">seconds",   "schedule"};
  cli_table t;
  table_start(&t, 11, heads);
  for (int n = 0; n < count; n++) {
    const qkv_build_report *r = &jobs[n].report;
    for (int e = 0; !jobs[n].status && e < r->nentries; e++) {
      const qkv_build_entry *entry = &r->entries[e];
      table_cell(&t, "%s", e ? "" : jobs[n].name);
      table_cell(&t, "%s", e ? "" : r->arch);
      table_cell(&t, "%s", entry->name);
      count_cell(&t, entry->registers);
      count_cell(&t, entry->registers < 0 ? -1 : entry->spill_stores + entry->spill_loads);
      count_cell(&t, entry->registers < 0 ? -1 : advisories(entry));
      table_cell(&t, "%d", entry->shared_bytes);
      table_cell(&t, "%d", entry->threads);
      if (e) {
        table_row(&t);
        continue;
      }
      table_cell(&t, "%lld", (long long)r->image_bytes);
      table_cell(&t, r->from_cache ? "%.3f (cache)" : "%.3f", build_seconds(r));
      table_cell(&t, "%s", r->schedule);
      table_row(&t);
    }
  }
  if (t.rows)
    table_print(&t, stdout);
  table_free(&t);
}

/* A warning for each kernel and cause of lost speed. */
static void print_warnings(job *jobs, int count) {
  for (int n = 0; n < count; n++)
    for (char *rest = jobs[n].report.advisories, *line; (line = strsep(&rest, "\n")) != NULL;)
      if (*line)
        cli_warning("%s %s: %s", jobs[n].name, jobs[n].report.arch, line);
}

/* Compiler notes and failures, below the table. Returns the exit code. */
static int print_messages(const job *jobs, int count) {
  int code = EXIT_OK;
  for (int n = 0; n < count; n++) {
    const job *j = &jobs[n];
    if (j->report.notes && *j->report.notes && !j->status)
      printf("\nnotes on %s %s:\n%s\n", j->name, j->report.arch, j->report.notes);
  }
  for (int n = 0; n < count; n++) {
    const job *j = &jobs[n];
    if (!j->status)
      continue;
    if (j->status == QKV_BAD_SPEC)
      fprintf(stderr, "%s\n", j->message);
    else
      cli_error("%s%s%s: %s", j->path, j->arch ? ", " : "", j->arch ? j->arch : "", j->message);
    int one = j->spec_failed && (j->status == QKV_IO || j->status == QKV_INVALID_ARGUMENT) ? EXIT_SPEC
                                                                                           : cli_exit_code(j->status);
    code = code ? code : one;
  }
  return code;
}

static void json_job(cli_json *j, const job *one) {
  const qkv_build_report *r = &one->report;
  json_open(j, NULL, '{');
  json_string(j, "file", one->path);
  json_boolean(j, "ok", !one->status);
  if (one->status) {
    json_string(j, "arch", one->arch);
    json_string(j, "status", qkv_status_name(one->status));
    json_string(j, "error", one->message);
    json_close(j, '}');
    return;
  }
  json_string(j, "spec", one->name);
  json_string(j, "arch", r->arch);
  json_string(j, "family", r->family);
  json_string(j, "schedule", r->schedule);
  json_string(j, "key", r->key);
  json_boolean(j, "from_cache", r->from_cache != 0);
  json_real(j, "render_seconds", r->render_seconds);
  json_real(j, "compile_seconds", r->compile_seconds);
  json_real(j, "load_seconds", r->load_seconds);
  json_integer(j, "image_bytes", r->image_bytes);
  json_string(j, "notes", r->notes);
  json_string(j, "advisories", r->advisories);
  json_open(j, "kernels", '[');
  for (int e = 0; e < r->nentries; e++) {
    const qkv_build_entry *entry = &r->entries[e];
    json_open(j, NULL, '{');
    json_string(j, "name", entry->name);
    json_integer(j, "registers", entry->registers);
    json_integer(j, "spill_stores", entry->spill_stores);
    json_integer(j, "spill_loads", entry->spill_loads);
    json_integer(j, "stack", entry->stack);
    json_integer(j, "shared_bytes", entry->shared_bytes);
    json_integer(j, "threads", entry->threads);
    json_integer(j, "serialised_wgmma", entry->serialised_wgmma);
    json_integer(j, "ignored_setmaxnreg", entry->ignored_setmaxnreg);
    json_integer(j, "added_waits", entry->added_waits);
    json_integer(j, "added_fences", entry->added_fences);
    json_integer(j, "warnings", entry->warnings);
    json_close(j, '}');
  }
  json_close(j, ']');
  json_close(j, '}');
}

static int report_json(const job *jobs, int count, int failed, double seconds) {
  cli_json j = {.stream = stdout};
  json_open(&j, NULL, '{');
  json_open(&j, "builds", '[');
  for (int n = 0; n < count; n++)
    json_job(&j, &jobs[n]);
  json_close(&j, ']');
  json_integer(&j, "failed", failed);
  json_real(&j, "seconds", seconds);
  json_close(&j, '}');
  int code = EXIT_OK;
  for (int n = 0; n < count && !code; n++)
    code = jobs[n].spec_failed ? EXIT_SPEC : cli_exit_code(jobs[n].status);
  return code;
}

static int report(job *jobs, int count, double seconds) {
  int failed = 0, cached = 0, spilling = 0, advised = 0, code;
  for (int n = 0; n < count; n++) {
    const qkv_build_report *r = &jobs[n].report;
    failed += jobs[n].status != QKV_OK;
    cached += !jobs[n].status && r->from_cache;
    for (int e = 0; !jobs[n].status && e < r->nentries; e++) {
      spilling += r->entries[e].spill_stores + r->entries[e].spill_loads > 0;
      advised += advisories(&r->entries[e]) > 0;
    }
  }
  if (as_json) {
    code = report_json(jobs, count, failed, seconds);
    print_warnings(jobs, count);
    return code;
  }
  print_table(jobs, count);
  code = print_messages(jobs, count);
  print_warnings(jobs, count);
  printf("%s%d built (%d from the cache), %d failed, %d spilling, %d with advisories, %.2f s\n",
         failed < count ? "\n" : "", count - failed, cached, failed, spilling, advised, seconds);
  return code;
}

static int run(int count, char **arguments) {
  enum { ARCHES = 16 };
  char *arch_text = cli_global.arch ? strdup(cli_global.arch) : NULL, *arches[ARCHES] = {NULL};
  int narches = arch_text ? cli_split(arch_text, arches, ARCHES) : 1;
  if (!narches || narches > ARCHES) {
    cli_error(narches ? "--arch names more than %d architectures" : "--arch names no architecture", (int)ARCHES);
    free(arch_text);
    return EXIT_USAGE;
  }
  cli_global.arch = arches[0]; /* the engine's default; each job names its own */
  qkv_engine *engine = NULL;
  qkv_status status = cli_open_compiler(&engine);
  int jobs_count = count * narches, code;
  job *jobs = calloc((size_t)jobs_count, sizeof *jobs);
  if (status) {
    code = cli_fail(NULL, status);
  } else if (!jobs) {
    code = EXIT_FAILED;
    cli_error("out of memory");
  } else {
    for (int n = 0; n < jobs_count; n++) {
      jobs[n].path = arguments[n / narches];
      jobs[n].arch = arches[n % narches];
    }
    double start = cli_seconds();
    work w = {engine, jobs, jobs_count};
    cli_parallel(&(cli_jobs){jobs_count, run_job, show_step, &w}, jobs_limit);
    cli_progress_end();
    code = report(jobs, jobs_count, cli_seconds() - start);
    for (int n = 0; n < jobs_count; n++) {
      free(jobs[n].message);
      qkv_string_free(jobs[n].report.notes);
      qkv_string_free(jobs[n].report.advisories);
    }
  }
  qkv_close(engine);
  free(jobs);
  free(arch_text);
  return code;
}

const cli_command cli_build_command = {
    "build",
    "SPEC...",
    "compile kernels into the cache and print what they need",
    "One row per kernel: registers per thread, bytes spilled (stores and loads), how often the compiler says that "
    "speed "
    "is\n"
    "lost (a warning tells why), bytes of shared memory, threads, bytes of the image, seconds. --arch takes a list:\n"
    "sm_80,sm_90a. All specs are tried; the exit code is that of the first that failed. Without --arch: the GPU's\n"
    "architecture, sm_80 when there is none. Needs no GPU.",
    options,
    1,
    -1,
    run,
    NULL};
