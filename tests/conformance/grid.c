/* grid.c: a seeded covering sample of the product of all axes.
 *
 * Every axis is a list of fragments of a case line. A variant fixes the axes that make a spec, each of its runs those
 * that make a shape. Among random candidates the sampler takes the one that shows the most new pairs of values, so that
 * every value occurs and most pairs of values meet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

enum { MAX_VALUES = 48, CANDIDATES = 40 };

typedef struct axis {
  bool of_spec; /* else of the shape */
  const char *values[MAX_VALUES];
} axis;

// clang-format off
/* What both tables share. */
#define DIMS                                                                                                           \
  "dim=8", "dim=16", "dim=24", "dim=32", "dim=40", "dim=48", "dim=56", "dim=64", "dim=72", "dim=80", "dim=88",         \
      "dim=96", "dim=104", "dim=112", "dim=120", "dim=128", "dim=136", "dim=144", "dim=152", "dim=160", "dim=168",     \
      "dim=176", "dim=184", "dim=192", "dim=200", "dim=208", "dim=216", "dim=224", "dim=232", "dim=240", "dim=248",    \
      "dim=256"
/* None: that of Q and K, which every third spec keeps. */
#define DIMS_V                                                                                                         \
  "", "", "", "", "", "", "", "", "", "", "", "", "", "", "dimv=8", "dimv=16", "dimv=24", "dimv=32", "dimv=40",        \
      "dimv=48", "dimv=56", "dimv=64", "dimv=72", "dimv=80", "dimv=88", "dimv=96", "dimv=104", "dimv=112",             \
      "dimv=120", "dimv=128", "dimv=136", "dimv=144", "dimv=152", "dimv=160", "dimv=168", "dimv=176", "dimv=184",      \
      "dimv=192", "dimv=200", "dimv=208", "dimv=216", "dimv=224", "dimv=232", "dimv=240", "dimv=248", "dimv=256"
#define MASKS                                                                                                          \
  "", "mask='causal'", "mask='window(3, 0)'", "mask='window(16, 0)'", "mask='window(-1, 5)'",                          \
      "mask='window(7, 2)'", "mask='causal and q - k <= w'", "mask='causal and q - k < 20'", "mask='k < q - 3'",       \
      "mask='causal and k >= 40'", "mask='causal and (q - k) % 3 == 0'", "mask='causal and doc[q] == doc[k]'",         \
      "mask='same(doc)'", "mask='doc2[b, q] == doc2[b, k]'", "mask='k // 16 <= q // 16'",                              \
      "mask='(q * 7 + k * 3) % 5 != 0'", "mask='causal and q - k < 4 + 3 * h'", "mask='causal and q - k < head_w[h]'", \
      "mask='keep[b, k]'", "mask='blocks[h, i // 16, k // 16]'", "mask='prefix(9)'", "mask='causal or k < 9'",         \
      "mask='k < 4 or window(8, 0)'", "mask='causal and not (k > 5 and k < 30)'", "mask='abs(q - k) <= 6 or hk == 1'", \
      "mask='0 <= q - k < 33'"
#define SCORES                                                                                                         \
  "", "", "score='s + slope[h] * (k - q)'", "score='s + bias[h, i, k]'", "score='s + rel[h, k - q + 31]'",             \
      "score='where(k % 2 == 0, s, 0.5 * s)'", "score='s * temp'", "score='s + key_bias[h, k]'",                       \
      "score='2 * tanh(s) - 0.25 * log(1 + abs(q - k))'", "score='s + where(h % 2 == 0, 0.125, -0.125) * min(q, k)'"
#define SINKS "", "", "sink=normal", "sink=minus_inf outputs=all", "sink=plus4 outputs=all", "sink=minus4", "sink=mixed"
#define DTYPES "", "dtype=f16", "out=f32", "dtype=f16 out=f32"
/* Besides the first that can do it, which has another behind it for tensors that are not aligned. */
#define FAMILIES "", "", "", "family=attention_forward_sm80"
#define LAYOUTS_Q "", "", "", "q=bhtd", "q=padded", "q=base1", "q=inner2"
#define LAYOUTS_KV                                                                                                     \
  "", "", "", "k=bhtd v=bhtd", "k=cache v=cache", "k=padded", "v=rows2", "k=reversed v=bhtd", "k=heads0 v=heads0",     \
      "k=pitch1", "v=mixed", "k=shared0 v=shared0", "v=bhdt"
#define LAYOUTS_O "", "", "", "o=bhtd", "o=padded", "o=rows2", "o=mixed", "o=pitch1"
#define VALUES "", "", "", "values=spikes", "values=strong", "values=head", "values=rising", "values=ones"
#define GUARDS "", "guard=none", "guard=big"

static const axis grid_axes[] = {
    {true, {DIMS, "dim=64", "dim=128"}},
    {true, {DIMS_V}},
    {true, {"hq=1 hk=1",   "hq=2 hk=2",   "hq=4 hk=2",   "hq=3 hk=1",   "hq=6 hk=2",   "hq=8 hk=2",   "hq=5 hk=1",
            "hq=10 hk=2",  "hq=6 hk=1",   "hq=14 hk=2",  "hq=21 hk=3",  "hq=8 hk=1",   "hq=9 hk=1",   "hq=20 hk=2",
            "hq=11 hk=1",  "hq=24 hk=2",  "hq=13 hk=1",  "hq=14 hk=1",  "hq=15 hk=1",  "hq=32 hk=2",  "hq=71 hk=1",
            "hq=40 hk=1",  "hq=64 hk=1",  "hq=7 hk=7",   "hq=12 hk=4"}},
    {true, {MASKS}},
    {true, {SCORES}},
    {true, {"", "", "softcap=5", "softcap=30.0"}},
    {true, {SINKS}},
    {true, {DTYPES}},
    {true, {FAMILIES}},
    {true, {"", "align=top_left"}},
    {true, {"", "", "scale=0.25", "scale=-0.125"}},
    {false, {"lq=1 lk=1",    "lq=1 lk=2",     "lq=2 lk=1",    "lq=7 lk=7",    "lq=15 lk=16",  "lq=16 lk=15",  "lq=17 lk=17",
             "lq=31 lk=33",  "lq=33 lk=31",   "lq=32 lk=32",  "lq=1 lk=63",   "lq=64 lk=64",  "lq=65 lk=65",  "lq=63 lk=129",
             "lq=129 lk=63", "lq=127 lk=127", "lq=128 lk=128", "lq=129 lk=129", "lq=200 lk=200", "lq=257 lk=257",
             "lq=1 lk=257",  "lq=257 lk=1",   "lq=200 lk=7",  "lq=7 lk=200",  "lq=65 lk=200", "lq=130 lk=97", "lq=2 lk=128"}},
    {false, {"b=1", "b=2", "b=3"}},
    {false, {LAYOUTS_Q}},
    {false, {LAYOUTS_KV}},
    {false, {LAYOUTS_O}},
    {false, {VALUES}},
    {false, {GUARDS}},
};

/* The same for an emulator: small heads, and lengths of up to two tiles of rows and five of keys. */
static const axis tiny_axes[] = {
    {true, {DIMS}},
    {true, {DIMS_V}},
    {true, {"hq=1 hk=1", "hq=2 hk=2", "hq=3 hk=1", "hq=4 hk=2", "hq=5 hk=1", "hq=6 hk=2", "hq=7 hk=1"}},
    {true, {MASKS}},
    {true, {SCORES}},
    {true, {"", "", "softcap=5", "softcap=30.0"}},
    {true, {SINKS}},
    {true, {DTYPES}},
    {true, {FAMILIES}},
    {true, {"", "align=top_left"}},
    {true, {"", "", "scale=0.25", "scale=-0.125"}},
    {false, {"lq=1 lk=1", "lq=1 lk=2", "lq=2 lk=1", "lq=7 lk=7", "lq=15 lk=17", "lq=17 lk=15", "lq=1 lk=65", "lq=5 lk=64",
             "lq=33 lk=63", "lq=16 lk=130", "lq=40 lk=9", "lq=9 lk=257", "lq=130 lk=40", "lq=140 lk=150"}},
    {false, {"b=1", "b=2"}},
    {false, {LAYOUTS_Q}},
    {false, {LAYOUTS_KV}},
    {false, {LAYOUTS_O}},
    {false, {VALUES}},
    {false, {GUARDS}},
};
// clang-format on
enum { AXES = sizeof grid_axes / sizeof grid_axes[0] };
_Static_assert(AXES == sizeof tiny_axes / sizeof tiny_axes[0], "the two tables have the same axes");

/* What has been shown so far: seen[a][x][b][y], for a < b. */
typedef struct coverage {
  const axis *axes;
  int sizes[AXES];
  int used[AXES][MAX_VALUES];
  bool seen[AXES][MAX_VALUES][AXES][MAX_VALUES];
  uint64_t random;
} coverage;

static int draw(coverage *c, int below) {
  c->random = hash_mix(c->random);
  return (int)(c->random >> 33) % below;
}

/* A random value, half of the time the better of three by use. */
static int draw_value(coverage *c, int n) {
  int best = draw(c, c->sizes[n]);
  if (draw(c, 2) == 0)
    return best;
  for (int t = 0; t < 2; t++) {
    int other = draw(c, c->sizes[n]);
    if (c->used[n][other] < c->used[n][best])
      best = other;
  }
  return best;
}

static int new_pairs(const coverage *c, const int choice[AXES]) {
  int count = 0;
  for (int a = 0; a < AXES; a++) {
    if (c->used[a][choice[a]] == 0)
      count += 4; /* a value's first use outweighs a pair */
    for (int b = a + 1; b < AXES; b++)
      count += !c->seen[a][choice[a]][b][choice[b]];
  }
  return count;
}

static void record(coverage *c, const int choice[AXES]) {
  for (int a = 0; a < AXES; a++) {
    c->used[a][choice[a]]++;
    for (int b = a + 1; b < AXES; b++)
      c->seen[a][choice[a]][b][choice[b]] = true;
  }
}

/* The best of some random completions of `choice`; all axes, or only those of the shape. */
static void choose(coverage *c, int choice[AXES], bool shape_only) {
  int best[AXES], best_count = -1;
  for (int t = 0; t < CANDIDATES; t++) {
    int candidate[AXES];
    for (int n = 0; n < AXES; n++)
      candidate[n] = shape_only && c->axes[n].of_spec ? choice[n] : draw_value(c, n);
    int count = new_pairs(c, candidate);
    if (count <= best_count)
      continue;
    best_count = count;
    memcpy(best, candidate, sizeof best);
  }
  memcpy(choice, best, sizeof best);
}

static void add_choice(const coverage *c, const int choice[AXES], int seed, case_list *out) {
  char line[CASE_LINE];
  size_t used = 0;
  for (int n = 0; n < AXES; n++)
    used += (size_t)snprintf(line + used, sizeof line - used, "%s ", c->axes[n].values[choice[n]]);
  snprintf(line + used, sizeof line - used, "seed=%d", seed);
  case_list_expand(out, "grid", line);
}

int grid_build(bool tiny, int specs, int runs, uint64_t seed, case_list *out) {
  coverage *c = must_alloc(sizeof *c);
  c->axes = tiny ? tiny_axes : grid_axes;
  c->random = seed + 1;
  for (int n = 0; n < AXES; n++)
    while (c->sizes[n] < MAX_VALUES && c->axes[n].values[c->sizes[n]] != NULL)
      c->sizes[n]++;
  for (int s = 0; s < specs; s++) {
    int choice[AXES];
    for (int r = 0; r < runs; r++) {
      choose(c, choice, r > 0);
      record(c, choice);
      add_choice(c, choice, s * runs + r, out);
    }
  }
  int missed = 0;
  for (int n = 0; n < AXES; n++)
    for (int v = 0; v < c->sizes[n]; v++)
      missed += c->used[n][v] == 0;
  free(c);
  return missed;
}
