/* cli_bundle.c: qkvc bundle: compiles all that specs need at run time, in parallel, into one pack; or into a C array.
 *
 * One job is one (spec, architecture, request); jobs run in any order and are reported in the order given. The pack's
 * bytes do not depend on that order. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "cli_bundle.h"
#include "cli_table.h"
#include "qkv_pack.h"

static const char *output, *phases, *family, *schedule;
static cli_list limits_list;
static int as_c_array, aligned_only;
static int64_t jobs_limit;

static const cli_option options[] = {
    {"output", 'o', CLI_TEXT, &output, "FILE", "the pack; with --c-array FILE.c and FILE.h"},
    {"limits", 0, CLI_LIST, &limits_list, "K=N,...",
     "also for these limits of qkv_prepare: batch, len_q, len_k; may be given again"},
    {"phase", 0, CLI_TEXT, &phases, "LIST",
     "both (many and few queries), prefill, decode, append, merge; default: what the spec has"},
    {"family", 0, CLI_TEXT, &family, "NAME", "as in limits.family"},
    {"schedule", 0, CLI_TEXT, &schedule, "K=V,...", "as in limits.schedule"},
    {"aligned-only", 0, CLI_FLAG, &aligned_only, NULL, "leave out the kernels for unaligned tensors"},
    {"c-array", 0, CLI_FLAG, &as_c_array, NULL, "write a C file with the pack as an array, and its header"},
    {"jobs", 'j', CLI_COUNT, &jobs_limit, "N", "work on N specs at once; default: the number of cores"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

enum { MOST_ARCHES = 16, MOST_PHASES = 8 };

typedef struct job {
  int spec;         /* number of the argument */
  const char *arch; /* NULL: the engine's */
  qkv_limits limits;
  bool optional; /* not asked for by name: left out where the spec has no such phase */
  bool skipped;
  qkv_status status;
  char *message;
  qkv_bundle_report report;
} job;

typedef struct work {
  qkv_engine *engine;
  qkv_bundle *bundle;
  char **paths;
  qkv_spec **specs; /* by argument */
  job *jobs;
  int count;
} work;

/* ---- Jobs ---- */

/* "batch=64,len_q=1" over the limits; false after a message. */
static bool parse_limits(const char *word, qkv_limits *out) {
  char *copy = strdup(word), *parts[4];
  const int count = copy ? cli_split(copy, parts, 4) : 0;
  bool good = count >= 1 && count <= 3;
  for (int n = 0; n < count && good; n++) {
    const struct {
      const char *name;
      int64_t *to;
    } rows[] = {{"batch=", &out->batch}, {"len_q=", &out->len_q}, {"len_k=", &out->len_k}};
    good = false;
    for (size_t row = 0; row < 3 && !good; row++)
      good = !strncmp(parts[n], rows[row].name, strlen(rows[row].name)) &&
             cli_parse_count(parts[n] + strlen(rows[row].name), rows[row].to);
  }
  free(copy);
  if (!good)
    cli_error("--limits is like batch=64,len_q=1,len_k=8192, not '%s'", word);
  return good;
}

static qkv_limits base_limits(void) {
  qkv_limits l = QKV_LIMITS_INIT;
  l.aligned_only = aligned_only;
  l.family = family;
  l.schedule = schedule;
  return l;
}

static bool known_phase(const char *name) {
  static const char *const names[] = {"both", "prefill", "decode", "append", "merge"};
  for (size_t n = 0; n < sizeof names / sizeof *names; n++)
    if (!strcmp(name, names[n]))
      return true;
  cli_error("--phase knows both, prefill, decode, append and merge, not '%s'", name);
  return false;
}

/* Adds the jobs of one spec and architecture: every phase; those that take limits with none and with each given. */
static bool add_jobs(work *w, int spec, const char *arch, char **names, int nnames) {
  qkv_spec_info info = {.size = sizeof info};
  qkv_spec_get_info(w->specs[spec], &info);
  static const char *const standard[] = {"both", "append", "merge"};
  const int count = nnames ? nnames : info.wants_lse || info.wants_lse_with_sink ? 3 : 2;
  for (int n = 0; n < count; n++) {
    const char *phase = nnames ? names[n] : standard[n];
    const bool plain = !strcmp(phase, "append") || !strcmp(phase, "merge"); /* one kernel, whatever the sizes */
    for (int i = -1; i < (plain ? 0 : limits_list.count); i++) {
      job *j = &w->jobs[w->count++];
      *j = (job){.spec = spec, .arch = arch, .limits = base_limits(), .optional = !nnames && n > 0};
      j->limits.phase = strcmp(phase, "both") ? phase : NULL;
      if (plain)
        j->limits.family = j->limits.schedule = NULL;
      if (i >= 0 && !parse_limits(limits_list.items[i], &j->limits))
        return false;
    }
  }
  return true;
}

static void run_job(void *user, int n) {
  const work *w = user;
  job *j = &w->jobs[n];
  j->report.size = sizeof j->report;
  j->status = qkv_bundle_add(w->bundle, w->specs[j->spec], j->arch, &j->limits, &j->report);
  if (j->status == QKV_UNSUPPORTED && j->optional) {
    j->skipped = true;
    j->status = QKV_OK;
  }
  if (j->status)
    j->message = strdup(qkv_last_error(NULL));
}

static void show_step(void *user, int n, int done) {
  const work *w = user;
  const job *j = &w->jobs[n];
  cli_progress("bundling %d/%d: %s %s", done, w->count, w->paths[j->spec], j->arch ? j->arch : "");
}

/* ---- Report ---- */

static int report(const work *w, double seconds) {
  static const char *const heads[] = {"spec", "arch", "phase", ">kernels", ">compiled", ">images", ">seconds"};
  cli_table t;
  table_start(&t, 7, heads);
  int code = EXIT_OK, failed = 0;
  for (int n = 0; n < w->count; n++) {
    const job *j = &w->jobs[n];
    qkv_spec_info info = {.size = sizeof info};
    char bytes[32];
    if (j->skipped || j->status)
      continue;
    qkv_spec_get_info(w->specs[j->spec], &info);
    table_cell(&t, "%s", info.name);
    table_cell(&t, "%s", j->arch ? j->arch : "");
    table_cell(&t, "%s", j->limits.phase ? j->limits.phase : "both");
    table_cell(&t, "%d", j->report.kernels);
    table_cell(&t, "%d", j->report.compiled);
    table_cell(&t, "%s", format_bytes(bytes, j->report.image_bytes));
    table_cell(&t, "%.2f", j->report.seconds);
    table_row(&t);
  }
  if (t.rows)
    table_print(&t, stdout);
  table_free(&t);
  for (int n = 0; n < w->count; n++) {
    const job *j = &w->jobs[n];
    if (!j->status)
      continue;
    failed++;
    cli_error("%s%s%s: %s", w->paths[j->spec], j->arch ? ", " : "", j->arch ? j->arch : "",
              j->message ? j->message : qkv_status_name(j->status));
    code = code ? code : cli_exit_code(j->status);
  }
  if (failed)
    cli_note("%d of %d failed after %.1f s; no pack was written", failed, w->count, seconds);
  return code;
}

static int write_output(qkv_bundle *bundle) {
  const void *bytes;
  size_t size;
  char word[32];
  qkv_status status = as_c_array ? qkv_bundle_bytes(bundle, &bytes, &size) : qkv_bundle_write(bundle, output);
  if (!status && as_c_array)
    return bundle_write_array(output, bytes, size);
  if (!status)
    status = qkv_bundle_bytes(bundle, &bytes, &size);
  if (status)
    return cli_fail(NULL, status);
  printf("%s: %s\n", output, format_bytes(word, (int64_t)size));
  return EXIT_OK;
}

/* ---- The command ---- */

/* An output that cannot be written is found before minutes of compiling, not after. */
static bool can_write(const char *path) {
  const char *slash = strrchr(path, '/');
  char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
  struct stat st;
  const bool is_folder = !*path || (slash && !slash[1]) || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
  const bool good = folder && !is_folder && access(folder, W_OK | X_OK) == 0;
  if (is_folder)
    cli_error("%s cannot be written: it names no file", *path ? path : "--output ''");
  else if (!good)
    cli_error("%s cannot be written: %s: %s", path, folder ? folder : "", strerror(errno));
  free(folder);
  return good;
}

static int load_specs(work *w, int count) {
  for (int n = 0; n < count; n++) {
    qkv_status status = qkv_spec_load(w->engine, w->paths[n], &w->specs[n]);
    if (status)
      return cli_fail_spec(w->paths[n], status);
  }
  return EXIT_OK;
}

static int bundle(work *w, int count, char **arches, int narches, char **names, int nnames) {
  const int most = count * narches * (nnames ? nnames : 3) * (1 + limits_list.count);
  w->specs = calloc((size_t)count, sizeof *w->specs);
  w->jobs = calloc((size_t)most, sizeof *w->jobs);
  if (!w->specs || !w->jobs) {
    cli_error("out of memory");
    return EXIT_FAILED;
  }
  int code = load_specs(w, count);
  for (int n = 0; n < count && !code; n++)
    for (int a = 0; a < narches && !code; a++)
      code = add_jobs(w, n, arches[a], names, nnames) ? EXIT_OK : EXIT_USAGE;
  if (code)
    return code;
  const double start = cli_seconds();
  cli_parallel(&(cli_jobs){w->count, run_job, show_step, w}, jobs_limit);
  cli_progress_end();
  code = report(w, cli_seconds() - start);
  return code ? code : write_output(w->bundle);
}

static void free_work(work *w, int count) {
  for (int n = 0; w->jobs && n < w->count; n++)
    free(w->jobs[n].message);
  for (int n = 0; w->specs && n < count; n++)
    qkv_spec_free(w->specs[n]);
  free(w->jobs);
  free(w->specs);
  qkv_bundle_free(w->bundle);
  qkv_close(w->engine);
}

static int run(int count, char **arguments) {
  char *arch_text = cli_global.arch ? strdup(cli_global.arch) : NULL, *arches[MOST_ARCHES] = {NULL};
  char *phase_text = phases ? strdup(phases) : NULL, *names[MOST_PHASES];
  const int narches = arch_text ? cli_split(arch_text, arches, MOST_ARCHES) : 1;
  const int nnames = phase_text ? cli_split(phase_text, names, MOST_PHASES) : 0;
  work w = {.paths = arguments};
  int code = EXIT_OK;
  if (!output) {
    cli_error("--output says where the pack goes");
    code = EXIT_USAGE;
  } else if (narches < 1 || narches > MOST_ARCHES || nnames > MOST_PHASES || (phase_text && !nnames)) {
    cli_error("%s names none or too many", narches < 1 || narches > MOST_ARCHES ? "--arch" : "--phase");
    code = EXIT_USAGE;
  }
  for (int n = 0; n < nnames && !code; n++)
    code = known_phase(names[n]) ? EXIT_OK : EXIT_USAGE;
  if (!code && !can_write(output))
    code = EXIT_FAILED;
  cli_global.arch = arches[0]; /* the engine's default; each job names its own */
  qkv_status status = code ? QKV_OK : cli_open_compiler(&w.engine);
  if (!code && !status)
    status = qkv_bundle_open(w.engine, &w.bundle);
  if (status)
    code = cli_fail(NULL, status);
  if (!code)
    code = bundle(&w, count, arches, narches, names, nnames);
  free_work(&w, count);
  free(arch_text);
  free(phase_text);
  return code;
}

const cli_command cli_bundle_command = {
    "bundle",
    "SPEC...",
    "compile all that specs need at run time into one file",
    "The pack holds the specs, images for every architecture of --arch (a list: sm_80,sm_90a), and which of them\n"
    "answer which request, so that a program that loads it generates and compiles nothing: $QKV_PACKS,\n"
    "qkv_pack_load. It may be moved and copied. With --device emu the images are the emulated device's.\n"
    "The same specs, compiler and options give the same bytes. Needs no GPU. docs/packs.md has the rest.",
    options,
    1,
    -1,
    run,
    NULL};
