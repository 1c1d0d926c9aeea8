/* little_endian.h: numbers in the bytes of files, whatever the machine's order. */
#ifndef RUNTIME_LITTLE_ENDIAN_H
#define RUNTIME_LITTLE_ENDIAN_H

#include <stdint.h>

static inline void little_endian_put(unsigned char *at, uint64_t value, int bytes) {
  for (int n = 0; n < bytes; n++)
    at[n] = (unsigned char)(value >> 8 * n);
}

static inline uint64_t little_endian_get(const unsigned char *at, int bytes) {
  uint64_t value = 0;
  for (int n = 0; n < bytes; n++)
    value |= (uint64_t)at[n] << 8 * n;
  return value;
}

#endif
