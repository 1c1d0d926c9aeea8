/* lua_bind.c: see lua_bind.h. Tables first, then functions. */
#include "lua_bind.h"

#include "box.h"
#include "expr_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const edge_names[EDGE_COUNT] = {"visit_begin", "visit_end", "full_begin", "full_end"};

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

static void set_string(lua_State *L, const char *key, const char *value) {
  lua_pushstring(L, value);
  lua_setfield(L, -2, key);
}

/* key = the expression as the user would write it. */
static void set_expression(binding *b, lua_State *L, const char *key, const expr *e) {
  text_clear(&b->scratch);
  expr_print(e, b->spec->params, &b->scratch);
  host_check_memory(L, b->scratch.failed);
  set_string(L, key, b->scratch.bytes);
}

/* key = a set: {q = true, k = true}. */
static void set_symbol_set(lua_State *L, const char *key, unsigned symbols) {
  lua_newtable(L);
  for (int n = 0; n < EXPR_SYMBOL_COUNT; n++)
    if (symbols & EXPR_BIT(n))
      set_bool(L, expr_symbol_name((expr_symbol)n), true);
  host_freeze(L, key, false);
  lua_setfield(L, -2, key);
}

static void set_symbols(lua_State *L, const char *key, const expr *e) {
  set_symbol_set(L, key, expr_symbols(e));
}

static void set_params(lua_State *L, const spec *s) {
  lua_newtable(L);
  for (int n = 0; n < s->nparams; n++) {
    lua_newtable(L);
    set_string(L, "name", s->params[n].name);
    set_string(L, "type", expr_param_type_name(s->params[n].type));
    set_int(L, "rank", s->params[n].rank);
    host_freeze(L, "variant.params[n]", true);
    lua_rawseti(L, -2, n + 1);
  }
  host_freeze(L, "variant.params", false);
  lua_setfield(L, -2, "params");
}

static void set_deterministic(lua_State *L, spec_deterministic value) {
  if (value == DETERMINISTIC_BATCH)
    set_string(L, "deterministic", "batch");
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
    set_string(L, "slots", spec_slots_name(s->append.slots));
    set_bool(L, "query", s->append.query);
    host_freeze(L, "variant.append", true);
    lua_setfield(L, -2, "append");
  } else
    set_bool(L, "append", false);
}

static void define_variant(binding *b, lua_State *L) {
  const spec *s = b->spec;
  lua_newtable(L);
  set_string(L, "name", s->name);
  set_int(L, "heads_q", s->heads_q);
  set_int(L, "heads_kv", s->heads_kv);
  set_int(L, "group", s->heads_q / s->heads_kv);
  set_int(L, "dim_qk", s->dim_qk);
  set_int(L, "dim_v", s->dim_v);
  set_string(L, "dtype_q", spec_dtype_name(s->dtype_q));
  set_string(L, "dtype_kv", spec_dtype_name(s->dtype_kv));
  set_string(L, "dtype_out", spec_dtype_name(s->dtype_out));
  set_number(L, "scale", s->scale);
  set_number(L, "softcap", s->softcap);
  set_string(L, "kv_scale", s->kv_scale == KV_SCALE_PER_HEAD ? "per_head" : "none");
  set_string(L, "sink", s->sink == SINK_PER_HEAD ? "per_head" : "none");
  set_string(L, "align", s->align == ALIGN_BOTTOM_RIGHT ? "bottom_right" : "top_left");
  set_string(L, "layout_q", spec_layout_name(s->layout_q));
  set_string(L, "layout_kv", spec_layout_name(s->layout_kv));
  set_int(L, "page_size", s->page_size);
  set_string(L, "page_order", spec_page_order_name(s->page_order));
  set_string(L, "page_table", spec_page_table_name(s->page_table));
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
    set_string(L, "param", b->spec->params[s->param].name);
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
  set_string(L, "dilation", said);
}

static void define_mask(const binding *b, lua_State *L) {
  static const char *const forms[] = {"all", "none", "rows", "boxes", "map", "elements"};
  static const char *const growths[] = {"shrinks", "same", "grows", "unknown"}; /* -1, 0, 1, MASK_BY_ROW */
  lua_newtable(L);
  set_string(L, "form", forms[b->rows.form]);
  set_bool(L, "exact", b->rows.exact);
  set_int(L, "low_count", b->rows.nlow);
  set_int(L, "high_count", b->rows.nhigh);
  if (b->walk)
    set_string(L, "walk", b->walk);
  else
    set_bool(L, "walk", false);
  set_int(L, "intervals", b->plan.rows.count);
  set_bool(L, "by_limits", b->plan.form == MASK_ROWS);
  set_bool(L, "reads_pairs", reads_tensor(b->mask_parts.rest));
  set_bool(L, "has_box", b->plan.box != NULL);
  set_parts(L, "rows", b->mask_parts.rows, b->mask_parts.nrows);
  set_parts(L, "keys", b->mask_parts.keys, b->mask_parts.nkeys);
  set_symbols(L, "rest_symbols", b->mask_parts.rest);
  set_string(L, "growth", growths[mask_plan_growth(&b->plan, !b->walk) + 1]);
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
  set_string(L, "name", a->name);
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

static void define_request(const binding *b, lua_State *L) {
  lua_newtable(L);
  set_bool(L, "unaligned", b->request->unaligned);
  set_string(L, "phase", b->phase);
  set_int(L, "batch", b->request->batch);
  set_int(L, "len_q", b->request->len_q);
  host_freeze(L, "request", true);
  host_set_global(L, "request");
}

/* ---- expressions as CUDA text ---- */

static binding *binding_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}

/* The names that cuda_mask and cuda_score take, all but those of the set `hidden`. */
static void symbol_names(const char *names[EXPR_SYMBOL_COUNT], unsigned hidden) {
  for (int n = 0; n < EXPR_SYMBOL_COUNT; n++)
    names[n] = hidden & EXPR_BIT(n) ? NULL : expr_symbol_name((expr_symbol)n);
}

/* Reads {name = "text", ...} at `table`. names[n] may be NULL: not allowed here. */
static void read_symbols(lua_State *L, int table, const char *const names[EXPR_SYMBOL_COUNT],
                         const char *texts[EXPR_SYMBOL_COUNT]) {
  luaL_checktype(L, table, LUA_TTABLE);
  memset(texts, 0, EXPR_SYMBOL_COUNT * sizeof *texts);
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "(not a name)";
    int symbol = 0;
    while (symbol < EXPR_SYMBOL_COUNT && !(names[symbol] && strcmp(key, names[symbol]) == 0))
      symbol++;
    if (symbol == EXPR_SYMBOL_COUNT)
      luaL_error(L, "no symbol '%s' here", key);
    if (lua_type(L, -1) != LUA_TSTRING)
      luaL_error(L, "%s must be CUDA text, not a %s", key, luaL_typename(L, -1));
    texts[symbol] = lua_tostring(L, -1); /* the table keeps the string alive */
  }
}

static int print_cuda_with(binding *b, lua_State *L, const expr *e, const expr_param *params,
                           const char *const names[EXPR_SYMBOL_COUNT], int table) {
  const char *texts[EXPR_SYMBOL_COUNT];
  read_symbols(L, table, names, texts);
  unsigned used = expr_symbols(e);
  for (int n = 0; n < EXPR_SYMBOL_COUNT; n++)
    if ((used & EXPR_BIT(n)) && !texts[n])
      return luaL_error(L, "the expression uses %s; pass %s = \"...\"", expr_symbol_name((expr_symbol)n),
                        names[n] ? names[n] : "?");
  text_clear(&b->scratch);
  expr_print_cuda(e, params, texts, NULL, &b->scratch);
  host_check_memory(L, b->scratch.failed);
  lua_pushlstring(L, b->scratch.bytes ? b->scratch.bytes : "", b->scratch.size);
  return 1;
}

static int print_cuda(binding *b, lua_State *L, const expr *e, const char *const names[EXPR_SYMBOL_COUNT], int table) {
  return print_cuda_with(b, L, e, b->spec->params, names, table);
}

/* cuda_mask_part("row" or "key", n, names): what the variable row_n or key_n of cuda_mask_rest holds. */
static int cuda_mask_part(lua_State *L) {
  binding *b = binding_of(L);
  static const char *const kinds[] = {"row", "key", NULL};
  const char *names[EXPR_SYMBOL_COUNT];
  const expr_hoisted *h = &b->mask_parts;
  int key = luaL_checkoption(L, 1, NULL, kinds);
  lua_Integer n = luaL_checkinteger(L, 2);
  if (n < 1 || n > (key ? h->nkeys : h->nrows))
    return luaL_error(L, "no part %s_%I of the mask", kinds[key], n);
  symbol_names(names, EXPR_BIT(EXPR_S));
  return print_cuda(b, L, key ? h->keys[n - 1] : h->rows[n - 1], names, 3);
}

/* cuda_mask_rest(names): the mask (without what mask.dilation says) with the variables row_1, ... and key_1, ... in place
 * of its parts. */
static int cuda_mask_rest(lua_State *L) {
  binding *b = binding_of(L);
  const char *names[EXPR_SYMBOL_COUNT];
  symbol_names(names, EXPR_BIT(EXPR_S));
  return print_cuda_with(b, L, b->mask_parts.rest, b->mask_parts.params, names, 1);
}

static int cuda_mask(lua_State *L) {
  binding *b = binding_of(L);
  const char *names[EXPR_SYMBOL_COUNT];
  symbol_names(names, EXPR_BIT(EXPR_S));
  return print_cuda(b, L, b->spec->mask, names, 1);
}

static int cuda_score(lua_State *L) {
  binding *b = binding_of(L);
  const char *names[EXPR_SYMBOL_COUNT];
  symbol_names(names, 0);
  return print_cuda(b, L, b->spec->score, names, 1);
}

/* The name of the n-th local of a level, with `suffix` behind it; the stack keeps the string alive. */
static const char *local_name(lua_State *L, score_level level, int n, const char *suffix) {
  static const char *const names[] = {"once", "row", "column"};
  return lua_pushfstring(L, "%s_%d%s", names[level], n, suffix);
}

/* cuda_score_steps(packed, {s = , k = , q = , first_key = , column = , ...}, suffix): what turns products into
 * score.factor-ths of scores. {once = , rows = , columns = : lists of {type = , name = , text = }, constants of a tile,
 * of each row (and shift, only where score.shifts), of each column, and value; once_symbols = , row_symbols = ,
 * column_symbols = , value_symbols = what is read there}.
 * `suffix` stands behind a row's constants where they are read. */
static int cuda_score_steps(lua_State *L) {
  static const char *const lists[] = {"once", "rows", "columns"}, *const types[] = {"bool", "int", "float"};
  binding *b = binding_of(L);
  const score_code *c = &b->score_code[lua_toboolean(L, 1)];
  const char *names[EXPR_SYMBOL_COUNT], *texts[EXPR_SYMBOL_COUNT], *suffix = luaL_checkstring(L, 3);
  const char **locals = lua_newuserdatauv(L, ((size_t)c->count + 1) * sizeof *locals, 0);
  int numbers[SCORE_ELEMENT] = {0};
  unsigned symbols[SCORE_ELEMENT + 1] = {0};
  symbol_names(names, 0);
  read_symbols(L, 2, names, texts);
  luaL_checkstack(L, c->count + 16, "locals of a score");
  for (int n = 0; n < c->count; n++) {
    score_level level = c->level[n];
    locals[n] = local_name(L, level, ++numbers[level], level == SCORE_ROW ? suffix : "");
    symbols[level] |= expr_symbols(c->local[n]);
  }
  symbols[SCORE_ELEMENT] = expr_symbols(c->value);
  symbols[SCORE_ROW] |= c->shift ? expr_symbols(c->shift) : 0;
  lua_newtable(L);
  for (int level = 0; level < SCORE_ELEMENT; level++) {
    int number = 0;
    lua_newtable(L);
    for (int n = 0; n < c->count; n++) {
      if (c->level[n] != (score_level)level)
        continue;
      lua_newtable(L);
      set_string(L, "type", types[c->local[n]->type]);
      local_name(L, c->level[n], ++number, "");
      lua_setfield(L, -2, "name");
      text_clear(&b->scratch);
      expr_print_cuda(c->local[n], b->spec->params, texts, locals, &b->scratch);
      host_check_memory(L, b->scratch.failed);
      set_string(L, "text", b->scratch.bytes);
      lua_rawseti(L, -2, number);
    }
    lua_setfield(L, -2, lists[level]);
  }
  set_symbol_set(L, "once_symbols", symbols[SCORE_ONCE]);
  set_symbol_set(L, "row_symbols", symbols[SCORE_ROW]);
  set_symbol_set(L, "column_symbols", symbols[SCORE_COLUMN]);
  set_symbol_set(L, "value_symbols", symbols[SCORE_ELEMENT]);
  const expr *const results[] = {c->value, c->shift};
  for (int n = 0; n < 2 && results[n]; n++) {
    text_clear(&b->scratch);
    expr_print_cuda(results[n], b->spec->params, texts, locals, &b->scratch);
    host_check_memory(L, b->scratch.failed);
    set_string(L, n ? "shift" : "value", b->scratch.bytes);
  }
  return 1;
}

static int edge_of(lua_State *L, int argument) {
  const char *wanted = luaL_checkstring(L, argument);
  int edge = 0;
  while (edge < EDGE_COUNT && strcmp(wanted, edge_names[edge]) != 0)
    edge++;
  if (edge == EDGE_COUNT)
    luaL_error(L, "no edge '%s': visit_begin, visit_end, full_begin or full_end", wanted);
  return edge;
}

/* cuda_edge(name, {first = , last = , ...}): `first` and `last` are the tile's first and last row in q coordinates. */
static int cuda_edge(lua_State *L) {
  binding *b = binding_of(L);
  int edge = edge_of(L, 1);
  const char *names[EXPR_SYMBOL_COUNT];
  symbol_names(names, EXPR_BIT(EXPR_K) | EXPR_BIT(EXPR_S));
  names[EXPR_Q] = "first";
  names[EXPR_I] = "last";
  return print_cuda(b, L, b->edges[edge], names, 2);
}

static int interval_of(const binding *b, lua_State *L) {
  lua_Integer n = luaL_checkinteger(L, 1);
  if (n < 1 || n > b->plan.rows.count)
    luaL_error(L, "no interval %I: the mask has %d", n, b->plan.rows.count);
  return (int)n - 1;
}

/* cuda_interval_edge(n, name, {first = , last = , ...}): as cuda_edge, of the n-th interval, which is not by row there.
 */
static int cuda_interval_edge(lua_State *L) {
  binding *b = binding_of(L);
  int n = interval_of(b, L), edge = edge_of(L, 2);
  const expr *e = b->interval_edges[n][edge];
  if (!e)
    return luaL_error(L, "interval %d has no %s in closed form: see mask.by_row", n + 1, edge_names[edge]);
  const char *names[EXPR_SYMBOL_COUNT];
  symbol_names(names, EXPR_BIT(EXPR_K) | EXPR_BIT(EXPR_S));
  names[EXPR_Q] = "first";
  names[EXPR_I] = "last";
  return print_cuda(b, L, e, names, 3);
}

/* cuda_interval_side(n, "low" or "high", {q = , ...}): where the n-th interval begins or ends in row q. */
static int cuda_interval_side(lua_State *L) {
  binding *b = binding_of(L);
  static const char *const sides[] = {"high", "low", NULL};
  int n = interval_of(b, L), low = luaL_checkoption(L, 2, NULL, sides);
  const char *names[EXPR_SYMBOL_COUNT];
  symbol_names(names, EXPR_BIT(EXPR_K) | EXPR_BIT(EXPR_I) | EXPR_BIT(EXPR_S));
  return print_cuda(b, L, b->interval_sides[n][low], names, 3);
}

/* cuda_box({q_first = , q_last = , ...}): {lines = the statements, may_be_true = , may_be_false = their answers}. */
static int cuda_box(lua_State *L) {
  binding *b = binding_of(L);
  static const char *const inputs[BOX_INPUT_COUNT] = {"q_first", "q_last", "k_first", "k_last", "h_first",
                                                      "h_last",  "hk",     "b",       "len_q",  "len_k",
                                                      "residue", "dilation", "all_q", "all_k"};
  box_style style = {.types = {"bool", "int", "long long", "float", "unsigned long long"},
                     .indent = "", .params = b->spec->params};
  luaL_checktype(L, 1, LUA_TTABLE);
  if (!b->plan.box)
    return luaL_error(L, "the mask has no box program");
  for (int n = 0; n < BOX_INPUT_COUNT; n++) {
    bool needed = n < BOX_RESIDUE || b->residue.modulus;
    if (lua_getfield(L, 1, inputs[n]) != LUA_TSTRING && needed)
      return luaL_error(L, "cuda_box needs %s = \"...\"", inputs[n]);
    style.input[n] = lua_tostring(L, -1); /* the table keeps the string alive */
    lua_pop(L, 1);
  }
  text_clear(&b->scratch);
  box_print(b->plan.box, &style, &b->scratch);
  host_check_memory(L, b->scratch.failed);
  lua_newtable(L);
  lua_newtable(L);
  int count = 0;
  for (const char *line = b->scratch.bytes; line && *line;) {
    size_t length = strcspn(line, "\n");
    lua_pushlstring(L, line, length);
    lua_rawseti(L, -2, ++count);
    line += length + (line[length] == '\n');
  }
  lua_setfield(L, -2, "lines");
  static const char *const answers[] = {"may_be_true", "may_be_false"};
  for (int n = 0; n < 2; n++) {
    text_clear(&b->scratch);
    box_print_value(b->plan.box, n ? b->plan.box->may_be_false : b->plan.box->may_be_true, &style, &b->scratch);
    host_check_memory(L, b->scratch.failed);
    set_string(L, answers[n], b->scratch.bytes);
  }
  return 1;
}

/* ---- small helpers ---- */

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

static void define_function(binding *b, lua_State *L, const char *name, lua_CFunction function) {
  lua_pushlightuserdata(L, b);
  lua_pushcclosure(L, function, 1);
  host_set_global(L, name);
}

void binding_define(binding *b, lua_State *L) {
  define_variant(b, L);
  define_mask(b, L);
  define_score(b, L);
  define_arch(b->arch, L);
  define_request(b, L);
  define_function(b, L, "cuda_mask", cuda_mask);
  define_function(b, L, "cuda_score", cuda_score);
  define_function(b, L, "cuda_score_steps", cuda_score_steps);
  define_function(b, L, "cuda_edge", cuda_edge);
  define_function(b, L, "cuda_mask_part", cuda_mask_part);
  define_function(b, L, "cuda_mask_rest", cuda_mask_rest);
  define_function(b, L, "cuda_interval_edge", cuda_interval_edge);
  define_function(b, L, "cuda_interval_side", cuda_interval_side);
  define_function(b, L, "cuda_box", cuda_box);
  define_function(b, L, "f32", f32);
  define_function(b, L, "ceil_div", ceil_div);
  define_function(b, L, "round_up", round_up);
  lua_newtable(L);
  lua_pushcclosure(L, library, 1);
  host_set_global(L, "library");
}
