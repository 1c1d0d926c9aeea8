/* test_append.c: the sections rope and append: what they mean as frequencies, their canonical form, and that each of
 * their fields counts in the kernel's source while numbers and scores do not. tests/python/test_append.py has results. */
#include "gen_fixture.h"

#include <math.h>

#include "rope.h"

/* ---- Frequencies ---- */

static spec *rope_spec(const char *rope) {
  char source[512];
  snprintf(source, sizeof source,
           "qkvc: 1\nname: t\nattention: {heads: 2, dim: 128}\nrope: {%s}\nappend: {norm: none}\n", rope);
  return fixture_spec(source);
}

/* The frequencies of a rope; returns how many. */
static int frequencies_of(const char *rope, float out[SPEC_MAX_PAIRS]) {
  spec *s = rope_spec(rope);
  rope_frequencies(&s->rope, out);
  int count = s->rope.dims / 2;
  spec_free(s);
  return count;
}

static void assert_near(double got, double want, const char *what, int d) {
  if (!(fabs(got - want) <= 2e-7 * fabs(want)))
    fail_msg("%s, pair %d: %.9g, expected %.9g", what, d, got, want);
}

static void frequencies_are_the_scalings(void **state) {
  (void)state;
  float plain[SPEC_MAX_PAIRS], f[SPEC_MAX_PAIRS];
  assert_int_equal(frequencies_of("theta: 500000", plain), 64);
  for (int d = 0; d < 64; d++)
    assert_near(plain[d], exp(-d / 64.0 * log(500000)), "theta", d);
  frequencies_of("theta: 500000, scaling: {linear: {factor: 8}}", f);
  for (int d = 0; d < 64; d++)
    assert_near(f[d], plain[d] / 8.0, "linear", d);

  /* The fastest pair stays, the slowest is divided by the factor: what theta is changed for. */
  frequencies_of("theta: 500000, scaling: {ntk: {factor: 8}}", f);
  assert_near(f[0], plain[0], "ntk", 0);
  assert_near(f[63], plain[63] / 8.0, "ntk", 63);

  frequencies_of("theta: 500000, scaling: {llama3: {factor: 8, low: 1, high: 4, original: 8192}}", f);
  for (int d = 0; d < 64; d++) {
    const double waves = 8192 * (double)plain[d] / 6.283185307179586;
    if (waves < 1 || waves > 4)
      assert_near(f[d], waves < 1 ? plain[d] / 8.0 : plain[d], "llama3", d);
    else
      assert_true(f[d] < plain[d] && f[d] > plain[d] / 8);
  }
}

static void yarn_leaves_fast_pairs_and_divides_slow_ones(void **state) {
  (void)state;
  float plain[SPEC_MAX_PAIRS], f[SPEC_MAX_PAIRS];
  static const char *const truncates[] = {"true", "false"};
  frequencies_of("theta: 10000", plain);
  for (int t = 0; t < 2; t++) {
    char rope[128];
    snprintf(rope, sizeof rope, "theta: 10000, scaling: {yarn: {factor: 40, original: 4096, truncate: %s}}",
             truncates[t]);
    frequencies_of(rope, f);
    for (int d = 0; d < 64; d++) {
      /* Turns in the original context decide; a truncated ramp is wider by up to a pair at either end. */
      const double turns = 4096 * (double)plain[d] / 6.283185307179586, pair = t == 0 ? pow(10000, 1 / 64.0) : 1;
      if (turns > 32 * pair)
        assert_near(f[d], plain[d], rope, d);
      else if (turns < 1 / pair)
        assert_near(f[d], plain[d] / 40.0, rope, d);
      else
        assert_true(f[d] <= plain[d] && f[d] >= plain[d] / 40.0f * 0.999999f);
      assert_true(d == 0 || f[d] < f[d - 1]);
    }
  }
}

static void factors(void **state) {
  (void)state;
  static const struct {
    const char *rope;
    double factor;
  } rows[] = {
      {"theta: 5", 1},
      {"scaling: {linear: {factor: 9}}", 1},
      {"scaling: {yarn: {factor: 40, original: 4096}}", 1.3688879454113936},
      {"scaling: {yarn: {factor: 0.5, original: 4096}}", 1},
      {"scaling: {yarn: {factor: 40, original: 4096, attention_factor: 0.7}}", 0.7},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    spec *s = rope_spec(rows[n].rope);
    assert_near(rope_factor(&s->rope), rows[n].factor, rows[n].rope, 0);
    spec_free(s);
  }
}

/* ---- Specs ---- */

static const char *const fields[][2] = {
    {"heads", "{q: 4, kv: 2}"},  {"dim", "{qk: 64, v: 64}"},
    {"dtype", "{q: bf16, kv: bf16}"}, {"mask", "causal"},
    {"layout", "{q: ragged, kv: {paged: {page: 16}}}"},
    {"rope", "{dims: 64, style: half, theta: 500000}"},
    {"append", "{norm: rms, slots: positions, query: true}"},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static spec *changed_spec(const char *field, const char *value) {
  text t = {0};
  text_puts(&t, "qkvc: 1\nname: t\nattention:\n");
  for (int n = 0; n < FIELDS; n++)
    text_printf(&t, "%s%s: %s\n", n < 4 ? "  " : "", fields[n][0],
                field && strcmp(field, fields[n][0]) == 0 ? value : fields[n][1]);
  spec *s = fixture_spec(t.bytes);
  text_free(&t);
  return s;
}

static const struct {
  const char *field, *value;
  bool counts; /* in the source */
} changes[] = {
    {"heads", "{q: 6, kv: 2}", true},
    {"heads", "{q: 4, kv: 4}", true},
    {"dim", "{qk: 72, v: 64}", true},
    {"dim", "{qk: 64, v: 72}", true},
    {"dtype", "{q: f16, kv: bf16}", true},
    {"dtype", "{q: bf16, kv: f32}", true},
    {"dtype", "{q: bf16, kv: e4m3}", true},
    {"dtype", "{q: bf16, kv: bf16, out: f32}", false},
    {"dtype", "{q: bf16, kv: bf16}\n  kv_scale: per_head", true},
    {"mask", "q - k < 5", false},
    {"layout", "{q: dense, kv: {paged: {page: 16}}}", true},
    {"layout", "{q: ragged, kv: {paged: {page: 32}}}", true},
    {"layout", "{q: ragged, kv: {paged: {page: 16, table: csr}}}", true},
    {"layout", "{q: ragged, kv: padded}", true},
    {"layout", "{q: ragged, kv: ragged}", true},
    {"rope", "{dims: 32, style: half, theta: 500000}", true},
    {"rope", "{dims: 64, style: interleaved, theta: 500000}", true},
    {"rope", "{dims: 64, style: half, table: true}", true},
    {"rope", "{dims: 64, style: half, theta: 10000}", false},
    {"rope", "{scaling: {linear: {factor: 2}}}", false},
    {"rope", "{scaling: {llama3: {factor: 8, low: 1, high: 4, original: 8192}}}", false},
    {"rope", "{scaling: {yarn: {factor: 8, original: 8192}}}", false},
    {"append", "{norm: none, slots: positions, query: true}", true},
    {"append", "{norm: rms, slots: mapping, query: true}", true},
    {"append", "{norm: rms, slots: lengths, query: true}", true},
    {"append", "{norm: rms, slots: positions, query: false}", true},
    {"append", "{norm: rms, slots: positions, query: true, epsilon: 1/100}", false},
};

static gen_kernel *render(const spec *s, const gen_request *request) {
  gen_kernel *k;
  gen_error error = {0};
  if (gen_render(s, request, &k, &error) != GEN_OK)
    fail_msg("%s", error.message);
  return k;
}

static const gen_request append_request = {.phase = "append"};

static void fields_count_and_numbers_do_not(void **state) {
  (void)state;
  spec *base = changed_spec(NULL, NULL);
  gen_kernel *before = render(base, &append_request);
  for (size_t n = 0; n < sizeof changes / sizeof *changes; n++) {
    spec *s = changed_spec(changes[n].field, changes[n].value);
    gen_kernel *after = render(s, &append_request);
    if ((strcmp(before->source.bytes, after->source.bytes) != 0) != changes[n].counts)
      fail_msg("%s: %s %s the source", changes[n].field, changes[n].value,
               changes[n].counts ? "does not change" : "changes");
    gen_kernel_free(after);
    spec_free(s);
  }
  gen_kernel_free(before);
  spec_free(base);
}

static void canonical_forms_are_specs_of_the_same_meaning(void **state) {
  (void)state;
  text first = {0};
  spec *base = changed_spec(NULL, NULL);
  spec_canonical(base, &first);
  for (size_t n = 0; n < sizeof changes / sizeof *changes; n++) {
    text once = {0}, named = {0}, twice = {0};
    spec *s = changed_spec(changes[n].field, changes[n].value);
    spec_canonical(s, &once);
    assert_string_not_equal(once.bytes, first.bytes);
    text_printf(&named, "name: t\n%s", once.bytes);
    spec *again = fixture_spec(named.bytes);
    spec_canonical(again, &twice);
    assert_string_equal(once.bytes, twice.bytes);
    spec_free(again);
    spec_free(s);
    text_free(&once);
    text_free(&named);
    text_free(&twice);
  }
  spec_free(base);
  text_free(&first);
}

static void attention_knows_nothing_of_it(void **state) {
  (void)state;
  spec *with = changed_spec(NULL, NULL), *without = fixture_spec(
      "qkvc: 1\nname: t\nattention: {heads: {q: 4, kv: 2}, dim: 64, mask: causal}\n"
      "layout: {q: ragged, kv: {paged: {page: 16}}}\n");
  gen_kernel *one = render(with, NULL), *other = render(without, NULL);
  assert_string_equal(one->source.bytes, other->source.bytes);
  assert_string_equal(one->manifest.variant_hash, other->manifest.variant_hash);
  gen_kernel_free(one);
  gen_kernel_free(other);
  spec_free(with);
  spec_free(without);
}

/* Every value of every axis, alone against the defaults: legal ones render. */
static void legal_schedules_render(void **state) {
  (void)state;
  static gen_axis axes[32];
  int count, legal = 0;
  for (int unaligned = 0; unaligned <= 1; unaligned++)
    for (size_t n = 0; n < sizeof changes / sizeof *changes; n += 3) {
      spec *s = changed_spec(changes[n].field, changes[n].value);
      gen_request request = {.phase = "append", .unaligned = unaligned};
      assert_int_equal(gen_axes(s, &request, axes, &count, NULL), GEN_OK);
      for (int a = 0; a < count; a++)
        for (int v = 0; v < axes[a].nvalues; v++) {
          char wish[128];
          snprintf(wish, sizeof wish, "%.63s=%d", axes[a].name, axes[a].values[v]);
          request.schedule = wish;
          gen_schedule info;
          gen_kernel *k = NULL;
          gen_error error = {0};
          assert_int_equal(gen_check_schedule(s, &request, &info, &error), GEN_OK);
          gen_status status = gen_render(s, &request, &k, &error);
          if (status != (info.legal ? GEN_OK : GEN_BAD_SCHEDULE))
            fail_msg("%s: %s with %s: legal %d, but %s", changes[n].field, changes[n].value, wish, info.legal,
                     error.message);
          if (k)
            assert_int_equal(k->manifest.launches[0].block, info.resources.threads);
          legal += info.legal;
          gen_kernel_free(k);
        }
      spec_free(s);
    }
  assert_true(legal >= 60);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(frequencies_are_the_scalings),
      cmocka_unit_test(yarn_leaves_fast_pairs_and_divides_slow_ones),
      cmocka_unit_test(factors),
      cmocka_unit_test(fields_count_and_numbers_do_not),
      cmocka_unit_test(canonical_forms_are_specs_of_the_same_meaning),
      cmocka_unit_test(attention_knows_nothing_of_it),
      cmocka_unit_test(legal_schedules_render),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
