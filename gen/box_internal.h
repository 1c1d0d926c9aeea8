/* box_internal.h: what the files that build box programs share.
 *
 * The way of a mask: box_build.c (conditions: conjunctions, cases, both answers) -> box_narrow.c (what a conjunct says
 * of q, k and other atoms) -> box_span.c (intervals of numbers) -> box_emit.c (instructions, shared and folded). A
 * value is the number of an instruction. */
#ifndef GEN_BOX_INTERNAL_H
#define GEN_BOX_INTERNAL_H

#include "box.h"
#include "expr_internal.h"

enum { BOX_MAX_BUILT = 6000, BOX_MAX_KNOWN = 64 };

typedef struct box_builder {
  arena *memory;
  const box_options *options;
  int count;
  bool full; /* there was no room: the program is not to be used */
  box_instruction items[BOX_MAX_BUILT];
  int64_t low[BOX_MAX_BUILT], high[BOX_MAX_BUILT]; /* in which the value of an int, long or bool lies */
  int nsummaries;
  box_summary summaries[BOX_MAX_SUMMARIES];
  bool may_wrap; /* some int operation of the mask could leave 32 bits */
  int passes;    /* how often the conjuncts of a conjunction narrow each other */
} box_builder;

/* ---- meaning (box_run.c) ---- */

typedef struct box_value {
  int64_t integer; /* bool, int, long */
  float real;
  uint64_t labels;
} box_value;

/* The value of an instruction that computes from its operands alone. */
box_value box_apply(const box_instruction *i, const box_value *x);

/* ---- instructions (box_emit.c); each returns a value ---- */

/* Ints and longs beyond it are never made: sums of two stay below 2^63. */
#define BOX_LONG_LIMIT (((int64_t)1 << 62) + ((int64_t)1 << 34))

int box_int(box_builder *b, int64_t value);
int box_bool(box_builder *b, bool value);
int box_float(box_builder *b, float value);
int box_input_value(box_builder *b, box_input input);
/* The operation, folded where it can be; y and z are -1 where there is none. Bools and ints alike. */
int box_make(box_builder *b, box_op op, int x, int y, int z);
/* A float moved outwards: below or above. */
int box_move(box_builder *b, box_op op, int x, double real, double tiny);
/* A parameter or summary with operands (one per index; for summaries one more). */
int box_load(box_builder *b, box_op op, box_type type, int param, int summary, const int *operands, int noperands);
bool box_is_const(const box_builder *b, int value, int64_t integer);
/* Whether the operands may change places. */
bool box_commutes(box_op op);
/* What the two answers need, in an order that depends on the instructions alone (box_order.c): numbers into `order`,
 * operands first. Returns how many. Operands of instructions that commute are put in order, too. */
int box_order(box_builder *b, int may_be_true, int may_be_false, int *order);
/* The program of two answers, without what they do not need. */
const box_program *box_finish(box_builder *b, int may_be_true, int may_be_false);

static inline int box_and(box_builder *b, int x, int y) {
  return box_make(b, BOX_AND, x, y, -1);
}
static inline int box_or(box_builder *b, int x, int y) {
  return box_make(b, BOX_OR, x, y, -1);
}
static inline int box_not(box_builder *b, int x) {
  return box_make(b, BOX_NOT, x, -1, -1);
}

/* ---- intervals (box_span.c) ---- */

/* Both ends inclusive; an interval whose low is above its high is empty, and what is computed of it has no meaning. */
typedef struct box_span {
  int low, high;
} box_span;

/* What is known of sums beside the box: their key (see box_key) lies in the span. */
typedef struct box_known {
  const expr *key;
  box_span span;
} box_known;

typedef struct box_scope {
  int count;
  box_known known[BOX_MAX_KNOWN];
  int alive; /* bool: no interval that was narrowed is empty */
} box_scope;

/* f without its constant, signed such that the first coefficient is positive (*sign: 1 or -1), as an expression. NULL
 * for a constant. */
const expr *box_key(arena *a, const linear *f, int *sign);
/* What the scope knows of a key, or NULL. */
box_known *box_find(box_scope *s, const expr *key);

/* The int expression e, with 32-bit wrap. */
box_span box_int_span(box_builder *b, box_scope *s, const expr *e);
/* The exact sum of a linear form, without wrap. False when it may leave 62 bits. */
bool box_linear_span(box_builder *b, box_scope *s, const linear *f, box_span *out);
/* x - y of int expressions as a form that does not wrap: its constant and coefficients may take 33 bits. */
linear box_difference(arena *a, const expr *x, const expr *y);
/* coefficient * the atom of a term, exactly. */
bool box_term_span(box_builder *b, box_scope *s, const linear_term *t, box_span *out);
/* Bool: whether an int expression has its exact value, that is, does not wrap in the box. */
int box_is_exact(box_builder *b, box_scope *s, const expr *e);
/* The gather e (int or bool): where it reads. False when more than one index moves. */
bool box_gather_span(box_builder *b, box_scope *s, const expr *e, box_span *out);
/* The set of labels of a gather with one moving index; false when it has none. */
bool box_gather_labels(box_builder *b, box_scope *s, const expr *e, int *labels);

/* Floats: when `finite` is false nothing is known of the value, NaN included. */
typedef struct box_real {
  int low, high, finite;
} box_real;

box_real box_real_span(box_builder *b, box_scope *s, const expr *e);

/* ---- conditions (box_build.c, box_narrow.c) ---- */

/* Bool: whether the condition may be true in the box, as far as the scope knows. `cases` limits how many cases of
 * disjunctions are told apart. */
int box_possible(box_builder *b, const box_scope *s, const expr *e, int cases);
/* The program of one effort, 0 (most) to BOX_EFFORTS - 1; box_build takes the best of them. NULL when too large. */
enum { BOX_EFFORTS = 6 };
const box_program *box_build_with(arena *a, const expr *mask, const box_options *options, int effort);
/* Narrows the scope to where the comparison (or its parts) may hold. */
void box_narrow(box_builder *b, box_scope *s, const expr *comparison);

#endif
