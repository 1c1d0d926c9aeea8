/* test_family.c: which targets a family says it is for, and what it leaves to others. */
#include "gen_fixture.h"

/* What the toy family answers for a target, whose table begins with `range`. "": it can. */
static void ask(const char *range, const char *target, char reason[256]) {
  char *folder = fixture_folder();
  text table = {0};
  text_printf(
      &table,
      "return {name = 'toy', summary = 'a toy', order = 1, %s, phases = {'prefill'}, axes = {},\n"
      "supports = function() return true end, defaults = function() return {} end,\n"
      "resources = function() return {shared_bytes = 0, threads = 32, registers = 8} end,\n"
      "kernel = function() return {launches = {{entry = 'toy', block = 32, shared_bytes = 0, grid = {}}}, params "
      "= {}, regions = {}, aligned16 = false} end}\n",
      range);
  fixture_write(folder, "kernels/toy.lua", table.bytes);
  fixture_write(folder, "kernels/toy.cu", "int toy;\n");
  spec *s = fixture_spec(FIXTURE_SPEC);
  gen_request request = {.arch = arch_find(target), .template_path = folder};
  gen_choice choices[GEN_MAX_FAMILIES];
  gen_error error = {0};
  int count = 0, at = 0;
  assert_non_null(request.arch);
  if (gen_choices(s, &request, choices, &count, &error) != GEN_OK) {
    snprintf(reason, 256, "!%.250s", error.message);
  } else {
    while (at < count && strcmp(choices[at].family, "toy") != 0)
      at++;
    assert_true(at < count);
    assert_true(choices[at].supported == (choices[at].reason[0] == 0));
    memcpy(reason, choices[at].reason, 256);
    /* A family that is asked for by name says the same. */
    request.family = "toy";
    gen_kernel *k = NULL;
    gen_status status = gen_render(s, &request, &k, &error);
    assert_int_equal(status, choices[at].supported ? GEN_OK : GEN_UNSUPPORTED);
    if (status != GEN_OK)
      assert_non_null(strstr(error.message, reason));
    gen_kernel_free(k);
  }
  spec_free(s);
  text_free(&table);
  fixture_remove(folder);
}

static void targets_are_a_range(void **state) {
  (void)state;
  static const struct {
    const char *range, *target, *reason;
  } rows[] = {
      {"min_arch = 90", "sm_80", "needs sm_90 or newer, the target is sm_80"},
      {"min_arch = 90", "sm_90a", ""},
      {"min_arch = 90", "sm_120", ""},
      {"min_arch = 90, max_arch = 90", "sm_89", "needs sm_90 or newer, the target is sm_89"},
      {"min_arch = 90, max_arch = 90", "sm_90a", ""},
      {"min_arch = 90, max_arch = 90", "sm_100a", "needs sm_90 or older, the target is sm_100a"},
      {"min_arch = 80, max_arch = 89", "sm_89", ""},
      {"min_arch = 80, max_arch = 89", "sm_90a", "needs sm_89 or older, the target is sm_90a"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char reason[256];
    ask(rows[n].range, rows[n].target, reason);
    if (strcmp(reason, rows[n].reason) != 0)
      fail_msg("%s, %s: '%s', should be '%s'", rows[n].range, rows[n].target, reason, rows[n].reason);
  }
}

/* The instructions of Hopper's family are those of sm_90a alone. */
static void the_hopper_family_is_for_hopper(void **state) {
  (void)state;
  int archs;
  const arch *table = arch_table(&archs);
  spec *s = fixture_spec(FIXTURE_SPEC);
  for (int a = 0; a < archs; a++) {
    gen_request request = {.arch = &table[a]};
    gen_choice choices[GEN_MAX_FAMILIES];
    int count = 0;
    assert_int_equal(gen_choices(s, &request, choices, &count, NULL), GEN_OK);
    for (int n = 0; n < count; n++)
      if (strcmp(choices[n].family, "attention_forward_sm90") == 0 &&
          choices[n].supported != (strcmp(table[a].name, "sm_90a") == 0))
        fail_msg("%s: %s", table[a].name, choices[n].supported ? "supported" : choices[n].reason);
  }
  spec_free(s);
}

/* The family that a request comes to. */
static void expect_family(const spec *s, const gen_request *request, const char *expected) {
  gen_kernel *k = NULL;
  gen_error error = {0};
  if (gen_render(s, request, &k, &error) != GEN_OK)
    fail_msg("%s", error.message);
  if (strcmp(k->manifest.family, expected) != 0)
    fail_msg("%s, len_q %d, family %s: %s, should be %s", request->arch->name, (int)request->len_q,
             request->family ? request->family : "any", k->manifest.family, expected);
  gen_kernel_free(k);
}

/* A family that yields comes after those that do not, unless it is named or nobody else can. */
static void a_family_may_yield(void **state) {
  (void)state;
  char *folder = fixture_folder();
  fixture_write(folder, "kernels/toy.lua",
                "return {name = 'toy', summary = 'a toy', order = 1, min_arch = 80, phases = {'decode'}, axes = {},\n"
                "supports = function() return true end, yields = function(v, request) return request.len_q < 4 end,\n"
                "defaults = function() return {} end,\n"
                "resources = function() return {shared_bytes = 0, threads = 32, registers = 8} end,\n"
                "kernel = function() return {launches = {{entry = 'toy', block = 32, shared_bytes = 0, grid = {}}}, "
                "params = {}, regions = {}, aligned16 = false} end}\n");
  fixture_write(folder, "kernels/toy.cu", "int toy;\n");
  spec *s = fixture_spec(FIXTURE_SPEC);
  spec *holes = fixture_spec("qkvc: 1\nname: holes\n"
                             "attention: {heads: 2, dim: 16, mask: 'causal and (q - k) % 4 == 0'}\n");
  gen_request request = {.arch = arch_find("sm_80"), .template_path = folder, .phase = "decode", .len_q = 3};
  expect_family(s, &request, "attention_decode_sm80");
  request.len_q = 4;
  expect_family(s, &request, "toy");
  request.family = "toy", request.len_q = 3;
  expect_family(s, &request, "toy");
  request.family = NULL, request.dedicated = true; /* of those for decode alone no other can */
  expect_family(holes, &request, "toy");
  spec_free(s);
  spec_free(holes);
  fixture_remove(folder);
}

/* On Hopper 16-bit numbers go to attention_decode_sm90, but for a single row, and few rows from pages of one key. */
static void rows_decide_between_families_of_decode(void **state) {
  (void)state;
  static const struct {
    int heads;
    const char *target;
    int len_q;
    const char *family;
    int page; /* 0: dense */
  } rows[] = {
      {1, "sm_90a", 1, "attention_decode_simt", 0},  {1, "sm_90a", 2, "attention_decode_sm90", 0},
      {1, "sm_90a", 0, "attention_decode_sm90", 0},  {1, "sm_80", 1, "attention_decode_simt", 0},
      {8, "sm_90a", 1, "attention_decode_sm90", 0},  {71, "sm_90a", 1, "attention_decode_sm90", 0},
      {71, "sm_90a", 0, "attention_decode_sm90", 0}, {71, "sm_80", 1, "attention_decode_sm80", 0},
      {71, "sm_120", 1, "attention_decode_sm80", 0}, {8, "sm_90a", 1, "attention_decode_sm80", 1},
      {8, "sm_90a", 2, "attention_decode_sm80", 1},  {8, "sm_90a", 3, "attention_decode_sm90", 1},
      {8, "sm_90a", 1, "attention_decode_sm90", 16},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char source[192];
    int used = snprintf(source, sizeof source, "qkvc: 1\nname: t\nattention: {heads: {q: %d, kv: 1}, dim: 64}\n",
                        rows[n].heads);
    if (rows[n].page)
      snprintf(source + used, sizeof source - (size_t)used, "layout: {kv: {paged: {page: %d}}}\n", rows[n].page);
    spec *s = fixture_spec(source);
    gen_request request = {.arch = arch_find(rows[n].target), .phase = "decode", .len_q = rows[n].len_q};
    expect_family(s, &request, rows[n].family);
    if (strcmp(rows[n].target, "sm_90a") == 0)
      for (int sm = 80; sm <= 90; sm += 10) {
        char name[32];
        snprintf(name, sizeof name, "attention_decode_sm%d", sm);
        request.family = name;
        expect_family(s, &request, name);
      }
    spec_free(s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(targets_are_a_range),
      cmocka_unit_test(the_hopper_family_is_for_hopper),
      cmocka_unit_test(a_family_may_yield),
      cmocka_unit_test(rows_decide_between_families_of_decode),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
