/* spec_check.c: types, ranges, words and keys of a spec's tree, by the table alone. */
#include "spec_check.h"

#include <stdlib.h>
#include <string.h>

enum { QUOTE_LENGTH = 40 };

typedef struct checker {
  arena *memory;
  diags *diags;
} checker;

/* ---- Scalars ---- */

const char *spec_quote(arena *a, const char *value) {
  size_t length = strlen(value);
  if (length <= QUOTE_LENGTH)
    return arena_printf(a, "'%s'", value);
  size_t cut = QUOTE_LENGTH;
  while (cut > 0 && ((unsigned char)value[cut] & 0xC0) == 0x80)
    cut--;
  return arena_printf(a, "'%.*s...'", (int)cut, value);
}

static const char *lower_case(checker *c, const char *word) {
  char *lower = arena_copy(c->memory, word, strlen(word));
  for (char *s = lower; *s; s++)
    if (*s >= 'A' && *s <= 'Z')
      *s = (char)(*s + 'a' - 'A');
  return lower;
}

bool spec_is_name(const char *value, int64_t longest) {
  size_t length = strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789_");
  return value[0] >= 'a' && value[0] <= 'z' && value[length] == 0 && (int64_t)length <= longest;
}

bool spec_is_yaml_word(const char *value) {
  static const char *const words[] = {"yes", "no", "on", "off", "y", "n", "null", "none", "~"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    size_t length = strlen(words[i]), at = 0;
    while (at < length && value[at] && (value[at] | 0x20) == (words[i][at] | 0x20))
      at++;
    if (at == length && value[at] == 0)
      return true;
  }
  return false;
}

static bool is_digits(const char *s) {
  return *s && s[strspn(s, "0123456789")] == 0;
}

/* Decimal digits with an optional minus, no leading zeros. *fits says whether the value fits 64 bits. */
static bool decimal(const char *value, int64_t *out, bool *fits) {
  const char *digits = value + (value[0] == '-');
  *fits = true;
  if (!is_digits(digits) || (digits[0] == '0' && (digits[1] || value[0] == '-')))
    return false;
  uint64_t magnitude = 0, limit = (uint64_t)INT64_MAX + (value[0] == '-');
  for (; *digits; digits++) {
    uint64_t digit = (uint64_t)(*digits - '0');
    if (magnitude > (limit - digit) / 10) {
      *fits = false;
      return true;
    }
    magnitude = 10 * magnitude + digit;
  }
  *out = value[0] == '-' ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
  return true;
}

bool spec_integer(const schema_row *row, const char *value, int64_t *out) {
  bool fits;
  return decimal(value, out, &fits) && fits && *out >= row->low && *out <= row->high && *out % row->step == 0;
}

int spec_word(const schema_row *row, const char *value) {
  for (int i = 0; row->words[i]; i++)
    if (strcmp(row->words[i], value) == 0)
      return i;
  return -1;
}

/* What the row allows, in words. The copy's room comes first: an arena that jumps must not leave a text behind. */
static const char *describe(checker *c, const schema_row *row) {
  enum { LONGEST = 255 };
  char *copy = arena_alloc(c->memory, LONGEST + 1);
  text t = {0};
  schema_describe(row, &t);
  if (t.bytes)
    memcpy(copy, t.bytes, t.size < LONGEST ? t.size : LONGEST);
  text_free(&t);
  return copy;
}

/* Why a scalar is no decimal integer, where that can be told. */
static void hint_integer(checker *c, const char *value) {
  const char *digits = value + (value[0] == '-' || value[0] == '+');
  size_t zeros = strspn(digits, "0");
  if (is_digits(digits) && value[0] != '+' && zeros > 0 && digits[zeros])
    diag_hint(c->diags, "leading zeros are refused, as they mean octal elsewhere; write %s%s",
              value[0] == '-' ? "-" : "", digits + zeros);
  else if (digits[0] == '0' && strchr("xXoObB", digits[1]) && digits[1])
    diag_hint(c->diags, "write the number in decimal");
  else if (is_digits(digits))
    diag_hint(c->diags, "write it without a sign");
  else if (digits[0] && digits[strspn(digits, "0123456789_,' ")] == 0)
    diag_hint(c->diags, "write the digits without anything between them");
  else if (digits[0] && digits[strspn(digits, "0123456789:")] == 0)
    diag_hint(c->diags, "YAML 1.1 would read this as base 60; write the number in decimal, or a space behind a ':'");
  else if (digits[0] && digits[strspn(digits, "0123456789.eE+-")] == 0)
    diag_hint(c->diags, "write an integer, without a point or exponent");
  else
    diag_hint(c->diags, "write a decimal integer");
}

static void check_integer(checker *c, const schema_row *row, const char *path, const tree_node *node) {
  int64_t value;
  bool fits;
  if (!decimal(node->value, &value, &fits)) {
    diag_add(c->diags, DIAG_WRONG_TYPE, node->at, "%s must be %s, not %s", path, describe(c, row),
             spec_quote(c->memory, node->value));
    hint_integer(c, node->value);
  } else if (!fits || value < row->low || value > row->high) {
    diag_add(c->diags, DIAG_OUT_OF_RANGE, node->at, "%s must be %s, not %s", path, describe(c, row),
             spec_quote(c->memory, node->value));
    if (strcmp(row->path, "qkvc") == 0)
      diag_hint(c->diags, "this version of qkvc reads format 1");
  } else if (value % row->step != 0) {
    int64_t below = value - value % row->step;
    diag_add(c->diags, DIAG_OUT_OF_RANGE, node->at, "%s must be a multiple of %lld, not %lld", path,
             (long long)row->step, (long long)value);
    diag_hint(c->diags, "the nearest are %lld and %lld", (long long)below, (long long)(below + row->step));
  }
}

/* Words that a user may have had in mind where the near names do not help. */
static const struct {
  const char *path, *value, *hint;
} word_advice[] = {
    {"layout.q", "paged", "queries are never paged; use dense or ragged"},
    {"layout.kv", "paged", "give the page size: `kv: {paged: {page: 16, order: nhd}}`"},
    {"layout.q", "padded", "queries that are padded to one length are dense"},
    {"layout.kv.paged.order", "bnhd", "did you mean 'nhd'?"},
    {"layout.kv.paged.table", "dense", "did you mean 'rows'?"},
    {"layout.kv.paged.table", "block_table", "did you mean 'rows'?"},
    {"layout.kv.paged.table", "indptr", "did you mean 'csr'?"},
    {"layout.kv.paged.table", "ragged", "did you mean 'csr'?"},
    {"layout.q", "varlen", "did you mean 'ragged'?"},
    {"layout.kv", "varlen", "did you mean 'ragged'?"},
    {"attention.dtype", "fp16", "did you mean 'f16'?"},
    {"attention.dtype", "float16", "did you mean 'f16'?"},
    {"attention.dtype", "half", "did you mean 'f16'?"},
    {"attention.dtype", "bfloat16", "did you mean 'bf16'?"},
    {"attention.dtype", "fp32", "did you mean 'f32'?"},
    {"attention.dtype", "float32", "did you mean 'f32'?"},
    {"attention.dtype", "fp8", "name the format: e4m3 or e5m2"},
    {"attention.kv_scale", "per_tensor", "a tensor's one scale is `kv_scale: per_head` with arrays of stride 0"},
    {"attention.kv_scale", "true", "name the kind: `kv_scale: per_head`"},
    {"attention.sink", "true", "name the kind: `sink: per_head`"},
    {"attention.sink", "false", "leave the key out, or write `sink: none`"},
    {"outputs.[]", "out", "did you mean 'o'?"},
    {"outputs.[]", "output", "did you mean 'o'?"},
    {"attention.params.*.type", "int", "did you mean 'i32'?"},
    {"attention.params.*.type", "float", "did you mean 'f32'?"},
    {"deterministic", "batch_invariant", "did you mean 'batch'?"},
};

static void hint_word(checker *c, const schema_row *row, const char *value) {
  const char *lower = lower_case(c, value);
  int count = 0;
  while (row->words[count])
    count++;
  for (size_t i = 0; i < sizeof word_advice / sizeof word_advice[0]; i++) {
    size_t length = strlen(word_advice[i].path);
    bool here =
        strncmp(row->path, word_advice[i].path, length) == 0 && (row->path[length] == 0 || row->path[length] == '.');
    if (here && strcmp(word_advice[i].value, lower) == 0) {
      diag_hint(c->diags, "%s", word_advice[i].hint);
      return;
    }
  }
  const char *near = diag_nearest(lower, row->words, count);
  if (near)
    diag_hint(c->diags, "did you mean '%s'?", near);
  else if (spec_word(row, "true") >= 0 && spec_is_yaml_word(value))
    diag_hint(c->diags, "only true and false are booleans");
}

static void check_name(checker *c, const schema_row *row, const char *path, const tree_node *node) {
  if (!spec_is_name(node->value, row->high))
    diag_add(c->diags, DIAG_WRONG_TYPE, node->at, "%s must be %s, not %s", path, describe(c, row),
             spec_quote(c->memory, node->value));
}

static void check_setting(checker *c, const char *path, const tree_node *node) {
  int64_t value;
  bool fits;
  if (spec_is_name(node->value, 64) ||
      (decimal(node->value, &value, &fits) && fits && value >= 0 && value <= INT32_MAX))
    return;
  diag_add(c->diags, DIAG_WRONG_TYPE, node->at,
           "%s must be an integer from 0 to 2147483647 or a word of a-z 0-9 _, not %s", path,
           spec_quote(c->memory, node->value));
  if (!is_digits(node->value) || node->value[0] == '0')
    hint_integer(c, node->value);
}

static void check_scalar(checker *c, const schema_row *row, const char *path, const tree_node *node) {
  if (row->kinds & (SCHEMA_CONSTANT | SCHEMA_EXPRESSION))
    return;
  if ((row->kinds & SCHEMA_WORD) && spec_word(row, node->value) >= 0)
    return;
  if (row->kinds & SCHEMA_INTEGER)
    check_integer(c, row, path, node);
  else if (row->kinds & SCHEMA_NAME)
    check_name(c, row, path, node);
  else if (row->kinds & SCHEMA_SETTING)
    check_setting(c, path, node);
  else if (row->kinds & SCHEMA_WORD) {
    diag_add(c->diags, DIAG_NOT_ONE_OF, node->at, "%s must be %s, not %s", path, describe(c, row),
             spec_quote(c->memory, node->value));
    hint_word(c, row, node->value);
  } else {
    diag_add(c->diags, DIAG_WRONG_TYPE, node->at, "%s must be %s, not %s", path, describe(c, row),
             spec_quote(c->memory, node->value));
    if (row->kinds == SCHEMA_LIST)
      diag_hint(c->diags, "a list is written [a, b]");
  }
}

/* ---- Keys ---- */

/* Where a key of this name, or nearly so, stands in the format if not here: "layout.kv.paged.page", or NULL. */
static const char *other_place(const char *key) {
  enum { MOST = 128 };
  const char *keys[MOST], *paths[MOST];
  int count = 0;
  for (int i = 0; i < schema_row_count && count < MOST; i++)
    if (!(schema_rows[i].flags & SCHEMA_RESERVED) && !strpbrk(schema_key(&schema_rows[i]), "*[")) {
      keys[count] = schema_key(&schema_rows[i]);
      paths[count++] = schema_rows[i].path;
    }
  for (int i = 0; i < count; i++) /* "q" is too short for diag_nearest */
    if (strcmp(keys[i], key) == 0)
      return paths[i];
  const char *near = diag_nearest(key, keys, count);
  for (int i = 0; near && i < count; i++)
    if (keys[i] == near)
      return paths[i];
  return NULL;
}

/* {head_dim:128} is one key without a value. */
static void hint_glued_key(checker *c, const schema_row *row, const char *key, const char *colon) {
  const char *keys[SCHEMA_MAX_KEYS];
  int count = schema_keys(row, keys);
  const char *word = arena_copy(c->memory, key, (size_t)(colon - key));
  const char *near = schema_child(row, word) ? word : diag_nearest(word, keys, count);
  const char *advice = near ? NULL : schema_advice(word);
  diag_hint(c->diags, "put a space behind the ':', as in `%s: %s`%s%s", near ? near : word, colon + 1,
            advice ? "; " : "", advice ? advice : "");
}

static void hint_key(checker *c, const schema_row *row, const char *key) {
  const char *keys[SCHEMA_MAX_KEYS];
  int count = schema_keys(row, keys);
  const char *lower = lower_case(c, key);
  const char *near = diag_nearest(lower, keys, count), *advice = schema_advice(lower), *place = other_place(lower);
  if (near)
    diag_hint(c->diags, "did you mean '%s'?", near);
  else if (advice)
    diag_hint(c->diags, "%s", advice);
  else if (place && strcmp(place, key) == 0)
    diag_hint(c->diags, "'%s' is a key of the top level: indent it less", key);
  else if (place)
    diag_hint(c->diags, "did you mean %s?", place);
  else if (schema_is_free_form(key))
    diag_hint(c->diags, "x- keys stand at the top level only");
  else {
    const char *list = "";
    for (int i = 0; i < count; i++)
      list = arena_printf(c->memory, "%s%s%s", list, i ? ", " : "", keys[i]);
    diag_hint(c->diags, "the %s: %s%s", count == 1 ? "only key here is" : "keys here are", list,
              row->path[0] ? "" : "; what is your own goes under a key that starts with x-");
  }
}

/* All missing keys of a mapping share one place, hence one diagnostic. */
static void check_missing(checker *c, const schema_row *row, const char *path, const tree_node *node, diag_span owner) {
  const char *missing = "", *example = NULL;
  int count = 0;
  for (int i = 0; i < schema_row_count; i++) {
    const schema_row *child = &schema_rows[i];
    if (!schema_is_child(child, row) || !(child->flags & SCHEMA_REQUIRED) || tree_get(node, schema_key(child)))
      continue;
    missing = arena_printf(c->memory, "%s%s'%s'", missing, count ? ", " : "", schema_key(child));
    example = count++ ? example : child->example;
  }
  if (count == 0)
    return;
  diag_add(c->diags, DIAG_MISSING_KEY, owner, "%s lacks the key%s %s", *path ? path : "the spec", count > 1 ? "s" : "",
           missing);
  diag_hint(c->diags, "for example `%s`", example);
}

static void check_node(checker *c, const schema_row *row, const char *path, const tree_node *node, diag_span owner);

static void check_mapping(checker *c, const schema_row *row, const char *path, const tree_node *node, diag_span owner) {
  for (const tree_entry *e = node->first; e; e = e->next) {
    const char *key = e->key->value;
    if (row->path[0] == 0 && schema_is_free_form(key))
      continue;
    const schema_row *child = schema_child(row, key);
    if (!child) {
      diag_add(c->diags, DIAG_UNKNOWN_KEY, e->key->at, "unknown key %s%s%s", spec_quote(c->memory, key),
               *path ? " in " : "", path);
      const char *colon = strchr(key, ':');
      if (colon && e->value->kind == TREE_SCALAR && e->value->absent)
        hint_glued_key(c, row, key, colon);
      else
        hint_key(c, row, key);
    } else if (child->flags & SCHEMA_RESERVED) {
      diag_add(c->diags, DIAG_RESERVED, e->key->at, "'%s' is reserved for %s, which this version does not build", key,
               child->meaning);
      diag_hint(c->diags, "leave the section out");
    } else
      check_node(c, child, *path ? arena_printf(c->memory, "%s.%s", path, key) : key, e->value, e->key->at);
  }
  check_missing(c, row, path, node, owner);
}

static void check_list(checker *c, const schema_row *row, const char *path, const tree_node *node, diag_span owner) {
  const schema_row *item = schema_child(row, "[]");
  if (node->count > row->high) {
    diag_add(c->diags, DIAG_OUT_OF_RANGE, owner, "%s has %d items; the limit is %lld", path, node->count,
             (long long)row->high);
    return;
  }
  int index = 0;
  for (const tree_entry *e = node->first; e; e = e->next, index++)
    check_node(c, item, arena_printf(c->memory, "%s[%d]", path, index), e->value, (diag_span){e->value->at.offset, 1});
}

static void wrong_kind(checker *c, const schema_row *row, const char *path, const tree_node *node) {
  bool list = node->kind == TREE_SEQUENCE;
  diag_add(c->diags, DIAG_WRONG_TYPE, (diag_span){node->at.offset, 1}, "%s must be %s, not a %s",
           *path ? path : "the spec", describe(c, row), list ? "list" : "mapping");
  if (row->kinds == SCHEMA_LIST)
    diag_hint(c->diags, "a list is written [a, b], or as lines that start with '- '");
  else if (strcmp(row->path, "schedule.*") == 0)
    diag_hint(c->diags, "the phases are prefill and decode");
  else if (list && (row->kinds & SCHEMA_EXPRESSION))
    diag_hint(c->diags, "quote an expression that starts with '['");
  else if (!list && (row->kinds & SCHEMA_EXPRESSION))
    diag_hint(c->diags, "quote an expression that holds ': ' or starts with '{'");
}

/* `owner` is where a complaint about the whole value points: its key. */
static void check_node(checker *c, const schema_row *row, const char *path, const tree_node *node, diag_span owner) {
  if (node->kind == TREE_SCALAR && node->absent) {
    diag_add(c->diags, DIAG_WRONG_TYPE, owner, "%s has no value; it must be %s", *path ? path : "the spec",
             describe(c, row));
    return;
  }
  if (node->kind == TREE_MAPPING && (row->kinds & SCHEMA_MAPPING))
    check_mapping(c, row, path, node, owner);
  else if (node->kind == TREE_SEQUENCE && (row->kinds & SCHEMA_LIST))
    check_list(c, row, path, node, owner);
  else if (node->kind == TREE_SCALAR)
    check_scalar(c, row, *path ? path : "the spec", node);
  else
    wrong_kind(c, row, path, node);
}

void spec_check(arena *a, const tree_node *root, diags *d) {
  checker c = {a, d};
  check_node(&c, schema_find(""), "", root, (diag_span){root->at.offset, 1});
}
