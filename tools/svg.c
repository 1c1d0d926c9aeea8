/* svg.c: pictures of data as SVG text (svg.h). */
#include "svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_json.h"

/* ---- Text and numbers ---- */

void svg_escape(FILE *out, const char *text) {
  static const struct {
    char plain;
    const char *entity;
  } entities[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  for (const unsigned char *s = (const unsigned char *)text; *s;) {
    const int length = json_utf8_length(s);
    const bool never = length == 3 && s[0] == 0xEF && s[1] == 0xBF && s[2] >= 0xBE; /* U+FFFE, U+FFFF */
    const char *entity = NULL;
    for (size_t n = 0; n < sizeof entities / sizeof *entities; n++)
      entity = *s == (unsigned char)entities[n].plain ? entities[n].entity : entity;
    if (entity)
      fputs(entity, out);
    else if (!length || never || *s == 0x7F || (*s < 0x20 && *s != '\t' && *s != '\n'))
      fputs("\xEF\xBF\xBD", out);
    else
      fwrite(s, 1, (size_t)length, out);
    s += length ? length : 1;
  }
}

void svg_coordinate(FILE *out, double pixels) {
  double tenths = rint(10 * pixels);
  if (!isfinite(tenths))
    tenths = 0;
  fprintf(out, fmod(tenths, 10) != 0 ? "%.1f" : "%.0f", tenths / 10 + 0.0);
}

/* Up to three digits that count, without zeros at the end. */
static void three_digits(char out[32], double value, const char *unit) {
  char digits[24];
  snprintf(digits, sizeof digits, "%.*f", fabs(value) < 9.995 ? 2 : fabs(value) < 99.95 ? 1 : 0, value);
  if (strchr(digits, '.')) {
    char *end = digits + strlen(digits);
    while (end[-1] == '0')
      *--end = 0;
    if (end[-1] == '.')
      end[-1] = 0;
  }
  snprintf(out, 32, "%s%s", digits, unit);
}

char *svg_number(char out[32], double value, svg_unit unit) {
  static const char *const thousands[] = {"", "k", "M", "G", "T"};
  static const char *const seconds[] = {" ns", " \xC2\xB5s", " ms", " s"};
  if (!isfinite(value)) {
    snprintf(out, 32, "-");
    return out;
  }
  int step = 0;
  if (unit == SVG_SECONDS) {
    value *= 1e9;
    while (fabs(value) >= 999.5 && step < 3)
      value /= 1000, step++;
    three_digits(out, value, seconds[step]);
  } else if (unit == SVG_PERCENT) {
    three_digits(out, 100 * value, " %");
  } else if (fabs(value) < 0.01 && value != 0) {
    snprintf(out, 32, "%.1g", value);
  } else {
    const double base = unit == SVG_TOKENS ? 1024 : 1000;
    while (fabs(value) >= (unit == SVG_TOKENS ? base : step ? 999.5 : 9999.5) && step < 4)
      value /= base, step++;
    if (fabs(value) >= 999.5 * base)
      snprintf(out, 32, "%.2e", value * pow(base, step));
    else
      three_digits(out, value, thousands[step]);
  }
  return out;
}

/* ---- Scales ---- */

/* The least of 1, 2, 5, 10, 20, ... that is not below a positive value. */
static double nice_above(double value) {
  const double decade = pow(10, floor(log10(value)));
  const double factors[] = {1, 2, 5, 10};
  for (int n = 0; n < 3; n++)
    if (value <= factors[n] * decade * (1 + 1e-9))
      return factors[n] * decade;
  return 10 * decade;
}

/* Multiples of a round step: where no two powers lie on an axis. */
static int step_ticks(const svg_axis *a, double step, double ticks[SVG_TICKS]) {
  const double first = ceil(a->least / step - 1e-9);
  int count = 0;
  for (int n = 0; n < SVG_TICKS && (first + n) * step <= a->most + 1e-9 * step; n++)
    ticks[count++] = (first + n) * step + 0.0;
  return count;
}

static double linear_step(const svg_axis *a) {
  return nice_above((a->most - a->least) / 6);
}

void svg_fit(svg_axis *a, double least, double most) {
  if (!isfinite(least) || !isfinite(most) || least > most)
    least = most = 1;
  if (a->logarithmic) {
    least = fmax(least, 1e-300);
    most = fmin(fmax(most, least), 1e300);
    const double margin = fmax(0.04 * log(most / least), most / least < 1.5 ? log(1.5) : 0);
    a->least = least / exp(margin);
    a->most = most * exp(margin);
    return;
  }
  least = fmax(least, -1e300);
  most = fmin(most, 1e300);
  if (most - least <= 1e-12 * fmax(fabs(least), fabs(most)))
    least = fmin(0, least), most = most > 0 ? most : least + 1;
  a->least = least;
  a->most = most;
  const double step = linear_step(a);
  a->least = floor(least / step + 1e-9) * step;
  a->most = ceil(most / step - 1e-9) * step;
}

/* Powers of two on an axis of tokens: every one, every second, ... */
static int power_ticks(const svg_axis *a, double ticks[SVG_TICKS]) {
  const int first = (int)ceil(log2(a->least) - 1e-9), last = (int)floor(log2(a->most) + 1e-9);
  const int step = (last - first) / 9 + 1;
  int count = 0;
  for (int n = first; n <= last && count < SVG_TICKS; n += step)
    ticks[count++] = ldexp(1, n);
  return count;
}

/* 1, 2, 5 of each decade where there are few of them, else 1, else some decades. */
static int decade_ticks(const svg_axis *a, double ticks[SVG_TICKS]) {
  static const double factors[][3] = {{1, 2, 5}, {1, 3, 11}, {1, 11, 11}}; /* 11: none */
  const double decades = log10(a->most / a->least);
  const double *chosen = factors[decades < 2.2 ? 0 : decades < 4.2 ? 1 : 2];
  const int first = (int)floor(log10(a->least)), last = (int)ceil(log10(a->most)), step = (last - first) / 10 + 1;
  int count = 0;
  for (int n = first; n <= last; n += step)
    for (int f = 0; f < 3; f++) {
      const double tick = chosen[f] * pow(10, n);
      if (chosen[f] < 10 && tick >= a->least * (1 - 1e-9) && tick <= a->most * (1 + 1e-9) && count < SVG_TICKS)
        ticks[count++] = tick;
    }
  return count;
}

int svg_ticks(const svg_axis *a, double ticks[SVG_TICKS]) {
  if (a->logarithmic) {
    int count = 0;
    if (a->unit == SVG_TOKENS)
      count = power_ticks(a, ticks);
    else if (a->most / a->least > 5)
      count = decade_ticks(a, ticks);
    if (count > 1)
      return count;
  }
  return step_ticks(a, linear_step(a), ticks);
}

double svg_at(const svg_axis *a, double value) {
  if (!isfinite(value) || (a->logarithmic && value <= 0))
    return NAN;
  const double part =
      a->logarithmic ? log(value / a->least) / log(a->most / a->least) : (value - a->least) / (a->most - a->least);
  return a->from + fmax(-10, fmin(10, part)) * (a->to - a->from);
}

/* ---- Frames ---- */

void svg_begin(svg_plot *p, const char *title, const char *description) {
  fputs("<svg viewBox=\"0 0 ", p->out);
  svg_coordinate(p->out, p->width);
  fputc(' ', p->out);
  svg_coordinate(p->out, p->height);
  fputs("\" role=\"img\">\n<title>", p->out);
  svg_escape(p->out, title);
  fputs("</title>\n<desc>", p->out);
  svg_escape(p->out, description);
  fputs("</desc>\n", p->out);
}

void svg_end(svg_plot *p) {
  fputs("</svg>\n", p->out);
}

/* name="12.5", with a blank before it. */
static void attribute(svg_plot *p, const char *name, double pixels) {
  fprintf(p->out, " %s=\"", name);
  svg_coordinate(p->out, pixels);
  fputc('"', p->out);
}

static void segment(svg_plot *p, const char *class, double x0, double y0, double x1, double y1) {
  fprintf(p->out, "<line class=\"%s\"", class);
  attribute(p, "x1", x0);
  attribute(p, "y1", y0);
  attribute(p, "x2", x1);
  attribute(p, "y2", y1);
  fputs("/>\n", p->out);
}

void svg_text(svg_plot *p, double x, double y, const char *anchor, const char *class, const char *text) {
  fputs("<text", p->out);
  attribute(p, "x", x);
  attribute(p, "y", y);
  if (strcmp(anchor, "start") != 0)
    fprintf(p->out, " text-anchor=\"%s\"", anchor);
  fprintf(p->out, " class=\"%s\">", class);
  svg_escape(p->out, text);
  fputs("</text>\n", p->out);
}

void svg_box(svg_plot *p, double x, double y, double width, double height, const char *class) {
  fprintf(p->out, "<rect class=\"%s\"", class);
  attribute(p, "x", x);
  attribute(p, "y", y);
  attribute(p, "width", fmax(width, 0));
  attribute(p, "height", fmax(height, 0));
  fputs("/>\n", p->out);
}

void svg_boxes(svg_plot *p, int count, const svg_rect *boxes, const char *class) {
  if (!count)
    return;
  fprintf(p->out, "<path class=\"%s\" d=\"", class);
  for (int n = 0; n < count; n++) {
    const svg_rect *b = &boxes[n];
    const double steps[] = {b->x, b->y, fmax(b->width, 0), fmax(b->height, 0), -fmax(b->width, 0)};
    for (int k = 0; k < 5; k++) {
      fputc("M hvh"[k], p -> out);
      svg_coordinate(p->out, steps[k]);
    }
    fputc('z', p->out);
  }
  fputs("\"/>\n", p->out);
}

void svg_axes(svg_plot *p, double left, double right, double top, double bottom) {
  double ticks[SVG_TICKS];
  char number[32];
  p->x.from = left;
  p->x.to = p->width - right;
  p->y.from = p->height - bottom;
  p->y.to = top;
  int count = svg_ticks(&p->x, ticks);
  for (int n = 0; n < count; n++) {
    const double x = svg_at(&p->x, ticks[n]);
    segment(p, "grid", x, p->y.from, x, p->y.to);
    svg_text(p, x, p->y.from + 18, "middle", "tick", svg_number(number, ticks[n], p->x.unit));
  }
  count = p->y.label ? svg_ticks(&p->y, ticks) : 0; /* no label: rows of bars, which have labels of their own */
  for (int n = 0; n < count; n++) {
    const double y = svg_at(&p->y, ticks[n]);
    segment(p, "grid", p->x.from, y, p->x.to, y);
    svg_text(p, p->x.from - 8, y + 4, "end", "tick", svg_number(number, ticks[n], p->y.unit));
  }
  segment(p, "axis", p->x.from, p->y.from, p->x.to, p->y.from);
  segment(p, "axis", p->x.from, p->y.from, p->x.from, p->y.to);
  svg_text(p, (p->x.from + p->x.to) / 2, p->height - 8, "middle", "label", p->x.label);
  if (p->y.label)
    svg_text(p, 8, top - 12, "start", "label", p->y.label);
}

/* ---- Data ---- */

static bool place(const svg_plot *p, double x, double y, double at[2]) {
  at[0] = svg_at(&p->x, x);
  at[1] = svg_at(&p->y, y);
  return isfinite(at[0]) && isfinite(at[1]);
}

static void pair(FILE *out, const double at[2]) {
  svg_coordinate(out, at[0]);
  fputc(' ', out);
  svg_coordinate(out, at[1]);
}

void svg_line(svg_plot *p, int series, int count, const double *x, const double *y) {
  double at[2];
  int placed = 0;
  fprintf(p->out, "<path class=\"line s%d d%d\" d=\"", series % SVG_SERIES, series % SVG_SERIES);
  for (int n = 0; n < count; n++)
    if (place(p, x[n], y[n], at)) {
      fputs(placed++ ? "L" : "M", p->out);
      pair(p->out, at);
    }
  fputs(placed ? "\"/>\n" : "M0 0\"/>\n", p->out);
}

/* Shapes of about the same area around 0 0. */
static const char *const shapes[SVG_SERIES] = {"m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
                                               "m-4-4h8v8h-8z",
                                               "m0-5.5l5 9h-10z",
                                               "m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z",
                                               "m0 5.5l5-9h-10z",
                                               "m-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
                                               "m-2.5-4.5h5l2.5 4.5l-2.5 4.5h-5l-2.5-4.5z",
                                               "m-5-3l2-2l3 3l3-3l2 2l-3 3l3 3l-2 2l-3-3l-3 3l-2-2l3-3z"};

void svg_markers(svg_plot *p, int series, int count, const double *x, const double *y) {
  double at[2];
  fprintf(p->out, "<path class=\"mark s%d\" d=\"", series % SVG_SERIES);
  int placed = 0;
  for (int n = 0; n < count; n++)
    if (place(p, x[n], y[n], at)) {
      fputc('M', p->out);
      pair(p->out, at);
      fputs(shapes[series % SVG_SERIES], p->out);
      placed++;
    }
  fputs(placed ? "\"/>\n" : "M0 0\"/>\n", p->out);
}

void svg_dots(svg_plot *p, int series, int count, const double *x, const double *y) {
  double at[2];
  fprintf(p->out, "<path class=\"dots s%d\" d=\"", series % SVG_SERIES);
  int placed = 0;
  for (int n = 0; n < count; n++)
    if (place(p, x[n], y[n], at)) { /* no length, but round ends: a dot */
      fputc('M', p->out);
      pair(p->out, at);
      fputs("h0", p->out);
      placed++;
    }
  fputs(placed ? "\"/>\n" : "M0 0\"/>\n", p->out);
}

void svg_rule(svg_plot *p, const char *class, double x0, double y0, double x1, double y1) {
  double a[2], b[2];
  if (place(p, x0, y0, a) && place(p, x1, y1, b))
    segment(p, class, a[0], a[1], b[0], b[1]);
}

void svg_key(FILE *out, int series, bool line) {
  const int n = series % SVG_SERIES;
  fputs("<svg class=\"key\" viewBox=\"0 0 28 14\" aria-hidden=\"true\">", out);
  if (line)
    fprintf(out, "<path class=\"line s%d d%d\" d=\"M0 7L28 7\"/>", n, n);
  fprintf(out, "<path class=\"mark s%d\" d=\"M14 7%s\"/></svg>", n, shapes[n]);
}
