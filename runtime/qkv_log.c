/* qkv_log.c: compiler logs for people: every place in the generated source also as a place in a template; advisories.
 */
#define _GNU_SOURCE /* strchrnul, strsep */
#include <string.h>

#include "compile_log.h"
#include "qkv_internal.h"

/* Appends line `number` (1-based) of the source, without its line end. */
static void add_source_line(const gen_kernel *k, int number, text *out) {
  const char *line = k->source.bytes;
  for (int n = 1; line && n < number; n++) {
    line = strchr(line, '\n');
    line = line ? line + 1 : NULL;
  }
  if (line)
    text_add(out, line, (size_t)(strchrnul(line, '\n') - line));
}

static void add_place(const gen_kernel *k, const log_place *place, size_t rest, text *out) {
  const gen_line *from = place->line >= 1 && place->line <= k->nlines ? &k->lines[place->line - 1] : NULL;
  if (from && from->line > 0 && from->template_index < k->ntemplates)
    text_printf(out, "%s:%d: ", k->templates[from->template_index], from->line);
  text_add(out, place->rest, rest);
  text_printf(out, "\n  generated line %d: ", place->line);
  add_source_line(k, place->line, out);
  text_puts(out, "\n");
}

void log_translate(const char *log, const gen_kernel *k, int notes_only, text *out) {
  /* NVRTC repeats the source line and a caret under a message; they are replaced by the line above. */
  int skipping = 0;
  for (const char *line = log, *end; line && *line; line = *end ? end + 1 : end) {
    log_place place;
    end = strchrnul(line, '\n');
    if (log_parse_place(line, &place) && place.rest <= end) {
      skipping = 1;
      if (!notes_only || log_is_note(line, (size_t)(end - line)))
        add_place(k, &place, (size_t)(end - place.rest), out);
      continue;
    }
    if (skipping && (end == line || *line == ' '))
      continue;
    skipping = 0;
    if (end == line || !strncmp(line, "Remark: ", 8) || (notes_only && !log_is_note(line, (size_t)(end - line))))
      continue;
    text_add(out, line, (size_t)(end - line));
    text_puts(out, "\n");
  }
}

void log_advisories(const char *log, const manifest *m, text *out) {
  for (int n = 0; n < m->nlaunches; n++)
    log_advise(log, m->launches[n].entry, out);
}

void log_warn(const qkv_engine *e, const char *log, const char *spec_name, const manifest *m) {
  text t = {0};
  log_advisories(log, m, &t);
  for (char *rest = t.bytes, *line; (line = strsep(&rest, "\n")) != NULL;)
    if (*line)
      engine_log(e, QKV_LOG_WARNING, "%s, %s (%s) for %s: %s", spec_name, m->family, m->schedule, m->arch, line);
  text_free(&t);
}
