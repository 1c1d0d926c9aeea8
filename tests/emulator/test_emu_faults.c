/* Mutants: one correct kernel per idea, with one planted fault chosen by p.mode. The emulator must name each by its
 * kind, at its source line, in every policy and under every seed; with mode 0 the same kernel must be clean and right.
 */
#include "emu_fixture.h"

static const char source[] = FIXTURE_PARAMS
    "// Shared memory round trip by plain stores. 1: barrier missing; 2: barrier missing before the reuse.\n"
    "extern \"C\" __global__ void exchange(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x, *tile = (int *)shared_arena(), sum = 0;\n"
    "  for (int i = 0; i < p.n; i++) {\n"
    "    tile[t] = ((const int *)p.in)[t] + i;\n"
    "    if (p.mode != 1) block_sync();\n"
    "    sum += tile[t ^ 37];\n"
    "    if (p.mode != 2) block_sync();\n"
    "  }\n"
    "  ((int *)p.out)[t] = sum;\n"
    "}\n"
    "\n"
    "// The same within a warp. 1: warp_sync missing; 2: a shuffle instead, which orders no memory.\n"
    "extern \"C\" __global__ void exchange_warp(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x, *tile = (int *)shared_arena();\n"
    "  tile[t] = ((const int *)p.in)[t];\n"
    "  if (p.mode == 0) warp_sync();\n"
    "  if (p.mode == 2) shuffle_xor_b32(0, 1);\n"
    "  ((int *)p.out)[t] = tile[t ^ 5];\n"
    "}\n"
    "\n"
    "// Three stages. 1: no wait; 2: waits for too few groups; 3: wait after the barrier; 4: reuses a stage too "
    "early;\n"
    "// 5: no commit.\n"
    "extern \"C\" __global__ void pipeline(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x, sum = 0;\n"
    "  unsigned char *shared = shared_arena();\n"
    "  for (int i = 0; i < 2; i++) {\n"
    "    cp_async_16(smem_addr(shared + 1024 * i + 16 * t), (const char *)p.in + 1024 * i + 16 * t);\n"
    "    if (p.mode != 5) cp_async_commit();\n"
    "  }\n"
    "  for (int i = 0; i < p.n; i++) {\n"
    "    if (p.mode == 2) cp_async_wait_2();\n"
    "    else if (p.mode != 1 && p.mode != 3) cp_async_wait_1();\n"
    "    block_sync();\n"
    "    if (p.mode == 3) cp_async_wait_1();\n"
    "    int next = i + 2, stage = p.mode == 4 ? (i + 1) % 2 : next % 3;\n"
    "    if (next < p.n) cp_async_16(smem_addr(shared + 1024 * stage + 16 * t), (const char *)p.in + 1024 * next + 16 "
    "* t);\n"
    "    cp_async_commit();\n"
    "    for (int k = 0; k < 64; k++) sum += shared[1024 * (i % 3) + 16 * k + t % 16];\n"
    "  }\n"
    "  ((int *)p.out)[t] = sum;\n"
    "}\n"
    "\n"
    "struct quad { float x[4]; };\n"
    "\n"
    "// Bounds, alignment, null and foreign pointers. A local struct of 16 bytes, copied at once, may lie at 8.\n"
    "extern \"C\" __global__ void bounds(const __grid_constant__ qkv_params p) {\n"
    "  static const float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};\n"
    "  int t = threadIdx.x;\n"
    "  const float *in = (const float *)p.in;\n"
    "  float *out = (float *)p.out, *tile = (float *)shared_arena();\n"
    "  unsigned at = smem_addr(tile), r[4];\n"
    "  struct { float head[2]; quad body; } local = {{}, {{table[t % 4]}}};\n"
    "  asm volatile(\"\" : : \"r\"(&local) : \"memory\");\n"
    "  quad copy = local.body;\n"
    "  asm volatile(\"\" : : \"r\"(&copy) : \"memory\");\n"
    "  float x = copy.x[0];\n"
    "  if (p.mode == 1) x = in[t + 1]; // LINE 1\n"
    "  if (p.mode == 2) out[t + t / 63] = x; // LINE 2\n"
    "  if (p.mode == 3) x = in[t - 1]; // LINE 3\n"
    "  if (p.mode == 4) tile[t + 1] = x; // LINE 4\n"
    "  if (p.mode == 5) x = tile[t + 1]; // LINE 5\n"
    "  if (p.mode == 6) *(uint4 *)(tile + 4 * (t % 4) + 1) = make_uint4(1, 2, 3, 4); // LINE 6\n"
    "  if (p.mode == 7) { uint4 v = *(const uint4 *)(in + 1); x = (float)v.x; } // LINE 7\n"
    "  if (p.mode == 8) cp_async_16(at + 8, in); // LINE 8\n"
    "  if (p.mode == 9) cp_async_16(at, in + 2); // LINE 9\n"
    "  if (p.mode == 10) cp_async_16(at + 256, in); // LINE 10\n"
    "  if (p.mode == 11) cp_async_16(at + 16 * (t % 8), in + 4 * t); // LINE 11\n"
    "  if (p.mode == 12) ldmatrix_x4(r, at + 16 * t); // LINE 12\n"
    "  if (p.mode == 13) ldmatrix_x4(r, at + 2); // LINE 13\n"
    "  if (p.mode == 14) x = *(const volatile float *)(long long)(4 * t); // LINE 14\n"
    "  if (p.mode == 15) { float *volatile constant = (float *)table; *constant = x; } // LINE 15\n"
    "  if (p.mode == 16) cp_async_16(smem_addr(&x), in); // LINE 16\n"
    "  if (p.mode == 17) x = *(const float *)((const char *)in + 2); // LINE 17\n"
    "  if (p.mode == 18) cp_async_16_zfill(at, in, 17); // LINE 18\n"
    "  out[t] = x;\n"
    "}\n"
    "\n"
    "// Lanes and warps that part. The line of a fault depends on who comes last.\n"
    "extern \"C\" __global__ void company(const __grid_constant__ qkv_params p) {\n"
    "  int t = threadIdx.x, lane = t % 32;\n"
    "  float x = (float)t, d[4] = {0.0f, 0.0f, 0.0f, 0.0f};\n"
    "  unsigned r[4] = {0, 0, 0, 0}, at = smem_addr(shared_arena());\n"
    "  if (p.mode == 1 && lane < 16) return;\n"
    "  if (p.mode == 2 && lane == 3) vote_any(1);\n"
    "  else if (p.mode == 3 && lane == 31) block_sync();\n"
    "  else if (p.mode == 4 && lane >= 8) ldmatrix_x2(r, at);\n"
    "  else if (p.mode == 4) ldmatrix_x1(r, at);\n"
    "  else if (p.mode == 5 && lane % 2) mma_m16n8k16_bf16(d, r, 0, 0);\n"
    "  else if (p.mode == 5) mma_m16n8k16_f16(d, r, 0, 0);\n"
    "  else x = shuffle_xor_f32(x, 16);\n"
    "  if (p.mode == 6 && t < 32) return;\n"
    "  block_sync();\n"
    "  if (p.mode == 7) bar_sync(1, t < 32 ? 64 : 32);\n"
    "  if (p.mode == 8) bar_sync(16, 64);\n"
    "  if (p.mode == 9) bar_sync(1, 48);\n"
    "  if (p.mode == 10) bar_sync(t < 32 ? 1 : 2, 64);\n"
    "  if (p.mode == 11) bar_sync(1, 96);\n"
    "  ((float *)p.out)[t] = x;\n"
    "}\n"
    "QKV_EMU_ENTRY(exchange)\nQKV_EMU_ENTRY(exchange_warp)\nQKV_EMU_ENTRY(pipeline)\nQKV_EMU_ENTRY(bounds)\n"
    "QKV_EMU_ENTRY(company)\n";

typedef struct mutant {
  const char *entry;
  int mode, block, shared_bytes, n;
  const char *kind; /* NULL: clean; "a|b": either */
  const char *says; /* a word of the details */
} mutant;

static const mutant mutants[] = {
    {"exchange", 0, 128, 512, 3, NULL, NULL},
    {"exchange", 1, 128, 512, 3, "race", "a barrier is missing"},
    {"exchange", 2, 128, 512, 3, "race", "a barrier is missing"},
    {"exchange_warp", 0, 32, 128, 0, NULL, NULL},
    {"exchange_warp", 1, 32, 128, 0, "race", "a barrier is missing"},
    {"exchange_warp", 2, 32, 128, 0, "race", "a barrier is missing"},
    {"pipeline", 0, 64, 3072, 4, NULL, NULL},
    {"pipeline", 1, 64, 3072, 4, "pending copy", "not waited for"},
    {"pipeline", 2, 64, 3072, 4, "pending copy", "not waited for"},
    {"pipeline", 3, 64, 3072, 4, "pending copy|race", "shared memory at offset"}, /* by whether the other waited yet */
    {"pipeline", 4, 64, 3072, 4, "pending copy|race", "asynchronous copy into shared memory"},
    {"pipeline", 5, 64, 3072, 4, "pending copy", "not waited for"},
    {"bounds", 0, 64, 256, 0, NULL, NULL},
    {"bounds", 1, 64, 256, 0, "out of bounds", "0 bytes past the end of the allocation of 256 bytes"},
    {"bounds", 2, 64, 256, 0, "out of bounds", "write of 4 bytes at global address"},
    {"bounds", 3, 64, 256, 0, "out of bounds", "4 bytes before the allocation"},
    {"bounds", 4, 64, 256, 0, "out of bounds", "write of 4 bytes at offset 256 of the block's 256"},
    {"bounds", 5, 64, 256, 0, "out of bounds", "read of 4 bytes at offset 256 of the block's 256"},
    {"bounds", 6, 64, 256, 0, "misaligned access", "write at shared"},
    {"bounds", 7, 64, 256, 0, "misaligned access", "read at global"},
    {"bounds", 8, 64, 256, 0, "misaligned access", "cp.async at shared"},
    {"bounds", 9, 64, 256, 0, "misaligned access", "cp.async at global"},
    {"bounds", 10, 64, 256, 0, "out of bounds", "cp.async of 16 bytes at offset 256"},
    {"bounds", 11, 64, 256, 0, "out of bounds|pending copy", ""}, /* or a copy onto a copy, by who runs first */
    {"bounds", 12, 64, 256, 0, "out of bounds", "ldmatrix of 16 bytes"},
    {"bounds", 13, 64, 256, 0, "misaligned access", "ldmatrix at shared"},
    {"bounds", 14, 64, 256, 0, "out of bounds", "null pointer"},
    {"bounds", 15, 64, 256, 0, "write to read-only memory", "constants"},
    {"bounds", 16, 64, 256, 0, "out of bounds", "is no shared address"},
    {"bounds", 17, 64, 256, 0, "misaligned access", "alignment of 4 bytes"},
    {"bounds", 18, 64, 256, 0, "out of bounds", "17 source bytes"},
    {"company", 0, 64, 256, 0, NULL, NULL},
    {"company", 1, 64, 256, 0, "divergent collective", "ended"},
    {"company", 2, 64, 256, 0, "divergent collective", "vote_any"},
    {"company", 3, 64, 256, 0, "divergent collective", "barrier"},
    {"company", 4, 64, 256, 0, "divergent collective", "another variant of ldmatrix"},
    {"company", 5, 64, 256, 0, "divergent collective", "another variant of mma"},
    {"company", 6, 64, 256, 0, "deadlock", "32 of 64 arrived"},
    {"company", 7, 64, 256, 0, "bad barrier", "others came to it for"},
    {"company", 8, 64, 256, 0, "bad barrier", "does not exist"},
    {"company", 9, 64, 256, 0, "bad barrier", "whole warps"},
    {"company", 10, 64, 256, 0, "deadlock", "wait at barrier 1 (32 of 64 arrived); threads 32 to 63 wait at barrier 2"},
    {"company", 11, 64, 256, 0, "bad barrier", "block's 64 threads"},
};
enum { MUTANTS = sizeof mutants / sizeof *mutants, SEEDS = 60 };

static int setup(void **state) {
  (void)state;
  return fixture_compile(source);
}

/* Line of the source that has the marker; 0: none. */
static int line_of(const char *marker) {
  const char *found = strstr(source, marker);
  int line = 1;
  for (const char *c = source; found && c < found; c++)
    line += *c == '\n';
  return found ? line : 0;
}

static void check_result(const mutant *m, uint64_t seed, const unsigned char *in, const void *out) {
  const unsigned *numbers = (const unsigned *)(const void *)in, *got = out;
  for (int t = 0; t < m->block; t++) {
    unsigned expected = 0;
    if (strcmp(m->entry, "exchange") == 0)
      for (int i = 0; i < m->n; i++)
        expected += numbers[t ^ 37] + (unsigned)i;
    else if (strcmp(m->entry, "exchange_warp") == 0)
      expected = numbers[t ^ 5];
    else if (strcmp(m->entry, "pipeline") == 0)
      for (int k = 0; k < 64 * m->n; k++)
        expected += in[16 * k + t % 16];
    else
      continue;
    if (got[t] != expected)
      fail_msg("%s mode %d seed %d: thread %d got %u, should be %u", m->entry, m->mode, (int)seed, t, got[t], expected);
  }
}

static int starts_with_kind(const char *message, const char *kinds) {
  for (const char *kind = kinds, *end; *kind; kind = *end ? end + 1 : end) {
    end = kind + strcspn(kind, "|");
    size_t n = (size_t)(end - kind);
    if (strncmp(message, "emu: ", 5) == 0 && strncmp(message + 5, kind, n) == 0 && message[5 + n] == ':')
      return 1;
  }
  return 0;
}

static void check_report(const mutant *m, uint64_t seed, qkv_status status) {
  const char *message = error_message();
  if (status != QKV_DEVICE_ERROR || !starts_with_kind(message, m->kind) || !strstr(message, m->says))
    fail_msg("%s mode %d seed %d: status %d, \"%s\", should say \"emu: %s: ... %s\"", m->entry, m->mode, (int)seed,
             (int)status, message, m->kind, m->says);
  char marker[32], wanted[64];
  snprintf(marker, sizeof marker, "// LINE %d\n", m->mode);
  if (strcmp(m->entry, "bounds") != 0)
    return;
  snprintf(wanted, sizeof wanted, "line %d of the generated source", line_of(marker));
  if (!strstr(message, wanted))
    fail_msg("%s mode %d seed %d: \"%s\" should name %s", m->entry, m->mode, (int)seed, message, wanted);
}

/* Seeds 0 and 1 are the in-order and the reverse policy. */
static void test_mutants(void **state) {
  (void)state;
  unsigned char in[4096];
  uint64_t random = 5;
  for (size_t i = 0; i < sizeof in; i++)
    in[i] = (unsigned char)(fixture_random(&random) % 100);
  for (const mutant *m = mutants; m < mutants + MUTANTS; m++) {
    /* addr2line costs more than a run: fewer seeds where the line is asked for */
    int is_pipeline = strcmp(m->entry, "pipeline") == 0, seeds = strcmp(m->entry, "bounds") == 0 ? SEEDS / 10 : SEEDS;
    size_t in_size = is_pipeline ? 4096 : (size_t)m->block * 4, out_size = (size_t)m->block * 4;
    for (uint64_t seed = 0; seed < (uint64_t)seeds; seed++) {
      unsigned char out[512] = {0};
      qkv_status status =
          fixture_run(seed, m->entry, 1, m->block, m->shared_bytes, m->mode, m->n, in, in_size, out, out_size);
      if (m->kind) {
        check_report(m, seed, status);
        continue;
      }
      if (status)
        fail_msg("%s mode %d seed %d: %s", m->entry, m->mode, (int)seed, error_message());
      check_result(m, seed, in, out);
    }
  }
}

static void test_freed_memory(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 5; seed++) {
    fixture f = fixture_open(seed);
    fixture_params p = {fixture_upload(&f, NULL, 256), fixture_upload(&f, NULL, 256), 1, 0};
    assert_int_equal(device_emu.free(f.d, (void *)(uintptr_t)p.in), QKV_OK);
    void *other = fixture_upload(&f, NULL, 256); /* does not take the freed place */
    assert_int_equal(fixture_launch(&f, "bounds", 1, 63, 256, &p), QKV_DEVICE_ERROR);
    if (strncmp(error_message(), "emu: use of freed memory: read of 4 bytes", 41) != 0)
      fail_msg("%s", error_message());
    /* The device goes on after a fault. */
    p.in = other;
    p.mode = 0;
    assert_int_equal(fixture_launch(&f, "bounds", 1, 64, 256, &p), QKV_OK);
    device_emu.free(f.d, other);
    device_emu.free(f.d, p.out);
    fixture_close(&f);
  }
}

/* A kernel that may start early waits before it touches global memory: every thread that does, bulk copies' too. */
static void test_early_access(void **state) {
  (void)state;
  static const char code[] = "struct qkv_params { const float *in; float *out; int mode, n; };\n"
                               "extern \"C\" __global__ void early(const __grid_constant__ qkv_params p) {\n"
                               "  if (p.mode == 1) p.out[threadIdx.x] = 1.0f;\n"
                               "  if (p.mode != 2 || threadIdx.x < 40) grid_dependency_wait();\n"
                               "  p.out[threadIdx.x] = p.in[threadIdx.x];\n"
                               "}\n"
                               "QKV_EMU_ENTRY(early)\n";
  static const struct {
    int mode;
    bool early;
    const char *report;
  } rows[] = {
      {0, true, NULL},
      {0, false, NULL},
      {1, true, "emu: early access: write of 4 bytes of global memory before grid_dependency_wait [early, block 0"},
      {1, false, NULL},
      {2, true, "emu: early access: read of 4 bytes of global memory before grid_dependency_wait [early, block 0"},
      {2, false, NULL},
  };
  device_image image;
  fixture f = fixture_open(1);
  device_module *module;
  device_kernel *kernel;
  if (compiler_emulator.compile(code, "sm_90a", &image) ||
      device_emu.load(f.d, image.bytes, image.size, "test", &module) ||
      device_emu.kernel(f.d, module, "early", 32, 0, 1, &kernel))
    fail_msg("%s", error_message());
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    fixture_params p = {fixture_upload(&f, NULL, 256), fixture_upload(&f, NULL, 256), rows[n].mode, 0};
    const device_launch launch = {1, 64, 0, &p, sizeof p, 1, rows[n].early};
    qkv_status status = device_emu.launch(f.d, kernel, &launch, NULL);
    const char *said = status ? error_message() : "nothing";
    if (rows[n].report ? strncmp(said, rows[n].report, strlen(rows[n].report)) != 0 : status != QKV_OK)
      fail_msg("mode %d, early %d: %s", rows[n].mode, rows[n].early, said);
    device_emu.free(f.d, (void *)(uintptr_t)p.in);
    device_emu.free(f.d, p.out);
  }
  device_emu.unload(f.d, module);
  image_free(&image);
  fixture_close(&f);
}

/* The first block that faults is named, and later ones do not run. */
static void test_fault_names_block_and_thread(void **state) {
  (void)state;
  int in[64] = {0}, out[64] = {0};
  assert_int_equal(fixture_run(0, "bounds", 3, 64, 256, 1, 0, in, sizeof in, out, sizeof out), QKV_DEVICE_ERROR);
  if (!strstr(error_message(), "[bounds, block 0, thread 63 (warp 1, lane 31)]"))
    fail_msg("%s", error_message());
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_mutants),
      cmocka_unit_test(test_freed_memory),
      cmocka_unit_test(test_early_access),
      cmocka_unit_test(test_fault_names_block_and_thread),
  };
  int failures = cmocka_run_group_tests(tests, setup, NULL);
  image_free(&fixture_image);
  return failures;
}
