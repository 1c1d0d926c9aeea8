/* diag.c: positions, the printed form, limits, near names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "diag.h"

static diags start(const char *source) {
  diags d;
  diags_init(&d, arena_new(), "a.yaml", source, strlen(source));
  return d;
}

static void expect_print(diags *d, const char *expected) {
  text t = {0};
  diags_print(d, &t);
  assert_string_equal(t.bytes ? t.bytes : "", expected);
  text_free(&t);
  arena_free(d->memory);
}

/* Every offset of a text against a plain walk over it. */
static void positions(void **state) {
  (void)state;
  const char *source = "ab\n\xC3\xB6x\r\n\n\xE9\xA0\xAD\xF0\x9F\x98\x80y";
  diags d = start(source);
  int line = 1, column = 1;
  for (size_t i = 0; i <= strlen(source); i++) {
    bool inside = ((unsigned char)source[i] & 0xC0) == 0x80;
    int got_line, got_column;
    diags_position(&d, i, &got_line, &got_column);
    if (!inside) {
      assert_int_equal(got_line, line);
      assert_int_equal(got_column, column);
      column++;
    }
    if (source[i] == '\n')
      line++, column = 1;
  }
  diags_position(&d, 1000, &line, &column);
  assert_int_equal(line, 4);
  assert_int_equal(column, 4);
  arena_free(d.memory);
}

static void printed_form(void **state) {
  (void)state;
  diags d = start("one: 1\ntwo:\t\xC3\xB6\x1b"
                  "bad # x\nthree\n");
  diag_add(&d, DIAG_WRONG_TYPE, (diag_span){12, 6}, "later");
  diag_add(&d, DIAG_UNKNOWN_KEY, (diag_span){0, 3}, "first %d", 1);
  diag_hint(&d, "did you mean '%s'?", "two");
  diag_add(&d, DIAG_UNKNOWN_KEY, (diag_span){0, 3}, "again");
  diag_hint(&d, "not kept");
  diag_add(&d, DIAG_MISSING_KEY, (diag_span){24, 100}, "to the end");
  diag_add(&d, DIAG_MISSING_KEY, (diag_span){1000, 0}, "behind the end");
  expect_print(&d, "a.yaml:1:1: error: first 1\n  one: 1\n  ^~~\n  hint: did you mean 'two'?\n"
                   "a.yaml:2:6: error: later\n  two: \xC3\xB6?bad # x\n       ^~~~~\n"
                   "a.yaml:3:2: error: to the end\n  three\n   ^~~~\n"
                   "a.yaml:4:1: error: behind the end\n");
}

static void at_most_twenty(void **state) {
  (void)state;
  diags d = start("0123456789012345678901234567890123456789");
  for (size_t i = 0; i < 30; i++) {
    diag_add(&d, DIAG_CONFLICT, (diag_span){i, 1}, "n%zu", i);
    diag_hint(&d, "h%zu", i);
  }
  assert_int_equal(d.count, DIAG_LIMIT);
  assert_int_equal(d.dropped, 10);
  assert_string_equal(d.items[DIAG_LIMIT - 1].hint, "h19");
  text t = {0};
  diags_print(&d, &t);
  assert_non_null(strstr(t.bytes, "a.yaml: 10 more errors not shown\n"));
  text_free(&t);
  arena_free(d.memory);
}

static void json(void **state) {
  (void)state;
  diags d = start("k: \"v\"\n");
  diag_add(&d, DIAG_CONFLICT, (diag_span){3, 3}, "say \"no\"");
  diag_add(&d, DIAG_EXPR_NAME, (diag_span){0, 1}, "x");
  diag_hint(&d, "y");
  text t = {0};
  diags_json(&d, &t);
  assert_string_equal(
      t.bytes,
      "[\n {\"file\": \"a.yaml\", \"line\": 1, \"column\": 1, \"code\": 131, \"message\": \"x\", \"hint\": \"y\"},\n"
      " {\"file\": \"a.yaml\", \"line\": 1, \"column\": 4, \"code\": 116, \"message\": \"say \\\"no\\\"\", \"hint\": "
      "null}\n]\n");
  text_free(&t);
  arena_free(d.memory);
}

/* However long the line, the caret stands under the marked character. */
static void long_lines_are_cut_around_the_place(void **state) {
  (void)state;
  char source[1001];
  for (size_t i = 0; i < 1000; i++)
    source[i] = (char)('a' + i % 26);
  source[1000] = 0;
  for (size_t at = 0; at < 1000; at += 7) {
    diags d = start(source);
    diag_add(&d, DIAG_CONFLICT, (diag_span){at, 1}, "here");
    text t = {0};
    diags_print(&d, &t);
    const char *shown = strchr(t.bytes, '\n') + 1, *caret_line = strchr(shown, '\n') + 1;
    size_t column = strcspn(caret_line, "^");
    assert_int_equal(shown[column], source[at]);
    assert_true(caret_line - shown < 160);
    text_free(&t);
    arena_free(d.memory);
  }
}

static void *no_memory(size_t size) {
  (void)size;
  return NULL;
}

static void without_memory_errors_are_counted(void **state) {
  (void)state;
  diags d = start("text");
  arena_malloc = no_memory;
  diag_add(&d, DIAG_CONFLICT, (diag_span){0, 1}, "message");
  diag_hint(&d, "hint");
  arena_malloc = malloc;
  assert_int_equal(d.count, 0);
  assert_int_equal(d.dropped, 1);
  expect_print(&d, "a.yaml: 1 more error not shown\n");
}

/* The distance by its recursive definition. */
static int distance(const char *a, const char *b) {
  if (!*a || !*b)
    return (int)(strlen(a) + strlen(b));
  int best = distance(a + 1, b + 1) + (*a != *b), other = distance(a + 1, b) + 1;
  best = other < best ? other : best;
  other = distance(a, b + 1) + 1;
  best = other < best ? other : best;
  if (a[1] && b[1] && a[0] == b[1] && a[1] == b[0]) {
    other = distance(a + 2, b + 2) + 1;
    best = other < best ? other : best;
  }
  return best;
}

static void nearest_against_the_definition(void **state) {
  (void)state;
  uint32_t seed = 7;
  for (int round = 0; round < 3000; round++) {
    char words[2][8];
    for (int w = 0; w < 2; w++) {
      size_t length = 0;
      for (; length < 6; length++) {
        seed = seed * 1664525u + 1013904223u;
        if (length > 2 && seed >> 30 == 0)
          break;
        words[w][length] = (char)('a' + (seed >> 20) % 3);
      }
      words[w][length] = 0;
    }
    const char *candidate = words[1];
    int edits = distance(words[0], words[1]);
    bool near = edits <= 2 && 2 * edits < (int)strlen(words[0]);
    if ((diag_nearest(words[0], &candidate, 1) != NULL) != near)
      fail_msg("'%s' and '%s', distance %d", words[0], words[1], edits);
  }
}

static void nearest(void **state) {
  (void)state;
  const char *const keys[] = {"heads", "dim", "softcap", "score", "scale"};
  assert_string_equal(diag_nearest("haeds", keys, 5), "heads");
  assert_string_equal(diag_nearest("sofcapp", keys, 5), "softcap");
  assert_string_equal(diag_nearest("scole", keys, 5), "score");
  assert_null(diag_nearest("window", keys, 5));
  assert_null(diag_nearest("", keys, 5));
  char longer[300];
  memset(longer, 'x', sizeof longer);
  longer[299] = 0;
  assert_null(diag_nearest(longer, keys, 5));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(positions),
      cmocka_unit_test(printed_form),
      cmocka_unit_test(at_most_twenty),
      cmocka_unit_test(json),
      cmocka_unit_test(long_lines_are_cut_around_the_place),
      cmocka_unit_test(without_memory_errors_are_counted),
      cmocka_unit_test(nearest_against_the_definition),
      cmocka_unit_test(nearest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
