/* emu_async.c: cp.async. A copy is in flight from its issue until a wait of its thread covers its group; in between the
 * destination belongs to nobody. The bytes move as late as allowed, or with the random policy at any moment before,
 * in any order. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static void land(emu_copy *copy) {
  if (copy->landed)
    return;
  copy->landed = true;
  unsigned char *to = machine.arena + copy->offset;
  if (copy->source_bytes)
    memcpy(to, copy->from, (size_t)copy->source_bytes);
  memset(to + copy->source_bytes, 0, (size_t)(copy->bytes - copy->source_bytes));
}

/* Lets one copy of some thread land early, sometimes. */
static void land_some(void) {
  if (machine.launch->policy != EMU_RANDOM || machine_random(4))
    return;
  int first = machine_first(machine_place());
  emu_thread *thread = &machine.threads[first + (int)machine_random((uint32_t)machine.launch->block)];
  if (thread->copy_count)
    land(&thread->copies[machine_random((uint32_t)thread->copy_count)]);
}

static emu_copy *append_copy(emu_thread *thread) {
  if (thread->copy_count == thread->copy_capacity) {
    int capacity = thread->copy_capacity ? 2 * thread->copy_capacity : 64;
    emu_copy *grown = realloc(thread->copies, (size_t)capacity * sizeof *grown);
    if (!grown)
      fault_raise(EMU_FAULT_MEMORY, "no memory for %d copies in flight", capacity);
    thread->copies = grown;
    thread->copy_capacity = capacity;
  }
  return &thread->copies[thread->copy_count++];
}

void async_copy(uint32_t to, const void *from, int bytes, int source_bytes) {
  int me = machine.current;
  if (source_bytes < 0 || source_bytes > bytes)
    fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "cp.async of %d bytes with %d source bytes", bytes, source_bytes);
  uint32_t offset = effect_shared(to, bytes, bytes, "cp.async");
  emu_actor reader = shadow_thread(me, "cp.async");
  effect_global(&reader, from, source_bytes, bytes, EFFECT_READ);
  emu_actor actor = shadow_thread(me, "asynchronous copy");
  actor.time = (uint32_t)SHADOW_IN_FLIGHT;
  shadow_write(&actor, offset, bytes);
  emu_thread *thread = &machine.threads[me];
  *append_copy(thread) = (emu_copy){offset, bytes, source_bytes, from, thread->group, false};
  memset(machine.arena + offset, EMU_POISON, (size_t)bytes);
  land_some();
}

void async_commit(void) {
  machine.threads[machine.current].group++;
  land_some();
}

/* Lands the first `count` copies in seeded order. */
static void land_first(emu_thread *thread, int count) {
  for (int left = count; machine.launch->policy == EMU_RANDOM && left > 1; left--) {
    int i = (int)machine_random((uint32_t)left);
    emu_copy swapped = thread->copies[i];
    thread->copies[i] = thread->copies[left - 1];
    thread->copies[left - 1] = swapped;
  }
  for (int i = 0; i < count; i++)
    land(&thread->copies[machine.launch->policy == EMU_REVERSE ? count - 1 - i : i]);
}

void async_wait(int groups_left) {
  int me = machine.current, count = 0;
  emu_thread *thread = &machine.threads[me];
  while (count < thread->copy_count && (int64_t)thread->copies[count].group < (int64_t)thread->group - groups_left)
    count++;
  if (!count)
    return;
  land_first(thread, count);
  emu_actor actor = shadow_thread(me, NULL);
  for (int i = 0; i < count; i++)
    shadow_land(actor.block, actor.agent, thread->copies[i].offset, thread->copies[i].bytes, actor.time);
  thread->copy_count -= count;
  memmove(thread->copies, thread->copies + count, (size_t)thread->copy_count * sizeof *thread->copies);
  land_some();
}

/* The copies of a thread that ends land some time before the block ends, and nobody can know when. */
void async_thread_done(int thread) {
  for (int i = 0; i < machine.threads[thread].copy_count; i++)
    land(&machine.threads[thread].copies[i]);
  machine.threads[thread].copy_count = 0;
}
