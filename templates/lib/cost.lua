-- cost.lua: what families share that tell what a schedule makes the device do (gen/cost.h has the counts' meanings and
-- the formula, docs/tuning.md how far it is off). For functions `cost`, which alone have workload, device and visits.

local cost = {}

-- Seconds that a call takes whatever its size: the start of a kernel; before it, a command that sets counters to zero,
-- a kernel that plans. Measured on an H200. The last two are of a call that plans; those with reuse_plan take neither,
-- but tickets cost about as much in other ways: without `zeroing` the order of short calls is further off
-- (docs/tried.md).
cost.start, cost.zeroing, cost.planning = 2.3e-6, 1.0e-6, 3.0e-6

-- Up to a whole, as a real number: sizes of a workload are real numbers, since integers wrap around in their products.
function cost.ceil(x) return -(-x // 1) end
local ceil = cost.ceil

local element_bytes = {f16 = 2, bf16 = 2, f32 = 4, e4m3 = 1, e5m2 = 1}
function cost.bytes(dtype) return element_bytes[dtype] end

-- Tiles of keys that tiles of rows visit, of a head of an entry: rows, tiles, masked, most, spread.
local known = {}
function cost.visits(queries, keys)
  local by_keys = known[queries] or {}
  known[queries] = by_keys
  by_keys[keys] = by_keys[keys] or visits(queries, keys)
  return by_keys[keys]
end

-- What an element of the scores takes beside its exponential, in exponentials: of every one, and where the mask is
-- evaluated.
function cost.element(v)
  local more = 0
  if v.softcap > 0 then more = more + 1 end
  if not v.score_is_identity then more = more + 0.5 end
  if score.gathers then more = more + 4 end
  return 1 + more, 0.15 + (mask.reads_pairs and 4 or 0)
end

-- Time of the fullest SM over the mean, for so many blocks of work: all alike, one after the other on each SM.
function cost.rounds(items)
  return math.max(ceil(ceil(items) / device.sm_count) * device.sm_count / math.max(items, 1), 1)
end

-- Bytes of q, o and of keys and values, each once.
function cost.row_bytes(v)
  return workload.batch * workload.len_q * v.heads_q *
    (v.dim_qk * element_bytes[v.dtype_q] + v.dim_v * element_bytes[v.dtype_out])
end
function cost.key_bytes(v, tokens) return tokens * (v.dim_qk + v.dim_v) * element_bytes[v.dtype_kv] end

-- How the keys of few rows are split over all SMs (templates/lib/split.lua): waves; the slices of the block that has
-- the most; whether parts of several blocks have to be put together; blocks that work; how often blocks start anew.
local function shares(s, tiles, slices, tile_n, places)
  local of_tile = slices / math.max(tiles, 1)
  if s.merge > 1 then -- a cluster for each tile; not all SMs have neighbours enough for more than two
    local clusters = math.max(s.merge > 2 and math.floor(0.92 * places / s.merge) or places // s.merge, 1)
    local rounds = ceil(tiles / clusters)
    local share = ceil(of_tile / s.merge)
    local waves = math.max(share * rounds * places / slices, 1)
    return waves, share * rounds, true, tiles / rounds * s.merge, rounds
  end
  if s.split == 0 then
    local cut = slices > places and tiles % places > 0 or tiles < places and of_tile > 1
    local share = ceil(slices / places)
    local waves = slices <= places and cost.rounds(slices) or share * places / slices
    return waves, share, cut, math.min(slices, places), 1
  end
  local pieces = tiles * ceil(of_tile * tile_n / s.split)
  local share = ceil(pieces / places) * math.min(s.split // tile_n, of_tile)
  return cost.rounds(pieces), share, pieces > tiles, math.min(pieces, places), 1
end

-- Seconds to put together so many parts of a tile: by a cluster; by a kernel behind; by the last block, whose threads
-- read one part after the other, and that as often as the tile has more places than they are. Fitted to an H200.
local function merging(s, parts, passes)
  if s.merge > 1 then return 1.1e-6 end
  if s.merge == 1 then return 3.5e-6 end
  return 0.7e-6 + passes * (0.5e-6 + 0.04e-6 * parts)
end

-- The counts of such kernels. What is the family's:
-- tile_m, tile_n    rows of a tile, keys of a slice
-- threads           that put parts together
-- blocks            of an SM
-- in_flight         bytes on their way to a block
-- chain             cycles from a slice's arrival to the next one's turn; workers: slices at a time in a block
-- reach             share of memory's bandwidth that the way of loading reaches
-- exponentials      of an element of the scores, when lanes do it again; shared: slices go through shared memory
local TILE_END = 0.5e-6 -- seconds in which a block's warps merge what they have of a tile, but for its last
function cost.split(v, s, f)
  local parts = ceil_div(v.group, f.tile_m) -- tiles of rows of one query
  local seen = cost.visits(math.max(f.tile_m // v.group, 1), f.tile_n)
  local heads = workload.batch * v.heads_kv
  local tiles, slices = seen.rows * heads * parts, seen.tiles * heads * parts
  local rows = cost.row_bytes(v)
  if slices == 0 then return {unit = f.unit, memory_bytes = rows, fixed = cost.start} end
  local waves, share, cut, busy, rounds = shares(s, tiles, slices, f.tile_n, device.sm_count * f.blocks)
  local keys = cost.key_bytes(v, slices * f.tile_n)
  local once = keys / (seen.rows * parts) -- again for every tile of rows, from L2 where it holds them
  local panels = ceil_div(f.tile_m, 8) -- 8 rows are merged at a time
  local element, masked = cost.element(v)
  local pairs = f.tile_m * f.tile_n
  local passes = ceil_div(f.tile_m * v.dim_v // 4, f.threads) -- four columns a thread
  return {
    unit = f.unit,
    flops = 2 * pairs * slices * (f.dim_qk + f.dim_v),
    exponentials = pairs * f.exponentials * (slices * element + seen.masked * heads * parts * masked),
    shared_bytes = f.shared and 3 * keys or 0,
    l2_bytes = keys + rows,
    -- Slices of several heads side by side are rows of memory that lie together.
    memory_bytes = ((once < 0.5 * device.l2_bytes and once or keys) + rows) / f.reach / (s.together > 1 and 1 or 0.98),
    in_flight = busy * f.in_flight,
    overlap = 1.5,
    waves = waves,
    overhead = slices * f.chain / f.workers / f.blocks * 0.15,
    latency = share * f.chain / f.workers,
    -- The start, the first keys, and both again for blocks that follow; what warps and blocks found becomes one, at the
    -- end of each piece of a block.
    fixed = cost.start + 0.8e-6 + 5e-6 * (rounds - 1) + (cut and merging(s, busy / tiles, passes) or 0.4e-6) +
      0.8e-6 * (panels - 1) * math.min((tiles + busy) / busy, 2) + TILE_END * math.max(tiles / busy - 1, 0),
  }
end

return cost
