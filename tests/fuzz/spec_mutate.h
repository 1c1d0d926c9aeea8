/* spec_mutate.h: seeded damage to spec texts, for tests and fuzzers. Plain functions of the seed; the same everywhere.
 */
#ifndef TESTS_SPEC_MUTATE_H
#define TESTS_SPEC_MUTATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MUTATE_ROOM = 1 << 14 };

static uint32_t mutate_random(uint64_t *seed) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 7;
  *seed ^= *seed << 17;
  return (uint32_t)(*seed >> 32);
}

static size_t mutate_below(uint64_t *seed, size_t limit) {
  return limit ? mutate_random(seed) % limit : 0;
}

/* Replaces bytes[at, at + cut) by `piece`. Returns the new size; nothing happens when the room is too small. */
static size_t mutate_splice(char *bytes, size_t size, size_t at, size_t cut, const char *piece, size_t length) {
  if (size - cut + length > MUTATE_ROOM)
    return size;
  memmove(bytes + at + length, bytes + at + cut, size - at - cut);
  memcpy(bytes + at, piece, length);
  return size - cut + length;
}

/* What is likely to matter to a parser of specs. */
static const char *const mutate_pieces[] = {":",
                                            ": ",
                                            "\n",
                                            "\n  ",
                                            "- ",
                                            "{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ", ",
                                            "'",
                                            "\"",
                                            "#",
                                            " #",
                                            "&a ",
                                            "*a",
                                            "<<: *a",
                                            "!!int ",
                                            "!x ",
                                            "|",
                                            ">",
                                            "? ",
                                            "%YAML 1.2\n",
                                            "---\n",
                                            "...\n",
                                            "\t",
                                            "\\",
                                            "\\0",
                                            "\x00",
                                            "\xFF",
                                            "\xC3\xB6",
                                            "\xF0\x9F\x98\x80",
                                            "\xEF\xBB\xBF",
                                            "\xE2\x80\xA8",
                                            "0",
                                            "00",
                                            "-1",
                                            "1",
                                            "8",
                                            "64",
                                            "9223372036854775808",
                                            "1e999",
                                            "1/0",
                                            "nan",
                                            "~",
                                            "null",
                                            "true",
                                            "false",
                                            "yes",
                                            "auto",
                                            "x-a: &a 1\n",
                                            "qkvc: 1\n",
                                            "attention:\n",
                                            "heads: ",
                                            "dim: 64\n",
                                            "q: ",
                                            "kv: ",
                                            "dtype: ",
                                            "score: ",
                                            "mask: ",
                                            "params: {a: {type: f32}}",
                                            "causal",
                                            "window(3, 0)",
                                            "s + a[h]",
                                            "(",
                                            ")",
                                            " and ",
                                            " or ",
                                            "not ",
                                            "where(",
                                            "k",
                                            "q",
                                            "//",
                                            "%",
                                            "<=",
                                            "ragged",
                                            "paged",
                                            "padded",
                                            "csr",
                                            "prefill: ",
                                            "shape: [hq, len_k]",
                                            "type: ",
                                            "outputs: [o]\n",
                                            "workloads: []\n",
                                            "schedule: {a: 1}\n",
                                            "recurrence: 1\n"};

/* Replaces the value behind a random ": " by a piece: other values in an intact structure. */
static size_t mutate_value(char *bytes, size_t size, const char *piece, size_t length, uint64_t *seed) {
  size_t at = mutate_below(seed, size + 1);
  while (at + 1 < size && !(bytes[at] == ':' && bytes[at + 1] == ' '))
    at++;
  if (at + 1 >= size)
    return size;
  at += 2;
  size_t end = at;
  while (end < size && !memchr("\n,}", bytes[end], 3))
    end++;
  return mutate_splice(bytes, size, at, end - at, piece, length);
}

/* One random change: bytes, pieces, lines moved, copied, dropped or indented, or the text cut off. */
static size_t mutate_once(char *bytes, size_t size, uint64_t *seed) {
  size_t at = mutate_below(seed, size + 1), left = size - at, line = at, end = at;
  while (line > 0 && bytes[line - 1] != '\n')
    line--;
  while (end < size && bytes[end] != '\n')
    end++;
  end += end < size;
  char byte = (char)mutate_random(seed);
  const char *piece = mutate_pieces[mutate_below(seed, sizeof mutate_pieces / sizeof mutate_pieces[0])];
  size_t length = *piece ? strlen(piece) : 1;
  switch (mutate_below(seed, 12)) {
  case 0:
    return mutate_splice(bytes, size, at, left > 0, &byte, 1);
  case 1:
    return mutate_splice(bytes, size, at, mutate_below(seed, left < 8 ? left + 1 : 8), "", 0);
  case 2:
  case 3:
    return mutate_splice(bytes, size, at, 0, piece, length);
  case 4:
    return mutate_splice(bytes, size, at, mutate_below(seed, left < 12 ? left + 1 : 12), piece, length);
  case 5:
    return mutate_splice(bytes, size, line, end - line, "", 0);
  case 6:
    return mutate_splice(bytes, size, line, 0, "    ", mutate_below(seed, 5));
  case 10:
  case 11:
    return mutate_value(bytes, size, piece, length, seed);
  case 7: { /* the line once more, somewhere else */
    char copy[256];
    length = end - line < sizeof copy ? end - line : sizeof copy;
    memcpy(copy, bytes + line, length);
    return mutate_splice(bytes, size, mutate_below(seed, size + 1), 0, copy, length);
  }
  case 8: { /* a word from elsewhere */
    char copy[32];
    size_t from = mutate_below(seed, size + 1);
    length = size - from < sizeof copy ? size - from : mutate_below(seed, sizeof copy);
    memcpy(copy, bytes + from, length);
    return mutate_splice(bytes, size, at, 0, copy, length);
  }
  default:
    return mutate_below(seed, 8) ? size : at; /* rarely: cut off */
  }
}

#endif
