/* qkv_form.c: tensors against the rows of a table, and sizes from tensors. */
#include <string.h>

#include "form.h"

const char *extent_name(extent e) {
  static const char *const names[EXTENTS] = {
      [BATCH] = "batch",       [LEN_Q] = "len_q",       [LEN_K] = "len_k",         [HEADS_Q] = "heads_q",
      [HEADS_KV] = "heads_kv", [DIM_QK] = "dim_qk",     [DIM_V] = "dim_v",         [TOKENS] = "tokens",
      [TOKENS_Q] = "tokens_q", [TOKENS_K] = "tokens_k", [CAPACITY] = "capacity",   [PAGES] = "pages",
      [PAGE] = "page",         [COLUMNS] = "columns",   [ENTRIES] = "entries",     [STARTS] = "batch + 1",
      [FUSED] = "q, k and v",  [DIMS] = "rope.dims",    [POSITIONS] = "positions", [PAIRS] = "rope.dims / 2"};
  return names[e];
}

int form_axis(const form *f, const char *name) {
  for (int d = 0; d < f->rank; d++)
    if (!strcmp(f->axes[d], name))
      return d;
  return -1;
}

qkv_status form_check_shape(const char *name, const qkv_tensor *t, int rank, const int64_t *want, const extent *extents,
                            role r) {
  bool empty = false;
  if (t->rank != rank)
    return error_set(QKV_INVALID_ARGUMENT, "%s: has rank %d, must have %d", name, t->rank, rank);
  for (int d = 0; d < rank; d++) {
    if (t->shape[d] != want[d])
      return error_set(QKV_INVALID_ARGUMENT, "%s: dimension %d%s%s is %lld, must be %lld", name, d, extents ? ", " : "",
                       extents ? extent_name(extents[d]) : "", (long long)t->shape[d], (long long)want[d]);
    empty |= t->shape[d] <= 0;
  }
  return empty ? QKV_OK : call_check_memory(name, t, r);
}

qkv_status form_check(const char *name, const qkv_tensor *t, const form *f, const int64_t sizes[EXTENTS], role r) {
  int64_t want[4];
  for (int d = 0; d < f->rank; d++)
    want[d] = sizes[f->extents[d]];
  return form_check_shape(name, t, f->rank, want, f->extents, r);
}

void form_begin_sizes(int64_t sizes[EXTENTS]) {
  for (int n = 0; n < EXTENTS; n++)
    sizes[n] = -1;
}

qkv_status form_take_size(const char *name, const qkv_tensor *t, const form *f, const giver *g,
                          int64_t sizes[EXTENTS]) {
  for (int d = 0; d < f->rank; d++) {
    if (f->extents[d] != g->extent)
      continue;
    if (t->shape[d] < g->least || t->shape[d] > g->most)
      return error_set(QKV_INVALID_ARGUMENT, "%s: dimension %d, %s, is %lld; it must be %lld to %lld", name, d,
                       extent_name(g->extent), (long long)t->shape[d], (long long)g->least, (long long)g->most);
    if (sizes[g->extent] < 0)
      sizes[g->extent] = t->shape[d];
  }
  if (g->extent == STARTS && sizes[STARTS] >= 0)
    sizes[BATCH] = sizes[STARTS] - 1;
  return QKV_OK;
}

void form_end_sizes(const spec *s, int64_t sizes[EXTENTS]) {
  sizes[STARTS] = sizes[BATCH] + 1;
  sizes[PAGE] = s->page_size;
  sizes[HEADS_Q] = s->heads_q;
  sizes[HEADS_KV] = s->heads_kv;
  sizes[DIM_QK] = s->dim_qk;
  sizes[DIM_V] = s->dim_v;
  sizes[DIMS] = s->rope.dims;
  sizes[PAIRS] = s->rope.dims / 2;
}
