/* test_template.c: translation of templates to Lua chunks, and where template bytes come from. */
#include "gen_fixture.h"

#include "template.h"

static char *translate(const char *source, size_t size, gen_error *error) {
  text chunk = {0};
  *error = (gen_error){0};
  if (!template_translate("kernels/x.cu", source, size, &chunk, error)) {
    text_free(&chunk);
    return NULL;
  }
  return chunk.bytes;
}

static void lines_translate_one_to_one(void **state) {
  (void)state;
  static const struct {
    const char *source, *chunk; /* the chunk without its first words */
  } cases[] = {
      {"", ""},
      {"a\n", "emit_line(1, \"a\");\n"},
      {"a", "emit_line(1, \"a\");\n"},
      {"\n\n", "emit_line(1);\nemit_line(2);\n"},
      {"//% local x = 1\n$(x)\n", " local x = 1\nemit_line(2, \"\", (x));\n"},
      {"  //%  if a then\n", "  if a then\n"},
      {"//%% note with $ and //% inside\nb\n", "\nemit_line(2, \"b\");\n"},
      {"a $(x) b$(y)\n", "emit_line(1, \"a \", (x), \" b\", (y));\n"},
      {"$(f(\")\", ')', {1, t[\"(\"]}))\n", "emit_line(1, \"\", (f(\")\", ')', {1, t[\"(\"]})));\n"},
      {"\"q\\\" // c\"\t|\n", "emit_line(1, \"\\\"q\\\\\\\" // c\\\"\\009|\");\n"},
      {"a\r\n//% x()\r\n", "emit_line(1, \"a\");\n x()\n"},
      {"// % text, not code\n", "emit_line(1, \"// % text, not code\");\n"},
      {"caf\xc3\xa9\n", "emit_line(1, \"caf\xc3\xa9\");\n"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    gen_error error;
    char *chunk = translate(cases[n].source, strlen(cases[n].source), &error);
    if (!chunk)
      fail_msg("'%s': %s", cases[n].source, error.message);
    const char *rest = strchr(chunk, ';') + 2;
    if (strcmp(rest, cases[n].chunk) != 0)
      fail_msg("'%s' became '%s'", cases[n].source, rest);
    free(chunk);
  }
}

static void bad_lines_are_named(void **state) {
  (void)state;
  static const struct {
    const char *source, *message;
  } cases[] = {
      {"a\nb $(c\n", "kernels/x.cu:2: $( without its closing parenthesis on this line"},
      {"$(a]\n", "kernels/x.cu:1: $( without its closing parenthesis on this line"},
      {"$(\"a)\n", "kernels/x.cu:1: $( without its closing parenthesis on this line"},
      {"$(a -- b)\n", "kernels/x.cu:1: $( without its closing parenthesis on this line"},
      {"a\n\n$( )\n", "kernels/x.cu:3: $() is empty"},
      {"cost $5\n", "kernels/x.cu:1: '$' without '(': CUDA has no use for it"},
      {"x; //% if a then\n", "kernels/x.cu:1: //% must be the first thing on its line"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    gen_error error;
    assert_null(translate(cases[n].source, strlen(cases[n].source), &error));
    assert_int_equal(error.status, GEN_TEMPLATE);
    assert_string_equal(error.message, cases[n].message);
  }
  gen_error error;
  assert_null(translate("a\nb\0c\n", 6, &error));
  assert_string_equal(error.message, "kernels/x.cu:2: a zero byte");
}

static size_t count_lines(const char *p, size_t size) {
  size_t lines = 0;
  for (size_t n = 0; n < size; n++)
    lines += p[n] == '\n';
  return lines + (size > 0 && p[size - 1] != '\n');
}

/* Random text of significant characters: translation is safe, and keeps the number of lines. */
static void random_text_keeps_its_lines(void **state) {
  (void)state;
  static const char *const words[] = {"//%", "//%%", "$(", ")",  "(", "\"", "'",    "\\",
                                      "\n",  "a",    " ",  "--", "[", "]",  "\r\n", "$"};
  int accepted = 0;
  for (uint64_t round = 0; round < 20000; round++) {
    uint64_t seed = round;
    text source = {0};
    for (uint64_t n = fixture_random(&seed) % 12; n > 0; n--)
      text_puts(&source, words[fixture_random(&seed) % 16]);
    char *tight = malloc(source.size + 1);
    memcpy(tight, source.bytes ? source.bytes : "", source.size);
    gen_error error;
    char *chunk = translate(tight, source.size, &error);
    if (chunk && count_lines(chunk, strlen(chunk)) != count_lines(tight, source.size) + (source.size == 0))
      fail_msg("seed %llu: '%s' became '%s'", (unsigned long long)round, source.bytes, chunk);
    accepted += chunk != NULL;
    free(chunk);
    free(tight);
    text_free(&source);
  }
  assert_true(accepted > 1000);
}

static void built_in_templates_load_and_translate(void **state) {
  (void)state;
  assert_true(template_file_count > 0);
  for (int n = 0; n < template_file_count; n++) {
    const char *path = template_files[n].path, *bytes;
    size_t size;
    char *owned;
    gen_error error = {0};
    assert_true(n == 0 || strcmp(template_files[n - 1].path, path) < 0);
    assert_true(template_load(NULL, path, &bytes, &size, &owned, &error));
    assert_null(owned);
    /* Embedding must not change a byte. */
    char full[512];
    snprintf(full, sizeof full, "%s/templates/%s", QKV_SOURCE_DIR, path);
    char *on_disk = fixture_read(full);
    assert_non_null(on_disk);
    assert_int_equal(strlen(on_disk), size);
    assert_memory_equal(on_disk, bytes, size);
    free(on_disk);
    if (strstr(path, ".cu")) {
      text chunk = {0};
      if (!template_translate(path, bytes, size, &chunk, &error))
        fail_msg("%s", error.message);
      text_free(&chunk);
    }
  }
}

static void override_comes_first(void **state) {
  (void)state;
  char *folder = fixture_folder();
  const char *bytes, *path = template_files[0].path;
  size_t size;
  char *owned;
  gen_error error = {0};
  assert_true(template_load(folder, path, &bytes, &size, &owned, &error)); /* not overridden */
  assert_null(owned);
  fixture_write(folder, "parts/mine.cuh", "mine\n");
  assert_true(template_load(folder, "parts/mine.cuh", &bytes, &size, &owned, &error));
  assert_non_null(owned);
  assert_int_equal(size, 5);
  free(owned);
  fixture_write(folder, "parts/empty.cuh", "");
  assert_true(template_load(folder, "parts/empty.cuh", &bytes, &size, &owned, &error));
  assert_int_equal(size, 0);
  free(owned);
  assert_false(template_load(folder, "parts/none.cuh", &bytes, &size, &owned, &error));
  assert_int_equal(error.status, GEN_TEMPLATE);
  assert_non_null(strstr(error.message, "parts/none.cuh"));
  assert_false(template_load(folder, "parts", &bytes, &size, &owned, &error)); /* a folder */
  assert_int_equal(error.status, GEN_IO);
  fixture_remove(folder);
}

static void paths_stay_inside(void **state) {
  (void)state;
  static const char *const bad[] = {"", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "kernels/../../x"};
  for (size_t n = 0; n < sizeof bad / sizeof bad[0]; n++) {
    const char *bytes;
    size_t size;
    char *owned;
    gen_error error = {0};
    assert_false(template_load("/", bad[n], &bytes, &size, &owned, &error));
    assert_int_equal(error.status, GEN_TEMPLATE);
    assert_non_null(strstr(error.message, "is not a path inside"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_translate_one_to_one),  cmocka_unit_test(bad_lines_are_named),
      cmocka_unit_test(random_text_keeps_its_lines), cmocka_unit_test(built_in_templates_load_and_translate),
      cmocka_unit_test(override_comes_first),        cmocka_unit_test(paths_stay_inside),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
