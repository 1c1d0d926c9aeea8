/* spec_parse.c: text to spec: tree, check against the table, then the fields. Owns the arena and its way out. */
#include "spec_check.h"
#include "spec_read.h"

bool spec_parse(const char *bytes, size_t size, diags *d, spec **out) {
  *out = NULL;
  arena *a = arena_new();
  if (!a)
    return false;
  if (!ARENA_TRY(a)) {
    arena_free(a);
    return false;
  }
  spec *s = arena_alloc(a, sizeof *s);
  s->memory = a;
  int before = d->count + d->dropped;
  const tree_node *root = tree_parse(a, bytes, size, d);
  if (root) {
    spec_check(a, root, d);
    spec_read(s, root, d);
  }
  if (!root || d->count + d->dropped > before) {
    arena_free(a);
    return false;
  }
  *out = s;
  return true;
}

void spec_free(spec *s) {
  if (s)
    arena_free(s->memory);
}
