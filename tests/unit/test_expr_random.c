/* Random expressions: printing, folding and normal forms never change what an expression means, and the printed CUDA
 * text computes what the evaluator does. */
#include <ctype.h>
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "test_expr_random.h"

static const char *printed(const expr *e) {
  static text out;
  text_clear(&out);
  expr_print(e, random_params, &out);
  return out.bytes;
}

static bool same_value(double x, double y) {
  return (x == y && !signbit(x) == !signbit(y)) || (isnan(x) && isnan(y));
}

static void check_same(uint64_t seed, const char *what, const expr *before, const expr *after, const expr_env *env) {
  double x = expr_eval(before, env), y = expr_eval(after, env);
  if (same_value(x, y))
    return;
  print_error("seed %llu: %s changed %.17g to %.17g: %s\n", (unsigned long long)seed, what, x, y, printed(before));
  fail_msg("became %s", printed(after));
}

enum { ROUNDS = 6000, ENVS = 6 };

static void run_values(bool comparisons, bool wide) {
  const random_options options = {.wide = wide, .comparisons = comparisons};
  int compared = 0;
  for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
    arena *a = arena_new();
    random_state = seed;
    const expr *e = random_expr(a, &options, (expr_type)random_below(3), 1 + random_below(6));
    const expr *folded = expr_fold(a, e), *normal = expr_normalise(a, folded);
    const expr *shifted =
        expr_substitute(a, folded, EXPR_I, expr_make(a, EXPR_ADD, expr_sym(a, EXPR_Q), expr_int(a, 3), NULL));
    for (int n = 0; n < ENVS; n++) {
      expr_env env = random_env(wide);
      check_same(seed, "fold", e, folded, &env);
      if (!comparisons || is_tame(e, &env)) {
        check_same(seed, "normalise", folded, normal, &env);
        compared++;
      }
      env.symbol[EXPR_I] = expr_wrap(env.symbol[EXPR_Q] + 3);
      check_same(seed, "substitute", folded, shifted, &env);
    }
    if (!expr_equal(expr_fold(a, folded), folded))
      fail_msg("seed %llu: folding twice differs: %s", (unsigned long long)seed, printed(folded));
    const expr *again = expr_normalise(a, normal);
    if (!expr_equal(again, normal)) {
      print_error("seed %llu: normal form of %s\n", (unsigned long long)seed, printed(normal));
      fail_msg("is %s", printed(again));
    }
    arena_free(a);
  }
  assert_true(compared > ROUNDS * ENVS / 4);
}

static void test_values_wide(void **state) {
  (void)state;
  run_values(false, true);
}

static void test_values_with_comparisons(void **state) {
  (void)state;
  run_values(true, false);
}

/* e with the operands of what commutes swapped at random, sums reassociated and comparisons turned round. */
static const expr *shuffle(arena *a, const expr *e) {
  static const expr_op mirrored[EXPR_OP_COUNT] = {[EXPR_LT] = EXPR_GT, [EXPR_LE] = EXPR_GE, [EXPR_GT] = EXPR_LT,
                                                  [EXPR_GE] = EXPR_LE, [EXPR_EQ] = EXPR_EQ, [EXPR_NE] = EXPR_NE};
  if (e->nargs == 0 || e->op == EXPR_PARAM)
    return e;
  const expr *x = shuffle(a, e->args[0]);
  const expr *y = e->nargs > 1 ? shuffle(a, e->args[1]) : NULL;
  const expr *z = e->nargs > 2 ? shuffle(a, e->args[2]) : NULL;
  bool swap = random_below(2);
  switch (e->op) {
  case EXPR_LT:
  case EXPR_LE:
  case EXPR_GT:
  case EXPR_GE:
  case EXPR_EQ:
  case EXPR_NE:
    return swap ? raw(a, mirrored[e->op], e->type, y, x, NULL) : raw(a, e->op, e->type, x, y, NULL);
  case EXPR_SUB:
    if (e->type == EXPR_INT && swap)
      return raw(a, EXPR_NEG, EXPR_INT, raw(a, EXPR_SUB, EXPR_INT, y, x, NULL), NULL, NULL);
    return raw(a, EXPR_SUB, e->type, x, y, NULL);
  case EXPR_ADD:
  case EXPR_MUL:
  case EXPR_AND:
  case EXPR_OR:
  case EXPR_MIN:
  case EXPR_MAX:
    if (e->type != EXPR_FLOAT && y->op == e->op && random_below(2))
      return raw(a, e->op, e->type, raw(a, e->op, e->type, x, y->args[0], NULL), y->args[1], NULL);
    return swap ? raw(a, e->op, e->type, y, x, NULL) : raw(a, e->op, e->type, x, y, NULL);
  default:
    return raw(a, e->op, e->type, x, y, z);
  }
}

static void test_order_does_not_matter(void **state) {
  (void)state;
  const random_options options = {.comparisons = true};
  for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
    arena *a = arena_new();
    random_state = seed;
    const expr *e = expr_fold(a, random_expr(a, &options, (expr_type)random_below(3), 1 + random_below(6)));
    const expr *other = shuffle(a, e);
    const expr *x = expr_normalise(a, e), *y = expr_normalise(a, expr_fold(a, other));
    if (!expr_equal(x, y)) {
      print_error("seed %llu: %s\n", (unsigned long long)seed, printed(e));
      print_error("  is %s\n", printed(x));
      print_error("  but %s\n", printed(other));
      fail_msg("is %s", printed(y));
    }
    arena_free(a);
  }
}

static void check_round_trip(arena *a, uint64_t seed, const expr *e, int *parsed) {
  const expr_scope scope = random_scope();
  const char *source = printed(e);
  diags d;
  diags_init(&d, a, "random", source, strlen(source));
  const expr *back = expr_parse(a, source, 0, true, &scope, e->type, &d);
  if (!back) {
    /* Constants without a proper value, and sizes beyond the limit, are refused; nothing else may be. */
    if (d.count > 0 && d.items[0].code == DIAG_EXPR_VALUE)
      return;
    fail_msg("seed %llu: refused: %s: %s", (unsigned long long)seed, source,
             d.count ? d.items[0].message : "no reason");
  }
  ++*parsed;
  if (!expr_equal(back, e)) {
    print_error("seed %llu: printed %s\n", (unsigned long long)seed, source);
    fail_msg("parsed %s", printed(back));
  }
}

static void test_round_trip(void **state) {
  (void)state;
  int parsed = 0;
  for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
    const random_options options = {.wide = seed % 2, .comparisons = true};
    arena *a = arena_new();
    random_state = seed;
    const expr *e = expr_fold(a, random_expr(a, &options, (expr_type)random_below(3), 1 + random_below(6)));
    check_round_trip(a, seed, e, &parsed);
    check_round_trip(a, seed, expr_normalise(a, e), &parsed);
    arena_free(a);
  }
  assert_true(parsed > ROUNDS * 3 / 2);
}

/* Random bytes and random token soup: a result or a diagnostic, never a crash. */
static void test_garbage(void **state) {
  (void)state;
  static const char *const pieces[] = {"q",    "k",      " ",     "s",   "(", ")",      "[",      "]",   ",",     "<",
                                       "<=",   "==",     "-",     "*",   "/", "//",     "%",      "1",   "2.5",   "or",
                                       "and",  "not",    "where", "min", "+", "causal", "window", "doc", "slope", "vis",
                                       "same", "prefix", "1e9",   "0",   "é", "=",      "&&",     "x"};
  const expr_scope scope = random_scope();
  for (uint64_t seed = 1; seed <= 20000; seed++) {
    char source[256] = "";
    size_t length = 0;
    random_state = seed;
    int count = random_below(24);
    for (int n = 0; n < count; n++) {
      const char *piece = pieces[random_below((int)(sizeof pieces / sizeof *pieces))];
      char byte[2] = {(char)random_between(1, 255), 0};
      if (random_below(50) == 0)
        piece = byte;
      length += strlen(strcpy(source + length, piece));
      if (random_below(2))
        source[length++] = ' ', source[length] = 0;
    }
    arena *a = arena_new();
    diags d;
    diags_init(&d, a, "random", source, length);
    const expr *e = expr_parse(a, source, 0, true, &scope, (expr_type)random_below(3), &d);
    if (!e != (d.count > 0))
      fail_msg("seed %llu: %s with %d diagnostics: '%s'", (unsigned long long)seed, e ? "parsed" : "refused", d.count,
               source);
    for (int n = 0; n < d.count; n++)
      if (d.items[n].at.offset + d.items[n].at.length > length)
        fail_msg("seed %llu: a diagnostic points past the end of '%s'", (unsigned long long)seed, source);
    arena_free(a);
  }
}

/* ---- the CUDA text ---- */

enum { FUNCTIONS = 400 };

/* The names the printed text uses. Floats are doubles here, so that values must agree to the bit: what is checked is
 * the text, not its rounding. */
static const char c_prelude[] =
    "#include <math.h>\n"
    "#include <stdbool.h>\n"
    "typedef double (*reader)(int, int, int);\n"
    "typedef struct { int w; double cap; int on; reader read; } params;\n"
    "static double to_f32(int x) { return x; }\n"
    "static int add_i32(int a, int b) { return (int)((unsigned)a + (unsigned)b); }\n"
    "static int sub_i32(int a, int b) { return (int)((unsigned)a - (unsigned)b); }\n"
    "static int mul_i32(int a, int b) { return (int)((unsigned)a * (unsigned)b); }\n"
    "static int neg_i32(int a) { return (int)(0u - (unsigned)a); }\n"
    "static int floor_div_i32(int a, int b) { if (!b) return 0; if (b == -1) return neg_i32(a);\n"
    "  int d = a / b; return d - (d * b != a && (a < 0) != (b < 0)); }\n"
    "static int floor_mod_i32(int a, int b) { return b == 0 || b == -1 ? 0 : sub_i32(a, mul_i32(floor_div_i32(a, b), "
    "b)); }\n"
    "static int bit_i32(int a, int n) { return (unsigned)n < 32u ? (int)((unsigned)a >> n & 1u) : 0; }\n"
    "static int min_i32(int a, int b) { return a < b ? a : b; }\n"
    "static int max_i32(int a, int b) { return a > b ? a : b; }\n"
    "static int abs_i32(int a) { return a < 0 ? neg_i32(a) : a; }\n"
    "static double min_f32(double a, double b) { return a == b ? (signbit(a) ? a : b) : fmin(a, b); }\n"
    "static double max_f32(double a, double b) { return a == b ? (signbit(a) ? b : a) : fmax(a, b); }\n"
    "static double abs_f32(double a) { return fabs(a); }\n"
    "static double exp_f32(double a) { return exp(a); }\n"
    "static double exp2_f32(double a) { return exp2(a); }\n"
    "static double log_f32(double a) { return log(a); }\n"
    "static double tanh_f32(double a) { return tanh(a); }\n"
    "static double sqrt_f32(double a) { return sqrt(a); }\n"
    "static int floor_i32(double a) { if (isnan(a)) return 0; a = floor(a);\n"
    "  return a >= 2147483647.0 ? 2147483647 : a <= -2147483648.0 ? -2147483647 - 1 : (int)a; }\n"
    "static int param_doc(params p, int i) { return (int)p.read(3, i, 0); }\n"
    "static double param_slope(params p, int i) { return p.read(4, i, 0); }\n"
    "static bool param_vis(params p, int i, int j) { return p.read(5, i, j) != 0; }\n"
    "static int param_win(params p, int i) { return (int)p.read(6, i, 0); }\n";

typedef double (*c_reader)(int, int, int);
typedef struct c_params {
  int w;
  double cap;
  int on;
  c_reader read;
} c_params;
typedef double (*c_function)(c_params, int, int, int, int, int, int, int, int, double);

static double c_read(int param, int i, int j) {
  const int64_t index[EXPR_MAX_RANK] = {i, j};
  return random_read(&random_salt, param, index);
}

/* e with float constants rounded to f32, as the text has them. Those beyond f32, which the parser refuses, become 1. */
static const expr *round_constants(arena *a, const expr *e) {
  if (e->op == EXPR_CONST && e->type == EXPR_FLOAT)
    return expr_float(a, isfinite((float)e->real) ? (double)(float)e->real : 1.0);
  if (e->op == EXPR_CONST)
    return e;
  expr *copy = expr_node(a, e->op, e->type, e->at);
  *copy = *e;
  for (int n = 0; n < e->nargs; n++)
    copy->args[n] = round_constants(a, e->args[n]);
  return copy;
}

static bool write_source(const char *path, const text *source) {
  FILE *f = fopen(path, "w");
  bool good = f && fwrite(source->bytes, 1, source->size, f) == source->size;
  return f && fclose(f) == 0 && good;
}

/* Float literals become doubles: the f at the end of an exponent goes. */
static void widen_literals(text *source, size_t from) {
  size_t to = from;
  for (size_t n = from; n < source->size; n++) {
    bool suffix = source->bytes[n] == 'f' && n > from && isdigit((unsigned char)source->bytes[n - 1]) &&
                  !isalnum((unsigned char)source->bytes[n + 1]);
    if (!suffix)
      source->bytes[to++] = source->bytes[n];
  }
  source->size = to;
  source->bytes[to] = 0;
}

/* Positions as large as the printer allows for, in `far` environments. */
static expr_env position_env(bool far) {
  expr_env env = random_env(false);
  for (int n = 0; n < EXPR_S; n++) {
    if (far && random_below(2))
      env.symbol[n] = random_between(0, 1 << 29);
    bool may_be_negative = n == EXPR_Q || n == EXPR_I;
    if (may_be_negative ? random_below(2) : env.symbol[n] < 0)
      env.symbol[n] = -env.symbol[n];
  }
  return env;
}

static void call_and_compare(int n, const expr *e, c_function function) {
  for (int round = 0; round < ENVS; round++) {
    expr_env env = position_env(round % 2);
    const int64_t none[EXPR_MAX_RANK] = {0};
    c_params p = {(int)random_read(&random_salt, PARAM_W, none), random_read(&random_salt, PARAM_CAP, none),
                  (int)random_read(&random_salt, PARAM_ON, none), c_read};
    int v[EXPR_S];
    for (int m = 0; m < EXPR_S; m++)
      v[m] = (int)env.symbol[m];
    double right = expr_eval(e, &env), got = function(p, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], env.s);
    if (same_value(right, got))
      continue;
    text out = {0};
    static const char *const names[EXPR_SYMBOL_COUNT] = {"q", "k", "i", "h", "hk", "b", "len_q", "len_k", "s"};
    expr_print_cuda(e, random_params, names, NULL, &out);
    print_error("expression %d: %s\n", n, printed(e));
    fail_msg("%s is %.17g, should be %.17g", out.bytes, got, right);
  }
}

static int running; /* number of the expression */

/* The text overflowed, which C++ leaves undefined; cmocka's handler then fails the test. */
static void report_trap(int number) {
  print_error("expression %d overflows an int\n", running);
  signal(number, SIG_DFL);
  raise(number);
}

static void test_cuda_text(void **state) {
  (void)state;
  static const char *const names[EXPR_SYMBOL_COUNT] = {"q", "k", "i", "h", "hk", "b", "len_q", "len_k", "s"};
  char folder[] = "/tmp/qkv_expr_XXXXXX", c_path[64], so_path[64], command[320];
  if (system("gcc --version > /dev/null 2>&1") != 0)
    skip();
  arena *a = arena_new();
  text source = {0};
  const expr *list[FUNCTIONS];
  text_puts(&source, c_prelude);
  for (int n = 0; n < FUNCTIONS; n++) {
    const random_options options = {.wide = n % 2, .comparisons = true};
    random_state = (uint64_t)n + 1;
    const expr *e = random_expr(a, &options, (expr_type)random_below(3), 1 + random_below(7));
    e = n % 3 ? expr_fold(a, e) : expr_normalise(a, expr_fold(a, e));
    list[n] = round_constants(a, e);
    text_printf(&source,
                "double f%d(params p, int q, int k, int i, int h, int hk, int b, int len_q, int len_k, double s) {\n",
                n);
    text_puts(&source,
              "  (void)p, (void)q, (void)k, (void)i, (void)h, (void)hk, (void)b, (void)len_q, (void)len_k, (void)s;\n");
    text_puts(&source, "  return ");
    size_t from = source.size;
    expr_print_cuda(list[n], random_params, names, NULL, &source);
    widen_literals(&source, from);
    text_puts(&source, ";\n}\n");
  }
  assert_non_null(mkdtemp(folder));
  snprintf(c_path, sizeof c_path, "%s/text.c", folder);
  snprintf(so_path, sizeof so_path, "%s/text.so", folder);
  assert_true(write_source(c_path, &source));
  snprintf(command, sizeof command,
           "gcc -std=gnu11 -O0 -fsanitize=signed-integer-overflow -fsanitize-undefined-trap-on-error -ffp-contract=off "
           "-Werror=parentheses -shared -fPIC %s -o %s -lm",
           c_path, so_path);
  if (system(command) != 0)
    fail_msg("gcc refuses the printed text, kept in %s", c_path);
  void *library = dlopen(so_path, RTLD_NOW);
  assert_non_null(library);
  void (*before)(int) = signal(SIGILL, report_trap);
  for (int n = 0; n < FUNCTIONS; n++) {
    char name[16];
    c_function function;
    snprintf(name, sizeof name, "f%d", n);
    void *symbol = dlsym(library, name);
    assert_non_null(symbol);
    memcpy(&function, &symbol, sizeof function);
    running = n;
    call_and_compare(n, list[n], function);
  }
  signal(SIGILL, before);
  dlclose(library);
  remove(c_path);
  remove(so_path);
  rmdir(folder);
  text_free(&source);
  arena_free(a);
}

/* Float literals are exact for every f32. */
static void test_float_literals(void **state) {
  (void)state;
  const char *const symbols[EXPR_SYMBOL_COUNT] = {0};
  text out = {0};
  arena *a = arena_new();
  random_state = 7;
  for (int n = 0; n < 20000; n++) {
    uint32_t bits = n < 64 ? (uint32_t)n << (n % 24) : (uint32_t)random_bits();
    float value;
    memcpy(&value, &bits, sizeof value);
    if (!isfinite(value))
      continue;
    text_clear(&out);
    expr_print_cuda(expr_float(a, (double)value), NULL, symbols, NULL, &out);
    char *end;
    float back = strtof(out.bytes, &end);
    if (memcmp(&back, &value, sizeof value) != 0 || strcmp(end, "f") != 0)
      fail_msg("%a prints as %s", (double)value, out.bytes);
  }
  text_free(&out);
  arena_free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values_wide),
      cmocka_unit_test(test_values_with_comparisons),
      cmocka_unit_test(test_order_does_not_matter),
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_garbage),
      cmocka_unit_test(test_cuda_text),
      cmocka_unit_test(test_float_literals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
