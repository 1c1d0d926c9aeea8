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

static emu_mbarrier table[EMU_MBARRIERS];
static int count;
static uint8_t index_at[EMU_SHARED_MAX / 8]; /* index + 1 by offset / 8; 0: none */

void mbarrier_start_block(void) {
  for (int i = 0; i < count; i++)
    index_at[table[i].offset / 8] = 0;
  count = 0;
}

int mbarrier_engine(int index) {
  return table[index].engine;
}
uint32_t mbarrier_phase(int index) {
  return table[index].phase;
}

/* The mbarrier at an address: initialised, and the init ordered before the running thread. */
static int find(uint32_t address, const char *primitive) {
  uint32_t offset = effect_shared(address, 8, 8, primitive);
  int index = index_at[offset / 8] - 1;
  if (index < 0)
    fault_raise(EMU_FAULT_MBARRIER, "%s at offset %u, where no mbarrier was initialised", primitive, (unsigned)offset);
  emu_actor actor = shadow_thread(machine.current, primitive);
  shadow_use_mbarrier(&actor, offset);
  return index;
}

/* ---- Init ---- */

void mbarrier_init(uint32_t address, int arrivals) {
  uint32_t offset = effect_shared(address, 8, 8, "mbar_init");
  if (index_at[offset / 8])
    fault_raise(EMU_FAULT_MBARRIER, "the mbarrier at offset %u is initialised again while it is in use",
                (unsigned)offset);
  if (arrivals < 1 || arrivals >= 1 << 20)
    fault_raise(EMU_FAULT_MBARRIER, "an mbarrier for %d arrivals; 1 to 2^20 - 1 are possible", arrivals);
  int engine = count < EMU_MBARRIERS ? clock_new_engine(ENGINE_LOAD, (int)offset) : -1;
  if (engine < 0)
    fault_raise(EMU_FAULT_MBARRIER, "the emulator has %d mbarriers a block", (int)EMU_MBARRIERS);
  emu_actor actor = shadow_thread(machine.current, "mbar_init");
  shadow_write(&actor, offset, 8);
  shadow_new_mbarrier(offset);
  table[count] = (emu_mbarrier){
      .offset = offset, .engine = engine, .count = arrivals, .pending = arrivals, .initialiser = machine.current};
  clock_clear(clock_arrived_row(count));
  clock_clear(clock_released_row(count));
  index_at[offset / 8] = (uint8_t)++count;
}

void mbarrier_fence(int thread) {
  for (int i = 0; i < count; i++)
    table[i].fenced = table[i].fenced || table[i].initialiser == thread;
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
  clock_acquire(clock_released_row(index), clock_arrived_row(index));
  clock_learn(clock_released_row(index), m->engine, m->phase);
  for (int t = 0; t < machine.launch->block; t++) {
    emu_thread *thread = &machine.threads[t];
    if (thread->mbarrier == index && is_complete(m, thread->parity)) {
      thread->mbarrier = -1;
      machine_wake(t);
    }
  }
}

void mbarrier_arrive(uint32_t address, int bytes) {
  int index = find(address, bytes ? "mbar_arrive_expect_tx" : "mbar_arrive");
  emu_mbarrier *m = &table[index];
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
  clock_release(machine.current, clock_arrived_row(index));
  advance(index);
}

void mbarrier_arrive_remote(uint32_t address, int cta) {
  if (cta != 0)
    fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "mbar_arrive_remote at block %d of a cluster of 1", cta);
  mbarrier_arrive(address, 0);
}

void mbarrier_wait(uint32_t address, int parity) {
  int me = machine.current, index = find(address, "mbar_wait");
  emu_mbarrier *m = &table[index];
  if (parity != 0 && parity != 1)
    fault_raise(EMU_FAULT_MBARRIER, "mbar_wait for parity %d; it can be 0 or 1", parity);
  while (!is_complete(m, parity)) {
    machine.threads[me].mbarrier = index;
    machine.threads[me].parity = parity;
    machine_wait();
  }
  m->waited = m->phase;
  clock_acquire(me, clock_released_row(index));
}

/* ---- Copies ---- */

int mbarrier_begin_copy(uint32_t address, int bytes, const char *primitive) {
  int index = find(address, primitive);
  emu_mbarrier *m = &table[index];
  if (!m->fenced)
    fault_raise(EMU_FAULT_PROXY,
                "%s of %d bytes onto the mbarrier at offset %u: fence_mbar_init after its init is missing", primitive,
                bytes, (unsigned)m->offset);
  m->copied = m->phase + 1;
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

void mbarrier_end_block(void) {
  for (int i = 0; i < count; i++)
    if (table[i].copied > table[i].waited) {
      fault_block(EMU_FAULT_PENDING,
                  "the block ends, and nobody has waited for the copies onto phase %u of the mbarrier at offset %u",
                  (unsigned)table[i].copied - 1, (unsigned)table[i].offset);
      return;
    }
}
