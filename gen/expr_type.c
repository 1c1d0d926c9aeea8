/* expr_type.c: from syntax to typed expressions.
 *
 * Types are bool, int and float; the one conversion, int to float, becomes an EXPR_TO_FLOAT node. Errors do not stop
 * the check: siblings are still visited, so that one run reports all of them. */
#include <float.h>
#include <math.h>

#include "expr_internal.h"

const char *expr_type_name(expr_type t) {
  static const char *const names[] = {[EXPR_BOOL] = "bool", [EXPR_INT] = "int", [EXPR_FLOAT] = "float"};
  return names[t];
}

static const char *spelling(expr_op op) {
  static const char *const names[EXPR_OP_COUNT] = {
      [EXPR_NEG] = "-",   [EXPR_ADD] = "+", [EXPR_SUB] = "-",   [EXPR_MUL] = "*",
      [EXPR_DIV] = "/",   [EXPR_MOD] = "%", [EXPR_LT] = "<",    [EXPR_LE] = "<=",
      [EXPR_GT] = ">",    [EXPR_GE] = ">=", [EXPR_EQ] = "==",   [EXPR_NE] = "!=",
      [EXPR_AND] = "and", [EXPR_OR] = "or", [EXPR_NOT] = "not", [EXPR_FLOORDIV] = "//",
  };
  return names[op];
}

/* Whether constant integers leave the 32-bit range, where running code would wrap. */
static bool overflows(expr_op op, const expr *x, const expr *y) {
  int64_t value = x->integer;
  switch (op) {
  case EXPR_NEG: value = -value; break;
  case EXPR_ABS: value = value < 0 ? -value : value; break;
  case EXPR_ADD: value += y->integer; break;
  case EXPR_SUB: value -= y->integer; break;
  case EXPR_MUL: value *= y->integer; break;
  case EXPR_FLOORDIV: return value == INT32_MIN && y->integer == -1;
  default: return false;
  }
  return value != expr_wrap(value);
}

/* Builds an operation and refuses constants that have no proper value. `divisor_at` points at y. */
static const expr *operation(checker *c, expr_op op, const expr *x, const expr *y, diag_span at, diag_span divisor_at) {
  bool divides = op == EXPR_DIV || op == EXPR_FLOORDIV || op == EXPR_MOD;
  if (divides && expr_is_const(y) && y->integer == 0 && y->real == 0) {
    diag_add(c->d, DIAG_EXPR_VALUE, divisor_at, "division by zero");
    return NULL;
  }
  const expr *e = expr_build(c->memory, op, x, y, NULL, at);
  if (!expr_is_const(x) || (y && !expr_is_const(y)))
    return e;
  if (x->type == EXPR_INT && overflows(op, x, y)) {
    diag_add(c->d, DIAG_EXPR_VALUE, at, "this constant does not fit in a 32-bit integer");
    return NULL;
  }
  if (!expr_is_const(e)) {
    diag_add(c->d, DIAG_EXPR_VALUE, at, "this constant is not a finite number");
    return NULL;
  }
  return e;
}

static const expr *to_float(checker *c, const expr *e) {
  return e && e->type == EXPR_INT ? expr_build(c->memory, EXPR_TO_FLOAT, e, NULL, NULL, e->at) : e;
}

static const expr *convert(checker *c, const expr *e, expr_type type, const char *what, diag_span at) {
  if (type == EXPR_FLOAT)
    e = to_float(c, e);
  if (!e || e->type == type)
    return e;
  diag_add(c->d, DIAG_EXPR_TYPE, at, "%s must be %s, not %s", what, expr_type_name(type), expr_type_name(e->type));
  if (type == EXPR_BOOL)
    diag_hint(c->d, "compare it, as in x > 0");
  else if (e->type == EXPR_BOOL)
    diag_hint(c->d, "write where(condition, 1, 0)");
  else
    diag_hint(c->d, "floor(x) makes an int");
  return NULL;
}

const expr *expr_check_as(checker *c, const syntax *s, expr_type type, const char *what) {
  return convert(c, expr_check(c, s), type, what, s->at);
}

/* A number, for arithmetic and comparisons. */
static const expr *check_number(checker *c, const syntax *s, const char *operator) {
  const expr *e = expr_check(c, s);
  if (!e || e->type != EXPR_BOOL)
    return e;
  diag_add(c->d, DIAG_EXPR_TYPE, s->at, "'%s' needs numbers, this is a bool", operator);
  diag_hint(c->d, "combine conditions with and, or, not; make a number with where(condition, 1, 0)");
  return NULL;
}

static const expr *check_unary(checker *c, const syntax *s) {
  const syntax *operand = s->args;
  if (s->op == EXPR_NOT) {
    const expr *x = expr_check_as(c, operand, EXPR_BOOL, "the operand of 'not'");
    return x ? expr_build(c->memory, EXPR_NOT, x, NULL, NULL, s->at) : NULL;
  }
  if (operand->kind == SYNTAX_INT) { /* here, so that -2147483648 can be written */
    expr *e = expr_node(c->memory, EXPR_CONST, EXPR_INT, s->at);
    e->integer = -operand->integer;
    return e;
  }
  const expr *x = check_number(c, operand, "-");
  return x ? operation(c, EXPR_NEG, x, NULL, s->at, s->at) : NULL;
}

static const expr *check_binary(checker *c, const syntax *s) {
  const syntax *left = s->args, *right = left->next;
  if (s->op == EXPR_AND || s->op == EXPR_OR) {
    const char *what = s->op == EXPR_AND ? "an operand of 'and'" : "an operand of 'or'";
    const expr *x = expr_check_as(c, left, EXPR_BOOL, what);
    const expr *y = expr_check_as(c, right, EXPR_BOOL, what);
    return x && y ? expr_build(c->memory, s->op, x, y, NULL, s->at) : NULL;
  }
  const expr *x = check_number(c, left, spelling(s->op));
  const expr *y = check_number(c, right, spelling(s->op));
  if (!x || !y)
    return NULL;
  bool real = s->op == EXPR_DIV || x->type == EXPR_FLOAT || y->type == EXPR_FLOAT;
  if (real && (s->op == EXPR_FLOORDIV || s->op == EXPR_MOD)) {
    diag_add(c->d, DIAG_EXPR_TYPE, x->type == EXPR_FLOAT ? left->at : right->at, "'%s' needs ints, this is a float",
             spelling(s->op));
    diag_hint(c->d, s->op == EXPR_MOD ? "write a - b * floor(a / b)" : "write floor(a / b)");
    return NULL;
  }
  if (real) {
    x = to_float(c, x);
    y = to_float(c, y);
  }
  return operation(c, s->op, x, y, s->at, right->at);
}

/* a < b < c is (a < b) and (b < c). The middle operand stands twice and is checked twice, so that its nodes count twice
 * (a diagnostic at the same place is kept once). */
static const expr *check_compare(checker *c, const syntax *s) {
  const expr *all = NULL;
  bool failed = false;
  for (const syntax *left = s->args; left->next; left = left->next) {
    const syntax *right = left->next;
    const expr *x = check_number(c, left, spelling(right->before));
    const expr *y = check_number(c, right, spelling(right->before));
    if (!x || !y) {
      failed = true;
      continue;
    }
    if (x->type != y->type) {
      x = to_float(c, x);
      y = to_float(c, y);
    }
    diag_span at = {left->at.offset, right->at.offset + right->at.length - left->at.offset};
    const expr *one = expr_build(c->memory, right->before, x, y, NULL, at);
    all = all ? expr_build(c->memory, EXPR_AND, all, one, NULL, s->at) : one;
    c->nodes++;
  }
  return failed ? NULL : all;
}

static const expr *check_where(checker *c, const syntax *s) {
  const syntax *condition = s->args, *first = condition->next, *second = first->next;
  const expr *x = expr_check_as(c, condition, EXPR_BOOL, "the condition of where()");
  const expr *y = expr_check(c, first);
  const expr *z = expr_check(c, second);
  if (!y || !z)
    return NULL;
  if ((y->type == EXPR_BOOL) != (z->type == EXPR_BOOL)) {
    diag_add(c->d, DIAG_EXPR_TYPE, second->at, "both values of where() must be of one type; these are %s and %s",
             expr_type_name(y->type), expr_type_name(z->type));
    return NULL;
  }
  if (!x)
    return NULL;
  if (y->type != z->type) {
    y = to_float(c, y);
    z = to_float(c, z);
  }
  return expr_build(c->memory, EXPR_WHERE, x, y, z, s->at);
}

static bool check_arity(checker *c, const syntax *s, int least, int most) {
  if (s->nargs >= least && s->nargs <= most)
    return true;
  if (most > least)
    diag_add(c->d, DIAG_EXPR_TYPE, s->at, "%s() takes %d to %d arguments, here are %d", s->name, least, most, s->nargs);
  else
    diag_add(c->d, DIAG_EXPR_TYPE, s->at, "%s() takes %d argument%s, here %s %d", s->name, least, least == 1 ? "" : "s",
             s->nargs == 1 ? "is" : "are", s->nargs);
  return false;
}

/* A function of numbers; min and max of more than two arguments fold from the left. */
static const expr *check_function(checker *c, const syntax *s, const expr_function *f) {
  const expr *args[8];
  int count = 0;
  bool real = f->real, failed = false;
  for (const syntax *argument = s->args; argument; argument = argument->next) {
    const expr *x = f->op == EXPR_BIT_OF ? expr_check_as(c, argument, EXPR_INT, "an argument of bit")
                                         : check_number(c, argument, s->name);
    failed |= !x;
    real |= x && x->type == EXPR_FLOAT;
    args[count++] = x;
  }
  if (failed)
    return NULL;
  const expr *e = NULL;
  for (int n = 0; n < count; n++) {
    const expr *x = real ? to_float(c, args[n]) : args[n];
    if (f->min_args == 1)
      return operation(c, f->op, x, NULL, s->at, s->at);
    e = e ? expr_build(c->memory, f->op, e, x, NULL, s->at) : x;
  }
  return e;
}

static const expr *check_call(checker *c, const syntax *s) {
  const expr_function *f = expr_function_find(s->name);
  if (f) {
    if (!check_arity(c, s, f->min_args, f->max_args))
      return NULL;
    return f->op == EXPR_WHERE ? check_where(c, s) : check_function(c, s, f);
  }
  const expr_sugar *sugar = expr_sugar_find(s->name);
  if (sugar && expr_symbol_allowed(c->scope, EXPR_K)) {
    if (sugar->nargs > 0)
      return check_arity(c, s, sugar->nargs, sugar->nargs) ? sugar->expand(c, s) : NULL;
    diag_add(c->d, DIAG_EXPR_TYPE, s->at, "'%s' is used without parentheses", s->name);
    return NULL;
  }
  int param = expr_param_find(c->scope, s->name);
  if (param < 0) {
    expr_unknown_name(c, s);
    for (const syntax *argument = s->args; argument; argument = argument->next)
      expr_check(c, argument);
    return NULL;
  }
  diag_add(c->d, DIAG_EXPR_TYPE, s->at, "'%s' is a parameter, not a function", s->name);
  if (c->scope->params[param].rank > 0)
    diag_hint(c->d, "index it with brackets: %s[...]", s->name);
  return NULL;
}

static const expr *check_index(checker *c, const syntax *s) {
  int param = expr_param_find(c->scope, s->name);
  if (param < 0) {
    /* A known name is no tensor; an unknown one is reported as such. */
    syntax name = *s;
    name.kind = SYNTAX_NAME;
    name.at = s->name_at;
    if (expr_name(c, &name))
      diag_add(c->d, DIAG_EXPR_INDEX, s->at, "'%s' is a number and cannot be indexed", s->name);
    return NULL;
  }
  const expr_param *p = &c->scope->params[param];
  expr *e = expr_node(c->memory, EXPR_PARAM, expr_param_value(p->type), s->at);
  bool failed = false;
  e->param = param;
  for (const syntax *index = s->args; index; index = index->next) {
    const expr *x = expr_check_as(c, index, EXPR_INT, "an index");
    failed |= !x;
    if (e->nargs < EXPR_MAX_RANK)
      e->args[e->nargs++] = x;
  }
  if (p->rank == 0) {
    diag_add(c->d, DIAG_EXPR_INDEX, s->at, "'%s' is a scalar and takes no index", p->name);
    return NULL;
  }
  if (s->nargs != p->rank) {
    diag_add(c->d, DIAG_EXPR_INDEX, s->at, "'%s' has %d dimension%s, here %s %d %s", p->name, p->rank,
             p->rank == 1 ? "" : "s", s->nargs == 1 ? "is" : "are", s->nargs, s->nargs == 1 ? "index" : "indices");
    return NULL;
  }
  return failed ? NULL : e;
}

static const expr *check_literal(checker *c, const syntax *s) {
  if (s->kind == SYNTAX_INT && s->integer > INT32_MAX) {
    diag_add(c->d, DIAG_EXPR_VALUE, s->at, "%lld is too large for a 32-bit integer", (long long)s->integer);
    return NULL;
  }
  expr *e = expr_node(c->memory, EXPR_CONST, s->kind == SYNTAX_INT ? EXPR_INT : EXPR_FLOAT, s->at);
  e->integer = s->integer;
  e->real = s->real;
  return e;
}

const expr *expr_check(checker *c, const syntax *s) {
  if (++c->nodes > EXPR_MAX_NODES) {
    if (!c->too_large) /* once; the count may step over the limit, as sugar and comparisons add nodes of their own */
      diag_add(c->d, DIAG_EXPR_VALUE, s->at, "the expression is too large: over %d operations and values",
               EXPR_MAX_NODES);
    c->too_large = true;
    return NULL;
  }
  switch (s->kind) {
  case SYNTAX_NAME: return expr_name(c, s);
  case SYNTAX_CALL: return check_call(c, s);
  case SYNTAX_INDEX: return check_index(c, s);
  case SYNTAX_UNARY: return check_unary(c, s);
  case SYNTAX_BINARY: return check_binary(c, s);
  case SYNTAX_COMPARE: return check_compare(c, s);
  default: return check_literal(c, s);
  }
}

/* Every float constant must be one for the device, which computes in f32. */
static bool constants_fit(checker *c, const expr *e) {
  if (e->op == EXPR_CONST && e->type == EXPR_FLOAT && isinf((float)e->real)) {
    diag_add(c->d, DIAG_EXPR_VALUE, e->at, "this constant is too large for a 32-bit float");
    return false;
  }
  bool fit = true;
  for (int n = 0; n < e->nargs; n++)
    fit &= constants_fit(c, e->args[n]);
  return fit;
}

const expr *expr_check_whole(checker *c, const syntax *s) {
  const expr *e = expr_check(c, s);
  if (!e)
    return NULL;
  if (c->wanted == EXPR_BOOL && e->type != EXPR_BOOL) {
    diag_add(c->d, DIAG_EXPR_TYPE, s->at, "a mask must be a condition, this is %s",
             e->type == EXPR_INT ? "an int" : "a float");
    diag_hint(c->d, "a mask is true where a key is visible, as in k <= q");
    return NULL;
  }
  e = convert(c, e, c->wanted, "the expression", s->at);
  return e && constants_fit(c, e) ? e : NULL;
}
