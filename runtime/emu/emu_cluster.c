/* emu_cluster.c: what the blocks of a cluster do together: the barrier of all their threads, and shared memory of each
 * other.
 *
 * A peer's shared memory is there from the peer's start to its end, so an access must be ordered between the two. It is
 * after the start when its thread is ordered after anything that the peer did: only a barrier of the cluster, or an
 * arrival by the peer, brings that about. It is before the end when some thread of the peer is ordered after it. */
#include <string.h>

#include "engine.h"

/* The latest accesses of a block's shared memory by threads of its peers: by agent, times of their clocks. */
static uint32_t reached[EMU_BLOCKS][EMU_THREADS];

void cluster_start(int cluster) {
  int size = machine.launch->cluster;
  for (int block = cluster * size; size > 1 && block < (cluster + 1) * size; block++)
    memset(reached[block], 0, (size_t)(size * machine.span) * sizeof **reached);
}

int cluster_rank(void) {
  return machine_place() % machine.launch->cluster;
}

/* ---- The barrier ---- */

static emu_cluster *running_cluster(void) {
  return &machine.clusters[machine_cluster(machine_place())];
}

/* Completes the phase when all threads that have not ended have arrived. */
static void advance(emu_cluster *c) {
  if (c->arrived < c->live || !c->arrived)
    return;
  int place = (int)(c - machine.clusters), size = machine.launch->cluster;
  clock_acquire(clock_cluster_row(place, true), clock_cluster_row(place, false));
  c->arrived = 0;
  c->phase++;
  for (int t = machine_first(place * size); t < machine_first((place + 1) * size); t++)
    if (machine.threads[t].at_cluster) {
      machine.threads[t].at_cluster = false;
      machine_wake(t);
    }
}

void cluster_arrive(void) {
  emu_thread *thread = &machine.threads[machine.current];
  emu_cluster *c = running_cluster();
  if (thread->cluster > thread->cluster_waits)
    fault_raise(EMU_FAULT_BARRIER, "cluster_arrive for the second time without cluster_wait");
  thread->cluster++;
  clock_release(machine.current, clock_cluster_row((int)(c - machine.clusters), false));
  c->arrived++;
  advance(c);
}

void cluster_wait(void) {
  emu_thread *thread = &machine.threads[machine.current];
  emu_cluster *c = running_cluster();
  if (thread->cluster == thread->cluster_waits)
    fault_raise(EMU_FAULT_BARRIER, "cluster_wait without cluster_arrive");
  if (c->phase < thread->cluster) {
    thread->at_cluster = true;
    machine_wait();
  }
  thread->cluster_waits++;
  clock_acquire(machine.current, clock_cluster_row((int)(c - machine.clusters), true));
}

/* ---- Peers ---- */

/* Whether the thread is ordered after something that the block did. */
static bool knows(int thread, int block) {
  const uint32_t *clock = clock_of(thread, PROXY_GENERIC);
  int first = machine_agent(machine_first(block));
  for (int i = 0; i < machine.launch->block; i++)
    if (clock[first + i])
      return true;
  return false;
}

int cluster_peer(int cta, const char *primitive) {
  int me = machine.current, own = machine_place(), size = machine.launch->cluster;
  if (cta < 0 || cta >= size)
    fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "%s at block %d of a cluster of %d", primitive, cta, size);
  int peer = own / size * size + cta;
  if (peer == own)
    return own;
  if (!machine.blocks[peer].live)
    fault_raise(EMU_FAULT_PEER,
                "%s at block %d of the cluster, which has ended: a cluster barrier at the end is missing", primitive,
                cta);
  if (!knows(me, peer))
    fault_raise(EMU_FAULT_PEER,
                "%s at block %d of the cluster, which may not have started: a cluster barrier before it is missing",
                primitive, cta);
  int agent = machine_agent(me);
  reached[peer][agent] = clock_of(me, PROXY_GENERIC)[agent];
  return peer;
}

/* A block may read its own shared memory that way, too. */
void cluster_load(uint32_t address, void *to, int bytes, int cta) {
  uint32_t offset = effect_shared(address, bytes, bytes, "load_remote");
  emu_actor actor = shadow_thread(machine.current, "load_remote");
  actor.block = cluster_peer(cta, "load_remote");
  shadow_read(&actor, offset, bytes);
  memcpy(to, machine.blocks[actor.block].arena + offset, (size_t)bytes);
}

void cluster_store(uint32_t address, uint32_t value, int cta) {
  uint32_t offset = effect_shared(address, 4, 4, "store_remote");
  emu_actor actor = shadow_thread(machine.current, "store_remote");
  actor.block = cluster_peer(cta, "store_remote");
  shadow_write(&actor, offset, 4);
  memcpy(machine.blocks[actor.block].arena + offset, &value, 4);
}

static bool some_thread_knows(int block, int agent, uint32_t time) {
  for (int t = machine_first(block); t < machine_first(block) + machine.launch->block; t++)
    if (clock_of(t, PROXY_GENERIC)[agent] >= time)
      return true;
  return false;
}

/* The block's last thread ends, and with it its shared memory. */
static void check_reached(int block) {
  char who[96];
  for (int agent = 0; agent < machine.launch->cluster * machine.span; agent++)
    if (reached[block][agent] && !some_thread_knows(block, agent, reached[block][agent])) {
      clock_describe(agent, who, sizeof who);
      fault_raise(EMU_FAULT_PEER,
                  "the block ends, not ordered after an access of its shared memory by %s: a cluster barrier at the "
                  "end is missing",
                  who);
    }
}

void cluster_thread_done(int thread) {
  emu_cluster *c = running_cluster();
  if (--machine_block()->live == 0 && machine.launch->cluster > 1)
    check_reached(machine.threads[thread].block);
  c->arrived -= machine.threads[thread].cluster > c->phase;
  if (--c->live == 0)
    machine.ended = (int)(c - machine.clusters);
  else
    advance(c);
}
