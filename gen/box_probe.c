/* box_probe.c: tries a box program on a sample of tiles, to see whether it is worth anything and to compare programs of
 * one mask. A guess by construction: it costs time when wrong, never results. */
#include "box.h"

enum { TILES = 12, SEGMENT = 97, DILATION = 4 };

/* Tiles near each other, and tiles far apart. */
static const struct { int tile, step; } samples[] = {{32, 96}, {128, 128}, {64, 64 * 29}};

static const int scalars[] = {37, 0, 1000};

static double read(void *user, int param, const int64_t *index) {
  (void)param;
  (void)index;
  return *(const int *)user;
}

/* What tensors hold mostly: of positions, the number of a segment; of anything else, where a segment begins. */
static int64_t element(const box_summary *s, int64_t index) {
  return s->direct ? index / SEGMENT : index * SEGMENT;
}

static double extreme(void *user, const box_summary *s, const int64_t *index, bool greatest) {
  (void)user;
  return (double)element(s, index[s->axis + greatest]);
}

static uint64_t label_set(void *user, const box_summary *s, const int64_t *index) {
  uint64_t set = 0;
  (void)user;
  for (int64_t e = element(s, index[s->axis]); e <= element(s, index[s->axis + 1]) && ~set; e++)
    set |= UINT64_C(1) << ((uint64_t)e % 64);
  return set;
}

static int decided(box_answer may) {
  return !may.may_be_true + !may.may_be_false;
}

int box_probe(const box_program *p) {
  int count = 0;
  for (int n = 0; n < (p->scalars ? 3 : 1); n++)
    for (int m = 0; m < 3; m++) {
      int scalar = scalars[n], tile = samples[m].tile, step = samples[m].step;
      box_env env = {.read = read, .extreme = extreme, .label_set = label_set, .user = &scalar};
      env.input[BOX_LEN_Q] = env.input[BOX_LEN_K] = (int64_t)step * TILES;
      env.input[BOX_DILATION] = DILATION;
      env.input[BOX_ALL_Q] = env.input[BOX_ALL_K] = DILATION * env.input[BOX_LEN_K];
      for (int at = 0; at < TILES * TILES; at++) {
        env.input[BOX_Q_FIRST] = (int64_t)(at / TILES) * step;
        env.input[BOX_K_FIRST] = (int64_t)(at % TILES) * step;
        env.input[BOX_Q_LAST] = env.input[BOX_Q_FIRST] + tile - 1;
        env.input[BOX_K_LAST] = env.input[BOX_K_FIRST] + tile - 1;
        count += decided(box_run(p, &env));
      }
    }
  return count;
}
