/* mask_set.h: sets of intervals while they are derived. Used by mask_set.c (their algebra), mask_cases.c (from
 * expressions to sets) and mask_intervals.c (the results). Everything is written for rows: bounds on k for a query q;
 * columns are rows of the mask with q and k exchanged. */
#ifndef GEN_MASK_SET_H
#define GEN_MASK_SET_H

#include "mask_internal.h"

enum { SET_MAX_INTERVALS = 12 };

/* What holds for all bounds of one derivation. */
typedef struct mask_frame {
  arena *memory;
  const expr *begin, *end; /* where an interval without bounds begins and ends */
} mask_frame;

/* A union of intervals; see mask_intervals. */
typedef struct mask_set {
  int count;
  mask_interval items[SET_MAX_INTERVALS];
  const expr *fault; /* not NULL when an interval is inexact */
} mask_set;

mask_set mask_set_all(void);
mask_set mask_set_none(void);
/* Everything, inexactly, because of `fault`. */
mask_set mask_set_unknown(const expr *fault);
/* The keys with k >= value (low) or k < value, a value without k. */
mask_set mask_set_bound(const mask_frame *f, bool low, const expr *value);
/* All or none, by a condition without k. */
mask_set mask_set_condition(const mask_frame *f, const expr *condition);
mask_set mask_set_and(const mask_frame *f, const mask_set *x, const mask_set *y);
mask_set mask_set_or(const mask_frame *f, const mask_set *x, const mask_set *y);
/* x where the condition (without k) holds, else y. */
mask_set mask_set_choose(const mask_frame *f, const expr *condition, const mask_set *x, const mask_set *y);
/* Joins intervals into their hull until no more than `most` are left; the hull is inexact. */
void mask_set_limit(const mask_frame *f, mask_set *s, int most);

/* Of a bool in normal form. */
mask_set mask_set_of(const mask_frame *f, const expr *e);

/* The direction of a value without k, MASK_BY_ROW when it has none. */
int mask_set_direction(arena *a, const expr *value);
/* Of a minimum or maximum of values with these directions. */
int mask_set_join(int x, int y);
/* All bounds of one side as one value; NULL when there are none. */
const expr *mask_side(arena *a, const mask_interval *x, bool low);
/* Proven in every row: x begins no later than y (where y is not empty); x ends no later than y begins. */
bool mask_begins_before(const mask_frame *f, const mask_interval *x, const mask_interval *y);
bool mask_ends_before(const mask_frame *f, const mask_interval *x, const mask_interval *y);

#endif
