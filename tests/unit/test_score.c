/* Scores: what a kernel computes from a product is the score, parts are computed as often as they change, and slopes
 * are those that differences show. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "score.h"
#include "test_expr_random.h"

static const char *printed(const expr *e) {
  static text out;
  text_clear(&out);
  expr_print(e, random_params, &out);
  return out.bytes;
}

static const expr *parse(arena *a, const char *source) {
  const expr_scope scope = random_scope();
  diags d;
  diags_init(&d, a, "score", source, strlen(source));
  const expr *e = expr_parse(a, source, 0, true, &scope, EXPR_FLOAT, &d);
  if (!e)
    fail_msg("%s: %s", source, d.items[0].message);
  return e;
}

/* ---- by example ---- */

/* What stands in the generated code, with s for the product. */
static char *cuda(const score_code *c, const expr *e) {
  const char *names[EXPR_SYMBOL_COUNT];
  static const char *const locals[] = {"L0", "L1", "L2", "L3", "L4", "L5", "L6", "L7"};
  text out = {0};
  assert_true(c->count <= 8);
  for (int n = 0; n < EXPR_SYMBOL_COUNT; n++)
    names[n] = expr_symbol_name((expr_symbol)n);
  expr_print_cuda(e, random_params, names, locals, &out);
  return out.bytes;
}

static const char level_names[] = {'o', 'r', 'c'};

/* "factor | level: local; ... | shift | value", for a scale of 1/8. */
static void check_example(const char *source, double softcap, bool packed, const char *wanted) {
  arena *a = arena_new();
  score_plan p = score_make_plan(a, parse(a, source), 0.125, softcap, true);
  score_code c = score_place(a, &p, packed);
  text out = {0};
  text_printf(&out, "%g |", p.factor);
  for (int n = 0; n < c.count; n++) {
    char *value = cuda(&c, c.local[n]);
    text_printf(&out, " %c: %s;", level_names[c.level[n]], value);
    free(value);
  }
  char *shift = c.shift ? cuda(&c, c.shift) : NULL, *value = cuda(&c, c.value);
  text_printf(&out, " | %s | %s", shift ? shift : "none", value);
  if (strcmp(out.bytes, wanted) != 0)
    fail_msg("%s is\n  %s, should be\n  %s", source, out.bytes, wanted);
  free(shift);
  free(value);
  text_free(&out);
  arena_free(a);
}

static void test_examples(void **state) {
  (void)state;
  check_example("s", 0, false, "0.125 | | none | s");
  check_example("2 * s", 0, false, "0.25 | | none | s");
  check_example("-s", 0, false, "0.125 | | none | -s");
  check_example("s", 32, false, "32 | | none | tanh_approx(s * 0x1p-8f)");
  check_example("32 * tanh(s / 32)", 0, false, "32 | | none | tanh_approx(s * 0x1p-8f)");
  check_example("s + slope[h] * (k - q)", 0, false,
                "0.125 | o: 0x1p+3f * param_slope(p, h); o: param_slope(p, h); |"
                " 0x1p+3f * (to_f32(first_key - q) * L1) | column * L0 + s");
  check_example("s + slope[h] * (k - q)", 0, true,
                "0.125 | r: 0x1p+3f * param_slope(p, h); |"
                " 0x1p+3f * (to_f32(first_key - q) * param_slope(p, h)) | column * L0 + s");
  check_example("s + slope[h] * (k - q)", 32, false,
                "32 | o: 0x1p-5f * param_slope(p, h); o: param_slope(p, h); |"
                " 0x1p-5f * (to_f32(first_key - q) * L1) | column * L0 + tanh_approx(s * 0x1p-8f)");
  check_example("s + slope[h]", 0, false, "0.125 | o: 0x1p+3f * param_slope(p, h); | L0 | s");
  check_example("s + slope[k]", 0, false, "1 | c: param_slope(p, k); | none | L0 + s * 0x1p-3f");
  check_example("s + slope[q - k]", 0, false, "1 | | none | param_slope(p, q - k) + s * 0x1p-3f");
  check_example("s / cap", 0, false, "0.125 | o: rcp_approx(p.cap); | none | s * L0");
  check_example("s - abs(q - k) / 4", 0, false,
                "1 | r: to_f32(q - first_key); | none | abs_f32(L0 - column) * -0x1p-2f + s * 0x1p-3f");
  check_example("log(1 + abs(q - k)) + s", 0, false, /* ln 2 times a logarithm of base 2 */
                "1 | r: to_f32(q - first_key); | none |"
                " log2_approx(0x1p+0f + abs_f32(L0 - column)) * 0x1.62e43p-1f + s * 0x1p-3f");
  check_example("where(s < slope[q], s, 0.0)", 0, false, /* comparisons stay */
                "1 | r: param_slope(p, q); | none | s * 0x1p-3f < L0 ? s * 0x1p-3f : 0x0p+0f");
}

static void test_bounds(void **state) {
  (void)state;
  arena *a = arena_new();
  const expr *s = parse(a, "s");
  assert_true(score_make_plan(a, s, 0.125, 30, true).bounded);
  assert_false(score_make_plan(a, s, 0.125, 0x1p24, true).bounded);
  assert_false(score_make_plan(a, parse(a, "s + q"), 0.125, 30, true).bounded);
  assert_true(score_make_plan(a, s, 0.125, 30, false).value->op == EXPR_TANH);
  assert_true(score_make_plan(a, s, 0.125, 0, true).is_product);
  assert_true(score_make_plan(a, parse(a, "s - 1"), 0.125, 0, true).is_product);
  assert_false(score_make_plan(a, s, -0.125, 0, true).is_product);
  assert_false(score_make_plan(a, s, 0, 0, true).is_product);
  /* Products of constants that no f32 holds: the expression stays as it is. */
  score_plan far = score_make_plan(a, parse(a, "s * 1e30 * 1e30"), 1, 0, true);
  assert_true(far.factor == 1);
  assert_string_equal(printed(far.value), "s * 1e+30 * 1e+30");
  arena_free(a);
}

/* ---- by brute force ---- */

/* Whether f64 has digits to spare: no value is huge, no argument near a pole. */
static bool is_benign(const expr *e, const expr_env *env) {
  if (e->type == EXPR_FLOAT && !(fabs(expr_eval(e, env)) < 1e6))
    return false;
  const expr *steep = e->op == EXPR_DIV ? e->args[1] : e->op == EXPR_LOG || e->op == EXPR_SQRT ? e->args[0] : NULL;
  if (steep && fabs(expr_eval(steep, env)) < 1e-3)
    return false;
  for (int n = 0; n < e->nargs; n++)
    if (!is_benign(e->args[n], env))
      return false;
  return true;
}

static bool same_score(double x, double y) {
  return fabs(x - y) <= 1e-5 * (1 + fabs(x));
}

/* No local may hold what changes more often than it is computed. */
static void check_levels(uint64_t seed, const score_code *c, bool packed) {
  const unsigned row = EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_I) | (packed ? EXPR_BIT(EXPR_H) : 0);
  const unsigned column = EXPR_BIT(EXPR_K) | EXPR_BIT(EXPR_COLUMN), s = EXPR_BIT(EXPR_S);
  const unsigned forbidden[] = {row | column | s, column | s, row | s};
  for (int n = 0; n < c->count; n++)
    if (expr_symbols(c->local[n]) & forbidden[c->level[n]])
      fail_msg("seed %llu: local %d of level %d: %s", (unsigned long long)seed, n, c->level[n], printed(c->local[n]));
  if (c->shift && (expr_symbols(c->shift) & (column | s)))
    fail_msg("seed %llu: the shift is not of the row: %s", (unsigned long long)seed, printed(c->shift));
}

static void check_code(uint64_t seed, const expr *e, const score_plan *p, const score_code *c, expr_env env,
                       double wanted) {
  double locals[256];
  assert_true(c->count <= 256);
  env.local = locals;
  for (int n = 0; n < c->count; n++)
    locals[n] = expr_eval(c->local[n], &env);
  double got = p->factor * (expr_eval(c->value, &env) + (c->shift ? expr_eval(c->shift, &env) : 0));
  if (same_score(wanted, got))
    return;
  print_error("seed %llu: %s\n", (unsigned long long)seed, printed(e));
  print_error("is %.17g times %s\n", p->factor, printed(p->value));
  fail_msg("%.17g instead of %.17g", got, wanted);
}

static void test_random_scores(void **state) {
  (void)state;
  const random_options options = {.comparisons = true};
  int compared = 0;
  for (uint64_t seed = 1; seed <= 8000; seed++) {
    arena *a = arena_new();
    random_state = seed;
    const expr *e = expr_fold(a, random_expr(a, &options, EXPR_FLOAT, 1 + random_below(6)));
    double scale = random_between(-3, 20) / 8.0, softcap = random_below(3) ? 0 : random_between(1, 40) / 4.0;
    score_plan p = score_make_plan(a, e, scale, softcap, random_below(2));
    assert_true(p.factor > 0);
    for (int packed = 0; packed <= 1; packed++) {
      score_code c = score_place(a, &p, packed);
      check_levels(seed, &c, packed);
      for (int n = 0; n < 6; n++) {
        expr_env env = random_env(false), original;
        env.column = random_below(16);
        env.symbol[EXPR_K] = env.symbol[EXPR_FIRST_KEY] = random_between(0, 20);
        env.symbol[EXPR_K] += (int64_t)env.column;
        original = env;
        original.s = softcap > 0 ? softcap * tanh(env.s * (scale / softcap)) : env.s * scale;
        if (!is_tame(e, &original) || !is_benign(e, &original))
          continue;
        check_code(seed, e, &p, &c, env, expr_eval(e, &original));
        compared++;
      }
    }
    arena_free(a);
  }
  assert_true(compared > 20000);
}

/* ---- slopes ---- */

static void check_slope(const char *source, double softcap, score_class class, const char *wanted) {
  arena *a = arena_new();
  score_derivative d = score_derive(a, parse(a, source), softcap);
  expr *cap = expr_node(a, EXPR_PARAM, EXPR_FLOAT, (diag_span){0, 0}); /* stands for y */
  cap->param = PARAM_CAP;
  expr *y = expr_node(a, EXPR_LOCAL, EXPR_FLOAT, (diag_span){0, 0});
  const char *got = printed(expr_replace(a, d.slope, y, cap));
  if (d.class != class || strcmp(got, wanted) != 0)
    fail_msg("%s: class %d: %s, should be class %d: %s", source, d.class, got, class, wanted);
  arena_free(a);
}

static void test_slopes(void **state) {
  (void)state;
  check_slope("s", 0, SCORE_SLOPE_FREE, "1.0");
  check_slope("slope[k]", 0, SCORE_SLOPE_FREE, "0.0");
  check_slope("s * slope[h] + w", 0, SCORE_SLOPE_FREE, "slope[h]");
  check_slope("where(k % 2 == 0, s, 0.5 * s)", 0, SCORE_SLOPE_FREE, "where(k % 2 == 0, 1.0, 0.5)");
  check_slope("s", 30, SCORE_SLOPE_OF_VALUE, "1.0 - cap / 30.0 * (cap / 30.0)");
  check_slope("49 * tanh(s / 49)", 0, SCORE_SLOPE_OF_VALUE, "1.0 - cap / 49.0 * (cap / 49.0)");
  check_slope("exp(s)", 0, SCORE_SLOPE_OF_VALUE, "cap");
  check_slope("log(s) + q", 0, SCORE_SLOPE_OF_VALUE, "1.0 / exp(cap - q)");
  check_slope("s * s", 0, SCORE_SLOPE_OF_S, "s + s");
  /* Ties: the first arm. */
  check_slope("max(s, 0.0)", 0, SCORE_SLOPE_OF_S, "where(s >= 0.0, 1.0, 0.0)");
  check_slope("min(0.0, s)", 0, SCORE_SLOPE_OF_S, "where(0.0 <= s, 0.0, 1.0)");
  check_slope("abs(s)", 0, SCORE_SLOPE_OF_S, "where(s >= 0.0, 1.0, -1.0)");
  check_slope("s + slope[floor(s)]", 0, SCORE_SLOPE_FREE, "1.0"); /* steps have no slope */
}

static double score_at(const expr *e, expr_env env, double s, double softcap) {
  env.s = softcap > 0 ? softcap * tanh(s / softcap) : s;
  return expr_eval(e, &env);
}

static double difference(const expr *e, const expr_env *env, double softcap, double h) {
  return (score_at(e, *env, env->s + h, softcap) - score_at(e, *env, env->s - h, softcap)) / (2 * h);
}

static void test_random_slopes(void **state) {
  (void)state;
  const random_options options = {.comparisons = true};
  int compared = 0, classes[3] = {0};
  for (uint64_t seed = 1; seed <= 20000; seed++) {
    arena *a = arena_new();
    random_state = seed;
    const expr *e = expr_fold(a, random_expr(a, &options, EXPR_FLOAT, 1 + random_below(6)));
    double softcap = random_below(3) ? 0 : random_between(4, 40) / 4.0;
    score_derivative d = score_derive(a, e, softcap);
    if (d.class != SCORE_SLOPE_OF_S && (expr_symbols(d.slope) & EXPR_BIT(EXPR_S)))
      fail_msg("seed %llu: class %d of %s", (unsigned long long)seed, d.class, printed(d.slope));
    for (int n = 0; n < 6; n++) {
      expr_env env = random_env(false);
      env.s += 0.0123456789; /* off every kink that constants make */
      expr_env capped = env;
      capped.s = softcap > 0 ? softcap * tanh(env.s / softcap) : env.s;
      double wide = difference(e, &env, softcap, 2e-6), narrow = difference(e, &env, softcap, 1e-6);
      if (!is_benign(e, &capped) || !(fabs(wide - narrow) <= 1e-5 * (1 + fabs(narrow))))
        continue; /* a step or a pole beside it */
      const double y = expr_eval(e, &capped);
      env.local = &y;
      double slope = expr_eval(d.slope, &env);
      classes[d.class]++;
      compared++;
      if (fabs(slope - narrow) <= 1e-3 * (1 + fabs(narrow)))
        continue;
      print_error("seed %llu: %s, s = %.17g, softcap %g\n", (unsigned long long)seed, printed(e), env.s, softcap);
      print_error("class %d: %s\n", d.class, printed(d.slope));
      fail_msg("slope %.9g, differences say %.9g", slope, narrow);
    }
    arena_free(a);
  }
  assert_true(compared > 20000 && classes[SCORE_SLOPE_OF_VALUE] > 500 && classes[SCORE_SLOPE_OF_S] > 500);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_examples),      cmocka_unit_test(test_bounds),        cmocka_unit_test(test_random_scores),
      cmocka_unit_test(test_slopes),        cmocka_unit_test(test_random_slopes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
