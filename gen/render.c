/* render.c: loads and runs templates: emit_line, include, piece and the markers. See pieces.h. */
#include "pieces.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "template.h"

enum { MAX_INCLUDE_DEPTH = 32, MAX_OUTPUT = 16 << 20 };

void renderer_init(renderer *r, lua_host *h) {
  *r = (renderer){.host = h, .marker_line = {-1, -1}};
}

void renderer_free(renderer *r) {
  for (int n = 0; n < r->ntemplates; n++) {
    free(r->templates[n].path);
    free(r->templates[n].owned);
  }
  for (int n = 0; n < r->npieces; n++) {
    free(r->pieces[n].name);
    free(r->pieces[n].uses);
    output_free(&r->pieces[n].out);
  }
  free(r->templates);
  free(r->pieces);
  free(r->order);
  output_free(&r->main);
  output_free(&r->assembled);
  text_free(&r->chunk);
  *r = (renderer){0};
}

static renderer *renderer_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}

/* Room for one more element in a growing array. */
static void *grow(lua_State *L, void *array, int count, int *capacity, size_t element) {
  if (count < *capacity)
    return array;
  int larger = *capacity ? 2 * *capacity : 32;
  void *moved = realloc(array, (size_t)larger * element);
  host_check_memory(L, !moved);
  *capacity = larger;
  return moved;
}

/* ---- templates ---- */

static int find_template(const renderer *r, const char *path) {
  for (int n = 0; n < r->ntemplates; n++)
    if (strcmp(r->templates[n].path, path) == 0)
      return n;
  return -1;
}

/* Loads and compiles a template once. Returns its index. */
static int load_template(renderer *r, const char *path) {
  lua_State *L = r->host->L;
  int index = find_template(r, path);
  if (index >= 0)
    return index;
  r->templates = grow(L, r->templates, r->ntemplates, &r->template_capacity, sizeof *r->templates);
  template_source *t = &r->templates[r->ntemplates];
  *t = (template_source){.path = strdup(path)};
  host_check_memory(L, !t->path);
  index = r->ntemplates++;

  gen_error error = {0};
  if (!template_load(r->host->override, path, &t->bytes, &t->size, &t->owned, &error)) {
    if (error.status == GEN_TEMPLATE)
      luaL_error(L, "%s", error.message);
    host_raise(L, error.status, "%s", error.message);
  }
  text_clear(&r->chunk);
  if (!template_translate(path, t->bytes, t->size, &r->chunk, &error))
    host_raise(L, error.status, "%s", error.message);
  host_load(L, path, r->chunk.bytes, r->chunk.size);
  t->function = luaL_ref(L, LUA_REGISTRYINDEX);
  return index;
}

static int emit_line(lua_State *L);

/* Calls a template's chunk with its own emit_line. */
static void run_template(renderer *r, int index) {
  lua_State *L = r->host->L;
  lua_rawgeti(L, LUA_REGISTRYINDEX, r->templates[index].function);
  lua_pushlightuserdata(L, r);
  lua_pushinteger(L, index);
  lua_pushcclosure(L, emit_line, 2);
  lua_call(L, 1, 0);
}

/* Start of a line of a template, NULL past its end. */
static const char *template_line(const template_source *t, int line) {
  const char *p = t->bytes, *end = p + t->size;
  for (; line > 1 && p; line--) {
    p = memchr(p, '\n', (size_t)(end - p));
    if (p)
      p++;
  }
  return p;
}

/* ---- emit_line ---- */

/* The source text of the n-th $(...) of a line, for error messages; pushes it. */
static void push_expression(lua_State *L, const template_source *t, int line, int n) {
  const char *p = template_line(t, line), *end = t->bytes + t->size;
  const char *newline = p ? memchr(p, '\n', (size_t)(end - p)) : NULL;
  if (newline)
    end = newline;
  while (p && (p = memchr(p, '$', (size_t)(end - p)))) {
    const char *close = template_expression_end(p + 2, end);
    if (close && n-- == 0) {
      lua_pushlstring(L, p, (size_t)(close + 1 - p));
      return;
    }
    p = close;
  }
  lua_pushliteral(L, "the value"); /* emit_line was called by hand */
}

/* Refuses a value that $(...) does not print. */
static int refuse_value(lua_State *L, const template_source *t, int line, int argument) {
  push_expression(L, t, line, (argument - 3) / 2);
  const char *expression = lua_tostring(L, -1);
  if (lua_type(L, argument) == LUA_TNUMBER)
    return luaL_error(L, "%s is a float (%s): write f32(...) for a float literal, // for an integer division",
                      expression, luaL_tolstring(L, argument, NULL));
  return luaL_error(L, "%s is %s%s", expression, lua_isnil(L, argument) ? "" : "a ", luaL_typename(L, argument));
}

static void add_indent(text *t, int columns) {
  for (int n = 0; n < columns; n++)
    text_add(t, " ", 1);
}

/* A value may hold several lines; those after the first are indented like the template line. */
static void add_value(renderer *r, const char *value, size_t size, gen_line from, int indent) {
  output *o = r->current;
  const char *end = value + size;
  for (const char *newline; (newline = memchr(value, '\n', (size_t)(end - value))); value = newline + 1) {
    text_add(&o->bytes, value, (size_t)(newline - value));
    output_end_line(o, from);
    add_indent(&o->bytes, indent);
  }
  text_add(&o->bytes, value, (size_t)(end - value));
}

/* emit_line(line, literal, value, literal, ...). Upvalues: renderer, template index. */
static int emit_line(lua_State *L) {
  renderer *r = renderer_of(L);
  int index = (int)lua_tointeger(L, lua_upvalueindex(2)), line = (int)lua_tointeger(L, 1), count = lua_gettop(L);
  const template_source *t = &r->templates[index];
  gen_line from = {index, line};
  size_t size;
  const char *first = lua_tolstring(L, 2, &size);
  if (!r->current) {
    if (!first || strspn(first, " \t") == size)
      return 0; /* blank lines between pieces */
    return luaL_error(L, "text outside of a piece");
  }
  text *bytes = &r->current->bytes;
  if (bytes->size > MAX_OUTPUT)
    return luaL_error(L, "more than %d MiB of output", MAX_OUTPUT >> 20);
  int indent = r->indent;
  if (first)
    indent += (int)strspn(first, " ");
  add_indent(bytes, r->indent);
  for (int n = 2; n <= count; n++) {
    if (n % 2 == 1) {
      if (lua_isboolean(L, n))
        lua_pushstring(L, lua_toboolean(L, n) ? "true" : "false");
      else if (lua_isinteger(L, n) || lua_type(L, n) == LUA_TSTRING)
        lua_pushvalue(L, n);
      else
        return refuse_value(L, t, line, n);
      const char *value = lua_tolstring(L, -1, &size);
      if (memchr(value, 0, size))
        return luaL_error(L, "a value holds a zero byte");
      add_value(r, value, size, from, indent);
      lua_pop(L, 1);
    } else {
      const char *literal = luaL_checklstring(L, n, &size);
      luaL_argcheck(L, !memchr(literal, 0, size) && !memchr(literal, '\n', size), n, "a line of text expected");
      text_add(bytes, literal, size);
    }
  }
  output_end_line(r->current, from);
  host_check_memory(L, bytes->failed);
  return 0;
}

/* ---- functions of templates ---- */

/* Where the running template called from: index (-1: not a template), line, and the column of its `//%`. */
static gen_line calling_place(renderer *r, lua_State *L, int *column) {
  gen_line place = {-1, 0};
  lua_Debug frame;
  *column = 0;
  if (!lua_getstack(L, 1, &frame))
    return place;
  lua_getinfo(L, "Sl", &frame);
  if (*frame.source == '@')
    place.template_index = find_template(r, frame.source + 1);
  place.line = frame.currentline;
  if (place.template_index >= 0 && place.line > 0) {
    const char *p = template_line(&r->templates[place.template_index], place.line);
    *column = p ? (int)strspn(p, " ") : 0;
  }
  return place;
}

/* include(path): another template at this place, indented like the including line. */
static int include(lua_State *L) {
  renderer *r = renderer_of(L);
  const char *path = luaL_checkstring(L, 1);
  int column;
  calling_place(r, L, &column);
  if (r->depth >= MAX_INCLUDE_DEPTH)
    return luaL_error(L, "includes are nested more than %d deep", MAX_INCLUDE_DEPTH);
  int index = load_template(r, path);
  r->indent += column;
  r->depth++;
  run_template(r, index);
  r->depth--;
  r->indent -= column;
  return 0;
}

static bool is_identifier(const char *name) {
  size_t word = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
  return *name && name[word] == 0 && !(*name >= '0' && *name <= '9');
}

/* piece(name, function): see pieces.h. */
static int define_piece(lua_State *L) {
  renderer *r = renderer_of(L);
  const char *name = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  if (!is_identifier(name))
    return luaL_error(L, "piece '%s': the name must be the identifier that the piece defines", name);
  if (r->finishing)
    return luaL_error(L, "piece '%s' is defined while a piece renders", name);
  int column;
  gen_line place = calling_place(r, L, &column);
  if (place.template_index < 0)
    return luaL_error(L, "piece '%s' is not defined in a template", name);
  r->pieces = grow(L, r->pieces, r->npieces, &r->piece_capacity, sizeof *r->pieces);
  piece *p = &r->pieces[r->npieces];
  *p = (piece){.name = strdup(name), .template_index = place.template_index, .line = place.line};
  host_check_memory(L, !p->name);
  r->npieces++;
  p->primitive = strncmp(r->templates[place.template_index].path, "prim/", 5) == 0;
  p->function = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

/* primitives(), pieces(). Upvalue 2: which. */
static int place_marker(lua_State *L) {
  renderer *r = renderer_of(L);
  int marker = (int)lua_tointeger(L, lua_upvalueindex(2));
  if (r->current != &r->main)
    return luaL_error(L, "a place for pieces inside a piece");
  if (r->marker_line[marker] >= 0)
    return luaL_error(L, "a second place for the same pieces");
  r->marker_line[marker] = r->main.nlines;
  return 0;
}

static void bind(renderer *r, const char *name, lua_CFunction function, int number) {
  lua_State *L = r->host->L;
  lua_pushlightuserdata(L, r);
  lua_pushinteger(L, number);
  lua_pushcclosure(L, function, 2);
  host_set_global(L, name);
}

void renderer_bind(renderer *r) {
  bind(r, "include", include, 0);
  bind(r, "piece", define_piece, 0);
  bind(r, "primitives", place_marker, MARKER_PRIMITIVES);
  bind(r, "pieces", place_marker, MARKER_PIECES);
}

/* ---- running ---- */

static bool has_form(const char *path, const char *folder, const char *suffix) {
  size_t n = strlen(path), m = strlen(folder), s = strlen(suffix);
  return n > m + s && strncmp(path, folder, m) == 0 && strchr(path + m, '/') == NULL &&
         strcmp(path + n - s, suffix) == 0;
}

/* Closes the folder with its Lua value, so that an error leaks nothing. */
static int close_folder(lua_State *L) {
  DIR **folder = lua_touserdata(L, 1);
  if (*folder)
    closedir(*folder);
  *folder = NULL;
  return 0;
}

/* Adds the override directory's names as keys of the table at `set`. */
static void list_override(lua_State *L, const char *override, const char *folder, const char *suffix, int set) {
  DIR **directory = lua_newuserdatauv(L, sizeof *directory, 0);
  *directory = NULL;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, close_folder);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  const char *full = lua_pushfstring(L, "%s/%s", override, folder);
  *directory = opendir(full);
  if (!*directory && (errno != ENOENT || access(override, R_OK | X_OK) != 0)) /* a subfolder may be missing */
    host_raise(L, GEN_IO, "cannot read template folder %s: %s", full, strerror(errno));
  for (struct dirent *entry; *directory && (entry = readdir(*directory));) {
    if (entry->d_name[0] == '.')
      continue;
    const char *path = lua_pushfstring(L, "%s%s", folder, entry->d_name);
    if (has_form(path, folder, suffix)) {
      lua_pushboolean(L, 1);
      lua_rawset(L, set);
    } else {
      lua_pop(L, 1);
    }
  }
  if (*directory)
    closedir(*directory);
  *directory = NULL;
  lua_pop(L, 2);
}

void template_list(lua_State *L, const char *folder, const char *suffix) {
  lua_host *h = host_of(L);
  lua_newtable(L);
  int set = lua_gettop(L);
  for (int n = 0; n < template_file_count; n++) {
    if (has_form(template_files[n].path, folder, suffix)) {
      lua_pushboolean(L, 1);
      lua_setfield(L, set, template_files[n].path);
    }
  }
  if (h->override)
    list_override(L, h->override, folder, suffix, set);
  lua_newtable(L);
  lua_Integer count = 0;
  for (lua_pushnil(L); lua_next(L, set); lua_pop(L, 1)) {
    lua_pushvalue(L, -2);
    lua_rawseti(L, set + 1, ++count);
  }
  lua_remove(L, set);
  lua_getglobal(L, "table");
  lua_getfield(L, -1, "sort");
  lua_pushvalue(L, -3);
  lua_call(L, 1, 0);
  lua_pop(L, 1);
}

static void load_folder(renderer *r, const char *folder) {
  lua_State *L = r->host->L;
  template_list(L, folder, ".cuh");
  lua_Integer count = luaL_len(L, -1);
  for (lua_Integer n = 1; n <= count; n++) {
    lua_rawgeti(L, -1, n);
    run_template(r, load_template(r, lua_tostring(L, -1)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

void renderer_load_pieces(renderer *r) {
  r->current = NULL;
  load_folder(r, "prim/");
  load_folder(r, "parts/");
}

void renderer_run(renderer *r, const char *path) {
  r->current = &r->main;
  r->indent = 0;
  r->kernel_template = load_template(r, path);
  run_template(r, r->kernel_template);
}

void renderer_add_line(renderer *r, const char *line) {
  if (!r->current)
    luaL_error(r->host->L, "text outside of a piece");
  add_indent(&r->current->bytes, r->indent);
  output_add_line(r->current, (gen_line){0, 0}, line);
}
