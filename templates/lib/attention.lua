-- attention.lua: what every softmax-attention family shares: parameter lists, number formats, scalar constants.

local attention = {}

-- C type of one stored element.
local element_ctype = {f16 = "unsigned short", bf16 = "unsigned short", f32 = "float", e4m3 = "unsigned char",
                       e5m2 = "unsigned char"}
local output_formats = {f16 = true, bf16 = true, f32 = true}

-- CUDA text that reads one element `text` of `dtype` as float, and that turns the float `text` into one.
function attention.to_float(dtype, text)
  if dtype == "f32" then return text end
  return dtype .. "_to_f32(" .. text .. ")"
end
function attention.from_float(dtype, text)
  if dtype == "f32" then return text end
  return "f32_to_" .. dtype .. "(" .. text .. ")"
end

-- Factor from a score in natural units to the exponent of 2.
attention.log2e = 1.4426950408889634
attention.ln2 = 0.6931471805599453

-- Of a launch: 1 where the GPU can set a kernel up beside the one before it. The kernel begins with "parts/early.cu".
function attention.early(arch) return arch.capability_major >= 9 and 1 or 0 end

-- Members of the parameter struct for q k v o, the outputs, the sink and the scales of K and V, in the order every
-- family uses.
-- with_dim: also the stride of the head dimension (kernels that accept any innermost stride).
-- mapped: the tensors, by name, that a kernel reaches by tensor maps alone; they are left out.
function attention.params(v, with_dim, mapped)
  local list = {}
  local function add(name, type, ctype, source)
    list[#list + 1] = {name = name, type = type, ctype = ctype, source = source}
  end
  local tensors = {
    {"q", "const " .. element_ctype[v.dtype_q] .. " *"}, {"k", "const " .. element_ctype[v.dtype_kv] .. " *"},
    {"v", "const " .. element_ctype[v.dtype_kv] .. " *"}, {"o", element_ctype[v.dtype_out] .. " *"},
  }
  for n = #tensors, 1, -1 do
    if mapped and mapped[tensors[n][1]] then table.remove(tensors, n) end
  end
  for _, tensor in ipairs(tensors) do add(tensor[1], "pointer", tensor[2], tensor[1]) end
  for _, lse in ipairs{"lse", "lse_with_sink"} do
    if v.outputs[lse] then add(lse, "pointer", "float *", lse) end
  end
  if v.sink == "per_head" then add("sink", "pointer", "const float *", "sink") end
  local scales = v.kv_scale == "per_head" and {"k_scale", "v_scale"} or {}
  for _, scale in ipairs(scales) do add(scale, "pointer", "const float *", scale) end
  local function add_stride(tensor, axis)
    add(tensor .. "_stride_" .. axis, "i64", "long long", tensor .. ".stride." .. axis)
  end
  local outer_q = v.layout_q == "dense" and "batch" or nil -- the axis beside token and head
  local outer_kv = v.layout_kv == "paged" and "page" or v.layout_kv ~= "ragged" and "batch" or nil
  local outer = {q = outer_q, o = outer_q, k = outer_kv, v = outer_kv}
  for _, tensor in ipairs(tensors) do
    if outer[tensor[1]] then add_stride(tensor[1], outer[tensor[1]]) end
    for _, axis in ipairs{"token", "head"} do add_stride(tensor[1], axis) end
    if with_dim then add_stride(tensor[1], "dim") end
  end
  for _, lse in ipairs{"lse", "lse_with_sink"} do
    if v.outputs[lse] then
      if outer_q then add_stride(lse, outer_q) end
      for _, axis in ipairs{"head", "token"} do add_stride(lse, axis) end
    end
  end
  if v.sink == "per_head" then add_stride("sink", "head") end
  for _, scale in ipairs(scales) do add_stride(scale, "head") end
  for _, size in ipairs{"batch", "len_q", "len_k"} do add(size, "i32", "int", size) end
  attention.add_sequences(v, add)
  return list
end

-- Adds what parts/sequence_view.cuh reads: arrays of lengths, page tables, and what they are clamped to.
function attention.add_sequences(v, add)
  local function add_array(name) add(name, "pointer", "const int *", name) end
  if v.layout_q == "ragged" then
    add_array("cu_seqlens_q")
    add("tokens_q", "i32", "int", "tokens_q")
  end
  if v.layout_kv == "ragged" then
    add_array("cu_seqlens_k")
    add("tokens_k", "i32", "int", "k.extent.token")
  elseif v.layout_kv ~= "dense" then
    add_array("seqlens_k")
  end
  if v.layout_kv ~= "paged" then return end
  add_array("page_table")
  if v.page_table == "rows" then
    add("page_table_stride_batch", "i64", "long long", "page_table.stride.batch")
  else
    add_array("page_indptr")
    add("page_entries", "i32", "int", "page_table.extent.entry")
  end
end

-- Whether all sequences have the lengths of the tensors.
function attention.is_dense(v) return v.layout_q == "dense" and v.layout_kv == "dense" end

-- The first reason why a softmax family cannot do `v`, or nil. What is refused is named by its spec key.
-- dtypes: those of q and kv that it takes, by name; sequences: whether it takes all layouts, not only the dense ones.
-- more: what else it takes: {kv = further dtypes of kv, kv_scale = true}; nil: nothing.
function attention.refuse(v, dtypes, sequences, more)
  more = more or {kv = {}, kv_scale = false}
  if v.layout_q ~= "dense" and not sequences then
    return "layout.q: " .. v.layout_q .. " is not supported, only dense"
  end
  if v.layout_kv ~= "dense" and not sequences then
    return "layout.kv: " .. v.layout_kv .. " is not supported, only dense"
  end
  for _, role in ipairs{"q", "kv"} do
    local dtype = v["dtype_" .. role]
    if not (dtypes[dtype] or (role == "kv" and more.kv[dtype])) then
      return "attention.dtype." .. role .. ": " .. dtype .. " is not supported"
    end
  end
  if v.kv_scale ~= "none" and not more.kv_scale then
    return "attention.kv_scale: " .. v.kv_scale .. " is not supported"
  end
  if not output_formats[v.dtype_out] then return "attention.dtype.out: " .. v.dtype_out .. " is not supported" end
  -- Constants that kernels derive from these must be f32 too.
  local largest = 2.0 ^ 127
  if math.abs(v.scale) * attention.log2e > largest then
    return ("attention.scale: %g is too large, scale * log2(e) must stay within 2^127"):format(v.scale)
  end
  if v.softcap > 0 and math.max(math.abs(v.scale), 1) / v.softcap > largest then
    return ("attention.softcap: %g is too small, 1 / softcap and scale / softcap must stay within 2^127")
      :format(v.softcap)
  end
  return nil
end

-- Why a family whose rows of the output stay in registers cannot do the dimensions of `v`, or nil.
function attention.refuse_wide(v)
  for _, dim in ipairs{"qk", "v"} do
    local size = v["dim_" .. dim]
    if size > 256 then return ("attention.dim.%s: %d is over the limit of 256"):format(dim, size) end
  end
  return nil
end

-- Whether some tiles may be known to need no mask.
function attention.free_tiles(mask)
  return mask.walk ~= false or mask.form == "all" or (mask.form == "rows" and mask.exact)
end

-- How the parts name the queries and keys that a tile's are numbered among: those of a head, of a sequence with lengths
-- of its own (parts/sequence_view.cuh), or of one residue when the mask keeps residues apart (parts/residue_view.cu).
-- parameter and argument stand where the place is passed on, `also` and also_argument where only a view is; row and key
-- turn the text of a number into one of a row and of a token, stride that of a stride of tokens into one of their
-- numbers. len_q, len_k and position are of what tiles count, whole_q, whole_k and whole_position of what expressions
-- speak of.
function attention.view(mask, v)
  local function same(text) return text end
  local view = {
    parameter = "int position", argument = "position", position = "position", also = "", also_argument = "",
    len_q = "p.len_q", len_k = "p.len_k", whole_q = "p.len_q", whole_k = "p.len_k", whole_position = "position",
    symbols = {}, row = same, key = same, stride = same,
  }
  local function set(name, fields)
    fields.parameter, fields.argument, fields.position = "const " .. name .. " &view", "view", "view.position"
    fields.also, fields.also_argument = ", const " .. name .. " &view", ", view"
    fields.len_q, fields.len_k = "view.len_q", "view.len_k"
    for key, value in pairs(fields) do view[key] = value end
    return view
  end
  if not attention.is_dense(v) then
    return set("sequence_view", {sequences = true, whole_q = "view.len_q", whole_k = "view.len_k",
                                 whole_position = "view.position"})
  end
  if not mask.dilation then return view end
  local dilation = tonumber(mask.dilation) and "DILATION" or "p.token_step"
  local function token(first)
    return function(text) return "(int)(view." .. first .. " + (unsigned)" .. dilation .. " * (" .. text .. "))" end
  end
  return set("residue_view", {
    dilation = dilation,
    symbols = {residue = "view.residue", dilation = dilation, all_q = "p.len_q", all_k = "p.len_k"},
    whole_position = v.align == "bottom_right" and "p.len_k - p.len_q" or "0",
    row = token("first_row"), key = token("residue"),
    stride = function(text) return "(" .. text .. " * " .. dilation .. ")" end,
  })
end

-- The texts of an expression's symbols: `names`, and those that only a view has.
function attention.names(view, names)
  for name, text in pairs(view.symbols) do names[name] = text end
  return names
end

-- The grid over tiles of `rows` queries of a head, or of each of its residues; and `others`.
function attention.row_grid(rows, others)
  local grid = mask.dilation and {{"residue_rows", rows}, {"residues"}} or {{"len_q", rows}}
  for _, factor in ipairs(others) do grid[#grid + 1] = factor end
  return grid
end

-- What a kernel whose tiles hold tokens of one residue adds to its parameters.
function attention.add_dilation(kernel)
  if not mask.dilation then return end
  kernel.dilation = mask.dilation
  if not tonumber(mask.dilation) then
    table.insert(kernel.params, {name = "token_step", type = "i32", ctype = "int", source = "dilation"})
  end
end

-- The heads and batch entries that the mask tells apart, as factors of a rule: what is planned once for all others is
-- not wide in them.
local function mask_classes(packed)
  local symbols, factors = variant.mask_symbols, {}
  if symbols.h then factors[1] = {packed and "heads_kv" or "heads_q"}
  elseif symbols.hk then factors[1] = {"heads_kv"} end
  if symbols.b then factors[#factors + 1] = {"batch"} end
  return factors
end

-- What a kernel that walks through a map of tiles adds to its own: the region with two words for every 32 tiles of keys
-- and tile of `queries` rows, the launch that fills it, and the parameter.
function attention.add_map(kernel, queries, tile_n, packed)
  if mask.walk ~= "map" then return end
  local count = {{"len_q", queries}, {"len_k", 32 * tile_n}}
  for _, factor in ipairs(mask_classes(packed)) do count[#count + 1] = factor end
  table.insert(kernel.regions, {name = "map", bytes = 8, zeroed = 0, count = count})
  table.insert(kernel.params, {name = "map", type = "pointer", ctype = "unsigned *", source = "workspace.map"})
  table.insert(kernel.launches, 1, {entry = "qkv_plan_map", block = 1024, shared_bytes = 32, grid = count,
                                    blocks_per_sm = 0, plans = 1})
end

-- What a kernel that hands out tiles of `queries` rows in a planned order adds (parts/plan_order_sm90.cu): what each
-- visits, their order, and how many heads share L2; two launches, after that of a map.
function attention.add_order(kernel, queries, packed)
  local classes = mask_classes(packed)
  local count = mask.dilation and {{"len_q"}} or {{"len_q", queries}} -- residues have no more tiles than queries
  for _, factor in ipairs(classes) do count[#count + 1] = factor end
  local function add(name, bytes, ctype, count)
    table.insert(kernel.regions, {name = name, bytes = bytes, zeroed = 0, count = count})
    table.insert(kernel.params, {name = name, type = "pointer", ctype = ctype, source = "workspace." .. name})
  end
  add("tile_visits", 12, "int *", count)
  add("tile_order", 4, "int *", count)
  add("heads_together", 4, "unsigned *", {})
  for _, entry in ipairs{"qkv_plan_counts", "qkv_plan_order"} do
    table.insert(kernel.launches, #kernel.launches, {entry = entry, block = 32, shared_bytes = 0,
                                                     grid = attention.row_grid(queries, classes), blocks_per_sm = 0,
                                                     plans = 1})
  end
end

return attention
