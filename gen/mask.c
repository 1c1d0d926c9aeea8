/* mask.c: from a mask to bounds on k per query row, and from those to the bounds of a tile of rows.
 *
 * Input: a mask. Output: mask_rows. The mask is brought to normal form; then every part of it becomes a set of bounds
 * that hold wherever it is true, `exact` if they also suffice:
 *   sum <= 0, == 0    solved for k through constant factors, //, min, max and abs (mask_solve.c)
 *   and               all bounds of both sides
 *   or                bounds of the union; exact when both sides are bounded from one end only
 *   where(c, a, b)    with c the same in a whole tile: per bound
 *   without k         low = where(condition, 0, len_k)
 *   anything else     no bounds, not exact
 * What is not exact is evaluated per element by the kernel, so a part that is not understood costs time, never results.
 *
 * Assumption, as for the normal form: positions, lengths and int parameters lie in [-2^30, 2^30] and the sums and
 * products of a mask do not overflow 32 bits. */
#include "mask_internal.h"

enum { UNIFORM = ~(EXPR_BIT(EXPR_Q) | EXPR_BIT(EXPR_K) | EXPR_BIT(EXPR_I)) };

static bool is_uniform(const expr *e) {
  return (expr_symbols(e) & ~(unsigned)UNIFORM) == 0;
}

bool mask_join(int x, int y, int *direction) {
  *direction = x ? x : y;
  return x == 0 || y == 0 || x == y;
}

static bool direction_of_sum(arena *a, const expr *e, int *direction) {
  linear f = linear_split(a, e);
  *direction = 0;
  for (int n = 0; n < f.count; n++) {
    int term;
    if (!mask_direction(a, f.terms[n].atom, &term))
      return false;
    if (!mask_join(*direction, f.terms[n].coefficient < 0 ? -term : term, direction))
      return false;
  }
  return true;
}

bool mask_direction(arena *a, const expr *e, int *direction) {
  *direction = 0;
  if (is_uniform(e))
    return true;
  if (e->type != EXPR_INT)
    return false;
  int x, y;
  switch (e->op) {
  case EXPR_SYMBOL:
    *direction = 1;
    return e->symbol == EXPR_Q;
  case EXPR_NEG:
  case EXPR_ADD:
  case EXPR_SUB:
    return direction_of_sum(a, e, direction);
  case EXPR_MUL: /* in normal form a constant factor comes first; other products have no known direction */
    if (!expr_is_const(e->args[0]) || !mask_direction(a, e->args[1], &x))
      return false;
    *direction = e->args[0]->integer < 0 ? -x : x;
    return true;
  case EXPR_FLOORDIV:
    if (!expr_is_const(e->args[1]) || !mask_direction(a, e->args[0], &x))
      return false;
    *direction = e->args[1]->integer < 0 ? -x : x;
    return true;
  case EXPR_MIN:
  case EXPR_MAX:
    return mask_direction(a, e->args[0], &x) && mask_direction(a, e->args[1], &y) && mask_join(x, y, direction);
  case EXPR_WHERE:
    return is_uniform(e->args[0]) && mask_direction(a, e->args[1], &x) && mask_direction(a, e->args[2], &y) &&
           mask_join(x, y, direction);
  default:
    return false;
  }
}

bool mask_join_growth(const mask_bound *bounds, int count, bool low, int *growth) {
  for (int n = 0; n < count; n++)
    if (bounds[n].direction == MASK_BY_ROW ||
        !mask_join(*growth, low ? -bounds[n].direction : bounds[n].direction, growth))
      return false;
  return true;
}

int mask_rows_growth(const mask_rows *rows) {
  int growth = 0;
  bool known = mask_join_growth(rows->low, rows->nlow, true, &growth) &&
               mask_join_growth(rows->high, rows->nhigh, false, &growth);
  return known ? growth : MASK_BY_ROW;
}

bool mask_rows_width(arena *a, const mask_rows *rows, int64_t *width) {
  bool known = false;
  for (int h = 0; h < rows->nhigh; h++)
    for (int l = 0; l < rows->nlow; l++) {
      const expr *keys = expr_make(a, EXPR_SUB, rows->high[h].value, rows->low[l].value, NULL);
      keys = expr_normalise(a, keys);
      if (!expr_is_const(keys) || (known && keys->integer >= *width))
        continue;
      *width = keys->integer > 0 ? keys->integer : 0;
      known = true;
    }
  return known;
}

void mask_add(arena *a, mask_rows *rows, bool low, const expr *value, int direction) {
  mask_bound *bounds = low ? rows->low : rows->high;
  int *count = low ? &rows->nlow : &rows->nhigh;
  value = expr_normalise(a, value);
  for (int n = 0; n < *count; n++)
    if (expr_equal(bounds[n].value, value))
      return;
  if (*count == MASK_MAX_BOUNDS) {
    rows->exact = false;
    return;
  }
  bounds[(*count)++] = (mask_bound){value, direction};
}

static const mask_rows everything = {.form = MASK_ROWS, .exact = true};
static const mask_rows unknown = {.form = MASK_ROWS, .exact = false};

static void add_all(arena *a, mask_rows *rows, const mask_rows *more) {
  for (int n = 0; n < more->nlow; n++)
    mask_add(a, rows, true, more->low[n].value, more->low[n].direction);
  for (int n = 0; n < more->nhigh; n++)
    mask_add(a, rows, false, more->high[n].value, more->high[n].direction);
  rows->exact &= more->exact;
}

void mask_add_condition(arena *a, mask_rows *rows, const expr *condition) {
  int direction = 0;
  condition = expr_normalise(a, condition);
  if (!is_uniform(condition)) {
    /* `sum <= 0` with a monotone sum changes once as q grows: from true to false if the sum rises. */
    if (condition->op != EXPR_LE || condition->args[0]->type != EXPR_INT ||
        !mask_direction(a, condition->args[0], &direction)) {
      rows->exact = false;
      return;
    }
  }
  mask_add(a, rows, true, expr_make(a, EXPR_WHERE, condition, expr_int(a, 0), expr_sym(a, EXPR_LEN_K)), direction);
}

/* All bounds of one side as one; false when there are none, or their directions differ. */
static bool merge(arena *a, const mask_rows *rows, bool low, mask_bound *out) {
  int count = low ? rows->nlow : rows->nhigh;
  const mask_bound *bounds = low ? rows->low : rows->high;
  if (count == 0)
    return false;
  *out = bounds[0];
  for (int n = 1; n < count; n++) {
    out->value = expr_make(a, low ? EXPR_MAX : EXPR_MIN, out->value, bounds[n].value, NULL);
    if (!mask_join(out->direction, bounds[n].direction, &out->direction))
      return false;
  }
  return true;
}

/* Bounds of `x or y`: the hull. It is the union itself when both are exact and open towards the same end. */
static mask_rows unite(arena *a, const mask_rows *x, const mask_rows *y) {
  mask_rows rows = everything;
  mask_bound p, q;
  int found = 0;
  for (int low = 0; low <= 1; low++) {
    int direction;
    if (!merge(a, x, low, &p) || !merge(a, y, low, &q) || !mask_join(p.direction, q.direction, &direction))
      continue;
    mask_add(a, &rows, low, expr_make(a, low ? EXPR_MIN : EXPR_MAX, p.value, q.value, NULL), direction);
    found++;
  }
  bool only_low = x->nhigh == 0 && y->nhigh == 0, only_high = x->nlow == 0 && y->nlow == 0;
  bool open = only_low || only_high;
  bool all = (x->nlow + x->nhigh == 0 && x->exact) || (y->nlow + y->nhigh == 0 && y->exact);
  rows.exact = all || (x->exact && y->exact && open && found == 1);
  return rows;
}

bool mask_parts(expr_op op, const expr *e, const expr **parts, int most, int *count) {
  if (e->op == op)
    return mask_parts(op, e->args[0], parts, most, count) && mask_parts(op, e->args[1], parts, most, count);
  if (*count == most)
    return false;
  parts[(*count)++] = e;
  return true;
}

/* `condition or rest`, with a condition that is the same in a whole tile: every bound of the rest applies unless it is
 * true. This is what a window whose size is a parameter becomes. */
static mask_rows unless(arena *a, const expr *condition, const mask_rows *rest) {
  mask_rows rows = everything;
  for (int n = 0; n < rest->nlow; n++)
    mask_add(a, &rows, true, expr_make(a, EXPR_WHERE, condition, expr_int(a, 0), rest->low[n].value),
             rest->low[n].direction);
  for (int n = 0; n < rest->nhigh; n++)
    mask_add(a, &rows, false, expr_make(a, EXPR_WHERE, condition, expr_sym(a, EXPR_LEN_K), rest->high[n].value),
             rest->high[n].direction);
  rows.exact &= rest->exact;
  return rows;
}

static mask_rows rows_of(arena *a, const expr *e);

static mask_rows rows_of_or(arena *a, const expr *e) {
  enum { MOST = 64 };
  const expr *items[MOST];
  const expr *condition = NULL;
  int count = 0;
  bool some = false;
  mask_rows rows = everything;
  if (!mask_parts(EXPR_OR, e, items, MOST, &count))
    return unknown;
  for (int n = 0; n < count; n++) {
    if (is_uniform(items[n])) {
      condition = condition ? expr_make(a, EXPR_OR, condition, items[n], NULL) : items[n];
      continue;
    }
    mask_rows one = rows_of(a, items[n]);
    rows = some ? unite(a, &rows, &one) : one;
    some = true;
  }
  return condition ? unless(a, condition, &rows) : rows;
}

static mask_rows rows_of_where(arena *a, const expr *e) {
  const expr *condition = e->args[0];
  if (!is_uniform(condition))
    return unknown;
  /* (condition and first) or second where not: each side's bounds hold unless the other side is chosen. */
  mask_rows first = rows_of(a, e->args[1]), second = rows_of(a, e->args[2]);
  mask_rows rows = unless(a, expr_normalise(a, expr_make(a, EXPR_NOT, condition, NULL, NULL)), &first);
  second = unless(a, condition, &second);
  add_all(a, &rows, &second);
  return rows;
}

static mask_rows rows_of(arena *a, const expr *e) {
  mask_rows rows = everything;
  if (e->op == EXPR_CONST) {
    if (!e->integer)
      mask_add(a, &rows, true, expr_sym(a, EXPR_LEN_K), 0);
    return rows;
  }
  if (e->op == EXPR_AND) {
    rows = rows_of(a, e->args[0]);
    mask_rows more = rows_of(a, e->args[1]);
    add_all(a, &rows, &more);
    return rows;
  }
  if (!(expr_symbols(e) & EXPR_BIT(EXPR_K)))
    mask_add_condition(a, &rows, e);
  else if (e->op == EXPR_OR)
    rows = rows_of_or(a, e);
  else if (e->op == EXPR_WHERE)
    rows = rows_of_where(a, e);
  else if ((e->op == EXPR_LE || e->op == EXPR_EQ) && e->args[0]->type == EXPR_INT)
    mask_solve(a, &rows, e->args[0], e->op == EXPR_EQ);
  else
    rows = unknown;
  return rows;
}

mask_rows mask_analyse(arena *a, const expr *mask, bool bottom_right) {
  const expr *row = expr_sym(a, EXPR_Q);
  if (bottom_right)
    row = expr_make(a, EXPR_SUB, row, expr_make(a, EXPR_SUB, expr_sym(a, EXPR_LEN_K), expr_sym(a, EXPR_LEN_Q), NULL),
                    NULL);
  const expr *normal = expr_normalise(a, expr_substitute(a, mask, EXPR_I, row));
  mask_rows rows = rows_of(a, normal);
  if (normal->op == EXPR_CONST)
    rows.form = normal->integer ? MASK_ALL : MASK_NONE;
  else if (rows.nlow + rows.nhigh == 0)
    rows.form = rows.exact ? MASK_ALL : MASK_ELEMENTS;
  if (rows.form != MASK_ROWS)
    rows = (mask_rows){.form = rows.form, .exact = rows.form != MASK_ELEMENTS};
  return rows;
}

/* The value of a bound in that row of the tile where it is least or greatest. */
static const expr *extreme(arena *a, const mask_bound *bound, bool greatest) {
  bool last = greatest ? bound->direction > 0 : bound->direction < 0;
  return last ? expr_substitute(a, bound->value, EXPR_Q, expr_sym(a, EXPR_I)) : bound->value;
}

const expr *mask_tile_edge(arena *a, const mask_rows *rows, mask_edge edge) {
  bool low = edge == MASK_VISIT_BEGIN || edge == MASK_FULL_BEGIN;
  bool full = edge == MASK_FULL_BEGIN || edge == MASK_FULL_END;
  bool none = rows->form == MASK_NONE || (full && !rows->exact);
  if (none) /* the empty interval */
    return low ? expr_sym(a, EXPR_LEN_K) : expr_int(a, 0);
  int count = low ? rows->nlow : rows->nhigh;
  const mask_bound *bounds = low ? rows->low : rows->high;
  const expr *value = NULL;
  for (int n = 0; n < count; n++) {
    const expr *one = extreme(a, &bounds[n], edge == MASK_VISIT_END || edge == MASK_FULL_BEGIN);
    value = value ? expr_make(a, low ? EXPR_MAX : EXPR_MIN, value, one, NULL) : one;
  }
  if (!value)
    return low ? expr_int(a, 0) : expr_sym(a, EXPR_LEN_K);
  return expr_normalise(a, value);
}
