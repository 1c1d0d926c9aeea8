/* nvrtc_library.h: NVRTC, found and opened at run time.
 *
 * Looked for once per process, in this order: $QKV_NVRTC (then nowhere else), a copy already loaded, the loader's own
 * paths, $CUDA_HOME and $CUDA_PATH, /usr/local/cuda*, the usual places of Python wheels. Never closed: other code of
 * the process may share it. */
#ifndef RUNTIME_NVRTC_LIBRARY_H
#define RUNTIME_NVRTC_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "qkv.h"

typedef int nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;

enum {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_INVALID_OPTION = 5,
  NVRTC_ERROR_COMPILATION = 6,
  NVRTC_ERROR_BUILTIN = 7
};

/* X(name, symbol, parameters) */
#define NVRTC_FUNCTIONS(X)                                                                                             \
  X(version, nvrtcVersion, (int *major, int *minor))                                                                   \
  X(arch_count, nvrtcGetNumSupportedArchs, (int *count))                                                               \
  X(archs, nvrtcGetSupportedArchs, (int *archs))                                                                       \
  X(create, nvrtcCreateProgram,                                                                                        \
    (nvrtcProgram * program, const char *source, const char *name, int headers, const char *const *texts,              \
     const char *const *names))                                                                                        \
  X(destroy, nvrtcDestroyProgram, (nvrtcProgram * program))                                                            \
  X(compile, nvrtcCompileProgram, (nvrtcProgram program, int count, const char *const *options))                       \
  X(cubin_size, nvrtcGetCUBINSize, (nvrtcProgram program, size_t * size))                                              \
  X(cubin, nvrtcGetCUBIN, (nvrtcProgram program, char *cubin))                                                         \
  X(log_size, nvrtcGetProgramLogSize, (nvrtcProgram program, size_t * size))                                           \
  X(log, nvrtcGetProgramLog, (nvrtcProgram program, char *log))

typedef struct nvrtc_library {
#define X(name, symbol, parameters) nvrtcResult(*name) parameters;
  NVRTC_FUNCTIONS(X)
#undef X
  const char *(*error_string)(nvrtcResult result);
  int major, minor;
  char path[4096];
  uint64_t stamp; /* of the library file: tells builds of one version apart */
} nvrtc_library;

/* QKV_NO_COMPILER, with every place tried, when there is none. Thread safe. */
qkv_status nvrtc_get(const nvrtc_library **out);

#endif
