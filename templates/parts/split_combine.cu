//%% The kernel behind one that splits keys: adds up what its blocks left of rows that several of them share, a row to a
//%% block, so that all SMs take part.
//% local together = schedule.together
//% local by_head = variant.mask_symbols.h or variant.mask_symbols.hk -- heads see different keys
//% local groups = variant.heads_kv // together
//% local alike = by_head and 1 or groups -- neighbouring works with as many units (parts/split_shares.cu)
//% local units = schedule.split > 0 and "units" or "slices"
constexpr int COMBINE_THREADS = (DIM_V / 4 + 31) / 32 * 32; // four columns of a row each
constexpr int BATCHES = 4; // of PARTS_AT_ONCE parts, whose loads are in flight together

// Work `number`, with the number of its first $(units == "units" and "part" or "slice"). All lanes of a warp.
static __device__ __forceinline__ work_item locate_work(const qkv_params &p, unsigned number, int lane) {
  //% if not by_head then
  if (all_alike(p)) return work_of(p, number, number * work_of(p, number, 0).$(units));
  //% end
  //% if alike > 1 then
  const unsigned first = number / $(groups) * $(groups); // of works that are alike
  //% else
  const unsigned first = number;
  //% end
  unsigned before = 0;
  for (unsigned other = lane$(alike > 1 and " * " .. alike or ""); other < first; other += $(32 * alike))
    before += count_units(p, other);
  work_item work = work_of(p, number, warp_add_i32(before));
  work.unit += (number - first) * work.$(units);
  return work;
}

extern "C" __global__ void __launch_bounds__(COMBINE_THREADS) qkv_combine(const __grid_constant__ qkv_params p) {
//% include "parts/early.cu"
  // KV heads are neighbours, as the blocks of a team are.
  const int lane = threadIdx.x % 32, rows = p.len_q * GROUP, entry = blockIdx.x / HEADS_KV;
  const int hk = blockIdx.x % HEADS_KV, row = entry % rows, b = entry / rows, column = 4 * threadIdx.x;
  const unsigned number = (b * row_blocks(p) + row / TILE_M) * HEAD_GROUPS + hk / TOGETHER;
  const work_item work = locate_work(p, number, lane);
  if (!row_exists(work, row % TILE_M)) return;
  const row_shares shares = shares_of_work(work, share_of_team(p, 0, lane));
  if (shares.parts == 1 || column >= DIM_V) return; // the output is complete

  row_part all = {minus_infinity(), 0.0f};
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (unsigned begin = 0; begin < shares.parts; begin += BATCHES * PARTS_AT_ONCE) {
    row_part part[BATCHES][PARTS_AT_ONCE];
    float4 value[BATCHES][PARTS_AT_ONCE];
#pragma unroll
    for (int n = 0; n < BATCHES * PARTS_AT_ONCE; ++n) { // without branches, so that all are on their way together
      const unsigned slot = slot_of(work, shares.first_team, min(begin + n, shares.parts - 1));
      const long long from = (long long)slot * TILE_M + row % TILE_M;
      part[n / PARTS_AT_ONCE][n % PARTS_AT_ONCE] = ((const row_part *)p.partial_states)[from];
      value[n / PARTS_AT_ONCE][n % PARTS_AT_ONCE] = *(const float4 *)(p.partial_outputs + from * DIM_V + column);
    }
#pragma unroll
    for (int n = 0; n < BATCHES; ++n) {
      const unsigned first = begin + n * PARTS_AT_ONCE;
      if (first < shares.parts) add_parts(all, sum, part[n], value[n], shares.parts - first);
    }
  }
  finish_row(p, work, row % TILE_M, column, sum, all);
}
