/* cache_turn.c: processes that want one kernel at once take turns, so that the first compiles it and the others find
 * it.
 *
 * A turn is a lock on one byte of the file .turns, the byte that the key's first digits say: no file per key, and none
 * is ever deleted. The kernel drops the lock when the process ends. It is an optimisation and nothing else: who cannot
 * have it within half a minute, or at all, compiles. Network file systems are not asked (cache_lease.c says why). */
#define _GNU_SOURCE /* F_OFD_SETLK: locks of a descriptor, not of the process, so that engines of one process count */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache_internal.h"

enum { KEY_DIGITS = 15, STEP = 10000, STEPS = 3000 }; /* digits that fit in an offset; microseconds of a step */

static struct flock byte_of(const char *key, short type) {
  char digits[KEY_DIGITS + 1] = "";
  memcpy(digits, key, KEY_DIGITS);
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)strtoll(digits, NULL, 16), .l_len = 1};
}

static int open_turns(const cache *c) {
  int network = 0;
  struct stat st;
  text path = {0};
  if (!*c->path || c->read_only || (cache_file_system(c->path, &network), network))
    return -1;
  text_printf(&path, "%s/.turns", c->path);
  int fd = path.failed ? -1 : open(path.bytes, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  text_free(&path);
  if (fd >= 0 && (fstat(fd, &st) || !cache_trusts(&st))) {
    close(fd);
    fd = -1;
  }
  return fd;
}

int cache_turn_take(const cache *c, const char *key) {
  int fd = open_turns(c);
  for (int step = 0; fd >= 0 && step < STEPS; step++) {
    struct flock lock = byte_of(key, F_WRLCK);
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
      return fd;
    if (errno != EAGAIN && errno != EACCES)
      break; /* no locks here */
    usleep(STEP);
  }
  if (fd >= 0)
    close(fd);
  return -1;
}

void cache_turn_give(int turn, const char *key) {
  struct flock lock = byte_of(key, F_UNLCK);
  if (turn < 0)
    return;
  fcntl(turn, F_OFD_SETLK, &lock); /* a child of a fork may hold the descriptor, too */
  close(turn);
}
