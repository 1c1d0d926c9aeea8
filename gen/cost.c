/* cost.c: see cost.h. The rates of an SM as one table, then the formula. */
#include "cost.h"

#include <math.h>
#include <stddef.h>

/* Of an SM and a clock. Sources: CUDA programming guide, "Throughput of native arithmetic instructions"; dense f16
 * rates of the GPUs' data sheets over SMs and clock. mma.sync on sm_90 reaches about 0.62 of wgmma
 * (attention_forward_sm80 on an H200, docs/performance.md). 0: has no such unit. */
typedef struct sm_rates {
  int number;                    /* of the architecture, and of newer ones up to the next row */
  double flops[COST_UNIT_COUNT]; /* by cost_unit */
  double exponentials, shared_bytes, l2_bytes;
  gen_device flagship;
} sm_rates;

/* clang-format off */
static const sm_rates table[] = {
    /*      wgmma mma   fma    exp shared L2    SMs  clock    memory   L2 */
    {80,  {0,    2048, 128},   16, 128,   40,  {108, 1.41e9,  2.039e12, 40e6}},
    {86,  {0,    1024, 256},   16, 128,   24,  {84,  1.74e9,  0.936e12, 6e6}},
    {87,  {0,    1024, 256},   16, 128,   24,  {16,  1.30e9,  0.205e12, 4e6}},
    {89,  {0,    1024, 256},   16, 128,   24,  {128, 2.52e9,  1.008e12, 72e6}},
    {90,  {4096, 2540, 256},   16, 128,   48,  {132, 1.98e9,  4.814e12, 62.9e6}},
    {100, {0,    2540, 256},   16, 128,   48,  {148, 1.92e9,  8.000e12, 126e6}},
    {120, {0,    1024, 256},   16, 128,   24,  {170, 2.41e9,  1.792e12, 98e6}},
};
/* clang-format on */

/* Shares of those rates that kernels reach at best: tensor cores under the power limit, and memory of which everything
 * is read once. Measured on an H200 (docs/tuning.md). */
static const double sustained_tensor = 0.85, sustained_memory = 0.96;
/* Seconds from a request for bytes of device memory to their arrival, with the memory busy. */
static const double memory_latency = 0.9e-6;

static const sm_rates *find_rates(const arch *a) {
  size_t n = sizeof table / sizeof table[0] - 1;
  while (n > 0 && table[n].number > a->number)
    n--;
  return &table[n];
}

gen_device cost_flagship(const arch *a) {
  return find_rates(a)->flagship;
}

static double greater(double x, double y) {
  return x > y ? x : y;
}

/* Parts that overlap: their sum for p = 1, the greatest for a large p. */
static double together(const double *parts, int count, double p) {
  double most = 0, sum = 0;
  for (int n = 0; n < count; n++)
    most = greater(most, parts[n]);
  for (int n = 0; n < count && most > 0; n++)
    sum += pow(parts[n] / most, p);
  return most > 0 ? most * pow(sum, 1 / p) : 0;
}

gen_estimate cost_estimate(const cost_counts *c, const arch *a, const gen_device *d) {
  const sm_rates *rates = find_rates(a);
  const double cycles = (double)d->sm_count * d->clock_hz; /* of all SMs in a second */
  gen_estimate e = {.waves = greater(c->waves, 1)};
  if (c->flops > 0)
    e.tensor = c->flops / (cycles * rates->flops[c->unit] * (c->unit == COST_FMA ? 1 : sustained_tensor));
  e.exponential = c->exponentials / (cycles * rates->exponentials);
  e.shared = c->shared_bytes / (cycles * rates->shared_bytes);
  /* So many bytes in every latency: by Little's law; near the limit, requests wait for each other. */
  const double loading[] = {c->memory_bytes / (sustained_memory * d->memory_bandwidth),
                            c->in_flight > 0 ? c->memory_bytes * memory_latency / c->in_flight : 0};
  e.memory = greater(together(loading, 2, 3), e.waves * c->l2_bytes / (cycles * rates->l2_bytes));
  /* Products are fed from shared memory: one hides the other. */
  const double feeding[] = {e.tensor, e.shared};
  const double parts[] = {together(feeding, 2, 8), e.exponential};
  const double busy = together(parts, 2, greater(c->overlap, 1)) + c->overhead / cycles;
  /* Loads run ahead of the work but for the first and the last. */
  const double both[] = {e.waves * busy, e.memory};
  e.seconds = c->fixed + greater(together(both, 2, 4), c->latency / d->clock_hz);
  return e;
}
