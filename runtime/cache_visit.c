/* cache_visit.c: walks the directory: listing, clearing, and keeping it under its size limit.
 *
 * Other processes may publish and delete meanwhile; a file that is gone when its turn comes is skipped. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache_internal.h"
#include "manifest.h"

enum { YOUNG = 600, STALE = 3600 }; /* seconds: entries too young to evict, temporary files surely abandoned */

typedef struct file {
  char name[64]; /* KEY.kernel, .tmp-...: longer names are not ours */
  int64_t bytes, age;
} file;

typedef struct files {
  file *items;
  size_t count, capacity;
} files;

static int is_entry(const char *name) {
  return strlen(name) == CACHE_KEY_SIZE - 1 + strlen(CACHE_SUFFIX) &&
         !strcmp(name + CACHE_KEY_SIZE - 1, CACHE_SUFFIX) && strspn(name, "0123456789abcdef") == CACHE_KEY_SIZE - 1;
}

static int is_temporary(const char *name) {
  return !strncmp(name, CACHE_TEMPORARY, strlen(CACHE_TEMPORARY));
}

static int files_add(files *f, const file *item) {
  if (f->count == f->capacity) {
    size_t capacity = f->capacity ? 2 * f->capacity : 64;
    file *items = realloc(f->items, capacity * sizeof *items);
    if (!items)
      return 0;
    f->items = items;
    f->capacity = capacity;
  }
  f->items[f->count++] = *item;
  return 1;
}

/* All entries and temporary files; what cannot be read is left out. */
static files scan(const cache *c) {
  files f = {0};
  DIR *dir = *c->path ? opendir(c->path) : NULL;
  time_t now = time(NULL);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    struct stat st;
    file item;
    if ((!is_entry(e->d_name) && !is_temporary(e->d_name)) || strlen(e->d_name) >= sizeof item.name ||
        fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
      continue;
    strcpy(item.name, e->d_name);
    item.bytes = st.st_size;
    item.age = now - st.st_mtim.tv_sec;
    if (!files_add(&f, &item))
      break;
  }
  if (dir)
    closedir(dir);
  return f;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const file *)a)->name, ((const file *)b)->name);
}

static int oldest_first(const void *a, const void *b) {
  const file *x = a, *y = b;
  return x->age != y->age ? (x->age < y->age) - (x->age > y->age) : strcmp(x->name, y->name);
}

static int remove_file(const cache *c, const char *name) {
  text path = {0};
  text_printf(&path, "%s/%s", c->path, name);
  int removed = !path.failed && unlink(path.bytes) == 0;
  text_free(&path);
  return removed;
}

void cache_evict(cache *c) {
  files f = scan(c);
  int64_t total = 0;
  for (size_t n = 0; n < f.count; n++)
    total += f.items[n].bytes;
  if (f.count)
    qsort(f.items, f.count, sizeof *f.items, oldest_first);
  for (size_t n = 0; n < f.count; n++) {
    const file *item = &f.items[n];
    int temporary = is_temporary(item->name);
    int over = total > c->byte_limit - c->byte_limit / 10;
    if ((temporary ? item->age > STALE : over && item->age > YOUNG) && remove_file(c, item->name))
      total -= item->bytes;
  }
  free(f.items);
  c->bytes = total;
}

void cache_grew(cache *c, int64_t bytes) {
  if (c->bytes < 0)
    cache_evict(c); /* the first entry of this process: count, and sweep what crashed ones left */
  else
    c->bytes += bytes;
  if (c->bytes > c->byte_limit)
    cache_evict(c);
}

/* Reads and checks one entry; *m is zero when it is not valid. */
static int verify(const cache *c, const char *key, manifest *m) {
  char *path = cache_file(c, key);
  void *bytes = NULL;
  size_t size;
  struct stat st;
  cache_entry entry = {0};
  memset(m, 0, sizeof *m);
  int valid = path && cache_read_file(path, &bytes, &size, &st) > 0 && cache_decode(key, bytes, size, &entry) > 0 &&
              manifest_read(entry.manifest, entry.manifest_size, m);
  if (!valid)
    memset(m, 0, sizeof *m);
  cache_entry_free(&entry);
  free(bytes);
  free(path);
  return valid;
}

int cache_find(cache *c, char key[CACHE_KEY_SIZE]) {
  files f = scan(c);
  const file *newest = NULL;
  for (size_t n = 0; n < f.count; n++)
    if (is_entry(f.items[n].name) && !memcmp(f.items[n].name, key, CACHE_SOURCE_DIGITS) &&
        (!newest || f.items[n].age < newest->age))
      newest = &f.items[n];
  if (newest)
    memcpy(key, newest->name, CACHE_KEY_SIZE - 1);
  free(f.items);
  return newest != NULL;
}

int cache_visit(cache *c, int (*visit)(const qkv_cache_entry *entry, void *user), void *user) {
  manifest *m = malloc(sizeof *m);
  files f = scan(c);
  int stop = 0;
  if (f.count)
    qsort(f.items, f.count, sizeof *f.items, by_name);
  for (size_t n = 0; m && n < f.count && !stop; n++) {
    if (!is_entry(f.items[n].name))
      continue;
    char key[CACHE_KEY_SIZE];
    snprintf(key, sizeof key, "%.*s", CACHE_KEY_SIZE - 1, f.items[n].name);
    qkv_cache_entry entry = {
        .size = sizeof entry, .key = key, .bytes = f.items[n].bytes, .age_seconds = f.items[n].age};
    entry.valid = verify(c, key, m);
    entry.family = m->family;
    entry.arch = m->arch;
    entry.schedule = m->schedule;
    stop = visit(&entry, user);
  }
  free(f.items);
  free(m);
  return stop;
}

int64_t cache_clear(cache *c, int only_invalid) {
  manifest *m = malloc(sizeof *m);
  files f = scan(c);
  int64_t removed = 0;
  for (size_t n = 0; m && n < f.count; n++) {
    char key[CACHE_KEY_SIZE];
    snprintf(key, sizeof key, "%.*s", CACHE_KEY_SIZE - 1, f.items[n].name);
    int temporary = is_temporary(f.items[n].name);
    if (temporary ? f.items[n].age > STALE : !only_invalid || !verify(c, key, m))
      removed += remove_file(c, f.items[n].name) && !temporary;
  }
  free(f.items);
  free(m);
  c->bytes = -1;
  return removed;
}
