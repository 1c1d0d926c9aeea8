/* output.c: see output.h. */
#include "output.h"

#include <stdlib.h>
#include <string.h>

#include "line_break.h"

void output_free(output *o) {
  text_free(&o->bytes);
  free(o->lines);
  *o = (output){0};
}

static void note_line(output *o, gen_line from) {
  if (o->nlines == o->capacity) {
    int capacity = o->capacity ? 2 * o->capacity : 256;
    gen_line *lines = realloc(o->lines, (size_t)capacity * sizeof *lines);
    if (!lines) {
      o->bytes.failed = true;
      return;
    }
    o->lines = lines;
    o->capacity = capacity;
  }
  o->lines[o->nlines++] = from;
}

/* Breaks the line that starts at `start` and is not ended yet until it is narrow; all its lines come from one place.
 * The later ones are indented alike. */
static void break_line(output *o, size_t start, gen_line from) {
  text *t = &o->bytes;
  char indent[LINE_WIDTH];
  size_t width = line_break_start(t->bytes + start, t->size - start, indent, sizeof indent), cut;
  while (!t->failed && (cut = line_break_at(t->bytes + start, t->size - start)) > 0) {
    text rest = {0};
    const char *behind = t->bytes + start + cut;
    text_puts(&rest, behind + strspn(behind, " "));
    t->size = start + cut;
    text_add(t, "\n", 1);
    note_line(o, from);
    start = t->size;
    text_add(t, indent, width);
    text_add(t, rest.bytes, rest.size);
    t->failed |= rest.failed;
    text_free(&rest);
  }
}

void output_end_line(output *o, gen_line from) {
  text *t = &o->bytes;
  size_t start = t->size;
  while (t->size > 0 && (t->bytes[t->size - 1] == ' ' || t->bytes[t->size - 1] == '\t'))
    t->bytes[--t->size] = 0;
  while (start > 0 && t->bytes[start - 1] != '\n')
    start--;
  if (t->size > start + LINE_WIDTH)
    break_line(o, start, from);
  text_add(t, "\n", 1);
  note_line(o, from);
}

void output_add_line(output *o, gen_line from, const char *line) {
  text_puts(&o->bytes, line);
  output_end_line(o, from);
}

void output_append(output *o, const output *from, int first, int last) {
  const char *p = from->bytes.bytes;
  for (int n = 0; n < last; n++) {
    const char *next = strchr(p, '\n') + 1;
    if (n >= first) {
      text_add(&o->bytes, p, (size_t)(next - p));
      note_line(o, from->lines[n]);
    }
    p = next;
  }
}
