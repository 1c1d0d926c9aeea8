/* compiler_emulator.c: g++ as the compiler of emulated kernels. The source and the emulator's headers, which travel
 * inside the library, go into a private folder; one run of g++ makes a shared object whose every plain load and store
 * calls back (-fsanitize=thread, without the sanitizer's runtime); the object is read back and the folder removed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "device.h"
#include "emu/process.h"

/* Generated at build time by tools/embed.c from runtime/emu/; same layout as the generator's table of templates. */
typedef struct emu_file {
  const char *path;
  const char *bytes;
  size_t size;
} emu_file;
extern const emu_file emu_files[];
extern const int emu_file_count;

/* What a kernel is compiled against; the folder's other headers are the emulator's own. */
static const char *const needed[] = {"emu.h",         "formats.h",       "kernel.h",      "kernel_base.h",
                                     "kernel_cuda.h", "kernel_access.h", "kernel_math.h", "kernel_sm80.h",
                                     "kernel_sm90.h"};
enum { NEEDED = sizeof needed / sizeof *needed };

/* -O1 keeps every access apart and compiles fast; -nodefaultlibs keeps the sanitizer's runtime out; wrapping integers
 * and uncontracted floats are what the GPU does. Debug lines serve fault reports; the prefix map keeps the folder out.
 */
static const char *const flags[] = {"-x",
                                    "c++",
                                    "-std=c++17",
                                    "-O1",
                                    "-g1",
                                    "-pipe",
                                    "-w",
                                    "-fsanitize=thread",
                                    "-fno-exceptions",
                                    "-fno-rtti",
                                    "-fwrapv",
                                    "-fno-strict-aliasing",
                                    "-ffp-contract=off",
                                    "-fstack-reuse=none",
                                    "-fPIC",
                                    "-fvisibility=hidden",
                                    "-DQKV_EMU",
                                    "-include",
                                    "kernel.h",
                                    "-shared",
                                    "-nodefaultlibs",
                                    "-nostartfiles",
                                    "-o",
                                    "kernel.so",
                                    "kernel.cu",
                                    "-lm",
                                    "-lc"};
enum { FLAGS = sizeof flags / sizeof *flags };

static const emu_file *find_header(const char *name) {
  for (int i = 0; i < emu_file_count; i++)
    if (strcmp(emu_files[i].path, name) == 0)
      return &emu_files[i];
  return NULL;
}

/* ---- Which g++ ---- */

static const char *compiler_path(void) {
  const char *chosen = getenv("QKV_EMU_CXX");
  return chosen && *chosen ? chosen : "g++";
}

static qkv_status no_compiler(const char *path, const char *why) {
  return error_set(QKV_NO_COMPILER,
                   "the emulated device needs GNU g++ 9 or newer: %s%s; install the package g++ or set QKV_EMU_CXX",
                   path, why);
}

/* First line of `g++ --version`, cut to size. */
static qkv_status version(char *out, size_t size) {
  const char *path = compiler_path();
  char *copy = strdup(path), option[] = "--version";
  if (!copy)
    return error_set(QKV_OUT_OF_MEMORY, "no memory to look for g++");
  process_result r = process_run((char *[]){copy, option, NULL}, NULL, -1);
  free(copy);
  qkv_status status = QKV_OK;
  if (!r.started || r.exit_code > 0)
    status = no_compiler(path, strchr(path, '/') ? " could not be run" : " was not found in PATH");
  else if (strstr(r.output, "clang"))
    status = no_compiler(path, " is clang, which leaves out accesses that the emulator must see");
  else
    snprintf(out, size, "%.*s", (int)strcspn(r.output, "\n"), r.output);
  free(r.output);
  return status;
}

static uint64_t stamp(void) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (int i = 0; i < NEEDED; i++) {
    const emu_file *header = find_header(needed[i]);
    if (header)
      XXH3_64bits_update(&state, header->bytes, header->size);
  }
  for (int i = 0; i < FLAGS; i++)
    XXH3_64bits_update(&state, flags[i], strlen(flags[i]) + 1);
  return XXH3_64bits_digest(&state);
}

static qkv_status identity(char *out, size_t size) {
  char line[160];
  qkv_status status = version(line, sizeof line);
  if (status == QKV_OK)
    snprintf(out, size, "%s, emulator %016llx", line, (unsigned long long)stamp());
  return status;
}

/* ---- Files ---- */

enum { FOLDER_SIZE = 512, PATH_SIZE = FOLDER_SIZE + 32 };

static bool make_folder(char folder[FOLDER_SIZE]) {
  const char *base = getenv("TMPDIR");
  int n = snprintf(folder, FOLDER_SIZE, "%s/qkvc-XXXXXX", base && *base ? base : "/tmp");
  if (n >= FOLDER_SIZE) {
    errno = ENAMETOOLONG;
    return false;
  }
  return mkdtemp(folder) != NULL;
}

static bool write_file(const char *folder, const char *name, const char *bytes, size_t size) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wbe");
  if (!file)
    return false;
  bool ok = fwrite(bytes, 1, size, file) == size;
  return fclose(file) == 0 && ok;
}

static bool read_file(const char *folder, const char *name, device_image *image) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rbe");
  struct stat info;
  if (!file)
    return false;
  bool ok = fstat(fileno(file), &info) == 0 && info.st_size > 0;
  if (ok) {
    image->size = (size_t)info.st_size;
    image->bytes = malloc(image->size);
    ok = image->bytes && fread(image->bytes, 1, image->size, file) == image->size;
  }
  fclose(file);
  if (!ok) {
    free(image->bytes);
    image->bytes = NULL;
    image->size = 0;
  }
  return ok;
}

static void remove_folder(const char *folder) {
  static const char *const made[] = {"kernel.cu", "kernel.so"};
  char path[PATH_SIZE];
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, made[i]);
    unlink(path);
  }
  for (int i = 0; i < NEEDED; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, needed[i]);
    unlink(path);
  }
  rmdir(folder);
}

static bool write_inputs(const char *folder, const char *source) {
  for (int i = 0; i < NEEDED; i++) {
    const emu_file *header = find_header(needed[i]);
    if (header && !write_file(folder, header->path, header->bytes, header->size))
      return false;
  }
  return write_file(folder, "kernel.cu", source, strlen(source));
}

/* ---- Compiling ---- */

/* "sm_90a" -> "-D__CUDA_ARCH__=900". */
static void arch_flag(const char *arch, char *out, size_t size) {
  int number = 0;
  for (const char *digit = arch && strncmp(arch, "sm_", 3) == 0 ? arch + 3 : ""; *digit >= '0' && *digit <= '9';
       digit++)
    number = number < 1000 ? 10 * number + (*digit - '0') : number;
  snprintf(out, size, "-D__CUDA_ARCH__=%d", number ? 10 * number : 800);
}

static process_result run_compiler(const char *folder, const char *arch) {
  char arch_text[40], map[PATH_SIZE + 32];
  arch_flag(arch, arch_text, sizeof arch_text);
  snprintf(map, sizeof map, "-ffile-prefix-map=%s=.", folder);
  char *argv[FLAGS + 4];
  int n = 0;
  argv[n++] = (char *)(uintptr_t)compiler_path(); /* posix_spawn does not write to its arguments */
  argv[n++] = arch_text;
  argv[n++] = map;
  for (int i = 0; i < FLAGS; i++)
    argv[n++] = (char *)(uintptr_t)flags[i];
  argv[n] = NULL;
  return process_run(argv, folder, -1);
}

static qkv_status compile(const char *source, const char *arch, device_image *image) {
  *image = (device_image){NULL, 0, NULL};
  char ignored[160], folder[FOLDER_SIZE];
  qkv_status status = version(ignored, sizeof ignored);
  if (status)
    return status;
  if (!make_folder(folder))
    return error_set(QKV_IO, "cannot make a folder for g++ in %s: %s; set TMPDIR to a writable folder", folder,
                     strerror(errno));
  if (!write_inputs(folder, source)) {
    status = error_set(QKV_IO, "cannot write the kernel's source into %s: %s", folder, strerror(errno));
  } else {
    process_result r = run_compiler(folder, arch);
    image->log = r.output;
    if (!r.started)
      status = no_compiler(compiler_path(), " could not be run");
    else if (r.exit_code > 0 || !read_file(folder, "kernel.so", image))
      status =
          error_set(QKV_COMPILE_ERROR, "g++ refused the generated source (exit code %d):\n%s", r.exit_code, r.output);
  }
  remove_folder(folder);
  return status;
}

/* g++ has nothing to say of registers. */
static void resources(const char *log, const char *entry, device_resources *out) {
  (void)log, (void)entry;
  *out = (device_resources){.registers = -1};
}

/* A shared object of this machine, all of whose segments are there: the loader trusts what it maps. */
static int plausible(const void *image, size_t size) {
#if defined(__x86_64__)
  enum { MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
  enum { MACHINE = EM_AARCH64 };
#else
  enum { MACHINE = EM_NONE };
#endif
  Elf64_Ehdr header;
  if (size < sizeof header)
    return 0;
  memcpy(&header, image, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_type != ET_DYN ||
      ((int)MACHINE != EM_NONE && (int)header.e_machine != (int)MACHINE))
    return 0;
  for (size_t i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr segment;
    if (header.e_phoff > size || (i + 1) * sizeof segment > size - header.e_phoff)
      return 0;
    memcpy(&segment, (const char *)image + header.e_phoff + i * sizeof segment, sizeof segment);
    if (segment.p_type == PT_LOAD && (segment.p_offset > size || segment.p_filesz > size - segment.p_offset))
      return 0;
  }
  return 1;
}

const compiler_ops compiler_emulator = {
    .name = "g++",
    .identity = identity,
    .compile = compile,
    .resources = resources,
    .plausible = plausible,
    .contract = stamp,
};
