/* lua_host.h: the Lua state that templates run in: sandboxed, budgeted and reproducible.
 *
 * What template code sees: assert error getmetatable ipairs pairs select setmetatable tonumber tostring type, string
 * (without dump, pack, unpack), table (without move), math (without random and trigonometry). Globals are strict:
 * reading or assigning an undefined one is an error. `pairs` visits keys in sorted order, `table.sort` is stable, and
 * nothing prints an address, so that output never depends on hash seeds or memory layout. Memory and instructions are
 * limited, which ends runaway templates; a hostile one can still be slow inside one library call, such as a pattern
 * match.
 *
 * Work on the state happens in protected C functions (host_run); inside them any failure is thrown with luaL_error or
 * host_raise, so the code between needs no checks. What such a function allocates outside Lua must belong to its
 * caller. A host belongs to one thread at a time. */
#ifndef GEN_LUA_HOST_H
#define GEN_LUA_HOST_H

#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>
#include <stddef.h>

#include "status.h"

enum { HOST_MEMORY_LIMIT = 64 << 20, HOST_INSTRUCTION_LIMIT = 50 * 1000 * 1000 };

typedef struct lua_host {
  lua_State *L;
  const char *override; /* directory that overrides built-in templates, or NULL */
  gen_error *error;     /* never NULL while a call runs */
  size_t memory;        /* bytes Lua holds */
  long instructions;    /* left */
  bool memory_limit_hit;
  char where[96]; /* "path:line: " of the allocation that hit the limit */
} lua_host;

/* Where Lua's memory comes from; tests replace it to fail at the n-th call. Freed with free(). */
extern void *(*host_realloc)(void *block, size_t size);

/* Opens a state. On failure h->L is NULL. `error` must outlive the host. */
gen_status host_open(lua_host *h, const char *override, gen_error *error);
void host_close(lua_host *h);

/* Calls work(L) with `user` as light userdata in its first argument. Returns GEN_OK, or what was thrown. */
gen_status host_run(lua_host *h, lua_CFunction work, void *user);
lua_host *host_of(lua_State *L);
/* Throws with a status of its own and a message without template position. */
_Noreturn void host_raise(lua_State *L, gen_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether the error value on top, which lua_pcall left, is that of a host_raise with this status. */
bool host_raised(lua_State *L, gen_status status);
/* Throws GEN_NO_MEMORY when `failed`: for the `failed` flag of a text. */
void host_check_memory(lua_State *L, bool failed);

/* Replaces the table on top by a read-only view of it. `name` appears in error messages. With `strict`, reading a
 * missing key is an error too (for records; lists and sets are not strict). Tables inside must be frozen before. */
void host_freeze(lua_State *L, const char *name, bool strict);
/* Pops a value into a global; templates may read but not assign it. */
void host_set_global(lua_State *L, const char *name);
/* Compiles a chunk of text named `path` and leaves the function on the stack; throws. */
void host_load(lua_State *L, const char *path, const char *bytes, size_t size);
/* Runs the Lua file at a template path (lib/x.lua, kernels/x.lua) and leaves the value it returns; throws. */
void host_run_file(lua_State *L, const char *path);

#endif
