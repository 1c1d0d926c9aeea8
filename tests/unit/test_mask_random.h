/* test_mask_random.h: masks for tests: parsed ones, and random ones that look like what people write. */
#ifndef TEST_MASK_RANDOM_H
#define TEST_MASK_RANDOM_H

#include "test_expr_random.h"

static inline const expr *parse_mask(arena *a, const char *source) {
  expr_scope scope = random_scope();
  diags d;
  scope.symbols &= ~EXPR_BIT(EXPR_S);
  diags_init(&d, a, "mask", source, strlen(source));
  const expr *e = expr_parse(a, source, 0, true, &scope, EXPR_BOOL, &d);
  if (!e)
    fail_msg("%s: %s", source, d.items[0].message);
  return e;
}

static inline const expr *random_k_term(arena *a) {
  const expr *k = expr_sym(a, EXPR_K);
  if (random_below(3) == 0)
    k = expr_make(a, EXPR_SUB, k, expr_sym(a, EXPR_Q), NULL);
  if (random_below(3) == 0)
    k = expr_make(a, EXPR_MUL, k, expr_int(a, random_between(-3, 3)), NULL);
  if (random_below(3) == 0)
    k = expr_make(a, EXPR_ADD, k, expr_int(a, random_between(-5, 5)), NULL);
  switch (random_below(8)) {
  case 0:
    return expr_make(a, EXPR_FLOORDIV, k, expr_int(a, random_between(-2, 6)), NULL);
  case 1:
    return expr_make(a, EXPR_ABS, k, NULL, NULL);
  case 2:
    return expr_make(a, EXPR_MIN, k, expr_int(a, random_between(0, 12)), NULL);
  case 3:
    return expr_make(a, EXPR_MAX, k, expr_int(a, random_between(0, 12)), NULL);
  case 4:
    return expr_make(a, EXPR_MOD, k, expr_int(a, random_between(1, 5)), NULL);
  default:
    return k;
  }
}

static inline const expr *random_row_term(arena *a) {
  const random_options options = {.comparisons = true};
  const expr *q = expr_sym(a, random_below(4) ? EXPR_Q : EXPR_I);
  switch (random_below(9)) {
  case 8:
    return expr_make(a, EXPR_FLOORDIV, q, expr_int(a, random_between(-3, 3)), NULL);
  case 0:
    return expr_int(a, random_between(-2, 20));
  case 1:
    return expr_make(a, EXPR_ADD, q, random_param(a, &options, EXPR_INT, 1), NULL);
  case 2:
    return expr_make(a, EXPR_MUL, expr_make(a, EXPR_FLOORDIV, q, expr_int(a, 4), NULL),
                     expr_int(a, random_between(-4, 4)), NULL);
  case 3:
    return expr_make(a, EXPR_MIN, q, expr_sym(a, EXPR_H), NULL);
  case 4:
    return expr_make(a, EXPR_WHERE, expr_make(a, EXPR_LT, expr_sym(a, EXPR_H), expr_int(a, 4), NULL), q,
                     expr_int(a, 7));
  case 5:
    return expr_make(a, EXPR_NEG, q, NULL, NULL);
  default:
    return expr_make(a, EXPR_ADD, q, expr_int(a, random_between(-6, 6)), NULL);
  }
}

/* Closer to what masks look like than the free grammar, so that bounds are found. */
static inline const expr *random_mask(arena *a, int depth) {
  static const expr_op comparisons[] = {EXPR_LE, EXPR_LT, EXPR_GE, EXPR_GT, EXPR_LE, EXPR_GE, EXPR_EQ, EXPR_NE};
  const random_options options = {.comparisons = true};
  int choice = random_below(12);
  if (depth == 0 || choice < 3)
    return expr_make(a, comparisons[random_below(8)], random_k_term(a), random_row_term(a), NULL);
  if (choice < 6)
    return expr_make(a, EXPR_AND, random_mask(a, depth - 1), random_mask(a, depth - 1), NULL);
  if (choice < 8)
    return expr_make(a, EXPR_OR, random_mask(a, depth - 1), random_mask(a, depth - 1), NULL);
  if (choice == 8)
    return expr_make(a, EXPR_NOT, random_mask(a, depth - 1), NULL, NULL);
  if (choice == 9)
    return expr_make(a, EXPR_WHERE, expr_make(a, EXPR_LT, expr_sym(a, EXPR_H), expr_int(a, random_between(0, 8)), NULL),
                     random_mask(a, depth - 1), random_mask(a, depth - 1));
  if (choice == 10)
    return expr_make(a, comparisons[random_below(8)], random_row_term(a), random_row_term(a), NULL);
  return expr_fold(a, random_expr(a, &options, EXPR_BOOL, 3));
}

#endif
