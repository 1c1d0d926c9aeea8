/* test_device_cuda.c: the CUDA device's own logic against a stub of the driver: contexts are left as they were found,
 * errors carry the driver's names, failures leak nothing, and a missing or old driver is told apart from a missing GPU.
 *
 * Whole engines run on the stub as well: which device is chosen, and that a call launches and does nothing else.
 *
 * The stub must be found as libcuda.so.1, so the test builds it and starts itself again with LD_LIBRARY_PATH. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_stub.h"
#include "device.h"
#include "qkv_tune.h"

static int *calls, *depth, *pushes, *launches, *early, *memsets, *maps, *shared_limit, *modules, *capture_mode,
    *wide_clusters;
static int *fail_after, *ranges, *physical, *streams, *graphs, *replayed;
static int (*push_context)(void *context);
static int (*pop_context)(void **context);
static int (*retain)(void **context, int device);

static int find_stub(void **state) {
  (void)state;
  void *stub = dlopen("libcuda.so.1", RTLD_NOW);
  if (!stub)
    return -1;
  calls = dlsym(stub, "stub_calls");
  depth = dlsym(stub, "stub_depth");
  capture_mode = dlsym(stub, "stub_capture_mode");
  pushes = dlsym(stub, "stub_pushes");
  launches = dlsym(stub, "stub_launches");
  early = dlsym(stub, "stub_early");
  memsets = dlsym(stub, "stub_memsets");
  maps = dlsym(stub, "stub_maps");
  shared_limit = dlsym(stub, "stub_shared_limit");
  wide_clusters = dlsym(stub, "stub_wide_clusters");
  modules = dlsym(stub, "stub_modules");
  fail_after = dlsym(stub, "stub_fail_after");
  ranges = dlsym(stub, "stub_ranges");
  physical = dlsym(stub, "stub_physical");
  streams = dlsym(stub, "stub_streams");
  graphs = dlsym(stub, "stub_graphs");
  replayed = dlsym(stub, "stub_replayed");
  *(void **)&push_context = dlsym(stub, "cuCtxPushCurrent_v2");
  *(void **)&pop_context = dlsym(stub, "cuCtxPopCurrent_v2");
  *(void **)&retain = dlsym(stub, "cuDevicePrimaryCtxRetain");
  return calls && depth && capture_mode && pushes && launches && early && memsets && maps && shared_limit &&
                 wide_clusters && modules && fail_after && ranges && physical && streams && graphs && replayed &&
                 push_context && pop_context && retain
             ? 0
             : -1;
}

static void need(qkv_status status) {
  if (status != QKV_OK)
    fail_msg("status %d: %s", (int)status, error_message());
}

static const device_tensor_map some_map = {.base = (void *)4096,
                                           .element_bytes = 2,
                                           .rank = 2,
                                           .extent = {64, 100},
                                           .stride_bytes = {128},
                                           .box = {64, 32},
                                           .swizzle = 128};

/* Three launches, as work to be recorded. */
typedef struct work {
  device *d;
  device_kernel *kernel;
  device_launch launch;
} work;

static qkv_status launch_three(void *user, qkv_stream stream) {
  const work *w = user;
  qkv_status status = QKV_OK;
  for (int n = 0; n < 3 && status == QKV_OK; n++)
    status = device_cuda.launch(w->d, w->kernel, &w->launch, stream);
  return status;
}

/* Every call once, in the order of a program. */
static void use_everything(device *d) {
  const device_ops *ops = &device_cuda;
  qkv_device_info info = {.size = sizeof info};
  void *memory;
  char out[4] = "";
  device_module *module;
  device_kernel *kernel;
  device_event *from, *to;
  double seconds;
  need(ops->info(d, &info));
  assert_string_equal(info.arch, "sm_90");
  assert_int_equal(info.sm_count, 132);
  assert_int_equal(info.driver_version, 13000);
  assert_int_equal(info.shared_per_block, 232448);
  assert_true(info.clock_hz == 1980e6 && info.memory_bandwidth == 2.0 * 3201e6 * 6144 / 8);
  need(ops->alloc(d, 4, &memory));
  need(ops->copy_to_device(d, memory, "abc", 4));
  need(ops->copy_to_host(d, out, memory, 4));
  assert_string_equal(out, "abc");
  need(ops->load(d, "image", 5, "name", &module));
  need(ops->kernel(d, module, "entry", 32, 12345, 1, &kernel));
  assert_int_equal(*shared_limit, 12345);
  const int before_wide = *wide_clusters;
  need(ops->kernel(d, module, "entry", 32, 12345, 8, &kernel));
  assert_int_equal(*wide_clusters, before_wide);
  need(ops->kernel(d, module, "entry", 32, 12345, 16, &kernel));
  assert_int_equal(*wide_clusters, before_wide + 1);
  need(ops->set_zero(d, (char *)memory + 1, 2, NULL));
  need(ops->copy_to_host(d, out, memory, 4));
  assert_memory_equal(out, "a\0\0", 4);
  need(ops->copy_on_device(d, (char *)memory + 2, memory, 2));
  need(ops->copy_to_host(d, out, memory, 4));
  assert_memory_equal(out, "a\0a", 4);
  _Alignas(64) unsigned char map[DEVICE_TENSOR_MAP_BYTES + 1] = {0};
  need(ops->tensor_map(d, &some_map, map));
  assert_true(map[0] == 0x5a && map[DEVICE_TENSOR_MAP_BYTES - 1] == 0x5a && map[DEVICE_TENSOR_MAP_BYTES] == 0);
  const device_launch launch = {.grid = 1, .block = 32, .shared_bytes = 12345, .params = out, .params_size = 4};
  device_launch clusters = {
      .grid = 4, .block = 32, .shared_bytes = 12345, .params = out, .params_size = 4, .cluster = 2};
  need(ops->launch(d, kernel, &clusters, NULL));
  const int before_early = *early;
  clusters.early = true;
  need(ops->launch(d, kernel, &clusters, NULL));
  clusters.cluster = 1;
  need(ops->launch(d, kernel, &clusters, NULL));
  assert_int_equal(*early, before_early + 2);
  clusters.cluster = 2, clusters.grid = 3;
  assert_int_equal(ops->launch(d, kernel, &clusters, NULL), QKV_INVALID_ARGUMENT);
  assert_non_null(strstr(error_message(), "3 blocks in clusters of 2"));
  int before = *launches;
  need(ops->event_create(d, &from));
  need(ops->event_create(d, &to));
  need(ops->event_record(d, from, NULL));
  need(ops->launch(d, kernel, &launch, NULL));
  need(ops->event_record(d, to, NULL));
  need(ops->event_seconds(d, from, to, &seconds));
  assert_true(seconds > 0.0019 && seconds < 0.0021);
  assert_int_equal(*launches, before + 1);
  work recorded = {d, kernel, launch};
  device_graph *graph;
  const int before_replays = *replayed;
  need(ops->graph_record(d, launch_three, &recorded, &graph));
  assert_int_equal(*graphs, 1); /* what it was made from is gone */
  need(ops->graph_replay(d, graph, NULL));
  need(ops->graph_replay(d, graph, NULL));
  assert_int_equal(*replayed, before_replays + 6);
  ops->graph_free(d, graph);
  ops->graph_free(d, NULL);
  assert_true(*graphs == 0 && *streams == 0);
  need(ops->synchronize(d));
  void *range;
  size_t granule;
  need(ops->granularity(d, &granule));
  assert_int_equal(granule, 65536);
  need(ops->reserve(d, 8 * granule, &range));
  need(ops->map(d, (char *)range + granule, granule, 3)); /* can be used at once, for the handles are let go */
  assert_int_equal(*physical, 3);
  need(ops->copy_to_device(d, (char *)range + 4 * granule - 4, "xyz", 4));
  need(ops->unmap(d, (char *)range + granule, granule, 3));
  assert_int_equal(*physical, 0);
  need(ops->unreserve(d, range, 8 * granule));
  assert_int_equal(*ranges, 0);
  ops->event_free(d, from);
  ops->event_free(d, to);
  ops->event_free(d, NULL);
  ops->unload(d, module);
  ops->unload(d, NULL);
  assert_int_equal(*modules, 0);
  need(ops->free(d, memory));
  need(ops->free(d, NULL));
  assert_int_equal(*capture_mode, 0);
}

static void test_contexts(void **state) {
  (void)state;
  device *d;
  void *own, *other, *popped;
  need(device_cuda.open(1, NULL, &d));
  use_everything(d); /* no context is current: the primary one is pushed and popped */
  assert_int_equal(*depth, 0);
  retain(&other, 0);
  push_context(other); /* a context of another GPU: pushed over, and back again */
  use_everything(d);
  assert_int_equal(*depth, 1);
  retain(&own, 1);
  push_context(own); /* a context of this GPU: used as it is */
  int before = *pushes;
  use_everything(d);
  assert_int_equal(*pushes, before);
  assert_int_equal(*depth, 2);
  pop_context(&popped);
  assert_ptr_equal(popped, own);
  pop_context(&popped);
  assert_ptr_equal(popped, other);
  device_cuda.close(d);
}

/* Each driver function fails once: a typed error with the driver's name for it, no context left behind. */
static void test_failures(void **state) {
  (void)state;
  static const char *const symbols[] = {"cuCtxPushCurrent_v2",
                                        "cuMemAlloc_v2",
                                        "cuMemcpyHtoD_v2",
                                        "cuMemcpyDtoH_v2",
                                        "cuMemcpyDtoD_v2",
                                        "cuLibraryLoadData",
                                        "cuLibraryGetKernel",
                                        "cuKernelSetAttribute",
                                        "cuKernelGetFunction",
                                        "cuLaunchKernel",
                                        "cuEventCreate",
                                        "cuEventRecord",
                                        "cuEventSynchronize",
                                        "cuEventElapsedTime",
                                        "cuCtxSynchronize",
                                        "cuMemFree_v2",
                                        "cuDeviceGetAttribute",
                                        "cuDeviceGetName",
                                        "cuMemsetD8Async",
                                        "cuTensorMapEncodeTiled",
                                        "cuStreamCreate",
                                        "cuStreamBeginCapture_v2",
                                        "cuStreamEndCapture",
                                        "cuGraphInstantiateWithFlags",
                                        "cuGraphLaunch"};
  const device_ops *ops = &device_cuda;
  for (size_t n = 0; n < sizeof symbols / sizeof *symbols; n++) {
    device *d;
    void *memory = NULL, *lost = NULL;
    device_module *module = NULL, *unloaded = NULL;
    device_kernel *kernel = NULL, *absent = NULL;
    device_event *event = NULL, *none = NULL;
    device_graph *graph = NULL, *unrecorded = NULL;
    qkv_device_info info = {.size = sizeof info};
    char out[4] = "";
    double seconds;
    char setting[64];
    need(ops->open(0, NULL, &d));
    need(ops->alloc(d, 4, &memory));
    need(ops->load(d, "image", 5, "name", &module));
    need(ops->kernel(d, module, "entry", 32, 1, 1, &kernel));
    need(ops->event_create(d, &event));
    const device_launch launch = {.grid = 1, .block = 32, .params = out, .params_size = 4};
    work recorded = {d, kernel, launch};
    need(ops->graph_record(d, launch_three, &recorded, &graph));
    _Alignas(64) unsigned char map[DEVICE_TENSOR_MAP_BYTES];
    snprintf(setting, sizeof setting, "%s:%d", symbols[n], n % 2 ? 2 : 700);
    setenv("QKV_STUB_CUDA", setting, 1);
    const qkv_status results[] = {ops->info(d, &info),
                                  ops->alloc(d, 4, &lost),
                                  ops->copy_to_device(d, memory, out, 4),
                                  ops->copy_to_host(d, out, memory, 4),
                                  ops->copy_on_device(d, (char *)memory + 2, memory, 2),
                                  ops->load(d, "image", 5, "name", &unloaded),
                                  ops->kernel(d, module, "other", 32, 9, 1, &absent),
                                  ops->set_zero(d, memory, 4, NULL),
                                  ops->tensor_map(d, &some_map, map),
                                  ops->launch(d, kernel, &launch, NULL),
                                  ops->event_create(d, &none),
                                  ops->event_record(d, event, NULL),
                                  ops->event_seconds(d, event, event, &seconds),
                                  ops->graph_record(d, launch_three, &recorded, &unrecorded),
                                  ops->graph_replay(d, graph, NULL),
                                  ops->synchronize(d)};
    int failed = 0;
    for (size_t r = 0; r < sizeof results / sizeof *results; r++)
      failed += results[r] == (n % 2 ? QKV_OUT_OF_MEMORY : QKV_DEVICE_ERROR);
    qkv_status freed = ops->free(d, memory);
    failed += freed != QKV_OK;
    if (!failed || !strstr(error_message(), n % 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_ILLEGAL_ADDRESS"))
      fail_msg("%s: %d calls failed, message: %s", setting, failed, error_message());
    assert_int_equal(*depth, 0);
    assert_int_equal(*capture_mode, 0);
    unsetenv("QKV_STUB_CUDA");
    if (freed != QKV_OK)
      need(ops->free(d, memory));
    if (lost)
      need(ops->free(d, lost));
    ops->event_free(d, event);
    ops->event_free(d, none);
    ops->graph_free(d, graph);
    ops->graph_free(d, unrecorded);
    assert_true(*graphs == 0 && *streams == 0);
    if (unloaded)
      ops->unload(d, unloaded);
    ops->unload(d, module);
    ops->close(d);
    assert_int_equal(*modules, 0);
  }
}

/* Each step of mapping fails at each of its calls: the pool says which, keeps nothing, and goes on afterwards. */
static void test_pool_failures(void **state) {
  (void)state;
  static const char *const symbols[] = {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate",
                                        "cuMemMap", "cuMemSetAccess"};
  enum { LAYERS = 3, BLOCKS = 64 };
  qkv_options options = QKV_OPTIONS_INIT;
  qkv_engine *e;
  qkv_spec *s;
  options.cache_dir = "";
  need(qkv_open(&options, &e));
  need(qkv_spec_check("qkvc: 1\nname: tiny\nattention: {heads: 2, dim: 64, dtype: f16}\n"
                      "layout: {q: ragged, kv: {paged: {page: 128}}}\n",
                      0, &s)); /* two blocks a granule of K or V */
  qkv_pool_options o = QKV_POOL_OPTIONS_INIT;
  o.layers = LAYERS;
  o.blocks = BLOCKS;
  for (size_t n = 0; n < sizeof symbols / sizeof *symbols; n++) {
    int failures = 0;
    for (int after = 0, failed = 1; failed; after++) {
      qkv_pool *p = NULL;
      int32_t blocks[5];
      char setting[64];
      snprintf(setting, sizeof setting, "%s:2", symbols[n]);
      setenv("QKV_STUB_CUDA", setting, 1);
      *fail_after = after;
      qkv_status status = qkv_pool_open(e, s, &o, &p);
      if (status == QKV_OK)
        status = qkv_pool_alloc(p, 5, blocks);
      unsetenv("QKV_STUB_CUDA");
      failed = status != QKV_OK;
      failures += failed;
      if (failed && (status != QKV_OUT_OF_MEMORY || !strstr(error_message(), "CUDA_ERROR_OUT_OF_MEMORY")))
        fail_msg("%s after %d: status %d, %s", setting, after, (int)status, error_message());
      if (p && failed) {
        assert_int_equal(*physical, 0);
        need(qkv_pool_alloc(p, 5, blocks)); /* the device has recovered */
      }
      if (p)
        assert_int_equal(*physical, 2 * LAYERS * 3);
      qkv_pool_free(p);
      if (*physical || *ranges || *depth || *capture_mode)
        fail_msg("%s after %d: %d pieces of memory, %d ranges, %d contexts are left", setting, after, *physical,
                 *ranges, *depth);
    }
    assert_true(failures >= (n == 0 ? 1 : 2));
  }
  qkv_pool *p;
  int32_t block;
  int64_t returned;
  need(qkv_pool_open(e, s, &o, &p));
  need(qkv_pool_alloc(p, 1, &block));
  need(qkv_pool_release(p, 1, &block));
  setenv("QKV_STUB_CUDA", "cuMemUnmap:700", 1);
  assert_int_equal(qkv_pool_trim(p, &returned), QKV_DEVICE_ERROR);
  assert_non_null(strstr(error_message(), "memory cannot be returned: cuMemUnmap: CUDA_ERROR_ILLEGAL_ADDRESS"));
  unsetenv("QKV_STUB_CUDA");
  qkv_pool_free(p);
  qkv_spec_free(s);
  qkv_close(e);
}

/* A refused image names the driver's version: a compiler newer than the driver is the usual reason. */
static void test_refused_image(void **state) {
  (void)state;
  device *d;
  device_module *module;
  need(device_cuda.open(0, NULL, &d));
  setenv("QKV_STUB_CUDA", "cuLibraryLoadData:700", 1);
  assert_int_equal(device_cuda.load(d, "image", 5, "some_kernel", &module), QKV_DEVICE_ERROR);
  unsetenv("QKV_STUB_CUDA");
  assert_non_null(strstr(error_message(), "some_kernel"));
  assert_non_null(strstr(error_message(), "CUDA 13.0"));
  device_cuda.close(d);
}

static void test_absent_entry(void **state) {
  (void)state;
  device *d;
  device_module *module;
  device_kernel *kernel;
  need(device_cuda.open(0, NULL, &d));
  need(device_cuda.load(d, "image", 5, "name", &module));
  assert_int_equal(device_cuda.kernel(d, module, "absent", 32, 0, 1, &kernel), QKV_DEVICE_ERROR);
  assert_null(kernel);
  assert_non_null(strstr(error_message(), "'absent'"));
  device_cuda.unload(d, module);
  device_cuda.close(d);
}

/* A cluster that finds no place is refused when the kernel is loaded, by its size and its blocks' needs. */
static void test_clusters_that_fit_nowhere(void **state) {
  (void)state;
  static const struct {
    int gpc, shared_bytes, cluster;
    bool fits;
  } rows[] = {{16, 1000, 16, true},   {16, 200000, 16, false}, {16, 200000, 8, true}, {7, 1000, 8, false},
              {7, 1000, 4, true},     {7, 200000, 4, false},   {1, 200000, 1, true},  {1, 1000, 2, false},
              {16, 116224, 16, true}, {16, 1000, 17, false}};
  device *d;
  device_module *module;
  device_kernel *kernel;
  need(device_cuda.open(1, NULL, &d));
  need(device_cuda.load(d, "image", 5, "name", &module));
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char number[16], size[64], shared[64];
    snprintf(number, sizeof number, "%d", rows[n].gpc);
    snprintf(size, sizeof size, "clusters of %d blocks, each of 384 threads", rows[n].cluster);
    snprintf(shared, sizeof shared, "%d bytes of dynamic shared memory", rows[n].shared_bytes);
    setenv("QKV_STUB_GPC", number, 1);
    const qkv_status status =
        device_cuda.kernel(d, module, "entry", 384, rows[n].shared_bytes, rows[n].cluster, &kernel);
    if (status != (rows[n].fits ? QKV_OK : QKV_BAD_SCHEDULE) || (kernel != NULL) != rows[n].fits)
      fail_msg("GPCs for %d blocks, clusters of %d with %d bytes: status %d, %s", rows[n].gpc, rows[n].cluster,
               rows[n].shared_bytes, (int)status, error_message());
    if (!rows[n].fits && (!strstr(error_message(), size) || !strstr(error_message(), shared) ||
                          !strstr(error_message(), "cuda:1") || !strstr(error_message(), "'entry'")))
      fail_msg("'%s' and '%s' are not both in: %s", size, shared, error_message());
    assert_int_equal(*depth, 0);
    assert_int_equal(*capture_mode, 0);
  }
  /* What the driver cannot say is no reason to refuse. */
  setenv("QKV_STUB_CUDA", "cuOccupancyMaxActiveClusters:1", 1);
  need(device_cuda.kernel(d, module, "entry", 384, 1000, 2, &kernel));
  unsetenv("QKV_STUB_CUDA");
  unsetenv("QKV_STUB_GPC");
  device_cuda.unload(d, module);
  device_cuda.close(d);
}

static void test_ordinals(void **state) {
  (void)state;
  device *d;
  static const int ordinals[] = {-1, 2, 1000};
  for (int n = 0; n < 3; n++) {
    assert_int_equal(device_cuda.open(ordinals[n], NULL, &d), QKV_NO_DEVICE);
    assert_null(d);
    assert_non_null(strstr(error_message(), "2 GPUs"));
  }
}

/* The driver is opened once per process, so each of these runs in a child. Must come first. */
static void test_drivers(void **state) {
  (void)state;
  static const struct {
    const char *variable, *value;
    qkv_status want;
    const char *word;
  } rows[] = {{"QKV_STUB_OLD", "1", QKV_NO_DEVICE, "CUDA 11.8"},
              {"QKV_STUB_CUDA", "cuInit:100", QKV_NO_DEVICE, "cuInit"},
              {"QKV_STUB_GPUS", "0", QKV_NO_DEVICE, "0 GPUs"},
              {"QKV_STUB_CUDA", "cuDevicePrimaryCtxRetain:2", QKV_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    pid_t child = fork();
    if (child == 0) {
      device *d;
      setenv(rows[n].variable, rows[n].value, 1);
      qkv_status status = device_cuda.open(0, NULL, &d);
      int good = status == rows[n].want && !d && strstr(error_message(), rows[n].word);
      if (!good)
        fprintf(stderr, "%s=%s: status %d, message: %s\n", rows[n].variable, rows[n].value, (int)status,
                error_message());
      _exit(!good);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

/* ---- Engines ---- */

static const char spec_text[] = "qkvc: 1\nname: tiny\nattention: {heads: 2, dim: 16, dtype: f16, mask: causal}\n";

/* All events of the stub are 2 ms apart: a sample of 3 calls is a third of that each. */
static void check_measuring(const qkv_op *op, const qkv_attention_args *args) {
  double seconds[2][4];
  qkv_contestant who[2] = {{sizeof *who, op, args, 1, seconds[0], 0, 0}, {sizeof *who, op, args, 1, seconds[1], 0, 0}};
  qkv_measure_options o = QKV_MEASURE_OPTIONS_INIT;
  o.samples = 4;
  o.sample_seconds = 5e-3;
  o.warm_up_seconds = 1e-9;
  const int memsets_before = *memsets, replayed_before = *replayed;
  need(qkv_measure(who, 2, NULL, &o));
  for (int n = 0; n < 2; n++) {
    assert_true(who[n].calls == 3 && who[n].samples == 4);
    assert_true(fabs(seconds[n][3] - 0.002 / 3) < 1e-9);
  }
  assert_int_equal(*replayed - replayed_before, 2 * 3 * (3 + 4)); /* warm-up ends with the third, equal sample */
  const int recorded = *memsets - memsets_before; /* of the workspace, by calls outside and inside of graphs */
  assert_int_equal(recorded, 2 * (3 + 1)); /* of a graph's calls the first plans */
  o.cold_l2 = 1; /* all of q, k, v and o are smaller than the cache: each call behind one that plans and a write, none in a graph */
  need(qkv_measure(who, 1, NULL, &o));
  assert_true(who[0].calls == 1 && who[0].samples == 4);
  assert_int_equal(*memsets - memsets_before - recorded, 2 * (3 + 4));
  setenv("QKV_STUB_CUDA", "cuGraphInstantiateWithFlags:2", 1);
  o.cold_l2 = 0;
  assert_int_equal(qkv_measure(who, 2, NULL, &o), QKV_OUT_OF_MEMORY);
  unsetenv("QKV_STUB_CUDA");
  assert_non_null(strstr(error_message(), "contestant 0: cuGraphInstantiateWithFlags"));
  assert_true(*graphs == 0 && *streams == 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define COUNT_ALLOCATIONS
static _Thread_local int allocations;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *malloc(size_t size) {
  return allocations++, __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
  return allocations++, __libc_calloc(count, size);
}
void *realloc(void *memory, size_t size) {
  return allocations++, __libc_realloc(memory, size);
}
#endif

/* A call after prepare: the launches of the kernel, a tensor map for each of q k v o, a region set to zero, each with
 * two questions about the context; nothing else, and no allocation. */
static void test_launch_only(void **state) {
  (void)state;
  qkv_options o = QKV_OPTIONS_INIT;
  qkv_engine *e;
  qkv_spec *s;
  qkv_op *op;
  qkv_device_info info = {.size = sizeof info};
  static _Alignas(16) char memory[4][2 * 8 * 2 * 16 * 2];
  o.cache_dir = "";
  need(qkv_open(&o, &e)); /* auto: there is a GPU */
  need(qkv_device_get_info(e, &info));
  assert_string_equal(info.kind, "cuda");
  assert_string_equal(info.arch, "sm_90a");
  if (!info.compiler[0]) {
    qkv_close(e);
    skip();
  }
  need(qkv_spec_load(e, spec_text, &s));
  need(qkv_prepare(e, s, NULL, &op));
  assert_int_equal(*modules, 2); /* the kernel for aligned tensors and the one for all others */
  qkv_attention_args a = QKV_ATTENTION_ARGS_INIT;
  qkv_tensor *tensors[] = {&a.q, &a.k, &a.v, &a.o};
  for (int n = 0; n < 4; n++)
    *tensors[n] = qkv_tensor_dense(memory[n], QKV_F16, 4, (int64_t[]){2, 8, 2, 16});
  static _Alignas(256) char workspace[256];
  assert_true(qkv_workspace_size(op) <= sizeof workspace);
  a.workspace = workspace;
  a.workspace_bytes = sizeof workspace;
  void *own, *popped;
  retain(&own, 0);
  push_context(own);
  int calls_before = *calls, launches_before = *launches, maps_before = *maps, memsets_before = *memsets;
#ifdef COUNT_ALLOCATIONS
  int allocations_before = allocations;
#endif
  enum { CALLS = 100 };
  for (int n = 0; n < CALLS; n++)
    need(qkv_attention(op, &a, NULL));
#ifdef COUNT_ALLOCATIONS
  assert_int_equal(allocations, allocations_before);
#endif
  assert_int_equal(*launches, launches_before + CALLS);
  assert_int_equal(*maps, maps_before + 4 * CALLS);
  assert_int_equal(*memsets, memsets_before + CALLS);
  assert_int_equal(*calls, calls_before + 3 * (1 + 4 + 1) * CALLS);
  pop_context(&popped);
  setenv("QKV_STUB_CUDA", "cuLaunchKernel:700", 1);
  assert_int_equal(qkv_attention(op, &a, NULL), QKV_DEVICE_ERROR);
  assert_non_null(strstr(qkv_last_error(e), "CUDA_ERROR_ILLEGAL_ADDRESS"));
  unsetenv("QKV_STUB_CUDA");
  double median;
  need(qkv_time(op, &a, NULL, 4, &median, NULL, NULL));
  assert_true(median > 0.0019 && median < 0.0021);
  check_measuring(op, &a);
  qkv_op_free(op);
  qkv_spec_free(s);
  qkv_close(e);
  assert_int_equal(*modules, 0);
}

static void test_doctor(void **state) {
  (void)state;
  qkv_options o = QKV_OPTIONS_INIT;
  o.cache_dir = "";
  char *text;
  int healthy;
  need(qkv_doctor(&o, 0, &healthy, &text));
  static const char *const words[] = {"for CUDA 13.0", "cuda:0", "cuda:1", "Stub 1, compute capability 9.0, 132 SMs"};
  for (size_t n = 0; n < sizeof words / sizeof *words; n++)
    if (!strstr(text, words[n]))
      fail_msg("'%s' is missing in:\n%s", words[n], text);
  qkv_string_free(text);
  setenv("QKV_STUB_GPUS", "0", 1);
  need(qkv_doctor(&o, 1, &healthy, &text));
  assert_int_equal(healthy, 0);
  assert_non_null(strstr(text, "CUDA_VISIBLE_DEVICES"));
  qkv_string_free(text);
  qkv_engine *e; /* auto without a GPU: emulated */
  need(qkv_open(&o, &e));
  qkv_device_info info = {.size = sizeof info};
  need(qkv_device_get_info(e, &info));
  assert_string_equal(info.kind, "emu");
  qkv_close(e);
  unsetenv("QKV_STUB_GPUS");
}

int main(int argc, char **argv) {
  (void)argc;
  if (!getenv("QKV_TEST_STUBBED"))
    return cuda_stub_start(argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_drivers),       cmocka_unit_test(test_contexts),      cmocka_unit_test(test_failures),
      cmocka_unit_test(test_refused_image), cmocka_unit_test(test_pool_failures), cmocka_unit_test(test_absent_entry),
                                     cmocka_unit_test(test_clusters_that_fit_nowhere),
      cmocka_unit_test(test_ordinals),      cmocka_unit_test(test_launch_only),   cmocka_unit_test(test_doctor)};
  return cmocka_run_group_tests(tests, find_stub, NULL);
}
