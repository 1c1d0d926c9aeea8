/* expr.h: the expression language of masks, scores, scales and shapes.
 *
 *   expression := ternary-free Python-like syntax:  or, and, not, comparisons (chained as in `0 <= q - k < 64`),
 *                 + -, * / // %, unary -, calls, indexing, parentheses
 *   names      := q k i h hk b len_q len_k (integers), s (float), heads_q heads_kv group, declared parameters,
 *                 true false, and sugar (causal, window(l, r), prefix(n), same(t)) that expands to expressions
 *   functions  := min max abs exp exp2 log tanh sqrt floor bit(word, n) where(c, a, b)
 *
 * Types are bool, int (32-bit two's complement, wrapping) and float (f32 on the device, f64 in the reference). An int
 * becomes a float where a float is needed; nothing else converts. `/` is float division; `//` and `%` round towards
 * minus infinity and give 0 for a zero divisor; floor() gives an int, saturating; bit(word, n) is 0 or 1, and 0 for an n
 * outside 0 to 31. Indexing a parameter clamps each
 * index to its extent. A mask is bool and may not use s; a score is a float.
 *
 * Expressions are immutable and live in the arena they were made in. All functions are pure and thread safe. */
#ifndef GEN_EXPR_H
#define GEN_EXPR_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "diag.h"
#include "text.h"

typedef enum expr_type { EXPR_BOOL, EXPR_INT, EXPR_FLOAT } expr_type;

/* clang-format off */
typedef enum expr_op {
  EXPR_CONST,  /* value in `integer` (bool, int) or `real` (float) */
  EXPR_SYMBOL, /* which one in `symbol` */
  EXPR_PARAM,  /* declared parameter number `param`; one argument per index */
  EXPR_TO_FLOAT,
  EXPR_NEG, EXPR_ABS, EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV, EXPR_FLOORDIV, EXPR_MOD, EXPR_BIT_OF, EXPR_MIN, EXPR_MAX,
  EXPR_EXP, EXPR_EXP2, EXPR_LOG, EXPR_TANH, EXPR_SQRT, EXPR_FLOOR,
  EXPR_WHERE,
  EXPR_LT, EXPR_LE, EXPR_GT, EXPR_GE, EXPR_EQ, EXPR_NE,
  EXPR_AND, EXPR_OR, EXPR_NOT,
  /* Of lowered scores only (score.h); no text says them. */
  EXPR_LOG2, EXPR_RCP, EXPR_TANH_APPROX,
  EXPR_LOCAL, /* a value that stands in variable number `integer`; args[0] is that value, nargs is 0 */
  EXPR_OP_COUNT
} expr_op;
/* clang-format on */

/* q and k are positions in the KV sequence's coordinates; i is the raw query row. Those past EXPR_NAMED_COUNT are of
 * passes (mask_residue.h) and have no name in texts. */
/* clang-format off */
typedef enum expr_symbol {
  EXPR_Q, EXPR_K, EXPR_I, EXPR_H, EXPR_HK, EXPR_B, EXPR_LEN_Q, EXPR_LEN_K, EXPR_S,
  EXPR_NAMED_COUNT,
  EXPR_RESIDUE = EXPR_NAMED_COUNT, EXPR_DILATION, EXPR_ALL_Q, EXPR_ALL_K,
  EXPR_FIRST_KEY, EXPR_COLUMN, /* of lowered scores (score.h): the first of a thread's keys; how far behind, a float */
  EXPR_SYMBOL_COUNT
} expr_symbol;
/* clang-format on */

#define EXPR_BIT(symbol) (1u << (symbol))

enum { EXPR_MAX_RANK = 4 };

/* Storage type of a declared parameter; integers and booleans read as int and bool, the others as float. */
typedef enum param_type { PARAM_I32, PARAM_F32, PARAM_F16, PARAM_BF16, PARAM_BOOL } param_type;

typedef struct expr expr;

typedef struct expr_param {
  const char *name;
  param_type type;
  int rank;                         /* 0: a scalar, passed by value */
  const expr *shape[EXPR_MAX_RANK]; /* int expressions over hq, hk, b, len_q, len_k; see expr_scope */
  diag_span at;                     /* where it was declared */
  bool is_variable;                 /* not declared but a variable of the printed code, see expr_hoist.h */
} expr_param;

struct expr {
  expr_op op;
  expr_type type;
  expr_symbol symbol;
  int param;
  int64_t integer; /* of a parameter without index: 1 says that it may have any value (a variable) */
  double real;
  int nargs;
  const expr *args[EXPR_MAX_RANK];
  diag_span at; /* in the spec's text; {0, 0} for derived nodes */
};

/* What names mean while parsing. */
typedef struct expr_scope {
  unsigned symbols;         /* EXPR_BIT set of the symbols that may be used */
  const expr_param *params; /* declared parameters */
  int nparams;
  int heads_q, heads_kv; /* constants of the spec behind heads_q, heads_kv, group; in shapes also hq, hk */
  bool shape;            /* parsing a shape: the names are hq hk b len_q len_k and integers */
} expr_scope;

/* Parses `source` (zero-terminated), whose first byte is at `offset` of the diagnosed text; `verbatim` says whether the
 * bytes of source stand there one to one (else every error points at `offset`). Result has type `wanted` (an int
 * becomes a float where a float is wanted). Returns NULL after adding at least one diagnostic. Constants are folded. */
const expr *expr_parse(arena *a, const char *source, size_t offset, bool verbatim, const expr_scope *scope,
                       expr_type wanted, diags *d);

/* Parses and evaluates an expression without symbols or parameters: `1/sqrt(256)`, `4096`. False after a diagnostic. */
bool expr_parse_constant(arena *a, const char *source, size_t offset, bool verbatim, double *value, diags *d);

/* A smaller expression with the same value everywhere: constants folded, neutral elements dropped, double negation
 * and `not` pushed inwards, constant conditions decided. */
const expr *expr_fold(arena *a, const expr *e);
/* The normal form: folded, integer sums as linear forms with sorted terms, commutative operands sorted, integer
 * comparisons as `sum <= 0` or `sum == 0`. Two expressions with the same normal form print alike. Idempotent. Values
 * are kept under wrap-around, except that the two sides of an int comparison must not be so far apart that their
 * difference overflows. */
const expr *expr_normalise(arena *a, const expr *e);
/* Structural equality, and a total order on structure (for sorting). */
bool expr_equal(const expr *a, const expr *b);
int expr_compare(const expr *a, const expr *b);
/* EXPR_BIT set of all symbols in e. Indexed parameters count the symbols of their indices. */
unsigned expr_symbols(const expr *e);
/* Bit n set when parameter n occurs in e (parameters are limited to 32). */
uint32_t expr_params(const expr *e);
/* e with every occurrence of `symbol` replaced. */
const expr *expr_substitute(arena *a, const expr *e, expr_symbol symbol, const expr *by);

/* Constructors used by passes; they fold as they build. */
const expr *expr_int(arena *a, int64_t value);
const expr *expr_bool(arena *a, bool value);
const expr *expr_float(arena *a, double value);
const expr *expr_sym(arena *a, expr_symbol symbol);
const expr *expr_make(arena *a, expr_op op, const expr *x, const expr *y, const expr *z); /* y, z may be NULL */

const char *expr_symbol_name(expr_symbol symbol); /* "len_q" */
const char *expr_param_type_name(param_type t);   /* "bf16" */
expr_type expr_param_value(param_type t);         /* what a parameter reads as */

/* As the user would write it, with the fewest parentheses; parsing it again gives an equal expression. */
void expr_print(const expr *e, const expr_param *params, text *out);

/* As CUDA C++. symbols[n] is the text for symbol n (a name or a parenthesised expression); NULL for a symbol that must
 * not occur. locals[n] is that for local n; locals may be NULL when there are none. Scalar parameters print as `p.NAME`, indexed ones as `param_NAME(p, i, j)`. Float literals are hex
 * (`0x1.8p+0f`). Int operators that could overflow are calls, since C++ does not wrap. The functions used are those of
 * templates/parts/expression.cuh: to_f32, add_i32, sub_i32, mul_i32, neg_i32, floor_div_i32, floor_mod_i32, bit_i32,
 * min_i32, max_i32, abs_i32, min_f32, max_f32, abs_f32, exp_f32, exp2_f32, log_f32, tanh_f32, sqrt_f32, floor_i32; in lowered
 * scores also the primitives log2_approx, rcp_approx, tanh_approx. */
void expr_print_cuda(const expr *e, const expr_param *params, const char *const symbols[EXPR_SYMBOL_COUNT],
                     const char *const *locals, text *out);

/* The nearest f32 as a hex literal of CUDA C++: exact, and no locale's business. Infinity is 2^128, which no f32 holds.
 */
void expr_print_f32(double value, text *out);

/* Values for the evaluator. `read` returns parameter `param` at `index` (already clamped by the callee to the tensor's
 * extents; rank entries), as a double; bool is 0 or 1. */
typedef struct expr_env {
  int64_t symbol[EXPR_SYMBOL_COUNT]; /* all but EXPR_S and EXPR_COLUMN */
  double s, column;
  const double *local;
  double (*read)(void *user, int param, const int64_t *index);
  void *user;
} expr_env;

/* The value in f64 (int and bool exact, with 32-bit wrap): the definition of what an expression means. */
double expr_eval(const expr *e, const expr_env *env);

#endif
