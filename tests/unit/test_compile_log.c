/* test_compile_log.c: what logs of compilers are read as: lines of real logs, and logs that NVRTC writes here for
 * kernels with one fault each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile_log.h"

#define INFO "ptxas info    : "
#define LOSS "Potential Performance Loss: "
#define SERIALISED LOSS "wgmma.mma_async instructions are serialized due to "
#define STAGE " between start and end of the pipeline stage in the function 'k'"
#define IGNORED LOSS "'setmaxnreg' ignored"
#define ENTRY(name, spills)                                                                                            \
  INFO "Compiling entry function '" name "' for 'sm_90a'\n" INFO "Function properties for " name "\n"                  \
       "ptxas         .     8 bytes stack frame, " spills " bytes spill stores, 4 bytes spill loads\n" INFO            \
       "Used 168 registers, used 1 barriers, 1024 bytes smem\n"

/* ---- Lines ---- */

static void test_places(void **state) {
  (void)state;
  static const struct {
    const char *line;
    int number, column; /* number 0: no place */
    const char *rest;
  } rows[] = {
      {"kernel.cu(12): error: x", 12, 0, "error: x"},
      {"kernel.cu:7:3: warning: y", 7, 3, "warning: y"},
      {"kernel.cu:7: note", 7, 0, "note"},
      {"/tmp/a b/kernel.cu(1): x", 0, 0, NULL},
      {"ptxas info    : Used 7 registers", 0, 0, NULL},
      {"(12): error", 0, 0, NULL},
      {"kernel.cu(12 error", 0, 0, NULL},
      {"kernel.cu(): error", 0, 0, NULL},
      {"kernel.cu(99999999999): error", 2147483647, 0, "error"},
      {"", 0, 0, NULL},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    log_place place;
    int found = log_parse_place(rows[n].line, &place);
    if (found != (rows[n].number > 0))
      fail_msg("'%s' %s", rows[n].line, found ? "was read as a place" : "was not read as a place");
    if (!found)
      continue;
    assert_int_equal(place.line, rows[n].number);
    assert_int_equal(place.column, rows[n].column);
    assert_string_equal(place.rest, rows[n].rest);
  }
}

static void test_resources(void **state) {
  (void)state;
  static const char log[] = "ptxas info    : 0 bytes gmem\n"
                            "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
                            "ptxas info    : Function properties for b\n"
                            "ptxas         .     48 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads\n"
                            "ptxas info    : Function properties for helper\n"
                            "ptxas         .     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                            "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\n"
                            "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
                            "ptxas info    : Used 255 registers";
  device_resources r;
  log_resources(log, "b", &r);
  assert_int_equal(r.registers, 168);
  assert_int_equal(r.spill_stores, 16);
  assert_int_equal(r.spill_loads, 20);
  assert_int_equal(r.stack, 48);
  assert_int_equal(r.shared_bytes, 1024);
  log_resources(log, "a", &r);
  assert_int_equal(r.registers, 255);
  assert_int_equal(r.shared_bytes + r.stack + r.spill_stores, 0);
  log_resources("", "a", &r);
  assert_int_equal(r.registers, -1);
  log_resources(NULL, "a", &r);
  assert_int_equal(r.registers, -1);
}

/* Every message of ptxas 12.9 and 13.0, and how 13.2 and 13.5 differ. */
static void test_advisories(void **state) {
  (void)state;
  static const struct {
    const char *line, *code, *function;
    log_kind kind;
    const char *word; /* of its meaning */
  } rows[] = {
      {INFO "(C7504) " IGNORED " to maintain compatibility across compilation units.", "C7504", "", LOG_SETMAXNREG,
       "linked"},
      {INFO "(C7505) " IGNORED " to allow debugging.", "C7505", "", LOG_SETMAXNREG, "debugger"},
      {INFO "(C7506) " IGNORED " to maintain compatibility into 'extern' call.", "C7506", "", LOG_SETMAXNREG,
       "outside the module"},
      {INFO "(C7507) " IGNORED " to maintain minimum register requirements.", "C7507", "", LOG_SETMAXNREG,
       "needs more"},
      {INFO "(C7508) " IGNORED "; unable to determine register count at entry.", "C7508", "", LOG_SETMAXNREG,
       "launch bounds"},
      {INFO "(C7599) " IGNORED " on Sundays.", "C7599", "", LOG_SETMAXNREG, "compiler's note"},
      {INFO "(C7509) " SERIALISED "the presence of Extern calls in the function 'k'", "C7509", "k", LOG_SERIALISED,
       "outside the module"},
      {INFO "(C7510) " SERIALISED "wgmma pipeline crossing function boundary at a function call in the function 'k'",
       "C7510", "k", LOG_SERIALISED, "not inlined"},
      {INFO "(C7511) " SERIALISED
            "insufficient register resources for the wgmma pipeline in the function 'k' in line 61",
       "C7511", "k", LOG_SERIALISED, "accumulators in flight"},
      {INFO "(C7512) " SERIALISED "insufficient register resources for the function 'k'", "C7512", "k", LOG_SERIALISED,
       "for the function"},
      {INFO "(C7513) " SERIALISED "non wgmma instructions defining input registers of a wgmma" STAGE, "C7513", "k",
       LOG_SERIALISED, "of A are written"},
      {INFO "(C7514) " SERIALISED "non wgmma instructions reading accumulator registers of  a wgmma" STAGE, "C7514",
       "k", LOG_SERIALISED, "are read"},
      {INFO "(C7515) " SERIALISED "non wgmma instructions defining accumulator registers of a wgmma" STAGE, "C7515",
       "k", LOG_SERIALISED, "accumulators are written"},
      {INFO "(C7516) " SERIALISED "ill formed pipeline stage in the function 'k'", "C7516", "k", LOG_SERIALISED,
       "every path"},
      {INFO "(C7518) " SERIALISED "program dependence on compiler-inserted WG.DP in divergent path in the function 'k'",
       "C7518", "k", LOG_SERIALISED, "a wait"},
      {INFO "(C7520) " SERIALISED "program dependence on compiler-inserted WG.AR in divergent path in the function 'k'",
       "C7520", "k", LOG_SERIALISED, "a fence"},
      {INFO "(C7519) " SERIALISED
            "program dependence on compiler-inserted WG.AR in divergent path in the function 'k' in "
            "line 69",
       "C7519", "k", LOG_SERIALISED, "a fence"},
      {INFO "(C7599) " SERIALISED "the weather in the function 'k'", "C7599", "k", LOG_SERIALISED, "compiler's note"},
      {INFO
       "(C7517) warpgroup.wait is injected in around line 60 by compiler to allow use of registers defined by GMMA "
       "in function 'k'",
       "C7517", "k", LOG_WAIT, "before a wait"},
      {INFO
       "(C7517) wgmma.wait_group is injected in around line 60 by compiler to allow use of registers defined by GMMA "
       "in function 'k'",
       "C7517", "k", LOG_WAIT, "before a wait"},
      {INFO "(C7519) warpgroup.arrive is injected in around line 61 by compiler to allow use of registers in GMMA in "
            "function 'k'",
       "C7519", "k", LOG_FENCE, "without a fence"},
      {INFO "(C7777) something new", "C7777", "", LOG_WARNING, "something new"},
      {INFO LOSS "something newer", "", "", LOG_WARNING, "something newer"},
      {"ptxas warning : Value of threads per SM for entry k is out of range", "", "", LOG_WARNING, "Value of threads"},
      {"ptxas /tmp/a.ptx, line 9; warning : Advisory: x", "", "", LOG_WARNING, "Advisory: x"},
      {"kernel.cu(8): warning #177-D: variable \"x\" was declared but never referenced", "#177-D", "", LOG_WARNING,
       "variable \"x\""},
      {"kernel.cu:7:3: warning: y", "", "", LOG_WARNING, "y"},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    log_advisory a;
    char meaning[256] = "";
    if (!log_parse_advisory(rows[n].line, strlen(rows[n].line), &a))
      fail_msg("row %zu was not read as an advisory: %s", n, rows[n].line);
    memcpy(meaning, a.meaning.at, a.meaning.length);
    if (a.kind != rows[n].kind || a.code.length != strlen(rows[n].code) ||
        a.function.length != strlen(rows[n].function) || !strstr(meaning, rows[n].word) ||
        (a.code.length && memcmp(a.code.at, rows[n].code, a.code.length)))
      fail_msg("row %zu was read as kind %d, code '%.*s', function '%.*s', '%s': %s", n, (int)a.kind,
               (int)a.code.length, a.code.at, (int)a.function.length, a.function.at, meaning, rows[n].line);
    assert_true(log_is_note(rows[n].line, strlen(rows[n].line)));
  }
}

static void test_no_advisories(void **state) {
  (void)state;
  static const struct {
    const char *line;
    int note;
  } rows[] = {
      {"", 0},
      {INFO "0 bytes gmem", 0},
      {INFO "Compiling entry function 'k' for 'sm_90a'", 0},
      {INFO "Used 168 registers, used 1 barriers", 0},
      {"ptxas         .     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", 0},
      {"  int warning = 3; // wgmma.mma_async instructions are serialized", 1}, /* NVRTC shows a source line */
      {"kernel.cu(3): error: identifier \"x\" is undefined", 1},
      {"ptxas fatal   : Unresolved extern function 'f'", 1},
      {"ptxas fatal   : (C7602) Insufficient registers (32) to compile instruction at line 315 in function k.", 1},
      {INFO "(C", 0},
      {INFO "(C7510", 0},
      {"ptxas ", 0},
  };
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    log_advisory a;
    size_t length = strlen(rows[n].line);
    char *copy = strdup(rows[n].line); /* its end is watched under AddressSanitizer */
    assert_non_null(copy);
    if (log_parse_advisory(copy, length, &a) || log_is_note(copy, length) != rows[n].note)
      fail_msg("row %zu was read as an advisory or as a note: %s", n, rows[n].line);
    free(copy);
  }
}

/* ---- Logs ---- */

/* ptxas speaks of the module first and of its entries afterwards. */
static void test_whose(void **state) {
  (void)state;
  static const char log[] =
      INFO "0 bytes gmem\n" INFO "(C7511) " SERIALISED
           "insufficient register resources for the wgmma pipeline in the function 'a'\n" INFO "(C7514) " SERIALISED
           "non wgmma instructions reading accumulator registers of  a wgmma" STAGE "\n" INFO
           "(C7517) warpgroup.wait is injected in around line 7 by compiler to allow use of "
           "registers defined by GMMA in function '_Z4stepPfyy'\n" INFO "(C7508) " IGNORED
           "; unable to determine register count at entry.\n" ENTRY("a", "0") ENTRY("k", "12");
  device_resources r;
  log_resources(log, "a", &r);
  assert_int_equal(r.serialised_wgmma, 1);
  assert_int_equal(r.ignored_setmaxnreg, 1); /* it may be either's */
  assert_int_equal(r.added_waits, 1);        /* a function's, which any entry may call */
  assert_int_equal(r.added_fences + r.warnings + r.spill_stores, 0);
  log_resources(log, "k", &r);
  assert_int_equal(r.serialised_wgmma, 1);
  assert_int_equal(r.spill_stores, 12);
  log_resources(log, "elsewhere", &r);
  assert_int_equal(r.registers, -1);
  assert_int_equal(r.serialised_wgmma + r.ignored_setmaxnreg + r.added_waits, 0);
  text t = {0};
  log_advise(log, "a", &t);
  assert_string_equal(t.bytes, "a: wgmma serialised (C7511): too few registers for all accumulators in flight\n"
                               "a: wait for wgmma added (C7517): accumulators are used before a wait of the source\n"
                               "a: setmaxnreg ignored (C7508): launch bounds do not fix the registers at entry\n");
  text_free(&t);
  log_advise(log, "elsewhere", &t);
  log_advise(NULL, "a", &t);
  assert_int_equal(t.size, 0);
  text_free(&t);
}

/* Equal causes share a line; fences are counted but are not worth one; a flood of causes is counted in full. */
static void test_many(void **state) {
  (void)state;
  text log = {0}, t = {0};
  for (int n = 0; n < 3; n++)
    text_printf(&log,
                INFO "(C7519) warpgroup.arrive is injected in around line %d\n" INFO
                     "(C7517) warpgroup.wait is injected in around line %d\n",
                n, n);
  for (int n = 0; n < 40; n++)
    text_printf(&log, "kernel.cu(%d): warning #177-D: variable \"x%d\" was declared\n", n + 1, n);
  text_puts(&log, ENTRY("k", "0"));
  device_resources r;
  log_resources(log.bytes, "k", &r);
  assert_int_equal(r.added_fences, 3);
  assert_int_equal(r.added_waits, 3);
  assert_int_equal(r.warnings, 40);
  log_advise(log.bytes, "k", &t);
  assert_non_null(strstr(t.bytes, "before a wait of the source, 3 times\n"));
  assert_non_null(strstr(t.bytes, "k: compiler warning (#177-D): variable \"x0\" was declared\n"));
  assert_null(strstr(t.bytes, "fence"));
  text_free(&t);
  text_free(&log);
}

/* ---- Logs of NVRTC ---- */

static char *source_of_faults(void) {
  FILE *f = fopen(QKV_SOURCE_DIR "/tests/unit/wgmma_faults.cu", "rb");
  text t = {0};
  char buffer[4096];
  assert_non_null(f);
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;)
    text_add(&t, buffer, n);
  fclose(f);
  assert_false(t.failed);
  return t.bytes;
}

/* Compiles the file with this in front and reads what the log says of its kernel. */
static void compile_fault(const char *source, const char *fault, device_resources *out, char **log) {
  text whole = {0};
  device_image image;
  text_printf(&whole, "%s\n%s", fault, source);
  if (compiler_nvrtc.compile(whole.bytes, "sm_90a", &image) != QKV_OK)
    fail_msg("'%s' in front of wgmma_faults.cu: %s", fault, error_message());
  compiler_nvrtc.resources(image.log, "k", out);
  *log = image.log;
  image.log = NULL;
  image_free(&image);
  text_free(&whole);
}

/* Codes differ between releases of CUDA, kinds do not. */
static void test_faults(void **state) {
  (void)state;
  char identity[512];
  if (compiler_nvrtc.identity(identity, sizeof identity) == QKV_NO_COMPILER)
    skip();
  static const struct {
    const char *fault;
    int serialised, ignored, waits, warnings, spills; /* at least one, or none */
  } rows[] = {
      {.fault = ""},
      {"#define READ", .waits = 1},
      {"#define WRITTEN", .serialised = 1},
      {"#define CONDITIONAL", .serialised = 1},
      {"#define OPERAND", .serialised = 1},
      {"#define CALLED", .serialised = 1},
      {"#define POINTER", .serialised = 1},
      {.fault = "#define INCREASE"},
      {"#define INCREASE\n#define BOUNDS", .ignored = 1},
      {"#define DECREASE_AND_CALL", .ignored = 1, .serialised = 1},
      {"#define DECREASE_TOO_FAR", .ignored = 1},
      {.fault = "#define SPILL"},
      {"#define SPILL\n#define BOUNDS __launch_bounds__(1024, 1)", .spills = 1},
      {"#define UNUSED", .warnings = 1},
  };
  char *source = source_of_faults();
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    device_resources r;
    char *log;
    compile_fault(source, rows[n].fault, &r, &log);
    if (r.registers <= 0 || rows[n].serialised != (r.serialised_wgmma > 0) ||
        rows[n].ignored != (r.ignored_setmaxnreg > 0) || rows[n].waits != (r.added_waits > 0) ||
        rows[n].warnings != (r.warnings > 0) || rows[n].spills != (r.spill_stores > 0 && r.spill_loads > 0))
      fail_msg("'%s' in front of wgmma_faults.cu, %s: %d registers, %d serialised, %d ignored, %d waits, %d warnings, "
               "%d bytes spilled; the log:\n%s",
               rows[n].fault, identity, r.registers, r.serialised_wgmma, r.ignored_setmaxnreg, r.added_waits,
               r.warnings, r.spill_stores, log);
    free(log);
  }
  free(source);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_places),     cmocka_unit_test(test_resources),
                                     cmocka_unit_test(test_advisories), cmocka_unit_test(test_no_advisories),
                                     cmocka_unit_test(test_whose),      cmocka_unit_test(test_many),
                                     cmocka_unit_test(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
