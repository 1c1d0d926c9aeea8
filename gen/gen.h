/* gen.h: the generator: a spec and a schedule in, CUDA source and a manifest out. Pure: no CUDA, no clock, no
 * environment; the same input gives the same bytes in every process. */
#ifndef GEN_GEN_H
#define GEN_GEN_H

#include "arch.h"
#include "cost.h"
#include "manifest.h"
#include "spec.h"
#include "status.h"
#include "text.h"

/* Version of the generator; stands in the head comment of every emitted file. */
#define GEN_VERSION "0.1.0"

enum { GEN_DECODE_LEN_Q = 16 }; /* up to so many declared queries an entry the phase is "decode" */

/* What to generate. Zero-initialise; NULL means the default. */
typedef struct gen_request {
  const arch *arch;          /* default: sm_80 */
  const char *family;        /* by name; NULL: the first one that supports the variant */
  const char *phase;         /* "prefill", "decode", "append" or "merge"; NULL: what len_q says, or a named family has */
  bool dedicated;            /* only families made for the phase: whose first one it is */
  const char *schedule;      /* "tile_m=128,stages=2": overrides the spec's schedule, which overrides the default */
  bool unaligned;            /* the kernel for tensors without 16-byte alignment */
  int64_t batch;             /* declared maximum of batch entries; 0: none. Default schedules may follow it */
  int64_t len_q;             /* the same of queries an entry */
  int64_t len_k;             /* the same of keys; only tables of schedules go by it */
  const char *template_path; /* directory that overrides built-in templates */
  unsigned *reads;           /* NULL, or receives GEN_READ_* in addition to what it has, after a failure, too */
} gen_request;

/* Which declared maxima of its request an answer looked at; it is the same for all values of the others. (That a few
 * queries make the phase "decode" is not counted: gen_is_decode tells.) */
enum { GEN_READ_BATCH = 1, GEN_READ_LEN_Q = 2 };

/* Where an output line came from. */
typedef struct gen_line {
  int template_index; /* into templates */
  int line;           /* 1-based; 0: not from a template */
} gen_line;

typedef struct gen_kernel {
  text source;
  manifest manifest;
  int nlines;
  gen_line *lines; /* lines[n] for output line n + 1 */
  int ntemplates;
  char **templates; /* paths */
} gen_kernel;


/* Whether the phase of a request that names none is "decode". */
bool gen_is_decode(const gen_request *request);
/* The phase of a request: the one it names, else "decode" or "prefill". */
const char *gen_phase(const gen_request *request);

/* Renders one kernel. *out is freed with gen_kernel_free. */
gen_status gen_render(const spec *s, const gen_request *request, gen_kernel **out, gen_error *error);
void gen_kernel_free(gen_kernel *k);

/* What a family says about a spec: why it can or cannot do it. */
typedef struct gen_choice {
  char family[MANIFEST_NAME];
  bool supported;
  char reason[256]; /* empty when supported */
} gen_choice;

enum { GEN_MAX_FAMILIES = 32 };

/* Asks every family in dispatch order. *count receives how many there are. */
gen_status gen_choices(const spec *s, const gen_request *request, gen_choice choices[GEN_MAX_FAMILIES], int *count,
                       gen_error *error);

/* One axis of a family's schedule space. */
typedef struct gen_axis {
  char name[MANIFEST_NAME];
  int nvalues;
  int values[32];
  char meaning[128];
} gen_axis;

/* Resources of one schedule, from the family's own formulas. */
typedef struct gen_resources {
  int64_t shared_bytes;
  int threads;
  int registers; /* accumulators and operands a thread must hold at once; an estimate */
  int blocks;    /* that an SM must be able to hold at once */
} gen_resources;

typedef struct gen_schedule {
  char text[256]; /* "tile_m=128,..." complete, in axis order */
  gen_resources resources;
  bool legal;
  char reason[256]; /* why not */
} gen_schedule;

/* The axes of the family chosen by the request. */
gen_status gen_axes(const spec *s, const gen_request *request, gen_axis axes[32], int *count, gen_error *error);
/* Checks one schedule (the request's) against the family's resource rules. */
gen_status gen_check_schedule(const spec *s, const gen_request *request, gen_schedule *out, gen_error *error);

/* ---- What could be tried ---- */

enum { GEN_EFFORT_QUICK, GEN_EFFORT_DEFAULT, GEN_EFFORT_FULL };

/* The call that schedules are compared on: lengths of every sequence. */
typedef struct gen_work {
  int64_t batch, len_q, len_k;
} gen_work;

typedef struct gen_candidate {
  char family[MANIFEST_NAME];
  char schedule[256]; /* complete, in axis order */
  bool is_default;    /* what the family takes by itself */
  gen_estimate estimate;
} gen_candidate;

/* The legal schedules worth trying, each once: the default first, then those with the fewest expected seconds, ties in a
 * fixed order (space.h). The family is the request's, NULL: dispatch's choice; "all": every family that supports the
 * spec and has the phase, in one order, behind the default of dispatch's choice. *out is freed with free(). */
gen_status gen_candidates(const spec *s, const gen_request *request, const gen_work *work, const gen_device *device,
                          int effort, gen_candidate **out, int *count, gen_error *error);

/* "name: value" lines on how the mask is handled, for `explain`. */
void gen_explain_mask(const spec *s, text *out);
/* The same of the score: the expression, the class of its derivative (score_derivative.h) and the derivative. */
void gen_explain_score(const spec *s, text *out);

#endif
