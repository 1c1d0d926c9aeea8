/* emu_tma.c: bulk copies. A load is in flight from its issue until it lands on its mbarrier, which happens when nobody
 * can go on without it, or with the random policy at any moment before; in flight, its destination belongs to nobody. A
 * store reads shared memory as late as a wait of its thread allows, and writes global memory as late as a wait for its
 * end, or the end of the block. Loads are ordered after what their issuer knows, not among each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "engine.h"
#include "tensor_map.h"

/* One copy. A plain bulk copy is a map of rank 0: `bytes` contiguous ones at `from`. */
typedef struct bulk_copy {
  device_tensor_map map;
  const unsigned char *from;
  int bytes;       /* of the whole box */
  int start[5];    /* coordinates of the box */
  uint32_t offset; /* in the arena */
  int block;       /* whose arena */
  int mbarrier;    /* of a load */
  uint32_t phase;  /* of the mbarrier at the issue */
  int thread;      /* of a store */
  uint32_t group;
  unsigned char *read; /* what a store has read; NULL: nothing yet */
} bulk_copy;

typedef struct copy_list {
  bulk_copy *items; /* in order of issue */
  int count, capacity;
} copy_list;

static copy_list loads, stores;

static bulk_copy *append_copy(copy_list *list) {
  if (list->count == list->capacity) {
    int capacity = list->capacity ? 2 * list->capacity : 64;
    bulk_copy *grown = realloc(list->items, (size_t)capacity * sizeof *grown);
    if (!grown)
      fault_raise(EMU_FAULT_MEMORY, "no memory for %d copies in flight", capacity);
    list->items = grown;
    list->capacity = capacity;
  }
  return &list->items[list->count++];
}

static void remove_copy(copy_list *list, int i) {
  free(list->items[i].read);
  list->count--;
  memmove(&list->items[i], &list->items[i + 1], (size_t)(list->count - i) * sizeof *list->items);
}

static void clear(copy_list *list) {
  while (list->count)
    remove_copy(list, list->count - 1);
}

void tma_start_launch(void) {
  clear(&loads);
  clear(&stores);
}

void tma_free(void) {
  tma_start_launch();
  free(loads.items);
  free(stores.items);
  loads = stores = (copy_list){0};
}

/* ---- Maps and boxes ---- */

static const device_tensor_map *read_map(const void *encoded, int rank, const char *primitive) {
  const emu_tensor_map *map = encoded;
  if ((uintptr_t)encoded % 64)
    fault_raise(EMU_FAULT_MISALIGNED, "%s: the tensor map at 0x%zx needs an alignment of 64 bytes", primitive,
                (size_t)encoded);
  if (map->mark != EMU_TENSOR_MAP_MARK)
    fault_raise(EMU_FAULT_TENSOR_MAP, "%s: 0x%zx is no tensor map", primitive, (size_t)encoded);
  if (rank && map->map.rank != rank)
    fault_raise(EMU_FAULT_TENSOR_MAP, "%s: the map has %d dimensions, the copy %d", primitive, map->map.rank, rank);
  return &map->map;
}

static int row_bytes(const device_tensor_map *map) {
  return map->box[0] * map->element_bytes;
}

static int box_rows(const device_tensor_map *map) {
  int rows = 1;
  for (int d = 1; d < map->rank; d++)
    rows *= map->box[d];
  return rows;
}

/* A row of the box: what of it lies in the tensor. Returns the bytes, *skip those before them; *at: where. */
static int row_inside(const bulk_copy *c, int row, unsigned char **at, int *skip) {
  const device_tensor_map *map = &c->map;
  int64_t offset = 0;
  for (int d = 1; d < map->rank; d++) {
    int64_t coordinate = (int64_t)c->start[d] + row % map->box[d];
    row /= map->box[d];
    if (coordinate < 0 || coordinate >= map->extent[d])
      return 0;
    offset += coordinate * map->stride_bytes[d - 1];
  }
  int64_t low = c->start[0] > 0 ? c->start[0] : 0, high = (int64_t)c->start[0] + map->box[0];
  high = high < map->extent[0] ? high : map->extent[0];
  if (low >= high)
    return 0;
  *skip = (int)(low - c->start[0]) * map->element_bytes;
  *at = (unsigned char *)map->base + offset + low * map->element_bytes;
  return (int)(high - low) * map->element_bytes;
}

/* The hardware's swizzle: a function of the shared address. Arena offsets agree with it in the bits that count. */
static uint32_t swizzle(uint32_t offset, int bytes) {
  uint32_t mask = bytes ? (uint32_t)bytes / 16 - 1 : 0;
  return offset ^ (((offset >> 7) & mask) << 4);
}

/* A box that is wholly outside of its tensor moves nothing, but the H200 touches the map's base for it, whatever the
 * coordinates: an illegal address where a map's base lies before memory that begins there. */
static void check_box(const bulk_copy *c, const emu_actor *actor, emu_effect effect) {
  if (!c->map.rank) {
    effect_global(actor, c->from, c->bytes, 16, effect);
    return;
  }
  unsigned char *at;
  int skip;
  bool outside = true;
  for (int row = 0; row < box_rows(&c->map); row++) {
    int inside = row_inside(c, row, &at, &skip);
    outside &= inside == 0;
    if (inside)
      effect_global(actor, at, inside, c->map.element_bytes, effect);
  }
  if (outside && !memory_contains(c->map.base, 16))
    fault_raise(EMU_FAULT_TENSOR_MAP,
                "%s: no part of the box lies in the tensor, and the map's base is no device memory", actor->name);
}

/* ---- Loads ---- */

/* One block's share of a load, which lands on its own. */
static void begin_load(bulk_copy *c, uint32_t mbar, const char *primitive) {
  c->mbarrier = mbarrier_begin_copy(c->block, mbar, primitive);
  c->phase = mbarrier_phase(c->mbarrier);
  emu_actor actor = {.row = machine.current,
                     .agent = mbarrier_engine(c->mbarrier),
                     .block = c->block,
                     .time = c->phase + 1,
                     .proxy = PROXY_ASYNC,
                     .name = primitive};
  check_box(c, &actor, EFFECT_READ);
  actor.time = (uint32_t)SHADOW_IN_FLIGHT;
  shadow_write(&actor, c->offset, c->bytes);
  if (c->map.rank)
    shadow_set_layout(c->block, c->offset, c->bytes, c->map.swizzle + 1);
  memset(machine.blocks[c->block].arena + c->offset, EMU_POISON, (size_t)c->bytes);
  *append_copy(&loads) = *c;
}

void tma_prefetch(const void *map) {
  read_map(map, 0, "tma_prefetch");
}

static bulk_copy make_copy(const void *map, uint32_t address, int rank, const int *coordinates, const char *primitive) {
  bulk_copy c = {.map = *read_map(map, rank, primitive), .block = machine_place(), .thread = machine.current};
  memcpy(c.start, coordinates, (size_t)rank * sizeof *coordinates);
  if (c.start[0] * c.map.element_bytes % 16) /* the H200: an illegal instruction */
    fault_raise(EMU_FAULT_MISALIGNED,
                "%s: the box starts at element %d of its row, %d bytes in: must be a multiple of 16 bytes", primitive,
                c.start[0], c.start[0] * c.map.element_bytes);
  c.bytes = row_bytes(&c.map) * box_rows(&c.map);
  c.offset = effect_shared(address, c.bytes, 128, primitive);
  return c;
}

void tma_load(uint32_t to, const void *map, uint32_t mbar, int rank, const int *coordinates, int cta_mask) {
  bulk_copy c = make_copy(map, to, rank, coordinates, "tma_load");
  if (cta_mask >> machine.launch->cluster)
    fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "tma_load for the blocks 0x%x of a cluster of %d", (unsigned)cta_mask,
                machine.launch->cluster);
  if (!cta_mask)
    begin_load(&c, mbar, "tma_load");
  for (int cta = 0; cta_mask >> cta; cta++)
    if (cta_mask >> cta & 1) {
      c.block = cluster_peer(cta, "tma_load");
      begin_load(&c, mbar, "tma_load");
    }
}

static void check_bulk_size(int bytes) {
  if (bytes <= 0 || bytes % 16)
    fault_raise(EMU_FAULT_MISALIGNED, "bulk_load of %d bytes: must be a multiple of 16", bytes);
}

void tma_bulk_load(uint32_t to, const void *from, int bytes, uint32_t mbar) {
  check_bulk_size(bytes);
  bulk_copy c = {.from = from,
                 .bytes = bytes,
                 .offset = effect_shared(to, bytes, 16, "bulk_load"),
                 .block = machine_place(),
                 .thread = machine.current};
  begin_load(&c, mbar, "bulk_load");
}

static void load_box(const bulk_copy *c) {
  unsigned char row[1024], *at; /* 256 elements of 4 bytes */
  unsigned char *arena = machine.blocks[c->block].arena;
  int width = row_bytes(&c->map), rows = box_rows(&c->map), skip;
  for (int r = 0; r < rows; r++) {
    memset(row, 0, (size_t)width);
    int inside = row_inside(c, r, &at, &skip);
    if (inside)
      memcpy(row + skip, at, (size_t)inside);
    for (int i = 0; i < width; i += 16)
      memcpy(arena + swizzle(c->offset + (uint32_t)(r * width + i), c->map.swizzle), row + i, 16);
  }
}

static const char *by_peer(const bulk_copy *c) {
  return machine.threads[c->thread].block == c->block ? "" : " of a peer";
}

static void land(int i) {
  bulk_copy c = loads.items[i];
  remove_copy(&loads, i);
  if (!machine.blocks[c.block].live) {
    fault_block(c.block, EMU_FAULT_PENDING, "the block has ended before the %d bytes copied into it by thread %d%s",
                c.bytes, machine_index(c.thread), by_peer(&c));
    return;
  }
  if (mbarrier_phase(c.mbarrier) != c.phase) {
    fault_block(c.block, EMU_FAULT_MBARRIER,
                "phase %u completed before the %d bytes copied onto it by thread %d%s: it expected fewer",
                (unsigned)c.phase, c.bytes, machine_index(c.thread), by_peer(&c));
    return;
  }
  if (c.map.rank)
    load_box(&c);
  else
    memcpy(machine.blocks[c.block].arena + c.offset, c.from, (size_t)c.bytes);
  shadow_land(c.block, mbarrier_engine(c.mbarrier), c.offset, c.bytes, c.phase + 1);
  mbarrier_end_copy(c.mbarrier, c.bytes);
}

bool tma_land_one(void) {
  if (!loads.count)
    return false;
  land(machine.launch->policy == EMU_IN_ORDER  ? 0
       : machine.launch->policy == EMU_REVERSE ? loads.count - 1
                                               : (int)machine_random((uint32_t)loads.count));
  return true;
}

/* ---- Stores ---- */

/* A store reads what it writes: the 16-byte chunks of the box that hold elements of the tensor. */
static void note_reads(const bulk_copy *c, const emu_actor *actor) {
  if (!c->map.rank) {
    shadow_read(actor, c->offset, c->bytes);
    return;
  }
  unsigned char *at;
  int skip = 0, width = row_bytes(&c->map);
  for (int row = 0; row < box_rows(&c->map); row++) {
    int inside = row_inside(c, row, &at, &skip);
    for (int chunk = skip / 16 * 16; inside && chunk < skip + inside; chunk += 16)
      shadow_read(actor, swizzle(c->offset + (uint32_t)(row * width + chunk), c->map.swizzle), 16);
  }
}

void tma_store(const void *map, uint32_t from, int rank, const int *coordinates) {
  emu_thread *thread = &machine.threads[machine.current];
  bulk_copy c = make_copy(map, from, rank, coordinates, "tma_store");
  for (int d = 0; d < rank; d++)
    if (c.start[d] < 0) /* the H200: an illegal instruction; a load may start there */
      fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "tma_store: coordinate %d is %d: a stored box may not start before the tensor",
                  d, c.start[d]);
  if (thread->storer < 0) {
    thread->storer = clock_new_engine(ENGINE_STORE, machine_index(machine.current));
    if (clock_new_engine(ENGINE_STORE_WRITE, machine_index(machine.current)) < 0)
      thread->storer = -1;
  }
  if (thread->storer < 0)
    fault_raise(EMU_FAULT_MEMORY, "the emulator has %d engines a block", (int)EMU_ENGINES);
  c.group = thread->bulk_group;
  emu_actor actor = {.row = machine.current,
                     .agent = thread->storer,
                     .block = c.block,
                     .time = c.group + 1,
                     .proxy = PROXY_ASYNC,
                     .name = "tma_store"};
  note_reads(&c, &actor);
  actor.agent++;
  check_box(&c, &actor, EFFECT_WRITE);
  *append_copy(&stores) = c;
}

static void read_box(bulk_copy *c) {
  if (c->read)
    return;
  c->read = malloc((size_t)c->bytes);
  if (!c->read)
    fault_raise(EMU_FAULT_MEMORY, "no memory for a bulk store of %d bytes", c->bytes);
  for (int i = 0; i < c->bytes; i += 16)
    memcpy(c->read + i, machine.blocks[c->block].arena + swizzle(c->offset + (uint32_t)i, c->map.swizzle), 16);
}

static void write_box(bulk_copy *c) {
  read_box(c);
  unsigned char *at;
  int width = row_bytes(&c->map), rows = box_rows(&c->map), skip;
  for (int r = 0; r < rows; r++) {
    int inside = row_inside(c, r, &at, &skip);
    if (inside)
      memcpy(at, c->read + (size_t)r * (size_t)width + skip, (size_t)inside);
  }
}

void tma_bulk_commit(void) {
  machine.threads[machine.current].bulk_group++;
}

/* Groups below the limit are read, and unless reads_only also written. */
static void finish_stores(int me, uint32_t limit, bool reads_only) {
  for (int i = 0; i < stores.count; i++) {
    bulk_copy *c = &stores.items[i];
    if (c->thread != me || c->group >= limit)
      continue;
    if (reads_only) {
      read_box(c);
      continue;
    }
    write_box(c);
    remove_copy(&stores, i--);
  }
}

void tma_bulk_wait(int groups_left, int reads_only) {
  int me = machine.current;
  emu_thread *thread = &machine.threads[me];
  uint32_t limit = thread->bulk_group > (uint32_t)groups_left ? thread->bulk_group - (uint32_t)groups_left : 0;
  finish_stores(me, limit, reads_only);
  if (thread->storer >= 0)
    clock_learn(me, thread->storer, limit);
  if (thread->storer >= 0 && !reads_only)
    clock_learn(me, thread->storer + 1, limit);
  thread->bulk_read = limit > thread->bulk_read ? limit : thread->bulk_read;
}

/* The hardware gives shared memory to the next block while the store still reads it. */
void tma_thread_done(int t) {
  emu_thread *thread = &machine.threads[t];
  for (int i = 0; i < stores.count; i++)
    if (stores.items[i].thread == t && stores.items[i].group >= thread->bulk_read)
      fault_raise(EMU_FAULT_PENDING, "the thread ends while its bulk store may still read shared memory: %s is missing",
                  stores.items[i].group < thread->bulk_group ? "bulk_wait_read_0" : "bulk_commit");
}

void tma_end_cluster(int cluster) {
  for (int i = 0; i < stores.count; i++)
    if (machine_cluster(stores.items[i].block) == cluster) {
      write_box(&stores.items[i]);
      remove_copy(&stores, i--);
    }
}
