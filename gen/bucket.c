/* bucket.c: see bucket.h. */
#include "bucket.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  ROW_STEP = 8,
  REACH = 2,       /* classes that a schedule may be taken over */
  FULL_TILES = 3,  /* of TILE_ROWS rows, that fill an SM */
  FULL_SLICES = 8 /* of SLICE_KEYS keys, that do in decode */
};
enum { TILE_ROWS = 128, SLICE_KEYS = 64 };

/* The least n with 2^n >= size; size at least 1. */
static int class_of(int64_t size) {
  int n = 0;
  while (n < BUCKET_MAX_CLASS && (int64_t)1 << n < size)
    n++;
  return n;
}

bucket bucket_of(const spec *s, const char *phase, int64_t batch, int64_t len_q, int64_t len_k) {
  bucket b = {.decode = strcmp(phase, "decode") == 0};
  if (batch < 1 || len_q < 1 || len_k < 1)
    return (bucket){.any = true};
  b.batch = class_of(batch);
  b.len_k = class_of(len_k);
  if (b.decode) {
    b.rows = len_q * (s->heads_q / s->heads_kv);
    if (b.rows > 1)
      b.rows = (b.rows + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
  } else {
    b.len_q = class_of(len_q);
  }
  return b;
}

int bucket_compare(const bucket *a, const bucket *b) {
  const int64_t left[] = {!a->any, a->decode, a->rows, a->batch, a->len_q, a->len_k},
                right[] = {!b->any, b->decode, b->rows, b->batch, b->len_q, b->len_k};
  for (size_t n = 0; n < sizeof left / sizeof left[0]; n++)
    if (left[n] != right[n])
      return left[n] < right[n] ? -1 : 1;
  return 0;
}

bool bucket_equal(const bucket *a, const bucket *b) {
  return bucket_compare(a, b) == 0;
}

void bucket_print(const bucket *b, char out[BUCKET_TEXT]) {
  if (b->any)
    strcpy(out, "any");
  else
    snprintf(out, BUCKET_TEXT, "b%lld %c%lld k%lld", 1LL << b->batch, b->decode ? 'r' : 'q',
             b->decode ? (long long)b->rows : 1LL << b->len_q, 1LL << b->len_k);
}

/* "LETTERnumber" at *at, which moves behind it and a blank; -1: something else. */
static int64_t read_size(const char **at, char letter) {
  char *end;
  if (**at != letter || (*at)[1] < '1' || (*at)[1] > '9')
    return -1;
  const long long size = strtoll(*at + 1, &end, 10);
  *at = end + (*end == ' ');
  return size;
}

bool bucket_parse(const char *word, bucket *out) {
  char again[BUCKET_TEXT];
  *out = (bucket){.any = strcmp(word, "any") == 0};
  if (out->any)
    return true;
  const char *p = word;
  const int64_t batch = read_size(&p, 'b');
  out->decode = *p == 'r';
  const int64_t queries = read_size(&p, out->decode ? 'r' : 'q'), len_k = read_size(&p, 'k');
  const int64_t most = (int64_t)1 << BUCKET_MAX_CLASS;
  if (batch < 1 || queries < 1 || len_k < 1 || batch > most || len_k > most || (!out->decode && queries > most))
    return false;
  out->batch = class_of(batch);
  out->len_k = class_of(len_k);
  if (out->decode)
    out->rows = queries;
  else
    out->len_q = class_of(queries);
  if (out->decode && out->rows > 1 && out->rows % ROW_STEP)
    return false;
  bucket_print(out, again);
  return strcmp(word, again) == 0;
}

static void class_range(int n, int64_t range[2]) {
  range[0] = n ? ((int64_t)1 << (n - 1)) + 1 : 1;
  range[1] = n == BUCKET_MAX_CLASS ? INT32_MAX : (int64_t)1 << n;
}

bucket_sizes bucket_range(const bucket *b) {
  bucket_sizes sizes = {0};
  class_range(b->batch, sizes.batch);
  class_range(b->len_k, sizes.len_k);
  if (b->decode) {
    sizes.queries[0] = b->rows == 1 ? 1 : b->rows == ROW_STEP ? 2 : b->rows - ROW_STEP + 1;
    sizes.queries[1] = b->rows;
  } else {
    class_range(b->len_q, sizes.queries);
  }
  return sizes;
}

/* Whether b and other differ in nothing but in classes. */
static bool comparable(const bucket *b, const bucket *other) {
  return !b->any && !other->any && b->decode == other->decode && b->rows == other->rows;
}

int bucket_distance(const bucket *a, const bucket *b) {
  const int apart[] = {abs(a->batch - b->batch), abs(a->len_q - b->len_q), abs(a->len_k - b->len_k)};
  int sum = 0;
  if (bucket_equal(a, b))
    return 0;
  if (!comparable(a, b))
    return -1;
  for (int n = 0; n < 3; n++) {
    if (apart[n] > REACH)
      return -1;
    sum += apart[n];
  }
  return sum;
}

bool bucket_within(const bucket *b, const bucket *const *tuned, int count) {
  const int here[] = {b->batch, b->len_q, b->len_k};
  bool below[3] = {false}, above[3] = {false};
  for (int n = 0; n < count; n++) {
    const int there[] = {tuned[n]->batch, tuned[n]->len_q, tuned[n]->len_k};
    if (!comparable(b, tuned[n]))
      continue;
    for (int i = 0; i < 3; i++) {
      below[i] = below[i] || there[i] <= here[i];
      above[i] = above[i] || there[i] >= here[i];
    }
  }
  return below[0] && below[1] && below[2] && above[0] && above[1] && above[2];
}

bool bucket_admits(const bucket *most, const bucket *measured) {
  return comparable(most, measured) && measured->batch <= most->batch && measured->len_k <= most->len_k &&
         measured->len_q <= most->len_q + REACH;
}

bool bucket_speaks_for(const spec *s, int sm_count, const bucket *most, const bucket *measured) {
  const double batch = ldexp(1, measured->batch);
  if (!bucket_admits(most, measured) || measured->len_q < most->len_q - REACH)
    return false;
  if (measured->decode)
    return batch * s->heads_kv * ldexp(1, measured->len_k) / SLICE_KEYS >= (double)FULL_SLICES * sm_count;
  return batch * s->heads_q * ldexp(1, measured->len_q) / TILE_ROWS >= (double)FULL_TILES * sm_count;
}
