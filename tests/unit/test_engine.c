/* test_engine.c: engines, specs and builds without a device: options and environment, cache behaviour as the user sees
 * it, failing templates and sources, many threads on one key, comma-decimal locales. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qkv.h"
#include "qkv_build.h"
#include "qkv_pack.h"

static char root[64];
static int warnings;

static const char spec_text[] = "qkvc: 1\n"
                                "name: tiny\n"
                                "attention:\n"
                                "  heads: {q: 4, kv: 2}\n"
                                "  dim: 16\n"
                                "  dtype: bf16\n"
                                "  softcap: 12.5\n"
                                "  score: s + 0.125 * slope[h] * (k - q)\n"
                                "  mask: causal\n"
                                "  params:\n"
                                "    slope: {type: f32, shape: [hq]}\n"
                                "outputs: [o, lse]\n"
                                "workloads:\n"
                                "  - {name: one, batch: 2, q: 128, kv: 256}\n";

static void count_warning(qkv_log_level level, const char *message, void *user) {
  (void)message, (void)user;
  __atomic_add_fetch(&warnings, level == QKV_LOG_WARNING, __ATOMIC_RELAXED);
}

static int begin(void **state) {
  (void)state;
  static const char *const variables[] = {"QKV_DEVICE",      "QKV_CACHE_DIR",   "QKV_TEMPLATE_PATH",
                                          "QKV_ARCH",        "QKV_DISABLE_JIT", "QKV_EMU_SEED",
                                          "QKV_EMU_GRANULE", "XDG_CACHE_HOME",  "QKV_CACHE_MAX_BYTES"};
  for (size_t n = 0; n < sizeof variables / sizeof *variables; n++)
    unsetenv(variables[n]);
  strcpy(root, "/tmp/qkv-engine-XXXXXX");
  warnings = 0;
  return mkdtemp(root) && !setenv("HOME", root, 1) ? 0 : -1; /* nobody's own cache */
}

static int end(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", root);
  return system(command);
}

static qkv_options options_for(const char *device) {
  qkv_options o = QKV_OPTIONS_INIT;
  o.device = device;
  o.cache_dir = root;
  o.log = count_warning;
  return o;
}

static qkv_engine *open_engine(const char *device) {
  qkv_options o = options_for(device);
  qkv_engine *e = NULL;
  if (qkv_open(&o, &e) != QKV_OK)
    fail_msg("qkv_open: %s", qkv_last_error(NULL));
  return e;
}

static qkv_spec *load_tiny(qkv_engine *e) {
  qkv_spec *s = NULL;
  if (qkv_spec_load(e, spec_text, &s) != QKV_OK)
    fail_msg("qkv_spec_load: %s", qkv_last_error(e));
  return s;
}

static qkv_counters counters_of(const qkv_engine *e) {
  qkv_counters c = {.size = sizeof c};
  qkv_get_counters(e, &c);
  return c;
}

static int have_nvrtc(void) {
  qkv_engine *e = open_engine("none");
  qkv_device_info info = {.size = sizeof info};
  assert_int_equal(qkv_device_get_info(e, &info), QKV_OK);
  qkv_close(e);
  return info.compiler[0] != 0;
}

/* Status and a word of the message. */
static void assert_fails(qkv_status got, qkv_status want, const char *word) {
  if (got != want || !strstr(qkv_last_error(NULL), word))
    fail_msg("got '%s' with message '%s'; expected '%s' naming '%s'", qkv_status_name(got), qkv_last_error(NULL),
             qkv_status_name(want), word);
}

/* ---- Options ---- */

static void test_names(void **state) {
  (void)state;
  for (int n = 0; n < 100; n++)
    assert_non_null(qkv_status_name((qkv_status)n));
  assert_string_equal(qkv_status_name(QKV_BAD_SPEC), "bad spec");
  assert_string_equal(qkv_version(), "0.1.0");
}

static void test_bad_options(void **state) {
  (void)state;
  static const struct {
    const char *device, *arch;
    qkv_status want;
    const char *word;
  } rows[] = {
      {"gpu", NULL, QKV_INVALID_ARGUMENT, "gpu"},
      {"cuda:", NULL, QKV_INVALID_ARGUMENT, "cuda:"},
      {"cuda:-1", NULL, QKV_INVALID_ARGUMENT, "cuda:-1"},
      {"cuda:1x", NULL, QKV_INVALID_ARGUMENT, "cuda:1x"},
      {"cuda:99", NULL, QKV_NO_DEVICE, "CUDA"},
      {"none", "sm_999", QKV_UNKNOWN_ARCH, "sm_90a"},
      {"emu", "tpu", QKV_UNKNOWN_ARCH, "tpu"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    qkv_options o = options_for(rows[n].device);
    qkv_engine *e = (qkv_engine *)&o;
    o.arch = rows[n].arch;
    assert_fails(qkv_open(&o, &e), rows[n].want, rows[n].word);
    assert_null(e);
  }
  qkv_options o = {0};
  qkv_engine *e;
  assert_fails(qkv_open(&o, &e), QKV_INVALID_ARGUMENT, "size");
  assert_fails(qkv_open(NULL, NULL), QKV_INVALID_ARGUMENT, "out");
  setenv("QKV_EMU_SEED", "many", 1);
  assert_fails(qkv_open(NULL, &e), QKV_INVALID_ARGUMENT, "QKV_EMU_SEED");
  setenv("QKV_EMU_SEED", "3", 1);
  setenv("QKV_EMU_GRANULE", "large", 1);
  assert_fails(qkv_open(NULL, &e), QKV_INVALID_ARGUMENT, "QKV_EMU_GRANULE: 'large' is not a number");
  setenv("QKV_DEVICE", "emu", 1);
  setenv("QKV_EMU_GRANULE", "65537", 1);
  assert_fails(qkv_open(NULL, &e), QKV_INVALID_ARGUMENT, "emu_granule: 65537 bytes");
}

/* Calls without a status take NULL too. */
static void test_null_handles(void **state) {
  (void)state;
  qkv_counters counters = {.size = sizeof counters, .compiles = 7};
  qkv_spec_info info = {.size = sizeof info, .heads_q = 7};
  qkv_get_counters(NULL, &counters);
  assert_int_equal(counters.compiles, 0);
  qkv_spec_get_info(NULL, &info);
  assert_string_equal(info.name, "");
  assert_int_equal(info.heads_q, 0);
  assert_string_equal(qkv_cache_path(NULL), "");
  assert_int_equal(qkv_workspace_size(NULL), 0);
  qkv_close(NULL);
  qkv_spec_free(NULL);
  qkv_op_free(NULL);
  qkv_string_free(NULL);
}

static void test_environment(void **state) {
  (void)state;
  qkv_engine *e;
  qkv_device_info info = {.size = sizeof info};
  setenv("QKV_DEVICE", "none", 1);
  setenv("QKV_ARCH", "sm_89", 1);
  setenv("QKV_CACHE_DIR", root, 1);
  assert_int_equal(qkv_open(NULL, &e), QKV_OK);
  assert_int_equal(qkv_device_get_info(e, &info), QKV_OK);
  assert_string_equal(info.kind, "none");
  assert_string_equal(info.arch, "sm_89");
  assert_string_equal(qkv_cache_path(e), root);
  void *memory;
  assert_fails(qkv_alloc(e, 1, &memory), QKV_NO_DEVICE, "none");
  qkv_close(e);
  qkv_options o = options_for("none"); /* a field wins over the environment */
  o.arch = "sm_90a";
  o.cache_dir = "";
  assert_int_equal(qkv_open(&o, &e), QKV_OK);
  assert_int_equal(qkv_device_get_info(e, &info), QKV_OK);
  assert_string_equal(info.arch, "sm_90a");
  assert_string_equal(qkv_cache_path(e), "");
  qkv_close(e);
  qkv_close(NULL);
}

/* From the host to a block, to another one, and back. */
static void test_copies(void **state) {
  (void)state;
  qkv_engine *e = open_engine("emu");
  char text[8] = "qkvc";
  void *from, *to;
  assert_int_equal(qkv_alloc(e, 8, &from), QKV_OK);
  assert_int_equal(qkv_alloc(e, 8, &to), QKV_OK);
  assert_int_equal(qkv_copy_to_device(e, from, text, 8), QKV_OK);
  assert_int_equal(qkv_copy_on_device(e, to, from, 8), QKV_OK);
  memset(text, 0, sizeof text);
  assert_int_equal(qkv_copy_to_host(e, text, to, 8), QKV_OK);
  assert_string_equal(text, "qkvc");
  assert_int_equal(qkv_copy_on_device(e, NULL, NULL, 0), QKV_OK);
  assert_fails(qkv_copy_on_device(e, NULL, from, 1), QKV_INVALID_ARGUMENT, "to is NULL");
  assert_fails(qkv_copy_on_device(e, to, NULL, 1), QKV_INVALID_ARGUMENT, "from is NULL");
  assert_fails(qkv_copy_on_device(e, to, from, 9), QKV_INVALID_ARGUMENT, "not inside a live allocation");
  assert_int_equal(qkv_free(e, from), QKV_OK);
  assert_int_equal(qkv_free(e, to), QKV_OK);
  qkv_close(e);
}

/* A program built against an older library has smaller structs: only what it knows is read and written. */
static void test_older_structs(void **state) {
  (void)state;
  qkv_options o = options_for("none");
  o.size = offsetof(qkv_options, arch);
  o.arch = "never read";
  qkv_engine *e;
  assert_int_equal(qkv_open(&o, &e), QKV_OK);
  qkv_device_info info;
  memset(&info, 0x55, sizeof info);
  info.size = offsetof(qkv_device_info, arch);
  assert_int_equal(qkv_device_get_info(e, &info), QKV_OK);
  assert_string_equal(info.kind, "none");
  assert_int_equal(info.arch[0], 0x55);
  assert_int_equal(info.size, offsetof(qkv_device_info, arch));
  qkv_close(e);
}

/* ---- Specs ---- */

static void test_spec(void **state) {
  (void)state;
  qkv_spec *s = load_tiny(NULL);
  qkv_spec_info info = {.size = sizeof info};
  qkv_spec_get_info(s, &info);
  assert_string_equal(info.name, "tiny");
  assert_int_equal(info.heads_q, 4);
  assert_int_equal(info.heads_kv, 2);
  assert_int_equal(info.dtype_q, QKV_BF16);
  assert_true(info.wants_lse && !info.wants_lse_with_sink && !info.has_sink);
  assert_int_equal(info.nparams, 1);
  qkv_param_info param = {.size = sizeof param};
  assert_int_equal(qkv_spec_get_param(s, 0, &param), QKV_OK);
  assert_string_equal(param.name, "slope");
  assert_int_equal(param.rank, 1);
  int64_t shape[4];
  assert_int_equal(qkv_spec_param_shape(s, 0, 3, 5, 7, shape), QKV_OK);
  assert_int_equal(shape[0], 4);
  assert_fails(qkv_spec_get_param(s, 1, &param), QKV_INVALID_ARGUMENT, "parameter 1");
  assert_fails(qkv_spec_param_shape(s, -1, 1, 1, 1, shape), QKV_INVALID_ARGUMENT, "-1");
  qkv_workload workload = {.size = sizeof workload};
  assert_int_equal(qkv_spec_get_workload(s, 0, &workload), QKV_OK);
  assert_int_equal(workload.len_k, 256);
  assert_fails(qkv_spec_get_workload(s, 1, &workload), QKV_INVALID_ARGUMENT, "workload 1");
  char *text;
  qkv_status (*const printers[])(const qkv_spec *, char **) = {qkv_spec_canonical, qkv_spec_json};
  for (int n = 0; n < 2; n++) {
    assert_int_equal(printers[n](s, &text), QKV_OK);
    assert_non_null(strstr(text, "12.5")); /* the soft cap */
    qkv_string_free(text);
  }
  assert_int_equal(qkv_json_schema(&text), QKV_OK);
  assert_non_null(strstr(text, "heads"));
  qkv_string_free(text);
  qkv_spec_free(s);
  qkv_spec_free(NULL);
}

static void test_bad_specs(void **state) {
  (void)state;
  qkv_spec *s = (qkv_spec *)root;
  assert_fails(qkv_spec_load(NULL, "/nonexistent.yaml", &s), QKV_IO, "/nonexistent.yaml");
  assert_null(s);
  assert_fails(qkv_spec_load(NULL, root, &s), QKV_IO, root); /* a directory */
  assert_fails(qkv_spec_load(NULL, NULL, &s), QKV_INVALID_ARGUMENT, "NULL");
  assert_fails(qkv_spec_load(NULL, "qkvc: 1\nhead_dims: 3\n", &s), QKV_BAD_SPEC, "<text>:2:1");
  assert_non_null(strstr(qkv_last_error(NULL), "^"));
  assert_fails(qkv_spec_check("qkvc: 1\nhead_dims: 3\n", 1, &s), QKV_BAD_SPEC, "\"line\"");
}

/* ---- Generating and building ---- */

static void test_generate(void **state) {
  (void)state;
  qkv_engine *e = open_engine("none");
  qkv_spec *s = load_tiny(e);
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  char *first, *second;
  assert_int_equal(qkv_generate(e, s, NULL, &first), QKV_OK);
  assert_int_equal(qkv_generate(e, s, &o, &second), QKV_OK);
  assert_string_equal(first, second);
  qkv_string_free(second);
  o.unaligned = 1;
  assert_int_equal(qkv_generate(e, s, &o, &second), QKV_OK);
  assert_string_not_equal(first, second);
  qkv_string_free(first);
  qkv_string_free(second);
  o = (qkv_build_options)QKV_BUILD_OPTIONS_INIT;
  o.len_q = -1;
  assert_fails(qkv_generate(e, s, &o, &first), QKV_INVALID_ARGUMENT, "options.len_q is -1");
  o.len_q = 0, o.batch = -1;
  assert_fails(qkv_generate(e, s, &o, &first), QKV_INVALID_ARGUMENT, "options.batch is -1");
  o.batch = 0, o.arch = "sm_12";
  assert_fails(qkv_generate(e, s, &o, &first), QKV_UNKNOWN_ARCH, "sm_12");
  assert_null(first);
  o.arch = NULL;
  o.schedule = "tile_q=7";
  assert_fails(qkv_generate(e, s, &o, &first), QKV_BAD_SCHEDULE, "tile_q");
  o.schedule = NULL;
  o.family = "no_such_family";
  assert_true(qkv_generate(e, s, &o, &first) != QKV_OK);
  assert_non_null(strstr(qkv_last_error(e), "no_such_family"));
  assert_fails(qkv_generate(NULL, s, &o, &first), QKV_INVALID_ARGUMENT, "engine");
  qkv_spec_free(s);
  qkv_close(e);
}

static qkv_build_report build_tiny(qkv_engine *e, const char *arch, qkv_status want) {
  qkv_spec *s = load_tiny(e);
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  qkv_build_report report = {.size = sizeof report};
  o.arch = arch;
  qkv_status status = qkv_build(e, s, &o, &report);
  if (status != want)
    fail_msg("qkv_build: %s: %s", qkv_status_name(status), qkv_last_error(e));
  qkv_spec_free(s);
  return report;
}

static void test_build_and_cache(void **state) {
  (void)state;
  if (!have_nvrtc())
    skip();
  qkv_engine *e = open_engine("none");
  qkv_build_report cold = build_tiny(e, "sm_90a", QKV_OK);
  assert_false(cold.from_cache);
  assert_true(cold.entries[0].registers > 0 && cold.entries[0].threads > 0 && cold.image_bytes > 1000);
  assert_string_equal(cold.arch, "sm_90a");
  qkv_build_report warm = build_tiny(e, "sm_90a", QKV_OK);
  assert_true(warm.from_cache);
  assert_string_equal(warm.key, cold.key);
  assert_int_equal(warm.entries[0].registers, cold.entries[0].registers);
  assert_int_equal(warm.image_bytes, cold.image_bytes);
  print_message("cold: render %.1f ms, compile %.0f ms; warm: render %.1f ms, read and verify %.2f ms (%lld bytes)\n",
                cold.render_seconds * 1e3, cold.compile_seconds * 1e3, warm.render_seconds * 1e3,
                warm.load_seconds * 1e3, (long long)warm.image_bytes);
  qkv_build_report other = build_tiny(e, "sm_80", QKV_OK);
  assert_string_not_equal(other.key, cold.key);
  assert_int_equal(counters_of(e).compiles, 2);
  assert_int_equal(counters_of(e).cache_hits, 1);

  /* A damaged entry: found, removed, built again once. */
  char path[256];
  snprintf(path, sizeof path, "%s/%s.kernel", root, cold.key);
  assert_int_equal(truncate(path, 500), 0);
  assert_false(build_tiny(e, "sm_90a", QKV_OK).from_cache);
  assert_true(build_tiny(e, "sm_90a", QKV_OK).from_cache);
  assert_int_equal(counters_of(e).compiles, 3);
  assert_int_equal(counters_of(e).cache_errors, 1);
  assert_int_equal(warnings, 1);
  qkv_close(e);
}

static int count_entry(const qkv_cache_entry *entry, void *user) {
  assert_true(entry->valid && entry->bytes > 0 && entry->age_seconds < 600);
  assert_string_equal(entry->arch, "sm_80");
  assert_non_null(strstr(entry->family, "attention"));
  ++*(int *)user;
  return 0;
}

static void test_cache_calls(void **state) {
  (void)state;
  if (!have_nvrtc())
    skip();
  qkv_engine *e = open_engine("none");
  build_tiny(e, "sm_80", QKV_OK);
  int count = 0;
  int64_t removed = -1;
  assert_int_equal(qkv_cache_list(e, count_entry, &count), QKV_OK);
  assert_int_equal(count, 1);
  assert_int_equal(qkv_cache_clear(e, 1, &removed), QKV_OK);
  assert_int_equal(removed, 0);
  assert_int_equal(qkv_cache_clear(e, 0, &removed), QKV_OK);
  assert_int_equal(removed, 1);
  qkv_close(e);
}

static void test_disabled_jit(void **state) {
  (void)state;
  if (!have_nvrtc())
    skip();
  setenv("QKV_DISABLE_JIT", "1", 1);
  qkv_engine *strict = open_engine("none");
  build_tiny(strict, "sm_80", QKV_NOT_PREPARED);
  static const char *const words[] = {"attention_forward_sm80", "sm_80", "tile_m=", "key ", "QKV_DISABLE_JIT"};
  for (size_t n = 0; n < sizeof words / sizeof *words; n++)
    assert_non_null(strstr(qkv_last_error(strict), words[n]));
  setenv("QKV_DISABLE_JIT", "0", 1);
  qkv_engine *free_engine = open_engine("none");
  build_tiny(free_engine, "sm_80", QKV_OK);
  assert_true(build_tiny(strict, "sm_80", QKV_OK).from_cache);
  assert_int_equal(counters_of(strict).compiles, 0);
  qkv_close(strict);
  qkv_close(free_engine);
}

/* A cache that cannot be used costs one warning and nothing else. */
static void test_unusable_cache(void **state) {
  (void)state;
  if (!have_nvrtc())
    skip();
  char path[128];
  snprintf(path, sizeof path, "%s/file", root);
  fclose(fopen(path, "w"));
  qkv_options o = options_for("none");
  o.cache_dir = path;
  qkv_engine *e;
  assert_int_equal(qkv_open(&o, &e), QKV_OK);
  assert_string_equal(qkv_cache_path(e), "");
  for (int n = 0; n < 2; n++)
    assert_false(build_tiny(e, "sm_80", QKV_OK).from_cache);
  assert_int_equal(counters_of(e).compiles, 2);
  assert_int_equal(warnings, 1);
  qkv_close(e);
}

/* Copies the built-in templates, which lie in the source tree, and appends a line to the kernel. */
static void override_template(const char *line) {
  char command[1024], path[256];
  snprintf(command, sizeof command, "cp -r %s/templates %s/t", QKV_SOURCE_DIR, root);
  assert_int_equal(system(command), 0);
  for (int family = 80; family <= 90; family += 10) {
    snprintf(path, sizeof path, "%s/t/kernels/attention_forward_sm%d.cu", root, family);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fprintf(f, "%s\n", line);
    fclose(f);
  }
}

static qkv_engine *open_with_templates(void) {
  static char path[128];
  qkv_options o = options_for("none");
  snprintf(path, sizeof path, "%s/t", root);
  o.template_path = path;
  qkv_engine *e;
  assert_int_equal(qkv_open(&o, &e), QKV_OK);
  return e;
}

static void test_template_error(void **state) {
  (void)state;
  override_template("//% undefined_function()");
  qkv_engine *e = open_with_templates();
  qkv_spec *s = load_tiny(e);
  char *source;
  assert_fails(qkv_generate(e, s, NULL, &source), QKV_TEMPLATE_ERROR, "attention_forward_sm80.cu:");
  qkv_spec_free(s);
  qkv_close(e);
}

static void test_compile_error(void **state) {
  (void)state;
  if (!have_nvrtc())
    skip();
  override_template("int broken = undefined_thing;");
  qkv_engine *e = open_with_templates();
  build_tiny(e, "sm_80", QKV_COMPILE_ERROR);
  const char *message = qkv_last_error(e);
  assert_non_null(strstr(message, "attention_forward_sm80.cu:"));
  assert_non_null(strstr(message, "int broken = undefined_thing;"));
  assert_non_null(strstr(message, "generated line"));
  int64_t removed;
  assert_int_equal(qkv_cache_clear(e, 0, &removed), QKV_OK);
  assert_int_equal(removed, 0); /* nothing was published */
  qkv_close(e);
}

/* A warm start tells of lost speed as the cold one did: the log is in the cache. */
static void test_advisories(void **state) {
  (void)state;
  if (!have_nvrtc())
    skip();
  override_template("extern \"C\" __global__ void other() { asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\"); }");
  qkv_engine *e = open_with_templates();
  for (int warm = 0; warm < 2; warm++) {
    qkv_build_report report = build_tiny(e, "sm_90a", QKV_OK);
    assert_int_equal(report.from_cache, warm);
    assert_int_equal(report.entries[0].ignored_setmaxnreg, 1);
    assert_int_equal(report.entries[0].serialised_wgmma + report.entries[0].added_waits, 0);
    assert_string_equal(report.advisories, "qkv_kernel: setmaxnreg ignored (C7508): launch bounds do not fix the "
                                           "registers at entry\n");
    assert_non_null(strstr(report.notes, "'setmaxnreg' ignored"));
    qkv_string_free(report.notes);
    qkv_string_free(report.advisories);
  }
  assert_int_equal(counters_of(e).compiles, 1);
  qkv_close(e);
}

/* ---- Threads ---- */

typedef struct worker {
  qkv_engine *engine;
  qkv_spec *spec;
  const char *schedule;
  qkv_status status;
} worker;

static void *work(void *user) {
  worker *w = user;
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  qkv_build_report report = {.size = sizeof report};
  o.schedule = w->schedule;
  w->status = qkv_build(w->engine, w->spec, &o, &report);
  qkv_string_free(report.notes);
  qkv_string_free(report.advisories);
  return NULL;
}

/* Eight threads on one key and two others: three compiles, whether the cache is a directory or in memory. */
static void test_threads(void **state) {
  (void)state;
  if (!have_nvrtc())
    skip();
  enum { THREADS = 10 };
  qkv_engine *e = open_engine("none");
  qkv_spec *s = load_tiny(e);
  pthread_t threads[THREADS];
  worker workers[THREADS];
  for (int n = 0; n < THREADS; n++) {
    workers[n] = (worker){e, s, n == 3 ? "tile_n=32" : n == 4 ? "tile_m=64" : NULL, QKV_INTERNAL};
    assert_int_equal(pthread_create(&threads[n], NULL, work, &workers[n]), 0);
  }
  for (int n = 0; n < THREADS; n++) {
    pthread_join(threads[n], NULL);
    assert_int_equal(workers[n].status, QKV_OK);
  }
  assert_int_equal(counters_of(e).compiles, 3);
  qkv_spec_free(s);
  qkv_close(e);
}

/* ---- Reports ---- */

static void test_explain(void **state) {
  (void)state;
  qkv_engine *e = open_engine("none");
  qkv_spec *s = load_tiny(e);
  char *text;
  assert_int_equal(qkv_explain(e, s, NULL, 0, &text), QKV_OK);
  static const char *const words[] = {"attention_forward_sm80",
                                      "attention_naive",
                                      "tile_m=",
                                      "k <= q",
                                      "one ",
                                      "FLOP/byte",
                                      "K and V of a layer: 128 bytes a token\n"};
  for (size_t n = 0; n < sizeof words / sizeof *words; n++)
    if (!strstr(text, words[n]))
      fail_msg("'%s' is missing in:\n%s", words[n], text);
  qkv_string_free(text);
  assert_int_equal(qkv_explain(e, s, NULL, 1, &text), QKV_OK);
  /* 2 x 4 heads x (sum of 129..256) pairs, 4 x 16 operations each */
  assert_non_null(strstr(text, "\"flops\": 12615680"));
  assert_non_null(strstr(text, "\"kv\": {\"token_bytes\": 128, \"page\": null, \"page_bytes\": null}"));
  qkv_string_free(text);
  qkv_spec *paged;
  assert_int_equal(qkv_spec_load(e,
                                 "qkvc: 1\nname: paged\nattention: {heads: {q: 4, kv: 2}, dim: 16, dtype: bf16}\n"
                                 "layout: {q: ragged, kv: {paged: {page: 17}}}\n",
                                 &paged),
                   QKV_OK);
  assert_int_equal(qkv_explain(e, paged, NULL, 0, &text), QKV_OK);
  assert_non_null(strstr(text, "K and V of a layer: 128 bytes a token, 2176 a page of 17\n"));
  qkv_string_free(text);
  assert_int_equal(qkv_explain(e, paged, NULL, 1, &text), QKV_OK);
  assert_non_null(strstr(text, "\"kv\": {\"token_bytes\": 128, \"page\": 17, \"page_bytes\": 2176}"));
  qkv_string_free(text);
  qkv_spec_free(paged);
  qkv_build_options o = QKV_BUILD_OPTIONS_INIT;
  o.schedule = "tile_m=12345";
  assert_int_equal(qkv_explain(e, s, &o, 1, &text), QKV_OK); /* explains why not */
  assert_non_null(strstr(text, "12345"));
  assert_non_null(strstr(text, "\"kernel\": null"));
  qkv_string_free(text);
  qkv_spec_free(s);
  qkv_close(e);
}

static void test_doctor(void **state) {
  (void)state;
  for (int json = 0; json < 2; json++) {
    qkv_options o = options_for(NULL);
    char *text;
    int healthy = -1;
    assert_int_equal(qkv_doctor(&o, json, &healthy, &text), QKV_OK);
    static const char *const words[] = {"driver", "nvrtc", "g++", "cache", "file system"};
    for (size_t n = 0; n < sizeof words / sizeof *words; n++)
      assert_non_null(strstr(text, words[n]));
    assert_non_null(strstr(text, root));
    assert_int_equal(healthy & ~1, 0);
    qkv_string_free(text);
  }
}

/* ---- Locale ---- */

/* Everything that prints or reads numbers, as one text. */
static char *all_texts(void) {
  static char all[1 << 20];
  qkv_engine *e = open_engine("none");
  qkv_spec *s = load_tiny(e);
  char *texts[4];
  assert_int_equal(qkv_generate(e, s, NULL, &texts[0]), QKV_OK);
  assert_int_equal(qkv_spec_canonical(s, &texts[1]), QKV_OK);
  assert_int_equal(qkv_spec_json(s, &texts[2]), QKV_OK);
  assert_int_equal(qkv_explain(e, s, NULL, 1, &texts[3]), QKV_OK);
  all[0] = 0;
  for (int n = 0; n < 4; n++) {
    strncat(all, texts[n], sizeof all - strlen(all) - 1);
    qkv_string_free(texts[n]);
  }
  qkv_spec_free(s);
  qkv_close(e);
  return strdup(all);
}

/* A locale with a decimal comma: an installed one, or one compiled into the test's folder. */
static int comma_locale(void) {
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ru_RU.UTF-8"};
  for (int attempt = 0; attempt < 2; attempt++) {
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
      if (setlocale(LC_ALL, names[n]) && localeconv()->decimal_point[0] == ',')
        return 1;
    char command[256];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", root);
    if (attempt == 0 && system(command) == 0)
      setenv("LOCPATH", root, 1);
  }
  return 0;
}

static void test_locale(void **state) {
  (void)state;
  char *plain = all_texts();
  if (!comma_locale()) {
    free(plain);
    print_message("no locale with a decimal comma here\n");
    skip();
  }
  char *comma = all_texts();
  setlocale(LC_ALL, "C");
  assert_string_equal(plain, comma);
  free(plain);
  free(comma);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(test_names),           TEST(test_bad_options),   TEST(test_null_handles), TEST(test_environment),
      TEST(test_older_structs),   TEST(test_spec),          TEST(test_bad_specs),    TEST(test_generate),
      TEST(test_build_and_cache), TEST(test_cache_calls),   TEST(test_disabled_jit), TEST(test_unusable_cache),
      TEST(test_template_error),  TEST(test_compile_error), TEST(test_advisories),   TEST(test_threads),
      TEST(test_explain),         TEST(test_doctor),        TEST(test_locale),       TEST(test_copies)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
