/* pack_write.c: collects records and lays them out. The bytes follow from the records alone, so that two machines which
 * compile the same kernels make the same file. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "pack.h"
#include "pack_format.h"

typedef struct item {
  pack_kind kind;
  unsigned char key[PACK_KEY_SIZE];
  unsigned char *bytes; /* owned, zero-padded to a multiple of 16 bytes */
  size_t size;
} item;

struct pack_writer {
  pack_maker maker;
  item *items;
  size_t count, capacity;
};

pack_writer *pack_writer_new(const pack_maker *maker) {
  pack_writer *w = calloc(1, sizeof *w);
  if (w)
    w->maker = *maker;
  return w;
}

void pack_writer_free(pack_writer *w) {
  if (!w)
    return;
  for (size_t n = 0; n < w->count; n++)
    free(w->items[n].bytes);
  free(w->items);
  free(w);
}

/* Of two contents of one key, the one that stays. */
static int comes_first(const unsigned char *a, size_t a_size, const item *b) {
  const size_t shorter = a_size < b->size ? a_size : b->size;
  const int order = memcmp(a, b->bytes, shorter);
  return order ? order < 0 : a_size < b->size;
}

/* Takes `bytes`, padded and malloc'd, over; NULL: out of memory. */
static int add_owned(pack_writer *w, pack_kind kind, const unsigned char key[PACK_KEY_SIZE], unsigned char *bytes,
                     size_t size) {
  if (!bytes)
    return 0;
  for (size_t n = 0; n < w->count; n++) {
    item *there = &w->items[n];
    if (there->kind != kind || memcmp(there->key, key, PACK_KEY_SIZE))
      continue;
    unsigned char *left = bytes;
    if (comes_first(bytes, size, there)) {
      left = there->bytes;
      there->bytes = bytes;
      there->size = size;
    }
    free(left);
    return 1;
  }
  if (w->count == w->capacity) {
    const size_t capacity = w->capacity ? 2 * w->capacity : 64;
    item *items = realloc(w->items, capacity * sizeof *items);
    if (!items) {
      free(bytes);
      return 0;
    }
    w->items = items;
    w->capacity = capacity;
  }
  item *to = &w->items[w->count++];
  *to = (item){.kind = kind, .bytes = bytes, .size = size};
  memcpy(to->key, key, PACK_KEY_SIZE);
  return 1;
}

static unsigned char *padded(size_t size) {
  return calloc(1, size ? (size_t)pack_padded(size) : 1);
}

int pack_add(pack_writer *w, pack_kind kind, const unsigned char key[PACK_KEY_SIZE], const void *bytes, size_t size) {
  unsigned char *copy = padded(size);
  if (copy && size)
    memcpy(copy, bytes, size);
  return add_owned(w, kind, key, copy, size);
}

int pack_add_kernel(pack_writer *w, const unsigned char key[PACK_KEY_SIZE], const pack_kernel *kernel) {
  const size_t start = KERNEL_HEAD + (size_t)pack_padded(kernel->manifest_size), size = start + kernel->image_size;
  unsigned char *bytes = padded(size);
  if (bytes) {
    little_endian_put(bytes, kernel->manifest_size, 4);
    little_endian_put(bytes + 8, kernel->image_size, 8);
    memcpy(bytes + KERNEL_HEAD, kernel->manifest, kernel->manifest_size);
    memcpy(bytes + start, kernel->image, kernel->image_size);
  }
  return add_owned(w, PACK_KERNEL, key, bytes, size);
}

int pack_add_request(pack_writer *w, const unsigned char key[PACK_KEY_SIZE], const pack_request *request) {
  const size_t size = REQUEST_HEAD + request->words_size;
  unsigned char *bytes = padded(size);
  if (bytes) {
    little_endian_put(bytes, request->roles, 4);
    memcpy(bytes + 16, request->kernels, sizeof request->kernels);
    memcpy(bytes + REQUEST_HEAD, request->words, request->words_size);
  }
  return add_owned(w, PACK_REQUEST, key, bytes, size);
}

int pack_add_named(pack_writer *w, pack_kind kind, const char *name, const char *bytes, size_t size) {
  const size_t length = strlen(name) + 1;
  unsigned char key[PACK_KEY_SIZE], *record = padded(length + size);
  pack_hash(name, length - 1, key);
  if (record) {
    memcpy(record, name, length);
    memcpy(record + length, bytes, size);
  }
  return add_owned(w, kind, key, record, length + size);
}

int pack_writer_conflicts(const pack_writer *w, pack_kind kind, const char *name, const char *bytes, size_t size) {
  const size_t length = strlen(name) + 1;
  unsigned char key[PACK_KEY_SIZE];
  pack_hash(name, length - 1, key);
  for (size_t n = 0; n < w->count; n++) {
    const item *there = &w->items[n];
    if (there->kind == kind && !memcmp(there->key, key, PACK_KEY_SIZE))
      return there->size != length + size || memcmp(there->bytes + length, bytes, size) != 0;
  }
  return 0;
}

static int by_kind_and_key(const void *a, const void *b) {
  const item *x = *(item *const *)a, *y = *(item *const *)b;
  return x->kind != y->kind ? (x->kind > y->kind) - (x->kind < y->kind) : memcmp(x->key, y->key, PACK_KEY_SIZE);
}

static void put_digest(unsigned char *at, XXH128_hash_t hash) {
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, hash);
  memcpy(at, sum.digest, sizeof sum.digest);
}

static void put_head(const pack_writer *w, unsigned char *file, size_t size) {
  memcpy(file, PACK_MAGIC, 8);
  little_endian_put(file + AT_VERSION, PACK_FORMAT, 4);
  little_endian_put(file + AT_HEADER_SIZE, HEADER_SIZE, 4);
  little_endian_put(file + AT_FILE_SIZE, size, 8);
  little_endian_put(file + AT_COUNT, w->count, 4);
  little_endian_put(file + AT_MANIFEST_FORMAT, (uint64_t)w->maker.manifest_format, 4);
  memcpy(file + AT_GENERATOR, w->maker.version, strnlen(w->maker.version, PACK_VERSION_SIZE - 1));
  memcpy(file + AT_TEMPLATES, w->maker.templates, strnlen(w->maker.templates, PACK_DIGEST_SIZE - 1));
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, file, AT_DIGEST);
  XXH3_128bits_update(&state, file + HEADER_SIZE, w->count * ENTRY_SIZE);
  put_digest(file + AT_DIGEST, XXH3_128bits_digest(&state));
}

void *pack_writer_finish(const pack_writer *w, size_t *size) {
  const item **order = calloc(w->count + 1, sizeof *order);
  *size = HEADER_SIZE + w->count * ENTRY_SIZE;
  for (size_t n = 0; order && n < w->count; n++) {
    order[n] = &w->items[n];
    *size += (size_t)pack_padded(w->items[n].size);
  }
  unsigned char *file = order ? calloc(1, *size) : NULL;
  if (!file) {
    free(order);
    return NULL;
  }
  if (w->count)
    qsort(order, w->count, sizeof *order, by_kind_and_key);
  size_t at = HEADER_SIZE + w->count * ENTRY_SIZE;
  for (size_t n = 0; n < w->count; n++) {
    const item *from = order[n];
    const size_t bytes = (size_t)pack_padded(from->size);
    unsigned char *entry = file + HEADER_SIZE + n * ENTRY_SIZE;
    little_endian_put(entry + IN_KIND, (uint64_t)from->kind, 4);
    memcpy(entry + IN_KEY, from->key, PACK_KEY_SIZE);
    little_endian_put(entry + IN_OFFSET, at, 8);
    little_endian_put(entry + IN_SIZE, from->size, 8);
    put_digest(entry + IN_DIGEST, XXH3_128bits(from->bytes, bytes));
    memcpy(file + at, from->bytes, bytes);
    at += bytes;
  }
  put_head(w, file, *size);
  free(order);
  return file;
}
