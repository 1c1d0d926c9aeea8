/* tune_clock_notes.c: what is said of the clocks of a group's finals: in the tables, in its report. */
#include <string.h>

#include "tune.h"

/* The final of a workload: its winner was in it. NULL: it has none. */
static const tune_clocks *final_clocks(const tune_group *g, int w) {
  const int winner = g->choices[w].winner;
  return winner >= 0 ? &g->candidates[winner].on[w].clocks : NULL;
}

void clock_notes(const tune_group *g, char *out, size_t size) {
  tune_clocks finals[TUNE_WORKLOADS], all;
  int count = 0;
  for (int w = 0; w < g->nworkloads; w++)
    if (final_clocks(g, w))
      finals[count++] = *final_clocks(g, w);
  clocks_merge(finals, count, &all);
  *out = 0;
  if (!all.readings)
    return;
  snprintf(out, size, "sm_clock: %.0f MHz (%.0f to %.0f)\npower_capped: %.2g\nthermal_capped: %.2g\n", all.sm_mhz,
           all.sm_low, all.sm_high, all.power_capped, all.thermal_capped);
  if (all.memory_mhz > 0)
    snprintf(out + strlen(out), size - strlen(out), "memory_clock: %.0f MHz\n", all.memory_mhz);
  if (all.watts > 0)
    snprintf(out + strlen(out), size - strlen(out), "power: %.0f W\n", all.watts);
}

void report_clock_drift(const tune_group *g, FILE *out) {
  for (int w = 0; w < g->nworkloads; w++) {
    const tune_clocks *c = final_clocks(g, w);
    const double drift = c ? clocks_drift(c) : 0;
    if (drift > CLOCK_DRIFT || drift < -CLOCK_DRIFT)
      fprintf(out, "  note: %s: the SM clock went from %.0f to %.0f MHz during the final; schedules took turns in it\n",
              g->workloads[w].name, c->sm_first, c->sm_last);
  }
}
