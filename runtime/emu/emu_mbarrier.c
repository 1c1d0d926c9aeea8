/* emu_mbarrier.c: mbarriers. A phase completes when all its arrivals and all bytes of its copies are there; an arrival
 * releases what its thread did, a wait acquires what the complete phases released. The phase's number, counted from 1,
 * is the time at which the copies onto the mbarrier are done.
 *
 * Misuse that the hardware lets pass is a fault: a wait or arrival without an init, an arrival too many, a second init,
 * a phase that ends before the bytes it should have waited for, copies that nobody waits for. */
#include <stdio.h>

#include "engine.h"

typedef struct emu_mbarrier {
  uint32_t offset;
  int engine;
  int count, pending; /* arrivals of a phase, and those still missing in this one */
  int64_t bytes;      /* expected and not yet copied; below 0: copied before they were expected */
  uint32_t phase;     /* complete ones */
  int initialiser;
  bool fenced;     /* a proxy fence has followed the init */
  uint32_t copied; /* latest phase that copies were issued onto, counted from 1; 0: none */
  uint32_t waited; /* latest phase somebody has waited for */
} emu_mbarrier;

/* Of all blocks: EMU_MBARRIERS a place. */
static emu_mbarrier table[EMU_BLOCKS * EMU_MBARRIERS];
static int count[EMU_BLOCKS];
static uint8_t number_at[EMU_BLOCKS][EMU_SHARED_MAX / 8]; /* number in the block + 1, by offset / 8; 0: none */

static int block_of(int index) {
  return index / EMU_MBARRIERS;
}

void mbarrier_start_block(int block) {
  for (int i = 0; i < count[block]; i++)
    number_at[block][table[block * EMU_MBARRIERS + i].offset / 8] = 0;
  count[block] = 0;
}

int mbarrier_engine(int index) {
  return table[index].engine;
}
uint32_t mbarrier_phase(int index) {
  return table[index].phase;
}

/* A block's mbarrier at an address: initialised, and the init ordered before the running thread. */
static int find(int block, uint32_t address, const char *primitive) {
  uint32_t offset = effect_shared(address, 8, 8, primitive);
  int number = number_at[block][offset / 8] - 1;
  if (number < 0)
    fault_raise(EMU_FAULT_MBARRIER, "%s at offset %u%s, where no mbarrier was initialised", primitive, (unsigned)offset,
                block == machine_place() ? "" : " of a peer");
  emu_actor actor = shadow_thread(machine.current, primitive);
  actor.block = block;
  shadow_use_mbarrier(&actor, offset);
  return block * EMU_MBARRIERS + number;
}

/* ---- Init ---- */

void mbarrier_init(uint32_t address, int arrivals) {
  uint32_t offset = effect_shared(address, 8, 8, "mbar_init");
  int block = machine_place(), index = block * EMU_MBARRIERS + count[block];
  if (number_at[block][offset / 8])
    fault_raise(EMU_FAULT_MBARRIER, "the mbarrier at offset %u is initialised again while it is in use",
                (unsigned)offset);
  if (arrivals < 1 || arrivals >= 1 << 20)
    fault_raise(EMU_FAULT_MBARRIER, "an mbarrier for %d arrivals; 1 to 2^20 - 1 are possible", arrivals);
  int engine = count[block] < EMU_MBARRIERS ? clock_new_engine(ENGINE_LOAD, (int)offset) : -1;
  if (engine < 0)
    fault_raise(EMU_FAULT_MBARRIER, "the emulator has %d mbarriers a block", (int)EMU_MBARRIERS);
  emu_actor actor = shadow_thread(machine.current, "mbar_init");
  shadow_write(&actor, offset, 8);
  shadow_new_mbarrier(block, offset);
  table[index] = (emu_mbarrier){
      .offset = offset, .engine = engine, .count = arrivals, .pending = arrivals, .initialiser = machine.current};
  for (int side = 0; side < SIDES; side++)
    clock_clear(clock_mbarrier_row(index, (emu_side)side));
  number_at[block][offset / 8] = (uint8_t)++count[block];
}

void mbarrier_fence(int thread) {
  int block = machine.threads[thread].block;
  emu_mbarrier *first = &table[block * EMU_MBARRIERS];
  for (int i = 0; i < count[block]; i++)
    first[i].fenced = first[i].fenced || first[i].initialiser == thread;
}

void mbarrier_fence_init(void) {
  mbarrier_fence(machine.current);
}

/* ---- Phases ---- */

static bool is_complete(const emu_mbarrier *m, int parity) {
  return (int)(m->phase & 1) != parity;
}

/* Completes the phase if nothing is missing, and lets those go on who wait for it. */
static void advance(int index) {
  emu_mbarrier *m = &table[index];
  if (m->pending || m->bytes)
    return;
  m->phase++;
  m->pending = m->count;
  int released = clock_mbarrier_row(index, SIDE_RELEASED), first = machine_first(block_of(index));
  clock_acquire(released, clock_mbarrier_row(index, SIDE_ARRIVED));
  clock_learn(released, m->engine, m->phase);
  if (machine.launch->cluster > 1)
    clock_acquire(clock_mbarrier_row(index, SIDE_PEER_RELEASED), clock_mbarrier_row(index, SIDE_PEER_ARRIVED));
  for (int t = first; t < first + machine.launch->block; t++) {
    emu_thread *thread = &machine.threads[t];
    if (thread->mbarrier == index && is_complete(m, thread->parity)) {
      thread->mbarrier = -1;
      machine_wake(t);
    }
  }
}

static void arrive(int index, int bytes) {
  emu_mbarrier *m = &table[index];
  bool own = block_of(index) == machine_place();
  if (bytes < 0 || bytes >= 1 << 20 || m->bytes + bytes >= 1 << 20)
    fault_raise(EMU_FAULT_MBARRIER, "%d more bytes expected at the mbarrier at offset %u; one phase has up to 2^20 - 1",
                bytes, (unsigned)m->offset);
  if (m->pending == 0)
    fault_raise(
        EMU_FAULT_MBARRIER,
        "an arrival too many: phase %u of the mbarrier at offset %u has its %d already and waits for %lld bytes",
        (unsigned)m->phase, (unsigned)m->offset, m->count, (long long)m->bytes);
  m->bytes += bytes;
  m->pending--;
  clock_release(machine.current, clock_mbarrier_row(index, own ? SIDE_ARRIVED : SIDE_PEER_ARRIVED));
  advance(index);
}

void mbarrier_arrive(uint32_t address, int bytes) {
  arrive(find(machine_place(), address, bytes ? "mbar_arrive_expect_tx" : "mbar_arrive"), bytes);
}

static void check_fence(int index, const char *primitive) {
  if (!table[index].fenced)
    fault_raise(EMU_FAULT_PROXY, "%s onto the mbarrier at offset %u: fence_mbar_init after its init is missing",
                primitive, (unsigned)table[index].offset);
}

void mbarrier_arrive_remote(uint32_t address, int cta) {
  int peer = cluster_peer(cta, "mbar_arrive_remote"), index = find(peer, address, "mbar_arrive_remote");
  if (peer != machine_place())
    check_fence(index, "mbar_arrive_remote");
  arrive(index, 0);
}

void mbarrier_wait(uint32_t address, int parity, int cluster) {
  int me = machine.current, index = find(machine_place(), address, "mbar_wait");
  emu_mbarrier *m = &table[index];
  if (parity != 0 && parity != 1)
    fault_raise(EMU_FAULT_MBARRIER, "mbar_wait for parity %d; it can be 0 or 1", parity);
  while (!is_complete(m, parity)) {
    machine.threads[me].mbarrier = index;
    machine.threads[me].parity = parity;
    machine_wait();
  }
  m->waited = m->phase;
  clock_acquire(me, clock_mbarrier_row(index, SIDE_RELEASED));
  if (cluster && machine.launch->cluster > 1)
    clock_acquire(me, clock_mbarrier_row(index, SIDE_PEER_RELEASED));
}

/* ---- Copies ---- */

int mbarrier_begin_copy(int block, uint32_t address, const char *primitive) {
  int index = find(block, address, primitive);
  check_fence(index, primitive);
  table[index].copied = table[index].phase + 1;
  return index;
}

void mbarrier_end_copy(int index, int bytes) {
  table[index].bytes -= bytes;
  advance(index);
}

/* ---- Reports ---- */

void mbarrier_describe(int thread, char *out, size_t size) {
  const emu_thread *waiting = &machine.threads[thread];
  const emu_mbarrier *m = &table[waiting->mbarrier];
  snprintf(out, size,
           "wait for parity %d of the mbarrier at offset %u (phase %u: %d of %d arrivals and %lld bytes missing)",
           waiting->parity, (unsigned)m->offset, (unsigned)m->phase, m->pending, m->count, (long long)m->bytes);
}

void mbarrier_end_block(int block) {
  const emu_mbarrier *m = &table[block * EMU_MBARRIERS];
  for (int i = 0; i < count[block]; i++)
    if (m[i].copied > m[i].waited) {
      fault_block(block, EMU_FAULT_PENDING,
                  "the block ends, and nobody has waited for the copies onto phase %u of the mbarrier at offset %u",
                  (unsigned)m[i].copied - 1, (unsigned)m[i].offset);
      return;
    }
}
