/* test_sequences.c: sequences of lengths of their own, on the host: every layout gives what its sequences give alone as
 * dense calls, bit for bit, whatever lies behind their ends; the descriptions of calls and the arrays of lengths and
 * pages are refused by name where they are wrong; lengths beyond what is declared count as the nearest that is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv.h"
#include "qkv_build.h"

enum { BATCH = 5, HEADS_Q = 4, HEADS_KV = 2, DIM = 16, DIM_V = 8, MAX_Q = 9, MAX_K = 23, ROOM = 20000, TABLE = 400 };

/* Lengths of the sequences: none, one, full, and more queries than keys. */
static const int lens_q[BATCH] = {3, 0, 9, 1, 5}, lens_k[BATCH] = {7, 5, 0, 23, 2};

typedef struct layout {
  const char *text; /* of the spec */
  qkv_layout q, kv;
  int page;
  bool hnd, csr;
} layout;

static const layout layouts[] = {
    {"{q: dense, kv: dense}", QKV_DENSE, QKV_DENSE, 0, false, false},
    {"{q: dense, kv: padded}", QKV_DENSE, QKV_PADDED, 0, false, false},
    {"{q: dense, kv: {paged: {page: 1}}}", QKV_DENSE, QKV_PAGED, 1, false, false},
    {"{q: dense, kv: {paged: {page: 3, order: hnd, table: csr}}}", QKV_DENSE, QKV_PAGED, 3, true, true},
    {"{q: ragged, kv: ragged}", QKV_RAGGED, QKV_RAGGED, 0, false, false},
    {"{q: ragged, kv: padded}", QKV_RAGGED, QKV_PADDED, 0, false, false},
    {"{q: ragged, kv: {paged: {page: 4, order: nhd, table: csr}}}", QKV_RAGGED, QKV_PAGED, 4, false, true},
    {"{q: ragged, kv: {paged: {page: 16, order: hnd, table: rows}}}", QKV_RAGGED, QKV_PAGED, 16, true, false},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* One call in host memory. */
typedef struct problem {
  const layout *layout;
  qkv_spec *spec;
  qkv_attention_args args;
  qkv_param_value params[1];
  float q[ROOM], k[ROOM], v[ROOM], o[ROOM], lse[ROOM], slope[BATCH * HEADS_Q];
  int32_t cu_q[BATCH + 1], cu_k[BATCH + 1], lengths[BATCH], table[TABLE], indptr[BATCH + 1];
} problem;

static float value(int tensor, int64_t b, int64_t token, int64_t head, int64_t d) {
  uint32_t x = (uint32_t)((((tensor * 31 + b) * 37 + token) * 11 + head) * 61 + d);
  x = (x ^ x >> 15) * 2654435761u;
  x = (x ^ x >> 13) * 2246822519u;
  return (float)((double)(x ^ x >> 16) / 2147483648.0 - 1);
}

static qkv_tensor tensor(void *data, qkv_dtype dtype, int rank, const int64_t *shape) {
  return qkv_tensor_dense(data, dtype, rank, shape);
}

static int len_q(const problem *p, int b) {
  return p->layout->q == QKV_DENSE ? MAX_Q : lens_q[b];
}
static int len_k(const problem *p, int b) {
  return p->layout->kv == QKV_DENSE ? MAX_K : lens_k[b];
}

/* Element [token][head][0] of q, o (dim of a row: d) or of the keys. */
static int64_t query_at(const problem *p, int b, int i, int h, int d) {
  int64_t row = p->layout->q == QKV_RAGGED ? p->cu_q[b] + i : b * MAX_Q + i;
  return (row * HEADS_Q + h) * d;
}
static int64_t key_at(const problem *p, int b, int k, int h, int d) {
  const layout *l = p->layout;
  if (l->kv == QKV_RAGGED)
    return ((int64_t)(p->cu_k[b] + k) * HEADS_KV + h) * d;
  if (l->kv != QKV_PAGED)
    return (((int64_t)b * MAX_K + k) * HEADS_KV + h) * d;
  int columns = (MAX_K + l->page - 1) / l->page;
  int page = p->table[(l->csr ? p->indptr[b] : b * columns) + k / l->page];
  return l->hnd ? (((int64_t)page * HEADS_KV + h) * l->page + k % l->page) * d
                : (((int64_t)page * l->page + k % l->page) * HEADS_KV + h) * d;
}
static int64_t lse_at(const problem *p, int b, int i, int h) {
  return p->layout->q == QKV_RAGGED ? (int64_t)h * p->args.lse.shape[1] + p->cu_q[b] + i
                                    : ((int64_t)b * HEADS_Q + h) * MAX_Q + i;
}

/* Arrays of lengths and pages; pages in an order that no sequence shares, wild numbers behind the ends. Rows of no
 * sequence stand before, behind and (for q) between. Returns the number of pages. */
static int make_arrays(problem *p) {
  const layout *l = p->layout;
  int pages = 0;
  p->cu_q[0] = 2, p->cu_k[0] = 1;
  for (int b = 0; b < BATCH; b++) {
    p->cu_q[b + 1] = p->cu_q[b] + lens_q[b];
    p->cu_k[b + 1] = p->cu_k[b] + lens_k[b];
    p->lengths[b] = lens_k[b];
  }
  for (int n = 0; n < TABLE; n++)
    p->table[n] = n % 3 == 0 ? -1 : n % 3 == 1 ? INT32_MAX : 2147480000;
  if (l->kv != QKV_PAGED)
    return 0;
  int columns = (MAX_K + l->page - 1) / l->page, total = 0;
  for (int b = 0; b < BATCH; b++)
    total += (lens_k[b] + l->page - 1) / l->page;
  for (int b = 0; b < BATCH; b++) {
    int own = (lens_k[b] + l->page - 1) / l->page;
    p->indptr[b] = pages;
    for (int n = 0; n < own; n++)
      p->table[(l->csr ? p->indptr[b] : b * columns) + n] = total - (pages + n); /* backwards; page 0 is nobody's */
    pages += own;
  }
  p->indptr[BATCH] = pages;
  return total + 2;
}

static void make_args(problem *p, int pages) {
  const layout *l = p->layout;
  qkv_attention_args *a = &p->args;
  const int columns = l->page ? (MAX_K + l->page - 1) / l->page : 0, tokens_q = p->cu_q[BATCH] + 3,
            tokens_k = p->cu_k[BATCH] + 2;
  *a = (qkv_attention_args)QKV_ATTENTION_ARGS_INIT;
  for (int v = 0; v < 2; v++) {
    const int d = v ? DIM_V : DIM;
    const int64_t q4[] = {BATCH, MAX_Q, HEADS_Q, d}, q3[] = {tokens_q, HEADS_Q, d}, k4[] = {BATCH, MAX_K, HEADS_KV, d},
                  k3[] = {tokens_k, HEADS_KV, d}, nhd[] = {pages, l->page, HEADS_KV, d},
                  hnd[] = {pages, HEADS_KV, l->page, d};
    *(v ? &a->o : &a->q) = l->q == QKV_RAGGED ? tensor(v ? p->o : p->q, QKV_F32, 3, q3)
                                              : tensor(v ? p->o : p->q, QKV_F32, 4, q4);
    *(v ? &a->v : &a->k) = l->kv == QKV_RAGGED  ? tensor(v ? p->v : p->k, QKV_F32, 3, k3)
                           : l->kv != QKV_PAGED ? tensor(v ? p->v : p->k, QKV_F32, 4, k4)
                                                : tensor(v ? p->v : p->k, QKV_F32, 4, l->hnd ? hnd : nhd);
  }
  a->lse = l->q == QKV_RAGGED ? tensor(p->lse, QKV_F32, 2, (int64_t[]){HEADS_Q, tokens_q})
                              : tensor(p->lse, QKV_F32, 3, (int64_t[]){BATCH, HEADS_Q, MAX_Q});
  a->cu_seqlens_q = tensor(p->cu_q, QKV_I32, 1, (int64_t[]){BATCH + 1});
  a->cu_seqlens_k = tensor(p->cu_k, QKV_I32, 1, (int64_t[]){BATCH + 1});
  a->seqlens_k = tensor(p->lengths, QKV_I32, 1, (int64_t[]){BATCH});
  a->page_table = l->csr ? tensor(p->table, QKV_I32, 1, (int64_t[]){p->indptr[BATCH]})
                         : tensor(p->table, QKV_I32, 2, (int64_t[]){BATCH, columns});
  a->page_indptr = tensor(p->indptr, QKV_I32, 1, (int64_t[]){BATCH + 1});
  a->max_len_q = l->q == QKV_RAGGED ? MAX_Q : 0;
  a->max_len_k = l->kv == QKV_DENSE ? 0 : MAX_K;
  p->params[0].tensor = tensor(p->slope, QKV_F32, 2, (int64_t[]){BATCH, HEADS_Q});
  a->params = p->params;
  a->nparams = 1;
}

/* The same sequences in any layout; everything else is NaN. Freed by the caller. */
static problem *make(const layout *l) {
  problem *p = calloc(1, sizeof *p);
  char text[800];
  assert_non_null(p);
  snprintf(text, sizeof text,
           "qkvc: 1\nname: t\nattention:\n  heads: {q: 4, kv: 2}\n  dim: {qk: 16, v: 8}\n  dtype: f32\n"
           "  mask: causal and (q - k) %% 5 != 3\n  score: s + slope[b, h] * (k - q)\n"
           "  params: {slope: {type: f32, shape: [b, hq]}}\nlayout: %s\noutputs: [o, lse]\n",
           l->text);
  if (qkv_spec_check(text, 0, &p->spec) != QKV_OK)
    fail_msg("%s", qkv_last_error(NULL));
  p->layout = l;
  memset(p->q, 0xFF, sizeof p->q), memset(p->k, 0xFF, sizeof p->k), memset(p->v, 0xFF, sizeof p->v);
  memset(p->o, 0xFF, sizeof p->o), memset(p->lse, 0xFF, sizeof p->lse);
  make_args(p, make_arrays(p));
  for (int b = 0; b < BATCH; b++) {
    for (int h = 0; h < HEADS_Q; h++)
      p->slope[b * HEADS_Q + h] = 0.25f * (float)(h + 1 - b);
    for (int i = 0; i < len_q(p, b); i++)
      for (int n = 0; n < HEADS_Q * DIM; n++)
        p->q[query_at(p, b, i, n / DIM, DIM) + n % DIM] = value(0, b, i, n / DIM, n % DIM);
    for (int k = 0; k < len_k(p, b); k++)
      for (int h = 0; h < HEADS_KV; h++) {
        for (int d = 0; d < DIM; d++)
          p->k[key_at(p, b, k, h, DIM) + d] = value(1, b, k, h, d);
        for (int d = 0; d < DIM_V; d++)
          p->v[key_at(p, b, k, h, DIM_V) + d] = value(2, b, k, h, d);
      }
  }
  return p;
}

static void drop(problem *p) {
  qkv_spec_free(p->spec);
  free(p);
}

/* ---- Results ---- */

/* Sequence b of p as a dense call of its own. */
static void solve_alone(const problem *p, int b, float *o, float *lse, double *flops) {
  static const layout dense = {"{q: dense, kv: dense}", QKV_DENSE, QKV_DENSE, 0, false, false};
  problem *alone = make(&dense);
  qkv_attention_args a = alone->args;
  const int64_t q = len_q(p, b), k = len_k(p, b);
  a.q.data = (float *)a.q.data + b * a.q.stride[0], a.k.data = (float *)a.k.data + b * a.k.stride[0];
  a.v.data = (float *)a.v.data + b * a.v.stride[0];
  a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = 1;
  a.q.shape[1] = q, a.k.shape[1] = a.v.shape[1] = k;
  a.o = tensor(o, QKV_F32, 4, (int64_t[]){1, q, HEADS_Q, DIM_V});
  a.lse = tensor(lse, QKV_F32, 3, (int64_t[]){1, HEADS_Q, q});
  alone->params[0].tensor.shape[0] = 1;
  alone->params[0].tensor.data = alone->slope + b * HEADS_Q;
  assert_int_equal(qkv_reference(alone->spec, &a), QKV_OK);
  assert_int_equal(qkv_work(alone->spec, &a, flops, NULL), QKV_OK);
  drop(alone);
}

static void every_layout_gives_what_sequences_give_alone(void **state) {
  (void)state;
  for (int n = 0; n < LAYOUTS; n++) {
    problem *p = make(&layouts[n]);
    double flops = 0, sum = 0;
    int64_t written = 0;
    assert_int_equal(qkv_check_sequences(p->spec, &p->args), QKV_OK);
    assert_int_equal(qkv_reference(p->spec, &p->args), QKV_OK);
    assert_int_equal(qkv_work(p->spec, &p->args, &flops, NULL), QKV_OK);
    for (int b = 0; b < BATCH; b++) {
      float o[MAX_Q * HEADS_Q * DIM_V], lse[MAX_Q * HEADS_Q];
      double alone;
      solve_alone(p, b, o, lse, &alone);
      sum += alone;
      for (int i = 0; i < len_q(p, b); i++)
        for (int h = 0; h < HEADS_Q; h++, written++) {
          if (memcmp(&p->o[query_at(p, b, i, h, DIM_V)], &o[(i * HEADS_Q + h) * DIM_V], sizeof(float) * DIM_V) ||
              memcmp(&p->lse[lse_at(p, b, i, h)], &lse[h * len_q(p, b) + i], sizeof(float)))
            fail_msg("%s: sequence %d, query %d, head %d differs from the sequence alone", layouts[n].text, b, i, h);
        }
    }
    assert_true(flops == sum);
    int64_t numbers = 0; /* rows of no sequence keep their NaN */
    for (int at = 0; at < ROOM; at++)
      numbers += p->lse[at] == p->lse[at];
    assert_int_equal(numbers, written);
    drop(p);
  }
}

static void masks_know_the_lengths_of_a_sequence(void **state) {
  (void)state;
  for (int n = 0; n < LAYOUTS; n++) {
    problem *p = make(&layouts[n]);
    for (int b = 0; b < BATCH; b++) {
      unsigned char seen[MAX_Q * MAX_K + 1] = {0};
      const int queries = len_q(p, b), keys = len_k(p, b);
      seen[queries * keys] = 77;
      assert_int_equal(qkv_visible(p->spec, &p->args, b, 1, seen), QKV_OK);
      for (int i = 0; i < queries; i++)
        for (int k = 0; k < keys; k++) {
          int q = i + keys - queries, apart = q - k;
          assert_int_equal(seen[i * keys + k], apart >= 0 && apart % 5 != 3);
        }
      assert_int_equal(seen[queries * keys], 77);
      qkv_mask_map map = {.size = sizeof map, .batch = b, .tile_q = 4, .tile_k = 4};
      assert_int_equal(qkv_map_mask(NULL, p->spec, NULL, &p->args, &map), QKV_OK);
      assert_int_equal(map.rows, (queries + 3) / 4);
      assert_int_equal(map.columns, (keys + 3) / 4);
      for (int64_t t = 0; t < map.rows * map.columns; t++)
        assert_true(map.planned[t] == QKV_TILE_PARTIAL || map.planned[t] == map.actual[t]);
      qkv_mask_map_free(&map);
    }
    drop(p);
  }
}

/* Lengths as they would be after clamping give the same. */
static void lengths_beyond_what_is_declared_count_as_the_nearest(void **state) {
  (void)state;
  for (int n = 0; n < LAYOUTS; n++) {
    problem *wild = make(&layouts[n]), *tame = make(&layouts[n]);
    if (wild->layout->kv == QKV_PADDED) { /* what is declared may be read: it must not be NaN */
      for (int64_t at = 0; at < ROOM; at++)
        wild->k[at] = tame->k[at] = value(3, at, 0, 0, 0), wild->v[at] = tame->v[at] = value(4, at, 0, 0, 0);
      wild->lengths[1] = INT32_MAX, tame->lengths[1] = MAX_K;
      wild->lengths[3] = MAX_K + 1, tame->lengths[3] = MAX_K;
    }
    wild->lengths[0] = INT32_MIN, tame->lengths[0] = 0;
    wild->lengths[2] = -1, tame->lengths[2] = 0;
    wild->cu_q[0] = wild->cu_k[0] = -5, tame->cu_q[0] = tame->cu_k[0] = 0;
    for (int64_t at = 0; at < 2 * HEADS_Q * DIM; at++) /* rows of nobody that have become somebody's */
      wild->q[at] = tame->q[at] = wild->layout->q == QKV_RAGGED ? value(5, at, 0, 0, 0) : tame->q[at];
    for (int64_t at = 0; at < HEADS_KV * DIM && wild->layout->kv == QKV_RAGGED; at++)
      wild->k[at] = tame->k[at] = wild->v[at % (HEADS_KV * DIM_V)] = tame->v[at % (HEADS_KV * DIM_V)] = 0.5f;
    wild->cu_q[BATCH] = wild->cu_k[BATCH] = INT32_MAX;
    tame->cu_q[BATCH] = (int32_t)tame->args.q.shape[0], tame->cu_k[BATCH] = (int32_t)tame->args.k.shape[0];
    wild->indptr[BATCH] = INT32_MAX; /* nothing follows from it */
    assert_int_equal(qkv_reference(wild->spec, &wild->args), QKV_OK);
    assert_int_equal(qkv_reference(tame->spec, &tame->args), QKV_OK);
    if (memcmp(wild->o, tame->o, sizeof wild->o) || memcmp(wild->lse, tame->lse, sizeof wild->lse))
      fail_msg("%s: lengths beyond the limits are not clamped", layouts[n].text);
    drop(wild), drop(tame);
  }
}

/* ---- Refusals ---- */

typedef void change(problem *p);
/* clang-format off */
static void q_rank(problem *p) { p->args.q.rank = 5; }
static void few_starts(problem *p) { p->args.cu_seqlens_q.shape[0] = 0; }
static void one_start_less(problem *p) { p->args.cu_seqlens_k.shape[0] = BATCH; }
static void starts_i64(problem *p) { p->args.cu_seqlens_q.dtype = QKV_F32; }
static void starts_null(problem *p) { p->args.cu_seqlens_q.data = NULL; }
static void starts_apart(problem *p) { p->args.cu_seqlens_q.stride[0] = 2; }
static void table_apart(problem *p) { p->args.page_table.stride[p->args.page_table.rank - 1] = 2; }
static void table_rank(problem *p) { p->args.page_table.rank = 3 - p->args.page_table.rank; }
static void table_batch(problem *p) { p->args.page_table.shape[0] = BATCH + 1; }
static void lengths_missing(problem *p) { p->args.seqlens_k = (qkv_tensor){0}; }
static void starts_missing(problem *p) { p->args.cu_seqlens_q = (qkv_tensor){0}; }
static void page_extent(problem *p) { p->args.v.shape[p->layout->hnd ? 2 : 1] = 5; }
static void o_tokens(problem *p) { p->args.o.shape[0]++; }
static void lse_tokens(problem *p) { p->args.lse.shape[1]--; }
static void no_maximum_q(problem *p) { p->args.max_len_q = 0; }
static void no_maximum_k(problem *p) { p->args.max_len_k = 0; }
static void negative_maximum(problem *p) { p->args.max_len_k = -1; }
static void large_maximum(problem *p) { p->args.max_len_k = 4 * MAX_K + 20; }
static void other_maximum(problem *p) { p->args.max_len_q = MAX_Q + 1; }
static void batch_of_k(problem *p) { p->args.k.shape[0] = 3; }
/* Faults of what arrays hold. */
static void length_negative(problem *p) { p->lengths[2] = -3; }
static void length_long(problem *p) { p->lengths[3] = MAX_K + 1; }
static void starts_fall(problem *p) { p->cu_q[3] = p->cu_q[2] - 1; }
static void starts_leave(problem *p) { p->cu_k[BATCH] = (int32_t)p->args.k.shape[0] + 1; }
static void starts_early(problem *p) { p->cu_q[0] = -1; }
static void sequence_long(problem *p) { p->args.max_len_q = 8; }
static void page_negative(problem *p) {
  const int columns = (MAX_K + p->layout->page - 1) / p->layout->page;
  p->table[(p->layout->csr ? p->indptr[3] : 3 * columns) + 1] = -1;
}
static void page_beyond(problem *p) { p->table[0] = (int32_t)p->args.k.shape[0]; }
static void part_small(problem *p) { p->indptr[3]++; }
static void part_falls(problem *p) { p->indptr[2] = 0; }
static void part_leaves(problem *p) { p->indptr[BATCH] = p->indptr[BATCH] + 1; }

static const struct {
  int layout;
  change *change;
  bool in_arrays; /* qkv_check_sequences finds it, a call cannot */
  const char *says;
} faults[] = {
    {4, q_rank, false, "q: has rank 5, must have 3"},
    {0, q_rank, false, "q: has rank 5, must have 4"},
    {4, few_starts, false, "cu_seqlens_q: dimension 0, batch + 1, is 0; it must be 1 to "},
    {4, one_start_less, false, "cu_seqlens_k: dimension 0, batch + 1 is 5, must be 6"},
    {4, starts_i64, false, "cu_seqlens_q: is f32, must be i32"},
    {4, starts_null, false, "cu_seqlens_q: data is NULL"},
    {4, starts_apart, false, "cu_seqlens_q: dimension 0 has stride 2, must be contiguous"},
    {2, table_apart, false, "page_table: dimension 1 has stride 2, must be contiguous"},
    {2, table_rank, false, "page_table: has rank 1, must have 2"},
    {3, table_rank, false, "page_table: has rank 2, must have 1"},
    {7, table_batch, false, "page_table: dimension 0, batch is 6, must be 5"},
    {1, lengths_missing, false, "seqlens_k: is not given; the spec's layout needs it"},
    {4, starts_missing, false, "cu_seqlens_q: is not given; the spec's layout needs it"},
    {3, page_extent, false, "v: dimension 2, page is 5, must be 3"},
    {6, page_extent, false, "v: dimension 1, page is 5, must be 4"},
    {4, o_tokens, false, "o: dimension 0, tokens_q is "},
    {5, lse_tokens, false, "lse: dimension 1, tokens_q is "},
    {4, no_maximum_q, false, "max_len_q: is 0, and neither tensors nor limits.len_q"},
    {4, no_maximum_k, false, "max_len_k: is 0, and neither tensors nor limits.len_k"},
    {3, no_maximum_k, false, "max_len_k: is 0, and neither tensors nor limits.len_k"},
    {1, negative_maximum, false, "max_len_k: is -1; it must be 0 to 1073741824"},
    {1, large_maximum, false, "max_len_k: is 112; k has room for 23 tokens a sequence"},
    {2, large_maximum, false, "max_len_k: is 112; page_table has room for 23 tokens a sequence"},
    {0, large_maximum, false, "max_len_k: is 112; k has room for 23 tokens a sequence"},
    {1, other_maximum, false, "max_len_q: is 10; q has room for 9 tokens a sequence"},
    {5, batch_of_k, false, "k: dimension 0, batch is 3, must be 5"},
    {1, length_negative, true, "seqlens_k[2]: is -3, must be 0 to 23"},
    {7, length_long, true, "seqlens_k[3]: is 24, must be 0 to 23"},
    {4, starts_fall, true, "cu_seqlens_q[3]: is 4, below the 5 before it: they must not fall"},
    {4, starts_leave, true, "cu_seqlens_k[5]: is 41, must be at most 40, the tokens there are"},
    {5, starts_early, true, "cu_seqlens_q[0]: is -1, must be 0 to 23, the tokens there are"},
    {4, sequence_long, true, "cu_seqlens_q: sequence 2 has 9 tokens, the maximum is 8"},
    {2, page_negative, true, "page_table: page 1 of sequence 3 (its tokens from 1 on) is number -1, must be 0 to 38"},
    {6, page_negative, true, "page_table: page 1 of sequence 3 (its tokens from 4 on) is number -1, must be 0 to "},
    {7, page_beyond, true, "page_table: page 0 of sequence 0 (its tokens from 0 on) is number 7, must be 0 to 6"},
    {3, part_small, true, "page_indptr: sequence 3 has 7 pages, its 23 tokens need 8"},
    {3, part_falls, true, "page_indptr[2]: is 0, below the 3 before it: they must not fall"},
    {6, part_leaves, true, "page_indptr[5]: is 12, must be at most 11, the entries there are"},
};
/* clang-format on */

static void faults_are_named(void **state) {
  (void)state;
  for (size_t n = 0; n < sizeof faults / sizeof *faults; n++) {
    problem *p = make(&layouts[faults[n].layout]);
    faults[n].change(p);
    qkv_status status = faults[n].in_arrays ? qkv_check_sequences(p->spec, &p->args)
                                            : qkv_reference(p->spec, &p->args);
    if (status != QKV_INVALID_ARGUMENT || !strstr(qkv_last_error(NULL), faults[n].says))
      fail_msg("fault %zu, %s: status %d, \"%s\" instead of \"%s\"", n, layouts[faults[n].layout].text, (int)status,
               status ? qkv_last_error(NULL) : "", faults[n].says);
    drop(p);
  }
}

static void a_call_without_sequences_is_empty(void **state) {
  (void)state;
  for (int n = 0; n < LAYOUTS; n++) {
    problem *p = make(&layouts[n]);
    qkv_attention_args a = p->args;
    a.q.shape[0] = p->layout->q == QKV_RAGGED ? a.q.shape[0] : 0;
    a.o.shape[0] = a.q.shape[0];
    a.lse.shape[0] = p->layout->q == QKV_RAGGED ? a.lse.shape[0] : 0;
    if (p->layout->kv == QKV_DENSE || p->layout->kv == QKV_PADDED)
      a.k.shape[0] = a.v.shape[0] = 0;
    a.cu_seqlens_q.shape[0] = a.cu_seqlens_k.shape[0] = a.page_indptr.shape[0] = 1;
    a.seqlens_k.shape[0] = 0;
    a.seqlens_k.data = NULL;
    if (!p->layout->csr)
      a.page_table.shape[0] = 0;
    p->params[0].tensor.shape[0] = 0;
    if (qkv_reference(p->spec, &a) != QKV_OK)
      fail_msg("%s: %s", layouts[n].text, qkv_last_error(NULL));
    drop(p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_layout_gives_what_sequences_give_alone),
      cmocka_unit_test(masks_know_the_lengths_of_a_sequence),
      cmocka_unit_test(lengths_beyond_what_is_declared_count_as_the_nearest),
      cmocka_unit_test(faults_are_named),
      cmocka_unit_test(a_call_without_sequences_is_empty),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
