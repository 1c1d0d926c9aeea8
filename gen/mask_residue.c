/* mask_residue.c: finds the conjunct that keeps residues apart, and writes the rest of a mask for one residue.
 *
 * The rest is rewritten comparison by comparison. In normal form a comparison is `sum <= 0`, `== 0` or `!= 0`; its sum
 * is split into d * x + y, where only x has q' and k'. Then d goes out of it:
 *   d * x + y <= 0   x <= -y // d
 *   d * x + y == 0   x == -y // d and y % d == 0          != 0: not that
 * What does not split keeps d * q' + r for q, which costs time at most. */
#include "mask_residue.h"

#include <stdlib.h>

#include "mask_internal.h"

enum { MOST_PARTS = 64 };

static bool moves(const expr *e) {
  return expr_symbols(e) & (EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_K));
}

/* ---- the conjunct ---- */

static int64_t common_divisor(int64_t x, int64_t y) {
  while (y) {
    int64_t rest = x % y;
    x = y;
    y = rest;
  }
  return llabs(x);
}

/* x % m == 0 holds wherever x % d == 0 does. */
static bool divides(const expr *m, const expr *d) {
  return m && expr_is_const(m) && expr_is_const(d) && d->integer % m->integer == 0;
}

/* x with x % m == 0 and nothing else, when the condition says that. */
static const expr *find_multiple(arena *a, const expr *e, const expr **m) {
  if ((e->op != EXPR_EQ && e->op != EXPR_LE) || e->args[0]->type != EXPR_INT)
    return NULL;
  linear f = linear_split(a, e->args[0]);
  if (f.constant || f.count < 1 || f.count > 2 || f.terms[0].atom->op != EXPR_MOD)
    return NULL;
  const expr *const *x = f.terms[0].atom->args;
  *m = x[1];
  if (f.count == 1) { /* `x % m <= 0` too, for m > 0 */
    bool says = e->op == EXPR_EQ || (f.terms[0].coefficient > 0 && expr_is_const(*m) && (*m)->integer > 0);
    const expr *multiple = x[0]->op == EXPR_ABS ? x[0]->args[0] : x[0];
    return says ? multiple : NULL;
  }
  const expr *y = f.terms[1].atom; /* x % m == y % m */
  bool equal = e->op == EXPR_EQ && y->op == EXPR_MOD && expr_equal(y->args[1], *m) &&
               f.terms[0].coefficient == -f.terms[1].coefficient && llabs(f.terms[0].coefficient) == 1;
  return equal ? expr_make(a, EXPR_SUB, x[0], y->args[0], NULL) : NULL;
}

/* The modulus for which e says that q - k is a multiple of it; NULL when it says something else. */
static const expr *modulus_of(arena *a, const expr *e) {
  const expr *m;
  const expr *multiple = find_multiple(a, e, &m);
  if (!multiple)
    return NULL;
  linear f = linear_of(a, multiple);
  bool parameter = m->op == EXPR_PARAM && m->nargs == 0;
  int64_t q = 0, k = 0, others = f.constant, divisor = expr_is_const(m) ? llabs(m->integer) : 0;
  for (int n = 0; n < f.count; n++) {
    const linear_term *t = &f.terms[n];
    if (t->atom->op == EXPR_SYMBOL && t->atom->symbol == EXPR_Q)
      q = t->coefficient;
    else if (t->atom->op == EXPR_SYMBOL && t->atom->symbol == EXPR_K)
      k = t->coefficient;
    else
      others = common_divisor(others, t->coefficient);
  }
  if (parameter)
    return f.count == 2 && others == 0 && q == -k && llabs(q) == 1 ? m : NULL;
  if (divisor < 2 || others % divisor || (q + k) % divisor)
    return NULL;
  divisor /= common_divisor(q, divisor); /* g * (q - k) is a multiple of g * d */
  return divisor > 1 ? expr_int(a, divisor) : NULL;
}

/* ---- the rest ---- */

typedef struct writer {
  arena *memory;
  const expr *dilation;
} writer;

/* dilation * steps + offset; q' and k' are in steps alone. */
typedef struct split {
  const expr *steps, *offset;
} split;

static const expr *make(const writer *w, expr_op op, const expr *x, const expr *y) {
  return expr_make(w->memory, op, x, y, NULL);
}

static const expr *within_of(const writer *w, const expr *e);
static bool split_int(const writer *w, const expr *e, split *out);

static bool split_sum(const writer *w, const expr *e, split *out) {
  arena *a = w->memory;
  linear f = linear_split(a, e);
  *out = (split){expr_int(a, 0), expr_int(a, f.constant)};
  for (int n = 0; n < f.count; n++) {
    const expr *factor = expr_int(a, f.terms[n].coefficient);
    split term;
    if (!split_int(w, f.terms[n].atom, &term))
      return false;
    out->steps = make(w, EXPR_ADD, out->steps, make(w, EXPR_MUL, factor, term.steps));
    out->offset = make(w, EXPR_ADD, out->offset, make(w, EXPR_MUL, factor, term.offset));
  }
  return true;
}

/* min, max and where() of ints: the offsets must agree. */
static bool split_choice(const writer *w, const expr *e, split *out) {
  arena *a = w->memory;
  bool where = e->op == EXPR_WHERE;
  split x, y;
  if (!split_int(w, e->args[where], &x) || !split_int(w, e->args[where + 1], &y) ||
      !expr_equal(expr_normalise(a, x.offset), expr_normalise(a, y.offset)))
    return false;
  out->offset = x.offset;
  out->steps = where ? expr_make(a, EXPR_WHERE, within_of(w, e->args[0]), x.steps, y.steps)
                     : make(w, e->op, x.steps, y.steps);
  return true;
}

/* Of an int expression in normal form. */
static bool split_int(const writer *w, const expr *e, split *out) {
  arena *a = w->memory;
  if (!moves(e)) {
    *out = (split){expr_int(a, 0), e};
    return true;
  }
  switch (e->op) {
  case EXPR_SYMBOL:
    *out = (split){e, expr_sym(a, EXPR_RESIDUE)};
    return true;
  case EXPR_NEG:
  case EXPR_ADD:
  case EXPR_SUB:
    return split_sum(w, e, out);
  case EXPR_MUL:
    return expr_is_const(e->args[0]) && split_sum(w, e, out);
  case EXPR_ABS: /* abs(d * x) is d * abs(x) */
    if (!split_int(w, e->args[0], out) || !expr_is_int(expr_normalise(a, out->offset), 0))
      return false;
    out->steps = make(w, EXPR_ABS, out->steps, NULL);
    return true;
  case EXPR_MIN:
  case EXPR_MAX:
  case EXPR_WHERE:
    return split_choice(w, e, out);
  default:
    return false;
  }
}

/* d * n + r for q and k. */
static const expr *spread(const writer *w, const expr *e) {
  static const expr_symbol tokens[] = {EXPR_Q, EXPR_K};
  for (int n = 0; n < 2; n++) {
    const expr *steps = make(w, EXPR_MUL, w->dilation, expr_sym(w->memory, tokens[n]));
    e = expr_substitute(w->memory, e, tokens[n], make(w, EXPR_ADD, steps, expr_sym(w->memory, EXPR_RESIDUE)));
  }
  return e;
}

/* Of a comparison of ints in normal form. */
static const expr *compare_within(const writer *w, const expr *e) {
  arena *a = w->memory;
  const expr *zero = expr_int(a, 0);
  split s;
  if (!split_int(w, e->args[0], &s))
    return spread(w, e);
  const expr *offset = expr_normalise(a, s.offset);
  const expr *bound = make(w, EXPR_FLOORDIV, expr_normalise(a, make(w, EXPR_NEG, offset, NULL)), w->dilation);
  if (expr_is_int(offset, 0)) /* the folder does not know that d is not 0 */
    bound = zero;
  if (e->op == EXPR_LE)
    return make(w, EXPR_LE, s.steps, bound);
  const expr *exact = expr_is_int(offset, 0)
                          ? expr_bool(a, true)
                          : make(w, EXPR_EQ, make(w, EXPR_MOD, offset, w->dilation), zero);
  const expr *equal = make(w, EXPR_AND, make(w, EXPR_EQ, s.steps, bound), exact);
  return e->op == EXPR_EQ ? equal : make(w, EXPR_NOT, equal, NULL);
}

/* Of a bool in normal form. */
static const expr *within_of(const writer *w, const expr *e) {
  if (!moves(e))
    return e;
  switch (e->op) {
  case EXPR_AND:
  case EXPR_OR:
    return make(w, e->op, within_of(w, e->args[0]), within_of(w, e->args[1]));
  case EXPR_NOT:
    return make(w, EXPR_NOT, within_of(w, e->args[0]), NULL);
  case EXPR_LE:
  case EXPR_EQ:
  case EXPR_NE:
    return e->args[0]->type == EXPR_INT && expr_is_int(e->args[1], 0) ? compare_within(w, e) : spread(w, e);
  default:
    return spread(w, e);
  }
}

bool mask_find_residue(arena *a, const expr *mask, bool bottom_right, mask_residue *out) {
  const expr *normal = expr_normalise(a, mask_without_i(a, mask, bottom_right)), *parts[MOST_PARTS];
  int count = 0, found = -1;
  *out = (mask_residue){.rest = expr_bool(a, true)};
  if (!mask_parts(EXPR_AND, normal, parts, MOST_PARTS, &count))
    return false;
  for (int n = 0; n < count; n++) { /* the greatest constant, else the first parameter */
    const expr *m = modulus_of(a, parts[n]), *best = out->modulus;
    bool better = m && (!best || (expr_is_const(m) && (!expr_is_const(best) || m->integer > best->integer)));
    if (better) {
      found = n;
      out->modulus = m;
    }
  }
  if (found < 0)
    return false;
  for (int n = 0; n < count; n++)
    if (n != found && !divides(modulus_of(a, parts[n]), out->modulus))
      out->rest = expr_make(a, EXPR_AND, out->rest, parts[n], NULL);
  const expr *rest = expr_substitute(a, out->rest, EXPR_LEN_Q, expr_sym(a, EXPR_ALL_Q));
  rest = expr_normalise(a, expr_substitute(a, rest, EXPR_LEN_K, expr_sym(a, EXPR_ALL_K)));
  const writer w = {a, expr_is_const(out->modulus) ? out->modulus : expr_sym(a, EXPR_DILATION)};
  out->within = expr_normalise(a, within_of(&w, rest));
  return true;
}

mask_plan mask_make_tile_plan(arena *a, const expr *mask, const expr_param *params, bool bottom_right, bool heads_vary,
                              bool dense, mask_residue *out) {
  if (dense && mask_find_residue(a, mask, bottom_right, out)) {
    mask_plan p = mask_make_plan(a, out->within, params, false, heads_vary);
    p.columns = (mask_intervals){.over = EXPR_K, .fault = out->within};
    p.emptiness = MASK_ROWS_MAY_BE_EMPTY;
    if (p.form != MASK_MAP)
      return p;
  }
  *out = (mask_residue){0};
  return mask_make_plan(a, mask, params, bottom_right, heads_vary);
}
