/* cache_gc.c: keeps the directory under its size limit, never at the cost of entries in use.
 *
 * In use is what a living process of this host has loaded or published and still has open (cache_lease.c), and what
 * anybody has used lately, wherever he is: every hit renews the time stamp of an entry that is older than a minute. On
 * network file systems, where there are no leases, lately is a day. Of the others those go first that were used longest
 * ago. Any number of processes may do this at once: they agree on the order, and what another has removed counts as
 * gone. An entry that is taken into use in the very moment of its removal is in memory already. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "cache_internal.h"

enum { LATELY = 600, LATELY_ON_NETWORK = 86400 }; /* seconds */

static int oldest_first(const void *a, const void *b) {
  const cache_item *x = a, *y = b;
  return x->age != y->age ? (x->age < y->age) - (x->age > y->age) : strcmp(x->name, y->name);
}

/* Used since it was looked at? */
static int is_renewed(const cache *c, const cache_item *item) {
  text path = {0};
  struct stat st;
  text_printf(&path, "%s/%s", c->path, item->name);
  int renewed = !path.failed && lstat(path.bytes, &st) == 0 &&
                (st.st_mtim.tv_sec != item->modified.tv_sec || st.st_mtim.tv_nsec != item->modified.tv_nsec);
  text_free(&path);
  return renewed;
}

/* Removes what the options say from a scan in order of age. */
static void collect(const cache *c, const cache_items *f, const qkv_cache_gc_options *o, qkv_cache_gc_report *r) {
  int network = 0;
  cache_file_system(c->path, &network);
  const int lately = network ? LATELY_ON_NETWORK : LATELY;
  cache_uses uses = cache_uses_find(c);
  for (size_t n = 0; n < f->count; n++) {
    const cache_item *item = &f->items[n];
    if (item->temporary) {
      if (item->age > CACHE_ABANDONED && !o->dry_run)
        cache_remove_file(c, item->name);
      continue;
    }
    int goes = r->bytes > o->max_bytes || (o->older_than >= 0 && item->age > o->older_than);
    if (goes && (item->age <= lately || cache_uses_has(&uses, item->name) || is_renewed(c, item))) {
      r->in_use++;
    } else if (goes && (o->dry_run || cache_remove_file(c, item->name))) {
      r->bytes -= item->bytes;
      r->entries--;
      r->removed++;
      r->removed_bytes += item->bytes;
    }
  }
  free(uses.keys);
}

int cache_gc(cache *c, const qkv_cache_gc_options *options, qkv_cache_gc_report *out) {
  qkv_cache_gc_options o = *options;
  cache_items f;
  const int error = cache_scan(c, &f);
  *out = (qkv_cache_gc_report){.size = sizeof *out};
  if (error) { /* who does not see all cannot tell which are the oldest */
    free(f.items);
    return error;
  }
  if (o.max_bytes < 0)
    o.max_bytes = c->byte_limit;
  for (size_t n = 0; n < f.count; n++) {
    out->entries += !f.items[n].temporary;
    out->bytes += f.items[n].temporary ? 0 : f.items[n].bytes;
  }
  if (f.count)
    qsort(f.items, f.count, sizeof *f.items, oldest_first);
  collect(c, &f, &o, out);
  free(f.items);
  if (!o.dry_run)
    c->bytes = out->bytes;
  return 0;
}

void cache_evict(cache *c) {
  const qkv_cache_gc_options o = {.size = sizeof o, .max_bytes = c->byte_limit - c->byte_limit / 10, .older_than = -1};
  qkv_cache_gc_report ignored;
  cache_gc(c, &o, &ignored);
}

void cache_grew(cache *c, int64_t bytes) {
  if (c->bytes < 0)
    cache_evict(c); /* the first entry of this process: count, and sweep what crashed ones left */
  else
    c->bytes += bytes;
  if (c->bytes > c->byte_limit)
    cache_evict(c);
}
