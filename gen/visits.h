/* visits.h: how many tiles of keys the tiles of rows of a workload visit, by what was derived from the mask: what a
 * model of a kernel's work begins with. */
#ifndef GEN_VISITS_H
#define GEN_VISITS_H

#include "lua_bind.h"

/* Must outlive the state. */
typedef struct visits {
  const binding *bound;
  gen_work work;
} visits;

/* Of one head of one entry; parameters that the mask reads are taken to hide nothing. Of many tiles of rows a sample is
 * looked at, first and last among them. */
typedef struct visit_count {
  double rows;   /* tiles of rows, of all residues */
  double tiles;  /* tiles of keys that they visit, together */
  double masked; /* of which so many evaluate the mask */
  double most;   /* that a tile of rows visits at most */
} visit_count;

visit_count visits_count(const visits *v, int64_t queries, int64_t keys);

/* Defines the globals workload (batch, len_q, len_k), device (sm_count, clock_hz, memory_bandwidth, l2_bytes) and
 * visits: visits(queries, keys) is a table of the fields above for tiles of so many. Throws. */
void visits_define(visits *v, const gen_device *device, lua_State *L);

#endif
