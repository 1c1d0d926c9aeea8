/* space.c: see space.h. First the points of all products, then what of them is different and legal, then estimates. */
#include "space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua_read.h"

void space_free(space *s) {
  free(s->items);
  free(s->points);
  *s = (space){0};
}

/* Room for one more of `size` bytes; throws. */
static void *reserve(lua_State *L, void *items, int count, int *capacity, size_t size) {
  if (count < *capacity)
    return items;
  int more = *capacity ? 2 * *capacity : 64;
  void *moved = realloc(items, (size_t)more * size);
  if (!moved)
    host_raise(L, GEN_NO_MEMORY, "out of memory");
  *capacity = more;
  return moved;
}

static void add_point(lua_State *L, const family *f, const schedule *s, space *out) {
  if (out->npoints == SPACE_MAX_POINTS)
    luaL_error(L, "%s: space: more than %d schedules", f->path, SPACE_MAX_POINTS);
  out->points = reserve(L, out->points, out->npoints, &out->point_capacity, sizeof *s);
  out->points[out->npoints++] = *s;
}

/* ---- products ---- */

/* Values to try, by axis. */
typedef struct product {
  int count[FAMILY_MAX_AXES];
  int values[FAMILY_MAX_AXES][32];
} product;

static void add_product(lua_State *L, const family *f, const product *p, space *out) {
  int at[FAMILY_MAX_AXES] = {0}, axis;
  schedule s;
  do {
    for (axis = 0; axis < f->naxes; axis++)
      s.values[axis] = p->values[axis][at[axis]];
    add_point(L, f, &s, out);
    for (axis = f->naxes - 1; axis >= 0 && ++at[axis] == p->count[axis]; axis--)
      at[axis] = 0;
  } while (axis >= 0);
}

/* The values of one axis from the list on top, which is popped. */
static void read_values(lua_State *L, const family *f, int axis, product *p) {
  const gen_axis *a = &f->axes[axis];
  if (!lua_istable(L, -1))
    luaL_error(L, "%s: space: %s must be a list of values", f->path, a->name);
  p->count[axis] = 0;
  int length = (int)lua_rawlen(L, -1);
  for (int n = 1; n <= length; n++) {
    int listed = 0;
    lua_rawgeti(L, -1, n);
    while (listed < a->nvalues && !(lua_isinteger(L, -1) && lua_tointeger(L, -1) == a->values[listed]))
      listed++;
    if (listed == a->nvalues)
      luaL_error(L, "%s: space: %s[%d] is not among the axis' values", f->path, a->name, n);
    int value = a->values[listed], have = 0;
    while (have < p->count[axis] && p->values[axis][have] != value)
      have++;
    p->values[axis][have] = value;
    p->count[axis] += have == p->count[axis];
    lua_pop(L, 1);
  }
  if (p->count[axis] == 0)
    luaL_error(L, "%s: space: %s is empty", f->path, a->name);
  lua_pop(L, 1);
}

/* All of the default's values, and no others. */
static product product_of_default(const family *f, const schedule *standard) {
  product p;
  for (int axis = 0; axis < f->naxes; axis++) {
    p.count[axis] = 1;
    p.values[axis][0] = standard->values[axis];
  }
  return p;
}

static void fix(const family *f, const schedule_fixed *fixed, product *p) {
  for (int axis = 0; axis < f->naxes; axis++)
    if (fixed->set[axis]) {
      p->count[axis] = 1;
      p->values[axis][0] = fixed->values[axis];
    }
}

/* The products of one effort. */
static void add_effort(lua_State *L, const family *f, const schedule *standard, const schedule_fixed *fixed, int effort,
                       space *out) {
  const char *names[FAMILY_MAX_AXES + 1] = {NULL};
  for (int axis = 0; axis < f->naxes; axis++)
    names[axis] = f->axes[axis].name;
  family_push_space(L, f, effort);
  int count = (int)lua_rawlen(L, -1);
  for (int n = 1; n <= count; n++) {
    product p = product_of_default(f, standard);
    char where[128];
    snprintf(where, sizeof where, "%s: space[%d]", f->path, n);
    if (lua_rawgeti(L, -1, n) != LUA_TTABLE)
      luaL_error(L, "%s must be a table", where);
    read_known_keys(L, -1, where, names);
    for (int axis = 0; axis < f->naxes; axis++)
      if (lua_getfield(L, -1, f->axes[axis].name) == LUA_TNIL)
        lua_pop(L, 1);
      else
        read_values(L, f, axis, &p);
    lua_pop(L, 1);
    fix(f, fixed, &p);
    add_product(L, f, &p, out);
  }
  lua_pop(L, 1);
}

static void add_all_axes(lua_State *L, const family *f, const schedule_fixed *fixed, space *out) {
  product p;
  double points = 1;
  for (int axis = 0; axis < f->naxes; axis++) {
    p.count[axis] = f->axes[axis].nvalues;
    memcpy(p.values[axis], f->axes[axis].values, sizeof p.values[axis]);
  }
  fix(f, fixed, &p);
  for (int axis = 0; axis < f->naxes; axis++)
    points *= p.count[axis];
  if (points > SPACE_MAX_POINTS)
    luaL_error(L, "%s: the axes have %.3g schedules: a function 'space' must say which are worth trying", f->path,
               points);
  add_product(L, f, &p, out);
}

/* ---- candidates ---- */

static int compare_points(const void *a, const void *b) {
  const schedule *x = a, *y = b;
  for (int axis = 0; axis < FAMILY_MAX_AXES; axis++)
    if (x->values[axis] != y->values[axis])
      return x->values[axis] < y->values[axis] ? -1 : 1;
  return 0;
}

static void add_candidate(lua_State *L, const family *f, const arch *a, const schedule *s, const gen_device *device,
                          bool is_default, space *out) {
  cost_counts counts;
  out->items = reserve(L, out->items, out->count, &out->capacity, sizeof *out->items);
  gen_candidate *c = &out->items[out->count++];
  *c = (gen_candidate){.is_default = is_default};
  strcpy(c->family, f->name);
  family_print_schedule(L, f, s, c->schedule);
  if (family_cost(L, f, s, &counts))
    c->estimate = cost_estimate(&counts, a, device);
}

bool space_add_family(lua_State *L, const family *f, const schedule_wish *wish, const gen_device *device, int effort,
                      space *out, gen_schedule *info) {
  schedule_fixed fixed;
  schedule standard = {{0}};
  gen_resources ignored;
  schedule_read_fixed(L, f, wish, &fixed);
  schedule_resolve(L, f, wish, &standard, info);
  if (!info->legal)
    return false;
  out->npoints = 0;
  if (family_has_space(L, f))
    for (int e = 0; e <= effort; e++)
      add_effort(L, f, &standard, &fixed, e, out);
  else
    add_all_axes(L, f, &fixed, out);
  for (int n = 0; n < out->npoints; n++) /* axes that the family has not, so that whole schedules compare */
    memset(out->points[n].values + f->naxes, 0, (size_t)(FAMILY_MAX_AXES - f->naxes) * sizeof(int));
  memset(standard.values + f->naxes, 0, (size_t)(FAMILY_MAX_AXES - f->naxes) * sizeof(int));
  if (out->npoints) /* no room is held for none, and qsort takes no null */
    qsort(out->points, (size_t)out->npoints, sizeof *out->points, compare_points);
  add_candidate(L, f, wish->arch, &standard, device, true, out);
  for (int n = 0; n < out->npoints; n++) {
    const schedule *s = &out->points[n];
    if ((n > 0 && compare_points(s, s - 1) == 0) || compare_points(s, &standard) == 0)
      continue;
    if (schedule_is_legal(L, f, wish->arch, s, &ignored))
      add_candidate(L, f, wish->arch, s, device, false, out);
  }
  return true;
}

static int compare_candidates(const void *a, const void *b) {
  const gen_candidate *x = a, *y = b;
  if (x->estimate.seconds != y->estimate.seconds)
    return x->estimate.seconds < y->estimate.seconds ? -1 : 1;
  int families = strcmp(x->family, y->family);
  return families ? families : strcmp(x->schedule, y->schedule);
}

void space_sort(space *s, const family *first) {
  int at = 0;
  qsort(s->items, (size_t)s->count, sizeof *s->items, compare_candidates);
  while (at < s->count && !(s->items[at].is_default && strcmp(s->items[at].family, first->name) == 0))
    at++;
  if (at == s->count)
    return;
  gen_candidate c = s->items[at];
  memmove(s->items + 1, s->items, (size_t)at * sizeof *s->items);
  s->items[0] = c;
}
