-- attention_decode_sm80: few queries against many keys, split over all SMs: mma.sync, cp.async. From sm_80 on.
--
-- Rows are queries times the query heads of a KV head, so that one pass over the keys serves them all. The keys of a
-- tile of rows come in slices; all slices of all tiles are numbered, and every block of a grid as large as the GPU
-- takes an equal share of the numbers, whatever the lengths. In a block, groups of warps take slices in turn, each
-- through a ring of its own; the warps of a group have 16 rows or more each. The groups' outputs are merged. A tile of
-- rows that several blocks share is put together by the last of them.

local attention = library("attention")
local cost = library("cost")
local split = library("split")

local function round_up_16(n) return (n + 15) // 16 * 16 end

-- Row pitch in elements of a slice in shared memory: an odd number of 16-byte chunks, so that the eight rows of an
-- ldmatrix fall into different banks.
local function pitch(dim, element_bytes)
  local in_chunk = 16 // element_bytes
  return in_chunk * (dim // in_chunk | 1)
end

local function layout(v, s)
  local m = {packed = true, flat = true, idle_rows = 0, parts = 0, q_resident = true, pitch_q = false}
  m.threads, m.meet, m.lane_key = "THREADS", "block_sync()", "min(lane, TILE_N - 1)"
  m.dim_qk = round_up_16(v.dim_qk) -- mma takes 16 dimensions at a time; the padding is zero
  m.bytes = split.is_bytes(v) -- they stay so in shared memory; the products take them, and the queries, as f16
  m.element_bytes = m.bytes and 1 or 2 -- of K and V
  m.headroom = m.bytes and 7 or 0 -- of P in f16, above what that holds least
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
  phases = {"decode", "prefill"},

  supports = function(v, request)
    local reason = attention.refuse(v, {f16 = true, bf16 = true}, true, {kv = {e4m3 = true}, kv_scale = true})
    if reason then return false, reason end
    if v.dtype_q ~= v.dtype_kv and not split.is_bytes(v) then
      return false, "attention.dtype: q is " .. v.dtype_q .. " and kv is " .. v.dtype_kv ..
        "; kv must be the same or e4m3"
    end
    reason = attention.refuse_wide(v) or split.refuse(v, request)
    if reason then return false, reason end
    return true
  end,

  -- Measured on an H200: for one row the CUDA cores keep up with memory, and loads straight into registers read it
  -- faster (0.99 of a plain read, beside 0.93). For two rows it is even; for four they do not keep up. Where calls may
  -- have more queries, a tile of one row would read the keys again for each.
  -- Many queries against keys of one byte have no family of their own: here their tiles of rows read the keys again and
  -- again, from L2. Others go to the forward families.
  yields = function(v, request)
    return (split.is_single_row(v, request) or request.phase == "prefill") and not split.is_bytes(v)
  end,

  axes = split.axes{
    {name = "tile_m", values = {16, 32, 48, 64, 80, 96, 112, 128},
     meaning = "rows of a tile: queries times heads of a KV head"},
    {name = "tile_n", values = {16, 32, 64}, meaning = "keys of a slice"},
    {name = "warps", values = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12}, meaning = "warps of a block"},
    {name = "row_warps", values = {1, 2, 3, 4, 5, 6, 7, 8},
     meaning = "warps that share a slice, each with rows of its own; others have slices of their own"},
    {name = "stages", values = {2, 3, 4, 5, 6, 8}, meaning = "slices of a ring in flight, one of which is worked on"},
  },

  -- Measured on an H200 beside cuDNN, FlashAttention-3 and a plain read of as many bytes; see docs/performance.md. A
  -- row of tiles is read once where its rows fit 8 warps; 64 KiB on their way to an SM keep the memory busy.
  defaults = function(v, arch, request)
    local dim, rows = math.max(v.dim_qk, v.dim_v), split.row_count(v, request)
    if request.phase == "prefill" and request.len_q == 0 then rows = 128 end
    local row_warps = math.min(ceil_div(rows, 16), 8)
    local row_bytes = (split.is_bytes(v) and 1 or 2) * dim -- of short rows: more warps that are at work on them
    local many = row_bytes <= 128 or v.layout_kv == "paged" -- pages: looking them up takes more warps
    local key_warps = row_warps > 5 and 1 or math.max((many and (split.is_bytes(v) and 12 or 8) or 4) // row_warps, 2)
    local tile_n = key_warps == 1 and 32 or 16
    local slice = (split.is_bytes(v) and 1 or 2) * tile_n * (v.dim_qk + v.dim_v)
    local stages = math.min(math.max(1 + ceil_div(64 << 10, key_warps * slice), 2), 6)
    return split.schedule(v, {tile_m = 16 * row_warps, tile_n = tile_n, warps = row_warps * key_warps,
                              row_warps = row_warps, stages = stages, together = split.together(v)})
  end,

  -- Warps to a slice and slices at a time; bytes on their way; heads read side by side.
  space = function(v, arch, request, effort)
    local rows, list = split.row_count(v, request), {}
    local most = math.min(ceil_div(rows, 16), 8)
    local function add(row_warps, key_warps, axes)
      local product = {tile_m = {16 * row_warps}, row_warps = {row_warps}, warps = {}}
      for _, w in ipairs(key_warps) do
        local warps = w * row_warps
        if warps <= 8 or warps == 10 or warps == 12 then table.insert(product.warps, warps) end
      end
      for axis, values in pairs(axes) do product[axis] = values end
      if #product.warps > 0 then list[#list + 1] = product end
    end
    for row_warps = 1, most do
      if effort == 0 then
        if row_warps == most then
          add(row_warps, {2, 4, 8}, {tile_n = {16, 32}, stages = {2, 4}})
        end
      elseif effort == 1 then
        add(row_warps, {1, 2, 4, 8, 12}, {tile_n = {16, 32}, stages = {2, 3, 4, 6}, blocks = {1, 2},
                                          together = split.side_by_side(v)})
      else
        add(row_warps, {1, 2, 4, 6, 8, 12}, {tile_n = {16, 32, 64}, stages = {2, 3, 4, 5, 6}, blocks = {1, 2, 3},
                                                 together = split.side_by_side(v), split = split.lengths(v)})
        add(row_warps, {2, 4, 8}, split.kernel_behind{tile_n = {16, 32}, stages = {2, 4}})
      end
    end
    return list
  end,

  cost = function(v, s)
    local m = layout(v, s)
    local groups = s.warps // s.row_warps
    return cost.split(v, s, {
      threads = 32 * s.warps,
      unit = "mma", tile_m = s.tile_m, tile_n = s.tile_n, blocks = s.blocks, dim_qk = m.dim_qk, dim_v = v.dim_v,
      shared = true, in_flight = groups * (s.stages - 1) * (m.k_bytes + m.v_bytes),
      chain = (500 + 250 * m.row_tiles + (m.bytes and 400 or 0)) * (0.5 + s.tile_n / 32), workers = groups,
      exponentials = 1, reach = (m.bytes and 0.92 or 0.96) * (v.layout_kv == "paged" and 0.95 or 1),
    })
  end,

  fallbacks = function(v, arch, request)
    local list = {}
    for _, try in ipairs{{16, 4, 1, 3}, {16, 4, 1, 2}, {16, 2, 1, 2}, {16, 1, 1, 2}} do
      list[#list + 1] = split.schedule(v, {tile_m = try[1], tile_n = 16, warps = try[2], row_warps = try[3],
                                           stages = try[4]})
    end
    return list
  end,

  check = function(v, s, arch)
    if s.warps % s.row_warps > 0 then return false, "row_warps must divide warps" end
    if s.tile_m % (16 * s.row_warps) > 0 then return false, "16 row_warps must divide tile_m" end
    local reason = split.refuse_schedule(v, s, s.tile_n, arch)
    if reason then return false, reason end
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

  kernel = function(v, s, arch) return split.kernel(v, s, arch, layout(v, s)) end,
}
