/* qkv_prepare.c: many ops at once: what an engine does at its start.
 *
 * Workers take specs in the order given; each is a qkv_prepare, whose further kernels are built beside the first. So a
 * few times as many kernels are under way as there are workers, which keeps every core busy up to the last spec, while
 * the engine's gate (qkv_build.c) lets only as many compilers run as was asked for: each takes some hundred MB. */
#include <stdlib.h>
#include <string.h>

#include "qkv_internal.h"

enum { MOST_THREADS = 256, MOST_MESSAGES = 20 };

typedef struct batch {
  qkv_engine *engine;
  int count;
  qkv_spec *const *specs;
  const qkv_limits *const *limits; /* NULL: none */
  qkv_op **ops;
  qkv_status *statuses;
  char **messages; /* of failures */
  qkv_prepare_many_options options;
  pthread_mutex_t lock; /* guards what follows; held during the caller's callback, so that calls come one by one */
  int next, done;
} batch;

/* The slowest way that one of the op's kernels came by. */
static const char *origin_name(const qkv_op *op) {
  static const char *const names[] = {[ORIGIN_PACK] = "pack", [ORIGIN_CACHE] = "cache", [ORIGIN_COMPILER] = "compiled"};
  const op_kernel *kernels[ROLES] = {op->primary, op->other, op->few};
  kernel_origin slowest = ORIGIN_PACK;
  for (int n = 0; n < ROLES; n++)
    if (kernels[n] && kernels[n]->origin > slowest)
      slowest = kernels[n]->origin;
  return names[slowest];
}

static void prepare_one(batch *b, int n) {
  const double start = seconds_now();
  const qkv_status status = qkv_prepare(b->engine, b->specs[n], b->limits ? b->limits[n] : NULL, &b->ops[n]);
  const double seconds = seconds_now() - start;
  b->statuses[n] = status;
  if (status != QKV_OK)
    b->messages[n] = strdup(error_message());
  pthread_mutex_lock(&b->lock);
  b->done++;
  if (b->options.progress)
    b->options.progress(b->done, b->count, b->specs[n] ? b->specs[n]->parsed->name : "",
                        status == QKV_OK ? origin_name(b->ops[n]) : "failed", seconds, b->options.user);
  pthread_mutex_unlock(&b->lock);
}

static void *work(void *user) {
  batch *b = user;
  for (;;) {
    pthread_mutex_lock(&b->lock);
    const int n = b->next < b->count ? b->next++ : -1;
    pthread_mutex_unlock(&b->lock);
    if (n < 0)
      return NULL;
    prepare_one(b, n);
  }
}

/* This thread works, too, so that it goes on when no other can be started. */
static void run(batch *b, int threads) {
  pthread_t others[MOST_THREADS];
  int started = 0;
  while (started + 1 < threads && pthread_create(&others[started], NULL, work, b) == 0)
    started++;
  work(b);
  for (int n = 0; n < started; n++)
    pthread_join(others[n], NULL);
}

/* Of calls that overlap the largest limit holds until the last has ended. */
static void limit_compilers(qkv_engine *e, int limit) {
  pthread_mutex_lock(&e->jobs_lock);
  if (e->limiters++ == 0 || limit > e->compile_limit)
    e->compile_limit = limit;
  pthread_cond_broadcast(&e->compiler_free);
  pthread_mutex_unlock(&e->jobs_lock);
}

static void unlimit_compilers(qkv_engine *e) {
  pthread_mutex_lock(&e->jobs_lock);
  if (--e->limiters == 0)
    e->compile_limit = cores();
  pthread_cond_broadcast(&e->compiler_free);
  pthread_mutex_unlock(&e->jobs_lock);
}

/* The first failure's status, with the messages of all. */
static qkv_status judge(const batch *b) {
  text list = {0};
  int failed = 0;
  qkv_status first = QKV_OK;
  for (int n = 0; n < b->count; n++) {
    if (b->statuses[n] == QKV_OK)
      continue;
    first = first == QKV_OK ? b->statuses[n] : first;
    if (failed++ < MOST_MESSAGES)
      text_printf(&list, "\n%s: %s", b->specs[n] ? b->specs[n]->parsed->name : "(NULL)",
                  b->messages[n] ? b->messages[n] : qkv_status_name(b->statuses[n]));
  }
  if (failed)
    error_set(first, "%d of %d specs could not be prepared:%s%s", failed, b->count, list.bytes ? list.bytes : "",
              failed > MOST_MESSAGES ? "\n..." : "");
  text_free(&list);
  return first;
}

qkv_status qkv_prepare_many(qkv_engine *e, int count, qkv_spec *const specs[], const qkv_limits *const limits[],
                            qkv_op *ops[], qkv_status statuses[], const qkv_prepare_many_options *options) {
  batch b = {.engine = e,
             .count = count,
             .specs = specs,
             .limits = limits,
             .ops = ops,
             .options = QKV_PREPARE_MANY_OPTIONS_INIT};
  if (!e || (count > 0 && (!specs || !ops)))
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !e ? "engine" : !specs ? "specs" : "ops");
  qkv_status status = struct_take(&b.options, sizeof b.options, options, "options");
  if (status == QKV_OK && (count < 0 || b.options.threads < 0))
    status = error_set(QKV_INVALID_ARGUMENT, "%s is %d", count < 0 ? "count" : "options.threads",
                       count < 0 ? count : b.options.threads);
  for (int n = 0; n < count; n++)
    ops[n] = NULL;
  b.statuses = calloc((size_t)(count > 0 ? count : 1), sizeof *b.statuses);
  b.messages = calloc((size_t)(count > 0 ? count : 1), sizeof *b.messages);
  if (status == QKV_OK && (!b.statuses || !b.messages))
    status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (status == QKV_OK) {
    const int wanted = b.options.threads ? b.options.threads : cores(), most = wanted < count ? wanted : count;
    pthread_mutex_init(&b.lock, NULL);
    limit_compilers(e, wanted);
    run(&b, most < MOST_THREADS ? most : MOST_THREADS);
    unlimit_compilers(e);
    pthread_mutex_destroy(&b.lock);
    status = judge(&b);
    if (statuses)
      memcpy(statuses, b.statuses, (size_t)count * sizeof *statuses);
  }
  for (int n = 0; b.messages && n < count; n++)
    free(b.messages[n]);
  free(b.messages);
  free(b.statuses);
  return status;
}
