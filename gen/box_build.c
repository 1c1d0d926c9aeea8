/* box_build.c: from a mask to the two answers of a box program.
 *
 * Only one question is asked, whether a condition may be true: a mask may be false when `not mask` may be true. A
 * conjunction narrows q, k and the other atoms by each of its comparisons in turn before all are judged; a disjunction
 * among its parts is told apart into cases, as is where(); and a comparison of q (or of k) with what is the same in a
 * box, when it stands in the mask more than once, splits everything into the case where it holds and where not.
 * Programs are built with more and with fewer of these; the shortest that decides as much as any is the result. */
#include "box_internal.h"
#include "mask_internal.h"

enum { MOST_PARTS = 64, MOST_SPLITS = 3 };

static const expr *negated(arena *a, const expr *e) {
  return expr_make(a, EXPR_NOT, e, NULL, NULL);
}

static bool is_comparison(const expr *e) {
  return e->op >= EXPR_LT && e->op <= EXPR_NE;
}
static bool is_int_comparison(const expr *e) {
  return is_comparison(e) && e->args[0]->type == EXPR_INT;
}

/* ---- single conditions ---- */

static int le(box_builder *b, int x, int y) {
  return box_make(b, BOX_LE, x, y, -1);
}
static int lt(box_builder *b, int x, int y) {
  return box_make(b, BOX_LT, x, y, -1);
}

/* Elements of two tensors that must be equal: whether their label sets meet. */
static int labels_meet(box_builder *b, box_scope *s, const linear *f) {
  int x, y;
  bool two = b->options->labels && f->count == 2 && f->constant == 0 &&
             f->terms[0].coefficient + f->terms[1].coefficient == 0 &&
             (f->terms[0].coefficient == 1 || f->terms[0].coefficient == -1);
  if (!two || !box_gather_labels(b, s, f->terms[0].atom, &x) || !box_gather_labels(b, s, f->terms[1].atom, &y))
    return box_bool(b, true);
  return box_make(b, BOX_MEET, x, y, -1);
}

static int possible_ints(box_builder *b, box_scope *s, const expr *e) {
  const expr *x = e->args[0], *y = e->args[1];
  linear f = box_difference(b->memory, x, y);
  box_span d;
  if (!box_linear_span(b, s, &f, &d))
    return box_bool(b, true);
  int exact = box_and(b, box_is_exact(b, s, x), box_is_exact(b, s, y)), zero = box_int(b, 0), holds;
  switch (e->op) {
  case EXPR_LE:
    holds = le(b, d.low, zero);
    break;
  case EXPR_LT:
    holds = lt(b, d.low, zero);
    break;
  case EXPR_GE:
    holds = le(b, zero, d.high);
    break;
  case EXPR_GT:
    holds = lt(b, zero, d.high);
    break;
  case EXPR_EQ:
    holds = box_and(b, box_and(b, le(b, d.low, zero), le(b, zero, d.high)), labels_meet(b, s, &f));
    break;
  default:
    holds = box_or(b, lt(b, d.low, zero), lt(b, zero, d.high));
    break;
  }
  return box_or(b, box_not(b, exact), holds);
}

/* A comparison of floats, or that it does not hold. */
static int possible_reals(box_builder *b, box_scope *s, const expr *e, bool holds) {
  box_real x = box_real_span(b, s, e->args[0]), y = box_real_span(b, s, e->args[1]);
  int finite = box_and(b, x.finite, y.finite), may;
  if (e->op == EXPR_GT || e->op == EXPR_GE) {
    box_real swap = x;
    x = y;
    y = swap;
  }
  if (e->op == EXPR_EQ || e->op == EXPR_NE) {
    bool equal = (e->op == EXPR_EQ) == holds;
    may = equal ? box_and(b, le(b, x.low, y.high), le(b, y.low, x.high)) : box_bool(b, true);
  } else if (e->op == EXPR_LT || e->op == EXPR_GT) {
    may = holds ? lt(b, x.low, y.high) : le(b, y.low, x.high);
  } else {
    may = holds ? le(b, x.low, y.high) : lt(b, y.low, x.high);
  }
  return box_or(b, box_not(b, finite), may);
}

static int possible_single(box_builder *b, box_scope *s, const expr *e) {
  bool holds = e->op != EXPR_NOT;
  const expr *x = holds ? e : e->args[0];
  box_span span;
  if (x->op == EXPR_CONST)
    return box_bool(b, (x->integer != 0) == holds);
  if (is_int_comparison(x) && holds)
    return possible_ints(b, s, x);
  if (is_comparison(x) && x->args[0]->type == EXPR_FLOAT)
    return possible_reals(b, s, x, holds);
  if (x->op == EXPR_PARAM && box_gather_span(b, s, x, &span))
    return holds ? span.high : box_not(b, span.low);
  return box_bool(b, true);
}

/* ---- conjunctions and cases ---- */

static const expr *find_where(const expr *e) {
  if (e->op == EXPR_WHERE && e->type == EXPR_INT)
    return e;
  const expr *found = NULL;
  for (int n = 0; n < e->nargs && !found; n++)
    found = find_where(e->args[n]);
  return found;
}

/* The cases of which one must hold when e does: in `arms`; 1 when e is to be judged as a whole. */
static int arms_of(arena *a, const expr *e, const expr *arms[MOST_PARTS]) {
  int count = 0;
  if (e->op == EXPR_OR)
    return mask_parts(EXPR_OR, e, arms, MOST_PARTS, &count) ? count : 1;
  const expr *where = e->op == EXPR_WHERE ? e : is_int_comparison(e) ? find_where(e) : NULL;
  if (!where)
    return 1;
  const expr *first = where == e ? e->args[1] : expr_replace(a, e, where, where->args[1]);
  const expr *second = where == e ? e->args[2] : expr_replace(a, e, where, where->args[2]);
  arms[0] = expr_make(a, EXPR_AND, where->args[0], first, NULL);
  arms[1] = expr_make(a, EXPR_AND, negated(a, where->args[0]), second, NULL);
  return 2;
}

/* The part with the fewest cases, if there are few enough of them; -1: none. */
static int part_to_split(arena *a, const expr *const *parts, int count, int cases) {
  const expr *arms[MOST_PARTS];
  int best = -1, fewest = cases + 1;
  for (int n = 0; n < count; n++) {
    int some = arms_of(a, parts[n], arms);
    if (some > 1 && some < fewest) {
      best = n;
      fewest = some;
    }
  }
  return best;
}

static const expr *conjunction(arena *a, const expr *const *parts, int count, int except, const expr *with) {
  const expr *all = with;
  for (int n = 0; n < count; n++)
    if (n != except)
      all = expr_make(a, EXPR_AND, all, parts[n], NULL);
  return all;
}

/* A part that is not split further. */
static int possible_part(box_builder *b, box_scope *s, const expr *e) {
  const expr *arms[MOST_PARTS];
  if (e->op != EXPR_OR && e->op != EXPR_WHERE)
    return possible_single(b, s, e);
  int count = arms_of(b->memory, e, arms), any = box_bool(b, count == 1);
  for (int n = 0; n < count && count > 1; n++)
    any = box_or(b, any, box_possible(b, s, arms[n], 1));
  return any;
}

int box_possible(box_builder *b, const box_scope *scope, const expr *e, int cases) {
  const expr *parts[MOST_PARTS], *arms[MOST_PARTS];
  box_scope s = *scope;
  int count = 0;
  if (b->full || !mask_parts(EXPR_AND, e, parts, MOST_PARTS, &count))
    return box_bool(b, true);
  for (int pass = 0; pass < b->passes; pass++)
    for (int n = 0; n < count; n++)
      if (is_int_comparison(parts[n]))
        box_narrow(b, &s, parts[n]);
  int split = part_to_split(b->memory, parts, count, cases);
  if (split >= 0) {
    int narms = arms_of(b->memory, parts[split], arms), any = box_bool(b, false);
    for (int n = 0; n < narms; n++)
      any = box_or(b, any, box_possible(b, &s, conjunction(b->memory, parts, count, split, arms[n]), cases / narms));
    return any;
  }
  int all = s.alive;
  for (int n = 0; n < count; n++)
    all = box_and(b, all, possible_part(b, &s, parts[n]));
  return all;
}

/* ---- splits ---- */

static int occurrences(const expr *e, const expr *x, const expr *y) {
  int count = expr_equal(e, x) || expr_equal(e, y);
  for (int n = 0; n < e->nargs; n++)
    count += occurrences(e->args[n], x, y);
  return count;
}

/* A comparison of q, or of k, with what is the same in a box, that stands in `whole` more than once. */
static const expr *find_split(arena *a, const expr *whole, const expr *e) {
  unsigned moving = expr_symbols(e) & (EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_K));
  if (is_int_comparison(e) && (moving == EXPR_BIT(EXPR_Q) || moving == EXPR_BIT(EXPR_K)) &&
      occurrences(whole, e, negated(a, e)) > 1)
    return e;
  const expr *found = NULL;
  for (int n = 0; n < e->nargs && !found; n++)
    found = find_split(a, whole, e->args[n]);
  return found;
}

static int possible_split(box_builder *b, const box_scope *s, const expr *e, const expr *given, int splits, int cases) {
  arena *a = b->memory;
  const expr *found = splits > 0 ? find_split(a, e, e) : NULL;
  if (!found)
    return box_possible(b, s, expr_make(a, EXPR_AND, given, e, NULL), cases);
  const expr *not = negated(a, found);
  int any = box_bool(b, false);
  for (int holds = 0; holds <= 1; holds++) {
    const expr *one = expr_replace(a, e, found, expr_bool(a, holds));
    one = expr_replace(a, one, not, expr_bool(a, !holds));
    const expr *here = expr_make(a, EXPR_AND, given, holds ? found : not, NULL);
    any = box_or(b, any, possible_split(b, s, one, here, splits - 1, cases));
  }
  return any;
}

/* ---- the program ---- */

/* How much effort a build takes, most first. */
static const struct {
  int passes, cases, splits;
} efforts[BOX_EFFORTS] = {
    {2, 16, MOST_SPLITS}, {1, 16, MOST_SPLITS}, {0, 16, MOST_SPLITS}, {1, 4, 1}, {1, 1, 0}, {0, 1, 0}};

static box_builder *builder(arena *a, const expr *mask, const box_options *options) {
  static const expr_limits limits = {MASK_POSITION_LIMIT, MASK_POSITION_LIMIT, MASK_POSITION_LIMIT, (int64_t)1 << 31,
                                     (int64_t)1 << 31};
  box_builder *b = arena_alloc(a, sizeof *b);
  b->memory = a;
  b->options = options;
  b->may_wrap = expr_find_wrap(mask, &limits) != NULL;
  return b;
}

static const box_program *build(box_builder *b, const expr *mask, int effort) {
  const expr *given = expr_bool(b->memory, true);
  b->count = b->nsummaries = 0;
  b->full = false;
  b->passes = efforts[effort].passes;
  box_scope s = {.alive = box_bool(b, true)};
  int splits = efforts[effort].splits, cases = efforts[effort].cases;
  int t = possible_split(b, &s, mask, given, splits, cases);
  int f = possible_split(b, &s, negated(b->memory, mask), given, splits, cases);
  return box_finish(b, t, f);
}

const box_program *box_build_with(arena *a, const expr *mask, const box_options *options, int effort) {
  mask = mask_without_i(a, mask, options->bottom_right);
  return build(builder(a, mask, options), mask, effort);
}

const box_program *box_build(arena *a, const expr *mask, const box_options *options) {
  const box_program *best = NULL;
  int most = -1;
  mask = mask_without_i(a, mask, options->bottom_right);
  box_builder *b = builder(a, mask, options);
  for (int n = 0; n < BOX_EFFORTS; n++) {
    const box_program *p = build(b, mask, n);
    int decided = p ? box_probe(p) : -1;
    if (decided > most || (p && decided == most && p->count < best->count)) {
      best = p;
      most = decided;
    }
  }
  return best;
}
