/* cli_json.c: the JSON writer. Invariant: what it writes is valid JSON when opens, keys and closes pair up. */
#include "cli_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void line_break(cli_json *j) {
  fprintf(j->stream, "\n%*s", 2 * j->depth, "");
}

int json_utf8_length(const unsigned char *s) {
  static const struct {
    unsigned char mask, lead;
    int length;
    unsigned least;
  } forms[] = {{0x80, 0x00, 1, 0}, {0xE0, 0xC0, 2, 0x80}, {0xF0, 0xE0, 3, 0x800}, {0xF8, 0xF0, 4, 0x10000}};
  for (int f = 0; f < 4; f++) {
    if ((s[0] & forms[f].mask) != forms[f].lead)
      continue;
    unsigned code = s[0] & (unsigned)(unsigned char)~forms[f].mask;
    for (int n = 1; n < forms[f].length; n++) {
      if ((s[n] & 0xC0) != 0x80)
        return 0;
      code = code << 6 | (s[n] & 0x3Fu);
    }
    return code < forms[f].least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : forms[f].length;
  }
  return 0;
}

static void write_quoted(FILE *stream, const char *value) {
  fputc('"', stream);
  for (const unsigned char *s = (const unsigned char *)value; *s;) {
    int length = json_utf8_length(s);
    if (!length) {
      fputs("\\ufffd", stream);
      s++;
      continue;
    }
    if (*s == '"' || *s == '\\')
      fprintf(stream, "\\%c", *s);
    else if (*s == '\n')
      fputs("\\n", stream);
    else if (*s < 0x20)
      fprintf(stream, "\\u%04x", *s);
    else
      fwrite(s, 1, (size_t)length, stream);
    s += length;
  }
  fputc('"', stream);
}

/* What stands before a value: a comma and a new line within something, and the key. */
static void before_value(cli_json *j, const char *key) {
  if (j->depth) {
    if (j->filled)
      fputc(',', j->stream);
    line_break(j);
  }
  if (key) {
    write_quoted(j->stream, key);
    fputs(": ", j->stream);
  }
  j->filled = true;
}

void json_open(cli_json *j, const char *key, char kind) {
  before_value(j, key);
  fputc(kind, j->stream);
  j->depth++;
  j->filled = false;
}

void json_close(cli_json *j, char kind) {
  j->depth--;
  if (j->filled)
    line_break(j);
  fputc(kind, j->stream);
  j->filled = true;
  if (!j->depth)
    fputc('\n', j->stream);
}

void json_string(cli_json *j, const char *key, const char *value) {
  before_value(j, key);
  if (value)
    write_quoted(j->stream, value);
  else
    fputs("null", j->stream);
}

void json_integer(cli_json *j, const char *key, int64_t value) {
  before_value(j, key);
  fprintf(j->stream, "%" PRId64, value);
}

void json_real(cli_json *j, const char *key, double value) {
  before_value(j, key);
  char digits[40];
  snprintf(digits, sizeof digits, "%.6g", value);
  if (strtod(digits, NULL) != value)
    snprintf(digits, sizeof digits, "%.17g", value);
  fputs(isfinite(value) ? digits : "null", j->stream);
}

void json_boolean(cli_json *j, const char *key, bool value) {
  before_value(j, key);
  fputs(value ? "true" : "false", j->stream);
}

void json_raw(cli_json *j, const char *key, const char *text) {
  before_value(j, key);
  size_t length = strlen(text);
  while (length && text[length - 1] == '\n')
    length--;
  fwrite(text, 1, length, j->stream);
}
