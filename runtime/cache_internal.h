/* cache_internal.h: what the files of the cache share.
 *
 *   cache_directory.c  which directory, and whether it can be trusted
 *   cache_format.c     the bytes of an entry, with their digest
 *   cache.c            open, key, read, publish
 *   cache_visit.c      list, clear, limit the size */
#ifndef RUNTIME_CACHE_INTERNAL_H
#define RUNTIME_CACHE_INTERNAL_H

#include <stdatomic.h>
#include <sys/stat.h>

#include "cache.h"
#include "text.h"

#define CACHE_SUFFIX ".kernel"  /* entries are KEY.kernel */
#define CACHE_TEMPORARY ".tmp-" /* temporary files are .tmp-PID-RANDOM */

enum { CACHE_SOURCE_DIGITS = 20 }; /* of a key: what the source and the options say; the rest is the compiler's */

struct cache {
  char *path; /* "" when memory only */
  int64_t byte_limit;
  _Atomic int64_t bytes; /* estimate of the directory's size; -1: not counted yet */
  _Atomic uint64_t errors;
  atomic_int warned;
  void (*warn)(const char *message, void *user);
  void *user;
};

/* Counts an error and gives the cache's one warning. */
void cache_problem(cache *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The directory by the environment ($QKV_CACHE_DIR, $XDG_CACHE_HOME/qkvc, $HOME/.cache/qkvc, the password file's home),
 * malloc'd; "" when there is none. NULL when memory is out. */
char *cache_choose_directory(void);
/* Creates the directory with its parents when missing (mode 0700) and checks that it is one, that it is ours or root's
 * and that not everybody may write to it. False with the reason in why. */
int cache_claim_directory(const char *path, text *why);
/* 1 when a file may be believed: regular, ours or root's, writable by nobody else. */
int cache_trusts(const struct stat *st);

/* The whole file of an entry; NULL when memory is out. *size receives its bytes. */
void *cache_encode(const char *key, const cache_entry *entry, size_t *size);
/* Verifies the bytes of a file against their digest and the key; fills out (owned by the caller) unless it is NULL.
 * 1: valid; 0: not; -1: valid, but memory is out. */
int cache_decode(const char *key, const void *bytes, size_t size, cache_entry *out);

/* Reads a whole trusted file: 1 and malloc'd bytes, 0 absent, -1 not to be had (errno says why; EPERM: not trusted). */
int cache_read_file(const char *path, void **bytes, size_t *size, struct stat *st);
/* DIRECTORY/KEY.kernel, malloc'd, or NULL. */
char *cache_file(const cache *c, const char *key);
/* Deletes the oldest entries until the directory is below 9/10 of its limit, but none younger than ten minutes, and
 * temporary files older than an hour. */
void cache_evict(cache *c);
/* Accounts for an entry just published; evicts when the limit is passed. */
void cache_grew(cache *c, int64_t bytes);

#endif
