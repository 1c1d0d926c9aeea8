/* report_tune.c: what a tuning run found: every candidate by rank, the model beside the measurement, heat maps. */
#include "report_tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "svg.h"

enum { DETAILS_MOST = 8, TABLE_MOST = 200, MODEL_FIRST = 8 };

/* ---- Runs ---- */

static const report_row *sorted_rows;
static int compare(double x, double y, int a, int b) {
  return x < y ? -1 : x > y ? 1 : a - b;
}
static int by_time(const void *a, const void *b) {
  const int m = *(const int *)a, n = *(const int *)b;
  return compare(sorted_rows[m].median, sorted_rows[n].median, m, n);
}
static int by_model(const void *a, const void *b) {
  const int m = *(const int *)a, n = *(const int *)b;
  return compare(sorted_rows[m].model, sorted_rows[n].model, m, n);
}

static bool measured(const report_row *row) {
  return isfinite(row->median);
}

static void measure_model(const report *r, tune_run *run) {
  double *model = report_array(run->count, sizeof *model), *time = report_array(run->count, sizeof *time);
  run->pairs = 0;
  for (int n = 0; n < run->count; n++) {
    const report_row *row = &r->rows[run->rows[n]];
    if (isnan(row->model))
      continue;
    model[run->pairs] = row->model;
    time[run->pairs++] = row->median;
  }
  run->correlation = report_rank_correlation(run->pairs, model, time);
  free(model);
  free(time);
  run->first_eight = NAN;
  for (int n = 0; n < run->nmodelled && n < MODEL_FIRST; n++) {
    const report_row *row = &r->rows[run->modelled[n]];
    if (measured(row))
      run->first_eight = fmin(run->first_eight, row->median); /* fmin takes a number before NAN */
  }
}

static tune_run make_run(const report *r, const report_group *group) {
  tune_run run = {.candidates = group->count, .best = NAN, .plain = NAN};
  run.rows = report_array(group->count, sizeof *run.rows);
  run.modelled = report_array(group->count, sizeof *run.modelled);
  for (int n = 0; n < group->count; n++) {
    const report_row *row = &r->rows[group->rows[n]];
    if (measured(row))
      run.rows[run.count++] = group->rows[n];
    if (isfinite(row->model))
      run.modelled[run.nmodelled++] = group->rows[n];
    if (measured(row) && (row->is_default == 1 || !strcmp(row->source, "default")))
      run.plain = fmin(run.plain, row->median);
  }
  sorted_rows = r->rows;
  qsort(run.rows, (size_t)run.count, sizeof *run.rows, by_time);
  qsort(run.modelled, (size_t)run.nmodelled, sizeof *run.modelled, by_model);
  run.label = group->label;
  run.best = run.count ? r->rows[run.rows[0]].median : NAN;
  measure_model(r, &run);
  return run;
}

static void free_run(tune_run *run) {
  free(run->rows);
  free(run->modelled);
}

static report_groups collect(report *r) {
  report_groups runs = {0};
  for (int n = 0; n < r->nrows; n++)
    if (r->files[r->rows[n].file].kind == REPORT_TUNE)
      groups_add(&runs, groups_in_file(r, report_run(r, &r->rows[n]), &r->rows[n]), n);
  groups_name_files(r, &runs);
  return runs;
}

/* ---- Pictures ---- */

/* Families of a run's measured rows, in the order of their fastest: a colour each, the last for all further ones. */
static int find_families(const report *r, const tune_run *run, const char *names[SVG_SERIES]) {
  int count = 0;
  for (int n = 0; n < run->count; n++) {
    const char *family = report_who(&r->rows[run->rows[n]]);
    int at = 0;
    while (at < count && strcmp(names[at], family) != 0)
      at++;
    if (at == count && count < SVG_SERIES)
      names[count++] = family;
  }
  return count;
}

static int family_number(const char *family, int count, const char *const names[SVG_SERIES]) {
  for (int n = 0; n < count; n++)
    if (!strcmp(names[n], family))
      return n;
  return count - 1;
}

typedef enum cloud { RANK, MODEL } cloud;

static double across(const report *r, const tune_run *run, int n, cloud what) {
  return what == RANK ? n + 1 : r->rows[run->rows[n]].model;
}

/* Measured times against rank, or against the model's. */
static void draw_cloud(const report *r, FILE *out, const tune_run *run, cloud what, int families,
                       const char *const names[SVG_SERIES]) {
  svg_plot p = {.out = out,
                .width = 960,
                .height = what == RANK ? 320 : 420,
                .x = {.label = what == RANK ? "rank, fastest first" : "what the model expected",
                      .logarithmic = what == MODEL,
                      .unit = what == MODEL ? SVG_SECONDS : SVG_PLAIN},
                .y = {.label = "measured, median", .unit = SVG_SECONDS, .logarithmic = true}};
  double x0 = what == RANK ? 0 : INFINITY, x1 = 0, y1 = 0;
  for (int n = 0; n < run->count; n++) {
    if (isnan(across(r, run, n, what)))
      continue;
    x0 = fmin(x0, across(r, run, n, what)), x1 = fmax(x1, across(r, run, n, what));
    y1 = fmax(y1, r->rows[run->rows[n]].median);
  }
  svg_fit(&p.x, x0, x1);
  svg_fit(&p.y, run->best, y1);
  svg_begin(&p, what == RANK ? "Measured times of all candidates, in order" : "Measured time against the model's",
            "A dot a candidate");
  svg_axes(&p, 76, 20, 36, 50);
  if (what == RANK && !isnan(run->plain)) {
    svg_rule(&p, "ceiling", p.x.least, run->plain, p.x.most, run->plain);
    svg_text(&p, p.x.to - 4, svg_at(&p.y, run->plain) - 6, "end", "small", "built-in default");
  }
  if (what == MODEL) {
    const double least = fmax(p.x.least, p.y.least), most = fmin(p.x.most, p.y.most);
    if (least < most)
      svg_rule(&p, "one", least, least, most, most);
  }
  for (int f = 0; f < families; f++) {
    double *x = report_array(run->count, sizeof *x), *y = report_array(run->count, sizeof *y);
    int count = 0;
    for (int n = 0; n < run->count; n++)
      if (family_number(report_who(&r->rows[run->rows[n]]), families, names) == f) {
        x[count] = across(r, run, n, what);
        y[count++] = r->rows[run->rows[n]].median;
      }
    svg_dots(&p, f, count, x, y);
    free(x);
    free(y);
  }
  svg_end(&p);
}

static void write_table(report *r, FILE *out, const tune_run *run) {
  static const char *const heads[] = {">rank",          "family",         "schedule", ">\xC2\xB5s median",
                                      ">\xC2\xB5s p10", ">\xC2\xB5s p90", ">samples", ">\xC2\xB5s model",
                                      ">over best"};
  page_table(out, "Candidates of this run", false, 9, heads);
  const int shown = run->count < TABLE_MOST ? run->count : TABLE_MOST;
  for (int n = 0; n < shown; n++) {
    const report_row *row = &r->rows[run->rows[n]];
    page_row(out);
    page_number(out, n + 1);
    page_cell(out, row->family);
    page_cell(out, row->schedule);
    page_number(out, 1e6 * row->median);
    page_number(out, 1e6 * row->p10);
    page_number(out, 1e6 * row->p90);
    page_number(out, row->samples);
    page_number(out, 1e6 * row->model);
    page_number(out, row->median / run->best);
    page_row_end(out);
  }
  page_table_end(out);
  if (shown < run->count)
    fprintf(out, "<p class=\"quiet\">The table has the fastest %d of %d.</p>\n", shown, run->count);
}

/* How many candidates ended with each status other than ok. */
static void write_failures(const report *r, FILE *out, const report_group *group) {
  report_groups failures = {0};
  for (int n = 0; n < group->count; n++)
    if (!measured(&r->rows[group->rows[n]]))
      groups_add(&failures, *r->rows[group->rows[n]].status ? r->rows[group->rows[n]].status : "no time",
                 group->rows[n]);
  for (int n = 0; n < failures.count; n++) {
    fputs(n ? ", " : "<p class=\"quiet\">Without a time: ", out);
    page_text(out, failures.items[n].label);
    fprintf(out, " %d", failures.items[n].count);
  }
  fputs(failures.count ? ".</p>\n" : "", out);
  groups_free(&failures);
}

static void write_run(report *r, FILE *out, const report_group *group) {
  tune_run run = make_run(r, group);
  const char *names[SVG_SERIES];
  const int families = find_families(r, &run, names);
  page_figure(out, run.label);
  if (run.count) {
    draw_cloud(r, out, &run, RANK, families, names);
    page_legend(out, families, names, false);
    if (run.pairs) {
      fputs("<h3>Model and measurement</h3>\n", out);
      draw_cloud(r, out, &run, MODEL, families, names);
      if (!isnan(run.correlation))
        fprintf(out, "<p class=\"quiet\">Rank correlation (Spearman) %.2f; dotted: where both are equal.</p>\n",
                run.correlation);
    }
    heat_maps(r, out, &run);
    write_table(r, out, &run);
  } else {
    page_no_data(out, "no candidate has a time.");
  }
  write_failures(r, out, group);
  page_figure_end(out);
  free_run(&run);
}

static void write_overview(report *r, FILE *out, const report_groups *runs) {
  static const char *const heads[] = {"workload",
                                      ">candidates",
                                      ">measured",
                                      ">\xC2\xB5s best",
                                      ">default / best",
                                      ">rank correlation",
                                      ">model's first 8 / best",
                                      "fastest schedule"};
  page_table(out, "All workloads", true, 8, heads);
  for (int g = 0; g < runs->count; g++) {
    tune_run run = make_run(r, &runs->items[g]);
    page_row(out);
    page_cell(out, run.label);
    page_number(out, run.candidates);
    page_number(out, run.count);
    page_number(out, 1e6 * run.best);
    page_short(out, run.plain / run.best);
    page_short(out, run.correlation);
    page_short(out, run.first_eight / run.best);
    page_cell(out, run.count ? r->rows[run.rows[0]].schedule : "");
    page_row_end(out);
    free_run(&run);
  }
  page_table_end(out);
}

void landscape_section(report *r, FILE *out) {
  report_groups runs = collect(r);
  page_section(
      out, "landscape", "Schedules of a tuning run",
      "Every candidate that was measured, fastest first; the model's time beside the measured one; and the best "
      "time for each pair of values of the axes that matter most. A time is that of the last round that a "
      "candidate was in: those with the most samples are the surest. \"Model's first 8\": the fastest of the eight "
      "that the model expected the most of.");
  if (!runs.count)
    page_no_data(out, "no file is of a tuning run (qkvc tune --csv).");
  else
    write_overview(r, out, &runs);
  for (int g = 0; g < runs.count && g < DETAILS_MOST; g++)
    write_run(r, out, &runs.items[g]);
  if (runs.count > DETAILS_MOST)
    fprintf(out, "<p class=\"quiet\">Pictures of the first %d of %d workloads; the table has all.</p>\n", DETAILS_MOST,
            runs.count);
  page_section_end(out);
  groups_free(&runs);
}

void landscape_json(report *r, cli_json *j) {
  report_groups runs = collect(r);
  json_open(j, "landscape", '[');
  for (int g = 0; g < runs.count; g++) {
    tune_run run = make_run(r, &runs.items[g]);
    const report_row *best = run.count ? &r->rows[run.rows[0]] : NULL;
    json_open(j, NULL, '{');
    json_string(j, "workload", run.label);
    json_integer(j, "candidates", run.candidates);
    json_integer(j, "measured", run.count);
    json_string(j, "family", best ? best->family : NULL);
    json_string(j, "schedule", best ? best->schedule : NULL);
    json_real(j, "best_seconds", run.best);
    json_real(j, "default_seconds", run.plain);
    json_real(j, "rank_correlation", run.correlation);
    json_real(j, "model_first_8_over_best", run.first_eight / run.best);
    json_close(j, '}');
    free_run(&run);
  }
  json_close(j, ']');
  groups_free(&runs);
}
