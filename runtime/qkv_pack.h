/* qkv_pack.h: the kernel cache and packs as files (docs/cache.md, docs/packs.md): what is in them, whether it is whole,
 * what is to go; and making packs. Engines use either without it. Errors, threads, ownership as in qkv.h. */
#ifndef QKV_PACK_H
#define QKV_PACK_H

#include "qkv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Cache ---- */

typedef struct qkv_cache_entry {
  size_t size;
  const char *key, *family, *arch, *schedule;
  int64_t bytes, age_seconds;
  int valid; /* 0: the entry is corrupt */
  int newer; /* 1: of a later version's format: not looked into, and nothing is said of family, arch and schedule */
} qkv_cache_entry;
/* Calls visit for every entry, sorted by key; a nonzero return stops. Family, architecture and schedule of what another
 * version wrote may be "". QKV_IO: the directory cannot be read. */
QKV_API qkv_status qkv_cache_list(qkv_engine *engine, int (*visit)(const qkv_cache_entry *entry, void *user), void *user);
/* Removes entries, all or those that do not verify, whether they are in use or not: kernels that are loaded stay. With
 * only_invalid those of a later version's format stay, too. QKV_IO as above. */
QKV_API qkv_status qkv_cache_clear(qkv_engine *engine, int only_invalid, int64_t *removed);

/* What is to go. Entries in use never go: those that an open engine of a process of this host has loaded or built (on
 * local file systems), and those that anybody used within ten minutes (on network file systems: within a day). */
typedef struct qkv_cache_gc_options {
  size_t size;
  int64_t max_bytes;  /* those used longest ago, until this much is left; -1: $QKV_CACHE_MAX_BYTES, else 1 GiB */
  int64_t older_than; /* those that nobody used for so many seconds; -1: none for its age */
  int dry_run;        /* nonzero: only count */
} qkv_cache_gc_options;
#define QKV_CACHE_GC_OPTIONS_INIT {sizeof(qkv_cache_gc_options), -1, -1, 0}
typedef struct qkv_cache_gc_report {
  size_t size;
  int64_t entries, bytes;         /* left */
  int64_t removed, removed_bytes; /* or, of a dry run, to be removed */
  int64_t in_use;                 /* would have gone, but are in use */
} qkv_cache_gc_report;
/* Publishing does the same when the limit is passed. Safe in any number of processes at once, beside engines that work.
 * QKV_IO as above. */
QKV_API qkv_status qkv_cache_gc(qkv_engine *engine, const qkv_cache_gc_options *opt, qkv_cache_gc_report *out);

/* Which entries; NULL and 0: all. */
typedef struct qkv_cache_filter {
  size_t size;
  const char *arch, *family;
  const qkv_spec *const *specs; /* kernels of these, of every phase and schedule */
  int nspecs;
} qkv_cache_filter;
#define QKV_CACHE_FILTER_INIT {sizeof(qkv_cache_filter), NULL, NULL, NULL, 0}
/* Copies verified entries into a directory (made when missing), which then serves as a cache directory anywhere, also
 * read-only, when it belongs to its user or to root. Counts those copied and those that do not verify, which are left
 * out; either may be NULL. filter may be NULL. QKV_IO names what failed; what was copied until then stays. */
QKV_API qkv_status qkv_cache_export(qkv_engine *engine, const qkv_cache_filter *filter, const char *directory,
                                    int64_t *copied, int64_t *invalid);
/* The directory in use, "" when the cache is memory only. Valid as long as the engine. */
QKV_API const char *qkv_cache_path(const qkv_engine *engine);

/* ---- What a pack holds ---- */

typedef struct qkv_pack_info {
  size_t size;
  int64_t bytes;
  int records, damaged;
  char version[16];   /* of the generator that made it */
  int usable;         /* this version of the library takes its kernels */
  int same_templates; /* and would generate the same ones */
} qkv_pack_info;
/* Strings are valid during the visit. */
typedef struct qkv_pack_entry {
  size_t size;
  int number;         /* of the record */
  const char *kind;   /* "kernel", "request", "spec", "table" */
  const char *key;
  const char *name;   /* kernel: its family, "?" in a pack of another manifest format; request: what was asked; spec,
                         table: its name. "" where damaged */
  const char *arch, *detail; /* kernel: architecture and schedule; request: architecture and compiler; else "" */
  const char *text;   /* spec, table: all of it; else NULL */
  int kernels;        /* request: how many answer it */
  int64_t bytes;
  int valid;
  /* Of a request: what qkv_prepare is to be asked. Maxima that the kernels do not depend on are -1: any; `few` says that
   * len_q is then 1 to 16. */
  const char *spec, *phase, *family, *schedule;
  int64_t batch, len_q;
  int few;
} qkv_pack_entry;
/* Reads and verifies a pack, record by record; a nonzero return stops. Needs no engine. info and visit may be NULL. */
QKV_API qkv_status qkv_pack_list(const char *path, qkv_pack_info *info,
                                 int (*visit)(const qkv_pack_entry *entry, void *user), void *user);

/* ---- Making packs ---- */

/* A pack under construction. Any number of threads may add at once. */
typedef struct qkv_bundle qkv_bundle;
typedef struct qkv_bundle_report {
  size_t size;
  int kernels, compiled; /* of the op; those that were not in a cache or pack */
  int64_t image_bytes;
  double seconds;
} qkv_bundle_report;
/* Images are those of the engine's kind of device: the emulator's for emu, machine code of GPUs else. The engine must
 * outlive the bundle. */
QKV_API qkv_status qkv_bundle_open(qkv_engine *engine, qkv_bundle **out);
/* Renders and compiles what qkv_prepare would load for the spec and these limits (NULL: none) on an architecture (NULL:
 * the engine's), and records all of it with the spec. Only limits that the kernels depend on are recorded: the others may
 * have any value when the pack is used. limits.aligned_only leaves out the kernel for other tensors. report may be NULL. */
QKV_API qkv_status qkv_bundle_add(qkv_bundle *bundle, const qkv_spec *spec, const char *arch, const qkv_limits *limits,
                                  qkv_bundle_report *report);
/* The pack's bytes, which depend on nothing but what was added. Valid until the next call of this or qkv_bundle_free. */
QKV_API qkv_status qkv_bundle_bytes(qkv_bundle *bundle, const void **bytes, size_t *size);
/* Writes them to a file, which is replaced as a whole or not at all. */
QKV_API qkv_status qkv_bundle_write(qkv_bundle *bundle, const char *path);
QKV_API void qkv_bundle_free(qkv_bundle *bundle);

#ifdef __cplusplus
}
#endif
#endif
