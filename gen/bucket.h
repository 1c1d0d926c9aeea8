/* bucket.h: the sizes of calls that share one tuned schedule.
 *
 * Batch, queries and keys are put in classes by the logarithm of base 2, rounded up: class n holds 2^(n-1) + 1 to 2^n.
 * The best schedule changes with the ratio of work to the GPU's size, so classes of equal ratios cover all sizes with
 * few entries, and rounding up keeps a maximum of 2^n, the usual one, in the class that is measured at 2^n.
 * In decode queries do not come alone: the rows of a tile are queries times the query heads of a KV head, and a
 * schedule whose tile is one row too short reads all keys twice. So rows enter as they are, rounded up to 8, the step
 * in which tiles grow; a single row, which goes to other kernels, is a class of its own.
 * Tuner and runtime both use these functions, and nothing else decides. */
#ifndef GEN_BUCKET_H
#define GEN_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "spec.h"

enum { BUCKET_TEXT = 64, BUCKET_MAX_CLASS = 31 };

typedef struct bucket {
  bool any;      /* maxima that are not declared, or best over all that was measured; the rest is 0 */
  bool decode;   /* rows counts, else len_q */
  int batch;     /* class */
  int len_q;     /* class */
  int64_t rows;  /* 1, or a multiple of 8 */
  int len_k;     /* class */
} bucket;

/* The bucket of declared maxima or of a workload's sizes, each 0 to 2^31 - 1. One that is 0, not declared, makes it the
 * bucket of any. phase: "decode", or another. */
bucket bucket_of(const spec *s, const char *phase, int64_t batch, int64_t len_q, int64_t len_k);
bool bucket_equal(const bucket *a, const bucket *b);
/* "b4 q8192 k8192", "b64 r8 k8192" (decode), "any": the greatest sizes of the bucket. */
void bucket_print(const bucket *b, char out[BUCKET_TEXT]);
/* The reverse; false for a word that bucket_print never writes. */
bool bucket_parse(const char *word, bucket *out);

/* The sizes, from and to inclusive, of a bucket other than any. `queries` is len_q, of a decode bucket rows. */
typedef struct bucket_sizes {
  int64_t batch[2], queries[2], len_k[2];
} bucket_sizes;
bucket_sizes bucket_range(const bucket *b);

/* How far apart two are: the sum of the differences of classes; 0 for equal ones. -1: schedules of one say nothing of
 * the other: other rows, or a size that differs by more than two classes, a factor of four. */
int bucket_distance(const bucket *a, const bucket *b);
/* Whether b lies within the range that `count` buckets span: no size less than the least, none greater than the
 * greatest of those with its rows. */
bool bucket_within(const bucket *b, const bucket *const *tuned, int count);
/* Whether an op of the maxima `most` makes calls such as were measured: the same rows; batch and keys are no more than
 * its own; queries at most four times as many, since a long prompt comes to it in parts. */
bool bucket_admits(const bucket *most, const bucket *measured);
/* Whether a measurement that `most` admits says something of calls larger than itself, on a GPU of so many SMs: it gave
 * each SM enough to do (3 tiles of 128 rows; 8 slices of 64 keys in decode), from where on schedules do not change with
 * more of the same, and its queries are within a factor of 4: short sequences have schedules of their own. */
bool bucket_speaks_for(const spec *s, int sm_count, const bucket *most, const bucket *measured);
/* A total order: any first, then prefill by batch, queries, keys, then decode. Negative, 0 or positive. */
int bucket_compare(const bucket *a, const bucket *b);

#endif
