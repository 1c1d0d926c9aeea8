/* tree.c: builds the tree from libyaml's events.
 *
 * libyaml's marks count characters; every node gets byte offsets. libyaml resolves nothing here: no tags, no types. */
#include "tree.h"

#include <string.h>
#include <yaml.h>

typedef struct anchor {
  const char *name;
  const tree_node *node;
  struct anchor *next; /* the one defined before */
} anchor;

typedef struct reader {
  arena *memory;
  diags *diags;
  const char *bytes; /* behind a byte order mark */
  size_t size;
  size_t base;              /* of `bytes` in the diagnosed text */
  size_t character, offset; /* a character index and its byte offset, moved along with the marks */
  anchor *anchors;          /* newest first */
  int nodes;
  bool parsing, holding; /* what has to be released: the parser, the event */
  yaml_parser_t parser;
  yaml_event_t event;
} reader;

/* ---- Positions ---- */

/* Byte offset in the diagnosed text of a character index. Marks move little, so the walk from the last one is short. */
static size_t byte_offset(reader *r, size_t character) {
  while (r->character < character && r->offset < r->size) {
    do
      r->offset++;
    while (r->offset < r->size && ((unsigned char)r->bytes[r->offset] & 0xC0) == 0x80);
    r->character++;
  }
  while (r->character > character) {
    do
      r->offset--;
    while (((unsigned char)r->bytes[r->offset] & 0xC0) == 0x80);
    r->character--;
  }
  return r->base + r->offset;
}

static diag_span span(reader *r, yaml_mark_t from, yaml_mark_t to) {
  size_t start = byte_offset(r, from.index), end = byte_offset(r, to.index);
  return (diag_span){start, end > start ? end - start : 0};
}

static diag_span event_span(reader *r) {
  return span(r, r->event.start_mark, r->event.end_mark);
}

/* ---- Bytes ---- */

/* What libyaml would reject without a useful place, or accept although it makes a spec unreadable; the first such. */
static bool check_bytes(reader *r) {
  bool indentation = true;
  for (size_t i = 0; i < r->size;) {
    unsigned char byte = (unsigned char)r->bytes[i];
    size_t length = text_utf8_length(r->bytes + i, r->size - i);
    diag_span at = {r->base + i, 1};
    if (length == 0) {
      diag_add(r->diags, DIAG_YAML_SYNTAX, at, "byte 0x%02X is not valid UTF-8", byte);
      diag_hint(r->diags, "save the file as UTF-8");
      return false;
    }
    if (byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t')) {
      diag_add(r->diags, DIAG_YAML_SYNTAX, at, "control character 0x%02X in the text", byte);
      return false;
    }
    if (byte == '\t' && indentation) {
      diag_add(r->diags, DIAG_YAML_SYNTAX, at, "a tab cannot indent a line");
      diag_hint(r->diags, "indent with spaces");
      return false;
    }
    indentation = byte == '\n' || byte == '\r' || (indentation && byte == ' ');
    i += length;
  }
  return true;
}

/* ---- Errors of libyaml ---- */

/* What a user most likely did, by libyaml's words. */
static const struct {
  const char *problem, *hint;
} advice[] = {
    {"mapping values are not allowed", "a value that holds ': ' must be quoted; otherwise check the indentation"},
    {"could not find expected ':'", "write a key as `key: value`, with a space behind the ':'"},
    {"did not find expected key", "check the indentation of this line, and quotes that are not closed"},
    {"did not find expected '-' indicator", "check the indentation of this line"},
    {"did not find expected ',' or '}'", "close the '{', or quote a value inside {...} that holds any of , [ ] { }"},
    {"did not find expected ',' or ']'", "close the '[', or quote a value inside [...] that holds any of , [ ] { }"},
    {"block sequence entries are not allowed", "quote a value that starts with '- '"},
    {"found character that cannot start any token",
     "quote a value that starts with this character; use spaces, not tabs"},
    {"found unexpected end of stream", "close the quote"},
    {"found unknown escape character", "use single quotes: in them a backslash is an ordinary character"},
    {"did not find the expected document start", "a spec is one mapping of `key: value` lines"},
    {"did not find expected <document start>",
     "a spec is one mapping of `key: value` lines; check the indentation of this line"},
    {"did not find expected alphabetic or numeric character", "quote a value that starts with '*' or '&'"},
};

static void out_of_memory(reader *r) {
  longjmp(r->memory->out_of_memory, 1);
}

static void add_yaml_error(reader *r) {
  const yaml_parser_t *p = &r->parser;
  if (p->error == YAML_MEMORY_ERROR)
    out_of_memory(r);
  const char *problem = p->problem ? p->problem : "unreadable text", *context = p->context ? p->context : "";
  size_t place = p->error == YAML_READER_ERROR ? r->base + p->problem_offset : byte_offset(r, p->problem_mark.index);
  size_t start = p->context ? byte_offset(r, p->context_mark.index) : place;
  /* Where the end of a quote or a ':' is missing is only noticed later; what lacks it is the place to look at. */
  if (strstr(problem, "end of stream") || strstr(context, "simple key"))
    place = start;
  if (start < place) {
    int line, column;
    diags_position(r->diags, start, &line, &column);
    diag_add(r->diags, DIAG_YAML_SYNTAX, (diag_span){place, 1}, "not valid YAML: %s %s that starts at %d:%d", problem,
             context, line, column);
  } else
    diag_add(r->diags, DIAG_YAML_SYNTAX, (diag_span){place, 1}, "not valid YAML: %s%s%s", problem, *context ? " " : "",
             context);
  for (size_t i = 0; i < sizeof advice / sizeof advice[0]; i++)
    if (strncmp(problem, advice[i].problem, strlen(advice[i].problem)) == 0) {
      diag_hint(r->diags, "%s", advice[i].hint);
      return;
    }
}

/* ---- Events ---- */

static void release_event(reader *r) {
  if (r->holding)
    yaml_event_delete(&r->event);
  r->holding = false;
}

/* Moves to the next event. False after a diagnostic. */
static bool next_event(reader *r) {
  release_event(r);
  if (!yaml_parser_parse(&r->parser, &r->event)) {
    add_yaml_error(r);
    return false;
  }
  r->holding = true;
  return true;
}

static bool count_nodes(reader *r, int weight, int depth, int height, diag_span at) {
  if (depth + height > TREE_MAX_DEPTH) {
    diag_add(r->diags, DIAG_TOO_LARGE, at, "nested deeper than %d levels", TREE_MAX_DEPTH);
    return false;
  }
  r->nodes += weight;
  if (r->nodes > TREE_MAX_NODES) {
    diag_add(r->diags, DIAG_TOO_LARGE, at, "more than %d values, aliases written out", TREE_MAX_NODES);
    return false;
  }
  return true;
}

static void refuse_tag(reader *r, const yaml_char_t *tag) {
  if (!tag)
    return;
  diag_add(r->diags, DIAG_YAML_FEATURE, (diag_span){event_span(r).offset, 1}, "tags are not part of the format");
  diag_hint(r->diags, "leave the tag out: the format knows the type of every value");
}

/* An anchor becomes known when its node is complete, so no node can contain itself. */
static void define_anchor(reader *r, const char *name, const tree_node *node, bool free_form, diag_span at) {
  if (!name)
    return;
  if (!free_form) {
    diag_add(r->diags, DIAG_YAML_FEATURE, at, "anchor '&%s' outside an x- key", name);
    diag_hint(r->diags, "define shared values under a top-level key that starts with x-, and use them here as *%s",
              name);
  }
  anchor *entry = arena_alloc(r->memory, sizeof *entry);
  *entry = (anchor){name, node, r->anchors};
  r->anchors = entry;
}

static const tree_node *read_alias(reader *r, int depth) {
  const char *name = (const char *)r->event.data.alias.anchor;
  diag_span at = event_span(r);
  for (const anchor *a = r->anchors; a; a = a->next)
    if (strcmp(a->name, name) == 0)
      return count_nodes(r, a->node->weight, depth, a->node->height, at) ? a->node : NULL;
  diag_add(r->diags, DIAG_YAML_FEATURE, at, "no anchor '&%s' stands before this alias", name);
  return NULL;
}

static const tree_node *read_scalar(reader *r, bool free_form) {
  refuse_tag(r, r->event.data.scalar.tag);
  const char *value = (const char *)r->event.data.scalar.value;
  size_t length = r->event.data.scalar.length;
  const char *name = (const char *)r->event.data.scalar.anchor;
  yaml_scalar_style_t style = r->event.data.scalar.style;
  bool quoted = style == YAML_SINGLE_QUOTED_SCALAR_STYLE || style == YAML_DOUBLE_QUOTED_SCALAR_STYLE;
  tree_node *node = arena_alloc(r->memory, sizeof *node);
  node->kind = TREE_SCALAR;
  node->weight = 1;
  node->at = event_span(r);
  if (name || r->event.data.scalar.tag) { /* the event starts at the anchor or tag: keep its end */
    size_t end = node->at.offset + node->at.length, shown = length + (quoted ? 2 : 0);
    if (shown <= node->at.length)
      node->at = (diag_span){end - shown, shown};
  }
  node->inside = node->at.offset + quoted;
  node->absent = style == YAML_PLAIN_SCALAR_STYLE && length == 0;
  node->value = arena_copy(r->memory, value, length);
  node->verbatim = (quoted || style == YAML_PLAIN_SCALAR_STYLE) && node->at.length == length + (quoted ? 2 : 0) &&
                   memcmp(r->bytes + (node->inside - r->base), value, length) == 0;
  if (memchr(value, 0, length)) {
    diag_add(r->diags, DIAG_YAML_SYNTAX, node->at, "a value cannot hold a zero byte");
    node->verbatim = false;
  }
  if (name)
    define_anchor(r, arena_copy(r->memory, name, strlen(name)), node, free_form, event_span(r));
  return node;
}

static bool check_key(reader *r, const tree_node *mapping, const tree_node *key, bool free_form) {
  if (key->kind != TREE_SCALAR) {
    diag_add(r->diags, DIAG_YAML_FEATURE, (diag_span){key->at.offset, 1}, "a key must be a word, not a %s",
             key->kind == TREE_MAPPING ? "mapping" : "list");
    return false;
  }
  if (!free_form && strcmp(key->value, "<<") == 0) {
    diag_add(r->diags, DIAG_YAML_FEATURE, key->at, "merge keys are not part of the format");
    diag_hint(r->diags, "write the keys out, or use an alias for the whole value");
    return false;
  }
  for (const tree_entry *e = mapping->first; e; e = e->next)
    if (strcmp(e->key->value, key->value) == 0) {
      int line, column;
      diags_position(r->diags, e->key->at.offset, &line, &column);
      diag_add(r->diags, DIAG_DUPLICATE_KEY, key->at, "duplicate key '%s', first given at %d:%d", key->value, line,
               column);
      return false;
    }
  return true;
}

static const tree_node *read_node(reader *r, int depth, bool free_form);

/* Whether the key whose value follows opens a free-form part. */
static bool opens_free_form(const tree_node *key, int depth) {
  return depth == 1 && key->kind == TREE_SCALAR && strncmp(key->value, "x-", 2) == 0;
}

/* Reads the children of a mapping or sequence up to its end event. A bad entry is dropped after its diagnostic. */
static bool read_children(reader *r, tree_node *node, int depth, bool free_form, yaml_event_type_t end) {
  tree_entry **tail = &node->first;
  for (;;) {
    if (!next_event(r))
      return false;
    if (r->event.type == end)
      return true;
    tree_entry entry = {0};
    bool keep = true, free_value = free_form;
    if (node->kind == TREE_MAPPING) {
      entry.key = read_node(r, depth + 1, free_form);
      if (!entry.key)
        return false;
      free_value = free_form || opens_free_form(entry.key, depth);
      keep = check_key(r, node, entry.key, free_form);
      if (!next_event(r))
        return false;
    }
    entry.value = read_node(r, depth + 1, free_value);
    if (!entry.value)
      return false;
    node->weight += entry.value->weight + (entry.key != NULL);
    if (node->height <= entry.value->height)
      node->height = entry.value->height + 1;
    if (!keep)
      continue;
    *tail = arena_alloc(r->memory, sizeof **tail);
    **tail = entry;
    tail = &(*tail)->next;
    node->count++;
  }
}

static const tree_node *read_collection(reader *r, int depth, bool free_form) {
  bool mapping = r->event.type == YAML_MAPPING_START_EVENT;
  refuse_tag(r, mapping ? r->event.data.mapping_start.tag : r->event.data.sequence_start.tag);
  const char *name = (const char *)(mapping ? r->event.data.mapping_start.anchor : r->event.data.sequence_start.anchor);
  if (name)
    name = arena_copy(r->memory, name, strlen(name));
  tree_node *node = arena_alloc(r->memory, sizeof *node);
  node->kind = mapping ? TREE_MAPPING : TREE_SEQUENCE;
  node->weight = 1;
  diag_span start = event_span(r);
  yaml_mark_t from = r->event.start_mark;
  if (!read_children(r, node, depth, free_form, mapping ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT))
    return NULL;
  node->at = span(r, from, r->event.end_mark);
  define_anchor(r, name, node, free_form, start);
  return node;
}

/* The node of the current event, complete. NULL after a diagnostic that ends the reading. */
static const tree_node *read_node(reader *r, int depth, bool free_form) {
  if (r->event.type == YAML_ALIAS_EVENT)
    return read_alias(r, depth);
  if (!count_nodes(r, 1, depth, 0, (diag_span){event_span(r).offset, 1}))
    return NULL;
  return r->event.type == YAML_SCALAR_EVENT ? read_scalar(r, free_form) : read_collection(r, depth, free_form);
}

static bool read_document_start(reader *r) {
  if (!next_event(r) || !next_event(r)) /* the stream, then the document */
    return false;
  if (r->event.type != YAML_DOCUMENT_START_EVENT) {
    diag_add(r->diags, DIAG_YAML_SYNTAX, (diag_span){r->base, 0}, "the text holds no spec");
    diag_hint(r->diags, "a spec starts with the line `qkvc: 1`");
    return false;
  }
  if (r->event.data.document_start.version_directive ||
      r->event.data.document_start.tag_directives.start != r->event.data.document_start.tag_directives.end) {
    diag_add(r->diags, DIAG_YAML_FEATURE, (diag_span){event_span(r).offset, 1},
             "directives are not part of the format");
    diag_hint(r->diags, "leave out the line that starts with '%%'");
    return false;
  }
  return next_event(r);
}

static const tree_node *read_stream(reader *r) {
  if (!read_document_start(r))
    return NULL;
  const tree_node *root = read_node(r, 1, false);
  if (!root || !next_event(r) || !next_event(r)) /* the end of the document, then of the stream */
    return NULL;
  if (r->event.type != YAML_STREAM_END_EVENT) {
    diag_add(r->diags, DIAG_YAML_SYNTAX, (diag_span){event_span(r).offset, 3}, "a second document starts here");
    diag_hint(r->diags, "keep one spec in a file");
  }
  return root;
}

static void release(reader *r) {
  release_event(r);
  if (r->parsing)
    yaml_parser_delete(&r->parser);
  r->parsing = false;
}

const tree_node *tree_parse(arena *a, const char *bytes, size_t size, diags *d) {
  if (size > TREE_MAX_BYTES) {
    diag_add(d, DIAG_TOO_LARGE, (diag_span){0, 0}, "the text has %zu bytes, more than the limit of %d", size,
             TREE_MAX_BYTES);
    return NULL;
  }
  reader *r = arena_alloc(a, sizeof *r);
  if (!bytes)
    bytes = "";
  size_t base = size >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
  *r = (reader){.memory = a, .diags = d, .bytes = bytes + base, .size = size - base, .base = base};
  if (!check_bytes(r))
    return NULL;
  jmp_buf outer;
  memcpy(&outer, &a->out_of_memory, sizeof outer);
  if (!ARENA_TRY(a)) { /* libyaml's memory is not the arena's: release it, then go on to the owner */
    release(r);
    memcpy(&a->out_of_memory, &outer, sizeof outer);
    longjmp(a->out_of_memory, 1);
  }
  if (!yaml_parser_initialize(&r->parser))
    out_of_memory(r);
  r->parsing = true;
  yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&r->parser, (const unsigned char *)r->bytes, r->size);
  const tree_node *root = read_stream(r);
  release(r);
  memcpy(&a->out_of_memory, &outer, sizeof outer);
  return root;
}

const tree_node *tree_get(const tree_node *mapping, const char *key) {
  for (const tree_entry *e = mapping->first; e; e = e->next)
    if (strcmp(e->key->value, key) == 0)
      return e->value;
  return NULL;
}
