/* test_space.c: the schedules that could be tried: legal, each once, the default among them, more for more effort. */
#include <dirent.h>
#include <time.h>

#include "gen_fixture.h"

static gen_candidate *candidates(const spec *s, const gen_request *r, const gen_work *w, int effort, int *count) {
  gen_candidate *list = NULL;
  gen_error error = {0};
  const gen_device device = cost_flagship(r->arch);
  if (gen_candidates(s, r, w, &device, effort, &list, count, &error) != GEN_OK)
    fail_msg("%s, %s: %s", s->name, r->arch->name, error.message);
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

/* Each once, in order, the first the default of dispatch's choice, and as legal as gen_check_schedule says. */
static void check_list(const spec *s, const gen_request *r, const gen_candidate *list, int count, int step) {
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
    if (n % step)
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
static void check_workload(const spec *s, const arch *a, const gen_work *w, const char *phase, int most, int *calls) {
  gen_candidate *lists[4];
  int counts[4];
  gen_request r = {.arch = a, .len_q = w->len_q, .batch = w->batch, .phase = phase};
  for (int effort = 0; effort <= most; effort++, ++*calls) {
    lists[effort] = candidates(s, &r, w, effort, &counts[effort]);
    check_list(s, &r, lists[effort], counts[effort], 1 + counts[effort] / 2);
    for (int n = 0; effort > 0 && n < counts[effort - 1]; n++)
      if (!is_among(&lists[effort - 1][n], lists[effort], counts[effort]))
        fail_msg("%s on %s: %s only with little effort", s->name, a->name, lists[effort - 1][n].schedule);
  }
  lists[3] = candidates(s, &r, w, 0, &counts[3]); /* the same bytes again */
  assert_int_equal(counts[3], counts[0]);
  assert_memory_equal(lists[3], lists[0], (size_t)counts[0] * sizeof *lists[0]);
  for (int effort = 0; effort <= most; effort++)
    free(lists[effort]);
  free(lists[3]);
  ++*calls;
}

static void check_spec(const char *path, int *calls) {
  char *source = fixture_read(path);
  assert_non_null(source);
  spec *s = fixture_spec(source);
  static const char *const names[] = {"sm_80", "sm_90a"};
  for (int n = 0; n < 2; n++) {
    const arch *a = arch_find(names[n]);
    const gen_work decode = {4, 1, 2048}, prefill = {1, 1024, 1024};
    for (int w = 0; w < s->nworkloads && w < 2; w++) {
      const gen_work work = {s->workloads[w].batch, s->workloads[w].len_q, s->workloads[w].len_k};
      check_workload(s, a, &work, NULL, w == 0 && n == 1 ? 2 : 1, calls);
    }
    if (!s->nworkloads) {
      check_workload(s, a, &decode, NULL, 1, calls);
      check_workload(s, a, &prefill, NULL, 1, calls);
    }
    check_workload(s, a, &prefill, "merge", 2, calls);
    if (s->append.given)
      check_workload(s, a, &prefill, "append", 2, calls);
  }
  spec_free(s);
  free(source);
}

static void every_spec_has_candidates(void **state) {
  (void)state;
  int specs = 0, calls = 0;
  clock_t start = clock();
  for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
    DIR *folder = opendir(folders[f]);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
      char path[512];
      if (!strstr(entry->d_name, ".yaml"))
        continue;
      snprintf(path, sizeof path, "%s/%s", folders[f], entry->d_name);
      check_spec(path, &calls);
      specs++;
    }
    closedir(folder);
  }
  assert_true(specs >= 20);
  printf("%d specs, %d calls, %.1f ms each\n", specs, calls, 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC / calls);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_whole_product_without_space),
      cmocka_unit_test(products_of_an_effort),
      cmocka_unit_test(faults_of_families_are_named),
      cmocka_unit_test(every_spec_has_candidates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
