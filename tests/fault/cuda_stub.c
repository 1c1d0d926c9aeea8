/* cuda_stub.c: a CUDA driver without a GPU, for the device code's own logic: device memory is host memory, kernels do
 * nothing, contexts are counted. Built by a test as libcuda.so.1.
 *
 * $QKV_STUB_CUDA is "SYMBOL:ERROR": that function fails with that number, once stub_fail_after calls of it have not.
 * $QKV_STUB_GPUS: how many GPUs (2). $QKV_STUB_CAPABILITIES: "9.0,8.0", one of each GPU (9.0).
 * $QKV_STUB_GPC: blocks of the largest cluster that finds a place (16); half as many of blocks with more than 116,224
 * bytes of shared memory, of which an SM takes one.
 * One lock around every call: any number of threads. After a fork nothing works in the child when cuInit was
 * called before, as in the real driver. A kernel of tests/fault/nvrtc_stub.c knows its architecture and is refused by
 * GPUs of another.
 * Loading, allocating and freeing need the relaxed capture mode, as while some other thread captures a stream.
 * cuTensorMapEncodeTiled needs a context, as the real one does.
 * stub_capture_mode: that of the calling thread. stub_calls: calls of any kind, stub_calls_of_SYMBOL: of one function;
 * stub_depth: contexts pushed and not popped by the calling thread; stub_pushes: pushes so far. stub_early: launches
 * with programmatic serialisation; stub_streams, stub_graphs: alive; stub_replayed: launches replayed by graphs. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void *context;
static char contexts[8]; /* the primary context of GPU n is &contexts[n], another of its contexts &contexts[n + 4] */
static _Thread_local context stack[16];
_Thread_local int stub_depth, stub_capture_mode;
int stub_fail_after;
int stub_capturing; /* some stream is being captured */
int stub_streams, stub_graphs, stub_replayed, stub_capture_from;
int stub_calls, stub_pushes, stub_launches, stub_early, stub_memsets, stub_maps, stub_shared_limit, stub_modules,
    stub_wide_clusters;

static int fails(const char *symbol) {
  char name[64];
  int number = 0;
  const char *setting = getenv("QKV_STUB_CUDA");
  if (!setting || sscanf(setting, "%63[^:]:%d", name, &number) != 2 || strcmp(name, symbol))
    return 0;
  return stub_fail_after > 0 ? stub_fail_after--, 0 : number;
}

static pthread_mutex_t stub_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised; /* who called cuInit */

static void unlock(const int *held) {
  (void)held;
  pthread_mutex_unlock(&stub_lock);
}

#define STUB(symbol, parameters, ...)                                                                                  \
  int stub_calls_of_##symbol;                                                                                          \
  int symbol parameters;                                                                                               \
  int symbol parameters {                                                                                              \
    pthread_mutex_lock(&stub_lock);                                                                                    \
    __attribute__((cleanup(unlock), unused)) int held_ = 1;                                                            \
    if (initialised && initialised != getpid() && strncmp(#symbol, "cuGetError", 10))                                  \
      return 3; /* CUDA_ERROR_NOT_INITIALIZED */                                                                       \
    stub_calls++, stub_calls_of_##symbol++;                                                                            \
    int error_ = fails(#symbol);                                                                                       \
    if (error_)                                                                                                        \
      return error_;                                                                                                   \
    __VA_ARGS__;                                                                                                       \
    return 0;                                                                                                          \
  }

static int gpus(void) {
  return getenv("QKV_STUB_GPUS") ? atoi(getenv("QKV_STUB_GPUS")) : 2;
}

/* 10 * major + minor of a GPU. */
static int capability_of(int device) {
  const char *at = getenv("QKV_STUB_CAPABILITIES");
  int major = 9, minor = 0;
  for (; at && device > 0; device--)
    at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
  if (at)
    sscanf(at, "%d.%d", &major, &minor);
  return 10 * major + minor;
}

/* Of an H200; 1 Mi for what nobody asks. */
static int attribute_of(int attribute, int device) {
  if (attribute == 75 || attribute == 76)
    return attribute == 75 ? capability_of(device) / 10 : capability_of(device) % 10;
  static const struct {
    int attribute, value;
  } known[] = {{13, 1980000}, {16, 132}, {36, 3201000}, {37, 6144}, {97, 232448}};
  for (size_t n = 0; n < sizeof known / sizeof *known; n++)
    if (known[n].attribute == attribute)
      return known[n].value;
  return 1 << 20;
}

/* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
#define NEED_RELAXED                                                                                                   \
  if (stub_capture_mode != 2)                                                                                          \
  return 900
/* Work needs a context, as in the real driver: CUDA_ERROR_INVALID_CONTEXT. */
#define NEED_CONTEXT                                                                                                   \
  if (!stub_depth)                                                                                                     \
  return 201

STUB(cuInit, (unsigned flags), (void)flags; initialised = getpid())
STUB(cuDriverGetVersion, (int *version), *version = getenv("QKV_STUB_OLD") ? 11080 : 13000)
STUB(cuGetErrorName, (int error, const char **name),
     *name = error == 3     ? "CUDA_ERROR_NOT_INITIALIZED"
             : error == 2   ? "CUDA_ERROR_OUT_OF_MEMORY"
             : error == 201 ? "CUDA_ERROR_INVALID_CONTEXT"
             : error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
             : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                            : NULL)
STUB(cuGetErrorString, (int error, const char **text), (void)error; *text = "a stub's error")
STUB(cuDeviceGetCount, (int *count), *count = gpus())
STUB(cuDeviceGet, (int *device, int ordinal), *device = ordinal)
STUB(cuDeviceGetName, (char *name, int size, int device), snprintf(name, (size_t)size, "Stub %d", device))
STUB(cuDeviceGetPCIBusId, (char *id, int size, int device), snprintf(id, (size_t)size, "0000:%02x:00.0", 0x17 + device))
STUB(cuDeviceGetAttribute, (int *value, int attribute, int device), *value = attribute_of(attribute, device))
STUB(cuDeviceTotalMem_v2, (size_t * bytes, int device), (void)device; *bytes = (size_t)1 << 30)
STUB(cuDevicePrimaryCtxRetain, (context * c, int device), *c = &contexts[device])
STUB(cuDevicePrimaryCtxRelease_v2, (int device), (void)device)
STUB(cuCtxGetCurrent, (context * c), *c = stub_depth ? stack[stub_depth - 1] : NULL)
STUB(cuCtxGetDevice, (int *device), NEED_CONTEXT; *device = (int)((char *)stack[stub_depth - 1] - contexts) % 4)
STUB(cuCtxPushCurrent_v2, (context c), stack[stub_depth++] = c; stub_pushes++)
STUB(cuCtxPopCurrent_v2, (context * c), NEED_CONTEXT; *c = stack[--stub_depth])
STUB(cuCtxSynchronize, (void), NEED_CONTEXT)
STUB(cuThreadExchangeStreamCaptureMode, (int *mode), int old = stub_capture_mode; stub_capture_mode = *mode;
     *mode = old)

/* ---- Memory, each piece with the GPU it is on ---- */

enum { PIECES = 256 };
static struct piece {
  uintptr_t at;
  size_t bytes;
  int device;
} pieces[PIECES];

static struct piece *piece_at(uintptr_t at) {
  for (int n = 0; n < PIECES; n++)
    if (pieces[n].bytes && at >= pieces[n].at && at < pieces[n].at + pieces[n].bytes)
      return &pieces[n];
  return NULL;
}

static uintptr_t keep_piece(void *memory, size_t bytes) {
  int n = 0;
  while (n < PIECES - 1 && pieces[n].bytes)
    n++;
  pieces[n] = (struct piece){(uintptr_t)memory, bytes, (int)((char *)stack[stub_depth - 1] - contexts) % 4};
  return (uintptr_t)memory;
}

STUB(cuMemAlloc_v2, (uintptr_t * memory, size_t bytes), NEED_CONTEXT; NEED_RELAXED;
     void *made = NULL; if (posix_memalign(&made, 256, bytes)) return 2; *memory = keep_piece(made, bytes))
STUB(cuMemFree_v2, (uintptr_t memory), NEED_CONTEXT; NEED_RELAXED; struct piece *p = piece_at(memory);
     if (p) p->bytes = 0; free((void *)memory))
STUB(cuStreamIsCapturing, (void *stream, int *status), NEED_CONTEXT; (void)stream; *status = stub_capturing)
STUB(cuPointerGetAttribute, (void *value, int attribute, uintptr_t pointer), NEED_CONTEXT;
     struct piece *p = piece_at(pointer); if (!p) return 1;
     if (attribute == 2) *(int *)value = 2; else if (attribute == 9) *(int *)value = p->device;
     else if (attribute == 11) *(uintptr_t *)value = p->at; else if (attribute == 12) *(size_t *)value = p->bytes;
     else return 1)
STUB(cuMemcpyHtoD_v2, (uintptr_t to, const void *from, size_t bytes), NEED_CONTEXT; memcpy((void *)to, from, bytes))
STUB(cuMemcpyDtoD_v2, (uintptr_t to, uintptr_t from, size_t bytes), NEED_CONTEXT;
     memcpy((void *)to, (void *)from, bytes))
STUB(cuMemcpyDtoH_v2, (void *to, uintptr_t from, size_t bytes), NEED_CONTEXT; memcpy(to, (void *)from, bytes))
/* A library is the capability that its image was compiled for; 0: unknown. Images of nvrtc_stub.c say it at 16. */
static int *new_library(const char *image) {
  int *library = calloc(1, sizeof *library);
  if (!memcmp(image, "\177ELF", 4) && sscanf(image + 16, "stub sm_%d", library) != 1)
    *library = 0;
  return library;
}
static int is_for_current(const int *library) {
  return !*library || *library == capability_of((int)((char *)stack[stub_depth - 1] - contexts) % 4);
}

STUB(cuLibraryLoadData, (void **library, const void *image, void *a, void *b, unsigned c, void *d, void *e, unsigned f),
     NEED_RELAXED;
     (void)a, (void)b, (void)c, (void)d, (void)e, (void)f; *library = new_library(image); stub_modules++)
STUB(cuLibraryUnload, (void *library), NEED_RELAXED; free(library); stub_modules--)
STUB(cuLibraryGetKernel, (void **kernel, void *library, const char *name), if (!strcmp(name, "absent")) return 500;
     *kernel = library)
STUB(cuKernelGetFunction, (void **function, void *kernel), NEED_CONTEXT; NEED_RELAXED;
     if (!is_for_current(kernel)) return 209; *function = kernel)
STUB(cuKernelSetAttribute, (int attribute, int value, void *kernel, int device), (void)kernel, (void)device;
     if (attribute == 8) stub_shared_limit = value; else if (attribute == 14) stub_wide_clusters += value;
     else return 1)
STUB(cuLaunchKernel,
     (void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      void *stream, void **params, void **extra),
     NEED_CONTEXT;
     (void)kernel, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params,
     (void)extra;
     stub_launches++)
/* Of attributes: id, padding, x, y, z. */
typedef struct launch_config {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  const unsigned *attributes;
  unsigned count;
} launch_config;
/* Clusters that divide the grid (4), programmatic serialisation (6), each once. An attribute is 72 bytes. */
static int known_attributes(const launch_config *config) {
  int clusters = 0, early = 0;
  for (unsigned n = 0; n < config->count; n++) {
    const unsigned *attribute = (const unsigned *)config->attributes + 18 * n, value = attribute[2];
    clusters += attribute[0] == 4 && value > 0 && config->grid[0] % value == 0;
    early += attribute[0] == 6 && value == 1;
  }
  stub_early += early;
  return clusters <= 1 && early <= 1 && clusters + early == (int)config->count;
}
STUB(cuLaunchKernelEx, (const launch_config *config, void *kernel, void **params, void **extra), NEED_CONTEXT;
     (void)kernel, (void)params, (void)extra;
     if (!known_attributes(config)) return 1;
     stub_launches++)
static int clusters_that_fit(const launch_config *config) {
  const char *most = getenv("QKV_STUB_GPC");
  const int size = (int)config->attributes[2], fit = (most ? atoi(most) : 16) / (config->shared_bytes > 116224 ? 2 : 1);
  return size <= fit ? 132 / size : 0;
}
STUB(cuOccupancyMaxActiveClusters, (int *clusters, void *function, const launch_config *config), NEED_CONTEXT;
     (void)function;
     if (!known_attributes(config) || config->count != 1 || config->attributes[0] != 4 || !config->block[0]) return 1;
     if (config->attributes[2] > 16) return 912;
     *clusters = clusters_that_fit(config))
STUB(cuMemsetD8Async, (uintptr_t memory, unsigned char value, size_t bytes, void *stream), NEED_CONTEXT; (void)stream;
     memset((void *)memory, value, bytes); stub_memsets++)
STUB(cuTensorMapEncodeTiled,
     (void *map, int type, unsigned rank, void *base, const uint64_t *extents, const uint64_t *strides,
      const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill),
     (void)type, (void)rank, (void)base, (void)extents, (void)strides, (void)box, (void)steps, (void)interleave,
     (void)swizzle, (void)promotion, (void)fill;
     NEED_CONTEXT; memset(map, 0x5a, 128); stub_maps++)
STUB(cuEventCreate, (void **event, unsigned flags), NEED_CONTEXT; (void)flags; *event = malloc(1))
STUB(cuEventDestroy_v2, (void *event), NEED_CONTEXT; free(event))
STUB(cuEventRecord, (void *event, void *stream), NEED_CONTEXT; (void)event, (void)stream)
STUB(cuEventSynchronize, (void *event), NEED_CONTEXT; (void)event)
STUB(cuEventElapsedTime, (float *milliseconds, void *from, void *to), NEED_CONTEXT; (void)from, (void)to;
     *milliseconds = 2.0f)

/* ---- Graphs: what a capture would have run is counted by its launches ---- */

STUB(cuStreamCreate, (void **stream, unsigned flags), NEED_CONTEXT; if (flags != 1) return 1;
     *stream = malloc(1); stub_streams++)
STUB(cuStreamDestroy_v2, (void *stream), NEED_CONTEXT; free(stream); stub_streams--)
STUB(cuStreamBeginCapture_v2, (void *stream, int mode), NEED_CONTEXT; if (!stream || mode != 1) return 1;
     stub_capture_from = stub_launches)
STUB(cuStreamEndCapture, (void *stream, int **graph), NEED_CONTEXT; if (!stream) return 1;
     *graph = malloc(sizeof **graph); **graph = stub_launches - stub_capture_from; stub_graphs++)
STUB(cuGraphInstantiateWithFlags, (int **out, int *graph, unsigned long long flags), NEED_CONTEXT; if (flags) return 1;
     *out = malloc(sizeof **out); **out = *graph; stub_graphs++)
STUB(cuGraphLaunch, (int *graph, void *stream), NEED_CONTEXT; (void)stream; stub_replayed += *graph)
STUB(cuGraphExecDestroy, (int *graph), NEED_CONTEXT; free(graph); stub_graphs--)
STUB(cuGraphDestroy, (int *graph), NEED_CONTEXT; free(graph); stub_graphs--)

/* ---- Virtual memory: granules of 64 KiB, as strict as the driver ----
 *
 * stub_ranges: reserved; stub_physical: pieces of memory alive, by their handle or by a mapping. A mapping needs a
 * handle of its size, can be accessed after cuMemSetAccess alone, and is undone whole. */
enum { GRANULE = 65536, PLACES = 4096 };
typedef struct physical {
  size_t bytes;
  int held; /* the handle is not released */
  uintptr_t at;
} physical;
static physical memories[PLACES]; /* handle n is memories[n - 1]; bytes 0: none */
int stub_ranges, stub_physical;

typedef struct allocation_properties {
  int type, handle_types, location_type, location_id;
  void *windows;
  unsigned char rest[8];
} allocation_properties;
typedef struct access_rights {
  int location_type, location_id, flags;
} access_rights;

static int proper(const allocation_properties *p) {
  for (int n = 0; n < 8; n++)
    if (p->rest[n])
      return 0;
  return p->type == 1 && !p->handle_types && p->location_type == 1 && p->location_id < gpus() && !p->windows;
}

static physical *mapped_at(uintptr_t at) {
  for (int n = 0; n < PLACES; n++)
    if (memories[n].bytes && memories[n].at && at - memories[n].at < memories[n].bytes)
      return &memories[n];
  return NULL;
}

static void drop_unused(physical *m) {
  if (m->held || m->at)
    return;
  m->bytes = 0;
  stub_physical--;
}

static void *no_access(uintptr_t at, size_t bytes, int fixed) {
  return mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (fixed ? MAP_FIXED : 0), -1,
              0);
}

STUB(cuMemGetAllocationGranularity, (size_t * bytes, const allocation_properties *p, int flags), NEED_CONTEXT;
     if (!proper(p) || flags) return 1; *bytes = GRANULE)
STUB(cuMemAddressReserve, (uintptr_t * range, size_t bytes, size_t alignment, uintptr_t wish, unsigned long long flags),
     NEED_CONTEXT;
     NEED_RELAXED; if (!bytes || bytes % GRANULE || alignment || wish || flags) return 1;
     *range = (uintptr_t)no_access(0, bytes, 0); stub_ranges++)
STUB(cuMemAddressFree, (uintptr_t range, size_t bytes), NEED_CONTEXT; NEED_RELAXED;
     for (uintptr_t at = range; at < range + bytes; at += GRANULE) if (mapped_at(at)) return 1;
     munmap((void *)range, bytes); stub_ranges--)
STUB(cuMemCreate, (unsigned long long *memory, size_t bytes, const allocation_properties *p, unsigned long long flags),
     NEED_CONTEXT;
     NEED_RELAXED; if (!proper(p) || !bytes || bytes % GRANULE || flags) return 1; int n = 0;
     while (n < PLACES && memories[n].bytes) n++; if (n == PLACES) return 2; memories[n] = (physical){bytes, 1, 0};
     *memory = (unsigned long long)n + 1; stub_physical++)
STUB(cuMemRelease, (unsigned long long memory), NEED_CONTEXT; NEED_RELAXED; memories[memory - 1].held = 0;
     drop_unused(&memories[memory - 1]))
STUB(cuMemMap, (uintptr_t at, size_t bytes, size_t offset, unsigned long long memory, unsigned long long flags),
     NEED_CONTEXT;
     NEED_RELAXED; physical *m = &memories[memory - 1]; if (m->bytes != bytes || m->at || !m->held || offset || flags ||
                                                            mapped_at(at) || mapped_at(at + bytes - 1)) return 1;
     m->at = at)
STUB(cuMemUnmap, (uintptr_t at, size_t bytes), NEED_CONTEXT; NEED_RELAXED; physical *m = mapped_at(at);
     if (!m || m->at != at || m->bytes != bytes) return 1; no_access(at, bytes, 1); m->at = 0; drop_unused(m))
STUB(cuMemSetAccess, (uintptr_t at, size_t bytes, const access_rights *who, size_t count), NEED_CONTEXT; NEED_RELAXED;
     if (count != 1 || who->location_type != 1 || who->flags != 3) return 1;
     for (uintptr_t a = at; a < at + bytes; a += GRANULE) if (!mapped_at(a)) return 1;
     mprotect((void *)at, bytes, PROT_READ | PROT_WRITE))
