/* score_derivative.h: the derivative of a score in the scaled product, as an expression.
 *
 * A backward pass turns gradients of scores y = f(s) into gradients of products: dS = dY f'(s). What it must keep for
 * that depends on f', whose class says it. At ties min, max and abs take their first arm: min(a, b) and max(a, b) a,
 * abs(a) a itself. Conditions, floor() and indices have no slope.
 *
 * Pure and thread safe; results live in the arena and share their parts with the score. */
#ifndef GEN_SCORE_DERIVATIVE_H
#define GEN_SCORE_DERIVATIVE_H

#include "expr.h"

typedef enum score_class {
  SCORE_SLOPE_FREE,     /* f' does not depend on s: nothing is kept */
  SCORE_SLOPE_OF_VALUE, /* f' is a function of y, which probabilities and LSE give back */
  SCORE_SLOPE_OF_S      /* s must be kept or computed again */
} score_class;

typedef struct score_derivative {
  score_class class;
  const expr *slope; /* f', float; over EXPR_LOCAL number 0 for y in class SCORE_SLOPE_OF_VALUE, else over EXPR_S */
} score_derivative;

/* Of `score` over s capped where softcap > 0. */
score_derivative score_derive(arena *a, const expr *score, double softcap);

#endif
