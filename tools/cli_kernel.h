/* cli_kernel.h: the options that choose one kernel of a spec, common to gen, build, explain and run; bench, whose
 * tensors are aligned and whose phase follows the sizes, has a list of its own. */
#ifndef TOOLS_CLI_KERNEL_H
#define TOOLS_CLI_KERNEL_H

#include "cli.h"
#include "qkv_build.h"

typedef struct cli_kernel_choice {
  const char *family, *phase, *schedule;
  int unaligned;
} cli_kernel_choice;
extern cli_kernel_choice cli_kernel;

#define CLI_KERNEL_OPTIONS                                                                                             \
  {"family", 0, CLI_TEXT, &cli_kernel.family, "NAME", "kernel family; default: the first that can do the spec"},       \
      {"phase", 0, CLI_TEXT, &cli_kernel.phase, "NAME", "prefill (default) or another phase of the schedule"},         \
      {"schedule", 0, CLI_TEXT, &cli_kernel.schedule, "K=V,...", "schedule fields, such as tile_m=64,stages=2"}, {     \
    "unaligned", 0, CLI_FLAG, &cli_kernel.unaligned, NULL, "the kernel for tensors not aligned to 16 bytes"            \
  }

qkv_build_options cli_kernel_build_options(const char *arch);

#endif
