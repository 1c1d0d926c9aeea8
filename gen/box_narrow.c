/* box_narrow.c: what a comparison says of q, k and the other atoms in it, where it holds.
 *
 *   sum of c_i * x_i in [L, H]   c_i * x_i in [L, H] less the least and greatest of the rest; and so for the sum itself
 *   x // c in [L, H]             x in [L * c, H * c + c - 1], c > 0
 *   x % c in [L, H]              the ends of x move inwards to the next value with such a remainder, c > 0
 *   min(x, y) >= L, max(x, y) <= H, abs(x) <= H    both sides; the other directions where one side is decided
 *   t[i]                         the element itself, for other uses of the same one
 * A scope that becomes empty is not alive: the condition cannot hold in the box. */
#include "box_internal.h"

enum { NONE = -1, MOST_TERMS = 16 };

/* A bound that may be absent on either side: values, or NONE. */
typedef struct limits {
  int low, high;
} limits;

static int add(box_builder *b, int x, int y) {
  return box_make(b, BOX_ADD, x, y, -1);
}
static int subtract(box_builder *b, int x, int y) {
  return box_make(b, BOX_SUB, x, y, -1);
}
static int minus(box_builder *b, int x) {
  return x == NONE ? NONE : subtract(b, box_int(b, 0), x);
}
static int clamped(box_builder *b, int x) {
  int low = box_make(b, BOX_MAX, x, box_int(b, INT32_MIN), -1);
  return box_make(b, BOX_MIN, low, box_int(b, INT32_MAX), -1);
}

static bool is_small(const box_builder *b, int x) {
  return x == NONE || (b->low[x] >= -BOX_LONG_LIMIT / 2 && b->high[x] <= BOX_LONG_LIMIT / 2);
}

/* `span` within the limits; false when they say nothing new. */
static bool tighten(box_builder *b, box_scope *s, box_span *span, limits l) {
  box_span before = *span;
  if (l.low != NONE)
    span->low = box_make(b, BOX_MAX, span->low, l.low, -1);
  if (l.high != NONE)
    span->high = box_make(b, BOX_MIN, span->high, l.high, -1);
  if (span->low == before.low && span->high == before.high)
    return false;
  s->alive = box_and(b, s->alive, box_make(b, BOX_LE, span->low, span->high, -1));
  return true;
}

static void remember(box_scope *s, const expr *key, box_span span) {
  box_known *known = box_find(s, key);
  if (!known && s->count < BOX_MAX_KNOWN) {
    known = &s->known[s->count++];
    known->key = key;
  }
  if (known)
    known->span = span;
}

static void narrow_atom(box_builder *b, box_scope *s, const expr *e, limits l);
static void narrow_sum(box_builder *b, box_scope *s, const linear *f, limits l);

/* An int operand; nothing when it may wrap. */
static void narrow_operand(box_builder *b, box_scope *s, const expr *e, limits l) {
  if (l.low == NONE && l.high == NONE)
    return;
  linear f = linear_of(b->memory, e);
  if (f.count && box_is_const(b, box_is_exact(b, s, e), 1))
    narrow_sum(b, s, &f, l);
}

/* A divisor that a limit may be computed with: at least 1, and whether it is what the mask divides by. */
static bool divisor(box_builder *b, box_scope *s, const expr *e, int *c, int *valid) {
  box_span y = box_int_span(b, s, e);
  if (y.low != y.high)
    return false;
  *c = box_make(b, BOX_MAX, y.low, box_int(b, 1), -1);
  *valid = box_make(b, BOX_LT, box_int(b, 0), y.low, -1);
  return true;
}

static void narrow_quotient(box_builder *b, box_scope *s, const expr *e, box_span n) {
  int c, valid;
  box_span x = box_int_span(b, s, e->args[0]);
  if (!divisor(b, s, e->args[1], &c, &valid))
    return;
  int low = clamped(b, box_make(b, BOX_MUL, n.low, c, -1));
  int end = add(b, box_make(b, BOX_MUL, n.high, c, -1), subtract(b, c, box_int(b, 1)));
  limits l = {box_make(b, BOX_SELECT, valid, low, x.low), box_make(b, BOX_SELECT, valid, clamped(b, end), x.high)};
  narrow_operand(b, s, e->args[0], l);
}

static void narrow_remainder(box_builder *b, box_scope *s, const expr *e, box_span n) {
  int c, valid;
  box_span x = box_int_span(b, s, e->args[0]);
  if (!divisor(b, s, e->args[1], &c, &valid))
    return;
  int r = box_make(b, BOX_MOD, x.low, c, -1), base = subtract(b, x.low, r);
  int here = box_make(b, BOX_LE, r, n.high, -1); /* in this period there is such a remainder still to come */
  int to = add(b, box_make(b, BOX_SELECT, here, base, add(b, base, c)), n.low);
  int low = box_make(b, BOX_MAX, x.low, clamped(b, to), -1);
  r = box_make(b, BOX_MOD, x.high, c, -1), base = subtract(b, x.high, r);
  here = box_make(b, BOX_LE, n.low, r, -1);
  to = add(b, box_make(b, BOX_SELECT, here, base, subtract(b, base, c)), n.high);
  int high = box_make(b, BOX_MIN, x.high, clamped(b, to), -1);
  narrow_operand(b, s, e->args[0],
                 (limits){box_make(b, BOX_SELECT, valid, low, x.low), box_make(b, BOX_SELECT, valid, high, x.high)});
}

/* min in n: both operands are at least its low; when one lies above its high, the other is at most its high. */
static void narrow_either(box_builder *b, box_scope *s, const expr *e, box_span n) {
  bool min = e->op == EXPR_MIN;
  for (int k = 0; k < 2; k++) {
    box_span x = box_int_span(b, s, e->args[k]), other = box_int_span(b, s, e->args[1 - k]);
    int alone = min ? box_make(b, BOX_LT, n.high, other.low, -1) : box_make(b, BOX_LT, other.high, n.low, -1);
    limits l = {min ? n.low : box_make(b, BOX_SELECT, alone, n.low, x.low),
                min ? box_make(b, BOX_SELECT, alone, n.high, x.high) : n.high};
    narrow_operand(b, s, e->args[k], l);
  }
}

static void narrow_abs(box_builder *b, box_scope *s, const expr *e, box_span n) {
  box_span x = box_int_span(b, s, e->args[0]);
  if (b->low[x.low] == INT32_MIN) /* abs of it is itself */
    return;
  int positive = box_make(b, BOX_LT, minus(b, n.low), x.low, -1), negative = box_make(b, BOX_LT, x.high, n.low, -1);
  int low = box_make(b, BOX_SELECT, positive, n.low, x.low);
  int high = box_make(b, BOX_SELECT, negative, minus(b, n.low), x.high);
  limits l = {clamped(b, box_make(b, BOX_MAX, low, minus(b, n.high), -1)),
              clamped(b, box_make(b, BOX_MIN, high, n.high, -1))};
  narrow_operand(b, s, e->args[0], l);
}

static void narrow_atom(box_builder *b, box_scope *s, const expr *e, limits l) {
  const linear alone = {.count = 1, .terms = &(linear_term){e, 1}};
  box_span n;
  if (!box_linear_span(b, s, &alone, &n) || !tighten(b, s, &n, l))
    return;
  n = (box_span){clamped(b, n.low), clamped(b, n.high)};
  remember(s, e, n);
  switch (e->op) {
  case EXPR_FLOORDIV:
    narrow_quotient(b, s, e, n);
    break;
  case EXPR_MOD:
    narrow_remainder(b, s, e, n);
    break;
  case EXPR_MIN:
  case EXPR_MAX:
    narrow_either(b, s, e, n);
    break;
  case EXPR_ABS:
    narrow_abs(b, s, e, n);
    break;
  default:
    break;
  }
}

/* The limits that a limit of the whole sum sets to its term n. */
static bool limits_of_term(box_builder *b, box_scope *s, const linear *f, int n, limits l, limits *out) {
  linear rest = *f;
  linear_term others[MOST_TERMS];
  rest.count = 0;
  rest.terms = others;
  for (int k = 0; k < f->count; k++)
    if (k != n)
      others[rest.count++] = f->terms[k];
  box_span r;
  if (!box_linear_span(b, s, &rest, &r))
    return false;
  int most = l.high == NONE ? NONE : subtract(b, l.high, r.low); /* coefficient * atom <= most */
  int least = l.low == NONE ? NONE : subtract(b, l.low, r.high);
  int64_t c = f->terms[n].coefficient;
  if (!is_small(b, most) || !is_small(b, least))
    return false;
  if (c < 0) {
    int swap = minus(b, most);
    most = minus(b, least);
    least = swap;
    c = -c;
  }
  int by = box_int(b, c);
  out->high = most == NONE ? NONE : box_make(b, BOX_FLOORDIV, most, by, -1);
  out->low = least == NONE ? NONE : minus(b, box_make(b, BOX_FLOORDIV, minus(b, least), by, -1));
  return true;
}

static void narrow_sum(box_builder *b, box_scope *s, const linear *f, limits l) {
  for (int n = 0; n < f->count; n++)
    if (f->terms[n].coefficient > INT32_MAX || f->terms[n].coefficient < -INT32_MAX)
      return;
  if (f->count == 0 || f->count > MOST_TERMS || !is_small(b, l.low) || !is_small(b, l.high))
    return;
  int sign = 1, constant = box_int(b, f->constant);
  if (f->count > 1) {
    const expr *key = box_key(b->memory, f, &sign);
    linear plain = linear_split(b->memory, key);
    limits k = {l.low == NONE ? NONE : subtract(b, l.low, constant),
                l.high == NONE ? NONE : subtract(b, l.high, constant)};
    if (sign < 0)
      k = (limits){minus(b, k.high), minus(b, k.low)};
    box_span span;
    if (box_linear_span(b, s, &plain, &span) && tighten(b, s, &span, k))
      remember(s, key, span);
  }
  for (int n = 0; n < f->count; n++) {
    limits of_term;
    if (limits_of_term(b, s, f, n, l, &of_term))
      narrow_atom(b, s, f->terms[n].atom, of_term);
  }
}

void box_narrow(box_builder *b, box_scope *s, const expr *comparison) {
  const expr *x = comparison->args[0], *y = comparison->args[1];
  int exact = box_and(b, box_is_exact(b, s, x), box_is_exact(b, s, y));
  if (!box_is_const(b, exact, 1))
    return;
  linear f = box_difference(b->memory, x, y);
  int zero = box_int(b, 0);
  switch (comparison->op) {
  case EXPR_LE:
    narrow_sum(b, s, &f, (limits){NONE, zero});
    break;
  case EXPR_LT:
    narrow_sum(b, s, &f, (limits){NONE, box_int(b, -1)});
    break;
  case EXPR_GE:
    narrow_sum(b, s, &f, (limits){zero, NONE});
    break;
  case EXPR_GT:
    narrow_sum(b, s, &f, (limits){box_int(b, 1), NONE});
    break;
  case EXPR_EQ:
    narrow_sum(b, s, &f, (limits){zero, zero});
    break;
  default:
    break;
  }
}
