//%% Where blocks leave for each other, in global memory, what they found of rows that several of them share.
//% local fixed = schedule.split > 0
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

// Who has a share in a work's rows: how many blocks, and the first of them; and where this one leaves its part if it is
// not alone.
struct row_shares {
  unsigned parts, first_team, slot;
};

//% if fixed then
static __device__ __forceinline__ row_shares shares_of_work(const work_item &work, const block_share &) {
  return {work.units, 0, 0}; // which team is the first does not matter
}
//% else
static __device__ __forceinline__ row_shares shares_of_work(const work_item &work, const block_share &share) {
  const unsigned first = team_of(work.unit, share), last = team_of(work.unit + work.slices - 1, share);
  return {last - first + 1, first, 0};
}
//% end

static __device__ __forceinline__ row_shares shares_of_rows(const work_segment &segment, const block_share &share) {
  row_shares shares = shares_of_work(segment.work, share);
  //% if fixed then
  shares.slot = slot_of(segment.work, 0, segment.next - 1 - segment.work.unit);
  //% else
  shares.slot = slot_of(segment.work, shares.first_team, blockIdx.x / TOGETHER - shares.first_team);
  //% end
  return shares;
}
