/* schedule.c: see schedule.h. Wishes are parsed into one value per axis; legality is the target's limits and the
 * family's own rule. */
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "diag.h"

enum { MAX_PREFERRED = 16, MAX_REGISTERS = 255 };

/* ---- wishes ---- */

static int find_axis(const family *f, const char *name) {
  for (int n = 0; n < f->naxes; n++)
    if (strcmp(f->axes[n].name, name) == 0)
      return n;
  return -1;
}

static _Noreturn void refuse_axis(lua_State *L, const family *f, const char *name) {
  const char *names[FAMILY_MAX_AXES];
  char list[512] = "it has none";
  size_t used = 0;
  for (int n = 0; n < f->naxes; n++) {
    names[n] = f->axes[n].name;
    if (used < sizeof list)
      used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", n ? ", " : "its axes: ", names[n]);
  }
  const char *near = diag_nearest(name, names, f->naxes);
  if (near)
    host_raise(L, GEN_BAD_SCHEDULE, "schedule: %s has no axis '%s' (%s); did you mean '%s'?", f->name, name, list,
               near);
  host_raise(L, GEN_BAD_SCHEDULE, "schedule: %s has no axis '%s' (%s)", f->name, name, list);
}

static void set_override(lua_State *L, const family *f, int axis, const char *value, schedule_fixed *o) {
  const gen_axis *a = &f->axes[axis];
  char list[256] = "";
  size_t used = 0;
  for (int n = 0; n < a->nvalues; n++) {
    char digits[16];
    snprintf(digits, sizeof digits, "%d", a->values[n]);
    if (strcmp(digits, value) == 0) {
      o->set[axis] = true;
      o->values[axis] = a->values[n];
      return;
    }
    if (used < sizeof list)
      used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", n ? ", " : "", digits);
  }
  host_raise(L, GEN_BAD_SCHEDULE, "schedule: %s = %s is not among the values of %s: %s", a->name, value, f->name, list);
}

static bool known_elsewhere(const family_list *list, const char *name) {
  for (int n = 0; n < list->count; n++)
    if (find_axis(&list->items[n], name) >= 0)
      return true;
  return false;
}

/* The spec's section serves every family that the spec reaches, so an axis of another family is no error here. */
static void read_spec_schedule(lua_State *L, const family *f, const schedule_wish *wish, schedule_fixed *o) {
  for (int n = 0; n < wish->spec->nschedule; n++) {
    const spec_schedule_field *field = &wish->spec->schedule[n];
    int axis = find_axis(f, field->name);
    if (axis < 0 && !known_elsewhere(wish->families, field->name))
      refuse_axis(L, f, field->name);
    if (axis >= 0 && (!field->phase || strcmp(field->phase, wish->phase) == 0))
      set_override(L, f, axis, field->value, o);
  }
}

/* Copies [begin, end) without surrounding blanks. */
static void copy_trimmed(char *out, size_t size, const char *begin, const char *end) {
  while (begin < end && *begin == ' ')
    begin++;
  while (end > begin && end[-1] == ' ')
    end--;
  size_t length = (size_t)(end - begin) < size - 1 ? (size_t)(end - begin) : size - 1;
  memcpy(out, begin, length);
  out[length] = 0;
}

static void read_request_schedule(lua_State *L, const family *f, const char *words, schedule_fixed *o) {
  bool seen[FAMILY_MAX_AXES] = {false};
  for (const char *p = words; p && *p;) {
    char name[MANIFEST_NAME], value[MANIFEST_NAME];
    const char *comma = strchr(p, ','), *end = comma ? comma : p + strlen(p),
               *equals = memchr(p, '=', (size_t)(end - p));
    if (!equals)
      host_raise(L, GEN_BAD_SCHEDULE, "schedule: '%.*s' is not of the form axis=value", (int)(end - p), p);
    copy_trimmed(name, sizeof name, p, equals);
    copy_trimmed(value, sizeof value, equals + 1, end);
    int axis = find_axis(f, name);
    if (axis < 0)
      refuse_axis(L, f, name);
    if (seen[axis])
      host_raise(L, GEN_BAD_SCHEDULE, "schedule: %s is given twice", name);
    seen[axis] = true;
    set_override(L, f, axis, value, o);
    p = comma ? comma + 1 : end;
  }
}

/* ---- legality ---- */

/* Names the axes of which a smaller value needs less: "; lower tile_n or stages". `amount` picks what is measured. */
static void add_way_out(lua_State *L, const family *f, const schedule *s, int64_t (*amount)(const gen_resources *),
                        int64_t need, char reason[256]) {
  int found = 0;
  for (int n = 0; n < f->naxes; n++) {
    bool has_smaller = false;
    schedule smaller = *s;
    for (int v = 0; v < f->axes[n].nvalues; v++) {
      int value = f->axes[n].values[v];
      if (value < s->values[n] && (!has_smaller || value > smaller.values[n])) {
        smaller.values[n] = value;
        has_smaller = true;
      }
    }
    gen_resources r;
    if (!has_smaller)
      continue;
    family_resources(L, f, &smaller, &r);
    size_t used = strlen(reason);
    if (amount(&r) < need)
      snprintf(reason + used, 256 - used, "%s%s", found++ ? " or " : "; lower ", f->axes[n].name);
  }
}

static int64_t shared_amount(const gen_resources *r) {
  return r->shared_bytes;
}
static int64_t thread_amount(const gen_resources *r) {
  return r->threads;
}
static int64_t register_amount(const gen_resources *r) {
  return r->registers;
}
/* Per SM, for all blocks it must hold. Every block also takes 1 KiB of shared memory for the system. */
static int64_t shared_per_sm_amount(const gen_resources *r) {
  return r->blocks * (r->shared_bytes + 1024);
}
static int64_t threads_per_sm_amount(const gen_resources *r) {
  return (int64_t)r->blocks * r->threads;
}
static int64_t registers_per_sm_amount(const gen_resources *r) {
  return (int64_t)r->blocks * r->registers * r->threads;
}

/* The target's limits. */
typedef struct limit_rule {
  const char *what;
  int64_t (*amount)(const gen_resources *);
  int64_t limit;
  const char *unit;
} limit_rule;

enum { LIMIT_RULES = 6 };

static void limit_rules(const arch *a, limit_rule rules[LIMIT_RULES]) {
  const limit_rule all[LIMIT_RULES] = {{"shared memory", shared_amount, a->shared_per_block, " bytes"},
                                       {"threads", thread_amount, a->threads_per_block, ""},
                                       {"registers", register_amount, MAX_REGISTERS, " per thread"},
                                       {"shared memory", shared_per_sm_amount, a->shared_per_sm, " bytes per SM"},
                                       {"threads", threads_per_sm_amount, a->threads_per_sm, " per SM"},
                                       {"registers", registers_per_sm_amount, a->registers_per_sm, " per SM"}};
  memcpy(rules, all, sizeof all);
}

/* The first limit that the resources break; LIMIT_RULES: none. */
static int broken_rule(const limit_rule rules[LIMIT_RULES], const gen_resources *r) {
  int n = 0;
  while (n < LIMIT_RULES && rules[n].amount(r) <= rules[n].limit)
    n++;
  return n;
}

bool schedule_is_legal(lua_State *L, const family *f, const arch *a, const schedule *s, gen_resources *resources) {
  limit_rule rules[LIMIT_RULES];
  char reason[256];
  if (!family_check(L, f, s, reason))
    return false;
  limit_rules(a, rules);
  family_resources(L, f, s, resources);
  return broken_rule(rules, resources) == LIMIT_RULES;
}

/* Fills resources, legal and reason. */
static void check_schedule(lua_State *L, const family *f, const arch *a, const schedule *s, gen_schedule *info) {
  limit_rule rules[LIMIT_RULES];
  info->reason[0] = 0;
  info->legal = family_check(L, f, s, info->reason);
  if (!info->legal)
    return;
  limit_rules(a, rules);
  family_resources(L, f, s, &info->resources);
  int broken = broken_rule(rules, &info->resources);
  if (broken == LIMIT_RULES)
    return;
  const limit_rule *rule = &rules[broken];
  int64_t need = rule->amount(&info->resources);
  info->legal = false;
  snprintf(info->reason, sizeof info->reason, "%s: needs %lld%s, %s allows %lld", rule->what, (long long)need,
           rule->unit, a->name, (long long)rule->limit);
  add_way_out(L, f, s, rule->amount, need, info->reason);
}

void schedule_read_fixed(lua_State *L, const family *f, const schedule_wish *wish, schedule_fixed *out) {
  *out = (schedule_fixed){0};
  read_spec_schedule(L, f, wish, out);
  read_request_schedule(L, f, wish->text, out);
}

void schedule_resolve(lua_State *L, const family *f, const schedule_wish *wish, schedule *out, gen_schedule *info) {
  schedule_fixed fixed;
  schedule_read_fixed(L, f, wish, &fixed);
  schedule preferred[MAX_PREFERRED];
  int count = family_preferred(L, f, preferred, MAX_PREFERRED);
  for (int n = 0; n < count; n++) {
    gen_schedule attempt = {0};
    for (int axis = 0; axis < f->naxes; axis++)
      if (fixed.set[axis])
        preferred[n].values[axis] = fixed.values[axis];
    check_schedule(L, f, wish->arch, &preferred[n], &attempt);
    if (n == 0 || attempt.legal) {
      *out = preferred[n];
      *info = attempt;
      family_print_schedule(L, f, out, info->text);
    }
    if (attempt.legal)
      return;
  }
}
