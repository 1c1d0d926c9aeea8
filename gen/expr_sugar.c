/* expr_sugar.c: names for common masks. Each expands to an expression that the user could have written.
 *
 *   causal               k <= q
 *   window(left, right)  q - k <= left and k - q <= right: inclusive distances, -1 for no limit
 *   prefix(n)            k < n; to be combined with `or`
 *   same(t)              t[q] == t[k], or t[b, q] == t[b, k]: both in one segment
 *
 * A distance that is not a constant is tested when the kernel runs: (left < 0 or q - k <= left). */
#include <string.h>

#include "expr_internal.h"

static const expr *make(checker *c, const syntax *s, expr_op op, const expr *x, const expr *y) {
  c->nodes++;
  return expr_build(c->memory, op, x, y, NULL, s->at);
}

static const expr *symbol(checker *c, expr_symbol which) {
  return expr_sym(c->memory, which);
}

static const expr *expand_causal(checker *c, const syntax *s) {
  return make(c, s, EXPR_LE, symbol(c, EXPR_K), symbol(c, EXPR_Q));
}

/* distance <= limit, where a negative limit means no limit. */
static const expr *window_side(checker *c, const syntax *s, const syntax *limit_syntax, expr_symbol from,
                               expr_symbol to) {
  const expr *limit = expr_check_as(c, limit_syntax, EXPR_INT, "a window's distance");
  if (!limit)
    return NULL;
  if (expr_is_int(limit, -1))
    return expr_bool(c->memory, true);
  if (expr_is_const(limit) && limit->integer < 0) {
    diag_add(c->d, DIAG_EXPR_VALUE, limit_syntax->at, "a window's distance is 0 or more, or -1 for no limit");
    return NULL;
  }
  const expr *distance = make(c, s, EXPR_SUB, symbol(c, from), symbol(c, to));
  const expr *inside = make(c, s, EXPR_LE, distance, limit);
  if (expr_is_const(limit))
    return inside;
  /* The limit stands twice in the result, so its nodes count twice. */
  const expr *again = expr_check_as(c, limit_syntax, EXPR_INT, "a window's distance");
  return again ? make(c, s, EXPR_OR, make(c, s, EXPR_LT, again, expr_int(c->memory, 0)), inside) : NULL;
}

static const expr *expand_window(checker *c, const syntax *s) {
  const expr *left = window_side(c, s, s->args, EXPR_Q, EXPR_K);
  const expr *right = window_side(c, s, s->args->next, EXPR_K, EXPR_Q);
  return left && right ? make(c, s, EXPR_AND, left, right) : NULL;
}

static const expr *expand_prefix(checker *c, const syntax *s) {
  const expr *n = expr_check_as(c, s->args, EXPR_INT, "the length of a prefix");
  return n ? make(c, s, EXPR_LT, symbol(c, EXPR_K), n) : NULL;
}

static const expr *element(checker *c, const expr_scope *scope, int param, expr_symbol at) {
  const expr_param *p = &scope->params[param];
  expr *e = expr_node(c->memory, EXPR_PARAM, expr_param_value(p->type), (diag_span){0, 0});
  e->param = param;
  if (p->rank == 2)
    e->args[e->nargs++] = symbol(c, EXPR_B);
  e->args[e->nargs++] = symbol(c, at);
  c->nodes += 1 + e->nargs;
  return e;
}

static const expr *expand_same(checker *c, const syntax *s) {
  const syntax *t = s->args;
  int param = t->kind == SYNTAX_NAME ? expr_param_find(c->scope, t->name) : -1;
  if (param < 0) {
    diag_add(c->d, DIAG_EXPR_TYPE, t->at, "same() takes the name of a declared tensor");
    diag_hint(c->d, "write same(doc) with doc declared under params:, or compare values with '=='");
    return NULL;
  }
  const expr_param *p = &c->scope->params[param];
  if (p->rank != 1 && p->rank != 2) {
    diag_add(c->d, DIAG_EXPR_INDEX, t->at, "same() takes a tensor of shape [len] or [b, len]; '%s' has %d dimensions",
             p->name, p->rank);
    return NULL;
  }
  if (p->type == PARAM_BOOL) {
    diag_add(c->d, DIAG_EXPR_TYPE, t->at, "same() compares numbers; '%s' holds booleans", p->name);
    return NULL;
  }
  return make(c, s, EXPR_EQ, element(c, c->scope, param, EXPR_Q), element(c, c->scope, param, EXPR_K));
}

static const expr_sugar table[] = {
    {"causal", 0, "causal", expand_causal},
    {"window", 2, "window(left, right)", expand_window},
    {"prefix", 1, "prefix(n)", expand_prefix},
    {"same", 1, "same(tensor)", expand_same},
};

const expr_sugar *expr_sugar_table(int *count) {
  *count = sizeof table / sizeof *table;
  return table;
}

const expr_sugar *expr_sugar_find(const char *name) {
  for (size_t n = 0; n < sizeof table / sizeof *table; n++)
    if (strcmp(table[n].name, name) == 0)
      return &table[n];
  return NULL;
}
