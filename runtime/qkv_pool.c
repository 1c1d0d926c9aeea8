/* qkv_pool.c: the KV pool for the user: opening, blocks with their owners, slots with their lengths, figures. Who owns
 * what is decided here; where it lies and what is mapped are qkv_pool_layout.c and qkv_pool_map.c. */
#include <stdlib.h>
#include <string.h>

#include "qkv_pool_internal.h"

/* ---- Opening ---- */

/* The tables of the mode. All blocks are free. */
static qkv_status make_tables(qkv_pool *p) {
  const int64_t blocks = p->options.blocks, words = (blocks + 63) / 64;
  if (p->options.mode == QKV_POOL_CONTIGUOUS) {
    p->lengths = calloc((size_t)p->options.slots, sizeof *p->lengths);
    return p->lengths ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, POOL_SAYS "no host memory for its lengths", p->name);
  }
  p->owners = calloc((size_t)blocks, sizeof *p->owners);
  p->free = malloc((size_t)words * sizeof *p->free);
  if (!p->owners || !p->free)
    return error_set(QKV_OUT_OF_MEMORY, POOL_SAYS "no host memory for %lld blocks", p->name, (long long)blocks);
  memset(p->free, 0xff, (size_t)words * sizeof *p->free);
  if (blocks % 64)
    p->free[words - 1] = (UINT64_C(1) << blocks % 64) - 1;
  return QKV_OK;
}

qkv_status qkv_pool_open(qkv_engine *engine, const qkv_spec *s, const qkv_pool_options *options, qkv_pool **out) {
  if (out)
    *out = NULL;
  if (!engine || !s || !options || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL",
                     !engine    ? "engine"
                     : !s       ? "spec"
                     : !options ? "options"
                                : "out");
  if (!engine->ops)
    return error_set(QKV_NO_DEVICE, "the engine was opened with device \"none\", which only compiles");
  qkv_pool *p = calloc(1, sizeof *p);
  if (!p)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  pthread_mutex_init(&p->lock, NULL);
  p->engine = engine;
  p->options = (qkv_pool_options)QKV_POOL_OPTIONS_INIT;
  qkv_status status = struct_take(&p->options, sizeof p->options, options, "options");
  if (status == QKV_OK)
    status = pool_lay_out(p, s->parsed);
  if (status == QKV_OK)
    status = make_tables(p);
  if (status == QKV_OK)
    status = pool_reserve(p);
  if (status != QKV_OK) {
    qkv_pool_free(p);
    return status;
  }
  *out = p;
  return QKV_OK;
}

void qkv_pool_free(qkv_pool *p) {
  int64_t returned;
  if (!p)
    return;
  if (p->owners)
    memset(p->owners, 0, (size_t)p->options.blocks * sizeof *p->owners);
  if (p->lengths)
    memset(p->lengths, 0, (size_t)p->options.slots * sizeof *p->lengths);
  pool_unmap_idle(p, &returned);
  pool_unreserve(p);
  free(p->owners);
  free(p->free);
  free(p->lengths);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

qkv_status qkv_pool_tensors(const qkv_pool *p, int64_t layer, qkv_tensor *k, qkv_tensor *v) {
  if (!p)
    return error_set(QKV_INVALID_ARGUMENT, "pool is NULL");
  if (layer < 0 || layer >= p->options.layers)
    return error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "layer %lld is not there: there are %lld", p->name,
                     (long long)layer, (long long)p->options.layers);
  if (k)
    *k = pool_tensor(p, layer, POOL_KEYS);
  if (v)
    *v = pool_tensor(p, layer, POOL_VALUES);
  return QKV_OK;
}

static qkv_status need_mode(const qkv_pool *p, qkv_pool_mode mode) {
  if (!p)
    return error_set(QKV_INVALID_ARGUMENT, "pool is NULL");
  if (p->options.mode == mode)
    return QKV_OK;
  return error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "%s", p->name,
                   mode == QKV_POOL_BLOCKS ? "it is contiguous: it has slots and no blocks"
                                           : "it is one of blocks: it has no slots");
}

/* Tokens of a slot that have memory when its length is len. */
static int64_t tokens_with_memory(const qkv_pool *p, int64_t len) {
  int64_t tile = p->options.tile ? p->options.tile : 1, end = (len + tile - 1) / tile * tile;
  return end < p->units ? end : p->units;
}

int pool_in_use(const qkv_pool *p, int64_t line, int64_t first, int64_t end) {
  if (p->options.mode == QKV_POOL_CONTIGUOUS)
    return first < tokens_with_memory(p, p->lengths[line]);
  while (first < end && !p->owners[first])
    first++;
  return first < end;
}

/* ---- Blocks ---- */

/* The lowest free block; there is one. Words are only looked at again when a block in or below them was given back. */
static int64_t take_lowest(qkv_pool *p) {
  while (!p->free[p->low_word])
    p->low_word++;
  uint64_t *word = &p->free[p->low_word];
  int64_t block = p->low_word * 64 + __builtin_ctzll(*word);
  *word &= *word - 1;
  p->owners[block] = 1;
  p->used_units++;
  return block;
}

/* A block without owners may be handed out again; nothing happens when it may already. */
static void give_back(qkv_pool *p, int64_t block) {
  const uint64_t bit = UINT64_C(1) << block % 64;
  if (p->owners[block] || p->free[block / 64] & bit)
    return;
  p->free[block / 64] |= bit;
  if (block / 64 < p->low_word)
    p->low_word = block / 64;
  p->used_units--;
}

static qkv_status alloc_locked(qkv_pool *p, int64_t count, int32_t *blocks) {
  if (count > p->units - p->used_units)
    return error_set(QKV_OUT_OF_MEMORY, POOL_SAYS "%lld blocks are needed, %lld of %lld are free", p->name,
                     (long long)count, (long long)(p->units - p->used_units), (long long)p->units);
  for (int64_t n = 0; n < count; n++)
    blocks[n] = (int32_t)take_lowest(p);
  for (int64_t n = 0, first = 0; n < count; n++)
    if (n + 1 == count || blocks[n + 1] != blocks[n] + 1) {
      pool_want(p, 0, blocks[first], n + 1 - first);
      first = n + 1;
    }
  qkv_status status = pool_map(p);
  for (int64_t n = 0; n < count && status != QKV_OK; n++) {
    p->owners[blocks[n]] = 0;
    give_back(p, blocks[n]);
  }
  return status;
}

/* What all calls on a list of blocks need. */
static qkv_status check_list(const qkv_pool *p, int64_t count, const int32_t *blocks) {
  qkv_status status = need_mode(p, QKV_POOL_BLOCKS);
  if (status == QKV_OK && count < 0)
    status = error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "count is %lld", p->name, (long long)count);
  if (status == QKV_OK && count > 0 && !blocks)
    status = error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "blocks is NULL", p->name);
  return status;
}

static qkv_status check_block(const qkv_pool *p, int64_t n, int32_t block) {
  if (block >= 0 && block < p->units)
    return QKV_OK;
  return error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "blocks[%lld] is %d; blocks are 0 to %lld", p->name, (long long)n,
                   (int)block, (long long)p->units - 1);
}

qkv_status qkv_pool_alloc(qkv_pool *p, int64_t count, int32_t *blocks) {
  qkv_status status = check_list(p, count, blocks);
  if (status != QKV_OK || count == 0)
    return status;
  pthread_mutex_lock(&p->lock);
  status = alloc_locked(p, count, blocks);
  pthread_mutex_unlock(&p->lock);
  return status;
}

/* Adds `change` (1 or -1) to the owners of one block. */
static qkv_status change_owners(qkv_pool *p, int64_t n, int32_t block, int change) {
  qkv_status status = check_block(p, n, block);
  if (status != QKV_OK)
    return status;
  int32_t *owners = &p->owners[block];
  if (*owners == 0)
    return error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "blocks[%lld]: block %d is free%s", p->name, (long long)n,
                     (int)block, change < 0 ? "; it was released more often than it was allocated and retained" : "");
  if (change > 0 && *owners == INT32_MAX)
    return error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "blocks[%lld]: block %d has %d owners, the most", p->name,
                     (long long)n, (int)block, INT32_MAX);
  *owners += change;
  return QKV_OK;
}

/* The whole list, or nothing of it. A block is only given back once the list is through; it may stand there twice. */
static qkv_status change_list(qkv_pool *p, int64_t count, const int32_t *blocks, int change) {
  qkv_status status = check_list(p, count, blocks);
  int64_t done = 0;
  if (status != QKV_OK)
    return status;
  pthread_mutex_lock(&p->lock);
  while (status == QKV_OK && done < count) {
    status = change_owners(p, done, blocks[done], change);
    done += status == QKV_OK;
  }
  for (int64_t n = 0; n < done; n++)
    if (status != QKV_OK)
      p->owners[blocks[n]] -= change;
    else
      give_back(p, blocks[n]);
  pthread_mutex_unlock(&p->lock);
  return status;
}

qkv_status qkv_pool_retain(qkv_pool *p, int64_t count, const int32_t *blocks) {
  return change_list(p, count, blocks, 1);
}

qkv_status qkv_pool_release(qkv_pool *p, int64_t count, const int32_t *blocks) {
  return change_list(p, count, blocks, -1);
}

qkv_status qkv_pool_owners(qkv_pool *p, int32_t block, int64_t *owners) {
  qkv_status status = need_mode(p, QKV_POOL_BLOCKS);
  if (status == QKV_OK && !owners)
    status = error_set(QKV_INVALID_ARGUMENT, "owners is NULL");
  if (status == QKV_OK)
    status = check_block(p, 0, block);
  if (status != QKV_OK)
    return status;
  pthread_mutex_lock(&p->lock);
  *owners = p->owners[block];
  pthread_mutex_unlock(&p->lock);
  return QKV_OK;
}

/* ---- Slots ---- */

qkv_status qkv_pool_resize(qkv_pool *p, int64_t slot, int64_t len) {
  qkv_status status = need_mode(p, QKV_POOL_CONTIGUOUS);
  if (status != QKV_OK)
    return status;
  if (slot < 0 || slot >= p->lines)
    return error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "slot %lld is not there; slots are 0 to %lld", p->name,
                     (long long)slot, (long long)p->lines - 1);
  if (len < 0 || len > p->units)
    return error_set(QKV_INVALID_ARGUMENT, POOL_SAYS "slot %lld: length %lld; it can be 0 to max_len, %lld", p->name,
                     (long long)slot, (long long)len, (long long)p->units);
  pthread_mutex_lock(&p->lock);
  const int64_t before = p->lengths[slot];
  const int64_t from = tokens_with_memory(p, before), to = tokens_with_memory(p, len);
  p->lengths[slot] = len;
  pool_want(p, slot, from, to - from);
  status = pool_map(p);
  if (status == QKV_OK)
    p->used_units += len - before;
  else
    p->lengths[slot] = before;
  pthread_mutex_unlock(&p->lock);
  return status;
}

/* ---- All pools ---- */

qkv_status qkv_pool_trim(qkv_pool *p, int64_t *returned) {
  int64_t bytes;
  if (!p)
    return error_set(QKV_INVALID_ARGUMENT, "pool is NULL");
  pthread_mutex_lock(&p->lock);
  qkv_status status = pool_unmap_idle(p, &bytes);
  pthread_mutex_unlock(&p->lock);
  if (returned)
    *returned = bytes;
  return status;
}

static int64_t layer_bytes(const qkv_pool *p) {
  return p->part_bytes[POOL_KEYS] + p->part_bytes[POOL_VALUES];
}

qkv_status qkv_pool_get_info(qkv_pool *p, qkv_pool_info *out) {
  if (!p)
    return error_set(QKV_INVALID_ARGUMENT, "pool is NULL");
  const int64_t size = dtype_size(p->dtype);
  const int blocks = p->options.mode == QKV_POOL_BLOCKS;
  qkv_pool_info info = {.size = sizeof info,
                        .granule = p->granule,
                        .page = p->page,
                        .token_bytes = p->heads * (p->dims[POOL_KEYS] + p->dims[POOL_VALUES]) * size,
                        .page_bytes = layer_bytes(p),
                        .blocks = p->options.blocks,
                        .slots = p->options.slots};
  for (int n = 0; n < p->nkinds; n++)
    info.reserved += p->kinds[n].reserved;
  pthread_mutex_lock(&p->lock);
  info.mapped = p->mapped_bytes;
  info.used = p->used_units * layer_bytes(p) * p->options.layers;
  info.idle = pool_idle(p);
  info.blocks_used = blocks ? p->used_units : 0;
  info.tokens = blocks ? 0 : p->used_units;
  pthread_mutex_unlock(&p->lock);
  return struct_give(out, &info, sizeof info, "info");
}
