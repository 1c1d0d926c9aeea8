/* cache_lease.c: which entries are in use.
 *
 * Every open cache with a hit or a publication holds one of the files .lease-0, .lease-1, ...: the first that nobody
 * has locked. It keeps that lock (flock) and writes the keys it uses into the file, a line each. The kernel drops the
 * lock when the process ends, however it ends; the file stays and serves the next one, so that no lock file is ever
 * deleted. Who evicts asks for the lock of each file: one that is held names entries in use, any other says nothing.
 *
 * The lock is advisory twice over: a lease that cannot be had costs protection from eviction, never a kernel. Network
 * file systems are not asked for locks, which some of them grant to everybody, refuse, or never answer for; entries
 * there are protected by their time stamps alone, for longer (cache_gc.c). */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cache_internal.h"

enum { SLOTS = 4096, LINE = CACHE_KEY_SIZE }; /* a line: the key and a newline */

static int open_slot(const cache *c, int slot, int flags) {
  text path = {0};
  text_printf(&path, "%s/" CACHE_LEASE "%d", c->path, slot);
  /* A pipe or a link in its place neither blocks nor leads elsewhere. */
  int fd = path.failed ? -1 : open(path.bytes, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  text_free(&path);
  return fd;
}

static int is_ours(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 && cache_trusts(&st);
}

/* ---- Taking ---- */

/* The first slot that is free, locked and emptied; -1 when there is none to be had. */
static int take_slot(const cache *c) {
  for (int slot = 0; slot < SLOTS; slot++) {
    int fd = open_slot(c, slot, O_RDWR | O_CREAT);
    if (fd < 0 && errno != EACCES && errno != ELOOP && errno != EISDIR) /* another's, a link, a folder: the next one */
      return -1;
    if (fd < 0 || !is_ours(fd)) {
      if (fd >= 0)
        close(fd);
      continue;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && ftruncate(fd, 0) == 0)
      return fd;
    int held = errno == EWOULDBLOCK;
    close(fd);
    if (!held) /* no locks here */
      return -1;
  }
  return -1;
}

static int is_known(const cache_lease *l, const char *key) {
  for (size_t n = 0; n < l->count; n++)
    if (!memcmp(l->keys[n], key, LINE - 1))
      return 1;
  return 0;
}

static int remember(cache_lease *l, const char *key) {
  if (l->count == l->capacity) {
    size_t capacity = l->capacity ? 2 * l->capacity : 16;
    void *keys = realloc(l->keys, capacity * sizeof *l->keys);
    if (!keys)
      return 0;
    l->keys = keys;
    l->capacity = capacity;
  }
  memcpy(l->keys[l->count], key, LINE - 1);
  l->keys[l->count++][LINE - 1] = '\n';
  return 1;
}

/* Is fd what take_slot gave? A program may have closed all its descriptors, as daemons do, and have its own under the
 * number. *links: names that the file has left. */
static int still_has(const cache_lease *l, nlink_t *links) {
  struct stat st;
  if (l->fd < 0 || fstat(l->fd, &st) || st.st_dev != l->device || st.st_ino != l->inode)
    return 0;
  *links = st.st_nlink;
  return 1;
}

static void drop(cache_lease *l) {
  nlink_t links;
  if (still_has(l, &links))
    close(l->fd); /* the lock goes with the last of its holders: a parent's stays when a child closes */
  l->fd = -1;
}

/* A child of a fork shares the parent's lock and must not write into its file: it takes a slot of its own. So does a
 * process whose directory was deleted below it. */
static void renew(const cache *c, cache_lease *l) {
  struct stat st;
  nlink_t links = 0;
  if (l->fd >= 0 && (!still_has(l, &links) || links == 0 || l->owner != getpid())) {
    drop(l);
    l->tried = 0;
  }
  if (l->fd >= 0 || l->tried)
    return;
  int network = 0;
  cache_file_system(c->path, &network);
  l->tried = 1;
  l->owner = getpid();
  l->fd = network ? -1 : take_slot(c);
  l->written = 0;
  if (l->fd >= 0 && fstat(l->fd, &st)) {
    close(l->fd);
    l->fd = -1;
  }
  if (l->fd >= 0) {
    l->device = st.st_dev;
    l->inode = st.st_ino;
  }
}

void cache_lease_add(cache *c, const char *key) {
  cache_lease *l = &c->lease;
  pthread_mutex_lock(&l->lock);
  if (is_known(l, key) || remember(l, key)) {
    renew(c, l);
    size_t bytes = (l->count - l->written) * LINE;
    if (l->fd >= 0 && bytes && pwrite(l->fd, l->keys[l->written], bytes, (off_t)(l->written * LINE)) == (ssize_t)bytes)
      l->written = l->count; /* else: again with the next key */
  }
  pthread_mutex_unlock(&l->lock);
}

void cache_lease_close(cache *c) {
  cache_lease *l = &c->lease;
  drop(l);
  free(l->keys);
  pthread_mutex_destroy(&l->lock);
}

/* ---- Asking ---- */

static int by_key(const void *a, const void *b) {
  return memcmp(a, b, LINE - 1);
}

/* Appends the keys of an open file of a living process. */
static void read_keys(int fd, cache_uses *out) {
  struct stat st;
  if (fstat(fd, &st) || st.st_size < LINE || st.st_size > (off_t)LINE * (1 << 20))
    return;
  size_t lines = (size_t)st.st_size / LINE;
  void *keys = realloc(out->keys, (out->count + lines) * LINE);
  if (!keys)
    return;
  out->keys = keys;
  ssize_t got = pread(fd, out->keys[out->count], lines * LINE, 0);
  out->count += got > 0 ? (size_t)got / LINE : 0;
}

cache_uses cache_uses_find(const cache *c) {
  cache_uses uses = {0};
  for (int slot = 0; *c->path && slot < SLOTS; slot++) {
    int fd = open_slot(c, slot, O_RDONLY);
    if (fd < 0 && errno == ENOENT)
      break;
    if (fd < 0)
      continue;
    /* Had for a moment by us: then nobody holds it. Who looks for a slot just now takes the next. */
    if (is_ours(fd) && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK)
      read_keys(fd, &uses);
    close(fd);
  }
  if (uses.count)
    qsort(uses.keys, uses.count, LINE, by_key);
  return uses;
}

int cache_uses_has(const cache_uses *u, const char *key) {
  return u->count && bsearch(key, u->keys, u->count, LINE, by_key);
}
