//%% Results of warps, then of blocks, that saw different keys of the same rows become one. How the warps' results get
//%% into shared memory is the kernel's: states at STATES_OFFSET and outputs at PANEL_OFFSET, of STAGED_ROWS rows of
//%% each of KEY_WARPS. Blocks' results meet in global memory, where the last block (split_merge_blocks.cu) or a kernel
//%% behind (split_combine.cu) adds them up, or in the shared memory of a cluster (split_merge_cluster.cu).
//% local dtype = variant.dtype_out
//% local lse = variant.outputs.lse or variant.outputs.lse_with_sink
//% local scaled = variant.kv_scale == "per_head"
//% local sink = variant.sink == "per_head"
//% local cluster = library("split").cluster(schedule)
//% local const = cluster and "" or "const "
// What is known of a row over some keys: what the exponentials are relative to (-inf: no key was visible), and their
// sum.
struct __align__(8) row_part {
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

//% if not cluster then
//% include "parts/split_slots.cu"

//% end
//% if cluster then
// What the KEY_WARPS staged of a row, four columns of it, becomes one, in the place of the first of them.
static __device__ __forceinline__ void merge_warps(int staged_row, int column) {
//% else
// What the KEY_WARPS staged of a row, four columns of it, becomes one: the output, or this block's part of it.
static __device__ __forceinline__ void merge_warps(
    const qkv_params &p, const work_item &work, const row_shares &shares, int staged_row, int tile_row, int column) {
//% end
  const row_part *states = (const row_part *)(shared_arena() + STATES_OFFSET) + staged_row;
  $(const)float *panel = ($(const)float *)(shared_arena() + PANEL_OFFSET) + staged_row * PANEL_PITCH + column;
  row_part all = {minus_infinity(), 0.0f};
#pragma unroll
  for (int w = 0; w < KEY_WARPS; ++w) all.reference = fmaxf(all.reference, states[w * STAGED_ROWS].reference);
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int w = 0; w < KEY_WARPS; ++w) {
    const row_part part = states[w * STAGED_ROWS];
    const float weight = weight_of(part, all.reference);
    const float4 other = scaled(*(const float4 *)(panel + w * STAGED_ROWS * PANEL_PITCH), weight);
    all.sum += part.sum * weight;
    sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
  }
  //% if cluster then
  *(float4 *)panel = sum;
  if (column == 0) ((row_part *)(shared_arena() + PARTS_OFFSET))[staged_row] = all;
  //% else
  if (shares.parts == 1) {
    finish_row(p, work, tile_row, column, sum, all);
    return;
  }
  const long long row = (long long)shares.slot * TILE_M + tile_row;
  *(float4 *)(p.partial_outputs + row * DIM_V + column) = sum;
  if (column == 0) ((row_part *)p.partial_states)[row] = all;
  //% end
}

constexpr int PARTS_AT_ONCE = $(cluster and math.min(cluster, 8) or 8); // of blocks, whose loads are in flight together

// Adds parts, in the order of the keys, to `all` and `sum`, what those before them came to: the first `count` of them.
static __device__ __forceinline__ void add_parts(
    row_part &all, float4 &sum, const row_part (&part)[PARTS_AT_ONCE], const float4 (&value)[PARTS_AT_ONCE],
    unsigned count) {
  float reference = all.reference;
#pragma unroll
  for (int n = 0; n < PARTS_AT_ONCE; ++n) reference = fmaxf(reference, part[n].reference);
  const float before = weight_of(all, reference);
  all = {reference, all.sum * before};
  sum = scaled(sum, before);
#pragma unroll
  for (int n = 0; n < PARTS_AT_ONCE; ++n) {
    const float weight = n < count ? weight_of(part[n], reference) : 0.0f;
    const float4 other = scaled(value[n], weight);
    all.sum += part[n].sum * weight;
    sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
  }
}

//% if cluster then
//% include "parts/split_merge_cluster.cu"
//% elseif schedule.merge == 0 then
//% include "parts/split_merge_blocks.cu"
//% end
