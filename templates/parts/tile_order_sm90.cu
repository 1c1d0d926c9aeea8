//%% Which tiles of rows a block works on, and in which order. The producer and the consumers walk through it alike.
//% local bounded = mask.form == "rows"
//% local longest_first = schedule.l2_mib > 0
//% local packed = kernel.layout.packed
//% local fit_factor = packed and "" or "GROUP * "
//% local queries, heads = packed and "TILE_QUERIES" or "TILE_M", packed and "HEADS_KV" or "HEADS_Q"
// A tile of rows$(packed and ": from query row_begin on, from query head h on" or "").
struct work_item {
  int row_begin, h, b;
};

// Work `number` in the order of their handing out.
static __device__ __forceinline__ work_item work_of(const qkv_params &p, unsigned number) {
  const unsigned row_blocks = (p.len_q + $(queries) - 1) / $(queries);
  work_item work;
  //% if longest_first then
  // Heads whose K and V fit $(schedule.l2_mib) MiB of L2 together; among them late rows first, which see the most keys.
  const unsigned heads = p.batch * $(heads);
  const unsigned fit = $(fit_factor)max(min(KEYS_IN_L2 / max((unsigned)p.len_k, 1u), 1024u), 1u);
  const unsigned group = number / (row_blocks * fit), first = group * fit, count = min(fit, heads - first);
  const unsigned inside = number - group * row_blocks * fit, row = inside / count, head = first + inside % count;
  work.row_begin = (int)(row_blocks - 1 - row) * $(queries);
  //% else
  // Rows of one head are neighbours, so that they share K and V in L2.
  const unsigned head = number / row_blocks;
  //%   if bounded then
  work.row_begin = (int)(row_blocks - 1 - number % row_blocks) * $(queries);
  //%   else
  work.row_begin = (int)(number % row_blocks) * $(queries);
  //%   end
  //% end
  work.h = head % $(heads)$(packed and " * GROUP" or "");
  work.b = head / $(heads);
  return work;
}

static __device__ __forceinline__ unsigned work_count(const qkv_params &p) {
  return (unsigned)((p.len_q + $(queries) - 1) / $(queries)) * $(heads) * p.batch;
}

// Which work comes next: the producer hands out, the consumers take the same numbers in the same order. After the last
// one comes a number that is none.
//% if schedule.scheduler == 2 then
struct work_queue {
  ring<TICKETS> tickets;
  unsigned next = blockIdx.x;
};

// Whoever is free takes the next number of all blocks: every block begins with its own, the counter goes on from there.
// It is asked for ahead of the last copy of a work: the answer arrives while that waits for its place, and no work is
// promised to a block much sooner than the block is free.
static __device__ __forceinline__ void ask_for_work(const qkv_params &p, work_queue &queue) {
  queue.next = gridDim.x + atomic_add_i32(p.tickets, 1);
}

static __device__ __forceinline__ unsigned hand_out_work(const qkv_params &p, unsigned shared, work_queue &queue) {
  const unsigned number = queue.next;
  mbar_wait(shared + TICKET_EMPTY + 8 * queue.tickets.stage(), queue.tickets.parity() ^ 1);
  *(unsigned *)(shared_arena() + TICKET_OFFSET + 4 * queue.tickets.stage()) = number;
  mbar_arrive(shared + TICKET_FULL + 8 * queue.tickets.stage());
  queue.tickets.advance();
  return number;
}

static __device__ __forceinline__ unsigned take_work(
    const qkv_params &p, unsigned shared, work_queue &queue, int lane) {
  mbar_wait(shared + TICKET_FULL + 8 * queue.tickets.stage(), queue.tickets.parity());
  const unsigned number = *(unsigned *)(shared_arena() + TICKET_OFFSET + 4 * queue.tickets.stage());
  warp_sync();
  if (lane == 0) mbar_arrive(shared + TICKET_EMPTY + 8 * queue.tickets.stage());
  queue.tickets.advance();
  return number;
}
//% else
struct work_queue {
  unsigned round = 0;
};

static __device__ __forceinline__ void ask_for_work(const qkv_params &p, work_queue &queue) {}

//%   if schedule.scheduler == 1 then
// The block's share: one of every round of gridDim.x, there and back, so that long and short ones even out.
static __device__ __forceinline__ unsigned hand_out_work(const qkv_params &p, unsigned shared, work_queue &queue) {
  const unsigned round = queue.round++;
  return round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
}
//%   else
// A block, a tile.
static __device__ __forceinline__ unsigned hand_out_work(const qkv_params &p, unsigned shared, work_queue &queue) {
  return queue.round++ == 0 ? blockIdx.x : work_count(p);
}
//%   end

static __device__ __forceinline__ unsigned take_work(
    const qkv_params &p, unsigned shared, work_queue &queue, int lane) {
  return hand_out_work(p, shared, queue);
}
//% end
