/* emu_barrier.c: the sixteen named barriers of a block, and the report when nobody can go on. */
#include <stdio.h>
#include <string.h>

#include "engine.h"

static void check_arguments(int id, int threads) {
  if (id < 0 || id >= EMU_BARRIERS)
    fault_raise(EMU_FAULT_BARRIER, "barrier %d does not exist: there are %d", id, (int)EMU_BARRIERS);
  if (threads < 1 || threads > machine.launch->block || (threads % EMU_WARP && threads != machine.launch->block))
    fault_raise(EMU_FAULT_BARRIER, "barrier %d for %d threads: must be whole warps of the block's %d threads", id,
                threads, machine.launch->block);
}

/* A lane that waits at a barrier while another waits for it elsewhere. (Those that only arrive go on by themselves.) */
static void check_company(int id) {
  int me = machine.current;
  const emu_warp *warp = machine_warp(me);
  if (warp->collective)
    fault_raise(
        EMU_FAULT_DIVERGENT, "this lane is at barrier %d while lanes 0x%08x of its warp wait in %s", id,
        (unsigned)warp->collective,
        collective_name(machine.threads[me / EMU_WARP * EMU_WARP + __builtin_ctz(warp->collective)].operands->kind));
}

/* Checks an arrival of the running thread and counts it. reduces: by bar_or. True: it was the last one. */
static bool arrive(int id, int threads, bool reduces) {
  check_arguments(id, threads);
  emu_barrier *barrier = &machine_block()->barriers[id];
  if (barrier->arrived && barrier->expected != threads)
    fault_raise(EMU_FAULT_BARRIER, "barrier %d for %d threads, but others came to it for %d", id, threads,
                barrier->expected);
  if (barrier->arrived && barrier->reduces != reduces)
    fault_raise(EMU_FAULT_BARRIER, "barrier %d: some come to it by bar_or, others do not", id);
  barrier->expected = threads;
  barrier->reduces = reduces;
  return ++barrier->arrived == threads;
}

/* Lets those who wait go on; `me` is one of them and runs, or -1. */
static void complete(int id, int me) {
  emu_barrier *barrier = &machine_block()->barriers[id];
  int members[EMU_MAX_THREADS], count = 0, first = machine_first(machine_place());
  for (int t = first; t < first + machine.launch->block; t++) {
    if (machine.threads[t].barrier != id)
      continue;
    members[count++] = t;
    machine.threads[t].barrier = -1;
    machine.threads[t].barrier_any = barrier->any;
    machine_warp(t)->barrier &= ~(1u << (t % EMU_WARP));
    if (t != me)
      machine_wake(t);
  }
  int row = clock_barrier_row(machine_place(), id);
  if (count)
    clock_join(members, count, barrier->announced ? row : -1);
  if (barrier->announced)
    clock_clear(row);
  *barrier = (emu_barrier){0};
}

static void meet(int id, int threads, bool reduces) {
  int me = machine.current;
  check_company(id);
  bool last = arrive(id, threads, reduces);
  machine.threads[me].barrier = id;
  machine_warp(me)->barrier |= 1u << (me % EMU_WARP);
  if (last)
    complete(id, me);
  else
    machine_wait();
}

void barrier_block(int id, int threads) {
  meet(id, threads, false);
}

int barrier_or(int id, int threads, int predicate) {
  if (predicate && id >= 0 && id < EMU_BARRIERS)
    machine_block()->barriers[id].any = true;
  meet(id, threads, true);
  return machine.threads[machine.current].barrier_any;
}

void barrier_arrive(int id, int threads) {
  bool last = arrive(id, threads, false);
  machine_block()->barriers[id].announced = true;
  clock_release(machine.current, clock_barrier_row(machine_place(), id));
  if (last)
    complete(id, -1);
}

/* ---- Report ---- */

static void describe(int t, char *out, size_t size) {
  const emu_thread *thread = &machine.threads[t];
  const emu_barrier *barrier = thread->barrier >= 0 ? &machine.blocks[thread->block].barriers[thread->barrier] : NULL;
  if (thread->done)
    snprintf(out, size, "have ended");
  else if (barrier)
    snprintf(out, size, "wait at barrier %d (%d of %d arrived)", thread->barrier, barrier->arrived, barrier->expected);
  else if (thread->mbarrier >= 0)
    mbarrier_describe(t, out, size);
  else if (thread->at_wgmma)
    snprintf(out, size, "wait for the other warps of warpgroup %d to issue wgmma", machine_index(t) / EMU_WARPGROUP);
  else if (thread->at_cluster)
    snprintf(out, size, "wait in cluster_wait (%d of %d arrived)",
             machine.clusters[machine_cluster(thread->block)].arrived, machine.launch->cluster * machine.launch->block);
  else
    snprintf(out, size, "wait for the other lanes of warp %d", machine_index(t) / EMU_WARP);
}

/* Threads that follow each other and wait alike are one entry. Returns the length of what it would print. */
static size_t report_block(int block, char *out, size_t size) {
  size_t used = 0;
  char state[2][160];
  int first = machine_first(block);
  for (int from = 0, next; from < machine.launch->block && used < size; from = next) {
    describe(first + from, state[0], sizeof state[0]);
    for (next = from + 1; next < machine.launch->block; next++) {
      describe(first + next, state[1], sizeof state[1]);
      if (strcmp(state[0], state[1]) != 0)
        break;
    }
    int n = next - from == 1 ? snprintf(out + used, size - used, "%sthread %d: %s", from ? "; " : "", from, state[0])
                             : snprintf(out + used, size - used, "%sthreads %d to %d %s", from ? "; " : "", from,
                                        next - 1, state[0]);
    used += n > 0 ? (size_t)n : 0;
  }
  return used;
}

/* The first cluster that hangs; its blocks by name when there are several. */
int barrier_report(char *out, size_t size) {
  int place = 0, blocks = machine.launch->cluster;
  while (place < machine.places - 1 && !machine.clusters[place].live)
    place++;
  size_t used = 0;
  out[0] = 0;
  for (int block = place * blocks; block < (place + 1) * blocks && used < size; block++) {
    if (blocks > 1)
      used += (size_t)snprintf(out + used, size - used, "%sblock %lld: ", used ? "; " : "",
                               (long long)machine.blocks[block].index);
    if (used < size)
      used += report_block(block, out + used, size - used);
  }
  return place * blocks;
}
