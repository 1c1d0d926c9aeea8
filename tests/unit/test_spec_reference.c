/* docs/spec-reference.md: its key table is the one the parser uses (UPDATE_GOLDEN=1 rewrites it), and every yaml block
 * of the documentation that starts with `qkvc: 1` is a valid spec. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "spec.h"
#include "spec_schema.h"

#define REFERENCE QKV_SOURCE_DIR "/docs/spec-reference.md"
static const char table_start[] = "<!-- keys: written by UPDATE_GOLDEN=1 test_spec_reference -->\n";
static const char table_end[] = "<!-- end of keys -->\n";

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

static void key_table(void **state) {
  (void)state;
  text page = {0}, table = {0};
  assert_true(read_file(REFERENCE, &page));
  char *start = strstr(page.bytes, table_start), *end = strstr(page.bytes, table_end);
  assert_non_null(start);
  assert_non_null(end);
  start += strlen(table_start);
  schema_markdown(&table);
  bool same = (size_t)(end - start) == table.size && memcmp(start, table.bytes, table.size) == 0;
  if (!same && getenv("UPDATE_GOLDEN")) {
    FILE *f = fopen(REFERENCE, "wb");
    assert_non_null(f);
    fwrite(page.bytes, 1, (size_t)(start - page.bytes), f);
    fwrite(table.bytes, 1, table.size, f);
    fputs(end, f);
    assert_int_equal(fclose(f), 0);
  } else if (!same)
    fail_msg("the key table of docs/spec-reference.md is not that of spec_schema.c; UPDATE_GOLDEN=1 rewrites it");
  text_free(&page);
  text_free(&table);
}

/* Parses the yaml blocks of one page; returns how many are specs. */
static int check_page(const char *path) {
  static const char fence[] = "```yaml\n";
  text page = {0};
  int specs = 0;
  assert_true(read_file(path, &page));
  for (const char *block = page.bytes; block && (block = strstr(block, fence));) {
    block += strlen(fence);
    const char *end = strstr(block, "```");
    assert_non_null(end);
    if (strncmp(block, "qkvc: 1\n", 8) != 0)
      continue;
    arena *memory = arena_new();
    diags d;
    spec *s;
    diags_init(&d, memory, path, block, (size_t)(end - block));
    if (!spec_parse(block, (size_t)(end - block), &d, &s)) {
      text t = {0};
      diags_print(&d, &t);
      print_error("in a yaml block (lines count from its start):\n%s", t.bytes);
      fail();
    }
    spec_free(s);
    arena_free(memory);
    specs++;
  }
  text_free(&page);
  return specs;
}

static void examples_parse(void **state) {
  (void)state;
  assert_true(check_page(REFERENCE) >= 5);
  DIR *folder = opendir(QKV_SOURCE_DIR "/docs");
  assert_non_null(folder);
  for (struct dirent *entry; (entry = readdir(folder));) {
    size_t length = strlen(entry->d_name);
    char path[1024];
    snprintf(path, sizeof path, QKV_SOURCE_DIR "/docs/%s", entry->d_name);
    if (length > 3 && strcmp(entry->d_name + length - 3, ".md") == 0)
      check_page(path);
  }
  closedir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(key_table),
      cmocka_unit_test(examples_parse),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
