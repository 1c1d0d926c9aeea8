/* file.h: files, read and written as a whole. Errors are errno values, 0 for none. */
#ifndef RUNTIME_FILE_H
#define RUNTIME_FILE_H

#include <stddef.h>
#include <sys/types.h>

#define FILE_TEMPORARY ".tmp-" /* temporary files are .tmp-PID-RANDOM */

/* Reads `size` bytes from where the file stands; EIO: there are fewer. */
int file_read_bytes(int fd, void *to, size_t size);
/* The whole of a plain file of at most `most` bytes, zero-terminated and malloc'd. EFBIG: it is larger; EINVAL: it is
 * no plain file. */
int file_read(const char *path, size_t most, char **bytes, size_t *size);
/* Makes the folder with its parents. mode: of new ones, less the process' umask. */
int file_make_folders(const char *path, mode_t mode);
/* The same for the folder that a file of this path stands in. */
int file_make_parents(const char *path);
/* Replaces a file by these bytes: written to a temporary name beside it, synchronised, renamed. Others see the old file
 * or the new one; a failure leaves the old one and nothing else. mode: of a new file, less the process' umask. */
int file_replace(const char *path, const void *bytes, size_t size, mode_t mode);
/* Removes what writers that died an hour ago or earlier have left in the folder of this path. */
void file_sweep(const char *path);
/* Whether file_replace could work there: makes and removes an empty file beside it. */
int file_try_replace(const char *path);
/* Waits, for a few seconds at most, until nobody else holds the folder of this path. Returns what file_unlock takes; -1
 * when it cannot be had (a file system without locks): go on without. No file is made for it. */
int file_lock_folder(const char *path);
void file_unlock(int lock);

#endif
