/* Masks from practice, tile by tile: how many tiles the analysis skips and frees, against how many it could.
 *
 * A tile can be skipped when nothing in it is visible, and is free of the mask when all of it is. For the masks of the
 * table every such tile must be found by the intervals of rows, by the box program, by the intervals of columns, each
 * on its own, as the table says; and never another tile by any. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "box.h"
#include "expr_internal.h"
#include "mask.h"

/* ---- tensors ---- */

/* clang-format off */
static const expr_param params[] = {
    {.name = "W", .type = PARAM_I32},                     {.name = "P", .type = PARAM_I32},
    {.name = "doc", .type = PARAM_I32, .rank = 1},        {.name = "off", .type = PARAM_I32, .rank = 1},
    {.name = "glob", .type = PARAM_BOOL, .rank = 1},      {.name = "start", .type = PARAM_I32, .rank = 1},
    {.name = "span_end", .type = PARAM_I32, .rank = 1},   {.name = "img", .type = PARAM_I32, .rank = 1},
    {.name = "first", .type = PARAM_I32, .rank = 1},      {.name = "last", .type = PARAM_I32, .rank = 1},
    {.name = "shuffled", .type = PARAM_I32, .rank = 1},   {.name = "pos", .type = PARAM_F32, .rank = 1},
};
/* clang-format on */
enum { W, P, DOC, OFF, GLOB, START, SPAN_END, IMG, FIRST, LAST, SHUFFLED, POS, PARAMS };
_Static_assert(sizeof params / sizeof *params == PARAMS, "one name for every parameter");

enum { MOST = 2400, MOST_INSTRUCTIONS = 600 };

/* Documents of uneven lengths; for span_end, spans (images) inside a text; first and last, queries of image n. */
static double value_of(int param, int64_t n) {
  static const int begins[] = {0, 70, 200, 256, 300, 450, 451, 520, MOST}, labels[] = {5, 2, 7, 3, 40, 1, 0, 4};
  int64_t doc = 0;
  while (begins[doc + 1] <= n)
    doc++;
  switch (param) {
  case W:
    return 100;
  case P:
    return 90;
  case DOC:
    return (double)doc;
  case SHUFFLED:
    return labels[doc];
  case OFF:
    return begins[n < 8 ? n : 8];
  case GLOB:
    return n == 10 || n == 300;
  case START:
    return begins[doc];
  case SPAN_END:
    return doc % 2 ? begins[doc + 1] : 0; /* text sees no span */
  case IMG:
    return (double)(n / 30);
  case FIRST:
    return (double)(n * 60);
  case LAST:
    return (double)(n * 60 + 75);
  default:
    return (double)n / 2;
  }
}

static int extent; /* of all tensors */

static int64_t clamp(int64_t n) {
  return n < 0 ? 0 : n < extent ? n : extent - 1;
}

static double read(void *user, int param, const int64_t *index) {
  (void)user;
  return value_of(param, clamp(index[0]));
}

/* As a kernel has them: of whole granules of 32 elements. */
enum { GRANULE = 32 };

static double extreme(void *user, const box_summary *s, const int64_t *index, bool greatest) {
  (void)user;
  double found = value_of(s->param, clamp(index[0]));
  int64_t begin = clamp(index[0]), end = clamp(index[1]) + 1;
  if (s->direct && index[0] <= index[1]) {
    begin = begin / GRANULE * GRANULE;
    end = clamp((end + GRANULE - 1) / GRANULE * GRANULE - 1) + 1;
  }
  for (int64_t n = begin; n < end; n++) {
    double x = value_of(s->param, n);
    if (greatest ? x > found : x < found)
      found = x;
  }
  return found;
}

static uint64_t label_set(void *user, const box_summary *s, const int64_t *index) {
  (void)user;
  uint64_t set = 0;
  for (int64_t n = clamp(index[0]); n <= clamp(index[1]); n++)
    set |= UINT64_C(1) << ((uint64_t)value_of(s->param, n) % 64);
  return set;
}

/* ---- the masks ---- */

enum {
  ROWS = 1,
  BOXES = 2,
  COLUMNS = 4,
  BOTH = ROWS | BOXES,
  ALL = BOTH | COLUMNS,
  WAYS = 3
}; /* who finds every tile */

typedef struct exact_mask {
  const char *name, *source;
  int len_q, len_k, tiles[3]; /* tiles of n x n; 0: none */
  int exact;
  mask_form form;
  int skipped, full; /* with the first tile size; -1: whatever brute force finds */
} exact_mask;

#define DIFFUSION(bq, bk, qn, kn)                                                                                      \
  "(" bq " == " bk " and (" qn " and " kn " or not " qn " and not " kn ")) or (" bq " > " bk " and " qn " and not " kn \
  ") or (" bq " >= " bk " and not " qn " and not " kn ")"
#define MORTON_X(i)                                                                                                    \
  "(" i " % 2 + " i " // 4 % 2 * 2 + " i " // 16 % 2 * 4 + " i " // 64 % 2 * 8 + " i " // 256 % 2 * 16)"
#define MORTON_Y(i)                                                                                                    \
  "(" i " // 2 % 2 + " i " // 8 % 2 * 2 + " i " // 32 % 2 * 4 + " i " // 128 % 2 * 8 + " i " // 512 * 16)"
#define NEAR(x, y, r) "abs(" x " - " y ") <= " r
#define CLAMP(x, low, high) "min(max(" x ", " low "), " high ")"
#define TILED_X(i) "(" i " // 64 % 4 * 8 + " i " % 8)"
#define TILED_Y(i) "(" i " // 256 * 8 + " i " % 64 // 8)"
#define WIDE_X(i) "(" i " // 128 % 2 * 16 + " i " % 16)"
#define WIDE_Y(i) "(" i " // 256 * 8 + " i " % 128 // 16)"

static const exact_mask masks[] = {
    {"causal", "causal", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"bottom-right", "causal", 300, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"more queries than keys", "causal", 600, 300, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"window", "window(100, 0)", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"window of a parameter", "window(W, 20)", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"sink and window", "causal and (q - k < 100 or k < 20)", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"prefix LM, aligned", "causal or k < 128", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"prefix LM", "causal or prefix(P)", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"chunked", "causal and q // 128 == k // 128", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"chunked, not aligned", "causal and q // 150 == k // 150", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"block-causal", "k // 48 <= q // 48", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"documents", "same(doc)", 600, 600, {32, 64, 128}, BOXES, MASK_MAP, -1, -1},
    {"documents, causal", "causal and same(doc)", 600, 600, {32, 64, 128}, BOXES, MASK_MAP, -1, -1},
    {"documents, shuffled", "same(shuffled)", 600, 600, {32, 64, 128}, BOXES, MASK_MAP, -1, -1},
    {"documents, own positions",
     "same(doc) and k - off[doc[k]] <= q - off[doc[q]]",
     600,
     600,
     {32, 64, 128},
     BOXES,
     MASK_MAP,
     -1,
     -1},
    {"packed", "start[q] <= k and k <= q", 600, 600, {32, 64, 128}, BOTH, MASK_ROWS, -1, -1},
    {"packed by document", "off[doc[q]] <= k and k <= q", 600, 600, {32, 64, 128}, BOTH, MASK_ROWS, -1, -1},
    {"dilated", "abs(q - k) <= 128 and (q - k) % 4 == 0", 600, 600, {32, 64, 128}, BOXES, MASK_BOXES, -1, -1},
    {"Longformer", "abs(q - k) <= 60 or glob[q] or glob[k]", 600, 600, {32, 64, 128}, BOXES, MASK_MAP, -1, -1},
    {"batchify", "q // 200 == k // 200 and k % 200 <= q % 200", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"batchify, window",
     "q // 200 == k // 200 and 0 <= q % 200 - k % 200 < 50",
     600,
     600,
     {32, 64, 128},
     ALL,
     MASK_ROWS,
     -1,
     -1},
    {"block diffusion",
     DIFFUSION("(q % 320 // 16)", "(k % 320 // 16)", "q < 320", "k < 320"),
     640,
     640,
     {32, 64, 128},
     BOXES,
     MASK_BOXES,
     -1,
     -1},
    {"block diffusion by cases",
     DIFFUSION("where(q < 320, q // 16, (q - 320) // 16)", "where(k < 320, k // 16, (k - 320) // 16)", "q < 320",
               "k < 320"),
     640,
     640,
     {32, 64, 128},
     ALL,
     MASK_ROWS,
     -1,
     -1},
    {"JetSpec training",
     "k < P or (q // 8 == (k - P) // 8 and (k - P) % 8 <= q % 8)",
     512,
     602,
     {32, 64, 128},
     ALL,
     MASK_ROWS,
     -1,
     -1},
    {"Flamingo", "first[img[k]] <= q < last[img[k]]", 600, 300, {32, 64, 128}, BOXES | COLUMNS, MASK_MAP, -1, -1},
    {"NATTEN 32^2, 7",
     NEAR(CLAMP("q % 32", "3", "28"), "k % 32", "3") " and " NEAR(CLAMP("q // 32", "3", "28"), "k // 32", "3"),
     1024,
     1024,
     {64, 128},
     BOXES,
     MASK_BOXES,
     -1,
     -1},
    {"NATTEN 48^2, 13",
     NEAR(CLAMP("q % 48", "6", "41"), "k % 48", "6") " and " NEAR(CLAMP("q // 48", "6", "41"), "k // 48", "6"),
     2304,
     2304,
     {64, 128},
     BOXES,
     MASK_BOXES,
     -1,
     -1},
    {"NATTEN, 8 x 8 tiles",
     NEAR(CLAMP(TILED_X("q"), "3", "28"), TILED_X("k"), "3") " and " NEAR(CLAMP(TILED_Y("q"), "3", "28"), TILED_Y("k"),
                                                                          "3"),
     1024,
     1024,
     {64, 128},
     BOXES,
     MASK_BOXES,
     -1,
     -1},
    {"NATTEN, 16 x 8 tiles",
     NEAR(CLAMP(WIDE_X("q"), "3", "28"), WIDE_X("k"), "3") " and " NEAR(CLAMP(WIDE_Y("q"), "3", "28"), WIDE_Y("k"),
                                                                        "3"),
     1024,
     1024,
     {128, 64},
     BOXES,
     MASK_BOXES,
     -1,
     -1},
    {"NATTEN, Morton",
     NEAR(CLAMP(MORTON_X("q"), "3", "28"), MORTON_X("k"), "3") " and " NEAR(CLAMP(MORTON_Y("q"), "3", "28"),
                                                                            MORTON_Y("k"), "3"),
     1024,
     1024,
     {64, 128},
     BOXES,
     MASK_BOXES,
     -1,
     -1},
    {"SASA",
     NEAR("q % 32", "k % 32", "3") " and " NEAR("q // 32", "k // 32", "3"),
     1024,
     1024,
     {64, 128},
     BOXES,
     MASK_BOXES,
     -1,
     -1},
    {"STA 2-D",
     "q >= 2304 or k >= 2304 or (" NEAR(CLAMP("q // 64 % 6", "1", "4"), "k // 64 % 6",
                                        "1") " and " NEAR(CLAMP("q // 384", "1", "4"), "k // 384", "1") ")",
     2368,
     2368,
     {64, 128},
     BOXES,
     MASK_BOXES,
     972,
     397},
    {"SVG spatial", "k < 50 or q < 50 or abs(q - k) < 70", 600, 600, {32, 64, 128}, ALL, MASK_ROWS, -1, -1},
    {"SVG temporal",
     "k < 32 or q < 32 or abs((q - 32) % 100 - (k - 32) % 100) < 20",
     632,
     632,
     {32, 64, 128},
     BOXES,
     MASK_BOXES,
     -1,
     -1},
    {"transfusion", "causal or k < span_end[q]", 600, 600, {32, 64, 128}, ROWS, MASK_ROWS, -1, -1},
    {"all", "true", 100, 100, {32}, ROWS, MASK_ALL, 0, 16},
    {"none", "q > q + 1", 100, 100, {32}, ROWS, MASK_NONE, 16, 0},
    {"checkerboard", "(q + k) % 2 == 0", 600, 600, {32, 64, 128}, ALL, MASK_ELEMENTS, 0, 0},
    {"product", "q * k % 7 < 3", 600, 600, {32, 64, 128}, ALL, MASK_ELEMENTS, 0, 0},
    {"float window", "pos[q] - pos[k] < 60.0 and causal", 600, 600, {32, 64, 128}, BOXES, MASK_MAP, -1, -1},
};

/* ---- decisions ---- */

typedef struct exact_case {
  const exact_mask *known;
  const expr *mask;
  mask_plan plan;
  expr_env env;
  int tile;
  bool *visible; /* [len_q, len_k], computed once */
} exact_case;

typedef struct decision {
  bool skip, full;
} decision;

static int offset(const exact_case *c) {
  return c->known->len_k - c->known->len_q;
}

/* Of rows i0 .. i1 - 1 (raw) and keys k0 .. k1 - 1. */
static decision brute_force(const exact_case *c, int i0, int i1, int k0, int k1) {
  decision d = {true, true};
  for (int i = i0; i < i1; i++)
    for (int k = k0; k < k1; k++) {
      bool seen = c->visible[i * c->known->len_k + k];
      d.skip &= !seen;
      d.full &= seen;
    }
  return d;
}

/* As a kernel would: visited and full range of every interval over lines (rows, or columns) first to last, against the
 * elements begin to end - 1. */
static decision by_lines(arena *a, exact_case *c, const mask_intervals *m, int first, int last, int begin, int end) {
  decision d = {true, false};
  for (int n = 0; n < m->count; n++) {
    int visit[2] = {1 << 30, -(1 << 30)}, full[2] = {-(1 << 30), 1 << 30};
    const expr *low = mask_interval_side(a, m, n, true), *high = mask_interval_side(a, m, n, false);
    for (int line = first; line <= last; line++) {
      c->env.symbol[m->over] = line;
      int x = (int)expr_eval(low, &c->env), y = (int)expr_eval(high, &c->env);
      visit[0] = x < visit[0] ? x : visit[0], visit[1] = y > visit[1] ? y : visit[1];
      full[0] = x > full[0] ? x : full[0], full[1] = y < full[1] ? y : full[1];
    }
    d.skip &= visit[0] >= visit[1] || visit[1] <= begin || visit[0] >= end;
    d.full |= m->items[n].exact && full[0] <= begin && end <= full[1];
  }
  return d;
}

static decision by_boxes(exact_case *c, int i0, int i1, int k0, int k1) {
  if (!c->plan.box)
    return (decision){false, false};
  box_env env = {.read = read, .extreme = extreme, .label_set = label_set};
  env.input[BOX_Q_FIRST] = i0 + offset(c), env.input[BOX_Q_LAST] = i1 - 1 + offset(c);
  env.input[BOX_K_FIRST] = k0, env.input[BOX_K_LAST] = k1 - 1;
  env.input[BOX_LEN_Q] = c->known->len_q, env.input[BOX_LEN_K] = c->known->len_k;
  box_answer may = box_run(c->plan.box, &env);
  return (decision){!may.may_be_true, !may.may_be_false};
}

typedef struct tally {
  int skipped, full;
} tally;

static void count(tally *t, decision d) {
  t->skipped += d.skip;
  t->full += d.full;
}

static void check_sound(const exact_case *c, const char *how, decision found, decision is, int i, int k) {
  if ((found.skip && !is.skip) || (found.full && !is.full))
    fail_msg("%s, tile %d: %s decides wrongly at row %d, key %d: %s", c->known->name, c->tile, how, i, k,
             c->known->source);
}

static void check_tiles(arena *a, exact_case *c, bool first) {
  static const char *const names[WAYS] = {"rows", "boxes", "columns"};
  const exact_mask *known = c->known;
  tally is = {0}, found[WAYS] = {{0}};
  for (int i = 0; i < known->len_q; i += c->tile)
    for (int k = 0; k < known->len_k; k += c->tile) {
      int i1 = i + c->tile < known->len_q ? i + c->tile : known->len_q;
      int k1 = k + c->tile < known->len_k ? k + c->tile : known->len_k;
      int q = i + offset(c), q1 = i1 + offset(c);
      decision right = brute_force(c, i, i1, k, k1);
      decision ways[WAYS] = {by_lines(a, c, &c->plan.rows, q, q1 - 1, k, k1), by_boxes(c, i, i1, k, k1),
                             by_lines(a, c, &c->plan.columns, k, k1 - 1, q, q1)};
      count(&is, right);
      for (int way = 0; way < WAYS; way++) {
        check_sound(c, names[way], ways[way], right, i, k);
        count(&found[way], ways[way]);
      }
    }
  for (int way = 0; way < WAYS; way++)
    if ((known->exact >> way & 1) && (found[way].skipped != is.skipped || found[way].full != is.full))
      fail_msg("%s, len_q %d, len_k %d, tile %d: %s skip %d and free %d tiles, not %d and %d: %s", known->name,
               known->len_q, known->len_k, c->tile, names[way], found[way].skipped, found[way].full, is.skipped,
               is.full, known->source);
  if (first && known->skipped >= 0 && (is.skipped != known->skipped || is.full != known->full))
    fail_msg("%s: brute force finds %d %d", known->name, is.skipped, is.full);
}

static void evaluate(exact_case *c) {
  const exact_mask *known = c->known;
  c->visible = test_malloc((size_t)known->len_q * (size_t)known->len_k * sizeof *c->visible);
  for (int i = 0; i < known->len_q; i++)
    for (int k = 0; k < known->len_k; k++) {
      c->env.symbol[EXPR_I] = i;
      c->env.symbol[EXPR_Q] = i + offset(c);
      c->env.symbol[EXPR_K] = k;
      c->visible[i * known->len_k + k] = expr_eval(c->mask, &c->env) != 0;
    }
}

static const expr *parse(arena *a, const char *source) {
  expr_scope scope = {.symbols = ((1u << EXPR_SYMBOL_COUNT) - 1) & ~EXPR_BIT(EXPR_S),
                      .params = params,
                      .nparams = PARAMS,
                      .heads_q = 4,
                      .heads_kv = 2};
  diags d;
  diags_init(&d, a, "mask", source, strlen(source));
  const expr *e = expr_parse(a, source, 0, true, &scope, EXPR_BOOL, &d);
  if (!e)
    fail_msg("%s: %s", source, d.items[0].message);
  return e;
}

static void test_exact(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof masks / sizeof *masks; n++) {
    arena *a = arena_new();
    exact_case c = {.known = &masks[n], .mask = parse(a, masks[n].source), .env = {.read = read}};
    extent = masks[n].len_q > masks[n].len_k ? masks[n].len_q : masks[n].len_k;
    c.env.symbol[EXPR_LEN_Q] = masks[n].len_q;
    c.env.symbol[EXPR_LEN_K] = masks[n].len_k;
    c.plan = mask_make_plan(a, c.mask, params, true, false);
    if (c.plan.form != masks[n].form)
      fail_msg("%s: form %d: %s", masks[n].name, c.plan.form, masks[n].source);
    evaluate(&c);
    for (int t = 0; t < 3 && masks[n].tiles[t]; t++) {
      c.tile = masks[n].tiles[t];
      check_tiles(a, &c, t == 0);
    }
    if (c.plan.box && c.plan.box->count > MOST_INSTRUCTIONS)
      fail_msg("%s: %d instructions", masks[n].name, c.plan.box->count);
    test_free(c.visible);
    arena_free(a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exact),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
