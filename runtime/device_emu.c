/* device_emu.c: the emulated device behind the device table: memory, modules (shared objects in anonymous files),
 * launches that run to their end before they return, and wall-clock events. All devices of a process share one machine
 * (emu/engine.h) behind one lock. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "emu/engine.h"
#include "emu/process.h"
#include "tensor_map.h"

enum { DEFAULT_GRANULE = 2 << 20 }; /* as on GPUs */

struct device {
  device_base base;
  uint64_t seed;
  emu_policy policy;
  size_t granule; /* bytes of physical memory that are mapped at once */
};

struct device_module {
  char name[64];
  void *handle;
  int fd; /* the image; open as long as it is loaded, so that its path stays unique */
  const unsigned char *low, *high;
  device_kernel *kernels;
};

struct device_kernel {
  device_kernel *next;
  device_module *module;
  char name[64];
  void (*entry)(const void *);
  size_t params_size;
  int shared_bytes;
};

struct device_event {
  struct timespec when;
};

struct device_graph {
  device_work work;
  void *user;
};

/* ---- Device ---- */

/* $QKV_EMU_POLICY: "in-order", "reverse" or "random"; otherwise seed 0 is in order, 1 in reverse, others random. */
static qkv_status choose_policy(uint64_t seed, emu_policy *out) {
  static const char *const names[] = {"in-order", "reverse", "random"};
  *out = seed == 0 ? EMU_IN_ORDER : seed == 1 ? EMU_REVERSE : EMU_RANDOM;
  const char *wanted = getenv("QKV_EMU_POLICY");
  if (!wanted || !*wanted)
    return QKV_OK;
  for (int i = 0; i < 3; i++)
    if (strcmp(wanted, names[i]) == 0) {
      *out = (emu_policy)i;
      return QKV_OK;
    }
  return error_set(QKV_INVALID_ARGUMENT, "QKV_EMU_POLICY is \"%s\"; it can be in-order, reverse or random", wanted);
}

static qkv_status emu_open(int ordinal, const qkv_options *options, device **out) {
  *out = NULL;
  if (ordinal != 0)
    return error_set(QKV_NO_DEVICE, "emu:%d: there is one emulated device, emu:0", ordinal);
  size_t granule = options && options->emu_granule ? options->emu_granule : DEFAULT_GRANULE;
  if (granule & (granule - 1) || granule % (size_t)sysconf(_SC_PAGESIZE))
    return error_set(QKV_INVALID_ARGUMENT, "emu_granule: %zu bytes are not a power of two of whole pages", granule);
  device *d = calloc(1, sizeof *d);
  if (!d)
    return error_set(QKV_OUT_OF_MEMORY, "no memory for the emulated device");
  d->base.ops = &device_emu;
  d->seed = options ? options->emu_seed : 0;
  d->granule = granule;
  qkv_status status = choose_policy(d->seed, &d->policy);
  emu_lock();
  if (!status && !machine_open())
    status = error_set(QKV_OUT_OF_MEMORY, "no memory for the emulated device");
  emu_unlock();
  if (status)
    free(d);
  else
    *out = d;
  return status;
}

static void emu_close(device *d) {
  if (!d)
    return;
  emu_lock();
  machine_close();
  emu_unlock();
  free(d);
}

static qkv_status emu_info(device *d, qkv_device_info *out) {
  (void)d;
  snprintf(out->name, sizeof out->name, "emu");
  snprintf(out->kind, sizeof out->kind, "emu");
  snprintf(out->arch, sizeof out->arch, "sm_80");
  out->ordinal = 0;
  out->sm_count = EMU_SM_COUNT;
  out->compute_major = 8;
  out->compute_minor = 0;
  out->l2_bytes = 4 << 20;
  out->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  out->driver_version = 0;
  out->clock_hz = 1e9; /* a machine on paper: what models of speed reckon with */
  out->memory_bandwidth = 1e11;
  out->shared_per_block = EMU_SHARED_LIMIT;
  out->compiler[0] = 0;
  return QKV_OK;
}

/* ---- Memory ---- */

static qkv_status emu_alloc(device *d, size_t bytes, void **out) {
  (void)d;
  emu_lock();
  *out = memory_alloc(bytes);
  emu_unlock();
  return *out ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "the emulated device has no %zu bytes left", bytes);
}

static qkv_status emu_free(device *d, void *memory) {
  (void)d;
  if (!memory)
    return QKV_OK;
  emu_lock();
  bool ok = memory_free(memory);
  emu_unlock();
  return ok ? QKV_OK
            : error_set(QKV_INVALID_ARGUMENT, "%p is not the start of a live allocation of the emulated device",
                        memory);
}

/* The device's sides of a copy must lie inside one allocation each; other: the second, NULL: there is none. */
static qkv_status copy(void *to, const void *from, size_t bytes, const void *on_device, const void *other) {
  if (!bytes)
    return QKV_OK;
  emu_lock();
  const void *wrong = NULL;
  if (!memory_contains(on_device, bytes))
    wrong = on_device;
  else if (other && !memory_contains(other, bytes))
    wrong = other;
  if (!wrong)
    memmove(to, from, bytes);
  emu_unlock();
  return wrong ? error_set(QKV_INVALID_ARGUMENT,
                           "copy of %zu bytes at %p: not inside a live allocation of the emulated device", bytes, wrong)
               : QKV_OK;
}

static qkv_status emu_copy_to_device(device *d, void *to, const void *from, size_t bytes) {
  (void)d;
  return copy(to, from, bytes, to, NULL);
}

static qkv_status emu_copy_to_host(device *d, void *to, const void *from, size_t bytes) {
  (void)d;
  return copy(to, from, bytes, from, NULL);
}

static qkv_status emu_copy_on_device(device *d, void *to, const void *from, size_t bytes) {
  (void)d;
  return copy(to, from, bytes, from, to);
}

static bool emu_capturing(device *d, qkv_stream stream) {
  (void)d, (void)stream;
  return false;
}

static qkv_status emu_reaches(device *d, const void *memory, size_t bytes) {
  (void)d;
  emu_lock();
  bool ok = memory_contains(memory, bytes);
  emu_unlock();
  return ok ? QKV_OK
            : error_set(QKV_INVALID_ARGUMENT, "%zu bytes at %p are not inside a live allocation of the emulated device",
                        bytes, memory);
}

static qkv_status emu_synchronize(device *d) {
  (void)d;
  return QKV_OK;
}

/* ---- Virtual memory ---- */

static qkv_status emu_granularity(device *d, size_t *bytes) {
  *bytes = d->granule;
  return QKV_OK;
}

static qkv_status emu_reserve(device *d, size_t bytes, void **out) {
  emu_lock();
  *out = memory_reserve(bytes, d->granule);
  emu_unlock();
  return *out ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "the emulated device has no %zu bytes of addresses left", bytes);
}

static qkv_status emu_unreserve(device *d, void *range, size_t bytes) {
  (void)d;
  emu_lock();
  bool ok = memory_unreserve(range, bytes);
  emu_unlock();
  return ok ? QKV_OK
            : error_set(QKV_INVALID_ARGUMENT, "%zu bytes at %p are not a reserved range without mapped memory", bytes,
                        range);
}

static qkv_status emu_map(device *d, void *at, size_t granule, int64_t count) {
  (void)d;
  size_t bytes = granule * (size_t)count;
  emu_lock();
  bool there = memory_is_reserved(at, bytes, false), ok = there && memory_map(at, bytes);
  emu_unlock();
  if (!there)
    return error_set(QKV_INVALID_ARGUMENT, "%zu bytes at %p are not reserved granules without memory", bytes, at);
  return ok ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "the emulated device has no %zu bytes left", bytes);
}

static qkv_status emu_unmap(device *d, void *at, size_t granule, int64_t count) {
  (void)d;
  size_t bytes = granule * (size_t)count;
  emu_lock();
  bool there = memory_is_reserved(at, bytes, true), ok = there && memory_unmap(at, bytes);
  emu_unlock();
  if (!there)
    return error_set(QKV_INVALID_ARGUMENT, "%zu bytes at %p are not mapped granules", bytes, at);
  return ok ? QKV_OK : error_set(QKV_DEVICE_ERROR, "%zu bytes at %p cannot be unmapped", bytes, at);
}

/* ---- Modules ---- */

static bool write_all(int fd, const void *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = write(fd, (const char *)bytes + done, size - done);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return false;
    done += (size_t)n;
  }
  return true;
}

static int find_extent(struct dl_phdr_info *info, size_t size, void *user) {
  (void)size;
  device_module *m = user;
  struct link_map *map;
  if (dlinfo(m->handle, RTLD_DI_LINKMAP, &map) || info->dlpi_addr != map->l_addr)
    return 0;
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    if (p->p_type != PT_LOAD)
      continue;
    low = p->p_vaddr < low ? p->p_vaddr : low;
    high = p->p_vaddr + p->p_memsz > high ? p->p_vaddr + p->p_memsz : high;
  }
  m->low = (const unsigned char *)(info->dlpi_addr + low);
  m->high = (const unsigned char *)(info->dlpi_addr + high);
  return 1;
}

static void emu_unload(device *d, device_module *m) {
  (void)d;
  if (!m)
    return;
  for (device_kernel *k = m->kernels, *next; k; k = next) {
    next = k->next;
    free(k);
  }
  if (m->handle)
    dlclose(m->handle);
  if (m->fd >= 0)
    close(m->fd);
  free(m);
}

/* The address of a function; ISO C has no cast from object to function pointers. */
#define LOOK_UP(module, name, pointer) (*(void **)&(pointer) = dlsym((module)->handle, name))

static qkv_status open_image(device_module *m, const void *image, size_t size) {
  if (!compiler_emulator.plausible(image, size))
    return error_set(QKV_DEVICE_ERROR, "%s: the image cannot be loaded: no complete shared object of this machine",
                     m->name);
  m->fd = memfd_create(m->name, MFD_CLOEXEC);
  if (m->fd < 0 || !write_all(m->fd, image, size))
    return error_set(QKV_IO, "%s: no anonymous file for the emulated kernel: %s", m->name, strerror(errno));
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", m->fd);
  m->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!m->handle)
    return error_set(QKV_DEVICE_ERROR, "%s: the image cannot be loaded: %s", m->name, dlerror());
  void (*bind)(const emu_api *);
  int (*abi)(void);
  LOOK_UP(m, "qkv_emu_bind", bind);
  LOOK_UP(m, "qkv_emu_abi", abi);
  if (!bind || !abi || abi() != EMU_ABI)
    return error_set(QKV_DEVICE_ERROR, "%s: the image was made for another version of the emulator", m->name);
  bind(&emu_table);
  dl_iterate_phdr(find_extent, m);
  return QKV_OK;
}

static qkv_status emu_load(device *d, const void *image, size_t size, const char *name, device_module **out) {
  *out = NULL;
  device_module *m = calloc(1, sizeof *m);
  if (!m)
    return error_set(QKV_OUT_OF_MEMORY, "no memory for a module");
  m->fd = -1;
  snprintf(m->name, sizeof m->name, "%s", name ? name : "kernel");
  qkv_status status = open_image(m, image, size);
  if (status)
    emu_unload(d, m);
  else
    *out = m;
  return status;
}

static qkv_status emu_kernel(device *d, device_module *m, const char *entry, int block, int shared_bytes, int cluster,
                             device_kernel **out) {
  (void)d;
  *out = NULL;
  if (cluster > EMU_CLUSTER)
    return error_set(QKV_BAD_SCHEDULE,
                     "%s: clusters of %d blocks, each of %d threads and with %d bytes of dynamic shared memory, fit "
                     "nowhere: the emulated device has clusters of at most %d",
                     entry, cluster, block, shared_bytes, (int)EMU_CLUSTER);
  if (shared_bytes < 0 || shared_bytes > EMU_SHARED_LIMIT)
    return error_set(QKV_INVALID_ARGUMENT, "%s: %d bytes of shared memory, the emulated device has %d", entry,
                     shared_bytes, (int)EMU_SHARED_LIMIT);
  char symbol[128];
  device_kernel *k = calloc(1, sizeof *k);
  if (!k)
    return error_set(QKV_OUT_OF_MEMORY, "no memory for a kernel");
  unsigned long (*params_size)(void);
  snprintf(symbol, sizeof symbol, "emu_params_size_%s", entry);
  LOOK_UP(m, symbol, params_size);
  snprintf(symbol, sizeof symbol, "emu_entry_%s", entry);
  LOOK_UP(m, symbol, k->entry);
  if (!k->entry || !params_size) {
    free(k);
    return error_set(QKV_DEVICE_ERROR, "%s: the image has no entry %s", m->name, entry);
  }
  snprintf(k->name, sizeof k->name, "%s", entry);
  k->params_size = params_size();
  k->shared_bytes = shared_bytes;
  k->module = m;
  k->next = m->kernels;
  m->kernels = k;
  *out = k;
  return QKV_OK;
}

/* ---- Launch ---- */

/* The line of the generated source a return address belongs to; 0: unknown. Asks addr2line; the first frame that is not
 * the emulator's header is the kernel's. */
static int source_line(const device_module *m, const void *pc) {
  const unsigned char *at = pc;
  if (at <= m->low || at > m->high)
    return 0;
  char program[] = "addr2line", inlined[] = "-i", file[] = "-e", path[] = "/proc/self/fd/3", offset[32];
  snprintf(offset, sizeof offset, "0x%zx", (size_t)(at - m->low) - 1); /* the call is before its return address */
  process_result r = process_run((char *[]){program, inlined, file, path, offset, NULL}, NULL, m->fd);
  int line = 0;
  const char *found = r.started ? strstr(r.output, "kernel.cu:") : NULL;
  if (found)
    line = atoi(found + strlen("kernel.cu:"));
  free(r.output);
  return line;
}

static qkv_status check_launch(const device_kernel *k, const device_launch *l) {
  if (l->grid < 1 || l->grid > INT32_MAX)
    return error_set(QKV_INVALID_ARGUMENT, "%s: a grid of %lld blocks; 1 to 2^31 - 1 are possible", k->name,
                     (long long)l->grid);
  if (l->block < 1 || l->block > EMU_MAX_THREADS)
    return error_set(QKV_INVALID_ARGUMENT, "%s: a block of %d threads; 1 to %d are possible", k->name, l->block,
                     (int)EMU_MAX_THREADS);
  if (l->cluster < 0 || l->cluster > EMU_CLUSTER || (l->cluster > 1 && l->grid % l->cluster))
    return error_set(QKV_INVALID_ARGUMENT,
                     "%s: %lld blocks in clusters of %d; 1 to %d that divide the grid are possible", k->name,
                     (long long)l->grid, l->cluster, (int)EMU_CLUSTER);
  if (l->shared_bytes < 0 || l->shared_bytes > k->shared_bytes)
    return error_set(QKV_INVALID_ARGUMENT, "%s: %d bytes of shared memory, the kernel was loaded for %d", k->name,
                     l->shared_bytes, k->shared_bytes);
  if (!l->params || l->params_size != k->params_size)
    return error_set(QKV_INVALID_ARGUMENT, "%s: a parameter struct of %zu bytes, the source declares %zu", k->name,
                     l->params ? l->params_size : 0, k->params_size);
  return QKV_OK;
}

static qkv_status emu_launch_kernel(device *d, device_kernel *k, const device_launch *l, qkv_stream stream) {
  (void)stream;
  qkv_status status = check_launch(k, l);
  if (status)
    return status;
  emu_launch launch = {.entry = k->entry,
                       .name = k->name,
                       .grid = l->grid,
                       .block = l->block,
                       .cluster = l->cluster > 1 ? l->cluster : 1,
                       .shared_bytes = l->shared_bytes,
                       .early = l->early,
                       .params = l->params,
                       .params_size = l->params_size,
                       .image_low = k->module->low,
                       .image_high = k->module->high,
                       .seed = d->seed,
                       .policy = d->policy};
  emu_fault fault;
  emu_lock();
  bool ok = machine_run(&launch);
  if (!ok)
    fault = machine.fault;
  emu_unlock();
  if (ok)
    return QKV_OK;
  int line = source_line(k->module, fault.pc), other = source_line(k->module, fault.other_pc);
  if (line && other)
    return error_set(QKV_DEVICE_ERROR, "emu: %s, line %d of the generated source, the other access line %d (%s)",
                     fault.message, line, other, k->module->name);
  if (line)
    return error_set(QKV_DEVICE_ERROR, "emu: %s, line %d of the generated source (%s)", fault.message, line,
                     k->module->name);
  return error_set(QKV_DEVICE_ERROR, "emu: %s (%s)", fault.message, k->module->name);
}

static qkv_status emu_set_zero(device *d, void *memory, size_t bytes, qkv_stream stream) {
  (void)d, (void)stream;
  emu_lock();
  bool ok = memory_contains(memory, bytes);
  if (ok)
    memset(memory, 0, bytes);
  emu_unlock();
  return ok ? QKV_OK
            : error_set(QKV_INVALID_ARGUMENT,
                        "%zu bytes at %p to be set to zero: not inside a live allocation of the emulated device", bytes,
                        memory);
}

static qkv_status emu_tensor_map_encode(device *d, const device_tensor_map *map, void *encoded) {
  (void)d;
  qkv_status status = tensor_map_check(map);
  if (status)
    return status;
  emu_tensor_map e = {.map = *map, .mark = EMU_TENSOR_MAP_MARK};
  memset(encoded, 0, DEVICE_TENSOR_MAP_BYTES);
  memcpy(encoded, &e, sizeof e);
  return QKV_OK;
}

/* ---- Events ---- */

static qkv_status emu_event_create(device *d, device_event **out) {
  (void)d;
  *out = calloc(1, sizeof **out);
  return *out ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "no memory for an event");
}

static void emu_event_free(device *d, device_event *e) {
  (void)d;
  free(e);
}

static qkv_status emu_event_record(device *d, device_event *e, qkv_stream stream) {
  (void)d, (void)stream;
  clock_gettime(CLOCK_MONOTONIC, &e->when);
  return QKV_OK;
}

static qkv_status emu_event_seconds(device *d, device_event *from, device_event *to, double *seconds) {
  (void)d;
  *seconds = (double)(to->when.tv_sec - from->when.tv_sec) + 1e-9 * (double)(to->when.tv_nsec - from->when.tv_nsec);
  return QKV_OK;
}

/* ---- Recorded work: done at each replay ---- */

static qkv_status emu_graph_record(device *d, device_work work, void *user, device_graph **out) {
  (void)d;
  *out = calloc(1, sizeof **out);
  if (!*out)
    return error_set(QKV_OUT_OF_MEMORY, "no memory for recorded work");
  **out = (device_graph){work, user};
  return QKV_OK;
}

static void emu_graph_free(device *d, device_graph *g) {
  (void)d;
  free(g);
}

static qkv_status emu_graph_replay(device *d, device_graph *g, qkv_stream stream) {
  (void)d;
  return g->work(g->user, stream);
}

const device_ops device_emu = {
    .name = "emu",
    .open = emu_open,
    .close = emu_close,
    .info = emu_info,
    .alloc = emu_alloc,
    .free = emu_free,
    .capturing = emu_capturing,
    .reaches = emu_reaches,
    .copy_to_device = emu_copy_to_device,
    .copy_to_host = emu_copy_to_host,
    .copy_on_device = emu_copy_on_device,
    .synchronize = emu_synchronize,
    .granularity = emu_granularity,
    .reserve = emu_reserve,
    .unreserve = emu_unreserve,
    .map = emu_map,
    .unmap = emu_unmap,
    .load = emu_load,
    .unload = emu_unload,
    .kernel = emu_kernel,
    .launch = emu_launch_kernel,
    .set_zero = emu_set_zero,
    .tensor_map = emu_tensor_map_encode,
    .event_create = emu_event_create,
    .event_free = emu_event_free,
    .event_record = emu_event_record,
    .event_seconds = emu_event_seconds,
    .graph_record = emu_graph_record,
    .graph_free = emu_graph_free,
    .graph_replay = emu_graph_replay,
};
