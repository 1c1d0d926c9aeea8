/* qkv_doctor.c: what this machine has, what is missing, and what to do about it.
 *
 * Every check yields one finding: a name, whether it is well, what was found, and the remedy. Text and JSON print the
 * same list. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_api.h"
#include "nvrtc_library.h"
#include "qkv_internal.h"

enum { MAX_FINDINGS = 32 };

typedef struct finding {
  char name[32];
  int well;
  text found, remedy; /* remedy may be empty */
} finding;

typedef struct report {
  finding items[MAX_FINDINGS];
  int count;
} report;

static finding *add(report *r, const char *name) {
  finding *f = &r->items[r->count < MAX_FINDINGS ? r->count++ : MAX_FINDINGS - 1];
  text_clear(&f->found);
  text_clear(&f->remedy);
  snprintf(f->name, sizeof f->name, "%s", name);
  return f;
}

static int check_gpus(report *r) {
  const cuda_api *api;
  int version = 0, count = 0, usable = 0;
  finding *driver = add(r, "driver");
  if (cuda_get(&api) != QKV_OK) {
    text_puts(&driver->found, error_message());
    text_puts(&driver->remedy,
              "install the NVIDIA driver (525 or newer), or run on the emulated device (--device emu)");
    return 0;
  }
  api->driver_version(&version);
  driver->well = 1;
  text_printf(&driver->found, "for CUDA %d.%d", version / 1000, version % 1000 / 10);
  api->device_count(&count);
  for (int n = 0; n < count; n++) {
    device *d;
    qkv_device_info info = {.size = sizeof info};
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", n);
    finding *gpu = add(r, name);
    qkv_status status = device_cuda.open(n, NULL, &d);
    if (status == QKV_OK && (status = device_cuda.info(d, &info)) != QKV_OK)
      device_cuda.close(d);
    if (status != QKV_OK) {
      text_puts(&gpu->found, error_message());
      continue;
    }
    const arch *a = arch_for_capability(info.compute_major, info.compute_minor);
    text_printf(&gpu->found, "%s, compute capability %d.%d, %d SMs, %lld MiB", info.name, info.compute_major,
                info.compute_minor, info.sm_count, (long long)(info.memory_bytes >> 20));
    gpu->well = a != NULL;
    usable += a != NULL;
    if (!a)
      text_puts(&gpu->remedy, "this version generates no code for it; qkvc needs compute capability 8.0 or newer");
    device_cuda.close(d);
  }
  if (count == 0) {
    finding *gpu = add(r, "gpu");
    text_puts(&gpu->found, "the driver shows no GPU");
    text_puts(&gpu->remedy, "check nvidia-smi and CUDA_VISIBLE_DEVICES, and that the container was started with GPUs");
  }
  return usable > 0;
}

/* A tiny kernel through the whole of NVRTC: also finds missing builtins. */
static int check_nvrtc(report *r) {
  static const char source[] = "extern \"C\" __global__ void probe(float *p) { p[threadIdx.x] = 1.0f; }\n";
  const nvrtc_library *n;
  device_image image = {0};
  finding *f = add(r, "nvrtc");
  if (nvrtc_get(&n) != QKV_OK) {
    text_puts(&f->found, error_message());
    text_puts(&f->remedy,
              "install a CUDA toolkit (12.0 or newer), or `pip install nvidia-cuda-nvrtc`, or set QKV_NVRTC");
    return 0;
  }
  double start = seconds_now();
  f->well = compiler_nvrtc.compile(source, "sm_80", &image) == QKV_OK;
  if (f->well) {
    text_printf(&f->found, "%d.%d (%s), a first kernel in ", n->major, n->minor, n->path);
    text_fixed(&f->found, seconds_now() - start, 3);
    text_puts(&f->found, " s");
  } else {
    text_puts(&f->found, error_message());
    text_puts(&f->remedy, "reinstall the CUDA toolkit or wheel: its libraries do not belong together");
  }
  image_free(&image);
  return f->well;
}

static void check_emulator(report *r) {
  char identity[512];
  finding *f = add(r, "g++");
  f->well = compiler_emulator.identity(identity, sizeof identity) == QKV_OK;
  text_puts(&f->found, f->well ? identity : error_message());
  if (!f->well)
    text_puts(&f->remedy, "install g++ to run kernels without a GPU (device emu)");
}

static void keep_warning(const char *message, void *user) {
  text_puts(user, message);
}

/* Opens the directory as an engine would and publishes, reads and removes an entry. */
static void check_cache(report *r, const qkv_options *o) {
  text warning = {0};
  finding *f = add(r, "cache");
  cache *c = cache_open(o->cache_dir, keep_warning, &warning);
  char key[CACHE_KEY_SIZE];
  cache_entry got = {0}, entry = {.manifest = (char[]){""}, .image = (char[]){"probe"}, .image_size = 5};
  snprintf(key, sizeof key, "%032lx", (unsigned long)getpid());
  if (c && *cache_path(c)) {
    f->well = cache_write(c, key, &entry) == 0 && cache_read(c, key, &got) == CACHE_HIT;
    cache_remove(c, key);
    cache_entry_free(&got);
    text_printf(&f->found, "%s (%s file system)%s", cache_path(c), cache_file_system(cache_path(c), NULL),
                f->well ? ", readable and writable" : "");
  } else if (!warning.bytes) {
    f->well = 1;
    text_puts(&f->found, "in memory only, as configured");
  }
  if (warning.bytes) {
    text_printf(&f->found, "%s%s", f->found.size ? ": " : "", warning.bytes);
    text_puts(&f->remedy, "set QKV_CACHE_DIR to a directory of your own");
  }
  text_free(&warning);
  cache_close(c);
}

static void print_report(const report *r, int healthy, int json, text *out) {
  text_puts(out, json ? "{\"version\": " : "qkvc ");
  if (json)
    text_json_string(out, qkv_version());
  else
    text_puts(out, qkv_version());
  text_puts(out, json ? ", \"findings\": [" : "\n");
  for (int n = 0; n < r->count; n++) {
    const finding *f = &r->items[n];
    const char *found = f->found.bytes ? f->found.bytes : "", *remedy = f->remedy.bytes ? f->remedy.bytes : "";
    if (json) {
      text_puts(out, n ? ", {\"name\": " : "{\"name\": ");
      text_json_string(out, f->name);
      text_printf(out, ", \"ok\": %s, \"found\": ", f->well ? "true" : "false");
      text_json_string(out, found);
      text_puts(out, ", \"remedy\": ");
      text_json_string(out, remedy);
      text_puts(out, "}");
    } else {
      text_printf(out, "%-7s %-8s %s\n", f->well ? "ok" : "missing", f->name, found);
      if (*remedy)
        text_printf(out, "                 -> %s\n", remedy);
    }
  }
  if (json)
    text_printf(out, "], \"healthy\": %s}\n", healthy ? "true" : "false");
  else
    text_puts(out, healthy ? "Kernels can be compiled and run on a GPU.\n"
                           : "Kernels cannot be compiled and run on a GPU here.\n");
}

qkv_status qkv_doctor(const qkv_options *opt, int json, int *healthy, char **out) {
  qkv_options o;
  if (!out)
    return error_set(QKV_INVALID_ARGUMENT, "out is NULL");
  *out = NULL;
  qkv_status status = options_resolve(opt, &o);
  report *r = calloc(1, sizeof *r);
  if (status == QKV_OK && !r)
    status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (status == QKV_OK) {
    int gpu = check_gpus(r), compiler = check_nvrtc(r);
    check_emulator(r);
    check_cache(r, &o);
    if (healthy)
      *healthy = gpu && compiler;
    text t = {0};
    print_report(r, gpu && compiler, json, &t);
    status = text_give(&t, out);
  }
  for (int n = 0; r && n < r->count; n++) {
    text_free(&r->items[n].found);
    text_free(&r->items[n].remedy);
  }
  free(r);
  return status;
}
