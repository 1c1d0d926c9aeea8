/* launch.c: from the table that a family's kernel function returns to the manifest, and the read-only table `kernel`.
 *
 * The table may carry a `layout` of the family's own, for its template. The engine appends the fields of the spec's
 * declared parameters, so that all families pass them alike: a scalar by value; a tensor as its base pointer, then
 * stride (i64, elements) and extent (i32) of each dimension. `declared = false` says that the kernel needs none. */
#include <stdio.h>
#include <string.h>

#include "family.h"
#include "lua_read.h"

/* By field_type. */
static const char *const field_ctypes[] = {NULL, "long long", "int", "float", "tensor_map", "qkv_states"};

/* ---- declared parameters ---- */

static void add_field(lua_State *L, int params, const char *name, field_type type, const char *ctype,
                      const char *source) {
  lua_createtable(L, 0, 4);
  lua_pushstring(L, name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, field_type_name(type));
  lua_setfield(L, -2, "type");
  lua_pushstring(L, ctype);
  lua_setfield(L, -2, "ctype");
  lua_pushstring(L, source);
  lua_setfield(L, -2, "source");
  lua_rawseti(L, params, (lua_Integer)lua_rawlen(L, params) + 1);
}

static void add_parameter(lua_State *L, int params, const expr_param *p) {
  static const char *const pointers[] = {"const int *", "const float *", "const unsigned short *",
                                         "const unsigned short *", "const unsigned char *"}; /* by param_type */
  char source[128], name[128];
  snprintf(source, sizeof source, "param.%s", p->name);
  if (p->rank == 0) {
    bool integer = p->type == PARAM_I32 || p->type == PARAM_BOOL;
    field_type type = integer ? FIELD_I32 : FIELD_F32;
    add_field(L, params, p->name, type, field_ctypes[type], source);
    return;
  }
  add_field(L, params, p->name, FIELD_POINTER, pointers[p->type], source);
  for (int d = 0; d < p->rank; d++) {
    snprintf(name, sizeof name, "%s_stride%d", p->name, d);
    snprintf(source, sizeof source, "param.%s.stride.%d", p->name, d);
    add_field(L, params, name, FIELD_I64, field_ctypes[FIELD_I64], source);
  }
  for (int d = 0; d < p->rank; d++) {
    snprintf(name, sizeof name, "%s_extent%d", p->name, d);
    snprintf(source, sizeof source, "param.%s.extent.%d", p->name, d);
    add_field(L, params, name, FIELD_I32, field_ctypes[FIELD_I32], source);
  }
}

/* ---- reading ---- */

/* A rule: {{"len_q", 128}, {"batch"}}; the list is on top and is popped. */
static void read_rule(lua_State *L, const char *where, const char *key, int count, manifest_rule *rule) {
  rule->count = count;
  for (int n = 0; n < count; n++) {
    manifest_factor *factor = &rule->factors[n];
    lua_rawgeti(L, -1, n + 1);
    const char *name = lua_istable(L, -1) && lua_rawgeti(L, -1, 1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    int size = manifest_size_find(name);
    if (size < 0)
      luaL_error(L, "%s: %s[%d] must be {size} or {size, per} with a size like \"len_q\"", where, key, n + 1);
    factor->size = (manifest_size)size;
    factor->per = 1;
    if (lua_rawgeti(L, -2, 2) != LUA_TNIL) {
      factor->per = (int)lua_tointeger(L, -1);
      if (!lua_isinteger(L, -1) || lua_tointeger(L, -1) < 1 || lua_tointeger(L, -1) > 1 << 30)
        luaL_error(L, "%s: %s[%d]: the divisor must be a positive integer", where, key, n + 1);
    }
    lua_pop(L, 3);
  }
  lua_pop(L, 1);
}

static void read_launch(lua_State *L, const char *where, manifest_launch *launch) {
  read_known_keys(L, -1, where,
                  (const char *const[]){"entry", "block", "shared_bytes", "grid", "blocks_per_sm", "cluster", "plans",
                                        "early", NULL});
  read_string(L, -1, where, "entry", launch->entry, sizeof launch->entry, false);
  launch->block = read_int(L, -1, where, "block", 1, 1 << 20);
  launch->shared_bytes = read_int(L, -1, where, "shared_bytes", 0, 1 << 30);
  launch->blocks_per_sm = read_optional_int(L, -1, where, "blocks_per_sm", 0, 64, 0);
  launch->cluster = read_optional_int(L, -1, where, "cluster", 1, MANIFEST_MAX_CLUSTER, 1);
  launch->plans = read_optional_int(L, -1, where, "plans", 0, 1, 0);
  launch->early = read_optional_int(L, -1, where, "early", 0, 1, 0);
  read_rule(L, where, "grid", read_list(L, -1, where, "grid", MANIFEST_MAX_FACTORS), &launch->grid);
}

static void read_region(lua_State *L, const char *where, manifest_region *region) {
  read_known_keys(L, -1, where, (const char *const[]){"name", "bytes", "zeroed", "count", NULL});
  read_string(L, -1, where, "name", region->name, sizeof region->name, false);
  region->bytes = read_int(L, -1, where, "bytes", 1, 1 << 30);
  region->zeroed = read_optional_int(L, -1, where, "zeroed", 0, 2, 0);
  read_rule(L, where, "count", read_list(L, -1, where, "count", MANIFEST_MAX_FACTORS), &region->count);
}

/* Reads one field and completes its ctype. */
static void read_field(lua_State *L, const char *where, manifest_field *field) {
  read_known_keys(L, -1, where, (const char *const[]){"name", "type", "ctype", "source", NULL});
  char type[16], ctype[64];
  read_string(L, -1, where, "name", field->name, sizeof field->name, false);
  read_string(L, -1, where, "type", type, sizeof type, false);
  read_string(L, -1, where, "source", field->source, sizeof field->source, false);
  read_string(L, -1, where, "ctype", ctype, sizeof ctype, true);
  int number = field_type_find(type);
  if (number < 0)
    luaL_error(L, "%s: type must be pointer, i64, i32, f32, tensor_map or states, not '%s'", where, type);
  field->type = (field_type)number;
  if (!*ctype) {
    if (field->type == FIELD_POINTER)
      luaL_error(L, "%s: a pointer needs its ctype", where);
    lua_pushstring(L, field_ctypes[field->type]);
    lua_setfield(L, -2, "ctype");
  }
}

static bool has_region(const manifest *m, const char *name) {
  for (int n = 0; n < m->nregions; n++)
    if (strcmp(m->regions[n].name, name) == 0)
      return true;
  return false;
}

static void check_fields(lua_State *L, const family *f, const manifest *m) {
  for (int n = 0; n < m->nfields; n++) {
    const manifest_field *field = &m->fields[n];
    for (int other = 0; other < n; other++)
      if (strcmp(m->fields[other].name, field->name) == 0)
        host_raise(L, GEN_UNSUPPORTED,
                   "attention.params: the parameter struct of %s has a field '%s' already; rename it", f->name,
                   field->name);
    if (strncmp(field->source, "workspace.", 10) == 0 && !has_region(m, field->source + 10))
      luaL_error(L, "%s: kernel: field '%s' points to '%s', which is no region", f->path, field->name, field->source);
  }
}

typedef void (*read_element)(lua_State *L, const char *where, void *out);

static void launch_element(lua_State *L, const char *where, void *out) {
  read_launch(L, where, out);
}
static void region_element(lua_State *L, const char *where, void *out) {
  read_region(L, where, out);
}
static void field_element(lua_State *L, const char *where, void *out) {
  read_field(L, where, out);
}

/* Reads a list of records at kernel[key]; returns its length. */
static int read_records(lua_State *L, int kernel, const family *f, const char *key, int limit, void *out, size_t size,
                        read_element read) {
  char where[128];
  snprintf(where, sizeof where, "%s: kernel", f->path);
  int count = read_list(L, kernel, where, key, limit);
  for (int n = 0; n < count; n++) {
    snprintf(where, sizeof where, "%s: kernel: %s[%d]", f->path, key, n + 1);
    lua_rawgeti(L, -1, n + 1);
    read(L, where, (char *)out + (size_t)n * size);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return count;
}

/* Replaces the table on top, and all tables in it, by read-only views. */
static void freeze_all(lua_State *L, const char *name) {
  luaL_checkstack(L, 8, name);
  int table = lua_gettop(L);
  for (lua_pushnil(L); lua_next(L, table);) {
    if (lua_istable(L, -1)) {
      freeze_all(L, name);
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, table); /* assigning to an existing key is allowed during a traversal */
    } else {
      lua_pop(L, 1);
    }
  }
  host_freeze(L, name, lua_rawlen(L, table) == 0);
}

void family_push_kernel(lua_State *L, const family *f, const schedule *s, const spec *variant, manifest *out) {
  static const char *const keys[] = {"launches", "params", "regions", "aligned16", "dilation", "declared",
                                     "layout", NULL};
  char where[128];
  snprintf(where, sizeof where, "%s: kernel", f->path);
  lua_rawgeti(L, LUA_REGISTRYINDEX, f->table);
  read_function(L, -1, f->path, "kernel", false);
  lua_remove(L, -2);
  lua_getglobal(L, "variant");
  family_push_schedule(L, f, s);
  lua_getglobal(L, "arch");
  lua_getglobal(L, "request");
  lua_call(L, 4, 1);
  int kernel = lua_gettop(L);
  read_known_keys(L, kernel, where, keys);

  read_list(L, kernel, where, "params", MANIFEST_MAX_FIELDS);
  bool declared = lua_getfield(L, kernel, "declared") == LUA_TNIL || lua_toboolean(L, -1);
  lua_pop(L, 1);
  for (int n = 0; declared && n < variant->nparams; n++)
    add_parameter(L, kernel + 1, &variant->params[n]);
  if (lua_rawlen(L, kernel + 1) > MANIFEST_MAX_FIELDS)
    host_raise(
        L, GEN_UNSUPPORTED,
        "attention.params: with all strides and extents %s has %d fields to pass, the limit is %d; declare fewer "
        "tensors or fewer dimensions",
        f->name, (int)lua_rawlen(L, kernel + 1), MANIFEST_MAX_FIELDS);
  lua_pop(L, 1);

  out->nlaunches = read_records(L, kernel, f, "launches", MANIFEST_MAX_LAUNCHES, out->launches, sizeof out->launches[0],
                                launch_element);
  if (out->nlaunches == 0)
    luaL_error(L, "%s: launches is empty", where);
  out->nregions =
      read_records(L, kernel, f, "regions", MANIFEST_MAX_REGIONS, out->regions, sizeof out->regions[0], region_element);
  out->nfields =
      read_records(L, kernel, f, "params", MANIFEST_MAX_FIELDS, out->fields, sizeof out->fields[0], field_element);
  out->aligned16 = read_bool(L, kernel, where, "aligned16");
  read_string(L, kernel, where, "dilation", out->dilation, sizeof out->dilation, true);
  check_fields(L, f, out);
  manifest_place_fields(out);
  freeze_all(L, "kernel");
}
