/* Masks of one residue against brute force: the conjunct is found in every spelling; the rest, rewritten for a residue
 * and the tokens' numbers in it, says what the mask says of every pair; what is derived of it never hides a visible key
 * and never shows a hidden one. Moduli that are parameters take every sign, and 0. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "box.h"
#include "mask_residue.h"
#include "test_mask_random.h"

/* ---- spellings ---- */

/* What the rest is for one residue, as text; NULL: no residues are to be found. */
typedef struct spelling {
  const char *mask, *within;
  int modulus; /* 0: the parameter w */
} spelling;

static const spelling spellings[] = {
    {"(q - k) % 4 == 0", "true", 4},
    {"(k - q) % 4 == 0", "true", 4},
    {"abs(q - k) % 4 == 0", "true", 4},
    {"0 == (q - k) % 4", "true", 4},
    {"not (q - k) % 4 != 0", "true", 4},
    {"(q - k) % 4 <= 0", "true", 4},
    {"(q - k) % 4 < 1", "true", 4},
    {"(q - k) % -4 == 0", "true", 4},
    {"q % 4 == k % 4", "true", 4},
    {"k % 4 - q % 4 == 0", "true", 4},
    {"(q + 3) % 4 == (k + 3) % 4", "true", 4},
    {"(q - k + 8) % 4 == 0", "true", 4},
    {"(q + 3 * k) % 4 == 0", "true", 4},
    {"2 * (q - k) % 8 == 0", "true", 4},
    {"(q - k + 4 * h) % 4 == 0", "true", 4},
    {"(q - k) % w == 0", "true", 0},
    {"q % w == k % w", "true", 0},
    {"abs(k - q) % w == 0", "true", 0},
    {"abs(q - k) <= 128 and (q - k) % 4 == 0", "abs(q - k) <= 32", 4},
    {"(q - k) % 3 == 0 and causal", "k <= q", 3},
    {"causal and q - k < 20 and (q - k) % 3 == 0", "k <= q and q - k <= 6", 3},
    {"window(8, 0) and (k - q) % 4 == 0 and h < 2", "k <= q and q - k <= 2 and h < 2", 4},
    {"causal and (q - k) % 2 == 0 and (q - k) % 6 == 0", "k <= q", 6}, /* which says the other, too */
    {"abs(q - k) <= w and (q - k) % 4 == 0", "abs(q - k) <= w // 4", 4},
    {"causal and (q - k) % w == 0", "k <= q", 0},
    {"(q - k) % 4 == 1", NULL, 0},
    {"(q - k + 1) % 4 == 0", NULL, 0},
    {"(q - 2 * k) % 4 == 0", NULL, 0},
    {"q % 4 == k % 3", NULL, 0},
    {"(q - k) % 4 != 0", NULL, 0},
    {"(q - k) % 1 == 0 and causal", NULL, 0},
    {"2 * (q - k) % 2 == 0", NULL, 0},
    {"(q - k) % h == 0", NULL, 0},
    {"2 * (q - k) % w == 0", NULL, 0},
    {"(q - k) % w == 1", NULL, 0},
    {"q % 4 == 0", NULL, 0},
    {"causal and (q - k <= 32 or (q - k) % 32 == 0)", NULL, 0}, /* strided: other residues see neighbours */
};

static void finds_the_conjunct(void **state) {
  (void)state;
  arena *a = arena_new();
  assert_true(a && ARENA_TRY(a));
  for (size_t n = 0; n < sizeof spellings / sizeof *spellings; n++) {
    const spelling *s = &spellings[n];
    mask_residue r;
    bool found = mask_find_residue(a, parse_mask(a, s->mask), true, &r);
    if (found != (s->within != NULL))
      fail_msg("%s: residues are %sfound", s->mask, found ? "" : "not ");
    if (!found)
      continue;
    bool parameter = r.modulus->op == EXPR_PARAM && r.modulus->param == PARAM_W;
    if (s->modulus ? !expr_is_int(r.modulus, s->modulus) : !parameter)
      fail_msg("%s: another modulus", s->mask);
    const expr *wanted = expr_normalise(a, parse_mask(a, s->within));
    if (expr_equal(r.within, wanted))
      continue;
    text got = {0};
    expr_print(r.within, random_params, &got);
    fail_msg("%s: within a residue %s, not %s", s->mask, got.bytes, s->within);
  }
  arena_free(a);
}

/* ---- brute force ---- */

typedef struct residue_case {
  const expr *mask;
  mask_residue r;
  mask_rows hull;
  mask_intervals rows;
  const box_program *box;
  bool bottom_right;
  int len_q, len_k, dilation, tile;
  expr_env env;
  uint64_t seed;
} residue_case;

static void describe(const residue_case *c) {
  text out = {0};
  expr_print(c->mask, random_params, &out);
  text_puts(&out, "\n  within: ");
  expr_print(c->r.within, random_params, &out);
  print_error("seed %llu: %s\n  %s, len_q %d, len_k %d, dilation %d, tile %d\n", (unsigned long long)c->seed, out.bytes,
              c->bottom_right ? "bottom_right" : "top_left", c->len_q, c->len_k, c->dilation, c->tile);
  text_free(&out);
}

#define CHECK(c, condition, ...)                                                                                       \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      describe(c);                                                                                                     \
      fail_msg(__VA_ARGS__);                                                                                           \
    }                                                                                                                  \
  } while (0)

static int offset(const residue_case *c) {
  return c->bottom_right ? c->len_k - c->len_q : 0;
}

static bool visible(residue_case *c, int q, int k) {
  c->env.symbol[EXPR_Q] = q;
  c->env.symbol[EXPR_K] = k;
  c->env.symbol[EXPR_I] = q - offset(c);
  c->env.symbol[EXPR_LEN_Q] = c->len_q;
  c->env.symbol[EXPR_LEN_K] = c->len_k;
  return expr_eval(c->mask, &c->env) != 0;
}

/* How many of n tokens from `first` on have the residue. */
static int count_of(const residue_case *c, int first, int n, int residue) {
  int count = 0;
  for (int x = first; x < first + n; x++)
    count += expr_apply_int(EXPR_MOD, x, c->dilation) == residue;
  return count;
}

/* An expression over the tokens of one residue. The number of queries is never asked for. */
static int within(residue_case *c, const expr *e, int residue, int q, int k) {
  c->env.symbol[EXPR_Q] = q;
  c->env.symbol[EXPR_K] = k;
  c->env.symbol[EXPR_I] = c->env.symbol[EXPR_LEN_Q] = -1000;
  c->env.symbol[EXPR_LEN_K] = count_of(c, 0, c->len_k, residue);
  c->env.symbol[EXPR_RESIDUE] = residue;
  c->env.symbol[EXPR_DILATION] = c->dilation;
  c->env.symbol[EXPR_ALL_Q] = c->len_q;
  c->env.symbol[EXPR_ALL_K] = c->len_k;
  return (int)expr_eval(e, &c->env);
}

static int floor_div(int x, int y) {
  return (int)expr_apply_int(EXPR_FLOORDIV, x, y);
}

static void check_pair(arena *a, residue_case *c, int q, int k) {
  int r = (int)expr_apply_int(EXPR_MOD, q, c->dilation), q1 = floor_div(q, c->dilation), k1 = floor_div(k, c->dilation);
  bool seen = visible(c, q, k), same = (int)expr_apply_int(EXPR_MOD, k, c->dilation) == r, inside = false;
  CHECK(c, same || !seen, "query %d sees key %d of another residue", q, k);
  if (!same)
    return;
  CHECK(c, seen == within(c, c->r.within, r, q1, k1), "query %d, key %d: within says %d", q, k, !seen);
  for (int n = 0; n < c->rows.count; n++) {
    int low = within(c, mask_interval_side(a, &c->rows, n, true), r, q1, -1000);
    int high = within(c, mask_interval_side(a, &c->rows, n, false), r, q1, -1000);
    bool in = low <= k1 && k1 < high;
    inside |= in;
    CHECK(c, !in || seen || !c->rows.items[n].exact, "query %d: key %d of interval %d is hidden", q, k, n);
  }
  CHECK(c, inside || !seen, "query %d: key %d is visible outside all intervals", q, k);
  bool in = true;
  for (int n = 0; n < c->hull.nlow; n++)
    in &= within(c, c->hull.low[n].value, r, q1, -1000) <= k1;
  for (int n = 0; n < c->hull.nhigh; n++)
    in &= k1 < within(c, c->hull.high[n].value, r, q1, -1000);
  CHECK(c, in || !seen, "query %d: key %d is visible outside the hull", q, k);
}

/* The edges of the hull over rows first to last of a residue hold every row's. */
static void check_tile(arena *a, residue_case *c, int residue, int first, int last) {
  int edges[4];
  for (int n = 0; n < 4; n++) {
    const expr *e = mask_tile_edge(a, &c->hull, (mask_edge)n);
    c->env.symbol[EXPR_LEN_Q] = -1000;
    within(c, e, residue, first, -1000); /* sets all but i */
    c->env.symbol[EXPR_I] = last;
    edges[n] = (int)expr_eval(e, &c->env);
  }
  for (int q1 = first; q1 <= last; q1++)
    for (int k1 = 0; k1 * c->dilation + residue < c->len_k; k1++) {
      bool seen = visible(c, q1 * c->dilation + residue, k1 * c->dilation + residue);
      CHECK(c, !seen || (edges[MASK_VISIT_BEGIN] <= k1 && k1 < edges[MASK_VISIT_END]), "rows %d..%d: key %d is skipped",
            first, last, k1);
      CHECK(c, seen || k1 < edges[MASK_FULL_BEGIN] || k1 >= edges[MASK_FULL_END], "rows %d..%d: key %d is not full",
            first, last, k1);
    }
}

static double read_scalar(void *user, int param, const int64_t *index) {
  return random_read(user, param, index);
}

static void check_box(residue_case *c, int residue, int q1, int q2, int k1, int k2) {
  box_env env = {.read = read_scalar, .user = c->env.user};
  const int64_t *s = c->env.symbol;
  int64_t *in = env.input;
  in[BOX_Q_FIRST] = q1, in[BOX_Q_LAST] = q2, in[BOX_K_FIRST] = k1, in[BOX_K_LAST] = k2;
  in[BOX_H_FIRST] = in[BOX_H_LAST] = s[EXPR_H], in[BOX_HK] = s[EXPR_HK], in[BOX_B] = s[EXPR_B];
  in[BOX_LEN_K] = count_of(c, 0, c->len_k, residue), in[BOX_RESIDUE] = residue, in[BOX_DILATION] = c->dilation;
  in[BOX_ALL_Q] = c->len_q, in[BOX_ALL_K] = c->len_k;
  box_answer may = box_run(c->box, &env);
  for (int q = q1; q <= q2; q++)
    for (int k = k1; k <= k2; k++) {
      bool seen = visible(c, q * c->dilation + residue, k * c->dilation + residue);
      CHECK(c, seen ? may.may_be_true : may.may_be_false, "box of queries %d..%d, keys %d..%d: (%d, %d) is %d", q1, q2,
            k1, k2, q, k, seen);
    }
}

static void check_residue(arena *a, residue_case *c, int residue) {
  int begin = floor_div(offset(c) - residue + c->dilation - 1, c->dilation);
  int end = begin + count_of(c, offset(c), c->len_q, residue), keys = count_of(c, 0, c->len_k, residue);
  for (int first = begin; first < end; first += c->tile) {
    int last = first + c->tile < end ? first + c->tile - 1 : end - 1;
    check_tile(a, c, residue, first, last);
    for (int k = 0; k < keys && c->box && c->box->nsummaries == 0; k += c->tile)
      check_box(c, residue, first, last, k, k + c->tile < keys ? k + c->tile - 1 : keys - 1);
  }
}

static const expr *random_conjunct(arena *a) {
  static const char *const forms[] = {"(q - k) %% %d == 0", "(k - q) %% %d == 0", "abs(q - k) %% %d == 0",
                                      "q %% %d == k %% %d", "(q - k) %% w == 0",  "q %% w == k %% w"};
  char source[64];
  int m = random_between(2, 7);
  snprintf(source, sizeof source, forms[random_below(6)], m, m);
  return parse_mask(a, source);
}

static void random_case(arena *a, residue_case *c) {
  static const int tiles[] = {1, 2, 4, 8};
  const box_options options = {.params = random_params};
  c->bottom_right = random_below(2);
  c->len_q = random_between(1, 24);
  c->len_k = random_between(0, 24);
  c->tile = tiles[random_below(4)];
  c->env = random_env(false);
  c->env.symbol[EXPR_H] = random_below(8);
  c->env.symbol[EXPR_HK] = c->env.symbol[EXPR_H] / 4;
  c->env.symbol[EXPR_B] = random_below(3);
  c->mask = expr_make(a, EXPR_AND, random_mask(a, random_below(3)), random_conjunct(a), NULL);
  if (!mask_find_residue(a, c->mask, c->bottom_right, &c->r))
    return;
  int64_t m = (int64_t)expr_eval(c->r.modulus, &c->env);
  c->dilation = m < 0 ? (int)-m : m > 1 ? (int)m : 1;
  c->hull = mask_analyse(a, c->r.within, false);
  c->rows = mask_row_intervals(a, c->r.within, false);
  c->box = box_build(a, c->r.within, &options);
}

/* One random mask; whether its residues were found. */
static bool check_seed(uint64_t seed) {
  arena *a = arena_new();
  residue_case c = {.seed = seed};
  assert_true(a && ARENA_TRY(a));
  random_state = seed;
  random_case(a, &c);
  bool found = c.r.modulus != NULL;
  for (int q = offset(&c); q < offset(&c) + c.len_q && found; q++)
    for (int k = 0; k < c.len_k; k++)
      check_pair(a, &c, q, k);
  for (int r = 0; r < c.dilation && found; r++)
    check_residue(a, &c, r);
  arena_free(a);
  return found;
}

static void says_what_the_mask_says(void **state) {
  enum { CASES = 3000 };
  (void)state;
  int found = 0;
  for (uint64_t seed = 1; seed <= CASES; seed++)
    found += check_seed(seed);
  assert_true(found > CASES / 2);
}

/* ---- windows ---- */

/* A window with gaps is a window of 1 / d of it, whatever d; and what data decide stays as it was. */
static void prefers_residues(void **state) {
  static const struct {
    const char *mask;
    mask_form form;
    bool prefers;
  } rows[] = {{"abs(q - k) <= 128 and (q - k) % 4 == 0", MASK_ROWS, true},
              {"causal and (q - k) % w == 0", MASK_ROWS, true},
              {"window(64, 0) and (q - k) % w == 0", MASK_ROWS, true},
              {"(q - k) % w == 0", MASK_ALL, true},
              {"(k < 8 or window(64, 0)) and (q - k) % 4 == 0", MASK_ROWS, true},
              {"causal and (q - k) % 4 == 0 and (q - k) % 6 != 0", MASK_BOXES, true},
              {"same(doc) and (q - k) % 4 == 0", MASK_MAP, false}};
  (void)state;
  arena *a = arena_new();
  assert_true(a && ARENA_TRY(a));
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    mask_residue r;
    mask_plan p = mask_make_tile_plan(a, parse_mask(a, rows[n].mask), random_params, true, false, true, &r);
    if (p.form != rows[n].form || (r.modulus != NULL) != rows[n].prefers)
      fail_msg("%s: form %d, not %d", rows[n].mask, p.form, rows[n].form);
  }
  arena_free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finds_the_conjunct),
      cmocka_unit_test(says_what_the_mask_says),
      cmocka_unit_test(prefers_residues),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
