/* family.h: kernel families: the Lua tables of templates/kernels/NAME.lua as C sees them.
 *
 * All functions throw and run inside host_run; errors name the family's file. Family functions receive the read-only
 * tables variant, schedule, arch and request (docs/template-guide.md has the table's fields). */
#ifndef GEN_FAMILY_H
#define GEN_FAMILY_H

#include "gen.h"
#include "lua_host.h"

enum { FAMILY_MAX_AXES = 32, FAMILY_MAX_PHASES = 8 };

typedef struct family {
  char name[MANIFEST_NAME]; /* also of its files kernels/NAME.lua and kernels/NAME.cu */
  char path[MANIFEST_NAME + 16];
  char summary[256];
  int order; /* dispatch asks families in ascending order */
  int min_arch, max_arch; /* inclusive */
  int nphases;
  char phases[FAMILY_MAX_PHASES][16];
  int naxes;
  gen_axis axes[FAMILY_MAX_AXES];
  int table; /* registry reference */
} family;

typedef struct family_list {
  int count;
  family items[GEN_MAX_FAMILIES];
} family_list;

/* A value for each axis, in the family's order. */
typedef struct schedule {
  int values[FAMILY_MAX_AXES];
} schedule;

/* Loads every kernels/NAME.lua, sorted by order, then name. */
void family_load_all(lua_State *L, family_list *list);
bool family_has_phase(const family *f, const char *phase);
/* Whether the family can do the variant on the target in the phase; else `reason` names what is in the way. */
bool family_supports(lua_State *L, const family *f, const arch *a, const char *phase, char reason[256]);
/* Whether it lets a later family that can do the variant go first. */
bool family_yields(lua_State *L, const family *f);

/* Pushes the schedule as a read-only table. */
void family_push_schedule(lua_State *L, const family *f, const schedule *s);
/* "tile_m=128,stages=2" in axis order. */
void family_print_schedule(lua_State *L, const family *f, const schedule *s, char out[256]);
/* The family's own schedules in order of preference: its defaults, then its fallbacks. Returns how many; at most
 * `limit`. */
int family_preferred(lua_State *L, const family *f, schedule *out, int limit);
void family_resources(lua_State *L, const family *f, const schedule *s, gen_resources *out);
/* The family's own legality rule, if it has one. */
bool family_check(lua_State *L, const family *f, const schedule *s, char reason[256]);
/* Whether the family says which schedules are worth trying; pushes its list of products for an effort. */
bool family_has_space(lua_State *L, const family *f);
void family_push_space(lua_State *L, const family *f, int effort);
/* What a schedule makes the device do for the globals workload and device; false: the family does not tell. */
bool family_cost(lua_State *L, const family *f, const schedule *s, cost_counts *out);
/* Pushes the list of comment lines that describe the kernel. */
void family_push_description(lua_State *L, const family *f, const schedule *s);
/* Calls the family's kernel function, adds the fields of the spec's parameters, fills launches, fields, params_size,
 * regions and aligned16 of the manifest, and leaves the read-only kernel table on the stack. */
void family_push_kernel(lua_State *L, const family *f, const schedule *s, const spec *variant, manifest *out);

#endif
