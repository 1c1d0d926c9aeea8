/* rope.h: rotary positions: how fast each pair of dimensions turns.
 *
 * The token at `position` has pair d of its first `dims` dimensions turned by position * frequency(d):
 *
 *   (x, y) -> (x cos - y sin, y cos + x sin),  cos and sin times the attention factor
 *
 * where the pair is (d, d + dims / 2), or (2 d, 2 d + 1) where interleaved (Su et al., RoFormer, arXiv 2104.09864).
 * With base(d) = theta^(-2 d / dims), 0 <= d < dims / 2, the frequency is
 *
 *   unscaled  base(d)
 *   linear    base(d) / factor  (Chen et al., arXiv 2306.15595)
 *   ntk       base(d) of theta * factor^(dims / (dims - 2))  (NTK-aware interpolation)
 *   yarn      base(d) / factor * ramp(d) + base(d) * (1 - ramp(d))
 *             ramp(d) = clamp((d - first) / (last - first), 0, 1), first = pair(beta_fast), last = pair(beta_slow)
 *             pair(turns) = dims log(original / (2 pi turns)) / (2 log(theta)); truncated: first rounded down, last up;
 *             first at least 0, last at most dims - 1 and at least first + 0.001
 *             attention factor: 0.1 log(factor) + 1 where factor > 1 and none is given (Peng et al., arXiv 2309.00071)
 *   llama3    with waves = original * base(d) / (2 pi): base(d) / factor where waves < low, base(d) where waves > high,
 *             else base(d) * ((1 - blend) / factor + blend), blend = (waves - low) / (high - low)  (Llama 3.1)
 *
 * The last two are as the models' own configurations mean them. Frequencies are f32 numbers, as engines hold them; what
 * follows from them is exact in the reference. Pure. */
#ifndef GEN_ROPE_H
#define GEN_ROPE_H

#include "spec.h"

/* frequencies[dims / 2]. r has no table. */
void rope_frequencies(const spec_rope *r, float *frequencies);
/* The attention factor; 1 but for YaRN. */
double rope_factor(const spec_rope *r);

#endif
