/* emu_sm90.h: the fixture of the tests that use tensor maps. */
#ifndef TESTS_EMU_SM90_H
#define TESTS_EMU_SM90_H

#include "emu_fixture.h"
#include "tensor_map.h"

static inline qkv_status sm90_launch_clusters(fixture *f, const char *entry, int64_t grid, int cluster, int block,
                                              int shared_bytes, const sm90_params *params) {
  device_kernel *k;
  if (device_emu.kernel(f->d, f->m, entry, block, shared_bytes, cluster, &k))
    fail_msg("%s", error_message());
  const device_launch launch = {grid, block, shared_bytes, params, sizeof *params, cluster, false};
  return device_emu.launch(f->d, k, &launch, NULL);
}

static inline qkv_status sm90_launch(fixture *f, const char *entry, int64_t grid, int block, int shared_bytes,
                                     const sm90_params *params) {
  return sm90_launch_clusters(f, entry, grid, 1, block, shared_bytes, params);
}

#endif
