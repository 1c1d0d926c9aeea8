/* tune_clock.h: the clocks that a GPU runs at while something is timed, read through NVML by a thread of its own.
 *
 * libnvidia-ml.so.1, which comes with the driver, is opened at run time, or the library that $QKV_NVML names. Without
 * it, or where it does not know the device, there are no clocks and everything else is as it was. */
#ifndef TOOLS_TUNE_CLOCK_H
#define TOOLS_TUNE_CLOCK_H

#include "qkv.h"
#include "tune_record.h"

typedef struct tune_clock tune_clock;

/* What was read in a span. readings 0: nothing, and all else is 0. A value that NVML does not tell is 0. */
typedef struct tune_clocks {
  int readings;
  double sm_mhz, sm_low, sm_high; /* of the SMs: median, least, greatest */
  double sm_first, sm_last;       /* medians of the first and the last quarter of the span; 0: too few readings */
  double memory_mhz, watts;       /* medians */
  double power_capped;            /* share of the readings at which power held the clocks down, 0 to 1 */
  double thermal_capped;          /* the same of heat */
} tune_clocks;

/* The clocks of an engine's device, which is found by its PCI bus id: the driver's, or $QKV_NVML_BUS where it is set.
 * NULL: none, which is said once (cli_note) of GPUs. `device` is not kept. */
tune_clock *clock_open(const qkv_device_info *device);
void clock_close(tune_clock *c); /* NULL: nothing */
/* Reads every few milliseconds from here to clock_stop, which waits for at most one more reading. Calls alternate; one
 * thread at a time. With NULL: no readings. */
void clock_start(tune_clock *c);
void clock_stop(tune_clock *c, tune_clocks *out);

/* As fields of an answer, and back; an answer without them, such as one of an older journal, has no readings. */
void clocks_put(record_writer *w, const tune_clocks *clocks);
void clocks_get(const record *answer, tune_clocks *out);

/* Several spans as one: median of the medians that are known, extremes of the extremes, means by readings of the
 * shares. Quarters are of single spans: 0. */
void clocks_merge(const tune_clocks *spans, int count, tune_clocks *out);
/* By how much the clock of the last quarter differs from that of the first: -0.05: 5 % lower. 0: not known. */
double clocks_drift(const tune_clocks *clocks);

#endif
