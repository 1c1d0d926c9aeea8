//%% Shares of blocks: all slices of all tiles of rows, numbered, in equal shares; or, where a row's bits must not
//%% depend on the other sequences, all parts of SPLIT keys of a tile of rows.
//% local view = library("attention").view(mask, variant)
//% local together, fixed = schedule.together, schedule.split > 0
//% local units = fixed and "work.units" or "work.slices"
//% local unit = fixed and "part" or "slice"
//% local combines = schedule.merge == 1
//% local by_head = variant.mask_symbols.h or variant.mask_symbols.hk -- heads see different keys
//% local groups = variant.heads_kv // together -- of KV heads
//% local alike = by_head and 1 or groups -- neighbouring works with as many slices
//% local times = alike > 1 and " * " .. alike or ""
//% local same_keys = not variant.mask_symbols.b and not view.sequences -- all sequences see as many
//% if together > 1 then
// The $(unit)s that a team of TOGETHER blocks works on, by number. Each block has a KV head of its own, so that a key's
// rows of these heads, which are neighbours in memory, are read at about the same time.
//% else
// The $(unit)s that a team works on, by number. A team is one block.
//% end
struct block_share {
  unsigned begin, end;
  unsigned units, teams; // $(unit)s of all; teams that have a share
};

// The next one that has a slice. There must be one.
static __device__ __forceinline__ work_item next_work(const qkv_params &p, work_item work) {
  do work = work_of(p, work.number + 1, work.unit + $(units));
  while (work.slices == 0);
  return work;
}

//% if alike == 1 then
// $(unit == "part" and "Parts" or "Slices") of work `number`.
//% else
// $(unit == "part" and "Parts" or "Slices") of work `number` and its like: the $(groups) of one tile of rows.
//% end
static __device__ __forceinline__ unsigned count_units(const qkv_params &p, unsigned number) {
  return number < work_count(p) ? work_of(p, number, 0)$(units:sub(5))$(times) : 0;
}

// The first $(unit) of a team.
static __device__ __forceinline__ unsigned share_begin(unsigned team, const block_share &share) {
  return (unsigned long long)team * share.units / share.teams;
}
//% if not fixed then
// The team whose share has $(unit) `unit`.
static __device__ __forceinline__ unsigned team_of(unsigned unit, const block_share &share) {
  return (((unsigned long long)unit + 1) * share.teams - 1) / share.units;
}
//% end

//% if not by_head then
// Whether it is clear without looking that all work has as many $(unit)s.
static __device__ __forceinline__ bool all_alike(const qkv_params &p) {
  return row_blocks(p) == 1$(same_keys and "" or " && p.batch == 1");
}

//% end
// The $(unit)s of all work. All lanes of a warp.
static __device__ __forceinline__ unsigned count_all(const qkv_params &p, int lane) {
  //% if not by_head then
  if (all_alike(p)) return count_units(p, 0) * p.batch;
  //% end
  unsigned units = 0;
  for (unsigned number = lane$(times); number < work_count(p); number += $(32 * alike))
    units += count_units(p, number);
  return warp_add_i32(units);
}

//% if not fixed then
// Teams in so many places: none with less than a slice for each stream of a block, and none with two works where works
// are few, since a merge then takes as long as the keys.
static __device__ __forceinline__ unsigned count_teams(const qkv_params &p, unsigned places, unsigned units) {
  //% if not by_head then
  const unsigned works = work_count(p);
  if (all_alike(p) && 4 * works <= places) places = places / works * works;
  //% end
  return min(places, (units + KEY_WARPS - 1) / KEY_WARPS);
}

//% end
//% if combines then
// Places of teams in the grid of qkv_kernel, which fills the GPU.
static __device__ __forceinline__ unsigned team_places(const qkv_params &p) {
  return p.sm_count$(kernel.launches[1].blocks_per_sm > 1 and " * BLOCKS_PER_SM" or "") / TOGETHER;
}

//% end
// The share of a team. All lanes of a warp.
static __device__ __forceinline__ block_share share_of_team(const qkv_params &p, unsigned team, int lane) {
  const unsigned places = $(combines and "team_places(p)" or "gridDim.x / TOGETHER");
  block_share share;
  share.units = count_all(p, lane);
  share.teams = $(fixed and "min(places, share.units)" or "count_teams(p, places, share.units)");
  const bool works = team < share.teams;
  share.begin = works ? share_begin(team, share) : 0;
  share.end = works ? share_begin(team + 1, share) : 0;
  return share;
}
static __device__ __forceinline__ block_share share_of_block(const qkv_params &p, int lane) {
  return share_of_team(p, blockIdx.x / TOGETHER, lane);
}

// The work that $(unit) `unit` belongs to. All lanes of a warp.
static __device__ __forceinline__ work_item find_work(const qkv_params &p, unsigned unit, int lane) {
  //% if not by_head then
  if (all_alike(p)) {
    const unsigned each = work_of(p, 0, 0)$(units:sub(5));
    return work_of(p, unit / each, unit / each * each);
  }
  //% end
  unsigned before = 0, number = 0; // $(unit)s of the work before `number`
  for (;;) {
    const unsigned own = count_units(p, number + lane$(times));
    unsigned sum = own; // with the lanes before
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = shuffle_i32(sum, lane - step);
      if (lane >= step) sum += other;
    }
    const unsigned here = vote_ballot(before + sum > unit);
    if (here) {
      const int first = 31 - leading_zeros(here & -here);
      number += first$(times), before += shuffle_i32(sum - own, first);
      break;
    }
    number += $(32 * alike), before += shuffle_i32(sum, 31);
  }
  work_item work = work_of(p, number, before);
  //% if alike > 1 then
  const unsigned heads = (unit - before) / $(units);
  work.number += heads, work.hk += heads * TOGETHER, work.unit += heads * $(units);
  //% end
  return work;
}

// From $(unit) `unit` of the work on.
static __device__ __forceinline__ work_segment segment_of(
    const work_item &work, unsigned unit, const block_share &share) {
  work_segment segment;
  segment.work = work;
  //% if fixed then
  const unsigned first = (unit - work.unit) * PART;
  segment.begin = work.tiles.begin + (int)first;
  segment.end = work.tiles.begin + (int)min(first + PART, work.slices);
  segment.next = unit + 1;
  //% else
  segment.next = min(share.end, work.unit + work.slices);
  segment.begin = work.tiles.begin + (int)(unit - work.unit);
  segment.end = work.tiles.begin + (int)(segment.next - work.unit);
  //% end
  return segment;
}

static __device__ __forceinline__ bool is_last(const work_segment &segment, const block_share &share) {
  return segment.next >= share.end;
}
static __device__ __forceinline__ work_segment next_segment(
    const qkv_params &p, const work_segment &segment, const block_share &share) {
  //% if fixed then
  const bool goes_on = segment.next < segment.work.unit + segment.work.units;
  return segment_of(goes_on ? segment.work : next_work(p, segment.work), segment.next, share);
  //% else
  return segment_of(next_work(p, segment.work), segment.next, share);
  //% end
}
// The first segment of a block that has a share. All lanes of a warp.
static __device__ __forceinline__ work_segment first_segment(const qkv_params &p, const block_share &share, int lane) {
  return segment_of(find_work(p, share.begin, lane), share.begin, share);
}
