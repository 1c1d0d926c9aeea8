//%% The way of transposed fragments of wgmma to parts/split_merge.cu: rows 8 at a time, as they lie in the fragments.
//% local cluster = library("split").cluster(schedule)
// Every thread's sums become those of all keys of its warpgroup.
static __device__ __forceinline__ void add_sums(row_state &rows, int warpgroup, int lane) {
  float *sums = (float *)(shared_arena() + COLUMNS_OFFSET) + warpgroup * 4 * TILE_M; // [warp][row]
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = rows.sum[n][e];
      for (int step = 4; step < 32; step *= 2) sum += shuffle_xor_f32(sum, step); // lanes of the row
      if (lane < 4) sums[threadIdx.x % 128 / 32 * TILE_M + 8 * n + own_row() + e] = sum;
    }
  bar_sync(OWN_WARPGROUP + warpgroup, 128);
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float *sum = sums + 8 * n + own_row() + e;
      rows.sum[n][e] = (sum[0] + sum[TILE_M]) + (sum[2 * TILE_M] + sum[3 * TILE_M]);
    }
}

//% if cluster then
// The warpgroups' results of a segment, and those of the cluster's other blocks: to the output.
//% else
// The warpgroups' results of a segment: to the output, or to a slot when other blocks have a share in the rows.
//% end
static __device__ __forceinline__ void merge(
    const qkv_params &p, const work_segment &segment, $(cluster and "unsigned &round" or "const block_share &share"),
    const float (&output)[DIM_TILES][ROW_TILES][4], row_state &rows, int warpgroup, int lane) {
  const work_item &work = segment.work;
  //% if not cluster then
  const row_shares shares = shares_of_rows(segment, share);
  //% end
  row_part *states = (row_part *)(shared_arena() + STATES_OFFSET) + 8 * warpgroup;
  float *panel = (float *)(shared_arena() + PANEL_OFFSET) + 8 * warpgroup * PANEL_PITCH;
  add_sums(rows, warpgroup, lane);
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n) { // rows 8 at a time, as they lie in the fragments
    if (!row_exists(work, 8 * n)) break;
    //% if cluster then
    await_peers(round);
    //% end
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = own_row() + e;
      if (writes_rows()) states[row] = {references(warpgroup)[8 * n + row], rows.sum[n][e]};
#pragma unroll
      for (int m = 0; m < DIM_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int dim = 64 * m + 8 * half + own_key(); // V's dimensions are where keys were
          if (DIM_V % 64 == 0 || dim < DIM_V) panel[row * PANEL_PITCH + dim] = output[m][n][2 * half + e];
        }
    }
    bar_sync(ALL_CONSUMERS, CONSUMERS); // all have left them
    for (int item = threadIdx.x; item < STAGED_ROWS * (DIM_V / 4); item += CONSUMERS) {
      const int row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4;
      if (!row_exists(work, 8 * n + row)) break;
      merge_warps($(cluster and "row, column" or "p, work, shares, row, 8 * n + row, column"));
    }
    //% if cluster then
    bar_sync(ALL_CONSUMERS, CONSUMERS); // the block's part is there
    merge_peers(p, work, 8 * n, round++);
    //% else
    bar_sync(ALL_CONSUMERS, CONSUMERS); // the panel and the states may be written again
    //% end
  }
  //% if schedule.merge == 0 then
  if (shares.parts > 1) merge_blocks(p, work, shares);
  //% end
}
