//%% Work of blocks that split keys among them: all slices of all tiles of rows, numbered, in equal shares.
//% local view = library("attention").view(mask, variant)
//% local by_head = variant.mask_symbols.h or variant.mask_symbols.hk -- heads see different keys
//% local together = schedule.together
//% local groups = variant.heads_kv // together -- of KV heads
//% local alike = by_head and 1 or groups -- neighbouring works with as many slices
//% local times = alike > 1 and " * " .. alike or ""
//% local uniform = not by_head and not variant.mask_symbols.b and not view.sequences -- sequences see as many keys
// The rows from row_begin on of one KV head of one sequence, and the slices of keys that some of them see: at least
// one, since rows that see nothing have outputs, too.
struct work_item {
  unsigned number;
  int b, hk, row_begin;
  sequence_view view;
  tile_range tiles; // slices
  unsigned slices;  // 0: the sequence has no such rows
  unsigned unit;    // number of the first of them, among those of all work
};

//% if together > 1 then
// The slices that a team of TOGETHER blocks works on, by number. Each block has a KV head of its own, so that a key's
// rows of these heads, which are neighbours in memory, are read at about the same time.
//% else
// The slices that a team works on, by number. A team is one block.
//% end
struct block_share {
  unsigned begin, end;
  unsigned units, teams; // slices of all; teams that have a share
};

static __device__ __forceinline__ unsigned row_blocks(const qkv_params &p) {
  return (p.len_q * GROUP + TILE_M - 1) / TILE_M;
}
static __device__ __forceinline__ unsigned work_count(const qkv_params &p) {
  return p.batch * row_blocks(p) * HEAD_GROUPS;
}

// Work `number`: KV heads are neighbours, then tiles of rows, then sequences.
static __device__ __forceinline__ work_item work_of(const qkv_params &p, unsigned number, unsigned unit) {
  work_item work;
  work.number = number, work.unit = unit;
  work.hk = number % HEAD_GROUPS$(together > 1 and " * TOGETHER + blockIdx.x % TOGETHER" or "");
  const unsigned entry = number / HEAD_GROUPS;
  work.row_begin = entry % row_blocks(p) * TILE_M;
  work.b = entry / row_blocks(p);
  work.view = view_sequence(p, work.b);
  const sequence_view &view = work.view;
  work.tiles = visible_tiles(p, work.row_begin / GROUP, $(view.argument == "view" and "view" or "view.position"),
                             work.hk * GROUP, work.hk, work.b);
  work.slices = work.row_begin < view.len_q * GROUP ? max(work.tiles.end - work.tiles.begin, 1) : 0;
  return work;
}

// The next one that has a slice. There must be one.
static __device__ __forceinline__ work_item next_work(const qkv_params &p, work_item work) {
  do work = work_of(p, work.number + 1, work.unit + work.slices);
  while (work.slices == 0);
  return work;
}

//% if alike == 1 then
// Slices of work `number`.
//% else
// Slices of work `number` and its like: the $(groups) of one tile of rows.
//% end
static __device__ __forceinline__ unsigned count_slices(const qkv_params &p, unsigned number) {
  return number < work_count(p) ? work_of(p, number, 0).slices$(times) : 0;
}

// The first slice of a team.
static __device__ __forceinline__ unsigned share_begin(unsigned team, const block_share &share) {
  return (unsigned long long)team * share.units / share.teams;
}
// The team whose share has slice `unit`.
static __device__ __forceinline__ unsigned team_of(unsigned unit, const block_share &share) {
  return (((unsigned long long)unit + 1) * share.teams - 1) / share.units;
}

// All lanes of a warp. No team has less than a slice for each warp of a block, unless there are too few.
static __device__ __forceinline__ block_share share_of_block(const qkv_params &p, int lane) {
  //% if uniform then
  unsigned units = count_slices(p, 0) * p.batch;
  if (row_blocks(p) > 1) {
    units = 0;
    for (unsigned number = lane$(times); number < work_count(p); number += $(32 * alike))
      units += count_slices(p, number);
    units = warp_add_i32(units);
  }
  //% else
  unsigned units = 0;
  for (unsigned number = lane$(times); number < work_count(p); number += $(32 * alike))
    units += count_slices(p, number);
  units = warp_add_i32(units);
  //% end
  const unsigned team = blockIdx.x / TOGETHER;
  block_share share;
  share.units = units;
  share.teams = min(gridDim.x / TOGETHER, (units + WARPS - 1) / WARPS);
  const bool works = team < share.teams;
  share.begin = works ? share_begin(team, share) : 0;
  share.end = works ? share_begin(team + 1, share) : 0;
  return share;
}

// The work that slice `unit` belongs to. All lanes of a warp.
static __device__ __forceinline__ work_item find_work(const qkv_params &p, unsigned unit, int lane) {
  //% if uniform then
  if (row_blocks(p) == 1) { // every work has as many
    const unsigned slices = work_of(p, 0, 0).slices;
    return work_of(p, unit / slices, unit / slices * slices);
  }
  //% end
  unsigned before = 0, number = 0; // slices of the work before `number`
  for (;;) {
    const unsigned own = count_slices(p, number + lane$(times));
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
  const unsigned heads = (unit - before) / work.slices;
  work.number += heads, work.hk += heads * TOGETHER, work.unit += heads * work.slices;
  //% end
  return work;
}

// Of a work's slices, those of the block's share.
static __device__ __forceinline__ int first_slice(const work_item &work, const block_share &share) {
  return work.tiles.begin + (int)(max(share.begin, work.unit) - work.unit);
}
static __device__ __forceinline__ int last_slice(const work_item &work, const block_share &share) { // one past it
  return work.tiles.begin + (int)(min(share.end, work.unit + work.slices) - work.unit);
}

// A warp's slices, one after the other, over all the work of the block.
struct slice_walk {
  work_item work;
  int slice, end;
  bool more;
  //% if variant.layout_kv == "paged" then
  int page; // of the slice's key number `lane`, where a slice has several pages
  //% end
};

//% if variant.layout_kv == "paged" then
// The pages of the slice's keys are looked up ahead of its copies.
static __device__ __forceinline__ void find_page(slice_walk &walk, int lane) {
  const int k = walk.slice * TILE_N + (PAGE % TILE_N == 0 ? 0 : min(lane, TILE_N - 1));
  walk.page = k < walk.work.view.len_k ? key_page(walk.work.view, k) : 0;
}

//% end
// Goes on by so many slices, 0 or all the warps'.
static __device__ __forceinline__ void next_slice(
    const qkv_params &p, slice_walk &walk, const block_share &share, int warp, int slices, int lane) {
  if (!walk.more) return;
  walk.slice += slices;
  while (walk.slice >= walk.end) {
    if (share.end <= walk.work.unit + walk.work.slices) {
      walk.more = false;
      return;
    }
    walk.work = next_work(p, walk.work);
    walk.slice = walk.work.tiles.begin + warp, walk.end = last_slice(walk.work, share);
  }
  //% if variant.layout_kv == "paged" then
  find_page(walk, lane);
  //% end
}

static __device__ __forceinline__ slice_walk start_slices(
    const qkv_params &p, const work_item &work, const block_share &share, int warp, int lane) {
  slice_walk walk;
  walk.work = work, walk.more = true;
  walk.slice = first_slice(work, share) + warp, walk.end = last_slice(work, share);
  next_slice(p, walk, share, warp, 0, lane);
  return walk;
}
