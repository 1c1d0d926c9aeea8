//%% The producer that copies rows (row_load_sm90.cu): four warps that go the same way, of which the first also finds
//%% the work, fetches Q and tells of tiles that it walked to.
//% local attention = library("attention")
//% local layout = kernel.layout
//% local view = attention.view(mask, variant)
//% local query_head = layout.packed and "hk" or "work.h"
//% local found = variant.layout_q == "ragged" and layout.tickets > 0
//% local finds, argument = found and "warp == 0" or "threadIdx.x == 0", found and ", lane" or ""
// Four warps copy the tiles of K and V that the consumers will ask for, in their order, a quarter of the rows each; the
// first one also fetches Q. It finds the work, the others take it as the consumers do.
static __device__ __forceinline__ void produce(const qkv_params &p, unsigned shared) {
  ring<Q_BUFFERS> query_ring;
  ring<STAGES> value_ring;
  //% if mask.walk then
  ring<Q_BUFFERS> told_rows;
  ring<STAGES> told_keys;
  //% end
  unsigned untold = 0; // the mbarrier of the copies that are on their way
  work_queue queue;
  const int warp = warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  for (;;) {
    unsigned number = 0;
    if ($(finds)) number = hand_out_work(p, shared, queue$(argument));
    if (warp > 0) number = take_work(p, shared, queue, lane);
    number = warp_uniform(number);
    if (number >= work_count(p)) break;
    const work_item work = work_of(p, number);
    const int hk = work.h / GROUP;
    const sequence_view view = view_sequence(p, work.b);
    //% if mask.walk then
    tile_walk walk = start_walk(p, work.row_begin, view, work.h, hk, work.b, lane);
    told_tile before; // V comes one tile behind K, and so does what is told
    int page_before = 0;
    bool first = true;
    for (bool more = true; more; warp_sync()) {
      find_tiles(p, walk, work.row_begin, view, work.h, hk, work.b, lane);
      more = walk.more();
      const int tile = walk.tile();
      const int page = more ? own_page(view, tile, warp, lane) : 0; // the answer arrives while the place is waited for
      if (threadIdx.x == 0 && !first) tell(shared, KEYS_TOLD, K_FULL, told_keys, before.word | (more ? 0 : 2));
      //% if layout.parts > 0 then
      if (warp == 0 && more && walk.masked())
        fetch_key_parts(p, shared, key_place(value_ring, first), tile, hk, work.b, lane, view);
      //% end
      if (more)
        load_key(p, shared, key_place(value_ring, first), untold, tile, page, hk, view, warp, lane);
      else if (threadIdx.x == 0)
        ask_for_work(p, queue);
      if (first) {
        if (!more) close_copies(untold, 0, lane); // Q's place is free when the work before is done
        if (warp == 0) load_query(p, shared, query_ring, work.row_begin, $(query_head), view, lane);
        if (threadIdx.x == 0) tell(shared, ROWS_TOLD, Q_FULL, told_rows, more);
      } else {
        load_value(p, shared, value_ring, untold, before.number(), page_before, hk, view, warp, lane);
        value_ring.advance();
      }
      first = false;
      if (more) before.word = 4 * tile + walk.masked(), walk.visited &= ~(1u << walk.bit()), page_before = page;
    }
    //% else
    const tile_range tiles = visible_tiles(p, work.row_begin, view, work.h, hk, work.b);
    int page = tiles.begin < tiles.end ? own_page(view, tiles.end - 1, warp, lane) : 0, page_before = 0;
    bool first = true;
    for (int tile = tiles.end - 1; tile >= tiles.begin - 1; --tile) { // V comes one tile behind K
      const int page_ahead = tile > tiles.begin ? own_page(view, tile - 1, warp, lane) : 0;
      if (tile >= tiles.begin)
        load_key(p, shared, key_place(value_ring, first), untold, tile, page, hk, view, warp, lane);
      else if (threadIdx.x == 0)
        ask_for_work(p, queue);
      if (first) {
        if (tile < tiles.begin) close_copies(untold, 0, lane); // Q's place is free when the work before is done
        if (warp == 0) load_query(p, shared, query_ring, work.row_begin, $(query_head), view, lane);
      } else {
        load_value(p, shared, value_ring, untold, tile + 1, page_before, hk, view, warp, lane);
        value_ring.advance();
      }
      first = false;
      page_before = page, page = page_ahead;
    }
    //% end
  }
  close_copies(untold, 0, lane);
}
