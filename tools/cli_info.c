/* cli_info.c: the commands that print one text of the library: explain, doctor, schema; and bash completion. */
#include <string.h>

#include "cli.h"
#include "cli_kernel.h"

static int as_json;

/* Prints a text of the library, ending in exactly one line feed, and frees it. */
static void print_text(char *text) {
  size_t length = strlen(text);
  fputs(text, stdout);
  if (!length || text[length - 1] != '\n')
    putchar('\n');
  qkv_string_free(text);
}

/* ---- explain ---- */

static const cli_option explain_options[] = {CLI_KERNEL_OPTIONS,
                                             {"json", 0, CLI_FLAG, &as_json, NULL, "the same as JSON"},
                                             {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

static int run_explain(int count, char **arguments) {
  (void)count;
  qkv_engine *engine = NULL;
  qkv_spec *spec = NULL;
  char *text = NULL;
  int code = EXIT_OK;
  qkv_build_options build = cli_kernel_build_options(cli_global.arch);
  qkv_status status = cli_open_compiler(&engine);
  if (status)
    return cli_fail(NULL, status);
  if ((status = qkv_spec_load(engine, arguments[0], &spec)) != QKV_OK)
    code = cli_fail_spec(arguments[0], status);
  else if ((status = qkv_explain(engine, spec, &build, as_json, &text)) != QKV_OK)
    code = cli_fail(arguments[0], status);
  else
    print_text(text);
  qkv_spec_free(spec);
  qkv_close(engine);
  return code;
}

const cli_command cli_explain_command = {"explain",
                                         "SPEC",
                                         "say which kernel would run and why",
                                         "Prints the families with the reason for or against each, the schedule, "
                                         "resources, how the mask is handled, and the\n"
                                         "FLOPs and bytes of the workloads.",
                                         explain_options,
                                         1,
                                         1,
                                         run_explain,
                                         NULL};

/* ---- doctor ---- */

static const cli_option json_options[] = {{"json", 0, CLI_FLAG, &as_json, NULL, "the same as JSON"},
                                          {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

static int run_doctor(int count, char **arguments) {
  (void)count, (void)arguments;
  qkv_options options = cli_engine_options(cli_global.device);
  int healthy = 0;
  char *text = NULL;
  qkv_status status = qkv_doctor(&options, as_json, &healthy, &text);
  if (status)
    return cli_fail(NULL, status);
  print_text(text);
  return healthy ? EXIT_OK : EXIT_FAILED;
}

const cli_command cli_doctor_command = {"doctor",
                                        "",
                                        "report on driver, GPU, compilers and cache",
                                        "Says what was found, where, and what to do about what is missing. Exit code "
                                        "0: kernels can be compiled and run on\n"
                                        "a GPU; 1: not all of that.",
                                        json_options,
                                        0,
                                        0,
                                        run_doctor,
                                        NULL};

/* ---- schema ---- */

static const cli_option no_options[] = {{NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

static int run_schema(int count, char **arguments) {
  (void)count, (void)arguments;
  char *text = NULL;
  qkv_status status = qkv_json_schema(&text);
  if (status)
    return cli_fail(NULL, status);
  print_text(text);
  return EXIT_OK;
}

const cli_command cli_schema_command = {
    "schema",
    "",
    "print the JSON Schema of specs, for editors",
    "In an editor with yaml-language-server: save it as qkvc.schema.json and start a spec with the line\n"
    "# yaml-language-server: $schema=qkvc.schema.json",
    no_options,
    0,
    0,
    run_schema,
    NULL};

/* ---- completion ---- */

static void print_option_words(const cli_option *table) {
  for (const cli_option *o = table; o && o->name; o++)
    printf(" --%s", o->name);
}

static int run_completion(int count, char **arguments) {
  (void)count;
  if (strcmp(arguments[0], "bash") != 0) {
    cli_error("completion is there for bash, not for '%s'", arguments[0]);
    return EXIT_USAGE;
  }
  printf("# bash completion for qkvc; load it with: source <(qkvc completion bash)\n"
         "_qkvc() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} options= words=\n"
         "  case ${COMP_CWORD}:${COMP_WORDS[1]} in\n    1:*) words='");
  for (int n = 0; n < cli_command_count; n++)
    printf("%s%s", n ? " " : "", cli_command_at(n)->name);
  printf("' ;;\n");
  for (int n = 0; n < cli_command_count; n++) {
    const cli_command *c = cli_command_at(n);
    printf("    *:%s) words='%s' options='", c->name, c->words ? c->words : "");
    print_option_words(c->options);
    print_option_words(cli_global_options);
    printf("' ;;\n");
  }
  printf("  esac\n"
         "  [[ $word == -* ]] && words=$options\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "}\n"
         "complete -o bashdefault -o default -F _qkvc qkvc\n");
  return EXIT_OK;
}

const cli_command cli_completion_command = {
    "completion",   "bash", "print a completion script", "Use: source <(qkvc completion bash)", no_options, 1, 1,
    run_completion, "bash"};
