/* test_bucket.c: buckets of sizes by brute force; names of GPUs and what they say of each other; which fields of a spec
 * change its variant's hash, for every row of the format's table. */
#include "gen_fixture.h"

#include <math.h>

#include "bucket.h"
#include "gpu.h"
#include "spec_schema.h"
#include "variant.h"

static spec *make_heads(int heads_q, int heads_kv) {
  char source[160];
  snprintf(source, sizeof source, "qkvc: 1\nname: t\nattention: {heads: {q: %d, kv: %d}, dim: 64}\n", heads_q,
           heads_kv);
  return fixture_spec(source);
}

/* ---- Buckets ---- */

/* Sizes around every power of two, all small ones, and the greatest. */
static int sizes_to_try(int64_t out[4096]) {
  int count = 0;
  for (int64_t n = 1; n <= 1100; n++)
    out[count++] = n;
  for (int power = 11; power <= 31; power++)
    for (int64_t n = ((int64_t)1 << power) - 3; n <= ((int64_t)1 << power) + 3 && n <= INT32_MAX; n++)
      out[count++] = n;
  return count;
}

static void expect_same(const bucket *b, const spec *s, const char *phase, int64_t batch, int64_t len_q, int64_t len_k,
                        bool same) {
  const bucket other = bucket_of(s, phase, batch, len_q, len_k);
  char here[BUCKET_TEXT], there[BUCKET_TEXT];
  bucket_print(b, here);
  bucket_print(&other, there);
  if (bucket_equal(b, &other) != same || (strcmp(here, there) == 0) != same)
    fail_msg("%s: batch %lld, len_q %lld, len_k %lld is %s, must%s be %s", phase, (long long)batch, (long long)len_q,
             (long long)len_k, there, same ? "" : " not", here);
}

/* Every size lies in the range of its bucket; the ends of the range are of the bucket, what is next to them is not; a
 * larger size is never in a smaller class. */
static void classes_are_ranges(void **state) {
  (void)state;
  spec *s = make_heads(4, 4);
  int64_t sizes[4096];
  const int count = sizes_to_try(sizes);
  bucket before = {0};
  for (int n = 0; n < count; n++) {
    const int64_t z = sizes[n];
    const bucket b = bucket_of(s, "prefill", z, z, z);
    const bucket_sizes range = bucket_range(&b);
    const int64_t *const all[] = {range.batch, range.queries, range.len_k};
    for (int i = 0; i < 3; i++)
      if (!(all[i][0] <= z && z <= all[i][1]))
        fail_msg("%lld is not in %lld to %lld", (long long)z, (long long)all[i][0], (long long)all[i][1]);
    for (int end = 0; end < 2; end++) {
      expect_same(&b, s, "prefill", range.batch[end], z, z, true);
      expect_same(&b, s, "prefill", z, range.queries[end], z, true);
      expect_same(&b, s, "prefill", z, z, range.len_k[end], true);
      const int64_t beyond = range.len_k[end] + (end ? 1 : -1);
      if (beyond >= 1 && beyond <= INT32_MAX) {
        expect_same(&b, s, "prefill", beyond, z, z, false);
        expect_same(&b, s, "prefill", z, beyond, z, false);
        expect_same(&b, s, "prefill", z, z, beyond, false);
      }
    }
    assert_true(n == 0 || sizes[n] < sizes[n - 1] || bucket_compare(&before, &b) <= 0);
    before = b;
  }
  spec_free(s);
}

/* Decode: rows are queries times the heads of a group, exactly up to the next multiple of 8, a single one by itself. */
static void decode_counts_rows(void **state) {
  (void)state;
  for (int group = 1; group <= 130; group += group < 20 ? 1 : 37) {
    spec *s = make_heads(2 * group, 2);
    for (int64_t len_q = 1; len_q <= 16; len_q++) {
      const bucket b = bucket_of(s, "decode", 3, len_q, 100);
      const int64_t rows = len_q * group, least = rows == 1 ? 1 : (rows + 7) / 8 * 8;
      const bucket_sizes range = bucket_range(&b);
      char said[BUCKET_TEXT], want[BUCKET_TEXT];
      bucket_print(&b, said);
      snprintf(want, sizeof want, "b4 r%lld k128", (long long)least);
      if (strcmp(said, want) || rows < range.queries[0] || rows > range.queries[1])
        fail_msg("group %d, len_q %lld: %s of %lld to %lld rows, must be %s", group, (long long)len_q, said,
                 (long long)range.queries[0], (long long)range.queries[1], want);
    }
    spec_free(s);
  }
}

/* Whatever is not declared makes it any; texts of all buckets read back, and nothing else does. */
static void texts_read_back(void **state) {
  (void)state;
  static const char *const bad[] = {
      "",          "b4",         "b4 q8",       "b4 q8 k",   "b3 q8 k8", "b4 q8 k8 ",  "b4q8k8",
      "b04 q8 k8", "b4 q8 k9",   "q8 b4 k8",    "b4 r3 k8",  "b4 r0 k8", "anY",        "b4  q8 k8",
      "b-4 q8 k8", "b4 q8 k8 x", "b4 r8 q8 k8", "b4 r12 k8", "any ",     "b1 q1 k2e3", "b4294967296 q1 k1"};
  spec *s = make_heads(16, 2);
  for (int n = 0; n < 8; n++)
    assert_true(bucket_of(s, "prefill", n & 1, n & 2, n & 4).any == (n != 7));
  for (int decode = 0; decode < 2; decode++)
    for (int power = 0; power <= 31; power++) {
      const int64_t z = power == 31 ? INT32_MAX : (int64_t)1 << power;
      const bucket b = bucket_of(s, decode ? "decode" : "prefill", z, 1 + power % 16, z);
      char said[BUCKET_TEXT];
      bucket back;
      bucket_print(&b, said);
      if (!bucket_parse(said, &back) || !bucket_equal(&b, &back))
        fail_msg("%s does not read back", said);
    }
  for (size_t n = 0; n < sizeof bad / sizeof bad[0]; n++) {
    bucket b;
    if (bucket_parse(bad[n], &b))
      fail_msg("'%s' is read as a bucket", bad[n]);
  }
  spec_free(s);
}

static bucket parse(const char *word) {
  bucket b;
  if (!bucket_parse(word, &b))
    fail_msg("%s is no bucket", word);
  return b;
}

static void distances(void **state) {
  (void)state;
  static const struct {
    const char *a, *b;
    int distance;
  } rows[] = {{"b4 q8 k8", "b4 q8 k8", 0},   {"b4 q8 k8", "b8 q8 k8", 1},  {"b4 q8 k8", "b1 q32 k2", 6},
              {"b4 q8 k8", "b32 q8 k8", -1}, {"b4 q8 k8", "any", -1},      {"any", "any", 0},
              {"b4 r8 k8", "b4 r16 k8", -1}, {"b4 r8 k8", "b4 r8 k32", 2}, {"b4 r8 k8", "b4 q8 k8", -1},
              {"b4 r8 k8", "b4 r8 k64", -1}};
  for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
    const bucket a = parse(rows[n].a), b = parse(rows[n].b);
    if (bucket_distance(&a, &b) != rows[n].distance || bucket_distance(&b, &a) != rows[n].distance)
      fail_msg("%s and %s are %d apart, must be %d", rows[n].a, rows[n].b, bucket_distance(&a, &b), rows[n].distance);
  }
}

static void within(void **state) {
  (void)state;
  const bucket low = parse("b1 q1024 k1024"), high = parse("b8 q8192 k8192"), decode = parse("b64 r8 k65536"),
               any = parse("any");
  const bucket *const tuned[] = {&low, &high, &decode, &any};
  static const struct {
    const char *bucket;
    bool within;
  } rows[] = {{"b1 q1024 k1024", true}, {"b2 q2048 k8192", true},   {"b16 q2048 k2048", false},
              {"b8 q512 k1024", false}, {"b8 q1024 k16384", false}, {"b64 r8 k65536", true},
              {"b64 r8 k8192", false},  {"b64 r16 k65536", false},  {"b8 q8192 k8192", true}};
  for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
    const bucket b = parse(rows[n].bucket);
    if (bucket_within(&b, tuned, 4) != rows[n].within)
      fail_msg("%s must%s be within", rows[n].bucket, rows[n].within ? "" : " not");
  }
  assert_false(bucket_within(&low, tuned, 0));
}

/* ---- GPUs ---- */

/* By sizes: what is admitted stays so when a maximum grows; queries may be four times the op's, nothing else may. */
static void admission(void **state) {
  (void)state;
  spec *s = fixture_spec("qkvc: 1\nname: t\nattention: {heads: {q: 8, kv: 2}, dim: 64}\n");
  static const int64_t sizes[] = {1, 2, 16, 128, 512, 4096, INT32_MAX};
  enum { SIZES = sizeof sizes / sizeof sizes[0], CASES = SIZES * SIZES * SIZES };
  for (int phase = 0; phase < 2; phase++)
    for (int n = 0; n < CASES * CASES; n += 7) {
      const int a = n / CASES, b = n % CASES;
      const int64_t x[3] = {sizes[a % SIZES], sizes[a / SIZES % SIZES], sizes[a / SIZES / SIZES]},
                    y[3] = {sizes[b % SIZES], sizes[b / SIZES % SIZES], sizes[b / SIZES / SIZES]};
      const char *word = phase ? "decode" : "prefill";
      const bucket most = bucket_of(s, word, x[0], x[1], x[2]), measured = bucket_of(s, word, y[0], y[1], y[2]);
      const bool expected = y[0] <= x[0] && y[2] <= x[2] &&
                            (phase ? most.rows == measured.rows : y[1] <= 4 * x[1]);
      const double work = phase ? (double)y[0] * 2 * (double)y[2] / 64 / 8 : (double)y[0] * 8 * (double)y[1] / 128 / 3;
      const bool speaks = expected && (phase || x[1] <= 4 * y[1]);
      if (bucket_admits(&most, &measured) != expected)
        fail_msg("%s: maxima %lld %lld %lld, measured %lld %lld %lld: must be %d", word, (long long)x[0],
                 (long long)x[1], (long long)x[2], (long long)y[0], (long long)y[1], (long long)y[2], expected);
      for (int sms = 1; sms < 1000; sms *= 3)
        if (fabs(work - sms) > 1e-6 * work && /* INT32_MAX is rounded up */
            bucket_speaks_for(s, sms, &most, &measured) != (speaks && work >= sms))
          fail_msg("%s on %d SMs: maxima %lld %lld %lld, measured %lld %lld %lld", word, sms, (long long)x[0],
                   (long long)x[1], (long long)x[2], (long long)y[0], (long long)y[1], (long long)y[2]);
    }
  spec_free(s);
}

static void classes_of_products(void **state) {
  (void)state;
  static const char *const rows[][2] = {{"NVIDIA H200", "h200"},
                                        {"NVIDIA A100-SXM4-80GB", "a100_sxm4_80gb"},
                                        {"NVIDIA H100 80GB HBM3", "h100_80gb_hbm3"},
                                        {"NVIDIA GeForce RTX 4090", "geforce_rtx_4090"},
                                        {"NVIDIA H200 MIG 1g.18gb", "h200_mig_1g_18gb"},
                                        {"emu", "emu"},
                                        {"NVIDIA ", "unknown"},
                                        {"  ../..//x", "x"},
                                        {"", "unknown"}};
  for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
    char klass[GPU_CLASS];
    gpu_class(rows[n][0], klass);
    assert_string_equal(klass, rows[n][1]);
  }
  char klass[GPU_CLASS], name[200];
  memset(name, 'x', sizeof name - 1);
  name[sizeof name - 1] = 0;
  gpu_class(name, klass);
  assert_int_equal(strlen(klass), GPU_CLASS - 1);
}

static void gpus_compare(void **state) {
  (void)state;
  const gpu here = {"NVIDIA H200", "h200", 9, 0, 132, 62914560, 4.8e12, 232448};
  gpu g = here;
  assert_int_equal(gpu_compare(&g, &here), GPU_SAME);
  g.memory_bandwidth = 4.6e12; /* as another driver may say it */
  assert_int_equal(gpu_compare(&g, &here), GPU_SAME);
  g.memory_bandwidth = 3.35e12;
  assert_int_equal(gpu_compare(&g, &here), GPU_HINT);
  g = here, g.sm_count = 114;
  assert_int_equal(gpu_compare(&g, &here), GPU_HINT);
  g.sm_count = 66;
  assert_int_equal(gpu_compare(&g, &here), GPU_OTHER);
  g = here, strcpy(g.klass, "h200_nvl");
  assert_int_equal(gpu_compare(&g, &here), GPU_HINT);
  g = here, g.l2_bytes /= 2;
  assert_int_equal(gpu_compare(&g, &here), GPU_HINT);
  g = here, g.shared_per_block = 101376;
  assert_int_equal(gpu_compare(&g, &here), GPU_HINT);
  g = here, g.major = 10;
  assert_int_equal(gpu_compare(&g, &here), GPU_OTHER);
  g = here, g.minor = 3;
  assert_int_equal(gpu_compare(&g, &here), GPU_OTHER);
}

/* ---- Variants ---- */

static const char base[] = "qkvc: 1\n"
                           "name: base\n"
                           "attention:\n"
                           "  heads: {q: 8, kv: 4}\n"
                           "  dim: {qk: 64, v: 32}\n"
                           "  dtype: {q: f16, kv: f16, out: f16}\n"
                           "  kv_scale: none\n"
                           "  scale: 0.25\n"
                           "  softcap: 30.0\n"
                           "  score: s + slope[h] * (k - q)\n"
                           "  mask: causal and k < limit\n"
                           "  sink: none\n"
                           "  align: bottom_right\n"
                           "  params:\n"
                           "    slope: {type: f32, shape: [hq]}\n"
                           "    limit: {type: i32}\n"
                           "layout: {q: ragged, kv: {paged: {page: 16, order: nhd, table: rows}}}\n"
                           "rope: {dims: 32, style: half, theta: 10000, table: false, scaling: none}\n"
                           "append: {norm: rms, epsilon: 1e-6, slots: mapping, query: true}\n"
                           "outputs: [o, lse]\n"
                           "deterministic: false\n"
                           "schedule: {stages: 2, prefill: {tile_m: 64}, decode: {tile_m: 16}}\n"
                           "workloads: [{name: one, batch: 1, q: 8, kv: 8}]\n"
                           "x-notes: hello\n";

typedef enum effect { NOTHING, ATTENTION, APPEND, BOTH, NUMBERS } effect; /* NUMBERS: arguments of append's kernels */

#define SCALING "scaling: none", "scaling: {"
#define YARN SCALING "yarn: {factor: 8, original: 4096, "
/* One edit of the base for every row that holds a value. */
static const struct edit {
  const char *path, *from, *to;
  effect effect;
} edits[] = {
    {"name", "name: base", "name: other", NOTHING},
    {"attention.heads", "heads: {q: 8, kv: 4}", "heads: 8", BOTH},
    {"attention.heads.q", "{q: 8, kv: 4}", "{q: 16, kv: 4}", BOTH},
    {"attention.heads.kv", "{q: 8, kv: 4}", "{q: 8, kv: 2}", BOTH},
    {"attention.dim", "dim: {qk: 64, v: 32}", "dim: 64", BOTH},
    {"attention.dim.qk", "qk: 64", "qk: 128", BOTH},
    {"attention.dim.v", "v: 32", "v: 64", BOTH},
    {"attention.dtype", "dtype: {q: f16, kv: f16, out: f16}", "dtype: bf16", BOTH},
    {"attention.dtype.q", "q: f16", "q: bf16", BOTH},
    {"attention.dtype.kv", "kv: f16", "kv: e4m3", BOTH},
    {"attention.dtype.out", "out: f16", "out: f32", ATTENTION},
    {"attention.kv_scale", "kv_scale: none", "kv_scale: per_head", BOTH},
    {"attention.scale", "scale: 0.25", "scale: 0.125", ATTENTION},
    {"attention.softcap", "softcap: 30.0", "softcap: 50.0", ATTENTION},
    {"attention.score", "slope[h] * (k - q)", "slope[h] * (q - k)", ATTENTION},
    {"attention.mask", "causal and k < limit", "k < limit", ATTENTION},
    {"attention.sink", "sink: none", "sink: per_head", ATTENTION},
    {"attention.align", "bottom_right", "top_left", ATTENTION},
    {"attention.params.*.type", "type: f32", "type: f16", ATTENTION},
    {"attention.params.*.shape.[]", "[hq]", "[hq + 1]", ATTENTION},
    {"layout.q", "{q: ragged, ", "{q: dense, ", BOTH},
    {"layout.kv", "kv: {paged: {page: 16, order: nhd, table: rows}}", "kv: ragged", BOTH},
    {"layout.kv.paged.page", "page: 16", "page: 32", BOTH},
    {"layout.kv.paged.order", "order: nhd", "order: hnd", BOTH},
    {"layout.kv.paged.table", "table: rows", "table: csr", BOTH},
    {"rope.dims", "dims: 32", "dims: 64", APPEND},
    {"rope.style", "style: half", "style: interleaved", APPEND},
    {"rope.theta", "theta: 10000", "theta: 500000", NUMBERS},
    {"rope.table", "theta: 10000, table: false, scaling: none", "table: true", APPEND},
    {"rope.scaling", "scaling: none", "scaling: {linear: {factor: 8}}", NUMBERS},
    {"rope.scaling.linear.factor", SCALING "linear: {factor: 4}}", NUMBERS},
    {"rope.scaling.ntk.factor", SCALING "ntk: {factor: 4}}", NUMBERS},
    {"rope.scaling.yarn.factor", SCALING "yarn: {factor: 4, original: 4096}}", NUMBERS},
    {"rope.scaling.yarn.original", SCALING "yarn: {factor: 4, original: 8192}}", NUMBERS},
    {"rope.scaling.yarn.beta_fast", YARN "beta_fast: 16}}", NUMBERS},
    {"rope.scaling.yarn.beta_slow", YARN "beta_slow: 2}}", NUMBERS},
    {"rope.scaling.yarn.attention_factor", YARN "attention_factor: 1}}", NUMBERS},
    {"rope.scaling.yarn.truncate", YARN "truncate: false}}", NUMBERS},
    {"rope.scaling.llama3.factor", SCALING "llama3: {factor: 8, low: 1, high: 4, original: 8192}}", NUMBERS},
    {"rope.scaling.llama3.low", SCALING "llama3: {factor: 8, low: 2, high: 4, original: 8192}}", NUMBERS},
    {"rope.scaling.llama3.high", SCALING "llama3: {factor: 8, low: 1, high: 8, original: 8192}}", NUMBERS},
    {"rope.scaling.llama3.original", SCALING "llama3: {factor: 8, low: 1, high: 4, original: 4096}}", NUMBERS},
    {"append.norm", "norm: rms, epsilon: 1e-6", "norm: none", APPEND},
    {"append.epsilon", "epsilon: 1e-6", "epsilon: 1e-5", NUMBERS},
    {"append.slots", "slots: mapping", "slots: positions", APPEND},
    {"append.query", "query: true", "query: false", APPEND},
    {"outputs.[]", "outputs: [o, lse]", "outputs: [o]", ATTENTION},
    {"deterministic", "deterministic: false", "deterministic: batch", ATTENTION},
    {"schedule", "schedule: {stages: 2, prefill: {tile_m: 64}, decode: {tile_m: 16}}", "schedule: auto", NOTHING},
    {"schedule.*", "stages: 2", "stages: 3", NOTHING},
    {"schedule.prefill", "prefill: {tile_m: 64}", "prefill: auto", NOTHING},
    {"schedule.prefill.*", "tile_m: 64", "tile_m: 128", NOTHING},
    {"schedule.decode", "decode: {tile_m: 16}", "decode: auto", NOTHING},
    {"schedule.decode.*", "tile_m: 16", "tile_m: 32", NOTHING},
    {"workloads.[].name", "name: one", "name: two", NOTHING},
    {"workloads.[].batch", "batch: 1", "batch: 2", NOTHING},
    {"workloads.[].q", "q: 8, kv: 8}]", "q: 1, kv: 8}]", NOTHING},
    {"workloads.[].kv", "kv: 8}]", "kv: 9}]", NOTHING},
    {"x-*", "x-notes: hello", "x-other: {a: 1}", NOTHING},
};
enum { EDITS = sizeof edits / sizeof edits[0] };

static void hash_edited(const struct edit *e, char attention[VARIANT_HASH_SIZE], char append[VARIANT_HASH_SIZE]) {
  char source[sizeof base + 200];
  const char *at = e ? strstr(base, e->from) : base + strlen(base);
  if (!at)
    fail_msg("%s: '%s' is not in the base", e->path, e->from);
  snprintf(source, sizeof source, "%.*s%s%s", (int)(at - base), base, e ? e->to : "", e ? at + strlen(e->from) : "");
  spec *s = fixture_spec(source);
  char again[VARIANT_HASH_SIZE];
  assert_true(variant_hash(s, "prefill", attention) && variant_hash(s, "append", append));
  assert_true(variant_hash(s, "decode", again));
  assert_string_equal(attention, again);
  spec_free(s);
}

static void every_field_counts(void **state) {
  (void)state;
  char attention[VARIANT_HASH_SIZE], append[VARIANT_HASH_SIZE], a[VARIANT_HASH_SIZE], p[VARIANT_HASH_SIZE];
  hash_edited(NULL, attention, append);
  assert_int_equal(strspn(attention, "0123456789abcdef"), 32);
  for (int n = 0; n < EDITS; n++) {
    const effect is = edits[n].effect;
    hash_edited(&edits[n], a, p);
    if ((strcmp(a, attention) != 0) != (is == ATTENTION || is == BOTH))
      fail_msg("%s must%s change the hash of attention", edits[n].path, is == ATTENTION || is == BOTH ? "" : " not");
    if ((strcmp(p, append) != 0) != (is == APPEND || is == BOTH))
      fail_msg("%s must%s change the hash of append", edits[n].path, is == APPEND || is == BOTH ? "" : " not");
  }
}

/* No row is forgotten above. */
static void every_row_has_an_edit(void **state) {
  (void)state;
  for (int r = 0; r < schema_row_count; r++) {
    const schema_row *row = &schema_rows[r];
    if ((row->flags & SCHEMA_RESERVED) || !(row->kinds & ~(unsigned)(SCHEMA_MAPPING | SCHEMA_LIST)) ||
        !strcmp(row->path, "qkvc"))
      continue;
    int n = 0;
    while (n < EDITS && strcmp(edits[n].path, row->path))
      n++;
    if (n == EDITS)
      fail_msg("%s: does it change the hash? Add an edit", row->path);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(classes_are_ranges),
                                     cmocka_unit_test(decode_counts_rows),
                                     cmocka_unit_test(texts_read_back),
                                     cmocka_unit_test(distances),
                                     cmocka_unit_test(within),
                                     cmocka_unit_test(admission),
                                     cmocka_unit_test(classes_of_products),
                                     cmocka_unit_test(gpus_compare),
                                     cmocka_unit_test(every_field_counts),
                                     cmocka_unit_test(every_row_has_an_edit)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
