/* explain.c: how the mask of a spec is handled, in words. */
#include "gen.h"
#include "mask.h"

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

void gen_explain_mask(const spec *s, text *out) {
  arena *memory = arena_new();
  if (!memory || !ARENA_TRY(memory)) {
    arena_free(memory);
    out->failed = true;
    return;
  }
  mask_rows rows = mask_analyse(memory, s->mask, s->align == ALIGN_BOTTOM_RIGHT);
  text_puts(out, "mask: ");
  expr_print(s->mask, s->params, out);
  text_printf(out, "\nform: %s\n", meanings[rows.form]);
  if (rows.form == MASK_ROWS) {
    text_printf(out, "exact: %s\n",
                rows.exact ? "yes: tiles inside the interval are free of mask code"
                           : "no: tiles inside the interval evaluate the rest of the mask");
    explain_bounds(s, "first key", "0", rows.low, rows.nlow, out);
    explain_bounds(s, "key after the last", "len_k", rows.high, rows.nhigh, out);
  }
  arena_free(memory);
}
