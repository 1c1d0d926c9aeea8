/* The expression language by example: what texts mean, how they print, and what is said about wrong ones. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expr.h"

static const expr_param params[] = {
    {.name = "slope", .type = PARAM_F32, .rank = 1}, {.name = "doc", .type = PARAM_I32, .rank = 1},
    {.name = "seg", .type = PARAM_I32, .rank = 2},   {.name = "left", .type = PARAM_I32, .rank = 0},
    {.name = "win", .type = PARAM_I32, .rank = 1},   {.name = "on", .type = PARAM_BOOL, .rank = 0},
    {.name = "vis", .type = PARAM_BOOL, .rank = 1},  {.name = "cap", .type = PARAM_F32, .rank = 0},
    {.name = "cube", .type = PARAM_F16, .rank = 3},
};

typedef enum kind { MASK, SCORE, SHAPE, CONSTANT } kind;

static const expr *parse_kind(arena *a, kind what, const char *source, diags *d) {
  const unsigned all = (1u << EXPR_SYMBOL_COUNT) - 1;
  expr_scope scope = {.symbols = what == MASK ? all & ~EXPR_BIT(EXPR_S) : all,
                      .params = params,
                      .nparams = sizeof params / sizeof *params,
                      .heads_q = 8,
                      .heads_kv = 2};
  if (what == SHAPE)
    scope = (expr_scope){.heads_q = 8, .heads_kv = 2, .shape = true};
  if (what == CONSTANT)
    scope = (expr_scope){0};
  diags_init(d, a, "text", source, strlen(source));
  return expr_parse(a, source, 0, true, &scope, what == MASK ? EXPR_BOOL : what == SHAPE ? EXPR_INT : EXPR_FLOAT, d);
}

static const expr *parse(arena *a, kind what, const char *source) {
  diags d;
  const expr *e = parse_kind(a, what, source, &d);
  if (!e)
    fail_msg("'%s': %s", source, d.items[0].message);
  return e;
}

/* ---- printing ---- */

typedef struct print_case {
  kind what;
  const char *source, *printed, *cuda; /* NULL: not checked */
} print_case;

static const print_case print_cases[] = {
    {SCORE, "s", "s", "s"},
    {SCORE, "  s+slope[ h ]*(k-q)", "s + slope[h] * (k - q)", "s + param_slope(p, h) * to_f32(k - q)"},
    {SCORE, "50.0*tanh(s/50.0)", "50.0 * tanh(s / 50.0)", "0x1.9p+5f * tanh_f32(s / 0x1.9p+5f)"},
    {SCORE, "s + 1", "s + 1.0", "s + 0x1p+0f"},
    {SCORE, "s * .5", "s * 0.5", "s * 0x1p-1f"},
    {SCORE, "-s - -s", "-s - -s", "-s - -s"},
    {SCORE, "s - (s - s)", "s - (s - s)", "s - (s - s)"},
    {SCORE, "(s - s) - s", "s - s - s", "s - s - s"},
    {SCORE, "s / (s * s)", "s / (s * s)", "s / (s * s)"},
    {SCORE, "-(s + 2) * 3", "-(s + 2.0) * 3.0", "-(s + 0x1p+1f) * 0x1.8p+1f"},
    {SCORE, "-(-s)", "s", "s"},
    {SCORE, "q // 2 % 3", "q // 2 % 3", "to_f32(floor_mod_i32(floor_div_i32(q, 2), 3))"},
    {SCORE, "q / 2", "q / 2.0", "to_f32(q) / 0x1p+1f"},
    {SCORE, "min(q, k, h)", "min(min(q, k), h)", "to_f32(min_i32(min_i32(q, k), h))"},
    {SCORE, "max(s, q)", "max(s, q)", "max_f32(s, to_f32(q))"},
    {SCORE, "abs(q - k) + abs(s)", "abs(q - k) + abs(s)", "to_f32(abs_i32(q - k)) + abs_f32(s)"},
    {SCORE, "exp(q) + exp2(s) + log(s) + sqrt(k)", "exp(q) + exp2(s) + log(s) + sqrt(k)",
     "exp_f32(to_f32(q)) + exp2_f32(s) + log_f32(s) + sqrt_f32(to_f32(k))"},
    {SCORE, "bit(q, k % 32)", "bit(q, k % 32)", "to_f32(bit_i32(q, floor_mod_i32(k, 32)))"},
    {SCORE, "floor(s / 2)", "floor(s / 2.0)", "to_f32(floor_i32(s / 0x1p+1f))"},
    {SCORE, "where(k <= q, s, 0)", "where(k <= q, s, 0.0)", "k <= q ? s : 0x0p+0f"},
    {SCORE, "s + where(on, s, k)", "s + where(on, s, k)", "s + (p.on ? s : to_f32(k))"},
    {SCORE, "where(true, q, 0.5) + where(true, k, 0.5)", "q * 1.0 + k", "to_f32(q) + to_f32(k)"},
    {SCORE, "cube[b, h, q % 4] * cap", "cube[b, h, q % 4] * cap", "param_cube(p, b, h, floor_mod_i32(q, 4)) * p.cap"},
    /* What could overflow wraps by a call; what positions can reach stays an operator. */
    {MASK, "q - k - 7 <= 100 and 2 * q >= k", "q - k - 7 <= 100 and 2 * q >= k", "(q - k - 7 <= 100) & (2 * q >= k)"},
    {MASK, "i * 1103515245 + 1 < 0", "i * 1103515245 + 1 < 0", "add_i32(mul_i32(i, 1103515245), 1) < 0"},
    {MASK, "q * k - doc[h] < -doc[k]", "q * k - doc[h] < -doc[k]",
     "sub_i32(mul_i32(q, k), param_doc(p, h)) < neg_i32(param_doc(p, k))"},
    {MASK, "(q // 64 + 1) * 64 < left + 1", "(q // 64 + 1) * 64 < left + 1",
     "(floor_div_i32(q, 64) + 1) * 64 < p.left + 1"},
    {SCORE, "group + heads_q + heads_kv", "14.0", "0x1.cp+3f"},
    {SCORE, "s + q % -1 + k // 1", "s + 0.0 + k", NULL},
    {SCORE, "s - 0.0 + 0.0", "s + 0.0", NULL},
    {SCORE, "-2147483648 + s", "-2147483648.0 + s", "-0x1p+31f + s"},
    {SCORE, "min(q, -2147483648)", "min(q, -2147483648)", "to_f32(min_i32(q, (-2147483647 - 1)))"},
    {MASK, "causal", "k <= q", "k <= q"},
    {MASK, "0<=q-k<64", "0 <= q - k and q - k < 64", "(0 <= q - k) & (q - k < 64)"},
    {MASK, "k<q or k==0 and h>1", "k < q or k == 0 and h > 1", "(k < q) | ((k == 0) & (h > 1))"},
    {MASK, "(k<q or k==0) and h!=1", "(k < q or k == 0) and h != 1", "((k < q) | (k == 0)) & (h != 1)"},
    {MASK, "not (k < q and h >= 1)", "k >= q or h < 1", "(k >= q) | (h < 1)"},
    {MASK, "not vis[k] or on", "not vis[k] or on", "(!param_vis(p, k)) | p.on"},
    {MASK, "not cap < 2", "not cap < 2.0", "!(p.cap < 0x1p+1f)"},
    {MASK, "where(h < 4, q - k < 64, causal)", "where(h < 4, q - k < 64, k <= q)", "h < 4 ? q - k < 64 : k <= q"},
    {MASK, "where(on, vis[k], vis[q]) and causal", "where(on, vis[k], vis[q]) and k <= q",
     "(p.on ? param_vis(p, k) : param_vis(p, q)) & (k <= q)"},
    {MASK, "window(64, 0)", "q - k <= 64 and k - q <= 0", NULL},
    {MASK, "window(-1, 0)", "k - q <= 0", NULL},
    {MASK, "window(3, -1)", "q - k <= 3", NULL},
    {MASK, "window(-1, -1)", "true", "true"},
    {MASK, "window(left, -1)", "left < 0 or q - k <= left", "(p.left < 0) | (q - k <= p.left)"},
    {MASK, "window(win[h], 2)", "(win[h] < 0 or q - k <= win[h]) and k - q <= 2", NULL},
    {MASK, "causal or prefix(win[b])", "k <= q or k < win[b]", NULL},
    {MASK, "same(doc)", "doc[q] == doc[k]", "param_doc(p, q) == param_doc(p, k)"},
    {MASK, "same(seg) and causal", "seg[b, q] == seg[b, k] and k <= q", NULL},
    {SHAPE, "hq", "8", "8"},
    {SHAPE, "hk * 2", "4", "4"},
    {SHAPE, "(len_k + 127) // 128", "(len_k + 127) // 128", NULL},
    {SHAPE, "b", "b", NULL},
    {CONSTANT, "1/sqrt(256)", "0.0625", "0x1p-4f"},
    {CONSTANT, "4096", "4096.0", NULL},
    {CONSTANT, "-3 // 2", "-2.0", NULL},
    {CONSTANT, "-3 % 2", "1.0", NULL},
    {CONSTANT, "7 / 2", "3.5", NULL},
    {CONSTANT, "floor(-2.5)", "-3.0", NULL},
    {CONSTANT, "where(1 < 2 <= 2, 3, 4)", "3.0", NULL},
    {CONSTANT, "2 + 3 * 4 - 10 // 4", "12.0", NULL},
    {CONSTANT, "- - 2", "2.0", NULL},
};

static void test_print(void **state) {
  (void)state;
  static const char *const names[EXPR_SYMBOL_COUNT] = {"q", "k", "i", "h", "hk", "b", "len_q", "len_k", "s"};
  for (size_t n = 0; n < sizeof print_cases / sizeof *print_cases; n++) {
    const print_case *c = &print_cases[n];
    arena *a = arena_new();
    text out = {0};
    const expr *e = parse(a, c->what, c->source);
    expr_print(e, params, &out);
    if (strcmp(out.bytes, c->printed) != 0)
      fail_msg("'%s' prints as '%s', not '%s'", c->source, out.bytes, c->printed);
    text_clear(&out);
    expr_print_cuda(e, params, names, NULL, &out);
    if (c->cuda && strcmp(out.bytes, c->cuda) != 0)
      fail_msg("'%s' prints as '%s', not '%s'", c->source, out.bytes, c->cuda);
    text_free(&out);
    arena_free(a);
  }
}

/* ---- equal meaning ---- */

/* Each row: texts with one normal form. */
static const char *const same_masks[][4] = {
    {"k <= q and q - k < left", "q - k < left and q >= k", "left > q - k and not (k > q)", "0 <= q - k < left"},
    {"causal", "k - q <= 0", "k < q + 1", "2 * k <= 2 * q + 1"},
    {"k // 64 == q // 64", "q // 64 == k // 64", "q // 64 - k // 64 == 0", "not q // 64 != k // 64"},
    {"abs(q - k) < 3", "abs(k - q) <= 2", "3 > abs(k - q)", "abs(2 * q - k - q) - 2 <= 0"},
    {"h * (q - k) < 5", "(k - q) * h > -5", "-(h * (k - q)) < 5", "h * (q - k) * 3 < 15"},
    {"k < min(q, left, 7)", "k < min(7, min(left, q))", "min(left, 7, q, 7) > k", "k + 1 <= min(q, left, 7)"},
    {"vis[k] and on", "on and vis[k]", "on and vis[k] and on", "not (not on or not vis[k])"},
    {"same(doc)", "doc[k] == doc[q]", "not doc[q] != doc[k]", "2 * doc[k] == 2 * doc[q + 0]"},
    {"window(4, 0)", "0 <= q - k <= 4", "causal and q <= k + 4", "window(4, -1) and window(-1, 0)"},
    {"2 * k == 2 * q + 1", "false", "k < k", "on and 1 > 2"},
    {"on or vis[k]", "vis[k] or on", "where(vis[k], q + k <= k + q, on)", "not where(vis[k], q + k > k + q, not on)"},
    {"cap > 2", "2 < cap", "cap > 2.0", "where(true, 2, 3) < cap"},
};

static void test_same_meaning(void **state) {
  (void)state;
  for (size_t row = 0; row < sizeof same_masks / sizeof *same_masks; row++) {
    arena *a = arena_new();
    const expr *first = expr_normalise(a, parse(a, MASK, same_masks[row][0]));
    for (int n = 1; n < 4; n++) {
      const expr *other = expr_normalise(a, parse(a, MASK, same_masks[row][n]));
      if (!expr_equal(first, other)) {
        text out = {0};
        expr_print(first, params, &out);
        text_puts(&out, " and ");
        expr_print(other, params, &out);
        fail_msg("'%s' and '%s' differ: %s", same_masks[row][0], same_masks[row][n], out.bytes);
      }
    }
    arena_free(a);
  }
}

/* ---- values ---- */

typedef struct value_case {
  const char *source;
  double value;
} value_case;

static const value_case constants[] = {
    {"1/sqrt(256)", 0.0625},
    {"0.1", 0.1},
    {"1e-3", 1e-3},
    {"123456789.125", 123456789.125},
    {"1/3", 1.0 / 3.0},
    {"7 // 2", 3},
    {"-7 // 2", -4},
    {"7 // -2", -4},
    {"-7 // -2", 3},
    {"7 % 3", 1},
    {"-7 % 3", 2},
    {"7 % -3", -2},
    {"-7 % -3", -1},
    {"-2147483648 % -1", 0},
    {"bit(5, 0)", 1},
    {"bit(5, 1)", 0},
    {"bit(-1, 31)", 1},
    {"bit(-1, 32)", 0},
    {"bit(-1, -1)", 0},
    {"floor(2.9)", 2},
    {"floor(-2.1)", -3},
    {"floor(1e20)", 2147483647},
    {"floor(3e9)", 2147483647},
    {"floor(-3e9)", -2147483648.0},
    {"floor(-1e20)", -2147483648.0},
    {"min(3, 1, 2)", 1},
    {"max(3, 1.5)", 3},
    {"abs(-3)", 3},
    {"where(not 1 < 2 or 3 == 3, 5, 6)", 5},
    {"-2 * -3", 6},
    {"10 - 3 - 2", 5},
    {"100 / 10 / 2", 5},
};

/* The functions by the C library, so that their values are those of C doubles. */
static void test_constants(void **state) {
  (void)state;
  arena *a = arena_new();
  diags d;
  double value;
  for (size_t n = 0; n < sizeof constants / sizeof *constants; n++) {
    const char *source = constants[n].source;
    diags_init(&d, a, "text", source, strlen(source));
    if (!expr_parse_constant(a, source, 0, true, &value, &d))
      fail_msg("'%s': %s", source, d.items[0].message);
    if (value != constants[n].value)
      fail_msg("'%s' is %.17g, not %.17g", source, value, constants[n].value);
  }
  diags_init(&d, a, "text", "", 0);
  assert_true(expr_parse_constant(a, "exp(1)", 0, true, &value, &d) && value == exp(1.0));
  assert_true(expr_parse_constant(a, "1/sqrt(80)", 0, true, &value, &d) && value == 1 / sqrt(80.0));
  assert_true(expr_parse_constant(a, "log(2) * tanh(0.5) + exp2(0.3)", 0, true, &value, &d) &&
              value == log(2.0) * tanh(0.5) + exp2(0.3));
  arena_free(a);
}

/* Zero divisors and wrap-around where they are not constant. */
static void test_running_values(void **state) {
  (void)state;
  static const struct {
    const char *source;
    int64_t q, k;
    double value;
  } cases[] = {
      {"q // k", 7, 0, 0},
      {"q % k", 7, 0, 0},
      {"q // k", INT32_MIN, -1, INT32_MIN},
      {"q % k", INT32_MIN, -1, 0},
      {"q + k", INT32_MAX, 1, INT32_MIN},
      {"q * k", 65536, 65536, 0},
      {"abs(q)", INT32_MIN, 0, INT32_MIN},
      {"-q", INT32_MIN, 0, INT32_MIN},
      {"q / k", 1, 4, 0.25},
      {"floor(log(q))", 0, 0, INT32_MIN},
      {"floor(sqrt(q))", -1, 0, 0},
      {"where(k < q, q - k, k - q)", 3, 5, 2},
  };
  arena *a = arena_new();
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    expr_env env = {.symbol = {[EXPR_Q] = cases[n].q, [EXPR_K] = cases[n].k}};
    double value = expr_eval(parse(a, SCORE, cases[n].source), &env);
    if (value != cases[n].value)
      fail_msg("'%s' at q %lld, k %lld is %g, not %g", cases[n].source, (long long)cases[n].q, (long long)cases[n].k,
               value, cases[n].value);
  }
  arena_free(a);
}

/* A locale with decimal commas, built for the occasion where the sources of locales are installed. */
static void test_locale(void **state) {
  (void)state;
  char folder[] = "/tmp/qkv_locale_XXXXXX", command[256];
  assert_non_null(mkdtemp(folder));
  snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 > /dev/null 2>&1", folder);
  bool built = system(command) == 0;
  setenv("LOCPATH", folder, 1);
  bool set = built && setlocale(LC_ALL, "de_DE.UTF-8") && strcmp(localeconv()->decimal_point, ",") == 0;
  if (set) {
    test_constants(state);
    test_print(state);
  }
  setlocale(LC_ALL, "C");
  unsetenv("LOCPATH");
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
  if (!set)
    skip();
}

/* ---- errors ---- */

typedef struct error_case {
  kind what;
  const char *source;
  diag_code code;
  int column; /* of the first diagnostic, from 1 */
  size_t length;
  const char *message, *hint; /* substrings; hint NULL: not checked */
} error_case;

static const error_case error_cases[] = {
    /* spellings of other languages */
    {MASK, "k <= q && h < 4", DIAG_EXPR_SYNTAX, 8, 2, "'&&' is not part", "write 'and'"},
    {MASK, "k <= q || h < 4", DIAG_EXPR_SYNTAX, 8, 2, "'||' is not part", "write 'or'"},
    {MASK, "!on", DIAG_EXPR_SYNTAX, 1, 1, "'!' is not part", "write 'not'"},
    {MASK, "~on", DIAG_EXPR_SYNTAX, 1, 1, "'~' is not part", "'not'"},
    {MASK, "on & vis[k]", DIAG_EXPR_SYNTAX, 4, 1, "'&' is not part", "'and'"},
    {MASK, "on | vis[k]", DIAG_EXPR_SYNTAX, 4, 1, "'|' is not part", "'or'"},
    {MASK, "k = q", DIAG_EXPR_SYNTAX, 3, 1, "'=' is not part", "'=='"},
    {MASK, "k === q", DIAG_EXPR_SYNTAX, 3, 3, "'===' is not part", "'=='"},
    {MASK, "k <> q", DIAG_EXPR_SYNTAX, 3, 2, "'<>' is not part", "'!='"},
    {MASK, "k => q", DIAG_EXPR_SYNTAX, 3, 2, "'=>' is not part", "'>='"},
    {MASK, "True", DIAG_EXPR_SYNTAX, 1, 4, "'True' is not part", "'true'"},
    {MASK, "k in doc", DIAG_EXPR_SYNTAX, 3, 2, "'in' is not part", "chained comparison"},
    {SCORE, "s ** 2", DIAG_EXPR_SYNTAX, 3, 2, "'**' is not part", "no power operator"},
    {SCORE, "s ^ 2", DIAG_EXPR_SYNTAX, 3, 1, "'^' is not part", "power"},
    {SCORE, "s << 2", DIAG_EXPR_SYNTAX, 3, 2, "'<<' is not part", "multiply"},
    {SCORE, "s if k < q else 0", DIAG_EXPR_SYNTAX, 3, 2, "'if' is not part", "where(condition, a, b)"},
    {SCORE, "k < q ? s : 0", DIAG_EXPR_SYNTAX, 7, 1, "'?' is not part", "where(condition, a, b)"},
    {SCORE, "slope[0:2]", DIAG_EXPR_SYNTAX, 8, 1, "':' is not part", "no slices"},
    {SCORE, "slope.x", DIAG_EXPR_SYNTAX, 6, 1, "'.' is not part", "attributes"},
    {SCORE, "s # bias", DIAG_EXPR_SYNTAX, 3, 1, "'#' is not part", "comments"},
    /* syntax */
    {SCORE, "", DIAG_EXPR_SYNTAX, 1, 0, "the expression is empty", NULL},
    {SCORE, "  ", DIAG_EXPR_SYNTAX, 3, 0, "the expression is empty", NULL},
    {SCORE, "s +", DIAG_EXPR_SYNTAX, 4, 0, "ends where a value is expected", NULL},
    {SCORE, "s + * 2", DIAG_EXPR_SYNTAX, 5, 1, "expected a value, found '*'", NULL},
    {SCORE, "+s", DIAG_EXPR_SYNTAX, 1, 1, "expected a value", "no unary '+'"},
    {SCORE, "(s + 2", DIAG_EXPR_SYNTAX, 1, 1, "never closed", NULL},
    {SCORE, "slope[h", DIAG_EXPR_SYNTAX, 6, 1, "never closed", NULL},
    {SCORE, "(s + 2]", DIAG_EXPR_SYNTAX, 7, 1, "expected ')' or an operator, found ']'", NULL},
    {SCORE, "s + 2)", DIAG_EXPR_SYNTAX, 6, 1, "expected an operator or the end", NULL},
    {SCORE, "s k", DIAG_EXPR_SYNTAX, 3, 1, "expected an operator or the end", NULL},
    {SCORE, "(s)[0]", DIAG_EXPR_SYNTAX, 4, 1, "expected an operator or the end", "only parameters can be indexed"},
    {SCORE, "min(s, )", DIAG_EXPR_SYNTAX, 8, 1, "expected a value", NULL},
    {SCORE, "2k", DIAG_EXPR_SYNTAX, 1, 2, "'2k' is not a number", "needs '*'"},
    {SCORE, "0x10", DIAG_EXPR_SYNTAX, 1, 4, "'0x10' is not a number", "decimal"},
    {SCORE, "1_000", DIAG_EXPR_SYNTAX, 1, 5, "is not a number", NULL},
    {SCORE, "007", DIAG_EXPR_SYNTAX, 1, 3, "may not start with 0", NULL},
    {SCORE, "s $ 2", DIAG_EXPR_SYNTAX, 3, 1, "unexpected character '$'", NULL},
    {SCORE, "s × 2", DIAG_EXPR_SYNTAX, 3, 2, "unexpected character '×'", NULL},
    {SCORE, "s \x01", DIAG_EXPR_SYNTAX, 3, 1, "unexpected byte 0x01", NULL},
    /* names */
    {SCORE, "s + slop[h]", DIAG_EXPR_NAME, 5, 4, "unknown name 'slop'", "did you mean 'slope'?"},
    {MASK, "causl", DIAG_EXPR_NAME, 1, 5, "unknown name 'causl'", "did you mean 'causal'?"},
    {MASK, "k < len_kk", DIAG_EXPR_NAME, 5, 6, "unknown name 'len_kk'", "did you mean 'len_k'?"},
    {MASK, "windw(3, 0)", DIAG_EXPR_NAME, 1, 5, "unknown function 'windw'", "did you mean 'window'?"},
    {SCORE, "s * sqr(2)", DIAG_EXPR_NAME, 5, 3, "unknown function 'sqr'", "did you mean 'sqrt'?"},
    {SCORE, "s * temperature", DIAG_EXPR_NAME, 5, 11, "unknown name", "declared under params:"},
    {SCORE, "s + hq", DIAG_EXPR_NAME, 5, 2, "'hq' is not available here", "heads_q"},
    {MASK, "s > 0", DIAG_EXPR_NAME, 1, 1, "a mask may not use s: which keys are visible must not depend on scores",
     "score:"},
    {MASK, "causal and s < 3", DIAG_EXPR_NAME, 12, 1, "a mask may not use s", NULL},
    {SHAPE, "q", DIAG_EXPR_NAME, 1, 1, "'q' is not available in a shape", "hq, hk, b, len_q, len_k"},
    {SHAPE, "heads_q", DIAG_EXPR_NAME, 1, 7, "not available in a shape", NULL},
    {SHAPE, "len_x", DIAG_EXPR_NAME, 1, 5, "unknown name 'len_x'", "did you mean 'len_"},
    {SHAPE, "causal", DIAG_EXPR_NAME, 1, 6, "not available in a shape", NULL},
    {CONSTANT, "1/sqrt(q)", DIAG_EXPR_NAME, 8, 1, "'q' is not available in a constant expression", NULL},
    {CONSTANT, "1/sqrt(dim)", DIAG_EXPR_NAME, 8, 3, "unknown name 'dim'", NULL},
    {CONSTANT, "window(1, 2)", DIAG_EXPR_NAME, 1, 6, "unknown function 'window'", NULL},
    /* types */
    {MASK, "k", DIAG_EXPR_TYPE, 1, 1, "a mask must be a condition, this is an int", "k <= q"},
    {MASK, "cap * 2.0", DIAG_EXPR_TYPE, 1, 9, "a mask must be a condition, this is a float", NULL},
    {SCORE, "k <= q", DIAG_EXPR_TYPE, 1, 6, "the expression must be float, not bool", "where(condition, 1, 0)"},
    {SHAPE, "len_k / 2", DIAG_EXPR_TYPE, 1, 9, "the expression must be int, not float", "floor"},
    {MASK, "(k < q) == on", DIAG_EXPR_TYPE, 1, 7, "'==' needs numbers, this is a bool", "and, or, not"},
    {MASK, "k < q < on", DIAG_EXPR_TYPE, 9, 2, "'<' needs numbers", NULL},
    {SCORE, "s + (k < q)", DIAG_EXPR_TYPE, 5, 7, "'+' needs numbers, this is a bool", "where"},
    {SCORE, "-on", DIAG_EXPR_TYPE, 2, 2, "'-' needs numbers", NULL},
    {SCORE, "exp(on)", DIAG_EXPR_TYPE, 5, 2, "'exp' needs numbers", NULL},
    {MASK, "k and on", DIAG_EXPR_TYPE, 1, 1, "an operand of 'and' must be bool, not int", "compare it"},
    {MASK, "on or cap", DIAG_EXPR_TYPE, 7, 3, "an operand of 'or' must be bool, not float", NULL},
    {MASK, "not k", DIAG_EXPR_TYPE, 5, 1, "the operand of 'not' must be bool, not int", NULL},
    {SCORE, "bit(s, 2)", DIAG_EXPR_TYPE, 5, 1, "an argument of bit must be int, not float", "floor(x)"},
    {SCORE, "s // 2", DIAG_EXPR_TYPE, 1, 1, "'//' needs ints, this is a float", "floor(a / b)"},
    {SCORE, "q % 2.0", DIAG_EXPR_TYPE, 5, 3, "'%' needs ints, this is a float", NULL},
    {SCORE, "where(k, s, 0)", DIAG_EXPR_TYPE, 7, 1, "the condition of where() must be bool", NULL},
    {SCORE, "where(on, s, on)", DIAG_EXPR_TYPE, 14, 2, "both values of where() must be of one type", NULL},
    {SCORE, "where(on, s)", DIAG_EXPR_TYPE, 1, 12, "where() takes 3 arguments, here are 2", NULL},
    {SCORE, "sqrt()", DIAG_EXPR_TYPE, 1, 6, "sqrt() takes 1 argument, here are 0", NULL},
    {SCORE, "min(s)", DIAG_EXPR_TYPE, 1, 6, "min() takes 2 to 8 arguments, here are 1", NULL},
    {SCORE, "exp + 1", DIAG_EXPR_TYPE, 1, 3, "'exp' is a function and needs arguments", "exp(...)"},
    {MASK, "window", DIAG_EXPR_TYPE, 1, 6, "needs arguments", "window(left, right)"},
    {MASK, "causal()", DIAG_EXPR_TYPE, 1, 8, "used without parentheses", NULL},
    {MASK, "window(3)", DIAG_EXPR_TYPE, 1, 9, "window() takes 2 arguments, here is 1", NULL},
    {MASK, "window(1.5, 0)", DIAG_EXPR_TYPE, 8, 3, "a window's distance must be int", NULL},
    {MASK, "prefix(cap)", DIAG_EXPR_TYPE, 8, 3, "the length of a prefix must be int", NULL},
    {MASK, "same(k)", DIAG_EXPR_TYPE, 6, 1, "same() takes the name of a declared tensor", "same(doc)"},
    {MASK, "same(vis)", DIAG_EXPR_TYPE, 6, 3, "'vis' holds booleans", NULL},
    {SCORE, "slope(h)", DIAG_EXPR_TYPE, 1, 8, "'slope' is a parameter, not a function", "slope[...]"},
    /* indices */
    {SCORE, "s + slope", DIAG_EXPR_INDEX, 5, 5, "'slope' is a tensor and needs 1 index", NULL},
    {MASK, "seg == 2", DIAG_EXPR_INDEX, 1, 3, "needs 2 indices", NULL},
    {MASK, "seg[k] == 2", DIAG_EXPR_INDEX, 1, 6, "'seg' has 2 dimensions, here is 1 index", NULL},
    {SCORE, "slope[h, k]", DIAG_EXPR_INDEX, 1, 11, "'slope' has 1 dimension, here are 2 indices", NULL},
    {SCORE, "cap[h]", DIAG_EXPR_INDEX, 1, 6, "'cap' is a scalar and takes no index", NULL},
    {SCORE, "q[h]", DIAG_EXPR_INDEX, 1, 4, "'q' is a number and cannot be indexed", NULL},
    {SCORE, "slope[1.5]", DIAG_EXPR_TYPE, 7, 3, "an index must be int, not float", "floor"},
    {SCORE, "slope[s]", DIAG_EXPR_TYPE, 7, 1, "an index must be int, not float", NULL},
    {SCORE, "slope[k < q]", DIAG_EXPR_TYPE, 7, 5, "an index must be int, not bool", NULL},
    {MASK, "same(left)", DIAG_EXPR_INDEX, 6, 4, "'left' has 0 dimensions", NULL},
    /* values */
    {SCORE, "1 / 0", DIAG_EXPR_VALUE, 5, 1, "division by zero", NULL},
    {SCORE, "s / 0.0", DIAG_EXPR_VALUE, 5, 3, "division by zero", NULL},
    {SCORE, "q // (2 - 2)", DIAG_EXPR_VALUE, 6, 7, "division by zero", NULL},
    {SCORE, "q % 0", DIAG_EXPR_VALUE, 5, 1, "division by zero", NULL},
    {SCORE, "s + log(0)", DIAG_EXPR_VALUE, 5, 6, "not a finite number", NULL},
    {SCORE, "sqrt(-1)", DIAG_EXPR_VALUE, 1, 8, "not a finite number", NULL},
    {SCORE, "s + 1e39", DIAG_EXPR_VALUE, 5, 4, "too large for a 32-bit float", NULL},
    {SCORE, "1e999", DIAG_EXPR_VALUE, 1, 5, "too large for a float", NULL},
    {SCORE, "2147483648", DIAG_EXPR_VALUE, 1, 10, "too large for a 32-bit integer", NULL},
    {SCORE, "99999999999999999999999", DIAG_EXPR_VALUE, 1, 23, "too large for a 32-bit integer", NULL},
    {SCORE, "2147483647 + 1", DIAG_EXPR_VALUE, 1, 14, "does not fit in a 32-bit integer", NULL},
    {SCORE, "65536 * 65536", DIAG_EXPR_VALUE, 1, 13, "does not fit in a 32-bit integer", NULL},
    {SCORE, "-2147483648 // -1", DIAG_EXPR_VALUE, 1, 17, "does not fit in a 32-bit integer", NULL},
    {SCORE, "abs(-2147483648)", DIAG_EXPR_VALUE, 1, 16, "does not fit in a 32-bit integer", NULL},
    {MASK, "window(-2, 0)", DIAG_EXPR_VALUE, 8, 2, "0 or more, or -1 for no limit", NULL},
};

static void test_errors(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof error_cases / sizeof *error_cases; n++) {
    const error_case *c = &error_cases[n];
    arena *a = arena_new();
    diags d;
    int line, column;
    if (parse_kind(a, c->what, c->source, &d))
      fail_msg("'%s' is accepted", c->source);
    assert_true(d.count > 0);
    const diag *first = &d.items[0];
    diags_position(&d, first->at.offset, &line, &column);
    if (!strstr(first->message, c->message))
      fail_msg("'%s': '%s', not '%s'", c->source, first->message, c->message);
    if (first->code != c->code || column != c->column || first->at.length != c->length)
      fail_msg("'%s': code %d, column %d, length %zu; not %d, %d, %zu", c->source, first->code, column,
               first->at.length, c->code, c->column, c->length);
    if (c->hint && (!first->hint || !strstr(first->hint, c->hint)))
      fail_msg("'%s': hint '%s', not '%s'", c->source, first->hint ? first->hint : "", c->hint);
    arena_free(a);
  }
}

/* One run reports every name and type that is wrong, each once. */
static void test_several_errors(void **state) {
  (void)state;
  arena *a = arena_new();
  diags d;
  assert_null(parse_kind(a, SCORE, "x + slope * (q[1] + where(k, 1, on)) + zeta(y < z < y)", &d));
  assert_int_equal(d.count, 9);
  assert_null(parse_kind(a, MASK, "0 < nothing < 5", &d));
  assert_int_equal(d.count, 1);
  arena_free(a);
}

/* A text that does not stand in the file as it is (YAML escapes, folded lines): errors point at its start. */
static void test_not_verbatim(void **state) {
  (void)state;
  arena *a = arena_new();
  const expr_scope scope = {.symbols = EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_K)};
  diags d;
  diags_init(&d, a, "text", "mask: 'k <= qq'", 15);
  assert_null(expr_parse(a, "k <= qq", 6, false, &scope, EXPR_BOOL, &d));
  assert_int_equal(d.items[0].at.offset, 6);
  assert_int_equal(d.items[0].at.length, 0);
  diags_init(&d, a, "text", "mask: 'k <= qq'", 15);
  assert_null(expr_parse(a, "k <= qq", 7, true, &scope, EXPR_BOOL, &d));
  assert_int_equal(d.items[0].at.offset, 12);
  assert_int_equal(d.items[0].at.length, 2);
  arena_free(a);
}

/* Positions stay with the nodes, for diagnostics of later passes. */
static void test_spans(void **state) {
  (void)state;
  arena *a = arena_new();
  const expr *e = parse(a, SCORE, "s + slope[h] * (k - q)");
  assert_int_equal(e->at.offset, 0);
  assert_int_equal(e->at.length, 22);
  assert_int_equal(e->args[1]->args[0]->at.offset, 4);
  assert_int_equal(e->args[1]->args[0]->at.length, 8);
  arena_free(a);
}

/* ---- limits ---- */

static char *repeat(const char *head, const char *piece, int count, const char *tail) {
  size_t size = strlen(head) + strlen(piece) * (size_t)count + strlen(tail) + 1;
  char *out = malloc(size), *end = out;
  assert_non_null(out);
  end += strlen(strcpy(end, head));
  for (int n = 0; n < count; n++)
    end += strlen(strcpy(end, piece));
  strcpy(end, tail);
  return out;
}

static void check_refused(kind what, char *source) {
  arena *a = arena_new();
  diags d;
  if (parse_kind(a, what, source, &d))
    fail_msg("accepted: %.60s...", source);
  assert_true(d.count >= 1);
  assert_int_equal(d.items[0].code, DIAG_EXPR_VALUE);
  arena_free(a);
  free(source);
}

static void check_accepted(kind what, char *source) {
  arena *a = arena_new();
  expr_normalise(a, parse(a, what, source));
  arena_free(a);
  free(source);
}

static void test_limits(void **state) {
  (void)state;
  check_accepted(SCORE, repeat("s", " + k * s", 190, ""));
  check_refused(SCORE, repeat("s", " + s", 250, ""));
  check_refused(SCORE, repeat("s", " + s", 100000, ""));
  check_refused(SCORE, repeat("", "(", 100000, "s"));
  check_refused(SCORE, repeat("", "- ", 100000, "s"));
  check_refused(MASK, repeat("", "not ", 100000, "on"));
  check_refused(SCORE, repeat("", "abs(", 100000, "s"));
  check_refused(SCORE, repeat("", "slope[", 100000, "s"));
  check_refused(MASK, repeat("0 ", "< q ", 100000, ""));
  check_accepted(MASK, repeat("on", " and vis[k]", 190, ""));
  /* A chained comparison uses its middle operand twice: nested, that doubles at every level. */
  char *source = repeat("", "where(0 < ", 60, "q");
  char *nested = repeat(source, " < 9, 1, 0)", 60, " == 1");
  free(source);
  check_refused(MASK, nested);
  source = repeat("", "where(window(", 60, "q");
  nested = repeat(source, ", 3), 1, 0)", 60, " == 1");
  free(source);
  check_refused(MASK, nested);
}

/* Running out of memory comes back through the arena, wherever it happens. */
static int allocations_left;
static void *failing_malloc(size_t size) {
  return allocations_left-- > 0 ? malloc(size) : NULL;
}

static void test_out_of_memory(void **state) {
  (void)state;
  void *(*saved)(size_t) = arena_malloc;
  const char *source = "causal and (q - k < win[h] or k < min(q, left, 8)) and same(seg) or vis[k] and k * h == 3";
  volatile int failures = 0;
  volatile bool done = false;
  arena_malloc = failing_malloc;
  for (volatile int limit = 0; !done && limit < 1000; limit++) {
    allocations_left = limit;
    arena *volatile a = arena_new();
    if (a && ARENA_TRY(a)) {
      diags d;
      const expr *e = parse_kind(a, MASK, source, &d);
      for (int n = 0; n < 20; n++) /* enough work for several blocks */
        e = expr_normalise(a, e);
      done = true;
    } else {
      failures++;
    }
    arena_free(a);
  }
  arena_malloc = saved;
  assert_true(done);
  assert_true(failures >= 2);
}

/* A conjunction of `count` leaves, as flat as two operands a node allow. */
static void put_conjunction(text *out, int count, const char *leaf) {
  if (count == 1) {
    text_puts(out, leaf);
    return;
  }
  text_puts(out, "(");
  put_conjunction(out, count / 2, leaf);
  text_puts(out, " and ");
  put_conjunction(out, count - count / 2, leaf);
  text_puts(out, ")");
}

/* Wherever the count of nodes crosses its limit, also where sugar and comparisons step over it, somebody says so. */
static void test_every_crossing_of_the_node_limit(void **state) {
  (void)state;
  static const char *const leaves[] = {"k < q", "causal", "window(q, k)", "0 <= k < q", "prefix(q)", "same(doc)"};
  for (size_t leaf = 0; leaf < sizeof leaves / sizeof *leaves; leaf++)
    for (int nots = 0; nots < 16; nots++) {
      text source = {0};
      for (int n = 0; n < nots; n++)
        text_puts(&source, "not ");
      text_puts(&source, "on and ");
      put_conjunction(&source, 700, leaves[leaf]);
      check_refused(MASK, source.bytes); /* frees it */
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_print),
      cmocka_unit_test(test_same_meaning),
      cmocka_unit_test(test_constants),
      cmocka_unit_test(test_running_values),
      cmocka_unit_test(test_locale),
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_several_errors),
      cmocka_unit_test(test_not_verbatim),
      cmocka_unit_test(test_spans),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_every_crossing_of_the_node_limit),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
