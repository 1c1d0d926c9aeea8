-- attention_merge_sm80: results over disjoint keys become the one over all of them. From sm_80 on.
--
-- A thread has a chunk of a row's columns and goes through the states twice: for the greatest LSE, then for the
-- weighted sum, in the order in which they are given. What is merged how often, and in which format, a call says: one
-- kernel serves all numbers of states.

local attention = library("attention")
local cost = library("cost")
local threads = 256

local function layout(v)
  local m = {chunk = 1}
  while m.chunk < 8 and v.dim_v % (2 * m.chunk) == 0 do m.chunk = 2 * m.chunk end
  m.lanes = math.min(v.dim_v // m.chunk, threads) -- threads of a row
  m.heads = math.max(math.min(threads // m.lanes, v.heads_q), 1) -- of a block, for each of its tokens
  m.tokens = math.max(threads // (m.lanes * m.heads), 1)
  m.threads = round_up(m.lanes * m.heads * m.tokens, 32)
  return m
end

return {
  name = "attention_merge_sm80",
  summary = "merges outputs and LSE of attention over disjoint keys",
  order = 60,
  min_arch = 80,
  phases = {"merge"},

  supports = function(v)
    if v.dtype_out ~= "f16" and v.dtype_out ~= "bf16" and v.dtype_out ~= "f32" then
      return false, "attention.dtype.out: " .. v.dtype_out .. " is not supported"
    end
    return true
  end,

  axes = {},
  defaults = function() return {} end,
  resources = function(v)
    local m = layout(v)
    return {shared_bytes = 0, threads = m.threads, registers = 2 * m.chunk + 32}
  end,

  cost = function(v) -- of two states
    local rows = workload.batch * workload.len_q * v.heads_q
    return {unit = "fma", flops = 8 * rows * v.dim_v, fixed = 1.3e-6,
            memory_bytes = rows * (v.dim_v * 3 * cost.bytes(v.dtype_out) + 12)}
  end,

  describe = function(v)
    local m = layout(v)
    return {
      ("a block: %d tokens of %d heads; %d threads a row, %d columns each"):format(m.tokens, m.heads, m.lanes, m.chunk),
    }
  end,

  kernel = function(v)
    local m = layout(v)
    return {
      launches = {{entry = "qkv_merge", block = m.threads, shared_bytes = 0,
                   grid = {{"tokens_q", m.tokens}, {"heads_q", m.heads}}, early = attention.early(arch)}},
      params = {
        {name = "states", type = "states", source = "states"},
        {name = "tokens_q", type = "i32", source = "tokens_q"},
        {name = "len_q", type = "i32", source = "len_q"},
      },
      declared = false, -- scores and masks are over
      regions = {},
      aligned16 = false,
      layout = m,
    }
  end,
}
