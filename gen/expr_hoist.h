/* expr_hoist.h: takes parts out of an expression that need not be computed for every pair of a query and a key.
 *
 * A part is worth a variable when it reads a tensor, divides or calls a function, and depends only on what is the same
 * along a row, or along a column, of a tile. */
#ifndef GEN_EXPR_HOIST_H
#define GEN_EXPR_HOIST_H

#include "expr.h"

enum { EXPR_MAX_HOISTED = 16 };

/* `rest` is the expression with its parts replaced by variables: parameters of the extended list `params` that print as
 * their names, "row_1", "key_1" and so on. Parts are distinct and do not use each other. */
typedef struct expr_hoisted {
  const expr *rest;
  const expr_param *params; /* the declared ones first */
  int nrows, nkeys;
  const expr *rows[EXPR_MAX_HOISTED]; /* without k */
  const expr *keys[EXPR_MAX_HOISTED]; /* without q, i and h */
} expr_hoisted;

/* What does not fit EXPR_MAX_HOISTED stays where it is. The result lives in the arena, `e` and `params` must too. */
expr_hoisted expr_hoist(arena *a, const expr *e, const expr_param *params, int nparams);

#endif
