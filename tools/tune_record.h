/* tune_record.h: one flat JSON object on one line: the form of what tuner and worker say to each other, and of the
 * journal. Values are strings, numbers, true, false, null and arrays of numbers. */
#ifndef TOOLS_TUNE_RECORD_H
#define TOOLS_TUNE_RECORD_H

#include <stdbool.h>
#include <stdio.h>

enum { RECORD_FIELDS = 48 };

typedef struct record_field {
  const char *key, *value; /* unescaped strings; other values as they stand */
  bool quoted;             /* value is a string */
} record_field;

/* A parsed line. Start from zero. */
typedef struct record {
  char *storage;
  int count;
  record_field fields[RECORD_FIELDS];
} record;

/* Replaces what the record held. False, and an empty record, for anything but one whole object. */
bool record_parse(record *r, const char *line);
void record_free(record *r);
/* NULL when there is no such key, and for null. */
const char *record_text(const record *r, const char *key);
/* fallback: when there is no such key or it is no number. */
double record_number(const record *r, const char *key, double fallback);
/* The numbers of an array, `most` at most; returns how many. */
int record_numbers(const record *r, const char *key, double *out, int most);

/* Makes r a "status" and a "reason": an answer that nobody gave. */
void record_answer(record *r, const char *status, const char *reason);

/* A line being written. Numbers have 9 digits: what is read back prints the same again. */
typedef struct record_writer {
  FILE *out;
  int count;
} record_writer;

record_writer record_open(FILE *out);
void record_put(record_writer *w, const char *key, const char *value); /* NULL: null */
void record_put_number(record_writer *w, const char *key, double value);
void record_put_numbers(record_writer *w, const char *key, const double *values, int count);
/* All fields of a parsed line. */
void record_put_all(record_writer *w, const record *r);
/* Ends the line. */
void record_close(record_writer *w);

/* A line that is written in memory, to `to`. */
typedef struct record_line {
  record_writer to;
  char *text;
  size_t size;
} record_line;
/* False: out of memory. The record_line stays where it is until its end. */
bool record_begin(record_line *l);
/* Ends the line; freed by the caller. NULL: out of memory. */
char *record_end(record_line *l);

#endif
