/* tree.h: YAML text as a tree of nodes that know where they stand in it.
 *
 * The subset: one document of mappings, sequences and scalars, in block or flow style. Tags, directives, non-scalar
 * keys, duplicate keys, tabs as indentation and malformed UTF-8 are errors. Anchors and merge keys may only stand under
 * a top-level key that starts with "x-"; an alias may stand anywhere after its anchor and stands for the very same
 * node. A scalar has no type here: it is text, whatever quotes it is in. */
#ifndef GEN_TREE_H
#define GEN_TREE_H

#include <stdbool.h>
#include <stddef.h>

#include "arena.h"
#include "diag.h"

enum { TREE_MAX_BYTES = 1 << 20, TREE_MAX_DEPTH = 32, TREE_MAX_NODES = 10000 };

typedef enum tree_kind { TREE_SCALAR, TREE_MAPPING, TREE_SEQUENCE } tree_kind;

typedef struct tree_node tree_node;

/* One `key: value` of a mapping, or one item of a sequence (key NULL). In the order of the text. */
typedef struct tree_entry {
  const tree_node *key, *value;
  struct tree_entry *next;
} tree_entry;

struct tree_node {
  tree_kind kind;
  diag_span at; /* in the text, with quotes and brackets */
  /* Scalars: */
  const char *value; /* zero-terminated; holds no zero bytes */
  size_t inside;     /* where the first byte of value stands, behind an opening quote */
  bool verbatim;     /* the bytes of value stand in the text one to one, from `inside` on */
  bool absent;       /* `key:` with nothing behind it */
  /* Mappings and sequences: */
  tree_entry *first;
  int count;
  /* Size of the tree below with aliases written out: nodes with this one, and levels below this one. */
  int weight, height;
};

/* Parses `size` bytes of d->text into the arena. Returns NULL after adding at least one diagnostic to d; a tree may
 * come back although diagnostics were added. When memory is out, jumps to the arena's ARENA_TRY. */
const tree_node *tree_parse(arena *a, const char *bytes, size_t size, diags *d);

/* The value of a key of a mapping, or NULL. */
const tree_node *tree_get(const tree_node *mapping, const char *key);

#endif
