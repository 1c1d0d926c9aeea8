//%% States of attention over disjoint keys become one; see attention_merge_sm80.lua.
//% local attention = library("attention")
//% local layout = kernel.layout
//% local dense = variant.layout_q == "dense"
//% local wide = layout.chunk == 8 -- chunks of 16 bytes
//% header()

constexpr int HEADS_Q = $(variant.heads_q);
constexpr int DIM_V = $(variant.dim_v);
constexpr int CHUNK = $(layout.chunk); // columns that a thread has at a time
constexpr int LANES = $(layout.lanes); // threads of a row
constexpr int HEADS = $(layout.heads); // of a block, for each of its tokens
constexpr int TOKENS = $(layout.tokens);
constexpr int THREADS = $(kernel.launches[1].block);

//% primitives()

//% pieces()

// A token and a head: a row of every state.
struct state_row {
  //% if dense then
  int b;
  //% end
  int i, h;
};

// Where the row starts, in elements of o.
static __device__ __forceinline__ long long row_of_o(const qkv_state &s, const state_row &row) {
  //% if dense then
  return row.b * s.o_stride_batch + row.i * s.o_stride_token + row.h * s.o_stride_head;
  //% else
  return row.i * s.o_stride_token + row.h * s.o_stride_head;
  //% end
}

static __device__ __forceinline__ float *lse_of(const qkv_state &s, const state_row &row) {
  //% if dense then
  return s.lse + row.b * s.lse_stride_batch + row.i * s.lse_stride_token + row.h * s.lse_stride_head;
  //% else
  return s.lse + row.i * s.lse_stride_token + row.h * s.lse_stride_head;
  //% end
}

// CHUNK columns of a row, the first of which is `from`.
static __device__ __forceinline__ void load_chunk(float (&chunk)[CHUNK], const qkv_state &s, long long from) {
  //% if wide then
  if (s.wide && s.dtype == STATE_F32) {
#pragma unroll
    for (int n = 0; n < CHUNK / 4; ++n) {
      const float4 four = *(const float4 *)((const float *)s.o + from + 4 * n);
      chunk[4 * n] = four.x, chunk[4 * n + 1] = four.y, chunk[4 * n + 2] = four.z, chunk[4 * n + 3] = four.w;
    }
    return;
  }
  if (s.wide) {
    const uint4 bits = *(const uint4 *)((const unsigned short *)s.o + from);
    const unsigned pairs[CHUNK / 2] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int n = 0; n < CHUNK; ++n) {
      const unsigned short half = (unsigned short)(pairs[n / 2] >> n % 2 * 16);
      chunk[n] = s.dtype == STATE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
    }
    return;
  }
  //% end
#pragma unroll
  for (int n = 0; n < CHUNK; ++n) {
    const long long at = from + (long long)n * s.o_stride_dim;
    chunk[n] = s.dtype == STATE_F32    ? ((const float *)s.o)[at]
               : s.dtype == STATE_BF16 ? bf16_to_f32(((const unsigned short *)s.o)[at])
                                       : f16_to_f32(((const unsigned short *)s.o)[at]);
  }
}

static __device__ __forceinline__ void store_chunk(const qkv_state &s, long long to, const float (&chunk)[CHUNK]) {
  //% local dtype = variant.dtype_out
  auto *o = ($(dtype == "f32" and "float" or "unsigned short") *)s.o + to;
  //% if wide then
  if (s.wide) {
    //%   if dtype == "f32" then
    *(float4 *)o = make_float4(chunk[0], chunk[1], chunk[2], chunk[3]);
    *(float4 *)(o + 4) = make_float4(chunk[4], chunk[5], chunk[6], chunk[7]);
    //%   else
    *(uint4 *)o = make_uint4(pack_$(dtype)x2(chunk[0], chunk[1]), pack_$(dtype)x2(chunk[2], chunk[3]),
                             pack_$(dtype)x2(chunk[4], chunk[5]), pack_$(dtype)x2(chunk[6], chunk[7]));
    //%   end
    return;
  }
  //% end
#pragma unroll
  for (int n = 0; n < CHUNK; ++n) o[(long long)n * s.o_stride_dim] = $(attention.from_float(dtype, "chunk[n]"));
}

// A chunk of the merged row, which starts at column `column`; returns the row's LSE. A state without keys has no part
// in it, whatever it holds; when none has keys the row is 0.
static __device__ __forceinline__ float merge_chunk(
    const qkv_params &p, const state_row &row, int column, float (&merged)[CHUNK]) {
  float greatest = minus_infinity();
  for (int n = 0; n < p.states.count; ++n) greatest = fmaxf(greatest, *lse_of(p.states.in[n], row));
  float sum = 0.0f;
#pragma unroll
  for (int c = 0; c < CHUNK; ++c) merged[c] = -0.0f; // adds nothing, to a zero of any sign either
  for (int n = 0; n < p.states.count; ++n) {
    const qkv_state &state = p.states.in[n];
    const float lse = *lse_of(state, row);
    if (lse == minus_infinity()) continue;
    const float weight = exp_f32(lse - greatest);
    float chunk[CHUNK];
    load_chunk(chunk, state, row_of_o(state, row) + (long long)column * state.o_stride_dim);
    sum += weight;
#pragma unroll
    for (int c = 0; c < CHUNK; ++c) merged[c] += weight * chunk[c];
  }
  const bool empty = sum == 0.0f;
  const float inverse = 1.0f / sum;
#pragma unroll
  for (int c = 0; c < CHUNK; ++c) merged[c] = empty ? 0.0f : merged[c] * inverse;
  return empty ? minus_infinity() : sum == 1.0f ? greatest : greatest + log_f32(sum); // one state keeps its own
}

extern "C" __global__ void __launch_bounds__(THREADS) qkv_merge(const __grid_constant__ qkv_params p) {
//% include "parts/early.cu"
  constexpr int HEAD_BLOCKS = (HEADS_Q + HEADS - 1) / HEADS;
  const int lane = threadIdx.x % LANES;
  const int h = blockIdx.x % HEAD_BLOCKS * HEADS + threadIdx.x / LANES % HEADS;
  const int token_of_block = threadIdx.x / (LANES * HEADS);
  const long long token = (long long)(blockIdx.x / HEAD_BLOCKS) * TOKENS + token_of_block;
  const bool exists = token_of_block < TOKENS && token < p.tokens_q && h < HEADS_Q;
  //% if dense then
  const state_row row = {(int)(token / p.len_q), (int)(token % p.len_q), h};
  //% else
  const state_row row = {(int)token, h};
  //% end

  float lse = 0.0f;
  for (int column = lane * CHUNK; exists && column < DIM_V; column += LANES * CHUNK) {
    float merged[CHUNK];
    lse = merge_chunk(p, row, column, merged);
    store_chunk(p.states.out, row_of_o(p.states.out, row) + (long long)column * p.states.out.o_stride_dim, merged);
  }
  block_sync(); // all threads of the row have read the LSE that the merged one may replace
  if (exists && lane == 0 && p.states.out.lse) *lse_of(p.states.out, row) = lse;
}

#ifdef QKV_EMU
QKV_EMU_ENTRY(qkv_merge)
#endif
