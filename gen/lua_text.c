/* lua_text.c: expressions as CUDA text: the functions cuda_* of templates. */
#include "lua_bind.h"

#include "box.h"
#include "expr_internal.h"

#include <stdio.h>
#include <string.h>

static const char *const edge_names[EDGE_COUNT] = {"visit_begin", "visit_end", "full_begin", "full_end"};

static void set_text(lua_State *L, const char *key, const text *value) {
  lua_pushlstring(L, value->bytes ? value->bytes : "", value->size);
  lua_setfield(L, -2, key);
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

/* cuda_mask_rest(names): the mask (without what mask.dilation says) with the variables row_1, ... and key_1, ... in
 * place of its parts. */
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
      binding_set_string(L, "type", types[c->local[n]->type]);
      local_name(L, c->level[n], ++number, "");
      lua_setfield(L, -2, "name");
      text_clear(&b->scratch);
      expr_print_cuda(c->local[n], b->spec->params, texts, locals, &b->scratch);
      host_check_memory(L, b->scratch.failed);
      set_text(L, "text", &b->scratch);
      lua_rawseti(L, -2, number);
    }
    lua_setfield(L, -2, lists[level]);
  }
  binding_set_symbols(L, "once_symbols", symbols[SCORE_ONCE]);
  binding_set_symbols(L, "row_symbols", symbols[SCORE_ROW]);
  binding_set_symbols(L, "column_symbols", symbols[SCORE_COLUMN]);
  binding_set_symbols(L, "value_symbols", symbols[SCORE_ELEMENT]);
  const expr *const results[] = {c->value, c->shift};
  for (int n = 0; n < 2 && results[n]; n++) {
    text_clear(&b->scratch);
    expr_print_cuda(results[n], b->spec->params, texts, locals, &b->scratch);
    host_check_memory(L, b->scratch.failed);
    set_text(L, n ? "shift" : "value", &b->scratch);
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
  static const char *const inputs[BOX_INPUT_COUNT] = {"q_first", "q_last",   "k_first", "k_last", "h_first",
                                                      "h_last",  "hk",       "b",       "len_q",  "len_k",
                                                      "residue", "dilation", "all_q",   "all_k"};
  box_style style = {
      .types = {"bool", "int", "long long", "float", "unsigned long long"}, .indent = "", .params = b->spec->params};
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
    set_text(L, answers[n], &b->scratch);
  }
  return 1;
}

void binding_define_text(binding *b, lua_State *L) {
  static const struct {
    const char *name;
    lua_CFunction function;
  } all[] = {{"cuda_mask", cuda_mask},
             {"cuda_score", cuda_score},
             {"cuda_score_steps", cuda_score_steps},
             {"cuda_edge", cuda_edge},
             {"cuda_mask_part", cuda_mask_part},
             {"cuda_mask_rest", cuda_mask_rest},
             {"cuda_interval_edge", cuda_interval_edge},
             {"cuda_interval_side", cuda_interval_side},
             {"cuda_box", cuda_box}};
  for (size_t n = 0; n < sizeof all / sizeof *all; n++)
    binding_function(b, L, all[n].name, all[n].function);
}
