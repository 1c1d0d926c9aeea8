/* expr_compare.c: structure of expressions: order, equality, and what occurs in one. Positions in the text never
 * count. */
#include <string.h>

#include "expr_internal.h"

static int order(int64_t x, int64_t y) {
  return (x > y) - (x < y);
}

/* By bits, so that the order is total and 0.0 differs from -0.0. */
static int order_reals(double x, double y) {
  int64_t bits_x, bits_y;
  memcpy(&bits_x, &x, sizeof x);
  memcpy(&bits_y, &y, sizeof y);
  return order(bits_x, bits_y);
}

int expr_compare(const expr *a, const expr *b) {
  if (a == b)
    return 0;
  int difference = order(a->op, b->op);
  if (!difference)
    difference = order(a->type, b->type);
  if (!difference && a->op == EXPR_CONST)
    difference = a->type == EXPR_FLOAT ? order_reals(a->real, b->real) : order(a->integer, b->integer);
  if (!difference && a->op == EXPR_SYMBOL)
    difference = order(a->symbol, b->symbol);
  if (!difference && a->op == EXPR_LOCAL)
    difference = order(a->integer, b->integer);
  if (!difference && a->op == EXPR_PARAM)
    difference = order(a->param, b->param);
  if (!difference)
    difference = order(a->nargs, b->nargs);
  for (int n = 0; n < a->nargs && !difference; n++)
    difference = expr_compare(a->args[n], b->args[n]);
  return difference;
}

bool expr_equal(const expr *a, const expr *b) {
  return expr_compare(a, b) == 0;
}

unsigned expr_symbols(const expr *e) {
  unsigned symbols = e->op == EXPR_SYMBOL ? EXPR_BIT(e->symbol) : 0;
  for (int n = 0; n < e->nargs; n++)
    symbols |= expr_symbols(e->args[n]);
  return symbols;
}

uint32_t expr_params(const expr *e) {
  uint32_t params = e->op == EXPR_PARAM ? UINT32_C(1) << e->param : 0;
  for (int n = 0; n < e->nargs; n++)
    params |= expr_params(e->args[n]);
  return params;
}
