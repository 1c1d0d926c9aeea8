//%% Results of warps, then of blocks, that saw different keys of the same rows become one.
//% local dtype = variant.dtype_out
//% local lse = variant.outputs.lse or variant.outputs.lse_with_sink
//% local scaled = variant.kv_scale == "per_head"
//% local sink = variant.sink == "per_head"
//% local fixed = schedule.split > 0
//% local several = schedule.row_warps > 1
//% local at = several and "w * 8 * ROW_WARPS + row" or "w * 8 + row" -- of key warp w, its row
// What is known of a row over some keys: what the exponentials are relative to (-inf: no key was visible), and their
// sum.
struct row_part {
  float reference, sum;
};

static __device__ __forceinline__ float4 scaled(float4 a, float factor) {
  return make_float4(a.x * factor, a.y * factor, a.z * factor, a.w * factor);
}

// The factor that takes a part's output and sum to the reference of the whole.
static __device__ __forceinline__ float weight_of(const row_part &part, float reference) {
  return part.reference == minus_infinity() ? 0.0f : exp2_approx((part.reference - reference) * EXP2_SCALE);
}

// Whether a row of the tile is one of the sequence's.
static __device__ __forceinline__ bool row_exists(const work_item &work, int tile_row) {
  return work.row_begin + tile_row < work.view.len_q * GROUP;
}

//% if sink then
// Four columns of a row that is complete: the last division, where the sink joins the denominator, and the output.
//% else
// Four columns of a row that is complete: the last division and the output.
//% end
//% if lse then
// The first column's thread also writes LSE.
//% end
static __device__ __forceinline__ void finish_row(
    const qkv_params &p, const work_item &work, int tile_row, int column, float4 value, const row_part &whole) {
  const packed_row row = {0, (unsigned)(work.row_begin + tile_row)};
  const int i = row.query(), h = work.hk * GROUP + row.head();
  const bool empty = whole.reference == minus_infinity();
  //% if sink then
  const float sink = p.sink[h * p.sink_stride_head];
  const float denominator = whole.sum + exp2_approx(fmaf(sink, LOG2E, -(whole.reference * EXP2_SCALE)));
  //% else
  const float denominator = whole.sum;
  //% end
  //% if scaled then
  const float inverse = empty ? 0.0f : rcp_approx(denominator) * p.v_scale[work.hk * p.v_scale_stride_head];
  //% else
  const float inverse = empty ? 0.0f : rcp_approx(denominator);
  //% end
  auto *o = p.o + output_row(p, work.view, i, h) + column;
  //% if dtype == "f32" then
  *(float4 *)o = make_float4(value.x * inverse, value.y * inverse, value.z * inverse, value.w * inverse);
  //% else
  *(uint2 *)o = make_uint2(pack_$(dtype)x2(value.x * inverse, value.y * inverse),
                           pack_$(dtype)x2(value.z * inverse, value.w * inverse));
  //% end
  //% if lse then
  if (column > 0) return;
  const float lse = empty ? minus_infinity() : fmaf(whole.reference, EXP2_SCALE, log2_approx(whole.sum)) * LN2;
  //%   if variant.outputs.lse then
  p.lse[lse_row(p, work.view, i, h)] = lse;
  //%   end
  //%   if variant.outputs.lse_with_sink then
  p.lse_with_sink[lse_with_sink_row(p, work.view, i, h)] = log_add(lse, sink);
  //%   end
  //% end
}

//% if fixed then
// Where a block leaves part n of a work that has several.
static __device__ __forceinline__ unsigned slot_of(const work_item &work, unsigned first_team, unsigned n) {
  return (work.unit + n) * TOGETHER + blockIdx.x % TOGETHER;
}
//% else
// Where the block of team first_team + n leaves its part of a work that several teams share: a block has at most one
// that it begins, and one that others began.
static __device__ __forceinline__ unsigned slot_of(const work_item &work, unsigned first_team, unsigned n) {
  return 2 * ((first_team + n) * TOGETHER + blockIdx.x % TOGETHER) + (n == 0);
}
//% end

constexpr int PARTS_AT_ONCE = 8; // whose loads are in flight together

// Tells the others that this block's part is in its slot; the last to do so adds up what all left, in the order of the
// keys. All threads, whose writes a block_sync has ordered before.
static __device__ __forceinline__ void merge_blocks(
    const qkv_params &p, const work_item &work, unsigned first_team, unsigned parts) {
  unsigned *is_last = (unsigned *)(shared_arena() + STATES_OFFSET);
  if (threadIdx.x == 0) {
    int *arrived = p.arrived + $(fixed and "work.unit" or "first_team") * TOGETHER + blockIdx.x % TOGETHER;
    *is_last = atomic_add_i32_acq_rel(arrived, 1) == (int)parts - 1;
    if (*is_last) *arrived = 0; // for the next call
  }
  block_sync();
  const bool adds = *is_last != 0;
  block_sync(); // the states may be written again
  if (!adds) return;
  for (int item = threadIdx.x; item < TILE_M * DIM_V / 4; item += THREADS) {
    const int tile_row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4;
    if (!row_exists(work, tile_row)) break;
    row_part all = {minus_infinity(), 0.0f};
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (unsigned begin = 0; begin < parts; begin += PARTS_AT_ONCE) {
      row_part part[PARTS_AT_ONCE];
      float4 value[PARTS_AT_ONCE];
      float reference = all.reference;
#pragma unroll
      for (int n = 0; n < PARTS_AT_ONCE; ++n) { // without branches, so that all loads are on their way together
        const long long from = (long long)slot_of(work, first_team, min(begin + n, parts - 1)) * TILE_M + tile_row;
        part[n] = ((const row_part *)p.partial_states)[from];
        value[n] = *(const float4 *)(p.partial_outputs + from * DIM_V + column);
      }
#pragma unroll
      for (int n = 0; n < PARTS_AT_ONCE; ++n) reference = fmaxf(reference, part[n].reference);
      const float before = weight_of(all, reference);
      all = {reference, all.sum * before};
      sum = scaled(sum, before);
#pragma unroll
      for (int n = 0; n < PARTS_AT_ONCE; ++n) {
        const float weight = begin + n < parts ? weight_of(part[n], reference) : 0.0f;
        all.sum += part[n].sum * weight;
        value[n] = scaled(value[n], weight);
        sum.x += value[n].x, sum.y += value[n].y, sum.z += value[n].z, sum.w += value[n].w;
      }
    }
    finish_row(p, work, tile_row, column, sum, all);
  }
}

// The warps' results of a segment: to the output, or to a slot when other blocks have a share in the
// rows. The last of them adds up what all left, in the order of the keys.
static __device__ __forceinline__ void merge(
    const qkv_params &p, const work_segment &segment, const block_share &share,
    float (&output)[ROW_TILES][V_TILES][4], const row_state &rows, int warp, int lane) {
  const work_item &work = segment.work;
  row_part *states = (row_part *)(shared_arena() + STATES_OFFSET); // [warp][8 rows]
  float *panel = (float *)(shared_arena() + PANEL_OFFSET);         // [warp][8 rows][column]
  //% if fixed then
  constexpr unsigned first_team = 0; // it does not matter
  const unsigned parts = work.units, n = segment.next - 1 - work.unit;
  //% else
  const unsigned first_team = team_of(work.unit, share);
  const unsigned parts = team_of(work.unit + work.slices - 1, share) - first_team + 1;
  const unsigned n = blockIdx.x / TOGETHER - first_team;
  //% end
  const unsigned slot = slot_of(work, first_team, n);
  const bool whole = parts == 1;
  float *partial = p.partial_outputs + (long long)slot * TILE_M * DIM_V;
  row_part *partial_states = (row_part *)p.partial_states + (long long)slot * TILE_M;

#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) { // rows 8 at a time, as they lie in the fragments
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
      //% if several then
      for (int item = threadIdx.x; item < 8 * ROW_WARPS * (DIM_V / 4); item += THREADS) {
        const int row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4; // row: of all row warps' 8
        const int tile_row = row / 8 * (16 * ROW_TILES) + first_row + row % 8;
      //% else
      for (int item = threadIdx.x; item < 8 * (DIM_V / 4); item += THREADS) {
        const int row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4;
        const int tile_row = first_row + row;
      //% end
        if (!row_exists(work, tile_row)) break;
        row_part all = {minus_infinity(), 0.0f};
#pragma unroll
        for (int w = 0; w < KEY_WARPS; ++w) all.reference = fmaxf(all.reference, states[$(at)].reference);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < KEY_WARPS; ++w) {
          const row_part part = states[$(at)];
          const float weight = weight_of(part, all.reference);
          const float4 other = scaled(*(const float4 *)(panel + ($(at)) * PANEL_PITCH + column), weight);
          all.sum += part.sum * weight;
          sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
        }
        if (whole) {
          finish_row(p, work, tile_row, column, sum, all);
        } else {
          *(float4 *)(partial + tile_row * DIM_V + column) = sum;
          if (column == 0) partial_states[tile_row] = all;
        }
      }
      block_sync(); // the panel and the states may be written again
    }
  if (!whole) merge_blocks(p, work, first_team, parts);
}
