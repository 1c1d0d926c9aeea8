/* tune_compile.c: the kernels of a group, compiled in threads of the tuner into the cache, where the worker finds them.
 */
#include <stdlib.h>
#include <string.h>

#include "tune.h"

/* What the worker's checks are held against (tune_inputs.h). */
enum { NAIVE = -1 };

typedef struct pool {
  qkv_engine *engine;
  qkv_spec *spec;
  tune_group *group;
  double deadline;
  int *order; /* of candidates, NAIVE among them: what cannot be done without first */
  int count, needed;
} pool;

/* The first line of the thread's message. */
static void drop_for_error(tune_candidate *c, const char *status) {
  char line[512];
  snprintf(line, sizeof line, "%s", qkv_last_error(NULL));
  line[strcspn(line, "\n")] = 0;
  candidate_drop(c, status, line);
}

/* Lost speed that no other schedule has to suffer is not measured at all. */
static void judge_build(tune_candidate *c, const qkv_build_report *r) {
  char reason[160];
  snprintf(c->key, sizeof c->key, "%s", r->key);
  for (int n = 0; n < r->nentries; n++) {
    const qkv_build_entry *e = &r->entries[n];
    c->registers = e->registers > c->registers ? e->registers : c->registers;
    if (e->registers >= 0)
      c->spills += e->spill_stores + e->spill_loads;
    if (e->serialised_wgmma || e->ignored_setmaxnreg) {
      snprintf(reason, sizeof reason, "the compiler %s in %s",
               e->serialised_wgmma ? "serialises wgmma" : "ignores setmaxnreg", e->name);
      candidate_drop(c, "rejected", reason);
    }
  }
}

static qkv_status build(const pool *p, const tune_candidate *c, int unaligned, qkv_build_report *report) {
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  o.family = c->family;
  o.phase = p->group->phase;
  o.schedule = c->schedule;
  o.unaligned = unaligned;
  *report = (qkv_build_report){.size = sizeof *report};
  qkv_status status = qkv_build(p->engine, p->spec, &o, report);
  qkv_string_free(report->notes);
  qkv_string_free(report->advisories);
  return status;
}

/* Both kernels of an op where rows are no multiples of 16 bytes, see tune_limits. */
static void compile_one(const pool *p, tune_candidate *c) {
  qkv_build_report report;
  qkv_status status = build(p, c, 0, &report);
  if (!status)
    judge_build(c, &report);
  if (!status && !p->group->aligned)
    status = build(p, c, 1, &report);
  if (status)
    drop_for_error(c, "compile");
}

/* An op for calls of any size: so checks prepare it. */
static void compile_naive(const pool *p) {
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  qkv_build_report report = {.size = sizeof report};
  o.family = "attention_naive";
  qkv_build(p->engine, p->spec, &o, &report); /* a spec that it cannot do is checked without it */
  qkv_string_free(report.notes);
  qkv_string_free(report.advisories);
}

static void compile_nth(void *user, int n) {
  const pool *p = user;
  const int candidate = p->order[n];
  if (candidate == NAIVE)
    compile_naive(p);
  else if (n >= p->needed && p->deadline > 0 && cli_seconds() > p->deadline)
    candidate_drop(&p->group->candidates[candidate], "skipped", "no time was left to compile it");
  else
    compile_one(p, &p->group->candidates[candidate]);
}

static void show_step(void *user, int n, int done) {
  const pool *p = user;
  (void)n;
  report_step(p->group, "compiling", done, p->count, 0.4 * done / p->count);
}

/* Defaults and incumbents first, for without them there is nothing to compare with. */
static void put_in_order(pool *p, const tune_settings *s) {
  const tune_group *g = p->group;
  for (int n = 0; n < g->count; n++)
    if (plan_needs(g, n))
      p->order[p->count++] = n;
  if (!s->emulated && !strcmp(g->phase, "prefill"))
    p->order[p->count++] = NAIVE;
  p->needed = p->count;
  for (int n = 0; n < g->count; n++)
    if (!plan_needs(g, n))
      p->order[p->count++] = n;
}

/* What runs without tuning stays in the race, however slow the compiler says it is. */
static void keep_needed(tune_group *g) {
  for (int n = 0; n < g->count; n++) {
    tune_candidate *c = &g->candidates[n];
    if (!plan_needs(g, n) || strcmp(c->status, "rejected") != 0)
      continue;
    cli_warning("%s %s: of the schedule in use %s", g->name, g->phase, c->reason);
    c->status[0] = 0;
  }
}

void compile_candidates(qkv_engine *engine, tune_group *g, const tune_settings *s, double deadline) {
  pool p = {.engine = engine, .group = g, .deadline = deadline};
  p.order = calloc((size_t)g->count + 1, sizeof *p.order);
  if (!p.order || qkv_spec_load(engine, g->path, &p.spec) != QKV_OK) {
    for (int n = 0; n < g->count; n++)
      drop_for_error(&g->candidates[n], "compile");
    free(p.order);
    return;
  }
  put_in_order(&p, s);
  cli_parallel(&(cli_jobs){p.count, compile_nth, show_step, &p}, s->jobs);
  keep_needed(g);
  qkv_spec_free(p.spec);
  free(p.order);
}
