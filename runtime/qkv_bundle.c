/* qkv_bundle.c: makes packs: everything that qkv_prepare would do for a spec, for any architecture, into records. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "qkv_tuned_internal.h"

struct qkv_bundle {
  qkv_engine *engine;
  pack_writer *writer; /* guarded by lock */
  pthread_mutex_t lock;
  void *bytes; /* of the last qkv_bundle_bytes */
};

qkv_status qkv_bundle_open(qkv_engine *e, qkv_bundle **out) {
  if (!e || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", e ? "out" : "engine");
  *out = NULL;
  if (e->template_path)
    return error_set(QKV_INVALID_ARGUMENT, "a pack is made of the built-in templates, and this engine has others (%s)",
                     e->template_path);
  pack_maker maker;
  bundle_maker(&maker);
  qkv_bundle *b = calloc(1, sizeof *b);
  if (!b || !(b->writer = pack_writer_new(&maker))) {
    free(b);
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  b->engine = e;
  pthread_mutex_init(&b->lock, NULL);
  *out = b;
  return QKV_OK;
}

void qkv_bundle_free(qkv_bundle *b) {
  if (!b)
    return;
  pthread_mutex_destroy(&b->lock);
  pack_writer_free(b->writer);
  free(b->bytes);
  free(b);
}

/* ---- One op ---- */

/* A kernel of the op on its way into the pack. */
typedef struct member {
  gen_kernel *rendered; /* NULL: the op has none in this role */
  build_job *job;
} member;

enum { CHOICES = TUNED_GPUS + 1 };

/* A request of qkv_prepare, once for every answer that tables of measured schedules have to it: none, and what each GPU
 * of the architecture gets. */
typedef struct addition {
  qkv_bundle *bundle;
  const spec *spec;
  gen_request request;
  bool aligned_only;
  int nseen;
  text seen[CHOICES]; /* answers that are recorded */
  member members[ROLES];
  unsigned reads; /* of the request's maxima, by any of the renderings */
  qkv_bundle_report report;
} addition;

/* As qkv_prepare would on the GPU: by the table, or by default where there is nothing or its schedule is not legal. */
static qkv_status render(addition *a, const gen_request *request, const tuned_choice *choice, gen_kernel **out) {
  qkv_engine *e = a->bundle->engine;
  qkv_status status = QKV_UNSUPPORTED;
  if (choice->entry) {
    gen_request r = *request;
    r.phase = choice->entry->phase;
    r.family = choice->entry->family;
    r.schedule = *choice->entry->schedule ? choice->entry->schedule : NULL;
    status = render_kernel(e, a->spec, &r, out);
  }
  return status == QKV_BAD_SCHEDULE || status == QKV_UNSUPPORTED ? render_kernel(e, a->spec, request, out) : status;
}

static qkv_status render_few(addition *a, const gen_request *few, const tuned_choice *choice, gen_kernel **out) {
  gen_request request = *few;
  unsigned reads = 0; /* its queries are the spec's */
  request.reads = &reads;
  const qkv_status status = render(a, &request, choice, out);
  a->reads |= reads & ~(unsigned)GEN_READ_LEN_Q;
  return status == QKV_UNSUPPORTED ? QKV_OK : status; /* an op does without it */
}

/* The kernels that qkv_prepare would load. few NULL: none for few queries. */
static qkv_status render_all(addition *a, const tuned_choice *primary, const gen_request *few,
                             const tuned_choice *few_choice) {
  member *m = a->members;
  qkv_status status = render(a, &a->request, primary, &m[ROLE_PRIMARY].rendered);
  if (status == QKV_OK && m[ROLE_PRIMARY].rendered->manifest.aligned16 && !a->aligned_only)
    status = dispatch_render_unaligned(a->bundle->engine, a->spec, &a->request, m[ROLE_PRIMARY].rendered,
                                       &m[ROLE_OTHER].rendered);
  if (status == QKV_OK && few)
    status = render_few(a, few, few_choice, &m[ROLE_FEW].rendered);
  return status;
}

/* Line numbers take three quarters of an image, PTX that comes with them most of that. */
static const compiler_ops *compiler_of(const qkv_engine *e) {
  return e->compiler == &compiler_nvrtc ? &compiler_nvrtc_bare : e->compiler;
}

static qkv_status compile(addition *a, const gen_request *few) {
  qkv_engine *e = a->bundle->engine;
  qkv_status status;
  for (int which = 0; which < ROLES; which++) {
    member *m = &a->members[which];
    if (!m->rendered)
      continue;
    status = build_kernel(e, compiler_of(e), m->rendered, BUILD_FROM_PACKS, &m->job);
    if (status != QKV_OK)
      return build_name_missing(status, a->spec, which == ROLE_FEW ? few : &a->request);
    a->report.kernels++;
    a->report.compiled += !m->job->from_cache;
    a->report.image_bytes += (int64_t)m->job->image.size;
    log_warn(e, m->job->image.log, a->spec->name, &m->rendered->manifest);
  }
  return QKV_OK;
}

static bool add_kernel(pack_writer *w, const member *m, unsigned char key[PACK_KEY_SIZE]) {
  text words = {0};
  manifest_write(&m->rendered->manifest, &words);
  const pack_kernel kernel = {.manifest = words.bytes,
                              .manifest_size = words.size,
                              .image = m->job->image.bytes,
                              .image_size = m->job->image.size};
  pack_key_of(m->job->key, key);
  const bool added = words.bytes && !words.failed && pack_add_kernel(w, key, &kernel);
  text_free(&words);
  return added;
}

/* bundle->lock is held. */
static bool record(addition *a, const char *tuned) {
  pack_writer *w = a->bundle->writer;
  const compiler_ops *compiler = a->bundle->engine->compiler;
  pack_request request = {0};
  unsigned char key[PACK_KEY_SIZE];
  text words = {0}, source = {0};
  bool good = true;
  for (int which = 0; which < ROLES; which++)
    if (a->members[which].rendered) {
      request.roles |= 1u << which;
      good = good && add_kernel(w, &a->members[which], request.kernels[which]);
    }
  request_words(a->spec, compiler, &a->request, tuned, a->reads, &words);
  spec_json(a->spec, &source);
  request.words = words.bytes;
  request.words_size = words.size;
  good = good && !words.failed && !source.failed && request_key(a->spec, compiler, &a->request, tuned, a->reads, key) &&
         pack_add_request(w, key, &request) && pack_add_named(w, PACK_SPEC, a->spec->name, source.bytes, source.size);
  text_free(&words);
  text_free(&source);
  return good;
}

/* The spec of that name that is there already must be the same one: a name finds one spec. */
static qkv_status check_name(const addition *a) {
  text source = {0};
  spec_json(a->spec, &source);
  const int other =
      !source.failed && pack_writer_conflicts(a->bundle->writer, PACK_SPEC, a->spec->name, source.bytes, source.size);
  text_free(&source);
  return other ? error_set(QKV_INVALID_ARGUMENT, "two specs are named '%s' and differ: a pack finds specs by name",
                           a->spec->name)
               : QKV_OK;
}

static void drop_members(addition *a) {
  for (int which = 0; which < ROLES; which++) {
    build_release(a->bundle->engine, a->members[which].job);
    gen_kernel_free(a->members[which].rendered);
    a->members[which] = (member){0};
  }
}

/* Whether the answer is new; it is remembered then. */
static bool is_new(addition *a, text *tuned) {
  for (int n = 0; n < a->nseen; n++)
    if (!strcmp(a->seen[n].bytes ? a->seen[n].bytes : "", tuned->bytes ? tuned->bytes : ""))
      return text_free(tuned), false;
  a->seen[a->nseen++] = *tuned;
  return true;
}

/* Records what one GPU gets; here NULL: what one gets that no table knows. */
static qkv_status add_for(addition *a, const gpu *here) {
  qkv_engine *e = a->bundle->engine;
  char reason[DISPATCH_REASON];
  gen_request few;
  tuned_choice primary = {0}, few_choice = {0};
  const bool has_few = dispatch_few_request(a->spec, &a->request, &few, reason);
  qkv_status status = here ? tuned_choose_for(e, a->spec, &a->request, here, &primary) : QKV_OK;
  if (status == QKV_OK && here && has_few)
    status = tuned_choose_for(e, a->spec, &few, here, &few_choice);
  if (status != QKV_OK)
    return status;
  text tuned = {0};
  request_tuned(&primary, has_few ? &few_choice : NULL, &tuned);
  if (tuned.failed)
    return text_free(&tuned), error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (!is_new(a, &tuned))
    return QKV_OK;
  a->reads = 0;
  status = render_all(a, &primary, has_few ? &few : NULL, &few_choice);
  if (status == QKV_OK)
    status = compile(a, &few);
  if (status == QKV_OK) {
    pthread_mutex_lock(&a->bundle->lock);
    status = check_name(a);
    if (status == QKV_OK && !record(a, tuned.bytes ? tuned.bytes : ""))
      status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
    pthread_mutex_unlock(&a->bundle->lock);
  }
  drop_members(a);
  return status;
}

/* What tables say of the spec travels along, for GPUs and sizes that no request was recorded for. */
static qkv_status add_table(qkv_bundle *b, const spec *s) {
  text table = {0};
  qkv_status status = tuned_collect(b->engine, s, &table);
  pthread_mutex_lock(&b->lock);
  if (status == QKV_OK && table.size && !pack_add_named(b->writer, PACK_TABLE, s->name, table.bytes, table.size))
    status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  pthread_mutex_unlock(&b->lock);
  text_free(&table);
  return status;
}

qkv_status qkv_bundle_add(qkv_bundle *b, const qkv_spec *s, const char *arch_name, const qkv_limits *limits,
                          qkv_bundle_report *report) {
  qkv_limits l = QKV_LIMITS_INIT;
  if (!b || !s)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", b ? "spec" : "bundle");
  const arch *target = b->engine->arch;
  qkv_status status = limits_take(&l, limits);
  if (status == QKV_OK && arch_name)
    status = arch_named(arch_name, &target);
  if (status != QKV_OK)
    return status;
  addition a = {.bundle = b,
                .spec = s->parsed,
                .request = limits_request(b->engine, &l),
                .aligned_only = l.aligned_only,
                .report = {.size = sizeof a.report}};
  const double start = seconds_now();
  gpu gpus[TUNED_GPUS];
  const int count = tuned_gpus(b->engine, s->parsed, target, gpus);
  a.request.arch = target;
  a.request.reads = &a.reads;
  if (count < 0)
    status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  for (int n = -1; n < count && status == QKV_OK; n++)
    status = add_for(&a, n < 0 ? NULL : &gpus[n]);
  if (status == QKV_OK)
    status = add_table(b, s->parsed);
  for (int n = 0; n < a.nseen; n++)
    text_free(&a.seen[n]);
  a.report.seconds = seconds_now() - start;
  return status == QKV_OK && report ? struct_give(report, &a.report, sizeof a.report, "report") : status;
}

/* ---- The file ---- */

qkv_status qkv_bundle_bytes(qkv_bundle *b, const void **bytes, size_t *size) {
  if (!b || !bytes || !size)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !b ? "bundle" : !bytes ? "bytes" : "size");
  pthread_mutex_lock(&b->lock);
  free(b->bytes);
  *bytes = b->bytes = pack_writer_finish(b->writer, size);
  pthread_mutex_unlock(&b->lock);
  return *bytes ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "out of memory");
}

qkv_status qkv_bundle_write(qkv_bundle *b, const char *path) {
  size_t size;
  if (!b || !path)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", b ? "path" : "bundle");
  pthread_mutex_lock(&b->lock);
  void *bytes = pack_writer_finish(b->writer, &size); /* its own: another thread may ask for them, too */
  pthread_mutex_unlock(&b->lock);
  const int error = bytes ? file_replace(path, bytes, size, 0666) : ENOMEM;
  free(bytes);
  if (error == ENOMEM)
    return error_set(QKV_OUT_OF_MEMORY, "pack %s: out of memory", path);
  return error ? error_set(QKV_IO, "pack %s: cannot be written: %s", path, strerror(error)) : QKV_OK;
}
