/* expr_normal.c: the normal form, in which expressions that mean the same by the rules below print alike.
 *
 *   int sums         linear forms with sorted terms (expr_linear.c)
 *   int comparisons  `sum <= 0`, `sum == 0`, `sum != 0`, divided by the common factor of the coefficients
 *   and, or          flattened, sorted, without repetition
 *   min, max of ints likewise; of floats, and float + * == !=: the two operands sorted
 *   float > and >=   turned into < and <=
 *
 * Values are kept under 32-bit wrapping with one exception: moving an int comparison to one side assumes that the
 * difference of its sides does not overflow. That holds when positions, lengths, heads and int parameters lie in
 * [-2^30, 2^30] and the sums made of them do not wrap. */
#include <stdlib.h>

#include "expr_internal.h"

static int order_operands(const void *x, const void *y) {
  return expr_compare(*(const expr *const *)x, *(const expr *const *)y);
}

typedef struct operands {
  int count, capacity;
  const expr **items;
} operands;

/* The operands of a tree of one operator, in normal form. */
static void flatten(arena *a, expr_op op, const expr *e, bool normal, operands *list) {
  if (e->op == op) {
    flatten(a, op, e->args[0], normal, list);
    flatten(a, op, e->args[1], normal, list);
    return;
  }
  if (!normal) {
    flatten(a, op, expr_normalise(a, e), true, list);
    return;
  }
  if (list->count == list->capacity) {
    int capacity = list->capacity ? 2 * list->capacity : 8;
    const expr **items = arena_alloc(a, (size_t)capacity * sizeof *items);
    for (int n = 0; n < list->count; n++)
      items[n] = list->items[n];
    list->items = items;
    list->capacity = capacity;
  }
  list->items[list->count++] = e;
}

/* Of an operator that is associative, commutative and idempotent. Constants sort first, so that folding meets them as
 * it builds from the left. */
static const expr *normal_set(arena *a, const expr *e) {
  operands list = {0};
  flatten(a, e->op, e, false, &list);
  qsort(list.items, (size_t)list.count, sizeof *list.items, order_operands);
  const expr *all = list.items[0];
  for (int n = 1; n < list.count; n++)
    if (!expr_equal(list.items[n], list.items[n - 1]))
      all = expr_make(a, e->op, all, list.items[n], NULL);
  return all;
}

static int64_t common_factor(const linear *f) {
  int64_t factor = 0;
  for (int n = 0; n < f->count; n++) {
    int64_t x = llabs(f->terms[n].coefficient);
    while (x) {
      int64_t rest = factor % x;
      factor = x;
      x = rest;
    }
  }
  return factor;
}

/* f <= 0, f == 0 or f != 0 with the smallest coefficients; for the last two, the first coefficient positive. */
static const expr *normal_test(arena *a, expr_op op, linear f) {
  const expr *zero = expr_int(a, 0);
  int64_t factor = common_factor(&f);
  if (factor > 1) {
    int64_t quotient = expr_apply_int(EXPR_FLOORDIV, f.constant, factor);
    bool divides = quotient * factor == f.constant;
    if (!divides && op != EXPR_LE)
      return expr_bool(a, op == EXPR_NE);
    for (int n = 0; n < f.count; n++)
      f.terms[n].coefficient /= factor;
    f.constant = quotient + !divides; /* rounded up: g * x + c <= 0 is x + ceil(c / g) <= 0 */
  }
  if (op != EXPR_LE && f.count && f.terms[0].coefficient < 0)
    linear_scale(&f, -1);
  return expr_make(a, op, linear_build(a, &f), zero, NULL);
}

static const expr *normal_compare_int(arena *a, const expr *e) {
  const expr *x = e->args[0], *y = e->args[1];
  bool swap = e->op == EXPR_GT || e->op == EXPR_GE;
  bool strict = e->op == EXPR_GT || e->op == EXPR_LT;
  expr_op op = e->op == EXPR_EQ || e->op == EXPR_NE ? e->op : EXPR_LE;
  expr *difference = expr_node(a, EXPR_SUB, EXPR_INT, e->at);
  difference->nargs = 2;
  difference->args[0] = swap ? y : x;
  difference->args[1] = swap ? x : y;
  linear f = linear_of(a, difference);
  f.constant = expr_wrap(f.constant + strict);
  return normal_test(a, op, f);
}

static const expr *normal_compare_float(arena *a, const expr *e) {
  const expr *x = expr_normalise(a, e->args[0]), *y = expr_normalise(a, e->args[1]);
  if (e->op == EXPR_GT || e->op == EXPR_GE)
    return expr_make(a, e->op == EXPR_GT ? EXPR_LT : EXPR_LE, y, x, NULL);
  bool swap = (e->op == EXPR_EQ || e->op == EXPR_NE) && expr_compare(x, y) > 0;
  return expr_make(a, e->op, swap ? y : x, swap ? x : y, NULL);
}

/* The operator applied to normal forms of its operands. */
static const expr *normal_operands(arena *a, const expr *e) {
  const expr *args[EXPR_MAX_RANK] = {0};
  for (int n = 0; n < e->nargs; n++)
    args[n] = expr_normalise(a, e->args[n]);
  if (e->op == EXPR_PARAM) {
    expr *copy = expr_node(a, EXPR_PARAM, e->type, e->at);
    copy->param = e->param;
    copy->nargs = e->nargs;
    for (int n = 0; n < e->nargs; n++)
      copy->args[n] = args[n];
    return copy;
  }
  bool commutes = e->op == EXPR_ADD || e->op == EXPR_MUL || e->op == EXPR_MIN || e->op == EXPR_MAX;
  bool swap = commutes && expr_compare(args[0], args[1]) > 0;
  const expr *result =
      expr_make(a, e->op, e->nargs > 1 ? args[swap] : args[0], e->nargs > 1 ? args[!swap] : NULL, args[2]);
  /* Folding may have found another operator, whose rules are to be applied in turn. */
  return result->op == e->op || !result->nargs ? result : expr_normalise(a, result);
}

const expr *expr_normal_atom(arena *a, const expr *e) {
  if (e->op == EXPR_MIN || e->op == EXPR_MAX)
    return normal_set(a, e);
  if (e->op == EXPR_ABS) { /* abs(x) is abs(-x): the first coefficient positive */
    linear f = linear_of(a, e->args[0]);
    if (f.count && f.terms[0].coefficient < 0)
      linear_scale(&f, -1);
    return expr_make(a, EXPR_ABS, linear_build(a, &f), NULL, NULL);
  }
  return e->nargs ? normal_operands(a, e) : e;
}

static const expr *normal_bool(arena *a, const expr *e) {
  switch (e->op) {
  case EXPR_AND:
  case EXPR_OR: return normal_set(a, e);
  case EXPR_LT:
  case EXPR_LE:
  case EXPR_GT:
  case EXPR_GE:
  case EXPR_EQ:
  case EXPR_NE: return e->args[0]->type == EXPR_FLOAT ? normal_compare_float(a, e) : normal_compare_int(a, e);
  default: return e->nargs ? normal_operands(a, e) : e;
  }
}

const expr *expr_normalise(arena *a, const expr *e) {
  if (e->type == EXPR_INT) {
    linear f = linear_of(a, e);
    return linear_build(a, &f);
  }
  if (e->type == EXPR_BOOL)
    return normal_bool(a, e);
  return e->nargs ? normal_operands(a, e) : e;
}
