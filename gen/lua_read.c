/* lua_read.c: see lua_read.h. */
#include "lua_read.h"

#include <lauxlib.h>
#include <string.h>

#include "diag.h"

static void get(lua_State *L, int table, const char *where, const char *key) {
  if (!lua_istable(L, table))
    luaL_error(L, "%s must be a table", where);
  lua_pushstring(L, key);
  lua_rawget(L, table);
}

void read_string(lua_State *L, int table, const char *where, const char *key, char *out, size_t size, bool optional) {
  table = lua_absindex(L, table);
  get(L, table, where, key);
  size_t length = 0;
  const char *value = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &length) : NULL;
  bool absent = optional && lua_isnil(L, -1);
  if (!absent && (!value || length == 0 || strlen(value) != length))
    luaL_error(L, "%s: %s must be a string", where, key);
  if (length >= size)
    luaL_error(L, "%s: %s is longer than %d bytes", where, key, (int)size - 1);
  memcpy(out, value ? value : "", length + 1);
  lua_pop(L, 1);
}

int read_int(lua_State *L, int table, const char *where, const char *key, int low, int high) {
  table = lua_absindex(L, table);
  get(L, table, where, key);
  lua_Integer value = lua_tointeger(L, -1);
  if (!lua_isinteger(L, -1) || value < low || value > high)
    luaL_error(L, "%s: %s must be an integer from %d to %d", where, key, low, high);
  lua_pop(L, 1);
  return (int)value;
}

int read_optional_int(lua_State *L, int table, const char *where, const char *key, int low, int high, int absent) {
  table = lua_absindex(L, table);
  get(L, table, where, key);
  bool is_absent = lua_isnil(L, -1);
  lua_pop(L, 1);
  return is_absent ? absent : read_int(L, table, where, key, low, high);
}

bool read_bool(lua_State *L, int table, const char *where, const char *key) {
  table = lua_absindex(L, table);
  get(L, table, where, key);
  if (!lua_isboolean(L, -1))
    luaL_error(L, "%s: %s must be true or false", where, key);
  bool value = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return value;
}

int read_list(lua_State *L, int table, const char *where, const char *key, int limit) {
  table = lua_absindex(L, table);
  get(L, table, where, key);
  if (!lua_istable(L, -1))
    luaL_error(L, "%s: %s must be a list", where, key);
  lua_Unsigned length = lua_rawlen(L, -1);
  if (length > (lua_Unsigned)limit)
    luaL_error(L, "%s: %s has more than %d elements", where, key, limit);
  return (int)length;
}

bool read_function(lua_State *L, int table, const char *where, const char *key, bool optional) {
  table = lua_absindex(L, table);
  get(L, table, where, key);
  if (optional && lua_isnil(L, -1)) {
    lua_pop(L, 1);
    return false;
  }
  if (!lua_isfunction(L, -1))
    luaL_error(L, "%s: %s must be a function", where, key);
  return true;
}

void read_known_keys(lua_State *L, int table, const char *where, const char *const *keys) {
  table = lua_absindex(L, table);
  if (!lua_istable(L, table))
    luaL_error(L, "%s must be a table", where);
  int count = 0;
  while (keys[count])
    count++;
  const char *unknown = NULL; /* the least one, so that the message does not depend on hash order */
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "(not a name)";
    bool known = false;
    for (int n = 0; n < count; n++)
      known = known || strcmp(key, keys[n]) == 0;
    if (!known && (!unknown || strcmp(key, unknown) < 0))
      unknown = key;
  }
  if (!unknown)
    return;
  const char *near = diag_nearest(unknown, keys, count);
  if (near)
    luaL_error(L, "%s: unknown field '%s'; did you mean '%s'?", where, unknown, near);
  luaL_error(L, "%s: unknown field '%s'", where, unknown);
}
