/* tiny_problem.h: one small attention problem from an engine's options to its output: what tests of caches, processes
 * and threads run, who care that it is right and how it came about. And a compiler for the emulated device that
 * remembers what it compiled, so that a compile takes milliseconds. */
#ifndef TESTS_UNIT_TINY_PROBLEM_H
#define TESTS_UNIT_TINY_PROBLEM_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "qkv.h"

enum { TINY_LEN = 20, TINY_HEADS = 2, TINY_DIM = 16, TINY_COUNT = TINY_LEN * TINY_HEADS * TINY_DIM };

#define TINY_UNUSED __attribute__((unused))

typedef struct tiny_result {
  qkv_status status;
  char message[512]; /* of a failure */
  float o[TINY_COUNT];
  qkv_counters counters;
  char arch[16];
} tiny_result;

/* Causal attention; a variant is another kernel with the same results: a window that is longer than the sequences. */
TINY_UNUSED static void tiny_spec(char out[256], int variant) {
  snprintf(out, 256, "qkvc: 1\nname: tiny\nattention: {heads: %d, dim: %d, dtype: f16, mask: 'window(%d, 0)'}\n",
           TINY_HEADS, TINY_DIM, 1000 + variant);
}

/* Multiples of 1/8 in f16: exact in every format. */
static void tiny_values(uint16_t *to, unsigned seed) {
  static const uint16_t eighths[] = {0x0000, 0x3000, 0x3400, 0x3600, 0x3800, 0x3900, 0x3a00, 0x3b00, 0x3c00};
  for (int n = 0; n < TINY_COUNT; n++) {
    unsigned value = ((unsigned)n * 2654435761u + seed * 40503u) >> 7;
    to[n] = (uint16_t)(eighths[value % 9] | (value & 256 ? 0x8000 : 0));
  }
}

static qkv_status tiny_call(qkv_engine *e, const qkv_op *op, float *o) {
  uint16_t host[3][TINY_COUNT];
  uint16_t out[TINY_COUNT];
  void *memory[5] = {NULL, NULL, NULL, NULL, NULL};
  qkv_attention_args a = QKV_ATTENTION_ARGS_INIT;
  qkv_tensor *tensors[] = {&a.q, &a.k, &a.v, &a.o};
  qkv_status status = QKV_OK;
  for (int n = 0; n < 4 && status == QKV_OK; n++) {
    status = qkv_alloc(e, sizeof out, &memory[n]);
    if (n < 3)
      tiny_values(host[n], (unsigned)n + 1);
    if (status == QKV_OK && n < 3)
      status = qkv_copy_to_device(e, memory[n], host[n], sizeof host[n]);
    *tensors[n] = qkv_tensor_dense(memory[n], QKV_F16, 4, (int64_t[]){1, TINY_LEN, TINY_HEADS, TINY_DIM});
  }
  a.workspace_bytes = qkv_workspace_size(op);
  if (status == QKV_OK && a.workspace_bytes)
    status = qkv_alloc(e, a.workspace_bytes, &memory[4]);
  a.workspace = memory[4];
  if (status == QKV_OK)
    status = qkv_attention(op, &a, NULL);
  if (status == QKV_OK)
    status = qkv_synchronize(e);
  if (status == QKV_OK)
    status = qkv_copy_to_host(e, out, memory[3], sizeof out);
  for (int n = 0; n < 5; n++)
    qkv_free(e, memory[n]);
  for (int n = 0; n < TINY_COUNT && status == QKV_OK; n++) {
    int exponent = out[n] >> 10 & 31, fraction = out[n] & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    o[n] = (float)(out[n] & 0x8000 ? -size : size);
  }
  return status;
}

/* A fresh folder with the name's beginning, in memory where there is such a place: thousands of fsyncs take minutes
 * elsewhere. */
TINY_UNUSED static int tiny_folder(char path[64], const char *name) {
  snprintf(path, 64, "%s/%s-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", name);
  return mkdtemp(path) != NULL;
}

/* Prepares and runs the problem on an open engine. */
TINY_UNUSED static void tiny_run_on(qkv_engine *e, int variant, tiny_result *r) {
  char source[256];
  qkv_spec *loaded = NULL;
  qkv_op *op = NULL;
  qkv_limits limits = QKV_LIMITS_INIT;
  limits.aligned_only = 1;
  limits.phase = "prefill";
  limits.schedule = "tile_m=64,tile_n=32,warps=4,stages=2";
  qkv_device_info info = {.size = sizeof info};
  memset(r, 0, sizeof *r);
  qkv_device_get_info(e, &info);
  snprintf(r->arch, sizeof r->arch, "%s", info.arch);
  if (strncmp(r->arch, "sm_8", 4)) /* another family, with axes of its own */
    limits.schedule = NULL;
  tiny_spec(source, variant);
  r->status = qkv_spec_load(e, source, &loaded);
  if (r->status == QKV_OK)
    r->status = qkv_prepare(e, loaded, &limits, &op);
  if (r->status == QKV_OK)
    r->status = tiny_call(e, op, r->o);
  if (r->status != QKV_OK)
    snprintf(r->message, sizeof r->message, "%s", qkv_last_error(e));
  r->counters.size = sizeof r->counters;
  qkv_get_counters(e, &r->counters);
  qkv_op_free(op);
  qkv_spec_free(loaded);
}

/* The same on an engine of its own. */
TINY_UNUSED static void tiny_run(const qkv_options *options, int variant, tiny_result *r) {
  qkv_engine *e;
  memset(r, 0, sizeof *r);
  r->status = qkv_open(options, &e);
  if (r->status != QKV_OK) {
    snprintf(r->message, sizeof r->message, "%s", qkv_last_error(NULL));
    return;
  }
  tiny_run_on(e, variant, r);
  qkv_close(e);
}

/* What is right, by plain loops in f64. NULL, or where the output is wrong. */
TINY_UNUSED static const char *tiny_judge(const tiny_result *r) {
  static const double decode[] = {0, .125, .25, .375, .5, .625, .75, .875, 1};
  static char where[256];
  double x[3][TINY_COUNT];
  if (r->status != QKV_OK)
    return r->message;
  for (int t = 0; t < 3; t++)
    for (int n = 0; n < TINY_COUNT; n++) { /* as tiny_values */
      unsigned value = ((unsigned)n * 2654435761u + ((unsigned)t + 1) * 40503u) >> 7;
      x[t][n] = decode[value % 9] * (value & 256 ? -1 : 1);
    }
  for (int i = 0; i < TINY_LEN; i++)
    for (int h = 0; h < TINY_HEADS; h++) {
      double sum = 0, o[TINY_DIM] = {0};
      for (int j = 0; j <= i; j++) {
        double s = 0;
        for (int d = 0; d < TINY_DIM; d++)
          s += x[0][(i * TINY_HEADS + h) * TINY_DIM + d] * x[1][(j * TINY_HEADS + h) * TINY_DIM + d];
        double weight = exp(s / 4); /* 1/sqrt(16) */
        sum += weight;
        for (int d = 0; d < TINY_DIM; d++)
          o[d] += weight * x[2][(j * TINY_HEADS + h) * TINY_DIM + d];
      }
      for (int d = 0; d < TINY_DIM; d++) {
        double got = (double)r->o[(i * TINY_HEADS + h) * TINY_DIM + d];
        if (!(fabs(got - o[d] / sum) < 2e-3)) { /* weights and outputs in f16: 2^-11 each */
          snprintf(where, sizeof where, "o[0][%d][%d][%d] is %g, should be %g", i, h, d, got, o[d] / sum);
          return where;
        }
      }
    }
  return NULL;
}

/* Makes a folder with a g++ for $QKV_EMU_CXX that compiles a source once and copies what it made from then on. (Not in
 * /dev/shm, where programs may be forbidden.) False when it cannot. */
TINY_UNUSED static int tiny_compiler(char folder[64]) {
  char path[80];
  strcpy(folder, "/tmp/qkv-compiler-XXXXXX");
  if (!mkdtemp(folder))
    return 0;
  snprintf(path, sizeof path, "%s/g++", folder);
  FILE *f = fopen(path, "w");
  if (!f)
    return 0;
  fprintf(f,
          "#!/bin/sh\n"
          "[ \"$1\" = --version ] && { echo 'g++ of a test 13'; exit 0; }\n"
          "kept='%s'/$(cksum <kernel.cu | tr ' ' -)\n"
          "[ -e \"$kept\" ] || { g++ \"$@\" && cp kernel.so \"$kept.$$\" && mv \"$kept.$$\" \"$kept\"; exit; }\n"
          "exec cp \"$kept\" kernel.so\n",
          folder);
  return fclose(f) == 0 && chmod(path, 0755) == 0 && setenv("QKV_EMU_CXX", path, 1) == 0;
}

TINY_UNUSED static void tiny_compiler_remove(const char *folder) {
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  if (system(command))
    fprintf(stderr, "%s stays\n", folder);
  unsetenv("QKV_EMU_CXX");
}

#endif
