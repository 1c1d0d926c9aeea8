/* pack_format.h: the bytes of a pack, for those who read and who write them.
 *
 *   offset  size
 *        0     8  magic "qkvcpack"
 *        8     4  format version
 *       12     4  bytes of the header (128)
 *       16     8  bytes of the file
 *       24     4  number of records
 *       28     4  manifest format
 *       32    16  version of the generator, zero padded
 *       48    32  digest of the templates, hexadecimal
 *       80    32  zero
 *      112    16  XXH3-128 of bytes 0..112 and of the index
 *      128        index: one entry of 64 bytes a record, in order of kind and key
 *                   0   4  kind
 *                   4   4  zero
 *                   8  16  key
 *                  24   8  offset of the record
 *                  32   8  bytes of the record
 *                  40   8  zero
 *                  48  16  XXH3-128 of the record with the zeros that fill it up to a multiple of 16 bytes
 *                 records, in the order of the index, without gaps
 *
 * All numbers little-endian, offsets from the start of the file. Every byte is under a digest. */
#ifndef RUNTIME_PACK_FORMAT_H
#define RUNTIME_PACK_FORMAT_H

#include <stdint.h>
#include <string.h>

#include "little_endian.h"

#define PACK_MAGIC "qkvcpack"

enum {
  PACK_FORMAT = 1,
  AT_VERSION = 8,
  AT_HEADER_SIZE = 12,
  AT_FILE_SIZE = 16,
  AT_COUNT = 24,
  AT_MANIFEST_FORMAT = 28,
  AT_GENERATOR = 32,
  AT_TEMPLATES = 48,
  AT_DIGEST = 112,
  HEADER_SIZE = 128,
  ENTRY_SIZE = 64,
  IN_KIND = 0,
  IN_KEY = 8,
  IN_OFFSET = 24,
  IN_SIZE = 32,
  IN_DIGEST = 48,
  RECORD_ALIGNMENT = 16,
  KERNEL_HEAD = 16,  /* of a kernel: bytes of the manifest (4), zero (4), bytes of the image (8); then the manifest,
                        zeros up to a multiple of 16, the image */
  REQUEST_HEAD = 64, /* of a request: roles (4), zero (12), three keys (16 each); then the words */
};

static inline uint64_t pack_padded(uint64_t size) {
  return (size + RECORD_ALIGNMENT - 1) / RECORD_ALIGNMENT * RECORD_ALIGNMENT;
}

#endif
