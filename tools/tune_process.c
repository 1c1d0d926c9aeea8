/* tune_process.c: see tune_process.h. The process is this program started anew (/proc/self/exe), not a mere fork: it
 * has no state of the tuner's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tune_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds that a process has to end when it is told to: drivers may hang while they are closed. */
#ifndef FAREWELL
#define FAREWELL 10.0
#endif

/* ---- The process ---- */

enum { WORDS = 2 * CLI_LIST_MAX + 24 };

/* The command line; seed holds one of its words. */
static void make_words(const char *device, const char *tables, const cli_list *params, char seed[32],
                       const char *words[WORDS]) {
  const struct {
    const char *option, *value;
  } globals[] = {{"--device", device ? device : cli_global.device},
                 {"--arch", cli_global.arch},
                 {"--cache-dir", cli_global.cache_dir},
                 {"--template-path", cli_global.template_path},
                 {"--tuned-dir", tables ? tables : cli_global.tuned_dir}};
  int n = 0;
  words[n++] = "qkvc";
  words[n++] = "tune-worker";
  for (size_t g = 0; g < sizeof globals / sizeof *globals; g++)
    if (globals[g].value) {
      words[n++] = globals[g].option;
      words[n++] = globals[g].value;
    }
  for (int p = 0; p < params->count; p++) {
    words[n++] = "--param";
    words[n++] = params->items[p];
  }
  snprintf(seed, 32, "%llu", (unsigned long long)cli_global.emu_seed);
  words[n++] = "--emu-seed";
  words[n++] = seed;
  if (cli_global.verbose)
    words[n++] = "-v";
  words[n] = NULL;
}

/* Replaces this child. Only calls that are allowed between fork and exec. */
static void become(const char *const words[WORDS], pid_t parent, int in, int out) {
  char *argv[WORDS];
  memcpy(argv, words, sizeof argv);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)
    _exit(EXIT_FAILED); /* gone before that could take effect */
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  const int nowhere = cli_global.verbose ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0)
    dup2(nowhere, STDERR_FILENO);
  execv("/proc/self/exe", argv);
  _exit(EXIT_FAILED);
}

bool tune_process_start(tune_process *p, const char *device, const char *tables, const cli_list *params) {
  int to[2], from[2];
  char seed[32];
  const char *words[WORDS] = {NULL};
  make_words(device, tables, params, seed, words);
  if (pipe2(to, O_CLOEXEC))
    return false;
  if (pipe2(from, O_CLOEXEC)) {
    close(to[0]), close(to[1]);
    return false;
  }
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0)
    become(words, parent, to[0], from[1]);
  const int error = errno;
  close(to[0]);
  close(from[1]);
  if (pid < 0) {
    close(to[1]), close(from[0]);
    errno = error;
    return false;
  }
  p->pid = pid;
  p->to = to[1];
  p->from = from[0];
  p->filled = 0;
  return true;
}

/* Whether it has ended, after FAREWELL seconds at most. */
static bool ended_by_itself(pid_t pid, int *status) {
  const double start = cli_seconds();
  for (;;) {
    const pid_t found = waitpid(pid, status, WNOHANG);
    if (found > 0 || (found < 0 && errno != EINTR))
      return true;
    if (cli_seconds() - start > FAREWELL)
      return false;
    usleep(1000);
  }
}

void tune_process_stop(tune_process *p, bool kill_it, char *how, size_t size) {
  int status = 0;
  if (how)
    snprintf(how, size, "no process");
  if (!p->pid)
    return;
  close(p->to);
  if (kill_it || !ended_by_itself(p->pid, &status)) {
    kill(-p->pid, SIGKILL), kill(p->pid, SIGKILL); /* it may not have had the time to become a group */
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
      ;
  }
  close(p->from);
  p->pid = 0;
  if (how && WIFSIGNALED(status))
    snprintf(how, size, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else if (how)
    snprintf(how, size, "exit code %d", WEXITSTATUS(status));
}

void tune_process_clear(tune_process *p) {
  free(p->buffer);
  memset(p, 0, sizeof *p);
}

/* ---- Lines ---- */

void tune_process_send(const tune_process *p, const char *line) {
  const size_t length = strlen(line);
  for (size_t sent = 0; sent < length;) {
    const ssize_t wrote = write(p->to, line + sent, length - sent);
    if (wrote < 0 && errno != EINTR)
      return;
    sent += wrote > 0 ? (size_t)wrote : 0;
  }
}

static bool grow(tune_process *p) {
  if (p->filled + 4096 < p->capacity)
    return true;
  char *buffer = realloc(p->buffer, p->capacity + 65536);
  if (!buffer)
    return false;
  p->buffer = buffer;
  p->capacity += 65536;
  return true;
}

/* Moves the first line out of the buffer; NULL: there is none yet. */
static char *take_line(tune_process *p) {
  char *end = p->filled ? memchr(p->buffer, '\n', p->filled) : NULL;
  if (!end)
    return NULL;
  const size_t length = (size_t)(end - p->buffer);
  char *line = strndup(p->buffer, length);
  p->filled -= length + 1;
  memmove(p->buffer, end + 1, p->filled);
  return line;
}

/* Milliseconds to wait for, a second at most. */
static int patience(double deadline) {
  const double left = deadline > 0 ? deadline - cli_seconds() : 0;
  return left > 1 ? 1000 : left > 0 ? (int)(left * 1000) + 1 : 0;
}

tune_line tune_process_read(tune_process *p, double deadline, char **line) {
  for (;;) {
    if ((*line = take_line(p)) != NULL)
      return TUNE_LINE;
    if (!grow(p))
      return TUNE_ENDED;
    struct pollfd ready = {.fd = p->from, .events = POLLIN};
    const int wait = patience(deadline), found = poll(&ready, 1, wait);
    if (found <= 0 && wait == 0)
      return TUNE_NO_LINE;
    if (found <= 0)
      continue;
    const ssize_t got = read(p->from, p->buffer + p->filled, p->capacity - p->filled - 1);
    if (got > 0)
      p->filled += (size_t)got;
    else if (got == 0 || errno != EINTR)
      return TUNE_ENDED;
  }
}
