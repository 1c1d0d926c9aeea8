/* test_expr_random.h: random expressions and environments for the tests of expressions and masks.
 *
 * Everything follows from a seed, which every failure prints. Raw expressions are built without folding, so that the
 * folder has something to do. */
#ifndef TEST_EXPR_RANDOM_H
#define TEST_EXPR_RANDOM_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "expr_internal.h"

static uint64_t random_state;

static inline uint64_t random_bits(void) { /* splitmix64 */
  uint64_t z = (random_state += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
  return z ^ z >> 31;
}

static inline int random_below(int n) {
  return (int)(random_bits() % (uint64_t)n);
}
static inline int random_between(int low, int high) {
  return low + random_below(high - low + 1);
}

/* The parameters of all random expressions. */
static const expr_param random_params[] = {
    {.name = "w", .type = PARAM_I32, .rank = 0},     {.name = "cap", .type = PARAM_F32, .rank = 0},
    {.name = "on", .type = PARAM_BOOL, .rank = 0},   {.name = "doc", .type = PARAM_I32, .rank = 1},
    {.name = "slope", .type = PARAM_F32, .rank = 1}, {.name = "vis", .type = PARAM_BOOL, .rank = 2},
    {.name = "win", .type = PARAM_I32, .rank = 1},
};
enum { RANDOM_PARAMS = sizeof random_params / sizeof *random_params };
enum { PARAM_W, PARAM_CAP, PARAM_ON, PARAM_DOC, PARAM_SLOPE, PARAM_VIS, PARAM_WIN };

static inline expr_scope random_scope(void) {
  return (expr_scope){.symbols = (1u << EXPR_SYMBOL_COUNT) - 1,
                      .params = random_params,
                      .nparams = RANDOM_PARAMS,
                      .heads_q = 8,
                      .heads_kv = 2};
}

/* Tensors are hashes of their index; `user` points at a salt. */
static inline double random_read(void *user, int param, const int64_t *index) {
  uint64_t h = *(const uint64_t *)user + (uint64_t)param * UINT64_C(0x9E3779B97F4A7C15);
  for (int n = 0; n < random_params[param].rank; n++)
    h = (h ^ (uint64_t)index[n]) * UINT64_C(0xD6E8FEB86659FD93), h ^= h >> 32;
  h ^= h >> 29;
  switch (random_params[param].type) {
  case PARAM_BOOL: return (double)(h & 1);
  case PARAM_I32: return (double)((int64_t)(h % 12) - 2);
  default: return (double)((int64_t)(h % 65) - 32) / 8;
  }
}

static inline const expr *raw(arena *a, expr_op op, expr_type type, const expr *x, const expr *y, const expr *z) {
  expr *e = expr_node(a, op, type, (diag_span){0, 0});
  e->args[0] = x;
  e->args[1] = y;
  e->args[2] = z;
  e->nargs = z ? 3 : y ? 2 : x ? 1 : 0;
  return e;
}

typedef struct random_options {
  bool wide;        /* integer constants of any size */
  bool comparisons; /* of integers too */
} random_options;

static const expr *random_expr(arena *a, const random_options *o, expr_type type, int depth);

static inline const expr *random_param(arena *a, const random_options *o, expr_type type, int depth) {
  int param;
  do
    param = random_below(RANDOM_PARAMS);
  while ((random_params[param].type == PARAM_I32    ? EXPR_INT
          : random_params[param].type == PARAM_BOOL ? EXPR_BOOL
                                                    : EXPR_FLOAT) != type);
  expr *e = expr_node(a, EXPR_PARAM, type, (diag_span){0, 0});
  e->param = param;
  e->nargs = random_params[param].rank;
  for (int n = 0; n < e->nargs; n++)
    e->args[n] = random_expr(a, o, EXPR_INT, depth - 1);
  return e;
}

static inline const expr *random_leaf(arena *a, const random_options *o, expr_type type) {
  if (type == EXPR_BOOL)
    return random_below(4) ? random_param(a, o, EXPR_BOOL, 0) : expr_bool(a, random_below(2));
  if (type == EXPR_FLOAT) {
    static const double special[] = {0.0, -0.0, 1.0, -1.0};
    if (random_below(6) == 0)
      return expr_float(a, special[random_below(4)]);
    return random_below(2) ? expr_sym(a, EXPR_S) : expr_float(a, random_between(-40, 40) / 8.0);
  }
  switch (random_below(4)) {
  case 0: return expr_int(a, o->wide && !random_below(3) ? (int64_t)random_bits() : random_between(-9, 9));
  case 1: return expr_sym(a, (expr_symbol)random_below(EXPR_S));
  default: return expr_sym(a, (expr_symbol)random_below(2)); /* q and k */
  }
}

static inline const expr *random_int(arena *a, const random_options *o, int depth) {
  static const expr_op ops[] = {EXPR_ADD, EXPR_SUB, EXPR_ADD, EXPR_SUB,      EXPR_MUL, EXPR_FLOORDIV,
                                EXPR_MOD, EXPR_MIN, EXPR_MAX, EXPR_FLOORDIV, EXPR_NEG, EXPR_ABS};
  int choice = random_below(16);
  if (choice == 15)
    return raw(a, EXPR_BIT_OF, EXPR_INT, random_expr(a, o, EXPR_INT, depth - 1), random_expr(a, o, EXPR_INT, depth - 1),
               NULL);
  if (choice == 12)
    return raw(a, EXPR_FLOOR, EXPR_INT, random_expr(a, o, EXPR_FLOAT, depth - 1), NULL, NULL);
  if (choice == 13)
    return raw(a, EXPR_WHERE, EXPR_INT, random_expr(a, o, EXPR_BOOL, depth - 1), random_expr(a, o, EXPR_INT, depth - 1),
               random_expr(a, o, EXPR_INT, depth - 1));
  if (choice == 14)
    return random_param(a, o, EXPR_INT, depth);
  const expr *x = random_expr(a, o, EXPR_INT, depth - 1);
  if (ops[choice] == EXPR_NEG || ops[choice] == EXPR_ABS)
    return raw(a, ops[choice], EXPR_INT, x, NULL, NULL);
  return raw(a, ops[choice], EXPR_INT, x, random_expr(a, o, EXPR_INT, depth - 1), NULL);
}

static inline const expr *random_float(arena *a, const random_options *o, int depth) {
  static const expr_op ops[] = {EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV,  EXPR_MIN,  EXPR_MAX, EXPR_NEG,
                                EXPR_ABS, EXPR_EXP, EXPR_LOG, EXPR_EXP2, EXPR_TANH, EXPR_SQRT};
  int choice = random_below(17);
  if (choice >= 15)
    return raw(a, EXPR_TO_FLOAT, EXPR_FLOAT, random_expr(a, o, EXPR_INT, depth - 1), NULL, NULL);
  if (choice == 14)
    return random_param(a, o, EXPR_FLOAT, depth);
  if (choice == 13)
    return raw(a, EXPR_WHERE, EXPR_FLOAT, random_expr(a, o, EXPR_BOOL, depth - 1),
               random_expr(a, o, EXPR_FLOAT, depth - 1), random_expr(a, o, EXPR_FLOAT, depth - 1));
  const expr *x = random_expr(a, o, EXPR_FLOAT, depth - 1);
  if (ops[choice] >= EXPR_EXP || ops[choice] == EXPR_NEG || ops[choice] == EXPR_ABS)
    return raw(a, ops[choice], EXPR_FLOAT, x, NULL, NULL);
  return raw(a, ops[choice], EXPR_FLOAT, x, random_expr(a, o, EXPR_FLOAT, depth - 1), NULL);
}

static inline const expr *random_bool(arena *a, const random_options *o, int depth) {
  int choice = random_below(10);
  if (choice < 5) {
    expr_type type = o->comparisons && random_below(4) ? EXPR_INT : EXPR_FLOAT;
    return raw(a, (expr_op)(EXPR_LT + random_below(6)), EXPR_BOOL, random_expr(a, o, type, depth - 1),
               random_expr(a, o, type, depth - 1), NULL);
  }
  const expr *x = random_expr(a, o, EXPR_BOOL, depth - 1);
  if (choice == 5)
    return raw(a, EXPR_NOT, EXPR_BOOL, x, NULL, NULL);
  const expr *y = random_expr(a, o, EXPR_BOOL, depth - 1);
  if (choice == 6)
    return raw(a, EXPR_WHERE, EXPR_BOOL, x, y, random_expr(a, o, EXPR_BOOL, depth - 1));
  return raw(a, choice < 8 ? EXPR_AND : EXPR_OR, EXPR_BOOL, x, y, NULL);
}

static inline const expr *random_expr(arena *a, const random_options *o, expr_type type, int depth) {
  if (depth <= 0 || random_below(8) == 0)
    return random_leaf(a, o, type);
  return type == EXPR_INT     ? random_int(a, o, depth)
         : type == EXPR_FLOAT ? random_float(a, o, depth)
                              : random_bool(a, o, depth);
}

static uint64_t random_salt;

static inline expr_env random_env(bool wide) {
  expr_env env = {.read = random_read, .user = &random_salt};
  random_salt = random_bits();
  for (int n = 0; n < EXPR_S; n++)
    env.symbol[n] = wide && !random_below(3) ? expr_wrap((int64_t)random_bits()) : random_between(-3, 20);
  env.s = random_between(-80, 80) / 8.0;
  return env;
}

/* Whether all integers in e stay far from overflow, as the normal form of comparisons assumes. */
static inline bool is_tame(const expr *e, const expr_env *env) {
  if (e->type == EXPR_INT && fabs(expr_eval(e, env)) > 1 << 20)
    return false;
  if (e->op == EXPR_MUL && e->type == EXPR_INT &&
      fabs(expr_eval(e->args[0], env)) * fabs(expr_eval(e->args[1], env)) > 1 << 20)
    return false;
  for (int n = 0; n < e->nargs; n++)
    if (!is_tame(e->args[n], env))
      return false;
  return true;
}

#endif
