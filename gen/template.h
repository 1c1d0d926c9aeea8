/* template.h: from template text to a Lua chunk, line for line.
 *
 *   //% lua code        becomes the Lua code itself
 *   text $(expr) text   becomes one emit call
 *   //%% comment        disappears
 *
 * One template line is one chunk line and the chunk is named after the template, so every Lua error carries the
 * template's file and line. Emitted lines remember the template line they came from. */
#ifndef GEN_TEMPLATE_H
#define GEN_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "status.h"
#include "text.h"

/* Translates one template. False (with error->message "path:line: ...") for an unterminated $( or a bad marker. */
bool template_translate(const char *path, const char *source, size_t size, text *chunk, gen_error *error);

/* The end of an expression: `p` is just after a "$(", `end` the end of its line. Returns its closing parenthesis, or
 * NULL when there is none or the expression holds a comment. */
const char *template_expression_end(const char *p, const char *end);

/* The templates built into the library, sorted by path ("kernels/attention_forward_sm80.cu"). Generated at build time
 * by tools/embed.c from templates/. */
typedef struct template_file {
  const char *path;
  const char *bytes;
  size_t size;
} template_file;
extern const template_file template_files[];
extern const int template_file_count;

/* 128 bits in hex of all built-in templates: where they are the same, kernels of the same requests are the same. */
void template_digest(char out[33]);

/* Bytes of a template: from `override` (a directory, or NULL) when the file is there, else built in. On success *bytes
 * is valid as long as *owned (free it; NULL for built-in ones). False when it exists nowhere or cannot be read. */
bool template_load(const char *override, const char *path, const char **bytes, size_t *size, char **owned,
                   gen_error *error);

#endif
