/* report_page.c: the frame of a report's page, the pieces that its sections are made of, and their order. The page
 * needs no network, no script and no other file. All text that comes from files is escaped here or in svg.c. */
#include <math.h>
#include <string.h>

#include "cli.h"
#include "report.h"
#include "svg.h"

/* ---- Pieces ---- */

void page_text(FILE *out, const char *text) {
  svg_escape(out, text);
}

void page_section(FILE *out, const char *id, const char *title, const char *lead) {
  fprintf(out, "<section id=\"%s\">\n<h2>%s</h2>\n<p class=\"lead\">%s</p>\n", id, title, lead);
}

void page_section_end(FILE *out) {
  fputs("</section>\n", out);
}

void page_no_data(FILE *out, const char *why) {
  fputs("<p class=\"none\">No data: ", out);
  page_text(out, why);
  fputs("</p>\n", out);
}

void page_figure(FILE *out, const char *title) {
  fputs("<figure>\n", out);
  if (title) {
    fputs("<h3>", out);
    page_text(out, title);
    fputs("</h3>\n", out);
  }
}

void page_figure_end(FILE *out) {
  fputs("</figure>\n", out);
}

void page_legend(FILE *out, int count, const char *const *labels, bool lines) {
  fputs("<ul class=\"legend\">\n", out);
  for (int n = 0; n < count; n++) {
    fputs("<li>", out);
    svg_key(out, n, lines);
    fputs(" <span>", out);
    page_text(out, labels[n]);
    fputs("</span></li>\n", out);
  }
  fputs("</ul>\n", out);
}

/* Rows of the open table. A page is for reading: what is beyond PAGE_ROWS is counted, not written. */
static int table_rows;

void page_table(FILE *out, const char *caption, bool open, int columns, const char *const *heads) {
  table_rows = 0;
  fprintf(out, "<details%s><summary>", open ? " open" : "");
  page_text(out, caption);
  fputs("</summary>\n<div class=\"scroll\"><table>\n<thead><tr>", out);
  for (int c = 0; c < columns; c++) {
    const bool number = heads[c][0] == '>';
    fprintf(out, "<th scope=\"col\"%s>", number ? "" : " class=\"t\"");
    page_text(out, heads[c] + number);
    fputs("</th>", out);
  }
  fputs("</tr></thead>\n<tbody>\n", out);
}

static bool row_shown(void) {
  return table_rows <= PAGE_ROWS;
}

void page_row(FILE *out) {
  table_rows++;
  if (row_shown())
    fputs("<tr>", out);
}

void page_cell(FILE *out, const char *text) {
  if (!row_shown())
    return;
  fputs(strlen(text) > 32 ? "<td class=\"w\">" : "<td class=\"t\">", out);
  page_text(out, text);
  fputs("</td>", out);
}

static void write_number(FILE *out, double value, int digits) {
  if (!row_shown())
    return;
  if (isfinite(value))
    fprintf(out, "<td>%.*g</td>", digits, value + 0.0);
  else
    fputs("<td></td>", out);
}

void page_number(FILE *out, double value) {
  write_number(out, value, 6);
}

void page_short(FILE *out, double value) {
  write_number(out, value, 4);
}

void page_row_end(FILE *out) {
  if (row_shown())
    fputs("</tr>\n", out);
}

void page_table_end(FILE *out) {
  fputs("</tbody></table></div>\n", out);
  if (!row_shown())
    fprintf(out, "<p class=\"quiet\">The first %d of %d rows; qkvc report --json has all.</p>\n", PAGE_ROWS,
            table_rows);
  fputs("</details>\n", out);
}

void page_more_figures(FILE *out, int all) {
  if (all > PAGE_FIGURES)
    fprintf(out, "<p class=\"quiet\">The first %d of %d pictures; qkvc report --json has all numbers.</p>\n",
            PAGE_FIGURES, all);
}

/* ---- The page ---- */

static const struct {
  const char *id, *title;
  void (*write)(report *r, FILE *out);
} sections[] = {{"roofline", "Roofline", roof_section},
                {"length", "Time against length", length_section},
                {"batch", "Time against batch", batch_section},
                {"bandwidth", "Achieved bandwidth", bandwidth_section},
                {"landscape", "Schedules of a tuning run", landscape_section},
                {"ratio", "Ratio to peers", ratio_section}};
enum { SECTIONS = sizeof sections / sizeof *sections };

/* The devices that rows name, or "". */
static void write_devices(report *r, FILE *out) {
  report_groups devices = {0};
  for (int n = 0; n < r->nrows; n++)
    if (*r->rows[n].gpu)
      groups_add(&devices, r->rows[n].gpu, n);
  if (devices.count)
    fputs("<p>Measured on ", out);
  for (int n = 0; n < devices.count; n++) {
    fputs(n ? ", " : "", out);
    page_text(out, devices.items[n].label);
  }
  if (devices.count)
    fputs(".</p>\n", out);
  if (groups_find(&devices, "emu"))
    fputs("<p><strong>Times of the emulator say nothing of a GPU.</strong></p>\n", out);
  groups_free(&devices);
}

static void write_head(report *r, FILE *out) {
  fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
        out);
  page_text(out, r->title);
  fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<header>\n<h1>", report_style);
  page_text(out, r->title);
  fputs("</h1>\n", out);
  write_devices(r, out);
  fputs("<nav aria-label=\"Sections\"><ul>", out);
  for (int n = 0; n < SECTIONS; n++)
    fprintf(out, "<li><a href=\"#%s\">%s</a></li>", sections[n].id, sections[n].title);
  fputs("<li><a href=\"#files\">Files</a></li></ul></nav>\n</header>\n<main>\n", out);
}

static void write_files(report *r, FILE *out) {
  static const char *const kinds[] = {"times", "schedules of a tuning run", "times beside peers"}, *const heads[] = {
                                                                                                       "file",
                                                                                                       "read as",
                                                                                                       ">rows"};
  page_section(
      out, "files", "Files",
      "What this page was made from. Times are medians; p10 and p90 are the 10th and 90th percentile of the "
      "samples. Ceilings are the device's own figures, its clock at most times its units, or what was given on "
      "the command line: no kernel quite reaches them.");
  page_table(out, "Files", true, 3, heads);
  for (int n = 0; n < r->nfiles; n++) {
    page_row(out);
    page_cell(out, r->files[n].name);
    page_cell(out, kinds[r->files[n].kind]);
    page_number(out, r->files[n].rows);
    page_row_end(out);
  }
  page_table_end(out);
  page_section_end(out);
}

void report_page(report *r, FILE *out) {
  write_head(r, out);
  for (int n = 0; n < SECTIONS; n++)
    sections[n].write(r, out);
  write_files(r, out);
  fputs("</main>\n</body>\n</html>\n", out);
}

static void write_page(FILE *out, const void *which) {
  report_page(*(report *const *)which, out);
}

int report_write_page(report *r, const char *path) {
  if (strcmp(path, "-") != 0)
    return cli_write_file(path, write_page, &r);
  report_page(r, stdout); /* what became of it, qkvc says at its end */
  return EXIT_OK;
}

void report_write_json(report *r, FILE *out) {
  static const char *const kinds[] = {"bench", "tune", "peers"};
  cli_json j = {.stream = out};
  json_open(&j, NULL, '{');
  json_string(&j, "title", r->title);
  json_open(&j, "files", '[');
  for (int n = 0; n < r->nfiles; n++) {
    json_open(&j, NULL, '{');
    json_string(&j, "file", r->files[n].name);
    json_string(&j, "kind", kinds[r->files[n].kind]);
    json_integer(&j, "rows", r->files[n].rows);
    json_close(&j, '}');
  }
  json_close(&j, ']');
  roof_json(r, &j);
  lines_json(r, &j);
  bandwidth_json(r, &j);
  landscape_json(r, &j);
  ratio_json(r, &j);
  json_close(&j, '}');
}
