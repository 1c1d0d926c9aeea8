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

struct tune_compile {
  tune_builders *builders;
  tune_group *group;
  const tune_client *client;
  int *order; /* of candidates, NAIVE among them: what cannot be done without first */
  tune_questions questions;
  bool waited_for;
};

void compile_name(const tune_group *g, const tune_candidate *c, char *out, size_t size) {
  snprintf(out, size, "build %s %s %s %s %s", g->name, g->hash, g->phase, c->family, c->schedule);
}

/* A candidate's kernels: both of an op where rows are no multiples of 16 bytes, see tune_limits. Or, with c NULL, that
 * of an op for calls of any size: so checks prepare it. */
static char *build_question(const tune_group *g, const tune_candidate *c) {
  record_line l;
  if (!record_begin(&l))
    return NULL;
  record_put(&l.to, "ask", "build");
  record_put(&l.to, "spec", g->path);
  record_put(&l.to, "phase", g->phase);
  record_put(&l.to, "family", c ? c->family : "attention_naive");
  if (c)
    record_put(&l.to, "schedule", c->schedule);
  record_put_number(&l.to, "unaligned", c && !g->aligned);
  return record_end(&l);
}

/* What a run before has found to crash or to hang is not tried again. */
static bool is_known_to_fail(const tune_compile *t, tune_candidate *c) {
  char name[512];
  compile_name(t->group, c, name, sizeof name);
  const record *known = client_known(t->client, name);
  const char *status = known ? record_text(known, "status") : NULL,
             *reason = known ? record_text(known, "reason") : NULL;
  if (!status || (strcmp(status, "crashed") != 0 && strcmp(status, "timeout") != 0))
    return false;
  candidate_drop(c, status, reason ? reason : "");
  return true;
}

static char *ask_nth(void *user, int n, int done) {
  const tune_compile *t = user;
  tune_candidate *c = t->order[n] == NAIVE ? NULL : &t->group->candidates[t->order[n]];
  const double end = t->questions.ends[n >= t->questions.needed];
  if (t->waited_for)
    report_step(t->group, "compiling", done, t->questions.count, 0.4 * done / t->questions.count);
  if (c && end > 0 && cli_seconds() >= end) {
    candidate_drop(c, "skipped", "no time was left to compile it");
    return NULL;
  }
  if (c && is_known_to_fail(t, c))
    return NULL;
  char *line = build_question(t->group, c);
  if (!line && c)
    candidate_drop(c, "failed", "out of memory");
  return line;
}

static void take_nth(void *user, int n, const record *answer) {
  const tune_compile *t = user;
  if (t->order[n] == NAIVE)
    return; /* a spec that it cannot do is checked without it */
  tune_candidate *c = &t->group->candidates[t->order[n]];
  const char *key = record_text(answer, "key"), *reason = record_text(answer, "reason");
  snprintf(c->key, sizeof c->key, "%s", key ? key : "");
  c->registers = (int)record_number(answer, "registers", 0);
  c->spills = (int)record_number(answer, "spills", 0);
  if (!answer_is(answer, "ok"))
    candidate_drop(c, record_text(answer, "status"), reason ? reason : "");
}

/* Defaults and incumbents first, for without them there is nothing to compare with. */
static void put_in_order(tune_compile *t, const tune_settings *s) {
  const tune_group *g = t->group;
  tune_questions *q = &t->questions;
  for (int n = 0; n < g->count; n++)
    if (plan_needs(g, n))
      t->order[q->count++] = n;
  if (!s->emulated && !strcmp(g->phase, "prefill"))
    t->order[q->count++] = NAIVE;
  q->needed = q->count;
  for (int n = 0; n < g->count; n++)
    if (!plan_needs(g, n))
      t->order[q->count++] = n;
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

tune_compile *compile_begin(tune_builders *builders, const tune_client *client, tune_group *g, const tune_settings *s,
                            int most) {
  tune_compile *t = calloc(1, sizeof *t);
  int *order = calloc((size_t)g->count + 1, sizeof *order);
  if (!t || !order) {
    for (int n = 0; n < g->count; n++)
      candidate_drop(&g->candidates[n], "failed", "out of memory");
    free(t);
    free(order);
    return NULL;
  }
  *t = (tune_compile){.builders = builders, .group = g, .client = client, .order = order};
  t->questions = (tune_questions){
      .ends = {s->deadline, s->deadline}, .limit = s->compile_limit, .ask = ask_nth, .take = take_nth, .user = t};
  put_in_order(t, s);
  builders_begin(builders, &t->questions, most);
  return t;
}

void compile_step(void *compile) {
  builders_step(((tune_compile *)compile)->builders);
}

void compile_end(tune_compile *t, double deadline) {
  if (!t)
    return;
  const double now = cli_seconds();
  if (deadline > 0)
    t->questions.ends[0] = deadline, t->questions.ends[1] = now + COMPILE_SHARE * fmax(0, deadline - now);
  t->waited_for = true;
  builders_finish(t->builders);
  keep_needed(t->group);
  free(t->order);
  free(t);
}
