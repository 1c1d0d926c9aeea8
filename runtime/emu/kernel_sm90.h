/* kernel_sm90.h: twins of the primitives of templates/prim that Hopper has: clusters, barriers in shared memory, tensor
 * maps, wgmma, registers that move. */
#ifndef RUNTIME_EMU_KERNEL_SM90_H
#define RUNTIME_EMU_KERNEL_SM90_H

#include "kernel_cuda.h"

/* ---- Clusters ---- */

EMU_TWIN int cluster_rank() {
  return emu->cluster_rank();
}
EMU_TWIN void cluster_arrive() {
  EMU_CALL(cluster_arrive)();
}
EMU_TWIN void cluster_wait() {
  EMU_CALL(cluster_wait)();
}
EMU_TWIN float2 load_remote_f32x2(unsigned address, int cta) {
  float2 value;
  EMU_CALL(load_remote)(address, &value, sizeof value, cta);
  return value;
}
EMU_TWIN float4 load_remote_f32x4(unsigned address, int cta) {
  float4 value;
  EMU_CALL(load_remote)(address, &value, sizeof value, cta);
  return value;
}
EMU_TWIN void store_remote_u32(unsigned address, unsigned value, int cta) {
  EMU_CALL(store_remote)(address, value, cta);
}

/* ---- Fragments to matrices in shared memory ---- */

EMU_TWIN void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  const uint32_t r[4] = {r0, r1, r2, r3};
  EMU_CALL(stmatrix)(address, r, 4, 0);
}
EMU_TWIN void stmatrix_x4_trans(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  const uint32_t r[4] = {r0, r1, r2, r3};
  EMU_CALL(stmatrix)(address, r, 4, 1);
}
EMU_TWIN void stmatrix_x2(unsigned address, unsigned r0, unsigned r1) {
  const uint32_t r[2] = {r0, r1};
  EMU_CALL(stmatrix)(address, r, 2, 0);
}
EMU_TWIN void stmatrix_x2_trans(unsigned address, unsigned r0, unsigned r1) {
  const uint32_t r[2] = {r0, r1};
  EMU_CALL(stmatrix)(address, r, 2, 1);
}

/* ---- Proxies and barriers in shared memory ---- */

EMU_TWIN void fence_proxy_async() {
  EMU_CALL(fence_proxy_async)();
}
EMU_TWIN void mbar_init(unsigned mbar, int count) {
  EMU_CALL(mbar_init)(mbar, count);
}
EMU_TWIN void fence_mbar_init() {
  EMU_CALL(mbar_fence)();
}
EMU_TWIN void mbar_arrive(unsigned mbar) {
  EMU_CALL(mbar_arrive)(mbar, 0);
}
EMU_TWIN void mbar_arrive_expect_tx(unsigned mbar, int bytes) {
  EMU_CALL(mbar_arrive)(mbar, bytes);
}
EMU_TWIN void mbar_arrive_remote(unsigned mbar, int cta) {
  EMU_CALL(mbar_arrive_remote)(mbar, cta);
}
EMU_TWIN void mbar_wait(unsigned mbar, int parity) {
  EMU_CALL(mbar_wait)(mbar, parity, 0);
}
EMU_TWIN void mbar_wait_cluster(unsigned mbar, int parity) {
  EMU_CALL(mbar_wait)(mbar, parity, 1);
}

/* ---- Bulk and tensor copies ---- */

#define EMU_STRUCT(name) struct __attribute__((aligned(64))) name
EMU_STRUCT(tensor_map) {
  unsigned long long opaque[16];
};
EMU_TWIN void tma_prefetch(const tensor_map *map) {
  EMU_CALL(tma_prefetch)(map);
}
/* One definition a line and rank: the test of twins reads them. */
#define EMU_TMA(rank, parameters, ...)                                                                                 \
  EMU_TWIN void tma_load_##rank##d(unsigned to, const tensor_map *map, unsigned mbar, EMU_UNPACK parameters) {         \
    const int c[] = {__VA_ARGS__};                                                                                     \
    EMU_CALL(tma_load)(to, map, mbar, rank, c, 0);                                                                     \
  }                                                                                                                    \
  EMU_TWIN void tma_store_##rank##d(const tensor_map *map, unsigned from, EMU_UNPACK parameters) {                     \
    const int c[] = {__VA_ARGS__};                                                                                     \
    EMU_CALL(tma_store)(map, from, rank, c);                                                                           \
  }
#define EMU_UNPACK(...) __VA_ARGS__
EMU_TMA(2, (int c0, int c1), c0, c1)
EMU_TMA(3, (int c0, int c1, int c2), c0, c1, c2)
EMU_TMA(4, (int c0, int c1, int c2, int c3), c0, c1, c2, c3)
EMU_TMA(5, (int c0, int c1, int c2, int c3, int c4), c0, c1, c2, c3, c4)
#undef EMU_TMA
EMU_TWIN void tma_load_4d_evict_last(unsigned to, const tensor_map *map, unsigned mbar, int c0, int c1, int c2,
                                     int c3) {
  const int c[] = {c0, c1, c2, c3};
  EMU_CALL(tma_load)(to, map, mbar, 4, c, 0);
}
EMU_TWIN void tma_load_4d_multicast(unsigned to, const tensor_map *map, unsigned mbar, int c0, int c1, int c2, int c3,
                                    unsigned short cta_mask) {
  const int c[] = {c0, c1, c2, c3};
  EMU_CALL(tma_load)(to, map, mbar, 4, c, cta_mask);
}
EMU_TWIN void tma_load_4d_multicast_evict_last(unsigned to, const tensor_map *map, unsigned mbar, int c0, int c1,
                                               int c2, int c3, unsigned short cta_mask) {
  const int c[] = {c0, c1, c2, c3};
  EMU_CALL(tma_load)(to, map, mbar, 4, c, cta_mask);
}
EMU_TWIN void tma_load_5d_evict_last(unsigned to, const tensor_map *map, unsigned mbar, int c0, int c1, int c2, int c3,
                                     int c4) {
  const int c[] = {c0, c1, c2, c3, c4};
  EMU_CALL(tma_load)(to, map, mbar, 5, c, 0);
}
EMU_TWIN void tma_load_5d_multicast(unsigned to, const tensor_map *map, unsigned mbar, int c0, int c1, int c2, int c3,
                                    int c4, unsigned short cta_mask) {
  const int c[] = {c0, c1, c2, c3, c4};
  EMU_CALL(tma_load)(to, map, mbar, 5, c, cta_mask);
}
EMU_TWIN void tma_load_5d_multicast_evict_last(unsigned to, const tensor_map *map, unsigned mbar, int c0, int c1,
                                               int c2, int c3, int c4, unsigned short cta_mask) {
  const int c[] = {c0, c1, c2, c3, c4};
  EMU_CALL(tma_load)(to, map, mbar, 5, c, cta_mask);
}
EMU_TWIN void bulk_load(unsigned to, const void *from, int bytes, unsigned mbar) {
  EMU_CALL(bulk_load)(to, from, bytes, mbar);
}
EMU_TWIN void bulk_commit() {
  EMU_CALL(bulk_commit)();
}
EMU_TWIN void bulk_wait_read_0() {
  EMU_CALL(bulk_wait)(0, 1);
}
EMU_TWIN void bulk_wait_read_1() {
  EMU_CALL(bulk_wait)(1, 1);
}
EMU_TWIN void bulk_wait_0() {
  EMU_CALL(bulk_wait)(0, 0);
}

/* ---- wgmma, and registers that move ---- */

/* `steps` products of 16 columns of A: 4 registers each, or so many bytes, 32 in a K-major matrix. */
EMU_TWIN void emu_wgmma_steps(emu_wgmma op, int steps, int a_step, int b_step) {
  for (int k = 0; k < steps; k++) {
    EMU_CALL(wgmma)(&op);
    op.accumulate = 1;
    if (op.a_registers) op.a_registers += 4;
    else op.a += (unsigned)a_step >> 4;
    op.b += (unsigned)b_step >> 4;
  }
}
#define EMU_WGMMA_FORMS(n, name, format, steps)                                                                        \
  EMU_TWIN void name##_ss(float *d, unsigned long long a, unsigned long long b, int accumulate) {                      \
    emu_wgmma_steps({n, format, 0, 0, accumulate, a, b, nullptr, d}, steps, 32, 32);                                   \
  }                                                                                                                    \
  EMU_TWIN void name##_ss_t(float *d, unsigned long long a, unsigned long long b, int accumulate, int b_step = 0) {    \
    emu_wgmma_steps({n, format, 0, 1, accumulate, a, b, nullptr, d}, steps, 32, b_step);                               \
  }                                                                                                                    \
  EMU_TWIN void name##_ss_at(float *d, unsigned long long a, unsigned long long b, int accumulate, int a_step = 0) {   \
    emu_wgmma_steps({n, format, 1, 0, accumulate, a, b, nullptr, d}, steps, a_step, 32);                               \
  }                                                                                                                    \
  EMU_TWIN void name##_rs(float *d, const unsigned *a, unsigned long long b, int accumulate) {                         \
    emu_wgmma_steps({n, format, 0, 0, accumulate, 0, b, a, d}, steps, 32, 32);                                         \
  }                                                                                                                    \
  EMU_TWIN void name##_rs_t(float *d, const unsigned *a, unsigned long long b, int accumulate, int b_step = 0) {       \
    emu_wgmma_steps({n, format, 0, 1, accumulate, 0, b, a, d}, steps, 32, b_step);                                     \
  }
#define EMU_WGMMA_STEPS(n, depth, steps)                                                                               \
  EMU_WGMMA_FORMS(n, wgmma_m64n##n##k##depth##_f16, 0, steps)                                                          \
  EMU_WGMMA_FORMS(n, wgmma_m64n##n##k##depth##_bf16, 1, steps)
#define EMU_WGMMA(n)                                                                                                   \
  EMU_WGMMA_STEPS(n, 16, 1)                                                                                            \
  EMU_WGMMA_STEPS(n, 32, 2)                                                                                            \
  EMU_WGMMA_STEPS(n, 64, 4)                                                                                            \
  EMU_WGMMA_STEPS(n, 128, 8)
EMU_WGMMA(8)
EMU_WGMMA(16)
EMU_WGMMA(24)
EMU_WGMMA(32)
EMU_WGMMA(40)
EMU_WGMMA(48)
EMU_WGMMA(56)
EMU_WGMMA(64)
EMU_WGMMA(72)
EMU_WGMMA(80)
EMU_WGMMA(88)
EMU_WGMMA(96)
EMU_WGMMA(104)
EMU_WGMMA(112)
EMU_WGMMA(120)
EMU_WGMMA(128)
EMU_WGMMA(136)
EMU_WGMMA(144)
EMU_WGMMA(152)
EMU_WGMMA(160)
EMU_WGMMA(168)
EMU_WGMMA(176)
EMU_WGMMA(184)
EMU_WGMMA(192)
EMU_WGMMA(200)
EMU_WGMMA(208)
EMU_WGMMA(216)
EMU_WGMMA(224)
EMU_WGMMA(232)
EMU_WGMMA(240)
EMU_WGMMA(248)
EMU_WGMMA(256)
#undef EMU_WGMMA
#undef EMU_WGMMA_STEPS
#undef EMU_WGMMA_FORMS
EMU_TWIN void wgmma_fence() {
  EMU_CALL(wgmma_fence)();
}
EMU_TWIN void wgmma_commit() {
  EMU_CALL(wgmma_commit)();
}
EMU_TWIN void wgmma_wait_0() {
  EMU_CALL(wgmma_wait)(0);
}
EMU_TWIN void wgmma_wait_1() {
  EMU_CALL(wgmma_wait)(1);
}
EMU_TWIN void wgmma_wait_2() {
  EMU_CALL(wgmma_wait)(2);
}
EMU_PURE void keep_f32(float &) {}

#define EMU_REGISTERS(count)                                                                                           \
  EMU_TWIN void registers_increase_##count() {                                                                         \
    EMU_CALL(registers)(count, 1);                                                                                     \
  }                                                                                                                    \
  EMU_TWIN void registers_decrease_##count() {                                                                         \
    EMU_CALL(registers)(count, 0);                                                                                     \
  }
EMU_REGISTERS(24)
EMU_REGISTERS(32)
EMU_REGISTERS(40)
EMU_REGISTERS(48)
EMU_REGISTERS(56)
EMU_REGISTERS(64)
EMU_REGISTERS(72)
EMU_REGISTERS(80)
EMU_REGISTERS(88)
EMU_REGISTERS(96)
EMU_REGISTERS(104)
EMU_REGISTERS(112)
EMU_REGISTERS(120)
EMU_REGISTERS(128)
EMU_REGISTERS(136)
EMU_REGISTERS(144)
EMU_REGISTERS(152)
EMU_REGISTERS(160)
EMU_REGISTERS(168)
EMU_REGISTERS(176)
EMU_REGISTERS(184)
EMU_REGISTERS(192)
EMU_REGISTERS(200)
EMU_REGISTERS(208)
EMU_REGISTERS(216)
EMU_REGISTERS(224)
EMU_REGISTERS(232)
EMU_REGISTERS(240)
#undef EMU_REGISTERS

#endif
