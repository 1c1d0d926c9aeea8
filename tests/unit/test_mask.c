/* Mask analysis against brute force: no visible key lies outside the derived interval, and where the analysis says
 * `exact`, every key inside is visible. Realistic masks must come out exact; random ones must come out sound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "mask.h"
#include "test_mask_random.h"

/* One mask at one shape. */
typedef struct mask_case {
  const expr *mask;
  mask_rows rows;
  bool bottom_right;
  int len_q, len_k, tile;
  expr_env env;
  uint64_t seed;
} mask_case;

static void describe(const mask_case *c) {
  text out = {0};
  expr_print(c->mask, random_params, &out);
  print_error("seed %llu: %s\n  %s, len_q %d, len_k %d, tile %d, h %d, form %d, exact %d\n",
              (unsigned long long)c->seed, out.bytes, c->bottom_right ? "bottom_right" : "top_left", c->len_q, c->len_k,
              c->tile, (int)c->env.symbol[EXPR_H], c->rows.form, c->rows.exact);
  for (int n = 0; n < c->rows.nlow + c->rows.nhigh; n++) {
    bool low = n < c->rows.nlow;
    const mask_bound *b = low ? &c->rows.low[n] : &c->rows.high[n - c->rows.nlow];
    text_clear(&out);
    expr_print(b->value, random_params, &out);
    print_error("  %s %+d: %s\n", low ? "low" : "high", b->direction, out.bytes);
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

static int offset(const mask_case *c) {
  return c->bottom_right ? c->len_k - c->len_q : 0;
}

static bool visible(mask_case *c, int q, int k) {
  c->env.symbol[EXPR_Q] = q;
  c->env.symbol[EXPR_K] = k;
  c->env.symbol[EXPR_I] = q - offset(c);
  return expr_eval(c->mask, &c->env) != 0;
}

static int bound_at(mask_case *c, const mask_bound *b, int q) {
  c->env.symbol[EXPR_Q] = q;
  c->env.symbol[EXPR_I] = -1000; /* must not matter */
  c->env.symbol[EXPR_K] = -1000;
  return (int)expr_eval(b->value, &c->env);
}

static void check_row(mask_case *c, int q, int *low, int *high) {
  *low = 0;
  *high = c->len_k;
  for (int n = 0; n < c->rows.nlow; n++) {
    int value = bound_at(c, &c->rows.low[n], q);
    *low = value > *low ? value : *low;
  }
  for (int n = 0; n < c->rows.nhigh; n++) {
    int value = bound_at(c, &c->rows.high[n], q);
    *high = value < *high ? value : *high;
  }
  for (int k = 0; k < c->len_k; k++) {
    bool inside = *low <= k && k < *high, seen = visible(c, q, k);
    switch (c->rows.form) {
    case MASK_ALL:
      CHECK(c, seen, "q %d does not see k %d", q, k);
      break;
    case MASK_NONE:
      CHECK(c, !seen, "q %d sees k %d", q, k);
      break;
    default:
      CHECK(c, !seen || inside, "q %d sees k %d outside [%d, %d)", q, k, *low, *high);
      CHECK(c, !c->rows.exact || seen == inside, "q %d does not see k %d inside [%d, %d)", q, k, *low, *high);
    }
  }
}

static void check_directions(mask_case *c, int q) {
  for (int n = 0; n < c->rows.nlow + c->rows.nhigh; n++) {
    const mask_bound *b = n < c->rows.nlow ? &c->rows.low[n] : &c->rows.high[n - c->rows.nlow];
    int here = bound_at(c, b, q), next = bound_at(c, b, q + 1);
    bool holds = b->direction == 0 ? here == next : b->direction > 0 ? here <= next : here >= next;
    CHECK(c, holds, "bound %d moves against its direction from q %d to q %d: %d, %d", n, q, q + 1, here, next);
  }
}

/* No row sees more keys than the width. */
static void check_width(arena *a, mask_case *c) {
  int64_t width;
  if (!mask_rows_width(a, &c->rows, &width))
    return;
  for (int q = offset(c); q < offset(c) + c->len_q; q++) {
    int seen = 0;
    for (int k = 0; k < c->len_k; k++)
      seen += visible(c, q, k);
    CHECK(c, seen <= width, "q %d sees %d keys, more than the width of %d", q, seen, (int)width);
  }
}

static int edge_at(mask_case *c, const expr *e, int first, int last) {
  c->env.symbol[EXPR_Q] = first;
  c->env.symbol[EXPR_I] = last;
  int value = (int)expr_eval(e, &c->env);
  return value < 0 ? 0 : value > c->len_k ? c->len_k : value;
}

/* Returns how many keys at the ends of the visited range no row sees (0: as tight as it can be). */
static int check_tile(mask_case *c, const expr *const edges[4], int first, int last) {
  int begin = edge_at(c, edges[MASK_VISIT_BEGIN], first, last), end = edge_at(c, edges[MASK_VISIT_END], first, last);
  int full_begin = edge_at(c, edges[MASK_FULL_BEGIN], first, last),
      full_end = edge_at(c, edges[MASK_FULL_END], first, last);
  int least = c->len_k, greatest = 0;
  for (int q = first; q <= last; q++)
    for (int k = 0; k < c->len_k; k++) {
      bool seen = visible(c, q, k);
      CHECK(c, !seen || (begin <= k && k < end), "rows %d..%d visit [%d, %d), but q %d sees k %d", first, last, begin,
            end, q, k);
      CHECK(c, seen || k < full_begin || k >= full_end, "rows %d..%d see all of [%d, %d), but q %d does not see k %d",
            first, last, full_begin, full_end, q, k);
      if (seen && k < least)
        least = k;
      if (seen && k >= greatest)
        greatest = k + 1;
    }
  int visited = end > begin ? end - begin : 0, needed = greatest > least ? greatest - least : 0;
  return visited - needed;
}

/* Checks all rows and tiles; returns the sum of check_tile. */
static int check_case(arena *a, mask_case *c) {
  const expr *edges[4];
  int slack = 0, low, high;
  for (int n = 0; n < 4; n++) {
    edges[n] = mask_tile_edge(a, &c->rows, (mask_edge)n);
    CHECK(c, !(expr_symbols(edges[n]) & EXPR_BIT(EXPR_K)), "an edge depends on k");
  }
  for (int i = 0; i < c->len_q; i++) {
    check_row(c, i + offset(c), &low, &high);
    check_directions(c, i + offset(c));
  }
  check_width(a, c);
  for (int i = 0; i < c->len_q; i += c->tile) {
    int last = i + c->tile < c->len_q ? i + c->tile - 1 : c->len_q - 1;
    slack += check_tile(c, edges, i + offset(c), last + offset(c));
  }
  return slack;
}

static void random_shape(mask_case *c) {
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
  mask_form form;
  bool exact;
  bool tight; /* the visited range of a tile has no key at its ends that no row sees */
} known_mask;

static const known_mask known_masks[] = {
    {"true", MASK_ALL, true, true},
    {"false", MASK_NONE, true, true},
    {"causal", MASK_ROWS, true, true},
    {"k <= q", MASK_ROWS, true, true},
    {"q >= k", MASK_ROWS, true, true},
    {"not (k > q)", MASK_ROWS, true, true},
    {"k < q", MASK_ROWS, true, true},
    {"k >= q", MASK_ROWS, true, true},
    {"k == q", MASK_ROWS, true, true},
    {"k <= i", MASK_ROWS, true, true},
    {"k <= i + 3 and i - k < 7", MASK_ROWS, true, true},
    {"causal and q - k < 4", MASK_ROWS, true, true},
    {"0 <= q - k < 6", MASK_ROWS, true, true},
    {"window(3, 0)", MASK_ROWS, true, true},
    {"window(-1, 0)", MASK_ROWS, true, true},
    {"window(2, 5)", MASK_ROWS, true, true},
    {"window(-1, -1)", MASK_ALL, true, true},
    {"abs(q - k) <= 3", MASK_ROWS, true, true},
    {"abs(k - q) < 3 and causal", MASK_ROWS, true, true},
    {"window(w, 0)", MASK_ROWS, true, true},
    {"window(win[h], 2)", MASK_ROWS, true, true},
    {"window(win[hk], win[h])", MASK_ROWS, true, true},
    {"causal and q - k < w", MASK_ROWS, true, false},
    {"where(h < 4, q - k < 5, true) and causal", MASK_ROWS, true, true},
    {"where(h % 2 == 0, window(4, 0), causal)", MASK_ROWS, true, true},
    {"causal and (h < 2 or q - k < 5)", MASK_ROWS, true, true},
    {"causal and (on or q - k < 5)", MASK_ROWS, true, true},
    {"k // 8 == q // 8", MASK_ROWS, true, true},
    {"k // 8 == q // 8 and causal", MASK_ROWS, true, true},
    {"k // 8 <= q // 8", MASK_ROWS, true, true},
    {"0 <= q // 4 - k // 4 <= 1", MASK_ROWS, true, true},
    {"k // 4 < (q + 3) // 4", MASK_ROWS, true, true},
    {"causal or k < 5", MASK_ROWS, true, true},
    {"causal or prefix(w)", MASK_ROWS, true, true},
    {"causal or prefix(win[b])", MASK_ROWS, true, true},
    {"prefix(win[b])", MASK_ROWS, true, true},
    {"k < win[b] and causal", MASK_ROWS, true, true},
    {"k <= min(q, 9)", MASK_ROWS, true, true},
    {"max(k, 3) <= q", MASK_ROWS, true, false},
    {"min(k, 6) >= q", MASK_ROWS, true, false},
    {"2 * k <= q", MASK_ROWS, true, true},
    {"3 * k >= q - 2 and 3 * k <= q + 7", MASK_ROWS, true, true},
    {"k <= q // -2 + 12", MASK_ROWS, true, true},
    {"k <= 10 - q", MASK_ROWS, true, true},
    {"k >= 10 - q", MASK_ROWS, true, true},
    {"(q - k) // 4 == 0", MASK_ROWS, true, true},
    {"(q - k) // 4 <= 1 and causal", MASK_ROWS, true, true},
    {"k * heads_kv < q + heads_q", MASK_ROWS, true, true},
    {"k < len_k - 2", MASK_ROWS, true, true},
    {"h < 4", MASK_ROWS, true, true},
    {"q < 10", MASK_ROWS, true, true},
    {"q >= 10 and causal", MASK_ROWS, true, false},
    {"on", MASK_ROWS, true, true},
    {"same(doc)", MASK_ELEMENTS, false, false},
    {"causal and same(doc)", MASK_ROWS, false, false},
    {"causal and (q - k) % 2 == 0", MASK_ROWS, false, false},
    {"causal and (q - k < 4 or k < 2)", MASK_ROWS, false, false},
    {"vis[q, k]", MASK_ELEMENTS, false, false},
    {"k != q", MASK_ELEMENTS, false, false},
    {"doc[q] <= k and causal", MASK_ROWS, false, false},
};

static void test_known_masks(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof known_masks / sizeof *known_masks; n++) {
    const known_mask *known = &known_masks[n];
    for (uint64_t seed = 1; seed <= 60; seed++) {
      arena *a = arena_new();
      mask_case c = {.mask = parse_mask(a, known->source), .bottom_right = seed % 2, .seed = seed};
      random_state = seed;
      random_shape(&c);
      c.rows = mask_analyse(a, c.mask, c.bottom_right);
      CHECK(&c, c.rows.form == known->form, "the form should be %d", known->form);
      CHECK(&c, c.rows.exact == known->exact, "exact should be %d", known->exact);
      int slack = check_case(a, &c);
      CHECK(&c, !known->tight || slack == 0, "tiles visit %d keys too many", slack);
      arena_free(a);
    }
  }
}

/* ---- random masks ---- */

/* Whether no integer comes near overflow at any row and key, as the analysis assumes. */
static bool is_tame_everywhere(mask_case *c) {
  for (int i = 0; i < c->len_q; i++)
    for (int k = 0; k < c->len_k; k++) {
      visible(c, i + offset(c), k); /* sets the symbols */
      if (!is_tame(c->mask, &c->env))
        return false;
    }
  return true;
}

static bool has_op(const expr *e, expr_op op) {
  bool found = e->op == op;
  for (int n = 0; n < e->nargs && !found; n++)
    found = has_op(e->args[n], op);
  return found;
}

static void test_random_masks(void **state) {
  (void)state;
  enum { MASKS = 20000 };
  int exact = 0, rows = 0;
  for (uint64_t seed = 1; seed <= MASKS; seed++) {
    arena *a = arena_new();
    random_state = seed;
    mask_case c = {.mask = random_mask(a, random_below(4)), .bottom_right = random_below(2), .seed = seed};
    random_shape(&c);
    if (!has_op(c.mask, EXPR_FLOOR) || is_tame_everywhere(&c)) /* only floor() makes large numbers of small ones here */
      c.rows = mask_analyse(a, c.mask, c.bottom_right);
    else
      c.rows.form = MASK_ELEMENTS;
    rows += c.rows.form == MASK_ROWS;
    exact += c.rows.form == MASK_ROWS && c.rows.exact;
    check_case(a, &c);
    arena_free(a);
  }
  /* The generator must keep reaching the interesting outcomes. */
  assert_true(rows > MASKS / 2);
  assert_true(exact > MASKS / 5);
}

/* More conjuncts than there is room for: the rest is left to the elements. */
static void test_many_bounds(void **state) {
  (void)state;
  arena *a = arena_new();
  const expr *mask = expr_bool(a, true);
  for (int n = 0; n < 20; n++) {
    const expr *left = expr_make(a, EXPR_MUL, expr_int(a, n + 1), expr_sym(a, EXPR_K), NULL);
    const expr *right = expr_make(a, EXPR_ADD, expr_sym(a, EXPR_Q), expr_int(a, 7 * n), NULL);
    mask = expr_make(a, EXPR_AND, mask, expr_make(a, EXPR_LE, left, right, NULL), NULL);
  }
  mask_case c = {.mask = mask, .rows = mask_analyse(a, mask, true), .bottom_right = true};
  random_state = 1;
  random_shape(&c);
  assert_int_equal(c.rows.nhigh, MASK_MAX_BOUNDS);
  assert_false(c.rows.exact);
  check_case(a, &c);
  arena_free(a);
}

/* Rows are numbered alike wherever the mask's spelling differs: i is q, or q minus the difference of the lengths. */
static void test_raw_rows(void **state) {
  (void)state;
  arena *a = arena_new();
  mask_rows top = mask_analyse(a, parse_mask(a, "k <= i"), false),
            same = mask_analyse(a, parse_mask(a, "causal"), false);
  assert_true(expr_equal(top.high[0].value, same.high[0].value));
  mask_rows bottom = mask_analyse(a, parse_mask(a, "k <= i"), true);
  mask_rows shifted = mask_analyse(a, parse_mask(a, "k <= q - (len_k - len_q)"), true);
  assert_true(expr_equal(bottom.high[0].value, shifted.high[0].value));
  assert_false(expr_symbols(bottom.high[0].value) & EXPR_BIT(EXPR_I));
  arena_free(a);
}

static void test_widths(void **state) {
  (void)state;
  static const struct {
    const char *source;
    int width; /* -1: none is known */
  } known[] = {
      {"window(127, 0)", 128},
      {"window(256, 256)", 513},
      {"causal and q - k < 7 and q - k < 5", 5},
      {"q // 4 == k // 4", 4},
      {"causal and q // 2048 == k // 2048", 2048},
      {"causal and q - k < -1", 0},
      {"window(w, 0)", -1},
      {"causal", -1},
      {"causal and (q - k < 8 or k < 4)", -1},
      {"k < 9", -1},
      {"same(doc)", -1},
  };
  for (size_t n = 0; n < sizeof known / sizeof *known; n++)
    for (int bottom_right = 0; bottom_right <= 1; bottom_right++) {
      arena *a = arena_new();
      int64_t width = -1;
      mask_case c = {.mask = parse_mask(a, known[n].source), .bottom_right = bottom_right};
      c.rows = mask_analyse(a, c.mask, c.bottom_right);
      if (!mask_rows_width(a, &c.rows, &width))
        width = -1;
      CHECK(&c, width == known[n].width, "the width should be %d, is %d", known[n].width, (int)width);
      arena_free(a);
    }
}

static double greatest_read(void *user, int param, const int64_t *index) {
  (void)user;
  (void)param;
  (void)index;
  return MASK_POSITION_LIMIT;
}

/* A bound that is derived through // must not wrap where the mask does not. */
static void test_large_parameter(void **state) {
  (void)state;
  static const char *const sources[] = {"k // 64 <= w", "k // 64 < win[h] + 1", "k // 64 <= q // 64 + w",
                                        "k // 3 >= -w"};
  for (size_t n = 0; n < sizeof sources / sizeof *sources; n++) {
    arena *a = arena_new();
    mask_case c = {.mask = parse_mask(a, sources[n]), .bottom_right = true, .len_q = 40, .len_k = 200, .tile = 16};
    c.env = (expr_env){.read = greatest_read, .symbol = {[EXPR_LEN_Q] = 40, [EXPR_LEN_K] = 200}};
    c.rows = mask_analyse(a, c.mask, c.bottom_right);
    CHECK(&c, c.rows.form == MASK_ROWS && c.rows.exact, "%s should be rows", sources[n]);
    check_case(a, &c);
    arena_free(a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_masks), cmocka_unit_test(test_random_masks),    cmocka_unit_test(test_many_bounds),
      cmocka_unit_test(test_raw_rows),    cmocka_unit_test(test_large_parameter), cmocka_unit_test(test_widths),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
