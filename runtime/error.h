/* error.h: the thread's last error message. */
#ifndef RUNTIME_ERROR_H
#define RUNTIME_ERROR_H

#include <stdarg.h>

#include "qkv.h"

/* Sets the calling thread's message and returns status, so that callers can write `return error_set(QKV_IO, ...)`. */
qkv_status error_set(qkv_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts text before the current message: context on the way up. Returns status. */
qkv_status error_context(qkv_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *error_message(void);

#endif
