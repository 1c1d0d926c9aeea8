/* Mutants of attention_decode_sm90: its generated source with one textual edit each, which the emulator must name by its
 * kind. The sources without an edit must be clean under the same seeds. */
#include "emu_mutants.h"

enum { HEADS = 5, LEN_Q = 2, LEN_K = 450, DIM = 40, GRID = 2 };

static const char spec_text[] = "qkvc: 1\nname: mutant\n"
                                "attention: {heads: {q: 5, kv: 1}, dim: 40, dtype: bf16, mask: \"%s\"}\n";
static const char causal[] = "causal";

/* ---- The mutants ---- */

#define TWO "tile_m=16,tile_n=64,warpgroups=2,stages=2"
#define CLUSTER "tile_m=8,tile_n=64,warpgroups=2,stages=2,merge=2" /* of two blocks, which has two works */
#define COMBINE TWO ",merge=1"
#define ONE "tile_m=24,tile_n=128,warpgroups=1,stages=3,slack=0"

static const mutant mutants[] = {
    {"nobody waits for K", TWO, "  mbar_wait(full, parity);\n", "", "race|pending copy|uninitialised shared memory", ""},
    {"nobody waits for V", TWO, "  mbar_wait(full + 8, parity);\n", "",
     "race|pending copy|uninitialised shared memory", ""},
    {"the consumers' parity is wrong", TWO, "parity = number / STAGES % 2", "parity = number / STAGES % 2 ^ 1",
     "race|deadlock|bad mbarrier|uninitialised shared memory", ""},
    {"K is given back before its product is done", TWO,
     "wgmma_wait_0();\n"
     "  keep(scores);\n"
     "  if (threadIdx.x % 128 == 0) mbar_arrive(empty);",
     "if (threadIdx.x % 128 == 0) mbar_arrive(empty);\n"
     "  wgmma_wait_0();\n"
     "  keep(scores);",
     "race", ""},
    {"V is given back before its product is done", TWO,
     "wgmma_wait_0();\n"
     "  keep(output);\n"
     "  if (threadIdx.x % 128 == 0) mbar_arrive(empty + 8);",
     "if (threadIdx.x % 128 == 0) mbar_arrive(empty + 8);\n"
     "  wgmma_wait_0();\n"
     "  keep(output);",
     "race", ""},
    {"V's place is given back as K's", TWO, "mbar_arrive(empty + 8);", "mbar_arrive(empty);",
     "race|deadlock|bad mbarrier", ""},
    {"the producer does not wait for places", TWO,
     "mbar_wait(shared + EMPTY + 8 * filling.stage(), filling.parity() ^ 1);", "",
     "race|bad mbarrier|pending copy|deadlock", ""},
    {"the producer waits for the wrong phase", TWO, "filling.parity() ^ 1", "filling.parity()", "deadlock", ""},
    {"no proxy fence behind the copies", TWO, "fence_proxy_async(); // wgmma reads what cp.async wrote", "",
     "missing proxy fence", "wgmma"},
    {"a lane tells for lanes it has not met", TWO, "// wgmma reads what cp.async wrote\n  warp_sync();",
     "// wgmma reads what cp.async wrote", "race|missing proxy fence|uninitialised shared memory", ""},
    {"copies are told of before they have landed", TWO, "cp_async_wait_1();", "cp_async_wait_2();",
     "race|missing proxy fence|pending copy|uninitialised shared memory", ""},
    {"the last copies are not waited for", ONE, "cp_async_wait_0();", "",
     "race|missing proxy fence|pending copy|uninitialised shared memory", ""},
    {"nobody is told of the last copy", TWO, "if (untold > 0) {", "if (false) {", "deadlock|pending copy", ""},
    {"a warp too few fills a place", TWO, "mbar_init(shared + FULL + 8 * place, 4);",
     "mbar_init(shared + FULL + 8 * place, 3);", "race|bad mbarrier|missing proxy fence|uninitialised shared memory", ""},
    {"a warp too many is expected", TWO, "mbar_init(shared + FULL + 8 * place, 4);",
     "mbar_init(shared + FULL + 8 * place, 5);", "deadlock", "of 5 arrivals"},
    {"what K has beyond its dimensions stays as it was", TWO, "  zero_padding();\n", "", "uninitialised shared memory",
     "wgmma"},
    {"no proxy fence behind Q", TWO, "  fence_proxy_async();\n  bar_sync(ALL_CONSUMERS", "  bar_sync(ALL_CONSUMERS",
     "missing proxy fence", "wgmma"},
    {"no barrier behind Q", TWO, "  fence_proxy_async();\n  bar_sync(ALL_CONSUMERS, CONSUMERS);", "  fence_proxy_async();",
     "race|missing proxy fence|uninitialised shared memory", ""},
    {"no proxy fence behind P", TWO, "  }\n  fence_proxy_async();\n}", "  }\n}", "missing proxy fence", "wgmma"},
    {"no barrier behind P", TWO, "bar_sync(OWN_WARPGROUP + warpgroup, 128); // all of P is there", "",
     "race|missing proxy fence|uninitialised shared memory", ""},
    {"P of both warpgroups at one place", TWO, "shared + P_OFFSET + warpgroup * P_BYTES", "shared + P_OFFSET",
     "race|missing proxy fence", ""},
    {"each warp has its own way about references", ONE, "bar_or(OWN_WARPGROUP + warpgroup, 128, grows)",
     "vote_any(grows)", "race|deadlock|bad barrier|divergent collective", ""},
    {"maxima are read before they are there", TWO,
     "leave_maxima(maximum, maxima);\n"
     "  bar_sync(OWN_WARPGROUP + warpgroup, 128);",
     "leave_maxima(maximum, maxima);", "race|uninitialised shared memory", ""},
    {"references are written before all have read the old ones", TWO,
     "bar_sync(OWN_WARPGROUP + warpgroup, 128); // all have read the old references", "", "race", ""},
    {"references are read before they are there", TWO,
     "bar_sync(OWN_WARPGROUP + warpgroup, 128); // the new ones are there", "", "race", ""},
    {"sums are read before they are there", ONE,
     "+ own_row() + e] = sum;\n"
     "    }\n"
     "  bar_sync(OWN_WARPGROUP + warpgroup, 128);",
     "+ own_row() + e] = sum;\n"
     "    }",
     "race", ""},
    {"rows are merged before all have left them", TWO, "bar_sync(ALL_CONSUMERS, CONSUMERS); // all have left them", "",
     "race|uninitialised shared memory", ""},
    {"rows are left before others are merged", TWO,
     "bar_sync(ALL_CONSUMERS, CONSUMERS); // the panel and the states may be written again", "", "race", ""},
    {"no wgmma_fence before K Q", TWO, "  wgmma_fence();\n  multiply_key_query", "  multiply_key_query",
     "missing wgmma fence", ""},
    {"no wgmma_fence before V P", ONE, "  wgmma_fence();\n  multiply_value_probability", "  multiply_value_probability",
     "missing wgmma fence", ""},
    {"the scores are read before they are done", TWO, "  wgmma_wait_0();\n  keep(scores);", "  keep(scores);",
     "accumulator in flight", ""},
    {"the output is read before it is done", TWO, "  wgmma_wait_0();\n  keep(output);", "  keep(output);",
     "accumulator in flight|race", ""},
    {"V is read as if it were K-major", TWO, "_ss_at(&output[m][0][0], value_descriptor(",
     "_ss_at(&output[m][0][0], 2 + value_descriptor(", "bad matrix descriptor", ""},
    {"half the stride of eight rows", TWO, "matrix_descriptor(address, 16, 8 * 128, 1)",
     "matrix_descriptor(address, 16, 4 * 128, 1)", "bad matrix descriptor", ""},
    {"the cluster's blocks do not arrive at the start", CLUSTER, "  cluster_arrive(); // waited", "  // waited",
     "bad barrier", "without cluster_arrive"},
    {"nobody waits for the cluster's blocks to start", CLUSTER, "if (round == 0) cluster_wait();", "",
     "peer not there|bad mbarrier", ""},
    {"parts are read before the peers have left them", CLUSTER, "mbar_wait_cluster(parts_left(), round % 2);", "", "race",
     "of the cluster"},
    {"a wait for parts that does not acquire from peers", CLUSTER, "mbar_wait_cluster(parts_left()",
     "mbar_wait(parts_left()", "race", "load_remote"},
    {"a part is told of before the block has left it", CLUSTER,
     "bar_sync(ALL_CONSUMERS, CONSUMERS); // the block's part is there", "", "race", "load_remote"},
    {"a part is left before the peers have read the last one", CLUSTER,
     "mbar_wait_cluster(part_read(), round % 2 ^ 1);", "", "race", ""},
    {"a part is told to be read before all have read it", CLUSTER, "bar_sync(ALL_CONSUMERS, CONSUMERS); // all have read",
     "", "race|peer not there", ""},
    {"a block ends before its peers have read its part", CLUSTER, "mbar_wait_cluster(part_read(), rounds % 2 ^ 1);", "",
     "peer not there", "barrier at the end"},
    {"parts of one block are enough", CLUSTER, "mbar_init(parts_left(), CLUSTER);", "mbar_init(parts_left(), 1);",
     "race|bad mbarrier", ""},
    {"every block adds up the first columns", CLUSTER, "begin = cluster_rank() * share", "begin = 0", "race (global)", ""},
    {"no kernel waits for those ahead", COMBINE, "grid_dependency_wait(); ", "", "early access", ""},
    {"no barrier after mbar_init", TWO, "  block_sync();\n  if (warpgroup == WARPGROUPS)",
     "  if (warpgroup == WARPGROUPS)", "race|bad mbarrier", ""},
};

/* ---- Generating and running ---- */

static gen_kernel *generate(const char *mask, const char *schedule) {
  arena *memory = arena_new();
  diags d;
  spec *s = NULL;
  gen_kernel *k = NULL;
  gen_error error = {0};
  char yaml[sizeof spec_text + 64];
  snprintf(yaml, sizeof yaml, spec_text, mask);
  diags_init(&d, memory, "<test>", yaml, strlen(yaml));
  assert_true(spec_parse(yaml, strlen(yaml), &d, &s));
  gen_request request = {.arch = arch_find("sm_90a"), .family = "attention_decode_sm90", .schedule = schedule};
  if (gen_render(s, &request, &k, &error) != GEN_OK)
    fail_msg("%s: %s", schedule, error.message);
  spec_free(s);
  arena_free(memory);
  return k;
}

static uint16_t queries[LEN_Q * HEADS * DIM], keys[LEN_K * DIM];

static int setup(void **state) {
  (void)state;
  uint64_t random = 1;
  for (int n = 0; n < LEN_Q * HEADS * DIM; n++)
    queries[n] = (uint16_t)(0x3f00 | (fixture_random(&random) & 0x80ff)); /* 0.5 to 2, either sign */
  for (int n = 0; n < LEN_K * DIM; n++)
    keys[n] = (uint16_t)(0x3f00 | (fixture_random(&random) & 0x80ff));
  return 0;
}

/* What a parameter has, by its source. */
typedef struct value {
  const char *source;
  void *pointer;
  int64_t number;
} value;

static void fill_params(const manifest *m, const value *values, size_t count, unsigned char *params) {
  for (int n = 0; n < m->nfields; n++) {
    const manifest_field *field = &m->fields[n];
    size_t v = 0;
    while (v < count && strcmp(field->source, values[v].source) != 0)
      v++;
    if (v == count)
      fail_msg("no value for the parameter %s", field->source);
    const void *from = field->type == FIELD_POINTER ? (const void *)&values[v].pointer : &values[v].number;
    memcpy(params + field->offset, from, (size_t)field_type_size(field->type));
  }
}

/* Runs the compiled source once. */
static qkv_status run(const manifest *m, uint64_t seed) {
  enum { ROWS = 24 * 2 * GRID }; /* that blocks may leave for others, at most */
  static _Alignas(64) unsigned char params[MANIFEST_MAX_PARAMS];
  static const int zero[GRID];
  fixture f = fixture_open(seed);
  void *memory[] = {fixture_upload(&f, queries, sizeof queries), fixture_upload(&f, keys, sizeof keys),
                    fixture_upload(&f, keys, sizeof keys),       fixture_upload(&f, NULL, sizeof queries),
                    fixture_upload(&f, zero, sizeof zero),       fixture_upload(&f, NULL, 8 * ROWS),
                    fixture_upload(&f, NULL, 4 * ROWS * DIM)};
  const value values[] = {
      {"q", memory[0], 0},
      {"k", memory[1], 0},
      {"v", memory[2], 0},
      {"o", memory[3], 0},
      {"workspace.arrived", memory[4], 0},
      {"workspace.partial_states", memory[5], 0},
      {"workspace.partial_outputs", memory[6], 0},
      {"q.stride.batch", NULL, LEN_Q * HEADS * DIM},
      {"q.stride.token", NULL, HEADS * DIM},
      {"q.stride.head", NULL, DIM},
      {"o.stride.batch", NULL, LEN_Q * HEADS * DIM},
      {"o.stride.token", NULL, HEADS * DIM},
      {"o.stride.head", NULL, DIM},
      {"k.stride.batch", NULL, LEN_K * DIM},
      {"k.stride.token", NULL, DIM},
      {"k.stride.head", NULL, DIM},
      {"v.stride.batch", NULL, LEN_K * DIM},
      {"v.stride.token", NULL, DIM},
      {"v.stride.head", NULL, DIM},
      {"batch", NULL, 1},
      {"len_q", NULL, LEN_Q},
      {"len_k", NULL, LEN_K},
      {"sm_count", NULL, GRID},
  };
  fill_params(m, values, sizeof values / sizeof *values, params);
  qkv_status status = QKV_OK;
  for (int n = 0; n < m->nlaunches && status == QKV_OK; n++) {
    const manifest_launch *l = &m->launches[n];
    device_kernel *k;
    assert_int_equal(device_emu.kernel(f.d, f.m, l->entry, l->block, l->shared_bytes, l->cluster, &k), QKV_OK);
    const device_launch launch = {.grid = n == 0 ? GRID : LEN_Q * HEADS, /* behind: a row to a block */
                                  .block = l->block,
                                  .shared_bytes = l->shared_bytes,
                                  .params = params,
                                  .params_size = (size_t)m->params_size,
                                  .cluster = l->cluster,
                                  .early = l->early};
    status = device_emu.launch(f.d, k, &launch, NULL);
  }
  for (size_t n = 0; n < sizeof memory / sizeof *memory; n++)
    device_emu.free(f.d, memory[n]);
  fixture_close(&f);
  return status;
}

static const mutant_harness harness = {generate, run, 4};

/* ---- Tests ---- */

static void test_unchanged_sources_are_clean(void **state) {
  (void)state;
  mutants_check_clean(&harness, causal, TWO);
  mutants_check_clean(&harness, causal, ONE);
  mutants_check_clean(&harness, causal, CLUSTER);
  mutants_check_clean(&harness, causal, COMBINE);
}

static void test_mutants_are_named(void **state) {
  (void)state;
  mutants_check(&harness, mutants, sizeof mutants / sizeof *mutants, causal);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unchanged_sources_are_clean),
      cmocka_unit_test(test_mutants_are_named),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
