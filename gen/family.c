/* family.c: loads family files and calls their functions. See family.h; kernel tables are read in launch.c. */
#include "family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua_read.h"
#include "pieces.h"

/* ---- loading ---- */

static void read_phases(lua_State *L, int table, family *f) {
  f->nphases = read_list(L, table, f->path, "phases", FAMILY_MAX_PHASES);
  for (int n = 0; n < f->nphases; n++) {
    const char *phase = lua_rawgeti(L, -1, n + 1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    if (!*phase || strlen(phase) >= sizeof f->phases[n])
      luaL_error(L, "%s: phases[%d] must be a word of at most 15 bytes", f->path, n + 1);
    strcpy(f->phases[n], phase);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

static void read_axis(lua_State *L, const family *f, int number, gen_axis *axis) {
  char where[128];
  snprintf(where, sizeof where, "%s: axes[%d]", f->path, number);
  read_known_keys(L, -1, where, (const char *const[]){"name", "values", "meaning", NULL});
  read_string(L, -1, where, "name", axis->name, sizeof axis->name, false);
  read_string(L, -1, where, "meaning", axis->meaning, sizeof axis->meaning, false);
  int limit = (int)(sizeof axis->values / sizeof axis->values[0]);
  axis->nvalues = read_list(L, -1, where, "values", limit);
  if (axis->nvalues == 0)
    luaL_error(L, "%s: values is empty", where);
  for (int n = 0; n < axis->nvalues; n++) {
    lua_rawgeti(L, -1, n + 1);
    if (!lua_isinteger(L, -1))
      luaL_error(L, "%s: values[%d] must be an integer", where, n + 1);
    axis->values[n] = (int)lua_tointeger(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Reads and checks the table on top, and pops it into the registry. */
static void read_family(lua_State *L, family *f) {
  static const char *const keys[] = {"name",      "summary",  "order",    "min_arch", "max_arch",
                                     "phases",    "supports", "axes",     "defaults", "resources",
                                     "fallbacks", "check",    "describe", "kernel",   "yields",
                                     "space",     "cost",     NULL};
  static const char *const functions[] = {"supports", "defaults", "resources", "kernel",
                                          "describe", "check",    "fallbacks", "yields",
                                          "space",    "cost"};
  int table = lua_gettop(L);
  read_known_keys(L, table, f->path, keys);
  read_string(L, table, f->path, "name", f->name, sizeof f->name, false);
  char expected[sizeof f->path];
  snprintf(expected, sizeof expected, "kernels/%s.lua", f->name);
  if (strcmp(expected, f->path) != 0)
    luaL_error(L, "%s: name '%s' must be the file's name", f->path, f->name);
  read_string(L, table, f->path, "summary", f->summary, sizeof f->summary, false);
  f->order = read_int(L, table, f->path, "order", 0, 1000000);
  f->min_arch = read_int(L, table, f->path, "min_arch", 0, 10000);
  f->max_arch = read_optional_int(L, table, f->path, "max_arch", 0, 10000, 10000);
  for (int n = 0; n < (int)(sizeof functions / sizeof functions[0]); n++)
    if (read_function(L, table, f->path, functions[n], n >= 4))
      lua_pop(L, 1);
  read_phases(L, table, f);
  f->naxes = read_list(L, table, f->path, "axes", FAMILY_MAX_AXES);
  for (int n = 0; n < f->naxes; n++) {
    lua_rawgeti(L, -1, n + 1);
    read_axis(L, f, n + 1, &f->axes[n]);
    for (int other = 0; other < n; other++)
      if (strcmp(f->axes[other].name, f->axes[n].name) == 0)
        luaL_error(L, "%s: two axes are called '%s'", f->path, f->axes[n].name);
    lua_pop(L, 1);
  }
  lua_settop(L, table);
  f->table = luaL_ref(L, LUA_REGISTRYINDEX);
}

static int compare_families(const void *a, const void *b) {
  const family *x = a, *y = b;
  return x->order != y->order ? (x->order > y->order ? 1 : -1) : strcmp(x->name, y->name);
}

void family_load_all(lua_State *L, family_list *list) {
  template_list(L, "kernels/", ".lua");
  int count = (int)lua_rawlen(L, -1);
  if (count > GEN_MAX_FAMILIES)
    luaL_error(L, "kernels/: more than %d families", GEN_MAX_FAMILIES);
  for (list->count = 0; list->count < count; list->count++) {
    family *f = &list->items[list->count];
    lua_rawgeti(L, -1, list->count + 1);
    const char *path = lua_tostring(L, -1);
    if (strlen(path) >= sizeof f->path)
      luaL_error(L, "%s: the name is too long", path);
    strcpy(f->path, path);
    host_run_file(L, path);
    read_family(L, f);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  qsort(list->items, (size_t)count, sizeof *list->items, compare_families);
}

/* ---- calling ---- */

static const char *argument_name(char letter) {
  switch (letter) {
  case 'v':
    return "variant";
  case 'a':
    return "arch";
  case 'e':
    return "effort";
  case 'w':
    return "workload";
  case 'd':
    return "device";
  default:
    return "request";
  }
}

/* Calls function `name` with what `arguments` spells: v variant, s schedule, a arch, r request, e effort, w workload, d
 * device. False (nothing pushed) when the family has no such function. */
static bool call(lua_State *L, const family *f, const char *name, const char *arguments, const schedule *s,
                 int results) {
  luaL_checkstack(L, 10, f->name);
  lua_rawgeti(L, LUA_REGISTRYINDEX, f->table);
  if (!read_function(L, -1, f->path, name, true)) {
    lua_pop(L, 1);
    return false;
  }
  lua_remove(L, -2);
  for (const char *p = arguments; *p; p++) {
    if (*p == 's')
      family_push_schedule(L, f, s);
    else
      lua_getglobal(L, argument_name(*p));
  }
  lua_call(L, (int)strlen(arguments), results);
  return true;
}

/* Pops the pair `true` or `false, reason`. */
static bool read_verdict(lua_State *L, const family *f, const char *function, char reason[256]) {
  reason[0] = 0;
  if (!lua_isboolean(L, -2))
    luaL_error(L, "%s: %s must return true, or false and the reason", f->path, function);
  bool yes = lua_toboolean(L, -2);
  if (!yes) {
    if (lua_type(L, -1) != LUA_TSTRING)
      luaL_error(L, "%s: %s returned false without a reason", f->path, function);
    snprintf(reason, 256, "%s", lua_tostring(L, -1));
  }
  lua_pop(L, 2);
  return yes;
}

bool family_has_phase(const family *f, const char *phase) {
  for (int n = 0; n < f->nphases; n++)
    if (strcmp(f->phases[n], phase) == 0)
      return true;
  return false;
}

bool family_supports(lua_State *L, const family *f, const arch *a, const char *phase, char reason[256]) {
  if (a->number < f->min_arch) {
    snprintf(reason, 256, "needs sm_%d or newer, the target is %s", f->min_arch, a->name);
    return false;
  }
  if (a->number > f->max_arch) {
    snprintf(reason, 256, "needs sm_%d or older, the target is %s", f->max_arch, a->name);
    return false;
  }
  if (!family_has_phase(f, phase)) {
    snprintf(reason, 256, "has no kernel for phase %s", phase);
    return false;
  }
  call(L, f, "supports", "vr", NULL, 2);
  return read_verdict(L, f, "supports", reason);
}

bool family_yields(lua_State *L, const family *f) {
  if (!call(L, f, "yields", "vr", NULL, 1))
    return false;
  bool yes = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return yes;
}

void family_push_schedule(lua_State *L, const family *f, const schedule *s) {
  lua_createtable(L, 0, f->naxes);
  for (int n = 0; n < f->naxes; n++) {
    lua_pushinteger(L, s->values[n]);
    lua_setfield(L, -2, f->axes[n].name);
  }
  host_freeze(L, "schedule", true);
}

void family_print_schedule(lua_State *L, const family *f, const schedule *s, char out[256]) {
  size_t used = 0;
  out[0] = 0;
  for (int n = 0; n < f->naxes; n++) {
    used += (size_t)snprintf(out + used, 256 - used, "%s%s=%d", n ? "," : "", f->axes[n].name, s->values[n]);
    if (used >= 256)
      luaL_error(L, "%s: the schedule's text is longer than 255 bytes", f->path);
  }
}

/* Reads the complete schedule on top and pops it. */
static void read_schedule(lua_State *L, const family *f, const char *function, schedule *out) {
  char where[128];
  const char *names[FAMILY_MAX_AXES + 1] = {NULL};
  snprintf(where, sizeof where, "%s: %s", f->path, function);
  for (int n = 0; n < f->naxes; n++)
    names[n] = f->axes[n].name;
  read_known_keys(L, -1, where, names);
  for (int n = 0; n < f->naxes; n++) {
    const gen_axis *axis = &f->axes[n];
    out->values[n] = read_int(L, -1, where, axis->name, -2147483647, 2147483647);
    bool listed = false;
    for (int v = 0; v < axis->nvalues; v++)
      listed = listed || axis->values[v] == out->values[n];
    if (!listed)
      luaL_error(L, "%s: %s = %d is not among the axis' values", where, axis->name, out->values[n]);
  }
  lua_pop(L, 1);
}

int family_preferred(lua_State *L, const family *f, schedule *out, int limit) {
  call(L, f, "defaults", "var", NULL, 1);
  read_schedule(L, f, "defaults", &out[0]);
  int count = 1;
  if (!call(L, f, "fallbacks", "var", NULL, 1))
    return count;
  luaL_checktype(L, -1, LUA_TTABLE);
  int fallbacks = (int)lua_rawlen(L, -1);
  for (int n = 1; n <= fallbacks && count < limit; n++) {
    lua_rawgeti(L, -1, n);
    read_schedule(L, f, "fallbacks", &out[count++]);
  }
  lua_pop(L, 1);
  return count;
}

void family_resources(lua_State *L, const family *f, const schedule *s, gen_resources *out) {
  static const char *const keys[] = {"shared_bytes", "threads", "registers", "blocks", NULL};
  char where[128];
  snprintf(where, sizeof where, "%s: resources", f->path);
  call(L, f, "resources", "vsa", s, 1);
  read_known_keys(L, -1, where, keys);
  out->shared_bytes = read_int(L, -1, where, "shared_bytes", 0, 1 << 30);
  out->threads = read_int(L, -1, where, "threads", 1, 1 << 20);
  out->registers = read_int(L, -1, where, "registers", 0, 1 << 20);
  out->blocks = read_optional_int(L, -1, where, "blocks", 1, 64, 1);
  lua_pop(L, 1);
}

bool family_check(lua_State *L, const family *f, const schedule *s, char reason[256]) {
  reason[0] = 0;
  return !call(L, f, "check", "vsa", s, 2) || read_verdict(L, f, "check", reason);
}

void family_push_description(lua_State *L, const family *f, const schedule *s) {
  if (!call(L, f, "describe", "vsa", s, 1))
    lua_newtable(L);
  if (!lua_istable(L, -1))
    luaL_error(L, "%s: describe must return a list of lines", f->path);
}

bool family_has_space(lua_State *L, const family *f) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, f->table);
  bool has = read_function(L, -1, f->path, "space", true);
  lua_pop(L, has ? 2 : 1);
  return has;
}

void family_push_space(lua_State *L, const family *f, int effort) {
  lua_pushinteger(L, effort);
  host_set_global(L, "effort");
  call(L, f, "space", "vare", NULL, 1);
  if (!lua_istable(L, -1))
    luaL_error(L, "%s: space must return a list of products", f->path);
}

/* A count of the table on top; absent: `otherwise`. */
static double read_count(lua_State *L, const char *where, const char *key, double otherwise) {
  double value = otherwise;
  if (lua_getfield(L, -1, key) != LUA_TNIL) {
    value = lua_isnumber(L, -1) ? lua_tonumber(L, -1) : -1;
    if (!(value >= 0 && value < 1e300))
      luaL_error(L, "%s.%s must be a number, not negative and finite", where, key);
  }
  lua_pop(L, 1);
  return value;
}

bool family_cost(lua_State *L, const family *f, const schedule *s, cost_counts *out) {
  static const char *const units[COST_UNIT_COUNT] = {[COST_WGMMA] = "wgmma", [COST_MMA] = "mma", [COST_FMA] = "fma"};
  static const char *const keys[] = {"unit",      "flops",    "exponentials", "shared_bytes", "l2_bytes", "memory_bytes",
                                     "in_flight", "overhead", "overlap",      "waves",        "latency",  "fixed",
                                     NULL};
  char where[128], unit[16];
  int found = 0;
  if (!call(L, f, "cost", "vsawd", s, 1))
    return false;
  snprintf(where, sizeof where, "%s: cost", f->path);
  if (!lua_istable(L, -1))
    luaL_error(L, "%s must return a table", where);
  read_known_keys(L, -1, where, keys);
  read_string(L, -1, where, "unit", unit, sizeof unit, false);
  while (found < COST_UNIT_COUNT && strcmp(units[found], unit) != 0)
    found++;
  if (found == COST_UNIT_COUNT)
    luaL_error(L, "%s.unit: '%s' is not wgmma, mma or fma", where, unit);
  *out = (cost_counts){.unit = (cost_unit)found,
                       .flops = read_count(L, where, "flops", 0),
                       .exponentials = read_count(L, where, "exponentials", 0),
                       .shared_bytes = read_count(L, where, "shared_bytes", 0),
                       .l2_bytes = read_count(L, where, "l2_bytes", 0),
                       .memory_bytes = read_count(L, where, "memory_bytes", 0),
                       .in_flight = read_count(L, where, "in_flight", 0),
                       .overhead = read_count(L, where, "overhead", 0),
                       .overlap = read_count(L, where, "overlap", 1),
                       .waves = read_count(L, where, "waves", 1),
                       .latency = read_count(L, where, "latency", 0),
                       .fixed = read_count(L, where, "fixed", 0)};
  lua_pop(L, 1);
  return true;
}
