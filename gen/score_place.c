/* score_place.c: which parts of a lowered score are computed once, by row, by column and by element.
 *
 * The compiler could find them by itself, but not cheaply: it sees an unrolled tile of thousands of instructions, and
 * what it finds it keeps where it likes, in registers that a kernel at its limit does not have. */
#include <string.h>

#include "expr_internal.h"
#include "score.h"

typedef struct placer {
  arena *memory;
  bool packed;
  score_code *code;
} placer;

static score_level level_of(const placer *p, const expr *e) {
  const unsigned rows = EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_I) | (p->packed ? EXPR_BIT(EXPR_H) : 0);
  const unsigned columns = EXPR_BIT(EXPR_K) | EXPR_BIT(EXPR_COLUMN);
  unsigned symbols = expr_symbols(e);
  if ((symbols & EXPR_BIT(EXPR_S)) || ((symbols & rows) && (symbols & columns)))
    return SCORE_ELEMENT;
  return symbols & rows ? SCORE_ROW : symbols & columns ? SCORE_COLUMN : SCORE_ONCE;
}

/* Local number n for the value, new if need be. */
static const expr *local(placer *p, score_level level, const expr *value) {
  score_code *c = p->code;
  int n = 0;
  while (n < c->count && !(c->level[n] == level && expr_equal(c->local[n], value)))
    n++;
  if (n == c->capacity) {
    int capacity = n ? 2 * n : 8;
    const expr **locals = arena_alloc(p->memory, (size_t)capacity * sizeof *locals);
    score_level *levels = arena_alloc(p->memory, (size_t)capacity * sizeof *levels);
    if (n) {
      memcpy(locals, c->local, (size_t)n * sizeof *locals);
      memcpy(levels, c->level, (size_t)n * sizeof *levels);
    }
    c->local = locals, c->level = levels, c->capacity = capacity;
  }
  if (n == c->count) {
    c->local[n] = value, c->level[n] = level;
    c->count++;
  }
  expr *e = expr_node(p->memory, EXPR_LOCAL, value->type, value->at);
  e->integer = n;
  e->args[0] = c->local[n];
  return e;
}

/* Whether a value of a column is had for less than a register: one operation that a sum around it may swallow. */
static bool is_cheap(const expr *e) {
  return e->op == EXPR_ADD || e->op == EXPR_SUB || e->op == EXPR_MUL || e->op == EXPR_NEG;
}

static const expr *place(placer *p, const expr *e);

/* e with its arguments placed; within a value of a row, only those that are the same throughout the tile. */
static const expr *place_args(placer *p, const expr *e, bool once_only) {
  expr *copy = expr_node(p->memory, e->op, e->type, e->at);
  *copy = *e;
  for (int n = 0; n < e->nargs; n++) {
    const expr *x = e->args[n];
    copy->args[n] = !once_only || level_of(p, x) == SCORE_ONCE ? place(p, x) : place_args(p, x, true);
  }
  return copy;
}

static const expr *place(placer *p, const expr *e) {
  score_level level = level_of(p, e);
  if (e->nargs == 0) /* q and k stay: from k - q the compiler sees what rows share along diagonals, from locals not */
    return e;
  if (level == SCORE_ELEMENT || (level == SCORE_COLUMN && is_cheap(e)))
    return place_args(p, e, false);
  return local(p, level, level == SCORE_ONCE ? e : place_args(p, e, true));
}

score_code score_place(arena *a, const score_plan *plan, bool packed) {
  score_code code = {0};
  placer p = {a, packed, &code};
  code.value = place(&p, plan->value);
  if (plan->shift)
    code.shift = level_of(&p, plan->shift) == SCORE_ONCE ? place(&p, plan->shift) : place_args(&p, plan->shift, true);
  return code;
}
