/* rope.c: see rope.h. */
#include "rope.h"

#include <math.h>

static const double two_pi = 6.283185307179586;

static double clamp(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}

/* The pair, as a real number, that turns `turns` times in the original context. */
static double pair_of(const spec_rope *r, double turns) {
  return r->dims * log(r->original / (two_pi * turns)) / (2 * log(r->theta));
}

/* 0: pair d is left as it is; 1: it is divided by the factor. */
static double yarn_ramp(const spec_rope *r, int d) {
  double first = pair_of(r, r->beta_fast), last = pair_of(r, r->beta_slow);
  if (r->truncate) {
    first = floor(first);
    last = ceil(last);
  }
  first = first > 0 ? first : 0;
  last = last < r->dims - 1 ? last : r->dims - 1;
  if (last < first + 0.001)
    last = first + 0.001;
  return clamp((d - first) / (last - first), 0, 1);
}

static double scaled(const spec_rope *r, int d, double base) {
  switch (r->scaling) {
  case ROPE_LINEAR:
    return base / r->factor;
  case ROPE_YARN: {
    const double ramp = yarn_ramp(r, d);
    return base / r->factor * ramp + base * (1 - ramp);
  }
  case ROPE_LLAMA3: {
    const double waves = r->original * base / two_pi, blend = clamp((waves - r->low) / (r->high - r->low), 0, 1);
    return base * ((1 - blend) / r->factor + blend);
  }
  default:
    return base;
  }
}

void rope_frequencies(const spec_rope *r, float *frequencies) {
  const double theta =
      r->scaling == ROPE_NTK ? r->theta * pow(r->factor, r->dims / (r->dims - 2.0)) : r->theta;
  for (int d = 0; d < r->dims / 2; d++)
    frequencies[d] = (float)scaled(r, d, pow(theta, -2.0 * d / r->dims));
}

double rope_factor(const spec_rope *r) {
  if (r->scaling != ROPE_YARN)
    return 1;
  if (r->attention_factor != 0)
    return r->attention_factor;
  return r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1;
}
