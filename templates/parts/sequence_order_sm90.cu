//%% Tickets of packed queries: a ticket stands for a tile of rows that a sequence has, whatever the declared maxima
//%% are. The producer's warp finds it by counting tiles, 32 sequences at a time from where it stands; tickets only
//%% grow, and so do tiles, until the next heads begin. Consumers are told the work's number, which decodes without a
//%% search.
//% local packed = kernel.layout.packed
//% local queries, heads = packed and "TILE_QUERIES" or "TILE_M", packed and "HEADS_KV" or "HEADS_Q"
//% local together = schedule.l2_mib > 0
//% local fit_factor = packed and "" or "GROUP * "
//% -- Later rows see more keys, unless it is known that they see fewer, or only the first visible key moves.
//% local late_first = not (mask.form == "rows" and mask.low_count > 0 and mask.high_count == 0)
//% if mask.growth == "grows" or mask.growth == "shrinks" then late_first = mask.growth == "grows" end
// Where the producer stands among the tiles of rows of all sequences.
struct sequence_walk {
  unsigned total = 0xffffffff; // tiles of all sequences; this many: not counted yet
  int first = 0;               // the first of 32 sequences
  unsigned before = 0;         // tiles of those before it
};

static __device__ __forceinline__ unsigned tiles_of_sequence(const qkv_params &p, int b) {
  return b < p.batch ? (unsigned)(view_sequence(p, b).len_q + $(queries) - 1) / $(queries) : 0u;
}

static __device__ __forceinline__ void count_tiles(const qkv_params &p, sequence_walk &walk, int lane) {
  int tiles = 0;
  for (int b = lane; b < p.batch; b += 32) tiles += tiles_of_sequence(p, b);
  walk.total = warp_add_i32(tiles);
}

// The number of the work that `ticket` stands for, or one that is none. All lanes.
//% local rows_first = late_first and "Late" or "Early"
//% if together then
// Heads whose K and V fit $(schedule.l2_mib) MiB of L2 together take turns, sequence by sequence.
//% else
// Head by head, sequence by sequence.
//% end
// $(rows_first) rows come first, which see the most keys.
static __device__ __forceinline__ unsigned find_work(
    const qkv_params &p, unsigned ticket, sequence_walk &walk, int lane) {
  if (walk.total == 0xffffffff) count_tiles(p, walk, lane);
  if (ticket >= walk.total * $(heads)) return work_count(p);
  //% if together then
  const unsigned fit = $(fit_factor)max(min(KEYS_IN_L2 / max((unsigned)p.len_k, 1u), 1024u), 1u);
  const unsigned group = ticket / (walk.total * fit), first = group * fit, count = min(fit, $(heads) - first);
  const unsigned inside = ticket - first * walk.total, row = inside / count, head = first + inside % count;
  //% else
  const unsigned head = ticket / walk.total, row = ticket % walk.total;
  //% end
  if (row < walk.before) walk.first = 0, walk.before = 0; // the next heads
  for (;; walk.first += 32) {
    const unsigned own = tiles_of_sequence(p, walk.first + lane);
    unsigned end = own; // of the lane's tiles, counted from `before` on
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = shuffle_i32(end, lane - step);
      if (lane >= step) end += other;
    }
    const int at = population_count(vote_ballot(walk.before + end <= row)); // its lane
    if (at < 32) {
      const unsigned behind = walk.before + shuffle_i32(end, at) - row; // tiles of the sequence from this one on
      const unsigned tile = $(late_first and "behind - 1" or "shuffle_i32(own, at) - behind");
      return ((walk.first + at) * $(heads) + head) * row_tiles(p) + tile;
    }
    walk.before += shuffle_i32(end, 31);
  }
}
