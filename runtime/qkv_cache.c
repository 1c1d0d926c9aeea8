/* qkv_cache.c: the user's calls on the cache: list, clear, limit, export. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cache_internal.h"
#include "qkv_internal.h"
#include "variant.h"

const char *qkv_cache_path(const qkv_engine *e) {
  return e ? cache_path(e->cache) : "";
}

/* The status of a walk over the directory. */
static qkv_status walked(const qkv_engine *e, int error) {
  return error == ENOMEM ? error_set(QKV_OUT_OF_MEMORY, "out of memory")
         : error         ? error_set(QKV_IO, "cannot read the cache directory %s: %s", cache_path(e->cache), strerror(error))
                         : QKV_OK;
}

qkv_status qkv_cache_list(qkv_engine *e, int (*visit)(const qkv_cache_entry *entry, void *user), void *user) {
  if (!e || !visit)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", e ? "visit" : "engine");
  return walked(e, cache_visit(e->cache, visit, user));
}

qkv_status qkv_cache_clear(qkv_engine *e, int only_invalid, int64_t *removed) {
  if (!e)
    return error_set(QKV_INVALID_ARGUMENT, "engine is NULL");
  int64_t count;
  const int error = cache_clear(e->cache, only_invalid, &count);
  if (removed)
    *removed = count;
  return walked(e, error);
}

qkv_status qkv_cache_gc(qkv_engine *e, const qkv_cache_gc_options *opt, qkv_cache_gc_report *out) {
  qkv_cache_gc_options o = QKV_CACHE_GC_OPTIONS_INIT;
  qkv_cache_gc_report report;
  if (!e || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", e ? "out" : "engine");
  qkv_status status = struct_take(&o, sizeof o, opt, "options");
  if (status != QKV_OK)
    return status;
  status = walked(e, cache_gc(e->cache, &o, &report));
  return status != QKV_OK ? status : struct_give(out, &report, sizeof report, "out");
}

/* ---- Export ---- */

enum { PHASES = 2 };

/* What an export takes: the filter, its specs as the hashes that manifests hold. */
typedef struct selection {
  qkv_cache_filter filter;
  char (*variants)[33];
  int nvariants;
} selection;

static int is_selected(const manifest *m, void *user) {
  const selection *s = user;
  int known = s->nvariants == 0;
  for (int n = 0; n < s->nvariants && !known; n++)
    known = !strcmp(m->variant_hash, s->variants[n]);
  return known && (!s->filter.arch || !strcmp(m->arch, s->filter.arch)) &&
         (!s->filter.family || !strcmp(m->family, s->filter.family));
}

static qkv_status select_specs(selection *s) {
  static const char *const phases[PHASES] = {"prefill", "append"}; /* the others have the first one's hash */
  if (s->filter.nspecs <= 0)
    return QKV_OK;
  s->variants = calloc((size_t)s->filter.nspecs * PHASES, sizeof *s->variants);
  if (!s->variants)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  for (int n = 0; n < s->filter.nspecs; n++)
    for (int phase = 0; phase < PHASES; phase++)
      if (!variant_hash(s->filter.specs[n]->parsed, phases[phase], s->variants[s->nvariants++]))
        return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  return QKV_OK;
}

static qkv_status export_to(qkv_engine *e, const char *directory, selection *s, int64_t *copied, int64_t *invalid) {
  text why = {0};
  struct stat from, to;
  qkv_status status = QKV_OK;
  if (!cache_claim_directory(directory, 0755, &why))
    status = error_set(QKV_IO, "cannot export to %s: %s", directory, why.bytes ? why.bytes : "?");
  else if (*cache_path(e->cache) && !stat(cache_path(e->cache), &from) && !stat(directory, &to) &&
           from.st_dev == to.st_dev && from.st_ino == to.st_ino)
    status = error_set(QKV_INVALID_ARGUMENT, "cannot export to %s: it is the cache directory itself", directory);
  text_free(&why);
  if (status != QKV_OK)
    return status;
  int unread;
  const int error = cache_export(e->cache, directory, is_selected, s, copied, invalid, &unread);
  if (unread)
    return walked(e, unread);
  return error ? error_set(QKV_IO, "cannot write to %s: %s", directory, strerror(error)) : QKV_OK;
}

qkv_status qkv_cache_export(qkv_engine *e, const qkv_cache_filter *filter, const char *directory, int64_t *copied,
                            int64_t *invalid) {
  selection s = {.filter = QKV_CACHE_FILTER_INIT};
  int64_t counts[2] = {0, 0};
  if (!e || !directory || !*directory)
    return error_set(QKV_INVALID_ARGUMENT, "%s", !e ? "engine is NULL" : directory ? "directory is ''" : "directory is NULL");
  qkv_status status = struct_take(&s.filter, sizeof s.filter, filter, "filter");
  if (status == QKV_OK && s.filter.nspecs < 0)
    status = error_set(QKV_INVALID_ARGUMENT, "filter.nspecs is %d", s.filter.nspecs);
  for (int n = 0; status == QKV_OK && n < s.filter.nspecs; n++)
    if (!s.filter.specs || !s.filter.specs[n])
      status = error_set(QKV_INVALID_ARGUMENT, "filter.specs[%d] is NULL", n);
  if (status == QKV_OK)
    status = select_specs(&s);
  if (status == QKV_OK)
    status = export_to(e, directory, &s, &counts[0], &counts[1]);
  free(s.variants);
  if (copied)
    *copied = counts[0];
  if (invalid)
    *invalid = counts[1];
  return status;
}
