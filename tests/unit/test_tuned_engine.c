/* test_tuned_engine.c: what qkv_prepare makes of tables of schedules, on emu: which entry a request gets and why, from
 * the user's folder and from memory; who goes before whom; damage, later versions, folders that cannot be written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fault/filesystem.c"
#include "qkv_tuned_internal.h"

/* ---- An engine with a folder of its own ---- */

static char folder[64];
static qkv_engine *engine;
static qkv_spec *subject;
static text logged; /* warnings and information, a line each */

static void take_log(qkv_log_level level, const char *message, void *user) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  (void)user;
  pthread_mutex_lock(&lock);
  if (level <= QKV_LOG_INFO)
    text_printf(&logged, "%d %s\n", (int)level, message);
  pthread_mutex_unlock(&lock);
}

static const char *said(void) {
  return logged.bytes ? logged.bytes : "";
}

static void need(qkv_status status) {
  if (status != QKV_OK)
    fail_msg("status %d: %s", (int)status, qkv_last_error(NULL));
}

static qkv_engine *open_engine(const char *directory) {
  qkv_options o = QKV_OPTIONS_INIT;
  qkv_engine *e;
  o.device = "emu";
  o.arch = "sm_80";
  o.cache_dir = "";
  o.tuned_dir = directory;
  o.log = take_log;
  need(qkv_open(&o, &e));
  return e;
}

#define SPEC "qkvc: 1\nname: subject\nattention: {heads: {q: 4, kv: 2}, dim: 32, dtype: f16, mask: causal}\n"

static qkv_spec *load(const char *source) {
  qkv_spec *s;
  need(qkv_spec_load(NULL, source, &s));
  return s;
}

static int set_up(void **state) {
  (void)state;
  strcpy(folder, "/tmp/qkvc.kernel_XXXXXX"); /* a name that fault/filesystem.c watches */
  assert_non_null(mkdtemp(folder));
  engine = open_engine(folder);
  subject = load(SPEC);
  text_clear(&logged);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  char command[128];
  fault_set(NULL);
  qkv_spec_free(subject);
  qkv_close(engine);
  text_free(&logged);
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

/* ---- Entries and questions ---- */

/* Legal schedules of the two families, which are not their defaults. */
#define A "tile_m=64,tile_n=32,warps=4"
#define B "tile_m=64,tile_n=16,warps=4"
#define D "tile_m=16,tile_n=32,warps=4"

static qkv_tuned_entry entry(const char *phase, int64_t batch, int64_t len_q, int64_t len_k, const char *schedule) {
  return (qkv_tuned_entry){.size = sizeof(qkv_tuned_entry),
                           .phase = phase,
                           .family = *phase == 'p' ? "attention_forward_sm80" : "attention_decode_sm80",
                           .schedule = schedule,
                           .workload = batch ? "w" : NULL,
                           .batch = batch,
                           .len_q = len_q,
                           .len_k = len_k,
                           .seconds = 1e-4,
                           .low = 0.9e-4,
                           .high = 1.1e-4,
                           .default_schedule = "tile_m=128",
                           .default_seconds = 1.25e-4};
}

static qkv_build_options request(int64_t batch, int64_t len_q, int64_t len_k) {
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  o.batch = batch;
  o.len_q = len_q;
  o.len_k = len_k;
  return o;
}

/* Asks, and expects the entry with this schedule (NULL: none) and a reason that has the words. */
static void expect(qkv_engine *e, const qkv_spec *s, const qkv_build_options *o, const char *schedule,
                   const char *words) {
  qkv_tuned_entry got = {.size = sizeof got};
  int found;
  char *reason;
  need(qkv_tuned_find(e, s, o, &got, &found, &reason));
  if (found != (schedule != NULL) || (schedule && strcmp(got.schedule, schedule)) || !strstr(reason, words))
    fail_msg("batch %lld, len_q %lld, len_k %lld: %s, because '%s'; must be %s with '%s'", (long long)o->batch,
             (long long)o->len_q, (long long)o->len_k, found ? got.schedule : "default", reason,
             schedule ? schedule : "default", words);
  qkv_string_free(reason);
}

static void expect_sizes(int64_t batch, int64_t len_q, int64_t len_k, const char *schedule, const char *words) {
  const qkv_build_options o = request(batch, len_q, len_k);
  expect(engine, subject, &o, schedule, words);
}

static void write_table(const qkv_tuned_entry *entries, int count) {
  need(qkv_tuned_write(engine, subject, NULL, entries, count, "clock: 1 MHz"));
}

static char *path_of(const char *rest) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, rest);
  return path;
}

static char *read_all(const char *path) {
  text t = {0};
  char piece[4096];
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
    text_add(&t, piece, n);
  fclose(f);
  return t.bytes ? t.bytes : strdup("");
}

static void write_all_of(const char *path, const char *bytes) {
  FILE *f = fopen(path, "wb");
  assert_true(f && fwrite(bytes, 1, strlen(bytes), f) == strlen(bytes) && fclose(f) == 0);
}

/* The text with the first `from` in it replaced. */
static char *replaced(const char *bytes, const char *from, const char *to) {
  text t = {0};
  const char *at = strstr(bytes, from);
  if (!at)
    fail_msg("no '%s' in\n%s", from, bytes);
  text_add(&t, bytes, (size_t)(at - bytes));
  text_printf(&t, "%s%s", to, at + strlen(from));
  return t.bytes;
}

/* Files of the folder of emu's tables whose name is not subject.yaml. */
static int strangers(void) {
  DIR *d = opendir(path_of("emu"));
  int count = 0;
  for (struct dirent *entry; d && (entry = readdir(d));)
    count += entry->d_name[0] != '.' ? strcmp(entry->d_name, "subject.yaml") != 0 : strlen(entry->d_name) > 2;
  if (d)
    closedir(d);
  return count;
}

/* ---- What is taken ---- */

static void prepare_takes_the_table(void **state) {
  (void)state;
  const qkv_tuned_entry entries[] = {entry("prefill", 2, 128, 128, A), entry("decode", 2, 1, 128, D)};
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *op;
  limits.batch = 2;
  limits.len_q = limits.len_k = 100;
  limits.aligned_only = 1;
  need(qkv_prepare(engine, subject, &limits, &op));
  assert_null(strstr(op->primary->manifest.schedule, A));
  qkv_op_free(op);
  write_table(entries, 2);
  text_clear(&logged);
  need(qkv_prepare(engine, subject, &limits, &op));
  assert_non_null(strstr(op->primary->manifest.schedule, A));
  assert_non_null(strstr(said(), "2 subject: tuned, from "));
  assert_non_null(strstr(said(), "emu/subject.yaml, bucket b2 q128 k128, 1.25 times as fast as the default"));
  qkv_op_free(op);

  char *text_of_explain;
  const qkv_build_options o = request(2, 100, 100);
  need(qkv_explain(engine, subject, &o, 0, &text_of_explain));
  assert_non_null(strstr(text_of_explain, "schedules\n  all calls            tuned, from "));
  assert_non_null(strstr(text_of_explain, "  schedule  " A));
  qkv_string_free(text_of_explain);
  need(qkv_explain(engine, subject, &o, 1, &text_of_explain));
  assert_non_null(strstr(text_of_explain, "\"schedule_from\": \"tuned, from "));
  qkv_string_free(text_of_explain);

  qkv_build_report report = {.size = sizeof report}; /* what a build makes is what prepare loads */
  need(qkv_build(engine, subject, &o, &report));
  assert_non_null(strstr(report.schedule, A));
  qkv_string_free(report.notes);
  qkv_string_free(report.advisories);
}

/* The kernel for few queries has its own entry; the one for unaligned tensors keeps its default. */
static void each_kernel_asks_for_itself(void **state) {
  (void)state;
  qkv_spec *s = load(SPEC "layout: {kv: padded}\n");
  const qkv_tuned_entry entries[] = {entry("prefill", 0, 0, 0, A), entry("decode", 0, 0, 0, D)};
  qkv_op *op;
  need(qkv_tuned_write(engine, s, NULL, entries, 2, NULL));
  need(qkv_prepare(engine, s, NULL, &op));
  assert_non_null(strstr(op->primary->manifest.schedule, A));
  assert_non_null(op->few);
  assert_non_null(strstr(op->few->manifest.schedule, D));
  assert_true(op->other && op->other != op->primary);
  assert_null(strstr(op->other->manifest.schedule, A));
  assert_string_equal(op->other->manifest.family, "attention_forward_sm80");
  qkv_op_free(op);
  qkv_spec_free(s);
}

static void buckets_decide(void **state) {
  (void)state;
  const qkv_tuned_entry entries[] = {entry("prefill", 1, 1024, 1024, A), entry("prefill", 4, 4096, 4096, B)};
  write_table(entries, 2);
  expect_sizes(1, 1024, 1024, A, "bucket b1 q1024 k1024, 1.25 times");
  expect_sizes(1, 513, 600, A, "bucket b1 q1024 k1024, 1.25 times");
  expect_sizes(4, 4096, 4096, B, "bucket b4 q4096 k4096, 1.25 times");
  expect_sizes(1, 2048, 1024, A, "b1 q1024 k1024, the nearest to b1 q2048 k1024");
  expect_sizes(2, 2048, 2048, B, "b4 q4096 k4096, the nearest to b2 q2048 k2048"); /* as near: the larger */
  expect_sizes(4, 1024, 2048, B, "the nearest to b4 q1024 k2048");
  expect_sizes(8, 4096, 4096, NULL, "has several schedules for calls within b8 q4096 k4096, and no bucket any for them");
  expect_sizes(1, 1024, 512, NULL, "bucket b1 q1024 k512 is outside of the tuned range of ");
  expect_sizes(1, 1024, 512, NULL, "(b1 q1024 k1024 to b4 q4096 k4096)");
  expect_sizes(1, 0, 1024, NULL, "no maxima of batch, len_q and len_k are declared");
  expect_sizes(1, 8, 1024, NULL, "no table has phase decode of this spec on emu");
  qkv_spec *other = load(SPEC "outputs: [o, lse]\n");
  const qkv_tuned_entry any = entry("prefill", 0, 0, 0, A);
  const qkv_build_options declared = request(1, 1024, 1024);
  need(qkv_tuned_write(engine, other, NULL, &any, 1, NULL));
  expect(engine, other, &declared, NULL, "(it has bucket any alone)");
  qkv_spec_free(other);
  assert_null(strstr(said(), "\n1 "));
  assert_non_null(strstr(said(), "2 subject: built-in default: bucket b1 q1024 k512 is outside"));
}

static void far_from_all_is_the_default(void **state) {
  (void)state;
  const qkv_tuned_entry entries[] = {entry("prefill", 1, 512, 512, A), entry("prefill", 1, 65536, 65536, B)};
  write_table(entries, 2);
  expect_sizes(1, 2048, 2048, A, "the nearest");
  expect_sizes(1, 8192, 4096, NULL, "more than a factor of 4 from all");
}

static void rows_are_exact(void **state) {
  (void)state;
  const qkv_tuned_entry entries[] = {entry("decode", 16, 1, 4096, D), entry("decode", 64, 1, 4096, D)};
  write_table(entries, 2);
  expect_sizes(32, 1, 4096, D, "bucket b64 r8 k4096, the nearest to b32 r8 k4096");
  expect_sizes(32, 4, 4096, D, "the nearest to b32 r8 k4096"); /* 2 query heads a KV head */
  expect_sizes(32, 5, 4096, NULL, "no entry has 16 rows");
}

static void undeclared_maxima(void **state) {
  (void)state;
  const qkv_tuned_entry entries[] = {entry("prefill", 1, 1024, 1024, A), entry("prefill", 0, 0, 0, B)};
  write_table(entries, 2);
  expect_sizes(0, 0, 0, B, "bucket any");
  expect_sizes(1, 1024, 0, B, "bucket any");
  expect_sizes(1, 1024, 1024, A, "bucket b1 q1024 k1024");
  expect_sizes(64, 1024, 512, NULL, "outside of the tuned range");
}

/* Maxima are the most that calls have: those that were measured are among them. */
static void maxima_beyond_what_was_measured(void **state) {
  (void)state;
  qkv_tuned_entry entries[] = {entry("prefill", 4, 4096, 4096, A), entry("prefill", 16, 1024, 4096, A),
                               entry("decode", 16, 1, 8192, D), entry("decode", 16, 4, 8192, D)};
  const qkv_tuned_entry single = entry("decode", 1, 1, 8192, D);
  write_table(entries, 4);
  expect_sizes(256, 8192, 131072, A, "bucket b16 q1024 k4096, the largest that was measured of calls within b256 q8192");
  expect_sizes(8, 1024, 131072, A, "bucket b4 q4096 k4096, the largest"); /* chunks of prompts of 4096 */
  expect_sizes(256, 65536, 131072, NULL, "outside of the tuned range");    /* more than four times as many */
  expect_sizes(256, 128, 131072, NULL, "outside of the tuned range");
  expect_sizes(2, 4096, 4096, NULL, "outside of the tuned range");         /* no such call was measured */
  expect_sizes(256, 1, 131072, NULL, "calls within b256 r8 k131072 may be of one sequence, of which ");
  write_table(&single, 1);
  expect_sizes(256, 1, 131072, D, "bucket b16 r8 k8192, the largest that was measured of calls within b256 r8 k131072");
  expect_sizes(256, 8, 131072, NULL, "outside of the tuned range of "); /* 16 rows */
  expect_sizes(256, 1, 4096, NULL, "outside of the tuned range of ");
  entries[1].schedule = B; /* several */
  write_table(entries, 2);
  expect_sizes(256, 8192, 131072, NULL, "has several schedules for calls within b256 q8192 k131072");
  expect_sizes(8, 4096, 131072, A, "the largest that was measured of calls within b8 q4096 k131072");
  const qkv_tuned_entry any[] = {entry("prefill", 0, 0, 0, B), entry("decode", 0, 0, 0, D)};
  write_table(any, 2);
  expect_sizes(256, 8192, 131072, B, "bucket any, since several were measured of calls within b256 q8192 k131072");
}

/* A bucket any that was chosen over other rows, too, and against another default says nothing of a tile of these. */
static void rows_of_bucket_any(void **state) {
  (void)state;
  const char *const small = "tile_m=16,tile_n=64,warps=4";
  qkv_tuned_entry entries[] = {entry("decode", 16, 1, 8192, D), entry("decode", 1, 1, 2048, small),
                               entry("decode", 0, 0, 0, D), entry("decode", 16, 8, 8192, D)};
  write_table(entries, 3);
  expect_sizes(256, 1, 131072, D, "bucket any, since several");
  write_table(entries, 4);
  expect_sizes(256, 1, 131072, D, "bucket any, since several");
  entries[2].default_schedule = small;
  write_table(entries, 4);
  expect_sizes(256, 1, 131072, NULL, "has several schedules for calls within b256 r8 k131072");
}

/* What leaves the GPU idle speaks for itself alone. */
static void small_calls_do_not_speak_for_large_ones(void **state) {
  (void)state;
  qkv_spec *s = load("qkvc: 1\nname: subject\nattention: {heads: {q: 1, kv: 1}, dim: 32, dtype: f16}\n");
  const qkv_tuned_entry entries[] = {entry("prefill", 1, 1024, 1024, A), entry("decode", 1, 1, 1024, D)};
  const qkv_build_options prefill = request(2, 1024, 1024), decode = request(2, 1, 1024);
  need(qkv_tuned_write(engine, s, NULL, entries, 2, NULL));
  expect(engine, s, &prefill, NULL, "outside of the tuned range"); /* 8 tiles, 4 SMs */
  expect(engine, s, &decode, NULL, "outside of the tuned range");  /* 16 slices */
  const qkv_tuned_entry more[] = {entry("prefill", 1, 2048, 1024, A), entry("decode", 1, 1, 2048, D)};
  const qkv_build_options more_prefill = request(2, 2048, 1024), more_decode = request(2, 1, 2048);
  need(qkv_tuned_write(engine, s, NULL, more, 2, NULL));
  expect(engine, s, &more_prefill, A, "bucket b1 q2048 k1024, the largest");
  expect(engine, s, &more_decode, D, "bucket b1 r1 k2048, the largest");
  qkv_spec_free(s);
}

/* Bits of a sequence must not follow the batch; were there a schedule a bucket, they would follow the declared one. */
static void batch_invariance_takes_one_schedule(void **state) {
  (void)state;
  qkv_spec *s = load(SPEC "deterministic: batch\n");
  const qkv_tuned_entry some[] = {entry("prefill", 1, 1024, 1024, A), entry("prefill", 64, 1024, 1024, B)};
  const qkv_tuned_entry one = entry("prefill", 0, 0, 0, B);
  const int64_t batches[] = {0, 1, 8, 64, 1000};
  need(qkv_tuned_write(engine, s, NULL, some, 2, NULL));
  for (int n = 0; n < 5; n++) {
    const qkv_build_options o = request(batches[n], 1024, 1024);
    expect(engine, s, &o, NULL, "deterministic: batch takes bucket any alone");
  }
  need(qkv_tuned_write(engine, s, NULL, &one, 1, NULL));
  for (int n = 0; n < 5; n++) {
    const qkv_build_options o = request(batches[n], 1024, 1024);
    expect(engine, s, &o, B, "bucket any");
  }
  qkv_spec_free(s);
}

/* ---- Who goes first ---- */

static void request_and_spec_go_first(void **state) {
  (void)state;
  const qkv_tuned_entry entries[] = {entry("prefill", 1, 1024, 1024, A), entry("decode", 1, 1, 1024, D)};
  write_table(entries, 2);
  const qkv_build_options base = request(1, 1024, 1024);
  qkv_build_options o = base;
  o.schedule = "tile_m=128";
  expect(engine, subject, &o, NULL, "the schedule was asked for");
  o = base, o.family = "attention_forward_sm80";
  expect(engine, subject, &o, NULL, "the family was asked for");
  o = base, o.unaligned = 1;
  expect(engine, subject, &o, NULL, "unaligned tensors are not tuned");
  o = base, o.arch = "sm_80";
  expect(engine, subject, &o, NULL, "tables are for the engine's own device");
  o = base, o.phase = "merge";
  qkv_spec *lse = load(SPEC "outputs: [o, lse]\n");
  expect(engine, lse, &o, NULL, "only phases prefill and decode are tuned");
  qkv_spec_free(lse);
  static const struct {
    const char *section;
    bool prefill, decode; /* whether the table is taken */
  } rows[] = {{"schedule: {stages: 2}\n", false, false},
              {"schedule: {prefill: {stages: 2}}\n", false, true},
              {"schedule: {decode: {stages: 3}}\n", true, false},
              {"schedule: auto\n", true, true}};
  for (int n = 0; n < 4; n++) {
    char source[256];
    snprintf(source, sizeof source, SPEC "%s", rows[n].section);
    qkv_spec *s = load(source);
    const qkv_build_options few = request(1, 1, 1024);
    expect(engine, s, &base, rows[n].prefill ? A : NULL, rows[n].prefill ? "tuned" : "the spec has a schedule section");
    expect(engine, s, &few, rows[n].decode ? D : NULL, rows[n].decode ? "tuned" : "the spec has a schedule section");
    qkv_spec_free(s);
  }
}

/* The file's name and the spec's are nothing: the variant is found, and no other. */
static void variants_are_found_by_hash(void **state) {
  (void)state;
  const qkv_tuned_entry e = entry("prefill", 0, 0, 0, A);
  const qkv_build_options o = request(0, 0, 0);
  write_table(&e, 1);
  qkv_spec *renamed = load("qkvc: 1\nname: other\nworkloads: [{name: x, q: 8, kv: 8}]\n"
                           "attention: {heads: {q: 4, kv: 2}, dim: 32, dtype: f16, mask: k <= q}\n");
  qkv_spec *changed = load("qkvc: 1\nname: subject\n"
                           "attention: {heads: {q: 4, kv: 2}, dim: 32, dtype: f16, mask: k < q}\n");
  expect(engine, renamed, &o, A, "emu/subject.yaml");
  expect(engine, changed, &o, NULL, "no table has phase prefill of this spec on emu");
  qkv_spec_free(renamed);
  qkv_spec_free(changed);
}

/* The user's folder goes before packs where both have a bucket; the nearer bucket goes before the folder. */
static void places_in_order(void **state) {
  (void)state;
  const qkv_tuned_entry in_pack[] = {entry("prefill", 1, 1024, 1024, B), entry("prefill", 1, 4096, 4096, B)};
  const qkv_tuned_entry own[] = {entry("prefill", 1, 1024, 1024, A)};
  write_table(in_pack, 2);
  char *bytes = read_all(path_of("emu/subject.yaml"));
  need(tuned_add(engine, "serving.pack: subject", bytes, strlen(bytes)));
  assert_int_equal(unlink(path_of("emu/subject.yaml")), 0);
  qkv_engine *other = open_engine(folder); /* without a folder's table, without the pack */
  const qkv_build_options small = request(1, 1024, 1024), large = request(1, 4096, 4096), mid = request(1, 2048, 2048);
  expect(other, subject, &small, NULL, "no table");
  need(tuned_add(other, "serving.pack: subject", bytes, strlen(bytes)));
  expect(other, subject, &small, B, "serving.pack: subject");
  qkv_close(other);
  write_table(own, 1);
  expect(engine, subject, &small, A, "emu/subject.yaml, bucket b1 q1024 k1024");
  expect(engine, subject, &large, B, "serving.pack: subject, bucket b1 q4096 k4096");
  expect(engine, subject, &mid, A, "emu/subject.yaml, bucket b1 q1024 k1024, the nearest");
  free(bytes);

  text all = {0}; /* what a pack would take along: one entry a bucket, the folder's before the pack's */
  need(tuned_collect(engine, subject->parsed, &all));
  assert_non_null(strstr(all.bytes, "schedule: " A "\n"));
  assert_non_null(strstr(all.bytes, "bucket: b1 q4096 k4096\n"));
  assert_non_null(strstr(all.bytes, B));
  assert_null(strstr(strstr(all.bytes, "q1024 k1024") + 1, "q1024 k1024"));
  text_clear(&all);
  qkv_spec *unknown = load("qkvc: 1\nname: other\nattention: {heads: 2, dim: 32, dtype: f16}\n");
  need(tuned_collect(engine, unknown->parsed, &all));
  assert_int_equal(all.size, 0);
  qkv_spec_free(unknown);
  text_free(&all);
}

static void tables_can_be_turned_off(void **state) {
  (void)state;
  const qkv_tuned_entry e = entry("prefill", 0, 0, 0, A);
  const qkv_build_options o = request(0, 0, 0);
  write_table(&e, 1);
  qkv_engine *off = open_engine("");
  expect(off, subject, &o, NULL, "tables are turned off");
  assert_int_equal(qkv_tuned_write(off, subject, NULL, &e, 1, NULL), QKV_IO);
  assert_string_equal(qkv_tuned_path(off), "");
  qkv_close(off);
  qkv_engine *memory_only = open_engine(NULL);
  assert_int_equal(qkv_tuned_write(memory_only, subject, NULL, &e, 0, NULL), QKV_IO);
  assert_non_null(strstr(qkv_last_error(NULL), "QKV_TUNED_DIR"));
  qkv_close(memory_only);
  setenv("QKV_TUNED_DIR", folder, 1);
  qkv_engine *environment = open_engine(NULL);
  unsetenv("QKV_TUNED_DIR");
  expect(environment, subject, &o, A, "tuned");
  qkv_close(environment);
}

static void relative_folders_are_of_now(void **state) {
  (void)state;
  const qkv_tuned_entry e = entry("prefill", 0, 0, 0, A);
  const qkv_build_options o = request(0, 0, 0);
  char *before = getcwd(NULL, 0);
  write_table(&e, 1);
  assert_int_equal(chdir("/tmp"), 0);
  qkv_engine *relative = open_engine(strrchr(folder, '/') + 1);
  assert_int_equal(chdir("/"), 0);
  expect(relative, subject, &o, A, "tuned");
  assert_string_equal(qkv_tuned_path(relative), folder);
  qkv_close(relative);
  assert_int_equal(chdir(before), 0);
  free(before);
}

/* ---- Other GPUs ---- */

/* A table of the subject as another GPU would have written it. */
static void write_as(const char *gpu_name, const char *klass, const char *from, const char *to, const char *schedule) {
  const qkv_tuned_entry e = entry("prefill", 0, 0, 0, schedule);
  char rest[96];
  need(qkv_tuned_write(engine, subject, path_of("t.tmp"), &e, 1, NULL));
  char *bytes = read_all(path_of("t.tmp"));
  char naming[160];
  snprintf(naming, sizeof naming, "name: %s, class: %s", gpu_name, klass);
  char *named = replaced(bytes, "name: emu, class: emu", naming), *changed = replaced(named, from, to);
  snprintf(rest, sizeof rest, "%s", klass);
  mkdir(path_of(rest), 0755);
  snprintf(rest, sizeof rest, "%s/subject.yaml", klass);
  write_all_of(path_of(rest), changed);
  unlink(path_of("t.tmp"));
  free(bytes), free(named), free(changed);
}

static void tables_of_like_gpus_are_hints(void **state) {
  (void)state;
  const qkv_build_options o = request(0, 0, 0);
  write_as("NVIDIA Small", "small", "sm_count: 4", "sm_count: 3", A);
  qkv_engine *e = open_engine(folder);
  text_clear(&logged);
  expect(e, subject, &o, A, "tuned as a hint, measured on NVIDIA Small, from ");
  assert_non_null(strstr(said(), "as a hint, measured on NVIDIA Small"));
  qkv_close(e);
  write_as("NVIDIA Like", "like", "sm_count: 4", "sm_count: 4", B);
  e = open_engine(folder);
  expect(e, subject, &o, B, "measured on NVIDIA Like"); /* the one that is most like */
  qkv_close(e);
  const qkv_tuned_entry own = entry("prefill", 1, 1024, 1024, A);
  write_table(&own, 1);
  expect(engine, subject, &o, NULL, "no maxima"); /* an own table: no hints */
}

static void tables_of_other_gpus_are_nothing(void **state) {
  (void)state;
  const qkv_build_options o = request(0, 0, 0);
  write_as("NVIDIA Big", "big", "sm_count: 4", "sm_count: 8", A);
  write_as("NVIDIA New", "new", "capability: 8.0", "capability: 9.0", A);
  qkv_engine *e = open_engine(folder);
  expect(e, subject, &o, NULL, "no table has phase prefill of this spec on emu");
  qkv_close(e);
}

/* A slice of a GPU has its name, but is another one. */
static void properties_count(void **state) {
  (void)state;
  const qkv_build_options o = request(0, 0, 0);
  write_as("emu", "emu", "l2_bytes: 4194304", "l2_bytes: 2097152", A);
  qkv_engine *e = open_engine(folder);
  expect(e, subject, &o, A, "as a hint, measured on emu");
  qkv_close(e);
}

static void schedules_are_checked_here(void **state) {
  (void)state;
  static const struct {
    const char *family, *schedule, *words;
  } rows[] = {{"attention_forward_sm80", "tile_m=64,tile_n=32,warps=16", "cannot be used here"},
              {"attention_forward_sm80", "tile_m=3", "not among the values"},
              {"attention_forward_sm80", "no_such_axis=3", "no axis 'no_such_axis'"},
              {"attention_forward_sm90", "tile_m=64", "needs sm_90 or newer"},
              {"attention_of_tomorrow", "tile_m=64", "no family 'attention_of_tomorrow'"},
              {"attention_decode_simt", D, "has no kernel for phase prefill"}};
  for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
    qkv_tuned_entry e = entry("prefill", 0, 0, 0, rows[n].schedule);
    e.family = rows[n].family;
    write_table(&e, 1);
    text_clear(&logged);
    expect_sizes(0, 0, 0, NULL, rows[n].words);
    assert_non_null(strstr(said(), "1 subject: built-in default: the schedule of "));
  }
}

static void another_family_can_win(void **state) {
  (void)state;
  qkv_tuned_entry e = entry("prefill", 0, 0, 0, "");
  e.family = "attention_naive";
  write_table(&e, 1);
  const qkv_build_options o = request(0, 0, 0);
  char *source;
  need(qkv_generate(engine, subject, &o, &source));
  assert_non_null(strstr(source, "attention_naive for sm_80, prefill"));
  qkv_string_free(source);
}

/* ---- Damage ---- */

/* A folder or a file that cannot be read is said, and costs nothing else. Root reads everything, links to nowhere too. */
static void what_cannot_be_read_is_said(void **state) {
  (void)state;
  const qkv_tuned_entry e = entry("prefill", 1, 1024, 1024, A);
  write_table(&e, 1);
  assert_int_equal(symlink("/nonexistent/table.yaml", path_of("emu/another.yaml")), 0);
  write_all_of(path_of("plain_file"), "");
  qkv_engine *fresh = open_engine(folder), *lost = open_engine(path_of("plain_file"));
  const qkv_build_options o = request(1, 1024, 1024);
  text_clear(&logged);
  expect(fresh, subject, &o, A, "bucket b1");
  assert_non_null(strstr(said(), "emu/another.yaml is not read: No such file or directory"));
  expect(lost, subject, &o, NULL, "no table has");
  assert_non_null(strstr(said(), "/plain_file is not read: Not a directory"));
  qkv_close(fresh);
  qkv_close(lost);
}

static void damaged_entries_are_skipped(void **state) {
  (void)state;
  const qkv_tuned_entry entries[] = {entry("prefill", 1, 1024, 1024, A), entry("prefill", 1, 4096, 4096, B),
                                     entry("decode", 1, 1, 1024, D)};
  const qkv_build_options small = request(1, 1024, 1024), large = request(1, 4096, 4096);
  write_table(entries, 3);
  char *bytes = read_all(path_of("emu/subject.yaml"));
  static const struct {
    const char *from, *to, *words;
  } rows[] = {
      {"      family: attention_forward_sm80\n", "", "tables[0].entries[0] lacks the key 'family'; it is skipped"},
      {"schedule: tile_m=64", "schedule: \"tile_m=64", "not valid YAML"},
      {"q: 1024, kv: 1024", "q: 8192, kv: 1024", "the entry's sizes are of bucket b1 q8192 k1024, not b1 q1024"}};
  for (int n = 0; n < 3; n++) {
    char *damaged = replaced(bytes, rows[n].from, rows[n].to);
    write_all_of(path_of("emu/subject.yaml"), damaged);
    qkv_engine *e = open_engine(folder);
    text_clear(&logged);
    expect(e, subject, &large, B, "b1 q4096 k4096");
    expect(e, subject, &small, NULL, "outside of the tuned range");
    char *first = strstr(said(), "emu/subject.yaml:");
    if (!first || !strstr(said(), rows[n].words) || strstr(strstr(said(), rows[n].words) + 1, rows[n].words))
      fail_msg("case %d: said\n%s", n, said());
    qkv_close(e);
    free(damaged);
  }
  free(bytes);
}

static void damage_is_kept_beside(void **state) {
  (void)state;
  const qkv_tuned_entry one = entry("prefill", 1, 1024, 1024, A), two = entry("prefill", 1, 4096, 4096, B);
  write_table(&one, 1);
  char *bytes = read_all(path_of("emu/subject.yaml"));
  char *damaged = replaced(bytes, "us: {median", "us: {medina");
  write_all_of(path_of("emu/subject.yaml"), damaged);
  assert_int_equal(qkv_tuned_check(path_of("emu/subject.yaml")), QKV_BAD_SPEC);
  assert_non_null(strstr(qkv_last_error(NULL), "did you mean 'median'?"));
  write_table(&two, 1);
  char *kept = read_all(path_of("emu/subject.yaml.damaged"));
  assert_string_equal(kept, damaged);
  need(qkv_tuned_check(path_of("emu/subject.yaml")));
  expect_sizes(1, 4096, 4096, B, "tuned");
  free(bytes), free(damaged), free(kept);
}

static void later_versions_stay(void **state) {
  (void)state;
  static const char later[] = "qkvc_tuned: 2\nspec: {of: another kind}\nvariant: 0123456789abcdef0123456789abcdef\n";
  const qkv_tuned_entry e = entry("prefill", 0, 0, 0, A);
  mkdir(path_of("emu"), 0755);
  write_all_of(path_of("emu/subject.yaml"), later);
  for (int count = 0; count < 2; count++) {
    assert_int_equal(qkv_tuned_write(engine, subject, NULL, &e, count, NULL), QKV_IO);
    assert_non_null(strstr(qkv_last_error(NULL), "emu/subject.yaml:1:13: error: the table has format 2, of a later"));
  }
  expect_sizes(0, 0, 0, NULL, "no table");
  assert_non_null(strstr(said(), "format 2, of a later version"));
  assert_int_equal(qkv_tuned_check(path_of("emu/subject.yaml")), QKV_IO);
  char *now = read_all(path_of("emu/subject.yaml"));
  assert_string_equal(now, later);
  assert_int_equal(strangers(), 0);
  free(now);
}

/* ---- Writing ---- */

static void folders_that_cannot_be_written(void **state) {
  (void)state;
  const qkv_tuned_entry e = entry("prefill", 0, 0, 0, A);
  char under_file[160];
  write_all_of(path_of("file"), "x");
  snprintf(under_file, sizeof under_file, "%s/file/tables", folder);
  qkv_engine *other = open_engine(under_file);
  for (int count = 0; count < 2; count++) {
    assert_int_equal(qkv_tuned_write(other, subject, NULL, &e, count, NULL), QKV_IO);
    assert_non_null(strstr(qkv_last_error(NULL), "/file/tables/emu/subject.yaml"));
  }
  qkv_close(other);
  int found = 1;
  other = open_engine(path_of("file")); /* nor read */
  need(qkv_tuned_find(other, subject, NULL, NULL, &found, NULL));
  assert_int_equal(found, 0);
  assert_non_null(strstr(said(), "/file is not read: Not a directory"));
  qkv_close(other);
  need(qkv_tuned_write(engine, subject, NULL, NULL, 0, NULL)); /* makes the folder and nothing else */
  assert_int_equal(strangers(), 0);
  assert_int_not_equal(access(path_of("emu/subject.yaml"), F_OK), 0);
  assert_int_equal(mkdir(path_of("emu/subject.yaml"), 0755), 0);
  assert_int_equal(qkv_tuned_write(engine, subject, NULL, NULL, 0, NULL), QKV_IO);
}

/* Whatever step fails: the file is the old one or the new one, and nothing else is left. */
static void failing_steps_lose_nothing(void **state) {
  (void)state;
  static const char *const faults[] = {"open:EROFS", "open:EACCES",  "write:ENOSPC", "write:EIO",
                                       "fsync:EIO",  "rename:EBUSY", "rename:EROFS"};
  const qkv_tuned_entry one = entry("prefill", 1, 1024, 1024, A), two = entry("prefill", 1, 4096, 4096, B);
  write_table(&one, 1);
  char *before = read_all(path_of("emu/subject.yaml"));
  for (size_t n = 0; n < sizeof faults / sizeof faults[0]; n++) {
    fault_set(faults[n]);
    const qkv_status status = qkv_tuned_write(engine, subject, NULL, &two, 1, NULL);
    const char *message = qkv_last_error(NULL);
    fault_set(NULL);
    char *after = read_all(path_of("emu/subject.yaml"));
    if (status != QKV_IO || !strstr(message, "subject.yaml") || strcmp(before, after) || strangers())
      fail_msg("%s: status %d, '%s', %d strangers", faults[n], (int)status, message, strangers());
    free(after);
  }
  fault_set("write:short");
  write_table(&two, 1);
  fault_set("write:EINTR:0:2");
  write_table(&one, 1);
  fault_set(NULL);
  need(qkv_tuned_check(path_of("emu/subject.yaml")));
  expect_sizes(1, 4096, 4096, B, "tuned");
  free(before);
}

/* What a writer that was killed has left goes with the next one, once it is old. */
static void leftovers_are_swept(void **state) {
  (void)state;
  const qkv_tuned_entry e = entry("prefill", 0, 0, 0, A);
  struct timespec times[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};
  write_table(&e, 1);
  write_all_of(path_of("emu/.tmp-1-2"), "half of a");
  write_all_of(path_of("emu/.tmp-3-4"), "half of a");
  assert_int_equal(utimensat(AT_FDCWD, path_of("emu/.tmp-1-2"), times, 0), 0);
  assert_int_equal(strangers(), 2);
  write_table(&e, 1);
  assert_int_equal(strangers(), 1); /* the other one may be being written */
  assert_int_equal(access(path_of("emu/.tmp-3-4"), F_OK), 0);
}

/* More than a reader takes is not written. */
static void tables_have_an_end(void **state) {
  (void)state;
  enum { MANY = 400 };
  static qkv_tuned_entry entries[MANY];
  for (int n = 0; n < MANY; n++)
    entries[n] = entry("prefill", (int64_t)1 << (n % 20), (int64_t)1 << (n / 20), 1024, A);
  write_table(entries, 200);
  char *before = read_all(path_of("emu/subject.yaml"));
  assert_int_equal(qkv_tuned_write(engine, subject, NULL, entries + 200, 200, NULL), QKV_IO);
  assert_non_null(strstr(qkv_last_error(NULL), "emu/subject.yaml would be no table: "));
  char *after = read_all(path_of("emu/subject.yaml"));
  assert_string_equal(before, after);
  free(before), free(after);
}

static void bad_entries_are_refused(void **state) {
  (void)state;
  const qkv_tuned_entry good = entry("prefill", 1, 1024, 1024, A);
  enum { CASES = 13 };
  qkv_tuned_entry bad[CASES];
  static const char *const words[] = {
      "size",         "prefill or decode",         "family", "low <= seconds", "default_seconds", "no text",
      "sizes from 1", "has sizes but no workload", "1e-9",   "phase",         "family",          "schedule",
      "default_schedule"};
  for (int n = 0; n < CASES; n++)
    bad[n] = good;
  bad[0].size = 0;
  bad[1].phase = "append";
  bad[2].family = NULL;
  bad[3].low = 1;
  bad[4].default_seconds = 0;
  bad[5].workload = "a\nb";
  bad[6].len_k = 0;
  bad[7].workload = NULL;
  bad[8].low = bad[8].seconds = 1e-12;
  bad[9].phase = NULL;
  bad[10].family = "Attention forward";
  bad[11].schedule = "tile_m: 64";
  bad[12].default_schedule = "tile_m";
  for (int n = 0; n < CASES; n++) {
    if (qkv_tuned_write(engine, subject, NULL, &bad[n], 1, NULL) != QKV_INVALID_ARGUMENT ||
        !strstr(qkv_last_error(NULL), words[n]))
      fail_msg("case %d: '%s' must have '%s'", n, qkv_last_error(NULL), words[n]);
  }
  assert_int_equal(qkv_tuned_write(engine, subject, NULL, &good, 1, "no note"), QKV_INVALID_ARGUMENT);
  assert_non_null(strstr(qkv_last_error(NULL), "notes: note 'no note'"));
  assert_int_not_equal(access(path_of("emu/subject.yaml"), F_OK), 0);
}

static void other_specs_files_are_not_taken(void **state) {
  (void)state;
  const qkv_tuned_entry e = entry("prefill", 0, 0, 0, A);
  qkv_spec *other = load("qkvc: 1\nname: other\nattention: {heads: 2, dim: 32, dtype: f16}\n");
  need(qkv_tuned_write(engine, subject, path_of("deep/down/t.yaml"), &e, 1, NULL));
  assert_int_equal(qkv_tuned_write(engine, other, path_of("deep/down/t.yaml"), &e, 1, NULL), QKV_IO);
  assert_non_null(strstr(qkv_last_error(NULL), "has schedules of spec subject, not of other"));
  qkv_spec_free(other);
}

/* Processes that write different buckets of one spec, and others other specs, all at once: every entry arrives. */
static void writers_do_not_disturb(void **state) {
  (void)state;
  enum { WRITERS = 8, EACH = 4 };
  pid_t children[WRITERS];
  for (int n = 0; n < WRITERS; n++) {
    children[n] = fork();
    assert_true(children[n] >= 0);
    if (children[n] > 0)
      continue;
    char source[256];
    int failed = 0;
    snprintf(source, sizeof source, "qkvc: 1\nname: %s%d\nattention: {heads: 2, dim: 32, dtype: f16}\n",
             n % 2 ? "own" : "shared", n % 2 ? n : 0);
    qkv_spec *s;
    failed += qkv_spec_load(NULL, source, &s) != QKV_OK;
    for (int i = 0; i < EACH && !failed; i++) {
      const qkv_tuned_entry e = entry("prefill", (int64_t)1 << n, 64 << i, 1024, A);
      failed += qkv_tuned_write(engine, s, NULL, &e, 1, NULL) != QKV_OK;
    }
    _exit(failed);
  }
  for (int n = 0; n < WRITERS; n++) {
    int status;
    assert_int_equal(waitpid(children[n], &status, 0), children[n]);
    assert_int_equal(status, 0);
  }
  for (int n = 0; n < WRITERS; n++)
    for (int i = 0; i < EACH; i++) {
      char name[64], bucket_line[96];
      snprintf(name, sizeof name, "emu/%s%d.yaml", n % 2 ? "own" : "shared", n % 2 ? n : 0);
      snprintf(bucket_line, sizeof bucket_line, "bucket: b%d q%d k1024\n", 1 << n, 64 << i);
      char *bytes = read_all(path_of(name));
      if (!strstr(bytes, bucket_line))
        fail_msg("%s lacks %s:\n%s", name, bucket_line, bytes);
      free(bytes);
    }
}

/* ---- Merging, listing ---- */

static void shards_merge(void **state) {
  (void)state;
  qkv_tuned_entry a = entry("prefill", 1, 1024, 1024, A), b = entry("prefill", 1, 1024, 1024, B),
                  c = entry("decode", 1, 1, 1024, D);
  b.default_seconds = 1.5e-4; /* gained more */
  char one[160], two[160], out[2][160];
  snprintf(one, sizeof one, "%s/s1.yaml", folder);
  snprintf(two, sizeof two, "%s/s2.yaml", folder);
  need(qkv_tuned_write(engine, subject, one, &a, 1, "clock: 1"));
  need(qkv_tuned_write(engine, subject, one, &c, 1, "clock: 1"));
  need(qkv_tuned_write(engine, subject, two, &b, 1, "clock: 2"));
  char *merged[2];
  for (int n = 0; n < 2; n++) {
    const char *const files[] = {n ? two : one, n ? one : two};
    snprintf(out[n], sizeof out[n], "%s/merged%d", folder, n);
    need(qkv_tuned_merge(out[n], files, 2));
    char path[400];
    snprintf(path, sizeof path, "%s/emu/subject.yaml", out[n]);
    merged[n] = read_all(path);
  }
  assert_string_equal(merged[0], merged[1]);
  assert_non_null(strstr(merged[0], B));
  assert_non_null(strstr(merged[0], D));
  assert_null(strstr(merged[0], A));
  write_all_of(two, "qkvc_tuned: 1\n");
  const char *const files[] = {one, two};
  assert_int_equal(qkv_tuned_merge(path_of("refused"), files, 2), QKV_BAD_SPEC);
  assert_int_not_equal(access(path_of("refused"), F_OK), 0);
  free(merged[0]), free(merged[1]);
}

static int count_visits(const qkv_tuned_table *table, const qkv_tuned_entry *e, void *user) {
  int *count = user;
  assert_string_equal(table->spec, "subject");
  assert_string_equal(table->gpu_class, "emu");
  assert_int_equal(table->here, 2);
  assert_non_null(strstr(table->notes, "clock: 1 MHz\n"));
  assert_non_null(e->schedule);
  expect_sizes(1, 1024, 1024, A, "tuned"); /* a visit may ask */
  return ++*count == 2;
}

static void listing_visits_all(void **state) {
  (void)state;
  const qkv_tuned_entry entries[] = {entry("prefill", 1, 1024, 1024, A), entry("decode", 1, 1, 1024, D)};
  int count = 0;
  write_table(entries, 2);
  need(qkv_tuned_list(engine, NULL, 0, count_visits, &count));
  assert_int_equal(count, 2);
  char path[160];
  strcpy(path, path_of("emu/subject.yaml"));
  const char *const files[] = {path, path};
  count = 0;
  need(qkv_tuned_list(engine, files, 2, count_visits, &count)); /* the visitor stops it */
  assert_int_equal(count, 2);
  strcpy(path, path_of("none.yaml"));
  assert_int_equal(qkv_tuned_list(engine, files, 1, count_visits, &count), QKV_IO);
}

/* ---- Threads ---- */

static void *ask(void *user) {
  const qkv_build_options o = request(1, 1024, 1024);
  qkv_tuned_entry got = {.size = sizeof got};
  int found = 0;
  for (int n = 0; n < 5; n++) {
    if (qkv_tuned_find(user, subject, &o, &got, &found, NULL) != QKV_OK || !found || strcmp(got.schedule, A))
      return "no";
    const qkv_tuned_entry again = entry("prefill", 1, 1024, 1024, A);
    if (n == 2 && qkv_tuned_write(user, subject, NULL, &again, 1, NULL) != QKV_OK)
      return "no";
  }
  return NULL;
}

static void threads_ask_at_once(void **state) {
  (void)state;
  pthread_t threads[8];
  const qkv_tuned_entry e = entry("prefill", 1, 1024, 1024, A);
  write_table(&e, 1);
  qkv_engine *fresh = open_engine(folder);
  for (int n = 0; n < 8; n++)
    assert_int_equal(pthread_create(&threads[n], NULL, ask, fresh), 0);
  for (int n = 0; n < 8; n++) {
    void *wrong;
    pthread_join(threads[n], &wrong);
    assert_null(wrong);
  }
  qkv_close(fresh);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* What a tuner may ask is what the tables go by. */
static void buckets_in_words(void **state) {
  (void)state;
  char words[QKV_BUCKET_TEXT];
  static const struct {
    const char *phase, *words;
    int64_t batch, len_q, len_k;
  } cases[] = {{"prefill", "b4 q4096 k4096", 3, 4096, 2049},
               {"prefill", "any", 0, 4096, 2049},
               {"decode", "b64 r8 k8192", 64, 4, 8192},
               {"decode", "any", 0, 0, 0}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    need(qkv_tuned_bucket(subject, cases[n].phase, cases[n].batch, cases[n].len_q, cases[n].len_k, words));
    assert_string_equal(words, cases[n].words);
  }
  assert_int_equal(qkv_tuned_bucket(subject, "prefill", 1, -1, 1, words), QKV_INVALID_ARGUMENT);
  assert_int_equal(qkv_tuned_bucket(subject, "prefill", 1, 1, (int64_t)1 << 31, words), QKV_INVALID_ARGUMENT);
  assert_int_equal(qkv_tuned_bucket(subject, "append", 1, 1, 1, words), QKV_INVALID_ARGUMENT);
  assert_non_null(strstr(qkv_last_error(NULL), "phase 'append'"));
  assert_int_equal(qkv_tuned_bucket(NULL, "prefill", 1, 1, 1, words), QKV_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(prepare_takes_the_table),
                                     TEST(each_kernel_asks_for_itself),
                                     TEST(buckets_decide),
                                     TEST(buckets_in_words),
                                     TEST(far_from_all_is_the_default),
                                     TEST(rows_are_exact),
                                     TEST(undeclared_maxima),
                                     TEST(maxima_beyond_what_was_measured),
                                     TEST(rows_of_bucket_any),
                                     TEST(small_calls_do_not_speak_for_large_ones),
                                     TEST(batch_invariance_takes_one_schedule),
                                     TEST(request_and_spec_go_first),
                                     TEST(variants_are_found_by_hash),
                                     TEST(places_in_order),
                                     TEST(tables_can_be_turned_off),
                                     TEST(relative_folders_are_of_now),
                                     TEST(tables_of_like_gpus_are_hints),
                                     TEST(tables_of_other_gpus_are_nothing),
                                     TEST(properties_count),
                                     TEST(schedules_are_checked_here),
                                     TEST(another_family_can_win),
                                     TEST(what_cannot_be_read_is_said),
                                     TEST(damaged_entries_are_skipped),
                                     TEST(damage_is_kept_beside),
                                     TEST(later_versions_stay),
                                     TEST(folders_that_cannot_be_written),
                                     TEST(failing_steps_lose_nothing),
                                     TEST(leftovers_are_swept),
                                     TEST(tables_have_an_end),
                                     TEST(bad_entries_are_refused),
                                     TEST(other_specs_files_are_not_taken),
                                     TEST(writers_do_not_disturb),
                                     TEST(shards_merge),
                                     TEST(listing_visits_all),
                                     TEST(threads_ask_at_once)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
