/* Mutants of attention_forward_sm90: its generated source with one textual edit each, which the emulator must name by
 * its kind. The sources without an edit must be clean under the same seeds. */
#include "emu_mutants.h"

enum { HEADS = 3, LEN_Q = 230, LEN_K = 150, DIM = 64 };

static const char spec_text[] = "qkvc: 1\nname: mutant\n"
                                "attention: {heads: 3, dim: 64, dtype: bf16, mask: \"%s\"}\noutputs: [o, lse]\n";
/* One range of tiles of keys; two, which the producer walks through. */
static const char causal[] = "causal", two_ranges[] = "causal and (q - k < 20 or k < 4)";

/* ---- The mutants ---- */

#define SHARES "warpgroups=2,tile_n=32,stages=2,order=1,rescale=0,q_buffers=1,carry=0,o_buffer=1,store=1,scheduler=1"
#define TICKETS "warpgroups=2,tile_n=32,stages=2,order=1,rescale=0,q_buffers=1,carry=0,o_buffer=1,store=1,scheduler=2"
#define IN_PLACE "warpgroups=2,tile_n=32,stages=2,order=0,rescale=0,q_buffers=1,carry=0,o_buffer=0,store=1,scheduler=1"
#define HIDDEN                                                                                                         \
  "warpgroups=1,tile_n=32,stages=2,order=0,rescale=1,slack=0,q_buffers=2,carry=0,o_buffer=1,store=1,scheduler=1"
#define CARRY "warpgroups=1,tile_n=32,stages=4,order=0,rescale=0,q_buffers=2,carry=1,o_buffer=1,store=1,scheduler=2"

#define PAIR                                                                                                           \
  "warpgroups=1,tile_n=32,stages=2,order=0,rescale=0,q_buffers=1,carry=0,o_buffer=1,store=1,scheduler=1,cluster=2"
#define PAIR_TICKETS                                                                                                   \
  "warpgroups=1,tile_n=32,stages=2,order=0,rescale=0,q_buffers=2,carry=1,o_buffer=1,store=1,scheduler=2,cluster=2"

static const mutant_kind kinds[] = {{causal, SHARES},       {causal, TICKETS},  {causal, IN_PLACE},     {causal, HIDDEN},
             {causal, CARRY},        {causal, PAIR},     {causal, PAIR_TICKETS}, {two_ranges, SHARES},
             {two_ranges, IN_PLACE}, {two_ranges, CARRY}};

static const mutant mutants[] = {
    {"nobody waits for K", SHARES, "wait_for(c, K_FULL, c.keys);", "", "race", ""},
    {"nobody waits for V", SHARES, "wait_for(c, V_FULL, c.values);", "", "race", ""},
    {"nobody waits for the last V", SHARES,
     "mbar_wait(c.shared + V_FULL + 8 * c.values.stage(), c.values.parity());\n"
     "  issue_output(c);",
     "issue_output(c);", "race", ""},
    {"nobody waits for Q", SHARES, "mbar_wait(shared + Q_FULL + 8 * c.queries.stage(), c.queries.parity());", "",
     "race", ""},
    {"only a work's first Q is waited for", CARRY,
     "warpgroup);\n"
     "        mbar_wait(shared + Q_FULL + 8 * c.queries.stage(), c.queries.parity());",
     "warpgroup);", "race", ""},
    {"K is given back before its product is done", SHARES,
     "wgmma_wait_1();\n"
     "  take_scores(c);",
     "take_scores(c);\n"
     "  wgmma_wait_1();",
     "race|accumulator in flight", ""},
    {"V is given back before its product is done", SHARES,
     "wgmma_wait_0();\n"
     "  take_output(c);",
     "take_output(c);\n"
     "  wgmma_wait_0();",
     "race|accumulator in flight", ""},
    {"Q is given back before every lane has seen it", CARRY,
     "warp_sync();\n"
     "  if (c.lane == 0) mbar_arrive(c.shared + Q_EMPTY",
     "if (c.lane == 0) mbar_arrive(c.shared + Q_EMPTY", "deadlock", ""},
    {"every lane gives Q back", SHARES, "if (c.lane == 0) mbar_arrive(c.shared + Q_EMPTY",
     "mbar_arrive(c.shared + Q_EMPTY", "race|deadlock", ""},
    {"the producer does not wait for places of V", SHARES,
     "mbar_wait(shared + V_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);", "", "race|bad mbarrier", ""},
    {"a ring's parity does not turn", SHARES,
     "COUNTS ? place / STAGES % 2 :", "COUNTS ? 0 :", "bad mbarrier|race|deadlock", ""},
    {"an arrival too many expected", SHARES, "mbar_init(shared + K_EMPTY + 8 * n, WARPGROUPS);",
     "mbar_init(shared + K_EMPTY + 8 * n, WARPGROUPS + 1);", "deadlock", "1 of 3 arrivals"},
    {"an arrival too few expected", SHARES, "mbar_init(shared + V_EMPTY + 8 * n, WARPGROUPS);",
     "mbar_init(shared + V_EMPTY + 8 * n, WARPGROUPS - 1);", "race|deadlock", ""},
    {"half the bytes expected", SHARES, "mbar_arrive_expect_tx(full, K_BYTES);",
     "mbar_arrive_expect_tx(full, K_BYTES / 2);", "deadlock", "-2048 bytes missing"},
    {"twice the bytes expected", SHARES, "mbar_arrive_expect_tx(full, V_BYTES);",
     "mbar_arrive_expect_tx(full, 2 * V_BYTES);", "deadlock", "4096 bytes missing"},
    {"K's copies count on the first stage's mbarrier", SHARES, "full = shared + K_FULL + 8 * ring.stage(),",
     "full = shared + K_FULL,", "bad mbarrier", ""},
    {"the rings of K and V overlap", SHARES, "V_OFFSET = K_OFFSET + STAGES * K_BYTES;",
     "V_OFFSET = K_OFFSET + K_BYTES;", "race", ""},
    {"no proxy fence before the store", SHARES,
     "fence_proxy_async();\n"
     "  warp_sync();",
     "warp_sync();", "missing proxy fence", "tma_store from"},
    {"no warp_sync before the store", SHARES,
     "fence_proxy_async();\n"
     "  warp_sync();",
     "fence_proxy_async();", "race|missing proxy fence", "tma_store from"},
    {"O's slab is written again before it has left", SHARES, "if (lane == 0) bulk_wait_read_0(); // the tile before",
     "// the tile before", "race", "bulk store"},
    {"only lane 0 knows that O's slab has left", SHARES,
     "// the tile before has left\n"
     "  warp_sync();",
     "// the tile before has left", "race", "bulk store"},
    {"the last store is not waited for", SHARES,
     "  if (c.lane == 0) bulk_wait_read_0();\n"
     "}",
     "}", "pending copy", "bulk_wait_read_0"},
    {"no bulk_commit", SHARES, "    bulk_commit();", "", "race|pending copy", ""},
    {"two warps store from one slab", SHARES, "slab = shared_o + row * V_ROW_BYTES",
     "slab = shared_o + row / 32 * 32 * V_ROW_BYTES", "race|missing proxy fence", ""},
    {"O lands on the other warpgroup's Q", IN_PLACE, "slab = shared_o + row * V_ROW_BYTES",
     "slab = shared_o + (row ^ 64) * V_ROW_BYTES", "race", ""},
    {"Q's place is given back before O has left it", IN_PLACE, "if (c.lane == 0) bulk_wait_read_0(); // nor", "// nor",
     "race|pending copy", ""},
    {"half the stride of eight rows", SHARES, "K_OFFSET + stage * K_BYTES, 16, 8 * QK_ROW_BYTES, 1)",
     "K_OFFSET + stage * K_BYTES, 16, 4 * QK_ROW_BYTES, 1)", "bad matrix descriptor", ""},
    {"another swizzle than the copy's", SHARES, "stage * V_BYTES, V_PANEL, 8 * V_ROW_BYTES, 1)",
     "stage * V_BYTES, V_PANEL, 4 * V_ROW_BYTES, 2)", "bad matrix descriptor", ""},
    {"Q begins inside of a swizzle pattern", SHARES, "matrix_descriptor(rows, 16,", "matrix_descriptor(rows + 256, 16,",
     "bad matrix descriptor", ""},
    {"no wgmma_fence before Q K", SHARES,
     "wgmma_fence();\n"
     "  multiply_query_key",
     "multiply_query_key", "missing wgmma fence", ""},
    {"no wgmma_fence after the output was rescaled", HIDDEN,
     "wgmma_fence();\n"
     "  multiply_probability_value(c.output",
     "multiply_probability_value(c.output", "missing wgmma fence", ""},
    {"the scores are read before they are done", SHARES, "wgmma_wait_1();", "", "accumulator in flight", ""},
    {"the output is read before it is done", SHARES,
     "wgmma_wait_0();\n"
     "  take_output(c);",
     "take_output(c);", "accumulator in flight|race", ""},
    {"tickets are read before they are there", TICKETS,
     "mbar_wait(shared + TICKET_FULL + 8 * queue.tickets.stage(), queue.tickets.parity());", "", "race|deadlock", ""},
    {"tickets are overwritten before they are read", CARRY,
     "mbar_wait(shared + TICKET_EMPTY + 8 * queue.tickets.stage(), queue.tickets.parity() ^ 1);", "", "race", ""},
    {"turns with a wrong count", SHARES, "bar_sync(TURN + c.warpgroup, 256);", "bar_sync(TURN + c.warpgroup, 128);",
     "bad barrier|race", ""},
    {"nobody has the first turn", SHARES, "bar_arrive(TURN, 256);", ";", "deadlock", "barrier"},
    {"a turn is not handed on", SHARES, "bar_arrive(TURN + (c.warpgroup + 1) % WARPGROUPS, 256);",
     "if (c.warpgroup == 0) bar_arrive(TURN + 1, 256);", "deadlock", "barrier"},
    {"no fence_mbar_init", SHARES, "    fence_mbar_init();", "", "missing proxy fence", "fence_mbar_init"},
    {"no barrier after mbar_init", SHARES,
     "block_sync();\n"
     "  if (warpgroup == 0) {",
     "if (warpgroup == 0) {", "race|bad mbarrier", ""},
    {"two threads produce", SHARES, "if (threadIdx.x == 0) produce(", "if (threadIdx.x < 2) produce(",
     "bad mbarrier|race", ""},
    {"more registers than there are", SHARES, "registers_increase_232();", "registers_increase_240();",
     "register budget", ""},
    {"more registers than the block has", SHARES, "registers_decrease_40();", "registers_decrease_48();",
     "register budget", ""}, /* 65536 in all, but a block of 384 threads has 168 each */
    {"no cluster barrier at the start", PAIR,
     "cluster_arrive(); // the other block's mbarriers are there, too\n"
     "  cluster_wait();",
     "", "race|bad mbarrier|peer not there", ""},
    {"the cluster barrier at the start is not waited for", PAIR, "are there, too\n  cluster_wait();",
     "are there, too\n", "race|bad mbarrier|peer not there", ""},
    {"no cluster barrier at the end", PAIR,
     "cluster_arrive(); // the other block may still arrive at mbarriers of this one\n"
     "  cluster_wait();",
     "", "peer not there", "barrier at the end"},
    {"K is given back to the own block twice", PAIR, "K_EMPTY + 8 * c.keys.stage(), c.lane)",
     "K_EMPTY + 8 * c.keys.stage(), cluster_rank())", "race|bad mbarrier", ""},
    {"K is given back to the own block alone", PAIR, "% 128 < CLUSTER", "% 128 == cluster_rank()", "deadlock",
     "arrivals"},
    {"places are free when one block says so", PAIR, "mbar_init(shared + V_EMPTY + 8 * n, WARPGROUPS * CLUSTER);",
     "mbar_init(shared + V_EMPTY + 8 * n, WARPGROUPS);", "race|bad mbarrier|deadlock", ""},
    {"what peers released is not acquired", PAIR, "mbar_wait_cluster(shared + K_EMPTY", "mbar_wait(shared + K_EMPTY",
     "race", "of the cluster"},
    {"a mask of the own block alone", PAIR, "(1 << CLUSTER) - 1", "1 << cluster_rank()", "deadlock",
     "2048 bytes missing"},
    {"a mask of a block that does not exist", PAIR, "(1 << CLUSTER) - 1", "2 << cluster_rank()",
     "out of bounds|deadlock|peer not there|pending copy", ""},
    {"the bytes of the own share expected", PAIR, "mbar_arrive_expect_tx(full, K_BYTES);",
     "mbar_arrive_expect_tx(full, K_BYTES / CLUSTER);", "bad mbarrier|race|deadlock", ""},
    {"both shares land at one place", PAIR, " + share * V_ROW_BYTES", "", "race|bad mbarrier", ""},
    {"each block walks through its own tiles", PAIR, "tiles.begin = begin, tiles.end = end;", "",
     "deadlock|pending copy|peer not there", ""},
    {"tickets of a peer are not acquired", PAIR_TICKETS, "mbar_wait_cluster(shared + TICKET_FULL",
     "mbar_wait(shared + TICKET_FULL", "race", "of the cluster"},
    {"the other producer does not give the ticket back", PAIR_TICKETS, "mbar_arrive_remote(empty, 0);", "", "deadlock",
     "1 of 9 arrivals"},
    {"tickets are told before they are written", PAIR_TICKETS,
     "store_remote_u32(shared + TICKET_OFFSET + 4 * stage, number, cta);\n"
     "      mbar_arrive_remote(full, cta);",
     "mbar_arrive_remote(full, cta);\n"
     "      store_remote_u32(shared + TICKET_OFFSET + 4 * stage, number, cta);",
     "race", ""},
};

/* Of the words that the producer tells of tiles, with two ranges of keys. */
static const mutant told_mutants[] = {
    {"a tile's word is read before K is waited for", SHARES,
     "wait_for(c, K_FULL, c.keys);\n"
     "  take_turn(c);\n"
     "  c.tile.word = hear(KEYS_TOLD, c.keys);",
     "c.tile.word = hear(KEYS_TOLD, c.keys);\n"
     "  wait_for(c, K_FULL, c.keys);\n"
     "  take_turn(c);",
     "race|deadlock", ""},
    {"a tile's word is read before the turn", SHARES,
     "take_turn(c);\n"
     "  c.tile.word = hear(KEYS_TOLD, c.keys);",
     "c.tile.word = hear(KEYS_TOLD, c.keys);\n"
     "  take_turn(c);",
     "race|deadlock", ""},
    {"rows' word is read before Q is waited for", SHARES,
     "mbar_wait(c.shared + Q_FULL + 8 * c.queries.stage(), c.queries.parity());\n"
     "  return hear(ROWS_TOLD, c.queries) != 0;",
     "const bool some = hear(ROWS_TOLD, c.queries) != 0;\n"
     "  mbar_wait(c.shared + Q_FULL + 8 * c.queries.stage(), c.queries.parity());\n"
     "  return some;",
     "race|deadlock", ""},
    {"a place is full before it was told of", SHARES,
     "*(unsigned *)(shared_arena() + words + 4 * told.stage()) = word;\n"
     "  mbar_arrive(shared + full + 8 * told.stage());",
     "mbar_arrive(shared + full + 8 * told.stage());\n"
     "  *(unsigned *)(shared_arena() + words + 4 * told.stage()) = word;",
     "race", ""},
    {"copies alone fill places of K", SHARES, "mbar_init(shared + K_FULL + 8 * n, 2);",
     "mbar_init(shared + K_FULL + 8 * n, 1);", "race|bad mbarrier|deadlock", ""},
    {"K is given back before every lane has read the word", CARRY, "warp_sync(); // every lane knows",
     "// every lane knows", "race", ""},
    {"one warp gives K back for all", CARRY, "if (c.lane == 0) mbar_arrive(c.shared + K_EMPTY",
     "if (c.leader) for (int n = 0; n < 4; ++n) mbar_arrive(c.shared + K_EMPTY", "race", ""},
    {"the last tile is not told", SHARES, "(more ? 0 : 2)", "0", "deadlock", ""},
    {"tiles' words are told of the wrong place", SHARES, "tell(shared, KEYS_TOLD, K_FULL, told_keys",
     "tell(shared, KEYS_TOLD, K_FULL, key_ring", "deadlock|bad mbarrier|race", ""},
};

/* ---- The problem ---- */

static uint16_t queries[LEN_Q * HEADS * DIM], keys[LEN_K * HEADS * DIM], other[LEN_K * HEADS * DIM];
static const int zero;

static const mutant_value values[] = {
    {"q", LEN_Q, sizeof queries, queries},
    {"k", LEN_K, sizeof keys, keys},
    {"v", LEN_K, sizeof other, other},
    {"o", LEN_Q, sizeof queries, NULL},
    {"lse", 0, 4 * LEN_Q * HEADS, NULL},
    {"workspace.tickets", 0, sizeof zero, &zero},
    {"lse.stride.batch", LEN_Q * HEADS, 0, NULL},
    {"lse.stride.head", LEN_Q, 0, NULL},
    {"lse.stride.token", 1, 0, NULL},
    {"batch", 1, 0, NULL},
    {"len_q", LEN_Q, 0, NULL},
    {"len_k", LEN_K, 0, NULL},
};

static const mutant_harness harness = {.spec = spec_text,
                                       .family = "attention_forward_sm90",
                                       .heads = HEADS,
                                       .dim = DIM,
                                       .grid = 1,
                                       .values = values,
                                       .nvalues = sizeof values / sizeof *values};

static int setup(void **state) {
  (void)state;
  uint64_t random = 1;
  mutant_fill(queries, LEN_Q * HEADS * DIM, &random);
  mutant_fill(keys, LEN_K * HEADS * DIM, &random);
  mutant_fill(other, LEN_K * HEADS * DIM, &random);
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
