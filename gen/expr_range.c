/* expr_range.c: in which interval the value of an int expression lies, and whether an operation can wrap.
 *
 * The language wraps at 32 bits; C++ leaves signed overflow undefined and NVRTC uses that (`i * c < 0` becomes `i <
 * 0`). So the printer needs to know which operators may overflow. Positions and lengths count as less than 2^29: a sum
 * of two is then less than 2^30, which is what a difference of positions is bounded by for lengths up to 2^30 (mask.h).
 */
#include "expr_internal.h"

enum { POSITION_LIMIT = 1 << 29, PARAM_LIMIT = 1 << 30 };

static const expr_range whole = {INT32_MIN, INT32_MAX};

static bool fits(expr_range r) {
  return r.low >= INT32_MIN && r.high <= INT32_MAX;
}

static int64_t least(int64_t x, int64_t y) {
  return x < y ? x : y;
}
static int64_t greatest(int64_t x, int64_t y) {
  return x > y ? x : y;
}

static expr_range join(expr_range x, expr_range y) {
  return (expr_range){least(x.low, y.low), greatest(x.high, y.high)};
}

static int64_t magnitude(expr_range r) {
  return greatest(-r.low, r.high);
}

static expr_range multiply(expr_range x, expr_range y) {
  int64_t a = x.low * y.low, b = x.low * y.high, c = x.high * y.low, d = x.high * y.high;
  return (expr_range){least(least(a, b), least(c, d)), greatest(greatest(a, b), greatest(c, d))};
}

static expr_range range_of_symbol(expr_symbol symbol, const expr_limits *limits) {
  if (symbol == EXPR_Q || symbol == EXPR_I) /* as mask_tile_edge uses it, i is a position too */
    return (expr_range){-limits->query, limits->query};
  return (expr_range){0, symbol == EXPR_K || symbol == EXPR_FIRST_KEY ? limits->key : limits->length};
}

static expr_range range_of_param(const expr *e, const expr_limits *limits) {
  int64_t limit = e->nargs || e->integer ? limits->tensor : limits->scalar;
  return limit > INT32_MAX ? whole : (expr_range){-limit, limit};
}

/* Operands are wrapped: at most 32 bits, so nothing here leaves 64. */
expr_range expr_exact_range(const expr *e, const expr_limits *limits) {
  expr_range x = e->nargs > 0 && e->args[0]->type == EXPR_INT ? expr_range_of(e->args[0], limits) : whole;
  expr_range y = e->nargs > 1 && e->args[1]->type == EXPR_INT ? expr_range_of(e->args[1], limits) : whole;
  switch (e->op) {
  case EXPR_CONST:
    return (expr_range){e->integer, e->integer};
  case EXPR_SYMBOL:
    return range_of_symbol(e->symbol, limits);
  case EXPR_LOCAL:
    return expr_range_of(e->args[0], limits);
  case EXPR_PARAM:
    return range_of_param(e, limits);
  case EXPR_NEG:
    return (expr_range){-x.high, -x.low};
  case EXPR_ABS:
    return (expr_range){0, magnitude(x)};
  case EXPR_ADD:
    return (expr_range){x.low + y.low, x.high + y.high};
  case EXPR_SUB:
    return (expr_range){x.low - y.high, x.high - y.low};
  case EXPR_MUL:
    return multiply(x, y);
  case EXPR_FLOORDIV:
    if (expr_is_const(e->args[1]) && y.low > 0)
      return (expr_range){expr_apply_int(EXPR_FLOORDIV, x.low, y.low), expr_apply_int(EXPR_FLOORDIV, x.high, y.low)};
    return (expr_range){-magnitude(x), magnitude(x)};
  case EXPR_MOD:
    return (expr_range){least(y.low + 1, 0), greatest(y.high - 1, 0)};
  case EXPR_BIT_OF:
    return (expr_range){0, 1};
  case EXPR_MIN:
    return (expr_range){least(x.low, y.low), least(x.high, y.high)};
  case EXPR_MAX:
    return (expr_range){greatest(x.low, y.low), greatest(x.high, y.high)};
  case EXPR_WHERE:
    return join(y, expr_range_of(e->args[2], limits));
  default:
    return whole;
  }
}

expr_range expr_range_of(const expr *e, const expr_limits *limits) {
  expr_range r = expr_exact_range(e, limits);
  return fits(r) ? r : whole;
}

static const expr_limits printed = {POSITION_LIMIT, POSITION_LIMIT, POSITION_LIMIT, PARAM_LIMIT, (int64_t)1 << 31};

bool expr_may_wrap(const expr *e) {
  return e->type == EXPR_INT && !fits(expr_exact_range(e, &printed));
}

const expr *expr_find_wrap(const expr *e, const expr_limits *limits) {
  const expr *found = NULL;
  for (int n = 0; n < e->nargs && !found; n++)
    found = expr_find_wrap(e->args[n], limits);
  if (!found && e->type == EXPR_INT && !fits(expr_exact_range(e, limits)))
    found = e;
  return found;
}
