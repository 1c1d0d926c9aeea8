/* report_lines.c: time against length and against batch. A line is one contestant (or family) on one problem, all else
 * equal; where the batch shrinks as sequences grow, lines are of as many tokens in all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "svg.h"

typedef enum against { LENGTH, BATCH } against;

static double position(const report_row *row, against what) {
  return what == LENGTH ? row->len_k : row->batch;
}

static bool has_time(const report *r, const report_row *row, against what) {
  return r->files[row->file].kind != REPORT_TUNE && isfinite(row->median) && position(row, what) > 0;
}

static const char *count_text(report *r, double value) {
  char number[32];
  return fmod(value, 1024) == 0 ? report_text(r, "%s", svg_number(number, value, SVG_TOKENS))
                                : report_text(r, "%.0f", value);
}

/* What is equal along a line. Queries that are as many as the keys grow with them, unless SAME_QUERIES. */
typedef enum equal { SAME_BATCH, SAME_QUERIES, SAME_TOKENS, SAME_LENGTHS } equal;

static const char *line_label(report *r, const report_row *row, equal what) {
  const char *problem = report_problem(r, row), *rest = "";
  const char *queries = isnan(row->len_q) ? "" : report_text(r, ", q %s", count_text(r, row->len_q));
  if (what == SAME_LENGTHS)
    rest = isnan(row->len_k) ? "" : report_text(r, ", kv %s", count_text(r, row->len_k));
  else if (what == SAME_TOKENS && !isnan(row->batch))
    rest = report_text(r, ", %s tokens", count_text(r, row->batch * row->len_k));
  else if (!isnan(row->batch))
    rest = report_text(r, ", batch %.0f", row->batch);
  if ((what == SAME_BATCH || what == SAME_TOKENS) && row->len_q == row->len_k)
    queries = ", q = kv";
  const char *label = report_text(r, "%s%s%s%s%s", problem, *problem ? ", " : "", report_who(row), queries, rest);
  return groups_in_file(r, label, row);
}

/* How many positions a group has. */
static int distinct(const report *r, const report_group *group, against what) {
  int count = 0;
  for (int n = 0; n < group->count; n++) {
    bool seen = false;
    for (int m = 0; m < n && !seen; m++)
      seen = position(&r->rows[group->rows[n]], what) == position(&r->rows[group->rows[m]], what);
    count += !seen;
    if (count == 2)
      break;
  }
  return count;
}

/* Moves rows from rows[0..count) to lines: to those there are, or to new ones of at least two positions. Returns how
 * many rows are left. */
static int find_lines(report *r, int *rows, int count, against what, equal how, report_groups *lines) {
  report_groups groups = {0};
  int left = 0;
  for (int n = 0; n < count; n++)
    groups_add(&groups, line_label(r, &r->rows[rows[n]], how), rows[n]);
  for (int g = 0; g < groups.count; g++) {
    const report_group *group = &groups.items[g];
    const bool line = groups_find(lines, group->label) || distinct(r, group, what) > 1;
    for (int n = 0; n < group->count; n++)
      if (line)
        groups_add(lines, group->label, group->rows[n]);
      else
        rows[left++] = group->rows[n];
  }
  groups_free(&groups);
  return left;
}

/* The lines; *alone: rows that no other is comparable with. */
static report_groups collect(report *r, against what, int *alone) {
  static const equal tries[] = {SAME_BATCH, SAME_QUERIES, SAME_TOKENS};
  report_groups lines = {0};
  int *rows = report_array(r->nrows, sizeof *rows), count = 0;
  for (int n = 0; n < r->nrows; n++)
    if (has_time(r, &r->rows[n], what))
      rows[count++] = n;
  if (what == BATCH)
    count = find_lines(r, rows, count, what, SAME_LENGTHS, &lines);
  for (size_t n = 0; what == LENGTH && n < sizeof tries / sizeof *tries; n++)
    count = find_lines(r, rows, count, what, tries[n], &lines);
  *alone = count;
  free(rows);
  groups_name_files(r, &lines);
  return lines;
}

/* ---- Pictures ---- */

static const report_row *sorted_rows;
static against sorted_by;
static int by_position(const void *a, const void *b) {
  const double x = position(&sorted_rows[*(const int *)a], sorted_by),
               y = position(&sorted_rows[*(const int *)b], sorted_by);
  return x < y ? -1 : x > y ? 1 : *(const int *)a - *(const int *)b;
}

static void sort_lines(const report *r, report_groups *lines, against what) {
  sorted_rows = r->rows;
  sorted_by = what;
  for (int g = 0; g < lines->count; g++)
    qsort(lines->items[g].rows, (size_t)lines->items[g].count, sizeof(int), by_position);
}

static void draw(const report *r, FILE *out, const report_group *const *lines, int count, against what) {
  svg_plot p = {
      .out = out,
      .width = 960,
      .height = 420,
      .x = {.label = what == LENGTH ? "keys of a sequence" : "sequences", .unit = SVG_TOKENS, .logarithmic = true},
      .y = {.label = "time of a call, median", .unit = SVG_SECONDS, .logarithmic = true}};
  double x0 = INFINITY, x1 = 0, y0 = INFINITY, y1 = 0;
  for (int g = 0; g < count; g++)
    for (int n = 0; n < lines[g]->count; n++) {
      const report_row *row = &r->rows[lines[g]->rows[n]];
      x0 = fmin(x0, position(row, what)), x1 = fmax(x1, position(row, what));
      y0 = fmin(y0, row->median), y1 = fmax(y1, row->median);
    }
  svg_fit(&p.x, x0, x1);
  svg_fit(&p.y, y0, y1);
  svg_begin(&p, what == LENGTH ? "Time against length" : "Time against batch",
            "Both axes logarithmic; a line a series");
  svg_axes(&p, 76, 20, 36, 50);
  for (int g = 0; g < count; g++) {
    const int points = lines[g]->count;
    double *x = report_array(points, sizeof *x), *y = report_array(points, sizeof *y);
    for (int n = 0; n < points; n++) {
      x[n] = position(&r->rows[lines[g]->rows[n]], what);
      y[n] = r->rows[lines[g]->rows[n]].median;
    }
    svg_line(&p, g, points, x, y);
    svg_markers(&p, g, points, x, y);
    free(x);
    free(y);
  }
  svg_end(&p);
}

static void write_table(report *r, FILE *out, const report_group *const *lines, int count) {
  static const char *const heads[] = {"series",         "workload",       "sizes",    ">\xC2\xB5s median",
                                      ">\xC2\xB5s p10", ">\xC2\xB5s p90", ">TFLOP/s", ">GB/s"};
  page_table(out, "Numbers of this plot", false, 8, heads);
  for (int g = 0; g < count; g++)
    for (int n = 0; n < lines[g]->count; n++) {
      const report_row *row = &r->rows[lines[g]->rows[n]];
      page_row(out);
      page_cell(out, lines[g]->label);
      page_cell(out, row->workload);
      page_cell(out, report_sizes(r, row));
      page_number(out, 1e6 * row->median);
      page_number(out, 1e6 * row->p10);
      page_number(out, 1e6 * row->p90);
      page_number(out, 1e-12 * row->flops / row->median);
      page_number(out, 1e-9 * row->bytes / row->median);
      page_row_end(out);
    }
  page_table_end(out);
}

static void write_figure(report *r, FILE *out, const char *title, const report_group *const *lines, int count,
                         against what) {
  const char *labels[SVG_SERIES];
  const size_t said = title ? strlen(title) : 0; /* what the title says, no label has to say again */
  for (int g = 0; g < count; g++)
    labels[g] = lines[g]->label +
                (said && !strncmp(lines[g]->label, title, said) && lines[g]->label[said] == ',' ? said + 2 : 0);
  page_figure(out, title);
  draw(r, out, lines, count, what);
  page_legend(out, count, labels, true);
  write_table(r, out, lines, count);
  page_figure_end(out);
}

/* Lines share a picture when no peers are among the rows; with peers, those of one problem do. */
static report_groups arrange(report *r, const report_groups *lines) {
  report_groups panels = {0};
  bool peers = false;
  for (int g = 0; g < lines->count; g++)
    peers |= !report_ours(&r->rows[lines->items[g].rows[0]]);
  for (int g = 0; g < lines->count; g++)
    groups_add(&panels, peers ? report_problem(r, &r->rows[lines->items[g].rows[0]]) : "", g);
  return panels;
}

static void write_section(report *r, FILE *out, against what) {
  int alone;
  report_groups lines = collect(r, what, &alone), panels = arrange(r, &lines);
  sort_lines(r, &lines, what);
  int figures = 0;
  for (int k = 0; k < panels.count; k++) {
    const report_group *panel = &panels.items[k];
    for (int first = 0; first < panel->count; first += SVG_SERIES) { /* as many as there are colours */
      const report_group *shown[SVG_SERIES];
      const int count = panel->count - first < SVG_SERIES ? panel->count - first : SVG_SERIES;
      for (int n = 0; n < count; n++)
        shown[n] = &lines.items[panel->rows[first + n]];
      if (figures++ < PAGE_FIGURES)
        write_figure(r, out, *panel->label ? panel->label : NULL, shown, count, what);
    }
  }
  page_more_figures(out, figures);
  if (!lines.count)
    page_no_data(out, what == LENGTH ? "no two rows differ in their length alone."
                                     : "no two rows differ in their batch alone.");
  else if (alone)
    fprintf(out, "<p class=\"quiet\">%d more rows have no other to be on a line with.</p>\n", alone);
  groups_free(&panels);
  groups_free(&lines);
}

void length_section(report *r, FILE *out) {
  page_section(
      out, "length", "Time against length",
      "The same problem with ever more keys. Along a line the batch is the same or, where it says so, the number "
      "of tokens in all. Where memory or the queries' number is the bound, time grows as the length does; where "
      "queries grow, too, as its square.");
  write_section(r, out, LENGTH);
  page_section_end(out);
}

void batch_section(report *r, FILE *out) {
  page_section(
      out, "batch", "Time against batch",
      "The same lengths with ever more sequences. A line is level while the device is not full, and then grows "
      "as the batch does.");
  write_section(r, out, BATCH);
  page_section_end(out);
}

static void write_json(report *r, cli_json *j, const char *name, against what) {
  int alone;
  report_groups lines = collect(r, what, &alone);
  sort_lines(r, &lines, what);
  json_open(j, name, '[');
  for (int g = 0; g < lines.count; g++) {
    json_open(j, NULL, '{');
    json_string(j, "series", lines.items[g].label);
    json_open(j, "points", '[');
    for (int n = 0; n < lines.items[g].count; n++) {
      const report_row *row = &r->rows[lines.items[g].rows[n]];
      json_open(j, NULL, '{');
      json_real(j, what == LENGTH ? "keys" : "batch", position(row, what));
      json_real(j, "seconds", row->median);
      json_close(j, '}');
    }
    json_close(j, ']');
    json_close(j, '}');
  }
  json_close(j, ']');
  groups_free(&lines);
}

void lines_json(report *r, cli_json *j) {
  write_json(r, j, "length", LENGTH);
  write_json(r, j, "batch", BATCH);
}
