//%% The output leaves the registers: through the warp's own 16 rows of shared memory by tensor stores, or directly.
//% local layout = kernel.layout
//% local dtype = variant.dtype_out
//% local packed = layout.packed
//% local at_row = packed and "\npacked_row warp_row," or " int warp_row," -- of a parameter list
//% local view = library("attention").view(mask, variant)
//% local ragged_q = variant.layout_q == "ragged"
//% if layout.store then
//%   local shift = ({[128] = 0, [64] = 1, [32] = 2})[layout.v.swizzle]
//%   local o_rows = 16 // layout.o_heads -- queries of a warp's box
//%   if ragged_q then
// O by way of `row` on of shared memory. The copy engine leaves out rows behind the sequence's end: at row ROWS - n of
// the map and token t + n a box of ROWS rows begins with token t and ends behind the n-th row.
//%   else
// O by way of `row` on of shared memory. The copy engine leaves out rows and columns outside of the tensor.
//%   end
static __device__ __forceinline__ void store_output(
    const qkv_params &p, float (&output)[ROW_TILES][V_TILES][4], unsigned shared_o, int row,$(at_row) int h, int b,
    int lane$(view.also)) {
  const unsigned slab = shared_o + row * V_ROW_BYTES;
  //% if not layout.alias then
  if (lane == 0) bulk_wait_read_0(); // the tile before has left
  warp_sync();
  //% end
  const int swizzle = $(shift == 0 and "lane % 8" or "lane % 8 >> " .. shift); // of the row that the lane addresses
#pragma unroll
  for (int n = 0; n < V_TILES; n += 2) { // 16 columns: four 8x8 matrices, the lower rows' behind the upper rows'
    const int panel = n * 8 / V_WIDTH, chunk = n % (V_WIDTH / 8) + lane / 16;
    const unsigned to = slab + panel * O_PANEL + lane % 16 * V_ROW_BYTES + ((chunk ^ swizzle) << 4);
    const float(&left)[4] = output[0][n];
    //% if variant.dim_v // 8 % 2 == 1 then
    const float(&right)[4] = output[0][min(n + 1, V_TILES - 1)]; // beyond the last column the panel goes on
    //% else
    const float(&right)[4] = output[0][n + 1];
    //% end
    stmatrix_x4(to, pack_$(dtype)x2(left[0], left[1]), pack_$(dtype)x2(left[2], left[3]),
                pack_$(dtype)x2(right[0], right[1]), pack_$(dtype)x2(right[2], right[3]));
  }
  fence_proxy_async();
  warp_sync();
  if (lane == 0) {
    //% if mask.dilation then
    const tensor_map *map = view.first_row < p.len_q % $(view.dilation) ? &p.o_long_map : &p.o_short_map;
    //% elseif ragged_q then
    //%   local first = packed and "warp_row.query()" or "warp_row"
    const int rows = clamp_length(view.len_q - $(first), $(o_rows)), token = view.first_q + $(first);
    //% end
#pragma unroll
    for (int panel = 0; panel < $(ragged_q and "(rows > 0 ? V_PANELS : 0)" or "V_PANELS"); ++panel)
      //% if ragged_q and packed then
      tma_store_5d(&p.o_map, slab + panel * O_PANEL, panel * V_WIDTH, warp_row.head(), $(o_rows) - rows, token + rows,
                   h / GROUP);
      //% elseif ragged_q then
      tma_store_4d(&p.o_map, slab + panel * O_PANEL, panel * V_WIDTH, $(o_rows) - rows, token + rows, h);
      //% elseif packed then
      tma_store_5d(&p.o_map, slab + panel * O_PANEL, panel * V_WIDTH, warp_row.head(), warp_row.query(), h / GROUP, b);
      //% elseif mask.dilation then
      tma_store_5d(map, slab + panel * O_PANEL, panel * V_WIDTH, warp_row, view.first_row, h, b);
      //% else
      tma_store_4d(&p.o_map, slab + panel * O_PANEL, panel * V_WIDTH, warp_row, h, b);
      //% end
    bulk_commit();
  }
}
//% else
// O straight from the registers.
static __device__ __forceinline__ void store_output(
    const qkv_params &p, float (&output)[ROW_TILES][V_TILES][4],$(at_row) int h, int b, int lane$(view.also)) {
  //% local o_begin = view.sequences and "output_row(p, view, 0, h)" or "b * p.o_stride_batch + h * p.o_stride_head"
  auto *o = p.o + $(o_begin) + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    //% local at = packed and "row.head() * p.o_stride_head + row.query() * p.o_stride_token" or
    //%   (mask.dilation and "(view.first_row + i * " .. view.dilation .. ")" or "i") .. " * p.o_stride_token"
    //% if packed then
    const packed_row row = warp_row + (lane / 4 + 8 * half);
    if (row.exists($(view.sequences and "view" or "p"))) {
    //% else
    const int i = warp_row + lane / 4 + 8 * half;
    if (i < $(view.len_q)) {
    //% end
#pragma unroll
      for (int n = 0; n < V_TILES; ++n) {
        //% if dtype == "f32" then
        *(float2 *)(o + $(at) + 8 * n) =
            make_float2(output[0][n][2 * half], output[0][n][2 * half + 1]);
        //% else
        *(unsigned *)(o + $(at) + 8 * n) =
            pack_$(dtype)x2(output[0][n][2 * half], output[0][n][2 * half + 1]);
        //% end
      }
    }
  }
}
//% end
