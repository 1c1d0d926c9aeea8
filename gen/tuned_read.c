/* tuned_read.c: text to table. Everything that can be wrong with a line is in a table of fields; what is wrong with one
 * entry costs that entry, what is wrong with a section's head that section. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "spec_check.h"
#include "tree.h"
#include "tuned.h"

typedef struct reader {
  arena *memory;
  diags *diags;
  tuned_table *table;
  bool damaged;
} reader;

/* ---- Fields ---- */

typedef enum kind {
  FIELD_TEXT,       /* const char *: any text */
  FIELD_WORD,       /* const char *: a-z, then a-z 0-9 _ */
  FIELD_PHASE,      /* const char * */
  FIELD_HASH,       /* const char *: 32 hexadecimal digits */
  FIELD_SCHEDULE,   /* const char *: axis=value,... or nothing */
  FIELD_CAPABILITY, /* const char *: 9.0 */
  FIELD_BUCKET,     /* bucket */
  FIELD_INTEGER,    /* int64_t, 1 and up */
  FIELD_REAL,       /* double, above 0 */
  FIELD_NODE        /* const tree_node *: looked at elsewhere */
} kind;

typedef struct field {
  const char *key;
  kind kind;
  bool optional;
  size_t offset;
} field;

static const char *const kind_words[] = {"a text without control characters, at most 1024 bytes long",
                                         "a word of a-z 0-9 _ that starts with a letter",
                                         "prefill or decode",
                                         "32 hexadecimal digits",
                                         "axis=value, several with commas between them",
                                         "a compute capability such as 9.0",
                                         "a bucket such as b4 q8192 k8192, b64 r8 k8192 or any",
                                         "an integer from 1 to 2^53",
                                         "a decimal number greater than 0, of at most 15 digits",
                                         ""};

bool tuned_is_word(const char *value) {
  return spec_is_name(value, 64);
}

/* Digits with at most one point among them; the quotient of two exact numbers is the nearest one. */
static bool read_real(const char *value, double *out) {
  int64_t digits = 0, scale = 1;
  int count = 0;
  bool point = false;
  for (const char *p = value; *p; p++) {
    if (*p == '.' && !point && p != value && p[1]) {
      point = true;
    } else if (*p >= '0' && *p <= '9' && count < 15) {
      digits = 10 * digits + (*p - '0');
      scale *= point ? 10 : 1;
      count += digits > 0;
    } else {
      return false;
    }
    if (scale > (int64_t)1e15)
      return false;
  }
  *out = (double)digits / (double)scale;
  return digits > 0;
}

bool tuned_is_schedule(const char *value) {
  const char *p = value;
  while (*p) {
    const size_t name = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789_");
    const size_t number = p[name] == '=' ? strspn(p + name + 1, "0123456789-") : 0;
    if (!name || !number)
      return false;
    p += name + 1 + number;
    if (*p == ',' && p[1])
      p++;
    else if (*p)
      return false;
  }
  return true;
}

/* "9.0"; both parts at most 3 digits. */
static bool read_capability(const char *value, int *major, int *minor) {
  char *end;
  const size_t first = strspn(value, "0123456789");
  if (!first || first > 3 || value[first] != '.')
    return false;
  const size_t second = strspn(value + first + 1, "0123456789");
  *major = (int)strtol(value, &end, 10);
  *minor = (int)strtol(value + first + 1, &end, 10);
  return second && second <= 3 && !*end;
}

static bool read_integer(const char *value, int64_t *out) {
  double real;
  if (!*value || value[strspn(value, "0123456789")] || *value == '0' || strlen(value) > 16)
    return false;
  *out = strtoll(value, NULL, 10);
  real = (double)*out;
  return real <= 9007199254740992.0;
}

/* Puts a scalar where its field says; false for one that the kind does not allow. */
static bool read_value(kind k, const char *value, void *to) {
  int ignored[2];
  switch (k) {
  case FIELD_BUCKET:
    return bucket_parse(value, to);
  case FIELD_INTEGER:
    return read_integer(value, to);
  case FIELD_REAL:
    return read_real(value, to);
  default:
    *(const char **)to = value;
    return k == FIELD_TEXT       ? tuned_is_text(value)
           : k == FIELD_WORD     ? tuned_is_word(value)
           : k == FIELD_PHASE    ? !strcmp(value, "prefill") || !strcmp(value, "decode")
           : k == FIELD_HASH     ? strlen(value) == 32 && value[strspn(value, "0123456789abcdef")] == 0
           : k == FIELD_SCHEDULE ? tuned_is_schedule(value)
                                 : read_capability(value, &ignored[0], &ignored[1]);
  }
}

static diag_span start_of(const tree_node *node) {
  return node->kind == TREE_SCALAR ? node->at : (diag_span){node->at.offset, 1};
}

/* Whether the text ends with the value and without the end of the line: what was copied in part may end in a number. */
static bool may_be_cut(const reader *r, const tree_node *value) {
  return value->at.offset + value->at.length >= r->diags->size;
}

static bool read_field(reader *r, const field *f, const char *path, const tree_entry *e, void *out) {
  void *to = (char *)out + f->offset;
  if (f->kind == FIELD_NODE) {
    *(const tree_node **)to = e->value;
    return true;
  }
  const bool scalar = e->value->kind == TREE_SCALAR && !e->value->absent;
  if (scalar && may_be_cut(r, e->value)) {
    diag_add(r->diags, DIAG_WRONG_TYPE, e->value->at,
             "the text ends in %s.%s, which may be cut short: its last line has no end", path, f->key);
    return false;
  }
  if (scalar && read_value(f->kind, e->value->value, to))
    return true;
  diag_add(r->diags, DIAG_WRONG_TYPE, scalar ? e->value->at : e->key->at, "%s.%s must be %s%s%s", path, f->key,
           kind_words[f->kind], scalar ? ", not " : "", scalar ? spec_quote(r->memory, e->value->value) : "");
  return false;
}

/* Fills `out` from a mapping; false after diagnostics. `owner` is where a complaint about the whole points. */
static bool read_fields(reader *r, const field *fields, int count, const char *path, const tree_node *node, void *out) {
  const char *keys[16], *missing = "";
  bool good = true;
  if (node->kind != TREE_MAPPING) {
    diag_add(r->diags, DIAG_WRONG_TYPE, start_of(node), "%s must be a mapping", path);
    return false;
  }
  for (int n = 0; n < count; n++)
    keys[n] = fields[n].key;
  for (const tree_entry *e = node->first; e; e = e->next) {
    int n = 0;
    while (n < count && strcmp(keys[n], e->key->value) != 0)
      n++;
    if (n < count) {
      good &= read_field(r, &fields[n], path, e, out);
      continue;
    }
    const char *near = diag_nearest(e->key->value, keys, count);
    diag_add(r->diags, DIAG_UNKNOWN_KEY, e->key->at, "unknown key %s in %s", spec_quote(r->memory, e->key->value),
             path);
    if (near)
      diag_hint(r->diags, "did you mean '%s'?", near);
    good = false;
  }
  for (int n = 0; n < count; n++)
    if (!fields[n].optional && !tree_get(node, keys[n]))
      missing = arena_printf(r->memory, "%s%s'%s'", missing, *missing ? ", " : "", keys[n]);
  if (*missing)
    diag_add(r->diags, DIAG_MISSING_KEY, (diag_span){node->at.offset, 1}, "%s lacks the key%s %s", path,
             strchr(missing, ',') ? "s" : "", missing);
  return good && !*missing;
}

#define READ(r_, fields_, path_, node_, out_)                                                                          \
  read_fields(r_, fields_, (int)(sizeof fields_ / sizeof fields_[0]), path_, node_, out_)
#define AT(struct_, member_) offsetof(struct struct_, member_)

/* ---- Entries ---- */

struct raw_entry {
  const tree_node *workload_node, *us_node;
  tuned_entry entry;
};

static const field entry_fields[] = {{"phase", FIELD_PHASE, false, AT(raw_entry, entry.phase)},
                                     {"bucket", FIELD_BUCKET, false, AT(raw_entry, entry.bucket)},
                                     {"workload", FIELD_NODE, true, AT(raw_entry, workload_node)},
                                     {"family", FIELD_WORD, false, AT(raw_entry, entry.family)},
                                     {"schedule", FIELD_SCHEDULE, false, AT(raw_entry, entry.schedule)},
                                     {"us", FIELD_NODE, false, AT(raw_entry, us_node)},
                                     {"default", FIELD_SCHEDULE, false, AT(raw_entry, entry.default_schedule)},
                                     {"default_us", FIELD_REAL, false, AT(raw_entry, entry.default_us)}};
static const field workload_fields[] = {{"name", FIELD_TEXT, false, AT(tuned_entry, workload)},
                                        {"batch", FIELD_INTEGER, false, AT(tuned_entry, batch)},
                                        {"q", FIELD_INTEGER, false, AT(tuned_entry, len_q)},
                                        {"kv", FIELD_INTEGER, false, AT(tuned_entry, len_k)}};
static const field us_fields[] = {{"median", FIELD_REAL, false, AT(tuned_entry, us)},
                                  {"p10", FIELD_REAL, false, AT(tuned_entry, low)},
                                  {"p90", FIELD_REAL, false, AT(tuned_entry, high)}};

/* What relates the fields of an entry to each other. */
static bool check_entry(reader *r, const char *path, const tree_node *node, const struct raw_entry *raw) {
  const tuned_entry *e = &raw->entry;
  const char *wrong = NULL;
  if (e->bucket.any == (e->workload != NULL))
    wrong = e->workload ? "has a workload, but bucket any is for all of them" : "has a bucket but no workload";
  else if (!e->bucket.any && e->bucket.decode != (strcmp(e->phase, "decode") == 0))
    wrong = e->bucket.decode ? "has rows (r) in its bucket, which are decode's"
                             : "has queries (q) in its bucket, not "
                               "decode's rows (r)";
  else if (!(e->low <= e->us && e->us <= e->high))
    wrong = "must have p10 <= median <= p90";
  else if (e->workload && (e->batch > INT32_MAX || e->len_q > INT32_MAX || e->len_k > INT32_MAX))
    wrong = "has a size above 2147483647";
  if (wrong)
    diag_add(r->diags, DIAG_CONFLICT, (diag_span){node->at.offset, 1}, "%s %s", path, wrong);
  return !wrong;
}

static bool read_entry(reader *r, const char *path, const tree_node *node, tuned_entry *out) {
  struct raw_entry raw = {0};
  bool good = READ(r, entry_fields, path, node, &raw);
  if (raw.workload_node)
    good &= READ(r, workload_fields, arena_printf(r->memory, "%s.workload", path), raw.workload_node, &raw.entry);
  if (raw.us_node)
    good &= READ(r, us_fields, arena_printf(r->memory, "%s.us", path), raw.us_node, &raw.entry);
  good = good && check_entry(r, path, node, &raw);
  *out = raw.entry;
  out->at = node->at;
  return good;
}

/* ---- Sections ---- */

struct raw_gpu {
  const char *name, *klass, *capability;
  int64_t sm_count, l2_bytes, shared_per_block;
  double memory_bandwidth;
};

static const field gpu_fields[] = {{"name", FIELD_TEXT, false, AT(raw_gpu, name)},
                                   {"class", FIELD_TEXT, false, AT(raw_gpu, klass)},
                                   {"capability", FIELD_CAPABILITY, false, AT(raw_gpu, capability)},
                                   {"sm_count", FIELD_INTEGER, false, AT(raw_gpu, sm_count)},
                                   {"l2_bytes", FIELD_INTEGER, false, AT(raw_gpu, l2_bytes)},
                                   {"memory_bandwidth", FIELD_REAL, false, AT(raw_gpu, memory_bandwidth)},
                                   {"shared_per_block", FIELD_INTEGER, false, AT(raw_gpu, shared_per_block)}};

struct raw_section {
  const tree_node *gpu, *measured, *entries;
  const char *variant, *version;
};

static const field section_fields[] = {{"gpu", FIELD_NODE, false, AT(raw_section, gpu)},
                                       {"variant", FIELD_HASH, false, AT(raw_section, variant)},
                                       {"qkvc", FIELD_TEXT, false, AT(raw_section, version)},
                                       {"measured", FIELD_NODE, true, AT(raw_section, measured)},
                                       {"entries", FIELD_NODE, false, AT(raw_section, entries)}};

static bool read_gpu(reader *r, const char *path, const tree_node *node, gpu *out) {
  struct raw_gpu raw = {0};
  char klass[GPU_CLASS];
  if (!READ(r, gpu_fields, path, node, &raw))
    return false;
  if (strlen(raw.name) >= sizeof out->name) {
    diag_add(r->diags, DIAG_OUT_OF_RANGE, start_of(node), "%s.name is longer than %d bytes", path, GPU_NAME - 1);
    return false;
  }
  gpu_class(raw.name, klass);
  if (strcmp(raw.klass, klass) != 0) {
    diag_add(r->diags, DIAG_CONFLICT, start_of(node), "%s.class must be %s, which is made from the name, not %s", path,
             klass, spec_quote(r->memory, raw.klass));
    return false;
  }
  strcpy(out->name, raw.name);
  strcpy(out->klass, klass);
  read_capability(raw.capability, &out->major, &out->minor);
  out->sm_count = raw.sm_count > INT32_MAX ? INT32_MAX : (int)raw.sm_count;
  out->l2_bytes = raw.l2_bytes;
  out->memory_bandwidth = raw.memory_bandwidth;
  out->shared_per_block = raw.shared_per_block;
  return true;
}

/* Free lines: only their form is looked at. */
static bool read_notes(reader *r, const char *path, const tree_node *node, tuned_section *s) {
  char reason[160];
  if (node->kind != TREE_MAPPING) {
    diag_add(r->diags, DIAG_WRONG_TYPE, start_of(node), "%s must be a mapping", path);
    return false;
  }
  for (const tree_entry *e = node->first; e; e = e->next) {
    const bool scalar = e->value->kind == TREE_SCALAR && !e->value->absent;
    const char *line = arena_printf(r->memory, "%s: %s", e->key->value, scalar ? e->value->value : "");
    if (!tuned_note_parse(r->memory, line, strlen(line), s, reason)) {
      diag_add(r->diags, DIAG_WRONG_TYPE, e->key->at, "%s: %s", path, reason);
      return false;
    }
  }
  return true;
}

static void read_entries(reader *r, const char *path, const tree_node *node, tuned_section *s) {
  int number = 0;
  if (node->kind != TREE_SEQUENCE) {
    diag_add(r->diags, DIAG_WRONG_TYPE, start_of(node), "%s must be a list", path);
    r->damaged = true;
    return;
  }
  tuned_entry **tail = &s->entries;
  for (const tree_entry *e = node->first; e; e = e->next, number++) {
    tuned_entry entry, *twin = s->entries;
    const char *name = arena_printf(r->memory, "%s[%d]", path, number);
    bool good = read_entry(r, name, e->value, &entry);
    while (good && twin && !(bucket_equal(&twin->bucket, &entry.bucket) && !strcmp(twin->phase, entry.phase)))
      twin = twin->next;
    if (good && twin) {
      int line, column;
      diags_position(r->diags, twin->at.offset, &line, &column);
      diag_add(r->diags, DIAG_DUPLICATE_KEY, (diag_span){e->value->at.offset, 1},
               "%s has the phase and bucket of the entry at %d:%d", name, line, column);
      good = false;
    }
    r->damaged |= !good;
    if (!good)
      continue;
    *tail = arena_alloc(r->memory, sizeof **tail);
    **tail = entry;
    tail = &(*tail)->next;
  }
}

static void read_section(reader *r, const char *path, const tree_node *node, tuned_section ***tail) {
  struct raw_section raw = {0};
  tuned_section *s = arena_alloc(r->memory, sizeof *s);
  bool good = READ(r, section_fields, path, node, &raw);
  if (raw.gpu)
    good &= read_gpu(r, arena_printf(r->memory, "%s.gpu", path), raw.gpu, &s->gpu);
  if (raw.measured)
    good &= read_notes(r, arena_printf(r->memory, "%s.measured", path), raw.measured, s);
  r->damaged |= !good;
  if (!good)
    return;
  strcpy(s->variant, raw.variant);
  s->version = raw.version;
  read_entries(r, arena_printf(r->memory, "%s.entries", path), raw.entries, s);
  **tail = s;
  *tail = &s->next;
}

/* ---- The whole ---- */

struct raw_table {
  const tree_node *version, *tables;
  const char *spec;
};

static const field table_fields[] = {{"qkvc_tuned", FIELD_NODE, false, AT(raw_table, version)},
                                     {"spec", FIELD_WORD, false, AT(raw_table, spec)},
                                     {"tables", FIELD_NODE, false, AT(raw_table, tables)}};

static void read_table(reader *r, const tree_node *root) {
  struct raw_table raw = {0};
  tuned_section **tail = &r->table->sections;
  bool good = READ(r, table_fields, "table", root, &raw);
  if (good && raw.tables->kind != TREE_SEQUENCE) {
    diag_add(r->diags, DIAG_WRONG_TYPE, start_of(raw.tables), "tables must be a list");
    good = false;
  }
  r->damaged |= !good;
  if (!good)
    return;
  r->table->spec = raw.spec;
  int number = 0;
  for (const tree_entry *e = raw.tables->first; e; e = e->next, number++)
    read_section(r, arena_printf(r->memory, "tables[%d]", number), e->value, &tail);
}

/* The format that the text says, looked for before anything is parsed: a later one may be no YAML that this version
 * knows. 0: none, or no whole number. `at` receives where it stands. */
static int64_t said_format(const char *bytes, size_t size, diag_span *at) {
  static const char key[] = "qkvc_tuned:";
  const size_t length = sizeof key - 1;
  for (size_t line = 0; line + length < size; line++) {
    if ((line == 0 || bytes[line - 1] == '\n') && memcmp(bytes + line, key, length) == 0) {
      size_t digit = line + length;
      int64_t format = 0;
      while (digit < size && bytes[digit] == ' ')
        digit++;
      at->offset = digit;
      for (; digit < size && bytes[digit] >= '0' && bytes[digit] <= '9' && format < 1000000; digit++)
        format = 10 * format + (bytes[digit] - '0');
      at->length = digit - at->offset;
      return digit == size || strchr(" \r\n", bytes[digit]) || format >= 1000000 ? format : 0;
    }
  }
  return 0;
}

/* ---- Damage that makes the text no YAML ---- */

static void repeat_diags(diags *d, const diags *from) {
  for (int n = 0; n < from->count; n++) {
    const diag *item = &from->items[n];
    diag_add(d, item->code, item->at, "%s", item->message);
    if (item->hint)
      diag_hint(d, "%s", item->hint);
  }
}

static char *line_end(char *p, const char *end) {
  char *newline = memchr(p, '\n', (size_t)(end - p));
  return newline ? newline + 1 : p + (end - p);
}

static void blank(char *from, const char *to) {
  for (char *p = from; p < to; p++)
    *p = *p == '\n' ? '\n' : ' ';
}

/* Behind the entry that starts at p, as tuned_print indents it. */
static char *entry_end(char *p, const char *end) {
  char *next = line_end(p, end);
  while (end - next > 5 && memcmp(next, "     ", 5) == 0)
    next = line_end(next, end);
  return next;
}

/* Blanks the entries that are no YAML by themselves, and says why; whether there was one. Each is parsed in its place
 * with nothing around it. */
static bool blank_damaged(reader *r, char *bytes, size_t size) {
  const char *end = bytes + size;
  char *alone = arena_copy(r->memory, bytes, size);
  bool any = false;
  blank(alone, alone + size);
  for (char *p = bytes, *next; p < end; p = next) {
    diags own;
    next = line_end(p, end);
    if (end - p <= 6 || memcmp(p, "    - ", 6) != 0)
      continue;
    next = entry_end(p, end);
    char *place = alone + (p - bytes);
    memcpy(place, p, (size_t)(next - p));
    diags_init(&own, r->memory, r->diags->file, alone, size);
    tree_parse(r->memory, alone, size, &own);
    blank(place, place + (next - p));
    if (!own.count)
      continue;
    repeat_diags(r->diags, &own);
    blank(p, next);
    any = true;
  }
  return any;
}

/* The tree of the whole text or, where that is no YAML, of what is left without the entries that are none; NULL: the
 * damage is elsewhere. */
static const tree_node *read_tree(reader *r, const char *bytes, size_t size) {
  diags whole, rest;
  diags_init(&whole, r->memory, r->diags->file, bytes, size);
  const tree_node *root = tree_parse(r->memory, bytes, size, &whole);
  if (root || size > TREE_MAX_BYTES) {
    repeat_diags(r->diags, &whole);
    return root;
  }
  char *copy = arena_copy(r->memory, bytes, size);
  if (blank_damaged(r, copy, size)) {
    diags_init(&rest, r->memory, r->diags->file, copy, size);
    root = tree_parse(r->memory, copy, size, &rest);
    repeat_diags(r->diags, &rest);
  }
  if (!root)
    repeat_diags(r->diags, &whole);
  return root;
}

/* Fills the table; whether nothing was wrong. */
static bool read_text(tuned_table *t, const char *bytes, size_t size, diags *d) {
  reader r = {.memory = t->memory, .diags = d, .table = t};
  const int before = d->count + d->dropped;
  const tree_node *root = read_tree(&r, bytes, size);
  if (root)
    read_table(&r, root);
  return root && !r.damaged && d->count + d->dropped == before;
}

tuned_result tuned_parse(const char *bytes, size_t size, diags *d, tuned_table **out) {
  diag_span at = {0, 0};
  const int64_t format = said_format(bytes, size, &at);
  *out = NULL;
  if (format > TUNED_FORMAT) {
    diag_add(d, DIAG_OUT_OF_RANGE, at, "the table has format %lld, of a later version; this one reads format %d",
             (long long)format, TUNED_FORMAT);
    return TUNED_NEWER;
  }
  if (format < TUNED_FORMAT)
    diag_add(d, DIAG_MISSING_KEY, at, "this is no table of schedules: it has no line `qkvc_tuned: %d`", TUNED_FORMAT);
  tuned_table *t = tuned_new("");
  if (!t)
    return TUNED_NO_MEMORY;
  *out = t;
  if (format < TUNED_FORMAT)
    return TUNED_DAMAGED;
  if (ARENA_TRY(t->memory))
    return read_text(t, bytes, size, d) ? TUNED_OK : TUNED_DAMAGED;
  tuned_free(t);
  *out = NULL;
  return TUNED_NO_MEMORY;
}
