/* lua_bind.c: see lua_bind.h. Tables first, then functions. */
#include "lua_bind.h"

#include "box.h"
#include "expr_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void analyse_score(binding *b, arena *a) {
  const spec *s = b->spec;
  const bool approximate_tanh = s->dtype_q != DTYPE_F16 && s->dtype_q != DTYPE_F32;
  b->score = score_make_plan(a, s->score, s->scale, s->softcap, approximate_tanh);
  for (int packed = 0; packed <= 1; packed++)
    b->score_code[packed] = score_place(a, &b->score, packed);
}

void binding_analyse(binding *b, arena *a) {
  analyse_score(b, a);
  const bool heads_vary = b->spec->heads_q > b->spec->heads_kv && (expr_symbols(b->spec->mask) & EXPR_BIT(EXPR_H));
  b->plan = mask_make_tile_plan(a, b->spec->mask, b->spec->params, b->spec->align == ALIGN_BOTTOM_RIGHT, heads_vary,
                                spec_is_dense(b->spec), &b->residue);
  b->rows = b->plan.hull;
  b->has_width = mask_rows_width(a, &b->rows, &b->width);
  for (int edge = 0; edge < EDGE_COUNT; edge++)
    b->edges[edge] = mask_tile_edge(a, &b->rows, (mask_edge)edge);
  for (int n = 0; n < b->plan.rows.count; n++) {
    for (int edge = 0; edge < EDGE_COUNT; edge++)
      b->interval_edges[n][edge] = mask_interval_edge(a, &b->plan.rows, n, (mask_edge)edge);
    for (int low = 0; low <= 1; low++)
      b->interval_sides[n][low] = mask_interval_side(a, &b->plan.rows, n, low);
  }
  const expr *tested = b->residue.modulus ? b->residue.rest : b->spec->mask;
  b->mask_parts = expr_hoist(a, tested, b->spec->params, b->spec->nparams);
  static const char *const walks[] = {[MASK_ROWS] = "intervals", [MASK_BOXES] = "boxes", [MASK_MAP] = "map",
                                      [MASK_ELEMENTS] = "map"};
  const bool mapped = spec_is_dense(b->spec) && !b->residue.modulus;
  b->walk = mask_visits_range(&b->plan, mapped) ? NULL : walks[b->plan.form];
}

/* ---- tables ---- */

static void set_int(lua_State *L, const char *key, lua_Integer value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, key);
}

static void set_number(lua_State *L, const char *key, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, key);
}

static void set_bool(lua_State *L, const char *key, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, key);
}

void binding_set_string(lua_State *L, const char *key, const char *value) {
  lua_pushstring(L, value);
  lua_setfield(L, -2, key);
}

/* key = the expression as the user would write it. */
static void set_expression(binding *b, lua_State *L, const char *key, const expr *e) {
  text_clear(&b->scratch);
  expr_print(e, b->spec->params, &b->scratch);
  host_check_memory(L, b->scratch.failed);
  binding_set_string(L, key, b->scratch.bytes);
}

/* key = a set: {q = true, k = true}. */
void binding_set_symbols(lua_State *L, const char *key, unsigned symbols) {
  lua_newtable(L);
  for (int n = 0; n < EXPR_SYMBOL_COUNT; n++)
    if (symbols & EXPR_BIT(n))
      set_bool(L, expr_symbol_name((expr_symbol)n), true);
  host_freeze(L, key, false);
  lua_setfield(L, -2, key);
}

static void set_symbols(lua_State *L, const char *key, const expr *e) {
  binding_set_symbols(L, key, expr_symbols(e));
}

static void set_params(lua_State *L, const spec *s) {
  lua_newtable(L);
  for (int n = 0; n < s->nparams; n++) {
    lua_newtable(L);
    binding_set_string(L, "name", s->params[n].name);
    binding_set_string(L, "type", expr_param_type_name(s->params[n].type));
    set_int(L, "rank", s->params[n].rank);
    host_freeze(L, "variant.params[n]", true);
    lua_rawseti(L, -2, n + 1);
  }
  host_freeze(L, "variant.params", false);
  lua_setfield(L, -2, "params");
}

static void set_deterministic(lua_State *L, spec_deterministic value) {
  if (value == DETERMINISTIC_BATCH)
    binding_set_string(L, "deterministic", "batch");
  else
    set_bool(L, "deterministic", value == DETERMINISTIC_YES);
}

/* rope = false, or {dims = , interleaved = , table = }; append = false, or {norm = , slots = , query = }. */
static void set_append(lua_State *L, const spec *s) {
  if (s->rope.given) {
    lua_newtable(L);
    set_int(L, "dims", s->rope.dims);
    set_bool(L, "interleaved", s->rope.interleaved);
    set_bool(L, "table", s->rope.table);
    host_freeze(L, "variant.rope", true);
    lua_setfield(L, -2, "rope");
  } else
    set_bool(L, "rope", false);
  if (s->append.given) {
    lua_newtable(L);
    set_bool(L, "norm", s->append.norm);
    binding_set_string(L, "slots", spec_slots_name(s->append.slots));
    set_bool(L, "query", s->append.query);
    host_freeze(L, "variant.append", true);
    lua_setfield(L, -2, "append");
  } else
    set_bool(L, "append", false);
}

static void define_variant(binding *b, lua_State *L) {
  const spec *s = b->spec;
  lua_newtable(L);
  binding_set_string(L, "name", s->name);
  set_int(L, "heads_q", s->heads_q);
  set_int(L, "heads_kv", s->heads_kv);
  set_int(L, "group", s->heads_q / s->heads_kv);
  set_int(L, "dim_qk", s->dim_qk);
  set_int(L, "dim_v", s->dim_v);
  binding_set_string(L, "dtype_q", spec_dtype_name(s->dtype_q));
  binding_set_string(L, "dtype_kv", spec_dtype_name(s->dtype_kv));
  binding_set_string(L, "dtype_out", spec_dtype_name(s->dtype_out));
  set_number(L, "scale", s->scale);
  set_number(L, "softcap", s->softcap);
  binding_set_string(L, "kv_scale", s->kv_scale == KV_SCALE_PER_HEAD ? "per_head" : "none");
  binding_set_string(L, "sink", s->sink == SINK_PER_HEAD ? "per_head" : "none");
  binding_set_string(L, "align", s->align == ALIGN_BOTTOM_RIGHT ? "bottom_right" : "top_left");
  binding_set_string(L, "layout_q", spec_layout_name(s->layout_q));
  binding_set_string(L, "layout_kv", spec_layout_name(s->layout_kv));
  set_int(L, "page_size", s->page_size);
  binding_set_string(L, "page_order", spec_page_order_name(s->page_order));
  binding_set_string(L, "page_table", spec_page_table_name(s->page_table));
  set_deterministic(L, s->deterministic);
  lua_newtable(L);
  set_bool(L, "o", s->outputs & OUTPUT_O);
  set_bool(L, "lse", s->outputs & OUTPUT_LSE);
  set_bool(L, "lse_with_sink", s->outputs & OUTPUT_LSE_WITH_SINK);
  host_freeze(L, "variant.outputs", true);
  lua_setfield(L, -2, "outputs");
  set_params(L, s);
  set_append(L, s);
  set_bool(L, "score_is_identity", s->score->op == EXPR_SYMBOL && s->score->symbol == EXPR_S);
  set_expression(b, L, "mask_text", s->mask);
  set_expression(b, L, "score_text", s->score);
  set_symbols(L, "mask_symbols", s->mask);
  set_symbols(L, "score_symbols", s->score);
  host_freeze(L, "variant", true);
  host_set_global(L, "variant");
}

static bool reads_tensor(const expr *e) {
  bool found = e->op == EXPR_PARAM && e->nargs > 0;
  for (int n = 0; n < e->nargs && !found; n++)
    found = reads_tensor(e->args[n]);
  return found;
}

/* by_row[n] = {low = , high = , low_count = , high_count = }: whether the side goes up and down over the rows; how many
 * bounds it has. */
static void set_intervals(const binding *b, lua_State *L) {
  lua_newtable(L);
  for (int n = 0; n < b->plan.rows.count; n++) {
    lua_newtable(L);
    set_bool(L, "low", mask_interval_by_row(&b->plan.rows, n, true));
    set_bool(L, "high", mask_interval_by_row(&b->plan.rows, n, false));
    set_int(L, "low_count", b->plan.rows.items[n].nlow);
    set_int(L, "high_count", b->plan.rows.items[n].nhigh);
    host_freeze(L, "mask.by_row[n]", true);
    lua_rawseti(L, -2, n + 1);
  }
  host_freeze(L, "mask.by_row", false);
  lua_setfield(L, -2, "by_row");
}

/* summaries[n] = {param = , axis = , labels = }: what the box program asks of tensors; axes count from 0. */
static void set_summaries(const binding *b, lua_State *L) {
  lua_newtable(L);
  for (int n = 0; b->walk && b->plan.box && n < b->plan.box->nsummaries; n++) {
    const box_summary *s = &b->plan.box->summaries[n];
    lua_newtable(L);
    binding_set_string(L, "param", b->spec->params[s->param].name);
    set_int(L, "axis", s->axis);
    set_bool(L, "labels", s->labels);
    host_freeze(L, "mask.summaries[n]", true);
    lua_rawseti(L, -2, n + 1);
  }
  host_freeze(L, "mask.summaries", false);
  lua_setfield(L, -2, "summaries");
}

/* key = the C types of the parts: {"int", "bool"}. */
static void set_parts(lua_State *L, const char *key, const expr *const *parts, int count) {
  static const char *const types[] = {[EXPR_BOOL] = "bool", [EXPR_INT] = "int", [EXPR_FLOAT] = "float"};
  lua_newtable(L);
  for (int n = 0; n < count; n++) {
    lua_pushstring(L, types[parts[n]->type]);
    lua_rawseti(L, -2, n + 1);
  }
  host_freeze(L, key, false);
  lua_setfield(L, -2, key);
}

/* dilation = false, or as manifest.h has it. */
static void set_residue(const binding *b, lua_State *L) {
  const expr *modulus = b->residue.modulus;
  char said[MANIFEST_NAME + 8];
  if (!modulus) {
    set_bool(L, "dilation", false);
    return;
  }
  if (expr_is_const(modulus))
    snprintf(said, sizeof said, "%lld", (long long)modulus->integer);
  else
    snprintf(said, sizeof said, "param.%s", b->spec->params[modulus->param].name);
  binding_set_string(L, "dilation", said);
}

static void define_mask(const binding *b, lua_State *L) {
  static const char *const forms[] = {"all", "none", "rows", "boxes", "map", "elements"};
  static const char *const growths[] = {"shrinks", "same", "grows", "unknown"}; /* -1, 0, 1, MASK_BY_ROW */
  lua_newtable(L);
  binding_set_string(L, "form", forms[b->rows.form]);
  set_bool(L, "exact", b->rows.exact);
  set_int(L, "low_count", b->rows.nlow);
  set_int(L, "high_count", b->rows.nhigh);
  if (b->has_width)
    set_int(L, "width", b->width);
  else
    set_bool(L, "width", false);
  if (b->walk)
    binding_set_string(L, "walk", b->walk);
  else
    set_bool(L, "walk", false);
  set_int(L, "intervals", b->plan.rows.count);
  set_bool(L, "by_limits", b->plan.form == MASK_ROWS);
  set_bool(L, "reads_pairs", reads_tensor(b->mask_parts.rest));
  set_bool(L, "has_box", b->plan.box != NULL);
  set_parts(L, "rows", b->mask_parts.rows, b->mask_parts.nrows);
  set_parts(L, "keys", b->mask_parts.keys, b->mask_parts.nkeys);
  set_symbols(L, "rest_symbols", b->mask_parts.rest);
  binding_set_string(L, "growth", growths[mask_plan_growth(&b->plan, !b->walk) + 1]);
  set_intervals(b, L);
  set_summaries(b, L);
  set_residue(b, L);
  host_freeze(L, "mask", true);
  host_set_global(L, "mask");
}

static void define_score(const binding *b, lua_State *L) {
  lua_newtable(L);
  set_number(L, "factor", b->score.factor);
  set_bool(L, "is_product", b->score.is_product);
  set_bool(L, "shifts", b->score.shift);
  set_bool(L, "bounded", b->score.bounded);
  set_bool(L, "gathers", b->score.gathers);
  host_freeze(L, "score", true);
  host_set_global(L, "score");
}

static void define_arch(const arch *a, lua_State *L) {
  lua_newtable(L);
  binding_set_string(L, "name", a->name);
  set_int(L, "number", a->number);
  set_int(L, "capability_major", a->capability_major);
  set_int(L, "capability_minor", a->capability_minor);
  set_int(L, "shared_per_block", a->shared_per_block);
  set_int(L, "shared_per_sm", a->shared_per_sm);
  set_int(L, "registers_per_sm", a->registers_per_sm);
  set_int(L, "threads_per_sm", a->threads_per_sm);
  set_int(L, "threads_per_block", a->threads_per_block);
  host_freeze(L, "arch", true);
  host_set_global(L, "arch");
}

/* request.batch and request.len_q are noted when they are read: what does not read them does not depend on them. */
static int read_maximum(lua_State *L) {
  binding *b = binding_of(L);
  const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  if (!strcmp(key, "batch")) {
    b->reads |= GEN_READ_BATCH;
    lua_pushinteger(L, (lua_Integer)b->request->batch);
  } else if (!strcmp(key, "len_q")) {
    b->reads |= GEN_READ_LEN_Q;
    lua_pushinteger(L, (lua_Integer)b->request->len_q);
  } else {
    return luaL_error(L, *key ? "request has no field '%s'" : "request has no such field", key);
  }
  return 1;
}

void binding_define_request(binding *b, lua_State *L) {
  lua_newtable(L);
  set_bool(L, "unaligned", b->request->unaligned);
  set_bool(L, "dedicated", b->request->dedicated);
  binding_set_string(L, "phase", b->phase);
  lua_createtable(L, 0, 1);
  lua_pushlightuserdata(L, b);
  lua_pushcclosure(L, read_maximum, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  host_freeze(L, "request", false);
  host_set_global(L, "request");
}

/* ---- functions ---- */

binding *binding_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}

void binding_function(binding *b, lua_State *L, const char *name, lua_CFunction function) {
  lua_pushlightuserdata(L, b);
  lua_pushcclosure(L, function, 1);
  host_set_global(L, name);
}

/* f32(x): the nearest f32 as a hex literal. */
static int f32(lua_State *L) {
  binding *b = binding_of(L);
  luaL_checktype(L, 1, LUA_TNUMBER);
  double value = lua_tonumber(L, 1);
  if (!isfinite((float)value))
    return luaL_error(L, "f32: %f has no finite f32", value);
  text_clear(&b->scratch);
  expr_print_f32(value, &b->scratch);
  host_check_memory(L, b->scratch.failed);
  lua_pushlstring(L, b->scratch.bytes, b->scratch.size);
  return 1;
}

static lua_Integer check_integer(lua_State *L, int index) {
  if (!lua_isinteger(L, index))
    luaL_error(L, "argument %d must be an integer, not a %s", index,
               lua_type(L, index) == LUA_TNUMBER ? "float" : luaL_typename(L, index));
  return lua_tointeger(L, index);
}

/* ceil_div(a, b), a >= 0, b > 0. */
static int ceil_div(lua_State *L) {
  lua_Integer a = check_integer(L, 1), b = check_integer(L, 2);
  if (a < 0 || b <= 0)
    return luaL_error(L, "ceil_div(%I, %I): needs a >= 0 and b > 0", a, b);
  lua_pushinteger(L, a / b + (a % b != 0));
  return 1;
}

/* round_up(a, b): the least multiple of b that is at least a; a >= 0, b > 0. */
static int round_up(lua_State *L) {
  ceil_div(L);
  lua_pushinteger(L, lua_tointeger(L, -1) * lua_tointeger(L, 2));
  return 1;
}

/* library(name): what templates/lib/NAME.lua returns, loaded once. Upvalue 1: table of loaded libraries. */
static int library(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  lua_settop(L, 1);
  if (lua_getfield(L, lua_upvalueindex(1), name) == LUA_TBOOLEAN)
    return luaL_error(L, "library '%s' loads itself", name);
  if (!lua_isnil(L, -1))
    return 1;
  lua_pushboolean(L, 1);
  lua_setfield(L, lua_upvalueindex(1), name);
  host_run_file(L, lua_pushfstring(L, "lib/%s.lua", name));
  if (!lua_istable(L, -1))
    return luaL_error(L, "lib/%s.lua must return a table", name);
  lua_pushvalue(L, -1);
  lua_setfield(L, lua_upvalueindex(1), name);
  return 1;
}

void binding_define(binding *b, lua_State *L) {
  define_variant(b, L);
  define_mask(b, L);
  define_score(b, L);
  define_arch(b->arch, L);
  binding_define_request(b, L);
  binding_define_text(b, L);
  binding_function(b, L, "f32", f32);
  binding_function(b, L, "ceil_div", ceil_div);
  binding_function(b, L, "round_up", round_up);
  lua_newtable(L);
  lua_pushcclosure(L, library, 1);
  host_set_global(L, "library");
}
