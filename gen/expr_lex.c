/* expr_lex.c: characters to tokens.
 *
 * Input: a zero-terminated text. Output: one token a call, with its place in the diagnosed text. What other languages
 * would write (`&&`, `**`, `=`, `a if c else b`) is recognised only to say which word to use here. */
#define _GNU_SOURCE /* strtod_l */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "expr_internal.h"

/* Longer spellings stand before their prefixes. */
static const struct punctuation {
  const char *spelling;
  token_kind kind;
  expr_op op;
} punctuations[] = {
    {"//", TOKEN_OPERATOR, EXPR_FLOORDIV}, {"<=", TOKEN_OPERATOR, EXPR_LE},   {">=", TOKEN_OPERATOR, EXPR_GE},
    {"==", TOKEN_OPERATOR, EXPR_EQ},       {"!=", TOKEN_OPERATOR, EXPR_NE},   {"<", TOKEN_OPERATOR, EXPR_LT},
    {">", TOKEN_OPERATOR, EXPR_GT},        {"+", TOKEN_OPERATOR, EXPR_ADD},   {"-", TOKEN_OPERATOR, EXPR_SUB},
    {"*", TOKEN_OPERATOR, EXPR_MUL},       {"/", TOKEN_OPERATOR, EXPR_DIV},   {"%", TOKEN_OPERATOR, EXPR_MOD},
    {"(", TOKEN_OPEN, EXPR_OP_COUNT},      {")", TOKEN_CLOSE, EXPR_OP_COUNT}, {"[", TOKEN_BRACKET, EXPR_OP_COUNT},
    {"]", TOKEN_UNBRACKET, EXPR_OP_COUNT}, {",", TOKEN_COMMA, EXPR_OP_COUNT},
};

/* Spellings of other languages, tried before the table above. */
static const struct foreign {
  const char *spelling;
  const char *advice;
} foreign_punctuations[] = {
    {"===", "write '==' to compare"},
    {"&&", "write 'and'"},
    {"||", "write 'or'"},
    {"**", "there is no power operator; multiply, or use exp, exp2 and sqrt"},
    {"<<", "there are no shifts; multiply by a power of two"},
    {">>", "there are no shifts; use '//' with a power of two"},
    {"<>", "write '!='"},
    {"=<", "write '<='"},
    {"=>", "write '>='"},
    {":=", "there are no assignments"},
    {"->", "there are no lambdas"},
    {"&", "there are no bit operators; write 'and' for conditions, '%' for low bits"},
    {"|", "there are no bit operators; write 'or' for conditions"},
    {"^", "there is no power or exclusive-or operator; multiply, or use exp, exp2 and '!='"},
    {"~", "there are no bit operators; write 'not' for conditions"},
    {"?", "write where(condition, a, b)"},
    {":", "there are no slices; give one integer per dimension, and write where(condition, a, b) to choose"},
    {";", "write one expression"},
    {"{", "use parentheses"},
    {"}", "use parentheses"},
    {"\"", "there are no strings"},
    {"'", "there are no strings"},
    {"#", "there are no comments inside an expression"},
    {"@", "there is no matrix product"},
    {".", "there are no attributes, and a number needs a digit"},
};

static const struct foreign foreign_words[] = {
    {"if", "write where(condition, a, b)"},
    {"else", "write where(condition, a, b)"},
    {"True", "write 'true'"},
    {"False", "write 'false'"},
    {"AND", "write 'and'"},
    {"OR", "write 'or'"},
    {"NOT", "write 'not'"},
    {"is", "write '=='"},
    {"in", "write a chained comparison, as in 0 <= k < 64"},
    {"xor", "write '(a and not b) or (b and not a)'"},
    {"lambda", "there are no lambdas"},
};

static const struct word {
  const char *spelling;
  expr_op op;
} words[] = {{"and", EXPR_AND}, {"or", EXPR_OR}, {"not", EXPR_NOT}};

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static diag_span span(const lexer *l, size_t position, size_t length) {
  if (!l->verbatim)
    return (diag_span){l->offset, 0};
  return (diag_span){l->offset + position, length};
}

static bool same_word(const char *start, size_t length, const char *word) {
  return strlen(word) == length && memcmp(start, word, length) == 0;
}

/* Decimal to double, correctly rounded and independent of the process's locale. */
static double parse_real(const char *start) {
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  double value = c ? strtod_l(start, NULL, c) : NAN;
  if (c)
    freelocale(c);
  return value;
}

/* Length of the number at p; *real says whether it has a point or an exponent. */
static size_t number_length(const char *p, bool *real) {
  size_t n = 0;
  *real = false;
  while (is_digit(p[n]))
    n++;
  if (p[n] == '.') {
    *real = true;
    n++;
    while (is_digit(p[n]))
      n++;
  }
  if (p[n] == 'e' || p[n] == 'E') {
    size_t sign = p[n + 1] == '+' || p[n + 1] == '-';
    if (is_digit(p[n + 1 + sign])) {
      *real = true;
      n += 1 + sign;
      while (is_digit(p[n]))
        n++;
    }
  }
  return n;
}

static bool lex_number(lexer *l, token *t) {
  bool real;
  t->length = number_length(t->start, &real);
  size_t end = t->length;
  while (is_letter(t->start[end]) || is_digit(t->start[end]))
    end++;
  t->at = span(l, l->position, end);
  if (end > t->length) {
    diag_add(l->d, DIAG_EXPR_SYNTAX, t->at, "'%.*s' is not a number", (int)(end < 40 ? end : 40), t->start);
    diag_hint(l->d, "numbers are decimal, as in 64, 0.5 or 1e-3; a product needs '*'");
    return false;
  }
  if (real) {
    t->kind = TOKEN_FLOAT;
    t->real = parse_real(t->start);
    if (isfinite(t->real))
      return true;
  } else {
    t->kind = TOKEN_INT;
    if (t->start[0] == '0' && t->length > 1) {
      diag_add(l->d, DIAG_EXPR_SYNTAX, t->at, "an integer may not start with 0");
      return false;
    }
    for (size_t n = 0; n < t->length && t->integer <= INT32_MAX; n++)
      t->integer = t->integer * 10 + (t->start[n] - '0');
    if (t->integer <= -(int64_t)INT32_MIN)
      return true;
  }
  diag_add(l->d, DIAG_EXPR_VALUE, t->at, "%.*s is too large for %s", (int)(t->length < 40 ? t->length : 40), t->start,
           real ? "a float" : "a 32-bit integer");
  if (!real)
    diag_hint(l->d, "the largest integer is 2147483647; write a float with a decimal point");
  return false;
}

static bool lex_word(lexer *l, token *t) {
  while (is_letter(t->start[t->length]) || is_digit(t->start[t->length]))
    t->length++;
  t->at = span(l, l->position, t->length);
  t->kind = TOKEN_NAME;
  for (size_t n = 0; n < sizeof words / sizeof *words; n++)
    if (same_word(t->start, t->length, words[n].spelling)) {
      t->kind = TOKEN_OPERATOR;
      t->op = words[n].op;
    }
  for (size_t n = 0; n < sizeof foreign_words / sizeof *foreign_words; n++)
    if (same_word(t->start, t->length, foreign_words[n].spelling)) {
      diag_add(l->d, DIAG_EXPR_SYNTAX, t->at, "'%s' is not part of the expression language", foreign_words[n].spelling);
      diag_hint(l->d, "%s", foreign_words[n].advice);
      return false;
    }
  return true;
}

/* Reports what stands at the position and is no token. */
static bool lex_reject(lexer *l, token *t) {
  for (size_t n = 0; n < sizeof foreign_punctuations / sizeof *foreign_punctuations; n++) {
    const struct foreign *f = &foreign_punctuations[n];
    size_t length = strlen(f->spelling);
    if (strncmp(t->start, f->spelling, length) != 0)
      continue;
    diag_add(l->d, DIAG_EXPR_SYNTAX, span(l, l->position, length), "'%s' is not part of the expression language",
             f->spelling);
    diag_hint(l->d, "%s", f->advice);
    return false;
  }
  if (*t->start == '=' || *t->start == '!') {
    diag_add(l->d, DIAG_EXPR_SYNTAX, span(l, l->position, 1), "'%c' is not part of the expression language", *t->start);
    diag_hint(l->d, *t->start == '=' ? "write '==' to compare" : "write 'not'");
    return false;
  }
  unsigned char c = (unsigned char)*t->start;
  size_t length = 1;
  while (c >= 0xC0 && ((unsigned char)t->start[length] & 0xC0) == 0x80)
    length++;
  if (c >= 0xC0)
    diag_add(l->d, DIAG_EXPR_SYNTAX, span(l, l->position, length), "unexpected character '%.*s'",
             (int)(length < 4 ? length : 4), t->start);
  else if (c > 0x20 && c < 0x7F)
    diag_add(l->d, DIAG_EXPR_SYNTAX, span(l, l->position, 1), "unexpected character '%c'", c);
  else
    diag_add(l->d, DIAG_EXPR_SYNTAX, span(l, l->position, 1), "unexpected byte 0x%02X", c);
  return false;
}

/* Whether a spelling of another language stands here that would otherwise be read as two of ours (`**`, `<<`). */
static bool is_foreign(const char *p) {
  for (size_t n = 0; n < sizeof foreign_punctuations / sizeof *foreign_punctuations; n++) {
    const char *spelling = foreign_punctuations[n].spelling;
    if (strncmp(p, spelling, strlen(spelling)) == 0)
      return true;
  }
  return false;
}

bool expr_lex_next(lexer *l, token *t) {
  while (l->source[l->position] && strchr(" \t\r\n", l->source[l->position]))
    l->position++;
  const char *p = l->source + l->position;
  *t = (token){.kind = TOKEN_END, .op = EXPR_OP_COUNT, .start = p, .at = span(l, l->position, 0)};
  bool ok = true;
  if (!*p)
    return true;
  if (is_digit(*p) || (*p == '.' && is_digit(p[1])))
    ok = lex_number(l, t);
  else if (is_letter(*p))
    ok = lex_word(l, t);
  else if (is_foreign(p))
    ok = lex_reject(l, t);
  else {
    for (size_t n = 0; n < sizeof punctuations / sizeof *punctuations && !t->length; n++) {
      const struct punctuation *c = &punctuations[n];
      size_t length = strlen(c->spelling);
      if (strncmp(p, c->spelling, length) == 0) {
        t->kind = c->kind;
        t->op = c->op;
        t->length = length;
        t->at = span(l, l->position, length);
      }
    }
    ok = t->length || lex_reject(l, t);
  }
  l->position += t->length;
  return ok;
}
