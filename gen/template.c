/* template.c: template text to Lua chunk, and where template bytes come from.
 *
 * The chunk has exactly one line per template line. Its first line starts with `local emit_line = ...`: the engine
 * passes the function that collects output. A text line becomes emit_line(LINE, "text", (expr), "text", ...) with
 * literals and expressions in strict alternation, so the n-th expression of a line is argument 2n + 1. */
#include "template.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_EXPRESSIONS = 100, MAX_OVERRIDE_SIZE = 4 << 20 };

typedef struct scanner {
  const char *path;
  int line;
  gen_error *error;
} scanner;

static bool reject(const scanner *s, const char *what) {
  gen_fail(s->error, GEN_TEMPLATE, "%s:%d: %s", s->path, s->line, what);
  return false;
}

/* Length of the quoted Lua string that starts at p, 0 when it does not end before `end`. */
static size_t quoted_length(const char *p, const char *end) {
  for (const char *q = p + 1; q < end; q++) {
    if (*q == '\\')
      q++;
    else if (*q == *p)
      return (size_t)(q - p) + 1;
  }
  return 0;
}

const char *template_expression_end(const char *p, const char *end) {
  int depth = 0;
  while (p < end) {
    if (*p == '"' || *p == '\'') {
      size_t n = quoted_length(p, end);
      if (n == 0)
        return NULL;
      p += n;
      continue;
    }
    if (*p == '(' || *p == '[' || *p == '{') {
      depth++;
    } else if (*p == ')' || *p == ']' || *p == '}') {
      if (depth == 0)
        return *p == ')' ? p : NULL;
      depth--;
    } else if (*p == '-' && p + 1 < end && p[1] == '-') {
      return NULL; /* a Lua comment would swallow the rest of the line */
    }
    p++;
  }
  return NULL;
}

static bool is_blank(const char *p, const char *end) {
  while (p < end && (*p == ' ' || *p == '\t'))
    p++;
  return p == end;
}

static void add_literal(text *chunk, const char *p, const char *end) {
  text_puts(chunk, "\"");
  for (; p < end; p++) {
    if (*p == '"' || *p == '\\') {
      text_add(chunk, "\\", 1);
      text_add(chunk, p, 1);
    } else if ((unsigned char)*p < 32) {
      text_printf(chunk, "\\%03d", *p);
    } else {
      text_add(chunk, p, 1);
    }
  }
  text_puts(chunk, "\"");
}

/* A line of CUDA text: one emit call. */
static bool translate_text(const scanner *s, const char *p, const char *end, text *chunk) {
  text_printf(chunk, "emit_line(%d", s->line);
  int expressions = 0;
  const char *literal = p;
  for (; p < end; p++) {
    if (*p == '/' && end - p >= 3 && strncmp(p, "//%", 3) == 0)
      return reject(s, "//% must be the first thing on its line");
    if (*p != '$')
      continue;
    if (p + 1 >= end || p[1] != '(')
      return reject(s, "'$' without '(': CUDA has no use for it");
    if (++expressions > MAX_EXPRESSIONS)
      return reject(s, "more than 100 $(...) on one line");
    const char *close = template_expression_end(p + 2, end);
    if (!close)
      return reject(s, "$( without its closing parenthesis on this line");
    if (is_blank(p + 2, close))
      return reject(s, "$() is empty");
    text_puts(chunk, ", ");
    add_literal(chunk, literal, p);
    text_puts(chunk, ", (");
    text_add(chunk, p + 2, (size_t)(close - p - 2));
    text_puts(chunk, ")");
    literal = close + 1;
    p = close;
  }
  if (literal < end) {
    text_puts(chunk, ", ");
    add_literal(chunk, literal, end);
  }
  text_puts(chunk, ");");
  return true;
}

static bool translate_line(const scanner *s, const char *p, const char *end, text *chunk) {
  if (memchr(p, 0, (size_t)(end - p)))
    return reject(s, "a zero byte");
  const char *start = p;
  while (p < end && (*p == ' ' || *p == '\t'))
    p++;
  if (end - p >= 3 && strncmp(p, "//%", 3) == 0) {
    p += 3;
    if (p == end || *p != '%')
      text_add(chunk, p, (size_t)(end - p));
    return true;
  }
  return translate_text(s, start, end, chunk);
}

bool template_translate(const char *path, const char *source, size_t size, text *chunk, gen_error *error) {
  scanner s = {path, 0, error};
  text_puts(chunk, "local emit_line = ...; ");
  for (const char *p = source, *last = source + size; p < last;) {
    const char *newline = memchr(p, '\n', (size_t)(last - p));
    const char *end = newline ? newline : last, *next = newline ? newline + 1 : last;
    if (end > p && end[-1] == '\r')
      end--;
    s.line++;
    if (!translate_line(&s, p, end, chunk))
      return false;
    text_add(chunk, "\n", 1);
    p = next;
  }
  if (chunk->failed) {
    gen_fail(error, GEN_NO_MEMORY, "%s: out of memory", path);
    return false;
  }
  return true;
}

/* Reads a whole file. Returns 1, 0 when it does not exist, -1 after an error. */
static int read_file(const char *full, char **bytes, size_t *size, gen_error *error) {
  FILE *f = fopen(full, "rb");
  if (!f && (errno == ENOENT || errno == ENOTDIR))
    return 0;
  if (!f) {
    gen_fail(error, GEN_IO, "cannot open template %s: %s", full, strerror(errno));
    return -1;
  }
  text content = {0};
  char buffer[4096];
  size_t n;
  while ((n = fread(buffer, 1, sizeof buffer, f)) > 0 && content.size <= MAX_OVERRIDE_SIZE)
    text_add(&content, buffer, n);
  bool read_error = ferror(f) != 0;
  fclose(f);
  if (read_error || content.size > MAX_OVERRIDE_SIZE || content.failed) {
    const char *why = read_error ? "cannot be read" : content.failed ? "out of memory" : "larger than 4 MiB";
    gen_fail(error, content.failed ? GEN_NO_MEMORY : GEN_IO, "template %s: %s", full, why);
    text_free(&content);
    return -1;
  }
  *size = content.size;
  *bytes = content.bytes ? content.bytes : calloc(1, 1);
  if (!*bytes)
    gen_fail(error, GEN_NO_MEMORY, "template %s: out of memory", full);
  return *bytes ? 1 : -1;
}

/* Template paths stay inside the template folder: no absolute path, no "..". */
static bool path_is_inside(const char *path) {
  if (*path == '/' || *path == 0)
    return false;
  for (const char *p = path; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
    if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || p[2] == 0))
      return false;
  return true;
}

static const template_file *find_built_in(const char *path) {
  int low = 0, high = template_file_count;
  while (low < high) {
    int middle = (low + high) / 2, order = strcmp(path, template_files[middle].path);
    if (order == 0)
      return &template_files[middle];
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return NULL;
}

bool template_load(const char *override, const char *path, const char **bytes, size_t *size, char **owned,
                   gen_error *error) {
  *owned = NULL;
  if (!path_is_inside(path)) {
    gen_fail(error, GEN_TEMPLATE, "'%s' is not a path inside the template folder", path);
    return false;
  }
  if (override) {
    text full = {0};
    text_printf(&full, "%s/%s", override, path);
    if (full.failed) {
      text_free(&full);
      gen_fail(error, GEN_NO_MEMORY, "out of memory");
      return false;
    }
    int found = read_file(full.bytes, owned, size, error);
    text_free(&full);
    if (found != 0) {
      *bytes = *owned;
      return found == 1;
    }
  }
  const template_file *file = find_built_in(path);
  if (!file) {
    gen_fail(error, GEN_TEMPLATE, "no template '%s'%s%s", path, override ? ", neither built in nor in " : "",
             override ? override : "");
    return false;
  }
  *bytes = file->bytes;
  *size = file->size;
  return true;
}

void template_digest(char out[33]) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (int n = 0; n < template_file_count; n++) {
    const template_file *f = &template_files[n];
    XXH3_128bits_update(&state, f->path, strlen(f->path) + 1);
    XXH3_128bits_update(&state, &f->size, sizeof f->size);
    XXH3_128bits_update(&state, f->bytes, f->size);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  snprintf(out, 33, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}
