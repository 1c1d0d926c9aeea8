/* cases.c: the one-line record of a test case, parsed and printed by one table.
 *
 * In: a line such as  dim=72 hq=6 hk=2 b=2 lq=65 lk=130 mask='causal and q - k < 20' align=top_left seed=3
 * Out: a test_case. Printing a case and parsing the line gives the same case. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

static const char *const dtype_names[] = {"f16", "bf16", "f32", "e4m3", "e5m2", NULL};
static const char *const dtype_or_same[] = {"same", "f16", "bf16", "f32", "e4m3", "e5m2", NULL};
static const char *const sink_names[] = {"none", "normal", "minus_inf", "plus4", "minus4", "mixed", NULL};
static const char *const scale_names[] = {"none", "per_head", "per_tensor", NULL};
static const char *const align_names[] = {"bottom_right", "top_left", NULL};
static const char *const outputs_names[] = {"o_lse", "o", "all", NULL};
static const char *const sequence_names[] = {"dense",  "padded",        "paged",
                                             "ragged", "ragged_padded", "ragged_paged", NULL};
static const char *const order_names[] = {"nhd", "hnd", NULL};
static const char *const table_names[] = {"rows", "csr", NULL};
static const char *const lengths_names[] = {"mixed", "full", NULL};
static const char *const guard_names[] = {"nan", "none", "inf", "big", "zero", NULL};
static const char *const values_names[] = {"normal",    "spikes",     "ones",   "one_hot", "head", "huge",
                                           "minus_6e4", "minus_huge", "rising", "strong",  NULL};
static const char *const expect_names[] = {"ok", "bad_spec", "refusal", "ok_or_refusal", NULL};
static const char *const fault_names[] = {"none",  "last_key", "value_rows", "heads",     "mask",  "align",
                                          "score", "softcap",  "sink",       "scales",    "unwritten", "guard", NULL};

typedef enum field_kind { FIELD_INT, FIELD_WORD, FIELD_TEXT } field_kind;

typedef struct field {
  const char *name;
  field_kind kind;
  size_t offset;
  const char *const *words; /* FIELD_WORD */
  int64_t fallback;         /* of FIELD_INT and FIELD_WORD; texts are empty */
  bool always;              /* printed even when it has its default */
} field;

#define INT(name, fallback, always)                                                                                    \
  { #name, FIELD_INT, offsetof(test_case, name), NULL, fallback, always }
#define WORD(label, member, words, fallback)                                                                           \
  { label, FIELD_WORD, offsetof(test_case, member), words, fallback, false }
#define TEXT(name)                                                                                                     \
  { #name, FIELD_TEXT, offsetof(test_case, name), NULL, 0, false }

static const field fields[] = {
    INT(dim, 64, true),
    INT(dimv, 0, false),
    INT(hq, 1, true),
    INT(hk, 1, true),
    WORD("dtype", dtype, dtype_names, QKV_BF16),
    WORD("kv", kv, dtype_or_same, 0),
    WORD("out", out, dtype_or_same, 0),
    TEXT(scale),
    TEXT(softcap),
    TEXT(score),
    TEXT(mask),
    WORD("sink", sink, sink_names, SINK_ABSENT),
    WORD("kv_scale", kv_scale, scale_names, SCALES_ABSENT),
    WORD("align", top_left, align_names, 0),
    WORD("outputs", outputs, outputs_names, OUTPUTS_O_LSE),
    INT(b, 1, true),
    INT(lq, 1, true),
    INT(lk, 1, true),
    WORD("seq", seq, sequence_names, SEQUENCES_DENSE),
    INT(page, 16, false),
    WORD("order", order, order_names, 0),
    WORD("table", table, table_names, 0),
    WORD("lens", lens, lengths_names, LENGTHS_MIXED),
    INT(shuffle, 0, false),
    WORD("q", layout_q, layout_names, 0),
    WORD("k", layout_k, layout_names, 0),
    WORD("v", layout_v, layout_names, 0),
    WORD("o", layout_o, layout_names, 0),
    WORD("guard", guard, guard_names, GUARD_NAN),
    WORD("values", values, values_names, VALUES_NORMAL),
    TEXT(sched),
    TEXT(family),
    WORD("check", check, check_names, 0),
    WORD("expect", expect, expect_names, EXPECT_OK),
    WORD("fault", fault, fault_names, FAULT_NONE),
    INT(seed, 0, false),
};
enum { FIELD_COUNT = sizeof(fields) / sizeof(fields[0]) };

static void *member(const test_case *c, const field *f) {
  return (char *)(uintptr_t)c + f->offset;
}

static bool field_set(test_case *c, const field *f, const char *value, char *message) {
  if (f->kind == FIELD_TEXT) {
    if (strlen(value) >= TEXT_FIELD) {
      snprintf(message, MESSAGE_SIZE, "%s: longer than %d characters", f->name, TEXT_FIELD - 1);
      return false;
    }
    strcpy(member(c, f), value);
    return true;
  }
  if (f->kind == FIELD_INT) {
    char *end;
    int64_t number = strtoll(value, &end, 10);
    if (*value == '\0' || *end != '\0') {
      snprintf(message, MESSAGE_SIZE, "%s: '%.40s' is not an integer", f->name, value);
      return false;
    }
    memcpy(member(c, f), &number, sizeof number);
    return true;
  }
  for (int n = 0; f->words[n] != NULL; n++) {
    if (strcmp(f->words[n], value) == 0) {
      memcpy(member(c, f), &n, sizeof n);
      return true;
    }
  }
  snprintf(message, MESSAGE_SIZE, "%s: '%.40s' is none of its values (--fields lists them)", f->name, value);
  return false;
}

static void set_defaults(test_case *c) {
  memset(c, 0, sizeof *c);
  for (int n = 0; n < FIELD_COUNT; n++) {
    if (fields[n].kind == FIELD_INT)
      memcpy(member(c, &fields[n]), &fields[n].fallback, sizeof(int64_t));
    if (fields[n].kind == FIELD_WORD)
      memcpy(member(c, &fields[n]), &(int){(int)fields[n].fallback}, sizeof(int));
  }
}

/* Reads `name=value` or `name='value'` at *at; false at a malformed one. */
static bool next_pair(const char **at, char name[32], char value[TEXT_FIELD]) {
  const char *p = *at;
  size_t length = strcspn(p, "= \t\n");
  if (length == 0 || length >= 32 || p[length] != '=')
    return false;
  memcpy(name, p, length);
  name[length] = '\0';
  p += length + 1;
  bool quoted = *p == '\'';
  if (quoted)
    p++;
  length = strcspn(p, quoted ? "'" : " \t\n");
  if (length >= TEXT_FIELD || (quoted && p[length] != '\''))
    return false;
  memcpy(value, p, length);
  value[length] = '\0';
  *at = p + length + (quoted ? 1 : 0);
  return true;
}

bool case_parse(const char *line, test_case *out, char *message) {
  set_defaults(out);
  for (const char *at = line + strspn(line, " \t\n"); *at != '\0'; at += strspn(at, " \t\n")) {
    char name[32], value[TEXT_FIELD];
    if (!next_pair(&at, name, value)) {
      snprintf(message, MESSAGE_SIZE, "expected name=value or name='value' at '%.40s'", at);
      return false;
    }
    int n = 0;
    while (n < FIELD_COUNT && strcmp(fields[n].name, name) != 0)
      n++;
    if (n == FIELD_COUNT) {
      snprintf(message, MESSAGE_SIZE, "unknown field '%s' (--fields lists them)", name);
      return false;
    }
    if (!field_set(out, &fields[n], value, message))
      return false;
  }
  if (out->dim < 1 || out->dimv < 0 || out->hq < 1 || out->hk < 1 || out->b < 0 || out->lq < 0 || out->lk < 0) {
    snprintf(message, MESSAGE_SIZE, "dim, hq and hk must be at least 1, dimv, b, lq and lk at least 0");
    return false;
  }
  return true;
}

void case_print(const test_case *c, char line[CASE_LINE]) {
  size_t used = 0;
  line[0] = '\0';
  for (int n = 0; n < FIELD_COUNT; n++) {
    const field *f = &fields[n];
    const char *gap = used > 0 ? " " : "";
    char *to = line + used;
    size_t room = CASE_LINE - used;
    if (f->kind == FIELD_TEXT) {
      if (*(char *)member(c, f) != '\0')
        snprintf(to, room, "%s%s='%s'", gap, f->name, (char *)member(c, f));
    } else if (f->kind == FIELD_INT) {
      int64_t value;
      memcpy(&value, member(c, f), sizeof value);
      if (f->always || value != f->fallback)
        snprintf(to, room, "%s%s=%" PRId64, gap, f->name, value);
    } else {
      int value;
      memcpy(&value, member(c, f), sizeof value);
      if (value != f->fallback)
        snprintf(to, room, "%s%s=%s", gap, f->name, f->words[value]);
    }
    used += strlen(to);
  }
}

void case_fields_print(FILE *to) {
  for (int n = 0; n < FIELD_COUNT; n++) {
    const field *f = &fields[n];
    fprintf(to, "  %-8s ", f->name);
    if (f->kind == FIELD_INT)
      fprintf(to, "integer, default %" PRId64, f->fallback);
    if (f->kind == FIELD_TEXT)
      fprintf(to, "text, default empty");
    if (f->kind == FIELD_WORD)
      for (int w = 0; f->words[w] != NULL; w++)
        fprintf(to, "%s%s", w > 0 ? " | " : "", f->words[w]);
    fprintf(to, "\n");
  }
}

int64_t case_dim_v(const test_case *c) {
  return c->dimv > 0 ? c->dimv : c->dim;
}
qkv_dtype case_dtype_kv(const test_case *c) {
  return (qkv_dtype)(c->kv > 0 ? c->kv - 1 : c->dtype);
}
qkv_dtype case_dtype_out(const test_case *c) {
  return (qkv_dtype)(c->out > 0 ? c->out - 1 : c->dtype);
}

/* ---- Lists and patterns ---- */

void case_list_add(case_list *list, const test_case *c) {
  if (list->count == list->capacity) {
    list->capacity = list->capacity > 0 ? 2 * list->capacity : 64;
    list->items = realloc(list->items, (size_t)list->capacity * sizeof *list->items);
    if (list->items == NULL)
      abort();
  }
  list->items[list->count++] = *c;
}

/* The end of the alternative that starts at p: a comma or closing brace outside quotes. */
static const char *alternative_end(const char *p) {
  bool quoted = false;
  while (*p != '\0' && (quoted || (*p != ',' && *p != '}')))
    quoted ^= *p++ == '\'';
  return p;
}

/* The first opening brace outside quotes, or NULL. */
static const char *first_group(const char *p) {
  bool quoted = false;
  for (; *p != '\0'; p++) {
    if (*p == '\'')
      quoted = !quoted;
    if (*p == '{' && !quoted)
      return p;
  }
  return NULL;
}

void case_list_expand(case_list *list, const char *title, const char *pattern) {
  const char *open = first_group(pattern);
  if (open == NULL) {
    test_case c;
    char message[MESSAGE_SIZE];
    if (!case_parse(pattern, &c, message)) {
      fprintf(stderr, "conformance: pattern '%s': %s\n", pattern, message);
      exit(2);
    }
    c.title = title;
    case_list_add(list, &c);
    return;
  }
  const char *close = open + 1;
  while (*(close = alternative_end(close)) == ',')
    close++;
  for (const char *from = open + 1; from <= close; from = alternative_end(from) + 1) {
    char line[CASE_LINE];
    int written = snprintf(line, sizeof line, "%.*s%.*s%s", (int)(open - pattern), pattern,
                           (int)(alternative_end(from) - from), from, close + 1);
    if (*close != '}' || written >= (int)sizeof line) {
      fprintf(stderr, "conformance: bad pattern '%s'\n", pattern);
      exit(2);
    }
    case_list_expand(list, title, line);
  }
}
