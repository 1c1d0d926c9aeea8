-- attention_decode_simt: one or two rows against many keys, split over all SMs, without tensor cores. From sm_80 on.
--
-- Rows, slices and shares are those of attention_decode_sm80. A tensor core works on 16 rows; where a KV head has one
-- or two, products of single numbers are enough to keep up with memory, take any format, and need no shared memory on
-- the way: a warp has slices of keys of its own, and in it groups of lanes have keys of their own. Each lane of a group
-- holds the same 16-byte chunks of every row: of the queries, of K, of V and of the output. A score is summed over the
-- group; each group has a softmax of its own. The groups' results become one by shuffles, the warps' in shared memory,
-- the blocks' as in attention_decode_sm80.

local attention = library("attention")
local cost = library("cost")
local split = library("split")

local element_bytes = {f16 = 2, bf16 = 2, f32 = 4, e4m3 = 1, e5m2 = 1}

local function layout(v, s)
  local m = {packed = true, flat = true, idle_rows = 0, parts = 0}
  m.threads, m.meet, m.lane_key = "THREADS", "block_sync()", "min(lane, TILE_N - 1)"
  m.chunk = 16 // element_bytes[v.dtype_kv] -- elements of K and V in 16 bytes
  m.k_chunks, m.v_chunks = v.dim_qk // m.chunk, v.dim_v // m.chunk
  m.k_steps, m.v_steps = ceil_div(m.k_chunks, s.lanes), ceil_div(m.v_chunks, s.lanes)
  m.lane_groups = 32 // s.lanes
  m.tile_n = m.lane_groups * s.keys
  m.panel = round_up(s.warps * s.tile_m * 8, 16)
  m.parts = m.panel + s.warps * s.tile_m * v.dim_v * 4
  m.total = m.parts + (split.cluster(s) and 2 * 8 + s.tile_m * 8 or 0)
  return m
end

-- Registers a thread needs at once: queries and output, K and V, scores, and what addressing and the softmax take.
local function registers(v, s)
  local m = layout(v, s)
  return s.tile_m * (m.chunk * (m.k_steps + m.v_steps) + s.keys + 2) + 4 * s.keys * (m.k_steps + m.v_steps) + 48
end

-- A lane has one chunk of a row where 32 lanes can have them all. Two blocks of eight warps leave a thread 128
-- registers; 64 KiB on their way to an SM keep the memory busy. Not yet measured.
local function defaults(v, arch, request)
  local rows = split.row_count(v, request)
  local m = layout(v, {tile_m = 1, lanes = 32, keys = 1, warps = 1})
  local s = split.schedule(v, {tile_m = 1, lanes = 2, keys = 1, warps = 8, blocks = 2, together = split.together(v)})
  while s.lanes < math.min(math.max(m.k_chunks, m.v_chunks), 32) do s.lanes = 2 * s.lanes end
  local tiles = ceil_div(rows, 8)
  repeat -- even tiles, as few as registers allow
    s.tile_m, tiles = ceil_div(rows, tiles), tiles + 1
  until s.tile_m == 1 or registers(v, s) <= 200
  if registers(v, s) > 128 then s.blocks = 1 end
  local limit = s.blocks == 2 and 128 or 224
  local row_bytes = 16 * (m.k_chunks + m.v_chunks)
  local function is_enough()
    local slice = layout(v, s).tile_n
    return s.blocks * s.warps * slice * row_bytes >= 64 << 10 or s.keys == 8 or
           (v.layout_kv == "paged" and slice >= 32 and v.page_size % (2 * slice) > 0)
  end
  while not is_enough() do
    s.keys = 2 * s.keys
    if registers(v, s) > limit then
      s.keys = s.keys // 2
      break
    end
  end
  return s
end

return {
  name = "attention_decode_simt",
  summary = "one or two rows, keys split over all SMs, no tensor cores",
  order = 55, -- behind attention_decode_sm80: it gets what that cannot do, until a GPU has told what it does better
  min_arch = 80,
  phases = {"decode"},

  supports = function(v, request)
    local reason = attention.refuse(v, {f16 = true, bf16 = true, f32 = true}, true,
                                    {kv = {e4m3 = true, e5m2 = true}, kv_scale = true})
    if reason then return false, reason end
    if element_bytes[v.dtype_q] < element_bytes[v.dtype_kv] then
      return false, "attention.dtype: q is " .. v.dtype_q .. " and kv is " .. v.dtype_kv .. "; q must be as wide as kv"
    end
    reason = split.refuse(v, request)
    if reason then return false, reason end
    return true
  end,

  axes = split.axes({
    {name = "tile_m", values = {1, 2, 3, 4, 5, 6, 7, 8},
     meaning = "rows of a tile: queries times heads of a KV head"},
    {name = "lanes", values = {2, 4, 8, 16, 32}, meaning = "lanes that share a key's row"},
    {name = "keys", values = {1, 2, 4, 8}, meaning = "keys that each such group of lanes has in flight, of K and of V"},
    {name = "warps", values = {1, 2, 4, 6, 8, 12, 16}, meaning = "warps of a block, each with slices of its own"},
  }, true),

  defaults = defaults,

  -- Bytes on their way to an SM, by keys and warps; lanes that a row needs; heads read side by side.
  space = function(v, arch, request, effort)
    local rows, lanes, sizes = split.row_count(v, request), {}, {}
    local m = layout(v, {tile_m = 1, lanes = 32, keys = 1, warps = 1})
    for _, n in ipairs{2, 4, 8, 16, 32} do
      local chunks = math.max(m.k_chunks, m.v_chunks)
      if n < 2 * chunks and (n >= chunks or effort > 0 and 2 * n >= chunks) or n == 32 and chunks >= 32 then
        lanes[#lanes + 1] = n
      end
    end
    if #lanes == 0 then lanes = {2} end
    for tiles = 1, effort == 0 and 1 or 3 do sizes[tiles] = math.min(ceil_div(rows, tiles), 8) end
    if effort == 0 then
      return {{tile_m = sizes, lanes = lanes, keys = {2, 4, 8}, blocks = {1, 2}}, {warps = {4, 16}}}
    end
    if effort == 1 then
      return {{tile_m = sizes, lanes = lanes, keys = {1, 2, 4, 8}, warps = {4, 8, 16}, blocks = {1, 2, 3},
               together = split.side_by_side(v)}}
    end
    local list = split.merges({tile_m = sizes, lanes = lanes, keys = {2, 4, 8}, warps = {4, 8, 16}})
    list[#list + 1] = {tile_m = sizes, lanes = lanes, keys = {1, 2, 4, 8}, warps = {2, 4, 6, 8, 12, 16},
                       blocks = {1, 2, 3, 4}, together = split.side_by_side(v), split = split.lengths(v)}
    return list
  end,

  cost = function(v, s)
    local m = layout(v, s)
    local slice = m.tile_n * 16 * (m.k_chunks + m.v_chunks)
    local spills = math.max(registers(v, s) - 65536 // (32 * s.warps * s.blocks), 0)
    local c = cost.split(v, s, {
      threads = 32 * s.warps,
      unit = "fma", tile_m = s.tile_m, tile_n = m.tile_n, blocks = s.blocks, dim_qk = v.dim_qk, dim_v = v.dim_v,
      shared = false, in_flight = 1.3 * s.warps * slice,
      chain = 700 + 12 * s.keys * (s.tile_m + 1) * (m.k_steps + m.v_steps),
      workers = s.warps, reach = v.layout_kv == "paged" and 0.93 or 0.995, exponentials = s.lanes * (1 + s.lanes / 16),
    })
    -- Conversions beside the products; lanes without a chunk idle.
    local filled = (m.k_chunks + m.v_chunks) / (s.lanes * (m.k_steps + m.v_steps))
    c.flops = (c.flops or 0) * (1 + 1.5 / s.tile_m) / filled * (1 + 0.03 * spills)
    return c
  end,

  fallbacks = function(v, arch, request)
    local list = {split.in_clusters(defaults(v, arch, request))}
    for _, try in ipairs{{4, 32, 2, 8}, {2, 32, 2, 4}, {1, 32, 1, 4}, {1, 32, 1, 1}} do
      list[#list + 1] = split.schedule(v, {tile_m = try[1], lanes = try[2], keys = try[3], warps = try[4]})
    end
    return list
  end,

  check = function(v, s, arch)
    local reason = split.refuse_schedule(v, s, layout(v, s).tile_n, arch)
    if reason then return false, reason end
    return true
  end,

  resources = function(v, s)
    return {shared_bytes = layout(v, s).total, threads = 32 * s.warps, registers = registers(v, s), blocks = s.blocks}
  end,

  describe = function(v, s)
    local m = layout(v, s)
    local pair = 2 * s.tile_m * m.tile_n
    return {
      "shared memory, bytes:",
      ("  merge        0 .. %d   references and sums, then the output, of %d rows of every warp")
        :format(m.total, s.tile_m),
      ("roles: %d warps with slices of their own, of %d keys: %d groups of %d lanes have %d each")
        :format(s.warps, m.tile_n, m.lane_groups, s.lanes, s.keys),
      ("on their way: %d bytes of an SM"):format(s.blocks * s.warps * m.tile_n * 16 * (m.k_chunks + m.v_chunks)),
      "a slice: " .. pair * (v.dim_qk + v.dim_v) .. " FLOPs, " .. s.tile_m * m.tile_n .. " exponentials",
    }
  end,

  kernel = function(v, s, arch) return split.kernel(v, s, arch, layout(v, s)) end,
}
