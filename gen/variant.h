/* variant.h: a name for what a spec computes. */
#ifndef GEN_VARIANT_H
#define GEN_VARIANT_H

#include <stdbool.h>

#include "spec.h"

enum { VARIANT_HASH_SIZE = 33 }; /* 32 hexadecimal digits and a zero */

/* The 128-bit hash of the canonical form that the kernels of a phase follow from (spec_canonical_of_phase): all that
 * may change results or kernels, and neither name, workloads, schedule nor x- keys. False when memory is out. */
bool variant_hash(const spec *s, const char *phase, char out[VARIANT_HASH_SIZE]);
/* The same of a text that is at hand. */
void variant_hash_text(const text *canonical, char out[VARIANT_HASH_SIZE]);

#endif
