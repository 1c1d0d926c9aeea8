//%% Three kernels, one row of scores after the other; see attention_naive.lua.
//% local attention = library("attention")
//% header()

constexpr int HEADS_Q = $(variant.heads_q);
constexpr int GROUP = $(variant.group); // query heads per KV head
constexpr int DIM_QK = $(variant.dim_qk);
constexpr int DIM_V = $(variant.dim_v);
constexpr int THREADS = $(kernel.launches[1].block);
constexpr float SCALE = $(f32(variant.scale));
//% if variant.softcap > 0 then
constexpr float SOFTCAP = $(f32(variant.softcap));
//% end

//% primitives()

//% pieces()

//% local bottom_right = variant.align == "bottom_right"
//% local names = {q = "q", k = "k", i = "i", h = "h", hk = "hk", b = "b", len_q = "p.len_q", len_k = "p.len_k"}
extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_scores(const __grid_constant__ qkv_params p) {
  const int k_blocks = (p.len_k + THREADS - 1) / THREADS;
  const int k = blockIdx.x % k_blocks * THREADS + threadIdx.x;
  const int i = blockIdx.x / k_blocks % p.len_q;
  const int h = blockIdx.x / k_blocks / p.len_q % HEADS_Q;
  const int b = blockIdx.x / k_blocks / p.len_q / HEADS_Q;
  const int hk = h / GROUP;
  if (k >= p.len_k) return;
  //% if variant.mask_symbols.q or variant.score_symbols.q then
  //%   if bottom_right then
  const int q = i + p.len_k - p.len_q; // position of the row in the KV sequence
  //%   else
  const int q = i;
  //%   end
  //% end
  const auto *query = p.q + b * p.q_stride_batch + i * p.q_stride_token + h * p.q_stride_head;
  const auto *key = p.k + b * p.k_stride_batch + k * p.k_stride_token + hk * p.k_stride_head;
  float s = 0.0f;
  for (int d = 0; d < DIM_QK; ++d)
    s += $(attention.to_float(variant.dtype_q, "query[d * p.q_stride_dim]")) * $(attention.to_float(variant.dtype_kv, "key[d * p.k_stride_dim]"));
  s *= SCALE;
  //% if variant.softcap > 0 then
  s = SOFTCAP * tanh_f32(s * (1.0f / SOFTCAP));
  //% end
  //% if not variant.score_is_identity then
  //%   names.s = "s"
  s = $(cuda_score(names));
  //%   names.s = nil
  //% end
  //% if mask.form ~= "all" then
  if (!($(cuda_mask(names)))) s = minus_infinity();
  //% end
  p.scores[(((long long)b * HEADS_Q + h) * p.len_q + i) * p.len_k + k] = s;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_softmax(const __grid_constant__ qkv_params p) {
  constexpr int ROWS = THREADS / 32; // one warp a row
  const int row_blocks = (p.len_q + ROWS - 1) / ROWS;
  const int i = blockIdx.x % row_blocks * ROWS + threadIdx.x / 32;
  const int h = blockIdx.x / row_blocks % HEADS_Q;
  const int b = blockIdx.x / row_blocks / HEADS_Q;
  const int lane = threadIdx.x % 32;
  if (i >= p.len_q) return;
  float *row = p.scores + (((long long)b * HEADS_Q + h) * p.len_q + i) * p.len_k;

  float row_max = minus_infinity();
  for (int k = lane; k < p.len_k; k += 32) row_max = fmaxf(row_max, row[k]);
  for (int step = 16; step > 0; step /= 2) row_max = fmaxf(row_max, shuffle_xor_f32(row_max, step));
  const bool empty = row_max == minus_infinity();

  float sum = 0.0f;
  for (int k = lane; k < p.len_k; k += 32) sum += empty ? 0.0f : exp_f32(row[k] - row_max);
  for (int step = 16; step > 0; step /= 2) sum += shuffle_xor_f32(sum, step);
  const float lse = empty ? minus_infinity() : row_max + log_f32(sum);

  float denominator = sum;
  //% if variant.sink == "per_head" then
  const float sink = p.sink[h * p.sink_stride_head];
  if (!empty) denominator += exp_f32(sink - row_max);
  //% end
  const float inverse = empty ? 0.0f : 1.0f / denominator;
  for (int k = lane; k < p.len_k; k += 32) row[k] = empty ? 0.0f : exp_f32(row[k] - row_max) * inverse;

  if (lane == 0) {
    //% if variant.outputs.lse then
    p.lse[b * p.lse_stride_batch + h * p.lse_stride_head + i * p.lse_stride_token] = lse;
    //% end
    //% if variant.outputs.lse_with_sink then
    p.lse_with_sink[b * p.lse_with_sink_stride_batch + h * p.lse_with_sink_stride_head + i * p.lse_with_sink_stride_token] = log_add(lse, sink);
    //% end
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_output(const __grid_constant__ qkv_params p) {
  constexpr int D_BLOCKS = (DIM_V + THREADS - 1) / THREADS;
  const int d = blockIdx.x % D_BLOCKS * THREADS + threadIdx.x;
  const int i = blockIdx.x / D_BLOCKS % p.len_q;
  const int h = blockIdx.x / D_BLOCKS / p.len_q % HEADS_Q;
  const int b = blockIdx.x / D_BLOCKS / p.len_q / HEADS_Q;
  if (d >= DIM_V) return;
  const float *row = p.scores + (((long long)b * HEADS_Q + h) * p.len_q + i) * p.len_k;
  const auto *value = p.v + b * p.v_stride_batch + h / GROUP * p.v_stride_head + d * p.v_stride_dim;
  float sum = 0.0f;
  for (int k = 0; k < p.len_k; ++k)
    if (row[k] != 0.0f) sum += row[k] * $(attention.to_float(variant.dtype_kv, "value[k * p.v_stride_token]"));
  p.o[b * p.o_stride_batch + i * p.o_stride_token + h * p.o_stride_head + d * p.o_stride_dim] = $(attention.from_float(variant.dtype_out, "sum"));
}

#ifdef QKV_EMU
QKV_EMU_ENTRY(qkv_scores)
QKV_EMU_ENTRY(qkv_softmax)
QKV_EMU_ENTRY(qkv_output)
#endif
