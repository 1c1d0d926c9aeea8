/* test_tuned.c: tables of schedules as text and back; orders of putting that give one text; golden messages of
 * tests/errors/tuned (UPDATE_GOLDEN=1 rewrites the .err files); what damage costs; failing memory.
 *
 * TUNED_FUZZ_SEED=n repeats one case of damage; TUNED_FUZZ_COUNT=n runs that many. */
#include "gen_fixture.h"

#include <dirent.h>

#include "../fuzz/spec_mutate.h"
#include "comma_locale.h"
#include "tuned.h"

#define ERRORS QKV_SOURCE_DIR "/tests/errors/tuned"

/* ---- Random tables ---- */

static const char *pick(uint64_t *seed, const char *const *words, size_t count) {
  return words[mutate_below(seed, count)];
}

static void random_head(uint64_t *seed, tuned_section *head) {
  static const char *const names[] = {"NVIDIA H200", "emu", "NVIDIA \"odd\": # name, [1]", "NVIDIA H100 80GB HBM3"};
  static const char *const variants[] = {"0123456789abcdef0123456789abcdef", "ffffffffffffffffffffffffffffffff"};
  static const char *const versions[] = {"0.1.0", "0.2.0-rc1"};
  static const char *const values[] = {"1980 MHz",          "full", "a: b # c", "'quoted'",
                                       "\xc3\xa9t\xc3\xa9", "- x",  "yes",      "{}"};
  static const char *const keys[] = {"clock", "driver", "effort"};
  *head = (tuned_section){.version = pick(seed, versions, 2)};
  strcpy(head->gpu.name, pick(seed, names, 4));
  gpu_class(head->gpu.name, head->gpu.klass);
  head->gpu.major = 9;
  head->gpu.sm_count = 132;
  head->gpu.l2_bytes = 62914560;
  head->gpu.memory_bandwidth = 4.8e12;
  head->gpu.shared_per_block = 232448;
  strcpy(head->variant, pick(seed, variants, 2));
  head->nnotes = (int)mutate_below(seed, 4);
  for (int n = 0; n < head->nnotes; n++)
    head->notes[n] = (tuned_note){keys[n], pick(seed, values, sizeof values / sizeof values[0])};
}

/* Times are whole nanoseconds, which a text holds exactly. */
static double random_us(uint64_t *seed) {
  return (double)(1 + mutate_below(seed, 100000000)) / 1000;
}

static void random_entry(uint64_t *seed, const spec *s, tuned_entry *e) {
  static const char *const families[] = {"attention_forward_sm90", "attention_decode_sm80"};
  static const char *const schedules[] = {"", "tile_m=128", "tile_m=64,tile_n=-8,stages=2"};
  static const char *const workloads[] = {"prefill_8k", "with, comma: and {", "b64"};
  static const int64_t sizes[] = {1, 3, 64, 1000, 8192};
  *e = (tuned_entry){.phase = mutate_below(seed, 2) ? "prefill" : "decode",
                     .family = pick(seed, families, 2),
                     .schedule = pick(seed, schedules, 3),
                     .default_schedule = pick(seed, schedules, 3),
                     .us = random_us(seed),
                     .default_us = random_us(seed)};
  e->low = e->high = e->us;
  if (mutate_below(seed, 4)) {
    e->workload = pick(seed, workloads, 3);
    e->batch = sizes[mutate_below(seed, 5)];
    e->len_q = e->phase[0] == 'd' ? 1 + (int64_t)mutate_below(seed, 4) : sizes[mutate_below(seed, 5)];
    e->len_k = sizes[mutate_below(seed, 5)];
  }
  e->bucket = bucket_of(s, e->phase, e->batch, e->len_q, e->len_k);
}

enum { MOST = 40 };
typedef struct batch {
  int count;
  tuned_section heads[MOST];
  tuned_entry entries[MOST];
} batch;

static spec *make_spec(void) {
  return fixture_spec("qkvc: 1\nname: t\nattention: {heads: {q: 8, kv: 2}, dim: 64}\n");
}

static void random_batch(uint64_t seed, batch *b) {
  spec *s = make_spec();
  b->count = 1 + (int)mutate_below(&seed, MOST);
  tuned_section heads[4];
  for (int n = 0; n < 4; n++)
    random_head(&seed, &heads[n]);
  for (int n = 0; n < b->count; n++) {
    b->heads[n] = heads[mutate_below(&seed, 4)];
    random_entry(&seed, s, &b->entries[n]);
  }
  spec_free(s);
}

static char *print(const tuned_table *t) {
  text out = {0};
  tuned_print(t, &out);
  assert_false(out.failed);
  return out.bytes;
}

/* The table's text when entry (first + n * step) % count is put n-th. */
static char *put_all(const batch *b, int first, int step, tuned_rule rule) {
  tuned_table *t = tuned_new("some_spec");
  for (int n = 0, at = first % b->count; n < b->count; n++, at = (at + step) % b->count)
    assert_true(tuned_put(t, &b->heads[at], &b->entries[at], rule));
  char *table = print(t);
  tuned_free(t);
  return table;
}

typedef struct parsed {
  arena *memory;
  diags diags;
  tuned_result result;
  tuned_table *table;
} parsed;

/* Reads a text that ends where its allocation ends, so that a read behind it is caught. */
static parsed read_text(const char *bytes, size_t size) {
  parsed p = {.memory = arena_new()};
  char *exact = malloc(size ? size : 1);
  text said = {0};
  memcpy(exact, bytes, size);
  diags_init(&p.diags, p.memory, "t.yaml", exact, size);
  p.result = tuned_parse(exact, size, &p.diags, &p.table);
  diags_print(&p.diags, &said);
  diags_json(&p.diags, &said);
  text_free(&said);
  free(exact);
  return p;
}

static void drop(parsed *p) {
  tuned_free(p->table);
  arena_free(p->memory);
}

static void texts_read_back(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    batch b;
    random_batch(seed, &b);
    char *once = put_all(&b, 0, 1, TUNED_REPLACE);
    parsed p = read_text(once, strlen(once));
    if (p.result != TUNED_OK)
      fail_msg("seed %d: %s\n%s", (int)seed, p.diags.count ? p.diags.items[0].message : "", once);
    char *twice = print(p.table);
    assert_string_equal(once, twice);
    assert_string_equal(p.table->spec, "some_spec");
    drop(&p);
    free(once);
    free(twice);
  }
}

static void locale_does_not_matter(void **state) {
  if (!enter_comma_locale())
    skip();
  texts_read_back(state);
  setlocale(LC_ALL, "C");
}

/* With the rule of the greater gain the order decides nothing, nor how the work was shared. */
static void order_of_merging_is_nothing(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    batch b;
    random_batch(seed, &b);
    while (b.count % 7 == 0 || b.count % 11 == 0) /* steps of 7 and 11 reach everyone */
      b.count--;
    if (!b.count)
      continue;
    char *forward = put_all(&b, 0, 1, TUNED_FASTER);
    char *strided = put_all(&b, 3, 7, TUNED_FASTER), *other = put_all(&b, 5, 11, TUNED_FASTER);
    assert_string_equal(forward, strided);
    assert_string_equal(forward, other);
    tuned_table *halves[2] = {tuned_new("some_spec"), tuned_new("some_spec")};
    for (int n = 0; n < b.count; n++)
      assert_true(tuned_put(halves[n * 5 % 2], &b.heads[n], &b.entries[n], TUNED_FASTER));
    assert_true(tuned_merge(halves[1], halves[0], TUNED_FASTER));
    char *merged = print(halves[1]);
    assert_string_equal(forward, merged);
    tuned_free(halves[0]);
    tuned_free(halves[1]);
    free(forward), free(strided), free(other), free(merged);
  }
}

/* ---- Rules ---- */

static int count_entries(const tuned_table *t) {
  int count = 0;
  for (const tuned_section *s = t ? t->sections : NULL; s; s = s->next)
    for (const tuned_entry *e = s->entries; e; e = e->next)
      count++;
  return count;
}

static void one_entry_a_key(void **state) {
  (void)state;
  spec *s = make_spec();
  uint64_t seed = 5;
  tuned_section head, later;
  tuned_entry slow, fast;
  random_head(&seed, &head);
  do
    random_entry(&seed, s, &slow);
  while (!slow.workload);
  slow.us = slow.low = slow.high = 110;
  slow.default_us = 100;
  fast = slow;
  fast.us = fast.low = fast.high = 300; /* measured when all was slower, but gained */
  fast.default_us = 400;
  fast.schedule = "tile_m=256";
  later = head;
  later.version = "9.9.9";
  tuned_table *t = tuned_new("t");
  assert_true(tuned_put(t, &head, &fast, TUNED_FASTER) && tuned_put(t, &later, &slow, TUNED_FASTER));
  assert_int_equal(count_entries(t), 1);
  assert_string_equal(t->sections->entries->schedule, "tile_m=256");
  assert_true(tuned_put(t, &later, &slow, TUNED_REPLACE)); /* moves to the section of how it was measured */
  assert_int_equal(count_entries(t), 1);
  char *table = print(t);
  assert_null(strstr(table, "tile_m=256"));
  assert_non_null(strstr(table, "qkvc: 9.9.9"));
  assert_null(strstr(table, head.version));
  free(table);
  later.gpu.sm_count = 66; /* half of such a GPU is another one */
  assert_true(tuned_put(t, &later, &slow, TUNED_REPLACE));
  assert_int_equal(count_entries(t), 2);
  tuned_free(t);
  spec_free(s);
}

static void notes_have_a_form(void **state) {
  (void)state;
  static const struct {
    const char *line, *reason; /* NULL: taken */
  } rows[] = {{"clock: 1980 MHz", NULL},         {"driver:580.1", NULL},          {"clock: again", "given twice"},
              {"no colon", "not of the form"},   {"Upper: x", "not of the form"}, {"empty:", "not of the form"},
              {"nul: a\x01", "not of the form"}, {": x", "not of the form"},      {"bad: \xff\xfe", "not of the form"}};
  arena *memory = arena_new();
  tuned_section head = {0};
  assert_true(ARENA_TRY(memory));
  for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
    char reason[160] = "";
    const bool taken = tuned_note_parse(memory, rows[n].line, strlen(rows[n].line), &head, reason);
    if (taken != !rows[n].reason || (rows[n].reason && !strstr(reason, rows[n].reason)))
      fail_msg("'%s' was%s taken: %s", rows[n].line, taken ? "" : " not", reason);
  }
  assert_int_equal(head.nnotes, 2);
  assert_string_equal(head.notes[1].value, "580.1");
  arena_free(memory);
}

/* ---- Golden messages ---- */

static int is_case(const struct dirent *d) {
  const char *end = strrchr(d->d_name, '.');
  return end && strcmp(end, ".yaml") == 0;
}

/* What a case gives: how it ended, how many entries are left, the diagnostics. */
static void describe(const char *name, const char *bytes, text *out) {
  static const char *const results[] = {"ok", "damaged", "newer"};
  arena *memory = arena_new();
  diags d;
  tuned_table *t;
  diags_init(&d, memory, name, bytes, strlen(bytes));
  const tuned_result result = tuned_parse(bytes, strlen(bytes), &d, &t);
  text_printf(out, "%s, %d entries left\n", results[result], count_entries(t));
  diags_print(&d, out);
  tuned_free(t);
  arena_free(memory);
}

static void golden_messages(void **state) {
  (void)state;
  struct dirent **cases;
  const char *update = getenv("UPDATE_GOLDEN");
  const int count = scandir(ERRORS, &cases, is_case, alphasort);
  int failures = 0;
  assert_true(count >= 15);
  for (int n = 0; n < count; n++) {
    char path[512];
    text now = {0};
    snprintf(path, sizeof path, ERRORS "/%s", cases[n]->d_name);
    char *bytes = fixture_read(path);
    describe(cases[n]->d_name, bytes, &now);
    strcpy(strrchr(path, '.'), ".err");
    char *golden = fixture_read(path);
    if (update && *update && (!golden || strcmp(golden, now.bytes))) {
      FILE *f = fopen(path, "wb");
      assert_true(f && fwrite(now.bytes, 1, now.size, f) == now.size && fclose(f) == 0);
    } else if (!golden || strcmp(golden, now.bytes)) {
      print_error("%s (UPDATE_GOLDEN=1 accepts the new text)\nexpected:\n%s\ngot:\n%s\n", path, golden ? golden : "",
                  now.bytes);
      failures++;
    }
    free(golden);
    free(bytes);
    text_free(&now);
    free(cases[n]);
  }
  free(cases);
  assert_int_equal(failures, 0);
}

/* ---- Damage ---- */

/* What is read of a damaged text is sound, and what is not read is said. */
static void check_damaged(const char *bytes, size_t size, const char *seed) {
  parsed p = read_text(bytes, size);
  bool good = p.result == TUNED_OK ? p.diags.count == 0 : p.diags.count > 0;
  good = good && (p.table != NULL) == (p.result == TUNED_OK || p.result == TUNED_DAMAGED);
  for (int n = 0; n < p.diags.count; n++)
    good = good && p.diags.items[n].at.offset <= size && !strpbrk(p.diags.items[n].message, "\n\r\x1b");
  if (good && p.table && *p.table->spec) {
    char *again = print(p.table);
    parsed q = read_text(again, strlen(again));
    good = q.result == TUNED_OK && count_entries(q.table) == count_entries(p.table);
    drop(&q);
    free(again);
  }
  if (!good)
    fail_msg("TUNED_FUZZ_SEED=%s: %s\n%.*s", seed, p.diags.count ? p.diags.items[0].message : "no message", (int)size,
             bytes);
  drop(&p);
}

static void fuzz_case(uint64_t number) {
  static char bytes[MUTATE_ROOM];
  char word[32];
  uint64_t seed = number * 0x9E3779B97F4A7C15u + 1;
  batch b;
  random_batch(number % 50 + 1, &b);
  b.count = b.count > 12 ? 12 : b.count;
  char *table = put_all(&b, 0, 1, TUNED_REPLACE);
  size_t size = strlen(table);
  assert_true(size < MUTATE_ROOM);
  memcpy(bytes, table, size);
  free(table);
  for (size_t n = 1 + mutate_below(&seed, 4); n > 0; n--)
    size = mutate_once(bytes, size, &seed);
  snprintf(word, sizeof word, "%llu", (unsigned long long)number);
  check_damaged(bytes, size, word);
}

static void damaged_texts(void **state) {
  (void)state;
  const char *one = getenv("TUNED_FUZZ_SEED"), *many = getenv("TUNED_FUZZ_COUNT");
  const uint64_t count = many ? strtoull(many, NULL, 10) : 3000;
  if (one) {
    fuzz_case(strtoull(one, NULL, 10));
    return;
  }
  for (uint64_t n = 0; n < count; n++)
    fuzz_case(n);
}

/* Whether a place belongs to an entry, behind its dash and its indentation. */
static bool is_inside(const char *table, size_t at) {
  const char *line = table + at;
  if (*line == '\n')
    return false;
  while (line > table && line[-1] != '\n')
    line--;
  if (table + at < line + 6)
    return false;
  while (strncmp(line, "      ", 6) == 0 && line > table)
    for (line--; line > table && line[-1] != '\n'; line--)
      ;
  return strncmp(line, "    - ", 6) == 0;
}

/* A byte that changes inside of one entry, whatever it becomes, costs no other entry; nor does the end of the text. */
static void damage_costs_one_entry(void **state) {
  (void)state;
  batch b;
  char *table = NULL;
  int all = 0;
  for (uint64_t number = 1; all < 8; number++) {
    free(table);
    random_batch(number, &b);
    table = put_all(&b, 0, 1, TUNED_REPLACE);
    parsed whole = read_text(table, strlen(table));
    all = count_entries(whole.table);
    drop(&whole);
  }
  const size_t size = strlen(table);
  uint64_t seed = 17;
  for (int n = 0; n < 2000; n++) {
    const size_t at = mutate_below(&seed, size);
    if (!is_inside(table, at))
      continue;
    const char before = table[at];
    table[at] = (char)(1 + mutate_below(&seed, 255));
    if (table[at] == '\n')
      table[at] = '"';
    parsed p = read_text(table, size);
    /* an entry that now has the key of a later one takes its place */
    if (count_entries(p.table) < all - 1)
      fail_msg("byte %d as 0x%02x leaves %d of %d entries: %s", (int)at, (unsigned char)table[at],
               count_entries(p.table), all, p.diags.count ? p.diags.items[0].message : "");
    drop(&p);
    table[at] = before;
  }
  for (size_t cut = 0; cut <= size; cut += 7) { /* copied in part */
    int complete = 0;
    for (const char *at = table; (at = strstr(at, "default_us: ")) && strchr(at, '\n') < table + cut; at++)
      complete++;
    parsed p = read_text(table, cut);
    if (p.table && *p.table->spec && count_entries(p.table) < complete)
      fail_msg("%d bytes hold %d entries, %d were read", (int)cut, complete, count_entries(p.table));
    drop(&p);
  }
  free(table);
}

/* ---- Memory ---- */

static int calls_left;
static void *failing_malloc(size_t size) {
  return calls_left-- > 0 ? malloc(size) : NULL;
}

static void memory_runs_out(void **state) {
  (void)state;
  batch b;
  random_batch(3, &b);
  char *table = put_all(&b, 0, 1, TUNED_REPLACE);
  arena *memory = arena_new();
  void *(*real)(size_t) = arena_malloc;
  tuned_result result = TUNED_NO_MEMORY;
  for (int calls = 0; result == TUNED_NO_MEMORY; calls++) {
    diags d;
    tuned_table *t = NULL, *copy = NULL;
    assert_true(calls < 2000);
    diags_init(&d, memory, NULL, table, strlen(table));
    calls_left = calls;
    arena_malloc = failing_malloc;
    result = tuned_parse(table, strlen(table), &d, &t);
    copy = tuned_new("t");
    if (copy && t)
      tuned_merge(copy, t, TUNED_REPLACE);
    arena_malloc = real;
    assert_true((t == NULL) == (result == TUNED_NO_MEMORY));
    tuned_free(copy);
    tuned_free(t);
  }
  assert_int_equal(result, TUNED_OK);
  arena_free(memory);
  free(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(texts_read_back),
                                     cmocka_unit_test(locale_does_not_matter),
                                     cmocka_unit_test(order_of_merging_is_nothing),
                                     cmocka_unit_test(one_entry_a_key),
                                     cmocka_unit_test(notes_have_a_form),
                                     cmocka_unit_test(golden_messages),
                                     cmocka_unit_test(damaged_texts),
                                     cmocka_unit_test(damage_costs_one_entry),
                                     cmocka_unit_test(memory_runs_out)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
