/* expr_hoist.c: see expr_hoist.h. */
#include "expr_hoist.h"

#include <string.h>

static bool costs(const expr *e) {
  switch (e->op) {
  case EXPR_FLOORDIV:
  case EXPR_MOD:
  case EXPR_DIV:
  case EXPR_EXP:
  case EXPR_EXP2:
  case EXPR_LOG:
  case EXPR_TANH:
  case EXPR_SQRT:
    return true;
  case EXPR_PARAM:
    if (e->nargs)
      return true;
    break;
  default:
    break;
  }
  for (int n = 0; n < e->nargs; n++)
    if (costs(e->args[n]))
      return true;
  return false;
}

/* The variable of a part; the part itself when there is no room. */
static const expr *variable(arena *a, expr_hoisted *h, const expr *e, bool row, int nparams) {
  const expr **parts = row ? h->rows : h->keys;
  int *count = row ? &h->nrows : &h->nkeys, n = 0;
  while (n < *count && !expr_equal(parts[n], e))
    n++;
  if (n == EXPR_MAX_HOISTED)
    return e;
  if (n == *count)
    parts[(*count)++] = e;
  expr *v = arena_alloc(a, sizeof *v);
  *v = (expr){.op = EXPR_PARAM, .type = e->type, .integer = 1, .param = nparams + (row ? 0 : EXPR_MAX_HOISTED) + n};
  return v;
}

static const expr *replace(arena *a, expr_hoisted *h, const expr *e, int nparams) {
  unsigned symbols = expr_symbols(e);
  bool row = symbols & (EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_I) | EXPR_BIT(EXPR_H)), key = symbols & EXPR_BIT(EXPR_K);
  if (row != key && !(symbols & EXPR_BIT(EXPR_S)) && costs(e))
    return variable(a, h, e, row, nparams);
  if (e->nargs == 0)
    return e;
  expr *copy = arena_alloc(a, sizeof *copy);
  *copy = *e;
  for (int n = 0; n < e->nargs; n++)
    copy->args[n] = replace(a, h, e->args[n], nparams);
  return copy;
}

expr_hoisted expr_hoist(arena *a, const expr *e, const expr_param *params, int nparams) {
  expr_hoisted h = {0};
  expr_param *list = arena_alloc(a, (size_t)(nparams + 2 * EXPR_MAX_HOISTED) * sizeof *list);
  if (nparams)
    memcpy(list, params, (size_t)nparams * sizeof *list);
  for (int n = 0; n < 2 * EXPR_MAX_HOISTED; n++)
    list[nparams + n] = (expr_param){
        .name = arena_printf(a, "%s_%d", n < EXPR_MAX_HOISTED ? "row" : "key", n % EXPR_MAX_HOISTED + 1),
        .is_variable = true};
  h.params = list;
  h.rest = replace(a, &h, e, nparams);
  return h;
}
