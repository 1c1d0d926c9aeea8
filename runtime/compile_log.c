/* compile_log.c: reads the logs of NVRTC, ptxas and g++. */
#define _GNU_SOURCE /* memmem, strchrnul */
#include "compile_log.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

static const struct {
  const char *words;
  int costs; /* worth a warning */
} kinds[LOG_KINDS] = {[LOG_SERIALISED] = {"wgmma serialised", 1},
                      [LOG_SETMAXNREG] = {"setmaxnreg ignored", 1},
                      [LOG_WAIT] = {"wait for wgmma added", 1},
                      [LOG_FENCE] = {"wgmma fence added", 0},
                      [LOG_WARNING] = {"compiler warning", 1}};

/* Every advisory of the releases 12.8 to 13.5. The first row whose words a message holds gives kind and meaning. The
 * codes are those of CUDA 13.0. */
static const struct {
  const char *words;
  log_kind kind;
  const char *meaning;
} advisories[] = {
    /* "Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...": C7509 to C7516, 7518, 7520
     */
    {"serialized due to the presence of Extern calls", LOG_SERIALISED, "a function outside the module is called"},
    {"serialized due to wgmma pipeline crossing function boundary", LOG_SERIALISED,
     "a function that is not inlined is called while wgmma is in flight"},
    {"serialized due to insufficient register resources for the wgmma pipeline", LOG_SERIALISED,
     "too few registers for all accumulators in flight"},
    {"serialized due to insufficient register resources for the function", LOG_SERIALISED,
     "too few registers for the function"},
    {"serialized due to non wgmma instructions defining input registers", LOG_SERIALISED,
     "registers of A are written while wgmma is in flight"},
    {"serialized due to non wgmma instructions reading accumulator registers", LOG_SERIALISED,
     "accumulators are read while wgmma is in flight"},
    {"serialized due to non wgmma instructions defining accumulator registers", LOG_SERIALISED,
     "accumulators are written while wgmma is in flight"},
    {"serialized due to ill formed pipeline stage", LOG_SERIALISED,
     "fence, wgmma, commit and wait do not follow each other on every path"},
    {"compiler-inserted WG.DP in divergent path", LOG_SERIALISED,
     "a wait that ptxas must add is on a path that only some threads take"},
    {"compiler-inserted WG.AR in divergent path", LOG_SERIALISED,
     "a fence that ptxas must add is on a path that only some threads take"},
    {"instructions are serialized", LOG_SERIALISED, "for a reason that only the compiler's note tells"},
    /* "Potential Performance Loss: 'setmaxnreg' ignored ...": C7504 to C7508 */
    {"'setmaxnreg' ignored to maintain compatibility across compilation units", LOG_SETMAXNREG,
     "the module is compiled to be linked with others"},
    {"'setmaxnreg' ignored to allow debugging", LOG_SETMAXNREG, "the module is compiled for a debugger"},
    {"'setmaxnreg' ignored to maintain compatibility into 'extern' call", LOG_SETMAXNREG,
     "a function outside the module is called"},
    {"'setmaxnreg' ignored to maintain minimum register requirements", LOG_SETMAXNREG,
     "code after it needs more registers than it leaves"},
    {"'setmaxnreg' ignored; unable to determine register count at entry", LOG_SETMAXNREG,
     "launch bounds do not fix the registers at entry"},
    {"'setmaxnreg' ignored", LOG_SETMAXNREG, "for a reason that only the compiler's note tells"},
    /* "... is injected in around line N by compiler to allow use of registers ...": C7517, C7519 */
    {"warpgroup.wait is injected", LOG_WAIT, "accumulators are used before a wait of the source"},
    {"wgmma.wait_group is injected", LOG_WAIT, "accumulators are used before a wait of the source"},
    {"warpgroup.arrive is injected", LOG_FENCE, "registers go into wgmma without a fence of the source"},
};

/* The text after `word` within [from, to), or NULL. */
static const char *after(const char *from, const char *to, const char *word) {
  const char *at = memmem(from, (size_t)(to - from), word, strlen(word));
  return at ? at + strlen(word) : NULL;
}

/* ---- Advisories ---- */

static int span_equal(log_span a, log_span b) {
  return a.length == b.length && (!a.length || !memcmp(a.at, b.at, a.length));
}

/* The text between [from, to) up to `stop`; empty when there is no stop. */
static log_span span_until(const char *from, const char *to, char stop) {
  const char *end = from ? memchr(from, stop, (size_t)(to - from)) : NULL;
  return end ? (log_span){from, (size_t)(end - from)} : (log_span){0};
}

/* The message of a line and whether its severity is "warning": "kernel.cu(8): warning #177-D: text" (the message begins
 * at the code), "ptxas info    : (C7510) text", "ptxas file, line 9; warning : text". NULL: no message, or an error. */
static const char *message_of(const char *line, const char *end, int *is_warning) {
  static const char program[] = "ptxas ", word[] = "warning";
  log_place place;
  if (log_parse_place(line, &place) && place.rest < end) {
    *is_warning = !strncmp(place.rest, word, sizeof word - 1);
    return *is_warning ? place.rest + sizeof word - 1 : NULL;
  }
  const char *message = strncmp(line, program, sizeof program - 1) ? NULL : after(line, end, " : ");
  if (!message || after(line, message, "fatal") || after(line, message, "error"))
    return NULL;
  *is_warning = after(line, message, word) != NULL;
  return message;
}

/* Takes the code off the front of a message: "(C7510) ", " #177-D: ", ": ". */
static log_span take_code(const char **message, const char *end) {
  const char *m = *message;
  log_span code = {0};
  if (end - m > 2 && m[0] == '(' && m[1] == 'C' && isdigit((unsigned char)m[2]))
    code = span_until(m + 1, end, ')');
  else if (end - m > 2 && m[0] == ' ' && m[1] == '#')
    code = span_until(m + 1, end, ':');
  if (code.length)
    m = code.at + code.length + 1;
  while (m < end && (*m == ' ' || *m == ':'))
    m++;
  *message = m;
  return code;
}

int log_parse_advisory(const char *line, size_t length, log_advisory *out) {
  int is_warning = 0;
  const char *end = line + length, *message = message_of(line, end, &is_warning);
  *out = (log_advisory){.kind = LOG_WARNING};
  if (!message)
    return 0;
  out->code = take_code(&message, end);
  out->function = span_until(after(message, end, "function '"), end, '\'');
  for (size_t n = 0; n < sizeof advisories / sizeof *advisories; n++)
    if (after(message, end, advisories[n].words)) {
      out->kind = advisories[n].kind;
      out->meaning = (log_span){advisories[n].meaning, strlen(advisories[n].meaning)};
      return 1;
    }
  out->meaning = (log_span){message, (size_t)(end - message)};
  return is_warning || out->code.length || after(message, end, "Potential Performance Loss");
}

/* Whether the statistics of the entry begin at this line. */
static int opens_entry(const char *line, const char *end, log_span name) {
  const char *found = after(line, end, "Compiling entry function '");
  return found && span_equal(span_until(found, end, '\''), name);
}

/* Whether ptxas compiled an entry of this name. */
static int has_entry(const char *log, log_span name) {
  for (const char *line = log, *end; *line; line = *end ? end + 1 : end) {
    end = strchrnul(line, '\n');
    if (opens_entry(line, end, name))
      return 1;
  }
  return 0;
}

/* The next advisory that counts for the entry, from *cursor on, which moves behind it. 0: no more. */
static int next_advisory(const char *log, log_span entry, const char **cursor, log_advisory *out) {
  for (const char *line = *cursor, *end; *line; line = *cursor) {
    end = strchrnul(line, '\n');
    *cursor = *end ? end + 1 : end;
    if (log_parse_advisory(line, (size_t)(end - line), out) &&
        (!out->function.length || span_equal(out->function, entry) || !has_entry(log, out->function)))
      return 1;
  }
  return 0;
}

static int same_advice(const log_advisory *a, const log_advisory *b) {
  return a->kind == b->kind && span_equal(a->code, b->code) && span_equal(a->meaning, b->meaning);
}

void log_advise(const char *log, const char *entry, text *out) {
  enum { DISTINCT = 32 }; /* the rest is in the counts of log_resources */
  const log_span name = {entry, strlen(entry)};
  log_advisory list[DISTINCT], one;
  int times[DISTINCT] = {0}, count = 0;
  if (!log || !has_entry(log, name))
    return;
  for (const char *cursor = log; next_advisory(log, name, &cursor, &one);) {
    int n = 0;
    while (n < count && !same_advice(&list[n], &one))
      n++;
    if (n == DISTINCT || !kinds[one.kind].costs)
      continue;
    list[n] = one;
    count += n == count;
    times[n]++;
  }
  for (int n = 0; n < count; n++) {
    text_printf(out, "%s: %s", entry, kinds[list[n].kind].words);
    if (list[n].code.length)
      text_printf(out, " (%.*s)", (int)list[n].code.length, list[n].code.at);
    text_printf(out, ": %.*s", (int)list[n].meaning.length, list[n].meaning.at);
    if (times[n] > 1)
      text_printf(out, ", %d times", times[n]);
    text_puts(out, "\n");
  }
}

/* ---- Statistics ---- */

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

/* The statistics of ptxas -v for the entry. */
static void read_statistics(const char *log, log_span name, device_resources *out) {
  int inside = 0, framed = 0;
  for (const char *line = log, *end; *line; line = *end ? end + 1 : end) {
    end = strchrnul(line, '\n');
    if (after(line, end, "Compiling entry function '"))
      inside = opens_entry(line, end, name), framed = 0;
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

void log_resources(const char *log, const char *entry, device_resources *out) {
  const log_span name = {entry, strlen(entry)};
  log_advisory one;
  *out = (device_resources){.registers = -1};
  if (!log || !has_entry(log, name))
    return;
  read_statistics(log, name, out);
  int *const counts[LOG_KINDS] = {[LOG_SERIALISED] = &out->serialised_wgmma,
                                  [LOG_SETMAXNREG] = &out->ignored_setmaxnreg,
                                  [LOG_WAIT] = &out->added_waits,
                                  [LOG_FENCE] = &out->added_fences,
                                  [LOG_WARNING] = &out->warnings};
  for (const char *cursor = log; next_advisory(log, name, &cursor, &one);)
    ++*counts[one.kind];
}

/* ---- Places ---- */

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
  static const char *const words[] = {"warning", "error", "fatal"};
  log_advisory advisory;
  for (size_t n = 0; n < sizeof words / sizeof *words; n++)
    if (memmem(line, length, words[n], strlen(words[n])))
      return 1;
  return log_parse_advisory(line, length, &advisory);
}
