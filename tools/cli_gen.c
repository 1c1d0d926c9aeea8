/* cli_gen.c: qkvc gen: writes the CUDA source of one kernel. Also the options that choose a kernel, shared with build,
 * explain and run. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "cli_kernel.h"

cli_kernel_choice cli_kernel;

static const char *output;

static const cli_option options[] = {CLI_KERNEL_OPTIONS,
                                     {"output", 'o', CLI_TEXT, &output, "FILE", "write to FILE, not standard output"},
                                     {NULL, 0, CLI_FLAG, NULL, NULL, NULL}};

qkv_build_options cli_kernel_build_options(const char *arch) {
  qkv_build_options build = QKV_BUILD_OPTIONS_INIT;
  build.arch = arch;
  build.family = cli_kernel.family;
  build.phase = cli_kernel.phase;
  build.schedule = cli_kernel.schedule;
  build.unaligned = cli_kernel.unaligned;
  return build;
}

static void write_text(FILE *out, const void *text) {
  fputs(text, out);
}

static int run(int count, char **arguments) {
  (void)count;
  qkv_engine *engine = NULL;
  qkv_spec *spec = NULL;
  char *source = NULL;
  int code = EXIT_OK;
  qkv_build_options build = cli_kernel_build_options(cli_global.arch);
  qkv_status status = cli_open("none", &engine);
  if (status)
    return cli_fail(NULL, status);
  if ((status = qkv_spec_load(engine, arguments[0], &spec)) != QKV_OK)
    code = cli_fail_spec(arguments[0], status);
  else if ((status = qkv_generate(engine, spec, &build, &source)) != QKV_OK)
    code = cli_fail(arguments[0], status);
  else if (output && strcmp(output, "-") != 0)
    code = cli_write_file(output, write_text, source);
  else
    fputs(source, stdout);
  qkv_string_free(source);
  qkv_spec_free(spec);
  qkv_close(engine);
  return code;
}

const cli_command cli_gen_command = {
    "gen",
    "SPEC",
    "write the CUDA source of one kernel",
    "The source includes nothing and is the same, byte for byte, on every machine for the same spec and options.\n"
    "Without --arch it is made for sm_80. Needs no GPU and no compiler.",
    options,
    1,
    1,
    run,
    NULL};
