/* text.c: the buffer, numbers that read back, JSON strings, UTF-8, all the same in every locale. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comma_locale.h"
#include "text.h"

static void buffer(void **state) {
  (void)state;
  text t = {0};
  assert_null(t.bytes);
  text_add(&t, "", 0);
  assert_string_equal(t.bytes, "");
  for (int i = 0; i < 5000; i++)
    text_printf(&t, "%d,", i % 10);
  assert_int_equal(t.size, 10000);
  assert_int_equal(strlen(t.bytes), 10000);
  for (size_t i = 0; i < 5000; i++)
    assert_int_equal(t.bytes[2 * i], '0' + (char)(i % 10));
  text_clear(&t);
  assert_string_equal(t.bytes, "");
  text_add(&t, "a\0b", 3);
  assert_int_equal(t.size, 3);
  assert_memory_equal(t.bytes, "a\0b", 4);
  assert_false(t.failed);
  text_free(&t);
  assert_null(t.bytes);
}

static void a_failed_text_drops_writes(void **state) {
  (void)state;
  text t = {0};
  text_puts(&t, "before");
  text_add(&t, "x", SIZE_MAX / 2);
  assert_true(t.failed);
  text_puts(&t, "after");
  assert_string_equal(t.bytes, "before");
  text_free(&t);
}

static void check_double(double value) {
  text t = {0};
  text_double(&t, value);
  assert_false(t.failed);
  double back = strtod(t.bytes, NULL);
  if (memcmp(&back, &value, sizeof value) != 0)
    fail_msg("%a printed as %s", value, t.bytes);
  if (!strpbrk(t.bytes, ".e"))
    fail_msg("%a printed as %s: reads as an integer", value, t.bytes);
  if (strspn(t.bytes, "0123456789.e+-") != t.size)
    fail_msg("%a printed as %s", value, t.bytes);
  text_free(&t);
}

static void doubles_read_back(void **state) {
  (void)state;
  const double some[] = {0,
                         -0.0,
                         1,
                         -1,
                         0.1,
                         50,
                         1e15,
                         123456789012345,
                         1e16,
                         1e300,
                         5e-324,
                         2.2250738585072014e-308,
                         1.7976931348623157e308,
                         0.0883883476483184,
                         1 / 3.0,
                         1e22,
                         1e23,
                         9007199254740992};
  for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
    check_double(some[i]);
  uint64_t bits = 88172645463325252u;
  for (int i = 0; i < 20000; i++) {
    bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
    double value;
    memcpy(&value, &bits, sizeof value);
    if (isfinite(value))
      check_double(value);
    check_double((double)(int64_t)(bits >> (bits & 63)));
  }
}

static void expect_double(double value, const char *expected) {
  text t = {0};
  text_double(&t, value);
  assert_string_equal(t.bytes, expected);
  text_free(&t);
}

static void doubles_are_short(void **state) {
  (void)state;
  expect_double(50, "50.0");
  expect_double(0.1, "0.1");
  expect_double(-0.0, "-0.0");
  expect_double(1e300, "1e+300");
  expect_double(100000000, "100000000.0");
  expect_double(0.0625, "0.0625");
  expect_double(INFINITY, "inf");
  expect_double(-INFINITY, "-inf");
  expect_double(NAN, "nan");
  expect_double(-NAN, "nan");
}

/* The characters of a JSON literal, by a decoder of its own; \u escapes must be below 0x80 or FFFD. */
static void decode_json(const char *json, text *out) {
  assert_int_equal(*json, '"');
  for (json++; *json != '"'; json++) {
    assert_true((unsigned char)*json >= 0x20);
    if (*json != '\\') {
      text_add(out, json, 1);
      continue;
    }
    json++;
    if (*json == 'u') {
      char digits[5] = {0};
      memcpy(digits, json + 1, 4);
      unsigned long code = strtoul(digits, NULL, 16);
      if (code == 0xFFFD)
        text_puts(out, "\xEF\xBF\xBD");
      else
        text_printf(out, "%c", (int)code);
      json += 4;
    } else
      text_printf(out, "%c", *json == 'n' ? '\n' : *json == 't' ? '\t' : *json);
  }
  assert_int_equal(json[1], 0);
}

static void json_strings(void **state) {
  (void)state;
  const char *const pairs[][2] = {{"", ""},
                                  {"plain", "plain"},
                                  {"\"\\/\n\t\r\x01\x7f", "\"\\/\n\t\r\x01\x7f"},
                                  {"gr\xC3\xB6\xC3\x9F"
                                   "e \xE9\xA0\xAD \xF0\x9F\x98\x80",
                                   "gr\xC3\xB6\xC3\x9F"
                                   "e \xE9\xA0\xAD \xF0\x9F\x98\x80"},
                                  {"a\xFF"
                                   "b\xC3",
                                   "a\xEF\xBF\xBD"
                                   "b\xEF\xBF\xBD"},
                                  {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    text json = {0}, back = {0};
    text_json_string(&json, pairs[i][0]);
    decode_json(json.bytes, &back);
    assert_string_equal(back.bytes ? back.bytes : "", pairs[i][1]);
    text_free(&json);
    text_free(&back);
  }
}

/* Encodes every code point and tries every cut and every two-byte pair against the definition. */
static void utf8(void **state) {
  (void)state;
  for (uint32_t code = 0; code < 0x120000; code += code < 0x3000 ? 1 : 61) {
    char bytes[4];
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = 0; i < length; i++) {
      uint32_t bits = code >> 6 * (length - 1 - i);
      static const unsigned lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
      bytes[i] = (char)(i ? 0x80 | (bits & 0x3F) : lead[length] | bits);
    }
    bool valid = code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
    if (text_utf8_length(bytes, length) != (valid ? length : 0))
      fail_msg("U+%04X", code);
    for (size_t cut = 0; cut < length; cut++)
      assert_int_equal(text_utf8_length(bytes, cut), 0);
  }
  assert_int_equal(text_utf8_length("\xC1\xBF", 2), 0);         /* overlong */
  assert_int_equal(text_utf8_length("\xE0\x9F\xBF", 3), 0);     /* overlong */
  assert_int_equal(text_utf8_length("\xF0\x8F\xBF\xBF", 4), 0); /* overlong */
  assert_int_equal(text_utf8_length("\x80", 1), 0);
}

static void the_locale_changes_nothing(void **state) {
  (void)state;
  if (!enter_comma_locale()) {
    print_message("skipped: no locale with a decimal comma\n");
    skip();
  }
  text t = {0};
  text_printf(&t, "%.2f ", 1.5);
  text_double(&t, 0.25);
  assert_string_equal(t.bytes, "1.50 0.25");
  char after[16];
  snprintf(after, sizeof after, "%.1f", 1.5);
  assert_string_equal(after, "1,5"); /* the caller's locale is back */
  text_free(&t);
  setlocale(LC_ALL, "C");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(buffer),
      cmocka_unit_test(a_failed_text_drops_writes),
      cmocka_unit_test(doubles_read_back),
      cmocka_unit_test(doubles_are_short),
      cmocka_unit_test(json_strings),
      cmocka_unit_test(utf8),
      cmocka_unit_test(the_locale_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
