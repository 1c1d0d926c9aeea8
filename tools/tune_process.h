/* tune_process.h: another process of this program that answers lines with lines, and that may be killed at any time
 * (tune_worker.c). The tuner has no threads, so that it may fork whenever it likes. */
#ifndef TOOLS_TUNE_PROCESS_H
#define TOOLS_TUNE_PROCESS_H

#include <sys/types.h>

#include "cli.h"

/* Start from zero. */
typedef struct tune_process {
  pid_t pid; /* 0: none */
  int to, from;
  char *buffer; /* what was read and is no whole line yet */
  size_t filled, capacity;
} tune_process;

/* Seconds in which a process opens its device and says hello. */
#define TUNE_START_LIMIT 120.0

/* Starts it on a device (NULL: the global option's), with the other global options and params of this process; it dies
 * with the process that started it. tables: where its tables go, NULL: as the global options say. False: errno says. */
bool tune_process_start(tune_process *p, const char *device, const char *tables, const cli_list *params);
/* Ends it: killed with all that it started, or by the end of its input; then it is killed, too, after ten seconds. how
 * (may be NULL): how it ended, such as "signal 11 (Segmentation fault)". Does nothing where there is none. */
void tune_process_stop(tune_process *p, bool kill_it, char *how, size_t size);
/* Frees what it holds, after its end. */
void tune_process_clear(tune_process *p);

/* Sends a line. What fails shows when the answer is read. */
void tune_process_send(const tune_process *p, const char *line);

typedef enum tune_line {
  TUNE_LINE,    /* *line is one, without its line feed; freed by the caller */
  TUNE_NO_LINE, /* none until the deadline */
  TUNE_ENDED    /* and there will be no more */
} tune_line;
/* Waits for the next line until `deadline` (cli_seconds(); 0: takes what is there). */
tune_line tune_process_read(tune_process *p, double deadline, char **line);

#endif
