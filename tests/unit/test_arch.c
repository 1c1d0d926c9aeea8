/* test_arch.c: the architecture table and its look-ups. */
#include "gen_fixture.h"

static void table_is_ascending_and_sane(void **state) {
  (void)state;
  int count;
  const arch *table = arch_table(&count);
  assert_true(count >= 5);
  for (int n = 0; n < count; n++) {
    const arch *a = &table[n];
    assert_int_equal(a->number, 10 * a->capability_major + a->capability_minor);
    assert_true(n == 0 || table[n - 1].number < a->number);
    assert_true(a->shared_per_block < a->shared_per_sm);
    assert_true(a->threads_per_block <= a->threads_per_sm);
  }
}

static void every_spelling_finds_the_entry(void **state) {
  (void)state;
  int count;
  const arch *table = arch_table(&count);
  for (int n = 0; n < count; n++) {
    const arch *a = &table[n];
    char spelling[32];
    assert_ptr_equal(arch_find(a->name), a);
    assert_ptr_equal(arch_find(a->name + 3), a);
    snprintf(spelling, sizeof spelling, "sm_%d", a->number);
    assert_ptr_equal(arch_find(spelling), a);
    snprintf(spelling, sizeof spelling, "%d", a->number);
    assert_ptr_equal(arch_find(spelling), a);
    snprintf(spelling, sizeof spelling, "%d.%d", a->capability_major, a->capability_minor);
    assert_ptr_equal(arch_find(spelling), a);
    assert_ptr_equal(arch_for_capability(a->capability_major, a->capability_minor), a);
  }
}

static void other_names_are_unknown(void **state) {
  (void)state;
  const char *const bad[] = {"",   "sm_", "sm_70", "sm_90b", "sm90",   "SM_80", "8",
                             "8.", ".8",  "80 ",   "9.00",   "sm_9.0", "a"};
  for (size_t n = 0; n < sizeof bad / sizeof bad[0]; n++)
    if (arch_find(bad[n]))
      fail_msg("arch_find(\"%s\") found %s", bad[n], arch_find(bad[n])->name);
  assert_null(arch_find(NULL));
}

static void capability_falls_back_within_the_major_version(void **state) {
  (void)state;
  assert_string_equal(arch_for_capability(8, 8)->name, "sm_87");
  assert_string_equal(arch_for_capability(8, 9)->name, "sm_89");
  assert_string_equal(arch_for_capability(12, 9)->name, "sm_121");
  assert_null(arch_for_capability(10, 1)); /* sm_100a code runs on 10.0 only */
  assert_null(arch_for_capability(7, 5));
  assert_null(arch_for_capability(99, 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(table_is_ascending_and_sane),
      cmocka_unit_test(every_spelling_finds_the_entry),
      cmocka_unit_test(other_names_are_unknown),
      cmocka_unit_test(capability_falls_back_within_the_major_version),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
