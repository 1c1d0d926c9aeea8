/* cli_tuned.c: qkvc tuned: lists, checks and merges tables of tuned schedules. Needs no GPU. */
#include <string.h>

#include "cli.h"
#include "cli_json.h"
#include "cli_table.h"
#include "qkv_tune.h"

static int as_json;
static const char *output;

static const cli_option options[] = {
    {"json", 0, CLI_FLAG, &as_json, NULL, "ls: one JSON object"},
    {"output", 'o', CLI_TEXT, &output, "DIR", "merge: the folder of the result, DIR/GPU CLASS/SPEC.yaml"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

/* ---- ls ---- */

typedef struct listing {
  cli_table table;
  cli_json json;
  int64_t entries;
} listing;

static void add_json(cli_json *j, const qkv_tuned_table *t, const qkv_tuned_entry *e) {
  json_open(j, NULL, '{');
  json_string(j, "file", t->file);
  json_string(j, "spec", t->spec);
  json_string(j, "variant", t->variant);
  json_string(j, "gpu", t->gpu);
  json_string(j, "gpu_class", t->gpu_class);
  json_string(j, "qkvc", t->version);
  json_string(j, "notes", t->notes);
  json_string(j, "match", t->here == 2 ? "same" : t->here == 1 ? "hint" : "other");
  json_string(j, "phase", e->phase);
  json_string(j, "bucket", t->bucket);
  json_string(j, "workload", e->workload);
  json_integer(j, "batch", e->batch);
  json_integer(j, "len_q", e->len_q);
  json_integer(j, "len_k", e->len_k);
  json_string(j, "family", e->family);
  json_string(j, "schedule", e->schedule);
  json_real(j, "seconds", e->seconds);
  json_real(j, "low", e->low);
  json_real(j, "high", e->high);
  json_string(j, "default_schedule", e->default_schedule);
  json_real(j, "default_seconds", e->default_seconds);
  json_close(j, '}');
}

static int visit(const qkv_tuned_table *t, const qkv_tuned_entry *e, void *user) {
  listing *l = user;
  char seconds[32];
  l->entries++;
  if (as_json) {
    add_json(&l->json, t, e);
    return 0;
  }
  table_cell(&l->table, "%s", t->spec);
  table_cell(&l->table, "%s", t->gpu_class);
  table_cell(&l->table, "%s", e->phase);
  table_cell(&l->table, "%s", t->bucket);
  table_cell(&l->table, "%s", format_seconds(seconds, e->seconds));
  table_cell(&l->table, "%.2f", e->default_seconds / e->seconds);
  table_cell(&l->table, "%s", e->family);
  table_cell(&l->table, "%s", e->schedule);
  table_row(&l->table);
  return 0;
}

static int list(qkv_engine *engine, int count, char **files) {
  static const char *const heads[] = {"spec", "gpu", "phase", "bucket", ">time", ">gain", "family", "schedule"};
  listing l = {.json = {.stream = stdout}};
  table_start(&l.table, 8, heads);
  if (as_json) {
    json_open(&l.json, NULL, '{');
    json_string(&l.json, "path", qkv_tuned_path(engine));
    json_open(&l.json, "entries", '[');
  }
  qkv_status status = qkv_tuned_list(engine, count ? (const char *const *)files : NULL, count, visit, &l);
  if (as_json) {
    json_close(&l.json, ']');
    json_integer(&l.json, "count", l.entries);
    json_close(&l.json, '}');
  } else if (!status) {
    if (l.table.rows)
      table_print(&l.table, stdout);
    printf("%lld %s", (long long)l.entries, l.entries == 1 ? "entry" : "entries");
    if (!count)
      printf(", from %s and what is built in", *qkv_tuned_path(engine) ? qkv_tuned_path(engine) : "no folder");
    printf("\n");
  }
  table_free(&l.table);
  return status ? cli_fail_spec(NULL, status) : EXIT_OK;
}

/* ---- The others ---- */

static int check(int count, char **files) {
  int code = EXIT_OK;
  for (int n = 0; n < count; n++) {
    qkv_status status = qkv_tuned_check(files[n]);
    if (status)
      code = cli_fail_spec(NULL, status);
    else
      printf("%s: ok\n", files[n]);
  }
  return code;
}

static int merge(int count, char **files) {
  if (!output) {
    cli_error("merge needs -o DIR, the folder of the result");
    return EXIT_USAGE;
  }
  qkv_status status = qkv_tuned_merge(output, (const char *const *)files, count);
  if (status)
    return cli_fail_spec(NULL, status);
  printf("merged %d %s into %s\n", count, count == 1 ? "file" : "files", output);
  return EXIT_OK;
}

static int run(int count, char **arguments) {
  static const char *const actions[] = {"ls", "check", "merge", "path"}, *const taken[] = {" json ", " ", " output ",
                                                                                           " "};
  enum { LS, CHECK, MERGE, PATH, ACTIONS };
  int action = 0;
  while (action < ACTIONS && strcmp(arguments[0], actions[action]) != 0)
    action++;
  if (action == ACTIONS) {
    const char *near = cli_nearest(arguments[0], actions, ACTIONS);
    cli_error("tuned does ls, check, merge or path, not '%s'%s%s%s", arguments[0], near ? "; did you mean " : "",
              near ? near : "", near ? "?" : "");
    return EXIT_USAGE;
  }
  if (!cli_takes(&cli_tuned_command, actions[action], taken[action]))
    return EXIT_USAGE;
  if (action == PATH && count > 1) {
    cli_error("tuned path takes no argument; '%s' is too many", arguments[1]);
    return EXIT_USAGE;
  }
  if ((action == CHECK || action == MERGE) && count < 2) {
    cli_error("tuned %s needs FILE...", actions[action]);
    return EXIT_USAGE;
  }
  if (action == CHECK || action == MERGE)
    return action == CHECK ? check(count - 1, arguments + 1) : merge(count - 1, arguments + 1);
  qkv_engine *engine = NULL;
  qkv_status status = cli_open("none", &engine);
  if (status)
    return cli_fail(NULL, status);
  int code = EXIT_OK;
  if (action == PATH)
    printf("%s\n", qkv_tuned_path(engine));
  else
    code = list(engine, count - 1, arguments + 1);
  qkv_close(engine);
  return code;
}

const cli_command cli_tuned_command = {
    "tuned",
    "ls|check|merge|path [FILE...]",
    "list, check or merge tables of tuned schedules",
    "  ls      every entry of the files, else of the user's folder and of what is built in, with what it gained over\n"
    "          the default schedule: 1.07 is 7 % more work in the same time\n"
    "  check   whether files are tables without a fault; exit code 3 when one is not\n"
    "  merge   puts the entries of several runs into the tables of one folder (-o); of two for the same GPU, variant,\n"
    "          phase and bucket the one stays that gained more over its default, whatever the order of files\n"
    "  path    the user's folder: tables there go before those that are built in",
    options,
    1,
    -1,
    run,
    "ls check merge path"};
