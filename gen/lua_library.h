/* lua_library.h: the functions that templates find in a fresh state; private to lua_host.c. */
#ifndef GEN_LUA_LIBRARY_H
#define GEN_LUA_LIBRARY_H

#include <lua.h>

/* In the metatable of a read-only view: the key under which the table behind it is kept. */
extern char library_view_key;
/* `#view`. */
int library_view_length(lua_State *L);
/* Fills the table at index `globals` with the allowed part of the standard library. */
void library_open(lua_State *L, int globals);

#endif
