-- attention_naive: the textbook form in three kernels: scores in memory, softmax of the rows, P V.
-- The baseline that shows what fusing saves, and the reference on the device for shapes too large for the CPU.

local attention = library("attention")
local cost = library("cost")

local threads = 256
local tile = 64 -- rows and columns of a block's product
local step = 16 -- elements of the inner dimension in shared memory at a time
local shared_bytes = 2 * tile * (step + 1) * 4

return {
  name = "attention_naive",
  summary = "textbook attention in three kernels, scores in memory",
  order = 1000, -- the last resort of dispatch
  min_arch = 80,
  phases = {"prefill", "decode"},

  supports = function(v)
    local reason = attention.refuse(v, {f16 = true, bf16 = true, f32 = true}, true,
                                    {kv = {e4m3 = true, e5m2 = true}, kv_scale = true})
    return reason == nil, reason
  end,

  axes = {},
  defaults = function() return {} end,
  resources = function() return {shared_bytes = shared_bytes, threads = threads, registers = 48} end,

  cost = function(v)
    local queries, keys = cost.ceil(workload.len_q / tile) * tile, cost.ceil(workload.len_k / tile) * tile
    local pairs = workload.batch * v.heads_q * queries * keys
    local products = 2 * pairs * (v.dim_qk + v.dim_v)
    return {
      unit = "fma", flops = 1.5 * products, exponentials = pairs,
      shared_bytes = products, -- eight floats for sixteen products
      memory_bytes = 4 * 4 * pairs + cost.row_bytes(v) +
        cost.key_bytes(v, workload.batch * workload.len_k * v.heads_kv),
      overlap = 1, waves = math.max(cost.rounds(math.max(pairs / (tile * tile), 1)), 1), fixed = 3 * cost.start,
    }
  end,

  describe = function(v)
    return {
      "qkv_scores:  a block multiplies " .. tile .. " queries and keys in f32; final scores, -inf where masked",
      "qkv_softmax: a warp turns a row into probabilities and writes LSE",
      "qkv_output:  a block multiplies " .. tile .. " rows of probabilities and " .. tile .. " columns of V",
    }
  end,

  kernel = function(v)
    local params = attention.params(v, true)
    params[#params + 1] = {name = "scores", type = "pointer", ctype = "float *", source = "workspace.scores"}
    return {
      launches = {
        {entry = "qkv_scores", block = threads, shared_bytes = shared_bytes,
         grid = {{"len_k", tile}, {"len_q", tile}, {"heads_q"}, {"batch"}}},
        {entry = "qkv_softmax", block = threads, shared_bytes = 0,
         grid = {{"len_q", threads // 32}, {"heads_q"}, {"batch"}}},
        {entry = "qkv_output", block = threads, shared_bytes = shared_bytes,
         grid = {{"dim_v", tile}, {"len_q", tile}, {"heads_q"}, {"batch"}}},
      },
      params = params,
      regions = {{name = "scores", bytes = 4, count = {{"batch"}, {"heads_q"}, {"len_q"}, {"len_k"}}}},
      aligned16 = false,
      layout = {tile = tile, step = step},
    }
  end,
}
