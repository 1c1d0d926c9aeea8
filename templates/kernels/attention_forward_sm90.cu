//%% Fused attention forward for Hopper; see attention_forward_sm90.lua for the schedule and the layout.
//% local attention = library("attention")
//% local layout, budget = kernel.layout, kernel.layout.budget
//%
//% local bounded = mask.form == "rows"
//% local free_tiles = attention.free_tiles(mask)
//% local taking_turns = schedule.order == 1 and schedule.warpgroups > 1
//% local position = variant.align == "bottom_right" and "p.len_k - p.len_q" or "0" -- of query row 0 among the keys
//% local query_head = layout.packed and "hk" or "work.h"
//% local view = attention.view(mask, variant)
//% local place = view.also ~= "" and "view" or position
//% local carry = schedule.carry == 1
//% local query_in_registers = schedule.q_registers == 1
//% local cluster = schedule.cluster > 1
//% local tiles_of = cluster and "cluster_tiles" or "visible_tiles"
//% local leads = cluster and "< CLUSTER" or "== 0"
//% local told = mask.walk and 1 or 0
//% local copiers = layout.rows and 4 or 1 -- who tell of copies
//% local releases = cluster and " * CLUSTER" or "" -- of a stage
//% local query_parameter = query_in_registers and "const query_fragments &query" or "unsigned long long query"
//% local by_warp = mask.walk or view.sequences -- who produces; else one thread
//% local producers = by_warp and "< " .. 32 * schedule.loaders or "== 0"
//% local takers = schedule.loaders > 1 and " + " .. schedule.loaders - 1 or "" -- of a work's number, beside consumers
//% local found = variant.layout_q == "ragged" and layout.tickets > 0
//% header()

//% local planned = schedule.scheduler == 3
//% local plans_by_head = (mask.walk == "map" or planned) and not variant.mask_symbols.h and variant.mask_symbols.hk
//% if layout.packed or plans_by_head then
constexpr int HEADS_KV = $(variant.heads_kv);
//% end
//% if not layout.packed then
constexpr int HEADS_Q = $(variant.heads_q);
//% end
constexpr int GROUP = $(variant.group); // query heads per KV head
//% if layout.rows and variant.dim_qk % layout.qk.width > 0 then
constexpr int DIM_QK = $(variant.dim_qk);
//% end
constexpr int DIM_V = $(variant.dim_v);
//% include "parts/score_scale.cu"

//% if tonumber(mask.dilation) then
constexpr int DILATION = $(mask.dilation); // tiles hold tokens of one residue modulo it
//% end
constexpr int WARPGROUPS = $(schedule.warpgroups); // consumers; each owns 64 query rows
constexpr int TILE_M = 64 * WARPGROUPS;
//% if layout.packed then
constexpr int TILE_QUERIES = TILE_M / GROUP; // of a tile, each with the GROUP query heads of a KV head
constexpr int TILE_ROWS = TILE_QUERIES * GROUP; // in use
//% end
//% if cluster then
constexpr int CLUSTER = $(schedule.cluster); // blocks with neighbouring tiles of rows, which share the tiles of keys
constexpr int CLUSTER_ROWS = CLUSTER * $(layout.packed and "TILE_QUERIES" or "TILE_M");
//% end
constexpr int TILE_N = $(schedule.tile_n); // keys of a tile
//% if cluster then
constexpr int SHARE_N = TILE_N / CLUSTER; // of them, those that a block fetches for all
//% end
//% if layout.rows then
constexpr int OWN_KEYS = TILE_N / 4; // of a tile, those that a warp of the producer copies
//% elseif view.sequences then
//%   local of_page = variant.layout_kv == "paged" and ", all of one page" or ""
constexpr int BOX_ROWS = $(layout.box_rows); // keys of a copy$(of_page)
//%   if layout.boxes > 1 then
constexpr int BOXES = TILE_N / BOX_ROWS;
//%   end
//% end
//% if variant.layout_kv == "paged" and not layout.rows then
constexpr int PAGE = $(variant.page_size); // tokens of a page
//% end
constexpr int STAGES = $(schedule.stages);
//% if schedule.l2_mib > 0 then
//% local keys_in_l2 = (schedule.l2_mib << 20) // (2 * (variant.dim_qk + variant.dim_v))
constexpr unsigned KEYS_IN_L2 = $(keys_in_l2); // of $(schedule.l2_mib) MiB, with their values
//% end
constexpr int Q_BUFFERS = $(schedule.q_buffers);
constexpr int THREADS = 128 * (WARPGROUPS + 1);

constexpr int ROW_TILES = 1;             // 16-row tiles of a warp
constexpr int N_TILES = TILE_N / 8;      // 8-key columns of the scores
constexpr int V_TILES = DIM_V / 8;       // 8-wide columns of the output
//% if query_in_registers then
constexpr int QK_STEPS = $(ceil_div(variant.dim_qk, 16)); // steps of 16 along the head dimension in Q K^T
//% end
constexpr int PV_STEPS = TILE_N / 16;    // steps of 16 keys in P V

// Shared memory. A matrix lies in panels of columns, one below the other; a row of a panel is as long as the swizzle.
constexpr int QK_WIDTH = $(layout.qk.width), QK_PANELS = $(layout.qk.count), QK_ROW_BYTES = $(layout.qk.bytes);
constexpr int V_WIDTH = $(layout.v.width), V_PANELS = $(layout.v.count), V_ROW_BYTES = $(layout.v.bytes);
constexpr int Q_PANEL = TILE_M * QK_ROW_BYTES, K_PANEL = TILE_N * QK_ROW_BYTES; // bytes
constexpr int V_PANEL = TILE_N * V_ROW_BYTES;
constexpr int Q_BYTES = $(layout.q_bytes);
constexpr int K_BYTES = QK_PANELS * K_PANEL, V_BYTES = V_PANELS * V_PANEL; // of a stage
constexpr int K_OFFSET = Q_BUFFERS * Q_BYTES;
constexpr int V_OFFSET = K_OFFSET + STAGES * K_BYTES;
//% if layout.store then
constexpr int O_PANEL = TILE_M * V_ROW_BYTES;
//% if not layout.alias then
constexpr int O_OFFSET = $(layout.o_offset);
//% end
//% end
//% if schedule.p_shared == 1 then
constexpr int P_WIDTH = $(layout.p.width), P_ROW_BYTES = $(layout.p.bytes), P_PANEL = TILE_M * P_ROW_BYTES;
constexpr int P_OFFSET = $(layout.p_offset);
//% end

//% local filled = "a full one counts the producer and its bytes"
//% if layout.rows then filled = "a full one of K or V counts the producer's warps, one of Q a thread and its bytes" end
//% if mask.walk then
// mbarriers: $(filled), one of Q or K also what is told of it; an empty one those
// who are done.
//% else
// mbarriers: $(filled), an empty one those who are done.
//% end
constexpr int Q_FULL = $(layout.barriers), Q_EMPTY = Q_FULL + 8 * Q_BUFFERS;
constexpr int K_FULL = Q_EMPTY + 8 * Q_BUFFERS, K_EMPTY = K_FULL + 8 * STAGES;
constexpr int V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES;
//% if layout.tickets > 0 then
constexpr int TICKETS = $(layout.tickets); // work numbers on their way from the producer to the consumers
constexpr int TICKET_FULL = V_EMPTY + 8 * STAGES, TICKET_EMPTY = TICKET_FULL + 8 * TICKETS;
constexpr int TICKET_OFFSET = $(layout.ticket_offset);
//% end

//% if layout.told > 0 then
constexpr int KEYS_TOLD = $(layout.told_offset), ROWS_TOLD = KEYS_TOLD + 4 * STAGES; // a word for every place

//% end
//% if layout.parts > 0 then
constexpr int KEY_PARTS = $(layout.parts); // of the mask, for every key of a stage: 4 bytes each
constexpr int PARTS_OFFSET = $(layout.parts_offset);
//% end

//% if taking_turns or layout.alias then
// Named barriers, one for each consumer warpgroup.
//%   if taking_turns then
constexpr int TURN = 1;
//%   end
//%   if layout.alias then
constexpr int ROWS_DONE = 4;
//%   end
//% end

//% primitives()

//% pieces()

//% if layout.packed then
//%   include "parts/packed_row.cu"

//% end
//% if mask.dilation then
//%   include "parts/residue_view.cu"

//% end
//% if mask.walk then
//%   if mask.walk == "map" then
//%     include "parts/tile_map.cu"

//%   end
//%   include "parts/tile_walk.cu"
//% else
//%   include "parts/tile_range.cu"
//% end

//% if planned then
//%   include "parts/plan_order_sm90.cu"

//% end
//% include "parts/ring_sm90.cu"

//% if mask.walk then
//%   include "parts/tile_told_sm90.cu"

//% end
//% include "parts/tile_order_sm90.cu"

//% if cluster then
//%   include "parts/cluster_sm90.cu"

//% end
//% if view.sequences then
//%   include "parts/sequence_load_sm90.cu"
//%   if layout.rows then
//%     include "parts/row_load_sm90.cu"
//%   end
//% else
//%   include "parts/tile_load_sm90.cu"
//% end

//% include "parts/tile_mma_sm90.cu"

//% include "parts/tile_softmax.cu"

//% include "parts/tile_store_sm90.cu"

//% include "parts/consumer_sm90.cu"

//% if layout.parts > 0 then
//%   local key_names = {k = "k", hk = "hk", b = "b", len_q = view.whole_q, len_k = view.whole_k}
// What the mask reads by key alone, beside the tile of K, once the place is free. All lanes; the first one's arrival at
// K_FULL, behind a warp_sync, tells the consumers.
static __device__ __forceinline__ void fetch_key_parts(
    const qkv_params &p, unsigned shared, const ring<STAGES> &ring, int tile, int hk, int b, int lane$(view.also)) {
  constexpr int SHARE = (TILE_N + 31) / 32; // keys of a lane
  //%   for n, type in ipairs(mask.keys) do
  $(type) part_$(n)[SHARE];
  //%   end
#pragma unroll
  for (int i = 0; i < SHARE; ++i) {
    const int k = $(view.key("tile * TILE_N + 32 * i + lane"));
    //%   for n in ipairs(mask.keys) do
    part_$(n)[i] = $(cuda_mask_part("key", n, key_names));
    //%   end
  }
  mbar_wait(shared + K_EMPTY + 8 * ring.stage(), ring.parity() ^ 1);
  unsigned char *to = shared_arena() + PARTS_OFFSET + ring.stage() * KEY_PARTS * TILE_N * 4;
#pragma unroll
  for (int i = 0; i < SHARE; ++i) {
    if (TILE_N % 32 != 0 && 32 * i + lane >= TILE_N) break;
    //%   for n, type in ipairs(mask.keys) do
    (($(type == "float" and "float" or "int") *)to)[$(n - 1) * TILE_N + 32 * i + lane] = part_$(n)[i];
    //%   end
  }
  warp_sync();
}

//% end
//% if layout.rows then
//%   include "parts/row_produce_sm90.cu"
//% elseif mask.walk then
// One warp walks through the tiles of keys that the mask lets see; its first lane fetches tiles of Q, K and V, and
// tells the consumers which they are.
static __device__ __forceinline__ void produce(const qkv_params &p, unsigned shared) {
  ring<Q_BUFFERS> query_ring;
  ring<STAGES> key_ring, value_ring;
  ring<Q_BUFFERS> told_rows;
  ring<STAGES> told_keys;
  work_queue queue;
  const int lane = threadIdx.x;
  for (;;) {
    //% if found then
    const unsigned number = hand_out_work(p, shared, queue, lane);
    //% else
    unsigned number = 0;
    if (lane == 0) number = hand_out_work(p, shared, queue);
    number = warp_uniform(number);
    //% end
    if (number >= work_count(p)) break;
    const work_item work = work_of(p, number);
    //% if mask.dilation then
    const int hk = work.h / GROUP;
    const residue_view view = view_residue(p, work.first_row);
    //% elseif view.sequences then
    const int hk = work.h / GROUP;
    const sequence_view view = view_sequence(p, work.b);
    //% else
    const int hk = work.h / GROUP, position = $(position);
    //% end
    tile_walk walk = start_walk(p, work.row_begin, $(view.argument), work.h, hk, work.b, lane);
    told_tile before; // V comes one tile behind K, and so does what is told
    bool first = true;
    for (bool more = true; more; warp_sync()) {
      find_tiles(p, walk, work.row_begin, $(view.argument), work.h, hk, work.b, lane);
      more = walk.more();
      const int tile = walk.tile();
      if (lane == 0 && !first) tell(shared, KEYS_TOLD, K_FULL, told_keys, before.word | (more ? 0 : 2));
      //% if layout.parts > 0 then
      if (more && walk.masked()) fetch_key_parts(p, shared, key_ring, tile, hk, work.b, lane$(view.also_argument));
      //% end
      //% if view.sequences then
      if (more) load_key(p, shared, key_ring, tile, hk, view, lane);
      else if (lane == 0) ask_for_work(p, queue);
      if (first) {
        load_query(p, shared, query_ring, work.row_begin, $(query_head), view, lane);
        if (lane == 0) tell(shared, ROWS_TOLD, Q_FULL, told_rows, more);
      } else {
        load_value(p, shared, value_ring, before.number(), hk, view, lane);
      }
      //% else
      //%   if layout.parts > 0 then
      if (more && lane > 0) key_ring.advance(); // the first lane's advances as it loads
      //%   end
      if (lane == 0) {
        if (more) load_key(p, shared, key_ring, tile, hk, work.b$(view.also_argument));
        else ask_for_work(p, queue);
        if (first) {
          load_query(p, shared, query_ring, work.row_begin, $(query_head), work.b$(view.also_argument));
          tell(shared, ROWS_TOLD, Q_FULL, told_rows, more);
        } else {
          load_value(p, shared, value_ring, before.number(), hk, work.b$(view.also_argument));
        }
      }
      //% end
      first = false;
      if (more) before.word = 4 * tile + walk.masked(), walk.visited &= ~(1u << walk.bit());
    }
  }
}
//% elseif view.sequences then
//%   local pairs_of_warps = schedule.loaders > 2
//%   local finds, argument = found and "loader == 0" or "threadIdx.x == 0", found and ", lane" or ""
//%   if pairs_of_warps then
// Four warps fetch the tiles that the consumers will ask for, in their order: two K, two V, each its share of a tile's
// boxes, and the first one Q. It finds the work, the others take it as the consumers do.
//%   else
// One warp fetches the tiles of Q and K that the consumers will ask for, in their order, another one those of V. The
// first finds the work, the other takes it as the consumers do.
//%   end
static __device__ __forceinline__ void produce(const qkv_params &p, unsigned shared) {
  ring<Q_BUFFERS> query_ring;
  ring<STAGES> tile_ring;
  work_queue queue;
  const int loader = warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int box = $(pairs_of_warps and "2 * lane + loader / 2" or "lane");
  for (;;) {
    unsigned number = 0;
    if ($(finds)) number = hand_out_work(p, shared, queue$(argument));
    if (loader > 0) number = take_work(p, shared, queue, lane);
    number = warp_uniform(number);
    if (number >= work_count(p)) break;
    const work_item work = work_of(p, number);
    const int hk = work.h / GROUP;
    const sequence_view view = view_sequence(p, work.b);
    const tile_range tiles = visible_tiles(p, work.row_begin, view, work.h, hk, work.b);
    if (loader % 2 == 1) {
      for (int tile = tiles.end - 1; tile >= tiles.begin; --tile)
        load_value(p, shared, tile_ring, tile, hk, view, box);
    } else {
      for (int tile = tiles.end - 1; tile >= tiles.begin - 1; --tile) {
        if (tile == tiles.begin - 1 && threadIdx.x == 0) ask_for_work(p, queue);
        if (tile >= tiles.begin) load_key(p, shared, tile_ring, tile, hk, view, box);
        if (tile == tiles.end - 1$(pairs_of_warps and " && loader == 0" or ""))
          load_query(p, shared, query_ring, work.row_begin, $(query_head), view, lane);
      }
    }
  }
}
//% else
// One thread fetches the tiles of Q, K and V that the consumers will ask for, in their order.
static __device__ __forceinline__ void produce(const qkv_params &p, unsigned shared) {
  ring<Q_BUFFERS> query_ring;
  ring<STAGES> key_ring, value_ring;
  work_queue queue;
  for (unsigned number; (number = hand_out_work(p, shared, queue)) < work_count(p);) {
    const work_item work = work_of(p, number);
    const int hk = work.h / GROUP;
    //% if mask.dilation then
    const residue_view view = view_residue(p, work.first_row);
    //% end
    const tile_range tiles = $(tiles_of)(p, work.row_begin, $(place), work.h, hk, work.b);
    for (int tile = tiles.end - 1; tile >= tiles.begin - 1; --tile) { // V comes one tile behind K
      if (tile >= tiles.begin) load_key(p, shared, key_ring, tile, hk, work.b$(view.also_argument));
      if (tile == tiles.begin - 1) ask_for_work(p, queue);
      if (tile == tiles.end - 1)
        load_query(p, shared, query_ring, work.row_begin, $(query_head), work.b$(view.also_argument));
      else
        load_value(p, shared, value_ring, tile + 1, hk, work.b$(view.also_argument));
    }
  }
}
//% end

//% local free_end = "max(work.tiles.begin, work.tiles.free_end)"
//% local free_begin = bounded and "max(work.tiles.begin, work.tiles.free_begin)" or "work.tiles.begin"
//% local lower_edge = bounded and mask.low_count > 0
//% local first_masked = not free_tiles and "true" or "tile >= work.tiles.free_end"
//% if free_tiles and lower_edge then first_masked = "tile < work.tiles.free_begin || " .. first_masked end
//% local edge_step = carry and "step<true>" or "step"
//% local free_step = carry and "step<false>" or "step"
//% local tile_argument = mask.walk and "" or ", tile"
//% local edge_masked = carry and first_masked or "true"
//% local crossing = carry and "c.crossing || " or ""
// All tiles of a work but the first, from the last key to the first one.
//% local tile_parameter = mask.walk and "" or ", int tile"
static __device__ __forceinline__ void middle_steps(
    consumer &c, const qkv_params &p, const row_work &work, $(query_parameter)$(tile_parameter)) {
  //% if mask.walk then
  while ($(crossing)!c.tile.last()) $(edge_step)(c, p, work, query);
  //% elseif not free_tiles then
  for (; $(crossing)tile >= work.tiles.begin; --tile) $(edge_step)(c, p, work, query, tile, true);
  //% elseif lower_edge then
  for (bool upper = true;; upper = false) {
    const int edge_end = upper ? $(free_end) : work.tiles.begin;
    for (; $(crossing)tile >= edge_end; --tile) $(edge_step)(c, p, work, query, tile, $(edge_masked));
    if (!upper) break;
    for (; tile >= $(free_begin); --tile) $(free_step)(c, p, work, query, tile, false);
  }
  //% else
  //%   if bounded or carry then
  for (; $(crossing)tile >= $(free_end); --tile) $(edge_step)(c, p, work, query, tile, $(edge_masked));
  //%   end
  for (; tile >= $(free_begin); --tile) $(free_step)(c, p, work, query, tile, false);
  //% end
}

// A warpgroup's 64 rows of every tile of rows.
static __device__ __forceinline__ void consume(const qkv_params &p, unsigned shared, int warpgroup) {
  consumer c;
  c.shared = shared, c.warpgroup = warpgroup, c.lane = threadIdx.x % 32, c.leader = threadIdx.x % 128 $(leads);
  work_queue queue;
  //% if taking_turns then
  if (warpgroup == WARPGROUPS - 1) bar_arrive(TURN, 256); // the first turn is warpgroup 0's
  //% end

  unsigned number = take_work(p, shared, queue, c.lane);
  while (number < work_count(p)) {
    row_work work = work_rows(p, c, work_of(p, number));
    //% if mask.walk then
    const bool some = await_rows(c);
    //% end
    //% if query_in_registers then
    query_fragments query;
    take_query(c, query);
    //% elseif not mask.walk then
    mbar_wait(shared + Q_FULL + 8 * c.queries.stage(), c.queries.parity());
    //% end
    if ($(mask.walk and "some" or "work.tiles.begin < work.tiles.end")) {
      //% if not query_in_registers then
      unsigned long long query = query_descriptor(shared, c.queries.stage(), warpgroup);
      //% end
      //% if mask.walk then
      first_step(c, p, work, query);
      //% else
      int tile = work.tiles.end - 1;
      first_step(c, p, work, query, tile, $(first_masked));
      --tile;
      //% end
      //% if carry then
      c.crossing = false;
      for (;;) { // from work to work
        middle_steps(c, p, work, query$(tile_argument));
        //% if not query_in_registers then
        release_query(c);
        //% end
        number = take_work(p, shared, queue, c.lane);
        if (number >= work_count(p)) break;
        const row_work next = work_rows(p, c, work_of(p, number));
        //% if mask.walk then
        if (!await_rows(c)) break;
        c.done = work, c.crossing = true;
        work = next;
        //% else
        if (next.tiles.begin >= next.tiles.end) break;
        c.done = work, c.crossing = true;
        work = next, tile = work.tiles.end - 1;
        //% end
        //% if query_in_registers then
        take_query(c, query);
        //% else
        query = query_descriptor(shared, c.queries.stage(), warpgroup);
        //%   if not mask.walk then
        mbar_wait(shared + Q_FULL + 8 * c.queries.stage(), c.queries.parity());
        //%   end
        //% end
      }
      //% else
      middle_steps(c, p, work, query$(tile_argument));
      //%   if not layout.alias then
      //%     if not query_in_registers then
      release_query(c);
      //%     end
      number = take_work(p, shared, queue, c.lane);
      //%   end
      //% end
      //% if schedule.overlap > 0 then
      last_output(c);
      //% end
    } else {
      clear_output(c.output);
      start_rows(c.rows);
      //% if not layout.alias then
      //%   if not query_in_registers then
      release_query(c);
      //%   end
      number = take_work(p, shared, queue, c.lane);
      //% end
    }
    //% if layout.alias then
    bar_sync(ROWS_DONE + warpgroup, 128); // the warpgroup no longer reads its rows of Q: O takes their place
    leave(c, p, work, c.rows);
    release_query(c);
    number = take_work(p, shared, queue, c.lane);
    //% else
    leave(c, p, work, c.rows);
    //% end
  }
  //% if layout.store and not layout.alias then
  if (c.lane == 0) bulk_wait_read_0();
  //% end
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qkv_kernel(const __grid_constant__ qkv_params p) {
  const unsigned shared = smem_addr(shared_arena());
  const int warpgroup = warp_uniform(threadIdx.x / 128); // 0 produces
  if (threadIdx.x == 0) {
    for (int n = 0; n < Q_BUFFERS; ++n) {
      mbar_init(shared + Q_FULL + 8 * n, $(1 + told));
      mbar_init(shared + Q_EMPTY + 8 * n, 4 * WARPGROUPS); // warps
    }
    for (int n = 0; n < STAGES; ++n) {
      mbar_init(shared + K_FULL + 8 * n, $(copiers + told));
      //% if layout.parts > 0 then
      mbar_init(shared + K_EMPTY + 8 * n, 4 * WARPGROUPS); // warps, each having read the mask's parts
      //% elseif mask.walk then
      mbar_init(shared + K_EMPTY + 8 * n, 4 * WARPGROUPS); // warps, each having read what was told
      //% else
      mbar_init(shared + K_EMPTY + 8 * n, WARPGROUPS$(releases));
      //% end
      mbar_init(shared + V_FULL + 8 * n, $(copiers));
      mbar_init(shared + V_EMPTY + 8 * n, WARPGROUPS$(releases));
    }
    //% if layout.tickets > 0 then
    for (int n = 0; n < TICKETS; ++n) {
      mbar_init(shared + TICKET_FULL + 8 * n, 1);
      //% if cluster then
      mbar_init(shared + TICKET_EMPTY + 8 * n, 4 * WARPGROUPS * CLUSTER + CLUSTER - 1); // warps and other producers
      //% else
      mbar_init(shared + TICKET_EMPTY + 8 * n, 4 * WARPGROUPS$(takers)); // warps
      //% end
    }
    //% end
    fence_mbar_init();
  }
  //% if layout.idle_rows > 0 then
  clear_idle_rows();
  //% end
  //% if cluster then
  cluster_arrive(); // the other block's mbarriers are there, too
  cluster_wait();
  //% else
  block_sync();
  //% end
  if (warpgroup == 0) {
    registers_decrease_$(budget.producer)();
    if (threadIdx.x $(producers)) produce(p, shared);
  } else {
    registers_increase_$(budget.consumer)();
    consume(p, shared, warpgroup - 1);
  }
  //% if cluster then
  warp_sync();
  cluster_arrive(); // the other block may still arrive at mbarriers of this one
  cluster_wait();
  //% end
}

#ifdef QKV_EMU
//% if mask.walk == "map" then
QKV_EMU_ENTRY(qkv_plan_map)
//% end
//% if planned then
QKV_EMU_ENTRY(qkv_plan_counts)
QKV_EMU_ENTRY(qkv_plan_order)
//% end
QKV_EMU_ENTRY(qkv_kernel)
#endif
