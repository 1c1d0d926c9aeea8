/* qkv_build.h: questions about specs and their kernels, and compiling without launching: for tools, build steps and
 * editors. Errors, threads, ownership as in qkv.h. Texts are freed with qkv_string_free. Nothing here needs a GPU. */
#ifndef QKV_BUILD_H
#define QKV_BUILD_H

#include "qkv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Specs as text ---- */

/* A spec with all defaults filled in, as text that is hashed and as JSON; the JSON Schema of specs. */
QKV_API qkv_status qkv_spec_canonical(const qkv_spec *spec, char **out);
QKV_API qkv_status qkv_spec_json(const qkv_spec *spec, char **out);
QKV_API qkv_status qkv_json_schema(char **out);

/* ---- Generating and compiling without launching ---- */

typedef struct qkv_build_options {
  size_t size;
  const char *arch;     /* of the GPU to compile for; NULL: what qkv_prepare would load, for the engine's own device */
  const char *family;   /* NULL: dispatch chooses */
  const char *phase;    /* NULL: "decode" when len_q is 1 to 16, else "prefill"; "append": see qkv_append; "merge":
                           see qkv_merge */
  const char *schedule; /* "tile_m=128,..." or NULL */
  int unaligned;        /* nonzero: the kernel for tensors that are not 16-byte aligned */
  int64_t len_q;        /* declared maximum as in qkv_limits, which default schedules may follow; 0: none */
  int64_t batch;        /* the same of batch entries */
  int64_t len_k;        /* the same of keys; tuned tables alone go by it */
} qkv_build_options;
#define QKV_BUILD_OPTIONS_INIT {sizeof(qkv_build_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0}

/* The CUDA source. Free with qkv_string_free. */
QKV_API qkv_status qkv_generate(qkv_engine *engine, const qkv_spec *spec, const qkv_build_options *opt, char **source);

/* One kernel entry of a build. */
typedef struct qkv_build_entry {
  char name[64];
  int registers;     /* per thread; -1 unknown (emu) */
  int spill_stores, spill_loads; /* bytes */
  int stack;         /* bytes of local stack frame */
  int shared_bytes;  /* static + dynamic */
  int threads;
  /* How often the compiler says that speed is lost; 0 on emu. A note that names no entry counts for all of them. */
  int serialised_wgmma;   /* wgmma instructions that were meant to overlap run one after another */
  int ignored_setmaxnreg; /* all warps keep the registers they were launched with */
  int added_waits;        /* the compiler had to wait for wgmma where the source does not */
  int added_fences;       /* the same with a fence of wgmma, which is cheap; CUDA 13.2 and later do not tell */
  int warnings;           /* anything else */
} qkv_build_entry;

typedef struct qkv_build_report {
  size_t size;
  char family[64];
  char arch[16];
  char schedule[256];
  char key[33];            /* cache key */
  int from_cache;
  double render_seconds, compile_seconds, load_seconds; /* load: cache read and verification */
  int64_t image_bytes;
  int nentries;
  qkv_build_entry entries[4];
  char *notes; /* compiler notes and warnings, translated to template lines; NULL if none; qkv_string_free */
  char *advisories; /* lost speed in plain words, a line each, added fences left out; NULL if none; qkv_string_free */
} qkv_build_report;
/* Renders and compiles (or finds in the cache) one kernel for any architecture the compiler knows; needs no GPU. */
QKV_API qkv_status qkv_build(qkv_engine *engine, const qkv_spec *spec, const qkv_build_options *opt, qkv_build_report *out);

/* Human-readable or JSON text on what would run and why: families and reasons, schedule, resources, mask handling,
 * FLOPs and bytes of the workloads. */
QKV_API qkv_status qkv_explain(qkv_engine *engine, const qkv_spec *spec, const qkv_build_options *opt, int json, char **out);
/* Text or JSON on the machine: driver, GPUs, NVRTC, g++, cache directory; with what to do about what is missing. Works
 * without an engine. *healthy is nonzero when kernels can be compiled and run on a GPU. */
QKV_API qkv_status qkv_doctor(const qkv_options *opt, int json, int *healthy, char **out);

/* ---- Masks ---- */

/* Which pairs the mask lets through, for one query head of one batch entry: visible[i * len_k + k] is 1 or 0, with the
 * lengths of that entry. Looks at the extents of args.q and args.k, at the arrays of lengths and at the parameters,
 * which must be in host memory. */
QKV_API qkv_status qkv_visible(const qkv_spec *spec, const qkv_attention_args *args, int64_t batch, int64_t head,
                               unsigned char *visible);

/* What happens to a tile of queries by keys. Keys past the end count as hidden: a tile that holds some is not full. */
typedef enum qkv_tile {
  QKV_TILE_SKIPPED = 0, /* no pair is visible; a kernel does not look at it */
  QKV_TILE_PARTIAL = 1, /* some are; a kernel evaluates the mask */
  QKV_TILE_FULL = 2     /* all are; a kernel multiplies without looking at the mask */
} qkv_tile;

/* A mask cut into tiles. Start from {sizeof(qkv_mask_map)}; free with qkv_mask_map_free. */
typedef struct qkv_mask_map {
  size_t size;
  int64_t batch, head;      /* in: which entry and which query head */
  int64_t tile_q, tile_k;   /* in: queries and keys of a tile; 0: those of the kernel that would run. Out: as used */
  double most;              /* in: ask the mask for every pair unless that is more than this many; 0: 3e8 */
  int64_t rows, columns;    /* of tiles */
  unsigned char *planned;   /* [rows, columns] of qkv_tile: what kernels do */
  unsigned char *actual;    /* [rows, columns] of qkv_tile: what would do; NULL: too many pairs to ask */
  double visible;           /* pairs; -1: too many to ask */
  char *analysis;           /* "name: value" lines: the form derived from the mask, its bounds in symbols */
  int64_t dilation;         /* 1: tiles are of neighbours. d > 1: of tokens of one residue modulo d, the d-th part of the
                               keys. The first ceil(ceil(len_q / d) / tile_q) rows are those of the queries 0, d, 2 d and
                               so on, then come those of 1, d + 1 and on, up to min(d, len_q) of such classes */
} qkv_mask_map;
/* How the generator cuts a mask into tiles, and how it could be cut. opt (may be NULL) chooses the kernel whose tiles are
 * taken. Parameters as in qkv_visible. */
QKV_API qkv_status qkv_map_mask(qkv_engine *engine, const qkv_spec *spec, const qkv_build_options *opt,
                                const qkv_attention_args *args, qkv_mask_map *map);
QKV_API void qkv_mask_map_free(qkv_mask_map *map);

#ifdef __cplusplus
}
#endif
#endif
