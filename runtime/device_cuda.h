/* device_cuda.h: what the files of the CUDA device share: the device, and the context that a call runs in. */
#ifndef RUNTIME_DEVICE_CUDA_H
#define RUNTIME_DEVICE_CUDA_H

#include "cuda_api.h"
#include "device.h"

typedef struct cuda_device {
  device_base base;
  const cuda_api *api;
  int ordinal;
  CUdevice handle;
  CUcontext primary; /* retained as long as the device is open */
} cuda_device;

static inline cuda_device *as_cuda(device *d) {
  return (cuda_device *)(void *)d;
}

/* What a call does in a context. Loading, allocating and freeing are forbidden while any thread of the process captures
 * a stream, and would spoil that capture, unless the calling thread has declared them harmless: ours touch no stream.
 */
typedef enum purpose { WORKING, PREPARING } purpose;

/* Kept from cuda_enter to cuda_leave. */
typedef struct visit {
  int pushed;       /* a context has to be popped */
  CUcontext context; /* the one that is current then */
  int capture_mode; /* of the calling thread, to be given back; -1: untouched */
} visit;

/* Makes a context of the device current. Every success needs a cuda_leave(). */
qkv_status cuda_enter(const cuda_device *d, purpose p, visit *v);
void cuda_leave(const cuda_device *d, visit *v);

/* Runs one driver call between cuda_enter and cuda_leave; its result, checked, is in `status`. */
#define IN_CONTEXT(d, purpose, status, what, call)                                                                     \
  do {                                                                                                                 \
    visit visit_;                                                                                                      \
    (status) = cuda_enter(d, purpose, &visit_);                                                                        \
    if ((status) == QKV_OK) {                                                                                          \
      (status) = cuda_check((d)->api, (d)->api->call, what);                                                           \
      cuda_leave(d, &visit_);                                                                                          \
    }                                                                                                                  \
  } while (0)

/* Entries of the table that device_cuda_time.c has. */
qkv_status cuda_event_create(device *base, device_event **out);
void cuda_event_free(device *base, device_event *e);
qkv_status cuda_event_record(device *base, device_event *e, qkv_stream stream);
qkv_status cuda_event_seconds(device *base, device_event *from, device_event *to, double *seconds);
qkv_status cuda_graph_record(device *base, device_work work, void *user, device_graph **out);
void cuda_graph_free(device *base, device_graph *g);
qkv_status cuda_graph_replay(device *base, device_graph *g, qkv_stream stream);

#endif
