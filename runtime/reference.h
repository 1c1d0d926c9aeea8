/* reference.h: attention in f64 on the CPU, by the order of operations of the design: the definition of right.
 *
 *   k and v are what the tensors hold times k_scale and v_scale of their head, if there are such; s = scale * dot(q, k); softcap: s = cap * tanh(s / cap); s = score(s, ...); mask false -> s = -inf;
 *   the sink is one more logit of the denominator; softmax; o = P v; lse = log of the sum of exp of the scores
 *   (lse_with_sink: with the sink). A row without a visible key: o = 0, lse = -inf.
 *
 * Knows nothing of specs: scores and masks come as callbacks. */
#ifndef RUNTIME_REFERENCE_H
#define RUNTIME_REFERENCE_H

#include <stdint.h>

#include "qkv.h"
#include "sequence.h"

/* Where an element stands: q and k in KV coordinates, i the raw query row. */
typedef struct reference_position {
  int64_t q, k, i, h, hk, b, len_q, len_k;
  int64_t residue, dilation, all_q, all_k; /* for what the generator derives of one residue; the reference has none */
} reference_position;

typedef struct reference_problem {
  const qkv_attention_args *args; /* host memory; max_len_q and max_len_k as sequence_find wants them */
  sequence_layout layout;
  int heads_q, heads_kv;
  double scale, softcap; /* softcap 0: none */
  int bottom_right;      /* q = i + len_k - len_q, else q = i */
  int has_sink, has_kv_scale;
  double (*score)(void *user, const reference_position *at, double s); /* NULL: s */
  int (*mask)(void *user, const reference_position *at);               /* NULL: all visible */
  void *user;
} reference_problem;

/* Computes o and whichever of lse, lse_with_sink have data; rows of no sequence keep what they hold. Shapes must have
 * been checked. QKV_OUT_OF_MEMORY or QKV_OK. */
qkv_status reference_attention(const reference_problem *problem);
/* Visible (query, key) pairs over batch and query heads. */
double reference_visible(const reference_problem *problem);

/* Number formats, shared with tests and tools: round to nearest even, as the hardware does. */
uint16_t float_to_bf16(float f);
float bf16_to_float(uint16_t h);
uint16_t float_to_f16(float f);
float f16_to_float(uint16_t h);
/* Element at byte address p of a dtype, as double, and back. */
double tensor_load(const void *p, qkv_dtype dtype);
void tensor_store(void *p, qkv_dtype dtype, double value);
int dtype_size(qkv_dtype dtype);

#endif
