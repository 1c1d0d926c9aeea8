/* mask_intervals.c: the intervals of a mask per row and per column, and their edges over a tile. See mask.h.
 *
 * Columns are derived as rows of the mask with q and k exchanged; then the names in the bounds are exchanged back. */
#include "mask_set.h"

/* q where k stood and k where q stood; e has no i. */
static const expr *exchange(arena *a, const expr *e) {
  e = expr_substitute(a, e, EXPR_Q, expr_sym(a, EXPR_I));
  e = expr_substitute(a, e, EXPR_K, expr_sym(a, EXPR_Q));
  return expr_substitute(a, e, EXPR_I, expr_sym(a, EXPR_K));
}

static void exchange_bounds(arena *a, mask_bound *bounds, int count) {
  for (int n = 0; n < count; n++)
    bounds[n].value = expr_normalise(a, exchange(a, bounds[n].value));
}

/* Puts intervals in an order that is provable, as far as it is. */
static void arrange(const mask_frame *f, mask_intervals *m) {
  for (int n = 1; n < m->count; n++)
    for (int k = n; k > 0; k--) {
      mask_interval *x = &m->items[k - 1], *y = &m->items[k], swap = *x;
      bool after = mask_ends_before(f, y, x) || (mask_begins_before(f, y, x) && !mask_begins_before(f, x, y));
      if (!after)
        break;
      *x = *y;
      *y = swap;
    }
  m->ordered = m->disjoint = true;
  for (int n = 0; n < m->count; n++)
    for (int k = n + 1; k < m->count; k++) { /* not only neighbours: the one between may be empty */
      bool apart = mask_ends_before(f, &m->items[n], &m->items[k]);
      m->disjoint &= apart;
      m->ordered &= apart || mask_begins_before(f, &m->items[n], &m->items[k]);
    }
}

static mask_intervals derive(const mask_frame *f, const expr *normal, expr_symbol over) {
  mask_set s = mask_set_of(f, normal);
  mask_intervals m = {.over = over, .exact = true, .begin = f->begin, .end = f->end};
  mask_set_limit(f, &s, MASK_MAX_INTERVALS);
  m.count = s.count;
  for (int n = 0; n < s.count; n++) {
    m.items[n] = s.items[n];
    m.exact &= s.items[n].exact;
  }
  arrange(f, &m);
  if (!m.exact)
    m.fault = s.fault ? s.fault : normal;
  return m;
}

/* The difference between q and i. */
static const expr *offset(arena *a, bool bottom_right) {
  return bottom_right ? expr_make(a, EXPR_SUB, expr_sym(a, EXPR_LEN_K), expr_sym(a, EXPR_LEN_Q), NULL) : expr_int(a, 0);
}

const expr *mask_without_i(arena *a, const expr *mask, bool bottom_right) {
  const expr *row = expr_make(a, EXPR_SUB, expr_sym(a, EXPR_Q), offset(a, bottom_right), NULL);
  return expr_substitute(a, mask, EXPR_I, row);
}

mask_intervals mask_row_intervals(arena *a, const expr *mask, bool bottom_right) {
  mask_frame f = {a, expr_int(a, 0), expr_sym(a, EXPR_LEN_K)};
  return derive(&f, expr_normalise(a, mask_without_i(a, mask, bottom_right)), EXPR_Q);
}

mask_intervals mask_column_intervals(arena *a, const expr *mask, bool bottom_right) {
  mask_frame f = {a, offset(a, bottom_right), expr_sym(a, bottom_right ? EXPR_LEN_K : EXPR_LEN_Q)};
  const expr *normal = expr_normalise(a, exchange(a, mask_without_i(a, mask, bottom_right)));
  mask_intervals m = derive(&f, normal, EXPR_K);
  for (int n = 0; n < m.count; n++) {
    exchange_bounds(a, m.items[n].low, m.items[n].nlow);
    exchange_bounds(a, m.items[n].high, m.items[n].nhigh);
  }
  if (m.fault)
    m.fault = expr_normalise(a, exchange(a, m.fault));
  return m;
}

/* ---- views ---- */

int mask_intervals_growth(const mask_intervals *m) {
  int growth = 0;
  for (int n = 0; n < m->count; n++)
    if (!mask_join_growth(m->items[n].low, m->items[n].nlow, true, &growth) ||
        !mask_join_growth(m->items[n].high, m->items[n].nhigh, false, &growth))
      return MASK_BY_ROW;
  return growth;
}

const expr *mask_interval_side(arena *a, const mask_intervals *m, int interval, bool low) {
  const expr *side = mask_side(a, &m->items[interval], low), *open = low ? m->begin : m->end;
  return side ? expr_normalise(a, expr_make(a, low ? EXPR_MAX : EXPR_MIN, side, open, NULL)) : open;
}

bool mask_interval_by_row(const mask_intervals *m, int interval, bool low) {
  const mask_interval *x = &m->items[interval];
  const mask_bound *bounds = low ? x->low : x->high;
  for (int n = 0; n < (low ? x->nlow : x->nhigh); n++)
    if (bounds[n].direction == MASK_BY_ROW)
      return true;
  return false;
}

const expr *mask_interval_edge(arena *a, const mask_intervals *m, int interval, mask_edge edge) {
  const mask_interval *x = &m->items[interval];
  bool low = edge == MASK_VISIT_BEGIN || edge == MASK_FULL_BEGIN;
  bool full = edge == MASK_FULL_BEGIN || edge == MASK_FULL_END;
  bool greatest = edge == MASK_VISIT_END || edge == MASK_FULL_BEGIN;
  if (full && !x->exact) /* the empty range */
    return low ? m->end : m->begin;
  if (mask_interval_by_row(m, interval, low))
    return NULL;
  const expr *value = low ? m->begin : m->end;
  for (int n = 0; n < (low ? x->nlow : x->nhigh); n++) {
    const mask_bound *bound = low ? &x->low[n] : &x->high[n];
    bool last = greatest ? bound->direction > 0 : bound->direction < 0;
    const expr *one = last ? expr_substitute(a, bound->value, m->over, expr_sym(a, EXPR_I)) : bound->value;
    value = expr_make(a, low ? EXPR_MAX : EXPR_MIN, value, one, NULL);
  }
  return expr_normalise(a, value);
}
