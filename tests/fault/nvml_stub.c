/* nvml_stub.c: an NVML with planted clocks, built by tests as a shared library for $QKV_NVML. It knows one GPU,
 * 0000:17:00.0, at memory clock 3201 MHz.
 *
 * $QKV_STUB_NVML is "MHZ:WATTS:REASONS,...": what readings find, in turn and over again. $QKV_STUB_NVML_FAIL is a
 * SYMBOL: that function fails. nvml_stub_open: calls of nvmlInit_v2 without one of nvmlShutdown. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nvml_stub_open;
static unsigned mhz = 1980, watts = 300;
static unsigned long long reasons;
static const char *next;

static int fails(const char *symbol) {
  const char *setting = getenv("QKV_STUB_NVML_FAIL");
  return setting && !strcmp(setting, symbol) ? 999 : 0; /* NVML_ERROR_UNKNOWN */
}

/* The next reading. */
static void advance(void) {
  const char *all = getenv("QKV_STUB_NVML");
  if (!next || !*next)
    next = all;
  if (!next || sscanf(next, "%u:%u:%lli", &mhz, &watts, (long long *)&reasons) != 3)
    return;
  next = strchr(next, ',');
  next = next ? next + 1 : NULL;
}

#define STUB(symbol, parameters, ...)                                                                                  \
  int symbol parameters;                                                                                               \
  int symbol parameters {                                                                                              \
    if (fails(#symbol))                                                                                                \
      return fails(#symbol);                                                                                           \
    __VA_ARGS__;                                                                                                       \
    return 0;                                                                                                          \
  }

STUB(nvmlInit_v2, (void), nvml_stub_open++)
STUB(nvmlShutdown, (void), nvml_stub_open--)
STUB(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus, void **out), if (strcmp(bus, "0000:17:00.0")) return 6;
     *out = &mhz)
STUB(nvmlDeviceGetClockInfo, (void *device, int type, unsigned *out),
     if (device != &mhz || type < 1 || type > 2) return 2;
     if (type == 1) advance(); *out = type == 1 ? mhz : 3201)
#ifdef NEWER /* the name of later drivers alone */
#define nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetCurrentClocksEventReasons
#endif
STUB(nvmlDeviceGetCurrentClocksThrottleReasons, (void *device, unsigned long long *out), *out = reasons)
STUB(nvmlDeviceGetPowerUsage, (void *device, unsigned *out), *out = 1000 * watts)
