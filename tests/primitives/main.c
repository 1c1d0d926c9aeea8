/* main.c: runs every primitive on a device and on the emulator in order, with the same inputs, and compares the bits.
 *
 *   primitives                          emulator against itself: in order, in reverse, at random
 *   primitives --device cuda            GPU against emulator: what the emulator means is what the GPU does
 *   primitives --device cuda --filter wgmma/17 --seed 3
 *   primitives --compile sm_90a         only compiles the sources with NVRTC, all primitives included
 *
 * Exit status: 0 all agree, 1 some do not, 2 usage or set-up, 77 no compiler (--compile). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/formats.h"
#include "emulator/emu_inputs.h"
#include "primitives.h"

enum { NO_COMPILER = 77, ORDERS = 2 };

typedef struct options {
  const char *device, *filter, *compile;
  uint64_t seed;
} options;

/* One opened device with the source at hand compiled and loaded. */
typedef struct target {
  const device_ops *ops;
  const compiler_ops *compiler;
  char arch[16];
  int arch_number;
  device *d;
  device_module *m;
  device_image image;
} target;

/* ---- Targets ---- */

static bool fail(const char *what) {
  fprintf(stderr, "primitives: %s: %s\n", what, error_message());
  return false;
}

static bool open_target(target *t, bool cuda, int ordinal, uint64_t seed) {
  qkv_options o = QKV_OPTIONS_INIT;
  qkv_device_info info = {.size = sizeof info};
  o.emu_seed = seed;
  *t = (target){.ops = cuda ? &device_cuda : &device_emu, .compiler = cuda ? &compiler_nvrtc : &compiler_emulator};
  if (t->ops->open(ordinal, &o, &t->d) || t->ops->info(t->d, &info))
    return fail(t->ops->name);
  /* The emulator does every architecture's primitives; wgmma and the like are in the suffixed ones only. */
  t->arch_number = cuda ? 10 * info.compute_major + info.compute_minor : 90;
  snprintf(t->arch, sizeof t->arch, "sm_%d%s", t->arch_number, t->arch_number >= 90 ? "a" : "");
  if (cuda)
    printf("%s, %s\n", info.name, t->arch);
  return true;
}

static bool load_source(target *t, source_id id) {
  text source = {0};
  bool ok = source_render(id, &source);
  if (ok && (t->compiler->compile(source.bytes, t->arch, &t->image) ||
             t->ops->load(t->d, t->image.bytes, t->image.size, sources[id].path, &t->m)))
    ok = fail(sources[id].path);
  text_free(&source);
  return ok;
}

static void unload_source(target *t) {
  t->ops->unload(t->d, t->m);
  image_free(&t->image);
  t->m = NULL;
  t->image = (device_image){0};
}

/* ---- One run ---- */

static qkv_status upload(target *t, const problem *p, void *memory[MAX_BUFFERS]) {
  qkv_status status = QKV_OK;
  for (int i = 0; !status && i < p->buffers; i++) {
    status = t->ops->alloc(t->d, p->buffer[i].size, &memory[i]);
    if (!status)
      status = t->ops->copy_to_device(t->d, memory[i], p->buffer[i].bytes, p->buffer[i].size);
  }
  return status;
}

static qkv_status launch(target *t, const problem *p, void *memory[MAX_BUFFERS]) {
  sm90_params params = {.in = memory[IN], .out = memory[OUT], .mode = p->mode, .n = p->n};
  memcpy(params.x, p->x, sizeof p->x);
  qkv_status status = QKV_OK;
  for (int i = 0; !status && i < p->maps; i++) {
    device_tensor_map map = p->map[i];
    map.base = (unsigned char *)memory[p->map_buffer[i]] + p->map_offset[i];
    status = t->ops->tensor_map(t->d, &map, params.map[i]);
  }
  device_kernel *k;
  if (!status)
    status = t->ops->kernel(t->d, t->m, p->entry, p->block, p->shared_bytes, p->cluster, &k);
  const device_launch launch = {p->grid, p->block, p->shared_bytes, &params, sizeof params, p->cluster, false};
  if (!status)
    status = t->ops->launch(t->d, k, &launch, NULL);
  return status ? status : t->ops->synchronize(t->d);
}

/* Runs the problem; its buffers then hold what the device left in them. */
static qkv_status run(target *t, problem *p) {
  void *memory[MAX_BUFFERS] = {0};
  qkv_status status = upload(t, p, memory);
  if (!status)
    status = launch(t, p, memory);
  for (int i = 0; !status && i < p->buffers; i++)
    status = t->ops->copy_to_host(t->d, p->buffer[i].bytes, memory[i], p->buffer[i].size);
  for (int i = 0; i < p->buffers; i++)
    t->ops->free(t->d, memory[i]);
  return status;
}

/* ---- Comparison ---- */

static bool near_float(float got, float expected, double tolerance, double least) {
  if (isnan(expected) || isnan(got) || isinf(expected) || isinf(got))
    return got == expected || (isnan(got) && isnan(expected));
  double size = fabs((double)expected);
  return fabs((double)got - expected) <= tolerance * (size > least ? size : least) + 0x1p-148;
}

static bool agree(uint32_t got, uint32_t expected, word_kind kind, double tolerance) {
  float g = format_float(got), e = format_float(expected);
  if (got == expected)
    return true;
  if (kind == NUMBER)
    return isnan(g) && isnan(e);
  if (kind == RELATIVE || kind == ABSOLUTE)
    return near_float(g, e, tolerance, kind == ABSOLUTE);
  if (kind == BF16_PAIR)
    return near_float(format_from_bf16((uint16_t)got), format_from_bf16((uint16_t)expected), tolerance, 1) &&
           near_float(format_from_bf16((uint16_t)(got >> 16)), format_from_bf16((uint16_t)(expected >> 16)), tolerance,
                      1);
  return false;
}

/* Describes the first difference. */
static bool same_results(const problem *got, const problem *expected, char *why, size_t size) {
  for (int i = 0; i < got->buffers; i++) {
    const buffer *g = &got->buffer[i], *e = &expected->buffer[i];
    int differ = 0;
    for (size_t w = 0; w < g->size / 4; w++) {
      uint32_t a, b;
      memcpy(&a, g->bytes + 4 * w, 4);
      memcpy(&b, e->bytes + 4 * w, 4);
      if (agree(a, b, e->rule.kind[w % PERIOD], e->rule.tolerance[w % PERIOD]))
        continue;
      if (!differ++)
        snprintf(why, size, "buffer %d, word %zu is 0x%08x (%a), the emulator's 0x%08x (%a)", i, w, a,
                 (double)format_float(a), b, (double)format_float(b));
    }
    if (differ) {
      size_t used = strlen(why);
      snprintf(why + used, size - used, "; %d of %zu words differ", differ, g->size / 4);
      return false;
    }
  }
  return true;
}

static void make(problem *p, const problem_family *f, int number, uint64_t seed) {
  uint64_t random = seed * 0x9e3779b97f4a7c15u + (uint64_t)number;
  *p = (problem){0};
  f->make(p, number, &random);
}

static bool check(target *reference, target *tested, const problem_family *f, int number, const options *o) {
  problem expected, got;
  char why[256] = "";
  make(&expected, f, number, o->seed);
  make(&got, f, number, o->seed);
  bool ok = true;
  if (run(reference, &expected)) {
    snprintf(why, sizeof why, "on the emulator: %.200s", error_message());
    ok = false;
  } else if (run(tested, &got)) {
    snprintf(why, sizeof why, "%.200s", error_message());
    ok = false;
  } else {
    ok = same_results(&got, &expected, why, sizeof why);
  }
  if (!ok)
    printf("FAILED %s/%d\n  %s\n  primitives --device %s --filter %s/%d --seed %llu\n", f->name, number, why, o->device,
           f->name, number, (unsigned long long)o->seed);
  problem_free(&expected);
  problem_free(&got);
  return ok;
}

/* ---- All of them ---- */

typedef struct tally {
  int passed, failed;
} tally;

/* "wgmma", "wgmma/17", or a part of a name. */
static bool is_wanted(const options *o, const problem_family *f, int number) {
  char name[64];
  const char *slash = o->filter ? strchr(o->filter, '/') : NULL;
  if (slash) {
    snprintf(name, sizeof name, "%s/%d", f->name, number);
    return strcmp(name, o->filter) == 0;
  }
  return !o->filter || strstr(f->name, o->filter);
}

static bool check_source(target *reference, target *devices, int count, source_id id, const options *o, tally *t) {
  bool ok = load_source(reference, id);
  for (int d = 0; ok && d < count; d++)
    ok = load_source(&devices[d], id);
  for (int i = 0; ok && i < family_count; i++)
    for (int n = 0; n < families[i].count && t->failed < 50; n++)
      for (int d = 0; families[i].source == id && is_wanted(o, &families[i], n) && d < count; d++)
        *(check(reference, &devices[d], &families[i], n, o) ? &t->passed : &t->failed) += 1;
  for (int d = 0; d < count; d++)
    unload_source(&devices[d]);
  unload_source(reference);
  return ok;
}

static int run_all(const options *o) {
  bool cuda = strncmp(o->device, "cuda", 4) == 0;
  const char *colon = strchr(o->device, ':');
  int count = cuda ? 1 : ORDERS;
  target reference = {0}, devices[ORDERS] = {0};
  tally t = {0};
  bool ok = open_target(&reference, false, 0, 0);
  for (int d = 0; ok && d < count; d++)
    ok = open_target(&devices[d], cuda, colon ? atoi(colon + 1) : 0, (uint64_t)d + 1);
  for (int id = 0; ok && id < SOURCES; id++) {
    if (devices[0].arch_number < sources[id].min_arch) {
      printf("%s needs sm_%d: left out\n", sources[id].path, sources[id].min_arch);
      continue;
    }
    ok = check_source(&reference, devices, count, (source_id)id, o, &t);
  }
  for (int d = 0; d < count; d++)
    if (devices[d].d)
      devices[d].ops->close(devices[d].d);
  if (reference.d)
    reference.ops->close(reference.d);
  printf("%d passed, %d failed\n", t.passed, t.failed);
  if (ok && !t.passed && !t.failed)
    fprintf(stderr, "primitives: nothing matches the filter\n");
  return !ok || !(t.passed + t.failed) ? 2 : t.failed > 0;
}

static int compile_all(const char *arch) {
  char identity[256];
  if (compiler_nvrtc.identity(identity, sizeof identity)) {
    fprintf(stderr, "primitives: %s\n", error_message());
    return NO_COMPILER;
  }
  int failed = 0;
  for (int id = 0; id < SOURCES; id++) {
    if (atoi(arch + strcspn(arch, "0123456789")) < sources[id].min_arch)
      continue;
    text source = {0};
    device_image image = {0};
    if (!source_render((source_id)id, &source))
      return 2;
    if (compiler_nvrtc.compile(source.bytes, arch, &image)) {
      fprintf(stderr, "%s: %s\n", sources[id].path, error_message());
      failed++;
    }
    image_free(&image);
    text_free(&source);
  }
  return failed > 0;
}

static bool parse(int argc, char **argv, options *o) {
  for (int i = 1; i < argc; i += 2) {
    const char *value = argv[i + 1]; /* NULL behind the last */
    if (!value)
      return false;
    if (strcmp(argv[i], "--device") == 0)
      o->device = value;
    else if (strcmp(argv[i], "--filter") == 0)
      o->filter = value;
    else if (strcmp(argv[i], "--seed") == 0)
      o->seed = strtoull(value, NULL, 10);
    else if (strcmp(argv[i], "--compile") == 0)
      o->compile = value;
    else
      return false;
  }
  return strcmp(o->device, "emu") == 0 || strcmp(o->device, "cuda") == 0 || strncmp(o->device, "cuda:", 5) == 0;
}

int main(int argc, char **argv) {
  options o = {.device = "emu", .seed = 1};
  if (!parse(argc, argv, &o)) {
    fprintf(stderr, "usage: primitives [--device emu|cuda[:N]] [--filter NAME[/N]] [--seed N] | --compile ARCH\n");
    return 2;
  }
  return o.compile ? compile_all(o.compile) : run_all(&o);
}
