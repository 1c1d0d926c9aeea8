/* cache_directory.c: where the cache lives.
 *
 * A directory is used when it belongs to this user or root and is not writable by everybody. A compiled kernel runs
 * with access to all device memory of the process, so whoever can plant one can read what the process computes; the
 * files are checked one by one as well (cache_trusts). */
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cache_internal.h"
#include "file.h"

static int is_set(const char *value) {
  return value && *value;
}

/* A home directory that is worth a cache: not unset, not "/". Containers with an arbitrary user id have neither. */
static int usable_home(const char *home) {
  return is_set(home) && strcmp(home, "/") != 0 && home[0] == '/';
}

static char *join(const char *folder, const char *rest) {
  text path = {0};
  text_printf(&path, "%s%s", folder, rest);
  if (!path.failed)
    return path.bytes;
  text_free(&path);
  return NULL;
}

static char *home_of_user(void) {
  struct passwd record, *answer = NULL;
  char buffer[4096];
  if (getpwuid_r(geteuid(), &record, buffer, sizeof buffer, &answer) || !answer || !usable_home(record.pw_dir))
    return strdup("");
  return join(record.pw_dir, "/.cache/qkvc");
}

char *cache_choose_directory(void) {
  const char *own = getenv("QKV_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (own)
    return strdup(own);             /* set but empty: memory only */
  if (is_set(xdg) && xdg[0] == '/') /* the XDG specification: relative paths are to be ignored */
    return join(xdg, "/qkvc");
  if (usable_home(home))
    return join(home, "/.cache/qkvc");
  return home_of_user();
}

int cache_claim_directory(const char *path, mode_t mode, text *why) {
  struct stat st;
  const int error = stat(path, &st) ? file_make_folders(path, mode) : 0;
  if (error) {
    text_printf(why, "cannot create it: %s", strerror(error));
    return 0;
  }
  if (stat(path, &st))
    text_printf(why, "%s", strerror(errno));
  else if (!S_ISDIR(st.st_mode))
    text_puts(why, "it is not a directory");
  else if (st.st_uid != geteuid() && st.st_uid != 0)
    text_printf(why, "it belongs to user %ld", (long)st.st_uid);
  else if (st.st_mode & S_IWOTH)
    text_puts(why, "everybody may write to it (chmod o-w)");
  else
    return 1;
  return 0;
}

int cache_trusts(const struct stat *st) {
  return S_ISREG(st->st_mode) && (st->st_uid == geteuid() || st->st_uid == 0) && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

const char *cache_file_system(const char *path, int *network) {
  static const struct {
    unsigned long magic;
    const char *name;
    int network;
  } known[] = {{0xEF53, "ext", 0},         {0x58465342, "xfs", 0},  {0x9123683E, "btrfs", 0}, {0x01021994, "tmpfs", 0},
               {0x794C7630, "overlay", 0}, {0x2FC12FC1, "zfs", 0},  {0xF2F52010, "f2fs", 0},  {0x2011BAB0, "exfat", 0},
               {0x6969, "nfs", 1},         {0xFF534D42, "cifs", 1}, {0xFE534D42, "smb2", 1},  {0x0BD00BD0, "lustre", 1},
               {0x47504653, "gpfs", 1},    {0x65735546, "fuse", 1}, {0x00C36400, "ceph", 1},  {0x01021997, "9p", 1}};
  struct statfs st;
  int ignored, *is_network = network ? network : &ignored;
  *is_network = 0;
  if (statfs(path, &st))
    return "unknown";
  for (size_t n = 0; n < sizeof known / sizeof *known; n++)
    if (known[n].magic == ((unsigned long)st.f_type & 0xFFFFFFFFul)) {
      *is_network = known[n].network;
      return known[n].name;
    }
  return "another";
}
