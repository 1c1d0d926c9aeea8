/* device_cuda_time.c: what timing needs of the CUDA device: events, and work recorded as a graph. */
#include <stdlib.h>

#include "device_cuda.h"

struct device_event {
  CUevent handle;
};

struct device_graph {
  CUgraphExec handle;
};

qkv_status cuda_event_create(device *base, device_event **out) {
  const cuda_device *d = as_cuda(base);
  *out = NULL;
  device_event *e = calloc(1, sizeof *e);
  if (!e)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuEventCreate", event_create(&e->handle, 0));
  if (status != QKV_OK) {
    free(e);
    return status;
  }
  return *out = e, QKV_OK;
}

void cuda_event_free(device *base, device_event *e) {
  const cuda_device *d = as_cuda(base);
  visit v;
  if (!e)
    return;
  if (cuda_enter(d, WORKING, &v) == QKV_OK) {
    d->api->event_destroy(e->handle);
    cuda_leave(d, &v);
  }
  free(e);
}

qkv_status cuda_event_record(device *base, device_event *e, qkv_stream stream) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuEventRecord", event_record(e->handle, (CUstream)stream));
  return status;
}

qkv_status cuda_event_seconds(device *base, device_event *from, device_event *to, double *seconds) {
  const cuda_device *d = as_cuda(base);
  float milliseconds = 0;
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuEventSynchronize", event_synchronize(to->handle));
  if (status == QKV_OK)
    IN_CONTEXT(d, WORKING, status, "cuEventElapsedTime", event_elapsed(&milliseconds, from->handle, to->handle));
  *seconds = (double)milliseconds * 1e-3;
  return status;
}

/* Runs the work on a stream that is captured. An error of the work comes before one of the capture it spoiled. */
static qkv_status capture(const cuda_device *d, CUstream stream, device_work work, void *user, CUgraph *graph) {
  const cuda_api *api = d->api;
  qkv_status status =
      cuda_check(api, api->stream_begin_capture(stream, CUDA_CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
  if (status != QKV_OK)
    return status;
  status = work(user, (qkv_stream)stream);
  const CUresult ended = api->stream_end_capture(stream, graph);
  return status == QKV_OK ? cuda_check(api, ended, "cuStreamEndCapture") : status;
}

static qkv_status record(const cuda_device *d, device_work work, void *user, CUgraphExec *out) {
  const cuda_api *api = d->api;
  CUstream stream = NULL;
  CUgraph graph = NULL;
  qkv_status status = cuda_check(api, api->stream_create(&stream, CUDA_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (status != QKV_OK)
    return status;
  status = capture(d, stream, work, user, &graph);
  if (status == QKV_OK)
    status = cuda_check(api, api->graph_instantiate(out, graph, 0), "cuGraphInstantiateWithFlags");
  if (graph)
    api->graph_destroy(graph);
  api->stream_destroy(stream);
  return status;
}

qkv_status cuda_graph_record(device *base, device_work work, void *user, device_graph **out) {
  const cuda_device *d = as_cuda(base);
  visit v;
  *out = NULL;
  device_graph *g = calloc(1, sizeof *g);
  if (!g)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  qkv_status status = cuda_enter(d, WORKING, &v);
  if (status == QKV_OK) {
    status = record(d, work, user, &g->handle);
    cuda_leave(d, &v);
  }
  if (status != QKV_OK) {
    free(g);
    return status;
  }
  return *out = g, QKV_OK;
}

void cuda_graph_free(device *base, device_graph *g) {
  const cuda_device *d = as_cuda(base);
  visit v;
  if (!g)
    return;
  if (cuda_enter(d, WORKING, &v) == QKV_OK) {
    d->api->graph_exec_destroy(g->handle);
    cuda_leave(d, &v);
  }
  free(g);
}

qkv_status cuda_graph_replay(device *base, device_graph *g, qkv_stream stream) {
  const cuda_device *d = as_cuda(base);
  qkv_status status;
  IN_CONTEXT(d, WORKING, status, "cuGraphLaunch", graph_launch(g->handle, (CUstream)stream));
  return status;
}
