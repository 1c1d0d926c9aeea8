/* mask_residue.h: masks in which a row sees only keys of its own residue: `(q - k) % m == 0` and something else.
 *
 * With dilation d = max(abs(m), 1) and a residue r, 0 <= r < d, every position of a query or key is d * n + r for one
 * r. The language has x % 0 == 0, and x % -m == 0 where x % m == 0, so d says which pairs the conjunct lets through
 * for every m. Among the tokens of one residue, numbered by n, the rest of the mask is a mask of q' and k' without the
 * conjunct: `abs(q - k) <= w` is abs(q' - k') <= w // d, a window without gaps. So tiles hold tokens of one residue, and
 * a window of w with dilation d costs w / d.
 *
 * Source: change of variables in a periodic mask; checked against brute force in tests/unit/test_mask_residue.c. */
#ifndef GEN_MASK_RESIDUE_H
#define GEN_MASK_RESIDUE_H

#include "mask.h"

typedef struct mask_residue {
  /* m: a constant above 1, or a scalar int parameter of any value. */
  const expr *modulus;
  /* What else the mask asks, in its own positions; without i. */
  const expr *rest;
  /* The same of the tokens of one residue: EXPR_Q and EXPR_K are their numbers q' and k', EXPR_RESIDUE is r,
   * EXPR_DILATION is d when m is a parameter. The lengths that the mask speaks of have become EXPR_ALL_Q and EXPR_ALL_K,
   * so that in what is derived from it EXPR_LEN_K is the number of keys of the residue. */
  const expr *within;
} mask_residue;

/* False when no conjunct of the mask says that q and k have the same residue. `bottom_right` says what i means. Pure. */
bool mask_find_residue(arena *a, const expr *mask, bool bottom_right, mask_residue *out);

/* The plan that kernels follow. `dense`: all sequences have the same lengths; others hold neighbours in their tiles.
 * When tiles are to hold tokens of one residue it is that of out->within, without columns and proofs of empty rows.
 * Else it is mask_make_plan's of the mask, and out->modulus NULL: no residues, or elements of tensors decide tiles,
 * which are then better skipped than thinned out (a map of tiles knows neighbours only). */
mask_plan mask_make_tile_plan(arena *a, const expr *mask, const expr_param *params, bool bottom_right, bool heads_vary,
                              bool dense, mask_residue *out);

#endif
