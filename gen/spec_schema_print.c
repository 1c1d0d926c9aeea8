/* spec_schema_print.c: the table of format 1 as a JSON Schema (draft 7, which editors read) and as Markdown. */
#include <string.h>

#include "spec.h"
#include "spec_schema.h"

static void put_row(const schema_row *row, int depth, text *out);

static bool is_boolean(const char *word) {
  return strcmp(word, "true") == 0 || strcmp(word, "false") == 0;
}

static void put_words(const schema_row *row, text *out) {
  text_puts(out, "\"enum\": [");
  for (int i = 0; row->words[i]; i++)
    text_printf(out, is_boolean(row->words[i]) ? "%s%s" : "%s\"%s\"", i ? ", " : "", row->words[i]);
  text_puts(out, "]");
}

static bool is_plain_child(const schema_row *row, const schema_row *parent) {
  return schema_is_child(row, parent) && !(row->flags & SCHEMA_RESERVED) && !strchr(schema_key(row), '*') &&
         strcmp(schema_key(row), "[]") != 0;
}

static void put_required(const schema_row *row, text *out) {
  const char *before = ", \"required\": [";
  for (int i = 0; i < schema_row_count; i++)
    if (is_plain_child(&schema_rows[i], row) && (schema_rows[i].flags & SCHEMA_REQUIRED)) {
      text_printf(out, "%s\"%s\"", before, schema_key(&schema_rows[i]));
      before = ", ";
    }
  if (before[1] == ' ' && before[2] == 0)
    text_puts(out, "]");
}

static void put_mapping(const schema_row *row, int depth, text *out) {
  const char *before = "";
  text_puts(out, "\"type\": \"object\"");
  if (row->high > 0)
    text_printf(out, ", \"maxProperties\": %lld", (long long)row->high);
  put_required(row, out);
  text_puts(out, ", \"properties\": {");
  for (int i = 0; i < schema_row_count; i++) {
    if (!is_plain_child(&schema_rows[i], row))
      continue;
    text_printf(out, "%s\n%*s\"%s\": ", before, depth + 2, "", schema_key(&schema_rows[i]));
    put_row(&schema_rows[i], depth + 2, out);
    before = ",";
  }
  text_puts(out, "}");
  const schema_row *any = schema_child(row, "*");
  if (any) {
    text_printf(out,
                ",\n%*s\"propertyNames\": {\"pattern\": \"^[a-z][a-z0-9_]*$\"}, \"additionalProperties\": ", depth + 2,
                "");
    put_row(any, depth + 2, out);
  } else
    text_printf(out, ", %s\"additionalProperties\": false",
                row->path[0] ? "" : "\"patternProperties\": {\"^x-\": true}, ");
}

static void put_kind(const schema_row *row, unsigned kind, int depth, text *out) {
  switch (kind) {
  case SCHEMA_INTEGER:
    text_printf(out, "\"type\": \"integer\", \"minimum\": %lld, \"maximum\": %lld", (long long)row->low,
                (long long)row->high);
    if (row->step > 1)
      text_printf(out, ", \"multipleOf\": %lld", (long long)row->step);
    break;
  case SCHEMA_WORD:
    put_words(row, out);
    break;
  case SCHEMA_NAME:
    text_printf(out, "\"type\": \"string\", \"pattern\": \"^[a-z][a-z0-9_]{0,%lld}$\"", (long long)row->high - 1);
    break;
  case SCHEMA_CONSTANT:
    text_puts(out, "\"type\": [\"number\", \"string\"]");
    break;
  case SCHEMA_EXPRESSION:
    text_puts(out, "\"type\": [\"string\", \"number\", \"boolean\"]");
    break;
  case SCHEMA_SETTING:
    text_puts(out, "\"type\": [\"integer\", \"string\", \"boolean\"]");
    break;
  case SCHEMA_MAPPING:
    put_mapping(row, depth, out);
    break;
  case SCHEMA_LIST:
    text_printf(out, "\"type\": \"array\", \"maxItems\": %lld, \"items\": ", (long long)row->high);
    put_row(schema_child(row, "[]"), depth + 2, out);
    break;
  default:
    break;
  }
}

/* One schema object: the description, then the one kind or the alternatives. */
static void put_row(const schema_row *row, int depth, text *out) {
  text_puts(out, "{\"description\": ");
  text_json_string(out, row->meaning);
  bool several = row->kinds & (row->kinds - 1);
  if (several)
    text_puts(out, ", \"anyOf\": [");
  const char *before = several ? "{" : ", ";
  for (unsigned kind = SCHEMA_INTEGER; kind < SCHEMA_ANY; kind <<= 1) {
    if (!(row->kinds & kind))
      continue;
    text_puts(out, before);
    put_kind(row, kind, depth, out);
    text_puts(out, several ? "}" : "");
    before = several ? ", {" : ", ";
  }
  text_puts(out, several ? "]}" : "}");
}

void spec_json_schema(text *out) {
  text_puts(
      out,
      "{\"$schema\": \"http://json-schema.org/draft-07/schema#\", \"title\": \"qkvc spec, format 1\", \"allOf\": [");
  put_row(schema_find(""), 0, out);
  text_puts(out, "]}\n");
}

/* ---- Markdown ---- */

/* Text for a table cell: a bar would end the cell. */
static void put_cell(const char *s, text *out) {
  for (; *s; s++) {
    text_puts(out, *s == '|' ? "\\" : "");
    text_add(out, s, 1);
  }
}

void schema_markdown(text *out) {
  text_puts(out, "| key | value | default | meaning |\n|---|---|---|---|\n");
  for (int i = 0; i < schema_row_count; i++) {
    const schema_row *row = &schema_rows[i];
    if (row->path[0] == 0 || (row->flags & SCHEMA_RESERVED))
      continue;
    text_printf(out, "| `%s` | ", row->path);
    schema_describe(row, out);
    if (row->fallback)
      text_printf(out, " | `%s` | ", row->fallback);
    else
      text_puts(out, row->flags & SCHEMA_REQUIRED ? " | required | " : " | - | ");
    put_cell(row->meaning, out);
    text_puts(out, " |\n");
  }
  text_puts(out, "\nReserved, refused by name until they are built:");
  const char *before = " ";
  for (int i = 0; i < schema_row_count; i++)
    if (schema_rows[i].flags & SCHEMA_RESERVED) {
      text_printf(out, "%s`%s` (%s)", before, schema_rows[i].path, schema_rows[i].meaning);
      before = ", ";
    }
  text_puts(out, ".\n");
}
