/* cli.h: what every subcommand of qkvc shares: the option and command tables, the global options, exit codes, messages.
 *
 * A command is one row of a table: its options, its help text, bash completion and the parser all read that row, so
 * that they cannot disagree. One process runs one command, so options are static variables that the tables point at.
 * qkvc never calls setlocale: printf and strtod see the C locale whatever the environment says. */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "qkv.h"

/* Exit codes, part of the interface (docs/command-line.md). */
enum {
  EXIT_OK = 0,
  EXIT_FAILED = 1,   /* a check of results failed, or anything not named below */
  EXIT_USAGE = 2,    /* the command line is wrong */
  EXIT_SPEC = 3,     /* a spec cannot be read, is wrong, or no kernel family can do it */
  EXIT_COMPILE = 4,  /* a template or a compiler failed */
  EXIT_NO_DEVICE = 5 /* the device asked for is not there */
};

typedef enum cli_type {
  CLI_FLAG,  /* int: counts how often it was given */
  CLI_TEXT,  /* const char * */
  CLI_COUNT, /* int64_t, 0 and up */
  CLI_SEED,  /* uint64_t */
  CLI_REAL,  /* double */
  CLI_LIST   /* cli_list: may be given again */
} cli_type;

enum { CLI_LIST_MAX = 64 };
typedef struct cli_list {
  int count;
  const char *items[CLI_LIST_MAX];
} cli_list;

typedef struct cli_option {
  const char *name; /* without the dashes; NULL ends a table */
  char letter;      /* short form, 0: none */
  cli_type type;
  void *value;          /* where the parsed value goes; untouched when the option is not given */
  const char *argument; /* word for help, e.g. "FILE"; NULL for flags */
  const char *help;
} cli_option;

typedef struct cli_command {
  const char *name;
  const char *arguments; /* "SPEC..." */
  const char *summary;   /* one line */
  const char *details;   /* paragraphs of --help, may be NULL */
  const cli_option *options;
  int min_arguments, max_arguments; /* max -1: any number */
  int (*run)(int count, char **arguments);
  const char *words; /* possible values of the first argument for completion, blank separated; NULL: files */
} cli_command;

/* Options that every command takes. */
typedef struct cli_globals {
  const char *device, *cache_dir, *template_path, *arch, *tuned_dir;
  int verbose, help;
  uint64_t emu_seed; /* an option of the commands that run kernels */
} cli_globals;
extern cli_globals cli_global;
extern const cli_option cli_global_options[];
/* All commands in the order of the overview, those of this list and a few small ones (qkvc.c). */
extern const int cli_command_count;
const cli_command *cli_command_at(int n);
extern const cli_command cli_check_command, cli_gen_command, cli_build_command, cli_run_command, cli_tune_command,
    cli_bench_command, cli_report_command, cli_explain_command, cli_cache_command, cli_tuned_command,
    cli_bundle_command, cli_pack_command, cli_doctor_command, cli_schema_command, cli_completion_command;

/* ---- Options (cli_options.c) ---- */

/* Parses argv[0..argc) by the command's options and the global ones. Positional arguments are moved to the front of
 * argv; returns their number, or -1 after a message on stderr. "--" ends the options; "-" is positional. */
int cli_parse(const cli_command *command, int argc, char **argv);
/* Of commands that do several things, such as cache ls and cache gc: whether this one, `action`, has a use for every
 * option of the command that was given. options: their names, blank before and behind each. False after a message. */
bool cli_takes(const cli_command *command, const char *action, const char *options);
/* The nearest of `count` names within a third of the word's length, or NULL. */
const char *cli_nearest(const char *word, const char *const *names, int count);
/* Whole-string numbers; false when anything is left over or out of range. */
bool cli_parse_count(const char *word, int64_t *out);
bool cli_parse_real(const char *word, double *out);
/* Splits "a,b" in place; returns the number of parts, of which the first `limit` are kept. */
int cli_split(char *text, char **parts, int limit);
void cli_print_help(const cli_command *command);
void cli_print_overview(void);

/* ---- Files (cli_file.c) ---- */

/* Writes a file by a function, which need not look for errors. A file is complete or not there; what is no regular file
 * is left alone. Returns an exit code after a message. */
typedef void cli_writer(FILE *out, const void *data);
int cli_write_file(const char *path, cli_writer *write, const void *data);
/* The same without a message: 0 or an errno. */
int cli_try_write_file(const char *path, cli_writer *write, const void *data);

/* ---- Threads (cli_parallel.c) ---- */

/* Pieces of work 0 to count - 1, begun in that order, on any thread. announce is called before each, one call at a time,
 * with the number of those that are done: for progress. */
typedef struct cli_pieces {
  int count;
  int64_t threads; /* at once, 64 at most; 0: the number of cores */
  void (*run)(void *user, int n);
  void (*announce)(void *user, int n, int done);
  void *user;
} cli_pieces;
/* Returns when all are done. */
void cli_parallel(const cli_pieces *pieces);

/* ---- Messages (cli_report.c) ---- */

/* "qkvc: error: ..." on stderr. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Progress: one line on stderr that replaces the last; nothing unless stderr is a terminal. cli_progress_end wipes it.
 */
void cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_progress_end(void);
/* Whether to colour what goes to the stream: a terminal, no NO_COLOR, TERM not dumb. */
bool cli_colour(FILE *stream);
/* The exit code for a failed call of the library. */
int cli_exit_code(qkv_status status);
/* Prints the library's last message and returns the exit code. */
int cli_fail(const char *what, qkv_status status);
/* As cli_fail, for loading a spec: a file that cannot be read is a spec error too. */
int cli_fail_spec(const char *path, qkv_status status);
/* The global options as the library takes them. */
qkv_options cli_engine_options(const char *device);
/* Opens an engine by the global options. fallback: the device when neither --device nor $QKV_DEVICE says. */
qkv_status cli_open(const char *fallback, qkv_engine **out);
/* The engine of commands that compile without running: the GPU's architecture when there is a GPU and no other is asked
 * for, else compile only. */
qkv_status cli_open_compiler(qkv_engine **out);
/* Monotonic seconds. */
double cli_seconds(void);

#endif
