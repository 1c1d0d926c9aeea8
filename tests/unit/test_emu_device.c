/* The emulated device behind the device table and its compiler: what is refused and how, memory, events, threads. */
#include "emulator/emu_fixture.h"

#include <pthread.h>
#include <unistd.h>

static const char source[] =
    FIXTURE_PARAMS "extern \"C\" __global__ void add(const __grid_constant__ qkv_params p) {\n"
                   "  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
                   "  if (i < p.n) ((int *)p.out)[i] = ((const int *)p.in)[i] + p.mode;\n"
                   "}\n"
                   "// Keeps a large frame, and copies structs that g++ moves with memcpy.\n"
                   "struct block { int value[300]; };\n"
                   "extern \"C\" __global__ void large(const __grid_constant__ qkv_params p) {\n"
                   "  block local[40];\n"
                   "  for (int i = 0; i < 40; i++) local[i] = *((const block *)p.in + p.mode);\n"
                   "  ((block *)p.out)[threadIdx.x] = local[threadIdx.x % 40];\n"
                   "}\n"
                   "// Copies a struct that g++ moves by 16 bytes, though it lies on 8 only.\n"
                   "struct quad { float value[4]; };\n"
                   "struct holder { long long before; quad inside; };\n"
                   "extern \"C\" __global__ void moved(const __grid_constant__ qkv_params p) {\n"
                   "  holder here[2];\n"
                   "  for (int i = 0; i < 4; i++) here[p.mode].inside.value[i] = ((const float *)p.in)[i];\n"
                   "  holder *volatile at = &here[p.mode];\n"
                   "  const quad copy = at->inside;\n"
                   "  at->inside.value[0] = 0.0f;\n"
                   "  for (int i = 0; i < 4; i++) ((float *)p.out)[i] = copy.value[i];\n"
                   "}\n"
                   "QKV_EMU_ENTRY(add)\nQKV_EMU_ENTRY(large)\nQKV_EMU_ENTRY(moved)\n";

static int setup(void **state) {
  (void)state;
  return fixture_compile(source);
}

static void expect(qkv_status got, qkv_status wanted, const char *says) {
  if (got != wanted || !strstr(error_message(), says))
    fail_msg("status %d, \"%s\"; should be %d, \"... %s\"", (int)got, error_message(), (int)wanted, says);
}

static void test_open_refuses(void **state) {
  (void)state;
  device *d;
  expect(device_emu.open(1, NULL, &d), QKV_NO_DEVICE, "emu:0");
  setenv("QKV_EMU_POLICY", "sideways", 1);
  expect(device_emu.open(0, NULL, &d), QKV_INVALID_ARGUMENT, "in-order, reverse or random");
  setenv("QKV_EMU_POLICY", "reverse", 1);
  assert_int_equal(device_emu.open(0, NULL, &d), QKV_OK);
  unsetenv("QKV_EMU_POLICY");
  qkv_device_info info = {.size = sizeof info};
  assert_int_equal(device_emu.info(d, &info), QKV_OK);
  assert_string_equal(info.kind, "emu");
  assert_string_equal(info.arch, "sm_80");
  assert_true(info.sm_count > 0 && info.memory_bytes > 0);
  device_emu.close(d);
}

static void test_memory(void **state) {
  (void)state;
  fixture f = fixture_open(0);
  enum { N = 300 };
  unsigned char *blocks[N], bytes[64];
  uint64_t random = 7;
  for (int i = 0; i < N; i++) {
    size_t size = fixture_random(&random) % 5000;
    blocks[i] = fixture_upload(&f, NULL, size);
    assert_true((uintptr_t)blocks[i] % 256 == 0);
    size_t tail = size < sizeof bytes ? size : sizeof bytes;
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(device_emu.copy_to_host(f.d, bytes, blocks[i] + size - tail, tail), QKV_OK);
    for (size_t k = 0; k < tail; k++)
      assert_int_equal(bytes[k], 0xff);
    expect(device_emu.copy_to_host(f.d, bytes, blocks[i] + size - tail, tail + 1), QKV_INVALID_ARGUMENT,
           "not inside a live");
    expect(device_emu.copy_to_device(f.d, blocks[i] - 1, bytes, 1), QKV_INVALID_ARGUMENT, "not inside a live");
    expect(device_emu.copy_on_device(f.d, blocks[i] + size, blocks[0], 1), QKV_INVALID_ARGUMENT, "not inside a live");
    expect(device_emu.copy_on_device(f.d, blocks[0], blocks[i] + size, 1), QKV_INVALID_ARGUMENT, "not inside a live");
  }
  expect(device_emu.free(f.d, blocks[0] + 1), QKV_INVALID_ARGUMENT, "not the start");
  for (int i = 0; i < N; i++) {
    int k = (i * 77) % N;
    assert_int_equal(device_emu.free(f.d, blocks[k]), QKV_OK);
    expect(device_emu.free(f.d, blocks[k]), QKV_INVALID_ARGUMENT, "not the start");
  }
  assert_int_equal(device_emu.free(f.d, NULL), QKV_OK);
  for (int i = 0; i < 1500; i++) /* more than the emulator remembers */
    assert_int_equal(device_emu.free(f.d, fixture_upload(&f, NULL, 16)), QKV_OK);
  unsigned char *some = fixture_upload(&f, NULL, 8);
  assert_int_equal(device_emu.set_zero(f.d, some + 3, 2, NULL), QKV_OK);
  assert_int_equal(device_emu.copy_to_host(f.d, bytes, some, 8), QKV_OK);
  assert_memory_equal(bytes, "\xff\xff\xff\0\0\xff\xff\xff", 8);
  expect(device_emu.set_zero(f.d, some + 1, 8, NULL), QKV_INVALID_ARGUMENT, "not inside a live");
  assert_int_equal(device_emu.free(f.d, some), QKV_OK);
  void *huge;
  expect(device_emu.alloc(f.d, SIZE_MAX, &huge), QKV_OUT_OF_MEMORY, "bytes left");
  expect(device_emu.alloc(f.d, SIZE_MAX / 4, &huge), QKV_OUT_OF_MEMORY, "bytes left");
  fixture_close(&f);
}

/* Reserved addresses are memory where granules are mapped, for copies and for kernels, and nowhere else. */
static void test_virtual_memory(void **state) {
  (void)state;
  enum { N = 64 };
  fixture f = fixture_open(0);
  size_t granule;
  void *range, *huge;
  int in[N] = {0}, out[N];
  assert_int_equal(device_emu.granularity(f.d, &granule), QKV_OK);
  assert_int_equal(granule, 2 << 20);
  assert_int_equal(device_emu.reserve(f.d, 4 * granule, &range), QKV_OK);
  assert_int_equal((uintptr_t)range % granule, 0);
  char *second = (char *)range + granule, *border = second + granule;
  expect(device_emu.map(f.d, second + 4096, granule, 1), QKV_INVALID_ARGUMENT, "not reserved granules without memory");
  expect(device_emu.map(f.d, second, granule, 4), QKV_INVALID_ARGUMENT, "not reserved granules without memory");
  expect(device_emu.unmap(f.d, second, granule, 1), QKV_INVALID_ARGUMENT, "not mapped granules");
  assert_int_equal(device_emu.map(f.d, second, granule, 1), QKV_OK);
  expect(device_emu.map(f.d, range, granule, 2), QKV_INVALID_ARGUMENT, "not reserved granules without memory");
  expect(device_emu.free(f.d, range), QKV_INVALID_ARGUMENT, "not the start of a live allocation");
  expect(device_emu.unreserve(f.d, range, 4 * granule), QKV_INVALID_ARGUMENT, "without mapped memory");
  fixture_params p = {border - sizeof in, fixture_upload(&f, out, sizeof out), 3, N};
  assert_int_equal(device_emu.copy_to_device(f.d, border - sizeof in, in, sizeof in), QKV_OK);
  assert_int_equal(fixture_launch(&f, "add", 1, N, 0, &p), QKV_OK);
  assert_int_equal(device_emu.copy_to_host(f.d, out, p.out, sizeof out), QKV_OK);
  assert_int_equal(out[N - 1], 3);
  p.in = border - sizeof in + 4; /* the last of them lies in what is not mapped */
  expect(fixture_launch(&f, "add", 1, N, 0, &p), QKV_DEVICE_ERROR, "4 bytes at offset 4194304 of the reserved range");
  expect(fixture_launch(&f, "add", 1, N, 0, &p), QKV_DEVICE_ERROR, "where not all is mapped");
  expect(device_emu.copy_to_host(f.d, out, border - 4, 8), QKV_INVALID_ARGUMENT, "not inside a live");
  assert_int_equal(device_emu.map(f.d, border, granule, 1), QKV_OK);
  assert_int_equal(fixture_launch(&f, "add", 1, N, 0, &p), QKV_OK);
  assert_int_equal(device_emu.copy_to_host(f.d, out, border - 4, 8), QKV_OK);
  assert_int_equal(out[1], -1); /* new memory is poisoned */
  assert_int_equal(device_emu.unmap(f.d, second, granule, 2), QKV_OK);
  expect(fixture_launch(&f, "add", 1, N, 0, &p), QKV_DEVICE_ERROR, "where not all is mapped");
  expect(device_emu.unreserve(f.d, range, 3 * granule), QKV_INVALID_ARGUMENT, "not a reserved range");
  assert_int_equal(device_emu.unreserve(f.d, range, 4 * granule), QKV_OK);
  expect(fixture_launch(&f, "add", 1, N, 0, &p), QKV_DEVICE_ERROR, "is in no allocation");
  expect(device_emu.reserve(f.d, SIZE_MAX / 4 / granule * granule, &huge), QKV_OUT_OF_MEMORY,
         "bytes of addresses left");
  assert_null(huge);
  assert_int_equal(device_emu.free(f.d, p.out), QKV_OK);
  fixture_close(&f);
}

static void test_modules_refuse(void **state) {
  (void)state;
  fixture f = fixture_open(0);
  device_module *m;
  device_kernel *k;
  expect(device_emu.load(f.d, "no image", 8, "junk", &m), QKV_DEVICE_ERROR, "junk: the image cannot be loaded");
  expect(device_emu.load(f.d, fixture_image.bytes, fixture_image.size / 2, "half", &m), QKV_DEVICE_ERROR, "half");
  expect(device_emu.kernel(f.d, f.m, "nothing", 64, 0, 1, &k), QKV_DEVICE_ERROR, "no entry nothing");
  expect(device_emu.kernel(f.d, f.m, "add", 64, 300000, 1, &k), QKV_INVALID_ARGUMENT, "shared memory");
  expect(device_emu.kernel(f.d, f.m, "add", 64, 128, 17, &k), QKV_BAD_SCHEDULE,
         "clusters of 17 blocks, each of 64 threads and with 128 bytes");
  assert_int_equal(device_emu.kernel(f.d, f.m, "add", 64, 128, 16, &k), QKV_OK);
  assert_true(compiler_emulator.plausible(fixture_image.bytes, fixture_image.size));
  assert_false(compiler_emulator.plausible(fixture_image.bytes, 32));
  assert_false(compiler_emulator.plausible(source, sizeof source));
  device_resources r;
  compiler_emulator.resources("", "add", &r);
  assert_true(r.registers < 0);
  fixture_close(&f);
}

static void test_launch_refuses(void **state) {
  (void)state;
  fixture f = fixture_open(0);
  device_kernel *k;
  fixture_params p = {NULL, NULL, 0, 0};
  assert_int_equal(device_emu.kernel(f.d, f.m, "add", 64, 128, 1, &k), QKV_OK);
  static const struct {
    int64_t grid;
    int block, shared;
    size_t params;
    const char *says;
    int cluster;
  } cases[] = {
      {0, 32, 0, sizeof p, "grid of 0", 0},
      {1ll << 31, 32, 0, sizeof p, "grid", 0},
      {1, 0, 0, sizeof p, "block of 0", 0},
      {1, 1025, 0, sizeof p, "block of 1025", 0},
      {1, 32, 129, sizeof p, "loaded for 128", 0},
      {1, 32, -1, sizeof p, "shared", 0},
      {1, 32, 0, sizeof p + 8, "the source declares", 0},
      {3, 32, 0, sizeof p, "3 blocks in clusters of 2", 2},
      {32, 32, 0, sizeof p, "clusters of 32", 32},
      {4, 32, 0, sizeof p, "clusters of -1", -1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    device_launch l = {cases[i].grid, cases[i].block, cases[i].shared, &p, cases[i].params, cases[i].cluster, false};
    expect(device_emu.launch(f.d, k, &l, NULL), QKV_INVALID_ARGUMENT, cases[i].says);
  }
  device_launch empty = {3, 32, 0, &p, sizeof p, 1, false};
  assert_int_equal(device_emu.launch(f.d, k, &empty, NULL), QKV_OK);
  assert_int_equal(device_emu.synchronize(f.d), QKV_OK);
  fixture_close(&f);
}

static void test_block_sizes(void **state) {
  (void)state;
  const int sizes[] = {1, 31, 33, 500, 1024};
  for (int s = 0; s < 5; s++) {
    enum { N = 3000 };
    static int in[N], out[N];
    for (int i = 0; i < N; i++)
      in[i] = i;
    assert_int_equal(fixture_run((uint64_t)s, "add", (N + sizes[s] - 1) / sizes[s], sizes[s], 0, 5, N, in, sizeof in,
                                 out, sizeof out),
                     QKV_OK);
    for (int i = 0; i < N; i++)
      assert_int_equal(out[i], i + 5);
  }
}

static void test_struct_copies_are_checked(void **state) {
  (void)state;
  static int in[300], out[64][300];
  for (int i = 0; i < 300; i++)
    in[i] = i;
  assert_int_equal(fixture_run(0, "large", 1, 64, 0, 0, 0, in, sizeof in, out, sizeof out), QKV_OK);
  for (int i = 0; i < 300; i++)
    assert_int_equal(out[63][i], i);
  expect(fixture_run(0, "large", 1, 64, 0, 1, 0, in, sizeof in, out, sizeof out), QKV_DEVICE_ERROR,
         "out of bounds: read of");
  /* One of the two places is no multiple of 16. Such a copy is the compiler's choice, no fault of the kernel. */
  for (int place = 0; place < 2; place++) {
    const float from[4] = {1, 2, 3, 4};
    float to[4] = {0};
    assert_int_equal(fixture_run(0, "moved", 1, 1, 0, place, 0, from, sizeof from, to, sizeof to), QKV_OK);
    assert_memory_equal(to, from, sizeof to);
  }
}

static void test_events(void **state) {
  (void)state;
  fixture f = fixture_open(0);
  device_event *a, *b;
  double seconds = -1;
  assert_int_equal(device_emu.event_create(f.d, &a), QKV_OK);
  assert_int_equal(device_emu.event_create(f.d, &b), QKV_OK);
  assert_int_equal(device_emu.event_record(f.d, a, NULL), QKV_OK);
  usleep(2000);
  assert_int_equal(device_emu.event_record(f.d, b, NULL), QKV_OK);
  assert_int_equal(device_emu.event_seconds(f.d, a, b, &seconds), QKV_OK);
  assert_true(seconds >= 0.002 && seconds < 60);
  device_emu.event_free(f.d, a);
  device_emu.event_free(f.d, b);
  fixture_close(&f);
}

static void *launch_many(void *argument) {
  int *failures = argument;
  for (int i = 0; i < 20; i++) {
    fixture f;
    qkv_options options = QKV_OPTIONS_INIT;
    options.emu_seed = (uint64_t)i;
    int in[100], out[100];
    device_kernel *k;
    fixture_params p = {NULL, NULL, i, 100};
    for (int n = 0; n < 100; n++)
      in[n] = n;
    void *a = NULL, *b = NULL;
    int bad = device_emu.open(0, &options, &f.d) ||
              device_emu.load(f.d, fixture_image.bytes, fixture_image.size, "t", &f.m) ||
              device_emu.alloc(f.d, sizeof in, &a) || device_emu.alloc(f.d, sizeof out, &b) ||
              device_emu.copy_to_device(f.d, a, in, sizeof in) || device_emu.kernel(f.d, f.m, "add", 64, 0, 1, &k);
    p.in = a;
    p.out = b;
    bad = bad || device_emu.launch(f.d, k, &(device_launch){4, 32, 0, &p, sizeof p, 1, false}, NULL) ||
          device_emu.copy_to_host(f.d, out, b, sizeof out);
    for (int n = 0; n < 100 && !bad; n++)
      bad = out[n] != n + i;
    *failures += bad != 0;
    device_emu.free(f.d, a);
    device_emu.free(f.d, b);
    fixture_close(&f);
  }
  return NULL;
}

static void test_threads_share_the_machine(void **state) {
  (void)state;
  enum { THREADS = 4 };
  pthread_t threads[THREADS];
  int failures[THREADS] = {0};
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, launch_many, &failures[i]), 0);
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(failures[i], 0);
  }
}

static void test_compiler(void **state) {
  (void)state;
  char first[256], second[256];
  assert_int_equal(compiler_emulator.identity(first, sizeof first), QKV_OK);
  assert_int_equal(compiler_emulator.identity(second, sizeof second), QKV_OK);
  assert_string_equal(first, second);
  device_image image;
  expect(compiler_emulator.compile("__global__ void k() {\n  no_such_name();\n}\n", "sm_90a", &image),
         QKV_COMPILE_ERROR, "no_such_name");
  assert_null(image.bytes);
  assert_non_null(strstr(image.log, "kernel.cu:2:"));
  image_free(&image);
  expect(compiler_emulator.compile("__device__ void k() { __shared__ int x[3]; }\n", "sm_80", &image),
         QKV_COMPILE_ERROR, "shared_arena");
  image_free(&image);
  /* The same source gives the same bytes: nothing of the folder's name gets in. */
  assert_int_equal(compiler_emulator.compile(source, "sm_80", &image), QKV_OK);
  assert_int_equal(image.size, fixture_image.size);
  assert_memory_equal(image.bytes, fixture_image.bytes, image.size);
  image_free(&image);
}

static void test_compiler_refuses(void **state) {
  (void)state;
  device_image image;
  char identity[256];
  setenv("QKV_EMU_CXX", "/no/such/compiler", 1);
  expect(compiler_emulator.identity(identity, sizeof identity), QKV_NO_COMPILER, "install the package g++");
  expect(compiler_emulator.compile(source, "sm_80", &image), QKV_NO_COMPILER, "/no/such/compiler could not be run");
  image_free(&image);
  setenv("QKV_EMU_CXX", "no-such-compiler", 1);
  expect(compiler_emulator.identity(identity, sizeof identity), QKV_NO_COMPILER, "was not found in PATH");
  setenv("QKV_EMU_CXX", "", 1);
  assert_int_equal(compiler_emulator.identity(identity, sizeof identity), QKV_OK);
  unsetenv("QKV_EMU_CXX");
  char *kept = getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
  setenv("TMPDIR", "/no/such/folder", 1);
  expect(compiler_emulator.compile(source, "sm_80", &image), QKV_IO, "TMPDIR");
  image_free(&image);
  if (kept)
    setenv("TMPDIR", kept, 1);
  else
    unsetenv("TMPDIR");
  free(kept);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_open_refuses),     cmocka_unit_test(test_memory),
      cmocka_unit_test(test_modules_refuse),   cmocka_unit_test(test_launch_refuses),
      cmocka_unit_test(test_block_sizes),      cmocka_unit_test(test_struct_copies_are_checked),
      cmocka_unit_test(test_events),           cmocka_unit_test(test_threads_share_the_machine),
      cmocka_unit_test(test_virtual_memory),   cmocka_unit_test(test_compiler),
      cmocka_unit_test(test_compiler_refuses),
  };
  int failures = cmocka_run_group_tests(tests, setup, NULL);
  image_free(&fixture_image);
  return failures;
}
