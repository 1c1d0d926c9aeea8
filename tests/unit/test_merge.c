/* test_merge.c: states over disjoint keys merge to attention over all of them: against the reference over random parts
 * of the keys, in every format and layout of memory, on the emulated device and in f64; order and grouping do not
 * matter beyond rounding, states without keys not at all; wrong arguments are refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

enum { BATCH = 2, LEN_Q = 5, ROWS = BATCH * LEN_Q, LEN_K = 40, HEADS = 3, DIM_QK = 8, MOST_DIM = 24,
       ROOM = 4 * ROWS * HEADS * MOST_DIM, STATES = QKV_MERGE_STATES };

typedef struct kind {
  const char *layout, *out;
  int dim;
  bool ragged;
  qkv_dtype dtype;
} kind;
static const kind kinds[] = {
    {"{q: dense, kv: dense}", "f32", 24, false, QKV_F32},
    {"{q: dense, kv: padded}", "bf16", 16, false, QKV_BF16},
    {"{q: ragged, kv: ragged}", "f32", 8, true, QKV_F32},
    {"{q: ragged, kv: padded}", "f16", 24, true, QKV_F16},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static qkv_engine *engine;
static qkv_spec *specs[KINDS], *dense_specs[KINDS]; /* dense ones for the reference of attention */
static qkv_op *ops[KINDS];

static qkv_spec *make_spec(const kind *k, const char *layout) {
  char text[512];
  qkv_spec *s;
  snprintf(text, sizeof text,
           "qkvc: 1\nname: merged\nattention:\n  heads: {q: %d, kv: %d}\n  dim: {qk: %d, v: %d}\n"
           "  dtype: {q: f16, kv: f16, out: %s}\n  params:\n    t: {type: i32, shape: [b]}\n  mask: t[b] == 0\n"
           "layout: %s\noutputs: [o, lse]\n",
           HEADS, HEADS, DIM_QK, k->dim, k->out, layout);
  if (qkv_spec_load(engine, text, &s) != QKV_OK)
    fail_msg("%s", qkv_last_error(engine));
  return s;
}

static int open_all(void **state) {
  (void)state;
  qkv_options o = QKV_OPTIONS_INIT;
  o.device = "emu";
  o.cache_dir = "";
  if (qkv_open(&o, &engine))
    return -1;
  for (int n = 0; n < KINDS; n++) {
    qkv_limits limits = QKV_LIMITS_INIT;
    limits.phase = "merge";
    limits.batch = BATCH;
    specs[n] = make_spec(&kinds[n], kinds[n].layout);
    dense_specs[n] = make_spec(&kinds[n], kinds[0].layout);
    if (qkv_prepare(engine, specs[n], &limits, &ops[n])) {
      fprintf(stderr, "%s\n", qkv_last_error(engine));
      return -1;
    }
  }
  return 0;
}

static int close_all(void **state) {
  (void)state;
  for (int n = 0; n < KINDS; n++) {
    qkv_op_free(ops[n]);
    qkv_spec_free(specs[n]);
    qkv_spec_free(dense_specs[n]);
  }
  qkv_close(engine);
  return 0;
}

static uint64_t seed_now;
static uint32_t draw(uint32_t below) {
  seed_now = seed_now * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(seed_now >> 33) % below;
}
static double number(void) {
  return (double)draw(1u << 20) / (1 << 19) - 1;
}

/* ---- Tensors: on the host, with a copy on the device ---- */

typedef struct pair {
  qkv_tensor host, device;
  void *memory; /* of the host: ROOM elements, NaN where nothing was written */
  void *copy;
} pair;

static int64_t count_of(const qkv_tensor *t) {
  int64_t count = 1;
  for (int d = 0; d < t->rank; d++)
    count *= t->shape[d];
  return count;
}

/* Element e in row-major order. */
static void *element(const qkv_tensor *t, int64_t e) {
  int64_t at = 0;
  for (int d = t->rank - 1; d >= 0; d--) {
    at += e % t->shape[d] * t->stride[d];
    e /= t->shape[d];
  }
  return (char *)t->data + at * dtype_size(t->dtype);
}

/* Contiguous; or with axes in another order, gaps and an odd address. */
static pair make(qkv_dtype dtype, int rank, const int64_t *shape, bool plain) {
  pair p;
  const int size = dtype_size(dtype), skip = plain ? 0 : (int)draw(3), turn = plain ? 0 : (int)draw((uint32_t)rank);
  int64_t stride = 1;
  p.memory = malloc((size_t)(ROOM * size));
  memset(p.memory, 0xff, (size_t)(ROOM * size));
  p.host = qkv_tensor_dense((char *)p.memory + skip * size, dtype, rank, shape);
  for (int n = rank - 1; n >= 0; n--) {
    const int d = (n + turn) % rank;
    p.host.stride[d] = stride;
    stride = stride * shape[d] + (plain ? 0 : (int)draw(2));
  }
  assert_true(stride + skip <= ROOM);
  assert_int_equal(qkv_alloc(engine, (size_t)(ROOM * size), &p.copy), QKV_OK);
  p.device = p.host;
  p.device.data = (char *)p.copy + skip * size;
  return p;
}

static void drop(pair *p) {
  free(p->memory);
  qkv_free(engine, p->copy);
}

static void to_device(const pair *p) {
  const size_t bytes = (size_t)(ROOM * dtype_size(p->host.dtype));
  assert_int_equal(qkv_copy_to_device(engine, p->copy, p->memory, bytes), QKV_OK);
}

/* The shapes of o and lse. */
static int shape_o(const kind *k, int64_t shape[4]) {
  const int64_t ragged[] = {ROWS, HEADS, k->dim}, dense[] = {BATCH, LEN_Q, HEADS, k->dim};
  memcpy(shape, k->ragged ? ragged : dense, (k->ragged ? 3 : 4) * sizeof *shape);
  return k->ragged ? 3 : 4;
}
static int shape_lse(const kind *k, int64_t shape[4]) {
  const int64_t ragged[] = {HEADS, ROWS}, dense[] = {BATCH, HEADS, LEN_Q};
  memcpy(shape, k->ragged ? ragged : dense, (k->ragged ? 2 : 3) * sizeof *shape);
  return k->ragged ? 2 : 3;
}
static pair make_o(const kind *k, qkv_dtype dtype, bool plain) {
  int64_t shape[4];
  const int rank = shape_o(k, shape);
  return make(dtype, rank, shape, plain);
}
static pair make_lse(const kind *k, bool plain) {
  int64_t shape[4];
  const int rank = shape_lse(k, shape);
  return make(QKV_F32, rank, shape, plain);
}

/* Element d of row i of head h of entry b. */
static void *o_at(const kind *k, const qkv_tensor *t, int b, int i, int h, int d) {
  const int64_t at = k->ragged
                         ? (b * LEN_Q + i) * t->stride[0] + h * t->stride[1] + d * t->stride[2]
                         : b * t->stride[0] + i * t->stride[1] + h * t->stride[2] + d * t->stride[3];
  return (char *)t->data + at * dtype_size(t->dtype);
}
static float *lse_at(const kind *k, const qkv_tensor *t, int b, int i, int h) {
  const int64_t at = k->ragged ? h * t->stride[0] + (b * LEN_Q + i) * t->stride[1]
                               : b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
  return (float *)t->data + at;
}

/* ---- Attention over parts of the keys, by the reference ---- */

typedef struct problem {
  float q[ROWS * HEADS * DIM_QK], k[BATCH * LEN_K * HEADS * DIM_QK], v[BATCH * LEN_K * HEADS * MOST_DIM];
  float o[ROWS * HEADS * MOST_DIM], lse[ROWS * HEADS];
} problem;

static void make_problem(problem *p) {
  for (size_t n = 0; n < sizeof p->q / sizeof *p->q; n++)
    p->q[n] = (float)(4 * number());
  for (size_t n = 0; n < sizeof p->k / sizeof *p->k; n++)
    p->k[n] = (float)(4 * number());
  for (size_t n = 0; n < sizeof p->v / sizeof *p->v; n++)
    p->v[n] = (float)number();
}

/* Over the keys of `part` alone: part_of[key] == part; part -1: all. Into p->o and p->lse. */
static void attend(int which, problem *p, const int *part_of, int part) {
  static float k[BATCH * LEN_K * HEADS * DIM_QK], v[BATCH * LEN_K * HEADS * MOST_DIM];
  const int dim = kinds[which].dim;
  int keys[LEN_K], count = 0;
  int32_t zeros[BATCH] = {0};
  for (int n = 0; n < LEN_K; n++)
    if (part < 0 || part_of[n] == part)
      keys[count++] = n;
  for (int b = 0; b < BATCH; b++)
    for (int n = 0; n < count; n++) {
      memcpy(&k[(b * count + n) * HEADS * DIM_QK], &p->k[(b * LEN_K + keys[n]) * HEADS * DIM_QK],
             HEADS * DIM_QK * sizeof *k);
      memcpy(&v[(b * count + n) * HEADS * dim], &p->v[(b * LEN_K + keys[n]) * HEADS * dim],
             (size_t)(HEADS * dim) * sizeof *v);
    }
  qkv_attention_args a = QKV_ATTENTION_ARGS_INIT;
  const qkv_param_value zero = {.tensor = qkv_tensor_dense(zeros, QKV_I32, 1, (int64_t[]){BATCH})};
  a.q = qkv_tensor_dense(p->q, QKV_F32, 4, (int64_t[]){BATCH, LEN_Q, HEADS, DIM_QK});
  a.k = qkv_tensor_dense(k, QKV_F32, 4, (int64_t[]){BATCH, count, HEADS, DIM_QK});
  a.v = qkv_tensor_dense(v, QKV_F32, 4, (int64_t[]){BATCH, count, HEADS, dim});
  a.o = qkv_tensor_dense(p->o, QKV_F32, 4, (int64_t[]){BATCH, LEN_Q, HEADS, dim});
  a.lse = qkv_tensor_dense(p->lse, QKV_F32, 3, (int64_t[]){BATCH, HEADS, LEN_Q});
  a.params = &zero;
  a.nparams = 1;
  if (qkv_reference(dense_specs[which], &a) != QKV_OK)
    fail_msg("%s", qkv_last_error(NULL));
}

/* p->o and p->lse into a state. Rows without keys get NaN in o. */
static void put_state(const kind *k, const problem *p, const pair *o, const pair *lse) {
  for (int row = 0; row < ROWS * HEADS; row++) {
    const int b = row / (LEN_Q * HEADS), i = row / HEADS % LEN_Q, h = row % HEADS;
    const float sum = p->lse[(b * HEADS + h) * LEN_Q + i];
    *lse_at(k, &lse->host, b, i, h) = sum;
    for (int d = 0; d < k->dim; d++)
      tensor_store(o_at(k, &o->host, b, i, h, d), o->host.dtype, isinf(sum) ? NAN : p->o[row * k->dim + d]);
  }
}

typedef struct states {
  int count;
  pair o[STATES], lse[STATES], out, out_lse;
  qkv_state host[STATES], device[STATES];
  qkv_merge_args on_host, on_device;
} states;

static void add_state(states *s, pair o, pair lse) {
  s->o[s->count] = o;
  s->lse[s->count] = lse;
  s->host[s->count] = (qkv_state){o.host, lse.host};
  s->device[s->count++] = (qkv_state){o.device, lse.device};
  to_device(&o);
  to_device(&lse);
}

static void set_outputs(states *s, pair out, pair out_lse) {
  s->out = out;
  s->out_lse = out_lse;
  s->on_host = (qkv_merge_args){sizeof(qkv_merge_args), s->count, s->host, out.host, out_lse.host};
  s->on_device = (qkv_merge_args){sizeof(qkv_merge_args), s->count, s->device, out.device, out_lse.device};
  to_device(&out);
  to_device(&out_lse);
}

static void free_states(states *s) {
  for (int n = 0; n < s->count; n++) {
    drop(&s->o[n]);
    drop(&s->lse[n]);
  }
  drop(&s->out);
  drop(&s->out_lse);
}

static void run(const qkv_op *op, const states *s, const char *what) {
  if (qkv_merge(op, &s->on_device, NULL) != QKV_OK || qkv_synchronize(engine) != QKV_OK)
    fail_msg("%s: %s", what, qkv_last_error(engine));
}

/* The device's whole allocation of an output. */
static void *fetch(const pair *p) {
  const size_t bytes = (size_t)(ROOM * dtype_size(p->host.dtype));
  void *got = malloc(bytes);
  assert_int_equal(qkv_copy_to_host(engine, got, p->copy, bytes), QKV_OK);
  return got;
}

static bool near(double got, double want, double tolerance) {
  return got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= tolerance * (1 + fabs(want));
}

/* The device against what the host has, gaps between the elements included. */
static void compare(const pair *p, double tolerance, const char *what) {
  char *got = fetch(p);
  const int size = dtype_size(p->host.dtype);
  for (int64_t n = 0; n < ROOM; n++) {
    const double x = tensor_load(got + n * size, p->host.dtype),
                 y = tensor_load((char *)p->memory + n * size, p->host.dtype);
    if (!near(x, y, tolerance))
      fail_msg("%s: element %d of the memory is %.9g, must be %.9g", what, (int)n, x, y);
  }
  free(got);
}

/* ---- Tests ---- */

static double rounding_of(qkv_dtype t) {
  return t == QKV_BF16 ? 8e-3 : t == QKV_F16 ? 1e-3 : 3e-6;
}

/* Random parts of the keys, some empty; random formats and memory; sometimes in place. */
static void random_parts(void **state) {
  (void)state;
  static problem p;
  static states s;
  for (uint64_t seed = 0; seed < 60; seed++) {
    const int which = (int)(seed % KINDS);
    const kind *k = &kinds[which];
    char what[64];
    int part_of[LEN_K];
    seed_now = seed;
    snprintf(what, sizeof what, "seed %d", (int)seed);
    make_problem(&p);
    const int parts = seed % 9 == 8 ? STATES : 1 + (int)draw(6);
    const bool plain = draw(2), in_place = draw(3) == 0;
    for (int n = 0; n < LEN_K; n++)
      part_of[n] = (int)draw((uint32_t)parts);
    s.count = 0;
    double worst = rounding_of(k->dtype);
    for (int n = 0; n < parts; n++) {
      const qkv_dtype t = in_place && n == parts / 2 ? k->dtype : (qkv_dtype)draw(3);
      const pair o = make_o(k, t, plain), lse = make_lse(k, plain);
      attend(which, &p, part_of, n);
      put_state(k, &p, &o, &lse);
      add_state(&s, o, lse);
      worst = fmax(worst, rounding_of(t));
    }
    set_outputs(&s, make_o(k, k->dtype, plain), make_lse(k, plain));
    if (in_place) {
      s.on_device.o = s.device[parts / 2].o;
      s.on_device.lse = s.device[parts / 2].lse;
    }
    run(ops[which], &s, what);
    const pair got = in_place ? s.o[parts / 2] : s.out, got_lse = in_place ? s.lse[parts / 2] : s.out_lse;
    assert_int_equal(qkv_merge_reference(specs[which], &s.on_host), QKV_OK);
    if (!in_place) { /* to the last place of the format against f64 of the same states */
      compare(&s.out, k->dtype == QKV_F32 ? 2e-6 : rounding_of(k->dtype), what);
      compare(&s.out_lse, 2e-6, what);
    }
    attend(which, &p, part_of, -1); /* and to rounding against attention over all keys */
    put_state(k, &p, &got, &got_lse);
    compare(&got, worst, what);
    compare(&got_lse, 2e-6, what);
    free_states(&s);
  }
}

/* Two merges of f32 states: the bits of o and lse. */
static void bits_of(const qkv_op *op, const states *s, void **o, void **lse) {
  run(op, s, "bits");
  *o = fetch(&s->out);
  *lse = fetch(&s->out_lse);
}

/* Random states; wild ones have LSEs so large that f32 tells few of them apart. */
static void random_states(const kind *k, states *s, int count, bool wild) {
  static const double at[] = {0, 80, 79.5, -80, -1e4, -1e30, 1e4};
  s->count = 0;
  for (int n = 0; n < count; n++) {
    const pair o = make_o(k, QKV_F32, true), lse = make_lse(k, true);
    for (int64_t e = 0; e < count_of(&o.host); e++)
      tensor_store(element(&o.host, e), QKV_F32, e % 7 ? number() : -0.0);
    for (int64_t e = 0; e < count_of(&lse.host); e++)
      tensor_store(element(&lse.host, e), QKV_F32, at[draw(wild ? 7 : 4)] + number());
    add_state(s, o, lse);
  }
  set_outputs(s, make_o(k, QKV_F32, true), make_lse(k, true));
}

static void empty_states_change_no_bit(void **state) {
  (void)state;
  static states s, more;
  for (uint64_t seed = 0; seed < 12; seed++) {
    const kind *k = &kinds[0];
    void *o, *lse, *o_more, *lse_more;
    seed_now = seed;
    random_states(k, &s, 1 + (int)draw(4), true);
    bits_of(ops[0], &s, &o, &lse);
    if (s.count == 1) { /* one state is copied, -0 and all */
      assert_memory_equal(o, s.o[0].memory, (size_t)count_of(&s.out.host) * 4);
      assert_memory_equal(lse, s.lse[0].memory, (size_t)count_of(&s.out_lse.host) * 4);
    }
    more.count = 0;
    const int before = (int)draw((uint32_t)s.count + 1);
    for (int n = 0; n <= s.count; n++) {
      for (int empty = 0; n == before && empty < 2; empty++) {
        const pair none = make_o(k, empty ? QKV_F16 : QKV_F32, true), sum = make_lse(k, true); /* o all NaN */
        for (int64_t e = 0; e < count_of(&sum.host); e++)
          tensor_store(element(&sum.host, e), QKV_F32, -INFINITY);
        add_state(&more, none, sum);
      }
      if (n < s.count) {
        more.host[more.count] = s.host[n];
        more.device[more.count++] = s.device[n];
      }
    }
    set_outputs(&more, make_o(k, QKV_F32, true), make_lse(k, true));
    bits_of(ops[0], &more, &o_more, &lse_more);
    if (memcmp(o, o_more, ROOM * 4) || memcmp(lse, lse_more, ROOM * 4))
      fail_msg("seed %d: two empty states before number %d of %d change bits", (int)seed, before, s.count);
    more.count = 2; /* the empty ones alone */
    more.on_device.states = &more.device[before];
    more.on_device.count = 2;
    run(ops[0], &more, "nothing but empty states");
    float *zero = fetch(&more.out), *none = fetch(&more.out_lse);
    for (int64_t e = 0; e < count_of(&more.out.host); e++)
      assert_true(zero[e] == 0 && !signbit(zero[e]));
    for (int64_t e = 0; e < count_of(&more.out_lse.host); e++)
      assert_true(isinf(none[e]) && none[e] < 0);
    free(zero), free(none), free(o), free(lse), free(o_more), free(lse_more);
    for (int n = 0; n < 2; n++) {
      drop(&more.o[before + n]);
      drop(&more.lse[before + n]);
    }
    drop(&more.out);
    drop(&more.out_lse);
    free_states(&s);
  }
}

/* a, b, c in another order, and (a, b) before c. */
static void order_and_grouping(void **state) {
  (void)state;
  static states s, turned, first, second;
  for (uint64_t seed = 0; seed < 10; seed++) {
    const kind *k = &kinds[0];
    char what[64];
    seed_now = 100 + seed;
    snprintf(what, sizeof what, "seed %d", (int)seed);
    random_states(k, &s, 3, false);
    run(ops[0], &s, what);
    assert_int_equal(qkv_merge_reference(specs[0], &s.on_host), QKV_OK);
    compare(&s.out, 2e-6, what);
    compare(&s.out_lse, 2e-6, what);
    turned = s;
    for (int n = 0; n < 3; n++)
      turned.device[n] = s.device[2 - n];
    turned.on_device.states = turned.device;
    run(ops[0], &turned, what);
    compare(&s.out, 2e-6, what);
    compare(&s.out_lse, 2e-6, what);
    first = s;
    first.on_device.states = first.device;
    first.on_device.count = 2;
    first.on_device.o = first.device[0].o; /* in place, as a cascade would */
    first.on_device.lse = first.device[0].lse;
    run(ops[0], &first, what);
    second = s;
    second.device[1] = s.device[2];
    second.on_device.states = second.device;
    second.on_device.count = 2;
    run(ops[0], &second, what);
    compare(&s.out, 2e-5, what); /* an LSE of 80 in f32 is off by up to 4e-6 */
    compare(&s.out_lse, 2e-6, what);
    free_states(&s);
  }
}

static void refuse(const qkv_op *op, const qkv_merge_args *a, const char *words) {
  const qkv_status status = qkv_merge(op, a, NULL);
  if (status != QKV_INVALID_ARGUMENT || !strstr(qkv_last_error(engine), words))
    fail_msg("status %d, message '%s' without '%s'", (int)status, status ? qkv_last_error(engine) : "", words);
}

static qkv_counters counters(void) {
  qkv_counters c = {.size = sizeof c};
  qkv_get_counters(engine, &c);
  return c;
}

/* One wrong thing at a time. */
static void errors_by_name(void **state) {
  (void)state;
  static states s;
  const kind *k = &kinds[0];
  seed_now = 7;
  random_states(k, &s, 3, true);
  const uint64_t launches = counters().launches;
  qkv_merge_args a = s.on_device;
  refuse(NULL, &a, "op is NULL");
  refuse(ops[0], NULL, "args is NULL");
  a.size = 0;
  refuse(ops[0], &a, "QKV_MERGE_ARGS_INIT");
  a = s.on_device, a.count = 0;
  refuse(ops[0], &a, "states: 0 given, must be 1 to 48");
  a.count = STATES + 1;
  refuse(ops[0], &a, "states: 49 given");
  a.count = 2, a.states = NULL;
  refuse(ops[0], &a, "states: 0 given");
  a = s.on_device, a.o.rank = 3;
  refuse(ops[0], &a, "o: has rank 3, must have 4");
  a = s.on_device, a.o.dtype = QKV_BF16;
  refuse(ops[0], &a, "o: is bf16, must be f32");
  a = s.on_device, a.o.shape[2] = 4;
  refuse(ops[0], &a, "o: dimension 2, heads_q is 4, must be 3");
  a = s.on_device, a.o.shape[1] = -1;
  refuse(ops[0], &a, "o: dimension 1, len_q, is -1");
  a = s.on_device, a.o.shape[0] = BATCH + 1, a.lse = (qkv_tensor){0};
  refuse(ops[0], &a, "states[0].o: dimension 0, batch is 2, must be 3");
  a = s.on_device, a.o.stride[1] = 0;
  refuse(ops[0], &a, "o: dimension 1 has stride 0");
  a = s.on_device, a.lse.shape[2] = 1;
  refuse(ops[0], &a, "lse: dimension 2, len_q is 1");
  a = s.on_device, a.lse.data = NULL;
  refuse(ops[0], &a, "lse: data is NULL");
  a = s.on_device, a.o.data = (char *)a.o.data + 2;
  refuse(ops[0], &a, "o: address");
  static const struct {
    int state;
    const char *words;
  } rows[] = {{0, "states[0].o: is i32, must be f16, bf16 or f32"},
              {1, "states[1].lse: is f16, must be f32"},
              {2, "states[2].o: data is NULL"},
              {2, "states[2].lse: has rank 2, must have 3"},
              {1, "states[1].o: the stride of its dimension 3 is 4294967296"}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    qkv_state wrong[3];
    memcpy(wrong, s.device, sizeof wrong);
    qkv_state *w = &wrong[rows[n].state];
    if (n == 0)
      w->o.dtype = QKV_I32;
    if (n == 1)
      w->lse.dtype = QKV_F16;
    if (n == 2)
      w->o.data = NULL;
    if (n == 3)
      w->lse.rank = 2;
    if (n == 4)
      w->o.stride[3] = (int64_t)1 << 32;
    a = s.on_device, a.states = wrong;
    refuse(ops[0], &a, rows[n].words);
  }
  assert_int_equal(counters().launches, launches);
  free_states(&s);
}

/* A merge op runs no attention, an attention op merges nothing, and declared maxima hold. */
static void ops_know_what_they_do(void **state) {
  (void)state;
  static states s;
  qkv_attention_args attention = QKV_ATTENTION_ARGS_INIT;
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *other;
  random_states(&kinds[0], &s, 2, true);
  assert_int_equal(qkv_attention(ops[0], &attention, NULL), QKV_INVALID_ARGUMENT);
  assert_non_null(strstr(qkv_last_error(engine), "call qkv_merge"));
  limits.family = "attention_naive";
  limits.batch = limits.len_q = limits.len_k = 8;
  assert_int_equal(qkv_prepare(engine, specs[0], &limits, &other), QKV_OK);
  refuse(other, &s.on_device, "limits.phase \"merge\"");
  qkv_op_free(other);
  limits = (qkv_limits)QKV_LIMITS_INIT;
  limits.phase = "merge";
  limits.len_q = LEN_Q - 1;
  assert_int_equal(qkv_prepare(engine, specs[0], &limits, &other), QKV_OK);
  refuse(other, &s.on_device, "len_q is 5; the op was prepared for at most 4");
  qkv_op_free(other);
  free_states(&s);
}

/* Any number of states, one kernel, one launch a call; LSE only where it is wanted; nothing where there are no rows. */
static void launches(void **state) {
  (void)state;
  static states s;
  random_states(&kinds[0], &s, STATES, true);
  assert_int_equal(qkv_workspace_size(ops[0]), 0);
  const qkv_counters before = counters();
  for (int n = 1; n <= STATES; n++) {
    s.on_device.count = n;
    run(ops[0], &s, "any number");
  }
  s.on_device.lse = (qkv_tensor){0};
  to_device(&s.out_lse); /* NaN again */
  run(ops[0], &s, "without LSE");
  compare(&s.out_lse, 0, "an LSE that is not wanted");
  assert_int_equal(counters().launches, before.launches + STATES + 1);
  assert_int_equal(counters().compiles, before.compiles);
  s.on_device.o.shape[0] = 0;
  for (int n = 0; n < STATES; n++)
    s.device[n].o.shape[0] = s.device[n].lse.shape[0] = 0;
  run(ops[0], &s, "no rows");
  assert_int_equal(counters().launches, before.launches + STATES + 1);
  free_states(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_parts),   cmocka_unit_test(empty_states_change_no_bit),
      cmocka_unit_test(order_and_grouping), cmocka_unit_test(errors_by_name),
      cmocka_unit_test(ops_know_what_they_do), cmocka_unit_test(launches)};
  return cmocka_run_group_tests(tests, open_all, close_all);
}
