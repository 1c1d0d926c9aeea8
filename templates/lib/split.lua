-- split.lua: what families share whose blocks split the keys among them (parts/split_work.cu, parts/split_merge.cu).
--
-- The axis `merge` says who adds up what blocks found of the same rows. Last block: each leaves its part in global
-- memory and counts. Kernel: each leaves its part, a second launch adds up. Cluster: the keys of all works are cut into
-- as many shares as a cluster has blocks, which read each other's parts in shared memory.

local attention = library("attention")
local split = {}

-- Whether keys and values take one byte an element.
function split.is_bytes(v) return v.dtype_kv == "e4m3" or v.dtype_kv == "e5m2" end

-- The rows of a call that share keys; and whether an op's calls have one such row and never more.
function split.row_count(v, request) return v.group * math.max(request.len_q, 1) end
function split.is_single_row(v, request) return v.group * request.len_q == 1 and not request.dedicated end

-- The first reason, beyond those of attention.refuse, why such a family cannot do `v`, or nil.
function split.refuse(v, request)
  if request.unaligned then return "copies of 16 bytes need 16-byte aligned addresses and strides" end
  for _, dim in ipairs{"qk", "v"} do
    local size = v["dim_" .. dim]
    if split.is_bytes(v) and size % 16 > 0 then
      return ("attention.dim.%s: %d is no multiple of 16, as %s needs"):format(dim, size, v.dtype_kv)
    end
  end
  if mask.dilation then return "attention.mask: rows see keys of their own residue alone" end
  return nil
end

-- The part that says which slices the rows of a tile see, by number, and CUDA text for the place of slice `number` of
-- the text `work` among the sequence's. Where only elements or a map say what is hidden, such as ancestors in a tree of
-- drafts, all slices within the mask's bounds are read and their elements asked: what decode waits for is the memory,
-- and a map would be built by a launch of its own.
function split.ranges() return mask.walk == "intervals" and "parts/tile_ranges.cu" or "parts/tile_range.cu" end
function split.place(work, number)
  return mask.walk == "intervals" and ("tile_place(%s.tiles, %s)"):format(work, number) or number
end

-- Whether some slices may be known to need no mask.
function split.free_slices() return not mask.walk and attention.free_tiles(mask) end

local MOST_SLICE = 128 -- keys of a slice at most, of all families
local LAST_BLOCK, KERNEL = 0, 1 -- values of `merge`; those beyond are sizes of clusters

local axes = {
  {name = "slack", values = {0, 8},
   meaning = "how far a score may exceed the row's reference, in powers of 2, before the output is rescaled"},
  {name = "blocks", values = {1, 2, 3, 4}, meaning = "blocks of an SM"},
  {name = "split", values = {0, 256, 512, 1024, 2048, 4096, 8192},
   meaning = "a row's keys are split 0: into equal shares of all blocks; else: every so many, whatever the batch"},
  {name = "together", values = {1, 2, 4}, -- no more than the fewest SMs of any device
   meaning = "KV heads whose blocks walk through the keys side by side"},
}

-- A family's own axes, and those that all of them have; clusters: whether its blocks may be clusters.
function split.axes(own, clusters)
  local list = {}
  for _, axis in ipairs(own) do list[#list + 1] = axis end
  for _, axis in ipairs(axes) do list[#list + 1] = axis end
  local meaning = "who adds up blocks' parts of the same rows: 0: the last of them; 1: a kernel behind"
  if clusters then meaning = meaning .. "; else: clusters of so many blocks" end
  list[#list + 1] = {name = "merge", values = clusters and {0, 1, 2, 4, 8, 16} or {0, 1}, meaning = meaning}
  return list
end

-- How many blocks share the keys of a work where they are a cluster, or nil.
function split.cluster(s) return (s.merge or LAST_BLOCK) > KERNEL and s.merge or nil end

-- The schedule `s` with the shared axes that it leaves out.
function split.schedule(v, s)
  local shared = {slack = 8, blocks = 1, together = 1, split = v.deterministic == "batch" and 1024 or 0,
                  merge = LAST_BLOCK}
  for axis, value in pairs(shared) do s[axis] = s[axis] or value end
  return s
end

-- The default schedule `s` as clusters take it: what is left of it where a user asks for clusters and no more.
function split.in_clusters(s)
  s.together, s.split = 1, 0
  return s
end

-- How many KV heads to read side by side.
function split.together(v)
  if v.mask_symbols.h or v.mask_symbols.hk then return 1 end
  return v.heads_kv % 4 == 0 and 4 or v.heads_kv % 2 == 0 and 2 or 1
end

-- What a tuner tries: KV heads side by side; after how many keys a row's are split, which must be the same whatever the
-- other sequences are where results must not depend on these. One length that only splits long rows saves merging.
function split.side_by_side(v)
  local most, list = split.together(v), {}
  for _, heads in ipairs{1, 2, 4} do
    if heads <= most then list[#list + 1] = heads end
  end
  return list
end
-- Products for who adds up the parts of several blocks, each with the axes of `more`: a kernel behind, and clusters.
-- Parts of a cluster take room, which smaller rings leave: the stages of `rings`.
function split.merges(more, rings)
  local kernel, clusters = split.kernel_behind(more), split.kernel_behind(more)
  clusters.merge, clusters.together, clusters.split, clusters.stages = {2, 4, 8, 16}, {1}, {0}, rings
  return {kernel, clusters}
end
function split.kernel_behind(more)
  local product = {merge = {KERNEL}}
  for axis, values in pairs(more) do product[axis] = values end
  return product
end
function split.few_lengths(v) return v.deterministic == "batch" and {1024, 4096} or {0, 4096} end
function split.lengths(v)
  return v.deterministic == "batch" and {512, 1024, 2048, 4096} or {0, 512, 1024, 2048, 4096}
end

-- The first reason why a schedule's clusters are not legal, or nil.
local function refuse_clusters(s, arch)
  if arch.number < 90 then return ("merge = %d: %s has no clusters"):format(s.merge, arch.name) end
  if s.split > 0 then return ("merge = %d: split must be 0, a cluster's blocks have equal shares"):format(s.merge) end
  if s.together > 1 then
    return ("merge = %d: together must be 1, clusters side by side have neighbouring heads as it is"):format(s.merge)
  end
  return nil
end

-- The first reason why a schedule with slices of tile_n keys is not legal, or nil.
function split.refuse_schedule(v, s, tile_n, arch)
  local reason = split.cluster(s) and refuse_clusters(s, arch)
  if reason then return reason end
  if v.deterministic == "batch" and s.split == 0 and not split.cluster(s) then
    return "deterministic: batch needs split > 0, or a cluster for each work: equal shares depend on other sequences"
  end
  if v.heads_kv % s.together > 0 then return "together must divide the number of KV heads" end
  if s.together > 1 and (v.mask_symbols.h or v.mask_symbols.hk) then
    return "together > 1 needs a mask that is the same for all heads"
  end
  if v.layout_kv == "paged" and tile_n > 32 and v.page_size % tile_n > 0 then
    return ("slices of %d keys need pages of a multiple of as many"):format(tile_n)
  end
  return nil
end

-- Works of a call, as factors of a rule: at least so many.
local function works(v, tile_m)
  local tiles = ceil_div(v.group, tile_m) -- of a query's rows
  if tiles > 1 then return {{"batch"}, {"len_q"}, {"heads_q", v.group // tiles}} end
  return {{"batch"}, {"heads_kv"}, {"len_q", tile_m // v.group}}
end

-- Whether the rows of a tile are of one query, so that they see what a row sees: of several, windows may lie far apart.
function split.has_one_query(v, s) return v.group % s.tile_m == 0 end

-- Places for parts where rows are split every so many keys: how many in each, and the factors of their number. A window
-- bounds the keys that a query sees, with slices that stick out at both ends.
local function fixed_places(v, s)
  local tiles = ceil_div(v.group, s.tile_m) -- of a query's rows
  local places = {{"batch"}, {"heads_kv"}, tiles > 1 and {"len_q"} or {"len_q", s.tile_m // v.group}}
  if mask.width and split.has_one_query(v, s) then
    return tiles * ceil_div(mask.width + 2 * MOST_SLICE, s.split), places
  end
  places[#places + 1] = {"len_k", s.split}
  return tiles, places
end

-- Adds to the kernel the workspace in which blocks leave parts for each other.
local function add_workspace(kernel, v, s)
  local function add(name, ctype)
    table.insert(kernel.params, {name = name, type = "pointer", ctype = ctype, source = "workspace." .. name})
  end
  if s.merge == LAST_BLOCK then add("arrived", "int *") end
  add("partial_states", "float2 *")
  add("partial_outputs", "float *")
  -- What a block may leave for others: two parts, one it begins and one it ends; or every part there is.
  local counters, places = s.blocks, {{"sm_count"}}
  if s.split > 0 then counters, places = fixed_places(v, s) end
  local slots = (s.split > 0 and counters or 2 * s.blocks) * s.tile_m -- rows
  kernel.regions = {
    {name = "partial_states", bytes = 8 * slots, count = places},
    {name = "partial_outputs", bytes = 4 * slots * v.dim_v, count = places},
  }
  if s.merge == LAST_BLOCK then
    table.insert(kernel.regions, 1, {name = "arrived", bytes = 4 * counters, zeroed = 2, count = places})
  end
end

-- The kernel of `warps` warps with the layout `m`, whose `total` is its shared memory.
function split.kernel(v, s, arch, m)
  local cluster, early = split.cluster(s), attention.early(arch)
  local kernel = {
    launches = {{entry = "qkv_kernel", block = 32 * s.warps, shared_bytes = m.total, cluster = cluster,
                 grid = cluster and works(v, s.tile_m) or {{"sm_count"}, {"sm_count"}},
                 blocks_per_sm = s.blocks, -- as many as there is room for
                 early = early}},
    params = attention.params(v, false),
    regions = {},
    aligned16 = true,
    layout = m,
  }
  if not cluster then add_workspace(kernel, v, s) end
  if s.merge == KERNEL then
    table.insert(kernel.params, {name = "sm_count", type = "i32", ctype = "int", source = "sm_count"})
    table.insert(kernel.launches, {entry = "qkv_combine", block = round_up(v.dim_v // 4, 32), shared_bytes = 0,
                                   grid = {{"batch"}, {"len_q"}, {"heads_q"}}, early = early}) -- a row to a block
  end
  return kernel
end

return split
