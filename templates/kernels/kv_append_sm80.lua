-- kv_append_sm80: new keys and values into the cache, with RMS norm and rotary positions; queries likewise. Moves
-- bytes, 16 at a time. From sm_80 on.
--
-- A row is one head of one token. The lanes of a warp work in groups, a group on a row: a lane holds two chunks of it,
-- which turn together. So a warp has several heads of one token at a time, whose place and angles it finds once. Speed
-- is bytes in flight: a lane asks for all that it needs before it waits for any, keeps it as it came until its row's
-- turn, and leaves registers to many other warps.

local attention = library("attention")
local cost = library("cost")

local REGISTERS_PER_SM = 65536
local ctype = {f16 = "unsigned short", bf16 = "unsigned short", f32 = "float", e4m3 = "unsigned char"}
local bytes = {f16 = 2, bf16 = 2, f32 = 4, e4m3 = 1}

local function power_of_two(n)
  local p = 1
  while p < n do p = 2 * p end
  return p
end

-- The rows of one kind: how many elements a chunk has, how many chunks turn and how many do not, in units of two.
local function shape(dim, turned, width)
  local m = {dim = dim, turned = turned}
  m.turned_units = ceil_div(turned // width, 2)
  m.rest_chunks = (dim - turned) // width
  m.rest_units = ceil_div(m.rest_chunks, 2)
  m.units = m.turned_units + m.rest_units
  m.lanes = math.min(power_of_two(m.units), 32)
  m.groups = 32 // m.lanes
  m.steps = ceil_div(m.units, m.lanes)
  return m
end

-- Elements of a chunk: at most 16 bytes, and no chunk holds both elements that turn and such that do not.
local function chunk_width(v)
  local width = 16 // math.max(bytes[v.dtype_q], bytes[v.dtype_kv])
  width = math.min(width, 8)
  if not v.rope then return width end
  local unit = v.rope.interleaved and v.rope.dims or v.rope.dims // 2
  while unit % width > 0 do width = width // 2 end
  return width
end

-- The rows of a token by what happens to them. A warp takes a share of one kind at a time, so that all of its lanes do
-- the same.
local function layout(v, s)
  local m = {width = chunk_width(v), shares = 0}
  m.qk = shape(v.dim_qk, v.rope and v.rope.dims or 0, m.width)
  m.v = shape(v.dim_v, 0, m.width)
  local q, kv = ctype[v.dtype_q], ctype[v.dtype_kv]
  m.kinds = {
    {name = "queries", from = "q", to = "q_out", norm = "q_norm", ctype = q, cached = false,
     rows = v.heads_q, heads = "HEADS_Q", count = "SHARES_Q", shape = m.qk, chunks = "qk", turns = true},
    {name = "keys", from = "new_k", to = "k", norm = "k_norm", ctype = kv, cached = true, place = "key",
     rows = v.heads_kv, heads = "HEADS_KV", count = "SHARES_K", shape = m.qk, chunks = "qk", turns = true},
    {name = "values", from = "new_v", to = "v", ctype = kv, cached = true, place = "value",
     rows = v.heads_kv, heads = "HEADS_KV", count = "SHARES_V", shape = m.v, chunks = "v", turns = false},
  }
  if not v.append.query then table.remove(m.kinds, 1) end
  for _, kind in ipairs(m.kinds) do
    local rows = kind.shape.groups * s.rows -- of a share
    kind.shares, kind.whole = ceil_div(kind.rows, rows), kind.rows % rows == 0
    m.shares = m.shares + kind.shares
  end
  return m
end

-- Blocks of an SM, for the compiler.
local function blocks_of(s)
  return math.max(s.resident // (s.warps * s.tokens), 1)
end

return {
  name = "kv_append_sm80",
  summary = "new keys and values into the cache; norm, rotary positions, storage format",
  order = 2000,
  min_arch = 80,
  phases = {"append"},

  supports = function(v)
    if not v.append then return false, "append: the spec has no such section" end
    if v.dtype_q ~= "f16" and v.dtype_q ~= "bf16" and v.dtype_q ~= "f32" then
      return false, "attention.dtype.q: " .. v.dtype_q .. " is not supported"
    end
    if not ctype[v.dtype_kv] then return false, "attention.dtype.kv: " .. v.dtype_kv .. " is not supported" end
    return true
  end,

  axes = {
    {name = "rows", values = {1, 2, 4, 8}, meaning = "heads that a lane has in flight; they share its angles"},
    {name = "warps", values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16},
     meaning = "warps that share the heads of a token"},
    {name = "tokens", values = {1, 2, 4, 8, 16}, meaning = "tokens of a block"},
    {name = "resident", values = {8, 12, 16, 20, 24, 28, 32, 40, 48, 64},
     meaning = "warps that an SM holds, as far as blocks make up so many; more leave a lane fewer registers"},
  },

  -- A warp a share, up to 10 of a token; more shares in rounds that are as even as can be. Blocks of three warps and
  -- more. 24 warps an SM leave a lane 80 registers, for what is loaded of two rows and what is done to one. Each of the
  -- complications takes 16 more; the norm does so before sm_90. Measured on an H200; see docs/performance.md.
  defaults = function(v, arch)
    local one = layout(v, {rows = 1})
    local rows = math.max(one.qk.steps, one.v.steps) > 1 and 1 or 2 -- long rows fill the registers
    local shares = layout(v, {rows = rows}).shares
    local warps = ceil_div(shares, ceil_div(shares, 10))
    local tokens = warps > 2 and 1 or warps > 1 and 2 or 4
    local resident = 24
    local function complication(is) resident = resident - (is and 4 or 0) end
    complication(v.append.norm and arch.number < 90)
    complication(v.rope and v.rope.dims < v.dim_qk)
    complication(one.qk.units < one.qk.lanes)
    if v.dtype_q == "f32" or rows == 1 then resident = 8 end
    return {rows = rows, warps = warps, tokens = tokens, resident = resident}
  end,

  space = function(v, arch, request, effort)
    local function trips(s) return ceil_div(layout(v, {rows = s}).shares, 1) end
    local warps, list = {}, {}
    for _, rounds in ipairs(effort == 0 and {1, 2} or {1, 2, 3, 4}) do -- even rounds over the shares of a token
      for _, rows in ipairs{1, 2, 4} do
        local count = ceil_div(trips(rows), rounds)
        if count <= 10 or count == 12 or count == 16 then warps[count] = true end
      end
    end
    for count in pairs(warps) do list[#list + 1] = count end
    table.sort(list)
    if #list == 0 then list[1] = 8 end
    if effort == 0 then return {{rows = {1, 2}, resident = {20, 24, 32}}, {warps = list}} end
    if effort == 1 then
      return {{rows = {1, 2, 4}, warps = list, tokens = {1, 2, 4}, resident = {16, 24, 32, 48}}}
    end
    return {{rows = {1, 2, 4, 8}, warps = list, tokens = {1, 2, 4, 8, 16},
             resident = {8, 12, 16, 20, 24, 28, 32, 40, 48, 64}}}
  end,

  cost = function(v, s)
    local m = layout(v, s)
    local tokens = workload.batch * workload.len_q
    local q, kv = bytes[v.dtype_q], bytes[v.dtype_kv]
    local queries = v.append.query and v.heads_q * v.dim_qk or 0
    local moved = tokens * (2 * queries * q + v.heads_kv * (v.dim_qk + v.dim_v) * (q + kv))
    local held = 2 * m.width * math.max(m.qk.steps, m.v.steps)
    local need = held * q // 4 * s.rows + held * (1 + (v.rope and 1 or 0) + (v.append.norm and 1 or 0)) + 32
    local resident = s.warps * s.tokens * blocks_of(s) -- warps of an SM
    local spills = math.max(need - REGISTERS_PER_SM // (32 * resident), 0)
    local rounds = ceil_div(m.shares, s.warps) -- of a token's warps
    local blocks = math.max(cost.ceil(tokens / s.tokens), 1)
    local idle = rounds * s.warps / m.shares -- warps without a share in the last round
    local at_work = math.min(blocks * s.warps * s.tokens, device.sm_count * resident) / idle
    return {
      unit = "fma", flops = moved * 6 * (1 + 0.05 * spills), memory_bytes = moved * (1 + 0.02 * spills),
      in_flight = at_work * 32 * held * q * s.rows, waves = cost.rounds(blocks) * idle,
      latency = (900 + 250 * s.rows) * rounds, fixed = 1.0e-6,
    }
  end,

  check = function(v, s)
    if s.warps > layout(v, s).shares then return false, "warps: a token has no work for so many" end
    return true
  end,

  resources = function(v, s)
    local m = layout(v, s)
    local held = 2 * m.width * math.max(m.qk.steps, m.v.steps) -- elements of a row; as many sines and cosines, weights
    local loaded = held * bytes[v.dtype_q] // 4
    local registers = loaded * s.rows + held * (1 + (v.rope and 1 or 0) + (v.append.norm and 1 or 0)) + 32
    return {shared_bytes = 0, threads = 32 * s.warps * s.tokens,
            registers = math.min(registers, 255, 65536 // (32 * s.warps * s.tokens * blocks_of(s)))}
  end,

  describe = function(v, s)
    local m = layout(v, s)
    return {
      ("a row of %d elements: %d lanes, %d chunks of %d elements each; of %d: %d lanes")
        :format(m.qk.dim, m.qk.lanes, 2 * m.qk.steps, m.width, m.v.dim, m.v.lanes),
      ("a token: %s%d of k, as many of v, in %d shares of a warp")
        :format(v.append.query and v.heads_q .. " rows of q, " or "", v.heads_kv, m.shares),
    }
  end,

  kernel = function(v, s, arch, request)
    local m, params = layout(v, s), {}
    m.blocks = request.unaligned and 1 or blocks_of(s) -- single elements take a register each
    m.ctype = {q = ctype[v.dtype_q], kv = ctype[v.dtype_kv]}
    m.bytes = {q = bytes[v.dtype_q], kv = bytes[v.dtype_kv]}
    local function add(name, type, ctype, source) -- of qkv_append_args, or a size
      params[#params + 1] = {name = name, type = type, ctype = ctype, source = source or "append." .. name}
    end
    local function add_array(name) add(name, "pointer", "const int *") end
    local outer = v.layout_kv == "paged" and "page" or v.layout_kv ~= "ragged" and "batch" or nil
    local tensors = {
      {"new_k", "const " .. m.ctype.q .. " *"}, {"new_v", "const " .. m.ctype.q .. " *"},
      {"k", m.ctype.kv .. " *", outer}, {"v", m.ctype.kv .. " *", outer},
    }
    if v.append.query then
      table.insert(tensors, 1, {"q", "const " .. m.ctype.q .. " *"})
      table.insert(tensors, 2, {"q_out", m.ctype.q .. " *"})
    end
    for _, tensor in ipairs(tensors) do add(tensor[1], "pointer", tensor[2]) end
    for _, tensor in ipairs(tensors) do
      local axes = {"token", "head"}
      if tensor[3] then table.insert(axes, 1, tensor[3]) end
      if request.unaligned then axes[#axes + 1] = "dim" end
      for _, axis in ipairs(axes) do
        add(tensor[1] .. "_stride_" .. axis, "i64", "long long", "append." .. tensor[1] .. ".stride." .. axis)
      end
    end
    add("tokens", "i32", "int", "tokens_q")
    if v.rope or v.append.slots == "positions" then
      if v.append.slots ~= "lengths" then
        add_array("positions")
        add("positions_words", "i32", "int", "append.positions.words")
      end
    end
    if v.rope and v.rope.table then
      add("cos_sin", "pointer", "const float *")
      add("cos_sin_stride_position", "i64", "long long", "append.cos_sin.stride.position")
      add("cos_sin_positions", "i32", "int", "append.cos_sin.extent.position")
    elseif v.rope then
      add("frequencies", "pointer", "const float *")
      add("rope_factor", "f32", "float")
    end
    if v.append.norm then
      if v.append.query then add("q_norm", "pointer", "const float *") end
      add("k_norm", "pointer", "const float *")
      add("epsilon", "f32", "float")
    end
    if v.kv_scale == "per_head" then
      for _, name in ipairs{"k_scale", "v_scale"} do
        add(name, "pointer", "const float *")
        add(name .. "_stride_head", "i64", "long long", "append." .. name .. ".stride.head")
      end
    end
    if v.append.slots == "mapping" then
      add_array("slots")
      add("slots_words", "i32", "int", "append.slots.words")
      add("slot_count", "i64", "long long")
      if v.layout_kv == "padded" or v.layout_kv == "dense" then
        add("capacity", "i64", "long long", "append.k.extent.token")
      end
    else
      for _, size in ipairs{"batch", "len_q", "len_k"} do add(size, "i32", "int", size) end
      attention.add_sequences(v, function(name, type, ctype, source)
        add(name, type, ctype, source == "tokens_q" and source or "append." .. source)
      end)
    end
    return {
      launches = {{entry = "qkv_kernel", block = 32 * s.warps * s.tokens, shared_bytes = 0,
                   grid = {{"tokens_q", s.tokens}}, early = attention.early(arch)}},
      params = params,
      regions = {},
      aligned16 = not request.unaligned,
      declared = false,
      layout = m,
    }
  end,
}
