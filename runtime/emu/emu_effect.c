/* emu_effect.c: the one gate through which whatever the kernel does to memory passes: bounds, alignment, then the
 * happens-before check. Ordered by how often each kind of memory is touched. */
#include <stdint.h>
#include <stdio.h>

#include "engine.h"

static const char *effect_name(emu_effect effect) {
  return effect == EFFECT_WRITE ? "write" : "read";
}

static void check_alignment(uintptr_t where, int alignment, const char *what, const char *space) {
  if (where & (uintptr_t)(alignment - 1))
    fault_raise(EMU_FAULT_MISALIGNED, "%s at %s address 0x%zx needs an alignment of %d bytes", what, space,
                (size_t)where, alignment);
}

static void check_shared_bounds(size_t offset, int bytes, const char *what) {
  size_t limit = (size_t)machine.launch->shared_bytes;
  if (offset > limit || (size_t)bytes > limit - offset)
    fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "%s of %d bytes at offset %zu of the block's %zu bytes of shared memory", what,
                bytes, offset, limit);
}

/* Neither shared memory nor the thread's own stack. True: device memory, false: what nobody can write. */
static bool check_elsewhere(const void *address, int bytes, emu_effect effect, const char *what) {
  if (memory_contains(address, (size_t)bytes)) {
    if (machine.current >= 0 && machine.threads[machine.current].early)
      fault_raise(EMU_FAULT_EARLY, "%s of %d bytes of global memory before grid_dependency_wait", what, bytes);
    return true;
  }
  const emu_launch *launch = machine.launch;
  const unsigned char *at = address, *params = launch->params;
  bool is_params = at >= params && at + bytes <= params + launch->params_size;
  bool is_image = at >= launch->image_low && at + bytes <= launch->image_high;
  if (is_params || is_image) {
    if (effect == EFFECT_WRITE)
      fault_raise(EMU_FAULT_READ_ONLY, "%s of %d bytes into the kernel's %s", what, bytes,
                  is_params ? "parameters" : "constants");
    return false;
  }
  const fiber_stacks *stacks = &machine.stacks;
  if (at >= stacks->base && at < stacks->base + stacks->stride * (size_t)stacks->count)
    fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "%s of %d bytes in the local memory of thread %d", what, bytes,
                machine_index((int)((size_t)(at - stacks->base) / stacks->stride)));
  char where[256];
  const char *kind = memory_describe(address, bytes, where, sizeof where);
  fault_raise(kind, "%s of %d bytes at %s", what, bytes, where);
}

void effect_access(const void *address, int bytes, emu_effect effect) {
  if (machine.current < 0)
    return; /* the image's own start-up code */
  uintptr_t at = (uintptr_t)address;
  const fiber *own = &machine.threads[machine.current].fiber;
  size_t on_stack = at - (uintptr_t)own->stack_low;
  if (on_stack < own->stack_size) {
    /* g++ copies a struct of 16 bytes at once when it lies at a multiple of 8. */
    check_alignment(at, bytes < 8 ? bytes : 8, effect_name(effect), "local");
    if (machine.threads[machine.current].fenced)
      wgmma_check_register(at, bytes);
    return;
  }
  size_t offset = at - (uintptr_t)machine.arena;
  if (offset < EMU_SHARED_MAX) {
    check_shared_bounds(offset, bytes, effect_name(effect));
    check_alignment(offset, bytes, effect_name(effect), "shared");
    emu_actor actor = shadow_thread(machine.current, NULL);
    (effect == EFFECT_WRITE ? shadow_write : shadow_read)(&actor, (uint32_t)offset, bytes);
    return;
  }
  bool tracked = check_elsewhere(address, bytes, effect, effect_name(effect));
  check_alignment(at, bytes, effect_name(effect), "global");
  if (tracked) {
    emu_actor actor = shadow_thread(machine.current, NULL);
    global_access(&actor, address, bytes, effect);
  }
}

uint32_t effect_shared(uint32_t address, int bytes, int alignment, const char *primitive) {
  if (address < EMU_SHARED_BASE)
    fault_raise(EMU_FAULT_OUT_OF_BOUNDS, "%s: 0x%x is no shared address", primitive, (unsigned)address);
  uint32_t offset = address - EMU_SHARED_BASE;
  check_shared_bounds(offset, bytes, primitive);
  check_alignment(offset, alignment, primitive, "shared");
  return offset;
}

void effect_global(const emu_actor *actor, const void *address, int bytes, int alignment, emu_effect effect) {
  bool tracked = bytes > 0 && check_elsewhere(address, bytes, effect, actor->name);
  check_alignment((uintptr_t)address, alignment, actor->name, "global");
  if (tracked)
    global_access(actor, address, bytes, effect);
}

void effect_atomic(const void *address, const char *primitive) {
  emu_actor actor = shadow_thread(machine.current, primitive);
  bool tracked = check_elsewhere(address, 4, EFFECT_WRITE, primitive);
  check_alignment((uintptr_t)address, 4, primitive, "global");
  if (tracked)
    global_atomic(&actor, address, 4);
}
