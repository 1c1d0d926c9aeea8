/* box_emit.c: instructions of box programs: made once each, folded, typed by the range of their value.
 *
 * Every int carries the interval it can lie in, whatever the box: that decides between int and long, and answers many a
 * minimum or comparison while building. Values that could leave BOX_LONG_LIMIT must not be asked for (box_span.c
 * checks). */
#include <stdlib.h>
#include <string.h>

#include "box_internal.h"

static bool same(const box_instruction *x, const box_instruction *y) {
  return x->op == y->op && x->type == y->type && x->noperands == y->noperands &&
         memcmp(x->operand, y->operand, sizeof x->operand) == 0 && x->integer == y->integer &&
         memcmp(&x->real, &y->real, sizeof x->real) == 0 && x->tiny == y->tiny && x->input == y->input &&
         x->param == y->param && x->summary == y->summary;
}

/* The number of an instruction: that of an equal one, or of a new one. */
static int place(box_builder *b, const box_instruction *i, int64_t low, int64_t high) {
  for (int n = 0; n < b->count; n++)
    if (same(&b->items[n], i))
      return n;
  if (b->count == BOX_MAX_BUILT) {
    b->full = true;
    return 0;
  }
  b->items[b->count] = *i;
  b->low[b->count] = low;
  b->high[b->count] = high;
  return b->count++;
}

static box_type int_type(int64_t low, int64_t high) {
  return low >= INT32_MIN && high <= INT32_MAX ? BOX_INT : BOX_LONG;
}

int box_int(box_builder *b, int64_t value) {
  box_instruction i = {.op = BOX_CONST, .type = int_type(value, value), .integer = value};
  return place(b, &i, value, value);
}

int box_bool(box_builder *b, bool value) {
  box_instruction i = {.op = BOX_CONST, .type = BOX_BOOL, .integer = value};
  return place(b, &i, value, value);
}

int box_float(box_builder *b, float value) {
  box_instruction i = {.op = BOX_CONST, .type = BOX_FLOAT, .real = (double)value};
  return place(b, &i, 0, 0);
}

int box_input_value(box_builder *b, box_input input) {
  enum { POSITION = 1 << 30 }; /* MASK_POSITION_LIMIT of mask.h */
  bool query = input == BOX_Q_FIRST || input == BOX_Q_LAST, key = input == BOX_K_FIRST || input == BOX_K_LAST;
  box_instruction i = {.op = BOX_INPUT, .type = BOX_INT, .input = input};
  return place(b, &i, query ? -POSITION : input == BOX_DILATION, query || key ? POSITION - 1 : POSITION);
}

bool box_is_const(const box_builder *b, int value, int64_t integer) {
  const box_instruction *i = &b->items[value];
  return i->op == BOX_CONST && i->type != BOX_FLOAT && i->integer == integer;
}

int box_load(box_builder *b, box_op op, box_type type, int param, int summary, const int *operands, int noperands) {
  box_instruction i = {.op = op, .type = type, .param = param, .summary = summary, .noperands = noperands};
  memcpy(i.operand, operands, (size_t)noperands * sizeof *operands);
  return place(b, &i, type == BOX_INT ? INT32_MIN : 0, type == BOX_INT ? INT32_MAX : 1);
}

/* ---- ranges of results ---- */

static int64_t least4(int64_t a, int64_t b, int64_t c, int64_t d) {
  int64_t x = a < b ? a : b, y = c < d ? c : d;
  return x < y ? x : y;
}

static int64_t magnitude(int64_t low, int64_t high) {
  return -low > high ? -low : high;
}

static void range_of(const box_builder *b, box_op op, int x, int y, int z, int64_t *low, int64_t *high) {
  int64_t xl = b->low[x], xh = b->high[x], yl = y < 0 ? 0 : b->low[y], yh = y < 0 ? 0 : b->high[y];
  switch (op) {
  case BOX_ADD:
    *low = xl + yl, *high = xh + yh;
    break;
  case BOX_SUB:
    *low = xl - yh, *high = xh - yl;
    break;
  case BOX_MUL:
    *low = least4(xl * yl, xl * yh, xh * yl, xh * yh);
    *high = -least4(-xl * yl, -xl * yh, -xh * yl, -xh * yh);
    break;
  case BOX_FLOORDIV:
    if (yl > 0) {
      box_instruction i = {.op = BOX_FLOORDIV, .type = BOX_LONG};
      int64_t ends[4], *e = ends;
      for (int n = 0; n < 4; n++)
        *e++ = box_apply(&i, (box_value[3]){{.integer = n & 1 ? xl : xh}, {.integer = n & 2 ? yl : yh}}).integer;
      *low = least4(ends[0], ends[1], ends[2], ends[3]);
      *high = -least4(-ends[0], -ends[1], -ends[2], -ends[3]);
    } else {
      *high = magnitude(xl, xh), *low = -*high;
    }
    break;
  case BOX_MOD:
    *low = yl < 0 ? yl + 1 : 0, *high = yh > 0 ? yh - 1 : 0;
    break;
  case BOX_MIN:
    *low = xl < yl ? xl : yl, *high = xh < yh ? xh : yh;
    break;
  case BOX_MAX:
    *low = xl > yl ? xl : yl, *high = xh > yh ? xh : yh;
    break;
  case BOX_SELECT:
    *low = yl < b->low[z] ? yl : b->low[z];
    *high = yh > b->high[z] ? yh : b->high[z];
    break;
  case BOX_FLOOR:
    *low = INT32_MIN, *high = INT32_MAX;
    break;
  default:
    *low = 0, *high = 1;
    break; /* bools */
  }
}

/* ---- folding ---- */

enum { NOT_FOLDED = -1 };

static bool is_operand(const box_builder *b, int of, box_op op, int x) {
  const box_instruction *i = &b->items[of];
  return i->op == op && (i->operand[0] == x || i->operand[1] == x);
}

/* A sum against 0 as a comparison of its parts, which needs no subtraction and fewer bits. */
static int compare_parts(box_builder *b, box_op op, int x, int y) {
  bool left = box_is_const(b, y, 0); /* the sum is x */
  const box_instruction *i = &b->items[left ? x : y];
  if ((!left && !box_is_const(b, x, 0)) || (i->op != BOX_SUB && i->op != BOX_ADD))
    return NOT_FOLDED;
  int p = i->operand[0], q = i->operand[1];
  if (i->op == BOX_ADD) { /* a constant, which stands first as it is older, or last */
    int c = b->items[p].op == BOX_CONST ? p : q;
    if (b->items[c].op != BOX_CONST)
      return NOT_FOLDED;
    p = c == p ? q : p;
    q = box_int(b, -b->items[c].integer);
  }
  return left ? box_make(b, op, p, q, -1) : box_make(b, op, q, p, -1);
}

static int fold_numbers(box_builder *b, box_op op, int x, int y) {
  switch (op) {
  case BOX_ADD:
    return box_is_const(b, x, 0) ? y : box_is_const(b, y, 0) ? x : NOT_FOLDED;
  case BOX_SUB:
    return box_is_const(b, y, 0) ? x : x == y ? box_int(b, 0) : NOT_FOLDED;
  case BOX_MUL:
    if (box_is_const(b, x, 0) || box_is_const(b, y, 1))
      return x;
    return box_is_const(b, y, 0) || box_is_const(b, x, 1) ? y : NOT_FOLDED;
  case BOX_FLOORDIV:
    return box_is_const(b, y, 1) ? x : NOT_FOLDED;
  case BOX_MOD:
    return b->low[x] >= 0 && b->high[x] < b->low[y] ? x : NOT_FOLDED;
  case BOX_MIN:
    if (x == y || b->high[x] <= b->low[y] || is_operand(b, x, op, y))
      return x;
    return b->high[y] <= b->low[x] || is_operand(b, y, op, x) ? y : NOT_FOLDED;
  case BOX_MAX:
    if (x == y || b->low[x] >= b->high[y] || is_operand(b, x, op, y))
      return x;
    return b->low[y] >= b->high[x] || is_operand(b, y, op, x) ? y : NOT_FOLDED;
  case BOX_LE:
    if (x == y || b->high[x] <= b->low[y] || is_operand(b, y, BOX_MAX, x) || is_operand(b, x, BOX_MIN, y))
      return box_bool(b, true);
    return b->low[x] > b->high[y] ? box_bool(b, false) : NOT_FOLDED;
  case BOX_LT:
    if (b->high[x] < b->low[y])
      return box_bool(b, true);
    return x == y || b->low[x] >= b->high[y] ? box_bool(b, false) : NOT_FOLDED;
  case BOX_EQ:
    if (x == y)
      return box_bool(b, true);
    return b->high[x] < b->low[y] || b->high[y] < b->low[x] ? box_bool(b, false) : NOT_FOLDED;
  default:
    return NOT_FOLDED;
  }
}

static int fold_bools(box_builder *b, box_op op, int x, int y) {
  if (op == BOX_NOT)
    return b->items[x].op == BOX_NOT ? b->items[x].operand[0] : NOT_FOLDED;
  bool neutral = op == BOX_AND;
  if (x == y || box_is_const(b, y, neutral) || box_is_const(b, x, !neutral))
    return x;
  if (box_is_const(b, x, neutral) || box_is_const(b, y, !neutral))
    return y;
  if (is_operand(b, x, op, y)) /* (x and y) and y */
    return x;
  if (is_operand(b, y, op, x))
    return y;
  return NOT_FOLDED;
}

static int fold(box_builder *b, box_op op, int x, int y, int z) {
  if (op == BOX_SELECT) {
    if (y == z || box_is_const(b, x, 1))
      return y;
    return box_is_const(b, x, 0) ? z : NOT_FOLDED;
  }
  if (op == BOX_AND || op == BOX_OR || op == BOX_NOT)
    return fold_bools(b, op, x, y);
  box_type type = b->items[x].type;
  if ((type != BOX_INT && type != BOX_LONG) || op == BOX_TO_FLOAT)
    return NOT_FOLDED;
  int folded = fold_numbers(b, op, x, y);
  bool compares = op == BOX_LE || op == BOX_LT || op == BOX_EQ;
  return folded == NOT_FOLDED && compares ? compare_parts(b, op, x, y) : folded;
}

static box_type type_of(const box_builder *b, box_op op, int x, int y) {
  switch (op) {
  case BOX_LE:
  case BOX_LT:
  case BOX_EQ:
  case BOX_MEET:
  case BOX_AND:
  case BOX_OR:
  case BOX_NOT:
    return BOX_BOOL;
  case BOX_TO_FLOAT:
    return BOX_FLOAT;
  case BOX_FLOOR:
    return BOX_INT;
  case BOX_SELECT:
    return b->items[y].type == BOX_LONG ? BOX_INT : b->items[y].type; /* int or long by its range */
  default:
    return b->items[x].type == BOX_LONG ? BOX_INT : b->items[x].type;
  }
}

static int make(box_builder *b, box_instruction i) {
  int x = i.operand[0], y = i.noperands > 1 ? i.operand[1] : -1, z = i.noperands > 2 ? i.operand[2] : -1;
  int64_t low = 0, high = 0;
  if (i.type != BOX_FLOAT && i.type != BOX_LABELS)
    range_of(b, i.op, x, y, z, &low, &high);
  if (i.type == BOX_INT)
    i.type = int_type(low, high);
  bool constant = true;
  box_value values[3] = {0};
  for (int n = 0; n < i.noperands; n++) {
    const box_instruction *from = &b->items[i.operand[n]];
    constant &= from->op == BOX_CONST;
    values[n] = (box_value){.integer = from->integer, .real = (float)from->real};
  }
  if (!constant)
    return place(b, &i, low, high);
  box_value value = box_apply(&i, values);
  if (i.type == BOX_FLOAT)
    return box_float(b, value.real);
  return i.type == BOX_BOOL ? box_bool(b, value.integer != 0) : box_int(b, value.integer);
}

int box_make(box_builder *b, box_op op, int x, int y, int z) {
  int folded = fold(b, op, x, y, z);
  if (folded != NOT_FOLDED)
    return folded;
  bool commutes = box_commutes(op);
  box_instruction i = {.op = op, .type = type_of(b, op, x, y), .noperands = z >= 0 ? 3 : y >= 0 ? 2 : 1};
  i.operand[0] = commutes && x > y ? y : x;
  i.operand[1] = y < 0 ? 0 : commutes && x > y ? x : y;
  i.operand[2] = z < 0 ? 0 : z;
  i.integer = (op == BOX_LE || op == BOX_LT || op == BOX_EQ) && b->items[x].type == BOX_FLOAT;
  return make(b, i);
}

int box_move(box_builder *b, box_op op, int x, double real, double tiny) {
  box_instruction i = {.op = op, .type = BOX_FLOAT, .noperands = 1, .operand = {x}, .real = real, .tiny = tiny};
  return make(b, i);
}

/* ---- the program ---- */

const box_program *box_finish(box_builder *b, int may_be_true, int may_be_false) {
  int order[BOX_MAX_BUILT], number[BOX_MAX_BUILT], summary[BOX_MAX_SUMMARIES];
  if (b->full)
    return NULL;
  box_program *p = arena_alloc(b->memory, sizeof *p);
  p->count = box_order(b, may_be_true, may_be_false, order);
  if (p->count > BOX_MAX_INSTRUCTIONS)
    return NULL;
  box_instruction *items = arena_alloc(b->memory, (size_t)p->count * sizeof *items);
  memset(summary, -1, sizeof summary);
  for (int next = 0; next < p->count; next++) {
    int n = order[next];
    box_instruction *i = &items[next];
    *i = b->items[n];
    number[n] = next;
    for (int k = 0; k < i->noperands; k++)
      i->operand[k] = number[i->operand[k]];
    if (i->op == BOX_READ)
      p->scalars |= UINT32_C(1) << i->param;
    if (i->op != BOX_LEAST && i->op != BOX_GREATEST && i->op != BOX_LABEL_SET)
      continue;
    if (summary[i->summary] < 0) {
      summary[i->summary] = p->nsummaries;
      p->summaries[p->nsummaries] = b->summaries[i->summary];
      p->summaries[p->nsummaries++].labels = false;
    }
    i->summary = summary[i->summary];
    p->summaries[i->summary].labels |= i->op == BOX_LABEL_SET;
  }
  p->items = items;
  p->may_be_true = number[may_be_true];
  p->may_be_false = number[may_be_false];
  return p;
}
