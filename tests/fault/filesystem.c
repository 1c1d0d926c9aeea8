/* filesystem.c: makes the file system fail where a test wants it to.
 *
 * Either linked into a test (#include "fault/filesystem.c": the executable's functions come before libc's) or built as
 * a preload library (cc -shared -fPIC -D_GNU_SOURCE tests/fault/filesystem.c -o fault.so; LD_PRELOAD=fault.so qkvc
 * ...).
 *
 * $QKV_FAULT is "FUNCTION:WHAT[:SKIP[:COUNT]]": after SKIP calls (0) the next COUNT calls (all) of FUNCTION fail. WHAT
 * is ERRNO    it does nothing and fails          +ERRNO  it is done, and fails all the same (a reply that got lost)
 *   short    half of what was asked is moved    zero    nothing is moved, and no error
 *   lost     rename: succeeds, and the file is gone
 *   kill     the process is killed before it    +kill   after it    torn  in its middle: half of it is written
 * Only the cache's files are touched: those in or below $QKV_FAULT_UNDER and that folder itself; without the variable
 * files whose name holds ".tmp-" or ".kernel". */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
  const char *name;
  int number;
} fault_errors[] = {{"ENOSPC", ENOSPC}, {"EROFS", EROFS}, {"EIO", EIO},       {"ENOENT", ENOENT},
                    {"ESTALE", ESTALE}, {"EPERM", EPERM}, {"EACCES", EACCES}, {"EBUSY", EBUSY},
                    {"EDQUOT", EDQUOT}, {"EINTR", EINTR}, {"EMFILE", EMFILE}, {"ENOLCK", ENOLCK}};

static unsigned char fault_watched[4096]; /* by file descriptor */
static int fault_calls;                   /* of the function named by $QKV_FAULT, by this process */
static int fault_hits;                    /* those of them that failed */

/* FAULT_UNUSED: a preload library has no use for what tests call. */
#define FAULT_UNUSED __attribute__((unused))

FAULT_UNUSED static void fault_set(const char *what) {
  fault_calls = fault_hits = 0;
  if (what)
    setenv("QKV_FAULT", what, 1);
  else
    unsetenv("QKV_FAULT");
}

/* What libc does. */
#define FAULT_REAL(function) ((__typeof__(&(function)))(uintptr_t)dlsym(RTLD_NEXT, #function))

/* How a call is to go; all zero: as always. */
typedef struct fault_plan {
  int error; /* errno it ends with */
  int done;  /* after it has worked */
  int half, zero, lost, killed;
} fault_plan;

static fault_plan fault_parse(const char *what) {
  fault_plan f = {.done = *what == '+'};
  what += f.done;
  for (size_t n = 0; n < sizeof fault_errors / sizeof *fault_errors; n++)
    if (!strcmp(fault_errors[n].name, what))
      f.error = fault_errors[n].number;
  f.half = !strcmp(what, "short") || !strcmp(what, "torn");
  f.zero = !strcmp(what, "zero");
  f.lost = !strcmp(what, "lost");
  f.killed = !strcmp(what, "kill") || !strcmp(what, "torn");
  f.done |= !strcmp(what, "torn");
  return f;
}

/* Is this call of the function to fail, and how? Kills at once when it is to be killed before the call. */
static fault_plan fault_of(int watched, const char *function) {
  char what[32], name[32];
  int skip = 0, count = 1 << 30;
  const char *setting = watched ? getenv("QKV_FAULT") : NULL;
  if (!setting || sscanf(setting, "%31[^:]:%31[^:]:%d:%d", name, what, &skip, &count) < 2 || strcmp(name, function))
    return (fault_plan){0};
  int call = __atomic_fetch_add(&fault_calls, 1, __ATOMIC_RELAXED);
  if (call < skip || call - skip >= count)
    return (fault_plan){0};
  __atomic_add_fetch(&fault_hits, 1, __ATOMIC_RELAXED);
  fault_plan f = fault_parse(what);
  if (f.killed && !f.done)
    kill(getpid(), SIGKILL);
  return f;
}

/* The end of a call that was done with this result; -1 with errno when it is to seem failed. */
static long fault_end(fault_plan f, long result) {
  if (f.killed)
    kill(getpid(), SIGKILL);
  if (!f.error)
    return result;
  errno = f.error;
  return -1;
}

/* The whole of a call. */
#define FAULT_CALL(type, watched, function, ...)                                                                       \
  fault_plan fault_ = fault_of(watched, #function);                                                                    \
  return (type)fault_end(fault_, fault_.error && !fault_.done ? -1 : (long)FAULT_REAL(function)(__VA_ARGS__))

static int fault_path(const char *path) {
  const char *under = getenv("QKV_FAULT_UNDER");
  if (under && *under)
    return !strncmp(path, under, strlen(under));
  return strstr(path, ".tmp-") || strstr(path, ".kernel");
}

static int fault_fd(int fd) {
  return fd >= 0 && fd < (int)sizeof fault_watched && fault_watched[fd];
}

static void fault_watch(int fd, int watched) {
  if (fd >= 0 && fd < (int)sizeof fault_watched)
    fault_watched[fd] = (unsigned char)watched;
}

/* ---- Files ---- */

int open(const char *path, int flags, ...) {
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
  }
  fault_plan f = fault_of(fault_path(path), "open");
  if (f.error && !f.done)
    return (int)fault_end(f, -1);
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode), failed = (int)fault_end(f, fd);
  if (failed < 0 && fd >= 0)
    syscall(SYS_close, fd); /* a reply that got lost */
  fault_watch(failed, failed >= 0 && fault_path(path));
  return failed;
}

int close(int fd) {
  fault_plan f = fault_of(fault_fd(fd), "close"); /* the descriptor is gone, whatever close says */
  fault_watch(fd, 0);
  return (int)fault_end(f, syscall(SYS_close, fd));
}

/* How many bytes a transfer moves. */
static size_t fault_size(fault_plan f, size_t size) {
  return f.zero ? 0 : f.half && size > 1 ? size / 2 : size;
}

ssize_t write(int fd, const void *bytes, size_t size) {
  fault_plan f = fault_of(fault_fd(fd), "write");
  if (f.zero || (f.error && !f.done))
    return f.zero ? 0 : fault_end(f, -1);
  return fault_end(f, syscall(SYS_write, fd, bytes, fault_size(f, size)));
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
  fault_plan f = fault_of(fault_fd(fd), "pwrite");
  if (f.zero || (f.error && !f.done))
    return f.zero ? 0 : fault_end(f, -1);
  return fault_end(f, syscall(SYS_pwrite64, fd, bytes, fault_size(f, size), at));
}

ssize_t read(int fd, void *bytes, size_t size) {
  fault_plan f = fault_of(fault_fd(fd), "read");
  if (f.zero || (f.error && !f.done))
    return f.zero ? 0 : fault_end(f, -1);
  return fault_end(f, syscall(SYS_read, fd, bytes, fault_size(f, size)));
}

ssize_t pread(int fd, void *bytes, size_t size, off_t at) {
  fault_plan f = fault_of(fault_fd(fd), "pread");
  if (f.zero || (f.error && !f.done))
    return f.zero ? 0 : fault_end(f, -1);
  return fault_end(f, syscall(SYS_pread64, fd, bytes, fault_size(f, size), at));
}

int fsync(int fd) {
  FAULT_CALL(int, fault_fd(fd), fsync, fd);
}
int ftruncate(int fd, off_t size) {
  FAULT_CALL(int, fault_fd(fd), ftruncate, fd, size);
}
int flock(int fd, int operation) {
  FAULT_CALL(int, fault_fd(fd), flock, fd, operation);
}
int fcntl(int fd, int command, ...) {
  va_list args;
  va_start(args, command);
  void *argument = va_arg(args, void *);
  va_end(args);
  FAULT_CALL(int, fault_fd(fd), fcntl, fd, command, argument);
}
int fstat(int fd, struct stat *st) {
  FAULT_CALL(int, fault_fd(fd), fstat, fd, st);
}

/* ---- Names ---- */

int rename(const char *from, const char *to) {
  fault_plan f = fault_of(fault_path(to), "rename");
  if (f.error && !f.done)
    return (int)fault_end(f, -1);
  int result = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
  if (f.lost)
    syscall(SYS_unlinkat, AT_FDCWD, to, 0);
  return (int)fault_end(f, result);
}

int unlink(const char *path) {
  FAULT_CALL(int, fault_path(path), unlink, path);
}
int mkdir(const char *path, mode_t mode) {
  FAULT_CALL(int, fault_path(path), mkdir, path, mode);
}
int stat(const char *restrict path, struct stat *restrict st) {
  FAULT_CALL(int, fault_path(path), stat, path, st);
}
int lstat(const char *restrict path, struct stat *restrict st) {
  FAULT_CALL(int, fault_path(path), lstat, path, st);
}
int utimensat(int fd, const char *path, const struct timespec times[2], int flags) {
  FAULT_CALL(int, fault_path(path), utimensat, fd, path, times, flags);
}

/* ---- Folders ---- */

DIR *opendir(const char *path) {
  fault_plan f = fault_of(fault_path(path), "opendir");
  if (f.error) {
    errno = f.error;
    return NULL;
  }
  DIR *dir = FAULT_REAL(opendir)(path);
  if (dir)
    fault_watch(dirfd(dir), fault_path(path));
  return dir;
}

int closedir(DIR *dir) {
  fault_watch(dirfd(dir), 0);
  return FAULT_REAL(closedir)(dir);
}

struct dirent *readdir(DIR *dir) {
  fault_plan f = fault_of(fault_fd(dirfd(dir)), "readdir");
  if (f.error) {
    errno = f.error;
    return NULL;
  }
  return FAULT_REAL(readdir)(dir);
}

int fstatat(int fd, const char *restrict path, struct stat *restrict st, int flags) {
  FAULT_CALL(int, fault_fd(fd), fstatat, fd, path, st, flags);
}
