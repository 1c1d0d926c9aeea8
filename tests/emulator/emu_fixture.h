/* emu_fixture.h: one compiled source, loaded into an emulated device of any seed, for the tests of the emulator. */
#ifndef TESTS_EMU_FIXTURE_H
#define TESTS_EMU_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device.h"
#include "emu_inputs.h"
#include "text.h"

/* Appends a file of the source tree, without the lines of templates that are Lua. */
static inline void fixture_append(text *to, const char *path) {
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

static device_image fixture_image;

static inline int fixture_compile(const char *source) {
  qkv_status status = compiler_emulator.compile(source, "sm_80", &fixture_image);
  if (status)
    fprintf(stderr, "%s\n", error_message());
  return status != QKV_OK;
}

/* A device with the image loaded. */
typedef struct fixture {
  device *d;
  device_module *m;
} fixture;

static inline fixture fixture_open(uint64_t seed) {
  fixture f;
  qkv_options options = QKV_OPTIONS_INIT;
  options.emu_seed = seed;
  assert_int_equal(device_emu.open(0, &options, &f.d), QKV_OK);
  assert_int_equal(device_emu.load(f.d, fixture_image.bytes, fixture_image.size, "test", &f.m), QKV_OK);
  return f;
}

static inline void fixture_close(fixture *f) {
  device_emu.unload(f->d, f->m);
  device_emu.close(f->d);
}

static inline qkv_status fixture_launch(fixture *f, const char *entry, int64_t grid, int block, int shared_bytes,
                                        const fixture_params *params) {
  device_kernel *k;
  if (device_emu.kernel(f->d, f->m, entry, block, shared_bytes, 1, &k))
    fail_msg("%s", error_message());
  const device_launch launch = {grid, block, shared_bytes, params, sizeof *params, 1, false};
  return device_emu.launch(f->d, k, &launch, NULL);
}

static inline void *fixture_upload(fixture *f, const void *bytes, size_t size) {
  void *memory;
  assert_int_equal(device_emu.alloc(f->d, size, &memory), QKV_OK);
  if (bytes)
    assert_int_equal(device_emu.copy_to_device(f->d, memory, bytes, size), QKV_OK);
  return memory;
}

/* Runs one kernel over host buffers: in (in_size bytes) and out (out_size bytes, also the initial content). */
static inline qkv_status fixture_run(uint64_t seed, const char *entry, int64_t grid, int block, int shared_bytes,
                                     int mode, int n, const void *in, size_t in_size, void *out, size_t out_size) {
  fixture f = fixture_open(seed);
  fixture_params p = {fixture_upload(&f, in, in_size), fixture_upload(&f, out, out_size), mode, n};
  qkv_status status = fixture_launch(&f, entry, grid, block, shared_bytes, &p);
  assert_int_equal(device_emu.copy_to_host(f.d, out, p.out, out_size), QKV_OK);
  assert_int_equal(device_emu.free(f.d, (void *)(uintptr_t)p.in), QKV_OK);
  assert_int_equal(device_emu.free(f.d, p.out), QKV_OK);
  fixture_close(&f);
  return status;
}

/* Whether a message of the emulator opens with one of the kinds, "race|deadlock". */
static inline int fixture_names(const char *message, const char *kinds) {
  for (const char *kind = kinds, *end; *kind; kind = *end ? end + 1 : end) {
    end = kind + strcspn(kind, "|");
    size_t n = (size_t)(end - kind);
    if (strncmp(message, "emu: ", 5) == 0 && strncmp(message + 5, kind, n) == 0 && message[5 + n] == ':')
      return 1;
  }
  return 0;
}

#endif
