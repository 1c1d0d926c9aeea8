/* Box programs against brute force: when a program says that a mask cannot be true (or false) in a box, no query and
 * key of the box make it so, whatever the mask and the values. */
#include <dlfcn.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "box_internal.h"
#include "test_mask_random.h"

/* One mask in one box. */
typedef struct box_case {
  const expr *mask;
  const box_program *program;
  bool bottom_right, heads_vary;
  int64_t q[2], k[2], h[2];
  expr_env env;
  uint64_t seed;
} box_case;

static void fail_case(const box_case *c, const char *what) {
  text out = {0};
  expr_print(c->mask, random_params, &out);
  print_error("seed %llu: %s\n  %s, q %lld..%lld, k %lld..%lld, h %lld..%lld, len_q %lld, len_k %lld\n",
              (unsigned long long)c->seed, out.bytes, c->bottom_right ? "bottom_right" : "top_left", (long long)c->q[0],
              (long long)c->q[1], (long long)c->k[0], (long long)c->k[1], (long long)c->h[0], (long long)c->h[1],
              (long long)c->env.symbol[EXPR_LEN_Q], (long long)c->env.symbol[EXPR_LEN_K]);
  text_free(&out);
  fail_msg("%s", what);
}

/* ---- tensors ---- */

/* With a salt that is odd, ints and floats come near the ends of their types, floats are infinite or NaN at times. */
static double extreme_read(void *user, int param, const int64_t *index) {
  uint64_t salt = *(const uint64_t *)user;
  double value = random_read(user, param, index);
  if (salt % 2 == 0 || ((int64_t)value + (int64_t)salt) % 3)
    return value;
  if (random_params[param].type == PARAM_I32)
    return value < 3 ? INT_MIN + value + 2 : INT_MAX - value;
  if (random_params[param].type == PARAM_F32)
    return value < 0 ? (double)-INFINITY : value < 2 ? (double)NAN : (double)INFINITY;
  return value;
}

enum { MOST_READ = 64 };

/* Whether a range is read in full; a longer one is answered with everything. */
static bool is_short(const int64_t *index, const box_summary *s) {
  return index[s->axis + 1] - index[s->axis] < MOST_READ;
}

/* Element number n of the range. */
static double element(void *user, const box_summary *s, const int64_t *index, int64_t n) {
  int64_t at[EXPR_MAX_RANK] = {0};
  for (int axis = 0; axis < random_params[s->param].rank; axis++)
    at[axis] = axis < s->axis ? index[axis] : axis == s->axis ? index[axis] + n : index[axis + 1];
  return extreme_read(user, s->param, at);
}

static double extreme(void *user, const box_summary *s, const int64_t *index, bool greatest) {
  param_type type = random_params[s->param].type;
  double low = type == PARAM_BOOL ? 0 : type == PARAM_I32 ? (double)INT_MIN : (double)-INFINITY;
  double high = type == PARAM_BOOL ? 1 : type == PARAM_I32 ? (double)INT_MAX : (double)INFINITY;
  if (!is_short(index, s))
    return greatest ? high : low;
  double found = greatest ? low : high;
  for (int64_t n = 0; n <= index[s->axis + 1] - index[s->axis]; n++) {
    double x = element(user, s, index, n);
    if (isnan(x))
      return greatest ? high : low;
    found = greatest ? fmax(found, x) : fmin(found, x);
  }
  return found;
}

static uint64_t label_set(void *user, const box_summary *s, const int64_t *index) {
  uint64_t set = 0;
  if (!is_short(index, s))
    return ~UINT64_C(0);
  for (int64_t n = 0; n <= index[s->axis + 1] - index[s->axis]; n++)
    set |= UINT64_C(1) << ((uint64_t)(int64_t)element(user, s, index, n) % 64);
  return set;
}

/* ---- one case ---- */

static box_answer run(const box_case *c) {
  box_env env = {.read = extreme_read, .extreme = extreme, .label_set = label_set, .user = c->env.user};
  int64_t *in = env.input;
  in[BOX_Q_FIRST] = c->q[0], in[BOX_Q_LAST] = c->q[1];
  in[BOX_K_FIRST] = c->k[0], in[BOX_K_LAST] = c->k[1];
  in[BOX_H_FIRST] = c->h[0], in[BOX_H_LAST] = c->h[1];
  in[BOX_HK] = c->env.symbol[EXPR_HK], in[BOX_B] = c->env.symbol[EXPR_B];
  in[BOX_LEN_Q] = c->env.symbol[EXPR_LEN_Q], in[BOX_LEN_K] = c->env.symbol[EXPR_LEN_K];
  return box_run(c->program, &env);
}

/* What the elements of the box say. */
static box_answer brute_force(box_case *c) {
  box_answer found = {false, false};
  int64_t offset = c->bottom_right ? c->env.symbol[EXPR_LEN_K] - c->env.symbol[EXPR_LEN_Q] : 0;
  for (int64_t h = c->h[0]; h <= c->h[1]; h++)
    for (int64_t q = c->q[0]; q <= c->q[1]; q++)
      for (int64_t k = c->k[0]; k <= c->k[1]; k++) {
        c->env.symbol[EXPR_H] = h;
        c->env.symbol[EXPR_Q] = q;
        c->env.symbol[EXPR_K] = k;
        c->env.symbol[EXPR_I] = q - offset;
        bool seen = expr_eval(c->mask, &c->env) != 0;
        found.may_be_true |= seen;
        found.may_be_false |= !seen;
      }
  return found;
}

/* Returns how many of the two answers are decided. */
static int check_case(box_case *c) {
  box_answer may = run(c), is = brute_force(c);
  if (is.may_be_true && !may.may_be_true)
    fail_case(c, "the box is skipped, but something in it is visible");
  if (is.may_be_false && !may.may_be_false)
    fail_case(c, "the box is called full, but something in it is hidden");
  return !may.may_be_true + !may.may_be_false;
}

static void random_box(box_case *c, bool far) {
  c->env = random_env(false);
  c->env.read = extreme_read;
  random_salt = (random_salt & ~UINT64_C(1)) | far;
  for (int s = EXPR_H; s <= EXPR_LEN_K; s++)
    if (c->env.symbol[s] < 0)
      c->env.symbol[s] = -c->env.symbol[s];
  int64_t edge = far && random_below(2) ? (INT64_C(1) << random_between(20, 30)) - 64 : 0;
  c->env.symbol[EXPR_LEN_Q] += edge;
  c->env.symbol[EXPR_LEN_K] += edge;
  c->q[0] = (random_below(2) ? edge : -edge) + random_between(-4, 8);
  c->k[0] = edge * random_below(2) + random_between(0, 8);
  c->h[0] = random_below(8);
  c->q[1] = c->q[0] + random_below(6);
  c->k[1] = c->k[0] + random_below(6);
  c->h[1] = c->h[0] + (c->heads_vary ? random_below(3) : 0);
}

static const expr *any_mask(arena *a) {
  const random_options options = {.comparisons = true, .wide = random_below(2)};
  if (random_below(3) == 0)
    return expr_fold(a, random_expr(a, &options, EXPR_BOOL, 1 + random_below(5)));
  return random_mask(a, random_below(4));
}

static void test_random_masks(void **state) {
  (void)state;
  enum { MASKS = 12000, BOXES = 6 };
  int decided = 0, built = 0;
  for (uint64_t seed = 1; seed <= MASKS; seed++) {
    arena *a = arena_new();
    random_state = seed;
    box_case c = {.mask = any_mask(a), .bottom_right = random_below(2), .heads_vary = random_below(2), .seed = seed};
    box_options options = {c.bottom_right, random_below(2), c.heads_vary, random_params};
    c.program = box_build_with(a, c.mask, &options, random_below(BOX_EFFORTS));
    for (int n = 0; n < BOXES && c.program; n++) {
      random_box(&c, n % 2);
      decided += check_case(&c);
    }
    built += c.program != NULL;
    arena_free(a);
  }
  /* The generator must keep reaching the interesting outcomes. */
  assert_true(built > MASKS * 99 / 100);
  assert_true(decided > built * BOXES / 2);
}

/* ---- printed programs ---- */

enum { FUNCTIONS = 300 };

/* The names that printed programs use; tensors are read through the functions above. */
static const char c_prelude[] =
    "#include <math.h>\n"
    "#include <stdbool.h>\n"
    "#include <stdint.h>\n"
    "typedef struct { double (*read)(int, const int64_t *); double (*extreme)(int, const int64_t *, bool);\n"
    "  uint64_t (*labels)(int, const int64_t *); int w; float cap; bool on; } params;\n"
    "static float to_f32(int x) { return (float)x; }\n"
    "static int64_t floor_div_i64(int64_t a, int64_t b) { if (!b) return 0;\n"
    "  int64_t d = a / b; return d - (d * b != a && (a < 0) != (b < 0)); }\n"
    "static int64_t floor_mod_i64(int64_t a, int64_t b) { return b ? a - floor_div_i64(a, b) * b : 0; }\n"
    "static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }\n"
    "static int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }\n"
    "#define floor_div_i32 (int)floor_div_i64\n"
    "#define floor_mod_i32 (int)floor_mod_i64\n"
    "#define min_i32 (int)min_i64\n"
    "#define max_i32 (int)max_i64\n"
    "#define min_f32 fminf\n"
    "#define max_f32 fmaxf\n"
    "#define exp_f32 expf\n"
    "#define exp2_f32 exp2f\n"
    "#define log_f32 logf\n"
    "#define tanh_f32 tanhf\n"
    "#define sqrt_f32 sqrtf\n"
    "static float below_f32(float x, float r, float t) { return isnan(x) ? -INFINITY : isinf(x) ? x : x - (fabsf(x) * "
    "r + t); }\n"
    "static float above_f32(float x, float r, float t) { return isnan(x) ? INFINITY : isinf(x) ? x : x + (fabsf(x) * r "
    "+ t); }\n"
    "static int floor_i32(float x) { if (isnan(x)) return 0; double a = floor((double)x);\n"
    "  return a >= 2147483647.0 ? 2147483647 : a <= -2147483648.0 ? -2147483647 - 1 : (int)a; }\n"
    "#define INDEX(...) (const int64_t[]){__VA_ARGS__}\n"
    "#define param_doc(p, ...) (int)p.read(3, INDEX(__VA_ARGS__))\n"
    "#define param_slope(p, ...) (float)p.read(4, INDEX(__VA_ARGS__))\n"
    "#define param_vis(p, ...) (p.read(5, INDEX(__VA_ARGS__)) != 0)\n"
    "#define param_win(p, ...) (int)p.read(6, INDEX(__VA_ARGS__))\n"
    "#define least_doc_0(p, ...) (int)p.extreme(30, INDEX(__VA_ARGS__), false)\n"
    "#define greatest_doc_0(p, ...) (int)p.extreme(30, INDEX(__VA_ARGS__), true)\n"
    "#define labels_doc_0(p, ...) p.labels(30, INDEX(__VA_ARGS__))\n"
    "#define least_slope_0(p, ...) (float)p.extreme(40, INDEX(__VA_ARGS__), false)\n"
    "#define greatest_slope_0(p, ...) (float)p.extreme(40, INDEX(__VA_ARGS__), true)\n"
    "#define least_vis_0(p, ...) (p.extreme(50, INDEX(__VA_ARGS__), false) != 0)\n"
    "#define greatest_vis_0(p, ...) (p.extreme(50, INDEX(__VA_ARGS__), true) != 0)\n"
    "#define least_vis_1(p, ...) (p.extreme(51, INDEX(__VA_ARGS__), false) != 0)\n"
    "#define greatest_vis_1(p, ...) (p.extreme(51, INDEX(__VA_ARGS__), true) != 0)\n"
    "#define least_win_0(p, ...) (int)p.extreme(60, INDEX(__VA_ARGS__), false)\n"
    "#define greatest_win_0(p, ...) (int)p.extreme(60, INDEX(__VA_ARGS__), true)\n"
    "#define labels_win_0(p, ...) p.labels(60, INDEX(__VA_ARGS__))\n";

typedef struct c_params {
  double (*read)(int, const int64_t *);
  double (*extreme)(int, const int64_t *, bool);
  uint64_t (*labels)(int, const int64_t *);
  int w;
  float cap;
  bool on;
} c_params;

static double c_read(int param, const int64_t *index) {
  return extreme_read(&random_salt, param, index);
}
static double c_extreme(int param_axis, const int64_t *index, bool greatest) {
  const box_summary s = {.param = param_axis / 10, .axis = param_axis % 10};
  return extreme(&random_salt, &s, index, greatest);
}
static uint64_t c_labels(int param_axis, const int64_t *index) {
  const box_summary s = {.param = param_axis / 10, .axis = param_axis % 10};
  return label_set(&random_salt, &s, index);
}

typedef int (*c_function)(c_params, const int *);

static void print_function(text *source, int number, const box_program *p) {
  static const box_style style = {
      .types = {"bool", "int", "long long", "float", "uint64_t"},
      .indent = "  ",
      .input = {"in[0]", "in[1]", "in[2]", "in[3]", "in[4]", "in[5]", "in[6]", "in[7]", "in[8]", "in[9]"},
      .params = random_params,
  };
  text_printf(source, "int f%d(params p, const int *in) {\n  (void)p, (void)in;\n", number);
  box_print(p, &style, source);
  text_puts(source, "  return (");
  box_print_value(p, p->may_be_true, &style, source);
  text_puts(source, ") + 2 * (");
  box_print_value(p, p->may_be_false, &style, source);
  text_puts(source, ");\n}\n");
}

static void compare_function(box_case *c, c_function function) {
  const int64_t none[EXPR_MAX_RANK] = {0};
  for (int n = 0; n < 8; n++) {
    random_box(c, n % 2);
    c_params p = {c_read,
                  c_extreme,
                  c_labels,
                  (int)c_read(PARAM_W, none),
                  (float)c_read(PARAM_CAP, none),
                  c_read(PARAM_ON, none) != 0};
    const int in[BOX_INPUT_COUNT] = {(int)c->q[0],
                                     (int)c->q[1],
                                     (int)c->k[0],
                                     (int)c->k[1],
                                     (int)c->h[0],
                                     (int)c->h[1],
                                     (int)c->env.symbol[EXPR_HK],
                                     (int)c->env.symbol[EXPR_B],
                                     (int)c->env.symbol[EXPR_LEN_Q],
                                     (int)c->env.symbol[EXPR_LEN_K]};
    box_answer may = run(c);
    if (function(p, in) != may.may_be_true + 2 * may.may_be_false)
      fail_case(c, "the printed program and the interpreter differ");
  }
}

/* What is printed computes what the interpreter does, and nothing in it overflows. */
static void test_printed(void **state) {
  (void)state;
  static box_case cases[FUNCTIONS];
  char folder[] = "/tmp/qkv_box_XXXXXX", c_path[64], so_path[64], command[320];
  if (system("gcc --version > /dev/null 2>&1") != 0)
    skip();
  arena *a = arena_new();
  text source = {0};
  text_puts(&source, c_prelude);
  for (int n = 0; n < FUNCTIONS; n++) {
    random_state = (uint64_t)n + 1;
    cases[n] =
        (box_case){.mask = any_mask(a), .bottom_right = random_below(2), .heads_vary = n % 2, .seed = (uint64_t)n + 1};
    box_options options = {cases[n].bottom_right, true, cases[n].heads_vary, random_params};
    cases[n].program = box_build_with(a, cases[n].mask, &options, BOX_EFFORTS - 1 - n % 3);
    assert_non_null(cases[n].program);
    print_function(&source, n, cases[n].program);
  }
  assert_false(source.failed);
  assert_non_null(mkdtemp(folder));
  snprintf(c_path, sizeof c_path, "%s/text.c", folder);
  snprintf(so_path, sizeof so_path, "%s/text.so", folder);
  FILE *f = fopen(c_path, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(source.bytes, 1, source.size, f), source.size);
  assert_int_equal(fclose(f), 0);
  snprintf(command, sizeof command,
           "gcc -std=gnu11 -O0 -fsanitize=signed-integer-overflow -fsanitize-undefined-trap-on-error -ffp-contract=off "
           "-shared -fPIC %s -o %s -lm",
           c_path, so_path);
  if (system(command) != 0)
    fail_msg("gcc refuses the printed text, kept in %s", c_path);
  void *library = dlopen(so_path, RTLD_NOW);
  assert_non_null(library);
  for (int n = 0; n < FUNCTIONS; n++) {
    char name[16];
    c_function function;
    snprintf(name, sizeof name, "f%d", n);
    void *symbol = dlsym(library, name);
    assert_non_null(symbol);
    memcpy(&function, &symbol, sizeof function);
    random_state = (uint64_t)n + 1000;
    compare_function(&cases[n], function);
  }
  dlclose(library);
  remove(c_path);
  remove(so_path);
  rmdir(folder);
  text_free(&source);
  arena_free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_masks),
      cmocka_unit_test(test_printed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
