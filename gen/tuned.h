/* tuned.h: tables of measured schedules, format 1 (docs/tuned-tables.md): what was measured of one spec, on which GPU,
 * how, and which schedule won in each bucket of sizes.
 *
 * A table has sections: one GPU, one variant and one way of measuring each. An entry is known by GPU, variant, phase
 * and bucket and stands once in a table. Sections and entries lie in a fixed order, whatever the order they came in, so
 * that a table's text follows from its contents and two of them can be compared line by line. */
#ifndef GEN_TUNED_H
#define GEN_TUNED_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "bucket.h"
#include "diag.h"
#include "gpu.h"
#include "text.h"
#include "variant.h"

enum { TUNED_FORMAT = 1, TUNED_MAX_NOTES = 24 };

typedef struct tuned_entry {
  const char *phase; /* "prefill" or "decode" */
  bucket bucket;
  const char *family, *schedule; /* "axis=value,..." complete; "" for a family without axes */
  const char *workload;          /* whose sizes were measured; NULL: best over all of the phase, bucket any */
  int64_t batch, len_q, len_k;   /* 0 where workload is NULL */
  double us, low, high;          /* microseconds: median, 10th and 90th percentile */
  const char *default_schedule;  /* the built-in one, */
  double default_us;             /* measured in turns with it */
  diag_span at;                  /* in the text it was read from */
  bool refused;                  /* a reader's note: not to be used */
  struct tuned_entry *next;
} tuned_entry;

/* One line of a section's `measured`. */
typedef struct tuned_note {
  const char *key, *value;
} tuned_note;

typedef struct tuned_section {
  gpu gpu;
  char variant[VARIANT_HASH_SIZE];
  const char *version; /* of qkvc */
  int nnotes;
  tuned_note notes[TUNED_MAX_NOTES];
  tuned_entry *entries;
  struct tuned_section *next;
} tuned_section;

typedef struct tuned_table {
  arena *memory;    /* owns everything below */
  const char *spec; /* name */
  tuned_section *sections;
} tuned_table;

/* An empty table; NULL when memory is out. */
tuned_table *tuned_new(const char *spec_name);
void tuned_free(tuned_table *t);

/* How an entry that comes to one of its own GPU, variant, phase and bucket is treated. */
typedef enum tuned_rule {
  TUNED_REPLACE, /* the newcomer stays */
  TUNED_FASTER   /* the one that gained more over its default stays, whichever came first */
} tuned_rule;
/* Copies an entry into the section of the same head, which is made when there is none. False when memory is out. */
bool tuned_put(tuned_table *t, const tuned_section *head, const tuned_entry *entry, tuned_rule rule);
/* Puts all entries of another table. */
bool tuned_merge(tuned_table *t, const tuned_table *from, tuned_rule rule);
/* Adds a "key: value" line to a section's notes, whose strings the arena holds. False with the reason: no such form, or
 * too many of them. */
bool tuned_note_parse(arena *a, const char *line, size_t length, tuned_section *head, char reason[160]);
/* Whether a value can stand in a table as a family: a-z, then a-z 0-9 _; as a schedule: axis=value,... or nothing. */
bool tuned_is_word(const char *value);
bool tuned_is_schedule(const char *value);
/* Whether a value can stand there as a text: not empty, at most 1024 bytes, valid UTF-8, no control characters. */
bool tuned_is_text(const char *value);

/* The text of a table; tuned_parse gives it back. Sections without entries are left out. */
void tuned_print(const tuned_table *t, text *out);

typedef enum tuned_result {
  TUNED_OK,
  TUNED_DAMAGED,   /* diagnostics name what was skipped; the table has the rest, which may be nothing */
  TUNED_NEWER,     /* of a format to come: not to be used and not to be overwritten; a diagnostic says so */
  TUNED_NO_MEMORY
} tuned_result;
/* Reads a table. *out is NULL after TUNED_NEWER and TUNED_NO_MEMORY, else freed with tuned_free; its strings live in
 * it. d must have been initialised with an arena of its own that outlives the call. */
tuned_result tuned_parse(const char *bytes, size_t size, diags *d, tuned_table **out);

#endif
