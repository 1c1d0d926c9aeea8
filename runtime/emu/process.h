/* process.h: runs a program and collects what it prints. Thread safe; no shell. */
#ifndef RUNTIME_EMU_PROCESS_H
#define RUNTIME_EMU_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct process_result {
  bool started;
  int exit_code; /* 128 + signal when killed; -1: unknown, because the caller of the library ignores SIGCHLD */
  char *output;  /* stdout and stderr together, zero-terminated; never NULL when started; free it */
} process_result;

/* Runs argv (argv[0] is looked up in PATH unless it has a slash) in the C locale, with standard input empty. `dir`:
 * where it runs, or NULL. inherited_fd >= 0 is open in the program as descriptor 3. */
process_result process_run(char *const argv[], const char *dir, int inherited_fd);

#endif
