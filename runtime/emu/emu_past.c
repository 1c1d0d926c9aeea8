/* emu_past.c: what orders the clusters of a launch: releases and acquires of atomics on global memory. A block alone is
 * a cluster of one.
 *
 * A past says, cluster by cluster, how far some thread is ordered after other clusters' agents: a row of times each.
 * Pasts never change once made, share their rows, and live until the launch ends. Who releases at an address leaves
 * there its own row and every past it knows; who acquires there takes what was left, at a time of its own clock. From
 * then on whoever knows that time of that clock knows the past: barriers and all other rows of emu_clock.c pass it on
 * within the cluster for free. Two relaxed atomics and a fence on either side do the same as a releasing and an
 * acquiring one.
 */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

typedef struct past_row {
  int64_t cluster;
  const uint32_t *times; /* of its agents */
} past_row;

typedef struct past {
  int count;
  past_row rows[]; /* by cluster */
} past;

/* A thread's acquires, the latest first; each past holds the earlier ones. */
typedef struct acquire {
  uint32_t time;
  const past *past;
  const struct acquire *earlier;
} acquire;

/* What a thread has to do with other clusters. */
typedef struct thread_past {
  const acquire *acquired;
  const past *fenced; /* released by the relaxed atomics behind its latest fence */
  const past *seen;   /* acquired by its next fence */
} thread_past;

/* What was released at an address; a chained hash. */
typedef struct location {
  const void *address;
  const past *released;
  struct location *next;
} location;

enum { BUCKETS = 256, CHUNK = 64 * 1024 };

typedef struct chunk {
  struct chunk *next;
  size_t used, size;
  max_align_t bytes[];
} chunk;

static chunk *chunks; /* of the launch */
static location *buckets[BUCKETS];
static thread_past own[EMU_THREADS];
static int acquirers[EMU_THREADS], acquirer_count[EMU_BLOCKS]; /* of a cluster: from its first thread on */

/* ---- Memory of the launch ---- */

static void *take(size_t bytes) {
  bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
  if (!chunks || chunks->size - chunks->used < bytes) {
    size_t size = bytes > CHUNK ? bytes : CHUNK;
    chunk *c = malloc(sizeof *c + size);
    if (!c)
      fault_raise(EMU_FAULT_MEMORY, "no memory for the order of blocks");
    *c = (chunk){chunks, 0, size};
    chunks = c;
  }
  void *taken = (unsigned char *)chunks->bytes + chunks->used;
  chunks->used += bytes;
  return taken;
}

void past_end_launch(void) {
  for (chunk *c = chunks, *next; c; c = next) {
    next = c->next;
    free(c);
  }
  chunks = NULL;
  memset(buckets, 0, sizeof buckets);
}

static int running_cluster(void) {
  return machine_cluster(machine_place());
}

static int first_thread(int cluster) {
  return machine_first(cluster * machine.launch->cluster);
}

void past_start_cluster(int cluster) {
  memset(&own[first_thread(cluster)], 0, (size_t)(machine.launch->cluster * machine.span) * sizeof *own);
  acquirer_count[cluster] = 0;
}

/* ---- Pasts ---- */

static int width(void) { /* times of a row: also of engines that a block adds later */
  return clock_stride();
}

/* The later of two rows, time by time; one of them where it is later throughout. */
static const uint32_t *join_rows(const uint32_t *a, const uint32_t *b) {
  bool a_first = true, b_first = true;
  for (int i = 0; i < width(); i++) {
    a_first = a_first && a[i] <= b[i];
    b_first = b_first && b[i] <= a[i];
  }
  if (a_first || b_first)
    return a_first ? b : a;
  uint32_t *joined = take((size_t)width() * sizeof *joined);
  for (int i = 0; i < width(); i++)
    joined[i] = a[i] > b[i] ? a[i] : b[i];
  return joined;
}

/* Everything in either; NULL: nothing. */
static const past *join(const past *a, const past *b) {
  if (!a || !b || a == b)
    return a ? a : b;
  past *p = take(sizeof *p + (size_t)(a->count + b->count) * sizeof *p->rows);
  int i = 0, k = 0;
  p->count = 0;
  while (i < a->count || k < b->count) {
    bool from_a = k == b->count || (i < a->count && a->rows[i].cluster <= b->rows[k].cluster);
    bool from_b = i == a->count || (k < b->count && b->rows[k].cluster <= a->rows[i].cluster);
    past_row *row = &p->rows[p->count++];
    *row = from_a ? a->rows[i] : b->rows[k];
    if (from_a && from_b && a->rows[i].times != b->rows[k].times)
      row->times = join_rows(a->rows[i].times, b->rows[k].times);
    i += from_a;
    k += from_b;
  }
  return p;
}

/* A thread's latest acquire that a row of its cluster is ordered after. */
static const past *known(int thread, const uint32_t *row) {
  const acquire *a = own[thread].acquired;
  while (a && a->time > row[machine_agent(thread)])
    a = a->earlier;
  return a ? a->past : NULL;
}

/* All that a thread could pass on now. */
static const past *past_of(int thread) {
  const uint32_t *row = clock_of(thread, PROXY_GENERIC);
  uint32_t *times = take((size_t)width() * sizeof *times);
  memset(times, 0, (size_t)width() * sizeof *times);
  memcpy(times, row, (size_t)clock_agents() * sizeof *times);
  past *mine = take(sizeof *mine + sizeof *mine->rows);
  mine->count = 1;
  int cluster = running_cluster(), first = first_thread(cluster);
  mine->rows[0] = (past_row){machine.clusters[cluster].index, times};
  const past *all = mine;
  for (int i = 0; i < acquirer_count[cluster]; i++)
    all = join(all, known(acquirers[first + i], row));
  return all;
}

static bool covers(const past *p, int64_t cluster, int agent, uint32_t time) {
  int low = 0, high = p->count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (p->rows[middle].cluster < cluster)
      low = middle + 1;
    else
      high = middle;
  }
  return low < p->count && p->rows[low].cluster == cluster && p->rows[low].times[agent] >= time;
}

bool past_knows(int row, int64_t cluster, int agent, uint32_t time) {
  const uint32_t *clock = clock_of(row, PROXY_GENERIC);
  int place = running_cluster(), first = first_thread(place);
  for (int i = 0; i < acquirer_count[place]; i++) {
    const past *p = known(acquirers[first + i], clock);
    if (p && covers(p, cluster, agent, time))
      return true;
  }
  return false;
}

/* ---- What threads do ---- */

static void learn(int thread, const past *p) {
  thread_past *t = &own[thread];
  if (!p)
    return;
  int place = running_cluster();
  if (!t->acquired)
    acquirers[first_thread(place) + acquirer_count[place]++] = thread;
  acquire *a = take(sizeof *a);
  *a = (acquire){clock_of(thread, PROXY_GENERIC)[machine_agent(thread)],
                 join(t->acquired ? t->acquired->past : NULL, p), t->acquired};
  t->acquired = a;
}

static location *find(const void *address) {
  location **bucket = &buckets[((uintptr_t)address >> 2) % BUCKETS], *l = *bucket;
  while (l && l->address != address)
    l = l->next;
  if (!l) {
    l = take(sizeof *l);
    *l = (location){address, NULL, *bucket};
    *bucket = l;
  }
  return l;
}

void past_atomic(int thread, const void *address, bool orders) {
  location *l = find(address);
  thread_past *t = &own[thread];
  if (!orders) {
    t->seen = join(t->seen, l->released);
    l->released = join(l->released, t->fenced);
    return;
  }
  learn(thread, l->released);
  l->released = join(l->released, past_of(thread));
  clock_tick(thread);
}

void past_fence(int thread) {
  thread_past *t = &own[thread];
  learn(thread, t->seen);
  t->seen = NULL;
  t->fenced = past_of(thread);
  clock_tick(thread);
}
