/* compile_log.c: reads the logs of NVRTC, ptxas and g++. */
#define _GNU_SOURCE /* memmem, strchrnul */
#include "compile_log.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

/* The text after `word` within [from, to), or NULL. */
static const char *after(const char *from, const char *to, const char *word) {
  const char *at = memmem(from, (size_t)(to - from), word, strlen(word));
  return at ? at + strlen(word) : NULL;
}

/* The unsigned number that ends just before `unit` ("44 bytes stack frame"), or -1. */
static int number_before(const char *from, const char *to, const char *unit) {
  const char *end = memmem(from, (size_t)(to - from), unit, strlen(unit));
  if (!end)
    return -1;
  const char *digit = end;
  while (digit > from && isdigit((unsigned char)digit[-1]))
    digit--;
  long value = 0;
  for (const char *d = digit; d < end && value < INT_MAX; d++)
    value = value * 10 + (*d - '0');
  return digit == end || value > INT_MAX ? -1 : (int)value;
}

static int set_if_found(int *field, int value) {
  if (value >= 0)
    *field = value;
  return value >= 0;
}

void log_resources(const char *log, const char *entry, device_resources *out) {
  *out = (device_resources){.registers = -1};
  size_t length = strlen(entry);
  int inside = 0, framed = 0;
  for (const char *line = log, *end; log && *line; line = *end ? end + 1 : end) {
    end = strchrnul(line, '\n');
    const char *name = after(line, end, "Compiling entry function '");
    if (name)
      inside = (size_t)(end - name) > length && !strncmp(name, entry, length) && name[length] == '\'', framed = 0;
    if (!inside)
      continue;
    /* Functions that were not inlined report frames of their own after the entry's; the first is the entry's. */
    if (!framed && set_if_found(&out->stack, number_before(line, end, " bytes stack frame"))) {
      framed = 1;
      set_if_found(&out->spill_stores, number_before(line, end, " bytes spill stores"));
      set_if_found(&out->spill_loads, number_before(line, end, " bytes spill loads"));
    }
    if (after(line, end, "Used ") && set_if_found(&out->registers, number_before(line, end, " registers")))
      set_if_found(&out->shared_bytes, number_before(line, end, " bytes smem"));
  }
}

static const char *read_number(const char *p, int *value) {
  long n = 0;
  if (!isdigit((unsigned char)*p))
    return NULL;
  for (; isdigit((unsigned char)*p); p++)
    n = n < INT_MAX ? n * 10 + (*p - '0') : n;
  *value = n > INT_MAX ? INT_MAX : (int)n;
  return p;
}

int log_parse_place(const char *line, log_place *out) {
  /* The file name: no blanks, then '(' or ':' and a number. */
  const char *p = line;
  *out = (log_place){0};
  while (*p && !isspace((unsigned char)*p) && !((*p == '(' || *p == ':') && isdigit((unsigned char)p[1])))
    p++;
  if (p == line || (*p != '(' && *p != ':'))
    return 0;
  int parenthesised = *p == '(';
  p = read_number(p + 1, &out->line);
  if (!p)
    return 0;
  if (parenthesised) {
    if (*p++ != ')')
      return 0;
  } else if (*p == ':' && isdigit((unsigned char)p[1])) {
    p = read_number(p + 1, &out->column);
  }
  if (*p != ':')
    return 0;
  for (p++; *p == ' ';)
    p++;
  out->rest = p;
  return 1;
}

int log_is_note(const char *line, size_t length) {
  static const char *const words[] = {"warning", "error", "fatal", "Potential Performance Loss", "(C7", "setmaxnreg"};
  for (size_t n = 0; n < sizeof words / sizeof *words; n++)
    if (memmem(line, length, words[n], strlen(words[n])))
      return 1;
  return 0;
}
