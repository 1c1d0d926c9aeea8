/* compile_log.h: what the compilers' logs say, as data. Pure text functions. */
#ifndef RUNTIME_COMPILE_LOG_H
#define RUNTIME_COMPILE_LOG_H

#include "device.h"
#include "text.h"

/* The registers, spills, stack and static shared memory that `ptxas -v` reports for an entry; -1 registers and zeros
 * when the log does not speak of it. */
void log_resources(const char *log, const char *entry, device_resources *out);

/* A compiler message at the start of `line`: "kernel.cu(12): error: text", "kernel.cu:12:5: error: text". */
typedef struct log_place {
  int line, column; /* of the generated source; column 0: not given */
  const char *rest; /* "error: text" */
} log_place;
/* 1 and *out when the line starts with a place. */
int log_parse_place(const char *line, log_place *out);

/* 1 when the line is worth showing after a successful build: warnings, errors and notes on lost performance, not the
 * statistics of ptxas -v. */
int log_is_note(const char *line, size_t length);

#endif
