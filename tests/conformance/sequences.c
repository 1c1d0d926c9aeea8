/* sequences.c: sequences of lengths of their own in memory: packed, padded and in pages, with poison in all that no
 * sequence owns: rows before, behind and between, pages of nobody, ends of last pages, entries of tables.
 *
 * Canonical values have the maxima as their extents, [b][lq][hq][dim] and so on; what stands behind a sequence's length
 * goes nowhere and comes back as 0. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

enum { ROWS_BEFORE = 1, ROWS_BEHIND = 2, CAPACITY_MORE = 3, COLUMNS_MORE = 2, SPARE_PAGES = 3 };

bool sequences_ragged_q(const test_case *c) {
  return c->seq >= SEQUENCES_RAGGED;
}
bool sequences_packed_k(const test_case *c) {
  return c->seq == SEQUENCES_RAGGED;
}
bool sequences_paged(const test_case *c) {
  return c->seq == SEQUENCES_PAGED || c->seq == SEQUENCES_RAGGED_PAGED;
}

/* ---- Lengths ---- */

static int64_t draw(const test_case *c, int64_t b, uint64_t salt, int64_t most) {
  return (int64_t)(hash_mix(hash_mix((uint64_t)c->seed ^ salt << 40) ^ (uint64_t)b) % (uint64_t)(most + 1));
}

void sequences_lengths(const test_case *c, inputs *out) {
  if (c->seq == SEQUENCES_DENSE)
    return;
  if (c->b > MAX_SEQUENCES) {
    fprintf(stderr, "conformance: a case has at most %d sequences\n", MAX_SEQUENCES);
    exit(2);
  }
  for (int64_t b = 0; b < c->b; b++) {
    const int64_t q = draw(c, b, 11, c->lq), k = draw(c, b, 12, c->lk), one_q = c->lq > 0, one_k = c->lk > 0;
    const int64_t mixed[][2] = {{c->lq, c->lk}, {one_q, k}, {0, k}, {q, 0}, {q, one_k}, {q, c->lk}, {q, k}};
    const bool full = c->lens == LENGTHS_FULL;
    out->lens_q[b] = full || !sequences_ragged_q(c) ? c->lq : mixed[b % 7][0];
    out->lens_k[b] = full ? c->lk : mixed[b % 7][1];
  }
}

/* ---- Places ---- */

/* The row of token 0 of sequence b among packed ones. */
static int64_t first_row(const int64_t *lens, int64_t b) {
  int64_t first = ROWS_BEFORE;
  for (int64_t n = 0; n < b; n++)
    first += lens[n];
  return first;
}

static int64_t packed_rows(const int64_t *lens, int64_t b) {
  return first_row(lens, b) + ROWS_BEHIND;
}

static int64_t pages_of(const test_case *c, const inputs *in, int64_t b) {
  return (in->lens_k[b] + c->page - 1) / c->page;
}

static int64_t pages_before(const test_case *c, const inputs *in, int64_t b) {
  int64_t pages = 0;
  for (int64_t n = 0; n < b; n++)
    pages += pages_of(c, in, n);
  return pages;
}

static int64_t pages_in_all(const test_case *c, const inputs *in) {
  return pages_before(c, in, in->b) + SPARE_PAGES;
}

/* The number of the n-th page in use: a shuffle of all there are, in which page 0, where a wrong number may lead, is
 * mostly nobody's. Freed by the caller. */
static int64_t *shuffled(const test_case *c, const inputs *in) {
  const int64_t count = pages_in_all(c, in);
  int64_t *numbers = must_alloc((size_t)count * sizeof *numbers);
  for (int64_t n = 0; n < count; n++)
    numbers[n] = n;
  for (int64_t n = count - 1; n > 0; n--) {
    const int64_t other = draw(c, n, 100 + (uint64_t)c->shuffle, n), number = numbers[n];
    numbers[n] = numbers[other];
    numbers[other] = number;
  }
  for (int64_t n = 0; n < count - 1 && c->shuffle % 4 != 3; n++)
    if (numbers[n] == 0)
      numbers[n] = numbers[count - 1], numbers[count - 1] = 0;
  return numbers;
}

/* ---- Tensors ---- */

/* Memory of [b][t][h][d] elements full of what must not be read. */
static float *poisoned(int64_t count, int guard) {
  const float by_kind[] = {[GUARD_NAN] = NAN, [GUARD_NONE] = NAN, [GUARD_INF] = INFINITY, [GUARD_BIG] = 6e4f,
                           [GUARD_ZERO] = 0};
  float *values = must_alloc((size_t)count * sizeof *values);
  for (int64_t n = 0; n < count; n++)
    values[n] = by_kind[guard];
  return values;
}

/* Drops the extent of 1 that stands for the batch in packed tensors. */
static void drop_batch(qkv_tensor *t) {
  t->rank--;
  memmove(t->shape, t->shape + 1, (size_t)t->rank * sizeof *t->shape);
  memmove(t->stride, t->stride + 1, (size_t)t->rank * sizeof *t->stride);
}

static void swap_token_and_head(qkv_tensor *t) {
  const int64_t shape = t->shape[1], stride = t->stride[1];
  t->shape[1] = t->shape[2], t->stride[1] = t->stride[2];
  t->shape[2] = shape, t->stride[2] = stride;
}

void sequences_make_q(guarded *m, const char *name, qkv_dtype dtype, int layout, const test_case *c, const inputs *in,
                      int guard, bool output, int64_t dim, const float *canonical) {
  const int64_t row = in->hq * dim;
  if (!sequences_ragged_q(c)) {
    guarded_make(m, name, dtype, layout, guard, output, in->b, in->lq, in->hq, dim);
    if (canonical != NULL)
      guarded_store(m, canonical);
    return;
  }
  const int64_t rows = packed_rows(in->lens_q, in->b);
  guarded_make(m, name, dtype, layout, guard, output, 1, rows, in->hq, dim);
  drop_batch(&m->view);
  if (canonical == NULL)
    return;
  float *packed = poisoned(rows * row, guard);
  for (int64_t b = 0; b < in->b; b++)
    memcpy(packed + first_row(in->lens_q, b) * row, canonical + b * in->lq * row,
           (size_t)(in->lens_q[b] * row) * sizeof(float));
  guarded_store(m, packed);
  free(packed);
}

/* Where token k of sequence b is among the rows of the memory. */
static int64_t key_place(const test_case *c, const inputs *in, const int64_t *numbers, int64_t b, int64_t k) {
  if (sequences_packed_k(c))
    return first_row(in->lens_k, b) + k;
  if (sequences_paged(c))
    return numbers[pages_before(c, in, b) + k / c->page] * c->page + k % c->page;
  return b * (in->lk + CAPACITY_MORE) + k;
}

static int layout_named(const char *name) {
  int n = 0;
  while (strcmp(layout_names[n], name) != 0)
    n++;
  return n;
}

void sequences_make_k(guarded *m, const char *name, qkv_dtype dtype, int layout, const test_case *c, const inputs *in,
                      int guard, int64_t dim, const float *canonical) {
  const int64_t row = in->hk * dim;
  if (c->seq == SEQUENCES_DENSE) {
    guarded_make(m, name, dtype, layout, guard, false, in->b, in->lk, in->hk, dim);
    guarded_store(m, canonical);
    return;
  }
  const bool packed = sequences_packed_k(c), paged = sequences_paged(c);
  const int64_t outer = packed ? 1 : paged ? pages_in_all(c, in) : in->b,
                tokens = packed ? packed_rows(in->lens_k, in->b) : paged ? c->page : in->lk + CAPACITY_MORE;
  const bool hnd = paged && c->order;
  guarded_make(m, name, dtype, hnd && layout == 0 ? layout_named("bhtd") : layout, guard, false, outer, tokens, in->hk,
               dim);
  float *values = poisoned(outer * tokens * row, guard);
  int64_t *numbers = paged ? shuffled(c, in) : NULL;
  for (int64_t b = 0; b < in->b; b++)
    for (int64_t k = 0; k < in->lens_k[b]; k++)
      memcpy(values + key_place(c, in, numbers, b, k) * row, canonical + (b * in->lk + k) * row,
             (size_t)row * sizeof(float));
  guarded_store(m, values);
  free(values);
  free(numbers);
  if (packed)
    drop_batch(&m->view);
  if (hnd)
    swap_token_and_head(&m->view);
}

void sequences_make_lse(guarded *m, const char *name, const test_case *c, const inputs *in, int guard, int spread) {
  const int64_t dense[] = {in->b, in->hq, in->lq}, packed[] = {in->hq, packed_rows(in->lens_q, in->b)};
  const bool ragged = sequences_ragged_q(c);
  guarded_make_plain(m, name, QKV_F32, guard, true, ragged ? 2 : 3, ragged ? packed : dense, spread);
}

/* ---- Outputs ---- */

/* What a packed output holds besides its sequences' rows, in rows of `elements`; `step` and `rows` walk them. */
static int64_t load_packed(const guarded *m, int64_t count, int64_t owned, float **values) {
  *values = must_alloc((size_t)count * sizeof(float));
  return guarded_load(m, *values) - (count - owned);
}

static int64_t owned_rows(const inputs *in) {
  return first_row(in->lens_q, in->b) - ROWS_BEFORE;
}

int64_t sequences_load(const guarded *m, const test_case *c, const inputs *in, int64_t dim, float *canonical) {
  const int64_t row = in->hq * dim, rows = packed_rows(in->lens_q, in->b);
  float *values;
  if (!sequences_ragged_q(c))
    return guarded_load(m, canonical);
  int64_t unwritten = load_packed(m, rows * row, owned_rows(in) * row, &values);
  for (int64_t b = 0; b < in->b; b++)
    memcpy(canonical + b * in->lq * row, values + first_row(in->lens_q, b) * row,
           (size_t)(in->lens_q[b] * row) * sizeof(float));
  for (int64_t n = 0; n < rows * row; n++) {
    const bool owned = n / row >= ROWS_BEFORE && n / row < rows - ROWS_BEHIND;
    if (!owned && !isnan(values[n]))
      unwritten = -1;
  }
  free(values);
  return unwritten;
}

int64_t sequences_load_lse(const guarded *m, const test_case *c, const inputs *in, float *canonical) {
  const int64_t rows = packed_rows(in->lens_q, in->b);
  float *values;
  if (!sequences_ragged_q(c))
    return guarded_load(m, canonical);
  int64_t unwritten = load_packed(m, in->hq * rows, in->hq * owned_rows(in), &values);
  for (int64_t b = 0; b < in->b; b++)
    for (int64_t h = 0; h < in->hq; h++)
      memcpy(canonical + (b * in->hq + h) * in->lq, values + h * rows + first_row(in->lens_q, b),
             (size_t)in->lens_q[b] * sizeof(float));
  for (int64_t n = 0; n < in->hq * rows; n++) {
    const bool owned = n % rows >= ROWS_BEFORE && n % rows < rows - ROWS_BEHIND;
    if (!owned && !isnan(values[n]))
      unwritten = -1;
  }
  free(values);
  return unwritten;
}

/* ---- Arrays ---- */

static void make_starts(guarded *m, const char *name, const inputs *in, const int64_t *lens, int guard) {
  float starts[MAX_SEQUENCES + 1];
  for (int64_t b = 0; b <= in->b; b++)
    starts[b] = (float)first_row(lens, b);
  guarded_make_plain(m, name, QKV_I32, guard, false, 1, (int64_t[]){in->b + 1}, 1);
  guarded_store(m, starts);
}

/* Numbers that no page has, in turn; floats hold them. */
static float wild_number(int64_t n) {
  const float numbers[] = {-1, 2147483520.0f, -2147483648.0f, 1e9f};
  return numbers[n % 4];
}

static void make_table(sequence_arrays *a, const test_case *c, const inputs *in, int guard) {
  const int64_t more = guard == GUARD_NONE ? 0 : COLUMNS_MORE, used = pages_before(c, in, in->b),
                columns = (in->lk + c->page - 1) / c->page + more, entries = c->table ? used + more : in->b * columns;
  float *table = must_alloc((size_t)entries * sizeof *table), indptr[MAX_SEQUENCES + 1];
  int64_t *numbers = shuffled(c, in);
  for (int64_t n = 0; n < entries; n++)
    table[n] = wild_number(n);
  for (int64_t b = 0; b <= in->b; b++)
    indptr[b] = (float)pages_before(c, in, b);
  for (int64_t b = 0; b < in->b; b++)
    for (int64_t n = 0; n < pages_of(c, in, b); n++)
      table[(c->table ? pages_before(c, in, b) : b * columns) + n] = (float)numbers[pages_before(c, in, b) + n];
  guarded_make_plain(&a->table, "page_table", QKV_I32, guard, false, c->table ? 1 : 2,
                     c->table ? &entries : (int64_t[]){in->b, columns}, 1);
  guarded_store(&a->table, table);
  if (c->table) {
    guarded_make_plain(&a->indptr, "page_indptr", QKV_I32, guard, false, 1, (int64_t[]){in->b + 1}, 1);
    guarded_store(&a->indptr, indptr);
  }
  free(table);
  free(numbers);
}

void sequences_make_arrays(sequence_arrays *a, const test_case *c, const inputs *in, int guard) {
  *a = (sequence_arrays){0};
  if (c->seq == SEQUENCES_DENSE)
    return;
  if (sequences_ragged_q(c))
    make_starts(&a->cu_q, "cu_seqlens_q", in, in->lens_q, guard);
  if (sequences_packed_k(c)) {
    make_starts(&a->cu_k, "cu_seqlens_k", in, in->lens_k, guard);
    return;
  }
  float lengths[MAX_SEQUENCES];
  for (int64_t b = 0; b < in->b; b++)
    lengths[b] = (float)in->lens_k[b];
  guarded_make_plain(&a->lengths, "seqlens_k", QKV_I32, guard, false, 1, &in->b, 1);
  guarded_store(&a->lengths, lengths);
  if (sequences_paged(c))
    make_table(a, c, in, guard);
}

/* Where tensors do not say them at least 1, since 0 means that they are not given. */
void sequences_set_maxima(qkv_attention_args *args, const test_case *c, const inputs *in) {
  const bool shared = sequences_packed_k(c) || (sequences_paged(c) && c->table);
  if (sequences_ragged_q(c))
    args->max_len_q = in->lq > 0 ? in->lq : 1;
  if (c->seq != SEQUENCES_DENSE)
    args->max_len_k = in->lk > 0 || !shared ? in->lk : 1;
}
