/* cli_mask_draw.c: pictures of a mask: characters for a terminal, SVG for documents.
 * Rows are queries from the top, columns are keys from the left, in both. */
#include <string.h>

#include "cli_mask.h"

/* Of the terminal; larger maps show several tiles as one character. */
enum { WIDTH = 100, HEIGHT = 64 };

/* One look of a class everywhere. The colours are told apart with any colour vision (Okabe and Ito) and by lightness.
 */
static const struct look {
  const char *block, *ascii, *escape, *colour;
} looks[MASK_CLASSES] = {
    [MASK_SKIPPED] = {"\u00b7", ".", "90", "#f2f2f2"}, [MASK_FULL] = {"\u2588", "#", "34", "#0072b2"},
    [MASK_PARTIAL] = {"\u2592", "+", "36", "#8fd0f5"}, [MASK_WASTED] = {"\u00d7", "x", "31", "#d55e00"},
    [MASK_GUARDED] = {"\u2593", "%", "32", "#00b285"},
};

/* ---- Terminal ---- */

/* The class of a square of tiles: theirs if they agree, else partial. */
static mask_class class_of_square(const mask_view *v, int64_t row, int64_t column, int64_t side) {
  mask_class first = mask_class_at(v, row, column);
  for (int64_t y = row; y < row + side && y < v->map.rows; y++)
    for (int64_t x = column; x < column + side && x < v->map.columns; x++)
      if (mask_class_at(v, y, x) != first)
        return MASK_PARTIAL;
  return first;
}

static void put(const struct look *look, bool ascii, bool colour, FILE *out) {
  const char *glyph = ascii ? look->ascii : look->block;
  if (colour)
    fprintf(out, "\033[%sm%s\033[0m", look->escape, glyph);
  else
    fputs(glyph, out);
}

static void draw_pairs(const mask_view *v, bool ascii, bool colour, FILE *out) {
  const problem *p = &v->problem;
  fprintf(out, "pairs: rows are queries, columns keys; ");
  put(&looks[MASK_FULL], ascii, colour, out);
  fputs(" visible, ", out);
  put(&looks[MASK_SKIPPED], ascii, colour, out);
  fputs(" hidden\n", out);
  for (int64_t i = 0; i < p->len_q; i++) {
    fprintf(out, "%7lld ", (long long)i);
    for (int64_t k = 0; k < p->len_k; k++)
      put(&looks[v->pairs[i * p->len_k + k] ? MASK_FULL : MASK_SKIPPED], ascii, colour, out);
    fputc('\n', out);
  }
}

static void draw_tiles(const mask_view *v, bool ascii, bool colour, FILE *out) {
  int64_t side = 1;
  while ((v->map.rows + side - 1) / side > HEIGHT || (v->map.columns + side - 1) / side > WIDTH)
    side++;
  fprintf(out, "tiles: rows are queries, columns keys%s;", v->map.dilation > 1 ? ", one residue after the other" : "");
  for (int c = 0; c < MASK_CLASSES; c++)
    if (v->counts[c]) {
      fputc(' ', out);
      put(&looks[c], ascii, colour, out);
      fprintf(out, " %s", mask_class_words[c].name);
    }
  if (side > 1)
    fprintf(out, "; a character is %lld by %lld tiles, partial where they differ", (long long)side, (long long)side);
  fputc('\n', out);
  for (int64_t row = 0; row < v->map.rows; row += side) {
    fprintf(out, "%7lld ", (long long)(row * v->map.tile_q));
    for (int64_t column = 0; column < v->map.columns; column += side)
      put(&looks[class_of_square(v, row, column, side)], ascii, colour, out);
    fputc('\n', out);
  }
}

void mask_draw(const mask_view *v, bool ascii, FILE *out) {
  if (v->pairs)
    draw_pairs(v, ascii, cli_colour(out), out);
  else
    draw_tiles(v, ascii, cli_colour(out), out);
}

/* ---- SVG ---- */

enum { PLOT = 512, LEFT = 72, TOP = 72, LINE = 18 }; /* pixels: the longer side, and what surrounds it */

static void svg_text(FILE *out, int x, int y, const char *anchor, const char *text) {
  fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">", x, y, anchor);
  for (; *text; text++)
    if (strchr("<>&", *text))
      fprintf(out, "&%s;", *text == '<' ? "lt" : *text == '>' ? "gt" : "amp");
    else
      fputc(*text, out);
  fputs("</text>\n", out);
}

/* Where a tile begins, in tokens. Tiles of one residue are as wide as the tokens that they are taken from, and as high
 * as their part of all rows. */
static int64_t left_of(const qkv_mask_map *m, int64_t column, int64_t len_k) {
  int64_t x = column * m->tile_k * m->dilation;
  return x < len_k ? x : len_k;
}
static int64_t top_of(const qkv_mask_map *m, int64_t row, int64_t len_q) {
  int64_t y = m->dilation > 1 ? row * len_q / m->rows : row * m->tile_q;
  return y < len_q ? y : len_q;
}

/* Tiles of one class and row that touch are one rectangle; all of a class are one path in units of tokens. */
static void svg_class(const mask_view *v, mask_class class, FILE *out) {
  const qkv_mask_map *m = &v->map;
  int64_t len_q = v->problem.len_q, len_k = v->problem.len_k;
  fprintf(out, "<path fill=\"%s\" d=\"", looks[class].colour);
  for (int64_t row = 0; row < m->rows; row++)
    for (int64_t column = 0; column < m->columns;) {
      int64_t end = column + 1;
      while (end < m->columns && mask_class_at(v, row, end) == mask_class_at(v, row, column))
        end++;
      int64_t x = left_of(m, column, len_k), right = left_of(m, end, len_k);
      int64_t y = top_of(m, row, len_q), below = top_of(m, row + 1, len_q);
      if (mask_class_at(v, row, column) == class)
        fprintf(out, "M%lld %lldH%lldV%lldH%lldz", (long long)x, (long long)y, (long long)right, (long long)below,
                (long long)x);
      column = end;
    }
  fputs("\"/>\n", out);
}

/* Positions at the quarters of both sides. */
static void svg_axes(const mask_view *v, int width, int height, FILE *out) {
  char word[32];
  for (int n = 0; n <= 4; n++) {
    int x = LEFT + width * n / 4, y = TOP + height * n / 4;
    snprintf(word, sizeof word, "%lld", (long long)(v->problem.len_k * n / 4));
    svg_text(out, x, TOP - 8, "middle", word);
    snprintf(word, sizeof word, "%lld", (long long)(v->problem.len_q * n / 4));
    svg_text(out, LEFT - 8, y + 4, "end", word);
    fprintf(out, "<path stroke=\"#444\" d=\"M%d %dv-4M%d %dh-4\"/>\n", x, TOP, LEFT, y);
  }
  svg_text(out, LEFT + width / 2, TOP - 26, "middle", "key");
  fprintf(out, "<text transform=\"translate(16 %d) rotate(-90)\" text-anchor=\"middle\">query row</text>\n",
          TOP + height / 2);
  fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#444\"/>\n", LEFT, TOP, width,
          height);
}

static void svg_legend(const mask_view *v, int top, FILE *out) {
  double tiles = (double)v->map.rows * (double)v->map.columns;
  char line[160];
  for (int c = 0; c < MASK_CLASSES; c++) {
    if (!v->counts[c])
      continue;
    fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\" stroke=\"#444\"/>\n", LEFT, top - 10,
            looks[c].colour);
    snprintf(line, sizeof line, "%s: %lld tiles, %.1f %%; %s", mask_class_words[c].name, (long long)v->counts[c],
             tiles > 0 ? 100 * (double)v->counts[c] / tiles : 0, mask_class_words[c].meaning);
    svg_text(out, LEFT + 20, top, "start", line);
    top += LINE;
  }
}

void mask_draw_svg(const mask_view *v, FILE *out) {
  int64_t len_q = v->problem.len_q > 0 ? v->problem.len_q : 1, len_k = v->problem.len_k > 0 ? v->problem.len_k : 1;
  double scale = PLOT / (double)(len_q > len_k ? len_q : len_k);
  int width = (int)(scale * (double)len_k + 0.5), height = (int)(scale * (double)len_q + 0.5), shown = 0;
  for (int c = 0; c < MASK_CLASSES; c++)
    shown += v->counts[c] > 0;
  char title[256];
  snprintf(title, sizeof title, "%s: %lld queries, %lld keys, tiles of %lld by %lld", v->problem.info.name,
           (long long)v->problem.len_q, (long long)v->problem.len_k, (long long)v->map.tile_q,
           (long long)v->map.tile_k);
  int all_width = LEFT + PLOT + 40, all_height = TOP + height + 24 + LINE * shown + 8;
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
          "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<title>%s</title>\n"
          "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
          all_width, all_height, all_width, all_height, title);
  svg_text(out, LEFT, 22, "start", title);
  fprintf(out, "<g transform=\"translate(%d %d) scale(%.6g %.6g)\" shape-rendering=\"crispEdges\">\n", LEFT, TOP,
          (double)width / (double)len_k, (double)height / (double)len_q);
  for (int c = 0; c < MASK_CLASSES; c++)
    if (v->counts[c])
      svg_class(v, (mask_class)c, out);
  fputs("</g>\n", out);
  svg_axes(v, width, height, out);
  svg_legend(v, TOP + height + 28, out);
  fputs("</svg>\n", out);
}
