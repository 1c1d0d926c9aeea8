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

/* ---- The problem ---- */

enum { ROWS = 24 * 2 * GRID }; /* that blocks may leave for others, at most */
static uint16_t queries[LEN_Q * HEADS * DIM], keys[LEN_K * DIM];
static const int zero[GRID];

static const mutant_value values[] = {
    {"q", 0, sizeof queries, queries},
    {"k", 0, sizeof keys, keys},
    {"v", 0, sizeof keys, keys},
    {"o", 0, sizeof queries, NULL},
    {"workspace.arrived", 0, sizeof zero, zero},
    {"workspace.partial_states", 0, 8 * ROWS, NULL},
    {"workspace.partial_outputs", 0, 4 * ROWS * DIM, NULL},
    {"q.stride.batch", LEN_Q * HEADS * DIM, 0, NULL},
    {"q.stride.token", HEADS * DIM, 0, NULL},
    {"q.stride.head", DIM, 0, NULL},
    {"o.stride.batch", LEN_Q * HEADS * DIM, 0, NULL},
    {"o.stride.token", HEADS * DIM, 0, NULL},
    {"o.stride.head", DIM, 0, NULL},
    {"k.stride.batch", LEN_K * DIM, 0, NULL},
    {"k.stride.token", DIM, 0, NULL},
    {"k.stride.head", DIM, 0, NULL},
    {"v.stride.batch", LEN_K * DIM, 0, NULL},
    {"v.stride.token", DIM, 0, NULL},
    {"v.stride.head", DIM, 0, NULL},
    {"batch", 1, 0, NULL},
    {"len_q", LEN_Q, 0, NULL},
    {"len_k", LEN_K, 0, NULL},
    {"sm_count", GRID, 0, NULL},
};

static const mutant_harness harness = {.spec = spec_text,
                                       .family = "attention_decode_sm90",
                                       .grid = GRID,
                                       .grid_behind = LEN_Q * HEADS, /* a row to a block */
                                       .values = values,
                                       .nvalues = sizeof values / sizeof *values};

static const mutant_kind kinds[] = {{causal, TWO}, {causal, ONE}, {causal, CLUSTER}, {causal, COMBINE}};

static int setup(void **state) {
  (void)state;
  uint64_t random = 1;
  mutant_fill(queries, LEN_Q * HEADS * DIM, &random);
  mutant_fill(keys, LEN_K * DIM, &random);
  return 0;
}

/* ---- Tests ---- */

static void test_unchanged_sources_are_clean(void **state) {
  (void)state;
  mutants_check_clean(&harness, kinds, sizeof kinds / sizeof *kinds);
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
