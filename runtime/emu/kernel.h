/* kernel.h: what g++ includes before a generated kernel, so that the same source that NVRTC compiles runs on the
 * emulator: CUDA's keywords and the built-ins that kernels use, the twin of every primitive of templates/prim, and the
 * access callbacks that -fsanitize=thread inserts, all forwarded to the emulator through the bound emu_api.
 *
 * C++17, no library headers: compile time counts. */
#ifndef RUNTIME_EMU_KERNEL_H
#define RUNTIME_EMU_KERNEL_H

#include "kernel_access.h"
#include "kernel_cuda.h"
#include "kernel_math.h"
#include "kernel_sm80.h"
#include "kernel_sm90.h"

#endif
