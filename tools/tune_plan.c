/* tune_plan.c: what is to be tuned: specs, phases, workloads, and the candidates of each. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"
#include "tune_inputs.h"

/* Up to so many queries a call is one of phase decode, as in qkv_build_options. */
enum { DECODE_QUERIES = 16 };

static const char *const phases[] = {"prefill", "decode"};

static bool is_decode(const tune_workload *w) {
  return w->len_q <= DECODE_QUERIES;
}

/* ---- Workloads ---- */

/* "8x1x4096": batch, queries, keys. */
static bool parse_sizes(const char *word, tune_workload *out) {
  long long sizes[3];
  int used = 0;
  if (sscanf(word, "%lldx%lldx%lld%n", &sizes[0], &sizes[1], &sizes[2], &used) != 3 || word[used])
    return false;
  for (int n = 0; n < 3; n++)
    if (sizes[n] < 1 || sizes[n] > INT32_MAX)
      return false;
  snprintf(out->name, sizeof out->name, "%s", word);
  out->batch = sizes[0], out->len_q = sizes[1], out->len_k = sizes[2];
  return true;
}

/* The n-th workload of a spec. */
static bool get_workload(const qkv_spec *spec, int n, tune_workload *out) {
  qkv_workload w = {.size = sizeof w};
  if (qkv_spec_get_workload(spec, n, &w) != QKV_OK)
    return false;
  snprintf(out->name, sizeof out->name, "%s", w.name);
  out->batch = w.batch, out->len_q = w.len_q, out->len_k = w.len_k;
  return w.batch > 0 && w.len_q > 0 && w.len_k > 0;
}

static bool listed(const cli_list *list, const char *name) {
  for (int n = 0; n < list->count; n++)
    if (!strcmp(list->items[n], name))
      return true;
  return false;
}

/* The workloads to tune: those of the spec that are asked for, or all, and sizes of the command line. */
static int collect_workloads(const qkv_spec *spec, const qkv_spec_info *info, const tune_settings *s,
                             tune_workload out[TUNE_WORKLOADS]) {
  int count = 0;
  for (int n = 0; n < info->nworkloads && count < TUNE_WORKLOADS; n++)
    if (get_workload(spec, n, &out[count]) && (!s->workloads.count || listed(&s->workloads, out[count].name)))
      count++;
  for (int n = 0; n < s->workloads.count && count < TUNE_WORKLOADS; n++)
    count += parse_sizes(s->workloads.items[n], &out[count]);
  return count;
}

/* Every --workload must be sizes or a name that some spec has. */
static int check_names(const tune_settings *s, const bool *known) {
  for (int n = 0; n < s->workloads.count; n++) {
    tune_workload sizes;
    if (known[n] || parse_sizes(s->workloads.items[n], &sizes))
      continue;
    cli_error("--workload %s: no spec has a workload of that name; sizes are BATCHxQUERIESxKEYS, such as 32x1x4096",
              s->workloads.items[n]);
    return EXIT_USAGE;
  }
  return EXIT_OK;
}

/* ---- Groups ---- */

static uint64_t fnv1a(const char *text) {
  uint64_t hash = 14695981039346656037u;
  for (; *text; text++)
    hash = (hash ^ (unsigned char)*text) * 1099511628211u;
  return hash;
}

static int spec_hash(const qkv_spec *spec, char out[17]) {
  char *canonical = NULL;
  qkv_status status = qkv_spec_canonical(spec, &canonical);
  if (status)
    return cli_fail(NULL, status);
  snprintf(out, 17, "%016" PRIx64, fnv1a(canonical));
  qkv_string_free(canonical);
  return EXIT_OK;
}

/* The group of a phase, if it has workloads. */
static void make_group(const char *path, const qkv_spec *spec, const qkv_spec_info *info, const char *hash,
                       const char *phase, const tune_workload *workloads, int count, tune_group *g) {
  memset(g, 0, sizeof *g);
  g->path = path;
  g->aligned = tune_rows_aligned(info);
  snprintf(g->name, sizeof g->name, "%s", info->name);
  snprintf(g->phase, sizeof g->phase, "%s", phase);
  snprintf(g->hash, sizeof g->hash, "%s", hash);
  for (int n = 0; n < count; n++)
    if (is_decode(&workloads[n]) == !strcmp(phase, "decode")) {
      tune_workload *w = &g->workloads[g->nworkloads++];
      *w = workloads[n];
      qkv_tuned_bucket(spec, phase, w->batch, w->len_q, w->len_k, w->bucket);
    }
  for (int n = 0; n <= TUNE_WORKLOADS; n++)
    g->choices[n] = (tune_choice){.winner = -1, .incumbent = -1, .default_candidate = -1};
}

/* Adds a spec's groups to the plan, which has room for two. */
static int add_spec(qkv_engine *engine, const char *path, const tune_settings *s, tune_plan *plan, bool *known) {
  qkv_spec *spec = NULL;
  qkv_status status = qkv_spec_load(engine, path, &spec);
  if (status)
    return cli_fail_spec(path, status);
  qkv_spec_info info = {.size = sizeof info};
  qkv_spec_get_info(spec, &info);
  tune_workload workloads[TUNE_WORKLOADS];
  char hash[17];
  const int count = collect_workloads(spec, &info, s, workloads);
  for (int n = 0; n < s->workloads.count; n++)
    for (int w = 0; w < count; w++)
      known[n] |= !strcmp(s->workloads.items[n], workloads[w].name);
  int code = spec_hash(spec, hash);
  for (int n = 0; n < 2 && !code; n++) {
    if (s->phase && strcmp(s->phase, phases[n]) != 0)
      continue;
    make_group(path, spec, &info, hash, phases[n], workloads, count, &plan->groups[plan->count]);
    plan->count += plan->groups[plan->count].nworkloads > 0;
  }
  qkv_spec_free(spec);
  return code;
}

/* Keeps the groups of this shard: of each phase every n-th, so that specs of one kind, and phases, are spread. */
static void keep_shard(tune_plan *plan, const tune_settings *s) {
  int kept = 0, of_phase[2] = {0, 1};
  for (int n = 0; n < plan->count; n++) {
    const bool decode = strcmp(plan->groups[n].phase, "decode") == 0;
    if (of_phase[decode]++ % s->shards == s->shard)
      plan->groups[kept++] = plan->groups[n];
  }
  plan->count = kept;
}

int plan_make(qkv_engine *engine, char *const *paths, int count, const tune_settings *s, tune_plan *plan) {
  bool known[CLI_LIST_MAX] = {false};
  memset(plan, 0, sizeof *plan);
  plan->groups = calloc((size_t)count * 2, sizeof *plan->groups);
  if (!plan->groups) {
    cli_error("out of memory");
    return EXIT_FAILED;
  }
  int code = EXIT_OK;
  for (int n = 0; n < count && !code; n++)
    code = add_spec(engine, paths[n], s, plan, known);
  if (!code)
    code = check_names(s, known);
  if (!code && !plan->count) {
    cli_error("there is nothing to tune: no workload%s%s; give --workload BATCHxQUERIESxKEYS",
              s->phase ? " of phase " : "", s->phase ? s->phase : "");
    code = EXIT_USAGE;
  }
  if (!code)
    keep_shard(plan, s);
  return code;
}

static void free_candidates(tune_group *g) {
  for (int n = 0; n < g->count; n++) {
    free(g->candidates[n].family);
    free(g->candidates[n].schedule);
    free(g->candidates[n].reason);
  }
  free(g->candidates);
}

void plan_free(tune_plan *plan) {
  for (int n = 0; n < plan->count; n++)
    free_candidates(&plan->groups[n]);
  free(plan->groups);
  memset(plan, 0, sizeof *plan);
}

/* ---- Candidates ---- */

void candidate_drop(tune_candidate *c, const char *status, const char *reason) {
  snprintf(c->status, sizeof c->status, "%s", status);
  free(c->reason);
  c->reason = reason ? strdup(reason) : NULL;
}

int plan_candidate(tune_group *g, const char *family, const char *schedule) {
  for (int n = 0; n < g->count; n++)
    if (!strcmp(g->candidates[n].family, family) && !strcmp(g->candidates[n].schedule, schedule))
      return n;
  if (g->count == g->capacity) {
    const int capacity = g->capacity ? 2 * g->capacity : 64;
    tune_candidate *more = realloc(g->candidates, (size_t)capacity * sizeof *more);
    if (!more)
      return -1;
    g->candidates = more;
    g->capacity = capacity;
  }
  tune_candidate *c = &g->candidates[g->count];
  memset(c, 0, sizeof *c);
  c->family = strdup(family);
  c->schedule = strdup(schedule);
  return c->family && c->schedule ? g->count++ : -1;
}

bool plan_needs(const tune_group *g, int candidate) {
  for (int w = 0; w <= g->nworkloads; w++)
    if (g->choices[w].default_candidate == candidate || g->choices[w].incumbent == candidate)
      return true;
  return false;
}

/* The model's list of one workload. */
typedef struct ranking {
  int count, capacity;
  struct {
    char family[64], schedule[256];
    bool is_default;
    double seconds;
  } * rows;
} ranking;

static void add_row(const record *item, void *user) {
  ranking *r = user;
  const char *family = record_text(item, "family"), *schedule = record_text(item, "schedule");
  if (!family || !schedule)
    return;
  if (r->count == r->capacity) {
    const int capacity = r->capacity ? 2 * r->capacity : 64;
    void *rows = realloc(r->rows, (size_t)capacity * sizeof *r->rows);
    if (!rows)
      return;
    r->rows = rows;
    r->capacity = capacity;
  }
  snprintf(r->rows[r->count].family, sizeof r->rows->family, "%s", family);
  snprintf(r->rows[r->count].schedule, sizeof r->rows->schedule, "%s", schedule);
  r->rows[r->count].is_default = record_number(item, "default", 0) != 0;
  r->rows[r->count].seconds = record_number(item, "seconds", 0);
  r->count++;
}

/* A question about a workload; w NULL: about maxima that are not declared, of which the model looks at the first one.
 */
static char *question(const tune_group *g, const char *ask, const tune_workload *w, const tune_settings *s, int most) {
  record_line l;
  if (!record_begin(&l))
    return NULL;
  record_put(&l.to, "ask", ask);
  record_put(&l.to, "spec", g->path);
  record_put(&l.to, "phase", g->phase);
  record_put_number(&l.to, "batch", w ? (double)w->batch : 0);
  record_put_number(&l.to, "q", w ? (double)w->len_q : 0);
  record_put_number(&l.to, "kv", w ? (double)w->len_k : 0);
  const tune_workload *modelled = w ? w : &g->workloads[0];
  record_put_numbers(&l.to, "sizes", (double[]){(double)modelled->batch, (double)modelled->len_q, (double)modelled->len_k},
                     3);
  record_put_number(&l.to, "effort", s->effort);
  record_put_number(&l.to, "most", most);
  return record_end(&l);
}

static int ask_ranking(const tune_group *g, tune_client *client, const tune_settings *s, const tune_workload *w,
                       int most, ranking *out) {
  record answer = {0};
  char *line = question(g, "candidates", w, s, most);
  client_ask(client, line ? line : "", s->limit, &answer, add_row, out);
  free(line);
  const bool ok = answer_is(&answer, "ok") && out->count > 0;
  if (!ok) {
    const char *reason = record_text(&answer, "reason");
    cli_error("%s %s: %s", g->name, g->phase, reason ? reason : "no schedule is legal");
  }
  record_free(&answer);
  return ok ? EXIT_OK : EXIT_SPEC;
}

/* Candidates of all rankings, the best of each first, then the second of each and so on: an order that is no more in
 * favour of one workload than of another. */
static bool merge_rankings(tune_group *g, const ranking *rankings) {
  int longest = 0;
  for (int w = 0; w < g->nworkloads; w++)
    longest = rankings[w].count > longest ? rankings[w].count : longest;
  for (int rank = 0; rank < longest; rank++)
    for (int w = 0; w < g->nworkloads; w++) {
      if (rank >= rankings[w].count)
        continue;
      const int n = plan_candidate(g, rankings[w].rows[rank].family, rankings[w].rows[rank].schedule);
      if (n < 0)
        return false;
      tune_timing *on = &g->candidates[n].on[w];
      on->model = rankings[w].rows[rank].seconds;
      on->wanted = true;
      if (rankings[w].rows[rank].is_default && g->choices[w].default_candidate < 0)
        g->choices[w].default_candidate = n;
    }
  return true;
}

/* The tables' entry for a workload, else the default, is what a candidate has to beat. */
static void find_incumbent(tune_group *g, tune_client *client, const tune_settings *s, int w) {
  const tune_workload *workload = w < g->nworkloads ? &g->workloads[w] : NULL;
  tune_choice *choice = &g->choices[w];
  record answer = {0};
  char name[256], *line = question(g, "find", workload, s, 1);
  snprintf(name, sizeof name, "find %s %s %s %s", g->name, g->hash, g->phase, workload ? workload->name : "-");
  client_ask_once(client, name, line ? line : "", s->limit, &answer);
  free(line);
  choice->incumbent = choice->default_candidate;
  if (answer_is(&answer, "ok") && record_number(&answer, "found", 0) > 0) {
    const int n = plan_candidate(g, record_text(&answer, "family"), record_text(&answer, "schedule"));
    choice->incumbent = n >= 0 ? n : choice->incumbent;
    for (int v = 0; v < g->nworkloads && n >= 0; v++)
      g->candidates[n].on[v].wanted |= v == w;
  }
  record_free(&answer);
}

int plan_candidates(tune_group *g, tune_client *client, const tune_settings *s) {
  ranking rankings[TUNE_WORKLOADS + 1] = {{0}};
  const int any = g->nworkloads;
  int code = EXIT_OK;
  for (int w = 0; w < g->nworkloads && !code; w++)
    code = ask_ranking(g, client, s, &g->workloads[w], s->amount.candidates, &rankings[w]);
  if (!code)
    code = ask_ranking(g, client, s, NULL, 1, &rankings[any]);
  if (!code) {
    g->choices[any].default_candidate = plan_candidate(g, rankings[any].rows[0].family, rankings[any].rows[0].schedule);
    if (g->choices[any].default_candidate < 0 || !merge_rankings(g, rankings)) {
      cli_error("out of memory");
      code = EXIT_FAILED;
    }
  }
  for (int w = 0; w <= any && !code; w++)
    find_incumbent(g, client, s, w);
  for (int w = 0; w <= any; w++)
    free(rankings[w].rows);
  return code;
}

double plan_seconds(const tune_group *g, const tune_settings *s) {
  /* Of one kernel: compiled, checked, prepared, and warmed up; the rest is what the model says of the calls. */
  const double compile = s->emulated ? 4 : 1, check = s->emulated ? 1 : 0.05, warm_up = s->emulated ? 0 : 0.05;
  double seconds = 1 + g->count * (compile / s->jobs + check);
  for (int w = 0; w < g->nworkloads; w++)
    for (int n = 0; n < g->count; n++) {
      const double call = fmax(g->candidates[n].on[w].model, s->emulated ? 0.2 : s->amount.sample_seconds);
      if (g->candidates[n].on[w].wanted)
        seconds += warm_up + 4 * s->amount.first_samples * call;
      if (n < s->amount.finalists * g->nworkloads)
        seconds += warm_up / 2 + s->amount.final_samples * call;
    }
  return seconds;
}
