/* expr_parse.c: tokens to a syntax tree, and the entry points that take a text.
 *
 * An operator-precedence (Pratt) parser with Python's precedences:
 *   or < and < not < comparisons (chained) < + - < * / // % < unary -
 * The tree knows operators and names by spelling only; expr_type.c gives them meaning. The first syntax error ends the
 * parse, since what follows would be guesswork. */
#include "expr_internal.h"

typedef struct parser {
  arena *memory;
  lexer *lexer;
  token now; /* the token to be read next */
  int depth; /* of the recursion */
} parser;

enum { POWER_OR = 1, POWER_AND, POWER_NOT, POWER_COMPARE, POWER_ADD, POWER_MULTIPLY, POWER_UNARY };

/* Binding power of infix operators; 0 for what is none. */
static const int infix_power[EXPR_OP_COUNT] = {
    [EXPR_OR] = POWER_OR,        [EXPR_AND] = POWER_AND,           [EXPR_LT] = POWER_COMPARE,
    [EXPR_LE] = POWER_COMPARE,   [EXPR_GT] = POWER_COMPARE,        [EXPR_GE] = POWER_COMPARE,
    [EXPR_EQ] = POWER_COMPARE,   [EXPR_NE] = POWER_COMPARE,        [EXPR_ADD] = POWER_ADD,
    [EXPR_SUB] = POWER_ADD,      [EXPR_MUL] = POWER_MULTIPLY,      [EXPR_DIV] = POWER_MULTIPLY,
    [EXPR_MOD] = POWER_MULTIPLY, [EXPR_FLOORDIV] = POWER_MULTIPLY,
};

static syntax *parse_expression(parser *p, int power);

static diag_span join(diag_span first, diag_span last) {
  return (diag_span){first.offset, last.offset + last.length - first.offset};
}

static bool advance(parser *p) {
  return expr_lex_next(p->lexer, &p->now);
}

static syntax *new_syntax(parser *p, syntax_kind kind, diag_span at) {
  syntax *s = arena_alloc(p->memory, sizeof *s);
  s->kind = kind;
  s->at = s->name_at = at;
  s->depth = 1;
  return s;
}

/* Appends an operand; `last` is the previous one or NULL. */
static void append(syntax *parent, syntax *last, syntax *operand) {
  if (last)
    last->next = operand;
  else
    parent->args = operand;
  parent->nargs++;
  if (parent->depth <= operand->depth)
    parent->depth = operand->depth + 1;
}

static syntax *too_deep(parser *p, diag_span at) {
  diag_add(p->lexer->d, DIAG_EXPR_VALUE, at, "the expression is nested more than %d levels deep", EXPR_MAX_DEPTH);
  return NULL;
}

static syntax *unexpected(parser *p) {
  const token *t = &p->now;
  diags *d = p->lexer->d;
  if (t->kind == TOKEN_END)
    diag_add(d, DIAG_EXPR_SYNTAX, t->at, "the expression ends where a value is expected");
  else
    diag_add(d, DIAG_EXPR_SYNTAX, t->at, "expected a value, found '%.*s'", (int)t->length, t->start);
  if (t->kind == TOKEN_OPERATOR && t->op == EXPR_ADD)
    diag_hint(d, "there is no unary '+'");
  return NULL;
}

/* The closing bracket of what was opened at `open`. */
static bool expect_close(parser *p, token_kind kind, diag_span open) {
  if (p->now.kind == kind)
    return true;
  const char *bracket = kind == TOKEN_CLOSE ? "')'" : "']'";
  if (p->now.kind == TOKEN_END)
    diag_add(p->lexer->d, DIAG_EXPR_SYNTAX, open, "this bracket is never closed");
  else
    diag_add(p->lexer->d, DIAG_EXPR_SYNTAX, p->now.at, "expected %s or an operator, found '%.*s'", bracket,
             (int)(p->now.length < 40 ? p->now.length : 40), p->now.start);
  return false;
}

/* The arguments of a call or an index up to the closing bracket, which becomes the end of s. */
static bool parse_arguments(parser *p, syntax *s, token_kind close) {
  diag_span open = p->now.at;
  syntax *last = NULL;
  if (!advance(p))
    return false;
  while (p->now.kind != close) {
    syntax *argument = parse_expression(p, 0);
    if (!argument)
      return false;
    append(s, last, argument);
    last = argument;
    if (p->now.kind != TOKEN_COMMA)
      break;
    if (!advance(p))
      return false;
    if (p->now.kind == close)
      return unexpected(p) != NULL;
  }
  if (!expect_close(p, close, open))
    return false;
  s->at = join(s->at, p->now.at);
  return advance(p);
}

static syntax *parse_name(parser *p) {
  syntax *s = new_syntax(p, SYNTAX_NAME, p->now.at);
  s->name = arena_copy(p->memory, p->now.start, p->now.length);
  if (!advance(p))
    return NULL;
  if (p->now.kind == TOKEN_OPEN)
    s->kind = SYNTAX_CALL;
  else if (p->now.kind == TOKEN_BRACKET)
    s->kind = SYNTAX_INDEX;
  else
    return s;
  return parse_arguments(p, s, s->kind == SYNTAX_CALL ? TOKEN_CLOSE : TOKEN_UNBRACKET) ? s : NULL;
}

static syntax *parse_group(parser *p) {
  diag_span open = p->now.at;
  if (!advance(p))
    return NULL;
  syntax *s = parse_expression(p, 0);
  if (!s || !expect_close(p, TOKEN_CLOSE, open))
    return NULL;
  s->at = join(open, p->now.at);
  return advance(p) ? s : NULL;
}

static syntax *parse_number(parser *p) {
  syntax *s = new_syntax(p, p->now.kind == TOKEN_INT ? SYNTAX_INT : SYNTAX_FLOAT, p->now.at);
  s->integer = p->now.integer;
  s->real = p->now.real;
  return advance(p) ? s : NULL;
}

static syntax *parse_prefix(parser *p) {
  token t = p->now;
  if (t.kind == TOKEN_INT || t.kind == TOKEN_FLOAT)
    return parse_number(p);
  if (t.kind == TOKEN_NAME)
    return parse_name(p);
  if (t.kind == TOKEN_OPEN)
    return parse_group(p);
  if (t.kind != TOKEN_OPERATOR || (t.op != EXPR_SUB && t.op != EXPR_NOT))
    return unexpected(p);
  syntax *s = new_syntax(p, SYNTAX_UNARY, t.at);
  s->op = t.op == EXPR_SUB ? EXPR_NEG : EXPR_NOT;
  if (!advance(p))
    return NULL;
  syntax *operand = parse_expression(p, t.op == EXPR_SUB ? POWER_UNARY : POWER_NOT);
  if (!operand)
    return NULL;
  append(s, NULL, operand);
  s->at = join(t.at, operand->at);
  return s;
}

/* left OP right, or left OP1 middle OP2 right ... for comparisons, which stay one node. */
static syntax *parse_infix(parser *p, syntax *left) {
  int power = infix_power[p->now.op];
  syntax *s = new_syntax(p, power == POWER_COMPARE ? SYNTAX_COMPARE : SYNTAX_BINARY, p->now.at);
  s->op = p->now.op;
  append(s, NULL, left);
  do {
    token sign = p->now;
    if (!advance(p))
      return NULL;
    syntax *right = parse_expression(p, power + 1);
    if (!right)
      return NULL;
    right->before = sign.op;
    right->before_at = sign.at;
    append(s, left, right);
    s->at = join(s->args->at, right->at);
    left = right;
  } while (s->kind == SYNTAX_COMPARE && p->now.kind == TOKEN_OPERATOR && infix_power[p->now.op] == POWER_COMPARE);
  return s;
}

static syntax *parse_expression(parser *p, int power) {
  if (++p->depth > EXPR_MAX_DEPTH)
    return too_deep(p, p->now.at);
  syntax *left = parse_prefix(p);
  while (left && p->now.kind == TOKEN_OPERATOR && infix_power[p->now.op] > 0 && infix_power[p->now.op] >= power) {
    left = parse_infix(p, left);
    if (left && left->depth > EXPR_MAX_DEPTH)
      left = too_deep(p, left->at);
  }
  p->depth--;
  return left;
}

syntax *expr_parse_syntax(arena *a, lexer *l) {
  parser p = {.memory = a, .lexer = l};
  if (!advance(&p))
    return NULL;
  if (p.now.kind == TOKEN_END) {
    diag_add(l->d, DIAG_EXPR_SYNTAX, p.now.at, "the expression is empty");
    return NULL;
  }
  syntax *s = parse_expression(&p, 0);
  if (!s || p.now.kind == TOKEN_END)
    return s;
  diag_add(l->d, DIAG_EXPR_SYNTAX, p.now.at, "expected an operator or the end of the expression, found '%.*s'",
           (int)(p.now.length < 40 ? p.now.length : 40), p.now.start);
  if (p.now.kind == TOKEN_BRACKET)
    diag_hint(l->d, "only parameters can be indexed");
  return NULL;
}

const expr *expr_parse(arena *a, const char *source, size_t offset, bool verbatim, const expr_scope *scope,
                       expr_type wanted, diags *d) {
  lexer l = {.source = source, .offset = offset, .verbatim = verbatim, .d = d};
  checker c = {.memory = a, .scope = scope, .wanted = wanted, .d = d};
  const syntax *s = expr_parse_syntax(a, &l);
  return s ? expr_check_whole(&c, s) : NULL;
}

bool expr_parse_constant(arena *a, const char *source, size_t offset, bool verbatim, double *value, diags *d) {
  const expr_scope nothing = {0};
  const expr *e = expr_parse(a, source, offset, verbatim, &nothing, EXPR_FLOAT, d);
  if (!e)
    return false;
  *value = e->real; /* nothing but constants is in scope, so folding ends in one */
  return true;
}
