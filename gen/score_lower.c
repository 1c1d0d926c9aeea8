/* score_lower.c: a score expression as a sum of products; see score.h.
 *
 * The sum is constant + sum of coefficient * atom. Constant and coefficients do not change along a row (they hold
 * neither s nor k); an atom does: the product, the column, a gather, a function of sums. So a factor of a row is
 * multiplied into coefficients, and each atom costs an element one fma, whatever its coefficient. */
#include <math.h>
#include <string.h>

#include "expr_internal.h"
#include "score.h"

static const double log2e = 1.4426950408889634, ln2 = 0.6931471805599453;

typedef struct term {
  const expr *atom, *coefficient;
} term;

typedef struct form {
  term *terms;
  int count, capacity;
  const expr *constant; /* NULL: 0 */
} form;

typedef struct lowering {
  arena *memory;
  expr_op tanh;
} lowering;

static const unsigned along_row = EXPR_BIT(EXPR_S) | EXPR_BIT(EXPR_K) | EXPR_BIT(EXPR_COLUMN);

static bool varies(const expr *e) {
  return expr_symbols(e) & along_row;
}

/* ---- products and sums of expressions ---- */

/* The constant factor of e; *rest receives the others, NULL when there are none. */
static double split_factor(const expr *e, const expr **rest) {
  bool product = e->op == EXPR_MUL && expr_is_const(e->args[0]);
  *rest = product ? e->args[1] : expr_is_const(e) ? NULL : e;
  return product ? e->args[0]->real : expr_is_const(e) ? e->real : 1;
}

/* x * y with the constant factors of both in front. */
static const expr *times(arena *a, const expr *x, const expr *y) {
  const expr *rest_x, *rest_y;
  double factor = split_factor(x, &rest_x) * split_factor(y, &rest_y);
  const expr *rest = rest_x && rest_y ? expr_make(a, EXPR_MUL, rest_x, rest_y, NULL) : rest_x ? rest_x : rest_y;
  if (!rest)
    return expr_float(a, factor);
  return factor == 1 ? rest : expr_make(a, EXPR_MUL, expr_float(a, factor), rest, NULL);
}

/* sum + coefficient * atom; sum may be NULL. */
static const expr *append(arena *a, const expr *sum, const expr *coefficient, const expr *atom) {
  const expr *rest;
  double factor = split_factor(coefficient, &rest);
  if (!sum && factor == -1 && !rest)
    return expr_make(a, EXPR_NEG, atom, NULL, NULL);
  bool minus = sum && factor < 0;
  const expr *product = times(a, minus ? times(a, expr_float(a, -1), coefficient) : coefficient, expr_float(a, 1));
  if (expr_is_const(product) && product->real == 1)
    product = atom;
  else
    product = expr_make(a, EXPR_MUL, atom, product, NULL);
  return sum ? expr_make(a, minus ? EXPR_SUB : EXPR_ADD, sum, product, NULL) : product;
}

static const expr *plus(arena *a, const expr *x, const expr *y) {
  const expr *rest;
  if (!x || !y)
    return x ? x : y;
  if (split_factor(y, &rest) >= 0 || !rest)
    return expr_make(a, EXPR_ADD, x, y, NULL);
  return expr_make(a, EXPR_SUB, x, times(a, expr_float(a, -1), y), NULL);
}

/* ---- forms ---- */

static void add_term(arena *a, form *f, const expr *atom, const expr *coefficient) {
  for (int n = 0; n < f->count; n++)
    if (expr_equal(f->terms[n].atom, atom)) {
      f->terms[n].coefficient = plus(a, f->terms[n].coefficient, coefficient);
      return;
    }
  if (f->count == f->capacity) {
    int capacity = f->capacity ? 2 * f->capacity : 4;
    term *terms = arena_alloc(a, (size_t)capacity * sizeof *terms);
    if (f->count)
      memcpy(terms, f->terms, (size_t)f->count * sizeof *terms);
    f->terms = terms;
    f->capacity = capacity;
  }
  f->terms[f->count++] = (term){atom, coefficient};
}

/* The form of e itself. */
static form whole(arena *a, const expr *e) {
  form f = {0};
  if (varies(e))
    add_term(a, &f, e, expr_float(a, 1));
  else
    f.constant = e;
  return f;
}

static void scale_form(arena *a, form *f, const expr *by) {
  for (int n = 0; n < f->count; n++)
    f->terms[n].coefficient = times(a, f->terms[n].coefficient, by);
  f->constant = f->constant ? times(a, f->constant, by) : NULL;
}

static void add_form(arena *a, form *f, const form *g) {
  for (int n = 0; n < g->count; n++)
    add_term(a, f, g->terms[n].atom, g->terms[n].coefficient);
  f->constant = plus(a, f->constant, g->constant);
}

/* The sum, in the order in which its parts are known: constants, columns, the rest, the product. */
static const expr *build(arena *a, const form *f) {
  const expr *sum = f->constant;
  for (int pass = 0; pass < 3; pass++)
    for (int n = 0; n < f->count; n++) {
      const expr *atom = f->terms[n].atom;
      int when = atom->op != EXPR_SYMBOL ? 1 : atom->symbol == EXPR_S ? 2 : 0;
      if (when == pass)
        sum = append(a, sum, f->terms[n].coefficient, atom);
    }
  return sum ? sum : expr_float(a, 0);
}

/* ---- ints that become floats ---- */

static bool may_wrap(const expr *e) {
  bool wraps = expr_may_wrap(e);
  for (int n = 0; n < e->nargs && !wraps; n++)
    wraps = may_wrap(e->args[n]);
  return wraps;
}

static bool lower_int(lowering *l, const expr *e, form *f);

/* A minimum, maximum, magnitude or choice of ints as one of floats: the conversion rises, so it may come first. */
static const expr *lower_int_atom(lowering *l, const expr *e) {
  const expr *args[EXPR_MAX_RANK] = {0};
  if (e->op != EXPR_ABS && e->op != EXPR_MIN && e->op != EXPR_MAX && e->op != EXPR_WHERE)
    return NULL;
  for (int n = 0; n < e->nargs; n++) {
    form f = {0};
    if (e->args[n]->type == EXPR_BOOL && may_wrap(e->args[n])) /* its normal form might decide otherwise */
      return NULL;
    if (e->args[n]->type == EXPR_BOOL)
      args[n] = e->args[n];
    else if (!lower_int(l, e->args[n], &f))
      return NULL;
    else
      args[n] = build(l->memory, &f);
  }
  return expr_make(l->memory, e->op, args[0], args[1], args[2]);
}

/* The int e, in which nothing wraps, as a form that converts nothing for each key. False when there is none. */
static bool lower_int(lowering *l, const expr *e, form *f) {
  arena *a = l->memory;
  linear sum = linear_of(a, e), fixed = {.constant = sum.constant};
  fixed.terms = arena_alloc(a, (size_t)(sum.count + 1) * sizeof *fixed.terms);
  for (int n = 0; n < sum.count; n++) {
    linear_term t = sum.terms[n];
    if (t.atom->op == EXPR_SYMBOL && t.atom->symbol == EXPR_K) {
      add_term(a, f, expr_sym(a, EXPR_COLUMN), expr_float(a, (double)t.coefficient));
      fixed.terms[fixed.count++] = (linear_term){expr_sym(a, EXPR_FIRST_KEY), t.coefficient};
    } else if (!varies(t.atom)) {
      fixed.terms[fixed.count++] = t;
    } else {
      const expr *atom = lower_int_atom(l, t.atom);
      if (!atom)
        return false;
      add_term(a, f, atom, expr_float(a, (double)t.coefficient));
    }
  }
  const expr *start = linear_build(a, &fixed);
  if (may_wrap(start))
    return false;
  if (!expr_is_int(start, 0))
    f->constant = expr_make(a, EXPR_TO_FLOAT, start, NULL, NULL);
  return true;
}

static form lower_conversion(lowering *l, const expr *e) {
  form f = {0};
  if (varies(e) && !may_wrap(e->args[0]) && lower_int(l, e->args[0], &f))
    return f;
  return whole(l->memory, e);
}

/* ---- floats ---- */

static form lower(lowering *l, const expr *e);

static const expr *lowered(lowering *l, const expr *e) {
  form f = lower(l, e);
  return build(l->memory, &f);
}

/* f * g. Two sums that both vary along the row are not multiplied out. */
static form multiply(arena *a, form f, form g) {
  if (f.count == 0 || g.count == 0) {
    const expr *by = build(a, f.count ? &g : &f);
    form *sum = f.count ? &f : &g;
    scale_form(a, sum, by);
    return *sum;
  }
  const form *sides[2] = {&f, &g};
  const expr *factors[2], *coefficient = expr_float(a, 1);
  for (int n = 0; n < 2; n++) {
    bool single = sides[n]->count == 1 && !sides[n]->constant;
    factors[n] = single ? sides[n]->terms[0].atom : build(a, sides[n]);
    if (single)
      coefficient = times(a, coefficient, sides[n]->terms[0].coefficient);
  }
  form product = {0};
  add_term(a, &product, expr_make(a, EXPR_MUL, factors[0], factors[1], NULL), coefficient);
  return product;
}

static form divide(lowering *l, const expr *x, const expr *y) {
  arena *a = l->memory;
  const expr *by = lowered(l, y);
  form inverse = whole(a, expr_is_const(by) ? expr_float(a, 1 / by->real) : expr_make(a, EXPR_RCP, by, NULL, NULL));
  return multiply(a, lower(l, x), inverse);
}

/* factor * op(inner * x) */
static form function(lowering *l, expr_op op, const expr *x, double inner, double factor) {
  arena *a = l->memory;
  form f = lower(l, x);
  scale_form(a, &f, expr_float(a, inner));
  form result = whole(a, expr_make(a, op, build(a, &f), NULL, NULL));
  scale_form(a, &result, expr_float(a, factor));
  return result;
}

/* Sums and products become parts of the form, everything else an atom of lowered arguments. */
static form lower(lowering *l, const expr *e) {
  arena *a = l->memory;
  const expr *const *x = e->args;
  form f, g;
  switch (e->op) {
  case EXPR_TO_FLOAT: return lower_conversion(l, e);
  case EXPR_NEG:
    f = lower(l, x[0]);
    scale_form(a, &f, expr_float(a, -1));
    return f;
  case EXPR_ADD:
  case EXPR_SUB:
    f = lower(l, x[0]), g = lower(l, x[1]);
    if (e->op == EXPR_SUB)
      scale_form(a, &g, expr_float(a, -1));
    add_form(a, &f, &g);
    return f;
  case EXPR_MUL: return multiply(a, lower(l, x[0]), lower(l, x[1]));
  case EXPR_DIV: return divide(l, x[0], x[1]);
  case EXPR_EXP: return function(l, EXPR_EXP2, x[0], log2e, 1);
  case EXPR_EXP2: return function(l, EXPR_EXP2, x[0], 1, 1);
  case EXPR_LOG: return function(l, EXPR_LOG2, x[0], 1, ln2);
  case EXPR_TANH: return function(l, l->tanh, x[0], 1, 1);
  case EXPR_SQRT:
  case EXPR_ABS: return function(l, e->op, x[0], 1, 1);
  case EXPR_MIN:
  case EXPR_MAX: return whole(a, expr_make(a, e->op, lowered(l, x[0]), lowered(l, x[1]), NULL));
  case EXPR_WHERE: return whole(a, expr_make(a, e->op, x[0], lowered(l, x[1]), lowered(l, x[2])));
  default: return whole(a, e);
  }
}

/* ---- the plan ---- */

static bool fits_f32(double x) {
  return x == 0 || (fabs(x) <= 0x1p127 && fabs(x) >= 0x1p-126);
}

static bool constants_fit(const expr *e) {
  bool fit = e->op != EXPR_CONST || e->type != EXPR_FLOAT || fits_f32(e->real);
  for (int n = 0; n < e->nargs && fit; n++)
    fit = constants_fit(e->args[n]);
  return fit;
}

static bool is_tangent(const expr *e) {
  return e->op == EXPR_TANH || e->op == EXPR_TANH_APPROX;
}

/* The term that keeps the coefficient 1 when the sum is divided by its constant coefficient: the only one, or the
 * product or its tangent beside the column alone. Beside other terms it would save nothing, and a bias of -3e38 would
 * overflow. */
static term *leader(const form *f) {
  term *product = f->count == 1 ? f->terms : NULL;
  for (int n = 0; n < f->count && f->count == 2; n++) {
    bool beside_column = f->terms[1 - n].atom->op == EXPR_SYMBOL && f->terms[1 - n].atom->symbol == EXPR_COLUMN;
    if (beside_column && (f->terms[n].atom->op == EXPR_SYMBOL || is_tangent(f->terms[n].atom)))
      product = &f->terms[n];
  }
  return product;
}

/* Takes a positive factor out of the sum. */
static double take_factor(arena *a, form *f) {
  const expr *rest;
  term *t = leader(f);
  double factor = t ? fabs(split_factor(t->coefficient, &rest)) : 0;
  if (factor == 0 || !(factor * log2e <= 0x1p127) || (rest && f->count > 1))
    return 1;
  double sign = split_factor(t->coefficient, &rest) < 0 ? -1 : 1;
  scale_form(a, f, expr_float(a, 1 / factor));
  t->coefficient = rest ? times(a, expr_float(a, sign), rest) : expr_float(a, sign); /* exactly */
  return factor;
}

/* s, from the product. */
static const expr *scaled(arena *a, double scale, double softcap, expr_op tanh) {
  const expr *product = expr_sym(a, EXPR_S);
  if (softcap == 0)
    return expr_make(a, EXPR_MUL, product, expr_float(a, scale), NULL);
  const expr *inside = expr_make(a, EXPR_MUL, product, expr_float(a, scale / softcap), NULL);
  return expr_make(a, EXPR_MUL, expr_float(a, softcap), expr_make(a, tanh, inside, NULL, NULL), NULL);
}

static bool gathers(const expr *e) {
  bool found = e->op == EXPR_PARAM && varies(e);
  for (int n = 0; n < e->nargs && !found; n++)
    found = gathers(e->args[n]);
  return found;
}

static bool is_bounded(const score_plan *p) {
  const expr *e = p->value->op == EXPR_NEG ? p->value->args[0] : p->value;
  return !p->shift && is_tangent(e) && p->factor * log2e < 0x1p24;
}

score_plan score_make_plan(arena *a, const expr *score, double scale, double softcap, bool approximate_tanh) {
  lowering l = {a, approximate_tanh ? EXPR_TANH_APPROX : EXPR_TANH};
  const expr *e = expr_substitute(a, score, EXPR_S, scaled(a, scale, softcap, l.tanh));
  form f = lower(&l, e);
  score_plan p = {.factor = take_factor(a, &f), .shift = f.constant};
  f.constant = NULL;
  p.value = build(a, &f);
  p.is_product = p.value->op == EXPR_SYMBOL && p.value->symbol == EXPR_S;
  if (!constants_fit(p.value) || (p.shift && !constants_fit(p.shift))) /* each constant of the spec does */
    p = (score_plan){.factor = 1, .value = e};
  p.gathers = gathers(p.value);
  p.bounded = is_bounded(&p);
  p.derivative = score_derive(a, score, softcap);
  return p;
}
