//%% Sequences of lengths of their own, and where their rows lie: one view a tile of rows, a function a tensor. They are
//%% pieces, for every layout: a kernel that names none of them has none (attention.view says what parts read).
//%%
//%% Lengths and starts are clamped to what the call declares, as runtime/sequence.c does it, so that no content of an
//%% array of lengths leads out of a tensor or table. Nothing is read of a page table behind the sequence's last page.
//% local ragged_q, kv = variant.layout_q == "ragged", variant.layout_kv
//% local paged, csr = kv == "paged", variant.page_table == "csr"
//% local page = variant.page_size
//% piece("sequence_view", function()
// One sequence of the batch.
struct sequence_view {
  int b;
  int len_q, len_k;
  int position; // of query 0 among the keys
  //% if ragged_q then
  int first_q; // its first row of q
  //% end
  //% if kv == "ragged" then
  int first_k; // and of k
  //% end
  //% if paged then
  const int *pages; // of the page table: the number of its first page
  //% end
};
//% end)
//% piece("clamp_length", function()
static __device__ __forceinline__ int clamp_length(int length, int most) { return min(max(length, 0), most); }
//% end)
//% piece("view_sequence", function()
static __device__ __forceinline__ sequence_view view_sequence(const qkv_params &p, int b) {
  sequence_view view;
  view.b = b;
  //% if ragged_q then
  view.first_q = clamp_length(p.cu_seqlens_q[b], p.tokens_q);
  view.len_q = clamp_length(clamp_length(p.cu_seqlens_q[b + 1], p.tokens_q) - view.first_q, p.len_q);
  //% else
  view.len_q = p.len_q;
  //% end
  //% if kv == "ragged" then
  view.first_k = clamp_length(p.cu_seqlens_k[b], p.tokens_k);
  view.len_k = clamp_length(clamp_length(p.cu_seqlens_k[b + 1], p.tokens_k) - view.first_k, p.len_k);
  //% elseif kv == "dense" then
  view.len_k = p.len_k;
  //% else
  view.len_k = clamp_length(p.seqlens_k[b], p.len_k);
  //% end
  //% if paged and csr then
  const int first_page = clamp_length(p.page_indptr[b], p.page_entries);
  view.len_k = (int)min_i64(view.len_k, (long long)(p.page_entries - first_page) * $(page));
  view.pages = p.page_table + first_page;
  //% elseif paged then
  view.pages = p.page_table + b * p.page_table_stride_batch;
  //% end
  //% if variant.align == "bottom_right" then
  view.position = view.len_k - view.len_q;
  //% else
  view.position = 0;
  //% end
  return view;
}
//% end)
//% local rows = {{"query_row", "q"}, {"output_row", "o"}, {"lse_row", "lse"}, {"lse_with_sink_row", "lse_with_sink"}}
//% for _, row in ipairs(rows) do
//%   local name, tensor = row[1], row[2]
//%   piece(name, function()
// Query i of head h in $(tensor), in elements.
static __device__ __forceinline__ long long $(name)(const qkv_params &p, const sequence_view &view, int i, int h) {
  //% if ragged_q then
  return (long long)(view.first_q + i) * p.$(tensor)_stride_token + h * p.$(tensor)_stride_head;
  //% else
  return view.b * p.$(tensor)_stride_batch + i * p.$(tensor)_stride_token + h * p.$(tensor)_stride_head;
  //% end
}
//%   end)
//% end
//% if paged then
//%   piece("key_page", function()
// The number of the page that holds key k of the sequence, which must be there.
static __device__ __forceinline__ int key_page(const sequence_view &view, int k) { return view.pages[k / $(page)]; }
//%   end)
//% end
//% for _, row in ipairs{{"key_row", "k"}, {"value_row", "v"}} do
//%   local name, tensor = row[1], row[2]
//%   if paged then
//%     piece(name .. "_of_page", function()
// Key k, which lies in page number `number`, of KV head hk in $(tensor), in elements.
static __device__ __forceinline__ long long $(name)_of_page(const qkv_params &p, int number, int k, int hk) {
  return number * p.$(tensor)_stride_page + k % $(page) * p.$(tensor)_stride_token + hk * p.$(tensor)_stride_head;
}
//%     end)
//%   end
//%   piece(name, function()
// Key k of KV head hk in $(tensor), in elements.
//%   if paged then
// The key must be there.
//%   end
static __device__ __forceinline__ long long $(name)(const qkv_params &p, const sequence_view &view, int k, int hk) {
  //% if paged then
  return $(name)_of_page(p, key_page(view, k), k, hk);
  //% elseif kv == "ragged" then
  return (long long)(view.first_k + k) * p.$(tensor)_stride_token + hk * p.$(tensor)_stride_head;
  //% else
  return view.b * p.$(tensor)_stride_batch + k * p.$(tensor)_stride_token + hk * p.$(tensor)_stride_head;
  //% end
}
//%   end)
//% end
