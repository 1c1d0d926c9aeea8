/* mask_solve.c: solves comparisons of integers for k.
 *
 * Input: an int expression x in normal form and a value v without k. Output: bounds on k that hold wherever x <= v
 * (or x >= v). x is taken apart from the outside:
 *   c * y + r <= v      y <= floor((v - r) / c)
 *   y // c <= v         y <= v * c + c - 1                 c > 0
 *   max(y, z) <= v      y <= v and z <= v;  min likewise for >=
 *   abs(y) <= v         y <= v and -v <= y
 * until y is k itself. What does not fit these forms leaves the rows inexact. */
#include "mask_internal.h"

static void solve(arena *a, mask_rows *rows, const expr *x, bool at_most, const expr *v);

static const expr *add(arena *a, const expr *x, const expr *y) {
  return expr_make(a, EXPR_ADD, x, y, NULL);
}
static const expr *subtract(arena *a, const expr *x, const expr *y) {
  return expr_make(a, EXPR_SUB, x, y, NULL);
}

/* ceil(x / c) for c > 0. */
static const expr *ceil_div(arena *a, const expr *x, int64_t c) {
  return expr_make(a, EXPR_FLOORDIV, add(a, x, expr_int(a, c - 1)), expr_int(a, c), NULL);
}

/* k <= v or k >= v. */
static void bound(arena *a, mask_rows *rows, bool at_most, const expr *v) {
  int direction;
  const expr *value = expr_normalise(a, at_most ? add(a, v, expr_int(a, 1)) : v);
  if (mask_direction(a, value, &direction))
    mask_add(a, rows, !at_most, value, direction);
  else
    rows->exact = false;
}

/* atom <= v or atom >= v, the atom being no sum and containing k. */
static void solve_atom(arena *a, mask_rows *rows, const expr *atom, bool at_most, const expr *v) {
  const expr *const *args = atom->args;
  if (atom->op == EXPR_SYMBOL) {
    bound(a, rows, at_most, v);
  } else if (atom->op == EXPR_FLOORDIV && expr_is_const(args[1]) && args[1]->integer > 0) {
    solve(a, rows, args[0], at_most, mask_undo_division(a, v, args[1]->integer, at_most));
  } else if (atom->op == (at_most ? EXPR_MAX : EXPR_MIN)) {
    solve(a, rows, args[0], at_most, v);
    solve(a, rows, args[1], at_most, v);
  } else if (atom->op == EXPR_ABS && at_most) {
    solve(a, rows, args[0], true, v);
    solve(a, rows, args[0], false, expr_make(a, EXPR_NEG, v, NULL, NULL));
  } else {
    rows->exact = false;
  }
}

static void solve(arena *a, mask_rows *rows, const expr *x, bool at_most, const expr *v) {
  linear rest = linear_split(a, x);
  linear_term term = {0};
  int kept = 0, with_k = 0;
  for (int n = 0; n < rest.count; n++) {
    if (expr_symbols(rest.terms[n].atom) & EXPR_BIT(EXPR_K)) {
      term = rest.terms[n];
      with_k++;
    } else {
      rest.terms[kept++] = rest.terms[n];
    }
  }
  rest.count = kept;
  if (with_k == 0) {
    mask_add_condition(a, rows, expr_make(a, at_most ? EXPR_LE : EXPR_GE, x, v, NULL));
    return;
  }
  int64_t c = term.coefficient < 0 ? -term.coefficient : term.coefficient;
  if (with_k > 1 || c > INT32_MAX) {
    rows->exact = false;
    return;
  }
  /* c * atom <= v - rest, or with a negative coefficient: c * atom >= rest - v */
  const expr *others = linear_build(a, &rest);
  bool flip = term.coefficient < 0;
  v = flip ? subtract(a, others, v) : subtract(a, v, others);
  at_most ^= flip;
  if (c > 1)
    v = at_most ? expr_make(a, EXPR_FLOORDIV, v, expr_int(a, c), NULL) : ceil_div(a, v, c);
  solve_atom(a, rows, term.atom, at_most, v);
}

void mask_solve(arena *a, mask_rows *rows, const expr *sum, bool equal) {
  const expr *zero = expr_int(a, 0);
  solve(a, rows, sum, true, zero);
  if (equal)
    solve(a, rows, sum, false, zero);
}
