/* test_cache_faults.c: every system call of the cache fails, each in every way and at every occurrence, below an engine
 * that prepares and runs a kernel. Whatever fails: the run completes with the right results, nothing that is damaged is
 * loaded or published, and the directory heals. The same with calls that fail from some moment on, and with a process
 * killed at every call.
 *
 * An engine runs for every call and occurrence, failing in one way, and for calls that fail so from the first on; for
 * the other ways, and for those that die, what it does with the cache runs alone. QKV_TEST_FULL=1: an engine for all
 * failures, in minutes.
 *
 * A failure prints the line that repeats it: QKV_TEST_FAULT='SCENARIO FUNCTION:WHAT:SKIP:COUNT' test_cache_faults. */
#define _GNU_SOURCE /* fault/filesystem.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache_internal.h"
#include "file.h"
#include "tiny_problem.h"

#include "fault/filesystem.c"

static char root[64], folder[128], tools[64]; /* the test's, the cache's below it, the compiler's */
static int warnings;
static unsigned char *entry; /* the file of the one kernel, as it should be */
static size_t entry_size;
static char entry_key[CACHE_KEY_SIZE];
static float right[TINY_COUNT];
static tiny_result result;

static void count_warning(qkv_log_level level, const char *message, void *user) {
  (void)message, (void)user;
  warnings += level == QKV_LOG_WARNING;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *place) {
  (void)st, (void)kind, (void)place;
  return remove(path);
}

static void remove_tree(const char *path) {
  if (access(path, F_OK) == 0)
    assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void make_folder(void) {
  text why = {0};
  if (!cache_claim_directory(folder, 0700, &why))
    fail_msg("%s: %s", folder, why.bytes);
}

static void run_engine(void) {
  qkv_options o = QKV_OPTIONS_INIT;
  o.device = "emu";
  o.cache_dir = folder;
  o.log = count_warning;
  warnings = 0;
  tiny_run(&o, 0, &result);
}

static void count_message(const char *message, void *user) {
  count_warning(QKV_LOG_WARNING, message, user);
}

/* What an engine does with the cache: what is not there it has from its compiler and publishes. NULL, or what is wrong.
 */
static const char *run_cache(void) {
  cache_entry got, want;
  warnings = 0;
  cache *c = cache_open(folder, count_message, NULL);
  assert_int_equal(cache_decode(entry_key, entry, entry_size, &want), 1);
  cache_result hit = cache_read(c, entry_key, &got);
  if (hit != CACHE_HIT) {
    int turn = cache_turn_take(c, entry_key);
    cache_write(c, entry_key, &want);
    cache_turn_give(turn, entry_key);
  }
  int equal =
      hit != CACHE_HIT || (got.image_size == want.image_size && !memcmp(got.image, want.image, got.image_size) &&
                           got.manifest_size == want.manifest_size &&
                           !memcmp(got.manifest, want.manifest, got.manifest_size) && !strcmp(got.log, want.log));
  cache_entry_free(&got);
  cache_entry_free(&want);
  cache_close(c);
  return !equal ? "a damaged entry was loaded" : warnings > 1 ? "more than one warning" : NULL;
}

static void write_file(const char *name, const void *bytes, size_t size, int age) {
  char path[256];
  struct timespec times[2] = {{.tv_sec = time(NULL) - age}, {.tv_sec = time(NULL) - age}};
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, size, f), size);
  assert_int_equal(fclose(f), 0);
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* ---- Scenarios: what the directory holds before ---- */

enum { OTHERS = 3, OTHER_SIZE = 40000, OLD = 7200 };

static void plant_nothing(void) {}

static void plant_entry(void) {
  char name[64];
  snprintf(name, sizeof name, "%s.kernel", entry_key);
  make_folder();
  write_file(name, entry, entry_size, OLD);
}

static void plant_damage(void) {
  plant_entry();
  char name[64];
  snprintf(name, sizeof name, "%s.kernel", entry_key);
  entry[entry_size / 2] ^= 1;
  write_file(name, entry, entry_size, OLD);
  entry[entry_size / 2] ^= 1;
}

static void other_key(int n, char key[CACHE_KEY_SIZE]) {
  snprintf(key, CACHE_KEY_SIZE, "%032d", n);
}

/* Beyond its limit with entries that nobody uses, what a crashed process left, and leases. */
static void plant_others(void) {
  make_folder();
  for (int n = 0; n < OTHERS; n++) {
    char key[CACHE_KEY_SIZE], name[64], image[OTHER_SIZE];
    size_t size;
    other_key(n, key);
    memset(image, n, sizeof image);
    const cache_entry e = {.manifest = key, .manifest_size = 4, .image = image, .image_size = sizeof image};
    void *bytes = cache_encode(key, &e, &size);
    snprintf(name, sizeof name, "%s.kernel", key);
    write_file(name, bytes, size, OLD + n);
    free(bytes);
  }
  write_file(".tmp-1-00", "x", 1, OLD);
  write_file(".lease-0", "00000000000000000000000000000000\n", 33, OLD);
}

static const struct scenario {
  const char *name;
  void (*plant)(void);
  const char *limit; /* of the directory's size */
} scenarios[] = {{"empty", plant_nothing, NULL},
                 {"filled", plant_entry, NULL},
                 {"damaged", plant_damage, NULL},
                 {"crowded", plant_others, "60000"}};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

static void start(const struct scenario *s) {
  fault_set(NULL);
  remove_tree(getenv("QKV_FAULT_UNDER"));
  s->plant();
  if (s->limit)
    setenv("QKV_CACHE_MAX_BYTES", s->limit, 1);
  else
    unsetenv("QKV_CACHE_MAX_BYTES");
}

/* ---- What must hold afterwards ---- */

/* Is the file of an entry what was published under that name? The planted damage may still be there, unread. */
static int is_sound(const char *name, int may_be_damaged) {
  char key[CACHE_KEY_SIZE], path[256];
  void *bytes = NULL;
  size_t size;
  struct stat st;
  memcpy(key, name, CACHE_KEY_SIZE - 1);
  key[CACHE_KEY_SIZE - 1] = 0;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  int sound = cache_read_file(path, &bytes, &size, &st) > 0 && cache_decode(key, bytes, size, NULL) == 1 &&
              (strcmp(key, entry_key) || (size == entry_size && !memcmp(bytes, entry, size)));
  free(bytes);
  return sound || (may_be_damaged && !strcmp(key, entry_key));
}

/* NULL, or what is wrong with the directory. */
static const char *judge_directory(int may_be_damaged, int may_be_littered) {
  static char wrong[300];
  const char *verdict = NULL;
  DIR *dir = opendir(folder);
  for (struct dirent *e; dir && !verdict && (e = readdir(dir));) {
    int kernel = strstr(e->d_name, CACHE_SUFFIX) != NULL;
    if (kernel ? !is_sound(e->d_name, may_be_damaged)
               : !strncmp(e->d_name, FILE_TEMPORARY, 5) && strcmp(e->d_name, ".tmp-1-00") && !may_be_littered) {
      snprintf(wrong, sizeof wrong, "%s %s", e->d_name, kernel ? "is damaged" : "was left behind");
      verdict = wrong;
    }
  }
  if (dir)
    closedir(dir);
  return verdict;
}

/* Publishing works again, and what is read then is right. */
static const char *judge_healing(void) {
  cache_entry got;
  const char *wrong = run_cache();
  cache *c = cache_open(folder, NULL, NULL);
  int hit = cache_read(c, entry_key, &got) == CACHE_HIT;
  cache_entry_free(&got);
  cache_close(c);
  return wrong ? wrong : hit ? run_cache() : "then the entry is not to be had";
}

static const char *judge_run(void) {
  const char *wrong = tiny_judge(&result);
  if (wrong)
    return wrong;
  if (memcmp(result.o, right, sizeof right))
    return "other bits than without a fault";
  return warnings > 1 ? "more than one warning" : NULL;
}

/* ---- The faults ---- */

#define READING "ENOENT ESTALE EIO EACCES"
static const struct fault_row {
  const char *function, *ways;
} rows[] = {{"mkdir", "EROFS EACCES ENOSPC EDQUOT EIO ESTALE +EIO"},
            {"stat", READING},
            {"open", READING " EROFS EPERM ENOSPC EDQUOT EMFILE EINTR EBUSY +EIO +ENOENT"},
            {"fstat", "ESTALE EIO"},
            {"read", "EIO ESTALE EINTR short zero"},
            {"write", "ENOSPC EDQUOT EIO ESTALE EINTR short zero"},
            {"fsync", "ENOSPC EDQUOT EIO ESTALE +EIO"},
            {"close", "ENOSPC EDQUOT EIO EINTR ESTALE"},
            {"rename", "ENOENT ESTALE EBUSY EROFS EACCES ENOSPC EDQUOT EIO +ENOENT +EIO +ESTALE lost"},
            {"unlink", "ENOENT EBUSY EROFS EACCES ESTALE EIO +EIO"},
            {"lstat", READING},
            {"utimensat", "EROFS EACCES ENOENT EIO ESTALE"},
            {"opendir", "EACCES EIO ESTALE EMFILE"},
            {"readdir", "EIO ESTALE"},
            {"fstatat", "ENOENT ESTALE EIO"},
            {"flock", "ENOLCK EINTR EIO"},
            {"fcntl", "ENOLCK EINTR EIO"},
            {"ftruncate", "EIO EROFS"},
            {"pwrite", "ENOSPC EDQUOT EIO short zero"},
            {"pread", "EIO short zero"}};
enum { ROWS = sizeof rows / sizeof *rows };
static const char deaths[] = "kill +kill torn";

/* What was met, by function. */
enum { BY_ENGINE, BY_CACHE, FROM_THEN_ON, DEATHS, COLUMNS };
static int counts[ROWS][COLUMNS];

/* The next of blank-separated words; 0 at their end. */
static int next_word(const char **at, char word[32]) {
  int length = 0;
  if (sscanf(*at, "%31s%n", word, &length) != 1)
    return 0;
  *at += length;
  return 1;
}

static int selects(const struct scenario *s, const char *fault) {
  char line[128];
  snprintf(line, sizeof line, "%s %s", s->name, fault);
  return !getenv("QKV_TEST_FAULT") || !strcmp(getenv("QKV_TEST_FAULT"), line);
}

/* A run under one fault: whether a call met it. */
typedef int (*trial)(const struct scenario *s, const char *fault);

/* Calls one after the other until none is left that the fault could meet. The number that met it. */
static int sweep_calls(trial try, const struct scenario *s, const char *function, const char *way, int count) {
  int met = 0;
  for (int skip = 0, more = 1; more; skip++) {
    char fault[96];
    snprintf(fault, sizeof fault, "%s:%s:%d:%d", function, way, skip, count);
    int selected = selects(s, fault);
    more = selected ? try(s, fault) : skip < 200; /* not selected: somewhere is the one line to be repeated */
    met += selected && more;
  }
  return met;
}

/* Every function, scenario and way in turn, a function in the first `most` of `ways` (NULL: its own). No signal
 * interrupts for ever, and only what writes can be torn. */
static void sweep(trial try, const char *ways, int most, int count, int column) {
  char way[32];
  for (int r = 0; r < ROWS; r++) {
    const char *at = ways ? ways : rows[r].ways;
    for (int n = 0; n < most && next_word(&at, way); n++)
      for (int s = 0; s < SCENARIOS; s++)
        if ((strcmp(way, "torn") || strstr(rows[r].function, "write")) && (count == 1 || strcmp(way, "EINTR")))
          counts[r][column] += sweep_calls(try, &scenarios[s], rows[r].function, way, count);
  }
}

static void expect_well(const char *wrong, const struct scenario *s, const char *fault) {
  if (wrong)
    fail_msg("%s\n  QKV_TEST_FAULT='%s %s' test_cache_faults", wrong, s->name, fault);
}

/* One run under one fault, of an engine or of the cache alone. Whether a call met it. */
static int inject(const struct scenario *s, const char *fault, int whole) {
  const char *wrong = NULL;
  start(s);
  fault_set(fault);
  if (whole)
    run_engine();
  else
    wrong = run_cache();
  int hits = fault_hits;
  fault_set(NULL);
  int unlinks = strstr(fault, "unlink") != NULL, damaged = s->plant == plant_damage;
  expect_well(whole ? judge_run() : wrong, s, fault);
  expect_well(judge_directory(damaged, unlinks), s, fault);
  expect_well(judge_healing(), s, fault);
  expect_well(judge_directory(0, unlinks), s, fault);
  return hits > 0;
}

static int inject_whole(const struct scenario *s, const char *fault) {
  return inject(s, fault, 1);
}

static int inject_cache(const struct scenario *s, const char *fault) {
  return inject(s, fault, getenv("QKV_TEST_FULL") != NULL);
}

/* A function that fails in its first way from its first call on. */
static int is_first(const char *fault) {
  char first[96];
  int found = 0;
  for (int r = 0; r < ROWS; r++) {
    snprintf(first, sizeof first, "%s:%.*s:0:", rows[r].function, (int)strcspn(rows[r].ways, " "), rows[r].ways);
    found |= !strncmp(fault, first, strlen(first));
  }
  return found;
}

static int inject_from_then_on(const struct scenario *s, const char *fault) {
  return inject(s, fault, is_first(fault) || getenv("QKV_TEST_FULL"));
}

enum { ALL_WAYS = 100, FOR_EVER = 1 << 30 };

static void test_every_call_fails_below_an_engine(void **state) {
  (void)state;
  sweep(inject_whole, NULL, 1, 1, BY_ENGINE);
}

static void test_every_call_fails_in_every_way(void **state) {
  (void)state;
  sweep(inject_cache, NULL, ALL_WAYS, 1, BY_CACHE);
}

static void test_every_call_fails_from_then_on(void **state) {
  (void)state;
  sweep(inject_from_then_on, NULL, ALL_WAYS, FOR_EVER, FROM_THEN_ON);
}

/* ---- Death ---- */

/* A process under a fault that kills it. 1: it died; 0: there was no such call left. */
static int die(const struct scenario *s, const char *fault) {
  start(s);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    fault_set(fault);
    _exit(run_cache() != NULL);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) {
    expect_well(WEXITSTATUS(status) ? "a run that nothing befell went wrong" : NULL, s, fault);
    return 0;
  }
  expect_well(WTERMSIG(status) != SIGKILL ? "it died of something else" : NULL, s, fault);
  expect_well(judge_directory(s->plant == plant_damage, 1), s, fault);
  expect_well(judge_healing(), s, fault);
  expect_well(judge_directory(0, 1), s, fault);
  return 1;
}

static void test_death_at_every_call(void **state) {
  (void)state;
  sweep(die, deaths, ALL_WAYS, 1, DEATHS);
}

/* ---- Everything around it ---- */

static void print_counts(void) {
  int total[COLUMNS] = {0};
  print_message("%-10s %6s %6s %6s %6s  %s\n", "call", "engine", "cache", "stays", "kills", "ways");
  for (int r = 0; r < ROWS; r++) {
    const int *n = counts[r];
    print_message("%-10s %6d %6d %6d %6d  %s\n", rows[r].function, n[0], n[1], n[2], n[3], rows[r].ways);
    for (int column = 0; column < COLUMNS; column++)
      total[column] += n[column];
  }
  print_message("%-10s %6d %6d %6d %6d  all survived\n", "together", total[0], total[1], total[2], total[3]);
}

/* Where one kernel was compiled and found right without a fault. */
static int begin(void **state) {
  (void)state;
  if (!tiny_folder(root, "qkv-faults") || !tiny_compiler(tools))
    return -1;
  snprintf(folder, sizeof folder, "%s/cache/deep", root);
  char under[80];
  snprintf(under, sizeof under, "%s/cache", root);
  setenv("QKV_FAULT_UNDER", under, 1);
  run_engine();
  const char *wrong = judge_directory(0, 0);
  wrong = tiny_judge(&result) ? tiny_judge(&result) : wrong;
  if (wrong) {
    fprintf(stderr, "without a fault: %s\n", wrong);
    return -1;
  }
  memcpy(right, result.o, sizeof right);
  DIR *dir = opendir(folder);
  for (struct dirent *e; dir && (e = readdir(dir));)
    if (strstr(e->d_name, CACHE_SUFFIX)) {
      char path[400];
      void *bytes;
      struct stat st;
      snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
      memcpy(entry_key, e->d_name, CACHE_KEY_SIZE - 1);
      if (cache_read_file(path, &bytes, &entry_size, &st) > 0)
        entry = bytes;
    }
  closedir(dir);
  return entry ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  fault_set(NULL);
  print_counts();
  remove_tree(root);
  tiny_compiler_remove(tools);
  free(entry);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_call_fails_below_an_engine), cmocka_unit_test(test_every_call_fails_in_every_way),
      cmocka_unit_test(test_every_call_fails_from_then_on), cmocka_unit_test(test_death_at_every_call)};
  return cmocka_run_group_tests(tests, begin, end);
}
