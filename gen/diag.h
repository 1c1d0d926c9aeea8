/* diag.h: what is wrong with an input text, and where.
 *
 * A diagnostic points into the text by byte offset; line and column are computed when it is printed. At most
 * DIAG_LIMIT are kept; later ones are counted. Codes are stable: numbers never change their meaning. */
#ifndef GEN_DIAG_H
#define GEN_DIAG_H

#include <stddef.h>

#include "arena.h"
#include "text.h"

enum { DIAG_LIMIT = 20 };

typedef enum diag_code {
  DIAG_YAML_SYNTAX = 100,     /* libyaml rejects the text, bad UTF-8, tabs, several documents */
  DIAG_YAML_FEATURE = 101,    /* tags, anchors outside x- keys, merge keys: not part of the format */
  DIAG_TOO_LARGE = 102,       /* file, depth or node count over the limit */
  DIAG_UNKNOWN_KEY = 110,
  DIAG_DUPLICATE_KEY = 111,
  DIAG_MISSING_KEY = 112,
  DIAG_WRONG_TYPE = 113,      /* a mapping where a number belongs, 'yes' where a boolean belongs, ... */
  DIAG_OUT_OF_RANGE = 114,
  DIAG_NOT_ONE_OF = 115,      /* not among the allowed words */
  DIAG_CONFLICT = 116,        /* two fields that contradict each other */
  DIAG_RESERVED = 117,        /* a section of the format that is reserved and not built yet */
  DIAG_EXPR_SYNTAX = 130,
  DIAG_EXPR_NAME = 131,       /* unknown name */
  DIAG_EXPR_TYPE = 132,
  DIAG_EXPR_INDEX = 133,      /* wrong number of indices */
  DIAG_EXPR_VALUE = 134       /* constant division by zero, constant out of range, ... */
} diag_code;

/* A stretch of the input text. length 0 points at one place. */
typedef struct diag_span {
  size_t offset, length;
} diag_span;

typedef struct diag {
  diag_code code;
  diag_span at;
  const char *message; /* one line, no trailing period, no position */
  const char *hint;    /* "did you mean 'dim'?" or NULL */
} diag;

typedef struct diags {
  const char *file; /* as the user named it, or "<text>" */
  const char *text; /* the whole input; not owned */
  size_t size;
  arena *memory; /* holds the messages */
  diag items[DIAG_LIMIT];
  int count;   /* items in use */
  int dropped; /* diagnostics beyond DIAG_LIMIT, and those whose message found no memory */
  diag *newest; /* what diag_hint refers to; NULL after a diagnostic that was not kept */
} diags;

void diags_init(diags *d, arena *memory, const char *file, const char *text, size_t size);
/* Adds one diagnostic. The same code at the same place is added once. Never jumps to the arena's ARENA_TRY: a diagnostic
 * without memory is only counted. A span is cut to the text; control characters in a
 * message become ' ' or '?'. */
void diag_add(diags *d, diag_code code, diag_span at, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Gives the newest diagnostic a hint; nothing when that one was not kept. */
void diag_hint(diags *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* 1-based line and column of a byte offset; columns count UTF-8 characters. */
void diags_position(const diags *d, size_t offset, int *line, int *column);
/* Every diagnostic, in order of position, as "file:line:col: error: message", the source line, a caret line
 * ("^~~~" over the span), and "  hint: ..." if any; then how many more there were. */
void diags_print(const diags *d, text *out);
/* The same as a JSON array of {file, line, column, code, message, hint}. */
void diags_json(const diags *d, text *out);
/* The candidate nearest to `word` when it is near enough to be a typing error (Damerau-Levenshtein distance at most 2
 * and less than half the word), else NULL. */
const char *diag_nearest(const char *word, const char *const *candidates, int count);

#endif
