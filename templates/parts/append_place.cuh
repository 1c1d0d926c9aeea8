//%% Where the token of a row of new keys goes: its position, and the first elements of its keys and values in the
//%% cache. See kv_append_sm80.lua.
//% local append, rope = variant.append, variant.rope
//% local slots = append and append.slots
//% local kv, page = variant.layout_kv, variant.page_size
//% local mapped = slots == "mapping"
//% piece("token_place", function()
// What a warp must know of its token.
struct token_place {
  //% if rope or not mapped then
  int position;
  //% end
  //% if not mapped then
  bool exists; // it is of a sequence
  //% end
  bool kept; // its keys and values have a place
  long long key, value; // of KV head 0, in elements
};
//% end)
//% piece("read_index", function()
// Element n of an array of integers that take one or two 32-bit words each.
static __device__ __forceinline__ long long read_index(const int *array, int n, int words) {
  const int *at = array + (long long)n * words;
  return words == 1 ? at[0] : (long long)((unsigned long long)(unsigned)at[1] << 32 | (unsigned)at[0]);
}
//% end)
//% piece("clamp_position", function()
// A position beyond what an int holds is as far out as any other.
static __device__ __forceinline__ int clamp_position(long long position) {
  return (int)min_i64(max_i64(position, -2147483647), 2147483647);
}
//% end)
//% piece("sequence_of", function()
// The sequence that has row `token` of q: the last one that begins there or before. 32 candidates at a time.
static __device__ __forceinline__ int sequence_of(const qkv_params &p, int token, int lane) {
  int first = 0, count = p.batch;
  while (count > 1) {
    const int step = (count + 31) / 32, candidate = lane * step;
    const bool before = candidate < count && p.cu_seqlens_q[first + candidate] <= token;
    const int last = max(population_count(vote_ballot(before)) - 1, 0) * step; // they ascend
    first += last;
    count = min(step, count - last);
  }
  return first;
}
//% end)
//% piece("find_place", function()
// The same in all lanes of the warp.
static __device__ __forceinline__ token_place find_place(const qkv_params &p, int token, int lane) {
  token_place place;
  //% if mapped then
  //%   if rope then
  place.position = clamp_position(read_index(p.positions, token, p.positions_words));
  //%   end
  const long long slot = read_index(p.slots, token, p.slots_words);
  place.kept = slot >= 0 && slot < p.slot_count;
  //%   if kv == "ragged" then
  place.key = slot * p.k_stride_token;
  place.value = slot * p.v_stride_token;
  //%   else
  //%     local per, outer = kv == "paged" and page or "p.capacity", kv == "paged" and "page" or "batch"
  const long long number = slot / $(per), offset = slot % $(per);
  place.key = number * p.k_stride_$(outer) + offset * p.k_stride_token;
  place.value = number * p.v_stride_$(outer) + offset * p.v_stride_token;
  //%   end
  //% else
  //%   if variant.layout_q == "ragged" then
  const int b = sequence_of(p, token, lane);
  const sequence_view view = view_sequence(p, b);
  const int i = token - view.first_q;
  place.exists = p.batch > 0 && i >= 0 && i < view.len_q;
  //%   else
  const int b = token / p.len_q$(slots == "lengths" and ", i = token % p.len_q" or "");
  const sequence_view view = view_sequence(p, b);
  place.exists = true;
  //%   end
  //%   if slots == "lengths" then
  place.position = view.len_k - view.len_q + i;
  //%   else
  place.position = clamp_position(read_index(p.positions, token, p.positions_words));
  //%   end
  place.kept = place.exists && place.position >= 0 && place.position < view.len_k;
  if (place.kept) {
    place.key = key_row(p, view, place.position, 0);
    place.value = value_row(p, view, place.position, 0);
  }
  //% end
  return place;
}
//% end)
