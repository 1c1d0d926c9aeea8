/* line_break.h: where a line of generated code that is too wide is broken. */
#ifndef GEN_LINE_BREAK_H
#define GEN_LINE_BREAK_H

#include <stddef.h>

enum { LINE_WIDTH = 120 };

/* How many bytes of the line (without its newline) stay on it; 0: it is narrow enough, or there is no place to break
 * it. Breaks stand behind `&&`, `||`, `,` and arithmetic operators, in comments at blanks; never inside of literals, in
 * front of a comment, or in preprocessor lines. What is left begins with a blank that is to be dropped. */
size_t line_break_at(const char *line, size_t size);
/* What the next line begins with, up to `room` bytes; returns its length: the line's own indentation and four blanks,
 * or the comment's mark. */
size_t line_break_start(const char *line, size_t size, char *start, size_t room);

#endif
