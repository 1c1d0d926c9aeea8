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

void barrier_block(int id, int threads) {
  int me = machine.current;
  uint32_t lane = 1u << (me % EMU_WARP);
  emu_warp *warp = machine_warp(me);
  check_arguments(id, threads);
  if (warp->collective)
    fault_raise(
        EMU_FAULT_DIVERGENT, "this lane is at barrier %d while lanes 0x%08x of its warp wait in %s", id,
        (unsigned)warp->collective,
        collective_name(machine.threads[me / EMU_WARP * EMU_WARP + __builtin_ctz(warp->collective)].operands->kind));
  emu_barrier *barrier = &machine.barriers[id];
  if (barrier->arrived && barrier->expected != threads)
    fault_raise(EMU_FAULT_BARRIER, "barrier %d for %d threads, but others wait there for %d", id, threads,
                barrier->expected);
  barrier->expected = threads;
  machine.threads[me].barrier = id;
  warp->barrier |= lane;
  if (++barrier->arrived < threads) {
    machine_wait();
    return;
  }
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
  barrier->arrived = 0;
  clock_join(members, count);
}

/* What a thread does, as a number that is equal for threads of one group. */
static int group_of(int thread) {
  const emu_thread *t = &machine.threads[thread];
  return t->done ? -1 : t->barrier >= 0 ? t->barrier : EMU_BARRIERS + thread / EMU_WARP;
}

void barrier_report(char *out, size_t size) {
  size_t used = 0;
  out[0] = 0;
  for (int first = 0, next; first < machine.launch->block && used < size; first = next) {
    int group = group_of(first);
    for (next = first + 1; next < machine.launch->block && group_of(next) == group;)
      next++;
    int n = snprintf(out + used, size - used, "%sthreads %d to %d ", first ? "; " : "", first, next - 1);
    used += n > 0 ? (size_t)n : 0;
    if (used >= size)
      break;
    if (group < 0)
      n = snprintf(out + used, size - used, "have ended");
    else if (group < EMU_BARRIERS)
      n = snprintf(out + used, size - used, "wait at barrier %d (%d of %d arrived)", group,
                   machine.barriers[group].arrived, machine.barriers[group].expected);
    else
      n = snprintf(out + used, size - used, "wait for the other lanes of their warp");
    used += n > 0 ? (size_t)n : 0;
  }
}
