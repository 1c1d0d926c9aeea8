/* tune.h: what the files of qkvc tune share: the settings of a run, and what is tuned: groups, workloads, candidates.
 *
 * A group is one phase of one spec; its kernels are compiled and checked once for all of its workloads. A workload gets
 * the schedule that is fastest on it, the group one for maxima that are not declared. docs/tuning.md says how. */
#ifndef TOOLS_TUNE_H
#define TOOLS_TUNE_H

#include "cli.h"
#include "qkv_tune.h"
#include "tune_builders.h"
#include "tune_client.h"
#include "tune_clock.h"

extern const cli_command tune_worker_command; /* in no list of commands: tuners start it */

/* How much is tried, by effort. */
typedef struct tune_amount {
  const char *name;
  int candidates;        /* of a workload, by the model */
  int first_samples;     /* in the first round; each round after it has twice as many */
  int finalists;         /* of a workload */
  int final_samples;     /* of each finalist, in turns */
  double sample_seconds; /* of the final */
} tune_amount;

typedef struct tune_settings {
  qkv_effort effort;
  tune_amount amount;
  cli_list params, workloads;
  const char *phase;    /* NULL: all */
  double limit;         /* seconds for one answer of the worker */
  double compile_limit; /* the same for the compiling of a candidate */
  double deadline;      /* cli_seconds() at which the run ends; 0: none */
  int jobs;             /* compilers at once */
  int shard, shards;    /* groups g with g % shards == shard */
  bool emulated;
} tune_settings;

typedef struct tune_workload {
  char name[64], bucket[QKV_BUCKET_TEXT]; /* workloads of one bucket share an entry of the tables */
  int64_t batch, len_q, len_k;
} tune_workload;

enum { TUNE_WORKLOADS = 32 };

/* What was found of a candidate on one workload; seconds 0: nothing. */
typedef struct tune_timing {
  double model; /* seconds that the model expects; 0: it was not asked */
  bool wanted;  /* among the best of the model, the default or the incumbent of this workload */
  bool refused; /* the candidate has no kernel for these sizes */
  bool finalist;
  double seconds, low, high; /* median, 10th and 90th percentile of the last round */
  int samples;
  tune_clocks clocks; /* of the last round: those of all who were in it */
} tune_timing;

typedef struct tune_candidate {
  char *family, *schedule;
  char key[33];    /* of the compiled kernel; names its source */
  char status[16]; /* "" as long as it is in the race; "compile", "rejected", "wrong", "error", "fault", "timeout",
                      "crashed", "failed", "skipped": why it is not; the rest as in answers */
  char *reason;    /* NULL: none */
  int registers, spills;
  tune_timing on[TUNE_WORKLOADS];
} tune_candidate;

/* Why a workload, or the group, has the schedule it has. */
typedef struct tune_choice {
  int winner, incumbent, default_candidate; /* of candidates; -1: none */
  double seconds, low, high;                /* of the winner */
  double default_seconds;                   /* of the default in the winner's turns */
  double gain; /* of the winner over the default, a logarithm: 0.05 is 5 % faster */
} tune_choice;

typedef struct tune_group {
  const char *path;
  char name[64], phase[16], hash[17]; /* hash: of the canonical spec */
  bool aligned;                       /* rows are multiples of 16 bytes */
  int nworkloads;
  tune_workload workloads[TUNE_WORKLOADS];
  int count, capacity;
  tune_candidate *candidates;              /* the order breaks ties */
  tune_choice choices[TUNE_WORKLOADS + 1]; /* the last one used: of undeclared maxima */
  char outcome[160];                       /* "" when tuned; else why not, or not to the end */
  bool tuned;
  double seconds; /* it took */
} tune_group;

typedef struct tune_plan {
  int count;
  tune_group *groups;
} tune_plan;

/* ---- tune_plan.c ---- */

/* Loads the specs and makes the groups of this shard, without candidates. Returns an exit code after a message. */
int plan_make(qkv_engine *engine, char *const *paths, int count, const tune_settings *settings, tune_plan *out);
void plan_free(tune_plan *plan);
/* Asks the worker for the candidates of all workloads and for the tables' entries. Returns an exit code. */
int plan_candidates(tune_group *g, tune_client *client, const tune_settings *settings);
/* The index of a candidate, added when it is new; -1: out of memory. */
int plan_candidate(tune_group *g, const char *family, const char *schedule);
/* Whether it is a default or an incumbent: without them there is nothing to compare with. */
bool plan_needs(const tune_group *g, int candidate);
/* Takes a candidate out of the race. */
void candidate_drop(tune_candidate *c, const char *status, const char *reason);
static inline bool candidate_alive(const tune_candidate *c) {
  return !c->status[0];
}
/* Whether it is in the race on a workload. */
static inline bool candidate_runs(const tune_candidate *c, int w) {
  return candidate_alive(c) && !c->on[w].refused;
}
/* Seconds that a group may take: a rough figure, from what the model expects. */
double plan_seconds(const tune_group *g, const tune_settings *settings);

/* ---- tune_compile.c ---- */

/* Compiles all candidates that are in the race; drops those that do not compile, whose compiler crashes or takes too
 * long, or tells of lost speed. One group at a time. */
typedef struct tune_compile tune_compile;
/* Begins, with at most so many processes until compile_end: in the meantime others may be at work, such as the worker
 * with the group before. NULL when out of memory, with all candidates dropped. */
tune_compile *compile_begin(tune_builders *builders, const tune_client *client, tune_group *g,
                            const tune_settings *settings, int most);
/* Goes on without waiting, of a tune_compile. */
void compile_step(void *compile);
/* Waits until all is compiled, and frees it (NULL is allowed). deadline: of the group (0: none), of which candidates
 * that can be done without have half the time that is left; what is not compiled by then is dropped as skipped. */
void compile_end(tune_compile *compile, double deadline);
/* The name under which the journal says why a candidate was not compiled. */
void compile_name(const tune_group *g, const tune_candidate *c, char *out, size_t size);

/* ---- tune_search.c ---- */

/* Checks, races and chooses. What it cannot finish by `deadline` (0: none) is said in g->outcome. */
void search_group(tune_group *g, tune_client *client, const tune_settings *settings, double deadline);

/* ---- tune_clock_notes.c ---- */

/* Lines on the clocks of a group's finals for the tables' `measured`: "sm_clock: 1755 MHz (1680 to 1980)" and others;
 * "" when none were read. Every line ends with a line feed. */
void clock_notes(const tune_group *g, char *out, size_t size);
/* Prints a line for each workload in whose final the SM clock moved by more than CLOCK_DRIFT. */
#define CLOCK_DRIFT 0.05
void report_clock_drift(const tune_group *g, FILE *out);

/* ---- tune_report.c ---- */

/* One line on standard error where a terminal shows it, replaced by the next: where in the run, a bar, time left. */
typedef struct tune_progress {
  double started, deadline;
  int group, groups;
} tune_progress;
extern tune_progress tune_now;
/* A step of a group: what, and how much of the whole group is done (0 to 1). On other streams a line for each `what`.
 */
void report_step(const tune_group *g, const char *what, int done, int of, double part);
/* What a group ended with: a table of the workloads, candidates that failed. */
void report_group(const tune_group *g);
void report_plan(const tune_plan *plan, const tune_settings *settings);
void report_plan_json(const tune_plan *plan, const tune_settings *settings);
void report_json(const tune_plan *plan, const tune_device *device, double seconds, int restarts);
/* Appends a group to an open CSV file; the head line with g NULL. */
void report_csv(FILE *out, const tune_group *g);

#endif
