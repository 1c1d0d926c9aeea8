/* emu_memory.c: device memory. Every allocation has its own pages between two guard pages, its exact size is known, and
 * freed ranges keep their addresses for a while, so that off-by-one, wild and late accesses are told apart. Reserved
 * ranges are memory only where granules are mapped.
 *
 * A table sorted by address, and the entry found last: kernels walk through few allocations. Caller holds emu_lock. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

enum { QUARANTINE = 1024 }; /* freed ranges that are remembered */

typedef struct range {
  uintptr_t low;
  size_t bytes;
  unsigned char *map; /* with the guards */
  size_t map_bytes;
  uint64_t freed;        /* 0: live; else the number of the free, for the oldest to go first */
  size_t granule;        /* of a reserved range */
  unsigned char *mapped; /* [granules]: 1 where a reserved range has memory; NULL: an allocation */
  emu_word *words;       /* the shadow; NULL until a kernel accesses the range */
} range;

static range *table;
static int count, capacity, freed_count;
static uint64_t free_number;
static int last; /* index found last */

/* Index of the last range that starts at or before the address; -1: none. */
static int find(uintptr_t address) {
  int low = 0, high = count;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (table[middle].low <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low - 1;
}

static bool inside(const range *r, uintptr_t address, size_t bytes) {
  return !r->freed && address - r->low <= r->bytes && bytes <= r->bytes - (address - r->low);
}

/* Whether all granules that hold some of the bytes are mapped, or none. */
static bool is_mapped(const range *r, size_t at, size_t bytes, bool mapped) {
  for (size_t g = at / r->granule; g * r->granule < at + bytes; g++)
    if (r->mapped[g] != mapped)
      return false;
  return true;
}

static bool holds(const range *r, uintptr_t address, size_t bytes) {
  return inside(r, address, bytes) && (!r->mapped || is_mapped(r, address - r->low, bytes, true));
}

bool memory_contains(const void *address, size_t bytes) {
  uintptr_t at = (uintptr_t)address;
  if (last < count && holds(&table[last], at, bytes))
    return true;
  int i = find(at);
  if (i < 0 || !holds(&table[i], at, bytes))
    return false;
  last = i;
  return true;
}

static size_t word_bytes(const range *r) {
  return (r->bytes + 3) / 4 * sizeof(emu_word);
}

static void drop_words(range *r) {
  if (r->words)
    munmap(r->words, word_bytes(r));
  r->words = NULL;
}

emu_word *memory_words(const void *address, uint32_t *offset) {
  range *r = &table[last];
  size_t at = (uintptr_t)address - r->low;
  if (!r->words) { /* committed when touched */
    void *map = mmap(NULL, word_bytes(r), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
      return NULL;
    r->words = map;
  }
  *offset = at % 4;
  return &r->words[at / 4];
}

void memory_forget_words(void) {
  for (int i = 0; i < count; i++)
    drop_words(&table[i]);
}

static void drop(int i) {
  drop_words(&table[i]);
  free(table[i].mapped);
  munmap(table[i].map, table[i].map_bytes);
  memmove(&table[i], &table[i + 1], (size_t)(count - i - 1) * sizeof *table);
  count--;
  if (!count) {
    free(table);
    table = NULL;
    capacity = 0;
  }
}

/* Takes address space for r->bytes between guard pages, with the start at a multiple of `alignment`, and a place in the
 * table. NULL: none left. */
static range *add(range r, size_t alignment) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (r.bytes + page - 1) / page * page;
  if (count == capacity) {
    int more = capacity ? 2 * capacity : 64;
    range *grown = realloc(table, (size_t)more * sizeof *table);
    if (!grown)
      return NULL;
    table = grown;
    capacity = more;
  }
  r.map_bytes = body + 2 * page + (alignment > page ? alignment - page : 0);
  void *map = mmap(NULL, r.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED)
    return NULL;
  r.map = map;
  r.low = ((uintptr_t)map + page + alignment - 1) / alignment * alignment;
  int i = find(r.low) + 1;
  memmove(&table[i + 1], &table[i], (size_t)(count - i) * sizeof *table);
  table[i] = r;
  count++;
  return &table[i];
}

/* Makes pages of a range memory, poisoned. */
static bool commit(void *at, size_t bytes) {
  if (bytes && mprotect(at, bytes, PROT_READ | PROT_WRITE))
    return false;
  memset(at, EMU_POISON, bytes);
  return true;
}

void *memory_alloc(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  range *r = bytes > SIZE_MAX / 2 ? NULL : add((range){.bytes = bytes}, page);
  if (!r)
    return NULL;
  void *memory = (void *)r->low;
  if (commit(memory, (bytes + page - 1) / page * page))
    return memory;
  drop((int)(r - table));
  return NULL;
}

bool memory_free(void *memory) {
  int i = find((uintptr_t)memory);
  if (i < 0 || table[i].low != (uintptr_t)memory || table[i].freed || table[i].mapped)
    return false;
  drop_words(&table[i]);
  /* The address space stays taken, the pages go. */
  if (mmap(table[i].map, table[i].map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED) {
    drop(i);
    return true;
  }
  table[i].freed = ++free_number;
  if (++freed_count > QUARANTINE) {
    int oldest = -1;
    for (int k = 0; k < count; k++)
      if (table[k].freed && (oldest < 0 || table[k].freed < table[oldest].freed))
        oldest = k;
    drop(oldest);
    freed_count--;
  }
  return true;
}

void memory_forget_freed(void) {
  for (int i = count; i-- > 0;)
    if (table[i].freed)
      drop(i);
  freed_count = 0;
}

/* ---- Reserved ranges ---- */

void *memory_reserve(size_t bytes, size_t granule) {
  range *r = bytes > SIZE_MAX / 2 ? NULL : add((range){.bytes = bytes, .granule = granule}, granule);
  if (!r)
    return NULL;
  r->mapped = calloc(bytes / granule + 1, 1);
  if (r->mapped)
    return (void *)r->low;
  drop((int)(r - table));
  return NULL;
}

bool memory_is_reserved(const void *at, size_t bytes, bool mapped) {
  int i = find((uintptr_t)at);
  if (i < 0 || !table[i].mapped || !inside(&table[i], (uintptr_t)at, bytes))
    return false;
  size_t offset = (uintptr_t)at - table[i].low;
  return offset % table[i].granule == 0 && bytes % table[i].granule == 0 && is_mapped(&table[i], offset, bytes, mapped);
}

bool memory_unreserve(void *memory, size_t bytes) {
  int i = find((uintptr_t)memory);
  if (i < 0 || table[i].low != (uintptr_t)memory || table[i].bytes != bytes ||
      !memory_is_reserved(memory, bytes, false))
    return false;
  drop(i);
  return true;
}

static void mark(const void *at, size_t bytes, bool mapped) {
  const range *r = &table[find((uintptr_t)at)];
  memset(r->mapped + ((uintptr_t)at - r->low) / r->granule, mapped, bytes / r->granule);
}

bool memory_map(void *at, size_t bytes) {
  if (!commit(at, bytes))
    return false;
  mark(at, bytes, true);
  return true;
}

bool memory_unmap(void *at, size_t bytes) {
  if (mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
    return false;
  mark(at, bytes, false);
  return true;
}

/* ---- Reports ---- */

/* The range whose pages or guards hold the address. */
static const range *neighbour(uintptr_t address) {
  for (int i = find(address), k = i; k <= i + 1; k++)
    if (k >= 0 && k < count && address - (uintptr_t)table[k].map < table[k].map_bytes)
      return &table[k];
  return NULL;
}

const char *memory_describe(const void *address, int bytes, char *out, size_t size) {
  uintptr_t at = (uintptr_t)address;
  const range *r = neighbour(at);
  if (!r) {
    snprintf(out, size, "global address 0x%" PRIxPTR " is in no allocation%s", at, at < 4096 ? " (null pointer)" : "");
    return EMU_FAULT_OUT_OF_BOUNDS;
  }
  const char *what = r->mapped ? "reserved range" : r->freed ? "freed allocation" : "allocation";
  if (at < r->low)
    snprintf(out, size, "global address 0x%" PRIxPTR ", %zu bytes before the %s of %zu bytes at 0x%" PRIxPTR, at,
             (size_t)(r->low - at), what, r->bytes, r->low);
  else if (at - r->low >= r->bytes)
    snprintf(out, size, "global address 0x%" PRIxPTR ", %zu bytes past the end of the %s of %zu bytes at 0x%" PRIxPTR,
             at, (size_t)(at - r->low) - r->bytes, what, r->bytes, r->low);
  else
    snprintf(out, size,
             "global address 0x%" PRIxPTR ", %d bytes at offset %zu of the %s of %zu bytes at 0x%" PRIxPTR "%s", at,
             bytes, (size_t)(at - r->low), what, r->bytes, r->low, r->mapped ? ", where not all is mapped" : "");
  return r->freed ? EMU_FAULT_FREED : EMU_FAULT_OUT_OF_BOUNDS;
}
