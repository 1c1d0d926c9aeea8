//%% Three kernels, one row of scores after the other; see attention_naive.lua.
//% local attention = library("attention")
//% local sequences, paged = not attention.is_dense(variant), variant.layout_kv == "paged"
//% local len_q, len_k = sequences and "view.len_q" or "p.len_q", sequences and "view.len_k" or "p.len_k"
//% header()

constexpr int HEADS_Q = $(variant.heads_q);
constexpr int GROUP = $(variant.group); // query heads per KV head
constexpr int DIM_QK = $(variant.dim_qk);
constexpr int DIM_V = $(variant.dim_v);
constexpr int THREADS = $(kernel.launches[1].block);
constexpr int TILE = $(kernel.layout.tile); // rows and columns of a block's product
constexpr int STEP = $(kernel.layout.step); // elements of the inner dimension in shared memory at a time
constexpr float SCALE = $(f32(variant.scale));
//% if variant.softcap > 0 then
constexpr float SOFTCAP = $(f32(variant.softcap));
//% end

//% primitives()

//% pieces()

//% local scaled = variant.kv_scale == "per_head"
//% local bottom_right = variant.align == "bottom_right"
//% local names = {q = "q", k = "k", i = "i", h = "h", hk = "hk", b = "b", len_q = len_q, len_k = len_k}
// A thread holds a 4 x 4 share of the block's product, 16 rows and columns apart.
constexpr int SHARE = TILE / 16;

extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_scores(const __grid_constant__ qkv_params p) {
  const int k_blocks = (p.len_k + TILE - 1) / TILE, i_blocks = (p.len_q + TILE - 1) / TILE;
  const int k_begin = blockIdx.x % k_blocks * TILE;
  const int i_begin = blockIdx.x / k_blocks % i_blocks * TILE;
  const int h = blockIdx.x / k_blocks / i_blocks % HEADS_Q;
  const int b = blockIdx.x / k_blocks / i_blocks / HEADS_Q;
  const int hk = h / GROUP;
  //% if sequences then
  const sequence_view view = view_sequence(p, b);
  if (i_begin >= view.len_q || k_begin >= view.len_k) return; // other sequences are longer
  const auto *query = p.q + query_row(p, view, 0, h);
  //%   if not paged then
  const auto *key = p.k + key_row(p, view, 0, hk);
  //%   end
  //% else
  const auto *query = p.q + b * p.q_stride_batch + h * p.q_stride_head;
  const auto *key = p.k + b * p.k_stride_batch + hk * p.k_stride_head;
  //% end

  float(*query_tile)[STEP + 1] = (float(*)[STEP + 1])shared_arena();
  float(*key_tile)[STEP + 1] = query_tile + TILE;
  const int row = threadIdx.x / 16, column = threadIdx.x % 16;
  float product[SHARE][SHARE] = {};
  for (int d_begin = 0; d_begin < DIM_QK; d_begin += STEP) {
    for (int n = row; n < TILE; n += 16) {
      const int i = i_begin + n, k = k_begin + n, d = d_begin + column;
      //% local element = attention.to_float(variant.dtype_q, "query[i * p.q_stride_token + d * p.q_stride_dim]")
      query_tile[n][column] =
          i < $(len_q) && d < DIM_QK ? $(element) : 0.0f;
      //% local place = paged and "p.k[key_row(p, view, k, hk)" or "key[k * p.k_stride_token"
      //% element = attention.to_float(variant.dtype_kv, place .. " + d * p.k_stride_dim]")
      key_tile[n][column] =
          k < $(len_k) && d < DIM_QK ? $(element) : 0.0f;
    }
    block_sync();
#pragma unroll
    for (int d = 0; d < STEP; ++d)
#pragma unroll
      for (int r = 0; r < SHARE; ++r)
#pragma unroll
        for (int c = 0; c < SHARE; ++c) product[r][c] += query_tile[row + 16 * r][d] * key_tile[column + 16 * c][d];
    block_sync();
  }

  //% if scaled then
  const float k_scale = p.k_scale[hk * p.k_scale_stride_head];
  //% end
#pragma unroll
  for (int r = 0; r < SHARE; ++r)
#pragma unroll
    for (int c = 0; c < SHARE; ++c) {
      const int i = i_begin + row + 16 * r, k = k_begin + column + 16 * c;
      if (i >= $(len_q) || k >= $(len_k)) continue;
      //% if variant.mask_symbols.q or variant.score_symbols.q then
      //%   if sequences then
      const int q = i + view.position; // of the row in the KV sequence
      //%   elseif bottom_right then
      const int q = i + p.len_k - p.len_q; // position of the row in the KV sequence
      //%   else
      const int q = i;
      //%   end
      //% end
      float s = product[r][c] * $(scaled and "k_scale * " or "")SCALE;
      //% if variant.softcap > 0 then
      s = SOFTCAP * tanh_f32(s * (1.0f / SOFTCAP));
      //% end
      //% if not variant.score_is_identity then
      //%   names.s = "s"
      s = $(cuda_score(names));
      //%   names.s = nil
      //% end
      //% if mask.form ~= "all" or mask.dilation then
      if (!($(cuda_mask(names)))) s = minus_infinity();
      //% end
      p.scores[(((long long)b * HEADS_Q + h) * p.len_q + i) * p.len_k + k] = s;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_softmax(const __grid_constant__ qkv_params p) {
  constexpr int ROWS = THREADS / 32; // one warp a row
  const int row_blocks = (p.len_q + ROWS - 1) / ROWS;
  const int i = blockIdx.x % row_blocks * ROWS + threadIdx.x / 32;
  const int h = blockIdx.x / row_blocks % HEADS_Q;
  const int b = blockIdx.x / row_blocks / HEADS_Q;
  const int lane = threadIdx.x % 32;
  //% if sequences then
  const sequence_view view = view_sequence(p, b);
  //% end
  if (i >= $(len_q)) return;
  float *row = p.scores + (((long long)b * HEADS_Q + h) * p.len_q + i) * p.len_k;

  float row_max = minus_infinity();
  for (int k = lane; k < $(len_k); k += 32) row_max = fmaxf(row_max, row[k]);
  for (int step = 16; step > 0; step /= 2) row_max = fmaxf(row_max, shuffle_xor_f32(row_max, step));
  const bool empty = row_max == minus_infinity();

  float sum = 0.0f;
  for (int k = lane; k < $(len_k); k += 32) sum += empty ? 0.0f : exp_f32(row[k] - row_max);
  for (int step = 16; step > 0; step /= 2) sum += shuffle_xor_f32(sum, step);
  const float lse = empty ? minus_infinity() : row_max + log_f32(sum);

  float denominator = sum;
  //% if variant.sink == "per_head" then
  const float sink = p.sink[h * p.sink_stride_head];
  if (!empty) denominator += exp_f32(sink - row_max);
  //% end
  const float inverse = empty ? 0.0f : 1.0f / denominator;
  for (int k = lane; k < $(len_k); k += 32) row[k] = empty ? 0.0f : exp_f32(row[k] - row_max) * inverse;

  if (lane == 0) {
    //% if sequences and variant.outputs.lse then
    p.lse[lse_row(p, view, i, h)] = lse;
    //% elseif variant.outputs.lse then
    p.lse[b * p.lse_stride_batch + h * p.lse_stride_head + i * p.lse_stride_token] = lse;
    //% end
    //% if sequences and variant.outputs.lse_with_sink then
    p.lse_with_sink[lse_with_sink_row(p, view, i, h)] = log_add(lse, sink);
    //% elseif variant.outputs.lse_with_sink then
    p.lse_with_sink[b * p.lse_with_sink_stride_batch + h * p.lse_with_sink_stride_head +
                    i * p.lse_with_sink_stride_token] = log_add(lse, sink);
    //% end
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_output(const __grid_constant__ qkv_params p) {
  constexpr int D_BLOCKS = (DIM_V + TILE - 1) / TILE;
  const int i_blocks = (p.len_q + TILE - 1) / TILE;
  const int d_begin = blockIdx.x % D_BLOCKS * TILE;
  const int i_begin = blockIdx.x / D_BLOCKS % i_blocks * TILE;
  const int h = blockIdx.x / D_BLOCKS / i_blocks % HEADS_Q;
  const int b = blockIdx.x / D_BLOCKS / i_blocks / HEADS_Q;
  const float *probability = p.scores + ((long long)b * HEADS_Q + h) * p.len_q * p.len_k;
  //% if sequences then
  const sequence_view view = view_sequence(p, b);
  if (i_begin >= view.len_q) return;
  //%   if not paged then
  const auto *value = p.v + value_row(p, view, 0, h / GROUP);
  //%   end
  //% else
  const auto *value = p.v + b * p.v_stride_batch + h / GROUP * p.v_stride_head;
  //% end

  float(*probability_tile)[STEP + 1] = (float(*)[STEP + 1])shared_arena();
  float(*value_tile)[STEP + 1] = probability_tile + TILE; // of V transposed
  const int row = threadIdx.x / 16, column = threadIdx.x % 16;
  float product[SHARE][SHARE] = {};
  for (int k_begin = 0; k_begin < $(len_k); k_begin += STEP) {
    for (int n = row; n < TILE; n += 16) {
      const int i = i_begin + n, k = k_begin + column;
      probability_tile[n][column] = i < $(len_q) && k < $(len_k) ? probability[(long long)i * p.len_k + k] : 0.0f;
    }
    for (int n = threadIdx.x % TILE, k = threadIdx.x / TILE; k < STEP; k += THREADS / TILE) {
      const int d = d_begin + n;
      //% local place = "value[(k_begin + k) * p.v_stride_token"
      //% if paged then place = "p.v[value_row(p, view, k_begin + k, h / GROUP)" end
      //% local element = attention.to_float(variant.dtype_kv, place .. " + d * p.v_stride_dim]")
      const bool exists = k_begin + k < $(len_k) && d < DIM_V;
      value_tile[n][k] = exists ? $(element) : 0.0f;
    }
    block_sync();
#pragma unroll
    for (int k = 0; k < STEP; ++k)
#pragma unroll
      for (int r = 0; r < SHARE; ++r) {
        const float weight = probability_tile[row + 16 * r][k];
        if (weight != 0.0f) // a hidden key may hold anything
#pragma unroll
          for (int c = 0; c < SHARE; ++c) product[r][c] += weight * value_tile[column + 16 * c][k];
      }
    block_sync();
  }
  //% if sequences then
  auto *o = p.o + output_row(p, view, 0, h);
  //% else
  auto *o = p.o + b * p.o_stride_batch + h * p.o_stride_head;
  //% end
  //% local product = "product[r][c]"
  //% if scaled then
  //%   product = product .. " * v_scale"
  const float v_scale = p.v_scale[h / GROUP * p.v_scale_stride_head];
  //% end
#pragma unroll
  for (int r = 0; r < SHARE; ++r)
#pragma unroll
    for (int c = 0; c < SHARE; ++c) {
      const int i = i_begin + row + 16 * r, d = d_begin + column + 16 * c;
      if (i < $(len_q) && d < DIM_V)
        o[i * p.o_stride_token + d * p.o_stride_dim] = $(attention.from_float(variant.dtype_out, product));
    }
}

#ifdef QKV_EMU
QKV_EMU_ENTRY(qkv_scores)
QKV_EMU_ENTRY(qkv_softmax)
QKV_EMU_ENTRY(qkv_output)
#endif
