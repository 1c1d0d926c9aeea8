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

#endif
