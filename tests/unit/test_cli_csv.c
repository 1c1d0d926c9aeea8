/* The reader of measurements: what tables come out of CSV and JSON, what is refused and how, and random damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli_csv.h"

typedef bool parser(const char *name, const char *text, size_t length, csv_table *out, char error[CSV_ERROR_SIZE]);

/* The table as text: heads, then each row with its line, cells in brackets. */
static void print_table(const csv_table *t, char *out, size_t size) {
  size_t used = 0;
  out[0] = 0;
  for (int c = 0; c < t->columns; c++)
    used += (size_t)snprintf(out + used, size - used, "[%s]", t->heads[c]);
  for (int r = 0; r < t->rows; r++) {
    used += (size_t)snprintf(out + used, size - used, " %d", t->lines[r]);
    for (int c = 0; c < t->columns; c++)
      used += (size_t)snprintf(out + used, size - used, "[%s]", csv_cell(t, r, c));
  }
}

static void expect(parser *parse, const char *text, const char *table, const char *message) {
  csv_table t;
  char error[CSV_ERROR_SIZE] = "", printed[4096];
  const bool ok = parse("f", text, strlen(text), &t, error);
  if (ok)
    print_table(&t, printed, sizeof printed);
  if (ok != (table != NULL) || strcmp(ok ? printed : error, table ? table : message) != 0)
    fail_msg("%s\ngave %s\nnot  %s", text, ok ? printed : error, table ? table : message);
  csv_free(&t);
}

static void csv_tables(void **state) {
  (void)state;
  static const char *const cases[][2] = {{"a,b\n1,2\n", "[a][b] 2[1][2]"},
                                         {"a,b\n1,2", "[a][b] 2[1][2]"},
                                         {"\xEF\xBB\xBF"
                                          "a,b\r\n1,\r\n,2\r\n",
                                          "[a][b] 2[1][] 3[][2]"},
                                         {"\n\na\n\n1\n\r\n2\n", "[a] 5[1] 7[2]"},
                                         {"a,b\n\"x,y\",\"say \"\"hi\"\"\"\n", "[a][b] 2[x,y][say \"hi\"]"},
                                         {"a,b\n\"two\nlines\",1\n2,3\n", "[a][b] 2[two\nlines][1] 4[2][3]"},
                                         {"a\n\"\"\n", "[a] 2[]"},
                                         {"\"a\"\n1\n", "[a] 2[1]"},
                                         {"a,b\n", "[a][b]"},
                                         {"a,b\n 1 ,\t2\n", "[a][b] 2[ 1 ][\t2]"}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
    expect(csv_parse, cases[n][0], cases[n][1], NULL);
}

static void csv_errors(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"", "f: is empty; a line that names the columns is needed"},
      {"\n\r\n", "f: is empty; a line that names the columns is needed"},
      {"a,,b\n", "f:1: column 2 has no name"},
      {"a,b,a\n", "f:1: two columns are named 'a'"},
      {"a,b\n1\n", "f:2: 1 cells, but the header names 2 columns"},
      {"a,b\n\n1,2,3\n", "f:3: 3 cells, but the header names 2 columns"},
      {"a,b\n1,\"x\n", "f:2: the quote that opens cell 2 is never closed"},
      {"a\n\"x\"y\n",
       "f:2: cell 1 has something behind its closing quote; quote the whole cell, double the quotes in it"},
      {"a\nx\"y\n", "f:2: cell 1 has a quote in its middle; quote the whole cell, double the quotes in it"}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
    expect(csv_parse, cases[n][0], NULL, cases[n][1]);
  csv_table t;
  char error[CSV_ERROR_SIZE];
  assert_false(csv_parse("f", "a\nb\n\0", 5, &t, error));
  assert_string_equal(error, "f:3: a byte of value 0: this is no text");
  assert_false(csv_read("/nonexistent/x.csv", &t, error));
  assert_string_equal(error, "/nonexistent/x.csv: No such file or directory");
}

static void json_tables(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"[{\"a\": 1, \"b\": \"x\"},\n {\"b\": \"y\", \"c\": null}]", "[a][b][c] 1[1][x][] 2[][y][]"},
      {"{\"device\": {\"x\": [1, {}]}, \"rows\": [{\"a\": -1.5e3}], \"more\": true}", "[a] 1[-1.5e3]"},
      {"{\"a\": {\"b\": 1, \"c\": {\"d\": 2}}}\n{\"a\": {\"b\": 3}}\n", "[a.b][a.c.d] 1[1][2] 2[3][]"},
      {"[{\"a\": \"q\\\"\\\\\\n\\u00b5\\ud83d\\ude00\\ud800\\u0000\"}]",
       "[a] 1[q\"\\\n\xC2\xB5\xF0\x9F\x98\x80\xEF\xBF\xBD\xEF\xBF\xBD]"},
      {"[]", ""},
      {"[{}]", " 1"}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
    expect(csv_parse_json, cases[n][0], cases[n][1], NULL);
}

static void json_errors(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"[{\"a\": 1}", "f:1: JSON: a comma or ] is missing"},
      {"[{\"a\"\n 1}]", "f:2: JSON: a colon is missing"},
      {"[{\"a\": }]", "f:1: JSON: a value is missing"},
      {"[1]", "f:1: JSON: an object is missing"},
      {"[{\"a\": \"x\n\"}]", "f:1: JSON: a string that is not closed in its line"},
      {"[{\"a\": \"\\x\"}]", "f:1: JSON: an escape that is none"},
      {"[{\"a\": \"\\u12g4\"}]", "f:1: JSON: \\u needs four hexadecimal digits"},
      {"[{\"a\": \"x", "f:1: JSON: a string that is never closed"},
      {"[] []", "f:1: JSON: something behind its end"},
      {"[{\"a\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}]", "f:1: JSON: nested too deeply"}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
    expect(csv_parse_json, cases[n][0], NULL, cases[n][1]);
}

/* A cell that csv_write writes is the cell that is read. */
static void round_trip(void **state) {
  (void)state;
  static const char *const cells[] = {"", "x", "a,b", "\"", "line\nfeed", "\r", " blank ", "\xC3\xA9"};
  enum { CELLS = sizeof cells / sizeof *cells };
  char *text = NULL;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  for (int n = 0; n < CELLS; n++)
    fprintf(out, "%sc%d", n ? "," : "", n);
  fputc('\n', out);
  for (int n = 0; n < CELLS; n++) {
    fputs(n ? "," : "", out);
    csv_write(out, cells[n]);
  }
  fclose(out);
  csv_table t;
  char error[CSV_ERROR_SIZE];
  if (!csv_parse("f", text, length, &t, error))
    fail_msg("%s\n%s", text, error);
  for (int n = 0; n < CELLS; n++)
    assert_string_equal(csv_cell(&t, 0, n), cells[n]);
  csv_free(&t);
  free(text);
}

/* Columns appear late, rows are many: cells stay where they belong. */
static void growth(void **state) {
  (void)state;
  char *text = NULL;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  for (int n = 0; n < 300; n++)
    fprintf(out, "{\"n\": %d, \"m%d\": %d}\n", n, n % 100, 1000 + n);
  fclose(out);
  csv_table t;
  char error[CSV_ERROR_SIZE], head[16];
  if (!csv_parse_json("f", text, length, &t, error))
    fail_msg("%s", error);
  assert_int_equal(t.rows, 300);
  assert_int_equal(t.columns, 101);
  for (int n = 0; n < 300; n++) {
    snprintf(head, sizeof head, "m%d", n % 100);
    assert_int_equal(atoi(csv_cell(&t, n, csv_column(&t, "n"))), n);
    assert_int_equal(atoi(csv_cell(&t, n, csv_column(&t, head))), 1000 + n);
    snprintf(head, sizeof head, "m%d", (n + 1) % 100);
    assert_string_equal(csv_cell(&t, n, csv_column(&t, head)), "");
    assert_int_equal(t.lines[n], n + 1);
  }
  csv_free(&t);
  free(text);
}

/* Damaged texts give a table or a message, and never touch what is not theirs (which sanitizers watch). */
static void damage(void **state) {
  (void)state;
  static const char *const seeds[] = {"spec,workload,median_us\n\"a,\"\"b\",w,1.5\r\nx,\"y\nz\",2e3\n",
                                      "{\"rows\": [{\"a\": \"\\u00e9\\n\", \"b\": [1, {\"c\": 2}]}, {\"a\": null}]}",
                                      "{\"a\": 1}\n{\"b\": {\"c\": \"x\"}}\n"};
  static const char pieces[] = ",\"\n\r{}[]:\\u0\xEF\xBB\xBF\x80";
  uint64_t random = 12345;
  for (int turn = 0; turn < 30000; turn++) {
    const char *seed = seeds[turn % 3];
    size_t length = strlen(seed);
    char *text = malloc(length + 8), error[CSV_ERROR_SIZE] = "";
    memcpy(text, seed, length);
    for (int edits = 1 + turn % 4; edits; edits--) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const size_t at = (size_t)(random >> 33) % (length + 1);
      const int kind = (int)(random >> 20) % 3;
      if (kind == 0 && length)
        length = at;
      else if (kind == 1 && at < length)
        text[at] = pieces[(random >> 24) % sizeof pieces];
      else if (at < length)
        memmove(text + at, text + at + 1, --length - at);
    }
    char *exact = malloc(length ? length : 1); /* nothing behind its end */
    memcpy(exact, text, length);
    csv_table t;
    for (int json = 0; json < 2; json++) {
      if (!(json ? csv_parse_json : csv_parse)("f", exact, length, &t, error) && !*error)
        fail_msg("turn %d: refused without a message", turn);
      for (int r = 0; r < t.rows; r++)
        for (int c = 0; c < t.columns; c++)
          assert_non_null(csv_cell(&t, r, c));
      csv_free(&t);
    }
    free(exact);
    free(text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(csv_tables),  cmocka_unit_test(csv_errors),
                                     cmocka_unit_test(json_tables), cmocka_unit_test(json_errors),
                                     cmocka_unit_test(round_trip),  cmocka_unit_test(growth),
                                     cmocka_unit_test(damage)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
