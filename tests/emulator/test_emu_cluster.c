/* The ring and the exchange of cluster_sm90.cu: clean and right over many seeds and sizes of clusters, and one mutant per
 * planted fault, which the emulator must name by its kind in every policy and under every seed. */
#include "emu_sm90.h"

enum { TILES = 13, ROWS = 32, WORDS = ROWS * 32, CONSUMERS = 96, THREADS = 128, CLUSTERS = 3 };
enum { SHARED = 2 * 4096 + 72, CLEAN_SEEDS = 1000, MUTANT_SEEDS = 12 };

static uint32_t tiles[TILES][WORDS];
static uint32_t out[1 + THREADS];

static int setup(void **state) {
  (void)state;
  uint64_t random = 1;
  for (int i = 0; i < TILES * WORDS; i++)
    tiles[i / WORDS][i % WORDS] = fixture_random(&random);
  text source = {0};
  text_puts(&source, SM90_PARAMS);
  fixture_append(&source, "tests/emulator/cluster_sm90.cu");
  int failed = fixture_compile(source.bytes);
  text_free(&source);
  return failed;
}

static qkv_status run(uint64_t seed, int size, int mode) {
  fixture f = fixture_open(seed);
  memset(out, 0, sizeof out);
  sm90_params p = {.mode = mode, .n = TILES, .x = {size}};
  void *data = fixture_upload(&f, tiles, sizeof tiles);
  p.out = fixture_upload(&f, out, sizeof out);
  device_tensor_map map = sm90_map(data, 4, (int64_t[]){64, TILES * ROWS, 1, 1}, (int[]){64, ROWS / size, 1, 1}, 128);
  assert_int_equal(device_emu.tensor_map(f.d, &map, p.map[0]), QKV_OK);
  qkv_status status = sm90_launch_clusters(&f, "cluster", CLUSTERS * size, size, THREADS, SHARED, &p);
  assert_int_equal(device_emu.copy_to_host(f.d, out, p.out, sizeof out), QKV_OK);
  device_emu.free(f.d, data), device_emu.free(f.d, p.out);
  fixture_close(&f);
  return status;
}

/* Chunks of 16 bytes change places within a row of 128 by the row's number. */
static uint32_t expected(int size, int t) {
  uint32_t sum = 0;
  for (int i = 0; i < TILES; i++)
    for (int at = t; at < WORDS; at += CONSUMERS) {
      int row = at / 32, chunk = at % 32 / 4 ^ row % 8;
      sum += (uint32_t)(at + 1) * tiles[i][row * 32 + 4 * chunk + at % 4];
    }
  return (uint32_t)size * sum;
}

static void check(int size, int seed) {
  if (run((uint64_t)seed, size, 0))
    fail_msg("clusters of %d, seed %d: %s", size, seed, error_message());
  for (int t = 0; t < THREADS; t++) {
    uint32_t right = t < 32 ? 0 : expected(size, t - 32);
    if (out[1 + t] != right)
      fail_msg("clusters of %d, seed %d: thread %d has 0x%x, should be 0x%x", size, seed, t, out[1 + t], right);
  }
}

static void test_cluster_is_clean(void **state) {
  (void)state;
  for (int seed = 0; seed < CLEAN_SEEDS; seed++) {
    check(2, seed);
    if (seed % 10 == 0)
      check(1, seed), check(4, seed);
  }
}

/* Clusters that live at once, two of the three, share the tickets, in every order, and not always alike. */
static void test_tickets_are_shared(void **state) {
  (void)state;
  enum { SEEDS = 20 };
  int alike = 0;
  uint32_t before[CLUSTERS] = {0};
  for (int seed = 0; seed < SEEDS; seed++) {
    if (run((uint64_t)seed, 2, 21))
      fail_msg("seed %d: %s", seed, error_message());
    uint32_t sum = 0, taken[CLUSTERS];
    int sharing = 0;
    for (int c = 0; c < CLUSTERS; c++) {
      assert_int_equal(out[1 + 2 * c], out[2 + 2 * c]);
      sum += taken[c] = out[1 + 2 * c] / CONSUMERS;
      sharing += taken[c] > 0;
    }
    if (sharing < 2)
      fail_msg("seed %d: one cluster took all tickets", seed);
    assert_int_equal(sum, TILES);
    alike += memcmp(before, taken, sizeof taken) == 0;
    memcpy(before, taken, sizeof taken);
  }
  assert_true(alike < SEEDS - 1);
}

/* Blocks that read each other's shared memory. */
enum { ROUNDS = 3, EXCHANGERS = 32, LANES = 64, FLOATS = 6, EXCHANGE_BYTES = LANES * FLOATS * 4 };

static float left[ROUNDS][EXCHANGERS][LANES][FLOATS], added[EXCHANGERS][LANES][FLOATS];

static qkv_status exchange(uint64_t seed, int size, int mode) {
  const int blocks = size < 16 ? 2 * size : size;
  uint64_t random = seed + 1;
  for (int i = 0; i < ROUNDS * blocks * LANES * FLOATS; i++)
    (&left[0][0][0][0])[i] = fixture_uniform(&random);
  fixture f = fixture_open(seed);
  sm90_params p = {.mode = mode, .n = ROUNDS, .x = {size}};
  p.in = fixture_upload(&f, left, sizeof left);
  p.out = fixture_upload(&f, NULL, sizeof added);
  qkv_status status = sm90_launch_clusters(&f, "exchange", blocks, size, LANES, EXCHANGE_BYTES, &p);
  assert_int_equal(device_emu.copy_to_host(f.d, added, p.out, sizeof added), QKV_OK);
  device_emu.free(f.d, (void *)p.in), device_emu.free(f.d, p.out);
  fixture_close(&f);
  return status;
}

/* Rounds lie behind each other, as many blocks each as the launch has. */
static float expected_sum(int size, int block, int t, int i) {
  const int blocks = size < 16 ? 2 * size : size, first = block / size * size;
  float sum = 0;
  for (int round = 0; round < ROUNDS; round++)
    for (int cta = 0; cta < size; cta++)
      sum += (&left[0][0][0][0])[((round * blocks + first + cta) * LANES + (t ^ 33)) * FLOATS + i];
  return sum;
}

static void test_exchange_is_right(void **state) {
  (void)state;
  for (int size = 1; size <= 16; size *= 2)
    for (int seed = 0; seed < (size < 8 ? 20 : 3); seed++) {
      if (exchange((uint64_t)seed, size, 0))
        fail_msg("clusters of %d, seed %d: %s", size, seed, error_message());
      for (int at = 0; at < (size < 16 ? 2 * size : size) * LANES * FLOATS; at++) {
        const float right = expected_sum(size, at / FLOATS / LANES, at / FLOATS % LANES, at % FLOATS);
        if ((&added[0][0][0])[at] != right)
          fail_msg("clusters of %d, seed %d: float %d of block %d is %a, should be %a", size, seed,
                   at % (LANES * FLOATS), at / FLOATS / LANES, (double)(&added[0][0][0])[at], (double)right);
      }
    }
}

typedef struct mutant {
  int mode;
  const char *kinds, *says, *fault;
} mutant;

static const mutant exchange_mutants[] = {
    {1, "peer not there", "may not have started", "no cluster barrier before the peers' parts are read"},
    {2, "peer not there|race", "", "the cluster barrier is not waited for"},
    {3, "out of bounds", "block 2 of a cluster of 2", "a load from a block that does not exist"},
    {4, "race|uninitialised|out of bounds", "load_remote", "a load beyond the floats of four"},
    {5, "misaligned access|out of bounds", "load_remote", "a load of two floats across their place"},
    {6, "race", "", "no cluster barrier before the next round's parts"},
    {7, "peer not there", "barrier at the end", "no cluster barrier at the end"},
    {8, "peer not there", "barrier at the end", "the cluster barrier at the end is not waited for"},
};

static const mutant mutants[] = {
    {1, "peer not there|bad mbarrier", "", "no cluster barrier at the start"},
    {2, "peer not there", "barrier at the end", "no cluster barrier at the end"},
    {3, "race|bad mbarrier", "", "an arrival at the own mbarrier instead of the peer's"},
    {4, "deadlock", "2048 bytes missing", "a mask of the own block alone"},
    {5, "bad mbarrier|race|deadlock", "", "half the bytes expected"},
    {6, "race|bad mbarrier|deadlock", "", "arrivals of one block expected instead of both"},
    {7, "peer not there|bad mbarrier|race", "", "the cluster barrier at the start is not waited for"},
    {8, "out of bounds", "cluster of 2", "a mask of more blocks than the cluster has"},
    {9, "missing proxy fence", "fence_mbar_init", "no fence_mbar_init"},
    {10, "race", "of block 0 of the cluster", "a wait that does not acquire from peers"},
    {11, "race|bad mbarrier|deadlock", "", "nobody waits for free places"},
    {12, "race", "", "the ticket is announced before it is written"},
    {13, "deadlock", "2048 bytes missing", "a mask of the peer alone"},
    {14, "deadlock", "1 of 7 arrivals", "the peer's producer does not give the ticket back"},
    {15, "out of bounds", "block 2 of a cluster of 2", "an arrival at a block that does not exist"},
    {16, "peer not there", "barrier at the end", "the cluster barrier at the end is not waited for"},
    {17, "bad barrier", "second time", "a cluster_arrive too many"},
    {18, "race|bad mbarrier|deadlock", "", "the ticket is taken back before the peers have read it"},
    {19, "deadlock", "4096 bytes missing", "twice the bytes expected"},
    {20, "race|deadlock", "", "both shares land at one place"},
};

/* Says which mutants are not named under some seed; returns how many. */
static int count_unnamed(const mutant *table, size_t count, qkv_status (*runs)(uint64_t, int, int)) {
  int wrong = 0;
  for (size_t i = 0; i < count; i++)
    for (int seed = 0; seed < MUTANT_SEEDS; seed++) {
      qkv_status status = runs((uint64_t)seed, 2, table[i].mode);
      const char *message = status ? error_message() : "no fault";
      if (status == QKV_DEVICE_ERROR && fixture_names(message, table[i].kinds) && strstr(message, table[i].says))
        continue;
      print_error("mutant %d (%s), seed %d: \"%s\", should say \"emu: %s: ... %s\"\n", table[i].mode, table[i].fault,
                  seed, message, table[i].kinds, table[i].says);
      wrong++;
      break;
    }
  return wrong;
}

static void test_mutants_are_named(void **state) {
  (void)state;
  assert_int_equal(count_unnamed(mutants, sizeof mutants / sizeof *mutants, run), 0);
}

static void test_exchange_mutants_are_named(void **state) {
  (void)state;
  assert_int_equal(count_unnamed(exchange_mutants, sizeof exchange_mutants / sizeof *exchange_mutants, exchange), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cluster_is_clean),
      cmocka_unit_test(test_tickets_are_shared),
      cmocka_unit_test(test_mutants_are_named),
      cmocka_unit_test(test_exchange_is_right),
      cmocka_unit_test(test_exchange_mutants_are_named),
  };
  int failures = cmocka_run_group_tests(tests, setup, NULL);
  image_free(&fixture_image);
  return failures;
}
