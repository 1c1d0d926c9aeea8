/* status.c: the one place that fills a gen_error. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

gen_status gen_fail(gen_error *e, gen_status status, const char *format, ...) {
  if (e) {
    va_list args;
    va_start(args, format);
    e->status = status;
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
  }
  return status;
}
