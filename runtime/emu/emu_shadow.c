/* emu_shadow.c: the last write of every byte of shared memory, and the reads since. An access that is not ordered after
 * the write it meets, or a write not ordered after the reads it destroys, is a race in every schedule, not only in the
 * unlucky one.
 *
 * A granule is 16 aligned bytes with one record, as long as they are accessed together; the first access to a part
 * splits it into bytes, the next write to the whole makes it one again. A record keeps few concurrent readers; more of
 * them move to a row of times, one an agent, in address space that is committed when touched. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "engine.h"

enum { GRANULE = 16, FEW = 4, MANY = 0xffff };
#define IN_FLIGHT UINT32_MAX

typedef struct record {
  uint32_t write_time; /* 0: never written */
  uint16_t writer;
  uint16_t readers; /* entries in use, or MANY: the row */
  uint32_t read_time[FEW];
  uint16_t reader[FEW];
} record;

typedef struct granule {
  record whole;
  bool split;
  uint8_t mbarriers; /* bit 0: the first eight bytes are one; bit 1: the others */
  uint8_t layout;
} granule;

/* Of one block. */
typedef struct shadow {
  granule *granules;
  record *bytes;  /* GRANULE a granule */
  uint32_t *rows; /* agents a byte; a granule's own row is that of its first byte */
  size_t granules_mapped, bytes_mapped, rows_mapped;
} shadow;

static shadow shadows[EMU_BLOCKS];
static size_t row_length;

static bool reserve(void *pointer, size_t *mapped, size_t bytes) {
  void **memory = pointer;
  if (bytes <= *mapped)
    return true;
  if (*memory)
    munmap(*memory, *mapped);
  *mapped = 0;
  *memory = NULL;
  void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED)
    return false;
  *memory = map;
  *mapped = bytes;
  return true;
}

bool shadow_start_block(int block, int shared_bytes) {
  size_t count = ((size_t)shared_bytes + GRANULE - 1) / GRANULE;
  row_length = (size_t)clock_stride();
  shadow *s = &shadows[block];
  void *g = s->granules, *b = s->bytes, *r = s->rows;
  bool ok = reserve(&g, &s->granules_mapped, count * sizeof *s->granules) &&
            reserve(&b, &s->bytes_mapped, count * GRANULE * sizeof *s->bytes) &&
            reserve(&r, &s->rows_mapped, count * GRANULE * row_length * sizeof *s->rows);
  s->granules = g;
  s->bytes = b;
  s->rows = r;
  if (ok && count)
    memset(s->granules, 0, count * sizeof *s->granules);
  return ok;
}

void shadow_free(void) {
  for (int block = 0; block < EMU_BLOCKS; block++) {
    shadow *s = &shadows[block];
    if (s->granules)
      munmap(s->granules, s->granules_mapped);
    if (s->bytes)
      munmap(s->bytes, s->bytes_mapped);
    if (s->rows)
      munmap(s->rows, s->rows_mapped);
    *s = (shadow){0};
  }
}

/* ---- One record ---- */

/* What is being accessed, for the checks and reports below. */
typedef struct access {
  const emu_actor *actor;
  shadow *shadow;
  const uint32_t *generic, *proxy; /* the actor's clocks */
  uint32_t offset;
  emu_effect effect;
} access;

enum { WHAT_SIZE = 64, WHO_SIZE = 96 };

static void describe(const access *a, char what[WHAT_SIZE]) {
  bool writes = a->effect == EFFECT_WRITE;
  if (a->actor->name)
    snprintf(what, WHAT_SIZE, "%s %s", a->actor->name, writes ? "into" : "from");
  else
    snprintf(what, WHAT_SIZE, "%s of", writes ? "write" : "read");
}

static void raise_order(const access *a, int other, bool other_wrote, const char *kind, const char *cure) {
  char who[WHO_SIZE], what[WHAT_SIZE];
  clock_describe(other, who, sizeof who);
  describe(a, what);
  fault_raise(kind, "%s shared memory at offset %u, not ordered after the %s by %s: %s", what, (unsigned)a->offset,
              other_wrote ? "write" : "read", who, cure);
}

static const char *missing_wait(int agent, bool wrote) {
  return clock_is_thread(agent) ? "a barrier is missing"
         : wrote                ? "a wait for its mbarrier is missing"
                                : "a wait for its end, or a barrier behind it, is missing";
}

static void after_write(const access *a, const record *r) {
  if (r->write_time <= a->proxy[r->writer]) {
    if (r->write_time == 0 && a->effect == EFFECT_READ && a->actor->proxy == PROXY_ASYNC)
      fault_raise(EMU_FAULT_UNWRITTEN, "%s from shared memory at offset %u, which was never written", a->actor->name,
                  (unsigned)a->offset);
    return;
  }
  if (r->write_time == IN_FLIGHT && clock_is_thread(r->writer)) {
    char what[WHAT_SIZE];
    describe(a, what);
    fault_raise(EMU_FAULT_PENDING,
                "%s shared memory at offset %u while the asynchronous copy into it by thread %d is not waited for",
                what, (unsigned)a->offset, (int)r->writer);
  }
  if (r->write_time <= a->generic[r->writer])
    raise_order(a, r->writer, true, EMU_FAULT_PROXY, "its fence_proxy_async before the barrier is missing");
  raise_order(a, r->writer, true, EMU_FAULT_RACE, missing_wait(r->writer, true));
}

static uint32_t *row_at(const shadow *s, uint32_t offset) {
  return s->rows + (size_t)offset * row_length;
}

/* A write must come after all reads of what it destroys. Reads need no fence. */
static void after_reads(const access *a, const record *r) {
  if (r->readers != MANY) {
    for (int i = 0; i < r->readers; i++)
      if (r->read_time[i] > a->generic[r->reader[i]])
        raise_order(a, r->reader[i], false, EMU_FAULT_RACE, missing_wait(r->reader[i], false));
    return;
  }
  const uint32_t *row = row_at(a->shadow, a->offset);
  int agents = clock_agents();
  uint32_t late = 0;
  for (int other = 0; other < agents; other++)
    late |= row[other] > a->generic[other];
  for (int other = 0; late && other < agents; other++)
    if (row[other] > a->generic[other])
      raise_order(a, other, false, EMU_FAULT_RACE, missing_wait(other, false));
}

/* A read that the new one is ordered after need not be remembered. */
static void note_read(const access *a, record *r) {
  const emu_actor *actor = a->actor;
  if (r->readers == MANY) {
    row_at(a->shadow, a->offset)[actor->agent] = actor->time;
    return;
  }
  int place = 0;
  while (place < r->readers && r->reader[place] != actor->agent && r->read_time[place] > a->generic[r->reader[place]])
    place++;
  if (place == FEW) {
    uint32_t *row = row_at(a->shadow, a->offset);
    memset(row, 0, row_length * sizeof *row);
    for (int i = 0; i < FEW; i++)
      row[r->reader[i]] = r->read_time[i];
    row[actor->agent] = actor->time;
    r->readers = MANY;
    return;
  }
  if (place == r->readers)
    r->readers++;
  r->reader[place] = (uint16_t)actor->agent;
  r->read_time[place] = actor->time;
}

static void touch(access *a, record *r, uint32_t offset) {
  a->offset = offset;
  after_write(a, r);
  if (a->effect == EFFECT_READ) {
    note_read(a, r);
    return;
  }
  after_reads(a, r);
  r->write_time = a->actor->time;
  r->writer = (uint16_t)a->actor->agent;
  r->readers = 0;
}

/* ---- Granules ---- */

static void split(const shadow *s, granule *g, uint32_t start) {
  g->split = true;
  for (uint32_t i = 0; i < GRANULE; i++)
    s->bytes[start + i] = g->whole;
  for (uint32_t i = 1; g->whole.readers == MANY && i < GRANULE; i++)
    memcpy(row_at(s, start + i), row_at(s, start), row_length * sizeof *s->rows);
}

/* [low, high) within the granule. */
static void check_mbarriers(const access *a, const granule *g, uint32_t start, uint32_t low, uint32_t high) {
  bool first = g->mbarriers & 1 && low < 8, second = g->mbarriers & 2 && high > 8;
  if (first || second)
    fault_raise(EMU_FAULT_MBARRIER, "%s %s the bytes of the mbarrier at offset %u",
                a->actor->name ? a->actor->name : "a plain access", a->effect == EFFECT_WRITE ? "writes" : "reads",
                (unsigned)(first ? start : start + 8));
}

static void touch_granule(access *a, granule *g, uint32_t start, uint32_t low, uint32_t high) {
  if (g->mbarriers)
    check_mbarriers(a, g, start, low, high);
  bool all = high - low == GRANULE;
  if (!g->split && !all)
    split(a->shadow, g, start);
  if (!g->split) {
    touch(a, &g->whole, start);
  } else {
    for (uint32_t i = low; i < high; i++)
      touch(a, &a->shadow->bytes[start + i], start + i);
    if (all && a->effect == EFFECT_WRITE) {
      g->whole = a->shadow->bytes[start];
      g->split = false;
    }
  }
  if (a->effect == EFFECT_WRITE)
    g->layout = 0;
}

static void touch_range(const emu_actor *actor, uint32_t offset, int bytes, emu_effect effect) {
  access a = {
      actor, &shadows[actor->block], clock_of(actor->row, PROXY_GENERIC), clock_of(actor->row, actor->proxy), offset,
      effect};
  for (uint32_t at = offset, end = offset + (uint32_t)bytes; at < end;) {
    uint32_t start = at / GRANULE * GRANULE, high = end - start < GRANULE ? end - start : GRANULE;
    touch_granule(&a, &a.shadow->granules[start / GRANULE], start, at - start, high);
    at = start + GRANULE;
  }
}

emu_actor shadow_thread(int thread, const char *name) {
  int agent = machine_agent(thread);
  return (emu_actor){.row = thread,
                     .agent = agent,
                     .block = machine.threads[thread].block,
                     .time = clock_of(thread, PROXY_GENERIC)[agent],
                     .proxy = PROXY_GENERIC,
                     .name = name};
}

void shadow_read(const emu_actor *actor, uint32_t offset, int bytes) {
  touch_range(actor, offset, bytes, EFFECT_READ);
}

void shadow_write(const emu_actor *actor, uint32_t offset, int bytes) {
  touch_range(actor, offset, bytes, EFFECT_WRITE);
}

static void land(record *r, int agent, uint32_t time) {
  if (r->write_time == IN_FLIGHT && r->writer == agent)
    r->write_time = time;
}

void shadow_land(int block, int agent, uint32_t offset, int bytes, uint32_t time) {
  shadow *s = &shadows[block];
  for (uint32_t at = offset, end = offset + (uint32_t)bytes; at < end;) {
    uint32_t start = at / GRANULE * GRANULE;
    granule *g = &s->granules[start / GRANULE];
    if (!g->split)
      land(&g->whole, agent, time);
    for (uint32_t i = at; g->split && i < start + GRANULE && i < end; i++)
      land(&s->bytes[i], agent, time);
    at = start + GRANULE;
  }
}

void shadow_set_layout(int block, uint32_t offset, int bytes, int layout) {
  for (uint32_t at = offset; at < offset + (uint32_t)bytes; at += GRANULE)
    shadows[block].granules[at / GRANULE].layout = (uint8_t)layout;
}

int shadow_layout(int block, uint32_t offset) {
  return shadows[block].granules[offset / GRANULE].layout;
}

/* ---- mbarriers ---- */

void shadow_new_mbarrier(int block, uint32_t offset) {
  shadows[block].granules[offset / GRANULE].mbarriers |= (uint8_t)(offset % GRANULE ? 2 : 1);
}

void shadow_use_mbarrier(const emu_actor *actor, uint32_t offset) {
  const uint32_t *clock = clock_of(actor->row, PROXY_GENERIC);
  access a = {actor, &shadows[actor->block], clock, clock, offset, EFFECT_READ};
  after_write(&a, &a.shadow->bytes[offset]); /* its init wrote eight bytes: the granule is split */
}
