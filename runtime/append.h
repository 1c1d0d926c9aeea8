/* append.h: a call of qkv_append, checked and described: what the launch path and the reference start from. */
#ifndef RUNTIME_APPEND_H
#define RUNTIME_APPEND_H

#include "qkv_internal.h"

/* Its tensors by number; Q to V are parts of qkv where that is given. */
enum {
  APPEND_Q,
  APPEND_NEW_K,
  APPEND_NEW_V,
  APPEND_Q_OUT,
  APPEND_K,
  APPEND_V,
  APPEND_SLOTS,
  APPEND_POSITIONS,
  APPEND_Q_NORM,
  APPEND_K_NORM,
  APPEND_COS_SIN,
  APPEND_FREQUENCIES,
  APPEND_K_SCALE,
  APPEND_V_SCALE,
  APPEND_CU_SEQLENS_Q,
  APPEND_CU_SEQLENS_K,
  APPEND_SEQLENS_K,
  APPEND_PAGE_TABLE,
  APPEND_PAGE_INDPTR,
  APPEND_TENSORS
};

/* And its numbers, in call_view.values. */
enum {
  APPEND_EPSILON,
  APPEND_ROPE_FACTOR,
  APPEND_SLOT_COUNT, /* places there are in the cache */
  APPEND_SLOTS_WORDS,
  APPEND_POSITIONS_WORDS,
  APPEND_VALUES
};

typedef struct append_call {
  qkv_append_args args; /* the caller's, with q, k and v where qkv was given */
  call_view view;       /* sizes, tensors and values by the numbers above */
} append_call;

/* host: float tensors may be of any float format (the reference). */
qkv_status append_check(const spec *s, const qkv_append_args *args, int host, append_call *out);

#endif
