/* emu_clock.c: who is ordered after whom. A row is a vector clock: for every agent the latest of its times that the
 * row's owner is ordered after. Rows belong to threads, to barriers (what those who came by bar_arrive released), to
 * mbarriers (released by arrivals; handed to waiters), to clusters and, derived, to warps. Agents are numbered within
 * their cluster: rows of one cluster say nothing of another.
 *
 * Every row has two flavours. The generic one orders plain accesses. The asynchronous one counts a thread's writes only
 * as far as the thread has fenced them (fence.proxy.async) before it released them; engines are counted in both. An
 * access through the asynchronous proxy must find the last write in its asynchronous row. A program that never fences
 * and has no engines has nothing in the asynchronous rows, which are then left alone. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "engine.h"

/* Behind the rows of all threads: those of the barriers of clusters and of blocks, of mbarriers, of warps. */
enum {
  CLUSTER_ROWS = 2 * EMU_BLOCKS,
  BARRIER_ROWS = EMU_BLOCKS * EMU_BARRIERS,
  MBARRIER_ROWS = EMU_BLOCKS * EMU_MBARRIERS * SIDES,
  ROWS_BEHIND_THREADS = CLUSTER_ROWS + BARRIER_ROWS + MBARRIER_ROWS + EMU_THREADS / EMU_WARP
};

typedef struct engine_name {
  emu_engine_kind kind;
  int number, rank; /* rank: of its block */
} engine_name;

static int threads, cluster_threads; /* of all clusters, of one */
static int engine_count[EMU_BLOCKS]; /* of each cluster */
static int agents;                   /* of the cluster that has most */
static int stride;
static bool has_async;   /* some asynchronous row is not empty */
static uint32_t *clocks; /* rows x 2 flavours x stride */
static size_t mapped;
static uint32_t changes[EMU_THREADS];               /* of a thread's row */
static uint64_t warp_stamp[EMU_THREADS / EMU_WARP]; /* sum of its lanes' changes when the warp's row was computed */
static engine_name engines[EMU_BLOCKS * EMU_ENGINES];

static uint32_t *row_of(int row, emu_proxy proxy) {
  return clocks + ((size_t)row * 2 + (size_t)proxy) * (size_t)stride;
}

bool clock_start_launch(void) {
  cluster_threads = machine.launch->cluster * machine.span;
  threads = machine.places * cluster_threads;
  agents = cluster_threads;
  stride = cluster_threads + machine.launch->cluster * EMU_ENGINES;
  has_async = false;
  size_t bytes = (size_t)(threads + ROWS_BEHIND_THREADS) * 2 * (size_t)stride * sizeof *clocks;
  if (bytes > mapped) {
    clock_free();
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
      return false;
    clocks = map;
    mapped = bytes;
  }
  return true;
}

static int warp_row(int warp) {
  return threads + CLUSTER_ROWS + BARRIER_ROWS + MBARRIER_ROWS + warp;
}

/* The rows of mbarriers are cleared by their init. */
void clock_start_cluster(int cluster) {
  int first = cluster * cluster_threads, size = machine.launch->cluster;
  size_t row = 2 * (size_t)stride * sizeof *clocks;
  memset(row_of(first, PROXY_GENERIC), 0, (size_t)cluster_threads * row);
  memset(row_of(clock_cluster_row(cluster, false), PROXY_GENERIC), 0, 2 * row);
  memset(row_of(clock_barrier_row(cluster * size, 0), PROXY_GENERIC), 0, (size_t)(size * EMU_BARRIERS) * row);
  memset(row_of(warp_row(first / EMU_WARP), PROXY_GENERIC), 0, (size_t)(cluster_threads / EMU_WARP) * row);
  memset(&changes[first], 0, (size_t)cluster_threads * sizeof *changes);
  memset(&warp_stamp[first / EMU_WARP], 0, (size_t)(cluster_threads / EMU_WARP) * sizeof *warp_stamp);
  engine_count[cluster] = 0;
  for (int t = 0; t < cluster_threads; t++)
    row_of(first + t, PROXY_GENERIC)[t] = 1;
}

void clock_free(void) {
  if (clocks)
    munmap(clocks, mapped);
  clocks = NULL;
  mapped = 0;
}

const uint32_t *clock_of(int row, emu_proxy proxy) {
  return row_of(row, proxy);
}

int clock_agents(void) {
  return agents;
}

int clock_stride(void) {
  return stride;
}

int clock_cluster_row(int cluster, bool released) {
  return threads + 2 * cluster + released;
}
int clock_barrier_row(int block, int barrier) {
  return threads + CLUSTER_ROWS + block * EMU_BARRIERS + barrier;
}
int clock_mbarrier_row(int mbarrier, emu_side side) {
  return threads + CLUSTER_ROWS + BARRIER_ROWS + mbarrier * SIDES + (int)side;
}

/* ---- Engines ---- */

static int running_cluster(void) {
  return machine_cluster(machine_place());
}

static engine_name *names_of(int cluster) {
  return &engines[cluster * machine.launch->cluster * EMU_ENGINES];
}

int clock_new_engine(emu_engine_kind kind, int number) {
  int cluster = running_cluster(), size = machine.launch->cluster;
  if (engine_count[cluster] == size * EMU_ENGINES)
    return -1;
  int agent = cluster_threads + engine_count[cluster];
  names_of(cluster)[engine_count[cluster]++] = (engine_name){kind, number, machine_place() % size};
  has_async = true;
  agents = agent >= agents ? agent + 1 : agents;
  return agent;
}

bool clock_is_thread(int agent) {
  return agent < cluster_threads;
}

void clock_describe(int agent, char *out, size_t size) {
  engine_name e = {0};
  if (agent >= cluster_threads)
    e = names_of(running_cluster())[agent - cluster_threads];
  int rank = agent < cluster_threads ? agent / machine.span : e.rank, used;
  if (agent < cluster_threads)
    used = snprintf(out, size, "thread %d", agent % machine.span);
  else if (e.kind == ENGINE_LOAD)
    used = snprintf(out, size, "the copy onto the mbarrier at offset %d", e.number);
  else if (e.kind != ENGINE_WGMMA)
    used = snprintf(out, size, "the bulk store of thread %d", e.number);
  else
    used = snprintf(out, size, "wgmma of warpgroup %d", e.number);
  if (rank != machine_place() % machine.launch->cluster)
    snprintf(out + used, size - (size_t)used, " of block %d of the cluster", rank);
}

/* ---- Order ---- */

static void raise_row(uint32_t *to, const uint32_t *from) {
  for (int a = 0; a < agents; a++)
    to[a] = from[a] > to[a] ? from[a] : to[a];
}

void clock_tick(int thread) {
  row_of(thread, PROXY_GENERIC)[machine_agent(thread)]++;
  changes[thread]++;
}

void clock_clear(int row) {
  memset(row_of(row, PROXY_GENERIC), 0, 2 * (size_t)stride * sizeof *clocks);
}

void clock_acquire(int row, int from) {
  raise_row(row_of(row, PROXY_GENERIC), row_of(from, PROXY_GENERIC));
  if (has_async)
    raise_row(row_of(row, PROXY_ASYNC), row_of(from, PROXY_ASYNC));
  if (row < threads)
    changes[row]++;
}

void clock_release(int thread, int row) {
  clock_acquire(row, thread);
  clock_tick(thread);
}

void clock_join(const int *members, int count, int row) {
  for (int proxy = PROXY_GENERIC; proxy <= (has_async ? PROXY_ASYNC : PROXY_GENERIC); proxy++) {
    static uint32_t latest[EMU_THREADS + EMU_BLOCKS * EMU_ENGINES];
    size_t bytes = (size_t)agents * sizeof *latest;
    memcpy(latest, row_of(row >= 0 ? row : members[0], (emu_proxy)proxy), bytes);
    for (int i = 0; i < count; i++)
      raise_row(latest, row_of(members[i], (emu_proxy)proxy));
    for (int i = 0; i < count; i++)
      memcpy(row_of(members[i], (emu_proxy)proxy), latest, bytes);
  }
  for (int i = 0; i < count; i++)
    clock_tick(members[i]);
}

void clock_learn(int row, int engine, uint32_t time) {
  for (int proxy = PROXY_GENERIC; proxy <= PROXY_ASYNC; proxy++) {
    uint32_t *known = &row_of(row, (emu_proxy)proxy)[engine];
    *known = time > *known ? time : *known;
  }
  if (row < threads)
    changes[row]++;
}

void clock_fence(int thread) {
  int agent = machine_agent(thread);
  row_of(thread, PROXY_ASYNC)[agent] = row_of(thread, PROXY_GENERIC)[agent];
  has_async = true;
  clock_tick(thread);
}

int clock_warp_row(int first) {
  int warp = first / EMU_WARP, row = warp_row(warp);
  uint64_t stamp = 1;
  for (int lane = 0; lane < EMU_WARP; lane++)
    stamp += changes[first + lane];
  if (stamp == warp_stamp[warp])
    return row;
  warp_stamp[warp] = stamp;
  for (int proxy = PROXY_GENERIC; proxy <= PROXY_ASYNC; proxy++) {
    uint32_t *least = row_of(row, (emu_proxy)proxy);
    memcpy(least, row_of(first, (emu_proxy)proxy), (size_t)agents * sizeof *least);
    for (int lane = 1; lane < EMU_WARP; lane++) {
      const uint32_t *other = row_of(first + lane, (emu_proxy)proxy);
      for (int a = 0; a < agents; a++)
        least[a] = other[a] < least[a] ? other[a] : least[a];
    }
  }
  return row;
}
