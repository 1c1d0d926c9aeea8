/* arch.h: what the code generator knows of GPU architectures. One table; nothing else branches on names. */
#ifndef GEN_ARCH_H
#define GEN_ARCH_H

typedef struct arch {
  const char *name;   /* "sm_90a": the NVRTC target */
  int number;         /* 90 */
  int capability_major, capability_minor;
  int shared_per_block; /* bytes a block may opt in to */
  int shared_per_sm;
  int registers_per_sm; /* 32-bit */
  int threads_per_sm;
  int threads_per_block;
} arch;

/* All architectures, ascending; *count receives how many. */
const arch *arch_table(int *count);
/* By name: "sm_90a", also "sm_90", "90", "9.0". NULL when unknown. */
const arch *arch_find(const char *name);
/* The entry for a device's compute capability: the exact one, else the newest of the same major version that is not
 * newer than the device, else NULL. Targets like sm_90a run on exactly their capability, so only an exact match finds them. */
const arch *arch_for_capability(int major, int minor);

#endif
