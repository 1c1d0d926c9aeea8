/* compiler_nvrtc.c: CUDA source to cubin, in this process.
 *
 * Always for a real architecture, so that the result is machine code: it runs on any driver of the same major version
 * and the driver compiles nothing at load. NVRTC's own cache is off (a hit has an empty log), as are precompiled
 * headers (processes race for them) and its change of the stack limit (a process-wide setting). Any number of threads
 * may compile at once. */
#define _GNU_SOURCE /* strchrnul */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compile_log.h"
#include "device.h"
#include "error.h"
#include "nvrtc_library.h"
#include "text.h"

#define LINE_INFO "-lineinfo"

/* Options beside the architecture, with the first version that knows them (major * 100 + minor). */
static const struct option {
  int since;
  const char *text;
} options[] = {
    {0, "--std=c++17"},
    {0, "--modify-stack-limit=false"}, /* it is the process's, and other threads live in it */
    {0, "--ptxas-options=-v"},         /* registers and spills in the log */
    {0, LINE_INFO},                    /* profilers show the generated source */
    {1204, "--minimal"},               /* no textures, surfaces, dynamic parallelism */
    {1209, "--no-cache"},
    {1209, "--frandom-seed=qkv"},
};
enum { OPTIONS = sizeof options / sizeof *options };

static const char program_name[] = "kernel.cu";

/* The options this NVRTC knows, into list[1..]; list[0] is left for the architecture. Returns the count with it. bare:
 * without line numbers. */
static int choose_options(const nvrtc_library *n, bool bare, const char *list[OPTIONS + 1]) {
  int count = 1;
  for (int o = 0; o < OPTIONS; o++)
    if (n->major * 100 + n->minor >= options[o].since && !(bare && !strcmp(options[o].text, LINE_INFO)))
      list[count++] = options[o].text;
  return count;
}

static qkv_status identity(bool bare, char *out, size_t size) {
  const nvrtc_library *n;
  qkv_status status = nvrtc_get(&n);
  if (status != QKV_OK)
    return status;
  const char *list[OPTIONS + 1];
  int count = choose_options(n, bare, list);
  XXH64_hash_t stamp = n->stamp;
  for (int o = 1; o < count; o++)
    stamp = XXH3_64bits_withSeed(list[o], strlen(list[o]), stamp);
  snprintf(out, size, "NVRTC %d.%d build %016llx", n->major, n->minor, (unsigned long long)stamp);
  return QKV_OK;
}

static qkv_status nvrtc_identity(char *out, size_t size) {
  return identity(false, out, size);
}
static qkv_status bare_identity(char *out, size_t size) {
  return identity(true, out, size);
}

static qkv_status unknown_arch(const nvrtc_library *n, const char *arch) {
  int count = 0;
  text known = {0};
  if (n->arch_count(&count) == NVRTC_SUCCESS && count > 0) {
    int *list = calloc((size_t)count, sizeof *list);
    if (list && n->archs(list) == NVRTC_SUCCESS)
      for (int a = 0; a < count; a++)
        text_printf(&known, "%ssm_%d", a ? ", " : "", list[a]);
    free(list);
  }
  qkv_status status = error_set(QKV_UNKNOWN_ARCH,
                                "NVRTC %d.%d (%s) cannot compile for '%s'; it supports %s and their suffixed forms "
                                "(sm_90a). Choose one of these, or install a newer CUDA toolkit",
                                n->major, n->minor, n->path, arch, known.bytes ? known.bytes : "(unknown)");
  text_free(&known);
  return status;
}

/* The log without the line of ptxas that holds a time: equal inputs give equal logs. NULL when memory is out. */
static char *read_log(const nvrtc_library *n, nvrtcProgram program) {
  size_t size = 0;
  if (n->log_size(program, &size) != NVRTC_SUCCESS)
    size = 0;
  char *log = calloc(1, size + 1);
  if (!log || !size || n->log(program, log) != NVRTC_SUCCESS)
    return log;
  for (char *time; (time = strstr(log, "ptxas info    : Compile time = "));) {
    char *end = strchrnul(time, '\n');
    memmove(time, *end ? end + 1 : end, strlen(*end ? end + 1 : end) + 1);
  }
  return log;
}

static qkv_status compile_failed(const nvrtc_library *n, nvrtcResult result, const char *arch, const char *log) {
  if (result == NVRTC_ERROR_OUT_OF_MEMORY)
    return error_set(QKV_OUT_OF_MEMORY, "NVRTC ran out of memory");
  if (result == NVRTC_ERROR_INVALID_OPTION && strstr(log, "gpu-architecture"))
    return unknown_arch(n, arch);
  if (result == NVRTC_ERROR_BUILTIN || strstr(log, "libnvrtc-builtins"))
    return error_set(QKV_NO_COMPILER, "NVRTC %d.%d (%s) cannot open its companion libnvrtc-builtins.so.%d.%d: %s",
                     n->major, n->minor, n->path, n->major, n->minor, log);
  /* Too much static shared memory is the one refusal that ptxas leaves without a word. */
  const char *silent =
      strstr(log, "error") || strstr(log, "fatal")
          ? ""
          : "(the log names no error: most often more static shared memory than the architecture has)\n";
  return error_set(QKV_COMPILE_ERROR, "NVRTC %d.%d refused the source for %s (%s):\n%s%s", n->major, n->minor, arch,
                   n->error_string(result), silent, log);
}

static int nvrtc_plausible(const void *image, size_t size) {
  return size >= 64 && memcmp(image, "\177ELF", 4) == 0;
}

static qkv_status read_cubin(const nvrtc_library *n, nvrtcProgram program, const char *arch, device_image *image) {
  size_t size = 0;
  nvrtcResult result = n->cubin_size(program, &size);
  if (result != NVRTC_SUCCESS || size == 0)
    return error_set(QKV_COMPILE_ERROR, "NVRTC %d.%d made no machine code for '%s' (a virtual architecture?)", n->major,
                     n->minor, arch);
  char *bytes = malloc(size);
  if (!bytes)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (n->cubin(program, bytes) != NVRTC_SUCCESS || !nvrtc_plausible(bytes, size)) {
    free(bytes);
    return error_set(QKV_COMPILE_ERROR, "NVRTC %d.%d returned %zu bytes that are no cubin", n->major, n->minor, size);
  }
  image->bytes = bytes;
  image->size = size;
  return QKV_OK;
}

static qkv_status compile(const char *source, const char *arch, bool bare, device_image *image) {
  const nvrtc_library *n;
  *image = (device_image){0};
  qkv_status status = nvrtc_get(&n);
  if (status != QKV_OK)
    return status;
  if (strncmp(arch, "sm_", 3)) /* compute_NN would give PTX */
    return unknown_arch(n, arch);
  char target[64];
  snprintf(target, sizeof target, "--gpu-architecture=%s", arch);
  const char *list[OPTIONS + 1];
  int count = choose_options(n, bare, list);
  list[0] = target;

  nvrtcProgram program = NULL;
  nvrtcResult result = n->create(&program, source, program_name, 0, NULL, NULL);
  if (result != NVRTC_SUCCESS)
    return error_set(QKV_COMPILE_ERROR, "nvrtcCreateProgram: %s", n->error_string(result));
  result = n->compile(program, count, list);
  image->log = read_log(n, program);
  if (!image->log)
    status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  else if (result != NVRTC_SUCCESS)
    status = compile_failed(n, result, arch, image->log);
  else
    status = read_cubin(n, program, arch, image);
  n->destroy(&program);
  return status;
}

static qkv_status nvrtc_compile(const char *source, const char *arch, device_image *image) {
  return compile(source, arch, false, image);
}
static qkv_status bare_compile(const char *source, const char *arch, device_image *image) {
  return compile(source, arch, true, image);
}

const compiler_ops compiler_nvrtc = {.name = "nvrtc",
                                     .identity = nvrtc_identity,
                                     .compile = nvrtc_compile,
                                     .resources = log_resources,
                                     .plausible = nvrtc_plausible};
const compiler_ops compiler_nvrtc_bare = {.name = "nvrtc",
                                          .identity = bare_identity,
                                          .compile = bare_compile,
                                          .resources = log_resources,
                                          .plausible = nvrtc_plausible};
