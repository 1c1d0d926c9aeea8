/* cli_candidates.c: see cli_candidates.h. */
#include "cli_candidates.h"

#include <string.h>

#include "cli_json.h"
#include "cli_kernel.h"
#include "cli_table.h"
#include "qkv_tune.h"

static const char *const efforts[] = {"quick", "default", "full"};

/* What is printed of each. */
typedef struct listing {
  int64_t most, count;
  cli_table *table; /* NULL: JSON */
  cli_json *json;
} listing;

static int find_effort(const char *word, qkv_effort *out) {
  *out = QKV_EFFORT_DEFAULT;
  for (int n = 0; word && n < 3; n++)
    if (strcmp(word, efforts[n]) == 0) {
      *out = (qkv_effort)n;
      return EXIT_OK;
    }
  if (!word)
    return EXIT_OK;
  cli_error("--effort is quick, default or full, not '%s'", word);
  return EXIT_USAGE;
}

static void add_row(const qkv_candidate *c, int64_t number, cli_table *t) {
  const double terms[] = {c->seconds, c->tensor, c->exponential, c->shared, c->memory};
  table_cell(t, "%lld%s", (long long)number, c->is_default ? " *" : "");
  for (int n = 0; n < 5; n++)
    table_cell(t, "%.1f", terms[n] * 1e6);
  table_cell(t, "%.2f", c->waves);
  table_cell(t, "%s", c->family);
  table_cell(t, "%s", c->schedule);
  table_row(t);
}

static void add_object(const qkv_candidate *c, cli_json *j) {
  json_open(j, NULL, '{');
  json_string(j, "family", c->family);
  json_string(j, "schedule", c->schedule);
  json_boolean(j, "default", c->is_default != 0);
  json_real(j, "seconds", c->seconds);
  json_real(j, "tensor", c->tensor);
  json_real(j, "exponential", c->exponential);
  json_real(j, "shared", c->shared);
  json_real(j, "memory", c->memory);
  json_real(j, "waves", c->waves);
  json_close(j, '}');
}

static int add(const qkv_candidate *c, void *user) {
  listing *l = user;
  l->count++;
  if (l->most && l->count > l->most)
    return 0;
  if (l->table)
    add_row(c, l->count, l->table);
  else
    add_object(c, l->json);
  return 0;
}

static qkv_status list_text(const problem *p, const qkv_build_options *build, const qkv_workload *w, qkv_effort effort,
                            int64_t most) {
  static const char *const heads[] = {">#",      ">expected us", ">tensor", ">exponential", ">shared",
                                      ">memory", ">waves",       "family",  "schedule"};
  cli_table table;
  listing l = {.most = most, .table = &table};
  table_start(&table, 9, heads);
  qkv_status status = qkv_candidates(p->engine, p->spec, build, w, effort, add, &l);
  if (!status) {
    printf("%s: batch %lld, %lld queries, %lld keys; %lld candidates (%s), * a family's default\n", p->info.name,
           (long long)p->batch, (long long)p->len_q, (long long)p->len_k, (long long)l.count, efforts[effort]);
    table_print(&table, stdout);
  }
  table_free(&table);
  return status;
}

static int ignore(const qkv_candidate *c, void *user) {
  (void)c, (void)user;
  return 1;
}

static qkv_status list_json(const problem *p, const qkv_build_options *build, const qkv_workload *w, qkv_effort effort,
                            int64_t most) {
  cli_json json = {.stream = stdout};
  listing l = {.most = most, .json = &json};
  qkv_status status =
      qkv_candidates(p->engine, p->spec, build, w, effort, ignore, NULL); /* nothing is printed of a failure */
  if (status)
    return status;
  json_open(&json, NULL, '{');
  json_string(&json, "spec", p->info.name);
  json_integer(&json, "batch", p->batch);
  json_integer(&json, "q", p->len_q);
  json_integer(&json, "kv", p->len_k);
  json_string(&json, "effort", efforts[effort]);
  json_open(&json, "candidates", '[');
  status = qkv_candidates(p->engine, p->spec, build, w, effort, add, &l);
  json_close(&json, ']');
  json_integer(&json, "count", l.count);
  json_close(&json, '}');
  return status;
}

static int list(problem *p, const char *path, const problem_request *given, int64_t most, const char *word, bool json) {
  qkv_effort effort;
  int code = find_effort(word, &effort);
  if (code)
    return code;
  if ((code = problem_open(p, path, given)) != EXIT_OK)
    return code;
  qkv_build_options build = cli_kernel_build_options(cli_global.arch);
  build.batch = p->batch;
  build.len_q = p->len_q;
  build.len_k = p->len_k;
  const qkv_workload w = {.size = sizeof w, .batch = p->batch, .len_q = p->len_q, .len_k = p->len_k};
  const qkv_status status = (json ? list_json : list_text)(p, &build, &w, effort, most);
  return status ? cli_fail(path, status) : EXIT_OK;
}

int cli_candidates_explain(const char *path, const problem_request *sizes, int64_t most, const char *effort,
                           bool json) {
  problem p = {0};
  int code = list(&p, path, sizes, most, effort, json);
  problem_free(&p);
  return code;
}
