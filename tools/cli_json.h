/* cli_json.h: writes JSON to a stream, indented by two; commas and line breaks are its business. */
#ifndef TOOLS_CLI_JSON_H
#define TOOLS_CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cli_json {
  FILE *stream;
  int depth;
  bool filled; /* the open object or array has a member already */
} cli_json;

/* key: the member's name, NULL in an array and at the top. kind '{' or '['; closed by the matching '}' or ']'. After
 * the outermost one a line feed is written. */
void json_open(cli_json *j, const char *key, char kind);
void json_close(cli_json *j, char kind);
/* A value of NULL is null; bytes that are not UTF-8 become U+FFFD. */
void json_string(cli_json *j, const char *key, const char *value);
void json_integer(cli_json *j, const char *key, int64_t value);
/* In 6 digits if they read back the same, else 17; null when not finite. */
void json_real(cli_json *j, const char *key, double value);
void json_boolean(cli_json *j, const char *key, bool value);
/* Text that is JSON already. */
void json_raw(cli_json *j, const char *key, const char *text);
/* Length of the valid UTF-8 sequence at s, 0 when there is none. */
int json_utf8_length(const unsigned char *s);

#endif
