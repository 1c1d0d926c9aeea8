/* tune_builders.h: processes that compile for a tuner side by side, any of which may crash or hang: what it was at
 * ends, and another one goes on. The tuner has no threads, so that it may fork whenever it likes. */
#ifndef TOOLS_TUNE_BUILDERS_H
#define TOOLS_TUNE_BUILDERS_H

#include "cli.h"
#include "tune_record.h"

typedef struct tune_builders tune_builders;

enum { TUNE_BUILDERS = 64 };

/* Room for so many processes, TUNE_BUILDERS at most; each starts when it is first needed, with the global options of
 * this process but for the device ("none", or "emu" for its kernels). NULL: out of memory. */
tune_builders *builders_open(int count, const char *device, const cli_list *params);
/* Ends them. NULL is allowed. */
void builders_close(tune_builders *b);

/* Questions 0 to count - 1, begun in that order. */
typedef struct tune_questions {
  int count, needed; /* needed: the first so many cannot be done without */
  double ends[2];    /* cli_seconds() at which those, and the others, are given up; 0: never. May change on the way */
  double limit;      /* seconds for each */
  /* The line of question n, freed by the pool; NULL: there is nothing to ask any more. done: how many are. */
  char *(*ask)(void *user, int n, int done);
  /* Its answer always has a "status": the process's, "timeout", "crashed", "skipped" at its end, or "failed" when no
   * process starts; with a "reason". */
  void (*take)(void *user, int n, const record *answer);
  void *user;
} tune_questions;
/* Begins to ask them of at most so many processes, when the questions before have their answers; q and what it points
 * to stay. Nothing goes on between calls but the processes. */
void builders_begin(tune_builders *b, const tune_questions *q, int most);
/* Takes the answers that are there and asks on, without waiting. */
void builders_step(tune_builders *b);
/* Asks all that is left, of all processes; returns when each has its answer. */
void builders_finish(tune_builders *b);

#endif
