/* schedule.h: which schedule a kernel gets, and whether it is legal. */
#ifndef GEN_SCHEDULE_H
#define GEN_SCHEDULE_H

#include "family.h"

/* What decides: the family's defaults and fallbacks < the spec's schedule section < the request's text. */
typedef struct schedule_wish {
  const spec *spec;
  const arch *arch;
  const char *phase;
  const char *text;            /* "tile_m=128,stages=2" or NULL */
  const family_list *families; /* to tell an axis of another family from a typing error */
} schedule_wish;

/* The axes that a wish fixes, and to what. */
typedef struct schedule_fixed {
  bool set[FAMILY_MAX_AXES];
  int values[FAMILY_MAX_AXES];
} schedule_fixed;

/* Throws GEN_BAD_SCHEDULE like schedule_resolve. */
void schedule_read_fixed(lua_State *L, const family *f, const schedule_wish *wish, schedule_fixed *out);
/* Whether a schedule keeps the family's own rule and the target's limits. Fills resources unless the former forbids. */
bool schedule_is_legal(lua_State *L, const family *f, const arch *a, const schedule *s, gen_resources *resources);

/* The first of the family's preferred schedules, with the wishes applied, that is legal; when none is, the first one,
 * with info->legal false and the reason. Throws GEN_BAD_SCHEDULE for unknown axes and values outside an axis' list. */
void schedule_resolve(lua_State *L, const family *f, const schedule_wish *wish, schedule *out, gen_schedule *info);

#endif
