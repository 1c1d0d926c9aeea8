/* cli_file.c: files that commands write: complete, or not there. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

int cli_try_write_file(const char *path, cli_writer *write, const void *data) {
  FILE *out = fopen(path, "wb");
  if (!out)
    return errno;
  struct stat what;
  const bool regular = fstat(fileno(out), &what) == 0 && S_ISREG(what.st_mode); /* a pipe or /dev/full stays */
  errno = 0;
  write(out, data);
  bool ok = !ferror(out) && fflush(out) == 0;
  int why = errno ? errno : EIO;
  if (fclose(out) != 0 && ok) {
    why = errno;
    ok = false;
  }
  if (!ok && regular)
    unlink(path);
  return ok ? 0 : why;
}
