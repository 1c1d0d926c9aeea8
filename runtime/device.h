/* device.h: the one table behind which cuda and emu stand. The launch path, the cache, the tuner and the tests know
 * nothing else of a device. A backend is one file, device_<name>.c, that fills a device_ops.
 *
 * Every call returns a qkv_status and, on failure, sets the thread's message with error_set (error.h). */
#ifndef RUNTIME_DEVICE_H
#define RUNTIME_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "qkv.h"

typedef struct device device;     /* an opened device; defined by the backend, starts with device_base */
typedef struct device_module device_module;
typedef struct device_kernel device_kernel; /* one entry of a module, attributes set */
typedef struct device_event device_event;
typedef struct device_graph device_graph; /* recorded work */

/* Puts work on a stream: launches, set_zero; nothing that waits. */
typedef qkv_status (*device_work)(void *user, qkv_stream stream);

/* A compiled image with what the compiler said. Freed with image_free. */
typedef struct device_image {
  void *bytes;
  size_t size;
  char *log; /* compiler output, may be empty; zero-terminated */
} device_image;

typedef struct device_launch {
  int64_t grid;          /* blocks in x; > 0 and < 2^31 */
  int block;             /* threads */
  int shared_bytes;      /* dynamic */
  const void *params;    /* the parameter struct */
  size_t params_size;
  int cluster;           /* blocks of a cluster, a divisor of the grid, at most 16; 0 and 1: no clusters */
  bool early;            /* blocks may start while the kernel before still runs: the kernel waits for it by itself */
} device_launch;

/* What the compiler reports of one entry. registers < 0: unknown. The last two lines count its messages. */
typedef struct device_resources {
  int registers, spill_stores, spill_loads, stack, shared_bytes;
  int serialised_wgmma, ignored_setmaxnreg; /* speed lost: wgmma one after another; registers as at the launch */
  int added_waits, added_fences, warnings;  /* around wgmma, by the compiler; everything else it warns of */
} device_resources;

/* A tiled view of global memory for the bulk tensor copies of sm_90: dimension 0 is the innermost and contiguous. */
typedef struct device_tensor_map {
  void *base; /* 16-byte aligned */
  int element_bytes; /* 2 or 4 */
  int rank;          /* 1 to 5 */
  int64_t extent[5]; /* elements; at least 1 */
  int64_t stride_bytes[4]; /* of dimensions 1 to rank - 1; multiples of 16, at least 0, below 2^40 */
  int box[5];        /* elements of one copy; at most 256 each */
  int swizzle;       /* bytes of the swizzle pattern: 0, 32, 64 or 128 */
} device_tensor_map;

enum { DEVICE_TENSOR_MAP_BYTES = 128 }; /* of the encoded form, 64-byte aligned */

typedef struct device_ops {
  const char *name; /* "cuda", "emu" */
  /* Opens ordinal n. options carries the emu seed. */
  qkv_status (*open)(int ordinal, const qkv_options *options, device **out);
  void (*close)(device *d);
  qkv_status (*info)(device *d, qkv_device_info *out);

  qkv_status (*alloc)(device *d, size_t bytes, void **out);
  qkv_status (*free)(device *d, void *memory);
  qkv_status (*copy_to_device)(device *d, void *to, const void *from, size_t bytes);
  qkv_status (*copy_to_host)(device *d, void *to, const void *from, size_t bytes);
  qkv_status (*copy_on_device)(device *d, void *to, const void *from, size_t bytes);
  qkv_status (*synchronize)(device *d);

  /* Virtual memory: addresses are reserved once; physical memory is mapped into them, and taken out of them, by granules.
   * A granule is a multiple of granularity(), and so are all addresses and sizes. These calls take no part in the
   * order of a stream. A driver may let map and unmap wait for the device (its manual says so of cuMemSetAccess and
   * cuMemUnmap). A kernel that touches addresses without memory ends its context; on emu it is a fault by name. */
  /* QKV_UNSUPPORTED when the device has no virtual memory. */
  qkv_status (*granularity)(device *d, size_t *bytes);
  qkv_status (*reserve)(device *d, size_t bytes, void **out);
  /* The whole of a reserved range; nothing may be mapped in it. */
  qkv_status (*unreserve)(device *d, void *range, size_t bytes);
  /* Maps new memory of any content to `count` granules; none of them had any. All or nothing. */
  qkv_status (*map)(device *d, void *at, size_t granule, int64_t count);
  /* Takes away what map gave, with the same size of a granule. Nothing that runs may use it. */
  qkv_status (*unmap)(device *d, void *at, size_t granule, int64_t count);

  /* Loads an image. `name` appears in fault reports. */
  qkv_status (*load)(device *d, const void *image, size_t size, const char *name, device_module **out);
  void (*unload)(device *d, device_module *m);
  /* An entry with its shared-memory limit raised to shared_bytes, for launches of blocks of up to `block` threads, in
   * clusters of up to `cluster` blocks (1: none). QKV_BAD_SCHEDULE: the device has no place where such a cluster fits.
   * Freed with the module. */
  qkv_status (*kernel)(device *d, device_module *m, const char *entry, int block, int shared_bytes, int cluster,
                       device_kernel **out);
  /* Launch only; see qkv_attention. */
  qkv_status (*launch)(device *d, device_kernel *k, const device_launch *l, qkv_stream stream);

  /* Whether the stream is being captured in a graph: then nothing may wait for it. */
  bool (*capturing)(device *d, qkv_stream stream);
  /* Whether kernels can reach `bytes` bytes (at least 1) from `memory` on. QKV_INVALID_ARGUMENT says what they are
   * instead: the host's, another device's, nobody's. For debugging: it asks the driver. */
  qkv_status (*reaches)(device *d, const void *memory, size_t bytes);

  /* Sets memory of the device to zero, in the order of the stream. */
  qkv_status (*set_zero)(device *d, void *memory, size_t bytes, qkv_stream stream);

  /* Encodes a map for a kernel's parameter struct. Host arithmetic only. QKV_INVALID_ARGUMENT names the limit it breaks. */
  qkv_status (*tensor_map)(device *d, const device_tensor_map *map, void *encoded);

  qkv_status (*event_create)(device *d, device_event **out);
  void (*event_free)(device *d, device_event *e);
  qkv_status (*event_record)(device *d, device_event *e, qkv_stream stream);
  /* Waits for both and gives the seconds between them. */
  qkv_status (*event_seconds)(device *d, device_event *from, device_event *to, double *seconds);

  /* Records work once, on a stream of the device's own, to be replayed any number of times with hardly any time between
   * its launches. Where there are no graphs the work is done at each replay: `user` must live as long as the graph. */
  qkv_status (*graph_record)(device *d, device_work work, void *user, device_graph **out);
  void (*graph_free)(device *d, device_graph *g);
  qkv_status (*graph_replay)(device *d, device_graph *g, qkv_stream stream);
} device_ops;

/* First member of every backend's struct device. */
typedef struct device_base {
  const device_ops *ops;
} device_base;

extern const device_ops device_cuda; /* device_cuda.c */
extern const device_ops device_emu;  /* device_emu.c */

/* ---- Compilers: one per kind of image ---- */

/* Turns source into an image. Stateless and thread safe. */
typedef struct compiler_ops {
  const char *name; /* "nvrtc", "g++" */
  /* Identity for cache keys and reports: version and a stamp of the binary. QKV_NO_COMPILER with the list of places
   * tried when there is none. */
  qkv_status (*identity)(char *out, size_t size);
  /* Compiles for arch ("sm_90a"; a name for the emulated machine). On QKV_COMPILE_ERROR image->log has the log and
   * image->bytes is NULL. The compiler's own cache is off, so that the log is complete. */
  qkv_status (*compile)(const char *source, const char *arch, device_image *image);
  /* Reads one entry's resources out of the log. */
  void (*resources)(const char *log, const char *entry, device_resources *out);
  /* 1 when the image can be what this compiler made (ELF magic, size); cheap. */
  int (*plausible)(const void *image, size_t size);
  /* A number for what images of this kind expect of the one who runs them; others cannot run them. NULL: nothing, as
   * machine code of a GPU. Needs no compiler. */
  uint64_t (*contract)(void);
} compiler_ops;

extern const compiler_ops compiler_nvrtc;   /* compiler_nvrtc.c */
extern const compiler_ops compiler_nvrtc_bare; /* without line numbers and the PTX that comes with them: for packs */
extern const compiler_ops compiler_emulator; /* compiler_emulator.c */

void image_free(device_image *image);

#endif
