//%% The kernel behind one that splits keys: adds up what its blocks left of rows that several of them share, a row to a
//%% block, so that all SMs take part.
//% local together = schedule.together
//% local by_head = variant.mask_symbols.h or variant.mask_symbols.hk -- heads see different keys
//% local groups = variant.heads_kv // together
//% local alike = by_head and 1 or groups -- neighbouring works with as many units (parts/split_shares.cu)
//% local units = schedule.split > 0 and "units" or "slices"
constexpr int COMBINE_THREADS = (DIM_V / 4 + 31) / 32 * 32; // four columns of a row each

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
  merge_slots(p, work, shares, row % TILE_M, column);
}
