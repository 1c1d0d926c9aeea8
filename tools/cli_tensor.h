/* cli_tensor.h: host tensors of the run command: number formats, the random generator, .npy files to and from the
 * dtypes of a spec, comparison. Works through the public header only. */
#ifndef TOOLS_CLI_TENSOR_H
#define TOOLS_CLI_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "cli_npy.h"
#include "qkv.h"

int dtype_bytes(qkv_dtype dtype);
const char *dtype_word(qkv_dtype dtype);
/* Element n of packed elements. Encoding rounds to nearest even; e4m3 saturates, the others overflow to infinity. */
double element_get(const void *data, qkv_dtype dtype, int64_t n);
void element_set(void *data, qkv_dtype dtype, int64_t n, double value);

int64_t tensor_count(const qkv_tensor *t);
/* A contiguous tensor with its own memory (t->data NULL when there is none). */
qkv_tensor tensor_allocate(qkv_dtype dtype, int rank, const int64_t *shape);

/* A value of about normal distribution, mean 0 and variance 1: the sum of eight 16-bit uniforms, from two steps of
 * splitmix64 at position n of stream `seed`. Integer arithmetic up to the last scaling: the same on every machine. */
double random_normal(uint64_t seed, uint64_t n);
/* f16 bf16 f32 e4m3 e5m2: normal; bool: fair coin; i32: four ascending blocks 0 0 .. 3 3 along the last dimension,
 * which is what document ids look like. */
void tensor_fill_random(qkv_tensor *t, uint64_t seed);

/* Copies a file's array into t. Its shape must be t's; a leading extent of 1 may be missing. bits16: u2 holds bf16.
 * False with one line in error. */
bool tensor_from_npy(const npy_array *array, bool bits16, qkv_tensor *t, char error[NPY_ERROR_SIZE]);
/* Writes t: f16 as f2, f32 and i32 as they are, the others as f4; bits16: bf16 as u2. */
bool tensor_to_npy(const qkv_tensor *t, bool bits16, const char *path, char error[NPY_ERROR_SIZE]);

/* How far `got` is from `want`, both contiguous and of the same shape. */
typedef struct tensor_error {
  double max_absolute;
  double relative_l2; /* ||got - want|| / ||want|| over what is finite in both; 0 when both are all zero */
  double max_scaled;  /* max of |got - want| / max(1, |want|) */
  int64_t max_at;     /* flat index of max_absolute */
  int64_t bad;        /* elements where one is NaN, or infinities differ */
  int64_t bad_at;     /* the first of them, -1: none */
} tensor_error;
tensor_error tensor_compare(const qkv_tensor *got, const qkv_tensor *want);

#endif
