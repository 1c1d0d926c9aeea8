/* test_space.c: the schedules that could be tried: legal, each once, the default among them, more for more effort. */
#include <dirent.h>
#include <math.h>
#include <time.h>

#include "gen_fixture.h"

/* Of the calls with default effort. */
static struct timing {
  int calls;
  double total, most;
} timing;

static gen_candidate *candidates(const spec *s, const gen_request *r, const gen_work *w, int effort, int *count) {
  gen_candidate *list = NULL;
  gen_error error = {0};
  const gen_device device = cost_flagship(r->arch);
  const clock_t start = clock();
  if (gen_candidates(s, r, w, &device, effort, &list, count, &error) != GEN_OK)
    fail_msg("%s, %s: %s", s->name, r->arch->name, error.message);
  const double t = (double)(clock() - start) / CLOCKS_PER_SEC;
  if (effort == GEN_EFFORT_DEFAULT) {
    timing.calls++;
    timing.total += t;
    timing.most = t > timing.most ? t : timing.most;
  }
  return list;
}

/* ---- toy families ---- */

#define AXES                                                                                                           \
  "axes = {{name = 'a', values = {1, 2, 3}, meaning = 'x'}, {name = 'b', values = {10, 20, 30, 40}, meaning = "        \
  "'x'}},\n"                                                                                                           \
  "supports = function() return true end, defaults = function() return {a = 2, b = 20} end,\n"                         \
  "resources = function(v, s) return {shared_bytes = s.a * s.b * 1000, threads = 32, registers = 8} end,\n"

/* "a=1,b=10 a=1,b=20 ..." of the toy family, or "!message"; owned. */
static char *toy(const char *fields, const char *wish, int effort) {
  char *folder = fixture_toy(fields, "int toy;\n");
  spec *s = fixture_spec(FIXTURE_SPEC);
  gen_request r = {.arch = arch_find("sm_80"), .family = "toy", .template_path = folder, .schedule = wish};
  const gen_work w = {1, 128, 128};
  const gen_device device = cost_flagship(r.arch);
  gen_candidate *list;
  gen_error error = {0};
  int count;
  text t = {0};
  if (gen_candidates(s, &r, &w, &device, effort, &list, &count, &error) != GEN_OK)
    text_printf(&t, "!%s", error.message);
  for (int n = 0; n < count; n++) {
    text_printf(&t, "%s%s", n ? " " : "", list[n].schedule);
    assert_int_equal(list[n].is_default, n == 0);
  }
  free(list);
  spec_free(s);
  fixture_remove(folder);
  return t.bytes;
}

static void expect(const char *fields, const char *wish, int effort, const char *wanted) {
  char *found = toy(fields, wish, effort);
  if (strcmp(found, wanted) != 0)
    fail_msg("%s\nfound  %s\nwanted %s", fields, found, wanted);
  free(found);
}

/* Without a function of its own: all that is legal, by brute force. */
static void the_whole_product_without_space(void **state) {
  (void)state;
  text wanted = {0};
  const int limit = arch_find("sm_80")->shared_per_block;
  text_puts(&wanted, "a=2,b=20");
  for (int a = 1; a <= 3; a++)
    for (int b = 10; b <= 40; b += 10)
      if (a * b * 1000 <= limit && (a + b) % 3 && !(a == 2 && b == 20))
        text_printf(&wanted, " a=%d,b=%d", a, b);
  expect(AXES "check = function(v, s) if (s.a + s.b) % 3 == 0 then return false, 'no' end return true end", NULL, 0,
         wanted.bytes);
  text_free(&wanted);
}

/* Products are cumulative, what they leave out stays, duplicates disappear. */
static void products_of_an_effort(void **state) {
  (void)state;
  const char *fields = AXES "space = function(v, arch, request, effort)\n"
                            "  return ({[0] = {{a = {1}}, {a = {1, 2}}}, {{b = {30, 30, 20}}}, {}})[effort] end";
  expect(fields, NULL, 0, "a=2,b=20 a=1,b=20");
  expect(fields, NULL, 1, "a=2,b=20 a=1,b=20 a=2,b=30");
  expect(fields, NULL, 2, "a=2,b=20 a=1,b=20 a=2,b=30");
  expect(fields, "b=40", 1, "a=2,b=40 a=1,b=40");
  expect(fields, "a=3", 1, "a=3,b=20 a=3,b=30");
}

static void faults_of_families_are_named(void **state) {
  (void)state;
  static const struct {
    const char *space, *message;
  } rows[] = {
      {"space = function() return {{c = {1}}} end", "!kernels/toy.lua: space[1]: unknown field 'c'"},
      {"space = function() return {{a = {4}}} end", "!kernels/toy.lua: space: a[1] is not among the axis' values"},
      {"space = function() return {{a = 1}} end", "!kernels/toy.lua: space: a must be a list of values"},
      {"space = function() return {{a = {}}} end", "!kernels/toy.lua: space: a is empty"},
      {"space = function() return 1 end", "!kernels/toy.lua: space must return a list of products"},
      {"cost = function() return {} end", "!kernels/toy.lua: cost: unit must be a string"},
      {"cost = function() return {unit = 'abacus'} end", "!kernels/toy.lua: cost.unit: 'abacus' is not"},
      {"cost = function() return {unit = 'mma', flops = -1} end", "!kernels/toy.lua: cost.flops must be"},
      {"cost = function() return {unit = 'mma', flops = 0/0} end", "!kernels/toy.lua: cost.flops must be"},
      {"cost = function() return {unit = 'mma', bytes = 1} end", "!kernels/toy.lua: cost: unknown field 'bytes'"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    text t = {0};
    text_printf(&t, "%s%s", AXES, rows[n].space);
    char *found = toy(t.bytes, NULL, 0);
    if (strncmp(found, rows[n].message, strlen(rows[n].message)) != 0)
      fail_msg("%s: %s", rows[n].space, found);
    free(found);
    text_free(&t);
  }
}

/* ---- the families there are, for every spec of the zoo ---- */

static const char *const folders[] = {QKV_SOURCE_DIR "/specs", QKV_SOURCE_DIR "/specs/serving"};

static bool is_among(const gen_candidate *c, const gen_candidate *list, int count) {
  for (int n = 0; n < count; n++)
    if (strcmp(c->family, list[n].family) == 0 && strcmp(c->schedule, list[n].schedule) == 0)
      return true;
  return false;
}

static int compare_texts(const void *a, const void *b) {
  const gen_candidate *x = *(const gen_candidate *const *)a, *y = *(const gen_candidate *const *)b;
  int families = strcmp(x->family, y->family);
  return families ? families : strcmp(x->schedule, y->schedule);
}

/* Each once, in order, the first the default of dispatch's choice, and one of them as legal as gen_check_schedule says.
 */
static void check_list(const spec *s, const gen_request *r, const gen_candidate *list, int count) {
  const gen_candidate **sorted = malloc((size_t)count * sizeof *sorted);
  gen_schedule standard;
  gen_error error = {0};
  assert_int_equal(gen_check_schedule(s, r, &standard, &error), GEN_OK);
  if (strcmp(list[0].schedule, standard.text) != 0 || !list[0].is_default)
    fail_msg("%s on %s: the default %s does not come first but %s", s->name, r->arch->name, standard.text,
             list[0].schedule);
  for (int n = 0; n < count; n++) {
    sorted[n] = &list[n];
    if (n > 1 && list[n].estimate.seconds < list[n - 1].estimate.seconds)
      fail_msg("%s on %s: %s comes too late", s->name, r->arch->name, list[n].schedule);
    if (n != count * 7 / 13)
      continue;
    gen_request one = *r;
    gen_schedule checked;
    one.family = list[n].family;
    one.schedule = *list[n].schedule ? list[n].schedule : NULL;
    if (gen_check_schedule(s, &one, &checked, &error) != GEN_OK || !checked.legal ||
        strcmp(checked.text, list[n].schedule) != 0)
      fail_msg("%s on %s: %s %s is not legal: %s%s", s->name, r->arch->name, list[n].family, list[n].schedule,
               error.message, checked.reason);
  }
  qsort(sorted, (size_t)count, sizeof *sorted, compare_texts);
  for (int n = 1; n < count; n++)
    if (compare_texts(&sorted[n], &sorted[n - 1]) == 0)
      fail_msg("%s on %s: %s twice", s->name, r->arch->name, sorted[n]->schedule);
  free(sorted);
}

/* `most`: how much effort, at most. */
static void check_workload(const spec *s, const arch *a, const gen_work *w, const char *phase, int most) {
  gen_candidate *lists[3];
  int counts[3];
  gen_request r = {.arch = a, .len_q = w->len_q, .batch = w->batch, .phase = phase};
  for (int effort = 0; effort <= most; effort++) {
    lists[effort] = candidates(s, &r, w, effort, &counts[effort]);
    if (effort == most)
      check_list(s, &r, lists[effort], counts[effort]);
    for (int n = 0; effort > 0 && n < counts[effort - 1]; n++)
      if (!is_among(&lists[effort - 1][n], lists[effort], counts[effort]))
        fail_msg("%s on %s: %s only with little effort", s->name, a->name, lists[effort - 1][n].schedule);
  }
  for (int effort = 0; effort <= most; effort++)
    free(lists[effort]);
}

/* The first workload of each phase; with more effort for every eighth spec. */
static void check_spec(const char *path, int number) {
  static const char *const names[] = {"sm_90a", "sm_80"};
  char *source = fixture_read(path);
  assert_non_null(source);
  spec *s = fixture_spec(source);
  for (int n = 0; n < 2; n++) {
    const arch *a = arch_find(names[n]);
    const int most = number % 8 == 0 ? GEN_EFFORT_FULL : GEN_EFFORT_DEFAULT;
    gen_work prefill = {1, 1024, 1024}, decode = {4, 1, 2048};
    for (int w = s->nworkloads - 1; w >= 0; w--) {
      const spec_workload *given = &s->workloads[w];
      *(given->len_q > GEN_DECODE_LEN_Q ? &prefill : &decode) = (gen_work){given->batch, given->len_q, given->len_k};
    }
    check_workload(s, a, &prefill, "prefill", most);
    check_workload(s, a, &decode, "decode", most);
    if (s->append.given && n == 0)
      check_workload(s, a, &prefill, "append", most);
    if (number % 8 == 0)
      check_workload(s, a, &prefill, "merge", most);
  }
  spec_free(s);
  free(source);
}

/* The same bytes again, in another state. */
static void the_same_twice(void **state) {
  (void)state;
  spec *s = fixture_spec(FIXTURE_SPEC);
  const gen_request r = {.arch = arch_find("sm_90a"), .family = "all", .len_q = 1};
  const gen_work w = {8, 1, 4096};
  int counts[2];
  gen_candidate *lists[2];
  for (int n = 0; n < 2; n++)
    lists[n] = candidates(s, &r, &w, GEN_EFFORT_FULL, &counts[n]);
  assert_true(counts[0] == counts[1] && counts[0] > 100);
  assert_memory_equal(lists[0], lists[1], (size_t)counts[0] * sizeof *lists[0]);
  free(lists[0]);
  free(lists[1]);
  spec_free(s);
}

static void every_spec_has_candidates(void **state) {
  (void)state;
  int specs = 0;
  for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
    DIR *folder = opendir(folders[f]);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
      char path[512];
      if (!strstr(entry->d_name, ".yaml"))
        continue;
      snprintf(path, sizeof path, "%s/%s", folders[f], entry->d_name);
      check_spec(path, specs);
      specs++;
    }
    closedir(folder);
  }
  assert_true(specs >= 20);
  printf("%d specs, %d calls with default effort: %.1f ms of CPU time each, %.1f at most\n", specs, timing.calls,
         1e3 * timing.total / timing.calls, 1e3 * timing.most);
}

/* What the spec fixes for a phase holds for all of them, in that phase; a family that has no such value has none. */
static void what_the_spec_fixes_stays(void **state) {
  (void)state;
  spec *s = fixture_spec(FIXTURE_SPEC "schedule: {prefill: {tile_n: 112, pack: 1}}\n");
  const gen_work w = {2, 512, 512};
  static const char *const phases[] = {"prefill", "decode"};
  for (int p = 0; p < 2; p++) {
    const gen_request r = {.arch = arch_find("sm_90a"), .family = "all", .phase = phases[p], .len_q = p ? 1 : 512};
    int count, with = 0, sm80 = 0;
    gen_candidate *list = candidates(s, &r, &w, GEN_EFFORT_DEFAULT, &count);
    for (int n = 0; n < count; n++) {
      if (strcmp(list[n].family, "attention_forward_sm90") == 0)
        with += (strstr(list[n].schedule, ",tile_n=112,") && strstr(list[n].schedule, ",pack=1,")) == !p;
      else
        with++;
      sm80 += strcmp(list[n].family, "attention_forward_sm80") == 0;
    }
    if (p == 0)
      assert_true(with == count && count > 5 && sm80 == 0);
    else
      assert_true(with > 5 && sm80 > 5);
    free(list);
  }
  spec_free(s);
}

/* ---- the model ---- */

/* A positive number, spread over decades. */
static double random_count(uint64_t *state, double least, double decades) {
  return least * pow(10, decades * (double)(fixture_random(state) >> 11) / 9007199254740992.0);
}

/* At least each part; no count that grows makes it less; everything twice as often takes twice as long. */
static void the_formula(void **state) {
  (void)state;
  const arch *a = arch_find("sm_90a");
  const gen_device d = cost_flagship(a);
  uint64_t seed = 1;
  for (int n = 0; n < 2000; n++) {
    const uint64_t start = seed;
    cost_counts c = {.unit = (cost_unit)(n % COST_UNIT_COUNT),
                     .flops = random_count(&seed, 1e6, 8),
                     .exponentials = random_count(&seed, 1e3, 8),
                     .shared_bytes = random_count(&seed, 1e4, 8),
                     .l2_bytes = random_count(&seed, 1e4, 8),
                     .memory_bytes = random_count(&seed, 1e4, 8),
                     .in_flight = random_count(&seed, 1e4, 4),
                     .overhead = random_count(&seed, 1, 8),
                     .overlap = random_count(&seed, 1, 1),
                     .waves = random_count(&seed, 1, 2),
                     .latency = random_count(&seed, 1, 5)};
    const gen_estimate e = cost_estimate(&c, a, &d);
    const double parts[] = {e.tensor, e.exponential, e.shared, e.memory, e.waves * e.tensor, c.latency / d.clock_hz};
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
      if (e.seconds < parts[p] * (1 - 1e-12))
        fail_msg("seed %llu: %g seconds, part %zu alone %g", (unsigned long long)start, e.seconds, p, parts[p]);
    double *const counts[] = {&c.flops,        &c.exponentials, &c.shared_bytes, &c.l2_bytes,
                              &c.memory_bytes, &c.overhead,     &c.waves,        &c.latency};
    for (size_t p = 0; p < sizeof counts / sizeof *counts; p++) {
      const double before = *counts[p];
      *counts[p] *= 1.5;
      if (cost_estimate(&c, a, &d).seconds < e.seconds * (1 - 1e-12))
        fail_msg("seed %llu: more of count %zu, fewer seconds", (unsigned long long)start, p);
      *counts[p] = before;
    }
    c.overlap *= 1.1, c.in_flight *= 1.1;
    if (cost_estimate(&c, a, &d).seconds > e.seconds * (1 + 1e-12))
      fail_msg("seed %llu: slower for more overlap", (unsigned long long)start);
    c.overlap /= 1.1, c.in_flight /= 1.1;
    for (size_t p = 0; p < sizeof counts / sizeof *counts; p++)
      *counts[p] *= counts[p] == &c.waves ? 1 : 2;
    const double twice = cost_estimate(&c, a, &d).seconds / e.seconds;
    if (fabs(twice - 2) > 1e-9)
      fail_msg("seed %llu: twice the work takes %.12g times as long", (unsigned long long)start, twice);
  }
}

static double seconds(const spec *s, const char *family, const char *phase, const char *wish, gen_work w,
                      int64_t most) {
  gen_request r = {.arch = arch_find("sm_90a"), .family = family, .phase = phase, .schedule = wish, .len_q = most};
  int count;
  gen_candidate *list = candidates(s, &r, &w, 0, &count);
  const double t = list[0].estimate.seconds;
  if (!(t > 0 && t < 1e3))
    fail_msg("%s: %s of %lld x %lld x %lld is expected to take %g", s->name, list[0].family, (long long)w.batch,
             (long long)w.len_q, (long long)w.len_k, t);
  free(list);
  return t;
}

static spec *model_spec(int heads_q, int heads_kv, int dim, const char *mask) {
  text t = {0};
  text_printf(&t, "qkvc: 1\nname: t\nattention: {heads: {q: %d, kv: %d}, dim: %d, dtype: bf16, mask: %s}\n", heads_q,
              heads_kv, dim, mask);
  spec *s = fixture_spec(t.bytes);
  text_free(&t);
  return s;
}

/* More keys and a larger batch take no less; eight times a full batch takes eight times as long. */
static void more_takes_longer(void **state) {
  (void)state;
  static const struct {
    const char *family, *phase;
    int64_t len_q;
  } rows[] = {{"attention_forward_sm90", "prefill", 2048}, {"attention_forward_sm80", "prefill", 2048},
              {"attention_naive", "prefill", 512},         {"attention_decode_sm90", "decode", 1},
              {"attention_decode_sm80", "decode", 1},      {"attention_decode_simt", "decode", 1}};
  static const char *const masks[] = {"true", "causal", "causal and q - k < 1024"};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
      spec *s = model_spec(32, 8, 128, masks[m]);
      double before = 0;
      for (int64_t len_k = 2048; len_k <= 65536; len_k *= 2) {
        const gen_work w = {4, rows[n].len_q, len_k};
        const double t = seconds(s, rows[n].family, rows[n].phase, NULL, w, w.len_q);
        if (t < before * 0.999)
          fail_msg("%s, %s: %g s for %lld keys, %g for half as many", rows[n].family, masks[m], t, (long long)len_k,
                   before);
        before = t;
      }
      const gen_work w = {66, rows[n].len_q, 8192}, more = {8 * 66, rows[n].len_q, 8192};
      const double ratio = seconds(s, rows[n].family, rows[n].phase, NULL, more, w.len_q) /
                           seconds(s, rows[n].family, rows[n].phase, NULL, w, w.len_q);
      if (ratio < 7 || ratio > 8.5)
        fail_msg("%s, %s: eight times the batch takes %.2f times as long", rows[n].family, masks[m], ratio);
      spec_free(s);
    }
}

/* Tiles that are filled up more cost more: one key beyond a tile, one row beyond. */
static void padding_costs(void **state) {
  (void)state;
  spec *s = model_spec(16, 16, 128, "true");
  const gen_work fits = {16, 1024, 1024}, keys = {16, 1024, 1025}, rows = {16, 1025, 1024};
  const double t = seconds(s, "attention_forward_sm90", "prefill", NULL, fits, 1024);
  assert_true(seconds(s, "attention_forward_sm90", "prefill", NULL, keys, 1024) > 1.05 * t);
  assert_true(seconds(s, "attention_forward_sm90", "prefill", NULL, rows, 1024) > 1.05 * t);
  spec_free(s);
  s = model_spec(16, 1, 128, "true"); /* of tiles of 128 rows half are padding, of 64 none */
  const gen_work few = {256, 64, 4096};
  assert_true(seconds(s, "attention_forward_sm90", "prefill", "warpgroups=2,order=0,pack=0", few, 4096) >
              1.2 * seconds(s, "attention_forward_sm90", "prefill", "warpgroups=1,order=0,pack=0", few, 4096));
  spec_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_whole_product_without_space),
      cmocka_unit_test(products_of_an_effort),
      cmocka_unit_test(faults_of_families_are_named),
      cmocka_unit_test(every_spec_has_candidates),
      cmocka_unit_test(the_same_twice),
      cmocka_unit_test(what_the_spec_fixes_stays),
      cmocka_unit_test(the_formula),
      cmocka_unit_test(more_takes_longer),
      cmocka_unit_test(padding_costs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
