/* report_tune.h: one workload's candidates of a tuning run, as its section and its heat maps look at them. */
#ifndef TOOLS_REPORT_TUNE_H
#define TOOLS_REPORT_TUNE_H

#include "report.h"

typedef struct tune_run {
  const char *label; /* report_run, and the file where another has the same */
  int candidates;    /* rows, each a schedule of a family */
  int count;         /* of those with a measured time */
  int *rows;         /* these, fastest first */
  int *modelled;     /* all with a model's time, least first */
  int nmodelled;
  int pairs;          /* of those measured that the model has a time for */
  double best, plain; /* seconds of the fastest and of the built-in default; NAN: not measured */
  double correlation; /* Spearman's, of model and measurement; NAN: too few */
  double first_eight; /* fastest of the 8 that the model likes best; NAN: none of them was measured */
} tune_run;

/* Heat maps of the axes that matter most, at most three pairs of them, of the family that has the fastest schedule.
 * Draws nothing where fewer than two axes vary. */
void heat_maps(report *r, FILE *out, const tune_run *run);

#endif
