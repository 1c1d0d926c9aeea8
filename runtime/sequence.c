/* sequence.c: see sequence.h. */
#include "sequence.h"

static int64_t entry(const qkv_tensor *t, int64_t n) {
  return ((const int32_t *)t->data)[n];
}

static int64_t clamp(int64_t value, int64_t most) {
  return value < 0 || most < 0 ? 0 : value > most ? most : value;
}

/* Sequence b of packed ones: its first row and its length. */
static void find_packed(const qkv_tensor *cu_seqlens, int64_t b, int64_t *first, int64_t *length) {
  *first = entry(cu_seqlens, b);
  *length = entry(cu_seqlens, b + 1) - *first;
}

int64_t sequence_count(const sequence_layout *l, const qkv_attention_args *args) {
  return l->q == QKV_RAGGED ? args->cu_seqlens_q.shape[0] - 1 : args->q.shape[0];
}

sequence sequence_as_written(const sequence_layout *l, const qkv_attention_args *args, int64_t b) {
  sequence s = {.b = b};
  if (l->q == QKV_RAGGED)
    find_packed(&args->cu_seqlens_q, b, &s.first_q, &s.len_q);
  else
    s.len_q = args->q.shape[1];
  if (l->kv == QKV_RAGGED)
    find_packed(&args->cu_seqlens_k, b, &s.first_k, &s.len_k);
  else
    s.len_k = l->kv == QKV_DENSE ? args->k.shape[1] : entry(&args->seqlens_k, b);
  if (l->kv == QKV_PAGED)
    s.first_page = l->page_table == QKV_PAGE_TABLE_CSR ? entry(&args->page_indptr, b) : b * args->page_table.stride[0];
  return s;
}

/* Packed rows of at most `most`, inside of the tensor's. */
static void clamp_packed(int64_t rows, int64_t most, int64_t *first, int64_t *length) {
  int64_t end = clamp(*first + *length, rows);
  *first = clamp(*first, rows);
  *length = clamp(end - *first, most);
}

sequence sequence_find(const sequence_layout *l, const qkv_attention_args *args, int64_t b) {
  sequence s = sequence_as_written(l, args, b);
  if (l->q == QKV_RAGGED)
    clamp_packed(args->q.shape[0], args->max_len_q, &s.first_q, &s.len_q);
  if (l->kv == QKV_RAGGED)
    clamp_packed(args->k.shape[0], args->max_len_k, &s.first_k, &s.len_k);
  if (l->kv == QKV_PADDED || l->kv == QKV_PAGED)
    s.len_k = clamp(s.len_k, args->max_len_k);
  if (l->kv == QKV_PAGED && l->page_table == QKV_PAGE_TABLE_CSR) {
    int64_t entries = args->page_table.shape[0];
    s.first_page = clamp(s.first_page, entries);
    s.len_k = clamp(s.len_k, (entries - s.first_page) * l->page_size);
  }
  return s;
}

int64_t sequence_query(const sequence_layout *l, const sequence *s, const qkv_tensor *t, int64_t i, int64_t h) {
  if (l->q == QKV_RAGGED)
    return (s->first_q + i) * t->stride[0] + h * t->stride[1];
  return s->b * t->stride[0] + i * t->stride[1] + h * t->stride[2];
}

int64_t sequence_lse(const sequence_layout *l, const sequence *s, const qkv_tensor *t, int64_t i, int64_t h) {
  if (l->q == QKV_RAGGED)
    return h * t->stride[0] + (s->first_q + i) * t->stride[1];
  return s->b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

int64_t sequence_page(const sequence *s, const qkv_attention_args *args, int64_t n) {
  return entry(&args->page_table, s->first_page + n);
}

int64_t sequence_key(const sequence_layout *l, const sequence *s, const qkv_attention_args *args, const qkv_tensor *t,
                     int64_t k, int64_t h) {
  if (l->kv == QKV_RAGGED)
    return (s->first_k + k) * t->stride[0] + h * t->stride[1];
  if (l->kv != QKV_PAGED)
    return s->b * t->stride[0] + k * t->stride[1] + h * t->stride[2];
  const int head = l->page_order == QKV_PAGE_HND ? 1 : 2, token = 3 - head;
  return sequence_page(s, args, k / l->page_size) * t->stride[0] + k % l->page_size * t->stride[token] +
         h * t->stride[head];
}
