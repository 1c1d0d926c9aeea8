/* nvrtc_stub.c: an NVRTC that fails on demand. Built by a test as a shared object and named by $QKV_NVRTC.
 *
 * $QKV_STUB: arch (the architecture is unknown), empty (success, no image), garbage (success, an image that is no ELF),
 * builtins (the companion library is missing), memory, syntax (a compile error), old (version 11.8), anything else:
 * works. Compiled with -DMISSING it lacks a function. An image says at 16 which architecture it is for.
 * $QKV_STUB_GATE is "WORD:PATH": a source that holds the word is compiled when the file PATH is there; meanwhile
 * PATH.waiting is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *mode) {
  const char *chosen = getenv("QKV_STUB");
  return chosen && !strcmp(chosen, mode);
}

int nvrtcVersion(int *major, int *minor);
int nvrtcGetNumSupportedArchs(int *count);
int nvrtcGetSupportedArchs(int *archs);
int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names);
int nvrtcDestroyProgram(void **program);
int nvrtcCompileProgram(void *program, int count, const char *const *options);
int nvrtcGetCUBINSize(void *program, size_t *size);
int nvrtcGetCUBIN(void *program, char *cubin);
int nvrtcGetProgramLogSize(void *program, size_t *size);
int nvrtcGetProgramLog(void *program, char *log);
const char *nvrtcGetErrorString(int result);

struct program {
  char arch[16], word[32], path[128];
  int waits;
};

static void wait_at_gate(const struct program *p) {
  char waiting[160];
  snprintf(waiting, sizeof waiting, "%s.waiting", p->path);
  FILE *f = p->waits ? fopen(waiting, "w") : NULL;
  if (f)
    fclose(f);
  while (p->waits && access(p->path, F_OK))
    usleep(1000);
}

static const char *stub_log(void) {
  return is("arch")       ? "nvrtc: error: invalid value for --gpu-architecture (-arch)\n"
         : is("builtins") ? "nvrtc: error: failed to open libnvrtc-builtins.so.12.3.\n"
         : is("syntax")   ? "kernel.cu(1): error: expected a declaration\n"
                          : "ptxas info    : Compile time = 1.000 ms\nptxas info    : Used 7 registers\n";
}

int nvrtcVersion(int *major, int *minor) {
  return *major = is("old") ? 11 : 12, *minor = 3, 0;
}
int nvrtcGetNumSupportedArchs(int *count) {
  return *count = 2, 0;
}
int nvrtcGetSupportedArchs(int *archs) {
  return archs[0] = 70, archs[1] = 86, 0;
}
int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names) {
  (void)name, (void)headers, (void)texts, (void)names;
  struct program *p = calloc(1, sizeof *p);
  const char *gate = getenv("QKV_STUB_GATE");
  if (gate && sscanf(gate, "%31[^:]:%127s", p->word, p->path) == 2)
    p->waits = strstr(source, p->word) != NULL;
  return *program = p, 0;
}
int nvrtcDestroyProgram(void **program) {
  return free(*program), *program = NULL, 0;
}
int nvrtcCompileProgram(void *program, int count, const char *const *options) {
  struct program *p = program;
  sscanf(options[0], "--gpu-architecture=%15s", p->arch);
  wait_at_gate(p);
  for (int n = 0; n < count; n++) /* options that version 12.3 does not know */
    if (!strcmp(options[n], "--no-cache") || !strcmp(options[n], "--minimal"))
      return 5;
  return is("arch") ? 5 : is("builtins") ? 7 : is("memory") ? 1 : is("syntax") ? 6 : 0;
}
int nvrtcGetCUBINSize(void *program, size_t *size) {
  return (void)program, *size = is("empty") ? 0 : 64, 0;
}
#ifndef MISSING
int nvrtcGetCUBIN(void *program, char *cubin) {
  const struct program *p = program;
  memset(cubin, 0, 64);
  snprintf(cubin + 16, 32, "stub %s", p->arch);
  return memcpy(cubin, is("garbage") ? "no" : "\177ELF", is("garbage") ? 2 : 4), 0;
}
#endif
int nvrtcGetProgramLogSize(void *program, size_t *size) {
  return (void)program, *size = strlen(stub_log()) + 1, 0;
}
int nvrtcGetProgramLog(void *program, char *log) {
  return (void)program, strcpy(log, stub_log()), 0;
}
const char *nvrtcGetErrorString(int result) {
  return result ? "NVRTC_ERROR_STUB" : "NVRTC_SUCCESS";
}
