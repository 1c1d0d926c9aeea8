/* spec_schema.h: format 1 as one table: every key, what it may hold, its default and what it means.
 *
 * The table drives the checks (spec_check.c), the defaults (spec_read.c), the JSON Schema and the key table of
 * docs/spec-reference.md (spec_schema_print.c). Immutable; safe to share. */
#ifndef GEN_SPEC_SCHEMA_H
#define GEN_SPEC_SCHEMA_H

#include <stdbool.h>
#include <stdint.h>

#include "text.h"

/* What a value may be; a row may allow several. */
enum {
  SCHEMA_INTEGER = 1,  /* decimal, low..high in steps */
  SCHEMA_WORD = 2,     /* one of words */
  SCHEMA_NAME = 4,     /* [a-z][a-z0-9_]*, at most high characters */
  SCHEMA_CONSTANT = 8, /* a constant expression */
  SCHEMA_EXPRESSION = 16,
  SCHEMA_SETTING = 32, /* an integer or a word of the user's: values of a schedule */
  SCHEMA_MAPPING = 64, /* keys are the child rows */
  SCHEMA_LIST = 128,   /* items follow the child row "[]", at most high of them */
  SCHEMA_ANY = 256
};

enum { SCHEMA_REQUIRED = 1, SCHEMA_RESERVED = 2, SCHEMA_MAX_WORDS = 6, SCHEMA_MAX_KEYS = 16 };

typedef struct schema_row {
  const char *path; /* "attention.heads.q"; "*" stands for any name, "[]" for every item of a list, "" for the whole */
  unsigned kinds, flags;
  int64_t low, high, step;
  const char *words[SCHEMA_MAX_WORDS + 1]; /* in the order of the enum in spec.h; ends with NULL */
  const char *fallback;                    /* the default, as it would be written; NULL: none, or see meaning */
  const char *example;                     /* "key: value", for messages on a missing key; or NULL */
  const char *meaning;                     /* one sentence without a period */
} schema_row;

extern const schema_row schema_rows[];
extern const int schema_row_count;

/* The row of a path; never NULL for a path that stands in the table. */
const schema_row *schema_find(const char *path);
/* The row of a key of a mapping, or, with key "[]", of an item of a list. NULL when unknown. */
const schema_row *schema_child(const schema_row *parent, const char *key);
/* Whether `row` is a key or item of `parent`. */
bool schema_is_child(const schema_row *row, const schema_row *parent);
/* The last part of the path: "q" of "attention.heads.q". */
const char *schema_key(const schema_row *row);
/* The keys of a mapping that have a name of their own and are not reserved, in the order of the table; returns how
 * many. */
int schema_keys(const schema_row *row, const char *keys[SCHEMA_MAX_KEYS]);
/* Whether a top-level key is free-form. */
bool schema_is_free_form(const char *key);

/* "an integer from 1 to 64 or a mapping with the keys q, kv" */
void schema_describe(const schema_row *row, text *out);
/* What a user probably meant with a key of another library ("head_dim", typing errors included): a hint, or NULL. */
const char *schema_advice(const char *key);

/* The table as Markdown, for docs/spec-reference.md. */
void schema_markdown(text *out);

#endif
