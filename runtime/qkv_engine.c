/* qkv_engine.c: a device, its compiler and its cache; and the calls on memory, which only pass through. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvrtc_library.h"
#include "qkv_tuned_internal.h"

void engine_log(const qkv_engine *e, qkv_log_level level, const char *format, ...) {
  if (!e->log)
    return;
  text message = {0};
  va_list args;
  va_start(args, format);
  text_vprintf(&message, format, args);
  va_end(args);
  if (message.bytes)
    e->log(level, message.bytes, e->log_user);
  text_free(&message);
}

static void cache_warning(const char *message, void *user) {
  engine_log(user, QKV_LOG_WARNING, "%s", message);
}

/* ---- Options and environment ---- */

static void from_environment(const char **field, const char *variable) {
  const char *value = getenv(variable);
  if (!*field && value && *value)
    *field = value;
}

static qkv_status number_from_environment(uint64_t *field, const char *variable) {
  const char *value = getenv(variable);
  char *end;
  if (*field || !value || !*value)
    return QKV_OK;
  errno = 0;
  *field = strtoull(value, &end, 0);
  return errno || *end ? error_set(QKV_INVALID_ARGUMENT, "%s: '%s' is not a number", variable, value) : QKV_OK;
}

qkv_status options_resolve(const qkv_options *given, qkv_options *out) {
  *out = (qkv_options)QKV_OPTIONS_INIT;
  qkv_status status = struct_take(out, sizeof *out, given, "options");
  if (status != QKV_OK)
    return status;
  out->size = sizeof *out;
  from_environment(&out->device, "QKV_DEVICE");
  from_environment(&out->template_path, "QKV_TEMPLATE_PATH");
  from_environment(&out->arch, "QKV_ARCH");
  from_environment(&out->tuned_dir, "QKV_TUNED_DIR");
  if (!out->device)
    out->device = "auto";
  const char *disable = getenv("QKV_DISABLE_JIT");
  if (disable && *disable && strcmp(disable, "0") != 0)
    out->disable_jit = 1;
  const char *debug = getenv("QKV_DEBUG_CHECKS");
  if (debug && *debug && strcmp(debug, "0") != 0)
    out->debug_checks = 1;
  uint64_t granule = out->emu_granule;
  status = number_from_environment(&out->emu_seed, "QKV_EMU_SEED");
  if (status == QKV_OK)
    status = number_from_environment(&granule, "QKV_EMU_GRANULE");
  out->emu_granule = (size_t)granule;
  return status;
}

/* The ordinal of "cuda" or "cuda:N", -1 when the word is something else. */
static int cuda_ordinal(const char *word) {
  char *end;
  if (!strcmp(word, "cuda"))
    return 0;
  if (strncmp(word, "cuda:", 5) || word[5] < '0' || word[5] > '9')
    return -1;
  long n = strtol(word + 5, &end, 10);
  return *end || n > 1 << 20 ? -1 : (int)n;
}

/* ---- Opening ---- */

static qkv_status open_backend(qkv_engine *e, const device_ops *ops, const compiler_ops *compiler, int ordinal,
                               const qkv_options *o) {
  qkv_status status = ops->open(ordinal, o, &e->device);
  if (status != QKV_OK)
    return status;
  e->ops = ops;
  e->compiler = compiler;
  return ops->info(e->device, &e->info);
}

static qkv_status open_device(qkv_engine *e, const qkv_options *o) {
  e->info.size = sizeof e->info;
  int ordinal = cuda_ordinal(o->device);
  if (ordinal >= 0)
    return open_backend(e, &device_cuda, &compiler_nvrtc, ordinal, o);
  if (!strcmp(o->device, "emu"))
    return open_backend(e, &device_emu, &compiler_emulator, 0, o);
  if (!strcmp(o->device, "none")) {
    e->compiler = &compiler_nvrtc;
    snprintf(e->info.kind, sizeof e->info.kind, "none");
    snprintf(e->info.name, sizeof e->info.name, "none");
    return QKV_OK;
  }
  if (strcmp(o->device, "auto"))
    return error_set(QKV_INVALID_ARGUMENT, "device '%s': use cuda, cuda:N, emu, none or auto", o->device);
  qkv_status status = open_backend(e, &device_cuda, &compiler_nvrtc, 0, o);
  if (status != QKV_NO_DEVICE) /* a GPU that is there but fails is reported, not papered over */
    return status;
  engine_log(e, QKV_LOG_INFO, "using the emulated device: %s", error_message());
  return open_backend(e, &device_emu, &compiler_emulator, 0, o);
}

qkv_status arch_named(const char *name, const arch **out) {
  int count;
  const arch *table = arch_table(&count);
  *out = arch_find(name);
  if (*out)
    return QKV_OK;
  text known = {0};
  for (int n = 0; n < count; n++)
    text_printf(&known, "%s%s", n ? ", " : "", table[n].name);
  qkv_status status =
      error_set(QKV_UNKNOWN_ARCH, "unknown architecture '%s'; known are %s", name, known.bytes ? known.bytes : "");
  text_free(&known);
  return status;
}

static qkv_status choose_arch(qkv_engine *e, const qkv_options *o) {
  int major = e->info.compute_major, minor = e->info.compute_minor;
  qkv_status status = QKV_OK;
  if (o->arch)
    status = arch_named(o->arch, &e->arch);
  else
    e->arch = e->ops == &device_cuda ? arch_for_capability(major, minor) : arch_find("sm_80");
  if (status != QKV_OK)
    return status;
  if (!e->arch)
    return error_set(QKV_UNKNOWN_ARCH, "%s has compute capability %d.%d, which this version generates no code for",
                     e->info.name, major, minor);
  snprintf(e->info.arch, sizeof e->info.arch, "%s", e->arch->name);
  return QKV_OK;
}

/* What compiles, for reports: version and place. Empty when there is none. */
static void describe_compiler(qkv_engine *e) {
  const nvrtc_library *n;
  if (e->compiler == &compiler_nvrtc) {
    if (nvrtc_get(&n) == QKV_OK)
      snprintf(e->info.compiler, sizeof e->info.compiler, "NVRTC %d.%d (%.200s)", n->major, n->minor, n->path);
  } else if (e->compiler->identity(e->info.compiler, sizeof e->info.compiler) != QKV_OK) {
    e->info.compiler[0] = 0;
  }
}

static qkv_status engine_fill(qkv_engine *e, const qkv_options *o) {
  qkv_status status = open_device(e, o);
  if (status == QKV_OK)
    status = choose_arch(e, o);
  if (status != QKV_OK)
    return status;
  describe_compiler(e);
  e->template_path = o->template_path ? strdup(o->template_path) : NULL;
  e->cache = cache_open(o->cache_dir, cache_warning, e);
  e->tuned = e->cache ? tuned_open(o->tuned_dir, cache_path(e->cache)) : NULL;
  if (!e->tuned || (o->template_path && !e->template_path))
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  engine_log(e, QKV_LOG_INFO, "device %s (%s), compiler %s, cache %s", e->info.name, e->info.arch, e->info.compiler,
             *cache_path(e->cache) ? cache_path(e->cache) : "in memory only");
  packs_open(e, o);
  return QKV_OK;
}

qkv_status qkv_open(const qkv_options *opt, qkv_engine **out) {
  qkv_options o;
  if (!out)
    return error_set(QKV_INVALID_ARGUMENT, "out is NULL");
  *out = NULL;
  qkv_status status = options_resolve(opt, &o);
  if (status != QKV_OK)
    return status;
  qkv_engine *e = calloc(1, sizeof *e);
  if (!e)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  pthread_mutex_init(&e->jobs_lock, NULL);
  pthread_cond_init(&e->jobs_done, NULL);
  pthread_cond_init(&e->compiler_free, NULL);
  pthread_mutex_init(&e->packs_lock, NULL);
  e->compile_limit = cores();
  e->disable_jit = o.disable_jit;
  e->debug_checks = o.debug_checks;
  e->log = o.log;
  e->log_user = o.log_user;
  status = engine_fill(e, &o);
  if (status != QKV_OK) {
    qkv_close(e);
    return status;
  }
  *out = e;
  return QKV_OK;
}

void qkv_close(qkv_engine *e) {
  if (!e)
    return;
  tuned_close(e->tuned);
  cache_close(e->cache);
  if (e->device)
    e->ops->close(e->device);
  free(e->template_path);
  packs_close(e);
  pthread_mutex_destroy(&e->packs_lock);
  pthread_cond_destroy(&e->compiler_free);
  pthread_cond_destroy(&e->jobs_done);
  pthread_mutex_destroy(&e->jobs_lock);
  free(e);
}

void qkv_get_counters(const qkv_engine *e, qkv_counters *out) {
  qkv_counters counters = {0};
  if (e)
    counters = (qkv_counters){.compiles = e->compiles,
                              .cache_hits = e->cache_hits,
                              .cache_errors = cache_error_count(e->cache),
                              .launches = e->launches,
                              .renders = e->renders,
                              .pack_hits = e->pack_hits,
                              .load_seconds = 1e-9 * (double)e->load_nanoseconds};
  struct_give(out, &counters, sizeof counters, "out");
}

qkv_status qkv_device_get_info(qkv_engine *e, qkv_device_info *out) {
  if (!e)
    return error_set(QKV_INVALID_ARGUMENT, "engine is NULL");
  return struct_give(out, &e->info, sizeof e->info, "out");
}

/* ---- Device memory ---- */

static qkv_status need_device(const qkv_engine *e) {
  if (!e)
    return error_set(QKV_INVALID_ARGUMENT, "engine is NULL");
  return e->ops ? QKV_OK : error_set(QKV_NO_DEVICE, "the engine was opened with device \"none\", which only compiles");
}

qkv_status qkv_alloc(qkv_engine *e, size_t bytes, void **out) {
  if (!out)
    return error_set(QKV_INVALID_ARGUMENT, "out is NULL");
  *out = NULL;
  qkv_status status = need_device(e);
  return status == QKV_OK ? e->ops->alloc(e->device, bytes, out) : status;
}

qkv_status qkv_free(qkv_engine *e, void *memory) {
  qkv_status status = need_device(e);
  return status == QKV_OK && memory ? e->ops->free(e->device, memory) : status;
}

/* Whether a copy can be asked of the device; the names are those of its sides. */
static qkv_status need_sides(const qkv_engine *e, const void *to, const char *to_name, const void *from,
                             const char *from_name, size_t bytes) {
  qkv_status status = need_device(e);
  if (status == QKV_OK && bytes && (!to || !from))
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", to ? from_name : to_name);
  return status;
}

qkv_status qkv_copy_to_device(qkv_engine *e, void *to, const void *from, size_t bytes) {
  const qkv_status status = need_sides(e, to, "device", from, "host", bytes);
  return status != QKV_OK || !bytes ? status : e->ops->copy_to_device(e->device, to, from, bytes);
}

qkv_status qkv_copy_to_host(qkv_engine *e, void *to, const void *from, size_t bytes) {
  const qkv_status status = need_sides(e, to, "host", from, "device", bytes);
  return status != QKV_OK || !bytes ? status : e->ops->copy_to_host(e->device, to, from, bytes);
}

qkv_status qkv_copy_on_device(qkv_engine *e, void *to, const void *from, size_t bytes) {
  const qkv_status status = need_sides(e, to, "to", from, "from", bytes);
  return status != QKV_OK || !bytes ? status : e->ops->copy_on_device(e->device, to, from, bytes);
}

qkv_status qkv_synchronize(qkv_engine *e) {
  qkv_status status = need_device(e);
  return status == QKV_OK ? e->ops->synchronize(e->device) : status;
}
