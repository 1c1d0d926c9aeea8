/* qkv_op.c: all slow work before the first call: render, build, load, resolve. Afterwards an op never changes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_tuned_internal.h"

/* ---- Loading ---- */

static void op_kernel_free(const qkv_engine *e, op_kernel *k) {
  if (!k)
    return;
  if (k->module)
    e->ops->unload(e->device, k->module);
  free(k);
}

static void drop_kernels(qkv_op *op) {
  if (op->other != op->primary)
    op_kernel_free(op->engine, op->other);
  op_kernel_free(op->engine, op->primary);
  op_kernel_free(op->engine, op->few);
  op->primary = op->other = op->few = NULL;
}

static qkv_status load_image(qkv_engine *e, const void *image, size_t size, op_kernel *k) {
  const manifest *m = &k->manifest;
  const double start = seconds_now();
  qkv_status status = e->ops->load(e->device, image, size, m->family, &k->module);
  if (status != QKV_OK)
    error_context(status, "kernel of %s: ", *e->info.compiler ? e->info.compiler : "a compiler that is not here");
  for (int n = 0; n < m->nlaunches && status == QKV_OK; n++)
    status = e->ops->kernel(e->device, k->module, m->launches[n].entry, m->launches[n].block,
                            m->launches[n].shared_bytes, m->launches[n].cluster, &k->kernels[n]);
  if (status != QKV_OK && k->module) {
    e->ops->unload(e->device, k->module);
    k->module = NULL;
  }
  e->load_nanoseconds += (unsigned long long)((seconds_now() - start) * 1e9);
  return status;
}

/* Whether the device refused an image that may have come damaged or from another compiler, and the kernel may be had
 * elsewhere: *from says where. Want of memory or of a place for a cluster says nothing of the image. Nor does a device
 * that refuses everything after a fault, which is why no entry of the cache is removed: what is built anew replaces it. */
static bool look_elsewhere(qkv_engine *e, const build_job *job, qkv_status status, build_from *from) {
  if (status != QKV_DEVICE_ERROR || !job->from_cache || (e->disable_jit && !job->from_pack))
    return false;
  engine_log(e, QKV_LOG_WARNING, "kernel %s of %s was refused and is %s: %s", job->key,
             job->from_pack ? "a pack" : "the cache", job->from_pack ? "looked for elsewhere" : "built again",
             error_message());
  *from = job->from_pack ? BUILD_FROM_CACHE : BUILD_ANEW;
  return true;
}

/* Builds and loads. An image of a pack or the cache that the device refuses is had from the next place, once each. */
static qkv_status load_kernel(qkv_engine *e, const spec *s, const gen_kernel *rendered, op_kernel **out) {
  op_kernel *k = calloc(1, sizeof *k);
  *out = NULL;
  if (!k)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  k->manifest = rendered->manifest;
  qkv_status status = bind_fields(s, k);
  build_from from = BUILD_FROM_PACKS;
  for (bool again = status == QKV_OK; again;) {
    build_job *job;
    status = build_kernel(e, e->compiler, rendered, from, &job);
    again = false;
    if (status == QKV_OK) {
      status = load_image(e, job->image.bytes, job->image.size, k);
      again = look_elsewhere(e, job, status, &from);
    }
    if (status == QKV_OK) {
      k->origin = job->from_pack ? ORIGIN_PACK : job->from_cache ? ORIGIN_CACHE : ORIGIN_COMPILER;
      log_warn(e, job->image.log, s->name, &k->manifest);
    }
    build_release(e, job);
  }
  if (status != QKV_OK) {
    op_kernel_free(e, k);
    return status;
  }
  *out = k;
  return QKV_OK;
}

/* A further kernel, built beside the first. */
typedef struct side_build {
  qkv_op *op;
  gen_request request;
  const gen_kernel *primary;
  gen_kernel *rendered; /* by who starts it, or by itself: the kernel for tensors that the primary one cannot take */
  op_kernel *kernel;
  qkv_status status;
  char *message; /* errors belong to threads; this carries one over */
  bool wanted, threaded;
  pthread_t thread;
} side_build;

static void *build_aside(void *pointer) {
  side_build *b = pointer;
  qkv_engine *e = b->op->engine;
  const spec *s = b->op->spec->parsed;
  if (!b->rendered)
    b->status = dispatch_render_unaligned(e, s, &b->request, b->primary, &b->rendered);
  if (b->status == QKV_OK)
    b->status = load_kernel(e, s, b->rendered, &b->kernel);
  if (b->status != QKV_OK)
    b->message = strdup(error_message());
  return NULL;
}

static void start_aside(side_build *b) {
  b->threaded = b->wanted && pthread_create(&b->thread, NULL, build_aside, b) == 0;
}

/* Waits for it, or does it now when no thread could be started and all is well so far, or when all that is missing is
 * to be named. */
static void finish_aside(side_build *b, qkv_status status) {
  if (b->threaded)
    pthread_join(b->thread, NULL);
  else if (b->wanted && (status == QKV_OK || status == QKV_NOT_PREPARED))
    build_aside(b);
}

/* The status after a kernel that is built aside; `what` and how to do without it go into the message of a failure. */
static qkv_status judge_aside(const side_build *b, qkv_status status, const char *what) {
  return status != QKV_OK || b->status == QKV_OK
             ? status
             : error_set(b->status, "%s: %s", what, b->message ? b->message : "failed");
}

/* The maxima of a request as qkvc bundle takes them: tables of schedules go by all three. */
static void put_limits(const gen_request *r, text *out) {
  const struct {
    const char *name;
    int64_t value;
  } rows[] = {{"batch", r->batch}, {"len_q", r->len_q}, {"len_k", r->len_k}};
  const char *before = " --limits ";
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
    if (rows[n].value) {
      text_printf(out, "%s%s=%lld", before, rows[n].name, (long long)rows[n].value);
      before = ",";
    }
}

/* The error of an op whose kernels may not be compiled: each that is missing, and how to make them. rendered and
 * missing by role. */
static qkv_status name_missing(const qkv_op *op, const gen_request *r, const gen_kernel *const rendered[ROLES],
                               const bool missing[ROLES]) {
  const qkv_engine *e = op->engine;
  const spec *s = op->spec->parsed;
  text list = {0}, packs = {0}, options = {0};
  packs_describe(e, &packs);
  for (int which = 0; which < ROLES; which++)
    if (missing[which] && rendered[which])
      text_printf(&list, "\n  %s: %s for %s, phase %s, schedule %s", role_name(which), rendered[which]->manifest.family,
                  rendered[which]->manifest.arch, which == ROLE_FEW ? "decode" : gen_phase(r),
                  *rendered[which]->manifest.schedule ? rendered[which]->manifest.schedule : "of no axes");
  text_printf(&options, "%s--arch %s", e->compiler->contract ? "--device emu " : "", r->arch->name);
  if (r->phase)
    text_printf(&options, " --phase %s", r->phase);
  if (r->family)
    text_printf(&options, " --family %s", r->family);
  if (r->schedule)
    text_printf(&options, " --schedule %s", r->schedule);
  put_limits(r, &options);
  qkv_status status = error_set(
      QKV_NOT_PREPARED,
      "spec %s: kernels are in no pack (there is %s) and not in the cache (%s), and compiling is disabled "
      "(QKV_DISABLE_JIT):%s\nWhere there is a compiler, make a pack of them: qkvc bundle %s.yaml %s -o %s.qkvpack",
      s->name, packs.bytes ? packs.bytes : "?", *cache_path(e->cache) ? cache_path(e->cache) : "memory only",
      list.bytes ? list.bytes : "", s->name, options.bytes ? options.bytes : "", s->name);
  text_free(&list);
  text_free(&packs);
  text_free(&options);
  return status;
}

/* Renders the primary kernel, then builds and loads it; when that needs aligned tensors and others are allowed, the one
 * for all tensors; and the one for few queries where such calls are to be expected. They are built at the same time.
 * *by_table: goes in as whether tables of measured schedules are asked, and out as whether one of them decided. */
static qkv_status make_kernels_by(qkv_op *op, const gen_request *request, int aligned_only, bool *by_table) {
  qkv_engine *e = op->engine;
  const spec *s = op->spec->parsed;
  char reason[DISPATCH_REASON];
  gen_kernel *rendered;
  tuned_choice choice = {0}, few_choice = {0};
  qkv_status status = tuned_render(e, s, request, *by_table, &rendered, &choice);
  if (status != QKV_OK)
    return status;
  const bool aligned16 = rendered->manifest.aligned16;
  side_build other = {.op = op, .request = *request, .primary = rendered, .wanted = aligned16 && !aligned_only},
             few = {.op = op};
  status = dispatch_render_decode(e, s, request, *by_table, &few.rendered, reason, &few_choice);
  *by_table = choice.entry || few_choice.entry;
  few.wanted = few.rendered != NULL;
  if (status == QKV_OK) {
    engine_log(e, QKV_LOG_DEBUG, "%s: %s kernel for few queries: %s", s->name, few.wanted ? "a" : "no", reason);
    start_aside(&other);
    start_aside(&few);
    status = load_kernel(e, s, rendered, &op->primary);
  }
  const qkv_status primary = status;
  finish_aside(&other, status);
  finish_aside(&few, status);
  status = judge_aside(&other, status, "the kernel for unaligned tensors (limits.aligned_only saves it)");
  status = judge_aside(&few, status, "the kernel for few queries (limits.phase = \"prefill\" saves it)");
  if (status == QKV_NOT_PREPARED)
    status = name_missing(op, request, (const gen_kernel *const[ROLES]){rendered, other.rendered, few.rendered},
                          (const bool[ROLES]){primary == QKV_NOT_PREPARED, other.status == QKV_NOT_PREPARED,
                                              few.status == QKV_NOT_PREPARED});
  op->other = aligned16 ? other.kernel : op->primary;
  op->few = few.kernel;
  gen_kernel_free(rendered);
  gen_kernel_free(other.rendered);
  gen_kernel_free(few.rendered);
  free(other.message);
  free(few.message);
  return status;
}

/* A table's schedule that the device has no place for, as one of another GPU or of a whole one, gives way to the
 * default. */
static qkv_status make_kernels(qkv_op *op, const gen_request *request, int aligned_only) {
  bool by_table = true;
  const qkv_status status = make_kernels_by(op, request, aligned_only, &by_table);
  if (status != QKV_BAD_SCHEDULE || !by_table)
    return status;
  engine_log(op->engine, QKV_LOG_WARNING, "%s: built-in default: the schedule of a table cannot be used here: %s",
             op->spec->parsed->name, error_message());
  drop_kernels(op);
  by_table = false;
  return make_kernels_by(op, request, aligned_only, &by_table);
}

/* ---- From a pack, without rendering ---- */

static qkv_status load_packed(qkv_engine *e, const spec *s, const pack_kernel *from, op_kernel **out) {
  *out = NULL;
  op_kernel *k = calloc(1, sizeof *k);
  if (!k)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  qkv_status status = QKV_OK;
  if (!manifest_read(from->manifest, from->manifest_size, &k->manifest))
    status = error_set(QKV_IO, "its manifest is not of this version");
  if (status == QKV_OK)
    status = bind_fields(s, k);
  if (status == QKV_OK && !e->compiler->plausible(from->image, from->image_size))
    status = error_set(QKV_IO, "its image is none of this machine");
  if (status == QKV_OK)
    status = load_image(e, from->image, from->image_size, k);
  if (status != QKV_OK) {
    op_kernel_free(e, k);
    return status;
  }
  k->origin = ORIGIN_PACK;
  e->pack_hits++;
  *out = k;
  return QKV_OK;
}

/* Whether a pack had all kernels of this request, and the device took them. */
static bool take_packed(qkv_op *op, const gen_request *request, int aligned_only) {
  qkv_engine *e = op->engine;
  const spec *s = op->spec->parsed;
  op_kernel **places[ROLES] = {&op->primary, &op->other, &op->few};
  packed_op found;
  if (!packs_find_op(e, s, request, &found))
    return false;
  if (aligned_only)
    found.roles &= ~(1u << ROLE_OTHER);
  qkv_status status = QKV_OK;
  for (int which = 0; which < ROLES && status == QKV_OK; which++)
    if (found.roles & 1u << which)
      status = load_packed(e, s, &found.kernels[which], places[which]);
  if (status != QKV_OK) {
    engine_log(e, QKV_LOG_WARNING, "pack %s: the kernels for %s are not used: %s", pack_name(found.pack), s->name,
               error_message());
    drop_kernels(op);
    return false;
  }
  if (!op->primary->manifest.aligned16)
    op->other = op->primary;
  if (!op->other && !aligned_only) { /* recorded with limits.aligned_only */
    drop_kernels(op);
    return false;
  }
  engine_log(e, QKV_LOG_DEBUG, "%s: all kernels from pack %s", s->name, pack_name(found.pack));
  return true;
}

static qkv_status load_kernels(qkv_op *op, const gen_request *request, int aligned_only) {
  return take_packed(op, request, aligned_only) ? QKV_OK : make_kernels(op, request, aligned_only);
}

/* ---- Workspace ---- */

/* Whether the size of the workspace follows from what a call brings along and no maximum is declared for. */
static int lacks_maxima(const manifest *m, const int64_t sizes[SIZE_COUNT]) {
  for (int n = 0; n < m->nregions; n++)
    for (int i = 0; i < m->regions[n].count.count; i++)
      if (sizes[m->regions[n].count.factors[i].size] == 0)
        return 1;
  return 0;
}

static qkv_status size_workspace(qkv_op *op) {
  const spec *s = op->spec->parsed;
  int64_t tokens_q;
  if (__builtin_mul_overflow(op->limits.batch, op->limits.len_q, &tokens_q))
    tokens_q = -1; /* no size */
  const int64_t sizes[SIZE_COUNT] = {[SIZE_ONE] = 1,
                                     [SIZE_BATCH] = op->limits.batch,
                                     [SIZE_LEN_Q] = op->limits.len_q,
                                     [SIZE_LEN_K] = op->limits.len_k,
                                     [SIZE_TOKENS_Q] = tokens_q,
                                     [SIZE_HEADS_Q] = s->heads_q,
                                     [SIZE_HEADS_KV] = s->heads_kv,
                                     [SIZE_DIM_QK] = s->dim_qk,
                                     [SIZE_DIM_V] = s->dim_v,
                                     [SIZE_SM_COUNT] = op->engine->info.sm_count};
  const op_kernel *kernels[] = {op->primary, op->other, op->few};
  for (int n = 0; n < 3; n++) {
    int64_t offsets[MANIFEST_MAX_REGIONS];
    if (!kernels[n] || kernels[n]->manifest.nregions == 0)
      continue;
    if (lacks_maxima(&kernels[n]->manifest, sizes))
      return error_set(
          QKV_INVALID_ARGUMENT,
          "family %s needs workspace, whose size follows from declared maxima: set batch, len_q and len_k in "
          "qkv_limits",
          kernels[n]->manifest.family);
    int64_t bytes = manifest_workspace(&kernels[n]->manifest, sizes, offsets);
    if (bytes < 0)
      return error_set(QKV_INVALID_ARGUMENT, "the workspace for batch %lld, len_q %lld, len_k %lld exceeds 2^63 bytes",
                       (long long)op->limits.batch, (long long)op->limits.len_q, (long long)op->limits.len_k);
    if (bytes > op->workspace)
      op->workspace = bytes;
  }
  return QKV_OK;
}

/* ---- The user's calls ---- */

static qkv_status check_limits(const qkv_limits *l) {
  const struct {
    const char *name;
    int64_t value;
  } rows[] = {{"batch", l->batch}, {"len_q", l->len_q}, {"len_k", l->len_k}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
    if (rows[n].value < 0 || rows[n].value > INT32_MAX)
      return error_set(QKV_INVALID_ARGUMENT, "limits.%s is %lld; it must be 0 to 2147483647", rows[n].name,
                       (long long)rows[n].value);
  return QKV_OK;
}

qkv_status limits_take(qkv_limits *out, const qkv_limits *given) {
  qkv_status status = struct_take(out, sizeof *out, given, "limits");
  return status == QKV_OK ? check_limits(out) : status;
}

gen_request limits_request(const qkv_engine *e, const qkv_limits *l) {
  return (gen_request){.arch = e->arch,
                       .family = l->family,
                       .phase = l->phase,
                       .schedule = l->schedule,
                       .batch = l->batch,
                       .len_q = l->len_q,
                       .len_k = l->len_k,
                       .template_path = e->template_path};
}

/* See qkv_op.zero. */
static qkv_status make_zero(qkv_op *op) {
  static const char zeros[16];
  const spec *s = op->spec->parsed;
  const qkv_engine *e = op->engine;
  bool shaped = false;
  for (int n = 0; n < s->nparams; n++)
    shaped |= s->params[n].rank > 0;
  if (!shaped)
    return QKV_OK;
  op->zero = (qkv_tensor){.shape = {1, 1, 1, 1, 1}};
  qkv_status status = e->ops->alloc(e->device, sizeof zeros, &op->zero.data);
  return status == QKV_OK ? e->ops->copy_to_device(e->device, op->zero.data, zeros, sizeof zeros) : status;
}

/* See qkv_op.frequencies: numbers of the spec that no source holds, so that others compile nothing anew. */
static qkv_status make_frequencies(qkv_op *op) {
  const spec_rope *rope = &op->spec->parsed->rope;
  const qkv_engine *e = op->engine;
  float frequencies[SPEC_MAX_PAIRS];
  if (!op->appends || !rope->given || rope->table)
    return QKV_OK;
  const size_t bytes = (size_t)rope->dims / 2 * sizeof *frequencies;
  rope_frequencies(rope, frequencies);
  qkv_status status = e->ops->alloc(e->device, bytes, &op->frequencies);
  return status == QKV_OK ? e->ops->copy_to_device(e->device, op->frequencies, frequencies, bytes) : status;
}

qkv_status qkv_prepare(qkv_engine *e, const qkv_spec *s, const qkv_limits *limits, qkv_op **out) {
  qkv_limits l = QKV_LIMITS_INIT;
  if (!e || !s || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !e ? "engine" : !s ? "spec" : "out");
  *out = NULL;
  if (!e->ops)
    return error_set(QKV_NO_DEVICE, "the engine was opened with device \"none\", which only compiles");
  qkv_status status = limits_take(&l, limits);
  if (status != QKV_OK)
    return status;
  qkv_op *op = calloc(1, sizeof *op);
  if (!op)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  op->engine = e;
  op->spec = s;
  spec_retain(s);
  op->limits = (call_limits){l.batch, l.len_q, l.len_k};
  op->appends = l.phase && !strcmp(l.phase, "append");
  const gen_request request = limits_request(e, &l);
  status = load_kernels(op, &request, l.aligned_only);
  if (status == QKV_OK)
    status = size_workspace(op);
  if (status == QKV_OK)
    status = make_zero(op);
  if (status == QKV_OK)
    status = make_frequencies(op);
  if (status != QKV_OK) {
    qkv_op_free(op);
    return status;
  }
  *out = op;
  return QKV_OK;
}

void qkv_op_free(qkv_op *op) {
  if (!op)
    return;
  drop_kernels(op);
  if (op->frequencies)
    op->engine->ops->free(op->engine->device, op->frequencies);
  if (op->zero.data)
    op->engine->ops->free(op->engine->device, op->zero.data);
  qkv_spec_free((qkv_spec *)(uintptr_t)op->spec);
  free(op);
}

size_t qkv_workspace_size(const qkv_op *op) {
  return op ? (size_t)op->workspace : 0;
}
