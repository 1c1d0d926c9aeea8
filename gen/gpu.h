/* gpu.h: which GPU a schedule was measured on, and what that says of another one. */
#ifndef GEN_GPU_H
#define GEN_GPU_H

#include <stdint.h>

enum { GPU_NAME = 128, GPU_CLASS = 64 };

/* What a schedule's speed follows from. A product alone does not say it: slices of a GPU keep its name or nearly so,
 * and products of one name have had different memories. */
typedef struct gpu {
  char name[GPU_NAME];   /* the product: "NVIDIA H200", "emu" */
  char klass[GPU_CLASS]; /* gpu_class of it */
  int major, minor;      /* the compute capability that code is generated for */
  int sm_count;
  int64_t l2_bytes;
  double memory_bandwidth; /* bytes a second */
  int64_t shared_per_block;
} gpu;

/* A product's name as a folder: lower case, without the maker, everything but letters and digits one '_': "h200",
 * "a100_sxm4_80gb", "emu". "unknown" when nothing is left. */
void gpu_class(const char *product, char out[GPU_CLASS]);

typedef enum gpu_match {
  GPU_OTHER, /* nothing follows */
  GPU_HINT,  /* alike: same capability, SM counts within a quarter of the greater one */
  GPU_SAME   /* the same class and properties; bandwidths, which drivers compute from clocks, within 5 % */
} gpu_match;
gpu_match gpu_compare(const gpu *measured, const gpu *here);
/* Orders hints: how unlike two GPUs are, as the sum of the logarithms of the ratios of SM counts and bandwidths. */
double gpu_distance(const gpu *a, const gpu *b);

#endif
