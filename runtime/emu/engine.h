/* engine.h: what the files of the emulator share. Private to runtime/emu and device_emu.c.
 *
 * One machine a process: blocks run one after another, the threads of a block are fibers on the calling OS thread, and
 * whoever touches the machine holds emu_lock. What an agent does to memory passes through effect_shared and
 * effect_global (emu_effect.c) and through nothing else; barriers pass through clock_* (emu_clock.c). An agent is a
 * thread of the block for now: asynchronous engines (TMA, wgmma) become agents with numbers behind the threads, with
 * clocks of their own, and mbarriers become one more thing that joins clocks. docs/emulator.md shows where. */
#ifndef RUNTIME_EMU_ENGINE_H
#define RUNTIME_EMU_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emu.h"
#include "fiber.h"

enum {
  EMU_WARP = 32,
  EMU_MAX_THREADS = 1024,
  EMU_MAX_WARPS = EMU_MAX_THREADS / EMU_WARP,
  EMU_BARRIERS = 16,
  EMU_SHARED_LIMIT = 227 * 1024, /* dynamic shared memory of one block, as on the largest supported GPU */
  EMU_POISON = 0xff,             /* NaN in every float format, -1 as an integer */
  EMU_MESSAGE = 1024
};

/* The order in which runnable threads go on. */
typedef enum emu_policy { EMU_IN_ORDER, EMU_REVERSE, EMU_RANDOM } emu_policy;

/* ---- Faults (emu_fault.c) ---- */

/* The first fault of a launch. `kind` opens every message; tests and users tell faults apart by it. */
typedef struct emu_fault {
  bool set;
  const void *pc; /* in the kernel image; NULL: unknown */
  char message[EMU_MESSAGE];
} emu_fault;

#define EMU_FAULT_OUT_OF_BOUNDS "out of bounds"
#define EMU_FAULT_FREED "use of freed memory"
#define EMU_FAULT_READ_ONLY "write to read-only memory"
#define EMU_FAULT_MISALIGNED "misaligned access"
#define EMU_FAULT_PENDING "pending copy"
#define EMU_FAULT_RACE "race"
#define EMU_FAULT_DIVERGENT "divergent collective"
#define EMU_FAULT_BARRIER "bad barrier"
#define EMU_FAULT_DEADLOCK "deadlock"
#define EMU_FAULT_MEMORY "out of host memory"

/* Records a fault of the running thread and ends the launch: never returns to the kernel. */
void fault_raise(const char *kind, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
/* Records a fault that belongs to the whole block. */
void fault_block(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- The machine (emu_engine.c) ---- */

/* One cp.async on its way. */
typedef struct emu_copy {
  uint32_t offset; /* in the arena */
  int bytes, source_bytes;
  const unsigned char *from;
  uint32_t group;
  bool landed;
} emu_copy;

/* What a lane brings to a collective; the lane is suspended while others look at it. */
typedef struct emu_operands {
  emu_collective kind;
  int variant; /* must be equal in all lanes: ldmatrix count and transposition, mma format */
  uint32_t value;
  int argument;
  uint32_t address;
  uint32_t *out;
  float *d;
  const uint32_t *a, *b;
  const float *c;
} emu_operands;

typedef struct emu_thread {
  fiber fiber;
  emu_operands *operands; /* while at a collective */
  emu_copy *copies;       /* in order of issue; groups ascend */
  int copy_count, copy_capacity;
  uint32_t group; /* the one being filled: the number of commits */
  int barrier;    /* waits at this one; -1: none */
  bool done;
} emu_thread;

/* Lanes by what they do, as bit masks. */
typedef struct emu_warp {
  uint32_t lanes; /* that exist */
  uint32_t collective, barrier, done;
} emu_warp;

typedef struct emu_barrier {
  int expected, arrived; /* arrived == 0: free */
} emu_barrier;

/* One launch, as the device asks for it. */
typedef struct emu_launch {
  void (*entry)(const void *params);
  const char *name; /* of the entry, for reports */
  int64_t grid;
  int block, shared_bytes;
  const void *params;
  size_t params_size;
  const unsigned char *image_low, *image_high; /* the kernel's own constants */
  uint64_t seed;
  emu_policy policy;
} emu_launch;

typedef struct emu_machine {
  const emu_launch *launch; /* NULL: nothing runs */
  fiber host;
  fiber_stacks stacks;
  unsigned char *arena; /* shared memory, EMU_SHARED_MAX bytes, aligned to 1024 */
  emu_thread threads[EMU_MAX_THREADS];
  emu_warp warps[EMU_MAX_WARPS];
  emu_barrier barriers[EMU_BARRIERS];
  int64_t block;              /* index of the running one */
  int current;                /* running thread; -1: the host */
  const void *pc;             /* where the kernel made its latest call */
  int live;                   /* threads of the block that have not ended */
  uint64_t random;            /* state of the generator */
  int ready[EMU_MAX_THREADS]; /* ring of runnable threads */
  int ready_head, ready_count;
  emu_fault fault;
} emu_machine;

extern emu_machine machine;
extern const emu_api emu_table; /* what kernels are bound to */

void emu_lock(void);
void emu_unlock(void);
/* Opens and closes count users; the last close gives the machine's memory back. Lock held. */
bool machine_open(void);
void machine_close(void);
/* Runs all blocks. False: machine.fault says why. Lock held. */
bool machine_run(const emu_launch *launch);

uint32_t machine_random(uint32_t below);
/* Suspends the running thread until somebody makes it runnable. */
void machine_wait(void);
void machine_wake(int thread);
static inline emu_warp *machine_warp(int thread) {
  return &machine.warps[thread / EMU_WARP];
}

/* ---- Effects on memory (emu_effect.c) and device memory (emu_memory.c) ---- */

typedef enum emu_effect { EFFECT_READ, EFFECT_WRITE } emu_effect;

/* A plain access of the running thread. */
void effect_access(const void *address, int bytes, emu_effect effect);
/* A shared-memory operand of a primitive, by shared address. Returns its offset in the arena. */
uint32_t effect_shared(uint32_t address, int bytes, emu_effect effect, const char *primitive);
/* A global-memory operand of a primitive. bytes may be 0. */
void effect_global(const void *address, int bytes, int alignment, emu_effect effect, const char *primitive);

void *memory_alloc(size_t bytes); /* NULL: none left. Aligned to 256, poisoned; lock held, as for all of these */
bool memory_free(void *memory);   /* false: not the start of a live allocation */
bool memory_contains(const void *address, size_t bytes); /* inside one live allocation */
void memory_forget_freed(void);
/* Describes where an address lies relative to what is or was allocated. Returns the kind of fault. */
const char *memory_describe(const void *address, int bytes, char *out, size_t size);

/* ---- Happens-before of shared memory (emu_clock.c) ---- */

bool clock_start_block(int threads, int shared_bytes);
void clock_free(void);
void clock_effect(int agent, uint32_t offset, int bytes, emu_effect effect);
/* An asynchronous write: in flight from start to end, when it counts as a write by the agent. */
void clock_copy_start(int agent, uint32_t offset, int bytes);
void clock_copy_end(int agent, uint32_t offset, int bytes);
/* Everything before, in any of these agents, comes before everything after, in all of them. */
void clock_join(const int *agents, int count);

/* ---- Primitives ---- */

void barrier_block(int id, int threads);     /* emu_barrier.c */
void barrier_report(char *out, size_t size); /* who waits where, for the deadlock report */
void barrier_thread_done(int thread);

uint32_t collective_shuffle_xor(uint32_t value, int lane_mask); /* emu_collective.c */
uint32_t collective_shuffle_index(uint32_t value, int source_lane);
int collective_vote_any(int predicate);
void collective_sync(void);
void collective_ldmatrix(uint32_t *out, int count, int transposed, uint32_t address);
void collective_mma(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], int format);
const char *collective_name(emu_collective kind);

void async_copy(uint32_t to, const void *from, int bytes, int source_bytes); /* emu_async.c */
void async_commit(void);
void async_wait(int groups_left);
void async_thread_done(int thread);

#endif
