/* test_golden.c: the built-in families: rendered sources against tests/golden, and properties every family must have.
 *
 * After a deliberate change: UPDATE_GOLDEN=1 test_golden, then read the diff. */
#include "gen_fixture.h"

#include <time.h>

/* Merges and appends are asked for with phases of their own; most of what a spec says has no part in them. */
static bool is_of_another_phase(const gen_choice *c) {
  return strcmp(c->family, "attention_merge_sm80") == 0 || strcmp(c->family, "kv_append_sm80") == 0;
}

/* ---- golden sources ---- */

static const struct {
  const char *spec;    /* tests/golden/SPEC.yaml */
  const char *variety; /* distinguishes the renderings of one spec; part of the file name */
  const char *arch, *family, *schedule;
  int64_t len_q; /* the declared maximum; 0: none */
  bool unaligned;
} goldens[] = {
    {.spec = "plain"},
    {.spec = "causal"},
    {.spec = "causal", .variety = "naive", .family = "attention_naive"},
    {.spec = "causal", .variety = "unaligned", .unaligned = true},
    {.spec = "window"},
    {.spec = "softcap_sink"},
    {.spec = "softcap_sink", .variety = "naive", .family = "attention_naive"},
    {.spec = "alibi"},
    {.spec = "top_left"},
    {.spec = "dims_differ"},
    {.spec = "dim_256"},
    {.spec = "dim_256", .variety = "sm_89", .arch = "sm_89"}, /* less shared memory: a fallback schedule */
    {.spec = "dim_odd"},
    {.spec = "single"},
    {.spec = "elements"},
    {.spec = "documents"},
    {.spec = "prefix"},
    {.spec = "nothing"},
    {.spec = "dilated"},
    {.spec = "mixed_out"},
    {.spec = "ragged"},
    {.spec = "paged"},
    {.spec = "paged", .variety = "unaligned", .unaligned = true},
    {.spec = "paged", .variety = "naive", .family = "attention_naive"},
    {.spec = "causal", .variety = "decode", .family = "attention_decode_sm80", .len_q = 1},
    {.spec = "everything", .variety = "decode", .family = "attention_decode_sm80", .len_q = 3},
    {.spec = "paged", .variety = "decode", .family = "attention_decode_sm80", .len_q = 1},
    {.spec = "everything", .variety = "decode_sm_90a", .family = "attention_decode_sm90", .arch = "sm_90a", .len_q = 3},
    {.spec = "paged", .variety = "decode_sm_90a", .family = "attention_decode_sm90", .arch = "sm_90a", .len_q = 1},
    {.spec = "causal", .variety = "decode_combine", .family = "attention_decode_sm80", .len_q = 1, .schedule = "merge=1"},
    {.spec = "paged", .variety = "decode_cluster.sm_90a", .family = "attention_decode_sm90", .arch = "sm_90a", .len_q = 1,
     .schedule = "merge=8"},
    {.spec = "causal", .variety = "merge", .family = "attention_merge_sm80"},
    {.spec = "ragged", .variety = "merge", .family = "attention_merge_sm80"},
    {.spec = "paged_e4m3", .variety = "decode", .family = "attention_decode_sm80", .len_q = 1},
    {.spec = "sink_window", .variety = "decode", .family = "attention_decode_sm80", .len_q = 2},
    {.spec = "single", .variety = "decode_simt", .family = "attention_decode_simt", .len_q = 1}, /* f32 by lanes */
    {.spec = "everything", .variety = "decode_simt", .family = "attention_decode_simt", .len_q = 2},
    {.spec = "paged_e4m3", .variety = "decode_simt", .family = "attention_decode_simt", .len_q = 1},
    {.spec = "paged_e4m3", .variety = "decode.sm_89", .family = "attention_decode_sm80", .arch = "sm_89", .len_q = 1},
    {.spec = "append", .variety = "append", .family = "kv_append_sm80"},
    {.spec = "append_e4m3", .variety = "append", .family = "kv_append_sm80", .arch = "sm_90a"},
    {.spec = "append_e4m3", .variety = "unaligned", .family = "kv_append_sm80", .unaligned = true},
    {.spec = "causal", .variety = "sm_90a", .arch = "sm_90a"},
    {.spec = "full_f16", .variety = "sm_90a", .arch = "sm_90a"},
    {.spec = "everything", .variety = "sm_90a", .arch = "sm_90a"},
    {.spec = "packed", .variety = "sm_90a", .arch = "sm_90a", .len_q = 16, /* heads of a KV head as rows of one tile */
     .schedule = "warpgroups=1,tile_n=32,scheduler=0,pack=1"},
    {.spec = "dilated", .variety = "sm_90a", .arch = "sm_90a", /* a planned order of tiles of rows */
     .schedule = "warpgroups=1,tile_n=32,scheduler=3,l2_mib=4"},
    {.spec = "documents", .variety = "sm_90a", .arch = "sm_90a", /* a walk over a map; the mask's numbers come beside K */
     .schedule = "warpgroups=1,tile_n=32"},
    {.spec = "ragged", .variety = "sm_90a", .arch = "sm_90a"}, /* boxes that end where a sequence does */
    {.spec = "paged", .variety = "sm_90a", .arch = "sm_90a", /* several of them to a tile of keys */
     .schedule = "warpgroups=1,tile_n=64,scheduler=1,l2_mib=0,pack=0"},
    {.spec = "paged_single", .variety = "sm_90a", .arch = "sm_90a", /* keys one by one */
     .schedule = "warpgroups=1,tile_n=64,scheduler=1,l2_mib=0,pack=0"},
};
enum { GOLDEN_COUNT = sizeof goldens / sizeof goldens[0] };

static spec *golden_spec(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/tests/golden/%s.yaml", QKV_SOURCE_DIR, name);
  char *source = fixture_read(path);
  if (!source)
    fail_msg("cannot read %s", path);
  spec *s = fixture_spec(source);
  free(source);
  return s;
}

static gen_request golden_request(int n) {
  return (gen_request){.arch = goldens[n].arch ? arch_find(goldens[n].arch) : NULL,
                       .family = goldens[n].family,
                       .schedule = goldens[n].schedule,
                       .len_q = goldens[n].len_q,
                       .unaligned = goldens[n].unaligned};
}

static gen_kernel *render(const spec *s, const gen_request *request) {
  gen_kernel *k;
  gen_error error = {0};
  if (gen_render(s, request, &k, &error) != GEN_OK)
    fail_msg("%s: %s", s->name, error.message);
  return k;
}

/* Names the first line that differs. */
static void compare_golden(const char *path, const char *got) {
  char *expected = fixture_read(path);
  if (!expected)
    fail_msg("%s is missing; run with UPDATE_GOLDEN=1", path);
  int line = 1;
  const char *a = got, *b = expected;
  while (*a && *a == *b)
    line += *a == '\n', a++, b++;
  if (*a != *b)
    fail_msg("%s:%d differs; rendered: %.100s", path, line, a);
  free(expected);
}

static void sources_match_their_golden_files(void **state) {
  (void)state;
  for (int n = 0; n < GOLDEN_COUNT; n++) {
    spec *s = golden_spec(goldens[n].spec);
    gen_request request = golden_request(n);
    gen_kernel *k = render(s, &request);
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s%s%s.cu", QKV_SOURCE_DIR, goldens[n].spec,
             goldens[n].variety ? "." : "", goldens[n].variety ? goldens[n].variety : "");
    if (getenv("UPDATE_GOLDEN")) {
      FILE *f = fopen(path, "wb");
      assert_non_null(f);
      assert_int_equal(fwrite(k->source.bytes, 1, k->source.size, f), k->source.size);
      assert_int_equal(fclose(f), 0);
    }
    compare_golden(path, k->source.bytes);
    gen_kernel_free(k);
    spec_free(s);
  }
}

/* ---- properties of every rendering ---- */

static int count_word(const char *source, const char *word, size_t length) {
  int count = 0;
  for (const char *p = source; (p = strstr(p, word)); p += length) {
    bool begins = p == source || !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", p[-1]);
    bool ends = !p[length] || !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", p[length]);
    count += begins && ends;
  }
  return count;
}

/* A constant at the head that nothing uses would make a field look effective that is not. */
static void check_constants_are_used(const gen_kernel *k, const char *name) {
  for (const char *p = k->source.bytes; (p = strstr(p, "\nconstexpr ")); p++) {
    const char *equals = strchr(p + 1, '='), *end = equals - 1, *begin;
    while (end[-1] == ' ')
      end--;
    for (begin = end; begin[-1] != ' '; begin--)
      ;
    char word[128];
    snprintf(word, sizeof word, "%.*s", (int)(end - begin), begin);
    char *bracket = strchr(word, '[');
    if (bracket)
      *bracket = 0;
    if (count_word(k->source.bytes, word, strlen(word)) < 2)
      fail_msg("%s: constant %s is not used", name, word);
  }
}

static void sources_are_tidy_and_mapped(void **state) {
  (void)state;
  for (int n = 0; n < GOLDEN_COUNT; n++) {
    spec *s = golden_spec(goldens[n].spec);
    gen_request request = golden_request(n);
    gen_kernel *k = render(s, &request);
    const char *source = k->source.bytes;
    int lines = 0;
    for (const char *p = source, *end; *p; p = end + 1, lines++) {
      end = strchr(p, '\n');
      if (end - p > 120)
        fail_msg("%s: line %d is wider than 120 columns: %.*s", goldens[n].spec, lines + 1, (int)(end - p), p);
    }
    assert_int_equal(lines, k->nlines);
    assert_null(strchr(source, '$'));
    assert_null(strstr(source, " \n"));
    assert_null(strstr(source, "#include"));
    if (!strstr(k->manifest.family, "_sm90")) /* their rings count stages by a template argument */
      assert_null(strstr(source, "template"));
    for (int line = 0; line < k->nlines; line++)
      assert_in_range(k->lines[line].template_index, 0, k->ntemplates - 1);
    check_constants_are_used(k, goldens[n].spec);
    for (int launch = 0; launch < k->manifest.nlaunches; launch++)
      if (!strstr(source, k->manifest.launches[launch].entry))
        fail_msg("%s: entry %s is not in the source", goldens[n].spec, k->manifest.launches[launch].entry);
    /* Every field that the launch fills is a member of the struct. */
    for (int field = 0; field < k->manifest.nfields; field++)
      if (count_word(source, k->manifest.fields[field].name, strlen(k->manifest.fields[field].name)) < 1)
        fail_msg("%s: field %s is not in the source", goldens[n].spec, k->manifest.fields[field].name);
    gen_kernel_free(k);
    spec_free(s);
  }
}

/* ---- every field counts ---- */

/* The source without its head comment, which repeats the spec. */
static const char *body(const gen_kernel *k) {
  const char *p = k->source.bytes;
  while (p[0] == '/' && p[1] == '/')
    p = strchr(p, '\n') + 1;
  return p;
}

/* A spec that uses everything; each field below is replaced in turn. */
static const char *const base_fields[][2] = {
    {"heads", "{q: 8, kv: 2}"},
    {"dim", "{qk: 64, v: 64}"},
    {"dtype", "{q: bf16, kv: bf16, out: bf16}"},
    {"scale", "0.1"},
    {"softcap", "30.0"},
    {"score", "s + slope[h] * (k - q)"},
    {"mask", "causal"},
    {"sink", "per_head"},
    {"align", "bottom_right"},
    {"params", "{slope: {type: f32, shape: [hq]}}"},
};
enum { BASE_COUNT = sizeof base_fields / sizeof base_fields[0] };

static spec *changed_spec(const char *field, const char *value) {
  text t = {0};
  text_puts(&t, "qkvc: 1\nname: t\nattention:\n");
  for (int n = 0; n < BASE_COUNT; n++)
    text_printf(&t, "  %s: %s\n", base_fields[n][0],
                field && strcmp(field, base_fields[n][0]) == 0 ? value : base_fields[n][1]);
  if (field && strcmp(field, "kv_scale") == 0)
    text_printf(&t, "  kv_scale: %s\n", value);
  const char *outputs = field && strcmp(field, "outputs") == 0 ? value : "[o, lse]";
  text_printf(&t, "outputs: %s\n", outputs);
  if (field && strcmp(field, "layout") == 0)
    text_printf(&t, "layout: %s\n", value);
  spec *s = fixture_spec(t.bytes);
  text_free(&t);
  return s;
}

static void every_field_counts_or_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *field, *value;
    const char *refused_as; /* what a refusal must name */
  } changes[] = {
      {"heads", "{q: 16, kv: 2}", "heads"},
      {"heads", "{q: 8, kv: 4}", "heads"},
      {"heads", "{q: 8, kv: 8}", "heads"},
      {"dim", "{qk: 72, v: 64}", "dim"},
      {"dim", "{qk: 64, v: 72}", "dim"},
      {"dtype", "{q: f16, kv: bf16, out: bf16}", "dtype"},
      {"dtype", "{q: bf16, kv: f16, out: bf16}", "dtype"},
      {"dtype", "{q: f16, kv: f16, out: bf16}", "dtype"},
      {"dtype", "{q: bf16, kv: bf16, out: f16}", "dtype"},
      {"dtype", "{q: bf16, kv: bf16, out: f32}", "dtype"},
      {"dtype", "{q: bf16, kv: e4m3, out: bf16}", "dtype"},
      {"dtype", "{q: f32, kv: f32, out: f32}", "dtype"},
      {"scale", "0.2", "scale"},
      {"scale", "-0.1", "scale"},
      {"softcap", "20.0", "softcap"},
      {"score", "s - slope[h] * (k - q)", "score"},
      {"score", "s + slope[h]", "score"},
      {"mask", "causal and q - k < 100", "mask"},
      {"mask", "'true'", "mask"},
      {"mask", "'false'", "mask"},
      {"mask", "q % 2 == k % 2", "mask"},
      {"kv_scale", "per_head", "kv_scale"},
      {"sink", "none", "sink"},
      {"align", "top_left", "align"},
      {"params", "{slope: {type: f16, shape: [hq]}}", "params"},
      {"params", "{slope: {type: bf16, shape: [hq]}}", "params"},
      {"params", "{slope: {type: i32, shape: [hq]}}", "params"},
      {"outputs", "[o]", "outputs"},
      {"outputs", "[o, lse_with_sink]", "outputs"},
      {"layout", "{q: ragged, kv: ragged}", "layout"},
      {"layout", "{q: dense, kv: padded}", "layout"},
      {"layout", "{q: ragged, kv: padded}", "layout"},
      {"layout", "{q: dense, kv: {paged: {page: 16, order: nhd}}}", "layout"},
      {"layout", "{q: dense, kv: {paged: {page: 17, order: nhd, table: csr}}}", "layout"},
      {"layout", "{q: ragged, kv: {paged: {page: 16, order: hnd}}}", "layout"},
  };
  spec *base = changed_spec(NULL, NULL);
  for (size_t n = 0; n < sizeof changes / sizeof changes[0]; n++) {
    spec *s = changed_spec(changes[n].field, changes[n].value);
    gen_choice choices[GEN_MAX_FAMILIES];
    int count;
    gen_request request = {.arch = arch_find("sm_90a"), .phase = "decode"}; /* which all that attend reach */
    assert_int_equal(gen_choices(s, &request, choices, &count, NULL), GEN_OK);
    for (int f = 0; f < count; f++) {
      request.family = choices[f].family;
      if (is_of_another_phase(&choices[f]))
        continue;
      if (!choices[f].supported) {
        if (!strstr(choices[f].reason, changes[n].refused_as))
          fail_msg("%s refuses %s: %s without naming it: %s", choices[f].family, changes[n].field, changes[n].value,
                   choices[f].reason);
        continue;
      }
      gen_kernel *before = render(base, &request), *after = render(s, &request);
      if (strcmp(body(before), body(after)) == 0)
        fail_msg("%s ignores %s: %s", choices[f].family, changes[n].field, changes[n].value);
      assert_string_not_equal(before->manifest.variant_hash, after->manifest.variant_hash);
      gen_kernel_free(before);
      gen_kernel_free(after);
    }
    spec_free(s);
  }
  spec_free(base);
}

/* ---- schedules ---- */

/* What no f32 or no parameter struct can hold is refused with the field's name, not found by a template. */
static void extremes_are_refused_by_name(void **state) {
  (void)state;
  static const char *const extremes[][3] = {
      {"scale", "3e38", "attention.scale: 3e+38 is too large"},
      {"scale", "-3e38", "attention.scale: -3e+38 is too large"},
      {"softcap", "1e-39", "attention.softcap: 1e-39 is too small"},
  };
  for (size_t n = 0; n < sizeof extremes / sizeof extremes[0]; n++) {
    spec *s = changed_spec(extremes[n][0], extremes[n][1]);
    gen_choice choices[GEN_MAX_FAMILIES];
    int count;
    const gen_request request = {.arch = arch_find("sm_90a"), .phase = "decode"};
    assert_int_equal(gen_choices(s, &request, choices, &count, NULL), GEN_OK);
    for (int f = 0; f < count; f++)
      if (!is_of_another_phase(&choices[f]) &&
          (choices[f].supported || !strstr(choices[f].reason, extremes[n][2])))
        fail_msg("%s, %s: %s: '%s'", choices[f].family, extremes[n][0], extremes[n][1], choices[f].reason);
    spec_free(s);
  }
  text many = {0};
  text_puts(&many, "qkvc: 1\nname: t\nattention:\n  heads: 2\n  dim: 64\n  mask: k < t0[b, h, q, k]");
  for (int n = 1; n < SPEC_MAX_PARAMS; n++)
    text_printf(&many, " + t%d[b, h, q, k]", n);
  text_puts(&many, "\n  params:\n");
  for (int n = 0; n < SPEC_MAX_PARAMS; n++)
    text_printf(&many, "    t%d: {type: i32, shape: [b, hq, len_q, len_k]}\n", n);
  spec *s = fixture_spec(many.bytes);
  gen_kernel *k;
  gen_error error = {0};
  assert_int_equal(gen_render(s, NULL, &k, &error), GEN_UNSUPPORTED);
  if (strncmp(error.message, "attention.params: ", 18) != 0)
    fail_msg("%s", error.message);
  spec_free(s);
  text_free(&many);
}

/* Random points of each family's space: legal ones render and differ only in what the schedule says; illegal ones have
 * a reason. */
static void legal_schedules_render(void **state) {
  (void)state;
  spec *s = changed_spec(NULL, NULL);
  gen_choice choices[GEN_MAX_FAMILIES];
  static gen_axis axes[32];
  int families, count, legal = 0;
  gen_request request = {.arch = arch_find("sm_90a"), .phase = "decode"};
  assert_int_equal(gen_choices(s, &request, choices, &families, NULL), GEN_OK);
  for (int f = 0; f < families; f++) {
    if (!choices[f].supported)
      continue;
    request = (gen_request){.arch = request.arch, .phase = request.phase, .family = choices[f].family};
    assert_int_equal(gen_axes(s, &request, axes, &count, NULL), GEN_OK);
    for (uint64_t round = 0; count > 0 && round < 120; round++) {
      uint64_t seed = round;
      text wish = {0};
      for (int a = 0; a < count; a++)
        text_printf(&wish, "%s%s=%d", a ? "," : "", axes[a].name,
                    axes[a].values[fixture_random(&seed) % (uint64_t)axes[a].nvalues]);
      request.schedule = wish.bytes;
      request.unaligned = fixture_random(&seed) % 2;
      gen_schedule info;
      gen_error error = {0};
      gen_status status = gen_check_schedule(s, &request, &info, &error);
      if (status == GEN_UNSUPPORTED && request.unaligned) { /* not every family takes any tensor */
        text_free(&wish);
        continue;
      }
      assert_int_equal(status, GEN_OK);
      assert_string_equal(info.text, wish.bytes);
      assert_true(info.legal == (info.reason[0] == 0));
      if (info.legal) {
        gen_kernel *k = render(s, &request);
        assert_string_equal(k->manifest.schedule, wish.bytes);
        const manifest_launch *main = &k->manifest.launches[k->manifest.nlaunches - 1]; /* behind those that plan */
        main -= strcmp(main->entry, "qkv_combine") == 0;
        assert_int_equal(main->block, info.resources.threads);
        assert_int_equal(main->shared_bytes, info.resources.shared_bytes);
        gen_kernel_free(k);
        legal++;
      }
      text_free(&wish);
    }
    /* Every value of every axis, alone against the defaults. */
    request.unaligned = false;
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
          fail_msg("%s with %s: legal %d, but %s", choices[f].family, wish, info.legal, error.message);
        gen_kernel_free(k);
      }
  }
  assert_true(legal >= 10);
  spec_free(s);
}

static void every_zoo_like_spec_has_a_schedule_everywhere(void **state) {
  (void)state;
  int archs;
  const arch *table = arch_table(&archs);
  for (int n = 0; n < GOLDEN_COUNT; n++) {
    if (goldens[n].family && strcmp(goldens[n].family, "kv_append_sm80") == 0)
      continue; /* its spec need not be one that attention can do */
    spec *s = golden_spec(goldens[n].spec);
    for (int a = 0; a < archs; a++) {
      static const int64_t len_q[] = {0, 1, 16, 100, 5000};
      for (int l = 0; l < 5; l++) {
        gen_request request = {.arch = &table[a], .unaligned = goldens[n].unaligned, .len_q = len_q[l]};
        gen_kernel_free(render(s, &request));
      }
    }
    spec_free(s);
  }
}

/* Heads of a KV head share tiles where that saves tiles, and few rows take few warpgroups. */
static void few_queries_take_few_rows(void **state) {
  (void)state;
  static const struct {
    int heads_q, heads_kv;
    int64_t len_q;
    const char *expected; /* in the default schedule */
  } rows[] = {
      {32, 8, 1, "warpgroups=1 pack=1"},   {32, 8, 16, "warpgroups=1 pack=1"}, {32, 8, 17, "warpgroups=2 pack=1"},
      {32, 8, 33, "warpgroups=2 pack=1"},  {32, 8, 100, "warpgroups=2 pack=0"},
      {8, 8, 64, "warpgroups=1 pack=0"},  {8, 8, 65, "warpgroups=2 pack=0"},
      {32, 8, 0, "warpgroups=2 pack=1"},   {142, 2, 1, "warpgroups=2 pack=1"}, {142, 2, 4096, "warpgroups=2 pack=0"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char source[256], found[64];
    snprintf(source, sizeof source,
             "qkvc: 1\nname: n\nattention:\n  heads: {q: %d, kv: %d}\n  dim: 128\n  dtype: bf16\n  mask: causal\n",
             rows[n].heads_q, rows[n].heads_kv);
    spec *s = fixture_spec(source);
    const gen_request request = {.arch = arch_find("sm_90a"), .phase = "prefill", .len_q = rows[n].len_q};
    gen_kernel *k = render(s, &request);
    const char *warpgroups = strstr(k->source.bytes, "WARPGROUPS = ");
    assert_non_null(warpgroups);
    snprintf(found, sizeof found, "warpgroups=%d pack=%d", atoi(warpgroups + 13),
             strstr(k->source.bytes, "TILE_QUERIES = ") != NULL);
    if (strcmp(found, rows[n].expected) != 0)
      fail_msg("%d/%d heads, len_q %d: %s, not %s", rows[n].heads_q, rows[n].heads_kv, (int)rows[n].len_q, found,
               rows[n].expected);
    gen_kernel_free(k);
    spec_free(s);
  }
}

/* Pages of any size come to Hopper's family: by boxes where they hold whole ones, else row by row. */
static void pages_of_any_size_come_to_hopper(void **state) {
  (void)state;
  static const int dims[] = {64, 128, 256};
  for (int page = 1; page <= 256; page += page < 18 ? 1 : 17)
    for (int d = 0; d < 3; d++) {
      char source[256];
      snprintf(source, sizeof source,
               "qkvc: 1\nname: n\nattention: {heads: {q: 8, kv: 2}, dim: %d, dtype: bf16, mask: causal}\n"
               "layout: {q: ragged, kv: {paged: {page: %d}}}\n",
               dims[d], page);
      spec *s = fixture_spec(source);
      const gen_request request = {.arch = arch_find("sm_90a"), .phase = "prefill"};
      gen_kernel *k = render(s, &request);
      const bool boxes = strstr(k->source.bytes, "&p.k_map") != NULL;
      if (strcmp(k->manifest.family, "attention_forward_sm90") != 0 || boxes != (page % 8 == 0))
        fail_msg("dim %d, pages of %d: %s, by %s", dims[d], page, k->manifest.family, boxes ? "boxes" : "rows");
      gen_kernel_free(k);
      spec_free(s);
    }
}

/* An order is counted where bounds give none, the maxima are declared that its size follows from, and it pays. */
static void orders_are_counted_where_masks_give_none(void **state) {
  (void)state;
  enum { LONG = 4096 };
  static const struct {
    const char *mask;
    int64_t batch, len_q;
    int scheduler;
  } rows[] = {
      {"causal", 2, LONG, 2},
      {"k >= q", 2, LONG, 2},
      {"k < bound[b] or causal", 2, LONG, 2},
      {"causal and not (k >= 100 and k < 300)", 2, LONG, 2},
      {"window(100, 0)", 2, LONG, 1},
      {"causal and (q - k < 100 or k < 4)", 2, LONG, 2},
      {"causal and same(doc)", 2, LONG, 3},
      {"causal and same(doc)", 0, LONG, 2},
      {"causal and same(doc)", 2, 0, 2},
      {"causal and same(doc)", 2, 1024, 1},
      {"doc[b, q] <= k and causal", 2, LONG, 2},
      {"doc[b, q] <= k and causal", 0, LONG, 2},
      {"(q + k) % 5 != 0", 0, LONG, 3},
      {"causal and (q - k) % 3 == 0", 2, LONG, 2},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char source[512];
    snprintf(source, sizeof source,
             "qkvc: 1\nname: n\nattention:\n  heads: 4\n  dim: 128\n  dtype: bf16\n  mask: \"%s\"\n%s%s", rows[n].mask,
             strstr(rows[n].mask, "doc") ? "  params: {doc: {type: i32, shape: [b, len_k]}}\n" : "",
             strstr(rows[n].mask, "bound") ? "  params: {bound: {type: i32, shape: [b]}}\n" : "");
    spec *s = fixture_spec(source);
    gen_kernel *k =
        render(s, &(gen_request){.arch = arch_find("sm_90a"), .batch = rows[n].batch, .len_q = rows[n].len_q});
    char expected[32];
    snprintf(expected, sizeof expected, "scheduler=%d,", rows[n].scheduler);
    if (!strstr(k->manifest.schedule, expected))
      fail_msg("%s, batch %d, len_q %d: %s, not %s", rows[n].mask, (int)rows[n].batch, (int)rows[n].len_q,
               k->manifest.schedule, expected);
    gen_kernel_free(k);
    spec_free(s);
  }
}

/* ---- speed ---- */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void rendering_takes_milliseconds(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip();
#endif
  spec *s = golden_spec("softcap_sink");
  double best = 1e9;
  for (int round = 0; round < 10; round++) {
    double begin = now();
    gen_kernel_free(render(s, &(gen_request){0}));
    double took = now() - begin;
    best = took < best ? took : best;
  }
  print_message("rendering: %.2f ms\n", best);
  if (best > 20)
    fail_msg("rendering took %.1f ms of CPU time, the limit is 20", best);
  spec_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sources_match_their_golden_files),
      cmocka_unit_test(sources_are_tidy_and_mapped),
      cmocka_unit_test(every_field_counts_or_is_refused),
      cmocka_unit_test(extremes_are_refused_by_name),
      cmocka_unit_test(legal_schedules_render),
      cmocka_unit_test(every_zoo_like_spec_has_a_schedule_everywhere),
      cmocka_unit_test(few_queries_take_few_rows),
      cmocka_unit_test(pages_of_any_size_come_to_hopper),
      cmocka_unit_test(orders_are_counted_where_masks_give_none),
      cmocka_unit_test(rendering_takes_milliseconds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
