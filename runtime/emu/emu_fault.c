/* emu_fault.c: the first fault of a launch, worded once, and the way out of the kernel. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine.h"

static void append(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void append_list(const char *format, va_list args) __attribute__((format(printf, 1, 0)));

static void append_list(const char *format, va_list args) {
  size_t used = strlen(machine.fault.message);
  vsnprintf(machine.fault.message + used, EMU_MESSAGE - used, format, args);
}

static void append(const char *format, ...) {
  va_list args;
  va_start(args, format);
  append_list(format, args);
  va_end(args);
}

void fault_raise(const char *kind, const char *format, ...) {
  int thread = machine.current;
  if (!machine.fault.set) {
    machine.fault.set = true;
    machine.fault.pc = machine.pc;
    machine.fault.message[0] = 0;
    append("%s: ", kind);
    va_list args;
    va_start(args, format);
    append_list(format, args);
    va_end(args);
    int index = machine_index(thread);
    append(" [%s, block %" PRId64 ", thread %d (warp %d, lane %d)]", machine.launch->name, machine_block()->index,
           index, index / EMU_WARP, index % EMU_WARP);
  }
  fiber_leave(&machine.threads[thread].fiber, &machine.host);
}

void fault_block(int block, const char *kind, const char *format, ...) {
  if (machine.fault.set)
    return;
  machine.fault.set = true;
  machine.fault.pc = machine.fault.other_pc = NULL;
  machine.fault.message[0] = 0;
  append("%s: ", kind);
  va_list args;
  va_start(args, format);
  append_list(format, args);
  va_end(args);
  append(" [%s, block %" PRId64 "]", machine.launch->name, machine.blocks[block].index);
}
