/* text.h: a growable byte buffer for everything that is printed into memory.
 *
 * A failed allocation sets `failed` and drops later writes, so that a long chain of writes needs one check at its end.
 * Always zero-terminated. Numbers are printed independently of the locale. */
#ifndef GEN_TEXT_H
#define GEN_TEXT_H

#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>

typedef struct text {
  char *bytes; /* NULL or zero-terminated; owned */
  size_t size; /* without the terminating zero */
  size_t capacity;
  bool failed; /* an allocation failed; `bytes` holds what was written before */
} text;

/* A text starts as `text t = {0};`. */
void text_free(text *t);
void text_clear(text *t);
void text_add(text *t, const char *bytes, size_t size);
void text_puts(text *t, const char *string);
void text_printf(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_vprintf(text *t, const char *format, va_list args);
/* vsnprintf under the "C" locale, whatever the program's locale is. */
int text_vsnprintf(char *bytes, size_t size, const char *format, va_list args);
/* The shortest decimal that reads back as `value` (round-trip), always with a '.', 'e', "inf" or "nan" in it. */
void text_double(text *t, double value);
/* Bytes of the well-formed UTF-8 character at the start of `bytes`; 0 when there is none (stray or missing bytes, overlong
 * forms, surrogates, beyond U+10FFFF). */
size_t text_utf8_length(const char *bytes, size_t size);
/* A JSON string literal with its quotes; invalid UTF-8 becomes U+FFFD. */
void text_json_string(text *t, const char *string);

#endif
