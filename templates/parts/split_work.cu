//%% Work of blocks that split keys among them: all slices of all tiles of rows, numbered, in equal shares; or, where a
//%% row's bits must not depend on the other sequences, all parts of SPLIT keys of a tile of rows.
//% local units = schedule.split > 0 and "work.units" or "work.slices"
//% local unit = schedule.split > 0 and "part" or "slice"
//% local view = library("attention").view(mask, variant)
//% local place = library("split").place
//% local by_head = variant.mask_symbols.h or variant.mask_symbols.hk -- heads see different keys
//% local together, fixed = schedule.together, schedule.split > 0
//% local groups = variant.heads_kv // together -- of KV heads
//% local alike = by_head and 1 or groups -- neighbouring works with as many slices
//% local times = alike > 1 and " * " .. alike or ""
//% local same_keys = not variant.mask_symbols.b and not view.sequences -- all sequences see as many
// The rows from row_begin on of one KV head of one sequence, and the slices of keys that some of them see: at least
// one, since rows that see nothing have outputs, too.
struct work_item {
  unsigned number;
  int b, hk, row_begin;
  sequence_view view;
  tile_range tiles; // slices
  unsigned slices;  // 0: the sequence has no such rows
  //% if fixed then
  unsigned units;   // parts of PART slices
  unsigned unit;    // number of the first part, among those of all work
  //% else
  unsigned unit;    // number of the first slice, among those of all work
  //% end
};

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
  //% if fixed then
  work.units = (work.slices + PART - 1) / PART;
  //% end
  return work;
}

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
// All lanes of a warp.
static __device__ __forceinline__ block_share share_of_block(const qkv_params &p, int lane) {
  const unsigned team = blockIdx.x / TOGETHER, places = gridDim.x / TOGETHER;
  block_share share;
  share.units = count_all(p, lane);
  share.teams = $(fixed and "min(places, share.units)" or "count_teams(p, places, share.units)");
  const bool works = team < share.teams;
  share.begin = works ? share_begin(team, share) : 0;
  share.end = works ? share_begin(team + 1, share) : 0;
  return share;
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

// The slices of one work that a block takes at a time, before its warps' results are merged.
struct work_segment {
  work_item work;
  int begin, end; // slices
  unsigned next;  // the $(unit) after it
};

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

// The slices of one stream, every KEY_WARPS-th of a segment's, one after the other over all segments of the block.
struct slice_walk {
  work_segment segment;
  int slice;
  bool more;
  //% if variant.layout_kv == "paged" then
  int page; // of the slice, or of the lane's key where a slice has several pages
  //% end
};

//% if variant.layout_kv == "paged" then
// The pages of the slice's keys are looked up ahead of its copies.
static __device__ __forceinline__ void find_page(slice_walk &walk, int lane) {
  const sequence_view &view = walk.segment.work.view;
  //% local slice = place("walk.segment.work", "walk.slice")
  const int k = $(slice) * TILE_N + (PAGE % TILE_N == 0 ? 0 : $(kernel.layout.lane_key));
  walk.page = k < view.len_k ? key_page(view, k) : 0;
}

//% end
// Goes on by so many slices, 0 or all the streams'.
static __device__ __forceinline__ void next_slice(
    const qkv_params &p, slice_walk &walk, const block_share &share, int stream, int slices, int lane) {
  if (!walk.more) return;
  walk.slice += slices;
  while (walk.slice >= walk.segment.end) {
    if (is_last(walk.segment, share)) {
      walk.more = false;
      return;
    }
    walk.segment = next_segment(p, walk.segment, share);
    walk.slice = walk.segment.begin + stream;
  }
  //% if variant.layout_kv == "paged" then
  find_page(walk, lane);
  //% end
}

static __device__ __forceinline__ slice_walk start_slices(
    const qkv_params &p, const work_segment &segment, const block_share &share, int stream, int lane) {
  slice_walk walk;
  walk.segment = segment, walk.slice = segment.begin + stream, walk.more = true;
  next_slice(p, walk, share, stream, 0, lane);
  return walk;
}
