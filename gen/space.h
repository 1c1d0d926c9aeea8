/* space.h: the schedules of a family that are worth trying.
 *
 * A family says which by its function `space`: a list of partial products, tables from axes to lists of values, for an
 * effort; an axis that a product leaves out stays as the default has it. What a higher effort adds comes on top of the
 * lower ones'. Without that function it is the product of all axes. Kept is what agrees with the spec's own schedule
 * and the request's, and is legal on the target. */
#ifndef GEN_SPACE_H
#define GEN_SPACE_H

#include "schedule.h"

enum { SPACE_EFFORTS = 3, SPACE_MAX_POINTS = 200000 };

/* Grows as families are added; zero-initialised, freed with space_free by whoever owns it: functions below throw. */
typedef struct space {
  int count, capacity;
  gen_candidate *items;
  int npoints, point_capacity; /* of the family at hand, before legality */
  schedule *points;
} space;

/* Adds the candidates of a family, its default among them, with estimates where the globals of space_define and the
 * family's function `cost` give some (else zeros). Adds nothing and says false when no default of it is legal; `info`
 * says why. */
bool space_add_family(lua_State *L, const family *f, const schedule_wish *wish, const gen_device *device, int effort,
                      space *out, gen_schedule *info);
/* Fewest expected seconds first, then by family and schedule; before them the default of `first`. */
void space_sort(space *s, const family *first);
void space_free(space *s);

#endif
