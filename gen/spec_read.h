/* spec_read.h: from a checked tree to the fields of a spec. */
#ifndef GEN_SPEC_READ_H
#define GEN_SPEC_READ_H

#include "diag.h"
#include "spec.h"
#include "tree.h"

/* Fills every field of s (whose memory is set) from the tree; defaults come from the table. Checks what relates fields
 * to each other. Values that spec_check has refused are skipped here, and so are the relations they take part in, so
 * each mistake is reported once. */
void spec_read(spec *s, const tree_node *root, diags *d);

/* Params, scale, softcap, score and mask (spec_read_expr.c). heads_q and heads_kv must be set. */
void spec_read_expressions(spec *s, const tree_node *attention, diags *d);

/* A constant that kernels hold as f32. False after a diagnostic, which names `path`, or when there is none. */
bool spec_read_constant(spec *s, const char *path, const tree_node *node, double *value, diags *d);

/* rope and append (spec_read_append.c). dim_qk must be set. */
void spec_read_append(spec *s, const tree_node *root, diags *d);

#endif
