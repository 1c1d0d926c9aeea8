/* cli_cache.c: qkvc cache: lists, verifies, limits, exports and clears the kernel cache. Needs no GPU. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_json.h"
#include "cli_table.h"
#include "qkv_pack.h"

static int as_json, only_invalid, dry_run;
static int64_t max_bytes = -1;
static const char *older_than, *family, *output;

static const cli_option options[] = {
    {"json", 0, CLI_FLAG, &as_json, NULL, "ls, verify, gc, export: one JSON object"},
    {"max-bytes", 0, CLI_COUNT, &max_bytes, "N", "gc: leave at most N bytes; default: QKV_CACHE_MAX_BYTES, else 1 GiB"},
    {"older-than", 0, CLI_TEXT, &older_than, "AGE", "gc: also what nobody used for AGE: 90s, 20min, 12h, 30d"},
    {"dry-run", 0, CLI_FLAG, &dry_run, NULL, "gc: only say what would go"},
    {"output", 'o', CLI_TEXT, &output, "DIR", "export: where to"},
    {"family", 0, CLI_TEXT, &family, "NAME", "export: kernels of this family alone"},
    {"invalid", 0, CLI_FLAG, &only_invalid, NULL, "clear: only entries that do not verify"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

static const struct unit {
  int64_t seconds;
  const char *name;
} units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
enum { UNITS = sizeof units / sizeof *units };

/* What a walk over the entries gathers. */
typedef struct listing {
  cli_table table;
  cli_json json;
  bool all; /* ls; verify shows the corrupt ones only */
  int64_t entries, bytes, corrupt;
} listing;

static char *format_age(char out[32], int64_t seconds) {
  int n = 0;
  while (n < UNITS - 1 && seconds < units[n].seconds)
    n++;
  snprintf(out, 32, "%lld %s", (long long)(seconds / units[n].seconds), units[n].name);
  return out;
}

/* "30d", "12 h" to seconds; false when it is no age. */
static bool parse_age(const char *word, int64_t *seconds) {
  char *end;
  double count = strtod(word, &end);
  while (*end == ' ')
    end++;
  for (int n = 0; n < UNITS; n++)
    if (end != word && !strcmp(end, units[n].name) && count >= 0 && count < 1e9) {
      *seconds = (int64_t)(count * (double)units[n].seconds);
      return true;
    }
  return false;
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
    json_boolean(&l->json, "newer", entry->newer != 0);
    json_close(&l->json, '}');
    return 0;
  }
  char word[32];
  table_cell(&l->table, "%s", entry->key);
  table_cell(&l->table, "%s", entry->family ? entry->family : "");
  table_cell(&l->table, "%s", entry->arch ? entry->arch : "");
  table_cell(&l->table, "%s", format_bytes(word, entry->bytes));
  table_cell(&l->table, "%s", format_age(word, entry->age_seconds));
  table_cell(&l->table, "%s", entry->newer ? "newer" : entry->valid ? "ok" : "CORRUPT");
  table_cell(&l->table, "%s", entry->schedule ? entry->schedule : "");
  table_row(&l->table);
  return 0;
}

static const char *place(qkv_engine *engine) {
  return *qkv_cache_path(engine) ? qkv_cache_path(engine) : "memory";
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
           (long long)l.corrupt, place(engine));
  }
  table_free(&l.table);
  if (status)
    return cli_fail(NULL, status);
  if (!all && l.corrupt && !as_json)
    cli_note("corrupt entries are never used; 'qkvc cache clear --invalid' removes them");
  return !all && l.corrupt ? EXIT_FAILED : EXIT_OK;
}

static int list_all(qkv_engine *engine, int count, char **arguments) {
  (void)count, (void)arguments;
  return list(engine, true);
}

static int list_corrupt(qkv_engine *engine, int count, char **arguments) {
  (void)count, (void)arguments;
  return list(engine, false);
}

static int clear(qkv_engine *engine, int count, char **arguments) {
  (void)count, (void)arguments;
  int64_t removed = 0;
  qkv_status status = qkv_cache_clear(engine, only_invalid, &removed);
  if (status)
    return cli_fail(NULL, status);
  printf("removed %lld %s\n", (long long)removed, removed == 1 ? "entry" : "entries");
  return EXIT_OK;
}

static int print_path(qkv_engine *engine, int count, char **arguments) {
  (void)count, (void)arguments;
  printf("%s\n", qkv_cache_path(engine));
  return EXIT_OK;
}

static void print_gc(qkv_engine *engine, const qkv_cache_gc_report *r) {
  char gone[32], left[32];
  if (as_json) {
    cli_json json = {.stream = stdout};
    json_open(&json, NULL, '{');
    json_string(&json, "path", qkv_cache_path(engine));
    json_boolean(&json, "dry_run", dry_run != 0);
    json_integer(&json, "removed", r->removed);
    json_integer(&json, "removed_bytes", r->removed_bytes);
    json_integer(&json, "count", r->entries);
    json_integer(&json, "bytes", r->bytes);
    json_integer(&json, "in_use", r->in_use);
    json_close(&json, '}');
    return;
  }
  printf("%s %lld %s, %s; %lld of %s %s in %s\n", dry_run ? "would remove" : "removed", (long long)r->removed,
         r->removed == 1 ? "entry" : "entries", format_bytes(gone, r->removed_bytes), (long long)r->entries,
         format_bytes(left, r->bytes), dry_run ? "would be left" : "left", place(engine));
  if (r->in_use)
    cli_note("%lld more would go, but are in use; 'qkvc cache clear' removes all", (long long)r->in_use);
}

static int gc(qkv_engine *engine, int count, char **arguments) {
  (void)count, (void)arguments;
  qkv_cache_gc_options o = QKV_CACHE_GC_OPTIONS_INIT;
  qkv_cache_gc_report report = {.size = sizeof report};
  o.max_bytes = max_bytes;
  o.dry_run = dry_run;
  if (older_than && !parse_age(older_than, &o.older_than)) {
    cli_error("--older-than %s: a number and s, min, h or d, such as 30d", older_than);
    return EXIT_USAGE;
  }
  qkv_status status = qkv_cache_gc(engine, &o, &report);
  if (status)
    return cli_fail(NULL, status);
  print_gc(engine, &report);
  return EXIT_OK;
}

/* Loads the specs; how many, fewer than all with the exit code in *code. */
static int load_specs(qkv_engine *engine, int count, char **paths, const qkv_spec **specs, int *code) {
  for (int n = 0; n < count; n++) {
    qkv_spec *loaded = NULL;
    qkv_status status = qkv_spec_load(engine, paths[n], &loaded);
    if (status) {
      *code = cli_fail_spec(paths[n], status);
      return n;
    }
    specs[n] = loaded;
  }
  return count;
}

static int export_selected(qkv_engine *engine, const qkv_cache_filter *filter) {
  int64_t copied = 0, invalid = 0;
  qkv_status status = qkv_cache_export(engine, filter, output, &copied, &invalid);
  if (status)
    return cli_fail(NULL, status);
  if (as_json) {
    cli_json json = {.stream = stdout};
    json_open(&json, NULL, '{');
    json_string(&json, "path", qkv_cache_path(engine));
    json_string(&json, "output", output);
    json_integer(&json, "exported", copied);
    json_integer(&json, "corrupt", invalid);
    json_close(&json, '}');
  } else {
    printf("exported %lld %s to %s\n", (long long)copied, copied == 1 ? "entry" : "entries", output);
  }
  if (invalid)
    cli_warning("%lld corrupt %s left out", (long long)invalid, invalid == 1 ? "entry was" : "entries were");
  if (!copied)
    cli_warning("no entry of %s was chosen", place(engine));
  return copied ? EXIT_OK : EXIT_FAILED;
}

static int export_entries(qkv_engine *engine, int count, char **arguments) {
  if (!output) {
    cli_error("cache export needs a directory to write to: --output DIR");
    return EXIT_USAGE;
  }
  const qkv_spec **specs = calloc((size_t)count + 1, sizeof *specs);
  if (!specs)
    return cli_fail(NULL, QKV_OUT_OF_MEMORY);
  int code = EXIT_OK, loaded = load_specs(engine, count, arguments, specs, &code);
  qkv_cache_filter filter = QKV_CACHE_FILTER_INIT;
  filter.arch = cli_global.arch;
  filter.family = family;
  filter.specs = specs;
  filter.nspecs = count;
  if (loaded == count)
    code = export_selected(engine, &filter);
  for (int n = 0; n < loaded; n++)
    qkv_spec_free((qkv_spec *)(uintptr_t)specs[n]);
  free(specs);
  return code;
}

/* ---- What cache does ---- */

static const struct action {
  const char *name;
  const char *options; /* those of this command that it takes, blank separated */
  int takes_specs;
  int (*run)(qkv_engine *engine, int count, char **arguments);
} actions[] = {{"ls", " json ", 0, list_all},
               {"verify", " json ", 0, list_corrupt},
               {"gc", " json max-bytes older-than dry-run ", 0, gc},
               {"path", " ", 0, print_path},
               {"export", " json output family ", 1, export_entries},
               {"clear", " invalid ", 0, clear}};
enum { ACTIONS = sizeof actions / sizeof *actions };

static const struct action *find_action(const char *word) {
  const char *names[ACTIONS];
  for (int n = 0; n < ACTIONS; n++) {
    if (!strcmp(word, actions[n].name))
      return &actions[n];
    names[n] = actions[n].name;
  }
  const char *near = cli_nearest(word, names, ACTIONS);
  cli_error("cache does ls, verify, gc, path, export or clear, not '%s'%s%s%s", word, near ? "; did you mean " : "",
            near ? near : "", near ? "?" : "");
  return NULL;
}

/* An option of another action is refused: "cache clear --dry-run" must not clear. */
static bool takes_given(const struct action *a, int count, char **arguments) {
  if (!cli_takes(&cli_cache_command, a->name, a->options))
    return false;
  if (count && !a->takes_specs)
    cli_error("cache %s takes no argument; '%s' is too many", a->name, arguments[0]);
  return !count || a->takes_specs;
}

static int run(int count, char **arguments) {
  const struct action *action = find_action(arguments[0]);
  if (!action || !takes_given(action, count - 1, arguments + 1))
    return EXIT_USAGE;
  qkv_engine *engine = NULL;
  qkv_status status = cli_open("none", &engine);
  if (status)
    return cli_fail(NULL, status);
  int code = action->run(engine, count - 1, arguments + 1);
  qkv_close(engine);
  return code;
}

const cli_command cli_cache_command = {
    "cache",
    "ls|verify|gc|path|export|clear [SPEC...]",
    "list, verify, limit or export the kernel cache",
    "  ls      every entry, with its state: ok, CORRUPT, or newer: of a later version's format, which is left alone\n"
    "  verify  the entries that do not verify; exit code 1 when there is one\n"
    "  gc      remove the entries used longest ago until the cache is within its limit; never one in use: loaded by\n"
    "          a living process of this host, or used by anybody within ten minutes (network file systems: a day)\n"
    "  path    the directory in use\n"
    "  export  copy verified entries to --output DIR, which then serves as QKV_CACHE_DIR anywhere, also read-only:\n"
    "          all, or those of SPEC..., --arch, --family; exit code 1 when there are none\n"
    "  clear   remove every entry, in use or not, or with --invalid those that do not verify\n\n"
    "Entries are immutable and verified whenever they are read, and loaded kernels are in memory: removing files at\n"
    "any time is safe. docs/cache.md says what is guaranteed.",
    options,
    1,
    -1,
    run,
    "ls verify gc path export clear"};
