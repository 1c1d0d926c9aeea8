/* report_ratio.c: times of peers over ours: above 1 ours is faster. Whiskers are p10 and p90 of the ratio where
 * contestants were measured in turns; else the widest that p10 and p90 of both times allow. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_bars.h"

enum { CASES_A_FIGURE = 24 };
#define CUT 4.0 /* longer bars would leave no room to tell the others apart */

static bool has_ratio(const report_row *row) {
  return !report_ours(row) && !isnan(row->ratio);
}

/* Rows by contestant, and by case within each file. */
static void collect(report *r, report_groups *who, report_groups *cases) {
  for (int n = 0; n < r->nrows; n++)
    if (has_ratio(&r->rows[n])) {
      groups_add(who, r->rows[n].contestant, n);
      groups_add(cases, report_text(r, "%d\n%s", r->rows[n].file, report_case(r, &r->rows[n])), n);
    }
}

static int contestant_number(const report_groups *who, const report_row *row) {
  for (int g = 0; g < who->count; g++)
    if (!strcmp(who->items[g].label, row->contestant))
      return g;
  return 0;
}

typedef struct summary {
  double mean, least, most;
} summary;

static summary summarise(const report *r, const report_group *group) {
  double *values = report_array(group->count, sizeof *values);
  summary out = {NAN, INFINITY, 0};
  for (int n = 0; n < group->count; n++) {
    values[n] = r->rows[group->rows[n]].ratio;
    out.least = fmin(out.least, values[n]);
    out.most = fmax(out.most, values[n]);
  }
  out.mean = report_geometric_mean(group->count, values);
  free(values);
  return out;
}

static void write_summary(report *r, FILE *out, const report_groups *who) {
  static const char *const heads[] = {"contestant", ">cases", ">geometric mean", ">least", ">greatest"};
  page_table(out, "Time of each contestant over ours, all cases together", true, 5, heads);
  for (int g = 0; g < who->count; g++) {
    const summary all = summarise(r, &who->items[g]);
    page_row(out);
    page_cell(out, who->items[g].label);
    page_number(out, who->items[g].count);
    page_short(out, all.mean);
    page_short(out, all.least);
    page_short(out, all.most);
    page_row_end(out);
  }
  page_table_end(out);
}

static void write_table(report *r, FILE *out, const report_group *cases, int count) {
  static const char *const heads[] = {"case", "sizes", "contestant", ">\xC2\xB5s", ">time over ours", ">p10", ">p90"};
  page_table(out, "Numbers of this plot", false, 7, heads);
  for (int c = 0; c < count; c++)
    for (int n = 0; n < cases[c].count; n++) {
      const report_row *row = &r->rows[cases[c].rows[n]];
      page_row(out);
      page_cell(out, report_case(r, row));
      page_cell(out, report_sizes(r, row));
      page_cell(out, row->contestant);
      page_number(out, 1e6 * row->median);
      page_number(out, row->ratio);
      page_number(out, row->ratio_p10);
      page_number(out, row->ratio_p90);
      page_row_end(out);
    }
  page_table_end(out);
}

static void write_figure(report *r, FILE *out, const report_groups *who, const report_group *cases, int count) {
  bar *bars = NULL;
  int nbars = 0, numbers[SVG_SERIES], series = 0; /* contestants of this figure, in the order of their first bar */
  const char *labels[SVG_SERIES];
  for (int c = 0; c < count; c++) {
    const char *label = report_case(r, &r->rows[cases[c].rows[0]]);
    for (int n = 0; n < cases[c].count; n++) {
      const report_row *row = &r->rows[cases[c].rows[n]];
      const int number = contestant_number(who, row);
      int at = 0;
      while (at < series && numbers[at] != number)
        at++;
      if (at == series && series < SVG_SERIES) {
        numbers[series] = number;
        labels[series++] = row->contestant;
      }
      bars = report_grow(bars, nbars, sizeof *bars);
      bars[nbars] = (bar){label, at, row->ratio, row->ratio_p10, row->ratio_p90, ""};
      snprintf(bars[nbars].remark, sizeof bars->remark, at < SVG_SERIES ? "%.2f" : "%.2f %s", row->ratio,
               row->contestant);
      nbars++;
    }
  }
  page_figure(out, r->files[r->rows[cases[0].rows[0]].file].name);
  double most = 0;
  for (int n = 0; n < nbars; n++)
    most = fmax(most, bars[n].value);
  bars_draw(out, "Time of each contestant over ours", "time over ours: above 1 ours is faster", nbars, bars, CUT, 1,
            "one", "1");
  page_legend(out, series, labels, false);
  if (most > CUT)
    fprintf(out, "<p class=\"quiet\">Bars are cut at %.0f.</p>\n", CUT);
  write_table(r, out, cases, count);
  page_figure_end(out);
  free(bars);
}

/* What a file of peers says of problems that nobody else measured. */
static void write_unmatched(report *r, FILE *out) {
  int count = 0;
  const report_row *first = NULL;
  for (int n = 0; n < r->nrows; n++) {
    const report_row *row = &r->rows[n];
    if (!report_ours(row) && isnan(row->ratio) && !isnan(row->median)) {
      first = count++ ? first : row;
    }
  }
  if (!count)
    return;
  fprintf(out, "<p class=\"quiet\">%d rows of peers have no row of ours beside them, such as ", count);
  page_text(out, *first->workload ? first->workload : report_sizes(r, first));
  fputs(" of ", out);
  page_text(out, first->contestant);
  fputs(".</p>\n", out);
}

void ratio_section(report *r, FILE *out) {
  report_groups who = {0}, cases = {0};
  collect(r, &who, &cases);
  page_section(
      out, "ratio", "Ratio to peers",
      "Time of each contestant over ours: above the line at 1 ours is faster. Whiskers: 10th and 90th percentile.");
  if (!cases.count)
    page_no_data(out, "no file has times of another contestant for a problem of ours; --peers adds one.");
  else
    write_summary(r, out, &who);
  int figures = 0;
  for (int first = 0, count; first < cases.count; first += count) {
    const int file = r->rows[cases.items[first].rows[0]].file;
    for (count = 1; first + count < cases.count && count < CASES_A_FIGURE; count++)
      if (r->rows[cases.items[first + count].rows[0]].file != file)
        break;
    if (figures++ < PAGE_FIGURES)
      write_figure(r, out, &who, &cases.items[first], count);
  }
  page_more_figures(out, figures);
  write_unmatched(r, out);
  page_section_end(out);
  groups_free(&who);
  groups_free(&cases);
}

void ratio_json(report *r, cli_json *j) {
  report_groups who = {0}, cases = {0};
  collect(r, &who, &cases);
  json_open(j, "ratio", '[');
  for (int g = 0; g < who.count; g++) {
    const summary all = summarise(r, &who.items[g]);
    json_open(j, NULL, '{');
    json_string(j, "contestant", who.items[g].label);
    json_integer(j, "cases", who.items[g].count);
    json_real(j, "geometric_mean", all.mean);
    json_real(j, "least", all.least);
    json_real(j, "greatest", all.most);
    json_open(j, "rows", '[');
    for (int n = 0; n < who.items[g].count; n++) {
      const report_row *row = &r->rows[who.items[g].rows[n]];
      json_open(j, NULL, '{');
      json_string(j, "case", report_case(r, row));
      json_real(j, "ratio", row->ratio);
      json_real(j, "p10", row->ratio_p10);
      json_real(j, "p90", row->ratio_p90);
      json_close(j, '}');
    }
    json_close(j, ']');
    json_close(j, '}');
  }
  json_close(j, ']');
  groups_free(&who);
  groups_free(&cases);
}
