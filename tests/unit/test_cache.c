/* test_cache.c: entries survive or are refused, never half believed: damage in every byte, swapped entries, foreign
 * owners, unusable directories, a full disk, failing system calls, and many processes on one key with some of them
 * killed. */
#define _GNU_SOURCE /* fault/filesystem.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cache_internal.h"
#include "little_endian.h"
#include "manifest.h"
#include "qkv_pack.h"
#include "text.h"

#include "fault/filesystem.c"

static char root[256]; /* a fresh directory per test, with letters beyond ASCII in its name */
static int warnings;
static char last_warning[4096];

static void count_warning(const char *message, void *user) {
  (void)user;
  warnings++;
  snprintf(last_warning, sizeof last_warning, "%s", message);
}

static int begin(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/qkv-t\xc3\xa4st-XXXXXX");
  fault_set(NULL);
  warnings = 0;
  return mkdtemp(root) ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  char command[512];
  fault_set(NULL);
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static cache *open_in(const char *folder) {
  static char path[512];
  snprintf(path, sizeof path, "%s%s", root, folder);
  cache *c = cache_open(path, count_warning, NULL);
  assert_non_null(c);
  return c;
}

/* An entry whose bytes depend on `seed`; freed with cache_entry_free. */
static cache_entry make_entry(unsigned seed, size_t image_size) {
  cache_entry e = {
      .manifest = malloc(64), .image = malloc(image_size + 1), .image_size = image_size, .log = malloc(64)};
  snprintf(e.manifest, 64, "manifest %u", seed);
  e.manifest_size = strlen(e.manifest);
  snprintf(e.log, 64, "log %u", seed);
  for (size_t n = 0; n < image_size; n++)
    ((unsigned char *)e.image)[n] = (unsigned char)(n * 7 + seed);
  return e;
}

static void make_key(unsigned seed, char key[CACHE_KEY_SIZE]) {
  char source[32];
  snprintf(source, sizeof source, "source %u", seed);
  cache_key(source, "sm_80", "compiler", key);
}

static void publish_entry(cache *c, unsigned seed, size_t size) {
  char key[CACHE_KEY_SIZE];
  cache_entry e = make_entry(seed, size);
  make_key(seed, key);
  assert_int_equal(cache_write(c, key, &e), 0);
  cache_entry_free(&e);
}

/* Reads the entry; a hit must be the very bytes that were written. */
static cache_result read_entry(cache *c, unsigned seed, size_t size) {
  char key[CACHE_KEY_SIZE];
  cache_entry e, want = make_entry(seed, size);
  make_key(seed, key);
  cache_result result = cache_read(c, key, &e);
  if (result == CACHE_HIT) {
    assert_int_equal(e.image_size, want.image_size);
    assert_memory_equal(e.image, want.image, size);
    assert_string_equal(e.manifest, want.manifest);
    assert_string_equal(e.log, want.log);
  } else {
    assert_null(e.image);
  }
  cache_entry_free(&want);
  cache_entry_free(&e);
  return result;
}

static const char *entry_of(const cache *c, const char *key) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s.kernel", cache_path(c), key);
  return path;
}

static const char *entry_path(const cache *c, unsigned seed) {
  char key[CACHE_KEY_SIZE];
  make_key(seed, key);
  return entry_of(c, key);
}

static int count_files(const char *folder, const char *part) {
  DIR *dir = opendir(folder);
  int count = 0;
  for (struct dirent *e; dir && (e = readdir(dir));)
    count += strstr(e->d_name, part) != NULL;
  if (dir)
    closedir(dir);
  return count;
}

static void test_round_trip(void **state) {
  (void)state;
  cache *c = open_in("/new/deep");
  assert_int_equal(read_entry(c, 1, 1000), CACHE_MISS);
  for (unsigned seed = 1; seed < 5; seed++)
    publish_entry(c, seed, seed * 1000 - 1000); /* an empty image too: what is plausible is the compiler's business */
  for (unsigned seed = 1; seed < 5; seed++)
    assert_int_equal(read_entry(c, seed, seed * 1000 - 1000), CACHE_HIT);
  char key[CACHE_KEY_SIZE];
  make_key(2, key);
  cache_remove(c, key);
  assert_int_equal(read_entry(c, 2, 1000), CACHE_MISS);
  assert_int_equal(cache_error_count(c), 0);
  assert_int_equal(count_files(cache_path(c), ".tmp-"), 0);
  struct stat st;
  assert_int_equal(stat(cache_path(c), &st), 0);
  assert_int_equal(st.st_mode & 0777, 0700);
  cache_close(c);
}

static void test_keys_differ(void **state) {
  (void)state;
  /* Moving bytes between fields, and every single change, gives another key. */
  static const char *const fields[][3] = {{"ab", "c", "d"}, {"a", "bc", "d"}, {"abc", "", "d"}, {"ab", "cd", ""},
                                          {"ab", "c", "e"}, {"", "abc", "d"}, {"", "", ""},     {"d", "ab", "c"}};
  enum { COUNT = sizeof fields / sizeof *fields };
  char keys[COUNT][CACHE_KEY_SIZE];
  for (int n = 0; n < COUNT; n++) {
    cache_key(fields[n][0], fields[n][1], fields[n][2], keys[n]);
    assert_int_equal(strspn(keys[n], "0123456789abcdef"), 32);
    for (int m = 0; m < n; m++)
      assert_string_not_equal(keys[n], keys[m]);
  }
}

static void rewrite(const char *path, const unsigned char *bytes, size_t size) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, size, f), size);
  fclose(f);
}

/* A key without a compiler finds the newest entry of its source and options, and no other. */
static void test_any_compiler(void **state) {
  (void)state;
  cache *c = open_in("");
  static const char *const rows[][3] = {
      {"source", "sm_80", "old"}, {"source", "sm_80", "new"}, {"source", "sm_90a", "new"}, {"another", "sm_80", "new"}};
  char keys[4][CACHE_KEY_SIZE], any[CACHE_KEY_SIZE], none[CACHE_KEY_SIZE];
  for (int n = 0; n < 4; n++) {
    cache_entry e = make_entry((unsigned)n, 10);
    cache_key(rows[n][0], rows[n][1], rows[n][2], keys[n]);
    assert_int_equal(cache_write(c, keys[n], &e), 0);
    cache_entry_free(&e);
  }
  char path[512];
  snprintf(path, sizeof path, "%s/%s.kernel", cache_path(c), keys[0]);
  const struct timespec long_ago[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
  assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
  cache_key("source", "sm_80", "", any);
  assert_true(cache_find(c, any));
  assert_string_equal(any, keys[1]);
  rewrite(entry_of(c, keys[1]), (const unsigned char *)"damaged", 7); /* the newest that verifies */
  cache_key("source", "sm_80", "", any);
  assert_true(cache_find(c, any));
  assert_string_equal(any, keys[0]);
  cache_key("source", "sm_120", "", none);
  strcpy(any, none);
  assert_false(cache_find(c, any));
  assert_string_equal(any, none);
  cache_close(c);
}

static void test_damage(void **state) {
  (void)state;
  cache *c = open_in("");
  enum { SIZE = 300 };
  publish_entry(c, 1, SIZE);
  static unsigned char bytes[4096];
  FILE *f = fopen(entry_path(c, 1), "rb");
  size_t size = fread(bytes, 1, sizeof bytes, f);
  fclose(f);
  uint64_t errors = 0;
  for (size_t length = 0; length < size; length++) { /* every truncation */
    rewrite(entry_path(c, 1), bytes, length);
    if (read_entry(c, 1, SIZE) != CACHE_CORRUPT)
      fail_msg("an entry cut to %zu of %zu bytes was not found damaged", length, size);
    assert_int_equal(access(entry_path(c, 1), F_OK), -1); /* removed */
    errors++;
  }
  for (size_t bit = 0; bit < 8 * size; bit++) { /* every bit, header and body */
    bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    rewrite(entry_path(c, 1), bytes, size);
    bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    if (read_entry(c, 1, SIZE) != CACHE_CORRUPT)
      fail_msg("an entry with bit %zu of byte %zu flipped was not found damaged", bit % 8, bit / 8);
    errors++;
  }
  rewrite(entry_path(c, 1), bytes, size + 1); /* a byte too many */
  assert_int_equal(read_entry(c, 1, SIZE), CACHE_CORRUPT);
  assert_int_equal(cache_error_count(c), errors + 1);
  assert_int_equal(warnings, 1);
  assert_non_null(strstr(last_warning, "damaged"));
  publish_entry(c, 1, SIZE);
  assert_int_equal(read_entry(c, 1, SIZE), CACHE_HIT);
  cache_close(c);
}

/* Every two pieces of a file that change places, and every tail it may get, are seen. */
static void test_moved_parts(void **state) {
  (void)state;
  enum { SIZE = 300, PIECE = 4, TAIL = 64 };
  static unsigned char bytes[4096];
  cache *c = open_in("");
  char key[CACHE_KEY_SIZE];
  publish_entry(c, 1, SIZE);
  make_key(1, key);
  FILE *f = fopen(entry_path(c, 1), "rb");
  const size_t size = fread(bytes, 1, sizeof bytes - TAIL, f);
  fclose(f);
  for (size_t a = 0; a + PIECE <= size; a += PIECE)
    for (size_t b = a + PIECE; b + PIECE <= size; b += PIECE) {
      unsigned char first[PIECE], second[PIECE];
      memcpy(first, bytes + a, PIECE), memcpy(second, bytes + b, PIECE);
      if (!memcmp(first, second, PIECE))
        continue;
      memcpy(bytes + a, second, PIECE), memcpy(bytes + b, first, PIECE);
      if (cache_decode(key, bytes, size, NULL))
        fail_msg("bytes %zu and %zu of an entry have changed places, and it was read", a, b);
      memcpy(bytes + a, first, PIECE), memcpy(bytes + b, second, PIECE);
    }
  assert_int_equal(cache_decode(key, bytes, size, NULL), 1);
  for (size_t more = 1; more <= TAIL; more++) {
    bytes[size + more - 1] = (unsigned char)(more % 3 ? 0 : more);
    assert_int_equal(cache_decode(key, bytes, size + more, NULL), 0);
  }
  cache_close(c);
}

/* Sizes of parts that no writer writes, under a digest that fits: read within the file, or refused. */
static void test_sizes_of_any_kind(void **state) {
  (void)state;
  static const uint64_t interesting[] = {0, 1, 99, 100, 101, 300, 301, UINT32_MAX, (uint64_t)1 << 63, UINT64_MAX,
                                         UINT64_MAX - 95, UINT64_MAX - 399};
  enum { VALUES = sizeof interesting / sizeof *interesting, HEADER = 96, BODY = 300 };
  char key[CACHE_KEY_SIZE];
  size_t size;
  make_key(1, key);
  const cache_entry e = {.manifest = (char[100]){"m"}, .manifest_size = 100, .image = (char[200]){"i"}, .image_size = 200};
  unsigned char *file = cache_encode(key, &e, &size);
  assert_int_equal(size, HEADER + BODY);
  int read = 0;
  for (int n = 0; n < VALUES * VALUES * VALUES; n++) {
    const uint64_t parts[] = {interesting[n % VALUES], interesting[n / VALUES % VALUES],
                              interesting[n / VALUES / VALUES]};
    for (int p = 0; p < 3; p++)
      little_endian_put(file + 48 + 8 * p, parts[p], 8);
    XXH3_state_t sum;
    XXH128_canonical_t digest;
    XXH3_128bits_reset(&sum);
    XXH3_128bits_update(&sum, file, 80);
    XXH3_128bits_update(&sum, file + HEADER, size - HEADER);
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(&sum));
    memcpy(file + 80, digest.digest, sizeof digest.digest);
    cache_entry out;
    const int valid = cache_decode(key, file, size, &out);
    /* Without overflow: they must be the body's three parts. */
    const bool fits = parts[0] <= BODY && parts[1] <= BODY && parts[2] <= BODY && parts[0] + parts[1] + parts[2] == BODY;
    if (valid != fits)
      fail_msg("parts of %llu, %llu and %llu bytes: read %d", (unsigned long long)parts[0], (unsigned long long)parts[1],
               (unsigned long long)parts[2], valid);
    read += valid;
    if (valid > 0)
      cache_entry_free(&out);
  }
  assert_true(read > 3);
  free(file);
}

static void test_swapped_entries(void **state) {
  (void)state;
  cache *c = open_in("");
  publish_entry(c, 1, 100);
  publish_entry(c, 2, 100);
  char first[512], second[512], third[600];
  snprintf(first, sizeof first, "%s", entry_path(c, 1));
  snprintf(second, sizeof second, "%s", entry_path(c, 2));
  snprintf(third, sizeof third, "%s.swap", first);
  assert_int_equal(rename(first, third) | rename(second, first) | rename(third, second), 0);
  assert_int_equal(read_entry(c, 1, 100), CACHE_CORRUPT);
  assert_int_equal(read_entry(c, 2, 100), CACHE_CORRUPT);
  cache_close(c);
}

static void test_strange_entries(void **state) {
  (void)state;
  cache *c = open_in("");
  /* A directory, a pipe (which must not block) and a link in an entry's place. */
  assert_int_equal(mkdir(entry_path(c, 1), 0700), 0);
  assert_int_equal(mkfifo(entry_path(c, 2), 0600), 0);
  publish_entry(c, 4, 100);
  char target[512];
  snprintf(target, sizeof target, "%s", entry_path(c, 4));
  assert_int_equal(symlink(target, entry_path(c, 3)), 0);
  for (unsigned seed = 1; seed < 4; seed++)
    assert_int_equal(read_entry(c, seed, 100), CACHE_MISS);
  assert_int_equal(cache_error_count(c), 3);
  /* Writable by others: not believed. */
  assert_int_equal(chmod(entry_path(c, 4), 0666), 0);
  assert_int_equal(read_entry(c, 4, 100), CACHE_MISS);
  publish_entry(c, 4, 100); /* replaces it */
  assert_int_equal(read_entry(c, 4, 100), CACHE_HIT);
  assert_int_equal(warnings, 1);
  cache_close(c);
}

static void test_foreign_owner(void **state) {
  (void)state;
  if (geteuid() != 0)
    skip(); /* only root can give files away */
  cache *c = open_in("");
  publish_entry(c, 1, 100);
  assert_int_equal(chown(entry_path(c, 1), 12345, 12345), 0);
  assert_int_equal(read_entry(c, 1, 100), CACHE_MISS);
  assert_int_equal(cache_error_count(c), 1);
  cache_close(c);
  assert_int_equal(chown(root, 12345, 12345), 0);
  c = open_in("");
  assert_string_equal(cache_path(c), "");
  cache_close(c);
}

static void test_unusable_directories(void **state) {
  (void)state;
  char path[512];
  snprintf(path, sizeof path, "%s/file", root);
  rewrite(path, (const unsigned char *)"x", 1);
  snprintf(path, sizeof path, "%s/open", root);
  assert_int_equal(mkdir(path, 0777) | chmod(path, 0777), 0);
  static const char *const folders[] = {"/file", "/file/below", "/open"};
  for (size_t n = 0; n < sizeof folders / sizeof *folders; n++) {
    warnings = 0;
    cache *c = open_in(folders[n]);
    assert_string_equal(cache_path(c), "");
    char key[CACHE_KEY_SIZE];
    cache_entry e = make_entry(1, 10);
    make_key(1, key);
    for (int again = 0; again < 3; again++) {
      assert_int_equal(read_entry(c, 1, 10), CACHE_MISS);
      assert_int_equal(cache_write(c, key, &e), -1);
    }
    cache_entry_free(&e);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, folders[n]));
    cache_close(c);
  }
  cache *c = cache_open("", count_warning, NULL); /* memory only: nothing to warn of */
  assert_int_equal(warnings, 1);
  assert_string_equal(cache_path(c), "");
  assert_int_equal(read_entry(c, 1, 10), CACHE_MISS);
  cache_close(c);
}

#define RESTORE(name, value) ((value) ? setenv(name, value, 1) : unsetenv(name), free(value))
static void test_directory_choice(void **state) {
  (void)state;
  const char *home = getenv("HOME"), *xdg = getenv("XDG_CACHE_HOME"), *own = getenv("QKV_CACHE_DIR");
  char *saved_home = home ? strdup(home) : NULL, *saved_xdg = xdg ? strdup(xdg) : NULL,
       *saved_own = own ? strdup(own) : NULL;
  static const struct {
    const char *own, *xdg, *home, *want; /* want: relative to the root */
  } rows[] = {
      {"/own", "/xdg", "/home", "/own"},
      {NULL, "/xdg", "/home", "/xdg/qkvc"},
      {NULL, NULL, "/home", "/home/.cache/qkvc"},
      {NULL, "relative", "/home", "/home/.cache/qkvc"},
      {"", "/xdg", "/home", NULL},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    const char *values[] = {rows[n].own, rows[n].xdg, rows[n].home},
               *names[] = {"QKV_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};
    for (int v = 0; v < 3; v++) {
      char value[600];
      snprintf(value, sizeof value, "%s%s", values[v] && *values[v] == '/' ? root : "", values[v] ? values[v] : "");
      if (values[v])
        setenv(names[v], value, 1);
      else
        unsetenv(names[v]);
    }
    char want[600] = "";
    if (rows[n].want)
      snprintf(want, sizeof want, "%s%s", root, rows[n].want);
    cache *c = cache_open(NULL, count_warning, NULL);
    assert_string_equal(cache_path(c), want);
    cache_close(c);
  }
  assert_int_equal(warnings, 0);
  RESTORE("HOME", saved_home);
  RESTORE("XDG_CACHE_HOME", saved_xdg);
  RESTORE("QKV_CACHE_DIR", saved_own);
}

/* Containers with an arbitrary user id have HOME unset or "/": the password file's home then, and never "/.cache". */
static void test_no_home(void **state) {
  (void)state;
  static const char *const homes[] = {NULL, "", "/", "relative"};
  const struct passwd *user = getpwuid(geteuid());
  char want[600] = "", *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
  char *xdg = getenv("XDG_CACHE_HOME") ? strdup(getenv("XDG_CACHE_HOME")) : NULL;
  char *own = getenv("QKV_CACHE_DIR") ? strdup(getenv("QKV_CACHE_DIR")) : NULL;
  unsetenv("XDG_CACHE_HOME");
  unsetenv("QKV_CACHE_DIR");
  if (user && user->pw_dir[0] == '/' && user->pw_dir[1])
    snprintf(want, sizeof want, "%s/.cache/qkvc", user->pw_dir);
  for (size_t n = 0; n < sizeof homes / sizeof *homes; n++) {
    if (homes[n])
      setenv("HOME", homes[n], 1);
    else
      unsetenv("HOME");
    char *chosen = cache_choose_directory();
    assert_string_equal(chosen, want);
    free(chosen);
  }
  RESTORE("HOME", home);
  RESTORE("XDG_CACHE_HOME", xdg);
  RESTORE("QKV_CACHE_DIR", own);
}

/* A relative directory stays where it was when the process goes elsewhere. */
static void test_relative_directory(void **state) {
  (void)state;
  char before[4096];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(root), 0);
  cache *c = cache_open("below", count_warning, NULL);
  assert_int_equal(chdir("/"), 0);
  publish_entry(c, 1, 10);
  assert_int_equal(chdir(before), 0);
  cache *same = open_in("/below");
  assert_int_equal(read_entry(same, 1, 10), CACHE_HIT);
  cache_close(same);
  cache_close(c);
}

/* A size limit that is no number is not taken for another one in silence. */
static void test_bad_size_limit(void **state) {
  (void)state;
  static const char *const words[] = {"1G", "-1", "lots", "99999999999999999999", "1e6"};
  for (size_t n = 0; n < sizeof words / sizeof *words; n++) {
    warnings = 0;
    setenv("QKV_CACHE_MAX_BYTES", words[n], 1);
    cache_close(open_in(""));
    if (warnings != 1 || !strstr(last_warning, "QKV_CACHE_MAX_BYTES"))
      fail_msg("QKV_CACHE_MAX_BYTES=%s: %d warnings, last: %s", words[n], warnings, last_warning);
  }
  unsetenv("QKV_CACHE_MAX_BYTES");
}

static void test_failing_calls(void **state) {
  (void)state;
  static const struct {
    const char *fault;
    int writes; /* result of cache_write */
    int lost;   /* the entry is not there afterwards although it was written */
  } rows[] = {
      {"open:EROFS", -1, 0},    {"open:EACCES", -1, 0},    {"write:ENOSPC", -1, 0},   {"write:EIO", -1, 0},
      {"write:short", 0, 0},    {"write:short:0:3", 0, 0}, {"write:EINTR:0:2", 0, 0}, {"write:ENOSPC:0:1", 0, 0},
      {"fsync:EIO", -1, 0},     {"fsync:EDQUOT", -1, 0},   {"close:EIO", -1, 0},      {"rename:ENOENT", -1, 0},
      {"rename:ESTALE", -1, 0}, {"rename:EBUSY", -1, 0},   {"rename:lost", 0, 1},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char key[CACHE_KEY_SIZE], folder[32];
    snprintf(folder, sizeof folder, "/%zu", n);
    cache *c = open_in(folder);
    cache_entry e = make_entry(1, 5000);
    make_key(1, key);
    warnings = 0;
    fault_set(rows[n].fault);
    int result = cache_write(c, key, &e);
    fault_set(NULL);
    if (result != rows[n].writes)
      fail_msg("%s: cache_write gave %d", rows[n].fault, result);
    if (count_files(cache_path(c), ".tmp-"))
      fail_msg("%s: a temporary file was left behind", rows[n].fault);
    assert_int_equal(warnings, result != 0);
    assert_int_equal(cache_error_count(c), result != 0);
    cache_result want = result == 0 && !rows[n].lost ? CACHE_HIT : CACHE_MISS;
    if (read_entry(c, 1, 5000) != want)
      fail_msg("%s: then reading was not %s", rows[n].fault, want == CACHE_HIT ? "a hit" : "a miss");
    cache_entry_free(&e);
    cache_close(c);
  }
}

static void test_failing_reads(void **state) {
  (void)state;
  static const struct {
    const char *fault;
    cache_result want;
  } rows[] = {{"open:ESTALE:0:1", CACHE_HIT}, {"open:ESTALE", CACHE_MISS},   {"open:ENOENT", CACHE_MISS},
              {"open:EACCES", CACHE_MISS},    {"read:EIO", CACHE_MISS},      {"read:ESTALE:0:1", CACHE_HIT},
              {"read:short", CACHE_HIT},      {"read:EINTR:0:1", CACHE_HIT}, {"open:EIO", CACHE_MISS}};
  cache *c = open_in("");
  publish_entry(c, 1, 5000);
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    fault_set(rows[n].fault);
    cache_result result = read_entry(c, 1, 5000);
    fault_set(NULL);
    if (result != rows[n].want)
      fail_msg("%s: cache_read gave %d", rows[n].fault, (int)result);
    assert_int_equal(read_entry(c, 1, 5000), CACHE_HIT); /* nothing was removed for it */
  }
  assert_int_equal(warnings, 1);
  cache_close(c);
}

static void test_directory_vanishes(void **state) {
  (void)state;
  cache *c = open_in("/gone/with/its/parents");
  publish_entry(c, 1, 100);
  char command[600];
  snprintf(command, sizeof command, "rm -rf '%s/gone'", root);
  assert_int_equal(system(command), 0);
  assert_int_equal(read_entry(c, 1, 100), CACHE_MISS);
  publish_entry(c, 1, 100);
  assert_int_equal(read_entry(c, 1, 100), CACHE_HIT);
  assert_int_equal(warnings, 0);
  cache_close(c);
}

/* 16 processes publish and read one key; a third are killed on the way. All that read see a whole entry. */
static void test_processes(void **state) {
  (void)state;
  enum { PROCESSES = 16, SIZE = 100000 };
  pid_t children[PROCESSES];
  for (int n = 0; n < PROCESSES; n++) {
    children[n] = fork();
    assert_true(children[n] >= 0);
    if (children[n] == 0) {
      cache *c = open_in("/shared");
      for (int round = 0; round < 20; round++) {
        char key[CACHE_KEY_SIZE];
        cache_entry e = make_entry(1, SIZE), got;
        make_key(1, key);
        if (cache_write(c, key, &e) || cache_read(c, key, &got) != CACHE_HIT || got.image_size != SIZE ||
            memcmp(got.image, e.image, SIZE))
          _exit(1);
        cache_entry_free(&e);
        cache_entry_free(&got);
      }
      _exit(cache_error_count(c) ? 2 : 0);
    }
  }
  for (int n = 0; n < PROCESSES; n += 3) {
    usleep(3000);
    kill(children[n], SIGKILL);
  }
  for (int n = 0; n < PROCESSES; n++) {
    int status;
    assert_int_equal(waitpid(children[n], &status, 0), children[n]);
    if (n % 3)
      assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  cache *c = open_in("/shared");
  if (access(entry_path(c, 1), F_OK) == 0)
    assert_int_equal(read_entry(c, 1, SIZE), CACHE_HIT);
  assert_int_equal(cache_error_count(c), 0);
  cache_close(c);
}

static void set_age(const char *path, int seconds) {
  struct timespec times[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_size_limit(void **state) {
  (void)state;
  setenv("QKV_CACHE_MAX_BYTES", "50000", 1);
  cache *c = open_in("");
  char stale[512], fresh[512];
  snprintf(stale, sizeof stale, "%s/.tmp-1-00", root);
  snprintf(fresh, sizeof fresh, "%s/.tmp-2-00", root);
  rewrite(stale, (const unsigned char *)"x", 1);
  rewrite(fresh, (const unsigned char *)"x", 1);
  set_age(stale, 7200);
  for (unsigned seed = 0; seed < 4; seed++) { /* 40 kB: below the limit; the higher the seed, the older */
    publish_entry(c, seed, 10000);
    set_age(entry_path(c, seed), 1000 * (int)seed + 1000);
  }
  cache_close(c); /* else they would all be in use */
  c = open_in("");
  assert_int_equal(access(stale, F_OK), -1); /* swept */
  assert_int_equal(access(fresh, F_OK), 0);
  assert_int_equal(read_entry(c, 3, 10000), CACHE_HIT); /* used: now the youngest */
  publish_entry(c, 4, 10000);                           /* 50 kB and headers: over */
  static const cache_result want[] = {CACHE_HIT, CACHE_HIT, CACHE_MISS, CACHE_HIT, CACHE_HIT};
  for (unsigned seed = 0; seed < 5; seed++)
    if (read_entry(c, seed, 10000) != want[seed])
      fail_msg("entry %u was %s", seed, want[seed] == CACHE_HIT ? "evicted" : "kept");
  for (unsigned seed = 10; seed < 20; seed++) /* young entries stay even over the limit */
    publish_entry(c, seed, 10000);
  for (unsigned seed = 10; seed < 20; seed++)
    assert_int_equal(read_entry(c, seed, 10000), CACHE_HIT);
  unsetenv("QKV_CACHE_MAX_BYTES");
  cache_close(c);
}

static int take_all(const manifest *m, void *user) {
  (void)m, (void)user;
  return 1;
}

static int visit_entry(const qkv_cache_entry *entry, void *user) {
  char *seen = user;
  sprintf(seen + strlen(seen), "%.2s:%s:%s ", entry->key, entry->newer ? "newer" : entry->valid ? "1" : "0",
          entry->family);
  return 0;
}

/* Another process clears the directory while the first entry is looked at. */
static int visit_and_clear(const qkv_cache_entry *entry, void *user) {
  (void)entry;
  const cache *c = user;
  char command[600];
  warnings++;
  snprintf(command, sizeof command, "rm -f %s/*.kernel", cache_path(c));
  return system(command);
}

/* What is gone when its turn comes is nobody's damage. */
static void test_entries_that_vanish(void **state) {
  (void)state;
  cache *c = open_in("");
  for (unsigned seed = 0; seed < 3; seed++)
    publish_entry(c, seed, 10);
  assert_int_equal(cache_visit(c, visit_and_clear, c), 0);
  assert_int_equal(warnings, 1);
  cache_close(c);
}

/* A directory that cannot be read is no empty one. */
static void test_unreadable_directory(void **state) {
  (void)state;
  static const char *const faults[] = {"opendir:EIO", "opendir:EACCES", "readdir:EIO:1"};
  const qkv_cache_gc_options o = {.size = sizeof o, .max_bytes = 0, .older_than = 0};
  cache *c = open_in("");
  char seen[256];
  int64_t counts[2];
  int unread;
  text why = {0};
  for (unsigned seed = 0; seed < 3; seed++)
    publish_entry(c, seed, 10);
  for (size_t n = 0; n < sizeof faults / sizeof *faults; n++) {
    const int wanted = n == 1 ? EACCES : EIO;
    qkv_cache_gc_report r;
    setenv("QKV_FAULT_UNDER", root, 1);
    fault_set(faults[n]);
    seen[0] = 0;
    assert_int_equal(cache_visit(c, visit_entry, seen), wanted);
    fault_set(faults[n]);
    assert_int_equal(cache_gc(c, &o, &r), wanted);
    assert_int_equal(r.removed, 0);
    fault_set(faults[n]);
    assert_int_equal(cache_export(c, "/nonexistent", take_all, NULL, &counts[0], &counts[1], &unread), 0);
    assert_int_equal(unread, wanted);
    fault_set(faults[n]);
    assert_int_equal(cache_clear(c, 1, counts), wanted);
    fault_set(NULL);
    unsetenv("QKV_FAULT_UNDER");
  }
  seen[0] = 0;
  assert_int_equal(cache_visit(c, visit_entry, seen), 0);
  assert_int_equal(strlen(seen), 3 * strlen("ab:1: "));
  /* One that is gone is empty. */
  char command[600];
  snprintf(command, sizeof command, "rm -rf %s", cache_path(c));
  assert_int_equal(system(command), 0);
  assert_int_equal(cache_visit(c, visit_entry, seen), 0);
  assert_true(cache_claim_directory(cache_path(c), 0700, &why));
  text_free(&why);
  cache_close(c);
}

static void test_list_and_clear(void **state) {
  (void)state;
  cache *c = open_in("");
  manifest m = {.family = "attention_naive", .arch = "sm_80", .schedule = "tile_m=64", .nlaunches = 1};
  memset(m.variant_hash, 'a', 32);
  m.launches[0] = (manifest_launch){.entry = "kernel", .block = 128, .cluster = 1, .grid = {1, {{SIZE_BATCH, 1}}}};
  text written = {0};
  manifest_write(&m, &written);
  static const char *const keys[] = {"bb000000000000000000000000000000", "aa000000000000000000000000000000",
                                     "cc000000000000000000000000000000"};
  for (int n = 0; n < 3; n++) {
    cache_entry e = {.manifest = written.bytes, .manifest_size = written.size, .image = (char[]){"x"}, .image_size = 1};
    assert_int_equal(cache_write(c, keys[n], &e), 0);
  }
  char path[600], seen[256] = "";
  snprintf(path, sizeof path, "%s/%s.kernel", root, keys[2]);
  rewrite(path, (const unsigned char *)"damaged", 7);
  snprintf(path, sizeof path, "%s/notes.txt", root);
  rewrite(path, (const unsigned char *)"mine", 4);
  assert_int_equal(cache_visit(c, visit_entry, seen), 0);
  assert_string_equal(seen, "aa:1:attention_naive bb:1:attention_naive cc:0: ");
  /* An entry of a later format, and one whose manifest is of another version, are no damage. */
  unsigned char newer[100] = "qkvcache\2";
  const cache_entry other = {.manifest = (char[]){"manifest 99\n"}, .manifest_size = 12, .image = "x", .image_size = 1};
  rewrite(entry_of(c, "dd000000000000000000000000000000"), newer, sizeof newer);
  assert_int_equal(cache_write(c, "ee000000000000000000000000000000", &other), 0);
  seen[0] = 0;
  assert_int_equal(cache_visit(c, visit_entry, seen), 0);
  assert_string_equal(seen, "aa:1:attention_naive bb:1:attention_naive cc:0: dd:newer: ee:1: ");
  int64_t removed, copied, invalid;
  char elsewhere[600];
  snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", root);
  assert_int_equal(mkdir(elsewhere, 0700), 0);
  int unread;
  assert_int_equal(cache_export(c, elsewhere, take_all, NULL, &copied, &invalid, &unread), 0);
  assert_true(copied == 3 && invalid == 1 && unread == 0);
  assert_int_equal(cache_clear(c, 1, &removed), 0);
  assert_int_equal(removed, 1);
  assert_int_equal(access(entry_of(c, "dd000000000000000000000000000000"), F_OK), 0);
  assert_int_equal(cache_clear(c, 0, &removed), 0);
  assert_int_equal(removed, 4);
  assert_int_equal(access(path, F_OK), 0); /* what is not ours stays */
  text_free(&written);
  cache_close(c);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_speed(void **state) {
  (void)state;
  cache *c = open_in("");
  publish_entry(c, 1, 200000);
  double best = 1;
  for (int n = 0; n < 20; n++) {
    double start = seconds();
    cache_entry e;
    char key[CACHE_KEY_SIZE];
    make_key(1, key);
    assert_int_equal(cache_read(c, key, &e), CACHE_HIT);
    cache_entry_free(&e);
    double took = seconds() - start;
    best = took < best ? took : best;
  }
  print_message("reading and verifying an entry of 200 kB: %.0f us\n", best * 1e6);
  assert_true(best < 0.02);
  cache_close(c);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(test_round_trip),    TEST(test_keys_differ),          TEST(test_any_compiler),
      TEST(test_damage),        TEST(test_swapped_entries),      TEST(test_strange_entries),
      TEST(test_foreign_owner), TEST(test_unusable_directories), TEST(test_directory_choice),
      TEST(test_no_home),       TEST(test_relative_directory),   TEST(test_bad_size_limit),
      TEST(test_failing_calls), TEST(test_failing_reads),        TEST(test_directory_vanishes),
      TEST(test_processes),     TEST(test_size_limit),           TEST(test_list_and_clear),
      TEST(test_speed),         TEST(test_entries_that_vanish),  TEST(test_unreadable_directory),
      TEST(test_moved_parts),   TEST(test_sizes_of_any_kind)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
