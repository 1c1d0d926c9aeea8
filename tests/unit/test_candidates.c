/* test_candidates.c: qkv_candidates: what it visits, in which order, and what it refuses. */
#include <math.h>
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
static unsigned merges_seen; /* by note_merge, a bit each */
static const qkv_workload workload = {.size = sizeof workload, .batch = 2, .len_q = 1024, .len_k = 1024};

typedef struct seen {
  int count, stop; /* stop: after so many; 0: never */
  int defaults, families;
  double last;
  char first[256], family[64];
  char wrong[512]; /* the first fault */
} seen;

/* What is wrong with a candidate, in words; NULL: nothing. */
static const char *fault(const qkv_candidate *c, const seen *s) {
  const double parts[] = {c->tensor, c->exponential, c->shared, c->memory};
  for (int n = 0; n < 4; n++)
    if (!(parts[n] >= 0 && parts[n] <= c->seconds))
      return "a part is less than nothing or more than the whole";
  return c->size != sizeof *c                      ? "size"
         : !s->count && !c->is_default             ? "the first is no default"
         : s->count > 1 && !(c->seconds >= s->last) ? "not in order"
         : !(c->waves >= 1)                        ? "waves"
         : !(c->seconds > 0) || isinf(c->seconds)  ? "seconds"
                                                   : NULL;
}

static int look(const qkv_candidate *c, void *user) {
  seen *s = user;
  const char *wrong = fault(c, s);
  if (wrong && !s->wrong[0])
    snprintf(s->wrong, sizeof s->wrong, "%s %s: %s (%g s)", c->family, c->schedule, wrong, c->seconds);
  if (s->count == 0)
    snprintf(s->first, sizeof s->first, "%s", c->schedule);
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

/* A GPU of few SMs, such as a slice of one: not one cluster of 16 finds room. */
static void few_sms(void **state) {
  (void)state;
  const qkv_options emu = {.size = sizeof emu, .device = "emu", .arch = "sm_90a", .cache_dir = ""};
  const qkv_workload decode = {.size = sizeof decode, .batch = 1, .len_q = 1, .len_k = 4096};
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  qkv_engine *small;
  o.phase = "decode";
  o.family = "all";
  assert_int_equal(qkv_open(&emu, &small), QKV_OK);
  for (int effort = QKV_EFFORT_QUICK; effort <= QKV_EFFORT_DEFAULT; effort++) {
    seen s = {0};
    const qkv_status status = qkv_candidates(small, spec, &o, &decode, (qkv_effort)effort, look, &s);
    if (status != QKV_OK || s.wrong[0])
      fail_msg("effort %d: %s%s", effort, s.wrong, status ? qkv_last_error(small) : "");
  }
  qkv_close(small);
}

/* Who adds up parts is for a full run to try, of every family that has the choice. */
static int note_merge(const qkv_candidate *c, void *user) {
  const char *merge = strstr(c->schedule, "merge=");
  if (merge && !strcmp(c->family, *(const char **)user))
    merges_seen |= 1u << atoi(merge + strlen("merge="));
  return 0;
}

static void full_runs_try_all_merges(void **state) {
  (void)state;
  static const struct {
    const char *family;
    unsigned merges; /* a bit each */
  } cases[] = {{"attention_decode_sm90", 0x10117},
               {"attention_decode_simt", 0x10117},
               {"attention_decode_sm80", 3}};
  const qkv_workload decode = {.size = sizeof decode, .batch = 1, .len_q = 1, .len_k = 8192};
  for (int n = 0; n < 3; n++) {
    qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
    const char *family = cases[n].family;
    o.phase = "decode";
    o.family = family;
    merges_seen = 0;
    if (qkv_candidates(engine, spec, &o, &decode, QKV_EFFORT_FULL, note_merge, &family) != QKV_OK ||
        merges_seen != cases[n].merges)
      fail_msg("%s: merges 0x%x, expected 0x%x: %s", family, merges_seen, cases[n].merges, qkv_last_error(engine));
  }
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
    assert_string_equal(s.wrong, "");
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
  assert_string_equal(own.wrong, "");
  assert_string_equal(all.wrong, "");
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

/* Nothing to do is no division by it, and the most there can be no overflow; what no kernel takes is refused by name. By
 * every family that can do the spec in the phase. */
static void ask_extremes(const char *source, const char *arch, const char *phase, int fewest) {
  static const int64_t sizes[] = {0, 1, (int64_t)1 << 30, INT32_MAX};
  enum { SIZES = sizeof sizes / sizeof *sizes };
  qkv_spec *s;
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  assert_int_equal(qkv_spec_load(engine, source, &s), QKV_OK);
  o.family = "all";
  o.phase = phase;
  o.arch = arch;
  for (int n = 0; n < SIZES * SIZES * SIZES; n++) {
    const qkv_workload w = {
        .size = sizeof w, .batch = sizes[n % SIZES], .len_q = sizes[n / SIZES % SIZES], .len_k = sizes[n / SIZES / SIZES]};
    const char *refused = w.batch == INT32_MAX   ? "workload.batch is 2147483647; it must"
                          : w.len_q == INT32_MAX ? "workload.len_q is 2147483647; it must"
                          : w.len_k == INT32_MAX ? "workload.len_k is 2147483647; it must"
                                                 : NULL;
    seen found = {0};
    const qkv_status status = qkv_candidates(engine, s, &o, &w, QKV_EFFORT_QUICK, look, &found);
    if (refused ? status != QKV_INVALID_ARGUMENT || !strstr(qkv_last_error(engine), refused)
                : status != QKV_OK || found.count < fewest || found.wrong[0])
      fail_msg("%s, %s, %lld x %lld x %lld: status %d, %d candidates, %s%s\n%s", arch, phase, (long long)w.batch,
               (long long)w.len_q, (long long)w.len_k, (int)status, found.count, found.wrong,
               status ? qkv_last_error(engine) : "", source);
  }
  qkv_spec_free(s);
}

static void extreme_sizes(void **state) {
  (void)state;
  static const char *const sources[] = {
      "qkvc: 1\nname: t\nattention: {heads: {q: 32, kv: 8}, dim: 128, dtype: bf16, mask: causal}\n",
      "qkvc: 1\nname: t\nattention: {heads: {q: 9, kv: 9}, dim: 72, dtype: f16}\n",
      "qkvc: 1\nname: t\nattention: {heads: {q: 71, kv: 1}, dim: 64, dtype: f32, softcap: 30.0,\n"
      "  mask: causal and q - k < 1024 or causal and k < 4}\n",
      "qkvc: 1\nname: t\nattention: {heads: {q: 16, kv: 2}, dim: 128, dtype: bf16, align: top_left,\n"
      "  mask: 'causal and (q - k) % 4 == 0'}\nlayout: {q: ragged, kv: {paged: {page: 16}}}\n"};
  static const char *const archs[] = {"sm_80", "sm_90a"};
  for (size_t n = 0; n < sizeof sources / sizeof *sources; n++)
    for (int a = 0; a < 2; a++) {
      ask_extremes(sources[n], archs[a], "prefill", 1);
      ask_extremes(sources[n], archs[a], "decode", 1);
    }
  ask_extremes(sources[0], "sm_90a", "merge", 1);
  ask_extremes("qkvc: 1\nname: t\nattention: {heads: {q: 16, kv: 2}, dim: 128, dtype: bf16}\n"
               "layout: {q: ragged, kv: {paged: {page: 16}}}\nappend: {slots: mapping}\n",
               "sm_80", "append", 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_default_then_the_fastest), cmocka_unit_test(a_visit_stops), cmocka_unit_test(all_families),
      cmocka_unit_test(what_options_fix_stays),       cmocka_unit_test(refusals),      cmocka_unit_test(extreme_sizes),
      cmocka_unit_test(few_sms),
      cmocka_unit_test(full_runs_try_all_merges),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
