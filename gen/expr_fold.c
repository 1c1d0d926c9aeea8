/* expr_fold.c: making expressions, and making them smaller without changing any value.
 *
 * Every node of the language is made by expr_build, which folds as it builds: constants are computed, neutral elements
 * dropped, `not` pushed inwards, constant conditions decided. So an expression is always folded, and expr_fold only
 * rebuilds one. Rules on floats hold for infinities, NaN and signed zeros too: x + 0.0 stays, as it changes -0.0. */
#include <math.h>
#include <string.h>

#include "expr_internal.h"

static const diag_span nowhere = {0, 0};

expr *expr_node(arena *a, expr_op op, expr_type type, diag_span at) {
  expr *e = arena_alloc(a, sizeof *e);
  e->op = op;
  e->type = type;
  e->at = at;
  return e;
}

static const expr *constant(arena *a, expr_type type, int64_t integer, double real, diag_span at) {
  expr *e = expr_node(a, EXPR_CONST, type, at);
  e->integer = integer;
  e->real = real;
  return e;
}

const expr *expr_int(arena *a, int64_t value) {
  return constant(a, EXPR_INT, expr_wrap(value), 0, nowhere);
}
const expr *expr_bool(arena *a, bool value) {
  return constant(a, EXPR_BOOL, value, 0, nowhere);
}
const expr *expr_float(arena *a, double value) {
  return constant(a, EXPR_FLOAT, 0, value, nowhere);
}

const expr *expr_sym(arena *a, expr_symbol symbol) {
  expr *e = expr_node(a, EXPR_SYMBOL, symbol == EXPR_S || symbol == EXPR_COLUMN ? EXPR_FLOAT : EXPR_INT, nowhere);
  e->symbol = symbol;
  return e;
}

bool expr_is_int(const expr *e, int64_t value) {
  return e->op == EXPR_CONST && e->type == EXPR_INT && e->integer == value;
}

static bool is_real(const expr *e, double value) {
  return e->op == EXPR_CONST && e->type == EXPR_FLOAT && e->real == value && !signbit(e->real) == !signbit(value);
}

static bool is_bool(const expr *e, bool value) {
  return e->op == EXPR_CONST && e->type == EXPR_BOOL && e->integer == value;
}

static bool is_comparison(expr_op op) {
  return op >= EXPR_LT && op <= EXPR_NE;
}

static expr_type result_type(expr_op op, const expr *x, const expr *y) {
  switch (op) {
  case EXPR_TO_FLOAT:
  case EXPR_DIV:
  case EXPR_EXP:
  case EXPR_EXP2:
  case EXPR_LOG:
  case EXPR_TANH:
  case EXPR_SQRT: return EXPR_FLOAT;
  case EXPR_FLOOR: return EXPR_INT;
  case EXPR_WHERE: return y->type;
  case EXPR_LT:
  case EXPR_LE:
  case EXPR_GT:
  case EXPR_GE:
  case EXPR_EQ:
  case EXPR_NE:
  case EXPR_AND:
  case EXPR_OR:
  case EXPR_NOT: return EXPR_BOOL;
  default: return x->type;
  }
}

/* The value of an operation on constants; NULL when it is not finite. */
static const expr *fold_constants(arena *a, expr_op op, const expr *x, const expr *y, diag_span at) {
  if (is_comparison(op))
    return constant(a, EXPR_BOOL,
                    x->type == EXPR_FLOAT ? expr_compare_real(op, x->real, y->real)
                                          : expr_compare_int(op, x->integer, y->integer),
                    0, at);
  if (op == EXPR_TO_FLOAT)
    return constant(a, EXPR_FLOAT, 0, (double)x->integer, at);
  if (op == EXPR_FLOOR)
    return constant(a, EXPR_INT, expr_floor(x->real), 0, at);
  if (x->type == EXPR_INT)
    return constant(a, EXPR_INT, expr_apply_int(op, x->integer, y ? y->integer : 0), 0, at);
  double value = expr_apply_real(op, x->real, y ? y->real : 0);
  return isfinite(value) ? constant(a, EXPR_FLOAT, 0, value, at) : NULL;
}

static const expr *simplify_int(arena *a, expr_op op, const expr *x, const expr *y, diag_span at) {
  switch (op) {
  case EXPR_NEG:
    if (x->op == EXPR_NEG)
      return x->args[0];
    return x->op == EXPR_SUB ? expr_build(a, EXPR_SUB, x->args[1], x->args[0], NULL, at) : NULL;
  case EXPR_ABS:
    if (x->op == EXPR_NEG)
      return expr_build(a, EXPR_ABS, x->args[0], NULL, NULL, at);
    return x->op == EXPR_ABS ? x : NULL;
  case EXPR_ADD: return expr_is_int(x, 0) ? y : expr_is_int(y, 0) ? x : NULL;
  case EXPR_SUB:
    if (expr_is_int(x, 0))
      return expr_build(a, EXPR_NEG, y, NULL, NULL, at);
    return expr_is_int(y, 0) ? x : expr_equal(x, y) ? constant(a, EXPR_INT, 0, 0, at) : NULL;
  case EXPR_MUL:
    if (expr_is_int(x, 0) || expr_is_int(y, 1))
      return x;
    return expr_is_int(y, 0) || expr_is_int(x, 1) ? y : NULL;
  case EXPR_FLOORDIV: return expr_is_int(y, 1) || expr_is_int(x, 0) ? x : expr_is_int(y, 0) ? y : NULL;
  case EXPR_MOD:
    if (expr_is_int(y, 1) || expr_is_int(y, -1))
      return constant(a, EXPR_INT, 0, 0, at);
    return expr_is_int(x, 0) ? x : expr_is_int(y, 0) ? y : NULL;
  case EXPR_MIN:
  case EXPR_MAX: return expr_equal(x, y) ? x : NULL;
  case EXPR_LE:
  case EXPR_GE:
  case EXPR_EQ: return expr_equal(x, y) ? constant(a, EXPR_BOOL, true, 0, at) : NULL;
  case EXPR_LT:
  case EXPR_GT:
  case EXPR_NE: return expr_equal(x, y) ? constant(a, EXPR_BOOL, false, 0, at) : NULL;
  default: return NULL;
  }
}

static const expr *simplify_real(arena *a, expr_op op, const expr *x, const expr *y, diag_span at) {
  switch (op) {
  case EXPR_NEG: return x->op == EXPR_NEG ? x->args[0] : NULL;
  case EXPR_ABS:
    if (x->op == EXPR_NEG)
      return expr_build(a, EXPR_ABS, x->args[0], NULL, NULL, at);
    return x->op == EXPR_ABS ? x : NULL;
  case EXPR_ADD: return is_real(x, -0.0) ? y : is_real(y, -0.0) ? x : NULL;
  case EXPR_SUB: return is_real(y, 0.0) ? x : NULL;
  case EXPR_MUL: return is_real(x, 1.0) ? y : is_real(y, 1.0) ? x : NULL;
  case EXPR_DIV: return is_real(y, 1.0) ? x : NULL;
  case EXPR_MIN:
  case EXPR_MAX: return expr_equal(x, y) ? x : NULL;
  case EXPR_FLOOR: return x->op == EXPR_TO_FLOAT ? x->args[0] : NULL;
  default: return NULL;
  }
}

/* not (x < y) is x >= y for integers; a NaN forbids that for floats, but not for == and !=. */
static const expr *negate_comparison(arena *a, const expr *x, diag_span at) {
  static const expr_op opposite[EXPR_OP_COUNT] = {[EXPR_LT] = EXPR_GE, [EXPR_LE] = EXPR_GT, [EXPR_GT] = EXPR_LE,
                                                  [EXPR_GE] = EXPR_LT, [EXPR_EQ] = EXPR_NE, [EXPR_NE] = EXPR_EQ};
  if (x->args[0]->type == EXPR_FLOAT && x->op != EXPR_EQ && x->op != EXPR_NE)
    return NULL;
  return expr_build(a, opposite[x->op], x->args[0], x->args[1], NULL, at);
}

static const expr *negate(arena *a, const expr *x, diag_span at) {
  return expr_build(a, EXPR_NOT, x, NULL, NULL, at);
}

static const expr *simplify_bool(arena *a, expr_op op, const expr *x, const expr *y, diag_span at) {
  if (op == EXPR_AND || op == EXPR_OR) {
    bool neutral = op == EXPR_AND;
    if (expr_is_const(x))
      return is_bool(x, neutral) ? y : x;
    if (expr_is_const(y))
      return is_bool(y, neutral) ? x : y;
    return expr_equal(x, y) ? x : NULL;
  }
  if (op != EXPR_NOT)
    return NULL;
  switch (x->op) {
  case EXPR_CONST: return constant(a, EXPR_BOOL, !x->integer, 0, at);
  case EXPR_NOT: return x->args[0];
  case EXPR_AND: return expr_build(a, EXPR_OR, negate(a, x->args[0], at), negate(a, x->args[1], at), NULL, at);
  case EXPR_OR: return expr_build(a, EXPR_AND, negate(a, x->args[0], at), negate(a, x->args[1], at), NULL, at);
  case EXPR_WHERE:
    return expr_build(a, EXPR_WHERE, x->args[0], negate(a, x->args[1], at), negate(a, x->args[2], at), at);
  default: return is_comparison(x->op) ? negate_comparison(a, x, at) : NULL;
  }
}

static const expr *simplify_where(arena *a, const expr *c, const expr *x, const expr *y, diag_span at) {
  if (expr_is_const(c))
    return c->integer ? x : y;
  if (expr_equal(x, y))
    return x;
  if (is_bool(x, true))
    return expr_build(a, EXPR_OR, c, y, NULL, at);
  if (is_bool(y, false))
    return expr_build(a, EXPR_AND, c, x, NULL, at);
  if (is_bool(x, false))
    return expr_build(a, EXPR_AND, negate(a, c, at), y, NULL, at);
  if (is_bool(y, true))
    return expr_build(a, EXPR_OR, negate(a, c, at), x, NULL, at);
  return NULL;
}

const expr *expr_build(arena *a, expr_op op, const expr *x, const expr *y, const expr *z, diag_span at) {
  const expr *simpler = NULL;
  if (op == EXPR_WHERE)
    simpler = simplify_where(a, x, y, z, at);
  else if (x->type == EXPR_BOOL)
    simpler = simplify_bool(a, op, x, y, at);
  else if (expr_is_const(x) && (!y || expr_is_const(y)))
    simpler = fold_constants(a, op, x, y, at);
  else
    simpler = (x->type == EXPR_INT ? simplify_int : simplify_real)(a, op, x, y, at);
  if (simpler)
    return simpler;
  expr *e = expr_node(a, op, result_type(op, x, y), at);
  e->args[0] = x;
  e->args[1] = y;
  e->args[2] = z;
  e->nargs = z ? 3 : y ? 2 : 1;
  return e;
}

const expr *expr_make(arena *a, expr_op op, const expr *x, const expr *y, const expr *z) {
  return expr_build(a, op, x, y, z, nowhere);
}

/* The operation of e on other arguments, folded. */
static const expr *rebuild(arena *a, const expr *e, const expr *args[EXPR_MAX_RANK]) {
  if (memcmp(args, e->args, sizeof e->args) == 0 && e->op == EXPR_PARAM)
    return e;
  if (e->op != EXPR_PARAM)
    return expr_build(a, e->op, args[0], args[1], args[2], e->at);
  expr *copy = expr_node(a, EXPR_PARAM, e->type, e->at);
  copy->param = e->param;
  copy->nargs = e->nargs;
  memcpy(copy->args, args, sizeof copy->args);
  return copy;
}

const expr *expr_fold(arena *a, const expr *e) {
  const expr *args[EXPR_MAX_RANK] = {0};
  if (e->op == EXPR_CONST || e->op == EXPR_SYMBOL || e->op == EXPR_LOCAL)
    return e;
  for (int n = 0; n < e->nargs; n++)
    args[n] = expr_fold(a, e->args[n]);
  return rebuild(a, e, args);
}

const expr *expr_substitute(arena *a, const expr *e, expr_symbol symbol, const expr *by) {
  const expr *args[EXPR_MAX_RANK] = {0};
  if (e->op == EXPR_SYMBOL)
    return e->symbol == symbol ? by : e;
  if (e->op == EXPR_CONST || e->op == EXPR_LOCAL)
    return e;
  for (int n = 0; n < e->nargs; n++)
    args[n] = expr_substitute(a, e->args[n], symbol, by);
  return rebuild(a, e, args);
}

const expr *expr_replace(arena *a, const expr *e, const expr *target, const expr *by) {
  const expr *args[EXPR_MAX_RANK] = {0};
  if (expr_equal(e, target))
    return by;
  for (int n = 0; n < e->nargs; n++)
    args[n] = expr_replace(a, e->args[n], target, by);
  return e->nargs ? rebuild(a, e, args) : e;
}
