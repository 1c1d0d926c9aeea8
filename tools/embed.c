/* embed.c: turns the files of a folder into one C file, so that they travel inside the library. Runs at build time
 * only.
 *
 *   embed SYMBOL DIR OUT.c [SUFFIX]
 *
 * OUT.c defines `const template_file SYMBOL[]`, sorted by path, and its length, named SYMBOL without its final "s" plus
 * "_count" (template_files -> template_file_count). Paths are relative to DIR with '/' between folders. Files and
 * folders whose names start with a dot, and editors' backups ("name~"), are left out; SUFFIX keeps only names that end
 * so. The output depends on nothing but the names and bytes of the files. */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char **paths; /* relative to the root */
static size_t path_count;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("embed: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  exit(1);
}

static char *join(const char *folder, const char *name) {
  size_t size = strlen(folder) + strlen(name) + 2;
  char *path = malloc(size);
  if (!path)
    fail("out of memory");
  snprintf(path, size, "%s%s%s", folder, *folder ? "/" : "", name);
  return path;
}

static int ends_with(const char *name, const char *suffix) {
  size_t n = strlen(name), m = strlen(suffix);
  return n >= m && strcmp(name + n - m, suffix) == 0;
}

/* Collects the files below root/folder. */
static void collect(const char *root, const char *folder, const char *suffix) {
  char *full = join(root, folder);
  DIR *directory = opendir(full);
  if (!directory)
    fail("%s: %s", full, strerror(errno));
  for (struct dirent *entry; (entry = readdir(directory));) {
    if (entry->d_name[0] == '.' || ends_with(entry->d_name, "~"))
      continue;
    char *path = join(folder, entry->d_name), *full_path = join(root, path);
    struct stat info;
    if (stat(full_path, &info) != 0)
      fail("%s: %s", full_path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
      collect(root, path, suffix);
      free(path);
    } else if (S_ISREG(info.st_mode) && ends_with(path, suffix)) {
      paths = realloc(paths, (path_count + 1) * sizeof *paths);
      if (!paths)
        fail("out of memory");
      paths[path_count++] = path;
    } else {
      free(path);
    }
    free(full_path);
  }
  closedir(directory);
  free(full);
}

static int compare_paths(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* One string literal a line of text: compiles fast, and a diff of the output reads like a diff of the file. */
static size_t write_bytes(FILE *in, FILE *out) {
  size_t size = 0;
  int line_open = 0;
  for (int c; (c = getc(in)) != EOF; size++) {
    if (!line_open)
      fputs("    \"", out);
    line_open = 1;
    if (c == '\n') {
      fputs("\\n\"\n", out);
      line_open = 0;
    } else if (c == '"' || c == '\\' || c == '?') { /* '?' against trigraphs */
      fprintf(out, "\\%c", c);
    } else if (c >= 32 && c < 127) {
      putc(c, out);
    } else { /* three octal digits, so that a digit may follow */
      fprintf(out, "\\%03o", (unsigned)c);
    }
  }
  fputs(line_open ? "\"" : "    \"\"", out);
  return size;
}

static void write_file(const char *root, const char *path, FILE *out) {
  char *full = join(root, path);
  FILE *in = fopen(full, "rb");
  if (!in)
    fail("%s: %s", full, strerror(errno));
  fprintf(out, "  {\"%s\",\n", path);
  size_t size = write_bytes(in, out);
  if (ferror(in))
    fail("%s: cannot read", full);
  fprintf(out, ", %zu},\n", size);
  fclose(in);
  free(full);
}

int main(int argc, char **argv) {
  if (argc != 4 && argc != 5)
    fail("usage: embed SYMBOL DIR OUT.c [SUFFIX]");
  const char *symbol = argv[1], *root = argv[2];
  if (!ends_with(symbol, "s"))
    fail("SYMBOL must be a plural: '%s'", symbol);
  collect(root, "", argc == 5 ? argv[4] : "");
  if (path_count)
    qsort(paths, path_count, sizeof *paths, compare_paths);

  FILE *out = fopen(argv[3], "wb");
  if (!out)
    fail("%s: %s", argv[3], strerror(errno));
  fprintf(out, "/* Made by tools/embed.c. */\n#include \"template.h\"\n\n");
  fprintf(out, "extern const template_file %s[];\n", symbol);
  fprintf(out, "extern const int %.*s_count;\n\n", (int)strlen(symbol) - 1, symbol);
  fprintf(out, "const template_file %s[] = {\n", symbol);
  for (size_t n = 0; n < path_count; n++)
    write_file(root, paths[n], out);
  fprintf(out, "  {0, 0, 0}};\nconst int %.*s_count = %zu;\n", (int)strlen(symbol) - 1, symbol, path_count);
  if (fclose(out) != 0)
    fail("%s: cannot write", argv[3]);
  return 0;
}
