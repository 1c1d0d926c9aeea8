/* qkv_mask_tiles.c: what happens to each tile of a mask: as the generator plans it, and as it could be.
 *
 * The plan repeats what the kernels do, for one head: a range of tiles from the bounds of a tile of rows
 * (templates/parts/tile_range.cu), or tile by tile from several intervals, a box program or all pairs (tile_walk.cu,
 * tile_map.cu). Nothing else here or in the callers knows the forms of mask.h. Actual is brute force: the mask is asked
 * for every pair.
 *
 * Invariant, checked in tests/python/test_masks.py: a tile that is planned as skipped is actually skipped, one that is
 * planned as full is actually full. */
#include <math.h>

#include "box.h"
#include "mask.h"
#include "qkv_internal.h"

typedef struct planner {
  problem_eval eval;
  mask_rows rows; /* one interval a row */
  const expr *edges[MASK_FULL_END + 1];
  mask_plan more;
  const expr *sides[MASK_MAX_INTERVALS][2]; /* of the plan's intervals: high, low */
} planner;

/* A tile of rows: positions of its first and last row. */
typedef struct row_tile {
  reference_position first;
  int64_t last;
} row_tile;

static int64_t clamp(int64_t value, int64_t most) {
  return value < 0 ? 0 : value > most ? most : value;
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
  bool free_tiles = p->rows.form == MASK_ALL || (p->rows.form == MASK_ROWS && p->rows.exact);
  at.i = row->last; /* as mask_tile_edge has it */
  for (int n = 0; n <= MASK_FULL_END; n++)
    edge[n] = clamp((int64_t)problem_value(&p->eval, p->edges[n], &at, 0), at.len_k);
  mark(tiles, t, edge[MASK_VISIT_BEGIN], edge[MASK_VISIT_END], free_tiles ? edge[MASK_FULL_BEGIN] : 0,
       free_tiles ? edge[MASK_FULL_END] : 0);
}

/* Sides are asked of every row: where the kernels take them from the first and the last, they are monotone. */
static void plan_intervals(const planner *p, const mask_tiling *t, const row_tile *row, unsigned char *tiles) {
  for (int n = 0; n < p->more.rows.count; n++) {
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
  for (int64_t column = 0; column < t->columns; column++) {
    int64_t after = (column + 1) * t->tile_k;
    env.input[BOX_K_FIRST] = column * t->tile_k;
    env.input[BOX_K_LAST] = (after < at->len_k ? after : at->len_k) - 1;
    box_answer answer = box_run(p->more.box, &env);
    tiles[column] = !answer.may_be_true                              ? QKV_TILE_SKIPPED
                    : after <= at->len_k && !answer.may_be_false ? QKV_TILE_FULL
                                                                     : QKV_TILE_PARTIAL;
  }
}

/* Visible pairs of the tile whose first query row and first key are given. */
static int64_t count_tile(const problem_eval *eval, const mask_tiling *t, int64_t first_row, int64_t first_key) {
  int64_t count = 0, len_q = eval->args->q.shape[1], len_k = eval->args->k.shape[1];
  for (int64_t i = first_row; i < first_row + t->tile_q && i < len_q; i++) {
    reference_position at = call_position(eval->spec, eval->args, t->batch, t->head, i);
    for (at.k = first_key; at.k < first_key + t->tile_k && at.k < len_k; at.k++)
      count += problem_value(eval, eval->spec->mask, &at, 0) != 0;
  }
  return count;
}

/* What asking for every pair says of a tile; *count receives the visible ones. */
static qkv_tile ask_tile(const problem_eval *eval, const mask_tiling *t, int64_t row, int64_t column, int64_t *count) {
  int64_t len_q = eval->args->q.shape[1], first = row * t->tile_q;
  int64_t height = len_q - first < t->tile_q ? len_q - first : t->tile_q;
  *count = count_tile(eval, t, first, column * t->tile_k);
  return *count == 0 ? QKV_TILE_SKIPPED : *count == height * t->tile_k ? QKV_TILE_FULL : QKV_TILE_PARTIAL;
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
  const mask_form range = p->rows.form;
  const bool is_range = range == MASK_ALL || range == MASK_NONE || (range == MASK_ROWS && p->rows.exact);
  const int64_t len_q = p->eval.args->q.shape[1];
  for (int64_t n = 0; n < t->rows; n++) {
    int64_t first = n * t->tile_q, end = first + t->tile_q < len_q ? first + t->tile_q : len_q, count;
    row_tile row = {.first = call_position(p->eval.spec, p->eval.args, t->batch, t->head, first)};
    unsigned char *tiles = t->planned + n * t->columns;
    row.last = row.first.q + end - 1 - first;
    for (int64_t column = 0; column < t->columns; column++)
      tiles[column] = QKV_TILE_SKIPPED;
    if (is_range)
      plan_range(p, t, &row, tiles);
    else if (p->more.form == MASK_ROWS)
      plan_intervals(p, t, &row, tiles);
    else if (p->more.box)
      plan_boxes(p, t, &row, tiles);
    else
      for (int64_t column = 0; column < t->columns; column++)
        tiles[column] = (unsigned char)ask_tile(&p->eval, t, n, column, &count);
  }
}

qkv_status mask_tiles(const spec *s, const qkv_attention_args *args, mask_tiling *t) {
  arena *memory = arena_new();
  if (!memory || !ARENA_TRY(memory)) {
    arena_free(memory);
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  planner p = {.eval = {s, args}, .rows = mask_analyse(memory, s->mask, s->align == ALIGN_BOTTOM_RIGHT)};
  for (int n = 0; n <= MASK_FULL_END; n++)
    p.edges[n] = mask_tile_edge(memory, &p.rows, (mask_edge)n);
  p.more = mask_make_plan(memory, s->mask, s->params, s->align == ALIGN_BOTTOM_RIGHT, false);
  for (int n = 0; n < p.more.rows.count; n++)
    for (int low = 0; low <= 1; low++)
      p.sides[n][low] = mask_interval_side(memory, &p.more.rows, n, low);
  plan(&p, t);
  t->visible = -1;
  if (t->actual)
    ask(&p.eval, t);
  arena_free(memory);
  return QKV_OK;
}
