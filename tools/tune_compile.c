/* tune_compile.c: the kernels of a group, compiled by processes of their own (tune_builders.h) into the cache, where
 * the worker finds them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

/* What the worker's checks are held against (tune_inputs.h). */
enum { NAIVE = -1 };
/* Of a group's time, what may be gone before all is compiled. */
#define COMPILE_SHARE 0.5

typedef struct pool {
  tune_group *group;
  const tune_client *client;
  double ends[2]; /* of those that cannot be done without, of the others; 0: none */
  int *order;     /* of candidates, NAIVE among them: what cannot be done without first */
  int count, needed;
} pool;

void compile_name(const tune_group *g, const tune_candidate *c, char *out, size_t size) {
  snprintf(out, size, "build %s %s %s %s %s", g->name, g->hash, g->phase, c->family, c->schedule);
}

/* A candidate's kernels: both of an op where rows are no multiples of 16 bytes, see tune_limits. Or, with c NULL, that
 * of an op for calls of any size: so checks prepare it. */
static char *build_question(const tune_group *g, const tune_candidate *c) {
  char *line = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&line, &size);
  if (!out)
    return NULL;
  record_writer r = record_open(out);
  record_put(&r, "ask", "build");
  record_put(&r, "spec", g->path);
  record_put(&r, "phase", g->phase);
  record_put(&r, "family", c ? c->family : "attention_naive");
  if (c)
    record_put(&r, "schedule", c->schedule);
  record_put_number(&r, "unaligned", c && !g->aligned);
  record_close(&r);
  fclose(out);
  return line;
}

/* What a run before has found to crash or to hang is not tried again. */
static bool is_known_to_fail(const pool *p, tune_candidate *c) {
  char name[512];
  compile_name(p->group, c, name, sizeof name);
  const record *known = client_known(p->client, name);
  const char *status = known ? record_text(known, "status") : NULL,
             *reason = known ? record_text(known, "reason") : NULL;
  if (!status || (strcmp(status, "crashed") != 0 && strcmp(status, "timeout") != 0))
    return false;
  candidate_drop(c, status, reason ? reason : "");
  return true;
}

static char *ask_nth(void *user, int n, int done) {
  const pool *p = user;
  tune_candidate *c = p->order[n] == NAIVE ? NULL : &p->group->candidates[p->order[n]];
  report_step(p->group, "compiling", done, p->count, 0.4 * done / p->count);
  const double end = p->ends[n >= p->needed];
  if (c && end > 0 && cli_seconds() >= end) {
    candidate_drop(c, "skipped", "no time was left to compile it");
    return NULL;
  }
  if (c && is_known_to_fail(p, c))
    return NULL;
  char *line = build_question(p->group, c);
  if (!line && c)
    candidate_drop(c, "failed", "out of memory");
  return line;
}

static void take_nth(void *user, int n, const record *answer) {
  const pool *p = user;
  if (p->order[n] == NAIVE)
    return; /* a spec that it cannot do is checked without it */
  tune_candidate *c = &p->group->candidates[p->order[n]];
  const char *key = record_text(answer, "key"), *reason = record_text(answer, "reason");
  snprintf(c->key, sizeof c->key, "%s", key ? key : "");
  c->registers = (int)record_number(answer, "registers", 0);
  c->spills = (int)record_number(answer, "spills", 0);
  if (!answer_is(answer, "ok"))
    candidate_drop(c, record_text(answer, "status"), reason ? reason : "");
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

void compile_candidates(tune_builders *builders, const tune_client *client, tune_group *g, const tune_settings *s,
                        double deadline) {
  const double now = cli_seconds();
  pool p = {.group = g, .client = client};
  if (deadline > 0)
    p.ends[0] = deadline, p.ends[1] = now + COMPILE_SHARE * fmax(0, deadline - now);
  p.order = calloc((size_t)g->count + 1, sizeof *p.order);
  if (!p.order) {
    for (int n = 0; n < g->count; n++)
      candidate_drop(&g->candidates[n], "failed", "out of memory");
    return;
  }
  put_in_order(&p, s);
  const tune_questions all = {p.count, p.needed, {p.ends[0], p.ends[1]}, s->compile_limit, ask_nth, take_nth, &p};
  builders_run(builders, &all);
  keep_needed(g);
  free(p.order);
}
