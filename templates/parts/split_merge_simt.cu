//%% The way of lane groups to parts/split_merge.cu.
//% local cluster = library("split").cluster(schedule)
// What the lane groups of a warp found of the same rows becomes one, in all of them.
static __device__ __forceinline__ void merge_lane_groups(float (&output)[TILE_M][V_STEPS][CHUNK], row_state &rows) {
#pragma unroll
  for (int distance = LANES; distance < 32; distance *= 2)
#pragma unroll
    for (int r = 0; r < TILE_M; ++r) {
      const row_part own = {rows.reference[r], rows.sum[r]};
      rows.reference[r] = fmaxf(own.reference, shuffle_xor_f32(own.reference, distance));
      const float weight = weight_of(own, rows.reference[r]);
      rows.sum[r] *= weight;
      rows.sum[r] += shuffle_xor_f32(rows.sum[r], distance);
#pragma unroll
      for (int step = 0; step < V_STEPS; ++step)
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) {
          output[r][step][e] *= weight;
          output[r][step][e] += shuffle_xor_f32(output[r][step][e], distance);
        }
    }
}

//% if cluster then
// The warps' results of a segment, and those of the cluster's other blocks: to the output.
//% else
// The warps' results of a segment: to the output, or to a slot when other blocks have a share in the rows.
//% end
static __device__ __forceinline__ void merge(
    const qkv_params &p, const work_segment &segment, $(cluster and "unsigned &round" or "const block_share &share"),
    float (&output)[TILE_M][V_STEPS][CHUNK], row_state &rows, int warp, int lane) {
  const work_item &work = segment.work;
  //% if not cluster then
  const row_shares shares = shares_of_rows(segment, share);
  //% end
  row_part *states = (row_part *)(shared_arena() + STATES_OFFSET) + warp * TILE_M; // [row]
  float *panel = (float *)(shared_arena() + PANEL_OFFSET) + warp * TILE_M * PANEL_PITCH; // [row][column]
  merge_lane_groups(output, rows);
  //% if cluster then
  await_peers(round);
  //% end
  if (lane < LANES) { // one group for all
#pragma unroll
    for (int r = 0; r < TILE_M; ++r) {
      if (lane == 0) states[r] = {rows.reference[r], rows.sum[r]};
#pragma unroll
      for (int step = 0; step < V_STEPS; ++step) {
        const int chunk = step * LANES + lane;
        if (chunk >= V_CHUNKS) break;
        const float(&from)[CHUNK] = output[r][step];
#pragma unroll
        for (int e = 0; e < CHUNK; e += 4)
          *(float4 *)(panel + r * PANEL_PITCH + chunk * CHUNK + e) =
              make_float4(from[e], from[e + 1], from[e + 2], from[e + 3]);
      }
    }
  }
  block_sync();
  for (int item = threadIdx.x; item < TILE_M * (DIM_V / 4); item += THREADS) {
    const int row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4;
    if (!row_exists(work, row)) break;
    merge_warps($(cluster and "row, column" or "p, work, shares, row, row, column"));
  }
  //% if cluster then
  block_sync(); // the block's part is there
  merge_peers(p, work, 0, round++);
  //% else
  block_sync(); // the panel and the states may be written again
  //% end
  //% if schedule.merge == 0 then
  if (shares.parts > 1) merge_blocks(p, work, shares);
  //% end
}
