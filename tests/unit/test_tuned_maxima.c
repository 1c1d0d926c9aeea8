/* test_tuned_maxima.c: what an engine gets from the tables that the library is built with: one that declares, as engines
 * do, the most it will ever be asked for, far beyond what was measured. No GPU is needed to look a schedule up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_tuned_internal.h"

static const gpu h200 = {.name = "NVIDIA H200",
                         .klass = "h200",
                         .major = 9,
                         .sm_count = 132,
                         .l2_bytes = 62914560,
                         .memory_bandwidth = 4814304000000,
                         .shared_per_block = 232448};

static qkv_engine *engine;

static int open_engine(void **state) {
  (void)state;
  qkv_options o = QKV_OPTIONS_INIT;
  o.device = "none";
  o.arch = "sm_90a";
  o.cache_dir = "";
  return qkv_open(&o, &engine) != QKV_OK;
}

static int close_engine(void **state) {
  (void)state;
  qkv_close(engine);
  return 0;
}

static qkv_spec *load(const char *path) {
  qkv_spec *s;
  if (qkv_spec_load(engine, path, &s) != QKV_OK)
    fail_msg("%s: %s", path, qkv_last_error(engine));
  return s;
}

/* The kernel for many queries, or for one. */
static tuned_choice ask(const qkv_spec *s, bool decode, int64_t batch, int64_t len_q, int64_t len_k) {
  tuned_choice choice;
  const gen_request r = {.arch = engine->arch,
                         .phase = decode ? "decode" : "prefill",
                         .batch = batch,
                         .len_q = decode ? 1 : len_q,
                         .len_k = len_k};
  if (tuned_choose_for(engine, s->parsed, &r, &h200, &choice) != QKV_OK)
    fail_msg("%s", qkv_last_error(engine));
  return choice;
}

static void expect(const char *spec_path, bool decode, const int64_t most[3], const char *words) {
  char path[512];
  snprintf(path, sizeof path, "%s/specs/%s.yaml", QKV_SOURCE_DIR, spec_path);
  qkv_spec *s = load(path);
  const tuned_choice c = ask(s, decode, most[0], most[1], most[2]);
  if (!strstr(c.reason, words))
    fail_msg("%s, %s: '%s', expected '%s'", spec_path, decode ? "decode" : "prefill", c.reason, words);
  qkv_spec_free(s);
}

static const int64_t typical[3] = {256, 8192, 131072};

static void of_one_model(void **state) {
  (void)state;
  static const int64_t small[3] = {1, 512, 512}, few_keys[3] = {256, 8192, 1024};
  expect("llama3_8b", false, typical,
         "bucket b4 q4096 k4096, the largest that was measured of calls within b256 q8192 k131072");
  expect("llama3_8b", true, typical, "built-in default: calls within b256 r8 k131072 may be of one sequence");
  expect("serving/mistral_large", false, typical,
         "bucket b1 q32768 k32768, the largest that was measured of calls within");
  expect("serving/llama3_8b", true, typical,
         "bucket b64 r8 k4096, the largest that was measured of calls within b256 r8");
  expect("serving/command_a_global", true, typical, "bucket any, since several were measured of calls within b256 r16");
  expect("serving/grok_1", true, typical, "bucket b32 r8 k8192, the largest that was measured of calls within b256 r8");
  expect("serving/falcon3_7b", true, typical, "bucket any, since several were measured of calls within b256 r8");
  /* What is smaller than all that was measured is not like it. */
  expect("llama3_8b", false, small, "built-in default: bucket b1 q512 k512 is outside of the tuned range");
  expect("serving/grok_1", true, few_keys, "built-in default: bucket b256 r8 k1024 is outside of the tuned range");
}

typedef struct tally {
  int known, taken; /* specs that a table has the phase of; that get an entry of it */
} tally;

/* Entries of a phase for the variant on this GPU. */
static bool has_phase(const qkv_spec *s, bool decode) {
  const tuned_choice c = ask(s, decode, 0, 0, 0);
  return !strstr(c.reason, "no table has phase");
}

/* Every spec that was tuned. Of those that stay with the default, the log says why. */
static void of_the_zoo(void **state) {
  (void)state;
  glob_t found = {0};
  tally tallies[2] = {{0}};
  assert_int_equal(glob(QKV_SOURCE_DIR "/specs/*.yaml", 0, NULL, &found), 0);
  assert_int_equal(glob(QKV_SOURCE_DIR "/specs/serving/*.yaml", GLOB_APPEND, NULL, &found), 0);
  for (size_t n = 0; n < found.gl_pathc; n++) {
    qkv_spec *s = load(found.gl_pathv[n]);
    for (int decode = 0; decode < 2; decode++) {
      if (!has_phase(s, decode))
        continue;
      const tuned_choice c = ask(s, decode, typical[0], typical[1], typical[2]);
      tallies[decode].known++;
      tallies[decode].taken += c.entry != NULL;
      if (!c.entry && !strstr(c.reason, "several schedules") && !strstr(c.reason, "outside of the tuned range") &&
          !strstr(c.reason, "may be of one sequence"))
        fail_msg("%s: %s", found.gl_pathv[n], c.reason);
    }
    qkv_spec_free(s);
  }
  globfree(&found);
  print_message("prefill %d of %d, decode %d of %d\n", tallies[0].taken, tallies[0].known, tallies[1].taken,
                tallies[1].known);
  assert_true(tallies[0].known > 40 && tallies[0].taken * 10 >= tallies[0].known * 8);
  assert_true(tallies[1].known > 40 && tallies[1].taken * 10 >= tallies[1].known * 7);
}

/* A larger maximum never turns what a table says into silence: calls that were measured stay among the op's. */
static void larger_maxima_know_no_less(void **state) {
  (void)state;
  qkv_spec *specs[] = {load(QKV_SOURCE_DIR "/specs/llama3_8b.yaml"), load(QKV_SOURCE_DIR "/specs/serving/grok_1.yaml")};
  for (int decode = 0; decode < 2; decode++)
    for (int batch = 5; batch <= 30; batch++)
      for (int len_k = 14; len_k <= 30; len_k++) {
        const tuned_choice c = ask(specs[decode], decode, (int64_t)1 << batch, 8192, (int64_t)1 << len_k);
        if (!c.entry)
          fail_msg("decode %d, batch 2^%d, len_k 2^%d: %s", decode, batch, len_k, c.reason);
      }
  qkv_spec_free(specs[0]);
  qkv_spec_free(specs[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(of_one_model), cmocka_unit_test(of_the_zoo),
                                     cmocka_unit_test(larger_maxima_know_no_less)};
  return cmocka_run_group_tests(tests, open_engine, close_engine);
}
