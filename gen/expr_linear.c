/* expr_linear.c: int expressions as linear forms: constant + sum of coefficient * atom.
 *
 * All arithmetic wraps at 32 bits, as that of the language does: a form has the value of its expression for every value
 * of its atoms, overflow or not. Products of several factors that are not constant become one atom with sorted
 * factors. */
#include <stdlib.h>
#include <string.h>

#include "expr_internal.h"

static void add_term(arena *a, linear *f, const expr *atom, int64_t coefficient) {
  if (f->count == f->capacity) {
    int capacity = f->capacity ? 2 * f->capacity : 4;
    linear_term *terms = arena_alloc(a, (size_t)capacity * sizeof *terms);
    if (f->count)
      memcpy(terms, f->terms, (size_t)f->count * sizeof *terms);
    f->terms = terms;
    f->capacity = capacity;
  }
  f->terms[f->count++] = (linear_term){atom, coefficient};
}

static int order_terms(const void *x, const void *y) {
  return expr_compare(((const linear_term *)x)->atom, ((const linear_term *)y)->atom);
}

/* Sorts the terms, joins equal atoms and drops what cancels. */
static void finish(linear *f) {
  int kept = 0;
  if (f->count > 1)
    qsort(f->terms, (size_t)f->count, sizeof *f->terms, order_terms);
  for (int n = 0; n < f->count; n++) {
    linear_term t = f->terms[n];
    if (kept && expr_equal(f->terms[kept - 1].atom, t.atom)) {
      t.coefficient = expr_wrap(t.coefficient + f->terms[kept - 1].coefficient);
      kept--;
    }
    if (t.coefficient)
      f->terms[kept++] = t;
  }
  f->count = kept;
}

void linear_scale(linear *f, int64_t factor) {
  f->constant = expr_wrap(f->constant * factor);
  for (int n = 0; n < f->count; n++)
    f->terms[n].coefficient = expr_wrap(f->terms[n].coefficient * factor);
}

static bool is_sum(const expr *e) {
  return e->op == EXPR_CONST || e->op == EXPR_NEG || e->op == EXPR_ADD || e->op == EXPR_SUB || e->op == EXPR_MUL;
}

static void collect(arena *a, const expr *e, int64_t scale, bool normal, linear *f);

static int order_factors(const void *x, const void *y) {
  return expr_compare(*(const expr *const *)x, *(const expr *const *)y);
}

typedef struct product {
  int64_t scale;
  int count, capacity;
  const expr **factors;
} product;

static void add_factor(arena *a, product *p, const expr *factor) {
  if (p->count == p->capacity) {
    int capacity = p->capacity ? 2 * p->capacity : 4;
    const expr **factors = arena_alloc(a, (size_t)capacity * sizeof *factors);
    if (p->count)
      memcpy(factors, p->factors, (size_t)p->count * sizeof *factors);
    p->factors = factors;
    p->capacity = capacity;
  }
  p->factors[p->count++] = factor;
}

/* Collects the factors of e in normal form; constant factors and signs go into the scale. */
static void collect_factors(arena *a, const expr *e, product *p) {
  if (e->op == EXPR_MUL) {
    collect_factors(a, e->args[0], p);
    collect_factors(a, e->args[1], p);
    return;
  }
  linear f = linear_of(a, e);
  if (f.count == 0) {
    p->scale = expr_wrap(p->scale * f.constant);
  } else if (f.count == 1 && f.constant == 0) {
    const expr *atom = f.terms[0].atom;
    p->scale = expr_wrap(p->scale * f.terms[0].coefficient);
    for (; atom->op == EXPR_MUL; atom = atom->args[0]) /* a product in normal form leans to the left */
      add_factor(a, p, atom->args[1]);
    add_factor(a, p, atom);
  } else {
    if (f.terms[0].coefficient < 0) {
      linear_scale(&f, -1);
      p->scale = expr_wrap(-p->scale);
    }
    add_factor(a, p, linear_build(a, &f));
  }
}

static void collect_product(arena *a, const expr *e, int64_t scale, linear *f) {
  product p = {.scale = scale};
  collect_factors(a, e, &p);
  if (p.count == 0 || p.scale == 0) {
    f->constant = expr_wrap(f->constant + (p.count ? 0 : p.scale));
    return;
  }
  if (p.count == 1) { /* constant * sum: distributes */
    collect(a, p.factors[0], p.scale, true, f);
    return;
  }
  qsort(p.factors, (size_t)p.count, sizeof *p.factors, order_factors);
  const expr *atom = p.factors[0];
  for (int n = 1; n < p.count; n++)
    atom = expr_make(a, EXPR_MUL, atom, p.factors[n], NULL);
  add_term(a, f, atom, p.scale);
}

/* Adds scale * e to the form. `normal`: e is in normal form, so its atoms are taken as they are. */
static void collect(arena *a, const expr *e, int64_t scale, bool normal, linear *f) {
  switch (e->op) {
  case EXPR_CONST: f->constant = expr_wrap(f->constant + scale * e->integer); return;
  case EXPR_NEG: collect(a, e->args[0], expr_wrap(-scale), normal, f); return;
  case EXPR_ADD:
  case EXPR_SUB:
    collect(a, e->args[0], scale, normal, f);
    collect(a, e->args[1], e->op == EXPR_SUB ? expr_wrap(-scale) : scale, normal, f);
    return;
  case EXPR_MUL:
    if (!normal)
      collect_product(a, e, scale, f);
    else if (expr_is_const(e->args[0]))
      collect(a, e->args[1], expr_wrap(scale * e->args[0]->integer), normal, f);
    else
      add_term(a, f, e, scale);
    return;
  default: break;
  }
  const expr *atom = normal ? e : expr_normal_atom(a, e);
  if (is_sum(atom))
    collect(a, atom, scale, true, f);
  else
    add_term(a, f, atom, scale);
}

linear linear_of(arena *a, const expr *e) {
  linear f = {0};
  collect(a, e, 1, false, &f);
  finish(&f);
  return f;
}

linear linear_split(arena *a, const expr *normal) {
  linear f = {0};
  collect(a, normal, 1, true, &f);
  finish(&f);
  return f;
}

/* sum + coefficient * atom, or sum - |coefficient| * atom; sum may be NULL. */
static const expr *append_term(arena *a, const expr *sum, int64_t coefficient, const expr *atom) {
  bool minus = coefficient < 0;
  int64_t magnitude = minus ? -coefficient : coefficient; /* the least int is its own opposite, on either side */
  if (!sum && coefficient == -1 && atom)
    return expr_make(a, EXPR_NEG, atom, NULL, NULL);
  if (!sum)
    return atom ? expr_make(a, EXPR_MUL, expr_int(a, coefficient), atom, NULL) : expr_int(a, coefficient);
  const expr *value = atom ? expr_make(a, EXPR_MUL, expr_int(a, magnitude), atom, NULL) : expr_int(a, magnitude);
  return expr_make(a, minus ? EXPR_SUB : EXPR_ADD, sum, value, NULL);
}

const expr *linear_build(arena *a, const linear *f) {
  const expr *sum = NULL;
  bool constant_last = true;
  for (int n = 0; n < f->count; n++)
    if (f->terms[n].coefficient > 0)
      sum = append_term(a, sum, f->terms[n].coefficient, f->terms[n].atom);
  if (!sum && (f->constant > 0 || f->count == 0)) {
    sum = append_term(a, NULL, f->constant, NULL);
    constant_last = false;
  }
  for (int n = 0; n < f->count; n++)
    if (f->terms[n].coefficient < 0)
      sum = append_term(a, sum, f->terms[n].coefficient, f->terms[n].atom);
  return constant_last && f->constant ? append_term(a, sum, f->constant, NULL) : sum;
}
