/* test_gen.c: from spec to source with toy families in an override folder: template functions, pieces, line map,
 * dispatch, schedules, errors, and reproducibility. The built-in families are covered by test_golden.c. */
#include "gen_fixture.h"

#include <sys/wait.h>

#include "comma_locale.h"
#include "lua_host.h"

/* ---- template functions ---- */

static void check(const char *kernel, const char *expected) {
  char *got = fixture_text(kernel);
  if (strcmp(got, expected) != 0)
    fail_msg("%s\n gave:\n%s\n expected:\n%s", kernel, got, expected);
  free(got);
}

static void check_error(const char *kernel, const char *expected) {
  char *got = fixture_text(kernel);
  if (*got != '!' || !strstr(got + 1, expected))
    fail_msg("%s\n gave:\n%s\n expected an error with: %s", kernel, got, expected);
  free(got);
}

static void values_print_as_written(void **state) {
  (void)state;
  check("a $(1) $(-2) $('x') $(true) $(false)b\n", "a 1 -2 x true falseb\n");
  check("$(variant.heads_q)/$(variant.group) $(variant.dtype_q) $(mask.form)\n", "4/2 bf16 all\n");
  check("//% for n = 1, 3 do\n  x$(n);\n//% end", "  x1;\n  x2;\n  x3;\n");
  check("  $('one;\\ntwo;')\n", "  one;\n  two;\n");
  check("a $('')\n\n\tb  \n", "a\n\n\tb\n");
  check("$(f32(0)) $(f32(1)) $(f32(-0.5)) $(f32(1/3)) $(f32(3))\n",
        "0x0p+0f 0x1p+0f -0x1p-1f 0x1.555556p-2f 0x1.8p+1f\n");
  check("$(f32(-0.0)) $(f32(2^-149)) $(f32(3.4028234e38))\n", "-0x0p+0f 0x1p-149f 0x1.fffffep+127f\n");
  check("$(ceil_div(7, 2)) $(ceil_div(0, 5)) $(round_up(9, 8)) $(round_up(16, 8))\n", "4 0 16 16\n");
  check("$(variant.outputs.o) $(variant.sink) $(variant.align) $(request.phase) $(arch.name)\n",
        "true none bottom_right prefill sm_80\n");
}

static void bad_values_are_named(void **state) {
  (void)state;
  check_error("\n$(1) $(4 / 2)\n", "kernels/toy.cu:2: $(4 / 2) is a float (2.0): write f32(...)");
  check_error("a $(variant.params[1])", "kernels/toy.cu:1: $(variant.params[1]) is nil");
  check_error("$(variant)", "kernels/toy.cu:1: $(variant) is a table");
  check_error("$(f32)", "kernels/toy.cu:1: $(f32) is a function");
  check_error("$(variant.softcp)", "kernels/toy.cu:1: variant has no field 'softcp'");
  check_error("$(schedule.tile_m)", "kernels/toy.cu:1: schedule has no field 'tile_m'");
  check_error("//% variant.heads_q = 3", "kernels/toy.cu:1: variant is read-only");
  check_error("//% kernel.launches[1].block = 3", "kernels/toy.cu:1: kernel is read-only");
  check_error("$(f32(1e39))", "f32: ");
  check_error("$(f32('1'))", "number expected, got string");
  check_error("$(ceil_div(1.0, 2))", "argument 1 must be an integer, not a float");
  check_error("$(ceil_div(1, 0))", "needs a >= 0 and b > 0");
  check_error("$(x y)", "kernels/toy.cu:1: ')' expected near 'y'");
  check_error("//% if true then\na\n", "'end' expected (to close 'if' at line 1)");
  check_error("a\n//% error('no way')", "kernels/toy.cu:2: no way");
  check_error("a $('b\\0c')\nd\n", "kernels/toy.cu:1: a value holds a zero byte");
  /* emit_line is the engine's; a template that calls it anyhow gets an error, no more. */
  check_error("//% emit_line(1, 'x', {})", "kernels/toy.cu:1: the value is a table");
  check_error("//% emit_line(99, 'x', {})", "the value is a table");
  check_error("//% emit_line(1, {}, 2)", "string expected, got table");
  check_error("//% emit_line(1, 'x\\0')", "a line of text expected");
  check_error("//% emit_line(1, 'x', 1, 'a\\nb')", "a line of text expected");
}

static void expressions_print_as_cuda(void **state) {
  (void)state;
  char *folder =
      fixture_toy(TOY_PLAIN, "//% pieces()\n$(cuda_mask{q = 'q', k = 'k'})\n$(cuda_score{s = 's', h = 'head'})\n"
                             "$(cuda_edge('visit_end', {first = 'first', last = 'last'}))\n"
                             "$(variant.mask_text) $(variant.mask_symbols.q) $(variant.score_is_identity)\n");
  spec *s = fixture_spec("qkvc: 1\nname: t\nattention:\n  heads: 4\n  dim: 64\n  dtype: f16\n  score: s * bias[h]\n"
                         "  mask: causal\n  params: {bias: {type: f32, shape: [hq]}}\n");
  gen_request request = {.family = "toy", .template_path = folder};
  gen_error error = {0};
  gen_kernel *k;
  if (gen_render(s, &request, &k, &error) != GEN_OK)
    fail_msg("%s", error.message);
  assert_non_null(strstr(k->source.bytes, "param_bias(const qkv_params &p")); /* the accessor, from parts/ */
  assert_non_null(strstr(k->source.bytes, "\nk <= q\ns * param_bias(p, head)\nlast + 1\nk <= q true false\n"));
  /* Declared parameters join the struct of every family. */
  assert_int_equal(k->manifest.nfields, 4);
  assert_string_equal(k->manifest.fields[1].name, "bias");
  assert_string_equal(k->manifest.fields[2].source, "param.bias.stride.0");
  assert_string_equal(k->manifest.fields[3].name, "bias_extent0");
  assert_int_equal(k->manifest.params_size, 32);
  gen_kernel_free(k);

  static const char *const bad[][2] = {
      {"$(cuda_mask{q = 'q'})", "the expression uses k; pass k = \"...\""},
      {"$(cuda_mask{q = 'q', k = 'k', s = 's'})", "no symbol 's' here"},
      {"$(cuda_mask{q = 'q', k = 3})", "k must be CUDA text, not a number"},
      {"$(cuda_edge('visit_start', {}))", "no edge 'visit_start'"},
      {"$(cuda_edge('visit_end', {}))", "the expression uses i; pass last"},
  };
  for (size_t n = 0; n < sizeof bad / sizeof bad[0]; n++) {
    fixture_write(folder, "kernels/toy.cu", bad[n][0]);
    assert_int_equal(gen_render(s, &request, &k, &error), GEN_TEMPLATE);
    if (!strstr(error.message, bad[n][1]))
      fail_msg("%s gave %s", bad[n][0], error.message);
  }
  spec_free(s);
  fixture_remove(folder);
}

static void header_tells_spec_schedule_and_roles(void **state) {
  (void)state;
  char *got = fixture_text("//% header()\nint x;\n");
  assert_non_null(strstr(got, "// toy for sm_80, prefill: generated by qkvc " GEN_VERSION "\n// a toy\n"));
  assert_non_null(strstr(got, "//   heads:"));
  assert_non_null(strstr(got, "// schedule: (no axes)\n// resources: 0 bytes of shared memory, 32 threads"));
  assert_non_null(strstr(got, "// toy line\nint x;\n"));
  free(got);
}

/* ---- includes, libraries, pieces ---- */

static void includes_keep_columns_and_origins(void **state) {
  (void)state;
  char *folder = fixture_toy(TOY_PLAIN, "a\n{\n  //% include('parts/sub.inc')\n}\n//% include('parts/sub.inc')\n");
  fixture_write(folder, "parts/sub.inc", "b\n\n  c $(1)\n");
  gen_error error;
  gen_kernel *k = fixture_render_toy(folder, &error);
  if (!k)
    fail_msg("%s", error.message);
  assert_string_equal(k->source.bytes, "a\n{\n  b\n\n    c 1\n}\nb\n\n  c 1\n");
  static const struct {
    const char *path;
    int line;
  } origins[] = {{"kernels/toy.cu", 1}, {"kernels/toy.cu", 2}, {"parts/sub.inc", 1},
                 {"parts/sub.inc", 2},  {"parts/sub.inc", 3},  {"kernels/toy.cu", 4},
                 {"parts/sub.inc", 1},  {"parts/sub.inc", 2},  {"parts/sub.inc", 3}};
  assert_int_equal(k->nlines, 9);
  for (int n = 0; n < 9; n++) {
    assert_string_equal(k->templates[k->lines[n].template_index], origins[n].path);
    assert_int_equal(k->lines[n].line, origins[n].line);
  }
  gen_kernel_free(k);

  fixture_write(folder, "parts/sub.inc", "b\n$(nothing)\n");
  assert_null(fixture_render_toy(folder, &error));
  assert_string_equal(error.message, "parts/sub.inc:2: undefined name 'nothing' (called from kernels/toy.cu:3)");
  fixture_write(folder, "parts/sub.inc", "//% include('parts/sub.inc')\n");
  assert_null(fixture_render_toy(folder, &error));
  assert_non_null(strstr(error.message, "parts/sub.inc:1: includes are nested more than 32 deep"));
  fixture_write(folder, "kernels/toy.cu", "\n//% include('parts/nowhere')\n");
  assert_null(fixture_render_toy(folder, &error));
  assert_non_null(strstr(error.message, "kernels/toy.cu:2: no template 'parts/nowhere'"));
  fixture_remove(folder);
}

static void libraries_load_once(void **state) {
  (void)state;
  char *folder =
      fixture_toy(TOY_PLAIN, "//% local a, b = library('count'), library('count')\n$(a.next()) $(b.next())\n");
  fixture_write(folder, "lib/count.lua", "local n = 0\nreturn {next = function() n = n + 1 return n end}\n");
  gen_error error;
  gen_kernel *k = fixture_render_toy(folder, &error);
  assert_non_null(k);
  assert_string_equal(k->source.bytes, "1 2\n");
  gen_kernel_free(k);
  static const char *const bad[][2] = {
      {"return 3", "kernels/toy.cu:1: lib/count.lua must return a table"},
      {"return library('count')", "lib/count.lua:1: library 'count' loads itself"},
      {"\nreturn undefined", "lib/count.lua:2: undefined name 'undefined' (called from kernels/toy.cu:1)"},
      {"return {", "lib/count.lua:1: unexpected symbol near <eof>"},
  };
  for (size_t n = 0; n < sizeof bad / sizeof bad[0]; n++) {
    fixture_write(folder, "lib/count.lua", bad[n][0]);
    assert_null(fixture_render_toy(folder, &error));
    if (!strstr(error.message, bad[n][1]))
      fail_msg("%s gave %s", bad[n][0], error.message);
  }
  fixture_remove(folder);
}

#define MARKERS "//% primitives()\n//% pieces()\n"

static void only_pieces_in_use_are_emitted(void **state) {
  (void)state;
  check(MARKERS
        "//% piece('two', function()\nint two = one;\n//% end)\n//% piece('one', function()\nint one = 1;\n//% end)\n"
        "//% piece('unused', function()\nint unused;\n//% end)\nx = two;\n",
        "int one = 1;\nint two = one;\nx = two;\n");
  /* A name in a comment, a string, a character, a number, a member or a longer word is no use. */
  check(MARKERS "//% piece('f', function()\nint f;\n//% end)\n"
                "// f\n/* f\n f */ \"f\\\" f\" 'f' 0x1.8p+0f 1.0f a.f a->f a . f ff f2 _f\n",
        "// f\n/* f\n f */ \"f\\\" f\" 'f' 0x1.8p+0f 1.0f a.f a->f a . f ff f2 _f\n");
  check(MARKERS "//% piece('f', function()\nint f;\n//% end)\na/f\n", "int f;\na/f\n");
  /* A comment's last mark has nothing to do with the code behind it. */
  check(MARKERS "//% piece('f', function()\nint f;\n//% end)\n// a.\nf\n", "int f;\n// a.\nf\n");
  check(MARKERS "//% piece('f', function()\nint f;\n//% end)\na. /* b */\nf\n", "a. /* b */\nf\n");
  /* Longer pieces stand apart; ties go by name. */
  check("//% pieces()\n//% for _, n in ipairs{'c', 'a', 'b'} do piece(n, function()\nint $(n);\n//% if n == 'b' "
        "then\nb2\n//% end\n"
        "//% end) end\nc a b\n",
        "int a;\n\nint b;\nb2\n\nint c;\nc a b\n");
}

static void primitives_are_guarded(void **state) {
  (void)state;
  char *folder = fixture_toy(TOY_PLAIN, "top\n//% primitives()\n//% pieces()\nuse_part();\n");
  fixture_write(folder, "prim/mine.cuh",
                "//%% note\n//% piece('mine_first', function()\nvoid mine_first();\n//% end)\n\n"
                "//% piece('mine_second', function()\nvoid mine_second() { mine_first(); }\n//% end)\n");
  fixture_write(folder, "parts/mine.cuh",
                "//% piece('use_part', function()\nvoid use_part() { mine_second(); }\n//% end)\n");
  gen_error error;
  gen_kernel *k = fixture_render_toy(folder, &error);
  if (!k)
    fail_msg("%s", error.message);
  assert_string_equal(
      k->source.bytes,
      "top\n#ifndef QKV_EMU // the emulator's header has its own\nvoid mine_first();\n"
      "void mine_second() { mine_first(); }\n#endif // QKV_EMU\nvoid use_part() { mine_second(); }\nuse_part();\n");
  assert_int_equal(k->lines[1].line, 0);
  assert_string_equal(k->templates[k->lines[3].template_index], "prim/mine.cuh");
  assert_int_equal(k->lines[3].line, 7);
  gen_kernel_free(k);
  fixture_remove(folder);
}

static void piece_mistakes_are_named(void **state) {
  (void)state;
  check_error("//% piece('a b', function() end)", "the name must be the identifier");
  check_error("//% piece('a', 3)", "function expected");
  check_error("//% piece('a', function() end)\n//% piece('a', function() end)",
              "kernels/toy.cu:2: piece 'a' is already defined at kernels/toy.cu:1");
  check_error("//% piece('a', function()\nint a;\n//% end)\na", "kernels/toy.cu:1: uses 'a' but has no pieces()");
  check_error("//% pieces()\n//% pieces()", "kernels/toy.cu:2: a second place for the same pieces");
  check_error(MARKERS
              "//% piece('a', function()\nint a = b;\n//% end)\n//% piece('b', function()\nint b = a;\n//% end)\na",
              "kernels/toy.cu:3: piece 'a' belongs to");
  check_error(MARKERS "//% piece('a', function()\n//% pieces()\n//% end)\na", "a place for pieces inside a piece");
  check_error(MARKERS "//% piece('a', function()\n$(nil)\n//% end)\na", "kernels/toy.cu:4: $(nil) is nil");
  char *folder = fixture_toy(TOY_PLAIN, "x\n");
  gen_error error;
  fixture_write(folder, "parts/mine.cuh", "\n//%% fine\nint stray;\n");
  assert_null(fixture_render_toy(folder, &error));
  assert_string_equal(error.message, "parts/mine.cuh:3: text outside of a piece");
  fixture_write(folder, "parts/mine.cuh", "//% piece('part_name', function()\nint part_name;\n//% end)\n");
  fixture_write(folder, "prim/mine.cuh", "//% piece('prim_name', function()\nint prim_name = part_name;\n//% end)\n");
  fixture_write(folder, "kernels/toy.cu", MARKERS "prim_name\n");
  assert_null(fixture_render_toy(folder, &error));
  assert_string_equal(error.message,
                      "prim/mine.cuh:1: primitive 'prim_name' uses 'part_name', which is not a primitive");
  fixture_remove(folder);
}

/* ---- families and schedules ---- */

#define TOY_AXES                                                                                                       \
  "supports = function() return true end,\n"                                                                           \
  "axes = {{name = 'tile_m', values = {16, 64, 128}, meaning = 'rows'}, {name = 'stages', values = {2, 4}, meaning = " \
  "'ring'}},\n"                                                                                                        \
  "defaults = function() return {tile_m = 128, stages = 4} end,\n"                                                     \
  "fallbacks = function() return {{tile_m = 128, stages = 2}, {tile_m = 16, stages = 2}} end,\n"                       \
  "check = function(v, s) if s.tile_m == 16 and s.stages == 4 then return false, 'too thin' end return true end,\n"    \
  "resources = function(v, s) return {shared_bytes = s.tile_m * s.stages * 512, threads = 2 * s.tile_m, registers = "  \
  "100} end,\n"

static void check_schedule(const char *folder, const char *spec_schedule, const char *arch_name, const char *wish,
                           const char *expected) {
  text source = {0};
  text_printf(&source, "%s%s", FIXTURE_SPEC, spec_schedule);
  spec *s = fixture_spec(source.bytes);
  gen_request request = {.family = "toy", .template_path = folder, .arch = arch_find(arch_name), .schedule = wish};
  gen_error error = {0};
  gen_kernel *k;
  gen_status status = gen_render(s, &request, &k, &error);
  const char *got = status == GEN_OK ? k->manifest.schedule : error.message;
  if (strcmp(got, expected) != 0)
    fail_msg("schedule '%s' on %s: %s\n expected %s", wish ? wish : spec_schedule, arch_name, got, expected);
  assert_true(status == GEN_OK || status == GEN_BAD_SCHEDULE);
  gen_schedule info;
  gen_status checked = gen_check_schedule(s, &request, &info, &error);
  if (checked == GEN_OK && info.legal != (status == GEN_OK))
    fail_msg("gen_check_schedule disagrees: %s", info.reason);
  gen_kernel_free(k);
  spec_free(s);
  text_free(&source);
}

static void schedules_resolve_in_order(void **state) {
  (void)state;
  char *folder = fixture_toy(TOY_AXES, "x\n");
  check_schedule(folder, "", "sm_90a", NULL, "tile_m=128,stages=2"); /* 4 stages need 256 KiB */
  check_schedule(folder, "", "sm_89", NULL, "tile_m=16,stages=2");   /* 128 KiB do not fit either */
  check_schedule(folder, "", "sm_90a", "tile_m=64", "tile_m=64,stages=4");
  check_schedule(folder, "", "sm_90a", " stages = 2 , tile_m = 16 ", "tile_m=16,stages=2");
  check_schedule(folder, "schedule: {tile_m: 64}\n", "sm_90a", NULL, "tile_m=64,stages=4");
  check_schedule(folder, "schedule: {tile_m: 64}\n", "sm_90a", "stages=2", "tile_m=64,stages=2");
  check_schedule(folder, "schedule: {tile_m: 64}\n", "sm_90a", "tile_m=16", "tile_m=16,stages=2");
  check_schedule(
      folder, "", "sm_90a", "tile_m=128,stages=4",
      "toy with tile_m=128,stages=4: shared memory: needs 262144 bytes, sm_90a allows 232448; lower tile_m or stages");
  check_schedule(folder, "", "sm_89", "tile_m=128,stages=2",
                 "toy with tile_m=128,stages=2: shared memory: needs 131072 bytes, sm_89 allows 101376; lower tile_m");
  check_schedule(folder, "", "sm_90a", "tile_m=16,stages=4", "toy with tile_m=16,stages=4: too thin");
  check_schedule(folder, "", "sm_90a", "tile_n=16",
                 "schedule: toy has no axis 'tile_n' (its axes: tile_m, stages); did you mean 'tile_m'?");
  check_schedule(folder, "", "sm_90a", "warp=16", "schedule: toy has no axis 'warp' (its axes: tile_m, stages)");
  check_schedule(folder, "", "sm_90a", "tile_m=32",
                 "schedule: tile_m = 32 is not among the values of toy: 16, 64, 128");
  check_schedule(folder, "", "sm_90a", "tile_m=064",
                 "schedule: tile_m = 064 is not among the values of toy: 16, 64, 128");
  check_schedule(folder, "", "sm_90a", "tile_m=64,tile_m=64", "schedule: tile_m is given twice");
  check_schedule(folder, "", "sm_90a", "tile_m", "schedule: 'tile_m' is not of the form axis=value");
  check_schedule(folder, "schedule: {tile_k: 64}\n", "sm_90a", NULL,
                 "schedule: toy has no axis 'tile_k' (its axes: tile_m, stages); did you mean 'tile_m'?");
  fixture_remove(folder);
}

static void limits_are_those_of_the_target(void **state) {
  (void)state;
  static const struct {
    const char *resources, *reason;
  } cases[] = {
      {"shared_bytes = 0, threads = 2048, registers = 8", "threads: needs 2048, sm_80 allows 1024"},
      {"shared_bytes = 0, threads = 32, registers = 256", "registers: needs 256 per thread, sm_80 allows 255"},
      {"shared_bytes = 0, threads = 1024, registers = 65", "registers: needs 66560 per SM, sm_80 allows 65536"},
      {"shared_bytes = 0, threads = 1024, registers = 8, blocks = 3", "threads: needs 3072 per SM, sm_80 allows 2048"},
      {"shared_bytes = 90000, threads = 32, registers = 8, blocks = 2",
       "shared memory: needs 182048 bytes per SM, sm_80 allows 167936"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    text fields = {0};
    text_printf(&fields,
                "supports = function() return true end, axes = {}, defaults = function() return {} end,\n"
                "resources = function() return {%s} end,\n",
                cases[n].resources);
    char *folder = fixture_toy(fields.bytes, "x\n");
    gen_error error;
    assert_null(fixture_render_toy(folder, &error));
    assert_int_equal(error.status, GEN_BAD_SCHEDULE);
    if (!strstr(error.message, cases[n].reason))
      fail_msg("%s gave %s", cases[n].resources, error.message);
    text_free(&fields);
    fixture_remove(folder);
  }
}

static void family_mistakes_are_named(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {TOY_PLAIN "suports = 1,", "kernels/toy.lua: unknown field 'suports'; did you mean 'supports'?"},
      {"", "kernels/toy.lua: supports must be a function"},
      {TOY_PLAIN "name = 'other',", "kernels/toy.lua: name 'other' must be the file's name"},
      {TOY_PLAIN "supports = function() return false end,",
       "kernels/toy.lua: supports returned false without a reason"},
      {TOY_PLAIN "supports = function() end,", "kernels/toy.lua: supports must return true"},
      {TOY_PLAIN "axes = {{name = 'a', values = {}, meaning = 'm'}},", "kernels/toy.lua: axes[1]: values is empty"},
      {TOY_PLAIN "axes = {{name = 'a', values = {1.5}, meaning = 'm'}},", "axes[1]: values[1] must be an integer"},
      {TOY_PLAIN "axes = {{name = 'a', values = {1}, meaning = 'm'}},",
       "kernels/toy.lua: defaults: a must be an integer"},
      {TOY_PLAIN "axes = {{name = 'a', values = {1}, meaning = 'm'}}, defaults = function() return {a = 2} end,",
       "kernels/toy.lua: defaults: a = 2 is not among the axis' values"},
      {TOY_PLAIN "resources = function() return {threads = 1, registers = 1} end,",
       "resources: shared_bytes must be an integer"},
      {TOY_PLAIN "resources = function() return nil end,", "kernels/toy.lua: resources must be a table"},
      {TOY_PLAIN "defaults = function(v) return v.undefined end,",
       "kernels/toy.lua:7: variant has no field 'undefined'"},
      {TOY_PLAIN "kernel = function() return {launches = {}, params = {}, regions = {}, aligned16 = true} end,",
       "launches is empty"},
      {TOY_PLAIN
       "kernel = function() return {launches = {{entry = 'e', block = 32, shared_bytes = 0, grid = {{'lenq'}}}},"
       "params = {}, regions = {}, aligned16 = true} end,",
       "kernels/toy.lua: kernel: launches[1]: grid[1] must be {size} or {size, per}"},
      {TOY_PLAIN
       "kernel = function() return {launches = {{entry = 'e', block = 32, shared_bytes = 0, grid = {{'len_q', 0}}}},"
       "params = {}, regions = {}, aligned16 = true} end,",
       "the divisor must be a positive integer"},
      {TOY_PLAIN "kernel = function() return {launches = {{entry = 'e', block = 4096, shared_bytes = 0, grid = {}}},"
                 "params = {}, regions = {}, aligned16 = true} end,",
       "kernels/toy.lua: launch of e exceeds sm_80"},
      {TOY_PLAIN "kernel = function() return {launches = {{entry = 'e', block = 32, shared_bytes = 0, grid = {}}},"
                 "params = {{name = 'w', type = 'pointer', ctype = 'float *', source = 'workspace.w'}}, regions = {}, "
                 "aligned16 = true} end,",
       "field 'w' points to 'workspace.w', which is no region"},
      {TOY_PLAIN "kernel = function() return {launches = {{entry = 'e', block = 32, shared_bytes = 0, grid = {}}},"
                 "params = {{name = 'w', type = 'f64', source = 'q'}}, regions = {}, aligned16 = true} end,",
       "params[1]: type must be pointer, i64, i32, f32, tensor_map or states, not 'f64'"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    char *folder = fixture_toy(cases[n][0], "x\n");
    gen_error error;
    assert_null(fixture_render_toy(folder, &error));
    assert_int_equal(error.status, GEN_TEMPLATE);
    if (!strstr(error.message, cases[n][1]))
      fail_msg("%s\n gave     %s\n expected %s", cases[n][0], error.message, cases[n][1]);
    fixture_remove(folder);
  }
}

static void dispatch_keeps_every_reason(void **state) {
  (void)state;
  char *folder =
      fixture_toy(TOY_PLAIN "supports = function(v) return false, 'attention.softcap: not here' end,", "x\n");
  spec *s = fixture_spec(FIXTURE_SPEC);
  gen_request request = {.template_path = folder, .phase = "prefill"};
  gen_choice choices[GEN_MAX_FAMILIES];
  int count = 0;
  gen_error error = {0};
  assert_int_equal(gen_choices(s, &request, choices, &count, &error), GEN_OK);
  assert_true(count >= 2);
  assert_string_equal(choices[0].family, "toy"); /* order 1 */
  assert_false(choices[0].supported);
  assert_string_equal(choices[0].reason, "attention.softcap: not here");
  for (int n = 1; n < count; n++)
    assert_true(choices[n].supported == (choices[n].reason[0] == 0));

  gen_kernel *k;
  assert_int_equal(gen_render(s, &request, &k, &error), GEN_OK); /* the next family does it */
  assert_string_not_equal(k->manifest.family, "toy");
  gen_kernel_free(k);
  request.family = "toy";
  assert_int_equal(gen_render(s, &request, &k, &error), GEN_UNSUPPORTED);
  assert_string_equal(error.message, "toy: attention.softcap: not here");
  request.family = "to";
  assert_int_equal(gen_render(s, &request, &k, &error), GEN_UNSUPPORTED);
  assert_non_null(strstr(error.message, "no family 'to' (toy, "));
  request.family = NULL;
  request.phase = "backward";
  assert_int_equal(gen_render(s, &request, &k, &error), GEN_UNSUPPORTED);
  assert_non_null(strstr(error.message, "no kernel family can do 't': toy: has no kernel for phase backward; "));
  request.phase = NULL;
  request.template_path = "/nonexistent/folder";
  assert_int_equal(gen_render(s, &request, &k, &error), GEN_IO);
  assert_non_null(strstr(error.message, "/nonexistent/folder"));
  spec_free(s);
  fixture_remove(folder);
}

/* ---- robustness ---- */

static long allocations_left;

static void *failing_realloc(void *block, size_t size) {
  return allocations_left-- > 0 ? realloc(block, size) : NULL;
}
static void *failing_malloc(size_t size) {
  return allocations_left-- > 0 ? malloc(size) : NULL;
}

/* Every single allocation of Lua and of the arenas fails once: a typed error, nothing leaked (ASan), no crash. */
static void out_of_memory_is_reported(void **state) {
  (void)state;
  char *folder =
      fixture_toy(TOY_AXES, "//% header()\n//% piece('a', function()\nint a;\n//% end)\n//% pieces()\n$(1) a\n");
  spec *s = fixture_spec(FIXTURE_SPEC);
  gen_request request = {.family = "toy", .template_path = folder};
  gen_status status = GEN_NO_MEMORY;
  long n = 0;
  for (; status != GEN_OK; n += n < 400 ? 1 : n / 50) {
    gen_error error = {0};
    gen_kernel *k;
    host_realloc = failing_realloc;
    void *(*arena_before)(size_t) = arena_malloc;
    arena_malloc = failing_malloc;
    allocations_left = n;
    status = gen_render(s, &request, &k, &error);
    host_realloc = realloc;
    arena_malloc = arena_before;
    gen_kernel_free(k);
    if (status != GEN_OK && status != GEN_NO_MEMORY)
      fail_msg("allocation %ld failed: status %d, %s", n, status, error.message);
    assert_true(n < 1000000);
  }
  assert_true(n > 400);
  spec_free(s);
  fixture_remove(folder);
}

/* Mutated template text never crashes the engine; it renders or fails with a message that starts with a place. */
static void damaged_templates_are_safe(void **state) {
  (void)state;
  static const char kernel[] =
      "//% header()\n//% local n = 3\n//% for i = 1, n do\nint a$(i) = $(i * 2); // $(variant.name)\n"
      "//% end\n//% piece('part', function()\nint part = $(f32(0.5));\n//% end)\n//% pieces()\n"
      "  //% include('parts/sub.inc')\npart;\n";
  char *folder = fixture_toy(TOY_PLAIN, kernel);
  fixture_write(folder, "parts/sub.inc", "sub\n");
  spec *s = fixture_spec(FIXTURE_SPEC);
  gen_request request = {.family = "toy", .template_path = folder};
  for (uint64_t round = 0; round < 300; round++) {
    uint64_t seed = round;
    char damaged[sizeof kernel];
    memcpy(damaged, kernel, sizeof kernel);
    for (int edits = 0; edits < 2; edits++)
      damaged[fixture_random(&seed) % (sizeof kernel - 1)] = "()$/%\n 1a'\"="[fixture_random(&seed) % 12];
    fixture_write(folder, "kernels/toy.cu", damaged);
    gen_error error = {0};
    gen_kernel *k;
    gen_status status = gen_render(s, &request, &k, &error);
    if (status != GEN_OK && (status != GEN_TEMPLATE || strncmp(error.message, "kernels/toy.cu:", 15) != 0))
      fail_msg("seed %llu: status %d, '%s' from\n%s", (unsigned long long)round, status, error.message, damaged);
    if (status == GEN_OK)
      assert_true(k->nlines > 0 && k->source.bytes[k->source.size - 1] == '\n');
    gen_kernel_free(k);
  }
  spec_free(s);
  fixture_remove(folder);
}

/* The same bytes in other processes with other addresses, the last one in a locale with decimal commas. */
static void other_processes_render_the_same_bytes(void **state) {
  (void)state;
  char *folder =
      fixture_toy(TOY_AXES, "//% header()\n//% for k, v in pairs(arch) do\n$(k) $(v)\n//% end\n"
                            "//% local t = {}\n//% for c in ('the quick brown fox'):gmatch('%a+') do t[c] = #c end\n"
                            "//% for k, v in pairs(t) do\n$(k) $(v) $(tostring(v / 2))\n//% end\n");
  gen_error error;
  gen_kernel *k = fixture_render_toy(folder, &error);
  if (!k)
    fail_msg("%s", error.message);
  for (int round = 0; round < 4; round++) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
      char path[32];
      snprintf(path, sizeof path, "%d", pipes[1]);
      setenv("QKV_TEST_RENDER", folder, 1);
      setenv("QKV_TEST_PIPE", path, 1);
      if (round == 3)
        setenv("QKV_TEST_COMMA", "1", 1);
      execl("/proc/self/exe", "test_gen", (char *)NULL);
      _exit(9);
    }
    close(pipes[1]);
    text other = {0};
    char buffer[4096];
    for (ssize_t n; (n = read(pipes[0], buffer, sizeof buffer)) > 0;)
      text_add(&other, buffer, (size_t)n);
    close(pipes[0]);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(other.size, k->source.size);
    assert_memory_equal(other.bytes, k->source.bytes, other.size);
    text_free(&other);
  }
  gen_kernel_free(k);
  fixture_remove(folder);
}

static int render_for_parent(const char *folder) {
  gen_error error;
  if (getenv("QKV_TEST_COMMA") && !enter_comma_locale())
    fprintf(stderr, "no locale with decimal commas here\n");
  gen_kernel *k = fixture_render_toy(folder, &error);
  int fd = atoi(getenv("QKV_TEST_PIPE"));
  bool good = k && write(fd, k->source.bytes, k->source.size) == (ssize_t)k->source.size;
  gen_kernel_free(k);
  return good ? 0 : 1;
}

static void masks_are_explained(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"true", "form: all"},
      {"false", "form: none"},
      {"causal and q - k < 1024", "first key: q - 1023 (rises with q)\nkey after the last: q + 1 (rises with q)\n"},
      {"(q + k) % 3 == 0", "form: elements"},
      {"causal and (q - k < 64 or k < 4)", "row: from 0 to before min(min(4, len_k), q + 1)\nrow: from"},
      {"q - k * k > 3", "k * k - q + 4 <= 0 keeps rows from being intervals\n"},
      {"(q + k) % 3 == 0", "known: no tile can be decided\n"},
      {"abs(q - k) <= 64 and (q - k) % 4 == 0", "within a residue: abs(q - k) - 16 <= 0\nform: rows"},
      {"causal", "empty rows: every row sees a key when len_q <= len_k and there are keys\n"},
      {"k * 4 <= q", "overflow: k * 4 may leave 32 bits"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    text source = {0}, out = {0};
    text_printf(&source, "qkvc: 1\nname: t\nattention: {heads: 4, dim: 64, dtype: f16, mask: '%s'}\n", cases[n][0]);
    spec *s = fixture_spec(source.bytes);
    gen_explain_mask(s, &out);
    if (!strstr(out.bytes, cases[n][1]))
      fail_msg("mask %s is explained as\n%s", cases[n][0], out.bytes);
    long allowed = 0;
    for (text partial = {.failed = true}; partial.failed; allowed++) { /* until the memory suffices */
      text_free(&partial);
      arena_malloc = failing_malloc;
      allocations_left = allowed;
      gen_explain_mask(s, &partial);
      arena_malloc = malloc;
      if (!partial.failed) {
        assert_string_equal(partial.bytes, out.bytes);
        text_free(&partial);
      }
    }
    assert_true(allowed > 1);
    spec_free(s);
    text_free(&source);
    text_free(&out);
  }
}

static void scores_are_explained(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"dim: 64", "score: s\nslope in s: class 0 (free of s): 1.0\n"},
      {"dim: 64, softcap: 30",
       "score: s, s capped at 30\nslope in s: class 1 (a function of the score y): 1.0 - y / 30.0 * (y / 30.0)\n"},
      {"dim: 64, score: 's * s'", "score: s * s\nslope in s: class 2 (needs s): s + s\n"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    text source = {0}, out = {0};
    text_printf(&source, "qkvc: 1\nname: t\nattention: {heads: 4, dtype: f16, %s}\n", cases[n][0]);
    spec *s = fixture_spec(source.bytes);
    gen_explain_score(s, &out);
    assert_string_equal(out.bytes, cases[n][1]);
    text_clear(&out);
    arena_malloc = failing_malloc;
    allocations_left = 0;
    gen_explain_score(s, &out);
    arena_malloc = malloc;
    assert_true(out.failed);
    spec_free(s);
    text_free(&source);
    text_free(&out);
  }
}

int main(void) {
  if (getenv("QKV_TEST_RENDER"))
    return render_for_parent(getenv("QKV_TEST_RENDER"));
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_print_as_written),
      cmocka_unit_test(bad_values_are_named),
      cmocka_unit_test(expressions_print_as_cuda),
      cmocka_unit_test(header_tells_spec_schedule_and_roles),
      cmocka_unit_test(includes_keep_columns_and_origins),
      cmocka_unit_test(libraries_load_once),
      cmocka_unit_test(only_pieces_in_use_are_emitted),
      cmocka_unit_test(primitives_are_guarded),
      cmocka_unit_test(piece_mistakes_are_named),
      cmocka_unit_test(schedules_resolve_in_order),
      cmocka_unit_test(limits_are_those_of_the_target),
      cmocka_unit_test(family_mistakes_are_named),
      cmocka_unit_test(dispatch_keeps_every_reason),
      cmocka_unit_test(out_of_memory_is_reported),
      cmocka_unit_test(damaged_templates_are_safe),
      cmocka_unit_test(other_processes_render_the_same_bytes),
      cmocka_unit_test(masks_are_explained),
      cmocka_unit_test(scores_are_explained),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
