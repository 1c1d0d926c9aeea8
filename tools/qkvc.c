/* qkvc.c: the command line of libqkv: finds the command, parses its options, runs it, and makes sure that what was
 * printed arrived. Commands live in cli_*.c; docs/command-line.md describes them. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "cli.h"
#include "tune.h"

static int run_version(int count, char **arguments);
static int run_help(int count, char **arguments);

static const cli_option no_options[] = {{NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

static const cli_command version_command = {"version", "", "print the version", NULL, no_options,
                                            0,         0,  run_version,         NULL};
static const cli_command help_command = {"help",   "[COMMAND]", "print the help of a command", NULL, no_options, 0, 1,
                                         run_help, NULL};

/* In the order of the overview. */
static const cli_command *const commands[] = {
    &cli_check_command,  &cli_gen_command,    &cli_build_command,      &cli_run_command,   &cli_tune_command,
    &cli_bench_command,  &cli_report_command, &cli_explain_command,    &cli_cache_command, &cli_tuned_command,
    &cli_bundle_command, &cli_pack_command,   &cli_doctor_command,     &cli_schema_command, &cli_completion_command,
    &version_command,    &help_command};
const int cli_command_count = sizeof commands / sizeof *commands;

const cli_command *cli_command_at(int n) {
  return commands[n];
}

static const cli_command *find_command(const char *name) {
  for (int n = 0; n < cli_command_count; n++)
    if (!strcmp(commands[n]->name, name))
      return commands[n];
  return NULL;
}

static int unknown_command(const char *name) {
  const char *names[sizeof commands / sizeof *commands];
  for (int n = 0; n < cli_command_count; n++)
    names[n] = commands[n]->name;
  const char *near = cli_nearest(name, names, cli_command_count);
  cli_error("no command '%s'%s%s%s; see qkvc --help", name, near ? "; did you mean " : "", near ? near : "",
            near ? "?" : "");
  return EXIT_USAGE;
}

static int run_version(int count, char **arguments) {
  (void)count, (void)arguments;
  printf("qkvc %s\n", qkv_version());
  return EXIT_OK;
}

static int run_help(int count, char **arguments) {
  if (!count) {
    cli_print_overview();
    return EXIT_OK;
  }
  const cli_command *command = find_command(arguments[0]);
  if (!command)
    return unknown_command(arguments[0]);
  cli_print_help(command);
  return EXIT_OK;
}

static int run(int argc, char **argv) {
  if (argc < 2) {
    cli_error("no command; see qkvc --help");
    return EXIT_USAGE;
  }
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
    return run_help(0, NULL);
  if (!strcmp(argv[1], "--version"))
    return run_version(0, NULL);
  if (argv[1][0] == '-') {
    cli_error("the command comes first: qkvc COMMAND [options]; see qkvc --help");
    return EXIT_USAGE;
  }
  const cli_command *command = strcmp(argv[1], tune_worker_command.name) ? find_command(argv[1]) : &tune_worker_command;
  if (!command)
    return unknown_command(argv[1]);
  int count = cli_parse(command, argc - 2, argv + 2);
  if (cli_global.help) {
    cli_print_help(command);
    return EXIT_OK;
  }
  return count < 0 ? EXIT_USAGE : command->run(count, argv + 2);
}

static volatile sig_atomic_t reader_gone;

static void note_broken_pipe(int number) {
  (void)number;
  reader_gone = 1;
}

int main(int argc, char **argv) {
  /* A reader that went away, as in "qkvc gen | head", is no error worth a message. A handler, unlike SIG_IGN, is not
   * inherited by the compilers we start. */
  struct sigaction action = {.sa_handler = note_broken_pipe, .sa_flags = SA_RESTART};
  sigaction(SIGPIPE, &action, NULL);
  int code = run(argc, argv);
  cli_progress_end();
  errno = 0;
  bool failed = ferror(stdout) != 0;
  if (fclose(stdout) == 0 && !failed)
    return code;
  if (!reader_gone)
    cli_error("standard output cannot be written: %s", errno ? strerror(errno) : "no space left, or the device failed");
  return code ? code : EXIT_FAILED;
}
