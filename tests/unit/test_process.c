/* test_process.c: programs that print much, nothing, fail, die, or are not there; and callers that have no descriptors
 * left or do not wait for children. */
#define _GNU_SOURCE /* pipe2 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "process.h"

static process_result shell(const char *script, const char *dir, int fd) {
  char *copy = strdup(script), name[] = "sh", option[] = "-c";
  process_result r = process_run((char *[]){name, option, copy, NULL}, dir, fd);
  free(copy);
  return r;
}

static void check_shell(const char *script, const char *dir, int fd, int exit_code, const char *output) {
  process_result r = shell(script, dir, fd);
  if (!r.started || r.exit_code != exit_code || strcmp(r.output, output) != 0)
    fail_msg("sh -c '%s': started %d, exit code %d, output '%s'", script, r.started, r.exit_code,
             r.output ? r.output : "");
  free(r.output);
}

static void test_output_and_exit(void **state) {
  (void)state;
  setenv("LC_ALL", "de_DE.UTF-8", 1);
  setenv("LANGUAGE", "de", 1);
  check_shell("echo out; echo err >&2; exit 3", NULL, -1, 3, "out\nerr\n");
  check_shell("exit 0", NULL, -1, 0, "");
  check_shell("echo ${LC_ALL}${LANGUAGE}", NULL, -1, 0, "C\n");
  check_shell("cat", NULL, -1, 0, ""); /* standard input is empty */
  check_shell("pwd", "/usr", -1, 0, "/usr\n");
  check_shell("kill -9 $$", NULL, -1, 128 + SIGKILL, "");
  unsetenv("LC_ALL");
  unsetenv("LANGUAGE");
}

static void test_inherited_descriptor(void **state) {
  (void)state;
  int ends[2];
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  assert_int_equal(write(ends[1], "through", 7), 7);
  close(ends[1]);
  check_shell("cat <&3", NULL, ends[0], 0, "through");
  close(ends[0]);
  check_shell("{ cat <&3; } 2>/dev/null || echo none", NULL, -1, 0, "none\n");
}

static void test_much_output(void **state) {
  (void)state;
  enum { BYTES = 300000 };
  process_result r = shell("head -c 300000 /dev/zero | tr '\\0' x", NULL, -1);
  assert_true(r.started);
  assert_int_equal(strlen(r.output), BYTES);
  assert_int_equal(strspn(r.output, "x"), BYTES);
  free(r.output);
}

static void assert_not_started(const char *program, const char *dir) {
  char *copy = strdup(program);
  process_result r = process_run((char *[]){copy, NULL}, dir, -1);
  assert_false(r.started);
  assert_null(r.output);
  free(copy);
}

static void test_not_there(void **state) {
  (void)state;
  assert_not_started("/nowhere/program", NULL);
  assert_not_started("no-such-program-anywhere", NULL);
  assert_not_started("/etc/passwd", NULL); /* no program */
  assert_not_started("true", "/nowhere");
}

static void test_no_descriptors(void **state) {
  (void)state;
  struct rlimit before, none;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = before;
  none.rlim_cur = 0;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  process_result r = shell("true", NULL, -1);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_false(r.started);
  assert_null(r.output);
}

/* The caller's choice to ignore children takes their exit codes away, not their output. */
static void test_ignored_children(void **state) {
  (void)state;
  void (*before)(int) = signal(SIGCHLD, SIG_IGN);
  check_shell("echo out; exit 3", NULL, -1, -1, "out\n");
  signal(SIGCHLD, before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_output_and_exit), cmocka_unit_test(test_inherited_descriptor),
      cmocka_unit_test(test_much_output),     cmocka_unit_test(test_not_there),
      cmocka_unit_test(test_no_descriptors),  cmocka_unit_test(test_ignored_children)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
