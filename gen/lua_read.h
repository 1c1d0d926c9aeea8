/* lua_read.h: strict reading of tables that Lua files return. All functions throw, naming the table and the field.
 * `where` names the table in messages, e.g. "kernels/attention_naive.lua: launches[1]". */
#ifndef GEN_LUA_READ_H
#define GEN_LUA_READ_H

#include <lua.h>
#include <stdbool.h>
#include <stddef.h>

/* A string field, copied; it must fit with its zero. An optional one may be absent and becomes empty. */
void read_string(lua_State *L, int table, const char *where, const char *key, char *out, size_t size, bool optional);
/* An integer field in [low, high]. */
int read_int(lua_State *L, int table, const char *where, const char *key, int low, int high);
/* The same, or `absent` when there is no such field. */
int read_optional_int(lua_State *L, int table, const char *where, const char *key, int low, int high, int absent);
/* A boolean field. */
bool read_bool(lua_State *L, int table, const char *where, const char *key);
/* Pushes a table field and returns its length; at most `limit` elements. */
int read_list(lua_State *L, int table, const char *where, const char *key, int limit);
/* Pushes a function field; false (nothing pushed) when it is optional and absent. */
bool read_function(lua_State *L, int table, const char *where, const char *key, bool optional);
/* Refuses string keys that are not in the list (ended by NULL). */
void read_known_keys(lua_State *L, int table, const char *where, const char *const *keys);

#endif
