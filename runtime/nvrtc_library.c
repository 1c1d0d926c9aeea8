/* nvrtc_library.c: finds NVRTC where people have it.
 *
 * NVRTC opens libnvrtc-builtins by its bare name, which fails when the two lie in a folder the loader does not know (a
 * wheel, a relocated toolkit). So the copy next to NVRTC is opened by its full path first; the loader then finds it by
 * name. */
#define _GNU_SOURCE /* strverscmp, dladdr */
#include "nvrtc_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "error.h"
#include "text.h"

static const char *const file_names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
enum { FILE_NAMES = sizeof file_names / sizeof *file_names };

/* Folders, as glob patterns, in order of search; the newest match of a pattern comes first. */
static const struct folder {
  const char *variable; /* the pattern starts with its value; skipped when unset */
  const char *pattern;
} folders[] = {
    {"CUDA_HOME", "/lib64"},
    {"CUDA_HOME", "/lib"},
    {"CUDA_PATH", "/lib64"},
    {"CUDA_PATH", "/lib"},
    {NULL, "/usr/local/cuda*/lib64"},
    {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
    {"CONDA_PREFIX", "/lib"},
    {"CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/*/lib"},
    {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/usr/local/lib/python3*/dist-packages/nvidia/*/lib"},
    {NULL, "/usr/local/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/usr/lib/python3*/dist-packages/nvidia/*/lib"},
    {NULL, "/usr/lib/python3*/site-packages/nvidia/*/lib"},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvrtc_library library;
static int found;
static text tried; /* one line per place: what it is and why not */

static void note(const char *place, const char *why) {
  text_printf(&tried, "\n  %s: %s", place, why);
}

/* A hash of the file's size, head and tail: cheap, and different for every build of the library. */
static uint64_t stamp_of(const char *path) {
  enum { PIECE = 65536 };
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat st;
  if (fd < 0)
    return 0;
  unsigned char *piece = malloc(2 * PIECE);
  uint64_t stamp = 0;
  if (piece && fstat(fd, &st) == 0) {
    ssize_t head = pread(fd, piece, PIECE, 0);
    ssize_t tail = pread(fd, piece + (head > 0 ? head : 0), PIECE, st.st_size > PIECE ? st.st_size - PIECE : 0);
    size_t size = (size_t)(head > 0 ? head : 0) + (size_t)(tail > 0 ? tail : 0);
    stamp = XXH3_64bits_withSeed(piece, size, (XXH64_hash_t)st.st_size);
  }
  free(piece);
  close(fd);
  return stamp;
}

static void preload_builtins(const char *path, int major, int minor) {
  const char *slash = strrchr(path, '/');
  char file[4200];
  if (!slash)
    return;
  snprintf(file, sizeof file, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - path), path, major, minor);
  dlopen(file, RTLD_NOW | RTLD_LOCAL); /* absent: NVRTC tries by itself and says so */
}

/* Takes the opened library when it has all functions and is not too old. */
static int adopt(void *handle, const char *place) {
  nvrtc_library candidate = {0};
#define X(name, symbol, parameters)                                                                                    \
  {                                                                                                                    \
    void *address = dlsym(handle, #symbol);                                                                            \
    if (!address)                                                                                                      \
      return note(place, "lacks " #symbol), 0;                                                                         \
    memcpy(&candidate.name, &address, sizeof address);                                                                 \
  }
  NVRTC_FUNCTIONS(X)
#undef X
  void *address = dlsym(handle, "nvrtcGetErrorString");
  Dl_info where;
  if (!address || !dladdr(address, &where) || !where.dli_fname)
    return note(place, "lacks nvrtcGetErrorString"), 0;
  memcpy(&candidate.error_string, &address, sizeof address);
  if (candidate.version(&candidate.major, &candidate.minor) != NVRTC_SUCCESS)
    return note(place, "does not tell its version"), 0;
  if (candidate.major < 12) {
    text_printf(&tried, "\n  %s: is version %d.%d, which is too old; 12.0 is needed", place, candidate.major,
                candidate.minor);
    return 0;
  }
  char *real = realpath(where.dli_fname, NULL);
  snprintf(candidate.path, sizeof candidate.path, "%s", real ? real : where.dli_fname);
  free(real);
  candidate.stamp = stamp_of(candidate.path);
  preload_builtins(where.dli_fname, candidate.major, candidate.minor);
  library = candidate;
  return found = 1;
}

static int try_open(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle)
    return adopt(handle, path);
  const char *why = dlerror();
  note(path, why && strstr(why, "No such file") ? "not there" : why ? why : "cannot be opened");
  return 0;
}

static int newest_first(const void *a, const void *b) {
  return strverscmp(*(char *const *)b, *(char *const *)a);
}

static int try_folder(const struct folder *f) {
  const char *root = f->variable ? getenv(f->variable) : "";
  if (!root || (f->variable && !*root))
    return 0;
  text pattern = {0};
  text_printf(&pattern, "%s%s/libnvrtc.so.*", root, f->pattern);
  glob_t matches = {0};
  int result = pattern.failed ? GLOB_NOSPACE : glob(pattern.bytes, 0, NULL, &matches), taken = 0;
  if (result == 0) {
    qsort(matches.gl_pathv, matches.gl_pathc, sizeof *matches.gl_pathv, newest_first);
    for (size_t n = 0; n < matches.gl_pathc && !taken; n++) {
      const char *name = strrchr(matches.gl_pathv[n], '/') + 1;
      for (int file = 0; file < FILE_NAMES && !taken; file++)
        if (!strcmp(name, file_names[file]))
          taken = try_open(matches.gl_pathv[n]);
    }
  } else {
    note(pattern.bytes ? pattern.bytes : f->pattern, "nothing there");
  }
  globfree(&matches);
  text_free(&pattern);
  return taken;
}

static void find(void) {
  const char *explicit_path = getenv("QKV_NVRTC");
  if (explicit_path && *explicit_path) {
    if (!try_open(explicit_path))
      text_puts(&tried, "\n  ($QKV_NVRTC is set, so nothing else was tried)");
    return;
  }
  for (int n = 0; n < FILE_NAMES; n++) {
    void *handle = dlopen(file_names[n], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle && adopt(handle, file_names[n]))
      return;
  }
  for (int n = 0; n < FILE_NAMES; n++)
    if (try_open(file_names[n]))
      return;
  for (size_t n = 0; n < sizeof folders / sizeof *folders; n++)
    if (try_folder(&folders[n]))
      return;
}

qkv_status nvrtc_get(const nvrtc_library **out) {
  pthread_once(&once, find);
  *out = found ? &library : NULL;
  if (found)
    return QKV_OK;
  return error_set(QKV_NO_COMPILER,
                   "NVRTC, CUDA's run-time compiler, was not found. Install a CUDA toolkit, or `pip install "
                   "nvidia-cuda-nvrtc`, or set QKV_NVRTC to the path of libnvrtc.so.13. Tried:%s",
                   tried.bytes ? tried.bytes : "");
}
