//%% Work of blocks that split keys among them: the slices of keys that the tiles of rows see. Which of them a block
//%% takes is split_shares.cu's or split_clusters.cu's.
//% local split = library("split")
//% local view = library("attention").view(mask, variant)
//% local place = split.place
//% local together, fixed, cluster = schedule.together, schedule.split > 0, split.cluster(schedule)
//% local head_groups = cluster and "HEADS_KV" or "HEAD_GROUPS"
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
  //% elseif not cluster then
  unsigned unit;    // number of the first slice, among those of all work
  //% end
};

static __device__ __forceinline__ unsigned row_blocks(const qkv_params &p) {
  return (p.len_q * GROUP + TILE_M - 1) / TILE_M;
}
static __device__ __forceinline__ unsigned work_count(const qkv_params &p) {
  return p.batch * row_blocks(p) * $(head_groups);
}

// Work `number`: KV heads are neighbours, then tiles of rows, then sequences.
//% local unit = cluster and "" or ", unsigned unit"
static __device__ __forceinline__ work_item work_of(const qkv_params &p, unsigned number$(unit)) {
  work_item work;
  work.number = number$(cluster and "" or ", work.unit = unit");
  work.hk = number % $(head_groups)$(together > 1 and " * TOGETHER + blockIdx.x % TOGETHER" or "");
  const unsigned entry = number / $(head_groups);
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

// The slices of one work that a block takes at a time, before its warps' results are merged.
struct work_segment {
  work_item work;
  int begin, end; // slices
  //% local after = fixed and "the part after it" or "the slice after it"
  //% if cluster then after = "the block's next work, its number" end
  unsigned next;  // $(after)
};

//% include(cluster and "parts/split_clusters.cu" or "parts/split_shares.cu")

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
