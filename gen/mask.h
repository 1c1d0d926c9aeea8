/* mask.h: which keys a query row can see, derived from the mask expression (row intervals, form R).
 *
 * A mask is split into its conjuncts. Each conjunct that is linear in k becomes a bound on k: k >= low(q) or k < high(q).
 * The rest (if any) is evaluated per element. So row q sees a subset of [max low(q), min high(q)), and exactly that
 * interval when `exact`. Bounds that are monotone in q give the range of a whole tile from its first and last row.
 *
 * Assumption: positions, lengths and int parameters lie in [-2^30, 2^30], and sums and products of the mask do not
 * overflow 32 bits. A parameter of 2^31 - 1 for "no limit" breaks it; a window's -1 does not.
 *
 * Soundness: a key outside the interval is never visible. Checked against brute force in tests/unit/test_mask.c. */
#ifndef GEN_MASK_H
#define GEN_MASK_H

#include "expr.h"

/* The bound of the assumption above; callers refuse lengths and int parameters beyond it. */
enum { MASK_POSITION_LIMIT = 1 << 30 };

typedef enum mask_form {
  MASK_ALL,     /* every key is visible */
  MASK_NONE,    /* no key is visible */
  MASK_ROWS,    /* keys in [low, high), see below */
  MASK_ELEMENTS /* nothing known: every tile is evaluated per element */
} mask_form;

enum { MASK_MAX_BOUNDS = 8 };

/* An inclusive lower or exclusive upper bound on k for row q: an int expression over q and what is uniform in a tile
 * (h, hk, b, len_q, len_k, parameters that do not depend on q or k). `i` never occurs: it is q - (len_k - len_q) for
 * bottom-right alignment and q for top-left, and is substituted before the analysis. */
typedef struct mask_bound {
  const expr *value;
  int direction; /* of value as q grows: 1 never falls, -1 never rises, 0 does not depend on q */
} mask_bound;

typedef struct mask_rows {
  mask_form form;
  bool exact; /* MASK_ROWS: visible == in the interval */
  int nlow, nhigh;
  mask_bound low[MASK_MAX_BOUNDS];  /* the greatest counts; none: 0 */
  mask_bound high[MASK_MAX_BOUNDS]; /* the least counts; none: len_k */
} mask_rows;

/* Derives the form of `mask` (bool). `bottom_right` says what i means. */
mask_rows mask_analyse(arena *a, const expr *mask, bool bottom_right);

/* Which extreme of the interval over the rows of a tile. */
typedef enum mask_edge {
  MASK_VISIT_BEGIN, /* least low over the rows: no row sees a key before it */
  MASK_VISIT_END,   /* greatest high: no row sees a key at or after it */
  MASK_FULL_BEGIN,  /* greatest low: from here to MASK_FULL_END every row sees every key (when exact) */
  MASK_FULL_END     /* least high */
} mask_edge;

/* The edge as an int expression in which EXPR_Q stands for the tile's first row and EXPR_I for its last row (both in q
 * coordinates; the caller binds their texts when printing). Not clamped to [0, len_k). The full range is empty (from
 * len_k to 0) when the rows are not exact, the visited range when no key is visible. */
const expr *mask_tile_edge(arena *a, const mask_rows *rows, mask_edge edge);

#endif
