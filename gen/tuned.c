/* tuned.c: tables in memory: what stands where, and as text. tuned_read.c reads them. */
#include "tuned.h"

#include <stdio.h>
#include <string.h>

#include "gen.h"

tuned_table *tuned_new(const char *spec_name) {
  arena *a = arena_new();
  if (!a)
    return NULL;
  if (!ARENA_TRY(a)) {
    arena_free(a);
    return NULL;
  }
  tuned_table *t = arena_alloc(a, sizeof *t);
  t->memory = a;
  t->spec = arena_copy(a, spec_name, strlen(spec_name));
  return t;
}

void tuned_free(tuned_table *t) {
  if (t)
    arena_free(t->memory);
}

/* ---- Order ---- */

static int compare_numbers(double a, double b) {
  return a < b ? -1 : a > b;
}

static int compare_gpus(const gpu *a, const gpu *b) {
  const double
      left[] = {a->major, a->minor, a->sm_count, (double)a->l2_bytes, a->memory_bandwidth, (double)a->shared_per_block},
      right[] = {
          b->major, b->minor, b->sm_count, (double)b->l2_bytes, b->memory_bandwidth, (double)b->shared_per_block};
  int order = strcmp(a->name, b->name);
  for (size_t n = 0; n < sizeof left / sizeof left[0] && !order; n++)
    order = compare_numbers(left[n], right[n]);
  return order;
}

/* Sections of equal heads are one section. */
static int compare_heads(const tuned_section *a, const tuned_section *b) {
  int order = compare_gpus(&a->gpu, &b->gpu);
  if (!order)
    order = strcmp(a->variant, b->variant);
  if (!order)
    order = strcmp(a->version, b->version);
  if (!order)
    order = a->nnotes - b->nnotes;
  for (int n = 0; n < a->nnotes && !order; n++) {
    order = strcmp(a->notes[n].key, b->notes[n].key);
    if (!order)
      order = strcmp(a->notes[n].value, b->notes[n].value);
  }
  return order;
}

/* Prefill before decode, then the bucket. Entries that are equal here are of the same key. */
static int compare_keys(const tuned_entry *a, const tuned_entry *b) {
  const int order = -strcmp(a->phase, b->phase); /* "prefill" is the greater word */
  return order ? order : bucket_compare(&a->bucket, &b->bucket);
}

/* Which of two entries of one key gained more: negative when a did. Total, so that the order of merging is nothing. */
static int compare_gains(const tuned_entry *a, const tuned_entry *b) {
  int order = compare_numbers(a->us / a->default_us, b->us / b->default_us);
  if (!order)
    order = compare_numbers(a->us, b->us);
  if (!order)
    order = strcmp(a->family, b->family);
  if (!order)
    order = strcmp(a->schedule, b->schedule);
  return order;
}

/* ---- Putting ---- */

static const char *copy(tuned_table *t, const char *string) {
  return string ? arena_copy(t->memory, string, strlen(string)) : NULL;
}

/* The section with this head, made where its place is. */
static tuned_section *find_section(tuned_table *t, const tuned_section *head) {
  tuned_section **link = &t->sections;
  while (*link && compare_heads(*link, head) < 0)
    link = &(*link)->next;
  if (*link && compare_heads(*link, head) == 0)
    return *link;
  tuned_section *s = arena_alloc(t->memory, sizeof *s);
  *s = *head;
  s->version = copy(t, head->version);
  for (int n = 0; n < head->nnotes; n++)
    s->notes[n] = (tuned_note){copy(t, head->notes[n].key), copy(t, head->notes[n].value)};
  s->entries = NULL;
  s->next = *link;
  *link = s;
  return s;
}

static bool same_subject(const tuned_section *a, const tuned_section *b) {
  return gpu_compare(&a->gpu, &b->gpu) == GPU_SAME && strcmp(a->variant, b->variant) == 0;
}

/* Where the entry of this key is linked in, in whichever section; NULL: nowhere. */
static tuned_entry **find_entry(tuned_table *t, const tuned_section *head, const tuned_entry *entry) {
  for (tuned_section *s = t->sections; s; s = s->next)
    for (tuned_entry **link = &s->entries; same_subject(s, head) && *link; link = &(*link)->next)
      if (compare_keys(*link, entry) == 0)
        return link;
  return NULL;
}

/* Memory comes before any change. Not inlined: none of its variables shall live across the caller's setjmp. */
__attribute__((noinline)) static void put(tuned_table *t, const tuned_section *head, const tuned_entry *entry,
                                          tuned_rule rule) {
  tuned_entry **old = find_entry(t, head, entry);
  if (old && rule == TUNED_FASTER && compare_gains(*old, entry) <= 0)
    return;
  tuned_entry *e = arena_alloc(t->memory, sizeof *e);
  *e = *entry;
  e->phase = copy(t, entry->phase);
  e->family = copy(t, entry->family);
  e->schedule = copy(t, entry->schedule);
  e->workload = copy(t, entry->workload);
  e->default_schedule = copy(t, entry->default_schedule);
  tuned_section *s = find_section(t, head);
  if (old)
    *old = (*old)->next;
  tuned_entry **link = &s->entries;
  while (*link && compare_keys(*link, e) < 0)
    link = &(*link)->next;
  e->next = *link;
  *link = e;
}

bool tuned_put(tuned_table *t, const tuned_section *head, const tuned_entry *entry, tuned_rule rule) {
  if (!ARENA_TRY(t->memory))
    return false;
  put(t, head, entry, rule);
  return true;
}

bool tuned_merge(tuned_table *t, const tuned_table *from, tuned_rule rule) {
  for (const tuned_section *s = from->sections; s; s = s->next)
    for (const tuned_entry *e = s->entries; e; e = e->next)
      if (!tuned_put(t, s, e, rule))
        return false;
  return true;
}

bool tuned_is_text(const char *value) {
  const size_t size = strlen(value);
  if (size == 0 || size > 1024)
    return false;
  for (size_t at = 0, length; at < size; at += length) {
    length = text_utf8_length(value + at, size - at);
    if (!length || (unsigned char)value[at] < 0x20 || value[at] == 0x7F)
      return false;
  }
  return true;
}

static bool is_key(const char *key) {
  const size_t length = strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_");
  return length && length <= 64 && !key[length] && *key >= 'a';
}

bool tuned_note_parse(arena *a, const char *line, size_t length, tuned_section *head, char reason[160]) {
  const char *colon = memchr(line, ':', length);
  const char *key = arena_copy(a, line, colon ? (size_t)(colon - line) : 0);
  const char *value = colon ? colon + 1 + (colon + 1 < line + length && colon[1] == ' ') : "";
  value = colon ? arena_copy(a, value, (size_t)(line + length - value)) : "";
  if (!is_key(key) || !tuned_is_text(value)) {
    snprintf(reason, 160, "note '%.*s' is not of the form key: value with a key of a-z 0-9 _",
             length < 60 ? (int)length : 60, line);
    return false;
  }
  for (int n = 0; n < head->nnotes; n++)
    if (strcmp(head->notes[n].key, key) == 0) {
      snprintf(reason, 160, "note %s is given twice", key);
      return false;
    }
  if (head->nnotes == TUNED_MAX_NOTES) {
    snprintf(reason, 160, "there are more than %d notes", TUNED_MAX_NOTES);
    return false;
  }
  head->notes[head->nnotes++] = (tuned_note){key, value};
  return true;
}

/* ---- Printing ---- */

/* Whether a plain scalar reads back as it is, in block and flow style. */
static bool is_plain(const char *value) {
  const size_t length = strlen(value);
  return length && strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-=/() ") == length &&
         value[0] != ' ' && value[0] != '-' && value[length - 1] != ' ' && !strchr("=.", value[0]);
}

static void put_text(text *out, const char *key, const char *value, const char *end) {
  text_printf(out, "%s: ", key);
  if (is_plain(value))
    text_puts(out, value);
  else
    text_json_string(out, value);
  text_puts(out, end);
}

/* Schedules hold commas, which are plain outside of flow style. */
static void put_schedule(text *out, const char *key, const char *schedule) {
  text_printf(out, "      %s: %s\n", key, *schedule ? schedule : "\"\"");
}

static void print_entry(const tuned_entry *e, text *out) {
  char bucket_text[BUCKET_TEXT];
  bucket_print(&e->bucket, bucket_text);
  text_printf(out, "    - phase: %s\n      bucket: %s\n", e->phase, bucket_text);
  if (e->workload) {
    text_puts(out, "      workload: {");
    put_text(out, "name", e->workload, ", ");
    text_printf(out, "batch: %lld, q: %lld, kv: %lld}\n", (long long)e->batch, (long long)e->len_q,
                (long long)e->len_k);
  }
  text_printf(out, "      family: %s\n", e->family);
  put_schedule(out, "schedule", e->schedule);
  text_printf(out, "      us: {median: %.3f, p10: %.3f, p90: %.3f}\n", e->us, e->low, e->high);
  put_schedule(out, "default", e->default_schedule);
  text_printf(out, "      default_us: %.3f\n", e->default_us);
}

static void print_section(const tuned_section *s, text *out) {
  const gpu *g = &s->gpu;
  text_puts(out, "  - gpu: {");
  put_text(out, "name", g->name, ", ");
  text_printf(out, "class: %s, capability: %d.%d, sm_count: %d, l2_bytes: %lld,\n", g->klass, g->major, g->minor,
              g->sm_count, (long long)g->l2_bytes);
  text_printf(out, "          memory_bandwidth: %.0f, shared_per_block: %lld}\n", g->memory_bandwidth,
              (long long)g->shared_per_block);
  text_printf(out, "    variant: %s\n    ", s->variant);
  put_text(out, "qkvc", s->version, "\n");
  if (s->nnotes)
    text_puts(out, "    measured:\n");
  for (int n = 0; n < s->nnotes; n++) {
    text_puts(out, "      ");
    put_text(out, s->notes[n].key, s->notes[n].value, "\n");
  }
  text_puts(out, "    entries:\n");
  for (const tuned_entry *e = s->entries; e; e = e->next)
    print_entry(e, out);
}

void tuned_print(const tuned_table *t, text *out) {
  bool any = false;
  text_printf(out, "# Measured schedules of %s. Written by qkvc; docs/tuned-tables.md says what each line means.\n",
              t->spec);
  text_printf(out, "qkvc_tuned: %d\nspec: %s\n", TUNED_FORMAT, t->spec);
  for (const tuned_section *s = t->sections; s; s = s->next) {
    if (!s->entries)
      continue;
    text_puts(out, any ? "" : "tables:\n");
    any = true;
    print_section(s, out);
  }
  if (!any)
    text_puts(out, "tables: []\n");
}
