/* qkv_bundle.c: makes packs: everything that qkv_prepare would do for a spec, for any architecture, into records. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "qkv_internal.h"

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

typedef struct addition {
  qkv_bundle *bundle;
  const spec *spec;
  gen_request request;
  member members[ROLES];
  unsigned reads; /* of the request's maxima, by any of the renderings */
  qkv_bundle_report report;
} addition;

/* The kernels that qkv_prepare would load. */
static qkv_status render(addition *a, bool aligned_only) {
  qkv_engine *e = a->bundle->engine;
  gen_kernel **kernels[ROLES];
  char reason[DISPATCH_REASON];
  for (int which = 0; which < ROLES; which++)
    kernels[which] = &a->members[which].rendered;
  qkv_status status = render_kernel(e, a->spec, &a->request, kernels[ROLE_PRIMARY]);
  if (status == QKV_OK && (*kernels[ROLE_PRIMARY])->manifest.aligned16 && !aligned_only)
    status = dispatch_render_unaligned(e, a->spec, &a->request, *kernels[ROLE_PRIMARY], kernels[ROLE_OTHER]);
  if (status == QKV_OK)
    status = dispatch_render_decode(e, a->spec, &a->request, kernels[ROLE_FEW], reason);
  return status;
}

/* Line numbers take three quarters of an image, PTX that comes with them most of that. */
static const compiler_ops *compiler_of(const qkv_engine *e) {
  return e->compiler == &compiler_nvrtc ? &compiler_nvrtc_bare : e->compiler;
}

static qkv_status compile(addition *a) {
  qkv_engine *e = a->bundle->engine;
  qkv_status status = QKV_OK;
  for (int which = 0; which < ROLES && status == QKV_OK; which++) {
    member *m = &a->members[which];
    if (!m->rendered)
      continue;
    status = build_kernel(e, compiler_of(e), m->rendered, 0, &m->job);
    if (status != QKV_OK)
      break;
    a->report.kernels++;
    a->report.compiled += !m->job->from_cache;
    a->report.image_bytes += (int64_t)m->job->image.size;
    log_warn(e, m->job->image.log, a->spec->name, &m->rendered->manifest);
  }
  return status;
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
static bool record(addition *a) {
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
  request_words(a->spec, compiler, &a->request, a->reads, &words);
  spec_json(a->spec, &source);
  request.words = words.bytes;
  request.words_size = words.size;
  good = good && !words.failed && !source.failed && request_key(a->spec, compiler, &a->request, a->reads, key) &&
         pack_add_request(w, key, &request) &&
         pack_add_named(w, PACK_SPEC, a->spec->name, source.bytes, source.size);
  text_free(&words);
  text_free(&source);
  return good;
}

/* The spec of that name that is there already must be the same one: a name finds one spec. */
static qkv_status check_name(const addition *a) {
  text source = {0};
  spec_json(a->spec, &source);
  const int other = !source.failed && pack_writer_conflicts(a->bundle->writer, PACK_SPEC, a->spec->name, source.bytes,
                                                            source.size);
  text_free(&source);
  return other ? error_set(QKV_INVALID_ARGUMENT, "two specs are named '%s' and differ: a pack finds specs by name",
                           a->spec->name)
               : QKV_OK;
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
                .report = {.size = sizeof a.report}};
  a.request.arch = target;
  a.request.reads = &a.reads;
  const double start = seconds_now();
  status = render(&a, l.aligned_only);
  if (status == QKV_OK)
    status = compile(&a);
  if (status == QKV_OK) {
    pthread_mutex_lock(&b->lock);
    status = check_name(&a);
    if (status == QKV_OK && !record(&a))
      status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
    pthread_mutex_unlock(&b->lock);
  }
  for (int which = 0; which < ROLES; which++) {
    build_release(b->engine, a.members[which].job);
    gen_kernel_free(a.members[which].rendered);
  }
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

static int write_all(int fd, const char *from, size_t size) {
  while (size) {
    ssize_t n = write(fd, from, size);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return errno ? errno : EIO;
    from += n;
    size -= (size_t)n;
  }
  return 0;
}

/* 0 or an errno. A new file takes the place of the old one at once, so that a process that reads the old one goes on. */
static int replace_file(const char *path, const void *bytes, size_t size) {
  text temporary = {0};
  text_printf(&temporary, "%s.tmp-%ld", path, (long)getpid());
  if (temporary.failed)
    return ENOMEM;
  int fd = open(temporary.bytes, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  int error = fd < 0 ? errno : write_all(fd, bytes, size);
  if (fd >= 0) {
    if (!error && fsync(fd))
      error = errno;
    if (close(fd) && !error)
      error = errno;
    if (!error && rename(temporary.bytes, path))
      error = errno;
    if (error)
      unlink(temporary.bytes);
  }
  text_free(&temporary);
  return error;
}

qkv_status qkv_bundle_write(qkv_bundle *b, const char *path) {
  const void *bytes;
  size_t size;
  if (!path)
    return error_set(QKV_INVALID_ARGUMENT, "path is NULL");
  qkv_status status = qkv_bundle_bytes(b, &bytes, &size);
  if (status != QKV_OK)
    return status;
  const int error = replace_file(path, bytes, size);
  return error ? error_set(QKV_IO, "pack %s: cannot be written: %s", path, strerror(error)) : QKV_OK;
}
