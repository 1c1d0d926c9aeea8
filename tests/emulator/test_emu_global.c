/* Races in global memory, mostly between blocks: the kernels of split_sm90.cu, which hand results from block to block,
 * are silent and right over many seeds; each planted fault is named in every order of the blocks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "emu_sm90.h"

enum { TILES = 2, PARTS = 4, BLOCK = 64, CLEAN_SEEDS = 1000, MUTANT_SEEDS = 60, ROWS = TILES + TILES * PARTS + 1 };

static int in[TILES * PARTS * BLOCK], out[ROWS * BLOCK];

static int setup(void **state) {
  (void)state;
  for (int i = 0; i < TILES * PARTS * BLOCK; i++)
    in[i] = i * i % 1009;
  text source = {0};
  text_puts(&source, SM90_PARAMS);
  fixture_append(&source, "tests/emulator/split_sm90.cu");
  int failed = fixture_compile(source.bytes);
  text_free(&source);
  return failed;
}

typedef struct split_kernel {
  const char *entry;
  int tiles, parts, block;
} split_kernel;

static const split_kernel kernels[] = {
    {"split", TILES, PARTS, BLOCK},   {"split_warp", 1, PARTS, 32}, {"ticket", 1, 8, BLOCK},
    {"split_store", 1, PARTS, BLOCK}, {"chain", 1, 3, BLOCK},
};
enum { SPLIT, SPLIT_WARP, TICKET, SPLIT_STORE, CHAIN };

static qkv_status run(const split_kernel *k, uint64_t seed, int mode) {
  fixture f = fixture_open(seed);
  sm90_params p = {.mode = mode, .n = k->parts, .x = {k->tiles}, .in = fixture_upload(&f, in, sizeof in)};
  memset(out, 0, sizeof out);
  unsigned char *memory = fixture_upload(&f, out, sizeof out);
  p.out = memory;
  device_tensor_map map = {.base = memory + 4 * k->tiles * k->block,
                           .element_bytes = 4,
                           .rank = 2,
                           .extent = {k->block, k->parts},
                           .stride_bytes = {4 * k->block},
                           .box = {k->block, 1}};
  assert_int_equal(device_emu.tensor_map(f.d, &map, p.map[0]), QKV_OK);
  qkv_status status = sm90_launch(&f, k->entry, k->tiles * k->parts, k->block, 2048, &p);
  assert_int_equal(device_emu.copy_to_host(f.d, out, memory, sizeof out), QKV_OK);
  device_emu.free(f.d, (void *)(uintptr_t)p.in), device_emu.free(f.d, memory);
  fixture_close(&f);
  return status;
}

/* ---- Correct kernels ---- */

static void check_sums(const split_kernel *k, uint64_t seed, int mode) {
  for (int tile = 0; tile < k->tiles; tile++)
    for (int t = 0; t < k->block; t++) {
      int sum = 0;
      for (int i = 0; i < k->parts; i++)
        sum += in[(tile * k->parts + i) * k->block + t] * (tile + 1);
      if (out[tile * k->block + t] != sum)
        fail_msg("%s, mode %d, seed %d: tile %d, column %d: %d, should be %d", k->entry, mode, (int)seed, tile, t,
                 out[tile * k->block + t], sum);
    }
}

static void check_rows(const split_kernel *k, uint64_t seed) {
  const unsigned short *rows = (const unsigned short *)(const void *)out;
  for (int i = 0; i < k->parts * (k->block - 1); i++)
    if (rows[i] != i / (k->block - 1) * 1000 + i % (k->block - 1))
      fail_msg("ticket, seed %d: element %d is %d", (int)seed, i, rows[i]);
}

static void test_correct_ones_are_silent(void **state) {
  (void)state;
  static const int correct[][2] = {{SPLIT, 0}, {SPLIT, 1}, {SPLIT_WARP, 0}, {TICKET, 0}, {TICKET, 1}, {SPLIT_STORE, 0}, {CHAIN, 0}};
  for (size_t i = 0; i < sizeof correct / sizeof *correct; i++)
    for (uint64_t seed = 0; seed < CLEAN_SEEDS; seed++) {
      const split_kernel *k = &kernels[correct[i][0]];
      if (run(k, seed, correct[i][1]))
        fail_msg("%s, mode %d, seed %d: %s", k->entry, correct[i][1], (int)seed, error_message());
      if (correct[i][0] == TICKET) {
        check_rows(k, seed);
        assert_int_equal(out[8 * BLOCK], correct[i][1] == 1 ? 0 : k->parts); /* what the counter is left at */
      }
      else if (correct[i][0] == CHAIN)
        assert_int_equal(out[2 * BLOCK - 1], 1 + 33);
      else
        check_sums(k, seed, correct[i][1]);
    }
}

/* ---- Mutants ---- */

static const struct {
  int kernel, mode;
  const char *says, *fault;
} mutants[] = {
    {SPLIT, 10, "not ordered after the write by", "no fence before the counter"},
    {SPLIT, 11, "not ordered after the write by", "no fence behind the counter"},
    {SPLIT, 12, "not ordered after the write by", "no barrier before the counter"},
    {SPLIT, 13, "no release and acquire order the blocks", "the first block sums up"},
    {SPLIT, 14, "no release and acquire order the blocks", "every block writes the sum"},
    {SPLIT, 15, "no release and acquire order the blocks", "a plain counter"},
    {SPLIT, 16, "no release and acquire order the blocks", "the number is read plainly before the atomic"},
    {SPLIT, 17, "not ordered after the write by", "the fence comes before the writes"},
    {SPLIT, 18, "no release and acquire order the blocks", "a block also writes into its neighbour's part"},
    {SPLIT, 19, "no release and acquire order the blocks", "every block resets the counter"},
    {SPLIT, 20, "no release and acquire order the blocks", "a part of another tile"},
    {SPLIT_WARP, 10, "a barrier is missing|no release and acquire order the blocks", "a shuffle in place of a barrier"},
    {TICKET, 10, "no release and acquire order the blocks", "a plain ticket"},
    {TICKET, 11, "no release and acquire order the blocks", "two blocks write one row"},
    {TICKET, 12, "no release and acquire order the blocks", "a row too long by one element"},
    {TICKET, 13, "no release and acquire order the blocks", "reads the neighbour's row"},
    {SPLIT_STORE, 10, "not ordered after the tma_store by", "the store's writes are not waited for"},
    {SPLIT_STORE, 11, "tma_store", "two blocks store one row"},
    {SPLIT_STORE, 12, "not ordered after the tma_store by", "no fence behind the store"},
    {CHAIN, 10, "no release and acquire order the blocks", "the block in the middle gives before it takes"},
    {CHAIN, 11, "no release and acquire order the blocks", "the block in the middle takes relaxed"},
    {CHAIN, 12, "no release and acquire order the blocks", "one of two counters is not acquired"},
    {CHAIN, 13, "no release and acquire order the blocks", "a write behind its release"},
};

static int says_one_of(const char *message, const char *words) {
  for (const char *word = words, *end; *word; word = *end ? end + 1 : end) {
    end = word + strcspn(word, "|");
    if (memmem(message, strlen(message), word, (size_t)(end - word)))
      return 1;
  }
  return 0;
}

static void test_mutants_are_named(void **state) {
  (void)state;
  int wrong = 0;
  for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++)
    for (int seed = 0; seed < MUTANT_SEEDS; seed++) {
      const split_kernel *k = &kernels[mutants[i].kernel];
      qkv_status status = run(k, (uint64_t)seed, mutants[i].mode);
      const char *message = status ? error_message() : "no fault";
      if (status == QKV_DEVICE_ERROR && strncmp(message, "emu: race (global): ", 20) == 0 &&
          says_one_of(message, mutants[i].says))
        continue;
      print_error("%s, mode %d (%s), seed %d: \"%s\", should say \"emu: race (global): ... %s\"\n", k->entry,
                  mutants[i].mode, mutants[i].fault, seed, message, mutants[i].says);
      wrong++;
      break;
    }
  assert_int_equal(wrong, 0);
}

/* Both places: the later line opens, the other one ends the report. */
static void test_report_names_both_lines(void **state) {
  (void)state;
  assert_int_equal(run(&kernels[TICKET], 0, 11), QKV_DEVICE_ERROR);
  if (!strstr(error_message(), "write at global address") || !strstr(error_message(), "by thread 0 of block 0") ||
      !strstr(error_message(), "[ticket, block 1, thread 0 (warp 0, lane 0)]"))
    fail_msg("%s", error_message());
  char lines[128];
  const char *at = strstr(error_message(), "line ");
  int line = at ? atoi(at + 5) : 0;
  snprintf(lines, sizeof lines, "line %d of the generated source, the other access line %d", line, line);
  if (line == 0 || !strstr(error_message(), lines))
    fail_msg("%s", error_message());
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_correct_ones_are_silent),
      cmocka_unit_test(test_mutants_are_named),
      cmocka_unit_test(test_report_names_both_lines),
  };
  int failures = cmocka_run_group_tests(tests, setup, NULL);
  image_free(&fixture_image);
  return failures;
}
