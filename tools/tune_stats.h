/* tune_stats.h: what samples say of candidates: medians, bands of noise, who is kept, who wins. Pure functions. */
#ifndef TOOLS_TUNE_STATS_H
#define TOOLS_TUNE_STATS_H

#include <stdbool.h>

/* The value below which the given part (0 to 1) of the samples lies, between neighbours linearly. count at least 1. */
double stats_quantile(const double *samples, int count, double part);
/* The same of samples that stats_sort has put into ascending order, however many. */
double stats_quantile_sorted(const double *sorted, int count, double part);
void stats_sort(double *samples, int count);
double stats_median(const double *samples, int count);

/* How much slower `other` is than `base`, measured in turns: median of log(other / base) pair by pair, and how far that
 * may be from the truth by noise. Positive: slower; about a relative difference. */
typedef struct stats_difference {
  double median, band;
} stats_difference;
/* The band is three standard errors of the median, estimated from the median absolute deviation of the pairs, and at
 * least STATS_LEAST_BAND, which is what repeated runs differ by for other reasons than noise within one of them. */
#define STATS_LEAST_BAND 0.003
stats_difference stats_compare(const double *base, const double *other, int count);

/* Which of `count` candidates go on to the next round: the better half, those with a median within the noise of the
 * last one kept, and `always` (-1: none), but at least `least`. samples: [count][taken]. alive[n] false: not in the
 * race. Order of candidates breaks ties. Clears alive[n] of those that leave. */
void stats_halve(const double *samples, int taken, int count, int least, int always, bool *alive);

/* Whom others have to beat, of samples as stats_select has them: the incumbent; but `origin`, what runs without tables,
 * where the incumbent is slower than that by more than the band, in the mean or on any workload: tables promise never to
 * be slower. */
int stats_base(const double *samples, int taken, int count, int workloads, int incumbent, int origin);

/* The winner among candidates measured in turns on one workload or more, samples [workloads][count][taken]: the
 * incumbent, unless some candidate is faster by more than the band, and on no workload slower by more than its band; of
 * those, the first in order that the fastest does not beat by more than two thirds of the band. Over several workloads
 * differences are means of the logarithms. */
int stats_select(const double *samples, int taken, int count, int workloads, int incumbent);

#endif
