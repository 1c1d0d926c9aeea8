/* test_candidates.c: qkv_candidates: what it visits, in which order, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "qkv.h"
#include "qkv_tune.h"

static qkv_engine *engine;
static qkv_spec *spec;
static const qkv_workload workload = {.size = sizeof workload, .batch = 2, .len_q = 1024, .len_k = 1024};

typedef struct seen {
  int count, stop; /* stop: after so many; 0: never */
  int defaults, families;
  double last;
  char first[256], family[64];
} seen;

static int look(const qkv_candidate *c, void *user) {
  seen *s = user;
  assert_int_equal(c->size, sizeof *c);
  if (s->count == 0) {
    snprintf(s->first, sizeof s->first, "%s", c->schedule);
    assert_true(c->is_default);
  } else if (s->count > 1) {
    assert_true(c->seconds >= s->last);
  }
  const double parts[] = {c->tensor, c->exponential, c->shared, c->memory};
  for (int n = 0; n < 4; n++)
    assert_true(parts[n] >= 0 && parts[n] <= c->seconds);
  assert_true(c->waves >= 1 && c->seconds > 0);
  s->families += strcmp(s->family, c->family) != 0;
  snprintf(s->family, sizeof s->family, "%s", c->family);
  s->defaults += c->is_default;
  s->last = c->seconds;
  return ++s->count == s->stop;
}

static int open_all(void **state) {
  (void)state;
  const qkv_options none = {.size = sizeof none, .device = "none", .arch = "sm_90a", .cache_dir = ""};
  if (qkv_open(&none, &engine) != QKV_OK)
    return -1;
  return qkv_spec_load(engine,
                       "qkvc: 1\nname: t\nattention: {heads: {q: 32, kv: 8}, dim: 128, dtype: bf16, mask: causal}\n",
                       &spec) != QKV_OK;
}

static int close_all(void **state) {
  (void)state;
  qkv_spec_free(spec);
  qkv_close(engine);
  return 0;
}

static void the_default_then_the_fastest(void **state) {
  (void)state;
  int before = 0;
  for (int effort = QKV_EFFORT_QUICK; effort <= QKV_EFFORT_FULL; effort++) {
    seen s = {0};
    assert_int_equal(qkv_candidates(engine, spec, NULL, &workload, (qkv_effort)effort, look, &s), QKV_OK);
    assert_true(s.count > before && s.defaults == 1 && s.families == 1);
    before = s.count;
  }
}

static void a_visit_stops(void **state) {
  (void)state;
  seen s = {.stop = 3};
  assert_int_equal(qkv_candidates(engine, spec, NULL, &workload, QKV_EFFORT_DEFAULT, look, &s), QKV_OK);
  assert_int_equal(s.count, 3);
}

/* "all": each family's default once, dispatch's first. */
static void all_families(void **state) {
  (void)state;
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  const qkv_workload decode = {.size = sizeof decode, .batch = 64, .len_q = 1, .len_k = 4096};
  seen own = {0}, all = {0};
  o.len_q = 1;
  assert_int_equal(qkv_candidates(engine, spec, &o, &decode, QKV_EFFORT_QUICK, look, &own), QKV_OK);
  o.family = "all";
  assert_int_equal(qkv_candidates(engine, spec, &o, &decode, QKV_EFFORT_QUICK, look, &all), QKV_OK);
  assert_string_equal(own.first, all.first);
  assert_true(all.count > own.count);
  assert_int_equal(all.defaults, 6); /* three of decode, two of prefill that can, attention_naive */
}

/* A family by name; axes that the caller fixes; another architecture than the engine's. */
static int check_fixed(const qkv_candidate *c, void *user) {
  assert_string_equal(c->family, "attention_forward_sm80");
  assert_non_null(strstr(c->schedule, "tile_n=32,"));
  ++*(int *)user;
  return 0;
}

static void what_options_fix_stays(void **state) {
  (void)state;
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  int count = 0;
  o.arch = "sm_80";
  o.phase = "prefill";
  o.schedule = "tile_n=32";
  assert_int_equal(qkv_candidates(engine, spec, &o, &workload, QKV_EFFORT_DEFAULT, check_fixed, &count), QKV_OK);
  assert_true(count > 4);
}

static void expect_failure(qkv_status status, qkv_status wanted, const char *words) {
  if (status != wanted || !strstr(qkv_last_error(engine), words))
    fail_msg("status %d: %s; expected %d: %s", status, qkv_last_error(engine), wanted, words);
}

static void refusals(void **state) {
  (void)state;
  seen s = {0};
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  qkv_workload w = workload;
  expect_failure(qkv_candidates(NULL, spec, NULL, &w, 0, look, &s), QKV_INVALID_ARGUMENT, "engine is NULL");
  expect_failure(qkv_candidates(engine, NULL, NULL, &w, 0, look, &s), QKV_INVALID_ARGUMENT, "spec is NULL");
  expect_failure(qkv_candidates(engine, spec, NULL, NULL, 0, look, &s), QKV_INVALID_ARGUMENT, "workload is NULL");
  expect_failure(qkv_candidates(engine, spec, NULL, &w, 0, NULL, &s), QKV_INVALID_ARGUMENT, "visit is NULL");
  expect_failure(qkv_candidates(engine, spec, NULL, &w, (qkv_effort)3, look, &s), QKV_INVALID_ARGUMENT, "effort is 3");
  w.len_k = -1;
  expect_failure(qkv_candidates(engine, spec, NULL, &w, 0, look, &s), QKV_INVALID_ARGUMENT, "workload.len_k is -1");
  w.len_k = 1024, w.batch = (int64_t)1 << 40;
  expect_failure(qkv_candidates(engine, spec, NULL, &w, 0, look, &s), QKV_INVALID_ARGUMENT, "workload.batch");
  w = workload, w.size = 0;
  expect_failure(qkv_candidates(engine, spec, NULL, &w, 0, look, &s), QKV_INVALID_ARGUMENT, "workload");
  o.family = "attention_forwards";
  expect_failure(qkv_candidates(engine, spec, &o, &workload, 0, look, &s), QKV_UNSUPPORTED,
                 "no family 'attention_forwards'");
  o.family = NULL, o.schedule = "tile_n=31";
  expect_failure(qkv_candidates(engine, spec, &o, &workload, 0, look, &s), QKV_BAD_SCHEDULE, "tile_n = 31");
  o.schedule = "warpgroups=3,tile_n=256";
  expect_failure(qkv_candidates(engine, spec, &o, &workload, 0, look, &s), QKV_BAD_SCHEDULE, "registers");
  o.schedule = NULL, o.phase = "afterwards";
  expect_failure(qkv_candidates(engine, spec, &o, &workload, 0, look, &s), QKV_UNSUPPORTED, "afterwards");
  assert_int_equal(s.count, 0);
}

/* Nothing to do is no division by it. */
static void empty_calls(void **state) {
  (void)state;
  static const int64_t sizes[][3] = {{0, 1, 1}, {1, 0, 128}, {1, 128, 0}, {0, 0, 0}, {1, 1, 0}};
  static const char *const phases[] = {"prefill", "decode"};
  for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
    for (int p = 0; p < 2; p++) {
      qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
      const qkv_workload w = {.size = sizeof w, .batch = sizes[n][0], .len_q = sizes[n][1], .len_k = sizes[n][2]};
      seen s = {0};
      o.family = "all";
      o.phase = phases[p];
      qkv_status status = qkv_candidates(engine, spec, &o, &w, QKV_EFFORT_QUICK, look, &s);
      if (status != QKV_OK || s.count < 10)
        fail_msg("%d x %d x %d, %s: %s", (int)w.batch, (int)w.len_q, (int)w.len_k, o.phase, qkv_last_error(engine));
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_default_then_the_fastest), cmocka_unit_test(a_visit_stops), cmocka_unit_test(all_families),
      cmocka_unit_test(what_options_fix_stays),       cmocka_unit_test(refusals),      cmocka_unit_test(empty_calls),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
