/* Lines of the tuner's journal: what is written reads back, anything else is refused; torn lines, damaged lines, locks,
 * and a journal that is not continued. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "../../tools/cli_report.c"
#include "../../tools/tune_journal.c"
#include "../../tools/tune_record.c"

cli_globals cli_global;
static char folder[] = "/tmp/qkv-journal-XXXXXX", path[256];

static char *written(const record *r) {
  record_line l;
  assert_true(record_begin(&l));
  record_put_all(&l.to, r);
  return record_end(&l);
}

static void test_record(void **unused) {
  (void)unused;
  const double values[] = {1.5, 6.25e-6, 1.0 / 3};
  double back[4] = {0};
  record_line l;
  assert_true(record_begin(&l));
  record_put(&l.to, "text", "a \"quoted\" \\ line\nand \x01 another");
  record_put(&l.to, "none", NULL);
  record_put_number(&l.to, "number", 1.0 / 3);
  record_put_numbers(&l.to, "values", values, 3);
  record_put_numbers(&l.to, "empty", values, 0);
  char *text = record_end(&l);
  record r = {0};
  assert_true(record_parse(&r, text));
  assert_string_equal(record_text(&r, "text"), "a \"quoted\" \\ line\nand \x01 another");
  assert_null(record_text(&r, "absent"));
  assert_int_equal(record_numbers(&r, "values", back, 4), 3);
  assert_true(back[0] == 1.5 && back[1] == 6.25e-6 && fabs(back[2] * 3 - 1) < 1e-8);
  assert_int_equal(record_numbers(&r, "values", back, 2), 2);
  assert_int_equal(record_numbers(&r, "empty", back, 4), 0);
  assert_true(record_number(&r, "text", -7) == -7 && fabs(record_number(&r, "number", 0) * 3 - 1) < 1e-8);
  char *again = written(&r);
  assert_string_equal(again, text); /* so that a journal's answers are the worker's */
  free(again);
  free(text);
  record_free(&r);
}

/* Strings that look like other values stay strings: a journal with a compiler's message in brackets could not be read. */
static void test_strings(void **unused) {
  (void)unused;
  static const char *const strings[] = {"[kernel.cu:3] error", "7", "-1e3", "null", "true", ""};
  record r = {0};
  for (size_t n = 0; n < sizeof strings / sizeof *strings; n++) {
    record_answer(&r, "compile", strings[n]);
    char *text = written(&r);
    if (!record_parse(&r, text) || strcmp(record_text(&r, "reason"), strings[n]) != 0)
      fail_msg("'%s' became %s", strings[n], text);
    free(text);
  }
  record_answer(&r, "compile", NULL);
  assert_null(record_text(&r, "reason"));
  record_free(&r);
}

/* Any beginning of a line, and other damage, is no record. */
static void test_bad_records(void **unused) {
  (void)unused;
  static const char whole[] = "{\"a\":\"x\\\"y\",\"b\":[1,2.5],\"c\":-3e-7,\"d\":null}";
  static const char *const bad[] = {"",
                                    "x",
                                    "[]",
                                    "{\"a\"}",
                                    "{\"a\":}",
                                    "{\"a\":1,}",
                                    "{\"a\":1}x",
                                    "{\"a\":\"\\q\"}",
                                    "{\"a\":\"\\u00ff\"}",
                                    "{\"a\":[1,2}",
                                    "{a:1}",
                                    "{\"a\":1 \"b\":2}"};
  record r = {0};
  char part[sizeof whole];
  assert_true(record_parse(&r, whole));
  assert_int_equal(r.count, 4);
  assert_true(record_parse(&r, "{}") && r.count == 0);
  for (size_t n = 0; n + 1 < sizeof whole; n++) {
    memcpy(part, whole, n);
    part[n] = 0;
    if (record_parse(&r, part))
      fail_msg("the first %zu characters passed for a record: %s", n, part);
  }
  for (size_t n = 0; n < sizeof bad / sizeof *bad; n++)
    if (record_parse(&r, bad[n]))
      fail_msg("passed for a record: %s", bad[n]);
  record_free(&r);
}

static void add(tune_journal *j, const char *question, double value) {
  char line[64];
  record r = {0};
  snprintf(line, sizeof line, "{\"status\":\"ok\",\"value\":%g}", value);
  assert_true(record_parse(&r, line));
  assert_true(journal_add(j, "here", question, &r));
  record_free(&r);
}

static double value_of(const tune_journal *j, const char *question) {
  const record *r = journal_find(j, "here", question);
  return r ? record_number(r, "value", -2) : -1;
}

static char *read_file(size_t *size) {
  FILE *in = fopen(path, "r");
  assert_non_null(in);
  char *bytes = calloc(1, 65536);
  *size = fread(bytes, 1, 65535, in);
  fclose(in);
  return bytes;
}

static void write_file(const char *bytes, size_t size) {
  FILE *out = fopen(path, "w");
  assert_non_null(out);
  assert_int_equal(fwrite(bytes, 1, size, out), size);
  fclose(out);
}

/* Killed at any byte of the third line: the first two are there, a third can follow. */
static void test_torn(void **unused) {
  (void)unused;
  remove(path);
  tune_journal *j = journal_open(path, false);
  assert_non_null(j);
  add(j, "one", 1);
  add(j, "two", 2);
  size_t before, size;
  free(read_file(&before));
  add(j, "three", 3);
  assert_true(value_of(j, "three") == -1); /* of this run: nobody asks twice */
  journal_close(j);
  char *bytes = read_file(&size);
  for (size_t cut = before; cut <= size; cut++) {
    write_file(bytes, cut);
    j = journal_open(path, true);
    assert_non_null(j);
    const bool whole = cut == size;
    if (journal_count(j) != 2 + whole || value_of(j, "one") != 1 || value_of(j, "two") != 2 ||
        value_of(j, "three") != (whole ? 3 : -1))
      fail_msg("cut after %zu of %zu bytes: %d lines", cut, size, journal_count(j));
    assert_null(journal_find(j, "elsewhere", "one"));
    add(j, "four", 4);
    journal_close(j);
    j = journal_open(path, true);
    assert_true(value_of(j, "four") == 4 && journal_count(j) == 3 + whole);
    journal_close(j);
  }
  free(bytes);
}

/* A disk that takes no more than some bytes of a line: nothing of it stays, and a later one is whole. */
static void test_full(void **unused) {
  (void)unused;
  remove(path);
  struct rlimit had;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &had), 0);
  signal(SIGXFSZ, SIG_IGN);
  tune_journal *j = journal_open(path, false);
  assert_non_null(j);
  add(j, "one", 1);
  size_t before, size;
  free(read_file(&before));
  record r = {0};
  assert_true(record_parse(&r, "{\"status\":\"ok\",\"value\":2}"));
  for (size_t room = 0; room < 8; room++) {
    const struct rlimit little = {before + room, had.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    assert_false(journal_add(j, "here", "two", &r));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &had), 0);
    free(read_file(&size));
    if (size != before)
      fail_msg("room for %zu bytes: the journal has %zu instead of %zu", room, size, before);
  }
  record_free(&r);
  add(j, "three", 3);
  journal_close(j);
  j = journal_open(path, true);
  assert_true(journal_count(j) == 2 && value_of(j, "three") == 3 && value_of(j, "two") == -1);
  journal_close(j);
}

static void test_damaged_and_old(void **unused) {
  (void)unused;
  static const char lines[] = "{\"context\":\"here\",\"question\":\"one\",\"value\":1}\n"
                              "garbage\n{\"context\":\"here\"}\n"
                              "{\"context\":\"here\",\"question\":\"two\",\"value\":2}\n";
  write_file(lines, sizeof lines - 1);
  tune_journal *j = journal_open(path, true);
  assert_non_null(j);
  assert_int_equal(journal_count(j), 2);
  assert_true(value_of(j, "two") == 2);
  assert_null(journal_open(path, true)); /* it is in use */
  journal_close(j);
  j = journal_open(path, false); /* not continued: set aside */
  assert_non_null(j);
  assert_true(journal_count(j) == 0 && value_of(j, "one") == -1);
  journal_close(j);
  char old[300];
  snprintf(old, sizeof old, "%s.old", path);
  assert_int_equal(access(old, R_OK), 0);
  remove(old);
  assert_null(journal_open("/nonexistent/journal.jsonl", false));
}

int main(void) {
  if (!mkdtemp(folder))
    return 1;
  snprintf(path, sizeof path, "%s/journal.jsonl", folder);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_record), cmocka_unit_test(test_strings),
                                     cmocka_unit_test(test_bad_records), cmocka_unit_test(test_torn), cmocka_unit_test(test_full),
                                     cmocka_unit_test(test_damaged_and_old)};
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  remove(path);
  rmdir(folder);
  return failed;
}
