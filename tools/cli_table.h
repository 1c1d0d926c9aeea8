/* cli_table.h: a table of text cells, printed with aligned columns once all rows are known. */
#ifndef TOOLS_CLI_TABLE_H
#define TOOLS_CLI_TABLE_H

#include <stdint.h>
#include <stdio.h>

enum { TABLE_COLUMNS = 16, TABLE_CELL = 192 };

typedef struct cli_table {
  int columns;
  const char *const *heads; /* a leading '>' right-aligns the column */
  int rows, capacity;
  char (*cells)[TABLE_CELL];
  int used; /* cells of the row being filled */
} cli_table;

/* heads: `columns` strings that outlive the table. */
void table_start(cli_table *t, int columns, const char *const *heads);
/* Appends a cell; rows fill from left to right. Over-long text is cut. */
void table_cell(cli_table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Ends the row; cells not given stay empty. */
void table_row(cli_table *t);
void table_print(const cli_table *t, FILE *stream);
void table_free(cli_table *t);

/* "1.4 ms", "96.0 KiB": into out, which holds 32 characters; returns out. */
char *format_seconds(char out[32], double seconds);
char *format_bytes(char out[32], int64_t bytes);

#endif
