/* Selection from noisy samples whose truth is known: how often the best is found, that the incumbent stays within the
 * band, that order alone decides between equals, and that halving never loses a clear winner. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "../../tools/tune_stats.c"

static uint64_t state;

/* splitmix64 */
static double uniform(void) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static double normal(void) {
  double sum = -6;
  for (int n = 0; n < 12; n++)
    sum += uniform();
  return sum;
}

enum { MOST = 16, SAMPLES = 15 };

/* Samples in turns: each round has a drift that all share, each sample noise of its own, one in twenty an interruption
 * that doubles it. */
static void measure(const double *truth, int count, int taken, double noise, double *samples) {
  double drift = 1;
  for (int s = 0; s < taken; s++) {
    drift *= 1 + 0.01 * normal();
    for (int n = 0; n < count; n++)
      samples[n * taken + s] = truth[n] * drift * (1 + noise * normal()) * (uniform() < 0.05 ? 2 : 1);
  }
}

static void test_quantiles(void **unused) {
  (void)unused;
  const double samples[] = {5, 1, 4, 2, 3};
  assert_true(stats_median(samples, 5) == 3 && stats_quantile(samples, 5, 0) == 1 &&
              stats_quantile(samples, 5, 1) == 5);
  assert_true(stats_median(samples, 4) == 3 && stats_quantile(samples, 5, 0.1) == 1.4);
  assert_true(stats_median(samples, 1) == 5);
}

/* In how many of 1000 runs the winner's true time is within `within` of the best. */
static int runs_within(const double *truth, int count, int incumbent, double noise, double within) {
  double samples[MOST * SAMPLES], best = truth[0];
  int good = 0;
  for (int n = 1; n < count; n++)
    best = truth[n] < best ? truth[n] : best;
  for (int run = 0; run < 1000; run++) {
    state = (uint64_t)run * 7919 + 1;
    measure(truth, count, SAMPLES, noise, samples);
    good += truth[stats_select(samples, SAMPLES, count, 1, incumbent)] <= best * (1 + within);
  }
  return good;
}

static void test_best_is_found(void **unused) {
  (void)unused;
  const double truth[] = {1.0, 1.02, 0.97, 0.93, 1.1, 0.99};
  const int clear = runs_within(truth, 6, 0, 0.005, 0);
  const int close = runs_within(truth, 6, 0, 0.02, 0.04);
  if (clear < 995 || close < 950)
    fail_msg("the best of 4 %% was found in %d of 1000 runs at noise 0.5 %%, within 4 %% in %d at 2 %%", clear, close);
}

/* A challenger that is as fast, or faster by less than anyone can tell, does not replace what is there. */
static void test_incumbent_stays(void **unused) {
  (void)unused;
  double truth[8], samples[MOST * SAMPLES];
  int kept = 0;
  for (int n = 0; n < 8; n++)
    truth[n] = n == 5 ? 0.999 : 1;
  for (int run = 0; run < 1000; run++) {
    state = (uint64_t)run * 104729 + 3;
    measure(truth, 8, SAMPLES, 0.01, samples);
    kept += stats_select(samples, SAMPLES, 8, 1, 2) == 2;
  }
  if (kept < 900)
    fail_msg("the incumbent stayed in %d of 1000 runs", kept);
}

/* Equal challengers, both better than the incumbent: whatever noise says, the first of them wins. */
static void test_ties_are_fixed(void **unused) {
  (void)unused;
  const double truth[] = {1.2, 1.0, 1.3, 1.0, 1.0};
  double samples[MOST * SAMPLES];
  int first = 0;
  for (int run = 0; run < 1000; run++) {
    state = (uint64_t)run * 31 + 7;
    measure(truth, 5, SAMPLES, 0.01, samples);
    first += stats_select(samples, SAMPLES, 5, 1, 0) == 1;
  }
  if (first < 900)
    fail_msg("the first of three equals won in %d of 1000 runs", first);
  measure(truth, 5, SAMPLES, 0, samples); /* without noise: always */
  for (int s = 0; s < 5 * SAMPLES; s++)
    samples[s] = truth[s / SAMPLES];
  assert_int_equal(stats_select(samples, SAMPLES, 5, 1, 0), 1);
  assert_int_equal(stats_select(samples, SAMPLES, 5, 1, 4), 4);
}

/* Rounds as the tuner has them: 3, 6, 12 samples. */
static void test_halving(void **unused) {
  (void)unused;
  double truth[MOST], samples[MOST * SAMPLES];
  int lost = 0, most_left = 0;
  for (int n = 0; n < MOST; n++)
    truth[n] = 1 + 0.03 * n;
  truth[11] = 0.95;
  for (int run = 0; run < 1000; run++) {
    bool alive[MOST];
    int left = 0;
    memset(alive, true, sizeof alive);
    state = (uint64_t)run * 65537 + 11;
    for (int taken = 3; taken <= 12; taken *= 2) {
      measure(truth, MOST, taken, 0.01, samples);
      stats_halve(samples, taken, MOST, 4, 15, alive);
    }
    for (int n = 0; n < MOST; n++)
      left += alive[n];
    lost += !alive[11];
    most_left = left > most_left ? left : most_left;
    assert_true(alive[15] && left >= 4); /* the slowest, which is always kept */
  }
  if (lost > 10 || most_left > 12)
    fail_msg("the best was lost in %d of 1000 runs; up to %d of 16 were left", lost, most_left);
}

/* Over workloads: best on the whole, and out when slower than the incumbent on one. */
static void test_all_workloads(void **unused) {
  (void)unused;
  enum { WORKLOADS = 3, COUNT = 4 };
  const double truth[WORKLOADS][COUNT] = {{1, 0.8, 0.9, 1}, {10, 10.5, 9.3, 10}, {0.1, 0.07, 0.095, 0.1}};
  double samples[WORKLOADS * COUNT * SAMPLES];
  for (int run = 0; run < 200; run++) {
    state = (uint64_t)run + 1000;
    for (int w = 0; w < WORKLOADS; w++)
      measure(truth[w], COUNT, SAMPLES, 0.003, samples + w * COUNT * SAMPLES);
    const int winner = stats_select(samples, SAMPLES, COUNT, WORKLOADS, 0);
    if (winner != 2)
      fail_msg("run %d: candidate %d won", run, winner);
    assert_int_equal(stats_select(samples, SAMPLES, COUNT, WORKLOADS, 2), 2);
  }
}

/* A table's entry over several workloads gives way to the default that beats it in the mean, or on one of them; not to
 * one that noise alone puts ahead. */
static void test_incumbent_gives_way_to_default(void **unused) {
  (void)unused;
  enum { WORKLOADS = 3, COUNT = 2, DEFAULT = 0, INCUMBENT = 1 };
  static const struct {
    double incumbent[WORKLOADS]; /* over the default's time */
    int base;
  } known[] = {{{0.9, 0.9, 0.9}, INCUMBENT},  {{1.0, 1.0, 1.0}, INCUMBENT}, {{0.8, 0.9, 1.05}, DEFAULT},
               {{1.05, 1.05, 1.05}, DEFAULT}, {{0.95, 1.2, 1.2}, DEFAULT},  {{1.0, 1.0, 0.7}, INCUMBENT}};
  double samples[WORKLOADS * COUNT * SAMPLES];
  for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
    int right = 0;
    for (int run = 0; run < 200; run++) {
      state = (uint64_t)run * 17 + n + 1;
      for (int w = 0; w < WORKLOADS; w++) {
        const double truth[COUNT] = {1, known[n].incumbent[w]};
        measure(truth, COUNT, SAMPLES, 0.003, samples + w * COUNT * SAMPLES);
      }
      right += stats_base(samples, SAMPLES, COUNT, WORKLOADS, INCUMBENT, DEFAULT) == known[n].base;
      assert_int_equal(stats_base(samples, SAMPLES, COUNT, WORKLOADS, DEFAULT, DEFAULT), DEFAULT);
    }
    if (right < 190)
      fail_msg("case %zu: right in %d of 200 runs", n, right);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_quantiles),
                                     cmocka_unit_test(test_best_is_found),
                                     cmocka_unit_test(test_incumbent_stays),
                                     cmocka_unit_test(test_ties_are_fixed),
                                     cmocka_unit_test(test_halving),
                                     cmocka_unit_test(test_all_workloads),
                                     cmocka_unit_test(test_incumbent_gives_way_to_default)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
