/* report.h: measurements from files (qkvc bench, qkvc tune, the benchmarks beside peers) as one page or one JSON
 * object.
 *
 * Every file becomes rows of one kind (report_read.c says which column means what). A section of the page looks at all
 * rows, takes those it can show, says so when there are none, and puts the table of its numbers under its picture.
 * Texts of rows belong to the report. Numbers that are not known are NAN, texts "". */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "cli_csv.h"
#include "cli_json.h"

typedef enum report_kind {
  REPORT_BENCH, /* times of this project's kernels */
  REPORT_TUNE,  /* candidates of a tuner's run: a schedule a row */
  REPORT_PEERS  /* times of several contestants on the same problems */
} report_kind;

typedef struct report_row {
  int file, line;
  const char *spec, *workload, *phase, *family, *schedule, *source, *contestant, *status, *note, *gpu, *mask, *dtype;
  double batch, len_q, len_k, heads_q, heads_kv, dim_qk, dim_v;
  double median, p10, p90, model;     /* seconds; of a row whose status is not ok only the model's */
  double flops, bytes;                /* of the problem */
  double peak, bandwidth;             /* of the device: FLOP/s and bytes/s */
  double ratio, ratio_p10, ratio_p90; /* time of the contestant over ours */
  double samples;                     /* of the median; a sample may be many calls */
  double is_default;                  /* 1: what the family takes by itself */
} report_row;

typedef struct report_file {
  const char *name;
  report_kind kind;
  int rows;
} report_file;

typedef struct report {
  const char *title;
  double peak, bandwidth; /* given by the caller, for rows that do not say; NAN: not given */
  int nfiles;
  report_file *files;
  int nrows;
  report_row *rows;
  int ntexts;
  char **texts; /* what rows point at and no table owns */
  int ntables;
  csv_table *tables;
} report;

/* ---- Reading (report_read.c, report_peers.c) ---- */

enum { REPORT_ERROR_SIZE = CSV_ERROR_SIZE + 256 };

/* Adds the rows of a table, which it takes over, even when it fails. as_peers: rows without a contestant's name are an
 * error. False with "FILE:LINE: column 'X': what" in error. */
bool report_add(report *r, csv_table *table, bool as_peers, char error[REPORT_ERROR_SIZE]);
/* After the last report_add: fills in what follows from what is there: flops and bytes from rates and shapes, ratios of
 * contestants to our time for the same problem. */
bool report_finish(report *r, char error[REPORT_ERROR_SIZE]);
void report_free(report *r);
/* Text that lives as long as the report; the process ends when memory does. */
const char *report_text(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Room for one more item behind the `count` that are there; for `count` items, all 0. The process ends when memory
 * does. */
void *report_grow(void *items, int count, size_t size);
void *report_array(int count, size_t size);

/* ---- What rows are called ---- */

/* The problem without its lengths: the spec's name, else heads, dims, number format and mask. */
const char *report_problem(report *r, const report_row *row);
/* The workload's name, else its sizes. */
const char *report_workload(report *r, const report_row *row);
/* Who ran it: the contestant, else the family, else "qkv". */
const char *report_who(const report_row *row);
bool report_ours(const report_row *row);
/* "64 x 1 x 4k": batch, queries, keys, as far as they are known. */
const char *report_sizes(report *r, const report_row *row);

/* A row's problem and workload in one line. */
const char *report_case(report *r, const report_row *row);
/* What the candidates of a tuning run compete for: problem, workload, sizes, phase. */
const char *report_run(report *r, const report_row *row);

/* ---- Groups of rows ---- */

typedef struct report_group {
  const char *label;
  int count;
  int *rows; /* indices, in the order they were added */
} report_group;

typedef struct report_groups {
  int count;
  report_group *items; /* in the order of their first row */
  int *buckets, nbuckets;
} report_groups;

void groups_add(report_groups *groups, const char *label, int row);
const report_group *groups_find(const report_groups *groups, const char *label); /* NULL: no such group */
/* A label for rows of one file; and, when all are there, labels to read instead, which name the file where two groups
 * differ in nothing else. After that nothing can be added or found. */
const char *groups_in_file(report *r, const char *label, const report_row *row);
void groups_name_files(report *r, report_groups *groups);
void groups_free(report_groups *groups);

/* ---- Page pieces (report_page.c) ---- */

enum { PAGE_ROWS = 500, PAGE_FIGURES = 24 }; /* of a table, of a section */

void page_text(FILE *out, const char *text); /* escaped */
void page_section(FILE *out, const char *id, const char *title, const char *lead);
void page_section_end(FILE *out);
void page_no_data(FILE *out, const char *why);
void page_figure(FILE *out, const char *title); /* a figure with a heading; title may be NULL */
void page_figure_end(FILE *out);
/* Keys of the series 0 to count - 1. */
void page_legend(FILE *out, int count, const char *const *labels, bool lines);
void page_more_figures(FILE *out, int all); /* says how many there would be, if more than PAGE_FIGURES */
/* A folded table under a figure (open: unfolded), of which PAGE_ROWS rows are written. A head that begins with '>' is a
 * column of numbers. */
void page_table(FILE *out, const char *caption, bool open, int columns, const char *const *heads);
void page_row(FILE *out);
void page_cell(FILE *out, const char *text);
/* Six digits at most; empty when not finite. */
void page_number(FILE *out, double value);
void page_short(FILE *out, double value); /* four digits */
void page_row_end(FILE *out);
void page_table_end(FILE *out);

/* ---- Sections: each to a page, and its numbers to JSON ---- */

void roof_section(report *r, FILE *out); /* report_roof.c */
void roof_json(report *r, cli_json *j);
void length_section(report *r, FILE *out); /* report_lines.c */
void batch_section(report *r, FILE *out);
void lines_json(report *r, cli_json *j);
void bandwidth_section(report *r, FILE *out); /* report_bars.c */
void bandwidth_json(report *r, cli_json *j);
void ratio_section(report *r, FILE *out); /* report_ratio.c */
void ratio_json(report *r, cli_json *j);
void landscape_section(report *r, FILE *out); /* report_tune.c */
void landscape_json(report *r, cli_json *j);

extern const char report_style[]; /* the style sheet, report_style.c */
/* All of them. */
void report_page(report *r, FILE *out);
void report_write_json(report *r, FILE *out);
/* The page into a file ("-": standard output). A message and an exit code when that fails. */
int report_write_page(report *r, const char *path);

/* ---- Statistics ---- */

/* Spearman's rank correlation, ties with their mean rank; NAN for fewer than 3 pairs or no spread. */
double report_rank_correlation(int count, const double *x, const double *y);
double report_geometric_mean(int count, const double *values);

#endif
