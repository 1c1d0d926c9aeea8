-- attention_forward_sm90: fused attention for Hopper: TMA, wgmma, mbarriers, one producer thread or up to four warps,
-- one to three consumer warpgroups.
--
-- One block works through tiles of 64 query rows per consumer warpgroup. The producer fetches Q and rings of K and V
-- tiles by tensor maps; a consumer warpgroup keeps its rows' scores, probabilities and output in registers. The output
-- leaves by tensor stores while the next tile begins.
--
-- With pack = 1 a tile's rows are queries times the GROUP query heads of a KV head, heads innermost, so that few
-- queries fill a tile and share one pass over the keys. Rows beyond the last whole query of a tile are idle.
--
-- Sequences of lengths of their own come by boxes that end where they do (manifest.h: clipped_map); a tile of keys in
-- several pages comes in several boxes. Pages that hold no whole boxes are copied row by row, with copies = 1.

local attention = library("attention")
local cost = library("cost")

local MBARRIER_BYTES = 8
local REGISTERS_PER_SM = 65536
local BOX_ROWS = 8 -- the swizzle pattern's: a box begins with one
local PRODUCER_WARPS = 4
local NARROW = 513 -- keys that a row sees: of the windows measured, those up to 256 keys to both sides
local SMS = 132 -- of an H100 or H200
local PRODUCT_REGISTERS = 30 -- what ptxas wants beside the accumulators of one wgmma (its error C7602 names the sum)

-- A matrix of `dim` columns in shared memory: panels as wide as the swizzle, one below the other. A last panel that the
-- dimension does not fill is filled up with zeros by the copy.
local function panels(dim)
  local width = dim % 64 ~= 0 and dim % 32 == 0 and 32 or 64
  return {width = width, bytes = 2 * width, count = ceil_div(dim, width), swizzle = 2 * width}
end

local function gcd(a, b) return b == 0 and a or gcd(b, a % b) end

-- Registers of a thread at launch, of the producer's after setmaxnreg, and of a consumer's.
-- A producer that runs a box program, computes several parts of the mask, or copies rows, takes more.
local function budget(warpgroups, parts, rows)
  local threads, wide = 128 * (warpgroups + 1), mask.walk == "boxes" or parts > 1 or rows
  return {
    launch = math.min(REGISTERS_PER_SM // threads // 8 * 8, 255),
    producer = (wide and {56, 56, rows and 32 or 56} or {56, 40, 32})[warpgroups],
    consumer = (wide and {240, 224, rows and 160 or 152} or {240, 232, 160})[warpgroups],
  }
end

local function layout(v, s)
  local m = {qk = panels(v.dim_qk), v = panels(v.dim_v), tile_m = 64 * s.warpgroups, headroom = 0}
  m.packed, m.flat = s.pack == 1, false
  m.queries = m.packed and m.tile_m // v.group or m.tile_m -- of a tile
  m.idle_rows = m.packed and m.tile_m - m.queries * v.group or 0
  -- A warp's 16 rows of O are a box: so many heads of so many queries. Without such a box, and for f32, they leave
  -- from the registers.
  m.o_heads = m.packed and math.min(v.group, 16) or 1
  local boxed = 16 % m.o_heads == 0 and v.group % m.o_heads == 0 and m.idle_rows == 0
  local store = s.store == 1 and v.dtype_out ~= "f32" and boxed
  local q_bytes = m.tile_m * m.qk.bytes * m.qk.count
  local o_bytes = store and m.tile_m * m.v.bytes * m.v.count or 0
  m.store = store
  m.alias = store and s.o_buffer == 0 -- O leaves through Q's place
  m.q_bytes = m.alias and math.max(q_bytes, o_bytes) or q_bytes
  m.k_bytes = s.tile_n * m.qk.bytes * m.qk.count
  m.v_bytes = s.tile_n * m.v.bytes * m.v.count
  m.k_offset = s.q_buffers * m.q_bytes
  m.v_offset = m.k_offset + s.stages * m.k_bytes
  m.o_offset = m.v_offset + s.stages * m.v_bytes
  m.p_offset = m.o_offset + (m.alias and 0 or o_bytes)
  m.p = panels(s.tile_n)
  m.barriers = m.p_offset + s.p_shared * m.tile_m * m.p.bytes * m.p.count
  m.tickets = s.scheduler >= 2 and 2 or 0 -- work numbers on their way to the consumers
  m.ticket_offset = m.barriers + MBARRIER_BYTES * (2 * s.q_buffers + 4 * s.stages + 2 * m.tickets)
  -- Where tiles are walked through, the producer tells of every place of Q and K what it found.
  m.told_offset = m.ticket_offset + 4 * m.tickets
  m.told = mask.walk and s.stages + s.q_buffers or 0
  -- What the mask reads by key alone comes with the tile of K, where there is room for it.
  m.parts_offset = round_up(m.told_offset + 4 * m.told, 16)
  local parts_bytes = s.stages * #mask.keys * s.tile_n * 4
  m.parts = mask.walk and not mask.by_limits and m.parts_offset + parts_bytes <= arch.shared_per_block and #mask.keys
    or 0
  m.rows = s.copies == 1 -- K and V come row by row
  m.box_rows = v.layout_kv == "paged" and gcd(v.page_size, s.tile_n) or s.tile_n // s.cluster -- keys of a copy
  m.boxes = m.rows and 1 or s.tile_n // m.box_rows
  m.total = m.parts > 0 and m.parts_offset + parts_bytes or m.told_offset + 4 * m.told
  m.budget = budget(s.warpgroups, m.parts, m.rows)
  return m
end

-- Registers a consumer thread needs at once: scores, the probabilities of the tile before, output, its part of Q, and
-- the rest.
local function registers(v, s)
  local query = s.q_registers == 1 and 4 * ceil_div(v.dim_qk, 16) or 0
  local probabilities = s.p_shared == 0 and s.tile_n // 4 or 0
  return s.tile_n // 2 + probabilities + v.dim_v // 2 + query + 24
end

-- Whether rows see about as many keys as their neighbours, such as those of a window or a small chunk: intervals in
-- closed form, of which at least one has both ends and none only a lower one, and which do not only grow or only
-- shrink. Rows of a chunk see one key to all of its keys, which counts where that is many tiles.
local function has_even_rows()
  if mask.growth == "grows" or mask.growth == "shrinks" or mask.walk then return false end
  if mask.width and mask.width > 2048 and mask.low_count + mask.high_count > 2 then return false end
  local both = false
  for n = 1, mask.intervals do
    local side = mask.by_row[n]
    if side.low or side.high or (side.low_count > 0 and side.high_count == 0) then return false end
    both = both or side.low_count > 0
  end
  return mask.by_limits and both
end

-- Whether finding tiles and masking them takes more registers than three warpgroups leave.
local function has_heavy_mask()
  if not mask.walk then return false end
  for n = 1, mask.intervals do
    if mask.by_row[n].low or mask.by_row[n].high then return true end
  end
  return not mask.by_limits or mask.intervals > 2
end

-- How well the exponentials of one warpgroup run beside the products of another or of its own (gen/cost.h, overlap),
-- and the cycles that a tile of keys costs a block in barriers and the first product's way. Fitted to an H200.
local function overlap(v, s, is_uneven)
  if s.cluster > 1 then return 1.2, 800 end
  if s.overlap ~= 1 then return s.overlap == 2 and 1.35 or 1.15, 350 end
  if s.warpgroups == 1 then return 1.25, 400 end
  local dim = math.max(v.dim_qk, v.dim_v)
  local turns = (is_uneven or dim <= 96 or dim > 128) and 1 or 0
  local few = s.warpgroups == 2 and dim <= 72 and 0.35 or 0 -- exponentials take as long as products: two do not fill up
  return (s.order == turns and 1.72 or 1.66) - 0.05 * s.p_shared - few, 350
end

-- Time of the fullest SM over the mean. Rows that see different numbers of keys are even by tickets, the longest first;
-- fixed shares of them are the less even the more they differ, but of short sequences, and where neighbours are alike.
local function waves(v, s, seen, items)
  local rounds = cost.rounds(items / s.cluster)
  local mean = seen.tiles / seen.rows
  local share = mean * items / device.sm_count -- tiles of keys that an SM has
  local longest = math.max(seen.most / share, 1)
  if seen.spread < 0.02 then return rounds end
  if s.scheduler >= 2 and s.l2_mib > 0 then return math.max(longest, 1 + 0.2 * mean / share) end
  if s.scheduler ~= 1 then return math.max(longest, 1 + 0.6 * seen.most / share) end
  local worst = (workload.len_q <= 1024 or has_even_rows()) and 0.06 or -- of a causal mask
    math.max(v.dim_qk, v.dim_v) <= 64 and 0.15 or 0.4
  return math.max(longest, rounds * (1 + worst * math.min(seen.spread / 0.5, 1) ^ 2))
end

-- How often keys and values come from memory: once where those of the heads at work fit L2.
local function passes(v, s, seen)
  local head = cost.key_bytes(v, workload.len_k)
  local heads = math.ceil(device.sm_count / seen.rows)
  if s.pack == 0 then heads = math.ceil(heads / v.group) end
  local working = s.l2_mib > 0 and math.max(s.l2_mib * 2 ^ 20, head) or heads * head
  if working <= 0.7 * device.l2_bytes then return 1 end
  return math.max(seen.rows * (s.pack == 0 and v.group or 1) / device.sm_count, 1)
end

-- A default schedule for what is known of the queries: all heads of a KV head share a tile of rows where that takes
-- fewer tiles, or as many and rows differ in length; few rows take few warpgroups. len_q 0: unknown.
local function fit_rows(v, len_q, s)
  local tile_m = 64 * s.warpgroups
  local own = v.group * ceil_div(math.max(len_q, 1), tile_m)
  local packed = v.group <= tile_m and ceil_div(math.max(len_q, 1), tile_m // v.group) or math.huge
  local as_many = s.scheduler >= 2 and tile_m % v.group == 0 and not v.mask_symbols.h and not score.gathers
  s.pack = v.group > 1 and not mask.dilation and (len_q > 0 and packed < own or as_many) and 1 or 0
  local rows = len_q * (s.pack == 1 and v.group or 1)
  if len_q > 0 then s.warpgroups = math.min(s.warpgroups, ceil_div(rows, 64)) end
  if s.warpgroups == 1 then s.order = 0 end
  return s
end

-- How long a row takes in blocks of 1, 2 and 3 warpgroups: few fill the tensor cores less (H200, D 64 and 72, ten
-- shapes of 1 to 32 images and texts, 33 masks at two sizes).
local ROW_TIME = {1.7, 1.3, 1}

-- With how many warpgroups, `most` at most, blocks are done first where dimensions are small: an SM is done after as
-- many rounds as it has tiles; where rows see different numbers of keys and blocks take tickets, when the mean is, half
-- of the longest, but no sooner than the longest tile. Unknown sizes: `most`. Not of sequences, whose maxima are no
-- sizes.
local function fewest_rounds(v, request, most, uneven)
  local heads, best, least = v.heads_q * request.batch, most, math.huge
  if heads == 0 or request.len_q == 0 then return most end
  for w = most, 1, -1 do
    local tiles = heads * ceil_div(request.len_q, 64 * w)
    local time = (uneven and math.max(tiles / SMS / 2, 1) or ceil_div(tiles, SMS)) * w * ROW_TIME[w]
    if time < least then best, least = w, time end
  end
  return best
end

-- Whether pages hold whole boxes.
local function has_boxes(v) return v.layout_kv ~= "paged" or v.page_size % BOX_ROWS == 0 end

-- Whether one thread or warp fetches everything, where boxes are fetched.
local function has_one_loader(v) return mask.walk or attention.is_dense(v) end

-- A warp for K and one for V wait for places of their own, and none keeps the other waiting. A warp starts one copy
-- after the other; many small ones are sooner started by two. For dense tensors that gains nothing.
local function loaders(v, s)
  if s.copies == 1 then return PRODUCER_WARPS end
  if has_one_loader(v) then return 1 end
  return layout(v, s).boxes >= 8 and 4 or 2
end

-- Why K and V of `v` cannot come row by row, or nil.
local function refuse_rows(v, s)
  if v.layout_kv ~= "paged" then return "copies = 1 needs pages" end
  if s.loaders ~= PRODUCER_WARPS then return "copies = 1 needs loaders = " .. PRODUCER_WARPS end
  -- A tile is told of when the copies of the next one have been issued, for which its own place must not be wanted.
  if s.stages == 1 then return "copies = 1 needs stages of at least 2" end
  if s.tile_n > 32 * PRODUCER_WARPS then
    return ("copies = 1 needs tile_n of at most %d: a lane looks up the page of one key"):format(32 * PRODUCER_WARPS)
  end
end

-- Why they cannot come in so many boxes a tile, or nil.
local function refuse_boxes(v, s, boxes)
  if not has_boxes(v) then
    return ("copies = 0 needs pages of whole boxes, which have %d rows at least; this one has %d")
      :format(BOX_ROWS, v.page_size)
  end
  if has_one_loader(v) and s.loaders > 1 then
    return "loaders > 1 needs sequences, and a mask whose tiles of keys are one range"
  end
  if not has_one_loader(v) and s.loaders == 1 then return "loaders = 1 needs dense tensors, or a mask to walk" end
  if s.loaders > 2 and boxes == 1 then return "loaders = 4 needs tiles of keys in several pages" end
end

return {
  name = "attention_forward_sm90",
  summary = "fused forward, TMA, wgmma, warp-specialised",
  order = 100,
  min_arch = 90,
  max_arch = 90,
  phases = {"prefill", "decode"},

  supports = function(v, request)
    local reason = attention.refuse(v, {f16 = true, bf16 = true}, true)
    if reason then return false, reason end
    if request.unaligned then return false, "tensor maps need 16-byte aligned addresses and strides" end
    if v.dtype_q ~= v.dtype_kv then
      return false, "attention.dtype: q is " .. v.dtype_q .. " and kv is " .. v.dtype_kv .. "; both must be the same"
    end
    if v.dtype_out ~= "f32" and v.dtype_out ~= v.dtype_q then
      return false, "attention.dtype.out: " .. v.dtype_out .. " with q " .. v.dtype_q .. " is not supported"
    end
    reason = attention.refuse_wide(v)
    return reason == nil, reason
  end,

  axes = {
    {name = "warpgroups", values = {1, 2, 3}, meaning = "consumer warpgroups of a block; each owns 64 query rows"},
    {name = "tile_n", values = {16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256},
     meaning = "keys of a tile"},
    {name = "stages", values = {1, 2, 3, 4}, meaning = "K and V tiles in flight"},
    {name = "order", values = {0, 1},
     meaning = "1: warpgroups take turns at issuing products, or with overlap = 0 or 2 at their exponentials"},
    {name = "overlap", values = {0, 1, 2},
     meaning = "beside P V of the tile before runs 0: nothing; 1: Q K^T, then softmax; 2: Q K^T, while softmax waits"},
    {name = "rescale", values = {0, 1},
     meaning = "the output moves to new references 0: after P V; 1: while the next Q K^T runs"},
    {name = "slack", values = {0, 8},
     meaning = "how far a score may exceed the row's reference, in powers of 2, before the output is rescaled"},
    {name = "q_buffers", values = {1, 2}, meaning = "2: the next tile's Q is fetched early"},
    {name = "q_registers", values = {0, 1},
     meaning = "Q stays 0: in shared memory; 1: in the consumers' registers, and the next tile's takes its place"},
    {name = "p_shared", values = {0, 1},
     meaning = "P V takes probabilities from 0: registers; 1: shared memory, which leaves room for a larger tile_n"},
    {name = "carry", values = {0, 1}, meaning = "1: the next work's first Q K^T runs beside this one's last P V"},
    {name = "o_buffer", values = {0, 1}, meaning = "O leaves through 0: Q's place; 1: its own"},
    {name = "store", values = {0, 1}, meaning = "O leaves 0: from registers; 1: by tensor stores"},
    {name = "scheduler", values = {0, 1, 2, 3},
     meaning = "0: a block a tile; 1: a block an SM, fixed shares; 2: each takes the next; 3: that with the most keys"},
    {name = "l2_mib", values = {0, 4, 8, 16, 32},
     meaning = "0: row tiles of one head follow each other; else heads of so many MiB of K and V, longest rows first"},
    {name = "pack", values = {0, 1},
     meaning = "a tile's rows are 0: queries of one head; 1: queries times the heads that share a KV head"},
    {name = "cluster", values = {1, 2},
     meaning = "blocks with neighbouring tiles of rows; 2: each fetches half of every K and V tile, for both"},
    {name = "loaders", values = {1, 2, 4},
     meaning = "warps that fetch tiles; of sequences 2: one K and one V; 4: two of each, which share boxes"},
    {name = "copies", values = {0, 1},
     meaning = "K and V come 0: in boxes of tensor maps; 1: from pages of any size, row by row, by all four warps"},
  },

  -- Measured on an H200 against cuDNN and FlashAttention-3, 16k tokens of 512 to 16384; see docs/performance.md. Where
  -- the rows see different numbers of keys, blocks take tickets, in an order that is counted where the mask's bounds
  -- give none and the maxima are declared that its room in the workspace follows from; but of short sequences, which
  -- the declared maximum tells, fixed shares are as even, and the heads' rows stay together.
  defaults = function(v, arch, request)
    local dim = math.max(v.dim_qk, v.dim_v)
    local bounds = mask.form == "rows" and mask.high_count + mask.low_count or 0
    local dense = attention.is_dense(v) -- sequences differ in length, whatever their mask
    local uneven = not dense or not has_even_rows() and (mask.walk ~= false or bounds > 0)
    local short = dense and request.len_q > 0 and request.len_q <= 1024
    local counts = dense and mask.growth == "unknown" and mask.walk ~= "intervals" and request.len_q > 0 and
      (request.batch > 0 or not v.mask_symbols.b) -- intervals: no faster for it, and without it nothing is planned
    local function schedule(warpgroups, tile_n, changes)
      if dim <= 72 and dense then warpgroups = fewest_rounds(v, request, warpgroups, uneven) end
      local s = {warpgroups = warpgroups, tile_n = tile_n, stages = 2, order = 1, overlap = 1, rescale = 0, slack = 8,
                 q_buffers = 2, q_registers = 0, p_shared = 0, carry = 0, o_buffer = 1, store = 1, scheduler = 1,
                 l2_mib = 0, pack = 0, cluster = 1, copies = has_boxes(v) and 0 or 1}
      if uneven and not short then s.scheduler, s.l2_mib = counts and 3 or 2, 16 end
      for axis, value in pairs(changes or {}) do s[axis] = value end
      if mask.walk then s.carry = 0 end
      s.loaders = loaders(v, s)
      return fit_rows(v, request.len_q, s)
    end
    -- An element's own load takes registers and instructions, and the tensor core waits for it whatever the tile.
    if score.gathers and dim <= 128 then
      return schedule(dim <= 64 and not has_heavy_mask() and 3 or 2, 64, {stages = dim <= 64 and 3 or 2})
    end
    if dim <= 64 and uneven and short then return schedule(2, 128, {stages = 3, carry = 1}) end
    if dim <= 96 and has_heavy_mask() then
      -- A map says where tiles are; what one number a key decides of elements leaves registers for three, which take
      -- 0.86 and 0.96 of the time of two (documents, 16k and 4k tokens).
      local light = mask.walk == "map" and #mask.keys <= 1 and not mask.reads_pairs
      local warpgroups = dim <= 64 and light and 3 or 2
      return schedule(warpgroups, mask.reads_pairs and 96 or 128, {stages = dim <= 64 and 3 or 2})
    end
    if dim <= 128 and mask.reads_pairs then return schedule(2, 80, {order = 0}) end -- 64 loads in flight would spill
    if dim <= 64 and mask.width and mask.width <= NARROW then return schedule(3, 64, {stages = 3}) end
    if dim <= 72 then return schedule(3, 128, dim <= 64 and {stages = 3} or {q_buffers = 1}) end
    if dim <= 96 then return schedule(2, 128, {q_buffers = 1}) end
    if dim < 128 then return schedule(2, 128, {order = 0}) end
    if dim == 128 then return schedule(2, 128, uneven and {carry = short and 1 or 0} or {order = 0}) end
    if dim <= 160 or (v.dim_v <= 128 and dim <= 192) then return schedule(2, 128, {q_buffers = 1, o_buffer = 0}) end
    if dim <= 192 then return schedule(2, 112, {q_buffers = 1, o_buffer = 0}) end
    -- Windows, too, take tickets: of 4096 keys 0.97 and 0.73 of the time of fixed shares, for 4k and 8k tokens.
    local turns = not short and bounds > 0 and 2 or nil
    return schedule(2, 64, {q_buffers = 1, o_buffer = 0, scheduler = turns, l2_mib = turns and 16})
  end,

  -- Tiles and warpgroups first, which decide most; then in which order the rows come, and what runs beside what. Room
  -- for a larger tile or ring comes from one place for Q instead of two, and from O that leaves through Q's. With
  -- little effort no two differ only in what is within the noise as a rule.
  space = function(v, arch, request, effort)
    local list = {}
    local function add(axes) list[#list + 1] = axes end
    local dim = math.max(v.dim_qk, v.dim_v)
    local packs = v.group > 1 and not mask.dilation and {0, 1} or {0}
    local rooms = {{q_buffers = {2}, o_buffer = {1}}, {q_buffers = {1}, o_buffer = {0}}}
    local turns = mask.walk and {{2, 16}} or {{1, 0}, {2, 16}} -- scheduler and l2_mib
    local ring = not has_boxes(v) and {PRODUCER_WARPS} or has_one_loader(v) and {1} or {2, 4}
    -- Each of `warpgroups`, alone without turns; each room that Q and O may take.
    local function add_tiles(axes, warpgroups, rooms)
      for _, w in ipairs(warpgroups) do
        for _, room in ipairs(rooms) do
          local product = {warpgroups = {w}, loaders = ring}
          for _, more in ipairs{room, axes} do
            for axis, values in pairs(more) do product[axis] = values end
          end
          if w == 1 then product.order = {0} end
          add(product)
        end
      end
    end
    if v.layout_kv == "paged" then add{copies = {1}, loaders = {PRODUCER_WARPS}} end
    if effort == 0 then
      add_tiles({tile_n = dim > 192 and {48, 64, 80} or {64, 96, 128}}, {1, 2, 3}, {{}})
      if dim > 128 and dim <= 192 then add{tile_n = {64}, q_buffers = {2}, o_buffer = {1}} end
      add{order = {0, 1}, rescale = {0, 1}}
      for _, turn in ipairs(turns) do add{scheduler = {turn[1]}, l2_mib = {turn[2]}, pack = packs, carry = {0, 1}} end
    elseif effort == 1 then
      for _, turn in ipairs(turns) do
        add_tiles({tile_n = {48, 64, 80, 96, 112, 128, 144, 160, 176}, stages = {2, 3}, pack = packs, order = {0, 1},
                   scheduler = {turn[1]}, l2_mib = {turn[2]}}, {1, 2, 3}, rooms)
      end
      add{scheduler = {1, 2, 3}, l2_mib = {0, 8, 16, 32}, order = {0, 1}, carry = {0, 1}, pack = packs}
    else
      for _, turn in ipairs(turns) do
        add_tiles({tile_n = {32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192}, stages = {2, 3, 4}, pack = packs,
                   order = {0, 1}, carry = {0, 1}, q_registers = {0, 1}, scheduler = {turn[1]}, l2_mib = {turn[2]}},
                  {1, 2, 3}, rooms)
      end
      add_tiles({scheduler = {1, 2, 3}, l2_mib = {0, 4, 8, 16, 32}, carry = {0, 1}, pack = packs, order = {0, 1}},
                {1, 2, 3}, rooms)
      add_tiles({tile_n = {96, 128, 160, 192, 224}, p_shared = {1}, pack = packs, order = {0, 1}}, {2, 3}, rooms)
      add{rescale = {0, 1}, overlap = {0, 1, 2}, order = {0, 1}, cluster = {1, 2}, pack = packs}
      add_tiles({scheduler = {0}, l2_mib = {0}, q_buffers = {1}, tile_n = {64, 96, 128}, pack = packs}, {1, 2, 3}, {{}})
    end
    return list
  end,

  cost = function(v, s)
    local m = layout(v, s)
    local seen = cost.visits(m.queries, s.tile_n)
    local heads = workload.batch * (m.packed and v.heads_kv or v.heads_q)
    local items, steps = seen.rows * heads, seen.tiles * heads
    if steps == 0 then return {unit = "wgmma", memory_bytes = cost.row_bytes(v), fixed = cost.start} end
    local pairs = m.tile_m * s.tile_n
    local dims = round_up(v.dim_qk, 16) + v.dim_v
    local element, masked = cost.element(v)
    local parallel, step_cycles = overlap(v, s, seen.spread > 0.1)
    -- A warpgroup's products read its rows of Q and all of K and V; the copies write K and V.
    local tile_bytes = s.tile_n * dims * 2
    local shared = s.warpgroups * ((s.q_registers == 1 and 0 or 128 * v.dim_qk) + tile_bytes +
                                   s.p_shared * 256 * s.tile_n) + tile_bytes
    local boxes = 2 * m.boxes * m.qk.count -- each takes a warp about 85 cycles to start
    if boxes > 8 then step_cycles = step_cycles + 0.35 * 85 * boxes / s.loaders end
    if m.rows then step_cycles = step_cycles + 0.4 * pairs * dims / 2048 end -- addresses and copies of every row
    if registers(v, s) > 0.9 * m.budget.consumer then step_cycles = step_cycles + 0.03 * pairs * dims / 2048 end
    if s.warpgroups == 3 and registers(v, s) >= 160 then -- ptxas serialises the products (33 of 33 schedules)
      step_cycles = step_cycles + 0.5 * pairs * dims / 2048
    end
    if s.stages < s.warpgroups and s.p_shared == 0 then -- one waits until another has let a place go
      step_cycles = step_cycles + 0.045 * pairs * dims / 1200
    end
    -- Of a tile of rows: the first product and the last softmax run beside nothing; Q comes and O leaves.
    local alone = pairs * (dims / 2048 + 1 / 16) * (s.warpgroups == 3 and 0.67 or 1)
    local item_cycles = alone + (s.q_buffers == 1 and s.q_registers == 0 and 1500 + m.q_bytes / 32 or 0) +
      (m.alias and 1500 + m.q_bytes / 32 or 0) + (s.q_registers == 1 and 1000 or 0) + (s.scheduler ~= 1 and 600 or 0)
    if s.carry == 1 then item_cycles = item_cycles + (s.scheduler == 1 and -0.25 * alone or 600) end
    if m.packed then -- heads of one tile do not follow each other; of uneven rows that evens out
      step_cycles = step_cycles + (seen.masked < 0.05 * seen.tiles and 0.015 or dims <= 128 and -0.05 or -0.03) *
        pairs * dims / 2048
    end
    local keys = cost.key_bytes(v, workload.batch * workload.len_k * v.heads_kv)
    local blocks = math.min(items, device.sm_count)
    return {
      unit = "wgmma",
      flops = 2 * pairs * dims * steps,
      exponentials = pairs * (steps * element + seen.masked * heads * masked) * (s.slack == 0 and 1.3 or 1),
      shared_bytes = shared * steps,
      l2_bytes = cost.key_bytes(v, steps * s.tile_n) / s.cluster + cost.row_bytes(v),
      memory_bytes = (keys * passes(v, s, seen) + cost.row_bytes(v)) / 0.95,
      in_flight = blocks * (s.stages * (m.k_bytes + m.v_bytes)),
      overlap = parallel,
      overhead = steps * step_cycles + seen.masked * heads * 300 + items * item_cycles,
      waves = waves(v, s, seen, items),
      latency = seen.most * (alone + 600) + 3000,
      fixed = cost.start + 0.5e-6 + (s.scheduler >= 2 and cost.zeroing or 0) +
        (s.scheduler == 3 and cost.planning or 0),
    }
  end,

  -- For dimensions that leave less room, in order of preference.
  fallbacks = function(v)
    local list = {}
    for _, try in ipairs{{2, 96}, {2, 80}, {2, 64}, {2, 48}, {2, 32}, {1, 64}, {1, 32}} do
      for o_buffer = 0, 1 do
        local s = {warpgroups = try[1], tile_n = try[2], stages = 2, order = 1, overlap = 1, rescale = 0, slack = 8,
                   q_buffers = 1, q_registers = 0, p_shared = 0, carry = 0, o_buffer = o_buffer, store = 1,
                   scheduler = 1, l2_mib = 0, pack = 0, cluster = 1, copies = has_boxes(v) and 0 or 1}
        s.loaders = loaders(v, s)
        list[#list + 1] = s
      end
    end
    return list
  end,

  check = function(v, s)
    local m = layout(v, s)
    local need, have = registers(v, s), m.budget.consumer
    if need > have then
      return false, ("registers: a consumer needs about %d, %d warpgroups leave %d each; lower tile_n%s or warpgroups")
        :format(need, s.warpgroups, have, s.q_registers == 1 and ", q_registers" or "")
    end
    local columns, launch = math.max(s.tile_n, v.dim_v), m.budget.launch
    if columns // 2 + PRODUCT_REGISTERS > launch then
      return false, ("registers: a product of %d columns needs %d at launch, where a thread has %d; lower warpgroups%s")
        :format(columns, columns // 2 + PRODUCT_REGISTERS, launch, s.tile_n > v.dim_v and " or tile_n" or "")
    end
    if s.store == 0 and s.o_buffer == 1 and v.dtype_out ~= "f32" then return false, "o_buffer = 1 needs store = 1" end
    if s.carry == 1 and m.alias then
      return false, "carry = 1 needs O not in Q's place: o_buffer = 1 or store = 0"
    end
    for _, axis in ipairs{"carry", "rescale"} do -- work for the time beside a product
      if s.overlap == 0 and s[axis] == 1 then return false, axis .. " = 1 needs overlap = 1 or 2" end
    end
    if s.carry == 1 and s.q_buffers == 1 and s.q_registers == 0 then
      return false, "carry = 1 needs q_buffers = 2 or q_registers = 1"
    end
    if mask.walk and s.cluster > 1 then return false, "cluster = 2 needs a mask whose tiles of keys are one range" end
    if s.cluster > 1 and not attention.is_dense(v) then return false, "cluster = 2 needs dense tensors" end
    if m.packed and mask.dilation then
      return false, "pack = 1: a tensor map has five dimensions; residues and the heads of a group want six"
    end
    if m.queries == 0 then
      return false, ("pack = 1: the %d query heads of a KV head do not fit the %d rows of a tile; raise warpgroups")
        :format(v.group, m.tile_m)
    end
    if m.alias and m.qk.bytes ~= m.v.bytes then
      return false, ("o_buffer = 0: O's panels of %d bytes do not fit in place of Q's of %d")
        :format(m.v.bytes, m.qk.bytes)
    end
    if s.scheduler == 3 and (s.l2_mib == 0 or s.cluster > 1) then
      return false, "scheduler = 3 needs " .. (s.l2_mib == 0 and "l2_mib of at least 4" or "cluster = 1")
    end
    if s.scheduler == 3 and not attention.is_dense(v) then return false, "scheduler = 3 needs dense tensors" end
    local reason = m.rows and refuse_rows(v, s) or not m.rows and refuse_boxes(v, s, m.boxes)
    if reason then return false, reason end
    if s.scheduler == 0 and s.q_buffers == 2 then return false, "q_buffers = 2 needs a persistent scheduler" end
    return true
  end,

  resources = function(v, s)
    local m = layout(v, s)
    return {shared_bytes = m.total, threads = 128 * (s.warpgroups + 1), registers = m.budget.launch, blocks = 1}
  end,

  describe = function(v, s)
    local m = layout(v, s)
    local b = m.budget
    local function rows(tile, dim)
      return tile .. " rows of " .. dim.count .. " x " .. dim.bytes .. " bytes, swizzled"
    end
    local lines = {"shared memory, bytes:"}
    local function region(name, from, to, what)
      if to > from then lines[#lines + 1] = ("  %-10s %6d .. %6d   %s"):format(name, from, to, what) end
    end
    region(m.alias and "Q, later O" or "Q", 0, m.k_offset, s.q_buffers .. " x " .. rows(m.tile_m, m.qk))
    region("K", m.k_offset, m.v_offset, s.stages .. " x " .. rows(s.tile_n, m.qk))
    region("V", m.v_offset, m.o_offset, s.stages .. " x " .. rows(s.tile_n, m.v))
    region("O", m.o_offset, m.p_offset, rows(m.tile_m, m.v))
    region("P", m.p_offset, m.barriers, s.p_shared == 1 and rows(m.tile_m, m.p) or "")
    region("mbarriers", m.barriers, m.ticket_offset, "8 bytes each")
    region("tickets", m.ticket_offset, m.ticket_offset + 4 * m.tickets,
           "work numbers on their way from the producer to the consumers")
    region("told", m.told_offset, m.told_offset + 4 * m.told,
           "what the producer found: a word on every tile of K, and of Q")
    region("mask", m.parts_offset, m.total, s.stages .. " x " .. m.parts .. " numbers for every key of a tile")
    local scores = m.tile_m * s.tile_n
    local producer = s.loaders > 1 and s.loaders .. " producer warps" or
      "one producer " .. (attention.is_dense(v) and "thread" or "warp")
    lines[#lines + 1] = "roles: " .. producer .. " (" .. b.producer .. " registers), " .. s.warpgroups ..
      " consumer warpgroups of 64 rows (" .. b.consumer .. ")"
    lines[#lines + 1] = "a tile: " .. 2 * scores * (v.dim_qk + v.dim_v) .. " FLOPs, " .. scores .. " exponentials"
    if m.rows then
      lines[#lines + 1] = ("a tile of K or V: %d rows a producer warp"):format(s.tile_n // PRODUCER_WARPS)
    end
    if m.boxes > 1 then lines[#lines + 1] = ("a tile of K or V: %d boxes of %d keys"):format(m.boxes, m.box_rows) end
    if m.packed then
      lines[#lines + 1] = ("rows of a tile: %d queries of %d heads, %d idle"):format(m.queries, v.group, m.idle_rows)
    end
    return lines
  end,

  kernel = function(v, s, arch, request)
    local m = layout(v, s)
    local params = {}
    local function add_map(tensor, dim, tokens, heads)
      local layout = (tensor == "q" or tensor == "o") and v.layout_q or v.layout_kv
      local clipped = layout ~= "dense" and "clipped_" or ""
      local function add(view, box)
        params[#params + 1] = {name = tensor .. "_" .. view, type = "tensor_map",
                               source = ("%s.%s%s.%s.%d"):format(tensor, clipped, view, box, dim.swizzle)}
      end
      local box = ("%d.%d"):format(dim.width, tokens)
      if mask.dilation then
        add("long_map", box)
        add("short_map", box)
      elseif heads then
        local source = ("%s.%spacked_map.%d.%d.%d.%d"):format(tensor, clipped, dim.width, heads, tokens, dim.swizzle)
        params[#params + 1] = {name = tensor .. "_map", type = "tensor_map", source = source}
      else
        add("map", box)
      end
    end
    add_map("q", m.qk, m.queries, m.packed and v.group)
    if not m.rows then
      add_map("k", m.qk, m.box_rows)
      add_map("v", m.v, m.box_rows)
    end
    if m.store then add_map("o", m.v, 16 // m.o_heads, m.packed and m.o_heads) end
    for _, field in ipairs(attention.params(v, false, {q = true, k = not m.rows, v = not m.rows, o = m.store})) do
      params[#params + 1] = field
    end
    local regions = {}
    if s.scheduler >= 2 then
      regions = {{name = "tickets", bytes = 4, zeroed = 2, count = {}}}
      params[#params + 1] = {name = "tickets", type = "pointer", ctype = "unsigned *", source = "workspace.tickets"}
    end
    local kernel = {
      launches = {{entry = "qkv_kernel", block = 128 * (s.warpgroups + 1), shared_bytes = m.total,
                   grid = attention.row_grid(m.queries * s.cluster,
                                             {{m.packed and "heads_kv" or "heads_q"}, {"batch"}}),
                   blocks_per_sm = s.scheduler > 0 and 1 or 0, cluster = s.cluster}},
      params = params,
      regions = regions,
      aligned16 = true,
      layout = m,
    }
    attention.add_dilation(kernel)
    attention.add_map(kernel, m.queries, s.tile_n, m.packed)
    if s.scheduler == 3 then attention.add_order(kernel, m.queries, m.packed) end
    return kernel
  end,
}
