/* tune_client.c: see tune_client.h. */
#include "tune_client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tune_process.h"

struct tune_client {
  char *tables;
  cli_list params;
  tune_process process;
  tune_device device;
  int started;
  bool lost; /* no worker can be started any more */
  tune_journal *journal;
  char *context;
  void (*step)(void *user); /* while answers are waited for; NULL: nothing */
  void *user;
};

bool answer_is(const record *answer, const char *status) {
  const char *text = record_text(answer, "status");
  return text && !strcmp(text, status);
}

/* ---- Answers ---- */

/* The next line, with what goes on in the meantime. */
static tune_line read_line(tune_client *c, double deadline, char **line) {
  for (;;) {
    const double turn = c->step ? cli_seconds() + MEANWHILE : deadline;
    const tune_line got = tune_process_read(&c->process, turn < deadline ? turn : deadline, line);
    if (got != TUNE_NO_LINE || cli_seconds() >= deadline)
      return got;
    c->step(c->user);
  }
}

/* Lines up to the one with a status. */
static void read_answer(tune_client *c, double limit, record *answer, void (*item)(const record *, void *),
                        void *user) {
  const double deadline = cli_seconds() + limit;
  char *line, how[96], reason[160];
  tune_line got;
  while ((got = read_line(c, deadline, &line)) == TUNE_LINE) {
    const bool parsed = record_parse(answer, line);
    free(line);
    if (!parsed)
      continue; /* what something else printed */
    if (record_text(answer, "status")) {
      if (answer_is(answer, "fault"))
        tune_process_stop(&c->process, false, NULL, 0);
      return;
    }
    if (item)
      item(answer, user);
  }
  tune_process_stop(&c->process, true, how, sizeof how);
  if (got == TUNE_ENDED)
    snprintf(reason, sizeof reason, "the worker ended: %s", how);
  else
    snprintf(reason, sizeof reason, "no answer within %.3g s", limit);
  record_answer(answer, got == TUNE_ENDED ? "crashed" : "timeout", reason);
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
  if (!tune_process_start(&c->process, NULL, c->tables, &c->params)) {
    *reason = strdup(strerror(errno));
    return EXIT_FAILED;
  }
  c->started++;
  read_answer(c, TUNE_START_LIMIT, &hello, NULL, NULL);
  const bool ok = answer_is(&hello, "ok");
  const int code = (int)record_number(&hello, "code", EXIT_FAILED);
  if (ok && c->started == 1)
    keep_device(&c->device, &hello);
  if (!ok) {
    const char *text = record_text(&hello, "reason");
    *reason = text ? strdup(text) : NULL;
    tune_process_stop(&c->process, true, NULL, 0);
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
  if (c->process.pid)
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
  tune_process_stop(&c->process, false, NULL, 0); /* the end of its input ends it */
  tune_process_clear(&c->process);
  free(c->tables);
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

void client_meanwhile(tune_client *c, void (*step)(void *user), void *user) {
  c->step = step;
  c->user = user;
}

void client_ask(tune_client *c, const char *line, double limit, record *answer, void (*item)(const record *, void *),
                void *user) {
  if (need_worker(c)) {
    record_answer(answer, "crashed", "no worker could be started");
    return;
  }
  tune_process_send(&c->process, line);
  read_answer(c, limit, answer, item, user);
}

bool client_ask_once(tune_client *c, const char *name, const char *line, double limit, record *answer) {
  const record *known = client_known(c, name);
  if (known) {
    record_line l;
    char *text = NULL;
    if (record_begin(&l)) {
      record_put_all(&l.to, known);
      text = record_end(&l);
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

const record *client_known(const tune_client *c, const char *name) {
  return c->journal ? journal_find(c->journal, c->context, name) : NULL;
}

void client_note(tune_client *c, const char *name, const char *status, const char *reason) {
  record answer = {0};
  if (!c->journal || client_known(c, name))
    return;
  record_answer(&answer, status, reason);
  journal_add(c->journal, c->context, name, &answer);
  record_free(&answer);
}
