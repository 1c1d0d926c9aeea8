/* expr_range.c: in which interval the value of an int expression lies, and whether an operation can wrap.
 *
 * The language wraps at 32 bits; C++ leaves signed overflow undefined and NVRTC uses that (`i * c < 0` becomes `i <
 * 0`). So the printer needs to know which operators may overflow. Positions and lengths count as less than 2^29: a sum
 * of two is then less than 2^30, which is what a difference of positions is bounded by for lengths up to 2^30 (mask.h).
 */
#include "expr_internal.h"

enum { POSITION_LIMIT = 1 << 29, PARAM_LIMIT = 1 << 30 };

typedef struct range {
  int64_t low, high;
} range;

static const range whole = {INT32_MIN, INT32_MAX};

static bool fits(range r) {
  return r.low >= INT32_MIN && r.high <= INT32_MAX;
}

static int64_t least(int64_t x, int64_t y) {
  return x < y ? x : y;
}
static int64_t greatest(int64_t x, int64_t y) {
  return x > y ? x : y;
}

static range join(range x, range y) {
  return (range){least(x.low, y.low), greatest(x.high, y.high)};
}

static int64_t magnitude(range r) {
  return greatest(-r.low, r.high);
}

static range multiply(range x, range y) {
  int64_t a = x.low * y.low, b = x.low * y.high, c = x.high * y.low, d = x.high * y.high;
  return (range){least(least(a, b), least(c, d)), greatest(greatest(a, b), greatest(c, d))};
}

static range range_of(const expr *e);

/* Of the operation without wrapping. Operands are wrapped: at most 32 bits, so nothing here leaves 64. */
static range unwrapped(const expr *e) {
  range x = e->nargs > 0 && e->args[0]->type == EXPR_INT ? range_of(e->args[0]) : whole;
  range y = e->nargs > 1 && e->args[1]->type == EXPR_INT ? range_of(e->args[1]) : whole;
  switch (e->op) {
  case EXPR_CONST: return (range){e->integer, e->integer};
  case EXPR_SYMBOL: /* as mask_tile_edge uses it, i is a position too */
    return (range){e->symbol == EXPR_Q || e->symbol == EXPR_I ? -POSITION_LIMIT : 0, POSITION_LIMIT};
  case EXPR_PARAM: return e->nargs ? whole : (range){-PARAM_LIMIT, PARAM_LIMIT};
  case EXPR_NEG: return (range){-x.high, -x.low};
  case EXPR_ABS: return (range){0, magnitude(x)};
  case EXPR_ADD: return (range){x.low + y.low, x.high + y.high};
  case EXPR_SUB: return (range){x.low - y.high, x.high - y.low};
  case EXPR_MUL: return multiply(x, y);
  case EXPR_FLOORDIV:
    if (expr_is_const(e->args[1]) && y.low > 0)
      return (range){expr_apply_int(EXPR_FLOORDIV, x.low, y.low), expr_apply_int(EXPR_FLOORDIV, x.high, y.low)};
    return (range){-magnitude(x), magnitude(x)};
  case EXPR_MOD: return (range){least(y.low + 1, 0), greatest(y.high - 1, 0)};
  case EXPR_BIT_OF: return (range){0, 1};
  case EXPR_MIN: return (range){least(x.low, y.low), least(x.high, y.high)};
  case EXPR_MAX: return (range){greatest(x.low, y.low), greatest(x.high, y.high)};
  case EXPR_WHERE: return join(y, range_of(e->args[2]));
  default: return whole;
  }
}

static range range_of(const expr *e) {
  range r = unwrapped(e);
  return fits(r) ? r : whole;
}

bool expr_may_wrap(const expr *e) {
  return e->type == EXPR_INT && !fits(unwrapped(e));
}
