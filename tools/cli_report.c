/* cli_report.c: messages on stderr, progress, exit codes, and opening an engine by the global options.
 * Standard output carries results only; all that is said here goes to standard error. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

static bool progress_shown;

bool cli_colour(FILE *stream) {
  const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
  return isatty(fileno(stream)) && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
}

void cli_progress_end(void) {
  if (progress_shown)
    fputs("\r\033[K", stderr);
  progress_shown = false;
}

void cli_progress(const char *format, ...) {
  if (!isatty(STDERR_FILENO))
    return;
  va_list arguments;
  va_start(arguments, format);
  fputs("\r\033[K", stderr);
  vfprintf(stderr, format, arguments);
  fflush(stderr);
  va_end(arguments);
  progress_shown = true;
}

static bool is_control(char c) {
  return ((unsigned char)c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
}

/* Text that may quote a file: control characters, which a terminal would obey, are shown as '?'. */
static void print_plain(const char *format, va_list arguments) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  vfprintf(out ? out : stderr, format, arguments); /* "out of memory" is said all the same */
  if (out && fclose(out) == 0)
    for (const char *s = text; *s; s++)
      fputc(is_control(*s) ? '?' : *s, stderr);
  free(text);
}

static void say(const char *kind, const char *colour, const char *format, va_list arguments) {
  fflush(stdout); /* keep the order when both go to one terminal or file */
  cli_progress_end();
  if (cli_colour(stderr))
    fprintf(stderr, "qkvc: \033[%sm%s:\033[0m ", colour, kind);
  else
    fprintf(stderr, "qkvc: %s: ", kind);
  print_plain(format, arguments);
  fputc('\n', stderr);
}

void cli_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say("error", "31", format, arguments);
  va_end(arguments);
}

void cli_warning(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say("warning", "33", format, arguments);
  va_end(arguments);
}

void cli_note(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say("note", "36", format, arguments);
  va_end(arguments);
}

int cli_exit_code(qkv_status status) {
  switch (status) {
  case QKV_OK:
    return EXIT_OK;
  case QKV_BAD_SPEC:
  case QKV_UNSUPPORTED:
    return EXIT_SPEC;
  case QKV_INVALID_ARGUMENT: /* all arguments come from the command line and the environment */
  case QKV_BAD_SCHEDULE:
  case QKV_UNKNOWN_ARCH:
    return EXIT_USAGE;
  case QKV_TEMPLATE_ERROR:
  case QKV_COMPILE_ERROR:
  case QKV_NOT_PREPARED:
  case QKV_NO_COMPILER:
    return EXIT_COMPILE;
  case QKV_NO_DEVICE:
    return EXIT_NO_DEVICE;
  default:
    return EXIT_FAILED;
  }
}

/* The message without the line feed that diagnostics end with. */
static int print_failure(const char *what, qkv_status status, int code) {
  const char *message = qkv_last_error(NULL);
  size_t length = strlen(message);
  while (length && message[length - 1] == '\n')
    length--;
  if (length)
    cli_error("%s%s%.*s", what ? what : "", what ? ": " : "", (int)length, message);
  else
    cli_error("%s%s%s", what ? what : "", what ? ": " : "", qkv_status_name(status));
  return code;
}

int cli_fail(const char *what, qkv_status status) {
  return print_failure(what, status, cli_exit_code(status));
}

int cli_fail_spec(const char *path, qkv_status status) {
  if (status == QKV_BAD_SPEC) { /* diagnostics name file and line themselves */
    const char *message = qkv_last_error(NULL);
    fflush(stdout);
    cli_progress_end();
    fputs(message, stderr);
    if (!*message || message[strlen(message) - 1] != '\n')
      fputc('\n', stderr);
    return EXIT_SPEC;
  }
  return print_failure(path, status,
                       status == QKV_IO || status == QKV_INVALID_ARGUMENT ? EXIT_SPEC : cli_exit_code(status));
}

static void log_message(qkv_log_level level, const char *message, void *user) {
  (void)user;
  static const char *const names[] = {"", "warning", "info", "debug"};
  if ((int)level > 1 + cli_global.verbose)
    return;
  cli_progress_end();
  fprintf(stderr, "qkvc: %s: %s\n", names[level <= QKV_LOG_DEBUG ? level : QKV_LOG_DEBUG], message);
}

qkv_options cli_engine_options(const char *device) {
  qkv_options options = QKV_OPTIONS_INIT;
  options.device = device;
  options.cache_dir = cli_global.cache_dir;
  options.template_path = cli_global.template_path;
  options.tuned_dir = cli_global.tuned_dir;
  options.arch = cli_global.arch;
  options.emu_seed = cli_global.emu_seed;
  options.log = log_message;
  return options;
}

static bool has_environment(const char *name) {
  const char *value = getenv(name);
  return value && *value;
}

qkv_status cli_open(const char *fallback, qkv_engine **out) {
  const char *device = cli_global.device;
  if (!device && !has_environment("QKV_DEVICE"))
    device = fallback;
  qkv_options options = cli_engine_options(device);
  return qkv_open(&options, out);
}

qkv_status cli_open_compiler(qkv_engine **out) {
  if (cli_global.device || has_environment("QKV_DEVICE"))
    return cli_open(NULL, out);
  if (!cli_global.arch && !has_environment("QKV_ARCH") && cli_open("cuda", out) == QKV_OK)
    return QKV_OK;
  return cli_open("none", out);
}

double cli_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int cli_write_file(const char *path, cli_writer *write, const void *data) {
  const int error = cli_try_write_file(path, write, data);
  if (error)
    cli_error("%s: %s", path, strerror(error));
  return error ? EXIT_FAILED : EXIT_OK;
}
