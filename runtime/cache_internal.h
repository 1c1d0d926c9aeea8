/* cache_internal.h: what the files of the cache share.
 *
 *   cache_directory.c  which directory, and whether it can be trusted
 *   cache_format.c     the bytes of an entry, with their digest
 *   cache.c            open, key, read, publish
 *   cache_lease.c      which entries are in use
 *   cache_turn.c       processes that want one kernel take turns
 *   cache_gc.c         limit the size, never at the cost of entries in use
 *   cache_visit.c      list, clear, export */
#ifndef RUNTIME_CACHE_INTERNAL_H
#define RUNTIME_CACHE_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "cache.h"
#include "text.h"

#define CACHE_SUFFIX ".kernel"  /* entries are KEY.kernel */
#define CACHE_LEASE ".lease-"   /* files that say what is in use are .lease-NUMBER */

enum { CACHE_ABANDONED = 3600 }; /* seconds: a temporary file of that age is nobody's */

/* The keys that an open cache uses, and the file that says so to others. */
typedef struct cache_lease {
  pthread_mutex_t lock; /* held for a few system calls on the file, never while anything is compiled */
  int fd;               /* -1: none */
  int tried;            /* whether a file was looked for */
  pid_t owner;          /* who took fd */
  dev_t device;         /* of the file */
  ino_t inode;
  char (*keys)[CACHE_KEY_SIZE]; /* each with a newline for its zero */
  size_t count, capacity, written;
} cache_lease;

struct cache {
  char *path; /* "" when memory only */
  int64_t byte_limit;
  _Atomic int64_t bytes; /* estimate of the directory's size; -1: not counted yet */
  _Atomic uint64_t errors;
  atomic_int warned;
  atomic_int read_only; /* a publication failed for want of permission: no others are tried */
  cache_lease lease;
  void (*warn)(const char *message, void *user);
  void *user;
};

/* Counts an error and gives the cache's one warning. */
void cache_problem(cache *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The directory by the environment ($QKV_CACHE_DIR, $XDG_CACHE_HOME/qkvc, $HOME/.cache/qkvc, the password file's home),
 * malloc'd; "" when there is none. NULL when memory is out. */
char *cache_choose_directory(void);
/* Creates the directory with its parents when missing and checks that it is one, that it is ours or root's and that not
 * everybody may write to it. False with the reason in why. */
int cache_claim_directory(const char *path, mode_t mode, text *why);
/* 1 when a file may be believed: regular, ours or root's, writable by nobody else. */
int cache_trusts(const struct stat *st);

/* The whole file of an entry; NULL when memory is out. *size receives its bytes. */
void *cache_encode(const char *key, const cache_entry *entry, size_t *size);
/* Verifies the bytes of a file against their digest and the key; fills out (owned by the caller) unless it is NULL.
 * 1: valid; 0: not; -1: valid, but memory is out. */
int cache_decode(const char *key, const void *bytes, size_t size, cache_entry *out);
/* 1 when the bytes begin like an entry of a later format than this version's. */
int cache_is_newer(const void *bytes, size_t size);

/* Reads a whole trusted file: 1 and malloc'd bytes, 0 absent, -1 not to be had (errno says why; EPERM: not trusted). */
int cache_read_file(const char *path, void **bytes, size_t *size, struct stat *st);
/* DIRECTORY/KEY.kernel, malloc'd, or NULL. */
char *cache_file(const cache *c, const char *key);
/* Writes an entry's file under its name in the directory, all or nothing. 0, or the errno of the step that failed. */
int cache_publish(const char *directory, const char *key, const void *bytes, size_t size);

/* ---- What is in use (cache_lease.c) ---- */

/* The key is in use until cache_close, or until the process ends. Never fails; without a lease the entry is protected
 * by its time stamp alone. */
void cache_lease_add(cache *c, const char *key);
void cache_lease_close(cache *c);

/* The keys that living processes use, sorted. */
typedef struct cache_uses {
  char (*keys)[CACHE_KEY_SIZE]; /* freed by the caller */
  size_t count;
} cache_uses;
cache_uses cache_uses_find(const cache *c);
int cache_uses_has(const cache_uses *u, const char *key);

/* ---- The directory's files (cache_visit.c) ---- */

typedef struct cache_item {
  char name[64]; /* KEY.kernel or .tmp-...: longer names are not ours */
  int temporary;
  int64_t bytes, age;
  struct timespec modified;
} cache_item;

typedef struct cache_items {
  cache_item *items; /* freed by the caller */
  size_t count, capacity;
} cache_items;

/* All entries and temporary files. 0, or the errno for which some may be missing; a directory that is gone is empty. */
int cache_scan(const cache *c, cache_items *out);
/* 1 when the file is gone, whoever removed it. */
int cache_remove_file(const cache *c, const char *name);

/* ---- Its size (cache_gc.c) ---- */

/* When the directory is beyond its limit: deletes until it is below 9/10 of it, as cache_gc does. */
void cache_evict(cache *c);
/* Accounts for an entry just published; evicts when the limit is passed. */
void cache_grew(cache *c, int64_t bytes);

#endif
