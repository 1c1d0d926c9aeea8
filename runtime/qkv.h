/* qkv.h: the public interface of libqkv, an attention-kernel compiler: all that a program needs which runs attention.
 * What is done beforehand, by tools, has headers of its own:
 *
 *   qkv_build.h   what a spec means, which kernel would run and why; its source; compiling without launching
 *   qkv_tune.h    schedules that could be tried, how long calls take, tables of measured schedules
 *   qkv_pack.h    the kernel cache and packs as files: lists, checks, limits; making packs
 *
 * A spec (YAML, docs/spec-reference.md) declares an attention variant. qkv_prepare turns it into loaded kernels for one
 * device; qkv_attention launches them and does nothing else.
 *
 *   qkv_engine *engine; qkv_spec *spec; qkv_op *op;
 *   qkv_open(NULL, &engine);
 *   qkv_spec_load(engine, "specs/llama3_8b.yaml", &spec);
 *   qkv_prepare(engine, spec, NULL, &op);
 *   qkv_attention_args args = QKV_ATTENTION_ARGS_INIT;
 *   args.q = qkv_tensor_dense(q, QKV_BF16, 4, (int64_t[]){batch, len_q, 32, 128});
 *   ...
 *   if (qkv_attention(op, &args, stream)) fprintf(stderr, "%s\n", qkv_last_error(engine));
 *
 * Errors: every function that can fail returns a qkv_status; the message of the last failure on the calling thread is
 * qkv_last_error. The library never prints, exits or aborts.
 * Threads: an engine, a spec and an op may be used by any number of threads at once; closing or freeing one must not
 * run beside its use.
 * Ownership: whoever creates frees. The caller owns all tensors and the workspace. */
#ifndef QKV_H
#define QKV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(QKV_BUILD)
#define QKV_API __attribute__((visibility("default")))
#else
#define QKV_API
#endif

#define QKV_VERSION_MAJOR 0
#define QKV_VERSION_MINOR 1
#define QKV_VERSION_PATCH 0

typedef enum qkv_status {
  QKV_OK = 0,
  QKV_INVALID_ARGUMENT = 1,  /* a NULL, a wrong shape, dtype or stride; the message names the tensor and dimension */
  QKV_OUT_OF_MEMORY = 2,     /* host or device */
  QKV_IO = 3,                /* a file could not be read or written */
  QKV_BAD_SPEC = 10,         /* the message is the full diagnostic text: file:line:col, source line, caret */
  QKV_UNSUPPORTED = 11,      /* no kernel family can do this spec; the message says why for each */
  QKV_BAD_SCHEDULE = 12,
  QKV_UNKNOWN_ARCH = 13,
  QKV_TEMPLATE_ERROR = 20,   /* a template failed; template:line */
  QKV_COMPILE_ERROR = 21,    /* NVRTC or g++ refused the source; the message has the log */
  QKV_NOT_PREPARED = 22,     /* a kernel is missing and QKV_DISABLE_JIT forbids to compile it */
  QKV_NO_COMPILER = 23,      /* NVRTC (or g++ for emu) was not found; the message lists where it was looked for */
  QKV_NO_DEVICE = 30,        /* no driver, no GPU, no such ordinal */
  QKV_DEVICE_ERROR = 31,     /* the driver refused a call; on emu: a fault the emulator found */
  QKV_CAPTURING = 32,        /* the stream is being captured in a graph, and the call needs what a capture forbids */
  QKV_INTERNAL = 90
} qkv_status;

typedef enum qkv_dtype {
  QKV_F16 = 0,
  QKV_BF16 = 1,
  QKV_F32 = 2,
  QKV_E4M3 = 3,
  QKV_E5M2 = 4,
  QKV_I32 = 5,
  QKV_BOOL = 6,
  QKV_I64 = 7 /* slots and positions of qkv_append alone */
} qkv_dtype;

typedef struct qkv_engine qkv_engine; /* a device, its compiler and its cache */
typedef struct qkv_spec qkv_spec;     /* a checked spec */
typedef struct qkv_op qkv_op;         /* the loaded kernels of one spec for declared maxima */
typedef void *qkv_stream;             /* CUstream / cudaStream_t; NULL: the default stream; ignored by emu */

/* "bad spec", "ok", ... never NULL. */
QKV_API const char *qkv_status_name(qkv_status status);
/* "0.1.0" of the library in use. */
QKV_API const char *qkv_version(void);

/* Frees a text that the library made. NULL is allowed. */
QKV_API void qkv_string_free(char *string);

/* ---- Engine ---- */

typedef enum qkv_log_level { QKV_LOG_WARNING = 1, QKV_LOG_INFO = 2, QKV_LOG_DEBUG = 3 } qkv_log_level;
typedef void (*qkv_log_fn)(qkv_log_level level, const char *message, void *user);

/* All fields but `size` may be zero. Environment variables are read once, here; a field that is set wins. */
typedef struct qkv_options {
  size_t size;               /* sizeof(qkv_options) */
  const char *device;        /* "cuda:0", "cuda", "emu", "none" (compile only), "auto" (default: a GPU if there is one, else
                                emu); $QKV_DEVICE */
  const char *cache_dir;     /* $QKV_CACHE_DIR, else $XDG_CACHE_HOME/qkvc, else ~/.cache/qkvc; "" = memory only */
  const char *template_path; /* directory whose files override built-in templates; $QKV_TEMPLATE_PATH */
  const char *arch;          /* generate for this architecture; default: the device's, for emu and none sm_80; $QKV_ARCH */
  int disable_jit;           /* nonzero: never compile; $QKV_DISABLE_JIT */
  uint64_t emu_seed;         /* order of asynchronous work on emu; $QKV_EMU_SEED */
  qkv_log_fn log;            /* called from any thread; NULL: silent */
  void *log_user;
  size_t emu_granule;        /* bytes of physical memory that emu maps at once, a power of two; default 2 MiB, as on GPUs;
                                $QKV_EMU_GRANULE */
  int debug_checks;          /* nonzero: every call first looks at what launches cannot look at; see qkv_attention;
                                $QKV_DEBUG_CHECKS */
  const char *tuned_dir;     /* tables of tuned schedules; $QKV_TUNED_DIR, else "tuned" in the cache directory; "" = no
                                tables at all, built-in ones neither: default schedules everywhere */
  const char *const *packs;  /* paths of packs, ended by NULL, searched in this order; $QKV_PACKS: paths with colons between
                                them. One that cannot be used is a warning in the log (qkv_pack_load says it as an error) */
} qkv_options;
#define QKV_OPTIONS_INIT {sizeof(qkv_options), NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, 0, 0, NULL, NULL}

/* Opens a device. opt may be NULL. On failure *out is NULL and qkv_last_error(NULL) has the message. */
QKV_API qkv_status qkv_open(const qkv_options *opt, qkv_engine **out);
/* Frees the engine; its specs and ops must be gone. NULL is allowed. */
QKV_API void qkv_close(qkv_engine *engine);
/* The message of the last failure on this thread ("" if none). Valid until the thread's next failing call. With several
 * engines the message is the thread's latest; engine may be NULL. */
QKV_API const char *qkv_last_error(const qkv_engine *engine);
/* Counters since qkv_open, for tests and monitoring. */
typedef struct qkv_counters {
  size_t size;
  uint64_t compiles;     /* compiler runs */
  uint64_t cache_hits;   /* kernels loaded from the cache */
  uint64_t cache_errors; /* corrupt, foreign, unreadable entries; failed publications (one where none can work) */
  uint64_t launches;
  uint64_t renders;      /* sources generated */
  uint64_t pack_hits;    /* kernels taken from packs */
  double load_seconds;   /* of handing images to the device, all threads together */
} qkv_counters;
QKV_API void qkv_get_counters(const qkv_engine *engine, qkv_counters *out);

/* ---- Device memory: what a program without another allocator needs; tensors may come from anywhere ---- */

typedef struct qkv_device_info {
  size_t size;
  char name[128];          /* "NVIDIA H200", "emu" */
  char kind[16];           /* "cuda", "emu", "none" */
  char arch[16];           /* "sm_90a" */
  int ordinal;
  int sm_count;
  int compute_major, compute_minor;
  int64_t l2_bytes, memory_bytes;
  int driver_version;      /* 13000; 0 on emu */
  char compiler[256];      /* "NVRTC 13.0 (/usr/lib/...)", "g++ 12.2.0" or "" */
  double clock_hz;         /* of the SMs at most, as the driver says */
  double memory_bandwidth; /* bytes a second, from the memory's clock and bus: what no kernel quite reaches */
  int shared_per_block;    /* bytes of shared memory that a block may opt in to */
} qkv_device_info;
QKV_API qkv_status qkv_device_get_info(qkv_engine *engine, qkv_device_info *out);
QKV_API qkv_status qkv_alloc(qkv_engine *engine, size_t bytes, void **out);
QKV_API qkv_status qkv_free(qkv_engine *engine, void *memory);
QKV_API qkv_status qkv_copy_to_device(qkv_engine *engine, void *device, const void *host, size_t bytes);
QKV_API qkv_status qkv_copy_to_host(qkv_engine *engine, void *host, const void *device, size_t bytes);
/* From device memory to other device memory, when all work of the device is done; returns when it is copied. */
QKV_API qkv_status qkv_copy_on_device(qkv_engine *engine, void *to, const void *from, size_t bytes);
/* Waits for all work of the device and reports its errors. */
QKV_API qkv_status qkv_synchronize(qkv_engine *engine);

/* ---- Specs ---- */

/* Loads a spec from a file, or from text when the string contains a newline. */
QKV_API qkv_status qkv_spec_load(qkv_engine *engine, const char *path_or_text, qkv_spec **out);
/* The same without an engine and device (checking only); the message is reachable through qkv_last_error(NULL). */
QKV_API qkv_status qkv_spec_check(const char *path_or_text, int json, qkv_spec **out);
QKV_API void qkv_spec_free(qkv_spec *spec);

/* How the tokens of a call's sequences are found, see qkv_attention_args. Queries are dense or ragged. */
typedef enum qkv_layout { QKV_DENSE = 0, QKV_PADDED = 1, QKV_RAGGED = 2, QKV_PAGED = 3 } qkv_layout;
typedef enum qkv_page_order { QKV_PAGE_NHD = 0, QKV_PAGE_HND = 1 } qkv_page_order;
typedef enum qkv_page_table { QKV_PAGE_TABLE_ROWS = 0, QKV_PAGE_TABLE_CSR = 1 } qkv_page_table;

/* What a caller must know to make tensors. */
typedef struct qkv_spec_info {
  size_t size;
  const char *name;
  int heads_q, heads_kv, dim_qk, dim_v;
  qkv_dtype dtype_q, dtype_kv, dtype_out;
  int wants_lse, wants_lse_with_sink; /* outputs asked for */
  int has_sink;                       /* args.sink is needed */
  int nparams;
  int nworkloads;
  qkv_layout layout_q, layout_kv;
  int page_size; /* tokens of a page, where layout_kv is QKV_PAGED; 0 elsewhere */
  qkv_page_order page_order;
  qkv_page_table page_table;
  int has_kv_scale; /* args.k_scale and args.v_scale are needed */
  int has_append;   /* the spec says how qkv_append works */
} qkv_spec_info;
QKV_API void qkv_spec_get_info(const qkv_spec *spec, qkv_spec_info *out);

/* Declared parameter n, in order of declaration. Extents are those of the shape expression for the given sizes. */
typedef struct qkv_param_info {
  size_t size;
  const char *name;
  qkv_dtype dtype;
  int rank; /* 0: scalar */
} qkv_param_info;
QKV_API qkv_status qkv_spec_get_param(const qkv_spec *spec, int n, qkv_param_info *out);
QKV_API qkv_status qkv_spec_param_shape(const qkv_spec *spec, int n, int64_t batch, int64_t len_q, int64_t len_k,
                                        int64_t shape[4]);

typedef struct qkv_workload {
  size_t size;
  const char *name;
  int64_t batch, len_q, len_k;
} qkv_workload;
QKV_API qkv_status qkv_spec_get_workload(const qkv_spec *spec, int n, qkv_workload *out);

/* ---- Tensors ---- */

/* A view of memory. Strides count elements and may be anything, 0 included, negative too. rank <= 5. */
typedef struct qkv_tensor {
  void *data;
  qkv_dtype dtype;
  int rank;
  int64_t shape[5];
  int64_t stride[5];
} qkv_tensor;
/* A contiguous tensor. */
QKV_API qkv_tensor qkv_tensor_dense(void *data, qkv_dtype dtype, int rank, const int64_t *shape);

/* ---- KV pool: memory for keys and values that grows and shrinks at fixed addresses ---- */

/* A pool reserves addresses for all that it may ever hold and maps physical memory to them when it is needed, so that
 * tensors, tensor maps and captured graphs stay valid while the memory comes and goes. It holds the keys and values of
 * `layers` layers of one spec; formats, heads, dims and the page come from the spec.
 *
 * A pool of blocks hands out numbers of pages, those that page tables hold (i32): the lowest free ones, so that what is in
 * use lies together. A block may have several owners (a shared prefix): qkv_pool_alloc makes one, qkv_pool_retain adds
 * one, qkv_pool_release takes one away, and the block is free when the last is gone.
 * A contiguous pool has slots, a sequence each, which grow in place: kernels see dense tensors and need no page table.
 *
 * Memory is mapped by qkv_pool_alloc and qkv_pool_resize, and taken away by qkv_pool_trim and qkv_pool_free alone. What
 * is released, or cut off by a shorter length, keeps its memory and its contents until then or until it is handed out
 * again. The pool knows nothing of streams: release a block when the work that reads it precedes, on its stream, the
 * work that will write it again; and call qkv_pool_trim when nothing that runs reads what is unused.
 * New memory holds anything. A kernel must not touch memory that is not mapped (a GPU's context ends, emu reports it): of
 * blocks, all pages that are in use are there; of slots, the rows below the length, rounded up to options.tile.
 *
 * Errors change nothing. Threads: any number at once, on one lock per pool; mapping goes on under it.
 * Ownership: the caller's; a pool needs its engine, not its spec. */
typedef struct qkv_pool qkv_pool;

typedef enum qkv_pool_mode { QKV_POOL_BLOCKS = 0, QKV_POOL_CONTIGUOUS = 1 } qkv_pool_mode;

/* Which keys and values lie in one range of addresses. The more do, the fewer granules are begun and the fewer calls to
 * the driver map them; the further apart lie the pages (or tokens) of one tensor. */
typedef enum qkv_pool_placement {
  QKV_POOL_APART = 0,           /* K and V of each layer on their own */
  QKV_POOL_KV_TOGETHER = 1,     /* a page: its keys, then its values */
  QKV_POOL_LAYERS_TOGETHER = 2  /* a page: keys, values of layer 0, then of layer 1 and so on */
} qkv_pool_placement;

typedef struct qkv_pool_options {
  size_t size;
  qkv_pool_mode mode;
  qkv_pool_placement placement;
  int64_t layers;    /* 1 to 4096 */
  int64_t blocks;    /* BLOCKS: pages at most; the spec must say layout.kv paged */
  int64_t slots;     /* CONTIGUOUS: sequences at most */
  int64_t max_len;   /* CONTIGUOUS: tokens of a sequence at most; up to 2^30 */
  int64_t tile;      /* CONTIGUOUS: memory is there up to the next multiple of so many tokens (max_len at most), for kernels
                        that load whole tiles of keys; 0: 1 */
  int64_t max_bytes; /* of physical memory; 0: what the device has */
  int64_t granule;   /* bytes mapped at once, a multiple of the device's granularity; 0: that. Larger ones take fewer calls */
} qkv_pool_options;
#define QKV_POOL_OPTIONS_INIT {sizeof(qkv_pool_options), QKV_POOL_BLOCKS, QKV_POOL_APART, 1, 0, 0, 0, 0, 0, 0}

/* Reserves addresses; maps nothing. QKV_NO_DEVICE: the engine only compiles. QKV_UNSUPPORTED: a GPU without virtual memory.
 * QKV_OUT_OF_MEMORY: no such stretch of addresses. QKV_INVALID_ARGUMENT names the option, and what it can be. */
QKV_API qkv_status qkv_pool_open(qkv_engine *engine, const qkv_spec *spec, const qkv_pool_options *options, qkv_pool **out);
/* Gives back memory and addresses; nothing that runs may use them. NULL is allowed. */
QKV_API void qkv_pool_free(qkv_pool *pool);

/* K and V of a layer (0 to layers - 1), for the life of the pool. Any of the two may be NULL. dim is dim_qk and dim_v.
 *   blocks, order nhd   [blocks, page, heads_kv, dim]
 *   blocks, order hnd   [blocks, heads_kv, page, dim]
 *   contiguous          [slots, max_len, heads_kv, dim], whatever the spec's layout
 * The innermost stride is 1; a page, or a contiguous token, starts at a multiple of 16 bytes; the other strides follow from
 * the placement. */
QKV_API qkv_status qkv_pool_tensors(const qkv_pool *pool, int64_t layer, qkv_tensor *k, qkv_tensor *v);

/* `count` free blocks, the lowest ones, ascending, each with one owner. QKV_OUT_OF_MEMORY says how many are free, or how
 * much memory is missing and how much qkv_pool_trim would return; blocks[] is then undefined. */
QKV_API qkv_status qkv_pool_alloc(qkv_pool *pool, int64_t count, int32_t *blocks);
/* Adds an owner to each; a block that occurs twice gets two. QKV_INVALID_ARGUMENT: a number out of range, a free block. */
QKV_API qkv_status qkv_pool_retain(qkv_pool *pool, int64_t count, const int32_t *blocks);
/* Takes an owner from each. QKV_INVALID_ARGUMENT: a number out of range, more releases than owners (a double free). */
QKV_API qkv_status qkv_pool_release(qkv_pool *pool, int64_t count, const int32_t *blocks);
/* Owners of a block: 0 when it is free; with more than 1, copy before you write. */
QKV_API qkv_status qkv_pool_owners(qkv_pool *pool, int32_t block, int64_t *owners);

/* Sets the length of a slot, 0 to max_len tokens; 0 resets it. Contents below the old and the new length stay. */
QKV_API qkv_status qkv_pool_resize(qkv_pool *pool, int64_t slot, int64_t len);

/* Takes away all memory that no block in use and no length needs. *returned (may be NULL): bytes. */
QKV_API qkv_status qkv_pool_trim(qkv_pool *pool, int64_t *returned);

/* Sizes in bytes, over all layers unless it says otherwise. */
typedef struct qkv_pool_info {
  size_t size;
  int64_t granule;       /* mapped at once */
  int64_t page;          /* tokens of a block; 1 when contiguous */
  int64_t token_bytes;   /* keys and values of a token in one layer */
  int64_t page_bytes;    /* of a page (a token when contiguous) in one layer, as it lies: keys and values each
                            rounded up to 16 */
  int64_t reserved;      /* of addresses */
  int64_t mapped;        /* of physical memory */
  int64_t used;          /* of the pages in use, or of the tokens below the lengths, as they lie */
  int64_t idle;          /* mapped, and qkv_pool_trim would return it */
  int64_t blocks, blocks_used;
  int64_t slots, tokens; /* tokens: sum of the lengths */
} qkv_pool_info;
/* Looks at every block and granule in use: for monitoring, not for every step. */
QKV_API qkv_status qkv_pool_get_info(qkv_pool *pool, qkv_pool_info *out);

/* ---- Preparing: all slow work ---- */

/* Declared maxima. Zero means: no declared maximum (a family whose workspace grows with the sizes then refuses by
 * name). Default schedules may follow a declared batch and len_q: short sequences have others. */
typedef struct qkv_limits {
  size_t size;
  int64_t batch, len_q, len_k;
  int aligned_only;     /* nonzero: promise that q k v o are 16-byte aligned with 16-byte aligned rows and innermost stride 1;
                           saves compiling the kernel for other tensors, which are then refused */
  const char *family;   /* of kernels; NULL: dispatch chooses */
  const char *phase;    /* NULL: many queries, and few where such calls are to be expected (qkv_prepare); "prefill" or
                           "decode": kernels of that phase alone take all calls; "merge": see qkv_merge; "append":
                           see qkv_append */
  const char *schedule; /* "tile_m=128,...", over that of the spec; NULL: see qkv_prepare */
} qkv_limits;
#define QKV_LIMITS_INIT {sizeof(qkv_limits), 0, 0, 0, 0, NULL, NULL, NULL}

/* All slow work: render, compile or read the cache, load. limits may be NULL.
 *
 * An op holds the kernel of its phase and one for tensors that are not 16-byte aligned. Without a phase, family or
 * schedule in the limits, and with len_q 0 or above 16, it also holds one of phase decode where the spec tells that
 * calls of few queries come: a workload has 1 to 16 queries; or it has no workloads, and layout.kv is padded or paged.
 * Such calls take it: those whose max_len_q (len_q of a dense q) is at most 16 and has at most 64 rows a KV head, or is
 * 1. Nothing else of a call but its tensors' alignment decides which kernel runs. `qkvc explain` shows it.
 *
 * Schedules are those of the limits or the spec; else, for aligned tensors, those of a table of measured ones that has an
 * entry for this spec, GPU and maxima (docs/tuned-tables.md); else what the family takes by itself. QKV_BAD_SCHEDULE:
 * one that is not legal, or whose clusters of blocks find no place on the GPU; of a table, the default is taken. */
QKV_API qkv_status qkv_prepare(qkv_engine *engine, const qkv_spec *spec, const qkv_limits *limits, qkv_op **out);
QKV_API void qkv_op_free(qkv_op *op);

/* Called after every spec, from any thread, one call at a time: how many of all are done, which one was, how its kernels
 * came ("pack", "cache", "compiled": the slowest way of one of them; "failed"), and the seconds it took. */
typedef void (*qkv_progress_fn)(int done, int total, const char *spec, const char *how, double seconds, void *user);
typedef struct qkv_prepare_many_options {
  size_t size;
  int threads; /* specs under way, and compilers at once; 0: the number of cores. A compiler takes some hundred MB. Of
                  calls that overlap on an engine the largest number of compilers holds for all */
  qkv_progress_fn progress; /* NULL: none. Must not call qkv_prepare_many */
  void *user;
} qkv_prepare_many_options;
#define QKV_PREPARE_MANY_OPTIONS_INIT {sizeof(qkv_prepare_many_options), 0, NULL, NULL}

/* qkv_prepare for `count` specs at once: sources are generated and compiled in parallel. limits[n] belongs to specs[n];
 * limits, or any of them, may be NULL: none. ops[n] is the op, or NULL where that failed; the others go on. statuses (may
 * be NULL) receives the status of each. The result is QKV_OK when all are, else the first failure's status, and the
 * message names every spec that failed, and why. options may be NULL. */
QKV_API qkv_status qkv_prepare_many(qkv_engine *engine, int count, qkv_spec *const specs[],
                                    const qkv_limits *const limits[], qkv_op *ops[], qkv_status statuses[],
                                    const qkv_prepare_many_options *options);
/* Bytes of workspace a call may need, from the declared maxima, by whichever kernel; 0 for families that need none. A
 * few bytes for causal masks on Hopper. */
QKV_API size_t qkv_workspace_size(const qkv_op *op);

/* ---- Packs: kernels made beforehand, in one file (docs/packs.md) ---- */

/* A pack holds specs, images for any number of architectures, and which kernels answer which request of qkv_prepare. An
 * engine looks into its packs, in the order they were loaded, before it generates or compiles anything: a request that a
 * pack recorded costs reading the pack and loading the images. Packs are read only; one that is damaged, in part or
 * whole, costs what it held, which comes from the cache or the compiler then. */

/* Reads a pack into memory. QKV_IO: it cannot be read, or is no pack. QKV_UNSUPPORTED: a newer version's, or kernels of
 * another version of the generator. Stays loaded until qkv_close. */
QKV_API qkv_status qkv_pack_load(qkv_engine *engine, const char *path);
/* The same of bytes in memory, as `qkvc bundle --c-array` puts them into a program. They are not copied and must stay as
 * they are until qkv_close. */
QKV_API qkv_status qkv_pack_load_memory(qkv_engine *engine, const void *bytes, size_t size);
/* A spec by its name, from the first of the packs that has it. */
QKV_API qkv_status qkv_spec_from_pack(qkv_engine *engine, const char *name, qkv_spec **out);

/* ---- Attention ---- */

/* The value of a declared parameter: `tensor` for rank > 0, `value` for scalars. */
typedef struct qkv_param_value {
  qkv_tensor tensor;
  double value;
} qkv_param_value;

/* Shapes, dense layout, element strides free:
 *   q   [batch, len_q, heads_q, dim_qk]     k [batch, len_k, heads_kv, dim_qk]    v [batch, len_k, heads_kv, dim_v]
 *   o   [batch, len_q, heads_q, dim_v]      lse, lse_with_sink [batch, heads_q, len_q] f32    sink [heads_q] f32
 *   k_scale, v_scale [heads_kv] f32, where the spec has attention.kv_scale: what k and v hold is multiplied by them
 *
 * Sequences of lengths of their own (layout of the spec; docs/design/0006-sequences.md). v is like k, o like q:
 *   q ragged  q [tokens, heads_q, dim_qk], lse [heads_q, tokens]; sequence b has the rows from cu_seqlens_q[b] up to
 *             cu_seqlens_q[b + 1]. Rows of no sequence are neither read nor written. The batch is that of cu_seqlens_q.
 *   kv padded k [batch, capacity, heads_kv, dim_qk], of which sequence b has the first seqlens_k[b]
 *   kv ragged k [tokens, heads_kv, dim_qk] with cu_seqlens_k
 *   kv paged  k [pages, page, heads_kv, dim_qk] (nhd) or [pages, heads_kv, page, dim_qk] (hnd). Token k of sequence b
 *             is number k % page of the page with the number page_table[b, k / page] (rows: [batch, columns]) or
 *             page_table[page_indptr[b] + k / page] (csr: [entries]); there are seqlens_k[b] of them
 * These arrays are i32 in device memory, contiguous except for the rows of a page table; a launch reads them, so a
 * replay of a captured graph sees what they hold then. Nothing is read behind a sequence's end, of the table neither.
 * max_len_q and max_len_k say how long sequences may be: grids, workspaces and the shapes of parameters follow them. 0:
 * the extent of a dense q or k; the maximum of qkv_limits, but no more than the capacity of padded keys or the columns
 * of a table of rows. A length beyond counts as the maximum, a negative one as 0, starts and ends of packed sequences
 * stay within the tensor; page numbers are used as they are (qkv_check_sequences looks at them).
 * What a layout has no use for is ignored.
 *
 * lse is the natural logarithm of the sum of exp of the final scores; a row without a visible key gives o = 0, lse = -inf.
 * Outputs the spec does not name are ignored; those it names are required. Any extent may be 0; lengths and i32 scalar
 * parameters lie within 2^30. */
typedef struct qkv_attention_args {
  size_t size;
  qkv_tensor q, k, v, o;
  qkv_tensor lse, lse_with_sink;
  qkv_tensor sink;
  const qkv_param_value *params; /* nparams of the spec, in order of declaration */
  int nparams;
  void *workspace; /* device memory, 256-byte aligned; any content; not shared by calls that may overlap in time */
  size_t workspace_bytes;
  int reuse_plan; /* 1: the workspace still holds what an earlier call planned, see below */
  qkv_tensor cu_seqlens_q, cu_seqlens_k; /* i32 [batch + 1] */
  qkv_tensor seqlens_k;                  /* i32 [batch] */
  qkv_tensor page_table;                 /* i32 [batch, columns], any stride between rows, or [entries] */
  qkv_tensor page_indptr;                /* i32 [batch + 1] */
  int64_t max_len_q, max_len_k;          /* of the longest sequence that the arrays may hold; 0: see above */
  qkv_tensor k_scale, v_scale;           /* f32 [heads_kv], any stride: 0 is one scale for all heads */
} qkv_attention_args;
#define QKV_ATTENTION_ARGS_INIT \
  {sizeof(qkv_attention_args), {0}, {0}, {0}, {0}, {0}, {0}, {0}, NULL, 0, NULL, 0, 0, {0}, {0}, {0}, {0}, {0}, 0, 0, {0}, {0}}

/* Plans. Where data decide which tiles a mask hides, a call first builds a map of tiles in its workspace (the launch
 * qkv_plan_map); where the mask's bounds do not tell which rows see the most keys, an order of tiles of rows
 * (qkv_plan_counts, qkv_plan_order). Plans depend on the sizes and on what the mask reads, not on q, k and v: the calls of
 * further layers may set reuse_plan and skip them, as long as workspace, op, sizes, alignment of the tensors and the
 * mask's parameters are those of the call that planned, and that call comes before on the stream. Kernels that count in
 * their workspace leave the counters at zero; a call that plans sets them to zero first, which is a command of its own
 * on the stream. */

/* Launch only: no allocation, lock, synchronisation, compile, file access or environment read. May be captured in a
 * CUDA graph: kernels were loaded by qkv_prepare. The device's context must be current (it is made current and restored
 * when it is not); in a context other than the one qkv_prepare ran in, a kernel's first launch loads it there, and
 * QKV_CAPTURING refuses that while the stream is captured.
 *
 * With debug_checks in the engine's options a call first waits for the device, copies the arrays of lengths and pages
 * to the host, looks at them as qkv_check_sequences does, and asks the driver whether tensors and workspace are memory
 * that the device can reach, of keys the pages in use. QKV_INVALID_ARGUMENT names the tensor, or the sequence and the
 * entry. Slow; QKV_CAPTURING while the stream is captured. */
QKV_API qkv_status qkv_attention(const qkv_op *op, const qkv_attention_args *args, qkv_stream stream);

/* ---- Merging: attention over keys that are split ---- */

/* Output and natural LSE of attention of some rows over some of their keys, as a call left them: a shared prefix and
 * what comes after it, parts of a context on several GPUs, splits of one's own. A state with lse = -inf has no keys;
 * its o may hold anything. */
typedef struct qkv_state {
  qkv_tensor o;   /* shape as in qkv_attention_args; f16, bf16 or f32 */
  qkv_tensor lse; /* the same, f32 */
} qkv_state;

enum { QKV_MERGE_STATES = 48 };

typedef struct qkv_merge_args {
  size_t size;
  int count;               /* 1 to QKV_MERGE_STATES */
  const qkv_state *states; /* host memory; each with strides and a format of its own */
  qkv_tensor o;            /* of the spec's output format; may be the same tensor as the o of a state */
  qkv_tensor lse;          /* likewise; rank 0 and no data: not wanted */
} qkv_merge_args;
#define QKV_MERGE_ARGS_INIT {sizeof(qkv_merge_args), 0, NULL, {0}, {0}}

/* Attention over all keys from states over disjoint ones:
 *   lse = log(sum_n exp(lse_n))     o = sum_n exp(lse_n - lse) o_n     in f32, in the order of the states
 * States without keys change no bit; when none has keys, o = 0 and lse = -inf. One state is copied, and converted.
 * All rows of the tensors are merged, those of no sequence too. Of the spec only heads, dim v, the output's format and
 * layout.q count. For a sink, let one state alone have it, and pass its lse_with_sink as the state's lse.
 * The op is one of qkv_prepare with limits.phase = "merge". Launch only, like qkv_attention; errors name the state. */
QKV_API qkv_status qkv_merge(const qkv_op *op, const qkv_merge_args *args, qkv_stream stream);
/* The same in f64 on the CPU: all tensors in host memory; o of any float format. */
QKV_API qkv_status qkv_merge_reference(const qkv_spec *spec, const qkv_merge_args *args);

/* ---- Append: new keys and values into the cache ---- */

/* What a call takes, by the sections rope and append of the spec (docs/serving.md). `tokens` rows of new queries, keys and
 * values, each of dtype.q and of strides of its own, go through the norm, rope, and the conversion to dtype.kv, in this
 * order and in f32; keys and values end up in the cache, queries in q_out.
 *
 *   q      [tokens, heads_q, dim_qk]      k [tokens, heads_kv, dim_qk]      v [tokens, heads_kv, dim_v]
 *   qkv    [tokens, heads_q * dim_qk + heads_kv * dim_qk + heads_kv * dim_v], in place of all three: what a fused
 *          projection gives; it is split where it lies
 *   q_out  [tokens, heads_q, dim_qk] of dtype.q; may be q, or that part of qkv
 *   k_cache, v_cache   of dtype.kv, as k and v of qkv_attention_args. The other tensors must not overlap them
 *
 * Where layout.q is dense, rows are those of all sequences one after the other, as many each.
 *
 *   append.slots   a token's place                                                         its position, for rope
 *   mapping        slots[token]: page number * page + offset where paged, sequence *       positions[token]
 *                  capacity + position where padded or dense, the row where ragged
 *   positions      positions[token] in its own sequence                                    positions[token]
 *   lengths        it counts from the end: the new tokens are the last of their sequence   the place
 *
 * The last two find sequences and pages as attention does: by cu_seqlens_q, cu_seqlens_k, seqlens_k, page_table and
 * page_indptr, whose lengths are those with the new tokens. slots and positions are i32 or i64, contiguous. A slot that is
 * negative (-1 skips) or beyond the cache, and a position that is negative or not below its sequence's length, writes no
 * key and no value; its query is turned nevertheless. Rows that no sequence has are not looked at. Of two tokens with the
 * same place one wins. What is not written keeps its bits.
 *
 * Optional, in device memory: rank 0 is "not given". */
typedef struct qkv_append_args {
  size_t size;
  qkv_tensor q, k, v;
  qkv_tensor qkv;
  qkv_tensor q_out;
  qkv_tensor k_cache, v_cache;
  qkv_tensor slots, positions;
  qkv_tensor q_norm, k_norm;   /* f32 [dim_qk], contiguous: weights of the norm */
  qkv_tensor cos_sin;          /* f32 [positions, rope.dims], rows contiguous: cosines, then sines, of a position's pairs;
                                  for rope.table. Positions beyond its ends take its first and its last row */
  qkv_tensor frequencies;      /* optional, f32 [rope.dims / 2], contiguous: in place of those of the spec's theta and
                                  scaling, in radians a position */
  double rope_factor;          /* on cosines and sines; 0: the spec's */
  qkv_tensor k_scale, v_scale; /* f32 [heads_kv], any stride (0: one for all heads), where the spec has kv_scale: what
                                  keys and values are divided by before they are stored, as attention multiplies by
                                  them. e4m3 saturates at 448 */
  qkv_tensor cu_seqlens_q, cu_seqlens_k, seqlens_k, page_table, page_indptr;
} qkv_append_args;
#define QKV_APPEND_ARGS_INIT                                                                                           \
  {sizeof(qkv_append_args), {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, 0, {0}, {0}, {0}, {0}, {0},  \
   {0}, {0}}

/* Launch only, like qkv_attention, by an op of qkv_prepare with limits.phase = "append"; needs no workspace. Angles are
 * position * frequency without the error of the product in f32, for positions up to 2^24. Errors name the tensor. */
QKV_API qkv_status qkv_append(const qkv_op *op, const qkv_append_args *args, qkv_stream stream);
/* The same in f64 on the CPU, with one rounding at the end: all tensors in host memory; float ones of any format. */
QKV_API qkv_status qkv_append_reference(const qkv_spec *spec, const qkv_append_args *args);

/* ---- What a call should give, what it costs, whether its arrays are sound ---- */

/* The definition of right: the same computation in f64 on the CPU. All tensors in host memory; o may be any float dtype,
 * QKV_F32 recommended. Slow: O(batch heads len_q len_k dim). */
QKV_API qkv_status qkv_reference(const qkv_spec *spec, const qkv_attention_args *args);

/* Floating-point operations of the visible (query, key) pairs: 2 (dim_qk + dim_v) each, and the bytes of q k v o.
 * Looks only at shapes, strides excepted, and at lengths of sequences and the parameters the mask uses; those must be
 * in host memory. Bytes count each sequence's own tokens. */
QKV_API qkv_status qkv_work(const qkv_spec *spec, const qkv_attention_args *args, double *flops, double *bytes);

/* A look at the arrays of lengths and pages before a call, for debugging: launches cannot look. They must be in host
 * memory here (args.cu_seqlens_q, ..., page_indptr); of the other tensors only the shapes count, parameters not at
 * all. QKV_INVALID_ARGUMENT names the sequence and the entry of the first fault: lengths that are negative or above
 * the maximum (max_len_q, max_len_k; 0: none beyond the tensors'), cu_seqlens or page_indptr that fall or leave the
 * tensor, more tokens than a table's part has pages for, a page number below 0 or not below the number of pages in a
 * part that is in use. What lies behind the ends may be anything. */
QKV_API qkv_status qkv_check_sequences(const qkv_spec *spec, const qkv_attention_args *args);

#ifdef __cplusplus
}
#endif
#endif
