/* bench.h: what the files of qkvc bench share: sizes to measure, and what was measured of each. */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

#include "cli.h"

enum { BENCH_NAME = 96 };

/* What one row measures: a workload of a spec. */
typedef struct bench_case {
  char name[BENCH_NAME];
  int64_t batch, len_q, len_k;
} bench_case;

typedef struct bench_cases {
  int count;
  bench_case *items;
} bench_cases;

/* Which workloads: names or sizes as words of --workload, and ranges as words of --sweep. */
typedef struct bench_request {
  cli_list workloads, sweeps, params;
  int64_t samples; /* -1: 20, on emu 3 */
} bench_request;

/* The cases of a spec (bench_plan.c). Without --workload: the spec's own, with a sweep the first of them. On the
 * emulator the spec's own are made small. Returns an exit code after a message. Free items with free(). */
int bench_plan(const qkv_spec *spec, bool emulated, const bench_request *request, bench_cases *out);

/* A row of the results. Texts are the row's own; times are NAN where status is not "ok". */
typedef struct bench_row {
  char spec[72], phase[16], family[64], schedule[256], source[16], dtype[24], method[48], arch[16], gpu[128];
  char status[24], note[200];
  bench_case what;
  int heads_q, heads_kv, dim_qk, dim_v;
  double median, p10, p90; /* seconds */
  int samples;
  double flops, bytes;    /* of a call: visible pairs; q, k, v and o once each */
  double peak, bandwidth; /* of the device: FLOP/s of 16-bit products, bytes/s; NAN: not known */
} bench_row;

/* Prepares, measures. What fails is in status and note, after a message; returns an exit code (bench_measure.c). */
int bench_measure(qkv_engine *engine, qkv_spec *spec, const bench_case *what, const bench_request *request,
                  bench_row *out);
/* FLOP/s of products of 16-bit numbers with sums in f32, dense, at the device's highest clock; NAN: not in the table.
 */
double bench_peak(const qkv_device_info *device);

/* ---- Results (bench_write.c) ---- */

/* Part of the ceiling that bounds the row: of the tensor peak or of the bandwidth, whichever is nearer; "" when
 * unknown. */
const char *bench_bound(const bench_row *row);
void bench_print(const bench_row *rows, int count);
void bench_csv(const bench_row *rows, int count, FILE *out);
void bench_json(const bench_row *rows, int count, FILE *out);

#endif
