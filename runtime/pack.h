/* pack.h: a pack: one relocatable, read-only file with what many specs need at run time (docs/design/0013-packs.md).
 *
 * A pack is a list of records, each with a kind, a key of 128 bits and a digest of its own. A record that does not
 * verify is as good as absent; the others stay usable. Nothing is unpacked or copied when a pack is opened: records are
 * looked up in the bytes, and verified whenever they are found. Any number of threads may look at once.
 *
 *   kernel   key: the cache's key of the kernel        bytes: manifest and image (pack_kernel)
 *   request  key: hash of what qkv_prepare is asked    bytes: which kernels answer it (pack_request)
 *   spec     key: hash of the name                     bytes: name, zero, text
 *   table    key: hash of the name                     bytes: name, zero, text of a tuned table */
#ifndef RUNTIME_PACK_H
#define RUNTIME_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "cache.h"
#include "text.h"

typedef enum pack_kind { PACK_KERNEL = 1, PACK_REQUEST = 2, PACK_SPEC = 3, PACK_TABLE = 4 } pack_kind;
const char *pack_kind_name(int kind); /* "kernel"; "?" for an unknown one */

enum { PACK_KEY_SIZE = 16, PACK_VERSION_SIZE = 16, PACK_DIGEST_SIZE = 33 };

/* Who made a pack: kernels of another generator or manifest format may want other parameters than this one binds. */
typedef struct pack_maker {
  char version[PACK_VERSION_SIZE]; /* of the generator, zero padded */
  int manifest_format;
  char templates[PACK_DIGEST_SIZE]; /* template_digest */
} pack_maker;

typedef struct pack pack;

typedef enum pack_status { PACK_OK, PACK_DAMAGED, PACK_NEWER, PACK_IO, PACK_NO_MEMORY } pack_status;

/* Opens bytes, which must stay as they are until pack_close. name: for messages, copied. On failure *out is NULL and
 * `why` says what is wrong, the name first. */
pack_status pack_open_memory(const void *bytes, size_t size, const char *name, pack **out, text *why);
/* Reads the whole file, never maps it: a mapped file of a network file system can raise SIGBUS. */
pack_status pack_open_file(const char *path, pack **out, text *why);
void pack_close(pack *p); /* NULL is allowed */

const char *pack_name(const pack *p);
const pack_maker *pack_made_by(const pack *p);
int64_t pack_size(const pack *p); /* bytes */
int pack_count(const pack *p);    /* records */

typedef struct pack_record {
  int kind, number; /* number: its place in the index */
  unsigned char key[PACK_KEY_SIZE];
  const unsigned char *bytes; /* 16-byte aligned when the pack is */
  size_t size;
} pack_record;

/* 1: found and verified; 0: absent; -1: there and damaged (out tells which). Only the first `digits` hexadecimal digits
 * of the key need to be equal; of several such records the first verified one is found. */
int pack_find(const pack *p, pack_kind kind, const unsigned char key[PACK_KEY_SIZE], int digits, pack_record *out);
int pack_kind_of(const pack *p, int n);
/* Record n of the index: 1 when it verifies, -1 when not. */
int pack_at(const pack *p, int n, pack_record *out);

/* ---- What records hold ---- */

/* 128 bits of a hash as a key; a cache key (32 hexadecimal digits) as a key; and a key in hex. */
void pack_hash(const void *bytes, size_t size, unsigned char key[PACK_KEY_SIZE]);
void pack_key_of(const char hex[CACHE_KEY_SIZE], unsigned char key[PACK_KEY_SIZE]);
void pack_key_hex(const unsigned char key[PACK_KEY_SIZE], char hex[CACHE_KEY_SIZE]);

typedef struct pack_kernel {
  const char *manifest;
  size_t manifest_size;
  const void *image;
  size_t image_size;
} pack_kernel;
/* Views into the record. 0 when its sizes do not add up. */
int pack_read_kernel(const pack_record *r, pack_kernel *out);

enum { PACK_ROLES = 3 }; /* as an op has them, by number: qkv_internal.h */
typedef struct pack_request {
  unsigned roles; /* bit n: the op has a kernel in role n */
  unsigned char kernels[PACK_ROLES][PACK_KEY_SIZE];
  const char *words; /* "llama3_8b sm_90a ...": what was asked, for people; not zero-terminated */
  size_t words_size;
} pack_request;
int pack_read_request(const pack_record *r, pack_request *out);

/* The two parts of a spec or a table: its name (zero-terminated) and its text (not). */
int pack_read_named(const pack_record *r, const char **name, const char **bytes, size_t *size);

/* ---- Making one (pack_write.c) ---- */

typedef struct pack_writer pack_writer;
pack_writer *pack_writer_new(const pack_maker *maker); /* NULL: out of memory, as of the others */
void pack_writer_free(pack_writer *w);
/* Copies the record's bytes. One of the same kind and key is there already: equal bytes add nothing; of unequal ones
 * those that memcmp puts first stay, so that the order of additions does not matter. 0: out of memory. */
int pack_add(pack_writer *w, pack_kind kind, const unsigned char key[PACK_KEY_SIZE], const void *bytes, size_t size);
int pack_add_kernel(pack_writer *w, const unsigned char key[PACK_KEY_SIZE], const pack_kernel *kernel);
int pack_add_request(pack_writer *w, const unsigned char key[PACK_KEY_SIZE], const pack_request *request);
int pack_add_named(pack_writer *w, pack_kind kind, const char *name, const char *bytes, size_t size);
/* Whether there is a record of that name with another text. */
int pack_writer_conflicts(const pack_writer *w, pack_kind kind, const char *name, const char *bytes, size_t size);
/* The file: the same records in any order of addition give the same bytes. malloc'd. */
void *pack_writer_finish(const pack_writer *w, size_t *size);

#endif
