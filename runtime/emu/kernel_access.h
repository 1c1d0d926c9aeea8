/* kernel_access.h: every plain load and store of a kernel, as callbacks that -fsanitize=thread inserts, and copies and
 * fills as functions that g++ calls. */
#ifndef RUNTIME_EMU_KERNEL_ACCESS_H
#define RUNTIME_EMU_KERNEL_ACCESS_H

#include "kernel_base.h"

/* What may be unaligned, or is of odd size, is checked byte by byte. */
static EMU_PLAIN void emu_access_bytes(const void *address, unsigned long bytes, int write, const void *pc) {
  *emu->pc = pc;
  for (unsigned long i = 0; i < bytes; i++)
    emu->access((const char *)address + i, 1, write);
}
#define EMU_CALLBACKS(bytes)                                                                                           \
  EMU_HIDDEN void __tsan_read##bytes(void *p) {                                                                        \
    EMU_CALL(access)(p, bytes, 0);                                                                                     \
  }                                                                                                                    \
  EMU_HIDDEN void __tsan_write##bytes(void *p) {                                                                       \
    EMU_CALL(access)(p, bytes, 1);                                                                                     \
  }                                                                                                                    \
  EMU_HIDDEN void __tsan_volatile_read##bytes(void *p) {                                                               \
    EMU_CALL(access)(p, bytes, 0);                                                                                     \
  }                                                                                                                    \
  EMU_HIDDEN void __tsan_volatile_write##bytes(void *p) {                                                              \
    EMU_CALL(access)(p, bytes, 1);                                                                                     \
  }                                                                                                                    \
  EMU_HIDDEN void __tsan_unaligned_read##bytes(void *p) {                                                              \
    emu_access_bytes(p, bytes, 0, EMU_HERE);                                                                           \
  }                                                                                                                    \
  EMU_HIDDEN void __tsan_unaligned_write##bytes(void *p) {                                                             \
    emu_access_bytes(p, bytes, 1, EMU_HERE);                                                                           \
  }
EMU_CALLBACKS(1)
EMU_CALLBACKS(2)
EMU_CALLBACKS(4)
EMU_CALLBACKS(8)
EMU_CALLBACKS(16)
#undef EMU_CALLBACKS
EMU_HIDDEN void __tsan_read_range(void *p, unsigned long bytes) {
  emu_access_bytes(p, bytes, 0, EMU_HERE);
}
EMU_HIDDEN void __tsan_write_range(void *p, unsigned long bytes) {
  emu_access_bytes(p, bytes, 1, EMU_HERE);
}
EMU_HIDDEN void __tsan_vptr_read(void **p) {
  EMU_CALL(access)(p, sizeof *p, 0);
}
EMU_HIDDEN void __tsan_vptr_update(void **p, void *) {
  EMU_CALL(access)(p, sizeof *p, 1);
}
EMU_HIDDEN void __tsan_func_entry(void *) {}
EMU_HIDDEN void __tsan_func_exit(void *) {}
EMU_HIDDEN void __tsan_init() {}

/* g++ calls these for large copies and fills; the library's are not instrumented. */
#define EMU_LOOP __attribute__((optimize("no-tree-loop-distribute-patterns")))
EMU_HIDDEN EMU_LOOP void *memmove(void *to, const void *from, unsigned long bytes) {
  emu_access_bytes(from, bytes, 0, EMU_HERE);
  emu_access_bytes(to, bytes, 1, EMU_HERE);
  char *t = (char *)to;
  const char *f = (const char *)from;
  for (unsigned long i = 0; i < bytes; i++) {
    unsigned long at = t <= f ? i : bytes - 1 - i;
    t[at] = f[at];
  }
  return to;
}
EMU_HIDDEN EMU_LOOP void *memcpy(void *__restrict__ to, const void *__restrict__ from, unsigned long bytes) {
  emu_access_bytes(from, bytes, 0, EMU_HERE);
  emu_access_bytes(to, bytes, 1, EMU_HERE);
  for (unsigned long i = 0; i < bytes; i++)
    ((char *)to)[i] = ((const char *)from)[i];
  return to;
}
EMU_HIDDEN EMU_LOOP void *memset(void *to, int value, unsigned long bytes) {
  emu_access_bytes(to, bytes, 1, EMU_HERE);
  for (unsigned long i = 0; i < bytes; i++)
    ((char *)to)[i] = (char)value;
  return to;
}

#endif
