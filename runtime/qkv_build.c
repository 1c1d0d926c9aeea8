/* qkv_build.c: from a spec to an image: render, look into the cache, else compile once however many threads ask.
 *
 * The first thread that wants a key makes its job and works without holding a lock; later ones wait for that job and
 * share its result. The job disappears when the last of them has let go. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_internal.h"

enum { IDENTITY_SIZE = 512 };

qkv_status render_kernel(qkv_engine *e, const spec *s, const gen_request *request, gen_kernel **out) {
  gen_error error = {0};
  double start = seconds_now();
  *out = NULL;
  e->renders++;
  if (gen_render(s, request, out, &error) != GEN_OK)
    return gen_failed(&error);
  if ((*out)->source.failed) {
    gen_kernel_free(*out);
    *out = NULL;
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  engine_log(e, QKV_LOG_DEBUG, "rendered %s for %s: %d lines, %d us", (*out)->manifest.family, (*out)->manifest.arch,
             (*out)->nlines, (int)((seconds_now() - start) * 1e6));
  return QKV_OK;
}

/* ---- One kernel ---- */

static void take_from_cache(qkv_engine *e, const compiler_ops *compiler, build_job *job) {
  cache_entry entry;
  double start = seconds_now();
  if (cache_read(e->cache, job->key, &entry) != CACHE_HIT)
    return;
  if (compiler->plausible(entry.image, entry.image_size)) {
    job->image = (device_image){.bytes = entry.image, .size = entry.image_size, .log = entry.log};
    entry.image = entry.log = NULL;
    job->from_cache = 1;
    e->cache_hits++;
  } else {
    cache_remove(e->cache, job->key);
  }
  cache_entry_free(&entry);
  job->load_seconds = seconds_now() - start;
}

/* Packs come before the cache: they were shipped to be used, and reading them touches no file. */
static void take_from_packs(qkv_engine *e, const compiler_ops *compiler, build_job *job) {
  pack_kernel found;
  double start = seconds_now();
  if (!packs_find_kernel(e, job->key, &found) || !compiler->plausible(found.image, found.image_size))
    return;
  job->image = (device_image){.bytes = malloc(found.image_size), .size = found.image_size, .log = strdup("")};
  if (!job->image.bytes || !job->image.log) {
    image_free(&job->image);
    return;
  }
  memcpy(job->image.bytes, found.image, found.image_size);
  job->from_cache = job->from_pack = 1;
  e->pack_hits++;
  job->load_seconds = seconds_now() - start;
}

static void publish(qkv_engine *e, const build_job *job, const gen_kernel *k) {
  text manifest_text = {0};
  manifest_write(&k->manifest, &manifest_text);
  const cache_entry entry = {.manifest = manifest_text.bytes,
                             .manifest_size = manifest_text.size,
                             .image = job->image.bytes,
                             .image_size = job->image.size,
                             .log = job->image.log};
  if (manifest_text.bytes && !manifest_text.failed && *cache_path(e->cache))
    cache_write(e->cache, job->key, &entry); /* a failure has been counted; the image in memory serves as well */
  text_free(&manifest_text);
}

/* The compiler's message with template places in front of the raw log. */
static qkv_status explain_failure(qkv_status status, const device_image *image, const gen_kernel *k) {
  text translated = {0};
  if (status == QKV_COMPILE_ERROR && image->log)
    log_translate(image->log, k, 1, &translated);
  if (translated.bytes)
    status = error_context(status, "compiling %s (%s) for %s:\n%s\n", k->manifest.family, k->manifest.schedule,
                           k->manifest.arch, translated.bytes);
  text_free(&translated);
  return status;
}

/* A compiler takes a core and some hundred MB: no more of them run than there are cores, however many threads ask. */
static void enter_compiler(qkv_engine *e) {
  pthread_mutex_lock(&e->jobs_lock);
  while (e->compiling >= e->compile_limit)
    pthread_cond_wait(&e->compiler_free, &e->jobs_lock);
  e->compiling++;
  pthread_mutex_unlock(&e->jobs_lock);
}

static void leave_compiler(qkv_engine *e) {
  pthread_mutex_lock(&e->jobs_lock);
  e->compiling--;
  pthread_cond_broadcast(&e->compiler_free);
  pthread_mutex_unlock(&e->jobs_lock);
}

static qkv_status compile(qkv_engine *e, const compiler_ops *compiler, const gen_kernel *k, build_job *job) {
  const manifest *m = &k->manifest;
  if (e->disable_jit)
    return error_set(QKV_NOT_PREPARED,
                     "kernel %s for %s (schedule %s, key %s) is in no pack and not in the cache (%s), and compiling is "
                     "disabled (QKV_DISABLE_JIT); build it beforehand with `qkvc build` or `qkvc bundle`",
                     m->family, m->arch, *m->schedule ? m->schedule : "of no axes", job->key,
                     *cache_path(e->cache) ? cache_path(e->cache) : "memory only");
  enter_compiler(e);
  double start = seconds_now();
  e->compiles++;
  qkv_status status = compiler->compile(k->source.bytes, m->arch, &job->image);
  job->compile_seconds = seconds_now() - start;
  leave_compiler(e);
  if (status != QKV_OK)
    return explain_failure(status, &job->image, k);
  engine_log(e, QKV_LOG_INFO, "compiled %s (%s) for %s with %s in %d ms", m->family, m->schedule, m->arch,
             compiler->name, (int)(job->compile_seconds * 1e3));
  return QKV_OK;
}

static qkv_status make_image(qkv_engine *e, const compiler_ops *compiler, const gen_kernel *k, build_job *job) {
  if (job->from == BUILD_FROM_PACKS)
    take_from_packs(e, compiler, job);
  if (job->from != BUILD_ANEW && !job->image.bytes)
    take_from_cache(e, compiler, job);
  if (job->image.bytes)
    return QKV_OK;
  double start = seconds_now();
  int turn = job->from == BUILD_ANEW || e->disable_jit ? -1 : cache_turn_take(e->cache, job->key);
  if (turn >= 0) /* another process may have compiled it meanwhile */
    take_from_cache(e, compiler, job);
  if (seconds_now() - start > 0.1)
    engine_log(e, QKV_LOG_INFO, "waited %d ms while another process compiled %s (%s) for %s",
               (int)((seconds_now() - start) * 1e3), k->manifest.family, k->manifest.schedule, k->manifest.arch);
  qkv_status status = job->image.bytes ? QKV_OK : compile(e, compiler, k, job);
  if (status == QKV_OK && !job->from_cache)
    publish(e, job, k);
  cache_turn_give(turn, job->key);
  return status;
}

/* ---- One job per key ---- */

void build_target(const compiler_ops *compiler, const char *target, text *out) {
  text_printf(out, "compiler=%s arch=%s", compiler->name, target);
  if (compiler->contract)
    text_printf(out, " contract=%016llx", (unsigned long long)compiler->contract());
}

/* Where there is no compiler, as in a slim image with a filled cache, any compiler's image of the source serves. */
static qkv_status kernel_key(qkv_engine *e, const compiler_ops *compiler, const gen_kernel *k,
                             char key[CACHE_KEY_SIZE]) {
  char identity[IDENTITY_SIZE] = "";
  qkv_status status = compiler->identity(identity, sizeof identity);
  if (status != QKV_OK && status != QKV_NO_COMPILER)
    return status;
  text options = {0};
  build_target(compiler, k->manifest.arch, &options);
  if (!options.failed) {
    cache_key(k->source.bytes, options.bytes, identity, key);
    if (status == QKV_NO_COMPILER)
      cache_find(e->cache, key); /* none: the compile that is tried then says what is missing */
  }
  status = options.failed ? error_set(QKV_OUT_OF_MEMORY, "out of memory") : QKV_OK;
  text_free(&options);
  return status;
}

/* The running job for the key, joined, or a new one that the caller must do. jobs_lock is held. */
static build_job *join_or_start(qkv_engine *e, const char *key, build_from from, int *is_new) {
  for (build_job *job = e->jobs; job; job = job->next)
    if (!strcmp(job->key, key) && job->from >= from) {
      job->users++;
      *is_new = 0;
      return job;
    }
  build_job *job = calloc(1, sizeof *job);
  if (!job)
    return NULL;
  memcpy(job->key, key, CACHE_KEY_SIZE);
  job->from = from;
  job->users = 1;
  job->next = e->jobs;
  e->jobs = job;
  *is_new = 1;
  return job;
}

/* Publishes the result to those who wait; later comers start afresh (and find the cache). jobs_lock is held. */
static void finish(qkv_engine *e, build_job *job) {
  build_job **link = &e->jobs;
  while (*link != job)
    link = &(*link)->next;
  *link = job->next;
  job->done = 1;
  pthread_cond_broadcast(&e->jobs_done);
}

static void job_free(build_job *job) {
  image_free(&job->image);
  free(job->message);
  free(job);
}

void build_release(qkv_engine *e, build_job *job) {
  if (!job)
    return;
  pthread_mutex_lock(&e->jobs_lock);
  int last = --job->users == 0;
  pthread_mutex_unlock(&e->jobs_lock);
  if (last)
    job_free(job);
}

qkv_status build_kernel(qkv_engine *e, const compiler_ops *compiler, const gen_kernel *k, build_from from,
                        build_job **out) {
  char key[CACHE_KEY_SIZE];
  int is_new = 0;
  *out = NULL;
  qkv_status status = kernel_key(e, compiler, k, key);
  if (status != QKV_OK)
    return status;
  pthread_mutex_lock(&e->jobs_lock);
  build_job *job = join_or_start(e, key, from, &is_new);
  while (job && !is_new && !job->done)
    pthread_cond_wait(&e->jobs_done, &e->jobs_lock);
  pthread_mutex_unlock(&e->jobs_lock);
  if (!job)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  *out = job;
  if (!is_new)
    return job->status == QKV_OK ? QKV_OK : error_set(job->status, "%s", job->message ? job->message : "build failed");
  status = make_image(e, compiler, k, job);
  job->status = status;
  job->message = status == QKV_OK ? NULL : strdup(error_message());
  pthread_mutex_lock(&e->jobs_lock);
  finish(e, job);
  pthread_mutex_unlock(&e->jobs_lock);
  return status;
}

qkv_status build_name_missing(qkv_status status, const spec *s, const gen_request *r) {
  return status == QKV_NOT_PREPARED ? error_context(status, "spec %s, phase %s: ", s->name, gen_phase(r)) : status;
}

/* ---- The user's builds ---- */

qkv_status build_request(const qkv_engine *e, const qkv_build_options *given, gen_request *request,
                         const compiler_ops **compiler, bool *for_device) {
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  const arch *target = e->arch;
  qkv_status status = struct_take(&o, sizeof o, given, "options");
  const struct {
    const char *name;
    int64_t value;
  } maxima[] = {{"len_q", o.len_q}, {"batch", o.batch}, {"len_k", o.len_k}};
  for (int n = 0; n < 3 && status == QKV_OK; n++)
    if (maxima[n].value < 0 || maxima[n].value > INT32_MAX)
      status = error_set(QKV_INVALID_ARGUMENT, "options.%s is %lld; it must be 0 to 2147483647", maxima[n].name,
                         (long long)maxima[n].value);
  if (status == QKV_OK && o.arch)
    status = arch_named(o.arch, &target);
  *for_device = !o.arch;
  *compiler = *for_device ? e->compiler : &compiler_nvrtc;
  *request = (gen_request){.arch = target,
                           .family = o.family,
                           .phase = o.phase,
                           .schedule = o.schedule,
                           .unaligned = o.unaligned != 0,
                           .batch = o.batch,
                           .len_q = o.len_q,
                           .len_k = o.len_k,
                           .template_path = e->template_path};
  return status;
}

qkv_status qkv_generate(qkv_engine *e, const qkv_spec *s, const qkv_build_options *opt, char **source) {
  gen_request request;
  const compiler_ops *compiler;
  bool for_device;
  gen_kernel *k;
  if (!e || !s || !source)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !e ? "engine" : !s ? "spec" : "source");
  *source = NULL;
  qkv_status status = build_request(e, opt, &request, &compiler, &for_device);
  if (status == QKV_OK)
    status = tuned_render(e, s->parsed, &request, for_device, &k, NULL);
  if (status != QKV_OK)
    return status;
  status = text_give(&k->source, source);
  gen_kernel_free(k);
  return status;
}

static void report_entries(const compiler_ops *compiler, const manifest *m, const char *log, qkv_build_report *report) {
  report->nentries = m->nlaunches;
  for (int n = 0; n < m->nlaunches; n++) {
    const manifest_launch *l = &m->launches[n];
    device_resources r = {.registers = -1};
    qkv_build_entry *entry = &report->entries[n];
    compiler->resources(log ? log : "", l->entry, &r);
    snprintf(entry->name, sizeof entry->name, "%s", l->entry);
    entry->registers = r.registers;
    entry->spill_stores = r.spill_stores;
    entry->spill_loads = r.spill_loads;
    entry->stack = r.stack;
    entry->shared_bytes = r.shared_bytes + l->shared_bytes;
    entry->threads = l->block;
    entry->serialised_wgmma = r.serialised_wgmma;
    entry->ignored_setmaxnreg = r.ignored_setmaxnreg;
    entry->added_waits = r.added_waits;
    entry->added_fences = r.added_fences;
    entry->warnings = r.warnings;
  }
}

static qkv_status report_build(const compiler_ops *compiler, const gen_kernel *k, const build_job *job,
                               qkv_build_report *report) {
  const manifest *m = &k->manifest;
  snprintf(report->family, sizeof report->family, "%s", m->family);
  snprintf(report->arch, sizeof report->arch, "%s", m->arch);
  snprintf(report->schedule, sizeof report->schedule, "%s", m->schedule);
  snprintf(report->key, sizeof report->key, "%s", job->key);
  report->from_cache = job->from_cache;
  report->compile_seconds = job->compile_seconds;
  report->load_seconds = job->load_seconds;
  report->image_bytes = (int64_t)job->image.size;
  report_entries(compiler, m, job->image.log, report);
  text notes = {0}, advisories = {0};
  if (job->image.log)
    log_translate(job->image.log, k, 1, &notes);
  log_advisories(job->image.log, m, &advisories);
  qkv_status status = notes.size || notes.failed ? text_give(&notes, &report->notes) : QKV_OK;
  if (status == QKV_OK && (advisories.size || advisories.failed))
    return text_give(&advisories, &report->advisories);
  text_free(&advisories);
  return status;
}

qkv_status qkv_build(qkv_engine *e, const qkv_spec *s, const qkv_build_options *opt, qkv_build_report *out) {
  gen_request request;
  const compiler_ops *compiler;
  bool for_device;
  qkv_build_report report = {.size = sizeof report};
  if (!e || !s || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !e ? "engine" : !s ? "spec" : "out");
  gen_kernel *k = NULL;
  build_job *job = NULL;
  qkv_status status = build_request(e, opt, &request, &compiler, &for_device);
  double start = seconds_now();
  if (status == QKV_OK)
    status = tuned_render(e, s->parsed, &request, for_device, &k, NULL);
  report.render_seconds = seconds_now() - start;
  if (status == QKV_OK)
    status = build_name_missing(build_kernel(e, compiler, k, BUILD_FROM_PACKS, &job), s->parsed, &request);
  if (status == QKV_OK)
    status = report_build(compiler, k, job, &report);
  if (status == QKV_OK)
    status = struct_give(out, &report, sizeof report, "out");
  if (status != QKV_OK)
    qkv_string_free(report.notes), qkv_string_free(report.advisories);
  build_release(e, job);
  gen_kernel_free(k);
  return status;
}
