-- attention_forward_sm80: fused attention with mma.sync, ldmatrix and cp.async. Runs on every GPU from sm_80 on.
--
-- One block computes tile_m query rows of one head. K and V tiles of tile_n keys travel through a ring of `stages`
-- buffers. A warp owns tile_m / warps rows (16 or 32) and keeps their scores, probabilities and output in registers.

local attention = library("attention")

local function round_up_16(n) return (n + 15) // 16 * 16 end

-- Row pitch in elements of a tile in shared memory: an odd number of 16-byte chunks, so that the eight rows of an
-- ldmatrix fall into different banks.
local function pitch(dim)
  local chunks = dim // 8
  return 8 * (chunks % 2 == 1 and chunks or chunks + 1)
end

local function layout(v, s)
  local m = {packed = false, flat = false, parts = 0, headroom = 0, q_resident = s.q_registers == 1}
  m.dim_qk = round_up_16(v.dim_qk) -- mma takes 16 dimensions at a time; the padding is zero
  m.pitch_k = pitch(m.dim_qk)
  m.pitch_v = pitch(v.dim_v)
  m.pitch_q = math.max(m.pitch_k, m.pitch_v) -- O leaves through the rows of Q
  m.q_bytes = s.tile_m * m.pitch_q * 2
  m.k_bytes = s.tile_n * m.pitch_k * 2
  m.v_bytes = s.tile_n * m.pitch_v * 2
  m.k_offset = m.q_bytes
  m.v_offset = m.k_offset + s.stages * m.k_bytes
  m.total = m.v_offset + s.stages * m.v_bytes
  m.row_tiles = s.tile_m // (16 * s.warps) -- 16-row tiles of a warp
  m.told = 0 -- words on tiles from a producer: every warp walks for itself
  return m
end

-- Registers a thread needs at once: output, scores, query fragments, and what addressing and the softmax take.
local function registers(v, s)
  local m = layout(v, s)
  local output = m.row_tiles * (v.dim_v // 8) * 4
  local scores = m.row_tiles * (s.tile_n // 8) * 4
  local query = s.q_registers == 1 and m.row_tiles * (m.dim_qk // 16) * 4 or m.row_tiles * 4
  return output + scores + query + 48
end

return {
  name = "attention_forward_sm80",
  summary = "fused forward, mma.sync, cp.async ring",
  order = 200,
  min_arch = 80,
  phases = {"prefill", "decode"},

  supports = function(v)
    local reason = attention.refuse(v, {f16 = true, bf16 = true}, true)
    if reason then return false, reason end
    if v.dtype_q ~= v.dtype_kv then
      return false, "attention.dtype: q is " .. v.dtype_q .. " and kv is " .. v.dtype_kv .. "; both must be the same"
    end
    reason = attention.refuse_wide(v)
    return reason == nil, reason
  end,

  axes = {
    {name = "tile_m", values = {16, 32, 64, 128, 256}, meaning = "query rows of a block"},
    {name = "tile_n", values = {16, 32, 48, 64, 80, 96, 128}, meaning = "keys of a tile"},
    {name = "warps", values = {1, 2, 4, 8}, meaning = "warps of a block; each owns 16 or 32 rows"},
    {name = "stages", values = {2, 3, 4}, meaning = "K and V tiles in flight"},
    {name = "q_registers", values = {0, 1}, meaning = "1: query fragments stay in registers"},
    {name = "split_loads", values = {0, 1},
     meaning = "next V is fetched 0: with next K, after Q K^T; 1: after the softmax"},
    {name = "slack", values = {0, 8},
     meaning = "how far a score may exceed the row's reference, in powers of 2, before the output is rescaled"},
    {name = "blocks", values = {1, 2, 3, 4}, meaning = "blocks an SM must hold; caps the registers"},
  },

  -- Measured on an H200 against FlashAttention-2, 16k tokens of 4096, full and causal; see docs/performance.md.
  defaults = function(v)
    local dim = math.max(v.dim_qk, v.dim_v)
    local function schedule(tile_n, warps, q_registers, split_loads, blocks)
      return {tile_m = 128, tile_n = tile_n, warps = warps, stages = 2, q_registers = q_registers,
              split_loads = split_loads, slack = 8, blocks = blocks}
    end
    -- The places of sequences need registers of their own, not measured yet: what spills none.
    local sequences, paged = not attention.is_dense(v), v.layout_kv == "paged"
    if dim <= 32 then return schedule(64, 4, 1, 0, sequences and 2 or 3) end
    -- So do per-element masks and scores: two blocks, not three, or they spill.
    local elements = (mask.form ~= "all" and not mask.exact) or not score.is_product or score.shifts
    if dim <= 64 then return schedule(48, 4, 0, 0, (elements or sequences) and 2 or 3) end
    if dim <= 128 then return schedule(paged and 48 or 64, 4, 0, sequences and not paged and 0 or 1, 2) end
    if dim <= 160 then return schedule(32, 4, 0, 0, 1) end
    return schedule(64, 8, 0, 1, 1)
  end,

  -- A warp of 32 rows reads K and V from shared memory half as often as two of 16, where registers allow; blocks beside
  -- each other hide what a warp waits for.
  space = function(v, arch, request, effort)
    local list = {}
    local function add(rows, tile_n, warps, axes)
      for _, w in ipairs(warps) do
        local product = {tile_m = {rows * w}, warps = {w}, tile_n = tile_n}
        for axis, values in pairs(axes) do product[axis] = values end
        list[#list + 1] = product
      end
    end
    if effort == 0 then
      add(32, {32, 48, 64}, {4}, {blocks = {1, 2, 3}})
      add(16, {64}, {2, 4, 8}, {blocks = {1, 2}})
    elseif effort == 1 then
      add(32, {32, 48, 64, 80, 96}, {2, 4, 8}, {blocks = {1, 2, 3}, split_loads = {0, 1}})
      add(16, {32, 48, 64, 96, 128}, {1, 2, 4, 8}, {blocks = {1, 2, 3}, split_loads = {0, 1}})
    else
      local all = {blocks = {1, 2, 3, 4}, split_loads = {0, 1}, stages = {2, 3, 4}, q_registers = {0, 1}}
      add(32, {16, 32, 48, 64, 80, 96, 128}, {1, 2, 4, 8}, all)
      add(16, {16, 32, 48, 64, 80, 96, 128}, {1, 2, 4, 8}, all)
    end
    return list
  end,

  -- For architectures with less shared memory, in order of preference.
  fallbacks = function(v)
    local list = {}
    for _, try in ipairs{{128, 48, 8}, {128, 32, 8}, {128, 32, 4}, {64, 32, 4}, {64, 16, 4}} do
      list[#list + 1] = {tile_m = try[1], tile_n = try[2], warps = try[3], stages = 2, q_registers = 0, split_loads = 1,
                         slack = 8, blocks = 1}
    end
    return list
  end,

  check = function(v, s)
    local rows = s.tile_m // s.warps
    if rows ~= 16 and rows ~= 32 then
      return false, "tile_m / warps is " .. rows .. "; a warp owns 16 or 32 rows"
    end
    return true
  end,

  resources = function(v, s)
    return {shared_bytes = layout(v, s).total, threads = 32 * s.warps, registers = registers(v, s), blocks = s.blocks}
  end,

  describe = function(v, s)
    local m = layout(v, s)
    local ring = "   " .. s.stages .. " x " .. s.tile_n .. " rows of "
    local scores = s.tile_m * s.tile_n
    return {
      "shared memory, bytes:",
      "  Q, later O   0 .. " .. m.k_offset .. "   " .. s.tile_m .. " rows of " .. m.pitch_q .. " elements",
      "  K            " .. m.k_offset .. " .. " .. m.v_offset .. ring .. m.pitch_k,
      "  V            " .. m.v_offset .. " .. " .. m.total .. ring .. m.pitch_v,
      "roles: " .. s.warps .. " warps, each " .. 16 * m.row_tiles .. " rows; every thread loads, multiplies and stores",
      "a tile: " .. 2 * scores * (v.dim_qk + v.dim_v) .. " FLOPs, " .. scores .. " exponentials",
    }
  end,

  kernel = function(v, s, arch, request)
    local m = layout(v, s)
    local kernel = {
      launches = {{entry = "qkv_kernel", block = 32 * s.warps, shared_bytes = m.total,
                   grid = attention.row_grid(s.tile_m, {{"heads_q"}, {"batch"}})}},
      params = attention.params(v, request.unaligned),
      regions = {},
      aligned16 = not request.unaligned,
      layout = m,
    }
    attention.add_dilation(kernel)
    attention.add_map(kernel, s.tile_m, s.tile_n, false)
    return kernel
  end,
}
