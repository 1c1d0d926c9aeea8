/* spec_print.c: the canonical form of a spec, as text and as JSON.
 *
 * Both come from one list of fields, so that they cannot differ. Fields that cannot change the meaning (alignment where
 * no expression reads a query position, hk where every query head has its own KV head) print as their default. */
#include <stdio.h>
#include <string.h>

#include "rope.h"

static const char *const dtype_names[DTYPE_COUNT] = {"f16", "bf16", "f32", "e4m3", "e5m2"};
static const int dtype_sizes[DTYPE_COUNT] = {2, 2, 4, 1, 1};
static const char *const output_names[] = {"o", "lse", "lse_with_sink"};
static const char *const deterministic_names[] = {"false", "true", "batch"};

const char *spec_dtype_name(spec_dtype t) {
  return dtype_names[t];
}
int spec_dtype_size(spec_dtype t) {
  return dtype_sizes[t];
}

const char *spec_layout_name(spec_layout l) {
  static const char *const names[] = {"dense", "padded", "ragged", "paged"};
  return names[l];
}

const char *spec_page_order_name(spec_page_order o) {
  return o == PAGE_HND ? "hnd" : "nhd";
}
const char *spec_page_table_name(spec_page_table t) {
  return t == PAGE_TABLE_CSR ? "csr" : "rows";
}

const char *spec_slots_name(spec_slots s) {
  static const char *const names[] = {"mapping", "positions", "lengths"};
  return names[s];
}

bool spec_is_dense(const spec *s) {
  return s->layout_q == LAYOUT_DENSE && s->layout_kv == LAYOUT_DENSE;
}

/* Where the fields go: lines of "  key: value", or members of a JSON object. */
typedef struct printer {
  text *out;
  arena *memory;
  const spec *spec;
  bool json;
  int depth;
  bool first; /* nothing printed in the open object yet */
} printer;

static void put_key(printer *p, const char *key) {
  if (p->json) {
    text_puts(p->out, p->first ? "\n" : ",\n");
    text_printf(p->out, "%*s", 2 * p->depth, "");
    text_json_string(p->out, key);
    text_puts(p->out, ": ");
  } else
    text_printf(p->out, "%*s%s:", 2 * (p->depth - 1), "", key);
  p->first = false;
}

static void open_object(printer *p, const char *key) {
  put_key(p, key);
  text_puts(p->out, p->json ? "{" : "\n");
  p->depth++;
  p->first = true;
}

static void close_object(printer *p) {
  p->depth--;
  if (p->json && !p->first)
    text_printf(p->out, "\n%*s", 2 * p->depth, "");
  if (p->json)
    text_puts(p->out, "}");
  p->first = false;
}

/* A value that is no string in JSON. */
static void put_bare(printer *p, const char *key, const char *value) {
  put_key(p, key);
  text_printf(p->out, p->json ? "%s" : " %s\n", value);
}

static void put_integer(printer *p, const char *key, int64_t value) {
  char digits[24];
  snprintf(digits, sizeof digits, "%lld", (long long)value);
  put_bare(p, key, digits);
}

static void put_double(printer *p, const char *key, double value) {
  put_key(p, key);
  text_puts(p->out, p->json ? "" : " ");
  text_double(p->out, value);
  text_puts(p->out, p->json ? "" : "\n");
}

static void put_word(printer *p, const char *key, const char *value) {
  put_key(p, key);
  if (p->json)
    text_json_string(p->out, value);
  else
    text_printf(p->out, " %s\n", value);
}

/* ---- Expressions ---- */

/* hk written as what it is in this spec, where that is simpler: 0 or h. Likewise h for one query head. */
static const expr *simplify_heads(const printer *p, const expr *e) {
  const spec *s = p->spec;
  if (s->heads_kv == 1)
    e = expr_substitute(p->memory, e, EXPR_HK, expr_int(p->memory, 0));
  if (s->heads_kv == s->heads_q)
    e = expr_substitute(p->memory, e, EXPR_HK, expr_sym(p->memory, EXPR_H));
  if (s->heads_q == 1)
    e = expr_substitute(p->memory, e, EXPR_H, expr_int(p->memory, 0));
  return e;
}

static const expr *normal(const printer *p, const expr *e) {
  return expr_normalise(p->memory, simplify_heads(p, e));
}

/* An expression into a string literal or as plain text. */
static void put_expr_text(printer *p, const expr *e) {
  if (!p->json) {
    expr_print(e, p->spec->params, p->out);
    return;
  }
  text t = {0};
  expr_print(e, p->spec->params, &t);
  text_json_string(p->out, t.bytes ? t.bytes : "");
  p->out->failed |= t.failed;
  text_free(&t);
}

static void put_expr(printer *p, const char *key, const expr *e) {
  put_key(p, key);
  text_puts(p->out, p->json ? "" : " ");
  put_expr_text(p, e);
  text_puts(p->out, p->json ? "" : "\n");
}

/* ---- Sections ---- */

static void put_params(printer *p) {
  const spec *s = p->spec;
  open_object(p, "params");
  for (int i = 0; i < s->nparams; i++) {
    const expr_param *param = &s->params[i];
    const expr *shape[EXPR_MAX_RANK];
    for (int n = 0; n < param->rank; n++)
      shape[n] = expr_normalise(p->memory, param->shape[n]);
    open_object(p, param->name);
    put_word(p, "type", expr_param_type_name(param->type));
    put_key(p, "shape");
    text_puts(p->out, p->json ? "[" : " [");
    for (int n = 0; n < param->rank; n++) {
      text_puts(p->out, n ? ", " : "");
      put_expr_text(p, shape[n]);
    }
    text_puts(p->out, p->json ? "]" : "]\n");
    close_object(p);
  }
  close_object(p);
}

static void put_shapes(printer *p) {
  const spec *s = p->spec;
  open_object(p, "heads");
  put_integer(p, "q", s->heads_q);
  put_integer(p, "kv", s->heads_kv);
  close_object(p);
  open_object(p, "dim");
  put_integer(p, "qk", s->dim_qk);
  put_integer(p, "v", s->dim_v);
  close_object(p);
}

static void put_attention(printer *p) {
  const spec *s = p->spec;
  const expr *score = normal(p, s->score), *mask = normal(p, s->mask);
  bool aligned = (expr_symbols(score) | expr_symbols(mask)) & EXPR_BIT(EXPR_Q);
  open_object(p, "attention");
  put_shapes(p);
  open_object(p, "dtype");
  put_word(p, "q", spec_dtype_name(s->dtype_q));
  put_word(p, "kv", spec_dtype_name(s->dtype_kv));
  put_word(p, "out", spec_dtype_name(s->dtype_out));
  close_object(p);
  if (s->kv_scale != KV_SCALE_NONE)
    put_word(p, "kv_scale", "per_head");
  put_double(p, "scale", s->scale);
  if (s->softcap > 0)
    put_double(p, "softcap", s->softcap);
  put_expr(p, "score", score);
  put_expr(p, "mask", mask);
  put_word(p, "sink", s->sink == SINK_PER_HEAD ? "per_head" : "none");
  put_word(p, "align", aligned && s->align == ALIGN_TOP_LEFT ? "top_left" : "bottom_right");
  if (s->nparams)
    put_params(p);
  close_object(p);
}

static void put_layout(printer *p) {
  const spec *s = p->spec;
  open_object(p, "layout");
  put_word(p, "q", spec_layout_name(s->layout_q));
  if (s->layout_kv == LAYOUT_PAGED) {
    open_object(p, "kv");
    open_object(p, "paged");
    put_integer(p, "page", s->page_size);
    put_word(p, "order", spec_page_order_name(s->page_order));
    put_word(p, "table", spec_page_table_name(s->page_table));
    close_object(p);
    close_object(p);
  } else
    put_word(p, "kv", spec_layout_name(s->layout_kv));
  close_object(p);
}

/* ---- rope, append ---- */

typedef struct number {
  const char *key;
  double value;
} number;

static void put_numbers(printer *p, const char *kind, const number *numbers, int count) {
  open_object(p, kind);
  for (int n = 0; n < count; n++)
    put_double(p, numbers[n].key, numbers[n].value);
}

static void put_scaling(printer *p) {
  const spec_rope *r = &p->spec->rope;
  if (r->scaling == ROPE_UNSCALED) {
    put_word(p, "scaling", "none");
    return;
  }
  open_object(p, "scaling");
  if (r->scaling == ROPE_YARN) {
    const number numbers[] = {{"factor", r->factor},
                              {"original", r->original},
                              {"beta_fast", r->beta_fast},
                              {"beta_slow", r->beta_slow},
                              {"attention_factor", rope_factor(r)}};
    put_numbers(p, "yarn", numbers, 5);
    put_bare(p, "truncate", r->truncate ? "true" : "false");
  } else if (r->scaling == ROPE_LLAMA3) {
    const number numbers[] = {
        {"factor", r->factor}, {"low", r->low}, {"high", r->high}, {"original", r->original}};
    put_numbers(p, "llama3", numbers, 4);
  } else
    put_numbers(p, r->scaling == ROPE_NTK ? "ntk" : "linear", &(number){"factor", r->factor}, 1);
  close_object(p);
  close_object(p);
}

/* `numbers`: those that are arguments of kernels, too. */
static void put_rope(printer *p, bool numbers) {
  const spec_rope *r = &p->spec->rope;
  if (!r->given)
    return;
  open_object(p, "rope");
  put_integer(p, "dims", r->dims);
  put_word(p, "style", r->interleaved ? "interleaved" : "half");
  put_bare(p, "table", r->table ? "true" : "false");
  if (!r->table && numbers) {
    put_double(p, "theta", r->theta);
    put_scaling(p);
  }
  close_object(p);
}

static void put_append(printer *p, bool numbers) {
  const spec_append *a = &p->spec->append;
  if (!a->given)
    return;
  open_object(p, "append");
  put_word(p, "norm", a->norm ? "rms" : "none");
  if (a->norm && numbers)
    put_double(p, "epsilon", a->epsilon);
  put_word(p, "slots", spec_slots_name(a->slots));
  put_bare(p, "query", a->query ? "true" : "false");
  close_object(p);
}

static void put_outputs(printer *p) {
  put_key(p, "outputs");
  text_puts(p->out, p->json ? "[" : " [");
  const char *before = "";
  for (unsigned i = 0; i < sizeof output_names / sizeof output_names[0]; i++)
    if (p->spec->outputs >> i & 1) {
      text_printf(p->out, p->json ? "%s\"%s\"" : "%s%s", before, output_names[i]);
      before = ", ";
    }
  text_puts(p->out, p->json ? "]" : "]\n");
}

static void put_deterministic(printer *p) {
  const char *value = deterministic_names[p->spec->deterministic];
  if (p->spec->deterministic == DETERMINISTIC_BATCH)
    put_word(p, "deterministic", value);
  else
    put_bare(p, "deterministic", value);
}

/* ---- Schedule and workloads: JSON only ---- */

static void put_schedule_phase(printer *p, const char *phase) {
  for (int i = 0; i < p->spec->nschedule; i++) {
    const spec_schedule_field *f = &p->spec->schedule[i];
    if ((f->phase == NULL) != (phase == NULL) || (phase && strcmp(f->phase, phase) != 0))
      continue;
    bool digits = f->value[0] >= '0' && f->value[0] <= '9';
    if (digits)
      put_bare(p, f->name, f->value);
    else
      put_word(p, f->name, f->value);
  }
}

static void put_schedule(printer *p) {
  static const char *const phases[] = {"prefill", "decode"};
  if (p->spec->nschedule == 0) {
    put_word(p, "schedule", "auto");
    return;
  }
  open_object(p, "schedule");
  put_schedule_phase(p, NULL);
  for (size_t n = 0; n < sizeof phases / sizeof phases[0]; n++) {
    bool any = false;
    for (int i = 0; i < p->spec->nschedule; i++)
      any = any || (p->spec->schedule[i].phase && strcmp(p->spec->schedule[i].phase, phases[n]) == 0);
    if (!any)
      continue;
    open_object(p, phases[n]);
    put_schedule_phase(p, phases[n]);
    close_object(p);
  }
  close_object(p);
}

static void put_workloads(printer *p) {
  put_key(p, "workloads");
  text_puts(p->out, "[");
  for (int i = 0; i < p->spec->nworkloads; i++) {
    const spec_workload *w = &p->spec->workloads[i];
    text_printf(p->out, "%s\n    {\"name\": ", i ? "," : "");
    text_json_string(p->out, w->name);
    text_printf(p->out, ", \"batch\": %lld, \"q\": %lld, \"kv\": %lld}", (long long)w->batch, (long long)w->len_q,
                (long long)w->len_k);
  }
  text_puts(p->out, p->spec->nworkloads ? "\n  ]" : "]");
}

/* Runs `print` with an arena of its own for normal forms; out of memory marks the text. */
static void print_with_arena(const spec *s, text *out, bool json, void (*print)(printer *p)) {
  arena *a = arena_new();
  if (!a) {
    out->failed = true;
    return;
  }
  if (!ARENA_TRY(a)) {
    arena_free(a);
    out->failed = true;
    return;
  }
  printer p = {.out = out, .memory = a, .spec = s, .json = json, .depth = 1, .first = true};
  print(&p);
  arena_free(a);
}

static void print_canonical(printer *p) {
  put_integer(p, "qkvc", 1);
  put_attention(p);
  put_layout(p);
  put_rope(p, true);
  put_append(p, true);
  put_outputs(p);
  put_deterministic(p);
}

static void print_attention_phase(printer *p) {
  put_integer(p, "qkvc", 1);
  put_attention(p);
  put_layout(p);
  put_outputs(p);
  put_deterministic(p);
}

static void print_append_phase(printer *p) {
  const spec *s = p->spec;
  put_integer(p, "qkvc", 1);
  open_object(p, "attention");
  put_shapes(p);
  open_object(p, "dtype");
  put_word(p, "q", spec_dtype_name(s->dtype_q));
  put_word(p, "kv", spec_dtype_name(s->dtype_kv));
  close_object(p);
  if (s->kv_scale != KV_SCALE_NONE)
    put_word(p, "kv_scale", "per_head");
  close_object(p);
  put_layout(p);
  put_rope(p, false);
  put_append(p, false);
}

static void print_json(printer *p) {
  text_puts(p->out, "{");
  put_integer(p, "qkvc", 1);
  put_word(p, "name", p->spec->name);
  put_attention(p);
  put_layout(p);
  put_rope(p, true);
  put_append(p, true);
  put_outputs(p);
  put_deterministic(p);
  put_schedule(p);
  put_workloads(p);
  text_puts(p->out, "\n}\n");
}

void spec_canonical(const spec *s, text *out) {
  print_with_arena(s, out, false, print_canonical);
}
void spec_canonical_of_phase(const spec *s, const char *phase, text *out) {
  print_with_arena(s, out, false, strcmp(phase, "append") == 0 ? print_append_phase : print_attention_phase);
}
void spec_json(const spec *s, text *out) {
  print_with_arena(s, out, true, print_json);
}
