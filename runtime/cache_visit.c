/* cache_visit.c: walks the directory: listing, clearing, exporting.
 *
 * Other processes may publish and delete meanwhile; a file that is gone when its turn comes is skipped. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache_internal.h"
#include "file.h"
#include "manifest.h"

static int is_entry(const char *name) {
  return strlen(name) == CACHE_KEY_SIZE - 1 + strlen(CACHE_SUFFIX) &&
         !strcmp(name + CACHE_KEY_SIZE - 1, CACHE_SUFFIX) && strspn(name, "0123456789abcdef") == CACHE_KEY_SIZE - 1;
}

static int is_temporary(const char *name) {
  return !strncmp(name, FILE_TEMPORARY, strlen(FILE_TEMPORARY));
}

static int add_item(cache_items *f, const cache_item *item) {
  if (f->count == f->capacity) {
    size_t capacity = f->capacity ? 2 * f->capacity : 64;
    cache_item *items = realloc(f->items, capacity * sizeof *items);
    if (!items)
      return 0;
    f->items = items;
    f->capacity = capacity;
  }
  f->items[f->count++] = *item;
  return 1;
}

cache_items cache_scan(const cache *c) {
  cache_items f = {0};
  DIR *dir = *c->path ? opendir(c->path) : NULL;
  time_t now = time(NULL);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    struct stat st;
    cache_item item;
    if ((!is_entry(e->d_name) && !is_temporary(e->d_name)) || strlen(e->d_name) >= sizeof item.name ||
        fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
      continue;
    strcpy(item.name, e->d_name);
    item.temporary = is_temporary(e->d_name);
    item.bytes = st.st_size;
    item.age = now - st.st_mtim.tv_sec;
    item.modified = st.st_mtim;
    if (!add_item(&f, &item))
      break;
  }
  if (dir)
    closedir(dir);
  return f;
}

static void key_of(const cache_item *item, char key[CACHE_KEY_SIZE]) {
  memcpy(key, item->name, CACHE_KEY_SIZE - 1);
  key[CACHE_KEY_SIZE - 1] = 0;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const cache_item *)a)->name, ((const cache_item *)b)->name);
}

int cache_remove_file(const cache *c, const char *name) {
  text path = {0};
  text_printf(&path, "%s/%s", c->path, name);
  int gone = !path.failed && (unlink(path.bytes) == 0 || errno == ENOENT);
  text_free(&path);
  return gone;
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
  cache_items f = cache_scan(c);
  const cache_item *newest = NULL;
  for (size_t n = 0; n < f.count; n++)
    if (!f.items[n].temporary && !memcmp(f.items[n].name, key, CACHE_SOURCE_DIGITS) &&
        (!newest || f.items[n].age < newest->age))
      newest = &f.items[n];
  if (newest)
    memcpy(key, newest->name, CACHE_KEY_SIZE - 1);
  free(f.items);
  return newest != NULL;
}

int cache_visit(cache *c, int (*visit)(const qkv_cache_entry *entry, void *user), void *user) {
  manifest *m = malloc(sizeof *m);
  cache_items f = cache_scan(c);
  int stop = 0;
  if (f.count)
    qsort(f.items, f.count, sizeof *f.items, by_name);
  for (size_t n = 0; m && n < f.count && !stop; n++) {
    char key[CACHE_KEY_SIZE];
    if (f.items[n].temporary)
      continue;
    key_of(&f.items[n], key);
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
  cache_items f = cache_scan(c);
  int64_t removed = 0;
  for (size_t n = 0; m && n < f.count; n++) {
    const cache_item *item = &f.items[n];
    char key[CACHE_KEY_SIZE];
    key_of(item, key);
    if (item->temporary ? item->age > CACHE_ABANDONED : !only_invalid || !verify(c, key, m))
      removed += cache_remove_file(c, item->name) && !item->temporary;
  }
  free(f.items);
  free(m);
  c->bytes = -1;
  return removed;
}

/* Copies one entry if it verifies and is wanted. 1: copied, 0: not wanted, -1: it does not verify; else an errno in
 * *error. */
static int export_entry(const cache *c, const char *key, const char *directory,
                        int (*wanted)(const manifest *m, void *user), void *user, manifest *m, int *error) {
  char *path = cache_file(c, key);
  void *bytes = NULL;
  size_t size = 0;
  struct stat st;
  cache_entry entry = {0};
  int result = -1;
  if (path && cache_read_file(path, &bytes, &size, &st) > 0 && cache_decode(key, bytes, size, &entry) > 0 &&
      manifest_read(entry.manifest, entry.manifest_size, m))
    result = wanted(m, user);
  if (result > 0)
    *error = cache_publish(directory, key, bytes, size);
  cache_entry_free(&entry);
  free(bytes);
  free(path);
  return result;
}

int cache_export(cache *c, const char *directory, int (*wanted)(const manifest *m, void *user), void *user,
                 int64_t *copied, int64_t *invalid) {
  manifest *m = malloc(sizeof *m);
  cache_items f = cache_scan(c);
  int error = m ? 0 : ENOMEM;
  *copied = *invalid = 0;
  for (size_t n = 0; n < f.count && !error; n++) {
    char key[CACHE_KEY_SIZE];
    if (f.items[n].temporary)
      continue;
    key_of(&f.items[n], key);
    int result = export_entry(c, key, directory, wanted, user, m, &error);
    *copied += result > 0 && !error;
    *invalid += result < 0;
  }
  free(f.items);
  free(m);
  return error;
}
