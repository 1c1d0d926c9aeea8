/* tune_journal.c: see tune_journal.h. Lines are written whole, one write each, and never changed. */
#include "tune_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cli.h"

struct tune_journal {
  char *path;
  int fd;
  bool failed;
  record *lines;
  int count, capacity;
};

static bool keep_line(tune_journal *j, const char *line) {
  if (j->count == j->capacity) {
    const int capacity = j->capacity ? 2 * j->capacity : 64;
    record *lines = realloc(j->lines, (size_t)capacity * sizeof *lines);
    if (!lines)
      return false;
    j->lines = lines;
    j->capacity = capacity;
  }
  record *r = &j->lines[j->count];
  memset(r, 0, sizeof *r);
  if (!record_parse(r, line) || !record_text(r, "context") || !record_text(r, "question")) {
    record_free(r);
    return false;
  }
  j->count++;
  return true;
}

/* Whole lines; what stands behind the last line feed was torn by the end of the writer and is cut off. */
static bool read_lines(tune_journal *j) {
  FILE *in = fdopen(dup(j->fd), "r");
  char *line = NULL;
  size_t size = 0;
  ssize_t length;
  long number = 0;
  off_t whole = 0;
  bool ok = in && fseek(in, 0, SEEK_SET) == 0;
  while (ok && (length = getline(&line, &size, in)) > 0) {
    number++;
    if (line[length - 1] != '\n') {
      cli_note("%s:%ld: the last line is torn and is left out", j->path, number);
      ok = ftruncate(j->fd, whole) == 0;
      break;
    }
    whole += length;
    if (!keep_line(j, line))
      cli_warning("%s:%ld: not a line of a journal; skipped", j->path, number);
  }
  free(line);
  if (in)
    fclose(in);
  return ok && lseek(j->fd, 0, SEEK_END) >= 0;
}

static tune_journal *refuse(tune_journal *j, const char *path, const char *why) {
  cli_error("%s: %s", path, why);
  journal_close(j);
  return NULL;
}

static bool open_file(tune_journal *j) {
  j->fd = open(j->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  return j->fd >= 0;
}

/* What an earlier run left, when it is not to be continued, becomes PATH.old. */
static bool set_aside(tune_journal *j) {
  char *old = malloc(strlen(j->path) + 5);
  if (!old)
    return false;
  sprintf(old, "%s.old", j->path);
  const bool ok = rename(j->path, old) == 0;
  free(old);
  close(j->fd);
  j->fd = -1;
  return ok && open_file(j) && flock(j->fd, LOCK_EX | LOCK_NB) == 0;
}

tune_journal *journal_open(const char *path, bool resume) {
  tune_journal *j = calloc(1, sizeof *j);
  if (!j || !(j->path = strdup(path)) || !open_file(j))
    return refuse(j, path, strerror(errno));
  if (flock(j->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return refuse(j, path, "another tuner writes to this journal");
  if (!resume && lseek(j->fd, 0, SEEK_END) > 0 && !set_aside(j))
    return refuse(j, path, strerror(errno));
  return !resume || read_lines(j) ? j : refuse(j, path, "cannot be read");
}

const record *journal_find(const tune_journal *j, const char *context, const char *question) {
  for (int n = 0; n < j->count; n++)
    if (!strcmp(record_text(&j->lines[n], "question"), question) &&
        !strcmp(record_text(&j->lines[n], "context"), context))
      return &j->lines[n];
  return NULL;
}

/* Writes a line, or nothing: half of one would spoil the next. */
static bool append(const tune_journal *j, const char *line) {
  const size_t size = strlen(line);
  const off_t before = lseek(j->fd, 0, SEEK_END);
  const ssize_t wrote = write(j->fd, line, size);
  if (wrote == (ssize_t)size)
    return true;
  const int why = wrote < 0 ? errno : ENOSPC;
  if (wrote > 0 && (before < 0 || ftruncate(j->fd, before)))
    cli_warning("%s has half a line at its end", j->path);
  errno = why;
  return false;
}

bool journal_add(tune_journal *j, const char *context, const char *question, const record *answer) {
  record_line l;
  char *line = NULL;
  errno = ENOMEM;
  if (record_begin(&l)) {
    record_put(&l.to, "context", context);
    record_put(&l.to, "question", question);
    record_put_all(&l.to, answer);
    line = record_end(&l);
  }
  const bool ok = line && append(j, line);
  free(line);
  if (!ok && !j->failed)
    cli_error("%s cannot be written: %s", j->path, strerror(errno));
  j->failed |= !ok;
  return ok;
}

int journal_count(const tune_journal *j) {
  return j->count;
}

void journal_close(tune_journal *j) {
  if (!j)
    return;
  for (int n = 0; n < j->count; n++)
    record_free(&j->lines[n]);
  free(j->lines);
  if (j->fd >= 0)
    close(j->fd);
  free(j->path);
  free(j);
}
