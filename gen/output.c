/* output.c: see output.h. */
#include "output.h"

#include <stdlib.h>
#include <string.h>

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

void output_end_line(output *o, gen_line from) {
  text *t = &o->bytes;
  while (t->size > 0 && (t->bytes[t->size - 1] == ' ' || t->bytes[t->size - 1] == '\t'))
    t->bytes[--t->size] = 0;
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
