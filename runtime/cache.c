/* cache.c: open, read and publish entries.
 *
 * Publishing: write to a temporary file of the same directory (created exclusively under a name with 128 random bits),
 * fsync, rename. Readers see the old state or the whole entry; two publishers of one key leave one of two equal files.
 */
#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache_internal.h"
#include "file.h"

enum { TOUCH_AFTER = 60 }; /* seconds: how old a hit's time stamp may get */

void cache_problem(cache *c, const char *format, ...) {
  c->errors++;
  if (!c->warn || atomic_exchange(&c->warned, 1))
    return;
  text message = {0};
  va_list args;
  va_start(args, format);
  text_vprintf(&message, format, args);
  va_end(args);
  text_puts(&message, "; kernels are compiled and kept in memory instead (said once)");
  c->warn(message.bytes ? message.bytes : format, c->user);
  text_free(&message);
}

/* $QKV_CACHE_MAX_BYTES, 1 GiB when it is not set. A word that is no number is said, not guessed at. */
static int64_t byte_limit(const cache *c) {
  const int64_t standard = (int64_t)1 << 30;
  const char *value = getenv("QKV_CACHE_MAX_BYTES");
  char *end;
  if (!value || !*value)
    return standard;
  errno = 0;
  long long bytes = strtoll(value, &end, 10);
  if (!errno && !*end && bytes >= 0)
    return bytes;
  if (c->warn)
    c->warn("QKV_CACHE_MAX_BYTES is not a number of bytes; the cache is limited to 1 GiB", c->user);
  return standard;
}

cache *cache_open(const char *dir, void (*warn)(const char *message, void *user), void *user) {
  cache *c = calloc(1, sizeof *c);
  if (!c)
    return NULL;
  c->warn = warn;
  c->user = user;
  c->bytes = -1;
  c->lease.fd = -1;
  pthread_mutex_init(&c->lease.lock, NULL);
  c->byte_limit = byte_limit(c);
  c->path = dir ? strdup(dir) : cache_choose_directory();
  if (!c->path) {
    cache_close(c);
    return NULL;
  }
  text why = {0};
  if (*c->path && !cache_claim_directory(c->path, 0700, &why)) {
    cache_problem(c, "cache directory %s cannot be used: %s", c->path, why.bytes ? why.bytes : "?");
    *c->path = 0;
  }
  text_free(&why);
  /* A relative path means the folder of now, wherever the process goes later. */
  char *absolute = *c->path ? realpath(c->path, NULL) : NULL;
  if (absolute) {
    free(c->path);
    c->path = absolute;
  }
  return c;
}

void cache_close(cache *c) {
  if (!c)
    return;
  cache_lease_close(c);
  free(c->path);
  free(c);
}

const char *cache_path(const cache *c) {
  return c->path;
}

uint64_t cache_error_count(const cache *c) {
  return c->errors;
}

void cache_entry_free(cache_entry *e) {
  free(e->manifest);
  free(e->image);
  free(e->log);
  *e = (cache_entry){0};
}

static char *file_in(const char *directory, const char *key) {
  text path = {0};
  text_printf(&path, "%s/%s" CACHE_SUFFIX, directory, key);
  if (!path.failed)
    return path.bytes;
  text_free(&path);
  return NULL;
}

char *cache_file(const cache *c, const char *key) {
  return file_in(c->path, key);
}

/* ---- Reading ---- */

static int read_open_file(int fd, void **bytes, size_t *size, struct stat *st) {
  if (fstat(fd, st))
    return -1;
  if (!cache_trusts(st)) {
    errno = EPERM;
    return -1;
  }
  *size = (size_t)st->st_size;
  *bytes = malloc(*size ? *size : 1);
  if (!*bytes)
    return -1;
  const int error = file_read_bytes(fd, *bytes, *size);
  if (!error)
    return 1;
  free(*bytes);
  *bytes = NULL;
  errno = error;
  return -1;
}

int cache_read_file(const char *path, void **bytes, size_t *size, struct stat *st) {
  *bytes = NULL;
  for (int attempt = 0;; attempt++) {
    /* Neither links nor pipes and devices, which could block, are followed. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int result = fd < 0 ? -1 : read_open_file(fd, bytes, size, st), error = errno;
    if (fd >= 0)
      close(fd);
    errno = error;
    if (result < 0 && error == ENOENT)
      return 0;
    if (result > 0 || error != ESTALE || attempt > 0) /* a network file system may lose a handle once */
      return result;
  }
}

/* Removes the file unless another one has taken its place since it was read. */
static void remove_unchanged(const char *path, const struct stat *read) {
  struct stat now;
  if (!lstat(path, &now) && now.st_dev == read->st_dev && now.st_ino == read->st_ino && now.st_size == read->st_size &&
      now.st_mtim.tv_sec == read->st_mtim.tv_sec && now.st_mtim.tv_nsec == read->st_mtim.tv_nsec)
    unlink(path);
}

/* What the bytes of an entry's file are good for. */
static cache_result use_file(cache *c, const char *key, const char *path, const void *bytes, size_t size,
                             const struct stat *st, cache_entry *out) {
  int valid = cache_decode(key, bytes, size, out);
  if (valid < 0) {
    cache_problem(c, "cache entry %s is not read: %s", path, strerror(ENOMEM));
    return CACHE_MISS;
  }
  if (!valid) {
    cache_problem(c, "cache entry %s is damaged and was removed", path);
    remove_unchanged(path, st);
    return CACHE_CORRUPT;
  }
  if (time(NULL) - st->st_mtim.tv_sec > TOUCH_AFTER)
    utimensat(AT_FDCWD, path, NULL, 0); /* used lately: eviction goes by this */
  cache_lease_add(c, key);
  return CACHE_HIT;
}

cache_result cache_read(cache *c, const char *key, cache_entry *out) {
  *out = (cache_entry){0};
  char *path = *c->path ? cache_file(c, key) : NULL;
  if (!path)
    return CACHE_MISS;
  cache_result result = CACHE_MISS;
  void *bytes;
  size_t size;
  struct stat st;
  int got = cache_read_file(path, &bytes, &size, &st);
  if (got < 0) {
    cache_problem(c, "cache entry %s is not read: %s", path,
                  errno == EPERM ? "it is not a plain file of this user that nobody else can write" : strerror(errno));
  } else if (got > 0) {
    result = use_file(c, key, path, bytes, size, &st, out);
  }
  free(bytes);
  free(path);
  return result;
}

void cache_remove(cache *c, const char *key) {
  char *path = *c->path ? cache_file(c, key) : NULL;
  if (path)
    unlink(path);
  free(path);
}

/* ---- Publishing ---- */

int cache_publish(const char *directory, const char *key, const void *bytes, size_t size) {
  char *path = file_in(directory, key);
  /* Readable by others, so that an administrator can open a filled cache to them; never writable. */
  int error = path ? file_replace(path, bytes, size, 0644) : ENOMEM;
  free(path);
  return error;
}

/* Publishes, once more when the reason it failed for could be mended. */
static int try_publish(cache *c, const char *key, const void *bytes, size_t size) {
  int error = cache_publish(c->path, key, bytes, size);
  text why = {0};
  if (error == ENOENT && cache_claim_directory(c->path, 0700, &why)) /* it was deleted under a running process */
    error = cache_publish(c->path, key, bytes, size);
  text_free(&why);
  if (error == ENOSPC || error == EDQUOT) {
    cache_evict(c);
    error = cache_publish(c->path, key, bytes, size);
  }
  return error;
}

int cache_write(cache *c, const char *key, const cache_entry *entry) {
  if (!*c->path || c->read_only)
    return -1;
  size_t size = 0;
  void *bytes = cache_encode(key, entry, &size);
  int error = bytes ? try_publish(c, key, bytes, size) : ENOMEM;
  free(bytes);
  if (error) {
    c->read_only = error == EROFS || error == EACCES || error == EPERM;
    cache_problem(c, "cannot write to the cache directory %s: %s", c->path, strerror(error));
    return -1;
  }
  cache_lease_add(c, key);
  cache_grew(c, (int64_t)size);
  return 0;
}
