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

/* Checks an arrival of the running thread and counts it. True: it was the last one. */
static bool arrive(int id, int threads) {
  check_arguments(id, threads);
  emu_barrier *barrier = &machine.barriers[id];
  if (barrier->arrived && barrier->expected != threads)
    fault_raise(EMU_FAULT_BARRIER, "barrier %d for %d threads, but others came to it for %d", id, threads,
                barrier->expected);
  barrier->expected = threads;
  return ++barrier->arrived == threads;
}

/* Lets those who wait go on; `me` is one of them and runs, or -1. */
static void complete(int id, int me) {
  emu_barrier *barrier = &machine.barriers[id];
  int members[EMU_MAX_THREADS], count = 0;
  for (int t = 0; t < machine.launch->block; t++) {
    if (machine.threads[t].barrier != id)
      continue;
    members[count++] = t;
    machine.threads[t].barrier = -1;
    machine_warp(t)->barrier &= ~(1u << (t % EMU_WARP));
    if (t != me)
      machine_wake(t);
  }
  int row = clock_barrier_row(id);
  if (count)
    clock_join(members, count, barrier->announced ? row : -1);
  if (barrier->announced)
    clock_clear(row);
  *barrier = (emu_barrier){0};
}

void barrier_block(int id, int threads) {
  int me = machine.current;
  check_company(id);
  bool last = arrive(id, threads);
  machine.threads[me].barrier = id;
  machine_warp(me)->barrier |= 1u << (me % EMU_WARP);
  if (last)
    complete(id, me);
  else
    machine_wait();
}

void barrier_arrive(int id, int threads) {
  bool last = arrive(id, threads);
  machine.barriers[id].announced = true;
  clock_release(machine.current, clock_barrier_row(id));
  if (last)
    complete(id, -1);
}

/* ---- The cluster: this block alone ---- */

int barrier_cluster_rank(void) {
  return 0;
}

void barrier_cluster_arrive(void) {
  emu_thread *thread = &machine.threads[machine.current];
  if (thread->cluster > machine.cluster_phase)
    fault_raise(EMU_FAULT_BARRIER, "cluster_arrive for the second time without cluster_wait");
  thread->cluster++;
  clock_release(machine.current, clock_barrier_row(EMU_BARRIERS));
  if (++machine.cluster_arrived < machine.launch->block)
    return;
  machine.cluster_arrived = 0;
  machine.cluster_phase++;
  for (int t = 0; t < machine.launch->block; t++)
    if (machine.threads[t].at_cluster) {
      machine.threads[t].at_cluster = false;
      machine_wake(t);
    }
}

void barrier_cluster_wait(void) {
  emu_thread *thread = &machine.threads[machine.current];
  if (thread->cluster == 0)
    fault_raise(EMU_FAULT_BARRIER, "cluster_wait without cluster_arrive");
  if (machine.cluster_phase < thread->cluster) {
    thread->at_cluster = true;
    machine_wait();
  }
  clock_acquire(machine.current, clock_barrier_row(EMU_BARRIERS));
}

/* ---- Report ---- */

static void describe(int t, char *out, size_t size) {
  const emu_thread *thread = &machine.threads[t];
  if (thread->done)
    snprintf(out, size, "have ended");
  else if (thread->barrier >= 0)
    snprintf(out, size, "wait at barrier %d (%d of %d arrived)", thread->barrier,
             machine.barriers[thread->barrier].arrived, machine.barriers[thread->barrier].expected);
  else if (thread->mbarrier >= 0)
    mbarrier_describe(t, out, size);
  else if (thread->at_wgmma)
    snprintf(out, size, "wait for the other warps of warpgroup %d to issue wgmma", t / EMU_WARPGROUP);
  else if (thread->at_cluster)
    snprintf(out, size, "wait in cluster_wait (%d of %d arrived)", machine.cluster_arrived, machine.launch->block);
  else
    snprintf(out, size, "wait for the other lanes of warp %d", t / EMU_WARP);
}

void barrier_report(char *out, size_t size) {
  size_t used = 0;
  char state[2][160];
  out[0] = 0;
  for (int first = 0, next; first < machine.launch->block && used < size; first = next) {
    describe(first, state[0], sizeof state[0]);
    for (next = first + 1; next < machine.launch->block; next++) {
      describe(next, state[1], sizeof state[1]);
      if (strcmp(state[0], state[1]) != 0)
        break;
    }
    int n = next - first == 1 ? snprintf(out + used, size - used, "%sthread %d: %s", first ? "; " : "", first, state[0])
                              : snprintf(out + used, size - used, "%sthreads %d to %d %s", first ? "; " : "", first,
                                         next - 1, state[0]);
    used += n > 0 ? (size_t)n : 0;
  }
}
