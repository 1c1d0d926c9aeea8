/* cli_mask.c: qkvc explain --mask: gathers a mask's tiles from the library and says what they are. */
#include "cli_mask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_json.h"
#include "cli_kernel.h"

/* At most as many queries and keys are drawn one by one. */
enum { MOST_ROWS = 48, MOST_COLUMNS = 96 };

const mask_words mask_class_words[MASK_CLASSES] = {
    [MASK_SKIPPED] = {"skipped", "no key is visible; not looked at"},
    [MASK_FULL] = {"full", "every key is visible; no mask is evaluated"},
    [MASK_PARTIAL] = {"partial", "some keys are visible; the mask is evaluated"},
    [MASK_WASTED] = {"wasted", "visited although no key is visible"},
    [MASK_GUARDED] = {"guarded", "every key is visible, the mask is evaluated all the same"},
};

mask_class mask_class_at(const mask_view *v, int64_t row, int64_t column) {
  int64_t n = row * v->map.columns + column;
  unsigned planned = v->map.planned[n], actual = v->map.actual ? v->map.actual[n] : QKV_TILE_PARTIAL;
  if (planned == QKV_TILE_SKIPPED)
    return MASK_SKIPPED;
  if (planned == QKV_TILE_FULL)
    return MASK_FULL;
  return actual == QKV_TILE_SKIPPED ? MASK_WASTED : actual == QKV_TILE_FULL ? MASK_GUARDED : MASK_PARTIAL;
}

/* ---- Gathering ---- */

/* "128x64" or "128" for both. */
static int parse_tile(const char *word, qkv_mask_map *map) {
  char first[32];
  const char *cross = strchr(word, 'x');
  snprintf(first, sizeof first, "%.*s", (int)(cross ? cross - word : (long)strlen(word)), word);
  if (cli_parse_count(first, &map->tile_q) && cli_parse_count(cross ? cross + 1 : first, &map->tile_k) &&
      map->tile_q > 0 && map->tile_k > 0)
    return EXIT_OK;
  cli_error("--tile takes queries x keys, such as 128x64, not '%s'", word);
  return EXIT_USAGE;
}

static int open_view(mask_view *v, const char *path, const mask_request *r) {
  const int code = problem_open(&v->problem, path, &r->problem);
  return code ? code : problem_fill_params(&v->problem, &r->problem);
}

/* Small masks are shown pair by pair. */
static int ask_pairs(mask_view *v, const qkv_attention_args *args) {
  const problem *p = &v->problem;
  if (p->len_q > MOST_ROWS || p->len_k > MOST_COLUMNS)
    return EXIT_OK;
  v->pairs = malloc((size_t)(p->len_q * p->len_k) + 1);
  if (!v->pairs) {
    cli_error("out of memory");
    return EXIT_FAILED;
  }
  qkv_status status = qkv_visible(p->spec, args, v->map.batch, v->map.head, v->pairs);
  return status ? cli_fail(p->info.name, status) : EXIT_OK;
}

static int map_view(mask_view *v, const mask_request *r) {
  problem *p = &v->problem;
  qkv_build_options build = cli_kernel_build_options(cli_global.arch);
  qkv_attention_args args = problem_mask_args(p);
  v->map = (qkv_mask_map){.size = sizeof v->map, .batch = r->entry, .head = r->head, .most = r->exact ? 1e18 : 0};
  int code = r->tile ? parse_tile(r->tile, &v->map) : EXIT_OK;
  if (code)
    return code;
  cli_progress("asking the mask");
  qkv_status status = qkv_map_mask(p->engine, p->spec, &build, &args, &v->map);
  cli_progress_end();
  if (status)
    return cli_fail(p->info.name, status);
  for (int64_t row = 0; row < v->map.rows; row++)
    for (int64_t column = 0; column < v->map.columns; column++)
      v->counts[mask_class_at(v, row, column)]++;
  double visited = (double)(v->map.rows * v->map.columns - v->counts[MASK_SKIPPED]);
  double multiplied = visited * (double)v->map.tile_q * (double)v->map.tile_k;
  v->useful = v->map.visible < 0 || multiplied <= 0 ? -1 : v->map.visible / multiplied;
  return ask_pairs(v, &args);
}

/* ---- Text and JSON ---- */

static double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

static void print_numbers(const mask_view *v) {
  const problem *p = &v->problem;
  double tiles = (double)v->map.rows * (double)v->map.columns, all = (double)p->len_q * (double)p->len_k;
  printf("tiles of %lld queries by %lld keys", (long long)v->map.tile_q, (long long)v->map.tile_k);
  if (v->map.dilation > 1)
    printf(" of one residue modulo %lld", (long long)v->map.dilation);
  printf(": %.0f\n", tiles);
  for (int c = 0; c < MASK_CLASSES; c++)
    if (v->counts[c] || c < MASK_WASTED)
      printf("  %-8s %10lld  %5.1f %%  %s\n", mask_class_words[c].name, (long long)v->counts[c],
             percent((double)v->counts[c], tiles), mask_class_words[c].meaning);
  if (v->map.visible >= 0)
    printf("visible pairs: %.0f of %.0f, %.1f %%; of those multiplied %.1f %%\n", v->map.visible, all,
           percent(v->map.visible, all), v->useful >= 0 ? 100 * v->useful : 0);
  else
    printf("visible pairs: not counted, %.0f are too many to ask one by one; --exact does\n", all);
}

static void print_lines(const char *lines) {
  for (const char *line = lines; *line;) {
    size_t length = strcspn(line, "\n");
    printf("  %.*s\n", (int)length, line);
    line += length + (line[length] == '\n');
  }
}

static bool is_utf8(void) {
  static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
  for (int n = 0; n < 3; n++) {
    const char *value = getenv(names[n]);
    if (value && *value)
      return strstr(value, "UTF-8") || strstr(value, "utf8") || strstr(value, "UTF8") || strstr(value, "utf-8");
  }
  return false;
}

static void print_text(const mask_view *v, const mask_request *r) {
  const problem *p = &v->problem;
  printf("%s: mask of query head %lld of %d, entry %lld of %lld, q %lld, kv %lld\n", p->info.name,
         (long long)v->map.head, p->info.heads_q, (long long)v->map.batch, (long long)p->batch, (long long)p->len_q,
         (long long)p->len_k);
  print_lines(v->map.analysis);
  print_numbers(v);
  mask_draw(v, r->ascii || !is_utf8(), stdout);
}

/* "form: rows" lines as an array of {name, value}: some names occur more than once. */
static void json_analysis(cli_json *j, const char *lines) {
  json_open(j, "analysis", '[');
  for (const char *line = lines; *line;) {
    size_t length = strcspn(line, "\n");
    const char *colon = strstr(line, ": ");
    char *text = colon && colon < line + length ? strndup(line, length) : NULL;
    if (text) {
      text[colon - line] = '\0';
      json_open(j, NULL, '{');
      json_string(j, "name", text);
      json_string(j, "value", text + (colon - line) + 2);
      json_close(j, '}');
    }
    free(text);
    line += length + (line[length] == '\n');
  }
  json_close(j, ']');
}

/* A row of tiles a string, a digit of qkv_tile a tile. */
static void json_tiles(cli_json *j, const char *key, const mask_view *v, const unsigned char *tiles) {
  char *row = tiles ? malloc((size_t)v->map.columns + 1) : NULL;
  if (!row) {
    json_string(j, key, NULL);
    return;
  }
  json_open(j, key, '[');
  for (int64_t y = 0; y < v->map.rows; y++) {
    for (int64_t x = 0; x < v->map.columns; x++)
      row[x] = (char)('0' + tiles[y * v->map.columns + x]);
    row[v->map.columns] = '\0';
    json_string(j, NULL, row);
  }
  json_close(j, ']');
  free(row);
}

static void print_json(const mask_view *v) {
  cli_json j = {.stream = stdout};
  const problem *p = &v->problem;
  json_open(&j, NULL, '{');
  json_string(&j, "spec", p->info.name);
  json_integer(&j, "batch", p->batch);
  json_integer(&j, "q", p->len_q);
  json_integer(&j, "kv", p->len_k);
  json_integer(&j, "entry", v->map.batch);
  json_integer(&j, "head", v->map.head);
  json_integer(&j, "tile_q", v->map.tile_q);
  json_integer(&j, "tile_k", v->map.tile_k);
  json_integer(&j, "dilation", v->map.dilation);
  json_analysis(&j, v->map.analysis);
  json_open(&j, "tiles", '{');
  for (int c = 0; c < MASK_CLASSES; c++)
    json_integer(&j, mask_class_words[c].name, v->counts[c]);
  json_close(&j, '}');
  json_real(&j, "visible_pairs", v->map.visible >= 0 ? v->map.visible : NAN);
  json_real(&j, "useful", v->useful >= 0 ? v->useful : NAN);
  json_tiles(&j, "planned", v, v->map.planned);
  json_tiles(&j, "actual", v, v->map.actual);
  json_close(&j, '}');
}

static void write_svg(FILE *out, const void *view) {
  mask_draw_svg(view, out);
}

int cli_mask_explain(const char *path, const mask_request *r) {
  mask_view *v = calloc(1, sizeof *v);
  if (!v) {
    cli_error("out of memory");
    return EXIT_FAILED;
  }
  int code = open_view(v, path, r);
  if (!code)
    code = map_view(v, r);
  if (!code && r->svg)
    code = cli_write_file(r->svg, write_svg, v);
  if (!code && r->json)
    print_json(v);
  else if (!code)
    print_text(v, r);
  qkv_mask_map_free(&v->map);
  problem_free(&v->problem);
  free(v->pairs);
  free(v);
  return code;
}
