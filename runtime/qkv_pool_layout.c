/* qkv_pool_layout.c: where the keys and values of a pool lie, by its spec and options. Arithmetic only. */
#include <stdio.h>
#include <string.h>

#include "qkv_pool_internal.h"

enum { ALIGNMENT = 16, MOST_LAYERS = 4096, MOST_LEN = 1 << 30 };

int64_t pool_part_bytes(const spec *s, pool_part part, int64_t tokens) {
  return tokens * s->heads_kv * (part == POOL_KEYS ? s->dim_qk : s->dim_v) * spec_dtype_size(s->dtype_kv);
}

static int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

/* ---- Options ---- */

/* What each mode makes of each number: its range, or that it has no meaning there. */
static qkv_status check_numbers(const qkv_pool_options *o) {
  const int blocks = o->mode == QKV_POOL_BLOCKS;
  const struct {
    const char *name;
    int64_t value, least, most;
  } rows[] = {{"layers", o->layers, 1, MOST_LAYERS},
              {"blocks", o->blocks, blocks, blocks ? INT32_MAX : 0},
              {"slots", o->slots, !blocks, blocks ? 0 : INT32_MAX},
              {"max_len", o->max_len, !blocks, blocks ? 0 : MOST_LEN},
              {"tile", o->tile, 0, blocks ? 0 : MOST_LEN},
              {"max_bytes", o->max_bytes, 0, INT64_MAX},
              {"granule", o->granule, 0, INT64_MAX}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    if (rows[n].value >= rows[n].least && rows[n].value <= rows[n].most)
      continue;
    if (rows[n].most == 0)
      return error_set(QKV_INVALID_ARGUMENT, "options.%s is %lld, but a %s has none", rows[n].name,
                       (long long)rows[n].value, blocks ? "pool of blocks" : "contiguous pool");
    return error_set(QKV_INVALID_ARGUMENT, "options.%s is %lld; it can be %lld to %lld", rows[n].name,
                     (long long)rows[n].value, (long long)rows[n].least, (long long)rows[n].most);
  }
  return QKV_OK;
}

static qkv_status check_options(const qkv_pool_options *o, const spec *s) {
  if (o->mode != QKV_POOL_BLOCKS && o->mode != QKV_POOL_CONTIGUOUS)
    return error_set(QKV_INVALID_ARGUMENT, "options.mode is %d; it can be QKV_POOL_BLOCKS or QKV_POOL_CONTIGUOUS",
                     (int)o->mode);
  if ((unsigned)o->placement > QKV_POOL_LAYERS_TOGETHER)
    return error_set(QKV_INVALID_ARGUMENT,
                     "options.placement is %d; it can be QKV_POOL_APART, QKV_POOL_KV_TOGETHER or "
                     "QKV_POOL_LAYERS_TOGETHER",
                     (int)o->placement);
  if (o->mode == QKV_POOL_BLOCKS && s->layout_kv != LAYOUT_PAGED)
    return error_set(QKV_INVALID_ARGUMENT,
                     "%s: a pool of blocks needs a page: `layout: {q: ragged, kv: {paged: {page: 16}}}`; layout.kv is "
                     "%s",
                     s->name, spec_layout_name(s->layout_kv));
  return check_numbers(o);
}

/* ---- Kinds ---- */

static qkv_status size_kind(const qkv_pool *p, pool_kind *k) {
  int64_t line, bytes;
  if (__builtin_mul_overflow(p->units, k->unit, &line) || line > INT64_MAX / 2 ||
      __builtin_mul_overflow(round_up(line, p->granule), p->lines * k->areas, &bytes) || bytes > INT64_MAX / 4)
    return error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "%lld layers of %lld %s of %lld %s each exceed 2^61 bytes",
                     p->name, (long long)p->options.layers, (long long)p->lines, p->lines == 1 ? "line" : "slots",
                     (long long)p->units, p->page == 1 ? "tokens" : "pages");
  k->granules = round_up(line, p->granule) / p->granule;
  k->reserved = bytes;
  return QKV_OK;
}

static void choose_kinds(qkv_pool *p) {
  const int64_t layers = p->options.layers, both = p->part_bytes[POOL_KEYS] + p->part_bytes[POOL_VALUES];
  switch (p->options.placement) {
  case QKV_POOL_APART:
    p->nkinds = 2;
    p->kinds[POOL_KEYS] = (pool_kind){.unit = p->part_bytes[POOL_KEYS], .areas = layers};
    p->kinds[POOL_VALUES] = (pool_kind){.unit = p->part_bytes[POOL_VALUES], .areas = layers};
    break;
  case QKV_POOL_KV_TOGETHER:
    p->nkinds = 1;
    p->kinds[0] = (pool_kind){.unit = both, .areas = layers};
    break;
  case QKV_POOL_LAYERS_TOGETHER:
    p->nkinds = 1;
    p->kinds[0] = (pool_kind){.unit = both * layers, .areas = 1};
    break;
  }
}

/* The granule asked for, or the device's. */
static qkv_status choose_granule(qkv_pool *p) {
  size_t least = 0;
  qkv_status status = p->engine->ops->granularity(p->engine->device, &least);
  if (status != QKV_OK)
    return status;
  p->granule = p->options.granule ? p->options.granule : (int64_t)least;
  if (p->granule % (int64_t)least || p->granule > INT64_MAX / 8)
    return error_set(QKV_INVALID_ARGUMENT, "options.granule is %lld, which is no multiple of %zu, the device's",
                     (long long)p->granule, least);
  return QKV_OK;
}

qkv_status pool_lay_out(qkv_pool *p, const spec *s) {
  qkv_status status = check_options(&p->options, s);
  if (status == QKV_OK)
    status = choose_granule(p);
  if (status != QKV_OK)
    return status;
  const int blocks = p->options.mode == QKV_POOL_BLOCKS;
  snprintf(p->name, sizeof p->name, "%s", s->name);
  p->dtype = dtype_of_spec(s->dtype_kv);
  p->heads = s->heads_kv;
  p->dims[POOL_KEYS] = s->dim_qk;
  p->dims[POOL_VALUES] = s->dim_v;
  p->page_order = blocks ? s->page_order : PAGE_NHD;
  p->page = blocks ? s->page_size : 1;
  p->lines = blocks ? 1 : p->options.slots;
  p->units = blocks ? p->options.blocks : p->options.max_len;
  for (int part = 0; part < POOL_PARTS; part++)
    p->part_bytes[part] = round_up(pool_part_bytes(s, (pool_part)part, p->page), ALIGNMENT);
  choose_kinds(p);
  for (int n = 0; n < p->nkinds && status == QKV_OK; n++)
    status = size_kind(p, &p->kinds[n]);
  return status;
}

/* ---- Tensors ---- */

qkv_tensor pool_tensor(const qkv_pool *p, int64_t layer, pool_part part) {
  const int apart = p->options.placement == QKV_POOL_APART;
  const int all = p->options.placement == QKV_POOL_LAYERS_TOGETHER;
  const pool_kind *k = &p->kinds[apart && part == POOL_VALUES];
  const int64_t both = p->part_bytes[POOL_KEYS] + p->part_bytes[POOL_VALUES], line = k->granules * p->granule;
  const int64_t offset = (all ? layer * both : 0) + (apart || part == POOL_KEYS ? 0 : p->part_bytes[POOL_KEYS]);
  const int64_t size = dtype_size(p->dtype), heads = p->heads, dim = p->dims[part], page = p->page;
  qkv_tensor t = {.data = k->base + (all ? 0 : layer) * p->lines * line + offset,
                  .dtype = p->dtype,
                  .rank = 4,
                  .stride = {[3] = 1}};
  t.shape[3] = dim;
  if (p->options.mode == QKV_POOL_CONTIGUOUS) {
    memcpy(t.shape, (int64_t[]){p->lines, p->units, heads}, 3 * sizeof *t.shape);
    memcpy(t.stride, (int64_t[]){line / size, k->unit / size, dim}, 3 * sizeof *t.stride);
  } else if (p->page_order == PAGE_HND) {
    memcpy(t.shape, (int64_t[]){p->units, heads, page}, 3 * sizeof *t.shape);
    memcpy(t.stride, (int64_t[]){k->unit / size, page * dim, dim}, 3 * sizeof *t.stride);
  } else {
    memcpy(t.shape, (int64_t[]){p->units, page, heads}, 3 * sizeof *t.shape);
    memcpy(t.stride, (int64_t[]){k->unit / size, heads * dim, dim}, 3 * sizeof *t.stride);
  }
  return t;
}
