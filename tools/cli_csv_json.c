/* cli_csv_json.c: rows of a table from JSON (cli_csv.h): what qkvc bench --json writes, and journals of an object a
 * line. Numbers, true, false and null are kept as their text, null as nothing. Nesting is at most 16 deep. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_csv.h"

enum { DEPTH_MAX = 16, NAME_MAX_BYTES = 160 };

typedef struct reader {
  csv_table *table;
  const char *at, *end;
  int line, depth;
  char *error;
} reader;

static bool fail(reader *r, const char *what) {
  snprintf(r->error, CSV_ERROR_SIZE, "%.200s:%d: JSON: %s", r->table->name, r->line, what);
  return false;
}

/* The next character that is not blank, 0 at the end. */
static char peek(reader *r) {
  for (; r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n'); r->at++)
    r->line += *r->at == '\n';
  return r->at < r->end ? *r->at : 0;
}

static bool take(reader *r, char wanted) {
  if (peek(r) != wanted || r->at == r->end)
    return false;
  r->at++;
  return true;
}

static size_t put_utf8(char *to, unsigned code) {
  if (code < 0x80)
    return to[0] = (char)code, 1;
  if (code < 0x800)
    return to[0] = (char)(0xC0 | code >> 6), to[1] = (char)(0x80 | (code & 0x3F)), 2;
  if (code < 0x10000)
    return to[0] = (char)(0xE0 | code >> 12), to[1] = (char)(0x80 | (code >> 6 & 0x3F)),
           to[2] = (char)(0x80 | (code & 0x3F)), 3;
  return to[0] = (char)(0xF0 | code >> 18), to[1] = (char)(0x80 | (code >> 12 & 0x3F)),
         to[2] = (char)(0x80 | (code >> 6 & 0x3F)), to[3] = (char)(0x80 | (code & 0x3F)), 4;
}

static bool hex4(reader *r, unsigned *out) {
  *out = 0;
  for (int n = 0; n < 4; n++) {
    const char c = r->at < r->end ? *r->at++ : 0;
    const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (digit < 0)
      return fail(r, "\\u needs four hexadecimal digits");
    *out = *out << 4 | (unsigned)digit;
  }
  return true;
}

/* What follows a backslash. A lone half of a pair becomes U+FFFD, and so does U+0000, which no text can hold. */
static bool escape(reader *r, char **to) {
  static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  const char c = r->at < r->end ? *r->at++ : 0;
  const char *known = c ? strchr(names, c) : NULL;
  if (known) {
    *(*to)++ = values[known - names];
    return true;
  }
  unsigned code, low;
  if (c != 'u')
    return fail(r, "an escape that is none");
  if (!hex4(r, &code))
    return false;
  if (code >= 0xD800 && code < 0xDC00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
    const char *next = r->at;
    r->at += 2;
    if (!hex4(r, &low))
      return false;
    if (low >= 0xDC00 && low < 0xE000)
      code = 0x10000 + ((code & 0x3FF) << 10 | (low & 0x3FF));
    else
      r->at = next;
  }
  *to += put_utf8(*to, !code || (code >= 0xD800 && code < 0xE000) ? 0xFFFD : code);
  return true;
}

/* A string, kept in the table; NULL after a message. Decoded text is never longer than its source. */
static char *string(reader *r) {
  if (!take(r, '"')) {
    fail(r, "a string is missing");
    return NULL;
  }
  const char *close = r->at;
  while (close < r->end && *close != '"')
    close += *close == '\\' && close + 1 < r->end ? 2 : 1;
  char *text = csv_keep(r->table, r->at, (size_t)((close < r->end ? close : r->end) - r->at), r->error), *to = text;
  if (!text)
    return NULL;
  while (r->at < r->end && *r->at != '"') {
    const unsigned char c = (unsigned char)*r->at++;
    if (c < 0x20) {
      fail(r, "a string that is not closed in its line");
      return NULL;
    }
    if (c != '\\')
      *to++ = (char)c;
    else if (!escape(r, &to))
      return NULL;
  }
  *to = 0;
  if (take(r, '"'))
    return text;
  fail(r, "a string that is never closed");
  return NULL;
}

static bool value(reader *r, const char *name, int row);

/* Numbers and words, as they stand. */
static char *word(reader *r) {
  const char *start = r->at;
  while (r->at < r->end && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzEIN", *r->at) && *r->at)
    r->at++;
  const size_t length = (size_t)(r->at - start);
  if (!length) {
    fail(r, "a value is missing");
    return NULL;
  }
  const bool null = length == 4 && !memcmp(start, "null", 4);
  return csv_keep(r->table, start, null ? 0 : length, r->error);
}

static bool set(reader *r, const char *name, int row, char *text) {
  csv_table *t = r->table;
  int column = csv_column(t, name);
  if (column < 0) {
    char *head = csv_keep(t, name, strlen(name), r->error);
    column = head ? csv_add_column(t, head, r->line, r->error) : -1;
  }
  if (column >= 0)
    t->cells[(size_t)row * (size_t)t->columns + (size_t)column] = text;
  return column >= 0;
}

/* Members of an object, with names that begin with prefix. row -1: nothing is kept. */
static bool members(reader *r, const char *prefix, int row) {
  if (!take(r, '{'))
    return fail(r, "an object is missing");
  if (take(r, '}'))
    return true;
  do {
    char name[NAME_MAX_BYTES];
    const char *key = string(r);
    if (!key)
      return false;
    snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", key);
    if (!take(r, ':'))
      return fail(r, "a colon is missing");
    if (!value(r, name, row))
      return false;
  } while (take(r, ','));
  return take(r, '}') || fail(r, "a comma or } is missing");
}

static bool list(reader *r) {
  take(r, '[');
  if (take(r, ']'))
    return true;
  do
    if (!value(r, "", -1))
      return false;
  while (take(r, ','));
  return take(r, ']') || fail(r, "a comma or ] is missing");
}

static bool value(reader *r, const char *name, int row) {
  if (r->depth == DEPTH_MAX)
    return fail(r, "nested too deeply");
  r->depth++;
  const char kind = peek(r);
  bool ok;
  if (kind == '{') {
    ok = members(r, name, row);
  } else if (kind == '[') {
    ok = list(r);
  } else {
    char *text = kind == '"' ? string(r) : word(r);
    ok = text && (row < 0 || set(r, name, row, text));
  }
  r->depth--;
  return ok;
}

static bool row_object(reader *r) {
  peek(r);
  return csv_add_row(r->table, r->line, r->error) && members(r, "", r->table->rows - 1);
}

static bool rows(reader *r) {
  if (!take(r, '['))
    return fail(r, "a list of rows is missing");
  if (take(r, ']'))
    return true;
  do
    if (!row_object(r))
      return false;
  while (take(r, ','));
  return take(r, ']') || fail(r, "a comma or ] is missing");
}

/* Whether the object here has a member "rows", which r then stands at. The reader moves on only if it has. */
static bool find_rows(reader *r) {
  reader ahead = *r;
  char unused[CSV_ERROR_SIZE];
  ahead.error = unused;
  if (!take(&ahead, '{') || peek(&ahead) == '}')
    return false;
  do {
    const char *key = string(&ahead);
    if (!key || !take(&ahead, ':'))
      return false;
    if (!strcmp(key, "rows") && peek(&ahead) == '[') {
      ahead.error = r->error;
      *r = ahead;
      return true;
    }
    if (!value(&ahead, "", -1))
      return false;
  } while (take(&ahead, ','));
  return false;
}

bool csv_parse_json(const char *name, const char *text, size_t length, csv_table *out, char error[CSV_ERROR_SIZE]) {
  *out = (csv_table){.name = strdup(name)};
  reader r = {.table = out, .at = text, .end = text + length, .line = 1, .error = error};
  bool ok = out->name != NULL;
  if (!ok) {
    snprintf(error, CSV_ERROR_SIZE, "%.200s: out of memory", name);
  } else if (memchr(text, 0, length)) {
    ok = fail(&r, "a byte of value 0");
  } else if (find_rows(&r)) {
    ok = rows(&r); /* what follows in the object says nothing of rows, but has to be JSON */
    while (ok && take(&r, ',')) {
      ok = string(&r) != NULL;
      ok = ok && (take(&r, ':') || fail(&r, "a colon is missing")) && value(&r, "", -1);
    }
    ok = ok && (take(&r, '}') || fail(&r, "a comma or } is missing"));
  } else if (peek(&r) == '[') {
    ok = rows(&r);
  } else {
    while (ok && peek(&r))
      ok = row_object(&r);
  }
  if (ok && peek(&r))
    ok = fail(&r, "something behind its end");
  if (!ok)
    csv_free(out);
  return ok;
}
