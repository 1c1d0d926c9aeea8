/* qkv_sequences.c: sequences of a call for the other files, and a look at what arrays of lengths and pages hold, which
 * a launch cannot take: they are in device memory, and change between the replays of a graph. */
#include "qkv_internal.h"

sequence call_sequence(const spec *s, const qkv_attention_args *args, int64_t b) {
  const sequence_layout l = spec_sequence_layout(s);
  return sequence_find(&l, args, b);
}

int64_t call_batch(const spec *s, const qkv_attention_args *args) {
  const sequence_layout l = spec_sequence_layout(s);
  return sequence_count(&l, args);
}

/* Sequence b of packed rows, `what` they are: it begins and ends inside, and is not too long. */
static qkv_status check_packed(const char *name, const char *what, int64_t b, int64_t first, int64_t length,
                               int64_t rows, int64_t most) {
  if (first < 0 || first > rows)
    return error_set(QKV_INVALID_ARGUMENT, "%s[%lld]: is %lld, must be 0 to %lld, the %s there are", name,
                     (long long)b, (long long)first, (long long)rows, what);
  if (length < 0)
    return error_set(QKV_INVALID_ARGUMENT, "%s[%lld]: is %lld, below the %lld before it: they must not fall", name,
                     (long long)b + 1, (long long)(first + length), (long long)first);
  if (first + length > rows)
    return error_set(QKV_INVALID_ARGUMENT, "%s[%lld]: is %lld, must be at most %lld, the %s there are", name,
                     (long long)b + 1, (long long)(first + length), (long long)rows, what);
  if (length > most)
    return error_set(QKV_INVALID_ARGUMENT, "%s: sequence %lld has %lld tokens, the maximum is %lld", name, (long long)b,
                     (long long)length, (long long)most);
  return QKV_OK;
}

/* The pages that a sequence of a csr table has. */
static qkv_status check_part(const qkv_attention_args *args, const sequence *q, int64_t pages) {
  const int64_t entries = args->page_table.shape[0], next = ((const int32_t *)args->page_indptr.data)[q->b + 1];
  const int64_t own = next - q->first_page;
  qkv_status status = check_packed("page_indptr", "entries", q->b, q->first_page, own, entries, entries);
  if (status != QKV_OK || pages <= own)
    return status;
  return error_set(QKV_INVALID_ARGUMENT, "page_indptr: sequence %lld has %lld pages, its %lld tokens need %lld",
                   (long long)q->b, (long long)own, (long long)q->len_k, (long long)pages);
}

static qkv_status check_pages(const sequence_layout *l, const qkv_attention_args *args, const sequence *q) {
  const int64_t pages = (q->len_k + l->page_size - 1) / l->page_size, there = args->k.shape[0];
  qkv_status status = l->page_table == QKV_PAGE_TABLE_CSR ? check_part(args, q, pages) : QKV_OK;
  for (int64_t n = 0; n < pages && status == QKV_OK; n++) {
    const int64_t page = sequence_page(q, args, n);
    if (page < 0 || page >= there)
      status = error_set(QKV_INVALID_ARGUMENT,
                         "page_table: page %lld of sequence %lld (its tokens from %lld on) is number %lld, must be 0 "
                         "to %lld",
                         (long long)n, (long long)q->b, (long long)(n * l->page_size), (long long)page,
                         (long long)there - 1);
  }
  return status;
}

static qkv_status check_sequence(const sequence_layout *l, const qkv_attention_args *args, int64_t b) {
  const sequence q = sequence_as_written(l, args, b);
  qkv_status status = QKV_OK;
  if (l->q == QKV_RAGGED)
    status = check_packed("cu_seqlens_q", "tokens", b, q.first_q, q.len_q, args->q.shape[0], args->max_len_q);
  if (status == QKV_OK && l->kv == QKV_RAGGED)
    status = check_packed("cu_seqlens_k", "tokens", b, q.first_k, q.len_k, args->k.shape[0], args->max_len_k);
  if (status != QKV_OK || l->kv == QKV_DENSE || l->kv == QKV_RAGGED)
    return status;
  if (q.len_k < 0 || q.len_k > args->max_len_k)
    return error_set(QKV_INVALID_ARGUMENT, "seqlens_k[%lld]: is %lld, must be 0 to %lld", (long long)b,
                     (long long)q.len_k, (long long)args->max_len_k);
  return l->kv == QKV_PAGED ? check_pages(l, args, &q) : QKV_OK;
}

qkv_status qkv_check_sequences(const qkv_spec *handle, const qkv_attention_args *given) {
  qkv_attention_args args;
  if (!handle || !given)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", handle ? "args" : "spec");
  const sequence_layout l = spec_sequence_layout(handle->parsed);
  qkv_status status = call_check_arrays(handle->parsed, given, &args);
  for (int64_t b = 0; status == QKV_OK && b < sequence_count(&l, &args); b++)
    status = check_sequence(&l, &args, b);
  return status;
}
