//%% Rows of tiles that hold all query heads of a KV head, so that they share one pass over its keys and values.
//% local view = library("attention").view(mask, variant)
// Row `row` of a tile: query head row % GROUP of the KV head's, at query row / GROUP of the tile.
struct packed_row {
  int query_begin; // the tile's first query
  unsigned row;

  __device__ __forceinline__ int query() const { return query_begin + row / GROUP; }
  __device__ __forceinline__ int head() const { return row % GROUP; }
  //% if view.sequences and not kernel.layout.flat then
  __device__ __forceinline__ bool exists(const sequence_view &view) const {
    return row < TILE_ROWS && query() < view.len_q;
  }
  //% elseif not kernel.layout.flat then
  __device__ __forceinline__ bool exists(const qkv_params &p) const { return row < TILE_ROWS && query() < p.len_q; }
  //% end
  __device__ __forceinline__ packed_row operator+(int rows) const { return {query_begin, row + rows}; }
};
//% if kernel.layout.idle_rows > 0 then

// Rows of Q's places in shared memory that hold no query are read by the products all the same.
static __device__ __forceinline__ void clear_idle_rows() {
  for (int panel = 0; panel < Q_BUFFERS * QK_PANELS; ++panel)
    for (int at = TILE_ROWS * QK_ROW_BYTES + 16 * (int)threadIdx.x; at < Q_PANEL; at += 16 * THREADS)
      *(uint4 *)(shared_arena() + panel * Q_PANEL + at) = make_uint4(0, 0, 0, 0);
  fence_proxy_async();
}
//% end
