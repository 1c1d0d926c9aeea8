/* tune_inputs.h: what a worker runs candidates on: small problems with tails whose answer is known, and the tensors of
 * a workload in as many copies as its timing takes. */
#ifndef TOOLS_TUNE_INPUTS_H
#define TOOLS_TUNE_INPUTS_H

#include "cli_problem.h"

/* ---- Checks ---- */

/* A problem and its right answer. */
typedef struct tune_check {
  problem p; /* engine and spec are the worker's */
  qkv_tensor expected[SLOT_PARAMS];
  char against[96];
} tune_check;

/* Two problems a phase: one small enough for the f64 reference to take a fraction of a second, and on a GPU a larger
 * one of several tiles of rows, whose answer is that of attention_naive where that family can do the spec. Lengths are
 * odd; sequences have mixed ones, poison in all that no sequence owns. len_q: queries of phase decode. */
enum { TUNE_CHECKS = 2 };
/* Fills checks[]; *count of them. Returns an exit code. */
int tune_checks_open(qkv_engine *engine, qkv_spec *spec, const char *phase, int64_t len_q, const cli_list *params,
                     tune_check checks[TUNE_CHECKS], int *count);
void tune_checks_close(tune_check *checks, int count);
/* Runs a candidate on one of them, outputs poisoned before. A failed call is in *status; *judged otherwise. */
void tune_check_run(tune_check *check, const qkv_limits *choice, qkv_status *status, verdict *judged);

/* ---- Workloads ---- */

typedef struct tune_inputs {
  problem p; /* arrays of lengths, sinks, scales, parameters; engine and spec are the worker's */
  int copies;
  qkv_attention_args *args; /* [copies], each with q, k, v, o and LSEs of its own */
  void **memory;            /* of the copies */
  int pieces;
  bool cold; /* whether calls should find nothing in the cache: docs/tuning.md */
} tune_inputs;

/* Makes them: random numbers, all sequences of full length. Returns an exit code; message on stderr. */
int tune_inputs_open(qkv_engine *engine, qkv_spec *spec, const char *phase, int64_t batch, int64_t len_q, int64_t len_k,
                     const cli_list *params, tune_inputs *out);
void tune_inputs_close(tune_inputs *in);

/* Maxima and alignment as an engine would declare them for these sizes. */
qkv_limits tune_limits(const problem *p, const char *phase, const char *family, const char *schedule);
/* Whether the spec's rows are multiples of 16 bytes. */
bool tune_rows_aligned(const qkv_spec_info *info);

#endif
