/* tree.c: structure, byte positions (also behind non-ASCII text), verbatim scalars, aliases, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tree.h"

static arena *memory;
static diags errors;

static const tree_node *parse(const char *source) {
  arena_free(memory);
  memory = arena_new();
  diags_init(&errors, memory, "a.yaml", source, strlen(source));
  return tree_parse(memory, source, strlen(source), &errors);
}

static int teardown(void **state) {
  (void)state;
  arena_free(memory);
  memory = NULL;
  return 0;
}

static const tree_node *must_parse(const char *source) {
  const tree_node *root = parse(source);
  if (!root || errors.count)
    fail_msg("%s: %s", source, errors.count ? errors.items[0].message : "no tree");
  return root;
}

static void must_fail(const char *source, diag_code code, size_t offset) {
  parse(source);
  if (errors.count == 0)
    fail_msg("accepted: %s", source);
  if (errors.items[0].code != code || errors.items[0].at.offset != offset)
    fail_msg("%s: code %d at %zu: %s", source, (int)errors.items[0].code, errors.items[0].at.offset,
             errors.items[0].message);
}

static void structure(void **state) {
  (void)state;
  const tree_node *root = must_parse("a: 1\nb: [x, {y: z}, ]\nc:\n- p\n- q\nd:\n");
  assert_int_equal(root->kind, TREE_MAPPING);
  assert_int_equal(root->count, 4);
  const char *keys[] = {"a", "b", "c", "d"};
  int i = 0;
  for (const tree_entry *e = root->first; e; e = e->next)
    assert_string_equal(e->key->value, keys[i++]);
  assert_string_equal(tree_get(root, "a")->value, "1");
  assert_null(tree_get(root, "e"));
  const tree_node *b = tree_get(root, "b");
  assert_int_equal(b->kind, TREE_SEQUENCE);
  assert_int_equal(b->count, 2);
  assert_null(b->first->key);
  assert_string_equal(tree_get(b->first->next->value, "y")->value, "z");
  assert_int_equal(tree_get(root, "c")->count, 2);
  assert_true(tree_get(root, "d")->absent);
  assert_false(tree_get(root, "a")->absent);
  assert_int_equal(root->height, 3);
  assert_int_equal(root->weight, 15);
}

/* The bytes at a scalar's place are the scalar, whatever stands before it. */
static void places(void **state) {
  (void)state;
  const char *const before[] = {"",
                                "# gr\xC3\xB6\xC3\x9F \xE9\xA0\xAD\n",
                                "\xEF\xBB\xBF",
                                "\xEF\xBB\xBF# \xF0\x9F\x98\x80\r\n",
                                "\"\xF0\x9F\x98\x80 k\": \xC3\xB6\n",
                                "---\n"};
  const char *const scalars[][2] = {{"causal and q - k < 3", "causal and q - k < 3"},
                                    {"'s + 1'", "s + 1"},
                                    {"\"s * \xC3\xA9\"", "s * \xC3\xA9"},
                                    {"''", ""},
                                    {"\xE9\xA0\xAD", "\xE9\xA0\xAD"}};
  for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
    for (size_t n = 0; n < sizeof scalars / sizeof scalars[0]; n++) {
      char source[200];
      strcpy(source, before[i]);
      strcat(source, "key: ");
      strcat(source, scalars[n][0]);
      strcat(source, "  # \xC3\xB6\nafter: [1, last]\n");
      const tree_node *root = must_parse(source), *value = tree_get(root, "key"), *after = tree_get(root, "after");
      size_t length = strlen(scalars[n][1]);
      assert_string_equal(value->value, scalars[n][1]);
      assert_int_equal(value->at.length, strlen(scalars[n][0]));
      assert_memory_equal(source + value->at.offset, scalars[n][0], value->at.length);
      assert_true(value->verbatim);
      assert_memory_equal(source + value->inside, scalars[n][1], length);
      assert_memory_equal(source + after->at.offset, "[1, last]", 9);
      assert_int_equal(after->at.length, 9);
      assert_memory_equal(source + after->first->next->value->at.offset, "last", 4);
    }
}

static void verbatim_only_when_bytes_match(void **state) {
  (void)state;
  const char *const sources[][2] = {{"k: 'it''s'", "it's"}, {"k: \"a\\tb\"", "a\tb"}, {"k: a\n b", "a b"},
                                    {"k: 'a\n b'", "a b"},  {"k: |\n a\n", "a\n"},    {"k: >\n a\n b\n", "a b\n"},
                                    {"k: \"\\x61\"", "a"}};
  for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
    const tree_node *value = tree_get(must_parse(sources[i][0]), "k");
    assert_string_equal(value->value, sources[i][1]);
    if (value->verbatim)
      fail_msg("%s is not verbatim", sources[i][0]);
    assert_int_equal(value->at.offset, 3);
  }
}

static void aliases_share_nodes(void **state) {
  (void)state;
  const char *source = "x-a: &a {p: &b 'v'}\nm: *a\nn: [*b, *b]\n";
  const tree_node *root = must_parse(source);
  assert_ptr_equal(tree_get(root, "m"), tree_get(root, "x-a"));
  const tree_node *b = tree_get(root, "n")->first->value;
  assert_string_equal(b->value, "v");
  assert_true(b->verbatim);
  assert_memory_equal(source + b->inside, "v", 1);
  assert_string_equal(tree_get(must_parse("x-a: &a 1\nx-b: &a 2\nc: *a\n"), "c")->value, "2"); /* the later one */
  must_parse("x-a: &a {p: 1}\nx-b: {<<: *a, q: &c 2}\n");
}

static void refused(void **state) {
  (void)state;
  must_fail("", DIAG_YAML_SYNTAX, 0);
  must_fail("a: &b 1\n", DIAG_YAML_FEATURE, 3);
  must_fail("x: &b 1\n", DIAG_YAML_FEATURE, 3);
  must_fail("a: {x-b: &c 1}\n", DIAG_YAML_FEATURE, 9);
  must_fail("a: *b\n", DIAG_YAML_FEATURE, 3);
  must_fail("x-a: &a [*a]\n", DIAG_YAML_FEATURE, 9);
  must_fail("x-a: &a {b: 1}\nc: {<<: *a}\n", DIAG_YAML_FEATURE, 19);
  must_fail("a: !!int 1\n", DIAG_YAML_FEATURE, 3);
  must_fail("x-a: !t {}\n", DIAG_YAML_FEATURE, 5);
  must_fail("%TAG ! tag:x,2000:\n---\na: 1\n", DIAG_YAML_FEATURE, 0);
  must_fail("{a: 1, a: 2}\n", DIAG_DUPLICATE_KEY, 7);
  must_fail("a: 1\n'a': 2\n", DIAG_DUPLICATE_KEY, 5);
  must_fail("x-a: {b: 1, b: 2}\n", DIAG_DUPLICATE_KEY, 12);
  must_fail("{[1]: 2}\n", DIAG_YAML_FEATURE, 1);
  must_fail("a: 1\n---\nb: 2\n", DIAG_YAML_SYNTAX, 5);
  must_fail("a: 1\n...\n---\nb: 2\n", DIAG_YAML_SYNTAX, 9);
  must_fail("a:\n\tb: 1\n", DIAG_YAML_SYNTAX, 3);
  must_fail("a:\n  \tb: 1\n", DIAG_YAML_SYNTAX, 5);
  must_fail("a: \xFF\n", DIAG_YAML_SYNTAX, 3);
  must_fail("a: \x01\n", DIAG_YAML_SYNTAX, 3);
  must_fail("a: \"\\0\"\n", DIAG_YAML_SYNTAX, 3);
  must_fail("a: \xEF\xBF\xBE\n", DIAG_YAML_SYNTAX, 3); /* U+FFFE */
  must_fail("\xC3\xB6: [1\nb", DIAG_YAML_SYNTAX, 8);
}

static char *repeat(const char *first, const char *piece, int count, const char *last) {
  size_t size = strlen(first) + strlen(piece) * (size_t)count + strlen(last) + 1, at = strlen(first);
  char *result = malloc(size);
  memcpy(result, first, at);
  for (int i = 0; i < count; i++, at += strlen(piece))
    memcpy(result + at, piece, strlen(piece));
  strcpy(result + at, last);
  return result;
}

/* `first`, then `count` opening brackets, then `inner`, then as many closing ones. */
static char *nest(const char *first, int count, const char *inner) {
  char *closing = repeat(inner, "]", count, "");
  char *result = repeat(first, "[", count, closing);
  free(closing);
  return result;
}

static bool accepts(char *source) {
  bool good = parse(source) && errors.count == 0;
  if (!good)
    assert_int_equal(errors.items[0].code, DIAG_TOO_LARGE);
  free(source);
  return good;
}

static void limits(void **state) {
  (void)state;
  assert_true(accepts(nest("a: ", TREE_MAX_DEPTH - 2, "1")));
  assert_false(accepts(nest("a: ", TREE_MAX_DEPTH - 1, "1")));
  assert_false(accepts(repeat("a: ", "[", 200000, "")));
  assert_false(accepts(repeat("a: ", "{b: ", 100000, "")));
  assert_true(accepts(repeat("a: [", "1,", TREE_MAX_NODES - 3, "]")));
  assert_false(accepts(repeat("a: [", "1,", TREE_MAX_NODES - 2, "]")));
  assert_true(accepts(repeat("a: 1\n#", "x", TREE_MAX_BYTES - 6, "")));
  assert_false(accepts(repeat("a: 1\n#", "x", TREE_MAX_BYTES - 5, "")));
  /* Aliases count as what they stand for, in nodes and in depth. */
  assert_true(accepts(repeat("x-a: &a [1,2,3,4,5,6,7,8,9]\nb: [", "*a,", 990, "]")));
  assert_false(accepts(repeat("x-a: &a [1,2,3,4,5,6,7,8,9]\nb: [", "*a,", 1000, "]")));
  assert_true(accepts(nest("x-a: &a [[[[1]]]]\nb: ", 26, "*a")));
  assert_false(accepts(nest("x-a: &a [[[[1]]]]\nb: ", 27, "*a")));
}

static int calls_left;

static void *failing_malloc(size_t size) {
  return calls_left-- > 0 ? malloc(size) : NULL;
}

/* Parses with at most n allocations of the arena. True when they sufficed. */
static bool parse_with(const char *source, arena *own, int n) {
  calls_left = n;
  arena *a = arena_new();
  if (!a)
    return false;
  if (ARENA_TRY(a)) {
    diags d;
    diags_init(&d, own, NULL, source, strlen(source));
    tree_parse(a, source, strlen(source), &d);
    arena_free(a);
    return true;
  }
  arena_free(a);
  return false;
}

/* libyaml's own memory is released on the way out of the arena (leaks are found by the sanitizer). */
static void out_of_memory(void **state) {
  (void)state;
  char *source = repeat("x-a: &a {p: 'q'}\nlist: [", "{k: [v, *a]}, ", 300, "]");
  arena *own = arena_new();
  arena_malloc = failing_malloc;
  int n = 0;
  while (!parse_with(source, own, n))
    assert_true(++n < 100);
  arena_malloc = malloc;
  assert_true(n > 4);
  arena_free(own);
  free(source);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(structure, teardown),
      cmocka_unit_test_teardown(places, teardown),
      cmocka_unit_test_teardown(verbatim_only_when_bytes_match, teardown),
      cmocka_unit_test_teardown(aliases_share_nodes, teardown),
      cmocka_unit_test_teardown(refused, teardown),
      cmocka_unit_test_teardown(limits, teardown),
      cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
