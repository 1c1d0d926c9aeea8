/* cli_info.c: the commands that print one text of the library: explain, doctor, schema; and bash completion. */
#include <string.h>

#include "cli.h"
#include "cli_candidates.h"
#include "cli_kernel.h"
#include "cli_mask.h"

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

static int64_t candidates = -1; /* how many of them to list; 0: all */
static const char *effort;

static mask_request mask = {.problem = {.batch = -1, .len_q = -1, .len_k = -1}};

static const cli_option explain_options[] = {
    {"workload", 'w', CLI_TEXT, &mask.problem.workload, "NAME", "sizes of this workload; default: the first"},
    {"batch", 'b', CLI_COUNT, &mask.problem.batch, "N", "batch entries; default 1"},
    {"q", 0, CLI_COUNT, &mask.problem.len_q, "N", "queries per entry; default as many as keys"},
    {"kv", 0, CLI_COUNT, &mask.problem.len_k, "N", "keys per entry; default as many as queries"},
    CLI_KERNEL_OPTIONS,
    {"candidates", 0, CLI_COUNT, &candidates, "N",
     "list the schedules that a tuner would try for the sizes; the first N, 0: all"},
    {"effort", 0, CLI_TEXT, &effort, "WORD", "with --candidates, how many there are: quick, default or full"},
    {"mask", 0, CLI_FLAG, &mask.wanted, NULL, "show how the mask is cut into tiles; the options below go with it"},
    {"svg", 0, CLI_TEXT, &mask.svg, "FILE", "draw it into a file; implies --mask"},
    {"seed", 's', CLI_SEED, &mask.problem.seed, "N", "of random parameters; default 0"},
    {"param", 'p', CLI_LIST, &mask.problem.params, "NAME=X",
     "a number, or a .npy file; random if not given, as in run"},
    {"entry", 0, CLI_COUNT, &mask.entry, "N", "which entry of the batch; default 0"},
    {"head", 0, CLI_COUNT, &mask.head, "N", "which query head; default 0"},
    {"tile", 0, CLI_TEXT, &mask.tile, "MxN", "queries and keys of a tile; default: of the kernel that would run"},
    {"ascii", 0, CLI_FLAG, &mask.ascii, NULL, "draw without UTF-8"},
    {"exact", 0, CLI_FLAG, &mask.exact, NULL, "ask the mask for every pair, however many there are"},
    {"json", 0, CLI_FLAG, &as_json, NULL, "one JSON object"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

/* The first option that goes with --mask alone and was given without it, NULL if none. */
static const char *stray_option(void) {
  const problem_request *r = &mask.problem;
  const struct {
    bool given;
    const char *name;
  } rows[] = {{r->seed, "--seed"},   {r->params.count, "--param"}, {mask.entry, "--entry"}, {mask.head, "--head"},
              {mask.tile, "--tile"}, {mask.ascii, "--ascii"},      {mask.exact, "--exact"}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
    if (rows[n].given)
      return rows[n].name;
  return NULL;
}

/* Sizes given without --mask are maxima as a program would declare them: tables and defaults may follow them. */
static int take_maxima(qkv_spec *spec, qkv_build_options *build) {
  const problem_request *r = &mask.problem;
  problem p = {.spec = spec, .info = {.size = sizeof p.info}};
  qkv_workload w = {0};
  qkv_spec_get_info(spec, &p.info);
  int code = r->workload ? problem_find_workload(&p, r->workload, &w) : EXIT_OK;
  build->batch = r->batch >= 0 ? r->batch : w.batch;
  build->len_q = r->len_q >= 0 ? r->len_q : w.len_q;
  build->len_k = r->len_k >= 0 ? r->len_k : w.len_k;
  return code;
}

static int run_explain(int count, char **arguments) {
  (void)count;
  if ((mask.wanted || mask.svg) && candidates >= 0) {
    cli_error("--mask and --candidates are two questions: ask one at a time");
    return EXIT_USAGE;
  }
  if ((mask.wanted || mask.svg) && !effort) {
    mask.json = as_json;
    return cli_mask_explain(arguments[0], &mask);
  }
  const char *stray = stray_option();
  if (stray || (effort && candidates < 0)) {
    cli_error("%s goes with %s", stray ? stray : "--effort", stray ? "--mask" : "--candidates");
    return EXIT_USAGE;
  }
  if (candidates >= 0)
    return cli_candidates_explain(arguments[0], &mask.problem, candidates, effort, as_json);
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
  else if ((code = take_maxima(spec, &build)) != EXIT_OK)
    ;
  else if ((status = qkv_explain(engine, spec, &build, as_json, &text)) != QKV_OK)
    code = cli_fail(arguments[0], status);
  else
    print_text(text);
  qkv_spec_free(spec);
  qkv_close(engine);
  return code;
}

const cli_command cli_explain_command = {
    "explain",
    "SPEC",
    "say which kernel would run and why",
    "Prints the families with the reason for or against each, the schedule, "
    "resources, how the mask is handled, and the\n"
    "FLOPs and bytes of the workloads.\n\n"
    "With --mask: the form that was derived from the mask, its bounds in symbols, "
    "and what happens to every tile of one\n"
    "head: skipped, full (no mask is evaluated) or partial; and of the partial "
    "ones which need not have been, found by\n"
    "asking the mask for every pair. Drawn with a character a tile, small masks "
    "a pair.\n\n"
    "With sizes and without --mask: the schedule for these as declared maxima, "
    "and which table it is from.\n\n"
    "With --candidates: the schedules that are legal and worth trying, the default "
    "first, then those of which a model of the\n"
    "GPU expects the fewest seconds. --family all: of every family that can.",
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
