/* score_derivative.c: forward-mode differentiation in s, and what the result depends on; see score_derivative.h.
 *
 * NULL stands for a derivative of 0. Rules use the value of the operation itself where they can (the derivative of exp
 * is exp), so that slope and score share it. */
#include "expr_internal.h"
#include "score_derivative.h"

static const double ln2 = 0.6931471805599453;

static const expr *make(arena *a, expr_op op, const expr *x, const expr *y) {
  return expr_make(a, op, x, y, NULL);
}

static bool is_real(const expr *e, double value) {
  return expr_is_const(e) && e->type == EXPR_FLOAT && e->real == value;
}

static bool divides_by_constant(const expr *e) {
  return e->op == EXPR_DIV && expr_is_const(e->args[1]);
}

/* x * y with divisions by constants outermost, where the factors around may cancel them. */
static const expr *multiply(arena *a, const expr *x, const expr *y) {
  if (!x || !y)
    return NULL;
  if (is_real(x, 1) || is_real(y, 1))
    return is_real(x, 1) ? y : x;
  if (!expr_is_const(x) && (expr_is_const(y) || (divides_by_constant(x) && !divides_by_constant(y))))
    return multiply(a, y, x);
  if (divides_by_constant(y) && expr_equal(x, y->args[1]))
    return y->args[0];
  if (divides_by_constant(y))
    return make(a, EXPR_DIV, multiply(a, x, y->args[0]), y->args[1]);
  if (is_real(x, -1))
    return make(a, EXPR_NEG, y, NULL);
  if (expr_is_const(x) && y->op == EXPR_MUL && expr_is_const(y->args[0]))
    return multiply(a, expr_float(a, x->real * y->args[0]->real), y->args[1]);
  return make(a, EXPR_MUL, x, y);
}

/* x / y; a quotient of constants stays one, for a factor that cancels the divisor. */
static const expr *divide(arena *a, const expr *x, const expr *y) {
  if (!x || !expr_is_const(x) || !expr_is_const(y) || y->real == 1)
    return x ? make(a, EXPR_DIV, x, y) : NULL;
  expr *e = expr_node(a, EXPR_DIV, EXPR_FLOAT, x->at);
  e->args[0] = x, e->args[1] = y, e->nargs = 2;
  return e;
}

static const expr *add(arena *a, const expr *x, const expr *y) {
  return x && y ? make(a, EXPR_ADD, x, y) : x ? x : y;
}

static const expr *subtract(arena *a, const expr *x, const expr *y) {
  if (!x)
    return multiply(a, expr_float(a, -1), y);
  return y ? make(a, EXPR_SUB, x, y) : x;
}

/* dx where the condition holds, else dy. */
static const expr *choose(arena *a, const expr *condition, const expr *dx, const expr *dy) {
  const expr *zero = expr_float(a, 0);
  return dx || dy ? expr_make(a, EXPR_WHERE, condition, dx ? dx : zero, dy ? dy : zero) : NULL;
}

static bool has_slope(const expr *e) {
  return e->type == EXPR_FLOAT && (expr_symbols(e) & EXPR_BIT(EXPR_S)) && e->op != EXPR_PARAM && e->op != EXPR_TO_FLOAT;
}

static const expr *derive(arena *a, const expr *e) {
  const expr *const *x = e->args;
  if (!has_slope(e))
    return NULL;
  if (e->op == EXPR_SYMBOL)
    return expr_float(a, 1);
  if (e->op == EXPR_WHERE)
    return choose(a, x[0], derive(a, x[1]), derive(a, x[2]));
  const expr *dx = derive(a, x[0]), *dy = e->nargs > 1 ? derive(a, x[1]) : NULL;
  switch (e->op) {
  case EXPR_NEG: return subtract(a, NULL, dx);
  case EXPR_ADD: return add(a, dx, dy);
  case EXPR_SUB: return subtract(a, dx, dy);
  case EXPR_MUL: return add(a, multiply(a, dx, x[1]), multiply(a, x[0], dy));
  case EXPR_DIV: return divide(a, subtract(a, dx, multiply(a, e, dy)), x[1]);
  case EXPR_MIN: return choose(a, make(a, EXPR_LE, x[0], x[1]), dx, dy);
  case EXPR_MAX: return choose(a, make(a, EXPR_GE, x[0], x[1]), dx, dy);
  case EXPR_ABS: return choose(a, make(a, EXPR_GE, x[0], expr_float(a, 0)), dx, subtract(a, NULL, dx));
  case EXPR_EXP: return multiply(a, e, dx);
  case EXPR_EXP2: return multiply(a, expr_float(a, ln2), multiply(a, e, dx));
  case EXPR_LOG: return divide(a, dx, x[0]);
  case EXPR_TANH: return multiply(a, make(a, EXPR_SUB, expr_float(a, 1), make(a, EXPR_MUL, e, e)), dx);
  case EXPR_SQRT: return divide(a, multiply(a, expr_float(a, 0.5), dx), e);
  default: return NULL;
  }
}

/* ---- classes ---- */

static bool uses_s(const expr *e) {
  return expr_symbols(e) & EXPR_BIT(EXPR_S);
}

static bool is_factor(const expr *e) {
  return expr_is_const(e) && e->real != 0;
}

/* One step from e = f(x) to x: *inverse, the value of e, becomes that of x, which is returned. NULL: f has no inverse,
 * or one that is not finite everywhere, as those of 1 / x and exp: in f32 their values can be 0. */
static const expr *peel(arena *a, const expr *e, const expr **inverse) {
  const expr *x = e->args[0], *y = e->nargs > 1 ? e->args[1] : NULL, *value = *inverse;
  bool left = y && uses_s(x), right = y && uses_s(y);
  if (left && right)
    return NULL;
  switch (e->op) {
  case EXPR_NEG: *inverse = make(a, EXPR_NEG, value, NULL); return x;
  case EXPR_ADD:
    *inverse = make(a, EXPR_SUB, value, left ? y : x);
    return left ? x : y;
  case EXPR_SUB:
    *inverse = left ? make(a, EXPR_ADD, value, y) : make(a, EXPR_SUB, x, value);
    return left ? x : y;
  case EXPR_MUL:
    if (!is_factor(left ? y : x))
      return NULL;
    *inverse = make(a, EXPR_DIV, value, left ? y : x);
    return left ? x : y;
  case EXPR_DIV:
    if (!left || !is_factor(y))
      return NULL;
    *inverse = make(a, EXPR_MUL, value, y);
    return x;
  case EXPR_LOG: *inverse = make(a, EXPR_EXP, value, NULL); return x;
  case EXPR_SQRT: *inverse = make(a, EXPR_MUL, value, value); return x;
  default: return NULL;
  }
}

/* Nodes of e as a tree, counted up to `most`. */
static int count_nodes(const expr *e, int most) {
  int count = 1;
  for (int n = 0; n < e->nargs && count < most; n++)
    count += count_nodes(e->args[n], most - count);
  return count;
}

/* The slope with y in place of what y determines, from the whole score inwards. */
static const expr *in_value(arena *a, const expr *score, const expr *slope) {
  expr *y = expr_node(a, EXPR_LOCAL, EXPR_FLOAT, score->at);
  y->args[0] = score;
  const expr *value = y;
  for (const expr *e = score; e && uses_s(slope); e = peel(a, e, &value))
    slope = expr_replace(a, slope, e, value);
  return slope;
}

score_derivative score_derive(arena *a, const expr *score, double softcap) {
  const expr *s = expr_sym(a, EXPR_S);
  if (softcap > 0) {
    const expr *cap = expr_float(a, softcap);
    s = make(a, EXPR_MUL, cap, make(a, EXPR_TANH, make(a, EXPR_DIV, s, cap), NULL));
  }
  const expr *whole = expr_substitute(a, score, EXPR_S, s), *slope = derive(a, whole);
  slope = slope ? slope : expr_float(a, 0);
  if (!uses_s(slope))
    return (score_derivative){SCORE_SLOPE_FREE, slope};
  enum { MOST = 4000 }; /* replacing takes time of its square */
  const expr *of_value = count_nodes(slope, MOST) < MOST ? in_value(a, whole, slope) : slope;
  return uses_s(of_value) ? (score_derivative){SCORE_SLOPE_OF_S, slope}
                          : (score_derivative){SCORE_SLOPE_OF_VALUE, of_value};
}
