/* pack.c: opens packs and finds records in them. Every offset and size is checked before it is used: the index when the
 * pack is opened, a record's inner sizes when it is read. */
#include "pack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "file.h"
#include "pack_format.h"

struct pack {
  char *name;
  const unsigned char *bytes;
  void *owned; /* the bytes of a file; NULL: the caller's */
  size_t size;
  int count;
  pack_maker maker;
};

const char *pack_kind_name(int kind) {
  static const char *const names[] = {"?", "kernel", "request", "spec", "table"};
  return names[kind >= PACK_KERNEL && kind <= PACK_TABLE ? kind : 0];
}

const char *pack_name(const pack *p) {
  return p->name;
}
const pack_maker *pack_made_by(const pack *p) {
  return &p->maker;
}
int64_t pack_size(const pack *p) {
  return (int64_t)p->size;
}
int pack_count(const pack *p) {
  return p->count;
}

void pack_close(pack *p) {
  if (!p)
    return;
  free(p->owned);
  free(p->name);
  free(p);
}

/* ---- Opening ---- */

static int digest_fits(const unsigned char *file, size_t index_end) {
  XXH3_state_t state;
  XXH128_canonical_t sum;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, file, AT_DIGEST);
  XXH3_128bits_update(&state, file + HEADER_SIZE, index_end - HEADER_SIZE);
  XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(&state));
  return !memcmp(sum.digest, file + AT_DIGEST, sizeof sum.digest);
}

/* Records follow each other without gaps, in order of kind and key, up to the end of the file. */
static int index_fits(const unsigned char *file, size_t size, int count) {
  uint64_t at = HEADER_SIZE + (uint64_t)count * ENTRY_SIZE;
  for (int n = 0; n < count; n++) {
    const unsigned char *entry = file + HEADER_SIZE + (size_t)n * ENTRY_SIZE;
    const uint64_t bytes = little_endian_get(entry + IN_SIZE, 8), left = size - at;
    if (little_endian_get(entry + IN_OFFSET, 8) != at || bytes > left || pack_padded(bytes) > left)
      return 0;
    at += pack_padded(bytes);
    const unsigned char *before = entry - ENTRY_SIZE;
    if (n == 0)
      continue;
    const uint64_t kind = little_endian_get(entry + IN_KIND, 4), kind_before = little_endian_get(before + IN_KIND, 4);
    if (kind < kind_before || (kind == kind_before && memcmp(before + IN_KEY, entry + IN_KEY, PACK_KEY_SIZE) >= 0))
      return 0;
  }
  return at == size;
}

/* What is wrong with the head of a file; PACK_OK with *count when nothing is. */
static pack_status check_head(const unsigned char *file, size_t size, int *count, text *why) {
  if (size < HEADER_SIZE || memcmp(file, PACK_MAGIC, 8)) {
    text_printf(why, "%zu bytes that are no pack", size);
    return PACK_DAMAGED;
  }
  const uint64_t version = little_endian_get(file + AT_VERSION, 4), records = little_endian_get(file + AT_COUNT, 4);
  if (version > PACK_FORMAT) {
    text_printf(
        why,
        "is of format %llu, which is newer than this library's %d; it is left alone. Update libqkv, or make the "
        "pack anew with this version's `qkvc bundle`",
        (unsigned long long)version, PACK_FORMAT);
    return PACK_NEWER;
  }
  if (little_endian_get(file + AT_FILE_SIZE, 8) != size) {
    text_printf(why, "has %zu bytes, and its header says %llu: it was cut off, or the header is damaged", size,
                (unsigned long long)little_endian_get(file + AT_FILE_SIZE, 8));
    return PACK_DAMAGED;
  }
  if (version != PACK_FORMAT || little_endian_get(file + AT_HEADER_SIZE, 4) != HEADER_SIZE ||
      records > (size - HEADER_SIZE) / ENTRY_SIZE || !digest_fits(file, HEADER_SIZE + (size_t)records * ENTRY_SIZE) ||
      !index_fits(file, size, (int)records)) {
    text_puts(why, "its header or index is damaged");
    return PACK_DAMAGED;
  }
  *count = (int)records;
  return PACK_OK;
}

pack_status pack_open_memory(const void *bytes, size_t size, const char *name, pack **out, text *why) {
  const unsigned char *file = bytes;
  *out = NULL;
  pack *p = calloc(1, sizeof *p);
  if (!p || !(p->name = strdup(name))) {
    pack_close(p);
    return PACK_NO_MEMORY;
  }
  text_printf(why, "pack %s: ", name);
  pack_status status = check_head(file, size, &p->count, why);
  if (status != PACK_OK) {
    pack_close(p);
    return status;
  }
  p->bytes = file;
  p->size = size;
  memcpy(p->maker.version, file + AT_GENERATOR, PACK_VERSION_SIZE - 1);
  memcpy(p->maker.templates, file + AT_TEMPLATES, PACK_DIGEST_SIZE - 1);
  p->maker.manifest_format = (int)little_endian_get(file + AT_MANIFEST_FORMAT, 4);
  text_free(why);
  *out = p;
  return PACK_OK;
}

pack_status pack_open_file(const char *path, pack **out, text *why) {
  *out = NULL;
  char *bytes;
  size_t size;
  const int error = file_read(path, SIZE_MAX - 1, &bytes, &size);
  if (error) {
    text_printf(why, "pack %s: cannot be read: %s", path, error == EINVAL ? "it is no plain file" : strerror(error));
    return error == ENOMEM ? PACK_NO_MEMORY : PACK_IO;
  }
  pack_status status = pack_open_memory(bytes, size, path, out, why);
  if (status == PACK_OK)
    (*out)->owned = bytes;
  else
    free(bytes);
  return status;
}

/* ---- Finding ---- */

static const unsigned char *entry_of(const pack *p, int n) {
  return p->bytes + HEADER_SIZE + (size_t)n * ENTRY_SIZE;
}

int pack_kind_of(const pack *p, int n) {
  return (int)little_endian_get(entry_of(p, n) + IN_KIND, 4);
}

int pack_at(const pack *p, int n, pack_record *out) {
  const unsigned char *entry = entry_of(p, n);
  XXH128_canonical_t sum;
  *out = (pack_record){.kind = (int)little_endian_get(entry + IN_KIND, 4),
                       .number = n,
                       .bytes = p->bytes + little_endian_get(entry + IN_OFFSET, 8),
                       .size = (size_t)little_endian_get(entry + IN_SIZE, 8)};
  memcpy(out->key, entry + IN_KEY, PACK_KEY_SIZE);
  XXH128_canonicalFromHash(&sum, XXH3_128bits(out->bytes, (size_t)pack_padded(out->size)));
  return memcmp(sum.digest, entry + IN_DIGEST, sizeof sum.digest) ? -1 : 1;
}

/* <0, 0, >0: how the entry's kind and the first digits of its key compare. */
static int compare(const unsigned char *entry, pack_kind kind, const unsigned char *key, int digits) {
  const uint64_t own = little_endian_get(entry + IN_KIND, 4), wanted = (uint64_t)kind;
  if (own != wanted)
    return own < wanted ? -1 : 1;
  const int order = memcmp(entry + IN_KEY, key, (size_t)digits / 2);
  if (order || digits % 2 == 0)
    return order;
  return (entry[IN_KEY + digits / 2] >> 4) - (key[digits / 2] >> 4);
}

int pack_find(const pack *p, pack_kind kind, const unsigned char key[PACK_KEY_SIZE], int digits, pack_record *out) {
  int low = 0, high = p->count;
  while (low < high) { /* the first entry that is not less */
    const int middle = (low + high) / 2;
    if (compare(entry_of(p, middle), kind, key, digits) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  int result = 0;
  for (; low < p->count && compare(entry_of(p, low), kind, key, digits) == 0; low++)
    if ((result = pack_at(p, low, out)) > 0)
      return 1;
  return result;
}

/* ---- What records hold ---- */

void pack_hash(const void *bytes, size_t size, unsigned char key[PACK_KEY_SIZE]) {
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, XXH3_128bits(bytes, size));
  memcpy(key, sum.digest, PACK_KEY_SIZE);
}

static int digit_value(char digit) {
  return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : 0;
}

void pack_key_of(const char hex[CACHE_KEY_SIZE], unsigned char key[PACK_KEY_SIZE]) {
  for (int n = 0; n < PACK_KEY_SIZE; n++)
    key[n] = (unsigned char)(digit_value(hex[2 * n]) << 4 | digit_value(hex[2 * n + 1]));
}

void pack_key_hex(const unsigned char key[PACK_KEY_SIZE], char hex[CACHE_KEY_SIZE]) {
  static const char digits[] = "0123456789abcdef";
  for (int n = 0; n < 2 * PACK_KEY_SIZE; n++)
    hex[n] = digits[key[n / 2] >> (n % 2 ? 0 : 4) & 15];
  hex[2 * PACK_KEY_SIZE] = 0;
}

int pack_read_kernel(const pack_record *r, pack_kernel *out) {
  if (r->size < KERNEL_HEAD)
    return 0;
  const uint64_t words = little_endian_get(r->bytes, 4), image = little_endian_get(r->bytes + 8, 8);
  const uint64_t start = KERNEL_HEAD + pack_padded(words);
  if (start > r->size || image != r->size - start)
    return 0;
  *out = (pack_kernel){.manifest = (const char *)r->bytes + KERNEL_HEAD,
                       .manifest_size = (size_t)words,
                       .image = r->bytes + start,
                       .image_size = (size_t)image};
  return 1;
}

int pack_read_request(const pack_record *r, pack_request *out) {
  if (r->size < REQUEST_HEAD)
    return 0;
  *out = (pack_request){.roles = (unsigned)little_endian_get(r->bytes, 4),
                        .words = (const char *)r->bytes + REQUEST_HEAD,
                        .words_size = r->size - REQUEST_HEAD};
  memcpy(out->kernels, r->bytes + 16, sizeof out->kernels);
  return out->roles != 0 && out->roles < 1u << PACK_ROLES;
}

int pack_read_named(const pack_record *r, const char **name, const char **bytes, size_t *size) {
  const unsigned char *zero = memchr(r->bytes, 0, r->size);
  if (!zero)
    return 0;
  *name = (const char *)r->bytes;
  *bytes = (const char *)zero + 1;
  *size = r->size - (size_t)(zero + 1 - r->bytes);
  return 1;
}
