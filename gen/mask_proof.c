/* mask_proof.c: what can be proven of int expressions and of a mask: least values, non-empty rows, no overflow.
 *
 * A least value is proven on the linear form: min, max and where() are taken apart (every arm, or some arm, by the
 * sign), c * (x // d) is replaced by what it is next to, q by its least or greatest value, and what is left by the ends
 * of its range. All steps only make the value less, so a proof is a proof; there is no search beyond the arms. */
#include <string.h>

#include "mask_internal.h"

mask_limits mask_default_limits(void) {
  return (mask_limits){MASK_POSITION_LIMIT, MASK_POSITION_LIMIT, MASK_POSITION_LIMIT, INT32_MAX};
}

/* q and i lie between the negative number of queries and the greater of both lengths. */
static expr_limits symbol_limits(const mask_limits *m) {
  int64_t length = m->len_q > m->len_k ? m->len_q : m->len_k;
  return (expr_limits){.query = length,
                       .key = m->len_k - 1,
                       .length = length,
                       .scalar = m->scalar,
                       .tensor = m->tensor == INT32_MAX ? (int64_t)INT32_MAX + 1 : m->tensor};
}

const expr *mask_find_overflow(const expr *e, const mask_limits *limits) {
  expr_limits symbols = symbol_limits(limits);
  return expr_find_wrap(e, &symbols);
}

const expr *mask_undo_division(arena *a, const expr *v, int64_t c, bool at_most) {
  const expr_limits symbols = {MASK_POSITION_LIMIT / 2, MASK_POSITION_LIMIT / 2, MASK_POSITION_LIMIT / 2,
                               MASK_POSITION_LIMIT, MASK_POSITION_LIMIT};
  const expr *factor = expr_int(a, c);
  expr_range r = expr_range_of(expr_normalise(a, v), &symbols);
  bool may_wrap = r.low * c < INT32_MIN || r.high * c + c - 1 > INT32_MAX;
  if (may_wrap && c <= MASK_POSITION_LIMIT / 2) {
    const expr *most = expr_int(a, MASK_POSITION_LIMIT / c + 1);
    v = expr_make(a, EXPR_MAX, expr_make(a, EXPR_MIN, v, most, NULL), expr_make(a, EXPR_NEG, most, NULL, NULL), NULL);
  }
  v = expr_make(a, EXPR_MUL, v, factor, NULL);
  return at_most ? expr_make(a, EXPR_ADD, v, expr_int(a, c - 1), NULL) : v;
}

const expr *mask_successor(arena *a, const expr *v) {
  v = expr_normalise(a, v);
  if (v->op == EXPR_PARAM && v->nargs)
    v = expr_make(a, EXPR_MIN, v, expr_int(a, MASK_POSITION_LIMIT), NULL);
  return expr_make(a, EXPR_ADD, v, expr_int(a, 1), NULL);
}

/* The greatest magnitude among a form's constant and coefficients; they are far from 2^63. */
static int64_t greatest_factor(const linear *f) {
  int64_t most = f->constant < 0 ? -f->constant : f->constant;
  for (int n = 0; n < f->count; n++) {
    int64_t c = f->terms[n].coefficient < 0 ? -f->terms[n].coefficient : f->terms[n].coefficient;
    most = c > most ? c : most;
  }
  return most;
}

/* Whether f + factor * e, as a form, has no constant or coefficient that wraps: only then is it worth a proof. */
static bool sum_fits(arena *a, const linear *f, const expr *e, int64_t factor) {
  linear g = linear_of(a, e);
  int64_t product;
  return !__builtin_mul_overflow(greatest_factor(&g), factor, &product) && product >= -INT32_MAX &&
         product <= INT32_MAX && greatest_factor(f) + (product < 0 ? -product : product) <= INT32_MAX;
}

const expr *mask_join_quotients(arena *a, const expr *e) {
  if (e->type != EXPR_INT)
    return e;
  linear f = linear_of(a, e);
  for (int n = 0; n < f.count; n++)
    for (int m = 0; m < f.count; m++) {
      const expr *x = f.terms[n].atom, *y = f.terms[m].atom;
      bool fits = x->op == EXPR_FLOORDIV && y->op == EXPR_MOD && expr_is_const(x->args[1]) && x->args[1]->integer &&
                  expr_equal(x->args[0], y->args[0]) && expr_equal(x->args[1], y->args[1]) &&
                  f.terms[n].coefficient == f.terms[m].coefficient * x->args[1]->integer;
      if (!fits || !sum_fits(a, &f, x->args[0], f.terms[m].coefficient))
        continue;
      const expr *whole = expr_make(a, EXPR_MUL, expr_int(a, f.terms[m].coefficient), x->args[0], NULL);
      int kept = 0;
      for (int k = 0; k < f.count; k++)
        if (k != n && k != m)
          f.terms[kept++] = f.terms[k];
      f.count = kept;
      return mask_join_quotients(a, expr_make(a, EXPR_ADD, linear_build(a, &f), whole, NULL));
    }
  return linear_build(a, &f);
}

/* ---- least values ---- */

enum { MOST_STEPS = 12 };

static bool prove(arena *a, const linear *f, int64_t least, unsigned facts, int steps);

/* f without its term n, plus `by` times the coefficient of the term divided by `divisor`. */
static linear without(arena *a, const linear *f, int n, const expr *by, int64_t divisor) {
  const expr *scaled = expr_make(a, EXPR_MUL, expr_int(a, f->terms[n].coefficient / divisor), by, NULL);
  linear rest = *f;
  rest.terms = arena_alloc(a, (size_t)f->count * sizeof *f->terms);
  memcpy(rest.terms, f->terms, (size_t)f->count * sizeof *f->terms);
  rest.terms[n] = rest.terms[--rest.count];
  return linear_of(a, expr_make(a, EXPR_ADD, linear_build(a, &rest), scaled, NULL));
}

static bool prove_with(arena *a, const linear *f, int n, const expr *by, int64_t divisor, int64_t least, unsigned facts,
                       int steps) {
  if (!sum_fits(a, f, by, f->terms[n].coefficient / divisor))
    return false;
  linear g = without(a, f, n, by, divisor);
  return prove(a, &g, least, facts, steps - 1);
}

static const expr *minus_one(arena *a, expr_symbol length) {
  return expr_make(a, EXPR_SUB, expr_sym(a, length), expr_int(a, 1), NULL);
}

/* Tries to prove by replacing term n. *done says that this term was replaced, whatever came of it. */
static bool prove_by(arena *a, const linear *f, int n, int64_t least, unsigned facts, int steps, bool *done) {
  const expr *e = f->terms[n].atom;
  const expr *const *x = e->args;
  bool up = f->terms[n].coefficient > 0;
  *done = true;
  if (e->op == EXPR_MIN || e->op == EXPR_MAX || e->op == EXPR_WHERE) {
    int first = e->op == EXPR_WHERE;
    bool all = e->op == EXPR_WHERE || up == (e->op == EXPR_MIN);
    bool p = prove_with(a, f, n, x[first], 1, least, facts, steps);
    if (p != all)
      return p;
    return prove_with(a, f, n, x[first + 1], 1, least, facts, steps);
  }
  if (e->op == EXPR_FLOORDIV && expr_is_const(x[1]) && x[1]->integer > 0 &&
      f->terms[n].coefficient % x[1]->integer == 0) {
    int64_t d = x[1]->integer; /* x - (d - 1) <= d * (x // d) <= x */
    return prove_with(a, f, n, up ? expr_make(a, EXPR_SUB, x[0], expr_int(a, d - 1), NULL) : x[0], d, least, facts,
                      steps);
  }
  if (e->op == EXPR_SYMBOL && e->symbol == EXPR_Q && up && (facts & FACT_Q_FROM_OFFSET)) {
    const expr *first = expr_make(a, EXPR_SUB, expr_sym(a, EXPR_LEN_K), expr_sym(a, EXPR_LEN_Q), NULL);
    if (prove_with(a, f, n, first, 1, least, facts, steps))
      return true;
  }
  if (e->op == EXPR_SYMBOL && e->symbol == EXPR_Q && up && (facts & FACT_Q_FROM_0))
    return prove_with(a, f, n, expr_int(a, 0), 1, least, facts, steps);
  if (e->op == EXPR_SYMBOL && e->symbol == EXPR_Q && !up && (facts & (FACT_Q_IN_KEYS | FACT_Q_IN_QUERIES)))
    return prove_with(a, f, n, minus_one(a, facts & FACT_Q_IN_KEYS ? EXPR_LEN_K : EXPR_LEN_Q), 1, least, facts, steps);
  if (e->op == EXPR_SYMBOL && e->symbol == EXPR_LEN_Q && !up && (facts & FACT_SHORT))
    return prove_with(a, f, n, expr_sym(a, EXPR_LEN_K), 1, least, facts, steps);
  *done = false;
  return false;
}

/* The form's least value by the ranges of its atoms; they are far from 2^63. */
static int64_t least_by_ranges(const linear *f, unsigned facts) {
  static const expr_limits limits = {MASK_POSITION_LIMIT, MASK_POSITION_LIMIT, MASK_POSITION_LIMIT, (int64_t)1 << 31,
                                     (int64_t)1 << 31};
  int64_t sum = f->constant;
  for (int n = 0; n < f->count; n++) {
    expr_range r = expr_range_of(f->terms[n].atom, &limits);
    const expr *e = f->terms[n].atom;
    if (e->op == EXPR_SYMBOL && e->symbol == EXPR_LEN_K && (facts & FACT_LEN_K_POSITIVE))
      r.low = 1;
    int64_t c = f->terms[n].coefficient, value;
    if (__builtin_mul_overflow(c, c > 0 ? r.low : r.high, &value) || __builtin_add_overflow(sum, value, &sum))
      return INT64_MIN;
  }
  return sum;
}

static bool prove(arena *a, const linear *f, int64_t least, unsigned facts, int steps) {
  if (least_by_ranges(f, facts) >= least)
    return true;
  for (int symbols = 0; symbols <= 1; symbols++) /* last, so that they meet what the other replacements bring */
    for (int n = 0; n < f->count && steps > 0; n++) {
      bool done;
      if ((f->terms[n].atom->op == EXPR_SYMBOL) != symbols)
        continue;
      bool proven = prove_by(a, f, n, least, facts, steps, &done);
      if (done)
        return proven;
    }
  return false;
}

bool mask_at_least(arena *a, const expr *e, int64_t least, unsigned facts) {
  if (e->op == EXPR_SUB) {
    linear x = linear_of(a, e->args[0]);
    if (!sum_fits(a, &x, e->args[1], -1))
      return false;
  }
  linear f = linear_of(a, mask_join_quotients(a, e));
  return prove(a, &f, least, facts, MOST_STEPS);
}

/* ---- non-empty rows ---- */

/* Every high (and the end) lies above every low (and the begin), in every row. */
static bool never_empty(arena *a, const mask_intervals *m, const mask_interval *x, unsigned facts) {
  for (int n = -1; n < x->nhigh; n++)
    for (int k = -1; k < x->nlow; k++) {
      const expr *high = n < 0 ? m->end : x->high[n].value, *low = k < 0 ? m->begin : x->low[k].value;
      if (!mask_at_least(a, expr_make(a, EXPR_SUB, high, low, NULL), 1, facts))
        return false;
    }
  return true;
}

mask_emptiness mask_prove_rows(arena *a, const mask_intervals *rows, bool bottom_right) {
  /* Bottom-right, the last query is at the last key; top-left, query 0 at key 0. */
  unsigned always =
      FACT_LEN_K_POSITIVE | (bottom_right ? FACT_Q_IN_KEYS | FACT_Q_FROM_OFFSET : FACT_Q_FROM_0 | FACT_Q_IN_QUERIES);
  unsigned if_short =
      FACT_LEN_K_POSITIVE | FACT_SHORT | FACT_Q_FROM_0 | FACT_Q_IN_KEYS | (bottom_right ? FACT_Q_FROM_OFFSET : 0);
  for (int n = 0; n < rows->count; n++)
    if (rows->items[n].exact && never_empty(a, rows, &rows->items[n], always))
      return MASK_NO_EMPTY_ROW;
  for (int n = 0; n < rows->count; n++)
    if (rows->items[n].exact && never_empty(a, rows, &rows->items[n], if_short))
      return MASK_NO_EMPTY_ROW_IF_SHORT;
  return MASK_ROWS_MAY_BE_EMPTY;
}
