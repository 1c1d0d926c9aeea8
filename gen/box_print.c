/* box_print.c: a box program as statements of C, one per instruction; constants and inputs stand where they are used.
 */
#include <string.h>

#include "box.h"

/* How an operation is spelled: between two operands, or as a call NAME_i32, NAME_i64 or NAME_f32. */
static const struct spelling {
  const char *infix, *call;
} spellings[BOX_OP_COUNT] = {
    [BOX_ADD] = {"+", NULL},         [BOX_SUB] = {"-", NULL},       [BOX_MUL] = {"*", NULL},
    [BOX_DIV] = {"/", NULL},         [BOX_LE] = {"<=", NULL},       [BOX_LT] = {"<", NULL},
    [BOX_EQ] = {"==", NULL},         [BOX_AND] = {"&&", NULL},      [BOX_OR] = {"||", NULL},
    [BOX_MIN] = {NULL, "min"},       [BOX_MAX] = {NULL, "max"},     [BOX_FLOORDIV] = {NULL, "floor_div"},
    [BOX_MOD] = {NULL, "floor_mod"}, [BOX_EXP] = {NULL, "exp"},     [BOX_EXP2] = {NULL, "exp2"},
    [BOX_LOG] = {NULL, "log"},       [BOX_TANH] = {NULL, "tanh"},   [BOX_SQRT] = {NULL, "sqrt"},
    [BOX_BELOW] = {NULL, "below"},   [BOX_ABOVE] = {NULL, "above"},
};

typedef struct printer {
  const box_program *program;
  const box_style *style;
  text *out;
} printer;

static bool is_inline(const box_instruction *i) {
  return i->op == BOX_CONST || i->op == BOX_INPUT;
}

static void print_constant(const box_instruction *i, text *out) {
  if (i->type == BOX_FLOAT) {
    expr_print_f32(i->real, out);
  } else if (i->type == BOX_BOOL) {
    text_puts(out, i->integer ? "true" : "false");
  } else if (i->integer == INT32_MIN) { /* 2147483648 is no int in C */
    text_puts(out, "(-2147483647 - 1)");
  } else {
    const char *suffix = i->type == BOX_LONG ? "ll" : "";
    text_printf(out, i->integer < 0 ? "(%lld%s)" : "%lld%s", (long long)i->integer, suffix);
  }
}

static void print_value(const printer *p, int number) {
  const box_instruction *i = &p->program->items[number];
  if (i->op == BOX_CONST)
    print_constant(i, p->out);
  else if (i->op == BOX_INPUT)
    text_puts(p->out, p->style->input[i->input] ? p->style->input[i->input] : "?");
  else
    text_printf(p->out, "v%d", number);
}

void box_print_value(const box_program *p, int number, const box_style *style, text *out) {
  const printer to = {p, style, out};
  print_value(&to, number);
}

static void print_arguments(const printer *p, const box_instruction *i) {
  for (int n = 0; n < i->noperands; n++) {
    text_puts(p->out, n ? ", " : "");
    print_value(p, i->operand[n]);
  }
}

static bool has_long(const printer *p, const box_instruction *i) {
  bool found = false;
  for (int n = 0; n < i->noperands; n++)
    found |= p->program->items[i->operand[n]].type == BOX_LONG;
  return found;
}

static void print_load(const printer *p, const box_instruction *i) {
  static const char *const names[BOX_OP_COUNT] = {
      [BOX_LEAST] = "least", [BOX_GREATEST] = "greatest", [BOX_LABEL_SET] = "labels"};
  const char *name = p->style->params[i->param].name;
  if (i->op == BOX_READ && i->noperands == 0) {
    text_printf(p->out, "p.%s", name);
    return;
  }
  if (i->op == BOX_READ)
    text_printf(p->out, "param_%s(p, ", name);
  else
    text_printf(p->out, "%s_%s_%d(p, ", names[i->op], name, p->program->summaries[i->summary].axis);
  print_arguments(p, i);
  text_puts(p->out, ")");
}

static void print_call(const printer *p, const box_instruction *i, const char *name) {
  const char *suffix = i->type == BOX_FLOAT ? "f32" : i->type == BOX_LONG || has_long(p, i) ? "i64" : "i32";
  text_printf(p->out, "%s_%s(", name, suffix);
  print_arguments(p, i);
  if (i->op == BOX_BELOW || i->op == BOX_ABOVE) {
    text_puts(p->out, ", ");
    expr_print_f32(i->real, p->out);
    text_puts(p->out, ", ");
    expr_print_f32(i->tiny, p->out);
  }
  text_puts(p->out, ")");
}

static void print_infix(const printer *p, const box_instruction *i, const char *infix) {
  const box_instruction *x = &p->program->items[i->operand[0]];
  bool negates = i->op == BOX_SUB && i->type != BOX_FLOAT && x->op == BOX_CONST && x->integer == 0;
  text_puts(p->out, negates ? "-" : "");
  if (i->type == BOX_LONG && !has_long(p, i)) /* computed in 64 bits from 32 */
    text_printf(p->out, "(%s)", p->style->types[BOX_LONG]);
  if (!negates) {
    print_value(p, i->operand[0]);
    text_printf(p->out, " %s ", infix);
  }
  print_value(p, i->operand[1]);
}

static void print_operation(const printer *p, const box_instruction *i) {
  const struct spelling *s = &spellings[i->op];
  if (s->infix) {
    print_infix(p, i, s->infix);
  } else if (s->call) {
    print_call(p, i, s->call);
  } else if (i->op == BOX_NOT) {
    text_puts(p->out, "!");
    print_value(p, i->operand[0]);
  } else if (i->op == BOX_SELECT) {
    print_value(p, i->operand[0]);
    text_puts(p->out, " ? ");
    print_value(p, i->operand[1]);
    text_puts(p->out, " : ");
    print_value(p, i->operand[2]);
  } else if (i->op == BOX_MEET) {
    text_puts(p->out, "(");
    print_value(p, i->operand[0]);
    text_puts(p->out, " & ");
    print_value(p, i->operand[1]);
    text_puts(p->out, ") != 0");
  } else if (i->op == BOX_TO_FLOAT || i->op == BOX_FLOOR) {
    text_puts(p->out, i->op == BOX_FLOOR ? "floor_i32(" : "to_f32(");
    print_arguments(p, i);
    text_puts(p->out, ")");
  } else {
    print_load(p, i);
  }
}

void box_print(const box_program *program, const box_style *style, text *out) {
  const printer p = {program, style, out};
  for (int n = 0; n < program->count; n++) {
    const box_instruction *i = &program->items[n];
    if (is_inline(i))
      continue;
    bool narrows = i->type == BOX_INT && has_long(&p, i) && i->op != BOX_READ;
    text_printf(out, "%sconst %s v%d = ", style->indent, style->types[i->type], n);
    if (narrows)
      text_printf(out, "(%s)(", style->types[BOX_INT]);
    print_operation(&p, i);
    text_puts(out, narrows ? ");\n" : ";\n");
  }
}
