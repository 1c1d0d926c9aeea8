/* qkv_pool_map.c: which granules of a pool have memory. A change is whole or not at all: what is wanted is noted first,
 * held against the limit, then mapped in all areas, and undone when the device refuses. All areas of a kind always have
 * memory at the same places. */
#include <stdlib.h>
#include <string.h>

#include "qkv_pool_internal.h"

/* ---- Addresses ---- */

qkv_status pool_reserve(qkv_pool *p) {
  for (int n = 0; n < p->nkinds; n++) {
    pool_kind *k = &p->kinds[n];
    void *base = NULL;
    qkv_status status = p->engine->ops->reserve(p->engine->device, (size_t)k->reserved, &base);
    if (status != QKV_OK)
      return error_context(status, POOL_SAYS, p->name);
    k->base = base;
    k->mapped = calloc((size_t)(p->lines * k->granules), 1); /* pages that are never touched cost nothing */
    k->tops = k->mapped ? calloc((size_t)p->lines, sizeof *k->tops) : NULL;
    if (!k->tops)
      return error_set(QKV_OUT_OF_MEMORY, POOL_SAYS "no host memory for the map of %lld granules", p->name,
                       (long long)(p->lines * k->granules));
  }
  return QKV_OK;
}

static void *granule_address(const qkv_pool *p, const pool_kind *k, int64_t area, int64_t line, int64_t granule) {
  return k->base + ((area * p->lines + line) * k->granules + granule) * p->granule;
}

/* ---- Runs ---- */

static int64_t run_bytes(const qkv_pool *p, const pool_run *r) {
  return r->count * r->kind->areas * p->granule;
}

static void run_mark(const pool_run *r, int mapped) {
  memset(r->kind->mapped + r->line * r->kind->granules + r->first, mapped, (size_t)r->count);
}

/* Unmaps a run in the first `areas` areas; the first failure counts. */
static qkv_status run_unmap(const qkv_pool *p, const pool_run *r, int64_t areas) {
  qkv_status first = QKV_OK;
  for (int64_t a = 0; a < areas; a++) {
    void *at = granule_address(p, r->kind, a, r->line, r->first);
    qkv_status status = p->engine->ops->unmap(p->engine->device, at, (size_t)p->granule, r->count);
    first = first == QKV_OK ? status : first;
  }
  return first;
}

static qkv_status run_map(const qkv_pool *p, const pool_run *r) {
  for (int64_t a = 0; a < r->kind->areas; a++) {
    void *at = granule_address(p, r->kind, a, r->line, r->first);
    qkv_status status = p->engine->ops->map(p->engine->device, at, (size_t)p->granule, r->count);
    if (status != QKV_OK) {
      run_unmap(p, r, a);
      return status;
    }
  }
  return QKV_OK;
}

/* ---- Mapping ---- */

static void note(qkv_pool *p, pool_run r) {
  if (p->nruns == p->runs_capacity) {
    int64_t larger = p->runs_capacity ? 2 * p->runs_capacity : 16;
    pool_run *grown = realloc(p->runs, (size_t)larger * sizeof *grown);
    if (!grown) {
      p->lost_runs = 1;
      return;
    }
    p->runs = grown;
    p->runs_capacity = larger;
  }
  run_mark(&r, 1);
  p->runs[p->nruns++] = r;
}

void pool_want(qkv_pool *p, int64_t line, int64_t first, int64_t count) {
  for (pool_kind *k = p->kinds; count > 0 && k < p->kinds + p->nkinds; k++) {
    const unsigned char *mapped = k->mapped + line * k->granules;
    int64_t end = ((first + count) * k->unit + p->granule - 1) / p->granule;
    for (int64_t g = first * k->unit / p->granule; g < end; g++) {
      pool_run r = {k, line, g, 0};
      while (g < end && !mapped[g])
        g++;
      r.count = g - r.first;
      if (r.count)
        note(p, r);
    }
    if (k->tops[line] < end)
      k->tops[line] = end;
  }
}

/* Whether the notes are complete and stay below the limit. */
static qkv_status check_room(const qkv_pool *p) {
  int64_t need = 0;
  if (p->lost_runs)
    return error_set(QKV_OUT_OF_MEMORY, POOL_SAYS "no host memory for a list of granules", p->name);
  for (int64_t n = 0; n < p->nruns; n++)
    need += run_bytes(p, &p->runs[n]);
  if (!p->options.max_bytes || need <= p->options.max_bytes - p->mapped_bytes)
    return QKV_OK;
  return error_set(QKV_OUT_OF_MEMORY,
                   POOL_SAYS "%lld more bytes are needed; of options.max_bytes, %lld, %lld are mapped, of which "
                             "qkv_pool_trim would return %lld",
                   p->name, (long long)need, (long long)p->options.max_bytes, (long long)p->mapped_bytes,
                   (long long)pool_idle(p));
}

static qkv_status map_notes(qkv_pool *p) {
  for (int64_t n = 0; n < p->nruns; n++) {
    qkv_status status = run_map(p, &p->runs[n]);
    if (status == QKV_OK)
      continue;
    error_context(status, POOL_SAYS "%lld bytes are mapped, and the device refuses more: ", p->name,
                  (long long)p->mapped_bytes);
    while (n-- > 0)
      run_unmap(p, &p->runs[n], p->runs[n].kind->areas);
    return status;
  }
  return QKV_OK;
}

qkv_status pool_map(qkv_pool *p) {
  qkv_status status = check_room(p);
  if (status == QKV_OK)
    status = map_notes(p);
  for (int64_t n = 0; n < p->nruns; n++) {
    run_mark(&p->runs[n], status == QKV_OK);
    p->mapped_bytes += status == QKV_OK ? run_bytes(p, &p->runs[n]) : 0;
  }
  p->nruns = p->lost_runs = 0;
  return status;
}

/* ---- Unmapping ---- */

static int is_idle(const qkv_pool *p, const pool_kind *k, int64_t line, int64_t granule) {
  int64_t end = ((granule + 1) * p->granule + k->unit - 1) / k->unit;
  return k->mapped[line * k->granules + granule] &&
         !pool_in_use(p, line, granule * p->granule / k->unit, end < p->units ? end : p->units);
}

/* The next run of idle granules of a line from `from` on; count 0: there is none. */
static pool_run next_idle(const qkv_pool *p, const pool_kind *k, int64_t line, int64_t from) {
  pool_run r = {k, line, from, 0};
  while (r.first < k->tops[line] && !is_idle(p, k, line, r.first))
    r.first++;
  while (r.first + r.count < k->tops[line] && is_idle(p, k, line, r.first + r.count))
    r.count++;
  return r;
}

int64_t pool_idle(const qkv_pool *p) {
  int64_t bytes = 0;
  for (const pool_kind *k = p->kinds; k < p->kinds + p->nkinds; k++)
    for (int64_t line = 0; line < p->lines; line++)
      for (pool_run r = next_idle(p, k, line, 0); r.count; r = next_idle(p, k, line, r.first + r.count))
        bytes += run_bytes(p, &r);
  return bytes;
}

/* After a failure the granules count as unmapped: mapping them again is then refused by the device, while using them
 * might have been a fault. */
qkv_status pool_unmap_idle(qkv_pool *p, int64_t *returned) {
  qkv_status first = QKV_OK;
  *returned = 0;
  for (pool_kind *k = p->kinds; k < p->kinds + p->nkinds && k->tops; k++)
    for (int64_t line = 0; line < p->lines; line++) {
      for (pool_run r = next_idle(p, k, line, 0); r.count; r = next_idle(p, k, line, r.first + r.count)) {
        qkv_status status = run_unmap(p, &r, k->areas);
        first = first == QKV_OK ? status : first;
        run_mark(&r, 0);
        *returned += run_bytes(p, &r);
      }
      while (k->tops[line] > 0 && !k->mapped[line * k->granules + k->tops[line] - 1])
        k->tops[line]--;
    }
  p->mapped_bytes -= *returned;
  return first == QKV_OK ? first : error_context(first, POOL_SAYS "memory cannot be returned: ", p->name);
}

void pool_unreserve(qkv_pool *p) {
  for (pool_kind *k = p->kinds; k < p->kinds + p->nkinds; k++) {
    if (k->base)
      p->engine->ops->unreserve(p->engine->device, k->base, (size_t)k->reserved);
    free(k->mapped);
    free(k->tops);
  }
  free(p->runs);
}
