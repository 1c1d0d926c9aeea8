/* tune_builders.c: see tune_builders.h. */
#include "tune_builders.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "tune_process.h"

enum { IDLE = -1 };

typedef struct builder {
  tune_process process;
  int question;    /* at hand, or IDLE */
  bool greeted;    /* it has said what it is */
  double deadline; /* of the greeting, then of the answer */
} builder;

struct tune_builders {
  const char *device;
  cli_list params;
  int count;
  builder items[TUNE_BUILDERS];
  const tune_questions *questions;
  int next, most; /* the question that was not asked yet; how many processes may be asked */
};

tune_builders *builders_open(int count, const char *device, const cli_list *params) {
  tune_builders *b = calloc(1, sizeof *b);
  if (!b)
    return NULL;
  b->device = device;
  b->params = *params;
  b->count = count < 1 ? 1 : count > TUNE_BUILDERS ? TUNE_BUILDERS : count;
  for (int n = 0; n < b->count; n++)
    b->items[n].question = IDLE;
  return b;
}

void builders_close(tune_builders *b) {
  for (int n = 0; b && n < b->count; n++) {
    tune_process_stop(&b->items[n].process, false, NULL, 0); /* the end of its input ends it */
    tune_process_clear(&b->items[n].process);
  }
  free(b);
}

/* ---- One process ---- */

static void give(const tune_questions *q, builder *one, const record *answer) {
  const int question = one->question;
  one->question = IDLE;
  q->take(q->user, question, answer);
}

/* Ends the process, and with it what it was at. */
static void give_up(const tune_questions *q, builder *one, const char *status, const char *reason) {
  record answer = {0};
  tune_process_stop(&one->process, true, NULL, 0);
  record_answer(&answer, status, reason);
  give(q, one, &answer);
  record_free(&answer);
}

/* The same of one that has ended by itself. */
static void bury(const tune_questions *q, builder *one) {
  char how[96], reason[160];
  tune_process_stop(&one->process, true, how, sizeof how);
  snprintf(reason, sizeof reason, "%s: %s",
           one->greeted ? "the process that compiled it ended" : "a process that compiles ended while it started", how);
  give_up(q, one, one->greeted ? "crashed" : "failed", reason);
}

/* One that has ended since its last answer is no fault of the next question. */
static void forget_ended(builder *one) {
  char *line;
  tune_line got = TUNE_NO_LINE;
  while (one->process.pid && (got = tune_process_read(&one->process, 0, &line)) == TUNE_LINE)
    free(line);
  if (got == TUNE_ENDED)
    tune_process_stop(&one->process, true, NULL, 0);
}

static void begin(tune_builders *b, const tune_questions *q, builder *one, int question, const char *line) {
  one->question = question;
  forget_ended(one);
  if (!one->process.pid) {
    one->greeted = false;
    if (!tune_process_start(&one->process, b->device, NULL, &b->params)) {
      give_up(q, one, "failed", strerror(errno));
      return;
    }
  }
  one->deadline = cli_seconds() + (one->greeted ? q->limit : TUNE_START_LIMIT);
  tune_process_send(&one->process, line); /* which it reads when it has started */
}

/* A line that it wrote. */
static void hear(const tune_questions *q, builder *one, const char *line) {
  record said = {0};
  const bool parsed = record_parse(&said, line); /* else what something else printed */
  const char *status = parsed ? record_text(&said, "status") : NULL;
  if (status && !one->greeted && !strcmp(status, "ok")) {
    one->greeted = true;
    one->deadline = cli_seconds() + q->limit;
  } else if (status && !one->greeted) {
    const char *reason = record_text(&said, "reason");
    give_up(q, one, "failed", reason ? reason : "the process that compiles cannot start");
  } else if (status && one->question != IDLE) {
    give(q, one, &said);
  }
  record_free(&said);
}

/* When a question at hand is given up, if not before; 0: never. */
static double end_of(const tune_questions *q, const builder *one) {
  return q->ends[one->question >= q->needed];
}

/* Takes what it has written, and the time it has had. */
static void attend(const tune_questions *q, builder *one) {
  char *line, reason[64];
  tune_line got;
  while (one->question != IDLE && (got = tune_process_read(&one->process, 0, &line)) != TUNE_NO_LINE) {
    if (got == TUNE_ENDED) {
      bury(q, one);
      return;
    }
    hear(q, one, line);
    free(line);
  }
  const double now = cli_seconds();
  if (one->question == IDLE)
    return;
  if (end_of(q, one) > 0 && now >= end_of(q, one)) {
    give_up(q, one, "skipped", "no time was left to compile it");
  } else if (now >= one->deadline && one->greeted) {
    snprintf(reason, sizeof reason, "not compiled within %.3g s", q->limit);
    give_up(q, one, "timeout", reason);
  } else if (now >= one->deadline) {
    give_up(q, one, "failed", "a process that compiles did not start");
  }
}

/* ---- All ---- */

void builders_begin(tune_builders *b, const tune_questions *q, int most) {
  b->questions = q;
  b->next = 0;
  b->most = most < b->count ? most : b->count;
}

static int count_busy(const tune_builders *b) {
  int busy = 0;
  for (int n = 0; n < b->count; n++)
    busy += b->items[n].question != IDLE;
  return busy;
}

/* Gives everyone who has nothing to do a question. */
static void ask_on(tune_builders *b) {
  const tune_questions *q = b->questions;
  for (int n = 0; n < b->most; n++)
    while (b->items[n].question == IDLE && b->next < q->count) {
      char *line = q->ask(q->user, b->next, b->next - count_busy(b));
      if (line)
        begin(b, q, &b->items[n], b->next, line);
      b->next++;
      free(line);
    }
}

void builders_step(tune_builders *b) {
  ask_on(b);
  for (int n = 0; n < b->count; n++)
    attend(b->questions, &b->items[n]);
}

/* Until one of them has written something, or has no time left. */
static void wait_for_any(const tune_builders *b) {
  struct pollfd ready[TUNE_BUILDERS];
  double first = INFINITY;
  int busy = 0;
  for (int n = 0; n < b->count; n++)
    if (b->items[n].question != IDLE) {
      ready[busy++] = (struct pollfd){.fd = b->items[n].process.from, .events = POLLIN};
      first = fmin(first, b->items[n].deadline);
      if (end_of(b->questions, &b->items[n]) > 0)
        first = fmin(first, end_of(b->questions, &b->items[n]));
    }
  const double left = first - cli_seconds();
  if (busy > 0)
    poll(ready, (nfds_t)busy, left > 1 ? 1000 : left > 0 ? (int)(left * 1000) + 1 : 0);
}

void builders_finish(tune_builders *b) {
  b->most = b->count;
  for (builders_step(b); b->next < b->questions->count || count_busy(b) > 0; builders_step(b))
    wait_for_any(b);
}
