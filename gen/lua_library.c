/* lua_library.c: the allowed part of Lua's standard library, and replacements for what is not reproducible in it.
 *
 * Replaced: pairs (sorted keys instead of hash order), tostring and string.format (refuse values that print as an
 * address), table.sort (stable; Lua's own picks pivots by the clock), setmetatable (no finalizers: they run at the whim
 * of the collector, and beyond the instruction budget). Arithmetic on strings is switched off. */
#include "lua_library.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lua_host.h"

enum { MAX_SORT = 4096 };

char library_view_key;

/* Pushes the table behind a view, or the table itself. */
static void push_real(lua_State *L, int index) {
  index = lua_absindex(L, index);
  if (lua_getmetatable(L, index)) {
    if (lua_rawgetp(L, -1, &library_view_key) == LUA_TTABLE) {
      lua_remove(L, -2);
      return;
    }
    lua_pop(L, 2);
  }
  lua_pushvalue(L, index);
}

int library_view_length(lua_State *L) {
  push_real(L, 1);
  lua_pushinteger(L, (lua_Integer)lua_rawlen(L, -1));
  return 1;
}

/* ---- pairs ---- */

typedef struct sort_key {
  const char *string; /* NULL: a number */
  size_t length;
  lua_Number number;
  lua_Integer index; /* position in the unsorted list */
} sort_key;

/* Numbers first, ascending; then strings by their bytes. */
static int compare_keys(const void *a, const void *b) {
  const sort_key *x = a, *y = b;
  if (!x->string || !y->string) {
    if (x->string || y->string)
      return x->string ? 1 : -1;
    return (x->number > y->number) - (x->number < y->number);
  }
  size_t shorter = x->length < y->length ? x->length : y->length;
  int order = memcmp(x->string, y->string, shorter);
  return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* Upvalues: sorted keys, the table, position. */
static int next_pair(lua_State *L) {
  lua_Integer position = lua_tointeger(L, lua_upvalueindex(3));
  for (;;) {
    if (lua_rawgeti(L, lua_upvalueindex(1), ++position) == LUA_TNIL)
      return 1;
    lua_pushvalue(L, -1);
    if (lua_gettable(L, lua_upvalueindex(2)) != LUA_TNIL)
      break;
    lua_pop(L, 2); /* removed since the loop began */
  }
  lua_pushinteger(L, position);
  lua_replace(L, lua_upvalueindex(3));
  return 2;
}

static int sorted_pairs(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  push_real(L, 1);
  int real = lua_gettop(L);
  lua_newtable(L);
  int unsorted = lua_gettop(L);
  lua_Integer count = 0;
  for (lua_pushnil(L); lua_next(L, real); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING && lua_type(L, -2) != LUA_TNUMBER)
      return luaL_error(L, "pairs: a key is a %s; only numbers and strings have an order", luaL_typename(L, -2));
    lua_pushvalue(L, -2);
    lua_rawseti(L, unsorted, ++count);
  }
  sort_key *keys = lua_newuserdatauv(L, (size_t)count * sizeof *keys + 1, 0);
  for (lua_Integer n = 0; n < count; n++) {
    keys[n] = (sort_key){.index = n + 1};
    if (lua_rawgeti(L, unsorted, n + 1) == LUA_TSTRING)
      keys[n].string = lua_tolstring(L, -1, &keys[n].length);
    else
      keys[n].number = lua_tonumber(L, -1);
    lua_pop(L, 1);
  }
  qsort(keys, (size_t)count, sizeof *keys, compare_keys);
  lua_createtable(L, (int)count, 0);
  for (lua_Integer n = 0; n < count; n++) {
    lua_rawgeti(L, unsorted, keys[n].index);
    lua_rawseti(L, -2, n + 1);
  }
  lua_pushvalue(L, 1);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, next_pair, 3);
  return 1;
}

/* ---- tostring, format ---- */

/* Throws for a value whose text would be an address. */
static void check_printable(lua_State *L, int index) {
  int type = lua_type(L, index);
  bool plain = type == LUA_TNIL || type == LUA_TBOOLEAN || type == LUA_TNUMBER || type == LUA_TSTRING;
  if (!plain && luaL_getmetafield(L, index, "__tostring") == LUA_TNIL)
    luaL_error(L, "a %s has no text form", lua_typename(L, type));
}

static int printable_tostring(lua_State *L) {
  luaL_checkany(L, 1);
  lua_settop(L, 1);
  check_printable(L, 1);
  luaL_tolstring(L, 1, NULL);
  return 1;
}

/* Upvalue 1: string.format. */
static int printable_format(lua_State *L) {
  int count = lua_gettop(L);
  for (const char *p = luaL_checkstring(L, 1); *p; p++) {
    if (*p != '%')
      continue;
    p += 1 + strspn(p + 1, "-+ #0123456789.");
    if (*p == 'p')
      return luaL_error(L, "format: %%p prints an address");
    if (*p == 0)
      break;
  }
  for (int n = 2; n <= count; n++) {
    check_printable(L, n);
    lua_settop(L, count);
  }
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, count, 1);
  return 1;
}

/* ---- setmetatable ---- */

/* Upvalue 1: the library's own. */
static int plain_setmetatable(lua_State *L) {
  if (lua_istable(L, 2) && lua_getfield(L, 2, "__gc") != LUA_TNIL)
    return luaL_error(L, "setmetatable: templates have no finalizers (__gc)");
  lua_settop(L, 2);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, 2, 1);
  return 1;
}

/* ---- sort ---- */

/* Whether the value at index a comes before the one at index b. Index 2 of the stack: the order function, or nil. */
static bool comes_before(lua_State *L, int a, int b) {
  if (lua_isnil(L, 2))
    return lua_compare(L, a, b, LUA_OPLT);
  lua_pushvalue(L, 2);
  lua_pushvalue(L, a);
  lua_pushvalue(L, b);
  lua_call(L, 2, 1);
  bool before = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return before;
}

/* Insertion sort: stable, and lists in templates are short. */
static int stable_sort(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  if (!lua_isnoneornil(L, 2))
    luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  lua_Integer count = luaL_len(L, 1);
  if (count > MAX_SORT)
    return luaL_error(L, "sort: more than %d elements", MAX_SORT);
  for (lua_Integer n = 2; n <= count; n++) {
    lua_geti(L, 1, n); /* index 3 */
    lua_Integer place = n;
    for (; place > 1; place--) {
      lua_geti(L, 1, place - 1); /* index 4 */
      if (!comes_before(L, 3, 4)) {
        lua_pop(L, 1);
        break;
      }
      lua_seti(L, 1, place);
    }
    lua_seti(L, 1, place);
  }
  return 0;
}

/* ---- opening ---- */

/* A list of names, ended by NULL. */
#define NAMES(...)                                                                                                     \
  (const char *const[]) {                                                                                              \
    __VA_ARGS__, NULL                                                                                                  \
  }

/* Copies the named functions of the table on top into the table at `to` and pops it. */
static void copy_names(lua_State *L, int to, const char *const *names) {
  for (; *names; names++) {
    lua_getfield(L, -1, *names);
    lua_setfield(L, to, *names);
  }
  lua_pop(L, 1);
}

/* Leaves a new table with the named functions of a standard library module. */
static void open_module(lua_State *L, lua_CFunction open, const char *module, const char *const *names) {
  lua_newtable(L);
  int allowed = lua_gettop(L);
  lua_pushcfunction(L, open);
  lua_pushstring(L, module);
  lua_call(L, 1, 1);
  copy_names(L, allowed, names);
}

/* Strings get methods, nothing else: no arithmetic on numerals, no way to the metatable. Module table on top. */
static void set_string_metatable(lua_State *L) {
  lua_pushliteral(L, "");
  lua_createtable(L, 0, 2);
  lua_pushvalue(L, -3);
  lua_setfield(L, -2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_pop(L, 1);
}

void library_open(lua_State *L, int globals) {
  lua_pushcfunction(L, luaopen_base); /* fills the old table of globals, which is dropped */
  lua_call(L, 0, 1);
  copy_names(L, globals,
             NAMES("assert", "error", "getmetatable", "ipairs", "select", "setmetatable", "tonumber", "type"));
  lua_getfield(L, globals, "setmetatable");
  lua_pushcclosure(L, plain_setmetatable, 1);
  lua_setfield(L, globals, "setmetatable");
  lua_pushcfunction(L, sorted_pairs);
  lua_setfield(L, globals, "pairs");
  lua_pushcfunction(L, printable_tostring);
  lua_setfield(L, globals, "tostring");

  open_module(L, luaopen_string, "string",
              NAMES("byte", "char", "find", "format", "gmatch", "gsub", "len", "lower", "match", "rep", "reverse",
                    "sub", "upper"));
  lua_getfield(L, -1, "format");
  lua_pushcclosure(L, printable_format, 1);
  lua_setfield(L, -2, "format");
  set_string_metatable(L);
  host_freeze(L, "string", true);
  lua_setfield(L, globals, "string");

  open_module(L, luaopen_table, "table", NAMES("concat", "insert", "pack", "remove", "unpack"));
  lua_pushcfunction(L, stable_sort);
  lua_setfield(L, -2, "sort");
  host_freeze(L, "table", true);
  lua_setfield(L, globals, "table");

  open_module(L, luaopen_math, "math",
              NAMES("abs", "ceil", "exp", "floor", "fmod", "huge", "log", "max", "maxinteger", "min", "mininteger",
                    "modf", "pi", "sqrt", "tointeger", "type", "ult"));
  host_freeze(L, "math", true);
  lua_setfield(L, globals, "math");
}
