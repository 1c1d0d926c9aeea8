/* diag.c: collecting and printing what is wrong with an input text. */
#include "diag.h"

#include <string.h>

enum {
  PRINT_WIDTH = 140, /* longest piece of a source line that is shown, in characters */
  PRINT_BEFORE = 60, /* of it, at most this many before the place, when the line is longer */
  NEAR_WORD = 64     /* longest word that is compared with others */
};

void diags_init(diags *d, arena *memory, const char *file, const char *text_bytes, size_t size) {
  *d = (diags){.file = file ? file : "<text>", .text = text_bytes ? text_bytes : "", .size = size, .memory = memory};
}

/* A message in the arena of d, or NULL: a diagnostic must not tear down what its caller is doing. */
__attribute__((format(printf, 2, 0))) static const char *format_message(diags *d, const char *format, va_list args) {
  jmp_buf outer;
  memcpy(&outer, &d->memory->out_of_memory, sizeof outer);
  char *volatile message = NULL;
  if (ARENA_TRY(d->memory))
    message = arena_vprintf(d->memory, format, args);
  memcpy(&d->memory->out_of_memory, &outer, sizeof outer);
  for (char *c = message; c && *c; c++) /* quoted input must not break the line or steer a terminal */
    if ((unsigned char)*c < 0x20 || *c == 0x7F)
      *c = *c == '\n' || *c == '\t' ? ' ' : '?';
  return message;
}

void diag_add(diags *d, diag_code code, diag_span at, const char *format, ...) {
  if (at.offset > d->size)
    at.offset = d->size;
  if (at.length > d->size - at.offset)
    at.length = d->size - at.offset;
  for (int i = 0; i < d->count; i++)
    if (d->items[i].code == code && d->items[i].at.offset == at.offset) {
      d->newest = NULL; /* its first hint stands */
      return;
    }
  va_list args;
  va_start(args, format);
  const char *message = d->count < DIAG_LIMIT ? format_message(d, format, args) : NULL;
  va_end(args);
  if (!message) {
    d->dropped++;
    d->newest = NULL;
    return;
  }
  d->newest = &d->items[d->count++];
  *d->newest = (diag){.code = code, .at = at, .message = message};
}

void diag_hint(diags *d, const char *format, ...) {
  if (!d->newest)
    return;
  va_list args;
  va_start(args, format);
  d->newest->hint = format_message(d, format, args);
  va_end(args);
}

static bool continues_character(char byte) {
  return ((unsigned char)byte & 0xC0) == 0x80;
}

static size_t line_start(const diags *d, size_t offset) {
  while (offset > 0 && d->text[offset - 1] != '\n')
    offset--;
  return offset;
}

static size_t count_characters(const char *bytes, size_t size) {
  size_t count = 0;
  for (size_t i = 0; i < size; i++)
    count += !continues_character(bytes[i]);
  return count;
}

void diags_position(const diags *d, size_t offset, int *line, int *column) {
  if (offset > d->size)
    offset = d->size;
  *line = 1;
  for (size_t i = 0; i < offset; i++)
    *line += d->text[i] == '\n';
  size_t start = line_start(d, offset);
  if (start == 0 && offset >= 3 && memcmp(d->text, "\xEF\xBB\xBF", 3) == 0)
    start = 3; /* a byte order mark has no width */
  *column = (int)count_characters(d->text + start, offset - start) + 1;
}

/* Prints one character of the source, control bytes and stray bytes as '?', and returns how many bytes it took. */
static size_t print_character(const char *bytes, size_t size, text *out) {
  size_t length = 1;
  while (length < size && continues_character(bytes[length]))
    length++;
  unsigned char first = (unsigned char)bytes[0];
  if (first == '\t')
    text_puts(out, " ");
  else if (first < 0x20 || first == 0x7F || (first < 0x80 && length > 1) ||
           (first >= 0x80 && (length < 2 || length > 4)))
    text_puts(out, "?");
  else
    text_add(out, bytes, length);
  return length;
}

/* The source line and the caret line; neither for an empty line. A long line is cut to a window around the place. */
static void print_source(const diags *d, diag_span at, text *out) {
  size_t place = at.offset < d->size ? at.offset : d->size;
  size_t start = line_start(d, place), end = place;
  if (start == 0 && place >= 3 && memcmp(d->text, "\xEF\xBB\xBF", 3) == 0)
    start = 3;
  while (end < d->size && d->text[end] != '\n')
    end++;
  if (end > place && d->text[end - 1] == '\r')
    end--;
  if (start == end)
    return;
  size_t before = count_characters(d->text + start, place - start);
  bool cut = before + count_characters(d->text + place, end - place) > PRINT_WIDTH && before > PRINT_BEFORE;
  for (; cut && before > PRINT_BEFORE; before--) {
    start++;
    while (start < place && continues_character(d->text[start]))
      start++;
  }
  text_puts(out, cut ? "  ..." : "  ");
  size_t shown = 0, marked = 0, i = start;
  for (; i < end && shown < PRINT_WIDTH; shown++) {
    marked += i >= place && i - place < at.length;
    i += print_character(d->text + i, end - i, out);
  }
  text_printf(out, "%s\n%s%*s^", i < end ? "..." : "", cut ? "     " : "  ", (int)before, "");
  for (size_t n = 1; n < marked; n++)
    text_puts(out, "~");
  text_puts(out, "\n");
}

/* Indices of the items by position; equal positions keep the order in which they were found. */
static void sort_items(const diags *d, int order[DIAG_LIMIT]) {
  for (int i = 0; i < d->count; i++) {
    int at = i;
    for (; at > 0 && d->items[order[at - 1]].at.offset > d->items[i].at.offset; at--)
      order[at] = order[at - 1];
    order[at] = i;
  }
}

void diags_print(const diags *d, text *out) {
  int order[DIAG_LIMIT];
  sort_items(d, order);
  for (int i = 0; i < d->count; i++) {
    const diag *item = &d->items[order[i]];
    int line, column;
    diags_position(d, item->at.offset, &line, &column);
    text_printf(out, "%s:%d:%d: error: %s\n", d->file, line, column, item->message);
    print_source(d, item->at, out);
    if (item->hint)
      text_printf(out, "  hint: %s\n", item->hint);
  }
  if (d->dropped)
    text_printf(out, "%s: %d more error%s not shown\n", d->file, d->dropped, d->dropped == 1 ? "" : "s");
}

void diags_json(const diags *d, text *out) {
  int order[DIAG_LIMIT];
  sort_items(d, order);
  text_puts(out, "[");
  for (int i = 0; i < d->count; i++) {
    const diag *item = &d->items[order[i]];
    int line, column;
    diags_position(d, item->at.offset, &line, &column);
    text_puts(out, i ? ",\n {\"file\": " : "\n {\"file\": ");
    text_json_string(out, d->file);
    text_printf(out, ", \"line\": %d, \"column\": %d, \"code\": %d, \"message\": ", line, column, (int)item->code);
    text_json_string(out, item->message);
    text_puts(out, ", \"hint\": ");
    if (item->hint)
      text_json_string(out, item->hint);
    else
      text_puts(out, "null");
    text_puts(out, "}");
  }
  text_puts(out, d->count ? "\n]\n" : "]\n");
}

static size_t smallest(size_t a, size_t b) {
  return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap neighbours) that turn a into b; both at most NEAR_WORD long. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb) {
  size_t rows[3][NEAR_WORD + 1]; /* row i of the table at rows[i % 3] */
  for (size_t j = 0; j <= nb; j++)
    rows[0][j] = j;
  for (size_t i = 1; i <= na; i++) {
    size_t *row = rows[i % 3];
    const size_t *previous = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    row[0] = i;
    for (size_t j = 1; j <= nb; j++) {
      row[j] = smallest(smallest(previous[j] + 1, row[j - 1] + 1), previous[j - 1] + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = smallest(row[j], before[j - 2] + 1);
    }
  }
  return rows[na % 3][nb];
}

const char *diag_nearest(const char *word, const char *const *candidates, int count) {
  size_t length = strlen(word), best = 3;
  const char *nearest = NULL;
  if (length > NEAR_WORD)
    return NULL;
  for (int i = 0; i < count; i++) {
    size_t other = strlen(candidates[i]);
    if (other > NEAR_WORD)
      continue;
    size_t distance = edit_distance(word, length, candidates[i], other);
    if (distance < best && 2 * distance < length) {
      best = distance;
      nearest = candidates[i];
    }
  }
  return nearest;
}
