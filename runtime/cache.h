/* cache.h: one immutable, self-verifying file per compiled kernel.
 *
 * An entry is named by its key and holds header, manifest, image and compile log, with a digest over all of them. It is
 * written under a temporary name in the same directory, fsynced and renamed, so that readers see nothing or all of it.
 * A failed step of reading is a miss, of writing costs one warning; neither ever fails the caller. Files that belong to
 * another user, are writable by others, or do not verify are not trusted. No lock is needed: two writers publish
 * the same bytes.
 */
#ifndef RUNTIME_CACHE_H
#define RUNTIME_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "manifest.h"
#include "qkv_pack.h"

typedef struct cache cache;

enum {
  CACHE_KEY_SIZE = 33,      /* 128 bits in hex and a zero */
  CACHE_SOURCE_DIGITS = 20, /* of a key: what the source and the options say; the rest is the compiler's */
};

/* One kernel, in memory. bytes are owned by the entry; freed with cache_entry_free. */
typedef struct cache_entry {
  char *manifest; /* text of gen/manifest.h */
  size_t manifest_size;
  void *image;
  size_t image_size;
  char *log;
} cache_entry;

typedef enum cache_result { CACHE_HIT, CACHE_MISS, CACHE_CORRUPT } cache_result;

/* Opens dir (created with mode 0700 when missing). dir NULL: choose by the environment; "": memory only. Never fails
 * but for memory: a directory that cannot be used leaves a cache that never hits, and one warning through warn. */
cache *cache_open(const char *dir, void (*warn)(const char *message, void *user), void *user);
void cache_close(cache *c);
const char *cache_path(const cache *c); /* "" when memory only */

/* The key of a kernel: the first CACHE_SOURCE_DIGITS are a hash of format version, source and options (arch included),
 * the others of the compiler's identity. */
void cache_key(const char *source, const char *options, const char *compiler, char key[CACHE_KEY_SIZE]);

/* For a key made with an unknown compiler (""): makes it that of the newest entry of the same source and options,
 * whichever compiler that came from, that verifies. 0 and the key as it was when there is none. */
int cache_find(cache *c, char key[CACHE_KEY_SIZE]);

cache_result cache_read(cache *c, const char *key, cache_entry *out);
/* 0 when published, -1 when not (a warning was given). */
int cache_write(cache *c, const char *key, const cache_entry *entry);
/* Waits until no other process compiles the key's kernel (half a minute at most), and keeps others waiting until
 * cache_turn_give. Then look again: another may have published it. -1 when that cannot be had: compile all the same. */
int cache_turn_take(const cache *c, const char *key);
void cache_turn_give(int turn, const char *key);
/* Removes an entry that turned out to hold no image although it verified. */
void cache_remove(cache *c, const char *key);
void cache_entry_free(cache_entry *e);

/* These walk over the directory. They return 0, or the errno for which it could not be read to its end; what was found
 * until then was visited and cleared, but nothing collected. */

/* Deletes entries as qkv_cache_gc says. */
int cache_gc(cache *c, const qkv_cache_gc_options *options, qkv_cache_gc_report *out);
int cache_visit(cache *c, int (*visit)(const qkv_cache_entry *entry, void *user), void *user);
int cache_clear(cache *c, int only_invalid, int64_t *removed);
/* Publishes in `directory` the entries that verify and that `wanted` (nonzero) chooses by their manifest; counts them,
 * and those that do not verify. 0, or the errno of the first publication that failed. *unread: 0, or the errno for
 * which the cache's own directory could not be read: then nothing is published. */
int cache_export(cache *c, const char *directory, int (*wanted)(const manifest *m, void *user), void *user,
                 int64_t *copied, int64_t *invalid, int *unread);
/* The name of the path's file system, "unknown" or "another". *network (unless NULL): other hosts may share it. */
const char *cache_file_system(const char *path, int *network);
/* Corrupt entries, failed reads and writes since cache_open. */
uint64_t cache_error_count(const cache *c);

#endif
