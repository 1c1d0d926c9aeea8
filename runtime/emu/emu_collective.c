/* emu_collective.c: what the 32 lanes of a warp do together. Each lane leaves its operands and waits; the last one to
 * come computes for all. Lanes that meet in different instructions, or without a lane that has ended or waits at a
 * barrier, are an error: the hardware's behaviour is undefined then. */
#include <stdio.h>

#include "engine.h"
#include "formats.h"

const char *collective_name(emu_collective kind) {
  static const char *const names[] = {"shuffle_xor", "shuffle",      "vote_any",     "warp_sync",
                                      "ldmatrix",    "mma_m16n8k16", "stmatrix",     "setmaxnreg",
                                      "wgmma",       "wgmma_fence",  "wgmma_commit", "wgmma_wait"};
  return names[kind];
}

/* ---- Meeting ---- */

static void check_company(const emu_operands *mine, int first, const emu_warp *warp) {
  const char *name = collective_name(mine->kind);
  if (warp->done)
    fault_raise(EMU_FAULT_DIVERGENT, "this lane is in %s, but lanes 0x%08x of its warp have ended", name,
                (unsigned)warp->done);
  if (warp->barrier)
    fault_raise(EMU_FAULT_DIVERGENT, "this lane is in %s, but lanes 0x%08x of its warp wait at a barrier", name,
                (unsigned)warp->barrier);
  if (warp->lanes != UINT32_MAX)
    fault_raise(EMU_FAULT_DIVERGENT, "%s in a warp with lanes 0x%08x only", name, (unsigned)warp->lanes);
  if (!warp->collective)
    return;
  const emu_operands *other = machine.threads[first + __builtin_ctz(warp->collective)].operands;
  if (other->kind != mine->kind)
    fault_raise(EMU_FAULT_DIVERGENT, "this lane is in %s, but lanes 0x%08x of its warp are in %s", name,
                (unsigned)warp->collective, collective_name(other->kind));
  if (other->variant != mine->variant)
    fault_raise(EMU_FAULT_DIVERGENT, "this lane is in another variant of %s than lanes 0x%08x of its warp", name,
                (unsigned)warp->collective);
}

static void compute(int first);

/* Waits until all lanes of the warp are here; the last one computes for all. */
static void meet(emu_operands *mine) {
  int me = machine.current, first = me / EMU_WARP * EMU_WARP;
  emu_warp *warp = machine_warp(me);
  check_company(mine, first, warp);
  machine.threads[me].operands = mine;
  warp->collective |= 1u << (me - first);
  if (warp->collective != UINT32_MAX) {
    machine_wait();
    return;
  }
  compute(first);
  warp->collective = 0;
  for (int lane = 0; lane < EMU_WARP; lane++)
    if (first + lane != me)
      machine_wake(first + lane);
}

const emu_operands *collective_operands(int thread) {
  return machine.threads[thread].operands;
}

static emu_operands *lane_operands(int first, int lane) {
  return machine.threads[first + lane].operands;
}

/* ---- What is computed ---- */

static void shuffle(int first, bool by_xor) {
  uint32_t values[EMU_WARP];
  for (int lane = 0; lane < EMU_WARP; lane++)
    values[lane] = lane_operands(first, lane)->value;
  for (int lane = 0; lane < EMU_WARP; lane++) {
    emu_operands *o = lane_operands(first, lane);
    o->value = values[(by_xor ? lane ^ o->argument : o->argument) & (EMU_WARP - 1)];
  }
}

static void vote_any(int first) {
  uint32_t any = 0;
  for (int lane = 0; lane < EMU_WARP; lane++)
    any |= lane_operands(first, lane)->value;
  for (int lane = 0; lane < EMU_WARP; lane++)
    lane_operands(first, lane)->value = any;
}

static void sync_warp(int first) {
  int members[EMU_WARP];
  for (int lane = 0; lane < EMU_WARP; lane++)
    members[lane] = first + lane;
  clock_join(members, EMU_WARP, -1);
}

/* Matrix m has its eight 16-byte rows where lanes 8m to 8m+7 say. Lane l gets the pair at row l/4, columns 2(l%4) and
 * the next; transposed: at column l/4, rows 2(l%4) and the next. */
static void ldmatrix(int first) {
  int variant = lane_operands(first, 0)->variant, count = variant / 2;
  bool transposed = variant % 2;
  int me = machine.current;
  uint16_t rows[EMU_WARP][8];
  for (int lane = 0; lane < 8 * count; lane++) {
    machine.current = first + lane; /* each row is read by the lane that names it */
    uint32_t offset = effect_shared(lane_operands(first, lane)->address, 16, 16, "ldmatrix");
    emu_actor actor = shadow_thread(first + lane, "ldmatrix");
    shadow_read(&actor, offset, 16);
    __builtin_memcpy(rows[lane], machine.arena + offset, 16);
  }
  machine.current = me;
  for (int lane = 0; lane < EMU_WARP; lane++)
    for (int m = 0; m < count; m++) {
      int a = lane / 4, b = 2 * (lane % 4);
      uint32_t low = transposed ? rows[8 * m + b][a] : rows[8 * m + a][b];
      uint32_t high = transposed ? rows[8 * m + b + 1][a] : rows[8 * m + a][b + 1];
      lane_operands(first, lane)->out[m] = low | high << 16;
    }
}

/* The inverse. Each row is written by the lane that names it. */
static void stmatrix(int first) {
  int variant = lane_operands(first, 0)->variant, count = variant / 2;
  bool transposed = variant % 2;
  int me = machine.current;
  for (int row = 0; row < 8 * count; row++) {
    uint16_t elements[8];
    for (int i = 0; i < 8; i++) {
      int lane = transposed ? 4 * i + row % 8 / 2 : 4 * (row % 8) + i / 2, half = transposed ? row % 2 : i % 2;
      elements[i] = (uint16_t)(lane_operands(first, lane)->a[row / 8] >> 16 * half);
    }
    machine.current = first + row;
    uint32_t offset = effect_shared(lane_operands(first, row)->address, 16, 16, "stmatrix");
    emu_actor actor = shadow_thread(first + row, "stmatrix");
    shadow_write(&actor, offset, 16);
    __builtin_memcpy(machine.arena + offset, elements, 16);
  }
  machine.current = me;
}

static void set_registers(int first) {
  const emu_operands *o = lane_operands(first, 0);
  emu_warp *warp = machine_warp(first);
  int now = warp->registers, wanted = o->argument;
  bool increase = o->value;
  if (wanted % 8 || wanted < 24 || wanted > 256)
    fault_raise(EMU_FAULT_REGISTERS, "%d registers a thread: must be a multiple of 8 from 24 to 256", wanted);
  if (now && (increase ? wanted < now : wanted > now))
    fault_raise(EMU_FAULT_REGISTERS, "%s from %d to %d registers a thread", increase ? "an increase" : "a decrease",
                now, wanted);
  warp->registers = wanted;
  warp->register_changes++;
}

/* What warps give and take lies in the block's own pool: what its threads have at launch, at most 65536 together, in
 * steps of 8 a thread. An increase that the pool cannot serve waits for ever. */
void collective_check_registers(int block) {
  const emu_warp *first = machine_warp(machine_first(block));
  int warps = (machine.launch->block + EMU_WARP - 1) / EMU_WARP, sum = 0;
  int at_launch = 65536 / (EMU_WARP * warps) / 8 * 8, pool = EMU_WARP * warps * (at_launch < 256 ? at_launch : 256);
  for (int w = 0; w < warps; w++) {
    const emu_warp *warp = &first[w], *leader = &first[w / 4 * 4];
    sum += EMU_WARP * warp->registers;
    if (warp->registers != leader->registers || warp->register_changes != leader->register_changes) {
      fault_block(block, EMU_FAULT_REGISTERS, "warps %d and %d are of one warpgroup but ask for %d and %d registers",
                  w / 4 * 4, w, leader->registers, warp->registers);
      return;
    }
  }
  if (sum > pool)
    fault_block(block, EMU_FAULT_REGISTERS, "the warpgroups end with %d registers together; the block has %d", sum,
                pool);
}

static void unpack(uint32_t pair, int format, float *low, float *high) {
  *low = format ? format_from_bf16((uint16_t)pair) : format_from_f16((uint16_t)pair);
  *high = format ? format_from_bf16((uint16_t)(pair >> 16)) : format_from_f16((uint16_t)(pair >> 16));
}

/* With g = lane / 4 and t = lane % 4: a[0..3] are rows g, g+8, g, g+8 and columns 2t (+8 for the last two) of A 16x16;
 * b[0..1] are rows 2t (+8) and column g of B 16x8; c and d are rows g, g, g+8, g+8 and columns 2t, 2t+1. */
static void mma(int first, int format) {
  float a[16][16], b[8][16]; /* b by columns */
  for (int lane = 0; lane < EMU_WARP; lane++) {
    const emu_operands *o = lane_operands(first, lane);
    int g = lane / 4, t = 2 * (lane % 4);
    for (int i = 0; i < 4; i++) {
      float *pair = &a[g + 8 * (i % 2)][t + 8 * (i / 2)];
      unpack(o->a[i], format, pair, pair + 1);
    }
    for (int i = 0; i < 2; i++)
      unpack(o->b[i], format, &b[g][t + 8 * i], &b[g][t + 8 * i + 1]);
  }
  for (int lane = 0; lane < EMU_WARP; lane++) {
    const emu_operands *o = lane_operands(first, lane);
    for (int i = 0; i < 4; i++) {
      const float *row = a[lane / 4 + 8 * (i / 2)], *column = b[2 * (lane % 4) + i % 2];
      float sum = o->c[i];
      for (int k = 0; k < 16; k++)
        sum += row[k] * column[k];
      o->d[i] = sum;
    }
  }
}

static void compute(int first) {
  const emu_operands *any = lane_operands(first, 0);
  switch (any->kind) {
  case EMU_SHUFFLE_XOR:
    shuffle(first, true);
    break;
  case EMU_SHUFFLE_INDEX:
    shuffle(first, false);
    break;
  case EMU_VOTE_ANY:
    vote_any(first);
    break;
  case EMU_SYNC_WARP:
    sync_warp(first);
    break;
  case EMU_LDMATRIX:
    ldmatrix(first);
    break;
  case EMU_MMA:
    mma(first, any->variant);
    break;
  case EMU_STMATRIX:
    stmatrix(first);
    break;
  case EMU_REGISTERS:
    set_registers(first);
    break;
  case EMU_WGMMA:
    wgmma_issue(first);
    break;
  case EMU_WGMMA_FENCE:
    wgmma_fence(first);
    break;
  case EMU_WGMMA_COMMIT:
    wgmma_commit(first);
    break;
  case EMU_WGMMA_WAIT:
    break;
  }
}

/* ---- Entries of the api: their return address is a place in the kernel ---- */

uint32_t collective_shuffle_xor(uint32_t value, int lane_mask) {
  emu_operands o = {.kind = EMU_SHUFFLE_XOR, .value = value, .argument = lane_mask};
  meet(&o);
  return o.value;
}

uint32_t collective_shuffle_index(uint32_t value, int source_lane) {
  emu_operands o = {.kind = EMU_SHUFFLE_INDEX, .value = value, .argument = source_lane};
  meet(&o);
  return o.value;
}

int collective_vote_any(int predicate) {
  emu_operands o = {.kind = EMU_VOTE_ANY, .value = predicate != 0};
  meet(&o);
  return (int)o.value;
}

void collective_sync(void) {
  emu_operands o = {.kind = EMU_SYNC_WARP};
  meet(&o);
}

void collective_ldmatrix(uint32_t *out, int count, int transposed, uint32_t address) {
  emu_operands o = {.kind = EMU_LDMATRIX, .variant = 2 * count + (transposed != 0), .address = address, .out = out};
  meet(&o);
}

void collective_mma(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], int format) {
  emu_operands o = {.kind = EMU_MMA, .variant = format != 0, .d = d, .a = a, .b = b, .c = c};
  meet(&o);
}

void collective_stmatrix(uint32_t address, const uint32_t *r, int count, int transposed) {
  emu_operands o = {.kind = EMU_STMATRIX, .variant = 2 * count + (transposed != 0), .address = address, .a = r};
  meet(&o);
}

void collective_registers(int count, int increase) {
  emu_operands o = {
      .kind = EMU_REGISTERS, .variant = 2 * count + (increase != 0), .value = increase != 0, .argument = count};
  meet(&o);
}

/* A warp in a block without whole warpgroups has nobody to work with. */
static void check_warpgroup(void) {
  int me = machine_index(machine.current);
  if (me / EMU_WARPGROUP * EMU_WARPGROUP + EMU_WARPGROUP > machine.launch->block)
    fault_raise(EMU_FAULT_DIVERGENT, "wgmma by thread %d of a block of %d: its warpgroup is not complete", me,
                machine.launch->block);
}

void collective_wgmma(const emu_wgmma *op) {
  check_warpgroup();
  int variant = 8 * op->n + 4 * (op->a_registers != NULL) + 2 * (op->format != 0) + (op->b_transposed != 0);
  emu_operands o = {.kind = EMU_WGMMA, .variant = variant, .wgmma = op};
  meet(&o);
}

void collective_wgmma_fence(void) {
  check_warpgroup();
  emu_operands o = {.kind = EMU_WGMMA_FENCE};
  meet(&o);
}

void collective_wgmma_commit(void) {
  check_warpgroup();
  emu_operands o = {.kind = EMU_WGMMA_COMMIT};
  meet(&o);
}

void collective_wgmma_wait(int groups_left) {
  check_warpgroup();
  emu_operands o = {.kind = EMU_WGMMA_WAIT, .variant = groups_left};
  meet(&o);
  wgmma_wait(groups_left);
}
