/* qkv_internal.h: what the files of the facade share. The facade is the only part of the runtime that knows both the
 * generator and the devices.
 *
 *   qkv_status.c     names, versions, structs that grow     qkv_op.c         prepare: kernels, loaded and bound
 *   qkv_engine.c     device, compiler, cache, counters      qkv_check.c      is a call's description right
 *   qkv_spec.c       specs                                  qkv_attention.c  launch
 *   qkv_bind.c       a parameter struct's members, resolved
 *   qkv_build.c      render, compile once, cache            qkv_reference.c  the CPU's answer, work counts
 *   qkv_merge.c      states over disjoint keys become one   qkv_sequences.c  arrays of lengths and pages, looked at
 *   qkv_append.c     new keys into the cache
 *   qkv_log.c        compiler logs in template lines        qkv_explain.c, qkv_doctor.c  reports
 *   qkv_debug.c      what a launch cannot look at, looked at
 *   qkv_dispatch.c   which kernels an op holds, and which a call takes
 *   qkv_pack.c, qkv_bundle.c  packs: used, made           qkv_prepare.c    many ops at once
 *   qkv_tuned.c      schedules that were measured (qkv_tuned_internal.h)
 *   qkv_mask.c       a mask as pairs and as tiles           qkv_mask_tiles.c  what a kernel does with each tile
 *   qkv_pool.c       the KV pool (qkv_pool_internal.h) */
#ifndef RUNTIME_QKV_INTERNAL_H
#define RUNTIME_QKV_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cache.h"
#include "device.h"
#include "error.h"
#include "gen.h"
#include "pack.h"
#include "qkv.h"
#include "qkv_build.h"
#include "qkv_pack.h"
#include "qkv_tune.h"
#include "reference.h"
#include "rope.h"
#include "sequence.h"

/* ---- Structs that grow (qkv_status.c) ---- */

/* Copies a caller's struct, whose first member is its size, over the first bytes of `known`: fields the caller does not
 * know keep their values. QKV_INVALID_ARGUMENT when the size is not set. from NULL: nothing to copy. */
qkv_status struct_take(void *known, size_t known_size, const void *from, const char *name);
/* The other way: fills as much of `to` as its size says. */
qkv_status struct_give(void *to, const void *known, size_t known_size, const char *name);

/* Sets the message of a gen_error and gives its status. */
qkv_status gen_failed(const gen_error *error);
/* Hands a text over to the user: *out is freed with qkv_string_free. QKV_OUT_OF_MEMORY when it failed. */
qkv_status text_give(text *t, char **out);
/* value with `digits` decimals, in every locale. */
void text_fixed(text *t, double value, int digits);
double seconds_now(void);
int cores(void); /* that this process may use; at least 1 */

/* ---- Specs ---- */

struct qkv_spec {
  spec *parsed;
  atomic_int uses; /* the user's and one per op: an op may outlive the user's handle */
};
void spec_retain(const qkv_spec *s);
qkv_dtype dtype_of_spec(spec_dtype t);
qkv_dtype dtype_of_param(param_type t);
sequence_layout spec_sequence_layout(const spec *s);
/* The extents of declared parameter n (rank of them). */
void spec_extents(const spec *s, int n, int64_t batch, int64_t len_q, int64_t len_k, int64_t shape[4]);

/* ---- Engine ---- */

typedef struct build_job build_job;
typedef struct op_kernel op_kernel;
typedef struct tuned_store tuned_store;   /* these two: qkv_tuned_internal.h */
typedef struct tuned_choice tuned_choice;

enum { ENGINE_PACKS = 64 };

struct qkv_engine {
  const device_ops *ops; /* NULL: compile only */
  device *device;
  const compiler_ops *compiler; /* for the device */
  cache *cache;
  tuned_store *tuned;
  qkv_device_info info;
  const arch *arch; /* what sources are generated for */
  char *template_path;
  int disable_jit, debug_checks;
  qkv_log_fn log;
  void *log_user;
  atomic_ullong compiles, cache_hits, launches, renders, pack_hits, load_nanoseconds;
  pthread_mutex_t jobs_lock; /* guards the list and `done` of its jobs; never held while compiling */
  pthread_cond_t jobs_done;
  build_job *jobs;
  int compiling, compile_limit; /* compilers that run, and may run at once; guarded by jobs_lock */
  int limiters;                 /* calls that limit them; guarded by jobs_lock */
  pthread_cond_t compiler_free;
  pthread_mutex_t packs_lock;   /* held by who adds one; readers need none: packs are only ever added */
  int packs_reserved;           /* places taken, of packs on their way in, too; guarded by packs_lock */
  atomic_int npacks;
  pack *packs[ENGINE_PACKS];
};

void engine_log(const qkv_engine *e, qkv_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The options with the environment filled in; strings are the caller's or the environment's. */
qkv_status options_resolve(const qkv_options *given, qkv_options *out);

/* The architecture by name; QKV_UNKNOWN_ARCH, naming the known ones. */
qkv_status arch_named(const char *name, const arch **out);

/* ---- Builds ---- */

/* Where an image may come from, the later the fewer: packs, the cache and the compiler; without packs; the compiler. */
typedef enum build_from { BUILD_FROM_PACKS, BUILD_FROM_CACHE, BUILD_ANEW } build_from;

/* A compiled kernel, shared between all who asked for it at the same time. */
struct build_job {
  char key[CACHE_KEY_SIZE];
  int users; /* guarded by jobs_lock */
  int done;
  build_from from;
  qkv_status status;
  char *message; /* of a failure */
  device_image image;
  int from_cache; /* or from a pack */
  int from_pack;
  double compile_seconds, load_seconds;
  build_job *next;
};

/* The request of the user's options, and who compiles it: with an architecture of its own NVRTC, else, for_device, as
 * qkv_prepare would. */
qkv_status build_request(const qkv_engine *e, const qkv_build_options *given, gen_request *request,
                         const compiler_ops **compiler, bool *for_device);
/* The image of a rendered kernel: from a pack or the cache, or compiled (once per key, however many threads ask). *out
 * is given back with build_release, also after a failure (then it may be NULL). */
qkv_status build_kernel(qkv_engine *e, const compiler_ops *compiler, const gen_kernel *k, build_from from,
                        build_job **out);
/* Puts spec and phase before the message of a kernel that may not be compiled. Returns status. */
qkv_status build_name_missing(qkv_status status, const spec *s, const gen_request *r);
void build_release(qkv_engine *e, build_job *job);
/* Renders, with timing to the log. */
qkv_status render_kernel(qkv_engine *e, const spec *s, const gen_request *request, gen_kernel **out);
/* "compiler=nvrtc arch=sm_90a": for what, and for whom, images are made. */
void build_target(const compiler_ops *compiler, const char *target, text *out);

/* The caller's limits, checked, over the defaults in *out; and what they ask of the generator. */
qkv_status limits_take(qkv_limits *out, const qkv_limits *given);
gen_request limits_request(const qkv_engine *e, const qkv_limits *l);

/* ---- Packs (qkv_pack.c) ---- */

/* The kernels of an op by number: of its phase, for tensors that this one cannot take, for calls of few queries. */
enum { ROLE_PRIMARY, ROLE_OTHER, ROLE_FEW, ROLES };
_Static_assert((int)ROLES == (int)PACK_ROLES, "a request of a pack holds the kernels of an op");
const char *role_name(int which); /* "few queries" */

/* What this version puts into the head of packs. */
void bundle_maker(pack_maker *out);
/* Opens the packs that the options name, in order; one that cannot be used is a warning. */
void packs_open(qkv_engine *e, const qkv_options *o);
void packs_close(qkv_engine *e);
/* What identifies a request: everything that decides which kernels answer it, of the maxima those that `reads` names
 * (GEN_READ_*). tuned: what tables of measured schedules say to it, "" when nothing. A key of a pack. False: out of
 * memory. */
bool request_key(const spec *s, const compiler_ops *compiler, const gen_request *r, const char *tuned, unsigned reads,
                 unsigned char key[PACK_KEY_SIZE]);
/* The same for people, in a line: "llama3_8b nvrtc sm_90a phase=decode batch=8". */
void request_words(const spec *s, const compiler_ops *compiler, const gen_request *r, const char *tuned, unsigned reads,
                   text *out);

/* That `tuned`: the entries of the tables for the primary kernel and for the one for few queries; NULL: none. */
void request_tuned(const tuned_choice *primary, const tuned_choice *few, text *out);

typedef struct packed_op {
  const pack *pack;
  unsigned roles; /* bit n: kernels[n] is there */
  pack_kernel kernels[ROLES];
} packed_op;
/* The kernels that a pack recorded for this request: nothing is rendered. */
bool packs_find_op(qkv_engine *e, const spec *s, const gen_request *r, packed_op *out);
/* The image of a kernel by its cache key, whichever compiler made it. */
bool packs_find_kernel(qkv_engine *e, const char *key, pack_kernel *out);
/* "2 packs (a.qkvpack, b.qkvpack)", "no pack". */
void packs_describe(const qkv_engine *e, text *out);

/* Renders with the schedule that a table of measured ones has for this GPU, phase and declared maxima, where neither
 * the request nor the spec names one and the request is for the engine's own device (for_device); else, and where that
 * schedule is not legal here, with the built-in default. Which and why: to the log, and to choice unless it is NULL. */
qkv_status tuned_render(qkv_engine *e, const spec *s, const gen_request *request, bool for_device, gen_kernel **out,
                        tuned_choice *choice);

/* The log with every place in the generated source followed by the template line it came from and the source line.
 * notes_only: only what log_is_note keeps, with the lines that belong to it. */
void log_translate(const char *log, const gen_kernel *k, int notes_only, text *out);
/* What costs a kernel speed, in plain words, a line for each entry and cause (log_advise). */
void log_advisories(const char *log, const manifest *m, text *out);
/* The same to the engine's log, a warning each. */
void log_warn(const qkv_engine *e, const char *log, const char *spec_name, const manifest *m);

/* ---- Calls ---- */

enum {
  TENSOR_Q,
  TENSOR_K,
  TENSOR_V,
  TENSOR_O,
  TENSOR_LSE,
  TENSOR_LSE_WITH_SINK,
  TENSOR_SINK,
  TENSOR_K_SCALE,
  TENSOR_V_SCALE,
  TENSOR_CU_SEQLENS_Q,
  TENSOR_CU_SEQLENS_K,
  TENSOR_SEQLENS_K,
  TENSOR_PAGE_TABLE,
  TENSOR_PAGE_INDPTR,
  TENSOR_PARAM
};

/* What an op was prepared for, see qkv_limits; 0: no maximum. */
typedef struct call_limits {
  int64_t batch, len_q, len_k;
} call_limits;

/* The tensors of a call by number (declared parameter n is TENSOR_PARAM + n), its scalars and its sizes. */
typedef struct call_view {
  const qkv_tensor *tensors[TENSOR_PARAM + SPEC_MAX_PARAMS];
  double values[SPEC_MAX_PARAMS];
  int64_t sizes[SIZE_COUNT];
  const manifest_states *states; /* of a merge */
  int empty; /* nothing to compute */
} call_view;

/* Checks everything about a call that does not depend on kernels and describes it. limits: of the op, NULL: none. host:
 * dtypes of q k v o may be any float format (the reference). */
qkv_status call_check(const spec *s, const call_limits *limits, const qkv_attention_args *args, int host,
                      call_view *out);
/* The part of it that masks need: extents of q and k, arrays of lengths and parameters in host memory. *out is a copy
 * of args with max_len_q and max_len_k filled in, as sequence_find wants it. */
qkv_status call_check_params(const spec *s, const qkv_attention_args *args, qkv_attention_args *out);
/* The part of it that qkv_check_sequences needs: shapes of q, k and of the arrays. As call_check_params. */
qkv_status call_check_arrays(const spec *s, const qkv_attention_args *args, qkv_attention_args *out);
/* The whole of it for a merge: sizes, and the states as the kernel takes them. Any memory. */
qkv_status call_check_merge(const spec *s, const qkv_merge_args *args, call_view *out, manifest_states *states);
/* ---- Dispatch (qkv_dispatch.c) ---- */

enum { DISPATCH_REASON = 512 };
/* Up to so many queries a sequence are few, for kernels of phase decode. */
int64_t dispatch_few(const spec *s);
/* The kernel for calls of few queries that an op of this request holds beside the others: *out stays NULL when it has
 * none. `reason` says why it has one, or none; for_device and choice as for tuned_render. */
qkv_status dispatch_render_decode(qkv_engine *e, const spec *s, const gen_request *request, bool for_device,
                                  gen_kernel **out, char reason[DISPATCH_REASON], tuned_choice *choice);
/* What that kernel is asked for; false: an op has none, and `reason` says why. Its queries are the spec's, not the
 * request's, and neither are what it reads (gen_request.reads is NULL). */
bool dispatch_few_request(const spec *s, const gen_request *request, gen_request *few, char reason[DISPATCH_REASON]);
/* The kernel for tensors that the rendered one (which needs aligned ones) cannot take: of its family when that can. */
qkv_status dispatch_render_unaligned(qkv_engine *e, const spec *s, const gen_request *request,
                                     const gen_kernel *aligned, gen_kernel **out);
/* What dispatch looks at of a spec beside the variant: its workloads. A line. */
void dispatch_describe(const spec *s, text *out);
/* What the kernels with 16-byte accesses need of a tensor. The stride of an extent of 1 does not matter, except for the
 * tokens (token_axis; -1: none): a tile forms the addresses of rows past the end, too, for copies of no bytes. */
int call_is_aligned(const qkv_tensor *t, int token_axis, int has_maps);
/* Which of the op's kernels a call takes: a function of its maximum of queries and of its tensors' alignment. */
qkv_status dispatch_choose(const qkv_op *op, const call_view *call, const op_kernel **out);

/* Is the call within what the op was prepared for? */
qkv_status call_check_maxima(const qkv_op *op, const call_view *call);
/* Fills the parameter struct and launches: zeroed regions of the workspace, then the kernels; without those that plan
 * when `planned`. */
qkv_status call_launch(const qkv_op *op, const op_kernel *k, const call_view *call, char *workspace,
                       const int64_t *offsets, bool planned, qkv_stream stream);
/* Is the tensor part of a call of this spec? */
int call_uses(const spec *s, int tensor);
/* What engines with debug_checks do before a launch (qkv_debug.c): waits, copies arrays, asks the driver of addresses. */
qkv_status debug_check_attention(const qkv_op *op, const qkv_attention_args *args, const call_view *call,
                                 qkv_stream stream);
qkv_status debug_check_merge(const qkv_op *op, const qkv_merge_args *args, qkv_stream stream);
/* Binds a spec's score, mask and parameters (in host memory) to the evaluator; lives as long as problem_eval is used.
 */
typedef struct problem_eval {
  const spec *spec;
  const qkv_attention_args *args;
} problem_eval;
/* Value of a bool, int or float expression of the spec at a place; s only counts in scores. */
double problem_value(const problem_eval *p, const expr *e, const reference_position *at, double s);
/* A parameter's element as expr_env.read gives it, `user` being a problem_eval; indices are clamped to the tensor's
 * extents, as on the device. Float scalars travel as f32. */
double problem_read(void *user, int param, const int64_t *index);
/* Number of visible (query, key) pairs over batch and heads; -1 when counting them takes more than `most` evaluations
 * of the mask. Parameters that the mask reads must be in host memory. */
qkv_status work_visible(const spec *s, const qkv_attention_args *args, double most, double *pairs);

/* Batch entry b, with lengths of its own. */
sequence call_sequence(const spec *s, const qkv_attention_args *args, int64_t b);
int64_t call_batch(const spec *s, const qkv_attention_args *args);
/* Where query row i of head h of batch entry b stands, for key 0. */
reference_position call_position(const spec *s, const qkv_attention_args *args, int64_t b, int64_t h, int64_t i);

/* The residues of a mask's tiles: what m is, and d for its parameters; see mask_residue.h. modulus NULL: d is 1. */
int64_t call_dilation(const problem_eval *p, const expr *modulus);
/* Where query number `n` of the queries from row `first_row` on stands, among the tokens of its residue. */
reference_position call_residue_position(const spec *s, const qkv_attention_args *args, int64_t b, int64_t h,
                                         int64_t first_row, int64_t n, int64_t dilation);

/* One head of one batch entry, cut into tiles (qkv_mask_tiles.c). */
typedef struct mask_tiling {
  int64_t batch, head;    /* which */
  int64_t tile_q, tile_k; /* queries and keys of a tile, at least 1 */
  int64_t dilation;       /* tiles hold tokens of one residue modulo it; 1: neighbours */
  int64_t rows, columns;  /* tiles: ceil(len_q / tile_q) and ceil(len_k / tile_k); as qkv_mask_map says with a dilation */
  unsigned char *planned; /* [rows, columns] of qkv_tile: what a kernel does by the generator's analysis */
  unsigned char *actual;  /* [rows, columns] of qkv_tile: what asking the mask for every pair says; NULL: not asked */
  double visible;         /* pairs; -1: not asked */
} mask_tiling;
/* Cuts the mask into tiles of t->tile_q by t->tile_k, asks for every pair unless there are more than `most`, and fills
 * the rest of t; planned and actual are freed by the caller, also after a failure. `args` is checked and in host
 * memory. */
qkv_status mask_tiles(const spec *s, const qkv_attention_args *args, double most, mask_tiling *t);

/* "q", "sink", the name of a parameter. */
const char *call_tensor_name(const spec *s, int tensor);
/* The number of a tensor by its name in a manifest ("q", "param.slope"), -1 when unknown; and of one of its axes
 * ("batch", "0"). */
int call_tensor_find(const spec *s, const char *name, size_t length);
int call_axis_find(const spec *s, int tensor, const char *name);
/* The axis of q k v o along which neighbouring tokens lie. */
int call_token_axis(const spec *s, int tensor);

/* One member of the parameter struct, resolved. */
/* What a tensor is to a call. INDEX: integers, innermost stride 1. */
typedef enum role { INPUT, OUTPUT, INDEX } role;
/* Strides and address of a tensor with at least one element. */
qkv_status call_check_memory(const char *name, const qkv_tensor *t, role r);
const char *call_dtype_name(qkv_dtype t);
/* Whether the elements of a tensor may be anything but floats: a host's reference takes any float format. */
int call_is_float(qkv_dtype t);

typedef enum slot_kind {
  SLOT_DATA,
  SLOT_STRIDE,
  SLOT_EXTENT,
  SLOT_SIZE,
  SLOT_WORKSPACE,
  SLOT_VALUE,
  SLOT_MAP,
  SLOT_STATES
} slot_kind;
typedef enum map_tokens { MAP_ALL, MAP_LONG, MAP_SHORT, MAP_CLIPPED } map_tokens; /* see manifest.h */
typedef struct field_slot {
  slot_kind kind;
  field_type type;
  int tensor, index, offset;
  int box_dims, box_heads, box_tokens, swizzle; /* SLOT_MAP; box_heads > 0: the packed view */
  map_tokens tokens;
  int dim, token, head, outer; /* SLOT_MAP: axes of the tensor; outer: its batch or pages, -1: there is none */
} field_slot;

/* Where an image came from; the later, the slower. */
typedef enum kernel_origin { ORIGIN_PACK, ORIGIN_CACHE, ORIGIN_COMPILER } kernel_origin;

/* A loaded image with its kernels and how to fill their parameter struct. */
struct op_kernel {
  manifest manifest;
  device_module *module;
  device_kernel *kernels[MANIFEST_MAX_LAUNCHES];
  field_slot slots[MANIFEST_MAX_FIELDS];
  kernel_origin origin;
  int has_maps; /* some of the slots are SLOT_MAP */
  int merges;   /* one is SLOT_STATES: a kernel of qkv_merge */
  int64_t dilation;   /* of the manifest; 1: none */
  int dilation_param; /* the parameter that says it; -1: none */
};

/* Resolves the members of the manifest's parameter struct (qkv_bind.c): fills slots, dilation and what follows from them.
 * QKV_INTERNAL names a member that no call can fill. */
qkv_status bind_fields(const spec *s, op_kernel *k);
/* Members of a kernel of qkv_append: `source` behind "append." (see manifest.h). 0: it names nothing. */
int append_bind(const spec *s, const char *source, field_slot *slot);

struct qkv_op {
  qkv_engine *engine;
  const qkv_spec *spec;
  call_limits limits;
  op_kernel *primary;
  op_kernel *other; /* for tensors that primary cannot take; equal to primary when that takes all; NULL: refused */
  op_kernel *few;   /* for calls of few queries; NULL: the others take them */
  int64_t workspace;
  int appends;       /* prepared for phase append */
  void *frequencies; /* of rope, f32 in device memory; NULL: an op that needs none */
  qkv_tensor zero; /* one element 0 of a type of its own, for parameters that are empty: they read as 0; no data: none
                      has a shape */
};

#endif
