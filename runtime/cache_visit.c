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

/* The entry's file, or a temporary one, as an item. 0: it is none, or gone. */
static int describe(int directory, const char *name, time_t now, cache_item *out) {
  struct stat st;
  if ((!is_entry(name) && !is_temporary(name)) || strlen(name) >= sizeof out->name ||
      fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
    return 0;
  *out = (cache_item){.temporary = is_temporary(name),
                      .bytes = st.st_size,
                      .age = now - st.st_mtim.tv_sec,
                      .modified = st.st_mtim};
  strcpy(out->name, name);
  return 1;
}

int cache_scan(const cache *c, cache_items *out) {
  *out = (cache_items){0};
  if (!*c->path)
    return 0;
  DIR *dir = opendir(c->path);
  if (!dir)
    return errno == ENOENT ? 0 : errno;
  const time_t now = time(NULL);
  int error = 0;
  while (!error) {
    cache_item item;
    errno = 0;
    const struct dirent *e = readdir(dir);
    if (!e) {
      error = errno;
      break;
    }
    if (describe(dirfd(dir), e->d_name, now, &item) && !add_item(out, &item))
      error = ENOMEM;
  }
  closedir(dir);
  return error;
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

typedef enum state { GONE, CORRUPT, NEWER, VALID } state;

/* Reads and checks one entry. *m is zero unless it is valid and its manifest of this version. bytes (unless NULL): the
 * file, freed by the caller. */
static state inspect(const cache *c, const char *key, manifest *m, void **bytes, size_t *size) {
  char *path = cache_file(c, key);
  void *file = NULL;
  size_t length = 0;
  struct stat st;
  cache_entry entry = {0};
  const int got = path ? cache_read_file(path, &file, &length, &st) : 0;
  const int valid = got > 0 ? cache_decode(key, file, length, &entry) : 0;
  memset(m, 0, sizeof *m);
  if (valid > 0 && !manifest_read(entry.manifest, entry.manifest_size, m))
    memset(m, 0, sizeof *m);
  const state s = got == 0                                    ? GONE
                  : valid                                     ? VALID
                  : got > 0 && cache_is_newer(file, length) ? NEWER
                                                              : CORRUPT;
  cache_entry_free(&entry);
  free(path);
  if (bytes) {
    *bytes = file;
    *size = length;
  } else {
    free(file);
  }
  return s;
}

int cache_find(cache *c, char key[CACHE_KEY_SIZE]) {
  manifest *m = malloc(sizeof *m);
  cache_items f;
  const cache_item *newest = NULL;
  cache_scan(c, &f); /* of what is found the newest serves as well */
  for (size_t n = 0; m && n < f.count; n++) {
    char own[CACHE_KEY_SIZE];
    key_of(&f.items[n], own);
    if (!f.items[n].temporary && !memcmp(own, key, CACHE_SOURCE_DIGITS) && (!newest || f.items[n].age < newest->age) &&
        inspect(c, own, m, NULL, NULL) == VALID)
      newest = &f.items[n];
  }
  if (newest)
    memcpy(key, newest->name, CACHE_KEY_SIZE - 1);
  free(f.items);
  free(m);
  return newest != NULL;
}

int cache_visit(cache *c, int (*visit)(const qkv_cache_entry *entry, void *user), void *user) {
  manifest *m = malloc(sizeof *m);
  cache_items f;
  const int scanned = cache_scan(c, &f), error = m ? scanned : ENOMEM;
  int stop = 0;
  if (f.count)
    qsort(f.items, f.count, sizeof *f.items, by_name);
  for (size_t n = 0; m && n < f.count && !stop; n++) {
    char key[CACHE_KEY_SIZE];
    key_of(&f.items[n], key);
    const state found = f.items[n].temporary ? GONE : inspect(c, key, m, NULL, NULL);
    const qkv_cache_entry entry = {.size = sizeof entry,
                                   .key = key,
                                   .family = m->family,
                                   .arch = m->arch,
                                   .schedule = m->schedule,
                                   .bytes = f.items[n].bytes,
                                   .age_seconds = f.items[n].age,
                                   .valid = found != CORRUPT,
                                   .newer = found == NEWER};
    stop = found != GONE && visit(&entry, user);
  }
  free(f.items);
  free(m);
  return error;
}

int cache_clear(cache *c, int only_invalid, int64_t *removed) {
  manifest *m = malloc(sizeof *m);
  cache_items f;
  const int scanned = cache_scan(c, &f), error = m ? scanned : ENOMEM;
  *removed = 0;
  for (size_t n = 0; m && n < f.count; n++) {
    const cache_item *item = &f.items[n];
    char key[CACHE_KEY_SIZE];
    key_of(item, key);
    if (item->temporary ? item->age > CACHE_ABANDONED : !only_invalid || inspect(c, key, m, NULL, NULL) == CORRUPT)
      *removed += cache_remove_file(c, item->name) && !item->temporary;
  }
  free(f.items);
  free(m);
  c->bytes = -1;
  return error;
}

int cache_export(cache *c, const char *directory, int (*wanted)(const manifest *m, void *user), void *user,
                 int64_t *copied, int64_t *invalid, int *unread) {
  manifest *m = malloc(sizeof *m);
  cache_items f;
  int error = 0;
  *unread = cache_scan(c, &f);
  *unread = m ? *unread : ENOMEM;
  *copied = *invalid = 0;
  for (size_t n = 0; n < f.count && !error && !*unread; n++) {
    char key[CACHE_KEY_SIZE];
    void *bytes;
    size_t size;
    if (f.items[n].temporary)
      continue;
    key_of(&f.items[n], key);
    const state found = inspect(c, key, m, &bytes, &size);
    *invalid += found == CORRUPT;
    if (found == VALID && wanted(m, user)) {
      error = cache_publish(directory, key, bytes, size);
      *copied += !error;
    }
    free(bytes);
  }
  free(f.items);
  free(m);
  return error;
}
