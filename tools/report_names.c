/* report_names.c: what problems, sizes and contestants are called; groups of rows with one label; statistics. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "svg.h"

/* ---- Names ---- */

bool report_ours(const report_row *row) {
  return !*row->contestant || !strcmp(row->contestant, "qkv");
}

const char *report_who(const report_row *row) {
  return *row->contestant ? row->contestant : *row->family ? row->family : "qkv";
}

/* Two texts with something between them, where neither is empty. */
static const char *join(report *r, const char *text, const char *between, const char *word) {
  return !*text ? word : !*word ? text : report_text(r, "%s%s%s", text, between, word);
}

const char *report_problem(report *r, const report_row *row) {
  if (*row->spec)
    return row->spec;
  const char *text = "";
  if (!isnan(row->heads_q))
    text = isnan(row->heads_kv) || row->heads_kv == row->heads_q
               ? report_text(r, "%.0f heads", row->heads_q)
               : report_text(r, "%.0f/%.0f heads", row->heads_q, row->heads_kv);
  if (!isnan(row->dim_qk))
    text =
        join(r, text, ", ",
             isnan(row->dim_v) || row->dim_v == row->dim_qk ? report_text(r, "D %.0f", row->dim_qk)
                                                            : report_text(r, "D %.0f/%.0f", row->dim_qk, row->dim_v));
  return join(r, join(r, text, ", ", row->dtype), ", ", row->mask);
}

const char *report_sizes(report *r, const report_row *row) {
  const double sizes[] = {row->batch, row->len_q, row->len_k};
  const char *text = "";
  char number[32];
  for (int n = 0; n < 3; n++) {
    const bool whole = sizes[n] < 1024 || fmod(sizes[n], 1024) == 0; /* else "1k" would be about right only */
    if (whole)
      svg_number(number, sizes[n], SVG_TOKENS);
    else
      snprintf(number, sizeof number, "%.0f", sizes[n]);
    if (!isnan(sizes[n]))
      text = join(r, text, " \xC3\x97 ", report_text(r, "%s", number));
  }
  return text;
}

const char *report_workload(report *r, const report_row *row) {
  return *row->workload ? row->workload : report_sizes(r, row);
}

const char *report_case(report *r, const report_row *row) {
  if (!*row->workload)
    return join(r, report_problem(r, row), ", ", report_sizes(r, row));
  return join(r, row->spec, ", ", row->workload);
}

const char *report_run(report *r, const report_row *row) {
  const char *text = join(r, report_problem(r, row), ", ", row->workload);
  return join(r, join(r, text, ", ", report_sizes(r, row)), ", ", row->phase);
}

/* ---- Groups ---- */

static unsigned hash(const char *text) {
  unsigned h = 2166136261u; /* FNV-1a */
  for (; *text; text++)
    h = (h ^ (unsigned char)*text) * 16777619u;
  return h;
}

static int *find_bucket(const report_groups *g, const char *label) {
  unsigned at = hash(label) & (unsigned)(g->nbuckets - 1);
  while (g->buckets[at] >= 0 && strcmp(g->items[g->buckets[at]].label, label) != 0)
    at = (at + 1) & (unsigned)(g->nbuckets - 1);
  return &g->buckets[at];
}

/* Twice as many buckets as groups there may be before the next time. */
static void rehash(report_groups *g) {
  if (g->nbuckets > 2 * g->count)
    return;
  free(g->buckets);
  g->nbuckets = 16;
  while (g->nbuckets <= 4 * g->count)
    g->nbuckets *= 2;
  g->buckets = report_array(g->nbuckets, sizeof *g->buckets);
  for (int n = 0; n < g->nbuckets; n++)
    g->buckets[n] = -1;
  for (int n = 0; n < g->count; n++)
    *find_bucket(g, g->items[n].label) = n;
}

void groups_add(report_groups *g, const char *label, int row) {
  rehash(g);
  int *bucket = find_bucket(g, label);
  if (*bucket < 0) {
    g->items = report_grow(g->items, g->count, sizeof *g->items);
    g->items[g->count] = (report_group){.label = label};
    *bucket = g->count++;
  }
  report_group *group = &g->items[*bucket];
  group->rows = report_grow(group->rows, group->count, sizeof *group->rows);
  group->rows[group->count++] = row;
}

const report_group *groups_find(const report_groups *g, const char *label) {
  const int at = g->count ? *find_bucket(g, label) : -1;
  return at < 0 ? NULL : &g->items[at];
}

const char *groups_in_file(report *r, const char *label, const report_row *row) {
  return report_text(r, "%s\n%d", label, row->file);
}

void groups_name_files(report *r, report_groups *g) {
  report_groups names = {0};
  for (int n = 0; n < g->count; n++) {
    const char *label = g->items[n].label; /* which may have line feeds of its own */
    groups_add(&names, report_text(r, "%.*s", (int)(strrchr(label, '\n') - label), label), n);
  }
  for (int n = 0; n < names.count; n++)
    for (int m = 0; m < names.items[n].count; m++) {
      report_group *group = &g->items[names.items[n].rows[m]];
      const char *file = r->files[r->rows[group->rows[0]].file].name, *base = strrchr(file, '/');
      group->label = names.items[n].count == 1 ? names.items[n].label
                                               : report_text(r, "%s, %s", names.items[n].label, base ? base + 1 : file);
    }
  groups_free(&names);
  free(g->buckets); /* labels are others now */
  g->buckets = NULL;
  g->nbuckets = 0;
}

void groups_free(report_groups *g) {
  for (int n = 0; n < g->count; n++)
    free(g->items[n].rows);
  free(g->items);
  free(g->buckets);
  memset(g, 0, sizeof *g);
}

/* ---- Statistics ---- */

typedef struct ranked {
  double value, rank;
  int at;
} ranked;

static int by_value(const void *a, const void *b) {
  const double x = ((const ranked *)a)->value, y = ((const ranked *)b)->value;
  return (x > y) - (x < y);
}

static int by_place(const void *a, const void *b) {
  return ((const ranked *)a)->at - ((const ranked *)b)->at;
}

/* Ranks from 1, those of equal values their mean, in the values' own order. Freed by the caller. */
static ranked *rank(int count, const double *values) {
  ranked *items = report_array(count, sizeof *items);
  for (int n = 0; n < count; n++)
    items[n] = (ranked){values[n], 0, n};
  qsort(items, (size_t)count, sizeof *items, by_value);
  for (int first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && items[end].value == items[first].value; end++)
      ;
    for (int n = first; n < end; n++)
      items[n].rank = 0.5 * (first + 1 + end);
  }
  qsort(items, (size_t)count, sizeof *items, by_place);
  return items;
}

double report_rank_correlation(int count, const double *x, const double *y) {
  if (count < 3)
    return NAN;
  ranked *a = rank(count, x), *b = rank(count, y);
  const double mean = 0.5 * (count + 1);
  double together = 0, of_x = 0, of_y = 0;
  for (int n = 0; n < count; n++) {
    together += (a[n].rank - mean) * (b[n].rank - mean);
    of_x += (a[n].rank - mean) * (a[n].rank - mean);
    of_y += (b[n].rank - mean) * (b[n].rank - mean);
  }
  free(a);
  free(b);
  return of_x > 0 && of_y > 0 ? together / sqrt(of_x * of_y) : NAN;
}

double report_geometric_mean(int count, const double *values) {
  double sum = 0;
  for (int n = 0; n < count; n++)
    sum += log(values[n]);
  return count ? exp(sum / count) : NAN;
}
