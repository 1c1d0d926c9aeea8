//%% The way of fragments of mma to parts/split_merge.cu: rows 8 at a time, as they lie in the fragments.
//% local several = schedule.row_warps > 1
// The warps' results of a segment: to the output, or to a slot when other blocks have a share in the rows.
static __device__ __forceinline__ void merge(
    const qkv_params &p, const work_segment &segment, const block_share &share,
    float (&output)[ROW_TILES][V_TILES][4], const row_state &rows, int warp, int lane) {
  const work_item &work = segment.work;
  const row_shares shares = shares_of_rows(segment, share);
  row_part *states = (row_part *)(shared_arena() + STATES_OFFSET); // [warp][8 rows]
  float *panel = (float *)(shared_arena() + PANEL_OFFSET);         // [warp][8 rows][column]

#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first_row = 16 * r + 8 * half;
      if (!row_exists(work, first_row)) break;
      float own_sum = rows.sum[r][half];
      own_sum += shuffle_xor_f32(own_sum, 1);
      own_sum += shuffle_xor_f32(own_sum, 2);
      const int own = warp * 8 + lane / 4;
      if (lane % 4 == 0) states[own] = {rows.reference[r][half], own_sum};
      //% if kernel.layout.bytes then
#pragma unroll
      for (int n = 0; n < V_TILES; n += 2) // even and odd dimensions of 16
        *(float4 *)(panel + own * PANEL_PITCH + 8 * n + lane % 4 * 4) =
            make_float4(output[r][n][2 * half], output[r][n + 1][2 * half], output[r][n][2 * half + 1],
                        output[r][n + 1][2 * half + 1]);
      //% else
#pragma unroll
      for (int n = 0; n < V_TILES; ++n)
        *(float2 *)(panel + own * PANEL_PITCH + 8 * n + lane % 4 * 2) =
            make_float2(output[r][n][2 * half], output[r][n][2 * half + 1]);
      //% end
      block_sync();
      for (int item = threadIdx.x; item < STAGED_ROWS * (DIM_V / 4); item += THREADS) {
        const int row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4;
        //% if several then
        const int tile_row = row / 8 * (16 * ROW_TILES) + first_row + row % 8;
        //% else
        const int tile_row = first_row + row;
        //% end
        if (!row_exists(work, tile_row)) break;
        merge_warps(p, work, shares, row, tile_row, column);
      }
      block_sync(); // the panel and the states may be written again
    }
  //% if schedule.merge == 0 then
  if (shares.parts > 1) merge_blocks(p, work, shares);
  //% end
}
