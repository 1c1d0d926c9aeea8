/* Mutants of attention_forward_sm90 where it copies K and V row by row from pages: its generated source with one
 * textual edit each, which the emulator must name by its kind. The sources without an edit must be clean under the same
 * seeds. */
#include "emu_mutants.h"

enum { HEADS = 3, LEN_Q = 230, LEN_K = 150, DIM = 40, PAGE = 3, PAGES = LEN_K / PAGE, GRID = 1 };

static const char spec_text[] = "qkvc: 1\nname: mutant\n"
                                "attention: {heads: 3, dim: 40, dtype: bf16, mask: \"%s\"}\n"
                                "layout: {kv: {paged: {page: 3}}}\n";
/* One range of tiles of keys; two, which the producer walks through. */
static const char causal[] = "causal", two_ranges[] = "causal and (q - k < 20 or k < 4)";

/* ---- The mutants ---- */

#define TWO "warpgroups=2,tile_n=32,stages=2,order=1,rescale=0,q_buffers=1,carry=0,o_buffer=1,store=1,scheduler=1"
#define THREE "warpgroups=1,tile_n=32,stages=3,order=0,rescale=0,q_buffers=1,carry=0,o_buffer=0,store=1,scheduler=2"

static const struct kind {
  const char *mask, *schedule;
} kinds[] = {{causal, TWO}, {causal, THREE}, {two_ranges, TWO}, {two_ranges, THREE}};

#define UNLANDED "race|missing proxy fence|pending copy|uninitialised shared memory"

static const mutant mutants[] = {
    {"no proxy fence behind the copies", TWO, "fence_proxy_async(); // wgmma reads what cp.async wrote", "",
     "missing proxy fence", "wgmma"},
    {"a lane tells for lanes it has not met", TWO, "// wgmma reads what cp.async wrote\n  warp_sync();",
     "// wgmma reads what cp.async wrote", "race|missing proxy fence|uninitialised shared memory", ""},
    {"copies are told of before they have landed", TWO, "cp_async_wait_1();", "cp_async_wait_2();", UNLANDED, ""},
    {"the copies of a tile are no group", TWO, "  cp_async_commit();\n", "", UNLANDED, ""},
    {"copies are not waited for", THREE, "  cp_async_wait_1();\n", "", UNLANDED, ""},
    {"copies on their way are told of", TWO, "untold != 0) mbar_arrive(untold);", "full != 0) mbar_arrive(full);",
     UNLANDED, ""},
    {"the last copies are not told of", TWO, "  close_copies(untold, 0, lane);\n}", "}", "deadlock|pending copy", ""},
    {"a work's last copies are left untold while Q's place is waited for", THREE,
     "if (tile < tiles.begin) close_copies(untold, 0, lane);", "", "deadlock", ""},
    {"the producer does not wait for places of K", TWO,
     "mbar_wait(shared + K_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);", "", "race|bad mbarrier|deadlock", ""},
    {"the producer does not wait for places of V", TWO,
     "mbar_wait(shared + V_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);", "", "race|bad mbarrier|deadlock", ""},
    {"a warp too few fills a place of K", TWO, "mbar_init(shared + K_FULL + 8 * n, 4);",
     "mbar_init(shared + K_FULL + 8 * n, 3);", "race|bad mbarrier|missing proxy fence|uninitialised shared memory", ""},
    {"a warp too many is expected of V", TWO, "mbar_init(shared + V_FULL + 8 * n, 4);",
     "mbar_init(shared + V_FULL + 8 * n, 5);", "deadlock", "of 5 arrivals"},
    {"a warp too few produces", TWO, "if (threadIdx.x < 128) produce(", "if (threadIdx.x < 96) produce(", "deadlock",
     "of 4 arrivals"},
    {"nobody waits for K", TWO, "wait_for(c, K_FULL, c.keys);", "", "race|uninitialised shared memory|pending copy",
     ""},
    {"nobody waits for V", TWO, "wait_for(c, V_FULL, c.values);", "", "race|uninitialised shared memory|pending copy",
     ""},
    {"K is given back before its product is done", TWO, "wgmma_wait_1();\n  take_scores(c);",
     "take_scores(c);\n  wgmma_wait_1();", "race|accumulator in flight", ""},
    {"rows of two warps at one place", TWO, "line = (warp * OWN_KEYS + first)", "line = (warp / 2 * OWN_KEYS + first)",
     "race|pending copy|uninitialised shared memory", ""},
    {"what K has beyond its dimensions is not filled", TWO, "cp_async_16_zfill(at + panel * K_PANEL",
     "if (chunk < 5) cp_async_16_zfill(at + panel * K_PANEL", "uninitialised shared memory", "wgmma"},
    {"a page is looked up for rows that see no key", THREE,
     "tiles.begin < tiles.end ? own_page(view, tiles.end - 1, warp, lane) : 0",
     "own_page(view, tiles.end - 1, warp, lane)", "out of bounds", ""},
    {"the page of a key behind the end is looked up", TWO, "return k < view.len_k ? key_page(view, k) : 0;",
     "return key_page(view, k);", "out of bounds", ""},
    {"more registers than the block has", TWO, "registers_decrease_56();", "registers_decrease_64();",
     "register budget", ""},
};

/* Of the words that the producer tells of tiles, with two ranges of keys. */
static const mutant told_mutants[] = {
    {"copies alone fill places of K", TWO, "mbar_init(shared + K_FULL + 8 * n, 5);",
     "mbar_init(shared + K_FULL + 8 * n, 4);", "race|bad mbarrier|deadlock|missing proxy fence", ""},
    {"a work's last copies are left untold while Q's place is waited for", THREE,
     "if (!more) close_copies(untold, 0, lane);", "", "deadlock", ""},
    {"every warp tells of tiles", TWO, "if (threadIdx.x == 0 && !first) tell(", "if (lane == 0 && !first) tell(",
     "race|bad mbarrier|deadlock", ""},
};

/* ---- Generating and running ---- */

static gen_kernel *generate(const char *mask, const char *schedule) {
  arena *memory = arena_new();
  diags d;
  spec *s = NULL;
  gen_kernel *k = NULL;
  gen_error error = {0};
  char yaml[sizeof spec_text + sizeof two_ranges];
  snprintf(yaml, sizeof yaml, spec_text, mask);
  diags_init(&d, memory, "<test>", yaml, strlen(yaml));
  assert_true(spec_parse(yaml, strlen(yaml), &d, &s));
  gen_request request = {.arch = arch_find("sm_90a"), .family = "attention_forward_sm90", .schedule = schedule};
  if (gen_render(s, &request, &k, &error) != GEN_OK)
    fail_msg("%s: %s", schedule, error.message);
  spec_free(s);
  arena_free(memory);
  return k;
}

static uint16_t queries[LEN_Q * HEADS * DIM], keys[LEN_K * HEADS * DIM];
static int page_table[PAGES];

static int setup(void **state) {
  (void)state;
  uint64_t random = 1;
  for (int n = 0; n < LEN_Q * HEADS * DIM; n++)
    queries[n] = (uint16_t)(0x3f00 | (fixture_random(&random) & 0x80ff)); /* 0.5 to 2, either sign */
  for (int n = 0; n < LEN_K * HEADS * DIM; n++)
    keys[n] = (uint16_t)(0x3f00 | (fixture_random(&random) & 0x80ff));
  for (int n = 0; n < PAGES; n++)
    page_table[n] = n * 7 % PAGES;
  return 0;
}

/* What a parameter has, by its source. */
typedef struct value {
  const char *source;
  void *pointer;
  int64_t number;
} value;

/* A map of q or o as the runtime makes it: columns, rows, heads, batch. */
static void fill_map(const fixture *f, void *base, const char *shape, unsigned char *to) {
  device_tensor_map map = {.base = base,
                           .element_bytes = 2,
                           .rank = 4,
                           .extent = {DIM, LEN_Q, HEADS, 1},
                           .stride_bytes = {2 * HEADS * DIM, 2 * DIM, 16},
                           .box = {1, 1, 1, 1}};
  assert_int_equal(sscanf(shape, "map.%d.%d.%d", &map.box[0], &map.box[1], &map.swizzle), 3);
  assert_int_equal(device_emu.tensor_map(f->d, &map, to), QKV_OK);
}

static void fill_params(const fixture *f, const manifest *m, const value *values, size_t count, unsigned char *params) {
  for (int n = 0; n < m->nfields; n++) {
    const manifest_field *field = &m->fields[n];
    const bool is_map = field->type == FIELD_TENSOR_MAP; /* its source: the tensor's letter, then what it looks like */
    size_t v = 0;
    while (v < count && (is_map ? values[v].source[0] != field->source[0] || values[v].source[1] != '\0'
                                : strcmp(field->source, values[v].source) != 0))
      v++;
    if (v == count)
      fail_msg("no value for the parameter %s", field->source);
    const void *from = field->type == FIELD_POINTER ? (const void *)&values[v].pointer : &values[v].number;
    if (is_map)
      fill_map(f, values[v].pointer, field->source + 2, params + field->offset);
    else
      memcpy(params + field->offset, from, (size_t)field_type_size(field->type));
  }
}

/* Runs the compiled source once. */
static qkv_status run(const manifest *m, uint64_t seed) {
  static _Alignas(64) unsigned char params[MANIFEST_MAX_PARAMS];
  static const int zero, length = LEN_K;
  const manifest_launch *l = &m->launches[0];
  fixture f = fixture_open(seed);
  void *memory[] = {fixture_upload(&f, queries, sizeof queries), fixture_upload(&f, keys, sizeof keys),
                    fixture_upload(&f, keys, sizeof keys),       fixture_upload(&f, NULL, sizeof queries),
                    fixture_upload(&f, &length, sizeof length),  fixture_upload(&f, page_table, sizeof page_table),
                    fixture_upload(&f, &zero, sizeof zero)};
  const value values[] = {
      {"q", memory[0], 0},
      {"k", memory[1], 0},
      {"v", memory[2], 0},
      {"o", memory[3], 0},
      {"seqlens_k", memory[4], 0},
      {"page_table", memory[5], 0},
      {"workspace.tickets", memory[6], 0},
      {"page_table.stride.batch", NULL, PAGES},
      {"k.stride.page", NULL, PAGE * HEADS * DIM},
      {"k.stride.token", NULL, HEADS * DIM},
      {"k.stride.head", NULL, DIM},
      {"v.stride.page", NULL, PAGE * HEADS * DIM},
      {"v.stride.token", NULL, HEADS * DIM},
      {"v.stride.head", NULL, DIM},
      {"batch", NULL, 1},
      {"len_q", NULL, LEN_Q},
      {"len_k", NULL, LEN_K},
  };
  fill_params(&f, m, values, sizeof values / sizeof *values, params);
  device_kernel *k;
  assert_int_equal(device_emu.kernel(f.d, f.m, l->entry, l->block, l->shared_bytes, 1, &k), QKV_OK);
  qkv_status status = device_emu.launch(
      f.d, k, &(device_launch){GRID, l->block, l->shared_bytes, params, (size_t)m->params_size, 1, l->early == 1},
      NULL);
  for (size_t n = 0; n < sizeof memory / sizeof *memory; n++)
    device_emu.free(f.d, memory[n]);
  fixture_close(&f);
  return status;
}

static const mutant_harness harness = {generate, run, 4};

/* ---- Tests ---- */

static void test_unchanged_sources_are_clean(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++)
    mutants_check_clean(&harness, kinds[n].mask, kinds[n].schedule);
}

static void test_mutants_are_named(void **state) {
  (void)state;
  mutants_check(&harness, mutants, sizeof mutants / sizeof *mutants, causal);
}

static void test_mutants_of_told_tiles_are_named(void **state) {
  (void)state;
  mutants_check(&harness, told_mutants, sizeof told_mutants / sizeof *told_mutants, two_ranges);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unchanged_sources_are_clean),
      cmocka_unit_test(test_mutants_are_named),
      cmocka_unit_test(test_mutants_of_told_tiles_are_named),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
