/* Intervals per row and per column against brute force: no visible key outside their union, all of every exact one
 * visible, directions, order and edges as promised. Masks that people write must come out exact, with few intervals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "mask_internal.h"
#include "test_mask_random.h"

/* One mask at one shape. */
typedef struct intervals_case {
  const expr *mask;
  mask_intervals m;
  bool bottom_right;
  int len_q, len_k, tile;
  expr_env env;
  uint64_t seed;
} intervals_case;

static void describe(const intervals_case *c) {
  text out = {0};
  expr_print(c->mask, random_params, &out);
  print_error("seed %llu: %s\n  over %s, %s, len_q %d, len_k %d, tile %d, exact %d, ordered %d, disjoint %d\n",
              (unsigned long long)c->seed, out.bytes, expr_symbol_name(c->m.over),
              c->bottom_right ? "bottom_right" : "top_left", c->len_q, c->len_k, c->tile, c->m.exact, c->m.ordered,
              c->m.disjoint);
  for (int n = 0; n < c->m.count; n++)
    for (int b = 0; b < c->m.items[n].nlow + c->m.items[n].nhigh; b++) {
      bool low = b < c->m.items[n].nlow;
      const mask_bound *bound = low ? &c->m.items[n].low[b] : &c->m.items[n].high[b - c->m.items[n].nlow];
      text_clear(&out);
      expr_print(bound->value, random_params, &out);
      print_error("  %d%s %s %+d: %s\n", n, c->m.items[n].exact ? "" : "?", low ? "low" : "high", bound->direction,
                  out.bytes);
    }
  text_free(&out);
}

#define CHECK(c, condition, ...)                                                                                       \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      describe(c);                                                                                                     \
      fail_msg(__VA_ARGS__);                                                                                           \
    }                                                                                                                  \
  } while (0)

static int offset(const intervals_case *c) {
  return c->bottom_right ? c->len_k - c->len_q : 0;
}

static bool visible(intervals_case *c, int q, int k) {
  c->env.symbol[EXPR_Q] = q;
  c->env.symbol[EXPR_K] = k;
  c->env.symbol[EXPR_I] = q - offset(c);
  return expr_eval(c->mask, &c->env) != 0;
}

/* An expression of a bound or edge: `over` at `first`, i at `last`, the other symbol where it must not matter. */
static int at(intervals_case *c, const expr *e, int first, int last) {
  c->env.symbol[EXPR_Q] = c->env.symbol[EXPR_K] = -1000;
  c->env.symbol[c->m.over] = first;
  c->env.symbol[EXPR_I] = last;
  return (int)expr_eval(e, &c->env);
}

/* Lines are rows or columns; elements what they hold. */
static int lines_begin(const intervals_case *c) {
  return c->m.over == EXPR_Q ? offset(c) : 0;
}
static int lines_end(const intervals_case *c) {
  return c->m.over == EXPR_Q ? offset(c) + c->len_q : c->len_k;
}

static void check_line(arena *a, intervals_case *c, int line) {
  int low[MASK_MAX_INTERVALS], high[MASK_MAX_INTERVALS];
  int begin = at(c, c->m.begin, line, -1000), end = at(c, c->m.end, line, -1000);
  int other = c->m.over == EXPR_Q ? 0 : offset(c), past = c->m.over == EXPR_Q ? c->len_k : offset(c) + c->len_q;
  CHECK(c, begin == other && end == past, "begin %d, end %d, not %d, %d", begin, end, other, past);
  for (int n = 0; n < c->m.count; n++) {
    low[n] = at(c, mask_interval_side(a, &c->m, n, true), line, -1000);
    high[n] = at(c, mask_interval_side(a, &c->m, n, false), line, -1000);
  }
  for (int x = begin; x < end; x++) {
    bool seen = c->m.over == EXPR_Q ? visible(c, line, x) : visible(c, x, line), inside = false;
    for (int n = 0; n < c->m.count; n++) {
      bool in = low[n] <= x && x < high[n];
      inside |= in;
      CHECK(c, !in || seen || !c->m.items[n].exact, "line %d: %d of interval %d is hidden", line, x, n);
    }
    CHECK(c, inside || !seen, "line %d: %d is visible outside all intervals", line, x);
  }
  for (int n = 0; n < c->m.count; n++)
    for (int m = n + 1; m < c->m.count; m++) {
      if (low[n] >= high[n] || low[m] >= high[m])
        continue;
      CHECK(c, !c->m.ordered || low[n] <= low[m], "line %d: intervals %d and %d are not in order", line, n, m);
      CHECK(c, !c->m.disjoint || high[n] <= low[m], "line %d: intervals %d and %d meet", line, n, m);
    }
}

static void check_directions(intervals_case *c, int line) {
  for (int n = 0; n < c->m.count; n++)
    for (int b = 0; b < c->m.items[n].nlow + c->m.items[n].nhigh; b++) {
      const mask_interval *x = &c->m.items[n];
      const mask_bound *bound = b < x->nlow ? &x->low[b] : &x->high[b - x->nlow];
      int here = at(c, bound->value, line, -1000), next = at(c, bound->value, line + 1, -1000);
      bool holds = bound->direction == MASK_BY_ROW || (bound->direction == 0  ? here == next
                                                       : bound->direction > 0 ? here <= next
                                                                              : here >= next);
      CHECK(c, holds, "interval %d, bound %d moves against its direction at %d: %d, %d", n, b, line, here, next);
    }
}

/* Edges hold what mask.h says: visited covers the interval of every line, full lies in that of every line. */
static void check_edges(arena *a, intervals_case *c, int first, int last) {
  for (int n = 0; n < c->m.count; n++)
    for (int edge = 0; edge < 4; edge++) {
      const expr *e = mask_interval_edge(a, &c->m, n, (mask_edge)edge);
      bool low = edge == MASK_VISIT_BEGIN || edge == MASK_FULL_BEGIN;
      if (!e) {
        CHECK(c, mask_interval_by_row(&c->m, n, low), "interval %d has no edge %d", n, edge);
        continue;
      }
      int value = at(c, e, first, last);
      bool never = (edge == MASK_FULL_BEGIN || edge == MASK_FULL_END) && !c->m.items[n].exact;
      for (int line = first; line <= last && !never; line++) {
        int side = at(c, mask_interval_side(a, &c->m, n, low), line, -1000);
        bool holds = edge == MASK_VISIT_BEGIN || edge == MASK_FULL_END ? value <= side : value >= side;
        CHECK(c, holds, "lines %d..%d: edge %d of interval %d is %d, line %d has %d", first, last, edge, n, value, line,
              side);
      }
    }
}

static void check_case(arena *a, intervals_case *c) {
  CHECK(c, c->m.count <= MASK_MAX_INTERVALS, "%d intervals", c->m.count);
  CHECK(c, c->m.exact == !c->m.fault, "exact and a fault do not go together");
  for (int line = lines_begin(c); line < lines_end(c); line++) {
    check_line(a, c, line);
    check_directions(c, line);
  }
  for (int first = lines_begin(c); first < lines_end(c); first += c->tile)
    check_edges(a, c, first, first + c->tile < lines_end(c) ? first + c->tile - 1 : lines_end(c) - 1);
}

/* Whether an element is in one of the intervals of a line, or, of a mask_rows, between its bounds. */
static bool in_intervals(arena *a, intervals_case *c, const mask_rows *hull, int line, int x) {
  if (hull) {
    bool inside = hull->form != MASK_NONE;
    for (int n = 0; n < hull->nlow; n++)
      inside &= at(c, hull->low[n].value, line, -1000) <= x;
    for (int n = 0; n < hull->nhigh; n++)
      inside &= x < at(c, hull->high[n].value, line, -1000);
    return inside;
  }
  for (int n = 0; n < c->m.count; n++)
    if (at(c, mask_interval_side(a, &c->m, n, true), line, -1000) <= x &&
        x < at(c, mask_interval_side(a, &c->m, n, false), line, -1000))
      return true;
  return false;
}

/* What a line has, the one before has, the one after, or both, as `growth` says. */
static void check_growth(arena *a, intervals_case *c, const mask_rows *hull, int growth) {
  for (int line = lines_begin(c); line + 1 < lines_end(c) && growth != MASK_BY_ROW; line++)
    for (int x = 0; x < c->len_k; x++) {
      bool here = in_intervals(a, c, hull, line, x), next = in_intervals(a, c, hull, line + 1, x);
      CHECK(c, here == next || growth == (next ? 1 : -1), "%s of growth %d: %d in lines %d, %d: %d, %d",
            hull ? "hull" : "intervals", growth, x, line, line + 1, here, next);
    }
}

/* Rows and columns of c->mask at c's shape, and what was proven of empty rows. */
static void check_both(arena *a, intervals_case *c) {
  c->m = mask_column_intervals(a, c->mask, c->bottom_right);
  check_case(a, c);
  c->m = mask_row_intervals(a, c->mask, c->bottom_right);
  check_case(a, c);
  const mask_rows hull = mask_analyse(a, c->mask, c->bottom_right);
  check_growth(a, c, &hull, mask_rows_growth(&hull));
  check_growth(a, c, NULL, mask_intervals_growth(&c->m));
  mask_emptiness proven = mask_prove_rows(a, &c->m, c->bottom_right);
  if (c->len_k == 0 || proven == MASK_ROWS_MAY_BE_EMPTY ||
      (proven == MASK_NO_EMPTY_ROW_IF_SHORT && c->len_q > c->len_k))
    return;
  for (int q = offset(c); q < offset(c) + c->len_q; q++) {
    bool some = false;
    for (int k = 0; k < c->len_k; k++)
      some |= visible(c, q, k);
    CHECK(c, some, "row %d is empty, against the proof", q);
  }
}

static void random_shape(intervals_case *c) {
  static const int tiles[] = {1, 2, 4, 8, 16};
  c->len_q = random_between(1, 24);
  c->len_k = random_between(0, 24);
  c->tile = tiles[random_below(5)];
  c->env = random_env(false);
  c->env.symbol[EXPR_LEN_Q] = c->len_q;
  c->env.symbol[EXPR_LEN_K] = c->len_k;
  c->env.symbol[EXPR_H] = random_below(8);
  c->env.symbol[EXPR_HK] = c->env.symbol[EXPR_H] / 4;
  c->env.symbol[EXPR_B] = random_below(3);
}

/* ---- masks people write ---- */

typedef struct known_mask {
  const char *source;
  int rows, columns;          /* intervals; -1: inexact */
  bool by_row;                /* some bound of a row goes up and down */
  int growth;                 /* of the intervals of rows */
  int top_left, bottom_right; /* mask_emptiness */
} known_mask;

enum { MAYBE = MASK_ROWS_MAY_BE_EMPTY, SHORT = MASK_NO_EMPTY_ROW_IF_SHORT, NEVER = MASK_NO_EMPTY_ROW };
enum { BY_ROW = MASK_BY_ROW };

static const known_mask known_masks[] = {
    {"true", 1, 1, false, 0, NEVER, NEVER},
    {"false", 0, 0, false, 0, MAYBE, MAYBE},
    {"k + q < len_k", 1, 1, false, -1, SHORT, NEVER},
    {"k >= q", 1, 1, false, -1, SHORT, NEVER},
    {"causal and not (k >= 3 and k < 9)", 2, 1, false, 1, NEVER, SHORT},
    {"causal", 1, 1, false, 1, NEVER, SHORT},
    {"k <= i", 1, 1, false, 1, NEVER, NEVER},
    {"window(3, 0)", 1, 1, false, BY_ROW, SHORT, SHORT},
    {"window(3, 2)", 1, 1, false, BY_ROW, SHORT, SHORT},
    {"window(w, 0)", 1, 1, false, BY_ROW, MAYBE, MAYBE},
    {"causal and (q - k < 4 or k < 2)", 2, 2, false, BY_ROW, NEVER, SHORT},
    {"causal and (q - k < w or k < 2)", 2, 2, false, BY_ROW, NEVER, SHORT},
    {"k < w or causal", 1, 1, false, 1, NEVER, SHORT},
    {"k < 5 or causal", 1, 1, false, 1, NEVER, NEVER},
    {"k // 8 == q // 8", 1, 1, false, BY_ROW, SHORT, SHORT},
    {"k // 8 == q // 8 and causal", 1, 1, false, BY_ROW, SHORT, SHORT},
    {"k // 8 <= q // 8", 1, 1, false, 1, NEVER, SHORT},
    {"q // 6 == k // 6 and k % 6 <= q % 6", 1, 1, false, BY_ROW, SHORT, SHORT},
    {"q // 6 == k // 6 and q % 6 - k % 6 < 3 and k % 6 <= q % 6", 1, 1, false, BY_ROW, SHORT, SHORT},
    {"k < 4 or (q // 3 == (k - 4) // 3 and (k - 4) % 3 <= q % 3)", 2, 2, false, BY_ROW, NEVER, NEVER},
    {"doc[q] <= k and causal", 1, -1, true, BY_ROW, MAYBE, MAYBE},
    {"causal or k < doc[q]", 1, -1, true, BY_ROW, NEVER, SHORT},
    {"win[doc[k]] <= q < win[doc[k] + 1]", -1, 1, false, BY_ROW, MAYBE, MAYBE},
    {"k != q", 2, 2, false, BY_ROW, MAYBE, MAYBE},
    {"abs(q - k) > 2", 2, 2, false, BY_ROW, MAYBE, MAYBE},
    {"k < w or q < w or abs(q - k) < 3", 3, 3, false, BY_ROW, SHORT, SHORT},
    {"where(h < 4, q - k < 5, true) and causal", 1, 1, false, BY_ROW, SHORT, SHORT},
    {"where(k < 6, k, k - 6) <= q", 2, 1, false, 1, NEVER, SHORT},
    {"(k >= w and q >= w and k // 2 == q // 2) or (k < w and q >= w and k // 2 < q // 2 - 2)"
     " or (k < w and q < w and k // 2 <= q // 2)",
     3, 3, false, BY_ROW, MAYBE, MAYBE},
    {"(doc[q] <= k and k <= q) or (doc[q] != win[q] and win[q] <= k and k < win[q] + 4)",
     2, -1, true, BY_ROW, MAYBE, MAYBE},
    {"same(doc)", -1, -1, false, BY_ROW, MAYBE, MAYBE},
    {"causal and same(doc)", -1, -1, false, BY_ROW, MAYBE, MAYBE},
    {"causal and (q - k) % 2 == 0", -1, -1, false, BY_ROW, MAYBE, MAYBE},
    {"vis[q, k]", -1, -1, false, BY_ROW, MAYBE, MAYBE},
    {"vis[q, q]", 1, -1, true, BY_ROW, MAYBE, MAYBE},
};

static bool any_by_row(const mask_intervals *m) {
  bool found = false;
  for (int n = 0; n < m->count; n++)
    found |= mask_interval_by_row(m, n, true) || mask_interval_by_row(m, n, false);
  return found;
}

static void test_known_masks(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof known_masks / sizeof *known_masks; n++) {
    const known_mask *known = &known_masks[n];
    for (uint64_t seed = 1; seed <= 60; seed++) {
      arena *a = arena_new();
      intervals_case c = {.mask = parse_mask(a, known->source), .bottom_right = seed % 2, .seed = seed};
      random_state = seed;
      random_shape(&c);
      check_both(a, &c);
      CHECK(&c, (c.m.exact ? c.m.count : -1) == known->rows, "there should be %d intervals", known->rows);
      CHECK(&c, known->rows < 0 || any_by_row(&c.m) == known->by_row, "by row should be %d", known->by_row);
      CHECK(&c, mask_intervals_growth(&c.m) == known->growth || known->rows < 0, "growth should be %d, is %d",
            known->growth, mask_intervals_growth(&c.m));
      mask_emptiness proven = mask_prove_rows(a, &c.m, c.bottom_right);
      int wanted = c.bottom_right ? known->bottom_right : known->top_left;
      CHECK(&c, (int)proven == wanted, "emptiness should be %d, is %d", wanted, proven);
      c.m = mask_column_intervals(a, c.mask, c.bottom_right);
      CHECK(&c, (c.m.exact ? c.m.count : -1) == known->columns, "there should be %d intervals", known->columns);
      arena_free(a);
    }
  }
}

/* ---- random masks ---- */

/* Whether no integer comes near overflow at any row and key, as the analysis assumes. */
static bool is_tame_everywhere(intervals_case *c) {
  for (int q = offset(c); q < offset(c) + c->len_q; q++)
    for (int k = 0; k < c->len_k; k++) {
      visible(c, q, k); /* sets the symbols */
      if (!is_tame(c->mask, &c->env))
        return false;
    }
  return true;
}

static void test_random_masks(void **state) {
  (void)state;
  enum { MASKS = 12000 };
  int exact = 0, several = 0, tried = 0;
  for (uint64_t seed = 1; seed <= MASKS; seed++) {
    arena *a = arena_new();
    random_state = seed;
    intervals_case c = {.mask = random_mask(a, random_below(4)), .bottom_right = random_below(2), .seed = seed};
    random_shape(&c);
    if (is_tame_everywhere(&c)) {
      check_both(a, &c);
      tried++;
      exact += c.m.exact;
      several += c.m.exact && c.m.count > 1;
    }
    arena_free(a);
  }
  /* The generator must keep reaching the interesting outcomes. */
  assert_true(tried > MASKS * 3 / 4);
  assert_true(exact > MASKS / 3);
  assert_true(several > MASKS / 12);
}

/* More intervals and more bounds than there is room for: a hull, inexactly. */
static void test_too_many(void **state) {
  (void)state;
  arena *a = arena_new();
  const expr *any = expr_bool(a, false);
  for (int n = 0; n < 9; n++) {
    const expr *k = expr_sym(a, EXPR_K);
    any = expr_make(a, EXPR_OR, any, expr_make(a, EXPR_EQ, k, expr_int(a, 2 * n), NULL), NULL);
  }
  intervals_case c = {.mask = any, .bottom_right = true};
  random_state = 1;
  random_shape(&c);
  check_both(a, &c);
  assert_int_equal(c.m.count, MASK_MAX_INTERVALS);
  assert_false(c.m.exact);
  assert_non_null(c.m.fault);
  const expr *all = expr_bool(a, true);
  for (int n = 0; n < 20; n++) {
    const expr *left = expr_make(a, EXPR_MUL, expr_int(a, n + 1), expr_sym(a, EXPR_K), NULL);
    const expr *right = expr_make(a, EXPR_ADD, expr_sym(a, EXPR_Q), expr_int(a, 7 * n), NULL);
    all = expr_make(a, EXPR_AND, all, expr_make(a, EXPR_LE, left, right, NULL), NULL);
  }
  c.mask = all;
  check_both(a, &c);
  assert_int_equal(c.m.items[0].nhigh, MASK_MAX_BOUNDS);
  assert_false(c.m.exact);
  arena_free(a);
}

/* ---- overflow ---- */

typedef struct overflow_case {
  const char *source, *found; /* the first expression that may wrap; NULL: none */
} overflow_case;

static const overflow_case overflow_cases[] = {
    {"causal", NULL},
    {"window(127, 0)", NULL},
    {"q // 64 == k // 64", NULL},
    {"k * 4 <= q", "k * 4"},
    {"q - k <= w", NULL},
    {"q + w >= k + w", "q + w"},
    {"k + w <= q", NULL},
    {"k + w + w <= q", "k + w + w"},
    {"doc[q] + 1 > k", "doc[q] + 1"},
    {"min(doc[q], len_k) + 1 > k", NULL},
    {"q * k < 100", "q * k"},
    {"(q // 1024) * (k // 2048) < 100", "q // 1024 * (k // 2048)"},
    {"(q % 1024) * (k % 1024) < 100", NULL},
};

static void test_overflow(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof overflow_cases / sizeof *overflow_cases; n++) {
    arena *a = arena_new();
    mask_limits limits = mask_default_limits();
    const expr *found = mask_find_overflow(parse_mask(a, overflow_cases[n].source), &limits);
    text out = {0};
    if (found)
      expr_print(found, random_params, &out);
    if (!found != !overflow_cases[n].found || (found && strcmp(out.bytes, overflow_cases[n].found) != 0))
      fail_msg("%s: found %s", overflow_cases[n].source, found ? out.bytes : "nothing");
    text_free(&out);
    arena_free(a);
  }
}

/* No value leaves 32 bits when that was proven, at the ends of the limits and elsewhere. */
static void check_no_wrap(uint64_t seed, const expr *whole, const expr *e, const expr_env *env) {
  for (int n = 0; n < e->nargs; n++)
    check_no_wrap(seed, whole, e->args[n], env);
  if (e->type != EXPR_INT || e->op < EXPR_NEG || e->op > EXPR_MUL)
    return;
  double x = expr_eval(e->args[0], env), y = e->nargs > 1 ? expr_eval(e->args[1], env) : 0;
  double exact = e->op == EXPR_NEG   ? -x
                 : e->op == EXPR_ABS ? fabs(x)
                 : e->op == EXPR_ADD ? x + y
                 : e->op == EXPR_SUB ? x - y
                                     : x * y;
  if (exact != expr_eval(e, env)) {
    text out = {0};
    expr_print(whole, random_params, &out);
    print_error("seed %llu: %s\n", (unsigned long long)seed, out.bytes);
    text_free(&out);
    fail_msg("a value wraps, against the proof");
  }
}

static void test_random_overflow(void **state) {
  (void)state;
  enum { MASKS = 6000 };
  const random_options options = {.wide = true, .comparisons = true};
  int proven = 0;
  for (uint64_t seed = 1; seed <= MASKS; seed++) {
    arena *a = arena_new();
    random_state = seed;
    const expr *e = random_expr(a, &options, EXPR_INT, 1 + random_below(4));
    int limit = 1 << random_between(4, 30);
    mask_limits limits = {limit, limit, 16, 16}; /* random parameters are small */
    if (!mask_find_overflow(e, &limits)) {
      proven++;
      for (int n = 0; n < 12; n++) {
        expr_env env = random_env(false);
        for (int s = 0; s < EXPR_S; s++) {
          int64_t value = random_below(2) ? limit : random_between(0, limit);
          env.symbol[s] = (s == EXPR_Q || s == EXPR_I) && random_below(2) ? -value : value - (s == EXPR_K);
          env.symbol[s] = s == EXPR_K && value == 0 ? 0 : env.symbol[s];
        }
        check_no_wrap(seed, e, e, &env);
      }
    }
    arena_free(a);
  }
  assert_true(proven > MASKS / 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_masks), cmocka_unit_test(test_random_masks),    cmocka_unit_test(test_too_many),
      cmocka_unit_test(test_overflow),    cmocka_unit_test(test_random_overflow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
