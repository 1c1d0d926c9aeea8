/* mask.h: which keys a query row can see, derived from the mask expression (row intervals, form R).
 *
 * A mask is split into its conjuncts. Each conjunct that is linear in k becomes a bound on k: k >= low(q) or k <
 * high(q). The rest (if any) is evaluated per element. So row q sees a subset of [max low(q), min high(q)), and exactly
 * that interval when `exact`. Bounds that are monotone in q give the range of a whole tile from its first and last row.
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

/* What is known of a mask, best first. mask_analyse, the view of one interval, says MASK_ALL, MASK_NONE, MASK_ROWS
 * (with or without `exact`) or MASK_ELEMENTS; mask_make_plan says any of them, and MASK_ROWS only when exact. */
typedef enum mask_form {
  MASK_ALL,     /* every key is visible */
  MASK_NONE,    /* no key is visible */
  MASK_ROWS,    /* keys of one or a few intervals per row, in closed form */
  MASK_BOXES,   /* a box program decides tiles, from their place and scalar parameters */
  MASK_MAP,     /* a box program decides tiles with summaries of tensors: the data decide */
  MASK_ELEMENTS /* nothing known: every tile is evaluated per element */
} mask_form;

enum { MASK_MAX_BOUNDS = 8, MASK_MAX_INTERVALS = 4 };

/* A direction besides -1, 0 and 1: the value goes up and down over the rows (a gather such as start[q]), so its extreme
 * over a tile has to be taken over all of its rows. Only in mask_intervals, never in mask_rows. */
enum { MASK_BY_ROW = 2 };

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

/* Whether the visited tiles of a tile of rows are one range, and those free of the mask another: what kernels prefer to
 * all that a mask_plan knows beyond. */
bool mask_is_range(const mask_rows *rows);

/* Derives the form of `mask` (bool). `bottom_right` says what i means. */
mask_rows mask_analyse(arena *a, const expr *mask, bool bottom_right);

/* Whether each row's interval holds that of the row before (1), that of the row after (-1), both (0), or neither as far
 * as the directions of bounds tell (MASK_BY_ROW). The same then goes for the tiles of keys that tiles of rows visit. */
int mask_rows_growth(const mask_rows *rows);

/* Whether a constant bounds how many keys a row sees, such as a window's; *width is the least that the bounds give. */
bool mask_rows_width(arena *a, const mask_rows *rows, int64_t *width);

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

/* ---- several intervals per row (form R), and per key (form C) ---- */

/* [greatest low, least high); without a low it starts at mask_intervals.begin, without a high it ends at .end. The
 * bounds may lie outside [begin, end), and the interval may be empty in some or all rows. */
typedef struct mask_interval {
  bool exact; /* every key of the interval is visible */
  int nlow, nhigh;
  mask_bound low[MASK_MAX_BOUNDS], high[MASK_MAX_BOUNDS];
} mask_interval;

/* What one row sees: nothing outside the union of the intervals, and all of every exact one.
 *
 * Rows (`over` is EXPR_Q): intervals of k for query q; bounds are int expressions over q and what is the same in a
 * tile, begin is 0 and end len_k. Columns (`over` is EXPR_K): intervals of q, in q coordinates, for key k; begin and
 * end are the positions of the first query and after the last. `i` never occurs in a bound. */
typedef struct mask_intervals {
  expr_symbol over;
  int count;     /* 0: nothing is visible */
  bool exact;    /* every interval is: the union is what is visible */
  bool ordered;  /* proven: in every row the intervals begin in the order of their numbers, where not empty */
  bool disjoint; /* proven: in every row each ends at or before the next one's begin, so ordered too */
  const expr *begin, *end;
  mask_interval items[MASK_MAX_INTERVALS];
  const expr *fault; /* the part of the mask that made it inexact (in normal form); NULL when exact */
} mask_intervals;

/* Intervals of keys per query row; of query rows per key (for passes that hold a tile of keys). An inexact result with
 * one interval without bounds says nothing. */
mask_intervals mask_row_intervals(arena *a, const expr *mask, bool bottom_right);
mask_intervals mask_column_intervals(arena *a, const expr *mask, bool bottom_right);

/* The value of an interval's side in one row, as an int expression over `over`: max(begin, lows) or min(end, highs). */
const expr *mask_interval_side(arena *a, const mask_intervals *m, int interval, bool low);
/* Whether that side has a bound of direction MASK_BY_ROW: then the caller takes the least and the greatest of
 * mask_interval_side over the rows of the tile. */
bool mask_interval_by_row(const mask_intervals *m, int interval, bool low);
/* The edge of one interval over a tile of rows as mask_tile_edge gives it, clamped to [begin, end] on its own side:
 * `over` stands for the tile's first row (or key) and EXPR_I for its last. NULL when that side is by row. The full
 * range of an inexact interval is empty. A tile is free of the mask when it lies in the full range of one interval. */
const expr *mask_interval_edge(arena *a, const mask_intervals *m, int interval, mask_edge edge);

/* As mask_rows_growth, of the unions of the intervals. */
int mask_intervals_growth(const mask_intervals *m);

/* ---- proofs (mask_proof.c) ---- */

/* The greatest lengths and the greatest magnitudes of int parameters that a caller admits; at most 2^31 - 1. */
typedef struct mask_limits {
  int64_t len_q, len_k;
  int64_t scalar; /* scalar int parameters */
  int64_t tensor; /* elements of int tensors */
} mask_limits;

/* MASK_POSITION_LIMIT for all but elements of tensors, which are any int. */
mask_limits mask_default_limits(void);

typedef enum mask_emptiness {
  MASK_ROWS_MAY_BE_EMPTY,     /* or nothing was proven */
  MASK_NO_EMPTY_ROW_IF_SHORT, /* every row sees a key when 1 <= len_k and len_q <= len_k */
  MASK_NO_EMPTY_ROW           /* every row sees a key when 1 <= len_k */
} mask_emptiness;

/* Whether every query row sees at least one key, proven from exact intervals. */
mask_emptiness mask_prove_rows(arena *a, const mask_intervals *rows, bool bottom_right);

/* The first int subexpression of `e` (in evaluation order) whose exact value can leave 32 bits within the limits; NULL
 * when none can: then the language never wraps in it. The assumption at the head of this file is proven for a mask
 * whose result is NULL for both the mask and its normal form. */
const expr *mask_find_overflow(const expr *e, const mask_limits *limits);

/* ---- everything that is known of one mask ---- */

struct box_program;

typedef struct mask_plan {
  mask_form form;
  mask_rows hull; /* as mask_analyse */
  mask_intervals rows, columns;
  const struct box_program *box; /* decides boxes, see box.h; NULL when it decides none in practice (form MASK_ELEMENTS)
                                    or need not (MASK_ALL, MASK_NONE) */
  mask_emptiness emptiness;
  const expr *overflow; /* of mask_find_overflow on the mask, with the default limits */
} mask_plan;

/* `heads_vary`: the rows of one tile belong to several query heads (those of one KV head). */
mask_plan mask_make_plan(arena *a, const expr *mask, const expr_param *params, bool bottom_right, bool heads_vary);

/* mask_rows_growth of what kernels visit: the hull (`by_hull`), the intervals, or what a box program finds. */
int mask_plan_growth(const mask_plan *p, bool by_hull);
/* Whether kernels visit the tiles of the plan's hull, one range: it is all there is to know, or what is known beyond it
 * takes a map of tiles and there is none. `mapped`: there may be one, which knows neither residues nor sequences of
 * lengths of their own. */
bool mask_visits_range(const mask_plan *p, bool mapped);

#endif
