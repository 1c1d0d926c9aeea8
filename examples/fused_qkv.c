/* fused_qkv.c: the attention of a decoder layer as an engine serves it. One GEMM makes queries, keys and values;
 * qkv_append turns its rows and writes them into a paged cache from where they lie; qkv_attention reads the cache.
 *
 *   hidden [tokens, HIDDEN] x weights [HIDDEN, ROW] -> qkv [tokens, ROW]     cuBLASLt; on device emu the host
 *   qkv -> q_out [tokens, HEADS_Q, DIM], k_cache, v_cache                    qkv_append
 *   q_out, k_cache, v_cache -> o [tokens, HEADS_Q, DIM]                      qkv_attention
 *
 * Two steps of three sequences, all three calls on one stream: their prompts, then a token each. What comes out is
 * compared with plain f32 on the host.
 *
 *   cc -DWITH_CUBLASLT fused_qkv.c $(pkg-config --cflags --libs qkv) -lcublasLt -lcudart -lm
 *   ./a.out            on a GPU
 *   ./a.out emu        without one, and without -DWITH_CUBLASLT, -lcublasLt and -lcudart if need be
 *
 * Exit code: 0 right, 1 wrong or failed, 77 nothing to run on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv.h"

#ifdef WITH_CUBLASLT
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#endif

static const char *const SPEC = "qkvc: 1\n"
                                "name: fused_qkv\n"
                                "attention: {heads: {q: 8, kv: 2}, dim: 64, dtype: bf16, mask: causal}\n"
                                "layout: {q: ragged, kv: {paged: {page: 16, order: nhd}}}\n"
                                "rope: {theta: 10000}\n"
                                "append: {slots: lengths}\n";
enum {
  HEADS_Q = 8,
  HEADS_KV = 2,
  DIM = 64,
  PAGE = 16,
  HIDDEN = 128,
  ROW = (HEADS_Q + 2 * HEADS_KV) * DIM, /* of qkv: queries, then keys, then values */
  BATCH = 3,
  COLUMNS = 3, /* pages of a sequence */
  CAPACITY = COLUMNS * PAGE,
  STEPS = 2,
  MOST_TOKENS = 64,
  NO_DEVICE = 77
};
static const int NEW_TOKENS[STEPS][BATCH] = {{33, 7, 18}, {1, 1, 1}};
static const int32_t PAGE_TABLE[BATCH][COLUMNS] = {{4, 0, 7}, {2, 8, 5}, {1, 6, 3}};

/* Stops the program where a call of the library fails. */
static void check(qkv_status status) {
  if (status == QKV_OK)
    return;
  fprintf(stderr, "fused_qkv: %s\n", qkv_last_error(NULL));
  exit(1);
}

/* ---- bf16: the upper half of an f32 ---- */

static float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

/* Numbers from -most to most, the same in every run. */
static void fill(uint16_t *to, int count, float most) {
  static uint32_t state = 1;
  for (int n = 0; n < count; n++) {
    state = state * 1664525u + 1013904223u;
    to[n] = to_bf16(most * ((float)(state >> 8) / (float)(1 << 23) - 1.0f));
  }
}

/* ---- The layer on a device ---- */

typedef struct layer {
  qkv_engine *engine;
  qkv_spec *spec;
  qkv_op *append, *attend;
  qkv_stream stream;
  void *hidden, *weights, *qkv, *q_out, *k_cache, *v_cache, *o; /* bf16 */
  void *starts, *lengths, *table;                               /* i32: cu_seqlens_q, seqlens_k, page_table */
  void *workspace;                                              /* of attention */
#ifdef WITH_CUBLASLT
  cublasLtHandle_t blas;
  void *blas_workspace;
#endif
} layer;

#ifdef WITH_CUBLASLT
static const size_t BLAS_WORKSPACE = 32 << 20;

static void check_cuda(int error, const char *call) {
  if (!error)
    return;
  fprintf(stderr, "fused_qkv: %s: error %d\n", call, error);
  exit(1);
}
#define CUDA(CALL) check_cuda((int)(CALL), #CALL)

/* qkv = hidden x weights. To cuBLASLt, which counts by columns, a matrix stored by rows is its transpose: it gets
 * qkv^T [ROW, tokens] = weights^T [ROW, HIDDEN] x hidden^T [HIDDEN, tokens], and nothing needs transposing. */
static void project_on_gpu(const layer *l, int tokens) {
  const float one = 1.0f, zero = 0.0f;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t weights, hidden, qkv;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  CUDA(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  CUDA(cublasLtMatrixLayoutCreate(&weights, CUDA_R_16BF, ROW, HIDDEN, ROW));
  CUDA(cublasLtMatrixLayoutCreate(&hidden, CUDA_R_16BF, HIDDEN, (uint64_t)tokens, HIDDEN));
  CUDA(cublasLtMatrixLayoutCreate(&qkv, CUDA_R_16BF, ROW, (uint64_t)tokens, ROW));
  CUDA(cublasLtMatmulPreferenceCreate(&preference));
  CUDA(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &BLAS_WORKSPACE,
                                            sizeof BLAS_WORKSPACE));
  CUDA(cublasLtMatmulAlgoGetHeuristic(l->blas, product, weights, hidden, qkv, qkv, preference, 1, &best, &found));
  if (found == 0)
    check_cuda(1, "cublasLtMatmulAlgoGetHeuristic found no algorithm");
  CUDA(cublasLtMatmul(l->blas, product, &one, l->weights, weights, l->hidden, hidden, &zero, l->qkv, qkv, l->qkv, qkv,
                      &best.algo, l->blas_workspace, BLAS_WORKSPACE, (cudaStream_t)l->stream));
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(qkv);
  cublasLtMatrixLayoutDestroy(hidden);
  cublasLtMatrixLayoutDestroy(weights);
  cublasLtMatmulDescDestroy(product);
}
#endif

/* A row of hidden x weights, in f32. */
static void project_row(float row[ROW], const uint16_t *hidden, const uint16_t *weights) {
  memset(row, 0, ROW * sizeof *row);
  for (int k = 0; k < HIDDEN; k++)
    for (int n = 0; n < ROW; n++)
      row[n] += from_bf16(hidden[k]) * from_bf16(weights[k * ROW + n]);
}

/* The same for device emu, which has no GEMM. */
static void project_on_host(const layer *l, int tokens, const uint16_t *hidden, const uint16_t *weights) {
  static uint16_t qkv[MOST_TOKENS * ROW];
  for (int token = 0; token < tokens; token++) {
    float row[ROW];
    project_row(row, hidden + token * HIDDEN, weights);
    for (int n = 0; n < ROW; n++)
      qkv[token * ROW + n] = to_bf16(row[n]);
  }
  check(qkv_copy_to_device(l->engine, l->qkv, qkv, (size_t)tokens * ROW * sizeof *qkv));
}

/* Slow work, once: kernels are compiled, memory is allocated. */
static void open_layer(layer *l, const uint16_t *weights) {
  const size_t cache = sizeof(uint16_t) * BATCH * CAPACITY * HEADS_KV * DIM;
  qkv_limits append = QKV_LIMITS_INIT, attend = QKV_LIMITS_INIT;
  append.phase = "append";
  attend.batch = BATCH;
  attend.len_q = attend.len_k = CAPACITY;
  check(qkv_spec_load(l->engine, SPEC, &l->spec));
  check(qkv_prepare(l->engine, l->spec, &append, &l->append));
  check(qkv_prepare(l->engine, l->spec, &attend, &l->attend)); /* kernels for many queries and for few */
  const struct {
    void **memory;
    size_t bytes;
  } all[] = {{&l->hidden, sizeof(uint16_t) * MOST_TOKENS * HIDDEN},
             {&l->weights, sizeof(uint16_t) * HIDDEN * ROW},
             {&l->qkv, sizeof(uint16_t) * MOST_TOKENS * ROW},
             {&l->q_out, sizeof(uint16_t) * MOST_TOKENS * HEADS_Q * DIM},
             {&l->k_cache, cache},
             {&l->v_cache, cache},
             {&l->o, sizeof(uint16_t) * MOST_TOKENS * HEADS_Q * DIM},
             {&l->starts, sizeof(int32_t) * (BATCH + 1)},
             {&l->lengths, sizeof(int32_t) * BATCH},
             {&l->table, sizeof PAGE_TABLE},
#ifdef WITH_CUBLASLT
             {&l->blas_workspace, l->blas ? BLAS_WORKSPACE : 1},
#endif
             {&l->workspace, qkv_workspace_size(l->attend) + 1}};
  for (size_t n = 0; n < sizeof all / sizeof *all; n++)
    check(qkv_alloc(l->engine, all[n].bytes, all[n].memory));
  check(qkv_copy_to_device(l->engine, l->weights, weights, sizeof(uint16_t) * HIDDEN * ROW));
  check(qkv_copy_to_device(l->engine, l->table, PAGE_TABLE, sizeof PAGE_TABLE));
}

static void close_layer(layer *l) {
  void *const all[] = {l->hidden, l->weights, l->qkv,   l->q_out,   l->k_cache,  l->v_cache,
                       l->o,      l->starts,  l->table, l->lengths, l->workspace};
  for (size_t n = 0; n < sizeof all / sizeof *all; n++)
    check(qkv_free(l->engine, all[n]));
#ifdef WITH_CUBLASLT
  check(qkv_free(l->engine, l->blas_workspace));
  if (l->blas) {
    CUDA(cublasLtDestroy(l->blas));
    CUDA(cudaStreamDestroy((cudaStream_t)l->stream));
  }
#endif
  qkv_op_free(l->attend);
  qkv_op_free(l->append);
  qkv_spec_free(l->spec);
  qkv_close(l->engine);
}

static qkv_tensor integers(void *data, int rank, int64_t first, int64_t second) {
  return qkv_tensor_dense(data, QKV_I32, rank, (int64_t[]){first, second});
}

/* Keys and values of `tokens` new tokens into the cache, then what they attend to. Both calls take the same arrays. */
static void append_and_attend(const layer *l, int tokens, int longest) {
  const int64_t heads[] = {tokens, HEADS_Q, DIM}, pages[] = {BATCH * COLUMNS, PAGE, HEADS_KV, DIM};
  qkv_append_args append = QKV_APPEND_ARGS_INIT;
  append.qkv = qkv_tensor_dense(l->qkv, QKV_BF16, 2, (int64_t[]){tokens, ROW});
  append.q_out = qkv_tensor_dense(l->q_out, QKV_BF16, 3, heads);
  append.k_cache = qkv_tensor_dense(l->k_cache, QKV_BF16, 4, pages);
  append.v_cache = qkv_tensor_dense(l->v_cache, QKV_BF16, 4, pages);
  append.cu_seqlens_q = integers(l->starts, 1, BATCH + 1, 0);
  append.seqlens_k = integers(l->lengths, 1, BATCH, 0);
  append.page_table = integers(l->table, 2, BATCH, COLUMNS);
  check(qkv_append(l->append, &append, l->stream));

  qkv_attention_args attend = QKV_ATTENTION_ARGS_INIT;
  attend.q = append.q_out;
  attend.k = append.k_cache;
  attend.v = append.v_cache;
  attend.o = qkv_tensor_dense(l->o, QKV_BF16, 3, heads);
  attend.cu_seqlens_q = append.cu_seqlens_q;
  attend.seqlens_k = append.seqlens_k;
  attend.page_table = append.page_table;
  attend.max_len_q = longest; /* few: the kernel that splits keys */
  attend.workspace = l->workspace;
  attend.workspace_bytes = qkv_workspace_size(l->attend);
  check(qkv_attention(l->attend, &attend, l->stream));
}

/* ---- The same in plain f32 ---- */

typedef float head[DIM];
static head all_keys[BATCH][CAPACITY][HEADS_KV], all_values[BATCH][CAPACITY][HEADS_KV];

static void turn(head x, int position) {
  for (int d = 0; d < DIM / 2; d++) {
    const float angle = (float)position * powf(10000.0f, -2.0f * (float)d / DIM);
    const float first = x[d], second = x[d + DIM / 2];
    x[d] = first * cosf(angle) - second * sinf(angle);
    x[d + DIM / 2] = second * cosf(angle) + first * sinf(angle);
  }
}

/* Attention of one query over the keys of a KV head up to `last`. */
static void attend_one(head o, const head q, int sequence, int kv, int last) {
  float weights[CAPACITY], most = -INFINITY, sum = 0.0f;
  for (int k = 0; k <= last; k++) {
    weights[k] = 0.0f;
    for (int d = 0; d < DIM; d++)
      weights[k] += q[d] * all_keys[sequence][k][kv][d];
    weights[k] /= sqrtf(DIM);
    most = fmaxf(most, weights[k]);
  }
  memset(o, 0, sizeof(head));
  for (int k = 0; k <= last; k++) {
    const float weight = expf(weights[k] - most);
    sum += weight;
    for (int d = 0; d < DIM; d++)
      o[d] += weight * all_values[sequence][k][kv][d];
  }
  for (int d = 0; d < DIM; d++)
    o[d] /= sum;
}

/* The token at `position` of a sequence: o [HEADS_Q] of it, after its keys and values joined those before. */
static void expect_token(head o[HEADS_Q], int sequence, int position, const uint16_t *hidden, const uint16_t *weights) {
  float row[ROW];
  head *const parts = (head *)row, *const keys = all_keys[sequence][position];
  project_row(row, hidden, weights);
  for (int h = 0; h < HEADS_Q + HEADS_KV; h++)
    turn(parts[h], position);
  memcpy(keys, parts + HEADS_Q, sizeof(head) * HEADS_KV);
  memcpy(all_values[sequence][position], parts + HEADS_Q + HEADS_KV, sizeof(head) * HEADS_KV);
  for (int h = 0; h < HEADS_Q; h++)
    attend_one(o[h], parts[h], sequence, h / (HEADS_Q / HEADS_KV), position);
}

/* ---- Steps ---- */

/* How far device and host are apart at most, and how large outputs are. */
typedef struct distance {
  float error, largest;
} distance;

/* New tokens of every sequence; lengths[] counts them afterwards. */
static void run_step(const layer *l, const int new_tokens[BATCH], int32_t lengths[BATCH], const uint16_t *weights,
                     distance *d) {
  static uint16_t hidden[MOST_TOKENS * HIDDEN], o[MOST_TOKENS * HEADS_Q * DIM];
  int32_t starts[BATCH + 1] = {0};
  int longest = 0;
  for (int b = 0; b < BATCH; b++) {
    starts[b + 1] = starts[b] + new_tokens[b];
    lengths[b] += new_tokens[b];
    longest = new_tokens[b] > longest ? new_tokens[b] : longest;
  }
  const int tokens = starts[BATCH];
  fill(hidden, tokens * HIDDEN, 1.0f);
  check(qkv_copy_to_device(l->engine, l->hidden, hidden, sizeof(uint16_t) * (size_t)(tokens * HIDDEN)));
  check(qkv_copy_to_device(l->engine, l->starts, starts, sizeof starts));
  check(qkv_copy_to_device(l->engine, l->lengths, lengths, sizeof(int32_t) * BATCH));
#ifdef WITH_CUBLASLT
  if (l->blas)
    project_on_gpu(l, tokens);
  else
#endif
    project_on_host(l, tokens, hidden, weights);
  append_and_attend(l, tokens, longest);
  check(qkv_synchronize(l->engine));
  check(qkv_copy_to_host(l->engine, o, l->o, sizeof(uint16_t) * (size_t)(tokens * HEADS_Q * DIM)));

  for (int b = 0; b < BATCH; b++)
    for (int token = starts[b]; token < starts[b + 1]; token++) {
      head expected[HEADS_Q];
      expect_token(expected, b, lengths[b] - starts[b + 1] + token, hidden + token * HIDDEN, weights);
      for (int n = 0; n < HEADS_Q * DIM; n++) {
        const float right = expected[n / DIM][n % DIM], off = from_bf16(o[token * HEADS_Q * DIM + n]) - right;
        d->error = off == off ? fmaxf(d->error, fabsf(off)) : INFINITY;
        d->largest = fmaxf(d->largest, fabsf(right));
      }
    }
}

/* The engine of the device, with cuBLASLt and a stream where it is a GPU; else says what is missing and returns 0. */
static int open_device(layer *l, int emulated) {
  qkv_options options = QKV_OPTIONS_INIT;
  options.device = emulated ? "emu" : "cuda:0";
  const qkv_status status = qkv_open(&options, &l->engine);
  if (status == QKV_NO_DEVICE) {
    printf("fused_qkv: no GPU to run on: %s\n", qkv_last_error(NULL));
    return 0;
  }
  check(status);
#ifdef WITH_CUBLASLT
  if (!emulated) {
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreate((cudaStream_t *)&l->stream));
    CUDA(cublasLtCreate(&l->blas));
  }
#else
  if (!emulated) {
    printf("fused_qkv: built without cuBLASLt, which does the GEMM on a GPU\n");
    qkv_close(l->engine);
    return 0;
  }
#endif
  return 1;
}

int main(int argc, char **argv) {
  static uint16_t weights[HIDDEN * ROW];
  const int emulated = argc == 2 && !strcmp(argv[1], "emu");
  layer l = {0};
  distance d = {0};
  int32_t lengths[BATCH] = {0};
  qkv_device_info info = {.size = sizeof info};
  if (argc > 2 || (argc == 2 && !emulated)) {
    fprintf(stderr, "usage: fused_qkv [emu]\n");
    return 1;
  }
  if (!open_device(&l, emulated))
    return NO_DEVICE;
  check(qkv_device_get_info(l.engine, &info));
  fill(weights, HIDDEN * ROW, 0.4f);
  open_layer(&l, weights);
  for (int step = 0; step < STEPS; step++)
    run_step(&l, NEW_TOKENS[step], lengths, weights, &d);
  close_layer(&l);
  printf("fused_qkv on %s: %d tokens of %d sequences, largest error %.2e of outputs up to %.2f\n", info.name,
         lengths[0] + lengths[1] + lengths[2], BATCH, (double)d.error, (double)d.largest);
  return d.error < 0.02f * d.largest ? 0 : 1;
}
