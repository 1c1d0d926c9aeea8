/* cli_pack.c: qkvc pack: what a pack holds, whether it is whole, and how long a start from it takes. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_json.h"
#include "cli_table.h"
#include "qkv_pack.h"

static int as_json;
static int64_t repeats = 5;
static double most_milliseconds;

static const cli_option options[] = {
    {"json", 0, CLI_FLAG, &as_json, NULL, "ls: one JSON object"},
    {"repeats", 'r', CLI_COUNT, &repeats, "N", "time: starts, of which the fastest counts; default 5"},
    {"most", 0, CLI_REAL, &most_milliseconds, "MS", "time: exit code 1 when a start takes more milliseconds"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

/* ---- ls ---- */

typedef struct listing {
  cli_table table;
  cli_json json;
} listing;

static void put_json(cli_json *j, const qkv_pack_entry *e) {
  json_open(j, NULL, '{');
  json_integer(j, "record", e->number);
  json_string(j, "kind", e->kind);
  json_string(j, "key", e->key);
  json_string(j, "name", e->name);
  json_string(j, "arch", e->arch);
  json_string(j, "detail", e->detail);
  json_integer(j, "bytes", e->bytes);
  json_boolean(j, "valid", e->valid != 0);
  json_close(j, '}');
}

static int show(const qkv_pack_entry *e, void *user) {
  listing *l = user;
  char bytes[32];
  if (as_json) {
    put_json(&l->json, e);
    return 0;
  }
  table_cell(&l->table, "%d", e->number);
  table_cell(&l->table, "%s", e->kind);
  table_cell(&l->table, "%s", format_bytes(bytes, e->bytes));
  table_cell(&l->table, "%s", e->valid ? "ok" : "DAMAGED");
  table_cell(&l->table, "%s", e->arch);
  table_cell(&l->table, "%s", e->name);
  table_cell(&l->table, "%s", e->detail);
  table_row(&l->table);
  return 0;
}

static int list(const char *path) {
  static const char *const heads[] = {">record", "kind", ">bytes", "state", "arch", "name", "schedule, compiler"};
  listing l = {.json = {.stream = stdout}};
  qkv_pack_info info = {.size = sizeof info};
  table_start(&l.table, 7, heads);
  if (as_json) {
    json_open(&l.json, NULL, '{');
    json_open(&l.json, "records", '[');
  }
  qkv_status status = qkv_pack_list(path, &info, show, &l);
  if (as_json) {
    json_close(&l.json, ']');
    json_string(&l.json, "version", info.version);
    json_boolean(&l.json, "usable", info.usable != 0);
    json_boolean(&l.json, "same_templates", info.same_templates != 0);
    json_integer(&l.json, "bytes", info.bytes);
    json_integer(&l.json, "damaged", info.damaged);
    json_close(&l.json, '}');
  } else if (!status) {
    char bytes[32];
    if (l.table.rows)
      table_print(&l.table, stdout);
    printf("%s: %d records, %s, %d damaged; made by qkvc %s%s\n", path, info.records, format_bytes(bytes, info.bytes),
           info.damaged, info.version,
           !info.usable           ? ", whose kernels this version does not use"
           : !info.same_templates ? " from other templates"
                                  : "");
  }
  table_free(&l.table);
  if (status)
    return cli_fail(NULL, status);
  return info.damaged ? EXIT_FAILED : EXIT_OK;
}

/* ---- time ---- */

enum { MOST_REQUESTS = 4096 };

/* A request of the pack for the engine's architecture. */
typedef struct request {
  char *spec, *phase, *family, *schedule;
  int64_t batch, len_q;
  bool few;
  bool skipped;               /* recorded without maxima, which its workspace follows from: no op can be made so */
  double parse, lookup, load; /* seconds */
} request;

typedef struct requests {
  qkv_device_info device;
  request *items;
  int count;
} requests;

static char *copy(const char *word) {
  return word ? strdup(word) : NULL;
}

static int gather(const qkv_pack_entry *e, void *user) {
  requests *r = user;
  const bool emulated = e->detail && !strcmp(e->detail, "g++");
  if (strcmp(e->kind, "request") || !e->valid || strcmp(e->arch, r->device.arch) ||
      emulated != !strcmp(r->device.kind, "emu") || r->count == MOST_REQUESTS)
    return 0;
  r->items[r->count++] = (request){.spec = copy(e->spec),
                                   .phase = copy(e->phase),
                                   .family = copy(e->family),
                                   .schedule = copy(e->schedule),
                                   .batch = e->batch,
                                   .len_q = e->len_q,
                                   .few = e->few};
  return 0;
}

/* Prepares what was recorded; maxima of any value are such that workspaces have a size. */
static qkv_status prepare(qkv_engine *engine, request *r) {
  qkv_limits l = QKV_LIMITS_INIT;
  l.phase = r->phase;
  l.family = r->family;
  l.schedule = r->schedule;
  l.batch = r->batch >= 0 ? r->batch : 16;
  l.len_q = r->len_q >= 0 ? r->len_q : r->few ? 1 : 4096;
  l.len_k = 8192;
  qkv_spec *spec = NULL;
  qkv_op *op = NULL;
  qkv_counters before = {.size = sizeof before}, after = {.size = sizeof after};
  qkv_get_counters(engine, &before);
  const double start = cli_seconds();
  qkv_status status = qkv_spec_from_pack(engine, r->spec, &spec);
  const double parsed = cli_seconds();
  if (!status)
    status = qkv_prepare(engine, spec, &l, &op);
  const double end = cli_seconds();
  qkv_get_counters(engine, &after);
  r->parse = parsed - start;
  r->load = after.load_seconds - before.load_seconds;
  r->lookup = end - parsed - r->load;
  qkv_op_free(op);
  qkv_spec_free(spec);
  r->skipped = status == QKV_INVALID_ARGUMENT && spec && (r->batch == 0 || r->len_q == 0);
  return r->skipped ? QKV_OK : status;
}

/* One start: reads the pack, prepares every request. *total: seconds without those of opening the device. */
static qkv_status start_once(const char *path, requests *r, double *read, double *total, uint64_t *renders) {
  qkv_options o = cli_engine_options(cli_global.device);
  const char *const none[] = {NULL};
  qkv_engine *engine = NULL;
  o.disable_jit = 1;
  o.cache_dir = "";
  o.packs = none;
  qkv_status status = qkv_open(&o, &engine);
  const double start = cli_seconds();
  if (!status)
    status = qkv_pack_load(engine, path);
  *read = cli_seconds() - start;
  for (int n = 0; n < r->count && !status; n++)
    status = prepare(engine, &r->items[n]);
  *total = cli_seconds() - start;
  if (engine) {
    qkv_counters counters = {.size = sizeof counters};
    qkv_get_counters(engine, &counters);
    *renders = counters.renders;
  }
  qkv_close(engine);
  return status;
}

static void show_times(const requests *r, double read, double total, uint64_t renders) {
  static const char *const heads[] = {"spec", "phase", ">spec ms", ">lookup ms", ">images ms"};
  cli_table t;
  double parse = 0, lookup = 0, load = 0;
  table_start(&t, 5, heads);
  for (int n = 0; n < r->count; n++) {
    const request *q = &r->items[n];
    if (q->skipped)
      continue;
    table_cell(&t, "%s", q->spec);
    table_cell(&t, "%s", q->phase ? q->phase : "both");
    table_cell(&t, "%.3f", 1e3 * q->parse);
    table_cell(&t, "%.3f", 1e3 * q->lookup);
    table_cell(&t, "%.3f", 1e3 * q->load);
    table_row(&t);
    parse += q->parse, lookup += q->lookup, load += q->load;
  }
  if (t.rows)
    table_print(&t, stdout);
  printf("\n%d requests in %.2f ms: reading the pack %.2f, specs %.2f, lookup %.2f, images %.2f; %llu sources "
         "rendered\n",
         t.rows, 1e3 * total, 1e3 * read, 1e3 * parse, 1e3 * lookup, 1e3 * load, (unsigned long long)renders);
  table_free(&t);
}

static int time_starts(const char *path) {
  requests r = {.device = {.size = sizeof r.device}, .items = calloc(MOST_REQUESTS, sizeof *r.items)};
  qkv_engine *engine = NULL;
  double best = -1, best_read = 0;
  uint64_t renders = 0;
  qkv_status status = r.items ? cli_open(NULL, &engine) : QKV_OUT_OF_MEMORY;
  if (!status)
    status = qkv_device_get_info(engine, &r.device);
  if (!status)
    status = qkv_pack_list(path, NULL, gather, &r);
  qkv_close(engine);
  for (int64_t n = 0; n < (repeats ? repeats : 1) && !status && r.count; n++) {
    double read, total;
    status = start_once(path, &r, &read, &total, &renders);
    if (!status && (best < 0 || total < best))
      best = total, best_read = read;
  }
  int code = status ? cli_fail(NULL, status) : EXIT_OK;
  if (!code && !r.count) {
    cli_error("%s has no request for %s (%s)", path, r.device.arch, r.device.kind);
    code = EXIT_FAILED;
  } else if (!code) {
    show_times(&r, best_read, best, renders);
    if (most_milliseconds > 0 && 1e3 * best > most_milliseconds) {
      cli_error("a start takes %.2f ms, more than %g", 1e3 * best, most_milliseconds);
      code = EXIT_FAILED;
    }
  }
  for (int n = 0; n < r.count; n++)
    free(r.items[n].spec), free(r.items[n].phase), free(r.items[n].family), free(r.items[n].schedule);
  free(r.items);
  return code;
}

static int run(int count, char **arguments) {
  static const char *const actions[] = {"ls", "time"}, *const taken[] = {" json ", " repeats most "};
  (void)count;
  for (int n = 0; n < 2; n++)
    if (!strcmp(arguments[0], actions[n]))
      return !cli_takes(&cli_pack_command, actions[n], taken[n]) ? EXIT_USAGE
             : n                                                 ? time_starts(arguments[1])
                                                                 : list(arguments[1]);
  const char *near = cli_nearest(arguments[0], actions, 2);
  cli_error("pack does ls or time, not '%s'%s%s%s", arguments[0], near ? "; did you mean " : "", near ? near : "",
            near ? "?" : "");
  return EXIT_USAGE;
}

const cli_command cli_pack_command = {
    "pack",
    "ls|time FILE",
    "show and verify a pack, time a start from it",
    "  ls    every record, verified; exit code 1 when one is damaged. Needs no GPU\n"
    "  time  reads the pack and prepares everything that it has for the device, without a cache and with compiling\n"
    "        disabled: milliseconds of the fastest of several starts; the rows are of the last one\n\n"
    "qkvc bundle makes packs.",
    options,
    2,
    2,
    run,
    "ls time"};
