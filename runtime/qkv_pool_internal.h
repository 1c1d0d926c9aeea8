/* qkv_pool_internal.h: what the files of the KV pool share.
 *
 *   qkv_pool_layout.c  where pages and tokens lie      qkv_pool_map.c  which granules have memory
 *   qkv_pool.c         opening, blocks, slots, figures
 *
 * A pool of blocks is one line of pages, a contiguous pool a line of tokens for each slot. Pages and tokens are the
 * units of a line. An area holds every line once: for K of layer 3, say. Areas whose units are of one size are of one
 * kind: the same granules of all of them are mapped, and their addresses are reserved in one piece, [areas, lines,
 * granules]. */
#ifndef RUNTIME_QKV_POOL_INTERNAL_H
#define RUNTIME_QKV_POOL_INTERNAL_H

#include "qkv_internal.h"

typedef enum pool_part { POOL_KEYS, POOL_VALUES, POOL_PARTS } pool_part;

typedef struct pool_kind {
  int64_t unit; /* bytes of a unit in one area, a multiple of 16 */
  int64_t areas;
  int64_t granules;      /* of a line in one area */
  int64_t reserved;      /* bytes */
  char *base;            /* NULL: not reserved */
  unsigned char *mapped; /* [lines, granules]: 1 has memory in all areas, 0 in none */
  int64_t *tops;         /* [lines]: from this granule on none has memory */
} pool_kind;

/* Granules of all areas of a kind that get memory together. */
typedef struct pool_run {
  const pool_kind *kind;
  int64_t line, first, count;
} pool_run;

struct qkv_pool {
  qkv_engine *engine;
  qkv_pool_options options;
  char name[64]; /* of the spec */
  qkv_dtype dtype;
  int heads, dims[POOL_PARTS];
  spec_page_order page_order;
  int64_t page;                   /* tokens of a unit */
  int64_t part_bytes[POOL_PARTS]; /* of a unit's keys and values in one layer, rounded up to 16 */
  int64_t granule;
  int64_t lines, units; /* of each line */
  pool_kind kinds[POOL_PARTS];
  int nkinds;

  pthread_mutex_t lock; /* guards everything below, and mapped and tops of the kinds */
  int64_t mapped_bytes;
  int64_t used_units;
  pool_run *runs; /* asked for and not yet mapped */
  int64_t nruns, runs_capacity;
  int lost_runs;    /* there was no host memory to note one */
  int32_t *owners;  /* [blocks]; 0: free */
  uint64_t *free;   /* [blocks / 64, rounded up]: bit set: free */
  int64_t low_word; /* no word of `free` before this one has a bit */
  int64_t *lengths; /* [slots] */
};

/* ---- qkv_pool_layout.c ---- */

/* Bytes of keys or values of `tokens` tokens in one layer. */
int64_t pool_part_bytes(const spec *s, pool_part part, int64_t tokens);
/* Checks the options against the spec and fills everything above the lock; nothing is reserved. */
qkv_status pool_lay_out(qkv_pool *p, const spec *s);
/* Keys or values of a layer. */
qkv_tensor pool_tensor(const qkv_pool *p, int64_t layer, pool_part part);
/* "pool of llama3_8b". */
#define POOL_SAYS "pool of %s: "

/* ---- qkv_pool_map.c: with the lock held ---- */

/* Reserves the addresses and makes the maps. What was made before a failure is freed by pool_unreserve. */
qkv_status pool_reserve(qkv_pool *p);
void pool_unreserve(qkv_pool *p);
/* Notes that units of a line need memory. The notes are carried out, or dropped, by the next pool_map. */
void pool_want(qkv_pool *p, int64_t line, int64_t first, int64_t count);
/* Maps what is noted, all or nothing. QKV_OUT_OF_MEMORY says what is missing. */
qkv_status pool_map(qkv_pool *p);
/* Bytes of mapped granules in which nothing is in use. */
int64_t pool_idle(const qkv_pool *p);
/* Unmaps them. */
qkv_status pool_unmap_idle(qkv_pool *p, int64_t *returned);
/* Whether one of the units from first to end - 1 must keep its memory (qkv_pool.c). */
int pool_in_use(const qkv_pool *p, int64_t line, int64_t first, int64_t end);

#endif
