/* cli_npy.h: reads and writes .npy files, NumPy's format for one array.
 *
 * Strict: little-endian, C order, plain element types, the file exactly as long as its header says. Everything else is
 * refused with a message that names it. Nothing is executed or guessed. */
#ifndef TOOLS_CLI_NPY_H
#define TOOLS_CLI_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NPY_MAX_RANK = 8, NPY_ERROR_SIZE = 256 };

typedef enum npy_type {
  NPY_F16,
  NPY_F32,
  NPY_F64,
  NPY_I32,
  NPY_I64,
  NPY_U8,
  NPY_U16,
  NPY_BOOL,
  NPY_TYPE_COUNT
} npy_type;

typedef struct npy_array {
  npy_type type;
  int rank;
  int64_t shape[NPY_MAX_RANK];
  int64_t count; /* elements */
  void *data;    /* count elements, row-major; freed with npy_free */
} npy_array;

/* "f4", ... as in the file, without the byte order. */
const char *npy_type_name(npy_type type);
int npy_type_size(npy_type type);
/* Parses a whole file in memory. On failure returns false, error holds one line without the file's name. */
bool npy_parse(const void *bytes, size_t size, npy_array *out, char error[NPY_ERROR_SIZE]);
bool npy_read(const char *path, npy_array *out, char error[NPY_ERROR_SIZE]);
/* Writes format 1.0. On failure nothing is left at path. */
bool npy_write(const char *path, const npy_array *array, char error[NPY_ERROR_SIZE]);
void npy_free(npy_array *array);

#endif
