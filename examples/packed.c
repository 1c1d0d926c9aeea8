/* packed.c: attention in a program that ships without a compiler. Its kernels were compiled when it was built and lie
 * in it as an array; at run time nothing is generated or compiled, and no file is read but libqkv.so and the driver.
 *
 *   qkvc bundle packed.yaml --device emu --c-array -o packed_kernels      the emulated device's kernels
 *   cc packed.c packed_kernels.c $(pkg-config --cflags --libs qkv) -lm
 *   ./a.out emu
 *
 * For GPUs: qkvc bundle packed.yaml --arch sm_90a --c-array -o packed_gpu, and -DWITH_GPU packed_gpu.c; then ./a.out
 * runs on the first one. What comes out is compared with the reference.
 *
 * Exit code: 0 right, 1 wrong or failed, 77 nothing to run on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packed_kernels.h"
#include "qkv.h"
#ifdef WITH_GPU
#include "packed_gpu.h"
#endif

enum { BATCH = 2, LEN_Q = 19, LEN_K = 45, HEADS_Q = 4, HEADS_KV = 2, DIM = 32, NO_DEVICE = 77 };
enum {
  Q_COUNT = BATCH * LEN_Q * HEADS_Q * DIM,
  K_COUNT = BATCH * LEN_K * HEADS_KV * DIM,
  LSE_COUNT = BATCH * HEADS_Q * LEN_Q
};

/* Stops the program where a call of the library fails. */
static void check(qkv_status status) {
  if (status == QKV_OK)
    return;
  fprintf(stderr, "packed: %s\n", qkv_last_error(NULL));
  exit(status == QKV_NO_DEVICE ? NO_DEVICE : 1);
}

static float to_float(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Numbers between -1 and 1, in bf16: the upper half of an f32. */
static void fill(uint16_t *to, int count, uint32_t seed) {
  for (int n = 0; n < count; n++) {
    seed = seed * 1664525u + 1013904223u;
    const float value = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    to[n] = (uint16_t)(bits >> 16);
  }
}

static qkv_attention_args arguments(void *q, void *k, void *v, void *o, qkv_dtype dtype_o, void *lse) {
  const int64_t q_shape[] = {BATCH, LEN_Q, HEADS_Q, DIM}, k_shape[] = {BATCH, LEN_K, HEADS_KV, DIM};
  const int64_t lse_shape[] = {BATCH, HEADS_Q, LEN_Q};
  qkv_attention_args args = QKV_ATTENTION_ARGS_INIT;
  args.q = qkv_tensor_dense(q, QKV_BF16, 4, q_shape);
  args.k = qkv_tensor_dense(k, QKV_BF16, 4, k_shape);
  args.v = qkv_tensor_dense(v, QKV_BF16, 4, k_shape);
  args.o = qkv_tensor_dense(o, dtype_o, 4, q_shape);
  args.lse = qkv_tensor_dense(lse, QKV_F32, 3, lse_shape);
  return args;
}

static void *on_device(qkv_engine *engine, const void *host, size_t bytes) {
  void *memory;
  check(qkv_alloc(engine, bytes, &memory));
  if (host)
    check(qkv_copy_to_device(engine, memory, host, bytes));
  return memory;
}

int main(int argc, char **argv) {
  static uint16_t q[Q_COUNT], k[K_COUNT], v[K_COUNT], o[Q_COUNT];
  static float lse[LSE_COUNT], want[Q_COUNT], want_lse[LSE_COUNT];
  qkv_options options = QKV_OPTIONS_INIT;
  qkv_engine *engine;
  qkv_spec *spec;
  qkv_op *op;
  options.device = argc > 1 ? argv[1] : "cuda";
  options.disable_jit = 1; /* what the pack lacks is an error that names it */
  options.cache_dir = "";
  check(qkv_open(&options, &engine));
  check(qkv_pack_load_memory(engine, packed_kernels, packed_kernels_size));
#ifdef WITH_GPU
  check(qkv_pack_load_memory(engine, packed_gpu, packed_gpu_size));
#endif
  check(qkv_spec_from_pack(engine, "packed", &spec));
  check(qkv_prepare(engine, spec, NULL, &op));

  fill(q, Q_COUNT, 1);
  fill(k, K_COUNT, 2);
  fill(v, K_COUNT, 3);
  void *memory[] = {on_device(engine, q, sizeof q), on_device(engine, k, sizeof k), on_device(engine, v, sizeof v),
                    on_device(engine, NULL, sizeof o), on_device(engine, NULL, sizeof lse)};
  qkv_attention_args args = arguments(memory[0], memory[1], memory[2], memory[3], QKV_BF16, memory[4]);
  args.workspace_bytes = qkv_workspace_size(op);
  args.workspace = args.workspace_bytes ? on_device(engine, NULL, args.workspace_bytes) : NULL;
  check(qkv_attention(op, &args, NULL));
  check(qkv_synchronize(engine));
  check(qkv_copy_to_host(engine, o, memory[3], sizeof o));
  check(qkv_copy_to_host(engine, lse, memory[4], sizeof lse));

  const qkv_attention_args host = arguments(q, k, v, want, QKV_F32, want_lse);
  double error = 0, sum = 0;
  check(qkv_reference(spec, &host));
  for (int n = 0; n < Q_COUNT; n++) {
    error = fmax(error, fabs((double)to_float(o[n]) - (double)want[n]));
    sum += fabs((double)to_float(o[n]));
  }
  for (int n = 0; n < LSE_COUNT; n++)
    error = fmax(error, fabs((double)lse[n] - (double)want_lse[n]));
  qkv_counters counters = {.size = sizeof counters};
  qkv_get_counters(engine, &counters);
  printf("%d kernels from the pack, %d sources generated, %d compiled; sum of |o| %.4f, greatest error %.1e\n",
         (int)counters.pack_hits, (int)counters.renders, (int)counters.compiles, sum, error);

  for (size_t n = 0; n < sizeof memory / sizeof *memory; n++)
    qkv_free(engine, memory[n]);
  qkv_free(engine, args.workspace);
  qkv_op_free(op);
  qkv_spec_free(spec);
  qkv_close(engine);
  return !(error < 8e-3 && sum > 1) || counters.renders || counters.compiles;
}
