/* Damaged specs and failing memory: the parser never crashes, always says why it refuses, and what it accepts prints to
 * a canonical form that parses to itself. Run under the address sanitizer to see leaks and stray reads.
 *
 * SPEC_FUZZ_SEED=n repeats one case; SPEC_FUZZ_COUNT=n runs that many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../fuzz/spec_mutate.h"
#include "spec.h"

static const char *const seeds[] = {
    "qkvc: 1\nname: small\nattention: {heads: 8, dim: 64}\n",
    "qkvc: 1\n"
    "name: everything            # a comment\n"
    "attention:\n"
    "  heads: {q: 16, kv: 8}\n"
    "  dim: {qk: 192, v: 128}\n"
    "  dtype: {q: f16, kv: e4m3, out: f32}\n"
    "  scale: 1/sqrt(256)\n"
    "  softcap: 50.0\n"
    "  score: s + slope[h] * (k - q)\n"
    "  mask: causal and q - k < limit or k < prefix_of[b]\n"
    "  sink: per_head\n"
    "  align: top_left\n"
    "  params:\n"
    "    slope: {type: f32, shape: [hq]}\n"
    "    limit: {type: i32}\n"
    "    prefix_of: {type: i32, shape: [b]}\n"
    "layout: {q: ragged, kv: {paged: {page: 16, order: hnd}}}\n"
    "outputs: [lse_with_sink, o, lse]\n"
    "deterministic: batch\n"
    "schedule:\n"
    "  stages: 2\n"
    "  decode: {tile_m: 16, order: forward}\n"
    "workloads:\n"
    "  - {name: prefill_8k, batch: 2, q: 8192, kv: 8193}\n"
    "  - {name: one, q: 1, kv: 2147483647}\n"
    "x-notes: {anything: [goes, 0x10]}\n",
    "x-heads: &h {q: 8, kv: 2}\n"
    "qkvc: 1\nname: \"alias\"\nattention:\n  heads: *h\n  dim: 128\n"
    "  mask: >\n    window(128, 0) or\n    same(doc) and 0 <= k < 4\n"
    "  params: {doc: {type: i32, shape: [len_k]}}\n"
    "outputs:\n- o\n- lse\n",
};
enum { SEEDS = sizeof seeds / sizeof seeds[0] };

/* Parses `size` bytes that end where the allocation ends, so that a read behind them is caught. */
static spec *parse(const char *bytes, size_t size, diags *d, arena *memory) {
  char *exact = malloc(size ? size : 1);
  memcpy(exact, bytes, size);
  spec *s;
  diags_init(d, memory, NULL, exact, size);
  if (!spec_parse(exact, size, d, &s))
    assert_null(s);
  text t = {0};
  diags_print(d, &t);
  diags_json(d, &t);
  text_free(&t);
  free(exact);
  return s;
}

/* The canonical form, with a name, gives the same canonical form. */
static bool prints_to_itself(const spec *s) {
  text once = {0}, named = {0}, twice = {0};
  spec_canonical(s, &once);
  text_puts(&named, "name: t\n");
  text_add(&named, once.bytes, once.size);
  arena *memory = arena_new();
  diags d;
  spec *again = parse(named.bytes, named.size, &d, memory);
  if (again)
    spec_canonical(again, &twice);
  bool same = again && strcmp(once.bytes, twice.bytes) == 0;
  if (!same)
    print_error("%s\n%s\n%s\n", once.bytes, again ? twice.bytes : "refused:", d.count ? d.items[0].message : "");
  spec_free(again);
  arena_free(memory);
  text_free(&once);
  text_free(&named);
  text_free(&twice);
  return same;
}

/* One case; counts whether it was accepted. */
static void run_case(uint64_t number, int *accepted) {
  static char bytes[MUTATE_ROOM];
  uint64_t seed = number * 0x9E3779B97F4A7C15u + 1;
  const char *start = seeds[mutate_random(&seed) % SEEDS];
  size_t size = strlen(start);
  memcpy(bytes, start, size);
  for (size_t n = 1 + mutate_below(&seed, 6); n > 0; n--)
    size = mutate_once(bytes, size, &seed);
  arena *memory = arena_new();
  diags d;
  spec *s = parse(bytes, size, &d, memory);
  bool good = s ? d.count == 0 && prints_to_itself(s) : d.count > 0;
  for (int i = 0; i < d.count; i++) {
    const diag *item = &d.items[i];
    good = good && item->at.offset <= size && item->at.length <= size - item->at.offset &&
           !strpbrk(item->message, "\n\r\x1b");
    good = good && !(item->hint && strpbrk(item->hint, "\n\r\x1b"));
  }
  if (!good)
    fail_msg("SPEC_FUZZ_SEED=%llu:\n%.*s", (unsigned long long)number, (int)size, bytes);
  *accepted += s != NULL;
  spec_free(s);
  arena_free(memory);
}

static void damaged_specs(void **state) {
  (void)state;
  const char *one = getenv("SPEC_FUZZ_SEED"), *many = getenv("SPEC_FUZZ_COUNT");
  uint64_t count = many ? strtoull(many, NULL, 10) : 6000;
  int accepted = 0;
  if (one) {
    run_case(strtoull(one, NULL, 10), &accepted);
    return;
  }
  for (uint64_t n = 0; n < count; n++)
    run_case(n, &accepted);
  print_message("%llu damaged specs, %d of them still valid\n", (unsigned long long)count, accepted);
  assert_true(accepted > (int)(count / 100)); /* the damage is not always fatal, so all stages are reached */
}

/* Every prefix of a valid spec. */
static void cut_off_specs(void **state) {
  (void)state;
  for (int i = 0; i < SEEDS; i++)
    for (size_t size = 0; size < strlen(seeds[i]); size++) {
      arena *memory = arena_new();
      diags d;
      spec *s = parse(seeds[i], size, &d, memory);
      if (!s && d.count == 0)
        fail_msg("seed %d cut to %zu bytes: neither a spec nor a diagnostic", i, size);
      spec_free(s);
      arena_free(memory);
    }
}

static int calls_left;

static void *failing_malloc(size_t size) {
  return calls_left-- > 0 ? malloc(size) : NULL;
}

/* With at most n allocations of arenas: parses and prints, or fails without a crash or leak. True when nothing failed.
 */
static bool parse_with(const char *source, int n) {
  arena *memory = arena_new(); /* for the diagnostics; it may fail to grow */
  diags d;
  spec *s = NULL;
  text t = {0};
  diags_init(&d, memory, NULL, source, strlen(source));
  calls_left = n;
  arena_malloc = failing_malloc;
  bool parsed = spec_parse(source, strlen(source), &d, &s);
  if (parsed) {
    spec_canonical(s, &t);
    bool printed = !t.failed;
    text_clear(&t);
    spec_json(s, &t);
    parsed = printed && !t.failed;
  }
  diags_print(&d, &t);
  arena_malloc = malloc;
  assert_true(s != NULL || !parsed);
  spec_free(s);
  text_free(&t);
  arena_free(memory);
  return parsed || d.count > 0;
}

static void failing_memory(void **state) {
  (void)state;
  for (int i = 0; i < SEEDS; i++) {
    int n = 0;
    while (!parse_with(seeds[i], n))
      assert_true(++n < 1000);
    assert_true(n >= 2);
  }
  for (int n = 0; n < 8; n++)
    parse_with("qkvc: 2\nname: 8\nfoo: 1\nattention: {heads: 0, dim: 3, dim:3, mask: q q}\n", n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(damaged_specs),
      cmocka_unit_test(cut_off_specs),
      cmocka_unit_test(failing_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
