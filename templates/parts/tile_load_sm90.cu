//%% Tiles of Q, K and V by tensor maps into shared memory, ring by ring. What lies outside of a tensor arrives as zero.
//% local packed = kernel.layout.packed
//% local cluster = schedule.cluster > 1
//% local load_keys = cluster and "tma_load_4d_multicast_evict_last" or "tma_load_4d_evict_last"
//% local wait, targets = cluster and "mbar_wait_cluster" or "mbar_wait", cluster and ", (1 << CLUSTER) - 1" or ""
//% local rows_of_keys = cluster and "tile * TILE_N + share" or "tile * TILE_N"
//% local view = library("attention").view(mask, variant)
//% local residues = mask.dilation ~= false
//% if residues then load_keys = load_keys:gsub("4d", "5d") end
//% local loads = {
//%   {what = "The rows of a tile of Q", name = "query", tensor = "q", kind = "Q",
//%    place = "view.first_row", len = "p.len_q",
//%    copy = (packed or residues) and "tma_load_5d" or "tma_load_4d", first = "row_begin",
//%    rows = packed and "0, row_begin" or "row_begin", offset = "ring.stage() * Q_BYTES", width = "QK_WIDTH",
//%    panels = "QK_PANELS", bytes = packed and "QK_PANELS * TILE_ROWS * QK_ROW_BYTES" or "QK_PANELS * Q_PANEL",
//%    stages = "Q_BUFFERS"},
//%   {what = "A tile of K", name = "key", tensor = "k", kind = "K", copy = load_keys, shared = cluster,
//%    place = "view.residue", len = "p.len_k", first = "tile", rows = rows_of_keys,
//%    offset = "K_OFFSET + ring.stage() * K_BYTES", width = "QK_WIDTH",
//%    panels = "QK_PANELS", row = "QK_ROW_BYTES", bytes = "K_BYTES", stages = "STAGES"},
//%   {what = "A tile of V", name = "value", tensor = "v", kind = "V", copy = load_keys, shared = cluster,
//%    place = "view.residue", len = "p.len_k", first = "tile", rows = rows_of_keys,
//%    offset = "V_OFFSET + ring.stage() * V_BYTES", width = "V_WIDTH",
//%    panels = "V_PANELS", row = "V_ROW_BYTES", bytes = "V_BYTES", stages = "STAGES"},
//% }
//% for _, load in ipairs(loads) do
//%   if load.shared then
// $(load.what) into the rings of all blocks of the cluster, once the place is free in all of them: this block's share.
//%   else
// $(load.what) into its ring, once the place is free.
//%   end
static __device__ __forceinline__ void load_$(load.name)(
    const qkv_params &p, unsigned shared, ring<$(load.stages)> &ring, int $(load.first), int head, int b$(view.also)) {
//%   if load.shared then
  const int share = cluster_rank() * SHARE_N;
  const unsigned full = shared + $(load.kind)_FULL + 8 * ring.stage();
  const unsigned to = shared + $(load.offset) + share * $(load.row);
//%   else
  const unsigned full = shared + $(load.kind)_FULL + 8 * ring.stage(), to = shared + $(load.offset);
//%   end
  $(load.shared and wait or "mbar_wait")(shared + $(load.kind)_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);
  mbar_arrive_expect_tx(full, $(load.bytes));
//%   if residues then
  const bool is_long = $(load.place) < $(load.len) % $(view.dilation);
  const tensor_map *map = is_long ? &p.$(load.tensor)_long_map : &p.$(load.tensor)_short_map;
//%   end
//%   local map = residues and "map" or "&p." .. load.tensor .. "_map"
//%   local rows = residues and load.rows .. ", " .. load.place or load.rows
#pragma unroll
  for (int panel = 0; panel < $(load.panels); ++panel)
    $(load.copy)(to + panel * $(load.kind)_PANEL, $(map), full,
    $((" "):rep(#load.copy)) panel * $(load.width), $(rows), head, b$(load.shared and targets or ""));
  ring.advance();
}

//% end
