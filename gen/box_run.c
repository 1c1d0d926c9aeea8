/* box_run.c: what every instruction of a box program computes. The builder folds with the same function. */
#include <float.h>
#include <math.h>

#include "box_internal.h"

/* Division and remainder of longs as the language defines them for ints. */
static int64_t floor_div(int64_t x, int64_t y) {
  if (y == 0)
    return 0;
  int64_t quotient = x / y;
  return quotient - (x % y != 0 && (x < 0) != (y < 0));
}

static box_value integer(int64_t value) {
  return (box_value){.integer = value};
}
static box_value real(float value) {
  return (box_value){.real = value};
}

static float moved(const box_instruction *i, float x) {
  bool below = i->op == BOX_BELOW;
  if (isnan(x))
    return below ? -INFINITY : INFINITY;
  float step = fabsf(x) * (float)i->real + (float)i->tiny;
  return isinf(x) ? x : below ? x - step : x + step;
}

static box_value apply_real(const box_instruction *i, float x, float y) {
  switch (i->op) {
  case BOX_ADD:
    return real(x + y);
  case BOX_SUB:
    return real(x - y);
  case BOX_MUL:
    return real(x * y);
  case BOX_DIV:
    return real(x / y);
  case BOX_MIN:
    return real(fminf(x, y));
  case BOX_MAX:
    return real(fmaxf(x, y));
  case BOX_EXP:
    return real(expf(x));
  case BOX_EXP2:
    return real(exp2f(x));
  case BOX_LOG:
    return real(logf(x));
  case BOX_TANH:
    return real(tanhf(x));
  case BOX_SQRT:
    return real(sqrtf(x));
  default:
    return real(moved(i, x));
  }
}

static box_value apply_compare(const box_instruction *i, const box_value *x, bool reals) {
  if (i->op == BOX_LE)
    return integer(reals ? x[0].real <= x[1].real : x[0].integer <= x[1].integer);
  if (i->op == BOX_LT)
    return integer(reals ? x[0].real < x[1].real : x[0].integer < x[1].integer);
  return integer(reals ? x[0].real == x[1].real : x[0].integer == x[1].integer);
}

static box_value apply_integer(const box_instruction *i, const box_value *v) {
  int64_t x = v[0].integer, y = v[1].integer;
  switch (i->op) {
  case BOX_ADD:
    return integer(x + y);
  case BOX_SUB:
    return integer(x - y);
  case BOX_MUL:
    return integer(x * y);
  case BOX_FLOORDIV:
    return integer(floor_div(x, y));
  case BOX_MOD:
    return integer(y == 0 ? 0 : x - floor_div(x, y) * y);
  case BOX_MIN:
    return integer(x < y ? x : y);
  case BOX_MAX:
    return integer(x > y ? x : y);
  case BOX_FLOOR:
    return integer(expr_floor((double)v[0].real));
  case BOX_MEET:
    return integer((v[0].labels & v[1].labels) != 0);
  case BOX_AND:
    return integer(x && y);
  case BOX_OR:
    return integer(x || y);
  case BOX_NOT:
    return integer(!x);
  default:
    return integer(0);
  }
}

box_value box_apply(const box_instruction *i, const box_value *x) {
  if (i->op == BOX_SELECT)
    return x[0].integer ? x[1] : x[2];
  if (i->op == BOX_LE || i->op == BOX_LT || i->op == BOX_EQ)
    return apply_compare(i, x, i->integer != 0); /* box_make notes there that the operands are floats */
  if (i->op == BOX_TO_FLOAT)
    return real((float)x[0].integer);
  return i->type == BOX_FLOAT ? apply_real(i, x[0].real, x[1].real) : apply_integer(i, x);
}

static box_value load(const box_program *p, const box_env *env, const box_instruction *i, const box_value *values) {
  int64_t index[BOX_MAX_OPERANDS] = {0};
  for (int n = 0; n < i->noperands; n++)
    index[n] = values[i->operand[n]].integer;
  if (i->op == BOX_LABEL_SET)
    return (box_value){.labels = env->label_set(env->user, &p->summaries[i->summary], index)};
  double x = i->op == BOX_READ ? env->read(env->user, i->param, index)
                               : env->extreme(env->user, &p->summaries[i->summary], index, i->op == BOX_GREATEST);
  if (i->type == BOX_FLOAT)
    return real((float)x);
  return integer(i->type == BOX_BOOL ? x != 0 : (int64_t)x);
}

box_answer box_run(const box_program *p, const box_env *env) {
  box_value values[BOX_MAX_INSTRUCTIONS];
  for (int n = 0; n < p->count; n++) {
    const box_instruction *i = &p->items[n];
    box_value x[3] = {0};
    switch (i->op) {
    case BOX_CONST:
      values[n] = (box_value){.integer = i->integer, .real = (float)i->real};
      continue;
    case BOX_INPUT:
      values[n] = integer(env->input[i->input]);
      continue;
    case BOX_READ:
    case BOX_LEAST:
    case BOX_GREATEST:
    case BOX_LABEL_SET:
      values[n] = load(p, env, i, values);
      continue;
    default:
      break;
    }
    for (int k = 0; k < i->noperands; k++)
      x[k] = values[i->operand[k]];
    values[n] = box_apply(i, x);
  }
  return (box_answer){values[p->may_be_true].integer != 0, values[p->may_be_false].integer != 0};
}
