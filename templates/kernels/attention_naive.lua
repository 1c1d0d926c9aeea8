-- attention_naive: the textbook form in three kernels: scores in memory, softmax of the rows, P V.
-- The baseline that shows what fusing saves, and the reference on the device for shapes too large for the CPU.

local attention = library("attention")

local threads = 128

return {
  name = "attention_naive",
  summary = "textbook attention in three kernels, scores in memory",
  order = 1000, -- the last resort of dispatch
  min_arch = 80,
  phases = {"prefill", "decode"},

  supports = function(v)
    local reason = attention.refuse(v, {f16 = true, bf16 = true, f32 = true})
    if reason then return false, reason end
    return true
  end,

  axes = {},
  defaults = function() return {} end,
  resources = function() return {shared_bytes = 0, threads = threads, registers = 32} end,

  describe = function(v)
    return {
      "qkv_scores:  one thread a (query, key) pair; final scores, -inf where masked, to the workspace",
      "qkv_softmax: one warp a row; the row becomes probabilities, LSE is written",
      "qkv_output:  one thread an element of O; keys of probability 0 are not read",
    }
  end,

  kernel = function(v)
    local params = attention.params(v, true)
    params[#params + 1] = {name = "scores", type = "pointer", ctype = "float *", source = "workspace.scores"}
    return {
      launches = {
        {entry = "qkv_scores", block = threads, shared_bytes = 0,
         grid = {{"len_k", threads}, {"len_q"}, {"heads_q"}, {"batch"}}},
        {entry = "qkv_softmax", block = threads, shared_bytes = 0,
         grid = {{"len_q", threads // 32}, {"heads_q"}, {"batch"}}},
        {entry = "qkv_output", block = threads, shared_bytes = 0,
         grid = {{"dim_v", threads}, {"len_q"}, {"heads_q"}, {"batch"}}},
      },
      params = params,
      regions = {{name = "scores", bytes = 4, count = {{"batch"}, {"heads_q"}, {"len_q"}, {"len_k"}}}},
      aligned16 = false,
    }
  end,
}
