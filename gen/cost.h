/* cost.h: what a schedule is expected to take: from counts that a family gives to seconds on a device. A model, not a
 * measurement: it says in which order schedules are worth trying. docs/tuning.md has its terms and its errors. Pure. */
#ifndef GEN_COST_H
#define GEN_COST_H

#include "arch.h"

/* The device's rates, as its driver tells them. */
typedef struct gen_device {
  int sm_count;
  double clock_hz;         /* of an SM, at most */
  double memory_bandwidth; /* bytes a second */
  double l2_bytes;
} gen_device;

/* The device that an architecture is best known by. */
gen_device cost_flagship(const arch *a);

/* What multiplies. */
typedef enum cost_unit { COST_WGMMA, COST_MMA, COST_FMA, COST_UNIT_COUNT } cost_unit;

/* Of one call with one schedule, all blocks together unless said otherwise. */
typedef struct cost_counts {
  cost_unit unit;
  double flops;        /* that the unit does, those of padding and of hidden pairs included */
  double exponentials; /* and whatever else takes as long */
  double shared_bytes; /* that products, loads and stores move between registers, tensor cores and shared memory */
  double l2_bytes;     /* that come from or go to L2 */
  double memory_bytes; /* that come from or go to device memory */
  double in_flight;    /* bytes on their way at a time; 0: enough */
  double overhead;     /* cycles in which an SM does nothing of the above, all SMs together */
  double overlap;      /* how the parts run together: 1 one after the other, large: all at once */
  double waves;        /* time of the fullest SM over the mean */
  double latency;      /* cycles that the longest block takes however fast everything is */
  double fixed;        /* seconds: starts of kernels, merges */
} cost_counts;

typedef struct gen_estimate {
  double seconds;
  double tensor, exponential, shared, memory; /* seconds that each part takes by itself, on all SMs evenly */
  double waves;
} gen_estimate;

/* seconds is at least the greatest of the terms, and no count that grows makes it smaller. */
gen_estimate cost_estimate(const cost_counts *c, const arch *a, const gen_device *d);

#endif
