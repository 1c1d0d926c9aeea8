/* test_template_guide.c: every example of docs/template-guide.md is run.
 *
 * Fenced blocks are told apart by the words after their language: `template` is rendered as a kernel, the following
 * `output` or `error` is what it must give; a path writes a file into the template folder; `output NAME` renders the
 * family NAME. */
#include "gen_fixture.h"

typedef struct guide {
  char *folder;
  spec *spec;
  int checked;
} guide;

static char *next_block(const char **p, char info[128]) {
  const char *fence = strstr(*p, "\n```");
  if (!fence)
    return NULL;
  const char *words = fence + 4, *begin = strchr(words, '\n') + 1, *end = strstr(begin - 1, "\n```");
  assert_non_null(end);
  snprintf(info, 128, "%.*s", (int)(begin - 1 - words), words);
  *p = end + 4;
  return strndup(begin, (size_t)(end + 1 - begin));
}

static void compare(guide *g, const char *family, const char *expected, bool fails) {
  gen_request request = {.family = family, .template_path = g->folder};
  gen_kernel *k;
  gen_error error = {0};
  gen_status status = gen_render(g->spec, &request, &k, &error);
  char got[8192];
  snprintf(got, sizeof got, "%s", status == GEN_OK ? k->source.bytes : error.message);
  if (status != GEN_OK)
    strcat(got, "\n");
  if ((status != GEN_OK) != fails || strcmp(got, expected) != 0)
    fail_msg("the guide says\n%s\nthe engine gives\n%s", expected, got);
  g->checked++;
  gen_kernel_free(k);
}

static void examples_give_what_the_guide_says(void **state) {
  (void)state;
  char *document = fixture_read(QKV_SOURCE_DIR "/docs/template-guide.md"), info[128], path[128], *block;
  assert_non_null(document);
  guide g = {.folder = fixture_toy(TOY_PLAIN, "x\n")};
  const char *p = strstr(document, "\n```yaml"); /* the spec of all examples */
  assert_non_null(p);
  block = next_block(&p, info);
  g.spec = fixture_spec(block);
  free(block);
  int templates = 0;
  p = document;
  while ((block = next_block(&p, info))) {
    if (strcmp(info, "cuda template") == 0) {
      fixture_write(g.folder, "kernels/toy.cu", block);
      templates++;
    } else if (strcmp(info, "cuda output") == 0 || strcmp(info, "text error") == 0) {
      compare(&g, "toy", block, *info == 't');
    } else if (sscanf(info, "cuda output %127s", path) == 1) {
      compare(&g, path, block, false);
      templates++;
    } else if (sscanf(info, "%*s %127s", path) == 1) {
      fixture_write(g.folder, path, block);
    } else {
      assert_string_equal(info, "yaml");
    }
    free(block);
  }
  assert_int_equal(g.checked, templates); /* no template without its output */
  assert_true(g.checked >= 12);
  spec_free(g.spec);
  fixture_remove(g.folder);
  free(document);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(examples_give_what_the_guide_says)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
