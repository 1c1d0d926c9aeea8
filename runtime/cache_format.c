/* cache_format.c: the bytes of a cache entry.
 *
 *   offset  size
 *        0     8  magic "qkvcache"
 *        8     4  format version
 *       12     4  bytes of the header (96)
 *       16    32  key, hexadecimal
 *       48     8  bytes of the manifest
 *       56     8  bytes of the image
 *       64     8  bytes of the log
 *       72     8  zero
 *       80    16  XXH3-128 of bytes 0..80 and everything from 96 on
 *       96        manifest, image, log, one after the other
 *
 * All numbers little-endian. Every byte of the file is under the digest, and the sizes must add up to the file's. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cache_internal.h"
#include "little_endian.h"

enum {
  FORMAT_VERSION = 1,
  AT_MAGIC = 0,
  AT_VERSION = 8,
  AT_HEADER_SIZE = 12,
  AT_KEY = 16,
  AT_SIZES = 48, /* three */
  AT_DIGEST = 80,
  HEADER_SIZE = 96,
  KEY_CHARACTERS = CACHE_KEY_SIZE - 1
};

static const char magic[] = "qkvcache";

static void digest(const unsigned char *file, size_t size, XXH128_canonical_t *out) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, file, AT_DIGEST);
  XXH3_128bits_update(&state, file + HEADER_SIZE, size - HEADER_SIZE);
  XXH128_canonicalFromHash(out, XXH3_128bits_digest(&state));
}

void *cache_encode(const char *key, const cache_entry *entry, size_t *size) {
  const char *log = entry->log ? entry->log : "";
  const size_t sizes[] = {entry->manifest_size, entry->image_size, strlen(log)};
  const void *parts[] = {entry->manifest, entry->image, log};
  *size = HEADER_SIZE + sizes[0] + sizes[1] + sizes[2];
  unsigned char *file = calloc(1, *size), *to = file + HEADER_SIZE;
  if (!file)
    return NULL;
  memcpy(file + AT_MAGIC, magic, 8);
  little_endian_put(file + AT_VERSION, FORMAT_VERSION, 4);
  little_endian_put(file + AT_HEADER_SIZE, HEADER_SIZE, 4);
  memcpy(file + AT_KEY, key, KEY_CHARACTERS);
  for (int n = 0; n < 3; n++) {
    little_endian_put(file + AT_SIZES + 8 * n, sizes[n], 8);
    if (sizes[n])
      memcpy(to, parts[n], sizes[n]);
    to += sizes[n];
  }
  XXH128_canonical_t sum;
  digest(file, *size, &sum);
  memcpy(file + AT_DIGEST, sum.digest, sizeof sum.digest);
  return file;
}

/* A zero-terminated copy. */
static void *copy(const unsigned char *from, size_t size) {
  char *to = malloc(size + 1);
  if (!to)
    return NULL;
  memcpy(to, from, size);
  to[size] = 0;
  return to;
}

int cache_is_newer(const void *bytes, size_t size) {
  const unsigned char *file = bytes;
  return size >= AT_HEADER_SIZE && !memcmp(file, magic, 8) &&
         little_endian_get(file + AT_VERSION, 4) > FORMAT_VERSION;
}

int cache_decode(const char *key, const void *bytes, size_t size, cache_entry *out) {
  const unsigned char *file = bytes;
  if (size < HEADER_SIZE || memcmp(file, magic, 8) || little_endian_get(file + AT_VERSION, 4) != FORMAT_VERSION ||
      little_endian_get(file + AT_HEADER_SIZE, 4) != HEADER_SIZE || memcmp(file + AT_KEY, key, KEY_CHARACTERS))
    return 0;
  size_t sizes[3], left = size - HEADER_SIZE;
  for (int n = 0; n < 3; n++) {
    uint64_t part = little_endian_get(file + AT_SIZES + 8 * n, 8);
    if (part > left)
      return 0;
    sizes[n] = (size_t)part;
    left -= sizes[n];
  }
  XXH128_canonical_t sum;
  if (left != 0)
    return 0;
  digest(file, size, &sum);
  if (memcmp(sum.digest, file + AT_DIGEST, sizeof sum.digest))
    return 0;
  if (!out)
    return 1;
  const unsigned char *body = file + HEADER_SIZE;
  *out = (cache_entry){.manifest = copy(body, sizes[0]),
                       .manifest_size = sizes[0],
                       .image = copy(body + sizes[0], sizes[1]),
                       .image_size = sizes[1],
                       .log = copy(body + sizes[0] + sizes[1], sizes[2])};
  if (out->manifest && out->image && out->log)
    return 1;
  cache_entry_free(out);
  return -1;
}

/* `digits` hexadecimal digits of the fields' hash. Their lengths and hashes have fixed sizes, so no two lists of fields
 * can meet by moving bytes from one field to the next. */
static void hash_digits(const char *const *fields, int count, char *out, int digits) {
  static const char hexadecimal[] = "0123456789abcdef";
  unsigned char links[8 + 2 * 24] = {0};
  little_endian_put(links, FORMAT_VERSION, 8);
  for (int n = 0; n < count; n++) {
    XXH128_hash_t hash = XXH3_128bits(fields[n], strlen(fields[n]));
    little_endian_put(links + 8 + 24 * n, strlen(fields[n]), 8);
    little_endian_put(links + 16 + 24 * n, hash.low64, 8);
    little_endian_put(links + 24 + 24 * n, hash.high64, 8);
  }
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, XXH3_128bits(links, 8 + 24 * (size_t)count));
  for (int n = 0; n < digits; n++)
    out[n] = hexadecimal[sum.digest[n / 2] >> (n % 2 ? 0 : 4) & 15];
}

void cache_key(const char *source, const char *options, const char *compiler, char key[CACHE_KEY_SIZE]) {
  hash_digits((const char *const[]){source, options}, 2, key, CACHE_SOURCE_DIGITS);
  hash_digits(&compiler, 1, key + CACHE_SOURCE_DIGITS, KEY_CHARACTERS - CACHE_SOURCE_DIGITS);
  key[KEY_CHARACTERS] = 0;
}
