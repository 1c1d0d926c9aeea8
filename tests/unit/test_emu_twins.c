/* Every primitive of templates/prim has a twin in the emulator's kernel_*.h, and every twin has its primitive. The
 * primitives' names are found by running the files with a `piece` that notes its argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "template.h"

enum { MAX_NAMES = 1600, NAME_SIZE = 64 };

typedef struct name_set {
  int count;
  char names[MAX_NAMES][NAME_SIZE];
} name_set;

static name_set primitives, twins;

/* Twins that the emulator has ahead of their primitive. */
static const char *const ahead[] = {"shuffle_xor_b32"};

static int contains(const name_set *set, const char *name) {
  for (int i = 0; i < set->count; i++)
    if (strcmp(set->names[i], name) == 0)
      return 1;
  return 0;
}

static void add(name_set *set, const char *name, size_t length) {
  assert_true(set->count < MAX_NAMES && length < NAME_SIZE);
  snprintf(set->names[set->count++], NAME_SIZE, "%.*s", (int)length, name);
}

static int note_piece(lua_State *lua) {
  const char *name = luaL_checkstring(lua, 1);
  add(&primitives, name, strlen(name));
  return 0;
}

static void collect_primitives(void) {
  for (int i = 0; i < template_file_count; i++) {
    const template_file *file = &template_files[i];
    if (strncmp(file->path, "prim/", 5) != 0)
      continue;
    text chunk = {0};
    gen_error error = {0};
    if (!template_translate(file->path, file->bytes, file->size, &chunk, &error))
      fail_msg("%s", error.message);
    lua_State *lua = luaL_newstate();
    luaL_openlibs(lua);
    lua_register(lua, "piece", note_piece);
    lua_getglobal(lua, "type"); /* stands for the collector of output, which is never called */
    if (luaL_loadbuffer(lua, chunk.bytes, chunk.size, file->path) != LUA_OK)
      fail_msg("%s", lua_tostring(lua, -1));
    lua_insert(lua, -2);
    if (lua_pcall(lua, 1, 0, 0) != LUA_OK)
      fail_msg("%s", lua_tostring(lua, -1));
    lua_close(lua);
    text_free(&chunk);
  }
}

/* One line that defines a family of twins by its number. */
static int add_family(const char *line) {
  static const struct {
    const char *macro;
    const char *forms[40]; /* with the number in place of % */
  } families[] = {
      {"EMU_WGMMA(",
       {"wgmma_m64n%k16_f16_ss", "wgmma_m64n%k16_f16_ss_t", "wgmma_m64n%k16_f16_ss_at", "wgmma_m64n%k16_f16_rs",
        "wgmma_m64n%k16_f16_rs_t", "wgmma_m64n%k16_bf16_ss", "wgmma_m64n%k16_bf16_ss_t", "wgmma_m64n%k16_bf16_ss_at",
        "wgmma_m64n%k16_bf16_rs", "wgmma_m64n%k16_bf16_rs_t", "wgmma_m64n%k32_f16_ss", "wgmma_m64n%k32_f16_ss_t",
        "wgmma_m64n%k32_f16_ss_at", "wgmma_m64n%k32_f16_rs", "wgmma_m64n%k32_f16_rs_t", "wgmma_m64n%k32_bf16_ss",
        "wgmma_m64n%k32_bf16_ss_t", "wgmma_m64n%k32_bf16_ss_at", "wgmma_m64n%k32_bf16_rs", "wgmma_m64n%k32_bf16_rs_t",
        "wgmma_m64n%k64_f16_ss", "wgmma_m64n%k64_f16_ss_t", "wgmma_m64n%k64_f16_ss_at", "wgmma_m64n%k64_f16_rs",
        "wgmma_m64n%k64_f16_rs_t", "wgmma_m64n%k64_bf16_ss", "wgmma_m64n%k64_bf16_ss_t", "wgmma_m64n%k64_bf16_ss_at",
        "wgmma_m64n%k64_bf16_rs", "wgmma_m64n%k64_bf16_rs_t", "wgmma_m64n%k128_f16_ss", "wgmma_m64n%k128_f16_ss_t",
        "wgmma_m64n%k128_f16_ss_at", "wgmma_m64n%k128_f16_rs", "wgmma_m64n%k128_f16_rs_t", "wgmma_m64n%k128_bf16_ss",
        "wgmma_m64n%k128_bf16_ss_t", "wgmma_m64n%k128_bf16_ss_at", "wgmma_m64n%k128_bf16_rs",
        "wgmma_m64n%k128_bf16_rs_t"}},
      {"EMU_REGISTERS(", {"registers_increase_%", "registers_decrease_%"}},
      {"EMU_TMA(", {"tma_load_%d", "tma_store_%d"}},
  };
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    size_t length = strlen(families[i].macro);
    if (strncmp(line, families[i].macro, length) != 0)
      continue;
    for (int k = 0; k < 40 && families[i].forms[k]; k++) {
      const char *form = families[i].forms[k], *mark = strchr(form, '%');
      char name[NAME_SIZE];
      snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - form), form, atoi(line + length), mark + 1);
      add(&twins, name, strlen(name));
    }
    return 1;
  }
  return 0;
}

/* Names defined in a header of twins: the word before the first parenthesis of a definition's line. */
static void collect_twins(const char *path) {
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  char line[512];
  while (fgets(line, sizeof line, file)) {
    const char *open = strchr(line, '('), *start = open;
    if (!open || strncmp(line, "EMU_", 4) != 0)
      continue;
    if (add_family(line))
      continue;
    if (strncmp(line, "EMU_MMA(", 8) == 0 || strncmp(line, "EMU_STRUCT(", 11) == 0) {
      start = open + 1;
      add(&twins, start, strcspn(start, ",)"));
      continue;
    }
    while (start > line && start[-1] != ' ' && start[-1] != '*')
      start--;
    if (strncmp(start, "emu_", 4) != 0)
      add(&twins, start, (size_t)(open - start));
  }
  fclose(file);
}

static void test_sets_are_equal(void **state) {
  (void)state;
  collect_primitives();
  collect_twins(QKV_SOURCE_DIR "/runtime/emu/kernel_sm80.h");
  collect_twins(QKV_SOURCE_DIR "/runtime/emu/kernel_sm90.h");
  collect_twins(QKV_SOURCE_DIR "/runtime/emu/kernel_math.h");
  assert_true(primitives.count > 20);
  for (int i = 0; i < primitives.count; i++)
    if (!contains(&twins, primitives.names[i]))
      fail_msg("templates/prim: %s has no twin in runtime/emu/kernel_*.h", primitives.names[i]);
  for (int i = 0; i < twins.count; i++) {
    int early = 0;
    for (size_t k = 0; k < sizeof ahead / sizeof *ahead; k++)
      early = early || strcmp(ahead[k], twins.names[i]) == 0;
    if (early == contains(&primitives, twins.names[i]))
      fail_msg("runtime/emu/kernel_*.h: %s has %s primitive in templates/prim", twins.names[i], early ? "a" : "no");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets_are_equal)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
