/* emu_clock.c: who is ordered after whom. A row is a vector clock: for every agent the latest of its times that the
 * row's owner is ordered after. Rows belong to threads, to barriers (what those who came by bar_arrive released), to
 * mbarriers (released by arrivals; handed to waiters) and, derived, to warps.
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

enum { ROWS_BEHIND_THREADS = EMU_BARRIERS + 1 + 2 * EMU_MBARRIERS + EMU_MAX_WARPS };

typedef struct engine_name {
  emu_engine_kind kind;
  int number;
} engine_name;

static int threads, agents, stride;
static bool has_async;   /* some asynchronous row is not empty */
static uint32_t *clocks; /* rows x 2 flavours x stride */
static size_t mapped;
static uint32_t changes[EMU_MAX_THREADS];  /* of a thread's row */
static uint64_t warp_stamp[EMU_MAX_WARPS]; /* sum of its lanes' changes when the warp's row was computed */
static engine_name engines[EMU_ENGINES];

bool clock_start_block(int count) {
  stride = count + EMU_ENGINES;
  size_t bytes = (size_t)(count + ROWS_BEHIND_THREADS) * 2 * (size_t)stride * sizeof *clocks;
  if (bytes > mapped) {
    clock_free();
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
      return false;
    clocks = map;
    mapped = bytes;
  }
  threads = agents = count;
  /* The rows of warps need no clearing, and those of mbarriers are cleared by their init. */
  memset(clocks, 0, (size_t)(count + EMU_BARRIERS + 1) * 2 * (size_t)stride * sizeof *clocks);
  memset(changes, 0, sizeof changes);
  memset(warp_stamp, 0, sizeof warp_stamp);
  has_async = false;
  for (int t = 0; t < count; t++)
    clocks[(size_t)t * 2 * (size_t)stride + (size_t)t] = 1;
  return true;
}

void clock_free(void) {
  if (clocks)
    munmap(clocks, mapped);
  clocks = NULL;
  mapped = 0;
}

static uint32_t *row_of(int row, emu_proxy proxy) {
  return clocks + ((size_t)row * 2 + (size_t)proxy) * (size_t)stride;
}

const uint32_t *clock_of(int row, emu_proxy proxy) {
  return row_of(row, proxy);
}

int clock_agents(void) {
  return agents;
}

int clock_barrier_row(int barrier) {
  return threads + barrier;
}
int clock_arrived_row(int mbarrier) {
  return threads + EMU_BARRIERS + 1 + 2 * mbarrier;
}
int clock_released_row(int mbarrier) {
  return clock_arrived_row(mbarrier) + 1;
}

/* ---- Engines ---- */

int clock_new_engine(emu_engine_kind kind, int number) {
  if (agents - threads == EMU_ENGINES)
    return -1;
  engines[agents - threads] = (engine_name){kind, number};
  has_async = true;
  return agents++;
}

bool clock_is_thread(int agent) {
  return agent < threads;
}

void clock_describe(int agent, char *out, size_t size) {
  if (agent < threads) {
    snprintf(out, size, "thread %d", agent);
    return;
  }
  engine_name e = engines[agent - threads];
  if (e.kind == ENGINE_LOAD)
    snprintf(out, size, "the copy onto the mbarrier at offset %d", e.number);
  else if (e.kind != ENGINE_WGMMA)
    snprintf(out, size, "the bulk store of thread %d", e.number);
  else
    snprintf(out, size, "wgmma of warpgroup %d", e.number);
}

/* ---- Order ---- */

static void raise_row(uint32_t *to, const uint32_t *from) {
  for (int a = 0; a < agents; a++)
    to[a] = from[a] > to[a] ? from[a] : to[a];
}

void clock_tick(int thread) {
  row_of(thread, PROXY_GENERIC)[thread]++;
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
    static uint32_t latest[EMU_MAX_THREADS + EMU_ENGINES];
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
  row_of(thread, PROXY_ASYNC)[thread] = row_of(thread, PROXY_GENERIC)[thread];
  has_async = true;
  clock_tick(thread);
}

int clock_warp_row(int first) {
  int warp = first / EMU_WARP, row = threads + EMU_BARRIERS + 1 + 2 * EMU_MBARRIERS + warp;
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
