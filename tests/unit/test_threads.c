/* test_threads.c: one process with many threads, several devices, children: a kernel is compiled once per key, nobody
 * waits for another's kernel, every device gets its own, and a process may fork before it first uses CUDA.
 *
 * On stubs of the driver and of NVRTC (tests/fault), which make it start itself again; the emulated device beside them,
 * but not under the thread sanitizer, to which its fibers look like threads gone wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_stub.h"
#include "qkv_internal.h"
#include "tiny_problem.h"

#ifdef __SANITIZE_THREAD__
enum { HAVE_EMULATOR = 0 };
#else
enum { HAVE_EMULATOR = 1 };
#endif

static char root[64], stubs[64], compiler[64];

static int make_stubs(void **state) {
  (void)state;
  char command[512];
  strcpy(stubs, "/tmp/qkv-nvrtc-XXXXXX");
  if (!mkdtemp(stubs) || !tiny_compiler(compiler))
    return -1;
  snprintf(command, sizeof command, "cc -shared -fPIC -w -o %s/libnvrtc.so %s/tests/fault/nvrtc_stub.c", stubs,
           QKV_SOURCE_DIR);
  if (system(command))
    return -1;
  snprintf(command, sizeof command, "%s/libnvrtc.so", stubs);
  return setenv("QKV_NVRTC", command, 1) || setenv("QKV_STUB_CAPABILITIES", "9.0,8.0", 1);
}

static int remove_stubs(void **state) {
  (void)state;
  tiny_compiler_remove(compiler);
  tiny_compiler_remove(stubs);
  return 0;
}

static int begin(void **state) {
  (void)state;
  unsetenv("QKV_STUB_GATE");
  return tiny_folder(root, "qkv-threads") ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", root);
  return system(command);
}

static qkv_engine *open_engine(const char *where, const char *target) {
  qkv_options o = QKV_OPTIONS_INIT;
  qkv_engine *e;
  o.device = where;
  o.arch = target;
  o.cache_dir = root;
  if (qkv_open(&o, &e) != QKV_OK)
    fail_msg("%s: %s", where, qkv_last_error(NULL));
  return e;
}

static int count_entries(void) {
  DIR *dir = opendir(root);
  int count = 0;
  for (struct dirent *e; dir && (e = readdir(dir));)
    count += strstr(e->d_name, ".kernel") != NULL;
  if (dir)
    closedir(dir);
  return count;
}

/* ---- Threads ---- */

enum { THREADS = 24 };

typedef struct worker {
  qkv_engine *engine;
  int variant, done;
  pthread_barrier_t *start; /* NULL: at once */
  pthread_t thread;
  tiny_result result;
} worker;

static void *work(void *user) {
  worker *w = user;
  if (w->start)
    pthread_barrier_wait(w->start);
  tiny_run_on(w->engine, w->variant, &w->result);
  __atomic_store_n(&w->done, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static void start(worker *w) {
  assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
}

static void finish(worker *w) {
  pthread_join(w->thread, NULL);
  if (w->result.status != QKV_OK)
    fail_msg("variant %d: %s", w->variant, w->result.message);
}

static uint64_t compiles_of(const qkv_engine *e) {
  qkv_counters c = {.size = sizeof c};
  qkv_get_counters(e, &c);
  return c.compiles;
}

/* Keeps the compiler waiting in sources that hold the word, until open_gate. */
static void close_gate(const char *word) {
  char gate[128];
  snprintf(gate, sizeof gate, "%s:%s/gate", word, root);
  setenv("QKV_STUB_GATE", gate, 1);
}

static void open_gate(void) {
  char path[128];
  snprintf(path, sizeof path, "%s/gate", root);
  FILE *f = fopen(path, "w");
  if (f)
    fclose(f);
}

/* Until so many threads compile something or wait for it; half a minute at most. */
static void wait_for_users(qkv_engine *e, int count) {
  for (int users = 0, waited = 0; users < count && waited < 30000; waited++) {
    users = 0;
    pthread_mutex_lock(&e->jobs_lock);
    for (const build_job *job = e->jobs; job; job = job->next)
      users += job->users;
    pthread_mutex_unlock(&e->jobs_lock);
    usleep(1000);
  }
}

/* 24 threads at once on one engine, asking for `kinds` kernels, none of which is there before all have asked. */
static void ask_for(int kinds) {
  static worker workers[THREADS];
  char path[128];
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, THREADS);
  snprintf(path, sizeof path, "%s/gate", root);
  unlink(path);
  close_gate("qkv_params");
  qkv_engine *e = open_engine("cuda:0", NULL);
  for (int n = 0; n < THREADS; n++) {
    workers[n] = (worker){.engine = e, .variant = 100 * kinds + n % kinds, .start = &barrier};
    start(&workers[n]);
  }
  wait_for_users(e, THREADS);
  open_gate();
  for (int n = 0; n < THREADS; n++)
    finish(&workers[n]);
  if (compiles_of(e) != (uint64_t)kinds)
    fail_msg("%d threads and %d kernels: %llu compiles", THREADS, kinds, (unsigned long long)compiles_of(e));
  qkv_close(e);
  pthread_barrier_destroy(&barrier);
}

static void test_one_compile_per_key(void **state) {
  (void)state;
  static const int kinds[] = {1, 5, 24};
  for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++)
    ask_for(kinds[n]);
}

/* A kernel is compiled, for as long as the test wants; another is had meanwhile, from the compiler and from the cache.
 */
static void test_nobody_waits_for_another_kernel(void **state) {
  (void)state;
  static worker slow, same, quick;
  char word[16], waiting[160];
  qkv_engine *e = open_engine("cuda:0", NULL);
  slow = same = (worker){.engine = e, .variant = 7777};
  quick = (worker){.engine = e, .variant = 1};
  snprintf(word, sizeof word, "%d", 1000 + slow.variant);
  snprintf(waiting, sizeof waiting, "%s/gate.waiting", root);
  close_gate(word);
  start(&slow);
  for (int waited = 0; waited < 30000 && access(waiting, F_OK); waited++)
    usleep(1000);
  assert_int_equal(access(waiting, F_OK), 0);
  start(&same);
  for (int n = 0; n < 2; n++) { /* compiled, then from the cache */
    quick.done = 0;
    start(&quick);
    for (int waited = 0; waited < 30000 && !__atomic_load_n(&quick.done, __ATOMIC_SEQ_CST); waited++)
      usleep(1000);
    if (!__atomic_load_n(&quick.done, __ATOMIC_SEQ_CST)) {
      open_gate();
      fail_msg("a kernel waits until another is compiled");
    }
    finish(&quick);
  }
  assert_int_equal(__atomic_load_n(&slow.done, __ATOMIC_SEQ_CST) | __atomic_load_n(&same.done, __ATOMIC_SEQ_CST), 0);
  open_gate();
  finish(&slow);
  finish(&same);
  assert_int_equal(compiles_of(e), 2);
  qkv_close(e);
}

/* ---- Many at once, and packs ---- */

static void must(qkv_status status) {
  if (status != QKV_OK)
    fail_msg("%s", qkv_last_error(NULL));
}

static qkv_spec *load_tiny(qkv_engine *e, int variant) {
  char source[256];
  qkv_spec *s;
  tiny_spec(source, variant);
  must(qkv_spec_load(e, source, &s));
  return s;
}

/* 24 specs, of which three are equal each, by 24 threads: all are had, each kernel is compiled once. */
static void test_prepare_many(void **state) {
  (void)state;
  qkv_engine *e = open_engine("cuda:0", NULL);
  qkv_spec *specs[THREADS];
  qkv_op *ops[THREADS];
  qkv_prepare_many_options o = QKV_PREPARE_MANY_OPTIONS_INIT;
  o.threads = THREADS;
  for (int n = 0; n < THREADS; n++)
    specs[n] = load_tiny(e, n / 3);
  for (int round = 0; round < 2; round++) {
    must(qkv_prepare_many(e, THREADS, specs, NULL, ops, NULL, &o));
    for (int n = 0; n < THREADS; n++)
      qkv_op_free(ops[n]);
    assert_true(compiles_of(e) > 0 && compiles_of(e) == (uint64_t)count_entries());
  }
  for (int n = 0; n < THREADS; n++)
    qkv_spec_free(specs[n]);
  qkv_close(e);
}

/* One call's end does not lift the limit of another that goes on. */
typedef struct overlap {
  qkv_engine *engine;
  qkv_spec *spec;
  int seen;
  qkv_status status;
} overlap;

static void *prepare_beside(void *user) {
  overlap *o = user;
  qkv_prepare_many_options options = QKV_PREPARE_MANY_OPTIONS_INIT;
  qkv_op *op;
  options.threads = 1;
  o->status = qkv_prepare_many(o->engine, 1, &o->spec, NULL, &op, NULL, &options);
  qkv_op_free(op);
  return NULL;
}

static void look_at_limit(int done, int total, const char *name, const char *how, double seconds, void *user) {
  (void)done, (void)total, (void)name, (void)how, (void)seconds;
  overlap *o = user;
  pthread_t thread;
  if (pthread_create(&thread, NULL, prepare_beside, o) == 0)
    pthread_join(thread, NULL);
  o->seen = o->engine->compile_limit;
}

static void test_limits_of_overlapping_calls(void **state) {
  (void)state;
  qkv_engine *e = open_engine("cuda:0", NULL);
  overlap o = {e, load_tiny(e, 1), 0, QKV_INTERNAL};
  qkv_prepare_many_options options = QKV_PREPARE_MANY_OPTIONS_INIT;
  qkv_op *op;
  options.progress = look_at_limit;
  options.user = &o;
  options.threads = cores() + 3;
  must(qkv_prepare_many(e, 1, &o.spec, NULL, &op, NULL, &options));
  qkv_op_free(op);
  assert_int_equal(o.status, QKV_OK);
  assert_int_equal(o.seen, cores() + 3);
  assert_int_equal(e->compile_limit, cores());
  qkv_spec_free(o.spec);
  qkv_close(e);
}

/* One bundle, written, read and added to by many threads: whole packs, all of them. */
typedef struct writing {
  qkv_bundle *bundle;
  qkv_spec *spec;
  qkv_limits limits;
  char path[160];
  qkv_status status;
} writing;

static void *write_and_add(void *user) {
  writing *w = user;
  for (int n = 0; n < 3 && w->status == QKV_OK; n++) {
    w->status = qkv_bundle_add(w->bundle, w->spec, NULL, &w->limits, NULL);
    if (w->status == QKV_OK)
      w->status = qkv_bundle_write(w->bundle, w->path);
  }
  return NULL;
}

static void test_one_bundle_of_many_threads(void **state) {
  (void)state;
  enum { WRITERS = 4 };
  qkv_engine *e = open_engine("cuda:0", NULL);
  qkv_bundle *b;
  writing w[WRITERS];
  pthread_t threads[WRITERS];
  qkv_spec *s = load_tiny(e, 0);
  must(qkv_bundle_open(e, &b));
  for (int n = 0; n < WRITERS; n++) {
    w[n] = (writing){.bundle = b, .spec = s, .limits = QKV_LIMITS_INIT};
    w[n].limits.len_q = n % 2 ? 1 : 4096;
    snprintf(w[n].path, sizeof w[n].path, "%s/%d.pack", root, n);
    assert_int_equal(pthread_create(&threads[n], NULL, write_and_add, &w[n]), 0);
  }
  for (int n = 0; n < WRITERS; n++)
    pthread_join(threads[n], NULL);
  for (int n = 0; n < WRITERS; n++) {
    assert_int_equal(w[n].status, QKV_OK);
    qkv_pack_info info = {.size = sizeof info};
    must(qkv_pack_list(w[n].path, &info, NULL, NULL));
    assert_true(info.records > 0 && info.damaged == 0);
  }
  qkv_spec_free(s);
  qkv_bundle_free(b);
  qkv_close(e);
}

/* ---- Devices ---- */

static void test_devices_of_different_kinds(void **state) {
  (void)state;
  static const struct {
    const char *device, *arch;
  } rows[] = {{"cuda:0", "sm_90a"}, {"cuda:1", "sm_80"}, {"emu", "sm_80"}};
  enum { ROWS = sizeof rows / sizeof *rows };
  static worker workers[ROWS];
  const int used = HAVE_EMULATOR ? ROWS : ROWS - 1;
  for (int warm = 0; warm < 2; warm++) {
    for (int n = 0; n < used; n++) {
      workers[n] = (worker){.engine = open_engine(rows[n].device, NULL), .variant = 0};
      start(&workers[n]);
    }
    for (int n = 0; n < used; n++) {
      finish(&workers[n]);
      assert_string_equal(workers[n].result.arch, rows[n].arch);
      assert_int_equal(workers[n].result.counters.compiles, !warm);
      assert_int_equal(workers[n].result.counters.cache_hits, warm);
      if (n == 2 && tiny_judge(&workers[n].result))
        fail_msg("%s", tiny_judge(&workers[n].result));
      qkv_close(workers[n].engine);
    }
    assert_int_equal(count_entries(), used); /* a key each, in one directory */
  }
  /* The stub would have refused another's kernel. */
  static tiny_result wrong;
  qkv_engine *e = open_engine("cuda:1", "sm_90a");
  tiny_run_on(e, 0, &wrong);
  assert_int_equal(wrong.status, QKV_DEVICE_ERROR);
  assert_non_null(strstr(wrong.message, "NO_BINARY_FOR_GPU"));
  qkv_close(e);
}

/* ---- Forks ---- */

/* Prepares and runs on all devices; an exit code. */
static int use_devices(void) {
  static const char *const devices[] = {"cuda:0", "cuda:1", "emu"};
  static tiny_result r;
  qkv_options o = QKV_OPTIONS_INIT;
  o.cache_dir = root;
  for (int n = 0; n < 2 + HAVE_EMULATOR; n++) {
    o.device = devices[n];
    tiny_run(&o, 3, &r);
    if (r.status != QKV_OK || (n == 2 && tiny_judge(&r))) {
      fprintf(stderr, "%s: %s\n", devices[n], r.status != QKV_OK ? r.message : tiny_judge(&r));
      return 1;
    }
  }
  return 0;
}

static int code_of(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* A parent that loaded specs, compiled for GPUs and read the cache may fork: nothing of that touches the driver. Must
 * be the first test: the others use it. */
static void test_fork_before_cuda(void **state) {
  (void)state;
  qkv_engine *e = open_engine("none", "sm_90a");
  char source[256];
  qkv_spec *loaded;
  qkv_build_report report = {.size = sizeof report};
  tiny_spec(source, 3);
  assert_int_equal(qkv_spec_load(e, source, &loaded), QKV_OK);
  for (int n = 0; n < 2; n++)
    assert_int_equal(qkv_build(e, loaded, NULL, &report), QKV_OK);
  pid_t children[3];
  for (int n = 0; n < 3; n++) {
    children[n] = fork();
    assert_true(children[n] >= 0);
    if (children[n] == 0)
      _exit(use_devices());
  }
  int parent = use_devices(), wrong = 0;
  for (int n = 0; n < 3; n++)
    wrong += code_of(children[n]) != 0;
  assert_int_equal(parent, 0);
  assert_int_equal(wrong, 0);
  qkv_string_free(report.notes);
  qkv_string_free(report.advisories);
  qkv_spec_free(loaded);
  qkv_close(e);
}

/* Afterwards CUDA works in no child: it gets a typed failure; the emulated device still works there. */
static void test_fork_after_cuda(void **state) {
  (void)state;
  assert_int_equal(use_devices(), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    static tiny_result r;
    qkv_options o = QKV_OPTIONS_INIT;
    o.cache_dir = root;
    o.device = "cuda:0";
    tiny_run(&o, 3, &r);
    if (r.status == QKV_OK || !strstr(r.message, "NOT_INITIALIZED")) {
      fprintf(stderr, "status %d: %s\n", (int)r.status, r.message);
      _exit(1);
    }
    o.device = "emu";
    if (HAVE_EMULATOR)
      tiny_run(&o, 3, &r);
    _exit(HAVE_EMULATOR && tiny_judge(&r) ? 2 : 0);
  }
  assert_int_equal(code_of(child), 0);
}

int main(int argc, char **argv) {
  (void)argc;
  if (!getenv("QKV_TEST_STUBBED"))
    return cuda_stub_start(argv);
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {TEST(test_fork_before_cuda), TEST(test_fork_after_cuda),
                                     TEST(test_one_compile_per_key), TEST(test_nobody_waits_for_another_kernel),
                                     TEST(test_prepare_many), TEST(test_limits_of_overlapping_calls),
                                     TEST(test_one_bundle_of_many_threads),
                                     TEST(test_devices_of_different_kinds)};
  return cmocka_run_group_tests(tests, make_stubs, remove_stubs);
}
