/* box_order.c: the order of a finished program's instructions, and of the operands that may change places.
 *
 * While a program is built, instructions are numbered as they come, and C does not say in which order the arguments of a
 * call are evaluated: the numbers depend on the compiler. So a finished program is ordered by what instructions are.
 * Ranks are given level by level (operands below their users), each level sorted by operation, constants and the ranks
 * of operands; then instructions follow in the order in which the two answers need them. */
#include <stdlib.h>
#include <string.h>

#include "box_internal.h"

typedef struct node {
  int number; /* in the builder */
  const box_instruction *i;
  box_summary summary; /* of loads of summaries */
  int ranks[BOX_MAX_OPERANDS];
} node;

#define BY(x, y)                                                                                                       \
  if ((x) != (y))                                                                                                      \
  return (x) < (y) ? -1 : 1

static int compare_nodes(const void *a, const void *b) {
  const node *x = a, *y = b;
  BY(x->i->op, y->i->op);
  BY(x->i->type, y->i->type);
  BY(x->i->input, y->i->input);
  BY(x->i->param, y->i->param);
  BY(x->summary.axis, y->summary.axis);
  BY(x->summary.along, y->summary.along);
  BY(x->i->integer, y->i->integer);
  BY(x->i->real, y->i->real);
  BY(x->i->tiny, y->i->tiny);
  BY(x->i->noperands, y->i->noperands);
  for (int n = 0; n < x->i->noperands; n++)
    BY(x->ranks[n], y->ranks[n]);
  return 0;
}

bool box_commutes(box_op op) {
  return op == BOX_ADD || op == BOX_MUL || op == BOX_MIN || op == BOX_MAX || op == BOX_EQ || op == BOX_AND ||
         op == BOX_OR || op == BOX_MEET;
}

/* Puts the operands of an instruction in the order of their ranks where that changes nothing. */
static void order_operands(box_instruction *i, const int *rank) {
  if (box_commutes(i->op) && rank[i->operand[0]] > rank[i->operand[1]]) {
    int first = i->operand[0];
    i->operand[0] = i->operand[1];
    i->operand[1] = first;
  }
}

static void follow(const box_builder *b, bool *placed, int number, int *order, int *count) {
  if (placed[number])
    return;
  placed[number] = true;
  for (int n = 0; n < b->items[number].noperands; n++)
    follow(b, placed, b->items[number].operand[n], order, count);
  order[(*count)++] = number;
}

int box_order(box_builder *b, int may_be_true, int may_be_false, int *order) {
  int *level = arena_alloc(b->memory, 2 * (size_t)b->count * sizeof *level), *rank = level + b->count;
  node *nodes = arena_alloc(b->memory, (size_t)b->count * sizeof *nodes);
  bool *placed = arena_alloc(b->memory, (size_t)b->count * sizeof *placed);
  int most = 0, next = 0, count = 0;
  for (int n = 0; n < b->count; n++) { /* operands have lower numbers */
    for (int k = 0; k < b->items[n].noperands; k++)
      if (level[b->items[n].operand[k]] >= level[n])
        level[n] = level[b->items[n].operand[k]] + 1;
    most = level[n] > most ? level[n] : most;
  }
  for (int l = 0; l <= most; l++) {
    int size = 0;
    for (int n = 0; n < b->count; n++) {
      if (level[n] != l)
        continue;
      box_instruction *i = &b->items[n];
      order_operands(i, rank);
      node *x = &nodes[size++];
      *x = (node){.number = n, .i = i};
      if (i->op == BOX_LEAST || i->op == BOX_GREATEST || i->op == BOX_LABEL_SET)
        x->summary = b->summaries[i->summary];
      for (int k = 0; k < i->noperands; k++)
        x->ranks[k] = rank[i->operand[k]];
    }
    qsort(nodes, (size_t)size, sizeof *nodes, compare_nodes);
    for (int n = 0; n < size; n++)
      rank[nodes[n].number] = next++;
  }
  follow(b, placed, may_be_true, order, &count);
  follow(b, placed, may_be_false, order, &count);
  return count;
}
