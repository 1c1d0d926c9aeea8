/* pieces.c: finds the pieces that a text uses, renders them, and puts the source together. See pieces.h. */
#include "pieces.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- identifiers ---- */

static bool is_word(char c) {
  return isalnum((unsigned char)c) || c == '_';
}

/* Skips what is no code at p: white space, comments, literals, numbers, other marks. Returns the start of the next
 * identifier or `end`. *member: it follows `.` or `->`, so it is a member, whatever its name. */
static const char *next_identifier(const char *p, const char *end, bool *member) {
  char last = 0; /* mark of code before p */
  *member = false;
  while (p < end) {
    if (isalpha((unsigned char)*p) || *p == '_')
      return p;
    if (p[0] == '/' && p + 1 < end && p[1] == '/') {
      const char *newline = memchr(p, '\n', (size_t)(end - p));
      p = newline ? newline : end;
    } else if (p[0] == '/' && p + 1 < end && p[1] == '*') {
      for (p += 2; p < end && !(p[0] == '*' && p + 1 < end && p[1] == '/');)
        p++;
      p = p < end ? p + 2 : end;
    } else if (*p == '"' || *p == '\'') {
      char quote = *p++;
      *member = false;
      for (; p < end && *p != quote && *p != '\n'; p++)
        if (*p == '\\')
          p++;
      p = p < end ? p + 1 : end;
    } else if (isdigit((unsigned char)*p)) { /* a number with its suffixes: 0x1.8p+0f is no identifier */
      *member = false;
      while (p < end && (is_word(*p) || *p == '.' || *p == '\'' || ((*p == '+' || *p == '-') && strchr("eEpP", p[-1]))))
        p++;
    } else {
      if (!isspace((unsigned char)*p)) {
        *member = *p == '.' || (*p == '>' && last == '-');
        last = *p;
      }
      p++;
    }
  }
  return end;
}

/* ---- use ---- */

/* By name; equal ones, of which check_names complains, in order of definition. */
static int compare_pieces(const void *a, const void *b) {
  const piece *x = a, *y = b;
  int order = strcmp(x->name, y->name);
  if (order == 0)
    order = x->template_index != y->template_index ? x->template_index - y->template_index : x->line - y->line;
  return order;
}

static void check_names(const renderer *r) {
  for (int n = 1; n < r->npieces; n++) {
    const piece *first = &r->pieces[n - 1], *again = &r->pieces[n];
    if (strcmp(first->name, again->name) == 0)
      luaL_error(r->host->L, "%s:%d: piece '%s' is already defined at %s:%d", r->templates[again->template_index].path,
                 again->line, again->name, r->templates[first->template_index].path, first->line);
  }
}

/* Index of a piece by name, or -1. The pieces are sorted. */
static int find_piece(const renderer *r, const char *name, size_t length) {
  int low = 0, high = r->npieces;
  while (low < high) {
    int middle = (low + high) / 2;
    const char *other = r->pieces[middle].name;
    int order = strncmp(name, other, length);
    if (order == 0 && other[length] != 0)
      order = -1;
    if (order == 0)
      return middle;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return -1;
}

/* Lists the pieces named in a text, other than `user` itself (-1: the kernel), into `used`; returns how many. */
static int find_used(const renderer *r, const text *t, int user, bool *seen, int *used) {
  int count = 0;
  memset(seen, 0, (size_t)r->npieces + 1);
  const char *begin = t->bytes, *end = begin + t->size;
  bool member;
  for (const char *p = begin; t->size && (p = next_identifier(p, end, &member)) < end;) {
    const char *start = p;
    while (p < end && is_word(*p))
      p++;
    int index = find_piece(r, start, (size_t)(p - start));
    if (index >= 0 && index != user && !seen[index] && !member) {
      seen[index] = true;
      used[count++] = index;
    }
  }
  return count;
}

/* Renders a piece and notes what it uses. */
static void render_piece(renderer *r, int index, bool *seen, int *used) {
  lua_State *L = r->host->L;
  piece *p = &r->pieces[index];
  p->state = PIECE_RENDERED;
  r->current = &p->out;
  r->indent = 0;
  lua_rawgeti(L, LUA_REGISTRYINDEX, p->function);
  lua_call(L, 0, 0);
  host_check_memory(L, p->out.bytes.failed);
  p->nuses = find_used(r, &p->out.bytes, index, seen, used);
  p->uses = malloc(((size_t)p->nuses + 1) * sizeof *p->uses);
  host_check_memory(L, !p->uses);
  memcpy(p->uses, used, (size_t)p->nuses * sizeof *p->uses);
  for (int n = 0; p->primitive && n < p->nuses; n++)
    if (!r->pieces[used[n]].primitive)
      luaL_error(L, "%s:%d: primitive '%s' uses '%s', which is not a primitive", r->templates[p->template_index].path,
                 p->line, p->name, r->pieces[used[n]].name);
}

/* Renders every piece that the kernel reaches. */
static void render_used(renderer *r) {
  lua_State *L = r->host->L;
  /* Lua memory: released even when an error is thrown. */
  size_t size = (size_t)r->npieces + 1;
  int *used = lua_newuserdatauv(L, size * sizeof *used, 0), *waiting = lua_newuserdatauv(L, size * sizeof *waiting, 0);
  bool *seen = lua_newuserdatauv(L, size, 0), *known = lua_newuserdatauv(L, size, 0);
  memset(known, 0, size);
  int nwaiting = 0, count = find_used(r, &r->main.bytes, -1, seen, used);
  for (;;) {
    for (int n = 0; n < count; n++) {
      if (!known[used[n]])
        waiting[nwaiting++] = used[n];
      known[used[n]] = true;
    }
    if (nwaiting == 0)
      break;
    int next = waiting[--nwaiting];
    render_piece(r, next, seen, used);
    count = r->pieces[next].nuses;
  }
  lua_pop(L, 4);
}

static bool is_ready(const renderer *r, const piece *p) {
  for (int n = 0; n < p->nuses; n++)
    if (r->pieces[p->uses[n]].state != PIECE_PLACED)
      return false;
  return true;
}

/* Orders the rendered pieces: always the first by name among those whose uses are placed. */
static void order_pieces(renderer *r) {
  for (;;) {
    int ready = -1, left = -1;
    for (int n = 0; n < r->npieces && ready < 0; n++) {
      if (r->pieces[n].state != PIECE_RENDERED)
        continue;
      left = left < 0 ? n : left;
      if (is_ready(r, &r->pieces[n]))
        ready = n;
    }
    if (left < 0)
      return;
    if (ready < 0)
      luaL_error(r->host->L, "%s:%d: piece '%s' belongs to, or waits for, pieces that use each other",
                 r->templates[r->pieces[left].template_index].path, r->pieces[left].line, r->pieces[left].name);
    r->pieces[ready].state = PIECE_PLACED;
    r->order[r->norder++] = ready;
  }
}

/* ---- putting together ---- */

/* The pieces of one marker, a blank line around those of more than one line. */
static void add_pieces(renderer *r, output *to, bool primitives) {
  bool first = true, previous_long = false;
  for (int n = 0; n < r->norder; n++) {
    const piece *p = &r->pieces[r->order[n]];
    if (p->primitive != primitives || p->out.nlines == 0)
      continue;
    if (first && primitives)
      output_add_line(to, (gen_line){0, 0}, "#ifndef QKV_EMU // the emulator's header has its own");
    if (!first && (previous_long || p->out.nlines > 1))
      output_add_line(to, (gen_line){0, 0}, "");
    output_append(to, &p->out, 0, p->out.nlines);
    first = false;
    previous_long = p->out.nlines > 1;
  }
  if (!first && primitives)
    output_add_line(to, (gen_line){0, 0}, "#endif // QKV_EMU");
}

/* Throws when pieces are in use and the kernel has no place for them. */
static void check_markers(const renderer *r, const char *kernel) {
  static const char *const names[MARKER_COUNT] = {"primitives()", "pieces()"};
  for (int n = 0; n < r->norder; n++) {
    const piece *p = &r->pieces[r->order[n]];
    int marker = p->primitive ? MARKER_PRIMITIVES : MARKER_PIECES;
    if (r->marker_line[marker] < 0)
      luaL_error(r->host->L, "%s:1: uses '%s' but has no %s", kernel, p->name, names[marker]);
  }
}

void renderer_finish(renderer *r, gen_kernel *k) {
  lua_State *L = r->host->L;
  host_check_memory(L, r->main.bytes.failed);
  r->finishing = true;
  qsort(r->pieces, (size_t)r->npieces, sizeof *r->pieces, compare_pieces);
  check_names(r);
  r->order = calloc((size_t)r->npieces + 1, sizeof *r->order);
  host_check_memory(L, !r->order);
  render_used(r);
  order_pieces(r);
  check_markers(r, r->main.nlines ? r->templates[r->kernel_template].path : "");

  output *all = &r->assembled;
  int done = 0;
  int first = r->marker_line[0] <= r->marker_line[1] ? 0 : 1;
  for (int step = 0; step < MARKER_COUNT; step++) {
    int marker = step == 0 ? first : 1 - first;
    if (r->marker_line[marker] < 0)
      continue;
    output_append(all, &r->main, done, r->marker_line[marker]);
    done = r->marker_line[marker];
    add_pieces(r, all, marker == MARKER_PRIMITIVES);
  }
  output_append(all, &r->main, done, r->main.nlines);
  host_check_memory(L, all->bytes.failed);

  char **paths = calloc((size_t)r->ntemplates + 1, sizeof *paths);
  host_check_memory(L, !paths);
  for (int n = 0; n < r->ntemplates; n++) {
    paths[n] = r->templates[n].path;
    r->templates[n].path = NULL;
  }
  k->source = all->bytes;
  k->lines = all->lines;
  k->nlines = all->nlines;
  k->templates = paths;
  k->ntemplates = r->ntemplates;
  *all = (output){0};
}
