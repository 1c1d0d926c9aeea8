/* cli_csv.h: rows of named columns from a file: CSV (RFC 4180 with a header line) or JSON (objects in a list). Both
 * give the same table of texts. What a column means is the caller's business.
 *
 * CSV: cells are separated by commas; a quoted cell may hold commas, line feeds and doubled quotes; CRLF and a byte
 * order mark are fine; empty lines are skipped. JSON: a list of objects, an object with a member "rows" that is one, or
 * one object a line; members of nested objects get the name "outer.inner", lists within rows are skipped.
 *
 * Errors are one line: "FILE:LINE: what". Messages never hold more than 60 bytes of the file. */
#ifndef TOOLS_CLI_CSV_H
#define TOOLS_CLI_CSV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CSV_ERROR_SIZE = 512, CSV_COLUMNS_MAX = 256, CSV_ROWS_MAX = 100000, CSV_FILE_MAX = 64 << 20 };

typedef struct csv_table {
  char *name; /* of the file, for messages */
  int columns, rows;
  char **heads;  /* [columns], no two alike */
  char **cells;  /* [rows * columns]; never NULL, "" where nothing stands */
  int *lines;    /* [rows]: the line, from 1, that a row begins in */
  char **blocks; /* memory that heads and cells lie in */
  int nblocks;
} csv_table;

/* Parses `length` bytes of text that a file `name` holds. False with a message in error; the table is then empty. */
bool csv_parse(const char *name, const char *text, size_t length, csv_table *out, char error[CSV_ERROR_SIZE]);
bool csv_parse_json(const char *name, const char *text, size_t length, csv_table *out, char error[CSV_ERROR_SIZE]);
/* Reads a file; JSON when its first character that is not blank is [ or {. */
bool csv_read(const char *path, csv_table *out, char error[CSV_ERROR_SIZE]);
/* The column with that name, -1 if there is none. */
int csv_column(const csv_table *table, const char *head);
const char *csv_cell(const csv_table *table, int row, int column);
/* Writes one cell, quoted when it needs it. */
void csv_write(FILE *out, const char *cell);
void csv_free(csv_table *table);

/* For those that fill a table: a row of empty cells, a column (empty in the rows that are there), a copy of text. False
 * or NULL with a message when a limit is reached or memory is out. */
bool csv_add_row(csv_table *table, int line, char error[CSV_ERROR_SIZE]);
int csv_add_column(csv_table *table, char *head, int line, char error[CSV_ERROR_SIZE]);
char *csv_keep(csv_table *table, const char *text, size_t length, char error[CSV_ERROR_SIZE]);

#endif
