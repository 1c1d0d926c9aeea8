/* box.h: may a mask be true, may it be false, somewhere in a box of queries and keys (form K, Kleene logic)?
 *
 * A box is queries [q_first, q_last], keys [k_first, k_last], both in q coordinates, heads [h_first, h_last] of one KV
 * head, one b; all ends inclusive. A tile may be skipped when the mask may not be true in its box, and needs no mask
 * when it may not be false. Both answers are one-sided: "may" can be said of what never happens, so an imprecise rule
 * costs time and never results.
 *
 * The decision is a straight-line program, built once per mask: every instruction computes one number from earlier
 * ones, most of them the lower or the upper end of the interval of a subexpression. Equal instructions are shared, and
 * what is known while building is folded away. box_run interprets it, box_print prints the same instructions as
 * statements of C; there is no third meaning.
 *
 * Soundness holds for all positions within MASK_POSITION_LIMIT (mask.h) and all values, wrapping ints, NaN and clamped
 * indices included; it assumes of tensors only what their summaries say. Checked against brute force in
 * tests/unit/test_box.c. */
#ifndef GEN_BOX_H
#define GEN_BOX_H

#include "expr.h"

/* An int has 32 bits, long and labels 64. */
typedef enum box_type { BOX_BOOL, BOX_INT, BOX_LONG, BOX_FLOAT, BOX_LABELS, BOX_TYPE_COUNT } box_type;

/* clang-format off */
typedef enum box_input {
  BOX_Q_FIRST, BOX_Q_LAST, BOX_K_FIRST, BOX_K_LAST, BOX_H_FIRST, BOX_H_LAST, BOX_HK, BOX_B, BOX_LEN_Q, BOX_LEN_K,
  BOX_RESIDUE, BOX_DILATION, BOX_ALL_Q, BOX_ALL_K, /* of mask_residue.h */
  BOX_INPUT_COUNT
} box_input;
/* clang-format on */

/* x, y, z are the operands. */
typedef enum box_op {
  BOX_CONST,     /* `integer` (bool, int, long) or `real` */
  BOX_INPUT,     /* number `input` */
  BOX_READ,      /* a parameter at one place: `param`, one operand per index; clamped by the reader */
  BOX_LEAST,     /* summary `summary` over a range of indices: least element; operands: see box_summary */
  BOX_GREATEST,  /* greatest element */
  BOX_LABEL_SET, /* bit (e % 64) set for every element e */
  BOX_ADD,
  BOX_SUB,
  BOX_MUL,
  BOX_DIV, /* float */
  BOX_FLOORDIV,
  BOX_MOD, /* as in the language: floor, 0 for a zero divisor */
  BOX_MIN,
  BOX_MAX,
  BOX_EXP,
  BOX_EXP2,
  BOX_LOG,
  BOX_TANH,
  BOX_SQRT,
  BOX_FLOOR,    /* float to int, saturating, 0 for NaN */
  BOX_TO_FLOAT, /* int to float, rounded to nearest */
  BOX_BELOW,
  BOX_ABOVE,  /* float moved down or up by `real` * |x| + `tiny`; NaN: minus or plus infinity */
  BOX_SELECT, /* x ? y : z */
  BOX_LE,
  BOX_LT,
  BOX_EQ,   /* bool from two numbers of one kind */
  BOX_MEET, /* bool: two label sets have a common bit */
  BOX_AND,
  BOX_OR,
  BOX_NOT,
  BOX_OP_COUNT
} box_op;

enum { BOX_MAX_OPERANDS = EXPR_MAX_RANK + 1 };

typedef struct box_instruction {
  box_op op;
  box_type type;
  int noperands;
  int operand[BOX_MAX_OPERANDS]; /* numbers of earlier instructions */
  int64_t integer;
  double real, tiny;
  box_input input;
  int param, summary;
} box_instruction;

/* What a program wants to know of a tensor: the least and greatest element (and the label set) over a contiguous range
 * of indices along one axis, the other indices fixed. Operands of the instruction: one per axis in order, with the
 * range's first and last index (inclusive) both standing at `axis`; so rank + 1. The reader clamps every index to the
 * tensor's extents. A range whose first index is greater than its last is empty: least is then the greatest value of
 * its type, greatest the least, the label set 0. A sound answer may cover more elements than asked for, such as whole
 * granules of a precomputed summary. A NaN among floats makes least minus infinity and greatest infinity; bools are 0
 * and 1. */
typedef struct box_summary {
  int param, axis;
  unsigned along; /* which of EXPR_BIT(EXPR_Q), _K, _H move the index */
  bool direct;    /* the index along the axis is q, k or h itself, plus a constant at most: granules fit tiles */
  bool labels;    /* BOX_LABEL_SET is used */
} box_summary;

enum { BOX_MAX_SUMMARIES = 16, BOX_MAX_INSTRUCTIONS = 1500 };

typedef struct box_program {
  int count;
  const box_instruction *items;
  int may_be_true, may_be_false; /* instructions of type bool */
  int nsummaries;
  box_summary summaries[BOX_MAX_SUMMARIES];
  uint32_t scalars; /* bit n: reads scalar parameter n, or a tensor at one place */
} box_program;

typedef struct box_options {
  bool bottom_right; /* what i is */
  bool labels;       /* compare label sets too where two tensors of ints must be equal */
  bool heads_vary;   /* h_first and h_last differ; else only BOX_H_FIRST is read */
  const expr_param *params;
} box_options;

/* The program of a mask (bool, folded). NULL when it would take more than BOX_MAX_INSTRUCTIONS or BOX_MAX_SUMMARIES. */
const box_program *box_build(arena *a, const expr *mask, const box_options *options);
/* How many answers "not" the program gives on a fixed sample of tiles, with a few values of scalar parameters and
 * tensors of segments. 0 says that it is of no use in practice. */
int box_probe(const box_program *p);

/* Values for the interpreter. */
typedef struct box_env {
  int64_t input[BOX_INPUT_COUNT];
  /* Parameter at `index` (rank entries, clamped by the callee). */
  double (*read)(void *user, int param, const int64_t *index);
  /* BOX_LEAST or BOX_GREATEST of summary s; index has rank + 1 entries as above. */
  double (*extreme)(void *user, const box_summary *s, const int64_t *index, bool greatest);
  uint64_t (*label_set)(void *user, const box_summary *s, const int64_t *index);
  void *user;
} box_env;

typedef struct box_answer {
  bool may_be_true, may_be_false;
} box_answer;

/* Runs the program. Pure and thread safe. */
box_answer box_run(const box_program *p, const box_env *env);

/* How a program prints: one statement per instruction, `const int v3 = min(v1, v2);`, constants inline. */
typedef struct box_style {
  const char *types[BOX_TYPE_COUNT]; /* "bool", "int", "long long", "float", "unsigned long long" */
  const char *indent;
  const char *input[BOX_INPUT_COUNT]; /* texts; NULL where the program may not use it */
  const expr_param *params;
} box_style;

/* The statements of all instructions in order; then box_print_value of may_be_true and of may_be_false are the answers.
 * Nothing in them overflows. Functions called: those of expr_print_cuda (to_f32, floor_div_i32, floor_mod_i32, min_i32,
 * max_i32, min_f32, max_f32, exp_f32, exp2_f32, log_f32, tanh_f32, sqrt_f32, floor_i32), the same of longs
 * (floor_div_i64, floor_mod_i64, min_i64, max_i64), below_f32 and above_f32 (x, real, tiny; see BOX_BELOW). Parameters:
 * `p.NAME` and `param_NAME(p, i, j)` as expr_print_cuda has them; summaries: `least_NAME_AXIS(p, i, first, last)`,
 * `greatest_NAME_AXIS` and `labels_NAME_AXIS`, with operands as box_summary says. */
void box_print(const box_program *p, const box_style *style, text *out);
/* The text of one value: `v7`, or a constant. */
void box_print_value(const box_program *p, int number, const box_style *style, text *out);

#endif
