/* cli_sequences.h: problems whose sequences have lengths of their own: the arrays of lengths and pages, the shapes that
 * follow, and poison in all that no sequence owns. Invariant: host tensors are contiguous, packed sequences begin at
 * row 0. Built by cli_sequences.c for cli_problem.c and cli_verify.c. */
#ifndef TOOLS_CLI_SEQUENCES_H
#define TOOLS_CLI_SEQUENCES_H

#include "cli_problem.h"

/* Whether the spec's layouts are other than dense: the functions below are for such problems only. */
bool sequences_any(const problem *p);
/* Draws the lengths within batch, len_q and len_k: some 0, 1 and full, the others anything ("mixed"), or all full;
 * makes the arrays, pages in an order of their own and wild numbers behind the ends of the table. Returns an exit code. */
int sequences_make(problem *p, const problem_request *request);
/* The shape of q, k, v, o or an LSE, after sequences_make. Returns its rank. */
int sequences_shape(const problem *p, problem_slot slot, int64_t shape[4]);
/* Random rows of q, k or v where a sequence has a token, NaN elsewhere. */
void sequences_fill(problem *p, problem_slot slot, uint64_t seed);
/* Reduces a call, whose tensors are on the host, to its first `batch` sequences. */
void sequences_first(const problem *p, qkv_attention_args *args, int64_t batch);
/* Writes 0 into all of a contiguous o or LSE that the first `batch` sequences do not own. Returns whether what no
 * sequence owns was NaN before, as outputs are that nobody wrote. */
bool sequences_clear(const problem *p, problem_slot slot, qkv_tensor *t, int64_t batch);
/* Pairs of query and key of all sequences, each with its own lengths. */
double sequences_pairs(const problem *p);

#endif
