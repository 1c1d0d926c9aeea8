/* qkv_mask_tiles.c: what happens to each tile of a mask: as the generator plans it, and as it could be.
 *
 * The plan repeats what the kernels do (templates/parts/tile_range.cu): from the bounds of a tile of rows, the tiles
 * that are visited and those of them that are free of the mask. Nothing else here or in the callers knows the forms of
 * mask.h. Actual is brute force: the mask is asked for every pair.
 *
 * Invariant, checked in tests/python/test_masks.py: a tile that is planned as skipped is actually skipped, one that is
 * planned as full is actually full. */
#include "mask.h"
#include "qkv_internal.h"

typedef struct planner {
  problem_eval eval;
  mask_rows rows;
  const expr *edges[MASK_FULL_END + 1];
} planner;

/* Tiles [begin, end) are visited, [free_begin, free_end) of them without the mask. */
typedef struct tile_span {
  int64_t begin, end, free_begin, free_end;
} tile_span;

static int64_t clamp(int64_t value, int64_t most) {
  return value < 0 ? 0 : value > most ? most : value;
}

static tile_span plan_row(const planner *p, const reference_position *first, int64_t last, int64_t tile_k) {
  reference_position at = *first;
  int64_t edge[MASK_FULL_END + 1];
  bool free_tiles = p->rows.form == MASK_ALL || (p->rows.form == MASK_ROWS && p->rows.exact);
  at.i = last; /* as mask_tile_edge has it */
  for (int n = 0; n <= MASK_FULL_END; n++)
    edge[n] = clamp((int64_t)problem_value(&p->eval, p->edges[n], &at, 0), at.len_k);
  tile_span span = {edge[MASK_VISIT_BEGIN] / tile_k, 0, 0, 0};
  bool some = edge[MASK_VISIT_END] > edge[MASK_VISIT_BEGIN];
  span.end = some ? (edge[MASK_VISIT_END] + tile_k - 1) / tile_k : span.begin;
  if (free_tiles) {
    span.free_begin = (edge[MASK_FULL_BEGIN] + tile_k - 1) / tile_k;
    span.free_end = edge[MASK_FULL_END] / tile_k;
  }
  return span;
}

static void plan(const planner *p, const mask_tiling *t) {
  int64_t len_q = p->eval.args->q.shape[1];
  for (int64_t row = 0; row < t->rows; row++) {
    int64_t first = row * t->tile_q, end = first + t->tile_q < len_q ? first + t->tile_q : len_q;
    reference_position at = call_position(p->eval.spec, p->eval.args, t->batch, t->head, first);
    tile_span span = plan_row(p, &at, at.q + end - 1 - first, t->tile_k);
    for (int64_t column = 0; column < t->columns; column++) {
      bool visited = column >= span.begin && column < span.end;
      bool full = column >= span.free_begin && column < span.free_end;
      t->planned[row * t->columns + column] = !visited ? QKV_TILE_SKIPPED : full ? QKV_TILE_FULL : QKV_TILE_PARTIAL;
    }
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

static void ask(const problem_eval *eval, mask_tiling *t) {
  int64_t len_q = eval->args->q.shape[1];
  t->visible = 0;
  for (int64_t row = 0; row < t->rows; row++) {
    int64_t first = row * t->tile_q, height = len_q - first < t->tile_q ? len_q - first : t->tile_q;
    for (int64_t column = 0; column < t->columns; column++) {
      int64_t count = count_tile(eval, t, first, column * t->tile_k);
      t->visible += (double)count;
      t->actual[row * t->columns + column] = count == 0                    ? QKV_TILE_SKIPPED
                                             : count == height * t->tile_k ? QKV_TILE_FULL
                                                                           : QKV_TILE_PARTIAL;
    }
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
  plan(&p, t);
  t->visible = -1;
  if (t->actual)
    ask(&p.eval, t);
  arena_free(memory);
  return QKV_OK;
}
