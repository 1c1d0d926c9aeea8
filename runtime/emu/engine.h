/* engine.h: what the files of the emulator share. Private to runtime/emu and device_emu.c.
 *
 * One machine a process: a few clusters of blocks live at once, their threads are fibers on the calling OS thread, and
 * whoever touches the machine holds emu_lock. Living blocks have places, their threads numbers through all places: those
 * of the block at place i start at i * machine.span, which is whole warps (and whole warpgroups, if the block has one).
 * Clusters have places too, of launch->cluster blocks each. What is done to memory passes through effect_* (emu_effect.c) and
 * shadow_* (emu_shadow.c) or global_* (emu_global.c) and through nothing else; what orders it passes through clock_*
 * (emu_clock.c) within a cluster and past_* (emu_past.c) between clusters.
 *
 * An agent is what accesses are attributed to: a thread, numbered within its cluster, or, behind the threads, an asynchronous
 * engine: the copies onto one mbarrier, the bulk stores of one thread, the wgmma of one warpgroup. An engine needs no
 * clock of its own: it works in the name of its issuer, and its time is the number of the phase or group that will tell
 * others of its end. docs/emulator.md has the rules. */
#ifndef RUNTIME_EMU_ENGINE_H
#define RUNTIME_EMU_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emu.h"
#include "fiber.h"

enum {
  EMU_WARP = 32,
  EMU_MAX_THREADS = 1024, /* of a block */
  EMU_MAX_WARPS = EMU_MAX_THREADS / EMU_WARP,
  EMU_BARRIERS = 16,
  EMU_SHARED_LIMIT = 227 * 1024, /* dynamic shared memory of one block, as on the largest supported GPU */
  EMU_WARPGROUP = 128,
  EMU_WARPGROUPS = EMU_MAX_THREADS / EMU_WARPGROUP,
  EMU_CLUSTER = 16, /* blocks of a cluster: twice as many as every GPU with clusters has; the largest have these too */
  EMU_SM_COUNT = 4, /* small, so that splits and grids larger than the machine are exercised */
  EMU_BLOCKS = 16,  /* that live at once: one an SM, or one cluster */
  EMU_THREADS = EMU_BLOCKS * EMU_MAX_THREADS,
  EMU_MBARRIERS = 64, /* of one block; the hardware has no limit */
  EMU_STORERS = 32,   /* threads of one block that issue bulk stores */
  EMU_ENGINES = EMU_MBARRIERS + 2 * EMU_STORERS + EMU_WARPGROUPS,
  EMU_LOCKS = 64,    /* ranges of one thread's registers that wgmma uses */
  EMU_POISON = 0xff, /* NaN in every float format, -1 as an integer */
  EMU_MESSAGE = 1024
};

/* The order in which runnable threads go on. */
typedef enum emu_policy { EMU_IN_ORDER, EMU_REVERSE, EMU_RANDOM } emu_policy;

/* ---- Faults (emu_fault.c) ---- */

/* The first fault of a launch. `kind` opens every message; tests and users tell faults apart by it. */
typedef struct emu_fault {
  bool set;
  const void *pc;       /* in the kernel image; NULL: unknown */
  const void *other_pc; /* of the access that this one meets; NULL: none, or unknown */
  char message[EMU_MESSAGE];
} emu_fault;

#define EMU_FAULT_OUT_OF_BOUNDS "out of bounds"
#define EMU_FAULT_FREED "use of freed memory"
#define EMU_FAULT_EARLY "early access"
#define EMU_FAULT_READ_ONLY "write to read-only memory"
#define EMU_FAULT_MISALIGNED "misaligned access"
#define EMU_FAULT_PENDING "pending copy"
#define EMU_FAULT_RACE "race"
#define EMU_FAULT_RACE_GLOBAL "race (global)"
#define EMU_FAULT_DIVERGENT "divergent collective"
#define EMU_FAULT_BARRIER "bad barrier"
#define EMU_FAULT_DEADLOCK "deadlock"
#define EMU_FAULT_PROXY "missing proxy fence"
#define EMU_FAULT_UNWRITTEN "uninitialised shared memory"
#define EMU_FAULT_MBARRIER "bad mbarrier"
#define EMU_FAULT_TENSOR_MAP "bad tensor map"
#define EMU_FAULT_DESCRIPTOR "bad matrix descriptor"
#define EMU_FAULT_IN_FLIGHT "accumulator in flight"
#define EMU_FAULT_FENCE "missing wgmma fence"
#define EMU_FAULT_REGISTERS "register budget"
#define EMU_FAULT_PEER "peer not there"
#define EMU_FAULT_MEMORY "out of host memory"

/* Records a fault of the running thread and ends the launch: never returns to the kernel. */
void fault_raise(const char *kind, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
/* Records a fault of the block at a place as a whole. The caller leaves the kernel. */
void fault_block(int block, const char *kind, const char *format, ...) __attribute__((format(printf, 3, 4)));

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
  int variant; /* must be equal in all lanes: ldmatrix count and transposition, formats, wgmma's shape */
  uint32_t value;
  int argument;
  uint32_t address;
  uint32_t *out;
  float *d;
  const uint32_t *a, *b;
  const float *c;
  const emu_wgmma *wgmma;
} emu_operands;

/* Registers of a thread that belong to wgmma, as addresses of its stack, until the thread has waited for `group`. */
typedef struct emu_register_lock {
  uintptr_t low, high;
  uint32_t group;
} emu_register_lock;

typedef struct emu_thread {
  fiber fiber;
  emu_operands *operands; /* while at a collective */
  emu_copy *copies;       /* in order of issue; groups ascend */
  int copy_count, copy_capacity;
  uint32_t group; /* the one being filled: the number of commits */
  int block;      /* place of its block */
  int barrier;    /* waits at this one; -1: none */
  bool barrier_any; /* what the latest bar_or found */
  int mbarrier;   /* waits for this one's phase of `parity`; -1: none */
  int parity;
  bool at_wgmma;                  /* waits until the other warps have issued */
  bool at_cluster;                /* waits in cluster_wait */
  uint32_t cluster;               /* cluster_arrives so far */
  uint32_t cluster_waits;
  int storer;                     /* agent of its bulk stores: their reads, and the next one their writes; -1: none */
  uint32_t bulk_group, bulk_read; /* the one being filled; those before this one are known to be read */
  emu_register_lock locks[EMU_LOCKS];
  int lock_count;
  bool fenced;                        /* has passed a wgmma_fence: register accesses are noted from then on */
  bool early;                         /* has not yet waited for the kernels before this one */
  uint32_t *touched;                  /* a bit for every 4 bytes of the stack accessed since the last wgmma_fence */
  uint32_t touched_low, touched_high; /* words of `touched` that may be set: [low, high) */
  bool done;
} emu_thread;

/* Lanes by what they do, as bit masks. */
typedef struct emu_warp {
  uint32_t lanes; /* that exist */
  uint32_t collective, barrier, done;
  int registers, register_changes; /* setmaxnreg: the latest count (0: as launched), and how many there were */
} emu_warp;

typedef struct emu_barrier {
  int expected, arrived; /* arrived == 0: free */
  bool announced;        /* some came by bar_arrive: their clocks are in the barrier's row */
  bool any, reduces;     /* of bar_or: a predicate held; it is one */
} emu_barrier;

/* A block that lives. */
typedef struct emu_block {
  int64_t index; /* in the grid */
  unsigned char *arena; /* shared memory, EMU_SHARED_MAX bytes, aligned to 1024 */
  emu_barrier barriers[EMU_BARRIERS];
  int live; /* threads that have not ended */
} emu_block;

/* A cluster that lives. */
typedef struct emu_cluster {
  int64_t index; /* in the grid of clusters */
  int live;      /* threads that have not ended; 0: the place is free */
  int arrived;   /* of them, in the phase of its barrier that is being filled */
  uint32_t phase; /* complete ones */
} emu_cluster;

/* One launch, as the device asks for it. */
typedef struct emu_launch {
  void (*entry)(const void *params);
  const char *name; /* of the entry, for reports */
  int64_t grid;
  int block, cluster, shared_bytes; /* threads; blocks, a divisor of the grid; bytes */
  bool early;                       /* threads wait for the kernels before this one by themselves */
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
  emu_thread threads[EMU_THREADS];
  emu_warp warps[EMU_THREADS / EMU_WARP];
  emu_block blocks[EMU_BLOCKS];
  emu_cluster clusters[EMU_BLOCKS];
  int span;             /* from a block's first thread to the next block's */
  int places;           /* for clusters */
  bool meeting;         /* all places are in use, not the first one alone */
  int current;          /* running thread; -1: the host */
  unsigned char *arena; /* of its block */
  int ended;            /* place of a cluster whose last thread has ended; -1: none */
  const void *pc;       /* where the kernel made its latest call */
  int live;             /* threads that have not ended */
  uint64_t random;      /* state of the generator */
  int ready[EMU_THREADS]; /* ring of runnable threads */
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
static inline int machine_place(void) { /* of the running thread's block */
  return machine.threads[machine.current].block;
}
static inline emu_block *machine_block(void) {
  return &machine.blocks[machine_place()];
}
static inline int machine_first(int block) { /* number of its first thread */
  return block * machine.span;
}
static inline int machine_index(int thread) { /* within its block */
  return thread - machine_first(machine.threads[thread].block);
}
static inline int machine_cluster(int block) { /* place of its cluster */
  return machine.launch->cluster == 1 ? block : block / machine.launch->cluster;
}
static inline int machine_agent(int thread) { /* the thread within its cluster */
  int block = machine.threads[thread].block;
  return thread - machine_first(machine_cluster(block) * machine.launch->cluster);
}

/* ---- Effects on memory (emu_effect.c) and device memory (emu_memory.c) ---- */

typedef enum emu_effect { EFFECT_READ, EFFECT_WRITE } emu_effect;
typedef enum emu_proxy { PROXY_GENERIC, PROXY_ASYNC } emu_proxy;

/* In whose name, and how, memory is accessed: ordered after what `row` knows, noted as `agent` at `time`; shared memory
 * is that of the block at place `block`. */
typedef struct emu_actor {
  int row, agent, block;
  uint32_t time;
  emu_proxy proxy;
  const char *name; /* of the primitive, for reports; NULL: a plain access */
} emu_actor;

/* Four aligned bytes of global memory: numbers of events (emu_global.c). */
enum { EMU_READERS = 3 };
typedef struct emu_word {
  uint32_t writer, readers[EMU_READERS];
} emu_word;

/* A plain access of the running thread. */
void effect_access(const void *address, int bytes, emu_effect effect);
/* The offset in the arena of a shared-memory operand of a primitive. Checks bounds and alignment only. */
uint32_t effect_shared(uint32_t address, int bytes, int alignment, const char *primitive);
/* A global-memory operand of a primitive, which actor->name names. bytes may be 0. */
void effect_global(const emu_actor *actor, const void *address, int bytes, int alignment, emu_effect effect);
/* A read, change and write that nobody sees the middle of: 4 aligned bytes. */
void effect_atomic(const void *address, const char *primitive);

void *memory_alloc(size_t bytes); /* NULL: none left. Aligned to 256, poisoned; lock held, as for all of these */
bool memory_free(void *memory);   /* false: not the start of a live allocation */
bool memory_contains(const void *address, size_t bytes); /* inside one live allocation, or mapped throughout */

/* Addresses without memory, for granules of a power of two of bytes. NULL: none left. */
void *memory_reserve(size_t bytes, size_t granule);
bool memory_unreserve(void *range, size_t bytes); /* false: not exactly a reserved range, or some of it is mapped */
/* Whether whole granules of one reserved range start and end there, all of them mapped, or none. */
bool memory_is_reserved(const void *at, size_t bytes, bool mapped);
bool memory_map(void *at, size_t bytes);   /* granules that are not mapped; poisoned. false: no memory */
bool memory_unmap(void *at, size_t bytes); /* granules that are mapped */

/* The shadow of the word that holds an address found by the latest memory_contains, and of those behind it; *offset:
 * the address within the word. NULL: no address space. */
emu_word *memory_words(const void *address, uint32_t *offset);
void memory_forget_words(void);
void memory_forget_freed(void);
/* Describes where an address lies relative to what is or was allocated. Returns the kind of fault. */
const char *memory_describe(const void *address, int bytes, char *out, size_t size);

/* ---- Happens-before (emu_clock.c) ---- */

/* Rows of clocks: threads by their number, then what they meet at: barriers of a block, mbarriers (by their index, and
 * apart what peers of the cluster released), the barriers of clusters. */
int clock_barrier_row(int block, int barrier);
typedef enum emu_side { SIDE_ARRIVED, SIDE_RELEASED, SIDE_PEER_ARRIVED, SIDE_PEER_RELEASED, SIDES } emu_side;
int clock_mbarrier_row(int mbarrier, emu_side side);
int clock_cluster_row(int cluster, bool released);
/* What all lanes of a warp are ordered after; brought up to date by the call. */
int clock_warp_row(int first);

bool clock_start_launch(void);
void clock_start_cluster(int cluster);
void clock_free(void);
/* The latest times of all agents that a row is ordered after. PROXY_ASYNC: counting only writes that the asynchronous
 * proxy sees. */
const uint32_t *clock_of(int row, emu_proxy proxy);
int clock_agents(void); /* of the cluster that has most */
int clock_stride(void); /* that a cluster can have */
/* A new engine of the running thread's block, to be described in reports with `number`. -1: too many. */
typedef enum emu_engine_kind { ENGINE_LOAD, ENGINE_STORE, ENGINE_STORE_WRITE, ENGINE_WGMMA } emu_engine_kind;
int clock_new_engine(emu_engine_kind kind, int number);
/* "thread 5", "the copy onto the mbarrier at offset 64" */
void clock_describe(int agent, char *out, size_t size);
bool clock_is_thread(int agent);

/* Everything before, in any of these threads (and in the row, unless -1), comes before everything after, in all. */
void clock_join(const int *threads, int count, int row);
void clock_release(int thread, int row); /* what the thread did is in the row; what it does from now on is not */
void clock_acquire(int row, int from);   /* everything in `from` comes before what follows in the row */
void clock_clear(int row);
/* The row is ordered after an engine's work of up to `time`. */
void clock_learn(int row, int engine, uint32_t time);
/* What a thread does from now on is news to all others. */
void clock_tick(int thread);
/* fence.proxy.async by a thread: the asynchronous proxy sees its own writes so far. */
void clock_fence(int thread);

/* ---- Shadow of shared memory (emu_shadow.c) ---- */

enum { SHADOW_IN_FLIGHT = -1 }; /* time of a write that has not landed: UINT32_MAX as unsigned */

bool shadow_start_block(int block, int shared_bytes);
void shadow_free(void);
emu_actor shadow_thread(int thread, const char *name);
void shadow_read(const emu_actor *actor, uint32_t offset, int bytes);
void shadow_write(const emu_actor *actor, uint32_t offset, int bytes);
/* Writes in flight of the agent to a block's shared memory land at `time`. */
void shadow_land(int block, int agent, uint32_t offset, int bytes, uint32_t time);
/* How a tensor copy laid out 16 aligned bytes: 0: unknown, else the bytes of its swizzle + 1. Set after the write. */
void shadow_set_layout(int block, uint32_t offset, int bytes, int layout);
int shadow_layout(int block, uint32_t offset);
/* Eight bytes become an mbarrier: nothing else may touch them any more. Reading it checks the order after its init. */
void shadow_new_mbarrier(int block, uint32_t offset);
void shadow_use_mbarrier(const emu_actor *actor, uint32_t offset);

/* ---- Shadow of global memory (emu_global.c) ---- */

void global_start_launch(void);
void global_free(void);
/* Inside an allocation that memory_contains has just found. */
void global_access(const emu_actor *actor, const void *address, int bytes, emu_effect effect);
void global_atomic(const emu_actor *actor, const void *address, int bytes);

/* ---- Order between clusters (emu_past.c) ---- */

void past_start_cluster(int cluster);
void past_end_launch(void);
/* A row of the running cluster is ordered after what an agent of another one did at a time of its clock. */
bool past_knows(int row, int64_t cluster, int agent, uint32_t time);
void past_atomic(int thread, const void *address, bool orders); /* orders: releases and acquires */
void past_fence(int thread);

/* ---- Primitives ---- */

void barrier_block(int id, int threads); /* emu_barrier.c */
int barrier_or(int id, int threads, int predicate);
void barrier_arrive(int id, int threads);
/* Who waits where, for the deadlock report. Returns the place of the first block that hangs. */
int barrier_report(char *out, size_t size);

/* emu_cluster.c */
void cluster_start(int cluster);
int cluster_rank(void);
void cluster_arrive(void);
void cluster_wait(void);
void cluster_thread_done(int thread);
/* The place of block `cta` of the running thread's cluster, whose shared memory the primitive is about to access. */
int cluster_peer(int cta, const char *primitive);
void cluster_load(uint32_t address, void *to, int bytes, int cta);
void cluster_store(uint32_t address, uint32_t value, int cta);

uint32_t collective_shuffle_xor(uint32_t value, int lane_mask); /* emu_collective.c */
uint32_t collective_shuffle_index(uint32_t value, int source_lane);
int collective_vote_any(int predicate);
void collective_sync(void);
void collective_ldmatrix(uint32_t *out, int count, int transposed, uint32_t address);
void collective_mma(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], int format);
void collective_stmatrix(uint32_t address, const uint32_t *r, int count, int transposed);
void collective_registers(int count, int increase);
void collective_wgmma(const emu_wgmma *op);
void collective_wgmma_fence(void);
void collective_wgmma_commit(void);
void collective_wgmma_wait(int groups_left);
const char *collective_name(emu_collective kind);
const emu_operands *collective_operands(int thread);
/* At the end of a block: the sum over all warps, and all warps of a warpgroup alike. */
void collective_check_registers(int block);

void async_copy(uint32_t to, const void *from, int bytes, int source_bytes); /* emu_async.c */
void async_commit(void);
void async_wait(int groups_left);
void async_thread_done(int thread);

/* emu_mbarrier.c. Indices count the mbarriers of all blocks: EMU_MBARRIERS a place, in order of init. */
void mbarrier_start_block(int block);
void mbarrier_init(uint32_t address, int count);
void mbarrier_fence(int thread); /* a proxy fence, of either kind, covers the thread's inits */
void mbarrier_fence_init(void);
void mbarrier_arrive(uint32_t address, int bytes);
void mbarrier_arrive_remote(uint32_t address, int cta);
void mbarrier_wait(uint32_t address, int parity, int cluster); /* cluster: acquires what peers released, too */
int mbarrier_begin_copy(int block, uint32_t address, const char *primitive); /* returns the index */
int mbarrier_engine(int index);
uint32_t mbarrier_phase(int index);
void mbarrier_end_copy(int index, int bytes); /* may wake threads */
void mbarrier_describe(int thread, char *out, size_t size);
void mbarrier_end_block(int block);

/* emu_tma.c */
void tma_start_launch(void);
void tma_free(void);
void tma_prefetch(const void *map);
void tma_load(uint32_t to, const void *map, uint32_t mbar, int rank, const int *coordinates, int cta_mask);
void tma_store(const void *map, uint32_t from, int rank, const int *coordinates);
void tma_bulk_load(uint32_t to, const void *from, int bytes, uint32_t mbar);
void tma_bulk_commit(void);
void tma_bulk_wait(int groups_left, int reads_only);
bool tma_land_one(void); /* the next copy in the policy's order; false: none in flight */
void tma_thread_done(int thread);
void tma_end_cluster(int cluster);

/* emu_wgmma.c; the first three on behalf of the 32 lanes from `first`, which are all at the collective */
void wgmma_issue(int first);
void wgmma_fence(int first);
void wgmma_commit(int first);
void wgmma_wait(int groups_left);                        /* of the running thread */
void wgmma_check_register(uintptr_t address, int bytes); /* of the running thread's stack */
void wgmma_start_block(int block);
void wgmma_thread_done(int thread);
void wgmma_free(void);

#endif
