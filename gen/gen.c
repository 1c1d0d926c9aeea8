/* gen.c: the entry points of the generator. Each opens a Lua state, runs its work protected, and closes everything. */
#include "gen.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "family.h"
#include "lua_bind.h"
#include "pieces.h"
#include "schedule.h"
#include "space.h"
#include "variant.h"
#include "visits.h"

/* Everything one call needs; heap-allocated, so that it survives whatever is thrown. */
typedef struct generation {
  gen_request request; /* defaults filled in */
  bool any_phase;      /* the user named none */
  const spec *spec;
  arena *memory;
  lua_host host;
  binding bound;
  renderer render;
  family_list families;
  const family *chosen;
  schedule schedule;
  gen_schedule info;
  text canonical;
  gen_kernel *kernel; /* under construction */
  /* Results of the smaller questions. */
  gen_choice *choices;
  int *count;
  gen_axis *axes;
  visits visits;
  const gen_device *device;
  int effort;
  space space;
} generation;

/* ---- opening and closing ---- */

static void close_generation(generation *g) {
  if (g->request.reads)
    *g->request.reads |= g->bound.reads;
  host_close(&g->host);
  renderer_free(&g->render);
  text_free(&g->bound.scratch);
  text_free(&g->canonical);
  arena_free(g->memory);
  gen_kernel_free(g->kernel);
  space_free(&g->space);
  free(g);
}

static gen_status analyse(generation *g, gen_error *error) {
  g->memory = arena_new();
  if (!g->memory || !ARENA_TRY(g->memory))
    return gen_fail(error, GEN_NO_MEMORY, "out of memory");
  binding_analyse(&g->bound, g->memory);
  return GEN_OK;
}

/* Runs `work` in a fresh state. Numbers are printed and read in the C locale whatever the process has set. */
static gen_status run(generation *g, lua_CFunction work, gen_error *error) {
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!plain)
    return gen_fail(error, GEN_NO_MEMORY, "out of memory");
  locale_t before = uselocale(plain);
  gen_status status = analyse(g, error);
  if (status == GEN_OK)
    status = host_open(&g->host, g->request.template_path, error);
  if (status == GEN_OK)
    status = host_run(&g->host, work, g);
  uselocale(before);
  freelocale(plain);
  return status;
}

/* A schedule names the axes of a family, which is one of prefill. */
bool gen_is_decode(const gen_request *r) {
  return r->len_q >= 1 && r->len_q <= GEN_DECODE_LEN_Q && !r->schedule;
}

const char *gen_phase(const gen_request *r) {
  return r->phase ? r->phase : gen_is_decode(r) ? "decode" : "prefill";
}

/* A generation for the request with its defaults filled in, or NULL. */
static generation *open_generation(const spec *s, const gen_request *request, gen_error *error) {
  generation *g = calloc(1, sizeof *g);
  if (!g) {
    gen_fail(error, GEN_NO_MEMORY, "out of memory");
    return NULL;
  }
  int count;
  g->request = request ? *request : (gen_request){0};
  if (!g->request.arch)
    g->request.arch = arch_table(&count);
  g->any_phase = !g->request.phase;
  g->request.phase = gen_phase(&g->request);
  g->spec = s;
  g->bound = (binding){.spec = s, .arch = g->request.arch, .request = &g->request, .phase = g->request.phase};
  renderer_init(&g->render, &g->host);
  return g;
}

/* Clears the message, opens, runs, closes unless the caller wants to keep the result. */
static gen_status answer(generation *g, lua_CFunction work, gen_error *error) {
  gen_status status = run(g, work, error);
  if (status == GEN_OK)
    *error = (gen_error){0};
  close_generation(g);
  return status;
}

/* ---- choosing ---- */

static bool ask(lua_State *L, const generation *g, const family *f, char reason[256]) {
  return family_supports(L, f, g->request.arch, g->request.phase, reason);
}

/* Adds "name: reason" to the message being made. */
static void add_reason(char *message, size_t size, const char *name, const char *reason) {
  size_t used = strlen(message);
  snprintf(message + used, size - used, "%s%s: %s", used ? "; " : "", name, reason);
}

static const family *find_family(lua_State *L, const generation *g) {
  const char *names[GEN_MAX_FAMILIES];
  char list[1024] = "";
  for (int n = 0; n < g->families.count; n++) {
    names[n] = g->families.items[n].name;
    if (strcmp(names[n], g->request.family) == 0)
      return &g->families.items[n];
    size_t used = strlen(list);
    snprintf(list + used, sizeof list - used, "%s%s", n ? ", " : "", names[n]);
  }
  const char *near = diag_nearest(g->request.family, names, g->families.count);
  if (near)
    host_raise(L, GEN_UNSUPPORTED, "no family '%s' (%s); did you mean '%s'?", g->request.family, list, near);
  host_raise(L, GEN_UNSUPPORTED, "no family '%s' (%s)", g->request.family, list);
}

/* A family that is named without a phase is asked for the one it is made for where it does not have the other, or where
 * that would be prefill and many queries are not declared. */
static void settle_phase(lua_State *L, generation *g) {
  for (int n = 0; g->any_phase && g->request.family && n < g->families.count; n++) {
    const family *f = &g->families.items[n];
    const bool many = g->request.len_q > GEN_DECODE_LEN_Q || !strcmp(g->request.phase, "decode");
    if (!strcmp(f->name, g->request.family) && !(many && family_has_phase(f, g->request.phase)))
      g->request.phase = g->bound.phase = f->phases[0];
  }
  binding_define_request(&g->bound, L);
}

/* Defines the globals and loads the families. */
static void prepare(lua_State *L, generation *g) {
  binding_define(&g->bound, L);
  family_load_all(L, &g->families);
  settle_phase(L, g);
}

/* Takes the family asked for, or the first that can and does not yield, or the first that can. */
static void choose(lua_State *L, generation *g) {
  char reason[256], reasons[GEN_MESSAGE_SIZE - 64] = "";
  if (g->request.family) {
    const family *f = find_family(L, g);
    if (!ask(L, g, f, reason))
      host_raise(L, GEN_UNSUPPORTED, "%s: %s", f->name, reason);
    g->chosen = f;
    return;
  }
  for (int n = 0; n < g->families.count; n++) {
    const family *f = &g->families.items[n];
    if (g->request.dedicated && strcmp(f->phases[0], g->request.phase) != 0)
      continue;
    if (!ask(L, g, f, reason)) {
      add_reason(reasons, sizeof reasons, f->name, reason);
      continue;
    }
    if (!g->chosen)
      g->chosen = f;
    if (!family_yields(L, f)) {
      g->chosen = f;
      return;
    }
  }
  if (g->chosen)
    return;
  host_raise(L, GEN_UNSUPPORTED, "no kernel family%s%s can do '%s': %s", g->request.dedicated ? " for " : "",
             g->request.dedicated ? g->request.phase : "", g->spec->name, reasons);
}

static void schedule_chosen(lua_State *L, generation *g) {
  schedule_wish wish = {g->spec, g->request.arch, g->request.phase, g->request.schedule, &g->families};
  schedule_resolve(L, g->chosen, &wish, &g->schedule, &g->info);
}

/* ---- the head comment ---- */

/* Adds a comment line. A backslash at its end would continue the comment, so it is followed by a period. */
static void add_comment(generation *g, lua_State *L, const char *begin, const char *end) {
  const char *stop = end > begin && end[-1] == '\\' ? "." : "";
  lua_pushfstring(L, "//%s", begin < end ? " " : "");
  lua_pushlstring(L, begin, (size_t)(end - begin));
  lua_pushstring(L, stop);
  lua_concat(L, 3);
  renderer_add_line(&g->render, lua_tostring(L, -1));
  lua_pop(L, 1);
}

static void add_comment_lines(generation *g, lua_State *L, const char *lines) {
  for (const char *p = lines; *p;) {
    const char *newline = strchr(p, '\n'), *end = newline ? newline : p + strlen(p);
    add_comment(g, L, p, end);
    p = newline ? newline + 1 : end;
  }
}

/* "schedule: axis=value,..." on as many lines as it needs; the later ones are indented. */
static void add_schedule(generation *g, lua_State *L) {
  enum { WIDTH = 117 }; /* with the comment's mark, 120 columns */
  const char *line = lua_pushfstring(L, "schedule: %s%s", *g->info.text ? g->info.text : "(no axes)",
                                     g->request.unaligned ? "; any alignment" : "");
  while (strlen(line) > WIDTH) {
    const char *end = line + WIDTH;
    while (end > line && end[-1] != ',')
      end--;
    if (end == line)
      break;
    add_comment(g, L, line, end);
    line = lua_pushfstring(L, "  %s", end);
  }
  add_comment(g, L, line, line + strlen(line));
}

/* header(): what the file is, the spec, the schedule, and the family's own description. */
static int header(lua_State *L) {
  generation *g = lua_touserdata(L, lua_upvalueindex(1));
  const gen_resources *r = &g->info.resources;
  add_comment_lines(g, L,
                    lua_pushfstring(L, "%s for %s, %s: generated by qkvc %s", g->chosen->name, g->request.arch->name,
                                    g->request.phase, GEN_VERSION));
  add_comment_lines(g, L, g->chosen->summary);
  add_comment_lines(g, L, "\n");
  add_comment_lines(g, L, g->canonical.bytes);
  add_comment_lines(g, L, "\n");
  add_schedule(g, L);
  char line[160];
  snprintf(line, sizeof line, "resources: %lld bytes of shared memory, %d threads, about %d registers a thread",
           (long long)r->shared_bytes, r->threads, r->registers);
  add_comment_lines(g, L, line);
  family_push_description(L, g->chosen, &g->schedule);
  lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
  for (lua_Integer n = 1; n <= count; n++) {
    if (lua_rawgeti(L, -1, n) != LUA_TSTRING)
      return luaL_error(L, "%s: describe must return a list of lines", g->chosen->path);
    add_comment_lines(g, L, lua_tostring(L, -1));
    lua_pop(L, 1);
  }
  return 0;
}

/* ---- rendering ---- */

static void fill_manifest(lua_State *L, generation *g) {
  manifest *m = &g->kernel->manifest;
  family_push_kernel(L, g->chosen, &g->schedule, g->spec, m);
  host_set_global(L, "kernel");
  strcpy(m->family, g->chosen->name);
  strcpy(m->schedule, g->info.text);
  snprintf(m->arch, sizeof m->arch, "%s", g->request.arch->name);
  variant_hash_text(&g->canonical, m->variant_hash);
  for (int n = 0; n < m->nlaunches; n++)
    if (m->launches[n].block > g->request.arch->threads_per_block ||
        m->launches[n].shared_bytes > g->request.arch->shared_per_block)
      luaL_error(L, "%s: launch of %s exceeds %s: %d threads, %d bytes of shared memory", g->chosen->path,
                 m->launches[n].entry, m->arch, m->launches[n].block, m->launches[n].shared_bytes);
}

static int render_work(lua_State *L) {
  generation *g = lua_touserdata(L, 1);
  prepare(L, g);
  choose(L, g);
  schedule_chosen(L, g);
  if (!g->info.legal)
    host_raise(L, GEN_BAD_SCHEDULE, "%s with %s: %s", g->chosen->name, *g->info.text ? g->info.text : "no schedule",
               g->info.reason);
  g->kernel = calloc(1, sizeof *g->kernel);
  spec_canonical_of_phase(g->spec, g->request.phase, &g->canonical);
  host_check_memory(L, !g->kernel || g->canonical.failed);

  family_push_schedule(L, g->chosen, &g->schedule);
  host_set_global(L, "schedule");
  fill_manifest(L, g);
  lua_pushlightuserdata(L, g);
  lua_pushcclosure(L, header, 1);
  host_set_global(L, "header");
  renderer_bind(&g->render);
  renderer_load_pieces(&g->render);
  renderer_run(&g->render, lua_pushfstring(L, "kernels/%s.cu", g->chosen->name));
  renderer_finish(&g->render, g->kernel);
  return 0;
}

gen_status gen_render(const spec *s, const gen_request *request, gen_kernel **out, gen_error *error) {
  gen_error ignored = {0};
  error = error ? error : &ignored;
  *out = NULL;
  generation *g = open_generation(s, request, error);
  if (!g)
    return error->status;
  gen_status status = run(g, render_work, error);
  if (status == GEN_OK) {
    *error = (gen_error){0};
    *out = g->kernel;
    g->kernel = NULL;
  }
  close_generation(g);
  return status;
}

void gen_kernel_free(gen_kernel *k) {
  if (!k)
    return;
  for (int n = 0; n < k->ntemplates; n++)
    free(k->templates[n]);
  free(k->templates);
  free(k->lines);
  text_free(&k->source);
  free(k);
}

/* ---- smaller questions ---- */

static int choices_work(lua_State *L) {
  generation *g = lua_touserdata(L, 1);
  prepare(L, g);
  for (int n = 0; n < g->families.count; n++) {
    gen_choice *choice = &g->choices[n];
    strcpy(choice->family, g->families.items[n].name);
    choice->supported = ask(L, g, &g->families.items[n], choice->reason);
  }
  *g->count = g->families.count;
  return 0;
}

gen_status gen_choices(const spec *s, const gen_request *request, gen_choice choices[GEN_MAX_FAMILIES], int *count,
                       gen_error *error) {
  gen_error ignored = {0};
  error = error ? error : &ignored;
  generation *g = open_generation(s, request, error);
  if (!g)
    return error->status;
  g->choices = choices;
  g->count = count;
  return answer(g, choices_work, error);
}

static int axes_work(lua_State *L) {
  generation *g = lua_touserdata(L, 1);
  prepare(L, g);
  choose(L, g);
  memcpy(g->axes, g->chosen->axes, (size_t)g->chosen->naxes * sizeof *g->axes);
  *g->count = g->chosen->naxes;
  return 0;
}

gen_status gen_axes(const spec *s, const gen_request *request, gen_axis axes[32], int *count, gen_error *error) {
  gen_error ignored = {0};
  error = error ? error : &ignored;
  generation *g = open_generation(s, request, error);
  if (!g)
    return error->status;
  g->axes = axes;
  g->count = count;
  return answer(g, axes_work, error);
}

static int check_work(lua_State *L) {
  generation *g = lua_touserdata(L, 1);
  prepare(L, g);
  choose(L, g);
  schedule_chosen(L, g);
  return 0;
}

gen_status gen_check_schedule(const spec *s, const gen_request *request, gen_schedule *out, gen_error *error) {
  gen_error ignored = {0};
  error = error ? error : &ignored;
  generation *g = open_generation(s, request, error);
  if (!g)
    return error->status;
  gen_status status = run(g, check_work, error);
  if (status == GEN_OK) {
    *error = (gen_error){0};
    *out = g->info;
  }
  close_generation(g);
  return status;
}

/* Adds the candidates of a family beside dispatch's choice. Arguments: the generation, the family. */
static int add_other_family(lua_State *L) {
  generation *g = lua_touserdata(L, 1);
  schedule_wish wish = {g->spec, g->request.arch, g->request.phase, NULL, &g->families};
  gen_schedule info;
  space_add_family(L, lua_touserdata(L, 2), &wish, g->device, g->effort, &g->space, &info);
  return 0;
}

/* Those of every family that can. One that the spec's own schedule does not fit has none. */
static void add_other_families(lua_State *L, generation *g) {
  char reason[256];
  for (int n = 0; n < g->families.count; n++) {
    family *f = &g->families.items[n];
    const bool guest = strcmp(f->phases[0], g->request.phase) != 0; /* in a phase that it is not made for */
    if (f == g->chosen || !ask(L, g, f, reason) || (guest && family_yields(L, f)))
      continue;
    lua_pushcfunction(L, add_other_family);
    lua_pushlightuserdata(L, g);
    lua_pushlightuserdata(L, f);
    if (lua_pcall(L, 2, 0, 0) == LUA_OK)
      continue;
    if (!host_raised(L, GEN_BAD_SCHEDULE))
      lua_error(L);
    lua_pop(L, 1);
  }
}

static int candidates_work(lua_State *L) {
  generation *g = lua_touserdata(L, 1);
  const bool all = g->request.family && strcmp(g->request.family, "all") == 0;
  if (all)
    g->request.family = NULL;
  prepare(L, g);
  visits_define(&g->visits, g->device, L);
  choose(L, g);
  schedule_wish wish = {g->spec, g->request.arch, g->request.phase, g->request.schedule, &g->families};
  if (!space_add_family(L, g->chosen, &wish, g->device, g->effort, &g->space, &g->info))
    host_raise(L, GEN_BAD_SCHEDULE, "%s with %s: %s", g->chosen->name, *g->info.text ? g->info.text : "no schedule",
               g->info.reason);
  if (all && !g->request.schedule) /* what the request fixes are axes of its family */
    add_other_families(L, g);
  space_sort(&g->space, g->chosen);
  return 0;
}

gen_status gen_candidates(const spec *s, const gen_request *request, const gen_work *work, const gen_device *device,
                          int effort, gen_candidate **out, int *count, gen_error *error) {
  gen_error ignored = {0};
  error = error ? error : &ignored;
  *out = NULL;
  *count = 0;
  generation *g = open_generation(s, request, error);
  if (!g)
    return error->status;
  g->visits = (visits){.bound = &g->bound, .work = *work};
  g->device = device;
  g->effort = effort;
  gen_status status = run(g, candidates_work, error);
  if (status == GEN_OK) {
    *error = (gen_error){0};
    *out = g->space.items;
    *count = g->space.count;
    g->space.items = NULL;
  }
  close_generation(g);
  return status;
}
