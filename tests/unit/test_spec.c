/* spec_*.c: fields and defaults, the canonical form (equal meaning, equal text; other meaning, other text), JSON, the
 * JSON Schema, and the table itself. Wrong specs are in test_spec_errors.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comma_locale.h"
#include "spec.h"
#include "spec_check.h"
#include "spec_schema.h"

static spec *parse(const char *source) {
  arena *memory = arena_new();
  diags d;
  spec *s;
  diags_init(&d, memory, NULL, source, strlen(source));
  if (!spec_parse(source, strlen(source), &d, &s)) {
    text t = {0};
    diags_print(&d, &t);
    print_error("%s\n%s\n", source, t.bytes);
    text_free(&t);
    arena_free(memory);
    fail();
  }
  arena_free(memory);
  return s;
}

/* A spec with the given lines of attention and of the top level. */
static char *spec_text(const char *attention, const char *top) {
  static char source[4096];
  snprintf(source, sizeof source, "qkvc: 1\nname: t\nattention:\n  heads: {q: 8, kv: 2}\n  dim: 64\n%s%s", attention,
           top);
  return source;
}

static char *canonical(const char *source) {
  spec *s = parse(source);
  text t = {0};
  spec_canonical(s, &t);
  assert_false(t.failed);
  spec_free(s);
  return t.bytes;
}

static const char full[] = "qkvc: 1\n"
                           "name: everything\n"
                           "attention:\n"
                           "  heads: {q: 16, kv: 8}\n"
                           "  dim: {qk: 192, v: 128}\n"
                           "  dtype: {q: f16, kv: e4m3, out: f32}\n"
                           "  scale: 1/sqrt(256)\n"
                           "  softcap: 50.0\n"
                           "  score: s + slope[h] * (k - q)\n"
                           "  mask: causal and q - k < limit\n"
                           "  sink: per_head\n"
                           "  align: top_left\n"
                           "  params:\n"
                           "    slope: {type: f32, shape: [hq]}\n"
                           "    limit: {type: i32}\n"
                           "layout: {q: ragged, kv: {paged: {page: 16, order: hnd, table: csr}}}\n"
                           "outputs: [lse_with_sink, o, lse]\n"
                           "deterministic: batch\n"
                           "schedule:\n"
                           "  stages: 2\n"
                           "  decode: {tile_m: 16, order: forward}\n"
                           "  prefill: auto\n"
                           "workloads:\n"
                           "  - {name: prefill_8k, batch: 2, q: 8192, kv: 8193}\n"
                           "  - {name: one, q: 1, kv: 2147483647}\n"
                           "x-notes: {anything: [goes, 0x10]}\n";

static void every_field(void **state) {
  (void)state;
  spec *s = parse(full);
  assert_string_equal(s->name, "everything");
  assert_int_equal(s->heads_q, 16);
  assert_int_equal(s->heads_kv, 8);
  assert_int_equal(s->dim_qk, 192);
  assert_int_equal(s->dim_v, 128);
  assert_int_equal(s->dtype_q, DTYPE_F16);
  assert_int_equal(s->dtype_kv, DTYPE_E4M3);
  assert_int_equal(s->dtype_out, DTYPE_F32);
  assert_true(s->scale == 0.0625 && s->softcap == 50);
  assert_int_equal(expr_params(s->score), 1);
  assert_int_equal(expr_params(s->mask), 2);
  assert_int_equal(s->sink, SINK_PER_HEAD);
  assert_int_equal(s->align, ALIGN_TOP_LEFT);
  assert_int_equal(s->nparams, 2);
  assert_string_equal(s->params[0].name, "slope");
  assert_int_equal(s->params[0].type, PARAM_F32);
  assert_int_equal(s->params[0].rank, 1);
  assert_int_equal(s->params[1].type, PARAM_I32);
  assert_int_equal(s->params[1].rank, 0);
  assert_int_equal(s->layout_q, LAYOUT_RAGGED);
  assert_int_equal(s->layout_kv, LAYOUT_PAGED);
  assert_int_equal(s->page_size, 16);
  assert_int_equal(s->page_order, PAGE_HND);
  assert_int_equal(s->page_table, PAGE_TABLE_CSR);
  assert_int_equal(s->outputs, OUTPUT_O | OUTPUT_LSE | OUTPUT_LSE_WITH_SINK);
  assert_int_equal(s->deterministic, DETERMINISTIC_BATCH);
  assert_int_equal(s->nschedule, 3);
  assert_null(s->schedule[0].phase);
  assert_string_equal(s->schedule[0].name, "stages");
  assert_string_equal(s->schedule[0].value, "2");
  assert_string_equal(s->schedule[2].phase, "decode");
  assert_string_equal(s->schedule[2].name, "order");
  assert_string_equal(s->schedule[2].value, "forward");
  assert_int_equal(s->nworkloads, 2);
  assert_string_equal(s->workloads[0].name, "prefill_8k");
  assert_int_equal(s->workloads[0].batch, 2);
  assert_int_equal(s->workloads[0].len_q, 8192);
  assert_int_equal(s->workloads[0].len_k, 8193);
  assert_int_equal(s->workloads[1].batch, 1);
  assert_int_equal(s->workloads[1].len_k, 2147483647);
  spec_free(s);
  spec_free(NULL);
}

static void defaults(void **state) {
  (void)state;
  spec *s = parse("qkvc: 1\nname: t\nattention: {heads: 3, dim: 72}\n");
  assert_int_equal(s->heads_q, 3);
  assert_int_equal(s->heads_kv, 3);
  assert_int_equal(s->dim_v, 72);
  assert_int_equal(s->dtype_q, DTYPE_BF16);
  assert_int_equal(s->dtype_out, DTYPE_BF16);
  assert_true(s->scale == 1 / sqrt(72) && s->softcap == 0);
  assert_int_equal(s->score->op, EXPR_SYMBOL);
  assert_int_equal(s->mask->op, EXPR_CONST);
  assert_int_equal(s->mask->integer, 1);
  assert_int_equal(s->sink, SINK_NONE);
  assert_int_equal(s->align, ALIGN_BOTTOM_RIGHT);
  assert_int_equal(s->layout_q, LAYOUT_DENSE);
  assert_int_equal(s->layout_kv, LAYOUT_DENSE);
  assert_int_equal(s->outputs, OUTPUT_O);
  assert_int_equal(s->deterministic, DETERMINISTIC_NO);
  assert_int_equal(s->nschedule + s->nworkloads + s->nparams, 0);
  spec_free(s);
}

static void dtypes(void **state) {
  (void)state;
  static const struct {
    const char *text;
    spec_dtype q, kv, out;
  } cases[] = {{"f16", DTYPE_F16, DTYPE_F16, DTYPE_F16},
               {"f32", DTYPE_F32, DTYPE_F32, DTYPE_F32},
               {"e4m3", DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16},
               {"{q: e5m2}", DTYPE_E5M2, DTYPE_E5M2, DTYPE_BF16},
               {"{q: f16}", DTYPE_F16, DTYPE_F16, DTYPE_F16},
               {"{q: bf16, kv: e4m3}", DTYPE_BF16, DTYPE_E4M3, DTYPE_BF16},
               {"{q: e4m3, out: f16}", DTYPE_E4M3, DTYPE_E4M3, DTYPE_F16}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char line[64];
    snprintf(line, sizeof line, "  dtype: %s\n", cases[i].text);
    spec *s = parse(spec_text(line, ""));
    if (s->dtype_q != cases[i].q || s->dtype_kv != cases[i].kv || s->dtype_out != cases[i].out)
      fail_msg("%s", line);
    spec_free(s);
  }
  const char *const names[] = {"f16", "bf16", "f32", "e4m3", "e5m2"};
  const int sizes[] = {2, 2, 4, 1, 1};
  for (int t = 0; t < DTYPE_COUNT; t++) {
    assert_string_equal(spec_dtype_name((spec_dtype)t), names[t]);
    assert_int_equal(spec_dtype_size((spec_dtype)t), sizes[t]);
    assert_string_equal(schema_find("attention.dtype")->words[t], names[t]); /* the table follows the enum */
  }
}

static void every_dim_and_ratio(void **state) {
  (void)state;
  const int wide[][2] = {{320, 256}, {512, 512}, {576, 512}};
  for (int i = 0; i < 32 + 3; i++) {
    int qk = i < 32 ? 8 + 8 * i : wide[i - 32][0], v = i < 32 ? 8 + 8 * i : wide[i - 32][1];
    char source[200];
    snprintf(source, sizeof source, "qkvc: 1\nname: t\nattention: {heads: {q: %d, kv: %d}, dim: {qk: %d, v: %d}}\n",
             (i + 1) * 71, i + 1, qk, v);
    spec *s = parse(source);
    assert_int_equal(s->dim_qk, qk);
    assert_int_equal(s->dim_v, v);
    assert_int_equal(s->heads_q / s->heads_kv, 71);
    spec_free(s);
  }
}

static void scales(void **state) {
  (void)state;
  static const struct {
    const char *text;
    double value;
  } cases[] = {{"0", 0},   {"-0.0", 0},   {"-0.125", -0.125}, {"1e-38", 1e-38}, {"1/sqrt(64)", 0.125},
               {"'2'", 2}, {"1.5e2", 150}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char line[64];
    snprintf(line, sizeof line, "  scale: %s\n", cases[i].text);
    spec *s = parse(spec_text(line, ""));
    if (s->scale != cases[i].value || signbit(s->scale) != signbit(cases[i].value))
      fail_msg("%s gives %a", line, s->scale);
    spec_free(s);
  }
}

/* Groups of ways to write one variant. */
static void equal_meaning_prints_alike(void **state) {
  (void)state;
  static const char *const groups[][5] = {
      {"", "  dtype: bf16\n", "  dtype: {q: bf16, out: bf16}\n  scale: 0.125\n",
       "  score: s\n  mask: true\n  sink: none\n  kv_scale: none\n", "  scale: \"1 / sqrt(64)\"\n  align: bottom_right\n"},
      {"  align: top_left\n", "  align: bottom_right\n", "  mask: k >= 0 or true\n", NULL},
      {"  mask: causal\n", "  mask: k <= q\n", "  mask: q - k >= 0\n", "  mask: not q < k\n",
       "  mask: >\n    k <=\n    q\n"},
      {"  kv_scale: per_head\n  sink: none\n", "  sink: none\n  kv_scale: per_head\n", NULL},
      {"  score: s + 1\n", "  score: 1 + s\n", NULL},
      {"  mask: h < 4 * heads_kv\n", "  mask: h < heads_q\n", "  mask: 8 > h\n", NULL},
      {"  params: {a: {type: f32}}\n  score: s * a\n",
       "  score: a * s\n  params:\n    a:\n      type: f32\n      shape: []\n", NULL},
      {"  params: {a: {type: f32, shape: [hq, len_k + 1]}}\n  score: s + a[h, k]\n",
       "  params: {a: {type: f32, shape: [8, 1 + len_k]}}\n  score: s + a[h, k]\n", NULL},
  };
  for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
    char *first = canonical(spec_text(groups[g][0], ""));
    for (int i = 1; i < 5 && groups[g][i]; i++) {
      char *other =
          canonical(spec_text(groups[g][i], "workloads: [{name: a, q: 1, kv: 1}]\nx-y: 1\nschedule: {stages: 2}\n"));
      if (strcmp(first, other) != 0)
        fail_msg("these differ:\n%s\n%s\n%s\n%s", groups[g][0], first, groups[g][i], other);
      free(other);
    }
    free(first);
  }
}

/* Where every query head has its own KV head, or there is one, hk has a simpler name. */
static void head_names_in_canonical_form(void **state) {
  (void)state;
  static const char *const pairs[][2] = {
      {"{heads: 8, dim: 64, mask: hk < 3}", "{heads: 8, dim: 64, mask: h < 3}"},
      {"{heads: {q: 8, kv: 1}, dim: 64, mask: hk < k}", "{heads: {q: 8, kv: 1}, dim: 64, mask: 0 < k}"},
      {"{heads: 1, dim: 64, mask: k != h + hk}", "{heads: 1, dim: 64, mask: k != 0}"}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    char source[2][200];
    for (int n = 0; n < 2; n++)
      snprintf(source[n], sizeof source[n], "qkvc: 1\nname: t\nattention: %s\n", pairs[i][n]);
    char *a = canonical(source[0]), *b = canonical(source[1]);
    assert_string_equal(a, b);
    free(a);
    free(b);
  }
}

/* Every field of the variant shows in the canonical form. */
static void other_meaning_prints_otherwise(void **state) {
  (void)state;
  static const char *const variants[][2] = {
      {"", ""},
      {"  dtype: f16\n", ""},
      {"  dtype: {q: bf16, kv: e4m3}\n", ""},
      {"  dtype: {q: bf16, out: f32}\n", ""},
      {"  scale: 0.25\n", ""},
      {"  softcap: 50\n", ""},
      {"  softcap: 50.001\n", ""},
      {"  score: s + k\n", ""},
      {"  score: s + q\n", ""},
      {"  score: s + q\n  align: top_left\n", ""},
      {"  mask: causal\n", ""},
      {"  mask: causal\n  align: top_left\n", ""},
      {"  mask: k <= i\n", ""},
      {"  mask: window(3, 0)\n", ""},
      {"  mask: window(4, 0)\n", ""},
      {"  sink: per_head\n", ""},
      {"  params: {a: {type: f32}}\n  score: s * a\n", ""},
      {"  params: {b2: {type: f32}}\n  score: s * b2\n", ""},
      {"  params: {a: {type: bf16}}\n  score: s * a\n", ""},
      {"  params: {a: {type: f32, shape: [hq]}}\n  score: s * a[h]\n", ""},
      {"  params: {a: {type: f32, shape: [hq + 1]}}\n  score: s * a[h]\n", ""},
      {"", "layout: {q: ragged, kv: ragged}\n"},
      {"", "layout: {kv: {paged: {page: 16}}}\n"},
      {"", "layout: {kv: {paged: {page: 32}}}\n"},
      {"", "layout: {kv: {paged: {page: 16, order: hnd}}}\n"},
      {"", "layout: {kv: {paged: {page: 16, table: csr}}}\n"},
      {"", "layout: {kv: padded}\n"},
      {"", "layout: {q: ragged, kv: padded}\n"},
      {"", "layout: {q: ragged, kv: {paged: {page: 16}}}\n"},
      {"", "outputs: [o, lse]\n"},
      {"  sink: per_head\n", "outputs: [o, lse_with_sink]\n"},
      {"", "deterministic: true\n"},
      {"", "deterministic: batch\n"},
  };
  enum { COUNT = sizeof variants / sizeof variants[0] };
  char *printed[COUNT];
  for (int i = 0; i < COUNT; i++) {
    printed[i] = canonical(spec_text(variants[i][0], variants[i][1]));
    for (int n = 0; n < i; n++)
      if (strcmp(printed[i], printed[n]) == 0)
        fail_msg("both print %s\n%s%s\n%s%s", printed[i], variants[i][0], variants[i][1], variants[n][0],
                 variants[n][1]);
  }
  for (int i = 0; i < COUNT; i++)
    free(printed[i]);
}

/* The canonical form is a spec itself, once it has a name, and its own canonical form. */
static void canonical_form_parses_to_itself(void **state) {
  (void)state;
  char *once = canonical(full);
  text named = {0};
  text_puts(&named, "name: t\n");
  text_puts(&named, once);
  char *twice = canonical(named.bytes);
  assert_string_equal(once, twice);
  free(once);
  free(twice);
  text_free(&named);
}

/* JSON is YAML: the printed JSON parses to the same variant, schedule and workloads. */
static void json_parses_to_the_same_spec(void **state) {
  (void)state;
  spec *s = parse(full);
  text json = {0}, again = {0}, canonical_one = {0}, canonical_two = {0};
  spec_json(s, &json);
  spec *back = parse(json.bytes);
  spec_json(back, &again);
  assert_string_equal(json.bytes, again.bytes);
  spec_canonical(s, &canonical_one);
  spec_canonical(back, &canonical_two);
  assert_string_equal(canonical_one.bytes, canonical_two.bytes);
  assert_string_equal(back->name, s->name);
  assert_int_equal(back->nschedule, s->nschedule);
  assert_int_equal(back->nworkloads, s->nworkloads);
  assert_int_equal(back->workloads[1].len_k, 2147483647);
  spec_free(s);
  spec_free(back);
  text_free(&json);
  text_free(&again);
  text_free(&canonical_one);
  text_free(&canonical_two);
}

/* Brackets and quotes balance, and every key that is not reserved is in it. */
static void json_schema(void **state) {
  (void)state;
  text t = {0};
  spec_json_schema(&t);
  assert_false(t.failed);
  char stack[64];
  int depth = 0;
  bool quoted = false;
  for (const char *c = t.bytes; *c; c++) {
    if (quoted) {
      c += *c == '\\';
      quoted = *c != '"';
    } else if (*c == '"')
      quoted = true;
    else if (*c == '{' || *c == '[') {
      assert_true(depth < 64);
      stack[depth++] = *c == '{' ? '}' : ']';
    } else if (*c == '}' || *c == ']') {
      assert_true(depth > 0);
      assert_int_equal(stack[--depth], *c);
    }
  }
  assert_int_equal(depth, 0);
  for (int i = 0; i < schema_row_count; i++) {
    char key[80];
    snprintf(key, sizeof key, "\"%s\": {", schema_key(&schema_rows[i]));
    bool named = schema_rows[i].path[0] && !strpbrk(schema_key(&schema_rows[i]), "*[");
    if (named && !(schema_rows[i].flags & SCHEMA_RESERVED) && !strstr(t.bytes, key))
      fail_msg("no %s", schema_rows[i].path);
  }
  text_free(&t);
}

/* Every row can be found, has a parent of the right kind, and its default is a value that it allows. */
static void the_table_is_sound(void **state) {
  (void)state;
  for (int i = 0; i < schema_row_count; i++) {
    const schema_row *row = &schema_rows[i];
    assert_ptr_equal(schema_find(row->path), row);
    assert_true(row->meaning && row->kinds);
    if (!row->path[0])
      continue;
    int parents = 0;
    for (int n = 0; n < i; n++)
      if (schema_is_child(row, &schema_rows[n])) {
        parents++;
        bool item = strcmp(schema_key(row), "[]") == 0;
        assert_true(schema_rows[n].kinds & (item ? SCHEMA_LIST : SCHEMA_MAPPING));
        assert_ptr_equal(schema_child(&schema_rows[n], schema_key(row)), row);
      }
    if (parents != 1)
      fail_msg("%s has %d parents", row->path, parents);
    int64_t value;
    if (row->fallback && (row->kinds & SCHEMA_WORD))
      assert_true(spec_word(row, row->fallback) >= 0);
    if (row->fallback && (row->kinds & SCHEMA_INTEGER) && !(row->kinds & SCHEMA_WORD))
      assert_true(spec_integer(row, row->fallback, &value));
    if ((row->kinds & SCHEMA_MAPPING) && !schema_child(row, "*")) {
      const char *keys[SCHEMA_MAX_KEYS];
      assert_true(schema_keys(row, keys) > 0 && schema_keys(row, keys) < SCHEMA_MAX_KEYS);
    }
    if (row->flags & SCHEMA_REQUIRED)
      assert_true(row->example != NULL && row->fallback == NULL);
  }
}

static void the_locale_changes_nothing(void **state) {
  (void)state;
  char *before = canonical(full);
  if (!enter_comma_locale()) {
    free(before);
    print_message("skipped: no locale with a decimal comma\n");
    skip();
  }
  char *after = canonical(full);
  setlocale(LC_ALL, "C");
  assert_string_equal(before, after);
  assert_non_null(strstr(after, "scale: 0.0625\n"));
  free(before);
  free(after);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_field),
      cmocka_unit_test(defaults),
      cmocka_unit_test(dtypes),
      cmocka_unit_test(every_dim_and_ratio),
      cmocka_unit_test(scales),
      cmocka_unit_test(equal_meaning_prints_alike),
      cmocka_unit_test(head_names_in_canonical_form),
      cmocka_unit_test(other_meaning_prints_otherwise),
      cmocka_unit_test(canonical_form_parses_to_itself),
      cmocka_unit_test(json_parses_to_the_same_spec),
      cmocka_unit_test(json_schema),
      cmocka_unit_test(the_table_is_sound),
      cmocka_unit_test(the_locale_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
