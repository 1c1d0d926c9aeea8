/* qkv_tuned_write.c: files of tuned schedules: written, merged, checked, listed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "qkv_tuned_internal.h"

/* ---- Reading a file ---- */

/* A file as a table. Statuses other than QKV_OK leave *out NULL, except QKV_BAD_SPEC, after which it has what is whole
 * and the thread's message is the diagnostics. QKV_IO with *absent: there is no such file. *bytes is freed by the
 * caller. */
static qkv_status read_file(const char *path, tuned_table **out, char **bytes, size_t *size, bool *absent) {
  diags d;
  text message = {0};
  *out = NULL;
  const int error = file_read(path, TREE_MAX_BYTES, bytes, size);
  *absent = error == ENOENT;
  if (error)
    return error_set(QKV_IO, "%s: %s", path, error == EFBIG ? "larger than a table can be" : strerror(error));
  arena *memory = arena_new();
  if (!memory)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  diags_init(&d, memory, path, *bytes, *size);
  const tuned_result result = tuned_parse(*bytes, *size, &d, out);
  diags_print(&d, &message);
  qkv_status status = QKV_OK;
  if (result == TUNED_NO_MEMORY || message.failed)
    status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  else if (result != TUNED_OK)
    status = error_set(result == TUNED_NEWER ? QKV_IO : QKV_BAD_SPEC, "%s", message.bytes ? message.bytes : path);
  text_free(&message);
  arena_free(memory);
  return status;
}

qkv_status qkv_tuned_check(const char *file) {
  char *bytes = NULL;
  size_t size;
  bool absent;
  tuned_table *table;
  if (!file)
    return error_set(QKV_INVALID_ARGUMENT, "file is NULL");
  qkv_status status = read_file(file, &table, &bytes, &size, &absent);
  tuned_free(table);
  free(bytes);
  return status;
}

/* ---- Replacing a file ---- */

/* What is damaged is not thrown away. */
static qkv_status keep_damaged(const char *path, const char *bytes, size_t size) {
  text beside = {0};
  text_printf(&beside, "%s.damaged", path);
  const int error = beside.failed ? ENOMEM : file_replace(beside.bytes, bytes, size, 0666);
  qkv_status status =
      error ? error_set(QKV_IO, "%s: %s", beside.failed ? path : beside.bytes, strerror(error)) : QKV_OK;
  text_free(&beside);
  return status;
}

/* Prints a table and sees that it reads back: nothing is written that could not be read. */
static qkv_status replace(const char *path, const tuned_table *table) {
  text printed = {0};
  tuned_table *again = NULL;
  diags d;
  tuned_print(table, &printed);
  arena *memory = arena_new();
  if (printed.failed || !memory) {
    text_free(&printed);
    arena_free(memory);
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  diags_init(&d, memory, path, printed.bytes, printed.size);
  qkv_status status = QKV_OK;
  if (tuned_parse(printed.bytes, printed.size, &d, &again) != TUNED_OK)
    status = error_set(QKV_IO, "%s would be no table: %s; write fewer entries to a file", path,
                       d.count ? d.items[0].message : "out of memory");
  else {
    const int error = file_replace(path, printed.bytes, printed.size, 0666);
    status = error ? error_set(QKV_IO, "%s: %s", path, strerror(error)) : QKV_OK;
  }
  tuned_free(again);
  text_free(&printed);
  arena_free(memory);
  return status;
}

/* Puts what `news` has into the file, under the folder's lock. A fault in the file is not carried on. */
static qkv_status merge_into(const char *path, const tuned_table *news, tuned_rule rule) {
  char *bytes = NULL;
  size_t size = 0;
  bool absent;
  tuned_table *table;
  int error = file_make_parents(path);
  if (error)
    return error_set(QKV_IO, "%s: the folder cannot be made: %s", path, strerror(error));
  const int lock = file_lock_folder(path);
  file_sweep(path);
  qkv_status status = read_file(path, &table, &bytes, &size, &absent);
  if (status == QKV_BAD_SPEC) {
    status = keep_damaged(path, bytes, size);
  } else if (absent) {
    table = tuned_new(news->spec);
    status = table ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  if (status == QKV_OK && *table->spec && strcmp(table->spec, news->spec))
    status = error_set(QKV_IO, "%s has schedules of spec %s, not of %s", path, table->spec, news->spec);
  else if (status == QKV_OK)
    table->spec = news->spec;
  if (status == QKV_OK && !tuned_merge(table, news, rule))
    status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (status == QKV_OK)
    status = replace(path, table);
  file_unlock(lock);
  tuned_free(table);
  free(bytes);
  return status;
}

/* All of merge_into but the writing. */
static qkv_status try_merge(const char *path) {
  char *bytes = NULL;
  size_t size = 0;
  bool absent;
  tuned_table *table = NULL;
  int error = file_make_parents(path);
  if (!error)
    error = file_try_replace(path);
  if (error)
    return error_set(QKV_IO, "%s cannot be written: %s", path, strerror(error));
  qkv_status status = read_file(path, &table, &bytes, &size, &absent);
  tuned_free(table);
  free(bytes);
  return absent || status == QKV_BAD_SPEC ? QKV_OK : status;
}

/* ---- Writing ---- */

/* DIRECTORY/CLASS/NAME.yaml, malloc'd; NULL when memory is out. */
static char *table_path(const char *directory, const char *klass, const char *name) {
  text path = {0};
  text_printf(&path, "%s/%s/%s.yaml", directory, klass, name);
  if (path.failed)
    text_free(&path);
  return path.bytes;
}

static const char *check_numbers(const qkv_tuned_entry *e) {
  const double least = 1e-9; /* what microseconds of three decimals can say */
  if (!(e->low >= least && e->low <= e->seconds && e->seconds <= e->high && e->high < 1e6))
    return "needs 1e-9 <= low <= seconds <= high < 1e6";
  if (!(e->default_seconds >= least && e->default_seconds < 1e6))
    return "needs default_seconds from 1e-9 to 1e6";
  const int64_t sizes[] = {e->batch, e->len_q, e->len_k};
  for (int n = 0; n < 3; n++)
    if (e->workload ? sizes[n] < 1 || sizes[n] > INT32_MAX : sizes[n] != 0)
      return e->workload ? "needs sizes from 1 to 2147483647" : "has sizes but no workload";
  return NULL;
}

static const char *check_texts(const qkv_tuned_entry *e) {
  if (!e->phase || (strcmp(e->phase, "prefill") && strcmp(e->phase, "decode")))
    return "needs phase prefill or decode";
  if (!e->family || !tuned_is_word(e->family))
    return "needs a family, a word of a-z 0-9 _";
  if (!e->schedule || !tuned_is_schedule(e->schedule))
    return "needs a schedule, axis=value,...";
  if (!e->default_schedule || !tuned_is_schedule(e->default_schedule))
    return "needs a default_schedule, axis=value,...";
  if (e->workload && !tuned_is_text(e->workload))
    return "has a workload whose name is no text";
  return NULL;
}

/* One of the user's entries; they lie as far apart as the first one's size says. */
static qkv_status take_entry(const spec *s, const qkv_tuned_entry *entries, int n, tuned_entry *out) {
  qkv_tuned_entry e = {0};
  const char *at = (const char *)entries + (size_t)n * entries->size;
  qkv_status status = struct_take(&e, sizeof e, at, "entries[n]");
  const char *wrong = check_texts(&e);
  if (status != QKV_OK)
    return status;
  if (!wrong)
    wrong = e.size != entries->size ? "has another size than the first" : check_numbers(&e);
  if (wrong)
    return error_set(QKV_INVALID_ARGUMENT, "entries[%d] %s", n, wrong);
  *out = (tuned_entry){.phase = e.phase,
                       .bucket = bucket_of(s, e.phase, e.batch, e.len_q, e.len_k),
                       .family = e.family,
                       .schedule = e.schedule,
                       .workload = e.workload,
                       .batch = e.batch,
                       .len_q = e.len_q,
                       .len_k = e.len_k,
                       .us = e.seconds * 1e6,
                       .low = e.low * 1e6,
                       .high = e.high * 1e6,
                       .default_schedule = e.default_schedule,
                       .default_us = e.default_seconds * 1e6};
  return QKV_OK;
}

static qkv_status take_notes(tuned_table *t, const char *notes, tuned_section *head) {
  char reason[160];
  if (!ARENA_TRY(t->memory))
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  for (const char *line = notes; line && *line;) {
    const size_t length = strcspn(line, "\n");
    if (length && !tuned_note_parse(t->memory, line, length, head, reason))
      return error_set(QKV_INVALID_ARGUMENT, "notes: %s", reason);
    line += length + (line[length] == '\n');
  }
  return QKV_OK;
}

/* The user's entries as a table of their own. */
static qkv_status make_table(const qkv_engine *e, const spec *s, const qkv_tuned_entry *entries, int count,
                             const char *notes, tuned_table **out) {
  tuned_section head = {.gpu = tuned_gpu(e), .version = qkv_version()};
  *out = tuned_new(s->name);
  if (!*out)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  qkv_status status = take_notes(*out, notes, &head);
  for (int n = 0; n < count && status == QKV_OK; n++) {
    tuned_entry entry;
    status = take_entry(s, entries, n, &entry);
    if (status == QKV_OK &&
        (!variant_hash(s, entry.phase, head.variant) || !tuned_put(*out, &head, &entry, TUNED_REPLACE)))
      status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  return status;
}

/* So that the next preparation of this engine sees the file. */
static void forget_user_tables(const qkv_engine *e) {
  pthread_mutex_lock(&e->tuned->lock);
  e->tuned->stale = true;
  pthread_mutex_unlock(&e->tuned->lock);
}

qkv_status qkv_tuned_write(qkv_engine *e, const qkv_spec *s, const char *path, const qkv_tuned_entry *entries,
                           int count, const char *notes) {
  if (!e || !s || count < 0 || (count && !entries))
    return error_set(QKV_INVALID_ARGUMENT, "%s", !e ? "engine is NULL" : !s ? "spec is NULL" : "entries are missing");
  if (!e->ops)
    return error_set(QKV_NO_DEVICE, "the engine was opened with device \"none\", on which nothing is measured");
  const gpu here = tuned_gpu(e);
  tuned_table *news = NULL;
  if (!path && !*e->tuned->directory)
    return error_set(QKV_IO, "there is no folder for tables: the cache is in memory only, or they are turned off; set "
                             "options.tuned_dir or QKV_TUNED_DIR");
  char *own = path ? strdup(path) : table_path(e->tuned->directory, here.klass, s->parsed->name);
  if (!own)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  qkv_status status = make_table(e, s->parsed, entries, count, notes, &news);
  if (status == QKV_OK)
    status = count ? merge_into(own, news, TUNED_REPLACE) : try_merge(own);
  if (status == QKV_OK && count)
    forget_user_tables(e);
  tuned_free(news);
  free(own);
  return status;
}

const char *qkv_tuned_path(const qkv_engine *e) {
  return e ? e->tuned->directory : "";
}

qkv_status qkv_tuned_bucket(const qkv_spec *s, const char *phase, int64_t batch, int64_t len_q, int64_t len_k,
                            char out[QKV_BUCKET_TEXT]) {
  const int64_t sizes[] = {batch, len_q, len_k};
  _Static_assert((int)QKV_BUCKET_TEXT == (int)BUCKET_TEXT, "the public size is the internal one");
  if (!s || !phase || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !s ? "spec" : !phase ? "phase" : "out");
  for (int n = 0; n < 3; n++)
    if (sizes[n] < 0 || sizes[n] > INT32_MAX)
      return error_set(QKV_INVALID_ARGUMENT, "a size is %lld; it must be 0 to 2147483647", (long long)sizes[n]);
  if (strcmp(phase, "prefill") && strcmp(phase, "decode"))
    return error_set(QKV_INVALID_ARGUMENT, "there are no buckets of phase '%s', but of prefill and decode", phase);
  const bucket b = bucket_of(s->parsed, phase, batch, len_q, len_k);
  bucket_print(&b, out);
  return QKV_OK;
}

/* ---- Merging ---- */

/* What a file has of one class goes to that class's folder. */
static qkv_status merge_class(const char *directory, const tuned_table *from, const char *klass) {
  tuned_table *part = tuned_new(from->spec);
  char *path = table_path(directory, klass, from->spec);
  qkv_status status = part && path ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "out of memory");
  for (const tuned_section *s = from->sections; s && status == QKV_OK; s = s->next)
    for (const tuned_entry *e = s->entries; e && status == QKV_OK && !strcmp(s->gpu.klass, klass); e = e->next)
      if (!tuned_put(part, s, e, TUNED_FASTER))
        status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (status == QKV_OK)
    status = merge_into(path, part, TUNED_FASTER);
  free(path);
  tuned_free(part);
  return status;
}

static bool is_first_of_class(const tuned_table *t, const tuned_section *section) {
  for (const tuned_section *s = t->sections; s != section; s = s->next)
    if (!strcmp(s->gpu.klass, section->gpu.klass))
      return false;
  return true;
}

static qkv_status merge_file(const char *directory, const char *file) {
  char *bytes = NULL;
  size_t size;
  bool absent;
  tuned_table *table;
  qkv_status status = read_file(file, &table, &bytes, &size, &absent);
  for (const tuned_section *s = table ? table->sections : NULL; s && status == QKV_OK; s = s->next)
    if (is_first_of_class(table, s))
      status = merge_class(directory, table, s->gpu.klass);
  tuned_free(table);
  free(bytes);
  return status;
}

qkv_status qkv_tuned_merge(const char *directory, const char *const *files, int count) {
  if (!directory || !*directory || count < 0 || (count && !files))
    return error_set(QKV_INVALID_ARGUMENT, "%s",
                     !directory || !*directory ? "directory is missing" : "files are missing");
  for (int n = 0; n < count; n++) {
    qkv_status status = qkv_tuned_check(files[n]);
    if (status != QKV_OK)
      return status;
  }
  for (int n = 0; n < count; n++) {
    qkv_status status = merge_file(directory, files[n]);
    if (status != QKV_OK)
      return status;
  }
  return QKV_OK;
}

/* ---- Listing ---- */

typedef int (*list_visit)(const qkv_tuned_table *table, const qkv_tuned_entry *entry, void *user);

/* Whether the visit goes on. */
static bool list_section(const qkv_engine *e, const char *file, const tuned_table *t, const tuned_section *s,
                         list_visit visit, void *user) {
  const gpu here = tuned_gpu(e);
  text notes = {0};
  char bucket_text[BUCKET_TEXT];
  bool on = true;
  for (int n = 0; n < s->nnotes; n++)
    text_printf(&notes, "%s: %s\n", s->notes[n].key, s->notes[n].value);
  qkv_tuned_table table = {.size = sizeof table,
                           .file = file,
                           .spec = t->spec,
                           .variant = s->variant,
                           .gpu = s->gpu.name,
                           .gpu_class = s->gpu.klass,
                           .version = s->version,
                           .notes = notes.bytes ? notes.bytes : "",
                           .bucket = bucket_text,
                           .here = e->ops ? (int)gpu_compare(&s->gpu, &here) : 0};
  for (const tuned_entry *entry = s->entries; entry && on; entry = entry->next) {
    const qkv_tuned_entry given = tuned_entry_give(entry);
    bucket_print(&entry->bucket, bucket_text);
    on = visit(&table, &given, user) == 0;
  }
  text_free(&notes);
  return on;
}

static bool list_table(const qkv_engine *e, const char *file, const tuned_table *t, list_visit visit, void *user) {
  for (const tuned_section *s = t->sections; s; s = s->next)
    if (!list_section(e, file, t, s, visit, user))
      return false;
  return true;
}

static qkv_status list_files(const qkv_engine *e, const char *const *files, int count, list_visit visit, void *user) {
  bool on = true;
  for (int n = 0; n < count && on; n++) {
    char *bytes = NULL;
    size_t size;
    bool absent;
    tuned_table *table;
    qkv_status status = read_file(files[n], &table, &bytes, &size, &absent);
    if (status == QKV_BAD_SPEC)
      engine_log(e, QKV_LOG_WARNING, "%s", error_message());
    if (table)
      on = list_table(e, files[n], table, visit, user);
    tuned_free(table);
    free(bytes);
    if (status != QKV_OK && status != QKV_BAD_SPEC)
      return status;
  }
  return QKV_OK;
}

qkv_status qkv_tuned_list(qkv_engine *e, const char *const *files, int count, list_visit visit, void *user) {
  if (!e || !visit)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", e ? "visit" : "engine");
  if (files)
    return list_files(e, files, count, visit, user);
  bool on = true;
  tuned_lock(e);
  for (int place = 0; place < TUNED_PLACES; place++)
    for (tuned_text *t = e->tuned->texts[place]; t && on; t = t->next)
      if (tuned_text_table(e, t))
        on = list_table(e, t->file, t->table, visit, user);
  tuned_unlock(e);
  return QKV_OK;
}
