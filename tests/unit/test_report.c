/* Reports: statistics, groups, and pages from random tables: whatever their cells hold, a page or a message comes out.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli.h"
#include "report.h"

cli_globals cli_global; /* of cli_options.c, which needs all commands */

static void rank_correlation(void **state) {
  (void)state;
  const double x[] = {1, 2, 3, 4, 5}, up[] = {10, 20, 21, 400, 401}, down[] = {5, 4, 3, 2, 1}, flat[] = {7, 7, 7, 7, 7},
               ties[] = {1, 1, 2, 2, 3};
  assert_true(fabs(report_rank_correlation(5, x, up) - 1) < 1e-12);
  assert_true(fabs(report_rank_correlation(5, x, down) + 1) < 1e-12);
  assert_true(fabs(report_rank_correlation(5, x, ties) - 9 / sqrt(90)) < 1e-12); /* ranks 1.5 1.5 3.5 3.5 5 */
  assert_true(isnan(report_rank_correlation(5, x, flat)));
  assert_true(isnan(report_rank_correlation(2, x, up)));
}

static void geometric_mean(void **state) {
  (void)state;
  assert_true(fabs(report_geometric_mean(2, (double[]){2, 8}) - 4) < 1e-12);
  assert_true(isnan(report_geometric_mean(0, NULL)));
}

static void groups(void **state) {
  (void)state;
  report_groups g = {0};
  static char labels[500][8];
  assert_null(groups_find(&g, "x"));
  for (int n = 0; n < 5000; n++) {
    const int label = n * 7 % 500;
    snprintf(labels[label], sizeof *labels, "g%d", label);
    groups_add(&g, labels[label], n);
  }
  assert_int_equal(g.count, 500);
  for (int k = 0; k < 500; k++) {
    const report_group *group = groups_find(&g, labels[k]);
    assert_non_null(group);
    assert_int_equal(group->count, 10);
    for (int n = 0; n < 10; n++)
      assert_int_equal(group->rows[n] * 7 % 500, k);
  }
  groups_free(&g);
}

/* A page and JSON of one table; the page in *text, freed by the caller. NULL: refused, with a message in error. */
static char *make_page(const char *csv, bool as_peers, char error[REPORT_ERROR_SIZE]) {
  report r = {.title = "t", .peak = NAN, .bandwidth = NAN};
  csv_table t;
  char *text = NULL, *json = NULL;
  size_t length;
  if (csv_parse("f", csv, strlen(csv), &t, error) && report_add(&r, &t, as_peers, error) && report_finish(&r, error)) {
    FILE *out = open_memstream(&text, &length);
    report_page(&r, out);
    fclose(out);
    out = open_memstream(&json, &length);
    report_write_json(&r, out);
    fclose(out);
    free(json);
  }
  report_free(&r);
  return text;
}

static const char *const heads[] = {
    "spec",          "workload", "case",     "lengths", "phase",     "family",      "schedule",  "source",
    "contestant",    "status",   "gpu",      "mask",    "dtype",     "batch",       "q",         "kv",
    "length",        "heads_q",  "heads_kv", "dim",     "median_us", "us",          "p10_us",    "p90_us",
    "model_seconds", "flops",    "bytes",    "tflops",  "tbps",      "peak_tflops", "peak_gbps", "ratio",
    "fa3",           "fa3_p10",  "fa3_p90",  "x_us",    "default"};
static const char *const words[] = {"",
                                    "",
                                    "1",
                                    "2",
                                    "3.5",
                                    "1024",
                                    "4096",
                                    "a",
                                    "b",
                                    "qkv",
                                    "ok",
                                    "wrong",
                                    "<&>\"'",
                                    "tile_m=64,stages=2",
                                    "tile_m=128,stages=3",
                                    "bf16",
                                    "f32",
                                    "1e-29",
                                    "1e29"};
static const char *const hostile[] = {"nan", "inf", "-1", "1e999", "0", "\xFF\x01", "=,=,", "1e-400", "0x10", " 1"};
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static uint64_t draw(uint64_t *state, uint64_t below) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (*state >> 33) % below;
}

/* Cells that fit their column more often than not, so that sections have something to show. */
static const char *random_cell(uint64_t *random, size_t column, bool wild) {
  static const char *const numbers[] = {"1", "2", "64", "1024", "4096", "3.5", "1e-29", "1e29", ""};
  if (wild && !draw(random, 40))
    return hostile[draw(random, COUNT_OF(hostile))];
  const bool whole = column >= 13 && column <= 19, number = column > 19;
  if (whole)
    return numbers[draw(random, 5)];
  return number ? numbers[draw(random, COUNT_OF(numbers))] : words[draw(random, COUNT_OF(words))];
}

static void random_tables(void **state) {
  (void)state;
  uint64_t random = 99;
  int pages = 0, refused = 0;
  for (int turn = 0; turn < 3000; turn++) {
    char *csv = NULL, error[REPORT_ERROR_SIZE] = "";
    size_t length, columns[COUNT_OF(heads)], count = 0;
    FILE *out = open_memstream(&csv, &length);
    for (size_t c = 0; c < COUNT_OF(heads); c++)
      if (draw(&random, 3)) {
        fprintf(out, "%s%s", count ? "," : "", heads[c]);
        columns[count++] = c;
      }
    for (uint64_t row = draw(&random, 30); row; row--)
      for (size_t c = 0; c < count; c++) {
        fputs(c ? "," : "\n", out);
        csv_write(out, random_cell(&random, columns[c], turn & 1));
      }
    fclose(out);
    char *page = make_page(csv, turn % 3 == 0, error);
    if (!page && strncmp(error, "f:", 2) != 0)
      fail_msg("turn %d: refused without a place: '%s'\n%s", turn, error, csv);
    if (page && (strstr(page, "=\"nan") || strstr(page, "=\"-nan") || strstr(page, "inf\"") ||
                 strstr(page, "<td>nan") || strstr(page, "<td>-nan")))
      fail_msg("turn %d: not a number in the page of\n%s", turn, csv);
    pages += page != NULL;
    refused += page == NULL;
    free(page);
    free(csv);
  }
  assert_true(pages > 500 && refused > 500);
}

/* The section of a page that has an id, cut out; freed by the caller. */
static char *section(const char *page, const char *id) {
  char start[64];
  snprintf(start, sizeof start, "<section id=\"%s\">", id);
  const char *from = strstr(page, start), *to = from ? strstr(from, "</section>") : NULL;
  assert_true(from && to);
  return strndup(from, (size_t)(to - from));
}

static void ratios(void **state) {
  (void)state;
  char error[REPORT_ERROR_SIZE] = "";
  char *page =
      make_page("workload,contestant,seconds,batch\nw,qkv,2e-6,4\nw,slow,3e-6,4\nw,other,9e-6,5\n", true, error);
  if (!page)
    fail_msg("%s", error);
  char *text = section(page, "ratio");
  assert_non_null(strstr(text, "<td class=\"t\">slow</td><td>3</td><td>1.5</td>"));
  assert_non_null(strstr(text, "1 rows of peers have no row of ours beside them, such as w of other."));
  free(text);
  free(page);
  page = make_page("spec,workload,contestant,seconds\na,w,qkv,1\nb,w,qkv,2\n,w,peer,3\n", true, error);
  assert_null(page);
  assert_string_equal(error, "f:4: workload 'w' is one of a and of b: a column spec has to say of which");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(rank_correlation), cmocka_unit_test(geometric_mean),
                                     cmocka_unit_test(groups), cmocka_unit_test(random_tables),
                                     cmocka_unit_test(ratios)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
