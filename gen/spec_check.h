/* spec_check.h: holds a tree against the table of the format. */
#ifndef GEN_SPEC_CHECK_H
#define GEN_SPEC_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "diag.h"
#include "spec_schema.h"
#include "tree.h"

/* Adds a diagnostic for everything in the tree that its row does not allow: kinds, ranges, words, unknown, missing and
 * reserved keys. Expressions and relations between fields are not looked at. */
void spec_check(arena *a, const tree_node *root, diags *d);

/* The value of a scalar that its row allows; false for one it does not. Silent: spec_check has said why. */
bool spec_integer(const schema_row *row, const char *value, int64_t *out);
/* The index in row->words; -1 when it is not among them. */
int spec_word(const schema_row *row, const char *value);
/* Whether value is a-z, then a-z 0-9 _, at most `longest` characters. */
bool spec_is_name(const char *value, int64_t longest);
/* Whether value is one of the words that YAML 1.1 reads as a boolean or as nothing. */
bool spec_is_yaml_word(const char *value);
/* 'value' in quotes, cut when it is long. */
const char *spec_quote(arena *a, const char *value);

#endif
