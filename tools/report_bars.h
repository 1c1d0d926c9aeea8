/* report_bars.h: horizontal bars with a name on the left, a remark on the right, and whiskers. */
#ifndef TOOLS_REPORT_BARS_H
#define TOOLS_REPORT_BARS_H

#include "report.h"
#include "svg.h"

typedef struct bar {
  const char *label; /* bars that follow each other with the same label (the same pointer) stand together */
  int series;
  double value, low, high; /* low, high: NAN: no whisker */
  char remark[48];
} bar;

/* Draws `count` bars on an axis from 0; what is beyond `cut` (NAN: nothing) ends there. `mark` (NAN: none) is a line
 * across all bars, of a class such as "ceiling". */
void bars_draw(FILE *out, const char *title, const char *label, int count, const bar *bars, double cut, double mark,
               const char *mark_class, const char *mark_text);

#endif
