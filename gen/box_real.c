/* box_real.c: intervals of floats. The device computes in f32 with approximate functions, the reference in f64; an
 * interval holds what either makes of any value of its operands, so every end is moved outwards. */
#include <float.h>
#include <math.h>

#include "box_internal.h"

/* Rounding, and the approximate functions of the device (absolute near 0, so `tiny` is not). */
static const double ROUNDING = 0x1p-20, ROUNDING_TINY = 0x1p-100, APPROXIMATION = 0x1p-12;

static box_real unknown(box_builder *b) {
  return (box_real){box_float(b, -INFINITY), box_float(b, INFINITY), box_bool(b, false)};
}

/* The interval moved outwards, known to be finite when its operands were and its ends are. */
static box_real outwards(box_builder *b, int low, int high, int finite, double real, double tiny) {
  low = box_move(b, BOX_BELOW, low, real, tiny);
  high = box_move(b, BOX_ABOVE, high, real, tiny);
  int above = box_make(b, BOX_LE, box_float(b, -FLT_MAX), low, -1);
  int below = box_make(b, BOX_LE, high, box_float(b, FLT_MAX), -1);
  return (box_real){low, high, box_and(b, finite, box_and(b, above, below))};
}

static box_real rounded(box_builder *b, int low, int high, int finite) {
  return outwards(b, low, high, finite, ROUNDING, ROUNDING_TINY);
}

static int pair(box_builder *b, box_op op, int x, int y) {
  return box_make(b, op, x, y, -1);
}

static box_real real_corners(box_builder *b, box_op op, box_real x, box_real y, int finite) {
  int e[4] = {pair(b, op, x.low, y.low), pair(b, op, x.low, y.high), pair(b, op, x.high, y.low),
              pair(b, op, x.high, y.high)};
  return rounded(b, pair(b, BOX_MIN, pair(b, BOX_MIN, e[0], e[1]), pair(b, BOX_MIN, e[2], e[3])),
                 pair(b, BOX_MAX, pair(b, BOX_MAX, e[0], e[1]), pair(b, BOX_MAX, e[2], e[3])), finite);
}

static box_real negative(box_builder *b, box_real x) {
  int zero = box_float(b, 0);
  return (box_real){pair(b, BOX_SUB, zero, x.high), pair(b, BOX_SUB, zero, x.low), x.finite};
}

static box_real constant(box_builder *b, double value) {
  float f = (float)value;
  bool exact = (double)f == value;
  return (box_real){box_float(b, exact ? f : nextafterf(f, -INFINITY)),
                    box_float(b, exact ? f : nextafterf(f, INFINITY)), box_bool(b, isfinite(f))};
}

static box_real param(box_builder *b, box_scope *s, const expr *e) {
  box_span x;
  if (!box_gather_span(b, s, e, &x))
    return unknown(b);
  int above = box_make(b, BOX_LE, box_float(b, -FLT_MAX), x.low, -1);
  int below = box_make(b, BOX_LE, x.high, box_float(b, FLT_MAX), -1);
  return (box_real){x.low, x.high, box_and(b, above, below)};
}

static box_real quotient(box_builder *b, box_real x, box_real y) {
  int zero = box_float(b, 0); /* a divisor that may be 0: no number is known */
  int apart = box_or(b, box_make(b, BOX_LT, zero, y.low, -1), box_make(b, BOX_LT, y.high, zero, -1));
  return real_corners(b, BOX_DIV, x, y, box_and(b, apart, box_and(b, x.finite, y.finite)));
}

static box_real where_real(box_builder *b, box_scope *s, const expr *e) {
  box_real x = box_real_span(b, s, e->args[1]), y = box_real_span(b, s, e->args[2]);
  return (box_real){pair(b, BOX_MIN, x.low, y.low), pair(b, BOX_MAX, x.high, y.high), box_and(b, x.finite, y.finite)};
}

static box_real function(box_builder *b, box_op op, box_real x) {
  int finite = x.finite, zero = box_float(b, 0);
  if (op == BOX_LOG)
    finite = box_and(b, finite, box_make(b, BOX_LT, zero, x.low, -1));
  if (op == BOX_SQRT)
    finite = box_and(b, finite, box_make(b, BOX_LE, zero, x.low, -1));
  return outwards(b, box_make(b, op, x.low, -1, -1), box_make(b, op, x.high, -1, -1), finite, APPROXIMATION,
                  APPROXIMATION);
}

box_real box_real_span(box_builder *b, box_scope *s, const expr *e) {
  static const box_op functions[EXPR_OP_COUNT] = {[EXPR_EXP] = BOX_EXP,
                                                  [EXPR_EXP2] = BOX_EXP2,
                                                  [EXPR_LOG] = BOX_LOG,
                                                  [EXPR_TANH] = BOX_TANH,
                                                  [EXPR_SQRT] = BOX_SQRT};
  switch (e->op) {
  case EXPR_CONST:
    return constant(b, e->real);
  case EXPR_PARAM:
    return param(b, s, e);
  case EXPR_WHERE:
    return where_real(b, s, e);
  case EXPR_SYMBOL:
    return unknown(b);
  case EXPR_TO_FLOAT: {
    box_span x = box_int_span(b, s, e->args[0]);
    return rounded(b, box_make(b, BOX_TO_FLOAT, x.low, -1, -1), box_make(b, BOX_TO_FLOAT, x.high, -1, -1),
                   box_bool(b, true));
  }
  default:
    break;
  }
  box_real x = box_real_span(b, s, e->args[0]), y = e->nargs > 1 ? box_real_span(b, s, e->args[1]) : x;
  int finite = box_and(b, x.finite, y.finite);
  switch (e->op) {
  case EXPR_NEG:
    return negative(b, x);
  case EXPR_ABS: {
    box_real n = negative(b, x);
    return (box_real){pair(b, BOX_MAX, pair(b, BOX_MAX, x.low, n.low), box_float(b, 0)),
                      pair(b, BOX_MAX, x.high, n.high), finite};
  }
  case EXPR_ADD:
    return rounded(b, pair(b, BOX_ADD, x.low, y.low), pair(b, BOX_ADD, x.high, y.high), finite);
  case EXPR_SUB:
    return rounded(b, pair(b, BOX_SUB, x.low, y.high), pair(b, BOX_SUB, x.high, y.low), finite);
  case EXPR_MUL:
    return real_corners(b, BOX_MUL, x, y, finite);
  case EXPR_DIV:
    return quotient(b, x, y);
  case EXPR_MIN:
    return (box_real){pair(b, BOX_MIN, x.low, y.low), pair(b, BOX_MIN, x.high, y.high), finite};
  case EXPR_MAX:
    return (box_real){pair(b, BOX_MAX, x.low, y.low), pair(b, BOX_MAX, x.high, y.high), finite};
  default:
    return functions[e->op] ? function(b, functions[e->op], x) : unknown(b);
  }
}
