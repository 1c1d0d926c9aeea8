//%% The last block of those that share rows adds up what all left.
//% local fixed = schedule.split > 0
//% local layout = kernel.layout -- threads, meet: the constant that counts who merge, and how they wait for each other
// Tells the others that this block's part is in its slot; the last to do so adds up what all left, in the order of the
// keys. All threads that merge, which have waited for each other's writes.
static __device__ __forceinline__ void merge_blocks(
    const qkv_params &p, const work_item &work, const row_shares &shares) {
  unsigned *is_last = (unsigned *)(shared_arena() + STATES_OFFSET);
  if (threadIdx.x == 0) {
    int *arrived = p.arrived + $(fixed and "work.unit" or "shares.first_team") * TOGETHER + blockIdx.x % TOGETHER;
    *is_last = atomic_add_i32_acq_rel(arrived, 1) == (int)shares.parts - 1;
    if (*is_last) *arrived = 0; // for the next call
  }
  $(layout.meet);
  const bool adds = *is_last != 0;
  $(layout.meet); // the states may be written again
  if (!adds) return;
  for (int item = threadIdx.x; item < TILE_M * DIM_V / 4; item += $(layout.threads)) {
    const int tile_row = item / (DIM_V / 4), column = item % (DIM_V / 4) * 4;
    if (!row_exists(work, tile_row)) break;
    merge_slots(p, work, shares, tile_row, column);
  }
}
