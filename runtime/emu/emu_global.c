/* emu_global.c: the last write of every word of global memory in this launch, and reads since, so that two accesses of
 * which one writes and neither is ordered after the other are a race, whatever order the blocks happened to run in.
 *
 * An event is what a thread does at one place of the kernel between two of its synchronisations. Events are numbered
 * through all launches: a word keeps the numbers of its last write and of a few reads, and numbers below the launch's
 * first mean nothing any more, so that nothing needs clearing. A word that is accessed in parts is split into bytes,
 * until it is written as a whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

typedef struct event {
  const void *pc;
  const char *name; /* of the primitive; NULL: a plain access */
  int64_t block, cluster;
  uint32_t time;
  uint16_t agent, thread; /* in whose clock; who did it, of its block */
  bool atomic, writes;
} event;

enum { WORD = 4, CACHE = 4096, MOST_EVENTS = 1 << 23, LAST_NUMBER = 1 << 30 };
#define SPLIT UINT32_MAX

typedef struct split_word {
  emu_word bytes[WORD];
} split_word;

static event *events;
static uint32_t first = 1, event_count, event_capacity; /* number of events[0]; 0 is no event */
static uint32_t cache[CACHE];                           /* numbers, by a hash of what they stand for */
static split_word *splits;
static uint32_t split_count, split_capacity;

static void forget_events(void) {
  first += event_count;
  event_count = split_count = 0;
}

void global_start_launch(void) {
  if (first + event_count > LAST_NUMBER) {
    memory_forget_words();
    memset(cache, 0, sizeof cache);
    first = 1;
    event_count = 0;
  }
  forget_events();
}

void global_free(void) {
  free(events);
  free(splits);
  events = NULL;
  splits = NULL;
  event_capacity = split_capacity = 0;
  forget_events();
}

/* ---- Events ---- */

static const event *event_of(uint32_t number) {
  return &events[number - first];
}

/* Room for one more element of an array that doubles. */
static void *grow(void *array, uint32_t count, uint32_t *capacity, size_t element) {
  if (count < *capacity)
    return array;
  uint32_t larger = *capacity ? 2 * *capacity : 1024;
  void *grown = realloc(array, larger * element);
  if (!grown)
    fault_raise(EMU_FAULT_MEMORY, "no memory for %u accesses of global memory", (unsigned)larger);
  *capacity = larger;
  return grown;
}

static bool same_event(const event *a, const event *b) {
  return a->pc == b->pc && a->time == b->time && a->agent == b->agent && a->thread == b->thread &&
         a->block == b->block && a->writes == b->writes;
}

static uint32_t number_of(const event *e) {
  size_t hash = ((uintptr_t)e->pc * 31 + e->agent * 0x9e37u + (size_t)e->cluster * 0x3c6fu + e->writes) % CACHE;
  uint32_t number = cache[hash];
  if (number >= first && same_event(event_of(number), e))
    return number;
  if (event_count == MOST_EVENTS) /* races with what is forgotten are missed; none is made up */
    forget_events();
  events = grow(events, event_count, &event_capacity, sizeof *events);
  events[event_count] = *e;
  return cache[hash] = first + event_count++;
}

/* ---- Checks ---- */

typedef struct access {
  const emu_actor *actor;
  const uint32_t *clock; /* the actor's */
  event event;
  uint32_t number;
  const unsigned char *address; /* of the word or byte at hand */
} access;

static bool is_ordered(const access *a, uint32_t number) {
  const event *e = event_of(number);
  if (e->cluster == a->event.cluster)
    return e->time <= a->clock[e->agent];
  return past_knows(a->actor->row, e->cluster, e->agent, e->time);
}

static const char *name_of(const event *e) {
  return e->name ? e->name : e->writes ? "write" : "read";
}

static void raise_race(const access *a, uint32_t number) __attribute__((noreturn));
static void raise_race(const access *a, uint32_t number) {
  const event *e = event_of(number);
  char where[256];
  memory_describe(a->address, WORD, where, sizeof where);
  const char *cure = e->block != a->event.block  ? "no release and acquire order the blocks"
                     : clock_is_thread(e->agent) ? "a barrier is missing"
                                                 : "a wait for its end is missing";
  machine.fault.other_pc = e->pc;
  fault_raise(EMU_FAULT_RACE_GLOBAL, "%s at %s, not ordered after the %s by thread %d of block %lld: %s",
              name_of(&a->event), where, name_of(e), (int)e->thread, (long long)e->block, cure);
}

/* A read that the new one is ordered after need not be remembered. Of more readers than there is room for, the first
 * and the latest are kept. */
static void note_read(const access *a, emu_word *w) {
  int place = 0;
  for (; place < EMU_READERS; place++) {
    uint32_t reader = w->readers[place];
    if (reader == a->number)
      return;
    if (reader < first || is_ordered(a, reader))
      break;
  }
  w->readers[place < EMU_READERS ? place : EMU_READERS - 1] = a->number;
}

/* Atomics do not race among each other. Those at one address follow each other, so the last one stands for all. */
static void touch(const access *a, emu_word *w) {
  if (w->writer >= first && !is_ordered(a, w->writer) && !(a->event.atomic && event_of(w->writer)->atomic))
    raise_race(a, w->writer);
  if (!a->event.writes) {
    note_read(a, w);
    return;
  }
  for (int i = 0; i < EMU_READERS; i++)
    if (w->readers[i] >= first && !is_ordered(a, w->readers[i]))
      raise_race(a, w->readers[i]);
  *w = (emu_word){.writer = a->number};
}

/* ---- Words and bytes ---- */

/* The bytes of a word: readers[0] says where, readers[1] in which launch. */
static split_word *split(emu_word *w) {
  if (w->writer == SPLIT && w->readers[1] == first)
    return &splits[w->readers[0]];
  emu_word whole = w->writer == SPLIT ? (emu_word){0} : *w;
  splits = grow(splits, split_count, &split_capacity, sizeof *splits);
  split_word *s = &splits[split_count];
  for (int i = 0; i < WORD; i++)
    s->bytes[i] = whole;
  *w = (emu_word){SPLIT, {split_count++, first}};
  return s;
}

static void touch_word(access *a, emu_word *w, uint32_t low, uint32_t high) {
  bool all = high - low == WORD;
  if (w->writer == SPLIT && w->readers[1] != first)
    *w = (emu_word){0};
  if (all && w->writer != SPLIT) {
    touch(a, w);
    return;
  }
  const unsigned char *start = a->address;
  split_word *s = split(w);
  for (uint32_t i = low; i < high; i++) {
    a->address = start + i;
    touch(a, &s->bytes[i]);
  }
  if (all && a->event.writes)
    *w = s->bytes[0];
}

static void touch_range(const emu_actor *actor, const void *address, int bytes, emu_effect effect, bool atomic) {
  uint32_t offset;
  emu_word *words = memory_words(address, &offset);
  if (!words)
    fault_raise(EMU_FAULT_MEMORY, "no address space for the shadow of global memory");
  access a = {actor,
              clock_of(actor->row, PROXY_GENERIC),
              {machine.pc, actor->name, machine_block()->index,
               machine.clusters[machine_cluster(machine_place())].index, actor->time, (uint16_t)actor->agent,
               (uint16_t)machine_index(machine.current), atomic, effect == EFFECT_WRITE},
              0,
              (const unsigned char *)address - offset};
  a.number = number_of(&a.event);
  uint32_t left = offset + (uint32_t)bytes; /* from the start of the word */
  for (uint32_t low = offset; left > 0; low = 0, words++) {
    const unsigned char *word = a.address;
    uint32_t high = left < WORD ? left : WORD;
    touch_word(&a, words, low, high);
    a.address = word + WORD;
    left -= high;
  }
}

void global_access(const emu_actor *actor, const void *address, int bytes, emu_effect effect) {
  touch_range(actor, address, bytes, effect, false);
}

void global_atomic(const emu_actor *actor, const void *address, int bytes) {
  touch_range(actor, address, bytes, EFFECT_WRITE, true);
}
