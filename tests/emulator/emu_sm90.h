/* emu_sm90.h: the fixture of the tests that use tensor maps: a parameter struct with four of them, sources from files.
 */
#ifndef TESTS_EMU_SM90_H
#define TESTS_EMU_SM90_H

#include "emu_fixture.h"
#include "tensor_map.h"
#include "text.h"

#define SM90_PARAMS "struct qkv_params { tensor_map map[4]; const void *in; void *out; int mode, n, x[6]; };\n"
typedef struct sm90_params {
  _Alignas(64) unsigned char map[4][DEVICE_TENSOR_MAP_BYTES];
  const void *in;
  void *out;
  int mode, n, x[6];
} sm90_params;

/* Appends a file of the source tree, without the lines of templates that are Lua. */
static inline void sm90_append(text *to, const char *path) {
  char full[1024], line[1024];
  snprintf(full, sizeof full, "%s/%s", QKV_SOURCE_DIR, path);
  FILE *file = fopen(full, "r");
  if (!file)
    fail_msg("%s cannot be read", full);
  while (fgets(line, sizeof line, file))
    if (strncmp(line, "//%", 3) != 0)
      text_add(to, line, strlen(line));
  fclose(file);
}

static inline device_tensor_map sm90_map(void *base, int rank, const int64_t *extent, const int *box, int swizzle) {
  device_tensor_map map = {.base = base, .element_bytes = 2, .rank = rank, .swizzle = swizzle};
  int64_t stride = 2;
  for (int d = 0; d < rank; d++) {
    map.extent[d] = extent[d];
    map.box[d] = box[d];
    stride = d == 0 ? (extent[0] * 2 + 15) / 16 * 16 : stride * extent[d];
    if (d < rank - 1)
      map.stride_bytes[d] = stride;
  }
  return map;
}

static inline qkv_status sm90_launch(fixture *f, const char *entry, int64_t grid, int block, int shared_bytes,
                                     const sm90_params *params) {
  device_kernel *k;
  if (device_emu.kernel(f->d, f->m, entry, shared_bytes, &k))
    fail_msg("%s", error_message());
  return device_emu.launch(f->d, k, &(device_launch){grid, block, shared_bytes, params, sizeof *params}, NULL);
}

#endif
