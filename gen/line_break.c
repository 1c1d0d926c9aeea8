/* line_break.c: see line_break.h. Expressions of users can be longer than a line; what templates write is not.
 *
 * Of all places within the width the best is one outside of most parentheses, and then the one farthest to the right: a
 * level of parentheses counts as much as PER_LEVEL columns, and `&&` or `||` in place of arithmetic as PER_LOGIC. */
#include "line_break.h"

#include <stdbool.h>
#include <string.h>

enum { PER_LEVEL = 20, PER_LOGIC = 30 };

static size_t indentation(const char *line, size_t size) {
  size_t n = 0;
  while (n < size && line[n] == ' ')
    n++;
  return n;
}

static bool starts(const char *line, size_t size, size_t at, const char *word) {
  size_t length = strlen(word);
  return at + length <= size && memcmp(line + at, word, length) == 0;
}

/* The last blank of a comment within the width, behind its first word. */
static size_t comment_break(const char *line, size_t size, size_t first) {
  size_t at = LINE_WIDTH < size ? LINE_WIDTH : size - 1;
  while (at > first && line[at] != ' ')
    at--;
  return at > first ? at : 0;
}

/* Whether a line may end in front of the blank at `at`. */
static bool is_place(const char *line, size_t size, size_t at) {
  static const char *const before[] = {"&&", "||", ",", " +", " -", " *", "?"};
  if (starts(line, size, at, " //"))
    return false;
  for (size_t n = 0; n < sizeof before / sizeof *before; n++) {
    size_t length = strlen(before[n]);
    if (at >= length && memcmp(line + at - length, before[n], length) == 0)
      return true;
  }
  return false;
}

static size_t code_break(const char *line, size_t size, size_t first) {
  size_t best = 0;
  long best_score = 0;
  int depth = 0;
  char quote = 0;
  for (size_t n = first; n < size && n <= LINE_WIDTH; n++) {
    char c = line[n];
    if (quote) {
      if (c == '\\')
        n++;
      else if (c == quote)
        quote = 0;
      continue;
    }
    if (c == '"' || c == '\'')
      quote = c;
    else if (starts(line, size, n, "//"))
      break;
    depth += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
    bool logic = n >= 2 && (line[n - 1] == '&' || line[n - 1] == '|');
    long score = (long)n - (long)depth * PER_LEVEL + (logic ? PER_LOGIC : 0);
    if (c == ' ' && n > first && is_place(line, size, n) && (!best || score >= best_score)) {
      best = n;
      best_score = score;
    }
  }
  return best;
}

size_t line_break_at(const char *line, size_t size) {
  size_t first = indentation(line, size);
  if (size <= LINE_WIDTH || starts(line, size, first, "#"))
    return 0;
  if (!starts(line, size, first, "//"))
    return code_break(line, size, first);
  size_t text = first + 2; /* behind the mark, its blanks and the first word */
  text += indentation(line + text, size - text);
  return comment_break(line, size, text);
}

size_t line_break_start(const char *line, size_t size, char *start, size_t room) {
  size_t first = indentation(line, size), length;
  const char *mark = "    ";
  if (starts(line, size, first, "//"))
    mark = "//     ";
  length = strlen(mark);
  if (first + length > room)
    first = room - length;
  memset(start, ' ', first);
  memcpy(start + first, mark, length);
  return first + length;
}
