/* Option tables, near names, tables and JSON of qkvc. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../tools/cli_json.c"
#include "../../tools/cli_options.c"
#include "../../tools/cli_report.c"
#include "../../tools/cli_table.c"

static int flag;
static const char *word;
static int64_t number;
static uint64_t seed;
static double real;
static cli_list list;

static const cli_option options[] = {{"flag", 'f', CLI_FLAG, &flag, NULL, "a flag"},
                                     {"word", 'w', CLI_TEXT, &word, "W", "a word"},
                                     {"number", 0, CLI_COUNT, &number, "N", "a number"},
                                     {"seed", 0, CLI_SEED, &seed, "N", "a seed"},
                                     {"real", 0, CLI_REAL, &real, "X", "a real"},
                                     {"list", 0, CLI_LIST, &list, "X", "a list"},
                                     {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};
static const cli_command command = {"try", "A [B]", "", NULL, options, 1, 2, NULL, NULL};
const int cli_command_count = 1;
const cli_command *cli_command_at(int n) {
  return n ? NULL : &command;
}

/* Parses a blank-separated line with a fresh state; messages go nowhere. */
static int parse(const char *line, char **arguments) {
  static char text[256];
  flag = 0, word = NULL, number = 0, seed = 0, real = 0, list.count = 0;
  cli_global = (cli_globals){0};
  snprintf(text, sizeof text, "%s", line);
  int argc = 0;
  for (char *rest = text, *part; (part = strsep(&rest, " ")) != NULL;)
    arguments[argc++] = part;
  FILE *quiet = fopen("/dev/null", "w"), *errors = stderr;
  stderr = quiet;
  int result = cli_parse(&command, argc, arguments);
  stderr = errors;
  fclose(quiet);
  return result;
}

static void good_lines(void **state) {
  (void)state;
  char *a[64];
  assert_int_equal(parse("a --flag -ff --word x b", a), 2);
  assert_string_equal(a[0], "a");
  assert_string_equal(a[1], "b");
  assert_int_equal(flag, 3);
  assert_string_equal(word, "x");
  assert_int_equal(parse("--word= -fwy a", a), 1);
  assert_string_equal(word, "y");
  assert_int_equal(flag, 1);
  assert_int_equal(parse("- -w -x -- --flag", a),
                   2); /* "-" and what follows "--" are arguments; values may start with - */
  assert_string_equal(word, "-x");
  assert_string_equal(a[1], "--flag");
  assert_int_equal(parse("a --number 9223372036854775807 --seed=18446744073709551615 --real -1.5e-3", a), 1);
  assert_true(number == INT64_MAX && seed == UINT64_MAX && real == -1.5e-3);
  assert_int_equal(parse("a --list x --list y --device emu -v", a), 1);
  assert_int_equal(list.count, 2);
  assert_string_equal(cli_global.device, "emu");
  assert_int_equal(cli_global.verbose, 1);
  assert_int_equal(parse("--help", a), 0);
  assert_int_equal(cli_global.help, 1);
}

static void bad_lines(void **state) {
  (void)state;
  static const char *const lines[] = {"",
                                      "a b c",
                                      "a --nope",
                                      "a -x",
                                      "a --word",
                                      "a -w",
                                      "a --flag=1",
                                      "a --number",
                                      "a --number -1",
                                      "a --number 1x",
                                      "a --number 9223372036854775808",
                                      "a --number 0x10",
                                      "a --seed 18446744073709551616",
                                      "a --real x",
                                      "a --real nan",
                                      "a --real 1,5",
                                      "a --real inf",
                                      "a --fla"};
  char *a[64];
  for (size_t n = 0; n < sizeof lines / sizeof *lines; n++)
    if (parse(*lines[n] ? lines[n] : "--flag", a) != -1)
      fail_msg("accepted: %s", lines[n]);
}

static void near_names(void **state) {
  (void)state;
  const char *const names[] = {"check", "gen", "build", "run", "explain", "cache"};
  static const char *const cases[][2] = {{"chekc", "check"},   {"biuld", "build"}, {"explian", "explain"},
                                         {"ruin", "run"},      {"cach", "cache"},  {"gne", "gen"},
                                         {"frobnicate", NULL}, {"x", NULL}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    const char *near = cli_nearest(cases[n][0], names, 6);
    if (cases[n][1] ? !near || strcmp(near, cases[n][1]) != 0 : near != NULL)
      fail_msg("%s: %s", cases[n][0], near ? near : "none");
  }
}

static char *text_of(void (*print)(FILE *)) {
  char *text = NULL;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  print(stream);
  fclose(stream);
  return text;
}

static void print_sample_json(FILE *stream) {
  cli_json j = {.stream = stream};
  json_open(&j, NULL, '{');
  json_string(&j, "s", "a\"\\\n\x01\xC3\xA9\xFF\xC0\x80");
  json_open(&j, "list", '[');
  json_integer(&j, NULL, INT64_MIN);
  json_real(&j, NULL, 0.1);
  json_real(&j, NULL, 1.0 / 3);
  json_real(&j, NULL, (double)NAN);
  json_close(&j, ']');
  json_open(&j, "none", '{');
  json_close(&j, '}');
  json_boolean(&j, "t", true);
  json_string(&j, "n", NULL);
  json_close(&j, '}');
}

static void json_text(void **state) {
  (void)state;
  char *text = text_of(print_sample_json);
  assert_string_equal(text, "{\n  \"s\": \"a\\\"\\\\\\n\\u0001\xC3\xA9\\ufffd\\ufffd\\ufffd\",\n  \"list\": [\n"
                            "    -9223372036854775808,\n    0.1,\n    0.33333333333333331,\n    null\n  ],\n"
                            "  \"none\": {},\n  \"t\": true,\n  \"n\": null\n}\n");
  free(text);
}

static void print_sample_table(FILE *stream) {
  static const char *const heads[] = {"name", ">count", "note"};
  cli_table t;
  table_start(&t, 3, heads);
  for (int n = 0; n < 20; n++) {
    table_cell(&t, "row%d", n);
    table_cell(&t, "%d", n * n);
    if (n == 1)
      table_cell(&t, "x");
    table_row(&t);
  }
  table_print(&t, stream);
  table_free(&t);
}

static void table_text(void **state) {
  (void)state;
  FILE *file = tmpfile(); /* a stream with a descriptor: the table asks whether it is a terminal */
  assert_non_null(file);
  print_sample_table(file);
  rewind(file);
  char line[128], want[128];
  assert_non_null(fgets(line, sizeof line, file));
  assert_string_equal(line, "name   count  note\n");
  for (int n = 0; n < 20; n++) {
    char name[16];
    snprintf(name, sizeof name, "row%d", n);
    snprintf(want, sizeof want, "%-5s  %5d%s\n", name, n * n, n == 1 ? "  x" : "");
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, want);
  }
  fclose(file);
}

static void units(void **state) {
  (void)state;
  static const struct {
    double seconds;
    const char *text;
  } times[] = {{2.5, "2.50 s"},       {0.99999, "1.00 s"}, {0.0123, "12.3 ms"},
               {0.9994e-3, "999 us"}, {0, "0.00 us"},      {125, "125 s"}};
  char out[32];
  for (size_t n = 0; n < sizeof times / sizeof *times; n++)
    assert_string_equal(format_seconds(out, times[n].seconds), times[n].text);
  assert_string_equal(format_bytes(out, 1023), "1023 B");
  assert_string_equal(format_bytes(out, 1536), "1.5 KiB");
  assert_string_equal(format_bytes(out, 1048575), "1.0 MiB");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(good_lines), cmocka_unit_test(bad_lines),
                                     cmocka_unit_test(near_names), cmocka_unit_test(json_text),
                                     cmocka_unit_test(table_text), cmocka_unit_test(units)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
