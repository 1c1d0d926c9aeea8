/* tune_search.c: from the candidates of a group to its choices.
 *
 * Every candidate is checked once. On each workload, those wanted there are timed one by one, so that one that hangs or
 * crashes costs only itself; then they race in turns, the worse half leaving each round while samples double. What is
 * left of all workloads meets in a final on every workload, from which come the schedule of each and the one that is
 * best over all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"
#include "tune_stats.h"

/* Seconds of warm-up of a candidate at most, and of the first one on a workload, whose clocks may have been asleep. */
#define WARM_UP 0.05
#define FIRST_WARM_UP 1.5
/* The same of a candidate by itself, whose one sample only tells whether it is worth more. */
#define WARM_UP_ALONE 0.01
/* Times the fastest one's sample: slower ones are out. Clocks differ by less. */
#define FAR_BEHIND 1.5
/* Of a group's time, what may be gone before the final. */
#define RACE_SHARE 0.7

enum { MOST_RACERS = 200, MOST_ROUNDS = 5, RETRIES = 3 };

typedef struct search {
  tune_group *group;
  tune_client *client;
  const tune_settings *settings;
  double deadline, race_deadline;
  double done;      /* part of the group */
  bool out_of_time; /* for the next final */
} search;

/* Candidates that are timed together on a workload. */
typedef struct field {
  int count, taken;
  int candidates[MOST_RACERS];
  double *seconds; /* [count][taken] */
} field;

/* Whether what takes so long would not be done by then. */
static bool too_long(double deadline, double seconds) {
  return deadline > 0 && cli_seconds() + seconds > deadline;
}

static bool late(double deadline) {
  return too_long(deadline, 0);
}

/* ---- Questions ---- */

/* False: out of memory. */
static bool begin_question(record_line *l, const search *s, const char *ask) {
  if (!record_begin(l))
    return false;
  record_put(&l->to, "ask", ask);
  record_put(&l->to, "spec", s->group->path);
  record_put(&l->to, "phase", s->group->phase);
  return true;
}

/* What a failure on a workload means: a candidate that has no kernel for its sizes is out there alone, any other is out
 * of the race, and so is one that is left without a workload. */
static void fail_on(tune_group *g, tune_candidate *c, int w, const char *status, const char *reason) {
  bool runs = false;
  c->on[w].refused = true;
  for (int v = 0; v < g->nworkloads; v++)
    runs |= !c->on[v].refused;
  if (strcmp(status, "error") != 0 || !runs)
    candidate_drop(c, status, reason);
}

/* Queries of a check for a workload: those of decode, which choose tiles; one length for all of prefill. */
static int64_t checked_queries(const tune_group *g, int w) {
  return strcmp(g->phase, "decode") ? 0 : g->workloads[w].len_q;
}

/* The check of a workload, and of all others that have as many queries. */
static void check_on(search *s, tune_candidate *c, int w) {
  tune_group *g = s->group;
  const int64_t queries = checked_queries(g, w);
  char name[256];
  record answer = {0};
  record_line l;
  if (!begin_question(&l, s, "check"))
    return;
  record_put(&l.to, "family", c->family);
  record_put(&l.to, "schedule", c->schedule);
  record_put_number(&l.to, "q", (double)queries);
  char *line = record_end(&l);
  snprintf(name, sizeof name, "check %s %s %s q=%lld %s", g->name, g->hash, g->phase, (long long)queries, c->key);
  client_ask_once(s->client, name, line ? line : "", s->settings->limit, &answer);
  for (int v = w; v < g->nworkloads && !answer_is(&answer, "ok"); v++)
    if (checked_queries(g, v) == queries && candidate_runs(c, v))
      fail_on(g, c, v, record_text(&answer, "status"), record_text(&answer, "reason"));
  record_free(&answer);
  free(line);
}

/* Whether the candidate is right, on everything that it may be timed on. */
static void check(search *s, tune_candidate *c) {
  for (int w = 0; w < s->group->nworkloads && candidate_alive(c); w++) {
    bool done = false;
    for (int v = 0; v < w; v++)
      done |= checked_queries(s->group, v) == checked_queries(s->group, w);
    if (!done)
      check_on(s, c, w);
  }
}

/* "FAMILY SCHEDULE;FAMILY SCHEDULE" and so on; freed by the caller. */
static char *list_field(const search *s, const field *f) {
  char *list = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&list, &size);
  for (int n = 0; out && n < f->count; n++) {
    const tune_candidate *c = &s->group->candidates[f->candidates[n]];
    fprintf(out, "%s%s %s", n ? ";" : "", c->family, c->schedule);
  }
  return out && fclose(out) == 0 ? list : NULL;
}

/* The question for a field; freed by the caller. */
static char *time_question(const search *s, int w, const field *f, double sample_seconds, double warm_up) {
  const tune_workload *workload = &s->group->workloads[w];
  char *list = list_field(s, f), *line = NULL;
  record_line l;
  if (list && begin_question(&l, s, "time")) {
    record_put_number(&l.to, "batch", (double)workload->batch);
    record_put_number(&l.to, "q", (double)workload->len_q);
    record_put_number(&l.to, "kv", (double)workload->len_k);
    record_put_number(&l.to, "samples", f->taken);
    record_put_number(&l.to, "sample_seconds", sample_seconds);
    record_put_number(&l.to, "warm_up", warm_up);
    record_put(&l.to, "candidates", list);
    line = record_end(&l);
  }
  free(list);
  return line;
}

/* Its name in the journal; freed by the caller. */
static char *time_name(const search *s, int w, const field *f) {
  const tune_workload *workload = &s->group->workloads[w];
  char *name = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&name, &size);
  if (!out)
    return NULL;
  fprintf(out, "time %s %s %s %lldx%lldx%lld samples=%d", s->group->name, s->group->hash, s->group->phase,
          (long long)workload->batch, (long long)workload->len_q, (long long)workload->len_k, f->taken);
  for (int n = 0; n < f->count; n++)
    fprintf(out, " %s", s->group->candidates[f->candidates[n]].key);
  return fclose(out) == 0 ? name : NULL;
}

/* Keeps what a field's samples, and the answer with them, say of its candidates. */
static void note_timings(tune_group *g, int w, const field *f, const record *answer) {
  for (int n = 0; n < f->count; n++) {
    const double *samples = f->seconds + (long)n * f->taken;
    tune_timing *on = &g->candidates[f->candidates[n]].on[w];
    on->seconds = stats_median(samples, f->taken);
    on->low = stats_quantile(samples, f->taken, 0.1);
    on->high = stats_quantile(samples, f->taken, 0.9);
    on->samples = f->taken;
    clocks_get(answer, &on->clocks);
  }
}

/* Seconds that a field may take in turns. A candidate that was not timed yet counts with a sample. */
static double expected_seconds(const search *s, int w, const field *f, double sample_seconds, double warm_up) {
  double expected = 0;
  for (int n = 0; n < f->count; n++)
    expected += warm_up + (f->taken + 4) * fmax(s->group->candidates[f->candidates[n]].on[w].seconds, sample_seconds);
  return expected;
}

/* Times a field in turns. false: *status and *reason (freed by the caller) say why. */
static bool ask_time(search *s, int w, field *f, double sample_seconds, double warm_up, char status[16],
                     char **reason) {
  char *line = time_question(s, w, f, sample_seconds, warm_up), *name = time_name(s, w, f);
  record answer = {0};
  const double expected = expected_seconds(s, w, f, sample_seconds, warm_up);
  client_ask_once(s->client, name ? name : "", line ? line : "", s->settings->limit + 4 * expected, &answer);
  const int wanted = f->count * f->taken;
  free(f->seconds);
  f->seconds = calloc((size_t)wanted + 1, sizeof *f->seconds);
  bool ok = answer_is(&answer, "ok") && f->seconds && record_numbers(&answer, "seconds", f->seconds, wanted) == wanted;
  for (int n = 0; ok && n < wanted; n++)
    ok = f->seconds[n] > 0;
  if (ok)
    note_timings(s->group, w, f, &answer);
  const char *text = record_text(&answer, "reason");
  snprintf(status, 16, "%s", answer_is(&answer, "ok") ? "error" : record_text(&answer, "status"));
  *reason = text ? strdup(text) : NULL;
  record_free(&answer);
  free(line);
  free(name);
  return ok;
}

/* One candidate by itself; it leaves when it fails. */
static bool time_alone(search *s, int w, int candidate, int samples, double warm_up, double *seconds) {
  field f = {.count = 1, .taken = samples, .candidates = {candidate}};
  char status[16], *reason = NULL;
  const bool ok = ask_time(s, w, &f, s->settings->amount.sample_seconds / 2, warm_up, status, &reason);
  if (!ok)
    fail_on(s->group, &s->group->candidates[candidate], w, status, reason);
  else if (seconds)
    memcpy(seconds, f.seconds, (size_t)samples * sizeof *seconds);
  free(reason);
  free(f.seconds);
  return ok;
}

static void remove_failed(const tune_group *g, int w, field *f) {
  int kept = 0;
  for (int n = 0; n < f->count; n++)
    if (candidate_runs(&g->candidates[f->candidates[n]], w))
      f->candidates[kept++] = f->candidates[n];
  f->count = kept;
}

/* A field in turns. When that fails, some candidate is at fault that was not when alone: each is tried by itself, those
 * that fail leave, and the rest tries again. false: it fails all the same. */
static bool time_turns(search *s, int w, field *f, double sample_seconds) {
  for (int attempt = 0; attempt < RETRIES && f->count; attempt++) {
    char status[16], *reason = NULL;
    const bool ok = ask_time(s, w, f, sample_seconds, WARM_UP, status, &reason);
    free(reason);
    if (ok)
      return true;
    for (int n = 0; n < f->count; n++)
      time_alone(s, w, f->candidates[n], f->taken + attempt + 1, WARM_UP, NULL); /* other samples: another question */
    remove_failed(s->group, w, f);
  }
  return false;
}

/* ---- Stages ---- */

static void check_all(search *s) {
  tune_group *g = s->group;
  for (int needed = 1; needed >= 0; needed--)
    for (int n = 0; n < g->count; n++) {
      tune_candidate *c = &g->candidates[n];
      if (!candidate_alive(c) || plan_needs(g, n) != (needed == 1))
        continue;
      report_step(g, "checking", n, g->count, 0.4 + 0.1 * n / g->count);
      if (!needed && late(s->race_deadline))
        candidate_drop(c, "skipped", "no time was left to check it");
      else
        check(s, c);
    }
}

/* Index of a candidate in a field, -1: not there. */
static int place_of(const field *f, int candidate) {
  for (int n = 0; n < f->count; n++)
    if (f->candidates[n] == candidate)
      return n;
  return -1;
}

static void add_racer(const tune_group *g, int w, field *f, int candidate) {
  if (candidate >= 0 && f->count < MOST_RACERS && place_of(f, candidate) < 0 &&
      candidate_runs(&g->candidates[candidate], w))
    f->candidates[f->count++] = candidate;
}

/* Leaves the slowest out until the field's turns are done in time, but neither the default nor the incumbent. */
static void shorten(const search *s, int w, field *f) {
  const tune_choice *choice = &s->group->choices[w];
  while (too_long(s->race_deadline, expected_seconds(s, w, f, s->settings->amount.sample_seconds / 2, WARM_UP))) {
    int slowest = -1;
    for (int n = 0; n < f->count; n++) {
      const int c = f->candidates[n];
      if (c != choice->incumbent && c != choice->default_candidate &&
          (slowest < 0 ||
           s->group->candidates[c].on[w].seconds > s->group->candidates[f->candidates[slowest]].on[w].seconds))
        slowest = n;
    }
    if (slowest < 0)
      return;
    memmove(f->candidates + slowest, f->candidates + slowest + 1,
            (size_t)(--f->count - slowest) * sizeof *f->candidates);
  }
}

/* Everyone by himself for a sample, the incumbent first, so that one that hangs or crashes costs only itself; then
 * those that are not far behind in turns, since a GPU that had a moment's rest runs at other clocks than one that had
 * none. Leaves in the field who has samples. */
static void first_round(search *s, int w, field *f) {
  tune_group *g = s->group;
  field all = {0};
  add_racer(g, w, &all, g->choices[w].incumbent);
  add_racer(g, w, &all, g->choices[w].default_candidate);
  for (int n = 0; n < g->count; n++)
    if (g->candidates[n].on[w].wanted)
      add_racer(g, w, &all, n);
  double fastest = INFINITY;
  for (int n = 0; n < all.count; n++) {
    report_step(g, g->workloads[w].name, n, all.count, s->done + 0.25 * n / all.count / g->nworkloads);
    if (n > 1 && late(s->race_deadline))
      break;
    double seconds;
    if (!time_alone(s, w, all.candidates[n], 1, n ? WARM_UP_ALONE : FIRST_WARM_UP, &seconds))
      continue;
    f->candidates[f->count++] = all.candidates[n];
    fastest = fmin(fastest, seconds);
  }
  int kept = 0;
  for (int n = 0; n < f->count; n++)
    if (f->candidates[n] == g->choices[w].incumbent || f->candidates[n] == g->choices[w].default_candidate ||
        s->settings->emulated || g->candidates[f->candidates[n]].on[w].seconds <= FAR_BEHIND * fastest)
      f->candidates[kept++] = f->candidates[n];
  f->count = kept;
  f->taken = s->settings->amount.first_samples;
  shorten(s, w, f);
  if (!time_turns(s, w, f, s->settings->amount.sample_seconds / 2))
    f->count = 0;
}

/* Halves the field by its samples. */
static void halve(const search *s, int w, field *f, int least) {
  bool alive[MOST_RACERS];
  memset(alive, true, sizeof alive);
  stats_halve(f->seconds, f->taken, f->count, least, place_of(f, s->group->choices[w].incumbent), alive);
  int kept = 0;
  for (int n = 0; n < f->count; n++)
    if (alive[n])
      f->candidates[kept++] = f->candidates[n];
  f->count = kept;
}

/* The best of a field by the last median, and no more than asked for. */
static void mark_finalists(tune_group *g, int w, const field *f, int most) {
  for (int taken = 0; taken < most; taken++) {
    int best = -1;
    for (int n = 0; n < f->count; n++) {
      const tune_timing *on = &g->candidates[f->candidates[n]].on[w];
      if (candidate_runs(&g->candidates[f->candidates[n]], w) && !on->finalist &&
          (best < 0 || on->seconds < g->candidates[best].on[w].seconds))
        best = f->candidates[n];
    }
    if (best < 0)
      return;
    g->candidates[best].on[w].finalist = true;
  }
}

/* All rounds before the final on one workload. */
static void race(search *s, int w) {
  const tune_amount *amount = &s->settings->amount;
  field f = {0};
  first_round(s, w, &f);
  for (int round = 1; round < MOST_ROUNDS && f.count > amount->finalists && !late(s->race_deadline); round++) {
    halve(s, w, &f, amount->finalists);
    if (f.count <= amount->finalists)
      break;
    report_step(s->group, s->group->workloads[w].name, 0, f.count, s->done + 0.25 / s->group->nworkloads);
    f.taken *= 2;
    if (too_long(s->race_deadline, expected_seconds(s, w, &f, amount->sample_seconds / 2, WARM_UP)) ||
        !time_turns(s, w, &f, amount->sample_seconds / 2))
      break;
  }
  mark_finalists(s->group, w, &f, amount->finalists);
  free(f.seconds);
}

/* ---- Choice ---- */

/* The incumbent when it is in the race; the default in its place. */
static int incumbent_place(const tune_choice *choice, const field *f) {
  const int place = place_of(f, choice->incumbent);
  return place >= 0 ? place : place_of(f, choice->default_candidate);
}

static const double *row(const field *f, int candidate) {
  return f->seconds + (long)place_of(f, candidate) * f->taken;
}

/* Some of a group's workloads. */
typedef struct workload_set {
  int count, members[TUNE_WORKLOADS];
} workload_set;

/* The finals of a set of workloads as one: those who were in all of them; samples are [workloads][count][taken]. */
static field common_field(const field *fields, const workload_set *set) {
  const field *first = &fields[set->members[0]];
  field common = {.taken = first->taken};
  for (int n = 0; n < first->count; n++) {
    bool everywhere = true;
    for (int w = 1; w < set->count; w++)
      everywhere &= place_of(&fields[set->members[w]], first->candidates[n]) >= 0;
    if (everywhere)
      common.candidates[common.count++] = first->candidates[n];
  }
  const size_t taken = (size_t)common.taken, each = (size_t)common.count * taken;
  common.seconds = calloc((size_t)set->count * each + 1, sizeof *common.seconds);
  for (int w = 0; w < set->count && common.seconds; w++)
    for (int n = 0; n < common.count; n++)
      memcpy(common.seconds + (size_t)w * each + (size_t)n * taken, row(&fields[set->members[w]], common.candidates[n]),
             taken * sizeof *common.seconds);
  return common;
}

/* What the choice means on a set of workloads: times are geometric means. The default's follows from what was gained
 * turn by turn: clocks may step between turns, and medians of the two may lie on different sides of the step. */
static void tell_times(tune_choice *choice, const field *fields, const workload_set *set) {
  double gain = 0, seconds = 0, low = 0, high = 0;
  for (int w = 0; w < set->count; w++) {
    const field *f = &fields[set->members[w]];
    const double *ours = row(f, choice->winner), *theirs = row(f, choice->default_candidate);
    gain -= stats_compare(theirs, ours, f->taken).median / set->count;
    seconds += log(stats_median(ours, f->taken)) / set->count;
    low += log(stats_quantile(ours, f->taken, 0.1)) / set->count;
    high += log(stats_quantile(ours, f->taken, 0.9)) / set->count;
  }
  choice->gain = gain;
  choice->seconds = exp(seconds), choice->low = exp(low), choice->high = exp(high);
  choice->default_seconds = exp(seconds + gain);
}

/* Chooses by one set of workloads, and tells times of another one. */
static void choose(tune_choice *choice, const field *fields, const workload_set *judged, const workload_set *told) {
  field f = common_field(fields, judged);
  const int incumbent = incumbent_place(choice, &f), origin = place_of(&f, choice->default_candidate);
  if (incumbent >= 0 && origin >= 0 && f.seconds) {
    const int base = stats_base(f.seconds, f.taken, f.count, judged->count, incumbent, origin);
    choice->winner = f.candidates[stats_select(f.seconds, f.taken, f.count, judged->count, base)];
    tell_times(choice, fields, told);
  }
  free(f.seconds);
}

/* A workload's schedule is that of its bucket, in which others may be; of the `finished` ones. */
static void choose_for(tune_group *g, int w, const field *fields, int finished) {
  workload_set bucket = {0}, itself = {1, {w}};
  for (int v = 0; v < finished; v++)
    if (!strcmp(g->workloads[v].bucket, g->workloads[w].bucket))
      bucket.members[bucket.count++] = v;
  choose(&g->choices[w], fields, &bucket, &itself);
}

static void choose_for_all(tune_group *g, const field *fields) {
  workload_set all = {0};
  for (int w = 0; w < g->nworkloads; w++)
    all.members[all.count++] = w;
  choose(&g->choices[g->nworkloads], fields, &all, &all);
}

/* On a workload: everybody who was a finalist anywhere, the defaults and the incumbents, in the order of candidates. */
static field final_field(const tune_group *g, int w, int samples) {
  field f = {.taken = samples};
  for (int n = 0; n < g->count; n++) {
    bool in = plan_needs(g, n);
    for (int v = 0; v < g->nworkloads; v++)
      in |= g->candidates[n].on[v].finalist;
    if (in)
      add_racer(g, w, &f, n);
  }
  return f;
}

static int count_alive(const tune_group *g) {
  int alive = 0;
  for (int n = 0; n < g->count; n++)
    alive += candidate_alive(&g->candidates[n]);
  return alive;
}

/* The finals of all workloads, of which as many are finished as it says. A candidate that is dropped in one of them
 * must win none: then all are run again. */
static int finish_finals(search *s, field *fields) {
  tune_group *g = s->group;
  int finished = 0;
  for (int attempt = 0; attempt < RETRIES; attempt++) {
    const int alive = count_alive(g);
    for (finished = 0; finished < g->nworkloads; finished++) {
      field *f = &fields[finished];
      report_step(g, "final", finished, g->nworkloads, 0.75 + 0.25 * finished / g->nworkloads);
      free(f->seconds);
      *f = final_field(g, finished, s->settings->amount.final_samples);
      s->out_of_time =
          finished > 0 &&
          too_long(s->deadline, expected_seconds(s, finished, f, s->settings->amount.sample_seconds, WARM_UP));
      if (s->out_of_time)
        break;
      if (!time_turns(s, finished, f, s->settings->amount.sample_seconds))
        break;
    }
    if (count_alive(g) == alive)
      break;
  }
  return finished;
}

static void run_final(search *s) {
  tune_group *g = s->group;
  field fields[TUNE_WORKLOADS];
  memset(fields, 0, sizeof fields);
  const int finished = finish_finals(s, fields);
  for (int w = 0; w < finished; w++)
    choose_for(g, w, fields, finished);
  if (finished == g->nworkloads)
    choose_for_all(g, fields);
  else
    snprintf(g->outcome, sizeof g->outcome, "%s: %d of %d workloads are tuned",
             s->out_of_time ? "time ran out" : "a final failed", finished, g->nworkloads);
  g->tuned = finished > 0;
  for (int w = 0; w < g->nworkloads; w++)
    free(fields[w].seconds);
}

/* Whether a candidate can be chosen for a workload; for the last choice: for some workload. */
static bool can_be_chosen(const tune_group *g, int n, int w) {
  return w < g->nworkloads ? candidate_runs(&g->candidates[n], w) : candidate_alive(&g->candidates[n]);
}

/* An incumbent that cannot run gives way to the default; a default that cannot leaves nothing to compare with. */
static bool settle_incumbents(tune_group *g) {
  for (int w = 0; w <= g->nworkloads; w++) {
    tune_choice *choice = &g->choices[w];
    const tune_candidate *origin = &g->candidates[choice->default_candidate];
    if (!can_be_chosen(g, choice->default_candidate, w)) {
      snprintf(g->outcome, sizeof g->outcome, "the default schedule cannot be measured: %s: %.90s",
               origin->status[0] ? origin->status : "no kernel for a workload", origin->reason ? origin->reason : "");
      return false;
    }
    if (!can_be_chosen(g, choice->incumbent, w))
      choice->incumbent = choice->default_candidate;
  }
  return true;
}

/* Those that the compiler refused, for the journal. */
static void note_dropped(search *s) {
  for (int n = 0; n < s->group->count; n++) {
    const tune_candidate *c = &s->group->candidates[n];
    char name[512];
    if (candidate_alive(c) || !strcmp(c->status, "skipped"))
      continue;
    compile_name(s->group, c, name, sizeof name);
    client_note(s->client, name, c->status, c->reason ? c->reason : "");
  }
}

void search_group(tune_group *g, tune_client *client, const tune_settings *settings, double deadline) {
  search s = {g, client, settings, deadline, 0, 0.5, false};
  const double now = cli_seconds();
  if (deadline > 0)
    s.race_deadline = now + RACE_SHARE * (deadline > now ? deadline - now : 0);
  note_dropped(&s);
  if (!settle_incumbents(g))
    return;
  check_all(&s);
  if (!settle_incumbents(g))
    return;
  for (int w = 0; w < g->nworkloads; w++) {
    s.done = 0.5 + 0.25 * w / g->nworkloads;
    race(&s, w);
  }
  if (settle_incumbents(g))
    run_final(&s);
}
