/* file.c: see file.h. */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "text.h"

static int error_or(int otherwise) {
  return errno ? errno : otherwise;
}

/* ---- Reading ---- */

int file_read_bytes(int fd, void *to, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = read(fd, (char *)to + done, size - done);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return n ? error_or(EIO) : EIO;
    done += (size_t)n;
  }
  return 0;
}

static int read_open(int fd, size_t most, char **bytes, size_t *size) {
  struct stat st;
  if (fstat(fd, &st))
    return error_or(EIO);
  if (!S_ISREG(st.st_mode))
    return EINVAL;
  if (st.st_size < 0 || (uint64_t)st.st_size > most)
    return EFBIG;
  *size = (size_t)st.st_size;
  *bytes = malloc(*size + 1);
  if (!*bytes)
    return ENOMEM;
  const int error = file_read_bytes(fd, *bytes, *size);
  if (error) {
    free(*bytes);
    *bytes = NULL;
    return error;
  }
  (*bytes)[*size] = 0;
  return 0;
}

int file_read(const char *path, size_t most, char **bytes, size_t *size) {
  *bytes = NULL;
  *size = 0;
  for (int attempt = 0;; attempt++) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* pipes and devices must not block */
    const int error = fd < 0 ? error_or(EIO) : read_open(fd, most, bytes, size);
    if (fd >= 0)
      close(fd);
    if (error != ESTALE || attempt > 0) /* a network file system may lose a handle once */
      return error;
  }
}

/* ---- Folders ---- */

int file_make_folders(const char *path, mode_t mode) {
  char *copy = strdup(path);
  int error = copy ? 0 : ENOMEM;
  for (char *slash = copy && *copy ? copy + 1 : NULL; !error && slash;) {
    struct stat st;
    slash = *slash ? strchr(slash, '/') : NULL;
    if (slash)
      *slash = 0;
    if (mkdir(copy, mode)) { /* EROFS and EACCES come before EEXIST on some systems */
      error = error_or(EIO);
      if (!stat(copy, &st))
        error = S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    }
    if (slash)
      *slash++ = '/';
  }
  free(copy);
  return error;
}

/* The folder of a file, malloc'd. */
static char *folder_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash == path ? strdup("/") : slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
}

int file_make_parents(const char *path) {
  char *folder = folder_of(path);
  const int error = folder ? file_make_folders(folder, 0777) : ENOMEM;
  free(folder);
  return error;
}

/* ---- Writing ---- */

/* PATH's folder/.tmp-PID-RANDOM, malloc'd; NULL when memory or randomness is out. */
static char *temporary_name(const char *path) {
  uint64_t random[2];
  text name = {0};
  char *folder = folder_of(path);
  if (folder && getrandom(random, sizeof random, 0) == sizeof random)
    text_printf(&name, "%s/" FILE_TEMPORARY "%ld-%016llx%016llx", folder, (long)getpid(), (unsigned long long)random[0],
                (unsigned long long)random[1]);
  free(folder);
  if (name.failed)
    text_free(&name);
  return name.bytes;
}

static int write_all(int fd, const char *bytes, size_t size) {
  while (size) {
    const ssize_t n = write(fd, bytes, size);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return n ? error_or(EIO) : EIO;
    bytes += n;
    size -= (size_t)n;
  }
  return 0;
}

/* Writes the temporary file and gives it its name; path NULL: removes it again. */
static int publish(const char *temporary, const char *path, const void *bytes, size_t size, mode_t mode) {
  errno = 0;
  const int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0) {
    const int failure = error_or(EIO);
    if (failure != EEXIST) /* it may be there all the same: replies of network file systems get lost */
      unlink(temporary);
    return failure;
  }
  int error = write_all(fd, bytes, size);
  if (!error && path && fsync(fd))
    error = error_or(EIO);
  if (close(fd) && !error)
    error = error_or(EIO);
  if (!error && path && rename(temporary, path))
    error = error_or(EIO);
  if (error || !path)
    unlink(temporary);
  return error;
}

static int write_beside(const char *path, bool keep, const void *bytes, size_t size, mode_t mode) {
  char *temporary = temporary_name(path);
  const int error = temporary ? publish(temporary, keep ? path : NULL, bytes, size, mode) : ENOMEM;
  free(temporary);
  return error;
}

int file_replace(const char *path, const void *bytes, size_t size, mode_t mode) {
  return write_beside(path, true, bytes, size, mode);
}

void file_sweep(const char *path) {
  enum { OLD = 3600 };
  char *folder = folder_of(path);
  DIR *directory = folder ? opendir(folder) : NULL;
  const int fd = directory ? dirfd(directory) : -1;
  struct stat st;
  for (const struct dirent *entry; directory && (entry = readdir(directory));)
    if (!strncmp(entry->d_name, FILE_TEMPORARY, strlen(FILE_TEMPORARY)) &&
        !fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) && time(NULL) - st.st_mtim.tv_sec > OLD)
      unlinkat(fd, entry->d_name, 0);
  if (directory)
    closedir(directory);
  free(folder);
}

int file_try_replace(const char *path) {
  struct stat st;
  if (!stat(path, &st) && S_ISDIR(st.st_mode))
    return EISDIR;
  return write_beside(path, false, "qkvc", 4, 0666);
}

/* ---- Locks ---- */

int file_lock_folder(const char *path) {
  enum { TRIES = 500 };
  const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
  char *folder = folder_of(path);
  const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  free(folder);
  for (int n = 0; fd >= 0 && n < TRIES; n++) {
    if (!flock(fd, LOCK_EX | LOCK_NB))
      return fd;
    if (errno != EWOULDBLOCK && errno != EINTR)
      break;
    nanosleep(&pause, NULL);
  }
  if (fd >= 0)
    close(fd);
  return -1;
}

void file_unlock(int lock) {
  if (lock >= 0)
    close(lock);
}
