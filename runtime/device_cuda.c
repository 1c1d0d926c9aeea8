/* device_cuda.c: the device table over the CUDA driver.
 *
 * Modules are CUDA libraries, which belong to no context: a kernel handle works in whatever context of the device is
 * current. A call runs in the caller's context when that is one of this device, else in the device's primary context,
 * which is pushed for the call and popped after it; so a host that uses several devices or own contexts is never
 * disturbed. Kernels are loaded and their shared-memory limit is raised before they are published: a launch changes
 * nothing. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda.h"
#include "tensor_map.h"

struct device_module {
  CUlibrary library;
  device_kernel *kernels; /* newest first */
};

enum { CONTEXTS = 4 };

/* loaded: contexts in which the kernel needs no loading any more: that of prepare, and those of first launches. */
struct device_kernel {
  CUkernel handle;
  _Atomic(CUcontext) loaded[CONTEXTS];
  device_kernel *next;
  char name[];
};

void cuda_leave(const cuda_device *d, visit *v) {
  CUcontext popped;
  if (v->pushed)
    d->api->context_pop(&popped);
  if (v->capture_mode >= 0)
    d->api->capture_mode(&v->capture_mode);
}

qkv_status cuda_enter(const cuda_device *d, purpose p, visit *v) {
  CUcontext current = NULL;
  CUdevice handle = -1;
  *v = (visit){.capture_mode = -1};
  if (p == PREPARING) {
    int mode = CUDA_CAPTURE_RELAXED;
    if (d->api->capture_mode(&mode) == CUDA_SUCCESS)
      v->capture_mode = mode;
  }
  if (d->api->context_current(&current) == CUDA_SUCCESS && current && d->api->context_device(&handle) == CUDA_SUCCESS &&
      handle == d->handle) {
    v->context = current;
    return QKV_OK;
  }
  qkv_status status = cuda_check(d->api, d->api->context_push(d->primary), "cuCtxPushCurrent");
  v->pushed = status == QKV_OK;
  v->context = d->primary;
  if (status != QKV_OK)
    cuda_leave(d, v);
  return status;
}

static void cuda_close(device *base) {
  cuda_device *d = as_cuda(base);
  if (d->primary)
    d->api->primary_release(d->handle); /* fails harmlessly when the driver is already gone at exit */
  free(d);
}

static qkv_status cuda_open(int ordinal, const qkv_options *options, device **out) {
  (void)options;
  const cuda_api *api;
  *out = NULL;
  qkv_status status = cuda_get(&api);
  if (status != QKV_OK)
    return status;
  int count = 0;
  status = cuda_check(api, api->device_count(&count), "cuDeviceGetCount");
  if (status != QKV_OK)
    return status;
  if (ordinal < 0 || ordinal >= count)
    return error_set(QKV_NO_DEVICE, "no device cuda:%d: the driver shows %d GPU%s (CUDA_VISIBLE_DEVICES?)", ordinal,
                     count, count == 1 ? "" : "s");
  cuda_device *d = calloc(1, sizeof *d);
  if (!d)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  d->base.ops = &device_cuda;
  d->api = api;
  d->ordinal = ordinal;
  status = cuda_check(api, api->device_get(&d->handle, ordinal), "cuDeviceGet");
  if (status == QKV_OK)
    status = cuda_check(api, api->primary_retain(&d->primary, d->handle), "cuDevicePrimaryCtxRetain");
  if (status != QKV_OK) {
    d->primary = NULL;
    cuda_close((device *)(void *)d);
    return status;
  }
  *out = (device *)(void *)d;
  return QKV_OK;
}

static qkv_status cuda_info(device *base, qkv_device_info *out) {
  const cuda_device *d = as_cuda(base);
  const struct {
    int attribute;
    int *value;
  } wanted[] = {{CUDA_DEVICE_SM_COUNT, &out->sm_count},
                {CUDA_DEVICE_COMPUTE_MAJOR, &out->compute_major},
                {CUDA_DEVICE_COMPUTE_MINOR, &out->compute_minor},
                {CUDA_DEVICE_SHARED_PER_BLOCK, &out->shared_per_block}};
  for (size_t n = 0; n < sizeof wanted / sizeof *wanted; n++) {
    qkv_status status = cuda_check(d->api, d->api->device_attribute(wanted[n].value, wanted[n].attribute, d->handle),
                                   "cuDeviceGetAttribute");
    if (status != QKV_OK)
      return status;
  }
  int l2 = 0, clock = 0, memory_clock = 0, bus = 0; /* 0: the driver does not know */
  size_t memory = 0;
  d->api->device_attribute(&l2, CUDA_DEVICE_L2_BYTES, d->handle);
  d->api->device_attribute(&clock, CUDA_DEVICE_CLOCK_KHZ, d->handle);
  d->api->device_attribute(&memory_clock, CUDA_DEVICE_MEMORY_CLOCK_KHZ, d->handle);
  d->api->device_attribute(&bus, CUDA_DEVICE_MEMORY_BUS_BITS, d->handle);
  d->api->device_memory(&memory, d->handle);
  d->api->driver_version(&out->driver_version);
  out->l2_bytes = l2;
  out->memory_bytes = (int64_t)memory;
  out->clock_hz = 1e3 * clock;
  out->memory_bandwidth = 2.0 * 1e3 * memory_clock * bus / 8; /* two transfers a clock */
  out->ordinal = d->ordinal;
  snprintf(out->kind, sizeof out->kind, "cuda");
  snprintf(out->arch, sizeof out->arch, "sm_%d%d", out->compute_major, out->compute_minor);
  return cuda_check(d->api, d->api->device_name(out->name, (int)sizeof out->name, d->handle), "cuDeviceGetName");
}

static qkv_status cuda_alloc(device *base, size_t bytes, void **out) {
  const cuda_device *d = as_cuda(base);
  CUdeviceptr memory = 0;
  qkv_status status;
  IN_CONTEXT(d, PREPARING, status, "cuMemAlloc", memory_alloc(&memory, bytes ? bytes : 1));
  *out = status == QKV_OK ? (void *)(uintptr_t)memory : NULL;
  return status == QKV_OK ? status : error_context(status, "%zu bytes of device memory: ", bytes);
}

static qkv_status cuda_free(device *base, void *memory) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  if (!memory)
    return QKV_OK;
  IN_CONTEXT(d, PREPARING, status, "cuMemFree", memory_free((CUdeviceptr)(uintptr_t)memory));
  return status;
}

static qkv_status cuda_copy_to_device(device *base, void *to, const void *from, size_t bytes) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuMemcpyHtoD", copy_to_device((CUdeviceptr)(uintptr_t)to, from, bytes));
  return status;
}

static qkv_status cuda_copy_to_host(device *base, void *to, const void *from, size_t bytes) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuMemcpyDtoH", copy_to_host(to, (CUdeviceptr)(uintptr_t)from, bytes));
  return status;
}

static qkv_status cuda_synchronize(device *base) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuCtxSynchronize", context_synchronize());
  return status;
}

/* The driver does not wait for such a copy. */
static qkv_status cuda_copy_on_device(device *base, void *to, const void *from, size_t bytes) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuMemcpyDtoD",
             copy_on_device((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes));
  return status == QKV_OK ? cuda_synchronize(base) : status;
}

/* ---- Virtual memory ---- */

static CUmemAllocationProp physical_properties(const cuda_device *d) {
  return (CUmemAllocationProp){.type = CUDA_MEMORY_PINNED, .location = {.type = CUDA_LOCATION_DEVICE, .id = d->handle}};
}

static qkv_status cuda_granularity(device *base, size_t *bytes) {
  const cuda_device *d = as_cuda(base);
  const CUmemAllocationProp properties = physical_properties(d);
  int supported = 0;
  qkv_status status = cuda_check(d->api, d->api->device_attribute(&supported, CUDA_DEVICE_VIRTUAL_MEMORY, d->handle),
                                 "cuDeviceGetAttribute");
  if (status == QKV_OK && !supported)
    status = error_set(QKV_UNSUPPORTED, "cuda:%d has no virtual memory management", d->ordinal);
  if (status == QKV_OK)
    IN_CONTEXT(d, PREPARING, status, "cuMemGetAllocationGranularity",
               granularity(bytes, &properties, CUDA_GRANULARITY_MINIMUM));
  return status;
}

static qkv_status cuda_reserve(device *base, size_t bytes, void **out) {
  const cuda_device *d = as_cuda(base);
  CUdeviceptr range = 0;
  qkv_status status;
  IN_CONTEXT(d, PREPARING, status, "cuMemAddressReserve", address_reserve(&range, bytes, 0, 0, 0));
  *out = status == QKV_OK ? (void *)(uintptr_t)range : NULL;
  return status == QKV_OK ? status : error_context(status, "%zu bytes of addresses: ", bytes);
}

static qkv_status cuda_unreserve(device *base, void *range, size_t bytes) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  IN_CONTEXT(d, PREPARING, status, "cuMemAddressFree", address_free((CUdeviceptr)(uintptr_t)range, bytes));
  return status;
}

/* In a context: memory for one granule. The handle is let go at once: a mapping keeps its memory. */
static qkv_status map_granule(const cuda_device *d, CUdeviceptr at, size_t granule) {
  const CUmemAllocationProp properties = physical_properties(d);
  CUmemGenericAllocationHandle memory;
  qkv_status status = cuda_check(d->api, d->api->physical_create(&memory, granule, &properties, 0), "cuMemCreate");
  if (status != QKV_OK)
    return status;
  status = cuda_check(d->api, d->api->physical_map(at, granule, 0, memory, 0), "cuMemMap");
  d->api->physical_release(memory);
  return status;
}

/* In a context: granule by granule, as they were mapped, for a mapping can only be undone whole. The first failure
 * counts; the others are still undone. */
static CUresult unmap_granules(const cuda_device *d, CUdeviceptr at, size_t granule, int64_t count) {
  CUresult first = CUDA_SUCCESS;
  for (int64_t n = 0; n < count; n++) {
    CUresult result = d->api->physical_unmap(at + (CUdeviceptr)n * granule, granule);
    first = first == CUDA_SUCCESS ? result : first;
  }
  return first;
}

static qkv_status cuda_map(device *base, void *start, size_t granule, int64_t count) {
  const cuda_device *d = as_cuda(base);
  const CUmemAccessDesc own = {.location = {.type = CUDA_LOCATION_DEVICE, .id = d->handle},
                               .flags = CUDA_ACCESS_READ_WRITE};
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)start;
  int64_t done = 0;
  visit v;
  qkv_status status = cuda_enter(d, PREPARING, &v);
  if (status != QKV_OK)
    return status;
  while (status == QKV_OK && done < count) {
    status = map_granule(d, at + (CUdeviceptr)done * granule, granule);
    done += status == QKV_OK;
  }
  if (status == QKV_OK) /* one call for all: it costs more than mapping does */
    status = cuda_check(d->api, d->api->set_access(at, (size_t)count * granule, &own, 1), "cuMemSetAccess");
  if (status != QKV_OK) /* nobody has seen it yet */
    unmap_granules(d, at, granule, done);
  cuda_leave(d, &v);
  return status;
}

static qkv_status cuda_unmap(device *base, void *at, size_t granule, int64_t count) {
  const cuda_device *d = as_cuda(base);
  visit v;
  qkv_status status = cuda_enter(d, PREPARING, &v);
  if (status == QKV_OK) {
    status = cuda_check(d->api, unmap_granules(d, (CUdeviceptr)(uintptr_t)at, granule, count), "cuMemUnmap");
    cuda_leave(d, &v);
  }
  return status;
}

/* ---- Modules and launches ---- */

static qkv_status cuda_load(device *base, const void *image, size_t size, const char *name, device_module **out) {
  const cuda_device *d = as_cuda(base);
  (void)size; /* a cubin knows its own size; the caller has verified it */
  *out = NULL;
  device_module *m = calloc(1, sizeof *m);
  if (!m)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  qkv_status status;
  IN_CONTEXT(d, PREPARING, status, "cuLibraryLoadData", library_load(&m->library, image, NULL, NULL, 0, NULL, NULL, 0));
  if (status != QKV_OK) {
    free(m);
    int version = 0; /* of the driver: a newer compiler's cubin is refused for it */
    d->api->driver_version(&version);
    return error_context(status, "loading %s on cuda:%d, whose driver is for CUDA %d.%d: ", name, d->ordinal,
                         version / 1000, version % 1000 / 10);
  }
  *out = m;
  return QKV_OK;
}

static void cuda_unload(device *base, device_module *m) {
  const cuda_device *d = as_cuda(base);
  if (!m)
    return;
  /* At exit the driver may be gone (CUDA_ERROR_DEINITIALIZED) and has freed everything itself: nothing to report. */
  visit v;
  if (cuda_enter(d, PREPARING, &v) == QKV_OK) {
    d->api->library_unload(m->library);
    cuda_leave(d, &v);
  }
  while (m->kernels) {
    device_kernel *next = m->kernels->next;
    free(m->kernels);
    m->kernels = next;
  }
  free(m);
}

enum { PORTABLE_CLUSTER = 8 }; /* blocks that every GPU with clusters takes; more have to be allowed */

/* In a context: whether a cluster finds a place. The blocks of one run at once on the SMs of one part of the GPU (a
 * GPC), and some GPUs have parts of few SMs: a launch of more than fit there would fail. */
static qkv_status check_cluster(const cuda_device *d, CUfunction function, int block, int shared_bytes, int cluster) {
  const CUlaunchAttribute size = {CUDA_LAUNCH_CLUSTER_DIMENSION, {(unsigned)cluster, 1, 1}};
  const CUlaunchConfig config = {.grid = {(unsigned)cluster, 1, 1},
                                 .block = {(unsigned)block, 1, 1},
                                 .shared_bytes = (unsigned)shared_bytes,
                                 .attributes = &size,
                                 .attribute_count = 1};
  int clusters = 0;
  const CUresult result = d->api->active_clusters(&clusters, function, &config);
  /* Of other failures the launch tells: a question that cannot be answered is no reason to refuse the kernel. */
  if (result == CUDA_ERROR_INVALID_CLUSTER_SIZE || (result == CUDA_SUCCESS && clusters < 1))
    return error_set(QKV_BAD_SCHEDULE,
                     "clusters of %d blocks, each of %d threads and with %d bytes of dynamic shared memory, fit nowhere "
                     "on cuda:%d; smaller clusters, or blocks that need less, do",
                     cluster, block, shared_bytes, d->ordinal);
  return QKV_OK;
}

/* Finds the entry, raises its limits and loads it into the context, so that no launch has to. */
static qkv_status find_kernel(const cuda_device *d, device_module *m, const char *entry, int block, int shared_bytes,
                              int cluster, CUkernel *kernel) {
  CUfunction function;
  qkv_status status = cuda_check(d->api, d->api->library_kernel(kernel, m->library, entry), "cuLibraryGetKernel");
  if (status == QKV_OK && shared_bytes > 0)
    status = cuda_check(
        d->api, d->api->kernel_set_attribute(CUDA_FUNCTION_MAX_DYNAMIC_SHARED, shared_bytes, *kernel, d->handle),
        "cuKernelSetAttribute(dynamic shared memory)");
  if (status == QKV_OK && cluster > PORTABLE_CLUSTER)
    status = cuda_check(d->api, d->api->kernel_set_attribute(CUDA_FUNCTION_NON_PORTABLE_CLUSTER, 1, *kernel, d->handle),
                        "cuKernelSetAttribute(clusters of more than 8 blocks)");
  if (status == QKV_OK)
    status = cuda_check(d->api, d->api->kernel_function(&function, *kernel), "cuKernelGetFunction");
  return status == QKV_OK && cluster > 1 ? check_cluster(d, function, block, shared_bytes, cluster) : status;
}

static qkv_status cuda_kernel(device *base, device_module *m, const char *entry, int block, int shared_bytes,
                              int cluster, device_kernel **out) {
  const cuda_device *d = as_cuda(base);
  size_t length = strlen(entry) + 1;
  *out = NULL;
  device_kernel *k = malloc(sizeof *k + length);
  if (!k)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  memcpy(k->name, entry, length);
  visit v;
  qkv_status status = cuda_enter(d, PREPARING, &v);
  if (status == QKV_OK) {
    status = find_kernel(d, m, entry, block, shared_bytes, cluster, &k->handle);
    for (int n = 0; n < CONTEXTS; n++)
      atomic_init(&k->loaded[n], n ? NULL : v.context);
    cuda_leave(d, &v);
  }
  if (status != QKV_OK) {
    free(k);
    return error_context(status, "entry '%s' with %d bytes of shared memory: ", entry, shared_bytes);
  }
  k->next = m->kernels;
  m->kernels = k;
  return *out = k, QKV_OK;
}

static bool is_capturing(const cuda_device *d, qkv_stream stream) {
  int status = CUDA_CAPTURE_NONE; /* an error: the default stream while another is captured, which forbids as much */
  return d->api->stream_capturing((CUstream)stream, &status) != CUDA_SUCCESS || status != CUDA_CAPTURE_NONE;
}

/* The first launch in a context that is not the one of prepare: loading there may wait for the context, which spoils a
 * capture, so it is done here and not by the launch. The context is remembered while there is room. */
static qkv_status load_in_context(const cuda_device *d, device_kernel *k, CUcontext context, qkv_stream stream) {
  CUfunction function;
  if (is_capturing(d, stream))
    return error_set(QKV_CAPTURING,
                     "%s: its first launch in this context loads it, which a capture forbids; prepare with the context "
                     "current, or make a call in it before the capture",
                     k->name);
  int mode = CUDA_CAPTURE_RELAXED; /* others may capture */
  const bool relaxed = d->api->capture_mode(&mode) == CUDA_SUCCESS;
  qkv_status status = cuda_check(d->api, d->api->kernel_function(&function, k->handle), "cuKernelGetFunction");
  if (relaxed)
    d->api->capture_mode(&mode);
  for (int n = 0; n < CONTEXTS && status == QKV_OK; n++) {
    CUcontext none = NULL;
    if (atomic_compare_exchange_strong(&k->loaded[n], &none, context) || none == context)
      break;
  }
  return status;
}

/* enter() for a launch: the kernel is loaded in the context that is current then. */
static qkv_status enter_loaded(const cuda_device *d, device_kernel *k, qkv_stream stream, visit *v) {
  qkv_status status = cuda_enter(d, WORKING, v);
  if (status != QKV_OK)
    return status;
  for (int n = 0; n < CONTEXTS; n++)
    if (atomic_load_explicit(&k->loaded[n], memory_order_relaxed) == v->context)
      return QKV_OK;
  status = load_in_context(d, k, v->context, stream);
  if (status != QKV_OK)
    cuda_leave(d, v);
  return status;
}

/* A launch in clusters, or one that is set up before the kernel ahead of it has ended. */
static qkv_status launch_with_attributes(const cuda_device *d, device_kernel *k, const device_launch *l,
                                         qkv_stream stream, void **params) {
  CUlaunchAttribute attributes[2];
  unsigned count = 0;
  if (l->cluster > 1)
    attributes[count++] = (CUlaunchAttribute){CUDA_LAUNCH_CLUSTER_DIMENSION, {(unsigned)l->cluster, 1, 1}};
  if (l->early)
    attributes[count++] = (CUlaunchAttribute){CUDA_LAUNCH_PROGRAMMATIC_SERIALIZATION, {1}};
  const CUlaunchConfig config = {.grid = {(unsigned)l->grid, 1, 1},
                                 .block = {(unsigned)l->block, 1, 1},
                                 .shared_bytes = (unsigned)l->shared_bytes,
                                 .stream = (CUstream)stream,
                                 .attributes = attributes,
                                 .attribute_count = count};
  visit v;
  if (l->cluster > 1 && l->grid % l->cluster)
    return error_set(QKV_INVALID_ARGUMENT, "%s: %lld blocks in clusters of %d", k->name, (long long)l->grid,
                     l->cluster);
  qkv_status status = enter_loaded(d, k, stream, &v);
  if (status != QKV_OK)
    return status;
  status = cuda_check(d->api, d->api->launch_ex(&config, k->handle, params, NULL), k->name);
  cuda_leave(d, &v);
  return status;
}

static qkv_status cuda_launch(device *base, device_kernel *k, const device_launch *l, qkv_stream stream) {
  const cuda_device *d = as_cuda(base);
  /* The driver copies the parameters; it does not write to them. */
  void *params[1];
  memcpy(params, &l->params, sizeof params);
  if (l->cluster > 1 || l->early)
    return launch_with_attributes(d, k, l, stream, params);
  visit v;
  qkv_status status = enter_loaded(d, k, stream, &v);
  if (status != QKV_OK)
    return status;
  status = cuda_check(d->api,
                      d->api->launch(k->handle, (unsigned)l->grid, 1, 1, (unsigned)l->block, 1, 1,
                                     (unsigned)l->shared_bytes, (CUstream)stream, params, NULL),
                      k->name);
  cuda_leave(d, &v);
  return status;
}

static bool cuda_capturing(device *base, qkv_stream stream) {
  const cuda_device *d = as_cuda(base);
  visit v;
  if (cuda_enter(d, WORKING, &v) != QKV_OK)
    return false;
  const bool capturing = is_capturing(d, stream);
  cuda_leave(d, &v);
  return capturing;
}

/* In a context. Memory of the host that the driver knows (pinned, managed) has an address for kernels too. */
static qkv_status check_reach(const cuda_device *d, CUdeviceptr at, size_t bytes) {
  int type = 0, ordinal = -1;
  CUdeviceptr start = 0;
  size_t size = 0;
  if (d->api->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, at) != CUDA_SUCCESS)
    return error_set(QKV_INVALID_ARGUMENT, "%p is no memory of a GPU: the host's, or not mapped",
                     (void *)(uintptr_t)at);
  if (type == CUDA_MEMORY_DEVICE && d->api->pointer_attribute(&ordinal, CUDA_POINTER_ORDINAL, at) == CUDA_SUCCESS &&
      ordinal != d->ordinal)
    return error_set(QKV_INVALID_ARGUMENT, "%p is memory of cuda:%d; the engine's device is cuda:%d",
                     (void *)(uintptr_t)at, ordinal, d->ordinal);
  if (d->api->pointer_attribute(&start, CUDA_POINTER_RANGE_START, at) == CUDA_SUCCESS &&
      d->api->pointer_attribute(&size, CUDA_POINTER_RANGE_SIZE, at) == CUDA_SUCCESS && size > 0 &&
      at + bytes > start + size && d->api->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, at + bytes - 1))
    return error_set(QKV_INVALID_ARGUMENT, "%zu bytes at %p reach beyond their allocation, which ends at %p", bytes,
                     (void *)(uintptr_t)at, (void *)(uintptr_t)(start + size));
  return QKV_OK;
}

static qkv_status cuda_reaches(device *base, const void *memory, size_t bytes) {
  const cuda_device *d = as_cuda(base);
  visit v;
  qkv_status status = cuda_enter(d, WORKING, &v);
  if (status == QKV_OK) {
    status = check_reach(d, (CUdeviceptr)(uintptr_t)memory, bytes);
    cuda_leave(d, &v);
  }
  return status;
}

static qkv_status cuda_set_zero(device *base, void *memory, size_t bytes, qkv_stream stream) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuMemsetD8Async", memory_set((CUdeviceptr)(uintptr_t)memory, 0, bytes, stream));
  return status;
}

static qkv_status cuda_tensor_map(device *base, const device_tensor_map *map, void *encoded) {
  const cuda_device *d = as_cuda(base);
  qkv_status status = tensor_map_check(map);
  if (status != QKV_OK)
    return status;
  uint64_t extents[5], strides[5] = {0};
  unsigned box[5], ones[5];
  for (int n = 0; n < map->rank; n++) {
    extents[n] = (uint64_t)map->extent[n];
    box[n] = (unsigned)map->box[n];
    ones[n] = 1;
    if (n > 0)
      strides[n - 1] = (uint64_t)map->stride_bytes[n - 1];
  }
  int swizzle = map->swizzle == 128  ? CUDA_TENSOR_SWIZZLE_128
                : map->swizzle == 64 ? CUDA_TENSOR_SWIZZLE_64
                : map->swizzle == 32 ? CUDA_TENSOR_SWIZZLE_32
                                     : CUDA_TENSOR_SWIZZLE_NONE;
  int type = map->element_bytes == 2 ? CUDA_TENSOR_UINT16 : CUDA_TENSOR_UINT32;
  IN_CONTEXT(d, WORKING, status, "cuTensorMapEncodeTiled", /* it looks at the context, though no manual says so */
             tensor_map_encode(encoded, type, (unsigned)map->rank, map->base, extents, strides, box, ones,
                               CUDA_TENSOR_INTERLEAVE_NONE, swizzle, CUDA_TENSOR_PROMOTE_256, CUDA_TENSOR_FILL_ZERO));
  return status;
}

const device_ops device_cuda = {.name = "cuda",
                                .open = cuda_open,
                                .close = cuda_close,
                                .info = cuda_info,
                                .alloc = cuda_alloc,
                                .free = cuda_free,
                                .copy_to_device = cuda_copy_to_device,
                                .copy_to_host = cuda_copy_to_host,
                                .copy_on_device = cuda_copy_on_device,
                                .synchronize = cuda_synchronize,
                                .granularity = cuda_granularity,
                                .reserve = cuda_reserve,
                                .unreserve = cuda_unreserve,
                                .map = cuda_map,
                                .unmap = cuda_unmap,
                                .load = cuda_load,
                                .unload = cuda_unload,
                                .kernel = cuda_kernel,
                                .launch = cuda_launch,
                                .capturing = cuda_capturing,
                                .reaches = cuda_reaches,
                                .set_zero = cuda_set_zero,
                                .tensor_map = cuda_tensor_map,
                                .event_create = cuda_event_create,
                                .event_free = cuda_event_free,
                                .event_record = cuda_event_record,
                                .event_seconds = cuda_event_seconds,
                                .graph_record = cuda_graph_record,
                                .graph_free = cuda_graph_free,
                                .graph_replay = cuda_graph_replay};
