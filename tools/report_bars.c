/* report_bars.c: achieved bandwidth, and the bars that it and report_ratio.c draw. */
#include "report_bars.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Bars ---- */

enum { BAR = 13, BAR_GAP = 3, LABEL_GAP = 8, LABEL_CHARACTERS = 44 };

/* A label that has room on the left of the bars: its end is cut off, the table has it in full. */
static void short_label(const char *label, char out[LABEL_CHARACTERS * 4 + 8]) {
  size_t used = 0;
  int characters = 0;
  for (const unsigned char *s = (const unsigned char *)label; *s; characters++) {
    const int length = json_utf8_length(s) ? json_utf8_length(s) : 1;
    if (characters == LABEL_CHARACTERS - 1 && s[length]) {
      memcpy(out + used, "\xE2\x80\xA6", 3); /* an ellipsis */
      used += 3;
      break;
    }
    memcpy(out + used, s, (size_t)length);
    used += (size_t)length;
    s += length;
  }
  out[used] = 0;
}

/* The pixel of a value, at most that of the axis' end. */
static double reach(const svg_plot *p, double value) {
  return fmin(svg_at(&p->x, value), p->x.to);
}

static int add_whisker(const svg_plot *p, const bar *b, double y, svg_rect out[3]) {
  if (isnan(b->low) || isnan(b->high))
    return 0;
  const double low = reach(p, b->low), high = reach(p, b->high), from = fmin(low, high), to = fmax(low, high);
  out[0] = (svg_rect){from, y - 0.5, to - from, 1};
  out[1] = (svg_rect){from - 0.5, y - 4, 1, 8};
  out[2] = (svg_rect){to - 0.5, y - 4, 1, 8};
  return 3;
}

/* Beside the bar and its whisker, not over a line that crosses all bars at `mark` (NAN: there is none). */
static void write_remark(svg_plot *p, const bar *b, double y, double mark) {
  const double end = reach(p, b->value);
  double beyond = isnan(b->high) ? end : fmax(end, reach(p, fmax(b->high, b->low)));
  if (beyond < mark && beyond + 7.0 * (double)strlen(b->remark) > mark)
    beyond = mark;
  svg_text(p, beyond + 6, y + 4, "start", "small", b->remark);
}

static bool next_label(const bar *bars, int n) {
  return !n || bars[n].label != bars[n - 1].label;
}

/* The bars of each series are one path, and so are all whiskers: a page has hundreds. */
static void draw_boxes(svg_plot *p, int count, const bar *bars, const double *y) {
  svg_rect *boxes = report_array(3 * count, sizeof *boxes);
  char class[24];
  for (int series = 0; series < SVG_SERIES; series++) {
    int used = 0;
    for (int n = 0; n < count; n++)
      if (bars[n].series % SVG_SERIES == series)
        boxes[used++] = (svg_rect){p->x.from, y[n] - BAR / 2.0, reach(p, bars[n].value) - p->x.from, BAR};
    snprintf(class, sizeof class, "bar s%d", series);
    svg_boxes(p, used, boxes, class);
  }
  int used = 0;
  for (int n = 0; n < count; n++)
    used += add_whisker(p, &bars[n], y[n], &boxes[used]);
  svg_boxes(p, used, boxes, "whisker");
  free(boxes);
}

void bars_draw(FILE *out, const char *title, const char *label, int count, const bar *bars, double cut, double mark,
               const char *mark_class, const char *mark_text) {
  enum { TOP = 26, BOTTOM = 52 };
  svg_plot p = {.out = out, .width = 960, .x = {.label = label}, .y = {.least = 0, .most = 1}};
  double most = isnan(mark) ? 0 : mark, *y = report_array(count, sizeof *y), at = TOP - BAR / 2.0;
  for (int n = 0; n < count; n++) {
    y[n] = at += BAR + BAR_GAP + (n && next_label(bars, n) ? LABEL_GAP : 0);
    most = fmax(most, fmax(bars[n].value, isnan(bars[n].high) ? 0 : fmax(bars[n].high, bars[n].low)));
  }
  p.height = at + BAR + BOTTOM;
  svg_fit(&p.x, 0, fmin(most, cut)); /* fmin takes a number before NAN */
  svg_begin(&p, title, "Horizontal bars; the table below has their values");
  svg_axes(&p, 300, 130, TOP, BOTTOM);
  draw_boxes(&p, count, bars, y);
  for (int n = 0; n < count; n++) {
    char text[LABEL_CHARACTERS * 4 + 8];
    short_label(bars[n].label, text);
    if (next_label(bars, n))
      svg_text(&p, 292, y[n] + 4, "end", "cell", text);
    write_remark(&p, &bars[n], y[n], svg_at(&p.x, mark));
  }
  if (!isnan(mark)) {
    svg_rule(&p, mark_class, mark, 0, mark, 1);
    svg_text(&p, svg_at(&p.x, mark), 18, "middle", "small", mark_text);
  }
  svg_end(&p);
  free(y);
}

/* ---- Bandwidth ---- */

enum { BARS_MOST = 48 };

/* Rows that read more than they compute, as far as their device is known; else those of few queries. Peers' rows have
 * ratios of their own to show. */
static bool bound_by_memory(const report *r, const report_row *row) {
  if (!report_ours(row) || r->files[row->file].kind == REPORT_TUNE || isnan(row->median) || isnan(row->bytes))
    return false;
  if (!isnan(row->flops) && !isnan(row->peak) && !isnan(row->bandwidth))
    return row->flops / row->bytes < row->peak / row->bandwidth;
  return isnan(row->len_q) || row->len_q <= 16;
}

static double rate(const report_row *row) {
  return 1e-9 * row->bytes / row->median;
}

static void write_table(report *r, FILE *out, int count, const int *rows) {
  static const char *const heads[] = {"workload", "family", ">\xC2\xB5s", ">GB/s", ">GB/s of the device", ">share, %"};
  page_table(out, "Numbers of this plot", false, 6, heads);
  for (int n = 0; n < count; n++) {
    const report_row *row = &r->rows[rows[n]];
    page_row(out);
    page_cell(out, report_case(r, row));
    page_cell(out, row->family);
    page_number(out, 1e6 * row->median);
    page_number(out, rate(row));
    page_number(out, 1e-9 * row->bandwidth);
    page_number(out, 100e9 * rate(row) / row->bandwidth);
    page_row_end(out);
  }
  page_table_end(out);
}

static int collect(const report *r, int **rows) {
  int count = 0;
  *rows = NULL;
  for (int n = 0; n < r->nrows; n++)
    if (bound_by_memory(r, &r->rows[n])) {
      *rows = report_grow(*rows, count, sizeof **rows);
      (*rows)[count++] = n;
    }
  return count;
}

static void write_bars(report *r, FILE *out, int count, const int *rows) {
  bar *bars = report_array(count, sizeof *bars);
  double ceiling = r->rows[rows[0]].bandwidth;
  const int shown = count < BARS_MOST ? count : BARS_MOST;
  for (int n = 0; n < shown; n++) {
    const report_row *row = &r->rows[rows[n]];
    char number[32];
    bars[n] = (bar){report_case(r, row), 0, 1e-3 * rate(row), NAN, NAN, ""};
    svg_number(number, 1e-3 * rate(row), SVG_PLAIN);
    if (isnan(row->bandwidth))
      snprintf(bars[n].remark, sizeof bars[n].remark, "%s TB/s", number);
    else
      snprintf(bars[n].remark, sizeof bars[n].remark, "%s TB/s, %.0f %%", number, 100e9 * rate(row) / row->bandwidth);
    ceiling = row->bandwidth == ceiling ? ceiling : NAN; /* one line for all bars, or none */
  }
  char number[32], text[64];
  snprintf(text, sizeof text, "the device's %s TB/s", svg_number(number, 1e-12 * ceiling, SVG_PLAIN));
  page_figure(out, NULL);
  bars_draw(out, "Achieved bandwidth", "TB/s of q, k, v and o, once each", shown, bars, NAN, 1e-12 * ceiling, "ceiling",
            text);
  if (shown < count)
    fprintf(out, "<p class=\"quiet\">The first %d of %d; the table has all.</p>\n", shown, count);
  write_table(r, out, count, rows);
  page_figure_end(out);
  free(bars);
}

void bandwidth_section(report *r, FILE *out) {
  int *rows;
  const int count = collect(r, &rows);
  page_section(
      out, "bandwidth", "Achieved bandwidth",
      "Workloads that memory holds back: bytes of q, k, v and o, each counted once, over the time of a call, and "
      "how much of the device's bandwidth that is.");
  if (count)
    write_bars(r, out, count, rows);
  else
    page_no_data(out, "no row has a time and bytes, and fewer operations a byte than the device could do.");
  page_section_end(out);
  free(rows);
}

void bandwidth_json(report *r, cli_json *j) {
  int *rows;
  const int count = collect(r, &rows);
  json_open(j, "bandwidth", '[');
  for (int n = 0; n < count; n++) {
    const report_row *row = &r->rows[rows[n]];
    json_open(j, NULL, '{');
    json_string(j, "workload", report_case(r, row));
    json_real(j, "seconds", row->median);
    json_real(j, "bytes_per_second", row->bytes / row->median);
    json_real(j, "share", row->bytes / row->median / row->bandwidth);
    json_close(j, '}');
  }
  json_close(j, ']');
  free(rows);
}
