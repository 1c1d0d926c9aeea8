/* The KV pool against a brute-force model: thousands of random operations, after each of which the same blocks are in
 * use, the same granules have memory and all contents are where they were. The model knows nothing of how the pool lays
 * things out: which granules a page or token needs, it reads off the addresses of the tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qkv_internal.h"

static void need(qkv_status status) {
  if (status != QKV_OK)
    fail_msg("status %d: %s", (int)status, qkv_last_error(NULL));
}

static void expect(qkv_status got, qkv_status wanted, const char *says) {
  if (got != wanted || !strstr(qkv_last_error(NULL), says))
    fail_msg("status %d, \"%s\"; should be %d, \"... %s ...\"", (int)got, qkv_last_error(NULL), (int)wanted, says);
}

static uint64_t next(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static int64_t below(uint64_t *state, int64_t n) {
  return (int64_t)(next(state) % (uint64_t)n);
}

/* ---- A device that counts, and fails when it is told to ---- */

static device_ops counting;     /* the emulator's table, with the two functions below */
static int64_t granules_now;    /* mapped and not unmapped */
static int64_t fail_after = -1; /* so many calls of map succeed, then one fails; -1: none */

static qkv_status count_map(device *d, void *at, size_t granule, int64_t count) {
  if (fail_after >= 0 && fail_after-- == 0)
    return error_set(QKV_OUT_OF_MEMORY, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: injected");
  qkv_status status = device_emu.map(d, at, granule, count);
  granules_now += status == QKV_OK ? count : 0;
  return status;
}

static qkv_status count_unmap(device *d, void *at, size_t granule, int64_t count) {
  qkv_status status = device_emu.unmap(d, at, granule, count);
  granules_now -= status == QKV_OK ? count : 0;
  return status;
}

static qkv_engine *engine_open(size_t granule) {
  qkv_options o = QKV_OPTIONS_INIT;
  qkv_engine *e;
  o.device = "emu";
  o.cache_dir = "";
  o.emu_granule = granule;
  need(qkv_open(&o, &e));
  counting = device_emu;
  counting.map = count_map;
  counting.unmap = count_unmap;
  e->ops = &counting;
  granules_now = 0;
  fail_after = -1;
  return e;
}

static qkv_spec *spec_of(int heads, const char *dim, const char *dtype, const char *kv) {
  char yaml[512];
  qkv_spec *s;
  snprintf(
      yaml, sizeof yaml,
      "qkvc: 1\nname: pooled\nattention: {heads: {q: %d, kv: %d}, dim: %s, dtype: %s}\nlayout: {q: ragged, kv: %s}\n",
      heads, heads, dim, dtype, kv);
  need(qkv_spec_check(yaml, 0, &s));
  return s;
}

/* ---- The model ---- */

enum { MOST_TENSORS = 16 };

typedef struct model {
  qkv_engine *engine;
  qkv_pool *pool;
  qkv_pool_options options;
  qkv_tensor tensors[MOST_TENSORS];
  int ntensors;
  size_t granule, element;
  int64_t lines, units;  /* lines of units: one of blocks, or slots of tokens */
  int64_t *use;          /* [lines * units]: owners, or 1 below the length */
  uintptr_t *granules;   /* addresses, ascending, of all the pool may need */
  char *mapped, *needed; /* [ngranules] */
  int64_t ngranules;
  uint64_t random;
  const char *what; /* of the case, for messages */
  int step;
} model;

/* Where a unit of a tensor lies. */
static char *unit_address(const model *m, const qkv_tensor *t, int64_t line, int64_t unit) {
  int64_t offset = m->options.mode == QKV_POOL_BLOCKS ? unit * t->stride[0] : line * t->stride[0] + unit * t->stride[1];
  return (char *)t->data + offset * (int64_t)m->element;
}

static size_t unit_bytes(const model *m, const qkv_tensor *t) {
  int64_t elements = t->shape[2] * t->shape[3] * (m->options.mode == QKV_POOL_BLOCKS ? t->shape[1] : 1);
  return (size_t)elements * m->element;
}

static int compare(const void *a, const void *b) {
  uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
  return x < y ? -1 : x > y;
}

/* The place of a granule in the list. */
static int64_t granule_index(const model *m, uintptr_t address) {
  uintptr_t *found = bsearch(&address, m->granules, (size_t)m->ngranules, sizeof address, compare);
  assert_non_null(found);
  return found - m->granules;
}

/* Granules are counted from where a range starts: with the first tensor, or with the first keys and the first values.
 */
static uintptr_t granule_of(const model *m, int tensor, uintptr_t address) {
  int first = m->options.placement == QKV_POOL_APART ? tensor % 2 : 0;
  return address - (address - (uintptr_t)m->tensors[first].data) % m->granule;
}

#define EACH_GRANULE(m, t, line, unit, g)                                                                              \
  for (uintptr_t at_ = (uintptr_t)unit_address(m, &(m)->tensors[t], line, unit), g = granule_of(m, t, at_);            \
       g < at_ + unit_bytes(m, &(m)->tensors[t]); g += (m)->granule)

static void list_granules(model *m) {
  int64_t capacity = 0, n = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int t = 0; t < m->ntensors; t++)
      for (int64_t u = 0; u < m->lines * m->units; u++)
        EACH_GRANULE(m, t, u / m->units, u % m->units, g) {
          if (pass)
            m->granules[n++] = g;
          else
            capacity++;
        }
    if (!pass)
      m->granules = malloc((size_t)capacity * sizeof *m->granules);
  }
  qsort(m->granules, (size_t)n, sizeof *m->granules, compare);
  for (int64_t i = 0; i < n; i++)
    if (!i || m->granules[i] != m->granules[i - 1])
      m->granules[m->ngranules++] = m->granules[i];
  m->mapped = calloc((size_t)m->ngranules, 1);
  m->needed = calloc((size_t)m->ngranules, 1);
}

static void model_open(model *m, qkv_engine *e, const qkv_spec *s) {
  m->engine = e;
  need(qkv_pool_open(e, s, &m->options, &m->pool));
  qkv_pool_info info = {.size = sizeof info};
  need(qkv_pool_get_info(m->pool, &info));
  assert_int_equal(info.mapped, 0);
  m->granule = (size_t)info.granule;
  for (int64_t layer = 0; layer < m->options.layers; layer++, m->ntensors += 2)
    need(qkv_pool_tensors(m->pool, layer, &m->tensors[m->ntensors], &m->tensors[m->ntensors + 1]));
  const int blocks = m->options.mode == QKV_POOL_BLOCKS;
  m->element = (size_t)dtype_size(m->tensors[0].dtype);
  m->lines = blocks ? 1 : m->options.slots;
  m->units = blocks ? m->options.blocks : m->options.max_len;
  m->use = calloc((size_t)(m->lines * m->units), sizeof *m->use);
  list_granules(m);
}

static void model_close(model *m) {
  qkv_pool_free(m->pool);
  assert_int_equal(granules_now, 0);
  free(m->use);
  free(m->granules);
  free(m->mapped);
  free(m->needed);
}

/* Sets `needed` to what units in use need; `tile`: of slots, the tokens up to the next multiple count too. */
static void find_needed(model *m) {
  int64_t tile = m->options.tile ? m->options.tile : 1;
  memset(m->needed, 0, (size_t)m->ngranules);
  for (int64_t line = 0; line < m->lines; line++)
    for (int64_t u = 0; u < m->units; u++) {
      if (!m->use[line * m->units + u] && (u % tile == 0 || !m->use[line * m->units + u / tile * tile]))
        continue;
      for (int t = 0; t < m->ntensors; t++)
        EACH_GRANULE(m, t, line, u, g) m->needed[granule_index(m, g)] = 1;
    }
}

/* Granules that would have memory if those in use were added. */
static int64_t count_after(model *m) {
  int64_t count = 0;
  find_needed(m);
  for (int64_t i = 0; i < m->ngranules; i++)
    count += m->needed[i] || m->mapped[i];
  return count;
}

static void add_needed(model *m) {
  for (int64_t i = 0; i < m->ngranules; i++)
    m->mapped[i] |= m->needed[i];
}

static void differ(const model *m, const char *what, int64_t found, int64_t wanted) {
  if (found != wanted)
    fail_msg("%s, step %d: %s is %lld, the model says %lld", m->what, m->step, what, (long long)found,
             (long long)wanted);
}

/* What stands in the first and last byte of a unit in use. */
static unsigned char mark_of(int tensor, int64_t line, int64_t unit) {
  return (unsigned char)(17 * tensor + 31 * line + 7 * unit + 1);
}

static void write_marks(const model *m, int64_t line, int64_t unit) {
  for (int t = 0; t < m->ntensors; t++) {
    char *at = unit_address(m, &m->tensors[t], line, unit);
    unsigned char mark = mark_of(t, line, unit);
    need(qkv_copy_to_device(m->engine, at, &mark, 1));
    need(qkv_copy_to_device(m->engine, at + unit_bytes(m, &m->tensors[t]) - 1, &mark, 1));
  }
}

static void check_marks(const model *m) {
  for (int64_t line = 0; line < m->lines; line++)
    for (int64_t u = 0; u < m->units; u++)
      for (int t = 0; t < m->ntensors && m->use[line * m->units + u]; t++) {
        unsigned char first = 0, last = 0;
        char *at = unit_address(m, &m->tensors[t], line, u);
        need(qkv_copy_to_host(m->engine, &first, at, 1));
        need(qkv_copy_to_host(m->engine, &last, at + unit_bytes(m, &m->tensors[t]) - 1, 1));
        differ(m, "the first byte of a unit", first, mark_of(t, line, u));
        differ(m, "the last byte of a unit", last, mark_of(t, line, u));
      }
}

/* Figures, and which granules can be touched. */
static void check(model *m) {
  qkv_pool_info info = {.size = sizeof info};
  int64_t used = 0, mapped = 0, idle = 0;
  for (int64_t i = 0; i < m->lines * m->units; i++)
    used += m->use[i] != 0;
  find_needed(m);
  for (int64_t i = 0; i < m->ngranules; i++) {
    mapped += m->mapped[i];
    idle += m->mapped[i] && !m->needed[i];
  }
  need(qkv_pool_get_info(m->pool, &info));
  differ(m, "units in use", info.blocks_used + info.tokens, used);
  differ(m, "bytes mapped", info.mapped, mapped * (int64_t)m->granule);
  differ(m, "bytes idle", info.idle, idle * (int64_t)m->granule);
  differ(m, "bytes used", info.used, used * info.page_bytes * m->options.layers);
  differ(m, "granules of the device", granules_now, mapped);
  for (int probe = 0; probe < 20; probe++) {
    int64_t i = below(&m->random, m->ngranules);
    char byte, *at = (char *)m->granules[i] + below(&m->random, (int64_t)m->granule);
    differ(m, "whether a byte has memory", qkv_copy_to_host(m->engine, &byte, at, 1) == QKV_OK, m->mapped[i]);
  }
}

/* Whether a call may have failed: by the limit, or because it was told to. Then nothing has changed. */
static int may_fail(const model *m, qkv_status status, int64_t after) {
  int over = m->options.max_bytes && after * (int64_t)m->granule > m->options.max_bytes;
  if (status == QKV_OK) {
    differ(m, "whether the limit is kept", over, 0);
    return 0;
  }
  if (status != QKV_OUT_OF_MEMORY || !strstr(qkv_last_error(NULL), over ? "qkv_pool_trim would return" : "injected"))
    fail_msg("%s, step %d: status %d, %s", m->what, m->step, (int)status, qkv_last_error(NULL));
  return 1;
}

static void trim(model *m) {
  int64_t returned, before = granules_now;
  need(qkv_pool_trim(m->pool, &returned));
  find_needed(m);
  for (int64_t i = 0; i < m->ngranules; i++)
    m->mapped[i] &= m->needed[i];
  differ(m, "bytes returned", returned, (before - granules_now) * (int64_t)m->granule);
}

/* ---- Random operations ---- */

static void step_alloc(model *m) {
  enum { MOST = 9 };
  int32_t got[MOST];
  int64_t count = below(&m->random, MOST), lowest[MOST], found = 0;
  for (int64_t u = 0; u < m->units && found < count; u++)
    if (!m->use[u])
      lowest[found++] = u;
  qkv_status status = qkv_pool_alloc(m->pool, count, got);
  if (found < count) {
    expect(status, QKV_OUT_OF_MEMORY, "are free");
    return;
  }
  for (int64_t n = 0; n < count; n++)
    m->use[lowest[n]] = 1;
  if (may_fail(m, status, count_after(m))) {
    for (int64_t n = 0; n < count; n++)
      m->use[lowest[n]] = 0;
    return;
  }
  add_needed(m);
  for (int64_t n = 0; n < count; n++) {
    differ(m, "a block", got[n], lowest[n]);
    write_marks(m, 0, got[n]);
  }
}

/* Random numbers, some of them wrong: all or nothing. */
static void step_owners(model *m, int change) {
  enum { MOST = 6 };
  int32_t list[MOST];
  int64_t count = below(&m->random, MOST), done = 0;
  int bad = below(&m->random, 8) == 0;
  for (int64_t n = 0; n < count; n++) {
    int64_t u = below(&m->random, m->units), tries = 0;
    while (!bad && !m->use[u] && tries++ < m->units)
      u = (u + 1) % m->units;
    list[n] = (int32_t)u;
  }
  if (bad && count && below(&m->random, 2))
    list[below(&m->random, count)] = below(&m->random, 2) ? -1 : (int32_t)m->units;
  while (done < count && list[done] >= 0 && list[done] < m->units && m->use[list[done]] > 0)
    m->use[list[done++]] += change;
  qkv_status status = change > 0 ? qkv_pool_retain(m->pool, count, list) : qkv_pool_release(m->pool, count, list);
  differ(m, "whether a list of blocks is refused", status == QKV_INVALID_ARGUMENT, done < count);
  for (int64_t n = 0; done < count && n < done; n++)
    m->use[list[n]] -= change;
  int64_t owners, some = below(&m->random, m->units);
  need(qkv_pool_owners(m->pool, (int32_t)some, &owners));
  differ(m, "owners of a block", owners, m->use[some]);
}

static void step_resize(model *m) {
  int64_t slot = below(&m->random, m->lines), before = 0, len;
  int64_t *line = m->use + slot * m->units;
  while (before < m->units && line[before])
    before++;
  switch (below(&m->random, 4)) { /* a token more, anything, nothing */
  case 0:
    len = below(&m->random, m->units + 1);
    break;
  case 1:
    len = 0;
    break;
  default:
    len = before + below(&m->random, 5);
    len = len < m->units ? len : m->units;
  }
  for (int64_t u = 0; u < m->units; u++)
    line[u] = u < len;
  qkv_status status = qkv_pool_resize(m->pool, slot, len);
  if (may_fail(m, status, count_after(m))) {
    for (int64_t u = 0; u < m->units; u++)
      line[u] = u < before;
    return;
  }
  add_needed(m);
  for (int64_t u = before; u < len; u++)
    write_marks(m, slot, u);
}

static void run_steps(model *m, int steps) {
  for (m->step = 0; m->step < steps; m->step++) {
    fail_after = below(&m->random, 6) == 0 ? below(&m->random, 4) : -1;
    int64_t choice = below(&m->random, 20);
    if (choice == 0)
      trim(m);
    else if (m->options.mode == QKV_POOL_CONTIGUOUS)
      step_resize(m);
    else if (choice < 8)
      step_alloc(m);
    else
      step_owners(m, choice < 17 ? -1 : 1);
    fail_after = -1;
    check(m);
    if (m->step % 50 == 0)
      check_marks(m);
  }
  check_marks(m);
}

static const struct {
  const char *name;
  int heads;
  const char *dim, *dtype, *kv;
  int64_t blocks, layers, granules; /* granules: of options.granule, in those of the device; 0: not given */
} block_cases[] = {
    {"page 1", 1, "8", "{q: bf16, kv: e4m3, out: bf16}", "{paged: {page: 1, order: nhd}}", 3000, 1, 0},
    {"page 16", 2, "64", "bf16", "{paged: {page: 16, order: nhd}}", 90, 3, 0},
    {"page 17, unequal dims", 3, "{qk: 72, v: 40}", "f16", "{paged: {page: 17, order: hnd}}", 100, 2, 0},
    {"page 256", 1, "{qk: 192, v: 128}", "bf16", "{paged: {page: 256, order: nhd}}", 9, 2, 0},
    {"page 17, two granules at once", 1, "40", "f32", "{paged: {page: 17, order: nhd}}", 130, 2, 2},
    {"page 5, 72 bytes of keys", 1, "24", "{q: f16, kv: e5m2, out: f16}", "{paged: {page: 3, order: nhd}}", 700, 2, 0},
};

static void test_blocks(void **state) {
  (void)state;
  static const size_t granules[] = {4096, 65536};
  for (size_t n = 0; n < sizeof block_cases / sizeof *block_cases; n++)
    for (int g = 0; g < 2; g++)
      for (int placement = 0; placement < 3; placement++) {
        char what[128];
        qkv_engine *e = engine_open(granules[g]);
        qkv_spec *s = spec_of(block_cases[n].heads, block_cases[n].dim, block_cases[n].dtype, block_cases[n].kv);
        snprintf(what, sizeof what, "%s, granule %zu, placement %d", block_cases[n].name, granules[g], placement);
        model m = {.options = QKV_POOL_OPTIONS_INIT, .random = 88172645463325252ull + n, .what = what};
        m.options.placement = (qkv_pool_placement)placement;
        m.options.blocks = block_cases[n].blocks;
        m.options.layers = block_cases[n].layers;
        m.options.granule = block_cases[n].granules * (int64_t)granules[g];
        if (placement == 1) /* below what all blocks need */
          m.options.max_bytes = 24 * (int64_t)granules[g] * (block_cases[n].granules ? 2 : 1);
        model_open(&m, e, s);
        run_steps(&m, 400);
        model_close(&m);
        qkv_spec_free(s);
        qkv_close(e);
      }
}

static const struct {
  const char *name;
  int heads;
  const char *dim, *dtype;
  int64_t slots, max_len, layers, tile;
} slot_cases[] = {{"16-bit slots", 2, "64", "bf16", 5, 300, 2, 0},
                  {"unequal dims", 1, "{qk: 192, v: 128}", "f16", 3, 257, 2, 64},
                  {"72 bytes of keys", 3, "24", "{q: f16, kv: e4m3, out: f16}", 4, 500, 1, 128},
                  {"one token", 1, "8", "f32", 7, 1, 3, 0},
                  {"a tile of everything", 1, "40", "bf16", 2, 100, 1, 4096}};

static void test_slots(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof slot_cases / sizeof *slot_cases; n++)
    for (int placement = 0; placement < 3; placement++) {
      char what[128];
      qkv_engine *e = engine_open(4096);
      qkv_spec *s = spec_of(slot_cases[n].heads, slot_cases[n].dim, slot_cases[n].dtype, "ragged");
      snprintf(what, sizeof what, "%s, placement %d", slot_cases[n].name, placement);
      model m = {.options = QKV_POOL_OPTIONS_INIT, .random = 362436069123456789ull + n, .what = what};
      m.options.mode = QKV_POOL_CONTIGUOUS;
      m.options.placement = (qkv_pool_placement)placement;
      m.options.slots = slot_cases[n].slots;
      m.options.max_len = slot_cases[n].max_len;
      m.options.layers = slot_cases[n].layers;
      m.options.tile = slot_cases[n].tile;
      m.options.max_bytes = placement == 2 ? 40 * 4096 : 0;
      model_open(&m, e, s);
      run_steps(&m, 400);
      model_close(&m);
      qkv_spec_free(s);
      qkv_close(e);
    }
}

/* ---- Tensors ---- */

/* Every element of every tensor has bytes of its own, and they lie in what is reserved. */
static void test_tensors_are_disjoint(void **state) {
  (void)state;
  static const char *const kvs[] = {"{paged: {page: 3, order: nhd}}", "{paged: {page: 3, order: hnd}}", "ragged"};
  for (int n = 0; n < 3 * 3; n++) {
    qkv_engine *e = engine_open(4096);
    qkv_spec *s = spec_of(3, "{qk: 24, v: 8}", "{q: f16, kv: e4m3, out: f16}", kvs[n / 3]);
    qkv_pool_options o = QKV_POOL_OPTIONS_INIT;
    qkv_pool *p;
    o.placement = (qkv_pool_placement)(n % 3);
    o.layers = 2;
    o.mode = n / 3 == 2 ? QKV_POOL_CONTIGUOUS : QKV_POOL_BLOCKS;
    *(o.mode ? &o.slots : &o.blocks) = 50;
    o.max_len = o.mode ? 40 : 0;
    need(qkv_pool_open(e, s, &o, &p));
    qkv_tensor t[4];
    for (int layer = 0; layer < 2; layer++)
      need(qkv_pool_tensors(p, layer, &t[2 * layer], &t[2 * layer + 1]));
    int64_t total = 0, bytes = 0;
    for (int i = 0; i < 4; i++)
      total += t[i].shape[0] * t[i].shape[1] * t[i].shape[2] * t[i].shape[3];
    uintptr_t *all = malloc((size_t)total * sizeof *all);
    for (int i = 0; i < 4; i++) {
      int64_t at[4];
      assert_int_equal(t[i].dtype, QKV_E4M3);
      assert_int_equal(t[i].shape[n / 3 == 1 ? 1 : 2], 3);
      assert_int_equal(t[i].shape[3], i % 2 ? 8 : 24);
      for (at[0] = 0; at[0] < t[i].shape[0]; at[0]++)
        for (at[1] = 0; at[1] < t[i].shape[1]; at[1]++) {
          uintptr_t start = (uintptr_t)t[i].data + (uintptr_t)(at[0] * t[i].stride[0] + at[1] * t[i].stride[1]);
          if (at[1] == 0 || o.mode)
            assert_int_equal(start % 16, 0);
          for (at[2] = 0; at[2] < t[i].shape[2]; at[2]++)
            for (at[3] = 0; at[3] < t[i].shape[3]; at[3]++)
              all[bytes++] = start + (uintptr_t)(at[2] * t[i].stride[2] + at[3] * t[i].stride[3]);
        }
    }
    qsort(all, (size_t)total, sizeof *all, compare);
    for (int64_t i = 1; i < total; i++)
      if (all[i] == all[i - 1])
        fail_msg("layout %s, placement %d: two elements at one address", kvs[n / 3], n % 3);
    free(all);
    qkv_pool_free(p);
    qkv_spec_free(s);
    qkv_close(e);
  }
}

/* ---- Refusals ---- */

static void test_open_refuses(void **state) {
  (void)state;
  const struct {
    qkv_pool_options o;
    const char *kv, *says;
  } rows[] = {
#define OPTIONS .size = sizeof(qkv_pool_options)
      {{OPTIONS, .layers = 1, .blocks = 4}, "ragged", "a pool of blocks needs a page"},
      {{OPTIONS, .layers = 0, .blocks = 4}, NULL, "options.layers is 0; it can be 1 to 4096"},
      {{OPTIONS, .layers = 1}, NULL, "options.blocks is 0; it can be 1 to 2147483647"},
      {{OPTIONS, .layers = 1, .blocks = 1ll << 31}, NULL, "options.blocks is 2147483648"},
      {{OPTIONS, .layers = 1, .blocks = 4, .slots = 1}, NULL, "options.slots is 1, but a pool of blocks has none"},
      {{OPTIONS, .layers = 1, .blocks = 4, .max_len = 1}, NULL, "options.max_len is 1, but"},
      {{OPTIONS, .layers = 1, .blocks = 4, .tile = 1}, NULL, "options.tile is 1, but"},
      {{OPTIONS, .layers = 1, .blocks = 4, .max_bytes = -1}, NULL, "options.max_bytes is -1"},
      {{OPTIONS, .layers = 1, .blocks = 4, .granule = 6000}, NULL, "options.granule is 6000, which is no multiple of"},
      {{OPTIONS, .layers = 1, .blocks = 4, .placement = 3}, NULL, "options.placement is 3"},
      {{OPTIONS, .mode = 2, .layers = 1, .blocks = 4}, NULL, "options.mode is 2"},
      {{OPTIONS, .mode = QKV_POOL_CONTIGUOUS, .layers = 1, .slots = 2}, NULL, "options.max_len is 0"},
      {{OPTIONS, .mode = QKV_POOL_CONTIGUOUS, .layers = 1, .slots = 2, .max_len = 9, .blocks = 2},
       NULL,
       "options.blocks is 2, but a contiguous pool has none"},
      {{OPTIONS, .mode = QKV_POOL_CONTIGUOUS, .layers = 4096, .slots = INT32_MAX, .max_len = 1 << 30},
       NULL,
       "exceed 2^61 bytes"},
      {{.size = 0}, NULL, "options.size is not set"},
#undef OPTIONS
  };
  qkv_engine *e = engine_open(4096);
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    qkv_spec *s = spec_of(1, "64", "bf16", rows[n].kv ? rows[n].kv : "{paged: {page: 16}}");
    qkv_pool *p = (qkv_pool *)(uintptr_t)1;
    expect(qkv_pool_open(e, s, &rows[n].o, &p), QKV_INVALID_ARGUMENT, rows[n].says);
    assert_null(p);
    qkv_spec_free(s);
  }
  qkv_spec *s = spec_of(1, "64", "bf16", "{paged: {page: 16}}");
  qkv_pool_options o = QKV_POOL_OPTIONS_INIT;
  qkv_pool *p;
  expect(qkv_pool_open(NULL, s, &o, &p), QKV_INVALID_ARGUMENT, "engine is NULL");
  expect(qkv_pool_open(e, NULL, &o, &p), QKV_INVALID_ARGUMENT, "spec is NULL");
  expect(qkv_pool_open(e, s, NULL, &p), QKV_INVALID_ARGUMENT, "options is NULL");
  expect(qkv_pool_open(e, s, &o, NULL), QKV_INVALID_ARGUMENT, "out is NULL");
  o.mode = QKV_POOL_CONTIGUOUS;
  o.slots = 1 << 20;
  o.max_len = 1 << 30; /* 2^57 bytes each of K and V */
  expect(qkv_pool_open(e, s, &o, &p), QKV_OUT_OF_MEMORY, "pool of pooled: ");
  qkv_close(e);
  qkv_options none = QKV_OPTIONS_INIT;
  none.device = "none";
  none.cache_dir = "";
  need(qkv_open(&none, &e));
  expect(qkv_pool_open(e, s, &o, &p), QKV_NO_DEVICE, "only compiles");
  qkv_close(e);
  none.device = "emu";
  none.emu_granule = 12345;
  expect(qkv_open(&none, &e), QKV_INVALID_ARGUMENT, "emu_granule: 12345 bytes");
  qkv_spec_free(s);
  qkv_pool_free(NULL);
}

static qkv_pool *open_blocks(qkv_engine *e, int64_t blocks, int64_t max_bytes) {
  qkv_spec *s = spec_of(1, "64", "bf16", "{paged: {page: 16}}"); /* 2048 bytes of K a page */
  qkv_pool_options o = QKV_POOL_OPTIONS_INIT;
  qkv_pool *p;
  o.blocks = blocks;
  o.max_bytes = max_bytes;
  need(qkv_pool_open(e, s, &o, &p));
  qkv_spec_free(s);
  return p;
}

static qkv_pool *open_slots(qkv_engine *e, int64_t slots, int64_t max_len) {
  qkv_spec *s = spec_of(1, "64", "bf16", "ragged");
  qkv_pool_options o = QKV_POOL_OPTIONS_INIT;
  qkv_pool *p;
  o.mode = QKV_POOL_CONTIGUOUS;
  o.slots = slots;
  o.max_len = max_len;
  need(qkv_pool_open(e, s, &o, &p));
  qkv_spec_free(s);
  return p;
}

static void test_calls_refuse(void **state) {
  (void)state;
  qkv_engine *e = engine_open(4096);
  qkv_pool *blocks = open_blocks(e, 6, 0), *slots = open_slots(e, 2, 100);
  int32_t b[8];
  int64_t owners;
  qkv_tensor t;
  need(qkv_pool_alloc(blocks, 4, b));
  need(qkv_pool_alloc(blocks, 0, NULL));
  expect(qkv_pool_alloc(blocks, 3, b + 4), QKV_OUT_OF_MEMORY, "pool of pooled: 3 blocks are needed, 2 of 6 are free");
  expect(qkv_pool_alloc(blocks, -1, b), QKV_INVALID_ARGUMENT, "count is -1");
  expect(qkv_pool_alloc(blocks, 1, NULL), QKV_INVALID_ARGUMENT, "blocks is NULL");
  expect(qkv_pool_release(blocks, 2, (int32_t[]){0, 6}), QKV_INVALID_ARGUMENT, "blocks[1] is 6; blocks are 0 to 5");
  expect(qkv_pool_retain(blocks, 1, (int32_t[]){-1}), QKV_INVALID_ARGUMENT, "blocks[0] is -1; blocks are 0 to 5");
  expect(qkv_pool_retain(blocks, 1, (int32_t[]){5}), QKV_INVALID_ARGUMENT, "block 5 is free");
  expect(qkv_pool_release(blocks, 3, (int32_t[]){1, 2, 1}), QKV_INVALID_ARGUMENT,
         "blocks[2]: block 1 is free; it was released more often");
  need(qkv_pool_owners(blocks, 1, &owners)); /* nothing of the refused list was done */
  assert_int_equal(owners, 1);
  expect(qkv_pool_owners(blocks, 6, &owners), QKV_INVALID_ARGUMENT, "is 6; blocks are");
  expect(qkv_pool_owners(blocks, 1, NULL), QKV_INVALID_ARGUMENT, "owners is NULL");
  expect(qkv_pool_resize(blocks, 0, 1), QKV_INVALID_ARGUMENT, "it is one of blocks: it has no slots");
  expect(qkv_pool_alloc(slots, 1, b), QKV_INVALID_ARGUMENT, "it is contiguous: it has slots and no blocks");
  expect(qkv_pool_resize(slots, 2, 1), QKV_INVALID_ARGUMENT, "slot 2 is not there; slots are 0 to 1");
  expect(qkv_pool_resize(slots, -1, 1), QKV_INVALID_ARGUMENT, "slot -1 is not there");
  expect(qkv_pool_resize(slots, 1, 101), QKV_INVALID_ARGUMENT, "slot 1: length 101; it can be 0 to max_len, 100");
  expect(qkv_pool_resize(slots, 1, -1), QKV_INVALID_ARGUMENT, "length -1");
  expect(qkv_pool_tensors(slots, 1, &t, NULL), QKV_INVALID_ARGUMENT, "layer 1 is not there: there are 1");
  expect(qkv_pool_tensors(NULL, 0, &t, NULL), QKV_INVALID_ARGUMENT, "pool is NULL");
  expect(qkv_pool_alloc(NULL, 1, b), QKV_INVALID_ARGUMENT, "pool is NULL");
  expect(qkv_pool_trim(NULL, NULL), QKV_INVALID_ARGUMENT, "pool is NULL");
  expect(qkv_pool_get_info(blocks, NULL), QKV_INVALID_ARGUMENT, "info is NULL");
  need(qkv_pool_trim(blocks, NULL));
  qkv_pool_free(blocks);
  qkv_pool_free(slots);
  qkv_close(e);
}

/* The limit on memory: what is missing is said, nothing is done, and after a trim it fits. */
static void test_limit(void **state) {
  (void)state;
  qkv_engine *e = engine_open(4096);
  qkv_pool *p = open_blocks(e, 100, 6 * 4096); /* two blocks a granule of K and one of V: three pairs */
  int32_t b[6], more[2];
  int64_t returned;
  need(qkv_pool_alloc(p, 6, b));
  expect(qkv_pool_alloc(p, 1, more), QKV_OUT_OF_MEMORY,
         "8192 more bytes are needed; of options.max_bytes, 24576, 24576 are mapped, of which qkv_pool_trim would "
         "return 0");
  need(qkv_pool_release(p, 2, b + 2));
  need(qkv_pool_alloc(p, 2, more)); /* the memory of the released blocks */
  assert_int_equal(more[0], 2);
  need(qkv_pool_release(p, 4, b));
  need(qkv_pool_trim(p, &returned));
  assert_int_equal(returned, 4 * 4096);
  need(qkv_pool_alloc(p, 4, b));
  qkv_pool_free(p);
  p = open_slots(e, 4, 64);
  fail_after = 1; /* K gets memory, V does not */
  expect(qkv_pool_resize(p, 3, 5), QKV_OUT_OF_MEMORY,
         "pool of pooled: 0 bytes are mapped, and the device refuses more: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY");
  assert_int_equal(granules_now, 0);
  need(qkv_pool_resize(p, 3, 5));
  assert_int_equal(granules_now, 2);
  qkv_pool_free(p);
  qkv_close(e);
}

/* ---- Memory ---- */

static int dies_writing(char *at) {
  pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL); /* cmocka and sanitizers have handlers of their own */
    signal(SIGBUS, SIG_DFL);
    *(volatile char *)at = 1;
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status);
}

/* Memory that is mapped can be written as such, the rest faults: at once, and for the emulator's copies by name. */
static void test_the_rest_faults(void **state) {
  (void)state;
  enum { LENGTH = 100 };
  qkv_engine *e = engine_open(4096);
  qkv_pool *p = open_slots(e, 2, 1000);
  qkv_tensor k, v;
  need(qkv_pool_tensors(p, 0, &k, &v));
  need(qkv_pool_resize(p, 1, LENGTH)); /* 12800 bytes: 4 granules of 32 tokens */
  const struct {
    int64_t slot, token;
    int there;
  } rows[] = {{0, 0, 0}, {0, 999, 0}, {1, 0, 1}, {1, LENGTH - 1, 1}, {1, 127, 1}, {1, 128, 0}, {1, 999, 0}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
    for (int part = 0; part < 2; part++) {
      const qkv_tensor *t = part ? &v : &k;
      char *at = (char *)t->data + 2 * (rows[n].slot * t->stride[0] + rows[n].token * t->stride[1]), byte = 0;
      assert_int_equal(dies_writing(at), !rows[n].there);
      assert_int_equal(qkv_copy_to_device(e, at, &byte, 1) == QKV_OK, rows[n].there);
    }
  char *first = (char *)k.data + 2 * k.stride[0], buffer[8];
  expect(qkv_copy_to_host(e, buffer, first + 4 * 4096 - 4, 8), QKV_INVALID_ARGUMENT, "not inside a live");
  expect(qkv_free(e, k.data), QKV_INVALID_ARGUMENT, "not the start of a live allocation");
  need(qkv_pool_resize(p, 1, 0)); /* keeps its memory */
  assert_false(dies_writing(first));
  need(qkv_pool_trim(p, NULL));
  assert_true(dies_writing(first));
  qkv_pool_free(p);
  expect(qkv_copy_to_device(e, first, buffer, 1), QKV_INVALID_ARGUMENT, "not inside a live");
  qkv_close(e);
}

/* ---- Threads ---- */

enum { THREADS = 4, ROUNDS = 3000, SHARED_BLOCKS = 40 };

typedef struct worker {
  qkv_engine *engine;
  qkv_pool *blocks, *slots;
  _Atomic int *taken; /* [SHARED_BLOCKS] */
  int number, bad;
} worker;

/* A block belongs to one thread at a time, its contents stay, and every slot is its thread's own. */
static void *work(void *argument) {
  worker *w = argument;
  uint64_t random = 1000003u * (uint64_t)(w->number + 1);
  qkv_tensor k;
  qkv_pool_tensors(w->blocks, 0, &k, NULL);
  for (int n = 0; n < ROUNDS && !w->bad; n++) {
    int32_t b[4];
    int64_t count = 1 + below(&random, 4);
    if (qkv_pool_alloc(w->blocks, count, b) == QKV_OK) {
      for (int64_t i = 0; i < count; i++) {
        char *at = (char *)k.data + 2 * b[i] * k.stride[0], mine = (char)(w->number + 1), found = 0;
        w->bad |= atomic_fetch_add(&w->taken[b[i]], 1) != 0;
        w->bad |= qkv_copy_to_device(w->engine, at, &mine, 1) || qkv_pool_retain(w->blocks, 1, &b[i]) ||
                  qkv_copy_to_host(w->engine, &found, at, 1) || found != mine;
        w->bad |= qkv_pool_release(w->blocks, 1, &b[i]) != QKV_OK;
        atomic_fetch_sub(&w->taken[b[i]], 1);
      }
      w->bad |= qkv_pool_release(w->blocks, count, b) != QKV_OK;
    }
    w->bad |= qkv_pool_resize(w->slots, w->number, below(&random, 100)) != QKV_OK;
    if (n % 16 == 0)
      w->bad |= qkv_pool_trim(w->blocks, NULL) || qkv_pool_trim(w->slots, NULL);
  }
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  _Atomic int taken[SHARED_BLOCKS] = {0};
  qkv_engine *e = engine_open(4096);
  e->ops = &device_emu; /* the counters are not for threads */
  qkv_pool *blocks = open_blocks(e, SHARED_BLOCKS, 0), *slots = open_slots(e, THREADS, 100);
  worker workers[THREADS];
  pthread_t threads[THREADS];
  for (int n = 0; n < THREADS; n++) {
    workers[n] = (worker){e, blocks, slots, taken, n, 0};
    assert_int_equal(pthread_create(&threads[n], NULL, work, &workers[n]), 0);
  }
  for (int n = 0; n < THREADS; n++) {
    pthread_join(threads[n], NULL);
    if (workers[n].bad)
      fail_msg("thread %d saw a block or slot that was not its own", n);
    need(qkv_pool_resize(slots, n, 0));
  }
  qkv_pool *pools[] = {blocks, slots};
  for (int n = 0; n < 2; n++) {
    qkv_pool_info info = {.size = sizeof info};
    need(qkv_pool_trim(pools[n], NULL));
    need(qkv_pool_get_info(pools[n], &info));
    assert_true(info.mapped == 0 && info.used == 0 && info.idle == 0 && info.reserved > 0);
    qkv_pool_free(pools[n]);
  }
  qkv_close(e);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_blocks),          cmocka_unit_test(test_slots),
      cmocka_unit_test(test_open_refuses),    cmocka_unit_test(test_tensors_are_disjoint),
      cmocka_unit_test(test_calls_refuse),    cmocka_unit_test(test_limit),
      cmocka_unit_test(test_the_rest_faults), cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
