/* test_dispatch.c: which kernels an op holds, and which a call takes: the rule by a table of specs and limits, with the
 * compiles it costs; calls of every length agree with the reference through whichever kernel they take; and what
 * explain says of it, word for word. */
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

#include "qkv_internal.h"

enum { HEADS_Q = 6, HEADS_KV = 2, DIM = 16, BATCH = 2, MAX_Q = 40, MAX_K = 50 };

static qkv_engine *engine;

static int open_all(void **state) {
  (void)state;
  qkv_options o = QKV_OPTIONS_INIT;
  o.device = "emu";
  o.cache_dir = "";
  return qkv_open(&o, &engine) != QKV_OK;
}

static int close_all(void **state) {
  (void)state;
  qkv_close(engine);
  return 0;
}

static void need(qkv_status status) {
  if (status != QKV_OK)
    fail_msg("status %d: %s", (int)status, qkv_last_error(engine));
}

static uint64_t compiles(void) {
  qkv_counters c = {.size = sizeof c};
  qkv_get_counters(engine, &c);
  return c.compiles;
}

static qkv_spec *make_spec(int heads_q, const char *rest) {
  char source[512];
  qkv_spec *s;
  snprintf(source, sizeof source,
           "qkvc: 1\nname: served\nattention:\n  heads: {q: %d, kv: %d}\n  dim: %d\n  dtype: f16\n  mask: causal\n"
           "outputs: [o, lse]\n%s",
           heads_q, HEADS_KV, DIM, rest);
  need(qkv_spec_load(engine, source, &s));
  return s;
}

static const char with_decode[] = "workloads: [{name: chunk, batch: 1, q: 512, kv: 512}, {name: speculative, batch: 2, "
                                  "q: 4, kv: 512}, {name: step, batch: 2, q: 1, kv: 512}]\n";
static const char without_decode[] = "workloads: [{name: chunk, batch: 1, q: 512, kv: 512}]\n";
static const char padded[] = "layout: {q: dense, kv: padded}\n";

/* ---- What an op holds ---- */

static const struct holding {
  const char *name, *rest;
  int64_t len_q;
  const char *family, *phase, *schedule;
  const char *few; /* the family for few queries; NULL: none */
  const char *reason;
} holdings[] = {
    {"a workload of few queries", with_decode, 0, NULL, NULL, NULL, "attention_decode_sm80",
     "workload speculative has 4 queries"},
    {"the same with a maximum", with_decode, 512, NULL, NULL, NULL, "attention_decode_sm80", "workload speculative"},
    {"few at most", with_decode, 16, NULL, NULL, NULL, NULL, "at most 16 queries were declared"},
    {"workloads without few", without_decode, 512, NULL, NULL, NULL, NULL, "no workload has 1 to 16 queries"},
    {"nothing said, dense", "", 512, NULL, NULL, NULL, NULL, "layout.kv: dense, and no workload says"},
    {"a cache", padded, 512, NULL, NULL, NULL, "attention_decode_sm80", "layout.kv: padded: keys are kept"},
    {"packed keys", "layout: {q: ragged, kv: ragged}\n", 512, NULL, NULL, NULL, NULL, "layout.kv: ragged, and no"},
    {"one phase", padded, 512, NULL, "prefill", NULL, NULL, "a phase was asked for"},
    {"the other phase", padded, 512, NULL, "decode", NULL, NULL, "a phase was asked for"},
    {"a family", padded, 512, "attention_forward_sm80", NULL, NULL, NULL, "a family was asked for"},
    {"a schedule", padded, 512, NULL, NULL, "tile_m=64", NULL, "a schedule was asked for"},
    {"bits of a sequence's own", "layout: {q: dense, kv: padded}\ndeterministic: batch\n", 512, NULL, NULL, NULL, NULL,
     "deterministic: batch: which kernel"},
};

static void holdings_follow_the_rule(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof holdings / sizeof *holdings; n++) {
    const struct holding *h = &holdings[n];
    qkv_spec *s = make_spec(HEADS_Q, h->rest);
    const gen_request request = {.arch = engine->arch, .family = h->family, .phase = h->phase, .schedule = h->schedule,
                                 .len_q = h->len_q};
    char reason[DISPATCH_REASON];
    gen_kernel *few;
    need(dispatch_render_decode(engine, s->parsed, &request, true, &few, reason, NULL));
    if (!few != !h->few || (few && strcmp(few->manifest.family, h->few)) || !strstr(reason, h->reason))
      fail_msg("%s: %s, because '%s'", h->name, few ? few->manifest.family : "none", reason);
    gen_kernel_free(few);
    qkv_spec_free(s);
  }
}

/* In the family's own words. */
static void a_family_that_cannot_says_why(void **state) {
  (void)state;
  qkv_spec *s;
  char reason[DISPATCH_REASON];
  gen_kernel *few;
  const gen_request request = {.arch = engine->arch};
  need(qkv_spec_load(engine,
                     "qkvc: 1\nname: t\nattention: {heads: 2, dim: 24, dtype: {q: f32, kv: e4m3}}\n"
                     "layout: {q: dense, kv: padded}\n",
                     &s));
  need(dispatch_render_decode(engine, s->parsed, &request, true, &few, reason, NULL));
  assert_null(few);
  if (!strstr(reason, "no kernel family for decode can do 't': attention_decode_sm90: needs sm_90") ||
      !strstr(reason, "; attention_decode_sm80: attention.dtype.q: f32") ||
      !strstr(reason, "attention_decode_simt: attention.dim.qk: 24 is no multiple of 16"))
    fail_msg("%s", reason);
  qkv_spec_free(s);
}

/* 16-bit numbers go to tensor cores, but for a single row; what those cannot take, to lanes. */
static void formats_have_their_families(void **state) {
  (void)state;
  static const struct {
    const char *dim, *dtype;
    int64_t len_q; /* 0: the kernel for few queries of an op that has another */
    const char *family;
  } rows[] = {
      {"64", "f16", 0, "attention_decode_sm80"},
      {"64", "f16", 1, "attention_decode_simt"},
      {"64", "f16", 2, "attention_decode_sm80"},
      {"64", "{q: bf16, kv: e4m3}", 0, "attention_decode_sm80"},
      {"64", "{q: bf16, kv: e4m3}", 1, "attention_decode_sm80"},
      {"64", "f32", 0, "attention_decode_simt"},
      {"64", "{q: bf16, kv: e5m2}", 0, "attention_decode_simt"},
      {"64", "{q: f32, kv: e4m3}", 0, "attention_decode_simt"},
      {"{qk: 576, v: 512}", "bf16", 0, "attention_decode_simt"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char yaml[256], reason[DISPATCH_REASON] = "";
    qkv_spec *s;
    gen_kernel *few = NULL;
    const gen_request request = {.arch = engine->arch, .len_q = rows[n].len_q};
    snprintf(yaml, sizeof yaml, "qkvc: 1\nname: t\nattention: {heads: 2, dim: %s, dtype: %s}\nlayout: {kv: padded}\n",
             rows[n].dim, rows[n].dtype);
    need(qkv_spec_load(engine, yaml, &s));
    need(rows[n].len_q ? render_kernel(engine, s->parsed, &request, &few)
                       : dispatch_render_decode(engine, s->parsed, &request, true, &few, reason, NULL));
    if (!few || strcmp(few->manifest.family, rows[n].family))
      fail_msg("dim %s, dtype %s, len_q %d: %s, because '%s'", rows[n].dim, rows[n].dtype, (int)rows[n].len_q,
               few ? few->manifest.family : "none", reason);
    gen_kernel_free(few);
    qkv_spec_free(s);
  }
}

/* Three compiles for keys that are kept, of which one phase saves one, and a promise of aligned tensors another. */
static void compiles_follow_the_rule(void **state) {
  (void)state;
  static const struct {
    const char *phase;
    int aligned_only, compiles;
  } rows[] = {{NULL, 0, 3}, {"prefill", 1, 1}, {"decode", 1, 1}};
  qkv_spec *s = make_spec(HEADS_Q, padded);
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    qkv_limits limits = QKV_LIMITS_INIT;
    qkv_op *op;
    limits.phase = rows[n].phase;
    limits.aligned_only = rows[n].aligned_only;
    const uint64_t before = compiles();
    need(qkv_prepare(engine, s, &limits, &op));
    if (compiles() != before + (uint64_t)rows[n].compiles) /* nothing is kept in a cache */
      fail_msg("row %zu: %d compiles, not %d", n, (int)(compiles() - before), rows[n].compiles);
    assert_int_equal(op->few != NULL, rows[n].phase == NULL);
    qkv_op_free(op);
  }
  qkv_spec_free(s);
}

/* ---- What a call takes ---- */

static void few_rows_of_a_kv_head(void **state) {
  (void)state;
  static const int rows[][2] = {{2, 16}, {8, 16}, {10, 12}, {16, 8}, {64, 2}, {128, 1}, {200, 1}}; /* query heads */
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    qkv_spec *s = make_spec(rows[n][0], "");
    assert_int_equal(dispatch_few(s->parsed), rows[n][1]);
    qkv_spec_free(s);
  }
}

typedef struct tensors {
  uint16_t q[BATCH * MAX_Q * HEADS_Q * DIM + 8], k[BATCH * MAX_K * HEADS_KV * DIM], v[BATCH * MAX_K * HEADS_KV * DIM];
  uint16_t o[BATCH * MAX_Q * HEADS_Q * DIM];
  float lse[BATCH * HEADS_Q * MAX_Q];
  int32_t lengths[BATCH];
} tensors;

static qkv_attention_args describe(tensors *t, int64_t len_q, int skip) {
  qkv_attention_args a = QKV_ATTENTION_ARGS_INIT;
  a.q = qkv_tensor_dense(t->q + skip, QKV_F16, 4, (int64_t[]){BATCH, len_q, HEADS_Q, DIM});
  a.k = qkv_tensor_dense(t->k, QKV_F16, 4, (int64_t[]){BATCH, MAX_K, HEADS_KV, DIM});
  a.v = qkv_tensor_dense(t->v, QKV_F16, 4, (int64_t[]){BATCH, MAX_K, HEADS_KV, DIM});
  a.o = qkv_tensor_dense(t->o, QKV_F16, 4, (int64_t[]){BATCH, len_q, HEADS_Q, DIM});
  a.lse = qkv_tensor_dense(t->lse, QKV_F32, 3, (int64_t[]){BATCH, HEADS_Q, len_q});
  a.seqlens_k = qkv_tensor_dense(t->lengths, QKV_I32, 1, (int64_t[]){BATCH});
  return a;
}

/* Calls of 1 to 40 queries, aligned and not: the kernel that the rule says, and right. */
static void calls_take_theirs(void **state) {
  (void)state;
  static tensors host, want, got;
  qkv_spec *s = make_spec(HEADS_Q, padded);
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *op;
  void *memory, *workspace;
  limits.batch = BATCH;
  limits.len_q = MAX_Q;
  limits.len_k = MAX_K;
  need(qkv_prepare(engine, s, &limits, &op));
  const size_t bytes = qkv_workspace_size(op);
  assert_true(bytes > 0); /* decode's, though prefill on sm_80 has none */
  need(qkv_alloc(engine, sizeof host, &memory));
  need(qkv_alloc(engine, bytes, &workspace));
  for (size_t n = 0; n < sizeof host.q / 2; n++)
    host.q[n] = float_to_f16((float)((int)(n * 7919 % 2001) - 1000) / 500.0f);
  for (size_t n = 0; n < sizeof host.k / 2; n++) {
    host.k[n] = float_to_f16((float)((int)(n * 104729 % 2003) - 1001) / 500.0f);
    host.v[n] = float_to_f16((float)((int)(n * 1299709 % 1999) - 999) / 500.0f);
  }
  host.lengths[0] = 50, host.lengths[1] = 13;
  for (int64_t len_q = 1; len_q <= MAX_Q; len_q += len_q == 17 ? 23 : len_q == 5 ? 11 : 1)
    for (int skip = 0; skip < 2; skip++) {
      need(qkv_copy_to_device(engine, memory, &host, sizeof host));
      qkv_attention_args a = describe(memory, len_q, skip);
      a.workspace = workspace;
      a.workspace_bytes = bytes;
      call_view call = {0};
      const op_kernel *k;
      need(call_check(s->parsed, &op->limits, &a, 0, &call));
      need(dispatch_choose(op, &call, &k));
      assert_ptr_equal(k, skip ? op->other : len_q <= 16 ? op->few : op->primary);
      need(qkv_attention(op, &a, NULL));
      need(qkv_synchronize(engine));
      need(qkv_copy_to_host(engine, &got, memory, sizeof got));
      want = host;
      const qkv_attention_args on_host = describe(&want, len_q, skip);
      need(qkv_reference(s, &on_host));
      for (int64_t n = 0; n < BATCH * len_q * HEADS_Q * DIM; n++)
        if (!(fabsf(f16_to_float(got.o[n]) - f16_to_float(want.o[n])) <= 4e-3f))
          fail_msg("%d queries, skip %d: o[%d] is %g, must be %g", (int)len_q, skip, (int)n,
                   (double)f16_to_float(got.o[n]), (double)f16_to_float(want.o[n]));
      for (int64_t n = 0; n < BATCH * len_q * HEADS_Q; n++)
        if (!(got.lse[n] == want.lse[n] || fabsf(got.lse[n] - want.lse[n]) <= 1e-3f))
          fail_msg("%d queries, skip %d: lse[%d]", (int)len_q, skip, (int)n);
    }
  qkv_free(engine, memory);
  qkv_free(engine, workspace);
  qkv_op_free(op);
  qkv_spec_free(s);
}

/* ---- What explain says ---- */

static void explain_says(const char *rest, const char *phase, const char *want) {
  qkv_spec *s = make_spec(HEADS_Q, rest);
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  char *said;
  o.arch = "sm_90a";
  o.phase = phase;
  need(qkv_explain(engine, s, &o, 0, &said));
  char *from = strstr(said, "\ndispatch\n") ? strstr(said, "\ndispatch\n") + 1 : NULL,
       *to = from ? strstr(from, "mask\n") : NULL, *comma = to ? strstr(from, ", tile_m=") : NULL;
  if (comma && comma < to) { /* the schedule is the family's affair */
    size_t cut = strcspn(comma, "\n");
    memmove(comma, comma + cut, strlen(comma + cut) + 1);
    to -= cut;
  }
  if (!to || strncmp(from, want, strlen(want)) || from + strlen(want) != to)
    fail_msg("explain says\n%.*s\nnot\n%s", to ? (int)(to - from) : 0, from ? from : "", want);
  qkv_string_free(said);
  qkv_spec_free(s);
}

#define CROSS "built-in default: tables are for the engine's own device\n"

static void explain_tells_which_and_why(void **state) {
  (void)state;
  explain_says(with_decode, NULL,
               "dispatch\n"
               "  max_len_q up to 16   attention_decode_sm90\n"
               "  other calls          attention_forward_sm90\n"
               "  unaligned tensors    attention_forward_sm80, whatever max_len_q\n"
               "  why                  few queries have a kernel: workload speculative has 4 queries\n"
               "schedules\n"
               "  max_len_q up to 16   " CROSS
               "  other calls          " CROSS);
  explain_says(without_decode, NULL,
               "dispatch\n"
               "  all calls            attention_forward_sm90\n"
               "  unaligned tensors    attention_forward_sm80, whatever max_len_q\n"
               "  why                  one kernel: no workload has 1 to 16 queries\n"
               "schedules\n"
               "  all calls            " CROSS);
  explain_says("", "merge",
               "dispatch\n"
               "  all calls            attention_merge_sm80\n"
               "  why                  one kernel: a phase was asked for: its kernels take all calls\n"
               "schedules\n"
               "  all calls            " CROSS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(holdings_follow_the_rule),
      cmocka_unit_test(a_family_that_cannot_says_why),
      cmocka_unit_test(formats_have_their_families),
      cmocka_unit_test(compiles_follow_the_rule),      cmocka_unit_test(few_rows_of_a_kv_head),
      cmocka_unit_test(calls_take_theirs),             cmocka_unit_test(explain_tells_which_and_why)};
  return cmocka_run_group_tests(tests, open_all, close_all);
}
