/* tune_record.c: see tune_record.h. The parser unescapes in place, in a copy of the line. */
#include "tune_record.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reading ---- */

static char *skip_blanks(char *at) {
  while (*at == ' ' || *at == '\t')
    at++;
  return at;
}

/* A four-digit escape below 0x80; others are not written by record_put. */
static bool unescape(char **from, char *to) {
  static const char letters[] = "nrtbf", meanings[] = "\n\r\t\b\f";
  const char c = *(*from)++;
  const char *letter = c ? strchr(letters, c) : NULL;
  if (c == '"' || c == '\\' || c == '/')
    return *to = c, true;
  if (letter)
    return *to = meanings[letter - letters], true;
  unsigned code = 0;
  if (c != 'u')
    return false;
  for (int n = 0; n < 4; n++) {
    const char digit = *(*from)++;
    if (!isxdigit((unsigned char)digit))
      return false;
    code = 16 * code + (unsigned)(isdigit((unsigned char)digit) ? digit - '0' : (digit | 32) - 'a' + 10);
  }
  return *to = (char)code, code > 0 && code < 0x80;
}

/* The string that starts at a quote, unescaped and ended where it stands; *at moves behind it. NULL: it has no end. */
static char *read_string(char **at) {
  char *from = *at + 1, *start = from, *to = from;
  while (*from && *from != '"') {
    if (*from != '\\') {
      *to++ = *from++;
      continue;
    }
    from++;
    if (!unescape(&from, to++))
      return NULL;
  }
  if (!*from)
    return NULL;
  *at = from + 1;
  *to = 0;
  return start;
}

/* An array of numbers, a number or a word, up to the separator behind it, which is returned in *separator. */
static char *read_plain(char **at, char *separator) {
  char *start = *at, *end = start;
  if (*end == '[') {
    end = strchr(end, ']');
    if (!end)
      return NULL;
    end++;
  } else
    end += strcspn(end, ",} \t\n");
  if (end == start)
    return NULL;
  char *next = skip_blanks(end);
  *separator = *next;
  *at = next + (*next != 0);
  *end = 0;
  return start;
}

static bool parse_fields(record *r, char *at) {
  char separator = ',';
  at = skip_blanks(at);
  if (*at != '{')
    return false;
  at = skip_blanks(at + 1);
  if (*at == '}')
    separator = *at++;
  while (separator == ',') {
    record_field *f = &r->fields[r->count];
    at = skip_blanks(at);
    if (r->count == RECORD_FIELDS || *at != '"' || !(f->key = read_string(&at)))
      return false;
    at = skip_blanks(at);
    if (*at != ':')
      return false;
    at = skip_blanks(at + 1);
    f->quoted = *at == '"';
    f->value = f->quoted ? read_string(&at) : read_plain(&at, &separator);
    if (!f->value)
      return false;
    if (f->quoted) {
      at = skip_blanks(at);
      separator = *at;
      at += *at != 0;
    }
    r->count++;
  }
  at = skip_blanks(at);
  return separator == '}' && (*at == 0 || (*at == '\n' && at[1] == 0));
}

bool record_parse(record *r, const char *line) {
  record_free(r);
  r->storage = strdup(line);
  if (r->storage && parse_fields(r, r->storage))
    return true;
  record_free(r);
  return false;
}

void record_free(record *r) {
  free(r->storage);
  memset(r, 0, sizeof *r);
}

const char *record_text(const record *r, const char *key) {
  for (int n = 0; n < r->count; n++)
    if (!strcmp(r->fields[n].key, key))
      return r->fields[n].quoted || strcmp(r->fields[n].value, "null") != 0 ? r->fields[n].value : NULL;
  return NULL;
}

double record_number(const record *r, const char *key, double fallback) {
  const char *text = record_text(r, key);
  char *end;
  if (!text)
    return fallback;
  const double value = strtod(text, &end);
  return end == text || *end ? fallback : value;
}

int record_numbers(const record *r, const char *key, double *out, int most) {
  const char *text = record_text(r, key);
  int count = 0;
  if (!text || *text != '[')
    return 0;
  for (const char *at = text + 1; count < most;) {
    char *end;
    const double value = strtod(at, &end);
    if (end == at)
      break;
    out[count++] = value;
    at = end + strspn(end, ", ");
  }
  return count;
}

/* ---- Writing ---- */

static void write_text(FILE *out, const char *text) {
  fputc('"', out);
  for (const unsigned char *s = (const unsigned char *)text; *s; s++)
    if (*s == '"' || *s == '\\')
      fprintf(out, "\\%c", *s);
    else if (*s < 0x20)
      fprintf(out, "\\u%04x", *s);
    else
      fputc(*s, out);
  fputc('"', out);
}

static void write_number(FILE *out, double value) {
  if (isfinite(value))
    fprintf(out, "%.9g", value);
  else
    fputs("null", out);
}

static void write_key(record_writer *w, const char *key) {
  fputs(w->count++ ? "," : "", w->out);
  write_text(w->out, key);
  fputc(':', w->out);
}

record_writer record_open(FILE *out) {
  fputc('{', out);
  return (record_writer){out, 0};
}

void record_put(record_writer *w, const char *key, const char *value) {
  write_key(w, key);
  if (value)
    write_text(w->out, value);
  else
    fputs("null", w->out);
}

void record_put_number(record_writer *w, const char *key, double value) {
  write_key(w, key);
  write_number(w->out, value);
}

void record_put_numbers(record_writer *w, const char *key, const double *values, int count) {
  write_key(w, key);
  for (int n = 0; n < count; n++) {
    fputc(n ? ',' : '[', w->out);
    write_number(w->out, values[n]);
  }
  fputs(count ? "]" : "[]", w->out);
}

void record_put_all(record_writer *w, const record *r) {
  for (int n = 0; n < r->count; n++) {
    write_key(w, r->fields[n].key);
    if (r->fields[n].quoted)
      write_text(w->out, r->fields[n].value);
    else
      fputs(r->fields[n].value, w->out);
  }
}

void record_close(record_writer *w) {
  fputs("}\n", w->out);
}

bool record_begin(record_line *l) {
  *l = (record_line){.text = NULL};
  FILE *out = open_memstream(&l->text, &l->size);
  if (out)
    l->to = record_open(out);
  return out != NULL;
}

char *record_end(record_line *l) {
  record_close(&l->to);
  if (fclose(l->to.out) == 0)
    return l->text;
  free(l->text);
  return NULL;
}

void record_answer(record *r, const char *status, const char *reason) {
  record_line l;
  char *line = NULL;
  if (record_begin(&l)) {
    record_put(&l.to, "status", status);
    record_put(&l.to, "reason", reason);
    line = record_end(&l);
  }
  record_parse(r, line ? line : "");
  free(line);
}
