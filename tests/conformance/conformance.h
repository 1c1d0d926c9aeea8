/* conformance.h: what the files of the conformance runner share.
 *
 * A test case is one line of `name=value` fields (cases.c). From it come a spec (build_spec.c), the values of all
 * inputs (inputs.c), their memory with guards and odd layouts (tensors.c), a result computed by the device or by the
 * reference (solve.c), and a verdict: against the f64 reference (check.c) or against another run (invariances.c), which
 * may be that of another family or schedule (schedules.c). The sets of cases are tables (sets.c, grid.c); main.c runs
 * them.
 *
 * Kernels are made and run through runtime/qkv.h only, so that what is proven is what a user gets. */
#ifndef TESTS_CONFORMANCE_H
#define TESTS_CONFORMANCE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "qkv.h"

/* ---- Cases (cases.c) ---- */

enum { TEXT_FIELD = 256, CASE_LINE = 2400, MESSAGE_SIZE = 1000 };

typedef enum sink_kind { SINK_ABSENT, SINK_NORMAL, SINK_MINUS_INF, SINK_PLUS4, SINK_MINUS4, SINK_MIXED } sink_kind;
/* Of K and V: none, another for every head, one for all by a stride of 0. */
typedef enum scale_kind { SCALES_ABSENT, SCALES_PER_HEAD, SCALES_PER_TENSOR } scale_kind;
typedef enum output_kind { OUTPUTS_O_LSE, OUTPUTS_O, OUTPUTS_ALL } output_kind;
typedef enum guard_kind { GUARD_NAN, GUARD_NONE, GUARD_INF, GUARD_BIG, GUARD_ZERO } guard_kind;
typedef enum value_kind {
  VALUES_NORMAL,     /* q k v of unit variance */
  VALUES_SPIKES,     /* a few keys whose logits reach +-1e4 and more */
  VALUES_ONES,       /* v = 1: o is the sum of the weights */
  VALUES_ONE_HOT,    /* v[k][d] = (k mod dim_v == d), q = 0: o shows the mask */
  VALUES_HEAD,       /* v = the KV head's number: o shows the pairing of heads */
  VALUES_HUGE,       /* q = k = v = 133120 (60000 in f16) */
  VALUES_MINUS_6E4,  /* every logit near -6.5e4 */
  VALUES_MINUS_HUGE, /* every logit as low as the dtype allows: near -1e30 in bf16 */
  VALUES_RISING,     /* logits grow with the key, so that every tile raises the maximum */
  VALUES_STRONG      /* logits of about +-10 sigma 8: what a cap of 1 or a window must visibly change */
} value_kind;
typedef enum expectation { EXPECT_OK, EXPECT_BAD_SPEC, EXPECT_REFUSAL, EXPECT_OK_OR_REFUSAL } expectation;
typedef enum fault_kind {
  FAULT_NONE,
  FAULT_LAST_KEY,   /* the last key is dropped */
  FAULT_VALUE_ROWS, /* two rows of v are swapped */
  FAULT_HEADS,      /* query heads are paired with the wrong KV heads */
  FAULT_MASK,       /* the mask sees one key more to the right or one fewer */
  FAULT_ALIGN,
  FAULT_SCORE,
  FAULT_SOFTCAP,
  FAULT_SINK,
  FAULT_SCALES,    /* those of K and V are ignored */
  FAULT_UNWRITTEN, /* one output element is not written */
  FAULT_GUARD      /* one byte outside an output is written */
} fault_kind;

/* How sequences lie: of q, then of k and v. */
typedef enum sequence_kind {
  SEQUENCES_DENSE,
  SEQUENCES_PADDED,
  SEQUENCES_PAGED,
  SEQUENCES_RAGGED,
  SEQUENCES_RAGGED_PADDED,
  SEQUENCES_RAGGED_PAGED
} sequence_kind;
typedef enum lengths_kind {
  LENGTHS_MIXED, /* the maxima, 0, 1, and some between */
  LENGTHS_FULL   /* the maxima */
} lengths_kind;

typedef struct test_case {
  int64_t dim, dimv; /* dimv 0: dim */
  int64_t hq, hk;
  int dtype, kv, out; /* qkv_dtype; kv, out: index into dtype_or_same, 0 is dtype's */
  char scale[TEXT_FIELD], softcap[TEXT_FIELD], score[TEXT_FIELD], mask[TEXT_FIELD]; /* "": not in the spec */
  int sink, kv_scale;
  int top_left;
  int outputs;
  int64_t b, lq, lk;     /* the maxima of sequences */
  int seq, order, table; /* sequence_kind; pages in order nhd, hnd; table of rows, csr */
  int lens;              /* lengths_kind */
  int64_t page, shuffle; /* tokens of a page; which order the pages have */
  int layout_q, layout_k, layout_v, layout_o; /* into layouts[] */
  int guard;
  int values;
  char sched[TEXT_FIELD], family[TEXT_FIELD]; /* "": the library chooses */
  int check;                                  /* into checks[] */
  int expect;
  int fault; /* only on the reference device: proves that the checks notice */
  int64_t seed;
  const char *title; /* what the case stands for; not part of the line */
} test_case;

/* Parses one line over the defaults. False with a message naming the field. */
bool case_parse(const char *line, test_case *out, char *message);
/* Prints the fields that differ from the defaults, and always dim, hq, hk, b, lq, lk. */
void case_print(const test_case *c, char line[CASE_LINE]);
/* Help text: every field with its values. */
void case_fields_print(FILE *to);

/* A growing list of cases. */
typedef struct case_list {
  test_case *items;
  int count, capacity;
} case_list;
void case_list_add(case_list *list, const test_case *c);
/* Adds every expansion of a pattern: `{a,b}` stands for each alternative in turn (quotes protect commas, groups may
 * span several fields, but not nest). Patterns are part of the program: a bad one ends it with a message. */
void case_list_expand(case_list *list, const char *title, const char *pattern);

int64_t case_dim_v(const test_case *c);
qkv_dtype case_dtype_kv(const test_case *c);
qkv_dtype case_dtype_out(const test_case *c);

/* ---- Specs (build_spec.c) ---- */

enum { SPEC_TEXT = 4096, MAX_PARAMS = 8 };

/* A parameter that scores and masks may name. Its values are made by rule. */
typedef struct param_rule {
  const char *name, *type, *shape; /* shape as in the spec; "" is a scalar */
  qkv_dtype dtype;
  int rank;
  void (*extents)(const test_case *c, int64_t shape[4]);
  double (*value)(const test_case *c, const int64_t index[4]);
} param_rule;

/* The rules whose names occur in the score or mask, in the order the spec declares them. */
int spec_params(const test_case *c, const param_rule *rules[MAX_PARAMS]);
/* The spec as YAML. */
void spec_build(const test_case *c, char text[SPEC_TEXT]);

/* ---- Inputs (inputs.c) ---- */

enum { MAX_SEQUENCES = 16 }; /* of a case whose sequences have lengths of their own */

typedef struct input_param {
  const param_rule *rule;
  int64_t shape[4], count;
  float *data; /* scalar: one value */
} input_param;

/* The values of all inputs, in canonical order [b][t][h][d], already rounded to their dtype. */
typedef struct inputs {
  int64_t b, lq, lk, hq, hk, dim, dimv;
  int64_t lens_q[MAX_SEQUENCES], lens_k[MAX_SEQUENCES]; /* not of dense cases; rows behind them are not used */
  float *q, *k, *v;
  float *sink;              /* [hq] or NULL */
  float *k_scale, *v_scale; /* [hk] or NULL */
  int nparams;
  input_param params[MAX_PARAMS];
} inputs;

void inputs_make(const test_case *c, inputs *out);
void inputs_free(inputs *in);
/* A deep copy. */
void inputs_copy(const inputs *in, inputs *out);
/* Element [b][t][h][d] of q, or of k and v. */
int64_t inputs_q_at(const inputs *in, int64_t b, int64_t t, int64_t h);
int64_t inputs_k_at(const inputs *in, int64_t b, int64_t t, int64_t h);
int64_t inputs_v_at(const inputs *in, int64_t b, int64_t t, int64_t h);

/* A deterministic 64-bit hash, a value uniform in [0, 1) and one of roughly unit normal distribution. */
uint64_t hash_mix(uint64_t x);
double hash_uniform(uint64_t key);
double hash_normal(uint64_t key);
/* Rounds to a dtype and back. */
float round_to(qkv_dtype dtype, float x);
/* Allocation that ends the program when there is no memory; zeroed. */
void *must_alloc(size_t bytes);

/* ---- Memory (tensors.c) ---- */

typedef struct layout_rule {
  const char *name;
  const char *order; /* outermost first; b batch, t position, h head, d element */
  int pitch_pad;     /* elements between rows */
  int rows_pad;      /* positions behind the last one: a cache that is not full */
  int row_step, inner_step;
  int base;            /* elements before the first one, breaking its alignment */
  bool reversed;       /* positions run backwards in memory */
  const char *shared;  /* dimensions of stride 0 (inputs only) */
  int64_t batch_least; /* least batch stride */
} layout_rule;
extern const layout_rule layouts[];
extern const char *const layout_names[];
bool layout_shares(int layout, char dimension);

/* A tensor in a guarded buffer: host image, device memory and the view of either. */
typedef struct guarded {
  const char *name;
  qkv_tensor view; /* data: set by guarded_view */
  int64_t first;   /* element of the buffer that view element 0 is */
  size_t bytes;
  unsigned char *before; /* what was sent */
  unsigned char *after;  /* what came back; NULL until then */
  void *device;
  bool output;
} guarded;

/* Makes the buffer for [b][t][h][d] (rank 4) or lower ranks, filled with the guard. */
void guarded_make(guarded *m, const char *name, qkv_dtype dtype, int layout, int guard, bool output, int64_t b,
                  int64_t t, int64_t h, int64_t d);
/* For ranks below 4: strides are dense, or spread by `spread` in the last dimension. */
void guarded_make_plain(guarded *m, const char *name, qkv_dtype dtype, int guard, bool output, int rank,
                        const int64_t *shape, int spread);
void guarded_store(guarded *m, const float *canonical);
/* Reads the view out of `after`. Returns the number of elements that still hold the poison. */
int64_t guarded_load(const guarded *m, float *canonical);
/* The tensor at a memory that starts as the buffer does. */
qkv_tensor guarded_view(const guarded *m, void *memory);
/* Whether every family accepts it when an op is prepared with limits.aligned_only: tensor maps know no negative
 * strides. */
bool guarded_aligned(const guarded *m);
/* Whether anything but the elements of an output changed; then says where. */
bool guarded_intact(const guarded *m, char *message);
void guarded_free(guarded *m);

int dtype_bytes(qkv_dtype dtype);

/* ---- Sequences of lengths of their own (sequences.c) ---- */

bool sequences_ragged_q(const test_case *c);
bool sequences_packed_k(const test_case *c);
bool sequences_paged(const test_case *c);
/* Draws the lengths of a case; ends the program when it has more sequences than MAX_SEQUENCES. */
void sequences_lengths(const test_case *c, inputs *out);

/* The memory of q or o, k, or v, filled from canonical values, NULL for an output. `layout` as of guarded_make. What no
 * sequence owns holds the guard; of inputs always something that must not be read. */
void sequences_make_q(guarded *m, const char *name, qkv_dtype dtype, int layout, const test_case *c, const inputs *in,
                      int guard, bool output, int64_t dim, const float *canonical);
void sequences_make_k(guarded *m, const char *name, qkv_dtype dtype, int layout, const test_case *c, const inputs *in,
                      int guard, int64_t dim, const float *canonical);
void sequences_make_lse(guarded *m, const char *name, const test_case *c, const inputs *in, int guard, int spread);
/* Reads an output into canonical values, 0 in rows that no sequence has. Returns the elements of sequences that were
 * not written, or -1 when one of no sequence was. */
int64_t sequences_load(const guarded *m, const test_case *c, const inputs *in, int64_t dim, float *canonical);
int64_t sequences_load_lse(const guarded *m, const test_case *c, const inputs *in, float *canonical);

/* Arrays of lengths and pages, with their guards; those that the case has no use for are left zero. */
typedef struct sequence_arrays {
  guarded cu_q, cu_k, lengths, table, indptr;
} sequence_arrays;
void sequences_set_maxima(qkv_attention_args *args, const test_case *c, const inputs *in);
void sequences_make_arrays(sequence_arrays *a, const test_case *c, const inputs *in, int guard);

/* ---- Solving (solve.c) ---- */

/* What a run gave, in canonical order: o [b][lq][hq][dv], lse [b][hq][lq]. */
typedef struct result {
  qkv_status status; /* of the first step that failed */
  const char *stage; /* "spec", "prepare", "launch", ... */
  char message[MESSAGE_SIZE];
  bool aligned;                   /* all tensors could use the kernel for aligned ones */
  float *o, *lse, *lse_with_sink; /* the latter two NULL when not asked for */
  int64_t o_count, lse_count;
} result;

enum { OP_CACHE = 8 };
typedef struct cached_op {
  char *key;
  qkv_spec *spec;
  qkv_op *op;
} cached_op;

/* One worker's state. */
typedef struct session {
  qkv_engine *engine; /* NULL: results come from the reference, which tests the runner itself */
  pthread_mutex_t *device_lock;
  const char *family; /* of --family; a case's own wins */
  const char *arch;   /* what kernels are generated for */
  bool emulated;      /* the device is slow: fewer schedules */
  bool reuses;        /* what counts is a second call, which takes the first one's workspace as it left it */
  cached_op ops[OP_CACHE];
  int next_op;
} session;

/* Runs the case on the device. False when a step failed (result.status says which), or when a guard or an input was
 * damaged or an output element was not written (status QKV_OK, message set). */
bool solve(session *s, const test_case *c, const inputs *in, result *out);
/* The f64 reference; o is f32. */
bool solve_reference(const test_case *c, const inputs *in, result *out);
void result_free(result *r);
void session_close(session *s);

/* ---- Families and schedules (schedules.c) ---- */

enum { MAX_FAMILIES = 16 };

/* The families that can do the case on the session's architecture, in the order of dispatch. aligned: all tensors may
 * be read by tensor maps. Returns how many there are. */
int families_of(const session *s, const test_case *c, bool aligned, char names[MAX_FAMILIES][TEXT_FIELD]);
/* Names family and all axes of the schedule that the case has by itself, so that others can be given the same ones. False:
 * nothing can do it. */
bool pin_schedule(const session *s, test_case *c);
/* Draws up to `wanted` legal schedules of a family, such that every value of every axis occurs as soon as possible; the
 * same case gives the same ones. A family without axes has one, the empty one. Returns how many there are. */
int schedules_of(const session *s, const test_case *c, bool aligned, const char *family, int wanted,
                 char texts[][TEXT_FIELD]);

/* ---- Verdicts (check.c, invariances.c) ---- */

typedef enum outcome { PASSED, FAILED, REFUSED } outcome;

typedef struct verdict {
  outcome outcome;
  double worst; /* greatest error as a part of its tolerance; 0 for bitwise checks */
  char message[MESSAGE_SIZE];
} verdict;

/* What numbers may differ by, derived from the case and its inputs; docs/testing.md has the derivation. */
typedef struct tolerance {
  double weights; /* unit roundoff of P in the PV product */
  double output;  /* unit roundoff of o */
  double logit;   /* absolute error of one logit */
  double apart;   /* of the difference of two logits of a row */
  double lse;     /* absolute, beside `logit` */
} tolerance;

tolerance tolerance_of(const test_case *c, const inputs *in);
/* got against wanted within tolerance; `factor` widens it when both sides are rounded. */
void compare_close(const test_case *c, const inputs *in, const result *got, const result *wanted, double factor,
                   verdict *out);
/* Bit for bit. */
void compare_equal(const char *what, const result *got, const result *wanted, verdict *out);
/* Records a failure unless there is one already. */
void verdict_fail(verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A way to judge a case. */
typedef struct check_rule {
  const char *name;
  void (*run)(session *s, const test_case *c, verdict *out);
} check_rule;
extern const check_rule checks[];
extern const char *const check_names[];
/* Runs and judges one case. */
void check_case(session *s, const test_case *c, verdict *out);
/* The check against the reference. */
void check_reference(session *s, const test_case *c, verdict *out);

/* ---- Sets (sets.c, grid.c) ---- */

/* Adds the named set's cases. False for an unknown name. */
bool set_build(const char *name, const char *device, uint64_t seed, case_list *out);
extern const char *const set_names;
/* A covering sample: `specs` variants with `runs` shapes each. Returns the number of axis values it missed. */
int grid_build(bool tiny, int specs, int runs, uint64_t seed, case_list *out);

#endif
