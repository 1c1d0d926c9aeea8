/* mask_plan.c: everything that is known of one mask, and the best form among it. */
#include "box.h"
#include "mask_internal.h"

bool mask_is_range(const mask_rows *rows) {
  return rows->form == MASK_ALL || rows->form == MASK_NONE || (rows->form == MASK_ROWS && rows->exact);
}

static mask_form best_form(const mask_plan *p, const expr *normal) {
  if (expr_is_const(normal))
    return normal->integer ? MASK_ALL : MASK_NONE;
  if (p->rows.exact && p->rows.count == 0)
    return MASK_NONE;
  if (p->rows.exact && p->rows.count == 1 && p->rows.items[0].nlow + p->rows.items[0].nhigh == 0)
    return MASK_ALL;
  if (p->rows.exact)
    return MASK_ROWS;
  if (!p->box)
    return MASK_ELEMENTS;
  return p->box->nsummaries ? MASK_MAP : MASK_BOXES;
}

mask_plan mask_make_plan(arena *a, const expr *mask, const expr_param *params, bool bottom_right, bool heads_vary) {
  const mask_limits limits = mask_default_limits();
  const box_options options = {
      .bottom_right = bottom_right, .labels = true, .heads_vary = heads_vary, .params = params};
  mask_plan p = {.hull = mask_analyse(a, mask, bottom_right),
                 .rows = mask_row_intervals(a, mask, bottom_right),
                 .columns = mask_column_intervals(a, mask, bottom_right),
                 .overflow = mask_find_overflow(mask, &limits)};
  p.box = box_build(a, mask, &options);
  if (p.box && box_probe(p.box) == 0)
    p.box = NULL;
  p.form = best_form(&p, expr_normalise(a, mask_without_i(a, mask, bottom_right)));
  p.emptiness = mask_prove_rows(a, &p.rows, bottom_right);
  if (p.form == MASK_ALL || p.form == MASK_NONE)
    p.box = NULL;
  return p;
}

int mask_plan_growth(const mask_plan *p, bool by_hull) {
  if (by_hull)
    return mask_rows_growth(&p->hull);
  return p->form == MASK_ROWS ? mask_intervals_growth(&p->rows) : MASK_BY_ROW;
}

bool mask_visits_range(const mask_plan *p, bool mapped) {
  return mask_is_range(&p->hull) || (!mapped && (p->form == MASK_MAP || p->form == MASK_ELEMENTS));
}
