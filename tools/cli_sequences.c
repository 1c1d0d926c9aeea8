/* cli_sequences.c: see cli_sequences.h. */
#include "cli_sequences.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_BEHIND = 3, CAPACITY_MORE = 2, COLUMNS_MORE = 1, SPARE_PAGES = 2 };

static bool ragged_q(const problem *p) {
  return p->info.layout_q == QKV_RAGGED;
}
static bool ragged_k(const problem *p) {
  return p->info.layout_kv == QKV_RAGGED;
}
static bool paged(const problem *p) {
  return p->info.layout_kv == QKV_PAGED;
}

bool sequences_any(const problem *p) {
  return p->info.layout_q != QKV_DENSE || p->info.layout_kv != QKV_DENSE;
}

/* ---- Arrays ---- */

static int32_t *array_of(const problem *p, problem_slot slot) {
  return p->slots[slot].host.data;
}

static int64_t length_q(const problem *p, int64_t b) {
  const int32_t *starts = array_of(p, SLOT_CU_SEQLENS_Q);
  return ragged_q(p) ? starts[b + 1] - starts[b] : p->len_q;
}
static int64_t length_k(const problem *p, int64_t b) {
  const int32_t *starts = array_of(p, SLOT_CU_SEQLENS_K);
  return ragged_k(p) ? starts[b + 1] - starts[b] : array_of(p, SLOT_SEQLENS_K)[b];
}

double sequences_pairs(const problem *p) {
  double pairs = 0;
  for (int64_t b = 0; b < p->batch; b++)
    pairs += (double)length_q(p, b) * (double)length_k(p, b);
  return pairs;
}

/* A random number of 0 to most. */
static int64_t draw(uint64_t seed, int64_t n, int64_t most) {
  const double uniform = 0.5 + 0.5 * erf(random_normal(seed, (uint64_t)n) / sqrt(2.0));
  const int64_t value = (int64_t)(uniform * (double)(most + 1));
  return value < 0 ? 0 : value > most ? most : value;
}

/* The length of sequence b of at most `most`: full, one, none, then anything. `phase` keeps queries from being none
 * where keys are. */
static int64_t length_of(const problem_request *r, uint64_t stream, int64_t b, int phase, int64_t most) {
  const int64_t kinds[] = {most, most > 0, 0};
  if (r->lengths && !strcmp(r->lengths, "full"))
    return most;
  return b > 0 && (b + phase) % 8 < 3 ? kinds[(b + phase) % 8] : b == 0 ? most : draw(r->seed * 64 + stream, b, most);
}

static int add_array(problem *p, problem_slot slot, const char *name, int rank, const int64_t *shape) {
  problem_tensor *t = &p->slots[slot];
  snprintf(t->name, sizeof t->name, "%s", name);
  t->host = tensor_allocate(QKV_I32, rank, shape);
  if (t->host.data)
    return EXIT_OK;
  cli_error("out of memory for %s", name);
  return EXIT_FAILED;
}

static int make_starts(problem *p, problem_slot slot, const char *name, const problem_request *r, int64_t most) {
  int code = add_array(p, slot, name, 1, (int64_t[]){p->batch + 1});
  int64_t rows = 0;
  for (int64_t b = 0; b < p->batch && !code; b++) {
    rows += length_of(r, (uint64_t)slot, b, slot == SLOT_CU_SEQLENS_Q ? 0 : 2, most);
    if (rows > INT32_MAX - ROWS_BEHIND) {
      cli_error("%lld sequences of up to %lld tokens are more than 2^31 packed ones", (long long)p->batch,
                (long long)most);
      return EXIT_USAGE;
    }
    array_of(p, slot)[b + 1] = (int32_t)rows;
  }
  return code;
}

static int64_t pages_of(const problem *p, int64_t b) {
  return (length_k(p, b) + p->info.page_size - 1) / p->info.page_size;
}

static int64_t pages_in_all(const problem *p) {
  int64_t pages = SPARE_PAGES;
  for (int64_t b = 0; b < p->batch; b++)
    pages += pages_of(p, b);
  return pages;
}

/* All page numbers in a random order; freed by the caller. */
static int32_t *shuffle(const problem *p, uint64_t seed) {
  const int64_t count = pages_in_all(p);
  int32_t *numbers = malloc((size_t)count * sizeof *numbers);
  for (int64_t n = 0; numbers && n < count; n++)
    numbers[n] = (int32_t)n;
  for (int64_t n = count - 1; numbers && n > 0; n--) {
    const int64_t other = draw(seed, n, n);
    const int32_t number = numbers[n];
    numbers[n] = numbers[other];
    numbers[other] = number;
  }
  return numbers;
}

/* Where sequence b's part of the table begins. */
static int64_t first_entry(const problem *p, int64_t b) {
  return p->info.page_table == QKV_PAGE_TABLE_CSR ? array_of(p, SLOT_PAGE_INDPTR)[b]
                                                  : b * p->slots[SLOT_PAGE_TABLE].host.shape[1];
}

static int make_table(problem *p, const problem_request *r) {
  static const int32_t wild[] = {-1, INT32_MAX, INT32_MIN, 2147480000};
  const bool csr = p->info.page_table == QKV_PAGE_TABLE_CSR;
  const int64_t columns = (p->len_k + p->info.page_size - 1) / p->info.page_size + COLUMNS_MORE,
                entries = pages_in_all(p) - SPARE_PAGES + COLUMNS_MORE;
  int code = add_array(p, SLOT_PAGE_TABLE, "page_table", csr ? 1 : 2,
                       csr ? &entries : (int64_t[]){p->batch, columns});
  if (!code && csr)
    code = add_array(p, SLOT_PAGE_INDPTR, "page_indptr", 1, (int64_t[]){p->batch + 1});
  int32_t *numbers = code ? NULL : shuffle(p, r->seed * 64 + SLOT_PAGE_TABLE);
  if (!numbers)
    return code ? code : (cli_error("out of memory for pages"), EXIT_FAILED);
  for (int64_t n = 0; n < tensor_count(&p->slots[SLOT_PAGE_TABLE].host); n++)
    array_of(p, SLOT_PAGE_TABLE)[n] = wild[n % 4];
  int64_t used = 0;
  for (int64_t b = 0; b < p->batch; b++) {
    if (csr)
      array_of(p, SLOT_PAGE_INDPTR)[b + 1] = (int32_t)(used + pages_of(p, b));
    for (int64_t n = 0; n < pages_of(p, b); n++)
      array_of(p, SLOT_PAGE_TABLE)[first_entry(p, b) + n] = numbers[used++];
  }
  free(numbers);
  return EXIT_OK;
}

int sequences_make(problem *p, const problem_request *r) {
  int code = EXIT_OK;
  if (ragged_q(p))
    code = make_starts(p, SLOT_CU_SEQLENS_Q, "cu_seqlens_q", r, p->len_q);
  if (!code && ragged_k(p))
    return make_starts(p, SLOT_CU_SEQLENS_K, "cu_seqlens_k", r, p->len_k);
  if (!code)
    code = add_array(p, SLOT_SEQLENS_K, "seqlens_k", 1, &p->batch);
  for (int64_t b = 0; b < p->batch && !code; b++)
    array_of(p, SLOT_SEQLENS_K)[b] = (int32_t)length_of(r, SLOT_SEQLENS_K, b, 2, p->len_k);
  return !code && paged(p) ? make_table(p, r) : code;
}

/* ---- Tensors ---- */

static int64_t packed_rows(const problem *p, problem_slot starts) {
  return array_of(p, starts)[p->batch] + ROWS_BEHIND;
}

static int set_shape(int64_t to[4], int rank, const int64_t *shape) {
  memcpy(to, shape, (size_t)rank * sizeof *to);
  return rank;
}

int sequences_shape(const problem *p, problem_slot slot, int64_t shape[4]) {
  const qkv_spec_info *s = &p->info;
  if (slot == SLOT_K || slot == SLOT_V) {
    const int64_t dim = slot == SLOT_K ? s->dim_qk : s->dim_v, heads = s->heads_kv;
    if (ragged_k(p))
      return set_shape(shape, 3, (int64_t[]){packed_rows(p, SLOT_CU_SEQLENS_K), heads, dim});
    if (!paged(p))
      return set_shape(shape, 4, (int64_t[]){p->batch, p->len_k + CAPACITY_MORE, heads, dim});
    const bool hnd = s->page_order == QKV_PAGE_HND;
    return set_shape(shape, 4,
                     (int64_t[]){pages_in_all(p), hnd ? heads : s->page_size, hnd ? s->page_size : heads, dim});
  }
  const bool row = slot == SLOT_Q || slot == SLOT_O, ragged = ragged_q(p);
  const int64_t dim = slot == SLOT_Q ? s->dim_qk : s->dim_v, heads = s->heads_q,
                rows = ragged ? packed_rows(p, SLOT_CU_SEQLENS_Q) : p->len_q;
  if (ragged)
    return row ? set_shape(shape, 3, (int64_t[]){rows, heads, dim}) : set_shape(shape, 2, (int64_t[]){heads, rows});
  return row ? set_shape(shape, 4, (int64_t[]){p->batch, rows, heads, dim})
             : set_shape(shape, 3, (int64_t[]){p->batch, heads, rows});
}

/* Element 0 of token t of sequence b and head h, in a contiguous q, k, v or o of rows of `dim`. */
static int64_t query_at(const problem *p, int64_t b, int64_t t, int64_t h, int64_t dim) {
  const int64_t row = ragged_q(p) ? array_of(p, SLOT_CU_SEQLENS_Q)[b] + t : b * p->len_q + t;
  return (row * p->info.heads_q + h) * dim;
}
static int64_t key_at(const problem *p, int64_t b, int64_t t, int64_t h, int64_t dim) {
  const int64_t heads = p->info.heads_kv, size = p->info.page_size;
  if (ragged_k(p))
    return ((array_of(p, SLOT_CU_SEQLENS_K)[b] + t) * heads + h) * dim;
  if (!paged(p))
    return ((b * (p->len_k + CAPACITY_MORE) + t) * heads + h) * dim;
  const int64_t page = array_of(p, SLOT_PAGE_TABLE)[first_entry(p, b) + t / size];
  return p->info.page_order == QKV_PAGE_HND ? ((page * heads + h) * size + t % size) * dim
                                            : ((page * size + t % size) * heads + h) * dim;
}

void sequences_fill(problem *p, problem_slot slot, uint64_t seed) {
  const bool query = slot == SLOT_Q;
  qkv_tensor *t = &p->slots[slot].host;
  const int64_t dim = t->shape[t->rank - 1], heads = query ? p->info.heads_q : p->info.heads_kv;
  memset(t->data, 0xFF, (size_t)tensor_count(t) * (size_t)dtype_bytes(t->dtype)); /* a NaN in every float format */
  for (int64_t b = 0; b < p->batch; b++)
    for (int64_t n = 0; n < (query ? length_q(p, b) : length_k(p, b)); n++)
      for (int64_t h = 0; h < heads; h++) {
        const int64_t at = query ? query_at(p, b, n, h, dim) : key_at(p, b, n, h, dim);
        for (int64_t d = 0; d < dim; d++)
          element_set(t->data, t->dtype, at + d, random_normal(seed, (uint64_t)(at + d)));
      }
}

/* ---- Checks ---- */

void sequences_first(const problem *p, qkv_attention_args *args, int64_t batch) {
  qkv_tensor *const starts[] = {&args->cu_seqlens_q, &args->cu_seqlens_k, &args->page_indptr},
             *const queries[] = {&args->q, &args->o, &args->lse, &args->lse_with_sink};
  for (int n = 0; n < 3; n++)
    starts[n]->shape[0] = batch + 1;
  args->seqlens_k.shape[0] = batch;
  if (paged(p) && p->info.page_table == QKV_PAGE_TABLE_ROWS)
    args->page_table.shape[0] = batch;
  for (int n = 0; n < 4 && !ragged_q(p); n++)
    queries[n]->shape[0] = batch;
  if (p->info.layout_kv == QKV_PADDED)
    args->k.shape[0] = args->v.shape[0] = batch;
}

bool sequences_clear(const problem *p, problem_slot slot, qkv_tensor *t, int64_t batch) {
  const bool lse = slot != SLOT_O, ragged = ragged_q(p);
  const int64_t heads = p->info.heads_q, dim = lse ? 1 : p->info.dim_v;
  const int64_t rows = ragged ? packed_rows(p, SLOT_CU_SEQLENS_Q) : p->batch * p->len_q,
                kept = ragged ? array_of(p, SLOT_CU_SEQLENS_Q)[batch] : batch * p->len_q,
                owned = ragged ? rows - ROWS_BEHIND : rows;
  bool poisoned = true;
  for (int64_t row = kept; row < rows; row++)
    for (int64_t h = 0; h < heads; h++) {
      const int64_t at = !lse     ? (row * heads + h) * dim
                         : ragged ? h * rows + row
                                  : (row / p->len_q * heads + h) * p->len_q + row % p->len_q;
      for (int64_t d = 0; d < dim; d++) {
        poisoned &= row < owned || isnan(element_get(t->data, t->dtype, at + d));
        element_set(t->data, t->dtype, at + d, 0);
      }
    }
  return poisoned;
}
