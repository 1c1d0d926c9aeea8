/* cli_npy.c: the .npy reader and writer.
 * Invariant: a successful parse has rank, shape, count and data that agree; a failed one holds no memory. */
#include "cli_npy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const struct {
  const char *name;
  int size;
} types[NPY_TYPE_COUNT] = {[NPY_F16] = {"f2", 2}, [NPY_F32] = {"f4", 4}, [NPY_F64] = {"f8", 8}, [NPY_I32] = {"i4", 4},
                           [NPY_I64] = {"i8", 8}, [NPY_U8] = {"u1", 1},  [NPY_U16] = {"u2", 2}, [NPY_BOOL] = {"b1", 1}};

const char *npy_type_name(npy_type type) {
  return types[type].name;
}
int npy_type_size(npy_type type) {
  return types[type].size;
}

void npy_free(npy_array *array) {
  free(array->data);
  memset(array, 0, sizeof *array);
}

static bool refuse(char error[NPY_ERROR_SIZE], const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(char error[NPY_ERROR_SIZE], const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error, NPY_ERROR_SIZE, format, arguments);
  va_end(arguments);
  return false;
}

/* ---- Header: a Python dict literal of three known keys ---- */

typedef struct cursor {
  const char *at, *end;
  char *error;
} cursor;

static void skip_blanks(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n'))
    c->at++;
}

static bool accept(cursor *c, char wanted) {
  skip_blanks(c);
  if (c->at == c->end || *c->at != wanted)
    return false;
  c->at++;
  return true;
}

static bool expect(cursor *c, char wanted) {
  return accept(c, wanted) || refuse(c->error, "the header is not that of an array: '%c' missing", wanted);
}

/* 'text' into out, without quotes. */
static bool quoted(cursor *c, char *out, size_t size) {
  skip_blanks(c);
  if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
    return refuse(c->error, "the header is not that of an array: a quoted word is missing");
  char quote = *c->at++;
  size_t length = 0;
  while (c->at < c->end && *c->at != quote) {
    if (length + 1 >= size)
      return refuse(c->error, "the header has an over-long word");
    out[length++] = *c->at++;
  }
  out[length] = 0;
  return expect(c, quote);
}

static bool parse_type(cursor *c, npy_array *out) {
  skip_blanks(c);
  if (c->at < c->end && *c->at == '[')
    return refuse(c->error, "structured element types are not supported; save one plain array");
  char descr[16];
  if (!quoted(c, descr, sizeof descr))
    return false;
  for (int t = 0; t < NPY_TYPE_COUNT; t++) {
    if (strlen(descr) != 3 || strcmp(descr + 1, types[t].name) != 0)
      continue;
    if (descr[0] == '>')
      return refuse(c->error, "big-endian element type '%s' is not supported; convert with array.astype('<%s')", descr,
                    types[t].name);
    if (descr[0] == '<' || (descr[0] == '|' && types[t].size == 1)) {
      out->type = (npy_type)t;
      return true;
    }
  }
  for (char *s = descr; *s; s++)
    *s = (char)(*s < ' ' || *s > '~' ? '?' : *s);
  return refuse(c->error, "element type '%s' is not supported; use <f2 <f4 <f8 <i4 <i8 <u2 |u1 or |b1", descr);
}

static bool parse_order(cursor *c) {
  skip_blanks(c);
  size_t left = (size_t)(c->end - c->at);
  if (left >= 5 && !memcmp(c->at, "False", 5)) {
    c->at += 5;
    return true;
  }
  if (left >= 4 && !memcmp(c->at, "True", 4))
    return refuse(c->error, "Fortran order is not supported; save numpy.ascontiguousarray(array)");
  return refuse(c->error, "the header's fortran_order is neither True nor False");
}

static bool parse_shape(cursor *c, npy_array *out) {
  if (!expect(c, '('))
    return false;
  out->rank = 0;
  while (!accept(c, ')')) {
    if (out->rank == NPY_MAX_RANK)
      return refuse(c->error, "more than %d dimensions", NPY_MAX_RANK);
    int64_t extent = 0;
    const char *start = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
      if (c->at - start >= 18)
        return refuse(c->error, "an extent of the shape is too large");
      extent = 10 * extent + (*c->at - '0');
    }
    if (c->at == start)
      return refuse(c->error, "the header's shape is not a tuple of numbers");
    out->shape[out->rank++] = extent;
    if (!accept(c, ',')) {
      if (out->rank == 1)
        return refuse(c->error, "the header's shape is not a tuple: (n) instead of (n,)");
      if (!expect(c, ')'))
        return false;
      return true;
    }
  }
  return true;
}

static bool parse_header(cursor *c, npy_array *out) {
  static const char *const keys[] = {"descr", "fortran_order", "shape"};
  unsigned seen = 0;
  if (!expect(c, '{'))
    return false;
  while (!accept(c, '}')) {
    char key[24];
    if (!quoted(c, key, sizeof key) || !expect(c, ':'))
      return false;
    unsigned n = 0;
    while (n < 3 && strcmp(key, keys[n]) != 0)
      n++;
    if (n == 3)
      return refuse(c->error, "the header has an unknown key");
    if (seen & 1u << n)
      return refuse(c->error, "the header has the key %s twice", keys[n]);
    seen |= 1u << n;
    if (!(n == 0 ? parse_type(c, out) : n == 1 ? parse_order(c) : parse_shape(c, out)))
      return false;
    if (!accept(c, ',')) {
      if (!expect(c, '}'))
        return false;
      break;
    }
  }
  for (unsigned n = 0; n < 3; n++)
    if (!(seen & 1u << n))
      return refuse(c->error, "the header lacks the key %s", keys[n]);
  skip_blanks(c);
  return c->at == c->end || refuse(c->error, "the header has something after its dict");
}

/* Elements of the shape; false when their bytes do not fit into size_t. */
static bool count_elements(npy_array *a) {
  uint64_t count = 1, limit = (uint64_t)PTRDIFF_MAX / (uint64_t)types[a->type].size;
  bool empty = false;
  for (int d = 0; d < a->rank; d++)
    empty = empty || a->shape[d] == 0;
  for (int d = 0; d < a->rank && !empty; d++) {
    if (count > limit / (uint64_t)a->shape[d])
      return false;
    count *= (uint64_t)a->shape[d];
  }
  a->count = empty ? 0 : (int64_t)count;
  return true;
}

bool npy_parse(const void *bytes, size_t size, npy_array *out, char error[NPY_ERROR_SIZE]) {
  const unsigned char *b = bytes;
  memset(out, 0, sizeof *out);
  if (size < 10 || memcmp(b, "\x93NUMPY", 6) != 0)
    return refuse(error, "not a .npy file");
  size_t prefix = b[6] == 1 ? 10 : 12, header = b[8] | (size_t)b[9] << 8;
  if (b[6] < 1 || b[6] > 3)
    return refuse(error, ".npy format version %d is not supported", b[6]);
  if (prefix == 12 && size >= 12)
    header |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
  if (size < prefix || header > size - prefix)
    return refuse(error, "the file ends within its header");
  cursor c = {(const char *)b + prefix, (const char *)b + prefix + header, error};
  if (!parse_header(&c, out))
    return false;
  if (!count_elements(out))
    return refuse(error, "the shape is too large");
  size_t wanted = (size_t)out->count * (size_t)types[out->type].size, have = size - prefix - header;
  if (wanted != have)
    return refuse(error, "the shape needs %zu bytes of data, the file has %zu", wanted, have);
  out->data = malloc(wanted ? wanted : 1);
  if (!out->data)
    return refuse(error, "out of memory for %zu bytes", wanted);
  memcpy(out->data, b + prefix + header, wanted);
  return true;
}

bool npy_read(const char *path, npy_array *out, char error[NPY_ERROR_SIZE]) {
  memset(out, 0, sizeof *out);
  FILE *stream = fopen(path, "rb");
  if (!stream)
    return refuse(error, "%s", strerror(errno));
  char *bytes = NULL;
  size_t size = 0, capacity = 0, got;
  do {
    if (size == capacity) {
      capacity = capacity ? 2 * capacity : 1u << 16;
      char *larger = realloc(bytes, capacity);
      if (!larger) {
        free(bytes);
        fclose(stream);
        return refuse(error, "out of memory");
      }
      bytes = larger;
    }
    errno = 0;
    got = fread(bytes + size, 1, capacity - size, stream);
    size += got;
  } while (got);
  bool ok = ferror(stream) ? refuse(error, "%s", strerror(errno ? errno : EIO)) : npy_parse(bytes, size, out, error);
  fclose(stream);
  free(bytes);
  return ok;
}

typedef struct npy_file {
  unsigned char prefix[10];
  const char *header;
  int header_bytes; /* with what fills it up */
  const npy_array *array;
} npy_file;

static void print_file(FILE *out, const void *data) {
  const npy_file *f = data;
  fwrite(f->prefix, 1, sizeof f->prefix, out);
  fprintf(out, "%-*s\n", f->header_bytes - 1, f->header);
  fwrite(f->array->data, 1, (size_t)f->array->count * (size_t)types[f->array->type].size, out);
}

bool npy_write(const char *path, const npy_array *array, char error[NPY_ERROR_SIZE]) {
  char header[320] = "", shape[NPY_MAX_RANK * 24 + 1] = "";
  size_t length = 0;
  for (int d = 0; d < array->rank; d++)
    length += (size_t)snprintf(shape + length, sizeof shape - length, "%s%lld%s", d ? " " : "",
                               (long long)array->shape[d], d + 1 < array->rank || array->rank == 1 ? "," : "");
  snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s), }",
           types[array->type].size == 1 ? '|' : '<', types[array->type].name, shape);
  size_t text = strlen(header), total = (10 + text + 1 + 63) / 64 * 64 - 10; /* data starts at a multiple of 64 */
  const npy_file file = {
      {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(total & 255), (unsigned char)(total >> 8)},
      header,
      (int)total,
      array};
  const int why = cli_try_write_file(path, print_file, &file);
  return why ? refuse(error, "%s", strerror(why)) : true;
}
