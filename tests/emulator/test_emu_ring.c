/* The ring of ring_sm90.cu: clean and right over many seeds, and one mutant per planted fault, which the emulator must
 * name by its kind in every policy and under every seed. */
#include "emu_sm90.h"

#include <math.h>

#include "emu/formats.h"

enum { TILES = 5, GRID = 1, SHARED = 2 * 16384 + 2 * 16384 + 2 * 8192 + 128, MUTANT_SEEDS = 12, CLEAN_SEEDS = 200 };

static float q[128 * GRID][128], k[64 * TILES][128];
static uint16_t q_bits[128 * GRID][128], k_bits[64 * TILES][128];

static void fill(uint16_t (*bits)[128], float (*values)[128], int rows, uint64_t *random) {
  for (int row = 0; row < rows; row++)
    for (int d = 0; d < 128; d++) {
      bits[row][d] = format_to_bf16(fixture_uniform(random));
      values[row][d] = format_from_bf16(bits[row][d]);
    }
}

static int setup(void **state) {
  (void)state;
  uint64_t random = 1;
  fill(q_bits, q, 128 * GRID, &random);
  fill(k_bits, k, 64 * TILES, &random);
  text source = {0};
  text_puts(&source, SM90_PARAMS);
  fixture_append(&source, "templates/parts/matrix_descriptor.cuh");
  fixture_append(&source, "tests/emulator/ring_sm90.cu");
  int failed = fixture_compile(source.bytes);
  text_free(&source);
  return failed;
}

static qkv_status run(uint64_t seed, int mode, uint16_t *scores, float *y) {
  fixture f = fixture_open(seed);
  sm90_params p = {.mode = mode, .n = TILES};
  void *dq = fixture_upload(&f, q_bits, sizeof q_bits), *dk = fixture_upload(&f, k_bits, sizeof k_bits);
  size_t score_bytes = 128 * GRID * 64 * TILES * 2, y_bytes = 128 * GRID * 128 * 4;
  void *ds = fixture_upload(&f, NULL, score_bytes);
  p.out = fixture_upload(&f, NULL, y_bytes);
  device_tensor_map maps[3] = {
      sm90_map(dq, 2, (int64_t[]){128, 128 * GRID}, (int[]){64, 128}, 128),
      sm90_map(dk, 2, (int64_t[]){128, 64 * TILES}, (int[]){64, 64}, 128),
      sm90_map(ds, 2, (int64_t[]){64 * TILES, 128 * GRID}, (int[]){64, 64}, 128),
  };
  for (int i = 0; i < 3; i++)
    assert_int_equal(device_emu.tensor_map(f.d, &maps[i], p.map[i]), QKV_OK);
  qkv_status status = sm90_launch(&f, "ring", GRID, 384, SHARED, &p);
  assert_int_equal(device_emu.copy_to_host(f.d, scores, ds, score_bytes), QKV_OK);
  assert_int_equal(device_emu.copy_to_host(f.d, y, p.out, y_bytes), QKV_OK);
  device_emu.free(f.d, dq), device_emu.free(f.d, dk), device_emu.free(f.d, ds), device_emu.free(f.d, p.out);
  fixture_close(&f);
  return status;
}

static uint16_t scores[128 * GRID][64 * TILES];
static float y[128 * GRID][128];

static void check_values(int seed) {
  for (int row = 0; row < 128 * GRID; row++) {
    double expected[128] = {0};
    for (int column = 0; column < 64 * TILES; column++) {
      double sum = 0;
      for (int d = 0; d < 128; d++)
        sum += (double)q[row][d] * k[column][d];
      float got = format_from_bf16(scores[row][column]);
      if (!(fabs(got - sum) <= 0x1p-8 * fabs(sum) + 1e-4))
        fail_msg("ring, seed %d: score[%d][%d] is %a, should be %a", seed, row, column, got, sum);
      for (int d = 0; d < 128; d++)
        expected[d] += (double)got * k[column][d];
    }
    for (int d = 0; d < 128; d++)
      if (!(fabs(y[row][d] - expected[d]) <= 1e-2))
        fail_msg("ring, seed %d: y[%d][%d] is %a, should be %a", seed, row, d, y[row][d], expected[d]);
  }
}

static void test_ring_is_clean(void **state) {
  (void)state;
  for (int seed = 0; seed < CLEAN_SEEDS; seed++) {
    if (run((uint64_t)seed, 0, scores[0], y[0]))
      fail_msg("ring, seed %d: %s", seed, error_message());
    if (seed % 10 < 3)
      check_values(seed);
  }
}

static const struct {
  int mode;
  const char *kinds, *says, *fault;
} mutants[] = {
    {1, "race|bad mbarrier", "", "the producer does not wait for empty stages"},
    {2, "race|uninitialised shared memory", "", "the consumers do not wait for full stages"},
    {3, "race", "", "a stage is released before its last product"},
    {4, "race|uninitialised shared memory|deadlock", "", "wrong parity"},
    {5, "deadlock", "1 of 9 arrivals", "an arrival too many expected"},
    {6, "race|deadlock", "", "half the arrivals expected"},
    {7, "race|bad mbarrier", "", "half the bytes expected"},
    {8, "deadlock", "16384 bytes missing", "twice the bytes expected"},
    {9, "missing proxy fence", "tma_store from", "no proxy fence before the store"},
    {10, "race|uninitialised shared memory", "tma_store from", "no barrier before the store"},
    {11, "race", "bulk store", "the slab is reused before the store has read it"},
    {12, "race", "bulk store", "only the leader waits for the store"},
    {13, "race", "tma_load into", "a lane releases the stage for its warp without warp_sync"},
    {14, "race|missing proxy fence", "", "the slab overlaps a stage"},
    {15, "bad matrix descriptor", "stride from eight rows", "half the stride of eight rows"},
    {16, "bad matrix descriptor", "behind the swizzle", "the start is off by 16 bytes"},
    {17, "bad matrix descriptor", "leading stride", "no panel stride"},
    {18, "race|uninitialised shared memory", "wgmma from", "twice the stride of eight rows"},
    {19, "bad matrix descriptor", "", "another swizzle than the copy's"},
    {20, "accumulator in flight", "", "no wgmma_wait"},
    {21, "accumulator in flight", "", "no wgmma_commit"},
    {22, "missing wgmma fence", "", "no wgmma_fence after A was written"},
    {23, "race|bad mbarrier", "", "no barrier after mbar_init"},
    {24, "missing proxy fence", "fence_mbar_init", "no fence_mbar_init"},
    {25, "deadlock|bad barrier", "", "a named barrier with a wrong count"},
    {26, "pending copy", "bulk_wait_read_0", "the store's read is not waited for at the end"},
    {27, "race|deadlock|bad mbarrier", "", "every lane arrives"},
    {28, "register budget", "66560", "more registers than there are"},
    {29, "divergent collective", "differs", "one warp has another descriptor"},
    {30, "bad mbarrier", "no mbarrier was initialised", "a wait at a wrong address"},
    {31, "misaligned access", "128 bytes", "a tile that is not aligned"},
    {40, "misaligned access", "multiple of 16 bytes", "a box that starts within 16 bytes"},
    {41, "out of bounds", "before the tensor", "a store that starts before the tensor"},
    {32, "bad mbarrier", "writes the bytes of the mbarrier", "a store over an mbarrier"},
    {33, "accumulator in flight", "", "A is overwritten before wgmma_wait"},
    {34, "bad mbarrier", "initialised again", "two inits"},
    {36, "bad tensor map", "2 dimensions, the copy 3", "another rank than the map's"},
    {37, "race", "bulk store", "no bulk_commit"},
    {38, "missing proxy fence", "tma_store from", "the proxy fence comes before the writes"},
};
enum { MUTANTS = sizeof mutants / sizeof *mutants };

static void test_mutants_are_named(void **state) {
  (void)state;
  int wrong = 0;
  for (int i = 0; i < MUTANTS; i++)
    for (int seed = 0; seed < MUTANT_SEEDS; seed++) {
      qkv_status status = run((uint64_t)seed, mutants[i].mode, scores[0], y[0]);
      const char *message = status ? error_message() : "no fault";
      if (status == QKV_DEVICE_ERROR && fixture_names(message, mutants[i].kinds) && strstr(message, mutants[i].says))
        continue;
      print_error("mutant %d (%s), seed %d: \"%s\", should say \"emu: %s: ... %s\"\n", mutants[i].mode,
                  mutants[i].fault, seed, message, mutants[i].kinds, mutants[i].says);
      wrong++;
      break;
    }
  assert_int_equal(wrong, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ring_is_clean),
      cmocka_unit_test(test_mutants_are_named),
  };
  int failures = cmocka_run_group_tests(tests, setup, NULL);
  image_free(&fixture_image);
  return failures;
}
