/* test_op.c: prepared ops on the emulated device: the whole way from a spec to numbers, every wrong argument refused by
 * name, two threads preparing at once, cached kernels that the device refuses, and a launch path that never compiles.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache.h"
#include "qkv_tune.h"
#include "reference.h"

enum { HEADS_Q = 4, HEADS_KV = 2, DIM = 16, DIM_V = 8 };

static const char spec_text[] = "qkvc: 1\n"
                                "name: tiny\n"
                                "attention:\n"
                                "  heads: {q: 4, kv: 2}\n"
                                "  dim: {qk: 16, v: 8}\n"
                                "  dtype: f16\n"
                                "  score: where(doc[b, k] < limit, s + slope[h] * (k - q), -3)\n"
                                "  mask: causal and doc[b, 1] < limit\n"
                                "  sink: per_head\n"
                                "  params:\n"
                                "    slope: {type: f32, shape: [hq]}\n"
                                "    doc: {type: i32, shape: [b, len_k]}\n"
                                "    limit: {type: i32}\n"
                                "outputs: [o, lse, lse_with_sink]\n";
static const char small_schedule[] = "tile_m=64,tile_n=32,warps=4,stages=2";

static char root[64];
static qkv_engine *engine;
static qkv_spec *spec;
static qkv_op *op; /* shared by the tests that only call it */

static int open_all(void **state) {
  (void)state;
  strcpy(root, "/tmp/qkv-op-XXXXXX");
  if (!mkdtemp(root))
    return -1;
  qkv_options o = QKV_OPTIONS_INIT;
  o.device = "emu";
  o.cache_dir = root;
  qkv_limits limits = QKV_LIMITS_INIT;
  limits.schedule = small_schedule;
  limits.batch = 4;
  if (qkv_open(&o, &engine) || qkv_spec_load(engine, spec_text, &spec) || qkv_prepare(engine, spec, &limits, &op)) {
    fprintf(stderr, "%s\n", qkv_last_error(engine));
    return -1;
  }
  return 0;
}

static int close_all(void **state) {
  (void)state;
  char command[128];
  qkv_op_free(op);
  qkv_spec_free(spec);
  qkv_close(engine);
  snprintf(command, sizeof command, "rm -rf %s", root);
  return system(command);
}

static qkv_counters counters_of(const qkv_engine *e) {
  qkv_counters c = {.size = sizeof c};
  qkv_get_counters(e, &c);
  return c;
}

/* ---- A call: tensors on the host, their copies on the device, and the reference's answer ---- */

enum { Q, K, V, O, LSE, LSE_SINK, SINK, SLOPE, DOC, TENSORS };

typedef struct call {
  qkv_attention_args host, device;
  qkv_param_value host_params[3], device_params[3];
  qkv_tensor *host_tensors[TENSORS], *device_tensors[TENSORS];
  size_t bytes[TENSORS];
  void *memory[TENSORS]; /* of the device */
} call;

static uint32_t random_state;
static double random_number(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return (double)random_state / 2147483648.0 - 1;
}

/* How a tensor lies in memory: strides of a permutation of its axes, and bytes before its start. */
typedef struct layout {
  const char *name;
  int order[4]; /* slowest to fastest */
  size_t skip;  /* elements before the first: breaks the alignment */
  int gap;      /* added to the extent of the fastest axis */
} layout;

static const layout plain = {"plain", {0, 1, 2, 3}, 0, 0};

static void lay_out(qkv_tensor *t, const layout *l, size_t *bytes) {
  int64_t stride = 1;
  for (int n = 3; n >= 0; n--) {
    int axis = t->rank == 4 ? l->order[n] : n;
    if (axis >= t->rank)
      continue;
    t->stride[axis] = stride;
    stride *= t->shape[axis] + (n == 3 ? l->gap : 0);
  }
  *bytes = ((size_t)stride + l->skip) * (size_t)dtype_size(t->dtype);
}

static int64_t count_of(const qkv_tensor *t) {
  int64_t count = 1;
  for (int d = 0; d < t->rank; d++)
    count *= t->shape[d];
  return count;
}

/* Random numbers, or small integers (documents). */
static void fill(const qkv_tensor *t, int integers) {
  for (int64_t e = 0; e < count_of(t); e++) {
    int64_t rest = e, offset = 0;
    for (int d = t->rank - 1; d >= 0; d--) {
      offset += rest % t->shape[d] * t->stride[d];
      rest /= t->shape[d];
    }
    tensor_store((char *)t->data + offset * dtype_size(t->dtype), t->dtype,
                 integers ? (double)(e * 7 % 5) : random_number());
  }
}

static void make_call(call *c, int64_t batch, int64_t len_q, int64_t len_k, const layout *l) {
  memset(c, 0, sizeof *c);
  c->host = (qkv_attention_args)QKV_ATTENTION_ARGS_INIT;
  qkv_attention_args *a = &c->host;
  a->q = qkv_tensor_dense(NULL, QKV_F16, 4, (int64_t[]){batch, len_q, HEADS_Q, DIM});
  a->k = qkv_tensor_dense(NULL, QKV_F16, 4, (int64_t[]){batch, len_k, HEADS_KV, DIM});
  a->v = qkv_tensor_dense(NULL, QKV_F16, 4, (int64_t[]){batch, len_k, HEADS_KV, DIM_V});
  a->o = qkv_tensor_dense(NULL, QKV_F16, 4, (int64_t[]){batch, len_q, HEADS_Q, DIM_V});
  a->lse = a->lse_with_sink = qkv_tensor_dense(NULL, QKV_F32, 3, (int64_t[]){batch, HEADS_Q, len_q});
  a->sink = qkv_tensor_dense(NULL, QKV_F32, 1, (int64_t[]){HEADS_Q});
  c->host_params[0].tensor = qkv_tensor_dense(NULL, QKV_F32, 1, (int64_t[]){HEADS_Q});
  c->host_params[1].tensor = qkv_tensor_dense(NULL, QKV_I32, 2, (int64_t[]){batch, len_k});
  c->host_params[2].value = 3;
  a->params = c->host_params;
  a->nparams = 3;
  qkv_tensor *tensors[] = {&a->q,
                           &a->k,
                           &a->v,
                           &a->o,
                           &a->lse,
                           &a->lse_with_sink,
                           &a->sink,
                           &c->host_params[0].tensor,
                           &c->host_params[1].tensor};
  for (int n = 0; n < TENSORS; n++) {
    c->host_tensors[n] = tensors[n];
    lay_out(tensors[n], n <= O ? l : &plain, &c->bytes[n]);
    char *bytes = malloc(c->bytes[n] + 1);
    memset(bytes, 0xFF, c->bytes[n]); /* NaN everywhere that is not filled */
    tensors[n]->data = bytes + (n <= O ? l->skip : 0) * (size_t)dtype_size(tensors[n]->dtype);
    if (n != O && n != LSE && n != LSE_SINK)
      fill(tensors[n], n == DOC);
  }
  /* The same on the device. */
  c->device = c->host;
  memcpy(c->device_params, c->host_params, sizeof c->device_params);
  c->device.params = c->device_params;
  qkv_attention_args *d = &c->device;
  qkv_tensor *copies[] = {&d->q,
                          &d->k,
                          &d->v,
                          &d->o,
                          &d->lse,
                          &d->lse_with_sink,
                          &d->sink,
                          &c->device_params[0].tensor,
                          &c->device_params[1].tensor};
  for (int n = 0; n < TENSORS; n++) {
    size_t skip = (n <= O ? l->skip : 0) * (size_t)dtype_size(copies[n]->dtype);
    c->device_tensors[n] = copies[n];
    assert_int_equal(qkv_alloc(engine, c->bytes[n] ? c->bytes[n] : 1, &c->memory[n]), QKV_OK);
    assert_int_equal(qkv_copy_to_device(engine, c->memory[n], (char *)tensors[n]->data - skip, c->bytes[n]), QKV_OK);
    copies[n]->data = (char *)c->memory[n] + skip;
  }
}

static void free_call(call *c, const layout *l) {
  for (int n = 0; n < TENSORS; n++) {
    free((char *)c->host_tensors[n]->data - (n <= O ? l->skip : 0) * (size_t)dtype_size(c->host_tensors[n]->dtype));
    qkv_free(engine, c->memory[n]);
  }
}

/* Runs on the device and compares with the reference; what lies between the elements must be untouched. */
static void check_call(call *c, const qkv_op *with, const layout *l, const char *what) {
  if (qkv_attention(with, &c->device, NULL) != QKV_OK || qkv_synchronize(engine) != QKV_OK)
    fail_msg("%s: %s", what, qkv_last_error(engine));
  void *got[TENSORS] = {0};
  for (int n = O; n <= LSE_SINK; n++) {
    got[n] = malloc(c->bytes[n] + 1);
    assert_int_equal(qkv_copy_to_host(engine, got[n], c->memory[n], c->bytes[n]), QKV_OK);
  }
  assert_int_equal(qkv_reference(spec, &c->host), QKV_OK);
  for (int n = O; n <= LSE_SINK; n++) {
    const qkv_tensor *t = c->host_tensors[n];
    size_t size = (size_t)dtype_size(t->dtype), skip = (n <= O ? l->skip : 0) * size;
    for (size_t at = 0; at + size <= c->bytes[n]; at += size) {
      double x = tensor_load((char *)got[n] + at, t->dtype), y = tensor_load((char *)t->data - skip + at, t->dtype);
      if (!((isnan(x) && isnan(y)) || x == y || fabs(x - y) <= 4e-3 * (1 + fabs(y))))
        fail_msg("%s: output %d, byte %zu: %.6g, the reference says %.6g", what, n, at, x, y);
    }
    free(got[n]);
  }
}

/* ---- Tests ---- */

static void test_layouts(void **state) {
  (void)state;
  static const layout layouts[] = {{"plain", {0, 1, 2, 3}, 0, 0},        {"heads first", {0, 2, 1, 3}, 0, 0},
                                   {"odd address", {0, 1, 2, 3}, 3, 0},  {"padded rows", {0, 1, 2, 3}, 0, 5},
                                   {"dim not last", {0, 3, 1, 2}, 0, 0}, {"aligned padding", {1, 0, 2, 3}, 0, 8}};
  for (size_t n = 0; n < sizeof layouts / sizeof *layouts; n++) {
    call c;
    random_state = 1;
    make_call(&c, 2, 19, 45, &layouts[n]);
    check_call(&c, op, &layouts[n], layouts[n].name);
    free_call(&c, &layouts[n]);
  }
}

static void test_sizes(void **state) {
  (void)state;
  static const int64_t sizes[][3] = {{1, 1, 1}, {1, 1, 70}, {3, 65, 33}, {1, 40, 7}, {2, 5, 0}, {1, 64, 64}};
  for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
    call c;
    char what[64];
    snprintf(what, sizeof what, "batch %d, len_q %d, len_k %d", (int)sizes[n][0], (int)sizes[n][1], (int)sizes[n][2]);
    random_state = 2;
    make_call(&c, sizes[n][0], sizes[n][1], sizes[n][2], &plain);
    check_call(&c, op, &plain, what);
    free_call(&c, &plain);
  }
}

static void test_empty(void **state) {
  (void)state;
  uint64_t launches = counters_of(engine).launches;
  static const int64_t sizes[][3] = {{0, 5, 5}, {2, 0, 5}, {0, 0, 0}};
  for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
    call c;
    make_call(&c, sizes[n][0], sizes[n][1], sizes[n][2], &plain);
    for (int t = 0; t <= LSE_SINK; t++)
      if (c.device_tensors[t]->shape[0] == 0)
        c.device_tensors[t]->data = NULL;
    if (qkv_attention(op, &c.device, NULL) != QKV_OK)
      fail_msg("%s", qkv_last_error(engine));
    free_call(&c, &plain);
  }
  assert_int_equal(counters_of(engine).launches, launches);
}

/* One wrong thing at a time: refused before anything is launched, and the message says what. */
static void test_arguments(void **state) {
  (void)state;
  typedef enum change { RANK, DTYPE, NULL_DATA, ODD_ADDRESS, EXTENT, HUGE_STRIDE, ZERO_STRIDE } change;
  static const struct {
    int tensor;
    change change;
    int axis;
    const char *words[2];
  } rows[] = {
      {Q, RANK, 0, {"q:", "rank 3"}},
      {K, RANK, 0, {"k:", "rank 3"}},
      {V, RANK, 0, {"v:", "rank 3"}},
      {O, RANK, 0, {"o:", "rank"}},
      {LSE, RANK, 0, {"lse:", "rank"}},
      {SINK, RANK, 0, {"sink:", "rank"}},
      {DOC, RANK, 0, {"doc:", "rank"}},
      {Q, DTYPE, 0, {"q:", "f16"}},
      {K, DTYPE, 0, {"k:", "f16"}},
      {V, DTYPE, 0, {"v:", "f16"}},
      {O, DTYPE, 0, {"o:", "f16"}},
      {LSE, DTYPE, 0, {"lse:", "f32"}},
      {LSE_SINK, DTYPE, 0, {"lse_with_sink:", "f32"}},
      {SINK, DTYPE, 0, {"sink:", "f32"}},
      {SLOPE, DTYPE, 0, {"slope:", "f32"}},
      {DOC, DTYPE, 0, {"doc:", "i32"}},
      {Q, NULL_DATA, 0, {"q:", "NULL"}},
      {K, NULL_DATA, 0, {"k:", "NULL"}},
      {V, NULL_DATA, 0, {"v:", "NULL"}},
      {O, NULL_DATA, 0, {"o:", "NULL"}},
      {LSE, NULL_DATA, 0, {"lse:", "NULL"}},
      {SINK, NULL_DATA, 0, {"sink:", "NULL"}},
      {SLOPE, NULL_DATA, 0, {"slope:", "NULL"}},
      {Q, ODD_ADDRESS, 0, {"q:", "2-byte element"}},
      {K, ODD_ADDRESS, 0, {"k:", "2-byte element"}},
      {V, ODD_ADDRESS, 0, {"v:", "2-byte element"}},
      {O, ODD_ADDRESS, 0, {"o:", "2-byte element"}},
      {LSE, ODD_ADDRESS, 0, {"lse:", "4-byte element"}},
      {SINK, ODD_ADDRESS, 0, {"sink:", "4-byte element"}},
      {SLOPE, ODD_ADDRESS, 0, {"slope:", "4-byte element"}},
      {DOC, ODD_ADDRESS, 0, {"doc:", "4-byte element"}},
      {Q, EXTENT, 2, {"q:", "heads_q"}},
      {Q, EXTENT, 3, {"q:", "dim_qk"}},
      {K, EXTENT, 0, {"k:", "batch"}},
      {K, EXTENT, 2, {"k:", "heads_kv"}},
      {V, EXTENT, 1, {"v:", "len_k"}},
      {V, EXTENT, 3, {"v:", "dim_v"}},
      {O, EXTENT, 1, {"o:", "len_q"}},
      {LSE, EXTENT, 2, {"lse:", "len_q"}},
      {SINK, EXTENT, 0, {"sink:", "heads_q"}},
      {SLOPE, EXTENT, 0, {"slope:", "must be 4"}},
      {DOC, EXTENT, 1, {"doc:", "dimension 1"}},
      {Q, HUGE_STRIDE, 1, {"q:", "2^63"}},
      {V, HUGE_STRIDE, 0, {"v:", "2^63"}},
      {O, ZERO_STRIDE, 1, {"o:", "overlap"}},
      {LSE, ZERO_STRIDE, 1, {"lse:", "overlap"}},
  };
  uint64_t launches = counters_of(engine).launches;
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    call c;
    make_call(&c, 2, 8, 9, &plain);
    qkv_tensor *t = c.device_tensors[rows[n].tensor];
    switch (rows[n].change) {
    case RANK:
      t->rank = t->rank == 4 ? 3 : t->rank + 1;
      break;
    case DTYPE:
      t->dtype = QKV_BF16;
      break;
    case NULL_DATA:
      t->data = NULL;
      break;
    case ODD_ADDRESS:
      t->data = (char *)t->data + 1;
      break;
    case EXTENT:
      t->shape[rows[n].axis]++;
      break;
    case HUGE_STRIDE:
      t->stride[rows[n].axis] = INT64_MAX / 2;
      break;
    case ZERO_STRIDE:
      t->stride[rows[n].axis] = 0;
      break;
    }
    qkv_status status = qkv_attention(op, &c.device, NULL);
    for (int w = 0; w < 2; w++)
      if (status != QKV_INVALID_ARGUMENT || !strstr(qkv_last_error(engine), rows[n].words[w]))
        fail_msg("row %zu: status %d, message '%s' without '%s'", n, (int)status, status ? qkv_last_error(engine) : "",
                 rows[n].words[w]);
    free_call(&c, &plain);
  }
  assert_int_equal(counters_of(engine).launches, launches);
}

static void assert_refused(qkv_status status, const char *word) {
  if (status != QKV_INVALID_ARGUMENT || !strstr(qkv_last_error(engine), word))
    fail_msg("status %d, message '%s' without '%s'", (int)status, qkv_last_error(engine), word);
}

static void test_other_arguments(void **state) {
  (void)state;
  call c;
  make_call(&c, 2, 8, 9, &plain);
  assert_refused(qkv_attention(NULL, &c.device, NULL), "op");
  assert_refused(qkv_attention(op, NULL, NULL), "args");
  qkv_attention_args a = c.device;
  a.size = 0;
  assert_refused(qkv_attention(op, &a, NULL), "args.size");
  a = c.device;
  a.nparams = 2;
  assert_refused(qkv_attention(op, &a, NULL), "declares 3");
  a.nparams = 3;
  a.params = NULL;
  assert_refused(qkv_attention(op, &a, NULL), "declares 3");
  c.device_params[2].value = 2.5;
  assert_refused(qkv_attention(op, &c.device, NULL), "limit");
  c.device_params[2].value = 3e9;
  assert_refused(qkv_attention(op, &c.device, NULL), "limit");
  c.device_params[2].value = NAN;
  assert_refused(qkv_attention(op, &c.device, NULL), "limit");
  free_call(&c, &plain);
  make_call(&c, 5, 1, 1, &plain); /* the op was prepared for at most 4 */
  assert_refused(qkv_attention(op, &c.device, NULL), "batch is 5");
  free_call(&c, &plain);
  make_call(&c, 1, 1, 1, &plain);
  c.device.q.shape[1] = (int64_t)1 << 31;
  assert_refused(qkv_attention(op, &c.device, NULL), "len_q");
  c.device.q.shape[1] = -1;
  assert_refused(qkv_attention(op, &c.device, NULL), "len_q");
  free_call(&c, &plain);
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *none;
  limits.len_q = -5;
  assert_refused(qkv_prepare(engine, spec, &limits, &none), "limits.len_q");
  assert_null(none);
  assert_refused(qkv_prepare(engine, NULL, NULL, &none), "spec");
  qkv_op_free(NULL);
}

static void test_aligned_only(void **state) {
  (void)state;
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *strict;
  limits.aligned_only = 1;
  limits.schedule = small_schedule;
  uint64_t compiles = counters_of(engine).compiles;
  assert_int_equal(qkv_prepare(engine, spec, &limits, &strict), QKV_OK);
  assert_int_equal(counters_of(engine).compiles, compiles); /* from the cache */
  call c;
  random_state = 3;
  make_call(&c, 1, 9, 9, &plain);
  check_call(&c, strict, &plain, "aligned only");
  c.device.k.data = (char *)c.device.k.data + 2;
  assert_refused(qkv_attention(strict, &c.device, NULL), "k:");
  free_call(&c, &plain);
  qkv_op_free(strict);
}

/* Many calls with ever new lengths: launches only. */
static void test_no_compiles(void **state) {
  (void)state;
  qkv_counters before = counters_of(engine);
  call c;
  make_call(&c, 1, 8, 16, &plain);
  enum { CALLS = 1000 };
  for (int n = 0; n < CALLS; n++) {
    int64_t len_q = n % 8 + 1, len_k = n % 16 + 1;
    for (int t = 0; t <= DOC; t++) {
      qkv_tensor *x = c.device_tensors[t];
      if (t == Q || t == O)
        x->shape[1] = len_q;
      if (t == K || t == V || t == DOC)
        x->shape[1] = len_k;
      if (t == LSE || t == LSE_SINK)
        x->shape[2] = len_q;
    }
    if (qkv_attention(op, &c.device, NULL) != QKV_OK)
      fail_msg("call %d: %s", n, qkv_last_error(engine));
  }
  qkv_counters after = counters_of(engine);
  assert_int_equal(after.compiles, before.compiles);
  assert_int_equal(after.cache_hits, before.cache_hits);
  assert_int_equal(after.launches, before.launches + CALLS);
  free_call(&c, &plain);
}

typedef struct worker {
  qkv_engine *engine;
  qkv_op *op;
  qkv_status status;
} worker;

static void *prepare(void *user) {
  worker *w = user;
  qkv_limits limits = QKV_LIMITS_INIT;
  limits.schedule = "tile_m=64,tile_n=64,warps=4,stages=2";
  limits.aligned_only = 1;
  w->status = qkv_prepare(w->engine, spec, &limits, &w->op);
  return NULL;
}

/* Threads that prepare one spec on an engine without a cache directory share one compile. */
static void test_threads(void **state) {
  (void)state;
  enum { THREADS = 4 };
  qkv_options o = QKV_OPTIONS_INIT;
  qkv_engine *e;
  pthread_t threads[THREADS];
  worker workers[THREADS];
  o.device = "emu";
  o.cache_dir = root;
  assert_int_equal(qkv_open(&o, &e), QKV_OK);
  for (int n = 0; n < THREADS; n++) {
    workers[n] = (worker){.engine = e};
    assert_int_equal(pthread_create(&threads[n], NULL, prepare, &workers[n]), 0);
  }
  for (int n = 0; n < THREADS; n++) {
    pthread_join(threads[n], NULL);
    assert_int_equal(workers[n].status, QKV_OK);
    qkv_op_free(workers[n].op);
  }
  assert_int_equal(counters_of(e).compiles, 1);
  qkv_close(e);
}

/* An entry that verifies but that the device cannot load is built again, once, and replaced. */
static void test_refused_image(void **state) {
  (void)state;
  qkv_build_options b = QKV_BUILD_OPTIONS_INIT;
  qkv_build_report report = {.size = sizeof report};
  b.schedule = small_schedule;
  assert_int_equal(qkv_build(engine, spec, &b, &report), QKV_OK);
  assert_true(report.from_cache);
  cache *c = cache_open(root, NULL, NULL);
  cache_entry entry;
  assert_int_equal(cache_read(c, report.key, &entry), CACHE_HIT);
  memset((char *)entry.image + 64, 0xAA, entry.image_size - 64);
  assert_int_equal(cache_write(c, report.key, &entry), 0);
  cache_entry_free(&entry);
  qkv_counters before = counters_of(engine);
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *again;
  limits.schedule = small_schedule;
  limits.aligned_only = 1;
  if (qkv_prepare(engine, spec, &limits, &again) != QKV_OK)
    fail_msg("%s", qkv_last_error(engine));
  assert_int_equal(counters_of(engine).compiles, before.compiles + 1);
  call k;
  random_state = 4;
  make_call(&k, 1, 9, 9, &plain);
  check_call(&k, again, &plain, "rebuilt");
  free_call(&k, &plain);
  qkv_op_free(again);
  cache_close(c);
}

/* An op outlives the handle of its spec. */
static void test_lifetime(void **state) {
  (void)state;
  qkv_spec *own;
  qkv_op *lasting;
  qkv_limits limits = QKV_LIMITS_INIT;
  limits.schedule = small_schedule;
  assert_int_equal(qkv_spec_load(engine, spec_text, &own), QKV_OK);
  assert_int_equal(qkv_prepare(engine, own, &limits, &lasting), QKV_OK);
  qkv_spec_free(own);
  call c;
  random_state = 5;
  make_call(&c, 1, 4, 4, &plain);
  check_call(&c, lasting, &plain, "after the spec");
  free_call(&c, &plain);
  qkv_op_free(lasting);
}

/* The naive family has a workspace: refused without maxima, checked at the call. */
static void test_workspace(void **state) {
  (void)state;
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *naive;
  limits.family = "attention_naive";
  assert_refused(qkv_prepare(engine, spec, &limits, &naive), "qkv_limits");
  limits.batch = 2;
  limits.len_q = 40;
  limits.len_k = 70;
  if (qkv_prepare(engine, spec, &limits, &naive) != QKV_OK)
    fail_msg("%s", qkv_last_error(engine));
  size_t bytes = qkv_workspace_size(naive);
  assert_true(bytes >= (size_t)2 * HEADS_Q * 40 * 70 * 4);
  call c;
  random_state = 6;
  make_call(&c, 2, 33, 57, &plain);
  assert_refused(qkv_attention(naive, &c.device, NULL), "workspace");
  assert_int_equal(qkv_alloc(engine, bytes, &c.device.workspace), QKV_OK);
  c.device.workspace_bytes = 100;
  assert_refused(qkv_attention(naive, &c.device, NULL), "workspace");
  c.device.workspace_bytes = bytes;
  check_call(&c, naive, &plain, "naive");
  c.device.workspace = (char *)c.device.workspace + 4;
  assert_refused(qkv_attention(naive, &c.device, NULL), "256");
  qkv_free(engine, (char *)c.device.workspace - 4);
  free_call(&c, &plain);
  qkv_op_free(naive);
}

static void test_time_and_work(void **state) {
  (void)state;
  call c;
  double median, fastest, slowest, flops, bytes;
  make_call(&c, 2, 8, 24, &plain);
  assert_int_equal(qkv_time(op, &c.device, NULL, 3, &median, &fastest, &slowest), QKV_OK);
  assert_true(fastest > 0 && fastest <= median && median <= slowest);
  assert_refused(qkv_time(op, &c.device, NULL, 0, &median, NULL, NULL), "repeats");
  assert_int_equal(qkv_work(spec, &c.host, &flops, &bytes), QKV_OK);
  double pairs = 0;
  for (int b = 0; b < 2; b++)
    for (int i = 0; i < 8; i++)
      for (int k = 0; k <= i + 16; k++)
        pairs += (b * 24 + 1) * 7 % 5 < 3;
  assert_true(flops == 2.0 * (DIM + DIM_V) * pairs * HEADS_Q);
  assert_true(bytes == 2.0 * (2 * 8 * HEADS_Q * (DIM + DIM_V) + 2 * 24 * HEADS_KV * (DIM + DIM_V)));
  c.host.nparams = 0;
  assert_refused(qkv_work(spec, &c.host, &flops, &bytes), "doc");
  free_call(&c, &plain);
}

/* In turns: each contestant has all samples, and the calls of a rotation reach every set of arguments. */
static void test_measure(void **state) {
  (void)state;
  enum { SAMPLES = 3 };
  call c[2];
  double seconds[2][SAMPLES];
  for (int n = 0; n < 2; n++)
    make_call(&c[n], 1 + n, 8, 24, &plain);
  const qkv_attention_args sets[2] = {c[0].device, c[1].device};
  qkv_contestant who[2] = {{sizeof *who, op, sets, 2, seconds[0], 0, 0},
                           {sizeof *who, op, &sets[1], 1, seconds[1], 0, 0}};
  qkv_measure_options options = QKV_MEASURE_OPTIONS_INIT;
  options.samples = SAMPLES;
  options.calls = 2;
  qkv_counters before = {.size = sizeof before}, after = {.size = sizeof after};
  qkv_get_counters(engine, &before);
  assert_int_equal(qkv_measure(who, 2, NULL, &options), QKV_OK);
  qkv_get_counters(engine, &after);
  const uint64_t launches = (after.launches - before.launches) / 2;
  assert_true(launches % (2 * SAMPLES) == 0 && launches > 0);
  for (int n = 0; n < 2; n++) {
    assert_int_equal(who[n].samples, SAMPLES);
    assert_int_equal(who[n].calls, 2);
    for (int s = 0; s < SAMPLES; s++)
      assert_true(seconds[n][s] > 0);
    check_call(&c[n], op, &plain, "measured");
  }
  options.cold_l2 = 1; /* these tensors are smaller than any cache: a sample is one call behind a flush */
  options.time_limit = 1e-9;
  assert_int_equal(qkv_measure(who, 2, NULL, &options), QKV_OK);
  assert_true(who[0].samples == 1 && who[1].samples == 1 && who[0].calls == 1);
  assert_refused(qkv_measure(who, 0, NULL, &options), "count");
  assert_refused(qkv_measure(NULL, 1, NULL, &options), "contestants");
  who[1].nargs = 0;
  assert_refused(qkv_measure(who, 2, NULL, &options), "contestant 1 has no args");
  for (int n = 0; n < 2; n++)
    free_call(&c[n], &plain);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_layouts),     cmocka_unit_test(test_sizes),           cmocka_unit_test(test_empty),
      cmocka_unit_test(test_arguments),   cmocka_unit_test(test_other_arguments), cmocka_unit_test(test_aligned_only),
      cmocka_unit_test(test_no_compiles), cmocka_unit_test(test_threads),         cmocka_unit_test(test_refused_image),
      cmocka_unit_test(test_lifetime),    cmocka_unit_test(test_workspace),       cmocka_unit_test(test_time_and_work),
      cmocka_unit_test(test_measure)};
  return cmocka_run_group_tests(tests, open_all, close_all);
}
