/* emu_engine.c: runs the clusters of a launch, as many at once as an emulated GPU would, their threads as fibers that
 * go on until they must wait. The policy picks who is next; a seed and a policy give the same run every time. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine.h"

emu_machine machine; /* large and zero, so that no binary carries it; `current` is set when it opens */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int users;
static unsigned char *arena_map;

enum { ARENA_ALIGNMENT = 1024, ARENA_BYTES = EMU_BLOCKS * EMU_SHARED_MAX + ARENA_ALIGNMENT };

void emu_lock(void) {
  pthread_mutex_lock(&mutex);
}
void emu_unlock(void) {
  pthread_mutex_unlock(&mutex);
}

bool machine_open(void) {
  if (!arena_map) {
    void *map = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
      return false;
    arena_map = map;
    unsigned char *first = arena_map + (ARENA_ALIGNMENT - (uintptr_t)map % ARENA_ALIGNMENT) % ARENA_ALIGNMENT;
    for (int b = 0; b < EMU_BLOCKS; b++)
      machine.blocks[b].arena = first + (size_t)b * EMU_SHARED_MAX;
  }
  if (users++ == 0)
    machine.current = -1;
  return true;
}

void machine_close(void) {
  if (--users > 0)
    return;
  wgmma_free();
  for (int t = 0; t < machine.stacks.count; t++) {
    free(machine.threads[t].copies);
    fiber_free(&machine.threads[t].fiber);
  }
  memset(machine.threads, 0, (size_t)machine.stacks.count * sizeof *machine.threads);
  fiber_free(&machine.host);
  fiber_stacks_unmap(&machine.stacks);
  munmap(arena_map, ARENA_BYTES);
  arena_map = NULL;
  clock_free();
  shadow_free();
  tma_free();
  global_free();
  memory_forget_freed();
  machine.host = (fiber){0};
  machine.fault.set = false;
  machine.current = -1;
}

/* ---- Order ---- */

uint32_t machine_random(uint32_t below) { /* splitmix64 */
  uint64_t z = machine.random += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (uint32_t)(((z ^ (z >> 31)) >> 32) * below >> 32);
}

void machine_wake(int thread) {
  machine.ready[(machine.ready_head + machine.ready_count++) % EMU_THREADS] = thread;
}

/* Takes the next thread to run; at least one is ready. In order: first come, first served; in reverse: the last. */
static int next_thread(void) {
  int *first = &machine.ready[machine.ready_head];
  int *last = &machine.ready[(machine.ready_head + machine.ready_count - 1) % EMU_THREADS];
  machine.ready_count--;
  if (machine.launch->policy == EMU_REVERSE)
    return *last;
  if (machine.launch->policy == EMU_RANDOM) {
    uint32_t i = machine_random((uint32_t)machine.ready_count + 1);
    int *pick = &machine.ready[(machine.ready_head + (int)i) % EMU_THREADS], swapped = *pick;
    *pick = *first;
    *first = swapped;
  }
  machine.ready_head = (machine.ready_head + 1) % EMU_THREADS;
  return *first;
}

static void deadlock(void) {
  char who[EMU_MESSAGE - 256];
  int block = barrier_report(who, sizeof who);
  fault_block(block, EMU_FAULT_DEADLOCK, "%s", who);
}

/* Lets copies land: with the random policy now and then, else when nobody can go on without them. */
static void land_copies(void) {
  if (machine.launch->policy == EMU_RANDOM && !machine_random(16))
    tma_land_one();
  while (!machine.fault.set && !machine.ready_count && machine.live && tma_land_one()) {
  }
}

/* Where control goes when the running thread cannot go on. */
static fiber *successor(void) {
  if (machine.ended < 0)
    land_copies();
  if (machine.fault.set || machine.ended >= 0) {
    machine.current = -1;
    return &machine.host;
  }
  if (machine.ready_count) {
    machine.current = next_thread();
    machine.arena = machine_block()->arena;
    return &machine.threads[machine.current].fiber;
  }
  if (machine.live)
    deadlock();
  machine.current = -1;
  return &machine.host;
}

void machine_wait(void) {
  fiber *self = &machine.threads[machine.current].fiber;
  fiber *next = successor();
  if (next != self) /* a copy that landed may have woken it again */
    fiber_switch(self, next);
}

/* Lets all others that are runnable go first. */
static void yield(void) {
  if (machine.launch->policy == EMU_REVERSE) {
    machine.ready_head = (machine.ready_head + EMU_THREADS - 1) % EMU_THREADS;
    machine.ready[machine.ready_head] = machine.current;
    machine.ready_count++;
  } else {
    machine_wake(machine.current);
  }
  machine_wait();
}

/* ---- Threads, blocks, clusters ---- */

static void thread_body(void) {
  machine.launch->entry(machine.launch->params);
  int me = machine.current;
  emu_warp *warp = machine_warp(me);
  machine.pc = NULL;
  if (warp->collective)
    fault_raise(
        EMU_FAULT_DIVERGENT, "this lane has ended while lanes 0x%08x of its warp wait in %s",
        (unsigned)warp->collective,
        collective_name(machine.threads[me / EMU_WARP * EMU_WARP + __builtin_ctz(warp->collective)].operands->kind));
  async_thread_done(me);
  tma_thread_done(me);
  wgmma_thread_done(me);
  warp->done |= 1u << (me % EMU_WARP);
  machine.threads[me].done = true;
  machine.live--;
  cluster_thread_done(me);
  fiber *next = successor();
  fiber_leave(&machine.threads[me].fiber, next);
}

static void start_thread(int t, int block) {
  emu_thread *thread = &machine.threads[t];
  thread->block = block;
  thread->operands = NULL;
  thread->copy_count = 0;
  thread->group = 0;
  thread->barrier = thread->mbarrier = thread->storer = -1;
  thread->at_wgmma = thread->at_cluster = thread->fenced = false;
  thread->early = machine.launch->early;
  thread->cluster = thread->cluster_waits = thread->bulk_group = thread->bulk_read = 0;
  thread->lock_count = 0;
  thread->done = false;
  machine_warp(t)->lanes |= 1u << (t % EMU_WARP);
  fiber_start(&thread->fiber, &machine.stacks, t, thread_body);
  machine_wake(t);
}

static bool start_block(int place, int64_t index) {
  const emu_launch *launch = machine.launch;
  emu_block *block = &machine.blocks[place];
  int first = machine_first(place);
  if (!shadow_start_block(place, launch->shared_bytes)) {
    fault_block(place, EMU_FAULT_MEMORY, "no memory for the shadow of %d bytes of shared memory", launch->shared_bytes);
    return false;
  }
  block->index = index;
  block->live = launch->block;
  memset(block->arena, EMU_POISON, (size_t)launch->shared_bytes);
  memset(block->barriers, 0, sizeof block->barriers);
  memset(&machine.warps[first / EMU_WARP], 0, (size_t)(machine.span / EMU_WARP) * sizeof *machine.warps);
  mbarrier_start_block(place);
  wgmma_start_block(place);
  for (int t = first; t < first + launch->block; t++)
    start_thread(t, place);
  machine.live += launch->block;
  return true;
}

static bool start_cluster(int place, int64_t index) {
  int size = machine.launch->cluster;
  machine.clusters[place] = (emu_cluster){.index = index, .live = size * machine.launch->block};
  clock_start_cluster(place);
  past_start_cluster(place);
  cluster_start(place);
  for (int rank = 0; rank < size; rank++)
    if (!start_block(place * size + rank, index * size + rank))
      return false;
  return true;
}

static bool end_cluster(int place) {
  int size = machine.launch->cluster;
  for (int block = place * size; block < (place + 1) * size; block++) {
    mbarrier_end_block(block);
    collective_check_registers(block);
  }
  tma_end_cluster(place);
  return !machine.fault.set;
}

static bool ensure_stacks(int count) {
  if (machine.stacks.count >= count)
    return true;
  fiber_stacks_unmap(&machine.stacks);
  return fiber_stacks_map(&machine.stacks, count);
}

/* The i-th cluster to run is first + i step, modulo their number: each once, since step has no factor in common with
 * it. */
static struct { int64_t first, step, count, next; /* next: how many have started */ } order;

static void order_clusters(void) {
  int64_t count = machine.launch->grid / machine.launch->cluster;
  order.count = count;
  order.next = 0;
  order.first = machine.launch->policy == EMU_REVERSE ? count - 1 : 0;
  order.step = machine.launch->policy == EMU_REVERSE ? count - 1 : 1;
  if (machine.launch->policy != EMU_RANDOM)
    return;
  int64_t step = 1 + machine_random((uint32_t)count), a = step, b = count;
  while (a) {
    int64_t rest = b % a;
    b = a;
    a = rest;
  }
  order.step = b == 1 ? step : 1;
  order.first = machine_random((uint32_t)count);
}

static bool start_next(int place) {
  int64_t i = order.next++;
  return start_cluster(place, (order.first + i * order.step) % order.count);
}

/* Clusters that never meet at an atomic run one after another, which is faster: to memory accesses it makes no
 * difference, those are ordered by clocks alone. The first atomic of a launch brings the others. */
static void fill_places(void) {
  machine.meeting = true;
  bool ok = true;
  for (int place = 0; ok && place < machine.places && order.next < order.count; place++)
    if (!machine.clusters[place].live)
      ok = start_next(place);
}

static bool run_clusters(void) {
  order_clusters();
  bool ok = start_next(0);
  while (ok && machine.live) {
    machine.ended = -1;
    fiber *thread = successor();
    if (thread != &machine.host)
      fiber_switch(&machine.host, thread);
    machine.current = -1;
    ok = !machine.fault.set && end_cluster(machine.ended);
    if (ok && order.next < order.count)
      ok = start_next(machine.ended);
  }
  return ok;
}

/* Places, threads and tables for the launch. */
static bool start_launch(const emu_launch *launch) {
  int unit = launch->block < EMU_WARPGROUP ? EMU_WARP : EMU_WARPGROUP;
  int64_t clusters = launch->grid / launch->cluster, most = EMU_SM_COUNT / launch->cluster;
  most = most > 1 ? most : 1;
  machine.launch = launch;
  machine.span = (launch->block + unit - 1) / unit * unit;
  machine.places = (int)(clusters < most ? clusters : most);
  machine.live = machine.ready_head = machine.ready_count = 0;
  machine.meeting = false;
  memset(machine.clusters, 0, sizeof machine.clusters);
  machine.fault.set = false;
  machine.fault.other_pc = NULL;
  machine.random = launch->seed;
  /* The host's bounds are learnt anew: each launch may come from another OS thread. */
  machine.host.stack_low = NULL;
  machine.host.stack_size = 0;
  int threads = machine.places * launch->cluster * machine.span;
  bool ok = ensure_stacks(threads) && clock_start_launch();
  if (!ok)
    fault_block(0, EMU_FAULT_MEMORY, "no address space for the stacks and clocks of %d threads", threads);
  global_start_launch();
  tma_start_launch();
  return ok;
}

bool machine_run(const emu_launch *launch) {
  bool ok = start_launch(launch) && run_clusters();
  past_end_launch();
  machine.launch = NULL;
  return ok;
}

/* ---- The table kernels are bound to ---- */

static int thread_index(void) {
  return machine_index(machine.current);
}
static int64_t block_index(void) {
  return machine_block()->index;
}
static int block_size(void) {
  return machine.launch->block;
}
static int64_t grid_size(void) {
  return machine.launch->grid;
}
static unsigned char *shared(void) {
  return machine.arena;
}

static void access(const void *address, int bytes, int write) {
  effect_access(address, bytes, write ? EFFECT_WRITE : EFFECT_READ);
}

static void fence_proxy_async(void) {
  clock_fence(machine.current);
  mbarrier_fence(machine.current);
}

/* Blocks meet at atomics: others may come first, and who waits for them in a loop lets them. */
static void meet_at(int32_t *p, const char *name, int orders) {
  const void *pc = machine.pc;
  if (!machine.meeting)
    fill_places();
  yield();
  machine.pc = pc;
  effect_atomic(p, name);
  past_atomic(machine.current, p, orders);
}

static int32_t atomic_add(int32_t *p, int32_t v, int orders) {
  meet_at(p, orders ? "atomic_add_i32_acq_rel" : "atomic_add_i32", orders);
  int32_t old = *p;
  *p = (int32_t)((uint32_t)old + (uint32_t)v);
  return old;
}

static uint32_t atomic_wrap(uint32_t *p, uint32_t last) {
  meet_at((int32_t *)p, "atomic_wrap_u32", 0);
  uint32_t old = *p;
  *p = old >= last ? 0 : old + 1;
  return old;
}

static void fence_gpu(void) {
  past_fence(machine.current);
}

static void dependency_wait(void) {
  machine.threads[machine.current].early = false;
}

const emu_api emu_table = {
    .abi = EMU_ABI,
    .thread_index = thread_index,
    .block_index = block_index,
    .block_size = block_size,
    .grid_size = grid_size,
    .shared = shared,
    .pc = &machine.pc,
    .access = access,
    .block_barrier = barrier_block,
    .warp_barrier = collective_sync,
    .shuffle_xor = collective_shuffle_xor,
    .shuffle_index = collective_shuffle_index,
    .vote_any = collective_vote_any,
    .ldmatrix = collective_ldmatrix,
    .mma_m16n8k16 = collective_mma,
    .cp_async = async_copy,
    .cp_async_commit = async_commit,
    .cp_async_wait = async_wait,
    .bar_or = barrier_or,
    .bar_arrive = barrier_arrive,
    .cluster_rank = cluster_rank,
    .cluster_arrive = cluster_arrive,
    .cluster_wait = cluster_wait,
    .load_remote = cluster_load,
    .store_remote = cluster_store,
    .stmatrix = collective_stmatrix,
    .registers = collective_registers,
    .atomic_add = atomic_add,
    .atomic_wrap = atomic_wrap,
    .fence_gpu = fence_gpu,
    .dependency_wait = dependency_wait,
    .fence_proxy_async = fence_proxy_async,
    .mbar_init = mbarrier_init,
    .mbar_fence = mbarrier_fence_init,
    .mbar_arrive = mbarrier_arrive,
    .mbar_arrive_remote = mbarrier_arrive_remote,
    .mbar_wait = mbarrier_wait,
    .tma_prefetch = tma_prefetch,
    .tma_load = tma_load,
    .tma_store = tma_store,
    .bulk_load = tma_bulk_load,
    .bulk_commit = tma_bulk_commit,
    .bulk_wait = tma_bulk_wait,
    .wgmma = collective_wgmma,
    .wgmma_fence = collective_wgmma_fence,
    .wgmma_commit = collective_wgmma_commit,
    .wgmma_wait = collective_wgmma_wait,
};
