/* mask_set.c: unions of intervals of keys per row: and, or, choice, and what makes them fewer. See mask_set.h.
 *
 * An interval is a list of lows and a list of highs, so `and` of two intervals is both lists. `or` keeps the intervals
 * side by side; then those with the same lows (or the same highs) become one, those inside another go, and those that
 * are empty in every row go. Whether a value is never less than another is asked of mask_at_least (mask_proof.c). */
#include "mask_set.h"

mask_set mask_set_all(void) {
  return (mask_set){.count = 1, .items = {{.exact = true}}};
}

mask_set mask_set_none(void) {
  return (mask_set){0};
}

mask_set mask_set_unknown(const expr *fault) {
  return (mask_set){.count = 1, .items = {{.exact = false}}, .fault = fault};
}

int mask_set_direction(arena *a, const expr *value) {
  int direction;
  return mask_direction(a, value, &direction) ? direction : MASK_BY_ROW;
}

int mask_set_join(int x, int y) {
  int direction;
  return x != MASK_BY_ROW && y != MASK_BY_ROW && mask_join(x, y, &direction) ? direction : MASK_BY_ROW;
}

/* Adds a bound to one side; without room for it the interval is a hull. */
static bool add_bound(mask_interval *x, bool low, mask_bound bound) {
  mask_bound *bounds = low ? x->low : x->high;
  int *count = low ? &x->nlow : &x->nhigh;
  for (int n = 0; n < *count; n++)
    if (expr_equal(bounds[n].value, bound.value))
      return true;
  if (*count == MASK_MAX_BOUNDS) {
    x->exact = false;
    return false;
  }
  bounds[(*count)++] = bound;
  return true;
}

static mask_bound bound_of(arena *a, const expr *value) {
  value = mask_join_quotients(a, value);
  return (mask_bound){value, mask_set_direction(a, value)};
}

mask_set mask_set_bound(const mask_frame *f, bool low, const expr *value) {
  mask_set s = mask_set_all();
  add_bound(&s.items[0], low, bound_of(f->memory, value));
  return s;
}

mask_set mask_set_condition(const mask_frame *f, const expr *condition) {
  arena *a = f->memory;
  condition = expr_normalise(a, condition);
  if (expr_is_const(condition))
    return condition->integer ? mask_set_all() : mask_set_none();
  mask_set s = mask_set_all();
  mask_bound low = bound_of(a, expr_make(a, EXPR_WHERE, condition, f->begin, f->end));
  int sum;
  /* `sum <= 0` with a monotone sum changes once as q grows: from true to false if the sum rises. */
  if (low.direction == MASK_BY_ROW && condition->op == EXPR_LE && condition->args[0]->type == EXPR_INT &&
      mask_direction(a, condition->args[0], &sum))
    low.direction = sum;
  add_bound(&s.items[0], true, low);
  return s;
}

const expr *mask_side(arena *a, const mask_interval *x, bool low) {
  const mask_bound *bounds = low ? x->low : x->high;
  int count = low ? x->nlow : x->nhigh;
  const expr *value = NULL;
  for (int n = 0; n < count; n++)
    value = value ? expr_make(a, low ? EXPR_MAX : EXPR_MIN, value, bounds[n].value, NULL) : bounds[n].value;
  return value ? expr_normalise(a, value) : NULL;
}

/* ---- what is provable of two intervals ---- */

static bool at_most(arena *a, const expr *x, const expr *y) {
  return expr_equal(x, y) || mask_at_least(a, expr_make(a, EXPR_SUB, y, x, NULL), 0, 0);
}

bool mask_begins_before(const mask_frame *f, const mask_interval *x, const mask_interval *y) {
  for (int n = 0; n < x->nlow; n++) {
    bool found = at_most(f->memory, x->low[n].value, f->begin);
    for (int m = 0; m < y->nlow && !found; m++)
      found = at_most(f->memory, x->low[n].value, y->low[m].value);
    if (!found)
      return false;
  }
  return true;
}

bool mask_ends_before(const mask_frame *f, const mask_interval *x, const mask_interval *y) {
  for (int n = 0; n < x->nhigh; n++)
    for (int m = 0; m < y->nlow; m++)
      if (at_most(f->memory, x->high[n].value, y->low[m].value))
        return true;
  return false;
}

static bool is_inside(const mask_frame *f, const mask_interval *x, const mask_interval *y) {
  for (int n = 0; n < y->nhigh; n++) {
    bool found = at_most(f->memory, f->end, y->high[n].value);
    for (int m = 0; m < x->nhigh && !found; m++)
      found = at_most(f->memory, x->high[m].value, y->high[n].value);
    if (!found)
      return false;
  }
  return mask_begins_before(f, y, x);
}

static bool is_empty(const mask_frame *f, const mask_interval *x) {
  arena *a = f->memory;
  for (int n = 0; n < x->nlow; n++) {
    if (at_most(a, f->end, x->low[n].value))
      return true;
    for (int m = 0; m < x->nhigh; m++)
      if (at_most(a, x->high[m].value, x->low[n].value))
        return true;
  }
  for (int m = 0; m < x->nhigh; m++)
    if (at_most(a, x->high[m].value, f->begin))
      return true;
  return false;
}

/* ---- fewer intervals ---- */

static void drop(mask_set *s, int index) {
  s->count--;
  for (int n = index; n < s->count; n++)
    s->items[n] = s->items[n + 1];
}

static bool same_bounds(const mask_bound *x, int nx, const mask_bound *y, int ny) {
  if (nx != ny)
    return false;
  for (int n = 0; n < nx; n++) {
    bool found = false;
    for (int m = 0; m < ny && !found; m++)
      found = expr_equal(x[n].value, y[m].value);
    if (!found)
      return false;
  }
  return true;
}

/* One side of the hull of two intervals: the lesser low or the greater high. */
static void widen(const mask_frame *f, mask_interval *x, const mask_interval *y, bool low) {
  arena *a = f->memory;
  const expr *p = mask_side(a, x, low), *q = mask_side(a, y, low);
  int dx = 0, dy = 0, direction = 0;
  for (int n = 0; n < (low ? x->nlow : x->nhigh); n++)
    dx = mask_set_join(dx, (low ? x->low : x->high)[n].direction);
  for (int n = 0; n < (low ? y->nlow : y->nhigh); n++)
    dy = mask_set_join(dy, (low ? y->low : y->high)[n].direction);
  direction = mask_set_join(dx, dy);
  *(low ? &x->nlow : &x->nhigh) = 0;
  if (p && q) {
    const expr *value = expr_normalise(a, expr_make(a, low ? EXPR_MIN : EXPR_MAX, p, q, NULL));
    add_bound(x, low, (mask_bound){value, direction});
  }
}

/* Makes one interval of x and y when their union is one: into x. */
static bool merge(const mask_frame *f, mask_interval *x, const mask_interval *y) {
  if (x->exact != y->exact)
    return false;
  if (same_bounds(x->low, x->nlow, y->low, y->nlow))
    return widen(f, x, y, false), true;
  if (same_bounds(x->high, x->nhigh, y->high, y->nhigh))
    return widen(f, x, y, true), true;
  return false;
}

static bool simplify_once(const mask_frame *f, mask_set *s) {
  for (int n = 0; n < s->count; n++)
    if (is_empty(f, &s->items[n]))
      return drop(s, n), true;
  for (int n = 0; n < s->count; n++)
    for (int m = 0; m < s->count; m++) {
      const mask_interval *x = &s->items[n], *y = &s->items[m];
      if (n != m && (y->exact || !x->exact) && is_inside(f, x, y))
        return drop(s, n), true;
    }
  for (int n = 0; n < s->count; n++)
    for (int m = n + 1; m < s->count; m++)
      if (merge(f, &s->items[n], &s->items[m]))
        return drop(s, m), true;
  return false;
}

static void simplify(const mask_frame *f, mask_set *s) {
  while (simplify_once(f, s))
    ;
}

void mask_set_limit(const mask_frame *f, mask_set *s, int most) {
  while (s->count > most) { /* the last two: later items come from later, more special cases */
    mask_interval *x = &s->items[s->count - 2], *y = &s->items[s->count - 1];
    widen(f, x, y, true);
    widen(f, x, y, false);
    x->exact = false;
    s->count--;
  }
}

/* ---- algebra ---- */

static void append(const mask_frame *f, mask_set *s, const mask_interval *x, const expr *fault) {
  if (s->count == SET_MAX_INTERVALS) {
    mask_set_limit(f, s, SET_MAX_INTERVALS - 1);
    s->fault = s->fault ? s->fault : fault;
  }
  s->items[s->count++] = *x;
}

mask_set mask_set_and(const mask_frame *f, const mask_set *x, const mask_set *y) {
  mask_set s = {.fault = x->fault ? x->fault : y->fault};
  for (int n = 0; n < x->count; n++)
    for (int m = 0; m < y->count; m++) {
      mask_interval both = x->items[n];
      const mask_interval *other = &y->items[m];
      both.exact &= other->exact;
      for (int i = 0; i < other->nlow; i++)
        add_bound(&both, true, other->low[i]);
      for (int i = 0; i < other->nhigh; i++)
        add_bound(&both, false, other->high[i]);
      append(f, &s, &both, s.fault);
    }
  simplify(f, &s);
  return s;
}

mask_set mask_set_or(const mask_frame *f, const mask_set *x, const mask_set *y) {
  mask_set s = *x;
  s.fault = x->fault ? x->fault : y->fault;
  for (int n = 0; n < y->count; n++)
    append(f, &s, &y->items[n], s.fault);
  simplify(f, &s);
  return s;
}

/* Adds the bounds of x, each only where the condition is `when`. */
static void add_guarded(const mask_frame *f, mask_interval *to, const expr *condition, bool when,
                        const mask_interval *x) {
  arena *a = f->memory;
  for (int side = 0; side < 2; side++) {
    bool low = side == 0;
    const expr *open = low ? f->begin : f->end;
    for (int n = 0; n < (low ? x->nlow : x->nhigh); n++) {
      const expr *value = (low ? x->low : x->high)[n].value;
      add_bound(to, low, bound_of(a, expr_make(a, EXPR_WHERE, condition, when ? value : open, when ? open : value)));
    }
  }
  to->exact &= x->exact;
}

mask_set mask_set_choose(const mask_frame *f, const expr *condition, const mask_set *x, const mask_set *y) {
  static const mask_interval open = {.exact = true};
  mask_interval empty = open;
  add_bound(&empty, true, (mask_bound){f->end, 0});
  mask_set s = {.fault = x->fault ? x->fault : y->fault};
  for (int n = 0; n < x->count || n < y->count; n++) {
    mask_interval one = open;
    add_guarded(f, &one, condition, true, n < x->count ? &x->items[n] : &empty);
    add_guarded(f, &one, condition, false, n < y->count ? &y->items[n] : &empty);
    append(f, &s, &one, s.fault);
  }
  simplify(f, &s);
  return s;
}
