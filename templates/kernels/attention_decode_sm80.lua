-- attention_decode_sm80: few queries against many keys, split over all SMs: mma.sync, cp.async. From sm_80 on.
--
-- Rows are queries times the query heads of a KV head, so that one pass over the keys serves them all. The keys of a
-- tile of rows come in slices; all slices of all tiles are numbered, and every block of a grid as large as the GPU
-- takes an equal share of the numbers, whatever the lengths. In a block, groups of warps take slices in turn, each
-- through a ring of its own; the warps of a group have 16 rows or more each. The groups' outputs are merged. A tile of
-- rows that several blocks share is put together by the last of them.

local attention = library("attention")

local function round_up_16(n) return (n + 15) // 16 * 16 end

-- Keys and values of one byte stay so in shared memory; the products take them as numbers of the queries' format.
local function is_bytes(v) return v.dtype_kv == "e4m3" end

-- Row pitch in elements of a slice in shared memory: an odd number of 16-byte chunks, so that the eight rows of an
-- ldmatrix fall into different banks.
local function pitch(dim, element_bytes)
  local in_chunk = 16 // element_bytes
  return in_chunk * (dim // in_chunk | 1)
end

local function layout(v, s)
  local m = {packed = true, flat = true, idle_rows = 0, parts = 0, q_resident = true, pitch_q = false}
  m.dim_qk = round_up_16(v.dim_qk) -- mma takes 16 dimensions at a time; the padding is zero
  m.bytes = is_bytes(v)
  m.element_bytes = m.bytes and 1 or 2 -- of K and V
  m.pitch_k = pitch(m.dim_qk, m.element_bytes)
  m.pitch_v = pitch(v.dim_v, m.element_bytes)
  m.k_bytes = s.tile_n * m.pitch_k * m.element_bytes
  m.v_bytes = s.tile_n * m.pitch_v * m.element_bytes
  m.ring = s.stages * (m.k_bytes + m.v_bytes)
  m.panel_pitch = v.dim_v + 4 -- floats; the rows of a fragment fall into different banks
  m.states = s.warps // s.row_warps * m.ring
  m.panel = m.states + s.warps * 8 * 8
  m.total = m.panel + s.warps * 8 * m.panel_pitch * 4
  m.row_tiles = s.tile_m // (16 * s.row_warps) -- of a warp
  return m
end

-- Registers a thread needs at once: output, queries, scores, and what addressing and the softmax take.
local function registers(v, s)
  local m = layout(v, s)
  return m.row_tiles * (v.dim_v // 2 + m.dim_qk // 4 + s.tile_n // 2) + 48
end

return {
  name = "attention_decode_sm80",
  summary = "few queries, keys split over all SMs, mma.sync",
  order = 50,
  min_arch = 80,
  phases = {"decode"},

  supports = function(v, request)
    local reason = attention.refuse(v, {f16 = true, bf16 = true}, true, {kv = {e4m3 = true}, kv_scale = true})
    if reason then return false, reason end
    if request.unaligned then return false, "copies of 16 bytes need 16-byte aligned addresses and strides" end
    if v.dtype_q ~= v.dtype_kv and not is_bytes(v) then
      return false, "attention.dtype: q is " .. v.dtype_q .. " and kv is " .. v.dtype_kv ..
        "; kv must be the same or e4m3"
    end
    for _, dim in ipairs{"qk", "v"} do
      if is_bytes(v) and v["dim_" .. dim] % 16 > 0 then
        return false, "attention.dim." .. dim .. ": " .. v["dim_" .. dim] .. " is no multiple of 16, as e4m3 needs"
      end
    end
    reason = attention.refuse_wide(v)
    if reason then return false, reason end
    if mask.walk or mask.dilation then return false, "attention.mask: the tiles of keys that rows see are no range" end
    return true
  end,

  axes = {
    {name = "tile_m", values = {16, 32, 48, 64, 80, 96, 112, 128},
     meaning = "rows of a tile: queries times heads of a KV head"},
    {name = "tile_n", values = {16, 32, 64}, meaning = "keys of a slice"},
    {name = "warps", values = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12}, meaning = "warps of a block"},
    {name = "row_warps", values = {1, 2, 3, 4, 5, 6, 7, 8},
     meaning = "warps that share a slice, each with rows of its own; others have slices of their own"},
    {name = "stages", values = {2, 3, 4, 5, 6, 8}, meaning = "slices of a ring in flight, one of which is worked on"},
    {name = "slack", values = {0, 8},
     meaning = "how far a score may exceed the row's reference, in powers of 2, before the output is rescaled"},
    {name = "blocks", values = {1, 2, 3, 4}, meaning = "blocks of an SM"},
    {name = "split", values = {0, 256, 512, 1024, 2048, 4096, 8192},
     meaning = "a row's keys are split 0: into equal shares of all blocks; else: every so many, whatever the batch"},
    {name = "together", values = {1, 2, 4}, -- no more than the fewest SMs of any device
     meaning = "KV heads whose blocks walk through the keys side by side"},
  },

  -- Measured on an H200 beside cuDNN, FlashAttention-3 and a plain read of as many bytes; see docs/performance.md. A
  -- row of tiles is read once where its rows fit 8 warps; 64 KiB on their way to an SM keep the memory busy.
  defaults = function(v, arch, request)
    local dim, rows = math.max(v.dim_qk, v.dim_v), v.group * math.max(request.len_q, 1)
    local row_warps = math.min(ceil_div(rows, 16), 8)
    local row_bytes = (is_bytes(v) and 1 or 2) * dim -- of short rows: more warps that are at work on them
    local many = row_bytes <= 128 or v.layout_kv == "paged" -- pages: looking them up takes more warps
    local key_warps = row_warps > 5 and 1 or math.max((many and (is_bytes(v) and 12 or 8) or 4) // row_warps, 2)
    local tile_n = key_warps == 1 and 32 or 16
    local slice = (is_bytes(v) and 1 or 2) * tile_n * (v.dim_qk + v.dim_v)
    local stages = math.min(math.max(1 + ceil_div(64 << 10, key_warps * slice), 2), 6)
    local together = v.heads_kv % 4 == 0 and 4 or v.heads_kv % 2 == 0 and 2 or 1
    if v.mask_symbols.h or v.mask_symbols.hk then together = 1 end
    return {tile_m = 16 * row_warps, tile_n = tile_n, warps = row_warps * key_warps, row_warps = row_warps,
            stages = stages, slack = 8, blocks = 1, together = together,
            split = v.deterministic == "batch" and 1024 or 0}
  end,

  fallbacks = function(v, arch, request)
    local list = {}
    for _, try in ipairs{{16, 4, 1, 3}, {16, 4, 1, 2}, {16, 2, 1, 2}, {16, 1, 1, 2}} do
      list[#list + 1] = {tile_m = try[1], tile_n = 16, warps = try[2], row_warps = try[3], stages = try[4], slack = 8,
                         blocks = 1, split = v.deterministic == "batch" and 1024 or 0, together = 1}
    end
    return list
  end,

  check = function(v, s)
    if v.deterministic == "batch" and s.split == 0 then
      return false, "deterministic: batch needs split > 0: equal shares depend on the other sequences"
    end
    if s.warps % s.row_warps > 0 then return false, "row_warps must divide warps" end
    if s.tile_m % (16 * s.row_warps) > 0 then return false, "16 row_warps must divide tile_m" end
    if v.heads_kv % s.together > 0 then return false, "together must divide the number of KV heads" end
    if s.together > 1 and (v.mask_symbols.h or v.mask_symbols.hk) then
      return false, "together > 1 needs a mask that is the same for all heads"
    end
    if v.layout_kv == "paged" and s.tile_n > 32 and v.page_size % s.tile_n > 0 then
      return false, "tile_n = 64 needs pages of a multiple of 64 keys"
    end
    return true
  end,

  resources = function(v, s)
    return {shared_bytes = layout(v, s).total, threads = 32 * s.warps, registers = registers(v, s), blocks = s.blocks}
  end,

  describe = function(v, s)
    local m = layout(v, s)
    local pair = 2 * s.tile_m * s.tile_n
    return {
      "shared memory, bytes:",
      ("  K and V      0 .. %d   %d x %d x %d rows of %d and %d elements")
        :format(m.states, s.warps // s.row_warps, s.stages, s.tile_n, m.pitch_k, m.pitch_v),
      ("  merge        %d .. %d   references and sums, then the output, of 8 rows of every warp")
        :format(m.states, m.total),
      ("roles: %d warps, %d of them to a slice, which they load and multiply; together they merge and store")
        :format(s.warps, s.row_warps),
      "a slice: " .. pair * (v.dim_qk + v.dim_v) .. " FLOPs, " .. s.tile_m * s.tile_n .. " exponentials",
    }
  end,

  kernel = function(v, s, arch, request)
    local m = layout(v, s)
    local params = attention.params(v, false)
    local function add(name, ctype)
      params[#params + 1] = {name = name, type = "pointer", ctype = ctype, source = "workspace." .. name}
    end
    add("arrived", "int *")
    add("partial_states", "float2 *")
    add("partial_outputs", "float *")
    -- What a block may leave for others: two parts, one it begins and one it ends; or every part there is.
    local rows = v.group > s.tile_m and {"len_q"} or {"len_q", s.tile_m // v.group}
    local places = s.split > 0 and {{"batch"}, {"heads_kv"}, rows, {"len_k", s.split}} or {{"sm_count"}}
    local counters = s.split > 0 and ceil_div(v.group, s.tile_m) or s.blocks
    local slots = (s.split > 0 and counters or 2 * s.blocks) * s.tile_m -- rows
    return {
      launches = {{entry = "qkv_kernel", block = 32 * s.warps, shared_bytes = m.total,
                   grid = {{"sm_count"}, {"sm_count"}}, blocks_per_sm = s.blocks, -- as many as there is room for
                   early = attention.early(arch)}},
      params = params,
      regions = {
        {name = "arrived", bytes = 4 * counters, zeroed = 2, count = places},
        {name = "partial_states", bytes = 8 * slots, count = places},
        {name = "partial_outputs", bytes = 4 * slots * v.dim_v, count = places},
      },
      aligned16 = true,
      layout = m,
    }
  end,
}
