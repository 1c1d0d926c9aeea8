/* arena.c: alignment, zeroing, growth, and the way out when memory ends at any allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arena.h"

static int calls_left = -1; /* -1: never fail */

static void *failing_malloc(size_t size) {
  if (calls_left == 0)
    return NULL;
  if (calls_left > 0)
    calls_left--;
  void *memory = malloc(size);
  if (memory)
    memset(memory, 0xA5, size); /* what is not cleared shows */
  return memory;
}

static int setup(void **state) {
  (void)state;
  calls_left = -1;
  arena_malloc = failing_malloc;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  arena_malloc = malloc;
  return 0;
}

/* Objects of many sizes are aligned, zeroed, and keep what was written when others are added. */
static void objects_are_separate(void **state) {
  (void)state;
  enum { COUNT = 3000 };
  static unsigned char *objects[COUNT];
  static size_t sizes[COUNT];
  arena *a = arena_new();
  assert_non_null(a);
  uint32_t seed = 1;
  for (int i = 0; i < COUNT; i++) {
    seed = seed * 1664525u + 1013904223u;
    sizes[i] = i % 100 == 99 ? 100000 + seed % 100000 : (seed >> 16) % 300;
    objects[i] = arena_alloc(a, sizes[i]);
    assert_int_equal((uintptr_t)objects[i] % _Alignof(max_align_t), 0);
    for (size_t n = 0; n < sizes[i]; n++)
      assert_int_equal(objects[i][n], 0);
    memset(objects[i], i & 0xFF, sizes[i]);
  }
  for (int i = 0; i < COUNT; i++)
    for (size_t n = 0; n < sizes[i]; n++)
      if (objects[i][n] != (i & 0xFF))
        fail_msg("object %d of %zu bytes changed at byte %zu", i, sizes[i], n);
  arena_free(a);
}

static void strings(void **state) {
  (void)state;
  arena *a = arena_new();
  assert_string_equal(arena_copy(a, "abcdef", 3), "abc");
  assert_string_equal(arena_copy(a, NULL, 0), "");
  assert_string_equal(arena_printf(a, "%s-%d", "x", 42), "x-42");
  char *longer = arena_printf(a, "%0*d", 20000, 7);
  assert_int_equal(strlen(longer), 20000);
  assert_int_equal(longer[19999], '7');
  arena_free(a);
  arena_free(NULL);
}

/* Uses an arena until allocation n fails; returns whether it came to the end. */
static bool use_until_failure(int n) {
  calls_left = n;
  arena *a = arena_new();
  if (!a)
    return false;
  if (!ARENA_TRY(a)) {
    arena_free(a);
    return false;
  }
  for (int i = 0; i < 200; i++)
    arena_printf(a, "%0*d", 100 * i, i);
  arena_free(a);
  return true;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  int n = 0;
  while (!use_until_failure(n))
    assert_true(++n < 10000);
  assert_true(n > 10); /* it does allocate in several steps */
}

static void absurd_sizes_are_refused(void **state) {
  (void)state;
  const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX - 16, SIZE_MAX - 100};
  for (volatile size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    arena *a = arena_new();
    volatile bool refused = true;
    if (ARENA_TRY(a)) {
      calls_left = 0; /* sizes that could be rounded up wrongly must not reach malloc as small ones */
      arena_alloc(a, sizes[i]);
      refused = false;
    }
    calls_left = -1;
    assert_true(refused);
    arena_free(a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(objects_are_separate, setup, teardown),
      cmocka_unit_test_setup_teardown(strings, setup, teardown),
      cmocka_unit_test_setup_teardown(every_allocation_may_fail, setup, teardown),
      cmocka_unit_test_setup_teardown(absurd_sizes_are_refused, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
