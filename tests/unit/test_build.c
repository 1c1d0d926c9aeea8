/* test_build.c: one job per key, with a compiler that does what the test says: who asks for a rebuild never gets what a
 * slower reader took from the cache, a failure reaches all who wait, and nothing of it is published. And what a log
 * says of lost speed reaches the engine's log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "qkv_internal.h"

static char root[64];
static qkv_engine *engine;
static gen_kernel kernel;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int gate_open, at_gate, compiles;
static qkv_status verdict; /* of the compiler */

static void pass_gate(void) {
  pthread_mutex_lock(&lock);
  at_gate++;
  pthread_cond_broadcast(&changed);
  while (!gate_open)
    pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void wait_for_gate(void) {
  pthread_mutex_lock(&lock);
  while (!at_gate)
    pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void open_gate(void) {
  pthread_mutex_lock(&lock);
  gate_open = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static qkv_status identity(char *out, size_t size) {
  snprintf(out, size, "a compiler");
  return QKV_OK;
}

static qkv_status compile(const char *source, const char *target, device_image *image) {
  (void)source, (void)target;
  *image = (device_image){0};
  __atomic_add_fetch(&compiles, 1, __ATOMIC_SEQ_CST);
  if (verdict != QKV_OK) {
    pass_gate();
    return error_set(verdict, "the compiler says no");
  }
  *image = (device_image){.bytes = strdup("fresh"), .size = 6, .log = strdup("")};
  return QKV_OK;
}

/* Looked at only when an image came from the cache. */
static int plausible(const void *image, size_t size) {
  (void)image, (void)size;
  pass_gate();
  return 1;
}

static const compiler_ops compiler = {"test", identity, compile, NULL, plausible, NULL};

static int begin(void **state) {
  (void)state;
  qkv_options o = QKV_OPTIONS_INIT;
  strcpy(root, "/tmp/qkv-build-XXXXXX");
  gate_open = at_gate = compiles = 0;
  verdict = QKV_OK;
  o.device = "none";
  o.cache_dir = mkdtemp(root);
  kernel = (gen_kernel){0};
  text_puts(&kernel.source, "a source");
  snprintf(kernel.manifest.family, sizeof kernel.manifest.family, "family");
  snprintf(kernel.manifest.arch, sizeof kernel.manifest.arch, "sm_80");
  return !o.cache_dir || qkv_open(&o, &engine) != QKV_OK;
}

static int end(void **state) {
  (void)state;
  char command[128];
  qkv_close(engine);
  text_free(&kernel.source);
  snprintf(command, sizeof command, "rm -rf %s", root);
  return system(command);
}

typedef struct build {
  build_from from;
  qkv_status status;
  int from_cache, done;
  char message[256];
} build;

static void *run(void *user) {
  build *b = user;
  build_job *job;
  b->status = build_kernel(engine, &compiler, &kernel, b->from, &job);
  b->from_cache = job ? job->from_cache : -1;
  snprintf(b->message, sizeof b->message, "%s", b->status == QKV_OK ? "" : error_message());
  build_release(engine, job);
  __atomic_store_n(&b->done, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static void test_rebuild_passes_a_reader(void **state) {
  (void)state;
  build first = {0}, reader = {0}, again = {.from = BUILD_ANEW};
  run(&first);
  assert_int_equal(first.status, QKV_OK);
  pthread_t threads[2];
  assert_int_equal(pthread_create(&threads[0], NULL, run, &reader), 0);
  wait_for_gate(); /* it has read the entry and holds its job */
  assert_int_equal(pthread_create(&threads[1], NULL, run, &again), 0);
  for (int waited = 0; waited < 2000 && !__atomic_load_n(&again.done, __ATOMIC_SEQ_CST); waited++)
    usleep(1000);
  int passed = __atomic_load_n(&again.done, __ATOMIC_SEQ_CST);
  open_gate();
  pthread_join(threads[0], NULL);
  pthread_join(threads[1], NULL);
  assert_true(passed);
  assert_int_equal(reader.from_cache, 1);
  assert_int_equal(again.from_cache, 0);
  assert_int_equal(compiles, 2);
}

static void test_failure_is_shared(void **state) {
  (void)state;
  enum { THREADS = 6 };
  build builds[THREADS] = {{0}};
  pthread_t threads[THREADS];
  verdict = QKV_COMPILE_ERROR;
  assert_int_equal(pthread_create(&threads[0], NULL, run, &builds[0]), 0);
  wait_for_gate();
  for (int n = 1; n < THREADS; n++)
    assert_int_equal(pthread_create(&threads[n], NULL, run, &builds[n]), 0);
  for (int joined = 0; joined < THREADS;) { /* all have found the running job */
    pthread_mutex_lock(&engine->jobs_lock);
    joined = engine->jobs->users;
    pthread_mutex_unlock(&engine->jobs_lock);
    usleep(100);
  }
  open_gate();
  for (int n = 0; n < THREADS; n++) {
    pthread_join(threads[n], NULL);
    assert_int_equal(builds[n].status, QKV_COMPILE_ERROR);
    assert_string_equal(builds[n].message, "the compiler says no");
  }
  assert_int_equal(compiles, 1);
  assert_null(engine->jobs);
  verdict = QKV_OK;
  build later = {0};
  run(&later);
  assert_int_equal(later.status, QKV_OK);
  assert_int_equal(later.from_cache, 0);
}

static void collect(qkv_log_level level, const char *message, void *user) {
  text_printf(user, "%d %s\n", (int)level, message);
}

/* Who prepares a kernel is warned of lost speed, of each entry, compiled or from the cache. */
static void test_lost_speed_is_logged(void **state) {
  (void)state;
  static const char log[] = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to "
                            "determine register count at entry.\n"
                            "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
                            "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n";
  text got = {0};
  manifest m = {.family = "family", .arch = "sm_90a", .schedule = "x=1", .nlaunches = 2};
  strcpy(m.launches[0].entry, "a");
  strcpy(m.launches[1].entry, "b");
  engine->log = collect, engine->log_user = &got;
  log_warn(engine, log, "spec", &m);
  log_warn(engine, "", "spec", &m);
  log_warn(engine, NULL, "spec", &m);
  assert_string_equal(got.bytes, "1 spec, family (x=1) for sm_90a: a: setmaxnreg ignored (C7508): launch bounds do not "
                                 "fix the registers at entry\n"
                                 "1 spec, family (x=1) for sm_90a: b: setmaxnreg ignored (C7508): launch bounds do not "
                                 "fix the registers at entry\n");
  engine->log = NULL;
  text_free(&got);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {TEST(test_rebuild_passes_a_reader), TEST(test_failure_is_shared),
                                     TEST(test_lost_speed_is_logged)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
