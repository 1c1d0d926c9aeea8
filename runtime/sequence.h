/* sequence.h: where the tokens of a call's sequences lie, for every layout: on the host, for the reference, masks and
 * counts. What kernels do on the device (templates/parts/sequence_view.cu) is this.
 *
 * Lengths and starts are clamped to what the call declares, so that no content of an array of lengths leads out of a
 * tensor or table; entries of page tables are taken as they are. Pure. */
#ifndef RUNTIME_SEQUENCE_H
#define RUNTIME_SEQUENCE_H

#include "qkv.h"

typedef struct sequence_layout {
  qkv_layout q, kv;
  int page_size; /* of QKV_PAGED, likewise the next two */
  qkv_page_order page_order;
  qkv_page_table page_table;
} sequence_layout;

/* One sequence of a call. */
typedef struct sequence {
  int64_t b, len_q, len_k;
  int64_t first_q, first_k; /* the row of token 0 where sequences are packed, else 0 */
  int64_t first_page;       /* the element of the page table that names its first page */
} sequence;

/* Of batch entry b. `args` is checked, its index arrays are in host memory, and max_len_q and max_len_k are set where
 * the tensors do not say them. */
sequence sequence_find(const sequence_layout *l, const qkv_attention_args *args, int64_t b);
/* The same, with lengths as they are written, unclamped: what qkv_check_sequences judges. */
sequence sequence_as_written(const sequence_layout *l, const qkv_attention_args *args, int64_t b);
int64_t sequence_count(const sequence_layout *l, const qkv_attention_args *args);

/* The elements between t->data and the first one of a row: query i of head h, in q or o; the same in an lse; key k of
 * KV head h, in k or v. */
int64_t sequence_query(const sequence_layout *l, const sequence *s, const qkv_tensor *t, int64_t i, int64_t h);
int64_t sequence_lse(const sequence_layout *l, const sequence *s, const qkv_tensor *t, int64_t i, int64_t h);
int64_t sequence_key(const sequence_layout *l, const sequence *s, const qkv_attention_args *args, const qkv_tensor *t,
                     int64_t k, int64_t h);
/* Page number n of a sequence, as the table has it. */
int64_t sequence_page(const sequence *s, const qkv_attention_args *args, int64_t n);

#endif
