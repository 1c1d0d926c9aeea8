/* Processes that compile for the tuner, played by this program: they answer, crash, hang, go away while nobody asks, do
 * not start, do not end. What is their own fault is not their question's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define FAREWELL 0.3
#include "../../tools/cli_report.c"
#include "../../tools/tune_builders.c"
#include "../../tools/tune_process.c"
#include "../../tools/tune_record.c"

cli_globals cli_global;

/* ---- The processes ---- */

static int play(const char *manner) {
  char *line = NULL;
  size_t size = 0;
  record question = {0};
  if (!strcmp(manner, "dies"))
    kill(getpid(), SIGKILL);
  printf("{\"status\":\"%s\",\"reason\":\"no compiler\"}\n", strcmp(manner, "refuses") ? "ok" : "failed");
  fflush(stdout);
  while (getline(&line, &size, stdin) > 0) {
    record_parse(&question, line);
    const char *ask = record_text(&question, "ask");
    if (!strcmp(ask, "crash"))
      kill(getpid(), SIGKILL);
    while (!strcmp(ask, "hang"))
      pause();
    printf("noise\n{\"status\":\"ok\",\"n\":%g}\n", record_number(&question, "n", -1));
    fflush(stdout);
    if (!strcmp(ask, "leave"))
      _exit(0);
  }
  while (!strcmp(manner, "stays"))
    pause();
  free(line);
  record_free(&question);
  return 0;
}

/* ---- Their questions ---- */

enum { MOST = 40 };
typedef struct exam {
  const char *asks[MOST];
  double pause; /* before each question */
  int most;     /* questions at hand at once; 0: any number */
  char status[MOST][16], reason[MOST][128];
  int n[MOST], answers[MOST];
} exam;

static char *ask(void *user, int n, int done) {
  const exam *e = user;
  char *line = malloc(64);
  assert_true(line && done >= 0 && done <= n);
  if (e->most && n - done >= e->most)
    fail_msg("question %d: %d are at hand instead of %d", n, n - done + 1, e->most);
  usleep((useconds_t)(1e6 * e->pause));
  snprintf(line, 64, "{\"ask\":\"%s\",\"n\":%d}\n", e->asks[n], n);
  return line;
}

static void take(void *user, int n, const record *answer) {
  exam *e = user;
  const char *status = record_text(answer, "status"), *reason = record_text(answer, "reason");
  snprintf(e->status[n], sizeof e->status[n], "%s", status ? status : "none");
  snprintf(e->reason[n], sizeof e->reason[n], "%s", reason ? reason : "");
  e->n[n] = (int)record_number(answer, "n", -1);
  e->answers[n]++;
}

/* Runs an exam; returns the seconds that it took, the end of the processes included. */
static double hold(exam *e, const char *manner, int processes, tune_questions q) {
  const cli_list params = {1, {manner}};
  const double start = cli_seconds();
  tune_builders *b = builders_open(processes, "none", &params);
  assert_non_null(b);
  q.ask = ask, q.take = take, q.user = e;
  builders_begin(b, &q, processes);
  builders_finish(b);
  builders_close(b);
  for (int n = 0; n < q.count; n++)
    if (e->answers[n] != 1)
      fail_msg("question %d (%s) has %d answers", n, e->asks[n], e->answers[n]);
  return cli_seconds() - start;
}

static void expect(const exam *e, int n, const char *status, const char *reason) {
  if (strcmp(e->status[n], status) != 0 || !strstr(e->reason[n], reason))
    fail_msg("question %d (%s): %s, '%s' instead of %s, '%s'", n, e->asks[n], e->status[n], e->reason[n], status,
             reason);
}

static void test_each_costs_itself(void **unused) {
  (void)unused;
  exam e = {.pause = 0};
  for (int n = 0; n < MOST; n++)
    e.asks[n] = n % 7 == 3 ? "crash" : n % 13 == 5 ? "hang" : "ok";
  hold(&e, "well", 4, (tune_questions){.count = MOST, .limit = 1});
  for (int n = 0; n < MOST; n++) {
    const bool crash = !strcmp(e.asks[n], "crash"), hang = !strcmp(e.asks[n], "hang");
    expect(&e, n, crash ? "crashed" : hang ? "timeout" : "ok", crash ? "signal 9" : hang ? "within 1 s" : "");
    if (!crash && !hang)
      assert_int_equal(e.n[n], n);
  }
}

static void test_no_start(void **unused) {
  (void)unused;
  static const char *const manners[] = {"dies", "refuses"}, *const reasons[] = {"signal 9", "no compiler"};
  for (int m = 0; m < 2; m++) {
    exam e = {.asks = {"ok", "ok", "ok"}};
    hold(&e, manners[m], 2, (tune_questions){.count = 3, .limit = 30});
    for (int n = 0; n < 3; n++)
      expect(&e, n, "failed", reasons[m]); /* which a run that resumes tries again */
  }
}

/* One that went away while nobody asked it does not cost the next question. */
static void test_gone_between(void **unused) {
  (void)unused;
  exam e = {.asks = {"leave", "leave", "ok"}, .pause = 0.2};
  hold(&e, "well", 1, (tune_questions){.count = 3, .limit = 30});
  for (int n = 0; n < 3; n++)
    expect(&e, n, "ok", "");
}

/* At their ends questions are given up, those that can be done without before the others. */
static void test_ends(void **unused) {
  (void)unused;
  exam e = {.asks = {"hang", "ok", "hang", "hang"}};
  const double now = cli_seconds(),
               seconds = hold(&e, "well", 4,
                              (tune_questions){.count = 4, .limit = 60, .needed = 2, .ends = {now + 3, now + 2}});
  expect(&e, 0, "skipped", "no time");
  expect(&e, 1, "ok", "");
  expect(&e, 2, "skipped", "no time");
  expect(&e, 3, "skipped", "no time");
  if (seconds < 2.9 || seconds > 10)
    fail_msg("%g s instead of 3", seconds);
}

/* Few at a time while something else goes on, then all at once. */
static void test_ahead(void **unused) {
  (void)unused;
  exam e = {.most = 2};
  const cli_list params = {1, {"well"}};
  for (int n = 0; n < MOST; n++)
    e.asks[n] = n == 5 ? "crash" : n == MOST - 1 ? "hang" : "ok";
  tune_questions q = {MOST, 0, {0, 0}, 30, ask, take, &e};
  tune_builders *b = builders_open(8, "none", &params);
  builders_begin(b, &q, e.most);
  for (double end = cli_seconds() + 60; !e.answers[MOST / 2] && cli_seconds() < end; usleep(1000)) {
    const double start = cli_seconds();
    builders_step(b);
    assert_true(cli_seconds() - start < 5);
  }
  expect(&e, MOST / 2, "ok", "");
  e.most = 0;
  q.ends[0] = q.ends[1] = cli_seconds() + 3; /* known by now */
  builders_finish(b);
  builders_close(b);
  for (int n = 0; n < MOST; n++) {
    assert_int_equal(e.answers[n], 1);
    expect(&e, n, n == 5 ? "crashed" : n == MOST - 1 ? "skipped" : "ok", "");
  }
}

/* One that does not end when it is told to is killed. */
static void test_no_end(void **unused) {
  (void)unused;
  exam e = {.asks = {"ok", "ok"}};
  const double seconds = hold(&e, "stays", 2, (tune_questions){.count = 2, .limit = 30});
  expect(&e, 0, "ok", "");
  if (seconds > 10)
    fail_msg("%g s", seconds);
}

int main(int argc, char **argv) {
  for (int n = 1; n < argc; n++)
    if (!strcmp(argv[n], "--param") && n + 1 < argc)
      return play(argv[n + 1]);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_costs_itself), cmocka_unit_test(test_no_start),
                                     cmocka_unit_test(test_gone_between), cmocka_unit_test(test_ends),
                                     cmocka_unit_test(test_no_end), cmocka_unit_test(test_ahead)};
  signal(SIGPIPE, SIG_IGN);
  alarm(120); /* a test that waits for ever fails */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
