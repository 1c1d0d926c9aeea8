/* cli_bundle.h: what the files of qkvc bundle share. */
#ifndef TOOLS_CLI_BUNDLE_H
#define TOOLS_CLI_BUNDLE_H

#include <stddef.h>

/* Writes PATH.c and PATH.h (a ".c" at the end of the path is not doubled): the bytes as an array named like the file.
 * Returns the exit code. */
int bundle_write_array(const char *path, const void *bytes, size_t size);

#endif
