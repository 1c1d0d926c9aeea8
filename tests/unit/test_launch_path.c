/* test_launch_path.c: a call launches and does nothing else: every call of the driver is counted by name, and what the
 * library could do besides (allocate, lock, look at files and the environment) at the seams, which the linker wraps. In
 * a capture a call is the same; what a capture forbids is refused with a status of its own. With debug_checks,
 * addresses and arrays are looked at and named.
 *
 * On the driver of tests/fault/cuda_stub.c, whose kernels do nothing; NVRTC compiles them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>

#include "cuda_stub.h"
#include "qkv.h"
#include "qkv_tune.h"

/* ---- Seams ---- */

static _Thread_local int seams; /* calls of any wrapped function by this thread */

#define WRAP(result, name, parameters, arguments)                                                                      \
  result __real_##name parameters;                                                                                     \
  result __wrap_##name parameters;                                                                                     \
  result __wrap_##name parameters {                                                                                    \
    seams++;                                                                                                           \
    return __real_##name arguments;                                                                                    \
  }
WRAP(void *, malloc, (size_t size), (size))
WRAP(void *, calloc, (size_t count, size_t size), (count, size))
WRAP(void *, realloc, (void *memory, size_t size), (memory, size))
WRAP(void, free, (void *memory), (memory))
WRAP(char *, strdup, (const char *text), (text))
WRAP(char *, getenv, (const char *name), (name))
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode))
WRAP(int, pthread_mutex_lock, (pthread_mutex_t * lock), (lock))
WRAP(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *lock), (condition, lock))
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = flags & O_CREAT ? va_arg(rest, int) : 0;
  va_end(rest);
  seams++;
  return __real_open(path, flags, mode);
}

/* ---- The stub ---- */

static void *stub;
static int *calls, *capturing;
static int (*push_context)(void *context);
static int (*pop_context)(void **context);
static int (*retain)(void **context, int device);

static int *count_of(const char *symbol) {
  char name[96];
  snprintf(name, sizeof name, "stub_calls_of_%s", symbol);
  int *count = dlsym(stub, name);
  if (!count)
    fail_msg("the stub has no %s", symbol);
  return count;
}

static qkv_engine *engine, *debugging;

static int open_all(void **state) {
  (void)state;
  qkv_options o = QKV_OPTIONS_INIT;
  stub = dlopen("libcuda.so.1", RTLD_NOW);
  if (!stub)
    return -1;
  calls = dlsym(stub, "stub_calls");
  capturing = dlsym(stub, "stub_capturing");
  *(void **)&push_context = dlsym(stub, "cuCtxPushCurrent_v2");
  *(void **)&pop_context = dlsym(stub, "cuCtxPopCurrent_v2");
  *(void **)&retain = dlsym(stub, "cuDevicePrimaryCtxRetain");
  o.device = "cuda";
  o.cache_dir = QKV_BINARY_DIR "/launch_path_cache"; /* nobody's own cache */
  if (!calls || !capturing || !push_context || !pop_context || !retain || qkv_open(&o, &engine))
    return -1;
  o.debug_checks = 1;
  return qkv_open(&o, &debugging) != QKV_OK;
}

static int close_all(void **state) {
  (void)state;
  qkv_close(engine);
  qkv_close(debugging);
  return 0;
}

static void need(qkv_status status) {
  if (status != QKV_OK)
    fail_msg("status %d: %s", (int)status, qkv_last_error(engine));
}

/* ---- Calls ---- */

enum { BATCH = 2, HEADS = 2, DIM = 64, MAX_Q = 48, MAX_K = 80 };
enum { PAGE = 16, COLUMNS = MAX_K / PAGE, PAGES = BATCH * COLUMNS };

#define DOCUMENTS "  mask: doc[b, q] == doc[b, k]\n  params:\n    doc: {type: i32, shape: [b, len_k]}\n"

static const struct subject {
  const char *name, *rest; /* of the spec */
  int64_t len_q;           /* of the calls */
  bool reuse_plan;
  int launches, maps, memsets; /* of a call */
} subjects[] = {
    {"prefill on Hopper, tickets", "  mask: causal\n", MAX_Q, false, 1, 4, 1},
    {"the same, planned before", "  mask: causal\n", MAX_Q, true, 1, 4, 0},
    {"no mask, nothing to order", "", MAX_Q, false, 1, 4, -1},
    {"documents: a map is planned", DOCUMENTS, MAX_Q, false, 2, 4, -1},
    {"the same, planned before", DOCUMENTS, MAX_Q, true, 1, 4, 0},
    {"decode, padded", "  mask: causal\nlayout: {q: dense, kv: padded}\n", 1, false, 1, 0, 1},
    {"decode, paged", "  mask: causal\nlayout: {q: dense, kv: {paged: {page: 16}}}\n", 4, false, 1, 0, 1},
    {"the same, planned before", "  mask: causal\nlayout: {q: dense, kv: {paged: {page: 16}}}\n", 4, true, 1, 0, 0},
    {"prefill, paged", "  mask: causal\nlayout: {q: dense, kv: {paged: {page: 16}}}\n", MAX_Q, false, 1, 4, 1},
};

typedef struct served {
  qkv_spec *spec;
  qkv_op *op;
  qkv_attention_args args;
  qkv_param_value param;
  void *memory, *workspace;
  int32_t *lengths, *table; /* of the host: device memory of the stub is */
} served;

static void *at(const served *s, size_t offset) {
  return (char *)s->memory + offset;
}

static served serve(qkv_engine *e, const struct subject *subject) {
  served s = {0};
  char text[512];
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_spec_info info = {.size = sizeof info};
  enum { ROOM = 1 << 17 };
  snprintf(text, sizeof text, "qkvc: 1\nname: served\nattention:\n  heads: %d\n  dim: %d\n  dtype: f16\n%s", HEADS, DIM,
           subject->rest);
  need(qkv_spec_load(e, text, &s.spec));
  qkv_spec_get_info(s.spec, &info);
  limits.batch = BATCH, limits.len_k = MAX_K;
  if (info.layout_kv != QKV_DENSE || strstr(subject->rest, "doc")) /* without a maximum Hopper hands out tickets */
    limits.len_q = MAX_Q;
  need(qkv_prepare(e, s.spec, &limits, &s.op));
  need(qkv_alloc(e, 6 * ROOM, &s.memory));
  memset(s.memory, 0, 6 * ROOM);
  s.args = (qkv_attention_args)QKV_ATTENTION_ARGS_INIT;
  const bool paged = info.layout_kv == QKV_PAGED;
  const int64_t keys[] = {paged ? PAGES : BATCH, paged ? PAGE : MAX_K, HEADS, DIM};
  s.args.q = qkv_tensor_dense(at(&s, 0), QKV_F16, 4, (int64_t[]){BATCH, subject->len_q, HEADS, DIM});
  s.args.k = qkv_tensor_dense(at(&s, ROOM), QKV_F16, 4, keys);
  s.args.v = qkv_tensor_dense(at(&s, 2 * ROOM), QKV_F16, 4, keys);
  s.args.o = qkv_tensor_dense(at(&s, 3 * ROOM), QKV_F16, 4, (int64_t[]){BATCH, subject->len_q, HEADS, DIM});
  s.lengths = at(&s, 4 * ROOM);
  s.lengths[0] = MAX_K, s.lengths[1] = 3;
  s.table = at(&s, 4 * ROOM + 1024);
  for (int n = 0; n < PAGES; n++)
    s.table[n] = PAGES - 1 - n;
  s.args.seqlens_k = qkv_tensor_dense(s.lengths, QKV_I32, 1, (int64_t[]){BATCH});
  s.args.page_table = qkv_tensor_dense(s.table, QKV_I32, 2, (int64_t[]){BATCH, COLUMNS});
  s.args.nparams = info.nparams;
  s.param.tensor = qkv_tensor_dense(at(&s, 5 * ROOM), QKV_I32, 2, (int64_t[]){BATCH, MAX_K});
  s.args.reuse_plan = subject->reuse_plan;
  s.args.workspace_bytes = qkv_workspace_size(s.op);
  need(qkv_alloc(e, s.args.workspace_bytes + 1, &s.args.workspace));
  s.workspace = s.args.workspace;
  return s;
}

static void dismiss(qkv_engine *e, served *s) {
  qkv_free(e, s->memory);
  qkv_free(e, s->workspace);
  qkv_op_free(s->op);
  qkv_spec_free(s->spec);
}

static qkv_status attend(served *s) {
  s->args.params = &s->param;
  return qkv_attention(s->op, &s->args, NULL);
}

static void *push_own(int number) {
  void *own;
  retain(&own, 0);
  own = (char *)own + number;
  push_context(own);
  return own;
}

static void pop(void) {
  void *popped;
  pop_context(&popped);
}

/* The calls of the driver while `s` runs some times: launches, maps and sets of zero as many as expected (-1: at most
 * two), each after two questions about the context, and nothing else; no seam is crossed. */
static void count(served *s, const struct subject *subject, const char *where) {
  static const char *const symbols[] = {"cuLaunchKernel",  "cuLaunchKernelEx", "cuTensorMapEncodeTiled",
                                        "cuMemsetD8Async", "cuCtxGetCurrent",  "cuCtxGetDevice"};
  enum { KINDS = sizeof symbols / sizeof *symbols, CALLS = 20 };
  int *counts[KINDS], before[KINDS];
  for (int n = 0; n < KINDS; n++)
    counts[n] = count_of(symbols[n]);
  for (int n = 0; n < KINDS; n++)
    before[n] = *counts[n];
  const int all_before = *calls, seams_before = seams;
  qkv_status status = QKV_OK;
  for (int n = 0; n < CALLS && status == QKV_OK; n++)
    status = attend(s);
  const int crossed = seams - seams_before, all = *calls - all_before;
  need(status);
  int got[KINDS];
  for (int n = 0; n < KINDS; n++)
    got[n] = *counts[n] - before[n];
  const int launches = got[0] + got[1], work = launches + got[2] + got[3];
  const bool right = launches == CALLS * subject->launches && got[2] == CALLS * subject->maps &&
                     (subject->memsets < 0 || got[3] == CALLS * subject->memsets) && got[3] <= 2 * CALLS;
  if (!right || got[4] != work || got[5] != work || all != 3 * work || crossed)
    fail_msg("%s, %s: %d calls have %d launches, %d maps, %d sets of zero, %d + %d questions, %d calls of the driver; "
             "%d allocations, locks, looks at files or the environment",
             subject->name, where, CALLS, launches, got[2], got[3], got[4], got[5], all, crossed);
}

static void a_call_launches_only(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof subjects / sizeof *subjects; n++) {
    served s = serve(engine, &subjects[n]);
    push_own(0);
    count(&s, &subjects[n], "at work");
    *capturing = 1;
    count(&s, &subjects[n], "captured");
    s.lengths[0] = 0, s.lengths[1] = 1 << 30; /* nobody on the host looks */
    count(&s, &subjects[n], "with other lengths");
    *capturing = 0;
    pop();
    dismiss(engine, &s);
  }
}

static void a_merge_launches_only(void **state) {
  (void)state;
  served s = serve(engine, &subjects[0]);
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *op;
  limits.phase = "merge";
  need(qkv_prepare(engine, s.spec, &limits, &op));
  qkv_tensor lse = qkv_tensor_dense(at(&s, 1 << 17), QKV_F32, 3, (int64_t[]){BATCH, HEADS, MAX_Q});
  const qkv_state states[] = {{s.args.q, lse}, {s.args.o, lse}};
  const qkv_merge_args a = {sizeof a, 2, states, s.args.o, lse};
  push_own(0);
  const int before = *calls, launches = *count_of("cuLaunchKernelEx"), crossed = seams;
  qkv_status status = qkv_merge(op, &a, NULL);
  const int more = seams - crossed;
  need(status);
  assert_int_equal(more, 0);
  assert_int_equal(*calls - before, 3);
  assert_int_equal(*count_of("cuLaunchKernelEx") - launches, 1);
  pop();
  qkv_op_free(op);
  dismiss(engine, &s);
}

static void refuse(qkv_status got, qkv_status want, const char *words) {
  if (got != want || !strstr(qkv_last_error(engine), words))
    fail_msg("status %d, not %d; message '%s' without '%s'", (int)got, (int)want, got ? qkv_last_error(engine) : "",
             words);
}

/* Loading in a second context is no part of a graph; once done it needs no doing again. */
static void the_first_launch_in_a_context(void **state) {
  (void)state;
  for (size_t n = 0; n < 6; n += 5) { /* with tensor maps, and without */
    served s = serve(engine, &subjects[n]);
    int *loads = count_of("cuKernelGetFunction"), before = *loads;
    push_own(4); /* another context of GPU 0 */
    *capturing = 1;
    refuse(attend(&s), QKV_CAPTURING, "first launch in this context");
    assert_int_equal(*loads, before);
    *capturing = 0;
    need(attend(&s));
    assert_int_equal(*loads, before + 1);
    *capturing = 1;
    count(&s, &subjects[n], "in another context");
    assert_int_equal(*loads, before + 1);
    *capturing = 0;
    pop();
    push_own(0);
    count(&s, &subjects[n], "back again");
    pop();
    dismiss(engine, &s);
  }
}

static void what_a_capture_forbids(void **state) {
  (void)state;
  served s = serve(engine, &subjects[0]);
  double median;
  char host[4];
  s.args.params = &s.param;
  *capturing = 1;
  refuse(qkv_time(s.op, &s.args, NULL, 3, &median, NULL, NULL), QKV_CAPTURING, "timing waits");
  *capturing = 0;
  need(qkv_time(s.op, &s.args, NULL, 3, &median, NULL, NULL));
  setenv("QKV_STUB_CUDA", "cuMemcpyDtoH_v2:900", 1); /* as the driver says it */
  refuse(qkv_copy_to_host(engine, host, s.memory, 4), QKV_CAPTURING, "cuMemcpyDtoH");
  unsetenv("QKV_STUB_CUDA");
  dismiss(engine, &s);
}

/* One fault at a time, named before anything is launched. */
static void debug_checks_name_the_fault(void **state) {
  (void)state;
  static char host[1 << 17] __attribute__((aligned(256)));
  served s = serve(debugging, &subjects[6]);
  qkv_options o = QKV_OPTIONS_INIT;
  qkv_engine *second;
  void *elsewhere;
  o.device = "cuda:1";
  o.cache_dir = QKV_BINARY_DIR "/launch_path_cache"; /* nobody's own cache */
  need(qkv_open(&o, &second));
  need(qkv_alloc(second, sizeof host, &elsewhere));
  const served good = s;
  const int launches = *count_of("cuLaunchKernelEx");
  s.args.q.data = host;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "debug checks: q: 0x");
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "is no memory of a GPU");
  s = good, s.args.o.data = elsewhere;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "is memory of cuda:1; the engine's device is cuda:0");
  s = good, s.args.k.data = host;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "debug checks: k: token 0 of sequence 0: ");
  s = good, s.args.seqlens_k.data = host;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "debug checks: seqlens_k: 0x");
  s = good, s.args.workspace = host;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "debug checks: workspace: ");
  s = good, s.args.o.stride[0] = 1 << 30;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "reach beyond their allocation");
  s = good, s.lengths[1] = -1;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "seqlens_k[1]: is -1");
  s.lengths[1] = MAX_K + 1;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "seqlens_k[1]: is 81");
  s.lengths[1] = 3, s.table[2] = PAGES;
  refuse(attend(&s), QKV_INVALID_ARGUMENT, "page 2 of sequence 0 (its tokens from 32 on) is number 10, must be 0 to 9");
  s.table[2] = PAGES - 3, s.table[COLUMNS + 1] = -7; /* behind the end of sequence 1 */
  assert_int_equal(*count_of("cuLaunchKernelEx"), launches);
  need(attend(&s));
  assert_int_equal(*count_of("cuLaunchKernelEx"), launches + 1);
  *capturing = 1;
  refuse(attend(&s), QKV_CAPTURING, "QKV_DEBUG_CHECKS");
  *capturing = 0;
  qkv_free(second, elsewhere);
  qkv_close(second);
  dismiss(debugging, &s);
}

int main(int argc, char **argv) {
  (void)argc;
  if (!getenv("QKV_TEST_STUBBED"))
    return cuda_stub_start(argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_call_launches_only),   cmocka_unit_test(a_merge_launches_only),
      cmocka_unit_test(the_first_launch_in_a_context), cmocka_unit_test(what_a_capture_forbids),
      cmocka_unit_test(debug_checks_name_the_fault)};
  return cmocka_run_group_tests(tests, open_all, close_all);
}
