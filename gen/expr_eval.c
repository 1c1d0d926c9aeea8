/* expr_eval.c: what an expression means: its value, computed in f64 and exact 32-bit integers.
 *
 * The operators on plain values stand here once; the evaluator and the constant folder both call them. */
#include <math.h>

#include "expr_internal.h"

int64_t expr_wrap(int64_t value) {
  uint32_t low = (uint32_t)(uint64_t)value;
  return low <= INT32_MAX ? (int64_t)low : (int64_t)low - ((int64_t)1 << 32);
}

static int64_t floor_div(int64_t x, int64_t y) {
  if (y == 0)
    return 0;
  int64_t quotient = x / y;
  return quotient - (x % y != 0 && (x < 0) != (y < 0));
}

int64_t expr_apply_int(expr_op op, int64_t x, int64_t y) {
  switch (op) {
  case EXPR_NEG: return expr_wrap(-x);
  case EXPR_ABS: return expr_wrap(x < 0 ? -x : x);
  case EXPR_ADD: return expr_wrap(x + y);
  case EXPR_SUB: return expr_wrap(x - y);
  case EXPR_MUL: return expr_wrap(x * y); /* 32-bit operands: the product fits 64 bits */
  case EXPR_FLOORDIV: return expr_wrap(floor_div(x, y));
  case EXPR_MOD: return y == 0 ? 0 : x - floor_div(x, y) * y;
  case EXPR_BIT_OF: return y >= 0 && y <= 31 ? (int64_t)((uint64_t)x >> y & 1) : 0;
  case EXPR_MIN: return x < y ? x : y;
  case EXPR_MAX: return x > y ? x : y;
  default: return 0;
  }
}

/* As on the device: a NaN loses against a number, and -0.0 is less than 0.0. */
static double real_min(double x, double y) {
  if (x == y)
    return signbit(x) ? x : y;
  return fmin(x, y);
}

double expr_apply_real(expr_op op, double x, double y) {
  switch (op) {
  case EXPR_NEG: return -x;
  case EXPR_ABS: return fabs(x);
  case EXPR_ADD: return x + y;
  case EXPR_SUB: return x - y;
  case EXPR_MUL: return x * y;
  case EXPR_DIV: return x / y;
  case EXPR_MIN: return real_min(x, y);
  case EXPR_MAX: return -real_min(-x, -y);
  case EXPR_EXP: return exp(x);
  case EXPR_EXP2: return exp2(x);
  case EXPR_LOG: return log(x);
  case EXPR_TANH: return tanh(x);
  case EXPR_SQRT: return sqrt(x);
  case EXPR_LOG2: return log2(x);
  case EXPR_RCP: return 1 / x;
  case EXPR_TANH_APPROX: return tanh(x);
  default: return 0;
  }
}

bool expr_compare_int(expr_op op, int64_t x, int64_t y) {
  switch (op) {
  case EXPR_LT: return x < y;
  case EXPR_LE: return x <= y;
  case EXPR_GT: return x > y;
  case EXPR_GE: return x >= y;
  case EXPR_EQ: return x == y;
  default: return x != y;
  }
}

bool expr_compare_real(expr_op op, double x, double y) {
  switch (op) {
  case EXPR_LT: return x < y;
  case EXPR_LE: return x <= y;
  case EXPR_GT: return x > y;
  case EXPR_GE: return x >= y;
  case EXPR_EQ: return x == y;
  default: return x != y;
  }
}

int64_t expr_floor(double x) {
  if (isnan(x))
    return 0;
  x = floor(x);
  if (x >= INT32_MAX)
    return INT32_MAX;
  return x <= INT32_MIN ? INT32_MIN : (int64_t)x;
}

static double eval_real(const expr *e, const expr_env *env);
static int64_t eval_int(const expr *e, const expr_env *env);

static double read_param(const expr *e, const expr_env *env) {
  int64_t index[EXPR_MAX_RANK] = {0};
  for (int n = 0; n < e->nargs; n++)
    index[n] = eval_int(e->args[n], env);
  return env->read(env->user, e->param, index);
}

/* Of a bool or int. */
static int64_t eval_int(const expr *e, const expr_env *env) {
  const expr *const *x = e->args;
  switch (e->op) {
  case EXPR_CONST: return e->integer;
  case EXPR_SYMBOL: return expr_wrap(env->symbol[e->symbol]);
  case EXPR_PARAM: return e->type == EXPR_BOOL ? read_param(e, env) != 0 : (int64_t)read_param(e, env);
  case EXPR_LOCAL: return (int64_t)env->local[e->integer];
  case EXPR_FLOOR: return expr_floor(eval_real(x[0], env));
  case EXPR_WHERE: return eval_int(x[0], env) ? eval_int(x[1], env) : eval_int(x[2], env);
  case EXPR_AND: return eval_int(x[0], env) && eval_int(x[1], env);
  case EXPR_OR: return eval_int(x[0], env) || eval_int(x[1], env);
  case EXPR_NOT: return !eval_int(x[0], env);
  case EXPR_LT:
  case EXPR_LE:
  case EXPR_GT:
  case EXPR_GE:
  case EXPR_EQ:
  case EXPR_NE:
    if (x[0]->type == EXPR_FLOAT)
      return expr_compare_real(e->op, eval_real(x[0], env), eval_real(x[1], env));
    return expr_compare_int(e->op, eval_int(x[0], env), eval_int(x[1], env));
  default: return expr_apply_int(e->op, eval_int(x[0], env), e->nargs > 1 ? eval_int(x[1], env) : 0);
  }
}

static double eval_real(const expr *e, const expr_env *env) {
  const expr *const *x = e->args;
  switch (e->op) {
  case EXPR_CONST: return e->real;
  case EXPR_SYMBOL: return e->symbol == EXPR_COLUMN ? env->column : env->s;
  case EXPR_LOCAL: return env->local[e->integer];
  case EXPR_PARAM: return read_param(e, env);
  case EXPR_TO_FLOAT: return (double)eval_int(x[0], env);
  case EXPR_WHERE: return eval_int(x[0], env) ? eval_real(x[1], env) : eval_real(x[2], env);
  default: return expr_apply_real(e->op, eval_real(x[0], env), e->nargs > 1 ? eval_real(x[1], env) : 0);
  }
}

double expr_eval(const expr *e, const expr_env *env) {
  return e->type == EXPR_FLOAT ? eval_real(e, env) : (double)eval_int(e, env);
}
