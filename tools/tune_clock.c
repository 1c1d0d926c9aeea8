/* tune_clock.c: see tune_clock.h. The declarations repeat NVML's binary interface, which NVIDIA keeps stable. */
#include "tune_clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "tune_stats.h"

/* nvmlClockType_t and bits of nvmlClocksEventReasons. The general one for hardware slowdowns (0x8) is left out: one
 * that says why stands beside it. */
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2 };
enum { POWER_REASONS = 0x4 | 0x80, THERMAL_REASONS = 0x20 | 0x40 }; /* by software, by hardware */
enum { READINGS = 4096, PERIOD_MS = 5, LEAST_QUARTERED = 8 };

typedef struct nvml_device *nvml_device;

/* X(name, symbol, parameters): every function used. */
#define NVML_FUNCTIONS(X)                                                                                              \
  X(init, nvmlInit_v2, (void))                                                                                         \
  X(shutdown, nvmlShutdown, (void))                                                                                    \
  X(device_by_bus, nvmlDeviceGetHandleByPciBusId_v2, (const char *bus, nvml_device *out))                              \
  X(clock, nvmlDeviceGetClockInfo, (nvml_device device, int type, unsigned *mhz))                                      \
  X(reasons, nvmlDeviceGetCurrentClocksThrottleReasons, (nvml_device device, unsigned long long *bits))                \
  X(power, nvmlDeviceGetPowerUsage, (nvml_device device, unsigned *milliwatts))

typedef struct reading {
  double sm_mhz, memory_mhz, watts;
  unsigned long long reasons;
} reading;

struct tune_clock {
  void *library;
#define X(name, symbol, parameters) int(*name) parameters;
  NVML_FUNCTIONS(X)
#undef X
  nvml_device device;
  pthread_t thread;
  bool running;
  atomic_bool stopping;
  int count, period_ms;
  reading readings[READINGS]; /* in the order of time, equally far apart */
};

/* ---- Opening ---- */

/* The driver's name of a GPU, such as "0000:17:00.0", from the driver that the engine has open. */
static bool find_bus(const qkv_device_info *device, char bus[32]) {
  const char *given = getenv("QKV_NVML_BUS");
  if (given && *given)
    return snprintf(bus, 32, "%s", given) < 32;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  int (*get)(int *handle, int ordinal), (*name)(char *text, int size, int handle);
  void *symbols[2] = {driver ? dlsym(driver, "cuDeviceGet") : NULL,
                      driver ? dlsym(driver, "cuDeviceGetPCIBusId") : NULL};
  memcpy(&get, &symbols[0], sizeof get);
  memcpy(&name, &symbols[1], sizeof name);
  int handle;
  const bool ok = get && name && get(&handle, device->ordinal) == 0 && name(bus, 32, handle) == 0;
  if (driver)
    dlclose(driver);
  return ok;
}

/* NULL: not there. Drivers from 535 on have the reasons under another name, too, which may outlive the one used here.
 */
static void *find_function(void *library, const char *symbol) {
  void *address = dlsym(library, symbol);
  if (!address && !strcmp(symbol, "nvmlDeviceGetCurrentClocksThrottleReasons"))
    address = dlsym(library, "nvmlDeviceGetCurrentClocksEventReasons");
  return address;
}

/* Whether every function is there. */
static bool find_functions(tune_clock *c) {
  void *address;
#define X(name, symbol, parameters)                                                                                    \
  if (!(address = find_function(c->library, #symbol)))                                                                 \
    return false;                                                                                                      \
  memcpy(&c->name, &address, sizeof address);
  NVML_FUNCTIONS(X)
#undef X
  return true;
}

static tune_clock *refuse(tune_clock *c, const char *format, const char *detail) {
  char why[512];
  snprintf(why, sizeof why, format, detail);
  cli_note("clocks are not read: %s", why);
  if (c && c->library)
    dlclose(c->library);
  free(c);
  return NULL;
}

tune_clock *clock_open(const qkv_device_info *device) {
  const char *given = getenv("QKV_NVML"), *bus_given = getenv("QKV_NVML_BUS");
  const char *file = given && *given ? given : "libnvidia-ml.so.1";
  char bus[32];
  if (strcmp(device->kind, "cuda") != 0 && !(bus_given && *bus_given))
    return NULL;
  if (!find_bus(device, bus))
    return refuse(NULL, "%s has no PCI bus id", device->name);
  tune_clock *c = calloc(1, sizeof *c);
  if (!c)
    return refuse(c, "%s", "out of memory");
  c->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!c->library) {
    const char *why = dlerror();
    return refuse(c, "%s", why ? why : file);
  }
  if (!find_functions(c))
    return refuse(c, "%s lacks a function of NVML", file);
  if (c->init())
    return refuse(c, "%s cannot be initialised", file);
  unsigned mhz;
  if (c->device_by_bus(bus, &c->device) == 0 && c->clock(c->device, NVML_CLOCK_SM, &mhz) == 0)
    return c;
  c->shutdown();
  return refuse(c, "NVML tells none of %s", bus);
}

void clock_close(tune_clock *c) {
  tune_clocks unused;
  if (!c)
    return;
  clock_stop(c, &unused);
  c->shutdown();
  dlclose(c->library);
  free(c);
}

/* ---- Reading ---- */

/* Adds one; when there is no more room every other one goes, and the next ones come half as often. */
static void keep_reading(tune_clock *c, const reading *r) {
  if (c->count == READINGS) {
    for (int n = 0; n < READINGS / 2; n++)
      c->readings[n] = c->readings[2 * n];
    c->count = READINGS / 2;
    c->period_ms *= 2;
  }
  c->readings[c->count++] = *r;
}

/* One without the SM clock is none; what else the device does not tell is 0. */
static void take_reading(tune_clock *c) {
  unsigned sm = 0, memory = 0, milliwatts = 0;
  unsigned long long reasons = 0;
  if (c->clock(c->device, NVML_CLOCK_SM, &sm) || !sm)
    return;
  if (c->clock(c->device, NVML_CLOCK_MEMORY, &memory))
    memory = 0;
  if (c->power(c->device, &milliwatts))
    milliwatts = 0;
  if (c->reasons(c->device, &reasons))
    reasons = 0;
  keep_reading(c, &(reading){sm, memory, 1e-3 * milliwatts, reasons});
}

static void *read_on(void *user) {
  tune_clock *c = user;
  for (int waited = 0; !atomic_load(&c->stopping);) {
    nanosleep(&(struct timespec){0, PERIOD_MS * 1000000L}, NULL);
    waited += PERIOD_MS;
    if (waited < c->period_ms)
      continue;
    take_reading(c);
    waited = 0;
  }
  return NULL;
}

void clock_start(tune_clock *c) {
  if (!c || c->running)
    return;
  c->count = 0;
  c->period_ms = PERIOD_MS;
  atomic_store(&c->stopping, false);
  c->running = pthread_create(&c->thread, NULL, read_on, c) == 0;
}

/* ---- What was read ---- */

/* The median of one field of some readings: a double that lies `offset` bytes in. */
static double median_of(const reading *from, int count, size_t offset) {
  double values[READINGS];
  for (int n = 0; n < count; n++)
    memcpy(&values[n], (const char *)&from[n] + offset, sizeof *values);
  stats_sort(values, count);
  return stats_quantile_sorted(values, count, 0.5);
}

static void summarise(const reading *r, int count, tune_clocks *out) {
  *out = (tune_clocks){.readings = count};
  if (!count)
    return;
  const size_t sm = offsetof(reading, sm_mhz);
  out->sm_mhz = median_of(r, count, sm);
  out->memory_mhz = median_of(r, count, offsetof(reading, memory_mhz));
  out->watts = median_of(r, count, offsetof(reading, watts));
  out->sm_low = out->sm_high = r[0].sm_mhz;
  for (int n = 0; n < count; n++) {
    out->sm_low = r[n].sm_mhz < out->sm_low ? r[n].sm_mhz : out->sm_low;
    out->sm_high = r[n].sm_mhz > out->sm_high ? r[n].sm_mhz : out->sm_high;
    out->power_capped += (r[n].reasons & POWER_REASONS) != 0;
    out->thermal_capped += (r[n].reasons & THERMAL_REASONS) != 0;
  }
  out->power_capped /= count;
  out->thermal_capped /= count;
  if (count < LEAST_QUARTERED)
    return;
  out->sm_first = median_of(r, count / 4, sm);
  out->sm_last = median_of(r + count - count / 4, count / 4, sm);
}

void clock_stop(tune_clock *c, tune_clocks *out) {
  *out = (tune_clocks){0};
  if (!c || !c->running)
    return;
  atomic_store(&c->stopping, true);
  pthread_join(c->thread, NULL);
  c->running = false;
  summarise(c->readings, c->count, out);
}

void clocks_merge(const tune_clocks *spans, int count, tune_clocks *out) {
  double *medians = malloc(3 * (size_t)(count + 1) * sizeof *medians);
  double *memory = medians + count, *watts = memory + count;
  int read = 0, nmemory = 0, nwatts = 0;
  *out = (tune_clocks){0};
  for (int n = 0; medians && n < count; n++) {
    const tune_clocks *s = &spans[n];
    if (!s->readings)
      continue;
    medians[read] = s->sm_mhz;
    if (s->memory_mhz > 0)
      memory[nmemory++] = s->memory_mhz;
    if (s->watts > 0)
      watts[nwatts++] = s->watts;
    out->sm_low = !read || s->sm_low < out->sm_low ? s->sm_low : out->sm_low;
    out->sm_high = s->sm_high > out->sm_high ? s->sm_high : out->sm_high;
    out->power_capped += s->power_capped * s->readings;
    out->thermal_capped += s->thermal_capped * s->readings;
    out->readings += s->readings;
    read++;
  }
  if (read) {
    out->sm_mhz = stats_median(medians, read);
    out->memory_mhz = nmemory ? stats_median(memory, nmemory) : 0;
    out->watts = nwatts ? stats_median(watts, nwatts) : 0;
    out->power_capped /= out->readings;
    out->thermal_capped /= out->readings;
  }
  free(medians);
}

double clocks_drift(const tune_clocks *c) {
  return c->sm_first > 0 && c->sm_last > 0 ? c->sm_last / c->sm_first - 1 : 0;
}

/* ---- In answers ---- */

static const struct {
  const char *key;
  size_t offset;
} fields[] = {{"sm_mhz", offsetof(tune_clocks, sm_mhz)},
              {"sm_mhz_low", offsetof(tune_clocks, sm_low)},
              {"sm_mhz_high", offsetof(tune_clocks, sm_high)},
              {"sm_mhz_first", offsetof(tune_clocks, sm_first)},
              {"sm_mhz_last", offsetof(tune_clocks, sm_last)},
              {"memory_mhz", offsetof(tune_clocks, memory_mhz)},
              {"watts", offsetof(tune_clocks, watts)},
              {"power_capped", offsetof(tune_clocks, power_capped)},
              {"thermal_capped", offsetof(tune_clocks, thermal_capped)}};
enum { FIELDS = sizeof fields / sizeof *fields };

void clocks_put(record_writer *w, const tune_clocks *clocks) {
  if (!clocks->readings)
    return;
  record_put_number(w, "clock_readings", clocks->readings);
  for (int n = 0; n < FIELDS; n++)
    record_put_number(w, fields[n].key, *(const double *)(const void *)((const char *)clocks + fields[n].offset));
}

void clocks_get(const record *answer, tune_clocks *out) {
  *out = (tune_clocks){.readings = (int)record_number(answer, "clock_readings", 0)};
  for (int n = 0; n < FIELDS && out->readings; n++)
    *(double *)(void *)((char *)out + fields[n].offset) = record_number(answer, fields[n].key, 0);
}
