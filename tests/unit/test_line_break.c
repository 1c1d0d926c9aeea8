/* line_break.c: where wide lines end, by example and as laws over random ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "line_break.h"
#include "output.h"

static const gen_line from = {3, 7};

/* The line as output writes it. */
static output broken(const char *line) {
  output o = {0};
  output_add_line(&o, from, line);
  return o;
}

static void where_lines_end(void **state) {
  (void)state;
  static const struct {
    const char *line, *first;
  } rows[] = {
      /* short lines, preprocessor lines, and those without a place stay */
      {"  int x = 1;", "  int x = 1;"},
      {"#define A aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa + "
       "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb + "
       "cccccccccccccc",
       "#define A aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa + "
       "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb + "
       "cccccccccccccc"},
      /* behind the operator outside of most parentheses */
      {"  bool seen = (first_thing < aaaaaaaaaaaaaaaaaaaaaaaaa && b) || (second_thing < 12345 && fffffffff(x, y, z + "
       "1)) && cccccccccc;",
       "  bool seen = (first_thing < aaaaaaaaaaaaaaaaaaaaaaaaa && b) || (second_thing < 12345 && fffffffff(x, y, z + "
       "1)) &&"},
      {"// a comment of words that goes on for long, for longer than a line of this project may be, which is one "
       "hundred and "
       "twenty columns",
       "// a comment of words that goes on for long, for longer than a line of this project may be, which is one "
       "hundred and"},
      /* no place in a literal, nor in front of a comment */
      {"  f(\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbb, cccccccccccccccccccccccc, "
       "dddddddddddddddddddd, "
       "eeeeeeeee\", 1);",
       "  f(\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbb, cccccccccccccccccccccccc, "
       "dddddddddddddddddddd, "
       "eeeeeeeee\", 1);"},
      {"  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa(bbbbbbbbbbbbb, // ccccccccccccccccccccc, "
       "ddddddddddddddddddddddd, "
       "eeeeeeeeeeeeeeeeeeee",
       "  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa(bbbbbbbbbbbbb, // ccccccccccccccccccccc, "
       "ddddddddddddddddddddddd, "
       "eeeeeeeeeeeeeeeeeeee"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    output o = broken(rows[n].line);
    size_t length = strcspn(o.bytes.bytes, "\n");
    if (length != strlen(rows[n].first) || memcmp(o.bytes.bytes, rows[n].first, length) != 0)
      fail_msg("row %zu: '%.*s'", n, (int)length, o.bytes.bytes);
    output_free(&o);
  }
}

/* Without blanks, a broken line reads as the whole one did. */
static void squeeze(const char *line, char *out) {
  for (; *line; line++)
    if (*line != ' ' && *line != '\n')
      *out++ = *line;
  *out = 0;
}

static void random_lines(void **state) {
  (void)state;
  static const char *const words[] = {"alpha", "b", "gamma_delta(q, k)", "(", ")",  "&&",   "||", "+",
                                      "- 1",   "*", "x[i, j]",           ",", "?:", "<= 3", "f(", "12345"};
  unsigned seed = 1;
  for (int round = 0; round < 2000; round++) {
    char line[4096] = "", whole[4096], parts[8192];
    int count = (int)((seed = seed * 1664525u + 1013904223u) >> 24) + 5;
    snprintf(line, sizeof line, "%*s", (int)(seed >> 16 & 31), "");
    for (int n = 0; n < count && strlen(line) < 3000; n++) {
      seed = seed * 1664525u + 1013904223u;
      snprintf(line + strlen(line), sizeof line - strlen(line), "%s ", words[seed >> 28]);
    }
    output o = broken(line);
    squeeze(line, whole);
    squeeze(o.bytes.bytes, parts);
    assert_string_equal(whole, parts);
    int lines = 0;
    for (const char *p = o.bytes.bytes; *p; lines++) {
      size_t length = strcspn(p, "\n");
      if (length > LINE_WIDTH && line_break_at(p, length))
        fail_msg("round %d: a line of %zu columns could be broken: %.*s", round, length, (int)length, p);
      assert_int_equal(o.lines[lines].template_index, 3);
      assert_int_equal(o.lines[lines].line, 7);
      p += length + 1;
    }
    assert_int_equal(lines, o.nlines);
    output_free(&o);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(where_lines_end), cmocka_unit_test(random_lines)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
