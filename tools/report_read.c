/* report_read.c: from tables of named columns to rows of a report. One table says what a column means; columns that it
 * does not know are left alone. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "report.h"

/* ---- Columns ---- */

typedef enum reading { TEXT, POSITIVE, AMOUNT, COUNT, YES } reading;

/* Of several names for one field the first that is there counts. */
static const struct {
  const char *head;
  reading how;
  size_t field;
  double factor; /* to the field's unit */
} columns[] = {
#define TEXT_COLUMN(head, field)                                                                                       \
  { head, TEXT, offsetof(report_row, field), 0 }
#define NUMBER_COLUMN(head, field, factor)                                                                             \
  { head, POSITIVE, offsetof(report_row, field), factor }
#define COUNT_COLUMN(head, field)                                                                                      \
  { head, COUNT, offsetof(report_row, field), 1 }
    TEXT_COLUMN("spec", spec),
    TEXT_COLUMN("workload", workload),
    TEXT_COLUMN("case", workload),
    TEXT_COLUMN("lengths", workload),
    TEXT_COLUMN("phase", phase),
    TEXT_COLUMN("family", family),
    TEXT_COLUMN("schedule", schedule),
    TEXT_COLUMN("source", source),
    TEXT_COLUMN("contestant", contestant),
    TEXT_COLUMN("implementation", contestant),
    TEXT_COLUMN("status", status),
    TEXT_COLUMN("note", note),
    TEXT_COLUMN("reason", note),
    TEXT_COLUMN("gpu", gpu),
    TEXT_COLUMN("device", gpu),
    TEXT_COLUMN("mask", mask),
    TEXT_COLUMN("dtype", dtype),
    COUNT_COLUMN("batch", batch),
    COUNT_COLUMN("q", len_q),
    COUNT_COLUMN("len_q", len_q),
    COUNT_COLUMN("kv", len_k),
    COUNT_COLUMN("len_k", len_k),
    COUNT_COLUMN("length", len_k), /* of calls of one query a sequence, tools/bench_decode.py */
    COUNT_COLUMN("heads_q", heads_q),
    COUNT_COLUMN("heads_kv", heads_kv),
    COUNT_COLUMN("dim_qk", dim_qk),
    COUNT_COLUMN("dim", dim_qk),
    COUNT_COLUMN("dim_v", dim_v),
    COUNT_COLUMN("dim", dim_v),
    COUNT_COLUMN("samples", samples),
    NUMBER_COLUMN("median_us", median, 1e-6),
    NUMBER_COLUMN("median_seconds", median, 1),
    NUMBER_COLUMN("seconds", median, 1),
    NUMBER_COLUMN("us", median, 1e-6),
    NUMBER_COLUMN("p10_us", p10, 1e-6),
    NUMBER_COLUMN("p10_seconds", p10, 1),
    NUMBER_COLUMN("p90_us", p90, 1e-6),
    NUMBER_COLUMN("p90_seconds", p90, 1),
    NUMBER_COLUMN("model_us", model, 1e-6),
    NUMBER_COLUMN("model_seconds", model, 1),
    {"flops", AMOUNT, offsetof(report_row, flops), 1},
    {"bytes", AMOUNT, offsetof(report_row, bytes), 1},
    NUMBER_COLUMN("peak_tflops", peak, 1e12),
    NUMBER_COLUMN("peak_gbps", bandwidth, 1e9),
    NUMBER_COLUMN("ratio", ratio, 1),
    NUMBER_COLUMN("ratio_p10", ratio_p10, 1),
    NUMBER_COLUMN("ratio_p90", ratio_p90, 1),
    {"default", YES, offsetof(report_row, is_default), 1},
    {"is_default", YES, offsetof(report_row, is_default), 1},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* Rates, from which the work of a call follows once its time is known. */
static const struct {
  const char *head;
  size_t field;
  double factor;
} rates[] = {{"tflops", offsetof(report_row, flops), 1e12},
             {"useful_tflops", offsetof(report_row, flops), 1e12},
             {"gbps", offsetof(report_row, bytes), 1e9},
             {"tbps", offsetof(report_row, bytes), 1e12}};

static double *number_field(report_row *row, size_t field) {
  return (double *)((char *)row + field);
}

static const char **text_field(report_row *row, size_t field) {
  return (const char **)((char *)row + field);
}

/* ---- Memory ---- */

static void *must(void *memory) {
  if (memory)
    return memory;
  cli_error("out of memory");
  exit(EXIT_FAILED);
}

void *report_grow(void *items, int count, size_t size) {
  if (count & (count - 1)) /* capacities are powers of two */
    return items;
  return must(realloc(items, size * (count ? 2 * (size_t)count : 1)));
}

void *report_array(int count, size_t size) {
  return must(calloc(count ? (size_t)count : 1, size));
}

const char *report_text(report *r, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  char *text = must(malloc((size_t)length + 1));
  va_start(arguments, format);
  vsnprintf(text, (size_t)length + 1, format, arguments);
  va_end(arguments);
  r->texts = report_grow(r->texts, r->ntexts, sizeof *r->texts);
  return r->texts[r->ntexts++] = text;
}

void report_free(report *r) {
  for (int n = 0; n < r->ntables; n++)
    csv_free(&r->tables[n]);
  for (int n = 0; n < r->ntexts; n++)
    free(r->texts[n]);
  free(r->tables);
  free(r->texts);
  free(r->rows);
  free(r->files);
  memset(r, 0, sizeof *r);
}

static report_row *add_row(report *r) {
  r->rows = report_grow(r->rows, r->nrows, sizeof *r->rows);
  report_row *row = &r->rows[r->nrows++];
  *row = (report_row){.spec = ""};
  for (int c = 0; c < COLUMNS; c++)
    if (columns[c].how == TEXT)
      *text_field(row, columns[c].field) = "";
    else
      *number_field(row, columns[c].field) = NAN;
  return row;
}

/* ---- Cells ---- */

static bool complain(const csv_table *t, int row, const char *head, const char *cell, const char *what,
                     char error[REPORT_ERROR_SIZE]) {
  snprintf(error, REPORT_ERROR_SIZE, "%.200s:%d: column '%.60s': '%.60s' %s", t->name, t->lines[row], head, cell, what);
  return false;
}

/* A number above 0 (amounts: from 0; counts: whole, too) that a plot has a place for. "" is NAN. */
static bool read_number(const csv_table *t, int row, int column, reading how, double *out,
                        char error[REPORT_ERROR_SIZE]) {
  const char *cell = csv_cell(t, row, column), *head = t->heads[column];
  *out = NAN;
  if (!*cell)
    return true;
  char *end;
  const double value = strtod(cell, &end);
  if (end == cell || *end || strchr(" \t\n", *cell))
    return complain(t, row, head, cell, "is not a number", error);
  if (!isfinite(value))
    return complain(t, row, head, cell, "is not finite", error);
  if (how == POSITIVE ? value <= 0 : value < 0)
    return complain(t, row, head, cell, how == POSITIVE ? "is not above 0" : "is below 0", error);
  if (how == COUNT && value != rint(value))
    return complain(t, row, head, cell, "is not a whole number", error);
  if (value != 0 && (value < 1e-30 || value > 1e30))
    return complain(t, row, head, cell, "is out of range, 1e-30 to 1e30", error);
  *out = value;
  return true;
}

/* What was measured of a call that failed, or that gave wrong results, is no time of anything. */
static void forget_failed(report_row *row) {
  if (*row->status && strcmp(row->status, "ok") != 0)
    row->median = row->p10 = row->p90 = row->ratio = row->ratio_p10 = row->ratio_p90 = NAN;
}

static bool read_cells(const csv_table *t, int row, report_row *out, char error[REPORT_ERROR_SIZE]) {
  for (int c = 0; c < COLUMNS; c++) {
    const int at = csv_column(t, columns[c].head);
    if (at < 0)
      continue;
    const char *cell = csv_cell(t, row, at);
    if (columns[c].how == TEXT) {
      const char **field = text_field(out, columns[c].field);
      *field = **field ? *field : cell;
      continue;
    }
    double value = NAN, *field = number_field(out, columns[c].field);
    if (columns[c].how == YES)
      value = !strcmp(cell, "1") || !strcmp(cell, "true") || !strcmp(cell, "yes");
    else if (!read_number(t, row, at, columns[c].how, &value, error))
      return false;
    if (isnan(*field))
      *field = value * columns[c].factor;
  }
  for (size_t n = 0; n < sizeof rates / sizeof *rates; n++) {
    const int at = csv_column(t, rates[n].head);
    double value = NAN, *field = number_field(out, rates[n].field);
    if (at >= 0 && !read_number(t, row, at, AMOUNT, &value, error))
      return false;
    if (isnan(*field) && !isnan(out->median))
      *field = value * rates[n].factor * out->median;
  }
  if (isnan(out->len_q) && csv_column(t, "length") >= 0)
    out->len_q = 1;
  forget_failed(out);
  return true;
}

/* ---- Wide files: a row is a problem, and several contestants have columns of their own ---- */

/* "fa3" of "fa3_p10" when fa3_p90 and fa3 (or fa3_ratio) are columns, too: a ratio of times with its spread. */
static bool wide_ratio(const csv_table *t, int column, char name[128], int at[3]) {
  const char *head = t->heads[column];
  const size_t length = strlen(head);
  if (length < 5 || length > 100 || strcmp(head + length - 4, "_p10") != 0)
    return false;
  char other[160];
  snprintf(name, 128, "%.*s", (int)(length - 4), head);
  snprintf(other, sizeof other, "%s_p90", name);
  at[1] = column;
  at[2] = csv_column(t, other);
  snprintf(other, sizeof other, "%s_ratio", name);
  at[0] = csv_column(t, other);
  at[0] = at[0] >= 0 ? at[0] : csv_column(t, name);
  return at[0] >= 0 && at[2] >= 0 && strcmp(name, "ratio") != 0;
}

/* "page16" of "page16_us": a time of one's own. */
static bool wide_time(const csv_table *t, int column, char name[128]) {
  static const char *const taken[] = {"median_us", "p10_us", "p90_us", "model_us"};
  const char *head = t->heads[column];
  const size_t length = strlen(head);
  for (size_t n = 0; n < sizeof taken / sizeof *taken; n++)
    if (!strcmp(head, taken[n]))
      return false;
  if (length < 4 || length > 100 || strcmp(head + length - 3, "_us") != 0)
    return false;
  snprintf(name, 128, "%.*s", (int)(length - 3), head);
  return true;
}

static bool is_wide(const csv_table *t) {
  char name[128];
  int at[3];
  for (int c = 0; c < t->columns; c++)
    if (wide_ratio(t, c, name, at) || wide_time(t, c, name))
      return true;
  return false;
}

/* The row of a contestant: the problem of `row`, nothing of its time. */
static report_row *add_contestant(report *r, int row, const char *name) {
  report_row *out = add_row(r);
  *out = r->rows[row];
  out->contestant = report_text(r, "%s", name);
  out->family = out->schedule = "";
  out->median = out->p10 = out->p90 = out->flops = out->bytes = NAN;
  return out;
}

static bool read_wide(report *r, const csv_table *t, int row, int index, char error[REPORT_ERROR_SIZE]) {
  char name[128];
  int at[3];
  for (int c = 0; c < t->columns; c++) {
    double values[3];
    if (wide_ratio(t, c, name, at)) {
      for (int n = 0; n < 3; n++)
        if (!read_number(t, row, at[n], POSITIVE, &values[n], error))
          return false;
      if (isnan(values[0]))
        continue;
      report_row *out = add_contestant(r, index, name);
      out->ratio = values[0];
      out->ratio_p10 = values[1];
      out->ratio_p90 = values[2];
    } else if (wide_time(t, c, name)) {
      if (!read_number(t, row, c, POSITIVE, &values[0], error))
        return false;
      if (!isnan(values[0]))
        add_contestant(r, index, name)->median = 1e-6 * values[0];
    }
  }
  return true;
}

/* ---- Files ---- */

static bool has_any(const csv_table *t, const char *const *heads) {
  for (; *heads; heads++)
    if (csv_column(t, *heads) >= 0)
      return true;
  return false;
}

static bool find_kind(const csv_table *t, bool as_peers, report_kind *out, char error[REPORT_ERROR_SIZE]) {
  static const char *const model[] = {"model_us", "model_seconds", NULL},
                           *const names[] = {"contestant", "implementation", NULL},
                           *const times[] = {"median_us", "median_seconds", "seconds", "us", NULL},
                           *const problem[] = {"workload", "case", "lengths", "batch", NULL};
  const bool wide = is_wide(t);
  const char *missing = NULL;
  if (!wide && !has_any(t, times))
    missing = "a time: median_us, median_seconds, seconds or us";
  else if (!has_any(t, problem))
    missing = "a problem: workload, case, lengths or batch";
  else if (as_peers && !wide && !has_any(t, names))
    missing = "a contestant, which rows of peers need";
  if (missing) {
    snprintf(error, REPORT_ERROR_SIZE, "%.200s:1: no column names %s", t->name, missing);
    return false;
  }
  *out = has_any(t, model) ? REPORT_TUNE : wide || has_any(t, names) ? REPORT_PEERS : REPORT_BENCH;
  return true;
}

/* Whether rows from `first` on have several schedules for one workload: a landscape, whoever measured it. */
static bool is_landscape(report *r, int first) {
  enum { SCHEDULES = 4 };
  report_groups seen = {0}, runs = {0};
  bool found = false;
  for (int n = first; n < r->nrows && !found; n++) {
    const report_row *row = &r->rows[n];
    const char *run = report_run(r, row), *candidate = report_text(r, "%s\n%s\n%s", run, row->family, row->schedule);
    if (!*row->schedule || groups_find(&seen, candidate))
      continue;
    groups_add(&seen, candidate, n);
    groups_add(&runs, run, n);
    found = groups_find(&runs, run)->count == SCHEDULES;
  }
  groups_free(&seen);
  groups_free(&runs);
  return found;
}

bool report_add(report *r, csv_table *table, bool as_peers, char error[REPORT_ERROR_SIZE]) {
  r->tables = report_grow(r->tables, r->ntables, sizeof *r->tables);
  r->tables[r->ntables++] = *table;
  const csv_table *t = &r->tables[r->ntables - 1];
  report_kind kind;
  if (!find_kind(t, as_peers, &kind, error))
    return false;
  r->files = report_grow(r->files, r->nfiles, sizeof *r->files);
  r->files[r->nfiles++] = (report_file){t->name, kind, t->rows};
  const bool wide = is_wide(t);
  const int first = r->nrows;
  for (int n = 0; n < t->rows; n++) {
    report_row *row = add_row(r);
    const int index = r->nrows - 1;
    row->file = r->nfiles - 1;
    row->line = t->lines[n];
    if (!read_cells(t, n, row, error) || (wide && !read_wide(r, t, n, index, error)))
      return false;
  }
  if (kind == REPORT_BENCH && is_landscape(r, first))
    r->files[r->nfiles - 1].kind = REPORT_TUNE;
  return true;
}
