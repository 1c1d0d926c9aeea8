/* status.h: how a call into gen/ ended, with one message. */
#ifndef GEN_STATUS_H
#define GEN_STATUS_H

typedef enum gen_status {
  GEN_OK = 0,
  GEN_BAD_SPEC,      /* the spec's text is wrong; the diags say where */
  GEN_UNSUPPORTED,   /* valid, but no family (or not the one asked for) can do it; the message names the field */
  GEN_BAD_SCHEDULE,  /* unknown axis, illegal value, over a resource limit */
  GEN_UNKNOWN_ARCH,
  GEN_TEMPLATE,      /* Lua error, budget exceeded; the message starts with template:line */
  GEN_IO,            /* a template override could not be read */
  GEN_NO_MEMORY,
  GEN_INTERNAL
} gen_status;

enum { GEN_MESSAGE_SIZE = 2048 };

/* Zero-initialise. The message is empty after GEN_OK. */
typedef struct gen_error {
  gen_status status;
  char message[GEN_MESSAGE_SIZE];
} gen_error;

/* Sets both and returns the status, so that callers can write `return gen_fail(e, GEN_IO, ...)`. e may be NULL. */
gen_status gen_fail(gen_error *e, gen_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
