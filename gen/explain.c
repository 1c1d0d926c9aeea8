/* explain.c: how mask and score of a spec are handled, in words. */
#include <string.h>

#include "box.h"
#include "gen.h"
#include "expr_internal.h"
#include "mask_residue.h"
#include "score.h"

static const char *const meanings[] = {
    /* by mask_form */
    "all: every key is visible; no tile evaluates the mask",
    "none: no key is visible; O = 0 and LSE = -inf everywhere",
    "rows: a row sees keys of an interval; tiles outside are skipped",
    "boxes: tiles are decided by their place and the parameters",
    "map: tiles are decided by what tensors hold",
    "elements: no interval is known; every tile evaluates the mask",
};
/* By direction + 1. */
static const char *const directions[] = {"falls with q", "does not depend on q", "rises with q"};

static void explain_bounds(const spec *s, const char *name, const char *none, const mask_bound *bounds, int count,
                           text *out) {
  if (count == 0)
    text_printf(out, "%s: %s\n", name, none);
  for (int n = 0; n < count; n++) {
    text_printf(out, "%s: ", name);
    expr_print(bounds[n].value, s->params, out);
    text_printf(out, " (%s)\n", directions[bounds[n].direction + 1]);
  }
}

/* ---- what is known beyond one interval ---- */

/* Of the plan, by mask_form. */
static const char *const knowledge[] = {
    [MASK_ALL] = "every key is visible",
    [MASK_NONE] = "no key is visible",
    [MASK_ROWS] = "a row sees the keys of these intervals and no others",
    [MASK_BOXES] = "tiles are decided by their place and scalar parameters",
    [MASK_MAP] = "tiles are decided with the least and greatest elements of tensors",
    [MASK_ELEMENTS] = "no tile can be decided",
};
static const char *const emptiness[] = {
    [MASK_ROWS_MAY_BE_EMPTY] = "a row may see no key",
    [MASK_NO_EMPTY_ROW_IF_SHORT] = "every row sees a key when len_q <= len_k and there are keys",
    [MASK_NO_EMPTY_ROW] = "every row sees a key when there are keys",
};

static void explain_expression(const spec *s, const char *before, const expr *e, const char *after, text *out) {
  text_puts(out, before);
  expr_print(e, s->params, out);
  text_puts(out, after);
}

static void explain_intervals(arena *a, const spec *s, const char *name, const mask_intervals *m, text *out) {
  if (!m->exact) {
    explain_expression(s, "", m->fault, "", out);
    text_printf(out, " keeps %ss from being intervals\n", name);
    return;
  }
  for (int n = 0; n < m->count; n++) {
    bool by_row = mask_interval_by_row(m, n, true) || mask_interval_by_row(m, n, false);
    text_printf(out, "%s: from ", name);
    explain_expression(s, "", mask_interval_side(a, m, n, true), " to before ", out);
    explain_expression(s, "", mask_interval_side(a, m, n, false), by_row ? " (row by row)\n" : "\n", out);
  }
}

static void explain_box(const spec *s, const box_program *p, text *out) {
  text_printf(out, "tiles: a program of %d instructions says which to skip and which are free of the mask\n", p->count);
  for (int n = 0; n < p->nsummaries; n++) {
    const box_summary *y = &p->summaries[n];
    text_printf(out, "tiles: needs the range of %s over index %d, which moves with", s->params[y->param].name,
                y->axis + 1);
    for (int symbol = 0; symbol < EXPR_SYMBOL_COUNT; symbol++)
      if (y->along & EXPR_BIT(symbol))
        text_printf(out, " %s", expr_symbol_name((expr_symbol)symbol));
    text_puts(out, "\n");
  }
}

static void explain_plan(arena *a, const spec *s, const mask_plan *p, bool by_residue, text *out) {
  text_printf(out, "known: %s\n", knowledge[p->form]);
  if (p->form != MASK_ALL && p->form != MASK_NONE) {
    explain_intervals(a, s, "row", &p->rows, out);
    if (!by_residue)
      explain_intervals(a, s, "column", &p->columns, out);
  }
  if (!spec_is_dense(s) && !by_residue && (p->form == MASK_MAP || p->form == MASK_ELEMENTS))
    text_puts(out, "tiles: none is skipped within the rows' range: sequences of different lengths have no map\n");
  if (p->box)
    explain_box(s, p->box, out);
  text_printf(out, "empty rows: %s\n", emptiness[p->emptiness]);
  if (p->overflow)
    explain_expression(s, "overflow: ", p->overflow, " may leave 32 bits for the greatest lengths and parameters\n",
                       out);
}

/* Everything after it is of the tokens of one residue. */
static void explain_residue(const spec *s, const mask_residue *r, text *out) {
  explain_expression(s, "residues: a row sees only keys of its own modulo ", r->modulus,
                     "; tiles hold tokens of one residue, and q and k below count those\n", out);
  explain_expression(s, "within a residue: ", r->within, "\n", out);
}

/* An edge of a tile of rows, with `first` and `last` for the positions of its rows. */
static void explain_edge(arena *a, const spec *s, const mask_rows *rows, mask_edge edge, text *out) {
  static const char *const names[] = {"first", "last"};
  static const expr_symbol symbols[] = {EXPR_Q, EXPR_I};
  expr_param *params = arena_alloc(a, sizeof *params * SPEC_MAX_PARAMS + 2 * sizeof *params);
  const expr *value = mask_tile_edge(a, rows, edge);
  memcpy(params, s->params, sizeof *params * (size_t)s->nparams);
  for (int n = 0; n < 2; n++) { /* printed as scalar parameters of these names */
    params[s->nparams + n] = (expr_param){.name = names[n], .type = PARAM_I32};
    expr name = {.op = EXPR_PARAM, .type = EXPR_INT, .param = s->nparams + n};
    expr *node = arena_alloc(a, sizeof *node);
    *node = name;
    value = expr_substitute(a, value, symbols[n], node);
  }
  expr_print(value, params, out);
}

/* The keys that rows first to last visit, and those of them that need no mask. */
static void explain_tile(arena *a, const spec *s, const mask_rows *rows, text *out) {
  text_puts(out, "rows first..last visit keys: from ");
  explain_edge(a, s, rows, MASK_VISIT_BEGIN, out);
  text_puts(out, " up to ");
  explain_edge(a, s, rows, MASK_VISIT_END, out);
  text_puts(out, "\n");
  if (!rows->exact)
    return;
  text_puts(out, "free of the mask: from ");
  explain_edge(a, s, rows, MASK_FULL_BEGIN, out);
  text_puts(out, " up to ");
  explain_edge(a, s, rows, MASK_FULL_END, out);
  text_puts(out, "\n");
}

/* e with EXPR_LOCAL number 0 printed as y: as a scalar parameter of that name. */
static void explain_slope(arena *a, const spec *s, const score_derivative *d, text *out) {
  expr_param *params = arena_alloc(a, sizeof *params * (SPEC_MAX_PARAMS + 1));
  expr *y = arena_alloc(a, sizeof *y), *local = arena_alloc(a, sizeof *local);
  memcpy(params, s->params, sizeof *params * (size_t)s->nparams);
  params[s->nparams] = (expr_param){.name = "y", .type = PARAM_F32};
  *y = (expr){.op = EXPR_PARAM, .type = EXPR_FLOAT, .param = s->nparams};
  *local = (expr){.op = EXPR_LOCAL, .type = EXPR_FLOAT};
  expr_print(expr_replace(a, d->slope, local, y), params, out);
}

void gen_explain_score(const spec *s, text *out) {
  static const char *const classes[] = {
      [SCORE_SLOPE_FREE] = "0 (free of s)",
      [SCORE_SLOPE_OF_VALUE] = "1 (a function of the score y)",
      [SCORE_SLOPE_OF_S] = "2 (needs s)",
  };
  enum { MOST = 400 }; /* bytes of a line that still says something */
  text slope = {0};
  arena *memory = arena_new();
  if (!memory || !ARENA_TRY(memory)) {
    arena_free(memory);
    text_free(&slope);
    out->failed = true;
    return;
  }
  score_derivative d = score_derive(memory, s->score, s->softcap);
  explain_slope(memory, s, &d, &slope);
  out->failed |= slope.failed;
  text_puts(out, "score: ");
  expr_print(s->score, s->params, out);
  if (s->softcap > 0)
    text_printf(out, ", s capped at %g", s->softcap);
  text_printf(out, "\nslope in s: class %s: %s\n", classes[d.class],
              slope.bytes && slope.size <= MOST ? slope.bytes : "too long to print");
  text_free(&slope);
  arena_free(memory);
}

void gen_explain_mask(const spec *s, text *out) {
  arena *memory = arena_new();
  if (!memory || !ARENA_TRY(memory)) {
    arena_free(memory);
    out->failed = true;
    return;
  }
  mask_residue residue;
  mask_plan plan = mask_make_tile_plan(memory, s->mask, s->params, s->align == ALIGN_BOTTOM_RIGHT, false,
                                       spec_is_dense(s), &residue);
  mask_rows rows = plan.hull;
  explain_expression(s, "mask: ", s->mask, "\n", out);
  if (residue.modulus)
    explain_residue(s, &residue, out);
  text_printf(out, "form: %s\n", meanings[rows.form]);
  if (rows.form == MASK_ROWS) {
    text_printf(out, "exact: %s\n",
                rows.exact ? "yes: tiles inside the interval are free of mask code"
                           : "no: tiles inside the interval evaluate the rest of the mask");
    explain_bounds(s, "first key", "0", rows.low, rows.nlow, out);
    explain_bounds(s, "key after the last", "len_k", rows.high, rows.nhigh, out);
    explain_tile(memory, s, &rows, out);
  }
  explain_plan(memory, s, &plan, residue.modulus != NULL, out);
  arena_free(memory);
}
