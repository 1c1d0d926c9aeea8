/* report_heat.c: heat maps of a tuning run: for each pair of values of two axes the fastest schedule that has them,
 * over the fastest of all. Which axes: those whose worst value costs the most even with the best of everything else. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_tune.h"
#include "svg.h"

enum { AXES = 32, VALUES = 16, AXES_SHOWN = 3, NAME = 24 };

typedef struct axis {
  char name[NAME];
  int count;
  char values[VALUES][NAME];
  double best[VALUES]; /* seconds of the fastest schedule with that value */
} axis;

/* The value of a field in "k=v,k=v"; false when there is none, or it is too long to show. */
static bool field(const char *schedule, const char *name, char out[NAME]) {
  const size_t length = strlen(name);
  for (const char *at = schedule; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    if (strncmp(at, name, length) != 0 || at[length] != '=')
      continue;
    const size_t size = strcspn(at + length + 1, ",");
    if (!size || size >= NAME)
      return false;
    memcpy(out, at + length + 1, size);
    out[size] = 0;
    return true;
  }
  return false;
}

static int value_number(const axis *a, const char *value) {
  for (int n = 0; n < a->count; n++)
    if (!strcmp(a->values[n], value))
      return n;
  return -1;
}

static void note_value(axis *a, const char *value, double seconds) {
  int n = value_number(a, value);
  if (n < 0) {
    if (a->count == VALUES)
      return; /* what has no room has no cell */
    n = a->count++;
    snprintf(a->values[n], NAME, "%s", value);
    a->best[n] = INFINITY;
  }
  a->best[n] = fmin(a->best[n], seconds);
}

/* All fields of a schedule; names too long to show are left out. */
static int note_schedule(axis axes[AXES], int count, const char *schedule, double seconds) {
  for (const char *at = schedule; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    const size_t length = strcspn(at, "=,");
    char name[NAME], value[NAME];
    if (at[length] != '=' || !length || length >= NAME)
      continue;
    memcpy(name, at, length);
    name[length] = 0;
    int n = 0;
    while (n < count && strcmp(axes[n].name, name) != 0)
      n++;
    if (n == AXES || !field(schedule, name, value))
      continue;
    if (n == count) {
      axes[count] = (axis){.count = 0};
      memcpy(axes[count++].name, name, length + 1);
    }
    note_value(&axes[n], value, seconds);
  }
  return count;
}

static double cost(const axis *a) {
  double least = INFINITY, most = 0;
  for (int n = 0; n < a->count; n++)
    least = fmin(least, a->best[n]), most = fmax(most, a->best[n]);
  return a->count > 1 ? most / least : 0;
}

static int by_cost(const void *a, const void *b) {
  const double x = cost(a), y = cost(b);
  return x > y ? -1 : x < y ? 1 : strcmp(((const axis *)a)->name, ((const axis *)b)->name);
}

/* Numbers by size, before words by the alphabet. */
static int compare_values(const char *a, const char *b) {
  char *end_a, *end_b;
  const double x = strtod(a, &end_a), y = strtod(b, &end_b);
  if (!*end_a && !*end_b && x != y)
    return x < y ? -1 : 1;
  return *end_a != *end_b && (!*end_a || !*end_b) ? (!*end_a ? -1 : 1) : strcmp(a, b);
}

static void sort_values(axis *a) {
  for (int n = 1; n < a->count; n++) /* few values: insertion */
    for (int m = n; m && compare_values(a->values[m], a->values[m - 1]) < 0; m--) {
      char text[NAME];
      memcpy(text, a->values[m], NAME);
      memcpy(a->values[m], a->values[m - 1], NAME);
      memcpy(a->values[m - 1], text, NAME);
      const double seconds = a->best[m];
      a->best[m] = a->best[m - 1];
      a->best[m - 1] = seconds;
    }
}

static void draw(const report *r, FILE *out, const tune_run *run, const char *family, const axis *x, const axis *y) {
  enum { WIDTH = 62, HEIGHT = 26, LEFT = 150, TOP = 34 };
  svg_plot p = {.out = out, .width = 960, .height = TOP + HEIGHT * y->count + 46};
  double best[VALUES][VALUES]; /* [y][x] */
  for (int j = 0; j < y->count; j++)
    for (int i = 0; i < x->count; i++)
      best[j][i] = INFINITY;
  for (int n = 0; n < run->count; n++) {
    const report_row *row = &r->rows[run->rows[n]];
    char at_x[NAME], at_y[NAME];
    if (strcmp(row->family, family) != 0 || !field(row->schedule, x->name, at_x) ||
        !field(row->schedule, y->name, at_y))
      continue;
    const int i = value_number(x, at_x), j = value_number(y, at_y);
    if (i >= 0 && j >= 0)
      best[j][i] = fmin(best[j][i], row->median);
  }
  char text[96], class[64];
  snprintf(text, sizeof text, "Best time by %s and %s", x->name, y->name);
  svg_begin(&p, text, "Cells hold the time of the fastest schedule with these two values over the fastest of all");
  svg_text(&p, LEFT - 10, 18, "end", "label", y->name);
  for (int j = 0; j < y->count; j++) {
    const double top = TOP + HEIGHT * j;
    svg_text(&p, LEFT - 10, top + 17, "end", "tick", y->values[j]);
    for (int i = 0; i < x->count; i++) {
      const double left = LEFT + WIDTH * i / (x->count > 12 ? 1.3 : 1), width = WIDTH / (x->count > 12 ? 1.3 : 1) - 2;
      if (j == y->count - 1)
        svg_text(&p, left + width / 2, top + HEIGHT + 16, "middle", "tick", x->values[i]);
      if (!isfinite(best[j][i])) {
        svg_box(&p, left, top, width, HEIGHT - 2, "hole");
        continue;
      }
      const double over = best[j][i] / run->best;
      const int shade = (int)fmin(9, fmax(0, 9 - 18 * log2(over))); /* full for the best, none from 1.41 times on */
      snprintf(class, sizeof class, "heat h%d", shade);
      svg_box(&p, left, top, width, HEIGHT - 2, class);
      snprintf(text, sizeof text, over < 9.995 ? "%.2f" : "%.0f", over);
      svg_text(&p, left + width / 2, top + 16, "middle", shade > 5 ? "oncell" : "cell", text);
    }
  }
  svg_text(&p, LEFT, p.height - 8, "start", "label", x->name);
  svg_end(&p);
}

void heat_maps(report *r, FILE *out, const tune_run *run) {
  const char *family = r->rows[run->rows[0]].family;
  axis *axes = report_array(AXES, sizeof *axes);
  int count = 0;
  for (int n = 0; n < run->count; n++)
    if (!strcmp(r->rows[run->rows[n]].family, family))
      count = note_schedule(axes, count, r->rows[run->rows[n]].schedule, r->rows[run->rows[n]].median);
  qsort(axes, (size_t)count, sizeof *axes, by_cost);
  int shown = 0;
  while (shown < count && shown < AXES_SHOWN && axes[shown].count > 1)
    sort_values(&axes[shown++]);
  if (shown > 1) {
    fputs("<h3>Best time by pairs of axes, over the best of all", out);
    fputs(*family ? ": " : "", out);
    page_text(out, family);
    fputs("</h3>\n", out);
  }
  for (int a = 0; a < shown; a++)
    for (int b = a + 1; b < shown; b++)
      draw(r, out, run, family, &axes[a], &axes[b]);
  free(axes);
}
