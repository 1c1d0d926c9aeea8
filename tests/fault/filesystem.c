/* filesystem.c: makes the file system fail where a test wants it to.
 *
 * Either linked into a test (#include "fault/filesystem.c": the executable's functions come before libc's) or built as
 * a preload library (cc -shared -fPIC tests/fault/filesystem.c -o fault.so; LD_PRELOAD=fault.so qkvc ...).
 *
 * $QKV_FAULT is "FUNCTION:WHAT[:SKIP[:COUNT]]": after SKIP calls (0) the next COUNT calls (all) of FUNCTION fail. WHAT
 * is an errno name, "short" (write and read move half of what was asked) or "lost" (rename succeeds and the file is
 * gone). Only cache files are touched: those whose name holds ".tmp-" or ".kernel". */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
  const char *name;
  int number;
} fault_errors[] = {{"ENOSPC", ENOSPC}, {"EROFS", EROFS}, {"EIO", EIO},       {"ENOENT", ENOENT}, {"ESTALE", ESTALE},
                    {"EACCES", EACCES}, {"EBUSY", EBUSY}, {"EDQUOT", EDQUOT}, {"EINTR", EINTR}};

static unsigned char fault_watched[4096]; /* by file descriptor */
static int fault_calls;                   /* of the function named by $QKV_FAULT */

static void fault_set(const char *what) {
  fault_calls = 0;
  if (what)
    setenv("QKV_FAULT", what, 1);
  else
    unsetenv("QKV_FAULT");
}

/* NULL when this call is to work; else WHAT. */
static const char *fault_of(const char *function) {
  static char what[32];
  char name[32];
  int skip = 0, count = 1 << 30;
  const char *setting = getenv("QKV_FAULT");
  if (!setting || sscanf(setting, "%31[^:]:%31[^:]:%d:%d", name, what, &skip, &count) < 2 || strcmp(name, function))
    return NULL;
  int call = fault_calls++;
  return call >= skip && call - skip < count ? what : NULL;
}

static int fault_errno(const char *what) {
  for (size_t n = 0; n < sizeof fault_errors / sizeof *fault_errors; n++)
    if (!strcmp(fault_errors[n].name, what))
      return fault_errors[n].number;
  return 0;
}

static int fault_path(const char *path) {
  return strstr(path, ".tmp-") || strstr(path, ".kernel");
}

static int fault_fd(int fd) {
  return fd >= 0 && fd < (int)sizeof fault_watched && fault_watched[fd];
}

/* Sets errno and gives 1 when the call is to fail with an errno. */
static int fault_fails(int watched, const char *function, const char **what) {
  *what = watched ? fault_of(function) : NULL;
  int number = *what ? fault_errno(*what) : 0;
  if (number)
    errno = number;
  return number != 0;
}

int open(const char *path, int flags, ...) {
  const char *what;
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
  }
  if (fault_fails(fault_path(path), "open", &what))
    return -1;
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  if (fd >= 0 && fd < (int)sizeof fault_watched)
    fault_watched[fd] = (unsigned char)fault_path(path);
  return fd;
}

ssize_t write(int fd, const void *bytes, size_t size) {
  const char *what;
  if (fault_fails(fault_fd(fd), "write", &what))
    return -1;
  return syscall(SYS_write, fd, bytes, what && size > 1 ? size / 2 : size);
}

ssize_t read(int fd, void *bytes, size_t size) {
  const char *what;
  if (fault_fails(fault_fd(fd), "read", &what))
    return -1;
  return syscall(SYS_read, fd, bytes, what && size > 1 ? size / 2 : size);
}

int fsync(int fd) {
  const char *what;
  return fault_fails(fault_fd(fd), "fsync", &what) ? -1 : (int)syscall(SYS_fsync, fd);
}

int close(int fd) {
  const char *what;
  int fails = fault_fails(fault_fd(fd), "close", &what), error = errno;
  if (fd >= 0 && fd < (int)sizeof fault_watched)
    fault_watched[fd] = 0;
  int result = (int)syscall(SYS_close, fd);
  if (fails)
    errno = error;
  return fails ? -1 : result;
}

int rename(const char *from, const char *to) {
  const char *what;
  if (fault_fails(fault_path(to), "rename", &what))
    return -1;
  int result = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
  if (what) /* "lost" */
    syscall(SYS_unlinkat, AT_FDCWD, to, 0);
  return result;
}
