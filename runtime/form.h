/* form.h: what the tensors of a call look like, as tables say it, and the checks of a tensor against its row. For
 * qkv_check.c and qkv_append_check.c, whose tables these are of. Arithmetic only, for the launch path. */
#ifndef RUNTIME_FORM_H
#define RUNTIME_FORM_H

#include "qkv_internal.h"

/* What an extent must be. */
typedef enum extent {
  BATCH,
  LEN_Q,
  LEN_K,
  HEADS_Q,
  HEADS_KV,
  DIM_QK,
  DIM_V,
  TOKENS, /* new ones, of all sequences */
  TOKENS_Q,
  TOKENS_K,
  CAPACITY,
  PAGES,
  PAGE,
  COLUMNS,
  ENTRIES,
  STARTS, /* batch + 1 */
  FUSED,  /* elements of a row of queries, keys and values */
  DIMS,
  PAIRS,
  POSITIONS,
  EXTENTS
} extent;
const char *extent_name(extent e);

typedef struct form {
  int rank; /* 0: no part of such a call */
  extent extents[4];
  const char *axes[4]; /* their names in manifests */
  int token;           /* the axis of tokens, where it matters */
} form;

/* A tensor that an extent is taken from, and what it may be. */
typedef struct giver {
  int tensor;
  extent extent;
  int64_t least, most;
} giver;

/* The axis of that name; -1: none. */
int form_axis(const form *f, const char *name);
/* Rank, extents and, unless it is empty, memory of the tensor `name`. extents: for the message; NULL: it has none. */
qkv_status form_check_shape(const char *name, const qkv_tensor *t, int rank, const int64_t *want, const extent *extents,
                            role r);
/* The same by a row of a table. */
qkv_status form_check(const char *name, const qkv_tensor *t, const form *f, const int64_t sizes[EXTENTS], role r);
/* Before sizes are taken: all of them unknown, -1. */
void form_begin_sizes(int64_t sizes[EXTENTS]);
/* The giver's extent from its tensor, which has the form's rank. An earlier giver's stays: form_check compares. */
qkv_status form_take_size(const char *name, const qkv_tensor *t, const form *f, const giver *g, int64_t sizes[EXTENTS]);
/* After them: what the spec says, and what follows. */
void form_end_sizes(const spec *s, int64_t sizes[EXTENTS]);

#endif
