/* test_manifest.c: text form and sizes of manifests: round trip, hostile input, rules against 128-bit arithmetic. */
#include "gen_fixture.h"

#include "manifest.h"

static void random_word(uint64_t *seed, char *out, size_t limit) {
  size_t length = 1 + fixture_random(seed) % (limit - 1);
  for (size_t n = 0; n < length; n++)
    out[n] = "abcdefghijklmnopqrstuvwxyz_.0123456789"[fixture_random(seed) % 38];
  out[length] = 0;
}

static void random_rule(uint64_t *seed, manifest_rule *rule) {
  rule->count = (int)(fixture_random(seed) % (MANIFEST_MAX_FACTORS + 1));
  for (int n = 0; n < rule->count; n++)
    rule->factors[n] = (manifest_factor){(manifest_size)(fixture_random(seed) % SIZE_COUNT),
                                         1 + (int)(fixture_random(seed) % (1 << (fixture_random(seed) % 30)))};
}

static void random_manifest(uint64_t *seed, manifest *m) {
  memset(m, 0, sizeof *m);
  random_word(seed, m->family, sizeof m->family);
  random_word(seed, m->variant_hash, sizeof m->variant_hash);
  if (fixture_random(seed) % 4)
    random_word(seed, m->schedule, sizeof m->schedule);
  random_word(seed, m->arch, sizeof m->arch);
  m->aligned16 = fixture_random(seed) % 2;
  snprintf(m->dilation, sizeof m->dilation, "%s", (const char *const[]){"", "4", "param.d"}[fixture_random(seed) % 3]);
  m->nlaunches = 1 + (int)(fixture_random(seed) % MANIFEST_MAX_LAUNCHES);
  for (int n = 0; n < m->nlaunches; n++) {
    random_word(seed, m->launches[n].entry, sizeof m->launches[n].entry);
    m->launches[n].block = 1 + (int)(fixture_random(seed) % 1024);
    m->launches[n].shared_bytes = (int)(fixture_random(seed) % 300000);
    m->launches[n].blocks_per_sm = (int)(fixture_random(seed) % 3);
    m->launches[n].plans = (int)(fixture_random(seed) % 2);
    m->launches[n].early = (int)(fixture_random(seed) % 2);
    m->launches[n].cluster = 1 + (int)(fixture_random(seed) % MANIFEST_MAX_CLUSTER);
    random_rule(seed, &m->launches[n].grid);
  }
  m->nregions = (int)(fixture_random(seed) % (MANIFEST_MAX_REGIONS + 1));
  for (int n = 0; n < m->nregions; n++) {
    random_word(seed, m->regions[n].name, sizeof m->regions[n].name);
    m->regions[n].bytes = 1 + (int)(fixture_random(seed) % 1000);
    m->regions[n].zeroed = (int)(fixture_random(seed) % 3);
    random_rule(seed, &m->regions[n].count);
  }
  m->nfields = (int)(fixture_random(seed) % (MANIFEST_MAX_FIELDS + 1));
  for (int n = 0; n < m->nfields; n++) {
    random_word(seed, m->fields[n].name, sizeof m->fields[n].name);
    random_word(seed, m->fields[n].source, sizeof m->fields[n].source);
    m->fields[n].type = (field_type)(fixture_random(seed) % 6);
  }
  manifest_place_fields(m);
}

static void round_trip_is_exact(void **state) {
  (void)state;
  static manifest m, back;
  for (uint64_t round = 0; round < 300; round++) {
    uint64_t seed = round;
    random_manifest(&seed, &m);
    text t = {0};
    manifest_write(&m, &t);
    memset(&back, 0xee, sizeof back);
    if (!manifest_read(t.bytes, t.size, &back))
      fail_msg("seed %llu: not read back:\n%s", (unsigned long long)round, t.bytes);
    assert_memory_equal(&m, &back, sizeof m);
    text_free(&t);
  }
}

/* Random damage: reading must be safe, and what it accepts must be written back byte for byte. */
static void damage_is_refused_or_canonical(void **state) {
  (void)state;
  static manifest m, back;
  int accepted = 0;
  for (uint64_t round = 0; round < 4000; round++) {
    uint64_t seed = round;
    random_manifest(&seed, &m);
    m.nfields = (int)(fixture_random(&seed) % 5);
    manifest_place_fields(&m);
    text t = {0}, again = {0};
    manifest_write(&m, &t);
    size_t size = t.size;
    char *copy = malloc(2 * size + 64); /* exact end: reads past it show under ASan */
    memcpy(copy, t.bytes, size);
    for (uint64_t edits = 1 + fixture_random(&seed) % 3; edits > 0; edits--) {
      size_t at = fixture_random(&seed) % size;
      switch (fixture_random(&seed) % 4) {
      case 0:
        copy[at] = (char)fixture_random(&seed);
        break;
      case 1:
        size = at + 1;
        break;
      case 2:
        copy[at] = "0123456789/ \n-"[fixture_random(&seed) % 14];
        break;
      default:
        memmove(copy + at + 1, copy + at, size - at);
        copy[at] = '9';
        size++;
        break;
      }
    }
    char *tight = malloc(size);
    memcpy(tight, copy, size);
    if (manifest_read(tight, size, &back)) {
      accepted++;
      manifest_write(&back, &again);
      if (again.size != size || memcmp(again.bytes, tight, size) != 0)
        fail_msg("seed %llu: accepted what it would not write", (unsigned long long)round);
      assert_true(back.nfields <= MANIFEST_MAX_FIELDS && back.nlaunches >= 1 && back.params_size >= 0);
    }
    free(tight);
    free(copy);
    text_free(&t);
    text_free(&again);
  }
  assert_true(accepted > 0 && accepted < 4000); /* the damage hits names too, where it is legal */
}

static void other_texts_are_refused(void **state) {
  (void)state;
  static const char *const good =
      "manifest 5\nfamily f\nvariant v\nschedule -\narch sm_80\ndilation -\naligned16 0\nparams_size 16\n"
      "launch e 32 0 0 1 0 1 batch/1\nfield a pointer 0 q\nfield b i32 8 batch\nend\n";
  static const struct {
    const char *from, *to;
  } edits[] = {{"manifest 5", "manifest 4"},
               {"manifest 5\n", ""},
               {"dilation -\n", ""},
               {"dilation -", "dilation 4 4"},
               {"aligned16 0", "aligned16 2"},
               {"params_size 16", "params_size 24"},
               {" 8 batch", " 12 batch"},
               {"pointer", "pointers"},
               {"batch/1", "batch/0"},
               {"batch/1", "batch"},
               {"batch/1", "batches/1"},
               {"32", "032"},
               {"32", "+32"},
               {"32", "0"},
               {"32", "99999999999999999999"},
               {" 1 0 1 batch", " 0 0 1 batch"},
               {" 1 0 1 batch", " 17 0 1 batch"},
               {" 1 0 1 batch", " 1 2 1 batch"},
               {" 1 0 1 batch", " 1 0 2 batch"},
               {"end\n", "end"},
               {"end\n", "end\nend\n"},
               {"family f", "family f g"},
               {"family f", "family  f"},
               {"family f\n", "family f\nfamily f\n"},
               {"launch e 32 0 0 1 0 1 batch/1\n", ""},
               {"field b", "word b"},
               {"schedule -\n", "schedule \n"}};
  manifest m;
  assert_true(manifest_read(good, strlen(good), &m));
  for (size_t n = 0; n < sizeof edits / sizeof edits[0]; n++) {
    const char *at = strstr(good, edits[n].from);
    assert_non_null(at);
    text t = {0};
    text_add(&t, good, (size_t)(at - good));
    text_puts(&t, edits[n].to);
    text_puts(&t, at + strlen(edits[n].from));
    if (manifest_read(t.bytes, t.size, &m))
      fail_msg("accepted with '%s' for '%s'", edits[n].to, edits[n].from);
    text_free(&t);
  }
  assert_false(manifest_read("", 0, &m));
}

static void rules_match_wide_arithmetic(void **state) {
  (void)state;
  for (uint64_t round = 0; round < 20000; round++) {
    uint64_t seed = round;
    manifest_rule rule = {0};
    int64_t sizes[SIZE_COUNT];
    random_rule(&seed, &rule);
    for (int n = 0; n < SIZE_COUNT; n++)
      sizes[n] =
          (int64_t)(fixture_random(&seed) >> (fixture_random(&seed) % 63 + 1)) - (fixture_random(&seed) % 20 == 0);
    __int128 product = 1;
    bool negative = false, overflow = false, zero = false;
    for (int n = 0; n < rule.count; n++) {
      __int128 size = rule.factors[n].size == SIZE_ONE ? 1 : sizes[rule.factors[n].size], per = rule.factors[n].per;
      negative = negative || size < 0;
      zero = zero || size == 0;
      product *= (size + per - 1) / per;
      overflow = overflow || product > INT64_MAX;
      product = overflow ? 1 : product;
    }
    int64_t expected = negative ? -1 : zero ? 0 : overflow ? -1 : (int64_t)product;
    if (manifest_rule_value(&rule, sizes) != expected)
      fail_msg("seed %llu: %lld, expected %lld", (unsigned long long)round,
               (long long)manifest_rule_value(&rule, sizes), (long long)expected);
  }
}

static void workspace_regions_are_aligned_and_disjoint(void **state) {
  (void)state;
  manifest m = {.nregions = 3,
                .regions = {{"a", 4, 0, {1, {{SIZE_LEN_K, 1}}}},
                            {"b", 1, 1, {1, {{SIZE_BATCH, 1}}}},
                            {"c", 8, 0, {0, {{0, 0}}}}}};
  int64_t sizes[SIZE_COUNT] = {1, 3, 5, 65, 1, 1, 1, 1, 1}, offsets[MANIFEST_MAX_REGIONS];
  assert_int_equal(manifest_workspace(&m, sizes, offsets), 512 + 256 + 256);
  assert_int_equal(offsets[0], 0);
  assert_int_equal(offsets[1], 512);
  assert_int_equal(offsets[2], 768);
  sizes[SIZE_LEN_K] = INT64_MAX / 2;
  assert_int_equal(manifest_workspace(&m, sizes, offsets), -1);
  sizes[SIZE_LEN_K] = -1;
  assert_int_equal(manifest_workspace(&m, sizes, offsets), -1);
  sizes[SIZE_LEN_K] = 0;
  assert_int_equal(manifest_workspace(&m, sizes, offsets), 512);
}

/* A tensor map lies on 64 bytes, as cuTensorMapEncodeTiled and the kernel's struct want it, and so does the struct. */
static void tensor_maps_are_placed_on_64_bytes(void **state) {
  (void)state;
  manifest m = {.nfields = 4,
                .fields = {{"n", "batch", FIELD_I32, -1},
                           {"q_map", "q.map.64.128.128", FIELD_TENSOR_MAP, -1},
                           {"k_map", "k.map.64.128.128", FIELD_TENSOR_MAP, -1},
                           {"lse", "lse", FIELD_POINTER, -1}}};
  const int offsets[] = {0, 64, 192, 320};
  manifest_place_fields(&m);
  for (int n = 0; n < 4; n++)
    assert_int_equal(m.fields[n].offset, offsets[n]);
  assert_int_equal(m.params_size, 384);
}

static void size_names_map_back(void **state) {
  (void)state;
  for (int n = 0; n < SIZE_COUNT; n++)
    assert_int_equal(manifest_size_find(manifest_size_name((manifest_size)n)), n);
  assert_int_equal(manifest_size_find("len"), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(round_trip_is_exact),
      cmocka_unit_test(damage_is_refused_or_canonical),
      cmocka_unit_test(other_texts_are_refused),
      cmocka_unit_test(rules_match_wide_arithmetic),
      cmocka_unit_test(workspace_regions_are_aligned_and_disjoint),
      cmocka_unit_test(tensor_maps_are_placed_on_64_bytes),
      cmocka_unit_test(size_names_map_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
