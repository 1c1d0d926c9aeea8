/* cli_bench.c: qkvc bench: times of the workloads of specs, with the kernels that qkv_prepare loads. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli_kernel.h"
#include "report.h"

static bench_request request = {.samples = -1};
static const char *csv_file, *json_file, *html_file;
static int as_json;

static const cli_option options[] = {
    {"workload", 'w', CLI_LIST, &request.workloads, "NAME",
     "of the spec, or sizes BATCHxQUERIESxKEYS; may be repeated; default: all of the spec"},
    {"sweep", 0, CLI_LIST, &request.sweeps, "RANGE", "kv=1k..128k or batch=1..128, by doubling; may be given again"},
    {"samples", 'n', CLI_COUNT, &request.samples, "N", "of each workload; default 20, on the emulator 3"},
    {"param", 'p', CLI_LIST, &request.params, "NAME=X", "a number, or a .npy file for a parameter with a shape"},
    {"csv", 0, CLI_TEXT, &csv_file, "FILE", "write the rows as CSV"},
    {"html", 0, CLI_TEXT, &html_file, "FILE", "write a page with plots, as qkvc report makes it from the CSV"},
    {"json", 0, CLI_FLAG, &as_json, NULL, "one JSON object in place of the table"},
    {"json-file", 0, CLI_TEXT, &json_file, "FILE", "write that object, and print the table"},
    {"family", 0, CLI_TEXT, &cli_kernel.family, "NAME", "kernel family; default: the first that can do the spec"},
    {"phase", 0, CLI_TEXT, &cli_kernel.phase, "NAME", "prefill or decode; default: decode up to 16 queries"},
    {"schedule", 0, CLI_TEXT, &cli_kernel.schedule, "K=V,...", "schedule fields, such as tile_m=64,stages=2"},
    {"emu-seed", 0, CLI_SEED, &cli_global.emu_seed, "N", "order of asynchronous work on the emulator"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

typedef struct results {
  int count;
  bench_row *rows;
} results;

/* ---- Measuring ---- */

static bench_row *next_row(results *all) {
  all->rows = report_grow(all->rows, all->count, sizeof *all->rows);
  return &all->rows[all->count++];
}

static int bench_spec(qkv_engine *engine, const char *path, bool emulated, results *all) {
  qkv_spec *spec = NULL;
  bench_cases cases = {0};
  const qkv_status status = qkv_spec_load(engine, path, &spec);
  if (status)
    return cli_fail_spec(path, status);
  int first = bench_plan(spec, emulated, &request, &cases);
  for (int n = 0; n < cases.count; n++) {
    const int code = bench_measure(engine, spec, &cases.items[n], &request, next_row(all));
    first = first ? first : code;
  }
  free(cases.items);
  qkv_spec_free(spec);
  return first;
}

/* ---- Files ---- */

static void write_csv(FILE *out, const void *data) {
  const results *all = data;
  bench_csv(all->rows, all->count, out);
}

static void write_json(FILE *out, const void *data) {
  const results *all = data;
  bench_json(all->rows, all->count, out);
}

/* The page is made from the very CSV that --csv writes. */
static int write_page(const results *all) {
  char *text = NULL, error[REPORT_ERROR_SIZE];
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out) {
    cli_error("out of memory");
    return EXIT_FAILED;
  }
  bench_csv(all->rows, all->count, out);
  fclose(out);
  report page = {.title = "qkvc bench", .peak = NAN, .bandwidth = NAN};
  csv_table table;
  const bool ok = csv_parse("qkvc bench", text, length, &table, error) && report_add(&page, &table, false, error) &&
                  report_finish(&page, error);
  if (!ok)
    cli_error("%s", error);
  const int code = ok ? report_write_page(&page, html_file) : EXIT_FAILED;
  report_free(&page);
  free(text);
  return code;
}

/* Files that cannot be written are refused before anything is measured. */
static int check_writable(const char *path) {
  FILE *out = path ? fopen(path, "a") : NULL;
  if (!path || (out && !fclose(out)))
    return EXIT_OK;
  cli_error("%s: %s", path, strerror(errno));
  return EXIT_FAILED;
}

/* ---- Command ---- */

static int check_request(void) {
  if (request.samples == 0 || request.samples > 100000) {
    cli_error("--samples takes 1 to 100000");
    return EXIT_USAGE;
  }
  if (cli_kernel.phase && strcmp(cli_kernel.phase, "prefill") != 0 && strcmp(cli_kernel.phase, "decode") != 0) {
    cli_error("bench measures attention: --phase takes prefill or decode, not '%s'", cli_kernel.phase);
    return EXIT_USAGE;
  }
  int code = check_writable(csv_file);
  code = code ? code : check_writable(json_file);
  return code ? code : check_writable(html_file);
}

static int open_device(qkv_engine **engine, bool *emulated) {
  qkv_device_info device = {.size = sizeof device};
  qkv_status status = cli_open("auto", engine);
  if (!status)
    status = qkv_device_get_info(*engine, &device);
  if (status)
    return cli_fail(NULL, status);
  *emulated = !strcmp(device.kind, "emu");
  if (strcmp(device.kind, "none") != 0)
    return EXIT_OK;
  cli_error("device none compiles but runs nothing; choose cuda or emu");
  return EXIT_USAGE;
}

static int run(int count, char **arguments) {
  qkv_engine *engine = NULL;
  results all = {0};
  bool emulated = false;
  int first = check_request();
  if (!first)
    first = open_device(&engine, &emulated);
  if (first) {
    qkv_close(engine);
    return first;
  }
  for (int n = 0; n < count; n++) {
    const int code = bench_spec(engine, arguments[n], emulated, &all);
    first = first ? first : code;
  }
  if (as_json)
    bench_json(all.rows, all.count, stdout);
  else if (all.count)
    bench_print(all.rows, all.count);
  if (emulated && all.count)
    cli_note("times of the emulator say nothing of a GPU");
  const int codes[] = {csv_file ? cli_write_file(csv_file, write_csv, &all) : EXIT_OK,
                       json_file ? cli_write_file(json_file, write_json, &all) : EXIT_OK,
                       html_file && all.count ? write_page(&all) : EXIT_OK};
  for (int n = 0; n < 3; n++)
    first = first ? first : codes[n];
  free(all.rows);
  qkv_close(engine);
  return first;
}

const cli_command cli_bench_command = {
    "bench",
    "SPEC...",
    "time workloads, beside what the device can do",
    "Times each workload of each spec with the kernel that qkv_prepare would load, or the one that --family, --phase "
    "and\n"
    "--schedule choose: samples are CUDA graphs of several calls on rotating inputs, with a cold L2 for decode and "
    "for\n"
    "inputs larger than half of it. TFLOP/s count visible pairs, GB/s q, k, v and o once each; the ceilings are the\n"
    "device's own figures: SMs times clock times operations a clock of 16-bit products, and memory clock times "
    "width.\n\n"
    "--sweep takes each --workload, or the spec's first, and doubles its keys (queries follow when they are as many) "
    "or\n"
    "its batch. What fails is a row that says so; the others are measured all the same. docs/reports.md says more.",
    options,
    1,
    -1,
    run,
    NULL};
