//%% Which tiles of rows a block works on, and in which order. The producer and the consumers walk through it alike.
//% local bounded = mask.form == "rows"
//% -- Later rows see more keys, unless it is known that they see fewer, or only the first visible key moves.
//% local late_first = not (bounded and mask.low_count > 0 and mask.high_count == 0)
//% if mask.growth == "grows" or mask.growth == "shrinks" then late_first = mask.growth == "grows" end
//% local tickets, planned = schedule.scheduler >= 2, schedule.scheduler == 3
//% local longest_first = schedule.l2_mib > 0 and not planned
//% local packed = kernel.layout.packed
//% local fit_factor = packed and "" or "GROUP * "
//% local cluster = schedule.cluster > 1
//% local block, blocks = "blockIdx.x", "gridDim.x"
//% if cluster then block, blocks = "blockIdx.x / CLUSTER", "gridDim.x / CLUSTER" end
//% local wait, arrive, at = "mbar_wait", "mbar_arrive", ""
//% if cluster then wait, arrive, at = "mbar_wait_cluster", "mbar_arrive_remote", ", 0" end
//% local queries, heads = packed and "TILE_QUERIES" or "TILE_M", packed and "HEADS_KV" or "HEADS_Q"
//% local symbols = variant.mask_symbols
//% -- The head's class in the plan, of those that the mask tells apart by head and batch entry.
//% local class = symbols.b and "head" or "head % " .. heads
//% if not symbols.h and not symbols.hk then class = symbols.b and "head / " .. heads
//% elseif not symbols.h and not packed then class = class .. " / GROUP" end
//% local rows = cluster and "CLUSTER_ROWS" or queries -- of a work
//% local ragged_q = variant.layout_q == "ragged"
//% local found = tickets and ragged_q -- among the sequences, by the producer
// A tile of rows$(packed and ": from query row_begin on, from query head h on" or "").
struct work_item {
  int row_begin, h, b;
  //% if mask.dilation then
  int first_row; // the first row of the residue whose rows these are
  //% end
};

//% if cluster then
// Work `number` in the order of their handing out: a cluster's. Each of its blocks has a tile of the rows.
//% elseif planned then
// Work `number`: head by head, tiles of rows as the plan numbers them.
//% elseif found then
// Work `number`: sequence by sequence and head by head, as many tiles of rows as the longest may have.
//% else
// Work `number` in the order of their handing out.
//% end
//% if found then
static __device__ __forceinline__ unsigned row_tiles(const qkv_params &p) {
  return (unsigned)(p.len_q + $(rows) - 1) / $(rows);
}
static __device__ __forceinline__ unsigned work_count(const qkv_params &p) {
  return row_tiles(p) * $(heads) * p.batch;
}
static __device__ __forceinline__ work_item work_of(const qkv_params &p, unsigned number) {
  const unsigned head = number / row_tiles(p);
  work_item work;
  work.row_begin = (int)(number % row_tiles(p)) * $(rows);
  work.h = head % $(heads)$(packed and " * GROUP" or "");
  work.b = head / $(heads);
  return work;
}

//% include "parts/sequence_order_sm90.cu"

//% else
static __device__ __forceinline__ work_item work_of(const qkv_params &p, unsigned number) {
  //% if planned then
  const unsigned row_blocks = row_tiles(p);
  //%   if mask.dilation then
  const unsigned residues = residue_count(p);
  //%   end
  //% elseif mask.dilation then
  const unsigned residues = residue_count(p), tiles = residue_tiles(p, $(rows)), row_blocks = residues * tiles;
  //% else
  const unsigned row_blocks = (p.len_q + $(rows) - 1) / $(rows);
  //% end
  work_item work;
  //% if longest_first then
  //%   local longest = late_first and "late" or "early"
  // Heads whose K and V fit $(schedule.l2_mib) MiB of L2 together; among them $(longest) rows first, which see the most
  // keys.
  const unsigned heads = p.batch * $(heads);
  const unsigned fit = $(fit_factor)max(min(KEYS_IN_L2 / max((unsigned)p.len_k, 1u), 1024u), 1u);
  const unsigned group = number / (row_blocks * fit), first = group * fit, count = min(fit, heads - first);
  const unsigned inside = number - group * row_blocks * fit, row = inside / count, head = first + inside % count;
  //%   local row = late_first and "(row_blocks - 1 - row)" or "row"
  //%   if mask.dilation then
  work.row_begin = (int)($(row) / residues) * $(rows);
  work.first_row = (int)($(row) % residues);
  //%   else
  work.row_begin = (int)$(row) * $(rows);
  //%   end
  //% elseif planned then
  const unsigned head = number / row_blocks, row = number % row_blocks;
  //%   if mask.dilation then
  work.row_begin = (int)(row / residues) * $(rows);
  work.first_row = (int)(row % residues);
  //%   else
  work.row_begin = (int)row * $(rows);
  //%   end
  //% else
  // Rows of one head are neighbours, so that they share K and V in L2.
  const unsigned head = number / row_blocks;
  //%   if mask.dilation then
  const unsigned row = $(bounded and late_first and "row_blocks - 1 - " or "")number % row_blocks; // a residue's first
  work.row_begin = (int)(row % tiles) * $(rows);
  work.first_row = (int)(row / tiles);
  //%   elseif bounded and late_first then
  work.row_begin = (int)(row_blocks - 1 - number % row_blocks) * $(rows);
  //%   else
  work.row_begin = (int)(number % row_blocks) * $(rows);
  //%   end
  //% end
  //% if cluster then
  work.row_begin += cluster_rank() * $(queries);
  //% end
  work.h = head % $(heads)$(packed and " * GROUP" or "");
  work.b = head / $(heads);
  return work;
}

static __device__ __forceinline__ unsigned work_count(const qkv_params &p) {
  //% if mask.dilation then
  return residue_count(p) * residue_tiles(p, $(rows)) * $(heads) * p.batch;
  //% else
  return (unsigned)((p.len_q + $(rows) - 1) / $(rows)) * $(heads) * p.batch;
  //% end
}

//%   if ragged_q then
// Whether the sequence has the rows of work `number`.
static __device__ __forceinline__ bool has_rows(const qkv_params &p, unsigned number) {
  const work_item work = work_of(p, number);
  return work.row_begin < view_sequence(p, work.b).len_q;
}

//%   end
//% end
//% if planned then
// The number of the work that the plan has at `ticket`. Heads that share L2 take turns: first the longest work of each,
// then the next one of each.
static __device__ __forceinline__ unsigned planned_work(const qkv_params &p, unsigned ticket, unsigned together) {
  if (ticket >= work_count(p)) return ticket;
  const unsigned tiles = row_tiles(p), heads = p.batch * $(heads);
  const unsigned group = ticket / (tiles * together), first = group * together, count = min(together, heads - first);
  const unsigned inside = ticket - first * tiles, place = inside / count, head = first + inside % count;
  return head * tiles + (unsigned)p.tile_order[$(class and class .. " * tiles + " or "")place];
}

//% end
// Which work comes next: the producer hands out, the consumers take the same numbers in the same order. After the last
// one comes a number that is none.
//% if tickets then
struct work_queue {
  ring<TICKETS> tickets;
  unsigned next = $(block);
  //% if planned then
  unsigned together = 0; // heads that share L2; 0: not known yet
  //% elseif found then
  sequence_walk rows;
  //% end
};

//%   if cluster then
// Whichever cluster is free takes the next number: every one begins with its own, the counter goes on from there.
//%   else
// Whoever is free takes the next number of all blocks: every block begins with its own, the counter goes on from there.
//%   end
// It is asked for ahead of the last copy of a work: the answer arrives while that waits for its place, and no work is
// promised to a block much sooner than the block is free. Every work asks once, and so the last of them leaves the
// counter as it was found.
static __device__ __forceinline__ void ask_for_work(const qkv_params &p, work_queue &queue) {
  //% local works = found and "queue.rows.total * " .. heads or "work_count(p)"
  //% local ticket = ("atomic_wrap_u32(p.tickets, %s - 1)"):format(works)
  //% if cluster then
  if (cluster_rank() == 0) queue.next = $(blocks) + $(ticket);
  //% else
  queue.next = $(blocks) + $(ticket);
  //% end
}

//%   if cluster then
// Block 0 of the cluster tells all its blocks; their producers take the number as the consumers do.
static __device__ __forceinline__ unsigned hand_out_work(const qkv_params &p, unsigned shared, work_queue &queue) {
  const int stage = queue.tickets.stage(), parity = queue.tickets.parity();
  const unsigned full = shared + TICKET_FULL + 8 * stage, empty = shared + TICKET_EMPTY + 8 * stage;
  unsigned number = queue.next;
  if (cluster_rank() == 0) {
    mbar_wait_cluster(empty, parity ^ 1);
    for (int cta = 0; cta < CLUSTER; ++cta) {
      store_remote_u32(shared + TICKET_OFFSET + 4 * stage, number, cta);
      mbar_arrive_remote(full, cta);
    }
  } else {
    mbar_wait_cluster(full, parity);
    number = *(unsigned *)(shared_arena() + TICKET_OFFSET + 4 * stage);
    mbar_arrive_remote(empty, 0);
  }
  queue.tickets.advance();
  return number;
}
//%   elseif found then
static __device__ __forceinline__ unsigned hand_out_work(
    const qkv_params &p, unsigned shared, work_queue &queue, int lane) {
  const unsigned number = find_work(p, warp_uniform(queue.next), queue.rows, lane);
  if (lane == 0) {
    mbar_wait(shared + TICKET_EMPTY + 8 * queue.tickets.stage(), queue.tickets.parity() ^ 1);
    *(unsigned *)(shared_arena() + TICKET_OFFSET + 4 * queue.tickets.stage()) = number;
    mbar_arrive(shared + TICKET_FULL + 8 * queue.tickets.stage());
  }
  queue.tickets.advance();
  return number;
}
//%   else
static __device__ __forceinline__ unsigned hand_out_work(const qkv_params &p, unsigned shared, work_queue &queue) {
  //% if planned then
  if (queue.together == 0) queue.together = *p.heads_together;
  const unsigned number = planned_work(p, queue.next, queue.together);
  //% else
  const unsigned number = queue.next;
  //% end
  mbar_wait(shared + TICKET_EMPTY + 8 * queue.tickets.stage(), queue.tickets.parity() ^ 1);
  *(unsigned *)(shared_arena() + TICKET_OFFSET + 4 * queue.tickets.stage()) = number;
  mbar_arrive(shared + TICKET_FULL + 8 * queue.tickets.stage());
  queue.tickets.advance();
  return number;
}
//%   end

static __device__ __forceinline__ unsigned take_work(
    const qkv_params &p, unsigned shared, work_queue &queue, int lane) {
  $(wait)(shared + TICKET_FULL + 8 * queue.tickets.stage(), queue.tickets.parity());
  const unsigned number = *(unsigned *)(shared_arena() + TICKET_OFFSET + 4 * queue.tickets.stage());
  warp_sync();
  if (lane == 0) $(arrive)(shared + TICKET_EMPTY + 8 * queue.tickets.stage()$(at));
  queue.tickets.advance();
  return number;
}
//% else
struct work_queue {
  unsigned round = 0;
};

static __device__ __forceinline__ void ask_for_work(const qkv_params &p, work_queue &queue) {}

//%   if schedule.scheduler == 1 then
//%     if cluster then
// The cluster's share: one of every round of all clusters, there and back, so that long and short ones even out.
//%     else
// The block's share: one of every round of gridDim.x, there and back, so that long and short ones even out.
//%     end
//%     if ragged_q then
static __device__ __forceinline__ unsigned hand_out_work(const qkv_params &p, unsigned shared, work_queue &queue) {
  for (;;) {
    const unsigned round = queue.round++;
    const unsigned number = round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    if (number >= work_count(p) || has_rows(p, number)) return number;
  }
}
//%     else
static __device__ __forceinline__ unsigned hand_out_work(const qkv_params &p, unsigned shared, work_queue &queue) {
  const unsigned round = queue.round++;
  //%     if cluster then
  const unsigned clusters = $(blocks), own = $(block);
  return round * clusters + (round % 2 == 0 ? own : clusters - 1 - own);
  //%     else
  return round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  //%     end
}
//%     end
//%   else
// A block, a tile.
static __device__ __forceinline__ unsigned hand_out_work(const qkv_params &p, unsigned shared, work_queue &queue) {
  //%   if ragged_q then
  return queue.round++ == 0 && has_rows(p, blockIdx.x) ? blockIdx.x : work_count(p);
  //%   else
  return queue.round++ == 0 ? $(block) : work_count(p);
  //%   end
}
//%   end

static __device__ __forceinline__ unsigned take_work(
    const qkv_params &p, unsigned shared, work_queue &queue, int lane) {
  return hand_out_work(p, shared, queue);
}
//% end
