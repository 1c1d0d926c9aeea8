/* cuda_api.h: the part of the CUDA driver that qkvc calls, found at run time.
 *
 * libcuda.so.1 is opened once per process and never closed; nothing links against it and no CUDA header is needed. The
 * declarations below repeat the driver's binary interface, which NVIDIA keeps stable: a function whose interface
 * changed got a new symbol (_v2), and those are the symbols named here. Needs driver 12.0 (libraries and kernels
 * without a context). */
#ifndef RUNTIME_CUDA_API_H
#define RUNTIME_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#include "qkv.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUmemGenericAllocationHandle;

enum { CUDA_MINIMUM_DRIVER = 12000 };

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_CAPTURE_FIRST = 900, /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ... */
  CUDA_ERROR_CAPTURE_LAST = 908,  /* CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD */
  CUDA_ERROR_INVALID_CLUSTER_SIZE = 912
};

/* CUdevice_attribute */
enum {
  CUDA_DEVICE_CLOCK_KHZ = 13,
  CUDA_DEVICE_SM_COUNT = 16,
  CUDA_DEVICE_MEMORY_CLOCK_KHZ = 36,
  CUDA_DEVICE_MEMORY_BUS_BITS = 37,
  CUDA_DEVICE_L2_BYTES = 38,
  CUDA_DEVICE_COMPUTE_MAJOR = 75,
  CUDA_DEVICE_COMPUTE_MINOR = 76,
  CUDA_DEVICE_SHARED_PER_BLOCK = 97,
  CUDA_DEVICE_VIRTUAL_MEMORY = 102
};

/* CUstreamCaptureMode */
enum { CUDA_CAPTURE_THREAD_LOCAL = 1, CUDA_CAPTURE_RELAXED = 2 };
/* CUstream_flags */
enum { CUDA_STREAM_NON_BLOCKING = 1 };
/* CUstreamCaptureStatus */
enum { CUDA_CAPTURE_NONE = 0 };
/* CUpointer_attribute, CUmemorytype */
enum {
  CUDA_POINTER_MEMORY_TYPE = 2,
  CUDA_POINTER_ORDINAL = 9,
  CUDA_POINTER_RANGE_START = 11,
  CUDA_POINTER_RANGE_SIZE = 12
};
enum { CUDA_MEMORY_DEVICE = 2 };

/* CUfunction_attribute */
enum { CUDA_FUNCTION_MAX_DYNAMIC_SHARED = 8, CUDA_FUNCTION_NON_PORTABLE_CLUSTER = 14 };

/* CUlaunchAttribute and CUlaunchConfig of cuLaunchKernelEx. */
enum { CUDA_LAUNCH_CLUSTER_DIMENSION = 4, CUDA_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6 };
typedef struct CUlaunchAttribute {
  int id;
  _Alignas(8) unsigned value[16]; /* of a union of 64 bytes: the cluster's x, y, z; 1 */
} CUlaunchAttribute;
typedef struct CUlaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  const CUlaunchAttribute *attributes;
  unsigned attribute_count;
} CUlaunchConfig;

/* Physical memory: CUmemAllocationType, CUmemLocationType, CUmemAccess_flags, CUmemAllocationGranularity_flags. */
enum { CUDA_MEMORY_PINNED = 1, CUDA_LOCATION_DEVICE = 1, CUDA_ACCESS_READ_WRITE = 3, CUDA_GRANULARITY_MINIMUM = 0 };
typedef struct CUmemLocation {
  int type, id;
} CUmemLocation;
typedef struct CUmemAllocationProp {
  int type, handle_types;
  CUmemLocation location;
  void *windows_only;
  unsigned char compression, gpu_direct_rdma;
  unsigned short usage;
  unsigned char reserved[4];
} CUmemAllocationProp;
typedef struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
} CUmemAccessDesc;

/* CUtensorMap: data types by element size (the engine moves bits), interleave, swizzle, L2 promotion, fill. */
enum {
  CUDA_TENSOR_UINT16 = 1,
  CUDA_TENSOR_UINT32 = 2,
  CUDA_TENSOR_INTERLEAVE_NONE = 0,
  CUDA_TENSOR_SWIZZLE_NONE = 0,
  CUDA_TENSOR_SWIZZLE_32 = 1,
  CUDA_TENSOR_SWIZZLE_64 = 2,
  CUDA_TENSOR_SWIZZLE_128 = 3,
  CUDA_TENSOR_PROMOTE_256 = 3,
  CUDA_TENSOR_FILL_ZERO = 0
};

/* X(name, symbol, parameters): every function used. */
#define CUDA_FUNCTIONS(X)                                                                                              \
  X(init, cuInit, (unsigned flags))                                                                                    \
  X(driver_version, cuDriverGetVersion, (int *version))                                                                \
  X(error_name, cuGetErrorName, (CUresult error, const char **name))                                                   \
  X(error_string, cuGetErrorString, (CUresult error, const char **text))                                               \
  X(device_count, cuDeviceGetCount, (int *count))                                                                      \
  X(device_get, cuDeviceGet, (CUdevice * device, int ordinal))                                                         \
  X(device_name, cuDeviceGetName, (char *name, int size, CUdevice device))                                             \
  X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                              \
  X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                             \
  X(primary_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                  \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                  \
  X(context_current, cuCtxGetCurrent, (CUcontext * context))                                                           \
  X(context_device, cuCtxGetDevice, (CUdevice * device))                                                               \
  X(context_push, cuCtxPushCurrent_v2, (CUcontext context))                                                            \
  X(context_pop, cuCtxPopCurrent_v2, (CUcontext * context))                                                            \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                                                      \
  X(stream_capturing, cuStreamIsCapturing, (CUstream stream, int *status))                                             \
  X(pointer_attribute, cuPointerGetAttribute, (void *value, int attribute, CUdeviceptr pointer))                       \
  X(context_synchronize, cuCtxSynchronize, (void))                                                                     \
  X(memory_alloc, cuMemAlloc_v2, (CUdeviceptr * memory, size_t bytes))                                                 \
  X(memory_free, cuMemFree_v2, (CUdeviceptr memory))                                                                   \
  X(copy_to_device, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))                                 \
  X(copy_to_host, cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                                         \
  X(copy_on_device, cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes))                                 \
  X(granularity, cuMemGetAllocationGranularity, (size_t * bytes, const CUmemAllocationProp *properties, int flags))    \
  X(address_reserve, cuMemAddressReserve,                                                                              \
    (CUdeviceptr * range, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags))                 \
  X(address_free, cuMemAddressFree, (CUdeviceptr range, size_t bytes))                                                 \
  X(physical_create, cuMemCreate,                                                                                      \
    (CUmemGenericAllocationHandle * memory, size_t bytes, const CUmemAllocationProp *properties,                       \
     unsigned long long flags))                                                                                        \
  X(physical_release, cuMemRelease, (CUmemGenericAllocationHandle memory))                                             \
  X(physical_map, cuMemMap,                                                                                            \
    (CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle memory, unsigned long long flags))      \
  X(physical_unmap, cuMemUnmap, (CUdeviceptr at, size_t bytes))                                                        \
  X(set_access, cuMemSetAccess, (CUdeviceptr at, size_t bytes, const CUmemAccessDesc *who, size_t count))              \
  X(library_load, cuLibraryLoadData,                                                                                   \
    (CUlibrary * library, const void *image, int *jit_options, void **jit_values, unsigned jit_count, int *options,    \
     void **values, unsigned count))                                                                                   \
  X(library_unload, cuLibraryUnload, (CUlibrary library))                                                              \
  X(library_kernel, cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name))                      \
  X(kernel_function, cuKernelGetFunction, (CUfunction * function, CUkernel kernel))                                    \
  X(kernel_set_attribute, cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device))          \
  X(launch, cuLaunchKernel,                                                                                            \
    (void *function_or_kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void **params, void **extra))                           \
  X(launch_ex, cuLaunchKernelEx,                                                                                       \
    (const CUlaunchConfig *config, void *function_or_kernel, void **params, void **extra))                             \
  X(active_clusters, cuOccupancyMaxActiveClusters,                                                                     \
    (int *clusters, CUfunction function, const CUlaunchConfig *config))                                                \
  X(memory_set, cuMemsetD8Async, (CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream))             \
  X(tensor_map_encode, cuTensorMapEncodeTiled,                                                                         \
    (void *map, int data_type, unsigned rank, void *base, const uint64_t *extents, const uint64_t *strides,            \
     const unsigned *box, const unsigned *element_strides, int interleave, int swizzle, int promotion, int fill))      \
  X(event_create, cuEventCreate, (CUevent * event, unsigned flags))                                                    \
  X(event_destroy, cuEventDestroy_v2, (CUevent event))                                                                 \
  X(event_record, cuEventRecord, (CUevent event, CUstream stream))                                                     \
  X(event_synchronize, cuEventSynchronize, (CUevent event))                                                            \
  X(event_elapsed, cuEventElapsedTime, (float *milliseconds, CUevent from, CUevent to))                                \
  X(stream_create, cuStreamCreate, (CUstream * stream, unsigned flags))                                                \
  X(stream_destroy, cuStreamDestroy_v2, (CUstream stream))                                                             \
  X(stream_begin_capture, cuStreamBeginCapture_v2, (CUstream stream, int mode))                                        \
  X(stream_end_capture, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                        \
  X(graph_instantiate, cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags))      \
  X(graph_launch, cuGraphLaunch, (CUgraphExec graph, CUstream stream))                                                 \
  X(graph_exec_destroy, cuGraphExecDestroy, (CUgraphExec graph))                                                       \
  X(graph_destroy, cuGraphDestroy, (CUgraph graph))

typedef struct cuda_api {
#define X(name, symbol, parameters) CUresult(*name) parameters;
  CUDA_FUNCTIONS(X)
#undef X
} cuda_api;

/* The functions, the driver initialised. QKV_NO_DEVICE with the reason (no library, a missing function, an old driver,
 * no GPU) when they cannot be had; the answer is the same for the life of the process. Thread safe. */
qkv_status cuda_get(const cuda_api **out);
/* QKV_OK for success; else the thread's message is "`what`: CUDA_ERROR_X: text" and the result QKV_DEVICE_ERROR, or
 * QKV_OUT_OF_MEMORY. */
qkv_status cuda_check(const cuda_api *api, CUresult result, const char *what);

#endif
