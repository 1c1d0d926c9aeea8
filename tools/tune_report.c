/* tune_report.c: what qkvc tune says: progress, the outcome of groups, plans, JSON and CSV. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cli_json.h"
#include "cli_table.h"
#include "tune.h"

tune_progress tune_now;

/* ---- Progress ---- */

/* "about 40 s left", by what has passed and how much of the run is done. */
static void time_left(char out[64], double part) {
  const double whole = (tune_now.group + part) / tune_now.groups, passed = cli_seconds() - tune_now.started;
  double left = whole > 0.02 ? passed * (1 - whole) / whole : -1;
  if (tune_now.deadline > 0 && (left < 0 || left > tune_now.deadline - cli_seconds()))
    left = fmax(0, tune_now.deadline - cli_seconds());
  out[0] = 0;
  if (left >= 120)
    snprintf(out, 64, ", about %.0f min left", left / 60);
  else if (left >= 0)
    snprintf(out, 64, ", about %.0f s left", left);
}

void report_step(const tune_group *g, const char *what, int done, int of, double part) {
  static char last[224];
  char step[192], left[64], bar[21];
  snprintf(step, sizeof step, "[%d/%d] %s %s: %s", tune_now.group + 1, tune_now.groups, g->name, g->phase, what);
  if (!isatty(STDERR_FILENO)) {
    if (strcmp(step, last) != 0)
      fprintf(stderr, "qkvc: %s\n", step);
    snprintf(last, sizeof last, "%s", step);
    return;
  }
  const int filled = (int)(20 * (tune_now.group + part) / tune_now.groups);
  for (int n = 0; n < 20; n++)
    bar[n] = n < filled ? '#' : '.';
  bar[20] = 0;
  time_left(left, part);
  cli_progress("%s %s %d/%d%s", bar, step, done, of, left);
}

/* ---- Text ---- */

static const char *schedule_of(const tune_group *g, int n) {
  return n >= 0 ? g->candidates[n].schedule : "";
}

static void print_choices(const tune_group *g) {
  static const char *const heads[] = {"workload", ">time", ">default", ">gain", "family", "schedule"};
  cli_table t;
  char a[32], b[32];
  table_start(&t, 6, heads);
  for (int w = 0; w <= g->nworkloads; w++) {
    const tune_choice *c = &g->choices[w];
    if (c->winner < 0)
      continue;
    table_cell(&t, "%s", w < g->nworkloads ? g->workloads[w].name : "all of them");
    table_cell(&t, "%s", format_seconds(a, c->seconds));
    table_cell(&t, "%s", format_seconds(b, c->default_seconds));
    table_cell(&t, "%.1f %%", 100 * (exp(c->gain) - 1));
    table_cell(&t, "%s", g->candidates[c->winner].family);
    table_cell(&t, "%s%s", schedule_of(g, c->winner), c->winner == c->default_candidate ? " (default)" : "");
    table_row(&t);
  }
  table_print(&t, stdout);
  table_free(&t);
}

void report_group(const tune_group *g) {
  int dropped = 0, skipped = 0;
  cli_progress_end();
  for (int n = 0; n < g->count; n++) {
    dropped += !candidate_alive(&g->candidates[n]);
    skipped += !strcmp(g->candidates[n].status, "skipped");
  }
  printf("%s %s: %d candidates", g->name, g->phase, g->count);
  if (dropped > skipped)
    printf(", %d failed", dropped - skipped);
  if (skipped)
    printf(", %d not tried for want of time", skipped);
  printf(", %.1f s\n", g->seconds);
  for (int n = 0; n < g->count; n++) {
    const tune_candidate *c = &g->candidates[n];
    if (candidate_alive(c) || !strcmp(c->status, "skipped"))
      continue;
    const char *reason = c->reason ? c->reason : "";
    printf("  %s: %s %s: %.*s\n", c->status, c->family, c->schedule, (int)strcspn(reason, "\n"), reason);
  }
  if (g->outcome[0])
    printf("  %s\n", g->outcome);
  if (g->tuned) {
    print_choices(g);
    report_clock_drift(g, stdout);
  }
  fflush(stdout);
}

/* How many candidates of a group are to be measured on a workload. */
static int count_wanted(const tune_group *g, int w) {
  int wanted = 0;
  for (int n = 0; n < g->count; n++)
    wanted += g->candidates[n].on[w].wanted;
  return wanted;
}

void report_plan(const tune_plan *plan, const tune_settings *s) {
  static const char *const heads[] = {"spec", "phase", "workload", ">batch", ">q", ">kv", ">candidates", ">estimate"};
  cli_table t;
  char text[32];
  double seconds = 0;
  table_start(&t, 8, heads);
  for (int i = 0; i < plan->count; i++) {
    const tune_group *g = &plan->groups[i];
    seconds += plan_seconds(g, s);
    for (int w = 0; w < g->nworkloads; w++) {
      table_cell(&t, "%s", w ? "" : g->name);
      table_cell(&t, "%s", w ? "" : g->phase);
      table_cell(&t, "%s", g->workloads[w].name);
      table_cell(&t, "%lld", (long long)g->workloads[w].batch);
      table_cell(&t, "%lld", (long long)g->workloads[w].len_q);
      table_cell(&t, "%lld", (long long)g->workloads[w].len_k);
      table_cell(&t, "%d", count_wanted(g, w));
      table_cell(&t, "%s", w ? "" : format_seconds(text, plan_seconds(g, s)));
      table_row(&t);
    }
  }
  table_print(&t, stdout);
  table_free(&t);
  printf("\n%d group%s, %s by estimate, with %d compilers at once\n", plan->count, plan->count == 1 ? "" : "s",
         format_seconds(text, seconds), s->jobs);
}

/* ---- JSON ---- */

void report_plan_json(const tune_plan *plan, const tune_settings *s) {
  cli_json j = {.stream = stdout};
  json_open(&j, NULL, '{');
  json_integer(&j, "jobs", s->jobs);
  json_open(&j, "groups", '[');
  for (int i = 0; i < plan->count; i++) {
    const tune_group *g = &plan->groups[i];
    json_open(&j, NULL, '{');
    json_string(&j, "spec", g->name);
    json_string(&j, "phase", g->phase);
    json_real(&j, "estimated_seconds", plan_seconds(g, s));
    json_open(&j, "workloads", '[');
    for (int w = 0; w < g->nworkloads; w++) {
      json_open(&j, NULL, '{');
      json_string(&j, "workload", g->workloads[w].name);
      json_integer(&j, "batch", g->workloads[w].batch);
      json_integer(&j, "q", g->workloads[w].len_q);
      json_integer(&j, "kv", g->workloads[w].len_k);
      json_integer(&j, "candidates", count_wanted(g, w));
      json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
  }
  json_close(&j, ']');
  json_close(&j, '}');
}

static void json_choice(cli_json *j, const tune_group *g, int w) {
  const tune_choice *c = &g->choices[w];
  json_open(j, NULL, '{');
  json_string(j, "workload", w < g->nworkloads ? g->workloads[w].name : NULL);
  if (w < g->nworkloads) {
    json_integer(j, "batch", g->workloads[w].batch);
    json_integer(j, "q", g->workloads[w].len_q);
    json_integer(j, "kv", g->workloads[w].len_k);
  }
  json_boolean(j, "tuned", c->winner >= 0);
  if (c->winner >= 0) {
    json_string(j, "family", g->candidates[c->winner].family);
    json_string(j, "schedule", g->candidates[c->winner].schedule);
    json_real(j, "seconds", c->seconds);
    json_real(j, "low", c->low);
    json_real(j, "high", c->high);
    json_string(j, "default_schedule", schedule_of(g, c->default_candidate));
    json_real(j, "default_seconds", c->default_seconds);
    json_real(j, "gain", exp(c->gain) - 1);
    json_boolean(j, "is_default", c->winner == c->default_candidate);
  }
  json_close(j, '}');
}

static void json_group(cli_json *j, const tune_group *g) {
  json_open(j, NULL, '{');
  json_string(j, "spec", g->name);
  json_string(j, "phase", g->phase);
  json_boolean(j, "tuned", g->tuned);
  json_string(j, "outcome", g->outcome[0] ? g->outcome : NULL);
  json_real(j, "seconds", g->seconds);
  json_integer(j, "candidates", g->count);
  json_open(j, "failed", '[');
  for (int n = 0; n < g->count; n++) {
    const tune_candidate *c = &g->candidates[n];
    if (candidate_alive(c))
      continue;
    json_open(j, NULL, '{');
    json_string(j, "family", c->family);
    json_string(j, "schedule", c->schedule);
    json_string(j, "status", c->status);
    json_string(j, "reason", c->reason);
    json_close(j, '}');
  }
  json_close(j, ']');
  json_open(j, "choices", '[');
  for (int w = 0; w <= g->nworkloads; w++)
    json_choice(j, g, w);
  json_close(j, ']');
  json_close(j, '}');
}

void report_json(const tune_plan *plan, const tune_device *device, double seconds, int restarts) {
  cli_json j = {.stream = stdout};
  json_open(&j, NULL, '{');
  json_string(&j, "device", device->kind);
  json_string(&j, "device_name", device->name);
  json_string(&j, "arch", device->arch);
  json_real(&j, "seconds", seconds);
  json_integer(&j, "worker_restarts", restarts);
  json_open(&j, "groups", '[');
  for (int n = 0; n < plan->count; n++)
    json_group(&j, &plan->groups[n]);
  json_close(&j, ']');
  json_close(&j, '}');
}

/* ---- CSV ---- */

/* Empty: not known. */
static void csv_number(FILE *out, double value) {
  if (value > 0)
    fprintf(out, ",%.9g", value);
  else
    fputc(',', out);
}

void report_csv(FILE *out, const tune_group *g) {
  if (!g) {
    fprintf(out, "spec,workload,batch,len_q,len_k,phase,family,schedule,is_default,model_seconds,median_seconds,"
                 "p10_seconds,p90_seconds,samples,registers,spill_bytes,status,sm_mhz\n");
    return;
  }
  for (int w = 0; w < g->nworkloads; w++)
    for (int n = 0; n < g->count; n++) {
      const tune_candidate *c = &g->candidates[n];
      const tune_timing *on = &c->on[w];
      const tune_workload *size = &g->workloads[w];
      if (!on->wanted && !on->samples)
        continue;
      fprintf(out, "%s,%s,%lld,%lld,%lld,%s,%s,\"%s\",%d", g->name, size->name, (long long)size->batch,
              (long long)size->len_q, (long long)size->len_k, g->phase, c->family, c->schedule,
              g->choices[w].default_candidate == n);
      csv_number(out, on->model);
      csv_number(out, on->seconds);
      csv_number(out, on->low);
      csv_number(out, on->high);
      fprintf(out, ",%d,%d,%d,%s", on->samples, c->registers, c->spills, c->status[0] ? c->status : "ok");
      csv_number(out, on->clocks.sm_mhz);
      fputc('\n', out);
    }
  fflush(out);
}
