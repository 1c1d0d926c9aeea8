/* process.c: posix_spawn, a pipe, and patience. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { INHERITED = 3 };

/* The environment with LC_ALL=C, so that messages can be read by programs. Shares the strings. */
static char **make_environment(void) {
  size_t count = 0, kept = 0;
  while (environ[count])
    count++;
  char **copy = malloc((count + 2) * sizeof *copy);
  if (!copy)
    return NULL;
  for (size_t i = 0; i < count; i++)
    if (strncmp(environ[i], "LC_ALL=", 7) != 0 && strncmp(environ[i], "LANGUAGE=", 9) != 0)
      copy[kept++] = environ[i];
  static char locale[] = "LC_ALL=C";
  copy[kept++] = locale;
  copy[kept] = NULL;
  return copy;
}

static char *read_all(int fd) {
  size_t size = 0, capacity = 4096;
  char *bytes = malloc(capacity);
  while (bytes) {
    if (size + 1 == capacity) {
      char *grown = realloc(bytes, capacity *= 2);
      if (!grown)
        break;
      bytes = grown;
    }
    ssize_t n = read(fd, bytes + size, capacity - 1 - size);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      break;
    size += (size_t)n;
  }
  if (bytes)
    bytes[size] = 0;
  return bytes;
}

static int spawn(pid_t *pid, char *const argv[], const char *dir, int inherited_fd, int output_fd) {
  char **environment = make_environment();
  posix_spawn_file_actions_t actions;
  if (!environment || posix_spawn_file_actions_init(&actions)) {
    free(environment);
    return ENOMEM;
  }
  int error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  error = error ? error : posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
  error = error ? error : posix_spawn_file_actions_adddup2(&actions, output_fd, STDERR_FILENO);
  if (inherited_fd >= 0)
    error = error ? error : posix_spawn_file_actions_adddup2(&actions, inherited_fd, INHERITED);
  if (dir)
    error = error ? error : posix_spawn_file_actions_addchdir_np(&actions, dir);
  error = error ? error : posix_spawnp(pid, argv[0], &actions, NULL, argv, environment);
  posix_spawn_file_actions_destroy(&actions);
  free(environment);
  return error;
}

static int wait_for(pid_t pid) {
  int status;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR)
      return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

process_result process_run(char *const argv[], const char *dir, int inherited_fd) {
  process_result result = {false, -1, NULL};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC))
    return result;
  pid_t pid;
  int error = spawn(&pid, argv, dir, inherited_fd, ends[1]);
  close(ends[1]);
  if (!error) {
    result.output = read_all(ends[0]);
    result.exit_code = wait_for(pid);
    result.started = result.output != NULL;
  }
  close(ends[0]);
  return result;
}
