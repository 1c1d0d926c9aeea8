/* gen_fixture.h: what tests of the generator share: specs from text, template folders on disk, rendering in one call.
 */
#ifndef TESTS_UNIT_GEN_FIXTURE_H
#define TESTS_UNIT_GEN_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gen.h"

#define UNUSED __attribute__((unused))

/* A checked spec from text; the test fails with the diagnostics when the text is wrong. */
UNUSED static spec *fixture_spec(const char *source) {
  arena *memory = arena_new();
  diags d;
  diags_init(&d, memory, "<test>", source, strlen(source));
  spec *s = NULL;
  if (!spec_parse(source, strlen(source), &d, &s)) {
    text t = {0};
    diags_print(&d, &t);
    fail_msg("%s", t.bytes ? t.bytes : "spec_parse failed");
  }
  arena_free(memory);
  return s;
}

/* The bytes of a file, zero-terminated; NULL when it cannot be read. */
UNUSED static char *fixture_read(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f)
    return NULL;
  text t = {0};
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;)
    text_add(&t, buffer, n);
  fclose(f);
  return t.bytes ? t.bytes : calloc(1, 1);
}

/* A fresh template folder; fixture_remove deletes it. */
UNUSED static char *fixture_folder(void) {
  char *path = strdup("/tmp/qkvc_templates_XXXXXX");
  assert_non_null(mkdtemp(path));
  for (int n = 0; n < 4; n++) {
    char full[256];
    snprintf(full, sizeof full, "%s/%s", path, (const char *const[]){"kernels", "parts", "prim", "lib"}[n]);
    assert_int_equal(mkdir(full, 0700), 0);
  }
  return path;
}

UNUSED static void fixture_write(const char *folder, const char *name, const char *bytes) {
  char full[256];
  snprintf(full, sizeof full, "%s/%s", folder, name);
  FILE *f = fopen(full, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, strlen(bytes), f), strlen(bytes));
  assert_int_equal(fclose(f), 0);
}

UNUSED static void fixture_remove(char *folder) {
  char command[300];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  assert_int_equal(system(command), 0);
  free(folder);
}

/* The family `toy` with the given extra table fields and kernel template, in a fresh folder. */
#define TOY_REST                                                                                                       \
  "summary = 'a toy', order = 1, min_arch = 80, phases = {'prefill'}, describe = function() return {'toy line'} "      \
  "end,\n"                                                                                                             \
  "kernel = function(v, s) return {launches = {{entry = 'toy', block = 32, shared_bytes = 0, grid = {{'batch'}}}},\n"  \
  "params = {{name = 'q', type = 'pointer', ctype = 'const float *', source = 'q'}}, regions = {}, aligned16 = "       \
  "false} end,\n"
#define TOY_PLAIN                                                                                                      \
  "supports = function() return true end, axes = {}, defaults = function() return {} end,\n"                           \
  "resources = function() return {shared_bytes = 0, threads = 32, registers = 8} end,\n"

UNUSED static char *fixture_toy(const char *fields, const char *kernel) {
  char *folder = fixture_folder();
  text t = {0};
  text_printf(&t, "return {name = 'toy',\n%s%s}\n", TOY_REST, fields);
  fixture_write(folder, "kernels/toy.lua", t.bytes);
  fixture_write(folder, "kernels/toy.cu", kernel);
  text_free(&t);
  return folder;
}

#define FIXTURE_SPEC "qkvc: 1\nname: t\nattention: {heads: {q: 4, kv: 2}, dim: 64, dtype: bf16}\n"

/* Renders the toy kernel of a folder with FIXTURE_SPEC. NULL after an error. */
UNUSED static gen_kernel *fixture_render_toy(const char *folder, gen_error *error) {
  spec *s = fixture_spec(FIXTURE_SPEC);
  gen_request request = {.family = "toy", .template_path = folder};
  gen_kernel *k = NULL;
  *error = (gen_error){0};
  gen_status status = gen_render(s, &request, &k, error);
  assert_int_equal(status, error->status);
  assert_true((status == GEN_OK) == (k != NULL));
  spec_free(s);
  return k;
}

/* Renders a toy kernel template and returns the source (owned), or the error message as "!message". */
UNUSED static char *fixture_text(const char *kernel) {
  char *folder = fixture_toy(TOY_PLAIN, kernel);
  gen_error error;
  gen_kernel *k = fixture_render_toy(folder, &error);
  text t = {0};
  if (k)
    text_puts(&t, k->source.bytes ? k->source.bytes : "");
  else
    text_printf(&t, "!%s", error.message);
  gen_kernel_free(k);
  fixture_remove(folder);
  return t.bytes;
}

/* A small deterministic generator for randomised tests. */
UNUSED static uint64_t fixture_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

#endif
