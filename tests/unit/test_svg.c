/* Plots: ticks and scales on random ranges, numbers as people read them, text that no XML reader stumbles over. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "svg.h"

static double uniform(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(*state >> 11) / 9007199254740992.0;
}

/* Whatever the data: an axis has 1 to SVG_TICKS ticks, ascending, on the axis; its data lie on it; scales are monotone.
 */
static void axes_of_random_ranges(void **state) {
  (void)state;
  uint64_t random = 7;
  for (int turn = 0; turn < 20000; turn++) {
    svg_axis a = {.unit = (svg_unit)(turn % 3), .logarithmic = turn & 1, .from = 50, .to = 900};
    const double least = pow(10, 60 * uniform(&random) - 30),
                 most = least * (turn % 5 ? pow(10, 6 * uniform(&random)) : 1);
    double ticks[SVG_TICKS];
    svg_fit(&a, least, most);
    const int count = svg_ticks(&a, ticks);
    const double slack = 1e-6 * (a.most - a.least);
    if (!(count >= 1 && count <= SVG_TICKS) || !(a.least <= least * (1 + 1e-9)) || !(a.most >= most * (1 - 1e-9)))
      fail_msg("turn %d: %g to %g: axis %g to %g with %d ticks", turn, least, most, a.least, a.most, count);
    for (int n = 0; n < count; n++)
      if (!(ticks[n] >= a.least - slack) || !(ticks[n] <= a.most + slack) || (n && ticks[n] <= ticks[n - 1]))
        fail_msg("turn %d: %g to %g: tick %d is %g", turn, least, most, n, ticks[n]);
    assert_true(svg_at(&a, most) >= svg_at(&a, least));
    assert_true(svg_at(&a, least) >= 50 - 1e-3 && svg_at(&a, most) <= 900 + 1e-3);
  }
}

static void odd_ranges(void **state) {
  (void)state;
  const double ranges[][2] = {{NAN, NAN}, {INFINITY, 0}, {0, 0}, {-INFINITY, INFINITY}, {5, 5}, {1e300, 1e308}, {3, 2}};
  for (size_t n = 0; n < sizeof ranges / sizeof *ranges; n++)
    for (int logarithmic = 0; logarithmic < 2; logarithmic++) {
      svg_axis a = {.logarithmic = logarithmic, .from = 0, .to = 100};
      double ticks[SVG_TICKS];
      svg_fit(&a, ranges[n][0], ranges[n][1]);
      const int count = svg_ticks(&a, ticks);
      assert_true(count >= 1 && count <= SVG_TICKS);
      for (int t = 0; t < count; t++)
        assert_true(isfinite(ticks[t]) && isfinite(svg_at(&a, ticks[t])));
    }
  svg_axis a = {.logarithmic = true, .from = 0, .to = 100};
  svg_fit(&a, 1, 10);
  assert_true(isnan(svg_at(&a, 0)) && isnan(svg_at(&a, -1)) && isnan(svg_at(&a, NAN)) && isnan(svg_at(&a, INFINITY)));
}

static void tick_values(void **state) {
  (void)state;
  const struct {
    svg_axis axis;
    double least, most;
    const char *labels;
  } cases[] = {{{.unit = SVG_TOKENS, .logarithmic = true}, 512, 16384, "512 1k 2k 4k 8k 16k "},
               {{.unit = SVG_TOKENS, .logarithmic = true}, 1024, 131072, "1k 2k 4k 8k 16k 32k 64k 128k "},
               {{.unit = SVG_TOKENS, .logarithmic = true}, 1, 1 << 20, "1 8 64 512 4k 32k 256k "},
               {{.unit = SVG_PLAIN, .logarithmic = true}, 1, 1000, "1 3 10 30 100 300 1000 "},
               {{.unit = SVG_SECONDS, .logarithmic = true},
                1e-6,
                1e-4,
                "1 \xC2\xB5s 2 \xC2\xB5s 5 \xC2\xB5s 10 "
                "\xC2\xB5s 20 \xC2\xB5s 50 \xC2\xB5s 100 \xC2\xB5s "},
               {{.unit = SVG_PLAIN}, 0, 4.8, "0 1 2 3 4 5 "},
               {{.unit = SVG_PLAIN}, 0, 1.39, "0 0.5 1 1.5 "},
               {{.unit = SVG_PERCENT}, 0, 1, "0 % 20 % 40 % 60 % 80 % 100 % "}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    svg_axis a = cases[n].axis;
    double ticks[SVG_TICKS];
    char labels[512] = "", number[32];
    svg_fit(&a, cases[n].least, cases[n].most);
    const int count = svg_ticks(&a, ticks);
    for (int t = 0; t < count; t++)
      snprintf(labels + strlen(labels), sizeof labels - strlen(labels), "%s ", svg_number(number, ticks[t], a.unit));
    if (strcmp(labels, cases[n].labels) != 0)
      fail_msg("case %zu: %s not %s", n, labels, cases[n].labels);
  }
}

static void numbers(void **state) {
  (void)state;
  const struct {
    double value;
    svg_unit unit;
    const char *text;
  } cases[] = {{0, SVG_PLAIN, "0"},
               {1.5, SVG_PLAIN, "1.5"},
               {0.25, SVG_PLAIN, "0.25"},
               {1234, SVG_PLAIN, "1234"},
               {12345, SVG_PLAIN, "12.3k"},
               {4.8e6, SVG_PLAIN, "4.8M"},
               {1e-5, SVG_PLAIN, "1e-05"},
               {8192, SVG_TOKENS, "8k"},
               {1536, SVG_TOKENS, "1.5k"},
               {1.5e-6, SVG_SECONDS, "1.5 \xC2\xB5s"},
               {0.02, SVG_SECONDS, "20 ms"},
               {90, SVG_SECONDS, "90 s"},
               {0.9996e-3, SVG_SECONDS, "1 ms"},
               {NAN, SVG_PLAIN, "-"},
               {INFINITY, SVG_SECONDS, "-"}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    char number[32];
    assert_string_equal(svg_number(number, cases[n].value, cases[n].unit), cases[n].text);
  }
}

static void escapes(void **state) {
  (void)state;
  const char *const cases[][2] = {{"<b a=\"'x'\">&", "&lt;b a=&quot;&#39;x&#39;&quot;&gt;&amp;"},
                                  {"\xC2\xB5", "\xC2\xB5"},
                                  {"\x01\x7F\x1B", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
                                  {"\xFF\xC3(", "\xEF\xBF\xBD\xEF\xBF\xBD("},
                                  {"\xEF\xBF\xBF", "\xEF\xBF\xBD"},
                                  {"a\tb\nc", "a\tb\nc"}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    svg_escape(out, cases[n][0]);
    fclose(out);
    assert_string_equal(text, cases[n][1]);
    free(text);
  }
}

/* Points that have no place are left out, and nothing that is no number is written. */
static void points_without_a_place(void **state) {
  (void)state;
  char *text = NULL;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  svg_plot p = {.out = out, .width = 300, .height = 200, .x = {.label = "x", .logarithmic = true}, .y = {.label = "y"}};
  const double x[] = {1, NAN, 0, -3, 10, INFINITY}, y[] = {1, 2, 3, 4, NAN, 6};
  svg_fit(&p.x, 1, 10);
  svg_fit(&p.y, 1, 6);
  svg_begin(&p, "t", "d");
  svg_axes(&p, 40, 10, 20, 30);
  svg_line(&p, 0, 6, x, y);
  svg_markers(&p, 9, 6, x, y);
  svg_dots(&p, 2, 6, x, y);
  svg_rule(&p, "one", NAN, 1, 2, 3);
  svg_text(&p, NAN, INFINITY, "end", "tick", "z");
  svg_end(&p);
  fclose(out);
  for (size_t n = 0; n + 3 < length; n++)
    if (!strncmp(text + n, "nan", 3) || !strncmp(text + n, "inf", 3))
      fail_msg("not a number at %.40s", text + n);
  assert_non_null(strstr(text, "<path class=\"dots s2\" d=\"M"));
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(axes_of_random_ranges),
                                     cmocka_unit_test(odd_ranges),
                                     cmocka_unit_test(tick_values),
                                     cmocka_unit_test(numbers),
                                     cmocka_unit_test(escapes),
                                     cmocka_unit_test(points_without_a_place)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
