/* spec.h: a checked spec: the variant (what is computed), its schedule wishes and its workloads.
 *
 * Produced by spec_parse from format 1 text (docs/spec-reference.md), immutable afterwards and safe to share between
 * threads. The variant may change results; a schedule may not, beyond rounding. */
#ifndef GEN_SPEC_H
#define GEN_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "diag.h"
#include "expr.h"
#include "text.h"

typedef enum spec_dtype { DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_E4M3, DTYPE_E5M2, DTYPE_COUNT } spec_dtype;
typedef enum spec_kv_scale { KV_SCALE_NONE, KV_SCALE_PER_HEAD } spec_kv_scale;
typedef enum spec_sink { SINK_NONE, SINK_PER_HEAD } spec_sink;
typedef enum spec_align { ALIGN_BOTTOM_RIGHT, ALIGN_TOP_LEFT } spec_align;
/* How the tokens of a sequence are found. Queries are dense or ragged; dense goes with all but ragged, ragged with all
 * but dense. */
typedef enum spec_layout { LAYOUT_DENSE, LAYOUT_PADDED, LAYOUT_RAGGED, LAYOUT_PAGED } spec_layout;
typedef enum spec_page_order { PAGE_NHD, PAGE_HND } spec_page_order;
typedef enum spec_page_table { PAGE_TABLE_ROWS, PAGE_TABLE_CSR } spec_page_table;
typedef enum spec_deterministic { DETERMINISTIC_NO, DETERMINISTIC_YES, DETERMINISTIC_BATCH } spec_deterministic;

typedef enum spec_rope_scaling {
  ROPE_UNSCALED,
  ROPE_LINEAR,
  ROPE_NTK,
  ROPE_YARN,
  ROPE_LLAMA3,
  ROPE_SCALINGS
} spec_rope_scaling;
typedef enum spec_slots { SLOTS_MAPPING, SLOTS_POSITIONS, SLOTS_LENGTHS } spec_slots;

/* How queries and keys turn with their positions; rope.h has the formulas. */
typedef struct spec_rope {
  bool given;
  int dims;         /* even, at most dim_qk */
  bool interleaved; /* 2 d turns with 2 d + 1, else d with d + dims / 2 */
  bool table;       /* cosines and sines come with a call; what follows has no meaning */
  double theta;
  spec_rope_scaling scaling;
  double factor, original;                          /* of the scaling */
  double beta_fast, beta_slow, attention_factor;    /* YARN; attention_factor 0: the default */
  bool truncate;                                    /* YARN */
  double low, high;                                 /* LLAMA3 */
} spec_rope;

/* How new keys and values get into the cache. */
typedef struct spec_append {
  bool given;
  bool norm, query;
  double epsilon;
  spec_slots slots;
} spec_append;

/* Bits of spec.outputs. */
enum { OUTPUT_O = 1, OUTPUT_LSE = 2, OUTPUT_LSE_WITH_SINK = 4 };

enum { SPEC_NAME_MAX = 64, SPEC_MAX_PARAMS = 32, SPEC_MAX_WORKLOADS = 64, SPEC_MAX_SCHEDULE = 32, SPEC_MAX_PAIRS = 288 };

/* One `key: value` of the schedule mapping; values are integers or words, kept as text. `phase` is NULL for all phases. */
typedef struct spec_schedule_field {
  const char *phase, *name, *value;
  diag_span at;
} spec_schedule_field;

/* One shape to tune, warm up and benchmark. */
typedef struct spec_workload {
  const char *name;
  int64_t batch, len_q, len_k;
} spec_workload;

typedef struct spec {
  arena *memory; /* owns everything below */
  const char *name;
  /* attention: */
  int heads_q, heads_kv; /* heads_q % heads_kv == 0 */
  int dim_qk, dim_v;
  spec_dtype dtype_q, dtype_kv, dtype_out;
  spec_kv_scale kv_scale;
  double scale;
  double softcap; /* 0: none */
  const expr *score; /* float, over s; never NULL (`s` when not given) */
  const expr *mask;  /* bool; never NULL (`true` when not given) */
  spec_sink sink;
  spec_align align;
  int nparams;
  expr_param params[SPEC_MAX_PARAMS]; /* in order of declaration */
  /* layout: */
  spec_layout layout_q, layout_kv;
  int page_size; /* LAYOUT_PAGED, likewise the next two */
  spec_page_order page_order;
  spec_page_table page_table;
  spec_rope rope;
  spec_append append;
  unsigned outputs;
  spec_deterministic deterministic;
  int nschedule; /* 0: auto */
  spec_schedule_field schedule[SPEC_MAX_SCHEDULE];
  int nworkloads;
  spec_workload workloads[SPEC_MAX_WORKLOADS];
} spec;

/* Parses and checks `size` bytes of text. On success *out is the spec, to be freed with spec_free. On failure *out is
 * NULL and `d` says why; `d` must have been initialised with an arena of its own that outlives the call.
 * Returns false on failure, out of memory included (then d->count may be 0). */
bool spec_parse(const char *text, size_t size, diags *d, spec **out);
void spec_free(spec *s);

/* The canonical form: every field in a fixed order, defaults filled in, expressions in normal form; no workloads, no
 * schedule, no x- keys, no name. Two specs that mean the same print alike. */
void spec_canonical(const spec *s, text *out);
/* The part of it that a phase's kernels follow from: "append" has no scores, masks and outputs, nor the numbers that its
 * kernels take as arguments; the others have neither rope nor append. */
void spec_canonical_of_phase(const spec *s, const char *phase, text *out);
/* The canonical form as JSON: the same fields plus name, schedule and workloads. */
void spec_json(const spec *s, text *out);
/* The JSON Schema of format 1 for editors, from the table the parser uses. */
void spec_json_schema(text *out);

const char *spec_dtype_name(spec_dtype t);  /* "bf16" */
int spec_dtype_size(spec_dtype t);          /* bytes */
const char *spec_layout_name(spec_layout l);
const char *spec_page_order_name(spec_page_order o); /* "nhd" */
const char *spec_page_table_name(spec_page_table t); /* "rows" */
const char *spec_slots_name(spec_slots s);           /* "mapping" */
/* Whether all sequences have the same lengths: those of the tensors. */
bool spec_is_dense(const spec *s);

#endif
