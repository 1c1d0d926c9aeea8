/* gpu.c: see gpu.h. */
#include "gpu.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static char lower(char c) {
  return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

static bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

void gpu_class(const char *product, char out[GPU_CLASS]) {
  static const char maker[] = "nvidia_";
  size_t used = 0;
  for (const char *p = product; *p && used < GPU_CLASS - 1; p++) {
    const char c = lower(*p);
    if (is_plain(c))
      out[used++] = c;
    else if (used && out[used - 1] != '_')
      out[used++] = '_';
    if (used == sizeof maker - 1 && memcmp(out, maker, used) == 0)
      used = 0;
  }
  while (used && out[used - 1] == '_')
    used--;
  out[used] = 0;
  if (!used)
    strcpy(out, "unknown");
}

static bool within(double a, double b, double share) {
  return fabs(a - b) <= share * fmax(a, b);
}

gpu_match gpu_compare(const gpu *measured, const gpu *here) {
  if (measured->major != here->major || measured->minor != here->minor)
    return GPU_OTHER;
  if (strcmp(measured->klass, here->klass) == 0 && measured->sm_count == here->sm_count &&
      measured->l2_bytes == here->l2_bytes && measured->shared_per_block == here->shared_per_block &&
      within(measured->memory_bandwidth, here->memory_bandwidth, 0.05))
    return GPU_SAME;
  return within(measured->sm_count, here->sm_count, 0.25) ? GPU_HINT : GPU_OTHER;
}

static double log_ratio(double a, double b) {
  return a > 0 && b > 0 ? fabs(log(a / b)) : a == b ? 0 : 100;
}

double gpu_distance(const gpu *a, const gpu *b) {
  return log_ratio(a->sm_count, b->sm_count) + log_ratio(a->memory_bandwidth, b->memory_bandwidth);
}
