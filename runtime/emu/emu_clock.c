/* emu_clock.c: who has seen what: a vector clock for every agent and a shadow of shared memory that names each byte's
 * last write and the reads since. An access that is not ordered after the write it meets, or a write not ordered after
 * the reads it destroys, is a race in every schedule, not only in the unlucky one.
 *
 * clocks[a][b] is the latest time of b that a is ordered after. A byte keeps one reader as long as one is enough; the
 * second concurrent reader moves it to a row of `readers`, one time an agent, in address space that is committed when
 * touched. Only barriers join clocks: shuffles, votes, ldmatrix and mma order no memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <string.h>
#include <sys/mman.h>

#include "engine.h"

enum { READER_NONE = 0xffff, READER_MANY = 0xfffe };
#define IN_FLIGHT UINT32_MAX /* a time no agent ever reaches: being written asynchronously */

typedef struct shadow {
  uint32_t write_time; /* 0: never written */
  uint32_t read_time;
  uint16_t writer, reader;
} shadow;

static int agents;
static uint32_t *clocks;  /* agents x agents */
static shadow *cells;     /* one a byte of shared memory */
static uint32_t *readers; /* bytes x agents */
static size_t clocks_mapped, cells_mapped, readers_mapped;

static bool reserve(void **memory, size_t *mapped, size_t bytes) {
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

static bool reserve_all(size_t n, size_t bytes) {
  void *c = clocks, *s = cells, *r = readers;
  bool ok = reserve(&c, &clocks_mapped, n * n * sizeof *clocks) && reserve(&s, &cells_mapped, bytes * sizeof *cells) &&
            reserve(&r, &readers_mapped, bytes * n * sizeof *readers);
  clocks = c;
  cells = s;
  readers = r;
  return ok;
}

bool clock_start_block(int threads, int shared_bytes) {
  if (!reserve_all((size_t)threads, (size_t)shared_bytes))
    return false;
  agents = threads;
  memset(clocks, 0, (size_t)threads * (size_t)threads * sizeof *clocks);
  for (int a = 0; a < threads; a++)
    clocks[a * threads + a] = 1;
  for (int i = 0; i < shared_bytes; i++)
    cells[i] = (shadow){.reader = READER_NONE};
  return true;
}

void clock_free(void) {
  if (clocks)
    munmap(clocks, clocks_mapped);
  if (cells)
    munmap(cells, cells_mapped);
  if (readers)
    munmap(readers, readers_mapped);
  clocks = readers = NULL;
  cells = NULL;
  clocks_mapped = cells_mapped = readers_mapped = 0;
}

static uint32_t *clock_of(int agent) {
  return clocks + (size_t)agent * (size_t)agents;
}

static void raise_race(const char *what, uint32_t offset, int other, const char *other_did) {
  fault_raise(EMU_FAULT_RACE, "%s shared memory at offset %u, not ordered after %s by thread %d: a barrier is missing",
              what, (unsigned)offset, other_did, other);
}

/* A read or write must come after the last write. */
static void after_write(const shadow *cell, const uint32_t *now, uint32_t offset, const char *what) {
  if (cell->write_time <= now[cell->writer])
    return;
  if (cell->write_time == IN_FLIGHT)
    fault_raise(EMU_FAULT_PENDING,
                "%s shared memory at offset %u while the asynchronous copy into it by thread %d is "
                "not waited for",
                what, (unsigned)offset, (int)cell->writer);
  raise_race(what, offset, cell->writer, "the write");
}

/* A write must come after all reads of what it destroys. */
static void after_reads(const shadow *cell, const uint32_t *now, uint32_t offset, const char *what) {
  if (cell->reader == READER_NONE)
    return;
  if (cell->reader != READER_MANY) {
    if (cell->read_time > now[cell->reader])
      raise_race(what, offset, cell->reader, "the read");
    return;
  }
  const uint32_t *row = readers + (size_t)offset * (size_t)agents;
  uint32_t late = 0;
  for (int a = 0; a < agents; a++)
    late |= row[a] > now[a];
  for (int a = 0; late && a < agents; a++)
    if (row[a] > now[a])
      raise_race(what, offset, a, "the read");
}

static void note_read(shadow *cell, int agent, const uint32_t *now, uint32_t offset) {
  if (cell->reader == (uint16_t)agent) {
    cell->read_time = now[agent];
    return;
  }
  uint32_t *row = readers + (size_t)offset * (size_t)agents;
  if (cell->reader == READER_MANY) {
    row[agent] = now[agent];
    return;
  }
  if (cell->reader != READER_NONE && cell->read_time > now[cell->reader]) { /* concurrent: both count */
    memset(row, 0, (size_t)agents * sizeof *row);
    row[cell->reader] = cell->read_time;
    row[agent] = now[agent];
    cell->reader = READER_MANY;
    return;
  }
  cell->reader = (uint16_t)agent;
  cell->read_time = now[agent];
}

static void write_bytes(int agent, uint32_t offset, int bytes, uint32_t time, const char *what) {
  const uint32_t *now = clock_of(agent);
  for (uint32_t at = offset; at < offset + (uint32_t)bytes; at++) {
    after_write(&cells[at], now, at, what);
    after_reads(&cells[at], now, at, what);
    cells[at] = (shadow){time, 0, (uint16_t)agent, READER_NONE};
  }
}

void clock_effect(int agent, uint32_t offset, int bytes, emu_effect effect) {
  const uint32_t *now = clock_of(agent);
  if (effect == EFFECT_WRITE) {
    write_bytes(agent, offset, bytes, now[agent], "write of");
    return;
  }
  for (uint32_t at = offset; at < offset + (uint32_t)bytes; at++) {
    after_write(&cells[at], now, at, "read of");
    note_read(&cells[at], agent, now, at);
  }
}

void clock_copy_start(int agent, uint32_t offset, int bytes) {
  write_bytes(agent, offset, bytes, IN_FLIGHT, "asynchronous copy into");
}

void clock_copy_end(int agent, uint32_t offset, int bytes) {
  uint32_t time = clock_of(agent)[agent];
  for (uint32_t at = offset; at < offset + (uint32_t)bytes; at++)
    cells[at].write_time = time;
}

void clock_join(const int *members, int count) {
  static uint32_t latest[EMU_MAX_THREADS];
  size_t row = (size_t)agents * sizeof *latest;
  memcpy(latest, clock_of(members[0]), row);
  for (int i = 1; i < count; i++) {
    const uint32_t *other = clock_of(members[i]);
    for (int a = 0; a < agents; a++)
      latest[a] = other[a] > latest[a] ? other[a] : latest[a];
  }
  for (int i = 0; i < count; i++) {
    uint32_t *clock = clock_of(members[i]);
    memcpy(clock, latest, row);
    clock[members[i]]++; /* what it does from now on is news to the others */
  }
}
