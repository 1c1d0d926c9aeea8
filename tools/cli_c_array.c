/* cli_c_array.c: a pack as C: FILE.c with the bytes, FILE.h that declares them. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_bundle.h"

enum { LINE = 116 };

/* The path without ".c", malloc'd. */
static char *stem_of(const char *path) {
  const size_t length = strlen(path);
  return strndup(path, length > 2 && !strcmp(path + length - 2, ".c") ? length - 2 : length);
}

/* The file's name as an identifier: what is no letter or digit becomes '_'. malloc'd. */
static char *symbol_of(const char *stem) {
  const char *slash = strrchr(stem, '/'), *name = slash ? slash + 1 : stem;
  char *symbol = malloc(strlen(name) + 2), *to = symbol;
  if (!symbol)
    return NULL;
  if (!*name || isdigit((unsigned char)*name))
    *to++ = '_';
  for (; *name; name++)
    *to++ = isalnum((unsigned char)*name) ? *name : '_';
  *to = 0;
  return symbol;
}

typedef struct c_array {
  const char *symbol;
  const unsigned char *bytes;
  size_t size;
} c_array;

static void print_header(FILE *f, const void *array) {
  const char *symbol = ((const c_array *)array)->symbol;
  fprintf(f,
          "/* A pack of attention kernels, %zu bytes, made by `qkvc bundle --c-array`; not to be edited.\n"
          " *\n"
          " *   qkv_pack_load_memory(engine, %s, %s_size);\n"
          " *\n"
          " * gives an engine of libqkv its specs and kernels: the program needs neither files nor a compiler. */\n"
          "#ifndef %s_PACK_H\n#define %s_PACK_H\n\n#include <stddef.h>\n\n"
          "#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
          "extern const unsigned char %s[];\nextern const size_t %s_size;\n"
          "#ifdef __cplusplus\n}\n#endif\n\n#endif\n",
          ((const c_array *)array)->size, symbol, symbol, symbol, symbol, symbol, symbol);
}

static void print_source(FILE *f, const void *array) {
  const c_array *a = array;
  const char *symbol = a->symbol;
  fprintf(f,
          "/* A pack of attention kernels, %zu bytes, made by `qkvc bundle --c-array`; not to be edited. */\n"
          "#include <stddef.h>\n\n"
          "extern const unsigned char %s[];\nextern const size_t %s_size;\n\n"
          "_Alignas(16) const unsigned char %s[] = {",
          a->size, symbol, symbol, symbol);
  int column = LINE;
  for (size_t n = 0; n < a->size; n++) {
    if (column >= LINE) {
      fputs("\n  ", f);
      column = 2;
    }
    column += fprintf(f, "%d,", a->bytes[n]);
  }
  fprintf(f, "\n};\nconst size_t %s_size = sizeof %s;\n", symbol, symbol);
}

static int write_named(const char *path, cli_writer *write, const c_array *a) {
  const int code = cli_write_file(path, write, a);
  if (!code)
    printf("%s\n", path);
  return code;
}

int bundle_write_array(const char *path, const void *bytes, size_t size) {
  char *stem = stem_of(path), *symbol = stem ? symbol_of(stem) : NULL;
  char *file = stem ? malloc(strlen(stem) + 3) : NULL;
  if (!symbol || !file) {
    cli_error("out of memory");
    free(stem), free(symbol), free(file);
    return EXIT_FAILED;
  }
  const c_array array = {symbol, bytes, size};
  sprintf(file, "%s.h", stem);
  int code = write_named(file, print_header, &array);
  sprintf(file, "%s.c", stem);
  code = code ? code : write_named(file, print_source, &array);
  free(stem);
  free(symbol);
  free(file);
  return code;
}
