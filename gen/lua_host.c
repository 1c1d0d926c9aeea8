/* lua_host.c: see lua_host.h. Limits and protected calls first, then the sandbox. */
#include "lua_host.h"

#include <lualib.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua_library.h"
#include "template.h"

enum { HOOK_STEP = 10000, MAX_CALLERS = 3 };

/* The error value of host_raise: the message is in host->error already. */
static char raised_key;
/* Registry key of the table that holds the globals. */
static char globals_key;

lua_host *host_of(lua_State *L) {
  return *(lua_host **)lua_getextraspace(L);
}

/* "path:line: " of the innermost template or Lua file that runs; empty when none does. Allocates nothing. */
static void describe_place(lua_State *L, char *out, size_t size) {
  lua_Debug frame;
  out[0] = 0;
  for (int level = 0; lua_getstack(L, level, &frame); level++) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.currentline > 0) {
      snprintf(out, size, "%s:%d: ", frame.short_src, frame.currentline);
      return;
    }
  }
}

void *(*host_realloc)(void *block, size_t size) = realloc;

static void *limited_alloc(void *user, void *block, size_t old_size, size_t new_size) {
  lua_host *h = user;
  size_t held = block ? old_size : 0; /* for new blocks Lua passes a type tag in old_size */
  if (new_size == 0) {
    free(block);
    h->memory -= held;
    return NULL;
  }
  if (new_size > held && h->memory - held + new_size > HOST_MEMORY_LIMIT) {
    h->memory_limit_hit = true;
    if (h->L)
      describe_place(h->L, h->where, sizeof h->where);
    return NULL;
  }
  void *moved = host_realloc(block, new_size);
  if (moved)
    h->memory += new_size - held;
  return moved;
}

/* Runs every HOOK_STEP instructions. Once the budget is spent it throws at every instruction. */
static void count_instructions(lua_State *L, lua_Debug *frame) {
  (void)frame;
  lua_host *h = host_of(L);
  h->instructions -= HOOK_STEP;
  if (h->instructions < 0) {
    lua_sethook(L, count_instructions, LUA_MASKCOUNT, 1);
    luaL_error(L, "template ran for more than %d million instructions", HOST_INSTRUCTION_LIMIT / 1000000);
  }
}

/* True when the message starts with "something:digits: ". */
static bool has_place(const char *message) {
  const char *colon = strchr(message, ':');
  if (!colon || colon == message)
    return false;
  size_t digits = strspn(colon + 1, "0123456789");
  return digits > 0 && colon[1 + digits] == ':';
}

/* Message handler: puts "path:line: " in front if it is missing and names the templates that led there. */
static int add_place(lua_State *L) {
  if (lua_islightuserdata(L, 1) || lua_type(L, 1) == LUA_TNUMBER)
    return 1;
  const char *message = lua_tostring(L, 1);
  char place[96];
  if (!message)
    message = lua_pushfstring(L, "(error value is a %s)", luaL_typename(L, 1));
  describe_place(L, place, sizeof place);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  if (!has_place(message))
    luaL_addstring(&b, place);
  luaL_addstring(&b, message);
  lua_Debug frame;
  char previous[LUA_IDSIZE] = "";
  for (int level = 0, callers = 0; callers < MAX_CALLERS && level < 100 && lua_getstack(L, level, &frame); level++) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.currentline <= 0 || strcmp(frame.short_src, previous) == 0)
      continue;
    if (*previous) {
      snprintf(place, sizeof place, " (called from %s:%d)", frame.short_src, frame.currentline);
      luaL_addstring(&b, place);
      callers++;
    }
    memcpy(previous, frame.short_src, sizeof previous);
  }
  luaL_pushresult(&b);
  return 1;
}

gen_status host_run(lua_host *h, lua_CFunction work, void *user) {
  lua_State *L = h->L;
  h->memory_limit_hit = false;
  lua_settop(L, 0);
  lua_pushcfunction(L, add_place); /* light C functions: these pushes allocate nothing */
  lua_pushcfunction(L, work);
  lua_pushlightuserdata(L, user);
  int result = lua_pcall(L, 1, 0, 1);
  if (result == LUA_OK) {
    lua_settop(L, 0);
    return GEN_OK;
  }
  gen_status status = GEN_TEMPLATE;
  if (lua_touserdata(L, -1) == &raised_key)
    status = h->error->status;
  else if (result == LUA_ERRMEM && h->memory_limit_hit)
    gen_fail(h->error, status, "%stemplate needs more than %d MiB", h->where, HOST_MEMORY_LIMIT >> 20);
  else if (result == LUA_ERRMEM)
    status = gen_fail(h->error, GEN_NO_MEMORY, "out of memory");
  else
    gen_fail(h->error, status, "%s", lua_isstring(L, -1) ? lua_tostring(L, -1) : "unknown error");
  lua_settop(L, 0);
  return status;
}

void host_raise(lua_State *L, gen_status status, const char *format, ...) {
  va_list args;
  gen_error *error = host_of(L)->error;
  va_start(args, format);
  error->status = status;
  vsnprintf(error->message, sizeof error->message, format, args);
  va_end(args);
  lua_pushlightuserdata(L, &raised_key);
  lua_error(L);
  __builtin_unreachable(); /* lua_error does not return */
}

bool host_raised(lua_State *L, gen_status status) {
  return lua_touserdata(L, -1) == &raised_key && host_of(L)->error->status == status;
}

void host_check_memory(lua_State *L, bool failed) {
  if (failed)
    host_raise(L, GEN_NO_MEMORY, "out of memory");
}

/* ---- read-only tables and strict globals ---- */

/* Upvalue 1: what the table is called. */
static int refuse_read(lua_State *L) {
  if (lua_type(L, 2) == LUA_TSTRING)
    return luaL_error(L, "%s has no field '%s'", lua_tostring(L, lua_upvalueindex(1)), lua_tostring(L, 2));
  return luaL_error(L, "%s has no such field", lua_tostring(L, lua_upvalueindex(1)));
}

static int refuse_write(lua_State *L) {
  return luaL_error(L, "%s is read-only", lua_tostring(L, lua_upvalueindex(1)));
}

static int refuse_global_read(lua_State *L) {
  return luaL_error(L, "undefined name '%s'", luaL_tolstring(L, 2, NULL));
}

static int refuse_global_write(lua_State *L) {
  return luaL_error(L, "assignment to global '%s': use local", luaL_tolstring(L, 2, NULL));
}

void host_freeze(lua_State *L, const char *name, bool strict) {
  int real = lua_gettop(L);
  if (strict) {
    lua_createtable(L, 0, 1);
    lua_pushstring(L, name);
    lua_pushcclosure(L, refuse_read, 1);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, real);
  }
  lua_newtable(L); /* the view stays empty */
  lua_createtable(L, 0, 4);
  lua_pushvalue(L, real);
  lua_setfield(L, -2, "__index");
  lua_pushstring(L, name);
  lua_pushcclosure(L, refuse_write, 1);
  lua_setfield(L, -2, "__newindex");
  lua_pushcfunction(L, library_view_length);
  lua_setfield(L, -2, "__len");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pushvalue(L, real);
  lua_rawsetp(L, -2, &library_view_key);
  lua_setmetatable(L, -2);
  lua_remove(L, real);
}

void host_set_global(lua_State *L, const char *name) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &globals_key);
  lua_pushstring(L, name);
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 2);
}

/* ---- opening ---- */

/* The table of globals that code sees is an empty view, so that not even existing names can be assigned. */
static int open_sandbox(lua_State *L) {
  lua_newtable(L); /* the defined names */
  library_open(L, lua_gettop(L));
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, refuse_global_read);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  lua_newtable(L); /* the view */
  lua_createtable(L, 0, 3);
  lua_pushvalue(L, -3);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, refuse_global_write);
  lua_setfield(L, -2, "__newindex");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &globals_key);
  lua_sethook(L, count_instructions, LUA_MASKCOUNT, HOOK_STEP);
  return 0;
}

gen_status host_open(lua_host *h, const char *override, gen_error *error) {
  *h = (lua_host){.override = override, .error = error, .instructions = HOST_INSTRUCTION_LIMIT};
  lua_State *L = lua_newstate(limited_alloc, h);
  if (!L)
    return gen_fail(error, GEN_NO_MEMORY, "out of memory");
  *(lua_host **)lua_getextraspace(L) = h;
  h->L = L;
  gen_status status = host_run(h, open_sandbox, NULL);
  if (status != GEN_OK)
    host_close(h);
  return status;
}

void host_close(lua_host *h) {
  lua_State *L = h->L;
  h->L = NULL; /* the allocator must not look into a dying state */
  if (L)
    lua_close(L);
}

/* ---- files ---- */

void host_load(lua_State *L, const char *path, const char *bytes, size_t size) {
  lua_pushfstring(L, "@%s", path);
  if (luaL_loadbufferx(L, bytes, size, lua_tostring(L, -1), "t") != LUA_OK) {
    if (lua_type(L, -1) == LUA_TSTRING && !has_place(lua_tostring(L, -1)))
      luaL_error(L, "%s:1: %s", path, lua_tostring(L, -1));
    lua_error(L);
  }
  lua_remove(L, -2);
}

static int free_block(lua_State *L) {
  char **block = lua_touserdata(L, 1);
  free(*block);
  *block = NULL;
  return 0;
}

void host_run_file(lua_State *L, const char *path) {
  lua_host *h = host_of(L);
  /* A full userdata owns the file's bytes, so that a syntax error does not leak them. */
  char **owner = lua_newuserdatauv(L, sizeof *owner, 0);
  *owner = NULL;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, free_block);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  const char *bytes;
  size_t size;
  gen_error error = {0};
  if (!template_load(h->override, path, &bytes, &size, owner, &error)) {
    if (error.status == GEN_TEMPLATE)
      luaL_error(L, "%s", error.message);
    host_raise(L, error.status, "%s", error.message);
  }
  host_load(L, path, bytes, size);
  lua_call(L, 0, 1);
  free(*owner);
  *owner = NULL;
  lua_remove(L, -2);
}
