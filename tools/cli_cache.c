/* cli_cache.c: qkvc cache: lists, verifies and clears the kernel cache. Needs no GPU. */
#include <string.h>

#include "cli.h"
#include "cli_json.h"
#include "cli_table.h"

static int as_json, only_invalid;

static const cli_option options[] = {
    {"json", 0, CLI_FLAG, &as_json, NULL, "ls, verify: one JSON object"},
    {"invalid", 0, CLI_FLAG, &only_invalid, NULL, "clear: only entries that do not verify"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

/* What a walk over the entries gathers. */
typedef struct listing {
  cli_table table;
  cli_json json;
  bool all; /* ls; verify shows the corrupt ones only */
  int64_t entries, bytes, corrupt;
} listing;

static char *format_age(char out[32], int64_t seconds) {
  static const struct {
    int64_t seconds;
    const char *unit;
  } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
  int n = 0;
  while (n < 3 && seconds < units[n].seconds)
    n++;
  snprintf(out, 32, "%lld %s", (long long)(seconds / units[n].seconds), units[n].unit);
  return out;
}

static int visit(const qkv_cache_entry *entry, void *user) {
  listing *l = user;
  l->entries++;
  l->bytes += entry->bytes;
  l->corrupt += !entry->valid;
  if (!l->all && entry->valid)
    return 0;
  if (as_json) {
    json_open(&l->json, NULL, '{');
    json_string(&l->json, "key", entry->key);
    json_string(&l->json, "family", entry->family);
    json_string(&l->json, "arch", entry->arch);
    json_string(&l->json, "schedule", entry->schedule);
    json_integer(&l->json, "bytes", entry->bytes);
    json_integer(&l->json, "age_seconds", entry->age_seconds);
    json_boolean(&l->json, "valid", entry->valid != 0);
    json_close(&l->json, '}');
    return 0;
  }
  char word[32];
  table_cell(&l->table, "%s", entry->key);
  table_cell(&l->table, "%s", entry->family ? entry->family : "");
  table_cell(&l->table, "%s", entry->arch ? entry->arch : "");
  table_cell(&l->table, "%s", format_bytes(word, entry->bytes));
  table_cell(&l->table, "%s", format_age(word, entry->age_seconds));
  table_cell(&l->table, "%s", entry->valid ? "ok" : "CORRUPT");
  table_cell(&l->table, "%s", entry->schedule ? entry->schedule : "");
  table_row(&l->table);
  return 0;
}

static int list(qkv_engine *engine, bool all) {
  static const char *const heads[] = {"key", "family", "arch", ">bytes", ">age", "state", "schedule"};
  listing l = {.json = {.stream = stdout}, .all = all};
  table_start(&l.table, 7, heads);
  if (as_json) {
    json_open(&l.json, NULL, '{');
    json_string(&l.json, "path", qkv_cache_path(engine));
    json_open(&l.json, "entries", '[');
  }
  qkv_status status = qkv_cache_list(engine, visit, &l);
  if (as_json) {
    json_close(&l.json, ']');
    json_integer(&l.json, "count", l.entries);
    json_integer(&l.json, "bytes", l.bytes);
    json_integer(&l.json, "corrupt", l.corrupt);
    json_close(&l.json, '}');
  } else if (!status) {
    char size[32];
    if (l.table.rows)
      table_print(&l.table, stdout);
    printf("%lld entries, %s, %lld corrupt, in %s\n", (long long)l.entries, format_bytes(size, l.bytes),
           (long long)l.corrupt, *qkv_cache_path(engine) ? qkv_cache_path(engine) : "memory");
  }
  table_free(&l.table);
  if (status)
    return cli_fail(NULL, status);
  if (!all && l.corrupt && !as_json)
    cli_note("corrupt entries are never used; 'qkvc cache clear --invalid' removes them");
  return !all && l.corrupt ? EXIT_FAILED : EXIT_OK;
}

static int clear(qkv_engine *engine) {
  int64_t removed = 0;
  qkv_status status = qkv_cache_clear(engine, only_invalid, &removed);
  if (status)
    return cli_fail(NULL, status);
  printf("removed %lld %s\n", (long long)removed, removed == 1 ? "entry" : "entries");
  return EXIT_OK;
}

static int run(int count, char **arguments) {
  (void)count;
  static const char *const actions[] = {"ls", "verify", "clear", "path"};
  int action = 0;
  while (action < 4 && strcmp(arguments[0], actions[action]) != 0)
    action++;
  if (action == 4) {
    const char *near = cli_nearest(arguments[0], actions, 4);
    cli_error("cache does ls, verify, clear or path, not '%s'%s%s%s", arguments[0], near ? "; did you mean " : "",
              near ? near : "", near ? "?" : "");
    return EXIT_USAGE;
  }
  qkv_engine *engine = NULL;
  qkv_status status = cli_open("none", &engine);
  if (status)
    return cli_fail(NULL, status);
  int code = EXIT_OK;
  if (action == 3)
    printf("%s\n", qkv_cache_path(engine));
  else
    code = action == 2 ? clear(engine) : list(engine, action == 0);
  qkv_close(engine);
  return code;
}

const cli_command cli_cache_command = {
    "cache",
    "ls|verify|clear|path",
    "list, verify or clear the kernel cache",
    "  ls      every entry, with its state\n"
    "  verify  the entries that do not verify; exit code 1 when there is one\n"
    "  clear   remove every entry, or with --invalid those that do not verify\n"
    "  path    the directory in use\n\n"
    "Entries are immutable and verified whenever they are read; clearing at any time is safe.",
    options,
    1,
    1,
    run,
    "ls verify clear path"};
