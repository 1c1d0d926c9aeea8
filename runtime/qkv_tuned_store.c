/* qkv_tuned_store.c: which tables an engine knows: those of the user's folder, of packs, and those built in.
 *
 * The texts are read once, at the first preparation. A text is parsed when a spec asks for it that it may be about: its
 * variant's hash stands in it, or its file has the spec's name (then faults are worth a word). So a folder of many
 * tables costs its reading and no more, and a table is found whatever the spec is called. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "qkv_tuned_internal.h"
#include "template.h"

extern const template_file tuned_files[]; /* made from specs/tuned by tools/embed.c */
extern const int tuned_file_count;

enum { MOST_FILES = 4096 };
#define SUFFIX ".yaml"

/* ---- Opening ---- */

/* Recursive: a log callback or a visit may call the engine. */
static void init_lock(pthread_mutex_t *lock) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

/* A relative path means the folder of now, wherever the process goes later. */
static void put_absolute(const char *path, text *out) {
  char *here = *path && *path != '/' ? getcwd(NULL, 0) : NULL;
  if (here)
    text_printf(out, "%s/", here);
  text_puts(out, path);
  free(here);
}

tuned_store *tuned_open(const char *directory, const char *cache_directory) {
  tuned_store *t = calloc(1, sizeof *t);
  text path = {0};
  if (!t)
    return NULL;
  init_lock(&t->lock);
  t->off = directory && !*directory;
  if (directory)
    put_absolute(directory, &path);
  else if (*cache_directory)
    text_printf(&path, "%s/tuned", cache_directory);
  t->directory = path.bytes ? path.bytes : strdup("");
  if (path.failed || !t->directory) {
    tuned_close(t);
    return NULL;
  }
  return t;
}

static void free_texts(tuned_text *t) {
  while (t) {
    tuned_text *next = t->next;
    tuned_free(t->table);
    free(t->file);
    free(t->owned);
    free(t);
    t = next;
  }
}

void tuned_close(tuned_store *t) {
  if (!t)
    return;
  for (int n = 0; n < TUNED_PLACES; n++)
    free_texts(t->texts[n]);
  free_texts(t->retired);
  free(t->directory);
  pthread_mutex_destroy(&t->lock);
  free(t);
}

/* ---- Texts ---- */

/* Appends a text; owned bytes are freed with it, or at once when memory is out. */
static bool append(tuned_text **list, const char *file, char *owned, const char *bytes, size_t size) {
  tuned_text *t = calloc(1, sizeof *t);
  char *name = strdup(file);
  if (!t || !name) {
    free(t);
    free(name);
    free(owned);
    return false;
  }
  *t = (tuned_text){.file = name, .owned = owned, .bytes = bytes, .size = size};
  while (*list)
    list = &(*list)->next;
  *list = t;
  return true;
}

static bool ends_with(const char *string, const char *suffix) {
  const size_t length = strlen(string), end = strlen(suffix);
  return length > end && strcmp(string + length - end, suffix) == 0;
}

static void warn_unread(const qkv_engine *e, const char *path, int error) {
  engine_log(e, QKV_LOG_WARNING, "%s is not read: %s", path, strerror(error));
}

static void read_table(const qkv_engine *e, const char *path) {
  char *bytes;
  size_t size;
  const int error = file_read(path, TREE_MAX_BYTES, &bytes, &size);
  if (error || !append(&e->tuned->texts[TUNED_USER], path, bytes, bytes, size))
    warn_unread(e, path, error ? error : ENOMEM);
}

static int not_hidden(const struct dirent *d) {
  return d->d_name[0] != '.';
}

/* Every .yaml file of a folder and, `depth` levels down, of those in it, by name. The budget falls below 0 where more
 * files are left. */
static void read_folder(const qkv_engine *e, const char *path, int depth, int *budget) {
  struct dirent **entries = NULL;
  const int count = scandir(path, &entries, not_hidden, alphasort);
  if (count < 0 && errno != ENOENT) /* without the folder there are no tables yet */
    warn_unread(e, path, errno);
  for (int n = 0; n < count; n++) {
    text full = {0};
    struct stat st;
    text_printf(&full, "%s/%s", path, entries[n]->d_name);
    if (full.failed) {
      warn_unread(e, path, ENOMEM);
    } else if (*budget >= 0) {
      const bool known = !stat(full.bytes, &st); /* what is not is said by who reads it */
      if (known && S_ISDIR(st.st_mode) && depth > 0)
        read_folder(e, full.bytes, depth - 1, budget);
      else if (!(known && !S_ISREG(st.st_mode)) && ends_with(full.bytes, SUFFIX) && --*budget >= 0)
        read_table(e, full.bytes);
    }
    text_free(&full);
    free(entries[n]);
  }
  free(entries);
}

static void load_user(const qkv_engine *e) {
  tuned_store *t = e->tuned;
  int budget = MOST_FILES;
  tuned_text **end = &t->retired;
  while (*end)
    end = &(*end)->next;
  *end = t->texts[TUNED_USER];
  t->texts[TUNED_USER] = NULL;
  if (*t->directory)
    read_folder(e, t->directory, 1, &budget);
  if (budget < 0)
    engine_log(e, QKV_LOG_WARNING, "%s has more than %d tables; the rest is not read", t->directory, MOST_FILES);
}

static void load_built_in(tuned_store *t) {
  for (int n = 0; n < tuned_file_count; n++) {
    text name = {0};
    text_printf(&name, "built in: %s", tuned_files[n].path);
    if (!name.failed)
      append(&t->texts[TUNED_BUILT_IN], name.bytes, NULL, tuned_files[n].bytes, tuned_files[n].size);
    text_free(&name);
  }
}

void tuned_lock(qkv_engine *e) {
  tuned_store *t = e->tuned;
  pthread_mutex_lock(&t->lock);
  if (t->off || (t->loaded && !t->stale))
    return;
  load_user(e);
  if (!t->loaded)
    load_built_in(t);
  t->loaded = true;
  t->stale = false;
}

void tuned_unlock(qkv_engine *e) {
  pthread_mutex_unlock(&e->tuned->lock);
}

qkv_status tuned_add(qkv_engine *e, const char *file, const char *bytes, size_t size) {
  char *copy = malloc(size + 1);
  if (!copy)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  memcpy(copy, bytes, size);
  copy[size] = 0;
  pthread_mutex_lock(&e->tuned->lock);
  const bool good = append(&e->tuned->texts[TUNED_PACK], file, copy, copy, size);
  pthread_mutex_unlock(&e->tuned->lock);
  return good ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "out of memory");
}

/* ---- Tables ---- */

void tuned_warn(const qkv_engine *e, const diags *d) {
  for (int n = 0; n < d->count; n++) {
    int line, column;
    diags_position(d, d->items[n].at.offset, &line, &column);
    engine_log(e, QKV_LOG_WARNING, "%s:%d:%d: %s; it is skipped", d->file, line, column, d->items[n].message);
  }
}

tuned_table *tuned_text_table(const qkv_engine *e, tuned_text *t) {
  if (t->parsed)
    return t->table;
  arena *memory = arena_new();
  diags d;
  tuned_result result = TUNED_NO_MEMORY;
  if (memory) {
    diags_init(&d, memory, t->file, t->bytes, t->size);
    result = tuned_parse(t->bytes, t->size, &d, &t->table);
    tuned_warn(e, &d);
  }
  t->parsed = result != TUNED_NO_MEMORY; /* else who asks next tries again */
  if (!t->parsed)
    warn_unread(e, t->file, ENOMEM);
  arena_free(memory);
  return t->table;
}

bool tuned_may_know(const tuned_text *t, const char *hash, const char *spec_name) {
  const char *slash = strrchr(t->file, '/'), *base = slash ? slash + 1 : t->file;
  const size_t length = strlen(spec_name);
  return strstr(t->bytes, hash) || (strncmp(base, spec_name, length) == 0 && strcmp(base + length, SUFFIX) == 0);
}

/* Puts what the texts of a list say of the variant; the first of them last, so that it stays. */
static bool collect_list(const qkv_engine *e, const spec *s, const char *hash, tuned_text *t, tuned_table *into) {
  if (!t)
    return true;
  if (!collect_list(e, s, hash, t->next, into))
    return false;
  tuned_table *table = tuned_may_know(t, hash, s->name) ? tuned_text_table(e, t) : NULL;
  for (tuned_section *section = table ? table->sections : NULL; section; section = section->next)
    for (tuned_entry *entry = section->entries; entry && !strcmp(section->variant, hash); entry = entry->next)
      if (!entry->refused && !tuned_put(into, section, entry, TUNED_REPLACE))
        return false;
  return true;
}

qkv_status tuned_collect(qkv_engine *e, const spec *s, text *out) {
  char hash[VARIANT_HASH_SIZE];
  tuned_table *into = tuned_new(s->name);
  bool good = into && variant_hash(s, "prefill", hash); /* that of decode, too */
  if (good) {
    tuned_lock(e);
    for (int place = TUNED_PLACES - 1; place >= 0 && good; place--)
      good = collect_list(e, s, hash, e->tuned->texts[place], into);
    tuned_unlock(e);
  }
  if (good && into->sections)
    tuned_print(into, out);
  tuned_free(into);
  return good && !out->failed ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "out of memory");
}

gpu tuned_gpu(const qkv_engine *e) {
  const qkv_device_info *info = &e->info;
  gpu g = {.major = e->arch->capability_major,
           .minor = e->arch->capability_minor,
           .sm_count = info->sm_count > 1 ? info->sm_count : 1,
           .l2_bytes = info->l2_bytes > 1 ? info->l2_bytes : 1,
           .memory_bandwidth = info->memory_bandwidth > 1 ? info->memory_bandwidth : 1,
           .shared_per_block = info->shared_per_block > 1 ? info->shared_per_block : 1};
  snprintf(g.name, sizeof g.name, "%s", *info->name ? info->name : "unknown");
  gpu_class(g.name, g.klass);
  return g;
}
