/* output.h: growing text whose lines remember where they came from. */
#ifndef GEN_OUTPUT_H
#define GEN_OUTPUT_H

#include "gen.h"
#include "text.h"

/* Every line ends with a newline. After a failed allocation bytes.failed is set and later writes are dropped. */
typedef struct output {
  text bytes;
  gen_line *lines;
  int nlines, capacity;
} output;

void output_free(output *o);
/* One line, given without its newline. */
void output_add_line(output *o, gen_line from, const char *line);
/* Ends the line that was written to o->bytes directly: trims trailing blanks, adds the newline, notes the
 * origin. One wider than LINE_WIDTH is broken (line_break.h) where it can be. */
void output_end_line(output *o, gen_line from);
/* Lines [first, last) of another output. */
void output_append(output *o, const output *from, int first, int last);

#endif
