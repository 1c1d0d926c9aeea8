/* test_error.c: messages of any length, one per thread, context put in front. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

static void test_set_and_context(void **state) {
  (void)state;
  assert_string_equal(error_message(), "");
  assert_int_equal(error_set(QKV_IO, "file %s: %d", "x", 7), QKV_IO);
  assert_string_equal(error_message(), "file x: 7");
  assert_int_equal(error_context(QKV_IO, "loading %s: ", "y"), QKV_IO);
  assert_string_equal(error_message(), "loading y: file x: 7");
  /* A message may quote the one it replaces. */
  error_set(QKV_IO, "again (%s)", error_message());
  assert_string_equal(error_message(), "again (loading y: file x: 7)");
}

static void test_long(void **state) {
  (void)state;
  enum { SIZE = 1 << 20 };
  char *text = malloc(SIZE + 1);
  memset(text, 'a', SIZE);
  text[SIZE] = 0;
  error_set(QKV_COMPILE_ERROR, "%s|", text);
  assert_int_equal(strlen(error_message()), SIZE + 1);
  error_set(QKV_IO, "short");
  assert_string_equal(error_message(), "short");
  free(text);
}

static void *set_own(void *user) {
  int good = !strcmp(error_message(), "");
  for (int n = 0; n < 1000; n++) {
    error_set(QKV_IO, "thread %d", *(int *)user);
    good &= atoi(error_message() + 7) == *(int *)user;
  }
  *(int *)user = good;
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  int numbers[THREADS];
  error_set(QKV_IO, "main");
  for (int n = 0; n < THREADS; n++) {
    numbers[n] = n + 10;
    assert_int_equal(pthread_create(&threads[n], NULL, set_own, &numbers[n]), 0);
  }
  for (int n = 0; n < THREADS; n++) {
    pthread_join(threads[n], NULL);
    assert_int_equal(numbers[n], 1);
  }
  assert_string_equal(error_message(), "main");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_set_and_context), cmocka_unit_test(test_long),
                                     cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
