/* emu_wgmma.c: wgmma. The warps of a warpgroup issue each on their own; the k-th wgmma of one is the k-th of the
 * others, and it is complete for nobody before all four have issued it. It runs as late as a wait allows, or with the
 * random policy at any moment after the last issue. In between its accumulators are kept in a bank, their registers are
 * poisoned, and any access of the thread to them or to its A registers is a fault.
 *
 * Registers are places on a thread's stack. What the thread accessed since its last wgmma_fence is noted there, so that
 * a fence that is missing before wgmma takes them over is found. */
#include <stdlib.h>
#include <string.h>

#include "descriptor.h"
#include "engine.h"
#include "formats.h"

enum { RING = 256, BANKS = 8, WARPS = 4, MAX_N = 256 };

/* The accumulators of a warp: 16 rows. */
typedef struct bank {
  uint32_t held; /* lanes that have not got them back */
  float *d[EMU_WARP];
  int n;
  uint32_t group; /* of the latest wgmma that uses them */
  float values[16 * MAX_N];
} bank;

typedef struct wgmma {
  emu_wgmma op; /* pointers of no meaning */
  bool from_registers;
  int issued; /* warps, as bits */
  uint32_t group;
  int bank[WARPS];
  uint32_t a[EMU_WARPGROUP][4]; /* A registers */
} wgmma;

typedef struct warpgroup {
  int engine;
  uint32_t executed;      /* wgmma that have run; the ring holds those behind */
  uint32_t issued[WARPS]; /* by each warp */
  uint32_t commits[WARPS];
  wgmma ring[RING];
  bank banks[WARPS][BANKS];
} warpgroup;

static warpgroup *groups[EMU_THREADS / EMU_WARPGROUP]; /* of all blocks */
static bool active[EMU_THREADS / EMU_WARPGROUP];       /* used by the block that lives there */

void wgmma_start_block(int block) {
  int first = machine_first(block) / EMU_WARPGROUP;
  memset(&active[first], 0, (size_t)(machine.span / EMU_WARPGROUP) * sizeof *active);
}

void wgmma_free(void) {
  for (int g = 0; g < EMU_THREADS / EMU_WARPGROUP; g++) {
    free(groups[g]);
    groups[g] = NULL;
  }
  for (int t = 0; t < machine.stacks.count; t++) {
    free(machine.threads[t].touched);
    machine.threads[t].touched = NULL;
  }
}

/* The warpgroup of a thread, made ready when the block has not used it. */
static warpgroup *get_group(int thread) {
  int index = thread / EMU_WARPGROUP;
  if (!groups[index])
    groups[index] = malloc(sizeof *groups[index]);
  warpgroup *g = groups[index];
  if (!g)
    fault_raise(EMU_FAULT_MEMORY, "no memory for the wgmma of a warpgroup");
  if (active[index])
    return g;
  active[index] = true;
  g->engine = clock_new_engine(ENGINE_WGMMA, machine_index(thread) / EMU_WARPGROUP);
  g->executed = 0;
  for (int w = 0; w < WARPS; w++) {
    g->issued[w] = g->commits[w] = 0;
    for (int i = 0; i < BANKS; i++)
      g->banks[w][i].held = 0;
  }
  return g;
}

/* ---- Registers ---- */

/* Words of 4 bytes of a thread's stack, a bit each. */
static void touch(emu_thread *thread, uintptr_t address, int bytes) {
  size_t first = (address - (uintptr_t)thread->fiber.stack_low) / 4;
  size_t last = (address + (uintptr_t)bytes - 1 - (uintptr_t)thread->fiber.stack_low) / 4;
  for (size_t i = first; i <= last; i++)
    thread->touched[i / 32] |= 1u << i % 32;
  uint32_t low = (uint32_t)(first / 32), high = (uint32_t)(last / 32 + 1);
  thread->touched_low = low < thread->touched_low ? low : thread->touched_low;
  thread->touched_high = high > thread->touched_high ? high : thread->touched_high;
}

void wgmma_check_register(uintptr_t address, int bytes) {
  emu_thread *thread = &machine.threads[machine.current];
  for (int i = 0; i < thread->lock_count; i++) {
    const emu_register_lock *lock = &thread->locks[i];
    if (address < lock->high && address + (uintptr_t)bytes > lock->low)
      fault_raise(EMU_FAULT_IN_FLIGHT,
                  "the thread accesses a register of a wgmma (number %u of those %d bytes) that it has not waited for",
                  (unsigned)((address - lock->low) / 4), (int)(lock->high - lock->low));
  }
  touch(thread, address, bytes);
}

/* Registers are taken over by wgmma: the thread may not have accessed them since the fence. */
static void take_registers(emu_thread *thread, const void *registers, int bytes, uint32_t group) {
  uintptr_t low = (uintptr_t)registers, high = low + (uintptr_t)bytes, base = (uintptr_t)thread->fiber.stack_low;
  if (low - base >= thread->fiber.stack_size || high - base > thread->fiber.stack_size || low % 4)
    fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "wgmma with registers that are not local variables of the thread");
  for (size_t i = (low - base) / 4; i < (high - base) / 4; i++)
    if (thread->touched[i / 32] >> i % 32 & 1)
      fault_raise(EMU_FAULT_FENCE,
                  "the thread accessed a register of this wgmma (number %zu) after its latest wgmma_fence",
                  i - (low - base) / 4);
  for (int i = 0; i < thread->lock_count; i++) {
    emu_register_lock *lock = &thread->locks[i];
    if (low >= lock->low && high <= lock->high) {
      lock->group = group;
      return;
    }
    if (low == lock->high && group == lock->group) { /* the A registers of the next step */
      lock->high = high;
      return;
    }
  }
  if (thread->lock_count == EMU_LOCKS)
    fault_raise(EMU_FAULT_MEMORY, "the emulator has %d ranges of registers in flight a thread", (int)EMU_LOCKS);
  thread->locks[thread->lock_count++] = (emu_register_lock){low, high, group};
}

static void give_back_registers(emu_thread *thread, uint32_t limit) {
  int kept = 0;
  for (int i = 0; i < thread->lock_count; i++)
    if (thread->locks[i].group >= limit)
      thread->locks[kept++] = thread->locks[i];
  thread->lock_count = kept;
}

void wgmma_fence(int first) {
  for (int t = first; t < first + EMU_WARP; t++) {
    emu_thread *thread = &machine.threads[t];
    if (!thread->touched)
      thread->touched = calloc((thread->fiber.stack_size + 127) / 128 + 1, sizeof *thread->touched);
    if (!thread->touched)
      fault_raise(EMU_FAULT_MEMORY, "no memory to note accesses to registers");
    if (!thread->fenced) { /* left by an earlier block */
      memset(thread->touched, 0, ((thread->fiber.stack_size + 127) / 128 + 1) * sizeof *thread->touched);
    } else if (thread->touched_high > thread->touched_low) {
      memset(thread->touched + thread->touched_low, 0,
             (thread->touched_high - thread->touched_low) * sizeof *thread->touched);
    }
    thread->touched_low = UINT32_MAX;
    thread->touched_high = 0;
    thread->fenced = true;
  }
}

/* ---- Banks ---- */

/* Where register i of a lane lies in the 16 rows of its warp. */
static int place(int lane, int i, int n) {
  int row = lane / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
  return row * n + column;
}

/* The bank that holds the accumulators of this wgmma, all lanes of them; -1: none. */
static int find_bank(const bank *banks, int first, int n) {
  const float *d = collective_operands(first)->wgmma->d;
  for (int b = 0; b < BANKS; b++) {
    if (!(banks[b].held & 1) || d >= banks[b].d[0] + banks[b].n / 2 || d + n / 2 <= banks[b].d[0])
      continue;
    for (int lane = 0; lane < EMU_WARP; lane++)
      if (banks[b].held != UINT32_MAX || banks[b].n != n ||
          banks[b].d[lane] != collective_operands(first + lane)->wgmma->d)
        fault_raise(EMU_FAULT_IN_FLIGHT, "wgmma onto part of the accumulators of another one that is not waited for");
    return b;
  }
  return -1;
}

/* Takes the accumulators of a warp out of its registers. */
static int fill_bank(bank *banks, int first, int n) {
  int index = 0;
  while (index < BANKS && banks[index].held)
    index++;
  if (index == BANKS)
    fault_raise(EMU_FAULT_MEMORY, "the emulator has %d sets of accumulators in flight a warp", (int)BANKS);
  bank *b = &banks[index];
  b->held = UINT32_MAX;
  b->n = n;
  for (int lane = 0; lane < EMU_WARP; lane++) {
    b->d[lane] = collective_operands(first + lane)->wgmma->d;
    for (int i = 0; i < n / 2; i++)
      b->values[place(lane, i, n)] = b->d[lane][i];
    memset(b->d[lane], EMU_POISON, (size_t)n / 2 * sizeof(float));
  }
  return index;
}

static void empty_bank(bank *b, int lane) {
  for (int i = 0; i < b->n / 2; i++)
    b->d[lane][i] = b->values[place(lane, i, b->n)];
  b->held &= ~(1u << lane);
}

/* ---- Execution ---- */

static float convert(uint16_t bits, int format) {
  return format ? format_from_bf16(bits) : format_from_f16(bits);
}

/* A of one warp from its registers: pairs at row lane/4 (+8 for the odd ones), column 2(lane%4) (+8 for the last two).
 */
static void unpack_registers(const wgmma *w, int warp, float a[16][16]) {
  for (int lane = 0; lane < EMU_WARP; lane++)
    for (int i = 0; i < 4; i++) {
      uint32_t pair = w->a[EMU_WARP * warp + lane][i];
      float *to = &a[lane / 4 + 8 * (i % 2)][2 * (lane % 4) + 8 * (i / 2)];
      to[0] = convert((uint16_t)pair, w->op.format);
      to[1] = convert((uint16_t)(pair >> 16), w->op.format);
    }
}

/* Eight elements that lie together. */
static void load_chunk(const matrix *m, int row, int chunk, int format, float out[8]) {
  uint16_t bits[8];
  memcpy(bits, machine.arena + matrix_chunk(m, row, chunk), sizeof bits);
  for (int i = 0; i < 8; i++)
    out[i] = convert(bits[i], format);
}

static void load_a(const matrix *m, int warp, int format, float a[16][16]) {
  float eight[8];
  if (m->mn_major) {
    for (int k = 0; k < 16; k++)
      for (int row = 0; row < 16; row += 8) {
        load_chunk(m, k, 2 * warp + row / 8, format, eight);
        for (int i = 0; i < 8; i++)
          a[row + i][k] = eight[i];
      }
    return;
  }
  for (int row = 0; row < 16; row++)
    for (int chunk = 0; chunk < 2; chunk++)
      load_chunk(m, 16 * warp + row, chunk, format, &a[row][8 * chunk]);
}

static void load_b(const matrix *m, const emu_wgmma *op, float b[16][MAX_N]) {
  float chunk[8];
  if (op->b_transposed) {
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < op->n; n += 8)
        load_chunk(m, k, n / 8, op->format, &b[k][n]);
    return;
  }
  for (int n = 0; n < op->n; n++)
    for (int k = 0; k < 16; k += 8) {
      load_chunk(m, n, k / 8, op->format, chunk);
      for (int i = 0; i < 8; i++)
        b[k + i][n] = chunk[i];
    }
}

static void multiply(float *restrict d, float a[16][16], float b[16][MAX_N], int n) {
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++) {
      float factor = a[row][k], *restrict to = d + row * n;
      const float *restrict from = b[k];
      for (int i = 0; i < n; i++)
        to[i] += factor * from[i];
    }
}

/* Runs the oldest wgmma, which all warps have issued. */
static void execute(warpgroup *g) {
  static float b[16][MAX_N];
  float a[16][16];
  const wgmma *w = &g->ring[g->executed++ % RING];
  const emu_wgmma *op = &w->op;
  matrix ma = matrix_decode(op->a, op->a_transposed), mb = matrix_decode(op->b, op->b_transposed);
  load_b(&mb, op, b);
  for (int warp = 0; warp < WARPS; warp++) {
    bank *accumulators = &g->banks[warp][w->bank[warp]];
    if (!op->accumulate)
      memset(accumulators->values, 0, 16 * (size_t)op->n * sizeof(float));
    if (w->from_registers)
      unpack_registers(w, warp, a);
    else
      load_a(&ma, warp, op->format, a);
    multiply(accumulators->values, a, b, op->n);
  }
}

static bool can_execute(const warpgroup *g) {
  for (int w = 0; w < WARPS; w++)
    if (g->issued[w] == g->executed)
      return false;
  return true;
}

/* ---- Issue ---- */

static void check_lanes(const emu_wgmma *op, int first) {
  for (int lane = 1; lane < EMU_WARP; lane++) {
    const emu_wgmma *other = collective_operands(first + lane)->wgmma;
    if (other->a != op->a || other->b != op->b || !other->accumulate != !op->accumulate)
      fault_raise(EMU_FAULT_DIVERGENT, "the lanes of a warp issue wgmma with different operands");
  }
}

/* The warp's next wgmma: as another warp of the warpgroup has issued it, or a new one. */
static wgmma *match(warpgroup *g, int warp, const emu_wgmma *op) {
  uint32_t number = g->issued[warp];
  bool is_new = true;
  for (int w = 0; w < WARPS; w++)
    is_new = is_new && g->issued[w] <= number;
  if (number - g->executed >= RING)
    fault_raise(EMU_FAULT_MEMORY, "the emulator has %d wgmma in flight a warpgroup", (int)RING);
  wgmma *w = &g->ring[number % RING];
  if (is_new) {
    w->op = *op;
    w->from_registers = op->a_registers != NULL;
    w->group = g->commits[warp];
    w->issued = 0;
  }
  if (w->op.n != op->n || w->op.format != op->format || w->op.a_transposed != op->a_transposed ||
      w->op.b_transposed != op->b_transposed || w->op.a != op->a ||
      w->op.b != op->b || !w->op.accumulate != !op->accumulate || w->from_registers != (op->a_registers != NULL))
    fault_raise(EMU_FAULT_DIVERGENT, "wgmma number %u of warp %d differs from that of the other warps of its warpgroup",
                (unsigned)number, warp);
  if (w->group != g->commits[warp])
    fault_raise(EMU_FAULT_DIVERGENT, "wgmma number %u is in group %u of warp %d, in group %u of the others",
                (unsigned)number, (unsigned)g->commits[warp], warp, (unsigned)w->group);
  w->issued |= 1 << warp;
  g->issued[warp]++;
  return w;
}

static void take_operands(warpgroup *g, wgmma *w, int warp, int first) {
  int n = w->op.n, found = find_bank(g->banks[warp], first, n);
  for (int lane = 0; lane < EMU_WARP; lane++) {
    emu_thread *thread = &machine.threads[first + lane];
    const emu_wgmma *op = collective_operands(first + lane)->wgmma;
    if (!thread->fenced)
      fault_raise(EMU_FAULT_FENCE, "wgmma before any wgmma_fence");
    take_registers(thread, op->d, n / 2 * (int)sizeof(float), w->group);
    if (!op->a_registers)
      continue;
    take_registers(thread, op->a_registers, 4 * (int)sizeof(uint32_t), w->group);
    memcpy(w->a[EMU_WARP * warp + lane], op->a_registers, 4 * sizeof(uint32_t));
  }
  w->bank[warp] = found >= 0 ? found : fill_bank(g->banks[warp], first, n);
  g->banks[warp][w->bank[warp]].group = w->group;
}

static void wake_waiting(int first) {
  int leader = first / EMU_WARPGROUP * EMU_WARPGROUP;
  for (int t = leader; t < leader + EMU_WARPGROUP; t++)
    if (machine.threads[t].at_wgmma) {
      machine.threads[t].at_wgmma = false;
      machine_wake(t);
    }
}

void wgmma_issue(int first) {
  warpgroup *g = get_group(first);
  const emu_wgmma *op = collective_operands(first)->wgmma;
  int warp = first / EMU_WARP % WARPS;
  check_lanes(op, first);
  wgmma *w = match(g, warp, op);
  take_operands(g, w, warp, first);

  emu_actor actor = {.row = clock_warp_row(first),
                     .agent = g->engine,
                     .block = machine_place(),
                     .time = w->group + 1,
                     .proxy = PROXY_ASYNC,
                     .name = "wgmma"};
  if (!w->from_registers) {
    matrix a = matrix_decode(op->a, op->a_transposed);
    if (op->a_transposed)
      matrix_read(&a, &actor, "A", 0, 16, 2 * warp, 2);
    else
      matrix_read(&a, &actor, "A", 16 * warp, 16, 0, 2);
  }
  matrix b = matrix_decode(op->b, op->b_transposed);
  if (op->b_transposed)
    matrix_read(&b, &actor, "B", 0, 16, 0, op->n / 8);
  else
    matrix_read(&b, &actor, "B", 0, op->n, 0, 2);

  wake_waiting(first);
  if (machine.launch->policy == EMU_RANDOM && !machine_random(4) && can_execute(g))
    execute(g);
}

void wgmma_commit(int first) {
  get_group(first)->commits[first / EMU_WARP % WARPS]++;
}

/* ---- Wait ---- */

/* How many wgmma of the warp are in groups below the limit. */
static uint32_t issued_below(const warpgroup *g, int warp, uint32_t limit) {
  uint32_t end = g->executed;
  while (end < g->issued[warp] && g->ring[end % RING].group < limit)
    end++;
  return end;
}

void wgmma_wait(int groups_left) {
  int me = machine.current, warp = me / EMU_WARP % WARPS, lane = me % EMU_WARP;
  warpgroup *g = get_group(me);
  emu_thread *thread = &machine.threads[me];
  uint32_t commits = g->commits[warp];
  uint32_t limit = commits > (uint32_t)groups_left ? commits - (uint32_t)groups_left : 0;
  while (g->executed < issued_below(g, warp, limit)) {
    if (can_execute(g)) {
      execute(g);
      continue;
    }
    thread->at_wgmma = true;
    machine_wait();
  }
  for (int i = 0; i < BANKS; i++) {
    bank *b = &g->banks[warp][i];
    if (b->held >> lane & 1 && b->group < limit)
      empty_bank(b, lane);
  }
  give_back_registers(thread, limit);
  clock_learn(me, g->engine, limit);
}

void wgmma_thread_done(int t) {
  if (machine.threads[t].lock_count)
    fault_raise(EMU_FAULT_IN_FLIGHT, "the thread ends before it has waited for its wgmma");
}
