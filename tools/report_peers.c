/* report_peers.c: what follows from the rows once all are there: work from shapes, ceilings from the command line, and
 * the ratio of a contestant's time to ours for the same problem. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* Bytes of q, k, v and o, once each, where the shape and one format for all say it; else NAN. */
static double bytes_of_shape(const report_row *row) {
  static const struct {
    const char *word;
    int bytes;
  } formats[] = {{"bf16", 2}, {"f16", 2}, {"f32", 4}};
  for (size_t n = 0; n < sizeof formats / sizeof *formats; n++)
    if (!strcmp(row->dtype, formats[n].word))
      return formats[n].bytes * row->batch * (row->dim_qk + row->dim_v) *
             (row->heads_q * row->len_q + row->heads_kv * row->len_k);
  return NAN;
}

static bool same(double a, double b) {
  return isnan(a) || isnan(b) || a == b;
}

static bool same_text(const char *a, const char *b) {
  return !*a || !*b || !strcmp(a, b);
}

/* Whether two rows are of one problem, as far as they say. */
static bool same_problem(const report_row *a, const report_row *b) {
  return same_text(a->spec, b->spec) && same_text(a->mask, b->mask) && same_text(a->dtype, b->dtype) &&
         same(a->batch, b->batch) && same(a->len_q, b->len_q) && same(a->len_k, b->len_k) &&
         same(a->heads_q, b->heads_q) && same(a->heads_kv, b->heads_kv) && same(a->dim_qk, b->dim_qk) &&
         same(a->dim_v, b->dim_v);
}

/* Our fastest row of the same problem, in the same file if there is one. -1: none. *other: the spec of
 * another candidate, when the workload's name alone does not tell; else NULL. */
static int find_ours(const report *r, const report_group *candidates, const report_row *peer, const char **other) {
  int best = -1;
  *other = NULL;
  for (int n = 0; n < candidates->count; n++) {
    const report_row *row = &r->rows[candidates->rows[n]];
    if (!same_problem(row, peer))
      continue;
    const report_row *so_far = best >= 0 ? &r->rows[best] : NULL;
    if (so_far && strcmp(so_far->spec, row->spec) != 0)
      *other = row->spec;
    const bool nearer = so_far && (row->file == peer->file) != (so_far->file == peer->file);
    if (!so_far || (nearer ? row->file == peer->file : row->median < so_far->median))
      best = candidates->rows[n];
  }
  return best;
}

static bool find_ratio(const report *r, const report_groups *ours, report_row *peer, char error[REPORT_ERROR_SIZE]) {
  const char *other = NULL;
  const report_group *candidates = groups_find(ours, peer->workload);
  const int at = candidates ? find_ours(r, candidates, peer, &other) : -1;
  if (at < 0)
    return true; /* the section lists it */
  const report_row *row = &r->rows[at];
  if (other && !*peer->spec) {
    snprintf(error, REPORT_ERROR_SIZE,
             "%.200s:%d: workload '%.60s' is one of %.60s and of %.60s: a column spec has to say of which",
             r->files[peer->file].name, peer->line, peer->workload, row->spec, other);
    return false;
  }
  peer->ratio = peer->median / row->median;
  if (!isnan(peer->p10) && !isnan(row->p90)) { /* not measured in turns: the widest that the two spreads allow */
    peer->ratio_p10 = peer->p10 / row->p90;
    peer->ratio_p90 = peer->p90 / row->p10;
  }
  if (!*peer->spec)
    peer->spec = row->spec;
  return true;
}

bool report_finish(report *r, char error[REPORT_ERROR_SIZE]) {
  report_groups ours = {0}; /* by workload */
  for (int n = 0; n < r->nrows; n++) {
    report_row *row = &r->rows[n];
    row->peak = isnan(row->peak) ? r->peak : row->peak;
    row->bandwidth = isnan(row->bandwidth) ? r->bandwidth : row->bandwidth;
    row->bytes = isnan(row->bytes) && !isnan(row->median) ? bytes_of_shape(row) : row->bytes;
    if (report_ours(row) && !isnan(row->median) && r->files[row->file].kind != REPORT_TUNE)
      groups_add(&ours, row->workload, n);
  }
  bool ok = true;
  for (int n = 0; n < r->nrows && ok; n++) {
    report_row *row = &r->rows[n];
    if (!report_ours(row) && isnan(row->ratio) && !isnan(row->median))
      ok = find_ratio(r, &ours, row, error);
  }
  groups_free(&ours);
  return ok;
}
