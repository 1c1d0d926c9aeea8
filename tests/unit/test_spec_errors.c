/* Golden error messages: every tests/errors/NAME.yaml is refused with exactly the text of NAME.err.
 *
 * UPDATE_GOLDEN=1 rewrites the .err files; a missing one fails. Also: every diagnostic code of diag.h is produced by at
 * least one of the specs, and the messages do not depend on the locale. */
#include <dirent.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comma_locale.h"
#include "diag.h"
#include "spec.h"

#define ERRORS QKV_SOURCE_DIR "/tests/errors"
enum { MOST_CASES = 400, LEAST_CASES = 60 };

static bool read_file(const char *path, text *out) {
  FILE *f = fopen(path, "rb");
  if (!f)
    return false;
  char piece[4096];
  for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
    text_add(out, piece, n);
  fclose(f);
  return true;
}

static bool write_file(const char *path, const text *t) {
  FILE *f = fopen(path, "wb");
  if (!f)
    return false;
  bool good = t->size == 0 || fwrite(t->bytes, 1, t->size, f) == t->size;
  return fclose(f) == 0 && good;
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the cases without ".yaml", sorted. */
static int list_cases(char *names[MOST_CASES]) {
  DIR *folder = opendir(ERRORS);
  assert_non_null(folder);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    size_t length = strlen(entry->d_name);
    if (length > 5 && strcmp(entry->d_name + length - 5, ".yaml") == 0) {
      assert_true(count < MOST_CASES);
      names[count++] = strndup(entry->d_name, length - 5);
    }
  }
  closedir(folder);
  qsort(names, (size_t)count, sizeof names[0], by_name);
  return count;
}

/* What parsing `name` prints; marks the codes it produced. */
static void messages_of(const char *name, text *out, bool seen[1000]) {
  char path[512], file[256];
  snprintf(path, sizeof path, ERRORS "/%s.yaml", name);
  snprintf(file, sizeof file, "%s.yaml", name);
  text input = {0};
  assert_true(read_file(path, &input));
  arena *memory = arena_new();
  diags d;
  spec *s = NULL;
  diags_init(&d, memory, file, input.bytes, input.size);
  if (spec_parse(input.bytes, input.size, &d, &s)) {
    spec_free(s);
    fail_msg("tests/errors/%s.yaml was accepted", name);
  }
  diags_print(&d, out);
  for (int i = 0; i < d.count; i++)
    seen[d.items[i].code] = true;
  arena_free(memory);
  text_free(&input);
}

static void check_golden(const char *name, const text *now, bool update, int *failures) {
  char path[512];
  snprintf(path, sizeof path, ERRORS "/%s.err", name);
  if (update) {
    assert_true(write_file(path, now));
    return;
  }
  text golden = {0};
  if (!read_file(path, &golden)) {
    print_error("tests/errors/%s.err is missing; UPDATE_GOLDEN=1 writes it\n", name);
    ++*failures;
  } else if (golden.size != now->size || (now->size && memcmp(golden.bytes, now->bytes, now->size) != 0)) {
    print_error("tests/errors/%s.yaml (UPDATE_GOLDEN=1 accepts the new text)\nexpected:\n%s\ngot:\n%s\n", name,
                golden.bytes ? golden.bytes : "", now->bytes ? now->bytes : "");
    ++*failures;
  }
  text_free(&golden);
}

static void golden_messages(void **state) {
  (void)state;
  static const diag_code codes[] = {DIAG_YAML_SYNTAX,   DIAG_YAML_FEATURE, DIAG_TOO_LARGE,  DIAG_UNKNOWN_KEY,
                                    DIAG_DUPLICATE_KEY, DIAG_MISSING_KEY,  DIAG_WRONG_TYPE, DIAG_OUT_OF_RANGE,
                                    DIAG_NOT_ONE_OF,    DIAG_CONFLICT,     DIAG_RESERVED,   DIAG_EXPR_SYNTAX,
                                    DIAG_EXPR_NAME,     DIAG_EXPR_TYPE,    DIAG_EXPR_INDEX, DIAG_EXPR_VALUE};
  char *names[MOST_CASES];
  bool seen[1000] = {false};
  int count = list_cases(names), failures = 0;
  bool update = getenv("UPDATE_GOLDEN") != NULL;
  assert_true(count >= LEAST_CASES);
  for (int i = 0; i < count; i++) {
    text now = {0};
    messages_of(names[i], &now, seen);
    assert_true(now.size > 0);
    check_golden(names[i], &now, update, &failures);
    text_free(&now);
    free(names[i]);
  }
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
    if (!seen[codes[i]]) {
      print_error("no file of tests/errors produces code %d\n", (int)codes[i]);
      failures++;
    }
  assert_int_equal(failures, 0);
}

static void golden_messages_with_decimal_comma(void **state) {
  if (!enter_comma_locale()) {
    print_message("skipped: no locale with a decimal comma\n");
    skip();
  }
  golden_messages(state);
  setlocale(LC_ALL, "C");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_messages),
      cmocka_unit_test(golden_messages_with_decimal_comma),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
