/* lua_stdio.c: stand-ins for stdin, stdout and stderr in libqkv.so.
 *
 * The distribution's liblua5.4.a is compiled for executables and reaches these libc variables directly, which a shared
 * object cannot do; the linker's --wrap points it here instead. The template sandbox opens no library that would use them. */
#include <stdio.h>

extern FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;
FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;
