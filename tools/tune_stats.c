/* tune_stats.c: see tune_stats.h. */
#include "tune_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SAMPLES = 4096 };
/* Of a band: two of its three standard errors. Who replaces the incumbent has to be surely faster; among those who do,
 * a wide band would rather give away time than stay the same from run to run. */
#define TIE_PART (2.0 / 3)

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void stats_sort(double *samples, int count) {
  qsort(samples, (size_t)count, sizeof *samples, by_value);
}

double stats_quantile_sorted(const double *sorted, int count, double part) {
  const double at = part * (count - 1);
  const int below = (int)at, above = below + 1 < count ? below + 1 : below;
  return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

double stats_quantile(const double *samples, int count, double part) {
  double sorted[MOST_SAMPLES];
  count = count > MOST_SAMPLES ? MOST_SAMPLES : count;
  memcpy(sorted, samples, (size_t)count * sizeof *sorted);
  stats_sort(sorted, count);
  return stats_quantile_sorted(sorted, count, part);
}

double stats_median(const double *samples, int count) {
  return stats_quantile(samples, count, 0.5);
}

/* Three standard errors of the median of values whose median is given: the deviation of a normal distribution is 1.4826
 * times its median absolute deviation, and the error of a median is 1.2533 times that of a mean. */
static double band_of(const double *values, int count, double median) {
  double away[MOST_SAMPLES];
  for (int n = 0; n < count; n++)
    away[n] = fabs(values[n] - median);
  const double error = 1.2533 * 1.4826 * stats_median(away, count) / sqrt(count);
  return fmax(STATS_LEAST_BAND, 3 * error);
}

stats_difference stats_compare(const double *base, const double *other, int count) {
  double logs[MOST_SAMPLES];
  count = count > MOST_SAMPLES ? MOST_SAMPLES : count;
  for (int n = 0; n < count; n++)
    logs[n] = log(other[n] / base[n]);
  const double median = stats_median(logs, count);
  return (stats_difference){median, band_of(logs, count, median)};
}

/* ---- Halving ---- */

typedef struct ranked {
  double median;
  int candidate;
} ranked;

static int by_rank(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  return x->median != y->median ? (x->median > y->median) - (x->median < y->median) : x->candidate - y->candidate;
}

void stats_halve(const double *samples, int taken, int count, int least, int always, bool *alive) {
  ranked *order = calloc((size_t)count, sizeof *order);
  int racing = 0;
  for (int n = 0; n < count && order; n++)
    if (alive[n])
      order[racing++] = (ranked){stats_median(samples + (long)n * taken, taken), n};
  if (order)
    qsort(order, (size_t)racing, sizeof *order, by_rank);
  const int half = (racing + 1) / 2, keep = half > least ? half : least;
  for (int n = keep; n < racing; n++) {
    const int last = order[keep - 1].candidate, other = order[n].candidate;
    const stats_difference d = stats_compare(samples + (long)last * taken, samples + (long)other * taken, taken);
    if (d.median > d.band && other != always)
      alive[other] = false;
  }
  free(order);
}

/* ---- Selection ---- */

/* The samples of a candidate on a workload. */
typedef struct race {
  const double *samples;
  int taken, count, workloads;
} race;

static const double *samples_of(const race *r, int workload, int candidate) {
  return r->samples + ((long)workload * r->count + candidate) * r->taken;
}

/* Over all workloads: mean of the medians; the bands as independent errors. */
static stats_difference compare_all(const race *r, int base, int other) {
  double sum = 0, squares = 0;
  for (int w = 0; w < r->workloads; w++) {
    const stats_difference d = stats_compare(samples_of(r, w, base), samples_of(r, w, other), r->taken);
    sum += d.median;
    squares += d.band * d.band;
  }
  return (stats_difference){sum / r->workloads, fmax(STATS_LEAST_BAND, sqrt(squares) / r->workloads)};
}

static bool slower_anywhere(const race *r, int base, int other) {
  for (int w = 0; w < r->workloads; w++) {
    const stats_difference d = stats_compare(samples_of(r, w, base), samples_of(r, w, other), r->taken);
    if (d.median > d.band)
      return true;
  }
  return false;
}

int stats_base(const double *samples, int taken, int count, int workloads, int incumbent, int origin) {
  const race r = {samples, taken, count, workloads};
  const stats_difference d = compare_all(&r, origin, incumbent);
  return d.median > d.band || slower_anywhere(&r, origin, incumbent) ? origin : incumbent;
}

int stats_select(const double *samples, int taken, int count, int workloads, int incumbent) {
  const race r = {samples, taken, count, workloads};
  bool *better = calloc((size_t)count, sizeof *better);
  int fastest = -1, winner = incumbent;
  double least = 0;
  for (int n = 0; n < count && better; n++) {
    const stats_difference d = compare_all(&r, incumbent, n);
    better[n] = n != incumbent && d.median < -d.band && !slower_anywhere(&r, incumbent, n);
    if (better[n] && d.median < least) {
      least = d.median;
      fastest = n;
    }
  }
  for (int n = 0; n < count && fastest >= 0; n++) {
    if (!better[n])
      continue;
    const stats_difference d = compare_all(&r, fastest, n);
    if (n == fastest || d.median <= fmax(STATS_LEAST_BAND, TIE_PART * d.band)) {
      winner = n;
      break;
    }
  }
  free(better);
  return winner;
}
