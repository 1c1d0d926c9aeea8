/* test_visits.c: the tiles that a model counts against those that a mask leaves, pair by pair. */
#include <math.h>

#include "gen_fixture.h"

#include "visits.h"

/* What the count must be. */
typedef enum promise {
  RANGE,  /* what brute force finds; of masked tiles, too */
  EXACT,  /* what brute force finds; tiles that are walked to all evaluate the mask */
  WITHIN, /* at least that: nothing visible is left out; at most all tiles */
} promise;

static const struct {
  const char *mask, *align;
  promise promise;
} cases[] = {
    {"true", "bottom_right", RANGE},
    {"causal", "bottom_right", RANGE},
    {"causal", "top_left", RANGE},
    {"causal and q - k < 37", "bottom_right", RANGE},
    {"window(20, 11)", "bottom_right", RANGE},
    {"prefix(50)", "bottom_right", RANGE},
    {"q // 64 == k // 64 and causal", "bottom_right", RANGE},
    {"causal and (k < 4 or q - k < 40)", "bottom_right", EXACT},
    {"k < 30 or k >= 100", "bottom_right", EXACT},
    {"q < k", "bottom_right", RANGE},
    {"abs(q // 8 - k // 8) <= 1 and abs(q % 8 - k % 8) <= 3", "bottom_right", WITHIN},
    {"(q + k) % 5 == 0", "bottom_right", WITHIN},
    {"q - k < length", "bottom_right", WITHIN},
    {"same(doc)", "bottom_right", WITHIN},
};

static spec *make_spec(const char *mask, const char *align) {
  text t = {0};
  text_printf(&t, "qkvc: 1\nname: t\nattention:\n  heads: 1\n  dim: 64\n  dtype: bf16\n  mask: %s\n  align: %s\n", mask,
              align);
  if (strstr(mask, "length"))
    text_puts(&t, "  params: {length: {type: i32}}\n");
  if (strstr(mask, "doc"))
    text_puts(&t, "  params: {doc: {type: i32, shape: [len_k]}}\n");
  spec *s = fixture_spec(t.bytes);
  text_free(&t);
  return s;
}

/* Parameters are ones that hide nothing. */
static double read_param(void *user, int param, const int64_t *index) {
  (void)param, (void)index;
  return *(const char *)user == 'l' ? 1 << 20 : 0;
}

static bool is_visible(const spec *s, int64_t len_q, int64_t len_k, int64_t i, int64_t k) {
  expr_env env = {{0}, 0, 0, NULL, read_param, NULL};
  env.user = s->nparams ? (void *)(uintptr_t)s->params[0].name : NULL;
  env.symbol[EXPR_Q] = i + (s->align == ALIGN_BOTTOM_RIGHT ? len_k - len_q : 0);
  env.symbol[EXPR_I] = i, env.symbol[EXPR_K] = k;
  env.symbol[EXPR_LEN_Q] = len_q, env.symbol[EXPR_LEN_K] = len_k;
  return expr_eval(s->mask, &env) != 0;
}

/* By asking for every pair. `masked`: tiles that hide a pair or reach past the last key. */
static visit_count by_pairs(const spec *s, int64_t len_q, int64_t len_k, int64_t queries, int64_t keys) {
  visit_count c = {0};
  for (int64_t q = 0; q < len_q; q += queries, c.rows++) {
    double tiles = 0;
    for (int64_t first = 0; first < len_k; first += keys) {
      int64_t visible = 0, pairs = 0;
      for (int64_t i = q; i < q + queries && i < len_q; i++, pairs += keys)
        for (int64_t k = first; k < first + keys && k < len_k; k++)
          visible += is_visible(s, len_q, len_k, i, k);
      tiles += visible > 0;
      c.masked += visible > 0 && visible < pairs;
    }
    c.tiles += tiles;
    c.most = tiles > c.most ? tiles : c.most;
  }
  return c;
}

static visit_count count(const spec *s, int64_t len_q, int64_t len_k, int64_t queries, int64_t keys) {
  int ignored;
  arena *memory = arena_new();
  const gen_request request = {.arch = arch_table(&ignored)};
  binding *b = calloc(1, sizeof *b);
  *b = (binding){.spec = s, .arch = request.arch, .request = &request, .phase = "prefill"};
  assert_true(ARENA_TRY(memory));
  binding_analyse(b, memory);
  const visits v = {.bound = b, .work = {1, len_q, len_k}};
  visit_count c = visits_count(&v, queries, keys);
  text_free(&b->scratch);
  free(b);
  arena_free(memory);
  return c;
}

static void as_brute_force(void **state) {
  (void)state;
  static const int64_t lengths[][2] = {{130, 130}, {64, 256}, {1, 200}, {97, 33}, {200, 97}};
  static const int64_t tiles[][2] = {{16, 16}, {32, 24}, {1, 64}, {128, 128}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    spec *s = make_spec(cases[n].mask, cases[n].align);
    for (size_t l = 0; l < 5; l++)
      for (size_t t = 0; t < 4; t++) {
        const int64_t len_q = lengths[l][0], len_k = lengths[l][1], queries = tiles[t][0], keys = tiles[t][1];
        if (len_q / queries > 90) /* a sample */
          continue;
        const visit_count found = count(s, len_q, len_k, queries, keys),
                          true_ = by_pairs(s, len_q, len_k, queries, keys);
        const double all = true_.rows * (double)((len_k + keys - 1) / keys);
        const bool same =
            fabs(found.tiles - true_.tiles) < 1e-6 && found.rows == true_.rows && found.most == true_.most;
        const bool right = cases[n].promise == RANGE   ? same && fabs(found.masked - true_.masked) < 1e-6
                           : cases[n].promise == EXACT ? same
                                                       : found.tiles > true_.tiles - 1e-6 && found.tiles < all + 1e-6;
        if (!right || found.masked > found.tiles + 1e-6)
          fail_msg("%s, %s, %d x %d in tiles of %d x %d: %g tiles of %g rows, at most %g, %g masked; brute force %g, "
                   "%g, %g, %g",
                   cases[n].mask, cases[n].align, (int)len_q, (int)len_k, (int)queries, (int)keys, found.tiles,
                   found.rows, found.most, found.masked, true_.tiles, true_.rows, true_.most, true_.masked);
      }
    spec_free(s);
  }
}

/* A sample of a long sequence, against the sum in closed form. */
static void long_sequences(void **state) {
  (void)state;
  spec *s = make_spec("causal", "bottom_right");
  const int64_t len = 1 << 20;
  const visit_count c = count(s, len, len, 64, 128);
  const double rows = (double)len / 64, tiles = rows * (rows + 2) / 4; /* 1 + 1 + 2 + 2 + ... */
  assert_true(c.rows == rows && c.most == (double)len / 128);
  assert_true(fabs(c.tiles / tiles - 1) < 0.02);
  assert_true(fabs(c.spread - 0.5) < 0.02);
  spec_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_brute_force), cmocka_unit_test(long_sequences)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
