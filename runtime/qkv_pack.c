/* qkv_pack.c: packs as the facade uses them: which ones an engine has, and what they answer.
 *
 * A pack answers two questions. "Which kernels has an op for this request?" is asked before anything is rendered, so
 * that a warm start runs no Lua; its key is a hash of all that decides it (request_key). "Is there an image of this
 * source?" is asked after rendering, by the cache's key, for requests that nobody recorded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_tuned_internal.h"
#include "template.h"

const char *role_name(int which) {
  static const char *const names[ROLES] = {"primary", "unaligned tensors", "few queries"};
  return names[which];
}

/* ---- Which packs ---- */

static void report_damage(const qkv_engine *e, const pack *p, const pack_record *r) {
  char key[CACHE_KEY_SIZE];
  pack_key_hex(r->key, key);
  engine_log(e, QKV_LOG_WARNING, "pack %s: record %d (%s %s) is damaged and is not used", pack_name(p), r->number,
             pack_kind_name(r->kind), key);
}

static qkv_status refuse(pack_status status, const text *why) {
  const qkv_status statuses[] = {QKV_OK, QKV_IO, QKV_UNSUPPORTED, QKV_IO, QKV_OUT_OF_MEMORY};
  return error_set(statuses[status], "%s", why->bytes && !why->failed ? why->bytes : "out of memory");
}

void bundle_maker(pack_maker *out) {
  *out = (pack_maker){.version = GEN_VERSION, .manifest_format = MANIFEST_FORMAT};
  template_digest(out->templates);
}

/* Kernels of another version may want other parameters than this one binds: such a pack is refused whole. Those of
 * other templates bind alike, and serve what they were made for. */
static qkv_status check_maker(const qkv_engine *e, const pack *p) {
  pack_maker own;
  const pack_maker *theirs = pack_made_by(p);
  bundle_maker(&own);
  if (strcmp(theirs->version, own.version) || theirs->manifest_format != own.manifest_format)
    return error_set(QKV_UNSUPPORTED,
                     "pack %s: was made by qkvc %s (manifest format %d), this is %s (%d): its kernels are not used; "
                     "make it anew with `qkvc bundle`",
                     pack_name(p), theirs->version, theirs->manifest_format, own.version, own.manifest_format);
  if (strcmp(theirs->templates, own.templates))
    engine_log(e, QKV_LOG_INFO, "pack %s: was made from other templates; it answers the requests that it recorded",
               pack_name(p));
  return QKV_OK;
}

/* The engine's tables grow by those of the pack, which come behind the user's. */
static qkv_status take_tables(qkv_engine *e, const pack *p) {
  qkv_status status = QKV_OK;
  for (int n = 0; n < pack_count(p) && status == QKV_OK; n++) {
    pack_record r;
    const char *name, *bytes;
    size_t size;
    const int valid = pack_kind_of(p, n) == PACK_TABLE ? pack_at(p, n, &r) : 0;
    if (valid == 0)
      continue;
    if (valid < 0 || !pack_read_named(&r, &name, &bytes, &size)) {
      report_damage(e, p, &r);
      continue;
    }
    text file = {0};
    text_printf(&file, "%s: %s.yaml", pack_name(p), name);
    status = file.failed ? error_set(QKV_OUT_OF_MEMORY, "out of memory") : tuned_add(e, file.bytes, bytes, size);
    text_free(&file);
  }
  return status;
}

/* Whether there is room for one more pack, which is kept for the caller. Not held while tables are taken: that may say
 * something in the log, whose callback may load a pack. */
static bool reserve_place(qkv_engine *e) {
  pthread_mutex_lock(&e->packs_lock);
  const bool room = e->packs_reserved < ENGINE_PACKS;
  e->packs_reserved += room;
  pthread_mutex_unlock(&e->packs_lock);
  return room;
}

/* Uses the place; p NULL: gives it back. */
static void use_place(qkv_engine *e, pack *p) {
  pthread_mutex_lock(&e->packs_lock);
  if (p) {
    e->packs[e->npacks] = p;
    e->npacks++; /* readers see the pack before the count that includes it */
  } else {
    e->packs_reserved--;
  }
  pthread_mutex_unlock(&e->packs_lock);
}

/* Takes p over. */
static qkv_status add_pack(qkv_engine *e, pack *p) {
  qkv_status status = check_maker(e, p);
  if (status == QKV_OK && !reserve_place(e))
    status = error_set(QKV_INVALID_ARGUMENT, "pack %s: an engine has at most %d packs", pack_name(p), ENGINE_PACKS);
  else if (status == QKV_OK) {
    status = take_tables(e, p);
    use_place(e, status == QKV_OK ? p : NULL);
  }
  if (status != QKV_OK) {
    pack_close(p);
    return status;
  }
  engine_log(e, QKV_LOG_INFO, "pack %s: %d records", pack_name(p), pack_count(p));
  return QKV_OK;
}

qkv_status qkv_pack_load(qkv_engine *e, const char *path) {
  if (!e || !path)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", e ? "path" : "engine");
  pack *p;
  text why = {0};
  const pack_status opened = pack_open_file(path, &p, &why);
  qkv_status status = opened == PACK_OK ? add_pack(e, p) : refuse(opened, &why);
  text_free(&why);
  return status;
}

qkv_status qkv_pack_load_memory(qkv_engine *e, const void *bytes, size_t size) {
  if (!e || !bytes)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", e ? "bytes" : "engine");
  pack *p;
  text why = {0};
  const pack_status opened = pack_open_memory(bytes, size, "(memory)", &p, &why);
  qkv_status status = opened == PACK_OK ? add_pack(e, p) : refuse(opened, &why);
  text_free(&why);
  return status;
}

static void open_or_warn(qkv_engine *e, const char *path) {
  if (qkv_pack_load(e, path) != QKV_OK)
    engine_log(e, QKV_LOG_WARNING, "%s", error_message());
}

void packs_open(qkv_engine *e, const qkv_options *o) {
  const char *variable = getenv("QKV_PACKS");
  if (o->packs) {
    for (const char *const *path = o->packs; *path; path++)
      open_or_warn(e, *path);
    return;
  }
  char *paths = variable && *variable ? strdup(variable) : NULL;
  if (variable && *variable && !paths)
    engine_log(e, QKV_LOG_WARNING, "QKV_PACKS: out of memory; no pack is used");
  for (char *rest = paths, *path; rest && (path = strsep(&rest, ":")) != NULL;)
    if (*path)
      open_or_warn(e, path);
  free(paths);
}

void packs_close(qkv_engine *e) {
  for (int n = 0; n < e->npacks; n++)
    pack_close(e->packs[n]);
  e->npacks = 0;
}

void packs_describe(const qkv_engine *e, text *out) {
  const int count = e->npacks;
  if (count == 0)
    text_puts(out, "no pack");
  for (int n = 0; n < count; n++)
    text_printf(out, "%s%s", n ? ", " : count > 1 ? "the packs " : "the pack ", pack_name(e->packs[n]));
}

/* ---- What is asked ---- */

static void put_maximum(text *out, const char *name, int64_t value, bool matters) {
  if (matters)
    text_printf(out, " %s=%lld", name, (long long)value);
}

void request_words(const spec *s, const compiler_ops *compiler, const gen_request *r, const char *tuned, unsigned reads,
                   text *out) {
  text_printf(out, "%s %s %s", s->name, compiler->name, r->arch->name);
  const struct {
    const char *name, *value;
  } rows[] = {{"phase", r->phase}, {"family", r->family}, {"schedule", r->schedule}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
    if (rows[n].value)
      text_printf(out, " %s=%s", rows[n].name, rows[n].value);
  put_maximum(out, "batch", r->batch, reads & GEN_READ_BATCH);
  put_maximum(out, "len_q", r->len_q, reads & GEN_READ_LEN_Q);
  if (gen_is_decode(r) && !(reads & GEN_READ_LEN_Q))
    text_puts(out, " few");
  if (*tuned)
    text_puts(out, " tuned");
}

bool request_key(const spec *s, const compiler_ops *compiler, const gen_request *r, const char *tuned, unsigned reads,
                 unsigned char key[PACK_KEY_SIZE]) {
  text t = {0};
  text_puts(&t, "request 1\n");
  build_target(compiler, r->arch->name, &t);
  text_printf(&t, "\nphase %s\nfamily %s\nschedule %s\ndecode %d\n", r->phase ? r->phase : "-",
              r->family ? r->family : "-", r->schedule ? r->schedule : "-", gen_is_decode(r));
  put_maximum(&t, "batch", r->batch, reads & GEN_READ_BATCH);
  put_maximum(&t, "len_q", r->len_q, reads & GEN_READ_LEN_Q);
  text_printf(&t, "\n%s", tuned);
  dispatch_describe(s, &t);
  for (int n = 0; n < s->nschedule; n++) {
    const spec_schedule_field *f = &s->schedule[n];
    text_printf(&t, "field %s %s %s\n", f->phase ? f->phase : "-", f->name, f->value);
  }
  spec_canonical(s, &t);
  const bool ok = !t.failed;
  if (ok)
    pack_hash(t.bytes, t.size, key);
  text_free(&t);
  return ok;
}

/* ---- What is answered ---- */

/* pack_find, which says what is damaged. */
static bool find(const qkv_engine *e, const pack *p, pack_kind kind, const unsigned char key[PACK_KEY_SIZE], int digits,
                 pack_record *out) {
  const int found = pack_find(p, kind, key, digits, out);
  if (found < 0)
    report_damage(e, p, out);
  return found > 0;
}

bool packs_find_kernel(qkv_engine *e, const char *key, pack_kernel *out) {
  const int count = e->npacks;
  unsigned char wanted[PACK_KEY_SIZE];
  pack_record r;
  pack_key_of(key, wanted);
  for (int n = 0; n < count; n++)
    if (find(e, e->packs[n], PACK_KERNEL, wanted, CACHE_SOURCE_DIGITS, &r)) {
      if (pack_read_kernel(&r, out))
        return true;
      report_damage(e, e->packs[n], &r);
    }
  return false;
}

/* The kernels that a request record names, all of them. */
static bool resolve(const qkv_engine *e, const pack *p, const pack_record *r, packed_op *out) {
  pack_request request;
  if (!pack_read_request(r, &request))
    return report_damage(e, p, r), false;
  *out = (packed_op){.pack = p, .roles = request.roles};
  for (int which = 0; which < ROLES; which++) {
    pack_record kernel;
    if (!(request.roles & 1u << which))
      continue;
    if (!find(e, p, PACK_KERNEL, request.kernels[which], 2 * PACK_KEY_SIZE, &kernel))
      return false;
    if (!pack_read_kernel(&kernel, &out->kernels[which]))
      return report_damage(e, p, &kernel), false;
  }
  return out->roles & 1u << ROLE_PRIMARY;
}

void request_tuned(const tuned_choice *primary, const tuned_choice *few, text *out) {
  const tuned_choice *choices[] = {primary, few};
  for (int n = 0; n < 2; n++)
    if (choices[n] && choices[n]->entry)
      text_printf(out, "tuned %d %s %s %s\n", n, choices[n]->entry->phase, choices[n]->entry->family,
                  choices[n]->entry->schedule);
}

/* What the tables say to a request on this device. */
typedef struct advice {
  tuned_choice primary, few;
  bool has_few;
  text words; /* freed by the caller */
} advice;

static bool consult_tables(qkv_engine *e, const spec *s, const gen_request *r, advice *out) {
  char reason[DISPATCH_REASON];
  gen_request few;
  out->words = (text){0};
  out->has_few = dispatch_few_request(s, r, &few, reason);
  if (tuned_choose(e, s, r, &out->primary) != QKV_OK || (out->has_few && tuned_choose(e, s, &few, &out->few) != QKV_OK))
    return false;
  request_tuned(&out->primary, out->has_few ? &out->few : NULL, &out->words);
  return !out->words.failed;
}

static bool find_request(qkv_engine *e, const spec *s, const gen_request *r, const char *tuned, packed_op *out) {
  enum { READS = 4 }; /* every set of maxima that a recorded rendering can have looked at */
  const int count = e->npacks;
  unsigned char keys[READS][PACK_KEY_SIZE];
  for (unsigned reads = 0; reads < READS; reads++)
    if (!request_key(s, e->compiler, r, tuned, reads, keys[reads]))
      return false;
  for (int n = 0; n < count; n++)
    for (unsigned reads = 0; reads < READS; reads++) {
      pack_record record;
      if (find(e, e->packs[n], PACK_REQUEST, keys[reads], 2 * PACK_KEY_SIZE, &record) &&
          resolve(e, e->packs[n], &record, out))
        return true;
    }
  return false;
}

bool packs_find_op(qkv_engine *e, const spec *s, const gen_request *r, packed_op *out) {
  if (!e->npacks || e->template_path) /* templates of one's own are to be rendered */
    return false;
  advice tuned;
  const bool found =
      consult_tables(e, s, r, &tuned) && find_request(e, s, r, tuned.words.bytes ? tuned.words.bytes : "", out);
  if (found) { /* else those say it who render */
    tuned_say(e, s, &tuned.primary);
    if (tuned.has_few)
      tuned_say(e, s, &tuned.few);
  }
  text_free(&tuned.words);
  return found;
}

/* ---- Specs ---- */

qkv_status qkv_spec_from_pack(qkv_engine *e, const char *name, qkv_spec **out) {
  if (out)
    *out = NULL;
  if (!e || !name || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !e ? "engine" : !name ? "name" : "out");
  const int count = e->npacks;
  unsigned char key[PACK_KEY_SIZE];
  pack_record r;
  pack_hash(name, strlen(name), key);
  for (int n = 0; n < count; n++) {
    const char *own, *bytes;
    size_t size;
    if (!find(e, e->packs[n], PACK_SPEC, key, 2 * PACK_KEY_SIZE, &r))
      continue;
    if (!pack_read_named(&r, &own, &bytes, &size) || strcmp(own, name)) {
      report_damage(e, e->packs[n], &r);
      continue;
    }
    char *source = strndup(bytes, size);
    if (!source)
      return error_set(QKV_OUT_OF_MEMORY, "out of memory");
    qkv_status status = qkv_spec_load(e, source, out);
    free(source);
    return status == QKV_OK ? QKV_OK : error_context(status, "pack %s, spec %s: ", pack_name(e->packs[n]), name);
  }
  text where = {0};
  packs_describe(e, &where);
  qkv_status status = error_set(QKV_INVALID_ARGUMENT, "no spec '%s' in %s", name, where.bytes ? where.bytes : "packs");
  text_free(&where);
  return status;
}

/* ---- Listing ---- */

typedef struct listing {
  qkv_pack_info info;
  int (*visit)(const qkv_pack_entry *entry, void *user);
  void *user;
} listing;

/* The value of "key=value" when that is the key, or NULL. */
static const char *value_of(const char *word, const char *key) {
  const size_t length = strlen(key);
  return !strncmp(word, key, length) && word[length] == '=' ? word + length + 1 : NULL;
}

/* Reads what request_words wrote; `words` is cut up and lives as long as the entry. */
static void describe_request(char *words, qkv_pack_entry *entry) {
  const char **const first[] = {&entry->spec, &entry->detail, &entry->arch};
  int count = 0;
  entry->batch = entry->len_q = -1;
  for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL; count++) {
    const char *value;
    if (count < 3)
      *first[count] = word;
    else if ((value = value_of(word, "phase")) != NULL)
      entry->phase = value;
    else if ((value = value_of(word, "family")) != NULL)
      entry->family = value;
    else if ((value = value_of(word, "schedule")) != NULL)
      entry->schedule = value;
    else if ((value = value_of(word, "batch")) != NULL)
      entry->batch = strtoll(value, NULL, 10);
    else if ((value = value_of(word, "len_q")) != NULL)
      entry->len_q = strtoll(value, NULL, 10);
    else
      entry->few |= !strcmp(word, "few");
  }
  entry->valid = count >= 3;
}

/* Describes a record that verified; text that it makes goes into `words` and `parts`. own_manifests: they are of this
 * version's format. */
static void describe_record(const pack_record *r, bool own_manifests, manifest *m, text *words, text *parts,
                            qkv_pack_entry *entry) {
  pack_kernel kernel;
  pack_request request;
  const char *name, *bytes;
  size_t size;
  if (r->kind == PACK_KERNEL && pack_read_kernel(r, &kernel) && !own_manifests) {
    entry->name = "?"; /* whole, and only another version can read more */
  } else if (r->kind == PACK_KERNEL && pack_read_kernel(r, &kernel) &&
             manifest_read(kernel.manifest, kernel.manifest_size, m)) {
    entry->name = m->family;
    entry->arch = m->arch;
    entry->detail = m->schedule;
  } else if (r->kind == PACK_REQUEST && pack_read_request(r, &request)) {
    text_add(words, request.words, request.words_size);
    text_add(parts, request.words, request.words_size);
    entry->name = words->bytes ? words->bytes : "";
    if (parts->bytes)
      describe_request(parts->bytes, entry);
    for (int which = 0; which < ROLES; which++)
      entry->kernels += (request.roles & 1u << which) != 0;
  } else if ((r->kind == PACK_SPEC || r->kind == PACK_TABLE) && pack_read_named(r, &name, &bytes, &size)) {
    entry->name = name;
    text_add(words, bytes, size);
    entry->text = words->bytes ? words->bytes : "";
  } else if (r->kind >= PACK_KERNEL && r->kind <= PACK_TABLE) {
    entry->valid = 0; /* of a kind that is known, and not what that should be */
  }
}

static qkv_status list_records(const pack *p, listing *l) {
  manifest *m = malloc(sizeof *m);
  if (!m)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  const bool own_manifests = pack_made_by(p)->manifest_format == MANIFEST_FORMAT;
  for (int n = 0, stop = 0; n < pack_count(p) && !stop; n++) {
    pack_record r;
    text words = {0}, parts = {0};
    char key[CACHE_KEY_SIZE];
    qkv_pack_entry entry = {.size = sizeof entry, .name = "", .arch = "", .detail = ""};
    entry.valid = pack_at(p, n, &r) > 0;
    entry.number = n;
    entry.kind = pack_kind_name(r.kind);
    entry.bytes = (int64_t)r.size;
    pack_key_hex(r.key, key);
    entry.key = key;
    if (entry.valid)
      describe_record(&r, own_manifests, m, &words, &parts, &entry);
    l->info.damaged += !entry.valid;
    if (l->visit)
      stop = l->visit(&entry, l->user);
    text_free(&words);
    text_free(&parts);
  }
  free(m);
  return QKV_OK;
}

qkv_status qkv_pack_list(const char *path, qkv_pack_info *info, int (*visit)(const qkv_pack_entry *entry, void *user),
                         void *user) {
  if (!path)
    return error_set(QKV_INVALID_ARGUMENT, "path is NULL");
  pack *p;
  text why = {0};
  const pack_status opened = pack_open_file(path, &p, &why);
  qkv_status status = opened == PACK_OK ? QKV_OK : refuse(opened, &why);
  text_free(&why);
  if (status != QKV_OK)
    return status;
  pack_maker own;
  const pack_maker *theirs = pack_made_by(p);
  listing l = {
      .info = {.size = sizeof l.info, .bytes = pack_size(p), .records = pack_count(p)}, .visit = visit, .user = user};
  bundle_maker(&own);
  snprintf(l.info.version, sizeof l.info.version, "%s", theirs->version);
  l.info.usable = !strcmp(theirs->version, own.version) && theirs->manifest_format == own.manifest_format;
  l.info.same_templates = !strcmp(theirs->templates, own.templates);
  status = list_records(p, &l);
  if (status == QKV_OK && info)
    status = struct_give(info, &l.info, sizeof l.info, "info");
  pack_close(p);
  return status;
}
