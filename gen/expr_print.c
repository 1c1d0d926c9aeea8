/* expr_print.c: an expression as text: as its user would write it, and as CUDA C++.
 *
 * Both put parentheses only where the precedence of the target demands them (and around `&&` inside `||`, where readers
 * do). The source form leaves int-to-float conversions to the reader, who inserts them as the parser does; where the
 * parser would not, the value is written `x * 1.0`. */
#include <math.h>
#include <stdio.h>

#include "expr_internal.h"

/* Precedence levels of both languages, loosest first. Source text ignores LEVEL_WHERE: where() is a call there. */
enum {
  LEVEL_ANY,
  LEVEL_WHERE,
  LEVEL_OR,
  LEVEL_AND,
  LEVEL_NOT,
  LEVEL_COMPARE,
  LEVEL_ADD,
  LEVEL_MULTIPLY,
  LEVEL_UNARY,
  LEVEL_PRIMARY
};

/* An operator with level LEVEL_PRIMARY prints as a call. `cuda_real` is the call on floats. */
static const struct spelling {
  const char *source;
  int level;
  const char *cuda, *cuda_real;
  int cuda_level;
} spellings[EXPR_OP_COUNT] = {
    [EXPR_TO_FLOAT] = {NULL, LEVEL_PRIMARY, "to_f32", NULL, LEVEL_PRIMARY},
    [EXPR_NEG] = {"-", LEVEL_UNARY, "-", NULL, LEVEL_UNARY},
    [EXPR_ABS] = {"abs", LEVEL_PRIMARY, "abs_i32", "abs_f32", LEVEL_PRIMARY},
    [EXPR_ADD] = {"+", LEVEL_ADD, "+", NULL, LEVEL_ADD},
    [EXPR_SUB] = {"-", LEVEL_ADD, "-", NULL, LEVEL_ADD},
    [EXPR_MUL] = {"*", LEVEL_MULTIPLY, "*", NULL, LEVEL_MULTIPLY},
    [EXPR_DIV] = {"/", LEVEL_MULTIPLY, "/", NULL, LEVEL_MULTIPLY},
    [EXPR_FLOORDIV] = {"//", LEVEL_MULTIPLY, "floor_div_i32", NULL, LEVEL_PRIMARY},
    [EXPR_MOD] = {"%", LEVEL_MULTIPLY, "floor_mod_i32", NULL, LEVEL_PRIMARY},
    [EXPR_BIT_OF] = {"bit", LEVEL_PRIMARY, "bit_i32", NULL, LEVEL_PRIMARY},
    [EXPR_MIN] = {"min", LEVEL_PRIMARY, "min_i32", "min_f32", LEVEL_PRIMARY},
    [EXPR_MAX] = {"max", LEVEL_PRIMARY, "max_i32", "max_f32", LEVEL_PRIMARY},
    [EXPR_EXP] = {"exp", LEVEL_PRIMARY, "exp_f32", "exp_f32", LEVEL_PRIMARY},
    [EXPR_EXP2] = {"exp2", LEVEL_PRIMARY, "exp2_f32", "exp2_f32", LEVEL_PRIMARY},
    [EXPR_LOG] = {"log", LEVEL_PRIMARY, "log_f32", "log_f32", LEVEL_PRIMARY},
    [EXPR_TANH] = {"tanh", LEVEL_PRIMARY, "tanh_f32", "tanh_f32", LEVEL_PRIMARY},
    [EXPR_SQRT] = {"sqrt", LEVEL_PRIMARY, "sqrt_f32", "sqrt_f32", LEVEL_PRIMARY},
    [EXPR_FLOOR] = {"floor", LEVEL_PRIMARY, "floor_i32", "floor_i32", LEVEL_PRIMARY},
    [EXPR_WHERE] = {"where", LEVEL_PRIMARY, NULL, NULL, LEVEL_WHERE},
    [EXPR_LT] = {"<", LEVEL_COMPARE, "<", NULL, LEVEL_COMPARE},
    [EXPR_LE] = {"<=", LEVEL_COMPARE, "<=", NULL, LEVEL_COMPARE},
    [EXPR_GT] = {">", LEVEL_COMPARE, ">", NULL, LEVEL_COMPARE},
    [EXPR_GE] = {">=", LEVEL_COMPARE, ">=", NULL, LEVEL_COMPARE},
    [EXPR_EQ] = {"==", LEVEL_COMPARE, "==", NULL, LEVEL_COMPARE},
    [EXPR_NE] = {"!=", LEVEL_COMPARE, "!=", NULL, LEVEL_COMPARE},
    [EXPR_AND] = {"and", LEVEL_AND, "&", NULL, LEVEL_AND},
    [EXPR_OR] = {"or", LEVEL_OR, "|", NULL, LEVEL_OR},
    [EXPR_NOT] = {"not ", LEVEL_NOT, "!", NULL, LEVEL_UNARY},
    [EXPR_LOG2] = {"log2", LEVEL_PRIMARY, "log2_approx", "log2_approx", LEVEL_PRIMARY},
    [EXPR_RCP] = {"rcp", LEVEL_PRIMARY, "rcp_approx", "rcp_approx", LEVEL_PRIMARY},
    [EXPR_TANH_APPROX] = {"tanh", LEVEL_PRIMARY, "tanh_approx", "tanh_approx", LEVEL_PRIMARY},
};

/* The calls for int operators that could overflow. */
static const char *const wrapping_calls[EXPR_OP_COUNT] = {
    [EXPR_NEG] = "neg_i32", [EXPR_ADD] = "add_i32", [EXPR_SUB] = "sub_i32", [EXPR_MUL] = "mul_i32"};

static void print_operand(const expr *e, int least, const expr_param *params, text *out);

static void print_list(const expr *e, const expr_param *params, text *out) {
  for (int n = 0; n < e->nargs; n++) {
    text_puts(out, n ? ", " : "");
    print_operand(e->args[n], LEVEL_ANY, params, out);
  }
}

static bool is_implicit(const expr *e) {
  return e && e->op == EXPR_TO_FLOAT;
}

/* x * 1.0, which the parser reads as the conversion of x. */
static void print_conversion(const expr *e, int least, const expr_param *params, text *out) {
  text_puts(out, least > LEVEL_MULTIPLY ? "(" : "");
  print_operand(e->args[0], LEVEL_MULTIPLY, params, out);
  text_puts(out, least > LEVEL_MULTIPLY ? " * 1.0)" : " * 1.0");
}

/* Whether the first operand's conversion must be spelled out: nothing else in the operation is a float. */
static bool needs_conversion(const expr *e) {
  switch (e->op) {
  case EXPR_NEG:
  case EXPR_ABS: return is_implicit(e->args[0]);
  case EXPR_ADD:
  case EXPR_SUB:
  case EXPR_MUL:
  case EXPR_MIN:
  case EXPR_MAX:
  case EXPR_LT:
  case EXPR_LE:
  case EXPR_GT:
  case EXPR_GE:
  case EXPR_EQ:
  case EXPR_NE: return is_implicit(e->args[0]) && is_implicit(e->args[1]);
  default: return false;
  }
}

static void print_first(const expr *e, int least, const expr_param *params, text *out) {
  if (needs_conversion(e))
    print_conversion(e->args[0], least, params, out);
  else
    print_operand(e->args[0], least, params, out);
}

static void print_call(const expr *e, const expr_param *params, text *out) {
  text_printf(out, "%s(", spellings[e->op].source);
  if (e->op == EXPR_WHERE && is_implicit(e->args[1]) && is_implicit(e->args[2])) {
    print_operand(e->args[0], LEVEL_ANY, params, out);
    text_puts(out, ", ");
    print_conversion(e->args[1], LEVEL_ANY, params, out);
    text_puts(out, ", ");
    print_operand(e->args[2], LEVEL_ANY, params, out);
  } else {
    print_first(e, LEVEL_ANY, params, out);
    for (int n = 1; n < e->nargs; n++) {
      text_puts(out, ", ");
      print_operand(e->args[n], LEVEL_ANY, params, out);
    }
  }
  text_puts(out, ")");
}

static void print_leaf(const expr *e, const expr_param *params, text *out) {
  if (e->op == EXPR_SYMBOL) {
    text_puts(out, expr_symbol_name(e->symbol));
  } else if (e->op == EXPR_PARAM) {
    text_puts(out, params[e->param].name);
    if (e->nargs) {
      text_puts(out, "[");
      print_list(e, params, out);
      text_puts(out, "]");
    }
  } else if (e->type == EXPR_BOOL) {
    text_puts(out, e->integer ? "true" : "false");
  } else if (e->type == EXPR_INT) {
    text_printf(out, "%lld", (long long)e->integer);
  } else {
    text_double(out, e->real);
  }
}

static int source_level(const expr *e) {
  if (e->op == EXPR_CONST && (e->type == EXPR_FLOAT ? (bool)signbit(e->real) : e->integer < 0))
    return LEVEL_UNARY;
  return spellings[e->op].source ? spellings[e->op].level : LEVEL_PRIMARY;
}

static void print_operand(const expr *e, int least, const expr_param *params, text *out) {
  if (e->op == EXPR_TO_FLOAT)
    e = e->args[0];
  int level = source_level(e);
  bool parentheses = level < least;
  text_puts(out, parentheses ? "(" : "");
  if (e->nargs == 0 || e->op == EXPR_PARAM) {
    print_leaf(e, params, out);
  } else if (level == LEVEL_PRIMARY) {
    print_call(e, params, out);
  } else if (e->nargs == 1) {
    text_puts(out, spellings[e->op].source);
    print_first(e, level, params, out);
  } else {
    /* Operators associate to the left; comparisons would chain, so neither side may be one. */
    print_first(e, level + (level == LEVEL_COMPARE), params, out);
    text_printf(out, " %s ", spellings[e->op].source);
    print_operand(e->args[1], level + 1, params, out);
  }
  text_puts(out, parentheses ? ")" : "");
}

void expr_print(const expr *e, const expr_param *params, text *out) {
  print_operand(e, LEVEL_ANY, params, out);
}

/* ---- CUDA ----
 *
 * Conditions join by & and |: all of their operands may be evaluated, indices being clamped, and without branches the
 * loads of a whole tile are under way together. */

void expr_print_f32(double value, text *out) {
  float rounded = (float)value;
  int exponent = 0;
  double size = isinf(rounded) ? 0x1p128 : fabs((double)rounded);
  double fraction = frexp(size, &exponent);      /* in [0.5, 1), or 0 */
  unsigned bits = (unsigned)ldexp(fraction, 25); /* the leading 1, then 6 hex digits */
  char digits[8];
  size_t length = 6;
  snprintf(digits, sizeof digits, "%06x", bits & 0xFFFFFF);
  while (length > 0 && digits[length - 1] == '0')
    digits[--length] = 0;
  text_printf(out, "%s0x%d%s%sp%+df", signbit(rounded) ? "-" : "", bits ? 1 : 0, length ? "." : "", digits,
              bits ? exponent - 1 : 0);
}

typedef struct cuda_printer {
  const expr_param *params;
  const char *const *symbols, *const *locals;
  text *out;
} cuda_printer;

static void cuda_operand(const cuda_printer *p, const expr *e, int least);

static void cuda_leaf(const cuda_printer *p, const expr *e) {
  if (e->op == EXPR_SYMBOL) {
    const char *symbol = p->symbols[e->symbol];
    text_puts(p->out, symbol ? symbol : expr_symbol_name(e->symbol));
  } else if (e->op == EXPR_LOCAL) {
    text_puts(p->out, p->locals[e->integer]);
  } else if (e->op == EXPR_PARAM && e->nargs == 0) {
    text_printf(p->out, p->params[e->param].is_variable ? "%s" : "p.%s", p->params[e->param].name);
  } else if (e->op == EXPR_PARAM) {
    text_printf(p->out, "param_%s(p", p->params[e->param].name);
    for (int n = 0; n < e->nargs; n++) {
      text_puts(p->out, ", ");
      cuda_operand(p, e->args[n], LEVEL_WHERE);
    }
    text_puts(p->out, ")");
  } else if (e->type == EXPR_BOOL) {
    text_puts(p->out, e->integer ? "true" : "false");
  } else if (e->type == EXPR_FLOAT) {
    expr_print_f32(e->real, p->out);
  } else if (e->integer == INT32_MIN) { /* 2147483648 is no int in C++ */
    text_puts(p->out, "(-2147483647 - 1)");
  } else {
    text_printf(p->out, "%lld", (long long)e->integer);
  }
}

static void cuda_call(const cuda_printer *p, const expr *e) {
  const struct spelling *s = &spellings[e->op];
  const char *wrapping = wrapping_calls[e->op];
  text_printf(p->out, "%s(", e->args[0]->type == EXPR_FLOAT ? s->cuda_real : wrapping ? wrapping : s->cuda);
  for (int n = 0; n < e->nargs; n++) {
    text_puts(p->out, n ? ", " : "");
    cuda_operand(p, e->args[n], LEVEL_WHERE);
  }
  text_puts(p->out, ")");
}

static void cuda_where(const cuda_printer *p, const expr *e) {
  cuda_operand(p, e->args[0], LEVEL_COMPARE);
  text_puts(p->out, " ? ");
  cuda_operand(p, e->args[1], LEVEL_OR);
  text_puts(p->out, " : ");
  cuda_operand(p, e->args[2], LEVEL_OR);
}

static int cuda_level(const expr *e) {
  if (e->op == EXPR_CONST && e->type == EXPR_INT && e->integer == INT32_MIN)
    return LEVEL_PRIMARY;
  if (e->op == EXPR_CONST && (e->type == EXPR_FLOAT ? (bool)signbit(e->real) : e->integer < 0))
    return LEVEL_UNARY;
  if (e->nargs == 0 || e->op == EXPR_PARAM || (wrapping_calls[e->op] && expr_may_wrap(e)))
    return LEVEL_PRIMARY;
  return spellings[e->op].cuda_level;
}

static void cuda_operand(const cuda_printer *p, const expr *e, int least) {
  int level = cuda_level(e);
  bool parentheses = level < least;
  text_puts(p->out, parentheses ? "(" : "");
  if (e->nargs == 0 || e->op == EXPR_PARAM) {
    cuda_leaf(p, e);
  } else if (e->op == EXPR_WHERE) {
    cuda_where(p, e);
  } else if (level == LEVEL_PRIMARY) {
    cuda_call(p, e);
  } else if (e->nargs == 1) {
    text_puts(p->out, spellings[e->op].cuda); /* folding leaves no `-` before another, which would read `--` */
    cuda_operand(p, e->args[0], LEVEL_UNARY);
  } else {
    bool joined = e->op == EXPR_AND || e->op == EXPR_OR;
    int right = joined ? LEVEL_PRIMARY : level + 1; /* `a < b & !c` reads badly */
    int left = joined && e->args[0]->op != e->op ? LEVEL_PRIMARY : level;
    cuda_operand(p, e->args[0], left);
    text_printf(p->out, " %s ", spellings[e->op].cuda);
    cuda_operand(p, e->args[1], right);
  }
  text_puts(p->out, parentheses ? ")" : "");
}

void expr_print_cuda(const expr *e, const expr_param *params, const char *const symbols[EXPR_SYMBOL_COUNT],
                     const char *const *locals, text *out) {
  const cuda_printer p = {params, symbols, locals, out};
  cuda_operand(&p, e, LEVEL_ANY);
}
