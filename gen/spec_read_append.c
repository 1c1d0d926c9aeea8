/* spec_read_append.c: the sections rope and append of a spec, and the relations between their fields. */
#include <string.h>

#include "spec_check.h"
#include "spec_read.h"

typedef struct reader {
  spec *spec;
  diags *diags;
} reader;

static const tree_node *get(const tree_node *mapping, const char *key) {
  return mapping && mapping->kind == TREE_MAPPING ? tree_get(mapping, key) : NULL;
}

static diag_span start_of(const tree_node *node) {
  return node->kind == TREE_SCALAR ? node->at : (diag_span){node->at.offset, 1};
}

/* The index of the word at `path`; of its default where there is none or the row refuses it. */
static int word(const char *path, const tree_node *node) {
  const schema_row *row = schema_find(path);
  const int given = node && node->kind == TREE_SCALAR && !node->absent ? spec_word(row, node->value) : -1;
  return given >= 0 ? given : spec_word(row, row->fallback);
}

/* The number `key` of `mapping`, which stands at `path`: greater than 0, or also 0 where that is allowed. Leaves *value
 * without one, and after a diagnostic. */
static void number(reader *r, const char *path, const tree_node *mapping, const char *key, bool zero, double *value) {
  const char *full = arena_printf(r->spec->memory, "%s.%s", path, key);
  const tree_node *node = get(mapping, key);
  double given;
  if (!spec_read_constant(r->spec, full, node, &given, r->diags))
    return;
  if (given > 0 || (zero && given == 0))
    *value = given;
  else
    diag_add(r->diags, DIAG_OUT_OF_RANGE, node->at, "%s must be %s 0", full, zero ? "at least" : "greater than");
}

static void read_dims(reader *r, const tree_node *node) {
  spec *s = r->spec;
  const schema_row *row = schema_find("rope.dims");
  int64_t dims;
  s->rope.dims = s->dim_qk;
  if (!node || node->kind != TREE_SCALAR || !spec_integer(row, node->value, &dims) || s->dim_qk == 0)
    return;
  s->rope.dims = (int)dims;
  if (dims <= s->dim_qk)
    return;
  diag_add(r->diags, DIAG_CONFLICT, node->at, "rope.dims is %d, but a head has %d dimensions", s->rope.dims, s->dim_qk);
  diag_hint(r->diags, "leave the key out where all of them turn");
}

static void read_yarn(reader *r, const char *path, const tree_node *node) {
  spec_rope *rope = &r->spec->rope;
  rope->beta_fast = 32;
  rope->beta_slow = 1;
  number(r, path, node, "original", false, &rope->original);
  number(r, path, node, "beta_fast", false, &rope->beta_fast);
  number(r, path, node, "beta_slow", false, &rope->beta_slow);
  number(r, path, node, "attention_factor", false, &rope->attention_factor);
  rope->truncate = word("rope.scaling.yarn.truncate", get(node, "truncate")) == 1;
  if (rope->beta_fast <= rope->beta_slow)
    diag_add(r->diags, DIAG_CONFLICT, start_of(node), "%s: beta_fast must be greater than beta_slow", path);
  if (rope->theta <= 1)
    diag_add(r->diags, DIAG_CONFLICT, start_of(node), "%s needs a theta greater than 1", path);
}

static void read_llama3(reader *r, const char *path, const tree_node *node) {
  spec_rope *rope = &r->spec->rope;
  rope->high = 1;
  number(r, path, node, "original", false, &rope->original);
  number(r, path, node, "low", true, &rope->low);
  number(r, path, node, "high", false, &rope->high);
  if (get(node, "low") && get(node, "high") && rope->high <= rope->low)
    diag_add(r->diags, DIAG_CONFLICT, start_of(node), "%s: high must be greater than low", path);
}

static void read_scaling(reader *r, const tree_node *node) {
  static const char *const kinds[ROPE_SCALINGS] = {"none", "linear", "ntk", "yarn", "llama3"};
  spec_rope *rope = &r->spec->rope;
  int given = 0;
  if (!node || node->kind != TREE_MAPPING)
    return;
  for (int n = ROPE_LINEAR; n < ROPE_SCALINGS; n++)
    if (get(node, kinds[n])) {
      rope->scaling = (spec_rope_scaling)n;
      given++;
    }
  if (given != 1) {
    diag_add(r->diags, DIAG_CONFLICT, start_of(node), "rope.scaling has %s kind of scaling",
             given ? "more than one" : "no");
    diag_hint(r->diags, "for example `scaling: {linear: {factor: 8}}`, or `scaling: none`");
    return;
  }
  const char *path = arena_printf(r->spec->memory, "rope.scaling.%s", kinds[rope->scaling]);
  const tree_node *kind = get(node, kinds[rope->scaling]);
  rope->factor = 1;
  number(r, path, kind, "factor", false, &rope->factor);
  if (rope->scaling == ROPE_YARN)
    read_yarn(r, path, kind);
  if (rope->scaling == ROPE_LLAMA3)
    read_llama3(r, path, kind);
  if (rope->scaling == ROPE_NTK && rope->dims == 2)
    diag_add(r->diags, DIAG_CONFLICT, start_of(kind), "%s needs more than 2 dims", path);
}

static void read_rope(reader *r, const tree_node *node) {
  spec_rope *rope = &r->spec->rope;
  rope->given = true;
  rope->theta = 10000;
  rope->original = 1;
  read_dims(r, get(node, "dims"));
  rope->interleaved = word("rope.style", get(node, "style")) == 1;
  rope->table = word("rope.table", get(node, "table")) == 1;
  number(r, "rope", node, "theta", false, &rope->theta);
  read_scaling(r, get(node, "scaling"));
  const tree_node *idle = get(node, "theta") ? get(node, "theta") : get(node, "scaling");
  if (!rope->table || !idle)
    return;
  diag_add(r->diags, DIAG_CONFLICT, start_of(idle), "rope.%s has no effect on a table",
           get(node, "theta") ? "theta" : "scaling");
  diag_hint(r->diags, "cosines and sines come with a call; leave the key out, or `table: true`");
}

static void read_append(reader *r, const tree_node *node) {
  spec_append *append = &r->spec->append;
  append->given = true;
  append->norm = word("append.norm", get(node, "norm")) == 1;
  append->query = word("append.query", get(node, "query")) == 1;
  append->slots = (spec_slots)word("append.slots", get(node, "slots"));
  append->epsilon = 1e-6;
  number(r, "append", node, "epsilon", true, &append->epsilon);
  if (get(node, "epsilon") && !append->norm)
    diag_add(r->diags, DIAG_CONFLICT, start_of(get(node, "epsilon")), "append.epsilon has no effect without a norm");
}

void spec_read_append(spec *s, const tree_node *root, diags *d) {
  reader r = {s, d};
  const tree_node *rope = get(root, "rope"), *append = get(root, "append");
  if (rope && rope->kind == TREE_MAPPING)
    read_rope(&r, rope);
  if (append && append->kind == TREE_MAPPING)
    read_append(&r, append);
  if (s->append.given && !s->rope.given && !s->append.norm)
    s->append.query = false; /* nothing happens to queries */
  if (!s->rope.given || append)
    return;
  diag_add(d, DIAG_CONFLICT, start_of(rope), "rope has no effect without append");
  diag_hint(d, "queries and keys turn when keys get into the cache: add `append: {slots: mapping}`");
}
