/* expr_names.c: the words of the language and what each means in a scope.
 *
 * One table for symbols, one for constants of the spec, one for functions; sugar has its own in expr_sugar.c. Symbol
 * sets, error messages and "did you mean" all read these tables. */
#include <string.h>

#include "expr_internal.h"

static const char *const symbol_names[EXPR_SYMBOL_COUNT] = {
    [EXPR_Q] = "q", [EXPR_K] = "k",         [EXPR_I] = "i",         [EXPR_H] = "h", [EXPR_HK] = "hk",
    [EXPR_B] = "b", [EXPR_LEN_Q] = "len_q", [EXPR_LEN_K] = "len_k", [EXPR_S] = "s",
    [EXPR_RESIDUE] = "residue", [EXPR_DILATION] = "dilation", [EXPR_ALL_Q] = "all_q", [EXPR_ALL_K] = "all_k",
    [EXPR_FIRST_KEY] = "first_key", [EXPR_COLUMN] = "column",
};

static const expr_function functions[] = {
    {"min", EXPR_MIN, 2, 8, false},     {"max", EXPR_MAX, 2, 8, false},  {"abs", EXPR_ABS, 1, 1, false},
    {"exp", EXPR_EXP, 1, 1, true},      {"exp2", EXPR_EXP2, 1, 1, true}, {"log", EXPR_LOG, 1, 1, true},
    {"tanh", EXPR_TANH, 1, 1, true},    {"sqrt", EXPR_SQRT, 1, 1, true}, {"floor", EXPR_FLOOR, 1, 1, true},
    {"bit", EXPR_BIT_OF, 2, 2, false},  {"where", EXPR_WHERE, 3, 3, false},
};
enum { FUNCTION_COUNT = sizeof functions / sizeof *functions };

/* Names of integers that the spec fixes. */
typedef struct named_constant {
  const char *name;
  bool in_shape; /* a name of shapes; the others are names of everything else */
  int64_t (*value)(const expr_scope *scope);
} named_constant;

static int64_t heads_q(const expr_scope *s) {
  return s->heads_q;
}
static int64_t heads_kv(const expr_scope *s) {
  return s->heads_kv;
}
static int64_t group(const expr_scope *s) {
  return s->heads_kv > 0 ? s->heads_q / s->heads_kv : 0;
}

static const named_constant constants[] = {
    {"heads_q", false, heads_q}, {"heads_kv", false, heads_kv}, {"group", false, group},
    {"hq", true, heads_q},       {"hk", true, heads_kv},
};
enum { CONSTANT_COUNT = sizeof constants / sizeof *constants };

static const char *const param_type_names[] = {
    [PARAM_I32] = "i32", [PARAM_F32] = "f32", [PARAM_F16] = "f16", [PARAM_BF16] = "bf16", [PARAM_BOOL] = "bool"};

static const char *const booleans[] = {"false", "true"};

const char *expr_symbol_name(expr_symbol symbol) {
  return symbol_names[symbol];
}

const char *expr_param_type_name(param_type t) {
  return param_type_names[t];
}

expr_type expr_param_value(param_type t) {
  return t == PARAM_BOOL ? EXPR_BOOL : t == PARAM_I32 ? EXPR_INT : EXPR_FLOAT;
}

const expr_function *expr_function_find(const char *name) {
  for (int n = 0; n < FUNCTION_COUNT; n++)
    if (strcmp(functions[n].name, name) == 0)
      return &functions[n];
  return NULL;
}

int expr_param_find(const expr_scope *scope, const char *name) {
  for (int n = 0; n < scope->nparams; n++)
    if (strcmp(scope->params[n].name, name) == 0)
      return n;
  return -1;
}

bool expr_symbol_allowed(const expr_scope *scope, expr_symbol symbol) {
  const unsigned sizes = EXPR_BIT(EXPR_B) | EXPR_BIT(EXPR_LEN_Q) | EXPR_BIT(EXPR_LEN_K);
  return (scope->shape ? sizes : scope->symbols) & EXPR_BIT(symbol);
}

static bool constant_allowed(const expr_scope *scope, const named_constant *c) {
  return c->in_shape == scope->shape && scope->heads_q > 0;
}

static int symbol_find(const char *name) {
  for (int n = 0; n < EXPR_NAMED_COUNT; n++)
    if (strcmp(symbol_names[n], name) == 0)
      return n;
  return -1;
}

void expr_unknown_name(checker *c, const syntax *s) {
  enum { MOST = EXPR_SYMBOL_COUNT + CONSTANT_COUNT + FUNCTION_COUNT + 2 + 16 + 32 };
  const expr_scope *scope = c->scope;
  const char *candidates[MOST];
  int count = 0, nsugar;
  const expr_sugar *sugar = expr_sugar_table(&nsugar);
  for (int n = 0; n < scope->nparams && n < 32; n++)
    candidates[count++] = scope->params[n].name;
  for (int n = 0; n < EXPR_NAMED_COUNT; n++)
    if (expr_symbol_allowed(scope, (expr_symbol)n))
      candidates[count++] = symbol_names[n];
  for (int n = 0; n < CONSTANT_COUNT; n++)
    if (constant_allowed(scope, &constants[n]))
      candidates[count++] = constants[n].name;
  for (int n = 0; n < FUNCTION_COUNT; n++)
    candidates[count++] = functions[n].name;
  for (int n = 0; n < nsugar && n < 16 && expr_symbol_allowed(scope, EXPR_K); n++)
    candidates[count++] = sugar[n].name;
  for (int n = 0; n < 2; n++)
    candidates[count++] = booleans[n];
  diag_add(c->d, DIAG_EXPR_NAME, s->name_at, "unknown %s '%.64s'", s->kind == SYNTAX_CALL ? "function" : "name",
           s->name);
  const char *nearest = diag_nearest(s->name, candidates, count);
  if (nearest)
    diag_hint(c->d, "did you mean '%s'?", nearest);
  else if (s->kind != SYNTAX_CALL && !scope->shape && scope->symbols)
    diag_hint(c->d, "tensors and numbers of your own are declared under params:");
}

/* A word of the language that this scope does not offer. */
static const expr *not_here(checker *c, const syntax *s, bool is_score) {
  if (is_score && c->wanted == EXPR_BOOL && c->scope->symbols) {
    diag_add(c->d, DIAG_EXPR_NAME, s->name_at,
             "a mask may not use s: which keys are visible must not depend on scores");
    diag_hint(c->d, "tiles are skipped before any score is known; use score: to change scores");
  } else if (c->scope->shape) {
    diag_add(c->d, DIAG_EXPR_NAME, s->name_at, "'%s' is not available in a shape", s->name);
    diag_hint(c->d, "a shape is made of hq, hk, b, len_q, len_k and integers");
  } else if (!c->scope->symbols) {
    diag_add(c->d, DIAG_EXPR_NAME, s->name_at, "'%s' is not available in a constant expression", s->name);
  } else {
    diag_add(c->d, DIAG_EXPR_NAME, s->name_at, "'%s' is not available here", s->name);
  }
  return NULL;
}

static const expr *param_by_name(checker *c, const syntax *s, int param) {
  const expr_param *p = &c->scope->params[param];
  if (p->rank > 0) {
    diag_add(c->d, DIAG_EXPR_INDEX, s->name_at, "'%s' is a tensor and needs %d %s", p->name, p->rank,
             p->rank == 1 ? "index" : "indices");
    diag_hint(c->d, p->rank == 1 ? "write %s[k], %s[h], ..." : "write %s[b, k], %s[h, q], ...", p->name, p->name);
    return NULL;
  }
  expr *e = expr_node(c->memory, EXPR_PARAM, expr_param_value(p->type), s->at);
  e->param = param;
  return e;
}

/* Names that mean something only with parentheses, and sugar. */
static const expr *callable_by_name(checker *c, const syntax *s) {
  const expr_sugar *sugar = expr_sugar_find(s->name);
  if (!expr_function_find(s->name) && !sugar)
    return expr_unknown_name(c, s), NULL;
  if (sugar && !expr_symbol_allowed(c->scope, EXPR_K))
    return not_here(c, s, false);
  if (sugar && sugar->nargs == 0)
    return sugar->expand(c, s);
  diag_add(c->d, DIAG_EXPR_TYPE, s->name_at, "'%s' is a function and needs arguments", s->name);
  diag_hint(c->d, sugar ? "write %s" : "write %s(...)", sugar ? sugar->usage : s->name);
  return NULL;
}

const expr *expr_name(checker *c, const syntax *s) {
  for (int n = 0; n < 2; n++)
    if (strcmp(s->name, booleans[n]) == 0) {
      expr *e = expr_node(c->memory, EXPR_CONST, EXPR_BOOL, s->at);
      e->integer = n;
      return e;
    }
  for (int n = 0; n < CONSTANT_COUNT; n++)
    if (strcmp(s->name, constants[n].name) == 0 && constant_allowed(c->scope, &constants[n])) {
      expr *e = expr_node(c->memory, EXPR_CONST, EXPR_INT, s->at);
      e->integer = constants[n].value(c->scope);
      return e;
    }
  int symbol = symbol_find(s->name);
  if (symbol >= 0) {
    if (!expr_symbol_allowed(c->scope, (expr_symbol)symbol))
      return not_here(c, s, symbol == EXPR_S);
    expr *e = expr_node(c->memory, EXPR_SYMBOL, symbol == EXPR_S ? EXPR_FLOAT : EXPR_INT, s->at);
    e->symbol = (expr_symbol)symbol;
    return e;
  }
  for (int n = 0; n < CONSTANT_COUNT; n++)
    if (strcmp(s->name, constants[n].name) == 0) {
      not_here(c, s, false);
      if (constants[n].in_shape && c->scope->symbols)
        diag_hint(c->d, "'%s' is a name of shapes; write heads_q or heads_kv", s->name);
      return NULL;
    }
  int param = expr_param_find(c->scope, s->name);
  return param >= 0 ? param_by_name(c, s, param) : callable_by_name(c, s);
}
