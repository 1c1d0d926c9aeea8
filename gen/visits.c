/* visits.c: see visits.h. */
#include "visits.h"

#include <math.h>

#include "box.h"
#include "expr_internal.h"

enum { SAMPLE_ROWS = 96, SAMPLE_TILES = 64 };

/* ---- one tile of rows ---- */

/* What tiles count: tokens of a sequence, or of one of its residues. */
typedef struct view {
  int64_t residues, len_q, len_k, first; /* first: the position of query 0 */
} view;

/* A range of keys or of tiles of keys. */
typedef struct range {
  int64_t begin, end;
} range;

static int64_t ceiling(int64_t n, int64_t d) {
  return (n + d - 1) / d;
}

static view make_view(const visits *v) {
  const expr *modulus = v->bound->residue.modulus;
  const int64_t d = modulus && modulus->op == EXPR_CONST && modulus->integer > 1 ? modulus->integer : 1;
  view w = {.residues = d, .len_q = ceiling(v->work.len_q, d), .len_k = ceiling(v->work.len_k, d)};
  w.first = v->bound->spec->align == ALIGN_BOTTOM_RIGHT ? w.len_k - w.len_q : 0;
  return w;
}

/* The value of an edge for rows first to last; `otherwise` where it depends on parameters or there is none. */
static int64_t edge_value(const visits *v, const view *w, const expr *e, range rows, int64_t otherwise) {
  expr_env env = {{0}, 0, 0, NULL, NULL, NULL};
  if (!e || expr_params(e))
    return otherwise;
  env.symbol[EXPR_Q] = w->first + rows.begin;
  env.symbol[EXPR_I] = w->first + rows.end - 1;
  env.symbol[EXPR_LEN_Q] = w->len_q;
  env.symbol[EXPR_LEN_K] = w->len_k;
  env.symbol[EXPR_ALL_Q] = v->work.len_q;
  env.symbol[EXPR_ALL_K] = v->work.len_k;
  env.symbol[EXPR_DILATION] = w->residues;
  int64_t value = (int64_t)expr_eval(e, &env);
  return value < 0 ? 0 : value > w->len_k ? w->len_k : value;
}

/* The tiles of keys that hold a range. */
static range tiles_of(range keys, int64_t size) {
  return keys.begin < keys.end ? (range){keys.begin / size, ceiling(keys.end, size)} : (range){0, 0};
}

/* What interval n shows to the rows. A side that goes up and down over them is that of the rows at the ends. */
static range interval_range(const visits *v, const view *w, int n, range rows) {
  static const mask_edge edges[2] = {MASK_VISIT_BEGIN, MASK_VISIT_END};
  const int64_t otherwise[2] = {0, w->len_k};
  int64_t ends[2];
  for (int side = 0; side < 2; side++) {
    const expr *edge = v->bound->interval_edges[n][edges[side]], *by_row = v->bound->interval_sides[n][side == 0];
    if (edge) {
      ends[side] = edge_value(v, w, edge, rows, otherwise[side]);
      continue;
    }
    int64_t a = edge_value(v, w, by_row, (range){rows.begin, rows.begin + 1}, otherwise[side]);
    int64_t b = edge_value(v, w, by_row, (range){rows.end - 1, rows.end}, otherwise[side]);
    ends[side] = (a < b) == (side == 0) ? a : b;
  }
  return (range){ends[0], ends[1]};
}

/* Tiles in the union of the intervals. */
static double interval_tiles(const visits *v, const view *w, range rows, int64_t keys) {
  range found[MASK_MAX_INTERVALS];
  int count = 0;
  double tiles = 0;
  for (int n = 0; n < v->bound->plan.rows.count; n++) { /* sorted by where they begin */
    range r = tiles_of(interval_range(v, w, n, rows), keys);
    int at = count++;
    for (; at > 0 && found[at - 1].begin > r.begin; at--)
      found[at] = found[at - 1];
    found[at] = r;
  }
  for (int64_t n = 0, end = 0; n < count; n++) {
    int64_t begin = found[n].begin > end ? found[n].begin : end;
    tiles += found[n].end > begin ? (double)(found[n].end - begin) : 0;
    end = found[n].end > end ? found[n].end : end;
  }
  return tiles;
}

/* The share of a range of tiles that a box program does not skip; 1 where it asks for parameters. */
static double box_share(const visits *v, const view *w, range rows, range tiles, int64_t keys) {
  const box_program *p = v->bound->plan.box;
  box_env env = {{0}, NULL, NULL, NULL, NULL};
  int seen = 0, visited = 0;
  if (!p || p->scalars || p->nsummaries || expr_params(v->bound->spec->mask))
    return 1;
  env.input[BOX_Q_FIRST] = w->first + rows.begin, env.input[BOX_Q_LAST] = w->first + rows.end - 1;
  env.input[BOX_LEN_Q] = w->len_q, env.input[BOX_LEN_K] = w->len_k;
  env.input[BOX_ALL_Q] = v->work.len_q, env.input[BOX_ALL_K] = v->work.len_k;
  env.input[BOX_DILATION] = w->residues;
  const int64_t step = ceiling(tiles.end - tiles.begin, SAMPLE_TILES);
  for (int64_t tile = tiles.begin; tile < tiles.end; tile += step, seen++) {
    int64_t last = (tile + 1) * keys - 1;
    env.input[BOX_K_FIRST] = tile * keys;
    env.input[BOX_K_LAST] = last < w->len_k ? last : w->len_k - 1;
    visited += box_run(p, &env).may_be_true;
  }
  return seen ? (double)visited / seen : 0;
}

/* Adds what the rows visit and mask. */
static double visit_rows(const visits *v, const view *w, range rows, int64_t keys, double *masked) {
  const binding *b = v->bound;
  const range hull = {edge_value(v, w, b->edges[MASK_VISIT_BEGIN], rows, 0),
                      edge_value(v, w, b->edges[MASK_VISIT_END], rows, w->len_k)};
  const range tiles = tiles_of(hull, keys);
  const double all = (double)(tiles.end - tiles.begin);
  if (b->walk) {
    double count =
        b->plan.form == MASK_ROWS ? interval_tiles(v, w, rows, keys) : all * box_share(v, w, rows, tiles, keys);
    *masked += count < all ? count : all;
    return count < all ? count : all;
  }
  if (b->rows.form == MASK_ALL) {
    *masked += hull.end % keys != 0; /* the last tile has keys past the end */
    return all;
  }
  const int64_t from = ceiling(edge_value(v, w, b->edges[MASK_FULL_BEGIN], rows, w->len_k), keys),
                to = edge_value(v, w, b->edges[MASK_FULL_END], rows, 0) / keys;
  const double full = b->rows.exact && to > from ? (double)(to - from) : 0;
  *masked += all > full ? all - full : 0;
  return all;
}

visit_count visits_count(const visits *v, int64_t queries, int64_t keys) {
  const view w = make_view(v);
  const int64_t rows = ceiling(w.len_q, queries), step = ceiling(rows, SAMPLE_ROWS);
  visit_count c = {.rows = (double)(rows * w.residues)};
  double each[SAMPLE_ROWS + 2];
  int seen = 0;
  if (v->work.len_k == 0)
    return c;
  for (int64_t row = 0; row < rows; seen++) {
    const int64_t after = (row + 1) * queries;
    const double tiles = each[seen] =
        visit_rows(v, &w, (range){row * queries, after < w.len_q ? after : w.len_q}, keys, &c.masked);
    c.tiles += tiles;
    c.most = tiles > c.most ? tiles : c.most;
    row = row < rows - 1 && row + step >= rows ? rows - 1 : row + step;
  }
  for (int n = 0; n < seen && c.tiles > 0; n++)
    c.spread += fabs(each[n] - c.tiles / seen) / c.tiles;
  c.tiles *= seen > 0 ? c.rows / seen : 0;
  c.masked *= seen > 0 ? c.rows / seen : 0;
  return c;
}

/* ---- for families ---- */

static void set_number(lua_State *L, const char *key, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, key);
}

static int lua_visits(lua_State *L) {
  const visits *v = lua_touserdata(L, lua_upvalueindex(1));
  lua_Integer queries = luaL_checkinteger(L, 1), keys = luaL_checkinteger(L, 2);
  if (queries < 1 || keys < 1)
    return luaL_error(L, "visits: tiles of %d queries and %d keys", (int)queries, (int)keys);
  const visit_count c = visits_count(v, queries, keys);
  lua_createtable(L, 0, 5);
  set_number(L, "rows", c.rows);
  set_number(L, "tiles", c.tiles);
  set_number(L, "masked", c.masked);
  set_number(L, "most", c.most);
  set_number(L, "spread", c.spread);
  return 1;
}

void visits_define(visits *v, const gen_device *device, lua_State *L) {
  lua_createtable(L, 0, 3);
  set_number(L, "batch", (double)v->work.batch); /* integers would wrap around in products of sizes */
  set_number(L, "len_q", (double)v->work.len_q);
  set_number(L, "len_k", (double)v->work.len_k);
  host_freeze(L, "workload", true);
  host_set_global(L, "workload");
  lua_createtable(L, 0, 4);
  lua_pushinteger(L, device->sm_count);
  lua_setfield(L, -2, "sm_count");
  set_number(L, "clock_hz", device->clock_hz);
  set_number(L, "memory_bandwidth", device->memory_bandwidth);
  set_number(L, "l2_bytes", device->l2_bytes);
  host_freeze(L, "device", true);
  host_set_global(L, "device");
  lua_pushlightuserdata(L, v);
  lua_pushcclosure(L, lua_visits, 1);
  host_set_global(L, "visits");
}
