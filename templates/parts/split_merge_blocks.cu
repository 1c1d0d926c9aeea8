//%% The last block of those that share rows adds up what all left.
//% local fixed = schedule.split > 0
//% local layout = kernel.layout -- threads, meet: the constant that counts who merge, and how they wait for each other
// Tells the others that this block's part is in its slot; the last to do so adds up what all left, in the order of the
// keys. All threads that merge, which have waited for each other's writes.
static __device__ __forceinline__ void merge_blocks(
    const qkv_params &p, const work_item &work, const row_shares &shares) {
  const unsigned first_team = shares.first_team, parts = shares.parts;
  unsigned *is_last = (unsigned *)(shared_arena() + STATES_OFFSET);
  if (threadIdx.x == 0) {
    int *arrived = p.arrived + $(fixed and "work.unit" or "first_team") * TOGETHER + blockIdx.x % TOGETHER;
    *is_last = atomic_add_i32_acq_rel(arrived, 1) == (int)parts - 1;
    if (*is_last) *arrived = 0; // for the next call
  }
  $(layout.meet);
  const bool adds = *is_last != 0;
  $(layout.meet); // the states may be written again
  if (!adds) return;
  for (int item = threadIdx.x; item < TILE_M * DIM_V / 4; item += $(layout.threads)) {
    const int tile_row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4;
    if (!row_exists(work, tile_row)) break;
    row_part all = {minus_infinity(), 0.0f};
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (unsigned begin = 0; begin < parts; begin += PARTS_AT_ONCE) {
      row_part part[PARTS_AT_ONCE];
      float4 value[PARTS_AT_ONCE];
#pragma unroll
      for (int n = 0; n < PARTS_AT_ONCE; ++n) { // without branches, so that all loads are on their way together
        const long long from = (long long)slot_of(work, first_team, min(begin + n, parts - 1)) * TILE_M + tile_row;
        part[n] = ((const row_part *)p.partial_states)[from];
        value[n] = *(const float4 *)(p.partial_outputs + from * DIM_V + column);
      }
      add_parts(all, sum, part, value, parts - begin);
    }
    finish_row(p, work, tile_row, column, sum, all);
  }
}
