/* qkv_measure.c: how long calls take: one by one, and in turns with others.
 *
 * A sample of qkv_measure is a graph of several calls, so that what a launch costs the host is in none of them; the
 * calls of a sample take the sets of arguments in turn. Of these the first plans, where there is something to plan, and
 * the others reuse that, as the layers of a model do. When the caches are to be cold and the sets together are no larger
 * than they, a sample is a single call after one that plans and a write of twice the L2 cache, which are not timed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_internal.h"

/* ---- One by one ---- */

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static qkv_status time_calls(const qkv_op *op, const qkv_attention_args *args, qkv_stream stream, int repeats,
                             double *seconds, device_event *from, device_event *to) {
  const qkv_engine *e = op->engine;
  int warm_up = e->ops == &device_emu ? 0 : 3;
  for (int n = -warm_up; n < repeats; n++) {
    qkv_status status = e->ops->event_record(e->device, from, stream);
    if (status == QKV_OK)
      status = qkv_attention(op, args, stream);
    if (status == QKV_OK)
      status = e->ops->event_record(e->device, to, stream);
    double took = 0;
    if (status == QKV_OK)
      status = e->ops->event_seconds(e->device, from, to, &took);
    if (status != QKV_OK)
      return status;
    if (n >= 0)
      seconds[n] = took;
  }
  qsort(seconds, (size_t)repeats, sizeof *seconds, by_value);
  return QKV_OK;
}

qkv_status qkv_time(const qkv_op *op, const qkv_attention_args *args, qkv_stream stream, int repeats, double *median,
                    double *fastest, double *slowest) {
  if (!op || !args || repeats < 1)
    return error_set(QKV_INVALID_ARGUMENT, "%s",
                     !op     ? "op is NULL"
                     : !args ? "args is NULL"
                             : "repeats is less than 1");
  const qkv_engine *e = op->engine;
  if (e->ops->capturing(e->device, stream))
    return error_set(QKV_CAPTURING, "timing waits for the stream, which a capture forbids");
  device_event *from = NULL, *to = NULL;
  double *seconds = calloc((size_t)repeats, sizeof *seconds);
  qkv_status status = seconds ? e->ops->event_create(e->device, &from) : error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (status == QKV_OK)
    status = e->ops->event_create(e->device, &to);
  if (status == QKV_OK)
    status = time_calls(op, args, stream, repeats, seconds, from, to);
  if (status == QKV_OK) {
    if (median)
      *median = repeats % 2 ? seconds[repeats / 2] : (seconds[repeats / 2 - 1] + seconds[repeats / 2]) / 2;
    if (fastest)
      *fastest = seconds[0];
    if (slowest)
      *slowest = seconds[repeats - 1];
  }
  if (from)
    e->ops->event_free(e->device, from);
  if (to)
    e->ops->event_free(e->device, to);
  free(seconds);
  return status;
}

/* ---- In turns ---- */

enum { MOST_CALLS = 512, DEFAULT_SAMPLES = 10 };
#define DEFAULT_SAMPLE_SECONDS 1e-3
#define DEFAULT_WARM_UP_SECONDS 0.1
#define STEADY 0.01 /* relative difference of neighbouring samples that ends the warm-up */

/* One contestant while it is measured. */
typedef struct runner {
  qkv_contestant *who;
  device_graph *graph;
  bool flushes; /* before each call; there is no graph */
} runner;

/* What all contestants share. */
typedef struct meter {
  const qkv_engine *engine;
  qkv_measure_options options;
  qkv_stream stream;
  device_event *from, *to;
  void *flush; /* twice the L2 cache; NULL: nobody needs it */
  size_t flush_bytes;
  double started;
} meter;

static double extent_bytes(const qkv_tensor *t) {
  double bytes = t->data ? dtype_size(t->dtype) : 0;
  for (int d = 0; d < t->rank; d++)
    bytes *= (double)t->shape[d];
  return bytes;
}

/* Bytes that the calls of a rotation may touch. */
static double footprint(const qkv_contestant *c) {
  double bytes = 0;
  for (int n = 0; n < c->nargs; n++) {
    const qkv_attention_args *a = &c->args[n];
    bytes += extent_bytes(&a->q) + extent_bytes(&a->k) + extent_bytes(&a->v) + extent_bytes(&a->o);
  }
  return bytes;
}

/* Whether a call finds what one with other arguments has planned: as the layers of a model do. */
static bool shares_plan(const qkv_attention_args *a, const qkv_attention_args *b) {
  return a->workspace == b->workspace && a->params == b->params && a->max_len_q == b->max_len_q &&
         a->max_len_k == b->max_len_k && !memcmp(a->q.shape, b->q.shape, sizeof a->q.shape) &&
         !memcmp(a->k.shape, b->k.shape, sizeof a->k.shape);
}

/* Calls from number `first` on; the one with number 0 plans. */
static qkv_status run_from(const qkv_contestant *c, int first, int count, qkv_stream stream) {
  qkv_status status = QKV_OK;
  for (int n = first; n < first + count && status == QKV_OK; n++) {
    qkv_attention_args args = c->args[n % c->nargs];
    args.reuse_plan |= n > 0 && shares_plan(&args, c->args);
    status = qkv_attention(c->op, &args, stream);
  }
  return status;
}

static qkv_status run_calls(void *user, qkv_stream stream) {
  const qkv_contestant *c = user;
  return run_from(c, 0, c->calls, stream);
}

/* Seconds on the device from one event to the other around `work` or, without, a replay of the graph. */
static qkv_status timed(const meter *m, runner *r, bool directly, double *seconds) {
  const device_ops *ops = m->engine->ops;
  device *d = m->engine->device;
  qkv_status status = ops->event_record(d, m->from, m->stream);
  if (status == QKV_OK)
    status =
        directly ? run_from(r->who, r->flushes, r->who->calls, m->stream) : ops->graph_replay(d, r->graph, m->stream);
  if (status == QKV_OK)
    status = ops->event_record(d, m->to, m->stream);
  return status == QKV_OK ? ops->event_seconds(d, m->from, m->to, seconds) : status;
}

/* One sample: seconds of a call. */
static qkv_status sample(const meter *m, runner *r, double *seconds) {
  qkv_status status = QKV_OK;
  if (r->flushes)
    status = run_from(r->who, 0, 1, m->stream);
  if (r->flushes && status == QKV_OK)
    status = m->engine->ops->set_zero(m->engine->device, m->flush, m->flush_bytes, m->stream);
  if (status == QKV_OK)
    status = timed(m, r, r->flushes, seconds);
  *seconds /= r->who->calls;
  return status;
}

/* As many calls as fill a sample, whole rotations. The first calls also bring errors to light outside of a graph. */
static qkv_status choose_calls(const meter *m, runner *r) {
  qkv_contestant *c = r->who;
  const bool emulated = m->engine->ops == &device_emu;
  double seconds = 0;
  c->calls = 1;
  if (r->flushes || m->options.calls > 0) {
    c->calls = r->flushes ? 1 : m->options.calls;
    return QKV_OK;
  }
  for (int n = 0; n < (emulated ? 1 : 3); n++) {
    qkv_status status = timed(m, r, true, &seconds);
    if (status != QKV_OK)
      return status;
  }
  const double wanted = m->options.sample_seconds / (seconds > 1e-7 ? seconds : 1e-7);
  int calls = emulated ? 1 : wanted > MOST_CALLS ? MOST_CALLS : (int)wanted + 1;
  if (!emulated)
    calls = (calls + c->nargs - 1) / c->nargs * c->nargs;
  c->calls = calls;
  return QKV_OK;
}

static qkv_status start_runner(meter *m, runner *r) {
  const int64_t l2 = m->engine->info.l2_bytes;
  r->flushes = m->options.cold_l2 && footprint(r->who) < 2.0 * (double)l2;
  if (r->flushes && !m->flush) {
    m->flush_bytes = (size_t)(2 * l2);
    qkv_status status = m->engine->ops->alloc(m->engine->device, m->flush_bytes, &m->flush);
    if (status != QKV_OK)
      return error_context(status, "%zu bytes to flush the L2 cache with: ", m->flush_bytes);
  }
  qkv_status status = choose_calls(m, r);
  if (status != QKV_OK || r->flushes)
    return status;
  return m->engine->ops->graph_record(m->engine->device, run_calls, r->who, &r->graph);
}

static bool time_is_up(const meter *m) {
  return m->options.time_limit > 0 && seconds_now() - m->started > m->options.time_limit;
}

/* Until a contestant's samples no longer change, as they do while clocks rise; not too soon, for they may rise slowly. */
static qkv_status warm_up(const meter *m, runner *r) {
  if (m->engine->ops == &device_emu)
    return QKV_OK;
  const double start = seconds_now();
  double before = 0, last = 0, earlier = 0;
  for (int n = 0; n < 3 || seconds_now() - start < m->options.warm_up_seconds; n++) {
    earlier = before, before = last;
    qkv_status status = sample(m, r, &last);
    if (status != QKV_OK)
      return status;
    if (n >= 2 && seconds_now() - start > m->options.warm_up_seconds / 5 && fabs(last - before) < STEADY * last &&
        fabs(last - earlier) < STEADY * last)
      break;
  }
  return QKV_OK;
}

/* Round after round, each in the opposite order of the one before, so that what drifts hits all of them alike. */
static qkv_status take_turns(const meter *m, runner *runners, int count) {
  qkv_status status = QKV_OK;
  for (int n = 0; n < count && status == QKV_OK && (n == 0 || !time_is_up(m)); n++)
    status = warm_up(m, &runners[n]);
  for (int s = 0; s < m->options.samples && status == QKV_OK && (s == 0 || !time_is_up(m)); s++)
    for (int n = 0; n < count && status == QKV_OK; n++) {
      runner *r = &runners[s % 2 ? count - 1 - n : n];
      status = sample(m, r, &r->who->seconds[s]);
      r->who->samples = s + 1;
    }
  return status;
}

static qkv_status check_contestants(const qkv_contestant *c, int count) {
  for (int n = 0; n < count; n++)
    if (!c[n].op || !c[n].args || c[n].nargs < 1 || !c[n].seconds)
      return error_set(QKV_INVALID_ARGUMENT, "contestant %d has no %s", n,
                       !c[n].op        ? "op"
                       : !c[n].seconds ? "seconds"
                                       : "args");
    else if (c[n].op->engine != c[0].op->engine)
      return error_set(QKV_INVALID_ARGUMENT, "contestant %d is an op of another engine", n);
  return QKV_OK;
}

static qkv_measure_options with_defaults(const qkv_measure_options *given) {
  qkv_measure_options o = QKV_MEASURE_OPTIONS_INIT;
  if (given)
    memcpy(&o, given, given->size < sizeof o ? given->size : sizeof o);
  o.samples = o.samples > 0 ? o.samples : DEFAULT_SAMPLES;
  o.sample_seconds = o.sample_seconds > 0 ? o.sample_seconds : DEFAULT_SAMPLE_SECONDS;
  o.warm_up_seconds = o.warm_up_seconds > 0 ? o.warm_up_seconds : DEFAULT_WARM_UP_SECONDS;
  return o;
}

static qkv_status measure_all(meter *m, runner *runners, int count) {
  const device_ops *ops = m->engine->ops;
  device *d = m->engine->device;
  qkv_status status = ops->event_create(d, &m->from);
  if (status == QKV_OK)
    status = ops->event_create(d, &m->to);
  for (int n = 0; n < count && status == QKV_OK; n++) {
    status = start_runner(m, &runners[n]);
    if (status != QKV_OK && count > 1)
      error_context(status, "contestant %d: ", n);
  }
  if (status == QKV_OK)
    status = take_turns(m, runners, count);
  for (int n = 0; n < count; n++)
    if (runners[n].graph)
      ops->graph_free(d, runners[n].graph);
  if (m->flush)
    ops->free(d, m->flush);
  if (m->from)
    ops->event_free(d, m->from);
  if (m->to)
    ops->event_free(d, m->to);
  return status;
}

qkv_status qkv_measure(qkv_contestant *contestants, int count, qkv_stream stream, const qkv_measure_options *options) {
  if (!contestants || count < 1)
    return error_set(QKV_INVALID_ARGUMENT, "%s", contestants ? "count is less than 1" : "contestants is NULL");
  qkv_status status = check_contestants(contestants, count);
  if (status != QKV_OK)
    return status;
  meter m = {
      .engine = contestants[0].op->engine, .options = with_defaults(options), .stream = stream, .started = seconds_now()};
  if (m.engine->ops->capturing(m.engine->device, stream))
    return error_set(QKV_CAPTURING, "timing waits for the stream, which a capture forbids");
  runner *runners = calloc((size_t)count, sizeof *runners);
  if (!runners)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  for (int n = 0; n < count; n++) {
    runners[n].who = &contestants[n];
    contestants[n].samples = 0;
  }
  status = measure_all(&m, runners, count);
  free(runners);
  return status;
}
