/* primitives.h: what the files of the primitives runner share. */
#ifndef TESTS_PRIMITIVES_H
#define TESTS_PRIMITIVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device.h"
#include "text.h"

/* ---- Sources (sources.c) ---- */

typedef enum source_id { SOURCE_SM80, SOURCE_SM90, SOURCE_RING, SOURCE_SPLIT, SOURCE_CLUSTER, SOURCES } source_id;

typedef struct source_info {
  const char *path; /* below tests/emulator */
  int min_arch;     /* 80, 90 */
} source_info;
extern const source_info sources[SOURCES];

/* All primitives, the parameter struct and the kernels of one file. False: a message is on stderr. */
bool source_render(source_id id, text *out);

/* ---- Problems (problems.c) ---- */

enum { MAX_BUFFERS = 4, MAX_MAPS = 3, PERIOD = 8, IN = 0, OUT = 1 };

/* How the 32-bit words of a buffer are compared. */
typedef enum word_kind {
  EXACT,    /* the same bits */
  NUMBER,   /* floats: the same bits, or both NaN */
  RELATIVE, /* floats within tolerance |expected|, or the same bits, or both NaN */
  ABSOLUTE, /* floats within tolerance max(1, |expected|) */
  BF16_PAIR /* two bf16, each within tolerance max(1, |expected|) */
} word_kind;

/* The words of a buffer repeat with a period of 8. */
typedef struct word_rule {
  word_kind kind[PERIOD];
  double tolerance[PERIOD];
} word_rule;

typedef struct buffer {
  unsigned char *bytes;
  size_t size; /* a multiple of 4 */
  word_rule rule;
} buffer;

/* One launch of one kernel: buffers IN and OUT, more of them for the tensor maps. */
typedef struct problem {
  const char *entry;
  char entry_text[32];
  int64_t grid;
  int block, shared_bytes, cluster, mode, n, x[6];
  int buffers, maps;
  buffer buffer[MAX_BUFFERS];
  device_tensor_map map[MAX_MAPS];                /* base: filled in by the launch */
  int map_buffer[MAX_MAPS], map_offset[MAX_MAPS]; /* where it starts */
} problem;

/* A kernel and how many problems there are for it. `make` fills a zeroed problem. */
typedef struct problem_family {
  const char *name;
  source_id source;
  int count;
  void (*make)(problem *p, int number, uint64_t *random);
} problem_family;
extern const problem_family families[];
extern const int family_count;

void problem_free(problem *p);

#endif
