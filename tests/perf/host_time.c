/* host_time.c: what a call costs the host: qkv_attention for many and for few queries from a paged cache, qkv_attention
 * of dense tensors, and qkv_append, after prepare. The kernels themselves have next to nothing to do, and the device is
 * waited for between batches of calls, outside of the clock, so that no call waits for a place in its queue.
 *
 *   host_time [DEVICE [BATCHES [CALLS]]]     prints nanoseconds a call: median, 10th and 90th percentile of so many
 *                                            batches (200) of so many calls (100)
 *
 * On emu a call runs its kernel: the numbers then only show that the program works. Exit code: 0, or 1 where a call
 * fails. That a call allocates, locks and waits for nothing is what tests/unit/test_launch_path.c counts. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "qkv.h"

enum { HEADS_Q = 32, HEADS_KV = 8, DIM = 128, PAGE = 16, BATCH = 4, TOKENS = 64, NEW = 32, MOST_BATCHES = 10000 };

static const char *const PAGED = "qkvc: 1\n"
                                 "name: host_time\n"
                                 "attention: {heads: {q: 32, kv: 8}, dim: 128, dtype: bf16, mask: causal}\n"
                                 "layout: {q: ragged, kv: {paged: {page: 16, order: nhd}}}\n"
                                 "rope: {theta: 10000}\n"
                                 "append: {slots: lengths}\n";
static const char *const DENSE = "qkvc: 1\n"
                                 "name: host_time_dense\n"
                                 "attention: {heads: {q: 32, kv: 8}, dim: 128, dtype: bf16, mask: causal}\n";

static void check(qkv_status status) {
  if (status == QKV_OK)
    return;
  fprintf(stderr, "host_time: %s\n", qkv_last_error(NULL));
  exit(1);
}

static void *device_memory(qkv_engine *engine, size_t bytes, const void *from) {
  void *memory, *zeros = calloc(1, bytes);
  check(qkv_alloc(engine, bytes, &memory));
  check(qkv_copy_to_device(engine, memory, from ? from : zeros, bytes));
  free(zeros);
  return memory;
}

static qkv_tensor tensor(void *data, qkv_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  return qkv_tensor_dense(data, dtype, rank, (int64_t[]){a, b, c, d});
}

/* A call to be timed: of one of the two kinds. */
typedef struct timed_call {
  const char *name;
  const qkv_op *op;
  const qkv_attention_args *attention;
  const qkv_append_args *append;
} timed_call;

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void time_call(qkv_engine *engine, const timed_call *c, int batches, int calls) {
  static double samples[MOST_BATCHES];
  for (int n = -(batches / 10); n < batches; n++) { /* the first ones warm up */
    const double start = seconds_now();
    for (int i = 0; i < calls; i++)
      check(c->attention ? qkv_attention(c->op, c->attention, NULL) : qkv_append(c->op, c->append, NULL));
    if (n >= 0)
      samples[n] = (seconds_now() - start) / calls * 1e9;
    check(qkv_synchronize(engine));
  }
  qsort(samples, (size_t)batches, sizeof *samples, compare);
  printf("%-28s %6.0f ns a call (%.0f to %.0f)\n", c->name, samples[batches / 2], samples[batches / 10],
         samples[batches - 1 - batches / 10]);
}

/* What is timed, on one device. */
typedef struct bench {
  qkv_engine *engine;
  qkv_op *serve, *forward, *append;
  qkv_attention_args many, few, dense;
  qkv_append_args one;
} bench;

static void prepare(bench *b, qkv_spec *paged, qkv_spec *dense) {
  qkv_limits limits = QKV_LIMITS_INIT, appends = QKV_LIMITS_INIT;
  limits.batch = BATCH, limits.len_q = limits.len_k = TOKENS;
  appends.phase = "append";
  check(qkv_prepare(b->engine, paged, &limits, &b->serve));
  check(qkv_prepare(b->engine, dense, &limits, &b->forward));
  check(qkv_prepare(b->engine, paged, &appends, &b->append));
}

static qkv_tensor indices(const bench *b, const int32_t *values, int rank, int64_t rows, int64_t columns) {
  const size_t bytes = sizeof *values * (size_t)(rows * (rank > 1 ? columns : 1));
  return tensor(device_memory(b->engine, bytes, values), QKV_I32, rank, rows, columns, 0, 0);
}

static void make_arguments(bench *b) {
  int32_t table[BATCH][TOKENS / PAGE], ones[BATCH + 1] = {0}, ends[BATCH + 1] = {0}, lengths[BATCH];
  for (int n = 0; n < BATCH; n++) {
    for (int page = 0; page < TOKENS / PAGE; page++)
      table[n][page] = n * (TOKENS / PAGE) + page;
    ones[n + 1] = n + 1, ends[n + 1] = (n + 1) * NEW, lengths[n] = TOKENS;
  }
  const size_t bytes = sizeof(uint16_t) * BATCH * TOKENS * DIM;
  const size_t serve = qkv_workspace_size(b->serve), forward = qkv_workspace_size(b->forward);
  const size_t workspace = serve > forward ? serve : forward;
  void *q = device_memory(b->engine, bytes * HEADS_Q, NULL), *o = device_memory(b->engine, bytes * HEADS_Q, NULL),
       *k = device_memory(b->engine, bytes * HEADS_KV, NULL), *v = device_memory(b->engine, bytes * HEADS_KV, NULL),
       *new_k = device_memory(b->engine, bytes * HEADS_KV, NULL),
       *new_v = device_memory(b->engine, bytes * HEADS_KV, NULL),
       *room = device_memory(b->engine, workspace + 1, NULL);
  b->many = b->few = b->dense = (qkv_attention_args)QKV_ATTENTION_ARGS_INIT;
  b->many.q = tensor(q, QKV_BF16, 3, BATCH * NEW, HEADS_Q, DIM, 0);
  b->many.o = tensor(o, QKV_BF16, 3, BATCH * NEW, HEADS_Q, DIM, 0);
  b->many.k = tensor(k, QKV_BF16, 4, BATCH * TOKENS / PAGE, PAGE, HEADS_KV, DIM);
  b->many.v = tensor(v, QKV_BF16, 4, BATCH * TOKENS / PAGE, PAGE, HEADS_KV, DIM);
  b->many.cu_seqlens_q = indices(b, ends, 1, BATCH + 1, 0);
  b->many.seqlens_k = indices(b, lengths, 1, BATCH, 0);
  b->many.page_table = indices(b, table[0], 2, BATCH, TOKENS / PAGE);
  b->many.max_len_q = NEW, b->many.max_len_k = TOKENS;
  b->many.workspace = room, b->many.workspace_bytes = workspace;
  b->few = b->many;
  b->few.q = tensor(q, QKV_BF16, 3, BATCH, HEADS_Q, DIM, 0);
  b->few.o = tensor(o, QKV_BF16, 3, BATCH, HEADS_Q, DIM, 0);
  b->few.cu_seqlens_q = indices(b, ones, 1, BATCH + 1, 0);
  b->few.max_len_q = 1;
  b->dense.q = tensor(q, QKV_BF16, 4, BATCH, TOKENS, HEADS_Q, DIM);
  b->dense.o = tensor(o, QKV_BF16, 4, BATCH, TOKENS, HEADS_Q, DIM);
  b->dense.k = tensor(k, QKV_BF16, 4, BATCH, TOKENS, HEADS_KV, DIM);
  b->dense.v = tensor(v, QKV_BF16, 4, BATCH, TOKENS, HEADS_KV, DIM);
  b->dense.workspace = room, b->dense.workspace_bytes = workspace;
  b->one = (qkv_append_args)QKV_APPEND_ARGS_INIT;
  b->one.q = b->few.q, b->one.q_out = b->few.o;
  b->one.k = tensor(new_k, QKV_BF16, 3, BATCH, HEADS_KV, DIM, 0);
  b->one.v = tensor(new_v, QKV_BF16, 3, BATCH, HEADS_KV, DIM, 0);
  b->one.k_cache = b->many.k, b->one.v_cache = b->many.v;
  b->one.cu_seqlens_q = b->few.cu_seqlens_q, b->one.seqlens_k = b->many.seqlens_k;
  b->one.page_table = b->many.page_table;
}

/* The memory goes with the process. */
int main(int argc, char **argv) {
  const int batches = argc > 2 ? atoi(argv[2]) : 200, calls = argc > 3 ? atoi(argv[3]) : 100;
  qkv_options options = QKV_OPTIONS_INIT;
  qkv_spec *paged, *dense;
  bench b;
  options.device = argc > 1 ? argv[1] : NULL;
  if (batches < 1 || batches > MOST_BATCHES || calls < 1) {
    fprintf(stderr, "usage: host_time [DEVICE [BATCHES [CALLS]]], up to %d batches\n", MOST_BATCHES);
    return 1;
  }
  check(qkv_open(&options, &b.engine));
  check(qkv_spec_load(b.engine, PAGED, &paged));
  check(qkv_spec_load(b.engine, DENSE, &dense));
  prepare(&b, paged, dense);
  make_arguments(&b);
  qkv_attention_args later[] = {b.many, b.few, b.dense}; /* of the layers behind the first */
  for (int n = 0; n < 3; n++)
    later[n].reuse_plan = 1;
  const timed_call timed[] = {{"attention, paged, many", b.serve, &b.many, NULL},
                              {"  with reuse_plan", b.serve, &later[0], NULL},
                              {"attention, paged, one query", b.serve, &b.few, NULL},
                              {"  with reuse_plan", b.serve, &later[1], NULL},
                              {"attention, dense", b.forward, &b.dense, NULL},
                              {"  with reuse_plan", b.forward, &later[2], NULL},
                              {"append", b.append, NULL, &b.one}};
  for (size_t n = 0; n < sizeof timed / sizeof *timed; n++)
    time_call(b.engine, &timed[n], batches, calls);
  qkv_op_free(b.serve), qkv_op_free(b.append), qkv_op_free(b.forward);
  qkv_spec_free(paged), qkv_spec_free(dense);
  qkv_close(b.engine);
  return 0;
}
