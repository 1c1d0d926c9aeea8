/* error.c: the calling thread's last error message.
 *
 * One growing buffer a thread, freed when the thread ends. When memory for a longer message is out, the message is cut
 * to what a small static buffer holds: reporting an error never fails. Formatting ignores the locale as far as the
 * callers print no floats with printf (they use text_double). */
#include "error.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct message {
  char *bytes; /* NULL: `fallback` is the message */
  char fallback[512];
} message;

static _Thread_local message *current;
static _Thread_local message emergency; /* used when even the message record cannot be allocated */
static pthread_key_t key;
static int have_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void message_free(void *pointer) {
  message *m = pointer;
  free(m->bytes);
  free(m);
  current = NULL;
}

static void make_key(void) {
  have_key = pthread_key_create(&key, message_free) == 0;
}

static message *message_of_thread(void) {
  if (current)
    return current;
  pthread_once(&once, make_key);
  message *m = calloc(1, sizeof *m);
  if (!m)
    return &emergency;
  if (!have_key || pthread_setspecific(key, m)) {
    free(m);
    return &emergency;
  }
  return current = m;
}

static const char *message_text(const message *m) {
  return m->bytes ? m->bytes : m->fallback;
}

/* Takes over `bytes` (a malloc'd string), or keeps what fits of `otherwise` when bytes is NULL. */
static void message_replace(message *m, char *bytes, const char *otherwise) {
  if (bytes) {
    free(m->bytes);
    m->bytes = bytes;
    return;
  }
  char cut[sizeof m->fallback];
  snprintf(cut, sizeof cut, "%s", otherwise);
  free(m->bytes);
  m->bytes = NULL;
  memcpy(m->fallback, cut, sizeof cut);
}

/* A malloc'd string of the formatted text followed by `tail`; NULL when memory is out. */
static char *format_text(const char *format, va_list args, const char *tail) {
  va_list again;
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (length < 0)
    return NULL;
  size_t tail_size = strlen(tail) + 1;
  char *bytes = malloc((size_t)length + tail_size);
  if (!bytes)
    return NULL;
  vsnprintf(bytes, (size_t)length + 1, format, args);
  memcpy(bytes + length, tail, tail_size);
  return bytes;
}

qkv_status error_set(qkv_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  char *bytes = format_text(format, args, "");
  va_end(args);
  message_replace(message_of_thread(), bytes, format);
  return status;
}

qkv_status error_context(qkv_status status, const char *format, ...) {
  message *m = message_of_thread();
  va_list args;
  va_start(args, format);
  char *bytes = format_text(format, args, message_text(m));
  va_end(args);
  if (bytes)
    message_replace(m, bytes, "");
  return status;
}

const char *error_message(void) {
  const message *m = current ? current : &emergency;
  return message_text(m);
}
