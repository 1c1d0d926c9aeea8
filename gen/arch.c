/* arch.c: the architecture table and the look-ups in it. */
#include "arch.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Limits of the CUDA programming guide, "Technical specifications per compute capability". Shared memory in bytes;
 * a block may use what an SM has less 1 KiB that the system keeps. Ascending by number. */
/* clang-format off */
static const arch table[] = {
    /* name      number  capability  per block  per SM   registers  threads/SM  threads/block */
    {"sm_80",    80,     8, 0,       166912,    167936,  65536,     2048,       1024},
    {"sm_86",    86,     8, 6,       101376,    102400,  65536,     1536,       1024},
    {"sm_87",    87,     8, 7,       166912,    167936,  65536,     1536,       1024},
    {"sm_89",    89,     8, 9,       101376,    102400,  65536,     1536,       1024},
    {"sm_90a",   90,     9, 0,       232448,    233472,  65536,     2048,       1024},
    {"sm_100a",  100,    10, 0,      232448,    233472,  65536,     2048,       1024},
    {"sm_103a",  103,    10, 3,      232448,    233472,  65536,     2048,       1024},
    {"sm_120",   120,    12, 0,      101376,    102400,  65536,     1536,       1024},
    {"sm_121",   121,    12, 1,      101376,    102400,  65536,     1536,       1024},
};
/* clang-format on */
static const int table_size = (int)(sizeof table / sizeof table[0]);

const arch *arch_table(int *count) {
  *count = table_size;
  return table;
}

/* Targets with a suffix ("sm_90a") use features of that one capability; their code runs on no other. */
static int is_specific(const arch *a) {
  return a->name[strlen(a->name) - 1] == 'a';
}

const arch *arch_find(const char *name) {
  if (!name)
    return NULL;
  const char *bare = strncmp(name, "sm_", 3) == 0 ? name + 3 : name;
  for (const arch *a = table; a < table + table_size; a++) {
    char number[16], dotted[32];
    snprintf(number, sizeof number, "%d", a->number);
    snprintf(dotted, sizeof dotted, "%d.%d", a->capability_major, a->capability_minor);
    if (strcmp(bare, a->name + 3) == 0 || strcmp(bare, number) == 0 || strcmp(name, dotted) == 0)
      return a;
  }
  return NULL;
}

const arch *arch_for_capability(int major, int minor) {
  const arch *best = NULL;
  for (const arch *a = table; a < table + table_size; a++) {
    if (a->capability_major != major || a->capability_minor > minor)
      continue;
    if (a->capability_minor == minor)
      return a;
    if (!is_specific(a))
      best = a;
  }
  return best;
}
