/* qkv_tune.h: which schedules could be tried, how long calls take, and tables of what was measured (docs/tuning.md,
 * docs/tuned-tables.md): for tuners and benchmarks. Errors, threads, ownership as in qkv.h. */
#ifndef QKV_TUNE_H
#define QKV_TUNE_H

#include "qkv_build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Schedules that could be tried ---- */

typedef enum qkv_effort { QKV_EFFORT_QUICK = 0, QKV_EFFORT_DEFAULT = 1, QKV_EFFORT_FULL = 2 } qkv_effort;

/* A legal schedule of a family, with what a model of the device expects of it for one workload (docs/tuning.md). The
 * terms are the seconds that each part of the device would take by itself; `seconds` is what they make together. */
typedef struct qkv_candidate {
  size_t size;
  const char *family, *schedule; /* valid during the visit; the schedule is complete, in the order of the axes */
  int is_default;                /* what the family takes by itself for these maxima */
  double seconds;
  double tensor, exponential, shared, memory; /* seconds of tensor cores, special functions, shared and device memory */
  double waves;                               /* factor of work that does not fill the last round of blocks; at least 1 */
} qkv_candidate;

/* Calls visit for every legal schedule worth trying, the default first, then those with the fewest expected seconds
 * first; schedules that are equal in them stand in a fixed order. More effort keeps what less has. opt says family,
 * phase, fixed axes and maxima as for qkv_build; family "all" means every one that can do the spec in the phase, each
 * with its default, that of dispatch's choice first; with opt->schedule, whose axes are of one family, it means
 * dispatch's choice alone. The workload says what is expected of them (its len_q and len_k are lengths of every
 * sequence; each size 0 to 2^30, else QKV_INVALID_ARGUMENT names it). A nonzero return stops. Needs no GPU: an engine
 * without one, or for another architecture, models the architecture's flagship. */
QKV_API qkv_status qkv_candidates(qkv_engine *engine, const qkv_spec *spec, const qkv_build_options *opt,
                                  const qkv_workload *workload, qkv_effort effort,
                                  int (*visit)(const qkv_candidate *candidate, void *user), void *user);

/* ---- Tables of measured schedules ---- */

/* What a tuner measured. Strings of an entry that the library gives are valid as long as the visit or the engine. */
typedef struct qkv_tuned_entry {
  size_t size;
  const char *phase;             /* "prefill" or "decode" */
  const char *family, *schedule;
  const char *workload;          /* its name; NULL: the best over all workloads of the phase (bucket any) */
  int64_t batch, len_q, len_k;   /* as measured; they decide the bucket. 0 where workload is NULL */
  double seconds, low, high;     /* median; 10th and 90th percentile */
  const char *default_schedule;  /* what the family would have taken by itself */
  double default_seconds;        /* measured in turns with it */
} qkv_tuned_entry;

/* Writes a table for the engine's GPU, replacing what the file said of the same GPU, variant, phase and bucket; all
 * else in the file stays. path NULL: DIRECTORY/GPU CLASS/SPEC NAME.yaml of the user's tables (options.tuned_dir,
 * $QKV_TUNED_DIR, else the cache directory's tuned/). notes: "key: value" lines on how it was measured (clock,
 * versions, effort), or NULL. The file is replaced as a whole or not at all; writers of one folder wait for each other.
 * count 0: only sees whether all that can be done; makes the folder and nothing else.
 * QKV_IO names the file: it cannot be written, or is of a later version, which is left as it is. What is damaged in it
 * is kept beside it, in FILE.damaged. */
QKV_API qkv_status qkv_tuned_write(qkv_engine *engine, const qkv_spec *spec, const char *path,
                                   const qkv_tuned_entry *entries, int count, const char *notes);
/* The entry that qkv_prepare takes for a spec and these options (arch NULL, schedule NULL), if any: *found is 0 or 1.
 * Explains in *reason (qkv_string_free; may be NULL): which file, which bucket, or why the built-in default stays. */
QKV_API qkv_status qkv_tuned_find(qkv_engine *engine, const qkv_spec *spec, const qkv_build_options *opt,
                                  qkv_tuned_entry *entry, int *found, char **reason);
/* The folder of the user's tables, "" when there is none. Valid as long as the engine. */
QKV_API const char *qkv_tuned_path(const qkv_engine *engine);
/* The bucket of sizes, "b4 q8192 k8192" or "any" where one is 0: what shares an entry. phase: "prefill" or "decode".
 * QKV_INVALID_ARGUMENT: a size that is not 0 to 2^31 - 1. */
enum { QKV_BUCKET_TEXT = 64 };
QKV_API qkv_status qkv_tuned_bucket(const qkv_spec *spec, const char *phase, int64_t batch, int64_t len_q, int64_t len_k,
                                    char out[QKV_BUCKET_TEXT]);

/* Where an entry stands. Valid during the visit. */
typedef struct qkv_tuned_table {
  size_t size;
  const char *file; /* or "built in: h200/llama3_8b.yaml" */
  const char *spec, *variant;
  const char *gpu, *gpu_class;
  const char *version; /* of qkvc */
  const char *notes;   /* "key: value" lines */
  const char *bucket;  /* "b4 q8192 k8192" */
  int here;            /* 2: measured on a GPU like the engine's; 1: a hint for it; 0: neither */
} qkv_tuned_table;
/* Calls visit for every entry of the given files, or, with files NULL, of all tables that the engine knows, in the
 * order of search; a nonzero return stops. What is damaged is left out and said in the log. */
QKV_API qkv_status qkv_tuned_list(qkv_engine *engine, const char *const *files, int count,
                                  int (*visit)(const qkv_tuned_table *table, const qkv_tuned_entry *entry, void *user),
                                  void *user);
/* Whether a file is a table without a fault. QKV_BAD_SPEC: the message is the full text, file:line:col; QKV_IO: it
 * cannot be read, or is of a later version. */
QKV_API qkv_status qkv_tuned_check(const char *file);
/* Merges tables, of runs that shared the work, into DIRECTORY/GPU CLASS/SPEC NAME.yaml. Of two entries of one GPU,
 * variant, phase and bucket, also where one is there already, the one stays that gained more over the default it was
 * measured in turns with; the order of files decides nothing. Refuses, before anything is written, files with a fault. */
QKV_API qkv_status qkv_tuned_merge(const char *directory, const char *const *files, int count);

/* ---- Measuring ---- */

/* Median seconds of one call, measured on the device: warm-up, then `repeats` calls timed one by one with events.
 * Also the fastest and slowest. On emu: wall time of the emulation, which says nothing of a GPU. */
QKV_API qkv_status qkv_time(const qkv_op *op, const qkv_attention_args *args, qkv_stream stream, int repeats,
                            double *median, double *fastest, double *slowest);
/* One of several that are measured in turns. */
typedef struct qkv_contestant {
  size_t size;
  const qkv_op *op;
  const qkv_attention_args *args; /* nargs sets, which the calls take one after the other, round and round */
  int nargs;
  double *seconds; /* out, room for options.samples: of one call, in the order of measurement */
  int samples;     /* out: how many there are */
  int calls;       /* out: of a sample */
} qkv_contestant;

/* All fields but `size` may be zero. */
typedef struct qkv_measure_options {
  size_t size;
  int samples;            /* of each contestant at most; 0: 10 */
  int calls;              /* of a sample; 0: as many as take sample_seconds, at most 512, whole rotations; 1 on emu */
  double sample_seconds;  /* 0: 1e-3 */
  double warm_up_seconds; /* of each contestant at most: three samples within 1 % end it after a fifth of that; 0: 0.1;
                             none on emu */
  double time_limit;      /* seconds, looked at between samples, of which each contestant gets one at least; 0: none */
  int cold_l2;            /* nonzero: no call finds its inputs in the L2 cache. Give as many sets of arguments as make
                             more than twice the cache; where q, k, v and o of all sets are less, it is overwritten
                             before each call, and a sample is one call, about a microsecond longer than in a graph */
} qkv_measure_options;
#define QKV_MEASURE_OPTIONS_INIT {sizeof(qkv_measure_options), 0, 0, 0, 0, 0, 0}

/* Seconds of a call as a stream of calls sees it. A sample is a CUDA graph of several calls, timed as a whole with
 * events, so that neither the host nor the distance between launches counts; contestants take turns sample by sample,
 * every other round in the opposite order, so that differences between them can be taken pair by pair. The first call of a
 * sample plans; those behind it reuse that (reuse_plan), where workspace, params, lengths and shapes are the same. All are ops of
 * one engine. Allocates, captures on a stream of its own, waits for `stream`: QKV_CAPTURING while that is captured. On emu:
 * wall time of the emulation, call by call. What a contestant got before a failure is in its `samples`. */
QKV_API qkv_status qkv_measure(qkv_contestant *contestants, int count, qkv_stream stream,
                               const qkv_measure_options *options);

#ifdef __cplusplus
}
#endif
#endif
