/* svg.h: a small plotting layer: scales, axes with legible ticks, lines, markers, bars, as SVG text for a web page.
 *
 * Colours come from the page: elements have classes (s0 to s7: the series; axis, grid, roof, ...) that its style sheet
 * colours, so that one picture serves light and dark themes and print. Series differ in shape and dashes, too, not in
 * colour alone. Values that are not finite, or that a logarithmic axis has no place for, are left out: no output holds
 * "nan" or "inf". Numbers print the same in every locale, as qkvc sets none. */
#ifndef TOOLS_SVG_H
#define TOOLS_SVG_H

#include <stdbool.h>
#include <stdio.h>

enum { SVG_SERIES = 8, SVG_TICKS = 24 };

typedef enum svg_unit {
  SVG_PLAIN,   /* 0.25, 40, 1.5k */
  SVG_TOKENS,  /* powers of two: 512, 1k, 4k, 1M */
  SVG_SECONDS, /* 1.5 µs, 20 ms */
  SVG_PERCENT
} svg_unit;

typedef struct svg_axis {
  const char *label; /* with the unit; escaped when written */
  svg_unit unit;
  bool logarithmic;
  double least, most; /* what it shows, set by svg_fit */
  double from, to;    /* pixels of least and most */
} svg_axis;

typedef struct svg_plot {
  FILE *out;
  double width, height; /* of the picture, in pixels */
  svg_axis x, y;
} svg_plot;

/* Text in which <, >, &, quotes are escaped, and bytes that no XML may hold (control characters, bad UTF-8) are U+FFFD:
 * fit for elements and attributes. */
void svg_escape(FILE *out, const char *text);
/* A pixel coordinate, one decimal at most. */
void svg_coordinate(FILE *out, double pixels);
/* A number with its unit in few characters, for ticks and labels; "-" when it is not finite. Returns out. */
char *svg_number(char out[32], double value, svg_unit unit);

/* Makes an axis show values from least to most: rounded outwards to ticks when linear, with a margin when logarithmic
 * (whose bounds must be above 0). A single value, or none at all (not finite), gets an axis around it. */
void svg_fit(svg_axis *axis, double least, double most);
/* Values that get a label, ascending. Returns their number, from 1 to SVG_TICKS. */
int svg_ticks(const svg_axis *axis, double ticks[SVG_TICKS]);
/* The pixel of a value; NAN when the axis has no place for it (log of what is not above 0). */
double svg_at(const svg_axis *axis, double value);

/* Opens a picture of plot->width by plot->height. title and description are for screen readers; both are escaped. */
void svg_begin(svg_plot *plot, const char *title, const char *description);
/* Puts the axes' pixels inside the margins, and draws grid, ticks and labels. */
void svg_axes(svg_plot *plot, double left, double right, double top, double bottom);
void svg_end(svg_plot *plot);

/* A polyline through the points that can be placed, and markers on them. */
void svg_line(svg_plot *plot, int series, int count, const double *x, const double *y);
void svg_markers(svg_plot *plot, int series, int count, const double *x, const double *y);
/* Small dots as one path: thousands stay small. */
void svg_dots(svg_plot *plot, int series, int count, const double *x, const double *y);
/* A straight line between two points of the data, of a class such as "roof" or "one". */
void svg_rule(svg_plot *plot, const char *class, double x0, double y0, double x1, double y1);
/* In pixels. anchor: "start", "middle" or "end". */
void svg_text(svg_plot *plot, double x, double y, const char *anchor, const char *class, const char *text);
void svg_box(svg_plot *plot, double x, double y, double width, double height, const char *class);
/* Many boxes as one path. */
typedef struct svg_rect {
  double x, y, width, height;
} svg_rect;
void svg_boxes(svg_plot *plot, int count, const svg_rect *boxes, const char *class);
/* A line of a series, its marker on it, as a picture of its own for a legend. */
void svg_key(FILE *out, int series, bool line);

#endif
