/* emu.h: the contract between a generated kernel compiled by g++ and the emulator inside libqkv.
 *
 * Two sides include this header:
 *   - the emulator (runtime/emu/emu_*.c, plain C), which implements emu_api;
 *   - runtime/emu/kernel.h and its parts kernel_*.h, which define the CUDA keywords away, turn every primitive of
 * templates/prim into a call through emu_api, and forward the compiler's access callbacks (-fsanitize=thread) to it.
 *
 * A kernel is a shared object that exports `qkv_emu_bind` (receives the api) and its extern "C" entries. GPU threads
 * are fibers on one OS thread; a fiber runs until it waits at a barrier or a collective. Shared memory is one arena per
 * block, at the same addresses in all of them; shared addresses (the result of smem_addr) are 32-bit offsets from the arena's start plus EMU_SHARED_BASE. */
#ifndef RUNTIME_EMU_H
#define RUNTIME_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  EMU_ABI = 6,
  EMU_SHARED_BASE = 1024, /* shared addresses start here, so that 0 is never valid */
  EMU_SHARED_MAX = 256 * 1024
};

/* Kinds of collectives of a warp. All 32 lanes must meet in the same one, else "divergent collective". */
typedef enum emu_collective {
  EMU_SHUFFLE_XOR,
  EMU_SHUFFLE_INDEX,
  EMU_VOTE_ANY,
  EMU_SYNC_WARP,
  EMU_LDMATRIX,
  EMU_MMA,
  EMU_STMATRIX,
  EMU_REGISTERS,
  EMU_WGMMA,
  EMU_WGMMA_FENCE,
  EMU_WGMMA_COMMIT,
  EMU_WGMMA_WAIT
} emu_collective;

/* One wgmma m64nNk16, f32 accumulation, as a lane issues it. a_registers NULL: A is in shared memory. */
typedef struct emu_wgmma {
  int n, format;    /* format 0: f16, 1: bf16 */
  int a_transposed, b_transposed; /* A, B is MN-major */
  int accumulate;
  uint64_t a, b; /* descriptors */
  const uint32_t *a_registers;
  float *d; /* n / 2 */
} emu_wgmma;

typedef struct emu_api {
  int abi;
  /* Geometry of the running thread. */
  int (*thread_index)(void);
  int64_t (*block_index)(void);
  int (*block_size)(void);
  int64_t (*grid_size)(void);
  unsigned char *(*shared)(void); /* start of the arena */

  /* Where in the kernel the call below comes from (a return address), for reports. Stored before every call that can
   * fail. */
  const void **pc;

  /* Every plain load and store of the kernel, before it happens. write: 0 or 1. */
  void (*access)(const void *address, int bytes, int write);

  /* Barriers. */
  void (*block_barrier)(int id, int threads); /* bar.sync id, threads; id 0 with the block size: __syncthreads */
  int (*bar_or)(int id, int threads, int predicate); /* bar.sync that tells whether the predicate held anywhere */
  void (*bar_arrive)(int id, int threads);
  void (*warp_barrier)(void);
  int (*cluster_rank)(void);
  void (*cluster_arrive)(void);
  void (*cluster_wait)(void);
  void (*load_remote)(uint32_t address, void *to, int bytes, int cta); /* from shared memory of a block of the cluster */
  void (*store_remote)(uint32_t address, uint32_t value, int cta); /* into shared memory of a block of the cluster */

  /* Collectives: each lane passes its operand, gets its result. */
  uint32_t (*shuffle_xor)(uint32_t value, int lane_mask);
  uint32_t (*shuffle_index)(uint32_t value, int source_lane);
  int (*vote_any)(int predicate);
  /* count 1, 2, 4 matrices of 8x8 b16; address is this lane's row address. */
  void (*ldmatrix)(uint32_t *out, int count, int transposed, uint32_t address);
  /* d = a * b + c, m16n8k16, f32 accumulate. format 0: f16, 1: bf16. */
  void (*mma_m16n8k16)(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], int format);

  /* cp.async: `bytes` 4, 8 or 16 to shared; only the first source_bytes are read, the rest is zero. Lands when a wait
   * of this thread covers its group, or earlier, in seeded order. */
  void (*cp_async)(uint32_t to, const void *from, int bytes, int source_bytes);
  void (*cp_async_commit)(void);
  void (*cp_async_wait)(int groups_left); /* all but the newest groups_left groups have landed */

  /* sm_90. Shared addresses, mbarriers too, are 32-bit. */
  void (*stmatrix)(uint32_t address, const uint32_t *r, int count, int transposed);
  void (*registers)(int count, int increase); /* setmaxnreg */
  int32_t (*atomic_add)(int32_t *p, int32_t v, int orders); /* orders: releases and acquires */
  uint32_t (*atomic_wrap)(uint32_t *p, uint32_t last);
  void (*fence_gpu)(void);
  void (*dependency_wait)(void); /* griddepcontrol.wait */

  void (*fence_proxy_async)(void);
  void (*mbar_init)(uint32_t mbar, int count);
  void (*mbar_fence)(void);
  void (*mbar_arrive)(uint32_t mbar, int bytes); /* bytes: of expect_tx, 0 without */
  void (*mbar_arrive_remote)(uint32_t mbar, int cta);
  void (*mbar_wait)(uint32_t mbar, int parity, int cluster); /* cluster: acquires from the whole cluster */

  /* Tensor copies: `map` is what the device's tensor_map op encoded; rank coordinates. cta_mask 0: to the own block;
   * else to each of these blocks of the cluster. */
  void (*tma_prefetch)(const void *map);
  void (*tma_load)(uint32_t to, const void *map, uint32_t mbar, int rank, const int *coordinates, int cta_mask);
  void (*tma_store)(const void *map, uint32_t from, int rank, const int *coordinates);
  void (*bulk_load)(uint32_t to, const void *from, int bytes, uint32_t mbar);
  void (*bulk_commit)(void);
  void (*bulk_wait)(int groups_left, int reads_only);

  void (*wgmma)(const emu_wgmma *op);
  void (*wgmma_fence)(void);
  void (*wgmma_commit)(void);
  void (*wgmma_wait)(int groups_left);
} emu_api;

#ifdef __cplusplus
}
#endif
#endif
