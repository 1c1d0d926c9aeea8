/* mask_internal.h: what mask.c and mask_solve.c share. */
#ifndef GEN_MASK_INTERNAL_H
#define GEN_MASK_INTERNAL_H

#include "expr_internal.h"
#include "mask.h"

/* How an int expression in normal form without k moves as q grows; see mask_bound. False when that is not known. */
bool mask_direction(arena *a, const expr *e, int *direction);
/* The direction of a sum, minimum or maximum of values with directions x and y. False when they differ. */
bool mask_join(int x, int y, int *direction);
/* Adds a bound; when there is no room for it, rows are no longer exact. */
void mask_add(arena *a, mask_rows *rows, bool low, const expr *value, int direction);
/* Adds a condition without k: no key is visible where it is false. */
void mask_add_condition(arena *a, mask_rows *rows, const expr *condition);
/* Adds what `sum <= 0` (or `sum == 0`) says about k. `sum` is an int expression in normal form. */
void mask_solve(arena *a, mask_rows *rows, const expr *sum, bool equal);
/* Joins into *growth how an interval grows by some of its bounds; false: MASK_BY_ROW. */
bool mask_join_growth(const mask_bound *bounds, int count, bool low, int *growth);
/* The operands of a tree of `and` or `or`, added to parts; false when there are more than `most`. */
bool mask_parts(expr_op op, const expr *e, const expr **parts, int most, int *count);

/* `i` replaced by what it is in q coordinates (mask_intervals.c). */
const expr *mask_without_i(arena *a, const expr *mask, bool bottom_right);

/* ---- facts about sums (mask_proof.c) ---- */

/* What may be assumed of the symbols, besides that lengths and k are not negative. */
enum {
  FACT_LEN_K_POSITIVE = 1, /* len_k >= 1 */
  FACT_Q_FROM_0 = 2,       /* q >= 0 */
  FACT_Q_IN_KEYS = 4,      /* q <= len_k - 1 */
  FACT_Q_IN_QUERIES = 8,   /* q <= len_q - 1 */
  FACT_Q_FROM_OFFSET = 16, /* q >= len_k - len_q */
  FACT_SHORT = 32          /* len_q <= len_k */
};

/* Whether the exact value of the int expression e, in which nothing wraps, is at least `least` under the facts. False
 * when it could not be proven. */
bool mask_at_least(arena *a, const expr *e, int64_t least, unsigned facts);
/* The normal form of e, in whose sum m * c * (x // c) + m * (x % c) has become m * x. Bools are left as they are. */
const expr *mask_join_quotients(arena *a, const expr *e);
/* v + 1; of an element of a tensor, which may be any int, something beyond all positions when it would wrap. */
const expr *mask_successor(arena *a, const expr *v);
/* The v' with y // c <= v as y <= v' (at_most), or y // c >= v as y >= v', for c > 0 and |y| up to 2^30. Where v * c
 * could wrap, v is clamped first. */
const expr *mask_undo_division(arena *a, const expr *v, int64_t c, bool at_most);

#endif
