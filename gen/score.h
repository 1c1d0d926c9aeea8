/* score.h: the way of a product of Q and K to an exponent of 2, cheap enough for every element of a tile.
 *
 * A kernel computes exp2(v * factor * log2(e) + shift - reference), one fma and one exponential, where v is the product
 * itself whenever only the scale and terms of the row stand between the two. Otherwise `value` says what v is. Their sum
 * times the factor is the score up to the rounding of f32: a sum of products, so that it becomes a chain of fma;
 * divisions by constants are multiplications, other divisions multiplications by an approximate reciprocal; constants are computed
 * here; and where a position becomes a float, that of a thread's first key does, to which the unrolled column is added
 * as a constant (exact below 2^24). Comparisons, floor() and indices are left as they are written.
 *
 * score_lower.c makes plans, score_place.c says what of them is computed how often. All functions are pure and thread
 * safe; results live in the arena. */
#ifndef GEN_SCORE_H
#define GEN_SCORE_H

#include "score_derivative.h"

typedef struct score_plan {
  double factor;     /* > 0: score = (value + shift) * factor, in natural units */
  const expr *value; /* float, over EXPR_S: here the product without scale */
  const expr *shift; /* float, the same for all keys of a thread's row in a tile; NULL: 0 */
  bool is_product;   /* value is EXPR_S */
  bool gathers;      /* value reads tensors, key by key */
  bool bounded;      /* value + shift lies within -1 and 1, and factor * log2(e) below 2^24 */
  score_derivative derivative;
} score_plan;

/* The plan for s = scale * product, capped where softcap > 0, then `score`. approximate_tanh: hyperbolic tangents may
 * be off by 2^-11 of their value. */
score_plan score_make_plan(arena *a, const expr *score, double scale, double softcap, bool approximate_tanh);

/* How often a value of a tile's loops must be computed. */
typedef enum score_level { SCORE_ONCE, SCORE_ROW, SCORE_COLUMN, SCORE_ELEMENT } score_level;

/* A plan's value with what is the same throughout a row, a column or the tile in locals: EXPR_LOCAL number n stands for
 * local[n], which may use locals below n of level SCORE_ONCE. */
typedef struct score_code {
  int count, capacity;
  const expr **local;
  score_level *level;
  const expr *value, *shift; /* shift: no local of a row in it; NULL: none */
} score_code;

/* packed: rows are of several heads. */
score_code score_place(arena *a, const score_plan *plan, bool packed);

#endif
