/* spec_read_expr.c: the parts of a spec that are written in the expression language, and the parameters they name. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "spec_check.h"
#include "spec_read.h"

enum { PARAM_NAME_MAX = 32 };

typedef struct reader {
  spec *spec;
  diags *diags;
} reader;

static bool is_scalar(const tree_node *node) {
  return node && node->kind == TREE_SCALAR && !node->absent;
}

/* ---- Names of parameters ---- */

/* What a parameter must not be called, and why. The emitted source is C++, so its keywords would not compile there. */
/* clang-format off */
static const struct {
  const char *words, *reason;
} taken_names[] = {
    {" q k i h hk b s len_q len_k hq heads_q heads_kv group true false and or not if else in is lambda xor"
     " causal window prefix same min max abs exp exp2 log tanh sqrt floor where ",
     "means something in expressions"},
    {" v o p lse lse_with_sink sink batch out workspace stream cu_seqlens_q cu_seqlens_k seqlens_k page_table"
     " page_indptr k_scale v_scale ",
     "names a tensor or argument of every kernel"},
    {" alignas alignof and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await"
     " co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete"
     " do double dynamic_cast enum explicit export extern float for friend goto inline int long mutable namespace new"
     " noexcept not_eq nullptr operator or_eq private protected public register reinterpret_cast requires return short"
     " signed sizeof static static_assert static_cast struct switch template this thread_local throw try typedef typeid"
     " typename union unsigned using virtual void volatile wchar_t while xor_eq ",
     "is a reserved word of the emitted source"},
    {" errno half linux stderr stdin stdout unix ", "is a macro or type where the emitted source is compiled"},
};
/* clang-format on */

/* Beginnings of names that the emitted source makes up: param_NAME reads a tensor parameter. */
static const char *const taken_prefixes[] = {"param_", "qkv_"};

static bool holds_word(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = strstr(words, word); at; at = strstr(at + 1, word))
    if (at[-1] == ' ' && at[length] == ' ')
      return true;
  return false;
}

static bool check_param_name(reader *r, const tree_node *key) {
  const char *name = key->value;
  if (!spec_is_name(name, PARAM_NAME_MAX)) {
    diag_add(r->diags, DIAG_WRONG_TYPE, key->at,
             "%s cannot name a parameter: a name is a-z, then a-z 0-9 _, at most %d characters",
             spec_quote(r->spec->memory, name), PARAM_NAME_MAX);
    return false;
  }
  for (size_t i = 0; i < sizeof taken_names / sizeof taken_names[0]; i++)
    if (holds_word(taken_names[i].words, name)) {
      diag_add(r->diags, DIAG_CONFLICT, key->at, "a parameter cannot be called '%s', which %s", name,
               taken_names[i].reason);
      diag_hint(r->diags, "choose another name, such as '%s_'", name);
      return false;
    }
  for (size_t i = 0; i < sizeof taken_prefixes / sizeof taken_prefixes[0]; i++) {
    size_t length = strlen(taken_prefixes[i]);
    if (strncmp(name, taken_prefixes[i], length) == 0) {
      diag_add(r->diags, DIAG_CONFLICT, key->at, "a parameter's name cannot start with '%s'", taken_prefixes[i]);
      diag_hint(r->diags, "names of the emitted source start so; choose another, such as 'my_%s'", name);
      return false;
    }
  }
  return true;
}

/* ---- params ---- */

static bool read_shape(reader *r, const tree_node *shape, const expr_scope *scope, expr_param *param) {
  bool good = true;
  for (const tree_entry *e = shape->first; e; e = e->next) {
    const tree_node *node = e->value;
    if (!is_scalar(node))
      return false;
    const expr *extent =
        expr_parse(r->spec->memory, node->value, node->inside, node->verbatim, scope, EXPR_INT, r->diags);
    if (extent && extent->op == EXPR_CONST && extent->integer < 1) {
      diag_add(r->diags, DIAG_OUT_OF_RANGE, node->at, "an extent of %lld leaves parameter '%s' without elements",
               (long long)extent->integer, param->name);
      good = false;
    }
    good = good && extent;
    param->shape[param->rank++] = extent;
  }
  return good;
}

/* Adds one parameter. False when expressions cannot be checked because of it. */
static bool read_param(reader *r, const tree_entry *entry, const expr_scope *scope) {
  if (!check_param_name(r, entry->key) || entry->value->kind != TREE_MAPPING)
    return false;
  const tree_node *type = tree_get(entry->value, "type"), *shape = tree_get(entry->value, "shape");
  int kind = is_scalar(type) ? spec_word(schema_find("attention.params.*.type"), type->value) : -1;
  expr_param *param = &r->spec->params[r->spec->nparams++];
  *param =
      (expr_param){.name = entry->key->value, .type = kind < 0 ? PARAM_F32 : (param_type)kind, .at = entry->key->at};
  if (shape && (shape->kind != TREE_SEQUENCE || shape->count > EXPR_MAX_RANK))
    return false;
  return (!shape || read_shape(r, shape, scope, param)) && kind >= 0;
}

static bool read_params(reader *r, const tree_node *params) {
  if (!params)
    return true;
  if (params->kind != TREE_MAPPING)
    return false;
  if (params->count > SPEC_MAX_PARAMS) {
    diag_add(r->diags, DIAG_OUT_OF_RANGE, (diag_span){params->at.offset, 1}, "%d parameters; the limit is %d",
             params->count, SPEC_MAX_PARAMS);
    return false;
  }
  expr_scope scope = {.heads_q = r->spec->heads_q, .heads_kv = r->spec->heads_kv, .shape = true};
  bool good = true;
  for (const tree_entry *e = params->first; e; e = e->next)
    good = read_param(r, e, &scope) && good;
  return good;
}

/* ---- scale, softcap ---- */

/* .inf, -inf, NaN and the like, as YAML and other languages write them. */
static bool is_not_finite(const char *value) {
  value += *value == '-' || *value == '+';
  value += *value == '.';
  static const char *const words[] = {"inf", "infinity", "nan"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    size_t at = 0;
    while (words[i][at] && (value[at] | 0x20) == words[i][at])
      at++;
    if (words[i][at] == 0 && value[at] == 0)
      return true;
  }
  return false;
}

bool spec_read_constant(spec *s, const char *path, const tree_node *node, double *value, diags *d) {
  if (!is_scalar(node))
    return false;
  if (spec_is_yaml_word(node->value)) {
    diag_add(d, DIAG_WRONG_TYPE, node->at, "%s must be a number, not %s", path,
             spec_quote(s->memory, node->value));
    diag_hint(d, "leave the key out for the default");
    return false;
  }
  if (is_not_finite(node->value)) {
    diag_add(d, DIAG_OUT_OF_RANGE, node->at, "%s must be a finite number, not %s", path,
             spec_quote(s->memory, node->value));
    return false;
  }
  double constant;
  if (!expr_parse_constant(s->memory, node->value, node->inside, node->verbatim, &constant, d))
    return false;
  bool lost = constant != 0 && (float)constant == 0;
  if (!isfinite(constant) || fabs(constant) > FLT_MAX || lost) {
    diag_add(d, DIAG_OUT_OF_RANGE, node->at, "%s is %s", path,
             isnan(constant)   ? "not a number"
             : isinf(constant) ? "infinite"
             : lost            ? "0 in f32, although it is not 0"
                               : "beyond the range of f32");
    return false;
  }
  *value = constant + 0.0; /* no -0 */
  return true;
}

static void read_softcap(reader *r, const tree_node *node) {
  double value;
  if (!spec_read_constant(r->spec, "attention.softcap", node, &value, r->diags))
    return;
  if (value > 0) {
    r->spec->softcap = value;
    return;
  }
  diag_add(r->diags, DIAG_OUT_OF_RANGE, node->at, "attention.softcap must be greater than 0");
  diag_hint(r->diags, "leave the key out for scores without a cap");
}

/* ---- score, mask ---- */

static bool names_param(const reader *r, const char *name) {
  for (int i = 0; i < r->spec->nparams; i++)
    if (strcmp(r->spec->params[i].name, name) == 0)
      return true;
  return false;
}

static const expr *read_expression(reader *r, const char *key, const tree_node *node, unsigned symbols,
                                   expr_type type) {
  const spec *s = r->spec;
  if (!is_scalar(node))
    return NULL;
  if (spec_is_yaml_word(node->value) && !names_param(r, node->value)) {
    diag_add(r->diags, DIAG_WRONG_TYPE, node->at, "attention.%s must be an expression, not %s", key,
             spec_quote(s->memory, node->value));
    diag_hint(r->diags, type == EXPR_BOOL ? "leave the key out for no mask, or write `mask: true`"
                                          : "leave the key out for plain scores, or write `score: s`");
    return NULL;
  }
  expr_scope scope = {
      .symbols = symbols, .params = s->params, .nparams = s->nparams, .heads_q = s->heads_q, .heads_kv = s->heads_kv};
  return expr_parse(s->memory, node->value, node->inside, node->verbatim, &scope, type, r->diags);
}

/* A parameter that nothing reads would have to be passed and change nothing. */
static void check_used(reader *r, const expr *score, const expr *mask) {
  uint32_t used = expr_params(score) | expr_params(mask);
  for (int i = 0; i < r->spec->nparams; i++)
    if (!(used >> i & 1)) {
      diag_add(r->diags, DIAG_CONFLICT, r->spec->params[i].at, "parameter '%s' has no effect on score or mask",
               r->spec->params[i].name);
      diag_hint(r->diags, "use it in score or mask, or remove it");
    }
}

void spec_read_expressions(spec *s, const tree_node *attention, diags *d) {
  reader r = {s, d};
  s->scale = s->dim_qk > 0 ? 1 / sqrt(s->dim_qk) : 1;
  s->score = expr_sym(s->memory, EXPR_S);
  s->mask = expr_bool(s->memory, true);
  if (!attention || attention->kind != TREE_MAPPING)
    return;
  spec_read_constant(s, "attention.scale", tree_get(attention, "scale"), &s->scale, d);
  read_softcap(&r, tree_get(attention, "softcap"));
  if (s->heads_q == 0 || s->heads_kv == 0)
    return; /* heads_q, heads_kv and group have no value */
  if (!read_params(&r, tree_get(attention, "params")))
    return;
  const unsigned all = EXPR_BIT(EXPR_NAMED_COUNT) - 1;
  const tree_node *score = tree_get(attention, "score"), *mask = tree_get(attention, "mask");
  if (score)
    s->score = read_expression(&r, "score", score, all, EXPR_FLOAT);
  if (mask)
    s->mask = read_expression(&r, "mask", mask, all & ~EXPR_BIT(EXPR_S), EXPR_BOOL);
  if (s->score && s->mask)
    check_used(&r, s->score, s->mask);
}
