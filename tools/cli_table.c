/* cli_table.c: aligned tables and the units that go into them. */
#include "cli_table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

void table_start(cli_table *t, int columns, const char *const *heads) {
  memset(t, 0, sizeof *t);
  t->columns = columns;
  t->heads = heads;
}

/* Makes room for one more row. Out of memory ends the process: a command line has no other way out. */
static void grow(cli_table *t) {
  if (t->rows < t->capacity)
    return;
  t->capacity = t->capacity ? 2 * t->capacity : 16;
  void *cells = realloc(t->cells, (size_t)t->capacity * (size_t)t->columns * TABLE_CELL);
  if (!cells) {
    cli_error("out of memory");
    exit(EXIT_FAILED);
  }
  t->cells = cells;
}

void table_cell(cli_table *t, const char *format, ...) {
  if (t->used == t->columns)
    return;
  grow(t);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(t->cells[t->rows * t->columns + t->used++], TABLE_CELL, format, arguments);
  va_end(arguments);
}

void table_row(cli_table *t) {
  while (t->used < t->columns)
    table_cell(t, "%s", "");
  t->rows++;
  t->used = 0;
}

static void print_row(const cli_table *t, FILE *stream, const char *const cells[], const int widths[]) {
  char line[TABLE_COLUMNS * (TABLE_CELL + 2) + 1];
  size_t length = 0;
  for (int c = 0; c < t->columns; c++) {
    int width = t->heads[c][0] == '>' ? widths[c] : -widths[c];
    length += (size_t)snprintf(line + length, sizeof line - length, "%s%*s", c ? "  " : "", width, cells[c]);
  }
  while (length && line[length - 1] == ' ')
    length--;
  fprintf(stream, "%.*s\n", (int)length, line);
}

void table_print(const cli_table *t, FILE *stream) {
  int widths[TABLE_COLUMNS];
  const char *cells[TABLE_COLUMNS];
  for (int c = 0; c < t->columns; c++) {
    cells[c] = t->heads[c] + (t->heads[c][0] == '>');
    widths[c] = (int)strlen(cells[c]);
    for (int r = 0; r < t->rows; r++) {
      int width = (int)strlen(t->cells[r * t->columns + c]);
      widths[c] = width > widths[c] ? width : widths[c];
    }
  }
  bool bold = cli_colour(stream);
  if (bold)
    fputs("\033[1m", stream);
  print_row(t, stream, cells, widths);
  if (bold)
    fputs("\033[0m", stream);
  for (int r = 0; r < t->rows; r++) {
    for (int c = 0; c < t->columns; c++)
      cells[c] = t->cells[r * t->columns + c];
    print_row(t, stream, cells, widths);
  }
}

void table_free(cli_table *t) {
  free(t->cells);
  memset(t, 0, sizeof *t);
}

char *format_seconds(char out[32], double seconds) {
  static const struct {
    double least, factor;
    const char *unit;
  } units[] = {{0.9995, 1, "s"}, {0.9995e-3, 1e3, "ms"}, {0, 1e6, "us"}};
  int n = 0;
  while (seconds < units[n].least)
    n++;
  double value = seconds * units[n].factor;
  snprintf(out, 32, "%.*f %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, units[n].unit);
  return out;
}

char *format_bytes(char out[32], int64_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  int n = 0;
  for (; fabs(value) >= 1023.95 && n < 4; n++)
    value /= 1024;
  snprintf(out, 32, n ? "%.1f %s" : "%.0f %s", value, units[n]);
  return out;
}
