/* Mutants of attention_forward_sm90 where it copies K and V row by row from pages: its generated source with one
 * textual edit each, which the emulator must name by its kind. The sources without an edit must be clean under the same
 * seeds. */
#include "emu_mutants.h"

enum { HEADS = 3, LEN_Q = 230, LEN_K = 150, DIM = 40, PAGE = 3, PAGES = LEN_K / PAGE };

static const char spec_text[] = "qkvc: 1\nname: mutant\n"
                                "attention: {heads: 3, dim: 40, dtype: bf16, mask: \"%s\"}\n"
                                "layout: {kv: {paged: {page: 3}}}\n";
/* One range of tiles of keys; two, which the producer walks through. */
static const char causal[] = "causal", two_ranges[] = "causal and (q - k < 20 or k < 4)";

/* ---- The mutants ---- */

#define TWO "warpgroups=2,tile_n=32,stages=2,order=1,rescale=0,q_buffers=1,carry=0,o_buffer=1,store=1,scheduler=1"
#define THREE "warpgroups=1,tile_n=32,stages=3,order=0,rescale=0,q_buffers=1,carry=0,o_buffer=0,store=1,scheduler=2"

static const mutant_kind kinds[] = {{causal, TWO}, {causal, THREE}, {two_ranges, TWO}, {two_ranges, THREE}};

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

/* ---- The problem ---- */

static uint16_t queries[LEN_Q * HEADS * DIM], keys[LEN_K * HEADS * DIM];
static int page_table[PAGES];
static const int zero, length = LEN_K;

static const mutant_value values[] = {
    {"q", LEN_Q, sizeof queries, queries},
    {"k", 0, sizeof keys, keys},
    {"v", 0, sizeof keys, keys},
    {"o", LEN_Q, sizeof queries, NULL},
    {"seqlens_k", 0, sizeof length, &length},
    {"page_table", 0, sizeof page_table, page_table},
    {"workspace.tickets", 0, sizeof zero, &zero},
    {"page_table.stride.batch", PAGES, 0, NULL},
    {"k.stride.page", PAGE * HEADS * DIM, 0, NULL},
    {"k.stride.token", HEADS * DIM, 0, NULL},
    {"k.stride.head", DIM, 0, NULL},
    {"v.stride.page", PAGE * HEADS * DIM, 0, NULL},
    {"v.stride.token", HEADS * DIM, 0, NULL},
    {"v.stride.head", DIM, 0, NULL},
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
  for (int n = 0; n < PAGES; n++)
    page_table[n] = n * 7 % PAGES;
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
