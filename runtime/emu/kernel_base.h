/* kernel_base.h: how what g++ includes before a kernel reaches the emulator: the bound emu_api, and how functions are
 * marked that are not the kernel's. */
#ifndef RUNTIME_EMU_KERNEL_BASE_H
#define RUNTIME_EMU_KERNEL_BASE_H

#include "emu.h"
#include "formats.h"

#define EMU_PLAIN __attribute__((no_sanitize("thread"))) /* the emulator's own code is not checked */
#define EMU_HIDDEN extern "C" __attribute__((visibility("hidden"))) EMU_PLAIN
#define EMU_EXPORT extern "C" __attribute__((visibility("default"))) EMU_PLAIN
#define EMU_TWIN                                                                                                       \
  static EMU_PLAIN __attribute__((noinline, unused)) /* a call, so that it knows its place in the kernel */
#define EMU_PURE static inline EMU_PLAIN __attribute__((unused))
#define EMU_HERE __builtin_return_address(0)
#define EMU_CALL(function) (*emu->pc = EMU_HERE, emu->function)

static const emu_api *emu;
EMU_EXPORT void qkv_emu_bind(const emu_api *api) {
  emu = api;
}
EMU_EXPORT int qkv_emu_abi() {
  return EMU_ABI;
}

#endif
