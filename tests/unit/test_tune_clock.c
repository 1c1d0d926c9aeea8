/* Clocks that are read while something is timed: what the readings say against sorting them, the library that tells
 * them (tests/fault/nvml_stub.c, built here), and what happens without it, without the device, or when it fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../tools/cli_report.c"
#include "../../tools/tune_clock.c"
#include "../../tools/tune_clock_notes.c"
#include "../../tools/tune_record.c"
#include "../../tools/tune_stats.c"

cli_globals cli_global;
static char folder[] = "/tmp/qkv-clock-XXXXXX", library[256], newer[256], driver[256];
static const qkv_device_info gpu = {.size = sizeof gpu, .kind = "cuda", .name = "a GPU"};
static const qkv_device_info emulator = {.size = sizeof emulator, .kind = "emu", .name = "emu"};

static bool near(double a, double b) {
  return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

/* ---- Readings ---- */

static int compare(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double sorted_median(const reading *r, int count) {
  double values[READINGS];
  for (int n = 0; n < count; n++)
    values[n] = r[n].sm_mhz;
  qsort(values, (size_t)count, sizeof *values, compare);
  return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}

static void test_summary(void **unused) {
  (void)unused;
  static const unsigned long long reasons[] = {0, 1, 4, 8, 0x20, 0x40, 0x80, 0x44, 0x10};
  static const int power[] = {0, 0, 1, 0, 0, 0, 1, 1, 0}, thermal[] = {0, 0, 0, 0, 1, 1, 0, 1, 0};
  reading r[200];
  for (unsigned seed = 0; seed < 300; seed++) {
    const int count = 1 + (int)(seed % 150);
    double low = INFINITY, high = 0, capped = 0, hot = 0;
    unsigned state = seed * 2654435761u + 1;
    for (int n = 0; n < count; n++) {
      state = state * 1664525u + 1013904223u;
      const int kind = (int)(state >> 20) % 9;
      r[n] = (reading){1000 + (state >> 24) * 4, 3201, 600, reasons[kind]};
      low = fmin(low, r[n].sm_mhz), high = fmax(high, r[n].sm_mhz);
      capped += power[kind], hot += thermal[kind];
    }
    tune_clocks c;
    summarise(r, count, &c);
    const double first = count < 8 ? 0 : sorted_median(r, count / 4);
    const double last = count < 8 ? 0 : sorted_median(r + count - count / 4, count / 4);
    if (c.readings != count || !near(c.sm_mhz, sorted_median(r, count)) || c.sm_low != low || c.sm_high != high ||
        !near(c.power_capped, capped / count) || !near(c.thermal_capped, hot / count) || !near(c.sm_first, first) ||
        !near(c.sm_last, last) || c.memory_mhz != 3201 || c.watts != 600 ||
        !near(clocks_drift(&c), count < 8 ? 0 : last / first - 1))
      fail_msg("seed %u: %d readings", seed, count);
  }
}

/* However many come, those kept are equally far apart and reach to the end. */
static void test_long_spans(void **unused) {
  (void)unused;
  tune_clock *c = calloc(1, sizeof *c);
  c->period_ms = PERIOD_MS;
  for (int now = PERIOD_MS, due = PERIOD_MS; now <= 20 * READINGS * PERIOD_MS; now += PERIOD_MS)
    if (now == due) {
      keep_reading(c, &(reading){.sm_mhz = now});
      due += c->period_ms;
    }
  assert_true(c->count >= READINGS / 2 && c->count <= READINGS);
  const double step = c->readings[1].sm_mhz - c->readings[0].sm_mhz;
  assert_true(step == c->period_ms && c->period_ms > PERIOD_MS);
  for (int n = 1; n < c->count; n++)
    assert_true(c->readings[n].sm_mhz - c->readings[n - 1].sm_mhz == step);
  assert_true(c->readings[c->count - 1].sm_mhz > (20 * READINGS - 64) * PERIOD_MS);
  free(c);
}

static void test_merge(void **unused) {
  (void)unused;
  const tune_clocks spans[] = {{.readings = 10,
                                .sm_mhz = 1500,
                                .sm_low = 1400,
                                .sm_high = 1600,
                                .watts = 600,
                                .memory_mhz = 3201,
                                .power_capped = 1},
                               {0},
                               {.readings = 30,
                                .sm_mhz = 1900,
                                .sm_low = 1450,
                                .sm_high = 1980,
                                .watts = 500,
                                .memory_mhz = 3201,
                                .thermal_capped = 0.5}};
  tune_clocks all;
  clocks_merge(spans, 3, &all);
  assert_true(all.readings == 40 && all.sm_mhz == 1700 && all.sm_low == 1400 && all.sm_high == 1980);
  assert_true(all.watts == 550 && all.memory_mhz == 3201 && all.power_capped == 0.25 && all.thermal_capped == 0.375);
  assert_true(clocks_drift(&all) == 0);
  clocks_merge(spans + 1, 1, &all);
  assert_true(all.readings == 0 && all.sm_mhz == 0);
  clocks_merge(spans, 0, &all);
  assert_true(all.readings == 0);
}

static void test_answers(void **unused) {
  (void)unused;
  const tune_clocks clocks = {40, 1755, 1680, 1980, 1900, 1700, 3201, 650.5, 0.8, 0.1};
  for (int n = 0; n < 2; n++) {
    const tune_clocks given = n ? (tune_clocks){0} : clocks;
    char *text = NULL;
    size_t size;
    record r = {0};
    tune_clocks back;
    FILE *out = open_memstream(&text, &size);
    record_writer w = record_open(out);
    record_put(&w, "status", "ok");
    clocks_put(&w, &given);
    record_close(&w);
    fclose(out);
    assert_true(record_parse(&r, text));
    clocks_get(&r, &back);
    assert_int_equal(back.readings, given.readings);
    assert_memory_equal(&back.sm_mhz, &given.sm_mhz, sizeof back - offsetof(tune_clocks, sm_mhz));
    assert_true(n == 0 || r.count == 1);
    record_free(&r);
    free(text);
  }
}

/* Two workloads with finals, one of whose clocks moved, and one that has none. */
static void test_notes(void **unused) {
  (void)unused;
  static tune_group g;
  tune_candidate *candidates = calloc(2, sizeof *candidates);
  char notes[512], *text = NULL;
  size_t size;
  g = (tune_group){.nworkloads = 3, .count = 2, .candidates = candidates};
  for (int w = 0; w < 4; w++)
    g.choices[w].winner = w < 2 ? 1 - w : -1;
  for (int w = 0; w < 3; w++)
    snprintf(g.workloads[w].name, sizeof g.workloads[w].name, "w%d", w);
  clock_notes(&g, notes, sizeof notes);
  assert_string_equal(notes, "");
  candidates[1].on[0].clocks = (tune_clocks){30, 1700, 1600, 1900, 1800, 1715, 0, 0, 1, 0};
  candidates[0].on[1].clocks = (tune_clocks){10, 1800, 1650, 1980, 1700, 1790, 0, 640, 0.2, 0};
  clock_notes(&g, notes, sizeof notes);
  assert_string_equal(notes, "sm_clock: 1750 MHz (1600 to 1980)\npower_capped: 0.8\nthermal_capped: 0\npower: 640 W\n");
  FILE *out = open_memstream(&text, &size);
  report_clock_drift(&g, out);
  fclose(out);
  assert_string_equal(
      text, "  note: w1: the SM clock went from 1700 to 1790 MHz during the final; schedules took turns in it\n");
  free(text);
  free(candidates);
}

/* ---- The library ---- */

static void plant(const char *readings, const char *bus, const char *failing) {
  setenv("QKV_NVML", library, 1);
  setenv("QKV_NVML_BUS", bus, 1);
  setenv("QKV_STUB_NVML", readings, 1);
  setenv("QKV_STUB_NVML_FAIL", failing, 1);
}

static void sample(tune_clock *c, int milliseconds, tune_clocks *out) {
  clock_start(c);
  nanosleep(&(struct timespec){0, milliseconds * 1000000L}, NULL);
  clock_stop(c, out);
}

static void test_planted(void **unused) {
  (void)unused;
  plant("1500:600:0x4,1600:610:0x4,1700:620:0", "0000:17:00.0", "");
  void *stub = dlopen(library, RTLD_NOW);
  assert_non_null(stub);
  const int *open = dlsym(stub, "nvml_stub_open");
  tune_clock *c = clock_open(&emulator);
  assert_true(c && *open == 1);
  for (int span = 0; span < 2; span++) { /* the second knows nothing of the first */
    tune_clocks clocks;
    sample(c, 400, &clocks);
    assert_in_range(clocks.readings, 3, 90);
    assert_true(clocks.sm_low == 1500 && clocks.sm_high == 1700 && clocks.memory_mhz == 3201);
    assert_true(clocks.sm_mhz >= 1500 && clocks.sm_mhz <= 1700 && clocks.watts >= 600 && clocks.watts <= 620);
    assert_true(fabs(clocks.power_capped - 2.0 / 3) <= 1.0 / clocks.readings && clocks.thermal_capped == 0);
  }
  clock_start(c); /* closed while it reads */
  clock_close(c);
  assert_int_equal(*open, 0);
  dlclose(stub);
}

/* A library that has the reasons under their later name alone. */
static void test_later_name(void **unused) {
  (void)unused;
  tune_clocks clocks;
  plant("1500:600:0x4", "0000:17:00.0", "");
  setenv("QKV_NVML", newer, 1);
  tune_clock *c = clock_open(&gpu);
  assert_non_null(c);
  sample(c, 100, &clocks);
  assert_true(clocks.readings > 0 && clocks.power_capped == 1);
  clock_close(c);
}

/* The GPU is the one that the driver has under the device's number. */
static void test_bus(void **unused) {
  (void)unused;
  plant("1500:600:0x4", "", "");
  assert_null(clock_open(&gpu)); /* no driver is open */
  void *open = dlopen(driver, RTLD_NOW);
  assert_non_null(open);
  for (int ordinal = 0; ordinal < 2; ordinal++) {
    qkv_device_info device = gpu;
    device.ordinal = ordinal;
    tune_clock *c = clock_open(&device);
    assert_true((c != NULL) == (ordinal == 0)); /* NVML's stub does not know the other one */
    clock_close(c);
  }
  assert_null(clock_open(&emulator));
  dlclose(open);
}

static void test_nothing_there(void **unused) {
  (void)unused;
  static const char *const needed[] = {"nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetClockInfo"};
  static const char *const dispensable[] = {"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetPowerUsage"};
  tune_clocks clocks = {.readings = 1};
  for (size_t n = 0; n < sizeof needed / sizeof *needed; n++) {
    plant("1500:600:0x4", "0000:17:00.0", needed[n]);
    assert_null(clock_open(&gpu));
  }
  for (size_t n = 0; n < sizeof dispensable / sizeof *dispensable; n++) {
    plant("1500:600:0x4", "0000:17:00.0", dispensable[n]);
    tune_clock *c = clock_open(&gpu);
    assert_non_null(c);
    sample(c, 100, &clocks);
    assert_true(clocks.readings > 0 && clocks.sm_mhz == 1500 && clocks.power_capped == (double)n &&
                clocks.watts == (n ? 0 : 600));
    clock_close(c);
  }
  plant("1500:600:0x4", "0000:18:00.0", ""); /* another GPU */
  assert_null(clock_open(&gpu));
  plant("1500:600:0x4", "0000:17:00.0", "");
  setenv("QKV_NVML", "/nonexistent/libnvidia-ml.so.1", 1);
  assert_null(clock_open(&gpu));
  setenv("QKV_NVML", "libm.so.6", 1); /* a library, but another one */
  assert_null(clock_open(&gpu));
  sample(NULL, 0, &clocks);
  assert_true(clocks.readings == 0 && clocks.sm_mhz == 0);
  clock_close(NULL);
}

/* A stand-in of tests/fault as a shared library of the folder; its path. */
static bool build(const char *source, const char *options, const char *name, char path[256]) {
  char command[1024];
  snprintf(path, 256, "%s/%s", folder, name);
  snprintf(command, sizeof command, "cc -shared -fPIC -w %s -Wl,-soname,%s -o %s %s/tests/fault/%s", options, name,
           path, QKV_SOURCE_DIR, source);
  return system(command) == 0;
}

int main(void) {
  if (!mkdtemp(folder))
    return 1;
  if (system("cc --version >/dev/null 2>&1")) {
    rmdir(folder);
    fprintf(stderr, "no C compiler to build the stubs: skipped\n");
    return 0;
  }
  if (!build("nvml_stub.c", "", "libnvidia-ml.so.1", library) || !build("cuda_stub.c", "", "libcuda.so.1", driver) ||
      !build("nvml_stub.c", "-DNEWER", "libnvidia-ml.so.2", newer))
    return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_summary),    cmocka_unit_test(test_long_spans), cmocka_unit_test(test_merge),
      cmocka_unit_test(test_answers),    cmocka_unit_test(test_notes),      cmocka_unit_test(test_planted),
      cmocka_unit_test(test_later_name), cmocka_unit_test(test_bus),        cmocka_unit_test(test_nothing_there)};
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(library);
  unlink(driver);
  unlink(newer);
  rmdir(folder);
  return failed;
}
