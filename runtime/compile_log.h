/* compile_log.h: what the compilers' logs say, as data. Pure text functions.
 *
 * ptxas tells of lost speed only in advisories: lines of severity "info" that change nothing but the time a kernel
 * takes. They are read by their wording, for their numbers are not the same in every release: what is C7520 in
 * CUDA 13.0 is C7519 in 13.5. */
#ifndef RUNTIME_COMPILE_LOG_H
#define RUNTIME_COMPILE_LOG_H

#include "device.h"
#include "text.h"

typedef enum log_kind {
  LOG_SERIALISED, /* every wgmma waits for the one before it: nothing overlaps */
  LOG_SETMAXNREG, /* setmaxnreg is dropped: all warpgroups keep the registers of the launch */
  LOG_WAIT,       /* ptxas adds a wait for wgmma, which drains what the source meant to overlap */
  LOG_FENCE,      /* ptxas adds a wgmma fence; costs next to nothing, and newer releases are silent about it */
  LOG_WARNING,    /* warnings of the front end and of ptxas, and advisories this table does not know */
  LOG_KINDS
} log_kind;

/* One message of a log. The spans point into the log or into static text. */
typedef struct log_span {
  const char *at;
  size_t length;
} log_span;
typedef struct log_advisory {
  log_kind kind;
  log_span code;     /* "C7511", "#177-D"; empty: none */
  log_span function; /* the function it names; empty: none */
  log_span meaning;  /* in plain words; of a LOG_WARNING the compiler's own */
} log_advisory;

/* 1 and *out when the line (without its line end) is an advisory or a warning. */
int log_parse_advisory(const char *line, size_t length, log_advisory *out);

/* What `ptxas -v` reports for an entry: registers, spills, stack, static shared memory, and how many advisories of each
 * kind. -1 registers and zeros when the log does not speak of it. ptxas prints advisories for a whole module before it
 * comes to its entries: one that names no entry, as none on setmaxnreg does, counts for each of them. */
void log_resources(const char *log, const char *entry, device_resources *out);

/* Appends a line per kind of advisory of an entry that costs speed, LOG_FENCE left out:
 * "qkv_kernel: wgmma serialised (C7511): too few registers ..., 2 times". */
void log_advise(const char *log, const char *entry, text *out);

/* A compiler message at the start of `line`: "kernel.cu(12): error: text", "kernel.cu:12:5: error: text". */
typedef struct log_place {
  int line, column; /* of the generated source; column 0: not given */
  const char *rest; /* "error: text" */
} log_place;
/* 1 and *out when the line starts with a place. */
int log_parse_place(const char *line, log_place *out);

/* 1 when the line is worth showing after a build: warnings, errors and advisories, not the statistics of ptxas -v. */
int log_is_note(const char *line, size_t length);

#endif
