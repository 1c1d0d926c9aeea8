/* qkv_status.c: names, versions, and the small helpers of the facade. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "qkv_internal.h"

#define STRING(x) #x
#define VERSION(major, minor, patch)                                                                                   \
  STRING(major) "." STRING(minor) "." STRING(patch) /* arguments are expanded first */

const char *qkv_version(void) {
  return VERSION(QKV_VERSION_MAJOR, QKV_VERSION_MINOR, QKV_VERSION_PATCH);
}

const char *qkv_status_name(qkv_status status) {
  switch (status) {
  case QKV_OK:
    return "ok";
  case QKV_INVALID_ARGUMENT:
    return "invalid argument";
  case QKV_OUT_OF_MEMORY:
    return "out of memory";
  case QKV_IO:
    return "input/output error";
  case QKV_BAD_SPEC:
    return "bad spec";
  case QKV_UNSUPPORTED:
    return "unsupported";
  case QKV_BAD_SCHEDULE:
    return "bad schedule";
  case QKV_UNKNOWN_ARCH:
    return "unknown architecture";
  case QKV_TEMPLATE_ERROR:
    return "template error";
  case QKV_COMPILE_ERROR:
    return "compile error";
  case QKV_NOT_PREPARED:
    return "not prepared";
  case QKV_NO_COMPILER:
    return "no compiler";
  case QKV_NO_DEVICE:
    return "no device";
  case QKV_DEVICE_ERROR:
    return "device error";
  case QKV_CAPTURING:
    return "stream is captured";
  case QKV_INTERNAL:
    return "internal error";
  }
  return "unknown status";
}

const char *qkv_last_error(const qkv_engine *engine) {
  (void)engine;
  return error_message();
}

void qkv_string_free(char *string) {
  free(string);
}

qkv_tensor qkv_tensor_dense(void *data, qkv_dtype dtype, int rank, const int64_t *shape) {
  qkv_tensor t = {.data = data, .dtype = dtype, .rank = rank};
  int64_t stride = 1;
  for (int d = (rank > 5 ? 5 : rank) - 1; d >= 0; d--) {
    t.shape[d] = shape[d];
    t.stride[d] = stride;
    /* An absurd shape must not overflow here; it is refused where it is used. */
    if (__builtin_mul_overflow(stride, shape[d] > 0 ? shape[d] : 1, &stride))
      stride = INT64_MAX;
  }
  return t;
}

qkv_status struct_take(void *known, size_t known_size, const void *from, const char *name) {
  size_t given;
  if (!from)
    return QKV_OK;
  memcpy(&given, from, sizeof given);
  if (given < sizeof given)
    return error_set(QKV_INVALID_ARGUMENT, "%s.size is not set; initialise the struct with its _INIT macro", name);
  memcpy(known, from, given < known_size ? given : known_size);
  return QKV_OK;
}

qkv_status struct_give(void *to, const void *known, size_t known_size, const char *name) {
  size_t wanted;
  if (!to)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", name);
  memcpy(&wanted, to, sizeof wanted);
  if (wanted < sizeof wanted)
    return error_set(QKV_INVALID_ARGUMENT, "%s.size is not set; set it to sizeof the struct", name);
  size_t bytes = wanted < known_size ? wanted : known_size;
  memcpy((char *)to + sizeof wanted, (const char *)known + sizeof wanted, bytes - sizeof wanted);
  return QKV_OK;
}

qkv_status gen_failed(const gen_error *error) {
  static const qkv_status statuses[] = {
      [GEN_OK] = QKV_OK,
      [GEN_BAD_SPEC] = QKV_BAD_SPEC,
      [GEN_UNSUPPORTED] = QKV_UNSUPPORTED,
      [GEN_BAD_SCHEDULE] = QKV_BAD_SCHEDULE,
      [GEN_UNKNOWN_ARCH] = QKV_UNKNOWN_ARCH,
      [GEN_TEMPLATE] = QKV_TEMPLATE_ERROR,
      [GEN_IO] = QKV_IO,
      [GEN_NO_MEMORY] = QKV_OUT_OF_MEMORY,
      [GEN_INTERNAL] = QKV_INTERNAL,
  };
  size_t n = (size_t)error->status;
  return error_set(n < sizeof statuses / sizeof *statuses ? statuses[n] : QKV_INTERNAL, "%s", error->message);
}

qkv_status text_give(text *t, char **out) {
  if (!t->bytes && !t->failed)
    text_puts(t, "");
  if (t->failed || !t->bytes) {
    text_free(t);
    *out = NULL;
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  *out = t->bytes;
  *t = (text){0};
  return QKV_OK;
}

void text_fixed(text *t, double value, int digits) {
  double unit = 1;
  for (int n = 0; n < digits; n++)
    unit *= 10;
  double scaled = fabs(value) * unit;
  if (!(scaled < 9e18)) { /* too large for the split below, infinite or NaN */
    text_double(t, value);
    return;
  }
  unsigned long long whole = (unsigned long long)(scaled + 0.5), step = (unsigned long long)unit;
  text_printf(t, "%s%llu", value < 0 && whole ? "-" : "", whole / step);
  if (digits > 0)
    text_printf(t, ".%0*llu", digits, whole % step);
}

int cores(void) {
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count < 1 ? 1 : count > 4096 ? 4096 : (int)count;
}

double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
