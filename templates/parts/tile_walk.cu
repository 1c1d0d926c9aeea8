//%% The tiles of keys that the rows of a tile see, one by one from the last to the first, where they are no single
//%% range. They come in words of 32 tiles: a bit for a tile that must be visited, one for a tile in which every row
//%% sees every key. A word is derived from intervals (mask.walk "intervals"), asked of the box program, a tile a lane
//%% ("boxes"), or read from the map that qkv_plan_map made ("map"). All lanes of a warp walk together. On Hopper the
//%% producer walks alone, and looks for tiles in one place of its loop: less code.
//% local alone = kernel.layout.told > 0
//% local packed = kernel.layout.packed
//% local queries = packed and "TILE_QUERIES" or "TILE_M"
//% local by_head = packed and variant.mask_symbols.h -- the heads of a tile see different keys
//% local boxes = mask.walk == "boxes"
//% local bounded = mask.form == "rows"
//% local attention = library("attention")
//% local view = attention.view(mask, variant)
//% local edge = attention.names(view, {first = "first", last = "last", h = by_head and "head" or "h", hk = "hk",
//%   b = "b", len_q = view.len_q, len_k = view.len_k})
//% local last_row = ("min(row_begin + %s, %s) - 1 + %s"):format(queries, view.len_q, view.position)
//% local row_names = attention.names(view, {q = "row", h = edge.h, hk = "hk", b = "b", len_q = view.len_q,
//%   len_k = view.len_k})
//% local place = "int row_begin, " .. view.parameter .. ", int h, int hk, int b, int lane"
//% local here = "row_begin, " .. view.argument .. ", h, hk, b, lane"
struct tile_word {
  unsigned visited, whole;
};

struct tile_walk {
  int word, lowest;        // tiles 32 word to 32 word + 31 are being walked
  unsigned visited, whole; // of them: those still to come; those in which every row sees every key
  //% if boxes then
  unsigned words; // the words still to come among 32 of them, by number % 32: those with a tile to visit
  //% end

  __device__ __forceinline__ bool more() const { return visited != 0; }
  __device__ __forceinline__ int bit() const { return 31 - leading_zeros(visited); }
  __device__ __forceinline__ int tile() const { return 32 * word + bit(); }
  __device__ __forceinline__ bool masked() const { return (whole >> bit() & 1) == 0; }
};

//% if mask.walk == "intervals" then
//%   local sides = {
//%     {name = "low", visit = "visit_begin", full = "full_begin", visit_of = "min", full_of = "max",
//%      visit_start = view.len_k, full_start = "0"},
//%     {name = "high", visit = "visit_end", full = "full_end", visit_of = "max", full_of = "min",
//%      visit_start = "0", full_start = view.len_k},
//%   }
// Of a word's tiles those from begin up to end.
static __device__ __forceinline__ unsigned tile_bits(int word, int begin, int end) {
  const int low = min(max(begin - 32 * word, 0), 32), high = min(max(end - 32 * word, 0), 32);
  return high > low ? (unsigned)((1ull << high) - (1ull << low)) : 0u;
}

static __device__ __forceinline__ tile_word tiles_of_word(
    const qkv_params &p, int word, $(place)) {
  tile_word tiles = {0u, $(by_head and "0xffffffffu" or "0u")};
  const int first = row_begin + $(view.position), last = $(last_row);
  //%   local indent = ""
  //%   if by_head then
  // Visited is what some head sees, free of the mask what all of them see.
  for (int head = h; head < h + GROUP; ++head) {
    unsigned whole = 0u;
  //%   end
  //%   for n = 1, mask.intervals do
  {
    //%   for _, side in ipairs(sides) do
    //%     if mask.by_row[n][side.name] then
    int $(side.visit) = $(side.visit_start), $(side.full) = $(side.full_start);
    for (int row = first + lane; row <= last; row += 32) {
      const int bound = $(cuda_interval_side(n, side.name, row_names));
      $(side.visit) = $(side.visit_of)($(side.visit), bound), $(side.full) = $(side.full_of)($(side.full), bound);
    }
    $(side.visit) = warp_$(side.visit_of)_i32($(side.visit)), $(side.full) = warp_$(side.full_of)_i32($(side.full));
    //%     else
    const int $(side.visit) = $(cuda_interval_edge(n, side.visit, edge));
    const int $(side.full) = $(cuda_interval_edge(n, side.full, edge));
    //%     end
    //%   end
    if (visit_end > visit_begin)
      tiles.visited |= tile_bits(word, visit_begin / TILE_N, (visit_end + TILE_N - 1) / TILE_N);
    $(by_head and "whole" or "tiles.whole") |= tile_bits(word, (full_begin + TILE_N - 1) / TILE_N, full_end / TILE_N);
  }
  //%   end
  //%   if by_head then
    tiles.whole &= whole;
  }
  //%   end
  return tiles;
}
//% elseif boxes then
// What the mask may be for rows first to last and some keys.
struct box_answer {
  bool may_be_true, may_be_false;
};

static __device__ box_answer ask_box(
    const qkv_params &p, int first, int last, int first_key, int last_key, int h, int hk, int b$(view.also)) {
  //%   local box = cuda_box(attention.names(view, {q_first = "first", q_last = "last", k_first = "first_key",
  //%     k_last = "last_key", h_first = "h", h_last = by_head and "h + GROUP - 1" or "h", hk = "hk", b = "b",
  //%     len_q = view.len_q, len_k = view.len_k}))
  //%   for _, line in ipairs(box.lines) do
  $(line)
  //%   end
  return {$(box.may_be_true), $(box.may_be_false)};
}

// Lane l asks for the keys of the l-th of 32 neighbours of `tiles` tiles each: bits of those to be visited, and of
// those in which every row sees every key.
static __device__ __forceinline__ tile_word ask_boxes(
    const qkv_params &p, int first_tile, int tiles, $(place)) {
  const int first = row_begin + $(view.position), last = $(last_row);
  const int first_key = (first_tile + lane * tiles) * TILE_N, end_key = first_key + tiles * TILE_N;
  const bool some = first_key < $(view.len_k);
  box_answer answer = {false, false};
  if (some) answer = ask_box(p, first, last, first_key, min(end_key, $(view.len_k)) - 1, h, hk, b$(view.also_argument));
  tile_word found;
  found.visited = vote_ballot(some && answer.may_be_true);
  found.whole = vote_ballot(end_key <= $(view.len_k) && !answer.may_be_false);
  return found;
}
//% else
static __device__ __forceinline__ tile_word tiles_of_word(
    const qkv_params &p, int word, $(place)) {
  //%   local head = variant.mask_symbols.h and not packed and "h" or "hk"
  const unsigned *entry = p.map + 2 * map_index(p, row_begin / $(queries), word, $(head), b);
  return {entry[0], entry[1]};
}
//% end

// Goes on to the next word with a tile to visit, or stays at one without.
static __device__ __forceinline__ void find_tiles(
    const qkv_params &p, tile_walk &walk, $(place)) {
  //% if boxes then
  while (walk.visited == 0 && (walk.words != 0 || walk.word / 32 * 32 > walk.lowest)) {
    const bool neighbours = walk.words == 0; // of the 32 words before these: which have a tile?
    walk.word = walk.word / 32 * 32 + (neighbours ? -1 : 31 - leading_zeros(walk.words));
    const int first_tile = neighbours ? walk.word / 32 * 1024 : walk.word * 32;
    const tile_word found = ask_boxes(p, first_tile, neighbours ? 32 : 1, $(here));
    if (neighbours) {
      walk.words = found.visited;
    } else {
      walk.words &= ~(1u << walk.word % 32);
      walk.visited = found.visited, walk.whole = found.whole;
    }
  }
  //% else
  while (walk.visited == 0 && walk.word > walk.lowest) {
    const tile_word tiles = tiles_of_word(p, --walk.word, $(here));
    walk.visited = tiles.visited, walk.whole = tiles.whole;
  }
  //% end
}

//% if alone then
// Ahead of the first tile: find_tiles goes there.
//% end
static __device__ __forceinline__ tile_walk start_walk(
    const qkv_params &p, $(place)) {
  tile_walk walk;
  //% if bounded then
  [[maybe_unused]] const int first = row_begin + $(view.position);
  [[maybe_unused]] const int last = $(last_row);
  //% end
  //% if bounded and by_head then
  int key_begin = $(view.len_k), key_end = 0;
  for (int head = h; head < h + GROUP; ++head) {
    key_begin = min(key_begin, max($(cuda_edge("visit_begin", edge)), 0));
    key_end = max(key_end, min($(cuda_edge("visit_end", edge)), $(view.len_k)));
  }
  //% elseif bounded then
  const int key_begin = max($(cuda_edge("visit_begin", edge)), 0);
  const int key_end = min($(cuda_edge("visit_end", edge)), $(view.len_k));
  //% else
  const int key_begin = 0, key_end = $(view.len_k);
  //% end
  const int begin = key_begin / (32 * TILE_N), end = (key_end + 32 * TILE_N - 1) / (32 * TILE_N); // words
  //% if boxes then
  walk.word = max((end + 31) / 32 * 32, 0), walk.lowest = begin / 32 * 32, walk.words = 0;
  //% else
  walk.word = max(end, begin), walk.lowest = begin;
  //% end
  walk.visited = walk.whole = 0;
  //% if not alone then
  find_tiles(p, walk, $(here));
  //% end
  return walk;
}
//% if not alone then

static __device__ __forceinline__ void next_tile(
    const qkv_params &p, tile_walk &walk, $(place)) {
  walk.visited &= ~(1u << walk.bit());
  if (walk.visited == 0) find_tiles(p, walk, $(here));
}
//% end
