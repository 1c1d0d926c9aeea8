//%% Tiles of Q, K and V by tensor maps into shared memory, ring by ring. What lies outside of a tensor arrives as zero.
//% local packed = kernel.layout.packed
//% local loads = {
//%   {what = "The rows of a tile of Q", name = "query", tensor = "q", kind = "Q",
//%    copy = packed and "tma_load_5d" or "tma_load_4d", first = "row_begin",
//%    rows = packed and "0, row_begin" or "row_begin", offset = "ring.stage() * Q_BYTES", width = "QK_WIDTH",
//%    panels = "QK_PANELS", bytes = packed and "QK_PANELS * TILE_ROWS * QK_ROW_BYTES" or "QK_PANELS * Q_PANEL",
//%    stages = "Q_BUFFERS"},
//%   {what = "A tile of K", name = "key", tensor = "k", kind = "K", copy = "tma_load_4d_evict_last",
//%    first = "tile", rows = "tile * TILE_N", offset = "K_OFFSET + ring.stage() * K_BYTES", width = "QK_WIDTH",
//%    panels = "QK_PANELS", bytes = "K_BYTES", stages = "STAGES"},
//%   {what = "A tile of V", name = "value", tensor = "v", kind = "V", copy = "tma_load_4d_evict_last",
//%    first = "tile", rows = "tile * TILE_N", offset = "V_OFFSET + ring.stage() * V_BYTES", width = "V_WIDTH",
//%    panels = "V_PANELS", bytes = "V_BYTES", stages = "STAGES"},
//% }
//% for _, load in ipairs(loads) do
// $(load.what) into its ring, once the place is free.
static __device__ __forceinline__ void load_$(load.name)(
    const qkv_params &p, unsigned shared, ring<$(load.stages)> &ring, int $(load.first), int head, int b) {
  const unsigned full = shared + $(load.kind)_FULL + 8 * ring.stage(), to = shared + $(load.offset);
  mbar_wait(shared + $(load.kind)_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);
  mbar_arrive_expect_tx(full, $(load.bytes));
#pragma unroll
  for (int panel = 0; panel < $(load.panels); ++panel)
    $(load.copy)(to + panel * $(load.kind)_PANEL, &p.$(load.tensor)_map, full,
    $((" "):rep(#load.copy)) panel * $(load.width), $(load.rows), head, b);
  ring.advance();
}

//% end
