/* test_cache_processes.c: many processes on one cache: some killed at random, all on one key at once, evicting what
 * others use, of other users, without the right to write. */
#define _GNU_SOURCE /* fault/filesystem.c, setresuid */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache_internal.h"
#include "qkv_pack.h"
#include "tiny_problem.h"

#include "fault/filesystem.c"

enum { OLD = 7200 };

static char root[64];
static int warnings;

static void count_warning(const char *message, void *user) {
  (void)message, (void)user;
  warnings++;
}

static int begin(void **state) {
  (void)state;
  warnings = 0;
  fault_set(NULL);
  return tiny_folder(root, "qkv-procs") ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  char command[128];
  fault_set(NULL);
  snprintf(command, sizeof command, "rm -rf %s", root);
  return system(command);
}

static cache *open_in(const char *folder) {
  char path[128];
  snprintf(path, sizeof path, "%s%s", root, folder);
  cache *c = cache_open(path, count_warning, NULL);
  assert_non_null(c);
  return c;
}

/* ---- Entries whose every byte follows from their number ---- */

static void key_of(unsigned n, char key[CACHE_KEY_SIZE]) {
  char source[32];
  snprintf(source, sizeof source, "source %u", n);
  cache_key(source, "sm_80", "compiler", key);
}

static size_t size_of(unsigned n) {
  return 1000 + n * 7919 % 300000;
}

static cache_entry make_entry(unsigned n) {
  cache_entry e = {
      .manifest = strdup("manifest"), .manifest_size = 8, .image = malloc(size_of(n)), .log = strdup("log")};
  e.image_size = size_of(n);
  for (size_t at = 0; at < e.image_size; at++)
    ((unsigned char *)e.image)[at] = (unsigned char)(at * 7 + n);
  return e;
}

static int write_entry(cache *c, unsigned n) {
  char key[CACHE_KEY_SIZE];
  cache_entry e = make_entry(n);
  key_of(n, key);
  int result = cache_write(c, key, &e);
  cache_entry_free(&e);
  return result;
}

/* -1: what was read is wrong. */
static int read_entry(cache *c, unsigned n) {
  char key[CACHE_KEY_SIZE];
  cache_entry got, want = make_entry(n);
  key_of(n, key);
  int result = (int)cache_read(c, key, &got);
  if (result == CACHE_HIT && (got.image_size != want.image_size || memcmp(got.image, want.image, got.image_size)))
    result = -1;
  cache_entry_free(&got);
  cache_entry_free(&want);
  return result;
}

static void path_of(const cache *c, unsigned n, char path[256]) {
  char key[CACHE_KEY_SIZE];
  key_of(n, key);
  snprintf(path, 256, "%s/%s.kernel", cache_path(c), key);
}

static int is_there(const cache *c, unsigned n) {
  char path[256];
  path_of(c, n, path);
  return access(path, F_OK) == 0;
}

static void set_age(const cache *c, unsigned n, int seconds) {
  char path[256];
  struct timespec times[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
  path_of(c, n, path);
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Entries 0..count-1, old, published by nobody who lives; the lower, the older. */
static void fill(const char *folder, unsigned count) {
  cache *c = open_in(folder);
  for (unsigned n = 0; n < count; n++) {
    assert_int_equal(write_entry(c, n), 0);
    set_age(c, n, OLD + (int)(count - n));
  }
  cache_close(c);
}

static qkv_cache_gc_report collect(cache *c, int64_t max_bytes) {
  const qkv_cache_gc_options o = {.size = sizeof o, .max_bytes = max_bytes, .older_than = -1};
  qkv_cache_gc_report r;
  cache_gc(c, &o, &r);
  return r;
}

/* ---- Killed at random ---- */

static unsigned random_state;
static unsigned random_below(unsigned limit) {
  random_state = random_state * 1664525u + 1013904223u;
  return (random_state >> 8) % limit;
}

enum { KEYS = 8 };

static void write_for_ever(void) {
  cache *c = open_in("");
  for (;;) {
    unsigned n = random_below(KEYS);
    if (random_below(4) ? write_entry(c, n) : read_entry(c, n) < 0)
      _exit(1);
  }
}

static void test_killed_at_random(void **state) {
  (void)state;
  const char *given = getenv("QKV_TEST_SEED");
  unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL) % 1000000, deaths = 0;
  time_t stop = time(NULL) + 8;
  random_state = seed;
  for (; time(NULL) < stop && deaths < 3000; deaths++) {
    pid_t children[3];
    for (int n = 0; n < 3; n++) {
      random_state += 77;
      children[n] = fork();
      assert_true(children[n] >= 0);
      if (children[n] == 0)
        write_for_ever();
    }
    usleep(random_below(6000));
    for (int n = 0; n < 3; n++) {
      int status;
      kill(children[n], SIGKILL);
      assert_int_equal(waitpid(children[n], &status, 0), children[n]);
      if (!WIFSIGNALED(status))
        fail_msg("a writer failed or read something wrong; QKV_TEST_SEED=%u, round %u", seed, deaths);
    }
    cache *c = open_in("");
    for (unsigned n = 0; n < KEYS; n++)
      if (is_there(c, n) && read_entry(c, n) != CACHE_HIT)
        fail_msg("entry %u is damaged; QKV_TEST_SEED=%u, round %u", n, seed, deaths);
    cache_close(c);
  }
  cache *c = open_in("");
  for (unsigned n = 0; n < KEYS; n++)
    assert_int_equal(write_entry(c, n), 0);
  cache_close(c);
  print_message("rounds of three writers killed at random: %u (QKV_TEST_SEED=%u); no damaged entry\n", deaths, seed);
}

/* ---- One key, many processes ---- */

enum { PROCESSES = 32 };

typedef struct shared {
  int ready, go;
  struct {
    int right, compiles, hits, errors;
  } results[PROCESSES];
} shared;

static shared *share(void) {
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(s != MAP_FAILED);
  return s;
}

/* Starts together with the others. */
static void meet(shared *s, int count) {
  __atomic_add_fetch(&s->ready, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&s->ready, __ATOMIC_SEQ_CST) < count)
    usleep(200);
}

static void wait_for_all(const pid_t *children, int count) {
  for (int n = 0; n < count; n++) {
    int status;
    assert_int_equal(waitpid(children[n], &status, 0), children[n]);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
      fail_msg("process %d ended with status %d", n, status);
  }
}

static void test_one_key_at_once(void **state) {
  (void)state;
  char folder[80], tools[64];
  shared *s = share();
  pid_t children[PROCESSES];
  tiny_result r;
  qkv_options o = QKV_OPTIONS_INIT;
  assert_true(tiny_compiler(tools));
  o.device = "emu";
  o.cache_dir = "";
  tiny_run(&o, 0, &r); /* what the compiler remembers */
  if (tiny_judge(&r))
    fail_msg("%s", tiny_judge(&r));
  snprintf(folder, sizeof folder, "%s/cache", root);
  o.cache_dir = folder;
  for (int n = 0; n < PROCESSES; n++) {
    children[n] = fork();
    assert_true(children[n] >= 0);
    if (children[n] == 0) {
      meet(s, PROCESSES);
      tiny_run(&o, 0, &r);
      s->results[n].right = tiny_judge(&r) == NULL;
      s->results[n].compiles = (int)r.counters.compiles;
      s->results[n].hits = (int)r.counters.cache_hits;
      s->results[n].errors = (int)r.counters.cache_errors;
      _exit(0);
    }
  }
  wait_for_all(children, PROCESSES);
  int compiles = 0;
  for (int n = 0; n < PROCESSES; n++) {
    if (!s->results[n].right)
      fail_msg("process %d had a wrong result", n);
    assert_int_equal(s->results[n].compiles + s->results[n].hits, 1);
    assert_int_equal(s->results[n].errors, 0);
    compiles += s->results[n].compiles;
  }
  if (compiles > 3) /* one; more only where somebody waited for too long */
    fail_msg("%d of %d processes compiled", compiles, PROCESSES);
  tiny_run(&o, 0, &r);
  assert_null(tiny_judge(&r));
  assert_int_equal(r.counters.cache_hits, 1); /* the entry verifies */
  assert_int_equal(r.counters.cache_errors, 0);
  print_message("%d processes on one key of an empty cache: all right, %d compiled, %d found it\n", PROCESSES, compiles,
                PROCESSES - compiles);
  munmap(s, sizeof *s);
  tiny_compiler_remove(tools);
}

static void end_process(pid_t child) {
  int status;
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
}

/* Who has the turn of one key keeps nobody from another. When he dies the next has it, and when he gives it back,
 * though a child of his still has the descriptor. */
static void test_turns(void **state) {
  (void)state;
  cache *c = open_in("");
  char keys[2][CACHE_KEY_SIZE];
  shared *s = share();
  for (unsigned n = 0; n < 2; n++)
    key_of(n, keys[n]);
  for (int dies = 0; dies < 2; dies++) {
    s->ready = s->go = 0;
    pid_t holder = fork();
    assert_true(holder >= 0);
    if (holder == 0) {
      int turn = cache_turn_take(c, keys[0]);
      pid_t child = dies ? 1 : fork(); /* has the descriptor, too, and outlives the turn */
      if (child == 0)
        for (;;)
          pause();
      s->go = child;
      __atomic_store_n(&s->ready, turn >= 0 ? 1 : -1, __ATOMIC_SEQ_CST);
      usleep(200000);
      if (dies)
        kill(getpid(), SIGKILL);
      cache_turn_give(turn, keys[0]);
      for (;;)
        pause();
    }
    while (!__atomic_load_n(&s->ready, __ATOMIC_SEQ_CST))
      usleep(100);
    assert_int_equal(s->ready, 1);
    int other = cache_turn_take(c, keys[1]), next = cache_turn_take(c, keys[0]);
    assert_true(other >= 0 && next >= 0);
    cache_turn_give(other, keys[1]);
    cache_turn_give(next, keys[0]);
    if (!dies)
      kill(s->go, SIGKILL);
    end_process(holder);
  }
  cache_close(c);
  munmap(s, sizeof *s);
}

/* ---- What is in use stays ---- */

/* A process that has read entry `n`, and stays. */
static pid_t user_of(unsigned n) {
  int ends[2];
  char ok = 0;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    cache *c = open_in("");
    ok = read_entry(c, n) == CACHE_HIT;
    set_age(c, n, OLD); /* long ago */
    if (write(ends[1], &ok, 1) != 1)
      _exit(1);
    for (;;)
      pause();
  }
  assert_int_equal(read(ends[0], &ok, 1), 1);
  assert_int_equal(ok, 1);
  close(ends[0]);
  close(ends[1]);
  return child;
}

static void test_entries_in_use_stay(void **state) {
  (void)state;
  enum { ENTRIES = 6 };
  fill("", ENTRIES);
  pid_t first = user_of(1), second = user_of(4);
  cache *c = open_in("");
  qkv_cache_gc_report r = collect(c, 0);
  assert_int_equal(r.removed, ENTRIES - 2);
  assert_int_equal(r.in_use, 2);
  assert_int_equal(r.entries, 2);
  assert_true(is_there(c, 1) && is_there(c, 4));
  end_process(first); /* however it ends, its lease ends with it */
  assert_int_equal(collect(c, 0).removed, 1);
  assert_false(is_there(c, 1));
  /* Publishing beyond the limit does not touch it either. */
  setenv("QKV_CACHE_MAX_BYTES", "2000", 1);
  cache *small = open_in("");
  for (unsigned n = 10; n < 13; n++)
    assert_int_equal(write_entry(small, n), 0);
  cache_close(small);
  unsetenv("QKV_CACHE_MAX_BYTES");
  assert_true(is_there(c, 4));
  end_process(second);
  /* Used lately, by whoever: kept without any lease. */
  assert_int_equal(read_entry(c, 4), CACHE_HIT);
  cache_close(c);
  c = open_in("");
  r = collect(c, 0);
  assert_true(is_there(c, 4));
  assert_int_equal(r.in_use, 4);
  cache_close(c);
}

/* A child of a fork has the parent's kernels and a lease of its own; neither's end takes the other's protection. */
static void test_leases_and_fork(void **state) {
  (void)state;
  fill("", 3);
  cache *c = open_in(""), *other = open_in("");
  int ends[2], status;
  char byte;
  assert_int_equal(read_entry(c, 0), CACHE_HIT);
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    int ok = read_entry(c, 1) == CACHE_HIT;
    cache_close(c);
    _exit(!ok || write(ends[1], "x", 1) != 1);
  }
  assert_int_equal(read(ends[0], &byte, 1), 1);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  for (unsigned n = 0; n < 3; n++)
    set_age(other, n, OLD);
  assert_int_equal(collect(other, 0).in_use, 1); /* the parent's */
  assert_true(is_there(c, 0));
  child = fork(); /* the child of one that ends */
  assert_true(child >= 0);
  if (child == 0) {
    close(ends[1]);
    write_entry(c, 5);
    for (;;)
      pause();
  }
  cache_close(c);
  for (int waited = 0; waited < 2000 && !is_there(other, 5); waited++)
    usleep(1000);
  usleep(20000);
  set_age(other, 5, OLD);
  set_age(other, 0, OLD);
  assert_int_equal(collect(other, 0).in_use, 2); /* what it inherited, too */
  end_process(child);
  assert_int_equal(collect(other, 0).removed, 2);
  cache_close(other);
  close(ends[0]);
  close(ends[1]);
}

static void test_concurrent_collection(void **state) {
  (void)state;
  enum { ENTRIES = 60, COLLECTORS = 8 };
  fill("", ENTRIES);
  int64_t total = 0, kept = 0, largest = 0;
  for (unsigned n = 0; n < ENTRIES; n++)
    total += (int64_t)size_of(n);
  shared *s = share();
  pid_t children[COLLECTORS];
  for (int n = 0; n < COLLECTORS; n++) {
    children[n] = fork();
    assert_true(children[n] >= 0);
    if (children[n] == 0) {
      cache *c = open_in("");
      meet(s, COLLECTORS);
      collect(c, total / 2);
      _exit(cache_error_count(c) != 0);
    }
  }
  wait_for_all(children, COLLECTORS);
  cache *c = open_in("");
  int gone = 1;
  for (unsigned n = 0; n < ENTRIES; n++) {
    int there = is_there(c, n);
    assert_true(gone || there); /* the oldest went */
    gone = gone && !there;
    kept += there ? (int64_t)size_of(n) : 0;
    largest = (int64_t)size_of(n) > largest ? (int64_t)size_of(n) : largest;
    if (there)
      assert_int_equal(read_entry(c, n), CACHE_HIT);
  }
  if (kept > total / 2 || kept < total / 2 - largest - ENTRIES * 200)
    fail_msg("%lld of %lld bytes are left", (long long)kept, (long long)total);
  cache_close(c);
  munmap(s, sizeof *s);
}

/* Files in a lease's place that nobody of ours made: neither blocking nor believed. */
static void test_strange_leases(void **state) {
  (void)state;
  char path[128];
  fill("", 2);
  snprintf(path, sizeof path, "%s/.lease-0", root);
  unlink(path);
  assert_int_equal(mkfifo(path, 0600), 0);
  snprintf(path, sizeof path, "%s/.lease-1", root);
  assert_int_equal(mkdir(path, 0700), 0);
  snprintf(path, sizeof path, "%s/.lease-2", root);
  assert_int_equal(symlink("/dev/zero", path), 0);
  pid_t user = user_of(1);
  cache *c = open_in("");
  qkv_cache_gc_report r = collect(c, 0);
  assert_int_equal(r.in_use, 1);
  assert_true(is_there(c, 1) && !is_there(c, 0));
  end_process(user);
  cache_close(c);
}

/* A program that closes all descriptors and opens a file of its own under a lease's number keeps it, as it was. */
static void test_descriptors_closed_by_the_program(void **state) {
  (void)state;
  char path[128], bytes[64] = "";
  fill("", 3);
  cache *c = open_in(""), *other = open_in("");
  assert_int_equal(read_entry(c, 0), CACHE_HIT);
  int fd = c->lease.fd;
  assert_true(fd >= 0);
  close(fd);
  snprintf(path, sizeof path, "%s/mine", root);
  assert_int_equal(open(path, O_RDWR | O_CREAT, 0600), fd);
  assert_int_equal(write(fd, "mine", 4), 4);
  assert_int_equal(read_entry(c, 1), CACHE_HIT);
  for (unsigned n = 0; n < 3; n++)
    set_age(other, n, OLD);
  assert_int_equal(collect(other, 0).in_use, 2); /* under another number */
  cache_close(c);
  assert_int_equal(pread(fd, bytes, sizeof bytes, 0), 4);
  assert_string_equal(bytes, "mine");
  assert_int_equal(close(fd), 0);
  cache_close(other);
}

/* ---- Without the right to write ---- */

/* Hits serve; publications cost one warning and one error, however many. */
static int serves_read_only(const char *folder) {
  warnings = 0;
  cache *c = open_in(folder);
  int ok = *cache_path(c) && read_entry(c, 0) == CACHE_HIT && read_entry(c, 1) == CACHE_HIT && warnings == 0;
  for (unsigned n = 10; n < 15; n++)
    ok = ok && read_entry(c, n) == CACHE_MISS && write_entry(c, n) == -1;
  ok = ok && warnings == 1 && cache_error_count(c) == 1 && read_entry(c, 0) == CACHE_HIT;
  collect(c, 0);
  ok = ok && is_there(c, 0) && is_there(c, 1);
  cache_close(c);
  return ok;
}

static void test_read_only_file_system(void **state) {
  (void)state;
  static const char *const calls[] = {"open", "mkdir", "rename", "unlink", "utimensat"};
  fill("", 2);
  setenv("QKV_FAULT_UNDER", root, 1);
  /* Of the calls of open only those that write: entries are read by their names alone. */
  unsetenv("QKV_FAULT_UNDER");
  for (size_t n = 0; n < sizeof calls / sizeof *calls; n++) {
    char fault[64];
    cache *c = open_in("");
    warnings = 0;
    snprintf(fault, sizeof fault, "%s:EROFS%s", calls[n], n ? "" : ":2"); /* two hits first */
    fault_set(fault);
    if (read_entry(c, 0) != CACHE_HIT || read_entry(c, 1) != CACHE_HIT)
      fail_msg("%s: no hit", fault);
    int failed = write_entry(c, 20 + (unsigned)n) + write_entry(c, 30 + (unsigned)n);
    fault_set(NULL);
    if (failed != (n == 0 || n == 2 ? -2 : 0) || warnings != (failed != 0) ||
        (int)cache_error_count(c) != (failed != 0))
      fail_msg("%s: writes %d, %d warnings, %d errors", fault, failed, warnings, (int)cache_error_count(c));
    cache_close(c);
  }
}

/* Runs a check as a user without rights; 77: cannot become one. */
static int as_nobody(int (*check)(void)) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (geteuid() == 0 && (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
      _exit(77);
    _exit(check() ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void give(const char *name, uid_t owner, mode_t mode) {
  char path[256];
  snprintf(path, sizeof path, "%s%s", root, name);
  assert_int_equal(chown(path, owner, owner), 0);
  assert_int_equal(chmod(path, mode), 0);
}

static int check_roots_directory(void) {
  return serves_read_only("/roots");
}
static int check_own_unwritable(void) {
  return serves_read_only("/own");
}
static int check_foreign_directory(void) {
  cache *c = open_in("/foreign");
  int ok = !*cache_path(c) && warnings == 1 && read_entry(c, 0) == CACHE_MISS && write_entry(c, 0) == -1;
  cache_close(c);
  return ok && warnings == 1;
}
static int check_open_directory(void) {
  cache *c = open_in("/open");
  int ok = !*cache_path(c) && warnings == 1 && read_entry(c, 0) == CACHE_MISS;
  cache_close(c);
  return ok;
}
/* Another's entry, one that the group may write, and a good one, in a directory of our own. */
static int check_entries_of_others(void) {
  cache *c = open_in("/mixed");
  int ok = read_entry(c, 0) == CACHE_MISS && read_entry(c, 1) == CACHE_MISS && read_entry(c, 2) == CACHE_HIT;
  ok = ok && cache_error_count(c) == 2 && warnings == 1;
  ok = ok && write_entry(c, 0) == 0 && read_entry(c, 0) == CACHE_HIT; /* takes its place */
  cache_close(c);
  return ok;
}

static void test_other_users(void **state) {
  (void)state;
  static const struct {
    const char *folder;
    unsigned count;
    uid_t owner;
    mode_t mode;
    int (*check)(void);
  } rows[] = {{"/roots", 2, 0, 0755, check_roots_directory},
              {"/own", 2, 65534, 0555, check_own_unwritable},
              {"/foreign", 2, 12345, 0755, check_foreign_directory},
              {"/open", 2, 65534, 0777, check_open_directory},
              {"/mixed", 3, 65534, 0700, check_entries_of_others}};
  if (geteuid() != 0) {
    print_message("needs root to make files of other users\n");
    skip();
  }
  assert_int_equal(chmod(root, 0755), 0);
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    fill(rows[n].folder, rows[n].count);
    cache *c = open_in(rows[n].folder);
    for (unsigned entry = 0; entry < rows[n].count; entry++) {
      char path[256];
      path_of(c, entry, path);
      int foreign = rows[n].check == check_entries_of_others && entry == 0;
      int open = rows[n].check == check_entries_of_others && entry == 1;
      give(path + strlen(root), foreign ? 12345 : rows[n].owner, open ? 0664 : 0644);
    }
    cache_close(c);
    give(rows[n].folder, rows[n].owner, rows[n].mode);
    int code = as_nobody(rows[n].check);
    if (code == 77) {
      print_message("cannot become another user here\n");
      skip();
    }
    if (code)
      fail_msg("%s as user 65534 (row %zu)", rows[n].folder, n);
  }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {TEST(test_killed_at_random),
                                     TEST(test_one_key_at_once),
                                     TEST(test_turns),
                                     TEST(test_entries_in_use_stay),
                                     TEST(test_leases_and_fork),
                                     TEST(test_concurrent_collection),
                                     TEST(test_strange_leases),
                                     TEST(test_descriptors_closed_by_the_program),
                                     TEST(test_read_only_file_system),
                                     TEST(test_other_users)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
