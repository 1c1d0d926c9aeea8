/* kernel_sm80.h: twins of the primitives of templates/prim that every GPU from sm_80 on has: shared memory, cp.async,
 * matrices in fragments, warps, barriers of a block, atomics. Their order and effects are the emulator's. */
#ifndef RUNTIME_EMU_KERNEL_SM80_H
#define RUNTIME_EMU_KERNEL_SM80_H

#include "kernel_cuda.h"

/* ---- Shared memory ---- */

EMU_PURE unsigned char *shared_arena() {
  return emu->shared();
}
/* A pointer outside the arena gives 0, which no primitive takes. */
EMU_PURE unsigned smem_addr(const void *pointer) {
  unsigned long offset = (unsigned long)pointer - (unsigned long)emu->shared();
  return offset <= EMU_SHARED_MAX ? (unsigned)offset + EMU_SHARED_BASE : 0u;
}

/* ---- Copies ---- */

EMU_TWIN void cp_async_16(unsigned to, const void *from) {
  EMU_CALL(cp_async)(to, from, 16, 16);
}
EMU_TWIN void cp_async_16_zfill(unsigned to, const void *from, int source_bytes) {
  EMU_CALL(cp_async)(to, from, 16, source_bytes);
}
EMU_TWIN uint4 load_16_zfill(const void *from, bool reads) {
  if (!reads)
    return uint4{0u, 0u, 0u, 0u};
  EMU_CALL(access)(from, 16, 0);
  return *(const uint4 *)from;
}
EMU_TWIN void cp_async_commit() {
  EMU_CALL(cp_async_commit)();
}
EMU_TWIN void cp_async_wait_0() {
  EMU_CALL(cp_async_wait)(0);
}
EMU_TWIN void cp_async_wait_1() {
  EMU_CALL(cp_async_wait)(1);
}
EMU_TWIN void cp_async_wait_2() {
  EMU_CALL(cp_async_wait)(2);
}
EMU_TWIN void cp_async_wait_3() {
  EMU_CALL(cp_async_wait)(3);
}
EMU_TWIN void cp_async_wait_4() {
  EMU_CALL(cp_async_wait)(4);
}
EMU_TWIN void cp_async_wait_5() {
  EMU_CALL(cp_async_wait)(5);
}
EMU_TWIN void cp_async_wait_6() {
  EMU_CALL(cp_async_wait)(6);
}
EMU_TWIN void cp_async_wait_7() {
  EMU_CALL(cp_async_wait)(7);
}

/* ---- Matrices in fragments ---- */

EMU_TWIN void ldmatrix_x1(unsigned *r, unsigned address) {
  EMU_CALL(ldmatrix)(r, 1, 0, address);
}
EMU_TWIN void ldmatrix_x2(unsigned *r, unsigned address) {
  EMU_CALL(ldmatrix)(r, 2, 0, address);
}
EMU_TWIN void ldmatrix_x4(unsigned *r, unsigned address) {
  EMU_CALL(ldmatrix)(r, 4, 0, address);
}
EMU_TWIN void ldmatrix_x1_trans(unsigned *r, unsigned address) {
  EMU_CALL(ldmatrix)(r, 1, 1, address);
}
EMU_TWIN void ldmatrix_x2_trans(unsigned *r, unsigned address) {
  EMU_CALL(ldmatrix)(r, 2, 1, address);
}
EMU_TWIN void ldmatrix_x4_trans(unsigned *r, unsigned address) {
  EMU_CALL(ldmatrix)(r, 4, 1, address);
}

#define EMU_MMA(name, format)                                                                                          \
  EMU_TWIN void name(float *d, const unsigned *a, unsigned b0, unsigned b1) {                                          \
    const uint32_t b[2] = {b0, b1};                                                                                    \
    EMU_CALL(mma_m16n8k16)(d, a, b, d, format);                                                                        \
  }
EMU_MMA(mma_m16n8k16_f16, 0)
EMU_MMA(mma_m16n8k16_bf16, 1)
#undef EMU_MMA

/* ---- Between lanes ---- */

EMU_TWIN unsigned shuffle_xor_b32(unsigned value, int lane_mask) {
  return EMU_CALL(shuffle_xor)(value, lane_mask);
}
EMU_TWIN float shuffle_xor_f32(float value, int lane_mask) {
  return format_float(EMU_CALL(shuffle_xor)(format_bits(value), lane_mask));
}
EMU_TWIN float shuffle_f32(float value, int lane) {
  return format_float(EMU_CALL(shuffle_index)(format_bits(value), lane));
}
EMU_TWIN int shuffle_i32(int value, int lane) {
  return (int)EMU_CALL(shuffle_index)((unsigned)value, lane & 31);
}
EMU_TWIN int warp_uniform(int value) {
  return (int)EMU_CALL(shuffle_index)((unsigned)value, 0);
}
EMU_TWIN int vote_any(int predicate) {
  return EMU_CALL(vote_any)(predicate);
}
EMU_TWIN unsigned warp_or_i32(unsigned value) {
  for (int mask = 16; mask; mask /= 2)
    value |= EMU_CALL(shuffle_xor)(value, mask);
  return value;
}
EMU_TWIN int warp_add_i32(int value) {
  for (int mask = 16; mask; mask /= 2)
    value = (int)((unsigned)value + EMU_CALL(shuffle_xor)((unsigned)value, mask));
  return value;
}
EMU_TWIN int warp_min_i32(int value) {
  for (int mask = 16; mask; mask /= 2) {
    const int other = (int)EMU_CALL(shuffle_xor)((unsigned)value, mask);
    value = other < value ? other : value;
  }
  return value;
}
EMU_TWIN int warp_max_i32(int value) {
  return ~warp_min_i32(~value);
}
EMU_TWIN unsigned vote_ballot(int predicate) {
  return warp_or_i32(predicate ? 1u << emu_thread_index().x % 32 : 0u);
}

/* ---- Barriers of a warp and a block ---- */

EMU_TWIN void warp_sync() {
  EMU_CALL(warp_barrier)();
}
EMU_TWIN void block_sync() {
  EMU_CALL(block_barrier)(0, emu->block_size());
}
EMU_TWIN void bar_sync(int id, int threads) {
  EMU_CALL(block_barrier)(id, threads);
}
EMU_TWIN int bar_or(int id, int threads, int predicate) {
  return EMU_CALL(bar_or)(id, threads, predicate);
}
EMU_TWIN void bar_arrive(int id, int threads) {
  EMU_CALL(bar_arrive)(id, threads);
}

/* ---- Between blocks and grids ---- */

EMU_TWIN int atomic_add_i32(int *p, int v) {
  return EMU_CALL(atomic_add)(p, v, 0);
}
EMU_TWIN int atomic_add_i32_acq_rel(int *p, int v) {
  return EMU_CALL(atomic_add)(p, v, 1);
}
EMU_TWIN unsigned atomic_wrap_u32(unsigned *p, unsigned last) {
  return EMU_CALL(atomic_wrap)(p, last);
}
EMU_TWIN void fence_acq_rel_gpu() {
  EMU_CALL(fence_gpu)();
}
EMU_TWIN void grid_dependency_wait() {
  EMU_CALL(dependency_wait)();
}
EMU_TWIN void grid_dependency_release() {}

#endif
