/* main.c: the conformance runner: proves kernels right on a device, through the public API only.
 *
 * Workers take groups of neighbouring cases with the same spec, so that each kernel is prepared once; launches take
 * turns. Every failure prints the command that reruns it. Exit status: 0 all passed, 1 failures, 2 usage or set-up. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance.h"

typedef struct options {
  const char *device, *arch, *set, *filter, *line, *family, *csv;
  uint64_t seed;
  int jobs, emu_seeds;
  bool list, verbose;
} options;

typedef struct runner {
  const options *opt;
  qkv_engine *engine;
  const qkv_device_info *info;
  uint64_t emu_seed;
  const case_list *cases;
  FILE *csv;
  pthread_mutex_t lock; /* guards what follows, and printing */
  int next, done, passed, failed, refused;
  double worst;                /* of the passed cases */
  pthread_mutex_t device_lock; /* one launch at a time */
} runner;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Whether two neighbours use the same kernels, as far as a worker cares. */
static bool same_group(const test_case *a, const test_case *b) {
  char x[SPEC_TEXT], y[SPEC_TEXT];
  spec_build(a, x);
  spec_build(b, y);
  return strcmp(x, y) == 0;
}

/* Takes the next group; false when none is left. */
static bool take(runner *r, int *from, int *to) {
  pthread_mutex_lock(&r->lock);
  *from = *to = r->next;
  while (*to < r->cases->count && (*to == *from || same_group(&r->cases->items[*from], &r->cases->items[*to])))
    (*to)++;
  r->next = *to;
  pthread_mutex_unlock(&r->lock);
  return *from < *to;
}

static void report(runner *r, const test_case *c, const verdict *v, double seconds) {
  static const char *const words[] = {"passed", "failed", "refused"};
  char line[CASE_LINE];
  case_print(c, line);
  pthread_mutex_lock(&r->lock);
  r->done++;
  *(v->outcome == PASSED ? &r->passed : v->outcome == FAILED ? &r->failed : &r->refused) += 1;
  if (v->outcome == PASSED && v->worst > r->worst)
    r->worst = v->worst;
  if (v->outcome == FAILED) {
    printf("FAILED %s\n  %s\n  conformance --device %s", c->title ? c->title : "case", v->message, r->opt->device);
    if (strcmp(r->info->kind, "emu") == 0)
      printf(" --arch %s", r->info->arch);
    if (r->emu_seed != 0)
      printf(" --emu-seed %llu", (unsigned long long)r->emu_seed);
    if (r->opt->family != NULL)
      printf(" --family %s", r->opt->family);
    printf(" --case \"%s\"\n", line);
  } else if (r->opt->verbose) {
    printf("%s %.3f %.2fs %s: %s\n", words[v->outcome], v->worst, seconds, c->title ? c->title : "case", line);
  } else if (r->done % 50 == 0) {
    printf("%d of %d, %d failed\n", r->done, r->cases->count, r->failed);
  }
  fflush(stdout);
  if (r->csv != NULL)
    fprintf(r->csv, "%s,%.6f,%.4f,\"%s\",\"%s\"\n", words[v->outcome], v->worst, seconds, c->title ? c->title : "",
            line);
  pthread_mutex_unlock(&r->lock);
}

static void *work(void *user) {
  runner *r = user;
  session s = {.engine = r->engine,
               .device_lock = &r->device_lock,
               .family = r->opt->family,
               .arch = r->info->arch,
               .emulated = strcmp(r->info->kind, "cuda") != 0};
  int from, to;
  while (take(r, &from, &to)) {
    for (int n = from; n < to; n++) {
      verdict v;
      double start = now();
      check_case(&s, &r->cases->items[n], &v);
      report(r, &r->cases->items[n], &v, now() - start);
    }
  }
  session_close(&s);
  return NULL;
}

static void log_line(qkv_log_level level, const char *message, void *user) {
  (void)user;
  if (level == QKV_LOG_WARNING)
    fprintf(stderr, "%s\n", message);
}

/* Runs all cases with one engine. Returns the number of failures, or -1 when there is no device. */
static int run_all(const options *opt, const case_list *cases, uint64_t emu_seed) {
  runner r = {.opt = opt,
              .cases = cases,
              .emu_seed = emu_seed,
              .lock = PTHREAD_MUTEX_INITIALIZER,
              .device_lock = PTHREAD_MUTEX_INITIALIZER};
  qkv_device_info info = {.size = sizeof info, .name = "reference", .arch = "sm_80"};
  if (opt->arch != NULL)
    snprintf(info.arch, sizeof info.arch, "%s", opt->arch);
  r.info = &info;
  double start = now();
  if (strcmp(opt->device, "reference") != 0) {
    qkv_options engine_options = QKV_OPTIONS_INIT;
    engine_options.device = opt->device;
    engine_options.arch = opt->arch;
    engine_options.emu_seed = emu_seed;
    engine_options.log = log_line;
    if (qkv_open(&engine_options, &r.engine) != QKV_OK || qkv_device_get_info(r.engine, &info) != QKV_OK) {
      fprintf(stderr, "conformance: %s\n", qkv_last_error(NULL));
      qkv_close(r.engine);
      return -1;
    }
  }
  printf("%d cases on %s for %s, %d jobs%s%s\n", cases->count, info.name, info.arch, opt->jobs,
         info.compiler[0] ? ", " : "", info.compiler);
  if (opt->csv != NULL && (r.csv = fopen(opt->csv, "a")) == NULL)
    perror(opt->csv);
  pthread_t threads[64];
  int started = 0;
  while (started < opt->jobs && pthread_create(&threads[started], NULL, work, &r) == 0)
    started++;
  if (started == 0)
    work(&r);
  for (int n = 0; n < started; n++)
    pthread_join(threads[n], NULL);
  if (r.csv != NULL)
    fclose(r.csv);
  if (r.engine != NULL) {
    qkv_counters counters = {.size = sizeof counters};
    qkv_get_counters(r.engine, &counters);
    printf("%llu kernels compiled, %llu from the cache, %llu launches\n", (unsigned long long)counters.compiles,
           (unsigned long long)counters.cache_hits, (unsigned long long)counters.launches);
  }
  printf("%d passed, %d failed, %d refused as allowed; greatest error %.2f of its tolerance; %.1f s\n", r.passed,
         r.failed, r.refused, r.worst, now() - start);
  qkv_close(r.engine);
  return r.failed;
}

static const char usage[] =
    "usage: conformance [options]\n"
    "  --device D      emu (default), cuda, cuda:N, or reference (tests the runner itself)\n"
    "  --arch A        generate for this architecture (default: the GPU's; sm_80 on emu)\n"
    "  --set S         one of: quick grid invariance hard large orders packed walks plans residues residues90\n"
    "                  sequences sequences90 decode decode90 sensitivity full\n"
    "                  (default quick)\n"
    "  --case LINE     one case, as a failure prints it\n"
    "  --filter TEXT   only cases whose line or title contains TEXT\n"
    "  --family NAME   the kernel family for every case that does not name one\n"
    "  --seed N        seed of the grid's sample\n"
    "  --emu-seed N    order of asynchronous work on emu\n"
    "  --emu-seeds N   everything under emulator seeds 0 to N - 1: in order, in reverse, then at random\n"
    "  --jobs N        worker threads (default: one per processor, at most 16)\n"
    "  --csv FILE      appends outcome, error as a part of the tolerance, seconds, title, case\n"
    "  --list          prints the cases; --fields prints the fields of a case\n"
    "  -v              prints every case\n";

/* Value of an option that has one; ends the program when there is none. */
static const char *value(int argc, char **argv, int *n) {
  if (*n + 1 < argc)
    return argv[++*n];
  fprintf(stderr, "conformance: %s needs a value\n", argv[*n]);
  exit(2);
}

static void parse(int argc, char **argv, options *opt, uint64_t *emu_seed) {
  for (int n = 1; n < argc; n++) {
    const char *a = argv[n];
    if (strcmp(a, "--device") == 0)
      opt->device = value(argc, argv, &n);
    else if (strcmp(a, "--arch") == 0)
      opt->arch = value(argc, argv, &n);
    else if (strcmp(a, "--set") == 0)
      opt->set = value(argc, argv, &n);
    else if (strcmp(a, "--case") == 0)
      opt->line = value(argc, argv, &n);
    else if (strcmp(a, "--filter") == 0)
      opt->filter = value(argc, argv, &n);
    else if (strcmp(a, "--family") == 0)
      opt->family = value(argc, argv, &n);
    else if (strcmp(a, "--csv") == 0)
      opt->csv = value(argc, argv, &n);
    else if (strcmp(a, "--seed") == 0)
      opt->seed = strtoull(value(argc, argv, &n), NULL, 10);
    else if (strcmp(a, "--emu-seed") == 0)
      *emu_seed = strtoull(value(argc, argv, &n), NULL, 10);
    else if (strcmp(a, "--emu-seeds") == 0)
      opt->emu_seeds = atoi(value(argc, argv, &n));
    else if (strcmp(a, "--jobs") == 0)
      opt->jobs = atoi(value(argc, argv, &n));
    else if (strcmp(a, "--list") == 0)
      opt->list = true;
    else if (strcmp(a, "-v") == 0)
      opt->verbose = true;
    else if (strcmp(a, "--fields") == 0)
      case_fields_print(stdout), exit(0);
    else if (strcmp(a, "--help") == 0)
      fputs(usage, stdout), exit(0);
    else
      fprintf(stderr, "conformance: unknown option '%s'\n%s", a, usage), exit(2);
  }
  if (opt->jobs < 1)
    opt->jobs = 1;
  if (opt->jobs > 64)
    opt->jobs = 64;
}

/* The cases asked for. False after a message. */
static bool select_cases(const options *opt, case_list *out) {
  case_list all = {0};
  char message[MESSAGE_SIZE], line[CASE_LINE];
  if (opt->line != NULL) {
    test_case c;
    if (!case_parse(opt->line, &c, message)) {
      fprintf(stderr, "conformance: --case: %s\n", message);
      return false;
    }
    case_list_add(out, &c);
    return true;
  }
  if (!set_build(opt->set, opt->device, opt->seed, &all)) {
    fprintf(stderr, "conformance: unknown set '%s'; there are: %s\n", opt->set, set_names);
    return false;
  }
  for (int n = 0; n < all.count; n++) {
    const test_case *c = &all.items[n];
    case_print(c, line);
    if (opt->filter == NULL || strstr(line, opt->filter) != NULL || (c->title && strstr(c->title, opt->filter) != NULL))
      case_list_add(out, c);
  }
  free(all.items);
  if (out->count == 0)
    fprintf(stderr, "conformance: no case is left to run\n");
  return out->count > 0;
}

int main(int argc, char **argv) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  options opt = {.device = "emu", .set = "quick", .jobs = processors > 16 ? 16 : (int)processors};
  case_list cases = {0};
  uint64_t emu_seed = 0;
  int failed = 0;
  parse(argc, argv, &opt, &emu_seed);
  if (!select_cases(&opt, &cases))
    return 2;
  if (opt.list) {
    for (int n = 0; n < cases.count; n++) {
      char line[CASE_LINE];
      case_print(&cases.items[n], line);
      printf("%s\n", line);
    }
  } else if (opt.emu_seeds > 0) {
    for (int n = 0; n < opt.emu_seeds && failed >= 0; n++) {
      printf("emulator seed %d: ", n);
      int more = run_all(&opt, &cases, (uint64_t)n);
      failed = more < 0 ? -1 : failed + more;
    }
  } else {
    failed = run_all(&opt, &cases, emu_seed);
  }
  free(cases.items);
  return failed < 0 ? 2 : failed > 0;
}
