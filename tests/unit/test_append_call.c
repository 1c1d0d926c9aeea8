/* test_append_call.c: descriptions of appends and their reference, in host memory: every layout of the cache and every
 * way to say a place stores the rows that a packed cache gets by slots; a fused projection is its parts; faults have
 * their argument's name.
 * tests/python/test_append.py holds the reference against another form of it. */
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

enum { BATCH = 3, TOKENS = 9, HEADS_Q = 4, HEADS_KV = 2, DIM = 16, DIM_V = 8, ROOM = 4096, CAPACITY = 12, PAGES = 16 };
enum { ROW = (HEADS_Q + HEADS_KV) * DIM + HEADS_KV * DIM_V };

/* New and all tokens of the sequences; where layout.q is dense, all have as many new ones. */
static const int new_of[BATCH] = {4, 0, 5}, new_dense[BATCH] = {3, 3, 3}, all_of[BATCH] = {7, 3, 5};

typedef struct layout {
  const char *text;
  bool dense_q, csr, hnd;
  int page; /* 0: none */
  enum { PADDED, RAGGED, PAGED } kv;
} layout;

static const layout layouts[] = {
    {"{q: ragged, kv: ragged}", false, false, false, 0, RAGGED},
    {"{q: ragged, kv: padded}", false, false, false, 0, PADDED},
    {"{q: dense, kv: padded}", true, false, false, 0, PADDED},
    {"{q: ragged, kv: {paged: {page: 1, table: csr}}}", false, true, false, 1, PAGED},
    {"{q: ragged, kv: {paged: {page: 3, order: hnd}}}", false, false, true, 3, PAGED},
    {"{q: dense, kv: {paged: {page: 4, order: hnd, table: csr}}}", true, true, true, 4, PAGED},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* One call in host memory. */
typedef struct problem {
  const layout *layout;
  qkv_spec *spec;
  qkv_append_args args;
  float rows[TOKENS][ROW], q_out[TOKENS][HEADS_Q][DIM], k[ROOM], v[ROOM], norm[DIM];
  int64_t slots[TOKENS], positions[TOKENS];
  int32_t cu_q[BATCH + 1], cu_k[BATCH + 1], lengths[BATCH], table[64], indptr[BATCH + 1];
} problem;

static qkv_tensor line(void *data, qkv_dtype dtype, int64_t extent) {
  return qkv_tensor_dense(data, dtype, 1, &extent);
}

static qkv_tensor part(problem *p, int first, int heads, int dim) {
  qkv_tensor t = qkv_tensor_dense(&p->rows[0][first], QKV_F32, 3, (int64_t[]){TOKENS, heads, dim});
  t.stride[0] = ROW;
  return t;
}

/* Sequences in backward pages; slot of every new token. */
static void place(problem *p) {
  const layout *l = p->layout;
  int token = 0, entry = 0;
  const int columns = CAPACITY;
  memset(p->table, 0x7f, sizeof p->table);
  for (int b = 0; b < BATCH; b++) {
    const int fresh = l->dense_q ? new_dense[b] : new_of[b], pages = l->page ? (all_of[b] + l->page - 1) / l->page : 0;
    p->cu_q[b + 1] = p->cu_q[b] + fresh;
    p->cu_k[b + 1] = p->cu_k[b] + all_of[b];
    p->lengths[b] = all_of[b];
    p->indptr[b + 1] = p->indptr[b] + pages;
    int32_t *own = p->table + (l->csr ? p->indptr[b] : b * columns);
    for (int n = 0; n < pages; n++)
      own[n] = PAGES - 1 - entry++;
    for (int i = 0; i < fresh; i++, token++) {
      const int at = all_of[b] - fresh + i;
      p->positions[token] = at;
      p->slots[token] = l->kv == RAGGED   ? p->cu_k[b] + at
                        : l->kv == PADDED ? b * CAPACITY + at
                                          : own[at / l->page] * l->page + at % l->page;
    }
  }
}

static qkv_tensor cache(const layout *l, float *data, int dim) {
  if (l->kv == RAGGED)
    return qkv_tensor_dense(data, QKV_F32, 3, (int64_t[]){15, HEADS_KV, dim});
  if (l->kv == PADDED)
    return qkv_tensor_dense(data, QKV_F32, 4, (int64_t[]){BATCH, CAPACITY, HEADS_KV, dim});
  if (l->hnd)
    return qkv_tensor_dense(data, QKV_F32, 4, (int64_t[]){PAGES, HEADS_KV, l->page, dim});
  return qkv_tensor_dense(data, QKV_F32, 4, (int64_t[]){PAGES, l->page, HEADS_KV, dim});
}

static problem *make(const layout *l, const char *slots) {
  char source[512];
  problem *p = calloc(1, sizeof *p);
  assert_non_null(p);
  p->layout = l;
  snprintf(source, sizeof source,
           "qkvc: 1\nname: t\nattention: {heads: {q: 4, kv: 2}, dim: {qk: 16, v: 8}, dtype: f32}\nlayout: %s\n"
           "rope: {dims: 12}\nappend: {norm: rms, slots: %s}\n",
           l->text, slots);
  if (qkv_spec_check(source, 0, &p->spec) != QKV_OK)
    fail_msg("%s", qkv_last_error(NULL));
  for (int t = 0; t < TOKENS; t++)
    for (int n = 0; n < ROW; n++)
      p->rows[t][n] = (float)((t * ROW + n) * 7919 % 1009) / 500 - 1;
  for (int d = 0; d < DIM; d++)
    p->norm[d] = 1 + (float)d / 16;
  for (int n = 0; n < ROOM; n++)
    p->k[n] = p->v[n] = 99;
  place(p);
  p->args = (qkv_append_args)QKV_APPEND_ARGS_INIT;
  p->args.q = part(p, 0, HEADS_Q, DIM);
  p->args.k = part(p, HEADS_Q * DIM, HEADS_KV, DIM);
  p->args.v = part(p, (HEADS_Q + HEADS_KV) * DIM, HEADS_KV, DIM_V);
  p->args.q_out = qkv_tensor_dense(p->q_out, QKV_F32, 3, (int64_t[]){TOKENS, HEADS_Q, DIM});
  p->args.k_cache = cache(l, p->k, DIM);
  p->args.v_cache = cache(l, p->v, DIM_V);
  p->args.q_norm = p->args.k_norm = line(p->norm, QKV_F32, DIM);
  p->args.slots = line(p->slots, QKV_I64, TOKENS);
  p->args.positions = line(p->positions, QKV_I64, TOKENS);
  p->args.cu_seqlens_q = line(p->cu_q, QKV_I32, BATCH + 1);
  p->args.cu_seqlens_k = line(p->cu_k, QKV_I32, BATCH + 1);
  p->args.seqlens_k = line(p->lengths, QKV_I32, BATCH);
  p->args.page_indptr = line(p->indptr, QKV_I32, BATCH + 1);
  p->args.page_table = l->csr ? line(p->table, QKV_I32, p->indptr[BATCH])
                              : qkv_tensor_dense(p->table, QKV_I32, 2, (int64_t[]){BATCH, CAPACITY});
  return p;
}

static void drop(problem *p) {
  qkv_spec_free(p->spec);
  free(p);
}

static void run(problem *p) {
  if (qkv_append_reference(p->spec, &p->args) != QKV_OK)
    fail_msg("%s: %s", p->layout->text, qkv_last_error(NULL));
}

/* The row of head h that lies in slot `slot` of a cache. */
static const float *row_at(const layout *l, const float *data, int64_t slot, int h, int dim) {
  if (l->hnd)
    return data + ((slot / l->page * HEADS_KV + h) * l->page + slot % l->page) * dim;
  return data + (slot * HEADS_KV + h) * dim;
}

/* ---- Results ---- */

static const char *const slot_words[] = {"mapping", "positions", "lengths"};

static void every_layout_stores_the_same_rows(void **state) {
  (void)state;
  for (int n = 0; n < LAYOUTS; n++)
    for (int word = 0; word < 3; word++) {
      problem *p = make(&layouts[n], slot_words[word]), *packed = make(&layouts[0], "mapping");
      /* The same rows and positions; a slot each. */
      memcpy(packed->positions, p->positions, sizeof p->positions);
      for (int t = 0; t < TOKENS; t++)
        packed->slots[t] = t;
      run(p);
      run(packed);
      assert_memory_equal(p->q_out, packed->q_out, sizeof p->q_out);
      for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS_KV; h++) {
          assert_memory_equal(row_at(&layouts[n], p->k, p->slots[t], h, DIM),
                              row_at(&layouts[0], packed->k, t, h, DIM), DIM * sizeof(float));
          assert_memory_equal(row_at(&layouts[n], p->v, p->slots[t], h, DIM_V),
                              row_at(&layouts[0], packed->v, t, h, DIM_V), DIM_V * sizeof(float));
        }
      int kept = 0;
      for (int e = 0; e < ROOM; e++)
        kept += p->k[e] != 99;
      assert_int_equal(kept, TOKENS * HEADS_KV * DIM);
      drop(p);
      drop(packed);
    }
}

static void a_projection_is_its_parts(void **state) {
  (void)state;
  problem *apart = make(&layouts[4], "lengths"), *fused = make(&layouts[4], "lengths");
  run(apart);
  fused->args.q = fused->args.k = fused->args.v = (qkv_tensor){0};
  fused->args.qkv = qkv_tensor_dense(fused->rows, QKV_F32, 2, (int64_t[]){TOKENS, ROW});
  run(fused);
  assert_memory_equal(apart->q_out, fused->q_out, sizeof apart->q_out);
  assert_memory_equal(apart->k, fused->k, sizeof apart->k);
  assert_memory_equal(apart->v, fused->v, sizeof apart->v);
  drop(apart);
  drop(fused);
}

static void places_outside_are_skipped(void **state) {
  (void)state;
  static const int64_t outside[] = {-1, INT64_MIN, INT64_MAX, (int64_t)PAGES * 3};
  for (int n = 0; n < 4; n++)
    for (int word = 0; word < 2; word++) {
      problem *p = make(&layouts[4], slot_words[word]);
      (word ? p->positions : p->slots)[2] = word && n == 3 ? 7 : outside[n]; /* the first sequence has 7 */
      run(p);
      int kept = 0;
      for (int e = 0; e < ROOM; e++)
        kept += p->k[e] != 99;
      assert_int_equal(kept, (TOKENS - 1) * HEADS_KV * DIM);
      drop(p);
    }
}

/* Arrays of anything: no byte outside of the cache, which the sanitizers watch; and nothing at all where it is empty. */
static void arrays_of_anything(void **state) {
  (void)state;
  static const int32_t values[] = {INT32_MIN, -3, 0, 2, 5, 9, 40, INT32_MAX};
  uint32_t seed = 1;
  for (int round = 0; round < 300; round++) {
    problem *p = make(&layouts[round % 2], "lengths"); /* page numbers are taken as they are */
    int32_t *const arrays[] = {p->cu_q, p->cu_k, p->lengths};
    for (int a = 0; a < 3; a++)
      for (int b = 0; b < BATCH + (a < 2); b++)
        arrays[a][b] = values[(seed = seed * 1664525u + 1013904223u) >> 29];
    const int64_t used = p->args.k_cache.shape[0] * p->args.k_cache.stride[0];
    run(p);
    for (int64_t e = used; e < ROOM; e++)
      assert_true(p->k[e] == 99);
    drop(p);
  }
}

/* ---- Faults ---- */

typedef void (*fault)(qkv_append_args *args);
#define FAULT(NAME, CHANGE)                                                                                            \
  static void NAME(qkv_append_args *args) {                                                                            \
    CHANGE;                                                                                                            \
  }
FAULT(no_size, args->size = 0)
FAULT(no_q, args->q = (qkv_tensor){0})
FAULT(no_table, args->page_table = (qkv_tensor){0})
FAULT(short_table, args->page_table.shape[0] = 2)
FAULT(far_stride, args->k.stride[0] = INT64_MAX / 2)
FAULT(null_data, args->v.data = NULL)
FAULT(loose_norm, args->k_norm.stride[0] = 2)
FAULT(self_overlap, args->k_cache.stride[0] = 0)
FAULT(wide_lengths, args->seqlens_k.dtype = QKV_I64)
FAULT(negative, args->k.shape[0] = -1)
FAULT(few_starts, args->cu_seqlens_q.shape[0] = 0)
FAULT(both, args->qkv = args->q)

static void faults_are_named(void **state) {
  (void)state;
  static const struct {
    fault change;
    const char *message;
  } rows[] = {
      {no_size, "args.size is not set"},
      {no_q, "q: is not given; the spec's append needs it"},
      {no_table, "page_table: is not given; the spec's layout needs it"},
      {short_table, "page_table: dimension 0, batch is 2, must be 3"},
      {far_stride, "k: dimension 0, stride 4611686018427387903, reaches beyond 2^63 bytes"},
      {null_data, "v: data is NULL"},
      {loose_norm, "k_norm: dimension 0 has stride 2, must be contiguous"},
      {self_overlap, "k_cache: dimension 0 has stride 0: an output must not overlap itself"},
      {wide_lengths, "seqlens_k: is i64, must be i32"},
      {negative, "k: dimension 0, tokens, is -1; it must be 0 to 2147483647"},
      {few_starts, "cu_seqlens_q: dimension 0, batch + 1, is 0; it must be 1 to 1073741824"},
      {both, "qkv: holds q, k and v, so these must not be given as well"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    problem *p = make(&layouts[4], "lengths");
    rows[n].change(&p->args);
    assert_int_equal(qkv_append_reference(p->spec, &p->args), QKV_INVALID_ARGUMENT);
    if (!strstr(qkv_last_error(NULL), rows[n].message))
      fail_msg("expected: %s\ngot: %s", rows[n].message, qkv_last_error(NULL));
    drop(p);
  }
  problem *p = make(&layouts[2], "lengths");
  p->args.q.shape[0] = p->args.k.shape[0] = p->args.v.shape[0] = p->args.q_out.shape[0] = 8;
  assert_int_equal(qkv_append_reference(p->spec, &p->args), QKV_INVALID_ARGUMENT);
  assert_non_null(strstr(qkv_last_error(NULL), "is 8; layout.q is dense, so it must be a multiple of the batch, 3"));
  assert_int_equal(qkv_append_reference(NULL, &p->args), QKV_INVALID_ARGUMENT);
  assert_int_equal(qkv_append_reference(p->spec, NULL), QKV_INVALID_ARGUMENT);
  assert_int_equal(qkv_append(NULL, &p->args, NULL), QKV_INVALID_ARGUMENT);
  drop(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_layout_stores_the_same_rows),
      cmocka_unit_test(a_projection_is_its_parts),
      cmocka_unit_test(places_outside_are_skipped),
      cmocka_unit_test(arrays_of_anything),
      cmocka_unit_test(faults_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
