/* tune_client.c: see tune_client.h. The worker is this program started anew (/proc/self/exe), so that it has no state
 * of the tuner's, and dies with it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tune_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds in which a worker opens its device. */
#define START_LIMIT 120.0

struct tune_client {
  char *tables;
  cli_list params;
  pid_t pid; /* 0: none */
  int to, from;
  char *buffer; /* what was read and is no whole line yet */
  size_t filled, capacity;
  tune_device device;
  int started;
  bool lost; /* no worker can be started any more */
  tune_journal *journal;
  char *context;
};

bool answer_is(const record *answer, const char *status) {
  const char *text = record_text(answer, "status");
  return text && !strcmp(text, status);
}

/* ---- The process ---- */

/* Replaces this child by the worker. */
static void become_worker(const tune_client *c, pid_t parent, const int to[2], const int from[2]) {
  enum { WORDS = 2 * CLI_LIST_MAX + 24 };
  const char *words[WORDS];
  int n = 0;
  const struct {
    const char *option, *value;
  } globals[] = {{"--device", cli_global.device},
                 {"--arch", cli_global.arch},
                 {"--cache-dir", cli_global.cache_dir},
                 {"--template-path", cli_global.template_path}};
  char seed[32];
  words[n++] = "qkvc";
  words[n++] = "tune-worker";
  for (size_t g = 0; g < sizeof globals / sizeof *globals; g++)
    if (globals[g].value) {
      words[n++] = globals[g].option;
      words[n++] = globals[g].value;
    }
  for (int p = 0; p < c->params.count; p++) {
    words[n++] = "--param";
    words[n++] = c->params.items[p];
  }
  snprintf(seed, sizeof seed, "%llu", (unsigned long long)cli_global.emu_seed);
  words[n++] = "--emu-seed";
  words[n++] = seed;
  if (cli_global.verbose)
    words[n++] = "-v";
  words[n] = NULL;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)
    _exit(EXIT_FAILED); /* gone before that could take effect */
  if (c->tables)
    setenv("QKV_TUNED_DIR", c->tables, 1);
  dup2(to[0], STDIN_FILENO);
  dup2(from[1], STDOUT_FILENO);
  const int nowhere = cli_global.verbose ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0)
    dup2(nowhere, STDERR_FILENO);
  char *argv[WORDS];
  memcpy(argv, words, sizeof words);
  execv("/proc/self/exe", argv);
  _exit(EXIT_FAILED);
}

static bool start(tune_client *c) {
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC))
    return false;
  if (pipe2(from, O_CLOEXEC)) {
    close(to[0]), close(to[1]);
    return false;
  }
  fflush(NULL);
  const pid_t parent = getpid();
  c->pid = fork();
  if (c->pid == 0)
    become_worker(c, parent, to, from);
  close(to[0]);
  close(from[1]);
  c->to = to[1];
  c->from = from[0];
  c->filled = 0;
  c->started++;
  if (c->pid > 0)
    return true;
  c->pid = 0;
  close(c->to), close(c->from);
  return false;
}

/* Ends the process and says how it ended: "signal 11 (Segmentation fault)". */
static void stop(tune_client *c, bool kill_it, char *how, size_t size) {
  int status = 0;
  if (how)
    snprintf(how, size, "no worker");
  if (!c->pid)
    return;
  if (kill_it)
    kill(-c->pid, SIGKILL), kill(c->pid, SIGKILL);
  close(c->to);
  while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
    ;
  close(c->from);
  c->pid = 0;
  if (how && WIFSIGNALED(status))
    snprintf(how, size, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else if (how)
    snprintf(how, size, "exit code %d", WEXITSTATUS(status));
}

/* ---- Lines ---- */

typedef enum outcome { GOT_LINE, TOO_LATE, ENDED } outcome;

static bool grow(tune_client *c) {
  if (c->filled + 4096 < c->capacity)
    return true;
  char *buffer = realloc(c->buffer, c->capacity + 65536);
  if (!buffer)
    return false;
  c->buffer = buffer;
  c->capacity += 65536;
  return true;
}

/* Moves the first line out of the buffer, without its line feed; NULL: there is none yet. */
static char *take_line(tune_client *c) {
  char *end = c->filled ? memchr(c->buffer, '\n', c->filled) : NULL;
  if (!end)
    return NULL;
  const size_t length = (size_t)(end - c->buffer);
  char *line = strndup(c->buffer, length);
  c->filled -= length + 1;
  memmove(c->buffer, end + 1, c->filled);
  return line;
}

static outcome read_line(tune_client *c, double deadline, char **line) {
  for (;;) {
    if ((*line = take_line(c)) != NULL)
      return GOT_LINE;
    const double left = deadline - cli_seconds();
    if (left <= 0 || !grow(c))
      return TOO_LATE;
    struct pollfd ready = {.fd = c->from, .events = POLLIN};
    const int found = poll(&ready, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
    if (found <= 0)
      continue;
    const ssize_t got = read(c->from, c->buffer + c->filled, c->capacity - c->filled - 1);
    if (got > 0)
      c->filled += (size_t)got;
    else if (got == 0 || errno != EINTR)
      return ENDED;
  }
}

/* An answer that the worker could not give. */
static void make_answer(record *answer, const char *status, const char *reason) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (out) {
    record_writer w = record_open(out);
    record_put(&w, "status", status);
    record_put(&w, "reason", reason);
    record_close(&w);
    fclose(out);
  }
  record_parse(answer, text ? text : "");
  free(text);
}

/* Lines up to the one with a status. */
static void read_answer(tune_client *c, double limit, record *answer, void (*item)(const record *, void *),
                        void *user) {
  const double deadline = cli_seconds() + limit;
  char *line, how[96], reason[160];
  for (;;) {
    const outcome o = read_line(c, deadline, &line);
    if (o == GOT_LINE) {
      const bool parsed = record_parse(answer, line);
      free(line);
      if (!parsed)
        continue; /* what something else printed */
      if (record_text(answer, "status")) {
        if (answer_is(answer, "fault"))
          stop(c, false, NULL, 0);
        return;
      }
      if (item)
        item(answer, user);
      continue;
    }
    stop(c, true, how, sizeof how);
    snprintf(reason, sizeof reason, o == TOO_LATE ? "no answer within %.3g s" : "the worker ended: ", limit);
    if (o == ENDED)
      snprintf(reason + strlen(reason), sizeof reason - strlen(reason), "%s", how);
    make_answer(answer, o == TOO_LATE ? "timeout" : "crashed", reason);
    return;
  }
}

/* ---- Client ---- */

static void copy_text(const record *r, const char *key, char *to, size_t size) {
  const char *text = record_text(r, key);
  snprintf(to, size, "%s", text ? text : "");
}

static void keep_device(tune_device *d, const record *hello) {
  copy_text(hello, "kind", d->kind, sizeof d->kind);
  copy_text(hello, "name", d->name, sizeof d->name);
  copy_text(hello, "arch", d->arch, sizeof d->arch);
  copy_text(hello, "compiler", d->compiler, sizeof d->compiler);
  d->sm_count = (int)record_number(hello, "sm_count", 0);
  d->driver = (int)record_number(hello, "driver", 0);
  d->clock_hz = record_number(hello, "clock_hz", 0);
}

/* One try. Returns an exit code, in *reason (freed by the caller) what went wrong. */
static int try_worker(tune_client *c, char **reason) {
  record hello = {0};
  *reason = NULL;
  if (!start(c)) {
    *reason = strdup(strerror(errno));
    return EXIT_FAILED;
  }
  read_answer(c, START_LIMIT, &hello, NULL, NULL);
  const bool ok = answer_is(&hello, "ok");
  const int code = (int)record_number(&hello, "code", EXIT_FAILED);
  if (ok && c->started == 1)
    keep_device(&c->device, &hello);
  if (!ok) {
    const char *text = record_text(&hello, "reason");
    *reason = text ? strdup(text) : NULL;
    stop(c, true, NULL, 0);
  }
  record_free(&hello);
  return ok ? EXIT_OK : code ? code : EXIT_FAILED;
}

/* Starts a worker if there is none. Returns an exit code. After the end of one the driver may need a while. */
static int need_worker(tune_client *c) {
  enum { TRIES = 3, PAUSE = 2 };
  const int tries = c->started ? TRIES : 1;
  int code = EXIT_FAILED;
  char *reason = NULL;
  if (c->pid)
    return EXIT_OK;
  for (int n = 0; n < tries && !c->lost && code; n++) {
    if (n > 0)
      sleep(PAUSE);
    free(reason);
    code = try_worker(c, &reason);
  }
  if (code && !c->lost)
    cli_error("%s%s", tries > 1 ? "no worker can be started any more: " : "", reason ? reason : "the worker ended");
  c->lost |= code != EXIT_OK;
  free(reason);
  return code;
}

int client_open(const char *tables, const cli_list *params, tune_client **out) {
  tune_client *c = *out = calloc(1, sizeof *c);
  if (!c)
    return EXIT_FAILED;
  c->tables = tables ? strdup(tables) : NULL;
  c->params = *params;
  const int code = need_worker(c);
  if (code) {
    client_close(c);
    *out = NULL;
  }
  return code;
}

void client_close(tune_client *c) {
  if (!c)
    return;
  stop(c, false, NULL, 0); /* the end of its input ends it */
  free(c->tables);
  free(c->buffer);
  free(c->context);
  free(c);
}

const tune_device *client_device(const tune_client *c) {
  return &c->device;
}

bool client_lost(const tune_client *c) {
  return c->lost;
}

int client_restarts(const tune_client *c) {
  return c->started - 1;
}

void client_use_journal(tune_client *c, tune_journal *journal, const char *context) {
  c->journal = journal;
  free(c->context);
  c->context = strdup(context);
}

void client_ask(tune_client *c, const char *line, double limit, record *answer, void (*item)(const record *, void *),
                void *user) {
  if (need_worker(c)) {
    make_answer(answer, "crashed", "no worker could be started");
    return;
  }
  const size_t length = strlen(line);
  for (size_t sent = 0; sent < length;) {
    const ssize_t wrote = write(c->to, line + sent, length - sent);
    if (wrote < 0 && errno != EINTR)
      break; /* it has ended: reading will tell how */
    sent += wrote > 0 ? (size_t)wrote : 0;
  }
  read_answer(c, limit, answer, item, user);
}

bool client_ask_once(tune_client *c, const char *name, const char *line, double limit, record *answer) {
  const record *known = c->journal ? journal_find(c->journal, c->context, name) : NULL;
  if (known) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out) {
      record_writer w = record_open(out);
      record_put_all(&w, known);
      record_close(&w);
      fclose(out);
    }
    record_parse(answer, text ? text : "");
    free(text);
    return true;
  }
  client_ask(c, line, limit, answer, NULL, NULL);
  if (c->journal && !c->lost) /* that nobody could be asked says nothing of the candidate */
    journal_add(c->journal, c->context, name, answer);
  return false;
}

void client_note(tune_client *c, const char *name, const char *status, const char *reason) {
  record answer = {0};
  if (!c->journal || journal_find(c->journal, c->context, name))
    return;
  make_answer(&answer, status, reason);
  journal_add(c->journal, c->context, name, &answer);
  record_free(&answer);
}
