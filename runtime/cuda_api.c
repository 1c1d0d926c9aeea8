/* cuda_api.c: opens the CUDA driver library once and reports its errors by name. */
#include "cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cuda_api functions;
static qkv_status opened;
static char reason[512];

static void fail(const char *format, const char *detail) {
  opened = QKV_NO_DEVICE;
  snprintf(reason, sizeof reason, format, detail);
}

static const char *error_name(CUresult result) {
  const char *name = NULL;
  if (functions.error_name(result, &name) != CUDA_SUCCESS || !name)
    return "unknown CUDA error";
  return name;
}

static void open_driver(void) {
  const char *file = "libcuda.so.1";
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    fail("no CUDA driver (%s); install the NVIDIA driver, or use device \"emu\"", why ? why : file);
    return;
  }
#define X(name, symbol, parameters)                                                                                    \
  {                                                                                                                    \
    void *address = dlsym(library, #symbol);                                                                           \
    if (!address) {                                                                                                    \
      fail("the CUDA driver lacks %s; qkvc needs driver 525 (CUDA 12.0) or newer", #symbol);                           \
      return;                                                                                                          \
    }                                                                                                                  \
    memcpy(&functions.name, &address, sizeof address);                                                                 \
  }
  CUDA_FUNCTIONS(X)
#undef X
  CUresult result = functions.init(0);
  if (result != CUDA_SUCCESS) {
    fail("cuInit: %s; is a GPU visible (nvidia-smi, CUDA_VISIBLE_DEVICES)?", error_name(result));
    return;
  }
  int version = 0;
  functions.driver_version(&version);
  if (version < CUDA_MINIMUM_DRIVER) {
    char number[32];
    snprintf(number, sizeof number, "%d.%d", version / 1000, version % 1000 / 10);
    fail("the CUDA driver is for CUDA %s; qkvc needs driver 525 (CUDA 12.0) or newer", number);
  }
}

qkv_status cuda_get(const cuda_api **out) {
  pthread_once(&once, open_driver);
  *out = opened == QKV_OK ? &functions : NULL;
  return opened == QKV_OK ? QKV_OK : error_set(opened, "%s", reason);
}

qkv_status cuda_check(const cuda_api *api, CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return QKV_OK;
  const char *text = NULL;
  if (api->error_string(result, &text) != CUDA_SUCCESS || !text)
    text = "no description";
  const bool capture = result >= CUDA_ERROR_CAPTURE_FIRST && result <= CUDA_ERROR_CAPTURE_LAST;
  qkv_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? QKV_OUT_OF_MEMORY : capture ? QKV_CAPTURING : QKV_DEVICE_ERROR;
  return error_set(status, "%s: %s: %s", what, error_name(result), text);
}
