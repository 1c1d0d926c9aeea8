/* test_reference.c: the reference against laws that any attention must obey, not against another implementation of it:
 * rows of weights sum to one, hidden keys do not matter whatever they hold, two halves merge by their LSE, heads pair
 * with their KV heads, layouts do not matter, empty rows and sinks behave as the contract says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

enum { BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, LEN_Q = 5, LEN_K = 9, DIM = 6, DIM_V = 3 };

static float q[BATCH * LEN_Q * HEADS_Q * DIM], k[BATCH * LEN_K * HEADS_KV * DIM], v[BATCH * LEN_K * HEADS_KV * DIM_V];
static float o[BATCH * LEN_Q * HEADS_Q * DIM_V], lse[BATCH * HEADS_Q * LEN_Q], lse_sink[BATCH * HEADS_Q * LEN_Q],
    sink[HEADS_Q];
static uint32_t random_state;

static float random_float(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return (float)((double)random_state / 2147483648.0 - 1);
}

static void fill(float *to, size_t bytes) {
  for (size_t n = 0; n < bytes / sizeof *to; n++)
    to[n] = random_float();
}

static qkv_tensor dense(float *data, int rank, const int64_t *shape) {
  qkv_tensor t = {.data = data, .dtype = QKV_F32, .rank = rank};
  int64_t stride = 1;
  for (int d = rank - 1; d >= 0; stride *= shape[d], d--)
    t.shape[d] = shape[d], t.stride[d] = stride;
  return t;
}

/* Fresh inputs of a seed, poisoned outputs. */
static qkv_attention_args make_args(uint32_t seed) {
  random_state = seed;
  fill(q, sizeof q);
  fill(k, sizeof k);
  fill(v, sizeof v);
  fill(sink, sizeof sink);
  memset(o, 0xFF, sizeof o); /* NaN */
  memset(lse, 0xFF, sizeof lse);
  memset(lse_sink, 0xFF, sizeof lse_sink);
  qkv_attention_args a = QKV_ATTENTION_ARGS_INIT;
  a.q = dense(q, 4, (int64_t[]){BATCH, LEN_Q, HEADS_Q, DIM});
  a.k = dense(k, 4, (int64_t[]){BATCH, LEN_K, HEADS_KV, DIM});
  a.v = dense(v, 4, (int64_t[]){BATCH, LEN_K, HEADS_KV, DIM_V});
  a.o = dense(o, 4, (int64_t[]){BATCH, LEN_Q, HEADS_Q, DIM_V});
  a.lse = dense(lse, 3, (int64_t[]){BATCH, HEADS_Q, LEN_Q});
  a.lse_with_sink = dense(lse_sink, 3, (int64_t[]){BATCH, HEADS_Q, LEN_Q});
  a.sink = dense(sink, 1, (int64_t[]){HEADS_Q});
  return a;
}

static reference_problem make_problem(const qkv_attention_args *args) {
  return (reference_problem){.args = args, .heads_q = HEADS_Q, .heads_kv = HEADS_KV, .scale = 0.4, .bottom_right = 1};
}

static int causal(void *user, const reference_position *at) {
  (void)user;
  return at->k <= at->q;
}

static int below(void *user, const reference_position *at) {
  return at->k < *(int *)user;
}
static int above(void *user, const reference_position *at) {
  return at->k >= *(int *)user;
}

static int never(void *user, const reference_position *at) {
  (void)user;
  return at->i == 2;
}

static void assert_close(double got, double want, const char *what, int n) {
  if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
    fail_msg("%s[%d] is %.9g, expected %.9g", what, n, got, want);
}

static void test_weights_sum_to_one(void **state) {
  (void)state;
  qkv_attention_args a = make_args(1);
  for (size_t n = 0; n < sizeof v / sizeof *v; n++)
    v[n] = 1;
  reference_problem p = make_problem(&a);
  p.softcap = 0.5;
  p.mask = causal;
  assert_int_equal(reference_attention(&p), QKV_OK);
  for (int n = 0; n < (int)(sizeof o / sizeof *o); n++)
    assert_close((double)o[n], 1, "o", n);
}

/* One row by hand. */
static void test_by_hand(void **state) {
  (void)state;
  qkv_attention_args a = make_args(2);
  reference_problem p = make_problem(&a);
  p.softcap = 0.7;
  assert_int_equal(reference_attention(&p), QKV_OK);
  int b = 1, i = 3, h = 3, hk = 1;
  double sum = 0, out = 0;
  for (int key = 0; key < LEN_K; key++) {
    double dot = 0;
    for (int d = 0; d < DIM; d++)
      dot += (double)q[((b * LEN_Q + i) * HEADS_Q + h) * DIM + d] *
             (double)k[((b * LEN_K + key) * HEADS_KV + hk) * DIM + d];
    double e = exp(0.7 * tanh(0.4 * dot / 0.7));
    sum += e;
    out += e * (double)v[((b * LEN_K + key) * HEADS_KV + hk) * DIM_V + 1];
  }
  assert_close((double)o[((b * LEN_Q + i) * HEADS_Q + h) * DIM_V + 1], out / sum, "o", 0);
  assert_close((double)lse[(b * HEADS_Q + h) * LEN_Q + i], log(sum), "lse", 0);
}

static void test_hidden_keys_do_not_matter(void **state) {
  (void)state;
  static float want[sizeof o / sizeof *o];
  static const float poison[] = {NAN, INFINITY, 1e30f};
  int visible = 6;
  for (int round = 0; round < 4; round++) {
    qkv_attention_args a = make_args(3);
    reference_problem p = make_problem(&a);
    p.mask = below;
    p.user = &visible;
    for (int b = 0; b < BATCH && round > 0; b++)
      for (int n = visible; n < LEN_K; n++) {
        for (int d = 0; d < HEADS_KV * DIM; d++)
          k[(b * LEN_K + n) * HEADS_KV * DIM + d] = poison[round - 1];
        for (int d = 0; d < HEADS_KV * DIM_V; d++)
          v[(b * LEN_K + n) * HEADS_KV * DIM_V + d] = poison[round - 1];
      }
    assert_int_equal(reference_attention(&p), QKV_OK);
    if (round == 0)
      memcpy(want, o, sizeof o);
    assert_memory_equal(o, want, sizeof o);
  }
}

static void test_halves_merge(void **state) {
  (void)state;
  enum { O = sizeof o / sizeof *o, L = sizeof lse / sizeof *lse };
  static float halves[2][O], logs[2][L];
  int split = 4;
  for (int half = 0; half < 2; half++) {
    qkv_attention_args a = make_args(4);
    reference_problem p = make_problem(&a);
    p.mask = half ? above : below;
    p.user = &split;
    assert_int_equal(reference_attention(&p), QKV_OK);
    memcpy(halves[half], o, sizeof o);
    memcpy(logs[half], lse, sizeof lse);
  }
  qkv_attention_args a = make_args(4);
  reference_problem p = make_problem(&a);
  assert_int_equal(reference_attention(&p), QKV_OK);
  for (int b = 0; b < BATCH; b++)
    for (int h = 0; h < HEADS_Q; h++)
      for (int i = 0; i < LEN_Q; i++) {
        int at = (b * HEADS_Q + h) * LEN_Q + i, row = ((b * LEN_Q + i) * HEADS_Q + h) * DIM_V;
        double x = exp((double)logs[0][at]), y = exp((double)logs[1][at]);
        assert_close((double)lse[at], log(x + y), "lse", at);
        for (int d = 0; d < DIM_V; d++)
          assert_close((double)o[row + d], (x * (double)halves[0][row + d] + y * (double)halves[1][row + d]) / (x + y),
                       "o", row + d);
      }
}

static void test_empty_rows(void **state) {
  (void)state;
  for (int with_sink = 0; with_sink < 2; with_sink++) {
    qkv_attention_args a = make_args(5);
    reference_problem p = make_problem(&a);
    p.mask = never; /* only row 2 sees anything */
    p.has_sink = with_sink;
    assert_int_equal(reference_attention(&p), QKV_OK);
    for (int b = 0; b < BATCH; b++)
      for (int h = 0; h < HEADS_Q; h++)
        for (int i = 0; i < LEN_Q; i++) {
          int at = (b * HEADS_Q + h) * LEN_Q + i, row = ((b * LEN_Q + i) * HEADS_Q + h) * DIM_V;
          assert_int_equal(isfinite(lse[at]) != 0, i == 2);
          if (i == 2)
            continue;
          assert_true(lse[at] == -INFINITY && o[row] == 0 && o[row + DIM_V - 1] == 0);
          assert_true(lse_sink[at] == (with_sink ? sink[h] : -INFINITY));
        }
  }
}

/* The sink scales o by exp(lse) / (exp(lse) + exp(sink)) and leaves lse alone. */
static void test_sink(void **state) {
  (void)state;
  static float plain[sizeof o / sizeof *o], log_plain[sizeof lse / sizeof *lse];
  qkv_attention_args a = make_args(6);
  reference_problem p = make_problem(&a);
  assert_int_equal(reference_attention(&p), QKV_OK);
  memcpy(plain, o, sizeof o);
  memcpy(log_plain, lse, sizeof lse);
  p.has_sink = 1;
  assert_int_equal(reference_attention(&p), QKV_OK);
  assert_memory_equal(lse, log_plain, sizeof lse);
  for (int n = 0; n < (int)(sizeof o / sizeof *o); n++) {
    int h = n / DIM_V % HEADS_Q, i = n / DIM_V / HEADS_Q % LEN_Q, b = n / DIM_V / HEADS_Q / LEN_Q;
    double x = exp((double)lse[(b * HEADS_Q + h) * LEN_Q + i]), y = exp((double)sink[h]);
    assert_close((double)o[n], (double)plain[n] * x / (x + y), "o", n);
    assert_close((double)lse_sink[(b * HEADS_Q + h) * LEN_Q + i], log(x + y), "lse_with_sink", n);
  }
}

/* Scales of K and V give what tensors multiplied by them give; one may stand for all heads. Powers of 2, so that the
 * products are exact. */
static void test_kv_scale(void **state) {
  (void)state;
  static float plain[sizeof o / sizeof *o], scales[2][HEADS_KV];
  for (int shared = 0; shared < 2; shared++) {
    qkv_attention_args a = make_args(9);
    reference_problem p = make_problem(&a);
    p.has_kv_scale = 1;
    for (int h = 0; h < HEADS_KV; h++)
      scales[0][h] = ldexpf(1, h - 1), scales[1][h] = ldexpf(-1, 3 - h);
    a.k_scale = dense(scales[0], 1, (int64_t[]){HEADS_KV});
    a.v_scale = dense(scales[1], 1, (int64_t[]){HEADS_KV});
    if (shared)
      a.k_scale.stride[0] = a.v_scale.stride[0] = 0;
    assert_int_equal(reference_attention(&p), QKV_OK);
    memcpy(plain, o, sizeof o);
    for (size_t n = 0; n < sizeof k / sizeof *k; n++)
      k[n] *= scales[0][shared ? 0 : n / DIM % HEADS_KV];
    for (size_t n = 0; n < sizeof v / sizeof *v; n++)
      v[n] *= scales[1][shared ? 0 : n / DIM_V % HEADS_KV];
    p.has_kv_scale = 0;
    assert_int_equal(reference_attention(&p), QKV_OK);
    assert_memory_equal(o, plain, sizeof o);
  }
}

/* Of one key, o is its value: every code of e4m3 as the format defines it, but for that of NaN. */
static void test_codes_of_e4m3(void **state) {
  (void)state;
  uint8_t codes[256];
  float one = 0, result[256];
  for (int n = 0; n < 256; n++)
    codes[n] = (uint8_t)n;
  qkv_attention_args a = QKV_ATTENTION_ARGS_INIT;
  a.q = a.k = dense(&one, 4, (int64_t[]){1, 1, 1, 1});
  a.v = qkv_tensor_dense(codes, QKV_E4M3, 4, (int64_t[]){1, 1, 1, 256});
  a.o = dense(result, 4, (int64_t[]){1, 1, 1, 256});
  a.max_len_q = a.max_len_k = 1;
  reference_problem p = {.args = &a, .heads_q = 1, .heads_kv = 1, .scale = 1, .bottom_right = 1};
  assert_int_equal(reference_attention(&p), QKV_OK);
  for (int n = 0; n < 256; n++) {
    const int exponent = n >> 3 & 15, fraction = n & 7;
    const double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    assert_close((double)result[n], n & 0x80 ? -size : size, "code", n);
  }
  assert_true(result[0x7f] == 480.0f && result[0xff] == -480.0f);
}

/* V holds the KV head's number: shows the pairing. */
static void test_head_pairing(void **state) {
  (void)state;
  qkv_attention_args a = make_args(7);
  for (int n = 0; n < (int)(sizeof v / sizeof *v); n++)
    v[n] = (float)(n / DIM_V % HEADS_KV);
  reference_problem p = make_problem(&a);
  assert_int_equal(reference_attention(&p), QKV_OK);
  for (int n = 0; n < (int)(sizeof o / sizeof *o); n++)
    assert_close((double)o[n], n / DIM_V % HEADS_Q / (HEADS_Q / HEADS_KV), "o", n);
}

/* Large scores: nothing overflows, and the answer moves with the shift as it should. */
static double shifted(void *user, const reference_position *at, double s) {
  (void)at;
  return s + *(double *)user;
}

static void test_magnitudes(void **state) {
  (void)state;
  static float plain[sizeof o / sizeof *o];
  for (int n = 0; n < 5; n++) {
    double shift = (const double[]){0, -6e4, -120, 1e4, 1e300}[n];
    qkv_attention_args a = make_args(8);
    reference_problem p = make_problem(&a);
    p.score = shifted;
    p.user = &shift;
    assert_int_equal(reference_attention(&p), QKV_OK);
    if (n == 0)
      memcpy(plain, o, sizeof o);
    for (int e = 0; e < (int)(sizeof o / sizeof *o) && n < 4; e++)
      assert_close((double)o[e], (double)plain[e], "o", e);
    for (int e = 0; e < (int)(sizeof o / sizeof *o); e++)
      assert_true(isfinite(o[e]));
  }
}

/* Reversed and transposed memory with the strides to match gives the same bits. */
static void test_layouts(void **state) {
  (void)state;
  static float plain[sizeof o / sizeof *o], reversed[sizeof k / sizeof *k], by_head[sizeof o / sizeof *o];
  qkv_attention_args a = make_args(9);
  reference_problem p = make_problem(&a);
  p.mask = causal;
  assert_int_equal(reference_attention(&p), QKV_OK);
  memcpy(plain, o, sizeof o);
  int count = sizeof k / sizeof *k;
  for (int n = 0; n < count; n++)
    reversed[count - 1 - n] = k[n];
  a.k.data = reversed + count - 1;
  for (int d = 0; d < 4; d++)
    a.k.stride[d] = -a.k.stride[d];
  a.o.data = by_head;
  a.o.stride[1] = DIM_V;
  a.o.stride[2] = LEN_Q * DIM_V;
  assert_int_equal(reference_attention(&p), QKV_OK);
  for (int n = 0; n < (int)(sizeof o / sizeof *o); n++) {
    int d = n % DIM_V, h = n / DIM_V % HEADS_Q, i = n / DIM_V / HEADS_Q % LEN_Q, b = n / DIM_V / HEADS_Q / LEN_Q;
    assert_true(by_head[((b * HEADS_Q + h) * LEN_Q + i) * DIM_V + d] == plain[n]);
  }
}

static void test_visible_and_alignment(void **state) {
  (void)state;
  qkv_attention_args a = make_args(10);
  reference_problem p = make_problem(&a);
  assert_true(reference_visible(&p) == BATCH * HEADS_Q * LEN_Q * LEN_K);
  p.mask = causal;
  int want[2] = {0, 0};
  for (int i = 0; i < LEN_Q; i++)
    want[0] += i + 1, want[1] += i + 1 + LEN_K - LEN_Q;
  for (p.bottom_right = 0; p.bottom_right < 2; p.bottom_right++)
    assert_true(reference_visible(&p) == BATCH * HEADS_Q * want[p.bottom_right]);
}

static void test_no_keys(void **state) {
  (void)state;
  qkv_attention_args a = make_args(11);
  a.k.shape[1] = a.v.shape[1] = 0;
  a.k.data = a.v.data = NULL;
  reference_problem p = make_problem(&a);
  assert_int_equal(reference_attention(&p), QKV_OK);
  for (int n = 0; n < (int)(sizeof o / sizeof *o); n++)
    assert_true(o[n] == 0);
  for (int n = 0; n < (int)(sizeof lse / sizeof *lse); n++)
    assert_true(lse[n] == -INFINITY);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_weights_sum_to_one),
                                     cmocka_unit_test(test_by_hand),
                                     cmocka_unit_test(test_hidden_keys_do_not_matter),
                                     cmocka_unit_test(test_halves_merge),
                                     cmocka_unit_test(test_empty_rows),
                                     cmocka_unit_test(test_sink),
                                     cmocka_unit_test(test_kv_scale),
                                     cmocka_unit_test(test_codes_of_e4m3),
                                     cmocka_unit_test(test_head_pairing),
                                     cmocka_unit_test(test_magnitudes),
                                     cmocka_unit_test(test_layouts),
                                     cmocka_unit_test(test_visible_and_alignment),
                                     cmocka_unit_test(test_no_keys)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
