/* cli_options.c: option tables: parsing, help texts and near names.
 * Inputs: tables of cli.h and argv. Outputs: the variables the tables point at; text on stdout (help) or stderr. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

cli_globals cli_global;

const cli_option cli_global_options[] = {
    {"device", 0, CLI_TEXT, &cli_global.device, "NAME", "cuda, cuda:N, emu, none or auto [$QKV_DEVICE]"},
    {"arch", 0, CLI_TEXT, &cli_global.arch, "ARCH", "architecture to generate for, such as sm_90a [$QKV_ARCH]"},
    {"cache-dir", 0, CLI_TEXT, &cli_global.cache_dir, "DIR", "kernel cache; empty: memory only [$QKV_CACHE_DIR]"},
    {"template-path", 0, CLI_TEXT, &cli_global.template_path, "DIR",
     "files here override built-in templates [$QKV_TEMPLATE_PATH]"},
    {"tuned-dir", 0, CLI_TEXT, &cli_global.tuned_dir, "DIR",
     "tables of tuned schedules; empty: none at all [$QKV_TUNED_DIR]"},
    {"verbose", 'v', CLI_FLAG, &cli_global.verbose, NULL, "say more on standard error; twice: even more"},
    {"help", 'h', CLI_FLAG, &cli_global.help, NULL, "print this help"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

/* ---- Near names ---- */

enum { NEAR_MAX = 40 };

/* Edits (insert, delete, replace, swap of neighbours) between two short words. */
static int edit_distance(const char *a, const char *b) {
  int rows[3][NEAR_MAX + 1];
  int la = (int)strlen(a), lb = (int)strlen(b);
  if (la > NEAR_MAX || lb > NEAR_MAX)
    return NEAR_MAX;
  for (int j = 0; j <= lb; j++)
    rows[0][j] = j;
  for (int i = 1; i <= la; i++) {
    int *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
    row[0] = i;
    for (int j = 1; j <= lb; j++) {
      int best = above[j - 1] + (a[i - 1] != b[j - 1]);
      if (above[j] + 1 < best)
        best = above[j] + 1;
      if (row[j - 1] + 1 < best)
        best = row[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < best)
        best = above2[j - 2] + 1;
      row[j] = best;
    }
  }
  return rows[la % 3][lb];
}

const char *cli_nearest(const char *word, const char *const *names, int count) {
  const char *best = NULL;
  int limit = (int)strlen(word) / 3 + 1, best_distance = limit + 1;
  for (int n = 0; n < count; n++) {
    int distance = edit_distance(word, names[n]);
    if (distance < best_distance && distance < (int)strlen(names[n])) {
      best = names[n];
      best_distance = distance;
    }
  }
  return best;
}

/* ---- Parsing ---- */

bool cli_parse_count(const char *word, int64_t *out) {
  if (!isdigit((unsigned char)word[0]))
    return false;
  char *end;
  errno = 0;
  long long value = strtoll(word, &end, 10);
  if (errno || *end)
    return false;
  *out = value;
  return true;
}

bool cli_parse_real(const char *word, double *out) {
  char *end;
  if (!*word || isspace((unsigned char)word[0]))
    return false;
  double value = strtod(word, &end);
  if (*end || !isfinite(value))
    return false;
  *out = value;
  return true;
}

static bool parse_seed(const char *word, uint64_t *out) {
  if (!isdigit((unsigned char)word[0]))
    return false;
  char *end;
  errno = 0;
  unsigned long long value = strtoull(word, &end, 10);
  if (errno || *end)
    return false;
  *out = value;
  return true;
}

/* Options that were given, in order. */
static const cli_option *given[CLI_LIST_MAX];
static int ngiven;

static bool set_value(const cli_option *option, const char *word) {
  if (ngiven < CLI_LIST_MAX)
    given[ngiven++] = option;
  switch (option->type) {
  case CLI_FLAG:
    ++*(int *)option->value;
    return true;
  case CLI_TEXT:
    *(const char **)option->value = word;
    return true;
  case CLI_COUNT:
    if (cli_parse_count(word, option->value))
      return true;
    cli_error("--%s takes a whole number from 0 up, not '%s'", option->name, word);
    return false;
  case CLI_SEED:
    if (parse_seed(word, option->value))
      return true;
    cli_error("--%s takes a whole number from 0 to 18446744073709551615, not '%s'", option->name, word);
    return false;
  case CLI_REAL:
    if (cli_parse_real(word, option->value))
      return true;
    cli_error("--%s takes a number, not '%s'", option->name, word);
    return false;
  case CLI_LIST: {
    cli_list *list = option->value;
    if (list->count == CLI_LIST_MAX) {
      cli_error("--%s may be given at most %d times", option->name, CLI_LIST_MAX);
      return false;
    }
    list->items[list->count++] = word;
    return true;
  }
  }
  return false;
}

static const cli_option *find_option(const cli_command *command, const char *name, size_t length, char letter) {
  const cli_option *tables[2] = {command->options, cli_global_options};
  for (int t = 0; t < 2; t++)
    for (const cli_option *o = tables[t]; o && o->name; o++)
      if (letter ? o->letter == letter : strlen(o->name) == length && !memcmp(o->name, name, length))
        return o;
  return NULL;
}

static void unknown_option(const cli_command *command, const char *name, size_t length) {
  const char *names[64];
  int count = 0;
  const cli_option *tables[2] = {command->options, cli_global_options};
  for (int t = 0; t < 2; t++)
    for (const cli_option *o = tables[t]; o && o->name && count < 64; o++)
      names[count++] = o->name;
  char word[NEAR_MAX + 1];
  snprintf(word, sizeof word, "%.*s", (int)(length < NEAR_MAX ? length : NEAR_MAX), name);
  const char *near = cli_nearest(word, names, count);
  cli_error("%s has no option --%s%s%s%s; see qkvc %s --help", command->name, word, near ? "; did you mean --" : "",
            near ? near : "", near ? "?" : "", command->name);
}

/* One "--name", "--name value" or "--name=value". *at is the index in argv. */
static bool parse_long(const cli_command *command, int argc, char **argv, int *at) {
  const char *name = argv[*at] + 2, *equals = strchr(name, '=');
  size_t length = equals ? (size_t)(equals - name) : strlen(name);
  const cli_option *option = find_option(command, name, length, 0);
  if (!option) {
    unknown_option(command, name, length);
    return false;
  }
  if (option->type == CLI_FLAG) {
    if (equals) {
      cli_error("--%s takes no value", option->name);
      return false;
    }
    return set_value(option, NULL);
  }
  if (equals)
    return set_value(option, equals + 1);
  if (*at + 1 == argc) {
    cli_error("--%s needs a value: --%s %s", option->name, option->name, option->argument);
    return false;
  }
  return set_value(option, argv[++*at]);
}

/* A cluster of short flags, the last of which may take a value: "-vv", "-o FILE", "-oFILE". */
static bool parse_short(const cli_command *command, int argc, char **argv, int *at) {
  for (const char *letter = argv[*at] + 1; *letter; letter++) {
    const cli_option *option = find_option(command, NULL, 0, *letter);
    if (!option) {
      cli_error("%s has no option -%c; see qkvc %s --help", command->name, *letter, command->name);
      return false;
    }
    if (option->type == CLI_FLAG) {
      set_value(option, NULL);
      continue;
    }
    if (letter[1])
      return set_value(option, letter + 1);
    if (*at + 1 == argc) {
      cli_error("-%c needs a value: -%c %s", *letter, *letter, option->argument);
      return false;
    }
    return set_value(option, argv[++*at]);
  }
  return true;
}

bool cli_takes(const cli_command *command, const char *action, const char *options) {
  for (int n = 0; n < ngiven; n++) {
    char word[32];
    bool own = false;
    for (const cli_option *o = command->options; o && o->name; o++)
      own |= o == given[n];
    snprintf(word, sizeof word, " %s ", given[n]->name);
    if (own && !strstr(options, word)) {
      cli_error("%s %s takes no --%s; see qkvc %s --help", command->name, action, given[n]->name, command->name);
      return false;
    }
  }
  return true;
}

int cli_parse(const cli_command *command, int argc, char **argv) {
  int positional = 0;
  ngiven = 0;
  bool options = true;
  for (int at = 0; at < argc; at++) {
    char *word = argv[at];
    if (!options || word[0] != '-' || !word[1]) {
      argv[positional++] = word;
    } else if (!strcmp(word, "--")) {
      options = false;
    } else if (word[1] == '-') {
      if (!parse_long(command, argc, argv, &at))
        return -1;
    } else if (!parse_short(command, argc, argv, &at)) {
      return -1;
    }
  }
  if (cli_global.help)
    return positional;
  if (positional < command->min_arguments) {
    cli_error("%s needs %s; see qkvc %s --help", command->name, command->arguments, command->name);
    return -1;
  }
  if (command->max_arguments >= 0 && positional > command->max_arguments) {
    cli_error("%s takes %s; '%s' is too many", command->name, *command->arguments ? command->arguments : "no argument",
              argv[command->max_arguments]);
    return -1;
  }
  return positional;
}

/* ---- Help ---- */

static void print_options(const cli_option *table) {
  for (const cli_option *o = table; o && o->name; o++) {
    char left[64];
    if (o->letter)
      snprintf(left, sizeof left, "-%c, --%s%s%s", o->letter, o->name, o->argument ? " " : "",
               o->argument ? o->argument : "");
    else
      snprintf(left, sizeof left, "    --%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
    printf(strlen(left) > 28 ? "  %s\n%32s%s\n" : "  %-28s  %s%s\n", left, "", o->help);
  }
}

static const char exit_codes[] =
    "Exit codes: 0 ok; 1 a check of results failed, or any other failure; 2 usage; 3 spec;\n"
    "4 template or compiler; 5 no such device.\n";

int cli_split(char *text, char **parts, int limit) {
  int count = 0;
  for (char *rest = text, *part; (part = strsep(&rest, ",")) != NULL;)
    if (*part && count++ < limit)
      parts[count - 1] = part;
  return count;
}

void cli_print_help(const cli_command *command) {
  printf("qkvc %s: %s\n\nUsage: qkvc %s [options]%s%s\n", command->name, command->summary, command->name,
         *command->arguments ? " " : "", command->arguments);
  if (command->details)
    printf("\n%s\n", command->details);
  if (command->options && command->options->name) {
    printf("\nOptions:\n");
    print_options(command->options);
  }
  printf("\nOptions of every command:\n");
  print_options(cli_global_options);
  printf("\n%s", exit_codes);
}

void cli_print_overview(void) {
  printf("qkvc %s: an attention-kernel compiler: YAML specs to CUDA kernels\n\n"
         "Usage: qkvc COMMAND [options] [arguments]\n\nCommands:\n",
         qkv_version());
  for (int n = 0; n < cli_command_count; n++)
    printf("  %-11s %s\n", cli_command_at(n)->name, cli_command_at(n)->summary);
  printf("\nOptions of every command:\n");
  print_options(cli_global_options);
  printf("\n%s\n'qkvc COMMAND --help' says more. Start with: qkvc run specs/minilm_l6.yaml\n", exit_codes);
}
