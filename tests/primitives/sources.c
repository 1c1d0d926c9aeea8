/* sources.c: CUDA source from every primitive of templates/prim, whether a kernel uses it or not, parts, and the kernels of
 * tests/emulator, which travel inside the program. */
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <string.h>

#include "emulator/emu_inputs.h"
#include "primitives.h"
#include "template.h"

extern const template_file kernel_files[]; /* generated at build time by tools/embed.c from tests/emulator */
extern const int kernel_file_count;

const source_info sources[SOURCES] = {
    {"primitives_sm80.cu", 80},
    {"primitives_sm90.cu", 90},
    {"ring_sm90.cu", 90},
    {"split_sm90.cu", 90},
    {"cluster_sm90.cu", 90},
};

/* ---- A template engine that knows pieces only ---- */

/* emit_line(line, text, value, text, ...); upvalue 1: the text. */
static int emit_line(lua_State *L) {
  text *out = lua_touserdata(L, lua_upvalueindex(1));
  for (int n = 2; n <= lua_gettop(L); n++)
    text_puts(out, luaL_tolstring(L, n, NULL)), lua_pop(L, 1);
  text_puts(out, "\n");
  return 0;
}

/* piece(name, function): every piece is in use. */
static int piece(lua_State *L) {
  lua_settop(L, 2);
  lua_call(L, 0, 0);
  return 0;
}

static bool run_template(lua_State *L, const template_file *file, text *out) {
  text chunk = {0};
  gen_error error = {0};
  bool ok = template_translate(file->path, file->bytes, file->size, &chunk, &error);
  if (!ok)
    fprintf(stderr, "%s\n", error.message);
  if (ok) {
    lua_pushlightuserdata(L, out);
    lua_pushcclosure(L, emit_line, 1);
    ok = luaL_loadbuffer(L, chunk.bytes, chunk.size, file->path) == LUA_OK;
    if (ok) {
      lua_insert(L, -2);
      ok = lua_pcall(L, 1, 0, 0) == LUA_OK;
    }
    if (!ok)
      fprintf(stderr, "%s\n", lua_tostring(L, -1));
  }
  text_free(&chunk);
  return ok;
}

static bool add_pieces(text *out) {
  lua_State *L = luaL_newstate();
  luaL_openlibs(L);
  lua_register(L, "piece", piece);
  text primitives = {0}, parts = {0};
  bool ok = true;
  for (int i = 0; ok && i < template_file_count; i++) {
    const template_file *file = &template_files[i];
    if (strncmp(file->path, "prim/", 5) == 0)
      ok = run_template(L, file, &primitives);
    else if (strcmp(file->path, "parts/matrix_descriptor.cuh") == 0 || strcmp(file->path, "parts/e4m3.cuh") == 0)
      ok = run_template(L, file, &parts);
  }
  lua_close(L);
  text_puts(out, "#ifndef QKV_EMU\n#define QKV_EMU_ENTRY(entry)\n");
  text_add(out, primitives.bytes, primitives.size);
  text_puts(out, "#endif\n" SM90_PARAMS);
  text_add(out, parts.bytes, parts.size);
  text_free(&primitives);
  text_free(&parts);
  return ok;
}

bool source_render(source_id id, text *out) {
  if (!add_pieces(out))
    return false;
  for (int i = 0; i < kernel_file_count; i++)
    if (strcmp(kernel_files[i].path, sources[id].path) == 0)
      text_add(out, kernel_files[i].bytes, kernel_files[i].size);
  return true;
}
