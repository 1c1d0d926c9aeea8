/* variant.c: see variant.h. */
#include "variant.h"

#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

void variant_hash_text(const text *canonical, char out[VARIANT_HASH_SIZE]) {
  const XXH128_hash_t hash = XXH3_128bits(canonical->bytes, canonical->size);
  snprintf(out, VARIANT_HASH_SIZE, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

bool variant_hash(const spec *s, const char *phase, char out[VARIANT_HASH_SIZE]) {
  text canonical = {0};
  spec_canonical_of_phase(s, phase, &canonical);
  const bool good = canonical.bytes && !canonical.failed;
  out[0] = 0;
  if (good)
    variant_hash_text(&canonical, out);
  text_free(&canonical);
  return good;
}
