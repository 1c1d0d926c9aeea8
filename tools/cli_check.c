/* cli_check.c: qkvc check: reads specs and prints what is wrong with them, all of them, without a device. */
#include <string.h>

#include "cli.h"
#include "cli_json.h"
#include "qkv_build.h"

static int as_json, as_canonical;

static const cli_option options[] = {
    {"json", 0, CLI_FLAG, &as_json, NULL, "one JSON array: file, ok, diagnostics or the resolved spec"},
    {"canonical", 0, CLI_FLAG, &as_canonical, NULL, "print each spec in full, without its name: what is hashed"},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

static int check_text(const char *path) {
  qkv_spec *spec = NULL;
  qkv_status status = qkv_spec_check(path, 0, &spec);
  if (status)
    return cli_fail_spec(path, status);
  char *canonical = NULL;
  if (as_canonical && (status = qkv_spec_canonical(spec, &canonical)) == QKV_OK)
    fputs(canonical, stdout);
  else if (!as_canonical)
    printf("%s: ok\n", path);
  qkv_string_free(canonical);
  qkv_spec_free(spec);
  return status ? cli_fail(path, status) : EXIT_OK;
}

static int check_json(cli_json *j, const char *path) {
  qkv_spec *spec = NULL;
  qkv_status status = qkv_spec_check(path, 1, &spec);
  json_open(j, NULL, '{');
  json_string(j, "file", path);
  json_boolean(j, "ok", status == QKV_OK);
  int code = EXIT_OK;
  if (status) {
    const char *message = qkv_last_error(NULL);
    bool structured = status == QKV_BAD_SPEC && (message[0] == '[' || message[0] == '{');
    if (structured)
      json_raw(j, "diagnostics", message);
    else
      json_string(j, "error", message);
    code = status == QKV_IO ? EXIT_SPEC : cli_exit_code(status);
  } else {
    char *text = NULL;
    if (qkv_spec_json(spec, &text) == QKV_OK)
      json_raw(j, "spec", text);
    qkv_string_free(text);
  }
  json_close(j, '}');
  qkv_spec_free(spec);
  return code;
}

static int run(int count, char **arguments) {
  cli_json j = {.stream = stdout};
  if (as_json)
    json_open(&j, NULL, '[');
  int code = EXIT_OK;
  for (int n = 0; n < count; n++) {
    int one = as_json ? check_json(&j, arguments[n]) : check_text(arguments[n]);
    code = code ? code : one;
  }
  if (as_json)
    json_close(&j, ']');
  return code;
}

const cli_command cli_check_command = {
    "check",
    "SPEC...",
    "check specs and print what is wrong with them",
    "Prints 'SPEC: ok', or every error with file, line, column, source line and caret (20 at most per file).\n"
    "Needs no GPU and no compiler.",
    options,
    1,
    -1,
    run,
    NULL};
