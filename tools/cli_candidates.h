/* cli_candidates.h: qkvc explain --candidates: the schedules that a tuner would try, and what is expected of each. */
#ifndef TOOLS_CLI_CANDIDATES_H
#define TOOLS_CLI_CANDIDATES_H

#include "cli_problem.h"

/* Prints the first `most` (0: all) of an effort ("quick", "default", "full"; NULL: default). Returns an exit code. */
int cli_candidates_explain(const char *path, const problem_request *sizes, int64_t most, const char *effort, bool json);

#endif
