/* text.c: a growable byte buffer, and printing of numbers and strings that no locale changes. */
#include "text.h"

#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_free(text *t) {
  free(t->bytes);
  *t = (text){0};
}

void text_clear(text *t) {
  t->size = 0;
  t->failed = false;
  if (t->bytes)
    t->bytes[0] = 0;
}

/* Makes room for `size` more bytes and the terminating zero. */
static bool reserve(text *t, size_t size) {
  if (t->failed)
    return false;
  if (t->bytes && t->capacity - t->size > size)
    return true;
  if (size > SIZE_MAX / 4 || t->size > SIZE_MAX / 4) {
    t->failed = true;
    return false;
  }
  size_t capacity = 2 * (t->size + size) + 64;
  char *bytes = realloc(t->bytes, capacity);
  if (!bytes) {
    t->failed = true;
    return false;
  }
  bytes[t->size] = 0;
  t->bytes = bytes;
  t->capacity = capacity;
  return true;
}

void text_add(text *t, const char *bytes, size_t size) {
  if (!reserve(t, size))
    return;
  if (size)
    memcpy(t->bytes + t->size, bytes, size);
  t->size += size;
  t->bytes[t->size] = 0;
}

void text_puts(text *t, const char *string) {
  text_add(t, string, strlen(string));
}

/* Switches the calling thread to the "C" locale, for which the C libraries in use return a constant object: no
 * allocation. */
static locale_t enter_c_locale(locale_t *old) {
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  *old = c ? uselocale(c) : (locale_t)0;
  return c;
}

static void leave_c_locale(locale_t c, locale_t old) {
  if (!c)
    return;
  uselocale(old);
  freelocale(c);
}

__attribute__((format(printf, 3, 0))) int text_vsnprintf(char *bytes, size_t size, const char *format, va_list args) {
  locale_t old, c = enter_c_locale(&old);
  int length = vsnprintf(bytes, size, format, args);
  leave_c_locale(c, old);
  return length;
}

void text_vprintf(text *t, const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  int length = text_vsnprintf(NULL, 0, format, args);
  if (length < 0)
    t->failed = true;
  else if (reserve(t, (size_t)length)) {
    text_vsnprintf(t->bytes + t->size, (size_t)length + 1, format, again);
    t->size += (size_t)length;
  }
  va_end(again);
}

void text_printf(text *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  text_vprintf(t, format, args);
  va_end(args);
}

void text_double(text *t, double value) {
  if (isnan(value) || isinf(value)) {
    text_puts(t, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    return;
  }
  locale_t old, c = enter_c_locale(&old);
  char digits[40];
  for (int precision = 1; precision <= 17; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, value);
    if (strtod(digits, NULL) == value)
      break;
  }
  if (strchr(digits, 'e') && fabs(value) >= 1 && fabs(value) < 1e15) /* 50.0, not 5e+01: an exact integer here */
    snprintf(digits, sizeof digits, "%.0f", value);
  leave_c_locale(c, old);
  text_puts(t, digits);
  if (!strpbrk(digits, ".e"))
    text_puts(t, ".0");
}

size_t text_utf8_length(const char *bytes, size_t size) {
  const unsigned char *s = (const unsigned char *)bytes;
  if (size == 0)
    return 0;
  size_t length = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
  if (length > size)
    return 0;
  for (size_t i = 1; i < length; i++)
    if ((s[i] & 0xC0) != 0x80)
      return 0;
  bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
  bool not_a_character = (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF4 && s[1] > 0x8F);
  return overlong || not_a_character ? 0 : length;
}

void text_json_string(text *t, const char *string) {
  text_puts(t, "\"");
  for (size_t left = strlen(string); left > 0;) {
    unsigned char first = (unsigned char)*string;
    size_t length = text_utf8_length(string, left);
    if (first == '"' || first == '\\')
      text_printf(t, "\\%c", first);
    else if (first == '\n')
      text_puts(t, "\\n");
    else if (first == '\t')
      text_puts(t, "\\t");
    else if (first < 0x20 || first == 0x7F)
      text_printf(t, "\\u%04x", first);
    else if (length == 0)
      text_puts(t, "\\ufffd");
    else
      text_add(t, string, length);
    length += length == 0;
    string += length;
    left -= length;
  }
  text_puts(t, "\"");
}
