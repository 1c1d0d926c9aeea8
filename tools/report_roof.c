/* report_roof.c: the roofline: rate of floating-point operations against operations a byte, under what the device can
 * do. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "svg.h"

static bool has_point(const report_row *row) {
  return isfinite(row->median) && row->flops > 0 && row->bytes > 0;
}

static double intensity(const report_row *row) {
  return row->flops / row->bytes;
}

/* Who computes what. */
static const char *series_label(report *r, const report_row *row) {
  const char *problem = report_problem(r, row);
  return report_text(r, "%s%s%s", problem, *problem ? ", " : "", report_who(row));
}

static void by_contestant(report *r, report_groups *series) {
  report_groups fewer = {0};
  for (int g = 0; g < series->count; g++)
    for (int n = 0; n < series->items[g].count; n++)
      groups_add(&fewer, report_who(&r->rows[series->items[g].rows[n]]), series->items[g].rows[n]);
  groups_free(series);
  *series = fewer;
}

/* Rows with a point, of a tuning run only those that no other schedule of a family beats. */
static report_groups collect(report *r) {
  report_groups series = {0}, best = {0};
  for (int n = 0; n < r->nrows; n++) {
    const report_row *row = &r->rows[n];
    if (!has_point(row))
      continue;
    if (r->files[row->file].kind == REPORT_TUNE)
      groups_add(&best, groups_in_file(r, report_text(r, "%s\n%s", report_run(r, row), row->family), row), n);
    else
      groups_add(&series, groups_in_file(r, series_label(r, row), row), n);
  }
  for (int g = 0; g < best.count; g++) {
    int fastest = best.items[g].rows[0];
    for (int n = 1; n < best.items[g].count; n++)
      if (r->rows[best.items[g].rows[n]].median < r->rows[fastest].median)
        fastest = best.items[g].rows[n];
    groups_add(&series, groups_in_file(r, series_label(r, &r->rows[fastest]), &r->rows[fastest]), fastest);
  }
  groups_free(&best);
  if (series.count > SVG_SERIES) /* more than there are colours: those of a contestant or family share one */
    by_contestant(r, &series);
  else
    groups_name_files(r, &series);
  return series;
}

/* Roofs: distinct pairs of peak and bandwidth. */
enum { ROOFS = 3 };
typedef struct roof {
  double peak, bandwidth;
} roof;

static int find_roofs(const report *r, const report_groups *series, roof roofs[ROOFS]) {
  int count = 0;
  for (int g = 0; g < series->count; g++)
    for (int n = 0; n < series->items[g].count; n++) {
      const report_row *row = &r->rows[series->items[g].rows[n]];
      int known = isnan(row->peak) || isnan(row->bandwidth) ? 0 : -1;
      for (int k = 0; k < count && known < 0; k++)
        known = roofs[k].peak == row->peak && roofs[k].bandwidth == row->bandwidth ? k : -1;
      if (known < 0 && count < ROOFS)
        roofs[count++] = (roof){row->peak, row->bandwidth};
    }
  return count;
}

static void draw_roof(svg_plot *p, const roof *one, int place) {
  const double ridge = one->peak / one->bandwidth, first = p->x.least, last = p->x.most;
  char peak[32], text[96];
  svg_rule(p, "roof", fmax(ridge, first), 1e-12 * one->peak, last, 1e-12 * one->peak);
  if (ridge > first)
    svg_rule(p, "roof", first, 1e-12 * one->bandwidth * first, fmin(ridge, last),
             1e-12 * one->bandwidth * fmin(ridge, last));
  snprintf(text, sizeof text, "%s TFLOP/s", svg_number(peak, 1e-12 * one->peak, SVG_PLAIN));
  svg_text(p, p->x.to - 6, svg_at(&p->y, 1e-12 * one->peak) - 7, "end", "strong", text);
  snprintf(text, sizeof text, "%s TB/s", svg_number(peak, 1e-12 * one->bandwidth, SVG_PLAIN));
  const double at = first * pow(fmin(ridge, last) / first, 0.12 + 0.1 * place); /* beside the slope, near its foot */
  if (ridge > first)
    svg_text(p, svg_at(&p->x, at) + 10, svg_at(&p->y, 1e-12 * one->bandwidth * at) + 16, "start", "strong", text);
}

/* Points of the series first to first + count - 1; of more than SVG_SERIES the later ones share the last colour. */
static void draw(report *r, FILE *out, const report_groups *series, const roof *roofs, int nroofs) {
  svg_plot p = {.out = out,
                .width = 960,
                .height = 480,
                .x = {.label = "operations a byte of q, k, v and o (FLOP/B)", .logarithmic = true},
                .y = {.label = "TFLOP/s", .logarithmic = true}};
  double x0 = INFINITY, x1 = 0, y0 = INFINITY, y1 = 0;
  for (int g = 0; g < series->count; g++)
    for (int n = 0; n < series->items[g].count; n++) {
      const report_row *row = &r->rows[series->items[g].rows[n]];
      const double rate = 1e-12 * row->flops / row->median;
      x0 = fmin(x0, intensity(row)), x1 = fmax(x1, intensity(row));
      y0 = fmin(y0, rate), y1 = fmax(y1, rate);
    }
  for (int k = 0; k < nroofs; k++) {
    const double ridge = roofs[k].peak / roofs[k].bandwidth;
    x0 = fmin(x0, ridge / 4), x1 = fmax(x1, 4 * ridge), y1 = fmax(y1, 1.5e-12 * roofs[k].peak);
    y0 = fmin(y0, 1e-12 * roofs[k].bandwidth * x0);
  }
  svg_fit(&p.x, x0, x1);
  svg_fit(&p.y, y0, y1);
  svg_begin(&p, "Roofline", "Achieved rate of floating-point operations against operations a byte, both logarithmic");
  svg_axes(&p, 64, 20, 36, 50);
  for (int k = 0; k < nroofs; k++)
    draw_roof(&p, &roofs[k], k);
  for (int g = 0; g < series->count; g++) {
    const report_group *group = &series->items[g];
    double *x = report_array(group->count, sizeof *x), *y = report_array(group->count, sizeof *y);
    for (int n = 0; n < group->count; n++) {
      const report_row *row = &r->rows[group->rows[n]];
      x[n] = intensity(row);
      y[n] = 1e-12 * row->flops / row->median;
    }
    (group->count > PAGE_ROWS ? svg_dots : svg_markers)(&p, g < SVG_SERIES ? g : SVG_SERIES - 1, group->count, x, y);
    free(x);
    free(y);
  }
  svg_end(&p);
}

static void write_legend(FILE *out, const report_groups *series) {
  const char *labels[SVG_SERIES];
  const int count = series->count < SVG_SERIES ? series->count : SVG_SERIES;
  for (int g = 0; g < count; g++)
    labels[g] = series->items[g].label;
  if (series->count > SVG_SERIES)
    labels[SVG_SERIES - 1] = "all others, see the table";
  page_legend(out, count, labels, false);
}

static void write_table(report *r, FILE *out, const report_groups *series) {
  static const char *const heads[] = {"problem",  "by",      "workload",    "sizes", ">\xC2\xB5s",
                                      ">TFLOP/s", ">FLOP/B", ">of peak, %", ">GB/s", ">of bandwidth, %",
                                      "bound by"};
  page_table(out, "Numbers of this plot", false, 11, heads);
  for (int g = 0; g < series->count; g++)
    for (int n = 0; n < series->items[g].count; n++) {
      const report_row *row = &r->rows[series->items[g].rows[n]];
      const double rate = row->flops / row->median, bytes = row->bytes / row->median;
      page_row(out);
      page_cell(out, report_problem(r, row));
      page_cell(out, report_who(row));
      page_cell(out, row->workload);
      page_cell(out, report_sizes(r, row));
      page_number(out, 1e6 * row->median);
      page_number(out, 1e-12 * rate);
      page_number(out, intensity(row));
      page_number(out, 100 * rate / row->peak);
      page_number(out, 1e-9 * bytes);
      page_number(out, 100 * bytes / row->bandwidth);
      page_cell(out, isnan(row->peak) || isnan(row->bandwidth)     ? ""
                     : intensity(row) < row->peak / row->bandwidth ? "memory"
                                                                   : "tensor cores");
      page_row_end(out);
    }
  page_table_end(out);
}

void roof_section(report *r, FILE *out) {
  report_groups series = collect(r);
  roof roofs[ROOFS];
  const int nroofs = find_roofs(r, &series, roofs);
  page_section(out, "roofline", "Roofline",
               "How fast each workload computes, against how much it computes for every byte of its tensors. A point "
               "near the slope is held back by memory, one near the flat roof by the tensor cores; far below both, by "
               "something else: exponentials, a device that is not full, latency.");
  if (!series.count)
    page_no_data(out, "no row has a time, operations and bytes.");
  else {
    page_figure(out, NULL);
    draw(r, out, &series, roofs, nroofs);
    write_legend(out, &series);
    if (!nroofs)
      fputs("<p class=\"quiet\">The device's ceilings are not known; --peak and --bandwidth give them.</p>\n", out);
    write_table(r, out, &series);
    page_figure_end(out);
  }
  page_section_end(out);
  groups_free(&series);
}

void roof_json(report *r, cli_json *j) {
  report_groups series = collect(r);
  json_open(j, "roofline", '[');
  for (int g = 0; g < series.count; g++)
    for (int n = 0; n < series.items[g].count; n++) {
      const report_row *row = &r->rows[series.items[g].rows[n]];
      json_open(j, NULL, '{');
      json_string(j, "problem", report_problem(r, row));
      json_string(j, "by", report_who(row));
      json_string(j, "workload", report_workload(r, row));
      json_real(j, "seconds", row->median);
      json_real(j, "flops_per_byte", intensity(row));
      json_real(j, "flops_per_second", row->flops / row->median);
      json_real(j, "peak_share", row->flops / row->median / row->peak);
      json_real(j, "bandwidth_share", row->bytes / row->median / row->bandwidth);
      json_close(j, '}');
    }
  json_close(j, ']');
  groups_free(&series);
}
