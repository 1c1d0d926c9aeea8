-- attention_decode_sm90: few queries against many keys, split over all SMs, by wgmma with keys as its rows. For Hopper.
--
-- The rows of a tile, queries times the query heads of a KV head, are the columns of the products: S^T = K Q^T and
-- O^T = V^T P^T, so that a tile has as many rows as there are, in steps of 8, and K and V are read from shared memory
-- once for all of them. Keys are split over the blocks as attention_decode_sm80 does it (parts/split_work.cu). In a
-- block a producer warpgroup copies slices of K and V into a ring; consumer warpgroups take the slices in turn, each
-- with an output of its own, and merge at the end of a piece of work (parts/split_merge.cu).

local attention = library("attention")
local cost = library("cost")
local split = library("split")

local PANEL = 64 -- columns of a panel, which the swizzle of 128 bytes mixes
local MBARRIER_BYTES = 8
local MOST_IN_FLIGHT = 7 -- groups of copies that a thread can wait behind (prim/cp_async.cuh)
local UNSPLIT = 4096 -- keys of a part, more than a narrow window has
local CLUSTER_RINGS = {2, 3, 4, 5} -- stages that leave room for the parts of a cluster

-- Registers of a thread at launch by consumer warpgroups, and the most that a consumer may have: what it has more than
-- at launch the producer gives.
local launches, most = {255, 168, 128}, {255, 208, 144}

-- Registers a consumer needs at once: scores and output, maxima and sums, and the rest.
local function registers(v, s)
  return s.tile_m // 2 * (s.tile_n // PANEL + ceil_div(v.dim_v, PANEL) + 1) + 56
end

-- Registers of a thread at launch, of a consumer and of the producer. All three are the same where consumers need no
-- more than they have at launch.
local function budget(v, s)
  local launch = launches[s.warpgroups]
  local consumer = math.max(launch, round_up(registers(v, s), 8))
  return {launch = launch, consumer = consumer, moves = consumer > launch,
          producer = launch - s.warpgroups * (consumer - launch)} -- a block keeps what it has at launch
end

local function layout(v, s)
  local m = {packed = true, flat = true, idle_rows = 0, parts = 0}
  m.lane_key = "threadIdx.x % 128 / 32 * OWN_KEYS + min(lane, OWN_KEYS - 1)"
  m.threads, m.meet = "CONSUMERS", "bar_sync(ALL_CONSUMERS, CONSUMERS)"
  m.qk_panels, m.v_panels = ceil_div(v.dim_qk, PANEL), ceil_div(v.dim_v, PANEL)
  m.k_bytes, m.v_bytes = 128 * s.tile_n * m.qk_panels, 128 * s.tile_n * m.v_panels
  m.q_offset = s.stages * (m.k_bytes + m.v_bytes)
  m.p_offset = m.q_offset + 128 * s.tile_m * m.qk_panels
  m.p_bytes = 128 * s.tile_m * (s.tile_n // PANEL) -- of a warpgroup
  m.columns = m.p_offset + s.warpgroups * m.p_bytes
  m.states = m.columns + s.warpgroups * (4 + 1) * s.tile_m * 4
  m.panel = m.states + s.warpgroups * 8 * 8
  m.panel_pitch = v.dim_v + 4 -- floats; a fragment's rows and columns fall into different banks
  m.barriers = m.panel + s.warpgroups * 8 * m.panel_pitch * 4
  m.meeting = m.barriers + MBARRIER_BYTES * 4 * s.stages -- of a cluster
  m.total = m.meeting + (split.cluster(s) and MBARRIER_BYTES * 2 + 8 * 8 or 0)
  -- Copies that the producer leaves in flight behind those it tells of. The others' places are being worked on.
  m.in_flight = math.min(math.max(2 * s.stages - 2 * s.warpgroups, 1), MOST_IN_FLIGHT)
  m.budget = budget(v, s)
  return m
end

-- The family's own axes and those that all have who split keys, but for the blocks of an SM: there is room for one.
local function axes(own)
  for _, axis in ipairs(split.axes({}, true)) do
    if axis.name ~= "blocks" then own[#own + 1] = axis end
  end
  return own
end

-- The schedule `s` with the shared axes that it leaves out.
local function schedule(v, s)
  s = split.schedule(v, s)
  s.blocks = nil
  return s
end

-- The share of memory's bandwidth that a block's loads reach, by what was measured on an H200: rows of 128 bytes come
-- slower, pages are looked up for every slice, and one warpgroup's slices wait for each other.
local function reach(v, s)
  local dim = math.max(v.dim_qk, v.dim_v)
  local long = s.tile_n * dim > 64 * 128 -- slices
  local rows = dim <= 64 and 0.92 or 1
  local lookups = v.layout_kv == "paged" and (v.page_size < 16 and 0.83 or long and 0.96 or 0.93) or 1
  local turns = s.warpgroups == 1 and (s.tile_n > 64 and 0.92 or 0.97) or 1
  return rows * lookups * turns
end

-- Measured on an H200; see docs/performance.md. Rows in as few tiles as registers allow, of even sizes; as many
-- slices as shared memory holds. A query's window of few slices has nothing to share: its rows are one part.
local function defaults(v, arch, request)
  local s = {warpgroups = 2, tile_n = math.max(v.dim_qk, v.dim_v) <= 64 and 128 or 64}
  local rows, tiles = split.row_count(v, request), 1
  repeat
    s.tile_m = round_up(ceil_div(rows, tiles), 8)
    tiles = tiles + 1
  until s.tile_m <= 128 and registers(v, s) <= most[s.warpgroups]
  for _, stages in ipairs{2, 3, 4, 5, 6, 7, 8} do
    s.stages = s.stages or stages
    local trial = {tile_m = s.tile_m, tile_n = s.tile_n, warpgroups = s.warpgroups, stages = stages}
    if layout(v, trial).total <= arch.shared_per_block then s.stages = stages end
  end
  s.together = split.together(v)
  if mask.width and mask.width <= 2 * s.tile_n and split.has_one_query(v, s) then s.split = UNSPLIT end
  return schedule(v, s)
end

return {
  name = "attention_decode_sm90",
  summary = "few queries, keys split over all SMs, wgmma with keys as its rows",
  order = 45,
  min_arch = 90,
  max_arch = 90,
  phases = {"decode"},

  supports = function(v, request)
    local reason = attention.refuse(v, {f16 = true, bf16 = true}, true, {kv = {}, kv_scale = true})
    if reason then return false, reason end
    if v.dtype_q ~= v.dtype_kv then
      return false, "attention.dtype: q is " .. v.dtype_q .. " and kv is " .. v.dtype_kv .. "; both must be the same"
    end
    reason = attention.refuse_wide(v) or split.refuse(v, request)
    if reason then return false, reason end
    return true
  end,

  -- A single row, where no call has more, is read as fast without tensor cores, and sooner for short sequences.
  -- Pages of one key are a row's address each, which eight warps find sooner than the producer's four: 0.89 and 0.90
  -- of a plain read beside 0.82 and 0.80; with pages of 16 it is 0.89 and 0.92 beside 0.93 and 0.96.
  yields = function(v, request)
    local single_keys = v.layout_kv == "paged" and v.page_size == 1 and split.row_count(v, request) <= 16
    return single_keys or split.is_single_row(v, request)
  end,

  axes = axes{
    {name = "tile_m", values = {8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128},
     meaning = "rows of a tile: queries times heads of a KV head"},
    {name = "tile_n", values = {64, 128}, meaning = "keys of a slice"},
    {name = "warpgroups", values = {1, 2, 3}, meaning = "consumer warpgroups of a block, which take slices in turn"},
    {name = "stages", values = {2, 3, 4, 5, 6, 7, 8, 10, 12}, meaning = "slices in the ring"},
  },

  defaults = defaults,

  -- Rows in one tile or in several even ones; bytes on their way, which slices and stages make up; heads read side by
  -- side.
  space = function(v, arch, request, effort)
    local rows, sizes, list = split.row_count(v, request), {}, {}
    for tiles = 1, effort == 0 and 2 or 4 do sizes[tiles] = math.min(round_up(ceil_div(rows, tiles), 8), 128) end
    local function add(axes) list[#list + 1] = axes end
    if effort == 0 then
      add{tile_m = sizes, tile_n = {64}, warpgroups = {1, 2}, stages = {4, 6}}
      add{tile_m = sizes, tile_n = {128}, warpgroups = {1, 2}, stages = {3}}
      add{warpgroups = {3}}
      add{split = split.few_lengths(v)}
      for _, merge in ipairs(split.merges({}, CLUSTER_RINGS)) do add(merge) end
    elseif effort == 1 then
      add{tile_m = sizes, tile_n = {64, 128}, warpgroups = {1, 2, 3}, stages = {2, 3, 4, 5, 6, 7, 8},
          together = split.side_by_side(v)}
      add{tile_m = sizes, split = split.lengths(v)}
      for _, merge in ipairs(split.merges({tile_n = {64, 128}, warpgroups = {1, 2}}, CLUSTER_RINGS)) do add(merge) end
    else
      add{tile_m = sizes, tile_n = {64, 128}, warpgroups = {1, 2, 3}, stages = {2, 3, 4, 5, 6, 7, 8, 10, 12},
          together = split.side_by_side(v), split = split.lengths(v)}
      local tiles = {tile_m = sizes, tile_n = {64, 128}, warpgroups = {1, 2, 3}}
      for _, merge in ipairs(split.merges(tiles, CLUSTER_RINGS)) do add(merge) end
    end
    return list
  end,

  cost = function(v, s)
    local m = layout(v, s)
    return cost.split(v, s, {
      unit = "wgmma", tile_m = s.tile_m, tile_n = s.tile_n, blocks = 1, dim_qk = round_up(v.dim_qk, 64),
      dim_v = round_up(v.dim_v, 64), shared = true, in_flight = m.in_flight * (m.k_bytes + m.v_bytes) / 2,
      chain = 400 + (500 + 12 * s.tile_m) * s.tile_n / 64, workers = s.warpgroups, threads = 128 * s.warpgroups,
      exponentials = 1, reach = reach(v, s),
    })
  end,

  fallbacks = function(v, arch, request)
    local clusters = split.in_clusters(defaults(v, arch, request))
    clusters.stages = math.max(clusters.stages - 1, clusters.warpgroups) -- parts take room
    local list = {split.in_clusters(defaults(v, arch, request)), clusters}
    for _, tile_m in ipairs{32, 8} do
      list[#list + 1] = schedule(v, {tile_m = tile_m, tile_n = 64, warpgroups = 1, stages = 2})
    end
    return list
  end,

  check = function(v, s, arch)
    local need, have = registers(v, s), most[s.warpgroups]
    if need > have then
      return false, ("registers: a consumer needs about %d, %d warpgroups leave %d each; lower tile_m%s or warpgroups")
        :format(need, s.warpgroups, have, s.tile_n > PANEL and ", tile_n" or "")
    end
    -- A phase of a place is told by its parity: nobody may wait for one before the one before it is complete. That a
    -- warpgroup's last slice has been told, and so all before it, is enough with as many stages as warpgroups.
    if s.stages < s.warpgroups then return false, "stages must be at least warpgroups" end
    local reason = split.refuse_schedule(v, s, s.tile_n // 4, arch) -- keys of a warp, which looks their pages up
    return reason == nil, reason
  end,

  resources = function(v, s)
    local m = layout(v, s)
    return {shared_bytes = m.total, threads = 128 * (s.warpgroups + 1), registers = m.budget.launch, blocks = 1}
  end,

  describe = function(v, s)
    local m = layout(v, s)
    local lines = {"shared memory, bytes:"}
    local function region(name, from, to, what)
      lines[#lines + 1] = ("  %-10s %6d .. %6d   %s"):format(name, from, to, what)
    end
    local function rows(count, panels) return ("%d rows of %d x 128 bytes, swizzled"):format(count, panels) end
    region("K and V", 0, m.q_offset, s.stages .. " x (" .. rows(s.tile_n, m.qk_panels) .. "; " .. m.v_panels ..
      " x 128 bytes)")
    region("Q", m.q_offset, m.p_offset, rows(s.tile_m, m.qk_panels))
    region("P", m.p_offset, m.columns, s.warpgroups .. " x " .. rows(s.tile_m, s.tile_n // PANEL))
    region("maxima", m.columns, m.states, "of every row and warp, later sums; references of every row and warpgroup")
    region("merge", m.states, m.barriers, "references and sums, then the output, of 8 rows of every warpgroup")
    region("mbarriers", m.barriers, m.meeting, "8 bytes each")
    if split.cluster(s) then
      region("part", m.meeting, m.total, "two mbarriers of the cluster; references and sums of this block's part")
    end
    lines[#lines + 1] = ("roles: %d consumer warpgroups (%d registers), which take slices in turn and merge; then a " ..
      "producer (%d)"):format(s.warpgroups, m.budget.consumer, m.budget.producer)
    local pair = 2 * s.tile_m * s.tile_n
    lines[#lines + 1] = "a slice: " .. pair * (v.dim_qk + v.dim_v) .. " FLOPs, " .. pair // 2 .. " exponentials; " ..
      m.in_flight .. " copies of K or V in flight"
    return lines
  end,

  kernel = function(v, s, arch)
    local shape = {tile_m = s.tile_m, split = s.split, merge = s.merge, warps = 4 * (s.warpgroups + 1), blocks = 1}
    return split.kernel(v, shape, arch, layout(v, s))
  end,
}
