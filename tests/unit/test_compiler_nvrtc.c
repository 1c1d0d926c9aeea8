/* test_compiler_nvrtc.c: finding NVRTC, compiling with it, and every way in which it can fail, with a stub that fails
 * on demand. The library is looked for once per process, so each search runs in a child of its own. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

static const char probe[] = "extern \"C\" __global__ void probe(float *p) { p[threadIdx.x] = 1.0f; }\n";
static char folder[] = "/tmp/qkv-nvrtc-XXXXXX";
static char stub[64], missing[64];

void __gcov_dump(void) __attribute__((weak));

/* Ends a child; its lines count where coverage is measured. */
static void end_child(int code) {
  if (__gcov_dump)
    __gcov_dump();
  _exit(code);
}

/* When set, only libraries below this folder can be opened: as on a machine without a toolkit. */
static const char *only_below;

void *dlopen(const char *path, int flags) {
  static void *(*real)(const char *, int);
  if (!real)
    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
  if (only_below && path && strncmp(path, only_below, strlen(only_below)) != 0)
    path = "/nonexistent/library.so";
  return real(path, flags);
}

/* Builds the stubs. -1 without a C compiler: their tests are skipped. */
static int build_stubs(void **state) {
  (void)state;
  char command[1024];
  if (!mkdtemp(folder))
    return -1;
  snprintf(stub, sizeof stub,
           "%s/libst\xc3\xbc"
           "b.so",
           folder);
  snprintf(missing, sizeof missing, "%s/missing.so", folder);
  snprintf(command, sizeof command,
           "cc -shared -fPIC -o %s %s/tests/fault/nvrtc_stub.c && cc -shared -fPIC -DMISSING -o %s "
           "%s/tests/fault/nvrtc_stub.c",
           stub, QKV_SOURCE_DIR, missing, QKV_SOURCE_DIR);
  if (system("cc --version >/dev/null 2>&1") == 0)
    return system(command);
  stub[0] = 0;
  return 0;
}

static int remove_stubs(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

/* In a child with $QKV_NVRTC = library and $QKV_STUB = mode: compiles the probe; 0 when the status is `want` and the
 * message holds both words. */
static int child_compile(const char *library, const char *mode, qkv_status want, const char *word, const char *other) {
  pid_t child = fork();
  if (child == 0) {
    device_image image;
    setenv("QKV_NVRTC", library, 1);
    setenv("QKV_STUB", mode, 1);
    qkv_status status = compiler_nvrtc.compile(probe, "sm_90a", &image);
    int good = status == want && (want == QKV_OK ? image.size == 64 : image.bytes == NULL) &&
               (want == QKV_OK || (strstr(error_message(), word) && strstr(error_message(), other)));
    if (!good)
      fprintf(stderr, "QKV_NVRTC=%s QKV_STUB=%s: status %d, message: %s\n", library, mode, (int)status,
              error_message());
    if (good && status == QKV_OK)
      good = strstr(image.log, "Used 7") && !strstr(image.log, "Compile time");
    image_free(&image);
    end_child(!good);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_stub(void **state) {
  (void)state;
  if (!*stub)
    skip();
  static const struct {
    const char *mode;
    qkv_status want;
    const char *word, *other;
  } rows[] = {
      {"works", QKV_OK, "", ""},
      {"arch", QKV_UNKNOWN_ARCH, "sm_90a", "sm_70, sm_86"},
      {"empty", QKV_COMPILE_ERROR, "no machine code", "sm_90a"},
      {"garbage", QKV_COMPILE_ERROR, "no cubin", "64"},
      {"builtins", QKV_NO_COMPILER, "libnvrtc-builtins.so.12.3", "companion"},
      {"memory", QKV_OUT_OF_MEMORY, "memory", ""},
      {"syntax", QKV_COMPILE_ERROR, "expected a declaration", "NVRTC 12.3"},
      {"old", QKV_NO_COMPILER, "11.3", "too old"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
    assert_int_equal(child_compile(stub, rows[n].mode, rows[n].want, rows[n].word, rows[n].other), 0);
  assert_int_equal(child_compile(missing, "works", QKV_NO_COMPILER, "lacks nvrtcGetCUBIN", missing), 0);
}

static void test_not_found(void **state) {
  (void)state;
  assert_int_equal(child_compile("/nonexistent/libnvrtc.so", "", QKV_NO_COMPILER, "/nonexistent/libnvrtc.so: not there",
                                 "pip install"),
                   0);
  assert_int_equal(child_compile("/etc/hostname", "", QKV_NO_COMPILER, "/etc/hostname", "QKV_NVRTC is set"), 0);
}

/* The places without the loader's help: a toolkit, a virtual environment in both layouts of the wheels, a user's
 * packages. */
static void test_places(void **state) {
  (void)state;
  if (!*stub)
    skip();
  static const struct {
    const char *variable, *folder;
  } rows[] = {{"CUDA_HOME", "lib64"},
              {"CUDA_PATH", "lib"},
              {"VIRTUAL_ENV", "lib/python3.11/site-packages/nvidia/cu13/lib"},
              {"VIRTUAL_ENV", "lib/python3.9/site-packages/nvidia/cuda_nvrtc/lib"},
              {"CONDA_PREFIX", "lib"},
              {"HOME", ".local/lib/python3.12/site-packages/nvidia/cu13/lib"},
              {NULL, NULL}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char base[96], command[1024];
    snprintf(base, sizeof base, "%s/place%zu", folder, n);
    snprintf(command, sizeof command, "mkdir -p %s/%s && cp %s %s/%s/libnvrtc.so.1%d", base, rows[n].folder, stub, base,
             rows[n].folder, n % 2 ? 2 : 3);
    if (rows[n].folder)
      assert_int_equal(system(command), 0);
    pid_t child = fork();
    if (child == 0) {
      static const char *const variables[] = {"CUDA_HOME",    "CUDA_PATH", "VIRTUAL_ENV",
                                              "CONDA_PREFIX", "HOME",      "QKV_NVRTC"};
      for (size_t v = 0; v < sizeof variables / sizeof *variables; v++)
        unsetenv(variables[v]);
      if (rows[n].variable)
        setenv(rows[n].variable, base, 1);
      only_below = folder;
      device_image image;
      qkv_status status = compiler_nvrtc.compile(probe, "sm_80", &image);
      int good = rows[n].folder ? status == QKV_OK && image.size == 64
                                : status == QKV_NO_COMPILER && strstr(error_message(), "/usr/local/cuda") &&
                                      strstr(error_message(), "site-packages/nvidia");
      if (!good)
        fprintf(stderr, "row %zu: status %d: %s\n", n, (int)status, error_message());
      image_free(&image);
      end_child(!good);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

/* From here on: the real NVRTC, when there is one. */
static void need_nvrtc(void) {
  char identity[512];
  if (compiler_nvrtc.identity(identity, sizeof identity) == QKV_NO_COMPILER)
    skip();
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_compiles(void **state) {
  (void)state;
  need_nvrtc();
  static const char *const archs[] = {"sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"};
  for (size_t n = 0; n < sizeof archs / sizeof *archs; n++) {
    device_image image;
    device_resources r;
    double start = seconds();
    assert_int_equal(compiler_nvrtc.compile(probe, archs[n], &image), QKV_OK);
    print_message("%s: %.0f ms\n", archs[n], (seconds() - start) * 1e3);
    assert_true(compiler_nvrtc.plausible(image.bytes, image.size));
    compiler_nvrtc.resources(image.log, "probe", &r);
    assert_true(r.registers > 0 && r.spill_stores == 0 && r.stack == 0);
    compiler_nvrtc.resources(image.log, "prob", &r);
    assert_int_equal(r.registers, -1);
    image_free(&image);
  }
}

static void test_same_bytes(void **state) {
  (void)state;
  need_nvrtc();
  device_image first, second;
  assert_int_equal(compiler_nvrtc.compile(probe, "sm_90a", &first), QKV_OK);
  assert_int_equal(compiler_nvrtc.compile(probe, "sm_90a", &second), QKV_OK);
  assert_int_equal(first.size, second.size);
  assert_memory_equal(first.bytes, second.bytes, first.size);
  assert_string_equal(first.log, second.log);
  image_free(&first);
  image_free(&second);
}

static void test_refusals(void **state) {
  (void)state;
  need_nvrtc();
  static const struct {
    const char *source, *arch;
    qkv_status want;
    const char *word;
  } rows[] = {
      {probe, "sm_999", QKV_UNKNOWN_ARCH, "sm_90"},
      {probe, "compute_80", QKV_UNKNOWN_ARCH, "compute_80"},
      {probe, "", QKV_UNKNOWN_ARCH, "supports"},
      {"extern \"C\" __global__ void probe() { $(x); }", "sm_80", QKV_COMPILE_ERROR, "kernel.cu(1): error"},
      {"extern \"C\" __global__ void probe() { asm volatile(\"bogus;\"); }", "sm_80", QKV_COMPILE_ERROR, "ptxas"},
      {"extern \"C\" __global__ void probe(float *p) { __shared__ float x[99999]; x[threadIdx.x] = *p; "
       "__syncthreads(); *p = "
       "x[(int)*p]; }",
       "sm_80", QKV_COMPILE_ERROR, "more static shared memory"},
      {"#include <cuda_fp16.h>\n", "sm_80", QKV_COMPILE_ERROR, "cuda_fp16.h"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    device_image image;
    qkv_status status = compiler_nvrtc.compile(rows[n].source, rows[n].arch, &image);
    if (status != rows[n].want || !strstr(error_message(), rows[n].word))
      fail_msg("row %zu: status %d, message: %s", n, (int)status, error_message());
    assert_null(image.bytes);
    image_free(&image);
  }
}

static void *compile_one(void *user) {
  char source[256];
  device_image image;
  snprintf(source, sizeof source, "extern \"C\" __global__ void probe(float *p) { p[threadIdx.x] = %d; }",
           *(int *)user);
  *(int *)user = compiler_nvrtc.compile(source, "sm_80", &image) == QKV_OK && image.size > 0;
  image_free(&image);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  need_nvrtc();
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  int results[THREADS];
  for (int n = 0; n < THREADS; n++) {
    results[n] = n + 100;
    assert_int_equal(pthread_create(&threads[n], NULL, compile_one, &results[n]), 0);
  }
  for (int n = 0; n < THREADS; n++) {
    pthread_join(threads[n], NULL);
    assert_int_equal(results[n], 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_stub),       cmocka_unit_test(test_not_found),
                                     cmocka_unit_test(test_places),     cmocka_unit_test(test_compiles),
                                     cmocka_unit_test(test_same_bytes), cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, build_stubs, remove_stubs);
}
