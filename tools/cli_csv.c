/* cli_csv.c: CSV to a table of texts, and the memory of such tables (cli_csv.h). */
#include "cli_csv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tables ---- */

static bool fail(char error[CSV_ERROR_SIZE], const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(char error[CSV_ERROR_SIZE], const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error, CSV_ERROR_SIZE, format, arguments);
  va_end(arguments);
  return false;
}

static bool out_of_memory(const csv_table *t, char error[CSV_ERROR_SIZE]) {
  return fail(error, "%.200s: out of memory", t->name ? t->name : "table");
}

/* Capacities are powers of two, known from the count: memory is asked for when one is reached. */
static bool full(int count) {
  return (count & (count - 1)) == 0;
}

static void *grow(void *items, int count, size_t size) {
  return realloc(items, size * (count ? 2 * (size_t)count : 1));
}

char *csv_keep(csv_table *t, const char *text, size_t length, char error[CSV_ERROR_SIZE]) {
  char *copy = malloc(length + 1);
  char **blocks = copy && full(t->nblocks) ? grow(t->blocks, t->nblocks, sizeof *blocks) : t->blocks;
  if (!copy || !blocks) {
    free(copy);
    out_of_memory(t, error);
    return NULL;
  }
  t->blocks = blocks;
  t->blocks[t->nblocks++] = copy;
  memcpy(copy, text, length);
  copy[length] = 0;
  return copy;
}

static char empty[1] = "";

bool csv_add_row(csv_table *t, int line, char error[CSV_ERROR_SIZE]) {
  if (t->rows == CSV_ROWS_MAX)
    return fail(error, "%.200s:%d: more than %d rows", t->name, line, CSV_ROWS_MAX);
  if (full(t->rows)) {
    const size_t room = t->rows ? 2 * (size_t)t->rows : 1;
    int *lines = grow(t->lines, t->rows, sizeof *lines);
    t->lines = lines ? lines : t->lines;
    char **cells = lines ? realloc(t->cells, room * (size_t)(t->columns ? t->columns : 1) * sizeof *cells) : NULL;
    t->cells = cells ? cells : t->cells;
    if (!cells)
      return out_of_memory(t, error);
  }
  t->lines[t->rows] = line;
  for (int c = 0; c < t->columns; c++)
    t->cells[(size_t)t->rows * (size_t)t->columns + (size_t)c] = empty;
  t->rows++;
  return true;
}

int csv_add_column(csv_table *t, char *head, int line, char error[CSV_ERROR_SIZE]) {
  if (t->columns == CSV_COLUMNS_MAX) {
    fail(error, "%.200s:%d: more than %d columns", t->name, line, CSV_COLUMNS_MAX);
    return -1;
  }
  const size_t before = (size_t)t->columns, after = before + 1;
  size_t room = 1;
  while (room < (size_t)t->rows)
    room *= 2;
  char **heads = realloc(t->heads, after * sizeof *heads);
  t->heads = heads ? heads : t->heads;
  char **cells = heads ? realloc(t->cells, room * after * sizeof *cells) : NULL;
  if (!cells) {
    out_of_memory(t, error);
    return -1;
  }
  t->cells = cells;
  for (size_t r = (size_t)t->rows; r-- > 0;) { /* rows become wider, the last one first */
    memmove(cells + r * after, cells + r * before, before * sizeof *cells);
    cells[r * after + before] = empty;
  }
  t->heads[t->columns] = head;
  return t->columns++;
}

int csv_column(const csv_table *t, const char *head) {
  for (int c = 0; c < t->columns; c++)
    if (!strcmp(t->heads[c], head))
      return c;
  return -1;
}

const char *csv_cell(const csv_table *t, int row, int column) {
  return t->cells[(size_t)row * (size_t)t->columns + (size_t)column];
}

void csv_free(csv_table *t) {
  for (int n = 0; n < t->nblocks; n++)
    free(t->blocks[n]);
  free(t->blocks);
  free(t->heads);
  free(t->cells);
  free(t->lines);
  free(t->name);
  memset(t, 0, sizeof *t);
}

void csv_write(FILE *out, const char *cell) {
  if (!cell[strcspn(cell, ",\"\r\n")]) {
    fputs(cell, out);
    return;
  }
  fputc('"', out);
  for (; *cell; cell++)
    fprintf(out, *cell == '"' ? "\"\"" : "%c", *cell);
  fputc('"', out);
}

/* ---- CSV ---- */

typedef struct reader {
  csv_table *table;
  char *at; /* the text, which cells are cut out of in place; a 0 ends it */
  int line;
  char *error;
} reader;

/* The cell that begins here, its end cut off. *last: it ends its line, or the text. NULL after a message. */
static char *next_cell(reader *r, int column, bool *last) {
  char *start = r->at, *to = r->at;
  const int line = r->line;
  if (*r->at == '"') {
    for (r->at++;; r->at++) {
      if (*r->at == '"' && r->at[1] == '"')
        r->at++;
      else if (*r->at == '"')
        break;
      if (!*r->at) {
        fail(r->error, "%.200s:%d: the quote that opens cell %d is never closed", r->table->name, line, column + 1);
        return NULL;
      }
      r->line += *r->at == '\n';
      *to++ = *r->at;
    }
    r->at++;
  } else {
    r->at += strcspn(r->at, ",\r\n\"");
    to = r->at;
  }
  char end = *r->at;
  if (end == '\r' && r->at[1] == '\n')
    end = *++r->at;
  if (end && end != ',' && end != '\n') {
    fail(r->error, "%.200s:%d: cell %d has %s; quote the whole cell, double the quotes in it", r->table->name, line,
         column + 1, end == '"' ? "a quote in its middle" : "something behind its closing quote");
    return NULL;
  }
  r->at += end != 0;
  r->line += end == '\n';
  *last = end != ',';
  *to = 0;
  return start;
}

static bool read_heads(reader *r) {
  const int line = r->line;
  for (bool last = false; !last;) {
    char *head = next_cell(r, r->table->columns, &last);
    if (!head)
      return false;
    if (!*head)
      return fail(r->error, "%.200s:%d: column %d has no name", r->table->name, line, r->table->columns + 1);
    if (csv_column(r->table, head) >= 0)
      return fail(r->error, "%.200s:%d: two columns are named '%.60s'", r->table->name, line, head);
    if (csv_add_column(r->table, head, line, r->error) < 0)
      return false;
  }
  return true;
}

static bool read_row(reader *r) {
  csv_table *t = r->table;
  const int line = r->line;
  if (!csv_add_row(t, line, r->error))
    return false;
  int count = 0;
  for (bool last = false; !last; count++) {
    char *cell = next_cell(r, count, &last);
    if (!cell)
      return false;
    if (count < t->columns)
      t->cells[(size_t)(t->rows - 1) * (size_t)t->columns + (size_t)count] = cell;
  }
  return count == t->columns ||
         fail(r->error, "%.200s:%d: %d cells, but the header names %d columns", t->name, line, count, t->columns);
}

static void skip_empty_lines(reader *r) {
  for (; *r->at == '\n' || (*r->at == '\r' && r->at[1] == '\n'); r->at++)
    r->line += *r->at == '\n';
}

static int line_of(const char *text, const char *at) {
  int line = 1;
  for (; text < at; text++)
    line += *text == '\n';
  return line;
}

bool csv_parse(const char *name, const char *text, size_t length, csv_table *out, char error[CSV_ERROR_SIZE]) {
  *out = (csv_table){.name = strdup(name)};
  if (!out->name)
    return out_of_memory(out, error);
  if (length >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) {
    text += 3;
    length -= 3;
  }
  const char *zero = memchr(text, 0, length);
  reader r = {.table = out, .at = csv_keep(out, text, length, error), .line = 1, .error = error};
  bool ok = r.at != NULL;
  if (ok && zero)
    ok = fail(error, "%.200s:%d: a byte of value 0: this is no text", name, line_of(text, zero));
  if (ok) {
    skip_empty_lines(&r);
    ok = *r.at ? read_heads(&r) : fail(error, "%.200s: is empty; a line that names the columns is needed", name);
  }
  for (; ok && (skip_empty_lines(&r), *r.at);)
    ok = read_row(&r);
  if (!ok)
    csv_free(out);
  return ok;
}

/* ---- Files ---- */

static bool read_all(const char *path, char **text, size_t *length, char error[CSV_ERROR_SIZE]) {
  FILE *in = fopen(path, "rb");
  if (!in)
    return fail(error, "%.200s: %s", path, strerror(errno));
  size_t room = 1 << 16;
  *text = malloc(room);
  *length = 0;
  bool ok = *text != NULL || fail(error, "%.200s: out of memory", path);
  while (ok) {
    *length += fread(*text + *length, 1, room - *length, in);
    if (*length < room)
      break;
    char *more = room < CSV_FILE_MAX ? realloc(*text, 2 * room) : NULL;
    if (!more)
      ok = fail(error, room < CSV_FILE_MAX ? "%.200s: out of memory" : "%.200s: is larger than 64 MiB", path);
    else
      *text = more, room *= 2;
  }
  if (ok && ferror(in))
    ok = fail(error, "%.200s: %s", path, strerror(errno));
  fclose(in);
  if (!ok)
    free(*text);
  return ok;
}

bool csv_read(const char *path, csv_table *out, char error[CSV_ERROR_SIZE]) {
  char *text = NULL;
  size_t length = 0, at = 0;
  *out = (csv_table){0};
  if (!read_all(path, &text, &length, error))
    return false;
  while (at < length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t'))
    at++;
  const bool json = at < length && (text[at] == '{' || text[at] == '[');
  const bool ok = (json ? csv_parse_json : csv_parse)(path, text, length, out, error);
  free(text);
  return ok;
}
