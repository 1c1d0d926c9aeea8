/* cuda_stub.h: runs a test on the driver of tests/fault/cuda_stub.c, which must be found as libcuda.so.1. */
#ifndef TESTS_UNIT_CUDA_STUB_H
#define TESTS_UNIT_CUDA_STUB_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Builds the stub and starts this program again where it is found, with $QKV_TEST_STUBBED. The exit code. */
static int cuda_stub_start(char **argv) {
  char folder[] = "/tmp/qkv-cuda-XXXXXX", command[512];
  if (!mkdtemp(folder))
    return 1;
  snprintf(command, sizeof command, "cc -shared -fPIC -w -o %s/libcuda.so.1 %s/tests/fault/cuda_stub.c", folder,
           QKV_SOURCE_DIR);
  if (system("cc --version >/dev/null 2>&1")) {
    rmdir(folder);
    fprintf(stderr, "no C compiler to build the stub: skipped\n");
    return 0;
  }
  int result = system(command);
  if (result == 0) {
    pid_t child = fork();
    if (child == 0) {
      setenv("LD_LIBRARY_PATH", folder, 1);
      setenv("QKV_TEST_STUBBED", "1", 1);
      execv("/proc/self/exe", argv);
      _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) | result;
}

#endif
