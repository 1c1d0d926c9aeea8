/* qkv_mask_tiles.c: what happens to each tile of a mask: as the generator plans it, and as it could be.
 *
 * The plan repeats what the kernels do, for one head: a range of tiles from the bounds of a tile of rows
 * (templates/parts/tile_range.cu), or tile by tile from several intervals, a box program or all pairs (tile_walk.cu,
 * tile_map.cu). Where the mask keeps residues apart, tiles hold tokens of one (residue_view.cu), and all of the plan is
 * about those. Nothing else here or in the callers knows the forms of mask.h. Actual is brute force: the mask is asked
 * for every pair.
 *
 * Invariant, checked in tests/python/test_masks.py: a tile that is planned as skipped is actually skipped, one that is
 * planned as full is actually full. */
#include <math.h>
#include <stdlib.h>

#include "box.h"
#include "mask_residue.h"
#include "qkv_internal.h"

typedef struct planner {
  problem_eval eval;
  mask_residue residue; /* modulus NULL: none */
  mask_plan plan;
  const expr *edges[MASK_FULL_END + 1]; /* of the plan's hull */
  const expr *sides[MASK_MAX_INTERVALS][2]; /* of the plan's intervals: high, low */
} planner;

/* A tile of rows: positions of its first and last row, among the tokens of its residue. */
typedef struct row_tile {
  reference_position first;
  int64_t last, height; /* height 0: there is none, the residue has a query less than others */
} row_tile;

static int64_t clamp(int64_t value, int64_t most) {
  return value < 0 ? 0 : value > most ? most : value;
}

static int64_t ceil_div(int64_t x, int64_t y) {
  return x / y + (x % y != 0);
}

static row_tile row_tile_of(const problem_eval *eval, const mask_tiling *t, int64_t row) {
  int64_t len_q = call_sequence(eval->spec, eval->args, t->batch).len_q;
  int64_t tiles = ceil_div(ceil_div(len_q, t->dilation), t->tile_q), first = row % tiles * t->tile_q;
  row_tile tile = {call_residue_position(eval->spec, eval->args, t->batch, t->head, row / tiles, first, t->dilation),
                   .height = 0};
  tile.height = clamp(tile.first.len_q - first, t->tile_q);
  tile.last = tile.first.q + tile.height - 1;
  return tile;
}

/* Marks the tiles with keys of [begin, end) as visited, then those within [full_begin, full_end) as full. */
static void mark(unsigned char *tiles, const mask_tiling *t, int64_t begin, int64_t end, int64_t full_begin,
                 int64_t full_end) {
  for (int64_t column = 0; column < t->columns; column++) {
    int64_t first = column * t->tile_k, after = first + t->tile_k;
    if (first < end && after > begin && begin < end && tiles[column] == QKV_TILE_SKIPPED)
      tiles[column] = QKV_TILE_PARTIAL;
    if (first >= full_begin && after <= full_end)
      tiles[column] = QKV_TILE_FULL;
  }
}

static void plan_range(const planner *p, const mask_tiling *t, const row_tile *row, unsigned char *tiles) {
  reference_position at = row->first;
  int64_t edge[MASK_FULL_END + 1];
  bool free_tiles = p->plan.hull.form == MASK_ALL || (p->plan.hull.form == MASK_ROWS && p->plan.hull.exact);
  at.i = row->last; /* as mask_tile_edge has it */
  for (int n = 0; n <= MASK_FULL_END; n++)
    edge[n] = clamp((int64_t)problem_value(&p->eval, p->edges[n], &at, 0), at.len_k);
  mark(tiles, t, edge[MASK_VISIT_BEGIN], edge[MASK_VISIT_END], free_tiles ? edge[MASK_FULL_BEGIN] : 0,
       free_tiles ? edge[MASK_FULL_END] : 0);
}

/* Sides are asked of every row: where the kernels take them from the first and the last, they are monotone. */
static void plan_intervals(const planner *p, const mask_tiling *t, const row_tile *row, unsigned char *tiles) {
  for (int n = 0; n < p->plan.rows.count; n++) {
    int64_t least[2] = {INT64_MAX, INT64_MAX}, greatest[2] = {INT64_MIN, INT64_MIN};
    for (reference_position at = row->first; at.q <= row->last; at.q++, at.i++)
      for (int low = 0; low <= 1; low++) {
        int64_t side = (int64_t)problem_value(&p->eval, p->sides[n][low], &at, 0);
        least[low] = side < least[low] ? side : least[low];
        greatest[low] = side > greatest[low] ? side : greatest[low];
      }
    mark(tiles, t, least[1], greatest[0], greatest[1], least[0]);
  }
}

/* ---- box programs ---- */

/* Calls use with every element in the range of a summary's indices. */
static void each_element(void *user, const box_summary *s, const int64_t *index,
                         void (*use)(double element, void *to), void *to) {
  const problem_eval *eval = user;
  const int64_t most = eval->args->params[s->param].tensor.shape[s->axis] - 1;
  int64_t at[EXPR_MAX_RANK], first = index[s->axis], last = index[s->axis + 1];
  if (first > last || most < 0)
    return;
  for (int d = 0; d < eval->spec->params[s->param].rank; d++)
    at[d] = index[d + (d > s->axis)];
  for (int64_t n = clamp(first, most); n <= clamp(last, most); n++) {
    at[s->axis] = n;
    use(problem_read(user, s->param, at), to);
  }
}

typedef struct extremes {
  double least, greatest;
} extremes;

static void take_extremes(double x, void *to) {
  extremes *e = to;
  e->least = x != x ? -INFINITY : x < e->least ? x : e->least;
  e->greatest = x != x ? INFINITY : x > e->greatest ? x : e->greatest;
}

static double extreme(void *user, const box_summary *s, const int64_t *index, bool greatest) {
  const problem_eval *eval = user;
  const param_type type = eval->spec->params[s->param].type;
  const bool is_int = type == PARAM_I32 || type == PARAM_BOOL;
  extremes e = {is_int ? (double)INT32_MAX : (double)INFINITY, is_int ? (double)INT32_MIN : -(double)INFINITY};
  each_element(user, s, index, take_extremes, &e);
  return greatest ? e.greatest : e.least;
}

static void take_label(double x, void *to) {
  *(uint64_t *)to |= (uint64_t)1 << ((int64_t)x & 63);
}

static uint64_t label_set(void *user, const box_summary *s, const int64_t *index) {
  uint64_t labels = 0;
  each_element(user, s, index, take_label, &labels);
  return labels;
}

static void plan_boxes(const planner *p, const mask_tiling *t, const row_tile *row, unsigned char *tiles) {
  const reference_position *at = &row->first;
  box_env env = {.read = problem_read, .extreme = extreme, .label_set = label_set,
                 .user = (void *)(uintptr_t)&p->eval};
  env.input[BOX_Q_FIRST] = at->q, env.input[BOX_Q_LAST] = row->last;
  env.input[BOX_H_FIRST] = env.input[BOX_H_LAST] = at->h;
  env.input[BOX_HK] = at->hk, env.input[BOX_B] = at->b;
  env.input[BOX_LEN_Q] = at->len_q, env.input[BOX_LEN_K] = at->len_k;
  env.input[BOX_RESIDUE] = at->residue, env.input[BOX_DILATION] = at->dilation;
  env.input[BOX_ALL_Q] = at->all_q, env.input[BOX_ALL_K] = at->all_k;
  for (int64_t column = 0; column < t->columns; column++) {
    int64_t after = (column + 1) * t->tile_k;
    env.input[BOX_K_FIRST] = column * t->tile_k;
    env.input[BOX_K_LAST] = (after < at->len_k ? after : at->len_k) - 1;
    box_answer answer = box_run(p->plan.box, &env);
    tiles[column] = !answer.may_be_true                              ? QKV_TILE_SKIPPED
                    : after <= at->len_k && !answer.may_be_false ? QKV_TILE_FULL
                                                                     : QKV_TILE_PARTIAL;
  }
}

/* Visible pairs of a tile. */
static int64_t count_tile(const problem_eval *eval, const mask_tiling *t, const row_tile *row, int64_t column) {
  const reference_position *first = &row->first, origin = call_position(eval->spec, eval->args, t->batch, t->head, 0);
  int64_t count = 0, d = t->dilation, first_key = column * t->tile_k;
  for (int64_t q = first->q; q <= row->last; q++) {
    int64_t i = d * q + first->residue - origin.q;
    reference_position at = call_position(eval->spec, eval->args, t->batch, t->head, i);
    for (int64_t k = first_key; k < first_key + t->tile_k && k < first->len_k; k++) {
      at.k = d * k + first->residue;
      count += problem_value(eval, eval->spec->mask, &at, 0) != 0;
    }
  }
  return count;
}

/* What asking for every pair says of a tile; *count receives the visible ones. */
static qkv_tile ask_tile(const problem_eval *eval, const mask_tiling *t, int64_t n, int64_t column, int64_t *count) {
  const row_tile row = row_tile_of(eval, t, n);
  *count = count_tile(eval, t, &row, column);
  return *count == 0 ? QKV_TILE_SKIPPED : *count == row.height * t->tile_k ? QKV_TILE_FULL : QKV_TILE_PARTIAL;
}

static void ask(const problem_eval *eval, mask_tiling *t) {
  t->visible = 0;
  for (int64_t n = 0; n < t->rows * t->columns; n++) {
    int64_t count;
    t->actual[n] = (unsigned char)ask_tile(eval, t, n / t->columns, n % t->columns, &count);
    t->visible += (double)count;
  }
}

/* In the order in which the generator chooses (gen/lua_bind.c): a range, then what the plan knows. */
static void plan(const planner *p, const mask_tiling *t) {
  const bool is_range = mask_visits_range(&p->plan, spec_is_dense(p->eval.spec) && !p->residue.modulus);
  for (int64_t n = 0; n < t->rows; n++) {
    const row_tile row = row_tile_of(&p->eval, t, n);
    unsigned char *tiles = t->planned + n * t->columns;
    int64_t count;
    for (int64_t column = 0; column < t->columns; column++)
      tiles[column] = QKV_TILE_SKIPPED;
    if (row.height == 0)
      continue;
    if (is_range)
      plan_range(p, t, &row, tiles);
    else if (p->plan.form == MASK_ROWS)
      plan_intervals(p, t, &row, tiles);
    else if (p->plan.box)
      plan_boxes(p, t, &row, tiles);
    else
      for (int64_t column = 0; column < t->columns; column++)
        tiles[column] = (unsigned char)ask_tile(&p->eval, t, n, column, &count);
  }
}

/* Counts the tiles and makes room for the answers. */
static qkv_status make_tiling(const problem_eval *eval, double most, mask_tiling *t) {
  const sequence q = call_sequence(eval->spec, eval->args, t->batch);
  int64_t len_q = q.len_q, len_k = q.len_k, d = t->dilation;
  t->rows = ceil_div(ceil_div(len_q, d), t->tile_q) * (d < len_q ? d : len_q);
  t->columns = ceil_div(ceil_div(len_k, d), t->tile_k);
  if ((double)t->rows * (double)t->columns > 1e9)
    return error_set(QKV_INVALID_ARGUMENT, "%lld by %lld tiles are too many; choose larger ones", (long long)t->rows,
                     (long long)t->columns);
  size_t count = (size_t)(t->rows * t->columns);
  bool asked = (double)len_q * (double)len_k <= most;
  t->planned = malloc(count + 1);
  t->actual = asked ? malloc(count + 1) : NULL;
  return t->planned && (t->actual || !asked) ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "out of memory");
}

qkv_status mask_tiles(const spec *s, const qkv_attention_args *args, double most, mask_tiling *t) {
  arena *memory = arena_new();
  if (!memory || !ARENA_TRY(memory)) {
    arena_free(memory);
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  planner p = {.eval = {s, args}};
  p.plan = mask_make_tile_plan(memory, s->mask, s->params, s->align == ALIGN_BOTTOM_RIGHT, false, spec_is_dense(s),
                               &p.residue);
  for (int n = 0; n <= MASK_FULL_END; n++)
    p.edges[n] = mask_tile_edge(memory, &p.plan.hull, (mask_edge)n);
  for (int n = 0; n < p.plan.rows.count; n++)
    for (int low = 0; low <= 1; low++)
      p.sides[n][low] = mask_interval_side(memory, &p.plan.rows, n, low);
  t->dilation = call_dilation(&p.eval, p.residue.modulus);
  t->visible = -1;
  qkv_status status = make_tiling(&p.eval, most, t);
  if (status == QKV_OK)
    plan(&p, t);
  if (status == QKV_OK && t->actual)
    ask(&p.eval, t);
  arena_free(memory);
  return status;
}
