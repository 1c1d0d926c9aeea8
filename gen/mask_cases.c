/* mask_cases.c: from a mask to the set of keys that a row sees.
 *
 * Input: a bool in normal form. Output: a set of intervals, exact when the set is what is visible.
 *   and, or          of the sets; conjuncts `y // c == v` turn y % c of the others into y - c * v first
 *   where(c, a, b)   in a condition without k: choice of the sets; in a number: cases of the whole comparison
 *   sum <= 0, == 0, != 0   solved for k through constant factors, //, min, max and abs
 *   without k        all or none, by row
 *   anything else    all, inexactly; it is the fault that is told to the user
 * Comparisons are solved for k from the outside:
 *   c * y + r <= v   y <= floor((v - r) / c)          y // c <= v    y <= v * c + c - 1, c > 0
 *   max(y, z) <= v   y <= v and z <= v                min(y, z) <= v   y <= v or z <= v
 *   abs(y) <= v      y <= v and -v <= y               abs(y) >= v      y >= v or y <= -v */
#include "mask_set.h"

static bool has_k(const expr *e) {
  return expr_symbols(e) & EXPR_BIT(EXPR_K);
}

static const expr *negated(arena *a, const expr *e) {
  return expr_normalise(a, expr_make(a, EXPR_NOT, e, NULL, NULL));
}

/* ---- comparisons ---- */

/* A comparison x <= v or x >= v under way, and the mask's part that it stands in. */
typedef struct test {
  const mask_frame *frame;
  const expr *whole;
} test;

static mask_set solve(const test *t, const expr *x, bool at_most, const expr *v);

static mask_set solve_both(const test *t, const expr *const *args, bool and, bool at_most, const expr *v) {
  mask_set x = solve(t, args[0], at_most, v), y = solve(t, args[1], at_most, v);
  return (and? mask_set_and : mask_set_or)(t->frame, &x, &y);
}

/* atom <= v or atom >= v, the atom being no sum and containing k. */
static mask_set solve_atom(const test *t, const expr *atom, bool at_most, const expr *v) {
  arena *a = t->frame->memory;
  const expr *const *args = atom->args;
  switch (atom->op) {
  case EXPR_SYMBOL:
    return mask_set_bound(t->frame, !at_most, at_most ? mask_successor(a, v) : v);
  case EXPR_FLOORDIV:
    if (!expr_is_const(args[1]) || args[1]->integer <= 0)
      break;
    return solve(t, args[0], at_most, mask_undo_division(a, v, args[1]->integer, at_most));
  case EXPR_MIN:
  case EXPR_MAX:
    return solve_both(t, args, at_most == (atom->op == EXPR_MAX), at_most, v);
  case EXPR_ABS: {
    const expr *minus = expr_make(a, EXPR_NEG, v, NULL, NULL);
    mask_set x = solve(t, args[0], at_most, v), y = solve(t, args[0], !at_most, minus);
    return (at_most ? mask_set_and : mask_set_or)(t->frame, &x, &y);
  }
  default:
    break;
  }
  return mask_set_unknown(t->whole);
}

static mask_set solve(const test *t, const expr *x, bool at_most, const expr *v) {
  arena *a = t->frame->memory;
  linear rest = linear_split(a, x);
  linear_term term = {0};
  int kept = 0, with_k = 0;
  for (int n = 0; n < rest.count; n++) {
    if (has_k(rest.terms[n].atom)) {
      term = rest.terms[n];
      with_k++;
    } else {
      rest.terms[kept++] = rest.terms[n];
    }
  }
  rest.count = kept;
  if (with_k == 0)
    return mask_set_condition(t->frame, expr_make(a, at_most ? EXPR_LE : EXPR_GE, x, v, NULL));
  int64_t c = term.coefficient < 0 ? -term.coefficient : term.coefficient;
  if (with_k > 1 || c > INT32_MAX)
    return mask_set_unknown(t->whole);
  /* c * atom <= v - rest, or with a negative coefficient: c * atom >= rest - v */
  const expr *others = linear_build(a, &rest);
  bool flip = term.coefficient < 0;
  v = expr_make(a, EXPR_SUB, flip ? others : v, flip ? v : others, NULL);
  at_most ^= flip;
  if (c > 1 && !at_most)
    v = expr_make(a, EXPR_ADD, v, expr_int(a, c - 1), NULL);
  if (c > 1)
    v = expr_make(a, EXPR_FLOORDIV, v, expr_int(a, c), NULL);
  return solve_atom(t, term.atom, at_most, v);
}

/* Whether a condition without k should become a choice of bounds; else its two cases stand side by side, which keeps
 * their directions when it depends on the row. */
static bool is_uniform(const expr *condition) {
  return !(expr_symbols(condition) & (EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_K)));
}

/* The set x where the condition holds, y elsewhere. */
static mask_set either(const mask_frame *f, const expr *condition, const mask_set *x, const mask_set *y) {
  if (is_uniform(condition))
    return mask_set_choose(f, condition, x, y);
  mask_set in = mask_set_of(f, condition), out = mask_set_of(f, negated(f->memory, condition));
  in = mask_set_and(f, &in, x);
  out = mask_set_and(f, &out, y);
  return mask_set_or(f, &in, &out);
}

/* The first where() of ints in a comparison in which k plays some part. */
static const expr *find_where(const expr *e) {
  if (e->op == EXPR_WHERE && e->type == EXPR_INT && has_k(e))
    return e;
  const expr *found = NULL;
  for (int n = 0; n < e->nargs && !found; n++)
    found = find_where(e->args[n]);
  return found;
}

static mask_set set_of_comparison(const mask_frame *f, const expr *e) {
  arena *a = f->memory;
  const expr *where = find_where(e);
  if (where) { /* (condition and e with the first value) or (not condition and e with the second) */
    mask_set x = mask_set_of(f, expr_normalise(a, expr_replace(a, e, where, where->args[1])));
    mask_set y = mask_set_of(f, expr_normalise(a, expr_replace(a, e, where, where->args[2])));
    return either(f, where->args[0], &x, &y);
  }
  const test t = {f, e};
  const expr *sum = e->args[0];
  if (e->op == EXPR_NE) {
    mask_set less = solve(&t, sum, true, expr_int(a, -1)), more = solve(&t, sum, false, expr_int(a, 1));
    return mask_set_or(f, &less, &more);
  }
  mask_set x = solve(&t, sum, true, expr_int(a, 0));
  if (e->op == EXPR_LE)
    return x;
  mask_set y = solve(&t, sum, false, expr_int(a, 0));
  return mask_set_and(f, &x, &y);
}

/* ---- conjunctions ---- */

enum { MOST_PARTS = 64 };

/* When e says `y // c == v` with v free of k: the quotient and v. */
static bool is_quotient_test(arena *a, const expr *e, const expr **quotient, const expr **v) {
  if (e->op != EXPR_EQ || e->args[0]->type != EXPR_INT)
    return false;
  linear f = linear_split(a, e->args[0]);
  linear_term term = {0};
  int kept = 0;
  for (int n = 0; n < f.count; n++)
    if (!term.atom && has_k(f.terms[n].atom))
      term = f.terms[n];
    else
      f.terms[kept++] = f.terms[n];
  f.count = kept;
  const expr *rest = linear_build(a, &f);
  if (!term.atom || term.atom->op != EXPR_FLOORDIV || has_k(rest) || !expr_is_const(term.atom->args[1]) ||
      (term.coefficient != 1 && term.coefficient != -1))
    return false;
  *quotient = term.atom;
  *v = term.coefficient > 0 ? expr_make(a, EXPR_NEG, rest, NULL, NULL) : rest;
  return true;
}

/* Within `y // c == v`: y % c is y - c * v. */
static void use_quotients(arena *a, const expr **parts, int count) {
  for (int n = 0; n < count; n++) {
    const expr *quotient, *v;
    if (!is_quotient_test(a, parts[n], &quotient, &v))
      continue;
    const expr *y = quotient->args[0], *c = quotient->args[1];
    const expr *remainder = expr_make(a, EXPR_MOD, y, c, NULL);
    const expr *by = expr_make(a, EXPR_SUB, y, expr_make(a, EXPR_MUL, c, v, NULL), NULL);
    for (int m = 0; m < count; m++)
      if (m != n)
        parts[m] = expr_normalise(a, expr_replace(a, expr_replace(a, parts[m], remainder, by), quotient, v));
  }
}

static mask_set set_of_and(const mask_frame *f, const expr *e) {
  const expr *parts[MOST_PARTS];
  int count = 0;
  if (!mask_parts(EXPR_AND, e, parts, MOST_PARTS, &count))
    return mask_set_unknown(e);
  use_quotients(f->memory, parts, count);
  mask_set all = mask_set_all();
  for (int n = 0; n < count; n++) {
    mask_set one = mask_set_of(f, parts[n]);
    all = mask_set_and(f, &all, &one);
  }
  return all;
}

static mask_set set_of_or(const mask_frame *f, const expr *e) {
  const expr *parts[MOST_PARTS], *condition = NULL;
  int count = 0;
  if (!mask_parts(EXPR_OR, e, parts, MOST_PARTS, &count))
    return mask_set_unknown(e);
  mask_set any = mask_set_none(), all = mask_set_all();
  for (int n = 0; n < count; n++) {
    if (is_uniform(parts[n])) {
      condition = condition ? expr_make(f->memory, EXPR_OR, condition, parts[n], NULL) : parts[n];
      continue;
    }
    mask_set one = mask_set_of(f, parts[n]);
    any = mask_set_or(f, &any, &one);
  }
  return condition ? mask_set_choose(f, condition, &all, &any) : any;
}

mask_set mask_set_of(const mask_frame *f, const expr *e) {
  if (!has_k(e))
    return mask_set_condition(f, e);
  switch (e->op) {
  case EXPR_AND:
    return set_of_and(f, e);
  case EXPR_OR:
    return set_of_or(f, e);
  case EXPR_WHERE: {
    mask_set x = mask_set_of(f, e->args[1]), y = mask_set_of(f, e->args[2]);
    return either(f, e->args[0], &x, &y);
  }
  case EXPR_LE:
  case EXPR_EQ:
  case EXPR_NE:
    return e->args[0]->type == EXPR_INT ? set_of_comparison(f, e) : mask_set_unknown(e);
  default:
    return mask_set_unknown(e);
  }
}
