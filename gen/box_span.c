/* box_span.c: in which interval an expression lies while q, k and h run through a box.
 *
 *   sum              linear form over distinct atoms: the sum of the ends of coefficient * atom, exact in 64 bits;
 * where it could leave 32 bits, a test says whether it does, and then nothing is known product          least and
 * greatest of the four products of ends x // y, x % y    y > 0: ends of the quotient; the remainder likewise while the
 * quotient stays the same min, max, abs    of the ends where(c, x, y)   by what c may be: one value or the hull of both
 *   t[i]             at one place: the element; along one index: least and greatest over the range; else nothing
 *   floats           monotone functions of the ends, moved outwards by more than f32 rounding and the device's
 *                    approximations; nothing where infinities or NaN may come in
 * and of what the scope knows of the same sum or atom. */
#include <math.h>

#include "box_internal.h"

static box_span whole(box_builder *b) {
  return (box_span){box_int(b, INT32_MIN), box_int(b, INT32_MAX)};
}

static int least(box_builder *b, int x, int y) {
  return box_make(b, BOX_MIN, x, y, -1);
}
static int greatest(box_builder *b, int x, int y) {
  return box_make(b, BOX_MAX, x, y, -1);
}
static int minus(box_builder *b, int x) {
  return box_make(b, BOX_SUB, box_int(b, 0), x, -1);
}

static bool stays_in(const box_builder *b, box_span x, int64_t limit) {
  return b->low[x.low] >= -limit && b->high[x.low] <= limit && b->low[x.high] >= -limit && b->high[x.high] <= limit;
}

static bool stays_int(const box_builder *b, box_span x) {
  return b->low[x.low] >= INT32_MIN && b->high[x.high] <= INT32_MAX && b->low[x.high] >= INT32_MIN &&
         b->high[x.low] <= INT32_MAX;
}

static int fits(box_builder *b, box_span x) {
  int low = box_make(b, BOX_LE, box_int(b, INT32_MIN), x.low, -1);
  return box_and(b, low, box_make(b, BOX_LE, x.high, box_int(b, INT32_MAX), -1));
}

/* What 32 bits make of an exact interval. */
static box_span wrapped(box_builder *b, box_span x) {
  if (stays_int(b, x))
    return x;
  box_span all = whole(b);
  int inside = fits(b, x); /* the clamps say to the builder what `inside` says when the program runs */
  int low = least(b, greatest(b, x.low, all.low), all.high), high = least(b, greatest(b, x.high, all.low), all.high);
  return (box_span){box_make(b, BOX_SELECT, inside, low, all.low), box_make(b, BOX_SELECT, inside, high, all.high)};
}

static box_span intersect(box_builder *b, box_span x, box_span y) {
  return (box_span){greatest(b, x.low, y.low), least(b, x.high, y.high)};
}

/* ---- what the scope knows ---- */

const expr *box_key(arena *a, const linear *f, int *sign) {
  linear key = *f;
  if (f->count == 0)
    return NULL;
  *sign = f->terms[0].coefficient < 0 ? -1 : 1;
  key.constant = 0;
  key.terms = arena_alloc(a, (size_t)f->count * sizeof *f->terms);
  for (int n = 0; n < f->count; n++)
    key.terms[n] = (linear_term){f->terms[n].atom, *sign * f->terms[n].coefficient};
  return linear_build(a, &key);
}

box_known *box_find(box_scope *s, const expr *key) {
  for (int n = 0; n < s->count; n++)
    if (expr_equal(s->known[n].key, key))
      return &s->known[n];
  return NULL;
}

/* ---- gathers ---- */

typedef struct gather {
  int operands[BOX_MAX_OPERANDS];
  int axis; /* of the range; -1: one place */
} gather;

static bool gather_of(box_builder *b, box_scope *s, const expr *e, gather *g) {
  box_span index[EXPR_MAX_RANK];
  g->axis = -1;
  for (int n = 0; n < e->nargs; n++) {
    index[n] = box_int_span(b, s, e->args[n]);
    if (index[n].low == index[n].high)
      continue;
    if (g->axis >= 0)
      return false;
    g->axis = n;
  }
  int *to = g->operands;
  for (int n = 0; n < e->nargs; n++) {
    *to++ = index[n].low;
    if (n == g->axis)
      *to++ = index[n].high;
  }
  return true;
}

static int summary_of(box_builder *b, const expr *e, int axis) {
  const unsigned moving = EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_K) | EXPR_BIT(EXPR_H);
  const expr *index = e->args[axis];
  linear f = linear_of(b->memory, index);
  bool direct = f.count == 1 && f.terms[0].coefficient == 1 && f.terms[0].atom->op == EXPR_SYMBOL;
  box_summary s = {.param = e->param, .axis = axis, .along = expr_symbols(index) & moving, .direct = direct};
  for (int n = 0; n < b->nsummaries; n++)
    if (b->summaries[n].param == s.param && b->summaries[n].axis == axis && b->summaries[n].along == s.along &&
        b->summaries[n].direct == direct)
      return n;
  if (b->nsummaries == BOX_MAX_SUMMARIES) {
    b->full = true;
    return 0;
  }
  b->summaries[b->nsummaries] = s;
  return b->nsummaries++;
}

bool box_gather_span(box_builder *b, box_scope *s, const expr *e, box_span *out) {
  gather g;
  box_type type = e->type == EXPR_INT ? BOX_INT : e->type == EXPR_BOOL ? BOX_BOOL : BOX_FLOAT;
  if (!gather_of(b, s, e, &g))
    return false;
  if (g.axis < 0) {
    out->low = out->high = box_load(b, BOX_READ, type, e->param, 0, g.operands, e->nargs);
    return true;
  }
  int summary = summary_of(b, e, g.axis);
  out->low = box_load(b, BOX_LEAST, type, e->param, summary, g.operands, e->nargs + 1);
  out->high = box_load(b, BOX_GREATEST, type, e->param, summary, g.operands, e->nargs + 1);
  return true;
}

bool box_gather_labels(box_builder *b, box_scope *s, const expr *e, int *labels) {
  gather g;
  if (e->op != EXPR_PARAM || e->type != EXPR_INT || !gather_of(b, s, e, &g) || g.axis < 0)
    return false;
  *labels = box_load(b, BOX_LABEL_SET, BOX_LABELS, e->param, summary_of(b, e, g.axis), g.operands, e->nargs + 1);
  return true;
}

/* ---- atoms ---- */

static box_span symbol_span(box_builder *b, expr_symbol symbol) {
  static const box_input first[EXPR_SYMBOL_COUNT] = {
      [EXPR_Q] = BOX_Q_FIRST, [EXPR_K] = BOX_K_FIRST,   [EXPR_H] = BOX_H_FIRST,  [EXPR_HK] = BOX_HK,
      [EXPR_B] = BOX_B,       [EXPR_LEN_Q] = BOX_LEN_Q, [EXPR_LEN_K] = BOX_LEN_K,
      [EXPR_RESIDUE] = BOX_RESIDUE, [EXPR_DILATION] = BOX_DILATION, [EXPR_ALL_Q] = BOX_ALL_Q, [EXPR_ALL_K] = BOX_ALL_K};
  int low = box_input_value(b, first[symbol]), high = low;
  if (symbol == EXPR_Q || symbol == EXPR_K || (symbol == EXPR_H && b->options->heads_vary))
    high = box_input_value(b, (box_input)(first[symbol] + 1));
  return (box_span){low, high};
}

/* The hull of op over all four pairs of ends. */
static box_span corners(box_builder *b, box_op op, box_span x, box_span y) {
  int ends[4] = {box_make(b, op, x.low, y.low, -1), box_make(b, op, x.low, y.high, -1),
                 box_make(b, op, x.high, y.low, -1), box_make(b, op, x.high, y.high, -1)};
  return (box_span){least(b, least(b, ends[0], ends[1]), least(b, ends[2], ends[3])),
                    greatest(b, greatest(b, ends[0], ends[1]), greatest(b, ends[2], ends[3]))};
}

static box_span quotient_span(box_builder *b, box_span x, box_span y) {
  if (y.low == y.high && b->low[y.low] > 0)
    return (box_span){box_make(b, BOX_FLOORDIV, x.low, y.low, -1), box_make(b, BOX_FLOORDIV, x.high, y.low, -1)};
  if (y.low == y.high || b->low[y.low] > 0 || b->high[y.high] < 0) /* monotone in x, and in y where it keeps its sign */
    return wrapped(b, corners(b, BOX_FLOORDIV, x, y));
  int most = greatest(b, minus(b, x.low), x.high);
  return wrapped(b, (box_span){minus(b, most), most});
}

static box_span remainder_span(box_builder *b, box_span x, box_span y) {
  int one = box_int(b, 1), zero = box_int(b, 0);
  box_span any = {least(b, box_make(b, BOX_ADD, y.low, one, -1), zero),
                  greatest(b, box_make(b, BOX_SUB, y.high, one, -1), zero)};
  if (y.low != y.high)
    return any;
  int c = y.low;
  int first = box_make(b, BOX_FLOORDIV, x.low, c, -1), last = box_make(b, BOX_FLOORDIV, x.high, c, -1);
  int same = box_make(b, BOX_EQ, first, last, -1);
  return (box_span){box_make(b, BOX_SELECT, same, box_make(b, BOX_MOD, x.low, c, -1), any.low),
                    box_make(b, BOX_SELECT, same, box_make(b, BOX_MOD, x.high, c, -1), any.high)};
}

static box_span abs_span(box_builder *b, box_span x) {
  int low = greatest(b, greatest(b, x.low, minus(b, x.high)), box_int(b, 0));
  return wrapped(b, (box_span){low, greatest(b, minus(b, x.low), x.high)});
}

static box_span where_span(box_builder *b, box_scope *s, const expr *e) {
  box_span x = box_int_span(b, s, e->args[1]), y = box_int_span(b, s, e->args[2]);
  box_span hull = {least(b, x.low, y.low), greatest(b, x.high, y.high)};
  if (b->may_wrap) /* conditions are in normal form here, which is only for sums that do not wrap */
    return hull;
  int yes = box_possible(b, s, e->args[0], 1);
  int no = box_possible(b, s, expr_make(b->memory, EXPR_NOT, e->args[0], NULL, NULL), 1);
  return (box_span){
      box_make(b, BOX_SELECT, yes, box_make(b, BOX_SELECT, no, hull.low, x.low), y.low),
      box_make(b, BOX_SELECT, yes, box_make(b, BOX_SELECT, no, hull.high, x.high), y.high),
  };
}

static box_span operator_span(box_builder *b, box_scope *s, const expr *e) {
  if (e->op == EXPR_PARAM) {
    box_span x;
    return box_gather_span(b, s, e, &x) ? x : whole(b);
  }
  if (e->op == EXPR_WHERE)
    return where_span(b, s, e);
  if (e->op == EXPR_FLOOR) {
    box_real r = box_real_span(b, s, e->args[0]);
    box_span all = whole(b);
    return (box_span){box_make(b, BOX_SELECT, r.finite, box_make(b, BOX_FLOOR, r.low, -1, -1), all.low),
                      box_make(b, BOX_SELECT, r.finite, box_make(b, BOX_FLOOR, r.high, -1, -1), all.high)};
  }
  box_span x = box_int_span(b, s, e->args[0]), y = e->nargs > 1 ? box_int_span(b, s, e->args[1]) : x;
  switch (e->op) {
  case EXPR_MUL:
    return wrapped(b, corners(b, BOX_MUL, x, y));
  case EXPR_FLOORDIV:
    return quotient_span(b, x, y);
  case EXPR_MOD:
    return remainder_span(b, x, y);
  case EXPR_MIN:
    return (box_span){least(b, x.low, y.low), least(b, x.high, y.high)};
  case EXPR_MAX:
    return (box_span){greatest(b, x.low, y.low), greatest(b, x.high, y.high)};
  case EXPR_ABS:
    return abs_span(b, x);
  default:
    return whole(b);
  }
}

static box_span atom_span(box_builder *b, box_scope *s, const expr *e) {
  box_span x = e->op == EXPR_SYMBOL ? symbol_span(b, e->symbol) : operator_span(b, s, e);
  const box_known *known = box_find(s, e);
  return known ? intersect(b, x, known->span) : x;
}

/* ---- sums ---- */

linear box_difference(arena *a, const expr *x, const expr *y) {
  linear f = linear_of(a, x), g = linear_of(a, y);
  linear d = {.constant = f.constant - g.constant};
  d.terms = arena_alloc(a, (size_t)(f.count + g.count + 1) * sizeof *d.terms);
  for (int n = 0, m = 0; n < f.count || m < g.count;) { /* both are sorted */
    int order = n == f.count ? 1 : m == g.count ? -1 : expr_compare(f.terms[n].atom, g.terms[m].atom);
    linear_term t = {order <= 0 ? f.terms[n].atom : g.terms[m].atom, 0};
    if (order <= 0)
      t.coefficient += f.terms[n++].coefficient;
    if (order >= 0)
      t.coefficient -= g.terms[m++].coefficient;
    if (t.coefficient)
      d.terms[d.count++] = t;
  }
  return d;
}

bool box_term_span(box_builder *b, box_scope *s, const linear_term *t, box_span *out) {
  if (t->coefficient > INT32_MAX || t->coefficient < -INT32_MAX)
    return false;
  box_span x = atom_span(b, s, t->atom);
  int c = box_int(b, t->coefficient);
  bool up = t->coefficient > 0; /* at most 2^31 times 2^31 */
  *out = (box_span){box_make(b, BOX_MUL, up ? x.low : x.high, c, -1), box_make(b, BOX_MUL, up ? x.high : x.low, c, -1)};
  return true;
}

/* Adds what t makes of the sum so far; terms that are subtracted print as subtractions. */
static bool add_term(box_builder *b, box_scope *s, const linear_term *t, box_span *sum) {
  bool up = t->coefficient > 0;
  const linear_term positive = {t->atom, up ? t->coefficient : -t->coefficient};
  box_span x;
  if (!box_term_span(b, s, &positive, &x) || !stays_in(b, x, BOX_LONG_LIMIT / 2) ||
      !stays_in(b, *sum, BOX_LONG_LIMIT / 2))
    return false;
  box_op op = up ? BOX_ADD : BOX_SUB;
  *sum = (box_span){box_make(b, op, sum->low, up ? x.low : x.high, -1),
                    box_make(b, op, sum->high, up ? x.high : x.low, -1)};
  return true;
}

bool box_linear_span(box_builder *b, box_scope *s, const linear *f, box_span *out) {
  int zero = box_int(b, 0), constant = box_int(b, f->constant), sign;
  *out = (box_span){zero, zero};
  for (int negative = 0; negative <= 1; negative++)
    for (int n = 0; n < f->count; n++)
      if ((f->terms[n].coefficient < 0) == negative && !add_term(b, s, &f->terms[n], out))
        return false;
  if (!stays_in(b, *out, BOX_LONG_LIMIT / 2))
    return false;
  box_op op = f->constant < 0 ? BOX_SUB : BOX_ADD;
  int by = box_int(b, f->constant < 0 ? -f->constant : f->constant);
  *out = (box_span){box_make(b, op, out->low, by, -1), box_make(b, op, out->high, by, -1)};
  const box_known *known = f->count > 1 ? box_find(s, box_key(b->memory, f, &sign)) : NULL;
  if (!known || !stays_in(b, *out, BOX_LONG_LIMIT / 2) || !stays_in(b, known->span, BOX_LONG_LIMIT / 2))
    return stays_in(b, *out, BOX_LONG_LIMIT / 2);
  box_span k = known->span;
  if (sign < 0)
    k = (box_span){minus(b, known->span.high), minus(b, known->span.low)};
  k = (box_span){box_make(b, BOX_ADD, k.low, constant, -1), box_make(b, BOX_ADD, k.high, constant, -1)};
  *out = intersect(b, *out, k);
  return true;
}

box_span box_int_span(box_builder *b, box_scope *s, const expr *e) {
  linear f = linear_of(b->memory, e);
  box_span x;
  if (f.count == 1 && f.terms[0].coefficient == 1 && f.constant == 0)
    return atom_span(b, s, f.terms[0].atom);
  return box_linear_span(b, s, &f, &x) ? wrapped(b, x) : whole(b);
}

int box_is_exact(box_builder *b, box_scope *s, const expr *e) {
  linear f = linear_of(b->memory, e);
  box_span x;
  if (!box_linear_span(b, s, &f, &x))
    return box_bool(b, false);
  return stays_int(b, x) ? box_bool(b, true) : fits(b, x);
}
