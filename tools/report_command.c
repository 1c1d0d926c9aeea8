/* report_command.c: qkvc report: files of measurements as one page, or as one JSON object. */
#include <math.h>
#include <string.h>

#include "cli.h"
#include "report.h"

static const char *out_file, *title = "qkvc report";
static cli_list peers;
static int as_json;
static double peak = NAN, bandwidth = NAN;

static const cli_option options[] = {
    {"output", 'o', CLI_TEXT, &out_file, "FILE", "where the page goes; default report.html, - is standard output"},
    {"peers", 0, CLI_LIST, &peers, "FILE", "times of others: workload, contestant, seconds; may be given again"},
    {"title", 0, CLI_TEXT, &title, "TEXT", "of the page"},
    {"peak", 0, CLI_REAL, &peak, "TFLOP/S", "of the tensor cores, for rows that do not say"},
    {"bandwidth", 0, CLI_REAL, &bandwidth, "GB/S", "of memory, for rows that do not say"},
    {"json", 0, CLI_FLAG, &as_json, NULL,
     "the numbers of all sections as one JSON object on standard output; no page"
     " unless -o"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

static int read_file(report *r, const char *path, bool as_peers) {
  char error[REPORT_ERROR_SIZE];
  csv_table table;
  if (csv_read(path, &table, error) && report_add(r, &table, as_peers, error))
    return EXIT_OK;
  cli_error("%s", error);
  return EXIT_USAGE;
}

static int run(int count, char **arguments) {
  report r = {.title = title, .peak = 1e12 * peak, .bandwidth = 1e9 * bandwidth};
  char error[REPORT_ERROR_SIZE];
  int code = EXIT_OK;
  if (peak <= 0 || bandwidth <= 0 || peak > 1e12 || bandwidth > 1e12) {
    cli_error("--peak and --bandwidth take numbers above 0, and up to 1e12");
    return EXIT_USAGE;
  }
  if (as_json && out_file && !strcmp(out_file, "-")) {
    cli_error("--json and a page do not both go to standard output");
    return EXIT_USAGE;
  }
  for (int n = 0; n < count && !code; n++)
    code = read_file(&r, arguments[n], false);
  for (int n = 0; n < peers.count && !code; n++)
    code = read_file(&r, peers.items[n], true);
  if (!code && !report_finish(&r, error)) {
    cli_error("%s", error);
    code = EXIT_USAGE;
  }
  if (!code && as_json)
    report_write_json(&r, stdout);
  if (!code && (!as_json || out_file))
    code = report_write_page(&r, out_file ? out_file : "report.html");
  report_free(&r);
  return code;
}

const cli_command cli_report_command = {
    "report",
    "FILE...",
    "a page with plots from measurements",
    "Reads CSV or JSON of qkvc bench, CSV of qkvc tune, and times beside peers (tools/bench_*.py, "
    "docs/performance/*.csv),\n"
    "and writes one HTML page that needs nothing else: roofline, time against length and batch, achieved bandwidth,\n"
    "schedules of a tuning run, ratio to peers. docs/reports.md says what each plot shows and which columns are read.",
    options,
    1,
    -1,
    run,
    NULL};
