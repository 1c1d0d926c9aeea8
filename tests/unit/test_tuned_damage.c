/* test_tuned_damage.c: the tables that the library is built with, cut short, with a line less, with a byte changed: what is
 * read of them is what was written, and what is not read is said with its line. */
#include "gen_fixture.h"

#include "template.h"
#include "tuned.h"

extern const template_file tuned_files[];
extern const int tuned_file_count;

/* ---- What a text says, entry by entry ---- */

enum { MOST = 64 };
typedef struct contents {
  tuned_result result;
  int ndiags, first_line; /* of the first diagnostic */
  int count;
  char *entries[MOST]; /* of GPU and variant, with all their fields */
} contents;

static char *describe(const tuned_section *s, const tuned_entry *e) {
  text t = {0};
  char b[BUCKET_TEXT];
  bucket_print(&e->bucket, b);
  text_printf(&t, "%s %s %d.%d %d %lld %.0f %lld %s|", s->gpu.name, s->gpu.klass, s->gpu.major, s->gpu.minor,
              s->gpu.sm_count, (long long)s->gpu.l2_bytes, s->gpu.memory_bandwidth, (long long)s->gpu.shared_per_block,
              s->variant);
  text_printf(&t, "%s|%s|%s|%lld %lld %lld|%s|%s|", e->phase, b, e->workload ? e->workload : "", (long long)e->batch,
              (long long)e->len_q, (long long)e->len_k, e->family, e->schedule);
  text_printf(&t, "%.3f %.3f %.3f|%s|%.3f", e->us, e->low, e->high, e->default_schedule, e->default_us);
  assert_false(t.failed);
  return t.bytes;
}

/* The text ends where its allocation ends. */
static contents read_contents(const char *bytes, size_t size) {
  contents c = {0};
  diags d;
  tuned_table *table;
  arena *memory = arena_new();
  char *exact = malloc(size ? size : 1);
  memcpy(exact, bytes, size);
  diags_init(&d, memory, "t.yaml", exact, size);
  c.result = tuned_parse(exact, size, &d, &table);
  c.ndiags = d.count;
  if (d.count) {
    int column;
    diags_position(&d, d.items[0].at.offset, &c.first_line, &column);
  }
  for (const tuned_section *s = table ? table->sections : NULL; s; s = s->next)
    for (const tuned_entry *e = s->entries; e; e = e->next) {
      assert_true(c.count < MOST);
      c.entries[c.count++] = describe(s, e);
    }
  tuned_free(table);
  arena_free(memory);
  free(exact);
  return c;
}

static void forget(contents *c) {
  for (int n = 0; n < c->count; n++)
    free(c->entries[n]);
}

static bool holds(const contents *c, const char *entry) {
  for (int n = 0; n < c->count; n++)
    if (!strcmp(c->entries[n], entry))
      return true;
  return false;
}

/* Entries of `a` that `b` has not. */
static int beyond(const contents *a, const contents *b) {
  int count = 0;
  for (int n = 0; n < a->count; n++)
    count += !holds(b, a->entries[n]);
  return count;
}

/* What is wrong, in words; NULL: nothing. `strangers`: so many entries may differ from all that were written. */
static const char *fault(const contents *whole, const contents *now, int strangers, bool may_be_silent) {
  if ((now->result == TUNED_OK) != (now->ndiags == 0))
    return "result and messages disagree";
  if (now->ndiags && now->first_line < 1)
    return "a message has no line";
  if (beyond(now, whole) > strangers)
    return "an entry was read that nobody wrote";
  if (!may_be_silent && now->count < whole->count && now->result == TUNED_OK)
    return "an entry is missing, and nothing was said";
  return NULL;
}

static void check(const char *file, const char *what, size_t at, const contents *whole, const char *bytes, size_t size,
                  int strangers, bool may_be_silent) {
  contents now = read_contents(bytes, size);
  const char *wrong = fault(whole, &now, strangers, may_be_silent);
  if (wrong)
    fail_msg("%s, %s %d: %s (%d of %d entries, %d messages)\n...%.*s", file, what, (int)at, wrong, now.count,
             whole->count, now.ndiags, (int)(size > at && at > 200 ? 200 : 0), bytes + (at > 200 ? at - 200 : 0));
  forget(&now);
}

/* ---- Damage ---- */

/* Whether there is nothing behind the end of a line: such a text may be a table as it is. */
static bool ends_a_line(const char *bytes, size_t size) {
  while (size > 0 && bytes[size - 1] == ' ')
    size--;
  return size == 0 || bytes[size - 1] == '\n';
}

static void cut_short(void **state) {
  (void)state;
  for (int n = 0; n < tuned_file_count; n++) {
    const template_file *f = &tuned_files[n];
    contents whole = read_contents(f->bytes, f->size);
    assert_int_equal(whole.result, TUNED_OK);
    for (size_t cut = (size_t)n % 11; cut < f->size; cut += n % 16 ? 41 : 1)
      check(f->path, "cut at byte", cut, &whole, f->bytes, cut, 0, ends_a_line(f->bytes, cut));
    forget(&whole);
  }
}

/* Lines of `measured` are free, and nobody knows how many there were. */
static void a_line_less(void **state) {
  (void)state;
  for (int n = 0; n < tuned_file_count; n++) {
    const template_file *f = &tuned_files[n];
    contents whole = read_contents(f->bytes, f->size);
    char *less = malloc(f->size);
    size_t number = 1;
    for (size_t from = 0; from < f->size; number++) {
      const char *end = memchr(f->bytes + from, '\n', f->size - from);
      const size_t to = end ? (size_t)(end - f->bytes) + 1 : f->size;
      memcpy(less, f->bytes, from);
      memcpy(less + from, f->bytes + to, f->size - to);
      check(f->path, "without line", number, &whole, less, f->size - (to - from), 0, false);
      from = to;
    }
    free(less);
    forget(&whole);
  }
}

/* Which line a byte is in: one of an entry, or of what stands above entries. */
static bool in_entry(const char *bytes, size_t at) {
  while (at > 0 && bytes[at - 1] != '\n')
    at--;
  return strspn(bytes + at, " ") == 6 || !strncmp(bytes + at, "    - ", 6);
}

/* A changed digit is another number, and who could tell; but of one entry, or of one section where it stands above. */
static void a_byte_changed(void **state) {
  (void)state;
  uint64_t seed = 1;
  for (int n = 0; n < tuned_file_count; n++) {
    const template_file *f = &tuned_files[n];
    contents whole = read_contents(f->bytes, f->size);
    char *changed = malloc(f->size + 1);
    memcpy(changed, f->bytes, f->size);
    changed[f->size] = 0;
    for (int turn = 0; turn < 40; turn++) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const size_t at = (size_t)(seed >> 33) % f->size;
      const char before = changed[at];
      changed[at] = (char)(before ^ (1 << (seed >> 29 & 7)));
      check(f->path, "changed byte", at, &whole, changed, f->size, in_entry(f->bytes, at) ? 1 : whole.count, false);
      changed[at] = before;
    }
    free(changed);
    forget(&whole);
  }
}

/* A later version's table is not read, whatever else is in it. */
static void later_versions(void **state) {
  (void)state;
  for (int n = 0; n < tuned_file_count; n += 9) {
    const template_file *f = &tuned_files[n];
    char *later = strdup(f->bytes), *line = strstr(later, "qkvc_tuned: 1");
    line[strlen("qkvc_tuned: ")] = '2';
    for (size_t cut = (size_t)(line - later) + 13; cut <= f->size; cut += 97) {
      contents now = read_contents(later, cut);
      assert_true(now.result == TUNED_NEWER && now.count == 0 && now.ndiags == 1 && now.first_line == 2);
    }
    free(later);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(cut_short), cmocka_unit_test(a_line_less),
                                     cmocka_unit_test(a_byte_changed), cmocka_unit_test(later_versions)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
