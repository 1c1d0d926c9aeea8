//%% Tiles of K and V from pages of any size into the rings' swizzled panels, row by row by cp.async: each of the
//%% producer's four warps copies a quarter of a tile's keys. What cp.async writes belongs to the generic proxy, what
//%% wgmma reads to the asynchronous one: a warp waits for its copies, passes a proxy fence, and tells of them at the
//%% place's mbarrier, while those of the next tile are on their way.
//% local qk, v = kernel.layout.qk, kernel.layout.v
//% local loads = {{name = "key", letter = "K", tensor = "k", dim = "QK", size = variant.dim_qk, panels = qk},
//%                {name = "value", letter = "V", tensor = "v", dim = "V", size = variant.dim_v, panels = v}}
// Closes the warp's copies into the place whose mbarrier is `full`, and tells of those before, which have landed: into
// the place of `untold`, or none if that is 0.
static __device__ __forceinline__ void close_copies(unsigned &untold, unsigned full, int lane) {
  cp_async_commit();
  cp_async_wait_1();
  fence_proxy_async(); // wgmma reads what cp.async wrote
  warp_sync();
  if (lane == 0 && untold != 0) mbar_arrive(untold);
  untold = full;
}

// K is a tile ahead of V, but for a work's first one.
static __device__ __forceinline__ ring<STAGES> key_place(ring<STAGES> values, bool first) {
  if (!first) values.advance();
  return values;
}

// The key of a tile whose page and rows the lane finds for its warp, which copies OWN_KEYS of them.
static __device__ __forceinline__ int own_key(int warp, int lane) { return warp * OWN_KEYS + min(lane, OWN_KEYS - 1); }

// The page that holds it. Behind the sequence's end nothing is looked up, and nothing read of page 0.
static __device__ __forceinline__ int own_page(const sequence_view &view, int tile, int warp, int lane) {
  const int k = tile * TILE_N + own_key(warp, lane);
  return k < view.len_k ? key_page(view, k) : 0;
}

//% for number, load in ipairs(loads) do
//%   local letter, dim, panels = load.letter, load.dim, load.panels
//%   local lanes = panels.bytes // 16
//%   local rows = 32 // lanes -- that a warp copies at once
//%   local whole = schedule.tile_n // 4 % rows == 0
//%   local filled = load.size % panels.width == 0
// The warp's rows of a tile of $(letter) into its ring, once the place is free; what lies behind the sequence's end is
// zero. $(lanes) lanes copy a panel's row, $(rows) rows at once.
static __device__ __forceinline__ void load_$(load.name)(
    const qkv_params &p, unsigned shared, const ring<STAGES> &ring, unsigned &untold, int tile, int page, int head,
    const sequence_view &view, int warp, int lane) {
  const unsigned full = shared + $(letter)_FULL + 8 * ring.stage();
  const int valid = view.len_k - tile * TILE_N - warp * OWN_KEYS; // of the warp's keys
  // Every lane finds where a key's row begins, once, and the others ask it.
  const long long start = $(load.name)_row_of_page(p, page, tile * TILE_N + own_key(warp, lane), head);
  const unsigned long long own = (unsigned long long)(p.$(load.tensor) + start);
  const int own_low = (int)own, own_high = (int)(own >> 32);
  const int first = lane / $(lanes), chunk = lane % $(lanes), line = (warp * OWN_KEYS + first) * $(dim)_ROW_BYTES;
  const unsigned to = shared + $(letter)_OFFSET + ring.stage() * $(letter)_BYTES + line;
  const unsigned swizzled = (chunk ^ line / 128 % $(lanes)) << 4; // the number of 128 bytes swizzles their chunks
  mbar_wait(shared + $(letter)_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);
#pragma unroll
  for (int row = 0; row < OWN_KEYS; row += $(rows)) {
    const unsigned high = shuffle_i32(own_high, row + first), low = shuffle_i32(own_low, row + first);
    const unsigned short *from = (const unsigned short *)((unsigned long long)high << 32 | low) + 8 * chunk;
    const unsigned at = to + row * $(dim)_ROW_BYTES + (swizzled ^ row * $(dim)_ROW_BYTES / 128 % $(lanes) << 4);
    const int bytes = row + first < valid ? 16 : 0;
    //% if not whole then
    if (row + first >= OWN_KEYS) break;
    //% end
#pragma unroll
    for (int panel = 0; panel < $(dim)_PANELS; ++panel)
      //% if filled then
      cp_async_16_zfill(at + panel * $(letter)_PANEL, from + panel * $(dim)_WIDTH, bytes);
      //% else
      cp_async_16_zfill(at + panel * $(letter)_PANEL, from + panel * $(dim)_WIDTH,
                        panel * $(dim)_WIDTH + 8 * chunk < DIM_$(dim) ? bytes : 0);
      //% end
  }
  close_copies(untold, full, lane);
}
//%   if number == 1 then

//%   end
//% end
