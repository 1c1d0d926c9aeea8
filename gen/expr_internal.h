/* expr_internal.h: what the files of the expression language share and nobody else needs.
 *
 * The way of a text: expr_lex.c (characters to tokens) -> expr_parse.c (tokens to a syntax tree) -> expr_type.c with
 * expr_names.c and expr_sugar.c (syntax to typed expressions, built through expr_fold.c). expr_eval.c defines what each
 * operator computes; expr_fold.c uses the same functions, so folding cannot disagree with evaluation. */
#ifndef GEN_EXPR_INTERNAL_H
#define GEN_EXPR_INTERNAL_H

#include "expr.h"

/* Limits that keep every recursive pass far from the end of the stack. Nodes are counted after expansion of sugar and
 * chained comparisons, so that no short text stands for a huge tree. */
enum { EXPR_MAX_DEPTH = 200, EXPR_MAX_NODES = 2000 };

/* ---- tokens (expr_lex.c) ---- */

typedef enum token_kind {
  TOKEN_END,
  TOKEN_INT,
  TOKEN_FLOAT,
  TOKEN_NAME,
  TOKEN_OPERATOR,  /* which one in `op`, EXPR_SUB also for unary minus */
  TOKEN_OPEN,      /* ( */
  TOKEN_CLOSE,     /* ) */
  TOKEN_BRACKET,   /* [ */
  TOKEN_UNBRACKET, /* ] */
  TOKEN_COMMA
} token_kind;

typedef struct token {
  token_kind kind;
  expr_op op;
  const char *start; /* in the source */
  size_t length;
  int64_t integer; /* TOKEN_INT: 0 .. 2^31, the end only for -2147483648 */
  double real;     /* TOKEN_FLOAT: finite */
  diag_span at;    /* in the diagnosed text */
} token;

typedef struct lexer {
  const char *source;
  size_t position;
  size_t offset; /* of source[0] in the diagnosed text */
  bool verbatim;
  diags *d;
} lexer;

/* Reads the next token. False after a diagnostic. */
bool expr_lex_next(lexer *l, token *t);

/* ---- syntax (expr_parse.c) ---- */

typedef enum syntax_kind {
  SYNTAX_INT,
  SYNTAX_FLOAT,
  SYNTAX_NAME,
  SYNTAX_CALL,   /* name(args) */
  SYNTAX_INDEX,  /* name[args] */
  SYNTAX_UNARY,  /* EXPR_NEG or EXPR_NOT */
  SYNTAX_BINARY, /* arithmetic, EXPR_AND, EXPR_OR */
  SYNTAX_COMPARE /* a chain of two or more operands, with `before` in each but the first */
} syntax_kind;

typedef struct syntax syntax;
struct syntax {
  syntax_kind kind;
  expr_op op;
  const char *name;
  int64_t integer;
  double real;
  int depth;
  int nargs;
  syntax *args; /* first operand; the others follow through `next` */
  syntax *next;
  expr_op before; /* the operator in front of this operand */
  diag_span before_at;
  diag_span at;      /* the whole construct */
  diag_span name_at; /* the name or the operator in it */
};

/* Parses all of the text. NULL after a diagnostic. */
syntax *expr_parse_syntax(arena *a, lexer *l);

/* ---- names and types (expr_names.c, expr_type.c, expr_sugar.c) ---- */

typedef struct checker {
  arena *memory;
  const expr_scope *scope;
  expr_type wanted; /* of the whole text: says whether it is a mask or a score */
  diags *d;
  int nodes;      /* built so far */
  bool too_large; /* that there are too many was reported */
} checker;

/* The whole text: checked, converted to c->wanted, its constants fit for the device. */
const expr *expr_check_whole(checker *c, const syntax *s);
/* The typed expression of `s`, of whatever type it has. NULL after a diagnostic. */
const expr *expr_check(checker *c, const syntax *s);
/* `s` checked and converted to `type`; `what` names the place in messages ("an index", "the condition of where"). */
const expr *expr_check_as(checker *c, const syntax *s, expr_type type, const char *what);
const char *expr_type_name(expr_type t); /* "bool", "int", "float" */

typedef struct expr_function {
  const char *name;
  expr_op op;
  int min_args, max_args;
  bool real; /* the arguments become floats; else int or float alike */
} expr_function;

const expr_function *expr_function_find(const char *name);
/* Number of the declared parameter, or -1. */
int expr_param_find(const expr_scope *scope, const char *name);
/* Whether a symbol may be used. */
bool expr_symbol_allowed(const expr_scope *scope, expr_symbol symbol);
/* The expression of a plain name: symbol, constant of the spec or boolean. NULL after a diagnostic, which also covers
 * names that need parentheses or indices and unknown ones. */
const expr *expr_name(checker *c, const syntax *s);
/* Reports that s->name means nothing, with the nearest name in scope as a hint. */
void expr_unknown_name(checker *c, const syntax *s);

typedef struct expr_sugar {
  const char *name;
  int nargs; /* 0: used without parentheses */
  const char *usage;
  const expr *(*expand)(checker *c, const syntax *s); /* s has nargs arguments; NULL after a diagnostic */
} expr_sugar;

/* All sugar; *count receives how many there are. */
const expr_sugar *expr_sugar_table(int *count);
const expr_sugar *expr_sugar_find(const char *name);

/* ---- building (expr_fold.c) ---- */

/* A node that is not folded; its arguments are to be filled in. */
expr *expr_node(arena *a, expr_op op, expr_type type, diag_span at);
/* The folded operation. x is never NULL; y and z as the operator needs. A constant result that is not finite is left
 * unfolded, so constants are always finite. */
const expr *expr_build(arena *a, expr_op op, const expr *x, const expr *y, const expr *z, diag_span at);
bool expr_is_int(const expr *e, int64_t value);
/* e with every subexpression that equals `target` replaced. */
const expr *expr_replace(arena *a, const expr *e, const expr *target, const expr *by);
static inline bool expr_is_const(const expr *e) {
  return e->op == EXPR_CONST;
}

/* ---- meaning (expr_eval.c) ---- */

/* The low 32 bits as a signed number. */
int64_t expr_wrap(int64_t value);
/* One operator on values; y is ignored where there is one operand. Int operands are in range, results wrapped. */
int64_t expr_apply_int(expr_op op, int64_t x, int64_t y);
double expr_apply_real(expr_op op, double x, double y);
bool expr_compare_int(expr_op op, int64_t x, int64_t y);
bool expr_compare_real(expr_op op, double x, double y);
/* floor() of the language: saturates, 0 for NaN. */
int64_t expr_floor(double x);

/* ---- ranges (expr_range.c) ---- */

/* Greatest magnitudes: of q and i; of k; of lengths, heads and batches (these and k are not negative); of scalar int
 * parameters; of elements of int tensors. */
typedef struct expr_limits {
  int64_t query, key, length, scalar, tensor;
} expr_limits;

typedef struct expr_range {
  int64_t low, high;
} expr_range;

/* An interval that holds every value of the int expression e; all ints when an operation in it may wrap. */
expr_range expr_range_of(const expr *e, const expr_limits *limits);
/* As expr_range_of, but of the outermost operation before it wraps. */
expr_range expr_exact_range(const expr *e, const expr_limits *limits);
/* Whether an int operation can leave the 32 bits, for positions and lengths below 2^29 and scalar parameters up to 2^30
 * in magnitude. */
bool expr_may_wrap(const expr *e);
/* The first int subexpression, operands before operators, that can leave the 32 bits; NULL when none can. */
const expr *expr_find_wrap(const expr *e, const expr_limits *limits);

/* ---- linear forms (expr_linear.c) ---- */

/* constant + sum of coefficient * atom, in 32-bit wrapping arithmetic. Atoms are int expressions that are no sums,
 * distinct, in the order of expr_compare; coefficients are not 0. */
typedef struct linear_term {
  const expr *atom;
  int64_t coefficient;
} linear_term;

typedef struct linear {
  int count, capacity;
  linear_term *terms;
  int64_t constant;
} linear;

/* Of an int expression; its atoms and products are brought to normal form on the way. */
linear linear_of(arena *a, const expr *e);
/* Of an int expression that is in normal form already. */
linear linear_split(arena *a, const expr *normal);
/* The form times a constant. */
void linear_scale(linear *f, int64_t factor);
/* The form as a sum: positive terms first, then the others, then the constant. */
const expr *linear_build(arena *a, const linear *f);
/* The normal form of an int expression that is no sum, constant or product; the result may be one (expr_normal.c). */
const expr *expr_normal_atom(arena *a, const expr *e);

#endif
