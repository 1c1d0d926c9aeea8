/* emu_engine.c: runs the blocks of a launch one after another, the threads of a block as fibers that go on until they
 * must wait. The policy picks who is next; a seed and a policy give the same run every time. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine.h"

emu_machine machine = {.current = -1};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int users;
static unsigned char *arena_map;

enum { ARENA_ALIGNMENT = 1024 };

void emu_lock(void) {
  pthread_mutex_lock(&mutex);
}
void emu_unlock(void) {
  pthread_mutex_unlock(&mutex);
}

bool machine_open(void) {
  if (!arena_map) {
    void *map =
        mmap(NULL, EMU_SHARED_MAX + ARENA_ALIGNMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
      return false;
    arena_map = map;
    machine.arena = arena_map + (ARENA_ALIGNMENT - (uintptr_t)map % ARENA_ALIGNMENT) % ARENA_ALIGNMENT;
  }
  users++;
  return true;
}

void machine_close(void) {
  if (--users > 0)
    return;
  for (int t = 0; t < EMU_MAX_THREADS; t++) {
    free(machine.threads[t].copies);
    fiber_free(&machine.threads[t].fiber);
  }
  fiber_free(&machine.host);
  fiber_stacks_unmap(&machine.stacks);
  munmap(arena_map, EMU_SHARED_MAX + ARENA_ALIGNMENT);
  arena_map = NULL;
  clock_free();
  shadow_free();
  tma_free();
  wgmma_free();
  global_free();
  memory_forget_freed();
  machine = (emu_machine){.current = -1};
}

/* ---- Order ---- */

uint32_t machine_random(uint32_t below) { /* splitmix64 */
  uint64_t z = machine.random += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (uint32_t)(((z ^ (z >> 31)) >> 32) * below >> 32);
}

void machine_wake(int thread) {
  machine.ready[(machine.ready_head + machine.ready_count++) % EMU_MAX_THREADS] = thread;
}

/* Takes the next thread to run; at least one is ready. In order: first come, first served; in reverse: the last. */
static int next_thread(void) {
  int *first = &machine.ready[machine.ready_head];
  int *last = &machine.ready[(machine.ready_head + machine.ready_count - 1) % EMU_MAX_THREADS];
  machine.ready_count--;
  if (machine.launch->policy == EMU_REVERSE)
    return *last;
  if (machine.launch->policy == EMU_RANDOM) {
    uint32_t i = machine_random((uint32_t)machine.ready_count + 1);
    int *pick = &machine.ready[(machine.ready_head + (int)i) % EMU_MAX_THREADS], swapped = *pick;
    *pick = *first;
    *first = swapped;
  }
  machine.ready_head = (machine.ready_head + 1) % EMU_MAX_THREADS;
  return *first;
}

static void deadlock(void) {
  char who[EMU_MESSAGE - 256];
  barrier_report(who, sizeof who);
  fault_block(EMU_FAULT_DEADLOCK, "%s", who);
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
  land_copies();
  if (machine.fault.set) {
    machine.current = -1;
    return &machine.host;
  }
  if (machine.ready_count) {
    machine.current = next_thread();
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

/* ---- Threads and blocks ---- */

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
  fiber *next = successor();
  fiber_leave(&machine.threads[me].fiber, next);
}

static void start_thread(int t) {
  emu_thread *thread = &machine.threads[t];
  thread->operands = NULL;
  thread->copy_count = 0;
  thread->group = 0;
  thread->barrier = thread->mbarrier = thread->storer = -1;
  thread->at_wgmma = thread->at_cluster = thread->fenced = false;
  thread->cluster = thread->bulk_group = thread->bulk_read = 0;
  thread->lock_count = 0;
  thread->done = false;
  machine_warp(t)->lanes |= 1u << (t % EMU_WARP);
  fiber_start(&thread->fiber, &machine.stacks, t, thread_body);
  machine_wake(t);
}

static bool run_block(int64_t block) {
  const emu_launch *launch = machine.launch;
  machine.block = block;
  if (!clock_start_block(launch->block) || !shadow_start_block(launch->shared_bytes)) {
    fault_block(EMU_FAULT_MEMORY, "no memory for the shadow of %d bytes of shared memory", launch->shared_bytes);
    return false;
  }
  memset(machine.arena, EMU_POISON, EMU_SHARED_MAX);
  memset(machine.warps, 0, sizeof machine.warps);
  memset(machine.barriers, 0, sizeof machine.barriers);
  machine.cluster_arrived = 0;
  machine.cluster_phase = 0;
  global_start_block();
  past_start_block();
  mbarrier_start_block();
  tma_start_block();
  wgmma_start_block();
  machine.ready_head = machine.ready_count = 0;
  machine.live = launch->block;
  for (int t = 0; t < launch->block; t++)
    start_thread(t);
  fiber *first = successor();
  fiber_switch(&machine.host, first);
  machine.current = -1;
  if (!machine.fault.set) {
    mbarrier_end_block();
    collective_check_registers();
    tma_end_block();
  }
  return !machine.fault.set;
}

static bool ensure_stacks(int count) {
  if (machine.stacks.count >= count)
    return true;
  fiber_stacks_unmap(&machine.stacks);
  return fiber_stacks_map(&machine.stacks, count);
}

/* The i-th block to run is first + i step, modulo the grid: each once, since step has no factor in common with it. */
typedef struct block_order {
  int64_t first, step;
} block_order;

static block_order order_blocks(void) {
  int64_t grid = machine.launch->grid;
  if (machine.launch->policy == EMU_IN_ORDER)
    return (block_order){0, 1};
  if (machine.launch->policy == EMU_REVERSE)
    return (block_order){grid - 1, grid - 1};
  int64_t step = 1 + machine_random((uint32_t)grid), a = step, b = grid;
  while (a) {
    int64_t rest = b % a;
    b = a;
    a = rest;
  }
  return (block_order){machine_random((uint32_t)grid), b == 1 ? step : 1};
}

bool machine_run(const emu_launch *launch) {
  machine.launch = launch;
  machine.fault.set = false;
  machine.fault.other_pc = NULL;
  machine.random = launch->seed;
  bool ok = ensure_stacks(launch->block);
  if (!ok)
    fault_block(EMU_FAULT_MEMORY, "no address space for the stacks of %d threads", launch->block);
  /* The host's bounds are learnt anew: each launch may come from another OS thread. */
  machine.host.stack_low = NULL;
  machine.host.stack_size = 0;
  global_start_launch();
  block_order order = order_blocks();
  for (int64_t i = 0; ok && i < launch->grid; i++)
    ok = run_block((order.first + i % launch->grid * order.step) % launch->grid);
  past_end_launch();
  machine.launch = NULL;
  return ok;
}

/* ---- The table kernels are bound to ---- */

static int thread_index(void) {
  return machine.current;
}
static int64_t block_index(void) {
  return machine.block;
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

static int32_t atomic_add(int32_t *p, int32_t v, int orders) {
  effect_atomic(p, orders ? "atomic_add_i32_acq_rel" : "atomic_add_i32");
  past_atomic(machine.current, p, orders);
  int32_t old = *p;
  *p = (int32_t)((uint32_t)old + (uint32_t)v);
  return old;
}

static void fence_gpu(void) {
  past_fence(machine.current);
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
    .bar_arrive = barrier_arrive,
    .cluster_rank = barrier_cluster_rank,
    .cluster_arrive = barrier_cluster_arrive,
    .cluster_wait = barrier_cluster_wait,
    .stmatrix = collective_stmatrix,
    .registers = collective_registers,
    .atomic_add = atomic_add,
    .fence_gpu = fence_gpu,
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
